"""Did each rank get the right device and group, and was every impossible start refused?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, counted, named_ranks, shortened
from .codes import TABLE
from .plan import Plan
from .plan import ALONE


def judge_alone(answer: Mapping[str, Any]) -> Iterable[Finding]:
    """No peers, no group."""
    for how, error, has_group, *identities in answer["alone"]:
        if error or has_group:
            what = f"it raised {said(error)}" if error else "it created a group"
            look = "at when maybe_init_dist joins a group" if has_group else ""
            yield TABLE("group-of-one", f"one process, {how}: {what}", look)
        for who in identities:
            if who != ALONE:
                yield identity_finding(who, ALONE)
    if not answer["is_unwrapped"]:
        yield TABLE("not-unwrapped", "in a single process, unwrap returns a different object")


def said(error: Sequence[Any]) -> str:
    """A refusal in words."""
    return f"{error[0]}: {shortened(error[2], 120)}"


def identity_finding(found: list[Any], expected: list[Any]) -> Finding:
    """Four values against four."""
    names = ("rank", "local_rank", "world_size", "device")
    texts = [
        ", ".join(f"{n} {v}" for n, v in zip(names, who, strict=True))
        for who in (found, expected)
    ]
    return TABLE("wrong-identity", f"maybe_init_dist returned {texts[0]} instead of {texts[1]}")


def judge_starts(plan: Plan, reports: Sequence[RankReport], _: object) -> Iterable[Finding]:
    """Devices, and what every rank must refuse."""
    answers = [report.answer for report in reports]
    for answer in answers:
        yield from judge_alone(answer)
    for kind in ("cpu", "gpu"):
        for what in answers[0][kind]:
            yield from valid_findings(what, [answer[kind][what] for answer in answers])
    for what in answers[0]["refused"]:
        yield from refusal_findings(what, [answer["refused"][what] for answer in answers])
    for rank, answer in enumerate(answers):
        for what, one in answer["cpu"].items():
            who = f"rank {rank}, {what}, "
            if one["devices"] != ["cpu"]:
                yield TABLE("wrong-identity", f"{who}has the device {one['devices'][0]}")
            yield from group_findings(plan, who, one, "gloo")
        for what, one in answer["gpu"].items():
            yield from gpu_findings(plan, f"rank {rank}, {what}, ", answer["local_rank"], one)
    yield from only_gpu_findings(answers)
    for what, one in answers[0]["single"].items():
        yield from single_findings(f"one process, started by no launcher, {what}: ", one)


def single_findings(who: str, one: Mapping[str, Any]) -> Iterable[Finding]:
    """A process without peers takes GPU 0, and joins nothing."""
    if one["error"]:
        yield TABLE("refuses-a-valid-start", f"{who}it raised {said(one['error'])}")
    elif not {*one["devices"]} <= {"cuda", "cuda:0"}:
        yield TABLE("wrong-identity", f"{who}its device is {one['devices'][0]}")
    elif any(note[0] == "join" for note in one["notes"]):
        yield TABLE("group-of-one", f"{who}it created a group")


def valid_findings(what: str, found: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """A start that can work, on every rank."""
    for rank, one in enumerate(found):
        if one["error"]:
            yield TABLE(
                "refuses-a-valid-start", f"{what}: rank {rank} raised {said(one['error'])}"
            )


def refusal_findings(what: str, found: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """A start that can't work: every rank raises ValueError, or some rank waits."""
    refusing = [rank for rank, one in enumerate(found) if one["error"] and one["error"][1]]
    if len(refusing) == len(found):
        return
    ends = []
    for rank, one in enumerate(found):
        error = one["error"]
        how = f"raised {said(error)}" if error else "did not raise"
        how += ", not ValueError" if error and not error[1] else ""
        ends.append(f"rank {rank} {how}")
    code = "raises-alone" if refusing else "accepts-the-impossible"
    yield TABLE(code, f"{what}: {'; '.join(ends)}")


def group_findings(
    plan: Plan, who: str, one: Mapping[str, Any], backend: str
) -> Iterable[Finding]:
    """The group that a rank joins: how many, the backend, the timeout."""
    joins = [note for note in one["notes"] if note[0] == "join"]
    if len(joins) != 1:
        found = f"{who}joins {counted(len(joins), 'group')}"
        yield TABLE("wrong-identity", found, "at when maybe_init_dist joins a group")
        return
    _, named, _, timeout = joins[0]
    has_nothing_to_run_on = "nccl" in named and not one["gpus"]
    if has_nothing_to_run_on or (backend not in named and named != "None"):
        yield TABLE("wrong-backend", f"{who}joins a group with the backend {named}")
    if timeout != plan.timeout_s:
        given = "not set" if timeout is None else f"{timeout:g} s"
        found = f"{who}joins a group whose timeout is {given}; cfg.dist_timeout_s is "
        yield TABLE("timeout-ignored", f"{found}{plan.timeout_s:g} s")


def gpu_findings(
    plan: Plan, who: str, local_rank: int, one: Mapping[str, Any]
) -> Iterable[Finding]:
    """A GPU for each rank: which one, and when it is selected."""
    notes, expected = one["notes"], f"cuda:{local_rank}"
    who += f"with local rank {local_rank}, "
    if one["devices"] != [expected]:
        yield TABLE("wrong-identity", f"{who}has the device {one['devices'][0]}")
    joins = [note for note in notes if note[0] == "join"]
    bound = joins[0][2] if joins else ""
    taken = [note[1] for note in notes if note[0] == "device"]
    if bound != expected and taken and taken[0] != local_rank:
        yield TABLE("wrong-identity", f"{who}selects GPU {taken[0]}")
    kinds = [note[0] for note in notes]
    at = kinds.index("collective") if "collective" in kinds else len(notes)
    if ["device", local_rank] not in notes[:at] and bound != expected:
        when = "maybe_init_dist returned"
        when = f"its first collective, {notes[at][1]}" if at < len(notes) else when
        yield TABLE("group-before-device", f"{who}did not select its GPU before {when}")
    yield from group_findings(plan, who, one, "nccl")


def only_gpu_findings(answers: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """One visible GPU per process: its number is 0, whatever the local rank is.

    That GPU may also be one that all ranks share; its number, 0, doesn't say which. So an
    answer may refuse it, too, on every rank.
    """
    found = [answer["only"] for answer in answers]
    refusing = [rank for rank, one in enumerate(found) if one["error"] and one["error"][1]]
    if len(refusing) == len(found):
        return
    for rank, (answer, one) in enumerate(zip(answers, found, strict=True)):
        who = f"rank {rank}, with local rank {answer['local_rank']}, sees one GPU: "
        if one["error"]:
            who += f"it raises {said(one['error'])}"
            others = [other for other in range(len(found)) if other not in refusing]
            if one["error"][1]:
                yield TABLE("raises-alone", f"{who}; {named_ranks(others)} did not refuse it")
            look = "at what you do with the device of a process that sees one GPU"
            yield TABLE("wrong-identity", who, look)
            continue
        selected = [note[1] for note in one["notes"] if note[0] == "device"]
        if not {*one["devices"]} <= {"cuda", "cuda:0"} or any(selected):
            who += f"its device is {one['devices'][0]}, and it calls set_device for "
            yield TABLE("wrong-identity", f"{who}{selected or 'none'}")
