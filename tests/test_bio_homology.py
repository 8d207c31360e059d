"""Relatives on one side: families planted at a known identity, found or said to be missed."""

from __future__ import annotations

import zlib
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from trainer_core.bio import homology_split
from trainer_core.bio.fasta import AMINO_ACIDS, SHIPPED_PROTEINS, FastaFile
from trainer_core.bio.generated_proteins import generated_protein, generated_lengths
from trainer_core.bio.homology import HomologyOptions, cluster_proteins, read_clusters
from trainer_core.bio.homology_split import nearest_identity
from trainer_core.settings import UserError

LETTERS = np.frombuffer(AMINO_ACIDS.encode(), np.uint8)


def relative(sequence: str, identity: float, seed: int) -> str:
    """A copy that keeps exactly this fraction of its residues, evenly spread."""
    random = np.random.default_rng((seed, zlib.crc32(sequence.encode())))
    residues = np.frombuffer(sequence.encode(), np.uint8).copy()
    changed = random.permutation(len(residues))[round(identity * len(residues)) :]
    for place in changed:
        residues[place] = random.choice(LETTERS[residues[place] != LETTERS])
    return residues.tobytes().decode()


def families(count: int, size: int, identity: float, length: int = 300) -> list[str]:
    """Ancestors and, for each, copies at this identity to it."""
    return [
        relative(generated_protein(family, length, seed=5), identity if member else 1.0, member)
        for family in range(count)
        for member in range(size)
    ]


def partition(clusters: NDArray[np.int64], names: list[str]) -> set[frozenset[str]]:
    members = defaultdict(set)
    for cluster, name in zip(clusters.tolist(), names, strict=True):
        members[cluster].add(name)
    return {frozenset(each) for each in members.values()}


class TestClusters:
    @pytest.mark.parametrize(("identity", "found"), [(0.9, 1.0), (0.7, 1.0), (0.6, 0.95)])
    def test_planted_relatives_join_their_ancestor(self, identity: float, found: float) -> None:
        """Those that don't are the leak that the split was to prevent."""
        sequences = families(40, 2, identity)
        clusters = cluster_proteins(sequences)
        joined = np.mean(clusters[0::2] == clusters[1::2])
        assert joined >= found

    def test_below_40_percent_most_relatives_are_missed_as_the_module_says(self) -> None:
        """Who reads "homology-aware" as "no relatives left" is wrong about distant ones."""
        options = HomologyOptions(identity=0.4)
        clusters = cluster_proteins(families(40, 2, 0.3), options)
        assert np.mean(clusters[0::2] == clusters[1::2]) < 0.25

    def test_strangers_stay_apart_at_any_length(self) -> None:
        """A protein of 35,000 residues contains most short words by chance."""
        lengths = [35_000, *generated_lengths(600, seed=3).tolist()]
        sequences = [generated_protein(n, size, seed=1) for n, size in enumerate(lengths)]
        for options in (HomologyOptions(), HomologyOptions(identity=0.4)):
            clusters = cluster_proteins(sequences, options)
            assert len(set(clusters.tolist())) >= len(sequences) - 2

    def test_a_fragment_joins_the_protein_that_it_is_a_part_of(self) -> None:
        """By the share of all words it is 10 percent similar; of its own, all of them."""
        whole = generated_protein(0, 1000, seed=2)
        sequences = [whole[400:500], generated_protein(1, 900, seed=2), whole]
        assert cluster_proteins(sequences).tolist() == [2, 1, 2]

    def test_known_families_are_found_among_the_proteins_that_ship(self) -> None:
        """Real relatives differ in patches, and not as evenly as planted ones."""
        records = list(FastaFile(SHIPPED_PROTEINS))
        clusters = cluster_proteins([record.sequence for record in records])
        found = partition(clusters, [record.id for record in records])
        names = {"myoglobin_human", "myoglobin_horse", "myoglobin_sperm_whale"}
        assert names in found
        assert {"lysozyme_hen", "lysozyme_human"} in found
        assert {"lysozyme_T4"} in found  # the same job, and no relative
        assert {"insulin_A_chain", "insulin_B_chain", "insulin_precursor"} in found
        # 43 percent identical, and the textbook's relatives: an alignment's work.
        assert {"hemoglobin_alpha"} in found
        assert {"hemoglobin_beta"} in found

    def test_the_order_of_the_file_decides_nothing(self) -> None:
        """Otherwise a sorted copy of the file has another test set."""
        sequences = families(12, 3, 0.55, 120) + ["ACDEF", "ACDEF", "XXXXXXXX"]
        names = [f"{number}" for number in range(len(sequences))]
        expected = partition(cluster_proteins(sequences), names)
        for seed in range(3):
            order = np.random.default_rng(seed).permutation(len(sequences))
            clusters = cluster_proteins([sequences[place] for place in order])
            assert partition(clusters, [names[place] for place in order]) == expected

    @settings(max_examples=30)
    @given(st.lists(st.text("ACDX", min_size=1, max_size=12), min_size=1, max_size=12))
    def test_identical_sequences_are_always_together(self, sequences: list[str]) -> None:
        """However short, and even if nothing is known of their residues."""
        clusters = cluster_proteins(sequences * 2)
        assert clusters[: len(sequences)].tolist() == clusters[len(sequences) :].tolist()

    @pytest.mark.parametrize(
        ("options", "message"),
        [({"k": 2}, "k=2: must be 3 to 12"), ({"identity": 0.3}, "identity=0.3: must be 0.4")],
    )
    def test_what_kmers_cannot_see_is_refused(
        self, options: dict[str, float], message: str
    ) -> None:
        """A threshold of 30 percent would be obeyed in name only."""
        with pytest.raises(UserError, match=message):
            HomologyOptions(**options)  # type: ignore[arg-type]


class TestEstimate:
    @pytest.mark.parametrize("identity", [0.95, 0.8, 0.7, 0.6])
    def test_the_estimated_identity_is_the_planted_one(self, identity: float) -> None:
        """The report's figures are read as identities."""
        sequences = families(20, 2, identity, 500)
        parts = np.tile(np.array([0, 2], np.int8), 20)
        report = nearest_identity(sequences, parts)
        assert report.identity.mean() == pytest.approx(identity, abs=0.02)
        assert report.nearest.tolist() == list(range(0, 40, 2))
        assert report.rows.tolist() == list(range(1, 40, 2))

    def test_a_random_split_leaks_and_the_report_counts_how_much(self) -> None:
        """Each planted copy in the test set has its ancestor in training."""
        sequences = families(30, 2, 0.8)
        parts = np.tile(np.array([0, 2], np.int8), 30)
        report = nearest_identity(sequences, parts)
        assert report.above == 30
        assert "30 of 30 test proteins have a training protein at 50% identity" in str(report)

    def test_unrelated_test_proteins_have_no_neighbor(self) -> None:
        """And the report says that it can't tell them from distant relatives."""
        sequences = [generated_protein(number, 300, seed=8) for number in range(40)]
        parts = np.array([0] * 30 + [2] * 10, np.int8)
        report = nearest_identity(sequences, parts)
        assert report.above == 0
        assert report.nearest.tolist() == [-1] * 10
        assert "For 10, the estimate is below 40%: strangers, or relatives" in str(report)
        assert str(nearest_identity(sequences, parts, part=1)) == "no test proteins"


class TestSplit:
    def split(self, seed: int = 0) -> tuple[list[str], homology_split.HomologySplit]:
        sequences = families(60, 3, 0.85, 200)
        clusters = cluster_proteins(sequences)
        return sequences, homology_split.homology_split(sequences, clusters, seed=seed)

    def test_whole_families_are_on_one_side(self) -> None:
        """One relative in training is the answer to the others."""
        sequences, split = self.split()
        parts = split.parts.reshape(60, 3)
        assert (parts == parts[:, :1]).all()
        assert split.counts == {"train": 144, "validation": 18, "test": 18}
        assert nearest_identity(sequences, split.parts).above == 0

    def test_it_is_a_function_of_content_and_seed(self) -> None:
        """Every rank computes it, and a resumed run computes it again."""
        sequences, split = self.split()
        order = np.random.default_rng(1).permutation(len(sequences))
        shuffled = [sequences[place] for place in order]
        again = homology_split.homology_split(shuffled, cluster_proteins(shuffled), seed=0)
        assert again.parts.tolist() == split.parts[order].tolist()
        assert again.digest == split.digest
        assert self.split(seed=1)[1].digest != split.digest
        assert self.split(seed=1)[1].parts.tolist() != split.parts.tolist()

    def test_the_version_is_part_of_the_digest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A change in the code can't change a split unnoticed."""
        _, split = self.split()
        monkeypatch.setattr(homology_split, "HOMOLOGY_VERSION", "next")
        assert self.split()[1].digest != split.digest

    def test_a_cluster_as_large_as_the_data_leaves_nothing_to_test(self) -> None:
        """A metric over no proteins is undefined; better to hear it now."""
        sequences = families(1, 10, 0.8)
        clusters = cluster_proteins(sequences)
        with pytest.raises(UserError, match="1 clusters: nothing is left for validation"):
            homology_split.homology_split(sequences, clusters, seed=0)
        kept = homology_split.homology_split(sequences, clusters, (1.0, 0.0, 0.0), seed=0)
        assert kept.counts["train"] == 10

    @pytest.mark.parametrize("fractions", [(0.8, 0.1, 0.2), (0.0, 0.5, 0.5), (1.1, -0.1, 0)])
    def test_fractions_are_shares_of_one(self, fractions: tuple[float, float, float]) -> None:
        """Otherwise some proteins belong nowhere."""
        with pytest.raises(UserError, match="must be three shares"):
            homology_split.homology_split(["A"], np.array([0]), fractions, seed=0)


class TestMmseqs:
    def test_its_table_gives_the_same_kind_of_clusters(self, tmp_path: Path) -> None:
        """Below 40 percent identity, an alignment has to do it."""
        path = tmp_path / "run_cluster.tsv"
        path.write_text("b\tb\nb\ta\nc\tc\n")
        assert read_clusters(path, ["a", "b", "c"]).tolist() == [0, 0, 2]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("b\tb\nb a\n", r"row 2: \['b a'\]"),
            ("b\tb\nc\tc\nc\tb\n", r"row 3: \['c', 'b'\]"),
            ("b\tb\n", r"no cluster for 2 of 3 ids, a for one"),
        ],
    )
    def test_a_table_that_does_not_fit_is_refused(
        self, tmp_path: Path, text: str, message: str
    ) -> None:
        """A protein without a cluster has relatives that nobody knows."""
        path = tmp_path / "run_cluster.tsv"
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            read_clusters(path, ["a", "b", "c"])
