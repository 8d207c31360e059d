"""What a run folder says about the run in it, and whether this start may go on with it.

Leaned on by cell 8 (launch). All but ``write_run_record`` only read.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

# %% active="py"
from trainer_core.checkpoint import latest_checkpoint_path
from trainer_core.config import TrainConfig
from trainer_core.data import StepSchedule
from trainer_core.publish import fsync_path, published_steps
from trainer_core.settings import UserError, flag_name
from trainer_core.sources import SampleSource


# %%
@dataclass(frozen=True, slots=True)
class Start:
    """What rank 0 has read in the run folder and decided; the other ranks follow."""

    cfg: TrainConfig
    record: dict[str, Any]  # config.json, and what each manifest repeats of it
    attempt: int
    checkpoint: Path | None
    damaged: dict[Path, str]
    changes: dict[str, list[Any]]  # setting: [value before, value now]


def decide_start(cfg: TrainConfig, source: SampleSource, schedule: StepSchedule) -> Start:
    """Read the run folder and decide how to go on.

    Raises:
        UserError: if the folder is not a run's, holds another run, or has checkpoints of which
            none is whole.
    """
    run_dir = choose_run_dir(cfg)
    checkpoint, manifest, damaged = latest_checkpoint_path(run_dir / "checkpoints")
    earlier = read_run_record(run_dir) or manifest
    identity = run_identity(cfg, source, schedule)
    for known in (earlier, manifest):
        refuse_other_run(run_dir, identity, known.get("identity", identity))
    before = earlier.get("config", {})
    # The schedule's horizon is fixed at the first start, unless the user moves it.
    horizon = cfg.decay_steps or before.get("decay_steps") or schedule.total_steps
    cfg = replace(cfg, run_dir=run_dir, decay_steps=horizon)
    config = {**asdict(cfg), "run_dir": str(run_dir)}
    paths = ("run_dir", "data", "start_over")
    changes = {
        name: [before[name], value]
        for name, value in config.items()
        if before.get(name, value) != value and name not in paths
    }
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    record = {
        "run_id": earlier.get("run_id") or os.urandom(6).hex(),
        "config": config,
        "digest": cfg.digest(),
        "identity": identity,
        "steps_per_epoch": schedule.steps_per_epoch,
        "total_steps": schedule.total_steps,
        "versions": versions,
    }
    attempt = last_attempt(run_dir / "logs" / "rank-0.jsonl") + 1
    return Start(cfg, record, attempt, checkpoint, damaged, changes)


# %%
def run_identity(
    cfg: TrainConfig, source: SampleSource, schedule: StepSchedule
) -> dict[str, Any]:
    """What makes two starts the same run: data, order, global batch, model."""
    decoder = ("num_heads", "seq_len", "vocab_size") if cfg.data_kind == "tokens" else ()
    return {
        "data": cfg.data_kind,
        "num_samples": schedule.num_samples,
        "dataset_fingerprint": source.fingerprint,
        "seed": cfg.seed,
        "global_batch_size": schedule.global_batch_size,
        "model": {name: getattr(cfg, name) for name in ("hidden_dim", "num_layers", *decoder)},
    }


def refuse_other_run(run_dir: Path, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Raise UserError naming each identity field that differs, both values, and the way out."""
    flags = {
        "num_samples": "--dataset-size",
        "global_batch_size": "--pinned-global-batch-size",
        "dataset_fingerprint": "data with the fingerprint",
    }
    here, there = {**ours, **ours["model"]}, {**theirs, **theirs["model"]}
    differ = [name for name in here if name != "model" and here[name] != there.get(name)]
    if differ:
        found = "; ".join(
            f"{name} is {there.get(name)} there, {here[name]} here" for name in differ
        )
        remedy = ", ".join(
            f"{flags.get(name, flag_name(name))} {there.get(name)}" for name in differ
        )
        raise UserError(
            f"{run_dir} belongs to another run: {found}. A resume with it would replay or skip "
            f"samples, or need other weights. Use {remedy}; or another --run-dir."
        )


def choose_run_dir(cfg: TrainConfig) -> Path:
    """``run_dir``, or with ``start_over`` the first unused folder beside it: RUN-2, RUN-3, ...

    Ranks that torchrun starts again go on in the folder that their first start has made.
    """
    run_dir = newest = cfg.run_dir
    if run_dir.exists() and not run_dir.is_dir():
        raise UserError(
            f"--run-dir {run_dir}: a file, but a run keeps its checkpoints and logs in a folder. "
            "Name a folder, or a path that does not exist yet."
        )
    number = 1
    while cfg.start_over and run_dir.exists():
        number, newest, run_dir = (
            number + 1,
            run_dir,
            cfg.run_dir.with_name(f"{cfg.run_dir.name}-{number + 1}"),
        )
    return newest if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) else run_dir


def read_run_record(run_dir: Path) -> dict[str, Any]:
    """The content of RUN/config.json, or an empty dict without one."""
    path = run_dir / "config.json"
    if not path.exists():
        return {}
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        record["identity"]["model"], record["config"].keys(), record["run_id"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: not written by this trainer ({type(error).__name__}: {error}). The folder "
            "is something else's, and nothing in it is overwritten. Use another --run-dir."
        ) from error
    return record


def write_run_record(run_dir: Path, record: Mapping[str, Any]) -> None:
    """Make the run's folders and write RUN/config.json, whole or not at all."""
    (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
    temporary = run_dir / "config.json.tmp"
    temporary.write_text(json.dumps({"format": 1, **record}, indent=1))
    fsync_path(temporary)
    temporary.replace(run_dir / "config.json")
    fsync_path(run_dir)


def last_attempt(log: Path) -> int:
    """The attempt of the log's last whole line; attempts never fall. -1 without a line."""
    if log.exists():
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 2**20))
            for line in reversed(file.read().splitlines()):
                try:
                    return int(json.loads(line)["attempt"])
                except (ValueError, KeyError, TypeError):
                    continue  # cut by a kill
    return -1


def run_view(run_dir: Path) -> list[str]:
    """What this rank sees of the folder: equal on all ranks if the disk is shared."""
    names = [path.name for path in published_steps(run_dir / "checkpoints").values()]
    return ["config.json", *names] if (run_dir / "config.json").exists() else names
