"""``--data molecules``: a network over fingerprints that learns many assays at once.

B  molecules in a batch    t  tasks    F  bits of a fingerprint
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

# %% active="py"
from trainer_core.bio.batches import TensorBatch
from trainer_core.bio.calibration import pos_weights, recalibrate
from trainer_core.bio.config import BioConfig
from trainer_core.bio.featurize import unpack_fingerprints
from trainer_core.bio.labels import binary_cross_entropy, loss_terms
from trainer_core.bio.prepared_molecules import PreparedMolecules, open_prepared
from trainer_core.bio.prepared_molecules import prepared_in_memory
from trainer_core.bio.screening_metrics import ScreeningReport, screening_report_over_ranks
from trainer_core.bio.shipped import shipped_molecules
from trainer_core.bio.splits import TRAIN, VALIDATION
from trainer_core.data import SampleKey
from trainer_core.model import TinyNet
from trainer_core.settings import UserError


# %%
SCORED_AT_ONCE = 1024  # molecules: 8 MiB of fingerprints


@dataclass(frozen=True, slots=True)
class FingerprintBatch(TensorBatch):
    """Molecules as the network takes them."""

    bits: Tensor  # (B, F) float32

    def __len__(self) -> int:
        return len(self.bits)

    def placeholder(self) -> FingerprintBatch:
        return replace(self, bits=self.bits.new_zeros(1, self.bits.shape[1]))


class FingerprintNetwork(nn.Module):
    """A multilayer perceptron: fingerprints to (B, t) logits.

    One last layer for all tasks, and not a head for each: every parameter has a gradient on
    every rank, whichever tasks have labels there.
    """

    def __init__(self, cfg: BioConfig, fp_size: int, num_tasks: int) -> None:
        super().__init__()
        self.layers = TinyNet(fp_size, cfg.hidden_dim, num_tasks, cfg.num_layers, cfg.dropout)

    def forward(self, batch: FingerprintBatch) -> Tensor:
        logits: Tensor = self.layers(batch.bits)
        return logits


class MoleculeTask:
    """The molecules of a prepared folder that are for training; the rest only judge.

    Args:
        balance: weigh a task's actives by inactives / actives, counted in the training part.

    Raises:
        UserError: if ``balance`` is set and a task has no active or no inactive to train on.
    """

    def __init__(self, prepared: PreparedMolecules, *, balance: bool = False) -> None:
        self.prepared = prepared
        self.num_classes = len(prepared.tasks)
        self.train_rows = np.flatnonzero(prepared.parts == TRAIN)
        self.validation_rows = np.flatnonzero(prepared.parts == VALIDATION)
        labels = np.asarray(prepared.labels)[self.train_rows]
        self.num_labels = np.count_nonzero(~np.isnan(labels), axis=1)  # of each molecule
        if not self.num_labels.any():
            raise UserError(
                f"{len(labels)} molecules to train on, and not one label. The loss would be 0 "
                "from the first step. Check the label columns that the folder was made with."
            )
        self.pos_weight: Tensor | None = None
        if balance:
            positives, negatives = (
                torch.from_numpy(np.count_nonzero(labels == value, axis=0)) for value in (1, 0)
            )
            self.pos_weight = pos_weights(positives, negatives, prepared.tasks).values
        self.fingerprint = prepared.digest

    @classmethod
    def from_config(cls, cfg: BioConfig) -> MoleculeTask:
        """The folder that ``--data molecules:FOLDER`` names, or the drugs that ship."""
        if cfg.data_path is None:
            prepared = prepared_in_memory(shipped_molecules(), cfg.split)
        else:
            prepared = open_prepared(Path(cfg.data_path), cfg.split)
        return cls(prepared, balance=cfg.balance)

    def __len__(self) -> int:
        return len(self.train_rows)

    def inputs_of(self, rows: NDArray[np.int64]) -> FingerprintBatch:
        """Molecules of any part, by their place in the folder."""
        packed = np.asarray(self.prepared.fingerprints[rows])
        return FingerprintBatch(torch.from_numpy(unpack_fingerprints(packed, self.fp_size)))

    @property
    def fp_size(self) -> int:
        """F"""
        return self.prepared.fp_size

    def labels_of(self, rows: NDArray[np.int64]) -> Tensor:
        """(B, t) float32, NaN where nothing was measured."""
        return torch.from_numpy(np.array(self.prepared.labels[rows]))

    def batch(self, samples: Sequence[int] | Tensor) -> tuple[FingerprintBatch, Tensor]:
        rows = self.train_rows[np.asarray(samples, dtype=np.int64)]
        return self.inputs_of(rows), self.labels_of(rows)

    def visit(self, keys: Sequence[SampleKey], seed: int) -> tuple[FingerprintBatch, Tensor]:
        return self.batch([key.sample for key in keys])

    def num_terms(self, bins: NDArray[np.int64]) -> int:
        return int(self.num_labels[bins].sum())

    def build_model(self, cfg: BioConfig) -> nn.Module:
        return FingerprintNetwork(cfg, self.fp_size, self.num_classes)

    def summed_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        weight = None if self.pos_weight is None else self.pos_weight.to(outputs.device)
        return loss_terms(
            outputs, targets, lambda x, y: binary_cross_entropy(x, y, weight)
        ).sums.sum()

    def scores(self, model: nn.Module, rows: NDArray[np.int64], device: torch.device) -> Tensor:
        """Probabilities, (B, t), with what ``balance`` shifted undone."""
        chunks = [rows[at : at + SCORED_AT_ONCE] for at in range(0, len(rows), SCORED_AT_ONCE)]
        found = [model(self.inputs_of(chunk).to(device)).float().cpu() for chunk in chunks]
        logits = torch.cat(found) if found else torch.empty(0, self.num_classes)
        if self.pos_weight is not None:
            logits = recalibrate(logits, self.pos_weight)
        return logits.sigmoid()

    def evaluate(
        self, model: nn.Module, device: torch.device, rank: int, world_size: int
    ) -> dict[str, Any]:
        """Screening metrics of the validation part, per task. Collective: every rank."""
        mine = self.validation_rows[rank::world_size]
        report = screening_report_over_ranks(
            torch.from_numpy(mine),
            self.scores(model, mine, device),
            self.labels_of(mine),
            self.prepared.tasks,
            num_samples=len(self.validation_rows),
        )
        return {
            "summary": summary_of(report),
            "tasks": {name: task._asdict() for name, task in report.tasks.items()},
            "undefined": report.undefined,
        }


def summary_of(report: ScreeningReport) -> str:
    """The medians over the tasks that have them, and how many don't, in one line."""
    auroc, auprc = report.aggregate("auroc"), report.aggregate("auprc")
    num_undefined = len(report.undefined)
    if auroc.median is None or auprc.median is None:
        return f"none of {num_undefined} tasks has both an active and an inactive to rank"
    tasks = f"medians over {auroc.num_tasks} tasks"
    if num_undefined:
        tasks += f"; {num_undefined} without an active or an inactive left out"
    return f"AUROC {auroc.median:.3f}, AUPRC {auprc.median:.3f} ({tasks})"
