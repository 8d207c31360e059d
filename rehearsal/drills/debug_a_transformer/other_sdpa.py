import math
import random

import torch
import torch.nn.functional as F
from torch import nn

PAD = 0


class Attention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):  # (B, T, W)
        batch, time, width = x.shape
        q, k, v = (
            part.view(batch, time, self.num_heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))



class Block(nn.Module):
    """Attention, then an MLP; each one adds to the stream what it makes of its norm."""

    def __init__(self, width, num_heads, dropout):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, num_heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.drop(self.attention(self.norm_1(x)))
        return x + self.drop(self.mlp(self.norm_2(x)))


class Transformer(nn.Module):
    """Tokens (B, T) to the logits (B, T, V) of the token that follows each of them."""

    def __init__(self, vocab_size, context_length, width, num_heads, num_layers, dropout):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(context_length, width)
        self.blocks = nn.ModuleList(
            Block(width, num_heads, dropout) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def losses_of(model, tokens):
    """The loss of each target in ``tokens`` (B, T); 0 for padding."""
    logits, targets = model(tokens)[:, :-1], tokens[:, 1:]
    losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    return losses * (targets != PAD)


def evaluate(model, sequences, micro_batch_size):
    """The mean loss of all targets in ``sequences`` (N, T)."""
    model.eval()
    with torch.no_grad():
        losses = [losses_of(model, part) for part in sequences.split(micro_batch_size)]
    return (torch.cat(losses).sum() / sequences[:, 1:].count_nonzero()).item()


def order_of(num_sequences, seed, epoch):
    """A permutation that is the same whatever came before."""
    order = list(range(num_sequences))
    random.Random(f"{seed} {epoch}").shuffle(order)
    return order


def train(
    model,
    sequences,
    held_out,
    *,
    seed,
    epochs,
    batch_size,
    micro_batch_size,
    lr,
    warmup_steps,
    max_norm,
):
    """Train; return each step's loss and, after each epoch, the loss on ``held_out``."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda done: min((done + 1) / warmup_steps, (warmup_steps / (done + 1)) ** 0.5),
    )
    losses, held_out_losses = [], []
    for epoch in range(epochs):
        model.train()
        order = order_of(len(sequences), seed, epoch)
        for first in range(0, len(order), batch_size):
            batch = sequences[order[first : first + batch_size]]
            count = batch[:, 1:].count_nonzero()
            step_loss = 0.0
            for part in batch.split(micro_batch_size):
                loss = losses_of(model, part).sum() / count
                loss.backward()
                step_loss += loss.item()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(step_loss)
        held_out_losses.append(evaluate(model, held_out, micro_batch_size))
    return losses, held_out_losses
