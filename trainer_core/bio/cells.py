"""How do a hundred loader workers share one sparse matrix of cells and genes?

Part of the biotech track. An AnnData file (.h5ad) is HDF5: a handle doesn't survive a fork, and
a matrix in memory is copied as workers touch it. So the matrix is exported once, to three plain
files that every process maps. A cell is a slice of them, and only a batch is ever dense.

    n  cells (rows)    g  genes (columns)    B  cells in a batch    nnz  stored numbers
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# %% active="py"
from trainer_core.bio.packages import load
from trainer_core.datasets import fingerprint
from trainer_core.settings import UserError

# %%
EXPORT_VERSION = 1
CHUNK = 1 << 22  # numbers copied at a time: 16 MiB of float32


# %%
@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    h5py = load("h5py", "reading AnnData files")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except OSError as error:
        if error.errno not in (None, errno.ENOENT):  # a full disk, say: not the file's fault
            raise
        raise UserError(
            f"{path}: {error}. It is no HDF5 file, was cut short or is damaged. Nothing has "
            "been exported. Check the path, or copy the file again."
        ) from None


def _matrix_group(path: Path, file: Any, layer: str | None) -> Any:
    """The sparse matrix ``X``, or a layer's; ``raw`` is the raw matrix.

    Raises:
        UserError: if it isn't there, or isn't stored by rows.
    """
    layers = sorted(file["layers"]) if "layers" in file else []
    has_raw = "raw" in file and "X" in file["raw"]
    names = {None: "X", "raw": "raw/X"}
    place = names.get(layer, f"layers/{layer}")
    if place not in file:
        there = [*(["X"] if "X" in file else []), *layers, *(["raw"] if has_raw else [])]
        raise UserError(
            f"{path}: no {place}. The file has {', '.join(there) or 'no matrix'}. Another "
            "layer holds other numbers, such as logarithms. Pass the layer that you mean."
        )
    matrix = file[place]
    encoding = matrix.attrs.get("encoding-type", "unknown")
    if encoding != "csr_matrix":
        why = {
            "csc_matrix": "It is stored by columns, so one cell is spread over the whole file",
            "array": "It is dense, so the export would write every zero",
        }.get(encoding, "Only AnnData 0.7 and later says how a matrix is stored")
        raise UserError(
            f"{path}: {place} is {encoding}, not csr_matrix. {why}. Convert it once where "
            "there is memory for it: adata.X = scipy.sparse.csr_matrix(adata.X), and write."
        )
    return matrix


def _check_structure(path: Path, matrix: Any, indptr: NDArray[np.int64]) -> tuple[int, int]:
    """The shape, (n, g), once the row pointers are known to fit the data."""
    rows, genes = (int(size) for size in matrix.attrs["shape"])
    stored = matrix["data"].shape[0]
    falls = np.flatnonzero(np.diff(indptr) < 0)
    if len(indptr) != rows + 1 or indptr[0] != 0 or indptr[-1] != stored or falls.size:
        where = f"row {falls[0]}: indptr falls" if falls.size else f"{len(indptr)} pointers"
        raise UserError(
            f"{path}, {where}; it must rise from 0 to {stored} in {rows + 1} steps. Cells "
            "would get each other's genes. The file is damaged: write it again."
        )
    return rows, genes


def _check_chunk(
    path: Path, first: int, indptr: NDArray[np.int64], indices: Any, data: Any, genes: int
) -> None:
    """Raise for the first number whose gene doesn't exist or whose value isn't finite."""
    bad = (indices < 0) | (indices >= genes) | ~np.isfinite(data) | (data < 0)
    if bad.any():
        at = int(bad.argmax())
        row = int(np.searchsorted(indptr, first + at, side="right")) - 1
        raise UserError(
            f"{path}, row {row}: gene {indices[at]} has the value {data[at]}. Genes go from 0 "
            f"to {genes - 1}, and counts are finite and not negative: others turn into NaN "
            "in the logarithm. Export a layer with counts, or remove the cell."
        )


# %%
def export_cells(path: Path, folder: Path, *, layer: str | None = None) -> None:
    """Write a matrix of an AnnData file to ``folder`` as arrays that can be mapped.

    In pieces, so memory doesn't grow with the file; the row pointers (8 bytes a cell) are held.

    Args:
        folder: must not exist. It appears under its name once it is complete.
        layer: None takes ``X``; ``raw`` the raw matrix.

    Raises:
        UserError: if the layer isn't there or isn't CSR, a number is damaged, or ``folder``
            exists.
    """
    if folder.exists():
        raise UserError(
            f"{folder} exists. An export is never overwritten, because a run may have it "
            "mapped. Choose another folder, or remove this one."
        )
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        with _opened(path) as file:
            matrix = _matrix_group(path, file, layer)
            _copy(path, matrix, partial, layer)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _copy(path: Path, matrix: Any, folder: Path, layer: str | None) -> None:
    indptr = matrix["indptr"][:].astype(np.int64)
    rows, genes = _check_structure(path, matrix, indptr)
    stored = matrix["data"].shape[0]
    np.save(folder / "indptr.npy", indptr)
    # Two bytes are enough for 65,536 genes, and halve what each batch reads.
    kind = np.dtype(np.uint16 if genes <= 1 << 16 else np.int32)
    make = np.lib.format.open_memmap
    indices = make(folder / "indices.npy", mode="w+", dtype=kind, shape=(stored,))
    data = make(folder / "data.npy", mode="w+", dtype=np.dtype(np.float32), shape=(stored,))
    for first in range(0, stored, CHUNK):
        piece = slice(first, first + CHUNK)
        genes_here, values = matrix["indices"][piece], matrix["data"][piece]
        _check_chunk(path, first, indptr, genes_here, values, genes)
        indices[piece], data[piece] = genes_here, values
    indices.flush()
    data.flush()
    facts = {"version": EXPORT_VERSION, "shape": [rows, genes], "layer": layer or "X"}
    facts["fingerprint"] = fingerprint(indptr) + fingerprint(indices) + fingerprint(data)
    (folder / "manifest.json").write_text(json.dumps(facts, indent=1) + "\n")


def cell_labels(path: Path, column: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """A categorical column of the cells, such as cell_type: (n,) codes, and what they mean.

    A cell without a value has the code -1, as in pandas: it is no class, so mask it.

    Raises:
        UserError: if the column isn't there, or isn't categorical.
    """
    with _opened(path) as file:
        columns = file["obs"].attrs["column-order"].tolist()
        if column not in columns:
            raise UserError(
                f"{path}: obs has no column {column!r}. It has {', '.join(columns) or 'none'}. "
                "There is nothing to train against. Pass one of these."
            )
        encoding = file["obs"][column].attrs.get("encoding-type", "unknown")
        if encoding != "categorical":
            raise UserError(
                f"{path}: obs column {column!r} is {encoding}, not categorical. Text repeats "
                "with typing errors, and numbers are no classes. Convert it with "
                "adata.strings_to_categoricals() or astype('category'), and write."
            )
        names = file["obs"][column]["categories"].asstr()[:]
        return file["obs"][column]["codes"][:].astype(np.int64), tuple(map(str, names))


# %%
class Cell(NamedTuple):
    """The genes of one cell that were counted; both arrays are views of mapped files."""

    genes: NDArray[Any]
    values: NDArray[np.float32]


class CellMatrix:
    """An exported matrix: mapped, so forked and spawned workers share its pages.

    Raises:
        UserError: if ``folder`` holds no complete export of this version.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        manifest = folder / "manifest.json"
        facts = json.loads(manifest.read_text()) if manifest.is_file() else {}
        if facts.get("version") != EXPORT_VERSION:
            raise UserError(
                f"{folder}: no export of version {EXPORT_VERSION} (found "
                f"{facts.get('version', 'none')}). Other files would be misread. Make it with "
                "export_cells."
            )
        self.num_cells, self.num_genes = facts["shape"]
        self.fingerprint: str = facts["fingerprint"]
        names = ("indptr", "indices", "data")
        arrays = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in names]
        self.indptr, self.indices, self.data = arrays

    def __len__(self) -> int:
        return int(self.num_cells)

    def __getitem__(self, row: int) -> Cell:
        """One cell: reads its own stretch of the files, and nothing else."""
        if not 0 <= row < len(self):
            raise IndexError(f"cell {row}: {self.folder} has {len(self)}")
        first, last = self.indptr[row : row + 2].tolist()
        return Cell(self.indices[first:last], self.data[first:last])

    def __reduce__(self) -> tuple[Any, ...]:
        # By folder: pickling a mapped array would send all of its numbers to the worker.
        return CellMatrix, (self.folder,)

    def batch(self, rows: Sequence[int] | Tensor) -> Tensor:
        """Cells ``rows``, dense: (B, g) float32."""
        return densify([self[int(row)] for row in rows], self.num_genes)


def densify(cells: Sequence[Cell], num_genes: int) -> Tensor:
    """A collate_fn's work: a batch of sparse cells as (B, g) float32.

    Numbers stored twice for one gene add up, as they do in scipy.
    """
    dense = np.zeros((len(cells), num_genes), np.float32)
    for place, cell in enumerate(cells):
        np.add.at(dense[place], cell.genes, cell.values)
    return torch.from_numpy(dense)
