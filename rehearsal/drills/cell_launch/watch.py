"""Which samples does the learner's run train, with which loss, and are the updates right?

Runs in the ranks. Nothing here depends on how a run is written: samples are recognized by
content, losses are computed again from the model's outputs, and updates are redone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as hooks
from torch.optim.optimizer import register_optimizer_step_post_hook

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.waiting import all_arrive
from trainer_core.config import TrainConfig
from trainer_core.data import SampleKey, TrainingView, build_dataset
from trainer_core.model import TinyNet, build_model, learning_rate_at


class Pass(NamedTuple):
    """A forward pass that is trained, as far as it can be redone."""

    step: int  # optimizer steps before it
    ids: list[int]
    random_state: Tensor
    epoch: int  # whose noise is on the inputs; -1 for none
    loss: float = 0.0  # the sum over its samples


class Watch:
    """Follows whatever model the learner trains in this process, run after run."""

    def __init__(self, context: RankContext, cfg: TrainConfig) -> None:
        self.context, self.source = context, build_dataset(cfg)
        self.num_samples = cfg.dataset_size or len(self.source)
        clean, self.targets = self.source.batch(range(self.num_samples))
        self.inputs = {-1: clean}  # by epoch: cell 2's noise depends on it
        view = TrainingView(self.source, seed=cfg.seed, input_noise=cfg.input_noise)
        for epoch in range(cfg.max_epochs if cfg.input_noise else 0):
            keys = [SampleKey(epoch, sample) for sample in range(self.num_samples)]
            self.inputs[epoch] = view.__getitems__(keys).inputs
        self.ids = {
            row.numpy().tobytes(): (epoch, at)
            for epoch, rows in self.inputs.items()
            for at, row in enumerate(rows)
        }
        self.is_on, self.depth, self.seen = True, 0, False
        self.random_state = torch.empty(0)
        self.new: list[int] = []  # samples of the pass that has begun
        self.begin()
        hooks.register_module_forward_pre_hook(self.enters)
        hooks.register_module_forward_hook(self.leaves, always_call=True)
        register_optimizer_step_post_hook(self.stepped)

    def begin(self) -> None:
        """Forget the run before."""
        self.model: nn.Module | None = None
        self.initial: dict[str, Tensor] = {}
        self.passes: list[Pass] = []
        self.taken, self.is_training = 0, True

    def stepped(self, *_: object) -> None:
        """An optimizer has stepped."""
        self.taken += 1

    def enters(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """The outermost module is DDP, or the model; inputs by name are seen further inside."""
        self.depth += 1
        if not self.is_on or not torch.is_grad_enabled():
            return
        if self.depth == 1:
            own = (part for part in module.modules() if isinstance(part, TinyNet))
            self.model, self.seen = next(own, module), False
            self.random_state = torch.get_rng_state()
        if self.seen or self.model is None or not inputs or not isinstance(inputs[0], Tensor):
            return
        self.seen = True
        rows = inputs[0].detach().contiguous().numpy()
        known = [self.ids[row.tobytes()] for row in rows if row.tobytes() in self.ids]
        if not known:  # the placeholder of a rank without samples
            return
        ids = [at for _, at in known]
        if not self.initial:
            self.initial = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.is_training = self.is_training and self.model.training
        self.passes.append(Pass(self.taken, ids, self.random_state, known[0][0]))
        self.new = ids

    def leaves(self, module: nn.Module, inputs: object, outputs: object) -> None:
        """Also called if the forward pass raised."""
        self.depth -= 1
        if self.depth:
            return
        ids, self.new = self.new, []
        if ids and isinstance(outputs, Tensor) and len(outputs) == len(ids):
            loss = F.cross_entropy(outputs.detach(), self.targets[ids], reduction="sum")
            self.passes[-1] = self.passes[-1]._replace(loss=loss.item())
            self.context.record("forward", samples=ids)

    def steps(self) -> list[list[int]]:
        """The samples of each completed step on this rank, sorted."""
        steps: list[list[int]] = [[] for _ in range(self.taken)]
        for one in self.passes:
            if one.step < self.taken:
                steps[one.step] += one.ids
        return [sorted(ids) for ids in steps]

    def wrong_noise(self, steps_per_epoch: int) -> tuple[int, int] | None:
        """The first step whose inputs have another epoch's noise, and that epoch; -1: none."""
        for one in self.passes:
            if one.epoch != one.step // steps_per_epoch:
                return one.step, one.epoch
        return None

    def last_step(self) -> tuple[float, int]:
        """The loss of this rank's samples in its last completed step, summed; their number."""
        last = [one for one in self.passes if one.step == self.taken - 1]
        return sum(one.loss for one in last), sum(len(one.ids) for one in last)


def gathered_passes(context: RankContext, watch: Watch) -> list[Pass]:
    """The passes of all ranks; through files, since the group is gone."""
    own = context.folder / f"passes-{context.rank}.pt"
    torch.save([tuple(one) for one in watch.passes], own.with_suffix(".part"))
    own.with_suffix(".part").rename(own)
    all_arrive(context, "passes", context.deadline_s)
    passes: list[Pass] = []
    for rank in range(context.world_size):
        saved = torch.load(context.folder / f"passes-{rank}.pt", weights_only=True)
        passes += [Pass(*one) for one in saved]
    return passes


def redone(
    cfg: TrainConfig, watch: Watch, passes: Sequence[Pass], total: int
) -> tuple[float, str]:
    """The largest difference between the run's weights and those of the same passes redone.

    From the run's initial weights, with its random states: so only the updates are compared.

    Args:
        cfg: as ``run`` got it.
        total: the steps of the run; the horizon of the rates if the config names none.
    """
    cfg = replace(cfg, decay_steps=cfg.decay_steps or total)
    model = build_model(cfg, watch.inputs[-1].shape[1], watch.source.num_classes).train()
    model.load_state_dict(watch.initial)
    parameters = list(model.parameters())
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]
    for step in range(total):
        mine = [one for one in passes if one.step == step]
        if not mine:
            return 0.0, ""  # samples are missing, and that is found
        size = sum(len(one.ids) for one in mine)
        model.zero_grad()
        for one in mine:
            torch.set_rng_state(one.random_state)
            logits = model(watch.inputs[one.epoch][one.ids])
            loss = F.cross_entropy(logits, watch.targets[one.ids], reduction="sum")
            (loss / size).backward()
        if cfg.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(parameters, cfg.max_grad_norm)
        rate = learning_rate_at(cfg, step + 1)
        for p, (first, second) in zip(parameters, moments, strict=True):
            adamw(
                p.data, p.grad, first, second, step + 1, rate, cfg.weight_decay * (p.ndim > 1)
            )
    assert watch.model is not None
    return largest(watch.model.state_dict(), model.state_dict())


def adamw(
    weight: Tensor,
    gradient: Tensor | None,
    first: Tensor,
    second: Tensor,
    step: int,
    rate: float,
    decay: float,
) -> None:
    """One update in place. By hand, since steps of torch's optimizers count as the learner's.

    Args:
        first, second: the moments, of the gradient and of its square.
    """
    assert gradient is not None
    weight.mul_(1 - rate * decay)
    first.lerp_(gradient, 0.1)
    second.lerp_(gradient.square(), 0.001)
    root = (second / (1 - 0.999**step)).sqrt_().add_(1e-8)
    weight.sub_(rate * first / (1 - 0.9**step) / root)


def largest(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> tuple[float, str]:
    """The largest difference, and the tensor that has it."""
    worst = (0.0, "")
    for name, tensor in ours.items():
        difference = (tensor - theirs[name]).abs().max().item()
        if not difference <= worst[0]:
            worst = (difference, name)
    return worst
