"""What a restart needs, saved as one transaction and restored by all ranks or by none.

Cell 6. The question it answers: "the job was killed a second ago; which state is the truth, and
how do you know that it is whole?"
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
    """The state of a run but for the random streams; the tensors in it are the live ones.

    Args:
        parts: model (unwrapped, so that names do not depend on DDP), optimizer, scaler (None
            without fp16) and sampler: whatever has a ``state_dict``.
        facts: step, epoch, learning_rate, losses (of the last steps).
    """
    # Not ``part and ...``: a sampler at the end of the plan has length 0.
    states = {n: None if part is None else part.state_dict() for n, part in parts.items()}
    return states | facts


def save_checkpoint(
    writer: CheckpointWriter, state: dict[str, Any], manifest: dict[str, Any]
) -> None:
    """Save one step; rank 0 writes for all.

    Collective: every rank, when it has flushed its ledger. Gathering the random states is also
    the proof that every rank has come this far.

    Raises:
        Exception: on every rank, if this save or the one in flight has failed on rank 0.
    """
    rng_states = gather_objects(rng_state())
    with errors_on_all_ranks():
        if not dist.is_initialized() or dist.get_rank() == 0:
            writer.save(state, rng_states, manifest)


# %%
def latest_checkpoint_path(
    checkpoints: Path,
) -> tuple[Path | None, dict[str, Any], dict[Path, str]]:
    """The newest checkpoint that holds, its manifest, and what is wrong with newer ones.

    Reads only: damaged ones are set aside by the caller, once the run goes on.

    Raises:
        UserError: if there are checkpoints and none holds, or one has a newer format.
    """
    damaged: dict[Path, str] = {}
    for folder in published_steps(checkpoints).values():
        try:
            return folder, verify(folder), damaged
        except DamagedCheckpoint as reason:
            damaged[folder] = str(reason)
    for folder, why in damaged.items():
        raise UserError(
            f"{folder}: {why}; no older checkpoint is whole either. Training on would silently "
            "begin again. Bring a good copy back, or begin again with --start-over."
        )
    return None, {}, {}


def restore_if_present(
    folder: Path | None, parts: Mapping[str, Any], device: torch.device
) -> dict[str, Any] | None:
    """Load a verified checkpoint into ``parts``; None without one.

    Every rank loads for itself, before DDP is made. Hyperparameters stay as configured: the
    optimizer's own loading would silently bring the old weight decay back.
    """
    if folder is None:
        return None
    state: dict[str, Any] = torch.load(
        folder / "state.pt", map_location=device, weights_only=True
    )
    state["optimizer"]["param_groups"] = parts["optimizer"].state_dict()["param_groups"]
    for name, part in parts.items():
        # A scaler may be new (autocast changed to fp16) or gone; both are in config_changed.
        if part is not None and state[name] is not None:
            part.load_state_dict(state[name])
    return state
