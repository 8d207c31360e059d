"""Restoring one run's parts into another's, whose settings and scaler differ."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import shortened
from rehearsal.kit.observe.samples import OddNet, weights_of
from .plan import Plan
from .words import close_answers, outcome


class FinishedSampler:
    """A sampler at the end of its plan: its length is 0."""

    def __init__(self, position: int) -> None:
        self.position = position

    def __len__(self) -> int:
        return 0

    def state_dict(self) -> dict[str, int]:
        """The position."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue there."""
        self.position = state["position"]


class Scale(FinishedSampler):
    """A stand-in for a loss scaler."""


def parts_of(
    seed: int, settings: Mapping[str, Any], position: int, scale: int | None
) -> dict[str, Any]:
    """A run's parts; only matrices decay."""
    import torch

    model = OddNet(seed=seed)
    groups: list[Any] = [
        {
            "params": [p for p in model.parameters() if p.ndim > 1],
            "weight_decay": settings["weight_decay"],
        },
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    of_all = {name: value for name, value in settings.items() if name != "weight_decay"}
    optimizer = torch.optim.AdamW(groups, **of_all)
    scaler = Scale(scale) if scale is not None else None
    sampler = FinishedSampler(position)
    return {"model": model, "optimizer": optimizer, "scaler": scaler, "sampler": sampler}


def step_of(parts: Mapping[str, Any]) -> None:
    """One optimizer step on fixed samples."""
    import torch

    model, optimizer = parts["model"], parts["optimizer"]
    optimizer.zero_grad()
    model(torch.linspace(-1, 1, 15).view(3, 5)).pow(2).sum().backward()
    optimizer.step()


def twin_of(old: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Parts with the old run's weights and moments, and this start's settings."""
    twin = parts_of(0, settings, 0, None)
    twin["model"].load_state_dict(old["model"].state_dict())
    pairs = [
        [p for group in parts["optimizer"].param_groups for p in group["params"]]
        for parts in (twin, old)
    ]
    for mine, theirs in zip(*pairs, strict=True):
        state = old["optimizer"].state.get(theirs, {})
        twin["optimizer"].state[mine] = {name: t.clone() for name, t in state.items()}
    return twin


def restore_body(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Save one run's parts; restore them into parts with and without a scaler."""
    import torch

    close_answers(context)
    folder, device = context.folder / "restore", torch.device("cpu")
    folder.mkdir()
    facts = {"step": plan.step, "epoch": plan.epoch, "losses": plan.losses}
    facts["learning_rate"] = plan.saved["lr"]
    answer: dict[str, Any] = {"kept": [], "restores": []}
    for saved_scale, new_scale in ((None, plan.scales[1]), (plan.scales[0], plan.scales[1])):
        old = parts_of(plan.seed + 1, plan.saved, plan.step, saved_scale)
        for _ in range(plan.moments_after):
            step_of(old)
        state = learner.build_checkpoint(old, **facts)
        if not isinstance(state, Mapping):
            raise TypeError(
                f"build_checkpoint returned {shortened(str(state), 80)}, not a dict"
            )
        answer["kept"].append(left_out(state, old, facts))
        path = folder / ("plain" if saved_scale is None else "scaled")
        path.mkdir()
        torch.save(state, path / "state.pt")
        new = parts_of(plan.seed + 2, plan.configured, 0, new_scale)
        answer["restores"].append(restored_into(plan, learner, path, old, new))
        # Autocast without a scaler again: there is nothing to load the saved scale into.
        bare = parts_of(plan.seed + 3, plan.configured, 0, None)
        answer["restores"].append(restored_into(plan, learner, path, old, bare))
    new = parts_of(plan.seed + 2, plan.configured, 0, None)
    before = weights_of(new["model"])
    nothing = outcome(lambda: learner.restore_if_present(None, new, device) is None)
    answer["nothing"] = nothing
    answer["touched"] = weights_of(new["model"]) != before
    mark = folder / "code-has-run"
    torch.save({**state, "extra": Hostile(str(mark))}, path / "state.pt")
    hostile = outcome(lambda: learner.restore_if_present(path, new, device) is None)
    return answer | {"hostile": hostile, "ran": mark.exists()}


def left_out(state: Mapping[str, Any], parts: Mapping[str, Any], facts: Any) -> list[str]:
    """The names under which a checkpoint doesn't have what the parts and facts say."""
    wrong = [name for name, value in facts.items() if state.get(name, "missing") != value]
    for name, part in parts.items():
        wanted = None if part is None else part.state_dict()
        if not is_same(state.get(name, "missing"), wanted):
            wrong.append(name)
    return wrong


def is_same(found: Any, wanted: Any) -> bool:
    """Whether two state dicts are equal, tensors bit for bit."""
    import torch

    if isinstance(wanted, torch.Tensor):
        return isinstance(found, torch.Tensor) and torch.equal(found, wanted)
    if isinstance(wanted, Mapping):
        is_mapping = isinstance(found, Mapping) and found.keys() == wanted.keys()
        return is_mapping and all(is_same(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list | tuple):
        is_sequence = isinstance(found, list | tuple) and len(found) == len(wanted)
        return is_sequence and all(map(is_same, found, wanted))
    return bool(found == wanted)


def restored_into(
    plan: Plan,
    learner: SimpleNamespace,
    folder: Path,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
) -> dict[str, Any]:
    """What a restore returns, and what the parts are like after it and one more step."""
    import torch

    scales = [scale_of(old), scale_of(new)]
    loaded = outcome(lambda: learner.restore_if_present(folder, new, torch.device("cpu")))
    result: dict[str, Any] = {"scales": scales, "loaded": step_in(loaded)}
    result["settings"] = [
        {name: group[name] for name in plan.configured}
        for group in new["optimizer"].param_groups
    ]
    result["position"] = new["sampler"].position
    result["scale"] = scale_of(new)
    result["weights"] = [weights_of(parts["model"]) for parts in (old, new)]
    twin = twin_of(old, plan.configured)
    try:
        for parts in (new, twin):
            step_of(parts)
    except Exception as error:
        result["next"] = f"{type(error).__name__}: {shortened(str(error), 160)}"
    else:
        result["next"] = [weights_of(parts["model"]) for parts in (twin, new)]
    return result


def scale_of(parts: Mapping[str, Any]) -> int | None:
    """The scale of a run's scaler, which is falsy; None without a scaler."""
    return None if parts["scaler"] is None else int(parts["scaler"].position)


def step_in(result: dict[str, Any]) -> dict[str, Any]:
    """The outcome of a restore, with the step of the state instead of the state."""
    state = result.get("value")
    if state is None:
        return result
    try:
        step = state["step"]
    except Exception:  # the learner's call has returned; what it returned has no step
        is_state = isinstance(state, dict) and state
        what = (
            f"a dict with the keys {', '.join(map(str, list(state)[:6]))}" if is_state else ""
        )
        return {"malformed": what or shortened(repr(state), 200)}
    return {"malformed": "a state of step None"} if step is None else {"value": step}


class Hostile:
    """Makes a folder when something unpickles it carelessly."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)
