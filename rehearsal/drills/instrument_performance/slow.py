"""Parts of a training loop that are slow on purpose and record how long each one took.

Runs in the ranks. Processes of one machine share a clock: perf_counter counts from boot.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from rehearsal.kit.observe.samples import OddNet, marked_samples, weights_of

from .plan import Call, Plan

ENCODING_S = 0.0004  # what a line of JSON takes, on top: time between two steps that shows


class BrokenShard(Exception):
    """What a data loader may raise."""


class SlowLoop:
    """Model, batches and save of one call of ``train`` on one rank.

    Args:
        log: the file the learner should write to.
    """

    def __init__(self, rank: int, plan: Plan, call: Call, log: Path) -> None:
        self.rank, self.plan, self.call, self.log = rank, plan, call, log
        self.model = SlowNet(self)
        self.steps: list[dict[str, float]] = []  # seconds by phase, and moments
        self.saves: list[int] = []
        self.saved: list[dict[str, str]] = []  # the weights at each save
        self.late_lines: list[tuple[int, int]] = []  # steps done, and lines there were by then
        self.taken, self.run_s = 0, 0.0

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
            with slow_json():
                return train(
                    self.model, self.batches(), lr=self.plan.lr, save=self.save, **settings
                )
        finally:
            self.run_s = time.perf_counter() - start
            for hook in hooks:
                hook.remove()

    def delay(self, phase: str) -> None:
        """Sleep if a delay is planned for this phase, rank and step."""
        time.sleep(self.call.delays.get((phase, self.rank, len(self.steps)), 0.0))

    def add(self, phase: str, begin: float) -> None:
        """Add the time since ``begin`` to this step."""
        now, step = time.perf_counter(), self.steps[-1]
        step[phase] = step.get(phase, 0.0) + now - begin
        step[f"{phase}_end"] = now

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of uneven size, one by one."""
        inputs, targets = marked_samples(12, seed=self.plan.seed + self.rank)
        for step in range(1, self.call.num_steps + 1):
            begin = time.perf_counter()
            self.steps.append({"begin": begin})
            lines = self.log.read_bytes().count(b"\n") if self.log.exists() else 0
            if lines < step - 1:
                self.late_lines.append((step - 1, lines))
            self.delay("data_wait")
            size = batch_size(self.rank, step)
            batch = inputs[:size], targets[:size]
            self.add("data_wait", begin)
            yield batch
        if self.call.breaks:
            raise BrokenShard("shard-00007 is damaged")

    def grad_is_there(self, _: Tensor) -> None:
        """A moment in the backward pass; a step keeps the last one."""
        self.steps[-1]["backward_end"] = time.perf_counter()

    def save(self, step: int) -> None:
        """A stand-in for a checkpoint."""
        begin = time.perf_counter()
        self.saves.append(step)
        self.saved.append(weights_of(self.model))
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
            # None taken: the updates are written out, and the weights show what they did.
            "steps": self.steps if self.taken in (0, len(self.steps)) else [{}] * self.taken,
            "saves": self.saves,
            "saved": self.saved,
            "run_s": self.run_s,
            "lines": lines,
            "late_lines": self.late_lines[-1:],
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


@contextmanager
def slow_json() -> Iterator[None]:
    """Make every encoding of JSON take a while longer."""
    encode, iterencode = json.JSONEncoder.encode, json.JSONEncoder.iterencode

    @functools.wraps(encode)
    def slow_encode(self: json.JSONEncoder, o: Any) -> str:
        time.sleep(ENCODING_S)
        return encode(self, o)

    @functools.wraps(iterencode)
    def slow_iterencode(self: json.JSONEncoder, o: Any, _one_shot: bool = False) -> Any:
        if not _one_shot:  # which encode has slowed down
            time.sleep(ENCODING_S)
        return iterencode(self, o, _one_shot)

    json.JSONEncoder.encode = slow_encode  # type: ignore[method-assign]
    json.JSONEncoder.iterencode = slow_iterencode  # type: ignore[method-assign]
    try:
        yield
    finally:
        json.JSONEncoder.encode = encode  # type: ignore[method-assign]
        json.JSONEncoder.iterencode = iterencode  # type: ignore[method-assign]
