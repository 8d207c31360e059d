import torch
import torch.distributed as dist


def train(model, shares, *, lr, log_every):
    """Train on this rank's share of each step; rank 0 returns the log."""
    # Metrics have their own group, so that they don't queue behind gradients.
    metrics = dist.new_group(group_desc="metrics")
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    log = []
    for step, (inputs, targets) in enumerate(shares, start=1):
        optimizer.zero_grad()
        local_loss = (model(inputs) - targets).pow(2).sum()
        # Shares are uneven, so divide the sum over the step's samples by their number.
        num_samples = torch.tensor(float(len(inputs)))
        dist.all_reduce(num_samples)
        (local_loss / num_samples).backward()
        sum_gradients_over_ranks(model)
        optimizer.step()
        if step % log_every == 0:
            # All ranks get here, for the collective in it; only rank 0 keeps the result.
            loss = global_loss(local_loss, num_samples, metrics)
            if dist.get_rank() == 0:
                log.append((step, loss))
    return log


def sum_gradients_over_ranks(model):
    """Sum in place, in one collective. A parameter without a gradient has none anywhere."""
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    for grad, part in zip(grads, flat.split([grad.numel() for grad in grads])):
        grad.copy_(part.view_as(grad))


def global_loss(local_loss, num_samples, group):
    """The step's mean loss over the samples of all ranks."""
    total = local_loss.detach().clone()
    dist.all_reduce(total, group=group)
    return (total / num_samples).item()
