"""The run finishes, rank 0 logs the loss of all ranks, and training is what it was."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.collectives import mismatched_collectives
from rehearsal.kit.judge.findings import is_step_log, some
from rehearsal.kit.judge.weights import weights_differ
from rehearsal.kit.observe.samples import OddNet, marked_samples, weights_of
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding, counted, shortened

from .plan import Run, drawn

CODES = {
    "collective-on-some-ranks": "the run hangs or fails: the ranks' collectives differ",
    "wrong-steps": "rank 0 does not log the steps that are due",
    "logs-on-other-ranks": "a rank other than 0 returns log lines",
    "logs-rank-0-only": "the logged loss covers only rank 0's own samples",
    "not-the-global-loss": "the logged loss is not the mean over the samples of all ranks",
    "wrong-return-value": "train returns something other than a list of (step, loss)",
    "training-changed": "the weights differ from those that the steps should lead to",
}
PAIRS = "train returns a list: on rank 0, a pair (step, loss) for each log line; else empty"


def shares_of(run: Run, rank: int) -> Iterator[tuple[Any, Any]]:
    """A generator of one rank's samples per step."""
    inputs, targets = marked_samples(sum(map(sum, run.shares)), seed=run.data_seed)
    for step in range(run.steps):
        ids = list(run.ids(step, rank))
        yield inputs[ids], targets[ids]


def body(run: Run, context: RankContext, learner: SimpleNamespace) -> Any:
    """Train; return the log and the weights, and those of one process with all the shares."""
    context.init_group()
    leave_senders_alone()
    model = OddNet()
    reference = expected(run) if context.rank == 0 else {}
    shares = shares_of(run, context.rank)
    log = learner.train(model, shares, lr=run.lr, log_every=run.log_every)
    return {"log": log, "weights": weights_of(model), **reference}


def leave_senders_alone() -> None:
    """From here on, a reduce changes nothing on the ranks that don't receive it, as on NCCL.

    Gloo happens to leave the sum on rank 0 as well, whichever rank it was sent to.
    """
    import torch.distributed as dist

    reduce = dist.reduce

    def reduced(tensor: Any, dst: Any = None, *args: Any, **kwargs: Any) -> Any:
        receiver = kwargs.get("group_dst") if dst is None else dst
        is_receiver = receiver in (None, dist.get_rank())
        return reduce(tensor if is_receiver else tensor.clone(), dst, *args, **kwargs)

    patched: Any = functools.wraps(reduce)(reduced)
    dist.reduce = patched


def expected(run: Run) -> dict[str, Any]:
    """One process: the losses of all ranks' samples, those of rank 0's alone, the weights."""
    import torch

    model = OddNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=run.lr, momentum=0.9)
    everywhere, alone = [], []
    ranks = range(run.world_size)
    for parts in zip(*(shares_of(run, rank) for rank in ranks), strict=True):
        inputs, targets = (torch.cat(part) for part in zip(*parts, strict=True))
        errors = (model(inputs) - targets).pow(2).sum(1)
        everywhere.append(errors.mean().item())
        alone.append(errors[: len(parts[0][0])].mean().item())
        optimizer.zero_grad()
        errors.mean().backward()
        optimizer.step()
    return {"everywhere": everywhere, "alone": alone, "expected": weights_of(model)}


def judge(run: Run, reports: Sequence[RankReport], earlier: object) -> Iterable[Finding]:
    """The findings of one job."""
    if any(not report.has_answer for report in reports):
        yield from mismatched_collectives(reports)
        return
    answer = reports[0].answer
    for report in reports:
        if not is_step_log(report.answer["log"]):
            text = f"rank {report.rank} returned {shortened(repr(report.answer['log']), 80)}"
            yield Finding("wrong-return-value", text, PAIRS, "at what train returns")
            return
    log = [(int(step), float(loss)) for step, loss in answer["log"]]
    if [step for step, _ in log] != run.logged:
        steps = some([step for step, _ in log])
        text = f"in {run.steps} steps with log_every={run.log_every}, rank 0 logged "
        text += f"step{'s' * (len(log) > 1)} {steps}" if steps else "no step"
        rule = "rank 0 logs each step that is a multiple of log_every, counting from 1"
        yield Finding("wrong-steps", text, rule, "at the condition for adding a line")
        return
    for report in reports[1:]:
        if lines := report.answer["log"]:
            text = f"rank {report.rank} returned {counted(len(lines), 'log line')}"
            rule = "all ranks take part in the reduction, and only rank 0 logs its result"
            yield Finding("logs-on-other-ranks", text, rule, "at which ranks add a line")
            break
    for report in reports:
        changed = list(
            weights_differ(
                "training-changed",
                f"on {counted(len(reports), 'rank')}, the weights of rank {report.rank} and "
                "those of one process with all ranks' samples differ",
                report.answer["weights"],
                answer["expected"],
                1e-5,
                "a step follows the mean over its samples on all ranks, with or without a log",
                "at what a step sums and divides by, at the optimizer, and at what the log "
                "shares with them",
            )
        )
        yield from changed
        if changed:
            return
    for step, loss in log:
        right, own = (answer[name][step - 1] for name in ("everywhere", "alone"))
        if abs(loss - right) <= 1e-4 * right:
            continue
        is_own = abs(loss - own) <= 1e-4 * own
        found = f"for step {step}, rank 0 logged a loss of {loss:.4f}; over the samples of all "
        found += f"ranks it is {right:.4f}, over rank 0's own {own:.4f}"
        yield Finding(
            "logs-rank-0-only" if is_own else "not-the-global-loss",
            found,
            "a step's loss is the mean over its samples on all ranks",
            "at what is summed over the ranks, and at what it is divided by",
        )
        break


def scenarios(seed: int) -> list[Scenario]:
    """A run on three ranks, one on two, and one on one."""
    return [
        Scenario(
            name=name,
            body=partial(body, run),
            judge=partial(judge, run),
            world_size=run.world_size,
            deadline_s=4,
            judges_failures=True,
        )
        for name, run in drawn(seed).items()
    ]
