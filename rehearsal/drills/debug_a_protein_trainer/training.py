"""Which proteins each step trains, what it follows, in which precision, and what is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, counted, listed, named_ranks
from rehearsal.kit.judge.findings import first_of, some

from .codes import TABLE
from .model import shape_findings
from .plan import STEPS, Plan, num_hidden

Vector = Sequence[float]


def judge_training(
    plan: Plan, reports: Sequence[RankReport], earlier: object
) -> Iterable[Finding]:
    """What is trained, then what a step follows, then the same in 16 bits."""
    answers = [report.answer for report in reports]
    if "shapes" in answers[0]:
        return shape_findings(answers[0])
    runs = {one.name: [answer[one.name] for answer in answers] for one in plan.trainings}
    exact, mixed = runs["float32"], runs["mixed"]
    return first_of(
        *(share_findings(plan, run) for run in runs.values()),
        *(hidden_findings(run) for run in runs.values()),
        seed_findings(plan, runs),
        gradient_findings(exact, 1e-4),
        loss_findings(exact, 1e-5),
        [*precision_findings(plan, mixed), *reduction_findings(mixed)],
        gradient_findings(mixed, 0.3),
        loss_findings(mixed, 0.05),
    )


def share_findings(plan: Plan, ranks: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Each protein once, in its step, on its rank, in a crop of the right length."""
    places = [[step["places"] for step in answer["steps"]] for answer in ranks]
    rows = [place for own in places for step in own for place in step]
    if None in rows:
        strays = rows.count(None)
        what = "isn't a window" if strays == 1 else "aren't windows"
        found = f"{counted(strays, 'row')} went through the model that {what} of any protein"
        yield TABLE("wrong-steps", found)
        return
    trained = [place[0] for place in rows]
    if missing := sorted({*range(len(plan.proteins))} - {*trained}):
        lengths = some([len(plan.proteins[index]) for index in missing])
        found = (
            f"of {len(plan.proteins)} proteins, {len(missing)} were never trained; they have "
        )
        yield TABLE(
            "never-trained",
            f"{found}{lengths} residues, and a crop has {plan.shape.max_length}",
        )
        return
    for rank, own in enumerate(places):
        dealt = [[place[0] for place in step] for step in own]
        if dealt != plan.dealt(rank):
            found = f"with batch_size={plan.batch_size}, rank {rank} of {len(ranks)} trained "
            found += f"{listed_steps(dealt)} in its steps; its share is "
            yield TABLE("wrong-steps", found + listed_steps(plan.dealt(rank)))
            return
    for index, _, length in rows:
        if length != min(len(plan.proteins[index]), plan.shape.max_length):
            found = f"protein {index}, of {len(plan.proteins[index])} residues, was trained on "
            yield TABLE("wrong-crop", f"{found}{counted(length, 'residue')}")
            return


def listed_steps(steps: Sequence[Sequence[int]]) -> str:
    """ "[0, 2], [4, 6]"."""
    return some([[*step] for step in steps], 4) or "nothing"


def hidden_findings(ranks: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """How many residues each row hides."""
    for rank, answer in enumerate(ranks):
        for at, step in enumerate(answer["steps"]):
            for hidden, length in zip(step["hidden"], step["lengths"], strict=True):
                if hidden != num_hidden(length):
                    found = f"in step {at}, a crop of {length} residues on rank {rank} hides "
                    yield TABLE("wrong-hidden", f"{found}{hidden} of them")
                    return


def seed_findings(
    plan: Plan, runs: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterator[Finding]:
    """Twice the same seed, and another one."""
    first, other, again = (
        [drawn(answer) for answer in runs[one.name]] for one in plan.trainings
    )
    seed, different = (plan.trainings[at].seed for at in (0, 1))
    if first != again:
        found = f"two runs with seed={seed} hid different residues, or took different windows"
        yield TABLE("not-from-the-seed", found)
    elif any(one == two for one, two in zip(first, other, strict=True)):
        found = f"seed={seed} and seed={different} hid the same residues of the same windows"
        yield TABLE("not-from-the-seed", found)


def drawn(answer: Mapping[str, Any]) -> list[Any]:
    """A rank's windows, and what it hid in them."""
    return [[step["places"], step["where"]] for step in answer["steps"]]


def total(vectors: Iterable[Vector]) -> list[float]:
    """A sum of vectors."""
    return [sum(parts) for parts in zip(*vectors, strict=True)]


def times(vector: Vector, factor: float) -> list[float]:
    """A vector times a number."""
    return [factor * part for part in vector]


def is_close(ours: Vector, theirs: Vector, most: float) -> bool:
    """Whether two vectors differ by a small part of their length."""
    return math.dist(ours, theirs) <= most * math.hypot(*theirs)


def gradient_findings(ranks: Sequence[Mapping[str, Any]], most: float) -> Iterator[Finding]:
    """The gradient that each step followed, on each rank."""
    for at in range(STEPS):
        steps = [answer["steps"][at] for answer in ranks]
        counts = [sum(step["hidden"]) for step in steps]
        right = times(total(step["sketch"] for step in steps), 1 / sum(counts))
        means = [times(s["sketch"], 1 / c) for s, c in zip(steps, counts, strict=True)]
        mean_of_means = times(total(means), 1 / len(means))
        for rank, step in enumerate(steps):
            followed = step["followed"]
            if not step["is_finite"]:
                found = f"the gradient of step {at} on rank {rank} has NaN or infinity in it"
                yield TABLE("wrong-gradient", found)
                return
            if is_close(followed, right, most):
                continue
            norms = (
                f"a gradient of norm {math.hypot(*followed):.4g} (in a random sketch); that "
            )
            norms += f"of its loss has {math.hypot(*right):.4g}"
            if is_close(followed, mean_of_means, most):
                hidden = f"the ranks hide {listed([str(c) for c in counts])} residues"
                found = f"in step {at}, {hidden}, and the step weighs each rank the same"
                yield TABLE("mean-of-means", found)
            elif is_close(times(followed, ratio(followed, right)), right, most):
                found = f"step {at} on rank {rank} followed "
                found += f"{1 / ratio(followed, right):.4g} times the gradient of its loss"
                yield TABLE("wrong-gradient", found)
            else:
                yield TABLE("wrong-gradient", f"step {at} on rank {rank} followed {norms}")
            return


def ratio(ours: Vector, theirs: Vector) -> float:
    """The factor that brings one vector closest to another one."""
    square = sum(part * part for part in ours)
    return sum(a * b for a, b in zip(ours, theirs, strict=True)) / square if square else 0.0


def loss_findings(ranks: Sequence[Mapping[str, Any]], most: float) -> Iterator[Finding]:
    """What train returned."""
    for rank, answer in enumerate(ranks):
        if answer["losses"] is None:
            found = f"rank {rank} returned {answer['returned']}, not a list of floats"
            yield TABLE("wrong-losses", found)
            return
        if len(answer["losses"]) != STEPS:
            found = f"for {STEPS} steps, rank {rank} returned {len(answer['losses'])} losses"
            yield TABLE("wrong-losses", found)
            return
        for at, ours in enumerate(answer["losses"]):
            steps = [other["steps"][at] for other in ranks]
            right = sum(s["loss"] for s in steps) / sum(sum(s["hidden"]) for s in steps)
            if not math.isclose(ours, right, rel_tol=most):
                found = f"rank {rank} returned {ours:.4g} for step {at}; its loss, over all "
                yield TABLE("wrong-losses", f"{found}ranks, is {right:.4g}")
                return


def precision_findings(plan: Plan, ranks: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """The dtype of matrix products, by what comes of it."""
    longest = plan.shape.max_length
    if any(not step["is_finite"] for answer in ranks for step in answer["steps"]):
        found = f"with mixed=True and max_length={longest}, activations reach 100,000 or more, "
        found += "and the gradient is NaN or infinite; in float32 it's finite"
        yield TABLE("out-of-range", found)
    elif products := [
        p for answer in ranks for p in answer["products"] if "32" in p or "64" in p
    ]:
        found = f"with mixed=True, matrix products of the forward pass take {products[0]}"
        yield TABLE("not-mixed", found)


def reduction_findings(ranks: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Operations that add up many numbers, in 16 bits."""
    for answer in ranks:
        for name, dtype in list(answer["reductions"].items())[:1]:
            found = (
                f"with mixed=True, {name.strip('_')} takes {dtype} inputs in the forward pass"
            )
            yield TABLE("reduces-in-16-bits", found)
            return


def judge_refusal(
    plan: Plan, reports: Sequence[RankReport], earlier: object
) -> Iterable[Finding]:
    """How each rank refused a protein, if it did: one call of train after another."""
    parts = []
    for at, index in enumerate(plan.too_large):
        answers = [(report.answer or [])[at : at + 1] for report in reports]
        if all(answers) or any(answers):
            parts.append(refusal_findings(plan, index, [*zip(reports, answers, strict=True)]))
    return first_of(*parts)


def refusal_findings(
    plan: Plan, index: int, ranks: Sequence[tuple[RankReport, list[Any]]]
) -> Iterator[Finding]:
    """One call. A rank that is still in it, or that failed, has no answer."""
    what = f"protein {index}, of {len(plan.long_protein)} residues, is planned above budget_mib"
    raised = [(report, own[0]) for report, own in ranks if own and own[0]]
    # Anything else may be the echo of a peer that has left.
    refused = [report.rank for report, (_, is_value_error, _) in raised if is_value_error]
    if 0 < len(refused) < len(ranks):
        others = [report.rank for report, _ in ranks if report.rank not in refused]
        found = (
            f"{what}: {named_ranks(refused)} raised a ValueError, and {named_ranks(others)} "
        )
        yield TABLE("one-rank-raises", f"{found}did not")
    elif refused:
        message = raised[0][1][2]
        if str(index) not in re.findall(r"(?<![\d.])\d+(?![\d.]*\d)", message):
            found = f"{what}; the message is {message[:100]!r}"
            yield TABLE("over-budget-accepted", found)
        elif steps := max(len(report.of("optimizer_step")) for report, _ in ranks):
            found = f"{what}; it was refused after {counted(steps, 'step')}"
            yield TABLE("refuses-late", found)
    elif len(raised) == len(ranks):
        kind, _, message = raised[0][1]
        found = f"{what}; rank 0 raised {kind}: {message[:100]}"
        yield TABLE("over-budget-accepted", found)
    elif all(own for _, own in ranks):
        yield TABLE("over-budget-accepted", f"{what}, and no rank raised an exception")
