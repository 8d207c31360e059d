"""The ranks stay equal through each epoch's end, on the mean gradient, with one sync a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.collectives import mismatched_collectives
from rehearsal.kit.judge.coverage import coverage_findings, trained_by_step
from rehearsal.kit.judge.findings import first_of, some
from rehearsal.kit.judge.gradients import odd_net_gradient
from rehearsal.kit.judge.steps import first_weight_findings, sgd_findings
from rehearsal.kit.judge.weights import ranks_differ, weights_of_ranks
from rehearsal.kit.observe.samples import OddNet, marked_samples, watch_samples, weights_of
from rehearsal.kit.observe.steps import WatchedSteps

from .plan import FEATURES, Run, drawn

CODES = {
    "collective-on-some-ranks": "the run hangs or fails: the ranks' collectives differ",
    "trained-twice": "a sample is trained more than once",
    "never-trained": "a sample is left out",
    "wrong-number-of-steps": "the optimizer steps do not match the groups of micro-batches",
    "wrong-start": "training doesn't start from rank 0's weights",
    "ranks-differ": "the ranks end with different weights",
    "not-the-global-mean": "the ranks agree, but a step does not follow the global mean",
    "too-many-bytes": "gradients are all-reduced more than once per optimizer step",
}


def body(run: Run, context: RankContext, learner: SimpleNamespace) -> Any:
    """Train; return the weights before and after, and what the samples were."""
    context.init_group()
    model = OddNet(FEATURES, seed=run.model_seed + context.rank)
    model.unused.data.fill_(1.0 + context.rank)  # a mean of ones is exact
    watch = WatchedSteps(context, model)
    watch_samples(context, model)
    inputs, targets = marked_samples(run.num_samples, FEATURES, seed=run.data_seed)

    def epochs() -> Iterator[list[tuple[Any, Any]]]:
        for epoch, count in enumerate(run.epochs):
            places = [list(run.ids(epoch, number, context.rank)) for number in range(count)]
            yield [(inputs[place], targets[place]) for place in places]

    given = weights_of(model)
    learner.train(model, epochs(), lr=run.lr, grad_accum_steps=run.grad_accum_steps)
    watch.end_step()
    return {
        "given": given,
        "weights": weights_of(model),
        "samples": [inputs.tolist(), targets.tolist()] if context.rank == 0 else [],
        "sizes": [parameter.numel() for parameter in model.parameters()],
    }


def judge(run: Run, reports: Sequence[RankReport], earlier: object) -> Iterator[Finding]:
    """The findings of one job; the first part that has any explains the rest."""
    if any(not report.has_answer for report in reports):
        yield from mismatched_collectives(reports)
        return
    where = f"on {counted(len(reports), 'rank')}, "
    look = "at the weights with which each rank begins, and at each update: are the gradients "
    look += "it uses already reduced?"
    yield from first_of(
        sample_findings(run, reports),
        group_findings(run, reports),
        ranks_differ(weights_of_ranks(reports), look, most=0.0),
        first_weight_findings(reports, where),
        update_findings(run, reports, where),
        traffic_findings(run, reports),
    )


def sample_findings(run: Run, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if the ranks together did not train each sample once."""
    look = "at where each loop over micro-batches begins and ends, and at how often a "
    look += "micro-batch goes through the model"
    for finding in coverage_findings(reports, run.num_samples, 1, look):
        # No two epochs share a sample, so all of them together are counted as one.
        found = finding.found.replace("in 1 epoch", f"in {counted(len(run.epochs), 'epoch')}")
        yield finding._replace(found=found)


def group_findings(run: Run, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if the micro-batches between two updates are not those of a step."""
    rule = "a step is grad_accum_steps micro-batches, or what is left of an epoch"
    plan = f"with grad_accum_steps={run.grad_accum_steps}, epochs of {some(run.epochs)} "
    plan += "micro-batches "
    for report in reports:
        wanted, taken = list(run.steps(report.rank)), trained_by_step(report)
        count = len(report.of("optimizer_step"))
        if count != len(wanted):
            text = f"rank {report.rank} of {len(reports)} took "
            text += f"{counted(count, 'optimizer step')}; {plan}are "
            text += counted(len(wanted), "step")
            yield Finding("wrong-number-of-steps", text, rule, "at when the optimizer steps")
            return
        for step, (ours, theirs) in enumerate(zip(taken, wanted, strict=True), 1):
            if sorted(ours) != theirs:
                size = len(theirs) // run.micro_batch_size
                text = f"{plan}have {size} in step {step}, samples {some(theirs)} on rank "
                text += f"{report.rank}; it trained {some(sorted(ours))}"
                look = "at the micro-batch after which the optimizer steps"
                yield Finding("wrong-number-of-steps", text, rule, look)
                return


def update_findings(run: Run, reports: Sequence[RankReport], where: str) -> Iterator[Finding]:
    """A finding at the first step whose update isn't that of its samples' mean."""
    for finding in sgd_findings(reports, odd_net_gradient(reports), run.lr, where):
        yield finding._replace(code="not-the-global-mean")


def traffic_findings(run: Run, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if a rank put more into collectives than each step's gradients."""
    steps = len(list(run.steps(0)))
    for report in reports:
        sizes = report.answer["sizes"]
        most = steps * sum(sizes)
        sent = sum(
            entry["elements"]
            for entry in report.collectives
            # Neither weights nor flags: DDP has one per parameter (is there a gradient?).
            if entry["name"] != "broadcast" and entry["elements"] not in (1, len(sizes))
        )
        if sent > most:
            text = f"on {counted(len(reports), 'rank')}, rank {report.rank} put {sent} numbers "
            text += f"into reductions; {counted(steps, 'step')} have {most} gradients"
            rule = "gradients are all-reduced once per step, however many micro-batches it has"
            yield Finding("too-many-bytes", text, rule, "at which backward passes sync")
            return


def scenarios(seed: int) -> list[Scenario]:
    """A run on three ranks, one on two, and one on one."""
    return [
        Scenario(
            name=counted(run.world_size, "rank"),
            body=partial(body, run),
            judge=partial(judge, run),
            world_size=run.world_size,
            deadline_s=4,
            judges_failures=True,
        )
        for run in drawn(seed)
    ]
