import torch
import torch.distributed as dist
import torch.nn.functional as F


def train_step(model, optimizer, inputs, targets, pos_weight):
    world_size = dist.get_world_size()
    optimizer.zero_grad()
    rows, tasks = torch.nonzero(~torch.isnan(targets), as_tuple=True)
    x, y = model(inputs)[rows, tasks], targets[rows, tasks]
    # -ln s(x) is softplus(-x), and -ln(1 - s(x)) is softplus(x).
    losses = y * pos_weight[tasks] * F.softplus(-x) + (1 - y) * F.softplus(x)
    own = torch.bincount(tasks, minlength=len(pos_weight))
    everyone = [torch.zeros_like(own) for _ in range(world_size)]
    dist.all_gather(everyone, own)
    counts = torch.stack(everyone).sum(0)
    num_tasks = sum(count > 0 for count in counts.tolist()) or 1
    loss = (losses / counts[tasks]).sum() / num_tasks
    loss.backward()
    for parameter in model.parameters():
        parameter.grad *= world_size  # DDP has divided the sum
    optimizer.step()
    parts = [torch.zeros(()) for _ in range(world_size)]
    dist.all_gather(parts, loss.detach())
    return float(sum(parts))
