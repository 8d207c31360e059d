"""What is in a folder's checkpoints, at the end and at each moment of a kill. In the ranks."""

from __future__ import annotations

import hashlib
import io
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rehearsal.kit.observe.moments import Moment, drawn_moments

from .plan import Run


def digest(value: Any) -> str:
    """A short hash of a state dict, bit for bit, whatever is nested in it."""
    return hashlib.sha256(repr(written_out(value)).encode()).hexdigest()[:16]


def written_out(value: Any) -> Any:
    """Nested containers with tensors as bytes."""
    if isinstance(value, Tensor):
        return value.dtype, tuple(value.shape), value.detach().contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return [(key, written_out(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [written_out(item) for item in value]
    return value


def checkpoints_in(folder: Path) -> dict[str, dict[str, Any]]:
    """For each ``step-N.pt``: its step and digests, or why it can't be loaded."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("step-*.pt")):
        found[path.name] = content_of(path.read_bytes())
    return found


def content_of(data: bytes) -> dict[str, Any]:
    """The step and digests in a checkpoint, or why it can't be loaded."""
    try:
        state = torch.load(io.BytesIO(data), weights_only=False)
        parts = {part: digest(state[part]) for part in ("model", "optimizer")}
        return {"step": int(state["step"]), **parts}
    except Exception as error:
        return {"problem": f"{type(error).__name__}: {error}"[:120]}


def is_checkpoint(name: str) -> bool:
    """Whether a path below the folder is that of a checkpoint."""
    return name.startswith("step-") and name.endswith(".pt") and "/" not in name


def damaged_in(moments: Sequence[Moment]) -> list[tuple[str, str, str]]:
    """The first damaged checkpoint that a kill would have left: name, when, and problem."""
    intact = set[bytes]()
    for moment in moments:
        for name, data in moment.files.items():
            if data is None or not is_checkpoint(name) or data in intact:
                continue
            if problem := content_of(data).get("problem"):
                return [(name, moment.where, problem)]
            intact.add(data)
    return []


def leave_killed(run: Run, moments: Sequence[Moment], folder: Path) -> None:
    """Restore the files of one moment, in the middle of a write if there is such a one.

    There is a checkpoint whose step has two digits by then, and older ones have one.
    """
    late = [f"step-{step}.pt" for step in run.saves if step >= 10]
    begun = [m for m in moments if any(name in m.files for name in late)] or list(moments)
    drawn = drawn_moments(begun, 4, random.Random(run.num_samples + run.kill))
    drawn.sort(key=lambda pair: pair[1].part not in ("half", "nearly all"))
    drawn[0][1].restore(folder)
