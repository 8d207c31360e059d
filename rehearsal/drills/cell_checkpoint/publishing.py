"""Publish: what reaches the disk in which order, existing names, a kill at every moment."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding
from rehearsal.kit.judge.findings import some
from rehearsal.kit.observe.moments import Files, Moment, drawn_moments, watch_moments
from .codes import TABLE
from .plan import Plan
from .words import choice, close_answers, contents, no_sync, outcome, said

OLD, NEW = "step-00000005", "step-00000007"
SYNC = "before the fsync of "


def temporary_of(plan: Plan, checkpoints: Path, step: int) -> Path:
    """A folder of files to publish, different for each step."""
    import torch

    folder = checkpoints / f"tmp-{step}"
    folder.mkdir(parents=True)
    *ranks, last = plan.sizes
    torch.save({"step": step, "values": torch.arange(float(last))}, folder / "state.pt")
    for rank, size in enumerate(ranks):
        torch.save({"torch": torch.full((size,), step + rank)}, folder / f"rng-rank-{rank}.pt")
    return folder


def published(plan: Plan, learner: SimpleNamespace, checkpoints: Path, step: int) -> Path:
    """The learner's checkpoint of a step."""
    target = checkpoints / f"step-{step:08d}"
    learner.publish(temporary_of(plan, checkpoints, step), target, plan.facts_of(step))
    return target


def watch_syncs(learner: SimpleNamespace, root: Path) -> None:
    """Nothing waits for the disk, and each kind of sync counts as one, however imported."""
    names = getattr(learner.publish, "__globals__", {})

    def sync(fd: Any) -> None:
        os.fsync(fd)  # whatever stands for it by then

    def sync_all() -> None:
        for path in [root, *root.rglob("*")]:
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)

    for name, stand_in in (("fsync", sync), ("fdatasync", sync), ("sync", sync_all)):
        original = getattr(os, name, None)
        for own in [own for own, value in names.items() if value is original]:
            names[own] = stand_in
    os.fsync, os.fdatasync, os.sync = no_sync, sync, sync_all  # type: ignore[assignment]


def publish_body(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Publish next to an older checkpoint; then what each kill on the way would leave."""
    close_answers(context)
    root = context.folder / "publish"
    checkpoints = root / "checkpoints"
    watch_syncs(learner, root)
    published(plan, learner, checkpoints, 5)
    older = contents(checkpoints / OLD) if (checkpoints / OLD).is_dir() else None
    answer: dict[str, Any] = {"older": choice(learner, checkpoints, plan.facts_of(5))}
    if answer["older"].get("value", [None])[0] != OLD:
        return answer | {"exists": (checkpoints / OLD).exists()}
    temporary_of(plan, checkpoints, 7)
    given = {path.name: path.read_bytes() for path in (checkpoints / "tmp-7").iterdir()}
    with watch_moments(root) as moments:
        learner.publish(checkpoints / "tmp-7", checkpoints / NEW, plan.facts_of(7))
    answer |= {
        "exists": (checkpoints / NEW).exists(),
        "first": choice(learner, checkpoints, plan.facts_of(7)),
        "changed": [
            name for name, data in given.items() if not is_same(checkpoints / NEW / name, data)
        ],
        "older changed": contents(checkpoints / OLD) != older,
        **order_on_disk(moments),
    }
    answer["kills"] = []
    different = drawn_moments(moments, len(moments), random.Random(plan.seed))
    for number, moment in different:
        folder = moment.restore(context.folder / f"killed-{number}") / "checkpoints"
        is_there = (folder / NEW).exists()
        answer["kills"].append([moment.where, is_there, choice(learner, folder)])
    answer["taken"] = [
        taken_name(plan, learner, checkpoints, what) for what in ("a checkpoint", "empty")
    ]
    return answer


def is_same(path: Path, data: bytes) -> bool:
    """Whether a file is there, with this content."""
    return path.is_file() and path.read_bytes() == data


def taken_name(plan: Plan, learner: SimpleNamespace, checkpoints: Path, what: str) -> list[Any]:
    """Publish under a name that exists: the name, the outcome, whether it is unchanged."""
    taken = checkpoints / OLD
    if what == "empty":
        taken = checkpoints / "step-00000006"
        taken.mkdir()
    before = contents(taken)
    source = temporary_of(plan, checkpoints, 60 if what == "empty" else 61)
    result = outcome(lambda: learner.publish(source, taken, plan.facts_of(6)))
    is_unchanged = taken.is_dir() and contents(taken) == before
    shutil.rmtree(source, ignore_errors=True)
    return [taken.name, result, is_unchanged]


def order_on_disk(moments: Sequence[Moment]) -> dict[str, Any]:
    """What a power loss right after the name appeared, or right after publish, would lose.

    A file is on disk if it was fsynced with the content that it has under the new name; a
    folder, if it was fsynced with the names that it then has.
    """
    new = f"checkpoints/{NEW}"
    appears = next((i for i, moment in enumerate(moments) if new in moment.files), None)
    if appears is None:
        return {"late": [], "in place": "", "folder": False, "parent": False}
    before = moments[appears - 1]
    source = before.where.removeprefix("before the rename of ")
    final = moments[-1].files
    wanted = names_below(final, new)
    in_place = "" if source in before.files else before.where
    for moment in moments[appears:]:
        begins = [f"before the {name} of {new}/" for name in ("opening", "mkdir", "torch.save")]
        if moment.where.startswith(tuple(begins)):
            in_place = in_place or moment.where
    synced: dict[str, list[Any]] = {}  # by content: of files and folders that were fsynced
    for moment in moments[:appears]:
        if moment.where.startswith(SYNC):
            path = moment.where.removeprefix(SYNC)
            synced.setdefault(path, []).append(state_of(moment.files, path))
    late = []
    for name in wanted:
        content = final[f"{new}/{name}"]
        names = [f"{source}/{name}", *former_names(moments[:appears], f"{source}/{name}")]
        if not any(content in synced.get(path, []) for path in names):
            late.append(name)
    after = [
        m.files
        for m in moments[appears:]
        if m.where == f"{SYNC}checkpoints" and m.part == "before"
    ]
    return {
        "late": late,
        "in place": in_place,
        "source": source,
        "folder": wanted in synced.get(source, []),
        "parent": any(new in files for files in after),
    }


def former_names(moments: Sequence[Moment], path: str) -> Iterator[str]:
    """The names in the same folder whose rename made ``path``."""
    for moment, later in pairwise(moments):
        if moment.where.startswith("before the rename of "):
            name = moment.where.removeprefix("before the rename of ")
            if path in later.files and later.files[path] == moment.files.get(name):
                yield name


def names_below(files: Files, folder: str) -> list[str]:
    """The names of the files in a folder, sorted."""
    inside = f"{folder}/"
    return sorted(path.removeprefix(inside) for path in files if path.startswith(inside))


def state_of(files: Files, path: str) -> bytes | list[str] | None:
    """A file's content, or the names in a folder."""
    content = files.get(path)
    return names_below(files, path) if content is None else content


def publish_judge(
    plan: Plan, reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """The order on disk, kills, existing names."""
    if not reports[0].has_answer:
        return
    answer = reports[0].answer
    for name, result in ((OLD, answer["older"]), (NEW, answer.get("first"))):
        if result is None or answer.get("in place"):
            break
        yield from found_again(name, result, answer["exists"])
    if answer["in place"]:
        what = answer["in place"].removeprefix("before ")
        yield TABLE(
            "written-in-place",
            f"{NEW} was not published by one rename of a complete folder: {what}",
        )
    if answer["changed"]:
        yield TABLE("not-published", f"publish changed {some(answer['changed'])} on the way")
    if answer["late"]:
        yield TABLE(
            "renamed-before-fsync",
            f"when the name {NEW} appeared, {some(answer['late'])} had not been fsynced with "
            "its final content",
        )
    if not answer["folder"] or not answer["parent"]:
        which = f"{answer['source']}, with all its names, before the rename"
        if answer["folder"]:
            which = "checkpoints after the rename"
        yield TABLE("folder-not-synced", f"publish did not fsync the folder {which}")
    if answer["older changed"]:
        yield TABLE("lost-by-kill", f"publishing {NEW} changed or removed {OLD}")
    # The wrong exception alone is the smaller mistake, so it comes last.
    for taken, result, is_same_as_before in sorted(
        answer["taken"], key=lambda one: "raised" in one[1] and one[2]
    ):
        raised = result.get("raised", "")
        if not raised.startswith("FileExistsError") or not is_same_as_before:
            what = "an empty folder" if taken.endswith("6") else "an intact checkpoint"
            look = "at which exception the caller can expect"
            yield TABLE(
                "wrote-into-existing",
                f"{taken} existed, as {what}. publish "
                f"{f'raised {raised}' if raised else 'did not raise'}, and the folder "
                f"{'is unchanged' if is_same_as_before else 'has changed'}",
                look if raised and is_same_as_before else "",
            )
    yield from kill_findings(answer["kills"])


def found_again(name: str, result: Mapping[str, Any], exists: bool) -> Iterator[Finding]:
    """Whether latest_checkpoint_path returns what was just published."""
    if not exists:
        yield TABLE("not-published", f"publish returned, but there is no {name}")
    elif result.get("value", [None])[0] != name:
        look = ""
        if "raised" in result:
            look = "at the line that raises, at what you write to the manifest, and at what "
            look += "verifies it"
        if "malformed" in result:
            look = "at what latest_checkpoint_path returns"
        elif "value" in result and not result["value"][2]:
            look = "at which names latest_checkpoint_path accepts, and at what it returns"
        yield TABLE(
            "not-published",
            f"publish returned, but latest_checkpoint_path did not return {name}: it "
            f"{said(result)}",
            look,
        )
    elif result["lost"]:
        yield TABLE(
            "not-published",
            f"the manifest of {name} does not have what publish got as {some(result['lost'])}",
            "at what publish does with the facts, and at which manifest is returned",
        )


def kill_findings(kills: Sequence[Any]) -> Iterator[Finding]:
    """What each kill left behind."""
    for where, is_there, chosen in kills:
        taken, _, damaged = chosen.get("value", [None, None, []])
        if is_there and (taken != NEW or damaged):
            yield TABLE(
                "torn-by-kill",
                f"killed {where}: {NEW} exists, but latest_checkpoint_path {said(chosen)}",
            )
            return
        if not is_there and (taken != OLD or "after its last" in where):
            yield TABLE(
                "lost-by-kill",
                f"killed {where}: {OLD} was intact before; latest_checkpoint_path "
                f"{said(chosen)}",
            )
            return
