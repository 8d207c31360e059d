"""The findings about checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding
from rehearsal.kit.judge.findings import some

from .draws import SmallRun, saved_steps
from .findings import TABLE, Earlier


def ended(result: dict[str, Any], states: Mapping[int, str] | None = None) -> str:
    """An outcome as a clause.

    Args:
        states: by step, a digest of what was saved.
    """
    if "raised" in result:
        return f"the next start raised {result['raised']}"
    if "none" in result:
        return "the next start found no checkpoint"
    differs = states is not None and states.get(result["step"]) != result["state"]
    said = ", but not the weights and moments saved there" * differs
    return f"the next start restored step {result['step']}{said}"


def save_judge(
    plan: SmallRun, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """Complete or absent, verified, and the newest that is intact."""
    answer, (first, second, third, fourth) = reports[0].answer, saved_steps(plan)
    states = {int(step): state for step, state in answer["states"].items()}
    if "none" not in answer["empty"]:
        found = f"the folder is empty, and {ended(answer['empty'])}"
        rule = "without a checkpoint, latest_checkpoint_path returns None"
        yield TABLE("wrong-checkpoint", found, "at what a first start finds")._replace(
            rule=rule
        )
        return
    for step, before, result in (
        (first, "", answer["first"]),
        (second, f" after step {first}", answer["second"]),
        (fourth, f" after step {third}", answer["longer"]),
    ):
        if result.get("step") != step:
            finding = TABLE(
                "wrong-checkpoint", f"step {step} was saved{before}; {ended(result)}"
            )
            if "raised" in result:
                rule = "a checkpoint that is intact can be restored"
                finding = finding._replace(rule=rule, look=f"at {result['in']}")
            elif result.get("step", first) not in (first, second, third, fourth):
                found = f"step {step} was saved{before}; restore_checkpoint returned "
                finding = finding._replace(
                    found=found + repr(result["step"])[:60],
                    rule="restore_checkpoint returns the step of the checkpoint it loads",
                    look="at what restore_checkpoint returns",
                )
            yield finding
            return
        if result["state"] != states[step]:
            found = f"step {step} was saved{before} and restored, and weights or moments differ"
            yield TABLE("state-not-restored", found)
            return
    for where, result in answer["first kills"]:
        if "none" not in result and result.get("state") != states[first]:
            found = f"killed {where}, in the first save of all: {ended(result, states)}"
            finding = TABLE("lost-in-a-kill", found)
            yield finding._replace(rule="a kill leaves the new checkpoint complete or absent")
            return
    for where, result, again in answer["kills"]:
        said = f"killed {where}, in the save of step {second}, when step {first} was on disk: "
        if states.get(result.get("step", 0)) != result.get("state", ""):
            yield TABLE("lost-in-a-kill", said + ended(result, states))
            return
        if (
            states.get(again.get("step", 0)) != again.get("state", "")
            or again["step"] != second
        ):
            yield TABLE(
                "cannot-save-again",
                f"{said}step {second} was trained again; {ended(again, states)}",
            )
            return
    yield from sync_findings(reports[0])
    for said, result in answer["damages"]:
        if states.get(result.get("step", 0)) != result.get("state", ""):
            yield TABLE("damage-not-survived", f"{said}; {ended(result, states)}")
            return
    if answer["again"].get("state") != states[second]:
        found = f"step {second} was damaged, then trained again; "
        found += ended(answer["again"], states)
        yield TABLE("cannot-save-again", found)
    if answer["all bad"].get("in") != "latest_checkpoint_path":
        found = f"both checkpoints are damaged, and {ended(answer['all bad'])}"
        yield TABLE("starts-over", found)


def sync_findings(report: RankReport) -> Iterator[Finding]:
    """Whether a power loss could keep the name and lose the contents."""
    kinds = [event["kind"] for event in report.events]
    events = report.events[kinds.index("begins") : kinds.index("ends")]
    folder = f"{report.answer['folder']}/"
    synced: dict[str, bool] = {}  # each path, under its present name
    held: dict[str, str] = {}  # what it held when it was last fsynced
    listed: dict[str, bool] = {}  # each new name: whether its folder was fsynced since
    late: set[str] = set()
    unlisted: set[str] = set()  # renamed before the folder with their names was fsynced
    for event in events:
        if event["kind"] == "synced":
            held[event["path"]] = event["content"]
        if event["kind"] != "file":
            continue
        op, path = event["op"], event["path"]
        if op in ("open", "torch.save", "mkdir") and path.startswith(folder):
            listed.setdefault(path, False)
        if op in ("open", "torch.save"):
            synced[path] = False
        elif op == "fsync":
            listed |= {name: True for name in listed if folder_of(name) == path}
            synced[path] = True
        elif op in ("rename", "link") and event["to"] is not None:
            to = event["to"]
            listed = {
                **{after_rename(name, path, to): listed[name] for name in listed},
                to: False,
            }
            synced = {after_rename(name, path, to): synced[name] for name in synced}
            held = {after_rename(name, path, to): held[name] for name in held}
            inside = f"{to}/"
            late |= {n for n in synced if not synced[n] and (n == to or n.startswith(inside))}
            unlisted |= {n for n in listed if not listed[n] and n.startswith(inside)}
    files = report.answer["files"]
    lost = [name for name in files if name in late or not synced.get(name, False)]
    partly = [name for name in files if held.get(name, files[name]) != files[name]]
    nameless = [name for name in files if name in unlisted]
    above = {str(path) for name in files for path in PurePosixPath(name).parents}
    if lost:
        names = some([PurePosixPath(name).name for name in lost])
        yield TABLE(
            "not-durable", f"the name is published before the contents of {names} are on disk"
        )
    elif partly:
        names = some([PurePosixPath(name).name for name in partly])
        found = f"when {names} was fsynced, its last bytes weren't in the file yet"
        yield TABLE("not-durable", found, "at what is still in a buffer at the fsync")
    elif nameless:
        names = some([PurePosixPath(name).name for name in nameless])
        found = f"the checkpoint's own folder, with the names {names}, isn't fsynced before "
        look = "at the folders: each one keeps its list of names, and needs an fsync of its own"
        yield TABLE("not-durable", f"{found}the rename", look)
    elif not all(listed[name] for name in listed if name in files or name in above):
        found = "after the rename, the folder that contains the new name isn't fsynced"
        yield TABLE("not-durable", found)


def folder_of(name: str) -> str:
    """The folder of a path."""
    return str(PurePosixPath(name).parent)


def after_rename(name: str, path: str, to: str) -> str:
    """A path after a rename of ``path``, which may be one of its folders."""
    is_moved = name == path or name.startswith(f"{path}/")
    return to + name.removeprefix(path) if is_moved else name
