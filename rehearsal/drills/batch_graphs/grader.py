"""Collates awkward lists of graphs, and cuts whole epochs on three ranks and on one.

The judge compares with the batch and the plan that it makes itself, in plain Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.findings import first_of, some

from .codes import TABLE
from .plan import Epoch, Graph, Job, jobs

CODES = TABLE.codes


def run(job: Job, context: RankContext, learner: SimpleNamespace) -> Any:
    """Every list collated, and every epoch cut for this rank."""
    return {
        "collated": [collated(job, chosen, learner) for chosen in job.lists],
        "epochs": [planned(epoch, context, learner) for epoch in job.epochs],
    }


def collated(job: Job, chosen: Sequence[int], learner: SimpleNamespace) -> dict[str, Any]:
    """What collate made of a list, and whether the graphs are as they were."""
    import torch

    def tensors(graph: Graph) -> dict[str, torch.Tensor]:
        pairs = torch.tensor(graph.edges, dtype=torch.int64).reshape(-1, 2)
        attrs = torch.tensor(graph.edge_attr, dtype=torch.int64).reshape(-1, job.features[1])
        edge_index = pairs.t().contiguous()
        return {"x": torch.tensor(graph.x), "edge_index": edge_index, "edge_attr": attrs}

    everything = {place: tensors(job.graphs[place]) for place in {*chosen, 3}}
    graphs = [everything[place] for place in chosen]
    batch = learner.collate(graphs, everything[3])
    fresh = {place: tensors(job.graphs[place]) for place in everything}
    same = len(graphs) == len(chosen) and all(
        set(fresh[place]) == set(graph)
        and all(torch.equal(graph[name], fresh[place][name]) for name in graph)
        for place, graph in everything.items()
    )
    return {**described(batch, job.features), "is_unchanged": same}


def described(batch: Any, features: tuple[int, int]) -> dict[str, Any]:
    """A batch as lists, or what isn't one about it."""
    import torch

    if not isinstance(batch, Mapping):
        return {"problem": f"a {type(batch).__name__}"}
    forms: dict[str, tuple[torch.dtype, list[int | None]]] = {
        "x": (torch.float32, [None, features[0]]),
        "edge_index": (torch.int64, [2, None]),
        "edge_attr": (torch.int64, [None, features[1]]),
        "batch": (torch.int64, [None]),
    }
    for name, (dtype, shape) in forms.items():
        value = batch.get(name)
        if not isinstance(value, torch.Tensor):
            return {"problem": f"{name} as {type(value).__name__}"}
        sizes = list(value.shape)
        fits = len(sizes) == len(shape) and all(
            want in (None, have) for want, have in zip(shape, sizes, strict=True)
        )
        if value.dtype != dtype or not fits:
            return {"problem": f"{name} of shape {tuple(sizes)} and type {value.dtype}"}
    return {name: batch[name].tolist() for name in forms}


def planned(epoch: Epoch, context: RankContext, learner: SimpleNamespace) -> dict[str, Any]:
    """This rank's batches of an epoch, or the error that a graph over the budget has to be."""
    lists = [list(epoch.order), list(epoch.num_nodes), list(epoch.num_edges)]
    copies = [list(values) for values in lists]
    budget = {"max_nodes": epoch.max_nodes, "max_edges": epoch.max_edges}
    place = {"rank": context.rank, "world_size": context.world_size}
    answer: dict[str, Any] = {"raised": None, "batches": None}
    try:
        returned = learner.batches_of(*lists, **budget, **place)
    except ValueError as error:
        if not epoch.too_large:
            raise
        answer["raised"] = str(error)
    else:
        try:
            answer["batches"] = [[int(graph) for graph in batch] for batch in returned]
        except (TypeError, ValueError):
            answer["problem"] = str(returned)[:80]
    return {**answer, "is_unchanged": lists == copies}


# ---------------------------------------------------------------- outside the ranks


def judge(job: Job, reports: Sequence[RankReport], _: object) -> Iterator[Finding]:
    """The batches first: a plan of wrong batches would train nonsense."""
    answer = reports[0].answer
    pairs = zip(job.lists, answer["collated"], strict=True)
    yield from first_of(*(batch_findings(job, *pair) for pair in pairs))
    yield from first_of(
        *(
            epoch_findings(epoch, [report.answer["epochs"][at] for report in reports])
            for at, epoch in enumerate(job.epochs)
        )
    )


def batch_findings(
    job: Job, chosen: Sequence[int], batch: Mapping[str, Any]
) -> Iterator[Finding]:
    """One list of graphs, collated."""
    graphs = [job.graphs[place] for place in chosen]
    sizes = "; ".join(f"{len(g.x)} and {len(g.edges)}" for g in graphs)
    of = f"collate, called with {counted(len(graphs), 'graph')}"
    of += f" (nodes and edges: {sizes})" if graphs else ""
    if "problem" in batch:
        yield TABLE("not-a-batch", f"{of}, returned {batch['problem']}")
        return
    if not batch["is_unchanged"]:
        yield TABLE("changes-its-arguments", f"{of}, changed the graphs in its list")
        return
    rows = [list(row) for graph in graphs for row in graph.x]
    if batch["x"] != rows:
        found = f"{of}, returned {counted(len(batch['x']), 'row')} in x"
        both = zip(batch["x"], rows, strict=False)
        wrong = [place for place, (ours, theirs) in enumerate(both) if ours != theirs]
        found += f"; row {wrong[0]} is another node" if wrong else f", not {len(rows)}"
        yield TABLE("wrong-nodes", found)
        return
    yield from edge_findings(graphs, batch, of)
    owners = [number for number, graph in enumerate(graphs) for _ in graph.x]
    if batch["batch"] != owners:
        yield TABLE("wrong-batch-vector", f"{of}, returned {batch['batch']} as batch")


def edge_findings(
    graphs: Sequence[Graph], batch: Mapping[str, Any], of: str
) -> Iterator[Finding]:
    """The edges, in any order. Their features say which ones they are."""
    owners = [number for number, graph in enumerate(graphs) for _ in graph.x]
    expected, offset = [], 0
    for graph in graphs:
        for (start, end), attr in zip(graph.edges, graph.edge_attr, strict=True):
            expected.append([start + offset, end + offset, *attr])
        offset += len(graph.x)
    pairs = list(zip(*batch["edge_index"], strict=True))
    if len(pairs) != len(batch["edge_attr"]) or len(pairs) != len(expected):
        found = f"{of}, returned {counted(len(pairs), 'edge')} with features of "
        found += f"{len(batch['edge_attr'])}; the graphs have {len(expected)}"
        yield TABLE("wrong-edges", found)
        return
    ours = [[*pair, *attr] for pair, attr in zip(pairs, batch["edge_attr"], strict=True)]
    for start, end, *attr in ours:
        same = [owners[edge[0]] for edge in expected if edge[2:] == attr]
        joins = [owners[node] if 0 <= node < len(owners) else None for node in (start, end)]
        found = f"{of}, returned an edge from node {start} to node {end} with features {attr}"
        if same and not any(joins == [number, number] for number in same):
            places = ["in none" if n is None else f"in graph {n} of the list" for n in joins]
            found += f", which is from graph {same[0]}: its nodes are {places[0]} and "
            yield TABLE(
                "wrong-edges", found + places[1], "at how many nodes come before a graph"
            )
            return
        if [start, end, *attr] not in expected:
            yield TABLE("wrong-edges", f"{found}, which no graph has there")
            return
    if sorted(ours) != sorted(expected):
        yield TABLE("wrong-edges", f"{of}, returned an edge twice and left out another")


def epoch_findings(epoch: Epoch, answers: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """One epoch, as all ranks have it."""
    world_size = len(answers)
    where = f"in an epoch of {counted(len(epoch.order), 'graph')} on "
    where += f"{counted(world_size, 'rank')} (budget: {epoch.max_nodes} nodes, "
    where += f"{epoch.max_edges} edges), "
    if epoch.too_large:
        yield from refusal_findings(epoch, answers, where)
        return
    for rank, answer in enumerate(answers):
        if "problem" in answer:
            yield TABLE("not-a-plan", f"{where}rank {rank} returned {answer['problem']}")
            return
        if not answer["is_unchanged"]:
            yield TABLE("changes-its-arguments", f"{where}rank {rank} changed its lists")
            return
    plans = [answer["batches"] for answer in answers]
    yield from first_of(
        step_findings(plans, where),
        each_once_findings(epoch, plans, where),
        budget_findings(epoch, plans, where),
        cut_findings(epoch, plans, where),
    )


def refusal_findings(
    epoch: Epoch, answers: Sequence[Mapping[str, Any]], where: str
) -> Iterator[Finding]:
    """A graph that no batch can hold: all ranks raise, and say which one it is."""
    graph = epoch.too_large[0]
    is_ = f"{where}graph {graph} has {epoch.num_nodes[graph]} nodes and "
    is_ += f"{counted(epoch.num_edges[graph], 'edge')}; "
    for rank, answer in enumerate(answers):
        if answer["raised"] is None:
            yield TABLE("too-large-accepted", f"{is_}rank {rank} raised no ValueError")
            return
        if not re.search(rf"\b{graph}\b", answer["raised"]):
            found = f"{is_}rank {rank}'s ValueError doesn't name it: {answer['raised'][:80]!r}"
            yield TABLE("too-large-accepted", found)
            return


def step_findings(plans: Sequence[list[list[int]]], where: str) -> Iterator[Finding]:
    """As many steps on every rank."""
    steps = [len(plan) for plan in plans]
    if len(set(steps)) > 1:
        each = ", ".join(f"rank {rank} has {count}" for rank, count in enumerate(steps))
        yield TABLE("steps-differ", f"{where}the ranks have different numbers of steps: {each}")


def each_once_findings(
    epoch: Epoch, plans: Sequence[list[list[int]]], where: str
) -> Iterator[Finding]:
    """Each graph of the order, once."""
    trained = [graph for plan in plans for batch in plan for graph in batch]
    for graph in [*epoch.order, *trained]:
        times, expected = trained.count(graph), list(epoch.order).count(graph)
        if times != expected:
            found = f"{where}graph {graph} is trained {counted(times, 'time')}, not {expected}"
            yield TABLE("not-once-each", found)
            return


def budget_findings(
    epoch: Epoch, plans: Sequence[list[list[int]]], where: str
) -> Iterator[Finding]:
    """No batch over either budget."""
    for rank, plan in enumerate(plans):
        for step, batch in enumerate(plan):
            if not epoch.fits(batch):
                nodes, edges = epoch.used(batch)
                found = f"{where}rank {rank}'s batch of step {step} has {nodes} nodes and "
                yield TABLE("over-budget", f"{found}{counted(edges, 'edge')}")
                return


def cut_findings(
    epoch: Epoch, plans: Sequence[list[list[int]]], where: str
) -> Iterator[Finding]:
    """The batches of the brief, each on its rank and at its step."""
    steps = list(zip(*plans, strict=True))
    if empty := [step for step, batches in enumerate(steps) if not any(batches)]:
        yield TABLE("empty-step", f"{where}no rank has a graph in step {empty[0]}")
        return
    expected = [sorted(batch) for batch in epoch.batches()]
    ours = [sorted(batch) for batch in chain.from_iterable(steps)]
    if missing := [batch for batch in expected if batch not in ours]:
        have = [batch for batch in ours if {*batch} & {*missing[0]}]
        found = f"{where}the next graphs that fit into a batch are {some(missing[0])}; "
        yield TABLE("wrong-cut", f"{found}they were trained as {some(have, 3)}")
        return
    for place, batch in enumerate(expected):
        if ours[place] != batch:
            step, rank = divmod(place, len(plans))
            found = f"{where}rank {rank} trains graphs {some(ours[place])} in step {step}; "
            yield TABLE("wrong-share", f"{found}batch {place} has {some(batch)}")
            return


def scenarios(seed: int) -> list[Scenario]:
    """Three ranks, and one."""
    return [
        Scenario(
            name=name,
            body=partial(run, job),
            judge=partial(judge, job),
            world_size=job.world_size,
            deadline_s=6,
        )
        for name, job in jobs(seed).items()
    ]
