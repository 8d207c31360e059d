"""Rows become molecules: standardized, merged, and refused by name where they can't be read."""

from __future__ import annotations

import numpy as np
import pytest
from bio_molecules import DRUGS, smiles_of, table_of
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("rdkit")

from rdkit import Chem, rdBase
from rdkit.Chem.MolStandardize import rdMolStandardize
from rdkit.Chem.rdMolDescriptors import CalcMolFormula
from trainer_core.bio import packages
from trainer_core.bio.molecule_keys import molecule_standardizer
from trainer_core.bio.molecules import MoleculeOptions, MoleculeRows, build_molecule_table
from trainer_core.settings import UserError

# What the standardizer has to undo: salts, solvents, zwitterions, old drawings, metals.
DRESSED = [
    "CC(=O)Oc1ccccc1C(=O)[O-].[Na+]",
    "CC(=O)Oc1ccccc1C(=O)O[Na]",
    "Cl.CN1CCC[C@H]1c1cccnc1",
    "[NH3+][C@@H](C)C(=O)[O-]",
    "CN(C)C(=N)NC(=N)N.Cl",
    "OC(=O)c1ccccc1OC(C)=O.O",
    "CN(=O)=O",
    "C[N+](C)(C)CC(=O)[O-]",
    "[O-][n+]1ccccc1",
    "CC(=O)O[Zn]OC(C)=O",
]


class TestStandardizing:
    @pytest.mark.parametrize("name", DRUGS)
    def test_the_known_molecules_are_what_they_are_called(self, name: str) -> None:
        """A test on a molecule that was mistyped proves something about another one."""
        smiles, formula = DRUGS[name]
        assert CalcMolFormula(Chem.MolFromSmiles(smiles)) == formula

    @pytest.mark.parametrize("smiles", [*DRESSED, *smiles_of()])
    def test_it_does_what_rdkits_charge_parent_does_and_only_once(self, smiles: str) -> None:
        """The steps are RDKit's; assembled in another order they'd make other molecules."""
        standardize = molecule_standardizer()
        with rdBase.BlockLogs():
            parent = rdMolStandardize.ChargeParent(Chem.MolFromSmiles(smiles))
        assert standardize(smiles).smiles == Chem.MolToSmiles(parent)
        assert standardize(standardize(smiles).smiles) == standardize(smiles)

    def test_a_salt_a_hydrate_and_the_acid_are_one_molecule(self) -> None:
        """On two sides of a split, the salt is the answer key to the acid."""
        table = table_of(DRESSED[0], DRESSED[1], DRESSED[5], *smiles_of("aspirin", "caffeine"))
        assert table.smiles == ["CC(=O)Oc1ccccc1C(=O)O", "Cn1c(=O)c2c(ncn2C)n(C)c1=O"]
        assert "5 rows: 0 skipped, 2 stripped" in table.describe_merging()
        assert "3 merged" in table.describe_merging()

    def test_stereo_counts_unless_it_is_dropped(self) -> None:
        """Levo and dextro drugs differ in effect; a flat key is a choice, not an accident."""
        mirrored = "CC(C)Cc1ccc(cc1)[C@@H](C)C(=O)O"
        rows = MoleculeRows(smiles=[DRUGS["dexibuprofen"][0], mirrored])
        kept = build_molecule_table(rows)
        assert len(kept) == 2
        assert kept.keys[0].flat == kept.keys[1].flat == "CC(C)Cc1ccc(C(C)C(=O)O)cc1"
        dropped = build_molecule_table(rows, MoleculeOptions(stereo="drop"))
        assert dropped.smiles == ["CC(C)Cc1ccc(C(C)C(=O)O)cc1"]

    def test_tautomers_are_one_molecule_on_request(self) -> None:
        """2-pyridone and 2-hydroxypyridine are one substance in a bottle."""
        rows = MoleculeRows(smiles=["O=c1cccc[nH]1", "Oc1ccccn1"])
        assert len(build_molecule_table(rows)) == 2
        assert len(build_molecule_table(rows, MoleculeOptions(tautomer=True))) == 1


class TestScaffolds:
    def test_murcko_keeps_atom_types_and_the_generic_scaffold_does_not(self) -> None:
        """Which of the two a split used decides whether pyridine is a new scaffold."""
        table = table_of(*smiles_of("diazepam", "isoniazid", "aspirin"))
        scaffolds = [key.scaffold for key in table.keys]
        assert scaffolds == ["O=C1CN=C(c2ccccc2)c2ccccc2N1", "c1ccncc1", "c1ccccc1"]
        assert [key.generic for key in table.keys[1:]] == ["C1CCCCC1"] * 2

    def test_an_oxygen_on_the_ring_is_no_part_of_the_generic_scaffold(self) -> None:
        """RDKit's generic form of cyclohexanone is methylcyclohexane: a group of its own."""
        table = table_of(*smiles_of("cyclohexane", "cyclohexanone"))
        assert [key.generic for key in table.keys] == ["C1CCCCC1"] * 2
        assert [key.scaffold for key in table.keys] == ["C1CCCCC1", "O=C1CCCCC1"]

    def test_stereo_and_isotope_labels_make_no_new_scaffold(self) -> None:
        """Mirror images, or a compound and its labeled form, would be split apart."""
        names = ["C[C@H]1CC[C@@H](O)CC1", "C[C@@H]1CC[C@@H](O)CC1", "[13CH2]1CCCCC1"]
        table = table_of(*names, "[2H]C1CCCCC1")
        assert {key.scaffold for key in table.keys} == {"C1CCCCC1"}
        assert len({key.flat for key in table.keys}) == 2
        assert len(table) == 4

    def test_an_atom_with_more_than_four_ring_bonds_is_no_crash(self) -> None:
        """No carbon has five bonds, so RDKit refuses to make such a scaffold generic."""
        (key,) = table_of("C1CCP2(C1)(CCCC2)C1CCCCC1").keys
        assert key.generic == key.scaffold != ""

    def test_molecules_without_a_ring_are_counted(self) -> None:
        """They share the empty scaffold, and a group-by takes them for one family."""
        table = table_of(*smiles_of("metformin", "alanine", "aspirin"))
        assert table.num_acyclic == 2
        assert [key.scaffold for key in table.keys] == ["", "", "c1ccccc1"]


class TestBadRows:
    @pytest.mark.parametrize(
        ("smiles", "reason"),
        [
            ("C1CC", "'C1CC' can't be read: it isn't SMILES syntax"),
            ("CN(C)(C)C", "Explicit valence for atom # 1 N, 4, is greater than permitted"),
            ("c1cccc1", "Can't kekulize mol"),
            (" ", "it is empty"),
            ("", "it is empty"),
        ],
    )
    def test_one_line_names_file_row_and_rule(
        self, smiles: str, reason: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """A traceback from RDKit says neither which row it was, nor how to go on."""
        rows = MoleculeRows(smiles=["CCO", smiles], numbers=[2, 17], source="assay.csv")
        with pytest.raises(UserError) as caught:
            build_molecule_table(rows)
        message = str(caught.value)
        assert message.startswith(f"assay.csv, row 17: {smiles!r}")
        assert reason in message
        assert "on_bad='skip'" in message
        assert "\n" not in message
        # RDKit prints its own, without a row.
        assert capfd.readouterr() == ("", "")

    def test_skipped_rows_are_counted_and_named(self) -> None:
        """Silently dropped rows look like a smaller data set, and nobody asks why."""
        rows = MoleculeRows(smiles=["CCO", "C1CC", "x"], labels=[[1], [2], [3]], tasks=["a"])
        table = build_molecule_table(rows, MoleculeOptions(on_bad="skip"))
        assert table.labels.tolist() == [[1]]
        assert [text.partition(":")[0] for text in table.skipped] == [
            "molecules, row 2",
            "molecules, row 3",
        ]
        assert "3 rows: 2 skipped" in table.describe_merging()

    def test_a_table_without_a_molecule_is_refused(self) -> None:
        """It is usually the wrong column."""
        rows = MoleculeRows(smiles=["aspirin", "caffeine"])
        with pytest.raises(UserError, match="2 rows, none with a molecule"):
            build_molecule_table(rows, MoleculeOptions(on_bad="skip"))

    def test_a_short_column_and_an_infinite_label_are_refused(self) -> None:
        """Labels off by a row train on noise, and one infinite label ends the run at step 1."""
        with pytest.raises(UserError, match=r"2 SMILES, labels of shape \(1, 1\) for 1 tasks"):
            table_of("CCO", "CCN", labels=[[1]], tasks=["a"])
        with pytest.raises(UserError, match=r"columns of \[2, 2, 2, 1\] rows"):
            table_of("CCO", "CCN", years=[1999])
        with pytest.raises(UserError, match="molecules, row 2: label b is infinite"):
            table_of("CCO", "CCN", labels=[[1, 2], [3, float("inf")]], tasks=["a", "b"])

    def test_without_rdkit_one_line_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """RDKit is optional, and an ImportError doesn't say which extra brings it."""

        def missing(module: str) -> None:
            raise ModuleNotFoundError(name="rdkit")

        monkeypatch.setattr(packages.importlib, "import_module", missing)
        with pytest.raises(
            UserError, match=r"rdkit isn't installed.*pip install -e '.\[bio\]'"
        ):
            molecule_standardizer()


NAN = float("nan")


class TestConflicts:
    def merged(self, labels: list[list[float]], **options: object) -> tuple[object, list[bool]]:
        tasks = [f"task {number}" for number in range(len(labels[0]))]
        rows = MoleculeRows(smiles=["CCO", "OCC", "C(C)O"], labels=labels, tasks=tasks)
        table = build_molecule_table(rows, MoleculeOptions(**options))  # type: ignore[arg-type]
        return table.labels[0].tolist(), table.conflicts[0].tolist()

    def test_labels_that_contradict_each_other_become_missing(self) -> None:
        """Whichever of the two a model is trained on, half of the readers know it is wrong."""
        labels, conflicts = self.merged([[1, 1, NAN], [0, 1, 2], [NAN, 1, NAN]])
        assert str(labels) == "[nan, 1.0, 2.0]"
        assert conflicts == [True, False, False]

    def test_the_mean_and_a_refusal_are_other_policies(self) -> None:
        """Replicates of a measurement differ a little, and their mean is the better value."""
        assert self.merged([[1.0], [2.0], [6.0]], on_conflict="mean") == ([3.0], [True])
        with pytest.raises(UserError, match="molecules, rows 1, 2, 3: one molecule with"):
            self.merged([[1.0], [2.0], [NAN]], on_conflict="raise")

    def test_replicates_within_the_tolerance_leave_their_mean(self) -> None:
        """A spread of a tenth of a log unit is the assay's noise, not a contradiction."""
        assert self.merged([[1.0], [1.5], [NAN]], tolerance=0.5) == ([1.25], [False])
        assert self.merged([[1.0], [1.625], [NAN]], tolerance=0.5)[1] == [True]

    def test_a_molecule_is_as_old_as_its_first_measurement(self) -> None:
        """Dated by a repeat, a molecule known for years would be tested as a new one."""
        table = table_of(
            "CCO",
            "OCC",
            "CCN",
            years=[2010, 1998, NAN],
            assays=["b", "a", ""],
            ids=["x", "y", "z"],
        )
        assert table.years.tolist()[0] == 1998
        assert table.last_years.tolist()[0] == 2010
        assert np.isnan(table.years[1])
        assert table.assays == (("a", "b"), ())
        assert (table.ids, table.rows) == (("x", "z"), (1, 3))


class TestDigest:
    @settings(max_examples=10)
    @given(st.permutations(range(6)))
    def test_it_does_not_depend_on_the_order_of_the_rows(self, order: list[int]) -> None:
        """A split is bound to the digest, and sorting a file changes no molecule."""
        names = [*smiles_of("aspirin", "alanine", "caffeine"), DRESSED[0], "OCC", "CCO"]
        labels = np.arange(6, dtype=float)[:, None]
        straight = table_of(*names, labels=labels, tasks=["a"])
        shuffled = table_of(*(names[i] for i in order), labels=labels[order], tasks=["a"])
        assert shuffled.digest == straight.digest

    def test_it_changes_with_a_label_a_year_an_assay_or_a_task(self) -> None:
        """Otherwise a split of yesterday's table is accepted for today's."""
        given_columns = {"labels": [[1.0]], "tasks": ["a"], "years": [2000], "assays": ["x"]}
        changes = [{}, {"labels": [[2.0]]}, {"tasks": ["b"]}, {"years": [2001]}]
        changes += [{"assays": ["y"]}]
        digests = [table_of("CCO", **{**given_columns, **change}).digest for change in changes]
        assert len(set(digests)) == len(changes)
        assert table_of("CCO", labels=[[-0.0]], tasks=["a"]).digest == (
            table_of("CCO", labels=[[0.0]], tasks=["a"]).digest
        )
