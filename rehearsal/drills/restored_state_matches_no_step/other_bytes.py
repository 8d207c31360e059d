import io
import queue
import threading

import torch
import torch.distributed as dist


class Uploads(threading.Thread):
    """Writes bytes that nobody changes anymore; at most two checkpoints wait for it."""

    def __init__(self):
        super().__init__(daemon=True)
        self.waiting = queue.Queue(2)
        self.failures = []
        self.start()

    def run(self):
        for path, data in iter(self.waiting.get, None):
            try:
                path.with_name("unfinished").write_bytes(data)
                path.with_name("unfinished").replace(path)
            except Exception as failure:
                self.failures.append(failure)

    def finish(self):
        self.waiting.put(None)
        self.join()
        for failure in self.failures:
            raise failure


def newest(folder):
    steps = [int(path.name[5:-3]) for path in folder.glob("step-*.pt")]
    dist.barrier()
    return max(steps, default=0)


def train(model, inputs, targets, *, folder, epochs, global_batch_size, checkpoint_every, lr):
    """Serialize at once, in memory, and leave only the writing to the thread."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    done = newest(folder)
    if done:
        state = torch.load(folder / f"step-{done}.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    uploads = Uploads() if rank == 0 else None
    firsts = list(range(0, len(inputs), global_batch_size)) * epochs
    for step, first in enumerate(firsts[done:], done + 1):
        ours, wanted = (part[first : first + global_batch_size] for part in (inputs, targets))
        error = model(ours[rank::world_size]) - wanted[rank::world_size]
        optimizer.zero_grad()
        (error.square().sum() / len(ours)).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        optimizer.step()
        if uploads and step % checkpoint_every == 0:
            data = io.BytesIO()
            state = {"step": step, "model": model.state_dict()}
            torch.save({**state, "optimizer": optimizer.state_dict()}, data)
            uploads.waiting.put((folder / f"step-{step}.pt", data.getvalue()))
    if uploads:
        uploads.finish()
