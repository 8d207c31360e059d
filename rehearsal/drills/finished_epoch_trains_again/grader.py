"""Killed right after an epoch's end, in its middle, and started again when all is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rehearsal.grading.drill import Body, Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.harness import OddNet, largest_difference, marked_samples
from rehearsal.kit.restart import CODES as RESTART_CODES
from rehearsal.kit.restart import CODES_OF_EPOCHS, Plan, after, cover, judge_killed, kill
from rehearsal.kit.restart import samples_of_steps, steps_taken, train_watched
from rehearsal.kit.restart import whole_findings
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding

CODES = {
    **RESTART_CODES,
    **CODES_OF_EPOCHS,
    "no-save-at-the-epochs-end": "a restart after an epoch's end begins before it",
    "trains-after-the-end": "a run that is done is started again, and trains",
}
# Five steps an epoch, the last of 3 samples; checkpoints after steps 4, 5, 8, 10, 12 and 15.
PLAN = Plan(num_samples=23, epochs=3, steps_per_epoch=5)
GLOBAL_BATCH_SIZE, EVERY = 5, 4
LOOK = "at what the newest checkpoint says about where the run stands, and when it says so"


def trains(run: str, every: int = EVERY) -> Body:
    """A body that trains in the folder of ``run``, or goes on there."""

    def body(context: RankContext, learner: SimpleNamespace) -> Any:
        context.init_group()
        model, (inputs, targets) = OddNet(seed=context.rank), marked_samples(PLAN.num_samples)
        return train_watched(
            context,
            model,
            run,
            lambda folder: learner.train(
                model,
                inputs,
                targets,
                folder=folder,
                epochs=PLAN.epochs,
                global_batch_size=GLOBAL_BATCH_SIZE,
                checkpoint_every=every,
                lr=0.02,
            ),
        )

    return body


def judge_whole(reports: Sequence[RankReport], _: object) -> Iterable[Finding]:
    """Before any restart."""
    return whole_findings(PLAN, reports, "at where an epoch begins and ends")


def judge_after_epoch(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterable[Finding]:
    """Killed in step 6: the checkpoint of step 5, the epoch's last, is the newest."""
    from_4 = samples_of_steps(earlier["killed"])[:4] + samples_of_steps(reports)
    taken = steps_taken(reports)
    if taken == PLAN.steps - 4 and not list(cover(PLAN, from_4, "", "")):
        yield Finding(
            "no-save-at-the-epochs-end",
            f"killed after step 6, the restart took {taken} steps and began with step 5, the "
            "last of epoch 0, that had been trained",
            "there is a checkpoint at each epoch's end",
            "at what is saved after the last batch of an epoch",
        )
        return
    yield from after(PLAN, "whole", LOOK, {"killed": 5}, tells_epochs=True)(reports, earlier)


def judge_done(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterable[Finding]:
    """Started when nothing is left to do."""
    taken = steps_taken(reports)
    weights = earlier["whole"][0].answer["weights"]
    difference, _ = largest_difference(weights, reports[-1].answer["weights"])
    if taken or difference != 0:
        yield Finding(
            "trains-after-the-end",
            f"a run of {PLAN.steps} steps that was done and is started again takes {taken} "
            f"steps; its weights are {difference:.2g} away from those that it ended with",
            "a run that is done stays as it is",
            LOOK,
        )


SCENARIOS = [
    Scenario(name="whole", body=trains("whole"), judge=judge_whole, deadline_s=6),
    Scenario(name="killed", body=trains("a"), judge=judge_killed, fault=kill(6), deadline_s=6),
    Scenario(name="after the epoch", body=trains("a"), judge=judge_after_epoch, deadline_s=6),
    Scenario(name="done", body=trains("a"), judge=judge_done, deadline_s=6),
    Scenario(
        name="three",
        body=trains("b"),
        judge=judge_killed,
        world_size=3,
        fault=kill(9),
        deadline_s=6,
    ),
    Scenario(
        name="in the middle",
        body=trains("b"),
        world_size=3,
        deadline_s=6,
        judge=after(PLAN, "", LOOK, {"three": 8}, tells_epochs=True),
    ),
    # Here every checkpoint is due for both reasons at once.
    Scenario(
        name="both", body=trains("c", 5), judge=judge_killed, fault=kill(11), deadline_s=6
    ),
    Scenario(
        name="after both",
        body=trains("c", 5),
        deadline_s=6,
        judge=after(PLAN, "whole", LOOK, {"both": 10}, tells_epochs=True),
    ),
]
