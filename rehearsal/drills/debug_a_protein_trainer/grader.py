"""What is planned, what the model computes and keeps, what a job trains, and what it refuses.

Each scenario needs those before it: a budget means nothing while the plan is wrong.
"""

from __future__ import annotations

from functools import partial

from rehearsal.grading.drill import Scenario

from .codes import TABLE
from .in_rank import memory_body, model_body, refusal_body, training_body
from .memory import judge_memory
from .model import judge_model
from .plan import plan_of
from .training import judge_refusal, judge_training

CODES = TABLE.codes


def scenarios(seed: int) -> list[Scenario]:
    """The memory and the model in one process; training and refusing on real ranks."""
    plan = plan_of(seed)
    return [
        Scenario(
            name=name,
            body=partial(body, plan),
            judge=partial(judge, plan),
            world_size=world_size,
            deadline_s=deadline_s,
            judges_failures=name == "a protein over the budget",
        )
        for name, body, judge, world_size, deadline_s in (
            ("the plan", memory_body, judge_memory, 1, 6),
            ("the model", model_body, judge_model, 1, 6),
            ("the training", training_body, judge_training, plan.world_size, 20),
            ("a protein over the budget", refusal_body, judge_refusal, plan.world_size, 8),
        )
    ]
