"""What is wrong with a job, as findings: a pure function of what its ranks recorded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, counted, shortened
from rehearsal.kit.judge.coverage import how_often, miscounted, samples_by_step, trained_by_step
from rehearsal.kit.judge.findings import first_of, some
from rehearsal.kit.judge.one_writer import written_by
from rehearsal.kit.judge.weights import largest_difference, ranks_differ, weights_of_ranks

from .codes import TABLE
from .plan import EARLIER, OTHER_SEED, TWO_NODES, Plan
from .replay import Epoch, replay

Earlier = Mapping[str, Sequence[RankReport]]
NUMBER = r"(-?\d+\.?\d*(?:e-?\d+)?|nan|inf)"
LINE = re.compile(rf"epoch\D{{0,5}}(\d+)(?:.*?loss\D{{0,5}}?{NUMBER})?", re.IGNORECASE)


def judge(plan: Plan, reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """The first part that has findings explains the rest."""
    identity = list(identity_findings(plan, reports))
    if identity:  # then nothing was trained
        yield from identity
        return
    if plan.error:
        yield from judge_error(plan, reports, earlier)
        return
    yield from first_of(
        device_findings(plan, reports),
        wrapper_findings(plan, reports),
        step_findings(plan, reports),
        epoch_findings(plan, reports),
        order_findings(plan, reports, earlier),
        ranks_differ(
            weights_of_ranks(reports),
            "at the object whose forward pass you call, and at what changes weights after that",
        ),
        writer_findings(plan, reports),  # before the checkpoint, which two writers may tear
        result_findings(plan, reports),
        group_findings(plan, reports),
        early_findings(reports),
    )


def judge_error(
    plan: Plan, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """One rank's forward pass raised, and so its peers' collectives failed."""
    yield from first_of(
        raise_findings(plan, reports),
        log_findings(plan, reports),
        group_findings(plan, reports),
        repeat_findings(plan, reports, earlier),
        writer_findings(plan, reports),
        result_findings(plan, reports),
    )


def on(plan: Plan) -> str:
    """Where a job ran, as the beginning of a sentence."""
    if plan.world_size == 1:
        return "in a single process without a launcher"
    nodes = "both on one node" if plan.world_size == 2 else "two of them on the first node"
    return f"on {plan.world_size} ranks, {nodes}"


# ---------------------------------------------------------------- identity and device


def identity_findings(plan: Plan, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """Rank, local rank and world size, as three ints."""
    for report in reports:
        expected = [report.rank, plan.local_rank(report.rank), plan.world_size]
        returned = report.answer["identity"]
        if returned != expected or any(type(value) is not int for value in returned):
            what = "not a tuple" if returned is None else str(tuple(returned))
            found = f"{on(plan)}, identity() returned {what}; the launcher says rank "
            found += f"{expected[0]}, local rank {expected[1]}, world size {expected[2]}"
            if plan.world_size == 1:
                found = f"{on(plan)}, identity() returned {what}, not (0, 0, 1)"
            yield TABLE("wrong-identity", found)
            return


def device_findings(plan: Plan, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """The model, the inputs and the targets are on the rank's device."""
    for report in reports:
        wanted = plan.device(report.rank)
        who = f"{on(plan)}, rank {report.rank} (local rank {plan.local_rank(report.rank)}) saw "
        who += f"{counted(len(plan.devices), 'device')}: "
        who += ", ".join(f"cpu:{index}" for index in plan.devices)
        for event in report.of("forward"):
            if event["model_on"] not in ([wanted], []):
                where = " and ".join(event["model_on"])
                found = f"{who}. Its model was on {where} and not on {wanted}"
                yield TABLE("wrong-device", found)
                return
            if event["batch_on"] not in (wanted, None):
                found = f"{who}. A batch was on {event['batch_on']} and not on {wanted}"
                yield TABLE("wrong-device", found)
                return
        for event in report.of("mixed"):
            places = " and ".join(event["places"])
            found = f"{who}. {event['operation']} had tensors on {places}: GPUs would raise"
            yield TABLE("wrong-device", found, "at the targets, and at what else is compared")
            return


def wrapper_findings(plan: Plan, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """On several ranks, DDP gets the model once it is on its device."""
    for report in reports if plan.world_size > 1 else ():
        wrapped = report.of("wrapped")
        if not wrapped:
            yield TABLE("not-wrapped", f"{on(plan)}, rank {report.rank} trained without DDP")
            return
        wanted = plan.device(report.rank)
        if wrapped[0]["model_on"] not in ([wanted], []):
            found = f"{on(plan)}, rank {report.rank} wrapped a model on "
            found += f"{' and '.join(wrapped[0]['model_on'])}, and moved it to {wanted} later"
            yield TABLE("wrapped-too-early", found)
            return


# ---------------------------------------------------------------- samples


def step_findings(plan: Plan, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """Each rank trains its share of each epoch, in batches of batch_size."""
    for report in reports:
        steps = [len(step) for step in trained_by_step(report)]
        who = f"{on(plan)}, rank {report.rank} trained "
        if sum(steps) != plan.epochs * plan.share:
            found = (
                f"{who}{counted(sum(steps), 'sample')} in {counted(plan.epochs, 'epoch')} of "
            )
            found += f"{plan.num_samples} samples; its share is {plan.share} in each"
            yield TABLE("wrong-share", found)
            return
        if steps != plan.sizes * plan.epochs:
            found = f"{who}{some(steps, 9)} samples in its steps; with "
            found += f"batch_size={plan.batch_size}, an epoch has steps of {some(plan.sizes)}"
            yield TABLE("wrong-batches", found)
            return


def epochs_of(plan: Plan, reports: Sequence[RankReport]) -> list[list[list[int]]]:
    """The samples of each complete step over all ranks, by epoch."""
    steps = samples_by_step(reports)[: plan.num_steps]
    size = len(plan.sizes)
    return [steps[first : first + size] for first in range(0, len(steps), size)]


def epoch_findings(plan: Plan, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """Every epoch trains every sample, in an order of its own."""
    epochs = epochs_of(plan, reports)
    for number, steps in enumerate(epochs):
        missing = miscounted([s for step in steps for s in step], plan.num_samples).missing
        if missing:
            within = f"epoch {number}"
            times = how_often([], missing, plan.num_samples, 1, within=within)
            yield TABLE("never-trained", f"{on(plan)}, {times}")
            return
    for number, steps in enumerate(epochs):
        if steps in epochs[:number]:
            first = epochs.index(steps)
            found = f"{on(plan)}, epochs {first} and {number} trained the same samples in each "
            found += f"step; both began with {some(steps[0])}"
            yield TABLE("same-order", found)
            return


def order_findings(
    plan: Plan, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """Another seed gives another order."""
    if plan.name != OTHER_SEED:
        return
    steps, others = samples_by_step(reports), samples_by_step(earlier[TWO_NODES])
    if steps[: len(plan.sizes)] == others[: len(plan.sizes)]:
        found = f"{on(plan)}, runs with two different seeds trained the same samples in each "
        found += f"step of epoch 0; both began with {some(steps[0])}"
        yield TABLE("seed-ignored", found)


def repeat_findings(
    plan: Plan, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The same seed gives the same order, up to the error."""
    steps, others = samples_by_step(reports), samples_by_step(earlier[TWO_NODES])
    for number in range(plan.num_steps):
        if steps[number : number + 1] != others[number : number + 1]:
            trained = steps[number] if number < len(steps) else []
            found = (
                f"two runs with seed={plan.seed} on the same ranks differ in step {number}: "
            )
            found += f"one trained {some(others[number])}, the other {some(trained)}"
            yield TABLE("order-not-reproducible", found)
            return


# ---------------------------------------------------------------- what comes out


def result_findings(plan: Plan, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """The final weights, what rank 0 printed, and what it saved."""
    epochs = replay(plan, reports)
    yield from first_of(
        () if plan.error else weight_findings(plan, reports, epochs[-1]),
        print_findings(plan, reports, epochs),
        checkpoint_findings(plan, reports, epochs),
    )


def weight_findings(plan: Plan, reports: Sequence[RankReport], end: Epoch) -> Iterator[Finding]:
    """The weights that the mean gradients lead to."""
    difference, name = largest_difference(reports[0].answer["weights"], end.weights)
    if not difference <= 1e-4:
        found = f"{on(plan)}, the final weights differ by up to {difference:.2g}, in {name}, "
        found += "from those of SGD on the mean gradient of each step"
        yield TABLE("not-the-global-mean", found)


def print_findings(
    plan: Plan, reports: Sequence[RankReport], epochs: Sequence[Epoch]
) -> Iterator[Finding]:
    """Rank 0 prints a line for each epoch; nobody else does."""
    lines = [
        [found for line in report.output.splitlines() if (found := LINE.search(line))]
        for report in reports
    ]
    for report, own in zip(reports[1:], lines[1:], strict=True):
        if own:
            said = f"{on(plan)}, rank {report.rank} printed {own[0].string!r}"
            yield TABLE("progress-on-another-rank", shortened(said))
            return
    printed = [int(line[1]) for line in lines[0]]
    if printed != list(range(len(epochs))):
        said = f"{on(plan)}, rank 0 printed lines for epochs {some(printed) or '(none)'}; it "
        said += f"completed {counted(len(epochs), 'epoch')}, from 0"
        yield TABLE("wrong-progress", said)
        return
    for number, (line, epoch) in enumerate(zip(lines[0], epochs, strict=True)):
        if not abs(float(line[2] or "nan") - epoch.loss) <= 1e-4 + 1e-4 * epoch.loss:
            who = " that all ranks trained" if plan.world_size > 1 else ""
            said = f"{on(plan)}, rank 0 printed {line.string.strip()[:80]!r}; in epoch "
            said += f"{number}, the mean over the {counted(epoch.num_samples, 'sample')}{who} "
            yield TABLE("wrong-progress", f"{said}is {epoch.loss:.4f}")
            return


def checkpoint_findings(
    plan: Plan, reports: Sequence[RankReport], epochs: Sequence[Epoch]
) -> Iterator[Finding]:
    """model.pt has the weights after the last complete epoch."""
    kept, end = reports[0].answer["checkpoint"], epochs[-1]
    when = f"{on(plan)}, after epoch {len(epochs) - 1}"
    if plan.error:
        when += f", with rank {plan.fails_on} failing in the next"
    if "names" in kept:
        found = f"{when}, model.pt has {some(kept['names'])}; the model has inner.weight, ..."
        yield TABLE("names-of-the-wrapper", found)
    elif "problem" in kept:
        yield TABLE("wrong-checkpoint", shortened(f"{when}, {kept['problem']}"))
    else:
        difference, name = largest_difference(kept["weights"], end.weights)
        if not difference <= 1e-4:
            found = f"{when}, the weights in model.pt differ by up to {difference:.2g}, in "
            yield TABLE("wrong-checkpoint", f"{found}{name}, from those after that epoch")


def writer_findings(plan: Plan, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """Only rank 0 writes anything but its own log."""
    for report in reports[1:]:
        for event in report.of("file"):
            folder, _, name = (written_by(event) or "").partition("/")
            # A temporary file for its log has another ending.
            if folder == plan.folder and not name.startswith(f"rank-{report.rank}."):
                found = f"{on(plan)}, rank {report.rank} wrote {name}"
                yield TABLE("saved-by-another-rank", found)
                return


# ---------------------------------------------------------------- the end


def raise_findings(plan: Plan, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """The error leaves train on the rank where it happened, and its peers fail as well."""
    for report in sorted(reports, key=lambda report: report.rank != plan.fails_on):
        raised = report.answer["raised"]
        if report.rank == plan.fails_on and (raised is None or plan.error not in raised):
            what = f"raised {shortened(raised, 120)}" if raised else "returned"
            found = f"on rank {report.rank}, the model raised 'ValueError: {plan.error}', and "
            yield TABLE("error-swallowed", f"{found}train {what}")
            return
        if raised is None:
            found = f"rank {plan.fails_on} failed, and train returned on rank {report.rank}, "
            yield TABLE("error-swallowed", f"{found}whose next collective failed with it")
            return


def log_findings(plan: Plan, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """Each rank's own log has the error that left its train, after what was there before."""
    for report in sorted(reports, key=lambda report: report.rank != plan.fails_on):
        log, name = report.answer["log"], f"rank-{report.rank}.log"
        if not log.startswith(EARLIER):
            found = f"{name} had a line from an earlier attempt, and that line is gone"
            yield TABLE("error-not-logged", found, "at how the file is opened")
            return
        new = log.removeprefix(EARLIER)
        if report.answer["message"] not in new:
            what = f"its new text is {shortened(new, 120)!r}" if new else "it has no new line"
            found = f"train raised {shortened(report.answer['raised'], 120)!r} on rank "
            yield TABLE("error-not-logged", f"{found}{report.rank}; in {name}, {what}")
            return


def early_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """An error before the first step goes to the log as well, and leaves train."""
    early = reports[0].answer.get("early")
    if not early:
        return
    when = f"in a single process, moving the model raised '{early['error']}'"
    if early["error"] not in (early["raised"] or ""):
        what = f"raised {shortened(early['raised'], 120)}" if early["raised"] else "returned"
        yield TABLE("error-swallowed", f"{when}, and train {what}")
    elif early["error"] not in early["log"]:
        found = f"{when}, before the first step; rank-0.log doesn't have that"
        yield TABLE("error-not-logged", found, "at which lines of train are guarded")


def group_findings(plan: Plan, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """No rank is in a group after train."""
    for report in reports:
        if report.answer["is_initialized"]:
            how = "raised" if report.answer["raised"] else "returned"
            found = f"{on(plan)}, rank {report.rank} is still in the group after train {how}"
            yield TABLE("group-left-behind", found)
            return
