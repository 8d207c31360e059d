"""Which networks commute with motions, which only seem to, and what precision does to it."""

from __future__ import annotations

import contextlib
import importlib
import math
import warnings
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn
from torch.nn import functional as F
from trainer_core.bio.equivariant import EquivariantNetwork, mean_by, sum_by
from trainer_core.bio.geometry_precision import (
    EmulatedTF32,
    precision_rows,
    precision_table,
    real_tf32,
    round_to_tf32,
    two_molecules,
)
from trainer_core.bio.symmetry import (
    Motion,
    PointGraph,
    equivariance_error,
    moved_output,
    padding_error,
    rotation_matrix,
    signed_volume,
    single_motions,
    symmetry_report,
)
from trainer_core.settings import UserError

CPU = torch.device("cpu")
SYMMETRIES = ["rotation", "translation", "reflection", "permutation"]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}

Network = Callable[[PointGraph], Tensor]


def oracle(module: str) -> Any:
    """A library of the field; importing some of them takes seconds and warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module(module)


def molecules(dtype: torch.dtype = torch.float64, seed: int = 0) -> PointGraph:
    torch.manual_seed(seed)
    graph = two_molecules(CPU)
    return graph._replace(
        features=graph.features.to(dtype), positions=graph.positions.to(dtype)
    )


def network_of(dtype: torch.dtype = torch.float64, **sizes: int) -> EquivariantNetwork:
    torch.manual_seed(1)
    return EquivariantNetwork(4, 16, 3, 2, **sizes).to(dtype)


def output(model: nn.Module, name: str) -> Network:
    return lambda graph: getattr(model(*graph, num_graphs=2), name)


def broken(report: dict[str, float], bound: float = 1e-3) -> set[str]:
    """The symmetries that are off by far; the others must hold to rounding."""
    found = {name for name, error in report.items() if error > bound}
    assert all(report[name] < 1e-12 for name in set(report) - found), report
    return found


quaternions = st.tuples(*[st.floats(-1, 1)] * 4).filter(lambda q: math.hypot(*q) > 0.1)
shifts = st.tuples(*[st.floats(-20, 20)] * 3)


def motion_of(
    quaternion: tuple[float, ...], is_mirrored: bool, shift: tuple[float, ...], seed: int
) -> Motion:
    rotation = rotation_matrix(torch.tensor(quaternion))
    order = torch.randperm(21, generator=torch.Generator().manual_seed(seed))
    return Motion(-rotation if is_mirrored else rotation, torch.tensor(shift).double(), order)


OUTPUTS = [
    ("graphs", "graph scalars"),
    ("nodes", "node scalars"),
    ("displacements", "node vectors"),
    ("positions", "node points"),
]


class TestEquivariantNetwork:
    @pytest.mark.parametrize("dtype", TOLERANCE)
    @settings(max_examples=15)
    @given(
        quaternion=quaternions, is_mirrored=st.booleans(), shift=shifts, seed=st.integers(0, 99)
    )
    def test_every_output_follows_any_motion(
        self,
        dtype: torch.dtype,
        quaternion: tuple[float, ...],
        is_mirrored: bool,
        shift: tuple[float, ...],
        seed: int,
    ) -> None:
        """A prediction that depends on how the molecule lies has learned the file format."""
        graph, model = molecules(dtype), network_of(dtype)
        motion = motion_of(quaternion, is_mirrored, shift, seed)
        for name, kind in OUTPUTS:
            error = equivariance_error(output(model, name), graph, motion, kind)
            assert error <= TOLERANCE[dtype], name

    def test_gradients_of_an_energy_turn_like_forces(self) -> None:
        """Forces that don't turn with the molecule make energy out of nothing."""
        model = network_of()

        def forces(graph: PointGraph) -> Tensor:
            with torch.enable_grad():
                positions = graph.positions.detach().clone().requires_grad_()
                energy = model(*graph._replace(positions=positions), num_graphs=2).graphs
                return -torch.autograd.grad(energy[:, 0].sum(), positions)[0]

        assert broken(symmetry_report(forces, molecules(), "node vectors")) == set()

    def test_a_graph_gets_the_same_output_alone_and_in_a_batch(self) -> None:
        """A block-diagonal batch is a way to compute, and must not be a feature."""
        graph, model = molecules(), network_of()
        together = model(*graph, num_graphs=2)
        for number in (0, 1):
            nodes = graph.batch == number
            edges = nodes[graph.edge_index[0]]
            alone = model(
                graph.features[nodes],
                graph.positions[nodes],
                graph.edge_index[:, edges] - int(nodes.nonzero()[0]),
                graph.batch[nodes] - number,
                1,
            )
            assert torch.allclose(alone.graphs[0], together.graphs[number], atol=1e-12)
            assert torch.allclose(alone.positions, together.positions[nodes], atol=1e-12)

    def test_messages_flow_from_source_to_target(self) -> None:
        """With the rows of edge_index swapped, a directed edge informs the wrong atom."""
        graph, model = molecules(), network_of()
        one_edge = graph._replace(edge_index=torch.tensor([[3], [5]]))
        moved = model(*one_edge, num_graphs=2).displacements.abs().sum(1).nonzero()
        assert moved.flatten().tolist() == [5]

    def test_each_layer_starts_where_the_one_before_has_moved_the_atoms(self) -> None:
        """A layer whose step is lost changes nothing that a symmetry could show."""
        graph, model = molecules(), network_of()
        h, x = model.embed(graph.features), graph.positions
        for layer in model.layers:
            h, steps = layer(h, x, graph.edge_index, None)
            x = x + steps
        outputs = model(*graph, num_graphs=2)
        assert torch.allclose(outputs.positions, x, atol=1e-10)
        assert torch.allclose(outputs.displacements, x - graph.positions, atol=1e-10)
        assert torch.allclose(outputs.nodes, model.norm(h), atol=1e-10)

    def test_molecules_far_from_the_origin_and_from_each_other_lose_no_digits(self) -> None:
        """A step of 0.001 Angstrom from x = 65,536 is no step in float32."""
        graph, model = molecules(torch.float32), network_of(torch.float32)
        here = graph._replace(positions=(8 * graph.positions).round() / 8)
        far = here.positions + torch.tensor([-65_536.0, 65_536.0])[graph.batch, None]
        wanted = model(*here, num_graphs=2).displacements
        found = model(*here._replace(positions=far), num_graphs=2).displacements
        assert (found - wanted).norm() < 1e-5 * wanted.norm()

    def test_edge_features_reach_the_messages(self) -> None:
        """A bond's type that is read and dropped looks like a feature that doesn't help."""
        graph, model = molecules(), network_of(edge_dim=3)
        outputs = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            bonds = torch.rand(graph.edge_index.shape[1], 3).double()
            outputs.append(model(*graph, num_graphs=2, edge_features=bonds).graphs)
        assert torch.equal(outputs[0], outputs[1])
        assert not torch.allclose(outputs[0], outputs[2])

    def test_atoms_at_one_place_and_graphs_without_atoms_give_numbers(self) -> None:
        """One bad conformer turns all gradients into NaN, of all molecules in the step."""
        graph, model = molecules(), network_of()
        positions = graph.positions.clone()
        positions[1] = positions[0]
        positions.requires_grad_()
        outputs = model(*graph._replace(positions=positions), num_graphs=3)
        assert outputs.graphs.shape == (3, 2)
        assert not outputs.graphs[2].any()
        outputs.graphs.sum().backward()
        assert positions.grad is not None
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        assert positions.grad.isfinite().all()

    def test_an_empty_batch_and_a_single_ion_go_through(self) -> None:
        """A rank without graphs still has to join the sync, and an ion has no neighbors."""
        model = network_of()
        index = torch.zeros(2, 0, dtype=torch.long)
        for num_nodes in (0, 1):
            nodes = torch.ones(num_nodes, 4).double(), torch.ones(num_nodes, 3).double()
            outputs = model(*nodes, index, index.new_zeros(num_nodes), num_nodes)
            outputs.graphs.sum().backward()
            assert outputs.graphs.shape == (num_nodes, 2)
            assert torch.equal(outputs.positions, nodes[1])
            assert outputs.graphs.isfinite().all()
            model.zero_grad(set_to_none=num_nodes == 0)

    def test_mean_over_nodes_is_that_of_pytorch_geometric(self) -> None:
        """Divided by the batch's nodes instead, each molecule depends on the others' sizes."""
        values, owners = torch.randn(21, 5).double(), molecules().batch
        wanted = oracle("torch_geometric.nn").global_mean_pool(values, owners)
        assert torch.allclose(mean_by(values, owners, 2), wanted)

    def test_sums_of_bf16_are_not_kept_in_bf16(self) -> None:
        """A bf16 number has 8 bits, so 1001 residues would count as 1000."""
        ones, owners = torch.ones(1001, 1).bfloat16(), torch.zeros(1001, dtype=torch.long)
        assert sum_by(ones, owners, 1).item() == 1001
        assert mean_by(ones, owners, 1).dtype == torch.bfloat16

    def test_every_parameter_reaches_the_graphs_outputs(self) -> None:
        """DDP waits for the gradient of a parameter that the loss doesn't use, or raises."""
        model = network_of()
        model(*molecules(), num_graphs=2).graphs.sum().backward()
        unused = [name for name, p in model.named_parameters() if p.grad is None]
        assert unused == []
        assert all(p.grad.any() for p in model.parameters() if p.grad is not None)

    def test_a_layer_is_the_paper_s_written_with_pytorch_geometric(self) -> None:
        """Two sums over edges are easily swapped, and the network still trains."""
        graph, model = molecules(), network_of()
        layer: Any = model.layers[0]

        h, x, (source, target) = model.embed(graph.features), graph.positions, graph.edge_index
        normed, gap = layer.norm(h), x[target] - x[source]
        length = gap.norm(dim=1, keepdim=True)
        messages = layer.message(torch.cat([normed[target], normed[source], length**2], dim=1))
        steps = gap / (length + 1) * layer.move(messages)
        scatter = oracle("torch_geometric.utils").scatter
        summed = scatter(messages, target, dim_size=len(x), reduce="sum")
        averaged = scatter(steps, target, dim_size=len(x), reduce="mean")
        ours = layer(h, x, graph.edge_index, None)
        update = layer.update(torch.cat([normed, summed], dim=1))
        assert torch.allclose(ours[0], h + update, atol=1e-10)
        assert torch.allclose(ours[1], averaged, atol=1e-10)


def with_features(model: nn.Module, change: Callable[[PointGraph], PointGraph]) -> Network:
    return lambda graph: model(*change(graph), num_graphs=2).displacements


def changed_output(change: Callable[[Tensor], Tensor]) -> Network:
    model = network_of()
    return lambda graph: change(model(*graph, num_graphs=2).displacements)


def absolute_coordinates() -> Network:
    torch.manual_seed(1)
    model = EquivariantNetwork(7, 16, 3, 2).double()
    return with_features(
        model, lambda g: g._replace(features=torch.cat([g.features, g.positions], dim=1))
    )


def per_axis_scaling() -> Network:
    return with_features(
        network_of(), lambda g: g._replace(positions=g.positions / g.positions.std(dim=0))
    )


def scaling_by_the_norm() -> Network:
    def change(graph: PointGraph) -> PointGraph:
        centered = graph.positions - graph.positions.mean(0)
        return graph._replace(positions=centered / centered.norm())

    return with_features(network_of(), change)


def relative_to_the_first_atom() -> Network:
    torch.manual_seed(1)
    model = EquivariantNetwork(5, 16, 3, 2).double()

    def change(graph: PointGraph) -> PointGraph:
        radii = (graph.positions - graph.positions[0]).norm(dim=1, keepdim=True)
        return graph._replace(features=torch.cat([graph.features, radii], dim=1))

    return with_features(model, change)


def plus_the_handedness() -> Network:
    """SE(3): a displacement along the cross product of two differences."""
    model = network_of()

    def f(graph: PointGraph) -> Tensor:
        steps: Tensor = model(*graph, num_graphs=2).displacements
        centered = graph.positions - mean_by(graph.positions, graph.batch, 2)[graph.batch]
        return steps + 0.1 * torch.linalg.cross(centered, steps)

    return f


NEAR_MISSES: dict[str, tuple[Callable[[], Network], set[str]]] = {
    "absolute coordinates as features": (
        absolute_coordinates,
        {"rotation", "translation", "reflection"},
    ),
    "per-axis scaling": (per_axis_scaling, {"rotation", "reflection"}),
    "a bias on a vector": (
        lambda: changed_output(lambda v: v + 0.01),
        {"rotation", "reflection"},
    ),
    "layer norm across x, y, z": (
        lambda: changed_output(lambda v: F.layer_norm(v, (3,))),
        {"rotation", "reflection"},
    ),
    "a nonlinearity on components": (
        lambda: changed_output(lambda v: v.relu()),
        {"rotation", "reflection"},
    ),
    "relative to the first atom": (relative_to_the_first_atom, {"permutation"}),
    "a cross product": (plus_the_handedness, {"reflection"}),
    "scaling by an invariant norm": (scaling_by_the_norm, set()),
    "normalized by the vector's length": (
        lambda: changed_output(lambda v: v / (v.norm(dim=1, keepdim=True) + 1)),
        set(),
    ),
}


class TestNearMisses:
    @pytest.mark.parametrize("name", NEAR_MISSES)
    def test_the_report_names_the_symmetry_that_is_broken(self, name: str) -> None:
        """All of them train, and all of them pass a test that rotates nothing."""
        make, expected = NEAR_MISSES[name]
        assert broken(symmetry_report(make(), molecules(), "node vectors")) == expected

    def test_batch_norm_over_padding_depends_on_the_padding(self) -> None:
        """A molecule's prediction then depends on the largest molecule in its batch."""
        torch.manual_seed(0)
        values, mask = torch.randn(2, 5, 4).double(), torch.ones(2, 5, dtype=torch.bool)
        mask[1, 3:] = False
        values[~mask] = 0
        norm = nn.BatchNorm1d(4).double()

        def over_padding(values: Tensor, mask: Tensor) -> Tensor:
            normed = norm(values.flatten(0, 1)).view_as(values) * mask[..., None]
            return normed.square().sum(1)

        def over_atoms(values: Tensor, mask: Tensor) -> Tensor:
            normed = torch.zeros_like(values)
            normed[mask] = norm(values[mask])
            return normed.square().sum(1)

        assert padding_error(over_padding, values, mask) > 0.1
        assert padding_error(over_atoms, values, mask) < 1e-12

    def test_mirror_images_look_the_same_to_a_reflection_equivariant_network(self) -> None:
        """A drug and its enantiomer may act differently; E(n) predicts the same for both."""
        places = torch.tensor(
            [[0, 0, 0], [1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]], dtype=torch.float64
        )
        kinds = torch.eye(5, dtype=torch.float64)  # carbon with four different neighbors
        edges = (1 - torch.eye(5)).nonzero().T
        torch.manual_seed(0)
        model = EquivariantNetwork(5, 16, 3, 2).double()
        batch = torch.zeros(5, dtype=torch.long)
        left = PointGraph(kinds, places, edges, batch)
        right = left._replace(positions=places * torch.tensor([-1.0, 1, 1]).double())
        same = [model(*graph, num_graphs=1).graphs for graph in (left, right)]
        assert torch.allclose(*same, atol=1e-12)
        volumes = [signed_volume(graph.positions[1:]) for graph in (left, right)]
        assert volumes[0] == -volumes[1] != 0
        turned = left.positions @ rotation_matrix(torch.tensor([1.0, 2, 3, 4])).T
        assert torch.allclose(signed_volume(turned[1:]), volumes[0])


class TestReport:
    def test_a_zero_output_is_refused(self) -> None:
        """Zero equals zero under every motion: the test would pass and check nothing."""
        with pytest.raises(UserError, match=r"the output \(node vectors\) is zero"):
            symmetry_report(lambda g: 0 * g.positions, molecules(), "node vectors")

    def test_what_should_turn_and_what_should_not_are_told_apart(self) -> None:
        """A vector declared as a scalar would pass if it were ignored."""
        centered: Network = lambda g: g.positions - g.positions.mean(0)  # noqa: E731
        assert broken(symmetry_report(centered, molecules(), "node vectors")) == set()
        as_scalars = symmetry_report(centered, molecules(), "node scalars")
        assert broken(as_scalars) == {"rotation", "reflection"}
        as_points = symmetry_report(centered, molecules(), "node points")
        assert broken(as_points) == {"translation"}
        in_graphs: Network = lambda g: mean_by(g.positions - g.positions[:1], g.batch, 2)  # noqa: E731
        assert broken(symmetry_report(in_graphs, molecules(), "graph vectors")) == {
            "permutation"
        }

    def test_positions_hide_a_broken_displacement(self) -> None:
        """A network that hardly moves an atom returns its input, which is equivariant."""
        model = network_of()

        def positions(graph: PointGraph) -> Tensor:
            result = model(*graph, num_graphs=2)
            return result.positions - result.displacements + 1e-3 * result.displacements.relu()

        report = symmetry_report(positions, molecules(), "node points")
        assert report["rotation"] < 1e-4
        far = molecules()._replace(positions=molecules().positions + 1000)
        report_far = symmetry_report(positions, far, "node points")
        assert report_far["rotation"] == pytest.approx(report["rotation"], rel=1e-3)

    def test_each_motion_does_one_thing(self) -> None:
        """A rotation that also mirrors blames the wrong symmetry."""
        motions = single_motions(9, 0)
        assert list(motions) == SYMMETRIES
        eye = torch.eye(3).double()
        determinants = {name: m.rotation.det().item() for name, m in motions.items()}
        assert determinants == pytest.approx(
            {"rotation": 1, "translation": 1, "reflection": -1, "permutation": 1}
        )
        for name, motion in motions.items():
            assert torch.allclose(motion.rotation @ motion.rotation.T, eye)
            assert torch.equal(motion.rotation, eye) == (name in ("translation", "permutation"))
            assert bool(motion.shift.any()) == (name == "translation")
            assert torch.equal(motion.order, torch.arange(9)) == (name != "permutation")

    def test_edges_follow_their_nodes_through_a_permutation(self) -> None:
        """Renumbered atoms with the old edges are another molecule."""
        graph = molecules()
        moved = single_motions(21, 3)["permutation"].of_graph(graph)
        for tensor, after in ((graph.features, moved.features), (graph.batch, moved.batch)):
            ends = tensor[graph.edge_index[0]], after[moved.edge_index[0]]
            assert torch.equal(*ends)
        gaps = [
            g.positions[g.edge_index[0]] - g.positions[g.edge_index[1]] for g in (graph, moved)
        ]
        assert torch.equal(*gaps)


class TestAgainstE3nn:
    def test_our_rotations_act_on_spherical_harmonics_like_wigner_d(self) -> None:
        """A matrix that is transposed passes every test made with its own transpose."""
        o3, points = oracle("e3nn.o3"), torch.randn(7, 3).double()
        for seed in range(3):  # e3nn makes its matrices from constants in float32
            motion = single_motions(1, seed)["rotation"]
            for degree in (1, 2):
                irrep = o3.Irrep(degree, (-1) ** degree)
                matrix = irrep.D_from_matrix(motion.rotation)
                moved = o3.spherical_harmonics(
                    degree, motion.of_vectors(points), normalize=False
                )
                still = o3.spherical_harmonics(degree, points, normalize=False)
                assert torch.allclose(moved, still @ matrix.T, atol=1e-5)

    def test_quaternions_are_those_of_e3nn(self) -> None:
        """The order (w, x, y, z) is a convention that half of all libraries don't share."""
        o3 = oracle("e3nn.o3")
        for one in o3.rand_quaternion(5).double():
            assert torch.allclose(rotation_matrix(one), o3.quaternion_to_matrix(one), atol=1e-6)

    @pytest.mark.parametrize("is_broken", [False, True])
    def test_a_network_of_e3nn_passes_and_a_broken_one_fails(self, is_broken: bool) -> None:
        """A check that only our own network passes may check our own conventions."""
        e3nn, o3 = oracle("e3nn"), oracle("e3nn.o3")
        mid = o3.Irreps("4x0e + 4x1o")
        sphere = o3.Irreps("1x0e + 1x1o")
        with torch.random.fork_rng():
            torch.manual_seed(0)
            modes = e3nn.get_optimization_defaults()
            e3nn.set_optimization_defaults(jit_script_fx=False)
            product = o3.FullyConnectedTensorProduct(
                "4x0e", sphere, mid, shared_weights=True
            ).double()
            last = o3.Linear(mid, o3.Irreps("1x1o")).double()
            e3nn.set_optimization_defaults(**modes)

        def f(graph: PointGraph) -> Tensor:
            source, target = graph.edge_index
            gaps = graph.positions[target] - graph.positions[source]
            harmonics = o3.spherical_harmonics(sphere, gaps, normalize=True)
            messages = (
                product(graph.features[source], harmonics) / (1 + gaps.norm(dim=1))[:, None]
            )
            received = mean_by(messages, target, len(graph.positions))
            return last(received.relu() if is_broken else received)

        expected = {"rotation", "reflection"} if is_broken else set()
        assert broken(symmetry_report(f, molecules(), "node vectors")) == expected


class TestPrecision:
    @pytest.fixture
    def errors(self) -> dict[tuple[str, str], float]:
        rows = precision_rows()
        table = precision_table(rows).splitlines()
        assert table[0].split() == ["precision", "distances", *SYMMETRIES]
        assert len(table) == len(rows) + 1
        return {(row.precision, row.distances): row.errors["rotation"] for row in rows}

    def test_rounded_messages_keep_the_symmetry_and_rounded_distances_break_it(
        self, errors: dict[tuple[str, str], float]
    ) -> None:
        """Mixed precision is either given up or trusted, when one line decides."""
        assert errors["fp64", "differences"] < 1e-12
        assert errors["fp32", "differences"] < 1e-5
        for precision in ("TF32 (emulated)", "bf16 autocast"):
            assert errors[precision, "differences"] < 1e-4
        assert errors["bf16 weights, fp32 positions", "differences"] < 1e-4
        assert 1e-4 < errors["TF32 (emulated)", "matmul"] < 1e-2
        assert 1e-3 < errors["bf16 autocast", "matmul"] < 0.1
        assert 1e-3 < errors["bf16 weights and positions", "differences"] < 0.1

    def test_rounding_to_tf32_keeps_ten_bits_of_the_mantissa(self) -> None:
        """An emulation that rounds elsewhere shows a number that no GPU shows."""
        step = 2.0**-10
        values = torch.tensor([1 + 0.49 * step, 1 + 0.5 * step, -1 - 0.51 * step, 3e38, 0.0])
        rounded = round_to_tf32(values)
        assert rounded[:3].tolist() == [1, 1 + step, -1 - step]
        assert rounded[4] == 0
        odd = torch.tensor([torch.inf, -torch.inf])
        assert torch.equal(round_to_tf32(odd), odd)
        assert round_to_tf32(torch.tensor([torch.nan])).isnan().all()
        draws = torch.randn(1000)
        assert torch.equal(round_to_tf32(draws.bfloat16().float()), draws.bfloat16().float())
        assert ((round_to_tf32(draws) - draws).abs() <= draws.abs() * 2.0**-11).all()

    def test_the_emulation_rounds_the_factors_of_every_matmul(self) -> None:
        """A matmul that it misses keeps float32's digits, and the symmetry with them."""
        torch.manual_seed(0)
        a, b, bias = torch.randn(2, 5, 5), torch.randn(2, 5, 5), torch.randn(5)
        ra, rb = round_to_tf32(a), round_to_tf32(b)
        with EmulatedTF32():
            found = a @ b, F.linear(a[0], b[0], bias), a[0] @ b[0], a.double() @ b.double()
        wanted = ra @ rb, F.linear(ra[0], rb[0], bias), ra[0] @ rb[0], a.double() @ b.double()
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one, other)
        assert not torch.equal(found[0], a @ b)

    def test_the_gpu_s_switch_is_put_back(self) -> None:
        """A demonstration that leaves TF32 on changes every later result of the notebook."""
        before = torch.backends.cuda.matmul.fp32_precision
        found = []
        with contextlib.suppress(RuntimeError), real_tf32():
            found.append(torch.backends.cuda.matmul.fp32_precision)
            raise RuntimeError
        assert found == ["tf32"]
        assert torch.backends.cuda.matmul.fp32_precision == before

    @pytest.mark.cuda
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="TF32 needs a GPU")
    def test_on_a_gpu_rounded_messages_keep_the_symmetry(self) -> None:
        """The emulation doesn't imitate the order in which tensor cores add."""
        rows = precision_rows(torch.device("cuda"))
        assert "TF32" in {row.precision for row in rows}
        for row in rows:
            if row.distances == "differences" and row.precision != "bf16 weights and positions":
                assert max(row.errors.values()) < 1e-3, row


def test_moved_output_of_graph_scalars_is_the_output() -> None:
    """What is invariant must not be renumbered with the nodes."""
    motion = single_motions(21, 0)["permutation"]
    scalars = torch.randn(2, 3)
    assert torch.equal(moved_output(scalars, motion, "graph scalars"), scalars)
