"""What a restart needs, saved as one transaction and restored by all ranks or by none.

Cell 6. The question it answers: "the job was killed a second ago; which state is the truth, and
how do you know that it is whole?"
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

# %% active="py"
from trainer_core.data import ResumeAwareDistributedSampler
from trainer_core.distributed import all_ranks_together, gather_objects
from trainer_core.publish import CheckpointWriter, DamagedCheckpoint, published_steps, verify
from trainer_core.rng import rng_state, set_rng_state
from trainer_core.settings import UserError


# %%
def build_checkpoint(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler | None,
    sampler: ResumeAwareDistributedSampler,
    **facts: Any,
) -> dict[str, Any]:
    """The state of a run but for the random streams; the tensors in it are the live ones.

    Args:
        model: unwrapped, so that the names do not depend on DDP.
        facts: step, epoch, learning_rate, losses (of the last steps).
    """
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict() if scaler else None,
        "sampler": sampler.state_dict(),
        **facts,
    }


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
    with all_ranks_together():
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
    folder: Path | None,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler | None,
    sampler: ResumeAwareDistributedSampler,
    device: torch.device,
) -> dict[str, Any] | None:
    """Load a verified checkpoint into the parts; None without one.

    Every rank loads for itself, before DDP is made. Hyperparameters stay as configured: the
    optimizer's own loading would silently bring the old learning rate and decay back.
    """
    if folder is None:
        return None
    state: dict[str, Any] = torch.load(
        folder / "state.pt", map_location=device, weights_only=True
    )
    model.load_state_dict(state["model"])
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})
    if scaler is not None and state["scaler"]:
        scaler.load_state_dict(state["scaler"])
    sampler.load_state_dict(state["sampler"])
    return state


def restore_rng(folder: Path | None, rank: int) -> None:
    """Continue this rank's random streams; a rank that the checkpoint lacks keeps its seed."""
    path = folder / f"rng-rank-{rank}.pt" if folder else None
    if path and path.is_file():
        set_rng_state(torch.load(path, weights_only=True))


# %%
def validate_resume(
    state: Mapping[str, Any],
    position: int,
    learning_rate: float,
    needs_scaler: bool,
    next_losses: Sequence[float],
) -> dict[str, bool | None]:
    """What a resume must keep continuous; None where there is too little to judge by.

    Args:
        state: the restored checkpoint.
        position: completed steps when the training went on.
        learning_rate: of the first step after the resume.
        next_losses: over the global batch, of the first steps after the resume.
    """
    before, lr_before = state["losses"], state["learning_rate"]
    loss_continuous = None
    if len(before) > 2 and next_losses:
        jump = statistics.fmean(next_losses) - statistics.fmean(before)
        loss_continuous = abs(jump) <= max(4 * statistics.stdev(before), 0.1 * max(before))
    return {
        "step_monotone": state["step"] == position,
        "sampler_position_continuous": state["sampler"]["position"] == position,
        # A step of the schedule changes it by a little, a lost schedule by much.
        "learning_rate_continuous": abs(learning_rate - lr_before) <= 0.5 * lr_before,
        "optimizer_state_present": len(state["optimizer"]["state"]) > 0,
        "scaler_state_present": bool(state["scaler"]) if needs_scaler else None,
        "loss_continuous": loss_continuous,
    }
