# Derived by scripts/sync_notebooks.py; edit trainer_core/checkpoint_format.py, checkpoint.py.
from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainer_core.checkpoint_format import (
    FORMAT,
    DamagedCheckpoint,
    describe,
    fsync_path,
    manifest_sha256,
    published_steps,
    verify,
)
from trainer_core.checkpoint_writer import CheckpointWriter
from trainer_core.collectives import errors_on_all_ranks, gather_objects
from trainer_core.rng import rng_state
from trainer_core.settings import UserError


def publish(temporary: Path, target: Path, facts: Mapping[str, Any]) -> None:
    """Turn the files in ``temporary`` into the checkpoint ``target``.

    Its manifest is {"format": FORMAT, **facts, "files": {name: describe(path)}}, and the
    ``manifest_sha256`` of that under "sha256".

    Raises:
        FileExistsError: if ``target`` exists; nothing is ever written into a checkpoint.
    """
    raise NotImplementedError


def build_checkpoint(parts: Mapping[str, Any], **facts: Any) -> dict[str, Any]:
    """The state of a run without its random states; it holds the live tensors, not copies.

    Args:
        parts: model (unwrapped, so that names don't depend on DDP), optimizer, scaler (None
            without fp16) and sampler: anything with a ``state_dict``.
        facts: step, epoch, learning_rate, losses (of the last steps).
    """
    raise NotImplementedError


def save_checkpoint(
    writer: CheckpointWriter, state: dict[str, Any], manifest: dict[str, Any]
) -> None:
    """Save one step; rank 0 writes for all.

    Collective: every rank, once it has flushed its ledger.

    Raises:
        Exception: on every rank, if this save or the one in flight failed on rank 0.
    """
    raise NotImplementedError


def latest_checkpoint_path(
    checkpoints: Path,
) -> tuple[Path | None, dict[str, Any], dict[Path, str]]:
    """The newest intact checkpoint, its manifest, and what is wrong with the newer ones.

    It writes nothing. The caller sets damaged checkpoints aside once the run starts.

    Raises:
        UserError: if there are checkpoints but none is intact, or one has a newer format.
    """
    raise NotImplementedError


def restore_if_present(
    folder: Path | None, parts: Mapping[str, Any], device: torch.device
) -> dict[str, Any] | None:
    """Load a verified checkpoint into ``parts``; returns its state, or None without one.

    Every rank loads it for itself. Hyperparameters stay as configured.
    """
    raise NotImplementedError
