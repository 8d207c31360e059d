import math

import torch
import torch.distributed as dist


def about(axis, angle):
    """Rodrigues' formula: the rotation about an axis by an angle."""
    x, y, z = (axis / axis.norm()).tolist()
    k = torch.tensor([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    return torch.eye(3) + math.sin(angle) * k + (1 - math.cos(angle)) * (k @ k)


def is_near(output, expected):
    """Each number is off by at most 1e-4 of the largest; never true of NaN."""
    off = (output.double() - expected.double()).abs().max()
    return bool(off <= 1e-4 * expected.double().abs().max())


def broken_symmetries(model, features, positions, edge_index, batch):
    frozen = [module for module in model.modules() if not module.training]
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(2)
            found = findings(model, features, positions, edge_index, batch)
    finally:
        model.train(was_training)
        for module in frozen:
            module.training = False
    everyone = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(found, everyone, dst=0)
    verdict = [None]
    if dist.get_rank() == 0 and None not in everyone:
        verdict = [set().union(*everyone)]
    dist.broadcast_object_list(verdict, src=0)
    if verdict[0] is None:
        raise ValueError("some rank's outputs are all 0, so its test can't fail")
    return verdict[0]


def findings(model, features, positions, edge_index, batch):
    """What this rank's batch shows; None if it can't show anything."""
    scalars, vectors = model(features, positions, edge_index, batch)
    if not scalars.count_nonzero() or not vectors.count_nonzero():
        return None
    found, graphs = set(), int(batch[-1]) + 1
    for _ in range(5):
        spins = [about(torch.randn(3), float(torch.rand(())) * math.tau) for _ in range(graphs)]
        spin = torch.stack(spins)[batch]
        # A mirror through a random plane, after another spin.
        normals = torch.nn.functional.normalize(torch.randn(graphs, 3))
        mirror = (torch.eye(3) - 2 * normals[:, :, None] * normals[:, None])[batch] @ spin
        for name, turn in (("rotation", spin), ("reflection", mirror)):
            points = (turn @ positions[:, :, None])[:, :, 0]
            new_scalars, new_vectors = model(features, points, edge_index, batch)
            expected = (turn @ vectors[:, :, None])[:, :, 0]
            if not (is_near(new_scalars, scalars) and is_near(new_vectors, expected)):
                found.add(name)
        shift = torch.randn(graphs, 3)
        shift *= 100 / shift.norm(dim=1, keepdim=True)
        new_scalars, new_vectors = model(features, positions + shift[batch], edge_index, batch)
        if not (is_near(new_scalars, scalars) and is_near(new_vectors, vectors)):
            found.add("translation")
        new_place = torch.randperm(len(batch))  # node i becomes node new_place[i]
        order = torch.argsort(new_place)
        new_scalars, new_vectors = model(
            features[order], positions[order], new_place[edge_index], batch[order]
        )
        if not (is_near(new_scalars, scalars) and is_near(new_vectors[new_place], vectors)):
            found.add("permutation")
    return found
