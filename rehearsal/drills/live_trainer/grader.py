"""The live trainer, judged cell by cell, then run, killed, resumed and audited."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault
from rehearsal.grading.drill import Body, Scenario
from rehearsal.kit.judge.findings import only_first
from rehearsal.kit.observe.anti_cheat import close_the_answer

from .audit import audit_judge
from .cells import config_body, data_body
from .draws import PEERS, plan_of
from .findings import TABLE
from .judge_cells import config_judge, data_judge
from .judge_parts import metrics_judge, model_judge
from .judge_saves import save_judge
from .judge_steps import identity_judge, step_judge
from .outcomes import (
    alone_judge,
    killed_judge,
    other_judge,
    resumed_judge,
    together_judge,
    uninterrupted_judge,
)
from .parts import metrics_body, model_body
from .runs import (
    alone_body,
    killed_body,
    other_body,
    published_body,
    resumed_body,
    together_body,
    uninterrupted_body,
)
from .saves import save_body
from .steps import identity_body, step_body

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


def scenarios(seed: int) -> list[Scenario]:
    """The stages in order; all but the first seven are about one run's plan."""
    plan = plan_of(seed)

    def stage(
        of: str,
        body: Callable[..., Any] | None,
        judge: Callable[..., Any],
        world_size: int = 1,
        **rest: Any,
    ) -> Scenario:
        """A scenario of a stage; the first is named after it."""
        return Scenario(
            body=closed(partial(body, plan)) if body else None,
            judge=only_first(partial(judge, plan)),
            world_size=world_size,
            **{"name": of, "stage": of, "deadline_s": 10.0, **rest},
        )

    failing = {"judges_failures": True}
    return [
        stage("config", config_body, config_judge),
        stage("data", data_body, data_judge, 2),
        stage("model", model_body, model_judge),
        stage("who am I?", identity_body, identity_judge, PEERS),
        stage("training step", step_body, step_judge, PEERS),
        stage("checkpoint", save_body, save_judge),
        stage("metrics", metrics_body, metrics_judge),
        stage("launch", alone_body, alone_judge),
        stage(
            "two ranks",
            together_body,
            together_judge,
            2,
            fault=Fault(rank=1, at="strike", count=1),
            **failing,
        ),
        stage(
            "two ranks",
            uninterrupted_body,
            uninterrupted_judge,
            2,
            name="two ranks, with dropout",
        ),
        stage(
            "kill during a save",
            killed_body,
            killed_judge,
            2,
            fault=Fault(rank=None, at="strike", count=1),
            **failing,
        ),
        stage("kill during a save", resumed_body, resumed_judge, 2, name="resumed", **failing),
        stage("a different number of ranks", other_body, other_judge, 3, **failing),
        stage("audit", published_body, audit_judge),
    ]
