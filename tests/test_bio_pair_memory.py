"""The calculator's numbers, and real tensors that take exactly as many bytes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from trainer_core.bio.pair_memory import (
    GIB,
    MIB,
    OuterProductMean,
    PairTrunk,
    SavedTensors,
    TriangleMultiplication,
    attention_logits_bytes,
    crop_table,
)

ALPHAFOLD = PairTrunk()


class TestCalculator:
    def test_a_pair_tensor_of_1024_residues_is_512_mib(self) -> None:
        """With d_model for the width of a pair, it would be 5 GiB, of a tensor nobody has."""
        assert ALPHAFOLD.copy_bytes(1024) == 512 * MIB
        assert PairTrunk(pair_channels=1280).copy_bytes(1024) == 5 * GIB == 5_368_709_120

    def test_the_trunk_s_block_inputs_are_48_copies(self) -> None:
        """What checkpointing leaves is still linear in depth and quadratic in length."""
        assert ALPHAFOLD.inputs_bytes(1024) == 24 * GIB
        assert PairTrunk(dtype=torch.bfloat16).inputs_bytes(1024) == 12 * GIB

    @pytest.mark.parametrize(("crop", "mib"), [(256, 32), (384, 72)])
    def test_crops_cost_their_square(self, crop: int, mib: int) -> None:
        """From 256 to 384 is half as much again in length, and 2.25 times the memory."""
        assert ALPHAFOLD.copy_bytes(crop) == mib * MIB

    def test_logits_of_esm_2_are_80_mib_per_layer(self) -> None:
        """ESM-2's quadratic term has 20 heads, not 1280 channels."""
        assert attention_logits_bytes(1024, 20) == 80 * MIB
        assert attention_logits_bytes(1024, 20, torch.bfloat16) == 40 * MIB

    def test_triangle_attention_is_cubic(self) -> None:
        """16 GiB for one layer's logits: the first thing to chunk or fuse."""
        assert ALPHAFOLD.triangle_logits_bytes(1024) == 16 * GIB
        assert ALPHAFOLD.triangle_logits_bytes(512) == 2 * GIB

    def test_outer_products_are_eight_times_their_pair_tensor(self) -> None:
        """32 x 32 products per pair, before they become 128 channels."""
        assert ALPHAFOLD.outer_product_bytes(1024) == 8 * ALPHAFOLD.copy_bytes(1024)

    def test_an_update_keeps_twelve_pair_tensors(self) -> None:
        """Checkpointing isn't an option for a trunk; it is a condition."""
        extra = 4 * 1024**2 * 4
        assert ALPHAFOLD.triangle_saved_bytes(1024) == 12 * ALPHAFOLD.copy_bytes(1024) + extra

    def test_the_table_has_a_row_per_crop(self) -> None:
        """A chapter prints it."""
        lines = [line.split("  ") for line in crop_table(ALPHAFOLD).splitlines()]
        cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
        assert cells[0] == [
            "residues",
            "one copy",
            "block inputs",
            "one update",
            "triangle logits",
        ]
        assert cells[1:] == [
            ["256", "32", "1,536", "385", "256"],
            ["384", "72", "3,456", "866", "864"],
            ["1,024", "512", "24,576", "6,160", "16,384"],
        ]


def saved_by(module: nn.Module, *shape: int) -> SavedTensors:
    inputs = torch.randn(shape, requires_grad=True)
    with SavedTensors(module) as saved:
        module(inputs)
    return saved


class TestMeasured:
    @pytest.mark.parametrize(
        ("length", "channels", "hidden"), [(16, 8, 8), (13, 8, 12), (7, 16, 4)]
    )
    def test_a_triangle_update_keeps_exactly_what_the_formula_says(
        self, length: int, channels: int, hidden: int
    ) -> None:
        """A formula that nobody measured is how 6.7 GB got into print."""
        trunk = PairTrunk(pair_channels=channels, triangle_channels=hidden)
        saved = saved_by(TriangleMultiplication(channels, hidden), length, length, channels)
        assert saved.num_bytes == trunk.triangle_saved_bytes(length)

    @pytest.mark.parametrize(("length", "outer"), [(9, 8), (16, 4)])
    def test_the_outer_products_are_kept_once(self, length: int, outer: int) -> None:
        """Divided after the product, the trunk's largest tensor would exist twice."""
        trunk = PairTrunk(outer_channels=outer)
        saved = saved_by(OuterProductMean(10, outer, 6), 5, length, 10)
        residues = 5 * length
        # The alignment and its normalized copy, two statistics, and a and b.
        rest = 4 * residues * (10 + 10 + 2 + 2 * outer)
        assert saved.num_bytes == trunk.outer_product_bytes(length) + rest

    def test_a_pair_tensor_takes_what_the_calculator_says(self) -> None:
        """The unit of every other number."""
        for dtype in (torch.float32, torch.bfloat16):
            trunk = PairTrunk(pair_channels=6, dtype=dtype)
            pairs = torch.zeros(11, 11, 6, dtype=dtype)
            assert pairs.untyped_storage().nbytes() == trunk.copy_bytes(11)

    def test_the_modules_are_alphafold_s_algorithms(self) -> None:
        """Bytes of a module that computes something else prove nothing."""
        torch.manual_seed(0)
        triangle, pairs = TriangleMultiplication(6, 5).double(), torch.randn(4, 4, 6).double()
        z = triangle.norm(pairs)
        a = triangle.a_gate(z).sigmoid() * triangle.a(z)
        b = triangle.b_gate(z).sigmoid() * triangle.b(z)
        for i, j in ((0, 3), (2, 1)):
            product = sum((a[i, k] * b[j, k] for k in range(4)), torch.zeros(5).double())
            gate = triangle.out_gate(z[i, j]).sigmoid()
            wanted = gate * triangle.out(triangle.product_norm(product))
            assert torch.allclose(triangle(pairs)[i, j], wanted)
        outer, alignment = OuterProductMean(7, 3, 6).double(), torch.randn(5, 4, 7).double()
        m = outer.norm(alignment)
        mean = sum(
            (torch.outer(outer.a(m)[s, 1], outer.b(m)[s, 2]) for s in range(5)),
            torch.zeros(3, 3).double(),
        )
        assert torch.allclose(outer(alignment)[1, 2], outer.out(mean.flatten() / 5))


class TestSavedTensors:
    def test_a_storage_counts_once_and_parameters_do_not(self) -> None:
        """Counted twice, a shared input makes a layer look twice as hungry."""
        inputs = torch.randn(3, 4, requires_grad=True)
        layer = nn.Linear(4, 4, bias=False)

        def work(inputs: Tensor) -> Tensor:
            return layer(inputs) * inputs.sin()  # keeps inputs twice, both factors once

        with SavedTensors(layer) as saved:
            work(inputs)
        assert saved.num_bytes == 3 * inputs.nbytes
        with SavedTensors() as with_weights:
            work(inputs)
        assert with_weights.num_bytes == 3 * inputs.nbytes + layer.weight.nbytes

    def test_gradients_are_unchanged_and_counting_stops_at_the_end(self) -> None:
        """A measurement that changes what it measures."""
        inputs = torch.randn(5, requires_grad=True)
        with SavedTensors() as saved:
            out = inputs.exp().sum()
        counted = saved.num_bytes
        out.backward()
        inputs.exp().sum()
        assert saved.num_bytes == counted == inputs.nbytes
        assert inputs.grad is not None
        assert torch.equal(inputs.grad, inputs.detach().exp())
