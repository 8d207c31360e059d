"""Choosing among intact and damaged checkpoints."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from trainer_core.checkpoint_format import manifest_sha256
from .plan import Damage, Plan
from .publishing import published
from .words import choice, close_answers, contents, no_sync


def flip(folder: Path, damage: Damage) -> None:
    """Flip one bit; the size stays."""
    path = folder / damage.file
    data = bytearray(path.read_bytes())
    data[int(len(data) * damage.at)] ^= 1
    path.write_bytes(data)


def cut(folder: Path, damage: Damage) -> None:
    """Cut a file; at least its last byte is gone."""
    path = folder / damage.file
    size = path.stat().st_size
    os.truncate(path, min(int(size * damage.at), size - 1))


def grow(folder: Path, damage: Damage) -> None:
    """Append one byte."""
    with (folder / damage.file).open("ab") as file:
        file.write(b"\0")


def remove(folder: Path, damage: Damage) -> None:
    """Delete a file."""
    (folder / damage.file).unlink()


def swap(folder: Path, damage: Damage) -> None:
    """Exchange the content of two files."""
    one, other = (folder / name for name in damage.file.split(","))
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


def edit(folder: Path, damage: Damage) -> None:
    """Make the manifest name another step, or another time; it stays well-formed."""
    path, was = folder / damage.file, damage.was or int(folder.name.removeprefix("step-"))
    path.write_text(path.read_text().replace(str(was), str(was + 1)))


def newer_format(folder: Path) -> bool:
    """Rewrite the manifest as a later version would; False if it isn't the blank's manifest."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
        own = {key: value for key, value in manifest.items() if key != "sha256"}
        if manifest["sha256"] != manifest_sha256(own):
            return False
        own["format"] += 1
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False  # a manifest of the learner's own, which needn't have a format
    path.write_text(json.dumps({**own, "sha256": manifest_sha256(own)}, indent=1))
    return True


DAMAGES: dict[str, Callable[[Path, Damage], None]] = {
    "flip": flip,
    "cut": cut,
    "grow": grow,
    "remove": remove,
    "swap": swap,
    "edit": edit,
}


def choose_body(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Choose among intact and damaged checkpoints."""
    close_answers(context)
    os.fsync = no_sync  # type: ignore[assignment]
    root = context.folder / "choose"
    whole = root / "whole"
    answer: dict[str, Any] = {"nothing": choice(learner, root / "not-there"), "damaged": []}
    (root / "empty").mkdir(parents=True)
    answer["empty"] = choice(learner, root / "empty")
    third, older, newest = plan.steps
    for step in (newest, third, older):
        published(plan, learner, whole, step)
    for other in ("tmp-9", f"rejected-step-{newest + 7}-0a1b", f"old-step-{newest + 8}-0a1b"):
        (whole / other).mkdir()
    kept = {folder: contents(folder) for folder in (whole,)}
    answer["whole"] = choice(learner, whole, plan.facts_of(newest))

    def damaged(name: str, *damages: tuple[int, Damage]) -> Path:
        folder = shutil.copytree(whole, root / name)
        for step, damage in damages:
            DAMAGES[damage.kind](folder / f"step-{step:08d}", damage)
        kept[folder] = contents(folder)
        return folder

    for number, damage in enumerate(plan.damages):
        folder = damaged(f"damaged-{number}", (newest, damage))
        chosen = choice(learner, folder, plan.facts_of(older))
        answer["damaged"].append([damage.what, chosen])
    first, second, *rest = plan.damages
    folder = damaged("older", (older, second))
    answer["older"] = choice(learner, folder, plan.facts_of(newest))
    folder = damaged("around", (newest, second), (third, first))
    answer["around"] = choice(learner, folder, plan.facts_of(older))
    folder = damaged("two", (newest, second), (older, rest[0]))
    answer["two"] = choice(learner, folder, plan.facts_of(third))
    folder = damaged("all", (newest, first), (older, second), (third, rest[-1]))
    answer["all"] = choice(learner, folder)
    folder = shutil.copytree(whole, root / "later")
    if newer_format(folder / f"step-{newest:08d}"):
        kept[folder] = contents(folder)
        answer["later"] = choice(learner, folder, plan.facts_of(older))
    changed = {
        tuple(file)
        for folder, before in kept.items()
        for file in {*map(tuple, before)} ^ {*map(tuple, contents(folder))}
    }
    answer["changed"] = sorted({os.path.relpath(path, root) for path, _ in changed})
    return answer
