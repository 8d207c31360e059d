"""Fingerprints and tokens of SMILES, computed once and offline, at RDKit's own speed.

Part of the biotech track. Features are written in chunks to files that training maps into
memory; a manifest says which transform and which RDKit made them.

    n  SMILES        F  bits or counters of a fingerprint (fp_size)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

# %% active="py"
from trainer_core.bio.packages import load
from trainer_core.settings import UserError

# %%
# Part of every digest: raise it with any change in what is written.
FEATURES_VERSION = "morgan-1"
ByteArray = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class MorganSettings:
    """A Morgan fingerprint: radius 2 is what the literature calls ECFP4.

    Args:
        kind: ``bits`` are packed, eight to a byte (F / 8 bytes a molecule); ``counts`` take one
            byte each and stop at 255, which only a large polymer's fragment reaches.
    """

    kind: Literal["bits", "counts"] = "bits"
    radius: int = 2
    fp_size: int = 2048
    use_chirality: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of one molecule's features."""
        return -(-self.fp_size // 8) if self.kind == "bits" else self.fp_size

    def generator(self) -> Any:
        """RDKit's generator of these fingerprints."""
        made = load("rdkit.Chem.rdFingerprintGenerator", "computing fingerprints")
        return made.GetMorganGenerator(
            radius=self.radius, fpSize=self.fp_size, includeChirality=self.use_chirality
        )

    def encode(self, counts: Sequence[bytes]) -> ByteArray:
        """Rows of features, (len(counts), row_bytes), from RDKit's binary count fingerprints.

        The binary form holds 32-bit words: version, index size, F, entries, then a place and a
        count for each entry. RDKit writes it in 2 us; a NumPy row, or the dict that
        GetNonzeroElements makes, takes it up to 20 us, which is as long as the fingerprint.

        Raises:
            UserError: if this RDKit has another binary form.
        """
        words = np.frombuffer(b"".join(counts), "<u4").astype(np.int64)
        starts = np.cumsum([0, *(len(each) // 4 for each in counts)])[:-1]
        entries = words[starts + 3]
        heads = words[starts[:, None] + np.arange(3)]
        is_known = (heads == [1, 4, self.fp_size]).all()
        if not is_known or len(words) != (4 + 2 * entries).sum():
            version = load("rdkit", "computing fingerprints").__version__
            raise UserError(
                f"RDKit {version} writes fingerprints in a binary form that this code doesn't "
                "know. It would read other features. Install the version of constraints.txt."
            )
        is_entry = np.ones(len(words), bool)
        is_entry[starts[:, None] + np.arange(4)] = False
        places, values = words[is_entry].reshape(-1, 2).T
        rows = np.repeat(np.arange(len(counts)), entries)
        features = np.zeros((len(counts), self.fp_size), np.uint8)
        features[rows, places] = 1 if self.kind == "bits" else values.clip(max=255)
        is_packed = self.kind == "bits"
        return np.packbits(features, axis=1, bitorder="little") if is_packed else features


def morgan_bit_vectors(smiles: Iterable[str], *, radius: int = 2, fp_size: int = 2048) -> Any:
    """RDKit bit vectors of canonical SMILES, for its own similarity functions."""
    chem = load("rdkit.Chem", "computing fingerprints")
    make = MorganSettings(radius=radius, fp_size=fp_size).generator().GetFingerprint
    return [make(chem.MolFromSmiles(text)) for text in smiles]


def unpack_fingerprints(rows: ByteArray, fp_size: int) -> NDArray[np.float32]:
    """Packed bits (B, F / 8) as the (B, F) float32 that a model takes."""
    # Each byte's lowest bit comes first, as in RDKit's own binary form.
    return np.unpackbits(rows, axis=-1, count=fp_size, bitorder="little").astype(np.float32)


# %%
@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureFile:
    """Features on disk, and what made them."""

    path: Path
    settings: MorganSettings
    num_rows: int
    rdkit: str  # the version that made them
    source_digest: str  # SHA-256 over the SMILES, one a line
    skipped: tuple[int, ...]  # rows without a molecule, left at zero on request

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of everything that decides the features: input, transform, RDKit."""
        facts = {**asdict(self.settings), "version": FEATURES_VERSION, "rdkit": self.rdkit}
        facts |= {"source": self.source_digest, "rows": self.num_rows}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def rows(self) -> ByteArray:
        """All features, (n, row_bytes) uint8, mapped read-only: workers share the pages."""
        return np.load(self.path, mmap_mode="r")  # type: ignore[no-any-return]


def _in_chunks(smiles: Iterable[str], size: int) -> Iterator[list[str]]:
    waiting = iter(smiles)
    while chunk := list(islice(waiting, size)):
        yield chunk


def featurize_smiles(
    smiles: Iterable[str],
    num_rows: int,
    path: Path,
    settings: MorganSettings | None = None,
    *,
    chunk_rows: int = 1024,
    on_bad: Literal["raise", "skip"] = "raise",
) -> FeatureFile:
    """Write the features of ``smiles`` to ``path`` (.npy), with ``path``.json as its manifest.

    Memory is one chunk, whatever ``num_rows`` is. Until they are complete, the features have
    another name, so an interrupted run leaves nothing that looks finished.

    Raises:
        UserError: naming the row, if RDKit can't read it; if there aren't ``num_rows`` rows; or
            if ``path`` already holds features.
    """
    settings = settings or MorganSettings()
    manifest = path.with_suffix(path.suffix + ".json")
    if path.exists() or manifest.exists():
        raise UserError(
            f"{path} exists, and a run may be reading it. Features are never written over. "
            "Choose another path, or delete the file and its manifest first."
        )
    shape = (num_rows, settings.row_bytes)
    partial = path.with_suffix(path.suffix + ".partial")
    output = np.lib.format.open_memmap(partial, mode="w+", dtype=np.uint8, shape=shape)
    source, skipped, first = hashlib.sha256(), list[int](), 0
    for chunk in _in_chunks(smiles, chunk_rows):
        last = first + len(chunk)
        _require_rows(path, num_rows, max(last, num_rows))
        counts, bad = _count_chunk(chunk, settings)
        if bad and on_bad == "raise":
            raise UserError(_unreadable_row(path, first + bad[0] + 1, chunk[bad[0]]))
        skipped += [first + place + 1 for place in bad]
        output[first:last] = settings.encode(counts)
        source.update("".join(f"{text}\n" for text in chunk).encode())
        first = last
    _require_rows(path, num_rows, first)
    output.flush()
    partial.rename(path)
    made = FeatureFile(
        path=path,
        settings=settings,
        num_rows=num_rows,
        rdkit=load("rdkit", "computing fingerprints").__version__,
        source_digest=source.hexdigest(),
        skipped=tuple(skipped),
    )
    facts = {**asdict(made), "path": path.name, "digest": made.digest}
    manifest.write_text(json.dumps({**facts, "version": FEATURES_VERSION}, indent=1) + "\n")
    return made


def _count_chunk(
    chunk: Sequence[str], settings: MorganSettings
) -> tuple[list[bytes], list[int]]:
    """Count fingerprints in RDKit's binary form, and the places that can't be read."""
    read = load("rdkit.Chem", "computing fingerprints").MolFromSmiles
    count_of = settings.generator().GetCountFingerprint
    nothing = np.array([1, 4, settings.fp_size, 0], "<u4").tobytes()
    counts, bad = list[bytes](), list[int]()
    with load("rdkit.rdBase", "computing fingerprints").BlockLogs():
        for text in chunk:
            # The molecule gets no name: kept until the next one is read, it costs 5%.
            try:
                counts.append(count_of(read(text)).ToBinary())
            except TypeError:  # RDKit's own kind: read gave None
                bad.append(len(counts))
                counts.append(nothing)
    return counts, bad


def _unreadable_row(path: Path, row: int, text: str) -> str:
    return (
        f"{path.name}, row {row}: {text!r} can't be read by RDKit. Its features would be "
        "those of no molecule. Standardize the table first, or pass on_bad='skip' to leave "
        "zeros and count it."
    )


def _require_rows(path: Path, expected: int, found: int) -> None:
    if found != expected:
        more = "more than " if found > expected else ""
        raise UserError(
            f"{path.name}: {more}{min(found, expected)} SMILES, but num_rows={expected}. "
            "Features and labels would be off by a row. Count the rows of the source again."
        )


def open_features(path: Path) -> FeatureFile:
    """The features that ``featurize_smiles`` wrote to ``path``.

    Raises:
        UserError: if they aren't finished, are damaged, or are from another transform.
    """
    manifest = path.with_suffix(path.suffix + ".json")
    if not manifest.exists():
        raise UserError(
            f"{path}: no {manifest.name} beside it, so the features were never finished. Rows "
            "may be zeros. Run featurize_smiles again."
        )
    facts = json.loads(manifest.read_text())
    digest, version = facts.pop("digest"), facts.pop("version")
    facts |= {"path": path, "settings": MorganSettings(**facts["settings"])}
    made = FeatureFile(**{**facts, "skipped": tuple(facts["skipped"])})
    size = path.stat().st_size if path.exists() else 0
    # A .npy file is a header, then the rows.
    if version != FEATURES_VERSION or made.digest != digest:
        found = f"made by {version}, or changed since"
    elif size < made.num_rows * made.settings.row_bytes:
        found = f"{size} bytes, too few for {made.num_rows} rows"
    else:
        return made
    raise UserError(
        f"{path}: {found}. This code would train on other features than the manifest says. Run "
        "featurize_smiles again."
    )


def features_match(made: FeatureFile, smiles: Sequence[str]) -> bool:
    """Whether ``made`` holds the features of exactly these SMILES, in this order."""
    text = "".join(f"{each}\n" for each in smiles)
    return hashlib.sha256(text.encode()).hexdigest() == made.source_digest
