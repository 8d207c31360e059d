"""Graphs: batched as PyTorch Geometric does it, in bins that two budgets bound."""

from __future__ import annotations

import importlib
import sys
import warnings
from functools import partial
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from trainer_core.bio.equivariant import mean_by
from trainer_core.bio.graphs import Graph, GraphBatch, GraphBins, collate_graphs
from trainer_core.bio.loss_terms import mean_over_ranks
from trainer_core.config import TrainConfig
from trainer_core.data import ResumeAwareDistributedSampler, SampleKey, StepSchedule
from trainer_core.distributed import maybe_init_dist
from trainer_core.local_launcher import LocalRanks
from trainer_core.settings import UserError

# Ranks cannot import a test module; its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

PARTS = ("x", "edge_index", "edge_attr", "pos", "y")


def geometric(module: str) -> ModuleType:
    """The oracle, imported where it is used: it takes seconds, and every worker collects."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it still calls torch.jit.script
        return importlib.import_module(f"torch_geometric.{module}")


def graph_of(num_nodes: int, num_edges: int, seed: int, *, full: bool = True) -> Graph:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(num_nodes, 4, generator=draw)
    edges = torch.randint(num_nodes, (2, num_edges), generator=draw)
    if not full:
        return Graph(x, edges)
    labels = torch.randn(2, generator=draw)
    labels[torch.rand(2, generator=draw) < 0.4] = torch.nan
    attr = torch.randn(num_edges, 3, generator=draw)
    return Graph(x, edges, attr, torch.randn(num_nodes, 3, generator=draw), labels)


def graphs_of(count: int, seed: int = 0) -> list[Graph]:
    draw = np.random.default_rng(seed)
    nodes = draw.integers(1, 12, count).tolist()
    return [graph_of(n, int(draw.integers(0, 3 * n)), row) for row, n in enumerate(nodes)]


sizes = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), min_size=1, max_size=6)


class TestBatch:
    @settings(max_examples=30)
    @given(sizes, st.booleans())
    def test_it_is_the_batch_of_pytorch_geometric(
        self, wanted: list[tuple[int, int]], full: bool
    ) -> None:
        """An offset that is one node off connects two molecules, and nothing fails."""
        oracle = geometric("data")
        graphs = [graph_of(n, e, row, full=full) for row, (n, e) in enumerate(wanted)]
        ours = collate_graphs(graphs, like=graphs[0])
        data = [
            # Labels as a row: PyG joins graphs' vectors end to end.
            oracle.Data(
                **graph._replace(y=None if graph.y is None else graph.y[None])._asdict()
            )
            for graph in graphs
        ]
        theirs = oracle.Batch.from_data_list(data)
        assert len(ours) == theirs.num_graphs
        for name in (*PARTS, "batch"):
            mine, other = getattr(ours, name), getattr(theirs, name)
            assert (mine is None) == (other is None), name
            if mine is not None:
                assert mine.dtype == other.dtype, name
                torch.testing.assert_close(mine, other, rtol=0, atol=0, equal_nan=True)

    @pytest.mark.parametrize("full", [True, False])
    def test_without_graphs_it_has_the_same_widths(self, full: bool) -> None:
        """A rank without samples runs the same layers, and these multiply by widths."""
        batch = collate_graphs([], like=graph_of(5, 7, 0, full=full))
        assert len(batch) == 0
        assert batch.x.shape == (0, 4)
        assert (batch.edge_index.shape, batch.edge_index.dtype) == ((2, 0), torch.int64)
        assert batch.batch.shape == (0,)
        shapes = [
            None if t is None else tuple(t.shape) for t in (batch.edge_attr, batch.pos, batch.y)
        ]
        assert shapes == ([(0, 3), (0, 3), (0, 2)] if full else [None] * 3)

    @pytest.mark.parametrize("full", [True, False])
    def test_its_placeholder_is_a_lone_node(self, full: bool) -> None:
        """A layer that refuses an empty batch would end the job on one rank."""
        lone = collate_graphs([], like=graph_of(5, 7, 0, full=full)).placeholder()
        assert (len(lone), lone.x.shape, lone.edge_index.shape) == (1, (1, 4), (2, 0))
        assert lone.batch.tolist() == [0]
        if full:
            assert lone.edge_attr is not None
            assert lone.pos is not None
            assert lone.y is not None
            assert (lone.edge_attr.shape, lone.pos.shape) == ((0, 3), (1, 3))
            assert lone.y.isnan().tolist() == [[True, True]]

    def test_it_moves_as_one(self) -> None:
        """One tensor left behind fails in the middle of a step, on a GPU only."""
        batch = collate_graphs(graphs_of(3), like=graphs_of(1)[0])
        moved = batch.to("meta")
        assert isinstance(moved, GraphBatch)
        assert all(getattr(moved, name).device.type == "meta" for name in (*PARTS, "batch"))


class TestReadout:
    @settings(max_examples=30)
    @given(st.lists(st.integers(0, 4), min_size=0, max_size=20), st.integers(0, 3))
    def test_the_mean_is_that_of_pytorch_geometric(self, owners: list[int], extra: int) -> None:
        """A sum instead of a mean tells the model a molecule's size, and little else."""
        oracle = geometric("utils")
        num_groups = max(owners, default=-1) + 1 + extra
        index = torch.tensor(owners, dtype=torch.int64)
        for shape in ((1,), (3,)):
            values = torch.randn(len(owners), *shape)
            theirs = oracle.scatter(values, index, dim_size=num_groups, reduce="mean")
            torch.testing.assert_close(mean_by(values, index, num_groups), theirs)

    def test_a_graph_without_nodes_at_the_end_keeps_its_row(self) -> None:
        """Counted from the largest index, it is missing, and labels shift by one graph."""
        means = mean_by(torch.ones(2, 3), torch.tensor([0, 0]), 3)
        assert means.tolist() == [[1.0] * 3, [0.0] * 3, [0.0] * 3]


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"x": torch.zeros(0, 4)}, "record 2: no nodes"),
            (
                {"edge_index": torch.zeros(7, 2, dtype=torch.int64)},
                r"record 2: edge_index is \(7, 2\) torch.int64",
            ),
            (
                {"edge_index": torch.zeros(2, 7, dtype=torch.int32)},
                r"record 2: edge_index is \(2, 7\) torch.int32",
            ),
            (
                {"edge_index": torch.tensor([[0] * 7, [0, 1, 2, 5, 0, 0, 0]])},
                r"record 2: edge 4 is \[0, 5\], and the nodes are 0 to 4",
            ),
            (
                {"edge_index": torch.tensor([[0] * 7, [0, -1, 2, 4, 0, 0, 0]])},
                r"record 2: edge 2 is \[0, -1\]",
            ),
            (
                {"edge_attr": torch.zeros(6, 3)},
                "edge_attr has 6 rows instead of 7, one for each edge",
            ),
            ({"pos": torch.zeros(4, 3)}, "pos has 4 rows instead of 5, one for each node"),
            ({"pos": None}, r"record 2: pos is missing, and \(3,\) .* in record 1"),
            ({"x": torch.zeros(5, 3)}, r"record 2: x is \(3,\) .* and \(4,\) .* in record 1"),
            ({"x": torch.zeros(5, 4, dtype=torch.int64)}, "record 2: x is .*int64"),
            ({"y": torch.zeros(1)}, "record 2: y is .* Write NaN for a missing label"),
        ],
    )
    def test_a_malformed_graph_is_named(self, change: dict[str, Any], message: str) -> None:
        """In a batch its edges and rows become those of its neighbors, without an error."""
        graphs = [graph_of(4, 6, 0), graph_of(5, 7, 1)._replace(**change)]
        with pytest.raises(UserError, match=message):
            GraphBins(graphs, 32, 64, seed=0)

    def test_a_graph_above_a_budget_is_named(self) -> None:
        """It fits in no bin; skipped silently, the largest molecules are never trained."""
        with pytest.raises(UserError, match=r"row 2: 40 edges, and the budget is 32\."):
            GraphBins([graph_of(4, 6, 0), graph_of(5, 40, 1)], 8, 32, seed=0)

    def test_graphs_without_edges_are_batched(self) -> None:
        """Table salt is two ions, and no bond."""
        graphs = [graph_of(2, 0, row) for row in range(3)]
        source = GraphBins(graphs, 4, 8, seed=0)
        batches = [source.batch([SampleKey(0, bin_id)]) for bin_id in range(len(source))]
        assert sorted(len(batch) for batch in batches) == [1, 2]
        assert all(batch.edge_index.shape == (2, 0) for batch in batches)


class TestBins:
    def test_an_epoch_has_each_graph_once_within_both_budgets_on_all_ranks(self) -> None:
        """Ranks with unequal numbers of batches hang in the last all-reduce."""
        graphs = graphs_of(150)
        source = GraphBins(graphs, 40, 60, seed=3)
        schedule = StepSchedule(len(source), 6, 2)
        cfg = TrainConfig(micro_batch_size=1, seed=3)
        ranks = [ResumeAwareDistributedSampler(schedule, cfg, rank, 4) for rank in range(4)]
        assert len({len(rank) for rank in ranks}) == 1
        trained: list[int] = []
        for position in range(schedule.total_steps):
            for rank in ranks:
                for keys in rank.micro_batches(position):
                    batch = source.batch(keys)
                    assert len(batch.x) <= 40
                    assert batch.edge_index.shape[1] <= 60
                    assert source.num_terms([key.sample for key in keys]) == (
                        0 if batch.y is None else batch.y.isfinite().sum()
                    )
                    trained += source.items(keys)
        assert sorted(trained) == sorted(2 * list(range(150)))

    def test_bins_from_four_times_the_largest_graph_differ_by_10_percent_in_work(self) -> None:
        """The slowest rank sets the pace of all of them."""
        draw = np.random.default_rng(0)
        nodes = np.clip(draw.gamma(6, 4, 3000).astype(int) + 2, 2, 60)
        edges = 2 * (nodes - 1 + draw.poisson(2, 3000))  # a molecule's bonds, both directions
        graphs = [
            Graph(torch.zeros(n, 1), torch.zeros(2, e, dtype=torch.int64))
            for n, e in zip(nodes.tolist(), edges.tolist(), strict=True)
        ]
        plan = GraphBins(graphs, 4 * 60, 4 * int(edges.max()), seed=0).plan
        work = plan.fill()[:, :2].sum(axis=1)
        assert 1 - work.min() / work.max() <= 0.1
        assert plan.fill()[:, 0].mean() > 0.95 * 240

    def test_the_fingerprint_names_graphs_and_budgets(self) -> None:
        """A resume on other data goes on as if nothing had happened."""
        graphs = graphs_of(12)
        other = [*graphs[:-1], graphs[-1]._replace(x=graphs[-1].x + 1)]
        made = [
            GraphBins(graphs, 40, 60, seed=3),
            GraphBins(other, 40, 60, seed=3),
            GraphBins(graphs, 41, 60, seed=3),
            GraphBins(graphs, 40, 61, seed=3),
            GraphBins([graph._replace(pos=None) for graph in graphs], 40, 60, seed=3),
        ]
        assert len({source.fingerprint for source in made}) == len(made)
        assert GraphBins(graphs, 40, 60, seed=9).fingerprint == made[0].fingerprint


# ---------------------------------------------------------------- on several ranks


class MessagePassing(nn.Module):
    """Neighbors' features summed once, a mean per graph, and two labels from it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.message, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, batch: GraphBatch) -> Tensor:
        sources, targets = batch.edge_index
        hidden = self.message(batch.x)
        hidden = hidden.index_add(0, targets, hidden[sources]).relu()
        predictions: Tensor = self.head(mean_by(hidden, batch.batch, len(batch)))
        return predictions


def summed_error(model: nn.Module, batch: GraphBatch) -> Tensor:
    assert batch.y is not None
    known = batch.y.isfinite()
    error = model(batch) - torch.where(known, batch.y, 0.0)
    return torch.where(known, error**2, 0.0).sum()


def gradient_of(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def train_on_rank(world_size: int) -> list[float]:
    """One step over two bins, so that a third rank has none."""
    info = maybe_init_dist(TrainConfig(world_size=world_size, device="cpu"))
    source = GraphBins(graphs_of(30), 40, 60, seed=3)
    keys = [SampleKey(0, 0), SampleKey(0, 1)][info.rank :: world_size]
    model = DistributedDataParallel(MessagePassing())
    mean_over_ranks(
        summed_error(model, source.batch(keys)), source.num_terms([k.sample for k in keys])
    ).backward()
    dist.destroy_process_group()
    return gradient_of(model).tolist()


@pytest.mark.ranks
class TestRanks:
    def test_a_rank_without_graphs_joins_the_step_of_the_others(self) -> None:
        """Its peers wait for its gradient; a mean over no graphs would send them NaN."""
        source, model = GraphBins(graphs_of(30), 40, 60, seed=3), MessagePassing()
        keys = [SampleKey(0, 0), SampleKey(0, 1)]
        (summed_error(model, source.batch(keys)) / source.num_terms([0, 1])).backward()
        results = LocalRanks(partial(train_on_rank, 3), 3).wait(120)
        assert [result.exitcode for result in results] == [0, 0, 0], results
        for result in results:
            assert (torch.tensor(result.value) - gradient_of(model)).abs().max() < 1e-6
