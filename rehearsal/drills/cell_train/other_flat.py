import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F


@dataclass
class Trainer:
    cfg: Any
    device: Any
    model: Any
    optimizer: Any
    scaler: Any
    timers: Any
    unread: list = field(default_factory=list)


def train_step(trainer, micro_batches, samples_in_step, lr):
    """Gradients from autograd.grad, which bypasses DDP's hooks; one flat all-reduce."""
    model = getattr(trainer.model, "module", trainer.model)
    used = [p for p in model.parameters() if p.requires_grad]
    flat = torch.zeros(sum(p.numel() for p in used), device=trainer.device)
    local_loss = torch.zeros((), device=trainer.device)
    for batch in micro_batches:
        if len(batch.samples) == 0:
            continue
        with torch.autocast(trainer.device.type, torch.bfloat16, trainer.cfg.amp == "bf16"):
            logits = model(batch.inputs.to(trainer.device))
        loss = F.cross_entropy(
            logits.float(), batch.targets.to(trainer.device), reduction="sum"
        )
        flat += torch.cat([g.flatten() for g in torch.autograd.grad(loss, used)])
        local_loss += loss.detach()
    if dist.is_initialized():
        dist.all_reduce(flat)
    flat /= samples_in_step
    norm = flat.norm()
    skipped = 1.0 - torch.isfinite(norm).float()
    clipped = flat * (trainer.cfg.max_grad_norm or math.inf) / norm
    flat = torch.where(norm > (trainer.cfg.max_grad_norm or math.inf), clipped, flat)
    for p, part in zip(used, flat.split([p.numel() for p in used])):
        p.grad = part.view_as(p)
    for group in trainer.optimizer.param_groups:
        group["lr"] = lr
    trainer.optimizer.found_inf = skipped
    trainer.optimizer.step()
    trainer.unread.append((samples_in_step, local_loss, norm, skipped))
    return skipped
