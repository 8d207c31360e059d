import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(model, micro_batches, *, lr, max_norm, grad_accum_steps, init_scale, growth_interval):
    """DDP reduces in the last backward of a step, before anything looks at the gradients."""
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=init_scale, growth_interval=growth_interval
    )
    log, local_loss = [], 0.0
    for number, (inputs, targets) in enumerate(micro_batches, 1):
        is_last = number % grad_accum_steps == 0
        with contextlib.nullcontext() if is_last else ddp.no_sync():
            loss = (ddp(inputs).float() - targets).pow(2).sum(1).mean()
            scaler.scale(loss / grad_accum_steps).backward()
        local_loss += loss.item() / grad_accum_steps
        if not is_last:
            continue
        scale = scaler.get_scale()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses = [None] * dist.get_world_size()
        dist.all_gather_object(losses, local_loss)
        skipped = not bool(norm.isfinite())
        log.append(
            {
                "loss": sum(losses) / len(losses),
                "grad_norm": None if skipped else float(norm),
                "scale": scale,
                "skipped": skipped,
            }
        )
        if skipped and dist.get_rank() == 0:
            print(f"step {len(log)}: overflow at scale {scale:g}, skipped")
        local_loss = 0.0
    return log
