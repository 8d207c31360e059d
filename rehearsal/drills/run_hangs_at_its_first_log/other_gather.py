import torch
import torch.distributed as dist


class Log:
    """Every rank sends its sum to rank 0; only rank 0 keeps a line."""

    def __init__(self, every):
        self.every, self.lines = every, []

    def step(self, step, loss_sum, num_samples):
        if step % self.every:
            return
        mine = torch.stack([loss_sum.detach(), torch.tensor(float(num_samples))])
        is_main = dist.get_rank() == 0
        parts = [torch.empty(2) for _ in range(dist.get_world_size())] if is_main else None
        dist.gather(mine, parts, dst=0)
        if is_main:
            total, count = torch.stack(parts).sum(0).tolist()
            self.lines.append((step, total / count))


def train(model, shares, *, lr, log_every):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    log = Log(log_every)
    step = 0
    for inputs, targets in shares:
        step += 1
        optimizer.zero_grad()
        loss_sum = ((model(inputs) - targets) ** 2).sum()
        loss_sum.backward()
        count = torch.tensor(float(len(inputs)))
        dist.all_reduce(count)
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= count
        optimizer.step()
        log.step(step, loss_sum, len(inputs))
    return log.lines
