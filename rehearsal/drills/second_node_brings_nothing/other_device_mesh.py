import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def train(model, inputs, targets, *, node_size, epochs, global_batch_size, lr):
    """A device mesh; all gradients in one message; the owners' parameters in another."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shape = (world_size // node_size, node_size)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("nodes", "ranks"))
    node, between = mesh.get_group("ranks"), mesh.get_group("nodes")
    first_of_node = rank - mesh.get_local_rank("ranks")
    parameters = list(model.parameters())
    for parameter in parameters:
        dist.broadcast(parameter.data, 0)
    owners = [first_of_node + number % node_size for number in range(len(parameters))]
    mine = [p for p, owner in zip(parameters, owners) if owner == rank]
    optimizer = torch.optim.SGD(mine, lr=lr, momentum=0.9)
    history = []
    for _ in range(epochs):
        sums = torch.zeros(2)
        for first in range(0, len(inputs), global_batch_size):
            last = min(first + global_batch_size, len(inputs))
            own = slice(first + rank, last, world_size)
            model.zero_grad()
            loss = (model(inputs[own]) - targets[own]).square().sum()
            (loss / (last - first)).backward()
            grads = [p.grad for p in parameters if p.grad is not None]
            flat = torch.cat([grad.view(-1) for grad in grads])
            dist.all_reduce(flat, group=between)
            dist.all_reduce(flat, group=node)
            for grad, part in zip(grads, flat.split([grad.numel() for grad in grads])):
                grad.copy_(part.view_as(grad))
            optimizer.step()
            for parameter, owner in zip(parameters, owners):
                dist.broadcast(parameter.data, owner, group=node)
            sums += torch.tensor([loss.item(), float(last - first) / world_size])
        dist.all_reduce(sums)
        history.append(float(sums[0] / sums[1]))
    return history
