import os

import torch
import torch.distributed as dist


class Checkpoints:
    """A run's checkpoints; rank 0 writes them, all ranks read."""

    def __init__(self, folder):
        self.folder = folder

    def newest(self):
        """The newest checkpoint, or None; names sort like numbers, thanks to the zeros."""
        found = sorted(self.folder.glob("step-*.pt"))
        return found[-1] if found else None

    def save(self, step, model, optimizer):
        if dist.get_rank() == 0:
            state = {"step": step, "model": model.state_dict()}
            state["optimizer"] = optimizer.state_dict()
            torch.save(state, self.folder / "being-written")
            os.replace(self.folder / "being-written", self.folder / f"step-{step:08d}.pt")

    def restore(self, model, optimizer):
        """Load the newest checkpoint; return its step, or 0 if there is none."""
        path = self.newest()
        # Nobody may publish the next one before everybody has looked.
        dist.barrier()
        if path is None:
            return 0
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return state["step"]


class Schedule:
    """Which samples a step trains: in index order; an epoch's last step may be smaller."""

    def __init__(self, num_samples, global_batch_size):
        self.num_samples, self.global_batch_size = num_samples, global_batch_size
        self.steps_per_epoch = -(-num_samples // global_batch_size)

    def samples(self, step):
        first = step % self.steps_per_epoch * self.global_batch_size
        return range(first, min(first + self.global_batch_size, self.num_samples))

    def ends_epoch(self, step):
        """Whether an epoch is complete after ``step`` steps."""
        return step % self.steps_per_epoch == 0


def average_statistics(model):
    """Give all ranks the mean of their running statistics.

    An exponential or cumulative average is linear, so it doesn't matter how often they meet.
    """
    for buffer in model.buffers():
        if buffer.is_floating_point():  # the number of batches is the same on all ranks
            dist.all_reduce(buffer)
            buffer /= dist.get_world_size()


@torch.no_grad()
def evaluate(model, inputs, targets):
    """Mean loss over the held-out samples, of which each rank takes a share."""
    model.eval()
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    losses = (model(inputs[mine]) - targets[mine]).pow(2).sum(1)
    # The shares differ in size, so sums and counts travel, not means.
    sums = torch.tensor([losses.sum(), len(losses)], dtype=torch.float64)
    dist.all_reduce(sums)
    model.train()
    return (sums[0] / sums[1]).item()


def train_step(model, optimizer, inputs, targets, samples):
    """One step on this rank's share of ``samples``; the gradient is their mean's."""
    mine = list(samples)[dist.get_rank() :: dist.get_world_size()]
    optimizer.zero_grad()
    loss = (model(inputs[mine]) - targets[mine]).pow(2).sum() / len(samples)
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()


def train(
    model, inputs, targets, held_out, *, folder, epochs, global_batch_size, checkpoint_every, lr
):
    """Train, or resume; return the evaluation after each epoch that this call finished."""
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    checkpoints = Checkpoints(folder)
    schedule = Schedule(len(inputs), global_batch_size)
    step = checkpoints.restore(model, optimizer)
    evaluations = []
    while step < epochs * schedule.steps_per_epoch:
        train_step(model, optimizer, inputs, targets, schedule.samples(step))
        step += 1
        is_save_due = step % checkpoint_every == 0
        if is_save_due or schedule.ends_epoch(step):
            average_statistics(model)  # on all ranks: only the writing is rank 0's
        if is_save_due:
            checkpoints.save(step, model, optimizer)
        if schedule.ends_epoch(step):
            evaluations.append(evaluate(model, *held_out))
            if dist.get_rank() == 0:
                print(f"step {step}: evaluation {evaluations[-1]:.6f}", flush=True)
    return evaluations
