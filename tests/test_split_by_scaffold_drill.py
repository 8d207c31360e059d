"""What the drill split_by_scaffold draws: in every check, each case that a mistake needs."""

from __future__ import annotations

import pytest

from rehearsal.grading.drill import load, module_at

DRILL = load("split_by_scaffold")
plans = module_at(DRILL.folder / "plan.py")
SEEDS = range(20)


def test_the_structures_are_what_the_rows_say() -> None:
    """Somebody will paste a row into RDKit, and then doubt the drill."""
    pytest.importorskip("rdkit")
    from trainer_core.bio.molecule_keys import molecule_standardizer

    standardize = molecule_standardizer()
    rows = {
        row["smiles"]: row
        for seed in range(1)
        for job in plans.jobs(seed).values()
        for call in job.calls
        for row in call.rows
    }
    assert len(rows) > 200
    for text, row in rows.items():
        keys = standardize(text)
        assert (keys.smiles, keys.scaffold) == (row["molecule"], row["scaffold"]), text


class TestEveryDraw:
    @pytest.mark.parametrize("name", ["three ranks", "two ranks"])
    def test_has_molecules_on_several_ranks_and_every_kind_of_conflict(self, name: str) -> None:
        """A merge that sees its own rank only has to be wrong in each check."""
        for seed in SEEDS:
            call = plans.jobs(seed)[name].calls[0]
            apart, together, same_text, none_beside = 0, 0, 0, 0
            for molecule in call.molecules:
                by_rank = [
                    [row for row in shard if row["molecule"] == molecule]
                    for shard in call.shards
                ]
                labels = [{row["label"] for row in own} - {None} for own in by_rank]
                seen = [row["label"] for own in by_rank for row in own]
                texts = {row["smiles"] for own in by_rank for row in own}
                if {0, 1} <= {*seen}:
                    together += {0, 1} in labels
                    apart += {0, 1} not in labels
                    same_text += len(texts) == 1
                elif None in seen and {*seen} != {None}:
                    none_beside += 1
            assert min(apart, together, same_text, none_beside) >= 1, (seed, name)

    def test_repeats_one_scaffold_so_often_that_rows_and_molecules_differ(self) -> None:
        """Otherwise a fraction of the rows would pass for one of the molecules."""
        for seed in SEEDS:
            for job in plans.jobs(seed).values():
                call = job.calls[0]
                sizes = [row["scaffold"] for row in call.molecules.values()]
                largest = max({*sizes} - {""}, key=sizes.count)
                of_rows = sum(row["scaffold"] == largest for row in call.rows) / len(call.rows)
                assert of_rows > sizes.count(largest) / len(sizes) + 0.1, seed

    def test_can_be_split_by_the_molecules_without_a_ring_alone(self) -> None:
        """As one group, or all in training, they have to miss the fraction."""
        for seed in SEEDS:
            for job in plans.jobs(seed).values():
                call = job.calls[-1]
                sizes = [row["scaffold"] for row in call.molecules.values()]
                most = (call.test_fraction + plans.TOLERANCE) * len(sizes)
                assert all(sizes.count(scaffold) > most for scaffold in {*sizes})
                assert 1 / len(sizes) < plans.TOLERANCE, "whole molecules can't come closer"
                assert call.test_fraction != job.calls[0].test_fraction

    def test_has_a_rank_without_rows_and_the_same_molecules_four_times(self) -> None:
        """An order is compared with another one of the same rows."""
        for seed in SEEDS:
            table, again, other_order, other_rows, _ = plans.jobs(seed)["three ranks"].calls
            assert again.shards == table.shards
            assert [] in other_order.shards
            assert [] not in table.shards
            in_order = sorted(table.rows, key=str)
            assert sorted(other_order.rows, key=str) == in_order
            assert sorted(other_rows.rows, key=str) != in_order
            assert other_rows.molecules.keys() == table.molecules.keys()
