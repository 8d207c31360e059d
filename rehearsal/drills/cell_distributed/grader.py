"""Identity from the environment, two attempts in one process, a bit-identical resume.

LOCAL_RANK simulates two nodes, and a torch.cuda that only records calls simulates GPUs.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from trainer_core.config import TrainConfig

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.findings import only_first
from rehearsal.kit.judge.weights import STAY_EQUAL, largest_difference
from rehearsal.kit.observe.anti_cheat import close_the_answer
from rehearsal.kit.observe.refusal import refusal
from rehearsal.kit.observe.samples import marked_samples, weights_of
from rehearsal.kit.observe.waiting import wait_until
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding, FindingTable, counted

WHO = (
    "identity comes from the launcher's environment, the device from what this process sees; a "
    "process alone is rank 0 of 1"
)
# code: meaning; rule; where to look
TABLE = FindingTable(
    {
        "wrong-identity": (
            "rank, local rank, world size or device does not match the environment",
            WHO,
            "at which variable you read each number from, and at what this process sees",
        ),
        "group-of-one": (
            "a single process joins a group",
            "a process without peers needs no group, and a notebook has no launcher",
            "at what happens if the launcher's variables are missing",
        ),
        "wrong-backend": (
            "the group's backend does not fit the device",
            "tensors on a GPU need nccl, tensors on the CPU need gloo",
            "at what decides the backend",
        ),
        "group-before-device": (
            "a collective can run before the rank has selected its GPU",
            "until a rank selects its GPU, whatever it puts on plain cuda, and a barrier under "
            "NCCL, goes to GPU 0",
            "at when the GPU is selected, and at what can run before that",
        ),
        "timeout-ignored": (
            "the group does not use cfg.dist_timeout_s",
            "how long ranks wait for a dead peer is a setting, not the backend's default",
            "at the arguments of init_process_group",
        ),
        "accepts-the-impossible": (
            "an impossible world size or GPU count is accepted",
            "what can't work is refused at the start, with a ValueError",
            "at what you compare before you join the group",
        ),
        "refuses-the-possible": (
            "a start that the brief allows is refused",
            "what can work starts: cfg.world_size is 1 or torchrun's, and auto needs no GPU",
            "at the conditions under which maybe_init_dist raises",
        ),
        "raises-alone": (
            "one rank raises and another does not",
            "if one rank raises alone, the others wait for it",
            "at whether all ranks check the same numbers",
        ),
        "ranks-differ": (
            "after wrapping, the ranks hold different weights",
            STAY_EQUAL,
            "at what gives the ranks equal weights at the start",
        ),
        "not-the-mean": (
            "a gradient is not the mean over the ranks",
            "all ranks step on the same gradient: the mean over ranks",
            "at what happens to the gradients between backward and step",
        ),
        "random-state-moved": (
            "wrapping draws random numbers, or sets the random state",
            "a restart must not draw extra random numbers, or its dropout differs",
            "at what you feed the model while wrapping it",
        ),
        "gradient-left-over": (
            "after wrapping, gradients are not zero",
            "the first step trains on its own samples only",
            "at the end of wrap_model",
        ),
        "not-unwrapped": (
            "unwrap does not return the model that was wrapped",
            "checkpoints hold the model's own names, on one rank or on many",
            "at what unwrap does with a wrapped and with a bare model",
        ),
        "cleanup-waits": (
            "cleanup_dist waits for other ranks",
            "a rank must be able to leave while a peer is dead, without waiting for it",
            "at the collectives on shutdown",
        ),
        "wrapper-outlives-group": (
            "the DDP wrapper is still alive when the group is destroyed",
            "a wrapper that outlives its group keeps gloo's threads, which abort the process",
            "at what still refers to a wrapper that nobody uses anymore",
        ),
        "group-left-behind": (
            "the group still exists after cleanup_dist",
            "whoever joins must leave, so the next attempt can join",
            "at cleanup_dist",
        ),
        "joins-the-last-attempt": (
            "a second group sees the first group's keys in the store",
            "torchrun's store outlives an attempt, so each attempt needs its own keys",
            "at the store you pass to init_process_group",
        ),
        "resumed-run-differs": (
            "a resumed run does not match the uninterrupted one bit for bit",
            "three floats summed in a different order give a different result, so the order "
            "must be the same after every start",
            "at how DDP lays out gradients in the first backward pass, and in later ones",
        ),
    }
)
CODES = TABLE.codes
FEATURES, STEPS, SAVED_AFTER = 5, 4, 2
SHARES = ([3, 1, 2], [2, 0, 1], [4, 4, 1], [1, 2, 0])  # samples by step and rank
PATIENCE_S = 3.0
ALONE = [0, 0, 1, "cpu"]  # rank, local rank, world size, device


# ---------------------------------------------------------------- in the ranks


class Crossed(nn.Module):
    """Layers that are used in a different order than they are registered in."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.last = nn.Linear(40, 2)
        self.first = nn.Linear(FEATURES, 40)
        self.middle = nn.Linear(40, 40)
        for parameter in self.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(inputs))
        outputs: Tensor = self.last(torch.tanh(self.middle(hidden)))
        return outputs


def batch_of(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """A rank's samples of a step."""
    inputs, targets = marked_samples(40, FEATURES)
    first = sum(map(sum, SHARES[:step])) + sum(SHARES[step][:rank])
    mine = slice(first, first + SHARES[step][rank])
    return inputs[mine], targets[mine]


def backward(model: nn.Module, step: int, rank: int, world_size: int) -> None:
    """A rank's part of the mean over a step's samples."""
    inputs, targets = batch_of(step, rank)
    loss = (model(inputs) - targets).pow(2).sum()
    (loss * world_size / sum(SHARES[step])).backward()


def train(model: nn.Module, inner: nn.Module, steps: Iterable[int], rank: int) -> None:
    """Plain SGD."""
    for step in steps:
        inner.zero_grad()
        backward(model, step, rank, len(SHARES[0]))
        for parameter in inner.parameters():
            assert parameter.grad is not None
            parameter.data.sub_(0.1 * parameter.grad)


def gradients_of(model: nn.Module) -> dict[str, str]:
    """Every gradient, bit for bit; zeros if there is none."""
    return {
        name: (torch.zeros_like(p) if p.grad is None else p.grad).numpy().tobytes().hex()
        for name, p in model.named_parameters()
    }


def identity_of(info: Any) -> list[Any]:
    """What a rank has learned about itself."""
    return [info.rank, info.local_rank, info.world_size, str(info.device)]


def close_answers(context: RankContext) -> None:
    """trainer_core's own functions can't be called."""
    names = ["maybe_init_dist", "cleanup_dist", "wrap_model", "unwrap"]
    close_the_answer(context, "trainer_core.distributed", names)


def attempts(context: RankContext, learner: SimpleNamespace) -> Any:
    """Train four steps; then, in a second group, the last two from what was saved."""
    close_answers(context)
    os.environ.update(LOCAL_RANK=str(context.rank % 2), LOCAL_WORLD_SIZE="2")
    cfg = TrainConfig(device="cpu", dist_timeout_s=30.0)
    gc.freeze()  # a collection inspects what is made from now on, not all of torch
    gc.disable()  # only what the learner collects is collected
    first = first_attempt(context, learner, cfg)
    saved = first.pop("saved")
    # Recorded now: the second group may never form.
    context.record("left", is_initialized=dist.is_initialized(), **first)
    info = learner.maybe_init_dist(cfg)
    dist.barrier()  # all are connected, so no quick rank leaves while a slow one joins
    store = dist.distributed_c10d._get_default_store()
    finds = bool(store.check(["left by the first attempt"]))
    model = Crossed(seed=0)
    model.load_state_dict(saved)
    wrapped = learner.wrap_model(model, info, torch.zeros(0, FEATURES))
    train(wrapped, model, range(SAVED_AFTER, STEPS), context.rank)
    drop(wrapped)
    del wrapped
    learner.cleanup_dist()
    return {"finds": finds, "resumed": weights_of(model)}


def drop(wrapped: nn.Module) -> None:
    """Leave it in a reference cycle, as a trainer with hooks or an exception's frames do."""
    trainer: dict[str, Any] = {"model": wrapped}
    trainer["hook"] = lambda: trainer


def first_attempt(context: RankContext, learner: SimpleNamespace, cfg: TrainConfig) -> Any:
    """What changes around wrapping, and the weights at the save and at the end."""
    info = learner.maybe_init_dist(cfg)
    dist.barrier()
    dist.distributed_c10d._get_default_store().set("left by the first attempt", "")
    model = Crossed(seed=context.rank)
    before = torch.get_rng_state()
    wrapped = learner.wrap_model(model, info, torch.zeros(0, FEATURES))
    answer = {
        "identity": identity_of(info),
        "is_random_state_kept": torch.get_rng_state().tolist() == before.tolist(),
        "left_over": gradients_of(model),
        "is_unwrapped": learner.unwrap(wrapped) is model and learner.unwrap(model) is model,
        "wrapped": weights_of(model),
        "start": weights_of(Crossed(seed=0)),
    }
    model.zero_grad()
    backward(wrapped, 0, context.rank, context.world_size)
    answer |= {"gradient": gradients_of(model), "mean": gradients_of(whole_step())}
    train(wrapped, model, range(SAVED_AFTER), context.rank)
    answer["saved"] = {name: t.clone() for name, t in model.state_dict().items()}
    train(wrapped, model, range(SAVED_AFTER, STEPS), context.rank)
    answer["straight"] = weights_of(model)
    drop(wrapped)
    del wrapped
    # Rank 0 leaves first; the others wait for its note, for as long as a slow machine needs.
    note = context.folder / "rank-0-has-left"
    answer["waits"] = context.rank > 0 and not wait_until(note.exists, PATIENCE_S)
    learner.cleanup_dist()
    if context.rank == 0:
        note.touch()
    return answer


def whole_step() -> nn.Module:
    """The first step's mean gradient, from one process."""
    model = Crossed(seed=0)
    for rank in range(len(SHARES[0])):
        backward(model, 0, rank, 1)
    return model


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
        model = Crossed(seed=0)
        wrapped = learner.wrap_model(model, infos[0], torch.zeros(0, FEATURES))
        backward(wrapped, 0, 0, 1)
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


def starts(context: RankContext, learner: SimpleNamespace) -> Any:
    """Starts that must be refused, and starts with GPUs that only record calls."""
    close_answers(context)
    gc.freeze()
    answer = alone(learner)
    if len(answer["alone"]) < 2 or answer["alone"][-1][1:] != [None, False, ALONE]:
        return answer
    notes: list[list[Any]] = []
    turns: list[Path] = []
    visible = [0]

    def start(settings: dict[str, Any], gpus: int, can: bool = False, **env: int) -> Any:
        turns.append(context.folder / f"start-{len(turns)}")
        notes.clear()
        os.environ.update({name: str(value) for name, value in env.items()})
        visible[:] = [gpus]
        cfg = TrainConfig(**{"dist_timeout_s": 2.0, **settings})
        if not can:
            return refusal(lambda: learner.maybe_init_dist(cfg), into=infos)
        try:  # what can work may be refused by mistake; any other exception is a crash
            infos.append(learner.maybe_init_dist(cfg))
        except ValueError as error:
            return [type(error).__name__, True, str(error)]
        return None

    def joins(
        backend: Any = None,
        init_method: Any = None,
        timeout: Any = None,
        *_: Any,
        **kwargs: Any,
    ) -> None:
        told = [str(backend), str(kwargs.get("device_id"))]
        notes.append(["join", *told, timeout and timeout.total_seconds()])
        # As in a real group, nobody gets through before all have arrived.
        arrivals = [turns[-1].with_suffix(f".{rank}") for rank in range(context.world_size)]
        arrivals[context.rank].touch()
        wait_until(lambda: all(arrival.exists() for arrival in arrivals), PATIENCE_S)

    def meets(*_: Any, **__: Any) -> None:
        notes.append(["collective"])

    def sets(device: Any) -> None:
        notes.append(
            ["device", device if isinstance(device, int) else torch.device(device).index]
        )

    infos: list[Any] = []
    for owner, name, stand_in in (
        (torch.cuda, "device_count", lambda: visible[0]),
        (torch.cuda, "is_available", lambda: visible[0] > 0),
        (torch.cuda, "set_device", sets),
        (dist, "init_process_group", joins),
        (dist, "barrier", meets),
        (dist, "all_reduce", meets),
    ):
        put_in_place(learner, owner, name, stand_in)
    other = 1 - context.rank  # so rank and local rank differ
    cuda = start({"device": "auto", "dist_timeout_s": 77.0}, 2, can=True, LOCAL_RANK=other)
    devices = [str(info.device) for info in infos]
    seen = list(notes)
    infos.clear()
    possible = {
        "world_size=2, 2 started": start({"device": "cpu", "world_size": 2}, 0, can=True),
        "device=auto, without a GPU": start({"device": "auto"}, 0, can=True),
    }
    without_gpus = [str(info.device) for info in infos]
    refused = {
        "device=cuda, without a GPU": start({"device": "cuda"}, 0),
        "world_size=5, 2 started": start({"device": "cpu", "world_size": 5}, 0),
        "4 ranks on a node of 2 GPUs": start(
            {"device": "auto"}, 2, LOCAL_RANK=context.rank * 3, LOCAL_WORLD_SIZE=4
        ),
    }
    infos.clear()
    own: dict[str, Any] = {
        "LOCAL_RANK": other,
        "LOCAL_WORLD_SIZE": 2,
        "CUDA_VISIBLE_DEVICES": other,
    }
    only = start({"device": "auto"}, 1, **own)  # a rank that was refused alone may fail here
    return {
        **answer,
        "cuda": cuda,
        "notes": seen,
        "devices": devices,
        "local_rank": other,
        "possible": possible,
        "without_gpus": without_gpus,
        "refused": refused,
        "only_gpu": {
            "error": only,
            "devices": [str(info.device) for info in infos],
            "selected": [note[1] for note in notes if note[0] == "device"],
        },
    }


# ---------------------------------------------------------------- in the kernel


def judge_alone(answer: Mapping[str, Any]) -> Iterable[Finding]:
    """No peers, no group."""
    for how, error, has_group, *identities in answer["alone"]:
        if error or has_group:
            what = f"it raised {error[0]}: {error[2][:120]}" if error else "it created a group"
            look = "at when maybe_init_dist joins a group" if has_group else ""
            yield TABLE("group-of-one", f"one process, {how}: {what}", look)
        for who in identities:
            if who != ALONE:
                yield identity_finding(who, ALONE)
    if not answer["is_unwrapped"]:
        yield TABLE("not-unwrapped", "in a single process, unwrap returns a different object")


def identity_finding(found: list[Any], expected: list[Any]) -> Finding:
    """Four values against four."""
    names = ("rank", "local_rank", "world_size", "device")
    said = [
        ", ".join(f"{n} {v}" for n, v in zip(names, who, strict=True))
        for who in (found, expected)
    ]
    return TABLE("wrong-identity", f"maybe_init_dist returned {said[0]} instead of {said[1]}")


def judge_starts(reports: Sequence[RankReport], _: object) -> Iterable[Finding]:
    """Devices, and what every rank must refuse."""
    for report in reports:
        yield from judge_alone(report.answer)
    for rank, report in enumerate(reports):
        for what, error in report.answer["possible"].items():
            if error:
                found = f"{what}: rank {rank} raised {error[0]}: {error[2][:160]}"
                yield TABLE("refuses-the-possible", found)
        if set(report.answer["without_gpus"]) != {"cpu"}:
            found = f"without a GPU, with device=cpu and then auto, rank {rank} is on "
            yield TABLE("wrong-identity", found + " and ".join(report.answer["without_gpus"]))
    for what in reports[0].answer["refused"]:
        errors = [report.answer["refused"][what] for report in reports]
        refuses = [bool(error and error[1]) for error in errors]
        if not any(refuses):
            how = "it was accepted"
            for rank, error in enumerate(errors):
                if error:
                    how = f"rank {rank} raised {error[0]}, not ValueError: {error[2][:100]}"
                    how = how if errors[1 - rank] else f"rank {1 - rank} accepted it, and {how}"
                    break
            yield TABLE("accepts-the-impossible", f"{what}: {how}")
        elif not all(refuses):
            rank = refuses.index(True)
            how = f"raised {errors[1 - rank][0]}" if errors[1 - rank] else "did not raise"
            found = f"{what}: rank {rank} raised {errors[rank][0]}, rank {1 - rank} {how}"
            yield TABLE("raises-alone", found)
    for rank, answer in enumerate(report.answer for report in reports):
        notes, local_rank = answer["notes"], answer["local_rank"]
        if answer["cuda"]:
            found = "device=auto, with two GPUs and two ranks: rank "
            found += f"{rank} raised {answer['cuda'][0]}: {answer['cuda'][2][:160]}"
            yield TABLE("refuses-the-possible", found)
        joins = [note for note in notes if note[0] == "join"]
        expected = f"cuda:{local_rank}"
        if answer["devices"] != [expected] or not joins:
            device = answer["devices"][0] if answer["devices"] else "none"
            found = f"with two GPUs, rank {rank} with local rank {local_rank} has the device "
            found += f"{device} and joins {counted(len(joins), 'group')}"
            look = "" if joins else "at when maybe_init_dist joins a group"
            yield TABLE("wrong-identity", found, look)
        _, backend, bound, timeout = joins[0]
        if "nccl" not in backend and backend != "None":
            found = f"with two GPUs, rank {rank} is on {expected}, and the group's backend is "
            found += backend
            yield TABLE("wrong-backend", found)
        taken = [note[1] for note in notes if note[0] == "device"]
        if bound != expected and taken and taken[0] != local_rank:
            found = f"with two GPUs, rank {rank} with local rank {local_rank} selects GPU "
            found += str(taken[0])
            yield TABLE("wrong-identity", found)
        kinds = [note[0] for note in notes]
        at = kinds.index("collective") if "collective" in kinds else len(notes)
        if ["device", local_rank] not in notes[:at] and bound != expected:
            when = "its first collective" if at < len(notes) else "maybe_init_dist returned"
            found = f"with two GPUs, rank {rank} with local rank {local_rank} joined the group "
            found += f"and did not select GPU {local_rank} before {when}"
            yield TABLE("group-before-device", found)
        if timeout != 77.0:
            found = f"cfg.dist_timeout_s is 77 s, and the group's timeout is {timeout} s"
            found = found.replace("None s", "not set")
            yield TABLE("timeout-ignored", found)
    yield from only_gpu_findings([report.answer for report in reports])


def only_gpu_findings(answers: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """One visible GPU per process: its number is 0, whatever the local rank is.

    That GPU may also be one that all ranks share; its number, 0, doesn't say which. So an
    answer may refuse it, too, on every rank.
    """
    errors = [answer["only_gpu"]["error"] for answer in answers]
    if all(error and error[1] for error in errors):
        return
    for rank, answer in enumerate(answers):
        only, local_rank = answer["only_gpu"], answer["local_rank"]
        found = f"rank {rank}, with local rank {local_rank}, sees one GPU: "
        if only["error"]:
            found += f"it raises {only['error'][0]}: {only['error'][2][:100]}"
            if only["error"][1]:
                yield TABLE("raises-alone", f"{found}; another rank does not raise ValueError")
            look = "at what you do with the device of a process that sees one GPU"
            yield TABLE("wrong-identity", found, look)
        elif not {*only["devices"]} <= {"cuda", "cuda:0"} or any(only["selected"]):
            found += f"its device is {only['devices'][0]}, and it calls set_device for "
            found += f"{only['selected'] or 'none'}"
            yield TABLE("wrong-identity", found)


def judge_attempts(reports: Sequence[RankReport], _: object) -> Iterable[Finding]:
    """In the order in which things happen. From events, as the second group may never form."""
    left = [event for report in reports for event in report.of("left")]
    if len(left) < len(reports):
        return  # nothing to compare; the engine reports how it failed
    yield from wrap_findings(left)
    for rank, (first, report) in enumerate(zip(left, reports, strict=True)):
        if first["waits"]:
            found = (
                f"rank {rank} stayed in the group for {PATIENCE_S:g} s, and in that time rank "
            )
            found += "0's cleanup_dist did not return"
            yield TABLE("cleanup-waits", found)
        for event in report.of("destroyed"):
            if event["live_wrappers"]:
                alive = counted(event["live_wrappers"], "live DDP wrapper")
                found = f"rank {rank} had {alive} when it destroyed the group"
                yield TABLE("wrapper-outlives-group", found)
        if first["is_initialized"]:
            found = f"rank {rank} is still in its group after cleanup_dist"
            yield TABLE("group-left-behind", found)
    for rank, (first, report) in enumerate(zip(left, reports, strict=True)):
        again = f"rank {rank}, in a second attempt in the same process, "
        if not report.has_answer:
            why, look = "did not finish", ""
            if report.failure:
                why = f"raised {report.failure.kind}: {report.failure.message[:120]}"
                if report.failure.where:
                    look = f"at {report.failure.where}, and at the store you pass to "
                    look += "init_process_group"
            yield TABLE("joins-the-last-attempt", again + why, look)
            continue
        if report.answer["finds"]:
            found = "sees the first group's keys in the store"
            yield TABLE("joins-the-last-attempt", again + found)
        difference, name = largest_difference(first["straight"], report.answer["resumed"])
        if first["straight"] != report.answer["resumed"]:
            found = f"on {len(left)} ranks, the weights after {STEPS} steps without a restart "
            found += f"and with one after step {SAVED_AFTER} differ by up to {difference:.2g}, "
            found += f"in {name}"
            yield TABLE("resumed-run-differs", found)


def wrap_findings(answers: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """What wrap_model does to a model, and to its gradients."""
    for rank, answer in enumerate(answers):
        difference, name = largest_difference(answer["start"], answer["wrapped"])
        if difference:
            found = (
                f"after wrap_model, the weights of rank {rank} differ from rank 0's initial "
            )
            found += f"weights by up to {difference:.2g}, in {name}"
            yield TABLE("ranks-differ", found)
    for rank, answer in enumerate(answers):
        expected = [rank, rank % 2, len(answers), "cpu"]
        if answer["identity"] != expected:
            yield identity_finding(answer["identity"], expected)
        if not answer["is_random_state_kept"]:
            found = f"rank {rank} has a different random state after wrap_model"
            yield TABLE("random-state-moved", found)
        zeros = {name: "00" * (len(text) // 2) for name, text in answer["left_over"].items()}
        difference, name = largest_difference(answer["left_over"], zeros)
        if difference:
            found = f"on rank {rank}, {name} has a gradient of up to {difference:.2g} before "
            found += "the first step"
            yield TABLE("gradient-left-over", found)
        if not answer["is_unwrapped"]:
            found = f"on rank {rank}, unwrap of the wrapped or of the bare model returns a "
            found += "different object"
            yield TABLE("not-unwrapped", found)
        difference, name = largest_difference(answer["mean"], answer["gradient"])
        if not difference < 1e-4:
            found = f"on rank {rank}, the gradient of {name} differs by up to {difference:.2g} "
            yield TABLE("not-the-mean", f"{found}from the mean over {len(answers)} ranks")


SCENARIOS = [
    Scenario(name="starts", body=starts, judge=only_first(judge_starts), deadline_s=15),
    Scenario(
        name="attempts",
        body=attempts,
        judge=only_first(judge_attempts),
        world_size=3,
        deadline_s=6,
        judges_failures=True,
    ),
]
