import torch
import torch.distributed as dist


def train(model, inputs, targets, *, node_size, epochs, global_batch_size, lr):
    """Each gradient goes to its owner, between owners, and comes back as a parameter."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    num_nodes = world_size // node_size
    my_node, local_rank = divmod(rank, node_size)
    nodes = [
        dist.new_group([node * node_size + one for one in range(node_size)])
        for node in range(num_nodes)
    ]
    rows = [
        dist.new_group([node * node_size + one for node in range(num_nodes)])
        for one in range(node_size)
    ]
    parameters = [p for _, p in sorted(model.named_parameters())]
    for parameter in parameters:
        dist.broadcast(parameter.data, 0)
    optimizers = {
        number: torch.optim.SGD([parameter], lr=lr, momentum=0.9)
        for number, parameter in enumerate(parameters)
        if number % node_size == local_rank
    }
    history = []
    for _ in range(epochs):
        total = 0.0
        for first in range(0, len(inputs), global_batch_size):
            batch = list(range(first, min(first + global_batch_size, len(inputs))))
            # Blocks, as even as they get.
            begin, end = (len(batch) * one // world_size for one in (rank, rank + 1))
            mine = batch[begin:end]
            for parameter in parameters:
                parameter.grad = None
            loss = (model(inputs[mine]) - targets[mine]).pow(2).sum()
            total += loss.item()
            (loss / len(batch)).backward()
            for number, parameter in enumerate(parameters):
                owner = my_node * node_size + number % node_size
                if parameter.grad is not None:
                    dist.reduce(parameter.grad, owner, group=nodes[my_node])
                    if owner == rank:
                        dist.all_reduce(parameter.grad, group=rows[local_rank])
                        optimizers[number].step()
                    dist.broadcast(parameter.data, owner, group=nodes[my_node])
        totals = [None] * world_size
        dist.all_gather_object(totals, total)
        history.append(sum(totals) / len(inputs))
    return history
