"""The run finishes, rank 0 logs the loss of all ranks, and training is what it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.collectives import mismatched_collectives
from rehearsal.kit.judge.findings import some
from rehearsal.kit.judge.weights import weights_differ
from rehearsal.kit.observe.samples import OddNet, marked_samples, weights_of
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding, counted, shortened

CODES = {
    "collective-on-some-ranks": "the run hangs or fails: the ranks' collectives differ",
    "wrong-steps": "rank 0 does not log the steps that are due",
    "logs-on-other-ranks": "a rank other than 0 returns log lines",
    "logs-rank-0-only": "the logged loss covers only rank 0's own samples",
    "not-the-global-loss": "the logged loss is not the mean over the samples of all ranks",
    "wrong-return-value": "train returns something other than a list of (step, loss)",
    "training-changed": "the weights differ from those that the steps should lead to",
}
# Shares of a step by rank: 3, 2 and 1 samples, the last two steps fewer.
SHARES = [(3, 2, 1), (1, 3, 2), (2, 1, 3), (3, 1, 1), (1, 2, 3), (2, 2, 1), (1, 1, 2)]
LR, LOG_EVERY = 0.03, 3
PAIRS = "train returns a list: on rank 0, a pair (step, loss) for each log line; else empty"


def shares_of(rank: int, world_size: int) -> Iterator[tuple[Any, Any]]:
    """A generator of one rank's samples per step."""
    inputs, targets = marked_samples(64)
    at = 0
    for sizes in SHARES:
        first = at + sum(sizes[:rank])
        at += sum(sizes[:world_size])
        yield inputs[first : first + sizes[rank]], targets[first : first + sizes[rank]]


def body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Train; return the log and the weights, and those of one process with all the shares."""
    context.init_group()
    rank, world_size = context.rank, context.world_size
    model = OddNet()
    shares = shares_of(rank, world_size)
    log = learner.train(model, shares, lr=LR, log_every=LOG_EVERY)
    return {"log": log, "weights": weights_of(model), **expected(world_size)}


def is_log(lines: object) -> bool:
    """Whether that is a list of pairs of a whole number and a number."""
    return isinstance(lines, list) and all(
        isinstance(line, list)
        and len(line) == 2
        and all(isinstance(value, int | float) for value in line)
        and float(line[0]).is_integer()
        for line in lines
    )


def expected(world_size: int) -> dict[str, Any]:
    """One process: the losses of all ranks' samples, those of rank 0's alone, the weights."""
    import torch

    model = OddNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    everywhere, alone = [], []
    for parts in zip(*(shares_of(rank, world_size) for rank in range(world_size)), strict=True):
        inputs, targets = (torch.cat(part) for part in zip(*parts, strict=True))
        errors = (model(inputs) - targets).pow(2).sum(1)
        everywhere.append(errors.mean().item())
        alone.append(errors[: len(parts[0][0])].mean().item())
        optimizer.zero_grad()
        errors.mean().backward()
        optimizer.step()
    return {"everywhere": everywhere, "alone": alone, "expected": weights_of(model)}


def judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterable[Finding]:
    """The findings of one job."""
    if any(not report.has_answer for report in reports):
        yield from mismatched_collectives(reports)
        return
    answer = reports[0].answer
    for report in reports:
        if not is_log(report.answer["log"]):
            text = f"rank {report.rank} returned {shortened(repr(report.answer['log']), 80)}"
            yield Finding("wrong-return-value", text, PAIRS, "at what train returns")
            return
    log = [(int(step), float(loss)) for step, loss in answer["log"]]
    wanted = [step for step in range(1, len(SHARES) + 1) if step % LOG_EVERY == 0]
    if [step for step, _ in log] != wanted:
        steps = some([step for step, _ in log])
        text = f"in {len(SHARES)} steps with log_every={LOG_EVERY}, rank 0 logged "
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
