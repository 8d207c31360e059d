"""Each step of a run as it happened, and restarts from what a kill would leave. In the ranks.

``judge.steps`` reads what is recorded here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.moments import Moment, drawn_moments, watch_moments
from rehearsal.kit.observe.restart import Body, odd_net, run_folder, trains
from rehearsal.kit.observe.samples import before_forward, marked_samples, weights_of


def watch_steps(context: RankContext, model: nn.Module) -> Callable[[], None]:
    """Record the weights with which each forward pass of training begins, as "step_begins".

    An update that is written out, without an optimizer of torch's, is recorded as
    "optimizer_step" when the next forward pass begins. Returns what to call at the end of the
    run, for its last update.
    """
    before: tuple[int, dict[str, str]] | None = None

    def end_step() -> None:
        nonlocal before
        if before is not None:
            steps, weights = before
            if context.count("optimizer_step") == steps and weights_of(model) != weights:
                context.record("optimizer_step")
        before = None

    def seen(_: Tensor) -> None:
        nonlocal before
        if torch.is_grad_enabled():
            end_step()
            weights = weights_of(model)
            before = context.count("optimizer_step"), weights
            context.record("step_begins", weights=weights)

    before_forward(model, seen)
    return end_step


def trains_in_steps(
    run: str,
    num_samples: int,
    *,
    model: Callable[[RankContext], nn.Module] = odd_net,
    **rest: Any,
) -> Body:
    """``restart.trains`` with its steps watched; answers "given" and "samples", too."""

    def body(context: RankContext, learner: SimpleNamespace) -> dict[str, Any]:
        given: list[dict[str, str]] = []
        ends: list[Callable[[], None]] = []

        def watched(context: RankContext) -> nn.Module:
            net = model(context)
            given.append(weights_of(net))
            ends.append(watch_steps(context, net))
            return net

        answer = trains(run, num_samples, model=watched, **rest)(context, learner)
        ends[0]()
        samples = [values.tolist() for values in marked_samples(num_samples)]
        return {**answer, "given": given[0], "samples": samples}

    return body


def keeping_moments(train: Body, run: str, *, at_most: int, seed: int) -> Body:
    """``train`` in the folder of ``run``, and what a kill in one of rank 0's saves would leave.

    Some moments are drawn, at least one of each kind if ``at_most`` allows; each becomes a
    folder, and the answer lists them as "moments": folder, where the kill would strike, and
    the forward passes that rank 0 had begun.
    """

    def body(context: RankContext, learner: SimpleNamespace) -> dict[str, Any]:
        folder = run_folder(context, run).resolve()
        watch: AbstractContextManager[list[Moment]] = nullcontext([])
        if context.rank == 0:
            watch = watch_moments(folder, lambda: context.count("forward"))
        with watch as moments:
            answer = train(context, learner)
        cut = [moment for moment in moments if moment.part != "end"]
        # The first save has nothing to fall back on; later ones have something to lose.
        first = [moment for moment in cut if moment.note == cut[0].note]
        later = [moment for moment in cut if moment.note > cut[0].note]
        draw = random.Random(f"{seed} moments of {run}")
        kept = []
        drawn = drawn_moments(first, at_most // 3, draw)
        drawn += drawn_moments(later, at_most - len(drawn), draw)
        for number, (_, moment) in enumerate(drawn):
            name = f"{run}-killed-{number}"
            kept.append((name, moment.where, moment.note))
            context.is_armed = False
            moment.restore(context.folder / name)
            context.is_armed = True
        return {**answer, "moments": kept}

    return body


def from_moments(
    train_in: Callable[[str], Body], run: str
) -> Callable[[RankContext, SimpleNamespace], None]:
    """A restart from each moment that ``keeping_moments`` has kept of ``run``, in one job.

    Recorded as "restarted" (folder) and "ended" (folder, weights).
    """

    def body(context: RankContext, learner: SimpleNamespace) -> None:
        folders = sorted(path.name for path in context.folder.glob(f"{run}-killed-*"))
        for folder in folders:
            context.record("restarted", folder=folder)
            answer = train_in(folder)(context, learner)
            context.record("ended", folder=folder, weights=answer["weights"])

    return body
