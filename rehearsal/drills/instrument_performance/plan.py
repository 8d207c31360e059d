"""Two calls of train, with delays at drawn steps: each phase is slow somewhere."""

from __future__ import annotations

import random
from typing import NamedTuple

SHORT, LATE = 0.008, 0.02  # seconds
Delays = dict[tuple[str, int, int], float]  # by (phase, rank, step), steps from 1


class Call(NamedTuple):
    """One call of ``train`` on two ranks."""

    num_steps: int
    save_every: int
    delays: Delays
    breaks: bool = False  # the batches end with an exception

    @property
    def saves(self) -> list[int]:
        """The steps after which it saves."""
        return list(range(self.save_every, self.num_steps + 1, self.save_every))


class Plan(NamedTuple):
    """What a check trains."""

    lr: float
    seed: int  # of the samples
    late_rank: int  # whose forward pass is slow now and then; the other one waits
    calls: list[Call]
    broken: Call  # a call that has to raise


def plan_of(seed: int) -> Plan:
    """The plan of a check. The same seed gives the same plan, in any process.

    The long call has steps enough for a p95. Its delays are rare, so that p50, p95, max and
    mean of a phase differ; one is in the first step, and one update is slow in a step that
    saves. In the short call, every wait for data takes a while.
    """
    draw = random.Random(seed)
    late, save_every = draw.randrange(2), draw.randint(8, 11)
    num_steps = draw.randint(39, 45)
    saves = list(range(save_every, num_steps + 1, save_every))
    draw.shuffle(saves)
    quiet = [step for step in range(2, num_steps) if step % save_every]
    waits, backward, update, forward, *lates = draw.sample(quiet, 7)
    rank = draw.randrange(2)
    long = Call(
        num_steps,
        save_every,
        {
            ("data_wait", rank, 1): SHORT,
            ("data_wait", 1 - rank, waits): SHORT,
            ("backward", draw.randrange(2), backward): SHORT,
            ("optimizer", 1 - rank, update): SHORT,
            ("optimizer", rank, saves[0]): SHORT,
            ("checkpoint", rank, saves[1]): SHORT,
            ("checkpoint", 1 - rank, saves[2]): SHORT,
            ("forward", 1 - late, forward): SHORT,
            **{("forward", late, step): LATE for step in lates},
        },
    )
    num_steps = draw.randint(6, 8)
    every = {("data_wait", r, step): 0.003 for r in (0, 1) for step in range(1, num_steps + 1)}
    return Plan(
        lr=draw.choice((0.01, 0.015, 0.02)),
        seed=draw.randrange(1000),
        late_rank=late,
        calls=[long, Call(num_steps, draw.randint(2, 4), every)],
        broken=Call(draw.randint(2, 4), 5, {}, breaks=True),
    )
