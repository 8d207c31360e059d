"""What a run folder says about its run, and how a start claims it.

Supports cell 8 (launch). Only ``prepare_run_dir`` writes.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

# %% active="py"
from trainer_core.checkpoint_format import (
    UNWRITTEN,
    fsync_path,
    published_steps,
    remove_leftovers,
    set_aside,
)
from trainer_core.config import TrainConfig
from trainer_core.settings import UserError


# %%
@dataclass(slots=True)
class Start:
    """What rank 0 found in the run folder and decided; the other ranks follow."""

    cfg: TrainConfig
    record: dict[str, Any]  # config.json, and what each manifest repeats from it
    attempt: int
    checkpoint: Path | None
    saved_by: int | None  # the attempt that saved the checkpoint, if its manifest says so
    damaged: dict[Path, str]
    changes: dict[str, list[Any]]  # setting: [value before, value now]
    seen: list[Any]  # observed_state before anything else was read


# What reading another program's file as our JSON may raise.
NOT_A_RECORD = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


def read_run_record(run_dir: Path) -> dict[str, Any]:
    """The content of RUN/config.json, or an empty dict if there is none."""
    path = run_dir / "config.json"
    if not path.exists():
        return {}
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        record["identity"]["data"], record["config"].keys(), record["run_id"]
    except (OSError, *NOT_A_RECORD) as error:
        raise UserError(
            f"{path}: not written by this trainer ({type(error).__name__}: {error}). Another "
            "program's file is not overwritten. Use a different --run-dir."
        ) from error
    return record


def observed_state(run_dir: Path) -> list[Any]:
    """What every start and every save changes: the newest start's id, and the saved steps."""
    start_id = read_run_record(run_dir).get("start_id")
    return [start_id, *published_steps(run_dir / "checkpoints")]


def next_attempt(run_dir: Path) -> int:
    """The number of this start, from 0: one more than the highest on record in the folder.

    No single source is enough: logs get cleaned up, a ledger may lack an attempt that was
    killed in its first step, and old checkpoints are deleted.
    """
    patterns = ("ledger/rank-*.jsonl", "logs/rank-*.jsonl", "checkpoints/*/manifest.json")
    paths = (path for pattern in patterns for path in run_dir.glob(pattern) if path.is_file())
    return 1 + max(map(last_attempt, paths), default=-1)


def last_attempt(path: Path) -> int:
    """The highest attempt in a file's last lines; -1 if there is none.

    Raises:
        UserError: if a number is too large to be an attempt's.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        # Attempts only grow, so the end will do, unless a single line is longer than that.
        for length in (65536, size):
            file.seek(max(0, size - length))
            # A kill may have truncated the last number; then nothing follows it.
            if numbers := re.findall(rb'"attempt": (\d+)[,}\s]', file.read()):
                return max(attempt_number(digits, path) for digits in numbers)
    return -1


def attempt_number(digits: bytes, path: Path) -> int:
    """The number of an attempt, as a file has it. Raises UserError if it can't be one."""
    if len(digits) > 9:
        # A manifest has a hash of itself: without a line, its checkpoint would be damaged.
        is_manifest = path.name == "manifest.json"
        remedy = "Move that checkpoint away" if is_manifest else "Remove that line"
        raise UserError(
            f"{path}: attempt {digits[:12].decode()}... of {len(digits)} digits, but attempts "
            "count the starts of a run from 0, so this is damaged and the next attempt can't "
            f"be numbered. {remedy}, or use a different --run-dir."
        )
    return int(digits)


# %%
def agent_of_this_rank() -> str | None:
    """Identifies the torchrun agent that started this rank, across its restarts; or None."""
    run_id = os.environ.get("TORCHELASTIC_RUN_ID")
    return run_id and f"{run_id}/{platform.node()}/{os.getppid()}"


def choose_run_dir(cfg: TrainConfig, agents: Sequence[str]) -> Path:
    """``run_dir``, or with ``start_over`` the first unused folder next to it: RUN-2, RUN-3, ...

    Ranks that torchrun restarts stay in the folder of their first start. It is recognized by
    any of the agents that were there: the others, even rank 0's, may have died since.
    """
    run_dir = first = cfg.run_dir.absolute() if cfg.start_over else cfg.run_dir
    if cfg.start_over and ".." in run_dir.parts:
        run_dir = first = run_dir.resolve()  # "RUN/..-2" would be a folder inside RUN
    if run_dir.resolve() == run_dir.resolve().parent:
        raise UserError(
            f"--run-dir {run_dir}: this is the root of the file system, and a run needs a "
            "folder of its own. Name one, such as --run-dir runs/first."
        )
    number = 1
    while cfg.start_over and run_dir.exists():
        if set(agents) & set(read_run_record(run_dir).get("agents", ())):
            break
        number += 1
        run_dir = first.with_name(f"{first.name}-{number}")
    return run_dir


def refuse_unusable(run_dir: Path) -> None:
    """Raise UserError if something else has a name that a run needs. Writes nothing."""
    names = ("checkpoints", "logs", "ledger", "traces")
    folders = [run_dir, *(run_dir / name for name in names)]
    for path in (*folders, run_dir / "lock", run_dir / "config.json"):
        kind = "folder" if path in folders else "file"
        if path.is_symlink() and not path.exists():
            raise UserError(
                f"{path}: a link to {os.readlink(path)}, which doesn't exist, so the run can't "
                f"keep a {kind} there. Create or mount what it points to, or remove the link."
            )
        if path.exists() and path.is_dir() != (kind == "folder"):
            found = "file" if kind == "folder" else "folder"
            raise UserError(
                f"{path}: this is a {found}, but a run keeps a {kind} there. Move it away, or "
                "use a --run-dir that belongs to a run or doesn't exist yet."
            )


# %%
def prepare_run_dir(start: Start, rank: int) -> IO[str] | None:
    """Rank 0 locks the folder, writes config.json, and sets damaged checkpoints aside.

    Returns:
        The lock, held until it is closed; None on other ranks.

    Raises:
        UserError: if another job trains in the folder.
    """
    if rank != 0:
        return None
    run_dir = start.cfg.run_dir
    checkpoints = run_dir / "checkpoints"
    is_new = not run_dir.exists()
    checkpoints.mkdir(parents=True, exist_ok=True)
    if is_new:
        fsync_path(run_dir.parent)
    lock = lock_run_dir(run_dir / "lock", start.seen)
    remove_leftovers(checkpoints, UNWRITTEN)  # first: they may be what fills the disk
    temporary = run_dir / "config.json.tmp"
    temporary.write_text(json.dumps({"format": 1, **start.record}, indent=1))
    fsync_path(temporary)
    temporary.replace(run_dir / "config.json")
    fsync_path(run_dir)
    for folder in start.damaged:
        set_aside(folder)
    return lock


def lock_run_dir(path: Path, seen: Sequence[Any]) -> IO[str]:
    """Lock the run folder until the file is closed; a kill releases it too.

    A lock of the process (lockf), not of the open file (flock): loader workers don't inherit
    it, so one that outlives its rank doesn't keep the folder locked.

    Raises:
        UserError: if another job holds the lock, or held it since ``seen`` was read: then this
            start's decision is out of date.
    """
    file = path.open("a+")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if observed_state(path.parent) != seen:
            raise BlockingIOError("another job trained here between the decision and the lock")
    except BlockingIOError as error:
        with file:
            owner = path.read_text().strip()
        raise UserError(
            f"{path.parent}: another job is training here, or was a moment ago ({owner}). Two "
            "would delete each other's checkpoints. Wait for it or stop it, then start again."
        ) from error
    file.truncate(0)
    print(f"process {os.getpid()} on {platform.node()}", file=file, flush=True)
    return file


def confirm_run_dir(start: Start) -> None:
    """Raise UserError if rank 0's config.json isn't visible here: the disk is not shared."""
    if read_run_record(start.cfg.run_dir).get("start_id") != start.record["start_id"]:
        raise UserError(
            f"{start.cfg.run_dir}: rank 0 wrote a config.json that isn't visible here, so the "
            "run's files would be on two disks. Put --run-dir on a disk that all nodes share."
        )
