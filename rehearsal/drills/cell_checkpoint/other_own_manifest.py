"""Uses only rng_state from the package; hashes and manifest format are its own."""

import hashlib
import json
import os

import torch
import torch.distributed as dist

from trainer_core.rng import rng_state


def build_checkpoint(parts, **facts):
    state = dict(facts)
    for name, part in parts.items():
        state[name] = part.state_dict() if part is not None else None
    return state


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def sha(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def publish(temporary, target, facts):
    if os.path.lexists(target):
        raise FileExistsError(target)
    listed = {name: sha(temporary / name) for name in os.listdir(temporary)}
    body = json.dumps({**facts, "files": listed}, sort_keys=True)
    with open(temporary / "manifest.json", "w") as file:
        file.write(hashlib.sha256(body.encode()).hexdigest() + "\n" + body)
        file.flush()
        os.fsync(file.fileno())
    for name in listed:
        sync(temporary / name)
    sync(temporary)
    os.replace(temporary, target)
    sync(target.parent)


def read_verified(folder):
    digest, body = (folder / "manifest.json").read_text().split("\n")
    if hashlib.sha256(body.encode()).hexdigest() != digest:
        raise ValueError("manifest.json does not match its own hash")
    manifest = json.loads(body)
    for name, digest in manifest["files"].items():
        if sha(folder / name) != digest:
            raise ValueError(f"{name} does not match the manifest")
    return manifest


def latest_checkpoint_path(checkpoints):
    names = os.listdir(checkpoints) if checkpoints.is_dir() else []
    steps = sorted((int(n[5:]) for n in names if n.startswith("step-") and n[5:].isdigit()))
    bad = {}
    while steps:
        folder = checkpoints / f"step-{steps.pop():08d}"
        try:
            return folder, read_verified(folder), bad
        except (OSError, ValueError, KeyError) as error:
            bad[folder] = repr(error)
    if bad:
        raise RuntimeError(f"no checkpoint is intact: {bad}")
    return None, {}, {}


def restore_if_present(folder, parts, device):
    if folder is None:
        return None
    state = torch.load(os.path.join(folder, "state.pt"), map_location=device)
    optimizer = parts["optimizer"]
    kept = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    for name in ("model", "optimizer", "scaler", "sampler"):
        if parts.get(name) is not None and state.get(name) is not None:
            parts[name].load_state_dict(state[name])
    for group, settings in zip(optimizer.param_groups, kept):
        group.update(settings)
    return state


def save_checkpoint(writer, state, manifest):
    if not dist.is_initialized():
        writer.save(state, [rng_state()], manifest)
        return
    on_zero = dist.get_rank() == 0
    rng_states = [None] * dist.get_world_size() if on_zero else None
    dist.gather_object(rng_state(), rng_states)
    outcome = [None]
    if on_zero:
        try:
            writer.save(state, rng_states, manifest)
        except Exception as error:
            outcome = [f"{type(error).__name__}: {error}"]
    dist.broadcast_object_list(outcome, src=0)
    if outcome[0]:
        raise RuntimeError(f"[rank {dist.get_rank()}] rank 0 could not save: {outcome[0]}")
