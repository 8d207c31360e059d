"""Killed right after an epoch's end and in the middle of one; started again when finished."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.engine.reports import Fault
from rehearsal.kit.judge.coverage import miscounted, most_steps
from rehearsal.kit.judge.restart import CODES as RESTART_CODES
from rehearsal.kit.judge.restart import RestartPlan, judge_killed, judge_restart, judge_whole
from rehearsal.kit.judge.restart import surviving_steps
from rehearsal.kit.judge.weights import largest_difference
from rehearsal.kit.observe.restart import Body, trains
from rehearsal.grading.verdict import Finding, Judge

CODES = {
    **RESTART_CODES,
    "epoch-skipped": "a restart skips an epoch: every sample is trained too few times",
    "epoch-trained-again": "a restart repeats an epoch: every sample is trained too often",
    "no-save-at-epoch-end": "no checkpoint is saved at an epoch's end",
    "no-save-when-due": "no checkpoint is saved after checkpoint_every steps",
    "finished-run-trains": "a finished run trains, or loses its weights, when started again",
}
# Five steps an epoch, the last of 3 samples; checkpoints after steps 4, 5, 8, 10, 12 and 15.
PLAN = RestartPlan(num_samples=23, epochs=3, steps_per_epoch=5)
GLOBAL_BATCH_SIZE, EVERY = 5, 4
LOOK = "at which position the newest checkpoint gives, when it is written, and who reads it"
WHOLE = judge_whole(PLAN)
OF_ALL_SAMPLES = {"never-trained": "epoch-skipped", "trained-twice": "epoch-trained-again"}


def train_in(run: str, every: int = EVERY) -> Body:
    """A body that trains in the folder of ``run``, or resumes there."""
    return trains(
        run,
        PLAN.num_samples,
        epochs=PLAN.epochs,
        global_batch_size=GLOBAL_BATCH_SIZE,
        checkpoint_every=every,
        lr=0.02,
    )


def has_saved(reports: Sequence[RankReport], step: int) -> bool:
    """Whether a rank touched a file between this step and the next."""
    for report in reports:
        steps = 0
        for event in report.events:
            steps += event["kind"] == "optimizer_step"
            if event["kind"] == "file" and event["path"] and steps == step:
                return True
    return False


def judge_epochs(whole: str, killed: str, due: int) -> Judge:
    """The judge of a restart, with codes of its own where every sample is affected.

    Args:
        killed: the scenario before, whose save after step ``due`` survives.
    """

    def judge(
        reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
    ) -> Iterator[Finding]:
        attempts, resumed = {killed: due}, PLAN.steps - most_steps(reports)
        later = surviving_steps({killed: resumed}, reports, earlier)
        is_right = not any(miscounted(chain(*later), PLAN.num_samples, PLAN.epochs))
        if resumed > due and is_right and has_saved(earlier[killed], resumed):
            if not has_saved(earlier[killed], due):
                yield Finding(
                    "no-save-when-due",
                    f"a save is due after step {due}, and no rank wrote a file then; the "
                    f"restart resumed after step {resumed}",
                    "checkpoints are due every checkpoint_every steps and at each epoch's end",
                    "at when the loop saves, and at what it counts",
                )
                return
            attempts = {killed: resumed}  # a save that wasn't due counts as well
        steps = surviving_steps(attempts, reports, earlier)
        extra, missing = miscounted(chain(*steps), PLAN.num_samples, PLAN.epochs)
        affected = {"never-trained": missing, "trained-twice": extra}
        for finding in judge_restart(PLAN, whole, LOOK, attempts)(reports, earlier):
            is_all = len(affected.get(finding.code, ())) == PLAN.num_samples
            yield finding._replace(code=OF_ALL_SAMPLES[finding.code]) if is_all else finding

    return judge


def judge_after_epoch(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """Killed after step 6: the checkpoint of step 5, the epoch's last, is the newest."""
    from_4 = chain(*surviving_steps({"killed": 4}, reports, earlier))
    taken = most_steps(reports)
    again = not any(miscounted(from_4, PLAN.num_samples, PLAN.epochs))
    if taken == PLAN.steps - 4 and again and not has_saved(earlier["killed"], 5):
        yield Finding(
            "no-save-at-epoch-end",
            f"killed after step 6, the run trained step 5, the last of epoch 0, again: the "
            f"restart took {taken} steps instead of {PLAN.steps - 5}",
            "a checkpoint is saved at each epoch's end",
            "at what is saved after the last batch of an epoch",
        )
        return
    yield from judge_epochs("whole", "killed", 5)(reports, earlier)


def judge_done(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """A finished run, started again."""
    taken = most_steps(reports)
    weights = earlier["whole"][0].answer["weights"]
    difference, _ = largest_difference(weights, reports[-1].answer["weights"])
    if taken or difference != 0:
        yield Finding(
            "finished-run-trains",
            f"started again, a finished run of {PLAN.steps} steps took {taken} more; its "
            f"weights then differed by up to {difference:.2g} from those it had ended with",
            "starting a finished run again takes no step and leaves the final weights in place",
            LOOK,
        )


SCENARIOS = [
    Scenario(name="whole", body=train_in("whole"), judge=WHOLE, deadline_s=6),
    Scenario(
        name="killed",
        body=train_in("a"),
        judge=judge_killed,
        fault=Fault.after_step(6, rank=1),
        deadline_s=6,
    ),
    Scenario(name="after the epoch", body=train_in("a"), judge=judge_after_epoch, deadline_s=6),
    Scenario(name="done", body=train_in("a"), judge=judge_done, deadline_s=6),
    Scenario(
        name="three",
        body=train_in("b"),
        judge=judge_killed,
        world_size=3,
        fault=Fault.after_step(9, rank=1),
        deadline_s=6,
    ),
    Scenario(
        name="in the middle",
        body=train_in("b"),
        world_size=3,
        deadline_s=6,
        judge=judge_epochs("", "three", 8),
    ),
    # Here every checkpoint is due for both reasons at once.
    Scenario(
        name="both",
        body=train_in("c", 5),
        judge=judge_killed,
        fault=Fault.after_step(11, rank=1),
        deadline_s=6,
    ),
    Scenario(
        name="after both",
        body=train_in("c", 5),
        deadline_s=6,
        judge=judge_epochs("whole", "both", 10),
    ),
]
