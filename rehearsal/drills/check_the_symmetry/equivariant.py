"""An equivariant network, whose steps a part of it can override.

From outside, it is an ``nn.Module`` in torch. Inside it calculates in numpy, in the type of its
weights: for twenty nodes that takes a tenth of the time, and a check needs a thousand calls.

    N  nodes    E  edges    F  features    G  graphs    W  width    K  scalars of a graph
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .plan import ELEMENTS, Case
from .scene import Floats, Scene, averaging

WIDTH = 8


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
