"""Identity from the environment, attempts in one process, a bit-identical resume.

LOCAL_RANK simulates two nodes, and a torch.cuda that only records calls simulates GPUs.
"""

from __future__ import annotations

from functools import partial

from rehearsal.grading.drill import Scenario
from rehearsal.kit.judge.findings import only_first
from .attempts import attempts
from .judge_attempts import judge_attempts
from .codes import TABLE
from .plan import plan_of
from .judge_starts import judge_starts
from .starts import starts

CODES = TABLE.codes


def scenarios(seed: int) -> list[Scenario]:
    """Starts whose GPUs only record calls; three real groups, one after the other."""
    plan = plan_of(seed)
    return [
        Scenario(
            name="starts",
            body=partial(starts, plan),
            judge=only_first(partial(judge_starts, plan)),
            world_size=plan.ranks,
            deadline_s=20,
        ),
        Scenario(
            name="attempts",
            body=partial(attempts, plan),
            judge=only_first(partial(judge_attempts, plan)),
            world_size=plan.world_size,
            deadline_s=9,
            judges_failures=True,
        ),
    ]
