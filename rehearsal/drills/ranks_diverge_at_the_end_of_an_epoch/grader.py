"""The ranks stay equal through each epoch's end, on the mean gradient, with one sync a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.collectives import mismatched_collectives
from rehearsal.kit.judge.coverage import coverage_findings, steps_taken
from rehearsal.kit.judge.findings import first_of, some
from rehearsal.kit.judge.weights import ranks_differ, weights_differ, weights_of_ranks
from rehearsal.kit.observe.samples import OddNet, marked_samples, watch_samples, weights_of
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding, counted

CODES = {
    "collective-on-some-ranks": "the run hangs or fails: the ranks' collectives differ",
    "trained-twice": "a sample is trained more than once",
    "never-trained": "a sample is left out",
    "wrong-number-of-steps": "the optimizer steps do not match the groups of micro-batches",
    "ranks-differ": "the ranks end with different weights",
    "not-the-global-mean": "the ranks agree, but a step does not follow the global mean",
    "too-many-bytes": "gradients are all-reduced more than once per optimizer step",
}
# Micro-batches per epoch: a last step of one, an epoch shorter than a step, no remainder.
EPOCHS, GRAD_ACCUM_STEPS, MICRO_BATCH_SIZE, LR = (7, 2, 6), 3, 3, 0.02
STEPS = sum(-(-count // GRAD_ACCUM_STEPS) for count in EPOCHS)


def samples_of(epoch: int, micro_step: int, rank: int, world_size: int) -> slice:
    """Ids of a micro-batch; none is used twice."""
    number = (sum(EPOCHS[:epoch]) + micro_step) * world_size + rank
    return slice(number * MICRO_BATCH_SIZE, (number + 1) * MICRO_BATCH_SIZE)


def epochs_of(rank: int, world_size: int) -> Iterator[list[tuple[Any, Any]]]:
    """For each epoch the list of this rank's micro-batches."""
    inputs, targets = marked_samples(sum(EPOCHS) * world_size * MICRO_BATCH_SIZE)
    for epoch, count in enumerate(EPOCHS):
        places = [samples_of(epoch, number, rank, world_size) for number in range(count)]
        yield [(inputs[place], targets[place]) for place in places]


def body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Train; return the weights, and those of one process on the same groups."""
    context.init_group()
    model = OddNet(seed=context.rank)
    watch_samples(context, model)
    epochs = epochs_of(context.rank, context.world_size)
    learner.train(model, epochs, lr=LR, grad_accum_steps=GRAD_ACCUM_STEPS)
    context.record("trained")
    return {
        "weights": weights_of(model),
        "expected": expected(context.world_size),
        "gradient_bytes": 4 * sum(parameter.numel() for parameter in model.parameters()),
    }


def expected(world_size: int) -> dict[str, str]:
    """One process: each step on the samples of all its micro-batches at once."""
    import torch

    model = OddNet(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    ranks = [epochs_of(rank, world_size) for rank in range(world_size)]
    for epoch in zip(*ranks, strict=True):
        for first in range(0, len(epoch[0]), GRAD_ACCUM_STEPS):
            group = [pair for rank in epoch for pair in rank[first : first + GRAD_ACCUM_STEPS]]
            inputs, targets = (torch.cat(part) for part in zip(*group, strict=True))
            optimizer.zero_grad()
            (model(inputs) - targets).pow(2).sum(1).mean().backward()
            optimizer.step()
    return weights_of(model)


def judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterable[Finding]:
    """The findings of one job."""
    world_size, first = len(reports), reports[0].answer
    if any(not report.has_answer for report in reports):
        yield from mismatched_collectives(reports)
        return
    num_samples = sum(EPOCHS) * world_size * MICRO_BATCH_SIZE
    look = (
        "at where each loop over micro-batches begins and ends, and at how often a micro-batch "
    )
    look += "goes through the model"
    for finding in coverage_findings(reports, num_samples, 1, look):
        # No two epochs share a sample, so all of them together are counted as one.
        found = finding.found.replace("in 1 epoch", f"in {len(EPOCHS)} epochs")
        yield finding._replace(found=found)
    taken = steps_taken(reports[0])
    if taken != STEPS:
        text = f"the run took {counted(taken, 'optimizer step')}; with grad_accum_steps="
        text += f"{GRAD_ACCUM_STEPS}, epochs of {some(EPOCHS)} micro-batches are {STEPS} steps"
        rule = "a step is grad_accum_steps micro-batches, or what is left of an epoch"
        yield Finding("wrong-number-of-steps", text, rule, "at when the optimizer steps")
        return
    look = (
        "at the weights with which each rank begins, and at each update: are the gradients it "
    )
    look += "uses already reduced?"
    yield from first_of(
        ranks_differ(weights_of_ranks(reports), look),
        weights_differ(
            "not-the-global-mean",
            f"the weights on {counted(world_size, 'rank')} differ from those of one process",
            first["weights"],
            first["expected"],
            1e-4,
            "a step follows the mean over all its micro-batches on all ranks",
            "at what a step sums, and at what it divides by, also when it has fewer "
            "micro-batches",
        ),
    )
    sent = bytes_reduced(reports[0])
    most = STEPS * first["gradient_bytes"]
    if sent > 1.5 * most:
        text = f"rank 0 put {sent} bytes into reductions; {STEPS} steps have {most} bytes of "
        text += "gradients"
        rule = "gradients are all-reduced once per optimizer step, however many micro-batches"
        yield Finding("too-many-bytes", text, rule, "at which backward passes sync")


def bytes_reduced(report: RankReport) -> int:
    """Bytes that a rank put into reductions."""
    return sum(entry["bytes"] for entry in report.collectives if "reduce" in entry["name"])


SCENARIOS = [
    Scenario(
        name=counted(world_size, "rank"),
        body=body,
        judge=judge,
        world_size=world_size,
        deadline_s=4,
        judges_failures=True,
    )
    for world_size in (3, 2, 1)
]
