"""The folders in which the jobs start, and where one is killed: drawn from the check's seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

MOMENTS = 4  # of a kill in one rank's saves, from which the check resumes, at most


@dataclass(frozen=True, kw_only=True, slots=True)
class Folder:
    """One run: its stream, and the checkpoints that an earlier job left of it."""

    name: str
    world_size: int
    found: Sequence[int]
    steps: int
    keep: int
    share: int
    lr: float
    leftovers: Sequence[str]  # what a kill in the middle of a save has left

    @property
    def newest(self) -> int:
        """The step at which the first job in this folder begins."""
        return max(self.found, default=0)

    @property
    def left(self) -> list[int]:
        """The checkpoints that should remain at the end."""
        return list(range(self.steps - self.keep + 1, self.steps + 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A folder with steps 9 and 10, an empty one, and one with steps 99 and 100."""

    seed: int
    killed: Folder
    empty: Folder
    hundreds: Folder
    kill_forward: int  # rank 0 is killed in this forward pass of the first job, from 1


def drawn(seed: int) -> Plan:
    """Two folders in which the order of the names is not that of the steps, and an empty one.

    In those two, there are always two checkpoints whose numbers have as many digits, the
    newest among them. The first job is killed after at least one save. The folder with steps
    99 and 100, in whose saves the other kills come, keeps one checkpoint: a kill while it is
    replaced has nothing else to fall back on.
    """
    draw = random.Random(seed)
    # At least three: on two ranks, only one saves also where all but rank 0 do.
    world_size, share = draw.choice((3, 3, 4)), draw.choice((3, 4))
    last = draw.choice((11, 12))
    kill_forward = draw.randint(2, 3)

    def folder(name: str, found: Sequence[int], steps: int, keep: int) -> Folder:
        number = max(found, default=0) + 1
        return Folder(
            name=name,
            world_size=world_size,
            found=found,
            steps=steps,
            keep=keep,
            share=share,
            lr=draw.uniform(0.01, 0.02),
            leftovers=("next.tmp", f"step-{number}.tmp", f"step-{number}.pt.tmp"),
        )

    others = draw.choice(([], [8], [2, 8], [7]))
    return Plan(
        seed=seed,
        killed=folder(
            "killed",
            sorted([*others, *range(9, last + 1)]),
            last + kill_forward - 1 + draw.randint(2, 3),
            draw.choice((2, 3)),
        ),
        empty=folder("empty", [], draw.randint(3, 4), 3),  # at first, there are fewer
        hundreds=folder(
            "hundreds",
            draw.choice(([99, 100, 101], [98, 99, 100, 101], [9, 10, 99, 100, 101])),
            103,
            1,
        ),
        kill_forward=kill_forward,
    )
