import io
import os

import torch
import torch.distributed as dist


def restore_together(folder):
    """Step and state, sent as bytes by the rank with the newest; step 0 if no rank has one."""
    steps = [int(path.name.split(".")[0]) for path in folder.glob("*.state")]
    mine = torch.tensor([max(steps, default=0), dist.get_rank()])
    everyone = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    step, owner = max(tuple(pair.tolist()) for pair in everyone)
    if step == 0:
        return 0, None
    length = torch.zeros(1, dtype=torch.long)
    if dist.get_rank() == owner:
        data = torch.frombuffer(
            bytearray((folder / f"{step}.state").read_bytes()), dtype=torch.uint8
        )
        length[0] = len(data)
    dist.broadcast(length, owner)
    if dist.get_rank() != owner:
        data = torch.empty(int(length), dtype=torch.uint8)
    dist.broadcast(data, owner)
    return step, torch.load(io.BytesIO(data.numpy().tobytes()))


def train(model, inputs, targets, *, folder, epochs, global_batch_size, checkpoint_every, lr):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    start, state = restore_together(folder)
    if state:
        model.load_state_dict(state[0])
        optimizer.load_state_dict(state[1])
    else:
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)
    steps = []
    for epoch in range(epochs):
        generator = torch.Generator().manual_seed(11 + epoch)
        steps += torch.randperm(len(inputs), generator=generator).split(global_batch_size)
    for step, samples in list(enumerate(steps, 1))[start:]:
        mine = samples[rank::world_size]
        optimizer.zero_grad()
        (((model(inputs[mine]) - targets[mine]) ** 2).sum() / len(samples)).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        optimizer.step()
        if step % checkpoint_every == 0:
            torch.save([model.state_dict(), optimizer.state_dict()], folder / "temporary")
            os.rename(folder / "temporary", folder / f"{step}.state")
