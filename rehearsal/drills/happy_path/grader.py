"""Each sample once per epoch, correct metrics, a repeatable run, resume after any kill."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault, RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.findings import only_first, some
from rehearsal.kit.judge.lineage import resume_findings
from rehearsal.kit.judge.recorded_run import Step, UninterruptedRun, start_in
from rehearsal.kit.observe.moments import Moment, drawn_moments, watch_moments
from rehearsal.kit.observe.refusal import refusal
from rehearsal.kit.observe.restart import run_folder

from .labels import (
    beats_guessing,
    contradiction,
    first_equals,
    outputs_for,
    pairs_of,
    problem_of,
)
from .plan import ENOUGH, EPOCHS, SHORT, STEPS_PER_EPOCH, Plan, complete_before, plan_of
from .watch import watched_steps
from .whole import (
    WHOLE_FOLDER,
    graph_findings,
    metric_findings,
    orders,
    passes_of,
    run_findings,
)

CODES = {
    "accepts-nonsense": "the config accepts a size below one, or raises no ValueError",
    "refuses-a-good-value": "the config refuses a size of one",
    "data-changes": "a second call of make_dataset returns different data, or the data's shape "
    "is wrong",
    "nothing-to-learn": "the labels do not depend on the inputs, or not on them alone",
    "not-logits": "the model's output is not one logit per sample and class",
    "unknown-samples": "the model is given inputs that are not in the dataset",
    "wrong-steps": "an epoch does not have one optimizer step per batch",
    "wrong-batches": "a batch does not have batch_size samples, and is not an epoch's last",
    "trained-twice": "a sample is trained more than once per epoch, with or without a kill",
    "never-trained": "a sample is left out of an epoch, with or without a kill",
    "same-order": "two epochs use the same order",
    "stale-gradient": "a step does not follow the gradient of its own samples",
    "no-metrics": "run does not return a list with one dict per epoch trained",
    "mean-of-means": "the epoch's loss is a mean of batch means: a small batch counts too much",
    "wrong-loss": "the epoch's loss is not the mean over its samples",
    "keeps-graph": "an epoch's loss is a tensor that holds the graph it was computed with",
    "does-not-learn": "the loss does not fall",
    "not-repeatable": "two runs of one config have different weights",
    "seed-ignored": "two seeds give the same run",
    "lr-ignored": "two learning rates give the same run",
    "cannot-resume": "the run after a kill raises an exception",
    "started-over": "the run after a kill begins with the first epoch",
    "lost-work": "the run after a kill resumes before the last complete epoch",
    "from-the-future": "the run after a kill has weights that were never saved in its folder",
    "weights-not-restored": "the run after a kill begins with the wrong weights",
    "different-samples": "the run after a kill has different batches",
    "lr-jumps": "the run after a kill has a different learning rate",
    "different-noise": "the run after a kill draws different random numbers in the model",
    "different-update": "the run after a kill lacks the optimizer's state: updates differ",
    "stopped-short": "the run after a kill ends early",
    "finished-returns": "a finished run, called again, does not return an empty list",
    "keeps-training": "a run trains more epochs than planned, or trains when it is finished",
}
WHOLE, KILLED, AGAIN = "a whole run", "killed in an early epoch", "resumed, and killed again"
MOST = 12  # moments of a run, after its first save, from which a check resumes
MOST_TORN = 2  # of them, torn files: the start after such a kill is killed, too
MOST_AGAIN = 7  # moments of that start's first save, from which a check resumes
Earlier = Mapping[str, Sequence[RankReport]]


def new_random_states(context: RankContext) -> None:
    """Set the global random generators to states that no earlier call has seen."""
    import numpy
    import torch

    number = context.count("random_states")
    context.record("random_states")
    seed = random.Random(f"{context.seed} {context.folder} {number}").randrange(2**32)
    random.seed(seed)
    numpy.random.seed(seed)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed formats a stack each time


def run_once(
    plan: Plan, context: RankContext, learner: SimpleNamespace, folder: str, **changes: Any
) -> Any:
    """One call of ``run``, starting from arbitrary random states; returns its metrics."""
    settings = {
        "num_samples": plan.num_samples,
        "batch_size": plan.batch_size,
        "epochs": EPOCHS,
        "lr": plan.lr,
        "seed": plan.seed,
        "folder": run_folder(context, folder),
    }
    config = learner.TrainConfig(**settings | changes)
    new_random_states(context)
    dataset, is_judged = learner.make_dataset(config), folder == WHOLE_FOLDER
    with watched_steps(context, folder, dataset, computes_losses=is_judged):
        returned = learner.run(config)
    if keeps_graph(returned):
        context.record("kept_graph", folder=folder)
    return returned


def keeps_graph(returned: Any) -> bool:
    """Whether a returned loss is a tensor that could still be backpropagated through."""
    entries = returned if isinstance(returned, list) else []
    losses = [entry.get("loss") for entry in entries if isinstance(entry, Mapping)]
    return any(getattr(loss, "requires_grad", False) for loss in losses)


def whole_run(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Configs to refuse and to accept, the data, and the runs; what kills would leave."""
    sizes: dict[str, Any] = {"num_samples": plan.num_samples, "batch_size": plan.batch_size}
    sizes["epochs"] = EPOCHS
    rest: dict[str, Any] = {"lr": plan.lr, "seed": plan.seed, "folder": context.folder}
    ones: dict[str, Any] = dict.fromkeys(sizes, 1)
    refused = [
        [f"{name}={bad}", refusal(learner.TrainConfig, **sizes | {name: bad}, **rest)]
        for name in sizes
        for bad in (0, plan.too_small)
    ]
    answer: dict[str, Any] = {
        "refused": refused,
        "of_ones": refusal(learner.TrainConfig, **ones, **rest),
    }
    if answer["of_ones"]:
        return answer
    config = learner.TrainConfig(**sizes, **rest)
    data = []
    for _ in range(2):
        new_random_states(context)
        dataset = learner.make_dataset(config)
        answer["problem"] = problem_of(dataset, plan.num_samples)
        if answer["problem"]:
            return answer
        data.append(pairs_of(dataset))
    answer["differ"] = sum(one != two for one, two in zip(*data, strict=True))
    answer["first_equals"] = first_equals(dataset)
    large_config = learner.TrainConfig(**sizes | {"num_samples": ENOUGH}, **rest)
    large = learner.make_dataset(large_config)
    answer["problem"] = problem_of(large, ENOUGH)
    if answer["problem"]:
        return answer
    answer["learnable"] = beats_guessing(large)
    answer["contradiction"] = contradiction(large)
    answer["outputs"] = outputs_for(learner.make_model(large_config), large)
    path = run_folder(context, "short")
    with watch_moments(path, note=lambda: context.count("optimizer_step")) as moments:
        run_once(plan, context, learner, "short", epochs=SHORT)
    answer["moments"] = kept_moments(context, moments)
    answer["metrics"] = run_once(plan, context, learner, "a")
    run_once(plan, context, learner, "zero", epochs=2, seed=0)
    run_once(plan, context, learner, "zero again", epochs=1, seed=0)
    run_once(plan, context, learner, "c", epochs=1, lr=plan.other_lr)
    for folder, (num_samples, _) in small_runs(plan).items():
        run_once(plan, context, learner, folder, epochs=1, num_samples=num_samples)
    return answer


def small_runs(plan: Plan) -> dict[str, tuple[int, list[int]]]:
    """Runs of one epoch, by folder: how many samples, and the sizes of the batches."""
    batch = plan.batch_size
    return {"even": (2 * batch, [batch] * 2), "one left": (batch + 1, [batch, 1])}


def kept_moments(context: RankContext, moments: Sequence[Moment]) -> list[list[Any]]:
    """Write down some moments, each as the folder of a later run; folder, where, steps."""
    draw = random.Random(context.seed)
    first = [moment for moment in moments if moment.note <= STEPS_PER_EPOCH]
    later = [moment for moment in moments if moment.note > STEPS_PER_EPOCH]
    torn = [m for m in later if m.part == "half" and m.note < SHORT * STEPS_PER_EPOCH]
    chosen = drawn_moments(first, 1, draw) + drawn_moments(later, MOST, draw)
    kept = restored(context, "moment", chosen)
    return kept + restored(context, "torn", drawn_moments(torn, MOST_TORN, draw))


def restored(
    context: RankContext, name: str, moments: Sequence[tuple[int, Moment]]
) -> list[list[Any]]:
    """Write down moments, unseen by the recorder; folder, where, part and steps of each."""
    kept = []
    context.is_armed = False
    for number, (_, moment) in enumerate(moments):
        moment.restore(context.folder / f"{name}-{number}")
        kept.append([f"{name}-{number}", moment.where, moment.part, moment.note])
    context.is_armed = True
    return kept


def killed_run(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """A run, or the rest of it, that is killed."""
    return run_once(plan, context, learner, "k")


def next_runs(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """The killed run until it is done, once more after that, and a run from each moment.

    A run from a torn file is killed again, and so are the runs that begin with what it leaves.
    """
    finished = [run_once(plan, context, learner, "k") for _ in range(2)]
    for path in sorted(context.folder.glob("moment-*")):
        run_once(plan, context, learner, path.name, epochs=SHORT)
    again = []
    for path in sorted(context.folder.glob("torn-*")):
        begin = context.count("optimizer_step")

        def steps(begin: int = begin) -> int:
            return context.count("optimizer_step") - begin

        with watch_moments(path, steps) as moments:
            run_once(plan, context, learner, path.name, epochs=SHORT)
        first = [moment for moment in moments if moment.note <= STEPS_PER_EPOCH]
        chosen = drawn_moments(first, MOST_AGAIN, random.Random(context.seed))
        kept = restored(context, f"again-{path.name}", chosen)
        again += [[path.name, *moment] for moment in kept]
        for folder, *_ in kept:
            run_once(plan, context, learner, folder, epochs=SHORT)
    return {"finished": finished, "again": again}


# ---------------------------------------------------------------- in the kernel


def judge_whole_run(
    plan: Plan, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The config, the data, and the runs without a kill."""
    report, answer = reports[0], reports[0].answer
    yield from config_findings(answer)
    yield from data_findings(plan, answer)
    steps, zero, faster = (steps_in(report, folder) for folder in ("a", "zero", "c"))
    yield from run_findings(plan, report, steps)
    yield from metric_findings(answer["metrics"], report)
    yield from graph_findings(report)
    for code, name, values, run, epochs in (
        ("seed-ignored", "seed", (plan.seed, 0), zero, 2),
        ("lr-ignored", "lr", (plan.lr, plan.other_lr), faster, 1),
    ):
        if len(run) != STEPS_PER_EPOCH * epochs:
            found = f"in an empty folder, a run with epochs={epochs} and another {name} took "
            found += f"{counted(len(run), 'optimizer step')}, not {STEPS_PER_EPOCH * epochs}"
            rule = "a run is a function of its config, and of what is in config.folder"
            look = "at everything that a run reads, besides its config and its own folder"
            yield Finding("not-repeatable", found, rule, look)
        elif weights_after(run) == weights_after(steps):
            found = f"{name}={values[0]} and {name}={values[1]} give exactly the same first "
            found += "epoch"
            rule = f"a different {name} gives a different run"
            yield Finding(code, found, rule, f"at where config.{name} is used")
    if weights_after(steps_in(report, "zero again")) != weights_after(zero):
        found = "two runs with seed=0, in two folders, have different weights after epoch 0"
        rule = "a run is a function of its config, and 0 is a seed like any other"
        yield Finding("not-repeatable", found, rule, "at where config.seed is used")
    yield from orders(passes_of(report, "zero"), answer["first_equals"], "with seed=0, ")
    for folder, (num_samples, wanted) in small_runs(plan).items():
        sizes = [len(step.samples) for step in steps_in(report, folder)]
        if sizes != wanted:
            found = f"with num_samples={num_samples}, batch_size={plan.batch_size} and "
            found += f"epochs=1, the run's steps trained {some(sizes) or 'no'} samples"
            rule = "an epoch ends with the batch that holds its last sample"
            yield Finding("wrong-steps", found, rule, "at how many batches an epoch has")


def weights_after(steps: Sequence[Step]) -> list[Any]:
    """The weights after each step of the first epoch."""
    return [step.after for step in steps[:STEPS_PER_EPOCH]]


def steps_in(report: RankReport, folder: str) -> list[Step]:
    """The steps of the last start in a folder."""
    start = start_in(report, folder)
    return start.steps if start else []


def config_findings(answer: Mapping[str, Any]) -> Iterator[Finding]:
    """What TrainConfig refuses."""
    look = "at the constructor's checks"
    for value, how in answer["refused"]:
        if how is None or not how[1]:
            found = f"TrainConfig with {value} "
            found += f"raised {how[0]}, not ValueError" if how else "raised no ValueError"
            rule = "a run with nothing to train would end at once and report success"
            yield Finding("accepts-nonsense", found, rule, look)
    if answer["of_ones"]:
        kind, _, message = answer["of_ones"]
        found = "TrainConfig with num_samples, batch_size and epochs of 1 raised "
        found += f"{kind}: {message[:160]}"
        rule = "TrainConfig raises if one of them is below 1"
        yield Finding("refuses-a-good-value", found, rule, look)


def data_findings(plan: Plan, answer: Mapping[str, Any]) -> Iterator[Finding]:
    """What make_dataset returns."""
    if answer["problem"]:
        found = f"make_dataset(config) {answer['problem']}"
        rule = "a dataset has num_samples pairs of a float tensor and a class"
        look = "at how many there are, and at what an index returns"
        yield Finding("data-changes", found, rule, look)
    elif answer["differ"]:
        found = "two calls of make_dataset with the same config return different data: "
        found += f"{answer['differ']} of {plan.num_samples} samples differ"
        rule = "the data depends on the config only"
        yield Finding("data-changes", found, rule, "at which random generator the data uses")
    elif not answer["learnable"]:
        found = f"with num_samples={ENOUGH}, neither its nearest neighbors nor a linear model "
        found += "of the other samples predicts a sample's class better than guessing"
        rule = "the labels can be learned from the inputs"
        yield Finding("nothing-to-learn", found, rule, "at what a label is made from")
    elif answer["contradiction"]:
        found = f"with num_samples={ENOUGH}, {answer['contradiction']}"
        rule = "the labels can be learned: equal inputs have equal classes"
        yield Finding("nothing-to-learn", found, rule, "at what a label is made from")
    elif answer["outputs"]:
        found = f"with num_samples={ENOUGH}, {answer['outputs']}"
        rule = "make_model maps a batch (B, ...) to logits (B, C), one for each class"
        yield Finding("not-logits", found, rule, "at the number of classes in each of the two")


def the_run(earlier: Earlier, folder: str = "a") -> UninterruptedRun:
    """A run without a kill."""
    return UninterruptedRun([steps_in(earlier[WHOLE][0], folder)], STEPS_PER_EPOCH)


def judge_fresh(
    plan: Plan, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The same config, in another process and folder, gives the same run."""
    steps, again = steps_in(earlier[WHOLE][0], "a"), steps_in(reports[0], "k")
    for number, (one, two) in enumerate(zip(steps, again, strict=False), 1):
        if two.after and one.after != two.after:
            found = "two runs of the same config, in two folders, have different weights after "
            found += f"step {number}"
            rule = "a run is a function of its config"
            look = "at everything that draws random numbers, and at what depends on Python's "
            look += "hash"
            yield Finding("not-repeatable", found, rule, look)
            return


def judge_resumed(
    plan: Plan, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """It resumes from the last complete epoch."""
    done = len(earlier[KILLED][0].of("optimizer_step"))
    kill = f"the run was killed in epoch {done // STEPS_PER_EPOCH}, after step {done}"
    saved = done // STEPS_PER_EPOCH * STEPS_PER_EPOCH
    yield from ends_early(kill, reports[0], "k")
    yield from resume_findings(the_run(earlier), reports, "k", kill, saved, done)


def ends_early(kill: str, report: RankReport, folder: str) -> Iterator[Finding]:
    """A finding if a start that should have resumed took no step at all."""
    start = start_in(report, folder)
    if start and start.end and not start.steps:
        found = f"{kill}; the next call took no step, and the plan has "
        found += f"{STEPS_PER_EPOCH * EPOCHS} steps"
        rule = "all starts of a run together take the planned steps"
        yield Finding("stopped-short", found, rule, "at what a run does when it finds a save")


def judge_next(
    plan: Plan, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """It ends like an uninterrupted run, and stops; so does a run from each moment."""
    run, whole = the_run(earlier), earlier[WHOLE][0]
    done = run.reached(earlier[AGAIN], "k").by_any
    kill = f"the run was killed again, in epoch {done // STEPS_PER_EPOCH}, after step {done}"
    saved = done // STEPS_PER_EPOCH * STEPS_PER_EPOCH
    report = reports[0]
    first, rest = split(report, "k")
    yield from ends_early(kill, first, "k")
    yield from resume_findings(run, [first], "k", kill, saved, done)
    took = len(rest.of("optimizer_step"))
    if took:
        found = f"called again after all {EPOCHS} epochs, run took {counted(took, 'step')}"
        rule = "a finished run has nothing left to train"
        yield Finding("keeps-training", found, rule, "at what the last save says")
    if report.has_answer:
        finished = report.answer["finished"]
        begin = run.total - len(first.of("optimizer_step"))
        call = "the call after a kill"
        yield from metric_findings(finished[0], whole, begin=begin, call=call)
        if finished[1] != []:
            found = f"called again after all {EPOCHS} epochs, run returned "
            found += str(finished[1])[:160]
            rule = "a finished run has nothing left to train and returns []"
            yield Finding("finished-returns", found, rule, "at what run returns")
    run = the_run(earlier, "short")
    kills, resumed_after = dict[str, str](), dict[str, int]()
    for folder, where, part, steps in whole.answer["moments"]:
        kills[folder] = f"a run with epochs={SHORT} was killed {where}, with step {steps} done"
        saved = run.total if part == "end" else complete_before(steps)
        yield from moment_findings(run, report, folder, kills[folder], saved, steps)
        start = start_in(report, folder)
        if start and start.steps:
            resumed_after[folder] = run.position(0, start.steps[0].before) or 0
    for torn, folder, where, _, steps in report.answer["again"] if report.has_answer else ():
        if torn not in resumed_after:
            continue  # it took no step, so it wrote no save
        # What it resumed from was complete, and another kill must not cost it.
        begin = resumed_after[torn]
        kill = f"{kills[torn]}; the next call resumed after step {begin} and was killed {where}"
        saved = max(begin, complete_before(begin + steps))
        yield from moment_findings(run, report, folder, kill, saved, begin + steps)


def moment_findings(
    run: UninterruptedRun, report: RankReport, folder: str, kill: str, saved: int, done: int
) -> Iterator[Finding]:
    """What is wrong with the start from a moment of the short run."""
    start = start_in(report, folder)
    if start and start.end and not start.steps and done == run.total:
        return  # the last save was complete
    yield from ends_early(kill, report, folder)
    yield from resume_findings(run, [report], folder, kill, saved, done)


def split(report: RankReport, folder: str) -> tuple[RankReport, RankReport]:
    """What a report says of the first start in a folder, and of the second."""
    starts = [
        number
        for number, event in enumerate(report.events)
        if event["kind"] == "start" and event["folder"] == folder
    ]
    if len(starts) < 2:
        return report, replace(report, events=[])
    later = [n for n, e in enumerate(report.events) if e["kind"] == "start" and n > starts[1]]
    end = later[0] if later else None
    return (
        replace(report, events=report.events[: starts[1]]),
        replace(report, events=report.events[starts[1] : end]),
    )


def scenarios(seed: int) -> list[Scenario]:
    """A whole run, two real kills, and restarts from moments of the whole run."""
    plan = plan_of(seed)

    def job(name: str, body: Any, judge: Any, **rest: Any) -> Scenario:
        return Scenario(
            name=name,
            body=partial(body, plan),
            judge=only_first(partial(judge, plan)),
            world_size=1,
            **{"deadline_s": 6, **rest},
        )

    def kill(count: int) -> Fault:
        return Fault(rank=0, at="optimizer_step", count=count)

    return [
        job(WHOLE, whole_run, judge_whole_run, deadline_s=12),
        job(KILLED, killed_run, judge_fresh, fault=kill(plan.killed_in)),
        job(
            AGAIN,
            killed_run,
            judge_resumed,
            fault=kill(plan.killed_again_in),
            judges_failures=True,
        ),
        # Many runs, one after another: a save of several files has many moments.
        job("the next runs", next_runs, judge_next, judges_failures=True, deadline_s=20),
    ]
