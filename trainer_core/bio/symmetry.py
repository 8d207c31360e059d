"""Does a network respect the symmetries of space? One number for each of them.

The question it answers: "you changed the precision; is it still equivariant?" A network f is
equivariant if f(R x) = R f(x) for every motion R. The error reported is

    |f(R x) - R f(x)| / |f(x)|

    N  nodes    R  a motion: turn or reflect, then shift, then renumber the nodes
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

# %% active="py"
from trainer_core.settings import UserError


# %%
class PointGraph(NamedTuple):
    """What a motion acts on; a network that needs less ignores the rest."""

    features: Tensor  # (N, F), invariant
    positions: Tensor  # (N, 3)
    edge_index: Tensor  # (2, E)
    batch: Tensor  # (N,), which graph a node belongs to


class Motion(NamedTuple):
    """An orthogonal matrix (a reflection if its determinant is -1), a shift, and an order."""

    rotation: Tensor  # (3, 3)
    shift: Tensor  # (3,)
    order: Tensor  # (N,), node i of the result was node order[i]

    def of_vectors(self, vectors: Tensor) -> Tensor:
        """Turned, not shifted: a force or a dipole has a direction and no place."""
        return vectors @ self.rotation.to(vectors).T

    def of_points(self, points: Tensor) -> Tensor:
        """Turned and shifted."""
        return self.of_vectors(points) + self.shift.to(points)

    def of_graph(self, graph: PointGraph) -> PointGraph:
        """The moved graph: the same molecule, written down by somebody else."""
        order = self.order.to(graph.edge_index.device)
        places = order.argsort()  # where each old node went
        return PointGraph(
            graph.features[order],
            self.of_points(graph.positions)[order],
            places[graph.edge_index],
            graph.batch[order],
        )


# How an output should follow a motion. Scalars stay; vectors turn; points turn and shift. What
# belongs to nodes is renumbered with them.
Kind = Literal["graph scalars", "graph vectors", "node scalars", "node vectors", "node points"]


def moved_output(output: Tensor, motion: Motion, kind: Kind) -> Tensor:
    """R f(x): what f should return for the moved graph."""
    owner, _, what = kind.partition(" ")
    if what == "vectors":
        output = motion.of_vectors(output)
    elif what == "points":
        output = motion.of_points(output)
    return output[motion.order] if owner == "node" else output


def equivariance_error(
    f: Callable[[PointGraph], Tensor], graph: PointGraph, motion: Motion, kind: Kind
) -> float:
    """Relative error |f(R x) - R f(x)| / |f(x)|.

    The comparison runs in float64, so what is measured is f's rounding and not its own.
    The output's mean is subtracted from points in the denominator: else a molecule far from the
    origin would look better than it is.

    Args:
        f: in evaluation mode; dropout makes two calls differ.
        kind: how the output should follow the motion.

    Raises:
        UserError: if the output is all zeros: any function passes that test.
    """
    with torch.no_grad():
        output = f(graph).double()
        moved = f(motion.of_graph(graph)).double()
    scale = (output - output.mean(0) if kind.endswith("points") else output).norm()
    if scale == 0:
        raise UserError(
            f"the output ({kind}) is zero, so every motion leaves it as it is and the test "
            "can't fail. Test it with inputs that give an output."
        )
    return float((moved - moved_output(output, motion, kind)).norm() / scale)


# %%
def rotation_matrix(quaternion: Tensor) -> Tensor:
    """The rotation of a quaternion (w, x, y, z) other than zero; (3, 3), in float64.

    Four normally distributed numbers give uniformly distributed rotations. Three uniform Euler
    angles don't: they crowd at the poles.
    """
    w, x, y, z = (quaternion.double() / quaternion.double().norm()).tolist()
    return torch.tensor(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ],
        dtype=torch.float64,
    )


def single_motions(num_nodes: int, seed: int) -> dict[str, Motion]:
    """A random rotation, translation, reflection and permutation, each alone.

    Alone, because the one that fails names the bug.
    """
    draw = torch.Generator().manual_seed(seed)
    rotation = rotation_matrix(torch.randn(4, generator=draw))
    mirror = torch.diag(torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64))
    still, here = torch.eye(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    order = torch.arange(num_nodes)
    return {
        "rotation": Motion(rotation, here, order),
        "translation": Motion(still, 10 * torch.randn(3, generator=draw).double(), order),
        "reflection": Motion(rotation @ mirror, here, order),
        "permutation": Motion(still, here, torch.randperm(num_nodes, generator=draw)),
    }


def symmetry_report(
    f: Callable[[PointGraph], Tensor], graph: PointGraph, kind: Kind, *, num_draws: int = 4
) -> dict[str, float]:
    """The largest equivariance error over some draws of each symmetry, by its name."""
    draws = [single_motions(len(graph.positions), seed) for seed in range(num_draws)]
    return {
        name: max(equivariance_error(f, graph, motions[name], kind) for motions in draws)
        for name in draws[0]
    }


def signed_volume(points: Tensor) -> Tensor:
    """Six times the signed volume of tetrahedra, (..., 4, 3): the sign is the handedness.

    Invariant under SE(3), not under E(3): rotations keep it, reflections flip it. Distances,
    angles and everything else that an E(3)-invariant network can compute are the same for both.
    """
    edges = points[..., 1:, :] - points[..., :1, :]
    volumes: Tensor = torch.linalg.det(edges)
    return volumes


def padding_error(
    f: Callable[[Tensor, Tensor], Tensor], values: Tensor, mask: Tensor, extra: int = 8
) -> float:
    """Relative change of f(values, mask) when each sample gets ``extra`` more rows of padding.

    For networks on padded batches: how much padding there is depends on the largest sample of
    the batch, so an output that changes with it isn't a function of its own sample.

    Args:
        values: (B, N, F), zeros where there is padding; mask: (B, N), true at real rows.
    """
    with torch.no_grad():
        output = f(values, mask).double()
        padding = values.new_zeros(len(values), extra, values.shape[2])
        more = torch.cat([mask, mask.new_zeros(len(mask), extra)], dim=1)
        padded = f(torch.cat([values, padding], dim=1), more).double()
    return float((padded - output).norm() / output.norm())
