import os
import signal

import torch
import torch.distributed as dist


def train(model, shares, folder, *, lr):
    """The request rides along in the gradients' all-reduce, so it costs no extra collective."""
    signals = []
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    parameters = [p for p in model.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9)
    path = folder / "run.pt"
    step = 0
    if path.exists():
        state = torch.load(path)
        step = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for inputs, targets in shares(step):
        loss = ((model(inputs) - targets) ** 2).sum(1).mean()
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        used = [(p, g) for p, g in zip(parameters, grads) if g is not None]
        flat = torch.cat([g.flatten() for _, g in used] + [torch.tensor([float(len(signals))])])
        dist.all_reduce(flat)
        parts = flat[:-1].split([g.numel() for _, g in used])
        for (p, g), part in zip(used, parts):
            p.grad = part.view_as(g) / dist.get_world_size()
        optimizer.step()
        step += 1
        if flat[-1] > 0:
            if dist.get_rank() == 0:
                facts = {"step": step, "model": model.state_dict()}
                torch.save({**facts, "optimizer": optimizer.state_dict()}, folder / "new")
                os.rename(folder / "new", path)
            return False
    return True
