"""Record each start of a run by what it did to the weights; runs in the ranks.

``judge.starts`` reads it. A step is what lies between two changes of the weights, so it makes
no difference which optimizer takes it, or whether torch knows of any.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.moments import Moment, drawn_moments
from rehearsal.kit.observe.samples import before_forward, ids_of, weights_of

# By the weights before each step: its samples on this rank.
SamplesByWeights = dict[str, list[int]]


@contextmanager
def watched_start(
    context: RankContext, model: nn.Module, run: str
) -> Iterator[SamplesByWeights]:
    """Record a start of ``run``: the weights and samples of each forward pass that trains.

    After the first pass of a step comes an event "in_step", for which a fault may wait.

    Yields the steps, which are complete once the context ends.
    """
    steps: SamplesByWeights = {}

    def forward(batch: Tensor) -> None:
        if not torch.is_grad_enabled():
            return
        weights, samples = weights_of(model), ids_of(batch)
        context.record("pass", samples=samples, weights=weights)
        if str(weights) not in steps:
            context.record("in_step")
        steps.setdefault(str(weights), []).extend(samples)

    context.record("started", run=run, weights=weights_of(model))
    hook = before_forward(model, forward)
    try:
        yield steps
    finally:
        hook.remove()
    context.record("ended", weights=weights_of(model))


def steps_of_ranks(ranks: Sequence[SamplesByWeights]) -> list[list[int]]:
    """The samples of each step over all ranks; a rank without samples may leave a step out."""
    longest = max(ranks, key=len)
    return [[sample for rank in ranks for sample in rank.get(at, [])] for at in longest]


def keep_kills(
    context: RankContext,
    moments: Sequence[Moment],
    run: str,
    at_most: int,
    seed: int,
    *,
    each_save: bool = False,
) -> list[tuple[str, str, int]]:
    """Write down what kills would leave, each in a folder for a later job of the check.

    Args:
        moments: with the steps begun so far as their notes.
        at_most: so many are drawn.
        each_save: besides, keep what each save has left when the next one begins, and what the
            last one leaves.

    Returns:
        for each: the folder, where the kill strikes, and the steps begun by then.
    """
    if context.rank:  # whose end may come before that of rank 0's last save
        moments = [moment for moment in moments if moment.part != "end"]
    firsts = {moment.note: number for number, moment in reversed([*enumerate(moments)])}
    numbers = {*firsts.values(), len(moments) - 1} if moments and each_save else set()
    others = [moment for n, moment in enumerate(moments) if n not in numbers]
    draw = random.Random(f"{seed} {run} {context.rank}")
    chosen = [moments[n] for n in sorted(numbers)]
    chosen += [moment for _, moment in drawn_moments(others, at_most, draw)]
    kept = []
    context.is_armed = False
    for number, moment in enumerate(chosen):
        folder = f"{run}-moment-{context.rank}-{number:02d}"
        moment.restore(context.folder / folder)
        kept.append((folder, moment.where, moment.note))
    context.is_armed = True
    return kept


def kept_folders(context: RankContext, run: str) -> list[str]:
    """The folders that earlier jobs have kept of a run, in order."""
    return sorted(path.name for path in context.folder.glob(f"{run}-moment-*"))
