"""The live trainer, judged cell by cell, then run, killed, resumed and audited."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.grading.drill import Body, Scenario
from rehearsal.grading.verdict import Judge
from rehearsal.kit.judge.findings import only_first
from rehearsal.kit.observe.anti_cheat import close_the_answer
from .cells import config_body, config_judge, data_body, data_judge
from .findings import TABLE
from .parts import metrics_body, metrics_judge, model_body, model_judge
from .saves import save_body, save_judge
from .steps import identity_body, identity_judge, step_body, step_judge

CODES = TABLE.codes
ANSWERS = [
    "TrainConfig",
    "ToyClassificationDataset",
    "ResumeAwareDistributedSampler",
    "TinyNet",
    "learning_rate_at",
    "maybe_init_dist",
    "wrap_model",
    "train_step",
    "save_checkpoint",
    "latest_checkpoint_path",
    "restore_checkpoint",
    "StepTimers",
    "log_rank_event",
    "run",
]


def closed(body: Body) -> Body:
    """The same body, once trainer_core's own trainer is closed."""

    def with_the_answer_closed(context: RankContext, learner: SimpleNamespace) -> Any:
        close_the_answer(context, "trainer_core.live", ANSWERS)
        return body(context, learner)

    return with_the_answer_closed


def stage(name: str, body: Body, judge: Judge, world_size: int = 1, **rest: Any) -> Scenario:
    """A scenario of a stage; the first is named like it."""
    rest = {"name": name, "stage": name, "deadline_s": 6.0, **rest}
    return Scenario(body=closed(body), judge=only_first(judge), world_size=world_size, **rest)


SCENARIOS = [
    stage("config", config_body, config_judge),
    stage("data", data_body, data_judge),
    stage("model", model_body, model_judge),
    stage("who am I?", identity_body, identity_judge, 3),
    stage("training step", step_body, step_judge, 3),
    stage("checkpoint", save_body, save_judge),
    stage("metrics", metrics_body, metrics_judge),
]
