"""The first steps, in 00_start_here: a collective, a hang, and a first verdict.

``mean_over_ranks`` is not a drill: it takes a minute, and it has no clock and no history. It
shows what a verdict looks like, and that the ranks are real.
"""

from __future__ import annotations

import dataclasses
import linecache
import random
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rehearsal.engine.ranks import run_ranks
from rehearsal.engine.reports import RankReport
from rehearsal.grading.check import drawn_seed
from rehearsal.grading.verdict import FindingTable, Verdict, failure_verdict, listed
from rehearsal.session.display import show, show_verdict

if TYPE_CHECKING:
    from rehearsal.engine.rank import RankContext  # which imports torch

WORLD_SIZE = 3  # of the check: it catches an answer that always divides by two
DEADLINE_S = 5.0
HOW = "rehearsal.session.primer:"
TABLE = FindingTable(
    {
        "not-the-mean": (
            "a rank doesn't return the mean of all ranks' values",
            "every rank returns the mean of the values of all ranks",
            "at what each rank has after the collective, and at what you divide it by",
        )
    }
)


def call_and_stay(context: RankContext, function: Callable[[], Any]) -> None:
    """In a rank: call ``function()``, then stay until every rank has returned from it.

    In a real job, a rank continues with its next step. If it ended here instead, gloo would
    report its closed connection, and the others wouldn't hang.
    """
    context.init_group()
    try:
        context.record("returned", answer=function())
    finally:
        (context.folder / f"done-{context.rank}").touch()
    others = [context.folder / f"done-{rank}" for rank in range(context.world_size)]
    while not all(other.exists() for other in others):
        time.sleep(0.01)


def call_with_own(
    context: RankContext, function: Callable[[float], Any], values: Sequence[float]
) -> Any:
    """In a rank: call ``function`` with this rank's value."""
    context.init_group()
    return function(values[context.rank])


def source_of(function: Callable[..., Any]) -> dict[str, str]:
    """The text of the cell or file that defines a function, for tracebacks."""
    file = function.__code__.co_filename
    return {file: "".join(linecache.getlines(file))}


def show_ranks(
    function: Callable[[], Any], *, world_size: int = 2, deadline_s: float = DEADLINE_S
) -> None:
    """Run ``function()`` on real ranks of a gloo group, and show what each of them did.

    Args:
        deadline_s: a rank that hasn't returned by then is stopped, and reported as waiting.

    Raises:
        ValueError: if the world size is out of bounds.
        CannotStartRanks: if the server that forks the ranks cannot be started.
        ConnectionError: if that server died in both tries.
    """
    reports = run_ranks(
        HOW + call_and_stay.__name__,
        function,
        world_size=world_size,
        deadline_s=deadline_s,
        lines=source_of(function),
    )
    file = function.__code__.co_filename
    show("\n".join(what_it_did(report, world_size, deadline_s, file) for report in reports))


def what_it_did(report: RankReport, world_size: int, deadline_s: float, file: str) -> str:
    """One rank: "rank 0 of 2 returned 3.0".

    Args:
        file: the one with the learner's code.
    """
    name = f"rank {report.rank} of {world_size}"
    if returned := report.of("returned"):
        return f"{name} returned {returned[0]['answer']}"
    if report.failure:
        return f"{name} raised {report.failure.kind}: {report.failure.message}"
    if report.exitcode is None:
        # Of its stack, the innermost line of the learner's; the others are torch's and ours.
        found = re.search(rf'"{re.escape(file)}", (line .+)', report.stacks)
        place = f", at {found[1]}" if found else ""
        return f"{name} was still waiting after {deadline_s:g} s{place}"
    return f"{name} exited with code {report.exitcode} without returning"


def check_mean(function: Callable[[float], Any], *, seed: int | None = None) -> Verdict:
    """Call ``function(value)`` on three ranks, each with its own value, and show the verdict.

    Args:
        seed: what the values are drawn from; by default, each check draws a new one.

    Raises:
        BadSeed: if the seed is not a whole number, 0 or more.
        CannotStartRanks: if the server that forks the ranks cannot be started.
        ConnectionError: if that server died in both tries.
    """
    began = time.perf_counter()
    seed = drawn_seed(seed)
    # Quarters, so that sums are exact; all different, so that no rank is right by chance.
    values = [number / 4 for number in random.Random(seed).sample(range(4, 100), WORLD_SIZE)]
    reports = run_ranks(
        HOW + call_with_own.__name__,
        function,
        values,
        world_size=WORLD_SIZE,
        deadline_s=DEADLINE_S,
        lines=source_of(function),
    )
    verdict = Verdict(
        drill=function.__name__,
        status="passed",
        world_sizes=[WORLD_SIZE],
        seconds=time.perf_counter() - began,
        seed=seed,
        after="What does each rank see if rank 2 skips the collective?",
        then=[("next", "your plan, in the cells below")],
    )
    again = f"change {function.__name__}, run its cell, then run this one again"
    if failure := failure_verdict(reports, DEADLINE_S):
        status, findings, detail = failure
        verdict = dataclasses.replace(
            verdict, status=status, findings=findings, detail=detail, after=again
        )
    elif wrong := not_the_mean(values, [report.answer for report in reports]):
        finding = TABLE("not-the-mean", wrong)
        verdict = dataclasses.replace(verdict, status="wrong", findings=[finding], after=again)
    show_verdict(verdict)
    return verdict


def not_the_mean(values: Sequence[float], answers: Sequence[Any]) -> str:
    """What is wrong with the ranks' answers; empty if each is the mean of the values."""
    mean = sum(values) / len(values)
    if all(isinstance(a, int | float) and abs(a - mean) < 1e-4 * mean for a in answers):
        return ""
    returned = listed([f"rank {rank} returned {answer}" for rank, answer in enumerate(answers)])
    given = listed([f"{value:g}" for value in values])
    return f"{returned}; the mean of {given} is {mean:.6g}"
