import torch
import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_


def train(model, inputs, targets, *, epochs, global_batch_size, micro_batch_size, max_norm, lr):
    """Train on all ranks together; return the gradient norm of each step."""
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    norms = []
    for _ in range(epochs):
        for first in range(0, len(inputs), global_batch_size):
            samples = range(first, min(first + global_batch_size, len(inputs)))
            optimizer.zero_grad()
            norm = accumulate(model, inputs, targets, samples, micro_batch_size, max_norm)
            average_gradients(model)
            optimizer.step()
            norms.append(norm.item())
    return norms


def accumulate(model, inputs, targets, samples, micro_batch_size, max_norm):
    """Run this rank's micro-batches of a step."""
    world_size = dist.get_world_size()
    mine = samples[dist.get_rank() :: world_size]
    # A rank without samples runs an empty micro-batch, so that its gradient is zero, not None.
    for at in range(0, max(1, len(mine)), micro_batch_size):
        micro = list(mine[at : at + micro_batch_size])
        errors = (model(inputs[micro]) - targets[micro]).pow(2).sum()
        # Averaged over ranks, this is the mean over the step's samples.
        (errors * world_size / len(samples)).backward()
        norm = clip_grad_norm_(model.parameters(), max_norm)
    return norm


def average_gradients(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
