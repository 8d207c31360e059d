"""Each sample once, equal weights on all ranks, and the weights one process would reach."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.coverage import coverage_findings
from rehearsal.kit.judge.weights import ranks_differ, weights_differ, weights_of_ranks
from rehearsal.kit.observe.samples import OddNet, marked_samples, watch_samples, weights_of
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding, counted

CODES = {
    "trained-twice": "a sample is trained more than once per epoch",
    "never-trained": "a sample is left out",
    "ranks-differ": "the ranks end with different weights",
    "not-the-global-mean": "the ranks agree, but not on the weights one process would reach",
}
# Three full steps of 7, then one of a single sample: two of three ranks get none.
NUM_SAMPLES, GLOBAL_BATCH_SIZE, EPOCHS, LR = 22, 7, 2, 0.02


def body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Train from different weights on each rank; return the weights afterwards."""
    context.init_group()
    inputs, targets = marked_samples(NUM_SAMPLES)
    model = OddNet(seed=context.rank)
    watch_samples(context, model)
    learner.train(
        model, inputs, targets, epochs=EPOCHS, global_batch_size=GLOBAL_BATCH_SIZE, lr=LR
    )
    return {"weights": weights_of(model), "expected": expected()}


def expected() -> dict[str, str]:
    """Plain SGD in one process, written out."""
    import torch

    inputs, targets = marked_samples(NUM_SAMPLES)
    model = OddNet(seed=0)
    for _ in range(EPOCHS):
        for first in range(0, NUM_SAMPLES, GLOBAL_BATCH_SIZE):
            step = slice(first, first + GLOBAL_BATCH_SIZE)
            model.zero_grad()
            (model(inputs[step]) - targets[step]).pow(2).sum(1).mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.sub_(LR * parameter.grad)
    return weights_of(model)


def judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterable[Finding]:
    """The findings of one job."""
    look = "at which samples of a step a rank takes"
    yield from coverage_findings(reports, NUM_SAMPLES, EPOCHS, look)
    look = "at the weights before the first step, and at the gradient before each"
    differ = list(ranks_differ(weights_of_ranks(reports), look))
    yield from differ
    if not differ:
        yield from weights_differ(
            "not-the-global-mean",
            f"the final weights on {counted(len(reports), 'rank')} differ from one process's",
            reports[0].answer["weights"],
            reports[0].answer["expected"],
            1e-4,
            "a step follows the mean gradient over all its samples, however they are split",
            "at what the loss is divided by, in a full step and in an epoch's last step",
        )


SCENARIOS = [
    Scenario(name="three ranks", body=body, judge=judge, world_size=3, deadline_s=6),
    Scenario(name="two ranks", body=body, judge=judge, world_size=2, deadline_s=6),
    Scenario(name="one rank", body=body, judge=judge, world_size=1, deadline_s=6),
]
