"""--data proteins, graphs and cells: each from its file to a run on several ranks."""

from __future__ import annotations

import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch

from rehearsal.evidence.audit import audit_run
from rehearsal.evidence.run_records import read_jsonl
from scripts import prepare_cells as script
from trainer_core.bio.cell_task import NO_TYPE, CellTask
from trainer_core.bio.config import BioConfig
from trainer_core.bio.generated_proteins import write_generated_fasta
from trainer_core.bio.graph_files import planted_geometries, read_sdf
from trainer_core.bio.graph_task import GraphTask
from trainer_core.bio.launch import run_task
from trainer_core.bio.protein_task import ProteinTask
from trainer_core.bio.sources import build_task
from trainer_core.data import SampleKey
from trainer_core.local_launcher import LocalRanks
from trainer_core.settings import UserError

cloudpickle.register_pickle_by_value(sys.modules[__name__])

TYPES = ("B cell", "T cell", "monocyte")


def settings(run_dir: Path, **others: Any) -> BioConfig:
    values: dict[str, Any] = {"max_epochs": 1, "device": "cpu", "trace_steps": 0}
    values |= {"micro_batch_size": 2, "pinned_global_batch_size": 6, "hidden_dim": 32}
    return BioConfig(run_dir=run_dir, **(values | others))


def write_cells(path: Path, *, num_cells: int = 80, num_genes: int = 30) -> Path:
    """Counts whose genes differ by type; some cells have no type."""
    anndata = pytest.importorskip("anndata")
    pandas = pytest.importorskip("pandas")
    sparse = pytest.importorskip("scipy.sparse")
    draw = np.random.default_rng(0)
    types = draw.integers(len(TYPES), size=num_cells)
    rates = np.full((num_cells, num_genes), 0.3)
    for place, kind in enumerate(types):
        rates[place, 10 * kind : 10 * kind + 10] = 3.0
    names = pandas.Categorical.from_codes(
        np.where(draw.random(num_cells) < 0.2, NO_TYPE, types), categories=TYPES
    )
    counts = sparse.csr_matrix(draw.poisson(rates).astype(np.float32))
    index = [f"cell_{n}" for n in range(num_cells)]
    obs = pandas.DataFrame({"cell_type": names}, index=index)
    anndata.AnnData(counts, obs=obs, layers={"counts": counts}).write_h5ad(path)
    return path


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cells")
    file = write_cells(folder / "small.h5ad")
    assert script.main([str(file), str(folder / "made"), "--labels", "cell_type"]) == 0
    return folder / "made"


@pytest.fixture(scope="module")
def fasta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("proteins") / "some.fasta"
    write_generated_fasta(path, 40, seed=3)
    return path


def events(run_dir: Path, name: str) -> list[dict[str, Any]]:
    lines = read_jsonl(run_dir / "logs" / "rank-0.jsonl")
    return [line for line in lines if line["event"] == name]


@pytest.mark.ranks
@pytest.mark.parametrize("kind", ["proteins", "graphs", "cells"])
def test_ranks_equal_one_process(kind: str, tmp_path: Path, cells: Path, fasta: Path) -> None:
    """Bins differ in their terms: a mean per rank, averaged, would be another training."""
    data = {"proteins": f"proteins:{fasta}", "graphs": "graphs", "cells": f"cells:{cells}"}
    options: dict[str, dict[str, Any]] = {
        "proteins": {"budget": 256, "crop": 100},
        "graphs": {"budget": 96},
        "cells": {"max_epochs": 3},
    }
    losses, figures = [], []
    for world_size in (1, 2, 3):
        cfg = settings(tmp_path / str(world_size), data=data[kind], **options[kind])
        results = LocalRanks(partial(run_task, cfg), world_size).wait(120)
        assert [result.exitcode for result in results] == [0] * world_size, results
        losses.append(results[0].value["loss"])
        figures.append([line["summary"] for line in events(cfg.run_dir, "evaluated")])
        assert audit_run(cfg.run_dir).status == "proved"
    assert losses == pytest.approx(losses[:1] * 3, abs=1e-6)
    assert figures[0] == figures[1] == figures[2]
    assert len(figures[0]) == (kind != "proteins")


class TestProteins:
    def task(self, fasta: Path, **others: Any) -> ProteinTask:
        return ProteinTask.from_config(settings(fasta, data=f"proteins:{fasta}", **others))

    def test_terms_are_the_masked_residues_of_any_epoch(self, fasta: Path) -> None:
        """The step's denominator is known before the loader has read anything."""
        task = self.task(fasta, budget=256, crop=100)
        bins = np.arange(len(task))
        for epoch in (0, 5):
            keys = [SampleKey(epoch, int(bin_id)) for bin_id in bins]
            _, targets = task.visit(keys, seed=17)
            assert int((targets >= 0).sum()) == task.num_terms(bins)

    def test_a_budget_below_the_longest_sequence_is_refused(self, fasta: Path) -> None:
        """Cut without a word, the protein that was trained isn't the one in the file."""
        with pytest.raises(UserError, match=r"row 1: 220 tokens, and the budget is 64"):
            self.task(fasta, budget=64)

    def test_what_ships_trains_with_the_defaults(self) -> None:
        """The first command that somebody tries."""
        task = build_task(BioConfig(data="proteins"))
        assert 10 < len(task) < 105  # bins of whole sequences
        inputs, targets = task.batch([0, 1])
        assert tuple(targets.shape) == (2, 1026)
        model = task.build_model(BioConfig(data="proteins", hidden_dim=32, num_layers=1))
        assert model(inputs).shape == (2, 1026, task.num_classes)


class TestGraphs:
    def test_labels_are_scaled_by_the_training_graphs_alone(self) -> None:
        """A scale that knows the graphs held back is measured with what it should test."""
        graphs = planted_geometries()
        task = GraphTask(graphs, settings(Path("unused"), data="graphs", budget=64))
        train = torch.stack([task.labels_of(graph) for graph in task.train])
        assert train.mean().abs() < 1e-5
        assert train.square().mean() == pytest.approx(1, abs=1e-4)
        held_back = torch.stack([task.labels_of(graph) for graph in task.held_back])
        every = torch.stack([task.labels_of(graph) for graph in graphs])
        again = held_back * task.deviation + task.mean
        assert all(any(torch.isclose(one, other) for other in every) for one in again)
        assert len(train) + len(held_back) == len(graphs)

    def test_a_column_without_two_values_has_no_scale(self) -> None:
        """Divided by a deviation of zero, every label is NaN."""
        graphs = [graph._replace(y=torch.tensor([torch.nan])) for graph in planted_geometries()]
        with pytest.raises(UserError, match="fewer than two values"):
            GraphTask(graphs, settings(Path("unused"), data="graphs"))

    def test_the_planted_energy_is_invariant(self) -> None:
        """Otherwise the network couldn't learn it, whatever it is fed."""
        graph = planted_geometries()[0]
        assert graph.pos is not None
        turn = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))[0]
        kinds = graph.x.argmax(dim=1) + 1
        weight = torch.outer(kinds, kinds).float()

        def energy(pos: torch.Tensor) -> float:
            near = torch.exp(-torch.cdist(pos, pos).square() / 4)
            return float((weight * near).triu(diagonal=1).sum())

        assert graph.y is not None
        assert energy(graph.pos) == pytest.approx(graph.y.item(), rel=1e-5)
        assert energy(graph.pos @ turn + 7) == pytest.approx(graph.y.item(), rel=1e-3)


def write_sdf(path: Path, labels: list[str | None], *, flat: tuple[int, ...] = ()) -> Path:
    """Chains of carbon with coordinates, one for each label; None has no such property."""
    chem = pytest.importorskip("rdkit.Chem")
    geometry = pytest.importorskip("rdkit.Geometry")
    with chem.SDWriter(str(path)) as writer:
        for row, label in enumerate(labels, start=1):
            molecule = chem.MolFromSmiles("C" * (2 + row % 5))
            height = 0.0 if row in flat else 0.3
            conformer = chem.Conformer(molecule.GetNumAtoms())
            for atom in range(molecule.GetNumAtoms()):
                conformer.SetAtomPosition(atom, geometry.Point3D(1.5 * atom, 0.1 * row, height))
            conformer.Set3D(row not in flat)
            molecule.AddConformer(conformer)
            if label is not None:
                molecule.SetProp("energy", label)
            writer.write(molecule)
    return path


class TestSdfFiles:
    def test_records_become_graphs_of_near_atoms(self, tmp_path: Path) -> None:
        """Coordinates and labels are the file's, and an empty property is a missing label."""
        labels = [f"{row}.5" for row in range(20)] + [""]
        graphs = read_sdf(write_sdf(tmp_path / "a.sdf", [*labels]), "energy")
        assert [len(graph.x) for graph in graphs[:4]] == [3, 4, 5, 6]
        first = graphs[0]
        assert first.pos is not None
        assert first.y is not None
        assert first.pos[1].tolist() == pytest.approx([1.5, 0.1, 0.3], abs=1e-4)
        # 1.5 and 3 angstrom apart: all pairs; in the longest chain, not the ends.
        assert first.edge_index.shape == (2, 6)
        assert graphs[3].edge_index.shape == (2, 24)
        assert first.y.item() == 0.5
        last = graphs[-1].y
        assert last is not None
        assert last.isnan().item()

    @pytest.mark.parametrize(
        ("labels", "flat", "message"),
        [
            ([*["1"] * 20, None], (), r"record 21: it has no property 'energy'"),
            (["1", "high", *["1"] * 19], (), r"record 2: its property energy is 'high'"),
            (["1"] * 21, (3,), r"record 3: it has no 3D coordinates"),
            (["1"] * 5, (), "5 molecules, and a tenth is held back"),
        ],
    )
    def test_a_damaged_record_is_named(
        self, tmp_path: Path, labels: list[str | None], flat: tuple[int, ...], message: str
    ) -> None:
        """Left out without a word, it is missing from every result."""
        with pytest.raises(UserError, match=message):
            read_sdf(write_sdf(tmp_path / "a.sdf", labels, flat=flat), "energy")

    def test_skipping_is_counted(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """On request, and never silently."""
        path = write_sdf(tmp_path / "a.sdf", [*["1"] * 20, None])
        assert len(read_sdf(path, "energy", on_bad="skip")) == 20
        assert "1 records skipped, 20 kept" in capsys.readouterr().out

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        """RDKit would answer with a message about a bad file."""
        with pytest.raises(UserError, match="no such file"):
            read_sdf(tmp_path / "none.sdf", "energy")


class TestCells:
    def test_cells_without_a_type_are_no_terms(self, cells: Path) -> None:
        """Taken as a type of their own, they teach that unknown is a kind of cell."""
        task = CellTask.from_config(settings(cells, data=f"cells:{cells}"))
        _, types = task.batch(range(len(task)))
        assert task.num_terms(np.arange(len(task))) == int((types != NO_TYPE).sum())
        assert int((types == NO_TYPE).sum()) > 0
        zeros = torch.zeros(len(task), len(TYPES))
        expected = task.num_terms(np.arange(len(task))) * np.log(len(TYPES))
        assert task.summed_loss(zeros, types).item() == pytest.approx(expected, rel=1e-5)

    def test_normalization_is_fitted_on_the_training_cells(self, cells: Path) -> None:
        """Fitted on all, the figure for new cells has seen them."""
        task = CellTask.from_config(settings(cells, data=f"cells:{cells}"))
        inputs, _ = task.batch(range(len(task)))
        assert inputs.genes.mean(dim=0).abs().max() < 1e-4
        held_back = task.inputs_of(task.validation_rows.tolist()).genes
        assert held_back.mean(dim=0).abs().max() > 1e-2
        assert not {*task.train_rows.tolist()} & {*task.validation_rows.tolist()}

    def test_it_learns_the_types(self, tmp_path: Path, cells: Path) -> None:
        """A tenth of 80 cells is held back, and their genes say what they are."""
        cfg = settings(tmp_path, data=f"cells:{cells}", max_epochs=10)
        task = CellTask.from_config(cfg)
        torch.manual_seed(0)
        model = task.build_model(cfg)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        inputs, types = task.batch(range(len(task)))
        for _ in range(30):
            optimizer.zero_grad()
            task.summed_loss(model(inputs), types).backward()
            optimizer.step()
        figures = task.evaluate(model.eval(), torch.device("cpu"), 0, 1)
        assert figures["hits"] == figures["cells"] > 3

    @pytest.mark.parametrize("data", ["cells", "cells:nowhere"])
    def test_a_file_has_to_be_prepared(self, data: str) -> None:
        """Ranks and workers map arrays; none of them reads HDF5."""
        with pytest.raises(UserError, match=r"scripts/prepare_cells.py FILE.h5ad FOLDER"):
            build_task(settings(Path("unused"), data=data))

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (["--labels", "celltype"], "cell_type"),
            (["--labels", "cell_type", "--layer", "raw_counts"], "counts"),
        ],
    )
    def test_what_is_not_there_is_named_with_what_is(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
    ) -> None:
        """The fix is a name that somebody has to look up."""
        file = write_cells(tmp_path / "small.h5ad")
        assert script.main([str(file), str(tmp_path / "made"), *flags]) == 2
        shown = capsys.readouterr().err
        assert message in shown
        assert shown.count("\n") == 1
        assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("data", ["molecules", "proteins", "graphs", "cells"])
def test_a_rank_without_samples_stays_on_its_device(
    data: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """On a GPU, one tensor left on the CPU ends the job when DDP is built, on every rank."""
    if data == "molecules":
        pytest.importorskip("rdkit")
    if data == "cells":
        data = f"cells:{request.getfixturevalue('cells')}"
    budget = 1026 if data == "proteins" else 64
    task = build_task(settings(tmp_path / "run", data=data, budget=budget))
    batch, _ = task.batch([])
    # No GPU is needed to ask: "meta" is a device, too.
    lone = batch.to("meta").placeholder()
    found = {spec.name: getattr(lone, spec.name) for spec in fields(lone)}
    left = {n: t for n, t in found.items() if torch.is_tensor(t) and t.device.type != "meta"}
    assert left == {}
