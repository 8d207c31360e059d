"""What one check draws from its seed: the steps of a job, and what is special about each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

SKIPPED = ("nan", "infinite")  # kinds of steps whose update must be skipped
BOUNDS = (0.2, 0.5, 4.0)  # two that a gradient exceeds, and one that it doesn't


class Call(NamedTuple):
    """One call of train_step.

    ``kind`` is one of

        uneven      ranks and micro-batches have different numbers of samples
        empty       a rank has no samples, and another one's last micro-batch is empty
        nan         one sample makes a gradient NaN
        infinite    one sample makes a gradient infinite; every loss is finite; the step has
                    fewer samples than ranks
        overflow    one rank's loss is infinite; every gradient is finite
        bf16        under autocast, with a loss that bf16 cannot hold
    """

    kind: str
    sizes: Sequence[Sequence[int]]  # samples of each micro-batch, by rank
    lr: float
    bound: float | None  # max_grad_norm, as a multiple of the true gradient's norm
    amp: str = "no"
    special: tuple[int, int] = (0, 0)  # rank and micro-batch of the sample that is special
    leftover: float | None = None  # in each gradient before the call
    scaled: bool = False  # with a GradScaler
    is_watched: bool = False  # for reads on the host; watching takes as long as the step

    @property
    def num_samples(self) -> int:
        """Samples of the step, over all ranks."""
        return sum(map(sum, self.sizes))

    @property
    def is_skipped(self) -> bool:
        """Whether no weight may change."""
        return self.kind in SKIPPED


class Job(NamedTuple):
    """The constants of one job."""

    seed: int
    world_size: int
    features: int
    hidden: int
    classes: int
    decays: Sequence[float]  # weight decay of each group of the optimizer
    first_lr: float  # of the groups, before the first call
    by_hand: bool  # whether the optimizer is a class of the check's own
    margin: float  # a loss whose neighbors in bf16 are 16 away
    steps: Sequence[Call]


def plan_of(seed: int, world_size: int, *, by_hand: bool) -> Job:
    """The same in the caller's process and in each rank."""
    draw = random.Random(f"{seed} {world_size}")
    # First two steps that tell the usual mistakes apart: one without a bound, then one whose
    # bound is exceeded. The last plain one is trained, after at least one that was skipped.
    kinds = draw.sample(SKIPPED, 2)
    kinds.insert(draw.choice((1, 2)), "bf16")
    kinds.append("overflow")
    unbounded = draw.choice(SKIPPED)
    bounds = {"overflow": (1.15, 1.4), "bf16": (None, 0.3), unbounded: (None,)}
    first, second, *middle = (
        step_of(draw, world_size, kind)._replace(bound=draw.choice(bounds.get(kind, BOUNDS)))
        for kind in ("uneven", "empty", *kinds)
    )
    steps = [
        first._replace(bound=None),
        second._replace(bound=draw.choice((0.15, 0.3, 0.45)), is_watched=True),
        # On one of the two that are skipped, and on the last, the host may not wait either.
        *(step._replace(is_watched=step.kind in ("infinite", kinds[-1])) for step in middle),
        step_of(draw, world_size, "uneven")._replace(scaled=True, bound=0.3),
        step_of(draw, world_size, "nan")._replace(scaled=True, amp="no"),
    ]
    rates = draw.sample([0.05, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45], len(steps))
    before: Call | None = None
    for at, step in enumerate(steps):
        leftover: float | None = draw.choice((-2.0, -0.75, 0.5, 1.5))
        if before is None:
            leftover = None
        elif before.is_skipped and step.kind != "overflow":
            leftover = float("nan")
        steps[at] = before = step._replace(lr=rates[at], leftover=leftover)
    decays = [0.1, 0.0] if draw.random() < 0.5 else [0.0, 0.15, 0.05]
    return Job(
        seed=seed,
        world_size=world_size,
        features=draw.choice((6, 7, 8)),
        hidden=draw.choice((9, 10, 11)),
        classes=draw.choice((2, 3, 4)),
        decays=decays,
        first_lr=draw.choice((4.0, 9.0)),
        by_hand=by_hand,
        margin=16.0 * draw.randrange(130, 250),
        steps=steps,
    )


def step_of(draw: random.Random, world_size: int, kind: str) -> Call:
    """A step of this kind; its rate, bound and the gradients' leftovers come later."""
    num_micro = draw.choice((3, 4))
    sizes = uneven(draw, world_size, num_micro)
    rank = draw.randrange(world_size)
    if kind == "empty":
        full = max(range(world_size), key=lambda r: sum(sizes[r][:-1]))
        sizes[full][-1] = 0  # its peers still wait for its last micro-batch
        if world_size > 1:
            rank = draw.choice([r for r in range(world_size) if r != full])
            sizes[rank] = [0] * num_micro
    elif kind == "infinite":
        num_micro = draw.choice((1, 2, 3))
        sizes = [[0] * num_micro for _ in range(world_size)]
        for one in {rank, *draw.sample(range(world_size), max(0, world_size - 2))}:
            sizes[one][draw.randrange(num_micro)] = 1
    micro = draw.randrange(num_micro)
    if kind == "infinite":
        micro = sizes[rank].index(1)
    least = {"nan": 1, "overflow": 2, "bf16": 4}.get(kind, 0)
    sizes[rank][micro] = max(least, sizes[rank][micro])
    amp = "bf16" if kind == "bf16" else "no"
    if kind in SKIPPED:
        amp = draw.choice(("no", "bf16"))
    return Call(kind, sizes, 0.0, None, amp, (rank, micro))


def uneven(draw: random.Random, world_size: int, num_micro: int) -> list[list[int]]:
    """Sizes that differ between ranks, and from one micro-batch to the next.

    The k-th of the ranks, in a drawn order, begins with k empty micro-batches.
    """
    sizes = [[0] * num_micro for _ in range(world_size)]
    order = draw.sample(range(world_size), world_size)
    for skipped, rank in enumerate(order):
        for at in range(min(skipped, num_micro - 1), num_micro):
            former = sizes[rank][at - 1] if at else 0
            sizes[rank][at] = draw.choice([n for n in (1, 2, 3, 4) if n != former])
    totals = {sum(own) for own in sizes}
    while len(totals) < world_size:  # the first of the order has the most micro-batches
        for extra, rank in enumerate(reversed(order)):
            sizes[rank][-1] += extra
        totals = {sum(own) for own in sizes}
    return sizes
