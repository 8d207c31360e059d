import copy
import os
from contextlib import contextmanager

import torch
import torch.distributed as dist


class Average:
    """An exponential moving average of a model's weights, to evaluate with."""

    def __init__(self, model, decay):
        self.decay = decay
        self.updates = 0
        # A tied weight has two names. Each gets its own copy here, so that one update moves it
        # once; a deep copy of the dict would keep one memory for both.
        self.weights = {name: weight.clone() for name, weight in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        """Move the average toward the model's weights."""
        self.updates += 1
        # With little history, the average follows the weights more closely.
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, weight in model.state_dict().items():
            self.weights[name].lerp_(weight, 1 - decay)

    @contextmanager
    def inside(self, model):
        """The model has the average's weights for the length of a with statement."""
        live = copy.deepcopy(model.state_dict())
        model.load_state_dict(self.weights)
        try:
            yield model
        finally:
            model.load_state_dict(live)

    def state_dict(self):
        # The next decay depends on the count.
        return {"weights": self.weights, "updates": self.updates}

    def load_state_dict(self, state):
        self.weights = {name: weight.clone() for name, weight in state["weights"].items()}
        self.updates = state["updates"]


class Checkpoints:
    """A run's last two checkpoints; rank 0 writes, all ranks read."""

    def __init__(self, folder, **parts):
        self.folder = folder
        self.parts = parts

    def all(self):
        return sorted(self.folder.glob("step-*.pt"))

    def save(self, step):
        if dist.get_rank() == 0:
            state = {name: part.state_dict() for name, part in self.parts.items()}
            torch.save({**state, "step": step}, self.folder / "new")
            os.replace(self.folder / "new", self.folder / f"step-{step:08d}.pt")
            for old in self.all()[:-2]:
                old.unlink()

    def restore(self):
        """Load the newest checkpoint, if there is one; return its step, or 0."""
        if not self.all():
            return 0
        state = torch.load(self.all()[-1])
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        return state["step"]


def share_of(step, num_samples, global_batch_size):
    """This rank's samples of a step, and how many samples all ranks have in it."""
    steps_per_epoch = -(-num_samples // global_batch_size)
    first = step % steps_per_epoch * global_batch_size
    last = min(first + global_batch_size, num_samples)
    return list(range(first + dist.get_rank(), last, dist.get_world_size())), last - first


def train_step(model, optimizer, inputs, targets, size):
    optimizer.zero_grad()
    ((model(inputs) - targets).pow(2).sum() / size).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
    optimizer.step()


@torch.no_grad()
def evaluate(model, inputs, targets):
    return (model(inputs) - targets).pow(2).mean().item()


def train(
    model,
    inputs,
    targets,
    held_out,
    *,
    folder,
    epochs,
    global_batch_size,
    checkpoint_every,
    evaluate_every,
    lr,
    decay,
):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    average = Average(model, decay)
    checkpoints = Checkpoints(folder, model=model, optimizer=optimizer, average=average)
    step = checkpoints.restore()
    steps_per_epoch = -(-len(inputs) // global_batch_size)
    evaluations = []
    while step < epochs * steps_per_epoch:
        mine, size = share_of(step, len(inputs), global_batch_size)
        train_step(model, optimizer, inputs[mine], targets[mine], size)
        average.update(model)
        step += 1
        if step % evaluate_every == 0:
            with average.inside(model):
                evaluations.append((step, evaluate(model, *held_out)))
        if step % checkpoint_every == 0:
            checkpoints.save(step)
    return average.weights, evaluations
