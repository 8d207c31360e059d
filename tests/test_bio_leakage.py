"""The report finds what was planted: twins, neighbors, assays, years, and scaffold effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from bio_molecules import smiles_of, table_of
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("rdkit")

from rdkit import DataStructs
from trainer_core.bio.assays import plant_assay, plant_twins, scaffold_library, substituent_keys
from trainer_core.bio.clusters import scaffold_group_keys
from trainer_core.bio.featurize import morgan_bit_vectors
from trainer_core.bio.leakage import LeakageReport, leakage_report
from trainer_core.bio.molecules import MoleculeOptions, MoleculeTable, build_molecule_table
from trainer_core.bio.scaffold_effects import known_gap, memorized_share, memorizer_predictions
from trainer_core.bio.scaffold_effects import scaffold_leak, scaffold_variance
from trainer_core.bio.splits import Split, random_split, scaffold_split
from trainer_core.settings import UserError

NAN = float("nan")


def by_hand(table: MoleculeTable, parts: Sequence[int]) -> Split:
    return Split(parts=np.array(parts, np.int8), name="by hand", options={}, table=table)


def report_on(parts: Sequence[int], *smiles: str, **columns: object) -> LeakageReport:
    table = table_of(*smiles, merge=False, **columns)  # type: ignore[arg-type]
    return leakage_report(table, by_hand(table, parts))


class TestCounts:
    def test_identical_molecules_and_contradictions(self) -> None:
        """The same molecule on both sides is a question asked with its answer."""
        report = report_on(
            [0, 0, 0, 2, 2, 2, 2, 2],
            *["CCO", "CCO", "CCN", "OCC", "NCC", "CC(=O)[O-].[Na+]", "OCC", "NCC"],
            labels=[[1, 0], [1, NAN], [0, 0], [1, 1], [0, NAN], [1, 1], [NAN, 0], [1, 0]],
            tasks=["a", "b"],
        )
        assert report.duplicates == (2, 4, 0.8)
        # CCO has b = 0 in train and 1 in the test; CCN has a = 0 and 1.
        assert report.conflicts == 2

    def test_mirror_images_and_labeled_forms(self) -> None:
        """A fingerprint without chirality sees the same molecule twice."""
        report = report_on(
            [0, 0, 2, 2, 2],
            *["C[C@@H](C(=O)O)N", "c1ccccc1", "C[C@H](C(=O)O)N", "[2H]c1ccccc1", "CCO"],
        )
        assert report.duplicates.rows == 0
        assert report.stereoisomers == (2, 2, pytest.approx(2 / 3))

    def test_scaffolds_are_shared_and_having_none_is_not_sharing_one(self) -> None:
        """The empty scaffold would make every acyclic molecule a leak."""
        report = report_on([0, 0, 2, 2, 2], "c1ccccc1C", "CCO", "c1ccccc1O", "c1ccncc1", "CCCN")
        assert report.scaffolds == (1, 1, pytest.approx(1 / 3))
        assert report.generic_scaffolds == (1, 2, pytest.approx(2 / 3))
        assert report.acyclic == 1

    def test_assays_and_years_across_the_split(self) -> None:
        """An assay's plate effects, or next year's knowledge, is on both sides."""
        columns = {"assays": ["x", "y", "x", "z"], "years": [2001, 2012, 2010, NAN]}
        report = report_on([0, 0, 2, 2], "CCO", "CCN", "CCC", "CCF", **columns)
        assert report.assays == (1, 1, 0.5)
        assert report.time_inversions == 1
        assert report_on([0, 2], "CCO", "CCN").time_inversions is None

    def test_a_molecule_measured_again_later_is_an_inversion(self) -> None:
        """Its label may be the later measurement."""
        columns = {"years": [2001, 2015, 2010]}
        table = table_of("CCO", "OCC", "CCN", **columns)  # type: ignore[arg-type]
        assert leakage_report(table, by_hand(table, [0, 2])).time_inversions == 1

    def test_neighbors_are_the_nearest_in_train_by_tanimoto(self) -> None:
        """A split can keep every scaffold apart, and test on what differs in one atom."""
        names = [*smiles_of(), *scaffold_library(8, 3).smiles]
        table = table_of(*names)
        split = random_split(table, (0.5, 0.2, 0.3), seed=1)
        found = leakage_report(table, split, threshold=0.5).neighbors
        prints = morgan_bit_vectors(table.smiles)
        best = [
            max(DataStructs.TanimotoSimilarity(prints[i], prints[j]) for j in split.rows_of(0))
            for i in split.rows_of(2)
        ]
        assert found.quantiles == pytest.approx(
            np.quantile(best, (0.05, 0.25, 0.5, 0.75, 0.95))
        )
        assert found.above == pytest.approx(np.mean(np.array(best) >= 0.5))
        assert 0 < found.above < 1
        assert leakage_report(table, split, max_compared=4).neighbors.compared == 4

    def test_another_tables_split_and_an_empty_part_are_refused(self) -> None:
        """A report on the wrong molecules looks as good as any."""
        table, other = table_of("CCO", "CCN"), table_of("CCO", "CCC")
        with pytest.raises(UserError, match="parts belong to other molecules"):
            leakage_report(table, by_hand(other, [0, 2]))
        with pytest.raises(UserError, match="nothing to compare with an empty part"):
            leakage_report(table, by_hand(table, [0, 0]))


@pytest.fixture(scope="module")
def library() -> MoleculeTable:
    return build_molecule_table(scaffold_library(60, 12, seed=1))


class TestPlantedTwins:
    @pytest.mark.parametrize(("share", "seed"), [(0.0, 0), (0.1, 1), (0.3, 2)])
    def test_the_report_finds_exactly_the_share_that_was_planted(
        self, share: float, seed: int
    ) -> None:
        """A hydrate with its atoms in another order has another text and another number."""
        smiles = scaffold_library(16, 12, seed=seed).smiles
        table = table_of(*smiles, labels=np.zeros((len(smiles), 1)), tasks=["a"])
        split = scaffold_split(table, (0.8, 0.0, 0.2))
        rows, parts = plant_twins(table, split, share, seed=seed)
        assert len(set(rows.smiles)) == len(rows.smiles)
        leaky = build_molecule_table(rows, MoleculeOptions(merge=False))
        report = leakage_report(leaky, by_hand(leaky, parts.tolist()))
        planted = round(share * split.counts["test"])
        assert report.duplicates.rows == planted
        assert report.duplicates.fraction == pytest.approx(share, abs=0.02)
        # Merged before it is split, the table has no twins left.
        assert build_molecule_table(rows).digest == table.digest


def groups_of(num_groups: int, seed: int) -> tuple[list[str], list[str]]:
    """Scaffold and substituent of 8000 molecules; scaffolds differ in size as real ones do."""
    random = np.random.default_rng(seed)
    weights = 1 / np.arange(2, num_groups + 2) ** 0.5
    scaffolds = random.choice(num_groups, 8000, p=weights / weights.sum())
    return [f"s{x}" for x in scaffolds], [f"r{x}" for x in random.integers(0, 300, 8000)]


class TestPlantedScaffoldEffect:
    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("share", [0.3, 0.6])
    def test_share_and_gap_are_recovered_within_a_tenth(self, share: float, seed: int) -> None:
        """A report that can't measure a known leak says nothing about an unknown one."""
        scaffolds, substituents = groups_of(400, seed)
        assay = plant_assay(
            scaffolds,
            scaffold_share=share,
            substituents=substituents,
            substituent_share=0.25,
            seed=seed,
        )
        found = scaffold_leak(assay.labels, scaffolds, seed=seed)
        assert found.share == pytest.approx(share, rel=0.1)
        assert found.gap == pytest.approx(assay.known_gap(), rel=0.1)
        # With whole scaffolds held out, knowing them is worth nothing.
        assert abs(found.grouped_r2) < 0.03

    def test_without_an_effect_there_is_no_gap(self) -> None:
        """A report that always finds a leak is ignored after a week."""
        scaffolds, substituents = groups_of(400, 9)
        assay = plant_assay(
            scaffolds, scaffold_share=0.0, substituents=substituents, substituent_share=0.5
        )
        found = scaffold_leak(assay.labels, scaffolds)
        assert abs(found.share) < 0.02
        assert abs(found.gap) < 0.02
        assert assay.known_gap() == 0

    def test_the_report_shows_it_on_molecules_under_both_splits(
        self, library: MoleculeTable
    ) -> None:
        """The same labels: memorizing scores at random, and nothing on new scaffolds."""
        groups = scaffold_group_keys(library)
        assay = plant_assay(
            groups,
            scaffold_share=0.6,
            substituents=substituent_keys(library),
            substituent_share=0.3,
            seed=2,
        )
        table = replace(library, labels=assay.labels[:, None], tasks=("planted",))
        fractions = (0.7, 0.0, 0.3)
        at_random = leakage_report(table, random_split(table, fractions, seed=0))
        by_scaffold = leakage_report(table, scaffold_split(table, fractions))
        (random_task,), (scaffold_task,) = at_random.tasks, by_scaffold.tasks
        assert random_task.memorized_r2 == pytest.approx(0.56, abs=0.1)
        assert scaffold_task.memorized_r2 < 0.02
        assert random_task.leak == scaffold_task.leak
        assert random_task.leak.share == pytest.approx(0.6, rel=0.1)
        assert random_task.leak.gap == pytest.approx(assay.known_gap(), rel=0.1)
        assert at_random.scaffolds.fraction == 1
        assert by_scaffold.scaffolds.rows == 0
        assert at_random.neighbors.above > by_scaffold.neighbors.above
        assert "planted: the scaffold decides 58%" in at_random.lines()[-1]
        assert len(by_scaffold.lines()) == 9

    def test_missing_labels_play_no_part(self) -> None:
        """Most labels are missing in most tables, and zeros in their place are a signal."""
        scaffolds, _ = groups_of(200, 1)
        labels = plant_assay(scaffolds, scaffold_share=0.5).labels
        holes = np.random.default_rng(0).random(len(labels)) < 0.4
        known = [name for name, hole in zip(scaffolds, holes, strict=True) if not hole]
        expected = scaffold_leak(labels[~holes], known)
        assert scaffold_leak(np.where(holes, NAN, labels), scaffolds) == expected

    def test_labels_that_say_nothing_give_no_figure(self) -> None:
        """Zero divided by zero would look like a perfect split."""
        for labels in ([1.0] * 20, [NAN] * 20, [NAN] * 18 + [0.0, 1.0]):
            assert np.isnan(scaffold_leak(labels, list("ab") * 10)).all()
        # All scaffolds differ: nothing was seen before, and no variance can be told apart.
        labels = np.arange(20.0)
        assert np.isnan(scaffold_leak(labels, list("abcdefghijklmnopqrst")).share)

    def test_impossible_recipes_are_refused(self) -> None:
        """Shares above the whole would leave noise with a negative variance."""
        with pytest.raises(UserError, match="their sum is at most 1"):
            plant_assay(["a", "b"], scaffold_share=0.8, substituent_share=0.3)
        with pytest.raises(UserError, match="all molecules have the same scaffold"):
            plant_assay(["a", "a"], scaffold_share=0.8)
        with pytest.raises(UserError, match="make 1120 scaffolds with 121 members"):
            scaffold_library(5000, 1)


class TestVariance:
    @settings(max_examples=25)
    @given(
        st.lists(
            st.tuples(st.integers(0, 4), st.floats(-9, 9, width=16)), min_size=4, max_size=30
        )
    )
    def test_it_takes_apart_what_analysis_of_variance_takes_apart(
        self, rows: list[tuple[int, float]]
    ) -> None:
        """The textbook's sums, in a loop."""
        groups = np.array([group for group, _ in rows])
        labels = np.array([label for _, label in rows])
        sets = [labels[groups == group] for group in sorted(set(groups))]
        found = scaffold_variance(labels, groups)
        n, g = len(labels), len(sets)
        if g < 2 or g == n:
            assert np.isnan(found).all()
            return
        inside = sum(((own - own.mean()) ** 2).sum() for own in sets) / (n - g)
        outside = sum(len(own) * (own.mean() - labels.mean()) ** 2 for own in sets) / (g - 1)
        typical = (n - sum(len(own) ** 2 for own in sets) / n) / (g - 1)
        assert found.within == pytest.approx(inside)
        assert found.between == pytest.approx(max(0, (outside - inside) / typical))

    def test_the_memorizer_knows_scaffold_means_and_nothing_else(self) -> None:
        """It stands for the worst model, so it must not learn anything real."""
        groups = np.array([0, 0, 0, 1, 1, 1, 2])
        labels = np.array([1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 9.0])
        train = np.array([0, 1, 3, 4])
        predicted = memorizer_predictions(labels, groups, train)
        assert predicted == pytest.approx([1, 1, 1, -1, -1, -1, 0])
        assert memorized_share(labels, groups, train, np.array([2, 5])) == pytest.approx(1)
        assert memorized_share(labels, groups, train, np.array([6])) == pytest.approx(0)

    def test_the_known_gap_is_the_textbooks(self) -> None:
        """Two labels of a scaffold, half of the folds' other labels: computed by hand."""
        # m = 1 * 4/5; 0.5 * 0.8 / (0.8 + 1)
        assert known_gap(0.5, ["a", "a", "b", "b"]) == pytest.approx(0.5 * 0.8 / 1.8)
        assert known_gap(0.5, ["a", "b"]) == 0


class TestLibrary:
    def test_every_scaffold_has_as_many_substituents(self, library: MoleculeTable) -> None:
        """A library whose molecules fall together has fewer scaffolds than it says."""
        keys = substituent_keys(library)
        assert len(library) == 720
        assert 50 < len({key.scaffold for key in library.keys}) <= 60
        assert len(set(keys)) > 60
        assert "" in keys
        first = table_of("Fc1ccc(cc1)-c1ccncc1", "Fc1ccc(cc1)Cc1ccccc1", "CCO")
        assert substituent_keys(first) == ["*F", "*F", ""]

    def test_an_assay_of_actives_has_the_hit_rate_asked_for(self) -> None:
        """Classification tasks are planted the same way."""
        scaffolds, _ = groups_of(50, 0)
        actives = plant_assay(scaffolds, scaffold_share=0.5).actives(0.05)
        assert actives.mean() == pytest.approx(0.05, abs=0.001)
        assert set(actives.tolist()) == {0.0, 1.0}
