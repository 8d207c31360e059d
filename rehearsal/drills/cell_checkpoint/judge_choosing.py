"""Was the newest intact checkpoint chosen, and was each damaged one reported?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding
from rehearsal.kit.judge.findings import some
from .codes import TABLE, said
from .plan import Plan


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
    what = f"only {older} had {plan.damages[1].what}"
    yield from skipped(what, answer["older"], [], newest)
    what = f"{newest} had {plan.damages[1].what}, and {third} had {plan.damages[0].what}"
    yield from skipped(what, answer["around"], [newest], older)
    what = f"{newest} and {older} were damaged ({plan.damages[1].what}; {plan.damages[2].what})"
    yield from skipped(what, answer["two"], [newest, older], third)
    if "raised" not in answer["all"]:
        yield TABLE(
            "started-over",
            f"with all checkpoints damaged, latest_checkpoint_path {said(answer['all'])}",
        )
    if "later" in answer and "raised" not in answer["later"]:
        yield TABLE(
            "newer-format",
            f"the manifest of {newest} had a format above FORMAT, and {older} was intact; "
            f"latest_checkpoint_path {said(answer['later'])}",
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
            "at the order in which you try the checkpoints" if value[0] else "",
        )
    elif sorted(value[2]) != sorted(bad):
        finding = TABLE(
            "damage-not-reported",
            f"{what}, and {intact} was returned; reported as damaged: "
            f"{some(value[2]) or 'nothing'}",
        )
        if {*value[2]} > {*bad}:
            rule = "only the damaged ones that are newer than the returned one are reported"
            finding = finding._replace(rule=rule, look="at where the search for one ends")
        yield finding
    elif result["silent"]:
        yield TABLE("damage-not-reported", f"{what}, and the reason given for it is empty")
    elif result["lost"]:
        yield TABLE(
            "not-the-newest",
            f"{what}: {intact} was returned, with a manifest that lacks its "
            f"{some(result['lost'])}",
            "at which manifest you return",
        )
