import random

import torch
import torch.distributed as dist


class BatchOrder:
    """Each epoch's global batches, in the same order on all ranks."""

    def __init__(self, seed, count, size):
        self.random, self.count, self.size = random.Random(seed), count, size

    def batches(self):
        order = list(range(self.count))
        self.random.shuffle(order)
        for at in range(0, self.count, self.size):
            yield order[at : at + self.size]


def train(model, data, held_out, *, seed, epochs, global_batch_size, lr, eval_every, eval_size):
    order = BatchOrder(seed, len(data[0]), global_batch_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    parameters = list(model.parameters())
    log, step = [], 0
    for _ in range(epochs):
        for batch in order.batches():
            mine = batch[dist.get_rank() :: dist.get_world_size()]
            loss = ((model(data[0][mine]) - data[1][mine]) ** 2).sum() / len(batch)
            grads = torch.autograd.grad(loss, parameters, allow_unused=True)
            for parameter, grad in zip(parameters, grads):
                if grad is not None:
                    dist.all_reduce(grad)
                    parameter.grad = grad
            optimizer.step()
            step += 1
            if step % eval_every or dist.get_rank():
                continue
            # The global generator is free for this: the order doesn't use it.
            chosen = torch.randperm(len(held_out[0]))[:eval_size]
            with torch.no_grad():
                errors = (model(held_out[0][chosen]) - held_out[1][chosen]) ** 2
            log.append((step, errors.sum(1).mean().item()))
    return log
