"""Each sample once per epoch, correct metrics, a repeatable run, resume after a kill."""

from __future__ import annotations

import math
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
from rehearsal.grading.verdict import Finding, counted

CODES = {
    "accepts-nonsense": "the config accepts a size of zero",
    "refuses-a-good-value": "the config refuses a size of one",
    "data-changes": "a second call of make_dataset returns different data, or the data's shape "
    "is wrong",
    "unknown-samples": "the model is given inputs that are not in the dataset",
    "wrong-steps": "an epoch does not have one optimizer step per batch",
    "trained-twice": "a sample is trained more than once per epoch, with or without a kill",
    "never-trained": "a sample is left out of an epoch, with or without a kill",
    "same-order": "two epochs use the same order",
    "stale-gradient": "a step does not follow the gradient of its own samples",
    "no-metrics": "run does not return a list with one dict per epoch trained",
    "mean-of-means": "the epoch's loss is a mean of batch means: a small batch counts too much",
    "wrong-loss": "the epoch's loss is not the mean over its samples",
    "does-not-learn": "the loss does not fall",
    "not-repeatable": "two runs of one config end with different weights",
    "seed-ignored": "two seeds give the same run",
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
    "keeps-training": "a run trains more epochs than planned, or trains when it is finished",
}
# Batches of 8, 8 and 1 sample.
NUM_SAMPLES, BATCH_SIZE, EPOCHS, STEPS_PER_EPOCH = 17, 8, 4, 3


def run_once(context: RankContext, learner: SimpleNamespace, folder: str, seed: int = 5) -> Any:
    """One call of ``run``, starting from an arbitrary random state; returns its metrics."""
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
    """Configs that must be refused, the data twice, and three runs."""
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
    refused = ""
    try:
        learner.TrainConfig(**dict.fromkeys(sizes, 1), lr=0.1, seed=1, folder=context.folder)
    except ValueError as error:
        refused = f"{type(error).__name__}: {error}"
    config = learner.TrainConfig(**sizes, lr=0.1, seed=1, folder=context.folder)
    for _ in range(2):
        torch.seed()
        dataset = learner.make_dataset(config)
        item = dataset[0]
        try:
            _, _ = item
        except (TypeError, ValueError):
            return {"accepted": accepted, "refused": refused, "item": repr(item)[:120]}
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
    return {"accepted": accepted, "refused": refused, "data": data, "metrics": metrics}


def killed_run(context: RankContext, learner: SimpleNamespace) -> Any:
    """A run that is killed in its second epoch."""
    return run_once(context, learner, "k")


def next_run(context: RankContext, learner: SimpleNamespace) -> Any:
    """The killed run, called again until it is done, and once more after that."""
    return [run_once(context, learner, "k"), run_once(context, learner, "k")]


# ---------------------------------------------------------------- in the kernel


Earlier = Mapping[str, Sequence[RankReport]]


def judge_whole_runs(reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """The config, the data, and three runs without a kill."""
    answer = reports[0].answer
    runs = [start_in(reports[0], folder) for folder in "abc"]
    first, again, other = [run.steps if run else [] for run in runs]
    if answer["accepted"]:
        found = f"TrainConfig accepts {answer['accepted'][0]}=0 and should raise ValueError"
        rule = "a run with nothing to train would end at once and report success"
        yield Finding("accepts-nonsense", found, rule, "at the constructor's checks")
    if answer["refused"]:
        found = "TrainConfig with num_samples, batch_size and epochs of 1 raised "
        rule = "TrainConfig raises if one of them is below 1"
        found += answer["refused"][:160]
        yield Finding("refuses-a-good-value", found, rule, "at the constructor's checks")
    if "item" in answer:
        found = f"make_dataset(config)[0] is {answer['item']}"
        rule = "a sample is a pair of a float tensor and a class"
        yield Finding("data-changes", found, rule, "at what an index returns")
        return
    one, two = answer["data"]
    if one != two or len(one) != NUM_SAMPLES:
        found = f"two calls of make_dataset with num_samples={NUM_SAMPLES} return {len(one)} "
        found += f"and {len(two)} samples"
        if one != two and len(one) == len(two) == NUM_SAMPLES:
            differ = sum(a != b for a, b in zip(one, two, strict=True))
            found = "two calls of make_dataset with the same config return different data: "
            found += f"{differ} of {NUM_SAMPLES} samples differ"
        rule = "make_dataset returns num_samples pairs, and they depend on the config only"
        look = "at how many there are, and at which random generator the data uses"
        yield Finding("data-changes", found, rule, look)
        return
    yield from cover(first, len(reports[0].of("forward")))
    orders = [[step.samples for step in epoch] for epoch in epochs_of(first)]
    if len(orders) > 1 and orders[0] == orders[1]:
        found = "epochs 0 and 1 have the same batches; both begin with samples "
        found += some(orders[0][0])
        rule = "each epoch shuffles the samples into a different order"
        yield Finding("same-order", found, rule, "at what an epoch's order is made from")
    for number, event in enumerate(reports[0].of("forward"), 1):
        if not all(map(math.isfinite, event["losses"])):
            found = f"in batch {number} of the run, the loss of a sample is NaN or infinite"
            rule = "the labels can be learned from the inputs, and training lowers the loss"
            look = "at what the model does with its inputs, and at the optimizer"
            yield Finding("does-not-learn", found, rule, look)
            return
    events = reports[0].of("before_step")[: len(first)]
    stale = [n for n, event in enumerate(events, 1) if not event["cosine"] > 0.999]
    if stale:
        cosine = events[stale[0] - 1]["cosine"]
        found = f"in step {stale[0]}, the cosine between the optimizer's gradient and the "
        found += f"cross-entropy gradient of the step's own samples is {cosine:.2f}, not 1"
        rule = "a step follows the gradient of its own batch and of nothing before it"
        yield Finding("stale-gradient", found, rule, "at the lines around the backward pass")
    yield from honest(reports[0], answer["metrics"])
    if [step.after for step in first] != [step.after for step in again]:
        found = "two runs of the same config, in two folders, "
        look = "at everything that draws random numbers"
        if len(first) == len(again):
            pairs = enumerate(zip(first, again, strict=True), 1)
            differ = next(n for n, (a, b) in pairs if a.after != b.after)
            found += f"have different weights after step {differ}"
        else:
            found += f"took {len(first)} and {len(again)} optimizer steps"
            look = "at everything that a run reads, besides its config and its own folder"
        rule = "a run is a function of its config"
        yield Finding("not-repeatable", found, rule, look)
    if [step.after for step in first] == [step.after for step in other]:
        found = "seed=5 and seed=6 give exactly the same run"
        rule = "a different seed gives a different run"
        yield Finding("seed-ignored", found, rule, "at where the seed is used")


def epochs_of(steps: Sequence[Any]) -> list[Sequence[Any]]:
    """The steps of each epoch."""
    return [steps[i : i + STEPS_PER_EPOCH] for i in range(0, len(steps), STEPS_PER_EPOCH)]


def cover(steps: Sequence[Any], passes: int) -> Iterator[Finding]:
    """Each sample once per epoch; ``passes`` counts the batches that were backpropagated."""
    rule, look = (
        "an epoch trains each sample exactly once",
        "at how an epoch is split into batches",
    )
    total = Counter(sample for step in steps for sample in step.samples)
    twice, never = miscounted(total.elements(), NUM_SAMPLES, EPOCHS)
    if not steps:
        found = f"the run took no optimizer step, but has {EPOCHS} epochs of {STEPS_PER_EPOCH} "
        found += "batches"
        rule = "each batch gets one optimizer step"
        look = "at where the optimizer steps" if passes else "at the bounds of the loops"
        yield Finding("wrong-steps", found, rule, look)
    elif -1 in total or not total:
        found = f"{total[-1]} of the model's inputs are not in make_dataset(config)"
        found = found if total else "no optimizer step of the run trained on any input"
        rule = "the model is given the dataset's own inputs, as a batch"
        look = "at what happens to a batch between the dataset and the optimizer's step"
        yield Finding("unknown-samples", found, rule, look)
    elif twice or never:
        found = f"in {EPOCHS} epochs of {NUM_SAMPLES} samples, these samples were trained "
        found += f"{'more' if twice else 'fewer'} than {EPOCHS} times: {some(twice or never)}"
        epochs, rest = divmod(len(steps), STEPS_PER_EPOCH)
        if epochs != EPOCHS and not rest:
            found += f". The run took {len(steps)} optimizer steps, enough for "
            found += counted(epochs, "epoch")
            look = "at where the loop over the epochs begins and ends"
        yield Finding("trained-twice" if twice else "never-trained", found, rule, look)
    elif len(steps) != EPOCHS * STEPS_PER_EPOCH:
        found = f"the run took {counted(len(steps), 'optimizer step')}, but has {EPOCHS} "
        found += f"epochs of {STEPS_PER_EPOCH} batches"
        rule = "each batch gets one optimizer step"
        yield Finding("wrong-steps", found, rule, "at where the optimizer steps")
    else:
        for number, epoch in enumerate(epochs_of(steps)):
            counts = Counter(sample for step in epoch for sample in step.samples)
            if len(counts) != NUM_SAMPLES:
                (sample, times), *_ = counts.most_common(1)
                found = f"epoch {number} trains {len(counts)} of {NUM_SAMPLES} samples; sample "
                found += f"{sample} is trained {counted(times, 'time')}"
                yield Finding("trained-twice", found, rule, look)
                return


def honest(report: RankReport, metrics: Any) -> Iterator[Finding]:
    """The reported losses, against those of the samples when they were trained."""
    losses, batches = list[float](), list[list[float]]()
    for event in report.events:
        if event["kind"] == "end":
            break
        batches += [event["losses"]] if event["kind"] == "forward" else []
    try:
        reported = [(int(entry["epoch"]), float(entry["loss"])) for entry in metrics]
    except (TypeError, KeyError, ValueError):
        reported = []
    if [epoch for epoch, _ in reported] != list(range(EPOCHS)):
        found = f"run returned {str(metrics)[:120]}"
        rule = f"{EPOCHS} epochs return {EPOCHS} dicts, each with epoch (from 0) and loss"
        yield Finding("no-metrics", found, rule, "at what run returns")
        return
    look = "at what you add up over the batches, and at what you divide it by"
    for number, epoch in enumerate(epochs_of(batches)):
        flat = [loss for batch in epoch for loss in batch]
        losses.append(sum(flat) / len(flat))
        means = sum(sum(batch) / len(batch) for batch in epoch) / len(epoch)
        if abs(reported[number][1] - losses[-1]) < 1e-4 * max(1, losses[-1]):
            continue
        is_mean = abs(reported[number][1] - means) < 1e-4 * max(1, means)
        found = f"run reported a loss of {reported[number][1]:.4f} for epoch {number}; the "
        found += f"mean over its samples is {losses[-1]:.4f}"
        found += ", and the mean of its batch means is what was reported" if is_mean else ""
        rule = "an epoch's loss is the mean over its samples, each taken when it was trained"
        yield Finding("mean-of-means" if is_mean else "wrong-loss", found, rule, look)
        return
    if not losses[-1] < losses[0]:
        found = f"the loss goes from {losses[0]:.3f} to {losses[-1]:.3f} in {EPOCHS} epochs"
        rule = "the labels can be learned from the inputs, and training lowers the loss"
        yield Finding("does-not-learn", found, rule, "at the labels, and at the optimizer")


def judge_next(reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """It resumes from the last complete epoch, ends like an uninterrupted run, and stops."""
    starts = [start_in(report, "a") for report in earlier["a whole run"]]
    run = UninterruptedRun([start.steps for start in starts if start], STEPS_PER_EPOCH)
    done = len(earlier["killed in its second epoch"][0].of("optimizer_step"))
    kill = f"the run was killed in epoch 1, after step {done}"
    ended = [i for i, event in enumerate(reports[0].events) if event["kind"] == "end"]
    report, rest = reports[0], list[Mapping[str, Any]]()
    if ended:
        rest = [e for e in report.events[ended[0] :] if e["kind"] == "optimizer_step"]
        report = replace(report, events=report.events[: ended[0] + 1])
    if ended and not report.of("optimizer_step"):
        found = f"{kill}; the next call took no step, and the plan has {run.total} steps"
        rule = "all starts of a run together take the planned steps"
        yield Finding("stopped-short", found, rule, "at what a run does when it finds a save")
    yield from resume_findings(run, [report], "k", kill, STEPS_PER_EPOCH, done)
    if rest or (report.has_answer and report.answer[1]):
        found = f"called again after all {EPOCHS} epochs, run took "
        found += counted(len(rest), "step")
        if report.has_answer:
            found += f" and returned {str(report.answer[1])[:120]}"
        rule = "a finished run has nothing left to train and returns []"
        yield Finding("keeps-training", found, rule, "at what the last save says")


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
