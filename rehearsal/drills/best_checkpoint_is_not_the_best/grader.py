"""Held-out sequences that don't divide, fewer of them than ranks, and nearly equal losses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.findings import only_first, some
from rehearsal.kit.judge.one_writer import CODES as WRITER_CODES
from rehearsal.kit.judge.one_writer import one_writer
from rehearsal.kit.judge.weights import largest_difference, ranks_differ, weights_of_ranks
from rehearsal.kit.observe.restart import run_folder
from rehearsal.kit.observe.samples import before_forward, weights_of

from .runs import RunPlan, expected, mode_net, plans_of

CODES = {
    **WRITER_CODES,
    "wrong-steps": "the run takes more or fewer optimizer steps than its epochs have",
    "ranks-differ": "the ranks end with different weights",
    "not-the-same-run": "evaluating changes what is trained, or the training itself is wrong",
    "wrong-evaluations": "an evaluation is missing or extra, or a rank doesn't return it",
    "wrong-loss": "an evaluation's loss is not the one of a single process",
    "left-out": "a held-out sequence is never evaluated",
    "counted-twice": "a held-out sequence counts more than once",
    "wrong-weighting": "every sequence is evaluated once, but tokens don't count equally",
    "wrong-mode": "an evaluation runs in training mode, or train returns a model in eval mode",
    "not-shared": "a rank evaluates more than its share",
    "wrong-shape": "an evaluation runs the model on another shape",
    "not-the-best": "best.pt is not the evaluation with the lowest loss",
}
TOLERANCE = 1e-4  # against sums in another order; another mean is off by far more
ONE_MEAN = "the loss is the sum over all held-out tokens, divided by their number"


def body(context: RankContext, learner: SimpleNamespace, *, plan: RunPlan) -> dict[str, Any]:
    """Train, and read best.pt."""
    import torch

    context.init_group()
    net = mode_net(context.rank).train(plan.comes_in_training_mode)

    passes: list[dict[str, Any]] = []
    trained = set[int]()  # their numbers: those that a backward pass followed

    def begins(tokens: torch.Tensor) -> None:
        # Fewer held-out sequences than tokens, and each begins with its number.
        firsts = [int(row[0]) for row in tokens if row.any()]
        passes.append(
            {"sequences": firsts, "shape": list(tokens.shape), "trains": net.training}
        )

    def ends(_: object, __: object, logits: torch.Tensor) -> None:
        if logits.requires_grad:
            logits.register_hook(partial(lambda number, _: trained.add(number), len(passes)))

    before_forward(net, begins)
    net.register_forward_hook(ends)
    folder = run_folder(context, f"run-{plan.world_size}")
    evaluations = learner.train(
        net, plan.sequences, plan.held_out, folder=folder, **plan.settings()
    )
    for number, facts in enumerate(passes, 1):
        if number not in trained:
            context.record("evaluated", **facts)
    torch.distributed.barrier()  # any rank may write best.pt: until it is there
    best: dict[str, Any] | None = None
    if context.rank == 0 and (folder / "best.pt").exists():
        state = torch.load(folder / "best.pt")
        best = {"step": int(state["step"]), "loss": float(state["loss"])}
        loaded = mode_net(1)
        loaded.load_state_dict(state["model"])
        best["weights"] = weights_of(loaded)
    return {
        "weights": weights_of(net),
        "evaluations": [(int(step), float(loss)) for step, loss in evaluations],
        "best": best,
        "trains": net.training,
        "expected": expected(plan) if context.rank == 0 else None,
    }


def judge(
    reports: Sequence[RankReport], earlier: object, *, plan: RunPlan
) -> Iterator[Finding]:
    """The training, then the evaluations, then best.pt; the first finding counts."""
    where = f"on {counted(len(reports), 'rank')}, with "
    where += f"{counted(len(plan.held_out), 'held-out sequence')}, "
    wanted = reports[0].answer["expected"]
    difference, name = largest_difference(reports[0].answer["weights"], wanted["weights"])
    for report in reports:
        taken = len(report.of("optimizer_step"))
        # Updates may be written out, without an optimizer: then the weights tell.
        if taken != len(plan.batches) and not (taken == 0 and difference <= TOLERANCE):
            found = f"{where}rank {report.rank} took {counted(taken, 'optimizer step')}; "
            found += f"the run has {len(plan.batches)}"
            rule = "a run trains every batch of its epochs once"
            yield Finding("wrong-steps", found, rule, "at what ends the loops")
    look = "at the weights with which each rank begins, and at each update"
    yield from ranks_differ(weights_of_ranks(reports), look, most=0.0, where=where)
    if not difference <= TOLERANCE:
        found = f"{where}the final weights differ by up to {difference:.2g}, in {name}, from "
        found += "those of one process that trains the same batches"
        rule = "the model trains in training mode, on the mean over the global batch's tokens"
        look = "at what an evaluation leaves behind for the next step, and at the gradient"
        yield Finding("not-the-same-run", found, rule, look)
    due = [evaluation["step"] for evaluation in wanted["evaluations"]]
    for report in reports:
        steps = [step for step, _ in report.answer["evaluations"]]
        if steps != due:
            found = f"{where}rank {report.rank} returned evaluations of steps "
            found += f"{some(steps, 12) or 'none'}; due were {some(due, 12)}"
            rule = "on every rank, train returns an evaluation every evaluate_every steps"
            yield Finding("wrong-evaluations", found, rule, "at when a rank evaluates")
    yield from work_findings(reports, plan, len(due), where)
    for number, evaluation in enumerate(wanted["evaluations"]):
        yield from loss_findings(reports, plan, number, evaluation, where)
    yield from one_writer(reports)
    yield from best_findings(reports[0].answer["best"], plan, wanted["evaluations"], where)


def work_findings(
    reports: Sequence[RankReport], plan: RunPlan, evaluations: int, where: str
) -> Iterator[Finding]:
    """Findings about what a rank does for its evaluations."""
    shape = [plan.eval_batch_size, plan.length]
    for report in reports:
        events = report.of("evaluated")
        for event in events:
            if event["shape"] != shape:
                found = f"{where}rank {report.rank} ran the model on inputs of shape "
                found += f"{event['shape']} in an evaluation, not {shape}"
                rule = "in an evaluation, each forward pass has the shape (eval_batch_size, "
                rule += "longest held-out sequence - 1)"
                yield Finding("wrong-shape", found, rule, "at how a batch is filled up")
            if event["trains"]:
                found = f"{where}rank {report.rank} ran an evaluation in training mode"
                rule = "the model evaluates in eval mode and trains in training mode"
                yield Finding("wrong-mode", found, rule, "at what sets the model's mode")
        if not report.answer["trains"]:
            found = f"{where}rank {report.rank}'s model was in eval mode after train"
            rule = "the model is returned in training mode"
            yield Finding("wrong-mode", found, rule, "at what an evaluation leaves behind")
        most = plan.share * evaluations
        rows = sum(len(event["sequences"]) for event in events)
        if rows > most:
            found = f"{where}rank {report.rank} evaluated {counted(rows, 'sequence')} in "
            found += f"{counted(evaluations, 'evaluation')}; its share is {most}"
            rule = "no rank evaluates more than its share of the held-out sequences, rounded up"
            yield Finding("not-shared", found, rule, "at who evaluates what")


def loss_findings(
    reports: Sequence[RankReport],
    plan: RunPlan,
    number: int,
    evaluation: dict[str, Any],
    where: str,
) -> Iterator[Finding]:
    """Findings about the loss of one evaluation, on every rank."""
    right = mean_of(evaluation["losses"], plan)
    for report in reports:
        step, loss = report.answer["evaluations"][number]
        if math.isclose(loss, right, rel_tol=TOLERANCE):
            continue
        times, num_evaluations = Counter[int](), len(report.answer["evaluations"])
        for other in reports:
            for event in other.of("evaluated"):
                times.update(event["sequences"])
        times = Counter({n: count // num_evaluations for n, count in times.items()})
        missing = [n for n in range(1, len(plan.held_out) + 1) if not times[n]]
        twice = [n for n, count in times.items() if count > 1]
        code, look = "wrong-loss", "at what the two sums of the mean are made of, on each rank"
        found = f"{where}rank {report.rank} evaluated step {step} at {loss:.5g}; the same "
        found += f"weights have a loss of {right:.5g} in one process"
        if missing:
            code, look = "left-out", "at which rank evaluates which sequences"
            found += f". {counted(len(missing), 'sequence')} went through no rank's model"
        elif not twice:
            code, look = "wrong-weighting", "at what a batch, or a rank, adds to the mean"
            found += ". Each sequence went through one rank's model"
        elif math.isclose(loss, mean_of(evaluation["losses"], plan, times), rel_tol=TOLERANCE):
            code, look = "counted-twice", "at which rank evaluates which sequences"
            found += f", where sequence {min(twice) - 1} counts once"
        yield Finding(code, found, ONE_MEAN, look)


def mean_of(losses: Sequence[float], plan: RunPlan, times: Counter[int] | None = None) -> float:
    """The mean over tokens, with each sequence counted as often as ``times`` says."""
    often = [times[n] if times else 1 for n in range(1, len(losses) + 1)]
    tokens = [len(sequence) - 1 for sequence in plan.held_out]
    total = sum(loss * count for loss, count in zip(losses, often, strict=True))
    return total / sum(num * count for num, count in zip(tokens, often, strict=True))


def best_findings(
    best: dict[str, Any] | None,
    plan: RunPlan,
    evaluations: Sequence[dict[str, Any]],
    where: str,
) -> Iterator[Finding]:
    """Findings about best.pt."""
    losses = [mean_of(evaluation["losses"], plan) for evaluation in evaluations]
    # Two losses may be too close to tell apart when they are summed in another order.
    close = [n for n, loss in enumerate(losses) if loss <= min(losses) * (1 + 1e-5)]
    steps = [evaluations[n]["step"] for n in close]
    lowest = close[steps.index(best["step"])] if best and best["step"] in steps else close[0]
    wanted, found = evaluations[lowest], ""
    if best is None:
        found = f"{where}there is no best.pt"
    elif best["step"] not in steps:
        found = f"{where}best.pt has step {best['step']}, with a loss of {best['loss']:.6g}; "
        found += f"the lowest loss is that of step {wanted['step']}, {losses[lowest]:.6g}"
    elif not math.isclose(best["loss"], losses[lowest], rel_tol=TOLERANCE):
        found = f"{where}best.pt has a loss of {best['loss']:.5g}; it's {losses[lowest]:.5g}"
    elif not largest_difference(best["weights"], wanted["weights"])[0] <= TOLERANCE:
        found = f"{where}best.pt has step {best['step']}, but not that step's weights"
    if found:
        rule = "best.pt has the step, loss and model of the evaluation with the lowest loss"
        yield Finding("not-the-best", found, rule, "at what is compared, and what is saved")


def scenarios(seed: int) -> list[Scenario]:
    """The jobs of a check."""
    return [
        Scenario(
            name=name,
            body=partial(body, plan=plan),
            judge=only_first(partial(judge, plan=plan)),
            world_size=plan.world_size,
        )
        for name, plan in zip(("many", "few", "slow"), plans_of(seed), strict=True)
    ]
