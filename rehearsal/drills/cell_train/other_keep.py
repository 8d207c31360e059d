import contextlib

import torch
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_


class Trainer:
    def __init__(self, cfg, device, model, optimizer, scaler, timers):
        self.cfg, self.device, self.model, self.optimizer = cfg, device, model, optimizer
        self.scaler, self.timers, self.unread = scaler, timers, []


def train_step(trainer, micro_batches, samples_in_step, lr):
    """Each micro-batch's mean, weighted by its size; a bad step is undone on the device."""
    model, optimizer, cfg = trainer.model, trainer.optimizer, trainer.cfg
    optimizer.zero_grad()
    total = torch.zeros(())
    for i, batch in enumerate(micro_batches):
        is_last = i == len(micro_batches) - 1
        waits = contextlib.nullcontext() if is_last or cfg.world_size == 1 else model.no_sync()
        with waits:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cfg.amp == "bf16"):
                logits = model(batch.inputs)
            size = len(batch.samples)
            mean = F.cross_entropy(logits.float(), batch.targets) if size else logits.sum() * 0
            (mean * size * cfg.world_size / samples_in_step).backward()
            total = total + mean.detach() * size
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    norm = clip_grad_norm_(parameters, cfg.max_grad_norm or 1e30)
    is_fine = torch.isfinite(norm)
    before = [p.detach().clone() for p in parameters]
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    with torch.no_grad():
        for p, old in zip(parameters, before):
            p.copy_(torch.where(is_fine, p, old))
    skipped = (~is_fine).float()
    trainer.unread.append((samples_in_step, total, norm, skipped))
    return skipped
