import math

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
        heads = self.qkv(x).view(batch, time, 3, self.num_heads, -1)
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # (B, H, T, W / H) each
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # (B, H, T, T)
        is_later = torch.ones(time, time, dtype=torch.bool).triu(1)
        # Before the softmax, whose denominator would otherwise count what comes later.
        weights = scores.masked_fill(is_later, -math.inf).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, time, width))


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


def summed_loss(model, tokens):
    """The loss of each real target in ``tokens`` (B, T), added up."""
    logits, targets = model(tokens[:, :-1]), tokens[:, 1:]
    return F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="sum"
    )


def num_targets(tokens):
    return (tokens[:, 1:] != PAD).sum()


@torch.no_grad()
def evaluate(model, sequences, micro_batch_size):
    """The mean loss of all targets in ``sequences`` (N, T)."""
    was_training = model.training
    model.eval()
    total = sum(summed_loss(model, part) for part in sequences.split(micro_batch_size))
    model.train(was_training)
    return (total / num_targets(sequences)).item()


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
    order_rng = torch.Generator().manual_seed(seed)
    losses, held_out_losses = [], []
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(sequences), generator=order_rng)
        for picked in order.split(batch_size):
            batch = sequences[picked]
            # Of the whole batch: its micro-batches don't have the same number of targets.
            count = num_targets(batch)
            optimizer.zero_grad()
            step_loss = 0.0
            for part in batch.split(micro_batch_size):
                loss = summed_loss(model, part) / count
                loss.backward()
                step_loss += loss.item()
            step = len(losses) + 1
            for group in optimizer.param_groups:
                group["lr"] = lr * min(step / warmup_steps, math.sqrt(warmup_steps / step))
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            losses.append(step_loss)
        held_out_losses.append(evaluate(model, held_out, micro_batch_size))
    return losses, held_out_losses
