"""A group-by over files: the same parts on any number of ranks, in memory that doesn't grow."""

from __future__ import annotations

import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainer_core.bio import exchange
from trainer_core.bio.exchange import ExchangeWriter, FileExchange
from trainer_core.bio.group_rule import GroupingPlan, PartRule
from trainer_core.bio.scaffold_groups import GroupingResult, group_scaffolds, hash_keys
from trainer_core.bio.scaffold_groups import read_group_parts
from trainer_core.config import TrainConfig
from trainer_core.local_launcher import LocalRanks
from trainer_core.settings import UserError

# Ranks cannot import a test module; its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 5000


def key_of(row: int) -> str:
    """A fifth of the rows have one scaffold, as benzene does in real tables."""
    return "c1ccccc1" if row % 5 == 0 else f"scaffold {row * 7919 % 601}"


def chunks_of(
    rank: int, world_size: int, chunk: int, num_rows: int = ROWS
) -> Iterator[tuple[int, list[str]]]:
    """Every world_size-th chunk, so that no rank's rows lie together."""
    for first in range(rank * chunk, num_rows, world_size * chunk):
        last = min(first + chunk, num_rows)
        yield first, [key_of(row) for row in range(first, last)]


def plan_of(**changes: Any) -> GroupingPlan:
    bounds = {"rows_per_partition": 700, "rows_per_block": 900}
    return GroupingPlan(**{"num_rows": ROWS, **bounds, **changes})


def grouped(folder: Path, chunk: int = 300, **changes: Any) -> tuple[GroupingResult, Any]:
    """The result and every row's part, on this process alone."""
    result = group_scaffolds(
        chunks_of(0, 1, chunk), folder, plan_of(**changes), rank=0, world_size=1
    )
    return result, np.concatenate(list(read_group_parts(folder)))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[GroupingResult, Any]:
    return grouped(tmp_path_factory.mktemp("alone") / "split")


class TestGroups:
    @pytest.mark.parametrize("by", ["size", "hash"])
    def test_rows_of_a_scaffold_have_one_part(self, by: str, tmp_path: Path) -> None:
        """A scaffold in two files of a billion rows is a leak that nobody finds by looking."""
        result, parts = grouped(tmp_path / "split", by=by)
        part_of: dict[str, set[int]] = {}
        for row, part in enumerate(parts.tolist()):
            part_of.setdefault(key_of(row), set()).add(part)
        assert {len(own) for own in part_of.values()} == {1}
        sizes = Counter(map(key_of, range(ROWS)))
        assert (result.num_groups, result.largest) == (len(sizes), max(sizes.values()))
        assert result.counts == tuple(np.bincount(parts, minlength=3).tolist())
        assert np.array(result.counts) / ROWS == pytest.approx([0.8, 0.1, 0.1], abs=0.06)

    def test_the_largest_scaffolds_train_and_the_rare_ones_test(self, tmp_path: Path) -> None:
        """By size is what scaffold_split promises; by hash, benzene may be the test set."""
        _, parts = grouped(tmp_path / "split", fractions=(0.5, 0.25, 0.25))
        sizes = Counter(map(key_of, range(ROWS)))
        means = [
            np.mean([sizes[key_of(row)] for row in np.flatnonzero(parts == part)])
            for part in range(3)
        ]
        assert parts[0] == 0
        assert means[0] > means[1] >= means[2]

    @settings(max_examples=60)
    @given(
        st.dictionaries(st.integers(1, 10**6), st.integers(1, 50), min_size=1, max_size=20),
        st.sampled_from([(0.8, 0.1, 0.1), (0.5, 0.25, 0.25), (0.9, 0.0, 0.1), (1.0, 0.0, 0.0)]),
    )
    def test_every_larger_group_comes_before_every_smaller_one(
        self, histogram: dict[int, int], fractions: tuple[float, float, float]
    ) -> None:
        """One size that is out of line moves a common scaffold into the test set."""
        rule = PartRule(histogram, GroupingPlan(num_rows=1, fractions=fractions))
        random = np.random.default_rng(0)
        hashes = random.integers(0, 2**63, 200, dtype=np.uint64)
        ranges = []
        for size in sorted(histogram, reverse=True):
            parts = rule.parts(hashes, np.full(200, size))
            ranges.append((int(parts.min()), int(parts.max())))
            assert histogram[size] > 1 or parts.min() == parts.max()
        for (_, last), (first, _) in pairwise(ranges):
            assert last <= first
        assert ranges[0][0] == 0

    def test_a_scaffold_that_most_rows_have_is_trained_on(self) -> None:
        """Cut by a boundary, it would be drawn, and could be the test set."""
        for seed in range(20):
            plan = GroupingPlan(num_rows=1000, seed=seed)
            rule = PartRule({900: 1, 1: 100}, plan)
            assert rule.parts(hash_keys(["benzene"]), np.array([900])).tolist() == [0]

    def test_the_seed_decides_who_of_equals_comes_first(self) -> None:
        """Error bars over seeds need splits that differ."""
        hashes, ones = hash_keys([str(x) for x in range(2000)]), np.ones(2000, np.int64)
        drawn = []
        for seed in (0, 1):
            drawn.append(PartRule({1: 2000}, GroupingPlan(num_rows=2000, seed=seed)))
        first, second = (rule.parts(hashes, ones) for rule in drawn)
        assert (first != second).mean() > 0.2
        for parts in (first, second):
            counts = np.bincount(parts.astype(int)) / 2000
            assert counts == pytest.approx([0.8, 0.1, 0.1], abs=0.03)


class TestIndependence:
    @pytest.mark.parametrize("chunk", [77, 5000])
    def test_chunks_do_not_matter(
        self, chunk: int, alone: tuple[GroupingResult, Any], tmp_path: Path
    ) -> None:
        """A larger machine must not draw another split."""
        result, parts = grouped(tmp_path / "split", chunk)
        assert result == alone[0]
        assert np.array_equal(parts, alone[1])

    def test_chunks_of_one_row_work_too(self, tmp_path: Path) -> None:
        """The last chunk of a file is as long as it happens to be."""
        plan, found = plan_of(num_rows=200), []
        for size in (1, 200):
            chunks = chunks_of(0, 1, size, 200)
            found.append(
                group_scaffolds(chunks, tmp_path / str(size), plan, rank=0, world_size=1)
            )
        assert found[0] == found[1]

    def test_partitions_do_not_matter_and_the_plan_does(
        self, alone: tuple[GroupingResult, Any], tmp_path: Path
    ) -> None:
        """Bounds of memory are no part of a split; fractions and seeds are."""
        assert grouped(tmp_path / "a", rows_per_partition=10**6)[0] == alone[0]
        assert np.array_equal(grouped(tmp_path / "b", rows_per_block=170)[1], alone[1])
        changes: list[dict[str, Any]] = [{"seed": 1}, {"by": "hash"}]
        changes += [{"fractions": (0.7, 0.1, 0.2)}]
        digests = {alone[0].digest}
        for place, change in enumerate(changes):
            digests.add(grouped(tmp_path / f"c{place}", **change)[0].digest)
        assert len(digests) == 4

    def test_hashes_are_the_same_in_every_process(self) -> None:
        """Python's own hash of a text changes with every start."""
        # From coreutils: printf c1ccccc1 | b2sum -l 64
        expected = [13234177481959681782, 13020603013274838756]
        assert hash_keys(["c1ccccc1", ""]).tolist() == expected


def group_on_ranks(folder: Path, chunk: int, broken: str = "") -> Any:
    """What each rank runs."""
    from trainer_core.distributed import cleanup_dist, maybe_init_dist

    info = maybe_init_dist(TrainConfig(device="cpu"))
    rank, world_size = info.rank, info.world_size
    chunks = chunks_of(rank, world_size, chunk)
    if broken == "missing" and rank == 1:
        chunks = iter(list(chunks)[1:])
    if broken == "twice" and rank == 1:
        chunks = iter([*chunks, (0, [key_of(0)])])
    if broken == "beyond" and rank == 1:
        chunks = iter([(ROWS, ["c1ccccc1"])])
    try:
        return group_scaffolds(chunks, folder, plan_of(), rank=rank, world_size=world_size)
    except UserError as error:
        return str(error)
    finally:
        cleanup_dist()


@pytest.mark.ranks
class TestRanks:
    @pytest.mark.parametrize(("world_size", "chunk"), [(1, 300), (2, 400), (3, 2500)])
    def test_any_number_of_ranks_gives_the_same_parts(
        self, world_size: int, chunk: int, alone: tuple[GroupingResult, Any], tmp_path: Path
    ) -> None:
        """Of three ranks with chunks of 2500 rows, one has no rows at all."""
        job = partial(group_on_ranks, tmp_path / "split", chunk)
        results = LocalRanks(job, world_size).wait(120)
        assert [result.value for result in results] == [alone[0]] * world_size
        parts = np.concatenate(list(read_group_parts(tmp_path / "split")))
        assert np.array_equal(parts, alone[1])
        # What travelled between the ranks is gone.
        names = sorted(path.name for path in (tmp_path / "split").iterdir())
        assert names == ["manifest.json", *(f"part-{block:05d}.npy" for block in range(6))]

    @pytest.mark.parametrize(
        ("broken", "message"),
        [
            ("missing", "row 300 is on no rank"),
            ("twice", "rows came twice: of rows 0..899, 901 were read"),
            ("beyond", "rows 5000..5000: the plan has num_rows=5000"),
        ],
    )
    def test_rows_that_are_lost_or_read_twice_stop_all_ranks(
        self, broken: str, message: str, tmp_path: Path
    ) -> None:
        """A row without a part is trained on by whoever reads the default, which is train."""
        job = partial(group_on_ranks, tmp_path / "split", 300, broken)
        for result in LocalRanks(job, 2).wait(120):
            assert message in result.value
        assert not (tmp_path / "split" / "manifest.json").exists()


class TestRefusals:
    def test_a_folder_that_exists_and_a_senseless_plan(self, tmp_path: Path) -> None:
        """Parts of two splits in one folder are no split at all."""
        with pytest.raises(UserError, match="exists, and a split is never written over"):
            grouped(tmp_path)
        for change in ({"fractions": (0.5, 0.1, 0.1)}, {"by": "name"}, {"num_rows": 0}):
            with pytest.raises(UserError, match="Nothing has started"):
                grouped(tmp_path / "split", **change)
        assert list(tmp_path.iterdir()) == []


class TestExchange:
    @settings(max_examples=20)
    @given(st.lists(st.lists(st.integers(0, 4), max_size=40), max_size=5), st.integers(1, 3))
    def test_every_record_arrives_once_where_it_was_sent(
        self, tmp_path_factory: pytest.TempPathFactory, sent: list[list[int]], columns: int
    ) -> None:
        """A record that is lost here is a molecule without a part."""
        folder = tmp_path_factory.mktemp("exchange")
        files = FileExchange(folder, 5, columns)
        expected: dict[int, list[int]] = {place: [] for place in range(5)}
        number = 0
        for rank, destinations in enumerate(sent):
            writer = ExchangeWriter(files, rank)
            for start in range(0, len(destinations), 7):
                own = np.array(destinations[start : start + 7])
                records = np.arange(number, number + len(own), dtype=np.uint64)
                for record, place in zip(records.tolist(), own.tolist(), strict=True):
                    expected[place].append(record)
                writer.send(np.stack([records] * columns, axis=1), own)
                number += len(own)
            writer.close()
        for place in range(5):
            pieces = list(files.read(place))
            found = np.concatenate([np.zeros((0, columns), np.uint64), *pieces])
            assert found.tolist() == [[record] * columns for record in expected[place]]


class TestMemory:
    def test_four_times_the_rows_take_no_more_memory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The bound is the point: 4.2 billion keys fit in no dict, nor do benzene's rows."""
        monkeypatch.setattr(exchange, "PIECE_RECORDS", 500)

        def peak(num_rows: int) -> int:
            plan = plan_of(num_rows=num_rows, rows_per_partition=2000, rows_per_block=2000)
            chunks = chunks_of(0, 1, 1000, num_rows)
            tracemalloc.start()
            try:
                folder = tmp_path / str(num_rows)
                group_scaffolds(chunks, folder, plan, rank=0, world_size=1)
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

        peak(5_000)  # what numpy allocates once
        assert peak(40_000) < 1.3 * peak(10_000)
