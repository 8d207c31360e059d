"""What one check draws from its seed: the steps of a job, and what is special about each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

SKIPPED = ("nan", "infinite")  # kinds of steps whose update must be skipped


class Step(NamedTuple):
    """One call of train_step.

    ``kind`` is one of

        uneven      ranks and micro-batches have different numbers of samples
        empty       a rank has no samples, and another one's last micro-batch is empty
        few         fewer samples than ranks
        nan         one sample makes a gradient NaN
        infinite    one sample makes a gradient infinite; every loss is finite
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

    @property
    def num_samples(self) -> int:
        """Samples of the step, over all ranks."""
        return sum(map(sum, self.sizes))

    @property
    def is_skipped(self) -> bool:
        """Whether no weight may change."""
        return self.kind in SKIPPED


class Plan(NamedTuple):
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
    steps: Sequence[Step]


def plan_of(seed: int, world_size: int, *, by_hand: bool) -> Plan:
    """The same in the caller's process and in each rank."""
    draw = random.Random(f"{seed} {world_size}")
    middle = [
        step_of(draw, world_size, kind)
        for kind in ("nan", "infinite", "overflow", "bf16", "few")
    ]
    draw.shuffle(middle)
    steps = [
        # First two steps that tell the usual mistakes apart: one that the bound doesn't reach,
        # then one that it does. The last one follows at least one update that was skipped.
        step_of(draw, world_size, "uneven")._replace(bound=draw.choice((None, 3.0, 7.0))),
        step_of(draw, world_size, "empty")._replace(bound=draw.choice((0.15, 0.3, 0.45))),
        *middle,
        step_of(draw, world_size, "uneven"),
        step_of(draw, world_size, "uneven")._replace(scaled=True),
        step_of(draw, world_size, "nan")._replace(scaled=True, amp="no"),
    ]
    rates = draw.sample([0.05, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45], len(steps))
    before: Step | None = None
    for at, step in enumerate(steps):
        leftover: float | None = draw.choice((-2.0, -0.75, 0.5, 1.5))
        if before is None or before.is_skipped:
            leftover = float("nan") if before else None
        steps[at] = before = step._replace(lr=rates[at], leftover=leftover)
    decays = [0.1, 0.0] if draw.random() < 0.5 else [0.0, 0.15, 0.05]
    return Plan(
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


def step_of(draw: random.Random, world_size: int, kind: str) -> Step:
    """A step of this kind; its rate and what is left in the gradients come later."""
    num_micro = draw.choice((3, 4))
    sizes = uneven(draw, world_size, num_micro)
    rank = draw.randrange(world_size)
    if kind == "empty":
        full = max(range(world_size), key=lambda r: sum(sizes[r][:-1]))
        sizes[full][-1] = 0  # its peers still wait for its last micro-batch
        if world_size > 1:
            rank = draw.choice([r for r in range(world_size) if r != full])
            sizes[rank] = [0] * num_micro
    elif kind == "few":
        num_micro = draw.choice((1, 2, 3))
        sizes = [[0] * num_micro for _ in range(world_size)]
        for one in draw.sample(range(world_size), max(1, world_size - 1)):
            sizes[one][draw.randrange(num_micro)] = 1
    micro = draw.randrange(num_micro)
    if kind in SKIPPED:
        sizes[rank][micro] = max(1, sizes[rank][micro])
    elif kind == "overflow":
        sizes[rank][micro] = max(2, sizes[rank][micro])
    elif kind == "bf16":
        sizes[rank][micro] = max(4, sizes[rank][micro])
    amp = "bf16" if kind == "bf16" else "no"
    if kind in SKIPPED:
        amp = draw.choice(("no", "bf16"))
    bound = draw.choice((None, 0.2, 0.4, 0.6, 2.0, 5.0))
    return Step(kind, sizes, 0.0, bound, amp, (rank, micro))


def uneven(draw: random.Random, world_size: int, num_micro: int) -> list[list[int]]:
    """Sizes in which no two ranks, and no two micro-batches in a row, are alike.

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
