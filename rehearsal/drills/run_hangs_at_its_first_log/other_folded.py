import torch
import torch.distributed as dist


def train(model, shares, *, lr, log_every):
    """The loss rides along in the collective that the gradients need anyway."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    parameters = list(model.parameters())
    log = []
    for step, (inputs, targets) in enumerate(shares, start=1):
        local_loss = (model(inputs) - targets).pow(2).sum()
        grads = torch.autograd.grad(local_loss, parameters, allow_unused=True)
        found = [(p, g) for p, g in zip(parameters, grads) if g is not None]
        facts = torch.tensor([local_loss.item(), float(len(inputs))])
        flat = torch.cat([g.flatten() for _, g in found] + [facts])
        dist.all_reduce(flat)
        total, num_samples = flat[-2].item(), flat[-1].item()
        at = 0
        for p, g in found:
            p.grad = (flat[at : at + g.numel()] / num_samples).view_as(p)
            at += g.numel()
        optimizer.step()
        if step % log_every == 0 and dist.get_rank() == 0:
            log.append((step, total / num_samples))
    return log
