"""Graphs batched as one large graph that has no edges between its parts.

The question it answers: "graphs differ in nodes and edges; how does one matrix product serve
all of them, and how do ranks get equally many steps of comparable work?"

    B  graphs in a batch    N  nodes    E  edges, each direction counted    F  node features
    K  edge features        Y  labels of a graph
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

# %% active="py"
from trainer_core.bio.batches import TensorBatch
from trainer_core.bio.bins import plan_packing
from trainer_core.data import SampleKey
from trainer_core.settings import UserError


# %%
class Graph(NamedTuple):
    """One graph, with the names that PyTorch Geometric has for its parts."""

    x: Tensor  # (N, F)
    edge_index: Tensor  # (2, E) int64, source and target of each edge
    edge_attr: Tensor | None = None  # (E, K)
    pos: Tensor | None = None  # (N, 3)
    y: Tensor | None = None  # (Y,), NaN where a label is missing


@dataclass(frozen=True, slots=True)
class GraphBatch(TensorBatch):
    """B graphs as one; without graphs, every tensor is empty, and widths are kept."""

    num_graphs: int  # B
    x: Tensor  # (N, F)
    edge_index: Tensor  # (2, E), as nodes of the whole batch
    batch: Tensor  # (N,) int64, the graph that a node belongs to
    edge_attr: Tensor | None = None  # (E, K)
    pos: Tensor | None = None  # (N, 3)
    y: Tensor | None = None  # (B, Y)

    def __len__(self) -> int:
        return self.num_graphs

    def placeholder(self) -> GraphBatch:
        """A graph of one node, without edges; its labels are missing."""
        lone = Graph(
            self.x.new_zeros(1, *self.x.shape[1:]),
            self.edge_index.new_zeros(2, 0),
            None if self.edge_attr is None else self.edge_attr[:0],
            None if self.pos is None else self.pos.new_zeros(1, 3),
            None if self.y is None else self.y.new_full(self.y.shape[1:], torch.nan),
        )
        return collate_graphs([lone], like=lone)


def collate_graphs(graphs: Sequence[Graph], like: Graph) -> GraphBatch:
    """One block-diagonal graph: nodes in a row, edges shifted to where their nodes now are.

    A node's neighbors are the same as before, so message passing can't mix two graphs.

    Args:
        like: any graph of the dataset; an empty batch takes its widths and dtypes from it.
    """
    # One graph too many, cut off again: so there is always something to concatenate.
    all_graphs = [*graphs, like]
    sizes = torch.tensor([len(graph.x) for graph in all_graphs])
    first_nodes = (sizes.cumsum(0) - sizes).tolist()
    num_nodes = first_nodes[-1]
    graph_of_node = torch.arange(len(sizes)).repeat_interleave(sizes)
    num_edges = sum(graph.edge_index.shape[1] for graph in graphs)

    def joined(part: Callable[[Graph], Tensor | None], length: int) -> Tensor | None:
        parts = [tensor for graph in all_graphs if (tensor := part(graph)) is not None]
        return torch.cat(parts)[:length] if parts else None

    pairs = zip(all_graphs, first_nodes, strict=True)
    edges = [graph.edge_index + first for graph, first in pairs]
    return GraphBatch(
        num_graphs=len(graphs),
        x=torch.cat([graph.x for graph in all_graphs])[:num_nodes],
        edge_index=torch.cat(edges, dim=1)[:, :num_edges],
        batch=graph_of_node[:num_nodes].to(like.x.device),
        edge_attr=joined(lambda graph: graph.edge_attr, num_edges),
        pos=joined(lambda graph: graph.pos, num_nodes),
        y=joined(lambda graph: None if graph.y is None else graph.y[None], len(graphs)),
    )


# %%
def check_graph(graph: Graph, like: Graph, record: str) -> None:
    """Refuse a graph that can't be batched with ``like``, or whose edges leave it.

    Without edges, ``edge_index`` is (2, 0) and the graph is fine: an ion has no bonds.

    Raises:
        UserError: what is wrong, with the record and the rule.
    """
    num_nodes, edges = len(graph.x), graph.edge_index
    if not num_nodes:
        raise UserError(
            f"{record}: no nodes. There is nothing to read a prediction from. Drop the graph, "
            "and look at what made it."
        )
    if edges.shape != (2, edges.numel() // 2) or edges.dtype != torch.int64:
        raise UserError(
            f"{record}: edge_index is {tuple(edges.shape)} {edges.dtype}. It is (2, edges) in "
            "int64, sources above targets, and (2, 0) without edges. Reshape or convert it."
        )
    outside = ((edges < 0) | (edges >= num_nodes)).any(dim=0)
    if outside.any():
        at = int(outside.int().argmax())
        raise UserError(
            f"{record}: edge {at + 1} is {edges[:, at].tolist()}, and the nodes are 0 to "
            f"{num_nodes - 1}. In a batch it would reach into another graph, without an error. "
            "Count a graph's nodes from 0."
        )
    for part, rows in (("x", num_nodes), ("pos", num_nodes), ("edge_attr", edges.shape[1])):
        tensor = getattr(graph, part)
        if tensor is not None and len(tensor) != rows:
            raise UserError(
                f"{record}: {part} has {len(tensor)} rows instead of {rows}, one for each "
                f"{'edge' if part == 'edge_attr' else 'node'}. In a batch, its neighbors' rows "
                "would move up. Rebuild the graph."
            )
    for part, first in (("x", 1), ("pos", 1), ("edge_attr", 1), ("y", 0)):
        kinds = [
            "missing" if tensor is None else f"{tuple(tensor.shape[first:])} {tensor.dtype}"
            for tensor in (getattr(graph, part), getattr(like, part))
        ]
        if kinds[0] != kinds[1]:
            raise UserError(
                f"{record}: {part} is {kinds[0]}, and {kinds[1]} in record 1. All graphs of a "
                "dataset have the same features and labels. Write NaN for a missing label."
            )


# %%
class GraphBins:
    """Bins of graphs as the trainer's samples, within a budget of nodes and one of edges.

    A layer's cost is in its nodes and in its messages, one per edge. A batch of so many graphs
    bounds neither.

    Args:
        seed: the run's; it decides which graphs meet.

    Raises:
        UserError: if a graph is malformed, or exceeds a budget.
    """

    def __init__(
        self, graphs: Sequence[Graph], max_nodes: int, max_edges: int, *, seed: int
    ) -> None:
        self.graphs, self.seed = graphs, seed
        content = hashlib.sha256()
        for row, graph in enumerate(graphs, start=1):
            check_graph(graph, graphs[0], f"record {row}")
            for tensor in graph:
                content.update(b"-" if tensor is None else tensor.numpy().tobytes())
        labels = [0 if g.y is None else int(g.y.isfinite().sum()) for g in graphs]
        sizes = [
            (len(graph.x), graph.edge_index.shape[1], known)
            for graph, known in zip(graphs, labels, strict=True)
        ]
        # Labels are no limit, but part of a size: only graphs with equally many change places.
        # So a bin has the same number of loss terms in every epoch.
        budget = (max_nodes, max_edges, sum(labels))
        self.plan = plan_packing(sizes, budget, units=("nodes", "edges", "labels"))
        self.loss_terms = self.plan.fill()[:, 2]
        content.update(self.plan.digest.encode())
        self.fingerprint = content.hexdigest()[:16]

    def __len__(self) -> int:
        """How many bins there are: the trainer's samples."""
        return len(self.plan)

    def items(self, keys: Sequence[SampleKey]) -> list[int]:
        """The graphs in the bins of ``keys``."""
        found = [self.plan.items(k.sample, seed=self.seed, epoch=k.epoch) for k in keys]
        return [item for bin_items in found for item in bin_items.tolist()]

    def num_terms(self, bins: ArrayLike) -> int:
        """Labels in these bins, such as a step's, in any epoch; no collective."""
        return int(self.loss_terms[np.asarray(bins, dtype=np.int64)].sum())

    def batch(self, keys: Sequence[SampleKey]) -> GraphBatch:
        """The graphs in the bins of ``keys``, as one."""
        return collate_graphs([self.graphs[item] for item in self.items(keys)], self.graphs[0])
