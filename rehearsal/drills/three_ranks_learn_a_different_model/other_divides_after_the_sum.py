import torch
import torch.distributed as dist


def train(model, micro_batches, *, lr, grad_accum_steps):
    """No DDP: gradient sums and token count share an all-reduce; the division comes last."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    tokens = torch.zeros(1)
    for number, (ids, targets, mask) in enumerate(micro_batches, start=1):
        kept = mask.bool()
        (model(ids)[kept] - targets[kept]).pow(2).sum().backward()
        tokens += mask.sum()
        if number % grad_accum_steps:
            continue
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        flat = torch.cat([tokens] + [g.flatten() for g in grads])
        dist.all_reduce(flat)
        at = 1
        for g in grads:
            g.copy_(flat[at : at + g.numel()].view_as(g) / flat[0])
            at += g.numel()
        optimizer.step()
        optimizer.zero_grad()
        tokens.zero_()
