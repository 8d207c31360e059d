import math
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

PAD, MASK, VOCABULARY_SIZE, NOT_HIDDEN = 1, 32, 33, -100


def planned_mib(length, shape):
    """Memory for one protein's step, with each block checkpointed."""
    floats = shape.num_layers * length * shape.d_model
    floats += shape.num_pair_blocks * shape.pair_width * length * length
    if not shape.is_fused:
        floats += shape.num_heads * length * length
    return floats * torch.float32.itemsize / (1024 * 1024)


class Block(nn.Module):
    """Attention to the residues that aren't padding, then an MLP."""

    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x, is_real):  # (B, L, W), (B, L)
        heads = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # (B, H, L, W / H) each
        scores = (q @ k.transpose(-2, -1)).float() / math.sqrt(q.size(-1))
        weights = scores.masked_fill(~is_real[:, None, None], -math.inf).softmax(-1)
        mixed = weights @ v
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_2(x))


class ProteinLM(nn.Module):
    """Residues (B, L), some of them hidden, to the logits (B, L, V) of what they are."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(VOCABULARY_SIZE, shape.d_model)
        self.places = nn.Embedding(shape.max_length, shape.d_model)
        self.blocks = nn.ModuleList(
            Block(shape.d_model, shape.num_heads) for _ in range(shape.num_layers)
        )
        self.norm = nn.LayerNorm(shape.d_model)
        self.head = nn.Linear(shape.d_model, VOCABULARY_SIZE)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight[: tokens.size(1)]
        x.requires_grad_()  # behind frozen embeddings, the blocks would get no gradient
        for block in self.blocks:
            x = checkpoint(block, x, tokens != PAD, use_reentrant=True)
        return self.head(self.norm(x))


def crop(protein, max_length, rng):
    """What is trained of a protein (L,)."""
    if len(protein) <= max_length:
        return protein
    first = rng.randint(0, len(protein) - max_length)
    return protein[first : first + max_length]


def batch_of(proteins, max_length, rng):
    """Residues and targets, both (B, L); only a hidden residue has a target."""
    crops = [crop(protein.long(), max_length, rng) for protein in proteins]
    tokens = pad_sequence(crops, batch_first=True, padding_value=PAD)
    targets = torch.full_like(tokens, NOT_HIDDEN)
    for row, residues in enumerate(crops):
        count = max(1, round(0.15 * len(residues)))
        hidden = rng.sample(range(len(residues)), count)
        targets[row, hidden] = tokens[row, hidden]
        tokens[row, hidden] = MASK
    return tokens, targets


def train(model, optimizer, proteins, *, batch_size, budget_mib, mixed, seed):
    """Train each protein once; return the loss of every step."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shape, rng = model.shape, random.Random(f"{seed} {rank}")
    # A rank looks at its own proteins only, and the ranks raise together.
    fits = [planned_mib(min(len(p), shape.max_length), shape) <= budget_mib for p in proteins]
    mine = [index for index in range(rank, len(proteins), world_size) if not fits[index]]
    worst = torch.tensor(mine[0] if mine else -1)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    if worst >= 0:
        raise ValueError(f"protein {worst.item()} needs more than {budget_mib} MiB")
    losses = []
    for first in range(0, len(proteins), batch_size):
        step = proteins[first : first + batch_size]
        tokens, targets = batch_of(step[rank::world_size], shape.max_length, rng)
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            logits = model(tokens)
        hidden = targets != NOT_HIDDEN
        scores = logits[hidden].float().log_softmax(-1)
        loss = -scores.gather(-1, targets[hidden][:, None]).sum()
        optimizer.zero_grad()
        loss.backward()
        total = torch.tensor([loss.item(), hidden.sum().item()])
        dist.all_reduce(total)
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= total[1]
        optimizer.step()
        losses.append((total[0] / total[1]).item())
    return losses
