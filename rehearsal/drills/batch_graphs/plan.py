"""What a check collates, and the epochs that it cuts, drawn from its seed.

N  nodes of a graph    E  its edges    F  features of a node    D  features of an edge
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

LEFT_OVER, ONE_SHORT = "a batch left over", "one batch too few"
EVEN, NOTHING = "as many batches on each rank", "no graphs"
MANY_NODES, MANY_EDGES = "too many nodes", "too many edges"
KINDS = (LEFT_OVER, ONE_SHORT, EVEN, NOTHING, MANY_NODES, MANY_EDGES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
    """One molecule: every node and every edge has a number of its own in its features."""

    x: Sequence[Sequence[float]]  # (N, F)
    edges: Sequence[tuple[int, int]]  # E pairs: from, to
    edge_attr: Sequence[Sequence[int]]  # (E, D)


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """One call of ``batches_of`` on all ranks."""

    kind: str
    order: Sequence[int]
    num_nodes: Sequence[int]
    num_edges: Sequence[int]
    max_nodes: int
    max_edges: int

    @property
    def too_large(self) -> list[int]:
        """The graphs in the order that no batch can hold."""
        return [
            graph
            for graph in self.order
            if self.num_nodes[graph] > self.max_nodes or self.num_edges[graph] > self.max_edges
        ]

    def used(self, batch: Sequence[int]) -> tuple[int, int]:
        """Nodes and edges of a batch."""
        return sum(self.num_nodes[g] for g in batch), sum(self.num_edges[g] for g in batch)

    def fits(self, batch: Sequence[int]) -> bool:
        """Whether a batch is within both budgets."""
        nodes, edges = self.used(batch)
        return nodes <= self.max_nodes and edges <= self.max_edges

    def batches(self) -> list[list[int]]:
        """The batches of the epoch, in order."""
        found: list[list[int]] = []
        for graph in self.order:
            if found and self.fits([*found[-1], graph]):
                found[-1].append(graph)
            else:
                found.append([graph])
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What every rank is asked."""

    world_size: int
    features: tuple[int, int]  # F, D
    graphs: Sequence[Graph]
    lists: Sequence[Sequence[int]]  # which graphs a call of collate gets
    epochs: Sequence[Epoch]


def jobs(seed: int) -> dict[str, Job]:
    """Three ranks, and one. The same seed gives the same jobs, in any process."""
    draw = random.Random(f"batch_graphs {seed}")
    return {"three ranks": job_of(draw, 3), "one rank": job_of(draw, 1)}


def job_of(draw: random.Random, world_size: int) -> Job:
    """Graphs of every awkward kind, and an epoch of every kind."""
    features = draw.choice((2, 3)), draw.choice((2, 3))
    sizes = [(1, 0), (draw.randint(2, 4), 0), (1, 2), (5, draw.randint(7, 9)), (3, 4), (2, 5)]
    graphs = [graph_of(draw, place, *size, features) for place, size in enumerate(sizes)]
    shuffled = draw.sample(range(len(graphs)), len(graphs))
    # With a graph without edges first, then last; twice the same graph; none at all.
    lists = [shuffled, [0, 3, 1], [4, 3, 0], [3, 5, 3, 4], [0], []]
    epochs = [epoch_of(draw, kind, world_size) for kind in KINDS]
    return Job(
        world_size=world_size, features=features, graphs=graphs, lists=lists, epochs=epochs
    )


def graph_of(
    draw: random.Random, place: int, nodes: int, edges: int, features: tuple[int, int]
) -> Graph:
    """A graph with so many nodes and edges; a node may have an edge to itself."""
    width, attrs = features
    return Graph(
        x=[
            [place * 64 + node + 1.0, *(draw.randrange(-20, 20) / 8 for _ in range(width - 1))]
            for node in range(nodes)
        ],
        edges=[(draw.randrange(nodes), draw.randrange(nodes)) for _ in range(edges)],
        edge_attr=[
            [place * 64 + edge + 1, *(draw.randrange(-9, 9) for _ in range(attrs - 1))]
            for edge in range(edges)
        ],
    )


def epoch_of(draw: random.Random, kind: str, world_size: int) -> Epoch:
    """Draw until the epoch has everything that an epoch of its kind has to have."""
    while True:
        epoch = drawn(draw, kind)
        left = {LEFT_OVER: 1, ONE_SHORT: -1, EVEN: 0}
        if kind not in left:
            return epoch
        if (len(epoch.batches()) - left[kind]) % world_size == 0 and is_awkward(epoch):
            return epoch


def drawn(draw: random.Random, kind: str) -> Epoch:
    """Sizes, budgets that some graphs use up, and an order of some of the graphs."""
    most = draw.randint(9, 12), draw.randint(14, 18)
    sizes = [(draw.randint(1, 7), draw.randint(0, 11)) for _ in range(draw.randint(14, 20))]
    sizes += [(most[0], 3), (2, most[1]), (1, 0), (most[0] + 1, 2), (2, most[1] + 1)]
    draw.shuffle(sizes)
    over = [g for g, size in enumerate(sizes) if size[0] > most[0]]
    over += [g for g, size in enumerate(sizes) if size[1] > most[1]]
    rest = [g for g in range(len(sizes)) if g not in over]
    order = draw.sample(rest, len(rest))
    order = [g for g in order if draw.random() < 0.9 or sizes[g] in ((most[0], 3), (1, 0))]
    if kind == NOTHING:
        order = []
    elif kind in (MANY_NODES, MANY_EDGES):  # late, so that only one rank would get to it
        order.insert(len(order) - 2, over[kind == MANY_EDGES])
    nodes, edges = [size[0] for size in sizes], [size[1] for size in sizes]
    return Epoch(
        kind=kind,
        order=order,
        num_nodes=nodes,
        num_edges=edges,
        max_nodes=most[0],
        max_edges=most[1],
    )


def is_awkward(epoch: Epoch) -> bool:
    """Whether each budget ends a batch by itself, and is once used up to the last unit."""
    batches = epoch.batches()
    ended = [epoch.used([*a, b[0]]) for a, b in pairwise(batches)]
    by_nodes = any(n > epoch.max_nodes and e <= epoch.max_edges for n, e in ended)
    by_edges = any(n <= epoch.max_nodes and e > epoch.max_edges for n, e in ended)
    several = [epoch.used(batch) for batch in batches if len(batch) > 1]
    all_nodes = any(n == epoch.max_nodes and e < epoch.max_edges for n, e in several)
    all_edges = any(n < epoch.max_nodes and e == epoch.max_edges for n, e in several)
    alone = [epoch.used([graph]) for graph in epoch.order]
    node_limit = any(n == epoch.max_nodes for n, _ in alone)
    edge_limit = any(e == epoch.max_edges for _, e in alone)
    return by_nodes and by_edges and all_nodes and all_edges and node_limit and edge_limit
