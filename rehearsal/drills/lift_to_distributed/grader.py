"""Each sample once, shares of equal size, and the weights that one process would reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.coverage import coverage_findings, samples_by_step, steps_taken
from rehearsal.kit.judge.findings import first_of, some
from rehearsal.kit.judge.weights import ranks_differ, weights_differ, weights_of_ranks
from rehearsal.kit.observe.samples import OddNet, marked_samples, watch_samples, weights_of

from .plan import Plan, plan_of

CODES = {
    "trained-twice": "a sample is trained more than once per epoch",
    "never-trained": "a sample is left out",
    "different-steps": "a step trains other samples than the brief says",
    "unequal-shares": "a rank trains more of a step than its share",
    "wrong-start": "training does not start from rank 0's weights",
    "wrong-steps": "training takes the wrong number of steps, or changes no weight",
    "ranks-differ": "the ranks end with different weights",
    "not-the-global-mean": "the ranks agree, but not on the weights one process would reach",
}


def body(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Train from different weights on each rank; return the weights afterwards."""
    context.init_group()
    inputs, targets = marked_samples(plan.num_samples, seed=plan.seed)
    model = OddNet(seed=plan.seed + context.rank)
    watch_samples(context, model)

    def first_forward(*_: object) -> None:
        context.record("first_forward", weights=weights_of(model))
        handle.remove()

    handle = model.register_forward_pre_hook(first_forward)
    learner.train(
        model,
        inputs,
        targets,
        epochs=plan.epochs,
        global_batch_size=plan.global_batch_size,
        lr=plan.lr,
    )
    answer = {"weights": weights_of(model)}
    if context.rank:  # what to compare with is computed once
        return answer
    initial = weights_of(OddNet(seed=plan.seed))
    return answer | {"initial": initial, "expected": expected(plan)}


def expected(plan: Plan) -> dict[str, str]:
    """Plain SGD in one process, written out."""
    import torch

    inputs, targets = marked_samples(plan.num_samples, seed=plan.seed)
    model = OddNet(seed=plan.seed)
    for _ in range(plan.epochs):
        for first in range(0, plan.num_samples, plan.global_batch_size):
            step = slice(first, first + plan.global_batch_size)
            model.zero_grad()
            (model(inputs[step]) - targets[step]).pow(2).sum(1).mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.sub_(plan.lr * parameter.grad)
    return weights_of(model)


# ---------------------------------------------------------------- in the kernel


def judge(plan: Plan, reports: Sequence[RankReport], earlier: object) -> Iterable[Finding]:
    """The findings of one job."""
    look, steps = "at which samples of a step a rank takes", ""
    taken = steps_taken(reports[0])
    if taken and taken != plan.num_steps:  # none if the updates are written out
        steps = f"; rank 0 took {counted(taken, 'optimizer step')}, not {plan.num_steps}"
        look = f"at where the loops over epochs and steps begin and end, and {look}"
    coverage = coverage_findings(reports, plan.num_samples, plan.epochs, look)
    look_apart = "at the weights before the first step, and at the gradient before each"
    yield from first_of(
        (finding._replace(found=finding.found + steps) for finding in coverage),
        order_findings(plan, reports),
        share_findings(plan, reports),
        ranks_differ(weights_of_ranks(reports), look_apart),
        start_findings(reports),
        step_findings(plan, reports),
        differs_from_one_process(plan, reports),
    )


def order_findings(plan: Plan, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if a step trained other samples than its own, over all ranks."""
    if any(steps_taken(report) != plan.num_steps for report in reports):
        return  # the updates are written out, or steps are missing: the weights will show it
    for number, samples in enumerate(samples_by_step(reports)):
        step = number % plan.steps_per_epoch
        first = step * plan.global_batch_size
        if samples != list(range(first, first + plan.size_of(step))):
            found = f"on {counted(plan.world_size, 'rank')}, step {step} of epoch "
            found += f"{number // plan.steps_per_epoch} trained samples {some(samples)}"
            rule = f"step {step} trains samples {first} to {first + plan.size_of(step) - 1}"
            yield Finding("different-steps", found, rule, "at which samples belong to a step")
            return


def share_findings(plan: Plan, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if a rank trained more of a step than the step's size over the ranks."""
    for report in reports:
        samples = [sample for event in report.of("forward") for sample in event["samples"]]
        # Each sample once per epoch, as was judged before.
        for step, count in sorted(Counter(map(plan.step_of, samples)).items()):
            most = -(-plan.size_of(step) // plan.world_size)
            if count > most * plan.epochs:
                found = f"in {counted(plan.epochs, 'epoch')}, rank {report.rank} of "
                found += f"{plan.world_size} trained {counted(count, 'sample')} of step {step} "
                found += f"in total; the step has {counted(plan.size_of(step), 'sample')}"
                rule = (
                    "a rank trains at most the step's samples divided by the ranks, rounded up"
                )
                look = "at how a step's samples are split among the ranks"
                yield Finding("unequal-shares", found, rule, look)
                return


def start_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if training didn't start from rank 0's weights."""
    start, initial = reports[0].of("first_forward"), reports[0].answer["initial"]
    if start and start[0]["weights"] != initial:
        found = f"on {counted(len(reports), 'rank')}, training didn't start from the weights "
        found += "that rank 0 was given"
        rule, look = "every rank starts from rank 0's weights", "at whose weights the ranks use"
        yield Finding("wrong-start", found, rule, look)


def step_findings(plan: Plan, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if no weight moved, or too many or too few steps were taken."""
    answer, taken = reports[0].answer, steps_taken(reports[0])
    rule, look = "each step updates the weights once", "at what the optimizer steps with"
    if answer["weights"] == answer["initial"]:
        found = f"on {counted(len(reports), 'rank')}, training didn't change the weights"
        yield Finding("wrong-steps", found, rule, look)
    elif taken and taken != plan.num_steps:  # none if the updates are written out
        found = f"rank 0 took {counted(taken, 'optimizer step')}, not {plan.num_steps}"
        yield Finding("wrong-steps", found, rule, "at where the optimizer steps")


def differs_from_one_process(plan: Plan, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if the ranks agree on other weights than one process would reach."""
    rule = "a step follows the mean gradient over all its samples, however they are split"
    look = "at what the loss is divided by, in an epoch's last step too, and at the gradients, "
    look += "the learning rate and the optimizer that each step uses"
    who = f"the final weights on {counted(len(reports), 'rank')} differ from one process's"
    yield from weights_differ(
        "not-the-global-mean",
        who,
        reports[0].answer["weights"],
        reports[0].answer["expected"],
        1e-5,
        rule,
        look,
    )


def scenarios(seed: int) -> list[Scenario]:
    """Three ranks, two, and one; each job draws its own numbers."""
    plans = [plan_of(seed, world_size) for world_size in (3, 2, 1)]
    return [
        Scenario(
            name=counted(plan.world_size, "rank"),
            body=partial(body, plan),
            judge=partial(judge, plan),
            world_size=plan.world_size,
            deadline_s=6,
        )
        for plan in plans
    ]
