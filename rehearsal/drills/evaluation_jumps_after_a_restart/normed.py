"""The model, what a rank evaluates, and the same run in one process. Runs in the ranks."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.samples import before_forward, ids_of, marked_samples

from .plan import EPOCHS, Run

Pair = tuple[Tensor, Tensor]


class NormedNet(nn.Sequential):
    """Two BatchNorm layers: an exponential average, and one over all steps so far.

    A large eps: with two samples on a rank, a small one blows rounding errors up.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(
            nn.Linear(5, 6),
            nn.BatchNorm1d(6, eps=0.1),
            nn.Tanh(),
            nn.Linear(6, 4),
            nn.BatchNorm1d(4, eps=0.1, momentum=None),
            nn.Linear(4, 2),
        )
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.6)
            for name, buffer in self.named_buffers():
                if name.endswith("running_var"):
                    buffer.add_(torch.rand(buffer.shape, generator=generator))


def state_of(model: nn.Module) -> dict[str, str]:
    """Every parameter and buffer; the numbers of batches as floats as well."""
    state = {name.removeprefix("module."): value for name, value in model.state_dict().items()}
    return {
        name: value.detach().float().contiguous().numpy().tobytes().hex()
        for name, value in state.items()
    }


def samples_of(run: Run) -> tuple[Pair, Pair]:
    """What is trained, and what is held out: their ids follow those of the trained."""
    inputs, targets = marked_samples(run.num_samples + run.num_held_out)
    trained = slice(None, run.num_samples)
    held_out = slice(run.num_samples, None)
    return (inputs[trained], targets[trained]), (inputs[held_out], targets[held_out])


def watch_passes(context: RankContext, run: Run, model: nn.Module) -> None:
    """Record which held-out samples go through the model, and each pass without any."""

    def seen(batch: Tensor) -> None:
        ids = [sample for sample in ids_of(batch) if sample >= run.num_samples]
        if ids:
            context.record("evaluated", samples=ids)
        else:
            context.record("train_pass")

    before_forward(model, seen)


def expected(run: Run) -> dict[str, Any]:
    """One process that plays all ranks: SGD with momentum and the averages, written out."""
    replicas = [NormedNet(seed=0) for _ in range(run.world_size)]
    (inputs, targets), (held_inputs, held_targets) = samples_of(run)
    parameters = [list(replica.parameters()) for replica in replicas]
    speeds = [torch.zeros_like(parameter) for parameter in parameters[0]]
    evaluations: list[float] = []
    for step in range(run.steps):
        first = step % run.steps_per_epoch * run.global_batch_size
        batch = list(range(first, min(first + run.global_batch_size, run.num_samples)))
        totals = [torch.zeros_like(parameter) for parameter in parameters[0]]
        for rank, replica in enumerate(replicas):
            mine = batch[rank :: run.world_size]
            loss = (replica(inputs[mine]) - targets[mine]).pow(2).sum() / len(batch)
            for total, grad in zip(
                totals, torch.autograd.grad(loss, parameters[rank]), strict=True
            ):
                total.add_(grad)
        for place, (speed, total) in enumerate(zip(speeds, totals, strict=True)):
            speed.mul_(0.9).add_(total)
            for own in parameters:
                own[place].data.sub_(run.lr * speed)
        if (step + 1) % run.steps_per_epoch == 0:
            mean = mean_of(replicas).eval()
            with torch.no_grad():
                losses = (mean(held_inputs) - held_targets).pow(2).sum(1)
            evaluations.append(float(losses.mean()))
    assert len(evaluations) == EPOCHS
    return {"weights": state_of(mean_of(replicas)), "evaluations": evaluations}


def mean_of(replicas: list[NormedNet]) -> NormedNet:
    """A copy of the first, with the mean of all running statistics."""
    mean = copy.deepcopy(replicas[0])
    buffers = [dict(replica.named_buffers()) for replica in replicas]
    for name, buffer in mean.named_buffers():
        if buffer.is_floating_point():
            buffer.copy_(torch.stack([own[name] for own in buffers]).mean(0))
    return mean
