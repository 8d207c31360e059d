"""Which work survived? Where each attempt began and ended, and what the newest weights saw.

A collapsed cell. The question it answers: "three attempts trained step 40; which of them is in
the weights?"

    lineage     the surviving one, that is, what the newest weights have seen: the steps of the
                last attempt that trained; before the step that it restored, those of the
                attempt that saved that checkpoint; and so on, back to step 1
    in flight   trailing steps of a killed attempt that some rank had not recorded yet
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

# %% active="py"
from rehearsal.evidence.run_records import Restored, RunLogs, Steps, world_size_of


# %%
class Lineage(NamedTuple):
    """What the newest weights have seen, as far as the evidence shows."""

    steps: Steps  # the lines of each step; no entry if there are none
    end: int  # the last step that they should reach
    in_flight: list[int]  # steps after it that not every rank had recorded
    holes: list[str]  # where an attempt doesn't continue where its checkpoint ended
    trusted: list[int]  # attempts whose start isn't logged: their first lines are believed


def find_end(attempt: int, steps: Steps, logs: RunLogs) -> tuple[int, list[int]]:
    """The last step that an attempt finished, and the steps in flight after it.

    A kill can land after one rank has written its line for a step and before another has.
    Trailing steps like that are not judged, unless a log or a checkpoint says that they were
    finished: a rank that reports a step has written its line.
    """
    complete = logs.complete.get(attempt, 0)
    newest = max(logs.published, default=0)
    # Only the manifests of live.py and of older versions name no attempt. The last attempt
    # either saved the newest checkpoint or restored it.
    if newest and logs.published[newest] is None:
        complete = max(complete, newest)
    reported = {rank: step for (of, rank), step in logs.reported.items() if of == attempt}
    end, in_flight = max([complete, *steps, *reported.values()]), list[int]()
    while end > complete and end in steps:
        ranks = {line.rank for line in steps[end]}
        if len(ranks) >= world_size_of(steps[end]):
            break
        if any(step >= end and rank not in ranks for rank, step in reported.items()):
            break
        in_flight.append(end)
        end -= 1
    return end, in_flight[::-1]


def find_saver(attempt: int, step: int, ledger: dict[int, Steps], logs: RunLogs) -> int | None:
    """Which attempt saved the checkpoint of ``step`` that ``attempt`` restored; or None.

    The start of the attempt names it, and so does the manifest. Without either (logs and
    checkpoints get deleted, and older versions named no attempt), it is the newest earlier
    attempt that logged a save of that step, or else that got that far.
    """
    named = {start.saved_by for start in logs.restored.get(attempt, ())} - {None}
    if named:
        return max(by for by in named if by is not None)
    published = logs.published.get(step)
    if published is not None and published < attempt:
        return published
    savers = [by for by in logs.saved.get(step, ()) if by < attempt]
    began = [by for by, steps in ledger.items() if by < attempt and min(steps) <= step]
    reached = [by for by in began if step <= max(ledger[by])]
    return max(savers or reached or began, default=None)


def judge_start(attempt: int, first: int, logs: RunLogs) -> str | None:
    """What is wrong with where an attempt's lines begin; None if nothing is."""
    # An attempt that logs a start but no restore began with fresh weights.
    found = logs.restored.get(attempt, {Restored(0, None)})
    if len({start.saved_by for start in found}) > 1:
        return f"attempt {attempt}: its ranks restored checkpoints of different attempts"
    for restored, saved_by in sorted(found, key=str):
        if saved_by is not None and saved_by >= attempt:
            return f"attempt {attempt} restored a checkpoint of attempt {saved_by}, a later one"
        if first != restored + 1:
            what = f"step {restored}" if restored else "nothing"
            return f"attempt {attempt} restored {what}, but its first step was {first}"
    return None


def find_start(attempt: int, first: int, logs: RunLogs, lineage: Lineage) -> int:
    """The step that an attempt restored, 0 if it began afresh; notes what is wrong with it."""
    starts = logs.restored.get(attempt, set())
    if not starts and attempt not in logs.begun:
        if first > 1:
            lineage.trusted.append(attempt)
        return first - 1
    if hole := judge_start(attempt, first, logs):
        lineage.holes.append(f"{hole}; look for checkpoint_restored in logs/")
    return max((start.step for start in starts), default=0)


def surviving_lineage(ledger: dict[int, Steps], logs: RunLogs) -> Lineage:
    """Follow the lineage from the last attempt that trained, back to step 1.

    Raises:
        ValueError: if there is nothing to judge.
    """
    attempts = {*ledger, *logs.complete, *(attempt for attempt, _ in logs.reported)}
    attempt = max(attempts, default=0)
    end, in_flight = find_end(attempt, ledger.get(attempt, {}), logs)
    if end < 1:
        raise ValueError(
            "ledger/rank-*.jsonl has no surviving step that every rank recorded (in flight: "
            f"{len(in_flight)}), so there is nothing to audit. Train first; if the run has "
            "trained, look for a missing rank file."
        )
    lineage, newest, last = Lineage({}, end, in_flight, [], []), attempt, end
    while last > 0:
        steps = ledger.get(attempt, {})
        start = find_start(attempt, min(steps, default=last), logs, lineage)
        if start >= last and attempt != newest:
            text = f"attempt {attempt} saved step {last}, but its first step was {start + 1}"
            lineage.holes.append(f"{text}; look for the checkpoint's manifest")
            break
        of_attempt = {step: steps[step] for step in sorted(steps) if start < step <= last}
        lineage.steps.update(of_attempt)
        lineage.holes.extend(find_lost_work(of_attempt, last, ledger))
        saver = find_saver(attempt, start, ledger, logs)
        if start == 0 or saver is None or saver >= attempt:
            break
        attempt, last = saver, start
    return lineage._replace(steps=dict(sorted(lineage.steps.items())))


def find_lost_work(of_attempt: Steps, last: int, ledger: dict[int, Steps]) -> Iterator[str]:
    """Where another attempt has lines for the first step of a gap in an attempt's lines."""
    for step, lines in of_attempt.items():
        if step < last and step + 1 not in of_attempt:
            attempt, others = lines[0].attempt, [of for of in ledger if step + 1 in ledger[of]]
            for other in others[-1:]:
                line = ledger[other][step + 1][0]
                text = f"this line is lost work, yet the step before is from attempt {attempt}"
                yield f"{line}: {text}; look in ledger/ for the missing line"


# %%
class Life(NamedTuple):
    """When an attempt began and ended, in unix seconds on rank 0's clock."""

    begin: float
    end: float


def lives_of_attempts(ledger: dict[int, Steps], logs: RunLogs) -> dict[int, Life]:
    """When each attempt began and showed its last sign of life, on rank 0's clock.

    An attempt begins when its process starts, if that time is known and no earlier attempt ran
    in the same process. Otherwise it begins at its first sign of life, which makes startup
    look shorter than it was.
    """
    alive, lives = list(logs.alive), dict[int, Life]()
    for line in (
        line for steps in ledger.values() for lines in steps.values() for line in lines
    ):
        if line.rank == 0 and line.time > 0:
            alive += [(line.attempt, line.time - line.step_s), (line.attempt, line.time)]
    for attempt, time in sorted(alive):
        lives[attempt] = Life(lives.get(attempt, (time,))[0], time)
    before = -math.inf
    for attempt, (begin, end) in lives.items():
        if before < logs.started.get(attempt, -math.inf) < begin:
            lives[attempt] = Life(logs.started[attempt], end)
        before = end
    return lives
