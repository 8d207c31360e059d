"""One optimizer step whose loss is a mean over terms, not over samples.

Cell 5's step, with another denominator. The question it answers: "a molecule has 12 labels,
most of them missing; what is this gradient the mean of?"

    N  loss terms in the step, over all ranks    W  world size
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

# %% active="py"
from trainer_core.bio.batches import TensorBatch
from trainer_core.bio.tasks import Task
from trainer_core.data import MicroBatch
from trainer_core.metrics import phase
from trainer_core.rng import rng_unchanged
from trainer_core.train import AUTOCAST_DTYPE, Trainer, local_gradients, update_weights


# %%
def task_step(
    trainer: Trainer, task: Task, micro_batches: Sequence[MicroBatch], num_terms: int, lr: float
) -> Tensor:
    """One optimizer step on the mean loss over the step's N terms; no host-device sync.

    Collective: every rank, including one without samples, and one whose labels are all missing.

    Args:
        micro_batches: this rank's share of the step; some or all may be empty.
        num_terms: N, equal on all ranks. A step may have none: then no weight has a gradient.

    Returns:
        1.0 if any rank's gradient was NaN or infinite, so no rank updated its weights; else
        0.0. Shape (), on the device, equal on all ranks.
    """
    timers, scaler = trainer.timers, trainer.scaler
    with phase(timers, "optimizer"):
        for group in trainer.optimizer.param_groups:
            group["lr"] = lr
            for parameter in group["params"]:
                parameter.grad = None
        # DDP averages over W ranks, and we want the mean over N terms: W / N, as in cell 5.
        # Normalizing each rank by its own labels would be a mean of means.
        weight = torch.full((), trainer.cfg.world_size / max(num_terms, 1))
        weight = weight.to(trainer.device, non_blocking=True)
    losses = []
    *earlier, last = micro_batches
    for batch in [*(batch for batch in earlier if len(batch.samples)), last]:
        with phase(timers, "h2d"):
            inputs = batch.inputs.to(trainer.device, non_blocking=True)
            targets = batch.targets.to(trainer.device, non_blocking=True)
        with nullcontext() if batch is last else local_gradients(trainer.model):
            with phase(timers, "forward"):
                loss = summed_task_loss(trainer, task, inputs, targets)  # type: ignore[arg-type]
            with phase(timers, "backward"):
                (scaler.scale(loss) if scaler else loss).backward(weight)
        losses.append(loss.detach())
    with phase(timers, "optimizer"):
        grad_norm, skipped = update_weights(trainer)
    local_loss = sum(losses[1:], start=losses[0])
    trainer.unread.append((max(num_terms, 1), local_loss, grad_norm, skipped))
    return skipped


def summed_task_loss(
    trainer: Trainer, task: Task, inputs: TensorBatch, targets: Tensor
) -> Tensor:
    """The task's loss summed over this micro-batch's terms; shape ().

    Without samples, it is a placeholder's output times zero, so all gradients are zero too.
    """
    dtype = AUTOCAST_DTYPE.get(trainer.cfg.amp)
    autocast = torch.autocast(trainer.device.type, dtype) if dtype else nullcontext()
    if len(inputs) == 0:
        with rng_unchanged(), autocast:
            nothing: Tensor = 0 * trainer.model(inputs.placeholder()).float().sum()
            return nothing
    with autocast:
        outputs = trainer.model(inputs)
    return task.summed_loss(outputs.float(), targets)
