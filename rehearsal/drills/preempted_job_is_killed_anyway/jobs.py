"""One call of ``train``, and the signals during it. In the ranks."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.restart import run_folder
from rehearsal.kit.observe.samples import (
    OddNet,
    before_forward,
    marked_samples,
    watch_samples,
    weights_of,
)
from rehearsal.kit.observe.steps import WatchedSteps
from rehearsal.kit.observe.stream import SampleStream

from .plan import AGAIN, AT_SAVE, PLACES, Run, Signal


def call(run: Run, number: int, context: RankContext, learner: SimpleNamespace) -> Any:
    """The ``number``-th call of ``train`` in the run's folder, from 0."""
    context.init_group()
    model = OddNet()
    watch = WatchedSteps(context, model)
    reached = sends(context, model, run.signals[number], context.folder / f"call-{number}")
    watch_samples(context, model)
    stream = SampleStream(steps=run.steps, share=run.share, lr=run.lr)

    def shares(step: int) -> Iterator[tuple[Tensor, Tensor]]:
        rest = stream.shares(context.rank, context.world_size)(step)
        for _ in range(step, run.steps):
            reached("share", context.count("forward"))
            yield next(rest)

    given, folder = weights_of(model), run_folder(context, "run")
    finished = learner.train(model, shares, folder, lr=run.lr)
    watch.end_step()
    is_last = number == len(run.signals) - 1
    inputs, targets = marked_samples(run.num_samples)
    return {
        "finished": finished,
        "given": given,
        "weights": weights_of(model),
        "samples": [inputs.tolist(), targets.tolist()] if context.rank == 0 else [],
        "expected": stream.expected(context.world_size) if is_last else {},
    }


def sends(
    context: RankContext, model: nn.Module, signals: Mapping[int, Signal], notes: Path
) -> Callable[[str, int], None]:
    """Watch the places of each step, and send this rank its SIGTERM at the one that is due.

    Records "signaled" (step: how many this call had completed, and the place). Where a design
    has no such place (an update that is written out, shares that are read ahead), the next
    one counts.

    Args:
        signals: of this call, by rank.
        notes: where the ranks of this call leave notes for each other.

    Returns what to call at a place: its name, and the completed steps.
    """
    when = signals.get(context.rank)
    stragglers = {rank: s.after for rank, s in signals.items() if s.place == "update"}
    is_sent = False
    due = (when.after, PLACES.index(when.place)) if when and when.place in PLACES else None

    def send(place: str, done: int) -> None:
        nonlocal is_sent
        if when and not is_sent:
            is_sent = True
            for name in (place, AGAIN)[: when.times]:
                context.record("signaled", step=done, place=name)
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.01)  # for a thread that waits for the signal

    def reached(place: str, done: int) -> None:
        if due and not is_sent and (done, PLACES.index(place)) >= due:
            if place == "update":
                wait_for_others()
            send(place, done)

    def wait_for_others() -> None:
        """A straggler: before it gets the signal, the other ranks have updated, and looked."""
        others = {f"{notes.name}-{rank}" for rank in range(context.world_size)}
        others.remove(f"{notes.name}-{context.rank}")
        since = time.monotonic()
        while others - set(os.listdir(notes.parent)) and time.monotonic() - since < 1:
            time.sleep(0.001)
        time.sleep(0.03)

    def updated(*_: object) -> None:
        done = context.count("optimizer_step")
        if done in stragglers.values():
            context.is_armed = False
            notes.with_name(f"{notes.name}-{context.rank}").touch()
            context.is_armed = True
        reached("update", done)

    def passed(_: nn.Module, __: object, outputs: Tensor) -> None:
        if outputs.requires_grad:
            outputs.register_hook(lambda _: reached("backward", context.count("forward") - 1))

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.rename" and str(arguments[0]).startswith(str(context.folder)):
            send(AT_SAVE, context.count("forward"))

    if when and when.place == AT_SAVE:
        sys.addaudithook(audit)
    register_optimizer_step_post_hook(updated)
    before_forward(model, lambda _: reached("forward", context.count("forward")))
    model.register_forward_hook(passed)
    return reached
