"""What a restart needs: saved as one transaction, restored by all ranks or by none.

Cell 6. The question it answers: "the job was killed a second ago; which checkpoint do you
trust, and how do you know it is intact?"
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# %% active="py"
from trainer_core.checkpoint_format import DamagedCheckpoint, published_steps, verify
from trainer_core.checkpoint_writer import CheckpointWriter
from trainer_core.collectives import errors_on_all_ranks, gather_objects
from trainer_core.rng import rng_state
from trainer_core.settings import UserError


# %%
def build_checkpoint(parts: Mapping[str, Any], **facts: Any) -> dict[str, Any]:
    """The state of a run without its random states; it holds the live tensors, not copies.

    Args:
        parts: model (unwrapped, so that names don't depend on DDP), optimizer, scaler (None
            without fp16) and sampler: anything with a ``state_dict``.
        facts: step, epoch, learning_rate, losses (of the last steps).
    """
    states: dict[str, Any] = {}
    for name, part in parts.items():
        # Compared with None: a sampler at the end of its plan has length 0 and is falsy.
        states[name] = None if part is None else part.state_dict()
    return states | facts


def save_checkpoint(
    writer: CheckpointWriter, state: dict[str, Any], manifest: dict[str, Any]
) -> None:
    """Save one step; rank 0 writes for all.

    Collective: every rank, once it has flushed its ledger.

    Raises:
        Exception: on every rank, if this save or the one in flight failed on rank 0.
    """
    # Also the proof that every rank has arrived, with its ledger flushed.
    rng_states = gather_objects(rng_state())
    with errors_on_all_ranks():
        if not dist.is_initialized() or dist.get_rank() == 0:
            writer.save(state, rng_states, manifest)


# %%
def latest_checkpoint_path(
    checkpoints: Path,
) -> tuple[Path | None, dict[str, Any], dict[Path, str]]:
    """The newest intact checkpoint, its manifest, and what is wrong with the newer ones.

    It writes nothing. The caller sets damaged checkpoints aside once the run starts.

    Raises:
        UserError: if there are checkpoints but none is intact, or one has a newer format.
    """
    damaged: dict[Path, str] = {}
    for folder in published_steps(checkpoints).values():
        try:
            return folder, verify(folder), damaged
        except DamagedCheckpoint as reason:
            damaged[folder] = str(reason)
    if damaged:
        newest, reason_text = next(iter(damaged.items()))
        raise UserError(
            f"{newest}: {reason_text}; no older checkpoint is intact either. Continuing "
            "would silently start from scratch. Restore a good copy, or use --start-over."
        )
    return None, {}, {}


def restore_if_present(
    folder: Path | None, parts: Mapping[str, Any], device: torch.device
) -> dict[str, Any] | None:
    """Load a verified checkpoint into ``parts``; returns its state, or None without one.

    Every rank loads it for itself. Hyperparameters stay as configured.
    """
    if folder is None:
        return None
    state: dict[str, Any] = torch.load(
        folder / "state.pt", map_location=device, weights_only=True
    )
    # load_state_dict would silently bring back the old weight decay.
    state["optimizer"]["param_groups"] = parts["optimizer"].state_dict()["param_groups"]
    for name, part in parts.items():
        # A scaler may be new (amp changed to fp16) or gone; config_changed reports both.
        if part is not None and state[name] is not None:
            part.load_state_dict(state[name])
    return state
