"""Which gradient did the weights follow, how often was it reduced, and did the host wait?

The check draws its steps from a seed (``plan``): how many samples each rank and micro-batch
has, rates, bounds, what is NaN, infinite or too large, and where.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, counted, named_ranks, shortened
from rehearsal.kit.judge.collectives import mismatched_collectives
from rehearsal.kit.judge.coverage import miscounted
from rehearsal.kit.judge.findings import only_first, some
from .findings import CODES as CODES
from .findings import FOUND
from .job import body
from .plan import Job, plan_of
from .updates import mean_norm, update_findings

FEW_NUMBERS = 24  # what a step may send besides the gradients: a flag, a count, a norm
LOSS_IS_INFINITE = 3e38


def findings(plan: Job, reports: Sequence[RankReport], _: object) -> Iterator[Finding]:
    """All findings; earlier ones explain later ones."""
    yield from sync_findings(plan, reports)
    if not all(report.has_answer for report in reports):
        return
    taken = len(reports[0].answer["steps"])
    plain = [at for at, step in enumerate(plan.steps[:taken]) if not step.scaled]
    for number in plain:
        yield from sample_findings(plan, reports, number)
        yield from forward_findings(plan, reports, number)
        yield from update_findings(plan, reports, number)
    if plan.world_size > 1:
        for number in plain:
            yield from traffic_findings(plan, reports, number)
    for number in plain:
        yield from record_findings(plan, reports, number)
    for number in plain:
        for report in reports:
            for place in report.answer["steps"][number]["waits"]:
                found = f"step {number + 1} waits for the device at {place}"
                yield FOUND("host-waits", found)
    for number in range(len(plain), taken):
        yield from scaler_findings(plan, reports, number)


# ---------------------------------------------------------------- collectives


def sync_findings(plan: Job, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """Which ranks issued which collectives in a step; also known of a job that hung."""
    issued = [[event["issued"] for event in report.of("step")] for report in reports]
    for number in range(max(map(len, issued))):
        step = plan.steps[number]
        known = {rank: own[number] for rank, own in enumerate(issued) if number < len(own)}
        counts = {rank: len(own) for rank, own in known.items()}
        if len(known) == len(reports) > 1 and not any(counts.values()):
            yield FOUND("no-sync", f"step {number + 1}: no rank issued a collective")
        if len(set(counts.values())) > 1:
            rank = min(counts, key=lambda r: counts[r])
            most = max(counts.values())
            other = max(counts, key=lambda r: counts[r])
            about = what_is_special(step, rank)
            look = "at branches that depend on this rank's samples or loss"
            if counts[rank]:  # it did sync, and another rank more often
                look = f"at which backward passes sync, and {look}"
            found = f"step {number + 1}{about}: rank {rank} issued "
            found += f"{counted(counts[rank], 'collective')}, rank {other} {most}"
            yield FOUND("left-the-step", found, look)
            return
    yield from mismatched_collectives(reports, "left-the-step")


def what_is_special(step: Any, rank: int) -> str:
    """ ", in which rank 1 has no samples"; empty if there is nothing to say."""
    if step.is_skipped:
        return f", in which rank {step.special[0]} has a gradient that is not finite"
    if not sum(step.sizes[rank]):
        return f", in which rank {rank} has no samples"
    return ""


def traffic_findings(
    plan: Job, reports: Sequence[RankReport], number: int
) -> Iterator[Finding]:
    """Whether the gradients, and little else, are reduced once."""
    size = sum(own for _, own, _ in reports[0].answer["tensors"])
    for report in reports:
        sent = report.of("step")[number]["issued"]
        moved = sum(elements for _, elements in sent)
        reduced = sum(elements for name, elements in sent if "reduce" in name)
        listed = some([f"{name} of {elements}" for name, elements in sent])
        where = f"step {number + 1}, rank {report.rank}: the gradients are {size} numbers, and "
        if moved > size + FEW_NUMBERS:
            yield FOUND("synced-too-often", f"{where}{moved} went into collectives: {listed}")
        elif reduced < size:
            yield FOUND("no-sync", f"{where}the collectives were {listed}")
        elif any("barrier" in name for name, _ in sent):
            found = f"step {number + 1}, rank {report.rank}: the collectives were {listed}"
            yield FOUND("host-waits", found, "at the barrier: the all-reduce waits by itself")


# ---------------------------------------------------------------- samples, types


def sample_findings(plan: Job, reports: Sequence[RankReport], number: int) -> Iterator[Finding]:
    """Whether the step's samples went through the model once each."""
    start = sum(step.num_samples for step in plan.steps[:number])
    size = plan.steps[number].num_samples
    seen = []
    for report in reports:
        kinds = [event["kind"] for event in report.events]
        ends = [at for at, kind in enumerate(kinds) if kind == "step"]
        begin = ends[number - 1] if number else 0
        for event in report.events[begin : ends[number]]:
            if event["kind"] == "forward":
                seen += [sample - start for sample in event["samples"]]
    extra, missing = miscounted(seen, size)
    wrong = extra or missing
    if wrong:
        how = "trained more than once" if extra else "not trained"
        was = "was" if len(wrong) == 1 else "were"
        found = f"on {counted(plan.world_size, 'rank')}, {len(wrong)} of the {size} samples of "
        found += f"step {number + 1} {was} {how}: {some([start + at for at in wrong])}"
        yield FOUND("trained-twice" if extra else "never-trained", found)


def forward_findings(
    plan: Job, reports: Sequence[RankReport], number: int
) -> Iterator[Finding]:
    """Whether the network computed in the configured type, and in training mode."""
    amp = plan.steps[number].amp
    wanted = "torch.bfloat16" if amp == "bf16" else "torch.float32"
    for report in reports:
        dtypes = report.answer["steps"][number]["dtypes"]
        if set(dtypes) - {wanted}:
            found = f"step {number + 1}, with amp={amp!r}: the logits are {', '.join(dtypes)}"
            yield FOUND("autocast", found)
        answer = report.answer["steps"][number]
        if answer["modes"] not in ([], [True]) or not answer["mode"]:
            yield FOUND("not-training", f"step {number + 1}: the model was in evaluation mode")


# ---------------------------------------------------------------- what is left


def record_findings(plan: Job, reports: Sequence[RankReport], number: int) -> Iterator[Finding]:
    """What the step left in unread and returned."""
    step = plan.steps[number]
    flag = float(step.is_skipped)
    for report in reports:
        answer = report.answer["steps"][number]
        where = f"step {number + 1}, rank {report.rank}: "
        samples, loss, length, skipped = [*answer["unread"], *[None] * 4][:4]
        if answer["entries"] != 1 or not answer["earlier_kept"]:
            found = f"{where}unread had 1 entry before the call, and has "
            found += f"{answer['entries'] + 1} after it"
            if not answer["earlier_kept"]:
                found += "; the entry from before is no longer the first"
            yield FOUND("record", found, "at what you append")
            return
        if (samples, skipped, answer["returned"]) != (step.num_samples, flag, flag):
            yield FOUND(
                "record",
                f"{where}unread ends with {answer['unread']} and train_step returned "
                f"{answer['returned']}; the step has {step.num_samples} samples, and skipped "
                f"should be {flag}",
            )
            return
        if not answer["is_tensor"]:
            kind = answer["returned_type"]
            yield FOUND("record", f"{where}train_step returned a {kind}, not a tensor")
        if answer["keeps_graph"]:
            yield FOUND("keeps-the-graph", f"{where}a tensor in unread requires a gradient")
        yield from loss_findings(plan, report, number, loss)
        if step.is_skipped:
            continue
        true_norm = mean_norm(step, reports, number)
        if not abs(length - true_norm) <= (0.03 if step.amp == "bf16" else 2e-4) * true_norm:
            found = f"{where}the norm in unread is {length:.5g}; that of the mean gradient "
            yield FOUND("norm", f"{found}before clipping is {true_norm:.5g}")


def loss_findings(plan: Job, report: RankReport, number: int, loss: float) -> Iterator[Finding]:
    """Whether the loss that was recorded is the sum over this rank's samples."""
    expected = sum(row[0] for row in report.answer["steps"][number]["truth"])
    if math.isnan(expected):  # of the rank with the sample that makes it so
        return
    if math.isinf(expected):
        is_right = not abs(loss) < LOSS_IS_INFINITE
    else:
        # In bf16, numbers as large as the margin have neighbors 16 away.
        slack = 0.05 if plan.steps[number].amp == "bf16" else 1e-5
        is_right = abs(loss - expected) <= slack + 2e-5 * expected
    if not is_right:
        found = f"step {number + 1}, rank {report.rank}: the loss in unread is {loss:.6g}; the "
        yield FOUND("loss", f"{found}sum over this rank's samples is {expected:.6g}")


# ---------------------------------------------------------------- a scaler


def scaler_findings(plan: Job, reports: Sequence[RankReport], number: int) -> Iterator[Finding]:
    """Whether code that uses the GradScaler uses it fully; who ignores it has no findings."""
    answers = [report.answer["steps"][number] for report in reports]
    if not all(answer["scaler_used"] for answer in answers):
        return
    step = plan.steps[number]
    where = f"step {number + 1}, with a GradScaler, "
    for rank, answer in enumerate(answers):
        if "refused" in answer:
            yield FOUND("scaler", f"{where}rank {rank}: {shortened(answer['refused'], 200)}")
            return
    before, after = answers[0]["scales"]
    wanted = before / 2 if step.is_skipped else before * 2
    if after != wanted:
        what = "not finite" if step.is_skipped else "finite"
        found = f"{where}whose gradients are {what}: the scale was {before:g} before and is "
        yield FOUND("scaler", f"{found}{after:g} after it; it should be {wanted:g}")
        return
    for finding in update_findings(plan, reports, number):
        yield FOUND("scaler", finding.found, finding.look)
        return
    if not step.is_skipped:
        true_norm = mean_norm(step, reports, number)
        norms = [
            answer["unread"][2] if len(answer["unread"]) > 2 else 0.0 for answer in answers
        ]
        wrong = [
            r for r, own in enumerate(norms) if not abs(own - true_norm) < 1e-3 * true_norm
        ]
        if wrong:
            found = (
                f"{where}the norm in unread of {named_ranks(wrong)} is {norms[wrong[0]]:.4g}"
            )
            yield FOUND("scaler", f"{found}; the gradient's is {true_norm:.4g}")


def scenarios(seed: int) -> list[Scenario]:
    """A job on several ranks, and one on a single rank."""
    draw = random.Random(seed)
    several, by_hand = draw.choice((2, 2, 3, 3, 4)), draw.random() < 0.5
    plans: Mapping[str, Job] = {
        "several ranks": plan_of(seed, several, by_hand=by_hand),
        "one rank": plan_of(seed, 1, by_hand=not by_hand),
    }
    return [
        Scenario(
            name=name,
            body=partial(body, plan),
            judge=only_first(partial(findings, plan)),
            world_size=plan.world_size,
            deadline_s=6,
            judges_failures=plan.world_size > 1,
        )
        for name, plan in plans.items()
    ]
