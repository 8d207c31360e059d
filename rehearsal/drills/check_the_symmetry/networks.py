"""The networks that a check has tested: an equivariant one, and what can be wrong with it.

A part is a class that overrides one step of the network. It says what it does, and which
symmetries that breaks, as an argument on paper: nothing here runs a test to find out.

From outside, a network is an ``nn.Module`` in torch. Inside it calculates in numpy, in the type
of its weights: for twenty nodes that takes a tenth of the time, and a check needs a thousand
calls.

    N  nodes    E  edges    F  features    G  graphs    W  width    K  scalars of a graph
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .plan import ELEMENTS, RARE, Case

WIDTH = 8
TURNS = frozenset({"rotation", "reflection"})  # what breaks one breaks the other
MIRRORS = frozenset({"reflection"})
SHIFTS = frozenset({"translation"})
ORDERS = frozenset({"permutation"})
MOTIONS = TURNS | SHIFTS
EVERYTHING = MOTIONS | ORDERS

Floats = NDArray[Any]  # of the network's type


@dataclass
class Calls:
    """How a network has been called. A copy of the network still writes here."""

    in_training: list[str] = field(default_factory=list)  # modules in training mode
    recorded: bool = False  # whether an output would have a graph for backward
    positions: list[Floats] = field(default_factory=list)  # (N, 3) of each call

    def __deepcopy__(self, memo: Any) -> Calls:
        return self

    def note(self, modules: Sequence[tuple[str, nn.Module]], positions: Floats) -> None:
        """A call begins."""
        self.in_training += [name for name, module in modules if module.training][:1]
        self.positions.append(positions.copy())


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
        return self.x[self.target] - self.x[self.source]

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


class Network(nn.Module):
    """Invariant scalars and equivariant vectors from distances and differences of positions."""

    words = "keeps every symmetry"
    breaks: frozenset[str] = frozenset()
    # Which outputs the factor changes.
    scales_scalars = scales_vectors = True

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.calls, self.case = Calls(), case
        self.embed = nn.Linear(ELEMENTS, WIDTH)
        self.norm = self.make_norm()
        self.message = nn.Linear(2 * WIDTH + 1, WIDTH)
        self.gate = nn.Linear(WIDTH, 1)
        self.update = nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.3)
        self.last_norm = self.make_norm()
        self.head = nn.Linear(WIDTH, case.num_outputs)
        draw = torch.Generator().manual_seed(case.seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.5)
        self.watched = [*self.named_modules()]
        self.train()
        # As in a fine-tuning: the embedding and its norm are frozen.
        self.embed.requires_grad_(False)
        self.norm.eval()

    # ------------------------------------------------------------ what a part may override

    def make_norm(self) -> nn.Module:
        """The norm of the scalar features."""
        return nn.LayerNorm(WIDTH)

    def prepared(self, scene: Scene) -> Scene:
        """What is done to the positions first."""
        return scene

    def squared_distances(self, scene: Scene) -> Floats:
        """Of each edge, (E,)."""
        squared: Floats = (scene.apart**2).sum(axis=1)
        return squared

    def marks(self, scene: Scene) -> Floats | None:
        """What every node gets as an additional feature, (N,). None: nothing."""
        return None

    def factor(self, scene: Scene) -> Floats | None:
        """What a graph's outputs are scaled up by, (G,): 0.1 adds a tenth. None: nothing."""
        return None

    def pooled(self, values: Floats, scene: Scene) -> Floats:
        """From nodes to graphs, (N, K) to (G, K)."""
        return scene.owners @ values

    def changed_scalars(self, scalars: Floats, scene: Scene) -> Floats:
        """What is done to the scalars last."""
        return scalars

    def changed_vectors(self, vectors: Floats, scene: Scene) -> Floats:
        """What is done to the vectors last."""
        return vectors

    # ------------------------------------------------------------ the network

    def forward(
        self, features: Tensor, positions: Tensor, edge_index: Tensor, batch: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Scalars, (G, K), and vectors, (N, 3).

        Raises:
            RuntimeError: if the weights are of another type than features and positions.
        """
        if torch.is_autocast_enabled("cpu"):  # what it has rounded so far stays rounded
            features, positions = features.float(), positions.float()
        types = {tensor.dtype for tensor in (features, positions, self.embed.weight)}
        if len(types) > 1:
            raise RuntimeError(f"expected features, positions and weights of one type: {types}")
        self.calls.recorded |= torch.is_grad_enabled() and any(
            tensor.requires_grad for tensor in (features, positions, *self.parameters())
        )
        source, target = edge_index.numpy()
        x = positions.detach().numpy()
        self.calls.note(self.watched, x)
        elements = features.detach().numpy().argmax(axis=1)
        scene = self.prepared(Scene(elements, x, source, target, batch.numpy()))
        with np.errstate(all="ignore"):  # a network may return NaN without a warning, too
            scalars, vectors = self.outputs(scene)
        units = self.case.units
        return torch.tensor(scalars * x.dtype.type(units[0])), torch.tensor(
            vectors * x.dtype.type(units[1])
        )

    def outputs(self, scene: Scene) -> tuple[Floats, Floats]:
        """Both outputs in arrays."""
        source, target = scene.source, scene.target
        squared = self.squared_distances(scene)[:, None].astype(scene.x.dtype)
        h = linear(self.embed, np.eye(ELEMENTS, dtype=scene.x.dtype)[scene.elements])
        marks = self.marks(scene)
        if marks is not None:
            h = h + marks[:, None].astype(h.dtype) * self.embed.bias.detach().numpy()
        h = normed(self.norm, h)
        pairs = np.concatenate([h[target], h[source], squared / 2], axis=1)
        messages = np.tanh(linear(self.message, pairs))
        # The square root's slope is infinite at 0.
        steps = scene.apart / (np.sqrt(squared + 1e-12) + 1) * (1 + linear(self.gate, messages))
        receive = averaging(target, len(h), scene.x.dtype)
        received, vectors = receive @ messages, receive @ steps
        changes = linear(self.update, np.concatenate([h, received], axis=1))
        if self.dropout.training:
            changes = self.dropout(torch.from_numpy(changes)).numpy()
        h = normed(self.last_norm, h + np.tanh(changes))
        scalars = 1 + self.pooled(np.tanh(linear(self.head, h)), scene) / 2
        factor = self.factor(scene)
        if factor is not None:
            scalars = scalars * (1 + factor[:, None] * self.scales_scalars)
            vectors = vectors * (1 + factor[scene.batch, None] * self.scales_vectors)
        dtype = scene.x.dtype
        return (
            self.changed_scalars(scalars.astype(dtype), scene).astype(dtype),
            self.changed_vectors(vectors.astype(dtype), scene).astype(dtype),
        )


def linear(layer: nn.Linear, values: Floats) -> Floats:
    """What the layer gives."""
    product: Floats = values @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
    if torch.is_autocast_enabled("cpu"):  # around the call: a linear layer's result is bf16
        rounded = torch.from_numpy(product).to(torch.get_autocast_dtype("cpu"))
        product = rounded.to(torch.float32).numpy()
    return product


def normed(norm: nn.Module, values: Floats) -> Floats:
    """What the norm gives; a batch norm in training mode moves its statistics."""
    with torch.no_grad():
        result: Floats = norm(torch.from_numpy(values)).numpy()
    return result


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


def moved(scene: Scene, x: Floats) -> Scene:
    """The same graphs at other positions."""
    return Scene(
        scene.elements, x.astype(scene.x.dtype), scene.source, scene.target, scene.batch
    )


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
        lengths: Floats = np.linalg.norm(vectors, axis=1)[:, None]
        return lengths * np.array([1.0, 0.0, 0.0])


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
        return vectors[keys.argsort(kind="stable")]


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
        return (np.arange(len(scene.x)) == 0).astype(scene.x.dtype)


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


class SmallerChange(SmallChange):
    words = "changes its scalars by 6e-5 in a mirror"
    breaks = frozenset()


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


PARTS: dict[str, type[Network]] = {
    name: value
    for name, value in list(globals().items())
    if isinstance(value, type) and issubclass(value, Network)
}


def parts_of(case: Case) -> list[type[Network]]:
    """The classes that a case puts together."""
    return [PARTS[name] for name in case.parts] or [Network]


def network(case: Case) -> Network:
    """The network of a case, in training mode, with weights from the case's seed."""
    parts = parts_of(case)
    both: Callable[[Case], Network] = type("Both", tuple(parts), {})
    return both(case) if parts[1:] else parts[0](case)


def broken_by(case: Case) -> frozenset[str]:
    """The names of the symmetries that a case's network breaks."""
    return frozenset().union(*(part.breaks for part in parts_of(case)))


def described(case: Case) -> str:
    """What a case's network does: "clips coordinates, and adds a bias"."""
    words = ", and ".join(part.words for part in parts_of(case))
    if case.units != (1.0, 1.0):
        words += f" (scalars of about {case.units[0]:.0e}, vectors of {case.units[1]:.0e})"
    return words


def is_zero_somewhere(case: Case) -> bool:
    """Whether a case's scalars or vectors are all 0 on some rank."""
    return bool({"ZeroVectors", "ZeroScalars", "RareVectorsOnly"} & {*case.parts})
