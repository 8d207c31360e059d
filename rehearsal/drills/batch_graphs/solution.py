import torch


def collate(graphs, like):
    """One graph of many; an empty list has the widths and types of ``like``."""
    xs, edges, attrs = [like["x"][:0]], [like["edge_index"][:, :0]], [like["edge_attr"][:0]]
    owners = [torch.empty(0, dtype=torch.int64)]
    num_nodes = 0  # of the graphs so far
    for number, graph in enumerate(graphs):
        xs.append(graph["x"])
        edges.append(graph["edge_index"] + num_nodes)
        attrs.append(graph["edge_attr"])
        owners.append(torch.full((len(graph["x"]),), number))
        num_nodes += len(graph["x"])
    return {
        "x": torch.cat(xs),
        "edge_index": torch.cat(edges, dim=1),
        "edge_attr": torch.cat(attrs),
        "batch": torch.cat(owners),
    }


def batches_of(order, num_nodes, num_edges, *, max_nodes, max_edges, rank, world_size):
    """The graphs that this rank trains in each step of an epoch: a list of lists of ids."""
    batches, nodes, edges = [], 0, 0
    for graph in order:
        n, e = num_nodes[graph], num_edges[graph]
        if n > max_nodes or e > max_edges:
            raise ValueError(f"graph {graph}: {n} nodes and {e} edges are over the budget")
        if not batches or nodes + n > max_nodes or edges + e > max_edges:
            batches.append([])
            nodes, edges = 0, 0
        batches[-1].append(graph)
        nodes, edges = nodes + n, edges + e
    while len(batches) % world_size:  # a rank without a batch still takes part in the step
        batches.append([])
    return batches[rank::world_size]
