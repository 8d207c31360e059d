import torch
import torch.distributed as dist


def train(model, micro_batches, *, lr, max_norm, grad_accum_steps, init_scale, growth_interval):
    """A scale of its own, which all ranks change together, after a vote before the reduce."""
    world_size = dist.get_world_size()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    micro_batches = list(micro_batches)
    scale, good_steps, log = float(init_scale), 0, []
    for first in range(0, len(micro_batches), grad_accum_steps):
        model.zero_grad()
        loss_sum = torch.zeros(())
        for inputs, targets in micro_batches[first : first + grad_accum_steps]:
            loss = (model(inputs).float() - targets).pow(2).sum(1).mean()
            (loss * (scale / grad_accum_steps)).backward()
            loss_sum += loss.detach()
        dist.all_reduce(loss_sum)
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        overflow = torch.tensor(int(any(not grad.isfinite().all() for grad in grads)))
        dist.all_reduce(overflow, dist.ReduceOp.MAX)
        entry = {
            "loss": loss_sum.item() / grad_accum_steps / world_size,
            "grad_norm": None,
            "scale": scale,
            "skipped": bool(overflow),
        }
        log.append(entry)
        if overflow:
            if dist.get_rank() == 0:
                print(f"step {len(log)}: overflow at scale {scale:g}, skipped", flush=True)
            scale, good_steps = scale / 2, 0
            continue
        for grad in grads:
            dist.all_reduce(grad)
        norm = torch.stack([grad.norm() for grad in grads]).norm() / (scale * world_size)
        factor = min(1.0, max_norm / norm.item()) / (scale * world_size)
        for grad in grads:
            grad *= factor
        optimizer.step()
        entry["grad_norm"] = norm.item()
        good_steps += 1
        if good_steps == growth_interval:
            scale, good_steps = scale * 2, 0
    return log
