"""Whether a start may resume the run in its folder, and from which checkpoint.

Supports cell 8 (launch).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# %% active="py"
from trainer_core.checkpoint import latest_checkpoint_path
from trainer_core.checkpoint_format import describe
from trainer_core.collectives import errors_on_all_ranks, gather_objects
from trainer_core.config import TrainConfig
from trainer_core.data import StepSchedule
from trainer_core.datasets import SampleSource
from trainer_core.memory import refuse_what_cannot_fit
from trainer_core.run_folder import (
    Start,
    agent_of_this_rank,
    choose_run_dir,
    next_attempt,
    observed_state,
    read_run_record,
    refuse_unusable,
)
from trainer_core.settings import UserError, flag_name


# %%
def run_identity(cfg: TrainConfig, schedule: StepSchedule, fingerprint: str) -> dict[str, Any]:
    """What makes two starts the same run: data, order, global batch, model.

    It consists of the identity fields that this kind of data reads. Two of them are compared by
    their meaning, not their spelling: ``data`` by its content (a moved file is the same data),
    and ``dataset_size`` by the number of samples (asking for all of them changes nothing). The
    hash of all data is compared if this start computes it and an earlier one did.
    """
    identity = {
        "data": cfg.data_kind,
        "num_samples": schedule.num_samples,
        "dataset_fingerprint": fingerprint,
        "global_batch_size": schedule.global_batch_size,
    }
    for spec in fields(cfg):
        is_read = spec.metadata.get("only") in (None, cfg.data_kind)
        is_identity = spec.metadata["kind"] == "identity"
        if is_identity and is_read and spec.name not in ("data", "dataset_size"):
            identity[spec.name] = getattr(cfg, spec.name)
    if cfg.hash_all_data and cfg.data_kind == "tokens":
        identity["dataset_sha256"] = describe(Path(cfg.data.removeprefix("tokens:")))["sha256"]
    return identity


def refuse_other_run(run_dir: Path, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Raise UserError naming each identity field that differs, both values, and the way out."""
    if ours["data"] != theirs["data"]:
        names = ["data"]  # size and model differ with it; no need to list them
    else:
        names = [name for name in ours if name in theirs]  # an older version may lack a field
    differing = [name for name in names if ours[name] != theirs[name]]
    if not differing:
        return
    flags = {
        "num_samples": "--dataset-size",
        "global_batch_size": "--pinned-global-batch-size",
        "dataset_fingerprint": "the data with fingerprint",
        "dataset_sha256": "the data with SHA-256",
    }
    their_values = dict(theirs)
    if theirs["data"] == "tokens":
        their_values["data"] = "tokens:PATH"
    found = "; ".join(f"{n} is {theirs[n]} there, {ours[n]} here" for n in differing)
    remedy = ", ".join(f"{flags.get(n, flag_name(n))} {their_values[n]}" for n in differing)
    raise UserError(
        f"{run_dir} belongs to a different run: {found}. Resuming it would replay or skip "
        f"samples, or need different weights. Use {remedy}; or another --run-dir."
    )


# %%
def decide_start(
    cfg: TrainConfig, schedule: StepSchedule, identity: dict[str, Any], agents: list[str]
) -> Start:
    """Read the run folder and decide how to continue. It writes nothing.

    Args:
        agents: the torchrun agents that started the ranks of this job; one per node.

    Raises:
        UserError: if the folder isn't a run's, belongs to a different run, or has checkpoints
            of which none is intact.
    """
    run_dir = choose_run_dir(cfg, agents)
    refuse_unusable(run_dir)
    seen = observed_state(run_dir)
    checkpoint, manifest, damaged = latest_checkpoint_path(run_dir / "checkpoints")
    earlier = read_run_record(run_dir) or manifest
    for known in (earlier, manifest):
        refuse_other_run(run_dir, identity, known.get("identity", identity))
    before = earlier.get("config", {})
    # The schedule's horizon is fixed at the first start, unless the user sets it.
    horizon = cfg.decay_steps or before.get("decay_steps") or schedule.total_steps
    cfg = replace(cfg, run_dir=run_dir, decay_steps=horizon)
    config = {**asdict(cfg), "run_dir": str(run_dir)}
    record = {
        "run_id": earlier.get("run_id") or os.urandom(6).hex(),
        "start_id": os.urandom(6).hex(),
        "config": config,
        "digest": cfg.digest(),
        # A start that doesn't hash all data keeps the hash from an earlier one.
        "identity": {**earlier.get("identity", {}), **identity},
        "steps_per_epoch": schedule.steps_per_epoch,
        "total_steps": schedule.total_steps,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "agents": agents,
    }
    changes = changed_settings(before, config)
    attempt, saved_by = next_attempt(run_dir), manifest.get("attempt")
    return Start(cfg, record, attempt, checkpoint, saved_by, damaged, changes, seen)


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Each setting that differs from the last start's, as [before, now]."""
    changes = {}
    for name, value in now.items():
        is_reported = name not in ("run_dir", "data", "start_over")
        if is_reported and before.get(name, value) != value:
            changes[name] = [before[name], value]
    return changes


def agree_on_start(cfg: TrainConfig, source: SampleSource, schedule: StepSchedule) -> Start:
    """Rank 0 reads and decides; the others follow if they see the same folder.

    Collective: every rank.

    Raises:
        UserError: on every rank: what rank 0 found, or that the ranks see different things.
    """
    with errors_on_all_ranks():
        refuse_what_cannot_fit(cfg, schedule.num_samples)
        identity = run_identity(cfg, schedule, source.fingerprint)
    agents = sorted({agent for agent in gather_objects(agent_of_this_rank()) if agent})
    start = None
    with errors_on_all_ranks():
        if not dist.is_initialized() or dist.get_rank() == 0:
            start = decide_start(cfg, schedule, identity, agents)
    # As plain data: pickle can't send a class that was defined in a notebook.
    shared = gather_objects(start and asdict(start))[0]
    agreed = Start(**{**shared, "cfg": TrainConfig(**shared["cfg"])})
    with errors_on_all_ranks():
        start_id, *steps = observed_state(agreed.cfg.run_dir)
    mine = {
        "start_id": start_id,
        "checkpoints": steps,
        "total_steps": schedule.total_steps,
        **identity,
    }
    for rank, theirs in enumerate(gather_objects(mine)):
        if theirs != mine:
            names = [name for name in mine | theirs if mine.get(name) != theirs.get(name)]
            here = {name: mine.get(name) for name in names}
            there = {name: theirs.get(name) for name in names}
            raise UserError(
                f"{agreed.cfg.run_dir}: this rank sees {here}, rank {rank} sees {there}. With "
                "different checkpoints or data, ranks train different weights. Put --run-dir "
                "and the data on a disk that all nodes share, and give all the same flags."
            )
    return agreed
