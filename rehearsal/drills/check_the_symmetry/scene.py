"""A batch of graphs as the networks see it: positions, edges, and which graph a node is in.

N  nodes    E  edges    G  graphs
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]  # of the network's type


@dataclass
class Scene:
    """A batch of graphs."""

    elements: NDArray[Any]  # (N,)
    x: Floats  # (N, 3)
    source: NDArray[Any]  # (E,)
    target: NDArray[Any]  # (E,)
    batch: NDArray[Any]  # (N,)

    @cached_property
    def owners(self) -> Floats:
        """One over the size of each graph where a node is in it, (G, N)."""
        return averaging(self.batch, int(self.batch.max()) + 1, self.x.dtype)

    @cached_property
    def apart(self) -> Floats:
        """From the source of each edge to its target, (E, 3)."""
        apart: Floats = self.x[self.target] - self.x[self.source]
        return apart

    @cached_property
    def center(self) -> Floats:
        """The center of each graph, (G, 3)."""
        center: Floats = self.owners @ self.x
        return center

    def has(self, element: int) -> NDArray[Any]:
        """Whether each graph has an atom of the element, (G,)."""
        found: NDArray[Any] = self.owners @ (self.elements == element).astype(float) > 0
        return found

    def arms(self) -> list[Floats]:
        """From a graph's center to its atoms of elements 1, 2 and 3, as unit vectors, (G, 3).

        Of a graph that lacks one, 0. They turn with the graph.
        """
        arms = []
        for element in (1, 2, 3):
            arm = np.zeros_like(self.center)
            (nodes,) = (self.elements == element).nonzero()
            graphs = self.batch[nodes]
            arm[graphs] = self.x[nodes] - self.center[graphs]
            lengths = np.linalg.norm(arm, axis=1, keepdims=True)
            arms.append(arm / np.where(lengths > 0, lengths, 1))
        return arms


def averaging(owners: NDArray[Any], num_owners: int, dtype: Any) -> Floats:
    """The matrix that takes the mean over each owner's rows; 0 for an owner without rows."""
    ours = (np.arange(num_owners)[:, None] == owners).astype(dtype)
    counts = ours.sum(axis=1, keepdims=True)
    matrix: Floats = ours / np.where(counts > 0, counts, 1)
    return matrix


def handedness(scene: Scene) -> Floats:
    """The signed volume that the arms span, (G,): a reflection turns its sign around."""
    first, second, third = scene.arms()
    volumes: Floats = (first * np.cross(second, third)).sum(axis=1)
    return volumes


def moved(scene: Scene, x: Floats) -> Scene:
    """The same graphs at other positions."""
    return Scene(
        scene.elements, x.astype(scene.x.dtype), scene.source, scene.target, scene.batch
    )
