"""FASTA: every residue checked once, every record found without the others."""

from __future__ import annotations

import gzip
import os
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_core.bio import fasta
from trainer_core.bio.fasta import AMINO_ACIDS, SHIPPED_PROTEINS, FastaFile, header_fields
from trainer_core.bio.generated_proteins import LONGEST, RESIDUE_PERCENT, SHORTEST
from trainer_core.bio.generated_proteins import generated_protein, generated_lengths
from trainer_core.bio.generated_proteins import write_generated_fasta
from trainer_core.settings import UserError

UNIREF = (
    ">UniRef50_P69905 Hemoglobin alpha n=2 Tax=Homo sapiens TaxID=9606 RepID=HBA_HUMAN\n"
    "VLSPADKTNV\nKAAWGK\n"
    ">UniRef50_Q9 Peptide, 3-5 n=1 Tax=Mus TaxID=10090 RepID=Q9_MOUSE\nACDEF\n"
)


def write(folder: Path, text: str, name: str = "p.fasta") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.fixture
def stores_any_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a small file."""
    monkeypatch.setattr(fasta, "STORE_FROM", 0)


class TestShipped:
    def test_at_least_60_proteins_have_the_length_that_is_known(self) -> None:
        """A residue lost in copying shows only here."""
        records = list(FastaFile(SHIPPED_PROTEINS))
        wrong = [
            record.id
            for record in records
            if len(record.sequence) != int(record.fields["length"])
        ]
        assert wrong == []
        assert len(records) >= 60
        assert min(len(record.sequence) for record in records) == 10
        assert max(len(record.sequence) for record in records) >= 1000

    def test_they_are_made_of_the_20_amino_acids(self) -> None:
        """Anything else in a well-known protein is a typing error."""
        for record in FastaFile(SHIPPED_PROTEINS):
            assert set(record.sequence) <= set(AMINO_ACIDS), record.id
            assert record.fields["OS"]

    def test_parts_of_proteins_are_parts_of_them(self) -> None:
        """Facts that tie sequences typed separately to each other."""
        known = {record.id: record.sequence for record in FastaFile(SHIPPED_PROTEINS)}
        assert known["insulin_A_chain"] in known["insulin_precursor"]
        assert known["insulin_B_chain"] in known["insulin_precursor"]
        assert known["corticotropin"].startswith(known["alpha_melanotropin"])
        assert known["ubiquitin"].endswith("LRLRGG")
        assert known["green_fluorescent_protein"][64:67] == "SYG"  # its chromophore
        assert known["calmodulin"].count("DGNGTI") == 1


class TestRecords:
    def test_a_record_is_the_lines_after_its_header(self, tmp_path: Path) -> None:
        """Wrapped lines, CRLF, soft-masked residues and a final stop are how it is written."""
        text = UNIREF.replace("ACDEF", "acd\r\nEF*\r\n")
        file = FastaFile(write(tmp_path, text))
        assert [record.sequence for record in file] == ["VLSPADKTNVKAAWGK", "ACDEF"]
        assert file.lengths.tolist() == [16, 5]
        assert file[0].id == "UniRef50_P69905"
        assert file[0].fields == {
            **{"n": "2", "Tax": "Homo sapiens", "TaxID": "9606", "RepID": "HBA_HUMAN"}
        }

    def test_a_value_in_a_header_ends_where_the_next_key_begins(self) -> None:
        """Names of organisms have spaces, hyphens and brackets."""
        header = "Envelope OS=HIV-1 (isolate A=B x) OX=11676 GN=env PE=1 SV=2"
        assert header_fields(header)["OX"] == "11676"
        assert header_fields(header)["GN"] == "env"
        assert header_fields("no fields at all") == {}

    @given(
        st.lists(st.text(AMINO_ACIDS + "XBZUOJ", min_size=1, max_size=30), min_size=1),
        st.integers(1, 12),
    )
    def test_any_sequence_is_read_back_at_any_line_width(
        self, tmp_path_factory: pytest.TempPathFactory, sequences: list[str], width: int
    ) -> None:
        """The index must not depend on how a file is wrapped."""
        path = tmp_path_factory.mktemp("fasta", numbered=True) / "p.fasta"
        lines = []
        for number, sequence in enumerate(sequences):
            cut = [sequence[start : start + width] for start in range(0, len(sequence), width)]
            lines += [f">p{number} protein", *cut]
        path.write_text("\n".join(lines))
        file = FastaFile(path)
        assert [record.sequence for record in file] == sequences
        assert [record.id for record in file] == [f"p{n}" for n in range(len(sequences))]


class TestIndex:
    def test_reading_a_record_reads_only_that_record(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Random access at the cost of the file would make an epoch quadratic."""
        path = write(tmp_path, "".join(f">p{n}\n{'ACDEFGHIKL' * 20}\n" for n in range(1000)))
        file = FastaFile(path)
        reads = []
        real = os.pread
        monkeypatch.setattr(os, "pread", lambda fd, n, at: reads.append(n) or real(fd, n, at))  # type: ignore[func-returns-value]
        assert file[700].id == "p700"
        assert reads == [len(">p700\n") + 201]

    def test_memory_is_bounded_by_the_records_and_not_by_the_residues(
        self, tmp_path: Path
    ) -> None:
        """UniRef50 has 20 GB of residues."""
        path = write(tmp_path, "".join(f">p{n}\n{'A' * 5000}\n" for n in range(1000)))
        tracemalloc.start()
        FastaFile(path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1_000_000 < path.stat().st_size

    @pytest.mark.usefixtures("stores_any_index")
    def test_the_stored_index_is_used_and_has_the_same_content(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise every start of every rank scans the whole file."""
        path = write(tmp_path, UNIREF)
        first = FastaFile(path)
        assert len(list(tmp_path.glob("p.fasta.index-*.npy"))) == 1
        monkeypatch.setattr(fasta, "build_index", None)
        again = FastaFile(path)
        assert list(again) == list(first)
        assert isinstance(again.lengths, np.memmap)

    @pytest.mark.usefixtures("stores_any_index")
    def test_an_index_of_another_content_is_not_used(self, tmp_path: Path) -> None:
        """Records would begin in the middle of others."""
        path = write(tmp_path, UNIREF)
        FastaFile(path)
        write(tmp_path, ">new\nACACAC\n" + UNIREF)
        assert FastaFile(path)[0].id == "new"
        assert len(FastaFile(path)) == 3

    @pytest.mark.usefixtures("stores_any_index")
    def test_a_damaged_index_is_made_again(self, tmp_path: Path) -> None:
        """It is derived data: nobody should have to know that it exists."""
        path = write(tmp_path, UNIREF)
        FastaFile(path)
        (stored,) = tmp_path.glob("p.fasta.index-*.npy")
        stored.write_bytes(stored.read_bytes()[:40])
        assert len(FastaFile(path)) == 2

    def test_a_file_that_changes_under_the_training_is_refused(self, tmp_path: Path) -> None:
        """The offsets still point somewhere, and the residues there still look like protein."""
        for before, after in (("VLS", "VL"), ("VLS", "VLSS"), ("\nVLSPADKTNV", "VLSPADKTNV\n")):
            path = write(tmp_path, UNIREF)
            file = FastaFile(path)
            path.write_text(UNIREF.replace(before, after))
            with pytest.raises(
                UserError, match="record 0: 16 residues when the file was indexed"
            ):
                file[0]

    def test_a_worker_is_given_the_path_and_not_the_index(self, tmp_path: Path) -> None:
        """With a million records, each spawned worker would be sent 24 MB."""
        path = write(tmp_path, "".join(f">p{n}\nACDEF\n" for n in range(2000)))
        file = FastaFile(path)
        sent = pickle.dumps(file)
        assert len(sent) < 500
        assert pickle.loads(sent)[1234].id == "p1234"

    def test_a_folder_that_cannot_be_written_costs_the_index_only(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Shared datasets are read-only."""
        monkeypatch.setattr(fasta, "STORE_FROM", 0)

        def refuse(path: Path, array: object) -> None:
            path.write_bytes(b"half")
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(np, "save", refuse)
        path = write(tmp_path, UNIREF)
        assert len(FastaFile(path)) == 2
        assert [entry.name for entry in tmp_path.iterdir()] == ["p.fasta"]

    def test_a_record_past_the_end_is_an_index_error(self, tmp_path: Path) -> None:
        """Iteration by index ends with it."""
        file = FastaFile(write(tmp_path, UNIREF))
        for number in (2, -1):
            with pytest.raises(IndexError, match=f"record {number}"):
                file[number]


BAD = {
    "digit": (">a\nACD\n>b\nAC1D\n", r"row 3: record 2 \(b\): position 3 is '1', no residue"),
    "gap": (">a\nACD\n>b\nACDEF\nA-C\n", r"row 3: record 2 \(b\): position 7 is '-', a gap"),
    "stop inside": (">a\nACD\n>b\nAC*DE\n", r"record 2 \(b\): position 3 is '\*'"),
    "stop, then more": (
        ">a\nACD\n>b\nAC*\nDE\n",
        r"record 2 \(b\): position 3 is '\*', a stop",
    ),
    "no sequence": (">a\nACD\n>b\n", r"row 3: record 2 \(b\): it has no sequence"),
    "no id": (">a\nACD\n> b\nACD\n", r"row 3: record 2 \(\): the header has no id"),
    "same id": (">a\nACD\n>a again\nDEF\n", r"row 3: record 2: its id has been used before"),
}


class TestDamage:
    @pytest.mark.parametrize("kind", BAD)
    def test_a_bad_record_is_named_by_row_record_and_position(
        self, tmp_path: Path, kind: str
    ) -> None:
        """An "invalid character" in a file of 20 GB helps nobody."""
        text, message = BAD[kind]
        path = write(tmp_path, text)
        with pytest.raises(UserError, match=message) as caught:
            FastaFile(path)
        assert str(caught.value).startswith(str(path))
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("kind", BAD)
    def test_skipping_is_asked_for_and_counted(self, tmp_path: Path, kind: str) -> None:
        """Also by the next process, which reads the stored index."""
        path = write(tmp_path, BAD[kind][0] + ">c\nWWW\n")
        file = FastaFile(path, on_bad="skip")
        assert [(record.id, record.sequence) for record in file] == [("a", "ACD"), ("c", "WWW")]
        assert file.num_skipped == 1

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "the file is empty"),
            ("\n\n", "no record"),
            ("ACDEF\n>a\nACD\n", "row 1: sequence before the first header"),
        ],
    )
    def test_what_is_no_fasta_is_refused(self, tmp_path: Path, text: str, message: str) -> None:
        """Even where bad records may be skipped."""
        with pytest.raises(UserError, match=message):
            FastaFile(write(tmp_path, text), on_bad="skip")

    def test_gzip_is_refused_with_the_reason(self, tmp_path: Path) -> None:
        """It would work, and each sample would unpack the file from the start."""
        path = tmp_path / "p.fasta.gz"
        path.write_bytes(gzip.compress(UNIREF.encode()))
        with pytest.raises(UserError, match=r"gzip. .* gunzip --keep"):
            FastaFile(path)

    def test_a_file_of_which_nothing_is_left_is_refused(self, tmp_path: Path) -> None:
        """An empty dataset trains in no time, and reports success."""
        with pytest.raises(UserError, match="0 of 1 rows kept, 1 skipped"):
            FastaFile(write(tmp_path, ">a\n123\n"), on_bad="skip")


class TestGenerated:
    def test_lengths_are_skewed_to_the_right_with_a_heavy_tail(self) -> None:
        """Buckets and budgets that are tried on even lengths prove nothing."""
        lengths = generated_lengths(200_000, seed=0)
        assert lengths.min() >= SHORTEST == 11
        assert 20_000 < lengths.max() <= LONGEST == 35_000
        assert 200 < np.median(lengths) < 280 < lengths.mean()
        assert 0.005 < (lengths > 2000).mean() < 0.02
        assert (lengths > 10_000).sum() > 50
        # A tail that is cut off by clipping would pile up at the limit.
        assert (lengths == LONGEST).sum() <= 2

    def test_residues_are_as_frequent_as_in_nature(self) -> None:
        """A uniform draw would have five times too much tryptophan."""
        sequence = generated_protein(0, 35_000, seed=0)
        for residue, percent in RESIDUE_PERCENT.items():
            assert 100 * sequence.count(residue) / 35_000 == pytest.approx(percent, abs=0.5)

    def test_the_file_is_a_function_of_the_seed_and_its_ids_say_generated(
        self, tmp_path: Path
    ) -> None:
        """Nobody may take a random sequence for a protein."""
        for name, seed in (("a", 1), ("b", 1), ("c", 2)):
            write_generated_fasta(tmp_path / name, 30, seed=seed)
        first, same, other = ((tmp_path / name).read_text() for name in "abc")
        assert first == same != other
        assert generated_protein(0, 50, seed=1) != generated_protein(0, 50, seed=2)
        file = FastaFile(tmp_path / "a")
        assert file.lengths.tolist() == generated_lengths(30, seed=1).tolist()
        assert all(record.id.startswith("generated_1_") for record in file)
        with pytest.raises(FileExistsError):
            write_generated_fasta(tmp_path / "a", 30, seed=1)
