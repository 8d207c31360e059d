import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainer_core.publish import FORMAT, CheckpointWriter, DamagedCheckpoint, describe
from trainer_core.publish import fsync_path, manifest_sha256, published_steps, verify
from trainer_core.rng import rng_state
from trainer_core.settings import UserError
from trainer_core.together import all_ranks_together, gather_objects


def build_checkpoint(parts: Mapping[str, Any], **facts: Any) -> dict[str, Any]:
    """The state of a run but for the random streams; the tensors in it are the live ones."""
    # Not ``part and ...``: a sampler at the end of the plan has length 0.
    states = {n: None if part is None else part.state_dict() for n, part in parts.items()}
    return states | facts


def publish(temporary: Path, target: Path, facts: Mapping[str, Any]) -> None:
    """Turn the files in ``temporary`` into the checkpoint ``target``.

    Order matters: contents first, then the manifest, which vouches for them, then one rename,
    which is the publication, then the folder that holds the new name; each on disk before the
    next.
    """
    if target.exists():
        raise FileExistsError(f"{target} exists; a published checkpoint is never rewritten")
    paths = sorted(temporary.iterdir())
    with ThreadPoolExecutor() as pool:
        # Hashing reads the page cache while the disk is still writing.
        syncing = pool.map(fsync_path, paths)
        files = {path.name: describe(path) for path in paths}
        list(syncing)
    manifest = {"format": FORMAT, **facts, "files": files}
    manifest["sha256"] = manifest_sha256(manifest)
    (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1))
    fsync_path(temporary / "manifest.json")
    fsync_path(temporary)
    temporary.rename(target)
    fsync_path(target.parent)


def save_checkpoint(
    writer: CheckpointWriter, state: dict[str, Any], manifest: dict[str, Any]
) -> None:
    """Save one step; rank 0 writes for all. Collective: every rank."""
    rng_states = gather_objects(rng_state())
    with all_ranks_together():
        if not dist.is_initialized() or dist.get_rank() == 0:
            writer.save(state, rng_states, manifest)


def latest_checkpoint_path(
    checkpoints: Path,
) -> tuple[Path | None, dict[str, Any], dict[Path, str]]:
    """The newest checkpoint that holds, its manifest, and what is wrong with newer ones."""
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
    """Load a verified checkpoint into ``parts``; None without one."""
    if folder is None:
        return None
    state: dict[str, Any] = torch.load(
        folder / "state.pt", map_location=device, weights_only=True
    )
    # Hyperparameters stay as configured: the optimizer's own loading would bring the old back.
    state["optimizer"]["param_groups"] = parts["optimizer"].state_dict()["param_groups"]
    for name, part in parts.items():
        # A scaler may be new (autocast changed to fp16) or gone; both are in config_changed.
        if part is not None and state[name] is not None:
            part.load_state_dict(state[name])
    return state
