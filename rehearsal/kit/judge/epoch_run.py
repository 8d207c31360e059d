"""A run of epochs that saves its position: its plan, and what may be wrong with it.

For judges of runs that are killed and resumed, read by ``starts``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from rehearsal.grading.verdict import Finding, FindingTable, counted
from rehearsal.kit.epoch_plan import EpochRun
from rehearsal.kit.judge.coverage import how_often, miscounted
from rehearsal.kit.judge.findings import first_of
from rehearsal.kit.judge.starts import RunStart
from rehearsal.kit.judge.weights import Weights, largest_difference, ranks_differ

POSITION = "at which position the newest checkpoint gives, when it is written, and who reads it"
EPOCHS = "at where an epoch begins and ends, and at which of its samples a rank takes"
CLOSE = 2e-5  # to a reference in float64
WRITES = "at when a checkpoint is saved, and at what is counted until then"
RESTARTED = FindingTable(
    {
        "not-all-steps": (
            "an uninterrupted run does not take the planned steps",
            "each epoch is trained once, with a step per global batch, from first to last",
            EPOCHS,
        ),
        "wrong-start": (
            "training doesn't start from rank 0's weights",
            "training starts from the weights that rank 0 was given",
            "at whose weights the ranks start from, and at what happens to them before step 1",
        ),
        "same-order": (
            "two epochs have the same order, or one isn't shuffled",
            "each epoch has its own shuffled order",
            "at what an epoch's order is made from",
        ),
        "wrong-step": (
            "a step doesn't follow the mean loss of its samples",
            "a step follows the mean loss of its samples",
            "at what a step adds up, divides by and clears, and at how often it is taken",
        ),
        "starts-over": (
            "a restart trains from the initial weights although there is a checkpoint",
            "a restart resumes from the newest intact checkpoint",
            "at what the restart finds in the folder, and what it does with it",
        ),
        "cannot-resume": (
            "a start after a kill raises an exception",
            "wherever the run is killed, the next start finds a complete checkpoint, or none",
            "at what the folder holds at each moment of a save, and at what a start reads",
        ),
        "not-the-newest": (
            "a restart resumes from an older checkpoint than the newest complete one",
            "a restart resumes from the newest intact checkpoint",
            "at what the folder holds at each moment of a save, and at which file is read",
        ),
        "ranks-resume-apart": (
            "the ranks of a job resume from different steps",
            "all ranks resume from the same position, with the same weights",
            "at which ranks restore what, and at what happens to it before the first step",
        ),
        "never-trained": (
            "a sample is left out",
            "each epoch trains each sample exactly once, across all ranks and restarts",
            POSITION,
        ),
        "trained-twice": (
            "a sample is trained more than once per epoch",
            "each epoch trains each sample exactly once, across all ranks and restarts",
            POSITION,
        ),
        "not-the-same-run": (
            "a restarted run has other weights than an uninterrupted one",
            "a restart restores everything that later steps depend on, on every rank",
            "at everything that is saved, and at which ranks restore it",
        ),
        "no-save-when-due": (
            "no checkpoint is saved after checkpoint_every steps",
            "a checkpoint is saved whenever one is due",
            WRITES,
        ),
    }
)
CODES = {**RESTARTED.codes, "ranks-differ": "the ranks end with different weights"}


def whole_of_run(run: EpochRun, start: RunStart) -> Iterator[Finding]:
    """The findings of the uninterrupted run."""
    where = f"on {counted(run.world_size, 'rank')}, without a restart, "
    yield from first_of(
        _rank_0_findings(start, where),
        ranks_differ(
            [rank.end for rank in start.ranks],
            "at the weights with which each rank begins, and at what its updates use",
            most=0.0,
            where=where,
        ),
        _step_findings(run, start, where),
        _epoch_findings(run, start, where),
        _size_findings(run, start, where),
        _order_findings(run, start, where),
    )


def _rank_0_findings(start: RunStart, where: str) -> Iterator[Finding]:
    """Findings if the ranks did not begin with rank 0's weights."""
    look = "at the weights with which each rank begins"
    yield from ranks_differ([r.first for r in start.ranks], look, most=0.0, where=where)
    if start.ranks[0].first != start.ranks[0].given:
        found = f"{where}the ranks began with the same weights, but not with rank 0's"
        yield RESTARTED("wrong-start", found)


def _step_findings(run: EpochRun, start: RunStart, where: str) -> Iterator[Finding]:
    """A finding if there are not as many steps as planned."""
    planned = f"{run.epochs} epochs of {run.steps_per_epoch} steps are {run.steps}"
    rule, look = "each batch gets one optimizer step, which changes the weights", EPOCHS
    rank = max(start.ranks, key=lambda rank: rank.num_passes)
    if rank.num_updates not in (0, run.steps):
        found = f"{where}the run took {counted(rank.num_updates, 'optimizer step')}; {planned}"
        if rank.num_passes == run.steps:
            found += f". There were {counted(rank.num_passes, 'forward pass')}es"
            look = "at where the optimizer steps"
        yield RESTARTED("not-all-steps", found)._replace(look=look)
    elif len(start.steps) != run.steps:
        found = f"{where}the weights changed before {len(start.steps) - 1} of "
        found += f"{rank.num_passes} forward passes; {planned}"
        if rank.num_passes >= run.steps:
            look = "at how a gradient gets from the loss to the optimizer, and what clears it"
        yield RESTARTED("not-all-steps", found)._replace(rule=rule, look=look)


def _size_findings(run: EpochRun, start: RunStart, where: str) -> Iterator[Finding]:
    """A finding if a step doesn't have as many samples as planned."""
    for number, step in enumerate(start.steps):
        if len(step.samples) != run.size_of(number):
            found = f"{where}step {number + 1} trained {counted(len(step.samples), 'sample')}; "
            found += f"{run.size_of(number)} were its share of {run.num_samples} with "
            found += f"global_batch_size={run.global_batch_size}"
            yield RESTARTED("not-all-steps", found)
            return


def _epoch_findings(run: EpochRun, start: RunStart, where: str) -> Iterator[Finding]:
    """A finding if an epoch did not train each sample once."""
    for epoch in range(run.epochs):
        first = epoch * run.steps_per_epoch
        steps = start.steps[first : first + run.steps_per_epoch]
        extra, missing = miscounted(chain(*(step.samples for step in steps)), run.num_samples)
        if extra or missing:
            found = f"{where}in epoch {epoch}, "
            found += how_often([] if missing else extra, missing, run.num_samples, 1)
            code = "never-trained" if missing else "trained-twice"
            yield RESTARTED(code, found)._replace(look=EPOCHS)
            return


def _order_findings(run: EpochRun, start: RunStart, where: str) -> Iterator[Finding]:
    """A finding if an epoch is in index order, or in that of an earlier epoch."""
    batch = run.global_batch_size
    seen = [
        [
            list(range(n, min(n + batch, run.num_samples)))
            for n in range(0, run.num_samples, batch)
        ]
    ]
    for epoch in range(run.epochs):
        first = epoch * run.steps_per_epoch
        own = [step.samples for step in start.steps[first : first + run.steps_per_epoch]]
        if own in seen:
            same = seen.index(own)
            found = f"{where}epoch {epoch} trained the batches of "
            found += f"epoch {same - 1}, in its order" if same else "the order of the indices"
            yield RESTARTED("same-order", found)
            return
        seen.append(own)


def reference_of_run(run: EpochRun, whole: RunStart, reference: Weights) -> Iterator[Finding]:
    """A finding if the uninterrupted run's steps do not lead to the reference's weights."""
    difference, name = largest_difference(whole.weights[-1], reference)
    if not difference <= CLOSE:
        found = f"the weights after {counted(run.steps, 'step')} differ by up to "
        found += (
            f"{difference:.2g}, in {name}, from those of the same optimizer in float64 on the "
        )
        found += "mean loss of the same batches"
        yield RESTARTED("wrong-step", found)
