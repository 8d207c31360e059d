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
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(2)  # (B, T, H, D)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.size(-1) ** -0.5
        # Minus infinity above the diagonal, 0 elsewhere.
        future = torch.full(scores.shape[-2:], -math.inf).triu(1)
        weights = torch.softmax(scores + future, dim=-1)
        return self.out(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))



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
    targets = tokens[:, 1:]
    is_real = targets != PAD
    logs = model(tokens[:, :-1])[is_real].log_softmax(-1)
    return F.nll_loss(logs, targets[is_real], reduction="sum")


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


@torch.no_grad()
def update(parameters, speeds, count, rate, max_norm):
    """A step along the gradients of a sum of ``count`` losses, which it clears."""
    grads = [parameter.grad / count for parameter in parameters]
    norm = torch.cat([grad.flatten() for grad in grads]).norm()
    factor = min(1.0, max_norm / norm.item())
    for parameter, speed, grad in zip(parameters, speeds, grads):
        speed.mul_(0.9).add_(grad * factor)
        parameter -= rate * speed
        parameter.grad = None


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
    parameters = list(model.parameters())
    speeds = [torch.zeros_like(parameter) for parameter in parameters]
    order_rng = torch.Generator().manual_seed(seed)
    losses, held_out_losses = [], []
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(sequences), generator=order_rng)
        for picked in order.split(batch_size):
            batch = sequences[picked]
            # Of the whole batch: its micro-batches don't have the same number of targets.
            count = num_targets(batch)
            total = 0.0
            for part in batch.split(micro_batch_size):
                loss = summed_loss(model, part)
                loss.backward()
                total += loss.item()
            step = len(losses) + 1
            rate = lr * min(step / warmup_steps, math.sqrt(warmup_steps / step))
            update(parameters, speeds, count, rate, max_norm)
            losses.append(total / count.item())
        held_out_losses.append(evaluate(model, held_out, micro_batch_size))
    return losses, held_out_losses
