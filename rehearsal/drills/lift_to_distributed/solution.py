import torch
import torch.distributed as dist


def train(model, inputs, targets, *, epochs, global_batch_size, lr):
    """The same training, on all ranks of the group together."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for tensor in model.state_dict().values():
        dist.broadcast(tensor.data, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(epochs):
        for first in range(0, len(inputs), global_batch_size):
            last = min(first + global_batch_size, len(inputs))
            # The step is defined before the ranks are; each takes every world_size-th sample.
            mine = list(range(first + rank, last, world_size))
            optimizer.zero_grad()
            # Summed locally, divided by the step's size: the sum over ranks is the global mean.
            loss = (model(inputs[mine]) - targets[mine]).pow(2).sum() / (last - first)
            loss.backward()
            for parameter in model.parameters():
                # None on every rank: the loss doesn't use this parameter.
                if parameter.grad is None:
                    continue
                dist.all_reduce(parameter.grad)
            optimizer.step()
