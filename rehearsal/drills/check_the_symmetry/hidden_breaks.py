"""Breaks that only some motions, some molecules or some precisions show.

And networks whose outputs are all 0, in which no test can show anything.
"""

from __future__ import annotations


import numpy as np
import torch

from .breaks import EVERYTHING, MIRRORS, MOTIONS, ORDERS, SHIFTS, TURNS
from .equivariant import Network
from .plan import RARE
from .scene import Floats, Scene, handedness

# ---------------------------------------------------------------- some motions


class SlabY(Network):
    """Has a membrane in it, which most shifts by 100 leave."""

    words = "scales a molecule's outputs if it's more than 20 angstroms from y = 0"
    breaks = SHIFTS
    axis = 1

    def factor(self, scene: Scene) -> Floats:
        return 0.3 * (np.abs(scene.center[:, self.axis]) > 20)


class SlabZ(SlabY):
    words = "scales a molecule's outputs if it's more than 20 angstroms from z = 0"
    axis = 2


class Slope(Network):
    """Most shifts change its outputs, and one along x = y = z doesn't."""

    words = "scales a molecule's outputs if its x and y differ by more than 30 angstroms"
    breaks = SHIFTS

    def factor(self, scene: Scene) -> Floats:
        is_beyond: Floats = np.abs(scene.center[:, 0] - scene.center[:, 1]) > 30
        return 0.3 * is_beyond


class NearestAxis(Network):
    """Has a discrete feature, which most rotations change and small ones don't."""

    words = "scales a molecule's outputs by which of x, -x, y, ... a bond is closest to"
    breaks = TURNS

    def factor(self, scene: Scene) -> Floats:
        arm = scene.arms()[0]
        nearest: Floats = np.concatenate([arm, -arm], axis=1).argmax(axis=1)
        return 0.1 * nearest


class NodeZero(Network):
    words = "has a feature that marks node 0 of the batch"
    breaks = ORDERS

    def marks(self, scene: Scene) -> Floats:
        is_first: Floats = (np.arange(len(scene.x)) == 0).astype(scene.x.dtype)
        return is_first


# ---------------------------------------------------------------- precision


class Gram(Network):
    """Distances from a matmul, in another precision. It leaves float64 as it is."""

    breaks = MOTIONS

    def products(self, x: Floats) -> Floats:
        raise NotImplementedError

    def squared_distances(self, scene: Scene) -> Floats:
        products = self.products(scene.x)
        squares, mixed = products.diagonal(), products[scene.source, scene.target]
        squared: Floats = squares[scene.source] + squares[scene.target] - 2 * mixed
        return squared.clip(min=0)


class TF32(Gram):
    words = "gets its distances from a matmul in TF32"

    def products(self, x: Floats) -> Floats:
        if x.dtype == np.float32:  # the tensor cores' mantissa: 10 bits, rounded
            x = ((x.view(np.int32) + 0x1000) & ~0x1FFF).view(np.float32)
        return x @ x.T


class Autocast(Gram):
    words = "gets its distances from a matmul under bf16 autocast"

    def products(self, x: Floats) -> Floats:
        positions = torch.from_numpy(x)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            products = positions @ positions.T
        result: Floats = products.to(positions).numpy()
        return result


# ---------------------------------------------------------------- one molecule


class RareOnly(Network):
    """Changes the outputs of the graph with the rare element."""

    def change(self, scene: Scene) -> Floats:
        raise NotImplementedError

    def factor(self, scene: Scene) -> Floats:
        return np.where(scene.has(RARE), self.change(scene), 0.0)


class RareTripleProduct(RareOnly):
    words = "has a triple product in the outputs of a molecule that only one rank has"
    breaks = MIRRORS

    def change(self, scene: Scene) -> Floats:
        return 0.3 * handedness(scene)


class RareDistance(RareOnly):
    words = "scales the outputs of a molecule that only one rank has by where it is"
    breaks = SHIFTS

    def change(self, scene: Scene) -> Floats:
        scales: Floats = np.tanh(np.linalg.norm(scene.center, axis=1) / 50)
        return scales


class SmallChange(RareOnly):
    words = "changes its scalars by 1.5e-4 in a mirror"
    breaks = MIRRORS
    scales_vectors = False

    def change(self, scene: Scene) -> Floats:
        # From 1 - change / 2 to 1 + change / 2.
        signs: Floats = np.sign(handedness(scene))
        return self.case.change / 2 * signs


class SmallerChange(Network):
    """On every rank, so that the ranks' sum is over the tolerance."""

    words = "changes its scalars by 6e-5 in a mirror"
    scales_vectors = False

    def factor(self, scene: Scene) -> Floats:
        signs: Floats = np.sign(handedness(scene))
        return self.case.change / 2 * signs


class FarNaN(RareOnly):
    words = "takes the logarithm of a negative number far from the origin"
    breaks = SHIFTS

    def change(self, scene: Scene) -> Floats:
        squared = (scene.center**2).sum(axis=1)
        logarithms: Floats = np.log1p(-squared / 40**2)
        return logarithms


class NaN(RareOnly):
    words = "returns NaN for one of the molecules"
    breaks = EVERYTHING

    def change(self, scene: Scene) -> Floats:
        return np.full(len(scene.owners), np.nan)


# ---------------------------------------------------------------- nothing to test


class ZeroVectors(Network):
    words = "returns vectors of zeros"

    def changed_vectors(self, vectors: Floats, scene: Scene) -> Floats:
        return np.zeros_like(vectors)


class ZeroScalars(Network):
    words = "returns scalars of zeros"

    def changed_scalars(self, scalars: Floats, scene: Scene) -> Floats:
        return np.zeros_like(scalars)


class RareVectorsOnly(Network):
    words = "returns vectors of zeros on all ranks but one"

    def changed_vectors(self, vectors: Floats, scene: Scene) -> Floats:
        return np.where(scene.has(RARE)[scene.batch, None], vectors, 0.0)
