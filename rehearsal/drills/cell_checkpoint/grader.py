"""Publishing with a kill at every moment; damaged copies; restoring; saving."""

from __future__ import annotations

from functools import partial

from rehearsal.grading.drill import Scenario
from rehearsal.kit.judge.findings import only_first
from .choosing import choose_body, choose_judge
from .codes import TABLE
from .plan import plan_of
from .publishing import publish_body, publish_judge
from .restoring import restore_body, restore_judge
from .saving import save_body, save_judge

CODES = TABLE.codes


def scenarios(seed: int) -> list[Scenario]:
    """The jobs of a check, one for each group of functions."""
    plan = plan_of(seed)
    jobs = (
        ("publish", publish_body, publish_judge, 1),
        ("choose", choose_body, choose_judge, 1),
        ("restore", restore_body, restore_judge, 1),
        ("save", save_body, save_judge, plan.world_size),
    )
    return [
        Scenario(
            name=name,
            body=partial(body, plan),
            judge=only_first(partial(judge, plan)),
            world_size=world_size,
            deadline_s=8,
            judges_failures=name in ("publish", "save"),
        )
        for name, body, judge, world_size in jobs
    ]
