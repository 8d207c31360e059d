"""Two nodes of CPU ranks: identity, devices, samples, gradients, and who writes what.

``places`` simulates several devices on a CPU. One job gets an error on one of its ranks.
"""

from __future__ import annotations

from functools import partial

from rehearsal.grading.drill import Scenario

from .codes import TABLE
from .job import run
from .judge import judge
from .plan import plans

CODES = TABLE.codes


def scenarios(seed: int) -> list[Scenario]:
    """Two nodes with two seeds, one node, an error, and one process without a launcher."""
    return [
        Scenario(
            name=plan.name,
            body=partial(run, plan),
            judge=partial(judge, plan),
            world_size=plan.world_size,
            deadline_s=15,
        )
        for plan in plans(seed)
    ]
