"""``--data proteins``: a masked language model over bins of whole sequences.

B  rows    T  tokens in a row    V  tokens in the vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

# %% active="py"
from trainer_core.bio.config import BioConfig
from trainer_core.bio.fasta import SHIPPED_PROTEINS, FastaFile
from trainer_core.bio.loss_terms import summed_token_loss
from trainer_core.bio.protein_model import ProteinEncoder
from trainer_core.bio.proteins import EncodedProteins, MaskedProteins, ProteinBatch
from trainer_core.data import SampleKey

# %%
HEAD_WIDTH = 16  # channels; the number of heads follows from the width


class MaskedProteinNetwork(nn.Module):
    """The encoder as the trainer calls it: a batch to (B, T, V) logits."""

    def __init__(self, cfg: BioConfig) -> None:
        super().__init__()
        self.encoder = ProteinEncoder(
            cfg.hidden_dim,
            cfg.num_layers,
            max(1, cfg.hidden_dim // HEAD_WIDTH),
            dropout=cfg.dropout,
            checkpoint_activations=cfg.checkpoint_activations,
        )

    def forward(self, batch: ProteinBatch) -> Tensor:
        logits: Tensor = self.encoder(batch.tokens, batch.segments, batch.positions)
        return logits


class ProteinTask:
    """The sequences of a FASTA file, packed into rows of ``budget`` tokens.

    It trains on every sequence of the file. To hold some back, split the file by homology
    first (homology_split.py): a random part has close relatives in the training data.
    """

    def __init__(self, proteins: EncodedProteins, cfg: BioConfig) -> None:
        self.bins = MaskedProteins(
            proteins, cfg.budget, seed=cfg.seed, layout=cfg.row_layout, crop=cfg.crop
        )
        self.num_classes = self.bins.num_classes
        self.fingerprint = self.bins.fingerprint

    @classmethod
    def from_config(cls, cfg: BioConfig) -> ProteinTask:
        """The file that ``--data proteins:PATH`` names, or the proteins that ship."""
        path = Path(cfg.data_path) if cfg.data_path else SHIPPED_PROTEINS
        records = list(FastaFile(path, on_bad=cfg.bad_rows))
        names, sequences = zip(*((one.id, one.sequence) for one in records), strict=True)
        return cls(EncodedProteins(names, sequences), cfg)

    def __len__(self) -> int:
        return len(self.bins)

    def batch(self, samples: Sequence[int] | Tensor) -> tuple[ProteinBatch, Tensor]:
        return self.visit([SampleKey(0, int(sample)) for sample in samples], self.bins.seed)

    def visit(self, keys: Sequence[SampleKey], seed: int) -> tuple[ProteinBatch, Tensor]:
        batch = self.bins.batch(keys)
        return batch, batch.targets

    def num_terms(self, bins: NDArray[np.int64]) -> int:
        return self.bins.num_terms(bins)

    def build_model(self, cfg: BioConfig) -> nn.Module:
        return MaskedProteinNetwork(cfg)

    def summed_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return summed_token_loss(outputs, targets)
