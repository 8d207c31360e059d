from itertools import islice

import torch


def collate(graphs, like):
    """Fills tensors of the final size, from the first graph to the last."""
    num_nodes = sum(len(graph["x"]) for graph in graphs)
    num_edges = sum(len(graph["edge_attr"]) for graph in graphs)
    batch = {
        "x": like["x"].new_empty(num_nodes, like["x"].size(1)),
        "edge_index": torch.empty((2, num_edges), dtype=torch.int64),
        "edge_attr": like["edge_attr"].new_empty(num_edges, like["edge_attr"].size(1)),
        "batch": torch.empty(num_nodes, dtype=torch.int64),
    }
    node = edge = 0
    for number, graph in enumerate(graphs):
        next_node, next_edge = node + len(graph["x"]), edge + len(graph["edge_attr"])
        batch["x"][node:next_node] = graph["x"]
        batch["edge_index"][:, edge:next_edge] = graph["edge_index"] + node
        batch["edge_attr"][edge:next_edge] = graph["edge_attr"]
        batch["batch"][node:next_node] = number
        node, edge = next_node, next_edge
    return batch


def batches_of(order, num_nodes, num_edges, *, max_nodes, max_edges, rank, world_size):
    for graph in order:  # before the first step, and so on every rank
        if num_nodes[graph] > max_nodes:
            raise ValueError(f"graph {graph} has {num_nodes[graph]} nodes")
        if num_edges[graph] > max_edges:
            raise ValueError(f"graph {graph} has {num_edges[graph]} edges")

    def packed():
        batch = []
        for graph in order:
            longer = [*batch, graph]
            nodes = sum(num_nodes[each] for each in longer)
            edges = sum(num_edges[each] for each in longer)
            if nodes <= max_nodes and edges <= max_edges:
                batch = longer
            else:
                yield batch
                batch = [graph]
        if batch:
            yield batch

    batches, mine = packed(), []
    while step := list(islice(batches, world_size)):
        mine.append(step[rank] if rank < len(step) else [])
    return mine
