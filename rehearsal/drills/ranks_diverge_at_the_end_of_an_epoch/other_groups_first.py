import torch
from torch.nn.parallel import DistributedDataParallel


def train(model, epochs, *, lr, grad_accum_steps):
    """Cuts the epoch into groups first; DDP syncs in the last backward of a group."""
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr, momentum=0.9)
    for micro_batches in epochs:
        group = []
        for number, micro_batch in enumerate(micro_batches, 1):
            group.append(micro_batch)
            if len(group) == grad_accum_steps or number == len(micro_batches):
                take_step(ddp, optimizer, group)
                group = []


def take_step(ddp, optimizer, group):
    for inputs, targets in group[:-1]:
        with ddp.no_sync():
            add_gradient(ddp, inputs, targets, len(group))
    add_gradient(ddp, *group[-1], len(group))
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def add_gradient(ddp, inputs, targets, count):
    errors = (ddp(inputs) - targets).square().sum(dim=1)
    torch.mean(errors).div(count).backward()
