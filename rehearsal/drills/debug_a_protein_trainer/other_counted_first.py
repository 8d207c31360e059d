import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

PAD, MASK, VOCABULARY_SIZE, NOT_HIDDEN = 1, 32, 33, -100


def planned_mib(length, shape):
    """Memory for one protein's step, with each block checkpointed."""
    counts = [shape.d_model * length] * shape.num_layers
    counts += [shape.pair_width * length**2] * shape.num_pair_blocks
    counts += [shape.num_heads * length**2] * (not shape.is_fused)
    return 4 * sum(counts) / 2**20


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
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=is_real[:, None, None])
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
        for block in self.blocks:
            # The reentrant kind has no gradient for a block whose input needs none.
            x = checkpoint(block, x, tokens != PAD, use_reentrant=False)
        return self.head(self.norm(x))


def crop(protein, max_length, rng):
    """What is trained of a protein (L,)."""
    spare = max(0, len(protein) - max_length)
    first = rng.choice(range(spare + 1))
    return protein[first:][:max_length]


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
    longest = model.shape.max_length
    rng = random.Random(1000 * seed + rank)
    too_large = [
        index
        for index, protein in enumerate(proteins)
        if planned_mib(min(len(protein), longest), model.shape) > budget_mib
    ]
    if too_large:
        raise ValueError(f"proteins {too_large} need more than budget_mib={budget_mib}")
    wrapped = DistributedDataParallel(model)
    losses = []
    for first in range(0, len(proteins), batch_size):
        indices = range(first, min(first + batch_size, len(proteins)))[rank::world_size]
        tokens, targets = batch_of([proteins[index] for index in indices], longest, rng)
        num_hidden = (targets != NOT_HIDDEN).sum()
        dist.all_reduce(num_hidden)
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            logits = wrapped(tokens)
            with torch.autocast("cpu", enabled=False):
                each = F.cross_entropy(
                    logits.float().transpose(1, 2),
                    targets,
                    ignore_index=NOT_HIDDEN,
                    reduction="none",
                )
                share = each.sum() / num_hidden  # this rank's part of the step's loss
        optimizer.zero_grad()
        (share * world_size).backward()
        optimizer.step()
        loss = share.detach().clone()
        dist.all_reduce(loss)
        losses.append(loss.item())
    return losses
