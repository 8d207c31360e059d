"""``--data cells:FOLDER``: which type is a cell, by its counts of genes?

B  cells in a batch    g  genes    C  types of cells
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

# %% active="py"
from trainer_core.bio.batches import TensorBatch
from trainer_core.bio.cell_normalization import CellNormalization, fit_normalization
from trainer_core.bio.cells import CellMatrix, cell_labels, export_cells
from trainer_core.bio.config import BioConfig
from trainer_core.data import SampleKey
from trainer_core.model import TinyNet
from trainer_core.order import EpochOrder
from trainer_core.settings import UserError

# %%
NO_TYPE = -1  # as AnnData writes a missing category
VALIDATION_SHARE = 0.1
SCORED_CELLS = 256  # at once
LABELS_FILE = "labels.json"


def prepare_cells(path: Path, folder: Path, *, layer: str | None, label_column: str) -> None:
    """Export a matrix and the types of its cells to a new folder, once and offline.

    Raises:
        UserError: if the layer or column isn't there, or the folder exists.
    """
    types, names = cell_labels(path, label_column)
    export_cells(path, folder, layer=layer)
    np.save(folder / "types.npy", types)
    # Written last: a folder without it isn't finished.
    (folder / LABELS_FILE).write_text(json.dumps({"column": label_column, "types": names}))


@dataclass(frozen=True, slots=True)
class CellBatch(TensorBatch):
    """Cells, normalized."""

    genes: Tensor  # (B, g) float32

    def __len__(self) -> int:
        return len(self.genes)

    def placeholder(self) -> CellBatch:
        return replace(self, genes=self.genes.new_zeros(1, self.genes.shape[1]))


class CellNetwork(nn.Module):
    """A multilayer perceptron: (B, g) to (B, C) logits."""

    def __init__(self, cfg: BioConfig, num_genes: int, num_types: int) -> None:
        super().__init__()
        self.layers = TinyNet(num_genes, cfg.hidden_dim, num_types, cfg.num_layers, cfg.dropout)

    def forward(self, batch: CellBatch) -> Tensor:
        logits: Tensor = self.layers(batch.genes)
        return logits


class CellTask:
    """Cells of known and of unknown type; a tenth is held back, by a fixed shuffle.

    Normalization is fitted on the training cells alone: with the others, the validation
    figure would be measured with what it is meant to test.
    """

    def __init__(
        self, matrix: CellMatrix, types: NDArray[np.int64], names: Sequence[str]
    ) -> None:
        self.matrix, self.types, self.names = matrix, types, names
        shuffled = EpochOrder(len(matrix), seed=0, epoch=0).samples(0, len(matrix))
        num_held_back = int(VALIDATION_SHARE * len(matrix))
        self.validation_rows = np.sort(shuffled[:num_held_back])
        self.train_rows = np.sort(shuffled[num_held_back:])
        self.num_classes = len(names)
        self.normalize: CellNormalization = fit_normalization(matrix, self.train_rows.tolist())
        facts = f"{matrix.fingerprint}/{self.normalize.digest}".encode() + types.tobytes()
        self.fingerprint = hashlib.sha256(facts).hexdigest()[:32]

    @classmethod
    def from_config(cls, cfg: BioConfig) -> CellTask:
        """The folder that ``--data cells:FOLDER`` names.

        Raises:
            UserError: if it isn't a prepared one. No cells ship.
        """
        folder = Path(cfg.data_path or "")
        if not cfg.data_path or not (folder / LABELS_FILE).is_file():
            raise UserError(
                f"data={cfg.data}: no {LABELS_FILE} there, so no prepared cells. A run maps "
                "arrays and doesn't read an AnnData file. Make a folder: python "
                "scripts/prepare_cells.py FILE.h5ad FOLDER, then use cells:FOLDER."
            )
        names = json.loads((folder / LABELS_FILE).read_text())["types"]
        return cls(CellMatrix(folder), np.load(folder / "types.npy"), names)

    def __len__(self) -> int:
        return len(self.train_rows)

    def inputs_of(self, rows: Sequence[int]) -> CellBatch:
        """Cells of any part, by their place in the file."""
        return CellBatch(self.normalize(self.matrix.batch(rows)))

    def batch(self, samples: Sequence[int] | Tensor) -> tuple[CellBatch, Tensor]:
        rows = self.train_rows[np.asarray(samples, dtype=np.int64)]
        return self.inputs_of(rows.tolist()), torch.from_numpy(self.types[rows])

    def visit(self, keys: Sequence[SampleKey], seed: int) -> tuple[CellBatch, Tensor]:
        return self.batch([key.sample for key in keys])

    def num_terms(self, bins: NDArray[np.int64]) -> int:
        return int((self.types[self.train_rows[bins]] != NO_TYPE).sum())

    def build_model(self, cfg: BioConfig) -> nn.Module:
        return CellNetwork(cfg, self.matrix.num_genes, self.num_classes)

    def summed_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, ignore_index=NO_TYPE, reduction="sum")

    def evaluate(
        self, model: nn.Module, device: torch.device, rank: int, world_size: int
    ) -> dict[str, Any]:
        """Accuracy on the cells held back that have a type. Collective: every rank."""
        rows = self.validation_rows[rank::world_size]
        rows = rows[self.types[rows] != NO_TYPE]
        right = torch.zeros(2, dtype=torch.int64, device=device)  # hits, cells
        for first in range(0, len(rows), SCORED_CELLS):
            chunk = rows[first : first + SCORED_CELLS]
            types = torch.from_numpy(self.types[chunk]).to(device)
            outputs = model(self.inputs_of(chunk.tolist()).to(device))
            right[0] += (outputs.argmax(dim=1) == types).sum()
            right[1] += len(chunk)
        if dist.is_initialized():
            dist.all_reduce(right)  # sums of counts: a mean of the ranks' accuracies is wrong
        hits, cells = right.tolist()
        return {
            "summary": f"{hits} of {cells} cells held back get their type",
            "hits": hits,
            "cells": cells,
        }
