"""What is wrong with how ranks share a run, and with what a restart trains?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.findings import some

from .codes import TABLE
from .plan import Plan
from .row_findings import Steps


def merged(by_rank: Sequence[Steps]) -> list[list[list[int]]]:
    """By step: the rows of all ranks, in any order."""
    most = max(len(own) for own in by_rank)
    return [
        sorted(list(row) for own in by_rank if step < len(own) for row in own[step])
        for step in range(most)
    ]


def deal_findings(alone: Steps, by_rank: Sequence[Steps]) -> Iterator[Finding]:
    """Several ranks share the steps of one."""
    counts = [len(own) for own in by_rank]
    if {*counts} != {len(alone)}:
        found = f"{len(counts)} ranks got {some(counts)} steps; on one rank, the run has "
        yield TABLE("wrong-steps", f"{found}{len(alone)}")
        return
    for number, (due, rows) in enumerate(zip(merged([alone]), merged(by_rank), strict=True)):
        where = f"on {len(counts)} ranks, step {number} "
        sizes = [len(own[number]) for own in by_rank]
        if rows != due and all(row in due for row in rows):
            found = f"{where}has {len(due)} rows, and its ranks train {some(sizes)} of them"
            code = "ranks-repeat-each-other" if len(rows) > len(due) else "never-trained"
            code = code if len({*map(tuple, rows)}) == len(rows) else "ranks-repeat-each-other"
            yield TABLE(code, found)
            return
        if rows != due:
            found = f"{where}has the rows {some(rows, 4)}; on one rank, {some(due, 4)}"
            yield TABLE("plan-depends-on-ranks", found)
            return
        if max(sizes) - min(sizes) > 1:
            found = f"{where}gives its ranks {some(sizes)} of {len(due)} rows"
            yield TABLE("uneven-share", found)
            return


def fetch_findings(plan: Plan, fetched: dict[str, Any]) -> Iterator[Finding]:
    """What fetching and committing change."""
    straight, commits = fetched["straight"], fetched["commits"]
    if fetched["after_peek"] != straight:
        found = f"rank 1 of 2: after an iteration was left once {counted(plan.middle, 'step')} "
        found += f"had been fetched, a new one yielded {some(fetched['after_peek'], 1)} first, "
        yield TABLE("position-moves-on-fetch", f"{found}not {some(straight, 1)}")
    elif fetched["trained"] != straight[:commits]:
        found = f"rank 1 of 2: {commits} steps, each committed while a loader was "
        found += f"{counted(plan.ahead, 'step')} ahead, differ from those of an iteration "
        yield TABLE("commit-disturbs-iteration", f"{found}without commits")
    elif fetched["position"] != commits:
        found = f"rank 1 of 2: after {commits} commits, the position was {fetched['position']}"
        yield TABLE("wrong-position", found)
    elif fetched["left"] != straight[commits:]:
        found = f"rank 1 of 2: after {commits} commits, a new iteration yielded "
        found += f"{some(fetched['left'], 1) or 'nothing'} first, not "
        yield TABLE("wrong-position", found + some(straight[commits:], 1))


def resumed_run_findings(alone: Steps, resumed: dict[str, Any]) -> Iterator[Finding]:
    """What is trained after a restart."""
    stop, size = resumed["stop"], resumed["ranks"]
    wanted, rows = merged([alone]), merged(resumed["rest"])
    if rows == wanted[stop:]:
        return
    found = f"stopped after {counted(stop, 'step')} of {len(wanted)} and started again on "
    found += f"{counted(size, 'rank')}, with steps fetched ahead: "
    for start in range(len(wanted) + 1):
        if rows == wanted[start:]:
            code, what = "resume-skips", "left out"
            if start < stop:
                code, what = "resume-repeats", "repeated"
            yield TABLE(code, f"{found}{counted(abs(start - stop), 'step')} {what}")
            return
    found += f"the next step had rows {some(rows[0] if rows else [], 3) or 'none'}, not "
    yield TABLE("resume-differs", found + (some(wanted[stop], 3) if rows[stop:] else "none"))
