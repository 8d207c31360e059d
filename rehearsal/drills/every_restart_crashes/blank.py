import torch
import torch.distributed as dist


class Checkpoints:
    """A run's checkpoints, in a folder that all ranks share; only rank 0 writes."""

    def __init__(self, folder, keep=2):
        self.folder, self.keep = folder, keep

    def all(self):
        """Their paths, oldest first."""
        return sorted(self.folder.glob("step-*.pt"))

    def save(self, step, model, optimizer):
        if dist.get_rank() == 0:
            state = {"step": step, "model": model.state_dict()}
            state["optimizer"] = optimizer.state_dict()
            torch.save(state, self.folder / f"step-{step:08d}.pt")
            for old in self.all()[: -self.keep]:
                old.unlink()

    def newest(self):
        """The state to resume from; None for a new run."""
        found = self.all()
        return torch.load(found[-1]) if found else None


def train_step(model, optimizer, inputs, targets, size):
    optimizer.zero_grad()
    ((model(inputs) - targets).pow(2).sum() / size).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
    optimizer.step()


def train(model, inputs, targets, *, folder, epochs, global_batch_size, checkpoint_every, lr):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    steps_per_epoch = -(-len(inputs) // global_batch_size)
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    checkpoints = Checkpoints(folder)
    state, step = checkpoints.newest(), 0
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    while step < epochs * steps_per_epoch:
        epoch, batch = divmod(step, steps_per_epoch)
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch))
        samples = order.split(global_batch_size)[batch]
        mine = samples[rank::world_size]
        train_step(model, optimizer, inputs[mine], targets[mine], len(samples))
        step += 1
        if step % checkpoint_every == 0:
            checkpoints.save(step, model, optimizer)
