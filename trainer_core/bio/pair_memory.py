"""What a pair representation costs: the memory that grows with the square of the length.

The question it answers: "a structure model trains on crops of 256 residues; what happens at
1,024?" Widths and counts are AlphaFold 2's (Jumper et al. 2021, supplement, Algorithms 10, 11
and 13); ESMFold's trunk has the same pair width.

The formula that is often quoted, L^2 x d_model, is wrong: d_model is the width of the state of
one residue, and no pair has it. A pair tensor has a width of its own, 128. ESM-2 (d_model 1280)
has no pair tensor at all. What is quadratic in it are attention logits, one number per head:

    L = 1024, float32      L^2 x 1280    5.0 GiB  (a tensor that doesn't exist)
    a copy of the pairs    L^2 x 128     512 MiB
    ESM-2's logits         L^2 x 20       80 MiB  per layer; a fused kernel never stores them

    L  residues    C  pair channels    H  heads    S  sequences in an alignment
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

import torch
from torch import Tensor, nn

# %%
MIB, GIB = 2**20, 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class PairTrunk:
    """Widths of a trunk of pair updates; the defaults are AlphaFold 2's Evoformer.

    All sizes are in bytes, for one protein.
    """

    num_blocks: int = 48
    pair_channels: int = 128
    triangle_channels: int = 128  # hidden channels of a triangle multiplication
    triangle_heads: int = 4
    outer_channels: int = 32  # hidden channels of the outer product mean
    dtype: torch.dtype = torch.float32

    def copy_bytes(self, num_residues: int) -> int:
        """One pair tensor: L^2 x C numbers."""
        return num_residues**2 * self.pair_channels * self.dtype.itemsize

    def inputs_bytes(self, num_residues: int) -> int:
        """One pair tensor per block: what activation checkpointing keeps of the whole trunk."""
        return self.num_blocks * self.copy_bytes(num_residues)

    def triangle_logits_bytes(self, num_residues: int) -> int:
        """Logits of one triangle attention, unless they are chunked or fused: H x L^3.

        Cubic: each of the L^2 pairs attends to the L pairs that share a residue with it.
        """
        return self.triangle_heads * num_residues**3 * self.dtype.itemsize

    def outer_product_bytes(self, num_residues: int) -> int:
        """The outer products of all pairs before they are projected to C: L^2 x 32^2."""
        return num_residues**2 * self.outer_channels**2 * self.dtype.itemsize

    def triangle_saved_bytes(self, num_residues: int) -> int:
        """What autograd keeps of one triangle multiplication without checkpointing.

        Counted tensor by tensor in TriangleMultiplication:

            4 of width C: its input, normalized, the output's gate, and what that multiplies
            8 of width 128: gate and value of a and of b, a, b, their product, normalized
            4 of width 1: mean and scale of two layer norms, in float32

        So with both widths 128, one update keeps twelve pair tensors, and a block has two.
        """
        wide = 4 * self.pair_channels + 8 * self.triangle_channels
        return num_residues**2 * (wide * self.dtype.itemsize + 4 * torch.float32.itemsize)


def attention_logits_bytes(
    num_tokens: int, num_heads: int, dtype: torch.dtype = torch.float32
) -> int:
    """Attention logits of one layer and sequence, H x L^2 numbers, if a kernel stores them."""
    return num_heads * num_tokens**2 * dtype.itemsize


def crop_table(trunk: PairTrunk, lengths: tuple[int, ...] = (256, 384, 1024)) -> str:
    """A table in MiB: what a crop costs, by what grows with it."""
    rows: list[tuple[str, ...]] = [
        ("residues", "one copy", "block inputs", "one update", "triangle logits")
    ]
    for length in lengths:
        sizes = (
            trunk.copy_bytes(length),
            trunk.inputs_bytes(length),
            trunk.triangle_saved_bytes(length),
            trunk.triangle_logits_bytes(length),
        )
        rows.append((f"{length:,}", *(f"{size / MIB:,.0f}" for size in sizes)))
    return "\n".join("".join(f"{cell:>17}" for cell in row) for row in rows)


# %%
class SavedTensors:
    """Counts what autograd keeps for the backward pass of the block it surrounds.

    Each storage counts once, however many operations keep it, and parameters don't count: they
    are there anyway.

        with SavedTensors(model) as saved:
            loss = model(inputs).sum()
        saved.num_bytes
    """

    def __init__(self, *modules: nn.Module) -> None:
        parameters = (p for module in modules for p in module.parameters())
        self.not_counted = {p.untyped_storage().data_ptr() for p in parameters}
        # Holding on to the tensors keeps an address from being used twice.
        self.kept: dict[int, Tensor] = {}
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.count, lambda saved: saved)

    def count(self, tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in self.not_counted:
            self.kept[address] = tensor.detach()
        return tensor

    @property
    def num_bytes(self) -> int:
        """Bytes of the distinct storages kept so far."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self.kept.values())

    def __enter__(self) -> SavedTensors:
        self.hooks.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.hooks.__exit__(kind, error, traceback)


# %%
class TriangleMultiplication(nn.Module):
    """Update pair (i, j) from the pairs (i, k) and (j, k) for all k: (L, L, C) to (L, L, C).

    Algorithm 11, "outgoing" edges. Cubic in time, but what it keeps is quadratic.
    """

    def __init__(self, pair_channels: int, hidden_channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(pair_channels)
        self.a, self.a_gate, self.b, self.b_gate = (
            nn.Linear(pair_channels, hidden_channels) for _ in range(4)
        )
        self.product_norm = nn.LayerNorm(hidden_channels)
        self.out = nn.Linear(hidden_channels, pair_channels)
        self.out_gate = nn.Linear(pair_channels, pair_channels)

    def forward(self, pairs: Tensor) -> Tensor:
        pairs = self.norm(pairs)
        a = self.a_gate(pairs).sigmoid() * self.a(pairs)
        b = self.b_gate(pairs).sigmoid() * self.b(pairs)
        product = torch.einsum("ikc,jkc->ijc", a, b)
        update: Tensor = self.out_gate(pairs).sigmoid() * self.out(self.product_norm(product))
        return update


class OuterProductMean(nn.Module):
    """From an alignment to pairs: (S, L, channels) to (L, L, C). Algorithm 10."""

    def __init__(self, channels: int, outer_channels: int, pair_channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.a, self.b = (nn.Linear(channels, outer_channels) for _ in range(2))
        self.out = nn.Linear(outer_channels**2, pair_channels)

    def forward(self, alignment: Tensor) -> Tensor:
        alignment = self.norm(alignment)
        # Divided here, not after the product: that tensor is the largest of the trunk.
        a, b = self.a(alignment) / len(alignment), self.b(alignment)
        outer = torch.einsum("sic,sjd->ijcd", a, b)  # (L, L, 32, 32)
        pairs: Tensor = self.out(outer.flatten(2))
        return pairs
