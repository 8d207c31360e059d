"""One job: train on every rank, and write down what each of them saw and left behind."""

from __future__ import annotations

import contextlib
import os
import random
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.samples import ids_of, marked_samples, weights_of
from rehearsal.kit.observe.waiting import wait_until

from .places import Places
from .plan import EARLIER, Plan


class TwoLayers(nn.Module):
    """Two layers with a tanh between; every parameter takes part in the loss."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.inner = nn.Linear(5, 4)
        self.outer = nn.Linear(4, 2)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.outer(torch.tanh(self.inner(inputs)))
        return outputs  # (B, 2)


def set_environment(plan: Plan, rank: int) -> None:
    """torchrun's variables for two nodes, or none at all."""
    if plan.world_size == 1:
        for name in [n for n in os.environ if re.search("RANK|WORLD|MASTER|ELASTIC", n)]:
            del os.environ[name]
        return
    local_rank = plan.local_rank(rank)
    node = [r for r in range(plan.world_size) if r - plan.local_rank(r) == rank - local_rank]
    os.environ.update(
        LOCAL_RANK=str(local_rank),
        LOCAL_WORLD_SIZE=str(len(node)),
        GROUP_RANK=str((rank - local_rank) // 2),
        # So that dist.is_torchelastic_launched() says yes.
        TORCHELASTIC_RUN_ID="lift",
        # A rank with little to do could end while others still connect to it.
        TORCH_DIST_INIT_BARRIER="1",
    )


class Watch:
    """Called before each pass: records the batch and where it is, or raises when it must."""

    def __init__(self, plan: Plan, context: RankContext, places: Places) -> None:
        self.plan, self.context, self.places = plan, context, places

    def __call__(
        self, model: nn.Module, inputs: tuple[Tensor, ...], named: Mapping[str, Tensor]
    ) -> None:
        batch = next(iter((*inputs, *named.values())))  # it may be passed by name
        if not torch.is_grad_enabled():
            return
        is_due = self.context.count("forward") == self.plan.passes
        if self.plan.fails_on == self.context.rank and is_due:
            raise ValueError(self.plan.error)
        self.context.record(
            "forward",
            samples=ids_of(batch),
            model_on=self.places.of_model(model),
            batch_on=self.places.of(batch),
        )

    def __deepcopy__(self, _: object) -> Watch:
        return self

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Unwatched, ()  # whoever pickles the model


class Unwatched:
    """Stands in a pickled model for what watched it."""

    def __call__(self, *_: object) -> None: ...


def record_wrapping(context: RankContext, places: Places) -> None:
    """From here on, record where a model is when DDP gets it."""
    construct = DistributedDataParallel.__init__

    def recorded(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        wrapped = args[0] if args else kwargs["module"]
        context.record("wrapped", model_on=places.of_model(wrapped))
        construct(self, *args, **kwargs)

    DistributedDataParallel.__init__ = recorded  # type: ignore[method-assign]


def reduce_to_dst_only() -> None:
    """From here on, only dst has the result of dist.reduce, whatever gloo leaves elsewhere."""
    reduce = dist.reduce

    def without_rest(tensor: Tensor, dst: int | None = None, *args: Any, **kwargs: Any) -> Any:
        work = reduce(tensor, dst, *args, **kwargs)
        if dst not in (None, dist.get_rank()) and work is None:
            tensor.fill_(7)  # not zero, which a second reduce would not notice
        return work

    dist.reduce = without_rest


def all_know_themselves(plan: Plan, context: RankContext, returned: list[Any] | None) -> bool:
    """Whether identity was right on every rank; otherwise, training would hang or crash."""
    mine = [context.rank, plan.local_rank(context.rank), plan.world_size]
    is_right = returned == mine and all(type(value) is int for value in returned)
    notes = [context.folder / f"{plan.name} {rank}" for rank in range(plan.world_size)]
    written = notes[context.rank].with_suffix(".tmp")
    written.write_text("right" if is_right else "wrong")
    written.rename(notes[context.rank])  # nobody reads half of it
    wait_until(lambda: all(note.exists() for note in notes), 12)
    return all(note.read_text() == "right" for note in notes)


def checkpoint_in(path: Path) -> dict[str, Any]:
    """The weights in a checkpoint, or why a plain model can't load it."""
    if not path.exists():
        return {"problem": "there is no model.pt"}
    try:
        state = torch.load(path)
        plain = TwoLayers(0)
        if not isinstance(state, dict) or set(state) != set(plain.state_dict()):
            names = sorted(map(str, state)) if isinstance(state, dict) else []
            return {"problem": "", "names": names or [type(state).__name__]}
        plain.load_state_dict(state)
    except Exception as error:
        what = str(error).split(".")[0]
        return {"problem": f"loading model.pt raises {type(error).__name__}: {what}"}
    return {"weights": weights_of(plain)}


def run(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Train; return what this rank was, the weights, the log, the checkpoint, the error."""
    set_environment(plan, context.rank)
    # Code that draws from the global generators gets other numbers on every rank, every time.
    for seed in (random.seed, numpy.random.seed, torch.default_generator.manual_seed):
        seed(hash((os.getpid(), context.rank)) % 2**31)
    folder = context.folder / plan.folder
    folder.mkdir(exist_ok=True)
    inputs, targets = marked_samples(plan.num_samples, seed=plan.data_seed)
    model = TwoLayers(plan.data_seed + context.rank)
    answer: dict[str, Any] = {"initial": weights_of(model), "raised": None}
    if context.rank == 0:
        answer["samples"] = [inputs.tolist(), targets.tolist()]
    log = folder / f"rank-{context.rank}.log"
    if plan.error:
        log.write_text(EARLIER)
    try:
        answer["identity"] = list(learner.identity())
    except TypeError:
        answer["identity"] = None
    if not all_know_themselves(plan, context, answer["identity"]):
        return answer

    def mixes(apart: list[str], operation: str) -> None:
        if not context.count("mixed"):
            context.record("mixed", places=apart, operation=operation)

    places = Places([inputs, targets, *model.parameters()], mixes)
    model.register_forward_pre_hook(Watch(plan, context, places), with_kwargs=True)
    record_wrapping(context, places)
    reduce_to_dst_only()
    settings = {
        "folder": folder,
        "devices": [torch.device("cpu", index) for index in plan.devices],
        "epochs": plan.epochs,
        "batch_size": plan.batch_size,
        "lr": plan.lr,
        "seed": plan.seed,
    }
    try:
        with places:
            learner.train(model, inputs, targets, **settings)
    except (Exception, SystemExit) as error:
        if not plan.error:
            raise
        answer["raised"] = f"{type(error).__name__}: {error}"
        answer["message"] = (str(error).splitlines() or [""])[0][:60]
    answer["log"] = log.read_text() if log.exists() else ""
    answer["is_initialized"] = dist.is_initialized()
    answer["weights"] = weights_of(model)
    if context.rank == 0:
        answer["checkpoint"] = checkpoint_in(folder / "model.pt")
    if plan.world_size == 1:
        answer["early"] = fails_early(plan, learner, inputs, targets, settings)
    return answer


class Immovable(TwoLayers):
    """A model that can't be moved: its device is lost."""

    def __init__(self, seed: int, error: str) -> None:
        super().__init__(seed)
        self._error = error

    def _apply(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(self._error)


def fails_early(
    plan: Plan,
    learner: SimpleNamespace,
    inputs: Tensor,
    targets: Tensor,
    settings: dict[str, Any],
) -> dict[str, Any]:
    """What train makes of an error before the first step."""
    error, raised = f"device {plan.data_seed} is lost", None
    with contextlib.redirect_stdout(None):  # what it prints is not this run's progress
        try:
            learner.train(Immovable(0, error), inputs, targets, **settings)
        except Exception as caught:
            raised = f"{type(caught).__name__}: {caught}"
    log = settings["folder"] / "rank-0.log"
    return {"error": error, "raised": raised, "log": log.read_text() if log.exists() else ""}
