import contextlib
import json
import shutil

import torch
import torch.distributed as dist

from trainer_core.checkpoint_format import FORMAT, describe, fsync_path, manifest_sha256, verify
from trainer_core.rng import rng_state
from trainer_core.settings import UserError
from trainer_core.collectives import gather_objects, raise_on_all_ranks


def build_checkpoint(parts, **facts):
    return {
        **{name: part.state_dict() for name, part in parts.items() if part is not None},
        **{name: None for name, part in parts.items() if part is None},
        **facts,
    }


def publish(temporary, target, facts):
    """The manifest gets its own rename, so it is never half-written."""
    with contextlib.suppress(FileNotFoundError):
        target.lstat()
        raise FileExistsError(f"{target} is already published")
    manifest = {**facts, "format": FORMAT, "files": {}}
    for path in temporary.iterdir():
        fsync_path(path)
        manifest["files"][path.name] = describe(path)
    manifest["sha256"] = manifest_sha256(manifest)
    part = temporary / "manifest.part"
    part.write_text(json.dumps(manifest))
    fsync_path(part)
    part.rename(temporary / "manifest.json")
    fsync_path(temporary)
    shutil.move(str(temporary), str(target))
    fsync_path(target.parent)


def latest_checkpoint_path(checkpoints):
    folders = {int(p.name[5:]): p for p in checkpoints.glob("step-*") if p.name[5:].isdecimal()}
    damaged = {}
    for step in reversed(sorted(folders)):
        try:
            manifest = verify(folders[step])
        except UserError:
            raise
        except Exception as error:
            damaged[folders[step]] = str(error) or repr(error)
        else:
            return folders[step], manifest, damaged
    if damaged:
        raise UserError(f"{len(damaged)} checkpoint(s), and none is intact: {damaged}")
    return None, {}, damaged


def restore_if_present(folder, parts, device):
    if not folder:
        return None
    state = torch.load(folder / "state.pt", map_location=device, weights_only=True)
    for name, part in parts.items():
        if part is None or state.get(name) is None:
            continue
        if name == "optimizer":
            configured = part.state_dict()["param_groups"]
            part.load_state_dict({"state": state[name]["state"], "param_groups": configured})
        else:
            part.load_state_dict(state[name])
    return state


def save_checkpoint(writer, state, manifest):
    rng_states, error = gather_objects(rng_state()), None
    try:
        if not dist.is_initialized() or dist.get_rank() == 0:
            writer.save(state, rng_states, manifest)
    except Exception as caught:
        error = caught
    raise_on_all_ranks(error)
