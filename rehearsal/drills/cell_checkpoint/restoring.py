"""Restoring one run's parts into another's, whose settings and scaler differ."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, shortened
from rehearsal.kit.judge.findings import some
from rehearsal.kit.judge.weights import largest_difference
from rehearsal.kit.observe.samples import OddNet, weights_of
from .codes import TABLE
from .plan import Plan
from .words import close_answers, outcome, said


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
    optimizer = torch.optim.AdamW(
        groups, lr=settings["lr"], betas=settings["betas"], eps=settings["eps"]
    )
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
        # Autocast without a scaler again: its saved state is nobody's.
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
    names = ["lr", "weight_decay", "betas", "eps"]
    result["settings"] = [
        {name: group[name] for name in names} for group in new["optimizer"].param_groups
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
        what = f"a dict with the keys {some(list(state))}" if is_state else ""
        return {"malformed": what or shortened(repr(state), 200)}
    return {"malformed": "a state of step None"} if step is None else {"value": step}


class Hostile:
    """Makes a folder when something unpickles it carelessly."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


# ---------------------------------------------------------------- judging it


def restored(result: Mapping[str, Any]) -> str:
    """The outcome of a restore in words."""
    if result.get("value") is None:
        return "returned None" if "value" in result else said(result)
    return f"returned a state of step {result['value']}"


def hyperparameters(groups: Sequence[Mapping[str, Any]]) -> str:
    """Each group's settings, in words."""
    rounded = json.loads(json.dumps(groups), parse_float=lambda text: f"{float(text):g}")
    texts = [
        f"lr {group['lr']}, weight decay {group['weight_decay']}, betas "
        f"({', '.join(map(str, group['betas']))}), eps {group['eps']}"
        for group in rounded
    ]
    return " and ".join(texts)


def restore_judge(
    plan: Plan, reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """All of the state, into the parts that exist, with the configured settings."""
    answer = reports[0].answer
    for differ, scaler in zip(answer["kept"], ("was None", "had a state"), strict=True):
        if differ:
            look = ""
            if differ == ["sampler"]:
                look = "at how you distinguish a part that is None from one that is falsy"
            yield TABLE(
                "state-left-out",
                f"the sampler was at the end of its plan, and the scaler {scaler}. These are "
                f"missing or wrong in what build_checkpoint returned: {some(differ, 8)}",
                look,
            )
    if answer["nothing"] != {"value": True} or answer["touched"]:
        how = said(answer["nothing"], is_none=True)
        how += " and changed the weights" if answer["touched"] else ""
        yield TABLE(
            "not-restored",
            f"without a folder, restore_if_present {how}",
            "at what you do if the folder is None",
        )
        return
    for result in answer["restores"]:
        yield from result_findings(plan, result)
    if answer["ran"] or "raised" not in answer["hostile"]:
        yield TABLE(
            "runs-code",
            "a state.pt contained a pickled call, and restore_if_present "
            f"{'ran it' if answer['ran'] else 'did not raise'}",
        )


def result_findings(plan: Plan, result: Mapping[str, Any]) -> Iterator[Finding]:
    """One restore."""
    was, is_new = ("without" if scale is None else "with" for scale in result["scales"])
    about = f"from a checkpoint {was} a scaler's state, into a run {is_new} a scaler, "
    if result["loaded"] != {"value": plan.step}:
        look = "at what you return"
        if "raised" in result["loaded"]:
            look = "at the line that raises: is a part or a state None there?"
        if result["loaded"].get("raised", "").startswith(("NameError", "UnboundLocalError")):
            look = "at where that variable gets its value"
        yield TABLE(
            "not-restored", f"{about}restore_if_present {restored(result['loaded'])}", look
        )
        return
    difference, name = largest_difference(*result["weights"])
    what = f"the weights, by {difference:.2g} in {name}" if difference else ""
    what = what or ("the sampler's position" if result["position"] != plan.step else "")
    # A scaler continues from a saved state, and otherwise stays as it was made.
    saved, made = result["scales"]
    scale = made if made is None or saved is None else saved
    what = what or (f"the scaler ({result['scale']}, not {scale})" * (result["scale"] != scale))
    if what:
        yield TABLE("not-restored", f"{about}this is wrong after the restore: {what}")
    configured = [plan.configured, {**plan.configured, "weight_decay": 0.0}]
    if result["settings"] != configured:
        yield TABLE(
            "old-hyperparameters",
            f"the optimizer's two groups were configured with {hyperparameters(configured)}; "
            f"after the restore they have {hyperparameters(result['settings'])}",
        )
        return
    if isinstance(result["next"], str):
        found = f"{about}the next optimizer step raised {result['next']}"
        yield TABLE("not-restored", found, "at what you load into the optimizer")
        return
    difference, name = largest_difference(*result["next"])
    if not difference < 1e-6:
        yield TABLE(
            "not-restored",
            f"one step after the restore, the weights differ by {difference:.2g} in {name} "
            "from those of a step with the saved moments and the configured settings",
            "at the optimizer's moments, and at which parameters they belong to",
        )
