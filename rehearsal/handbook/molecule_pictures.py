"""What chapter 30 draws: how close test molecules are to training, gaps, and a batch of graphs.

n  molecules
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rehearsal.evidence.pictures import BLUE, GREEN, INK, ORANGE, PURPLE, VERMILLION
from rehearsal.evidence.pictures import new_figure, on_any_theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from trainer_core.bio.graphs import GraphBatch
    from trainer_core.bio.molecules import MoleculeTable
    from trainer_core.bio.splits import Split


class Pair(NamedTuple):
    """Two molecules on two sides of a split."""

    similarity: float
    tested: str
    known: str


LINES = ((VERMILLION, "-"), (BLUE, "-"), (GREEN, "--"), (PURPLE, "-."), (ORANGE, ":"))


def similarities_across(table: MoleculeTable, made: Split) -> list[list[float]]:
    """For each test molecule, its Tanimoto similarity to each training molecule."""
    from trainer_core.bio.featurize import morgan_bit_vectors
    from trainer_core.bio.packages import load
    from trainer_core.bio.splits import TEST, TRAIN

    data = load("rdkit.DataStructs", "comparing molecules")
    prints = morgan_bit_vectors(table.smiles)
    known = [prints[row] for row in made.rows_of(TRAIN)]
    return [data.BulkTanimotoSimilarity(prints[row], known) for row in made.rows_of(TEST)]


def nearest_in_train(table: MoleculeTable, made: Split) -> list[float]:
    """The similarity of each test molecule to its nearest training molecule."""
    return [max(row) for row in similarities_across(table, made)]


def closest_pairs(table: MoleculeTable, made: Split, count: int) -> list[Pair]:
    """The most similar molecules that a split has separated, each test molecule once."""
    from trainer_core.bio.splits import TEST, TRAIN

    tested, known = made.rows_of(TEST), made.rows_of(TRAIN)
    pairs = []
    for row, values in zip(tested, similarities_across(table, made), strict=True):
        best = int(np.argmax(values))
        pairs.append(Pair(values[best], table.ids[row], table.ids[known[best]]))
    return sorted(pairs, reverse=True)[:count]


def similarity_curves(nearest: Mapping[str, Sequence[float]]) -> Figure:
    """For each split, how much of the test is at least that close to a training molecule."""
    figure, axes = new_figure(
        3.6,
        "How close is the test to the training?",
        "share of test molecules whose nearest training molecule is at least this similar",
    )
    for (name, values), (color, style) in zip(nearest.items(), LINES, strict=False):
        closest = np.sort(values)
        share = 100 * np.arange(len(closest), 0, -1) / len(closest)
        axes.step(closest, share, where="pre", color=color, linestyle=style, label=name)
    axes.set(xlabel="Tanimoto similarity (Morgan, radius 2)", ylabel="% of test molecules")
    axes.set(xlim=(0, 1), ylim=(0, 100))
    axes.legend(frameon=False)
    return on_any_theme(figure)


def planted_gaps(rows: Sequence[Mapping[str, float]]) -> Figure:
    """The measured gaps against the planted one; each row has planted, memorizer and model."""
    figure, axes = new_figure(
        3.6,
        "The gap between random and scaffold, against the leak that was planted",
        "on the line, what is measured is what was planted; the band is 10 % around it",
    )
    planted = np.array([row["planted"] for row in rows])
    line = np.linspace(0, 1.15 * planted.max(), 2)
    axes.fill_between(line, 0.9 * line, 1.1 * line, color=INK, alpha=0.25, linewidth=0)
    axes.plot(line, line, color=INK, linewidth=0.8)
    for name, color, marker in (("memorizer", BLUE, "o"), ("model", VERMILLION, "s")):
        found = [row[name] for row in rows]
        axes.plot(planted, found, marker, color=color, markersize=7, label=name)
    axes.set(xlabel="planted gap (R2)", ylabel="measured gap (R2)")
    axes.legend(frameon=False)
    return on_any_theme(figure)


def block_diagonal(batch: GraphBatch, names: Sequence[str]) -> Figure:
    """The adjacency matrix of a batch: a block for each graph, and nothing between them."""
    figure, axes = new_figure(
        4.2,
        f"{len(names)} molecules, one graph",
        "a mark is a bond between the atom of the row and the atom of the column",
    )
    owner = batch.batch.numpy()
    source, target = batch.edge_index.numpy()
    markers = "osD^vP"
    for graph, name in enumerate(names):
        color = LINES[graph % len(LINES)][0]
        mine = owner[source] == graph
        style: dict[str, Any] = {"s": 14, "color": color, "marker": markers[graph % 6]}
        axes.scatter(target[mine], source[mine], label=name, **style)
        first, size = int((owner < graph).sum()), int((owner == graph).sum())
        box = [first - 0.5, first + size - 0.5]
        axes.plot(
            [box[0], box[1], box[1], box[0], box[0]],
            [box[0], box[0], box[1], box[1], box[0]],
            color=INK,
            linewidth=0.8,
        )
    axes.set(xlabel="atom", ylabel="atom", aspect="equal")
    axes.invert_yaxis()
    axes.legend(frameon=False, bbox_to_anchor=(1.02, 1), loc="upper left")
    return on_any_theme(figure)
