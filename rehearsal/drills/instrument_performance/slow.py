"""Parts of a training loop that are slow on purpose and record how long each one took.

Runs in the ranks. Processes of one machine share a clock: perf_counter counts from boot.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from rehearsal.kit.observe.samples import OddNet, marked_samples


LR = 0.01


class SlowLoop:
    """Model, batches and save of one call of ``train`` on one rank.

    Args:
        delays: seconds, by (phase, rank, step); steps count from 1.
        log: the file the learner should write to.
    """

    def __init__(
        self, rank: int, num_steps: int, delays: Mapping[tuple[str, int, int], float], log: Path
    ) -> None:
        self.rank, self.num_steps, self.delays, self.log = rank, num_steps, delays, log
        self.model = SlowNet(self)
        self.steps: list[dict[str, float]] = []  # seconds by phase, and moments
        self.saves: list[int] = []
        self.taken, self.seen_lines, self.run_s = 0, 0, 0.0

    def run(self, train: Callable[..., Any], **settings: Any) -> Any:
        """Call ``train`` with the parts and return what it returns."""
        begin = 0.0

        def before(*_: Any) -> None:
            nonlocal begin
            begin = time.perf_counter()
            self.delay("optimizer")

        def after(*_: Any) -> None:
            self.taken += 1
            self.add("optimizer", begin)

        hooks = [
            register_optimizer_step_pre_hook(before),
            register_optimizer_step_post_hook(after),
        ]
        for parameter in self.model.parameters():
            parameter.register_post_accumulate_grad_hook(self.grad_is_there)
        start = time.perf_counter()
        try:
            return train(self.model, self.batches(), lr=LR, save=self.save, **settings)
        finally:
            self.run_s = time.perf_counter() - start
            for hook in hooks:
                hook.remove()

    def delay(self, phase: str) -> None:
        """Sleep if a delay is planned for this phase, rank and step."""
        time.sleep(self.delays.get((phase, self.rank, len(self.steps)), 0.0))

    def add(self, phase: str, begin: float) -> None:
        """Add the time since ``begin`` to this step."""
        now, step = time.perf_counter(), self.steps[-1]
        step[phase] = step.get(phase, 0.0) + now - begin
        step[f"{phase}_end"] = now

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of uneven size, one by one."""
        inputs, targets = marked_samples(12, seed=3 + self.rank)
        for step in range(1, self.num_steps + 1):
            begin = time.perf_counter()
            self.steps.append({})
            if step == self.num_steps:
                with suppress(FileNotFoundError):
                    self.seen_lines = self.log.read_bytes().count(b"\n")
            self.delay("data_wait")
            size = batch_size(self.rank, step)
            batch = inputs[:size], targets[:size]
            self.add("data_wait", begin)
            yield batch

    def grad_is_there(self, _: Tensor) -> None:
        """A moment in the backward pass; a step keeps the last one."""
        self.steps[-1]["backward_end"] = time.perf_counter()

    def save(self, step: int) -> None:
        """A stand-in for a checkpoint."""
        begin = time.perf_counter()
        self.saves.append(step)
        self.delay("checkpoint")
        self.add("checkpoint", begin)

    def facts(self) -> dict[str, Any]:
        """What the judge reads."""
        lines = []
        if os.path.exists(self.log):
            for line in self.log.read_text().splitlines():
                with suppress(ValueError):
                    lines.append(json.loads(line))
        return {
            "steps": self.steps if self.taken == len(self.steps) else [{}] * self.taken,
            "saves": self.saves,
            "run_s": self.run_s,
            "lines": lines,
            "seen_lines": self.seen_lines,
        }


def batch_size(rank: int, step: int) -> int:
    """Samples of a rank's batch: uneven, and different on each rank."""
    return 1 + (step + rank) % 5


class SlowNet(OddNet):
    """OddNet, with passes as slow as the loop has planned."""

    def __init__(self, loop: SlowLoop) -> None:
        super().__init__()
        self.loop = [loop]  # in a list: no part of the model

    def forward(self, inputs: Tensor) -> Tensor:
        begin, loop = time.perf_counter(), self.loop[0]
        outputs = super().forward(inputs)
        loop.delay("forward")
        loop.add("forward", begin)
        if outputs.requires_grad:
            outputs.register_hook(self.backward_begins)
        return outputs

    def backward_begins(self, _: Tensor) -> None:
        """Called by autograd."""
        begin, loop = time.perf_counter(), self.loop[0]
        loop.delay("backward")
        loop.add("backward", begin)
