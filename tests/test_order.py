"""The order of an epoch: every sample once, from any slot, in constant memory, forever."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray
from trainer_core.order import EpochOrder, feistel, grid_bijection, hash_words

HUGE = 10**12


def whole(num_samples: int, seed: int = 17, epoch: int = 0) -> NDArray[np.int64]:
    return EpochOrder(num_samples, seed=seed, epoch=epoch).samples(0, num_samples)


def is_permutation(ids: NDArray[np.int64], num_samples: int) -> bool:
    return np.array_equal(np.sort(ids), np.arange(num_samples))


def chi2(observed: NDArray[np.int64]) -> float:
    """Against the even distribution; has mean len - 1 and variance 2 (len - 1)."""
    expected = observed.sum() / len(observed)
    return float(((observed - expected) ** 2 / expected).sum())


class TestBijection:
    def test_every_epoch_visits_each_sample_once_for_n_from_1_to_4096(self) -> None:
        """A sample that comes twice pushes another out, and the loss doesn't show it."""
        bad = [n for n in range(1, 4097) if not is_permutation(whole(n, epoch=n), n)]
        assert bad == []

    def test_the_network_itself_is_a_bijection_for_n_from_1_to_4096(self) -> None:
        """Small n hide behind the shuffle, and would not show that the walk leaves the grid."""
        bad = []
        for n in range(1, 4097):
            slots = np.arange(n, dtype=np.uint64)
            ids = feistel(slots, n, hash_words("test", n, count=4))
            if not is_permutation(ids.astype(np.int64), n):
                bad.append(n)
        assert bad == []

    def test_the_grid_is_a_bijection_for_any_shape(self) -> None:
        """Cycle walking is finite and one-to-one only on top of a bijection."""
        for rows in range(1, 41):
            for columns in range(1, 41):
                slots = np.arange(rows * columns, dtype=np.uint64)
                keys = hash_words("test", rows, columns, count=2)
                cells = grid_bijection(slots, rows, columns, keys).astype(np.int64)
                assert is_permutation(cells, rows * columns), (rows, columns)

    @pytest.mark.parametrize("power", range(12, 19))
    def test_whole_epochs_around_powers_of_two_visit_each_sample_once(self, power: int) -> None:
        """Errors hide at sizes where a grid's sides or an integer's width change."""
        for n in (2**power - 1, 2**power, 2**power + 1):
            assert is_permutation(whole(n, epoch=power), n), n

    @pytest.mark.parametrize("n", [62_500, 62_501, 65_535, 65_536, 99_999, 250_001])
    def test_whole_epochs_on_full_and_ragged_grids_visit_each_sample_once(self, n: int) -> None:
        """On a square grid no value walks; just above one, the most do."""
        assert is_permutation(whole(n), n)

    @pytest.mark.parametrize("power", range(19, 41))
    def test_windows_of_huge_epochs_hold_distinct_samples_in_range(self, power: int) -> None:
        """Nobody lists 2**40 samples; a product that overflows repeats within a window."""
        for n in (2**power - 1, 2**power, 2**power + 1):
            order, size = EpochOrder(n, seed=3, epoch=power), 8192
            firsts = (0, n // 2 - size // 2, n - size)
            ids = np.concatenate([order.samples(first, first + size) for first in firsts])
            assert len(np.unique(ids)) == len(ids), n
            assert ids.min() >= 0, n
            assert ids.max() < n, n

    @pytest.mark.parametrize("n", [2**62, 2**63 - 1, 2**63])
    def test_the_largest_epochs_stay_in_range(self, n: int) -> None:
        """One bit too many turns a sample id negative."""
        ids = EpochOrder(n, seed=1, epoch=1).samples(n - 4096, n)
        assert len(np.unique(ids)) == 4096
        assert ids.min() >= 0
        assert ids.max() > n // 2

    @pytest.mark.parametrize("num_samples", [0, -1, 2**63 + 1])
    def test_a_size_without_an_order_is_refused(self, num_samples: int) -> None:
        """An epoch of no samples would end at once and report success."""
        with pytest.raises(ValueError, match=f"num_samples={num_samples}"):
            EpochOrder(num_samples, seed=0, epoch=0)


class TestSeek:
    @pytest.mark.parametrize("n", [1, 7, 2047, 2048, 2049, 40_000, 2**20 + 1])
    def test_any_part_equals_that_part_of_the_whole(self, n: int) -> None:
        """A resume that sees a different order than the uninterrupted run repeats samples."""
        order, every = EpochOrder(n, seed=5, epoch=2), whole(n, seed=5, epoch=2)
        cuts = sorted({0, 1, n // 3, n // 2, 16_383, 16_384, 16_385, n - 1, n})
        cuts = [cut for cut in cuts if cut <= n]
        for first in cuts:
            for last in (cut for cut in cuts if cut >= first):
                part = order.samples(first, last)
                assert np.array_equal(part, every[first:last]), (first, last)
                assert part.dtype == np.int64
                assert part.shape == (last - first,)

    def test_a_seek_in_a_huge_epoch_equals_the_slice(self) -> None:
        """The position is one integer only if any slot is found without those before it."""
        order = EpochOrder(HUGE, seed=5, epoch=2)
        block = order.samples(HUGE // 3, HUGE // 3 + 20_000)
        for at in (0, 1, 4095, 16_384, 19_999):
            first = HUGE // 3 + at
            assert order.samples(first, first + 1).tolist() == [block[at]]

    @pytest.mark.parametrize(("first", "last"), [(-1, 3), (0, 11), (7, 6), (11, 11)])
    def test_slots_outside_the_epoch_are_refused(self, first: int, last: int) -> None:
        """A slice that numpy silently shortens loses samples."""
        with pytest.raises(ValueError, match=rf"slots {first}\.\.{last}: .* from 0 to 10"):
            EpochOrder(10, seed=0, epoch=0).samples(first, last)

    def test_a_block_of_a_huge_epoch_needs_less_than_8_mib(self) -> None:
        """A list of 1e8 shuffled ids, as torch's sampler makes, peaks at 4.5 GiB per rank."""
        order = EpochOrder(HUGE, seed=1, epoch=0)
        tracemalloc.start()
        try:
            order.samples(HUGE // 2, HUGE // 2 + 65_536)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert 65_536 * 8 <= peak < 8 * 2**20


class TestKeys:
    @pytest.mark.parametrize("n", [100, 5000])
    @pytest.mark.parametrize(
        ("one", "other"), [((1, 2), (2, 1)), ((1, 12), (11, 2)), ((0, 3), (3, 0))]
    )
    def test_seed_and_epoch_are_not_interchangeable(
        self, n: int, one: tuple[int, int], other: tuple[int, int]
    ) -> None:
        """With seed + epoch as the key, seed 2 repeats seed 1's run from its second epoch."""
        ours, theirs = whole(n, *one), whole(n, *other)
        assert np.mean(ours == theirs) < 0.05

    @pytest.mark.parametrize("n", [100, 5000, 2**20])
    def test_each_epoch_has_its_own_order(self, n: int) -> None:
        """With one order for all epochs, the same batches are trained over and over."""
        parts = [EpochOrder(n, seed=1, epoch=epoch).samples(0, 100) for epoch in range(20)]
        assert len({part.tobytes() for part in parts}) == 20
        assert all(np.mean(part == np.arange(100)) < 0.1 for part in parts)

    @pytest.mark.parametrize(
        ("n", "seed", "epoch", "first", "ids"),
        [
            (1, 0, 0, 0, [0]),
            (10, 17, 0, 0, [8, 0, 5, 2, 7, 9, 3, 4, 6, 1]),
            (2047, 17, 3, 2040, [85, 1867, 1696, 1199, 1861, 1892, 863]),
            (2048, 17, 3, 0, [1173, 1281, 839, 35, 305, 1814]),
            (1797, 17, 1, 100, [518, 1698, 82, 1754, 1350, 1066]),
            (20_000, 17, 0, 0, [6607, 13137, 17651, 8689, 19604, 785]),
            (1_000_003, 2**40, 7, 999_995, [291574, 110479, 206689, 187039, 714063, 779985]),
            (
                10**12,
                17,
                2,
                5 * 10**11,
                [547745903699, 286532554262, 721146110164, 363787695801],
            ),
            (
                2**63,
                1,
                1,
                2**62,
                [1596769154299393398, 5659218097186783707, 1775801643893936510],
            ),
        ],
    )
    def test_the_order_has_not_changed_since_the_first_release(
        self, n: int, seed: int, epoch: int, first: int, ids: list[int]
    ) -> None:
        """With a new order, a run that started before an update repeats and skips samples."""
        found = EpochOrder(n, seed=seed, epoch=epoch).samples(first, first + len(ids))
        assert found.tolist() == ids


class TestStatistics:
    @pytest.mark.parametrize("n", [2048, 4099, 100_000, 1_000_003])
    @pytest.mark.parametrize("lag", [1, 2, 16])
    def test_neighbors_are_not_correlated(self, n: int, lag: int) -> None:
        """Neighbors in a file are often similar; a batch of them has a biased gradient."""
        ids = whole(n, seed=11, epoch=4).astype(np.float64)
        ids -= ids.mean()
        correlation = (ids[:-lag] * ids[lag:]).mean() / (ids**2).mean()
        assert abs(correlation) * np.sqrt(n) < 4

    @pytest.mark.parametrize("n", [2048, 100_000, 1_000_003])
    def test_a_tenth_of_the_epoch_comes_from_everywhere(self, n: int) -> None:
        """An epoch that is cut short must not cover only a corner of the data."""
        for part in range(10):
            first = part * n // 10
            ids = EpochOrder(n, seed=2, epoch=1).samples(first, first + n // 10)
            # Drawn without replacement, so scatter is smaller than chi2's, by a factor of 0.9.
            observed = np.bincount(ids * 32 // n, minlength=32)
            assert chi2(observed) < 31 + 6 * np.sqrt(2 * 31)

    def test_all_24_orders_of_four_samples_are_equally_likely(self) -> None:
        """Feistel networks on a handful of values prefer some orders; a shuffle must not."""
        orders = np.array([whole(4, seed=seed) for seed in range(4800)])
        _, counts = np.unique(orders, axis=0, return_counts=True)
        assert len(counts) == 24
        assert chi2(counts) < 23 + 5 * np.sqrt(2 * 23)

    @pytest.mark.parametrize("n", [100, 2048, 3000])
    def test_a_slot_gets_any_sample_over_the_epochs(self, n: int) -> None:
        """Runs that stop early would never see a sample that always comes last."""
        epochs = [EpochOrder(n, seed=9, epoch=epoch) for epoch in range(2000)]
        for slot in (0, n // 2, n - 1):
            ids = np.array([order.samples(slot, slot + 1)[0] for order in epochs])
            observed = np.bincount(ids * 16 // n, minlength=16)
            assert chi2(observed) < 15 + 5 * np.sqrt(2 * 15), slot
