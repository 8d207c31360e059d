"""A graph network that commutes with rotations: turn a molecule, and its outputs turn too.

The E(n)-equivariant network of Satorras, Hoogeboom and Welling (2021), equations 3 to 6:

    m_ij = phi_e(h_i, h_j, |x_i - x_j|^2, a_ij)             messages see distances only
    x_i' = x_i + C * sum_j (x_i - x_j) phi_x(m_ij)          moves along differences only
    m_i  = sum_j m_ij
    h_i' = phi_h(h_i, m_i)                                  features never see a coordinate

C is one over the number of neighbors. Here a difference is also divided by its length plus 1,
an invariant, so that a distant neighbor doesn't take the largest step.

E(n) includes reflections, so mirror images get the same features. A network that must tell a
drug from its enantiomer needs something that changes sign under reflection
(symmetry.signed_volume), and is then equivariant under SE(3) only.

    N  nodes of all graphs    E  edges    F  feature width    G  graphs in the batch
    h  features, (N, F)       x  positions, (N, 3)            a  edge features
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

# %%
# The square root's derivative at zero is infinite: two atoms at one place would give NaN.
TINY = 1e-12


def sum_by(values: Tensor, owners: Tensor, num_owners: int) -> Tensor:
    """Sum of the rows of each owner: (M, K) to (num_owners, K), added up in float32 or wider.

    In bf16 not every whole number above 256 exists, so even a count of neighbors is off.
    """
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    return wide.new_zeros(num_owners, values.shape[1]).index_add(0, owners, wide)


def mean_by(values: Tensor, owners: Tensor, num_owners: int) -> Tensor:
    """Mean of the rows of each owner; zeros for one without rows."""
    # Not bincount: on a GPU the host waits for it, to learn how long the result is.
    counts = sum_by(torch.ones_like(values[:, :1]), owners, num_owners)
    return (sum_by(values, owners, num_owners) / counts.clamp(min=1)).to(values.dtype)


class EquivariantLayer(nn.Module):
    """One round of messages: features and positions in, features and positions out."""

    def __init__(self, width: int, edge_dim: int = 0) -> None:
        super().__init__()
        # Invariant scalars may be normalized as anywhere. Positions may not: a layer norm
        # across x, y and z depends on the axes, and a bias moves along one of them.
        self.norm = nn.LayerNorm(width)
        self.message = nn.Sequential(
            nn.Linear(2 * width + 1 + edge_dim, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
        )
        self.move = nn.Sequential(
            nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1, bias=False)
        )
        self.update = nn.Sequential(
            nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width)
        )

    def squared_distances(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """|x_i - x_j|^2 of each edge, (E, 1), from differences.

        |x_i|^2 + |x_j|^2 - 2 x_i.x_j is the same on paper and one matmul, so TF32 and autocast
        round it; and it subtracts large numbers to get a small one.
        """
        source, target = edge_index
        return (x[target] - x[source]).square().sum(1, keepdim=True)

    def forward(
        self, h: Tensor, x: Tensor, edge_index: Tensor, edge_features: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """New features, (N, F), and each node's step, (N, 3)."""
        source, target = edge_index  # messages flow from source j to target i
        normed = self.norm(h)
        squared = self.squared_distances(x, edge_index)
        parts = [normed[target], normed[source], squared.to(normed.dtype)]
        if edge_features is not None:
            parts.append(edge_features)
        messages = self.message(torch.cat(parts, dim=1))  # (E, F)
        lengths = (squared + TINY).sqrt()
        steps = (x[target] - x[source]) / (lengths + 1) * self.move(messages).to(x.dtype)
        received = sum_by(messages, target, len(h)).to(normed.dtype)
        h = h + self.update(torch.cat([normed, received], dim=1))
        return h, mean_by(steps, target, len(x))


class GraphOutputs(NamedTuple):
    """What the network says about graphs and nodes, and where it moves the nodes."""

    graphs: Tensor  # (G, K), invariant
    nodes: Tensor  # (N, F), invariant
    displacements: Tensor  # (N, 3), vectors: they turn with the input
    positions: Tensor  # (N, 3), points: the input plus its displacements


class EquivariantNetwork(nn.Module):
    """An EGNN over block-diagonal batches, with an invariant output per graph.

    Args:
        feature_dim: width of the input features, which must be invariant: atom types, charges.
            Absolute coordinates among them break every symmetry.
        num_outputs: K, values per graph.
        edge_dim: width of the edge features, such as one-hot bond types.
    """

    layer_type = EquivariantLayer

    def __init__(
        self,
        feature_dim: int,
        width: int,
        num_layers: int,
        num_outputs: int,
        *,
        edge_dim: int = 0,
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(feature_dim, width)
        self.layers = nn.ModuleList(self.layer_type(width, edge_dim) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(
            nn.Linear(width + 1, width), nn.SiLU(), nn.Linear(width, num_outputs)
        )

    def forward(
        self,
        features: Tensor,
        positions: Tensor,
        edge_index: Tensor,
        batch: Tensor,
        num_graphs: int,
        edge_features: Tensor | None = None,
    ) -> GraphOutputs:
        """Outputs of all graphs.

        Args:
            edge_index: (2, E), source and target; no edge joins two graphs.
            batch: (N,), which graph a node belongs to.
            num_graphs: G; counting them in ``batch`` would make the host wait for the device.
        """
        # The mean over a graph's own nodes turns with the graph, and depends neither on which
        # node comes first nor on what else is in the batch. Far from the origin, positions in
        # float32 have fewer digits left for differences.
        center = mean_by(positions, batch, num_graphs)[batch]
        start = positions - center
        h, displacements = self.embed(features), torch.zeros_like(start)
        for layer in self.layers:
            h, steps = layer(h, start + displacements, edge_index, edge_features)
            displacements = displacements + steps
        h = self.norm(h)
        # With the squared lengths of the displacements (invariant), every parameter reaches the
        # graphs' outputs; otherwise DDP would wait for the gradient of the last layer's move.
        lengths = displacements.square().sum(1, keepdim=True).to(h.dtype)
        graphs = mean_by(self.head(torch.cat([h, lengths], dim=1)), batch, num_graphs)
        return GraphOutputs(graphs, h, displacements, positions + displacements)
