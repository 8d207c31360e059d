"""Did each epoch train every sample once, and in an order of its own?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.coverage import miscounted, most_steps, samples_by_step
from rehearsal.kit.judge.findings import some
from rehearsal.grading.verdict import Finding, counted


def orders(reports: Sequence[RankReport], steps_per_epoch: int) -> list[list[list[int]]]:
    """For each epoch, for each step, the samples of all ranks."""
    # What goes through the model after the last step is not trained.
    steps = samples_by_step(reports)[: most_steps(reports)]
    return [steps[at : at + steps_per_epoch] for at in range(0, len(steps), steps_per_epoch)]


def deal_findings(
    reports: Sequence[RankReport], num_samples: int, num_epochs: int, steps_per_epoch: int
) -> Iterable[Finding]:
    """Findings if an epoch did not train each sample once, or not in its own order."""
    taken, planned = most_steps(reports), num_epochs * steps_per_epoch
    if taken != planned:  # then nobody knows where an epoch ends
        text = f"on {counted(len(reports), 'rank')}, the run took "
        text += f"{counted(taken, 'optimizer step')}; {num_epochs} epochs of "
        text += f"{steps_per_epoch} global batches are {planned}"
        rule = "an epoch has one step per global batch, and the ranks share each batch"
        look = "at how an epoch is cut into global batches, and each of them among the ranks"
        yield Finding("trained-twice", text, rule, look)
        return
    epochs = orders(reports, steps_per_epoch)
    for epoch, steps in enumerate(epochs):
        twice, missing = miscounted(chain(*steps), num_samples)
        if twice or missing:
            text = f"in epoch {epoch}, "
            look = "at what the order of an epoch depends on, on each rank"
            if twice and missing:
                text += f"{len(twice)} of {num_samples} samples were trained more than once "
                text += f"({some(twice)}), and {len(missing)} never ({some(missing)})"
            else:
                text += f"{len(twice or missing)} of {num_samples} samples were "
                text += "trained more than once" if twice else "never trained"
                text += f" ({some(twice or missing)})"
                look = "at how an epoch is cut into batches, and each of them among the ranks"
            rule = "an epoch trains each sample exactly once, on one of the ranks"
            yield Finding("trained-twice", text, rule, look)
    if len(epochs) > 1 and epochs[0] in epochs[1:]:
        text = f"epochs 0 and {epochs[1:].index(epochs[0]) + 1} have the same batches"
        rule = "each epoch has its own order"
        yield Finding("order-repeats", text, rule, "at what differs between two epochs")
