"""What did wrapping and leaving do, and does a resume match the uninterrupted run?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, counted, listed, shortened
from rehearsal.kit.judge.weights import largest_difference
from .codes import TABLE
from .plan import Plan
from .judge_starts import identity_finding
from .plan import PATIENCE_S


def judge_attempts(plan: Plan, reports: Sequence[RankReport], _: object) -> Iterable[Finding]:
    """In the order in which things happen. From events, as the second group may never form."""
    left = [event for report in reports for event in report.of("left")]
    if len(left) < len(reports):
        return  # nothing to compare; the engine reports how it failed
    yield from wrap_findings(plan, left)
    for rank, (first, report) in enumerate(zip(left, reports, strict=True)):
        if first["waits"]:
            found = (
                f"rank {rank} stayed in the group for {PATIENCE_S:g} s, and in that time rank "
            )
            found += "0's cleanup_dist did not return"
            yield TABLE("cleanup-waits", found)
        for event in report.of("destroyed"):
            if event["live_wrappers"]:
                alive = counted(event["live_wrappers"], "live DDP wrapper")
                found = f"rank {rank} had {alive} when it destroyed the group"
                yield TABLE("wrapper-outlives-group", found)
        if first["is_initialized"]:
            found = f"rank {rank} is still in its group after cleanup_dist"
            yield TABLE("group-left-behind", found)
    for rank, (first, report) in enumerate(zip(left, reports, strict=True)):
        again = f"rank {rank}, in a second attempt in the same process, "
        resumed = report.of("resumed")
        if not resumed:
            why, look = "did not finish", ""
            if report.failure:
                why = f"raised {report.failure.kind}: {shortened(report.failure.message, 120)}"
                if report.failure.where:
                    look = f"at {report.failure.where}, and at the store you pass to "
                    look += "init_process_group"
            yield TABLE("joins-the-last-attempt", again + why, look)
            continue
        if resumed[0]["finds"]:
            found = "sees the first group's keys in the store"
            yield TABLE("joins-the-last-attempt", again + found)
        difference, name = largest_difference(first["straight"], resumed[0]["weights"])
        if first["straight"] != resumed[0]["weights"]:
            found = f"on {len(left)} ranks, the weights after {plan.steps} steps without a "
            found += f"restart and with one after step {plan.saved_after} differ by up to "
            found += f"{difference:.2g}, in {name}"
            yield TABLE("resumed-run-differs", found)
    pair = [report.answer for report in reports[:2] if report.has_answer]
    if len(pair) == 2:
        yield from weight_findings(pair)
        yield from gradient_findings(pair)


def weight_findings(answers: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """Every rank has rank 0's weights."""
    for rank, answer in enumerate(answers):
        difference, name = largest_difference(answer["start"], answer["wrapped"])
        if difference:
            found = f"after wrap_model on {len(answers)} ranks, rank {rank} differs from rank "
            found += f"0's initial weights by up to {difference:.2g}, in {name}"
            yield TABLE("ranks-differ", found)


def wrap_findings(plan: Plan, answers: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """What wrap_model does to a model, and to its gradients."""
    for rank, answer in enumerate(answers):
        expected = [rank, rank % plan.ranks_on_a_node, len(answers), "cpu"]
        if answer["identity"] != expected:
            yield identity_finding(answer["identity"], expected)
    yield from weight_findings(answers)
    for rank, answer in enumerate(answers):
        if answer["timeout_s"] not in (plan.group_timeout_s, None):
            found = f"cfg.dist_timeout_s is {plan.group_timeout_s:g} s, and the timeout of the "
            yield TABLE("timeout-ignored", f"{found}group is {answer['timeout_s']:g} s")
        if answer["changed"]:
            found = f"on rank {rank}, wrap_model changed {listed(answer['changed'])}"
            yield TABLE("random-state-moved", found)
    yield from gradient_findings(answers)


def gradient_findings(answers: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """No gradient before the first step, the mean in it, and the way back to the model."""
    for rank, answer in enumerate(answers):
        zeros = {name: "00" * (len(text) // 2) for name, text in answer["left_over"].items()}
        difference, name = largest_difference(answer["left_over"], zeros)
        if difference:
            found = f"on rank {rank}, {name} has a gradient of up to {difference:.2g} before "
            found += "the first step"
            yield TABLE("gradient-left-over", found)
        if not answer["is_unwrapped"]:
            found = f"on rank {rank}, unwrap of the wrapped or of the bare model returns a "
            found += "different object"
            yield TABLE("not-unwrapped", found)
        difference, name = largest_difference(answer["mean"], answer["gradient"])
        if not difference < 1e-4:
            found = f"on rank {rank}, the gradient of {name} differs by up to {difference:.2g} "
            yield TABLE("not-the-mean", f"{found}from the mean over {len(answers)} ranks")
