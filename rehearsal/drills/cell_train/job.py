"""A job of the check: a network, an optimizer, and the steps of a plan. In the ranks."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.anti_cheat import close_the_answer
from rehearsal.kit.observe.samples import ID_SCALE, watch_samples
from trainer_core.config import TrainConfig
from trainer_core.data import MicroBatch
from trainer_core.metrics import StepTimers
from .plan import Job, Call
from .watch import collectives, host_waits

EARLIER = "an entry of an earlier step"
LOUD = 2.5e38  # a loss of which float32 holds one, and not the sum of two


class Net(nn.Module):
    """Two layers, and what makes a gradient infinite or a loss large when a sample says so.

    The last two features don't go through the layers. The first of them makes the gradient of
    ``shift`` infinite where it is -shift: sqrt(0) has an infinite slope. The second is added to
    a logit. On one rank, the network is so sure of an input of zeros, which no sample has, that
    its loss is exactly 0.
    """

    def __init__(self, plan: Job, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.inner = nn.Linear(plan.features, plan.hidden)
        self.outer = nn.Linear(plan.hidden, plan.classes)
        for parameter in (*self.inner.parameters(), *self.outer.parameters()):
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
        self.shift = nn.Parameter(torch.tensor([4.0]))
        self.features = plan.features
        self.sure = 200.0 if plan.world_size == 1 else 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.outer(torch.tanh(self.inner(inputs[:, : self.features])))
        extra = torch.zeros_like(inputs[:, :1]).expand(-1, logits.shape[1] - 2)
        root = torch.sqrt(self.shift + inputs[:, -2:-1])
        margin = inputs[:, -1:] + self.sure * (inputs == 0).all(1, keepdim=True)
        return logits + torch.cat([margin + 0.3 * root, -0.3 * root, extra], 1).to(logits.dtype)


class SgdByHand(torch.optim.Optimizer):
    """SGD, which reads found_inf and grad_scale as torch's fused optimizers do."""

    _step_supports_amp_scaling = True

    def __init__(self, groups: Any, lr: float) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0, "fused": True})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scale, is_bad = (getattr(self, name, None) for name in ("grad_scale", "found_inf"))
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad if scale is None else p.grad / scale
                new = p - group["lr"] * (grad + group["weight_decay"] * p)
                p.copy_(new if is_bad is None else torch.where(is_bad > 0, p, new))
        return loss


class Scaler(torch.amp.GradScaler):
    """A GradScaler that knows whether anybody uses it."""

    is_used = False

    def scale(self, outputs: Any) -> Any:
        self.is_used = True
        return super().scale(outputs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        self.is_used = True
        super().unscale_(optimizer)


class Setup(NamedTuple):
    """What the steps of a job share."""

    learner: SimpleNamespace
    net: Net
    twin: Net  # with the same weights, for the true gradients
    model: Any  # the net, wrapped if there are peers
    optimizer: Any
    scaler: Scaler


def groups_of(plan: Job, model: nn.Module) -> list[list[str]]:
    """The names of the parameters in each of the optimizer's groups."""
    groups: list[list[str]] = [[] for _ in plan.decays]
    for name, parameter in model.named_parameters():
        groups[0 if parameter.ndim > 1 else (1 if "." in name else -1)].append(name)
    return groups


def body(plan: Job, context: RankContext, learner: SimpleNamespace) -> Any:
    """The steps of the plan, each on the weights that the former one left."""
    close_the_answer(context, "trainer_core.train", ["train_step", "update_weights"])
    net, twin = Net(plan, seed=plan.seed + context.rank), Net(plan, seed=0)
    model: Any = net
    if plan.world_size > 1:
        context.init_group()
        model = DistributedDataParallel(net)
    watch_samples(context, net)
    dtypes: set[str] = set()
    modes: set[bool] = set()
    net.outer.register_forward_hook(lambda *a: dtypes.add(str(a[2].dtype)))
    net.register_forward_pre_hook(lambda *_: modes.add(net.training))
    groups = groups_of(plan, net)
    of = dict(net.named_parameters())
    rows = zip(groups, plan.decays, strict=True)
    settings = [{"params": [of[n] for n in names], "weight_decay": d} for names, d in rows]
    optimizer: Any
    if plan.by_hand:
        optimizer = SgdByHand(settings, plan.first_lr)
    else:
        optimizer = torch.optim.SGD(settings, lr=plan.first_lr, fused=True)
    scaler = Scaler("cpu", init_scale=2.0**9, growth_interval=1)
    setup = Setup(learner, net, twin, model, optimizer, scaler)
    steps: list[dict[str, Any]] = []
    first = 0
    newest: int = -1
    if plan.world_size > 1:
        newest = max((one.id for one in collectives(-1)), default=-1)
    for number, step in enumerate(plan.steps):
        if step.scaled and number and plan.steps[number - 1].scaled and not scaler.is_used:
            break  # it is ignored, as the brief allows
        answer = taken_step(plan, step, first, context.rank, setup)
        answer |= {"dtypes": sorted(dtypes), "modes": sorted(modes), "mode": net.training}
        dtypes.clear()
        modes.clear()
        first += step.num_samples
        sent = collectives(newest) if plan.world_size > 1 else []
        newest = max((one.id for one in sent), default=newest)
        context.record("step", issued=[[name, size] for _, name, size in sent])
        steps.append(answer)
        if "refused" in answer:
            break
    tensors = [
        [name, p.numel(), next(at for at, names in enumerate(groups) if name in names)]
        for name, p in of.items()
    ]
    return {"steps": steps, "tensors": tensors}


def taken_step(plan: Job, step: Call, first: int, rank: int, setup: Setup) -> dict[str, Any]:
    """One call of train_step: what it found, what it left."""
    learner, net, twin, model, optimizer, scaler = setup
    inputs, targets = samples_of(plan, step, first, net.shift.item())
    before = flat_weights(net)
    cuts = cuts_of(step)
    twin.load_state_dict(net.state_dict())
    truth = [sums(twin, inputs[c], targets[c], step) for c in cuts[rank]]
    bound = None
    if step.bound is not None:
        plain = step._replace(kind="uneven", amp="no") if step.is_skipped else step
        true_norm = math.hypot(*sums(twin, *samples_of(plan, plain, first, 0.0), plain)[1:])
        true_norm /= step.num_samples
        # Of weights that a wrong step has made infinite, there is no norm.
        bound = float(f"{step.bound * true_norm:.4g}") if 1e-9 < true_norm < 1e9 else 1.0
    for p in net.parameters():
        p.grad = None if step.leftover is None else torch.full_like(p, step.leftover)
    ids = torch.arange(first, first + step.num_samples)
    batches = [MicroBatch(ids[c], inputs[c].clone(), targets[c]) for c in cuts[rank]]
    cfg = TrainConfig(
        world_size=plan.world_size, amp=step.amp, max_grad_norm=bound, device="cpu"
    )
    device = torch.device("cpu")
    given = scaler if step.scaled else None
    trainer = learner.Trainer(cfg, device, model, optimizer, given, StepTimers(device))
    trainer.unread.append(EARLIER)
    counted: list[None] = []
    counter = optimizer.register_step_post_hook(lambda *_: counted.append(None))
    scale = scaler.get_scale() if given else 0.0
    refused = None
    waits: contextlib.AbstractContextManager[list[str]] = contextlib.nullcontext([])
    if step.is_watched:
        waits = host_waits(device)
    with waits as places:
        try:
            returned = learner.train_step(trainer, batches, step.num_samples, step.lr)
        except Exception as error:
            if given is None:
                raise
            refused = f"{type(error).__name__}: {error}"
    counter.remove()
    if refused:
        return {"refused": refused, "scaler_used": scaler.is_used}
    entry = trainer.unread[-1] if len(trainer.unread) > 1 else ()
    return {
        "before": before,
        "after": flat_weights(net),
        "truth": truth,
        "bound": bound,
        "waits": list(places),
        "optimizer_steps": len(counted),
        "lrs": [float(group["lr"]) for group in optimizer.param_groups],
        "unread": [float(x) for x in entry],
        "keeps_graph": any(isinstance(x, Tensor) and x.requires_grad for x in entry),
        "entries": len(trainer.unread) - 1,
        "earlier_kept": bool(trainer.unread) and trainer.unread[0] is EARLIER,
        "returned": None if returned is None else float(returned),
        "returned_type": type(returned).__name__,
        "is_tensor": isinstance(returned, Tensor),
        "scaler_used": scaler.is_used,
        "scales": [scale, scaler.get_scale()] if given else [],
    }


def cuts_of(step: Call) -> list[list[slice]]:
    """Where in the step's samples each rank's micro-batches lie."""
    ends = [0, *itertools.accumulate(size for own in step.sizes for size in own)]
    slices = [slice(a, b) for a, b in itertools.pairwise(ends)]
    own = len(step.sizes[0])
    return [slices[at : at + own] for at in range(0, len(slices), own)]


def samples_of(plan: Job, step: Call, first: int, shift: float) -> tuple[Tensor, Tensor]:
    """Inputs and classes of the step's samples; the first is number ``first`` of the job.

    Args:
        shift: the network's, for a sample that makes its gradient infinite.
    """
    count = step.num_samples
    generator = torch.Generator().manual_seed(plan.seed * 1000 + first)
    inputs = torch.randn(count, plan.features + 2, generator=generator)
    inputs[:, 0] = torch.arange(first, first + count) / ID_SCALE
    inputs[:, -2] = inputs[:, -2].abs()
    inputs[:, -1] = 0.0
    targets = torch.randint(plan.classes, (count,), generator=generator)
    rank, micro = step.special
    where = cuts_of(step)[rank][micro]
    if step.kind == "nan":
        inputs[where.start, 1 + plan.seed % (plan.features - 1)] = (math.inf, math.nan)[
            plan.seed % 2
        ]
    elif step.kind == "infinite":
        inputs[where.start, -2] = -shift
    elif step.kind == "overflow":
        inputs[where, -1], targets[where] = LOUD, 1
    elif step.kind == "bf16":
        inputs[where.start, -1], targets[where.start] = plan.margin, 1
    return inputs, targets


def flat_weights(net: nn.Module) -> list[float]:
    """All weights in one row, in the order of the parameters."""
    return [x for p in net.parameters() for x in p.detach().flatten().tolist()]


def sums(net: nn.Module, inputs: Tensor, targets: Tensor, step: Call) -> list[float]:
    """The summed loss and, if the step is trained, its gradient over the weights."""
    with torch.autocast("cpu", torch.bfloat16, enabled=step.amp == "bf16"):
        logits = net(inputs)
    loss = F.cross_entropy(logits.float(), targets, reduction="sum")
    found = () if step.is_skipped else torch.autograd.grad(loss, list(net.parameters()))
    return [loss.item(), *(x for g in found for x in g.flatten().tolist())]
