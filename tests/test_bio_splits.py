"""Splits are pure functions of the table: whole groups, any order of rows, one digest."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from bio_molecules import smiles_of, table_of
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("rdkit")

from rdkit import DataStructs
from rdkit.ML.Cluster import Butina
from trainer_core.bio import splits
from trainer_core.bio.assays import scaffold_library
from trainer_core.bio.clusters import butina_clusters, scaffold_group_keys
from trainer_core.bio.featurize import morgan_bit_vectors
from trainer_core.bio.molecules import MoleculeTable
from trainer_core.bio.splits import Split, cluster_split, fill_parts, load_split, random_split
from trainer_core.bio.splits import save_split, scaffold_split, time_split
from trainer_core.settings import UserError

LIBRARY = [*smiles_of(), *scaffold_library(12, 3, seed=3).smiles]
YEARS = [1990 + place % 12 for place in range(len(LIBRARY))]
FRACTIONS = (0.6, 0.2, 0.2)
SPLITS: dict[str, Callable[[MoleculeTable], Split]] = {
    "random": partial(random_split, fractions=FRACTIONS, seed=5),
    "scaffold": partial(scaffold_split, fractions=FRACTIONS),
    "seeded scaffold": partial(scaffold_split, fractions=FRACTIONS, seed=5),
    "generic": partial(scaffold_split, fractions=FRACTIONS, generic=True, acyclic="molecule"),
    "cluster": partial(cluster_split, fractions=FRACTIONS),
    "time": partial(time_split, fractions=FRACTIONS),
}


@pytest.fixture(scope="module")
def table() -> MoleculeTable:
    return table_of(*LIBRARY, years=YEARS)


class TestOrderOfRows:
    @settings(max_examples=4)
    @given(st.permutations(range(len(LIBRARY))))
    def test_shuffled_rows_give_the_same_split(self, order: list[int]) -> None:
        """Sorting a file, or reading it in parallel, would move test molecules into train."""
        straight = table_of(*LIBRARY, years=YEARS)
        shuffled = table_of(*(LIBRARY[i] for i in order), years=[YEARS[i] for i in order])
        for name, split in SPLITS.items():
            first, second = split(straight), split(shuffled)
            assert first.digest == second.digest, name
            assert np.array_equal(second.parts, first.parts[order]), name

    @pytest.mark.parametrize("name", SPLITS)
    def test_it_depends_on_the_version(
        self, name: str, table: MoleculeTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A change in the code must not pass for the old split."""
        before = SPLITS[name](table).digest
        assert before == SPLITS[name](table).digest
        monkeypatch.setattr(splits, "SPLITS_VERSION", "other")
        assert SPLITS[name](table).digest != before

    def test_seeds_and_options_give_different_splits(self, table: MoleculeTable) -> None:
        """Error bars over seeds that all draw the same split are zero."""
        made = [random_split(table, seed=seed) for seed in range(3)]
        made += [scaffold_split(table, seed=seed) for seed in (None, 0, 1)]
        assert len({split.in_content_order for split in made}) == 6
        assert len({split.digest for split in made}) == 6


class TestGroups:
    @pytest.mark.parametrize("name", ["scaffold", "seeded scaffold", "generic", "cluster"])
    def test_whole_groups_lie_on_one_side(self, name: str, table: MoleculeTable) -> None:
        """A scaffold on both sides lets a model recognize it instead of judging it."""
        is_generic = name == "generic"
        keys = [key.generic if is_generic else key.scaffold for key in table.keys]
        if name == "cluster":
            centers = butina_clusters(sorted({key.flat for key in table.keys}), cutoff=0.4)
            keys = [centers[key.flat] for key in table.keys]
        parts = SPLITS[name](table).parts
        assert min(Counter(parts.tolist()).values()) >= 4
        for group in set(keys) - {""}:
            own = {int(part) for key, part in zip(keys, parts, strict=True) if key == group}
            assert len(own) == 1, group

    def test_large_groups_train_and_rare_ones_test(self, table: MoleculeTable) -> None:
        """That is the split's promise: it is tested on chemistry that is new and rare."""
        split = scaffold_split(table, (0.6, 0.2, 0.2))
        sizes = Counter(scaffold_group_keys(table))
        size_of = [sizes[key] for key in scaffold_group_keys(table)]
        means = [np.mean([size_of[row] for row in split.rows_of(part)]) for part in range(3)]
        assert means[0] > means[1] >= means[2]
        assert split.counts == {"train": 31, "validation": 10, "test": 10}

    def test_a_group_that_fits_nowhere_goes_to_the_largest_part(self) -> None:
        """With the common fill rule, a scaffold that most molecules share is the test set."""
        assert fill_parts([90, 5, 5], (0.8, 0.1, 0.1)) == [0, 1, 1]

    @settings(max_examples=30)
    @given(st.lists(st.integers(1, 9), min_size=1, max_size=60))
    def test_parts_miss_their_share_by_less_than_a_group(self, sizes: list[int]) -> None:
        """A test set of half its size doubles the error bar of every result."""
        parts = fill_parts(sizes, (0.7, 0.1, 0.2))
        for part, share in enumerate((0.7, 0.1, 0.2)):
            rows = sum(size for size, own in zip(sizes, parts, strict=True) if own == part)
            assert abs(rows - share * sum(sizes)) <= 2 * max(sizes)

    def test_identical_molecules_stay_together_at_random_too(self) -> None:
        """An unmerged table has the same compound many times, and a coin for each row leaks."""
        table = table_of(*["CCO", "CCN", "CCC", "CCF", "CCCl"] * 8, merge=False)
        parts = random_split(table, (0.6, 0.2, 0.2), seed=0).parts
        assert len(set(zip(table.smiles, parts.tolist(), strict=True))) == 5

    def test_butina_clusters_are_rdkits(self) -> None:
        """The paper says Butina, and readers compare with RDKit."""
        smiles = sorted(set(LIBRARY))
        prints = morgan_bit_vectors(smiles)
        distances = [
            1 - similarity
            for place in range(1, len(prints))
            for similarity in DataStructs.BulkTanimotoSimilarity(prints[place], prints[:place])
        ]
        for cutoff in (0.2, 0.4, 0.65):
            clusters = Butina.ClusterData(distances, len(prints), cutoff, isDistData=True)
            expected = {smiles[i]: smiles[each[0]] for each in clusters for i in each}
            assert butina_clusters(smiles, cutoff=cutoff) == expected
        assert 5 < len(set(expected.values())) < len(smiles)

    def test_clusters_are_refused_where_they_would_take_days(self) -> None:
        """Quadratic time shows as a job that hangs."""
        with pytest.raises(UserError, match=r"3 molecules to cluster.*limit=2"):
            butina_clusters(["C", "CC", "CCC"], cutoff=0.4, limit=2)
        with pytest.raises(UserError, match="cutoff=4"):
            butina_clusters(["C"], cutoff=4)


class TestAcyclic:
    ACIDS = smiles_of("stearic acid", "palmitic acid", "metformin", "alanine", "aspirin")

    def groups(self, policy: str) -> list[str]:
        return scaffold_group_keys(table_of(*self.ACIDS), acyclic=policy)  # type: ignore[arg-type]

    def test_similar_ones_stay_together(self) -> None:
        """Palmitic acid in train answers for stearic acid: their fingerprints are equal."""
        stearic, palmitic, metformin, alanine, aspirin = self.groups("cluster")
        assert stearic == palmitic
        assert len({stearic, metformin, alanine, aspirin}) == 4

    def test_the_other_policies(self) -> None:
        """As one family they move as a block: half of a table can change sides at once."""
        assert len(set(self.groups("molecule"))) == 5
        assert len(set(self.groups("together"))) == 2
        with pytest.raises(UserError, match="4 of 5 molecules have no ring, the first of them"):
            self.groups("refuse")

    def test_mirror_images_stay_together(self) -> None:
        """Each its own group, they would be told apart by nothing but the split."""
        table = table_of("C[C@@H](C(=O)O)N", "C[C@H](C(=O)O)N")
        assert len(set(scaffold_group_keys(table, acyclic="molecule"))) == 1

    def test_the_policy_is_part_of_the_digest(self) -> None:
        """Two results with different policies aren't comparable."""
        table = table_of(*LIBRARY)
        made = [scaffold_split(table, acyclic=each) for each in ("cluster", "molecule")]
        assert made[0].digest != made[1].digest


class TestTime:
    def test_no_year_is_divided_and_none_is_inverted(self, table: MoleculeTable) -> None:
        """A model that has seen next year's molecules predicts them well."""
        split = SPLITS["time"](table)
        years = [table.years[split.rows_of(part)] for part in range(3)]
        assert years[0].max() < years[1].min() <= years[1].max() < years[2].min()
        assert [len(own) / 51 for own in years] == pytest.approx(FRACTIONS, abs=0.1)

    @settings(max_examples=50)
    @given(
        st.lists(st.integers(0, 6), min_size=3, max_size=30).filter(lambda y: len(set(y)) > 2),
        st.sampled_from([(0.8, 0.1, 0.1), (0.1, 0.8, 0.1), (0.1, 0.1, 0.8), (0.5, 0.0, 0.5)]),
    )
    def test_every_part_gets_a_year_and_they_are_in_order(
        self, years: list[int], fractions: tuple[float, float, float]
    ) -> None:
        """A crowded first or last year must not leave a part empty."""
        smiles = ["C" * (place + 1) for place in range(len(years))]
        split = time_split(table_of(*smiles, years=years), fractions)
        owners = [set(np.array(years)[split.rows_of(part)]) for part in range(3)]
        assert [bool(own) for own in owners] == [bool(share) for share in fractions]
        ordered = [year for own in owners for year in sorted(own)]
        assert ordered == sorted(set(years))

    def test_a_molecule_without_a_year_and_too_few_years_are_refused(self) -> None:
        """Put on either side, an undated molecule is a guess that nobody sees."""
        undated = table_of("CCO", "CCN", years=[1999, float("nan")], ids=["a", "b"])
        with pytest.raises(UserError, match=r"1 of 2 molecules have no year, the first .* b"):
            time_split(undated)
        with pytest.raises(UserError, match="2 different years for 3 parts"):
            time_split(table_of("CCO", "CCN", "C", years=[1999, 2000, 2000]))


class TestRefusals:
    @pytest.mark.parametrize("fractions", [(0.5, 0.1, 0.1), (0, 0.5, 0.5), (1.2, -0.1, -0.1)])
    def test_fractions_that_are_none(
        self, fractions: tuple[float, float, float], table: MoleculeTable
    ) -> None:
        """Shares that don't add up lose molecules."""
        for split in (partial(random_split, seed=0), scaffold_split, time_split):
            with pytest.raises(UserError, match="must be three shares"):
                split(table, fractions)

    def test_a_part_that_would_be_empty(self) -> None:
        """A metric over no molecules is NaN, hours later."""
        table = table_of("c1ccccc1O", "c1ccccc1N", "c1ccccc1C")
        with pytest.raises(UserError, match="nothing is left for validation"):
            scaffold_split(table)
        assert scaffold_split(table, (1, 0, 0)).counts["train"] == 3


class TestManifest:
    def test_it_returns_the_split_for_the_rows_in_any_order(self, tmp_path: Path) -> None:
        """Every rank reads it, and nobody computes a split twice."""
        table = table_of(*LIBRARY, years=YEARS)
        for place, split in enumerate(SPLITS.values()):
            made = split(table)
            save_split(made, tmp_path / f"{place}.json")
            turned = table_of(*LIBRARY[::-1], years=YEARS[::-1])
            loaded = load_split(tmp_path / f"{place}.json", turned)
            assert loaded.digest == made.digest
            assert np.array_equal(loaded.parts, made.parts[::-1])

    def test_another_table_is_refused(self, table: MoleculeTable, tmp_path: Path) -> None:
        """With one row more, every part would be another molecule's."""
        save_split(scaffold_split(table), tmp_path / "split.json")
        with pytest.raises(UserError, match=r"made with table_digest .* make a new split"):
            load_split(tmp_path / "split.json", table_of(*LIBRARY[:-1], years=YEARS[:-1]))

    @pytest.mark.parametrize("change", ["parts", "options", "version"])
    def test_a_manifest_that_was_edited_is_refused(
        self, change: str, table: MoleculeTable, tmp_path: Path
    ) -> None:
        """A test molecule moved by hand is a better score."""
        path = tmp_path / "split.json"
        save_split(scaffold_split(table), path)
        facts = json.loads(path.read_text())
        facts["parts"] = facts["parts"][::-1] if change == "parts" else facts["parts"]
        facts["options"]["acyclic"] = "refuse" if change == "options" else "cluster"
        facts["version"] = "0" if change == "version" else facts["version"]
        path.write_text(json.dumps(facts))
        pattern = "made with version 0" if change == "version" else "digest doesn't match"
        with pytest.raises(UserError, match=pattern):
            load_split(path, table)

    def test_a_file_that_exists_is_never_overwritten(
        self, table: MoleculeTable, tmp_path: Path
    ) -> None:
        """Results of the old split would be compared with those of the new one."""
        path = tmp_path / "split.json"
        path.write_text("mine")
        with pytest.raises(UserError, match="exists"):
            save_split(scaffold_split(table), path)
        assert path.read_text() == "mine"
