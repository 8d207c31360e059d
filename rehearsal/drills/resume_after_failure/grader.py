"""Killed at every kind of moment and started again: does it equal the uninterrupted run?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault, RankReport, killed
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.coverage import coverage_findings, most_steps
from rehearsal.kit.judge.findings import some
from rehearsal.kit.judge.lineage import resume_findings
from rehearsal.kit.judge.one_writer import CODES as WRITER_CODES
from rehearsal.kit.judge.one_writer import one_writer
from rehearsal.kit.judge.recorded_run import Step, UninterruptedRun, start_in
from rehearsal.kit.judge.weights import ranks_differ
from rehearsal.kit.observe.moments import watch_moments
from rehearsal.kit.observe.restart import run_folder
from rehearsal.kit.observe.samples import marked_samples, weights_of

from .draws import Plan, plan_of
from .watch import (
    DropoutNet,
    contents,
    copy_folder,
    keep_moments,
    keep_moments_again,
    folders_named,
    strikes_in_save,
    watched,
)

CODES = {
    **WRITER_CODES,
    "trained-twice": "a sample is trained more than once per epoch, with or without a kill",
    "never-trained": "a sample is left out of an epoch, with or without a kill",
    "wrong-steps": "the uninterrupted run takes the wrong number of optimizer steps",
    "ranks-differ": "the ranks of the uninterrupted run end with different weights",
    "wrong-start": "the uninterrupted run doesn't start from rank 0's weights",
    "does-not-learn": "the uninterrupted run hardly lowers the loss",
    "same-noise": "two ranks draw the same random numbers in the uninterrupted run",
    "not-this-model": "the steps do not change the model that was passed in",
    "one-rank-trains-all": "in the uninterrupted run, one rank trains every sample",
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


# A rank other than rank 0 dies in a save while rank 0 goes on: the folder, the job, the moment.
OTHERS = {
    "other": ("a rank killed in a save", "first"),
    "later": ("a rank killed later in a save", "second"),
}


def start(plan: Plan, context: RankContext, learner: SimpleNamespace, folder: str) -> Any:
    """Call ``train`` as a fresh script would; returns both losses and the first weights."""
    import torch

    inputs, targets = marked_samples(plan.num_samples, seed=plan.seed)
    model = DropoutNet(plan.dropout, seed=plan.seed + context.rank)
    torch.manual_seed(plan.seed + 17)  # equal on all ranks, as it is in new processes

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
            epochs=plan.epochs,
            lr=plan.lr,
            global_batch_size=plan.global_batch_size,
            save_every=plan.save_every,
        )
    return [before, loss(), given]


def run_whole(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """The uninterrupted run, and what a kill at each of its moments would leave."""
    context.init_group()
    path = run_folder(context, "whole")
    with watch_moments(path.resolve(), lambda: context.count("optimizer_step")) as moments:
        answer = start(plan, context, learner, "whole")
    return [*answer, keep_moments(context, plan, moments)]


def run_in(folder: str, plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """One start in ``folder``."""
    context.init_group()
    return start(plan, context, learner, folder)


def run_until_a_save(
    folder: str, plan: Plan, context: RankContext, learner: SimpleNamespace
) -> Any:
    """Resume where the run was killed, and lose a rank in the next save."""
    context.init_group()
    copy_folder(context, "killed", folder)
    with strikes_in_save(context, after_steps=1):
        return start(plan, context, learner, folder)


def start_all_again(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Resume from what each kill would leave behind; then start a finished run."""
    context.init_group()
    for folder in (*OTHERS, *folders_named(context, "moment")):
        start(plan, context, learner, folder)
    again = start_torn(plan, context, learner)
    start(even_plan(plan), context, learner, "even")
    copy_folder(context, "whole", "finished")
    before = contents(context, "finished")
    start(plan, context, learner, "finished")
    after = contents(context, "finished")
    changed = sorted(
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    )
    return {"again": again, "changed": changed}


def start_torn(plan: Plan, context: RankContext, learner: SimpleNamespace) -> list[list[Any]]:
    """Resume from torn files, and from what a kill of such a start would leave."""
    again: list[list[Any]] = []
    for torn in folders_named(context, "torn"):
        begin = context.count("optimizer_step")

        def steps(begin: int = begin) -> int:
            return context.count("optimizer_step") - begin

        with watch_moments((context.folder / torn).resolve(), steps) as moments:
            start(plan, context, learner, torn)
        again += [[torn, *kept] for kept in keep_moments_again(context, plan, torn, moments)]
        for folder in folders_named(context, f"again-{torn}"):
            start(plan, context, learner, folder)
    return again


def even_plan(plan: Plan) -> Plan:
    """One epoch of two full steps: none may come after them."""
    return plan._replace(num_samples=2 * plan.global_batch_size, steps_per_epoch=2, epochs=1)


# ---------------------------------------------------------------- in the caller's process


Earlier = Mapping[str, Sequence[RankReport]]


def run_of(plan: Plan, earlier: Earlier) -> UninterruptedRun:
    """The uninterrupted run's steps."""
    starts = [start_in(report, "whole") for report in earlier["uninterrupted"]]
    return UninterruptedRun([start.steps for start in starts if start], plan.steps_per_epoch)


def judge_uninterrupted(
    plan: Plan, reports: Sequence[RankReport], earlier: Earlier
) -> Iterable[Finding]:
    """The uninterrupted run trains, and saves."""
    if not all(report.has_answer for report in reports):
        yield from one_writer(reports, step_ends="stepped")
        return
    ranks = [start.steps for r in reports if (start := start_in(r, "whole"))]
    if not any(ranks):
        found = f"no rank took an optimizer step; the plan has {plan.total}"
        rule = "an epoch has one step per global batch, on every rank"
        look = "at where the loops over epochs and steps begin and end"
        if any(report.of("forward") for report in reports):
            look = "at where the optimizer steps"
        yield Finding("wrong-steps", found, rule, look)
        return
    yield from coverage_findings(
        reports, plan.num_samples, plan.epochs, "at the samples of each step"
    )
    counts = [len(steps) for steps in ranks]
    if set(counts) != {plan.total}:
        taken = ", ".join(f"rank {rank} took {count}" for rank, count in enumerate(counts))
        found = f"the plan has {counted(plan.total, 'optimizer step')}; {taken}"
        rule = "an epoch has one step per global batch, on every rank"
        look = "at what ends an epoch, and at which ranks take each step"
        yield Finding("wrong-steps", found, rule, look)
        return
    sizes = [sum(len(step.samples) for step in steps) for steps in zip(*ranks, strict=True)]
    wrong = [number for number, size in enumerate(sizes) if size != plan.size_of(number)]
    if wrong:
        number = wrong[0]
        found = f"step {number + 1} trained {counted(sizes[number], 'sample')} over all ranks; "
        found += f"the plan has {plan.size_of(number)}"
        rule = "a step trains the next global batch of the epoch; the last takes what is left"
        yield Finding("wrong-steps", found, rule, "at which samples each step takes")
        return
    busy = [rank for rank, steps in enumerate(ranks) if any(step.samples for step in steps)]
    if len(busy) == 1:
        found = f"rank {busy[0]} trained all samples of the run, and the other ranks none"
        rule = "the ranks split each step's samples among themselves"
        yield Finding("one-rank-trains-all", found, rule, "at each rank's share of a step")
        return
    first = ranks[0]
    if first[0].before == first[0].after:
        found = "step 1 of the uninterrupted run did not change the weights of the model"
        rule = "train updates the model it was given, step by step"
        look = "at which model the optimizer updates, and at the gradients it steps with"
        yield Finding("not-this-model", found, rule, look)
        return
    before, after, given, _ = reports[0].answer
    if first[0].before != given:
        found = "step 1 of the uninterrupted run didn't start from the weights that rank 0 "
        found += "was given"
        rule = "every rank starts from rank 0's weights"
        yield Finding("wrong-start", found, rule, "at whose weights the ranks start from")
        return
    last = [steps[-1].after for steps in ranks]
    look = "at each rank's weights before step 1, and at what its updates use"
    yield from ranks_differ(last, look, where="without a kill, ")
    if not after < 0.8 * before:
        found = f"the loss went from {before:.3f} to {after:.3f} in {plan.total} steps"
        rule = "training lowers the loss, here by at least 20%"
        look = "at the loss you minimize, and at the optimizer and its learning rate"
        yield Finding("does-not-learn", found, rule, look)
    yield from same_noise(ranks)
    if not any(start.files for r in reports if (start := start_in(r, "whole"))):
        found = f"in {plan.total} steps with save_every={plan.save_every}, no rank wrote a file"
        rule = "only files survive a kill"
        yield Finding("saves-nothing", found, rule, "at where the loop saves")
    yield from one_writer(reports, step_ends="stepped")


def same_noise(ranks: Sequence[Sequence[Step]]) -> Iterable[Finding]:
    """The first step in which two ranks with samples draw the same random numbers."""
    for number, steps in enumerate(zip(*ranks, strict=True), 1):
        drawn: dict[str, int] = {}
        for rank, step in enumerate(steps):
            if step.samples and step.rng in drawn:
                found = f"in step {number} of the uninterrupted run, ranks {drawn[step.rng]} "
                found += f"and {rank} draw the same random numbers, so they drop the same units"
                rule = "each rank draws its own dropout"
                yield Finding("same-noise", found, rule, "at what seeds each rank")
                return
            if step.samples:
                drawn[step.rng] = rank


def judge_fresh_start(
    plan: Plan, reports: Sequence[RankReport], earlier: Earlier
) -> Iterable[Finding]:
    """A fresh start takes the same steps again."""
    whole_run = run_of(plan, earlier)
    for rank, (report, whole) in enumerate(zip(reports, whole_run.ranks, strict=True)):
        begun = start_in(report, "killed")
        for number, (ours, theirs) in enumerate(
            zip(begun.steps if begun else [], whole, strict=False), 1
        ):
            if ours.after and ours.after != theirs.after:
                found = f"two fresh starts have different weights on rank {rank} after step "
                found += f"{number}"
                rule = "the same arguments give the same run"
                look = "at what is drawn from a generator that nothing seeds, and at what "
                look += "depends on Python's hash"
                yield Finding("not-repeatable", found, rule, look)
                return


def judge_resumed(
    plan: Plan, reports: Sequence[RankReport], earlier: Earlier
) -> Iterable[Finding]:
    """It resumes in the middle of an epoch."""
    done = most_steps(earlier["killed in the middle of an epoch"])
    kill = f"the run was killed after step {done}, in the middle of an epoch"
    saved = plan.complete_before(done)
    yield from resume_findings(run_of(plan, earlier), reports, "killed", kill, saved, done)


def judge_other(
    folder: str, plan: Plan, reports: Sequence[RankReport], earlier: Earlier
) -> Iterable[Finding]:
    """It resumes once more, from later saves."""
    run = run_of(plan, earlier)
    done = run.reached(earlier["resumed, and killed again"], "killed")
    kill = f"the run was killed again in step {done.by_all + 1}"
    saved = plan.due_by(done.by_all)
    yield from resume_findings(run, reports, folder, kill, saved, done.by_any)


def judge_all(plan: Plan, reports: Sequence[RankReport], earlier: Earlier) -> Iterable[Finding]:
    """Each start after a kill at some moment, and the start of a finished run."""
    run = run_of(plan, earlier)
    for folder, (name, which) in OTHERS.items():
        if any(map(killed, earlier[name])):
            done = run.reached(earlier[name], folder)
            said = f"rank {plan.other_rank} was killed before its {which} file operation in a "
            said += f"save, with step {done.by_all} done"
            saved = plan.complete_before(done.by_all)
            yield from resume_findings(run, reports, folder, said, saved, done.by_any)
    kills, resumed_after = dict[str, str](), dict[str, int]()
    for report in earlier["uninterrupted"]:
        for folder, where, done in report.answer[-1]:
            said = f"all ranks were killed {where} (on rank {report.rank}), with step {done} "
            said += "done"
            kills[folder], saved = said, plan.complete_before(done)
            yield from resume_findings(run, reports, folder, said, saved, done)
            begun = start_in(reports[0], folder)
            if begun and begun.steps:
                resumed_after[folder] = run.position(0, begun.steps[0].before) or 0
    for report in reports:
        for torn, folder, where, steps in report.answer["again"] if report.has_answer else ():
            if torn not in resumed_after:
                continue  # it took no step, so it wrote no save
            # What it resumed from was complete, and another kill must not cost it.
            begin = resumed_after[torn]
            said = (
                f"{kills[torn]}; the next start resumed after step {begin}, and all its ranks "
            )
            said += f"were killed {where} (on rank {report.rank})"
            saved = max(begin, plan.complete_before(begin + steps))
            yield from resume_findings(run, reports, folder, said, saved, begin + steps)
    said = f"the run had finished with step {plan.total}"
    yield from resume_findings(run, reports, "finished", said, plan.total, plan.total)
    if reports[0].has_answer and (changed := reports[0].answer["changed"]):
        found = f"the run was started again after step {plan.total}, the last one, and "
        found += f"{some(changed)} was written or deleted"
        rule = "starting a finished run changes no file"
        yield Finding("finished-changes", found, rule, "at what is saved without a step")
    even = even_plan(plan)
    ranks = [begun.steps for report in reports if (begun := start_in(report, "even"))]
    sizes = [sum(len(step.samples) for step in steps) for steps in zip(*ranks, strict=False)]
    if len(ranks) == len(reports) and sizes != [even.size_of(n) for n in range(even.total)]:
        found = f"with {even.num_samples} samples, global_batch_size={even.global_batch_size} "
        found += f"and epochs=1, the run's steps trained {some(sizes)} samples"
        rule = "an epoch ends with the step that trains its last sample"
        yield Finding("wrong-steps", found, rule, "at how many steps an epoch has")


def scenarios(seed: int) -> list[Scenario]:
    """The uninterrupted run, three real kills, and restarts from every kind of moment."""
    plan = plan_of(seed)

    def job(name: str, body: Any, judge: Any, **rest: Any) -> Scenario:
        ranks = plan.world_size
        return Scenario(
            name=name,
            body=partial(body, plan),
            judge=partial(judge, plan),
            world_size=ranks,
            **{"deadline_s": 5, "judges_failures": True, **rest},
        )

    return [
        job("uninterrupted", run_whole, judge_uninterrupted),
        job(
            "killed in the middle of an epoch",
            partial(run_in, "killed"),
            judge_fresh_start,
            fault=Fault(rank=plan.kill_rank, at="optimizer_step", count=plan.kill_step),
            judges_failures=False,
        ),
        job(
            "resumed, and killed again",
            partial(run_in, "killed"),
            judge_resumed,
            fault=Fault(
                rank=plan.kill_again_rank, at="before_step", count=plan.kill_again_step
            ),
        ),
        *(
            job(
                name,
                partial(run_until_a_save, folder),
                partial(judge_other, folder),
                fault=Fault(rank=plan.other_rank, at="late_file", count=count),
            )
            for count, (folder, (name, _)) in enumerate(OTHERS.items(), 1)
        ),
        job("resumed from each moment", start_all_again, judge_all, deadline_s=20),
    ]
