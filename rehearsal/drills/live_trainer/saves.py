"""One checkpoint and then another: with a kill at each file operation, and damaged."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding
from rehearsal.kit.judge.findings import some
from .cells import Earlier
from .findings import TABLE
from .moments import copies_before_each_file_operation

OLD, NEW = 9, 10  # the name that sorts last is not the later step's


def parts(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Take some steps, so that weights and moments change."""
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 5)).square().sum().backward()
        optimizer.step()


def print_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """A digest of weights and moments."""
    moments = optimizer.state_dict()["state"]
    tensors = [*model.state_dict().values()]
    tensors += [moments[i][name] for i in sorted(moments) for name in sorted(moments[i])]
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(torch.as_tensor(tensor).detach().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def restored(learner: SimpleNamespace, folder: Path) -> dict[str, Any]:
    """What the next start gets from a folder: the step, and a digest of the state."""
    model, optimizer = parts(99)
    try:
        path = learner.latest_checkpoint_path(folder)
        if path is None:
            return {"none": True}
        step = learner.restore_checkpoint(path, model, optimizer)
    except NotImplementedError:
        raise
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}"[:200]}
    return {"step": step, "state": print_of(model, optimizer)}


def no_sync(_: object) -> None:
    """Stands in for os.fsync: a kill loses nothing from the page cache."""


def save_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Save, kill, damage, and ask each time what the next start would get."""
    draw, states = random.Random(context.seed), {}
    pattern = context.folder / "saves" / "pattern"
    pattern.mkdir(parents=True)
    answer: dict[str, Any] = {"empty": restored(learner, pattern)}
    older, newer = parts(1), parts(1)
    train(*older, 3)
    train(*newer, 5)
    states = {OLD: print_of(*older), NEW: print_of(*newer), 100: print_of(*older)}
    context.record("begins")
    learner.save_checkpoint(pattern, OLD, *older)
    context.record("ends")
    answer["files"] = [str(path.relative_to(context.folder)) for path in files_in(pattern)]
    answer["first"] = restored(learner, pattern)
    os.fsync = no_sync  # type: ignore[assignment]

    def copy_of(source: Path, name: str) -> Path:
        return shutil.copytree(source, context.folder / "saves" / name)

    answer["kills"] = []
    both = copy_of(pattern, "both")
    with copies_before_each_file_operation(
        both, lambda number: both.with_name(f"killed-{number}")
    ) as copies:
        learner.save_checkpoint(both, NEW, *newer)
    for where, folder in copies:
        found = restored(learner, folder)
        again: dict[str, Any] = found
        if found.get("step") == OLD:  # the next start trains on, and saves again
            again = attempt_save(learner, folder, NEW, newer)
        answer["kills"].append([where, found, again])
    answer["second"] = restored(learner, both)
    of_newer = files_in(both, without=pattern)
    answer["damages"] = damages(learner, both, of_newer, draw)
    repaired = copy_of(both, "again")
    for file in of_newer:
        flip(repaired / file.relative_to(both), draw)
    answer["again"] = attempt_save(learner, repaired, NEW, newer)
    for file in files_in(both):
        flip(file, draw)
    answer["all bad"] = restored(learner, both)
    third = copy_of(pattern, "hundred")
    for step, state in ((99, newer), (100, older)):
        learner.save_checkpoint(third, step, *state)
    return answer | {"hundred": restored(learner, third), "states": states}


def attempt_save(learner: SimpleNamespace, folder: Path, step: int, state: Any) -> Any:
    """Save, and what the next start then gets."""
    try:
        learner.save_checkpoint(folder, step, *state)
    except Exception as error:
        return {"raised": f"saving again, {type(error).__name__}: {error}"[:200]}
    return restored(learner, folder)


def files_in(folder: Path, *, without: Path | None = None) -> list[Path]:
    """Every file, except those that another folder has under the same name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [p for p in paths if not (without and (without / p.relative_to(folder)).exists())]


def flip(path: Path, draw: random.Random) -> None:
    """Flip one bit."""
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def damages(
    learner: SimpleNamespace, both: Path, files: Sequence[Path], draw: random.Random
) -> list[Any]:
    """Damage each file of the newer checkpoint in each way, one at a time."""
    ways: dict[str, Callable[[Path], object]] = {
        "a bit flipped": lambda path: flip(path, draw),
        "lost its second half": lambda path: os.truncate(path, path.stat().st_size // 2),
        "been deleted": Path.unlink,
    }
    found = []
    for file in files:
        kept = file.read_bytes()
        for what, damage in ways.items():
            damage(file)
            said = f"{file.relative_to(both)} of step {NEW} has {what}"
            found.append([said, restored(learner, both)])
            file.write_bytes(kept)
    return found


def ended(result: dict[str, Any]) -> str:
    """An outcome as a clause."""
    if "raised" in result:
        return f"the next start raised {result['raised']}"
    if "none" in result:
        return "the next start found no checkpoint"
    return f"the next start restored step {result['step']}"


def save_judge(reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """Complete or absent, verified, and the newest that is intact."""
    answer = reports[0].answer
    states = {int(step): state for step, state in answer["states"].items()}
    if "none" not in answer["empty"]:
        found = f"the folder is empty, and {ended(answer['empty'])}"
        yield TABLE("wrong-checkpoint", found, "at what a first start finds")
        return
    for step, result in (
        (OLD, answer["first"]),
        (NEW, answer["second"]),
        (100, answer["hundred"]),
    ):
        before = {OLD: "", NEW: f" after step {OLD}", 100: f" after steps {OLD} and 99"}[step]
        if result.get("step") != step:
            yield TABLE("wrong-checkpoint", f"step {step} was saved{before}; {ended(result)}")
            return
        if result["state"] != states[step]:
            found = f"step {step} was saved{before} and restored, and weights or moments differ"
            yield TABLE("state-not-restored", found)
            return
    total = len(answer["kills"])
    for number, (where, result, again) in enumerate(answer["kills"], 1):
        said = (
            f"killed before {where} (file operation {number} of {total}) in the save of step "
        )
        said += f"{NEW}, when step {OLD} was on disk: "
        if states.get(result.get("step", 0)) != result.get("state", ""):
            yield TABLE("lost-in-a-kill", said + ended(result))
            return
        if states.get(again.get("step", 0)) != again.get("state", "") or again["step"] != NEW:
            yield TABLE(
                "cannot-save-again", f"{said}it trained step {NEW} again; {ended(again)}"
            )
            return
    yield from sync_findings(reports[0])
    for said, result in answer["damages"]:
        if states.get(result.get("step", 0)) != result.get("state", ""):
            yield TABLE("damage-not-survived", f"{said}; {ended(result)}")
            return
    if answer["again"].get("state") != states[NEW]:
        found = f"step {NEW} was damaged, trained again and saved; {ended(answer['again'])}"
        yield TABLE("cannot-save-again", found)
    if "raised" not in answer["all bad"]:
        found = f"both checkpoints are damaged, and {ended(answer['all bad'])}"
        yield TABLE("starts-over", found)


def sync_findings(report: RankReport) -> Iterator[Finding]:
    """Whether a power loss could keep the name and lose the contents."""
    kinds = [event["kind"] for event in report.events]
    events = report.events[kinds.index("begins") : kinds.index("ends")]
    files = [event for event in events if event["kind"] == "file"]
    synced: dict[str, bool] = {}  # each path, under its present name
    folders: dict[str, bool] = {}  # folders in which a name has appeared by a rename
    late: set[str] = set()
    for event in files:
        op, path = event["op"], event["path"]
        if op in ("open", "torch.save"):
            synced[path] = False
        elif op == "fsync":
            folders = {**folders, **({path: True} if path in folders else {})}
            synced[path] = True
        elif op in ("rename", "link"):
            for name in [n for n in synced if n == path or n.startswith(f"{path}/")]:
                renamed = event["to"] + name.removeprefix(path)
                synced[renamed] = synced.pop(name)
                if not synced[renamed]:
                    late.add(renamed)
            folders[str(PurePosixPath(event["to"]).parent)] = False
    lost = [f for f in report.answer["files"] if f in late or not synced.get(f, False)]
    if lost:
        names = some([PurePosixPath(name).name for name in lost])
        yield TABLE(
            "not-durable", f"the name is published before the contents of {names} are on disk"
        )
    elif not all(folders.values()):
        found = "after the rename, the folder that has the new name isn't fsynced"
        yield TABLE("not-durable", found)
