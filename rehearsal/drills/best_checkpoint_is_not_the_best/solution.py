import math
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader

PAD = 0


def padded(sequences, rows, length):
    """Inputs and targets, both (rows, length); the rest is PAD."""
    tokens = torch.full((rows, length + 1), PAD)
    for row, sequence in zip(tokens, sequences):
        row[: len(sequence)] = torch.tensor(sequence)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(model, inputs, targets, reduction):
    """The loss over the targets that are not PAD."""
    logits = model(inputs).flatten(0, 1)
    return F.cross_entropy(logits, targets.flatten(), ignore_index=PAD, reduction=reduction)


class HeldOut:
    """This rank's batches of the held-out sequences, all of the one compiled shape."""

    def __init__(self, sequences, batch_size):
        self.sequences = sequences
        self.batch_size = batch_size
        self.length = max(map(len, sequences)) - 1

    def collate(self, sequences):
        return padded(sequences, self.batch_size, self.length)

    def __iter__(self):
        # DistributedSampler would repeat sequences until all ranks have the same number. Here,
        # no collective waits for an equal number of batches, so shares may differ.
        mine = self.sequences[dist.get_rank() :: dist.get_world_size()]
        yield from DataLoader(mine, self.batch_size, collate_fn=self.collate)


@torch.no_grad()
def evaluate(model, held_out):
    """The mean loss per token over the held-out sequences of all ranks."""
    model.eval()
    total, count = torch.zeros(()), torch.zeros(())
    for inputs, targets in held_out:
        # Sums over tokens: a batch's mean would count short and missing sequences in full.
        total += loss_of(model, inputs, targets, "sum")
        count += (targets != PAD).sum()
    dist.all_reduce(total)
    dist.all_reduce(count)
    model.train()
    return (total / count).item()


class Best:
    """The model with the lowest evaluation loss so far, in best.pt."""

    def __init__(self, folder):
        self.folder = folder
        self.loss = math.inf

    def offer(self, step, loss, model):
        if loss >= self.loss:
            return
        self.loss = loss
        if dist.get_rank() == 0:
            state = {"step": step, "loss": loss, "model": model.state_dict()}
            torch.save(state, self.folder / "best.tmp")
            os.replace(self.folder / "best.tmp", self.folder / "best.pt")


def train_step(model, optimizer, sequences):
    """One step on a global batch of sequences, each rank on its share of them."""
    mine = sequences[dist.get_rank() :: dist.get_world_size()]
    inputs, targets = padded(mine, len(mine), max(map(len, sequences)) - 1)
    optimizer.zero_grad()
    loss_of(model, inputs, targets, "sum").backward()
    count = (targets != PAD).sum()
    dist.all_reduce(count)
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= count
    optimizer.step()


def train(
    model,
    sequences,
    held_out,
    *,
    folder,
    epochs,
    global_batch_size,
    eval_batch_size,
    evaluate_every,
    lr,
):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    evaluation, best = HeldOut(held_out, eval_batch_size), Best(folder)
    step, evaluations = 0, []
    model.train()
    for _ in range(epochs):
        for first in range(0, len(sequences), global_batch_size):
            train_step(model, optimizer, sequences[first : first + global_batch_size])
            step += 1
            if step % evaluate_every == 0:
                loss = evaluate(model, evaluation)
                evaluations.append((step, loss))
                best.offer(step, loss, model)
    return evaluations
