"""What the ranks have scored, drawn from the check's seed.

W  world size    B  rows of a rank    T  tasks
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from .truth import Rows, aurocs, variants

TASKS = 5
# The calls of a job, in order.
PADDED, UNEVEN = "padded shards", "uneven shards"
NO_ROWS, NOTHING = "a rank without rows", "no task is defined"
KINDS = (PADDED, UNEVEN, NO_ROWS, NOTHING)


class Spec(NamedTuple):
    """How a task is labeled: chances that a sample has a label, and that it's positive."""

    labeled: float
    positive: float


USUAL, RARE = Spec(0.6, 0.4), Spec(0.8, 0.08)
INACTIVE, ACTIVE, UNTESTED = Spec(0.5, 0.0), Spec(0.4, 1.0), Spec(0.0, 0.0)
# An even number of defined tasks, and an odd one; the median differs.
SPECS: Mapping[str, Sequence[Spec]] = {
    PADDED: (USUAL, INACTIVE, RARE, USUAL, USUAL),
    UNEVEN: (ACTIVE, USUAL, UNTESTED, RARE, USUAL),
    NO_ROWS: (USUAL, USUAL, INACTIVE, ACTIVE, RARE),
    NOTHING: (INACTIVE, UNTESTED, ACTIVE, INACTIVE, ACTIVE),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of ``score_tasks`` on all ranks."""

    kind: str
    shards: Sequence[Rows]  # by rank


def jobs(seed: int) -> dict[str, list[Call]]:
    """Three ranks, and two. The same seed gives the same jobs, in any process."""
    draw = random.Random(f"score_tasks_over_ranks {seed}")
    return {
        name: [call_of(draw, kind, size) for kind in KINDS]
        for name, size in (("three ranks", 3), ("two ranks", 2))
    }


def call_of(draw: random.Random, kind: str, world_size: int) -> Call:
    """A call, drawn again until each usual mistake gives other numbers than the truth."""
    while True:
        samples = samples_of(draw, SPECS[kind], draw.randint(19, 25))
        # As torch's sampler fills up, or as a job that has visited some samples again.
        samples += draw.sample(samples, draw.randint(3, 5))
        shards = [samples[rank::world_size] for rank in range(world_size)]
        if kind in (UNEVEN, NO_ROWS):
            first = 0 if kind == NO_ROWS else draw.randint(1, 3)
            middle = [first + (len(samples) - first) // 3] * (world_size == 3)
            cuts = [0, first, *middle, len(samples)]
            shards = [samples[a:b] for a, b in pairwise(cuts)]
            draw.shuffle(shards)
        if is_telling(kind, shards):
            return Call(kind=kind, shards=shards)


def samples_of(draw: random.Random, specs: Sequence[Spec], count: int) -> Rows:
    """Samples with their scores and labels, by an id that float32 can't hold."""
    first = 2**24 * draw.randint(1, 200)
    ids = [0, *(first + n for n in draw.sample(range(count + 9), count - 1))]
    draw.shuffle(ids)
    rows: Rows = []
    for sample in ids:
        scores, labels = [], []
        for labeled, positive in specs:
            label = float(draw.random() < positive) if draw.random() < labeled else None
            # Steps of an eighth, so that some tie; far from 0, where a sigmoid is 1.
            score = draw.randint(0, 9) / 8 + (draw.randint(0, 5) / 8 if label else 0)
            scores.append(score + (40 if draw.random() < 0.5 else 0))
            labels.append(label)
        rows.append((sample, scores, labels))
    return rows


def is_telling(kind: str, shards: Sequence[Rows]) -> bool:
    """Whether the defined tasks are those of the kind, and no mistake has the right numbers."""
    right, specs = aurocs(shards), SPECS[kind]
    if {*right} != {task for task, spec in enumerate(specs) if 0 < spec.positive < 1}:
        return False
    if kind == NOTHING:
        return True
    values = sorted(right.values())
    apart = all(b - a > 0.01 for a, b in pairwise(values))
    wrong = [one.aurocs for one in variants(shards)]
    return apart and all(
        other.keys() != right.keys() or max(abs(other[t] - right[t]) for t in right) > 1e-3
        for other in wrong
    )
