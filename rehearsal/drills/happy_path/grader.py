"""Every sample once an epoch, honest metrics, the same run again, on from the last epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.coverage import miscounted
from rehearsal.kit.judge.findings import nothing_to_judge, only_first, some
from rehearsal.kit.judge.lineage import resume_findings
from rehearsal.kit.judge.recorded_run import UninterruptedRun, start_in
from rehearsal.kit.observe.restart import run_folder
from .watch import watched_steps
from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault
from rehearsal.grading.verdict import Finding

CODES = {
    "accepts-nonsense": "the config takes a size of zero",
    "data-changes": "the dataset is another one at the next call, or has another length",
    "unknown-samples": "what the model is given is not in the dataset",
    "other-steps": "an epoch has another number of optimizer steps than batches",
    "trained-twice": "a sample is trained more than once per epoch, also over a kill",
    "never-trained": "a sample is left out of an epoch, also over a kill",
    "same-order": "all epochs have one order",
    "stale-gradient": "a step follows another gradient than that of its samples",
    "no-metrics": "run does not return a list of one dict per epoch trained",
    "mean-of-means": "the epoch's loss counts a sample of the small batch more",
    "other-loss": "the epoch's loss is not the mean over its samples",
    "does-not-learn": "the loss does not fall",
    "not-repeatable": "the same config gives another run",
    "seed-ignored": "another seed gives the same run",
    "cannot-resume": "the next run after a kill ends with an exception",
    "started-over": "the next run begins with the first epoch",
    "lost-work": "the next run goes on before the last complete epoch",
    "from-the-future": "the next run has weights that its folder never saw",
    "weights-not-restored": "the next run goes on with other weights",
    "other-samples": "the next run deals the epoch in other batches",
    "lr-jumps": "the next run has another learning rate",
    "other-noise": "the next run draws other random numbers in the model",
    "other-update": "the next run's steps end elsewhere for want of the optimizer's state",
    "stopped-short": "the next run ends early",
    "trains-on": "the next run trains more than the config says, or trains a finished run",
}
# Batches of 8, 8 and 1 sample.
NUM_SAMPLES, BATCH_SIZE, EPOCHS, STEPS_PER_EPOCH = 17, 8, 4, 3


def run_once(context: RankContext, learner: SimpleNamespace, folder: str, seed: int = 5) -> Any:
    """One call of ``run``, in a process whose random state nobody has set; its metrics."""
    import torch

    config = learner.TrainConfig(
        num_samples=NUM_SAMPLES,
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        lr=0.05,
        seed=seed,
        folder=run_folder(context, folder),
    )
    torch.seed()
    with watched_steps(context, folder, learner.make_dataset(config)):
        return learner.run(config)


def whole_run(context: RankContext, learner: SimpleNamespace) -> Any:
    """What the config refuses, the data twice, and three runs."""
    import random

    import torch

    sizes = {"num_samples": NUM_SAMPLES, "batch_size": BATCH_SIZE, "epochs": EPOCHS}
    accepted, data = [], []
    for name in sizes:
        try:
            learner.TrainConfig(**sizes | {name: 0}, lr=0.1, seed=1, folder=context.folder)
            accepted.append(name)
        except ValueError:
            pass
    config = learner.TrainConfig(**sizes, lr=0.1, seed=1, folder=context.folder)
    for _ in range(2):
        torch.seed()
        dataset = learner.make_dataset(config)
        data.append(
            [
                (torch.as_tensor(x).tolist(), int(y))
                for x, y in (dataset[i] for i in range(len(dataset)))
            ]
        )
    metrics = run_once(context, learner, "a")
    random.seed(1)
    run_once(context, learner, "b")
    run_once(context, learner, "c", seed=6)
    return {"accepted": accepted, "data": data, "metrics": metrics}


def killed_run(context: RankContext, learner: SimpleNamespace) -> Any:
    """A run that is killed in its second epoch."""
    return run_once(context, learner, "k")


def next_run(context: RankContext, learner: SimpleNamespace) -> Any:
    """The same run twice more: to its end, and when it is finished."""
    return [run_once(context, learner, "k"), run_once(context, learner, "k")]


# ---------------------------------------------------------------- in the kernel


Earlier = Mapping[str, Sequence[RankReport]]


def judge_whole_runs(reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """The findings of three whole runs; the first is told."""
    answer = reports[0].answer
    runs = [start_in(reports[0], folder) for folder in "abc"]
    first, again, other = [run.steps if run else [] for run in runs]
    if answer["accepted"]:
        found = f"TrainConfig takes {answer['accepted'][0]}=0"
        rule = (
            "an epoch without samples or steps would end at once and report success: ValueError"
        )
        yield Finding("accepts-nonsense", found, rule, "at where the config is made")
    one, two = answer["data"]
    if one != two or len(one) != NUM_SAMPLES:
        found = (
            f"two calls with num_samples={NUM_SAMPLES} give {len(one)} and {len(two)} samples"
        )
        found += (
            ""
            if one == two
            else f"; {sum(a != b for a, b in zip(one, two, strict=False))} differ"
        )
        rule = "the data are a function of the config, whatever was drawn before"
        yield Finding("data-changes", found, rule, "at what the dataset draws from")
        return
    yield from cover(first)
    orders = [[step.samples for step in epoch] for epoch in epochs_of(first)]
    if len(orders) > 1 and orders[0] == orders[1]:
        found = f"epochs 0 and 1 both begin with samples {some(orders[0][0])}"
        rule = "each epoch deals the samples into other batches"
        yield Finding("same-order", found, rule, "at what an epoch's order is made from")
    events = reports[0].of("before_step")[: len(first)]
    stale = [n for n, event in enumerate(events, 1) if not event["cosine"] > 0.999]
    if stale:
        cosine = events[stale[0] - 1]["cosine"]
        found = (
            f"in step {stale[0]}, the gradient has a cosine of {cosine:.2f} with that of the "
        )
        found += "cross entropy of the step's samples"
        rule = "a step follows the gradient of its own batch, and of nothing before it"
        yield Finding("stale-gradient", found, rule, "at the lines around the backward pass")
    yield from honest(reports[0], answer["metrics"])
    if [step.after for step in first] != [step.after for step in again]:
        found = "two runs with one config, in two folders, leave other weights"
        rule = "a run is a function of its config"
        yield Finding("not-repeatable", found, rule, "at all that draws random numbers")
    if [step.after for step in first] == [step.after for step in other]:
        found = "seed=5 and seed=6 give the same run"
        yield Finding("seed-ignored", found, "a run is a function of its config", "at seeding")


def epochs_of(steps: Sequence[Any]) -> list[Sequence[Any]]:
    """The steps of each epoch."""
    return [steps[i : i + STEPS_PER_EPOCH] for i in range(0, len(steps), STEPS_PER_EPOCH)]


def cover(steps: Sequence[Any]) -> Iterator[Finding]:
    """Each sample once per epoch."""
    rule, look = (
        "one epoch trains each sample exactly once",
        "at how an epoch is cut into batches",
    )
    total = Counter(sample for step in steps for sample in step.samples)
    twice, never = miscounted(total.elements(), NUM_SAMPLES, EPOCHS)
    if -1 in total or not total:
        found = f"{total[-1] or 'all'} inputs of the model are not in make_dataset(config)"
        rule = "the model is given the dataset's inputs, as a batch"
        yield Finding("unknown-samples", found, rule, "at what is done to a batch")
    elif twice or never:
        found = f"in {EPOCHS} epochs of {NUM_SAMPLES} samples, {some(twice or never)} "
        found += f"{'more' if twice else 'less'} than {EPOCHS} times"
        yield Finding("trained-twice" if twice else "never-trained", found, rule, look)
    elif len(steps) != EPOCHS * STEPS_PER_EPOCH:
        found = (
            f"{len(steps)} optimizer steps; {EPOCHS} epochs have {STEPS_PER_EPOCH} batches each"
        )
        yield Finding("other-steps", found, "a step trains one batch", "at the optimizer step")
    else:
        for number, epoch in enumerate(epochs_of(steps)):
            counts = Counter(sample for step in epoch for sample in step.samples)
            if len(counts) != NUM_SAMPLES:
                found = f"epoch {number} trains sample {counts.most_common(1)[0][0]} twice"
                yield Finding("trained-twice", found, rule, look)
                return


def honest(report: RankReport, metrics: Any) -> Iterator[Finding]:
    """The losses that were told, beside those of the samples as they were trained."""
    losses, batches = list[float](), list[list[float]]()
    for event in report.events:
        if event["kind"] == "end":
            break
        batches += [event["losses"]] if event["kind"] == "forward" else []
    try:
        told = [(int(entry["epoch"]), float(entry["loss"])) for entry in metrics]
    except (TypeError, KeyError, ValueError):
        told = []
    if [epoch for epoch, _ in told] != list(range(EPOCHS)):
        found = f"run returned {str(metrics)[:120]}"
        rule = f"{EPOCHS} epochs are told as {EPOCHS} dicts with epoch, from 0, and loss"
        yield Finding("no-metrics", found, rule, "at what run returns")
        return
    look = "at what is added up over the batches, and what that is divided by"
    for number, epoch in enumerate(epochs_of(batches)):
        flat = [loss for batch in epoch for loss in batch]
        losses.append(sum(flat) / len(flat))
        means = sum(sum(batch) / len(batch) for batch in epoch) / len(epoch)
        if abs(told[number][1] - losses[-1]) < 1e-4 * max(1, losses[-1]):
            continue
        is_mean = abs(told[number][1] - means) < 1e-4 * max(1, means)
        found = (
            f"epoch {number}: told {told[number][1]:.4f}, its samples' mean {losses[-1]:.4f}"
        )
        found += "; the mean of its batches' means is what was told" if is_mean else ""
        rule = (
            "an epoch's loss is the mean over its samples, each as it was when it was trained"
        )
        yield Finding("mean-of-means" if is_mean else "other-loss", found, rule, look)
        return
    if not losses[-1] < losses[0]:
        found = f"the loss goes from {losses[0]:.3f} to {losses[-1]:.3f} in {EPOCHS} epochs"
        rule = "toy data have something to learn, and a training loop learns it"
        yield Finding("does-not-learn", found, rule, "at the classes, and at the step")


def judge_next(reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """On from the last complete epoch, to the weights of the whole run; then nothing more."""
    starts = [start_in(report, "a") for report in earlier["a whole run"]]
    run = UninterruptedRun([start.steps for start in starts if start], STEPS_PER_EPOCH)
    done = len(earlier["killed in its second epoch"][0].of("optimizer_step"))
    kill = f"killed in epoch 1, after step {done}"
    ended = [i for i, event in enumerate(reports[0].events) if event["kind"] == "end"]
    report, rest = reports[0], list[Mapping[str, Any]]()
    if ended:
        rest = [e for e in report.events[ended[0] :] if e["kind"] == "optimizer_step"]
        report = replace(report, events=report.events[: ended[0] + 1])
    if ended and not report.of("optimizer_step"):
        found = f"{kill}, the next run took no step; the whole run has {run.total}"
        rule = "the starts of a run together take the steps of the plan"
        yield Finding("stopped-short", found, rule, "at what a run does that finds a save")
    yield from resume_findings(run, [report], "k", kill, STEPS_PER_EPOCH, done)
    if rest or (report.has_answer and report.answer[1]):
        found = f"run, called again when all {EPOCHS} epochs were done, took {len(rest)} steps "
        found += f"and told {len(report.answer[1]) if report.has_answer else 0} epochs"
        rule = "a finished run has nothing left to train"
        yield Finding("trains-on", found, rule, "at what the last save says")


SCENARIOS = [
    Scenario(
        name="a whole run",
        body=whole_run,
        judge=only_first(judge_whole_runs),
        world_size=1,
        deadline_s=6,
    ),
    Scenario(
        name="killed in its second epoch",
        body=killed_run,
        judge=nothing_to_judge,
        world_size=1,
        deadline_s=6,
        fault=Fault(rank=0, at="optimizer_step", count=STEPS_PER_EPOCH + 2),
    ),
    Scenario(
        name="the next run",
        body=next_run,
        judge=only_first(judge_next),
        world_size=1,
        deadline_s=6,
        judges_failures=True,
    ),
]
