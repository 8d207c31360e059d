"""Which protein is sequence number i, without the file in memory?

Part of the biotech track. One pass over a FASTA file (UniRef's, UniProt's or plain) checks each
residue and notes where each record is; after that, any record is one read from the disk. The
notes are 24 bytes a record, mapped and not copied, so a loader's workers share them.

Residues: the 20 amino acids, and X (unknown), B, Z, J (one of two), U, O (selenocysteine,
pyrrolysine). Lower case means low complexity to the tools that write it; it is read as upper
case. A stop, "*", is dropped at the end of a sequence. Gaps belong to alignments, and are
refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import weakref
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# %% active="py"
from trainer_core.bio.config import OnBad
from trainer_core.bio.delimited import BadRows
from trainer_core.bio.text_lines import is_gzip, numbered_lines
from trainer_core.datasets import hash_pieces
from trainer_core.settings import UserError

# %%
SHIPPED_PROTEINS = Path(__file__).parent / "data" / "proteins.fasta"
# Part of an index's name: raise it with any change in what the index holds or accepts.
INDEX_VERSION = 1
# Smaller files are indexed in milliseconds, and their folder stays as it was.
STORE_FROM = 1 << 20
AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
RARE_RESIDUES = "XBZUOJ"
ALLOWED = (AMINO_ACIDS + RARE_RESIDUES).encode()
RESIDUES = ALLOWED + ALLOWED.lower()
WHITE = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class ProteinRecord:
    """A sequence in upper case, and what its header says."""

    id: str  # the header up to the first white space
    description: str  # the rest
    sequence: str

    @property
    def fields(self) -> dict[str, str]:
        """The header's KEY=value fields: UniRef's Tax, TaxID, RepID; UniProt's OS, GN, ..."""
        return header_fields(self.description)


def header_fields(description: str) -> dict[str, str]:
    """KEY=value fields of a header; a value ends where the next KEY= begins."""
    parts = re.split(r"(?:^|(?<=\s))(\w+)=", description)
    return {key: value.strip() for key, value in zip(parts[1::2], parts[2::2], strict=True)}


# %%
@dataclass(slots=True)
class _Scan:
    """The record that is being read, and its first fault."""

    number: int  # from 1
    row: int
    start: int  # byte offset of its ">"
    id: bytes
    length: int = 0
    has_stop: bool = False
    fault: str = ""

    def add(self, line: bytes) -> None:
        """One line of its sequence."""
        residues = line.translate(None, WHITE)
        if self.has_stop and residues:
            self._blame("'*'", self.length + 1, "a stop inside a protein: two were joined")
        if residues.endswith(b"*"):
            self.has_stop = True
            residues = residues[:-1]
        if illegal := residues.translate(None, RESIDUES):
            place = self.length + residues.index(illegal[:1]) + 1
            why = "a gap of an alignment" if illegal[:1] in b"-." else "no residue"
            self._blame(repr(illegal[:1].decode("latin1")), place, why)
        self.length += len(residues)

    def _blame(self, found: str, place: int, why: str) -> None:
        self.fault = self.fault or (
            f"position {place} is {found}, {why}. Allowed are {AMINO_ACIDS} and "
            f"{RARE_RESIDUES}, in either case; others have no token"
        )

    def checked_fault(self) -> str:
        """What is wrong with the record, now that it is complete; "" if nothing is."""
        if not self.id:
            return "the header has no id. A prediction couldn't be traced back. Add one"
        if not self.length and not self.fault:
            return "it has no sequence. It would be a bin's empty slot. Remove it"
        return self.fault


def _scanned(path: Path) -> Iterator[_Scan]:
    """Each record with its place, length and first fault; constant memory."""
    current: _Scan | None = None
    offset = number = 0
    for row, line in numbered_lines(path):
        if line.startswith(b">"):
            if current:
                yield current
            number += 1
            name = line[1:].split(maxsplit=1)[:1] if line[1:2] not in WHITE else []
            current = _Scan(number, row, offset, b"".join(name))
        elif current:
            current.add(line)
        elif line.strip():
            raise UserError(
                f"{path}, row {row}: sequence before the first header, a line that begins with "
                "'>'. The sequence has no name, or this is no FASTA file. Check the path."
            )
        offset += len(line)
    if not current:
        raise UserError(
            f"{path}: no record. A FASTA header begins with '>'. Training on it would end at "
            "once and report success. Check the path."
        )
    yield current


# %%
Index = NDArray[np.int64]  # (records, 3): first byte, one past the last byte, residues


def build_index(path: Path, on_bad: OnBad = "raise") -> tuple[Index, BadRows]:
    """Check every record and note where it is. One pass; 32 bytes of memory a record.

    Raises:
        UserError: for the first bad record or repeated id, unless they are skipped; for a
            file that isn't FASTA, or is empty; if nothing is left.
    """
    bad = BadRows(path, on_bad)
    notes = array("q")  # of each record: first byte, residues, hash of its id, row
    faulty: set[int] = set()
    for record in _scanned(path):
        bad.report.rows += 1
        if fault := record.checked_fault():
            bad(record.row, f"record {record.number} ({record.id.decode('latin1')}): {fault}")
            faulty.add(record.number - 1)
        # Eight bytes an id, instead of the ids: UniRef50 has tens of millions of them.
        digest = hashlib.blake2b(record.id, digest_size=8).digest()
        hashed = int.from_bytes(digest, "little", signed=True)
        notes.extend((record.start, record.length, hashed, record.row))
    firsts, lengths, digests, rows = np.frombuffer(notes, np.int64).reshape(-1, 4).T
    index = np.stack([firsts, np.append(firsts[1:], path.stat().st_size), lengths], axis=1)
    keep = np.ones(len(index), bool)
    keep[list(faulty)] = False
    for later in _repeats(digests, keep):
        keep[later] = False
        bad(
            int(rows[later]),
            f"record {later + 1}: its id has been used before. Predictions and splits are "
            "joined by id. Rename or remove it",
        )
    bad.report.kept = int(keep.sum())
    if not bad.report.kept:
        raise UserError(f"{path}: {bad.report}. Nothing is left to train on. Fix the file.")
    return index[keep], bad


def _repeats(digests: NDArray[np.int64], keep: NDArray[np.bool_]) -> list[int]:
    """Places whose id was seen at an earlier place that is kept."""
    candidates = np.flatnonzero(keep)
    _, first = np.unique(digests[candidates], return_index=True)
    is_repeat = np.ones(len(candidates), bool)
    is_repeat[first] = False
    return list(candidates[is_repeat].tolist())


# %%
class FastaFile:
    """A FASTA file as a sequence of records, read from the disk one at a time.

    The index of a large file is stored beside it if the folder can be written. Its name has its
    version and the file's fingerprint, so one that belongs to another content is never used.

    Args:
        on_bad: ``skip`` drops records that break a rule, and counts them in ``num_skipped``.

    Raises:
        UserError: as in ``build_index``; and for gzip, where a record's place can't be found
            without unpacking all that precedes it.
    """

    def __init__(self, path: Path, *, on_bad: OnBad = "raise") -> None:
        if is_gzip(path):
            raise UserError(
                f"{path}: gzip. Reading sequence i would unpack the file from its start, for "
                f"every sample. Run: gunzip --keep {path}"
            )
        self.path = path
        self.on_bad = on_bad
        self.file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.file)
        size = os.fstat(self.file).st_size
        read = self._read
        self.fingerprint = hash_pieces("fasta", size, 1, lambda at, count: read(at, at + count))
        self._index = self._load_or_build()
        self.lengths = self._index[1:, 2]  # residues, (records,); mapped
        self.num_skipped = int(self._index[0, 1])

    def _load_or_build(self) -> Index:
        """The index, below a first row with its version and how many records were skipped."""
        name = f"{self.path.name}.index-{INDEX_VERSION}-{self.on_bad}-{self.fingerprint}.npy"
        stored = self.path.with_name(name)
        with contextlib.suppress(OSError, ValueError):  # not there yet, or damaged
            return np.load(stored, mmap_mode="r")  # type: ignore[no-any-return]
        records, bad = build_index(self.path, self.on_bad)
        index = np.vstack([[INDEX_VERSION, bad.report.skipped, 0], records])
        if os.fstat(self.file).st_size < STORE_FROM:
            return index
        # Ranks that start together each write their own. The last rename wins, and all of
        # them hold the same bytes.
        partial = stored.with_name(f".{name}.{os.getpid()}.npy")
        try:
            np.save(partial, index)
            partial.rename(stored)
            return np.load(stored, mmap_mode="r")  # type: ignore[no-any-return]
        except OSError:  # a folder that can't be written: each process keeps its own
            partial.unlink(missing_ok=True)
            return index

    def _read(self, first: int, last: int) -> bytes:
        return os.pread(self.file, last - first, first)

    def __len__(self) -> int:
        return len(self._index) - 1

    def __getitem__(self, number: int) -> ProteinRecord:
        """Record ``number``, from 0, of those that were kept.

        Raises:
            UserError: if the file isn't the one that was indexed.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"record {number}: {self.path} has {len(self)}")
        first, last, length = self._index[number + 1].tolist()
        header, _, body = self._read(first, last).partition(b"\n")
        sequence = body.translate(None, WHITE + b"*").upper()
        is_protein = header.startswith(b">") and not sequence.translate(None, ALLOWED)
        if not is_protein or len(sequence) != length:
            raise UserError(
                f"{self.path}, record {number}: {length} residues when the file was indexed; "
                f"now the place holds {(header + body)[:20]!r}. The file was changed under the "
                "training, and other records may be wrong unseen. Restore it, or start again."
            )
        name, _, description = header[1:].decode("utf-8", "replace").strip().partition(" ")
        return ProteinRecord(name, description.strip(), sequence.decode())

    def __iter__(self) -> Iterator[ProteinRecord]:
        return (self[number] for number in range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        # By path: a spawned worker opens the file and maps the index itself.
        return _reopened, (self.path, self.on_bad)


def _reopened(path: Path, on_bad: OnBad) -> FastaFile:
    return FastaFile(path, on_bad=on_bad)
