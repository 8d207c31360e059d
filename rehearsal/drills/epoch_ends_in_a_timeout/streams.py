"""The streams, how far a rank reads ahead, and the same steps in one process. In the ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.samples import before_forward, ids_of, marked_samples, weights_of

from .plan import Streams

# The forward passes before which a rank waits: at first, and once a reader that gains on the
# training loop would be too far ahead.
LOOKS = (0, 6)


class SmallNet(nn.Sequential):
    """Every parameter gets a gradient; that of the first hidden unit is always zero."""

    def __init__(self, seed: int) -> None:
        first, last = nn.Linear(5, 4), nn.Linear(4, 2)
        super().__init__(first, nn.Tanh(), last)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
            # tanh(0) is 0, and what doesn't reach the output never changes.
            for part in (first.weight[0], first.bias[:1], last.weight[:, 0]):
                part.zero_()


class Pairs(Iterator[tuple[Tensor, Tensor]]):
    """An epoch's pairs on one rank, one by one, for one reader."""

    def __init__(self, stream: Watched, ids: range) -> None:
        self.stream, self.ids, self.is_first = stream, iter(ids), True

    def __next__(self) -> tuple[Tensor, Tensor]:
        """The next pair."""
        is_first, self.is_first = self.is_first, False
        return self.stream.read(self.ids, is_first)


class Watched:
    """One rank's stream. It can be read once per epoch, and knows who reads it, and when."""

    def __init__(self, context: RankContext, plan: Streams, model: nn.Module) -> None:
        self.rank, self.plan = context.rank, plan
        self.inputs, self.targets = marked_samples(plan.num_samples)
        self.num_read = self.num_trained = self.most_ahead = self.num_read_by_main = 0
        self.num_passes = self.num_at_once = 0
        self.reading = threading.Lock()
        self.opened: list[int] = []
        before_forward(model, self.trained)

    def trained(self, batch: Tensor) -> None:
        """Give the reader time to run as far ahead as it wants to."""
        if self.num_passes in LOOKS:
            time.sleep(0.01)
        self.num_passes += 1
        self.num_trained += len(ids_of(batch))

    def __call__(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The argument ``stream`` of ``train``."""
        self.opened.append(epoch)
        return Pairs(self, self.plan.ids(epoch, self.rank))

    def read(self, ids: Iterator[int], is_first: bool) -> tuple[Tensor, Tensor]:
        """The next pair of an epoch."""
        self.num_at_once += self.reading.locked()
        with self.reading:
            if is_first:  # a shard takes a moment to open, in which another reader shows up
                time.sleep(0.002)
            sample = next(ids)
            self.num_read += 1
            # The batch that is being trained is not ahead.
            self.most_ahead = max(self.most_ahead, self.num_read - self.num_trained)
            self.num_read_by_main += threading.current_thread() is threading.main_thread()
            return self.inputs[sample], self.targets[sample]

    def observed(self) -> dict[str, Any]:
        """For the judge."""
        return {
            "opened": self.opened,
            "most_ahead": self.most_ahead,
            "num_at_once": self.num_at_once,
            "num_read_by_main": self.num_read_by_main,
        }


def expected(plan: Streams) -> dict[str, Any]:
    """Weights and each epoch's loss of one process; SGD with momentum, written out."""
    model, (inputs, targets) = SmallNet(seed=0), marked_samples(plan.num_samples)
    parameters = list(model.parameters())
    speeds = [torch.zeros_like(parameter) for parameter in parameters]
    epoch_of = [e for e in range(len(plan.counts)) for _ in range(plan.num_steps(e))]
    sums = [0.0] * len(plan.counts)
    for number, shares in enumerate(plan.steps()):
        samples = [sample for share in shares for sample in share]
        losses = (model(inputs[samples]) - targets[samples]).pow(2).sum(1)
        sums[epoch_of[number]] += float(losses.detach().sum())
        grads = torch.autograd.grad(losses.mean(), parameters)
        lr = plan.lr * min(1.0, (number + 1) / plan.warmup_steps)
        for parameter, speed, grad in zip(parameters, speeds, grads, strict=True):
            speed.mul_(0.9).add_(grad)
            parameter.data.sub_(lr * speed)
    losses_of = [total / sum(own) for total, own in zip(sums, plan.counts, strict=True)]
    return {"weights": weights_of(model), "losses": losses_of}
