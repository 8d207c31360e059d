"""Random damage to a run folder: what an audit must survive, and judge correctly.

Each function changes one thing about the evidence (ledgers, logs, manifests, config.json) and
draws what it needs from ``rng``, so a seed repeats it. Nothing here runs a job.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer_core.checkpoint_format import manifest_sha256

Damage = Callable[[random.Random, Path], str]  # returns what it did
KEYS: tuple[str, ...] = (
    "attempt",
    "step",
    "rank",
    "world_size",
    "epoch",
    "samples",
    "event",
    "skipped",
)
KEYS += ("saved_by_attempt", "time", "step_s", "process_started")
ABSURD: list[Any] = [0, -1, 1, 2, 10**6, 2**31, 2**62, 2**63, 2**64, 10**30, 10**400]
ABSURD += [True, False, None, 0.5, 1e308, 3.0, float("nan"), float("inf"), "1", "x", [], {}]
GARBAGE = [b"", b"\n", b"null\n", b"[1, 2]\n", b"7\n", b"{}\n", b'{"attempt": "x"}\n']
GARBAGE += [b"\x00\xff\xfe\n", b"[" * 100_000 + b"\n", b'{"a":' * 100_000 + b"\n", b"\r\n"]
GARBAGE += [
    b'{"step": 1',
    b"\xef\xbb\xbf",
    bytes(range(256)),
    b'{"step": 9' + b"9" * 5000 + b"}\n",
]


# ---------------------------------------------------------------- lines


def files_of(folder: Path, *parts: str) -> list[Path]:
    """The ranks' files of the ledger or the logs, or both."""
    parts = parts or ("ledger", "logs")
    return [path for part in parts for path in sorted(folder.glob(f"{part}/*.jsonl"))]


def read_lines(path: Path) -> list[bytes]:
    """The lines of a file; none if it isn't one anymore."""
    with contextlib.suppress(OSError):
        return path.read_bytes().splitlines(keepends=True)
    return []


def pick_lines(rng: random.Random, folder: Path) -> tuple[Path, list[bytes]]:
    """A file that still has lines, and its lines."""
    full = [(path, lines) for path in files_of(folder) if (lines := read_lines(path))]
    return rng.choice(full) if full else (folder / "ledger" / "rank-0.jsonl", [b"\n"])


def pick_record(rng: random.Random, lines: list[bytes]) -> dict[str, Any]:
    """One of the records in the lines. A rare event is as likely as a frequent one."""
    kinds: dict[Any, list[dict[str, Any]]] = {}
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict):
                kind = repr((record.get("event"), record.get("attempt")))
                kinds.setdefault(kind, []).append(record)
    return rng.choice(rng.choice(list(kinds.values()))) if kinds else {}


def write(path: Path, content: bytes) -> None:
    """Replace a file, or leave alone what isn't one anymore."""
    with contextlib.suppress(OSError):
        path.write_bytes(content)


def edit_lines(rng: random.Random, folder: Path) -> str:
    """Drop, repeat, swap, cut or garble lines of one file."""
    path, lines = pick_lines(rng, folder)
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    how = rng.choice(["drop", "repeat", "swap", "cut", "garble", "insert", "tail", "head"])
    if how == "drop":
        del lines[at]
    elif how == "repeat":
        lines.insert(other, lines[at])
    elif how == "swap":
        lines[at], lines[other] = lines[other], lines[at]
    elif how == "cut":
        lines[at] = lines[at][: rng.randrange(len(lines[at]))] + rng.choice([b"", b"\n"])
    elif how == "garble":
        garbled = bytearray(lines[at])
        for _ in range(rng.randint(1, 3)):
            garbled[rng.randrange(len(garbled))] = rng.randrange(256)
        lines[at] = bytes(garbled)
    elif how == "insert":
        lines.insert(at, rng.choice(GARBAGE))
    elif how == "tail":
        del lines[at:]
    else:
        del lines[:at]
    write(path, b"".join(lines))
    return f"{path.parent.name}/{path.name}: {how} line {at} ({other})"


def change_value(rng: random.Random, value: Any) -> Any:
    """Another value: a near one, an absurd one, or a changed list of samples."""
    if isinstance(value, list) and rng.random() < 0.8:
        changed = [*value]
        how = rng.randrange(5)
        if how == 0 or not changed:
            changed.insert(rng.randint(0, len(changed)), rng.choice([0, 1, 3, 7, *ABSURD]))
        elif how == 1:
            changed.pop(rng.randrange(len(changed)))
        elif how == 2:
            changed.reverse()
        elif how == 3:
            at = rng.randrange(len(changed))
            changed[at] = change_value(rng, changed[at])
        else:
            rng.shuffle(changed)
        return changed
    if type(value) is int and rng.random() < 0.8:
        return rng.choice([value - 1, value + 1, value + 1, value + 2, rng.randrange(13), 0, 1])
    if isinstance(value, str) and rng.random() < 0.7:
        events = ("run_start", "checkpoint_restored", "checkpoint_saved", "train_progress")
        return rng.choice([*events, "run_end", "preempted", "hang", value])
    return rng.choice(ABSURD)


def change_fields(rng: random.Random, folder: Path) -> str:
    """Change, add or delete one field, in one line or the same way in many lines."""
    path, lines = pick_lines(rng, folder)
    record, deletes = pick_record(rng, lines), rng.random() < 0.1
    known = [key for key in KEYS if key in record]
    key = rng.choice(KEYS if rng.random() < 0.1 or not known else known)
    old = record.get(key)
    new = change_value(rng, old)
    everywhere = rng.random() < 0.3
    paths = files_of(folder, path.parent.name) if everywhere else [path]
    matching = [name for name in ("attempt", "step", "event") if rng.random() < 0.7]
    if not everywhere:
        matching = ["attempt", "step", "event", "rank"]
    for each in paths:
        changed = []
        for line in read_lines(each):
            with contextlib.suppress(ValueError, RecursionError):
                found = json.loads(line)
                is_it = isinstance(found, dict) and found.get(key) == old
                if is_it and all(found.get(x) == record.get(x) for x in matching):
                    found[key] = new
                    if deletes:
                        del found[key]
                    line = json.dumps(found).encode() + b"\n"
            changed.append(line)
        write(each, b"".join(changed))
    where = "every file" if everywhere else path.name
    what = "deleted" if deletes else f"{old!r} -> {new!r}"[:200]
    return f"{path.parent.name}/{where}: {key} {what}, where {matching} of {str(record)[:120]}"


def drop_matching(rng: random.Random, folder: Path) -> str:
    """Drop all lines of an attempt, a step, an event or a rank from the ledger or the logs."""
    path, lines = pick_lines(rng, folder)
    record = pick_record(rng, lines)
    names = rng.sample(["attempt", "step", "event", "rank"], rng.randint(1, 2))
    wanted = {name: record[name] for name in names if name in record}
    least = rng.choice([None, "step"])
    for each in files_of(folder, path.parent.name):
        kept = []
        for line in read_lines(each):
            found: Any = None
            with contextlib.suppress(ValueError, RecursionError):
                found = json.loads(line)
            is_it = isinstance(found, dict)
            for name, value in wanted.items() if is_it else ():
                has = found.get(name)
                comparable = name == least and type(has) is int and type(value) is int
                is_it &= has >= value if comparable else has == value
            if not is_it:
                kept.append(line)
        write(each, b"".join(kept))
    return f"{path.parent.name}: dropped {wanted}{' and later steps' if least else ''}"


# ---------------------------------------------------------------- files


def remove(path: Path) -> None:
    """Delete whatever has this name."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def edit_files(rng: random.Random, folder: Path) -> str:
    """Delete, move, replace or copy a file or folder, or take away the right to read it."""
    parts = [folder / name for name in ("config.json", "ledger", "logs", "checkpoints")]
    paths = [*files_of(folder), *sorted(folder.glob("checkpoints/*"))]
    path = rng.choice([*parts, *paths, *paths, *sorted(folder.glob("checkpoints/*/*"))])
    hows = ["delete", "rename", "folder", "loop", "dangling", "empty", "garbage"]
    how = rng.choice([*hows, "truncate", "copy", "lock", "away"])
    what = f"{how} {path.relative_to(folder)}"
    if how == "rename":
        names = ("rank-0.jsonl", "rank-7.jsonl", "rank-x.jsonl", "step-00000003", "step-9", "x")
        target = path.with_name(rng.choice(names))
        if not os.path.lexists(target) and os.path.lexists(path):
            path.rename(target)
        return f"{what} to {target.name}"
    if how == "copy":
        other = rng.choice(paths or [path])
        if other.is_file() and path.is_file():
            write(path, other.read_bytes())
        return f"{what} from {other.relative_to(folder)}"
    if how == "lock":
        if path.exists():
            path.chmod(0)
        return what
    if how == "truncate":
        if path.is_file():
            content = path.read_bytes()
            write(path, content[: rng.randint(0, len(content))])
        return what
    remove(path)
    if how == "folder":
        path.mkdir(parents=True, exist_ok=True)
    elif how == "loop":
        path.symlink_to(path.name)
    elif how == "dangling":
        path.symlink_to("nowhere")
    elif how in ("empty", "garbage"):
        write(path, b"" if how == "empty" else rng.choice(GARBAGE))
    return what


def edit_manifest(rng: random.Random, folder: Path) -> str:
    """Change a manifest, with or without a matching hash, or its checkpoint's name."""
    paths = sorted(folder.glob("checkpoints/step-*/manifest.json"))
    if not paths:
        return "nothing"
    path = rng.choice(paths)
    try:
        manifest = json.loads(path.read_text())
        key = rng.choice(["attempt", "step", "attempt", "world_size", "sha256", "identity"])
        manifest[key] = change_value(rng, manifest.get(key))
        signs = rng.random() < 0.7
        if signs:
            manifest["sha256"] = manifest_sha256(manifest)
        write(path, json.dumps(manifest).encode())
        step = manifest["step"]
        moves = rng.random() < 0.5 and type(step) is int and 0 <= step < 10**9
        if moves and not os.path.lexists(target := path.parent.with_name(f"step-{step:08d}")):
            path.parent.rename(target)
        return f"{path.parent.name}: {key} = {manifest[key]!r}"[:200] + f", signed: {signs}"
    except (OSError, ValueError, TypeError, KeyError, RecursionError, AttributeError):
        return "nothing"


def forget_savers(rng: random.Random, folder: Path) -> str:
    """Remove some of what says which attempt saved a checkpoint."""
    fields, events, manifests = (rng.random() < 0.7 for _ in range(3))
    for path in files_of(folder, "logs"):
        kept = []
        for line in read_lines(path):
            with contextlib.suppress(ValueError, RecursionError):
                found = json.loads(line)
                if not isinstance(found, dict):
                    continue
                if events and found.get("event") == "checkpoint_saved":
                    continue
                if fields:
                    found.pop("saved_by_attempt", None)
                kept.append(json.dumps(found).encode() + b"\n")
        write(path, b"".join(kept))
    if manifests:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return f"savers forgotten by fields: {fields}, events: {events}, manifests: {manifests}"


def edit_restored(rng: random.Random, folder: Path) -> str:
    """Change what one attempt says it restored, in one rank's log or in all."""
    attempt, key = rng.choice([1, 1, 2]), rng.choice(["step", "saved_by_attempt", "event"])
    new = rng.choice([0, 1, 2, 3, 5, 6, 9])
    paths = files_of(folder, "logs")
    for path in paths if rng.random() < 0.7 else paths[-1:]:
        kept = []
        for line in read_lines(path):
            with contextlib.suppress(ValueError, RecursionError):
                found = json.loads(line)
                is_it = isinstance(found, dict) and found.get("attempt") == attempt
                if is_it and found.get("event") == "checkpoint_restored":
                    found[key] = new
                    line = json.dumps(found).encode() + b"\n"
            kept.append(line)
        write(path, b"".join(kept))
    return f"logs: attempt {attempt} restored: {key} = {new}"


def edit_config(rng: random.Random, folder: Path) -> str:
    """Change a number of the plan, or garble config.json."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
        if rng.random() < 0.15:
            write(path, rng.choice(GARBAGE))
            return "config.json: garbage"
        names = ["num_samples", "seed", "global_batch_size", "total_steps", "identity"]
        name = rng.choice(names)
        owner = config if name in ("total_steps", "identity") else config["identity"]
        owner[name] = change_value(rng, owner[name])
        write(path, json.dumps(config).encode())
        return f"config.json: {name} = {owner[name]!r}"[:200]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return "nothing"


# Most of the damage is small: a folder that has lost everything is judged the same way by all.
KINDS: list[tuple[Damage, int]] = [
    (edit_lines, 6),
    (change_fields, 6),
    (drop_matching, 3),
    (edit_manifest, 3),
    (forget_savers, 1),
    (edit_restored, 2),
    (edit_files, 3),
    (edit_config, 1),
]


def damage(seed: int, folder: Path) -> str:
    """One random change to a run folder; returns what it was."""
    rng = random.Random(seed)
    kinds, weights = zip(*KINDS, strict=True)
    kind: Damage = rng.choices(kinds, weights)[0]
    return kind(rng, folder)
