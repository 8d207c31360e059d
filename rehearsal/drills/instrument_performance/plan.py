"""Three calls of train, with times at drawn steps: each phase is slow somewhere."""

from __future__ import annotations

import random
from typing import NamedTuple

SHORT, LATE = 0.008, 0.02  # seconds
# Seconds of a collective, of a line of JSON, and of clearing the gradients.
SYNC, ENCODING, CLEARING = 0.0003, 0.0004, 0.0005
AGES = 1000.0  # seconds: no wait that the machine's clock could show
# Seconds of what a step does, at least and at most.
USUAL = {
    "data_wait": (0.0004, 0.0012),
    "forward": (0.0008, 0.0016),
    "backward": (0.001, 0.002),
    "optimizer": (0.0004, 0.0008),
    "checkpoint": (0.0015, 0.002),
}
Times = dict[tuple[str, int, int], float]  # by (phase, rank, step), steps from 1


class Call(NamedTuple):
    """One call of ``train`` on two ranks."""

    num_steps: int
    save_every: int
    times: Times  # what each part of each step takes
    breaks: bool = False  # the batches end with an exception

    @property
    def saves(self) -> list[int]:
        """The steps after which it saves."""
        return list(range(self.save_every, self.num_steps + 1, self.save_every))


class Plan(NamedTuple):
    """What a check trains."""

    lr: float
    seed: int  # of the samples, and of the moment at which the clock starts
    broken: Call  # the first one; it has to raise
    calls: list[Call]


def plan_of(seed: int) -> Plan:
    """The plan of a check. The same seed gives the same plan, in any process.

    The long call has steps enough for a p95. Its slow steps are rare, so that p50, p95, max and
    mean of a phase differ; one is the first step, and one update is slow in a step that saves.
    One rank's forward pass is late now and then, and the other one waits. In the short call,
    every wait for data takes a while.
    """
    draw = random.Random(seed)
    late, save_every = draw.randrange(2), draw.randint(8, 11)
    num_steps = draw.randint(39, 45)
    saves = list(range(save_every, num_steps + 1, save_every))
    draw.shuffle(saves)
    quiet = [step for step in range(2, num_steps) if step % save_every]
    waits, backward, update, forward, *lates = draw.sample(quiet, 7)
    rank = draw.randrange(2)
    slow = {
        ("data_wait", rank, 1): SHORT,
        ("data_wait", 1 - rank, waits): SHORT,
        ("backward", draw.randrange(2), backward): SHORT,
        ("optimizer", 1 - rank, update): SHORT,
        ("optimizer", rank, saves[0]): SHORT,
        ("checkpoint", rank, saves[1]): SHORT,
        ("checkpoint", 1 - rank, saves[2]): SHORT,
        ("forward", 1 - late, forward): SHORT,
        **{("forward", late, step): LATE for step in lates},
    }
    long = Call(num_steps, save_every, times_of(draw, num_steps, slow))
    num_steps = draw.randint(6, 8)
    slow = {("data_wait", r, step): 0.003 for r in (0, 1) for step in range(1, num_steps + 1)}
    short = Call(num_steps, draw.randint(2, 4), times_of(draw, num_steps, slow))
    num_steps = draw.randint(2, 4)
    slow = {("forward", r, draw.randint(1, num_steps)): AGES for r in (0, 1)}
    return Plan(
        lr=draw.choice((0.01, 0.015, 0.02)),
        seed=draw.randrange(1000),
        broken=Call(num_steps, 5, times_of(draw, num_steps, slow), breaks=True),
        calls=[long, short],
    )


def times_of(draw: random.Random, num_steps: int, slow: Times) -> Times:
    """What each part of each step takes: the usual, and what makes some of them slow."""
    usual = {
        (phase, rank, step): draw.uniform(*bounds)
        for phase, bounds in USUAL.items()
        for rank in (0, 1)
        for step in range(1, num_steps + 1)
    }
    return usual | {place: usual[place] + extra for place, extra in slow.items()}
