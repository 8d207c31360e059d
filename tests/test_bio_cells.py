"""Sparse cells: one row costs one row, workers share the pages, and the test set stays out."""

from __future__ import annotations

import multiprocessing
import pickle
import shutil
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from trainer_core.bio import cells
from trainer_core.bio.cell_normalization import fit_normalization
from trainer_core.bio.cells import Cell, CellMatrix, cell_labels, densify, export_cells
from trainer_core.settings import UserError

h5py = pytest.importorskip("h5py")
sparse = pytest.importorskip("scipy.sparse")
pandas = pytest.importorskip("pandas")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # anndata's own imports
    anndata = pytest.importorskip("anndata")


def counts(rows: int = 40, genes: int = 30, seed: int = 0) -> Any:
    """Random counts, about a fifth of them not zero, with an empty cell."""
    random = np.random.default_rng(seed)
    dense = random.poisson(3, (rows, genes)) * (random.random((rows, genes)) < 0.2)
    dense[rows // 2] = 0
    return sparse.csr_matrix(dense.astype(np.float32))


def write(folder: Path, matrix: Any, **layers: Any) -> Path:
    path = folder / "cells.h5ad"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        anndata.AnnData(X=matrix, layers=layers).write_h5ad(path)
    return path


def exported(folder: Path, matrix: Any) -> CellMatrix:
    export_cells(write(folder, matrix), folder / "export")
    return CellMatrix(folder / "export")


class TestExport:
    def test_every_cell_is_the_one_in_the_file(self, tmp_path: Path) -> None:
        """A row shifted by one gives each cell its neighbor's label."""
        matrix = counts()
        made = exported(tmp_path, matrix)
        assert (len(made), made.num_genes) == matrix.shape
        np.testing.assert_array_equal(made.batch(range(40)).numpy(), matrix.toarray())
        np.testing.assert_array_equal(
            made.batch([7, 3, 7]).numpy(), matrix.toarray()[[7, 3, 7]]
        )
        assert made.batch([]).shape == (0, 30)

    def test_a_layer_and_the_raw_matrix_are_read_by_name(self, tmp_path: Path) -> None:
        """The same cells hold counts in one place and logarithms in another."""
        first, second = counts(seed=1), counts(seed=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = anndata.AnnData(X=first, layers={"spliced": second})
            data.raw = anndata.AnnData(X=counts(seed=3))
            data.write_h5ad(tmp_path / "a.h5ad")
        for layer, expected in ((None, first), ("spliced", second), ("raw", counts(seed=3))):
            folder = tmp_path / f"export-{layer}"
            export_cells(tmp_path / "a.h5ad", folder, layer=layer)
            found = CellMatrix(folder).batch(range(40)).numpy()
            np.testing.assert_array_equal(found, expected.toarray())

    def test_a_missing_layer_is_named_with_those_that_are_there(self, tmp_path: Path) -> None:
        """A bare KeyError sends people to the documentation of HDF5."""
        path = write(tmp_path, counts(), spliced=counts(), ambiguous=counts())
        with pytest.raises(UserError, match=r"no layers/counts. .* X, ambiguous, spliced\."):
            export_cells(path, tmp_path / "export", layer="counts")
        assert not (tmp_path / "export").exists()

    @pytest.mark.parametrize(
        ("convert", "found"), [(sparse.csc_matrix, "csc_matrix"), (np.asarray, "array")]
    )
    def test_a_matrix_not_stored_by_rows_is_refused_with_the_reason(
        self, tmp_path: Path, convert: Any, found: str
    ) -> None:
        """A cell of a CSC matrix is spread over all of it: each batch would read the file."""
        matrix = counts()
        path = write(tmp_path, convert(matrix.toarray() if found == "array" else matrix))
        with pytest.raises(
            UserError, match=f"X is {found}, not csr_matrix.*csr_matrix\\(adata"
        ):
            export_cells(path, tmp_path / "export")

    def test_pieces_of_any_size_make_the_same_export(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Pieces keep memory bounded, and a border inside a cell must not show."""
        whole = exported(tmp_path, counts())
        monkeypatch.setattr(cells, "CHUNK", 7)
        export_cells(tmp_path / "cells.h5ad", tmp_path / "pieces")
        pieces = CellMatrix(tmp_path / "pieces")
        assert pieces.fingerprint == whole.fingerprint
        np.testing.assert_array_equal(pieces.batch(range(40)), whole.batch(range(40)))

    def test_memory_does_not_grow_with_the_matrix(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An atlas has more numbers than a node has memory."""
        monkeypatch.setattr(cells, "CHUNK", 1000)
        path = write(tmp_path, sparse.random_array((500, 2000), density=0.2, format="csr"))
        tracemalloc.start()
        export_cells(path, tmp_path / "export")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 400_000 < (tmp_path / "export" / "data.npy").stat().st_size

    def test_a_folder_that_exists_is_never_overwritten(self, tmp_path: Path) -> None:
        """A run that has it mapped would read the new numbers halfway through."""
        exported(tmp_path, counts())
        with pytest.raises(UserError, match="export exists"):
            export_cells(tmp_path / "cells.h5ad", tmp_path / "export")

    def test_an_export_cut_short_leaves_nothing_that_looks_like_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Half a matrix trains, on half of the cells."""

        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(cells, "_check_chunk", stop)
        path = write(tmp_path, counts())
        with pytest.raises(KeyboardInterrupt):
            export_cells(path, tmp_path / "export")
        assert [entry.name for entry in tmp_path.iterdir()] == ["cells.h5ad"]


class TestLabels:
    def test_a_cell_keeps_its_type_and_a_missing_one_is_no_class(self, tmp_path: Path) -> None:
        """Missing read as class 0 would make the first type in the alphabet the most common."""
        kinds = ["T", None, "B", "T"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = anndata.AnnData(X=counts(4))
            data.obs["cell_type"] = pandas.Categorical(kinds)
            data.obs["age"] = [1.0, 2.0, 3.0, 4.0]
            data.write_h5ad(tmp_path / "a.h5ad")
        codes, names = cell_labels(tmp_path / "a.h5ad", "cell_type")
        assert [names[code] if code >= 0 else None for code in codes] == kinds
        with pytest.raises(UserError, match=r"no column 'kind'. It has cell_type, age\."):
            cell_labels(tmp_path / "a.h5ad", "kind")
        with pytest.raises(UserError, match=r"'age' is array, not categorical"):
            cell_labels(tmp_path / "a.h5ad", "age")


def damage(path: Path, name: str, at: int, value: float) -> None:
    with h5py.File(path, "r+") as file:
        file["X"][name][at] = value


class TestDamage:
    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("data", np.nan, r"row 1: gene \d+ has the value nan"),
            ("data", np.inf, r"row 1: gene \d+ has the value inf"),
            ("data", -1.0, r"row 1: gene \d+ has the value -1"),
            ("indices", 30, r"row 1: gene 30 has the value"),
            ("indices", -1, r"row 1: gene -1 has the value"),
        ],
    )
    def test_a_number_that_cannot_be_is_named_by_its_cell(
        self, tmp_path: Path, name: str, value: float, message: str
    ) -> None:
        """NaN in one cell is NaN in all weights after one step."""
        matrix = counts()
        path = write(tmp_path, matrix)
        damage(path, name, int(matrix.indptr[1]), value)
        with pytest.raises(UserError, match=message):
            export_cells(path, tmp_path / "export")

    @pytest.mark.parametrize(
        ("at", "value", "message"),
        [
            (5, 0, r"row 4: indptr falls"),
            (0, 3, r"row 0: indptr falls"),
            (40, 10**6, r"41 pointers"),
        ],
    )
    def test_pointers_that_do_not_fit_are_refused(
        self, tmp_path: Path, at: int, value: int, message: str
    ) -> None:
        """Cells would get each other's genes."""
        path = write(tmp_path, counts())
        damage(path, "indptr", at, value)
        with pytest.raises(UserError, match=message):
            export_cells(path, tmp_path / "export")

    def test_a_file_that_is_no_hdf5_or_is_cut_short_is_refused(self, tmp_path: Path) -> None:
        """In one line, without HDF5's stack of errors."""
        path = write(tmp_path, counts(200, 200))
        path.write_bytes(path.read_bytes()[:5000])
        absent, text = tmp_path / "absent.h5ad", tmp_path / "text.h5ad"
        text.write_text("smiles\n")
        for bad in (path, absent, text):
            with pytest.raises(UserError, match="Nothing has been exported") as caught:
                export_cells(bad, tmp_path / "export")
            assert str(caught.value).startswith(str(bad))
            assert "\n" not in str(caught.value)

    def test_a_folder_without_an_export_of_this_version_is_refused(
        self, tmp_path: Path
    ) -> None:
        """Another version's files have the same names and another meaning."""
        with pytest.raises(UserError, match=r"no export of version 1 \(found none\)"):
            CellMatrix(tmp_path)
        exported(tmp_path, counts())
        manifest = tmp_path / "export" / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 2'))
        with pytest.raises(UserError, match=r"\(found 2\)"):
            CellMatrix(tmp_path / "export")

    def test_a_row_past_the_end_is_an_index_error(self, tmp_path: Path) -> None:
        """-1 would silently be a slice of nothing."""
        made = exported(tmp_path, counts())
        for row in (40, -1):
            with pytest.raises(IndexError):
                made[row]


def private_kib() -> int:
    """Memory that belongs to this process alone."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def read_everything(matrix: CellMatrix, sender: Any) -> None:
    before = private_kib()
    total = sum(
        float(cell.values.sum()) for cell in (matrix[row] for row in range(len(matrix)))
    )
    sender.send((total, private_kib() - before))


class TestWorkers:
    @pytest.mark.ranks
    def test_a_forked_worker_that_reads_every_cell_copies_none(self, tmp_path: Path) -> None:
        """Ten workers with a copy each need ten times the memory of the matrix."""
        matrix = sparse.random_array((2000, 2000), density=0.5, format="csr", dtype=np.float32)
        made = exported(tmp_path, matrix)
        size_kib = sum(file.stat().st_size for file in (tmp_path / "export").iterdir()) // 1024
        context = multiprocessing.get_context("fork")
        # The page cache is common property: what a mapping reads stays there as a clean,
        # shared page. Another process that has it mapped too makes that visible.
        made.data.sum(), made.indices.sum()
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=read_everything, args=(made, sender))
        process.start()
        total, grown_kib = receiver.recv()
        process.join()
        assert total == pytest.approx(float(matrix.sum()), rel=1e-4)
        assert grown_kib < size_kib // 10

    def test_the_arrays_are_the_files_mapped_and_not_copies(self, tmp_path: Path) -> None:
        """A slice is a view of the mapped file: nothing is read that isn't asked for."""
        made = exported(tmp_path, counts())
        for array in (made.indptr, made.indices, made.data):
            assert isinstance(array, np.memmap)
        assert made[3].values.base is not None
        assert np.shares_memory(made[3].values, made.data)
        assert np.shares_memory(made[3].genes, made.indices)
        maps = Path("/proc/self/maps").read_text().splitlines()
        (mapped,) = (line for line in maps if line.endswith(str(tmp_path / "export/data.npy")))
        assert mapped.split()[1] == "r--s"  # read-only and shared

    def test_a_spawned_worker_is_sent_the_folder(self, tmp_path: Path) -> None:
        """Pickled as arrays, each worker would be sent the whole matrix."""
        made = exported(tmp_path, counts(400, 300))
        sent = pickle.dumps(made)
        assert len(sent) < 500
        np.testing.assert_array_equal(pickle.loads(sent).batch([5]), made.batch([5]))

    @pytest.mark.ranks
    def test_a_loader_densifies_one_batch_in_collate(self, tmp_path: Path) -> None:
        """Dense rows in __getitem__ would send zeros through the workers' pipes one by one."""
        matrix = counts()
        made = exported(tmp_path, matrix)
        loader: Any = DataLoader(
            made,  # type: ignore[arg-type]
            batch_size=16,
            num_workers=2,
            collate_fn=lambda rows: densify(rows, made.num_genes),
            multiprocessing_context="fork",
        )
        found = torch.cat(list(loader)).numpy()
        np.testing.assert_array_equal(found, matrix.toarray())

    def test_numbers_stored_twice_for_a_gene_add_up(self) -> None:
        """scipy allows them, and adds them; the last one alone would be a smaller count."""
        cell = Cell(np.array([2, 2, 0]), np.array([1, 4, 3], np.float32))
        assert densify([cell], 4).tolist() == [[3, 0, 5, 0]]


class TestNormalization:
    def test_it_is_what_numpy_makes_of_the_dense_training_rows(self, tmp_path: Path) -> None:
        """Two passes over sparse rows must be the textbook formula."""
        matrix = counts(600, 20)
        made = exported(tmp_path, matrix)
        train = np.arange(0, 600, 2)
        fitted = fit_normalization(made, train.tolist())
        dense = matrix.toarray().astype(np.float64)[train]
        totals = dense.sum(axis=1)
        size = np.median(totals[totals > 0])
        logs = np.log1p(dense[totals > 0] * (size / totals[totals > 0])[:, None])
        assert fitted.library_size == size
        assert fitted.num_cells == (totals > 0).sum() < len(train)
        np.testing.assert_allclose(fitted.mean, logs.mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(fitted.deviation, logs.std(axis=0), rtol=1e-5)
        scaled = fitted(made.batch(train[totals > 0].tolist()))
        np.testing.assert_allclose(scaled.mean(dim=0), 0, atol=1e-5)
        np.testing.assert_allclose(scaled.std(dim=0, correction=0), 1, atol=1e-4)

    def test_test_cells_play_no_part(self, tmp_path: Path) -> None:
        """A scaler fitted on all cells has seen the answers' distribution."""
        matrix = counts().toarray()
        changed = matrix.copy()
        changed[30:] = 1000
        train = list(range(30))
        fitted = []
        for name, dense in (("a", matrix), ("b", changed)):
            (tmp_path / name).mkdir()
            made = exported(tmp_path / name, sparse.csr_matrix(dense))
            fitted.append((fit_normalization(made, train), fit_normalization(made, range(40))))
        assert fitted[0][0].digest == fitted[1][0].digest
        assert fitted[0][1].digest != fitted[1][1].digest

    def test_an_empty_cell_and_a_constant_gene_stay_finite(self, tmp_path: Path) -> None:
        """0/0 for one cell is NaN in all weights after one step."""
        matrix = counts().toarray()
        matrix[:, 4] = 0
        made = exported(tmp_path, sparse.csr_matrix(matrix))
        fitted = fit_normalization(made, range(40))
        out = fitted(made.batch(range(40)))
        assert torch.isfinite(out).all()
        assert (fitted.log1p(made.batch([20])) == 0).all()
        assert (out[:, 4] == 0).all()

    def test_the_order_of_the_rows_does_not_matter_and_repeats_are_refused(
        self, tmp_path: Path
    ) -> None:
        """The same split must give the same digest, however it is listed."""
        made = exported(tmp_path, counts())
        digests = {fit_normalization(made, rows).digest for rows in ([1, 2, 3], [3, 1, 2])}
        assert len(digests) == 1
        with pytest.raises(UserError, match="1 of 3 rows repeat"):
            fit_normalization(made, [1, 2, 1])
        with pytest.raises(UserError, match="none of 1 cells has a count"):
            fit_normalization(made, [20])


def test_without_h5py_the_message_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the suite works without it."""
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(UserError, match=r"h5py isn't installed, and reading AnnData files"):
        export_cells(tmp_path / "a.h5ad", tmp_path / "export")
    shutil.rmtree(tmp_path)
