import hashlib
import io

import torch
import torch.distributed as dist


class Slots:
    """Two files, written in turn, each with a digest: one of them is always intact."""

    def __init__(self, folder):
        self.paths = [folder / "slot-a", folder / "slot-b"]

    def read(self):
        """The newest state in an intact slot, or None."""
        states = []
        for path in self.paths:
            data = path.read_bytes() if path.exists() else b""
            if len(data) > 32 and hashlib.sha256(data[32:]).digest() == data[:32]:
                states.append(torch.load(io.BytesIO(data[32:])))
        return max(states, key=lambda state: state["step"], default=None)

    def write(self, state):
        # Overwrite the older slot, or a damaged one.
        newest = self.read()
        state["slot"] = 0 if newest is None else 1 - newest["slot"]
        file = io.BytesIO()
        torch.save(state, file)
        digest = hashlib.sha256(file.getvalue()).digest()
        self.paths[state["slot"]].write_bytes(digest + file.getvalue())


def train(model, inputs, targets, *, folder, epochs, global_batch_size, checkpoint_every, lr):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    slots, first = Slots(folder), 0
    state = slots.read()
    if state is None:
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)
    else:
        first = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    batches = []
    for epoch in range(epochs):
        generator = torch.Generator().manual_seed(3 * epoch)
        batches += torch.randperm(len(inputs), generator=generator).split(global_batch_size)
    for step in range(first + 1, len(batches) + 1):
        mine = batches[step - 1][rank::world_size]
        optimizer.zero_grad()
        ((model(inputs[mine]) - targets[mine]) ** 2).sum().backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= len(batches[step - 1])
        optimizer.step()
        if rank == 0 and step % checkpoint_every == 0:
            moments = optimizer.state_dict()
            slots.write({"step": step, "model": model.state_dict(), "optimizer": moments})
