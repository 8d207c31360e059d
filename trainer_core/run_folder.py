"""What a run folder says about the run in it, and whether this start may go on with it.

Leaned on by cell 8 (launch). Only ``prepare_run_dir`` writes.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist

# %% active="py"
from trainer_core.checkpoint import latest_checkpoint_path
from trainer_core.checkpoint_format import (
    fsync_path,
    published_steps,
    remove_leftovers,
    set_aside,
)
from trainer_core.collectives import errors_on_all_ranks, gather_objects
from trainer_core.config import TrainConfig
from trainer_core.data import StepSchedule
from trainer_core.datasets import SampleSource
from trainer_core.settings import UserError, flag_name


# %%
@dataclass(slots=True)
class Start:
    """What rank 0 has read in the run folder and decided; the other ranks follow."""

    cfg: TrainConfig
    record: dict[str, Any]  # config.json, and what each manifest repeats of it
    attempt: int
    checkpoint: Path | None
    damaged: dict[Path, str]
    changes: dict[str, list[Any]]  # setting: [value before, value now]
    seen: list[Any]  # what_is_seen, before anything was read
    lock: IO[str] | None = None  # of rank 0, while it trains


def decide_start(
    cfg: TrainConfig, schedule: StepSchedule, identity: dict[str, Any], agents: list[str]
) -> Start:
    """Read the run folder and decide how to go on.

    Args:
        agents: of torchrun, that have started the ranks of this job; one per node.

    Raises:
        UserError: if the folder is not a run's, holds another run, or has checkpoints of which
            none is whole.
    """
    run_dir = choose_run_dir(cfg, agents)
    seen = what_is_seen(run_dir)
    checkpoint, manifest, damaged = latest_checkpoint_path(run_dir / "checkpoints")
    earlier = read_run_record(run_dir) or manifest
    for known in (earlier, manifest):
        refuse_other_run(run_dir, identity, known.get("identity", identity))
    before = earlier.get("config", {})
    # The schedule's horizon is fixed at the first start, unless the user moves it.
    horizon = cfg.decay_steps or before.get("decay_steps") or schedule.total_steps
    cfg = replace(cfg, run_dir=run_dir, decay_steps=horizon)
    config = {**asdict(cfg), "run_dir": str(run_dir)}
    changes = {
        name: [before[name], value]
        for name, value in config.items()
        if before.get(name, value) != value and name not in ("run_dir", "data", "start_over")
    }
    record = {
        "run_id": earlier.get("run_id") or os.urandom(6).hex(),
        "start_id": os.urandom(6).hex(),
        "config": config,
        "digest": cfg.digest(),
        "identity": identity,
        "steps_per_epoch": schedule.steps_per_epoch,
        "total_steps": schedule.total_steps,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "agents": agents,
    }
    log = run_dir / "logs" / "rank-0.jsonl"
    # A kill may have cut the last number, but not the one before, which is not smaller.
    attempts = re.findall(rb'"attempt": (\d+)', log.read_bytes() if log.exists() else b"")
    attempt = 1 + max(map(int, attempts), default=-1)
    return Start(cfg, record, attempt, checkpoint, damaged, changes, seen)


# %%
def run_identity(cfg: TrainConfig, schedule: StepSchedule, fingerprint: str) -> dict[str, Any]:
    """What makes two starts the same run: data, order, global batch, model."""
    own = {"toy": "input_dim", "tokens": "num_heads seq_len vocab_size"}.get(cfg.data_kind, "")
    return {
        "data": cfg.data_kind,
        "num_samples": schedule.num_samples,
        "dataset_fingerprint": fingerprint,
        "global_batch_size": schedule.global_batch_size,
        **{name: getattr(cfg, name) for name in f"seed hidden_dim num_layers {own}".split()},
    }


def refuse_other_run(run_dir: Path, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Raise UserError naming each identity field that differs, both values, and the way out."""
    flags = {
        "num_samples": "--dataset-size",
        "global_batch_size": "--pinned-global-batch-size",
        "dataset_fingerprint": "the data with fingerprint",
    }
    # Other data has another size and another model; the rest follows from it. A record of an
    # older version may lack a field.
    names = ["data"] if ours["data"] != theirs["data"] else [n for n in ours if n in theirs]
    differ = [name for name in names if ours[name] != theirs[name]]
    if differ:
        found = "; ".join(f"{n} is {theirs.get(n)} there, {ours[n]} here" for n in differ)
        values = {**theirs, **({"data": "tokens:PATH"} if theirs["data"] == "tokens" else {})}
        remedy = ", ".join(f"{flags.get(n, flag_name(n))} {values.get(n)}" for n in differ)
        raise UserError(
            f"{run_dir} belongs to another run: {found}. A resume with it would replay or skip "
            f"samples, or need other weights. Use {remedy}; or another --run-dir."
        )


def agent_of_this_rank() -> str | None:
    """Names the torchrun agent that has started this rank, over all its restarts; or None."""
    run_id = os.environ.get("TORCHELASTIC_RUN_ID")
    return run_id and f"{run_id}/{platform.node()}/{os.getppid()}"


def choose_run_dir(cfg: TrainConfig, agents: list[str]) -> Path:
    """``run_dir``, or with ``start_over`` the first unused folder beside it: RUN-2, RUN-3, ...

    Ranks that torchrun starts again go on in the folder that their first start made. One agent
    that was there is enough: others may have died since, also that of rank 0.
    """
    run_dir = first = cfg.run_dir.absolute() if cfg.start_over else cfg.run_dir
    if run_dir.exists() and not run_dir.is_dir():
        raise UserError(
            f"--run-dir {run_dir}: a file, but a run keeps checkpoints and logs in a folder. "
            "Name a folder, or a path that does not exist yet."
        )
    number = 1
    while cfg.start_over and run_dir.exists():
        if set(agents) & set(read_run_record(run_dir).get("agents", ())):
            break
        number += 1
        run_dir = first.with_name(f"{first.name}-{number}")
    return run_dir


def read_run_record(run_dir: Path) -> dict[str, Any]:
    """The content of RUN/config.json, or an empty dict without one."""
    path = run_dir / "config.json"
    if not path.exists():
        return {}
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        record["identity"]["data"], record["config"].keys(), record["run_id"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: not written by this trainer ({type(error).__name__}: {error}). What "
            "another program keeps there is not overwritten. Use another --run-dir."
        ) from error
    return record


def what_is_seen(run_dir: Path) -> list[Any]:
    """What each start and each checkpoint changes: the newest start's id, the steps saved."""
    return [read_run_record(run_dir).get("start_id"), *published_steps(run_dir / "checkpoints")]


def prepare_run_dir(start: Start, rank: int) -> None:
    """Rank 0 locks the folder, writes config.json whole or not at all, sets damage aside.

    Raises:
        UserError: if another job trains in the folder.
    """
    run_dir, checkpoints = start.cfg.run_dir, start.cfg.run_dir / "checkpoints"
    if rank == 0:
        is_new = not run_dir.exists()
        checkpoints.mkdir(parents=True, exist_ok=True)
        if is_new:
            fsync_path(run_dir.parent)
        start.lock = lock_run_dir(run_dir / "lock", start.seen)
        remove_leftovers(checkpoints, "tmp-*")  # first: they may be what fills the disk
        temporary = run_dir / "config.json.tmp"
        temporary.write_text(json.dumps({"format": 1, **start.record}, indent=1))
        fsync_path(temporary)
        temporary.replace(run_dir / "config.json")
        fsync_path(run_dir)
        for folder in start.damaged:
            set_aside(folder)


def lock_run_dir(path: Path, seen: Sequence[Any]) -> IO[str]:
    """Lock the run folder until the file is closed; a kill sets it free as well.

    A lock of the process (lockf), not of the open file (flock): loader workers do not inherit
    it, so one that outlives its rank does not keep the folder locked.

    Raises:
        UserError: if another job has the lock, or had it since ``seen`` was: what this start
            has decided is out of date then.
    """
    file = path.open("a+")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if what_is_seen(path.parent) != seen:
            raise BlockingIOError("trained here between the decision and the lock")
    except BlockingIOError as error:
        with file:
            owner = path.read_text().strip()
        raise UserError(
            f"{path.parent}: another job trains here, or did just now ({owner}), and two would "
            "delete each other's checkpoints. Wait for it or end it, and start again."
        ) from error
    file.truncate(0)
    print(f"process {os.getpid()} on {platform.node()}", file=file, flush=True)
    return file


# %%
def agree_on_start(cfg: TrainConfig, source: SampleSource, schedule: StepSchedule) -> Start:
    """Rank 0 reads and decides; the others follow if they see the same folder.

    Collective: every rank.

    Raises:
        UserError: on every rank, what rank 0 has found, or that the views differ.
    """
    start, identity = None, run_identity(cfg, schedule, source.fingerprint)
    agents = sorted({agent for agent in gather_objects(agent_of_this_rank()) if agent})
    with errors_on_all_ranks():
        if not dist.is_initialized() or dist.get_rank() == 0:
            start = decide_start(cfg, schedule, identity, agents)
    # As plain data: a class that was typed in a notebook has no name that pickle could send.
    shared = gather_objects(start and asdict(start))[0]
    agreed = Start(**{**shared, "cfg": TrainConfig(**shared["cfg"])})
    run_dir = agreed.cfg.run_dir
    with errors_on_all_ranks():
        seen = what_is_seen(run_dir)
    mine = {"start_id, steps": seen, "total_steps": schedule.total_steps, **identity}
    for rank, theirs in enumerate(gather_objects(mine)):
        if theirs != mine:
            raise UserError(
                f"{run_dir}: this rank sees {mine}, rank {rank} {theirs}. From different "
                "checkpoints or data the ranks would train different weights. Put --run-dir "
                "and the data on a disk that all nodes share, and give all the same flags."
            )
    return agreed


def confirm_run_dir(start: Start) -> None:
    """Raise UserError if rank 0's config.json is not seen here: the disk is not shared."""
    if read_run_record(start.cfg.run_dir).get("start_id") != start.record["start_id"]:
        raise UserError(
            f"{start.cfg.run_dir}: rank 0 has written a config.json that is not seen here. The "
            "run's evidence would be torn in two. Put --run-dir on a disk that all nodes share."
        )
