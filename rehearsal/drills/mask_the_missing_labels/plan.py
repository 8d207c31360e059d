"""What the steps of a job train on, drawn from the check's seed: labels, and many that are not.

W  world size    B  rows of a rank    T  tasks    D  features
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

FEATURES, TASKS = 4, 4
# The steps of a job, in order.
UNEVEN, NO_LABELS, NO_ROWS = "uneven", "a rank without labels", "a rank without samples"
EMPTY_TASK, SINGLE = "a task without labels", "a single label"
NOTHING, AGAIN = "no labels", "uneven again"
KINDS = (UNEVEN, NO_LABELS, NO_ROWS, EMPTY_TASK, SINGLE, NOTHING, AGAIN)

Labels = Sequence[Sequence[float | None]]  # (B, T); None is a missing one


@dataclass(frozen=True, kw_only=True, slots=True)
class GlobalBatch:
    """One call of ``train_step`` on all ranks."""

    kind: str
    inputs: Sequence[Sequence[Sequence[float]]]  # (W, B, D), B by rank
    labels: Sequence[Labels]  # (W, B, T)

    def counts(self, rank: int, value: float | None = None) -> list[int]:
        """A rank's labels of each task, or only those that are ``value``."""
        columns = [[row[task] for row in self.labels[rank]] for task in range(TASKS)]
        return [sum(x is not None and value in (None, x) for x in column) for column in columns]

    def totals(self, value: float | None = None) -> list[int]:
        """The same over all ranks."""
        by_rank = [self.counts(rank, value) for rank in range(len(self.labels))]
        return [sum(counts) for counts in zip(*by_rank, strict=True)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One process group, and the steps that it takes."""

    world_size: int
    model_seed: int  # rank 0's; each rank adds its number
    pos_weight: Sequence[float]  # (T,)
    lr: float
    steps: Sequence[GlobalBatch]


def jobs(seed: int) -> dict[str, Job]:
    """Three ranks, and two. The same seed gives the same jobs, in any process."""
    draw = random.Random(f"mask_the_missing_labels {seed}")
    return {"three ranks": job_of(draw, 3), "two ranks": job_of(draw, 2)}


def job_of(draw: random.Random, world_size: int) -> Job:
    """A job whose ranks take turns at having nothing."""
    bare = draw.sample(range(world_size), 2)  # without labels, without samples
    return Job(
        world_size=world_size,
        model_seed=draw.randrange(1000),
        # Two are large enough for somebody to cap them, and one is less than 1.
        pos_weight=draw.sample([0.5, draw.choice((2.0, 3.0)), 6.0, draw.choice((8.0, 9.0))], 4),
        lr=draw.choice((0.1, 0.2)),
        steps=[step_of(draw, kind, world_size, bare) for kind in KINDS],
    )


def step_of(
    draw: random.Random, kind: str, world_size: int, bare: Sequence[int]
) -> GlobalBatch:
    """A step of some kind, drawn again until each wrong mean is a different number."""
    while True:
        rows = draw.sample(range(3, 8), world_size)
        if kind == NO_ROWS:
            rows[bare[1]] = 0
        labels = [[label_row(draw) for _ in range(count)] for count in rows]
        if kind == NO_LABELS:
            labels[bare[0]] = [[None] * TASKS for _ in labels[bare[0]]]
        if kind in (SINGLE, NOTHING):
            labels = [[[None] * TASKS for _ in own] for own in labels]
        if kind == SINGLE:
            draw.choice(labels[bare[1]])[draw.randrange(TASKS)] = draw.choice((0.0, 1.0))
        if kind == EMPTY_TASK:
            task, rare = draw.sample(range(TASKS), 2)
            molecules = [row for own in labels for row in own]
            kept = draw.choice(molecules)
            for row in molecules:
                row[task] = None
                row[rare] = row[rare] if row is kept else None
        inputs = [[[draw.gauss(0, 1) for _ in range(FEATURES)] for _ in own] for own in labels]
        step = GlobalBatch(kind=kind, inputs=inputs, labels=labels)
        if is_telling(step):
            return step


def label_row(draw: random.Random) -> list[float | None]:
    """The labels of one molecule: fewer than half are there."""
    return [draw.choice((0.0, 1.0)) if draw.random() < 0.45 else None for _ in range(TASKS)]


def is_telling(step: GlobalBatch) -> bool:
    """Whether the ranks' counts differ, and the tasks'; a task's labels have both values."""
    if step.kind in (SINGLE, NOTHING):
        return True
    totals, num_ranks = step.totals(), range(len(step.labels))
    both = zip(totals, step.totals(0.0), step.totals(1.0), strict=True)
    if any(total > 1 and not (zeros and ones) for total, zeros, ones in both):
        return False
    by_rank = [step.counts(rank) for rank in num_ranks]
    uneven = [task for task in zip(*by_rank, strict=True) if len({*task}) > 1]
    missing = step.kind in (UNEVEN, AGAIN) and not any(0 in counts for counts in by_rank)
    is_left_out = totals.count(0) == totals.count(1) == (step.kind == EMPTY_TASK)
    return len(uneven) >= 3 and len({*totals}) >= 3 and not missing and is_left_out
