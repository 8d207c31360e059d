"""Identity from the environment, two attempts in one process, a resume bit for bit.

Two nodes are played with LOCAL_RANK, GPUs with a torch.cuda that only takes notes.
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
from rehearsal.grading.verdict import Finding, FindingTable

WHO = "the launcher's environment says who a rank is; alone, a process is rank 0 of 1"
# code: meaning; rule; where to look
TABLE = FindingTable(
    {
        "wrong-identity": (
            "rank, local rank, world size or device are not those of the environment",
            WHO,
            "at which variable each number is read from",
        ),
        "group-of-one": (
            "a single process joins a group",
            "a group is for peers; a notebook has no launcher",
            "at what happens where the launcher's variables are missing",
        ),
        "wrong-backend": (
            "the group cannot carry what the device needs",
            "tensors on a GPU travel by nccl, those on the CPU by gloo",
            "at what chooses the backend",
        ),
        "group-before-device": (
            "a collective can run before the rank has selected its GPU",
            "NCCL creates a communicator at the first collective, on the GPU that is current "
            "then: GPU 0, until the rank selects its own",
            "at when the GPU is selected, and at what can run before that",
        ),
        "timeout-ignored": (
            "the group does not have cfg.dist_timeout_s",
            "how long ranks wait for a dead one is a setting, not a default",
            "at what the group is told",
        ),
        "accepts-the-impossible": (
            "a world size or a number of GPUs that cannot be is accepted",
            "what cannot work is refused at the start, with a ValueError",
            "at what is compared before the group is joined",
        ),
        "raises-alone": (
            "one rank refuses and another goes on",
            "a rank that raises alone leaves the others waiting for it",
            "at whether all ranks look at the same numbers",
        ),
        "ranks-differ": (
            "after wrapping, the ranks hold different weights",
            STAY_EQUAL,
            "at what makes the ranks start alike",
        ),
        "not-the-mean": (
            "a gradient is not the mean over the ranks",
            "all ranks step on one gradient, the mean",
            "at what happens to gradients between backward and step",
        ),
        "random-state-moved": (
            "wrapping draws from, or sets, the random state",
            "a start must draw nothing that another start did not: dropout would differ",
            "at what is fed to the model while it is wrapped",
        ),
        "gradient-left-over": (
            "after wrapping, gradients are not zero",
            "the first step trains on its own samples only",
            "at the end of wrap_model",
        ),
        "not-unwrapped": (
            "unwrap does not return the model that was wrapped",
            "checkpoints hold the model's own names, on one rank or on many",
            "at what unwrap does to a wrapped and to a bare model",
        ),
        "cleanup-waits": (
            "cleanup_dist waits for other ranks",
            "a rank also leaves when another one is dead, and must not wait for it",
            "at the collectives of the way out",
        ),
        "wrapper-outlives-group": (
            "the wrapper is alive when the group ends",
            "a wrapper that outlives its group keeps threads, which abort a finished process",
            "at what still refers to a wrapper that nobody uses",
        ),
        "group-left-behind": (
            "the group exists after cleanup_dist",
            "who joins, leaves: the next attempt joins anew",
            "at cleanup_dist",
        ),
        "joins-the-last-attempt": (
            "a second group meets in the store what the first left there",
            "the agent's store outlives an attempt: each attempt needs keys that are its own",
            "at the store that the group is given",
        ),
        "resumed-run-differs": (
            "a resumed run is not bit for bit the uninterrupted one",
            "three floats summed in a different order give a different result: fix the "
            "order, the same after every start",
            "at how the first backward pass after wrapping lays out gradients, and later ones",
        ),
    }
)
CODES = TABLE.codes
FEATURES, STEPS, SAVED_AFTER = 5, 4, 2
SHARES = ([3, 1, 2], [2, 0, 1], [4, 4, 1], [1, 2, 0])  # samples by step and rank
PATIENCE_S = 3.0


# ---------------------------------------------------------------- in the ranks


class Crossed(nn.Module):
    """Layers used in another order than they are registered in: backward ends elsewhere."""

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
    """Bit for bit; none are zeros."""
    return {
        name: (torch.zeros_like(p) if p.grad is None else p.grad).numpy().tobytes().hex()
        for name, p in model.named_parameters()
    }


def identity_of(info: Any) -> list[Any]:
    """What a rank has learnt about itself."""
    return [info.rank, info.local_rank, info.world_size, str(info.device)]


def close_answers(context: RankContext) -> None:
    """trainer_core's own functions do not help."""
    names = ["maybe_init_dist", "cleanup_dist", "wrap_model", "unwrap"]
    close_the_answer(context, "trainer_core.distributed", names)


def attempts(context: RankContext, learner: SimpleNamespace) -> Any:
    """Train four steps; then, in a second group, the last two from what was saved."""
    close_answers(context)
    os.environ.update(LOCAL_RANK=str(context.rank % 2), LOCAL_WORLD_SIZE="2")
    cfg = TrainConfig(device="cpu", dist_timeout_s=30.0)
    gc.freeze()  # a collection looks at what comes now, not at all of torch
    gc.disable()  # only what the learner collects is collected
    first = first_attempt(context, learner, cfg)
    saved = first.pop("saved")
    # Written down now: the second group may never come about.
    context.record("left", is_initialized=dist.is_initialized(), **first)
    info = learner.maybe_init_dist(cfg)
    dist.barrier()  # all are connected: a quick rank's leave would cut off a slow one's join
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
    """Leave it to a reference cycle, as a trainer with hooks, or an exception's frames, do."""
    trainer: dict[str, Any] = {"model": wrapped}
    trainer["hook"] = lambda: trainer


def first_attempt(context: RankContext, learner: SimpleNamespace, cfg: TrainConfig) -> Any:
    """What is seen around wrapping, and the weights at the save and at the end."""
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
    # Rank 0 leaves first; the others wait for its note, as long as it may take a slow machine.
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
    """One process: started by a launcher, and by nobody."""
    answer: dict[str, Any] = {"alone": []}
    kept, cfg = dict(os.environ), TrainConfig(device="cpu")
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    for how in ("started with WORLD_SIZE=1", "started by no launcher"):
        infos: list[Any] = []
        error = refusal(lambda: learner.maybe_init_dist(cfg), into=infos)
        answer["alone"].append([how, error, dist.is_initialized(), *map(identity_of, infos)])
        if error or dist.is_initialized():
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


def starts(context: RankContext, learner: SimpleNamespace) -> Any:
    """Starts that must be refused, and one with two GPUs that only take notes."""
    close_answers(context)
    gc.freeze()
    answer = alone(learner)
    if "is_unwrapped" not in answer or answer["alone"][-1][1]:
        return answer
    notes: list[list[Any]] = []
    turns: list[Path] = []

    def start(settings: dict[str, Any], gpus: int, **env: int) -> Any:
        turns.append(context.folder / f"start-{len(turns)}")
        notes.clear()
        os.environ.update({name: str(value) for name, value in env.items()})
        torch.cuda.device_count = lambda: gpus
        torch.cuda.is_available = lambda: gpus > 0
        cfg = TrainConfig(**{"dist_timeout_s": 2.0, **settings})
        return refusal(lambda: learner.maybe_init_dist(cfg), into=infos)

    def joins(backend: Any = None, *_: Any, **kwargs: Any) -> None:
        timeout = kwargs.get("timeout")
        told = [str(backend), str(kwargs.get("device_id"))]
        notes.append(["join", *told, timeout and timeout.total_seconds()])
        # As a real group does: nobody is through before all have come.
        arrivals = [turns[-1].with_suffix(f".{rank}") for rank in range(context.world_size)]
        arrivals[context.rank].touch()
        wait_until(lambda: all(arrival.exists() for arrival in arrivals), PATIENCE_S)

    def meets(*_: Any, **__: Any) -> None:
        notes.append(["collective"])

    def sets(device: Any) -> None:
        notes.append(["device", device if isinstance(device, int) else device.index])

    infos: list[Any] = []
    torch.cuda.set_device = sets
    dist.init_process_group = joins
    dist.barrier = dist.all_reduce = meets
    other = 1 - context.rank  # so that rank and local rank are told apart
    cuda = start({"device": "auto", "dist_timeout_s": 77.0}, 2, LOCAL_RANK=other)
    devices = [str(info.device) for info in infos]
    seen = list(notes)
    refused = {
        "device=cuda, without a GPU": start({"device": "cuda"}, 0),
        "world_size=5, 2 started": start({"device": "cpu", "world_size": 5}, 0),
        "4 ranks on a node of 2 GPUs": start(
            {"device": "auto"}, 2, LOCAL_RANK=context.rank * 3, LOCAL_WORLD_SIZE=4
        ),
    }
    infos.clear()
    own = {"LOCAL_RANK": other, "LOCAL_WORLD_SIZE": 2, "CUDA_VISIBLE_DEVICES": other}
    only = start({"device": "auto"}, 1, **own)
    return {
        **answer,
        "cuda": cuda,
        "notes": seen,
        "devices": devices,
        "local_rank": other,
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
            what = f"{error[0]}: {error[2][:120]}" if error else "there is a process group"
            yield TABLE("group-of-one", f"one process, {how}: {what}")
        for who in identities:
            if who != [0, 0, 1, "cpu"]:
                yield identity_finding(who, [0, 0, 1, "cpu"])
    if not answer["is_unwrapped"]:
        yield TABLE("not-unwrapped", "one process: unwrap returns another object")


def identity_finding(found: list[Any], expected: list[Any]) -> Finding:
    """Four values against four."""
    names = ("rank", "local_rank", "world_size", "device")
    said = [
        ", ".join(f"{n} {v}" for n, v in zip(names, who, strict=True))
        for who in (found, expected)
    ]
    return TABLE("wrong-identity", f"found {said[0]}; the environment says {said[1]}")


def judge_starts(reports: Sequence[RankReport], _: object) -> Iterable[Finding]:
    """Devices, and what is refused by all."""
    for report in reports:
        yield from judge_alone(report.answer)
    for what in reports[0].answer["refused"]:
        errors = [report.answer["refused"][what] for report in reports]
        refuses = [bool(error and error[1]) for error in errors]
        if not any(refuses):
            how = f"raises {errors[0][0]}: {errors[0][2][:100]}" if errors[0] else "is accepted"
            yield TABLE("accepts-the-impossible", f"{what}: {how}")
        elif not all(refuses):
            rank = refuses.index(True)
            how = errors[1 - rank][0] if errors[1 - rank] else "nothing"
            found = f"{what}: rank {rank} raises {errors[rank][0]}, rank {1 - rank} {how}"
            yield TABLE("raises-alone", found)
    for rank, answer in enumerate(report.answer for report in reports):
        notes, local_rank = answer["notes"], answer["local_rank"]
        if answer["cuda"]:
            found = f"two GPUs, two ranks: {answer['cuda'][0]}: {answer['cuda'][2][:160]}"
            yield TABLE("wrong-backend", found)
        joins = [note for note in notes if note[0] == "join"]
        expected = f"cuda:{local_rank}"
        if answer["devices"] != [expected] or not joins:
            found = f"two GPUs, rank {rank} with local rank {local_rank}: device "
            yield TABLE("wrong-identity", f"{found}{answer['devices']}, joins {joins}")
        _, backend, bound, timeout = joins[0]
        if "nccl" not in backend and backend != "None":
            found = f"two GPUs, rank {rank} on {expected}: the group's backend is {backend}"
            yield TABLE("wrong-backend", found)
        taken = [note[1] for note in notes if note[0] == "device"]
        if bound != expected and taken and taken[0] != local_rank:
            found = f"two GPUs, rank {rank} with local rank {local_rank} takes GPU {taken[0]}"
            yield TABLE("wrong-identity", found)
        kinds = [note[0] for note in notes]
        at = kinds.index("collective") if "collective" in kinds else len(notes)
        if ["device", local_rank] not in notes[:at] and bound != expected:
            when = "before its first collective" if at < len(notes) else "before it returned"
            found = f"two GPUs, rank {rank} with local rank {local_rank}: maybe_init_dist "
            found += f"joined and did not select GPU {local_rank} {when}"
            yield TABLE("group-before-device", found)
        if timeout != 77.0:
            found = f"dist_timeout_s is 77, and the group is told {timeout}"
            yield TABLE("timeout-ignored", found)
    yield from only_gpu_findings([report.answer for report in reports])


def only_gpu_findings(answers: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """One visible GPU per process: its number is 0, whatever the local rank is.

    By their number alone, a GPU of one's own can't be told from one that is shared, so an
    answer may also refuse, on every rank.
    """
    errors = [answer["only_gpu"]["error"] for answer in answers]
    if all(error and error[1] for error in errors):
        return
    for rank, answer in enumerate(answers):
        only, local_rank = answer["only_gpu"], answer["local_rank"]
        found = f"rank {rank}, with local rank {local_rank}, sees one GPU: "
        if only["error"]:
            code = "raises-alone" if only["error"][1] else "wrong-identity"
            yield TABLE(code, f"{found}it raises {only['error'][0]}: {only['error'][2][:100]}")
        elif not {*only["devices"]} <= {"cuda", "cuda:0"} or any(only["selected"]):
            found += f"its device is {only['devices'][0]}, and it selects {only['selected']}"
            yield TABLE("wrong-identity", found)


def judge_attempts(reports: Sequence[RankReport], _: object) -> Iterable[Finding]:
    """In the order in which things happen, from events: the second group may not come about."""
    left = [event for report in reports for event in report.of("left")]
    if len(left) < len(reports):
        return  # nothing to compare: how it failed is told
    yield from wrap_findings(left)
    for rank, (first, report) in enumerate(zip(left, reports, strict=True)):
        if first["waits"]:
            found = f"rank {rank} stayed for {PATIENCE_S:g} s, and rank 0 could not leave"
            yield TABLE("cleanup-waits", found)
        for event in report.of("destroyed"):
            if event["live_wrappers"]:
                found = (
                    f"rank {rank}: {event['live_wrappers']} wrapper(s) alive when the group "
                )
                yield TABLE("wrapper-outlives-group", f"{found}was destroyed")
        if first["is_initialized"]:
            yield TABLE("group-left-behind", f"rank {rank} is in its group after cleanup_dist")
    for rank, (first, report) in enumerate(zip(left, reports, strict=True)):
        again = f"rank {rank}, joining a second time in one process: "
        if not report.has_answer:
            why = report.failure.message[:120] if report.failure else "it still waits"
            yield TABLE("joins-the-last-attempt", again + why)
            continue
        if report.answer["finds"]:
            found = "it finds the first group's keys in the store"
            yield TABLE("joins-the-last-attempt", again + found)
        difference, name = largest_difference(first["straight"], report.answer["resumed"])
        if first["straight"] != report.answer["resumed"]:
            found = (
                f"{STEPS} steps, and {SAVED_AFTER} and {STEPS - SAVED_AFTER} with a restart "
            )
            found += f"between: on {len(left)} ranks {name} differs by {difference:.2g}"
            yield TABLE("resumed-run-differs", found)


def wrap_findings(answers: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    """What wrap_model does to a model, and to its gradients."""
    for rank, answer in enumerate(answers):
        difference, name = largest_difference(answer["start"], answer["wrapped"])
        if difference:
            found = f"rank {rank} starts up to {difference:.2g} in {name} away from rank 0"
            yield TABLE("ranks-differ", found)
    for rank, answer in enumerate(answers):
        expected = [rank, rank % 2, len(answers), "cpu"]
        if answer["identity"] != expected:
            yield identity_finding(answer["identity"], expected)
        if not answer["is_random_state_kept"]:
            yield TABLE("random-state-moved", f"rank {rank}: another state after wrap_model")
        zeros = {name: "00" * (len(text) // 2) for name, text in answer["left_over"].items()}
        difference, name = largest_difference(answer["left_over"], zeros)
        if difference:
            found = f"rank {rank}: {name} has gradients up to {difference:.2g} before any step"
            yield TABLE("gradient-left-over", found)
        if not answer["is_unwrapped"]:
            found = f"rank {rank}: unwrap of the wrapped or of the bare model is another object"
            yield TABLE("not-unwrapped", found)
        difference, name = largest_difference(answer["mean"], answer["gradient"])
        if not difference < 1e-4:
            found = f"rank {rank}: {name} has a gradient up to {difference:.2g} from the mean"
            yield TABLE("not-the-mean", f"{found} over {len(answers)} ranks")


SCENARIOS = [
    Scenario(name="starts", body=starts, judge=only_first(judge_starts), deadline_s=6),
    Scenario(
        name="attempts",
        body=attempts,
        judge=only_first(judge_attempts),
        world_size=3,
        deadline_s=6,
        judges_failures=True,
    ),
]
