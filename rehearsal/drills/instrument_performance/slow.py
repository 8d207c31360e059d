"""Parts of a training loop that take their time and record how long each one took.

Runs in the ranks.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from rehearsal.kit.observe.samples import OddNet, marked_samples, weights_of

from .clock import Clock
from .plan import CLEARING, ENCODING, Call, Plan


class BrokenShard(Exception):
    """What a data loader may raise."""


class SlowLoop:
    """Model, batches and save of one call of ``train`` on one rank.

    Args:
        log: the file the learner should append to; it may hold the lines of an earlier call.
    """

    def __init__(self, clock: Clock, rank: int, plan: Plan, call: Call, log: Path) -> None:
        self.clock, self.rank, self.plan, self.call, self.log = clock, rank, plan, call, log
        self.earlier = log.read_bytes() if log.exists() else b""
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
            begin = self.clock.now()
            self.take("optimizer")

        def after(*_: Any) -> None:
            self.taken += 1
            self.add("optimizer", begin)

        hooks = [
            register_optimizer_step_pre_hook(before),
            register_optimizer_step_post_hook(after),
        ]
        self.clock.on_wait = lambda begin: self.add("grad_sync", begin)
        start = self.clock.now()
        try:
            with ExitStack() as stack:
                stack.enter_context(self.clock.in_place(getattr(train, "__globals__", {})))
                stack.enter_context(slow_json(self.clock))
                stack.enter_context(slow_zero_grad(self.clock))
                return train(
                    self.model, self.batches(), lr=self.plan.lr, save=self.save, **settings
                )
        finally:
            self.run_s = self.clock.now() - start
            for hook in hooks:
                hook.remove()

    def take(self, phase: str) -> None:
        """Let the time pass that this phase takes on this rank in this step."""
        self.clock.spend(self.call.times.get((phase, self.rank, len(self.steps)), 0.0))

    def add(self, phase: str, begin: float) -> None:
        """Add the time since ``begin`` to this step."""
        if not self.steps:  # a collective before the first batch
            return
        now, step = self.clock.now(), self.steps[-1]
        step[phase] = step.get(phase, 0.0) + now - begin
        step[f"{phase}_end"] = now

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of uneven size, one by one."""
        inputs, targets = marked_samples(12, seed=self.plan.seed + self.rank)
        for step in range(1, self.call.num_steps + 1):
            begin = self.clock.now()
            self.steps.append({"begin": begin})
            lines = self.written().count(b"\n")
            if lines < step - 1:
                self.late_lines.append((step - 1, lines))
            self.take("data_wait")
            size = batch_size(self.rank, step)
            batch = inputs[:size], targets[:size]
            self.add("data_wait", begin)
            yield batch
        if self.call.breaks:
            raise BrokenShard("shard-00007 is damaged")

    def save(self, step: int) -> None:
        """A stand-in for a checkpoint."""
        begin = self.clock.now()
        self.saves.append(step)
        self.saved.append(weights_of(self.model))
        self.take("checkpoint")
        self.add("checkpoint", begin)

    def written(self) -> bytes:
        """What this call has written to its log."""
        content = self.log.read_bytes() if self.log.exists() else b""
        return content.removeprefix(self.earlier)

    def facts(self) -> dict[str, Any]:
        """What the judge reads."""
        lines = []
        for line in self.written().decode(errors="replace").splitlines():
            with suppress(ValueError):
                lines.append(json.loads(line))
        content = self.log.read_bytes() if self.log.exists() else b""
        return {
            # None taken: the updates are written out, and the weights show what they did.
            "steps": self.steps if self.taken in (0, len(self.steps)) else [{}] * self.taken,
            "saves": self.saves,
            "saved": self.saved,
            "run_s": self.run_s,
            "lines": lines,
            "earlier_lines": self.earlier.count(b"\n"),
            "keeps_earlier": content.startswith(self.earlier),
            "late_lines": self.late_lines[-1:],
        }


def batch_size(rank: int, step: int) -> int:
    """Samples of a rank's batch: uneven, and different on each rank."""
    return 1 + (step + rank) % 5


class SlowNet(OddNet):
    """OddNet, with passes that take as long as planned."""

    def __init__(self, loop: SlowLoop) -> None:
        super().__init__()
        self.loop = [loop]  # in a list: no part of the model

    def forward(self, inputs: Tensor) -> Tensor:
        loop = self.loop[0]
        begin = loop.clock.now()
        outputs = super().forward(inputs)
        loop.take("forward")
        loop.add("forward", begin)
        if outputs.requires_grad:
            outputs.register_hook(self.backward_begins)
        return outputs

    def backward_begins(self, _: Tensor) -> None:
        """Called by autograd."""
        loop = self.loop[0]
        begin = loop.clock.now()
        loop.take("backward")
        loop.add("backward", begin)


@contextmanager
def slow_json(clock: Clock) -> Iterator[None]:
    """Make every encoding of JSON take a while: time between two steps that shows."""
    encode, iterencode = json.JSONEncoder.encode, json.JSONEncoder.iterencode

    @functools.wraps(encode)
    def slow_encode(self: json.JSONEncoder, o: Any) -> str:
        clock.spend(ENCODING)
        return encode(self, o)

    @functools.wraps(iterencode)
    def slow_iterencode(self: json.JSONEncoder, o: Any, _one_shot: bool = False) -> Any:
        if not _one_shot:  # which encode has slowed down
            clock.spend(ENCODING)
        return iterencode(self, o, _one_shot)

    json.JSONEncoder.encode = slow_encode  # type: ignore[method-assign]
    json.JSONEncoder.iterencode = slow_iterencode  # type: ignore[method-assign]
    try:
        yield
    finally:
        json.JSONEncoder.encode = encode  # type: ignore[method-assign]
        json.JSONEncoder.iterencode = iterencode  # type: ignore[method-assign]


@contextmanager
def slow_zero_grad(clock: Clock) -> Iterator[None]:
    """Make an optimizer take a while to clear the gradients: time between two phases."""
    zero_grad = torch.optim.Optimizer.zero_grad

    @functools.wraps(zero_grad)
    def slow(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
        clock.spend(CLEARING)
        zero_grad(self, set_to_none)

    torch.optim.Optimizer.zero_grad = slow  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.optim.Optimizer.zero_grad = zero_grad  # type: ignore[method-assign]
