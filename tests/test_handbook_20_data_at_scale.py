"""Chapter 20: the arithmetic of two large datasets, and what each shortcut breaks."""

from __future__ import annotations

import hashlib
import os
import re

import pytest
from handbook_chapters import Chapter, run_chapter

from rehearsal.handbook import data_plane
from rehearsal.handbook.sample_maps import count_epochs

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def ran() -> Chapter:
    before = os.environ.get("FAST")
    os.environ["FAST"] = "1"
    try:
        return run_chapter("20_data_at_scale")
    finally:
        os.environ.pop("FAST")
        if before is not None:
            os.environ["FAST"] = before


class TestArithmetic:
    def test_the_figures_to_know_by_heart(self, ran: Chapter) -> None:
        """Said in an interview; a slip by a factor of ten would be remembered."""
        assert round(ran.image_bytes / 1e3) == 147
        assert ran.images_per_s == 256_000
        assert round(ran.bytes_per_s / 1e9) == 38
        assert "0.59 GB/s per node" in ran.printed
        assert "one pass takes 10.3 h" in ran.printed
        assert "7.1 kB raw" in ran.printed
        assert ran.token_bytes == 420e9
        assert "71 times less" in ran.printed

    def test_one_get_per_image_is_47_prefixes_at_their_limit(self, ran: Chapter) -> None:
        found = re.search(
            r"one GET per image +256,000 requests/s, +([\d.]+) prefixes", ran.printed
        )
        assert found
        assert float(found[1]) == pytest.approx(256_000 / 5500, abs=0.05)
        assert "25,600 to 51,200 in flight, $3,800" in ran.printed

    def test_a_price_list_charges_each_part_at_its_own_price(self) -> None:
        assert data_plane.list_price(10, data_plane.EGRESS) == pytest.approx(900)
        assert data_plane.list_price(60, data_plane.EGRESS) == pytest.approx(900 + 3400 + 700)
        assert data_plane.list_price(1400, data_plane.STORAGE) == pytest.approx(29_950)

    def test_a_pass_of_egress_costs_more_than_the_gpus(self, ran: Chapter) -> None:
        egress = data_plane.list_price(1400, data_plane.EGRESS)
        assert egress > 4 * ran.pass_usd
        assert ran.pass_usd == pytest.approx(512 * 10.31 * 3, rel=1e-3)


class TestShards:
    def test_files_take_a_call_per_sample_and_a_shard_one_per_piece(self, ran: Chapter) -> None:
        (files, from_files), (shard, from_shard) = ran.counted.values()
        assert files == {"opens": 2000, "reads": 2000}
        assert shard["opens"] == 1
        assert shard["reads"] == -(-sum(map(len, ran.samples)) // 2**20)
        assert (
            from_files
            == from_shard
            == sorted(hashlib.sha256(content).digest() for content in ran.samples)
        )

    def test_the_manifest_finds_a_short_shard_and_a_changed_one(self, ran: Chapter) -> None:
        short, changed = ran.found
        assert short.startswith("00003.shard has ")
        assert changed == "00005.shard doesn't match its hash"

    def test_a_filter_is_counted_without_opening_a_shard(self, ran: Chapter) -> None:
        dropped = sum(flag in (ran.CORRUPT, ran.DUPLICATE) for flag in ran.flags)
        assert ran.usable(ran.manifest, 0) == 2000
        assert ran.usable(ran.manifest, ran.CORRUPT | ran.DUPLICATE) == 2000 - dropped
        assert dropped > 100

    def test_another_filter_is_another_run(self, ran: Chapter) -> None:
        """Otherwise a resume continues on other data."""
        assert ran.contract.digest() != ran.changed.digest()
        assert ran.contract.digest() == ran.changed._replace(drop_flags=5).digest()


class TestWorkers:
    def test_only_rank_and_worker_together_read_each_sample_once(self, ran: Chapter) -> None:
        found = {name: (len(seen), set(seen.values())) for name, seen in ran.visits.items()}
        assert found == {
            "all of them": (64, {4}),
            "by rank": (64, {2}),
            "by worker": (64, {2}),
            "by both": (64, {1}),
        }


class TestCursor:
    def test_positions_per_rank_miss_and_repeat_after_a_resize(self, ran: Chapter) -> None:
        [per_rank] = count_epochs(ran.maps["per rank"], 192)
        assert len(per_rank.missed) == len(per_rank.repeated) == 36

    def test_positions_per_rank_are_right_without_a_resize(self, ran: Chapter) -> None:
        """So the test that everybody writes passes."""
        [count] = count_epochs(ran.records(ran.by_rank, [(2, range(8))]), 192)
        assert not count.missed
        assert not count.repeated

    def test_streams_give_each_step_the_same_samples_on_any_ranks(self, ran: Chapter) -> None:
        [count] = count_epochs(ran.maps["12 streams"], 192)
        assert not count.missed
        assert not count.repeated
        for step in range(8):
            batches = {
                frozenset(
                    sample
                    for rank in range(ranks)
                    for sample in ran.by_stream(rank, ranks, step)
                )
                for ranks in (1, 2, 3, 4, 6, 12)
            }
            [batch] = batches
            assert len(batch) == 24

    def test_a_seek_lands_on_the_next_sample(self, ran: Chapter) -> None:
        for step in range(8):
            place, offset = ran.seek(step)
            order = ran.shuffled_samples(ran.all_shards[0 :: ran.STREAMS], 0)
            assert order[8 * place + offset] == next(iter(ran.by_stream(0, 12, step)))


class TestShuffling:
    def test_a_batch_from_one_read_is_worth_one_sample(self, ran: Chapter) -> None:
        """Position has hardly any correlation left, and the batch is as bad as can be."""
        assert ran.effects[1][256] == pytest.approx(ran.BATCH, rel=0.01)
        assert abs(ran.moved) < 0.1
        assert ran.effects[1][1] == pytest.approx(1, abs=0.3)

    def test_the_rule_is_good_to_a_factor_of_about_two(self, ran: Chapter) -> None:
        for buffer in (512, 4096):
            for read, effect in ran.effects[buffer].items():
                rule = min(ran.BATCH, 1 + read * ran.BATCH / (2 * buffer))
                assert 0.45 < effect / rule < 2, (buffer, read)

    def test_eight_small_buffers_are_at_least_as_good_as_a_large_one(
        self, ran: Chapter
    ) -> None:
        assert ran.together < 1.2 * ran.effects[4096][256]
        assert ran.together < 0.4 * ran.effects[512][256]

    def test_every_order_is_a_permutation(self, ran: Chapter) -> None:
        for by_read in ran.orders.values():
            for order in by_read.values():
                assert sorted(order.tolist()) == list(range(ran.N))

    def test_sorted_data_has_the_best_loss_and_the_worst_accuracy(self, ran: Chapter) -> None:
        losses = {name: loss for name, (_, loss, _) in ran.trained.items()}
        accuracies = {name: accuracy for name, (_, _, accuracy) in ran.trained.items()}
        assert min(losses, key=losses.get) == "sorted"
        assert losses["sorted"] < 0.2 * losses["reads of 1, buffer 1"]
        assert accuracies["sorted"] == pytest.approx(1 / 8, abs=0.03)
        good = accuracies["reads of 1, buffer 1"]
        assert accuracies["reads of 256, buffer 4096"] > good - 0.03
        assert accuracies["reads of 4096, buffer 4096"] < good - 0.1


class TestPadding:
    def test_each_way_of_filling_keeps_every_sequence(self, ran: Chapter) -> None:
        for name, batches in ran.fills.items():
            kept = sorted(length for rows in batches for row in rows for length in row)
            assert kept == sorted(ran.lengths), name

    def test_random_batches_are_mostly_padding_and_packed_ones_hardly(
        self, ran: Chapter
    ) -> None:
        assert ran.waste["random"] > 0.6
        assert ran.waste["length buckets"] < 0.1
        assert ran.waste["packed"] < 0.03
        for rows in ran.fills["packed"]:
            assert max(map(sum, rows)) <= ran.CONTEXT

    def test_buckets_make_ranks_wait_and_a_budget_does_not(self, ran: Chapter) -> None:
        assert ran.skew["length buckets"] > 2 * ran.skew["random"]
        assert ran.skew["token budget"] < 1.2
        assert ran.skew["packed"] < 1.1

    def test_packing_needs_the_mask_and_the_positions(self, ran: Chapter) -> None:
        """With only one of them, the second sequence is computed differently."""
        right = ran.errors.pop("mask and positions")
        assert right < 1e-5
        assert set(ran.errors) == {"neither", "mask", "positions"}
        assert min(ran.errors.values()) > 0.1
        ran.errors["mask and positions"] = right


class TestTiers:
    def test_uint16_cannot_be_looked_up(self, ran: Chapter) -> None:
        assert "uint16 must be cast before the lookup: RuntimeError" in ran.printed
        assert ran.stored.tolist() == ran.ids

    def test_least_recently_used_is_the_worst_for_a_loop(self, ran: Chapter) -> None:
        for size in (0.1, 0.25, 0.5, 0.75, 0.9):
            same, reshuffled, kept = (ran.rates[policy][size] for policy in ran.POLICIES)
            assert same == 0
            assert kept == pytest.approx(size)
            assert reshuffled < kept
        assert {ran.rates[policy][1.0] for policy in ran.POLICIES} == {1.0}

    def test_a_resized_image_has_far_fewer_bytes(self, ran: Chapter) -> None:
        (crawled, _), (resized, _) = ran.decoded.values()
        assert 120_000 < crawled < 180_000  # near the 147 kB of the example
        assert resized < crawled / 4


class TestSplit:
    def test_a_draw_per_rank_trains_on_what_another_validates(self, ran: Chapter) -> None:
        assert ran.elsewhere / 2000 > 0.99

    def test_a_draw_by_row_shares_scaffolds_and_a_hash_does_not(self, ran: Chapter) -> None:
        assert ran.shared_with_training(ran.drawn[0]) / 2000 > 0.99
        assert ran.shared_with_training(ran.by_group) == 0
        some = {row for row in ran.by_group if row % 2}  # half of each group stays in training
        assert ran.shared_with_training(some) > 0.9 * len(some)
        assert len(ran.by_group) / ran.NUM_ROWS == pytest.approx(0.1, abs=0.02)
