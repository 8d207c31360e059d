"""Streams of different lengths: every rank joins every step, on the mean over its samples."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, zip_longest
from operator import length_hint
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, FindingTable, counted, shortened
from rehearsal.kit.judge.collectives import mismatched_collectives
from rehearsal.kit.judge.coverage import coverage_findings
from rehearsal.kit.judge.findings import first_of, some
from rehearsal.kit.judge.weights import largest_difference, ranks_differ, weights_of_ranks
from rehearsal.kit.observe.samples import marked_samples, watch_samples, weights_of

from .plan import READ_AHEAD, Streams, drawn
from .streams import SmallNet, Watched, expected

FINDINGS = FindingTable(
    {
        "read-more-than-once": (
            "a stream is opened more than once per epoch, or read by two threads at a time",
            "the stream of an epoch can be read once: it may be a pipe",
            "at every call of stream, and at what reads it",
        ),
        "reads-too-far-ahead": (
            "a rank holds more of an epoch in memory than the brief allows",
            f"a rank reads at most {READ_AHEAD} batches ahead of training",
            "at what is read before the first step of an epoch, and at what bounds the queue",
        ),
        "reads-in-the-training-loop": (
            "the training loop itself reads the stream",
            "a thread reads the stream while the training loop trains",
            "at the thread in which the iterator of the stream advances",
        ),
        "different-step": (
            "a step doesn't train the samples that it should",
            "a step takes the next batch_size pairs of each rank, or what the rank has left",
            "at how a batch is cut from the stream, and at what a rank does in each step",
        ),
        "not-the-mean": (
            "the ranks agree, but a step doesn't follow the mean over all its samples",
            "a step follows the mean loss over all its samples; each one weighs the same",
            "at every number that a sample's gradient is divided by, and at the learning rate",
        ),
        "wrong-loss": (
            "train doesn't return the mean loss of each epoch",
            "on every rank, train returns each epoch's mean loss over its samples on all ranks",
            "at what is summed, when, and over which ranks",
        ),
        "stream-error-lost": (
            "an exception in a stream doesn't end train, or leaves it as another exception",
            "train raises what the stream raised",
            "at what happens to an exception in the thread that reads",
        ),
        "wrong-log": (
            "rank 0's lines don't report each epoch's steps and samples",
            "after each epoch, rank 0, and no other, prints its steps, samples and loss",
            "at what is printed, by which ranks, and at the numbers in it",
        ),
    }
)
CODES = {
    **FINDINGS.codes,
    "collective-on-some-ranks": "the run hangs or fails: the ranks' collectives differ",
    "trained-twice": "a sample is trained more than once",
    "never-trained": "a sample is left out",
    "ranks-differ": "the ranks end with different weights",
}
LINE = re.compile(r"^epoch (\d+): (\d+) steps, (\d+) samples, loss (\d\S*)$", re.MULTILINE)


def body(plan: Streams, context: RankContext, learner: SimpleNamespace) -> Any:
    """Train on streams; return what the rank read, trained and returned, and the reference."""
    context.init_group()
    model = SmallNet(seed=context.rank)
    reference = expected(plan)
    watch_samples(context, model)
    stream = Watched(context, plan, model)
    returned = learner.train(
        model,
        stream,
        epochs=len(plan.counts),
        batch_size=plan.batch_size,
        lr=plan.lr,
        warmup_steps=plan.warmup_steps,
    )
    return {
        "weights": weights_of(model),
        "returned": returned,
        "expected": reference,
        **stream.observed(),
    }


def broken(context: RankContext, learner: SimpleNamespace) -> Any:
    """What ``train`` does instead of raising what two streams raise; after some batches."""
    context.init_group()
    model = SmallNet(seed=0)
    pairs = list(zip(*marked_samples(2 + context.seed % 9), strict=True))
    # No frame of this file may be in the traceback: a thread that prints one opens the file.
    calls: list[tuple[str, Callable[[Any], Any], Any]] = [
        ("FileNotFoundError", open, context.folder / "shard-00007"),
        # A direct subclass of Exception: no list of the usual errors includes it.
        ("UnpicklingError", pickle.loads, b"\xff"),
    ]
    for name, call, argument in calls:
        context.record("stream", raises=name)
        unread = iter([argument])
        stream = chain(pairs, map(call, unread))
        settings = {"epochs": 1, "batch_size": 2, "lr": 0.01, "warmup_steps": 3}
        try:
            learner.train(model, lambda epoch, own=stream: own, **settings)
        except Exception as error:
            if length_hint(unread):  # the stream has not raised anything yet
                raise
            if type(error).__name__ != name:
                return {"instead": f"train raised {type(error).__name__}: {error}"}
        else:
            return {"instead": "train returned normally"}
    return {"instead": None}


def judge_broken(reports: Sequence[RankReport], earlier: object) -> Iterator[Finding]:
    """A finding unless ``train`` raised what its stream did."""
    for report in reports:
        instead = report.answer["instead"] if report.has_answer else None
        if report.exitcode is None:
            instead = "train was still running at the deadline"
        if instead:
            raised = [event["raises"] for event in report.of("stream")][-1:]
            found = f"the stream raised {some(raised) or 'an exception'} partway through, and "
            yield FINDINGS("stream-error-lost", found + shortened(instead, 200))


def judge(plan: Streams, reports: Sequence[RankReport], earlier: object) -> Iterator[Finding]:
    """The findings of one job; the first part that has any explains the rest."""
    if any(not report.has_answer for report in reports):
        yield from mismatched_collectives(reports)
        return
    look = "at what happens to the batches of a rank that has more, or fewer, than another"
    look_apart = "at the weights that ranks start with, and each update's gradient and rate"
    yield from first_of(
        coverage_findings(reports, plan.num_samples, 1, look),
        reading_findings(plan, reports),
        step_findings(plan, reports),
        ranks_differ(weights_of_ranks(reports), look_apart, most=0.0),
        weight_findings(reports),
        loss_findings(reports),
        log_findings(plan, reports),
    )


def reading_findings(plan: Streams, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """How the streams were read."""
    for report in reports:
        answer, who = report.answer, f"rank {report.rank} of {len(reports)}"
        if answer["opened"] != list(range(len(plan.counts))):
            found = f"{who} called stream for epochs {some(answer['opened'])}; there are "
            found += f"{len(plan.counts)}"
            yield FINDINGS("read-more-than-once", found)
        elif answer["num_at_once"]:
            found = f"two threads of {who} read its stream at the same time"
            yield FINDINGS("read-more-than-once", found)
        elif answer["num_read_by_main"]:
            found = f"{who} read {counted(answer['num_read_by_main'], 'pair')} in its main "
            found += "thread, where it trains"
            yield FINDINGS("reads-in-the-training-loop", found)
        # The batch that is about to be trained, and the pair that is read, are not ahead.
        elif answer["most_ahead"] > (READ_AHEAD + 1) * plan.batch_size + 1:
            found = f"{who} had read {answer['most_ahead']} pairs that it had not trained yet; "
            found += f"a batch has {plan.batch_size}"
            yield FINDINGS("reads-too-far-ahead", found)


def step_findings(plan: Streams, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """Which samples each rank trained in each forward pass."""
    for report in reports:
        passes = [event["samples"] for event in report.of("forward") if event["samples"]]
        shares = [list(step[report.rank]) for step in plan.steps() if step[report.rank]]
        ours: list[int]
        share: list[int]
        for number, (ours, share) in enumerate(zip_longest(passes, shares, fillvalue=[]), 1):
            if ours != share:
                found = f"rank {report.rank} of {len(reports)} trained samples "
                found += f"{some(ours) or 'none'} in its forward pass {number}; its stream's "
                found += f"next batch is {some(share) or 'none'}"
                yield FINDINGS("different-step", found)
                return


def weight_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if the run differs from one process that trains the same steps."""
    answer = reports[0].answer
    difference, name = largest_difference(answer["weights"], answer["expected"]["weights"])
    if not difference <= 1e-5:
        found = f"on {counted(len(reports), 'rank')}, the weights differ by up to "
        found += f"{difference:.2g}, in {name}, from those of one process that trains the same "
        found += "steps from rank 0's weights"
        yield FINDINGS("not-the-mean", found)


def loss_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if a rank returned other losses."""
    wanted = reports[0].answer["expected"]["losses"]
    for report in reports:
        returned = report.answer["returned"]
        if not (
            isinstance(returned, list)
            and len(returned) == len(wanted)
            and all(isinstance(loss, float) for loss in returned)
            and all(
                math.isclose(*pair, rel_tol=1e-4) for pair in zip(returned, wanted, strict=True)
            )
        ):
            found = f"rank {report.rank} of {len(reports)} returned {str(returned)[:200]}; the "
            found += f"epochs' mean losses are {wanted}"
            yield FINDINGS("wrong-loss", found)
            return


def log_findings(plan: Streams, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if rank 0's lines are missing or wrong, or another rank prints them."""
    losses = reports[0].answer["expected"]["losses"]
    wanted = [
        (epoch, plan.num_steps(epoch), sum(plan.counts[epoch]))
        for epoch in range(len(plan.counts))
    ]
    for report in reports:
        lines = LINE.findall(report.output)
        found = [tuple(map(int, line[:3])) for line in lines]
        if found != (wanted if report.rank == 0 else []):
            text = f"rank {report.rank} of {len(reports)} printed (epoch, steps, samples) "
            text += f"{found}; rank 0 should print {wanted}, and the others nothing"
            yield FINDINGS("wrong-log", text)
            return
        for line, loss in zip(lines, losses, strict=False):
            if not is_near(line[3], loss):
                text = f"rank 0 printed a loss of {line[3]} for epoch {line[0]}; "
                text += f"it is {loss:.6f}"
                yield FINDINGS("wrong-log", text)
                return


def is_near(printed: str, loss: float) -> bool:
    """Whether a printed number is ``loss``, as far as its digits go, two of them at least."""
    try:
        return math.isclose(float(printed), loss, abs_tol=0.006)
    except ValueError:
        return False


def scenarios(seed: int) -> list[Scenario]:
    """Two jobs with streams drawn from ``seed``, and one whose stream raises."""
    names = ("a rank is done first", "as many batches on each rank")
    return [
        Scenario(
            name=name,
            body=partial(body, plan),
            judge=partial(judge, plan),
            world_size=plan.world_size,
            deadline_s=5,
            judges_failures=True,
        )
        for name, plan in zip(names, drawn(seed), strict=True)
    ] + [
        Scenario(
            name="a broken shard",
            body=broken,
            judge=judge_broken,
            world_size=1,
            deadline_s=12,  # a right answer may look after its reader every few seconds
            judges_failures=True,
        )
    ]
