"""Where did a run's time go? Every second, from its first start to its last sign of life.

The question it answers: "the job ran for a day and was killed four times; how much of that day
is in the weights?" ``AuditReport.goodput`` is the one figure; these are its parts.

    life        of an attempt: from the start of rank 0's process to its last sign of life
    useful      steps of the surviving lineage, minus their wait for data
    replayed    steps that no weights contain anymore: lost in a kill
    data_wait   within steps of either kind: the loader was not ready
    start_up    from the start of the process to the start of its first step
    checkpoint  the blocking part of saves, between two steps and before the end
    logging     the rest between two steps: writing the ledger line, reading the loss (where a
                rank waits for the others) and writing the log
    hang        from the end of the last step before a hang to the end of the job; includes any
                lost steps that a stopped rank took after it was woken to report
    down        from the end of one attempt to the start of the next one's process; includes
                the step in which an attempt was killed, which left no trace
    unknown     anything the run folder does not explain

All times are rank 0's, on its machine's clock. Other ranks' times are not compared, except for
the ``hang`` event, which any rank may write. Times are kept in whole microseconds, so that the
kinds add up to the wall time exactly.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from rehearsal.evidence.lineage import Life, lives_of_attempts, surviving_lineage
from rehearsal.evidence.run_records import (
    LedgerLine,
    Steps,
    as_seconds,
    rank_files,
    read_evidence,
    read_jsonl,
)

Kind = Literal[
    "useful",
    "replayed",
    "data_wait",
    "start_up",
    "checkpoint",
    "logging",
    "hang",
    "down",
    "unknown",
]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Span(NamedTuple):
    """One stretch of a run's time, in microseconds since the run's first start."""

    kind: Kind
    begin_us: int
    end_us: int
    attempt: int  # for a gap between two attempts: the earlier one


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """Where a run's wall time went; the kinds add up to it."""

    begin: float  # unix seconds of the first start
    wall_s: float  # includes the time between attempts
    seconds: dict[Kind, float]
    fractions: dict[Kind, float]  # of wall_s
    goodput: float | None  # as the audit defines it: useful steps, waits included, over lives
    notes: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)  # in order, without gaps


# %%
class Facts(NamedTuple):
    """What the logs say about one attempt, besides when it lived."""

    saved: dict[int, float]  # step: when its checkpoint was published
    waits: dict[int, float | None]  # last step of a window: the window's wait for data
    ended: float = 0.0  # time of run_end or preempted; 0.0 if there is none
    hung: float = 0.0  # time of any rank's hang event; 0.0 if there is none
    hung_after: float = math.inf  # the last step before the hang


def read_facts(run_dir: Path | str) -> dict[int, Facts]:
    """The facts about each attempt, from the logs."""
    facts: dict[int, Facts] = {}
    for path in rank_files(run_dir, "logs"):
        for record in read_jsonl(path):
            match record:
                case {"attempt": int(attempt), "event": str(event), "step": int(step)}:
                    time = as_seconds(record.get("time"))
                case _:
                    continue
            known = facts.setdefault(attempt, Facts({}, {}))
            if event == "hang":
                facts[attempt] = known._replace(hung=time, hung_after=step)
            elif record.get("rank") != 0:
                continue
            elif event == "checkpoint_saved":
                known.saved[step] = time
            elif event == "train_progress":
                wait_s = record.get("data_wait_s")
                known.waits[step] = None if wait_s is None else max(0.0, as_seconds(wait_s))
            elif event in ("run_end", "preempted"):
                facts[attempt] = known._replace(ended=time)
    return facts


def share_waits(lines: Iterable[LedgerLine], facts: Facts) -> dict[int, float]:
    """Each step's wait for data: its window's, if known, split in proportion to step time."""
    windows: dict[int, list[LedgerLine]] = {}
    ends = sorted(facts.waits)
    for line in lines:
        if (at := bisect_left(ends, line.step)) < len(ends):
            windows.setdefault(ends[at], []).append(line)
    waits: dict[int, float] = {}
    for end, window in windows.items():
        wait_s, steps_s = facts.waits[end], sum(max(0.0, line.step_s) for line in window)
        if wait_s is not None:
            share = min(1.0, wait_s / steps_s) if steps_s else 0.0
            waits |= {line.step: share * line.step_s for line in window}
    return waits


# %%
class Timeline:
    """Spans laid end to end, so that no time is missed or counted twice."""

    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.now_us = 0
        self.back_us = 0  # the largest step backward that was requested
        self.spans: list[Span] = []

    @property
    def now(self) -> float:
        """The end of the last span, in unix seconds."""
        return self.begin + self.now_us / 1e6

    def until(self, kind: Kind, time: float, attempt: int) -> None:
        """Extend the timeline to a unix time; never moves backward."""
        end_us = round((time - self.begin) * 1e6)
        self.back_us = max(self.back_us, self.now_us - end_us)
        if end_us > self.now_us:
            self.spans.append(Span(kind, self.now_us, end_us, attempt))
            self.now_us = end_us


def lay_save(timeline: Timeline, attempt: int, step: int, until: float, facts: Facts) -> None:
    """Add the save that follows the step just added, if that step was saved.

    An asynchronous save is published later, while training continues, so its stall ends at
    ``until`` at the latest.
    """
    if (saved := min(facts.saved.get(step, 0.0), until)) > timeline.now:
        timeline.until("checkpoint", saved, attempt)


def lay_attempt(
    timeline: Timeline, attempt: int, lines: list[LedgerLine], lineage: Steps, facts: Facts
) -> int:
    """Add an attempt's steps and everything between them, up to its last save.

    Args:
        lines: rank 0's ledger lines, by time.

    Returns:
        Microseconds spent in the lineage's steps, including their waits for data.
    """
    useful_us, before, waits = 0, 0, share_waits(lines, facts)
    for line in lines:
        begin = line.time - line.step_s
        lay_save(timeline, attempt, before, begin, facts)
        # If a step's line in between is missing, nobody can say what the time was for.
        between: Kind = "logging" if line.step == before + 1 else "unknown"
        is_hung = before > 0 and before >= facts.hung_after
        timeline.until("hang" if is_hung else between if before else "start_up", begin, attempt)
        is_useful = line.step in lineage and lineage[line.step][0].attempt == attempt
        began_us = timeline.now_us
        if is_useful or not is_hung:
            timeline.until("data_wait", begin + waits.get(line.step, 0.0), attempt)
        lost: Kind = "hang" if is_hung else "replayed"
        timeline.until("useful" if is_useful else lost, line.time, attempt)
        useful_us += is_useful * (timeline.now_us - began_us)
        before = line.step
    lay_save(timeline, attempt, before, math.inf, facts)
    if facts.ended and before in facts.saved:  # waiting for the writer thread
        timeline.until("checkpoint", facts.ended, attempt)
    return useful_us


# %%
def account_run(run_dir: Path | str) -> Account:
    """Account for every second of a run, on rank 0's clock.

    Raises:
        ValueError: if the folder shows no sign of life.
    """
    (ledger, logs), notes = read_evidence(run_dir), list[str]()
    lives, facts = lives_of_attempts(ledger, logs), read_facts(run_dir)
    if not lives:
        raise ValueError(
            f"{run_dir}: no timestamps in ledger/rank-0.jsonl or logs/rank-0.jsonl, so "
            "there is no time to account for. Name the folder you gave launch.py as --run-dir."
        )
    try:
        lineage = surviving_lineage(ledger, logs).steps
    except ValueError:
        lineage = {}
    timeline, useful_us, last = Timeline(next(iter(lives.values())).begin), 0, -1
    for attempt, life in lives.items():
        is_known = life.begin == logs.started.get(attempt)
        if not is_known:
            notes.append(f"attempt {attempt}: process start time not known")
        timeline.until("down" if is_known else "unknown", life.begin, last)
        steps = chain(*ledger.get(attempt, {}).values())
        lines = sorted((x for x in steps if x.rank == 0 and x.time), key=attrgetter("time"))
        known = facts.get(attempt, Facts({}, {}))
        useful_us += lay_attempt(timeline, attempt, lines, lineage, known)
        if without := len(lines) - len(share_waits(lines, known)):
            text = f"no data-wait figure for {without} of {len(lines)} steps"
            notes.append(f"attempt {attempt}: {text}; any wait counts as step time")
        if known.hung:
            alive = [time for of, time in logs.alive if of == attempt and time < known.hung]
            if not lines:
                timeline.until("start_up", max(alive, default=life.begin), attempt)
        rest: Kind = "hang" if known.hung else "unknown" if lines else "start_up"
        timeline.until(rest, life.end, attempt)
        last = attempt
    if timeline.back_us > 1000:
        text = f"rank 0's clock went back by up to {timeline.back_us / 1e6:.3f} s"
        notes.append(f"{text}, or two attempts overlapped; that time is counted once")
    return summarize(timeline, useful_us, lives, notes)


def summarize(
    timeline: Timeline, useful_us: int, lives: dict[int, Life], notes: list[str]
) -> Account:
    """Add up the spans by kind."""
    spent_us = dict.fromkeys(KINDS, 0)
    for span in timeline.spans:
        spent_us[span.kind] += span.end_us - span.begin_us
    lives_s = sum(life.end - life.begin for life in lives.values())
    return Account(
        begin=timeline.begin,
        wall_s=timeline.now_us / 1e6,
        seconds={kind: spent / 1e6 for kind, spent in spent_us.items()},
        fractions={kind: spent / max(timeline.now_us, 1) for kind, spent in spent_us.items()},
        goodput=useful_us / 1e6 / lives_s if useful_us and lives_s else None,
        notes=notes,
        spans=timeline.spans,
    )
