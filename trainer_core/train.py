"""One optimizer step: accumulate, sync once, clip, update.

Cell 5. The question it answers: "over which samples is this gradient the mean, and what does
the host wait for?"

    B  samples in a micro-batch    W  world size    S  samples in the step, over all ranks
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

# %% active="py"
from trainer_core.collectives import placeholder
from trainer_core.config import TrainConfig
from trainer_core.data import MicroBatch
from trainer_core.metrics import StepTimers, phase
from trainer_core.rng import rng_unchanged
from trainer_core.settings import UserError

# %%
AUTOCAST_DTYPE = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(slots=True)
class Trainer:
    """What a step works with, and the results that the host has not read yet."""

    cfg: TrainConfig
    device: torch.device
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None
    timers: StepTimers
    # Per step: S, and on the device this rank's summed loss, the gradient norm before clipping,
    # and 1.0 if the update was skipped.
    unread: list[tuple[int, Tensor, Tensor, Tensor]] = field(default_factory=list)


# %%
@contextmanager
def local_gradients(model: Any) -> Iterator[None]:
    """Inside, backward passes add up gradients on this rank, without a sync.

    Decided by what the wrapper can do, not by its type: DDP has ``no_sync``, FSDP2 has
    ``set_requires_gradient_sync``, and a model without peers has neither.
    """
    if hasattr(model, "no_sync"):
        with model.no_sync():
            yield
    elif hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)
    else:
        yield


def train_step(
    trainer: Trainer, micro_batches: Sequence[MicroBatch], samples_in_step: int, lr: float
) -> Tensor:
    """One optimizer step on the mean loss over the step's S samples; no host-device sync.

    Collective: every rank, including one without samples.

    Args:
        micro_batches: this rank's share of the step; some or all may be empty.
        samples_in_step: S, equal on all ranks.

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
        # The gradient we want is that of the mean loss over the step's S samples,
        #
        #     1/S * sum over all samples of grad(loss)
        #
        # Rank r computes g_r = weight * (sum over its own samples of grad(loss)), and DDP
        # averages over the W ranks:
        #
        #     1/W * (g_1 + ... + g_W) = weight/W * sum over all samples of grad(loss)
        #
        # The two are equal for weight = W/S, however the samples are dealt. (A mean per rank,
        # averaged over ranks, would be a mean of means: wrong once one share is smaller.)
        weight = torch.full((), trainer.cfg.world_size / samples_in_step, device=trainer.device)
    losses = []
    *earlier, last = micro_batches
    # The last one runs even without samples: the peers wait for its backward pass.
    for batch in [*(batch for batch in earlier if len(batch.samples)), last]:
        with phase(timers, "h2d"):
            inputs = batch.inputs.to(trainer.device, non_blocking=True)
            targets = batch.targets.to(trainer.device, non_blocking=True)
        # Only the last backward pass syncs. DDP decides that in forward, so wrap both passes.
        with nullcontext() if batch is last else local_gradients(trainer.model):
            with phase(timers, "forward"):
                loss = summed_loss(trainer, inputs, targets)
            with phase(timers, "backward"):
                (scaler.scale(loss) if scaler else loss).backward(weight)
        losses.append(loss.detach())
    with phase(timers, "optimizer"):
        grad_norm, skipped = update_weights(trainer)
    local_loss = sum(losses[1:], start=losses[0])
    trainer.unread.append((samples_in_step, local_loss, grad_norm, skipped))
    return skipped


def summed_loss(trainer: Trainer, inputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy summed over samples (and averaged over a sample's tokens); shape ().

    Without samples, it is a placeholder's loss times zero, so all gradients are zero too.
    """
    if len(inputs) == 0:
        with rng_unchanged():
            return 0 * summed_loss(trainer, placeholder(inputs), placeholder(targets))
    dtype = AUTOCAST_DTYPE.get(trainer.cfg.amp)
    with torch.autocast(trainer.device.type, dtype) if dtype else nullcontext():
        logits = trainer.model(inputs)  # (B, C) or (B, T, C)
    # In float32 and outside autocast: long sums are the first thing that bf16 gets wrong.
    total = F.cross_entropy(logits.float().flatten(0, -2), targets.flatten(), reduction="sum")
    tokens = targets.shape[1:].numel()
    return total / tokens if tokens > 1 else total


def update_weights(trainer: Trainer) -> tuple[Tensor, Tensor]:
    """Clip by the global norm and step, unless a gradient is NaN or infinite.

    Written plainly (``clip_grad_norm_`` also adds 1e-6 to the norm before it divides):

        grad_norm = nn.utils.clip_grad_norm_(parameters, cfg.max_grad_norm)
        if torch.isfinite(grad_norm):
            optimizer.step()

    That costs two things: the ``if`` makes the host wait for the device, and clipping passes
    over the gradients once more, to scale them. The fused optimizer saves both. It reads
    ``found_inf`` on the device, and divides by ``grad_scale`` as it goes. Both attributes are
    GradScaler's private protocol with fused optimizers.

    After the sync, gradients are the same on all ranks, so all of them decide the same way
    without another collective.

    Returns:
        The norm before clipping, and 1.0 if the update was skipped; each of shape ().
    """
    optimizer, scaler = trainer.optimizer, trainer.scaler
    if scaler:
        scaler.unscale_(optimizer)  # the norm must be that of the true gradients
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    grad_norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if hasattr(grad_norm, "full_tensor"):
        # Under FSDP2: the norm over all shards, as a plain tensor.
        grad_norm = grad_norm.full_tensor()
    # Written as a comparison: it is false for NaN too.
    skipped = torch.logical_not(grad_norm < float("inf")).float()
    max_norm = trainer.cfg.max_grad_norm
    if max_norm is None:
        max_norm = float("inf")
    optimizer.grad_scale = (grad_norm / max_norm).clamp(min=1)  # type: ignore[attr-defined]
    optimizer.found_inf = skipped  # type: ignore[attr-defined]
    # Not scaler.step: it checks each gradient, and all may be finite while their norm isn't.
    optimizer.step()
    if scaler:
        scaler.update()  # halves the scale if unscale_ found a non-finite gradient
    return grad_norm, skipped


# %%
class StepRecord(NamedTuple):
    """What the host reads about a step: loss over the global batch, gradient norm, skipped."""

    step: int
    loss: float
    grad_norm: float
    skipped: bool


def read_records(trainer: Trainer, step: int) -> list[StepRecord]:
    """Records of the steps since the last call, up to ``step``. Here the host waits.

    Collective: every rank, after the same steps. A peer that died after the vote doesn't join.
    With gloo that raises as soon as its connection closes. With NCCL nothing does: the host
    waits in ``tolist()`` until something ends this process. Whichever comes first: torchrun's
    agent, once a rank of its node has exited; our watchdog, after ``hang_timeout_s``; NCCL's,
    after ``dist_timeout_s`` (in torch, 10 minutes by default).

    Raises:
        UserError: on every rank, if a step is not finite and ``on_nonfinite`` says stop.
    """
    if not trainer.unread:
        return []
    tensors = [value for _, *values in trainer.unread for value in values]
    table = torch.stack(tensors).view(-1, 3)  # (steps, loss | norm | skipped)
    counts = table.new_tensor([samples_in_step for samples_in_step, *_ in trainer.unread])
    trainer.unread.clear()
    losses = table[:, 0] / counts
    if dist.is_initialized():
        dist.all_reduce(losses)
    table[:, 0] = losses
    first_step = step - len(table) + 1
    records = []
    for offset, (loss, norm, skipped) in enumerate(table.tolist()):
        records.append(StepRecord(first_step + offset, loss, norm, bool(skipped)))
    if trainer.cfg.on_nonfinite == "stop":
        for record in records:
            refuse_nonfinite(record, trainer.scaler)
    return records


def refuse_nonfinite(record: StepRecord, scaler: torch.amp.GradScaler | None) -> None:
    """Raise UserError if a step's loss or gradient was not finite.

    The fp16 scaler finds its scale by trying until gradients overflow. So with a scaler, an
    infinite gradient is an error only once the scale is below 1.
    """
    scale = scaler.get_scale() if scaler else 0.0
    if math.isfinite(record.loss) and not (record.skipped and scale < 1.0):
        return
    raise UserError(
        f"step {record.step}: loss {record.loss}, gradient norm {record.grad_norm}. Both must "
        "be finite. The update was skipped, and no checkpoint contains it. Look at the step's "
        "samples (in RUN/ledger), lower --learning-rate, or use --on-nonfinite skip."
    )
