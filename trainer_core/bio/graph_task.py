"""``--data graphs``: an E(n)-equivariant network learns a property of molecules in space.

B  graphs    N  nodes    F  node features    Y  labels of a graph
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

# %% active="py"
from trainer_core.bio.bins import BinPlan
from trainer_core.bio.config import BioConfig
from trainer_core.bio.equivariant import EquivariantNetwork
from trainer_core.bio.graph_files import planted_geometries, read_sdf
from trainer_core.bio.graphs import Graph, GraphBatch, GraphBins, collate_graphs
from trainer_core.bio.labels import loss_terms, squared_error
from trainer_core.data import SampleKey
from trainer_core.order import EpochOrder
from trainer_core.settings import UserError

# %%
EDGES_PER_NODE = 16  # a bin's budget of edges, for each node that it may have
HELD_BACK = 0.1  # share of the graphs


class GraphNetwork(nn.Module):
    """The network as the trainer calls it: a batch to (B, Y)."""

    def __init__(self, cfg: BioConfig, feature_dim: int, num_outputs: int) -> None:
        super().__init__()
        self.network = EquivariantNetwork(
            feature_dim, cfg.hidden_dim, cfg.num_layers, num_outputs
        )

    def forward(self, batch: GraphBatch) -> Tensor:
        assert batch.pos is not None
        found: Tensor = self.network(
            batch.x, batch.pos, batch.edge_index, batch.batch, len(batch)
        ).graphs
        return found


class GraphTask:
    """Graphs with positions and one or more numbers to predict; a tenth is held back.

    The numbers are scaled by the mean and deviation of the training graphs alone.
    """

    def __init__(self, graphs: Sequence[Graph], cfg: BioConfig) -> None:
        shuffled = EpochOrder(len(graphs), seed=0, epoch=0).samples(0, len(graphs)).tolist()
        num_held_back = int(HELD_BACK * len(graphs))
        held_back, train = sorted(shuffled[:num_held_back]), sorted(shuffled[num_held_back:])
        known = torch.stack([self.labels_of(graphs[row]) for row in train])
        if bool((~known.isnan()).sum(dim=0).lt(2).any()):
            raise UserError(
                "A label column has fewer than two values among the training graphs, so it has "
                "no scale to learn on. Drop the column, or add graphs that have it."
            )
        self.mean = known.nanmean(dim=0)
        self.deviation = (known - self.mean).square().nanmean(dim=0).sqrt().clamp(min=1e-6)
        self.train = [self.scaled(graphs[row]) for row in train]
        self.held_back = [self.scaled(graphs[row]) for row in held_back]
        self.bins = GraphBins(
            self.train, cfg.budget, cfg.budget * EDGES_PER_NODE, seed=cfg.seed
        )
        self.num_classes = len(self.mean)
        self.fingerprint = self.bins.fingerprint

    @property
    def plan(self) -> BinPlan:
        """Which graphs share a bin."""
        return self.bins.plan

    @classmethod
    def from_config(cls, cfg: BioConfig) -> GraphTask:
        """The SDF file that ``--data graphs:PATH`` names, or geometries that are made here."""
        if cfg.data_path is None:
            return cls(planted_geometries(), cfg)
        return cls(read_sdf(Path(cfg.data_path), cfg.label_column, on_bad=cfg.bad_rows), cfg)

    @staticmethod
    def labels_of(graph: Graph) -> Tensor:
        """(Y,), NaN where a label is missing."""
        assert graph.y is not None
        return graph.y

    def scaled(self, graph: Graph) -> Graph:
        """The same graph, its labels with mean 0 and deviation 1 over the training graphs."""
        return graph._replace(y=(self.labels_of(graph) - self.mean) / self.deviation)

    def __len__(self) -> int:
        return len(self.bins)

    def batch(self, samples: Sequence[int] | Tensor) -> tuple[GraphBatch, Tensor]:
        return self.visit([SampleKey(0, int(sample)) for sample in samples], self.bins.seed)

    def visit(self, keys: Sequence[SampleKey], seed: int) -> tuple[GraphBatch, Tensor]:
        batch = self.bins.batch(keys)
        assert batch.y is not None
        return batch, batch.y

    def num_terms(self, bins: NDArray[np.int64]) -> int:
        return self.bins.num_terms(bins)

    def build_model(self, cfg: BioConfig) -> nn.Module:
        return GraphNetwork(cfg, self.train[0].x.shape[1], self.num_classes)

    def summed_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return loss_terms(outputs, targets, squared_error).sums.sum()

    def evaluate(
        self, model: nn.Module, device: torch.device, rank: int, world_size: int
    ) -> dict[str, Any]:
        """Mean absolute error on the graphs held back. Collective: every rank."""
        error = torch.zeros(2, dtype=torch.float64, device=device)  # summed, labels
        for graph in self.held_back[rank::world_size]:
            batch = collate_graphs([graph], graph).to(device)
            assert batch.y is not None
            missed = (model(batch) - batch.y).abs()
            error[0] += missed.nansum()
            error[1] += (~missed.isnan()).sum()
        if dist.is_initialized():
            dist.all_reduce(error)  # sums and counts: ranks have different numbers of labels
        total, labels = error.tolist()
        mean = total / labels if labels else None
        summary = "no graph held back has a label"
        if mean is not None:
            summary = (
                f"mean absolute error {mean:.3f} of a standard deviation, {labels:.0f} labels"
            )
        return {"summary": summary, "mean_absolute_error": mean, "labels": int(labels)}
