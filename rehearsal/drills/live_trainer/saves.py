"""One checkpoint, then another: killed at each file operation of the save, then damaged."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.moments import Moment, watch_moments

from .draws import SmallRun, saved_steps


def parts(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed keeps a stack trace, 0.3 ms
    model = nn.Linear(5, 3)
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
    name = "latest_checkpoint_path"
    try:
        path = learner.latest_checkpoint_path(folder)
        if path is None:
            return {"none": True}
        name = "restore_checkpoint"
        step = learner.restore_checkpoint(path, model, optimizer)
    except NotImplementedError:
        raise
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}"[:200], "in": name}
    return {"step": step, "state": print_of(model, optimizer)}


def no_sync(_: object) -> None:
    """Stands in for os.fsync: a kill loses nothing from the page cache."""


def content_of(path: Path) -> str:
    """A digest of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def watch_syncs(context: RankContext) -> None:
    """Record what each file holds when it is fsynced: without a flush, that is too little."""

    def watched(sync: Callable[[Any], None]) -> Callable[[Any], None]:
        def recorded(fd: Any) -> None:
            path = Path(
                os.readlink(f"/proc/self/fd/{fd if isinstance(fd, int) else fd.fileno()}")
            )
            if path.is_file() and path.is_relative_to(context.folder):
                name = str(path.relative_to(context.folder))
                context.record("synced", path=name, content=content_of(path))
            sync(fd)

        return recorded

    os.fsync, os.fdatasync = watched(os.fsync), watched(os.fdatasync)  # type: ignore[assignment]


def save_body(plan: SmallRun, context: RankContext, learner: SimpleNamespace) -> Any:
    """Save, kill, damage, and ask each time what the next start would get."""
    draw = random.Random(f"saves {plan.seed}")
    first, second, third, fourth = saved_steps(plan)
    pattern = context.folder / "saves" / "pattern"
    pattern.mkdir(parents=True)
    answer: dict[str, Any] = {"empty": restored(learner, pattern)}
    older, newer = parts(plan.seed), parts(plan.seed)
    train(*older, draw.randint(1, 4))
    train(*newer, draw.randint(5, 8))
    states = {first: print_of(*older), second: print_of(*newer), fourth: print_of(*older)}
    if Path("/proc/self/fd").exists():
        watch_syncs(context)
    context.record("begins")
    with watch_moments(pattern) as moments:
        learner.save_checkpoint(pattern, first, *older)
    context.record("ends")
    answer["first kills"] = [
        [moment.where, restored(learner, moment.restore(pattern.with_name(f"first-{number}")))]
        for number, moment in enumerate(different(moments))
    ]
    answer["folder"] = str(pattern.relative_to(context.folder))
    answer["files"] = {
        str(path.relative_to(context.folder)): content_of(path) for path in paths_in(pattern)
    }
    answer["first"] = restored(learner, pattern)
    os.fsync = no_sync  # type: ignore[assignment]

    def copy_of(source: Path, name: str) -> Path:
        return shutil.copytree(source, context.folder / "saves" / name)

    answer["kills"] = []
    both = copy_of(pattern, "both")
    with watch_moments(both) as moments:
        learner.save_checkpoint(both, second, *newer)
    for number, moment in enumerate(different(moments)):
        folder = moment.restore(both.with_name(f"killed-{number}"))
        found = restored(learner, folder)
        again: dict[str, Any] = found
        if found.get("step") == first:  # the next start trains on, and saves again
            again = attempt_save(learner, folder, second, newer)
        answer["kills"].append([moment.where, found, again])
    answer["second"] = restored(learner, both)
    of_newer = paths_in(both, without=pattern)
    answer["damages"] = damages(learner, both, of_newer, draw, second)
    repaired = copy_of(both, "again")
    for file in of_newer:
        flip(repaired / file.relative_to(both), draw)
    answer["again"] = attempt_save(learner, repaired, second, newer)
    for file in paths_in(both):
        flip(file, draw)
    answer["all bad"] = restored(learner, both)
    longer = pattern.with_name("longer")
    longer.mkdir()
    for step, state in ((third, newer), (fourth, older)):
        learner.save_checkpoint(longer, step, *state)
    return answer | {"longer": restored(learner, longer), "states": states}


def different(moments: Sequence[Moment]) -> list[Moment]:
    """The first of those that leave the same files."""
    by_files: dict[Any, Moment] = {}
    for moment in moments:
        by_files.setdefault(frozenset(moment.files.items()), moment)
    return list(by_files.values())


def attempt_save(learner: SimpleNamespace, folder: Path, step: int, state: Any) -> Any:
    """Save, and what the next start then gets."""
    try:
        learner.save_checkpoint(folder, step, *state)
    except Exception as error:
        return {"raised": f"{type(error).__name__} when it saved again: {error}"[:200]}
    return restored(learner, folder)


def paths_in(folder: Path, *, without: Path | None = None) -> list[Path]:
    """Every file, except those that another folder has under the same name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [p for p in paths if not (without and (without / p.relative_to(folder)).exists())]


def flip(path: Path, draw: random.Random) -> None:
    """Flip one bit."""
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def damages(
    learner: SimpleNamespace, both: Path, files: Sequence[Path], draw: random.Random, step: int
) -> list[Any]:
    """Damage each file of the newer checkpoint in each way, one at a time."""
    ways: dict[str, Callable[[Path], object]] = {
        "a bit flipped": lambda path: flip(path, draw),
        "lost its second half": lambda path: os.truncate(path, path.stat().st_size // 2),
        "lost its last byte": lambda path: os.truncate(path, path.stat().st_size - 1),
        "been deleted": Path.unlink,
    }
    found = []
    for file in files:
        kept = file.read_bytes()
        for what, damage in ways.items():
            damage(file)
            said = f"{file.relative_to(both)} of step {step} has {what}"
            found.append([said, restored(learner, both)])
            file.write_bytes(kept)
    return found
