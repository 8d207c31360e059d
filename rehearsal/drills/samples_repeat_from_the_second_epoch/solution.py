import torch
import torch.distributed as dist


def train(model, data, held_out, *, seed, epochs, global_batch_size, lr, eval_every, eval_size):
    """Rank 0 returns (step, loss on held-out samples) pairs; other ranks return []."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    # All ranks use the same order, from a generator that nothing else draws from.
    order_rng = torch.Generator().manual_seed(seed)
    eval_rng = torch.Generator().manual_seed(seed + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    inputs, targets = data
    step, evaluations = 0, []
    for _ in range(epochs):
        order = torch.randperm(len(inputs), generator=order_rng)
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
                evaluations.append((step, evaluate(model, *held_out, eval_size, eval_rng)))
    return evaluations


@torch.no_grad()
def evaluate(model, inputs, targets, size, generator):
    """The mean loss on a fresh draw of size samples; all of them would take minutes."""
    drawn = torch.randperm(len(inputs), generator=generator)[:size]
    return (model(inputs[drawn]) - targets[drawn]).pow(2).sum(1).mean().item()
