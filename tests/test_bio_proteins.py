"""Proteins: ESM's tokens, masks any rank can draw, rows without leaks, one mean for all."""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from trainer_core.bio.loss_terms import mean_over_ranks, summed_token_loss
from trainer_core.bio.proteins import (
    CLS_TOKEN,
    EOS_TOKEN,
    ESM_RESIDUES,
    ESM_TOKENS,
    FIRST_RESIDUE,
    MASK_TOKEN,
    NO_TARGET,
    NUM_STANDARD,
    PAD_TOKEN,
    EncodedProteins,
    MaskedProteins,
    MaskedSequence,
    ProteinBatch,
    collate_rows,
    decode_protein,
    encode_protein,
    mask_residues,
    num_masked,
    segment_mask,
)
from trainer_core.config import TrainConfig
from trainer_core.data import SampleKey
from trainer_core.distributed import maybe_init_dist
from trainer_core.local_launcher import LocalRanks
from trainer_core.settings import UserError

# Ranks cannot import a test module; its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

# The first residues of human hemoglobin's alpha chain (UniProt P69905).
HEMOGLOBIN = "MVLSPADKTNVKAAWGKVGAHAGEYGAEALERMFLSFPTTKTYFPHFDLSHGSAQVKGHG"

residues_of = st.text(alphabet=ESM_RESIDUES, min_size=1, max_size=80)


def proteins_of(count: int, longest: int = 60, seed: int = 0) -> EncodedProteins:
    draw = np.random.default_rng(seed)
    letters = np.array(list(ESM_RESIDUES))
    lengths = draw.integers(1, longest, count)
    texts = ["".join(draw.choice(letters, length)) for length in lengths]
    return EncodedProteins([f"P{row}" for row in range(count)], texts)


class TestTokens:
    def test_ids_are_those_of_esm(self) -> None:
        """With another order, ESM's weights read another protein, and nothing fails."""
        assert len(ESM_TOKENS) == len(set(ESM_TOKENS)) == 33
        known = {"<cls>": 0, "<pad>": 1, "<eos>": 2, "<unk>": 3, "L": 4, "A": 5, "P": 14}
        known |= {"K": 15, "Q": 16, "N": 17, "F": 18}
        known |= {"C": 23, "X": 24, "O": 28, ".": 29, "-": 30, "<null_1>": 31, "<mask>": 32}
        assert {token: ESM_TOKENS.index(token) for token in known} == known
        assert (CLS_TOKEN, PAD_TOKEN, EOS_TOKEN, MASK_TOKEN) == (0, 1, 2, 32)
        standard = ESM_RESIDUES[:NUM_STANDARD]
        assert sorted(standard) == sorted("ACDEFGHIKLMNPQRSTVWY")

    @given(residues_of)
    def test_decoding_gives_back_the_sequence(self, sequence: str) -> None:
        """A residue that changes on the way is a mutation that nobody made."""
        ids = encode_protein(sequence, "record 1")
        assert ids.tolist() == [ESM_TOKENS.index(letter) for letter in sequence]
        assert decode_protein(ids) == sequence
        assert decode_protein(torch.tensor([0, 4, 32, 2])) == "<cls>L<mask><eos>"

    @pytest.mark.parametrize(
        ("sequence", "position"),
        [
            ("MVJL", 3),
            ("MVL*", 4),
            ("mVL", 1),
            ("MV-L", 3),
            ("M\u0100", 2),
            ("ML\U0001f9ec1", 3),
        ],
    )
    def test_a_letter_that_is_no_residue_is_named(self, sequence: str, position: int) -> None:
        """Read as <unk>, a file of DNA or of an alignment trains without a word."""
        letter = re.escape(repr(sequence[position - 1]))
        message = rf"record 2 \(bad\), position {position}: {letter} is not a residue"
        with pytest.raises(UserError, match=message):
            EncodedProteins(["good", "bad"], ["MVL", sequence])

    def test_an_empty_sequence_is_named(self) -> None:
        """At least one residue is masked per sequence, and this has none."""
        with pytest.raises(UserError, match=r"record 1 \(P0\): no residues"):
            EncodedProteins(["P0"], [""])

    def test_sequences_are_kept_as_a_byte_per_residue(self) -> None:
        """A list of strings is copied by every worker as it counts references."""
        proteins = EncodedProteins(["a", "b", "c"], ["MVL", "A", "GGSG"])
        assert proteins.residues.nbytes == 8
        assert [decode_protein(proteins[item]) for item in range(3)] == ["MVL", "A", "GGSG"]


class TestMasking:
    @given(residues_of, st.integers(0, 3), st.integers(0, 99))
    def test_15_percent_are_asked_and_the_rest_is_as_it_was(
        self, sequence: str, epoch: int, item: int
    ) -> None:
        """A target at a visible residue is a lesson in copying."""
        ids = encode_protein(sequence, "record 1")
        seen = mask_residues(ids, seed=1, epoch=epoch, item=item)
        asked = seen.targets != NO_TARGET
        assert asked.sum() == max(1, int(0.15 * len(sequence) + 0.5 + 1e-9))
        whole = np.array([CLS_TOKEN, *ids, EOS_TOKEN])
        assert np.array_equal(seen.tokens[~asked], whole[~asked])
        assert np.array_equal(seen.targets[asked], whole[asked])
        assert not asked[[0, -1]].any()  # <cls> and <eos>
        swapped = seen.tokens[asked & (seen.tokens != MASK_TOKEN)]
        assert (swapped >= FIRST_RESIDUE).all()
        assert (swapped < FIRST_RESIDUE + len(ESM_RESIDUES)).all()

    def test_how_many_are_asked_depends_on_the_length_only(self) -> None:
        """Else a rank has to ask the others how many terms a step's mean has."""
        assert num_masked(np.array([1, 3, 9, 10, 30, 100, 1022])).tolist() == [
            1, 1, 1, 2, 5, 15, 153,
        ]  # fmt: skip
        assert int(num_masked(20)) == 3

    def test_80_percent_are_hidden_10_replaced_and_10_kept(self) -> None:
        """If all are hidden, the model never learns to doubt a residue that it sees."""
        ids = encode_protein("A" * 20_000, "record 1")
        seen = mask_residues(ids, seed=0, epoch=0, item=0)
        asked = seen.tokens[seen.targets != NO_TARGET]
        assert np.mean(asked == MASK_TOKEN) == pytest.approx(0.8, abs=0.03)
        # A twentieth of the replaced ones are A again.
        assert np.mean(asked == ids[0]) == pytest.approx(0.1 + 0.1 / 20, abs=0.03)
        replaced = asked[(asked != MASK_TOKEN) & (asked != ids[0])]
        assert set(replaced.tolist()) == set(range(4, 24)) - {int(ids[0])}

    def test_a_visit_is_masked_by_seed_epoch_and_item_only(self) -> None:
        """A mask from a worker's generator changes with workers, ranks and every resume."""
        ids = encode_protein(HEMOGLOBIN, "P69905")

        def mask(seed: int, epoch: int, item: int) -> list[int]:
            visit = mask_residues(ids, seed=seed, epoch=epoch, item=item)
            return visit.tokens.tolist() + visit.targets.tolist()

        first = mask(1, 2, 3)
        np.random.seed(5)
        torch.manual_seed(5)
        assert mask(1, 2, 3) == first
        others = [
            mask(*key) for key in ((1, 2, 4), (1, 3, 3), (2, 2, 3), (3, 2, 1), (12, 0, 3))
        ]
        assert len({tuple(found) for found in [first, *others]}) == 6

    def test_a_crop_is_a_window_with_ends_only_where_the_protein_ends(self) -> None:
        """With <cls> in front of every window, the model can't tell a start from a cut."""
        ids = encode_protein(HEMOGLOBIN, "P69905")
        starts = set()
        for epoch in range(200):
            seen = mask_residues(ids, seed=1, epoch=epoch, item=0, crop=50)
            true = np.where(seen.targets == NO_TARGET, seen.tokens, seen.targets)
            window = decode_protein(true[true >= FIRST_RESIDUE])
            assert len(window) == 50
            start = HEMOGLOBIN.index(window)
            starts.add(start)
            assert (true[0] == CLS_TOKEN) == (start == 0)
            assert (true[-1] == EOS_TOKEN) == (start == 10)
            assert (seen.targets != NO_TARGET).sum() == num_masked(50)
        assert starts == set(range(11))


def rows_of(*sizes: int) -> list[MaskedSequence]:
    ids = np.arange(4, 24)
    return [MaskedSequence(ids[:n].astype(np.int64), np.full(n, NO_TARGET)) for n in sizes]


class Attention(nn.Module):
    """One layer that sees who it attends to, and at which position; no dropout."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.tokens = nn.Parameter(torch.randn(33, 16, generator=draw))
        self.places = nn.Parameter(torch.randn(64, 16, generator=draw))

    def forward(self, batch: ProteinBatch) -> Tensor:
        hidden = self.tokens[batch.tokens] + self.places[batch.positions]
        heads = hidden[:, None]  # (B, 1, T, 16)
        mask = segment_mask(batch.segments)
        mixed = F.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)[:, 0]
        return mixed @ self.tokens.T


class TestRows:
    def test_a_packed_row_is_its_sequences_one_after_another(self) -> None:
        """Positions that go on tell the model that the second protein began in the middle."""
        batch = collate_rows([rows_of(3, 2), rows_of(4)], width=6)
        assert len(batch) == 3
        assert batch.tokens.tolist() == [
            [4, 5, 6, 4, 5, PAD_TOKEN],
            [4, 5, 6, 7, PAD_TOKEN, PAD_TOKEN],
        ]
        assert batch.segments.tolist() == [[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 0, 0]]
        assert batch.positions.tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 0]]
        assert (batch.targets == NO_TARGET).all()

    def test_packed_sequences_get_what_each_gets_alone(self) -> None:
        """Attention across a border mixes proteins that have nothing to do with each other."""
        visits = [
            mask_residues(encode_protein(text, "row"), seed=0, epoch=0, item=0)
            for text in ("MVLSPADKT", "GG", "WWYHKRM")
        ]
        model = Attention().double()
        packed, padded = collate_rows([visits], 30), collate_rows([[v] for v in visits])
        ours = model(packed)[packed.segments > 0]
        theirs = model(padded)[padded.segments > 0]
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
        alone = torch.cat([model(collate_rows([[v]]))[0] for v in visits])
        torch.testing.assert_close(ours, alone, rtol=0, atol=1e-6)

    def test_padding_gives_no_nan(self) -> None:
        """0 * NaN is NaN: the loss leaves padding out, and its gradient comes back in."""
        model = Attention()
        batch = collate_rows([rows_of(3)], width=9)
        logits = model(batch)
        assert logits.isfinite().all()
        summed_token_loss(logits, batch.targets).backward()
        assert model.tokens.grad is not None
        assert model.tokens.grad.isfinite().all()


class TestSource:
    @pytest.mark.parametrize("layout", ["padded", "packed"])
    def test_an_epoch_shows_each_protein_once_and_counts_its_terms(self, layout: Any) -> None:
        """A wrong number of terms scales the gradient, and the loss curve looks fine."""
        proteins = proteins_of(70)
        source = MaskedProteins(proteins, 128, seed=3, layout=layout)
        shown = []
        for bin_id in range(len(source)):
            keys = [SampleKey(2, bin_id)]
            batch = source.batch(keys)
            assert batch.tokens.numel() <= 128
            assert layout == "padded" or batch.tokens.shape == (1, 128)
            assert source.num_terms([bin_id]) == (batch.targets != NO_TARGET).sum()
            true = torch.where(batch.targets == NO_TARGET, batch.tokens, batch.targets)
            text = decode_protein(true.flatten()).replace("<pad>", "")
            shown += text.removeprefix("<cls>").removesuffix("<eos>").split("<eos><cls>")
        assert sorted(shown) == sorted(decode_protein(proteins[item]) for item in range(70))
        everything = range(len(source))
        assert source.num_terms(everything) == num_masked(proteins.lengths).sum()

    def test_a_batch_of_several_bins_is_theirs_together(self) -> None:
        """A micro-batch of two packed rows is two rows."""
        source = MaskedProteins(proteins_of(70), 128, seed=3, layout="packed")
        keys = [SampleKey(1, 4), SampleKey(1, 0)]
        together = source.batch(keys)
        apart = [source.batch([key]) for key in keys]
        assert len(together) == sum(map(len, apart))
        for name in ("tokens", "targets", "segments", "positions"):
            joined = torch.cat([getattr(batch, name) for batch in apart])
            assert torch.equal(getattr(together, name), joined)

    def test_a_sequence_longer_than_the_budget_is_refused_unless_cropped(self) -> None:
        """Silently cut, the end of each long protein is never trained."""
        proteins = EncodedProteins(["a", "b"], ["MVL", "M" * 63])
        with pytest.raises(UserError, match=r"row 2: 65 tokens, and the budget is 64\."):
            MaskedProteins(proteins, 64, seed=0)
        source = MaskedProteins(proteins, 64, seed=0, crop=62)
        assert sum(len(source.batch([SampleKey(0, b)])) for b in range(len(source))) == 2
        assert source.num_terms(range(len(source))) == 9 + 1
        with pytest.raises(UserError, match="crop=0: "):
            MaskedProteins(proteins, 64, seed=0, crop=0)

    def test_the_fingerprint_names_residues_budget_layout_and_crop(self) -> None:
        """A resume on other data goes on as if nothing had happened."""
        made = [
            MaskedProteins(proteins_of(20), 128, seed=3),
            MaskedProteins(proteins_of(20), 129, seed=3),
            MaskedProteins(proteins_of(20), 128, seed=3, layout="packed"),
            MaskedProteins(proteins_of(20), 128, seed=3, crop=100),
            MaskedProteins(EncodedProteins(["a"], ["MVL"]), 128, seed=3),
            MaskedProteins(EncodedProteins(["a"], ["MVA"]), 128, seed=3),
        ]
        assert len({source.fingerprint for source in made}) == len(made)
        again = MaskedProteins(proteins_of(20), 128, seed=4)
        assert again.fingerprint == made[0].fingerprint  # the seed is the run's identity

    def test_without_samples_a_batch_still_has_a_loss_of_zero(self) -> None:
        """A rank without samples has to join the sync, and must not move the weights."""
        batch = MaskedProteins(proteins_of(5), 128, seed=3, layout="packed").batch([])
        assert len(batch) == 0
        assert torch.equal(batch.placeholder().tokens, torch.tensor([[CLS_TOKEN, EOS_TOKEN]]))
        model = Attention()
        loss = summed_token_loss(model(batch), batch.targets)
        loss.backward()
        assert loss.item() == 0
        grads = [parameter.grad for parameter in model.parameters()]
        assert all(grad is not None and not grad.any() for grad in grads)


def test_a_step_without_terms_has_a_loss_of_zero() -> None:
    """0 / 0 is NaN, and the update that follows it ends the run."""
    loss = mean_over_ranks(torch.zeros((), requires_grad=True), 0)
    assert loss.item() == 0


# ---------------------------------------------------------------- on several ranks

# Unequal on purpose: bins of one long sequence and of many short ones, dealt to three ranks at
# most, with one bin too few for all of them to have two.
BINS = [0, 3, 5, 6]


def source_of_ranks() -> MaskedProteins:
    return MaskedProteins(proteins_of(40), 128, seed=3)


def gradient_on(rank: int, world_size: int, means: str) -> list[float]:
    """The gradient after one step on this rank's share of the bins; an extra one is empty."""
    source, model = source_of_ranks(), Attention()
    wrapped = DistributedDataParallel(model) if world_size > 1 else model
    keys = [SampleKey(1, bin_id) for bin_id in BINS[: world_size + 1]]
    mine = [] if means == "empty" and rank == world_size - 1 else keys[rank::world_size]
    batch = source.batch(mine)
    total = summed_token_loss(wrapped(batch), batch.targets)
    num_terms = source.num_terms([key.sample for key in mine])
    if means == "of means":
        loss = total / max(num_terms, 1)
    else:
        # One count may serve every micro-batch of a step, so it must stay as it is.
        count = torch.tensor(num_terms)
        loss = mean_over_ranks(total, count)
        assert count == num_terms
    loss.backward()
    assert model.tokens.grad is not None
    return model.tokens.grad.flatten().tolist()


def all_gradients(world_size: int) -> dict[str, list[float]]:
    info = maybe_init_dist(TrainConfig(world_size=world_size, device="cpu"))
    kinds = ("over terms", "of means", "empty")
    found = {kind: gradient_on(info.rank, world_size, kind) for kind in kinds}
    dist.destroy_process_group() if dist.is_initialized() else None
    return found


def expected_gradient(bins: list[int]) -> Tensor:
    source, model = source_of_ranks(), Attention()
    batch = source.batch([SampleKey(1, bin_id) for bin_id in bins])
    F.cross_entropy(model(batch).flatten(0, 1), batch.targets.flatten()).backward()
    assert model.tokens.grad is not None
    return model.tokens.grad.flatten()


@pytest.mark.ranks
class TestRanks:
    @pytest.mark.parametrize("world_size", [1, 2, 3])
    def test_the_gradient_is_that_of_one_process_whatever_each_rank_has(
        self, world_size: int
    ) -> None:
        """A mean of means weighs a residue more if its rank has few of them."""
        bins = BINS[: world_size + 1]
        counts = [source_of_ranks().num_terms([b]) for b in bins]
        assert len(set(counts)) > 1
        results = LocalRanks(partial(all_gradients, world_size), world_size).wait(120)
        assert [result.exitcode for result in results] == [0] * world_size, results
        for result in results:
            found = {kind: torch.tensor(grad) for kind, grad in result.value.items()}
            expected = expected_gradient(bins)
            assert (found["over terms"] - expected).abs().max() < 1e-6
            if world_size > 1:
                assert (found["of means"] - expected).abs().max() > 1e-4
                # One rank without samples: its peers' mean is that over what they have.
                theirs = [b for at, b in enumerate(bins) if at % world_size != world_size - 1]
                assert (found["empty"] - expected_gradient(theirs)).abs().max() < 1e-6
