"""Choosing among intact and damaged checkpoints."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding
from rehearsal.kit.judge.findings import some
from .codes import TABLE
from .plan import Damage, Plan
from .publishing import published
from .words import choice, close_answers, contents, no_sync, said


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
    """Make the manifest name another step; it stays well-formed."""
    path, step = folder / damage.file, int(folder.name.removeprefix("step-"))
    path.write_text(path.read_text().replace(str(step), str(step + 1)))


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
    folder = damaged("two", (newest, second), (older, rest[0]))
    answer["two"] = choice(learner, folder, plan.facts_of(third))
    folder = damaged("all", (newest, first), (older, second), (third, rest[-1]))
    answer["all"] = choice(learner, folder)
    changed = {
        tuple(file)
        for folder, before in kept.items()
        for file in {*map(tuple, before)} ^ {*map(tuple, contents(folder))}
    }
    answer["changed"] = sorted({os.path.relpath(path, root) for path, _ in changed})
    return answer


def choose_judge(
    plan: Plan, reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """The newest intact one, and a reason for each that was skipped."""
    answer = reports[0].answer
    third, older, newest = (f"step-{step:08d}" for step in plan.steps)
    for where in ("nothing", "empty"):
        if answer[where].get("value") != [None, None, []]:
            folder = "without a folder" if where == "nothing" else "in an empty folder"
            yield TABLE(
                "not-the-newest",
                f"{folder}, latest_checkpoint_path {said(answer[where])}",
                "at what happens if the folder is missing or empty",
            )
    if answer["whole"].get("value") != [newest, plan.steps[2], []] or answer["whole"]["lost"]:
        got = answer["whole"].get("value", [None, None, []])
        is_manifest = got[0] == newest and not got[2]
        yield TABLE(
            "not-the-newest",
            f"of {third}, {older} and {newest}, all intact, latest_checkpoint_path "
            f"{said(answer['whole'])}",
            "at which manifest you return, and at what publish does with the facts"
            if is_manifest
            else "",
        )
        return
    for what, result in answer["damaged"]:
        yield from skipped(f"{newest} had {what}", result, [newest], older)
    what = f"{newest} and {older} were damaged ({plan.damages[1].what}; {plan.damages[2].what})"
    yield from skipped(what, answer["two"], [newest, older], third)
    if "raised" not in answer["all"]:
        yield TABLE(
            "started-over",
            f"with all checkpoints damaged, latest_checkpoint_path {said(answer['all'])}",
        )
    if answer["changed"]:
        yield TABLE(
            "changed-files", f"latest_checkpoint_path changed {some(answer['changed'], 3)}"
        )


def skipped(
    what: str, result: Mapping[str, Any], bad: Sequence[str], intact: str
) -> Iterator[Finding]:
    """What latest_checkpoint_path does about damaged checkpoints."""
    value = result.get("value", [None, None, []])
    if value[0] in bad:
        yield TABLE("took-damaged", f"{what}, and latest_checkpoint_path returned {value[0]}")
    elif value[0] != intact:
        yield TABLE(
            "no-fallback",
            f"{what}, and {intact} is intact; latest_checkpoint_path {said(result)}",
        )
    elif sorted(value[2]) != sorted(bad):
        yield TABLE(
            "damage-not-reported",
            f"{what}, and {intact} was returned; reported as damaged: "
            f"{some(value[2]) or 'nothing'}",
        )
    elif result["silent"]:
        yield TABLE("damage-not-reported", f"{what}, and the reason given for it is empty")
    elif result["lost"]:
        yield TABLE(
            "not-the-newest",
            f"{what}: {intact} was returned, with a manifest that lacks its "
            f"{some(result['lost'])}",
            "at which manifest you return",
        )
