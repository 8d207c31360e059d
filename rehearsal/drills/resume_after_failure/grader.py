"""Killed at five kinds of moment and started again: does it equal the uninterrupted run?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rehearsal.grading.drill import Body, Scenario
from rehearsal.engine.reports import RankReport, killed
from rehearsal.kit.judge.coverage import coverage_findings, most_steps
from rehearsal.kit.judge.lineage import resume_findings
from rehearsal.kit.judge.recorded_run import UninterruptedRun, start_in
from rehearsal.kit.judge.weights import ranks_differ
from rehearsal.kit.observe.restart import run_folder
from rehearsal.kit.observe.samples import marked_samples, weights_of
from .watch import DropoutNet, copy_folder, strikes_in_save, watched
from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault
from rehearsal.grading.verdict import Finding, Judge

CODES = {
    "trained-twice": "a sample is trained more than once per epoch, with or without a kill",
    "never-trained": "a sample is left out of an epoch, with or without a kill",
    "wrong-steps": "the uninterrupted run takes the wrong number of optimizer steps",
    "ranks-differ": "the ranks of the uninterrupted run end with different weights",
    "wrong-start": "the uninterrupted run doesn't start from rank 0's weights",
    "does-not-learn": "the uninterrupted run hardly lowers the loss",
    "same-noise": "two ranks draw the same random numbers in the uninterrupted run",
    "not-this-model": "the steps do not change the model that was passed in",
    "saves-nothing": "the uninterrupted run leaves no file in its folder",
    "not-repeatable": "two fresh starts end with different weights",
    "cannot-resume": "a start after a kill raises an exception",
    "started-over": "a start after a kill begins with step 1 although a save was complete",
    "lost-work": "a start resumes before the last complete save",
    "from-the-future": "a start has weights that were never saved in its folder",
    "weights-not-restored": "a start resumes with weights that the run never had",
    "ranks-resume-apart": "the ranks resume from different steps",
    "different-samples": "a step after a restore trains different samples",
    "lr-jumps": "a step after a restore has a different learning rate",
    "different-noise": "a step after a restore draws different random numbers",
    "one-noise-for-all": "a rank resumes with another rank's random state",
    "different-update": "the optimizer's state is missing, so updates after a restore differ",
    "stopped-short": "the run ends before its last step",
    "keeps-training": "the run takes steps after its last one",
    "finished-changes": "starting a finished run changes a file",
}
# Three steps an epoch, the last of a single sample. Saves are due after 2, 4, 6, 8 and 9.
NUM_SAMPLES, GLOBAL_BATCH_SIZE, EPOCHS, STEPS_PER_EPOCH, SAVE_EVERY = 13, 6, 3, 3, 2
TOTAL = EPOCHS * STEPS_PER_EPOCH


def start(context: RankContext, learner: SimpleNamespace, folder: str) -> Any:
    """Call ``train`` as a fresh script would; returns both losses and the first weights."""
    import torch

    inputs, targets = marked_samples(NUM_SAMPLES)
    model = DropoutNet(seed=context.rank)
    torch.manual_seed(17 + context.rank)

    def loss() -> float:
        with torch.no_grad():
            return float((model.eval()(inputs) - targets).pow(2).mean())

    before, given = loss(), weights_of(model)
    path = run_folder(context, folder)
    model.train()
    with watched(context, model, folder):
        learner.train(
            model,
            inputs,
            targets,
            folder=path,
            epochs=EPOCHS,
            lr=0.1,
            global_batch_size=GLOBAL_BATCH_SIZE,
            save_every=SAVE_EVERY,
        )
    return [before, loss(), given]


def run_in(folder: str) -> Body:
    """A body with one start in ``folder``."""

    def body(context: RankContext, learner: SimpleNamespace) -> Any:
        context.init_group()
        return start(context, learner, folder)

    return body


def killed_in_save(folder: str, *, tears: bool) -> Body:
    """A body that resumes after epoch 1 and is killed during its second step's save."""

    def body(context: RankContext, learner: SimpleNamespace) -> Any:
        context.init_group()
        copy_folder(context, "killed", folder)
        with strikes_in_save(context, after_steps=2, tears=tears):
            return start(context, learner, folder)

    return body


def start_all_again(context: RankContext, learner: SimpleNamespace) -> Any:
    """Resume from what each kill during a save left behind; then start a finished run."""
    context.init_group()
    for folder in KILLS:
        start(context, learner, folder)
    copy_folder(context, next(iter(KILLS)), "finished")
    return start(context, learner, "finished")


# ---------------------------------------------------------------- in the kernel


Earlier = Mapping[str, Sequence[RankReport]]


def run_of(earlier: Earlier) -> UninterruptedRun:
    """The uninterrupted run's steps."""
    starts = [start_in(report, "whole") for report in earlier["uninterrupted"]]
    return UninterruptedRun([start.steps for start in starts if start], STEPS_PER_EPOCH)


def judge_uninterrupted(reports: Sequence[RankReport], earlier: Earlier) -> Iterable[Finding]:
    """The uninterrupted run trains, and saves."""
    first, second = [start.steps for r in reports if (start := start_in(r, "whole"))]
    if not first and not second:
        found = f"neither rank took an optimizer step; the plan has {TOTAL}"
        rule = "an epoch has one step per global batch, on every rank"
        look = "at where the loops over epochs and steps begin and end"
        if any(report.of("forward") for report in reports):
            look = "at where the optimizer steps"
        yield Finding("wrong-steps", found, rule, look)
        return
    yield from coverage_findings(reports, NUM_SAMPLES, EPOCHS, "at the samples of each step")
    if len(first) != TOTAL or len(second) != TOTAL:
        found = f"the ranks took {len(first)} and {len(second)} optimizer steps; the plan has "
        found += f"{TOTAL}"
        rule = "an epoch has one step per global batch, on every rank"
        look = "at what ends an epoch, and at which ranks take each step"
        yield Finding("wrong-steps", found, rule, look)
        return
    if first[0].before == first[0].after:
        found = "step 1 of the uninterrupted run did not change the weights of the model"
        rule = "train updates the model it was given, step by step"
        look = "at which model the optimizer updates, and at the gradients it steps with"
        yield Finding("not-this-model", found, rule, look)
        return
    before, after, given = reports[0].answer
    if first[0].before != given:
        found = "step 1 of the uninterrupted run didn't start from the weights that rank 0 "
        found += "was given"
        rule = "every rank starts from rank 0's weights"
        yield Finding("wrong-start", found, rule, "at whose weights the ranks start from")
        return
    last = [first[-1].after, second[-1].after]
    look = "at each rank's weights before step 1, and at what its updates use"
    yield from ranks_differ(last, look, where="without a kill, ")
    if not after < 0.8 * before:
        found = f"the loss went from {before:.3f} to {after:.3f} in {TOTAL} steps"
        rule = "training lowers the loss, here by at least 20%"
        look = "at the loss you minimize, and at the optimizer and its learning rate"
        yield Finding("does-not-learn", found, rule, look)
    equal = [
        n
        for n, (a, b) in enumerate(zip(first, second, strict=True), 1)
        if a.rng and a.rng == b.rng
    ]
    if equal:
        found = f"in step {equal[0]} of the uninterrupted run, both ranks draw the same random "
        found += "numbers, so they drop the same units"
        rule = "each rank draws its own dropout"
        yield Finding("same-noise", found, rule, "at what seeds each rank")
    if not any(start.files for r in reports if (start := start_in(r, "whole"))):
        found = f"in {TOTAL} steps with save_every={SAVE_EVERY}, no rank wrote a file"
        rule = "only files survive a kill"
        yield Finding("saves-nothing", found, rule, "at where the loop saves")


def judge_fresh_start(reports: Sequence[RankReport], earlier: Earlier) -> Iterable[Finding]:
    """A fresh start takes the same steps again."""
    for rank, (report, whole) in enumerate(zip(reports, run_of(earlier).ranks, strict=True)):
        begun = start_in(report, "killed")
        for number, (ours, theirs) in enumerate(
            zip(begun.steps if begun else [], whole, strict=False), 1
        ):
            if ours.after and ours.after != theirs.after:
                found = f"two fresh starts have different weights on rank {rank} after step "
                found += f"{number}"
                rule = "the same arguments give the same run"
                look = "at what is drawn from a generator that nothing seeds"
                yield Finding("not-repeatable", found, rule, look)
                return


def judge_resumed(reports: Sequence[RankReport], earlier: Earlier) -> Iterable[Finding]:
    """It resumes in the middle of an epoch."""
    before = earlier["killed in the middle of an epoch"]
    done = most_steps(before)
    kill = f"the run was killed after step {done}, in the middle of an epoch"
    yield from resume_findings(run_of(earlier), reports, "killed", kill, last_save(done), done)


def last_save(done: int) -> int:
    """The last step before ``done`` with a save due: that save was complete."""
    return (done - 1) // SAVE_EVERY * SAVE_EVERY


def judge_save(folder: str) -> Judge:
    """It resumes at the end of an epoch and is killed during a save."""

    def judge(reports: Sequence[RankReport], earlier: Earlier) -> Iterable[Finding]:
        run = run_of(earlier)
        done = run.reached(earlier["resumed, killed after an epoch"], "killed")
        kill = f"the run was killed after step {done}, right before its next optimizer step"
        saved = done // SAVE_EVERY * SAVE_EVERY
        yield from resume_findings(run, reports, folder, kill, saved, done)

    return judge


def judge_all(reports: Sequence[RankReport], earlier: Earlier) -> Iterable[Finding]:
    """Each start after a kill during a save, and the start of a finished run."""
    run = run_of(earlier)
    for folder, kill in KILLS.items():
        done = run.reached(earlier[kill], folder)
        if any(map(killed, earlier[kill])):
            said, saved = f"the run was {kill} of step {done}", last_save(done)
            yield from resume_findings(run, reports, folder, said, saved, done)
    said = f"the run had finished with step {TOTAL}"
    yield from resume_findings(run, reports, "finished", said, TOTAL, TOTAL)
    for report in reports:
        begun = start_in(report, "finished")
        if begun and begun.files:
            found = f"started again after step {TOTAL}, the last one, rank {report.rank} "
            found += f"changed {begun.files[0]}"
            rule = "starting a finished run changes no file"
            yield Finding("finished-changes", found, rule, "at what is saved without a step")


KILLS = {
    "torn": "killed in the middle of a write, during the save",
    "second": "killed before rank 0's second file operation, during the save",
    "third": "killed before rank 0's third file operation, during the save",
    "fourth": "killed before rank 0's fourth file operation, during the save",
    "other": "killed before rank 1's first file operation, during the save",
    "later": "killed before rank 1's second file operation, during the save",
}
# The first is no event: the operating system sends a signal in the middle of a write.
FAULTS = [Fault(rank=None, at="write", count=1)]
FAULTS += [Fault(rank=0, at="late_file", count=count) for count in (2, 3, 4)]
FAULTS += [Fault(rank=1, at="late_file", count=count) for count in (1, 2)]
SCENARIOS = [
    Scenario(
        name="uninterrupted", body=run_in("whole"), judge=judge_uninterrupted, deadline_s=5
    ),
    Scenario(
        name="killed in the middle of an epoch",
        body=run_in("killed"),
        judge=judge_fresh_start,
        fault=Fault(rank=1, at="optimizer_step", count=5),
        deadline_s=5,
    ),
    Scenario(
        name="resumed, killed after an epoch",
        body=run_in("killed"),
        judge=judge_resumed,
        fault=Fault(rank=0, at="before_step", count=3),
        deadline_s=5,
        judges_failures=True,
    ),
    *(
        Scenario(
            name=kill,
            body=killed_in_save(folder, tears=folder == "torn"),
            fault=fault,
            judge=judge_save(folder),
            deadline_s=5,
            judges_failures=True,
        )
        for (folder, kill), fault in zip(KILLS.items(), FAULTS, strict=True)
    ),
    Scenario(
        name="resumed from each of them",
        body=start_all_again,
        judge=judge_all,
        deadline_s=8,
        judges_failures=True,
    ),
]
