import hashlib

import torch
import torch.distributed as dist


def train(model, data, held_out, *, seed, epochs, global_batch_size, lr, eval_every, eval_size):
    """Rank 0 returns (step, loss on held-out samples) pairs; other ranks return []."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    inputs, targets = data
    step, evaluations = 0, []
    for epoch in range(epochs):
        order = shuffled(len(inputs), f"{seed} {epoch}")
        for batch in order.split(global_batch_size):
            mine = batch[rank::world_size]
            optimizer.zero_grad()
            errors = (model(inputs[mine]) - targets[mine]).pow(2).sum(1)
            # A rank without samples contributes zero.
            (errors.sum() / len(batch)).backward()
            for parameter in model.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
            optimizer.step()
            step += 1
            if step % eval_every == 0 and rank == 0:
                evaluations.append(
                    (step, evaluate(model, *held_out, eval_size, f"{seed} {step}"))
                )
    return evaluations


def shuffled(count, key):
    """An order that depends on the key alone, not on any earlier call."""
    by_hash = sorted(range(count), key=lambda n: hashlib.sha256(f"{key} {n}".encode()).digest())
    return torch.tensor(by_hash)


@torch.no_grad()
def evaluate(model, inputs, targets, size, key):
    """The mean loss on a fresh draw of size samples; all of them would take minutes."""
    drawn = shuffled(len(inputs), key)[:size]
    return (model(inputs[drawn]) - targets[drawn]).pow(2).sum(1).mean().item()
