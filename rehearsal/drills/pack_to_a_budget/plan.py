"""What a check draws from its seed: lengths, a budget, uneven steps, stops.

W  world size
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

WORLD_SIZES = (1, 2, 3)
SEEDS, EPOCHS, LONE = 3, 40, 20  # whose orders are compared, of rows of one sequence
PAD_ID = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The numbers of one check."""

    lengths: Sequence[int]
    budget: int
    rows_per_step: int
    epochs: int
    seed: int
    ahead: int  # how far a loader is ahead of the training
    middle: int  # where the run stops, apart from the ends of epochs
    too_long: Sequence[int]  # which sequences get a length above the budget, one at a time
    rows: Sequence[Sequence[Sequence[int]]]  # what pack is given

    def settings(self) -> dict[str, int]:
        """The arguments that all ranks share, except for the lengths."""
        names = ("budget", "rows_per_step", "epochs", "seed")
        return {name: getattr(self, name) for name in names}


def plans(seed: int) -> dict[str, Plan]:
    """Two plans; the same seed gives the same ones, in any process.

    In the first, lengths are spread widely and the budget is a little above the longest. In the
    second, they are quarters of the budget, so that rows can be filled to the last token, and
    one sequence is a row of its own.
    """
    draw = random.Random(f"pack_to_a_budget {seed}")
    budget = draw.randint(28, 36)
    wide = [budget - 1, *(draw.randint(1, 12) for _ in range(22))]
    wide += [draw.randint(13, budget - 2) for _ in range(16)]
    quarter = draw.randint(5, 9)
    quarters = [4 * quarter] + [quarter * draw.choice((1, 1, 1, 2, 2, 3)) for _ in range(30)]
    return {
        "spread lengths": plan_of(draw, wide, budget, draw.choice((4, 5))),
        "quarters": plan_of(draw, quarters, 4 * quarter, 3),
    }


def plan_of(draw: random.Random, lengths: list[int], budget: int, rows_per_step: int) -> Plan:
    """A plan of three epochs."""
    draw.shuffle(lengths)
    # A message that has a length or the budget in it has no index by chance.
    inner = [n for n in range(1, len(lengths)) if n not in (budget, budget + 1)]
    return Plan(
        lengths=lengths,
        budget=budget,
        rows_per_step=rows_per_step,
        epochs=3,
        seed=draw.randrange(1, 1000),
        ahead=2,
        middle=draw.randint(1, 2),
        too_long=(0, draw.choice(inner), len(lengths) - 1),
        rows=[[tokens_of(draw, size) for size in sizes] for sizes in row_sizes(draw, budget)],
    )


def lone_lengths(plan: Plan) -> list[int]:
    """Lengths of which no two fit into a row."""
    return [plan.budget - n % 3 for n in range(LONE)]


def row_sizes(draw: random.Random, budget: int) -> list[list[int]]:
    """Rows to pack: with room, full, of one sequence, of equal ones."""
    first = draw.randint(2, 6)
    return [[first, 1, 4, 3], [first, 5, budget - 5 - first], [budget - 2], [2, 2, 2]]


def tokens_of(draw: random.Random, size: int) -> list[int]:
    """Tokens, some of which have the padding's id."""
    return [draw.choice((0, PAD_ID, 2, 5, 30, 200)) for _ in range(size)]
