"""One row of tokens on several ranks: attention when no rank has room for all of it.

The question it answers: "a protein of 35,000 residues runs out of memory at batch size 1; what
do you split now?" Each rank holds T/W tokens of every row, all weights, and every layer works
on the shard. Only attention needs the other tokens: their keys and values travel.

What others split, and when:
- Megatron's sequence parallelism belongs to tensor parallelism: it shards norms and dropout by
  tokens; attention sees whole rows, with H/W heads on each rank.
- Ulysses shards tokens everywhere but in attention, where all-to-alls trade them for heads:
  whole rows, H/W heads. So W can't exceed the number of heads.
- Here queries stay, and keys and values go around, so heads don't limit W. Megatron calls this
  context parallelism.

Equal to one rank without dropout only: each rank draws for its own tokens.

    B  rows    H  heads    T  tokens in a row    t  tokens of one shard    D  width of a head
    W  ranks in the group    S  scores q.k / sqrt(D)    lse  log of a row's sum of exp(S)
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

# %%
Group = dist.ProcessGroup | None


# %%
def shard_bounds(num_tokens: int, world_size: int) -> list[tuple[int, int]]:
    """First token and one past the last, for each rank; sizes differ by at most one.

    A pure function of T and W, so every rank knows every shard's size without asking.
    """
    cuts = [rank * num_tokens // world_size for rank in range(world_size + 1)]
    return list(pairwise(cuts))


def shard_tokens(rows: Tensor, group: Group = None) -> Tensor:
    """This rank's tokens of whole rows: (B, T, ...) to (B, t, ...). Not a collective.

    Shard inputs, positions and targets; attention takes whole rows of segments. Under DDP over
    these ranks, weight each rank's summed loss by W / (terms on all ranks): DDP averages, and
    the gradient that we want is the sum over shards.
    """
    first, last = shard_bounds(rows.shape[1], dist.get_world_size(group))[dist.get_rank(group)]
    return rows[:, first:last]


def check_shard(q: Tensor, segments: Tensor, group: Group) -> list[tuple[int, int]]:
    """Bounds of all shards; ValueError, before any collective, if q isn't this rank's."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    bounds = shard_bounds(segments.shape[1], world_size)
    size = bounds[rank][1] - bounds[rank][0]
    if q.shape[2] != size:
        raise ValueError(
            f"[rank {rank}/{world_size}] queries of {q.shape[2]} tokens, but of rows of "
            f"{segments.shape[1]} this rank holds {size}; peers would wait for a block of "
            "another size. Pass segments of whole rows, and the rest through shard_tokens."
        )
    return bounds


# %%
class GatherTokens(torch.autograd.Function):
    """Shards of all ranks, joined; in the backward pass, each rank's gradients for mine, added.

    Written out because torch 2.13's own are either wrong here or on their way out. Autograd
    doesn't know what dist.all_gather returns: the gradient through other ranks' queries
    vanishes without an error. The differentiable versions are right, but deprecated.
    """

    @staticmethod
    def forward(ctx: Any, shard: Tensor, bounds: list[tuple[int, int]], group: Group) -> Tensor:
        ctx.bounds, ctx.group = bounds, group
        sizes = [last - first for first, last in bounds]
        # gloo gathers equal shapes only, so shorter shards travel with a token of padding.
        padded = shard.new_zeros(*shard.shape[:2], max(sizes), shard.shape[3])
        padded[:, :, : shard.shape[2]] = shard
        shards = [torch.empty_like(padded) for _ in bounds]
        dist.all_gather(shards, padded, group=group)
        pairs = zip(shards, sizes, strict=True)
        return torch.cat([other[:, :, :size] for other, size in pairs], dim=2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        # A reduce_scatter would move half as much, but needs equal shards.
        total = grads[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        first, last = ctx.bounds[dist.get_rank(ctx.group)]
        return total[:, :, first:last], None, None


def gathered_attention(
    q: Tensor, k: Tensor, v: Tensor, segments: Tensor, group: Group = None
) -> Tensor:
    """Attention of this rank's queries to all tokens, after gathering all keys and values.

    Ten lines and any attention kernel; but each rank holds every key and value of the layer.

    Collective: every rank of the group, in forward and again in backward.

    Args:
        q: of this rank's tokens, (B, H, t, D); so are k and v.
        segments: of whole rows, (B, T).

    Raises:
        ValueError: before the first collective, if q isn't this rank's shard.
    """
    bounds = check_shard(q, segments, group)
    first, last = bounds[dist.get_rank(group)]
    gather: Callable[..., Tensor] = GatherTokens.apply
    k, v = gather(torch.cat([k, v]), bounds, group).chunk(2)
    same = segments[:, first:last, None] == segments[:, None, :]  # (B, t, T)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=same[:, None])


# %%
class Ring:
    """The ranks of a group in a circle: each sends to the next and receives from the last."""

    def __init__(self, segments: Tensor, bounds: list[tuple[int, int]], group: Group) -> None:
        self.segments, self.bounds, self.group = segments, bounds, group
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)

    def owner(self, step: int) -> int:
        """Whose block this rank has after ``step`` rotations; its own at first and after W."""
        return (self.rank - step) % self.world_size

    def mask(self, step: int) -> Tensor:
        """Which of my queries may see which keys of the block that I have: (B, 1, t, t')."""
        (first, last), (low, high) = self.bounds[self.rank], self.bounds[self.owner(step)]
        mine, theirs = self.segments[:, first:last], self.segments[:, low:high]
        return (mine[:, :, None] == theirs[:, None, :])[:, None]

    def rotate(self, block: Tensor, step: int) -> Callable[[], Tensor]:
        """Start passing on the block of ``step``; call the result to wait for the next one.

        Send and receive start together: if every rank waited for its send first, none would
        get to its receive.

        Collective: every rank of the group, at the same step.
        """
        if self.world_size == 1:
            return lambda: block
        first, last = self.bounds[self.owner(step + 1)]
        incoming = block.new_empty(*block.shape[:2], last - first, block.shape[3])
        # P2POp takes ranks of the whole job, which a group may number differently.
        members = dist.get_process_group_ranks(self.group)
        before = members[(self.rank - 1) % self.world_size]
        behind = members[(self.rank + 1) % self.world_size]
        send = dist.P2POp(dist.isend, block, behind, self.group)
        receive = dist.P2POp(dist.irecv, incoming, before, self.group)
        works = dist.batch_isend_irecv([send, receive])

        def wait() -> Tensor:
            for work in works:
                work.wait()
            return incoming

        return wait


def block_weights(q: Tensor, k: Tensor, mask: Tensor, lse: Tensor | None) -> tuple[Tensor, ...]:
    """exp(S - lse) for one block of keys, and lse: the block's own unless one is given."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~mask, -torch.inf)
    if lse is None:
        lse = scores.logsumexp(-1, keepdim=True)
    # A query that sees nothing in this block has lse = -inf, and -inf - -inf is NaN.
    return (scores - lse.clamp(min=torch.finfo(lse.dtype).min)).exp(), lse


def merge_blocks(
    out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor
) -> tuple[Tensor, ...]:
    """Attention over two sets of keys from attention over each.

    Both are sums of exp(S) * v divided by exp(lse). So each counts by its share of the sum:

        out = out * exp(lse - total) + other * exp(other_lse - total),
        total = log(exp(lse) + exp(other_lse))
    """
    total = torch.logaddexp(lse, other_lse)
    return out * (lse - total).exp() + other * (other_lse - total).exp(), total


class RingAttention(torch.autograd.Function):
    """Blocks of keys and values go around; what is kept is this rank's q, k, v, out and lse."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, ring: Ring) -> Tensor:
        dtype = torch.promote_types(q.dtype, torch.float32)  # sums over a whole row
        block = torch.cat([k, v])  # one message per rotation
        with torch.autocast(q.device.type, enabled=False):
            for step in range(ring.world_size):
                is_last = step == ring.world_size - 1
                arrival = None if is_last else ring.rotate(block, step)
                keys, values = block.to(dtype).chunk(2)
                weights, block_lse = block_weights(q.to(dtype), keys, ring.mask(step), None)
                if step == 0:
                    # Its own block first: a query sees at least itself, so lse is finite.
                    out, lse = weights @ values, block_lse
                else:
                    out, lse = merge_blocks(out, lse, weights @ values, block_lse)
                if arrival:
                    block = arrival()
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.ring = ring
        return out.to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The blocks go around again, and the gradients of each travel with it.

        With P = exp(S - lse), out = P v and S = q.k / sqrt(D):

            dv = P^T dout    dS = P * (dout v^T - sum(dout * out))    dq = dS k    dk = dS^T q
        """
        q, k, v, out, lse = ctx.saved_tensors
        ring, scale = ctx.ring, q.shape[-1] ** -0.5
        block = torch.cat([k, v])
        q, grad = q.to(out.dtype), grad.to(out.dtype)
        grad_q, grad_block = torch.zeros_like(q), torch.zeros_like(block, dtype=out.dtype)
        with torch.autocast(q.device.type, enabled=False):
            dot = (grad * out).sum(-1, keepdim=True)
            for step in range(ring.world_size):
                is_last = step == ring.world_size - 1
                arrival = None if is_last else ring.rotate(block, step)
                keys, values = block.to(out.dtype).chunk(2)
                weights, _ = block_weights(q, keys, ring.mask(step), lse)
                grad_scores = weights * (grad @ values.mT - dot) * scale
                grad_q += grad_scores @ keys
                grad_block += torch.cat([grad_scores.mT @ q, weights.mT @ grad])
                if arrival:
                    block = arrival()
                # After W rotations, the gradients are back at the block's owner.
                grad_block = ring.rotate(grad_block, step)()
        grad_k, grad_v = grad_block.to(k.dtype).chunk(2)
        return grad_q.to(k.dtype), grad_k, grad_v, None


def ring_attention(
    q: Tensor, k: Tensor, v: Tensor, segments: Tensor, group: Group = None
) -> Tensor:
    """Attention of this rank's queries to all tokens; no rank ever holds all keys.

    A rank holds two blocks of T/W keys and values and the scores of one, and keeps none of
    them for the backward pass. Each rotation overlaps with the work on the block before it.
    Its arguments are those of attend_in_segments, except that ``segments`` are whole rows.

    Collective: every rank of the group, in forward and again in backward (and once more if
    activation checkpointing runs the layer again).

    Args:
        q: of this rank's tokens, (B, H, t, D); so are k and v.
        segments: of whole rows, (B, T).

    Raises:
        ValueError: before the first message, if q isn't this rank's shard.
    """
    ring = Ring(segments, check_shard(q, segments, group), group)
    attend: Callable[..., Tensor] = RingAttention.apply
    return attend(q, k, v, ring)
