"""What the learner's functions did, as plain data and in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import shortened
from rehearsal.kit.judge.findings import some
from rehearsal.kit.observe.anti_cheat import close_the_answer

ANSWERS = [
    "build_checkpoint",
    "save_checkpoint",
    "latest_checkpoint_path",
    "restore_if_present",
]


def close_answers(context: RankContext) -> None:
    """The answers in trainer_core can't be called from here on."""
    close_the_answer(context, "trainer_core.checkpoint", ANSWERS)
    close_the_answer(context, "trainer_core.checkpoint_format", ["publish"])


def no_sync(_: object) -> None:
    """Stands in for os.fsync: a kill loses nothing from the page cache."""


def outcome(act: Callable[[], Any]) -> dict[str, Any]:
    """What a call returned, or which exception it raised."""
    try:
        return {"value": act()}
    except Exception as error:
        return {"raised": shortened(f"{type(error).__name__}: {error}", 200)}


def choice(
    learner: SimpleNamespace, checkpoints: Path, facts: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What latest_checkpoint_path returns, as plain data.

    Args:
        facts: which the manifest must hold; those that it lacks are in the result.
    """
    result = outcome(lambda: learner.latest_checkpoint_path(checkpoints))
    if "raised" in result:
        return result
    try:
        folder, manifest, damaged = result["value"]
        names = [Path(path).name for path in damaged]
        facts = facts or {}
        lost = [name for name in facts if folder and manifest.get(name) != facts[name]]
        value = [folder and Path(folder).name, manifest.get("step"), names]
        silent = [Path(path).name for path, reason in damaged.items() if not str(reason)]
        return {"value": value, "lost": lost, "silent": silent}
    except Exception:  # the learner's call has returned; what it returned can't be read
        wanted = "(folder or None, manifest, {folder: reason})"
        return {"malformed": f"{shortened(repr(result['value']), 200)}, not {wanted}"}


def said(result: Mapping[str, Any], *, is_none: bool = False) -> str:
    """An outcome in words, for a sentence.

    Args:
        is_none: the value is whether the call returned None.
    """
    if "raised" in result:
        return f"raised {result['raised']}"
    if "malformed" in result:
        return f"returned {result['malformed']}"
    value = result["value"]
    if is_none:
        return "returned None" if value else "did not return None"
    if value == [None, None, []]:
        return "found no checkpoint"
    folder, step, damaged = value
    manifest = f" with the manifest of step {step}" if folder or step is not None else ""
    skipped = f" and skipped {some(damaged)}" if damaged else ""
    return f"returned {folder or 'no folder'}{manifest}{skipped}"


def contents(folder: Path) -> list[list[str]]:
    """Names and bytes of everything in a folder."""
    paths = sorted(folder.rglob("*"))
    return [[str(p), p.read_bytes().hex() if p.is_file() else ""] for p in paths]
