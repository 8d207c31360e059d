"""Is what belongs together in one part, and does the split depend on nothing else?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rehearsal.grading.verdict import Finding
from rehearsal.kit.judge.findings import some

from .codes import TABLE
from .plan import ACYCLIC, AGAIN, OTHER_ORDER, OTHER_ROWS, TOLERANCE, Call

Result = Mapping[str, Any]  # of a rank
Parts = Mapping[str, str]
# Each call is compared with the first.
COMPARED = {
    AGAIN: ("split-not-reproducible", "the same rows again"),
    OTHER_ORDER: ("depends-on-order", "the same rows in another order, on other ranks"),
    OTHER_ROWS: ("depends-on-measurements", "other labels and repeats of the same molecules"),
}


def place(call: Call) -> str:
    """Where a finding was made: "on 3 ranks, with the table, "."""
    return f"on {len(call.shards)} ranks, with {call.kind}, "


def form_findings(call: Call, results: Sequence[Result]) -> Iterator[Finding]:
    """The form of the results, and what was changed on the way."""
    for rank, result in enumerate(results):
        where = f"{place(call)}rank {rank} "
        if result["problem"]:
            yield TABLE("wrong-return-value", where + result["problem"])
        elif result["is_changed"]:
            yield TABLE("changes-its-arguments", f"{where}changed the rows that it was given")
        elif result["moved"]:
            yield TABLE("moves-global-random-state", f"{where}changed {some(result['moved'])}")
        else:
            continue
        return


def molecule_findings(call: Call, results: Sequence[Result]) -> Iterator[Finding]:
    """Which molecules the results are about."""
    for rank, result in enumerate(results):
        own = {row["molecule"] for row in call.shards[rank]}
        for name in ("parts", "labels"):
            lacks, has = own - {*result[name]}, {*result[name]} - own
            text = f"{place(call)}rank {rank} returned {name} that "
            if lacks:
                text += f"lack {len(lacks)} of its {len(own)} molecules, such as {min(lacks)!r}"
            elif has:
                text += f"have {len(has)} that are not in its rows, such as {min(has)!r}"
            else:
                continue
            yield TABLE("wrong-molecules", text)
            return


def side_findings(call: Call, results: Sequence[Result]) -> Iterator[Finding]:
    """Scaffolds on both sides: on one rank, between ranks; then molecules without one."""
    members: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
    known = call.molecules
    for rank, result in enumerate(results):
        for molecule, part in sorted(result["parts"].items()):
            scaffold = known[molecule]["scaffold"]
            members[scaffold or molecule].append((part, rank, molecule))
    on_one: list[Finding] = []
    between: list[Finding] = []
    without: list[Finding] = []
    for group, found in members.items():
        tests = [one for one in found if one[0] == "test"]
        trains = [one for one in found if one[0] == "train"]
        if not tests or not trains:
            continue
        same = [(a, b) for a in trains for b in tests if a[1] == b[1]]
        (_, rank, first), (_, other, second) = same[0] if same else (trains[0], tests[0])
        if not known[first]["scaffold"]:
            text = f"{place(call)}{first!r} is in train on rank {rank} and in test on rank "
            without.append(TABLE("molecule-on-both-sides", f"{text}{other}"))
            continue
        text = f"{place(call)}scaffold {group!r} has {first!r} in train on rank {rank}, and "
        text += f"{second!r} in test on " if second != first else "in test on "
        if same:
            on_one.append(TABLE("scaffold-on-both-sides", f"{text}the same rank"))
        else:
            between.append(TABLE("ranks-disagree", f"{text}rank {other}"))
    yield from (on_one or between or without)[:1]


def parts_of(results: Sequence[Result]) -> Parts:
    """The parts of all ranks."""
    return {molecule: part for result in results for molecule, part in result["parts"].items()}


def fraction_findings(call: Call, results: Sequence[Result]) -> Iterator[Finding]:
    """How large the test part is, in molecules."""
    parts = parts_of(results)
    test = sum(part == "test" for part in parts.values())
    share = test / len(parts)
    if abs(share - call.test_fraction) <= TOLERANCE + 1e-9:
        return
    text = f"{place(call)}{test} of {len(parts)} different molecules are in test: {share:.1%}, "
    text += f"with test_fraction={call.test_fraction}"
    known = call.molecules
    acyclic = {part for m, part in parts.items() if not known[m]["scaffold"]}
    others = {part for m, part in parts.items() if known[m]["scaffold"]}
    repeats = {
        "row": [row["molecule"] for row in call.rows],
        "rank's molecules": [m for result in results for m in result["parts"]],
    }
    for name, repeated in repeats.items():
        as_counted = sum(parts[m] == "test" for m in repeated) / len(repeated)
        if call.kind != ACYCLIC and abs(as_counted - call.test_fraction) <= TOLERANCE:
            text += f". With every {name} counted, it would be {as_counted:.1%}"
            yield TABLE("counts-repeats", text)
            return
    # With a scaffold in test, they may be in training because nothing else had room there.
    if call.kind == ACYCLIC and len(acyclic) == 1 and others == {"train"}:
        text += f". All molecules without a ring are in {acyclic.pop()}"
        yield TABLE("acyclics-as-one", text)
        return
    yield TABLE("wrong-fraction", text)


def repeat_findings(
    calls: Sequence[Call], results: Sequence[Sequence[Result]]
) -> Iterator[Finding]:
    """The calls of a job that have the same molecules."""
    first = parts_of(results[0])
    for call, own in zip(calls, results, strict=True):
        if call.kind in COMPARED and (parts := parts_of(own)) != first:
            code, what = COMPARED[call.kind]
            text = f"on {len(call.shards)} ranks, a call with {what} put "
            yield TABLE(code, text + moved(first, parts))
            return


def job_findings(before: Sequence[Result], results: Sequence[Result]) -> Iterator[Finding]:
    """The same molecules in two jobs."""
    first, parts = parts_of(before), parts_of(results)
    if parts != first:
        text = f"on {len(results)} ranks, in other processes than those of the job on "
        yield TABLE("jobs-disagree", f"{text}{len(before)}, a call put {moved(first, parts)}")


def moved(before: Parts, after: Parts) -> str:
    """ "3 of 70 molecules elsewhere: 'CCO' in test, not in train"."""
    others = sorted(one for one in before if before[one] != after[one])
    text = f"{len(others)} of {len(before)} molecules elsewhere: {others[0]!r} in "
    return f"{text}{after[others[0]]}, not in {before[others[0]]}"
