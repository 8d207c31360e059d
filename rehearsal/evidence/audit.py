"""Was every sample trained exactly once? Answered from what the run recorded.

A collapsed cell. The question it answers: "the job was killed twice; prove that no sample was
lost and none was trained twice."

    step        optimizer step, counted from 1 over the whole run
    lineage     the surviving one, that is, what the newest weights have seen: the steps of the
                last attempt that trained; before the step that it restored, those of the
                attempt that saved that checkpoint; and so on, back to step 1
    in flight   trailing steps of a killed attempt that some rank had not recorded yet
    share       the samples of a step that one rank trains
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby, pairwise, zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeGuard

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
    """The JSON objects in a file, one per line; skips a line that a kill truncated.

    It reads what was there when it began: a run may be writing to the file.

    Raises:
        OSError: if it can't be read, or isn't a file.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its writer
        raise OSError(f"{path} is not a file")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        for line in file:
            size -= len(line)
            if size < 0:
                return
            try:
                record = json.loads(line.decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                yield record


def rank_files(run_dir: Path | str, part: str) -> list[Path]:
    """RUN/ledger/rank-*.jsonl or RUN/logs/rank-*.jsonl; none if there is no such folder.

    Raises:
        OSError: if the folder can't be read. Path.glob would take that for an empty one.
    """
    folder = Path(run_dir, part)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        if folder.is_symlink():
            raise
        return []
    return sorted(folder / name for name in names if re.fullmatch(r"rank-[0-9]+\.jsonl", name))


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value from JSON is a whole number, 0 or more. True is not one."""
    return type(value) is int and value >= 0


def as_ledger_line(record: Mapping[str, Any]) -> LedgerLine | None:
    """The record as a ledger line; None if it lacks what a line has."""
    key = [record[name] for name in LedgerLine._fields[:5] if is_count(record.get(name))]
    samples = record.get("samples")
    if len(key) < 5 or not isinstance(samples, list) or not set(map(type, samples)) <= {int}:
        return None
    try:
        ids = array("q", samples)
    except OverflowError:
        return None
    attempt, epoch, step, rank, world_size = key
    if step < 1 or world_size < 1:
        return None
    times = as_seconds(record.get("time")), as_seconds(seconds_of(record))
    is_skipped = record.get("skipped") is True
    return LedgerLine(attempt, epoch, step, rank, world_size, ids, *times, is_skipped)


def read_ledger(run_dir: Path | str) -> dict[int, Steps]:
    """The lines of each attempt and step, by rank; skips anything that is not a ledger line.

    Skipping is safe: if a skipped line mattered, the audit reports it as missing.
    """
    attempts: dict[int, Steps] = {}
    for path in rank_files(run_dir, "ledger"):
        for record in read_jsonl(path):
            if (line := as_ledger_line(record)) is not None:
                attempts.setdefault(line.attempt, {}).setdefault(line.step, []).append(line)
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


class Restored(NamedTuple):
    """What a rank says its attempt started from."""

    step: int
    saved_by: int | None  # the attempt that saved it; None in the logs of older versions


class RunLogs(NamedTuple):
    """What the audit needs from the ranks' logs and from the published checkpoints."""

    begun: set[int]  # attempts whose start is logged
    restored: dict[int, set[Restored]]  # by attempt; more than one if the ranks disagree
    ended: set[int]  # attempts that ended on their own
    complete: dict[int, int]  # attempt: a step up to which every rank has recorded its lines
    reported: dict[tuple[int, int], int]  # (attempt, rank): the same for one rank
    saved: dict[int, set[int]]  # step: the attempts that logged a save of it
    published: dict[int, int | None]  # step: the attempt that its manifest names
    damaged: list[int]  # steps of published checkpoints whose manifests aren't intact
    alive: list[tuple[int, float]]  # (attempt, time) of rank 0's records and of any hang
    started: dict[int, float]  # attempt: start of rank 0's process; no entry if unknown


def as_seconds(value: object) -> float:
    """``value`` if it is a finite number, otherwise 0.0."""
    if isinstance(value, int | float) and abs(value) < 1e15:  # False for NaN
        return float(value)
    return 0.0


def raise_to(highest: dict[Any, int], key: Any, step: int) -> None:
    """Keep the highest step seen for ``key``."""
    highest[key] = max(step, highest.get(key, 0))


def live_starts(run_dir: Path | str) -> Iterator[dict[str, Any]]:
    """What live.py recorded when it started: its settings, and the step that it restored."""
    for path in rank_files(run_dir, "ledger"):
        for record in read_jsonl(path):
            if record.get("event") == "run_start":
                yield record


# %%
def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a published checkpoint, if it is intact: it carries a hash of itself.

    live.py's has none. It hashes state.pt instead, which is small.

    Raises:
        OSError: if it can't be read.
    """
    path = folder / "manifest.json"
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        manifest = json.loads(path.read_text(encoding="utf-8"))
        expected = manifest.pop("sha256")
        if "format" in manifest:
            text = json.dumps(manifest, sort_keys=True).encode()
            found = hashlib.sha256(text).hexdigest()
        else:
            with folder.joinpath("state.pt").open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        is_intact = (expected, manifest["step"]) == (found, int(folder.name[5:]))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return manifest if is_intact else None


def read_checkpoints(run_dir: Path | str, logs: RunLogs) -> None:
    """Add what the published checkpoints say: who trained up to which step."""
    folder = Path(run_dir, "checkpoints")
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        if folder.is_symlink():
            raise
        return
    published = sorted(name for name in names if re.fullmatch(r"step-[0-9]{1,18}", name))
    for step, path in ((int(name[5:]), folder / name) for name in published):
        manifest = read_manifest(path)
        if manifest is not None:
            attempt = manifest.get("attempt")
            logs.published[step] = attempt if is_count(attempt) else None
            if is_count(attempt):
                raise_to(logs.complete, attempt, step)
        # A run in progress may have deleted it since we listed the folder.
        elif os.path.lexists(path):
            logs.damaged.append(step)


def read_live_logs(run_dir: Path | str, logs: RunLogs) -> None:
    """Add what live.py's ledger says about starts: it has no log."""
    for start in live_starts(run_dir):
        match start:
            case {"attempt": int(attempt), "step": int(step), "rank": int(rank)}:
                logs.begun.add(attempt)
                logs.restored.setdefault(attempt, set()).add(Restored(step, None))
                if rank == 0 and (time := as_seconds(start.get("time"))):
                    logs.alive.append((attempt, time))
    if logs.begun:
        logs.damaged.clear()  # it replaces them when it gets back there


def read_log_record(record: Mapping[str, Any], logs: RunLogs) -> None:
    """Add what one record of a rank's log says."""
    attempt, step = record.get("attempt"), record.get("step")
    rank, event = record.get("rank"), record.get("event")
    if not (is_count(attempt) and is_count(step) and is_count(rank)):
        return
    if event == "run_start":
        logs.begun.add(attempt)
    elif event == "checkpoint_restored":
        saved_by = record.get("saved_by_attempt")
        restored = Restored(step, saved_by if is_count(saved_by) else None)
        logs.restored.setdefault(attempt, set()).add(restored)
    elif event == "train_progress":
        # Written after the rank's own ledger lines. On a GPU, another rank's may come later.
        raise_to(logs.reported, (attempt, rank), step)
    elif event in ("checkpoint_saved", "run_end", "preempted"):
        raise_to(logs.complete, attempt, step)
        if event == "checkpoint_saved":
            logs.saved.setdefault(step, set()).add(attempt)
        else:
            logs.ended.add(attempt)
    if rank == 0 or event == "hang":  # any rank's report of a hang ends the attempt
        if time := as_seconds(record.get("time")):
            logs.alive.append((attempt, time))
        if started := as_seconds(record.get("process_started")):
            logs.started[attempt] = started


def read_logs(run_dir: Path | str) -> RunLogs:
    """Read the checkpoints' manifests and every rank's log; leaves out incomplete records."""
    logs = RunLogs(set(), {}, set(), {}, {}, {}, {}, [], [], {})
    read_checkpoints(run_dir, logs)
    read_live_logs(run_dir, logs)
    for path in rank_files(run_dir, "logs"):
        for record in read_jsonl(path):
            read_log_record(record, logs)
    return logs


def read_evidence(run_dir: Path | str) -> tuple[dict[int, Steps], RunLogs]:
    """The ledger and the logs, read in an order that is fair to a run in progress.

    A rank logs what it restored before its first ledger line, and what it has finished after
    the lines of those steps. So the logs are read twice: before the ledger, for what has to be
    in it; and after it, for where its attempts began.
    """
    before, ledger, after = read_logs(run_dir), read_ledger(run_dir), read_logs(run_dir)
    return ledger, before._replace(
        begun=after.begun,
        restored=after.restored,
        saved=after.saved,
        alive=after.alive,
        started=after.started,
    )


# %%
MOST_IN_MEMORY = 2**24  # sample ids: 128 MB


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

    def samples_until(self, step: int) -> int:
        """How many samples the steps up to ``step`` train, in all epochs."""
        epoch, rest = divmod(step, self.steps_per_epoch)
        return epoch * self.num_samples + rest * self.global_batch_size

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
    try:
        starts = [] if os.path.lexists(path) else list(live_starts(run_dir))
        if starts:
            last = max(starts, key=lambda start: start["attempt"])
            names = ("dataset_size", "seed", "global_batch_size", "max_epochs")
            n, seed, batch, total_steps = (last[name] for name in names)
        else:
            if not stat.S_ISREG(path.stat().st_mode):
                raise OSError("not a file")
            config = json.loads(path.read_text(encoding="utf-8"))
            n, seed, batch = (config["identity"][name] for name in RunPlan._fields[:3])
            total_steps = config["total_steps"]
        if not all(map(is_count, (n, seed, batch, total_steps))):
            raise ValueError("a number that isn't a whole number, or is below 0")
        if starts and batch:
            total_steps *= -(-n // batch)
        if min(n, batch, total_steps) < 1:
            raise ValueError("a size below 1")
        # Ids are int64; live.py shuffles in memory; and a ledger line lists each of its ids.
        if max(n, total_steps) > 2**63 or (n if starts else min(n, batch)) > MOST_IN_MEMORY:
            raise ValueError("a size that no run can have")
        return RunPlan(n, seed, batch, total_steps, bool(starts))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path}: unusable ({type(error).__name__}: {error}). The audit compares the "
            "ledger with the plan in this file. Name the folder you gave launch.py as "
            "--run-dir."
        ) from None


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
class PlannedSteps:
    """The planned sample ids of any step, computed in blocks of many steps."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.epoch, self.first = -1, 0
        self.block: NDArray[np.int64] = np.empty(0, np.int64)

    def samples(self, step: int) -> NDArray[np.int64]:
        """The sample ids of a step of the plan, in order."""
        plan = self.plan
        epoch, at = divmod(step - 1, plan.steps_per_epoch)
        first = at * plan.global_batch_size
        last = min(first + plan.global_batch_size, plan.num_samples)
        is_known = self.first <= first and last <= self.first + len(self.block)
        if epoch != self.epoch or not is_known:
            size = min(max(last - first, 65_536), plan.num_samples - first)
            self.epoch, self.first = epoch, first
            if plan.is_live:
                self.first, self.block = 0, plan.shuffled(epoch)
            else:
                order = EpochOrder(plan.num_samples, seed=plan.seed, epoch=epoch)
                self.block = order.samples(first, first + size)
        return self.block[first - self.first : last - self.first]


# %%
def judge_epoch(
    found: Findings, planned: PlannedSteps, epoch: int, steps: list[int], lineage: Steps
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
    for step in steps:
        due, lines = planned.samples(step), lineage.get(step, [])
        if judge_step(found, epoch, step, due, lines):
            continue
        is_missed = trained[np.searchsorted(trained[:-1], due)] != due
        for slot in np.flatnonzero(is_missed).tolist():
            at, rank = divmod(slot, world_size_of(lines))
            text = f"sample {due[slot]}, due on rank {rank}, is in no line of this epoch"
            found.add("misses", f"epoch {epoch} step {step}: {text}", (step, rank, at))


MOST_TO_LIST = 1_000_000  # samples of missing steps


def judge_gap(found: Findings, plan: RunPlan, first: int, last: int) -> list[int]:
    """The steps ``first`` to ``last`` have no lines: count most of them, and return the rest.

    A damaged number can make a gap endless, so only its first steps are looked at one by one.
    """
    listed = max(1, MOST_TO_LIST // min(plan.global_batch_size, plan.num_samples))
    rest = range(min(first + listed, last + 1), last + 1)
    if rest:
        text = f"steps {rest[0]} to {last}: no lines from any rank; look in ledger/"
        found.add("incomplete_steps", text, (rest[0], 0, 0))
        found.counts["incomplete_steps"] += len(rest) - 1
        found.counts["misses"] += plan.samples_until(last) - plan.samples_until(rest[0] - 1)
    return list(range(first, rest[0] if rest else last + 1))


def judge_steps(found: Findings, plan: RunPlan, end: int, lineage: Steps) -> None:
    """Judge every step of the plan up to ``end``, epoch by epoch."""
    present = [step for step in lineage if step <= end]
    due = list(present)
    for before, after in pairwise([0, *present, end + 1]):
        if after > before + 1:
            due += judge_gap(found, plan, before + 1, after - 1)
    planned = PlannedSteps(plan)
    for epoch, steps in groupby(sorted(due), lambda step: (step - 1) // plan.steps_per_epoch):
        judge_epoch(found, planned, epoch, list(steps), lineage)


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
    try:
        ledger, logs = read_evidence(run_dir)
        # Last: a start with more epochs writes its plan before it trains.
        plan, lineage = read_plan(run_dir), surviving_lineage(ledger, logs)
    except (OSError, ValueError) as error:
        return AuditReport(status="no_evidence", verdict=str(error))
    found, end = Findings(), lineage.end
    total, per_epoch = plan.total_steps, plan.steps_per_epoch
    for hole in lineage.holes:
        found.add("holes", hole)
    if end > total:
        text = f"the run trained up to step {end}, but its plan ends at step {total}"
        found.add("unplanned_steps", f"{text}; look at total_steps in config.json")
    judge_steps(found, plan, min(end, total), lineage.steps)
    later = [step for step in logs.damaged if step > end]
    if later and not found.counts:
        text = f"checkpoints/step-{later[-1]:08d}: its manifest is damaged or missing, and no "
        text += f"ledger line shows step {later[-1]}, so there is no telling whether the run "
        text += "got there. If it isn't a checkpoint of this run, move it away."
        return AuditReport(status="no_evidence", verdict=text)

    verdict = ", ".join(f"{kind.replace('_', ' ')}: {n}" for kind, n in found.counts.items())
    epochs, rest = divmod(end, per_epoch)
    notes, so_far = [], f"{plan.samples_until(rest)} of {plan.num_samples} samples so far"
    if end < total:
        notes.append(f"unfinished: step {end} of {total}; epoch {epochs}: {so_far}")
    if lineage.in_flight:
        notes.append(f"in flight, not judged: steps {name_few(lineage.in_flight)}")
    if trusted := lineage.trusted[::-1]:
        text = "which checkpoint they restored is taken on trust"
        notes.append(f"no log of attempts {name_few(trusted)}: {text}")
    if skipped := [step for step, lines in lineage.steps.items() if lines[0].is_skipped]:
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
        in_flight_steps=lineage.in_flight,
        findings=found.texts,
        notes=notes,
        places=found.places,
        **{kind: found.counts[kind] for kind in REFUTING},
        **measure_times(ledger, lineage.steps, logs),
    )
