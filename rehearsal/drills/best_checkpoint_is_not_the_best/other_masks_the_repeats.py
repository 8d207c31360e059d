import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DistributedSampler

PAD = 0


def padded(sequences, rows, length):
    tokens = torch.full((rows, length + 1), PAD)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = torch.tensor(sequence)
    return tokens[:, :-1], tokens[:, 1:]


def sum_and_count(model, inputs, targets):
    logits = model(inputs).flatten(0, 1)
    loss = F.cross_entropy(logits, targets.flatten(), ignore_index=PAD, reduction="sum")
    return loss, targets.ne(PAD).sum()


@torch.no_grad()
def evaluate(model, held_out, batch_size):
    """The sampler repeats sequences; a repeat becomes a row of padding, with no tokens."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    length = max(map(len, held_out)) - 1
    indices = list(DistributedSampler(held_out, shuffle=False))
    mine = [
        held_out[index] if place * world_size + rank < len(held_out) else []
        for place, index in enumerate(indices)
    ]
    model.eval()
    total = torch.zeros(2, dtype=torch.float64)
    for first in range(0, len(mine), batch_size):
        batch = padded(mine[first : first + batch_size], batch_size, length)
        total += torch.stack([part.double() for part in sum_and_count(model, *batch)])
    model.train()
    dist.all_reduce(total)
    return float(total[0] / total[1])


def train(model, sequences, held_out, *, folder, epochs, global_batch_size, eval_batch_size,
          evaluate_every, lr):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    starts = list(range(0, len(sequences), global_batch_size)) * epochs
    evaluations = []
    model.train()
    for step, first in enumerate(starts, 1):
        batch = sequences[first : first + global_batch_size]
        mine = batch[rank::world_size]
        optimizer.zero_grad()
        loss, count = sum_and_count(
            model, *padded(mine, len(mine), max(len(sequence) for sequence in batch) - 1)
        )
        dist.all_reduce(count)
        (loss / count).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        optimizer.step()
        if step % evaluate_every:
            continue
        loss = evaluate(model, held_out, eval_batch_size)
        is_best = all(loss < earlier for _, earlier in evaluations)
        evaluations.append((step, loss))
        if is_best and rank == 0:
            state = {"step": step, "loss": loss, "model": model.state_dict()}
            torch.save(state, folder / "new")
            os.replace(folder / "new", folder / "best.pt")
    return evaluations
