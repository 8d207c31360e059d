"""A checkpoint of an earlier call; a call with new settings, which is killed; and a third."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault, RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.findings import only_first, some
from rehearsal.kit.judge.one_writer import CODES as WRITER_CODES
from rehearsal.kit.judge.one_writer import one_writer
from rehearsal.kit.judge.weights import Weights, largest_difference, ranks_differ
from rehearsal.kit.observe.samples import OddNet, marked_samples, watch_samples
from rehearsal.kit.observe.updates import UpdateWatch
from .calls import RULE, Call, mistakes, setting_findings
from .plan import Plan, plan_of
from .reference import go_through

CODES = {
    **WRITER_CODES,
    "starts-over": "a call begins at step 0 although there is a checkpoint",
    "wrong-position": "a call does not begin at the checkpoint's step",
    "wrong-steps": "a call takes more or fewer steps than are left",
    "old-rate": "a parameter uses the learning rate of an earlier call",
    "old-decay": "a parameter uses the weight decay of an earlier call",
    "settings-of-another-group": "a parameter uses the rate or decay of another group",
    "schedule-restarts": "the schedule starts over: the rates are those of its first steps",
    "wrong-rate": "a parameter uses a rate or a decay that no call asks for",
    "ranks-differ": "the ranks end a step with different weights",
    "moments-lost": "the optimizer starts fresh",
    "not-the-same-run": "a step with the right settings ends with the wrong weights",
}
WRONG = {
    "old-rate": "the learning rate of an earlier call",
    "old-decay": "the weight decay of an earlier call",
    "schedule-restarts": "a schedule that starts over",
    "settings-of-another-group": "one rate and one decay for all groups",
}
EXACT = 2e-5  # of a weight; the same sums in another order differ by far less


def body(
    plan: Plan,
    run: str,
    calls: Sequence[Call],
    steps: int,
    context: RankContext,
    learner: SimpleNamespace,
) -> None:
    """The last of the calls, in the folder of ``run``."""
    import torch

    context.init_group()
    folder, data = context.folder / run, plan.data
    if context.rank == 0:
        if not folder.exists():
            folder.mkdir()
            if len(calls) > 1:
                go_through(data, calls[:1], calls[1].start, file=folder / "latest.pt")
        right, forgets = [go_through(data, calls, steps, forgets=it) for it in (False, True)]
        context.record("reference", right=right, forgets=forgets)
    torch.distributed.barrier()
    model, (inputs, targets) = OddNet(seed=context.rank), marked_samples(data.num_samples)

    def explain() -> None:
        """An update that is written out shows no settings: go through what it may have used."""
        for code, settings in mistakes(calls) if context.rank == 0 else ():
            weights = go_through(data, calls, steps, settings=settings)
            context.record("mistake", code=code, weights=weights)

    updates = UpdateWatch(context, model, keeps_weights=True, when_written_out=explain)
    watch_samples(context, model)
    learner.train(
        model,
        inputs,
        targets,
        folder=folder,
        steps=steps,
        save_every=plan.save_every,
        global_batch_size=data.global_batch_size,
        lr=calls[-1].lr,
        weight_decay=calls[-1].weight_decay,
    )
    updates.end()


def judge(
    plan: Plan, calls: Sequence[Call], steps: int, reports: Sequence[RankReport], _: object
) -> Iterator[Finding]:
    """Where the call began, and then step by step: settings, ranks, weights."""
    now, ended = calls[-1], all(report.has_answer for report in reports)
    taken = max(len(report.of("before_step")) for report in reports)
    if not taken and not ended:
        return
    where = f"on {len(reports)} ranks, with lr={now.lr:g}, weight_decay={now.weight_decay:g}"
    saved = "of" if len(calls) == 2 else "due at"  # by the check, or by the call before
    where += f" and a checkpoint {saved} step {now.start}" * (now.start > 0)
    if not taken:
        found = (
            f"{where}, the call took no step; of steps={steps}, {steps - now.start} were left"
        )
        look = "at what the loop goes over, and at when the optimizer steps"
        yield Finding("wrong-steps", found, RULE, look)
        return
    by_rank = [first_samples(report) for report in reports]
    first = sorted(sample for samples in by_rank for sample in samples)
    if first != sorted(plan.data.samples_of(now.start)):
        trained = "; ".join(
            f"{some(ids) or 'none'} on rank {rank}" for rank, ids in enumerate(by_rank)
        )
        found = f"{where}, the first step trained these samples: {trained}. Step "
        found += f"s={now.start} has samples {some(sorted(plan.data.samples_of(now.start)))}"
        is_over = now.start > 0 and first == sorted(plan.data.samples_of(0))
        code = "starts-over" if is_over else "wrong-position"
        look = "at what is saved and what is read back, when, and at which samples a step takes"
        yield Finding(code, found, RULE, look)
        return
    for step, number in enumerate(range(taken), now.start):
        if step < steps:
            yield from step_findings(
                reports, calls, step, number, f"{where}, in step s={step}, "
            )
    if now.start + taken > steps or (ended and now.start + taken < steps):
        found = f"{where}, the call took {counted(taken, 'step')}; of steps={steps}, "
        found += f"{steps - now.start} were left"
        yield Finding("wrong-steps", found, RULE, "at what ends the loop")
    yield from one_writer(reports, step_ends="stepped")


def first_samples(report: RankReport) -> list[int]:
    """What went through the model before the first step."""
    kinds = [event["kind"] for event in report.events]
    end = kinds.index("before_step") if "before_step" in kinds else 0
    return [s for e in report.events[:end] if e["kind"] == "forward" for s in e["samples"]]


def step_findings(
    reports: Sequence[RankReport], calls: Sequence[Call], step: int, number: int, where: str
) -> Iterator[Finding]:
    """One step of a call: its ``number``-th, the run's ``step``-th, both from 0."""
    reference = reports[0].of("reference")[0]
    ends = [e["weights"] for r in reports for e in r.of("stepped")[number : number + 1]]
    about = f"{where}the settings are right, but "
    look = "at which rank starts with what, or restores it"
    unequal = list(ranks_differ(ends, look, where=about))
    difference, name = 0.0, ""
    if ends:
        difference, name = largest_difference(ends[0], reference["right"][step])
        if difference < EXACT and not unequal:
            return  # whatever the settings are called that led there
    for report in reports:
        for event in report.of("before_step")[number : number + 1]:
            for parameter, settings in event["settings"].items():
                whose = f"{where}rank {report.rank}'s {parameter} had "
                yield from setting_findings(calls, step, parameter, settings, whose)
    yield from unequal
    if not difference < EXACT:
        yield from written_out_findings(reports, step, ends[0], where)
        forgets = largest_difference(ends[0], reference["forgets"][step])[0] < EXACT
        found = f"{about}the weights differ by up to "
        found += f"{difference:.2g}, in {name}, from those of an uninterrupted run"
        found += "; a new optimizer, without the saved moments, reaches these weights" * forgets
        look = "at what else a step depends on: the weights before it, the gradient, and the "
        look += "optimizer's moments"
        code = "moments-lost" if forgets else "not-the-same-run"
        yield Finding(code, found, RULE, look)


def written_out_findings(
    reports: Sequence[RankReport], step: int, end: Weights, where: str
) -> Iterator[Finding]:
    """A finding if a mistake in the settings explains the weights of an update without any."""
    for event in reports[0].of("mistake"):
        if largest_difference(end, event["weights"][step])[0] < EXACT:
            found = f"{where}rank 0 reached the weights to which {WRONG[event['code']]} leads"
            look = "at everything that the file brings back, and at which rate and decay each "
            look += "parameter's update uses"
            yield Finding(event["code"], found, RULE, look)
            return


def scenarios(seed: int) -> list[Scenario]:
    """The second and the third call of a run, and a run without a checkpoint."""
    plan = plan_of(seed)
    # Not at "optimizer_step": the reference on rank 0 takes some of those, too.
    kill = Fault(rank=plan.kill_rank, at="stepped", count=plan.kill_after)
    second, third = plan.world_sizes
    jobs: list[tuple[str, str, Sequence[Call], int, int, Fault | None]] = [
        ("a lower rate", "a", plan.calls[:2], plan.steps, second, kill),
        ("a third call", "a", plan.calls, plan.steps, third, None),
        # On three ranks in every check: without rank 0 there are two, which may write one file.
        ("nothing to restore", "b", [plan.fresh], plan.fresh_steps, 3, None),
    ]
    return [
        Scenario(
            name=name,
            body=partial(body, plan, run, calls, steps),
            judge=only_first(partial(judge, plan, calls, steps)),
            world_size=world_size,
            fault=fault,
            deadline_s=5,
            judges_failures=True,
        )
        for name, run, calls, steps, world_size, fault in jobs
    ]
