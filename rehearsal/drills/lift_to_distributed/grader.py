"""Each sample once, equal weights on all ranks, and the weights one process would reach."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.coverage import coverage_findings, steps_taken
from rehearsal.kit.judge.findings import first_of
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
NUM_STEPS = EPOCHS * 4


def body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Train from different weights on each rank; return the weights afterwards."""
    context.init_group()
    inputs, targets = marked_samples(NUM_SAMPLES)
    model = OddNet(seed=context.rank)
    watch_samples(context, model)

    def first_forward(*_: object) -> None:
        context.record("first_forward", weights=weights_of(model))
        handle.remove()

    handle = model.register_forward_pre_hook(first_forward)
    learner.train(
        model, inputs, targets, epochs=EPOCHS, global_batch_size=GLOBAL_BATCH_SIZE, lr=LR
    )
    return {
        "weights": weights_of(model),
        "initial": weights_of(OddNet(seed=0)),
        "expected": expected(),
    }


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
    look, steps = "at which samples of a step a rank takes", ""
    taken = steps_taken(reports[0])
    if taken and taken != NUM_STEPS:  # none if the updates are written out
        steps = f"; rank 0 took {counted(taken, 'optimizer step')}, not {NUM_STEPS}"
        look = f"at where the loops over epochs and steps begin and end, and {look}"
    coverage = coverage_findings(reports, NUM_SAMPLES, EPOCHS, look)
    look_apart = "at the weights before the first step, and at the gradient before each"
    yield from first_of(
        (finding._replace(found=finding.found + steps) for finding in coverage),
        ranks_differ(weights_of_ranks(reports), look_apart),
        differs_from_one_process(reports),
    )


def differs_from_one_process(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if the ranks agree on other weights than one process would reach."""
    rule = "a step follows the mean gradient over all its samples, however they are split"
    look = "at what the loss is divided by, in an epoch's last step too, and at the gradients "
    look += "and the learning rate that each step uses"
    who = f"the final weights on {counted(len(reports), 'rank')} differ from one process's"
    taken = steps_taken(reports[0])
    start, initial = reports[0].of("first_forward"), reports[0].answer["initial"]
    if start and start[0]["weights"] != initial:
        who = f"training didn't start from the weights that rank 0 was given; {who}"
        rule, look = "every rank starts from rank 0's weights", "at whose weights the ranks use"
    elif reports[0].answer["weights"] == initial:
        who = f"training didn't change the weights; {who}"
        rule, look = "each step updates the weights once", "at what the optimizer steps with"
    elif taken and taken != NUM_STEPS:  # none if the updates are written out
        who = f"rank 0 took {counted(taken, 'optimizer step')}, not {NUM_STEPS}; {who}"
        rule, look = "each step updates the weights once", "at where the optimizer steps"
    yield from weights_differ(
        "not-the-global-mean",
        who,
        reports[0].answer["weights"],
        reports[0].answer["expected"],
        1e-4,
        rule,
        look,
    )


SCENARIOS = [
    Scenario(name="three ranks", body=body, judge=judge, world_size=3, deadline_s=6),
    Scenario(name="two ranks", body=body, judge=judge, world_size=2, deadline_s=6),
    Scenario(name="one rank", body=body, judge=judge, world_size=1, deadline_s=6),
]
