"""What a network can do to its symmetries, in motions that every test makes.

A part is a class that overrides one step of the network. It says what it does, and which
symmetries that breaks, as an argument on paper: nothing here runs a test to find out.
"""

from __future__ import annotations

import numpy as np
from torch import nn

from .equivariant import WIDTH, Network
from .plan import ELEMENTS
from .scene import Floats, Scene, handedness, moved

TURNS = frozenset({"rotation", "reflection"})  # what breaks one breaks the other
MIRRORS = frozenset({"reflection"})
SHIFTS = frozenset({"translation"})
ORDERS = frozenset({"permutation"})
MOTIONS = TURNS | SHIFTS
EVERYTHING = MOTIONS | ORDERS


# ---------------------------------------------------------------- nothing broken


class BatchNorm(Network):
    words = "has batch norm on its scalar features"

    def make_norm(self) -> nn.Module:
        return nn.BatchNorm1d(WIDTH)


class RootMeanSquareNorm(Network):
    words = "divides its vectors by their root mean square length in a graph"

    def changed_vectors(self, vectors: Floats, scene: Scene) -> Floats:
        squares = scene.owners @ (vectors**2).sum(axis=1)
        changed: Floats = vectors / np.sqrt(squares + 1e-3)[scene.batch, None]
        return changed


class BondsOnly(Network):
    words = "returns scalars of 0 for a molecule without a bond"

    def changed_scalars(self, scalars: Floats, scene: Scene) -> Floats:
        has_bonds: Floats = (np.bincount(scene.batch) > 1).astype(scalars.dtype)
        return scalars * has_bonds[:, None]


# ---------------------------------------------------------------- rotations


class Diagonal(Network):
    words = "has x + y + z of each atom, seen from the center of its graph, as a feature"
    breaks = TURNS

    def marks(self, scene: Scene) -> Floats:
        sums: Floats = (scene.x - scene.center[scene.batch]).sum(axis=1)
        return sums / 4


class Height(Network):
    words = "has the height of each atom over the center of its graph, squared, as a feature"
    breaks = TURNS

    def marks(self, scene: Scene) -> Floats:
        heights: Floats = scene.x[:, 2] - scene.center[scene.batch, 2]
        return heights**2 / 4


class Manhattan(Network):
    words = "measures distances as |dx| + |dy| + |dz|"
    breaks = TURNS

    def squared_distances(self, scene: Scene) -> Floats:
        distances: Floats = np.abs(scene.apart).sum(axis=1)
        return distances**2


class PerAxisScale(Network):
    words = "scales each graph to a standard deviation of 1 along x, y and z"
    breaks = TURNS

    def prepared(self, scene: Scene) -> Scene:
        x = scene.x - scene.center[scene.batch]
        deviations = np.sqrt(scene.owners @ x**2 + 0.1)
        return moved(scene, x / deviations[scene.batch])


class LayerNorm(Network):
    words = "applies a layer norm to the x, y and z of each vector"
    breaks = TURNS

    def changed_vectors(self, vectors: Floats, scene: Scene) -> Floats:
        off: Floats = vectors - vectors.mean(axis=1, keepdims=True)
        scaled: Floats = off / np.sqrt((off**2).mean(axis=1, keepdims=True) + 0.01)
        return scaled


class AlongX(Network):
    words = "returns vectors of the right length, all of them along x"
    breaks = TURNS

    def changed_vectors(self, vectors: Floats, scene: Scene) -> Floats:
        along_x: Floats = np.zeros_like(vectors)
        along_x[:, 0] = np.linalg.norm(vectors, axis=1)
        return along_x


class Bias(Network):
    words = "adds a bias to its vectors"
    breaks = TURNS

    def changed_vectors(self, vectors: Floats, scene: Scene) -> Floats:
        biased: Floats = vectors + np.array([0.05, -0.03, 0.04])
        return biased


class Tanh(Network):
    words = "applies tanh to the x, y and z of each vector"
    breaks = TURNS

    def changed_vectors(self, vectors: Floats, scene: Scene) -> Floats:
        changed: Floats = np.tanh(4 * vectors)
        return changed


class TiltEnergy(Network):
    words = "adds the mean of x times y, seen from a graph's center, to its scalars"
    breaks = TURNS

    def changed_scalars(self, scalars: Floats, scene: Scene) -> Floats:
        x = scene.x - scene.center[scene.batch]
        products: Floats = scene.owners @ (x[:, :1] * x[:, 1:2])
        return scalars + products / 4


# ---------------------------------------------------------------- reflections


class TripleProduct(Network):
    words = "has a triple product in its scalars"
    breaks = MIRRORS
    scales_vectors = False

    def factor(self, scene: Scene) -> Floats:
        return 0.3 * handedness(scene)


class CrossProduct(Network):
    words = "adds a cross product to its vectors"
    breaks = MIRRORS

    def changed_vectors(self, vectors: Floats, scene: Scene) -> Floats:
        first, second, _ = scene.arms()
        changed: Floats = vectors + 0.3 * np.cross(first, second)[scene.batch]
        return changed


# ---------------------------------------------------------------- translations


class DistanceFromOrigin(Network):
    words = "has each atom's distance from the origin as a feature"
    breaks = SHIFTS

    def marks(self, scene: Scene) -> Floats:
        distances: Floats = np.linalg.norm(scene.x, axis=1)
        return distances / 4


class FarEnergy(Network):
    words = "adds a graph's distance from the origin to its scalars"
    breaks = SHIFTS

    def changed_scalars(self, scalars: Floats, scene: Scene) -> Floats:
        distances: Floats = np.linalg.norm(scene.center, axis=1)
        return scalars + distances[:, None] / 40


class Points(Network):
    words = "returns vectors that shift with the positions"
    breaks = SHIFTS

    def changed_vectors(self, vectors: Floats, scene: Scene) -> Floats:
        return vectors + scene.x


class Clip(Network):
    words = "clips coordinates beyond 40 angstroms"
    breaks = SHIFTS

    def prepared(self, scene: Scene) -> Scene:
        return moved(scene, scene.x.clip(-40, 40))


class Box(Network):
    words = "has whether an atom is within 40 angstroms of the origin as a feature"
    breaks = SHIFTS

    def marks(self, scene: Scene) -> Floats:
        distances: Floats = np.linalg.norm(scene.x, axis=1)
        return (distances < 40).astype(scene.x.dtype)


# ---------------------------------------------------------------- permutations


class Numbered(Network):
    words = "has the sine of each node's number as a feature"
    breaks = ORDERS

    def marks(self, scene: Scene) -> Floats:
        sines: Floats = np.sin(np.arange(len(scene.x)))
        return sines


class FirstAtom(Network):
    words = "reads a graph's scalars off its first node"
    breaks = ORDERS

    def pooled(self, values: Floats, scene: Scene) -> Floats:
        first: Floats = values[np.unique(scene.batch, return_index=True)[1]]
        return first


class ByElement(Network):
    words = "returns its vectors sorted by element"
    breaks = ORDERS

    def changed_vectors(self, vectors: Floats, scene: Scene) -> Floats:
        keys = scene.batch * ELEMENTS + scene.elements
        ordered: Floats = vectors[keys.argsort(kind="stable")]
        return ordered


# ---------------------------------------------------------------- graphs of one batch


class SharedCenter(Network):
    words = "has each atom's distance from the center of the whole batch as a feature"
    breaks = MOTIONS

    def marks(self, scene: Scene) -> Floats:
        distances: Floats = np.linalg.norm(scene.x - scene.x.mean(axis=0), axis=1)
        return distances / 4


class SharedNeighbors(Network):
    words = "counts the neighbors of an atom in all graphs of the batch"
    breaks = MOTIONS

    def marks(self, scene: Scene) -> Floats:
        squared = ((scene.x[:, None] - scene.x) ** 2).sum(axis=2)
        near: Floats = (1 / (1 + squared / 64)).sum(axis=1)
        return near / 8
