"""Chapter 31: bins, losses and symmetries are right, and each broken one breaks as it says."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from handbook_chapters import Chapter, run_chapter
from trainer_core.bio.loss_terms import summed_token_loss
from trainer_core.bio.pair_memory import MIB
from trainer_core.bio.symmetry import symmetry_report

from rehearsal.handbook.on_ranks import how_it_ended
from rehearsal.handbook.protein_pictures import shares_by_length
from rehearsal.handbook.sample_maps import count_epochs

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def ran() -> Chapter:
    return run_chapter("31_sequences_and_structures")


class TestLengths:
    def test_the_distribution_has_one_peak_and_a_heavy_tail(self, ran: Chapter) -> None:
        """The text says that it isn't bimodal, above the picture of it."""
        edges = np.geomspace(11, 35_000, 21)
        shares = shares_by_length(ran.lengths, 0, edges)
        above_both = (shares[1:-1] > shares[:-2]) & (shares[1:-1] > shares[2:])
        assert (above_both & (shares[1:-1] > 0.02)).sum() == 1
        assert ran.lengths.mean() > 1.25 * np.median(ran.lengths)
        assert ran.lengths.max() > 20 * ran.lengths.mean()

    def test_the_picture_weighs_by_sequence_residue_and_pair(self) -> None:
        """Weighed wrongly, the work would seem to be where the sequences are."""
        edges = np.array([1.0, 5.0, 20.0])
        assert shares_by_length([2, 2, 10], 0, edges).tolist() == pytest.approx([2 / 3, 1 / 3])
        assert shares_by_length([2, 2, 10], 1, edges).tolist() == pytest.approx([2 / 7, 5 / 7])
        assert shares_by_length([2, 2, 10], 2, edges).tolist() == pytest.approx(
            [8 / 108, 100 / 108]
        )

    def test_the_longest_percent_is_two_thirds_of_the_pairs(self, ran: Chapter) -> None:
        assert ran.of_longest == pytest.approx([0.13, 0.67], abs=0.01)
        assert "dropping them would lose 26% of the residues" in ran.printed


class TestBatches:
    def test_plain_batches_waste_more_than_half_and_budgets_at_most_8_percent(
        self, ran: Chapter
    ) -> None:
        assert ran.padding["32 at random"] > 0.5
        assert ran.padding["2 buckets"] > ran.padding["4 buckets"] > 0.2
        assert 0 <= ran.padding["packed rows"] < 0.01
        assert 0 <= ran.padding["token budget"] < 0.01

    def test_budgets_give_ranks_equal_tokens_and_packing_equal_pairs_too(
        self, ran: Chapter
    ) -> None:
        """The two columns that the text tells apart."""
        tokens = {name: skew[0] for name, skew in ran.skew.items()}
        pairs = {name: skew[1] for name, skew in ran.skew.items()}
        assert tokens["4 buckets"] > tokens["2 buckets"] > 1.5
        assert tokens["32 at random"] < 1.1
        assert tokens["token budget"] < 1.1
        assert pairs["token budget"] > 1.5
        assert max(tokens["packed rows"], pairs["packed rows"]) < 1.05

    def test_every_way_holds_every_sequence(self, ran: Chapter) -> None:
        """Padding can be avoided by losing sequences."""
        for name, (padded, _) in ran.ways.items():
            assert padded.sum() >= ran.tokens.sum(), name
        for plan in (ran.plan, ran.packing):
            assert plan.fill().sum() == ran.tokens.sum()

    def test_ranks_on_their_own_have_unequal_numbers_of_batches(self, ran: Chapter) -> None:
        assert len(ran.own) == 64
        assert min(ran.own) < max(ran.own)

    def test_a_resume_on_three_ranks_trains_each_protein_once(self, ran: Chapter) -> None:
        assert {record["rank"] for record in ran.resumed} == {0, 1, 2}
        for count in count_epochs(ran.resumed, len(ran.proteins)):
            assert not count.missed
            assert not count.repeated

    def test_a_bin_has_other_proteins_of_the_same_lengths_next_epoch(
        self, ran: Chapter
    ) -> None:
        first, second = ran.held
        assert (ran.tokens[first] == ran.tokens[second]).all()
        assert 0 < len(np.intersect1d(first, second)) < len(first)

    def test_a_protein_longer_than_the_budget_is_refused_by_row_and_cropped_on_request(
        self, ran: Chapter
    ) -> None:
        assert ran.refused.startswith("row 1: 34352 tokens, and the budget is 16384.")
        assert ran.cropped.plan.padded().tolist() == [1024]


class TestLoss:
    def test_masks_in_collate_depend_on_the_workers(self, ran: Chapter) -> None:
        assert not ran.same_masks
        lines = [line for line in ran.printed.splitlines() if "insulin_B_chain, epoch" in line]
        assert len(lines) == 3
        assert lines[0] != lines[1] == lines[2]

    def test_the_global_count_gives_one_process_gradient_and_a_mean_of_means_does_not(
        self, ran: Chapter
    ) -> None:
        for ranks in (2, 3):
            assert ran.off[ranks, "global count"] < 1e-5
            assert ran.off[ranks, "mean of means"] > 0.05

    def test_a_rank_without_a_bin_logs_nan(self, ran: Chapter) -> None:
        assert math.isnan(ran.empty_loss)

    def test_the_reference_is_the_mean_over_all_terms(self, ran: Chapter) -> None:
        """If it were a mean of something else, all of them would agree on the wrong thing."""
        torch.manual_seed(0)
        model = ran.ProteinEncoder(16, 1, 2)
        bins = [ran.SampleKey(0, bin_id) for bin_id in (ran.full, ran.remainder)]
        batch = ran.source.batch(bins)
        logits = model(batch.tokens, batch.segments, batch.positions)
        terms = int((batch.targets >= 0).sum())
        assert terms == sum(ran.source.num_terms([b]) for b in (ran.full, ran.remainder))
        (summed_token_loss(logits, batch.targets) / terms).backward()
        gradient = torch.nn.utils.parameters_to_vector(p.grad for p in model.parameters())
        assert ran.off_by(ran.alone, gradient.tolist()) < 1e-5


class TestOutOfMemory:
    def test_a_rank_that_skips_a_step_alone_is_averaged_with_another_step(
        self, ran: Chapter
    ) -> None:
        first, second = (report.output for report in ran.skipping)
        mismatch = "averaged over rank 0's step 2, rank 1's step 3"
        assert f"step 2: {mismatch}" in first
        assert f"step 3: {mismatch}" in second
        assert "step 2: skipped." in second

    def test_the_other_rank_waits_at_the_end(self, ran: Chapter) -> None:
        assert "step 3: waited" in ran.skipping[0].output
        assert "step 3: averaged" not in ran.skipping[0].output

    def test_a_rehearsal_of_the_largest_batch_fails_on_both_ranks_together(
        self, ran: Chapter
    ) -> None:
        """The loop ends with the batch that fits on one of the two."""
        for report in ran.rehearsal:
            assert report.failure is not None
            assert "5000 tokens don't fit on 1 of 2 ranks" in report.failure.message
        assert "1024 tokens:\n  rank 0: exit code 0\n  rank 1: exit code 0" in ran.printed


class TestMemory:
    def test_the_slide_is_wrong_in_its_sum_and_in_its_width(self, ran: Chapter) -> None:
        assert ran.slide == 5_368_709_120
        assert "= 5.0 GiB = 5.4 GB" in ran.printed
        assert ran.trunk.copy_bytes(1024) == 512 * MIB
        assert "ESM-2's logits:  80 MiB per layer" in ran.printed

    def test_a_measured_update_keeps_what_the_formula_predicts(self, ran: Chapter) -> None:
        assert f"predicted {ran.predicted:,} bytes, kept {ran.predicted:,}," in ran.printed

    def test_only_the_explicit_attention_keeps_the_logits(self, ran: Chapter) -> None:
        logits = 20 * 512**2 * 4
        assert ran.beyond_inputs["explicit"] >= logits
        assert ran.beyond_inputs["scaled_dot_product_attention"] < 0.2 * logits

    def test_checkpointing_keeps_less_runs_blocks_twice_and_changes_no_bit(
        self, ran: Chapter
    ) -> None:
        assert ran.mib < 0.1 * ran.plain_mib
        assert (ran.plain_runs, ran.runs) == (6, 12)
        assert torch.equal(ran.plain_grad, ran.grad)

    def test_the_reentrant_variant_trains_nothing_behind_a_frozen_input(
        self, ran: Chapter
    ) -> None:
        assert ran.trained == {False: True, True: False}

    def test_two_ranks_compute_one_rank_s_gradients_from_fewer_activations(
        self, ran: Chapter
    ) -> None:
        for name in ("ring", "gathered"):
            assert ran.shards[name]["off by"] < 1e-5
            assert ran.shards[name]["mib"] < 0.6 * ran.one_rank_mib
        assert ran.shards["ring"]["mib"] < ran.shards["gathered"]["mib"]
        assert ran.shards["ring, local positions"]["off by"] > 1e-3


class TestTasks:
    def test_a_random_split_has_relatives_on_both_sides_and_clusters_have_none(
        self, ran: Chapter
    ) -> None:
        assert ran.close["random"].above >= 2
        assert ran.close["by cluster"].above == 0

    def test_where_after_the_loss_has_a_nan_gradient(self, ran: Chapter) -> None:
        assert "where(mask, loss, 0): loss 0.69, gradient [-0.5, nan]" in ran.printed
        assert "labels filled before the loss: gradient [-0.5, 0.0]" in ran.printed

    def test_heads_that_all_run_or_are_touched_give_one_rank_s_gradients(
        self, ran: Chapter
    ) -> None:
        assert set(ran.heads_off) == {"all heads", "touched"}
        assert max(ran.heads_off.values()) < 1e-5

    def test_a_head_that_one_rank_skips_leaves_the_other_in_backward(
        self, ran: Chapter
    ) -> None:
        """Rank 1 is none the wiser: it ends as if all were well."""
        waiting, ahead = ran.skipped
        assert waiting.failure is not None
        assert "backward" in waiting.failure.traceback
        assert how_it_ended(ahead) == "rank 1: exit code 0"


class TestGeometry:
    def test_only_shifted_edges_keep_graphs_apart(self, ran: Chapter) -> None:
        assert ran.apart["shifted"] < 1e-6
        assert ran.apart["not shifted"] > 0.1

    def test_each_broken_variant_breaks_rotations_and_nothing_breaks_permutations(
        self, ran: Chapter
    ) -> None:
        right = {"as designed", "centered, one scale"}
        assert right < set(ran.reports)
        for name, report in ran.reports.items():
            assert (max(report.values()) < 1e-12) == (name in right), name
            assert (report["rotation"] > 0.05) == (name not in right), name
            assert max(report["permutation"], report["translation"]) < 1e-12, name

    def test_rotating_the_input_changes_neither_loss_nor_gradients(self, ran: Chapter) -> None:
        """The text says so of an equivariant network, against augmentation."""
        from trainer_core.bio.symmetry import single_motions

        turn = single_motions(len(ran.molecules.positions), seed=1)["rotation"]
        found = []
        for graph in (ran.molecules, turn.of_graph(ran.molecules)):
            ran.network.zero_grad()
            loss = ran.network(*graph, num_graphs=2).graphs.square().sum()
            loss.backward()
            grads = [p.grad for p in ran.network.parameters() if p.grad is not None]
            found.append((loss.detach(), torch.nn.utils.parameters_to_vector(grads)))
        assert torch.allclose(found[0][0], found[1][0], rtol=1e-12)
        assert torch.allclose(found[0][1], found[1][1], atol=1e-12)

    def test_mirror_images_differ_only_with_a_feature_that_flips(self, ran: Chapter) -> None:
        plain, chiral = ran.predictions.values()
        assert plain[0] == pytest.approx(plain[1], abs=1e-12)
        assert abs(chiral[0] - chiral[1]) > 1e-3
        report = symmetry_report(ran.with_handedness, ran.halomethane, "graph scalars")
        assert report["reflection"] > 1e-3
        assert max(report[m] for m in ("rotation", "translation", "permutation")) < 1e-12

    def test_rounded_distances_break_the_rotation_and_rounded_messages_do_not(
        self, ran: Chapter
    ) -> None:
        """The picture draws its line at 1e-4."""
        breaks = {name for name, error in ran.by_setting.items() if error > 1e-4}
        assert breaks == {
            "TF32 (emulated), matmul",
            "bf16 autocast, matmul",
            "bf16 weights and positions, differences",
        }
        assert "near   100 angstroms, bf16 numbers are 0.5 apart" in ran.printed
