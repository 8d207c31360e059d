"""Write the folder of a new drill: a small one that works, for its author to change.

The files in ``template/`` are that drill.
"""

from __future__ import annotations

import keyword
from pathlib import Path

from rehearsal.grading.drill import DRILLS, former_ids
from rehearsal.grading.events import EVENTS

TEMPLATE = Path(__file__).parent / "template"


class BadName(ValueError):
    """No drill can be created under this name."""


def create(name: str, folder: Path = DRILLS) -> Path:
    """Write a drill that passes its own selftest; returns its folder.

    Args:
        folder: where the drills are.

    Raises:
        BadName: if the name is not allowed or taken. Nothing is written then.
    """
    advice = "Say what to do in two or three words, such as shard_the_sampler."
    if not (name.isidentifier() and name.isascii() and name == name.lower()):
        raise BadName(
            f"{name!r} cannot be the id of a drill: it names a folder and is typed by hand, so "
            f"it has lowercase letters, digits and underscores only. {advice}"
        )
    if keyword.iskeyword(name) or name.startswith("_"):
        raise BadName(
            f"{name!r} cannot be the id of a drill: it is a Python keyword or starts with an "
            f"underscore. {advice}"
        )
    path = folder / former_ids().get(name, name)
    if path.exists():
        raise BadName(
            f"{name!r} is taken: {path} exists and was not changed. Choose another name, or "
            "edit that drill."
        )
    if not folder.is_dir():
        raise BadName(
            f"{folder} does not exist, so there is no place for a drill. Run this in a clone "
            "of the project, installed with make setup."
        )
    values = {
        "@TITLE@": name.replace("_", " ").capitalize(),
        "@EVENTS@": "\n    ".join(
            " ".join([kind, *event.fields]) for kind, event in EVENTS.items()
        ),
    }
    path.mkdir()
    for file in sorted(TEMPLATE.glob("*.*")):
        text = file.read_text("utf-8")
        for placeholder, value in values.items():
            text = text.replace(placeholder, value)
        (path / file.name).write_text(text, "utf-8")
    return path
