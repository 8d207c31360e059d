import os

import torch
import torch.distributed as dist
import torch.nn.functional as F

PAD = 0


def padded(sequences, rows, length):
    tokens = torch.full((rows, length + 1), PAD)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = torch.tensor(sequence)
    return tokens[:, :-1], tokens[:, 1:]


def token_losses(model, inputs, targets):
    """The loss of each target, (rows, length); 0 where the target is PAD."""
    return F.cross_entropy(
        model(inputs).transpose(1, 2), targets, ignore_index=PAD, reduction="none"
    )


@torch.no_grad()
def evaluate(model, held_out, batch_size):
    """Every rank gets each sequence's own loss and adds them up in the same order."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    share = -(-len(held_out) // world_size)
    mine = held_out[rank * share : (rank + 1) * share]
    length = max(map(len, held_out)) - 1
    model.eval()
    losses = []
    for first in range(0, len(mine), batch_size):
        batch = mine[first : first + batch_size]
        each = token_losses(model, *padded(batch, batch_size, length)).double().sum(1)
        losses += each[: len(batch)].tolist()
    model.train()
    of_ranks = [None] * world_size
    dist.all_gather_object(of_ranks, losses)
    num_tokens = sum(len(sequence) - 1 for sequence in held_out)
    return sum(loss for losses in of_ranks for loss in losses) / num_tokens


def train(model, sequences, held_out, *, folder, epochs, global_batch_size, eval_batch_size,
          evaluate_every, lr):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    step, evaluations, lowest = 0, [], None
    model.train()
    for _ in range(epochs):
        for first in range(0, len(sequences), global_batch_size):
            batch = sequences[first : first + global_batch_size]
            mine = batch[rank::world_size]
            length = max(map(len, batch)) - 1
            num_tokens = sum(len(sequence) - 1 for sequence in batch)
            model.zero_grad()
            loss = token_losses(model, *padded(mine, len(mine), length)).sum() / num_tokens
            loss.backward()
            for parameter in model.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
            optimizer.step()
            step += 1
            if step % evaluate_every == 0:
                loss = evaluate(model, held_out, eval_batch_size)
                evaluations.append((step, loss))
                if lowest is None or loss < lowest:
                    lowest = loss
                    state = {"model": model.state_dict(), "loss": loss, "step": step}
                    if rank == 0:
                        torch.save(state, folder / "best.new")
                        os.replace(folder / "best.new", folder / "best.pt")
    return evaluations
