"""Starts: alone, with GPUs that only record calls, and starts that every rank must refuse."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, counted, named_ranks, shortened
from rehearsal.kit.observe.anti_cheat import close_the_answer
from rehearsal.kit.observe.refusal import refusal
from rehearsal.kit.observe.waiting import wait_until
from trainer_core.config import TrainConfig
from .codes import TABLE
from .plan import Plan

ALONE = [0, 0, 1, "cpu"]  # rank, local rank, world size, device
PATIENCE_S = 3.0  # of a rank that joins, for the others: one that was refused never comes
COLLECTIVES = (
    "barrier monitored_barrier all_reduce all_reduce_coalesced reduce broadcast all_gather "
    "all_gather_coalesced all_gather_into_tensor gather scatter reduce_scatter "
    "reduce_scatter_tensor all_to_all all_to_all_single all_gather_object gather_object "
    "broadcast_object_list scatter_object_list send recv isend irecv"
).split()


def identity_of(info: Any) -> list[Any]:
    """What a rank has learned about itself."""
    return [info.rank, info.local_rank, info.world_size, str(info.device)]


def close_answers(context: RankContext) -> None:
    """trainer_core's own functions can't be called."""
    names = ["maybe_init_dist", "cleanup_dist", "wrap_model", "unwrap"]
    close_the_answer(context, "trainer_core.distributed", names)


def alone(learner: SimpleNamespace) -> dict[str, Any]:
    """One process: with a launcher, and without."""
    answer: dict[str, Any] = {"alone": []}
    kept, cfg = dict(os.environ), TrainConfig(device="cpu")
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    for how in ("started with WORLD_SIZE=1", "started by no launcher"):
        infos: list[Any] = []
        error = None
        if not answer["alone"]:
            infos.append(learner.maybe_init_dist(cfg))  # an exception here is a crash
        else:
            error = refusal(lambda: learner.maybe_init_dist(cfg), into=infos)
        identities = [identity_of(info) for info in infos]
        answer["alone"].append([how, error, dist.is_initialized(), *identities])
        if error or dist.is_initialized() or identities != [ALONE]:
            break
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.5))
        wrapped = learner.wrap_model(model, infos[0], torch.zeros(0, 3))
        wrapped(torch.ones(2, 3)).sum().backward()
        answer["is_unwrapped"] = learner.unwrap(wrapped) is learner.unwrap(model) is model
        learner.cleanup_dist()
        for name in [n for n in os.environ if "RANK" in n or "WORLD" in n or "MASTER" in n]:
            del os.environ[name]
    os.environ.update(kept)
    return answer


def put_in_place(learner: SimpleNamespace, owner: Any, name: str, stand_in: Any) -> None:
    """Replace a function of torch, also where the learner has imported it by name."""
    original = getattr(owner, name)
    setattr(owner, name, stand_in)
    names = getattr(learner.maybe_init_dist, "__globals__", {})
    for own in [own for own, value in names.items() if value is original]:
        names[own] = stand_in


class Starts:
    """Calls maybe_init_dist with GPUs and a group that only record what is asked of them."""

    def __init__(self, plan: Plan, context: RankContext, learner: SimpleNamespace) -> None:
        self.context, self.learner = context, learner
        self.notes: list[list[Any]] = []
        self.turn: Path = context.folder / "start-0"
        self.turns = self.gpus = 0
        self.current_gpu = 0
        for owner, name, stand_in in (
            (torch.cuda, "device_count", lambda: self.gpus),
            (torch.cuda, "is_available", lambda: self.gpus > 0),
            (torch.cuda, "set_device", self.sets),
            (dist, "init_process_group", self.joins),
        ):
            put_in_place(learner, owner, name, stand_in)
        for name in COLLECTIVES:
            if hasattr(dist, name):
                put_in_place(learner, dist, name, self.meeting(name))

    def joins(
        self,
        backend: Any = None,
        init_method: Any = None,
        timeout: Any = None,
        *_: Any,
        **kwargs: Any,
    ) -> None:
        """Stands in for init_process_group. Nobody gets through before all have arrived."""
        told = [str(backend), str(kwargs.get("device_id"))]
        self.notes.append(["join", *told, timeout and timeout.total_seconds()])
        ranks = range(self.context.world_size)
        arrivals = [self.turn.with_suffix(f".{rank}") for rank in ranks]
        arrivals[self.context.rank].touch()
        wait_until(lambda: all(arrival.exists() for arrival in arrivals), PATIENCE_S)

    def meeting(self, name: str) -> Callable[..., None]:
        """Stands in for a collective."""
        return lambda *_, **__: self.notes.append(["collective", name])

    def sets(self, device: Any) -> None:
        """Stands in for torch.cuda.set_device."""
        index = device if isinstance(device, int) else torch.device(device).index
        self.notes.append(["device", index])

    def start(self, settings: dict[str, Any], gpus: int, **env: int) -> dict[str, Any]:
        """One start: how it was refused, if it was; the device; what it asked for."""
        self.turns += 1
        self.turn = self.context.folder / f"start-{self.turns}"
        self.notes, self.gpus = [], gpus
        os.environ.update({name: str(value) for name, value in env.items()})
        cfg = TrainConfig(**{"dist_timeout_s": 2.0, **settings})
        infos: list[Any] = []
        error = refusal(lambda: self.learner.maybe_init_dist(cfg), into=infos)
        devices = [str(info.device) for info in infos]
        notes = list(self.notes)
        return {"error": error, "devices": devices, "notes": notes, "gpus": gpus}


def starts(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Starts that can work, and starts that must be refused."""
    close_answers(context)
    gc.freeze()
    answer = alone(learner)
    if len(answer["alone"]) < 2 or answer["alone"][-1][1:] != [None, False, ALONE]:
        return answer
    start = Starts(plan, context, learner).start
    ranks, local = plan.ranks, (context.rank + plan.shift) % plan.ranks
    here = {"LOCAL_RANK": local, "LOCAL_WORLD_SIZE": ranks}
    gpus = ranks + plan.spare_gpus
    timeout = {"dist_timeout_s": plan.timeout_s}
    auto, cuda, cpu = ({"device": device, **timeout} for device in ("auto", "cuda", "cpu"))
    # Rank 0 is among the ranks whose local rank is the number of a GPU, the last ones aren't.
    last = plan.crowd - context.rank if context.rank else 0
    crowd = {"LOCAL_RANK": last, "LOCAL_WORLD_SIZE": plan.crowd}
    return {
        **answer,
        "local_rank": local,
        "gpu": {
            f"device=auto, with {gpus} GPUs": start(
                {"device": "auto", **timeout}, gpus, **here
            ),
            f"device=cuda, with {ranks} GPUs": start(
                {"device": "cuda", **timeout}, ranks, **here
            ),
        },
        "cpu": {
            f"world_size={ranks}, {ranks} started": start(
                {**cpu, "world_size": ranks}, 0, **here
            ),
            "device=auto, without a GPU": start(auto, 0, **here),
            f"device=cpu, with {gpus} GPUs": start(cpu, gpus, **here),
        },
        "refused": {
            "device=cuda, without a GPU": start({"device": "cuda"}, 0, **here),
            f"world_size={plan.wrong_size}, {ranks} started": start(
                {"device": "cpu", "world_size": plan.wrong_size}, 0, **here
            ),
            f"device=auto, {plan.crowd} ranks on a node of {plan.too_few} GPUs": start(
                {"device": "auto"}, plan.too_few, **crowd
            ),
            f"device=cuda, {plan.crowd} ranks on a node of {plan.too_few} GPUs": start(
                {"device": "cuda"}, plan.too_few, **crowd
            ),
        },
        "only": start({"device": "auto"}, 1, **here, CUDA_VISIBLE_DEVICES=local),
    }


# ---------------------------------------------------------------- judging them


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
