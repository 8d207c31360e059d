"""Chapter 12: each broken run is broken in the way that the text says, and only in that way."""

from __future__ import annotations

import pytest
from handbook_chapters import Chapter, run_chapter

from rehearsal.handbook.sample_maps import count_epochs

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def ran() -> Chapter:
    return run_chapter("12_data_correctness")


def missed(records: list[dict]) -> list[int]:
    return [len(count.missed) for count in count_epochs(records, 51)]


def repeated(records: list[dict]) -> list[int]:
    return [len(count.repeated) for count in count_epochs(records, 51)]


def epoch_loss(records: list[dict], epoch: int) -> float:
    of_epoch = [record for record in records if record["epoch"] == epoch]
    samples = sum(len(record["samples"]) for record in of_epoch)
    return sum(record["loss_sum"] for record in of_epoch) / samples


class TestPartition:
    def test_the_right_run_misses_and_repeats_nothing(self, ran: Chapter) -> None:
        """Without a right one next to it, a broken map shows nothing."""
        assert missed(ran.right_run) == repeated(ran.right_run) == [0, 0, 0, 0]
        assert {record["world_size"] for record in ran.right_run} == {2, 3}

    def test_a_loader_without_a_sampler_deals_all_samples_to_both_ranks(
        self, ran: Chapter
    ) -> None:
        """The text says that each rank does the work of one."""
        assert repeated(ran.shared) == [51, 51, 51, 51]
        for count in count_epochs(ran.shared, 51):
            assert set(count.repeated.values()) == {2}

    def test_a_resume_at_the_next_epoch_misses_the_rest_of_one(self, ran: Chapter) -> None:
        """Step 10 is the third of seven: 24 of 51 samples were trained on."""
        assert missed(ran.skipped) == [0, 27, 0, 0]
        assert repeated(ran.skipped) == [0, 0, 0, 0]

    def test_the_same_batch_per_rank_on_more_ranks_is_another_global_batch(
        self, ran: Chapter
    ) -> None:
        """The partition stays right, so only the size of a step shows it."""
        assert missed(ran.resized) == repeated(ran.resized) == [0, 0, 0, 0]
        sizes = {}
        for record in ran.resized:
            sizes[record["step"]] = sizes.get(record["step"], 0) + len(record["samples"])
        assert [sizes[step] for step in range(1, 7)] == [8] * 6
        assert (sizes[7], sizes[8]) == (3, 16)

    def test_padding_repeats_one_sample_and_drop_last_misses_the_same_three(
        self, ran: Chapter
    ) -> None:
        """What the text calls a dot in each epoch, and samples that are never trained on."""
        assert repeated(ran.same_order) == [1, 1, 1, 1]
        assert missed(ran.dropped) == [3, 3, 3, 3]
        assert len(ran.never) == 3

    def test_without_set_epoch_the_same_batches_come_again(self, ran: Chapter) -> None:
        assert ran.batches_of(ran.same_order, 0) == ran.batches_of(ran.same_order, 3)
        assert not set(ran.batches_of(ran.right_run, 0)) & set(ran.batches_of(ran.right_run, 1))

    def test_what_was_fetched_is_more_than_what_was_trained_on(self, ran: Chapter) -> None:
        assert "0 workers: 12 samples trained on, 12 counted" in ran.printed
        assert ran.counted > 12
        assert missed(ran.miscounted) == [0, 2 * (ran.counted - 12), 0, 0]

    def test_a_count_per_rank_skips_twelve_more_on_three_ranks(self, ran: Chapter) -> None:
        """24 were trained on, and three ranks skip 36."""
        assert missed(ran.recut) == [0, 12, 0, 0]


class TestWeights:
    def test_without_its_state_the_optimizer_takes_a_larger_step(self, ran: Chapter) -> None:
        assert missed(ran.stale) == [0, 0, 0, 0]
        right, stale = ran.updates_of(ran.right_run), ran.updates_of(ran.stale)
        assert right[10] == stale[10]
        assert stale[11] > 1.5 * right[11]

    def test_the_mean_of_means_differs_from_the_uneven_step_on(self, ran: Chapter) -> None:
        alone, weighted, averaged = map(ran.updates_of, (ran.alone, ran.weighted, ran.averaged))
        assert averaged[6] == pytest.approx(alone[6], rel=1e-5)
        assert averaged[7] != pytest.approx(alone[7], rel=1e-4)
        assert weighted[7] == pytest.approx(alone[7], rel=1e-5)
        assert weighted[28] == pytest.approx(alone[28], rel=1e-4)


class TestProof:
    def test_a_resume_continues_the_same_run(self, ran: Chapter) -> None:
        assert ran.identical
        assert ran.same_samples
        assert 0 < ran.apart < 1e-4

    def test_every_broken_run_learns(self, ran: Chapter) -> None:
        """The text says that the loss wouldn't have told."""
        assert len(ran.every_run) == 10
        for name, records in ran.every_run.items():
            first, last = (epoch_loss(records, epoch) for epoch in (0, 3))
            assert last < 0.7 * first, name
