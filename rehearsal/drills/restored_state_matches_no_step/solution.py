import os
import queue
import threading

import torch
import torch.distributed as dist


class Writer:
    """Writes checkpoints on a thread, in the order in which they are handed over."""

    def __init__(self):
        self.jobs = queue.Queue()
        self.error = None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while (job := self.jobs.get()) is not None:
            try:
                self.write(*job)
            except Exception as error:
                self.error = error
            self.jobs.task_done()

    def write(self, path, state):
        temporary = path.with_suffix(".being-written")
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        # The new name is an entry of the folder: it survives a power cut only if that does.
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def submit(self, path, state):
        if self.error:
            raise self.error
        self.jobs.put((path, state))

    def wait(self):
        """Until everything handed over is written."""
        self.jobs.join()

    def close(self):
        self.jobs.put(None)
        self.thread.join()
        if self.error:
            raise self.error


class HostCopy:
    """Copies a state to memory that is allocated once and used by all saves.

    Only after the previous write: until then, the writer still reads that memory.
    """

    def __init__(self):
        self.buffers = {}

    def of(self, value, *path):
        if isinstance(value, torch.Tensor):
            if path not in self.buffers:
                self.buffers[path] = torch.empty_like(value)
            return self.buffers[path].copy_(value)
        if isinstance(value, dict):
            return {key: self.of(item, *path, key) for key, item in value.items()}
        if isinstance(value, list):
            return [self.of(item, *path, number) for number, item in enumerate(value)]
        return value


class Checkpoints:
    """Rank 0 saves step-N.pt, N being the completed steps; all ranks restore."""

    def __init__(self, folder):
        self.folder = folder
        self.host_copy = HostCopy()
        self.writer = Writer() if dist.get_rank() == 0 else None

    def save(self, step, model, optimizer):
        if self.writer is None:
            return
        # A state dict holds references: everything in it that changes is copied now.
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        self.writer.wait()
        state = self.host_copy.of(state)
        self.writer.submit(self.folder / f"step-{step}.pt", state)

    def restore(self, model, optimizer):
        """Load the newest checkpoint; return its step, or 0 if there is none."""
        steps = [int(path.stem.split("-")[1]) for path in self.folder.glob("step-*.pt")]
        # Before anybody publishes another one, everybody has looked.
        dist.barrier()
        if not steps:
            return 0
        state = torch.load(self.folder / f"step-{max(steps)}.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return state["step"]

    def close(self):
        if self.writer is not None:
            self.writer.close()


def train_step(model, optimizer, inputs, targets, size):
    """One step on this rank's share; ``size`` is the number of samples of all ranks."""
    optimizer.zero_grad()
    ((model(inputs) - targets).pow(2).sum() / size).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
    optimizer.step()


def train(model, inputs, targets, *, folder, epochs, global_batch_size, checkpoint_every, lr):
    """Train, or resume, and leave a checkpoint every ``checkpoint_every`` steps."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    checkpoints = Checkpoints(folder)
    batches = torch.arange(len(inputs)).split(global_batch_size)
    step = checkpoints.restore(model, optimizer)
    while step < epochs * len(batches):
        batch = batches[step % len(batches)]
        mine = batch[rank::world_size]
        train_step(model, optimizer, inputs[mine], targets[mine], len(batch))
        step += 1
        if step % checkpoint_every == 0:
            checkpoints.save(step, model, optimizer)
    checkpoints.close()
