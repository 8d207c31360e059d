"""Did each epoch train every sample once, in global batches, and in an order of its own?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, combinations

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, FindingTable, counted
from rehearsal.kit.judge.coverage import miscounted
from rehearsal.kit.judge.findings import first_of, some

from .plan import Run

FINDINGS = FindingTable(
    {
        "wrong-steps": (
            "a step doesn't train one global batch",
            "an epoch has one step per global batch, and the ranks share each batch",
            "at how an epoch is cut into global batches, and each of them among the ranks",
        ),
        "trained-twice": (
            "an epoch doesn't train each sample once",
            "an epoch trains each sample exactly once, on one of the ranks",
            "at what the order of an epoch depends on, on each rank",
        ),
        "order-repeats": (
            "two epochs have the same order",
            "each epoch has its own order",
            "at what differs between two epochs",
        ),
        "seed-ignored": (
            "two seeds give the same order",
            "the order is a function of seed and epoch",
            "at where the seed is used",
        ),
    }
)


def steps_of(reports: Sequence[RankReport]) -> list[list[int]]:
    """The samples of each step over all ranks, sorted."""
    by_rank = [report.answer["trained"] for report in reports]
    steps: list[list[int]] = [[] for _ in range(max(map(len, by_rank)))]
    for of_rank in by_rank:
        for step, samples in zip(steps, of_rank, strict=False):
            step += samples
    return [sorted(step) for step in steps]


def orders(reports: Sequence[RankReport], run: Run) -> list[list[list[int]]]:
    """For each epoch, for each step, the samples of all ranks."""
    steps, size = steps_of(reports), run.steps_per_epoch
    return [steps[at : at + size] for at in range(0, len(steps), size)]


def deal_findings(reports: Sequence[RankReport], run: Run) -> Iterable[Finding]:
    """Findings about the steps of a run, about its epochs, and about their orders."""
    yield from first_of(
        count_findings(reports, run),
        epoch_findings(reports, run),
        size_findings(reports, run),
        order_findings(reports, run),
    )


def count_findings(reports: Sequence[RankReport], run: Run) -> Iterable[Finding]:
    """A finding if a rank took too many or too few steps: nobody knows where an epoch ends."""
    for report in reports:
        taken = len(report.answer["trained"])
        if taken != run.steps:
            found = f"rank {report.rank} of {len(reports)} took "
            found += f"{counted(taken, 'optimizer step')}; {run.epochs} epochs of "
            found += f"{run.steps_per_epoch} global batches are {run.steps}"
            yield FINDINGS("wrong-steps", found)
            return


def epoch_findings(reports: Sequence[RankReport], run: Run) -> Iterable[Finding]:
    """A finding at the first epoch that doesn't train each sample once."""
    for epoch, steps in enumerate(orders(reports, run)):
        twice, missing = miscounted(chain(*steps), run.num_samples)
        if not twice and not missing:
            continue
        text, look = f"in epoch {epoch}, ", ""
        if twice and missing:
            text += f"{len(twice)} of {run.num_samples} samples were trained more than once "
            text += f"({some(twice)}), and {len(missing)} never ({some(missing)})"
        else:
            text += f"{len(twice or missing)} of {run.num_samples} samples were "
            text += "trained more than once" if twice else "never trained"
            text += f" ({some(twice or missing)})"
            look = "at how an epoch is cut into batches, and each of them among the ranks"
        yield FINDINGS("trained-twice", text, look)
        return


def size_findings(reports: Sequence[RankReport], run: Run) -> Iterable[Finding]:
    """A finding if a step has more or fewer samples than its global batch."""
    for number, step in enumerate(steps_of(reports)):
        if len(step) != run.size_of(number):
            found = f"step {number + 1} trained {counted(len(step), 'sample')} over all ranks; "
            found += f"its global batch has {run.size_of(number)}"
            yield FINDINGS("wrong-steps", found)
            return


def order_findings(reports: Sequence[RankReport], run: Run) -> Iterable[Finding]:
    """A finding if two epochs have the same batches."""
    epochs = list(enumerate(orders(reports, run)))
    for (a, first), (b, second) in combinations(epochs, 2):
        if first == second:
            yield FINDINGS("order-repeats", f"epochs {a} and {b} have the same batches")
            return


def seed_findings(
    reports: Sequence[RankReport], run: Run, others: Sequence[RankReport], other: Run
) -> Iterable[Finding]:
    """A finding if an epoch has the same order in two runs with different seeds."""
    pairs = zip(orders(reports, run), orders(others, other), strict=False)
    for epoch, (ours, theirs) in enumerate(pairs):
        if ours == theirs:
            found = f"with seed={run.seed} and with seed={other.seed}, all batches of epoch "
            found += f"{epoch} are the same"
            yield FINDINGS("seed-ignored", found)
            return
