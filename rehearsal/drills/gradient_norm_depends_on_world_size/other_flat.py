import torch
import torch.distributed as dist


def train(model, inputs, targets, *, epochs, global_batch_size, micro_batch_size, max_norm, lr):
    """One flat gradient per step: summed locally, then over ranks, then clipped."""
    parameters = list(model.parameters())
    sizes = [p.numel() for p in parameters]
    flat = torch.cat([p.detach().flatten() for p in parameters])
    dist.broadcast(flat, 0)
    for p, part in zip(parameters, flat.split(sizes)):
        p.data.copy_(part.view_as(p))
    optimizer, log = torch.optim.SGD(parameters, lr=lr), []
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for number in range(epochs * -(-len(inputs) // global_batch_size)):
        first = number % -(-len(inputs) // global_batch_size) * global_batch_size
        size = min(global_batch_size, len(inputs) - first)
        low, high = first + rank * size // world_size, first + (rank + 1) * size // world_size
        total = torch.zeros(sum(sizes))
        for at in range(low, high, micro_batch_size):
            micro = slice(at, min(at + micro_batch_size, high))
            error = (model(inputs[micro]) - targets[micro]).square().sum() / size
            grads = torch.autograd.grad(error, parameters, materialize_grads=True)
            total += torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(total)
        norm = total.norm()
        total *= torch.clamp(max_norm / norm, max=1.0)
        for p, part in zip(parameters, total.split(sizes)):
            p.grad = part.view_as(p)
        optimizer.step()
        log.append(norm.item())
    return log
