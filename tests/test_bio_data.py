"""The molecules that ship: each is what its row says, and they are varied enough to split."""

from __future__ import annotations

import csv
from collections import Counter
from functools import cache
from typing import Any

import pytest

Chem = pytest.importorskip("rdkit.Chem")
from rdkit.Chem.rdMolDescriptors import CalcMolFormula  # noqa: E402
from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles  # noqa: E402
from trainer_core.bio.tables import DRUGS, SHIPPED_DRUGS, MoleculeTableReader  # noqa: E402

SOURCES = {
    "WHO Model List of Essential Medicines",
    "FDA-approved drug",
    "WHO International Nonproprietary Name",
    "natural product",
}


@cache
def rows() -> list[dict[str, str]]:
    with SHIPPED_DRUGS.open(newline="") as file:
        return list(csv.DictReader(file))


@cache
def molecules() -> list[Any]:
    return [Chem.MolFromSmiles(row["smiles"]) for row in rows()]


class TestDrugs:
    def test_at_least_200_molecules_all_parse(self) -> None:
        """An unparsable SMILES in our own table would teach people to skip."""
        unreadable = [
            row["name"] for row, mol in zip(rows(), molecules(), strict=True) if not mol
        ]
        assert unreadable == []
        assert len(rows()) >= 200

    def test_each_formula_is_the_one_that_its_smiles_has(self) -> None:
        """The formulas were written down separately, so a slip in a structure shows."""
        wrong = {
            row["name"]: CalcMolFormula(mol)
            for row, mol in zip(rows(), molecules(), strict=True)
            if CalcMolFormula(mol) != row["formula"]
        }
        assert wrong == {}

    def test_no_molecule_comes_twice_and_none_is_a_salt(self) -> None:
        """Duplicates and salts are what the tests plant; here they would be a mistake."""
        names = Counter(row["name"] for row in rows())
        keys = Counter(Chem.MolToInchiKey(mol) for mol in molecules())
        assert [name for name, count in names.items() if count > 1] == []
        assert [key for key, count in keys.items() if count > 1] == []
        assert [row["name"] for row in rows() if "." in row["smiles"]] == []

    def test_stereo_in_the_smiles_is_stereo_to_rdkit(self) -> None:
        """A mark on an atom that is no center is a sign of a structure copied wrong."""
        for row, mol in zip(rows(), molecules(), strict=True):
            marked = "@" in row["smiles"]
            centers = Chem.FindMolChiralCenters(mol, useLegacyImplementation=False)
            assert marked == bool(centers), row["name"]

    def test_years_and_sources_are_plausible(self) -> None:
        """A year with a typing error moves a molecule to the other side of a time split."""
        years = [int(row["year"]) for row in rows() if row["year"]]
        assert {row["source"] for row in rows()} == SOURCES
        assert all(1800 <= year <= 2025 for year in years)
        approved = [row for row in rows() if row["year"] and row["source"] != "natural product"]
        assert all(int(row["year"]) >= 1938 for row in approved)
        assert len(years) >= 250

    def test_a_scaffold_split_means_something(self) -> None:
        """If all scaffolds were different, a scaffold split would be a random split."""
        scaffolds = Counter(MurckoScaffoldSmiles(mol=mol) for mol in molecules())
        acyclic = scaffolds.pop("")
        rings = [max(map(len, mol.GetRingInfo().AtomRings()), default=0) for mol in molecules()]
        assert acyclic >= 10
        assert len(scaffolds) >= 150
        assert sum(count for count in scaffolds.values() if count > 1) >= 100
        assert sum(size >= 12 for size in rings) >= 5  # macrocycles
        assert Counter(row["class"] for row in rows())["beta blocker"] >= 8

    def test_our_own_reader_reads_it(self) -> None:
        """The table is the example of the format."""
        reader = MoleculeTableReader(SHIPPED_DRUGS, DRUGS)
        read = list(reader)
        assert [(row.id, row.smiles) for row in read] == [
            (row["name"], row["smiles"]) for row in rows()
        ]
        assert {row.id: row.year for row in read}["atorvastatin"] == 1996
        assert reader.report.kept == len(rows())
