import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F

NAMES = ["rotation", "reflection", "translation", "permutation"]


def rotation(rng):
    """Of a random unit quaternion."""
    w, x, y, z = F.normalize(torch.randn(4, generator=rng, dtype=torch.float64), dim=0).tolist()
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return torch.tensor(rows, dtype=torch.float64)


def error(output, expected):
    """Relative; NaN becomes infinite, so that a maximum can't lose it."""
    return float(((output - expected).norm() / expected.norm()).nan_to_num(torch.inf))


@torch.inference_mode()
def broken_symmetries(model, features, positions, edge_index, batch):
    model = copy.deepcopy(model).eval()  # whatever happens to the copy

    def outputs(points, order):
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))
        edges = place[edge_index]
        scalars, vectors = model(features[order], points[order], edges, batch[order])
        return scalars.double(), vectors.double()

    nodes, graphs = len(batch), batch.unique().tolist()
    as_it_is = torch.arange(nodes)
    scalars, vectors = outputs(positions, as_it_is)
    rng = torch.Generator().manual_seed(1)
    errors = [0.0] * 4
    for _ in range(4):
        turned, mirrored, shifted = (positions.double() for _ in range(3))
        turned_vectors, mirrored_vectors = vectors.clone(), vectors.clone()
        for graph in graphs:
            ours, r = batch == graph, rotation(rng)
            q = rotation(rng)
            q[:, 0] *= -1  # a rotation with one axis turned around
            turned[ours], turned_vectors[ours] = turned[ours] @ r.T, vectors[ours] @ r.T
            mirrored[ours], mirrored_vectors[ours] = mirrored[ours] @ q.T, vectors[ours] @ q.T
            shifted[ours] += 100 * rotation(rng)[0]
        order = torch.randperm(nodes, generator=rng)
        for at, (points, new_order, expected) in enumerate(
            [
                (turned, as_it_is, turned_vectors),
                (mirrored, as_it_is, mirrored_vectors),
                (shifted, as_it_is, vectors),
                (positions, order, vectors[order]),
            ]
        ):
            new_scalars, new_vectors = outputs(points.float(), new_order)
            new = max(error(new_scalars, scalars), error(new_vectors, expected))
            errors[at] = max(errors[at], new)
    is_zero = not scalars.any() or not vectors.any()
    largest = torch.tensor([*errors, float(is_zero)])
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    *largest, any_zero = largest.tolist()
    if any_zero:
        raise ValueError("a test on outputs that are all 0 can't fail")
    return {name for name, size in zip(NAMES, largest) if size > 1e-4}
