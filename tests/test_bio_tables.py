"""Tables of molecules: what a cell means, and which files are refused."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_core.bio.chembl import ChemblOptions, ChemblReader
from trainer_core.bio.tables import MOLECULENET, MoleculeTableReader, SmilesFileReader
from trainer_core.bio.tables import TableLayout, as_columns
from trainer_core.settings import UserError

TOX21 = "NR-AR,SR-p53,mol_id,smiles\n0,1,TOX1,CCO\n,0,TOX2,c1ccccc1\n1,,TOX3,CC(=O)O\n"
HIV = "smiles,activity,HIV_active\nCCC,CI,0\nCCN,CA,1\n"
BBBP = 'num,name,p_np,smiles\n1,"Propanolol, racemic",1,CC(C)NCC(O)COc1cccc2ccccc12\n'
NAN = math.nan


def write(folder: Path, text: str, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


class TestMoleculeNet:
    def test_an_empty_cell_is_a_missing_label_and_not_a_zero(self, tmp_path: Path) -> None:
        """Missing read as inactive trains the model on labels that nobody measured."""
        reader = MoleculeTableReader(write(tmp_path, TOX21), MOLECULENET["tox21"])
        columns = as_columns(reader)
        assert reader.tasks == ("NR-AR", "SR-p53")
        np.testing.assert_array_equal(columns["labels"], [[0, 1], [NAN, 0], [1, NAN]])
        assert columns["ids"] == ["TOX1", "TOX2", "TOX3"]
        assert columns["numbers"] == [2, 3, 4]

    @pytest.mark.parametrize(
        ("name", "text", "labels"), [("hiv", HIV, [[0], [1]]), ("bbbp", BBBP, [[1]])]
    )
    def test_each_layout_takes_its_own_label(
        self, tmp_path: Path, name: str, text: str, labels: list[list[int]]
    ) -> None:
        """HIV's text column and BBBP's row number aren't labels."""
        columns = as_columns(MoleculeTableReader(write(tmp_path, text), MOLECULENET[name]))
        np.testing.assert_array_equal(columns["labels"], labels)

    def test_the_delimiter_is_the_one_under_which_the_header_has_its_columns(
        self, tmp_path: Path
    ) -> None:
        """A guess from the rows takes the commas inside names for delimiters."""
        for mark in ",;\t":
            text = "\n".join(
                mark.join(cells)
                for cells in (["smiles", "note", "active"], ["CCO", '"a,b;c\td"', "1"])
            )
            layout = TableLayout(tasks=("active",), others=("note",))
            columns = as_columns(MoleculeTableReader(write(tmp_path, text), layout))
            assert columns["labels"].tolist() == [[1.0]]

    def test_gzip_a_byte_order_mark_crlf_and_quoted_line_breaks_change_nothing(
        self, tmp_path: Path
    ) -> None:
        """These are the files that Excel and a shell make of a table; row numbers must hold."""
        text = '\ufeffsmiles,name,active\r\nCCO,"two\r\nlines",1\r\nCCN,plain,0\r\n'
        path = tmp_path / "table.csv.gz"
        path.write_bytes(gzip.compress(text.encode()))
        layout = TableLayout(tasks=("active",), id="name")
        columns = as_columns(MoleculeTableReader(path, layout))
        assert columns["smiles"] == ["CCO", "CCN"]
        assert columns["numbers"] == [2, 4]

    def test_rows_stream_without_the_file_in_memory(self, tmp_path: Path) -> None:
        """A table of billions of rows is read once, a row at a time."""
        path = write(tmp_path, HIV + "CCC,CI,broken\n")
        rows = iter(MoleculeTableReader(path, MOLECULENET["hiv"]))
        assert [next(rows).smiles, next(rows).smiles] == ["CCC", "CCN"]
        with pytest.raises(UserError, match="row 4"):
            next(rows)

    @given(st.lists(st.sampled_from(["0", "1", ""]), min_size=1, max_size=8))
    def test_labels_survive_the_round_trip(
        self, tmp_path_factory: pytest.TempPathFactory, cells: list[str]
    ) -> None:
        """Whatever the pattern of missing labels."""
        path = tmp_path_factory.mktemp("table", numbered=True) / "t.csv"
        path.write_text("smiles,a\n" + "".join(f"C,{cell}\n" for cell in cells))
        labels = as_columns(MoleculeTableReader(path, TableLayout(tasks=("a",))))["labels"]
        assert ["" if np.isnan(label) else str(int(label)) for label in labels[:, 0]] == cells


DAMAGED = {
    "missing column": ("smiles,activity\nC,CI\n", r"row 1: no column 'HIV_active'.*activity"),
    "no number": (HIV + "CCO,CI,yes\n", r"row 4: HIV_active is 'yes'. It must be a finite"),
    "infinite": (HIV + "CCO,CI,inf\n", r"row 4: HIV_active is 'inf'"),
    "not binary": (HIV + "CCO,CI,2\n", r"row 4: HIV_active is 2. A binary label is 0 or 1"),
    "too few fields": (HIV + "CCO,CI\n", r"row 4: 2 fields, but the header has 3"),
    "too many fields": (HIV + "CCO,CI,1,1\n", r"row 4: 4 fields, but the header has 3"),
    "no smiles": (HIV + " ,CI,1\n", r"row 4: no SMILES"),
}
ALWAYS_REFUSED = {
    "open quote": (HIV + '"CCO,CI,1\nCCO,CI,1\n', r"row 4: .*Quotes must be closed"),
    "column twice": ("smiles,HIV_active,HIV_active\nC,1,0\n", r"row 1: column 'HIV_active'"),
    "no rows": ("smiles,activity,HIV_active\n", r"a header, and no rows"),
    "empty": ("", r"the file is empty"),
}


class TestDamage:
    @pytest.mark.parametrize("kind", DAMAGED)
    def test_a_bad_row_is_refused_in_one_line_that_names_file_and_row(
        self, tmp_path: Path, kind: str
    ) -> None:
        """Found in the file in a second, instead of as a NaN in the loss after an hour."""
        text, message = DAMAGED[kind]
        path = write(tmp_path, text)
        with pytest.raises(UserError, match=message) as caught:
            as_columns(MoleculeTableReader(path, MOLECULENET["hiv"]))
        assert str(caught.value).startswith(str(path))
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("kind", sorted({*DAMAGED} - {"missing column"}))
    def test_skipping_is_asked_for_and_counted(self, tmp_path: Path, kind: str) -> None:
        """A loader that skips silently trains on whatever is left."""
        text, _ = DAMAGED[kind]
        layout = MOLECULENET["hiv"]
        reader = MoleculeTableReader(write(tmp_path, text), layout, on_bad="skip")
        assert as_columns(reader)["smiles"] == ["CCC", "CCN"]
        assert (reader.report.rows, reader.report.kept, reader.report.skipped) == (3, 2, 1)
        assert "row 4" in str(reader.report)

    @pytest.mark.parametrize("kind", ALWAYS_REFUSED)
    @pytest.mark.parametrize("on_bad", ["raise", "skip"])
    def test_damage_to_the_file_is_refused_even_where_rows_may_be_skipped(
        self, tmp_path: Path, kind: str, on_bad: str
    ) -> None:
        """Nobody knows which rows are lost."""
        text, message = ALWAYS_REFUSED[kind]
        path = write(tmp_path, text)
        with pytest.raises(UserError, match=message):
            list(MoleculeTableReader(path, MOLECULENET["hiv"], on_bad=on_bad))  # type: ignore[arg-type]

    def test_a_gzip_stream_cut_short_is_refused(self, tmp_path: Path) -> None:
        """An interrupted copy would be a smaller dataset, and nothing would say so."""
        path = tmp_path / "t.csv.gz"
        whole = gzip.compress((HIV + "CCC,CI,0\n" * 50_000).encode())
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(UserError, match=r"row \d+: the gzip stream is damaged"):
            list(MoleculeTableReader(path, MOLECULENET["hiv"], on_bad="skip"))

    def test_a_line_that_is_not_utf8_is_refused_or_skipped(self, tmp_path: Path) -> None:
        """A Latin-1 export has other characters in its names than it seems."""
        path = tmp_path / "t.csv"
        path.write_bytes(HIV.encode() + "CCO,Säure,1\n".encode("latin1"))
        with pytest.raises(UserError, match=r"row 4: byte 6 isn't UTF-8"):
            list(MoleculeTableReader(path, MOLECULENET["hiv"]))
        reader = MoleculeTableReader(path, MOLECULENET["hiv"], on_bad="skip")
        assert len(list(reader)) == 2
        assert (reader.report.rows, reader.report.skipped) == (3, 1)

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        """With the path, because that is what was mistyped."""
        with pytest.raises(UserError, match=r"absent.csv: No such file"):
            MoleculeTableReader(tmp_path / "absent.csv", MOLECULENET["hiv"])

    def test_a_file_of_which_nothing_is_left_is_refused(self, tmp_path: Path) -> None:
        """An empty dataset trains in no time, and reports success."""
        path = write(tmp_path, "smiles,activity,HIV_active\nC,CI,x\n")
        reader = MoleculeTableReader(path, MOLECULENET["hiv"], on_bad="skip")
        with pytest.raises(UserError, match="0 of 1 rows kept, 1 skipped"):
            as_columns(reader)


def test_a_smiles_file_has_names_or_not(tmp_path: Path) -> None:
    """Names with spaces belong to the molecule, and not to the next column."""
    path = write(tmp_path, "CCO ethyl alcohol\n\nc1ccccc1\tbenzene\nCC\n", "m.smi")
    columns = as_columns(SmilesFileReader(path))
    assert columns["smiles"] == ["CCO", "c1ccccc1", "CC"]
    assert columns["ids"] == ["ethyl alcohol", "benzene", "row 4"]
    assert columns["labels"] is None


# %%
CHEMBL_COLUMNS = (
    *("molecule_chembl_id", "canonical_smiles", "standard_type", "standard_relation"),
    *("standard_value", "standard_units", "assay_chembl_id", "document_year"),
)


def chembl(folder: Path, *activities: tuple[str, str, str, str]) -> Path:
    """A file of (type, relation, value, units), all of the same molecule."""
    rows = [
        ["CHEMBL25", "CC(=O)Oc1ccccc1C(=O)O", *activity, "CHEMBL1", "1999"]
        for activity in activities
    ]
    lines = ["\t".join(row) for row in [list(CHEMBL_COLUMNS), *rows]]
    return write(folder, "\n".join(lines) + "\n", "activities.tsv")


def chembl_labels(path: Path, **options: object) -> list[float]:
    reader = ChemblReader(path, ChemblOptions(standard_types=("IC50",), **options))  # type: ignore[arg-type]
    return [row.labels[0] for row in reader]


class TestChembl:
    @pytest.mark.parametrize(
        ("value", "units"),
        [("1000", "nM"), ("1", "uM"), ("1", "\u00b5M"), ("1", "\u03bcM"), ("0.001", "mM")],
    )
    def test_one_micromolar_is_6_in_any_unit(
        self, tmp_path: Path, value: str, units: str
    ) -> None:
        """Units mixed up are errors of a thousandfold, and look like activity cliffs."""
        path = chembl(tmp_path, ("IC50", "=", value, units))
        assert chembl_labels(path) == [pytest.approx(6)]

    def test_a_censored_value_is_no_measurement(self, tmp_path: Path) -> None:
        """IC50 > 10 uM as a label of 5 teaches that inactive compounds are half active."""
        path = chembl(
            tmp_path,
            *(("IC50", relation, "10", "uM") for relation in ("=", ">", "<", ">=", "<=", "~")),
        )
        expected = [5, NAN, NAN, NAN, NAN, 5]
        np.testing.assert_allclose(chembl_labels(path), expected)

    def test_a_bound_points_the_other_way_after_the_logarithm(self, tmp_path: Path) -> None:
        """A concentration above 10 uM is a potency below 5: the side decides the loss."""
        path = chembl(tmp_path, ("IC50", ">", "10", "uM"), ("IC50", "'<'", "10", "uM"))
        options = ChemblOptions(standard_types=("IC50",), censored="bound")
        rows = list(ChemblReader(path, options))
        assert [(row.labels, row.bound) for row in rows] == [((5.0,), -1), ((5.0,), 1)]

    @pytest.mark.parametrize(
        ("relation", "threshold", "label"),
        [
            ("=", 5.0, 1),
            ("=", 5.1, 0),
            (">", 6.0, 0),  # weaker than 10 uM is weaker than 1 uM
            (">", 5.0, 0),  # exactly 10 uM is excluded
            (">=", 5.0, NAN),  # and here it isn't
            (">", 4.5, NAN),  # between 10 and 30 uM, or above?
            ("<", 5.0, 1),
            ("<=", 5.0, 1),
            ("<", 5.5, NAN),
        ],
    )
    def test_a_bound_gives_a_binary_label_only_if_it_decides(
        self, tmp_path: Path, relation: str, threshold: float, label: float
    ) -> None:
        """Dropping them all loses most inactives; keeping them all invents labels."""
        path = chembl(tmp_path, ("IC50", relation, "10000", "nM"))
        labels = chembl_labels(path, active_above=threshold)
        np.testing.assert_array_equal(labels, [label])

    def test_types_are_tasks_and_others_are_counted(self, tmp_path: Path) -> None:
        """A percent inhibition among potencies is on another scale."""
        path = chembl(
            tmp_path,
            *(("Ki", "=", "1", "nM"), ("Inhibition", "=", "50", "%"), ("IC50", "=", "1", "uM")),
        )
        reader = ChemblReader(path, ChemblOptions(standard_types=("IC50", "Ki")))
        columns = as_columns(reader)
        np.testing.assert_allclose(columns["labels"], [[NAN, 9], [6, NAN]])
        assert reader.report.other_measures == 1
        assert columns["years"].tolist() == [1999, 1999]
        assert columns["assays"] == ["CHEMBL1", "CHEMBL1"]
        assert columns["ids"] == ["CHEMBL25", "CHEMBL25"]

    def test_the_website_s_export_has_the_same_content(self, tmp_path: Path) -> None:
        """Its columns have other names, its cells quotes, and semicolons between them."""
        names = [name.replace("_", " ").title() for name in CHEMBL_COLUMNS]
        names[1] = "Smiles"
        cells = ["CHEMBL1", "CCO", "IC50", "'>'", "20", "nM", "CHEMBL9", ""]
        lines = [";".join(f'"{cell}"' for cell in row) for row in (names, cells)]
        path = write(tmp_path, "\n".join(lines) + "\n")
        options = ChemblOptions(standard_types=("IC50",), censored="bound")
        (row,) = ChemblReader(path, options)
        assert row.labels == (pytest.approx(9 - math.log10(20)),)
        assert row.bound == -1
        assert math.isnan(row.year)

    @pytest.mark.parametrize(
        ("activity", "message"),
        [
            (("IC50", "=", "5", "ug.mL-1"), "standard_units is 'ug.mL-1'"),
            (("IC50", "", "5", "nM"), "standard_relation is ''"),
            (("IC50", "=", "0", "nM"), "standard_value is 0. A concentration is positive"),
            (("IC50", "=", "", "nM"), "standard_value is ''"),
        ],
    )
    def test_a_value_without_a_reading_is_refused_or_counted(
        self, tmp_path: Path, activity: tuple[str, str, str, str], message: str
    ) -> None:
        """Weights per volume, activities without a unit, and a zero have no logarithm."""
        path = chembl(tmp_path, ("IC50", "=", "1", "nM"), activity)
        with pytest.raises(UserError, match=f"row 3: {message}"):
            list(ChemblReader(path))
        reader = ChemblReader(path, on_bad="skip")
        assert len(list(reader)) == 1
        assert reader.report.skipped == 1

    def test_a_file_without_the_type_asked_for_is_refused(self, tmp_path: Path) -> None:
        """Otherwise the dataset is empty, and the mistake is in the spelling of a type."""
        path = chembl(tmp_path, ("Ki", "=", "1", "nM"))
        with pytest.raises(UserError, match="none of its 1 rows is of type IC50"):
            chembl_labels(path)
