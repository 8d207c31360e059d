"""What did the run record? Its ledger, its logs and the manifests of its checkpoints.

A collapsed cell. The question it answers: "the job may have been killed at any instant, or may
still be running; what in its folder can you use?" It reads files and judges nothing. live.py
keeps no log: what it recorded when it started is in its ledger.

    attempt     one start of the job, counted from 0
    step        optimizer step, counted from 1 over the whole run
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard


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
        attempt, step, rank = (start.get(name) for name in ("attempt", "step", "rank"))
        if not (is_count(attempt) and is_count(step) and is_count(rank)):
            continue
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
