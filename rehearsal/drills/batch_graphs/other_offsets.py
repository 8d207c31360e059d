import torch


def collate(graphs, like):
    if not graphs:
        empty = {"x": like["x"][:0], "edge_index": like["edge_index"][:, :0]}
        return empty | {"edge_attr": like["edge_attr"][:0], "batch": torch.zeros(0).long()}
    nodes = torch.tensor([graph["x"].shape[0] for graph in graphs])
    edges = torch.tensor([graph["edge_index"].shape[1] for graph in graphs])
    before = nodes.cumsum(0) - nodes
    together = torch.cat([graph["edge_index"] for graph in graphs], dim=1)
    return {
        "x": torch.cat([graph["x"] for graph in graphs]),
        "edge_index": together + before.repeat_interleave(edges),
        "edge_attr": torch.cat([graph["edge_attr"] for graph in graphs]),
        "batch": torch.arange(len(graphs)).repeat_interleave(nodes),
    }


def cut(order, sizes, budget):
    """Where batches begin, and at the end the length of the order."""
    starts, used = [], budget
    for place, graph in enumerate(order):
        if any(size > most for size, most in zip(sizes[graph], budget)):
            raise ValueError("over the budget: graph %d" % graph)
        used = [a + b for a, b in zip(used, sizes[graph])]
        if not starts or any(a > most for a, most in zip(used, budget)):
            starts.append(place)
            used = sizes[graph]
    return starts + [len(order)]


def batches_of(order, num_nodes, num_edges, *, max_nodes, max_edges, rank, world_size):
    sizes = list(zip(num_nodes, num_edges))
    bounds = cut(order, sizes, (max_nodes, max_edges))
    steps = -(-(len(bounds) - 1) // world_size)
    mine = []
    for step in range(steps):
        place = step * world_size + rank
        is_there = place < len(bounds) - 1
        mine.append(list(order[bounds[place] : bounds[place + 1]]) if is_there else [])
    return mine
