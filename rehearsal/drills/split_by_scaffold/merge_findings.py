"""Are labels merged over all ranks, and does the scaler know the training part alone?"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from rehearsal.grading.verdict import Finding

from .codes import TABLE
from .plan import Call
from .split_findings import parts_of, place

Result = Mapping[str, Any]  # of a rank
Scaler = tuple[float, float]
UNTOLD = "conflict-not-reported"


def label_problem(seen: Sequence[int | None], label: int | None, told: bool) -> str:
    """The code of what is wrong with a molecule's label; "" if nothing is.

    Args:
        seen: what its rows have.
        label: what was returned.
        told: whether the molecule is in conflicts.
    """
    measured = {*seen} - {None}
    if len(measured) > 1:
        return "wrong-label" if told and label is not None else "" if told else UNTOLD
    right = next(iter(measured), None)
    if told or label != right:
        return "missing-as-label" if None in seen else "wrong-label"
    return ""


def label_findings(call: Call, results: Sequence[Result]) -> Iterator[Finding]:
    """Labels and conflicts, on each rank; a conflict that nobody hears of comes first."""
    seen: dict[str, list[int | None]] = defaultdict(list)
    for row in call.rows:
        seen[row["molecule"]].append(row["label"])
    found: dict[str, str] = {}
    for rank, result in enumerate(results):
        where = f"{place(call)}rank {rank} "
        if others := {*result["conflicts"]} - {*result["labels"]}:
            text = f"{where}returned conflicts with {min(others)!r}, which is not in its rows"
            yield TABLE("wrong-molecules", text)
            return
        for molecule, label in sorted(result["labels"].items()):
            told = molecule in result["conflicts"]
            text = f"{where}returned label {label} for {molecule!r}, "
            text += "as a conflict" if told else "and no conflict"
            values = ", ".join(map(str, seen[molecule]))
            text += f"; on all ranks, its rows have {values}"
            found.setdefault(label_problem(seen[molecule], label, told), text)
    for code in (UNTOLD, "missing-as-label", "wrong-label"):
        if code in found:
            yield TABLE(code, found[code])
            return


def scaler_findings(call: Call, results: Sequence[Result]) -> Iterator[Finding]:
    """The scaler of each rank, against the parts that the ranks returned."""
    parts = parts_of(results)
    train = [row["logp"] for m, row in call.molecules.items() if parts[m] == "train"]
    right = fitted(train)
    for rank, result in enumerate(results):
        ours = (result["scaler"][0], result["scaler"][1])
        if agree(ours, right):
            continue
        text = f"{place(call)}rank {rank} returned scaler {shown(ours)}; the {len(train)} "
        text += f"training molecules have {shown(right)}"
        for code, words, values in mistakes(call, parts, rank):
            if agree(ours, values):
                yield TABLE(code, f"{text}. Yours is that of {words}")
                return
        apart = not agree(ours, (results[0]["scaler"][0], results[0]["scaler"][1]))
        if apart:
            text += f", and rank 0 returned {shown(results[0]['scaler'])}"
        yield TABLE("scaler-of-one-rank" if apart else "wrong-scaler", text)
        return


def fitted(values: Sequence[float]) -> Scaler:
    """Mean and population standard deviation; NaN of nothing."""
    if not values:
        return math.nan, math.nan
    return statistics.fmean(values), statistics.pstdev(values)


def agree(ours: Scaler, theirs: Scaler) -> bool:
    """Whether two scalers differ by rounding only, be it that of float32."""
    return all(math.isclose(a, b, abs_tol=1e-4) for a, b in zip(ours, theirs, strict=True))


def shown(scaler: Sequence[float]) -> str:
    """ "(2.1034, 1.4120)"."""
    return f"({scaler[0]:.4f}, {scaler[1]:.4f})"


def mistakes(
    call: Call, parts: Mapping[str, str], rank: int
) -> Iterator[tuple[str, str, Scaler]]:
    """Code, words and values of the scalers that somebody may fit instead."""
    for what, allowed, everywhere, here in (
        ("all molecules", ("train", "test"), "scaler-saw-the-test", "scaler-saw-the-test"),
        ("the training molecules", ("train",), "wrong-scaler", "scaler-of-one-rank"),
    ):
        rows = [
            [row for row in own if parts[row["molecule"]] in allowed] for own in call.shards
        ]
        once = [[*{row["molecule"]: row["logp"] for row in own}.values()] for own in rows]
        every_row = [[row["logp"] for row in own] for own in rows]
        if "test" in allowed:
            found = [row["logp"] for row in call.molecules.values()]
            yield everywhere, what, fitted(found)
        yield everywhere, f"{what}, every row counted", fitted([*chain(*every_row)])
        yield everywhere, f"{what}, counted on each rank that has them", fitted([*chain(*once)])
        for name, of_ranks in (("once each", once), ("every row counted", every_row)):
            yield here, f"{what} of rank {rank}, {name}", fitted(of_ranks[rank])
            means, stds = zip(*(fitted(own) for own in of_ranks if own), strict=True)
            mean = statistics.fmean(means), statistics.fmean(stds)
            yield here, f"{what} by rank, {name}, averaged over the ranks", mean
