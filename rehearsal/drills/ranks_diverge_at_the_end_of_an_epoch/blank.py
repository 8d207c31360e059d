import contextlib

import torch
from torch.nn.parallel import DistributedDataParallel


def train(model, epochs, *, lr, grad_accum_steps):
    """A step is grad_accum_steps micro-batches; the last of an epoch may have fewer."""
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr, momentum=0.9)
    for micro_batches in epochs:
        for micro_step, (inputs, targets) in enumerate(micro_batches, start=1):
            is_step = micro_step % grad_accum_steps == 0
            is_epoch_end = micro_step == len(micro_batches)
            # An all-reduce per micro-batch would send grad_accum_steps times the bytes.
            with contextlib.nullcontext() if is_step else ddp.no_sync():
                loss = (ddp(inputs) - targets).pow(2).sum(1).mean()
                (loss / step_size(micro_step, len(micro_batches), grad_accum_steps)).backward()
            if is_step or is_epoch_end:
                optimizer.step()
                optimizer.zero_grad()


def step_size(micro_step, num_micro_batches, grad_accum_steps):
    """The number of micro-batches in the step that micro_step, counted from 1, belongs to."""
    first = (micro_step - 1) // grad_accum_steps * grad_accum_steps
    return min(grad_accum_steps, num_micro_batches - first)
