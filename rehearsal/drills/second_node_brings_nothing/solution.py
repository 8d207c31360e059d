import torch
import torch.distributed as dist


class Mesh:
    """A group for each node, and a group for each local rank across all nodes.

    node_size=2, four ranks: nodes (0, 1) and (2, 3), peers (0, 2) and (1, 3).
    """

    def __init__(self, node_size):
        self.node_size = node_size
        rank, world_size = dist.get_rank(), dist.get_world_size()
        ranks = torch.arange(world_size).view(-1, node_size)
        # Every rank creates every group, also those it's not in: new_group waits for all ranks.
        for members in ranks.tolist():
            group = dist.new_group(members)
            if rank in members:
                self.node = group
        for members in ranks.T.tolist():
            group = dist.new_group(members)
            if rank in members:
                self.peers = group

    def add_up(self, tensor):
        """Sum over all ranks: fast links within a node, and few messages between nodes."""
        # In this order on every rank: the second group adds up what the first one has summed.
        for group in (self.node, self.peers):
            dist.all_reduce(tensor, group=group)

    def share(self, samples):
        """The samples of a step that this rank trains."""
        # By the rank in the job: a rank in the node is the same on every node.
        return samples[dist.get_rank() :: dist.get_world_size()]


class ShardedSGD:
    """SGD whose momentum is spread over a node: each parameter has one owner in it."""

    def __init__(self, model, mesh, lr):
        self.mesh = mesh
        self.parameters = list(model.parameters())
        local_rank = dist.get_rank(mesh.node)
        owned = [p for n, p in enumerate(self.parameters) if self.owner(n) == local_rank]
        self.sgd = torch.optim.SGD(owned, lr=lr, momentum=0.9)

    def owner(self, number):
        """The owner of a parameter, as a rank within its node."""
        return number % self.mesh.node_size

    def zero_grad(self):
        # All of them: a gradient is summed on each rank, even if another one applies it.
        for parameter in self.parameters:
            parameter.grad = None

    def step(self):
        """Owners update; then everybody gets each parameter from the owner in its node."""
        self.sgd.step()
        for number, parameter in enumerate(self.parameters):
            dist.broadcast(parameter.data, group=self.mesh.node, group_src=self.owner(number))


class EpochLoss:
    """The mean loss over an epoch's samples, on all ranks."""

    def __init__(self):
        self.sums = torch.zeros(2, dtype=torch.float64)

    def add(self, losses):
        self.sums += torch.tensor([losses.detach().sum().item(), len(losses)])

    def mean(self):
        dist.all_reduce(self.sums)
        return (self.sums[0] / self.sums[1]).item()


def train(model, inputs, targets, *, node_size, epochs, global_batch_size, lr):
    """Train on nodes of ``node_size`` ranks; return each epoch's mean loss."""
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    mesh = Mesh(node_size)
    optimizer = ShardedSGD(model, mesh, lr)
    history = []
    for _ in range(epochs):
        epoch_loss = EpochLoss()
        for samples in torch.arange(len(inputs)).split(global_batch_size):
            mine = mesh.share(samples)
            optimizer.zero_grad()
            losses = (model(inputs[mine]) - targets[mine]).pow(2).sum(1)
            # The mean over the step's samples, once all ranks have added theirs.
            (losses.sum() / len(samples)).backward()
            for parameter in model.parameters():
                if parameter.grad is not None:
                    mesh.add_up(parameter.grad)
            optimizer.step()
            epoch_loss.add(losses)
        history.append(epoch_loss.mean())
    return history
