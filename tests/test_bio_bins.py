"""Bins: each item once per epoch, comparable work on all ranks, and a resume by one integer."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from trainer_core.bio.bins import BinPlan, Fit, plan_batches, plan_packing
from trainer_core.bio.generated_proteins import generated_lengths
from trainer_core.bio.size_classes import round_up, transformer_cost
from trainer_core.config import TrainConfig
from trainer_core.data import ResumeAwareDistributedSampler, StepSchedule
from trainer_core.settings import UserError

IntArray = NDArray[np.int64]

CROP = 1024  # tokens
LENGTHS = np.minimum(generated_lengths(20_000, seed=0) + 2, CROP)


def pack_tight(lengths: Any, budget: int) -> BinPlan:
    return plan_packing(lengths, budget, fit="tight")


PLANS = [plan_batches, plan_packing, pack_tight]
some_plans = st.sampled_from(PLANS)
some_lengths = st.lists(st.integers(1, 12), min_size=1, max_size=60)
some_graphs = st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 20)), min_size=1, max_size=50
)


def epoch_of(plan: BinPlan, epoch: int = 0, seed: int = 3) -> list[list[int]]:
    return [plan.items(b, seed=seed, epoch=epoch).tolist() for b in range(len(plan))]


def batches_by_hand(lengths: list[int], budget: int) -> list[list[int]]:
    """Item by item, as one would on a whiteboard."""
    left, batches = sorted(lengths, reverse=True), []
    while left:
        count = budget // left[0]
        batches.append(left[:count])
        left = left[count:]
    return batches


def even_by_hand(lengths: list[int], budget: int) -> list[int]:
    """Item by item, into the row with the most room: the tokens in each row."""
    room = [budget] * -(-sum(lengths) // budget)
    left = sorted(lengths, reverse=True)
    while left:
        widest = max(range(len(room)), key=lambda row: room[row])
        if room[widest] < left[0]:
            room += [budget] * -(-left.count(left[0]) // (budget // left[0]))
        else:
            room[widest] -= left.pop(0)
    return sorted(budget - free for free in room if free < budget)


def tight_by_hand(lengths: list[int], budget: int) -> list[int]:
    """Best-fit decreasing, item by item: the tokens in each row."""
    rows: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [row for row, used in enumerate(rows) if used + length <= budget]
        if fitting:
            rows[max(fitting, key=lambda row: rows[row])] += length
        else:
            rows.append(length)
    return sorted(rows)


class TestPlan:
    @given(some_lengths, st.integers(12, 60))
    def test_batches_are_those_of_the_loop_over_sorted_items(
        self, lengths: list[int], budget: int
    ) -> None:
        """Planning on a histogram is faster; it must not cost a single token of padding."""
        bins = epoch_of(plan_batches(lengths, budget))
        found = sorted([lengths[item] for item in items] for items in bins)
        assert found == sorted(batches_by_hand(lengths, budget))

    @given(some_lengths, st.integers(12, 60))
    def test_packing_is_what_dealing_item_by_item_gives(
        self, lengths: list[int], budget: int
    ) -> None:
        """A row that could have taken an item and didn't is a row computed for nothing."""
        for plan_bins, by_hand in ((plan_packing, even_by_hand), (pack_tight, tight_by_hand)):
            found = plan_bins(lengths, budget).fill()[:, 0].tolist()
            assert sorted(found) == by_hand(lengths, budget)

    @given(some_lengths, st.integers(12, 60), st.integers(0, 3))
    def test_padded_batches_fit_the_budget_and_are_counted_right(
        self, lengths: list[int], budget: int, epoch: int
    ) -> None:
        """Memory is spent on padding too: without it the largest batch runs out of it."""
        plan = plan_batches(lengths, budget)
        bins = [[lengths[item] for item in items] for items in epoch_of(plan, epoch)]
        padded = [len(items) * max(items) for items in bins]
        assert plan.padded().tolist() == padded
        assert plan.fill()[:, 0].tolist() == [sum(items) for items in bins]
        assert max(padded) <= budget
        # All but the batch with the remainder.
        assert all(cost > budget - max(lengths) for cost in sorted(padded)[1:])

    @given(some_graphs, st.integers(9, 30), st.integers(20, 60), st.integers(0, 3))
    def test_packed_bins_fit_every_capacity(
        self, graphs: list[tuple[int, int]], nodes: int, edges: int, epoch: int
    ) -> None:
        """A batch within its node budget runs out of memory on one dense graph's messages."""
        fit: Fit = "tight" if epoch % 2 else "even"
        plan = plan_packing(graphs, (nodes, edges), fit=fit, units=("nodes", "edges"))
        table = np.array(graphs)
        held = [table[items].sum(axis=0).tolist() for items in epoch_of(plan, epoch)]
        assert plan.fill().tolist() == held
        assert (np.array(held) <= (nodes, edges)).all()

    @given(some_lengths, st.integers(12, 60), st.integers(0, 5), some_plans)
    def test_an_epoch_has_each_item_once(
        self, lengths: list[int], budget: int, epoch: int, plan_bins: Any
    ) -> None:
        """The trainer proves that it trained each bin once; the bins have to do the rest."""
        plan = plan_bins(lengths, budget)
        items = [item for items in epoch_of(plan, epoch) for item in items]
        assert sorted(items) == list(range(len(lengths)))

    def test_large_classes_have_each_item_once_too(self) -> None:
        """From 2048 equal lengths on, the order comes from another algorithm."""
        lengths = np.repeat([5, 9, 7], [5000, 3000, 100])
        for plan in (plan_bins(lengths, 40) for plan_bins in PLANS):
            items = np.concatenate(epoch_of(plan, epoch=2))
            assert np.array_equal(np.sort(items), np.arange(8100))

    @pytest.mark.parametrize("plan_bins", PLANS)
    def test_items_of_a_length_change_places_between_epochs_and_lengths_do_not(
        self, plan_bins: Any
    ) -> None:
        """The same sets in every epoch are the same gradients in another order."""
        plan = plan_bins(round_up(LENGTHS, 32)[:2000], 4096)
        first, second = epoch_of(plan, 0), epoch_of(plan, 1)
        as_lengths = [
            [round_up(LENGTHS, 32)[items].tolist() for items in bins]
            for bins in (first, second)
        ]
        assert as_lengths[0] == as_lengths[1]
        assert first != second
        stayed = np.concatenate(first) == np.concatenate(second)
        assert stayed.mean() < 0.05
        assert epoch_of(plan, 0, seed=4) not in (first, second)

    def test_lengths_with_equally_many_items_are_shuffled_apart(self) -> None:
        """With one key for all lengths, the same two sequences share a row in every epoch."""
        plan = plan_packing(np.repeat([6, 4], 50), 10)
        assert len(plan) == 50
        pairs = {tuple(items) for epoch in range(8) for items in epoch_of(plan, epoch)}
        # 8 * 50 pairs out of 2500, mostly different ones; 50 if each item keeps its partner.
        assert len(pairs) > 300

    def test_what_takes_most_of_either_budget_is_placed_first(self) -> None:
        """A graph of few nodes and many edges, placed last, has a bin almost to itself."""
        plan = plan_packing([(9, 1), (1, 20), (5, 5)], (10, 20), units=("nodes", "edges"))
        assert plan.sizes.tolist() == [[1, 20], [9, 1], [5, 5]]

    def test_a_bin_is_found_without_the_others(self) -> None:
        """A resume late in an epoch of a million sequences must not replay what came before."""
        lengths = np.minimum(generated_lengths(300_000, seed=1), CROP)
        plan = plan_packing(round_up(lengths, 8), 8192)
        plan.items(0, seed=1, epoch=0)
        tracemalloc.start()
        try:
            plan.items(len(plan) * 2 // 3, seed=1, epoch=7)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 200_000

    @pytest.mark.parametrize("bin_id", [-1, 3])
    def test_a_bin_outside_the_plan_is_refused(self, bin_id: int) -> None:
        """Python would count -1 from the end, and train a bin twice."""
        plan = plan_batches([4, 4, 4], 4)
        with pytest.raises(ValueError, match=rf"bin {bin_id}: the plan has bins 0 to 2"):
            plan.items(bin_id, seed=0, epoch=0)


class TestIdentity:
    def test_the_digest_names_lengths_budget_and_rule(self) -> None:
        """A run that resumes on other bins repeats and skips items, and nothing notices."""
        lengths = [5, 3, 3, 8, 1]
        plans = [
            plan_batches(lengths, 16),
            plan_packing(lengths, 16),
            pack_tight(lengths, 16),
            plan_batches(lengths, 17),
            plan_batches([5, 3, 3, 8, 2], 16),
            # The same histogram: other items have these lengths.
            plan_batches([3, 5, 3, 8, 1], 16),
        ]
        assert len({plan.digest for plan in plans}) == len(plans)
        assert plan_batches(np.array(lengths), 16).digest == plans[0].digest

    @pytest.mark.parametrize(
        ("plan", "digest", "bins"),
        [
            (
                plan_batches([5, 3, 3, 8, 1, 3, 5], 10),
                "6a4e0c1594950b65",
                [[3], [6, 0], [1, 2, 5], [4]],
            ),
            (
                plan_packing([5, 3, 3, 8, 1, 3, 5], 10),
                "f911dc4e29b2d978",
                [[3], [6, 1], [0, 2], [5, 4]],
            ),
            (
                pack_tight([5, 3, 3, 8, 1, 3, 5], 10),
                "af8ac84fba095231",
                [[6, 0], [1, 2, 5, 4], [3]],
            ),
        ],
        ids=["padded", "even", "tight"],
    )
    def test_the_bins_have_not_changed_since_the_first_release(
        self, plan: BinPlan, digest: str, bins: list[list[int]]
    ) -> None:
        """With other bins, a run that started before an update repeats and skips items."""
        assert (plan.digest, epoch_of(plan, epoch=1)) == (digest, bins)


class TestRefusals:
    @pytest.mark.parametrize("plan_bins", PLANS)
    def test_a_sequence_longer_than_the_budget_is_named(self, plan_bins: Any) -> None:
        """Cropped silently, the model never sees the end of a long protein."""
        message = (
            r"row 2: 1025 tokens, and the budget is 1024\. .* at least 34350 \(row 4\), or crop"
        )
        with pytest.raises(UserError, match=message):
            plan_bins([10, 1025, 1024, 34_350], 1024)
        with pytest.raises(UserError, match=r"row 2: 13 tokens, and the budget is 12\."):
            plan_bins([12, 13], 12)

    def test_a_graph_with_too_many_edges_is_named(self) -> None:
        """It fits the node budget, and its messages don't fit the memory."""
        with pytest.raises(UserError, match=r"row 1: 90 edges, and the budget is 64\."):
            plan_packing([(10, 90), (4, 6)], (32, 64), units=("nodes", "edges"))

    @pytest.mark.parametrize("bad", [0, -3])
    def test_a_sequence_without_tokens_is_named(self, bad: int) -> None:
        """Any number of them fits into a bin, so a plan would not end."""
        with pytest.raises(UserError, match=rf"row 3: {bad} tokens\. .* costs nothing"):
            plan_batches([4, 2, bad], 8)

    def test_a_graph_without_edges_is_fine(self) -> None:
        """A sodium ion is a molecule too."""
        plan = plan_packing([(1, 0), (1, 0), (3, 4)], (4, 4), units=("nodes", "edges"))
        assert sorted(plan.fill().tolist()) == [[2, 0], [3, 4]]
        lonely = plan_packing([(1, 0), (1, 0)], (2, 0), units=("nodes", "edges"))
        assert lonely.fill().tolist() == [[2, 0]]

    @pytest.mark.parametrize("sizes", [[], [(3, 1)]])
    def test_a_table_of_another_shape_is_refused(self, sizes: list[Any]) -> None:
        """An empty table has no bins, and the run would end at once and report success."""
        with pytest.raises(UserError, match="a row for each item and a column for each"):
            plan_batches(sizes, 8)


class TestCost:
    def test_attention_adds_length_over_six_widths(self) -> None:
        """Batches of equal tokens differ by this much in work: an eighth at 1024 tokens."""
        # FLOPs per token: 24 * 1280**2 in matrices, 4 * 1024 * 1280 in attention.
        exact = 1024 * (1 + 4 * 1024 * 1280 / (24 * 1280**2))
        assert transformer_cost([1024, 7680], 1280).tolist() == [np.ceil(exact), 2 * 7680]


class TestRounding:
    def test_sizes_go_up_to_multiples_or_to_the_next_bound(self) -> None:
        """Rounded down, a sequence is longer than the row that was planned for it."""
        sizes = [1, 8, 9, 128, 129]
        assert round_up(sizes, 8).tolist() == [8, 8, 16, 128, 136]
        assert round_up(sizes, (256, 128)).tolist() == [128, 128, 128, 128, 256]
        assert round_up([(3, 0), (4, 5)], 4).tolist() == [[4, 0], [4, 8]]

    def test_a_size_above_the_last_bucket_is_named(self) -> None:
        """It would be dropped, or run out of memory, depending on who wrote the loader."""
        with pytest.raises(UserError, match="row 2: size 300, and the largest bucket is 256"):
            round_up([10, 300], (128, 256))


# ---------------------------------------------------------------- with the trainer's sampler


def samplers(
    plan: BinPlan, global_batch: int, world_size: int, *, position: int = 0, epochs: int = 1
) -> list[ResumeAwareDistributedSampler]:
    schedule = StepSchedule(len(plan), global_batch, epochs)
    cfg = TrainConfig(micro_batch_size=1, seed=3)
    found = [
        ResumeAwareDistributedSampler(schedule, cfg, r, world_size) for r in range(world_size)
    ]
    for sampler in found:
        sampler.load_state_dict({"position": position})
    return found


def steps_of(ranks: list[ResumeAwareDistributedSampler], position: int) -> list[list[Any]]:
    """Each rank's keys of one step."""
    return [[key for keys in rank.micro_batches(position) for key in keys] for rank in ranks]


class TestTrainer:
    @settings(max_examples=40)
    @given(st.data())
    def test_a_resume_anywhere_at_any_world_size_trains_each_item_once(
        self, data: st.DataObject
    ) -> None:
        """The audit proves it for bins; what learns or is forgotten are the items in them."""
        lengths = data.draw(some_lengths)
        plan_bins = data.draw(some_plans)
        plan, global_batch = plan_bins(lengths, 24), data.draw(st.integers(1, 7))
        trained: Counter[tuple[int, int]] = Counter()
        position, epochs = 0, 2
        total = StepSchedule(len(plan), global_batch, epochs).total_steps
        while position < total:
            # An attempt: on some ranks, from the position on, until it is killed or done.
            world_size = data.draw(st.integers(1, 5))
            ranks = samplers(plan, global_batch, world_size, position=position, epochs=epochs)
            assert len({len(rank) for rank in ranks}) == 1  # equally many steps
            for _ in range(data.draw(st.integers(1, total - position))):
                for keys in steps_of(ranks, position):
                    for epoch, bin_id in keys:
                        items = plan.items(bin_id, seed=3, epoch=epoch).tolist()
                        trained.update((epoch, item) for item in items)
                position += 1
        expected = {(epoch, item) for epoch in range(epochs) for item in range(len(lengths))}
        assert set(trained) == expected
        assert set(trained.values()) == {1}


def work_differences(
    plan: BinPlan, work: IntArray, world_size: int, *, spare_smallest: bool = False
) -> list[float]:
    """Per step, by how much less the rank with the least work has than the one with most.

    Without an epoch's last step, for which there may be fewer bins than ranks; and without the
    step of the smallest bin, on request.
    """
    ranks = samplers(plan, world_size, world_size)
    differences = []
    for position in range(len(plan) // world_size):
        bins = [keys[0].sample for keys in steps_of(ranks, position)]
        if not (spare_smallest and work.argmin() in bins):
            differences.append(1 - work[bins].min() / work[bins].max())
    return differences


def with_attention(plan: BinPlan, width: int = 1280) -> IntArray:
    """Each row's work in a model as wide as ESM-2's with 650 million parameters."""
    return plan.per_bin(transformer_cost(plan.sizes[:, 0], width))


def wasted(plan: BinPlan) -> float:
    return float(1 - LENGTHS.sum() / plan.padded().sum())


def share_between(plan: BinPlan) -> float:
    """Of the variance of lengths, how much lies between bins: 0 random, 1 one length each."""
    bins = epoch_of(plan)
    means = np.concatenate([np.full(len(items), LENGTHS[items].mean()) for items in bins])
    return float(means.var() / LENGTHS.var())


# 32 sequences per batch, whatever their lengths, and in random order.
PLAIN = plan_batches(np.ones(len(LENGTHS), dtype=np.int64), 32)
PLAIN_PADDED = np.array([len(items) * LENGTHS[items].max() for items in epoch_of(PLAIN)])
BUCKETS = round_up(LENGTHS, (128, 256, 512, 1024))


class TestFigures:
    def test_a_token_budget_wastes_at_most_8_percent_where_plain_batches_waste_half(
        self,
    ) -> None:
        """Most of an epoch would be spent on multiplying zeros."""
        assert 1 - LENGTHS.sum() / PLAIN_PADDED.sum() > 0.6
        for budget in (CROP, 16 * CROP, 64 * CROP):
            assert wasted(plan_batches(LENGTHS, budget)) < 0.02
        # The price of randomness: 1100 others of the same size to change places with instead of
        # 37 (the median), then 6000.
        assert wasted(plan_batches(round_up(LENGTHS, 32), 16 * CROP)) < 0.05
        assert 0.25 < wasted(plan_batches(BUCKETS, 16 * CROP)) < 0.3

    def test_packing_leaves_2_percent_empty_from_twice_the_longest_on(self) -> None:
        """What first-come-first-served leaves empty is computed all the same."""
        for budget in (2 * CROP, 4 * CROP, 8 * CROP):
            fill = plan_packing(LENGTHS, budget).fill()[:, 0]
            assert fill.mean() > 0.98 * budget
            # All but one, which may get what is left over.
            assert np.sort(fill)[1] > 0.97 * budget
        # With less room than that, each row's long sequence leaves a gap of its own.
        assert 0.96 < plan_packing(LENGTHS, CROP).fill().mean() / CROP < 0.97
        assert pack_tight(LENGTHS, CROP).fill().mean() / CROP > 0.999

    @pytest.mark.parametrize("world_size", [2, 4, 8])
    def test_ranks_with_packed_rows_differ_by_10_percent_at_most(self, world_size: int) -> None:
        """The slowest rank sets the pace of all of them."""
        for budget in (2 * CROP, 8 * CROP):
            plan = plan_packing(LENGTHS, budget)
            tokens, work = plan.fill()[:, 0], with_attention(plan)
            assert max(work_differences(plan, tokens, world_size, spare_smallest=True)) < 0.03
            assert max(work_differences(plan, work, world_size, spare_smallest=True)) < 0.1
        # The same tokens, but the long sequences all in the same rows.
        plan = pack_tight(LENGTHS, 8 * CROP)
        tokens, work = plan.fill()[:, 0], with_attention(plan)
        assert max(work_differences(plan, tokens, world_size, spare_smallest=True)) < 0.03
        assert max(work_differences(plan, work, world_size, spare_smallest=True)) > 0.1

    @pytest.mark.parametrize("world_size", [2, 4, 8])
    def test_ranks_with_padded_batches_do_from_ten_times_the_longest_on(
        self, world_size: int
    ) -> None:
        """A budget of 1.9 times a sequence holds one of it, and almost half is left."""
        for ratio, bound in ((10, 0.1), (16, 0.0625)):
            plan = plan_batches(LENGTHS, ratio * CROP)
            differences = work_differences(plan, plan.padded(), world_size, spare_smallest=True)
            assert max(differences) <= bound
        plan = plan_batches(LENGTHS, 2 * CROP)
        assert max(work_differences(plan, plan.padded(), world_size)) > 0.3
        assert max(work_differences(PLAIN, PLAIN_PADDED, world_size)) > 0.4

    @pytest.mark.parametrize("world_size", [2, 4, 8])
    def test_a_budget_of_cost_counts_attention_too(self, world_size: int) -> None:
        """With equal tokens, a batch of long sequences has a tenth more to compute."""
        cost = transformer_cost(LENGTHS, 1280)
        plan = plan_batches(cost, 10 * int(cost.max()))
        assert (
            max(work_differences(plan, plan.padded(), world_size, spare_smallest=True)) <= 0.1
        )
        by_tokens = plan_batches(LENGTHS, 10 * CROP)
        longest = [LENGTHS[items[0]] for items in epoch_of(by_tokens)]
        work = by_tokens.padded() * (1 + np.array(longest) / (6 * 1280))
        assert max(work_differences(by_tokens, work, world_size, spare_smallest=True)) > 0.1

    def test_only_even_packing_mixes_lengths(self) -> None:
        """Short proteins differ from long ones; a batch of one length has a biased gradient."""
        budget = 8 * CROP
        assert share_between(plan_batches(LENGTHS, budget)) > 0.99
        assert 0.8 < share_between(plan_batches(BUCKETS, budget)) < 0.95
        assert share_between(pack_tight(LENGTHS, budget)) > 0.9
        assert share_between(plan_packing(LENGTHS, budget)) < 0.03
        assert share_between(PLAIN) < 0.05
