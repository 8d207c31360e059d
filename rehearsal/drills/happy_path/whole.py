"""One run without a kill: its steps, the order of its epochs, and what it returned."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.findings import some
from rehearsal.kit.judge.recorded_run import Step

from .plan import EPOCHS, STEPS_PER_EPOCH, Plan

WHOLE_FOLDER = "a"
# What autograd calls the operations that bound their outputs.
ACTIVATIONS = [
    f"{name}Backward0"
    for name in ("Relu", "Gelu", "Silu", "Softplus", "Elu", "Sigmoid", "Softmax", "Tanh")
]
LEARNS = "the labels can be learned from the inputs, and training lowers the loss"


def run_findings(plan: Plan, report: RankReport, steps: Sequence[Step]) -> Iterator[Finding]:
    """What is wrong with the first run of a report; the cause comes first."""
    passes = passes_of(report)
    yield from logits(report, passes)
    yield from cover(plan, steps, len(passes), report.answer["first_equals"])
    if len(passes) == plan.total:
        yield from orders(passes, report.answer["first_equals"])
    for number, each in enumerate(passes, 1):
        if not all(map(math.isfinite, each["losses"])):
            found = f"in batch {number} of the run, the loss of a sample is NaN or infinite"
            look = "at what the model does with its inputs, and at the optimizer"
            yield Finding("does-not-learn", found, LEARNS, look)
            return
    yield from gradients(report, passes)


def passes_of(report: RankReport, folder: str = WHOLE_FOLDER) -> list[Mapping[str, Any]]:
    """The forward passes of a run that something backpropagates through."""
    events = events_of(report, folder)
    return [event for event in events if event["kind"] == "forward"]


def events_of(report: RankReport, folder: str) -> list[Mapping[str, Any]]:
    """What was recorded during the first call of run with a folder."""
    kinds = [(event["kind"], event.get("folder")) for event in report.events]
    begin, end = kinds.index(("start", folder)), kinds.index(("end", folder))
    return list(report.events[begin:end])


def logits(report: RankReport, passes: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """A finding if the model's outputs are no logits."""
    rule, look = (
        "make_model maps a batch (B, ...) to logits (B, C)",
        "at the model's last layer",
    )
    for event in report.of("no_logits"):
        found = f"the model returned a tensor of shape {tuple(event['shape'])}, which does not "
        found += "have one number for each sample and class"
        yield Finding("not-logits", found, rule, look)
        return
    if passes and all(each["low"] >= 0 and each["high"] <= 1 for each in passes):
        found = f"in all {len(passes)} batches of the run, every output of the model lies "
        found += "between 0 and 1"
        rule += ", which cross-entropy turns into probabilities itself"
        yield Finding("not-logits", found, rule, look)
    elif passes and passes[0]["last"] in ACTIVATIONS:
        found = "the last operation on the model's outputs is the activation "
        found += f"{passes[0]['last'].removesuffix('Backward0')}; no output is below "
        found += f"{min(each['low'] for each in passes):.3g}"
        rule += ", and a logit may be any number"
        yield Finding("not-logits", found, rule, look)


def epochs_of(steps: Sequence[Any]) -> list[Sequence[Any]]:
    """The steps of each epoch."""
    return [steps[i : i + STEPS_PER_EPOCH] for i in range(0, len(steps), STEPS_PER_EPOCH)]


def cover(
    plan: Plan, steps: Sequence[Step], num_passes: int, first_equals: Sequence[int]
) -> Iterator[Finding]:
    """Each sample once per epoch, in full batches.

    Args:
        num_passes: how many were backpropagated.
        first_equals: for each sample the first one with the same input, which stands for all.
    """
    rule, look = (
        "an epoch trains each sample exactly once",
        "at how an epoch is split into batches",
    )
    total = Counter(sample for step in steps for sample in step.samples)
    once = Counter(first_equals)
    twice = [sample for sample in sorted(once) if total[sample] > EPOCHS * once[sample]]
    never = [sample for sample in sorted(once) if total[sample] < EPOCHS * once[sample]]
    if not steps:
        found = f"the run took no optimizer step, but has {EPOCHS} epochs of {STEPS_PER_EPOCH} "
        found += "batches"
        rule = "each batch gets one step of a torch.optim optimizer"
        look = "at where the optimizer steps" if num_passes else "at the bounds of the loops"
        yield Finding("wrong-steps", found, rule, look)
    elif -1 in total or not total:
        found = f"{total[-1]} of the model's inputs are not in make_dataset(config)"
        found = found if total else "no optimizer step of the run trained on any input"
        rule = "the model is given the dataset's own inputs, as a batch"
        look = "at what happens to a batch between the dataset and the optimizer's step"
        yield Finding("unknown-samples", found, rule, look)
    elif twice or never:
        found = f"in {EPOCHS} epochs of {plan.num_samples} samples, these samples were trained "
        found += f"{'more' if twice else 'fewer'} than {EPOCHS} times: {some(twice or never)}"
        epochs, rest = divmod(len(steps), STEPS_PER_EPOCH)
        if epochs != EPOCHS and not rest:
            found += f". The run took {len(steps)} optimizer steps, enough for "
            found += counted(epochs, "epoch")
            look = "at where the loop over the epochs begins and ends"
        yield Finding("trained-twice" if twice else "never-trained", found, rule, look)
    elif len(steps) != plan.total:
        found = f"the run took {counted(len(steps), 'optimizer step')}, but has {EPOCHS} "
        found += f"epochs of {STEPS_PER_EPOCH} batches"
        rule = "each batch gets one optimizer step"
        yield Finding("wrong-steps", found, rule, "at where the optimizer steps")
    else:
        for number, epoch in enumerate(epochs_of(steps)):
            counts = Counter(sample for step in epoch for sample in step.samples)
            sizes = [len(step.samples) for step in epoch]
            if counts != once:
                sample = max(counts, key=lambda sample: counts[sample] - once[sample])
                found = (
                    f"epoch {number} does not train each of {plan.num_samples} samples once: "
                )
                found += f"sample {sample} is trained {counted(counts[sample], 'time')}"
                if once[sample] > 1:
                    found += f", and {once[sample]} samples have its input"
                yield Finding("trained-twice", found, rule, look)
                return
            if sizes != plan.sizes:
                found = f"epoch {number} has batches of {some(sizes)} samples, with "
                found += f"num_samples={plan.num_samples} and batch_size={plan.batch_size}"
                rule = "a batch has batch_size samples; an epoch's last batch has what is left"
                yield Finding("wrong-batches", found, rule, look)
                return


def orders(
    passes: Sequence[Mapping[str, Any]], first_equals: Sequence[int], where: str = ""
) -> Iterator[Finding]:
    """A finding if two epochs have the same order.

    Where samples have equal inputs, two orders may look the same by chance, but not half do.
    """
    orders = [
        tuple(sample for each in epoch for sample in each["samples"])
        for epoch in epochs_of(passes)
    ]
    is_distinct = len(set(first_equals)) == len(first_equals)
    if len(set(orders)) > (len(orders) - 1 if is_distinct else (len(orders) - 1) // 2):
        return
    order = next(order for order in orders if orders.count(order) > 1)
    first, second = [number for number, other in enumerate(orders) if other == order][:2]
    found = f"{where}epochs {first} and {second} have the same order; both begin with samples "
    found += some(order)
    rule = "each epoch shuffles the samples into a different order"
    yield Finding("same-order", found, rule, "at what an epoch's order is made from")


def gradients(report: RankReport, passes: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """A finding if a step follows another direction than its own cross-entropy's."""
    events = events_of(report, WHOLE_FOLDER)
    before = [event for event in events if event["kind"] == "before_step"]
    for number, event in enumerate(before, 1):
        losses = passes[number - 1]["losses"] if number <= len(passes) else [1.0]
        if max(losses) < 1e-3:
            continue  # once a batch is learned, rounding turns what little gradient is left
        if not event["cosine"] > 0.99999:
            found = f"in step {number}, the cosine between the optimizer's gradient and the "
            found += "cross-entropy gradient of the step's own samples is "
            found += f"{event['cosine']:.4f}, not 1"
            rule = "a step follows the cross-entropy of its own batch, and nothing else"
            look = "at the lines around the backward pass, and at what the loss adds up"
            yield Finding("stale-gradient", found, rule, look)
            return


def epoch_losses(report: RankReport) -> tuple[list[float], list[float]]:
    """Each epoch's mean loss over its samples, and its mean over its batches' means."""
    means, of_means = list[float](), list[float]()
    for epoch in epochs_of([each["losses"] for each in passes_of(report)]):
        flat = [loss for batch in epoch for loss in batch]
        means.append(sum(flat) / len(flat))
        of_means.append(sum(sum(batch) / len(batch) for batch in epoch) / len(epoch))
    return means, of_means


def metric_findings(
    returned: Any, report: RankReport, *, begin: int = 0, call: str = "run"
) -> Iterator[Finding]:
    """The returned losses, against those of the samples when the run without a kill had them.

    Args:
        begin: the step after which the call began.
        call: what returned them.
    """
    try:
        reported = [(int(entry["epoch"]), float(entry["loss"])) for entry in returned]
    except (TypeError, KeyError, ValueError):
        reported = [(-1, 0.0)]
    wanted = range(begin // STEPS_PER_EPOCH, EPOCHS)
    if not isinstance(returned, list) or [epoch for epoch, _ in reported] != list(wanted):
        found = f"{call} returned {str(returned)[:160]}"
        rule = f"the call trained epochs {wanted[0]} to {wanted[-1]}, so it returns a list of "
        rule += f"{counted(len(wanted), 'dict')}, each with its epoch and loss"
        yield Finding("no-metrics", found, rule, "at what run returns")
        return
    means, of_means = epoch_losses(report)
    look = "at what you add up over the batches, and at what you divide it by"
    # Another call has trained some of the first epoch: its loss may cover this call's share.
    skipped = 1 if begin % STEPS_PER_EPOCH else 0
    for epoch, loss in reported[skipped:]:
        if is_near(loss, means[epoch]):
            continue
        is_mean = is_near(loss, of_means[epoch])
        found = f"{call} reported a loss of {loss:.5g} for epoch {epoch}; the mean over its "
        found += f"samples is {means[epoch]:.5g}"
        found += ", and the mean of its batch means is what was reported" if is_mean else ""
        rule = "an epoch's loss is the mean over its samples, each taken when it was trained"
        yield Finding("mean-of-means" if is_mean else "wrong-loss", found, rule, look)
        return
    # Another order of the same sum is no progress.
    if not begin and not means[-1] < means[0] * (1 - 1e-5):
        found = f"the loss goes from {means[0]:.3f} to {means[-1]:.3f} in {EPOCHS} epochs"
        yield Finding("does-not-learn", found, LEARNS, "at the labels, and at the optimizer")


def graph_findings(report: RankReport) -> Iterator[Finding]:
    """A finding if a loss that was returned can still be backpropagated through."""
    if any(event["folder"] == WHOLE_FOLDER for event in report.of("kept_graph")):
        found = "run returned a loss that is a tensor with requires_grad=True"
        rule = "a returned loss is detached: otherwise each batch's graph, with its "
        rule += "activations, stays in memory"
        yield Finding("keeps-graph", found, rule, "at what you add up over the batches")


def is_near(ours: float, theirs: float) -> bool:
    """Whether two losses are equal but for the rounding of sums in float32."""
    return math.isclose(ours, theirs, rel_tol=1e-4, abs_tol=1e-6)
