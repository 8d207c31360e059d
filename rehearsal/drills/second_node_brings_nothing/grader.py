"""Groups within and between nodes: each sample once, one sum, one owner per node."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, FindingTable, counted
from rehearsal.kit.judge.coverage import coverage_findings
from rehearsal.kit.judge.findings import first_of, some
from rehearsal.kit.judge.weights import largest_difference, ranks_differ, weights_of_ranks
from rehearsal.kit.observe.samples import OddNet, marked_samples, watch_samples, weights_of

from .plan import Run, drawn
from .sharded import Objects, Owned, expected, sums_of_all_ranks

FINDINGS = FindingTable(
    {
        "different-step": (
            "a step doesn't train the next samples in order",
            "a step trains the next global_batch_size samples, in index order",
            "at how an epoch is cut into steps",
        ),
        "uneven-shares": (
            "a step's samples are not spread evenly over the ranks",
            "the numbers of samples that two ranks train in a step differ by one at most",
            "at how a step's samples are divided, and by how many",
        ),
        "state-not-sharded": (
            "a parameter has optimizer state on more or fewer than one rank of a node",
            "in each node, exactly one rank has optimizer state for a parameter",
            "at which parameters each rank's optimizer gets, and how a rank is counted there",
        ),
        "not-the-mean": (
            "the ranks agree, but a step doesn't follow the mean over its samples",
            "a step follows the mean loss over its samples",
            "at everything that is added to a gradient, at what divides it, and at its owner",
        ),
        "sums-over-the-whole-job": (
            "gradients are summed in one group of all ranks",
            "gradients are summed within nodes and between nodes, not over the whole job",
            "at the group of each reduction",
        ),
        "wrong-loss": (
            "train doesn't return the mean loss of each epoch",
            "on every rank, train returns each epoch's mean loss over its samples",
            "at what is summed, and over which ranks",
        ),
    }
)
CODES = {
    **FINDINGS.codes,
    "trained-twice": "a sample is trained more than once per epoch",
    "never-trained": "a sample is left out",
    "ranks-differ": "the ranks end with different weights",
}


FEW = 3  # numbers; each of the model's gradients but one has more


def body(run: Run, context: RankContext, learner: SimpleNamespace) -> Any:
    """Train; return weights, losses and owned parameters, and the reference."""
    context.init_group()
    objects = Objects()
    reference = expected(run)
    model = OddNet(seed=context.rank)
    watch_samples(context, model)
    owned = Owned(model)
    inputs, targets = marked_samples(run.num_samples)
    returned = learner.train(
        model,
        inputs,
        targets,
        node_size=run.node_size,
        epochs=run.epochs,
        global_batch_size=run.global_batch_size,
        lr=run.lr,
    )
    return {
        "weights": weights_of(model),
        "returned": returned,
        "owned": owned.names,
        "sums": sums_of_all_ranks() + objects.of_all_ranks,
        "expected": reference,
    }


def judge(run: Run, reports: Sequence[RankReport], earlier: object) -> Iterator[Finding]:
    """The findings of one job; the first part that has any explains the rest."""
    look = "at the rank, and the number of ranks, by which a step's samples are divided"
    yield from first_of(
        coverage_findings(reports, run.num_samples, run.epochs, look),
        share_findings(run, reports),
        owner_findings(run, reports),
        ranks_differ(
            weights_of_ranks(reports),
            "at the weights that each rank starts from, and at each update: which gradients "
            "does it use, and are they already reduced?",
            most=0.0,
        ),
        update_findings(run, reports),
        group_findings(run, reports),
        loss_findings(reports),
    )


def on(run: Run) -> str:
    """ "on 2 nodes of 2 ranks"."""
    return f"on {counted(run.num_nodes, 'node')} of {counted(run.node_size, 'rank')}"


def share_findings(run: Run, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """Findings about the samples of each step, and how many of them each rank has."""
    passes = [
        [e["samples"] for e in report.of("forward") if e["samples"]] for report in reports
    ]
    firsts = [*range(0, run.num_samples, run.global_batch_size)] * run.epochs
    for number, first in enumerate(firsts):
        step = list(range(first, min(first + run.global_batch_size, run.num_samples)))
        # A rank that has no sample in a step may go without a forward pass.
        shares = [own.pop(0) if own and set(own[0]) & set(step) else [] for own in passes]
        sizes = [len(share) for share in shares]
        if sorted(sample for share in shares for sample in share) != step:
            found = f"{on(run)}, step {number + 1} trained samples "
            found += f"{some(sorted(chain(*shares)))}; the next ones are {some(step)}"
            yield FINDINGS("different-step", found)
            return
        if max(sizes) - min(sizes) > 1:
            found = (
                f"{on(run)}, the ranks trained {', '.join(map(str, sizes))} samples in step "
            )
            found += f"{number + 1}"
            yield FINDINGS("uneven-shares", found)
            return


def owner_findings(run: Run, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if a parameter has more or fewer than one owner in a node."""
    names = reports[0].answer["expected"]["weights"].keys() - {"unused"}
    for node in range(run.num_nodes):
        ranks = reports[node * run.node_size : (node + 1) * run.node_size]
        for name in sorted(names):
            owners = [report.rank for report in ranks if name in report.answer["owned"]]
            if len(owners) != 1:
                found = f"{on(run)}, {name} has optimizer state on "
                found += f"{counted(len(owners), 'rank')} of node {node}"
                yield FINDINGS("state-not-sharded", found)
                return


def update_findings(run: Run, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if the run differs from one process."""
    answer = reports[0].answer
    difference, name = largest_difference(answer["weights"], answer["expected"]["weights"])
    if not difference <= 1e-5:
        found = (
            f"{on(run)}, the weights differ by up to {difference:.2g}, in {name}, from those "
        )
        found += "of one process that starts with rank 0's weights"
        yield FINDINGS("not-the-mean", found)


def group_findings(run: Run, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if a gradient is reduced, or gathered, in the group of all ranks."""
    if 1 in (run.num_nodes, run.node_size):
        return  # the group of a node, or the one between nodes, has all ranks
    for report in reports:
        many = [(name, size) for name, size in report.answer["sums"] if size > FEW]
        if len(many) >= run.steps:  # gradients are sent in each step; losses needn't be
            name, size = many[-1]
            found = f"{on(run)}, rank {report.rank} issued {name} of {size} numbers in a group "
            found += "of all ranks"
            yield FINDINGS("sums-over-the-whole-job", found)
            return


def loss_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if a rank returned other losses."""
    wanted = reports[0].answer["expected"]["history"]
    for report in reports:
        returned = report.answer["returned"]
        if not (
            isinstance(returned, list)
            and len(returned) == len(wanted)
            and all(isinstance(loss, float) for loss in returned)
            and all(
                math.isclose(*two, rel_tol=1e-4) for two in zip(returned, wanted, strict=True)
            )
        ):
            found = f"rank {report.rank} of {len(reports)} returned {str(returned)[:200]}; the "
            found += f"epochs' mean losses are {wanted}"
            yield FINDINGS("wrong-loss", found)
            return


def scenarios(seed: int) -> list[Scenario]:
    """Two nodes of two ranks, and nodes or a node of one kind only."""
    return [
        Scenario(
            name=name,
            body=partial(body, run),
            judge=partial(judge, run),
            world_size=run.world_size,
            deadline_s=6,
        )
        for name, run in zip(("two nodes of two", "one dimension"), drawn(seed), strict=True)
    ]
