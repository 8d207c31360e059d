"""What TF32 and bf16 do to a symmetry, and which parts to keep in float32.

The question it answers: "you turned on mixed precision; which part of an equivariant network
must not see it?" Coordinates, differences, distances and norms stay in float32. Features,
messages and weights may be rounded: a rotated molecule has the same distances up to 1e-7, so it
gets (nearly) the same rounded messages.

    fp32: 24 significant bits     TF32: 11, in matmuls only     bf16: 8
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# %% active="py"
from trainer_core.bio.equivariant import EquivariantLayer, EquivariantNetwork
from trainer_core.bio.symmetry import PointGraph, symmetry_report


# %%
def round_to_tf32(values: Tensor) -> Tensor:
    """float32 numbers with their mantissa rounded to 10 bits, to the nearest."""
    bits = values.contiguous().view(torch.int32)
    # Half of the last bit that stays, then the 13 bits below it are cut off. Infinities and
    # NaN have no mantissa to round.
    rounded = ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
    return torch.where(values.isfinite(), rounded, values)


class EmulatedTF32(TorchDispatchMode):
    """An emulation on any device: inside, float32 matmuls round their factors as TF32 does.

    A GPU's tensor cores also add up in their own order, which this doesn't imitate.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.overloadpacket.__name__ in ("mm", "bmm", "addmm", "baddbmm"):
            *bias, a, b = args
            if a.dtype == torch.float32:
                args = (*bias, round_to_tf32(a), round_to_tf32(b))
        return func(*args, **(kwargs or {}))


@contextmanager
def real_tf32() -> Iterator[None]:
    """On a GPU: float32 matmuls in TF32, as ``torch.set_float32_matmul_precision("high")``."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def tf32(device: torch.device) -> AbstractContextManager[Any]:
    """The GPU's switch on a GPU, an emulation elsewhere."""
    emulation: Callable[[], AbstractContextManager[Any]] = EmulatedTF32
    return real_tf32() if device.type == "cuda" else emulation()


# %%
class GramLayer(EquivariantLayer):
    """A layer that gets its distances from a matmul, as fast code for all pairs does."""

    def squared_distances(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """|x_i|^2 + |x_j|^2 - 2 x_i.x_j of each edge, (E, 1)."""
        source, target = edge_index
        products = (x @ x.T).to(x.dtype)
        norms = x.square().sum(1)
        squared = norms[target] + norms[source] - 2 * products[target, source]
        return squared.clamp(min=0)[:, None]  # rounding makes some of them negative


class GramNetwork(EquivariantNetwork):
    """The same network and the same weights, with distances from a matmul."""

    layer_type = GramLayer


class PrecisionRow(NamedTuple):
    """A precision, what it rounds, and the largest error of each symmetry."""

    precision: str
    distances: str
    errors: dict[str, float]


def precision_rows(device: torch.device | None = None, seed: int = 0) -> list[PrecisionRow]:
    """Equivariance errors of a small network's displacements, by precision.

    Displacements, because positions hide them: a network that hardly moves an atom returns
    nearly its input, and that is equivariant whatever the network does.
    """
    device = device or torch.device("cpu")
    name = "TF32" if device.type == "cuda" else "TF32 (emulated)"
    autocast = torch.autocast(device.type, torch.bfloat16)
    half, single = torch.bfloat16, torch.float32
    # Precision, what is on while it runs, the network, the type of weights, that of positions.
    settings: list[tuple[str, Callable[[], Any], type, torch.dtype, torch.dtype]] = [
        ("fp64", nullcontext, EquivariantNetwork, torch.float64, torch.float64),
        ("fp32", nullcontext, EquivariantNetwork, single, single),
        (name, lambda: tf32(device), EquivariantNetwork, single, single),
        (name, lambda: tf32(device), GramNetwork, single, single),
        ("bf16 autocast", lambda: autocast, EquivariantNetwork, single, single),
        ("bf16 autocast", lambda: autocast, GramNetwork, single, single),
        ("bf16 weights, fp32 positions", nullcontext, EquivariantNetwork, half, single),
        ("bf16 weights and positions", nullcontext, EquivariantNetwork, half, half),
    ]
    rows = []
    for precision, switch, network, weights, positions in settings:
        torch.manual_seed(seed)
        graph = two_molecules(device)
        graph = graph._replace(
            features=graph.features.to(weights), positions=graph.positions.to(positions)
        )
        model = network(4, 32, 3, 1).to(device, weights)

        def displacements(
            moved: PointGraph, model: Any = model, switch: Any = switch
        ) -> Tensor:
            with switch():
                result: Tensor = model(*moved, num_graphs=2).displacements
            return result

        errors = symmetry_report(displacements, graph, "node vectors")
        how = "matmul" if network is GramNetwork else "differences"
        rows.append(PrecisionRow(precision, how, errors))
    return rows


def two_molecules(device: torch.device) -> PointGraph:
    """Random clouds of 12 and 9 atoms, some 1.5 Angstrom apart, each with all its edges."""
    sizes = (12, 9)
    batch = torch.repeat_interleave(torch.arange(2), torch.tensor(sizes))
    joined = batch[:, None] == batch[None, :]
    joined.fill_diagonal_(False)
    graph = PointGraph(
        torch.nn.functional.one_hot(torch.randint(4, (sum(sizes),)), 4).float(),
        2.5 * torch.randn(sum(sizes), 3),
        joined.nonzero().T.contiguous(),
        batch,
    )
    return PointGraph(*(tensor.to(device) for tensor in graph))


def precision_table(rows: list[PrecisionRow]) -> str:
    """The rows as text, for a chapter."""
    symmetries = list(rows[0].errors)
    lines = [f"{'precision':30}{'distances':13}" + "".join(f"{s:>13}" for s in symmetries)]
    for row in rows:
        cells = "".join(f"{row.errors[symmetry]:13.1e}" for symmetry in symmetries)
        lines.append(f"{row.precision:30}{row.distances:13}{cells}")
    return "\n".join(lines)
