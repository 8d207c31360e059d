"""--data molecules: from a table to a run on several ranks, and what the split does to it."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch

pytest.importorskip("rdkit")

from rehearsal.evidence.audit import audit_run
from rehearsal.evidence.run_records import read_jsonl
from scripts import prepare_molecules as script
from trainer_core.bio.assays import plant_assay, scaffold_library
from trainer_core.bio.config import BioConfig
from trainer_core.bio.launch import run_task
from trainer_core.bio.molecule_task import MoleculeTask
from trainer_core.bio.molecules import MoleculeRows, MoleculeTable, build_molecule_table
from trainer_core.bio.prepared_molecules import open_prepared, prepare_molecules
from trainer_core.bio.prepared_molecules import prepared_in_memory
from trainer_core.bio.shipped import shipped_drugs
from trainer_core.local_launcher import LocalRanks
from trainer_core.settings import UserError

cloudpickle.register_pickle_by_value(sys.modules[__name__])

TASKS = ("toxic", "soluble", "never_active")


def library(**changes: Any) -> MoleculeTable:
    """240 molecules of 24 scaffolds; three tasks, one without an active, half of it missing."""
    rows = scaffold_library(24, 10)
    keys = [key.scaffold for key in build_molecule_table(rows).keys]
    columns = [plant_assay(keys, scaffold_share=0.6, seed=s).actives(0.3) for s in (0, 1)]
    labels = np.stack([*columns, np.zeros(len(keys), np.float32)], axis=1)
    labels[np.random.default_rng(0).random(labels.shape) < 0.5] = np.nan
    values: dict[str, Any] = {"smiles": rows.smiles, "labels": labels, "tasks": TASKS}
    return build_molecule_table(MoleculeRows(**(values | changes)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("prepared") / "library"
    prepare_molecules(library(), made)
    return made


def settings(run_dir: Path, **others: Any) -> BioConfig:
    values: dict[str, Any] = {"max_epochs": 2, "device": "cpu", "trace_steps": 0}
    values |= {"micro_batch_size": 4, "pinned_global_batch_size": 24}
    return BioConfig(run_dir=run_dir, **(values | others))


def evaluated(run_dir: Path) -> dict[str, Any]:
    lines = read_jsonl(run_dir / "logs" / "rank-0.jsonl")
    (found,) = [line for line in lines if line["event"] == "evaluated"]
    return found


class TestRuns:
    @pytest.mark.ranks
    def test_ranks_agree_on_losses_and_metrics(self, tmp_path: Path, folder: Path) -> None:
        """A metric that depends on how many GPUs computed it can't decide a promotion."""
        losses, figures = [], []
        for world_size in (1, 2, 3):
            run_dir = tmp_path / str(world_size)
            cfg = settings(run_dir, data=f"molecules:{folder}")
            results = LocalRanks(partial(run_task, cfg), world_size).wait(120)
            assert [result.exitcode for result in results] == [0] * world_size
            losses.append(results[0].value["loss"])
            figures.append(evaluated(run_dir))
            assert audit_run(run_dir).status == "proved"
        assert losses == pytest.approx(losses[:1] * 3, abs=1e-6)
        assert figures[0]["undefined"].keys() == {"never_active"}
        for found in figures[1:]:
            assert found["undefined"] == figures[0]["undefined"]
            for task, metrics in found["tasks"].items():
                assert metrics == figures[0]["tasks"][task]

    @pytest.mark.ranks
    def test_a_random_split_flatters_what_has_learned_scaffolds(self, tmp_path: Path) -> None:
        """The library's scaffold effects are half of a label's variance, and can't be known
        for a new scaffold."""
        found = {}
        for split in ("random", "scaffold"):
            cfg = settings(
                tmp_path / split, data="molecules", split=split, max_epochs=12,
                micro_batch_size=16, pinned_global_batch_size=None,
            )  # fmt: skip
            (result,) = LocalRanks(partial(run_task, cfg), 1).wait(120)
            assert result.exitcode == 0, result.traceback
            tasks = evaluated(tmp_path / split)["tasks"].values()
            found[split] = np.median([task["values"]["auroc"] for task in tasks])
        assert found["random"] > found["scaffold"] + 0.1

    def test_evaluating_leaves_the_model_in_its_mode(self, folder: Path) -> None:
        """A model left in eval mode trains on without dropout."""
        task = MoleculeTask(open_prepared(folder, "scaffold"))
        model = task.build_model(settings(Path("unused"), data="molecules", dropout=0.5)).eval()
        twice = [task.evaluate(model, torch.device("cpu"), 0, 1) for _ in range(2)]
        assert twice[0] == twice[1]


class TestTask:
    def test_terms_are_the_labels_that_exist(self, folder: Path) -> None:
        """The step's denominator; one label too many and every gradient is too small."""
        task = MoleculeTask(open_prepared(folder, "scaffold"))
        _, labels = task.batch(range(len(task)))
        some = np.array([5, 0, 7])
        assert task.num_terms(np.arange(len(task))) == int((~labels.isnan()).sum())
        assert task.num_terms(some) == int((~labels[some.tolist()].isnan()).sum())

    def test_it_trains_on_the_training_part_alone(self, folder: Path) -> None:
        """Otherwise the validation figure is that of the training data."""
        prepared = open_prepared(folder, "scaffold")
        task = MoleculeTask(prepared)
        assert (prepared.parts[task.train_rows] == 0).all()
        assert (prepared.parts[task.validation_rows] == 1).all()
        assert len(task) == (prepared.parts == 0).sum()

    def test_a_prepared_folder_is_the_table_in_memory(self, folder: Path) -> None:
        """Whoever prepares on another machine trains on the same molecules."""
        on_disk, in_memory = open_prepared(folder, "scaffold"), prepared_in_memory(
            library(), "scaffold"
        )  # fmt: skip
        assert (on_disk.fingerprints == in_memory.fingerprints).all()
        assert np.array_equal(on_disk.labels, in_memory.labels, equal_nan=True)
        assert (on_disk.parts == in_memory.parts).all()

    def test_balanced_scores_are_probabilities_again(self, folder: Path) -> None:
        """A score that pos_weight has shifted ranks right and lies about how many will hit."""
        rows = np.arange(20)
        prepared = prepared_in_memory(
            library(labels=library().labels[:, :2], tasks=TASKS[:2]), "scaffold"
        )
        plain, balanced = MoleculeTask(prepared), MoleculeTask(prepared, balance=True)
        torch.manual_seed(0)
        model = plain.build_model(settings(Path("unused"), data="molecules"))
        assert balanced.pos_weight is not None
        shifted = torch.logit(plain.scores(model, rows, torch.device("cpu")))
        undone = torch.logit(balanced.scores(model, rows, torch.device("cpu")))
        assert torch.allclose(shifted - undone, balanced.pos_weight.log(), atol=1e-4)

    def test_a_task_without_actives_cannot_be_balanced(self, folder: Path) -> None:
        """Its weight would be infinite."""
        with pytest.raises(UserError, match="'never_active': 0 positives"):
            MoleculeTask(open_prepared(folder, "scaffold"), balance=True)

    def test_no_label_to_train_on_is_refused(self) -> None:
        """The loss would be 0 from the first step, which looks like success."""
        empty = np.full((240, 3), np.nan)
        prepared = prepared_in_memory(library(labels=empty), "scaffold")
        with pytest.raises(UserError, match="not one label"):
            MoleculeTask(prepared)

    def test_another_split_is_another_run(self, folder: Path) -> None:
        """A resume under another split would have trained on what it's now judged by."""
        digests = {open_prepared(folder, split).digest for split in ("scaffold", "random")}
        assert len(digests) == 2


class TestPreparing:
    def test_a_folder_is_never_written_over(self, folder: Path) -> None:
        """A run may be reading it."""
        with pytest.raises(UserError, match="never written over"):
            prepare_molecules(library(), folder)

    def test_an_impossible_split_leaves_no_folder(self, tmp_path: Path) -> None:
        """A half-made folder would have to be deleted by hand."""
        with pytest.raises(UserError, match="no year"):
            prepare_molecules(library(), tmp_path / "new", ["scaffold", "time"])
        assert not (tmp_path / "new").exists()

    def test_a_folder_that_is_not_finished_is_refused(self, tmp_path: Path) -> None:
        """Its labels may belong to half of the molecules."""
        prepare_molecules(library(), tmp_path / "new")
        (tmp_path / "new" / "molecules.json").unlink()
        with pytest.raises(UserError, match="preparing them was interrupted"):
            open_prepared(tmp_path / "new", "scaffold")

    def test_another_format_and_a_missing_split_are_named(
        self, tmp_path: Path, folder: Path
    ) -> None:
        """The run must not make the split itself: ranks could differ."""
        with pytest.raises(UserError, match="has scaffold, random"):
            open_prepared(folder, "cluster")
        prepare_molecules(library(), tmp_path / "new")
        path = tmp_path / "new" / "molecules.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"version": "0"}))
        with pytest.raises(UserError, match="prepared in format 0"):
            open_prepared(tmp_path / "new", "scaffold")

    def test_a_table_without_labels_is_refused(self, tmp_path: Path) -> None:
        """The drugs that ship have none."""
        with pytest.raises(UserError, match="no label column"):
            prepare_molecules(shipped_drugs(), tmp_path / "new")


class TestScript:
    def write(self, path: Path) -> Path:
        table = library()
        lines = ["smiles,toxic,soluble"]
        for smiles, row in zip(table.smiles, table.labels, strict=True):
            cells = ["" if np.isnan(label) else f"{label:.0f}" for label in row[:2]]
            lines.append(",".join([smiles, *cells]))
        path.write_text("\n".join(lines) + "\n")
        return path

    def test_it_prepares_what_launch_trains_on(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The way from a file to a run, as the page prints it."""
        file, made = self.write(tmp_path / "mine.csv"), tmp_path / "made"
        assert script.main([str(file), str(made), "--tasks", "toxic", "soluble"]) == 0
        shown = capsys.readouterr().out
        assert "240 of 240 rows kept" in shown
        assert "scaffolds on both sides: 0 " in shown
        assert MoleculeTask(open_prepared(made, "random")).num_classes == 2

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (["--tasks", "toxicity"], "no column 'toxicity'"),
            (["--layout", "tox12"], "no such layout. Choose from tox21"),
            (["--layout", "esol"], "its labels are measurements"),
            (["--layout", "chembl"], "--active-above 6 is 1 uM"),
            ([], "no label column"),
        ],
    )
    def test_a_mistake_is_one_line(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
    ) -> None:
        """A traceback hides the one thing to change."""
        file = self.write(tmp_path / "mine.csv")
        assert script.main([str(file), str(tmp_path / "made"), *flags]) == 2
        shown = capsys.readouterr().err
        assert message in shown
        assert shown.count("\n") == 1

    def test_a_bad_row_names_the_flag_that_skips_it(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Someone at a terminal can't use the name of a function's argument."""
        file = self.write(tmp_path / "mine.csv")
        file.write_text(file.read_text() + "C1CC,0,1\n")
        flags = [str(file), str(tmp_path / "made"), "--tasks", "toxic", "soluble"]
        assert script.main(flags) == 2
        shown = capsys.readouterr().err
        assert "row 242: 'C1CC' can't be read" in shown
        assert "pass --on-bad 'skip' to" in shown
        assert script.main([*flags, "--on-bad", "skip"]) == 0
        assert "1 skipped" in capsys.readouterr().out
