"""Was all of the state saved, and did it come back into the parts that exist?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding
from rehearsal.kit.judge.findings import some
from rehearsal.kit.judge.weights import largest_difference
from .codes import TABLE, said
from .plan import Plan


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
        f"({', '.join(map(str, group['betas']))}), eps {group['eps']}, maximize "
        f"{group['maximize']}"
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
