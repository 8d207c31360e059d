"""What the findings are called, which rules they state, and where they tell you to look."""

from __future__ import annotations

from rehearsal.grading.verdict import FindingTable

TABLE = FindingTable(
    {
        "not-a-batch": (
            "collate does not return the four tensors with the right shapes and types",
            "a batch is one graph: x, edge_index, edge_attr and batch",
            "at what you return, and at what a list without graphs or edges leaves to join",
        ),
        "wrong-nodes": (
            "x does not have the nodes of all graphs, one graph after the other",
            "batching changes no node; it puts them one graph after the other",
            "at what is joined, and in which order",
        ),
        "wrong-edges": (
            "an edge is missing, doubled, in another place, or has another's features",
            "each edge joins the same two nodes as before, and keeps its own features",
            "at what happens to each row of edge_index, and to edge_attr",
        ),
        "wrong-batch-vector": (
            "batch does not say of each node which graph it is from",
            "batch has one entry per node: the place of its graph in the list",
            "at how often each graph's number is repeated",
        ),
        "changes-its-arguments": (
            "a call changes what it is given",
            "the dataset's graphs are used again in the next epoch, and the order by all ranks",
            "at operations that work in place",
        ),
        "not-a-plan": (
            "batches_of does not return a list of lists of graph ids",
            "a step's batch is a list of ids, which may be empty",
            "at what you return",
        ),
        "steps-differ": (
            "the ranks have different numbers of steps",
            "a step is a collective: a rank that has run out makes the others hang",
            "at what a rank gets when the batches don't divide by the world size",
        ),
        "not-once-each": (
            "a graph of the epoch is dropped, or trained twice",
            "an epoch trains each graph of its order once, on one rank",
            "at the first batch and at the last, and at how the ranks share them",
        ),
        "over-budget": (
            "a batch has more nodes or edges than the budget",
            "memory goes with nodes and edges, so both have a limit",
            "at what you count, and at when you count it",
        ),
        "wrong-cut": (
            "the batches within the budget are not those of the brief",
            "a batch takes the next graph of the order as long as both budgets allow it",
            "at when a batch ends, and at the order in which graphs are taken",
        ),
        "wrong-share": (
            "a rank trains another rank's batches, or at another step",
            "in each step, the ranks train neighboring batches",
            "at which batches a rank takes",
        ),
        "empty-step": (
            "an epoch has a step that no rank has a graph for",
            "an epoch ends with its last batch",
            "at how the number of steps is rounded",
        ),
        "too-large-accepted": (
            "a graph that is over a budget by itself does not raise ValueError on every rank",
            "all ranks refuse such a graph together, before the first step, and name it",
            "at which ranks find out, and at which budget you compare with",
        ),
    }
)
