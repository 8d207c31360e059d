"""The protein model: what a token may see, and what activation checkpointing changes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from trainer_core.bio.pair_memory import SavedTensors
from trainer_core.bio.protein_model import (
    ProteinEncoder,
    attend_in_segments,
    positions_within,
    rotate,
    rotation_angles,
    segments_of,
)
from trainer_core.model import weights_sha256
from trainer_core.settings import UserError


def encoder_of(width: int = 16, num_layers: int = 2, **settings: Any) -> ProteinEncoder:
    torch.manual_seed(0)
    return ProteinEncoder(width, num_layers, 2, **settings)


def residues(length: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(4, 24, (1, length), generator=draw)


def assert_near(ours: Tensor, theirs: Tensor, atol: float = 1e-6) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


class TestPadding:
    @pytest.mark.parametrize("padding", [1, 5])
    def test_a_sequence_alone_equals_itself_padded(self, padding: int) -> None:
        """A prediction that depends on the longest protein of its batch is no prediction."""
        model, alone = encoder_of(), residues(9)
        padded = F.pad(alone, (0, padding), value=1)
        assert_near(model(padded)[:, :9], model(alone))
        assert_near(model(padded.expand(3, -1))[2:, :9], model(alone))

    def test_gradients_are_those_of_the_sequence_alone(self) -> None:
        """Padding that is masked in the loss but not in attention still trains the model."""
        model, alone = encoder_of(), residues(9)
        grads = []
        for row in (alone, F.pad(alone, (0, 7), value=1)):
            model.zero_grad()
            F.cross_entropy(model(row)[0, :9], alone[0]).backward()
            grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        for one, other in zip(*grads, strict=True):
            assert_near(one, other)
        padding_vector = grads[1][0][1]
        assert not padding_vector.any()

    def test_a_row_of_padding_only_gives_numbers(self) -> None:
        """A softmax over nothing is NaN, and reaches all weights at a loss weight of zero."""
        model = encoder_of()
        logits = model(torch.ones(2, 5, dtype=torch.long))
        (0 * logits.sum()).backward()
        assert logits.isfinite().all()
        assert not any(p.grad.any() for p in model.parameters() if p.grad is not None)

    def test_other_alphabets_may_pad_with_another_id(self) -> None:
        """With 0 as padding, ESM's class token would vanish from attention."""
        model, alone = encoder_of(padding_id=0), residues(9)
        assert_near(model(F.pad(alone, (0, 4)))[:, :9], model(alone))
        assert torch.equal(segments_of(torch.tensor([[4, 0, 1]]), 0), torch.tensor([[1, 0, 1]]))


class TestPacking:
    @settings(max_examples=10)
    @given(
        lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5), padding=st.integers(0, 3)
    )
    def test_packed_sequences_equal_themselves_alone(
        self, lengths: list[int], padding: int
    ) -> None:
        """A residue that sees its neighbor in the row learns contacts that don't exist."""
        model = encoder_of()
        sequences = [residues(length, seed) for seed, length in enumerate(lengths)]
        row = F.pad(torch.cat(sequences, dim=1), (0, padding), value=1)
        numbers = torch.arange(1, len(lengths) + 1).repeat_interleave(torch.tensor(lengths))
        logits = model(row, F.pad(numbers, (0, padding))[None])
        found = logits[:, : sum(lengths)].split(lengths, dim=1)
        for ours, sequence in zip(found, sequences, strict=True):
            assert_near(ours, model(sequence))

    def test_positions_restart_with_each_segment(self) -> None:
        """Position 4,000 of a packed row would be a place that no protein of the row has."""
        segments = torch.tensor([[1, 1, 1, 2, 2, 3, 0, 0], [7, 2, 2, 2, 2, 2, 2, 2]])
        places = torch.tensor([[0, 1, 2, 0, 1, 0, 0, 1], [0, 0, 1, 2, 3, 4, 5, 6]])
        assert torch.equal(positions_within(segments), places)

    def test_both_neighbors_are_seen(self) -> None:
        """A masked language model that is causal by mistake guesses from one side."""
        model, tokens = encoder_of(), residues(7)
        base = model(tokens)
        for place in range(7):
            changed = tokens.clone()
            changed[0, place] = 25
            assert ((model(changed) - base).abs().amax(dim=(0, 2)) > 1e-5).all()

    def test_the_same_residues_in_another_order_are_another_protein(self) -> None:
        """Without positions, a protein is a bag of residues."""
        model = encoder_of()
        one, other = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[5, 7, 6, 8]])
        assert ((model(one) - model(other))[0, 0].abs() > 1e-4).any()


class TestPositions:
    def test_attention_depends_on_distances_only(self) -> None:
        """A shifted protein is the same protein; ranks count from their own offset."""
        q, k = torch.randn(2, 1, 1, 6, 8).double()
        products = []
        for start in (0, 1000):
            angles = rotation_angles(torch.arange(start, start + 6)[None], 8)
            products.append(rotate(q, angles) @ rotate(k, angles).mT)
        assert_near(products[0], products[1], 1e-3)
        assert (products[0] - q @ k.mT).abs().max() > 0.1

    def test_distant_positions_differ_under_bf16_too(self) -> None:
        """In bf16, positions 29,900 to 30,010 are one: a titin without order."""
        assert torch.tensor(29_900).bfloat16() == torch.tensor(30_010).bfloat16()
        with torch.autocast("cpu", torch.bfloat16):
            cosine, _ = rotation_angles(torch.arange(29_900, 29_964)[None], 8)
        assert cosine.dtype == torch.float32
        assert len(set(cosine[0, 0, :, 0].tolist())) == 64

    def test_rotation_keeps_lengths_and_types(self) -> None:
        """A rotation that scales makes far tokens louder; one in float32 undoes autocast."""
        heads = torch.randn(2, 2, 5, 8)
        turned = rotate(heads, rotation_angles(torch.arange(5).expand(2, -1), 8))
        assert_near(turned.norm(dim=-1), heads.norm(dim=-1), 1e-5)
        half = heads.bfloat16()
        angles = rotation_angles(torch.arange(5).expand(2, -1), 8)
        assert rotate(half, angles).dtype == torch.bfloat16


def loss_and_gradients(model: ProteinEncoder, tokens: Tensor) -> list[Tensor]:
    torch.manual_seed(7)
    model.zero_grad()
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [loss.detach(), *grads, torch.rand(1)]


class TestActivationCheckpointing:
    def test_loss_gradients_and_random_state_are_bit_identical_with_dropout(self) -> None:
        """If the second run drops other units, gradients belong to a loss nobody computed."""
        tokens = residues(11).expand(3, -1)
        plain = loss_and_gradients(encoder_of(dropout=0.3), tokens)
        ours = loss_and_gradients(encoder_of(dropout=0.3, checkpoint_activations=True), tokens)
        for one, other in zip(plain, ours, strict=True):
            assert torch.equal(one, other)
        without_dropout = loss_and_gradients(encoder_of(), tokens)
        assert not torch.equal(without_dropout[0], plain[0])

    def test_it_keeps_one_input_per_block(self) -> None:
        """Checkpointing that is on and saves nothing costs a third more time for no memory."""
        tokens, kept = residues(64).expand(4, -1), {}
        for layers, is_on in itertools.product((2, 4), (False, True)):
            model = encoder_of(32, layers, checkpoint_activations=is_on)
            with SavedTensors(model) as saved:
                model(tokens).sum()
            kept[layers, is_on] = saved.num_bytes
        hidden = tokens.numel() * 32 * 4
        assert kept[4, True] - kept[2, True] == 2 * hidden
        assert kept[4, False] - kept[2, False] > 2 * 14 * hidden

    def test_reentrance_is_chosen_and_not_left_to_the_default(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """torch warns about the default, and means to make it an error."""
        calls = []

        def recorded(block: nn.Module, *inputs: Any, **options: Any) -> Any:
            calls.append(options)
            return block(*inputs)

        monkeypatch.setattr("trainer_core.bio.protein_model.checkpoint", recorded)
        model, tokens = encoder_of(checkpoint_activations=True), residues(5)
        model(tokens)
        assert calls == [{"use_reentrant": False}] * 2
        with torch.no_grad():
            model(tokens)
        assert len(calls) == 2  # nothing to save memory for


class TestProteinEncoder:
    def test_logits_have_a_column_for_each_of_the_33_tokens(self) -> None:
        """ESM's vocabulary; one column less and the last id is out of range."""
        assert encoder_of()(residues(6)).shape == (1, 6, 33)

    def test_the_same_random_state_makes_the_same_weights(self) -> None:
        """Ranks and restarts start from the same weights."""
        shas = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            shas.append(weights_sha256(ProteinEncoder(16, 2, 2)))
        assert shas[0] == shas[1] != shas[2]

    @pytest.mark.parametrize(("width", "num_heads"), [(18, 4), (20, 4), (6, 2)])
    def test_a_width_that_cannot_be_split_is_refused(self, width: int, num_heads: int) -> None:
        """torch's own message is about shapes, one layer deeper and one process later."""
        with pytest.raises(UserError, match=rf"hidden_dim={width} isn't a multiple of"):
            ProteinEncoder(width, 1, num_heads)

    def test_attention_within_segments_is_torch_s_on_each_alone(self) -> None:
        """A mask with the wrong sign attends to everything else."""
        q, k, v = torch.randn(3, 1, 2, 5, 4).double()
        segments = torch.tensor([[1, 1, 2, 2, 2]])
        out = attend_in_segments(q, k, v, segments)
        for part in (slice(0, 2), slice(2, 5)):
            alone = F.scaled_dot_product_attention(q[:, :, part], k[:, :, part], v[:, :, part])
            assert_near(out[:, :, part], alone, 1e-12)

    def test_it_learns_to_fill_in_a_repeat(self) -> None:
        """All the pieces may be right and the gradient still not reach the embedding."""
        torch.manual_seed(0)
        model = ProteinEncoder(32, 1, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        motif = torch.tensor([4, 9, 14, 19]).repeat(3)
        losses = []
        for _ in range(150):
            starts = torch.randint(4, (8, 1))
            rows = motif[(starts + torch.arange(8)) % 12]
            hidden = torch.rand(rows.shape) < 0.2
            hidden[0, 0] = True
            logits = model(torch.where(hidden, 32, rows))
            loss = F.cross_entropy(logits[hidden], rows[hidden])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[0] > 3 > 0.3 > losses[-1]
