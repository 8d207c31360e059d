"""Starts: alone, with GPUs that only record calls, and starts that every rank must refuse."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import counted
from rehearsal.kit.observe.anti_cheat import close_the_answer
from rehearsal.kit.observe.refusal import refusal
from rehearsal.kit.observe.waiting import wait_until
from trainer_core.config import TrainConfig
from .plan import ALONE, Plan

WAIT_S = 3.0  # of a rank that joins, for the others: one that was refused never comes
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
        forget_the_launcher()
    os.environ.update(kept)
    return answer


def forget_the_launcher() -> None:
    """Take away what torchrun sets."""
    for name in [n for n in os.environ if "RANK" in n or "WORLD" in n or "MASTER" in n]:
        del os.environ[name]


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
        wait_until(lambda: all(arrival.exists() for arrival in arrivals), WAIT_S)

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
    answer |= {
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
    forget_the_launcher()
    answer["single"] = {
        f"device={device}, with {counted(gpus, 'GPU')}": start({"device": device}, gpus)
        for device, gpus in (("auto", 1), ("cuda", plan.spare_gpus + 1))
    }
    answer["refused"] |= {
        "one process started by no launcher, device=cuda, without a GPU": start(
            {"device": "cuda"}, 0
        ),
        "one process started by no launcher, world_size=2": start(
            {"device": "cpu", "world_size": 2}, 0
        ),
    }
    return answer
