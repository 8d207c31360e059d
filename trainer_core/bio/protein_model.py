"""A small masked language model for proteins: the decoder's sibling, attending both ways.

Rows may be padded, or packed with several sequences. Either way a token attends to the tokens
of its own segment and to nothing else.

    B  rows    T  tokens in a row    H  heads    D  width of a head    V  33 tokens, as in ESM
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

# %% active="py"
from trainer_core.settings import UserError

# %%
VOCABULARY_SIZE = 33
PADDING_ID = 1

# From queries, keys and values, each (B, H, T, D), and segments, (B, T), to (B, H, T, D).
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def segments_of(tokens: Tensor, padding_id: int = PADDING_ID) -> Tensor:
    """Segment ids of rows that hold one sequence each: 1 for its tokens, 0 for padding."""
    return (tokens != padding_id).long()


def positions_within(segments: Tensor) -> Tensor:
    """Each token's place in its segment, from 0; (B, T) segment ids to (B, T) positions.

    Call it on whole rows. A rank that holds a shard of a row can't know where its first
    segment began.

    Args:
        segments: neighbors in a row have different ids, and 0 is padding.
    """
    index = torch.arange(segments.shape[1], device=segments.device).expand_as(segments)
    begins = torch.ones_like(segments, dtype=torch.bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return index - torch.where(begins, index, 0).cummax(dim=1).values


def attend_in_segments(q: Tensor, k: Tensor, v: Tensor, segments: Tensor) -> Tensor:
    """Softmax attention between tokens of the same segment.

    Padding attends to padding. So no row of the mask is empty, and no output is NaN: a softmax
    over nothing is 0 / 0, and the NaN would reach every gradient even at a weight of zero.
    """
    same = segments[:, :, None] == segments[:, None, :]  # (B, T, T)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=same[:, None])


def rotation_angles(positions: Tensor, head_width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines that turn a head's pairs of channels by position; each (B, 1, T, D/2).

    In float32 whatever the autocast: bf16 has 8 significant bits, so above 256 it gives
    neighboring residues the same position.
    """
    pairs = torch.arange(0, head_width, 2, device=positions.device, dtype=torch.float32)
    angles = positions[:, None, :, None].float() * 10000.0 ** (-pairs / head_width)
    return angles.cos(), angles.sin()


def rotate(heads: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair of channels, so that q.k depends on the distance of two positions only."""
    cosine, sine = angles
    first, second = heads.chunk(2, dim=-1)
    turned = torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)
    return turned.to(heads.dtype)


# %%
class ProteinBlock(nn.Module):
    """Pre-norm attention and feed-forward; dropout on what each adds to the residual stream."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, hidden: Tensor, segments: Tensor, angles: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        qkv = self.qkv(self.attention_norm(hidden)).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, H, T, D)
        heads = attend(rotate(q, angles), rotate(k, angles), v, segments)
        attended = self.attention_out(heads.transpose(1, 2).flatten(2))
        hidden = hidden + self.dropout(attended)
        changed: Tensor = hidden + self.dropout(self.feed_forward(hidden))
        return changed  # (B, T, width)


class ProteinEncoder(nn.Module):
    """A masked language model: (B, T) token ids to (B, T, V) logits of the hidden residues.

    Initialized from the global random state. Positions are rotations, as in ESM-2: no table
    limits the length. Logits of padding mean nothing; the loss must leave them out.

    Args:
        checkpoint_activations: keep only each block's input, and run the block again in the
            backward pass: about a third more compute for a fraction of the memory.

    Raises:
        UserError: if the width can't be split into heads with an even number of channels.
    """

    def __init__(
        self,
        width: int,
        num_layers: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        checkpoint_activations: bool = False,
        padding_id: int = PADDING_ID,
    ) -> None:
        super().__init__()
        if width % (2 * num_heads):
            raise UserError(
                f"hidden_dim={width} isn't a multiple of 2 * num_heads={2 * num_heads}. Each "
                "head gets an equal slice of the width, and rotary positions turn its channels "
                "in pairs. Change one of them."
            )
        self.head_width = width // num_heads
        self.checkpoint_activations = checkpoint_activations
        self.padding_id = padding_id
        self.tokens = nn.Embedding(VOCABULARY_SIZE, width)
        self.blocks = nn.ModuleList(
            ProteinBlock(width, num_heads, dropout) for _ in range(num_layers)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VOCABULARY_SIZE))

    def forward(
        self,
        tokens: Tensor,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
        attend: Attend = attend_in_segments,
    ) -> Tensor:
        """Logits, (B, T, V).

        Args:
            segments: which sequence of its row a token belongs to; 0 is padding. Default: one
                sequence per row, then padding.
            positions: places within segments. Default: counted from each segment's first token.
            attend: how tokens attend; context_parallel has versions for rows shared by ranks,
                which take whole rows of segments, and need ``positions``.
        """
        if segments is None:
            segments = segments_of(tokens, self.padding_id)
        if positions is None:
            positions = positions_within(segments)
        hidden = self.tokens(tokens)
        angles = rotation_angles(positions, self.head_width)
        for block in self.blocks:
            if self.checkpoint_activations and torch.is_grad_enabled():
                # Passed explicitly: torch warns without it, and means to make that an error.
                # The random state is restored for the second run (preserve_rng_state, on by
                # default), so dropout drops the same units again.
                hidden = checkpoint(
                    block, hidden, segments, angles, attend, use_reentrant=False
                )
            else:
                hidden = block(hidden, segments, angles, attend)
        logits: Tensor = self.head(hidden)
        return logits
