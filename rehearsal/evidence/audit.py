"""Was every sample trained exactly once? Answered from what the run recorded.

A collapsed cell. The question it answers: "the job was killed twice; prove that no sample was
lost and none was trained twice."

    step        optimizer step, counted from 1 over the whole run
    lineage     the surviving one, that is, what the newest weights have seen: for each step,
                the lines of its highest attempt, up to the last step of the last attempt
                that trained
    in flight   trailing steps of a killed attempt that some rank had not recorded yet
    share       the samples of a step that one rank trains
"""

from __future__ import annotations

import hashlib
import json
import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from operator import index
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

# %% active="py"
from trainer_core.order import EpochOrder


# %%
class LedgerLine(NamedTuple):
    """What one rank trained on in one optimizer step."""

    attempt: int
    epoch: int
    step: int
    rank: int
    world_size: int
    samples: array[int]
    time: float  # unix seconds at the end of the step; 0.0 if missing
    step_s: float
    is_skipped: bool  # the optimizer skipped the update; the samples still count as trained

    def __str__(self) -> str:
        return f"step {self.step} rank {self.rank} attempt {self.attempt}"


Steps = dict[int, list[LedgerLine]]  # the lines of a step, by rank


def world_size_of(lines: list[LedgerLine]) -> int:
    """The world size of a step; 1 if it has no lines."""
    return max((line.world_size for line in lines), default=1)


# %%
def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects in a file, one per line; skips a line that a kill truncated."""
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record


def read_ledger(run_dir: Path | str) -> dict[int, Steps]:
    """The lines of each attempt and step, by rank; skips anything that is not a ledger line.

    Skipping is safe: if a skipped line mattered, the audit reports it as missing.
    """
    attempts: dict[int, Steps] = {}
    keys = LedgerLine._fields[:5]
    for path in sorted(Path(run_dir, "ledger").glob("rank-*.jsonl")):
        for record in read_jsonl(path):
            try:
                attempt, epoch, step, rank, world_size = (index(record[key]) for key in keys)
                time, step_s = as_seconds(record.get("time")), as_seconds(seconds_of(record))
                samples = array("q", record["samples"])
            except (KeyError, TypeError, ValueError, OverflowError):
                continue
            if min(attempt, epoch, rank, step - 1, world_size - 1) >= 0:
                key, rest = (attempt, epoch, step, rank, world_size), (time, step_s)
                line = LedgerLine(*key, samples, *rest, record.get("skipped") is True)
                attempts.setdefault(attempt, {}).setdefault(step, []).append(line)
    for steps in attempts.values():
        for lines in steps.values():
            lines.sort(key=lambda line: line.rank)
    return dict(sorted(attempts.items()))


# %%
def seconds_of(record: Mapping[str, Any]) -> object:
    """A step's time: as recorded, or, in the lines of live.py, the sum of its phases."""
    phases = record.get("phases")
    if isinstance(phases, dict):
        return sum(as_seconds(phase) for phase in phases.values())
    return record.get("step_s")


class RunLogs(NamedTuple):
    """What the audit needs from the ranks' logs."""

    newest: dict[tuple[int, str], int]  # (attempt, event): the highest step it was logged for
    alive: list[tuple[int, float]]  # (attempt, time) of rank 0's records and of any hang
    started: dict[int, float]  # attempt: start of rank 0's process; no entry if unknown


def as_seconds(value: object) -> float:
    """``value`` if it is a finite number, otherwise 0.0."""
    if isinstance(value, int | float) and abs(value) < 1e15:  # False for NaN
        return float(value)
    return 0.0


def live_starts(run_dir: Path | str) -> Iterator[dict[str, Any]]:
    """What live.py recorded when it started: its settings, and the step that it restored."""
    for path in sorted(Path(run_dir, "ledger").glob("rank-*.jsonl")):
        for record in read_jsonl(path):
            if record.get("event") == "run_start":
                yield record


def live_saved(run_dir: Path | str) -> int:
    """The newest step of which live.py has an intact checkpoint; 0 if there is none."""
    paths = sorted(Path(run_dir, "checkpoints").glob("step-*/manifest.json"), reverse=True)
    for path in paths:
        with suppress(OSError, ValueError, KeyError, TypeError):
            manifest = json.loads(path.read_text())
            with path.with_name("state.pt").open("rb") as file:
                if manifest["sha256"] == hashlib.file_digest(file, "sha256").hexdigest():
                    return index(manifest["step"])
    return 0


def read_live_logs(run_dir: Path | str) -> RunLogs:
    """What live.py's ledger and checkpoints say of its starts and saves: it has no log."""
    logs = RunLogs({}, [], {})
    # Before the starts: a run in progress may save more while we read.
    saved, last = live_saved(run_dir), -1
    for start in live_starts(run_dir):
        match start:
            case {"attempt": int(attempt), "step": int(step), "rank": int(rank)}:
                last = max(last, attempt)
                logs.newest[attempt, "run_start"] = step
                if step:
                    logs.newest[attempt, "checkpoint_restored"] = step
                if rank == 0 and (time := as_seconds(start.get("time"))):
                    logs.alive.append((attempt, time))
    # The newest intact checkpoint is what the last attempt restored, or its own.
    if last >= 0:
        logs.newest[last, "checkpoint_saved"] = saved
    return logs


def read_logs(run_dir: Path | str) -> RunLogs:
    """Read every rank's log; incomplete records are left out."""
    logs = read_live_logs(run_dir)
    for path in sorted(Path(run_dir, "logs").glob("rank-*.jsonl")):
        for record in read_jsonl(path):
            match record:
                case {"attempt": int(attempt), "event": str(event), "step": int(step)}:
                    key = attempt, event
                    logs.newest[key] = max(step, logs.newest.get(key, 0))
            match record:
                # Any rank may report a hang, and that report ends the attempt.
                case {"attempt": int(attempt), "rank": 0} | {
                    "attempt": int(attempt),
                    "event": "hang",
                }:
                    if time := as_seconds(record.get("time")):
                        logs.alive.append((attempt, time))
                    if started := as_seconds(record.get("process_started")):
                        logs.started[attempt] = started
    return logs


# %%
class RunPlan(NamedTuple):
    """What a run's sample order depends on, and how long the run is."""

    num_samples: int
    seed: int
    global_batch_size: int
    total_steps: int
    is_live: bool = False  # live.py's: it shuffles each epoch in memory

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps that train each sample once."""
        return -(-self.num_samples // self.global_batch_size)

    def shuffled(self, epoch: int) -> NDArray[np.int64]:
        """The samples of an epoch as live.py orders them, by its rule and not by its code."""
        key = repr(("order", self.seed, epoch)).encode()
        word = int.from_bytes(hashlib.sha256(key).digest()[:8])
        return np.random.default_rng(word).permutation(self.num_samples)


def read_plan(run_dir: Path | str) -> RunPlan:
    """Read the plan from the run's config.json, or from the last start that live.py recorded.

    Raises:
        ValueError: if neither is usable.
    """
    path = Path(run_dir, "config.json")
    starts = [] if path.exists() else list(live_starts(run_dir))
    try:
        if starts:
            last = max(starts, key=lambda start: start["attempt"])
            names = ("dataset_size", "seed", "global_batch_size", "max_epochs")
            n, seed, batch, epochs = (index(last[name]) for name in names)
            total_steps = epochs * -(-n // max(batch, 1))
        else:
            config = json.loads(path.read_text(encoding="utf-8"))
            n, seed, batch = (index(config["identity"][name]) for name in RunPlan._fields[:3])
            total_steps = index(config["total_steps"])
        if min(n, batch, total_steps) < 1:
            raise ValueError("a size below 1")
        return RunPlan(n, seed, batch, total_steps, bool(starts))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: unusable ({type(error).__name__}: {error}). The audit compares the "
            "ledger with the plan in this file. Name the folder you gave launch.py as "
            "--run-dir."
        ) from None


# %%
def surviving_lineage(ledger: dict[int, Steps], logs: RunLogs) -> tuple[Steps, int, list[int]]:
    """The lineage's lines by step, the last step they should reach, and the steps in flight.

    A kill can land after one rank has written its line for a step and before another has.
    Trailing steps like that are not judged, unless a checkpoint or the attempt's final event
    says they were finished.

    Raises:
        ValueError: if there is nothing to judge.
    """
    last = max(ledger, default=0)
    stops = [logs.newest.get((last, event), 0) for event in ("run_end", "preempted")]
    saved = logs.newest.get((last, "checkpoint_saved"), 0)
    steps, in_flight = ledger.get(last, {}), list[int]()
    end = max(steps, default=0)
    while end in steps and end > saved and not any(stops):
        if len({line.rank for line in steps[end]}) >= world_size_of(steps[end]):
            break
        in_flight.append(end)
        end -= 1
    if end < 1:
        raise ValueError(
            "ledger/rank-*.jsonl has no surviving step that every rank recorded (in flight: "
            f"{len(in_flight)}), so there is nothing to audit. Train first; if the run has "
            "trained, look for a missing rank file."
        )
    lineage: Steps = {}
    for steps in ledger.values():  # attempts in ascending order, so the highest wins
        lineage |= steps
    end = max(end, saved, *stops)
    return {step: lines for step, lines in lineage.items() if step <= end}, end, in_flight[::-1]


# %%
Place = tuple[int, int, int]  # step, rank, position in the rank's share


@dataclass(kw_only=True, slots=True)
class Findings:
    """What refutes the run: every finding counted, the first few of each kind kept.

    They are kept as text for the report and as places for the sample map.
    """

    counts: Counter[str] = field(default_factory=Counter)
    texts: list[str] = field(default_factory=list)
    places: dict[str, list[Place]] = field(default_factory=dict)

    def add(self, kind: str, text: str, place: Place = (0, 0, 0)) -> None:
        """Record one finding."""
        self.counts[kind] += 1
        if self.counts[kind] <= 5:
            self.texts.append(text)
        if self.counts[kind] <= 1000:
            self.places.setdefault(kind, []).append(place)


def name_few(samples: Any) -> str:
    """The first five of ``samples``, for a message."""
    return ", ".join(map(str, samples[:5])) + (", ..." if len(samples) > 5 else "") or "none"


# %%
def judge_attempts(
    found: Findings, ledger: dict[int, Steps], lineage: Steps, logs: RunLogs
) -> list[int]:
    """Check that each attempt continues where its checkpoint ended.

    Without this check, lost work could fill a gap that the weights never saw.

    Returns:
        The attempts whose start is not logged: what they restored is taken on trust.
    """
    logged = {attempt for attempt, event in logs.newest if event == "run_start"}
    trusted = list[int]()
    for attempt in sorted({lines[0].attempt for lines in lineage.values()}):
        first = min(ledger[attempt])
        # An attempt that logs a start but no restore began with fresh weights.
        restored = logs.newest.get((attempt, "checkpoint_restored"), 0)
        if attempt not in logged and first > 1:
            trusted.append(attempt)
        elif first != restored + 1:
            what = f"step {restored}" if restored else "nothing"
            text = f"attempt {attempt} restored {what}, but its first step was {first}"
            found.add("holes", f"{text}; look for checkpoint_restored in logs/")
    for before, step in pairwise(sorted(lineage)):
        newer, older = lineage[before][0], lineage[step][0]
        if older.attempt < newer.attempt:
            text = (
                f"this line is lost work, yet the step before is from attempt {newer.attempt}"
            )
            found.add("holes", f"{older}: {text}; look in ledger/ for the missing line")
    return trusted


# %%
def judge_step(
    found: Findings, epoch: int, step: int, planned: NDArray[np.int64], lines: list[LedgerLine]
) -> bool:
    """Compare the lines of one step with the planned samples; True if they match."""
    world_size = world_size_of(lines)
    ranks = [line.rank for line in lines]
    is_same = len(ranks) == world_size and ranks == list(range(world_size))
    if not is_same:
        text = (
            f"lines from ranks {name_few(ranks)}, expected one from each of 0..{world_size - 1}"
        )
        found.add("incomplete_steps", f"epoch {epoch} step {step}: {text}; look in ledger/")
    for line in lines:
        has, due = line.samples.tolist(), planned[line.rank :: world_size].tolist()
        if (has, line.epoch, line.world_size) == (due, epoch, world_size):
            continue
        is_same = False
        at = next((at for at, two in enumerate(zip_longest(has, due)) if two[0] != two[1]), 0)
        text = f"trained {name_few(has[at:])} instead of {name_few(due[at:])}"
        if has == due:
            text = f"claims epoch {line.epoch} and world size {line.world_size}"
            text += f" instead of {epoch} and {world_size}"
        look = f"look in ledger/rank-{line.rank}.jsonl"
        found.add("wrong_lines", f"epoch {epoch} {line}: {text}; {look}", (step, line.rank, at))
    return is_same


# %%
def planned_batches(plan: RunPlan, epoch: int) -> Iterator[NDArray[np.int64]]:
    """The planned sample ids of each step of an epoch, computed in blocks of many steps."""
    batch = plan.global_batch_size
    block = max(1, 65_536 // batch) * batch
    if plan.is_live:
        shuffled = plan.shuffled(epoch)
    else:
        order = EpochOrder(plan.num_samples, seed=plan.seed, epoch=epoch)
    for first in range(0, plan.num_samples, block):
        end = min(first + block, plan.num_samples)
        samples = shuffled[first:end] if plan.is_live else order.samples(first, end)
        yield from (samples[at : at + batch] for at in range(0, len(samples), batch))


# %%
def judge_epoch(
    found: Findings, plan: RunPlan, epoch: int, steps: range, lineage: Steps
) -> None:
    """Judge the ``steps`` of an epoch that are due: repeats, each step by itself, misses."""
    lines = [line for step in steps for line in lineage.get(step, [])]
    ids = np.concatenate([array("q"), *(line.samples for line in lines)])
    trained, times = np.unique(ids, return_counts=True)
    again, earlier = set(trained[times > 1].tolist()), dict[int, LedgerLine]()
    for line in lines if again else []:
        for at, sample in enumerate(line.samples):
            if sample in earlier:
                text = f"sample {sample} was trained in {earlier[sample]} and again in {line}"
                found.add("duplicates", f"epoch {epoch}: {text}", (line.step, line.rank, at))
            elif sample in again:
                earlier[sample] = line
    trained = np.append(trained, -1)  # a sentinel for ids that sort after the last
    for step, planned in zip(steps, planned_batches(plan, epoch), strict=False):
        lines = lineage.get(step, [])
        if judge_step(found, epoch, step, planned, lines):
            continue
        is_missed = trained[np.searchsorted(trained[:-1], planned)] != planned
        for slot in np.flatnonzero(is_missed).tolist():
            at, rank = divmod(slot, world_size_of(lines))
            text = f"sample {planned[slot]}, due on rank {rank}, is in no line of this epoch"
            found.add("misses", f"epoch {epoch} step {step}: {text}", (step, rank, at))


# %%
REFUTING = ("duplicates", "misses", "wrong_lines", "incomplete_steps", "holes")


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditReport:
    """The verdict on a run folder, and the numbers behind it."""

    status: Literal["proved", "refuted", "no_evidence"]
    verdict: str  # one sentence
    epochs: int = 0  # completed
    steps: int = 0  # length of the lineage
    total_steps: int = 0  # planned
    duplicates: int = 0  # trainings of a sample beyond its first in an epoch
    misses: int = 0  # samples due in the lineage that no line of their epoch has
    wrong_lines: int = 0  # lines that differ from the rank's share of the step
    incomplete_steps: int = 0  # steps without exactly one line from every rank
    holes: int = 0  # places where an attempt does not continue where its checkpoint ended
    replayed_steps: int = 0  # steps that more than one attempt trained
    attempts: int = 0
    goodput: float | None = None  # useful_s / wall_s; None without timestamps
    useful_s: float = 0.0  # step time of the lineage, on rank 0
    wall_s: float = 0.0  # over all attempts: process start to last sign of life
    between_attempts_s: float = 0.0
    in_flight_steps: list[int] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)  # the first of each kind
    notes: list[str] = field(default_factory=list)  # caveats for the reader
    places: dict[str, list[Place]] = field(default_factory=dict)  # of the findings, by kind


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


def measure_times(ledger: dict[int, Steps], lineage: Steps, logs: RunLogs) -> dict[str, Any]:
    """Goodput and its parts, in seconds, from rank 0's ledger and log."""
    lives = lives_of_attempts(ledger, logs).values()
    useful_s = sum(
        line.step_s for lines in lineage.values() for line in lines if line.rank == 0
    )
    wall_s = sum(end - begin for begin, end in lives)
    between_s = sum(after.begin - before.end for before, after in pairwise(lives))
    goodput = useful_s / wall_s if useful_s > 0 and wall_s > 0 else None
    times = {"useful_s": useful_s, "wall_s": wall_s, "between_attempts_s": between_s}
    return {"goodput": goodput, **times}


# %%
def audit_run(run_dir: Path | str) -> AuditReport:
    """Prove or refute that the lineage trained each sample exactly once per epoch, in order.

    Only reads files, and never raises because of what is in them.
    """
    # The logs first. If a run in progress saved between the two reads, logs that were read last
    # would have a save whose steps the ledger lacks.
    logs, ledger = read_logs(run_dir), read_ledger(run_dir)
    try:
        plan = read_plan(run_dir)
        lineage, end, in_flight = surviving_lineage(ledger, logs)
    except ValueError as error:
        return AuditReport(status="no_evidence", verdict=str(error))
    found, total, per_epoch = Findings(), plan.total_steps, plan.steps_per_epoch
    trusted = judge_attempts(found, ledger, lineage, logs)
    if end > total:
        text = f"the run trained up to step {end}, but its plan ends at step {total}"
        found.add("unplanned_steps", f"{text}; look at total_steps in config.json")
    for epoch in range(-(-min(end, total) // per_epoch)):
        first = epoch * per_epoch + 1
        due = range(first, min(end, total, first + per_epoch - 1) + 1)
        judge_epoch(found, plan, epoch, due, lineage)

    verdict = ", ".join(f"{kind.replace('_', ' ')}: {n}" for kind, n in found.counts.items())
    epochs, rest = divmod(end, per_epoch)
    notes, so_far = [], f"{rest * plan.global_batch_size} of {plan.num_samples} samples so far"
    if end < total:
        notes.append(f"unfinished: step {end} of {total}; epoch {epochs}: {so_far}")
    if in_flight:
        notes.append(f"in flight, not judged: steps {name_few(in_flight)}")
    if trusted:
        text = "which checkpoint they restored is taken on trust"
        notes.append(f"no log of attempts {name_few(trusted)}: {text}")
    if skipped := [step for step, lines in lineage.items() if lines[0].is_skipped]:
        notes.append(
            f"trained, but the optimizer update was skipped: steps {name_few(skipped)}"
        )
    tries = Counter(step for steps in ledger.values() for step in steps)
    return AuditReport(
        status="refuted" if found.counts else "proved",
        verdict=verdict or f"each sample due by step {end} of {total} was trained exactly once",
        epochs=epochs,
        steps=end,
        total_steps=total,
        attempts=len({*ledger, *dict(logs.alive)}),
        replayed_steps=sum(count > 1 for count in tries.values()),
        in_flight_steps=in_flight,
        findings=found.texts,
        notes=notes,
        places=found.places,
        **{kind: found.counts[kind] for kind in REFUTING},
        **measure_times(ledger, lineage, logs),
    )
