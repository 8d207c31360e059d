"""Which numbers of the normalization come from data, and from whose?

Part of the biotech track. A cell is scaled to a common library size, and the logarithm of 1 + x
taken. The common size is fitted, and so are the genes' means and deviations: on the training
cells only. Fitted on all cells, they carry the test set into training.

    g  genes    B  cells in a batch
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# %% active="py"
from trainer_core.bio.cells import CellMatrix, densify
from trainer_core.settings import UserError

# %%
NORMALIZATION_VERSION = "1"
ROWS_AT_A_TIME = 256


@dataclass(frozen=True, slots=True, eq=False)
class CellNormalization:
    """What was fitted; part of a checkpoint's identity by its ``digest``."""

    library_size: float  # median of the training cells' totals
    mean: Tensor  # (g,) of log1p of scaled counts
    deviation: Tensor  # (g,), 1 for a gene that doesn't vary
    num_cells: int  # training cells that were counted in

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the version and of all that was fitted."""
        text = f"{NORMALIZATION_VERSION}/{self.library_size!r}/{self.num_cells}/"
        numbers = self.mean.numpy().tobytes() + self.deviation.numpy().tobytes()
        return hashlib.sha256(text.encode() + numbers).hexdigest()

    def log1p(self, counts: Tensor) -> Tensor:
        """Counts (B, g) scaled to the library size, log(1 + x); an empty cell stays zero."""
        totals = counts.sum(dim=1, keepdim=True)
        totals = torch.where(totals > 0, totals, 1.0)
        return torch.log1p(counts * (self.library_size / totals))

    def __call__(self, counts: Tensor) -> Tensor:
        """The same, with each gene centered and scaled: (B, g)."""
        return (self.log1p(counts) - self.mean) / self.deviation


def fit_normalization(matrix: CellMatrix, train_rows: Sequence[int]) -> CellNormalization:
    """Fit on the training cells: two passes over their rows, one batch in memory at a time.

    Cells without a single count say nothing of a library's size, and are left out.

    Raises:
        UserError: if there are no training cells with counts, or one is listed twice.
    """
    rows = np.unique(np.asarray(train_rows, np.int64))
    if len(rows) != len(train_rows):
        raise UserError(
            f"train_rows: {len(train_rows) - len(rows)} of {len(train_rows)} rows repeat. They "
            "would weigh double in the means. Pass each training row once."
        )
    totals = np.array([matrix[row].values.sum(dtype=np.float64) for row in rows.tolist()])
    counted = rows[totals > 0]
    if not len(counted):
        raise UserError(
            f"train_rows: none of {len(rows)} cells has a count, so there is no library size "
            "to scale to. Pass the training part of the split."
        )
    size = float(np.median(totals[totals > 0]))
    zeros = torch.zeros(matrix.num_genes)
    scale = CellNormalization(size, zeros, zeros + 1, len(counted))
    mean, deviation = _moments(matrix, counted, scale)
    return CellNormalization(size, mean, deviation, len(counted))


def _moments(
    matrix: CellMatrix, rows: NDArray[np.int64], scale: CellNormalization
) -> tuple[Tensor, Tensor]:
    """Mean and population deviation of each gene, by merging pieces (Chan et al., 1979).

    The sum of squares minus the square of the sum would lose its digits in rare genes.
    """
    count = 0
    mean = torch.zeros(matrix.num_genes, dtype=torch.float64)
    squares = mean
    for start in range(0, len(rows), ROWS_AT_A_TIME):
        piece = [matrix[row] for row in rows[start : start + ROWS_AT_A_TIME].tolist()]
        values = scale.log1p(densify(piece, matrix.num_genes)).double()
        change = values.mean(dim=0) - mean
        squares = squares + ((values - values.mean(dim=0)) ** 2).sum(dim=0)
        squares = squares + change**2 * (count * len(piece) / (count + len(piece)))
        count += len(piece)
        mean = mean + change * (len(piece) / count)
    deviation = torch.sqrt(squares / count)
    return mean.float(), torch.where(deviation > 0, deviation, 1.0).float()
