from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from trainer_core.config import TrainConfig
from trainer_core.data import MicroBatch
from trainer_core.metrics import StepTimers, phase

AUTOCAST_DTYPE = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(slots=True)
class Trainer:
    """What a step works on: the parts, and what it leaves behind on the device."""

    cfg: TrainConfig
    device: torch.device
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None
    timers: StepTimers
    # of each step: its samples S, and on the device this rank's summed loss, the gradient norm,
    # 1 if the update was withheld
    unread: list[tuple[int, Tensor, Tensor, Tensor]] = field(default_factory=list)


def train_step(
    trainer: Trainer, micro_batches: Sequence[MicroBatch], samples_in_step: int, lr: float
) -> Tensor:
    """One optimizer step over the samples of all ranks; nothing in it waits for the device."""
    cfg, timers, scaler = trainer.cfg, trainer.timers, trainer.scaler
    model, optimizer = trainer.model, trainer.optimizer
    losses = []
    with phase(timers, "optimizer"):
        for group in optimizer.param_groups:
            group["lr"] = lr
            for parameter in group["params"]:
                parameter.grad = None
        weight = torch.full((), cfg.world_size / samples_in_step, device=trainer.device)
    *earlier, last = micro_batches
    for batch in [b for b in earlier if len(b.samples)] + [last]:
        with phase(timers, "h2d"):
            inputs = batch.inputs.to(trainer.device, non_blocking=True)
            targets = batch.targets.to(trainer.device, non_blocking=True)
        # Only the last backward pass all-reduces; before it the gradients add up locally.
        with model.no_sync() if isinstance(model, DDP) and batch is not last else nullcontext():
            with phase(timers, "forward"):
                loss = summed_loss(trainer, inputs, targets)
            with phase(timers, "backward"):
                (scaler.scale(loss) if scaler else loss).backward(weight)
        losses.append(loss.detach())
    with phase(timers, "optimizer"):
        grad_norm, withheld = update_weights(trainer)
    local_loss = sum(losses[1:], start=losses[0])
    trainer.unread.append((samples_in_step, local_loss, grad_norm, withheld))
    return withheld


def summed_loss(trainer: Trainer, inputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy summed over samples (and averaged over a sample's tokens); shape ()."""
    dtype = AUTOCAST_DTYPE.get(trainer.cfg.amp)
    with torch.autocast(trainer.device.type, dtype) if dtype else nullcontext():
        logits = trainer.model(inputs)  # (B, C) or (B, T, C)
    # In float32 and outside autocast: a sum of many terms is the first thing bf16 gets wrong.
    total = F.cross_entropy(logits.float().flatten(0, -2), targets.flatten(), reduction="sum")
    tokens = targets.shape[1:].numel()
    return total / tokens if tokens > 1 else total


def update_weights(trainer: Trainer) -> tuple[Tensor, Tensor]:
    """Clip by the global norm, then step unless a gradient is NaN or infinite.

    The gradients are the same on all ranks after the sync, so all decide alike without a
    further collective. The decision stays on the device: the fused optimizer reads it there.
    """
    cfg, optimizer, scaler = trainer.cfg, trainer.optimizer, trainer.scaler
    if scaler:
        scaler.unscale_(optimizer)  # the norm must be that of the true gradients
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    grad_norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    # A norm is not negative, and no comparison with NaN holds.
    withheld = torch.logical_not(grad_norm < float("inf")).float()
    max_norm = float("inf") if cfg.max_grad_norm is None else cfg.max_grad_norm
    # The fused kernel divides by grad_scale while it reads the gradients, so clipping needs no
    # pass of its own over them; found_inf makes it leave everything as it is. Not scaler.step:
    # its own verdict, gradient by gradient, differs where only their norm overflows.
    optimizer.grad_scale = (grad_norm / max_norm).clamp(min=1)  # type: ignore[attr-defined]
    optimizer.found_inf = withheld  # type: ignore[attr-defined]
    optimizer.step()
    if scaler:
        scaler.update()  # halves the scale if unscale_ has met a gradient that is not finite
    return grad_norm, withheld
