import os

import torch
import torch.distributed as dist


def newest(folder):
    """The newest checkpoint on this node's disk, or None."""
    found = sorted(folder.glob("step-*.pt"))
    return found[-1] if found else None


def save(folder, state, keep=2):
    """Publish a checkpoint on this node's disk; delete all but the newest ``keep``."""
    temporary = folder / "being-written"
    torch.save(state, temporary)
    os.replace(temporary, folder / f"step-{state['step']:08d}.pt")
    for old in sorted(folder.glob("step-*.pt"))[:-keep]:
        old.unlink()


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
    step, path = 0, newest(folder)
    if path is not None:
        state = torch.load(path)
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
            save(folder, {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                          "step": step})
