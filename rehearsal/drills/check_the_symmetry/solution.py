import torch
import torch.distributed as dist

NAMES = "rotation", "reflection", "translation", "permutation"


def random_rotations(count, generator):
    """Uniformly distributed, (count, 3, 3)."""
    q, r = torch.linalg.qr(torch.randn(count, 3, 3, generator=generator))
    q = q * r.diagonal(dim1=1, dim2=2).sign()[:, None]  # or the directions aren't uniform
    return q * torch.linalg.det(q)[:, None, None].sign()  # -Q is the mirror image of Q


def motion(name, batch, generator):
    """R and t of each node, and the new order of the nodes."""
    graphs, order = int(batch.max()) + 1, torch.arange(len(batch))
    turn, shift = torch.eye(3).repeat(graphs, 1, 1), torch.zeros(graphs, 3)
    if name == "rotation":
        turn = random_rotations(graphs, generator)
    elif name == "reflection":
        turn = -random_rotations(graphs, generator)
    elif name == "translation":
        direction = torch.randn(graphs, 3, generator=generator)
        shift = 100 * torch.nn.functional.normalize(direction)
    else:
        order = torch.randperm(len(batch), generator=generator)
    return turn[batch], shift[batch], order


def is_off(output, expected):
    # In float64, where the square of a tiny number isn't 0. NaN is within no tolerance.
    error = (output.double() - expected.double()).norm()
    return not error <= 1e-4 * expected.double().norm()


def findings(model, features, positions, edge_index, batch):
    """Whether an output is all 0, and what this rank's batch shows to be broken."""
    scalars, vectors = model(features, positions, edge_index, batch)
    generator, broken = torch.Generator().manual_seed(0), set()
    for name in NAMES * 4:
        turn, shift, order = motion(name, batch, generator)
        moved = torch.einsum("nij,nj->ni", turn, positions) + shift
        turned = torch.einsum("nij,nj->ni", turn, vectors)
        edges = order.argsort()[edge_index]  # where each node went
        new_scalars, new_vectors = model(features[order], moved[order], edges, batch[order])
        if is_off(new_scalars, scalars) or is_off(new_vectors, turned[order]):
            broken.add(name)
    return not (scalars.any() and vectors.any()), broken


@torch.no_grad()
def broken_symmetries(model, features, positions, edge_index, batch):
    """The names of the symmetries that the model breaks on any rank's batch."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        own = findings(model, features, positions, edge_index, batch)
    finally:
        for module, mode in modes:  # one by one: some may have been frozen in eval
            module.training = mode
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    if any(is_zero for is_zero, _ in everyone):  # on all ranks, or the others would hang
        raise ValueError("scalars or vectors are all 0: no motion can change them")
    return set().union(*(broken for _, broken in everyone))
