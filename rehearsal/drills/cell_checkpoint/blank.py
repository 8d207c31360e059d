import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainer_core.checkpoint_format import FORMAT, DamagedCheckpoint, describe
from trainer_core.checkpoint_writer import CheckpointWriter
from trainer_core.checkpoint_format import fsync_path, manifest_sha256, published_steps, verify
from trainer_core.rng import rng_state
from trainer_core.settings import UserError
from trainer_core.collectives import errors_on_all_ranks, gather_objects


def build_checkpoint(parts: Mapping[str, Any], **facts: Any) -> dict[str, Any]:
    """The state of a run but for the random streams; the tensors in it are the live ones.

    Args:
        parts: model, optimizer, scaler (None without fp16), sampler: each has a ``state_dict``.
        facts: step, epoch, ...; they stand beside the parts' states.
    """
    raise NotImplementedError


def publish(temporary: Path, target: Path, facts: Mapping[str, Any]) -> None:
    """Turn the files in ``temporary`` into the checkpoint ``target``, manifest.json included.

    ``verify`` reads {"format": FORMAT, **facts, "files": {name: describe(path)}}, and under
    "sha256" the ``manifest_sha256`` of that.

    Raises:
        FileExistsError: if ``target`` exists; a checkpoint is never written into.
    """
    raise NotImplementedError


def save_checkpoint(
    writer: CheckpointWriter, state: dict[str, Any], manifest: dict[str, Any]
) -> None:
    """Save one step: ``writer.save(state, rng_states, manifest)``, by rank 0 for all.

    Collective: every rank.

    Raises:
        Exception: on every rank, if the save has failed on rank 0.
    """
    raise NotImplementedError


def latest_checkpoint_path(
    checkpoints: Path,
) -> tuple[Path | None, dict[str, Any], dict[Path, str]]:
    """The newest checkpoint that holds, its manifest, and what is wrong with newer ones.

    Reads only. Without any checkpoint: (None, {}, {}).

    Raises:
        UserError: if there are checkpoints and none holds.
    """
    raise NotImplementedError


def restore_if_present(
    folder: Path | None, parts: Mapping[str, Any], device: torch.device
) -> dict[str, Any] | None:
    """Load ``folder``/state.pt into ``parts`` and return it; None without a folder.

    Hyperparameters stay as configured.
    """
    raise NotImplementedError
