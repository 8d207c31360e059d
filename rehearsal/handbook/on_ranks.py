"""Call a notebook's function on real ranks, and get back what each of them returned.

    on_ranks(function, 2)                        what it returned on each rank, in rank order
    watch_ranks(function, 2)[1].collectives      what it did there, also if it raised or hung

The trainer of this project has a module of its own, ``trainer_runs.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rehearsal.engine.ranks import run_ranks
from rehearsal.engine.reports import Fault, RankReport
from rehearsal.session.primer import source_of

if TYPE_CHECKING:
    from rehearsal.engine.rank import RankContext  # which imports torch


class RankFailed(RuntimeError):
    """A rank raised, died, or didn't return in time; the message says which and where."""


def call_in_rank(
    context: RankContext,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    in_group: bool,
    has_fault: bool,
) -> Any:
    """In a rank: join the gloo group, then call the function."""
    if in_group:
        context.init_group()
    if has_fault:
        context.arm()  # counts the optimizer steps and file operations that a fault waits for
    return function(*arguments)


def watch_ranks(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    in_group: bool = True,
    fault: Fault | None = None,
    deadline_s: float = 60.0,
    echo: Callable[[str], None] | None = None,
) -> list[RankReport]:
    """Call ``function(*arguments)`` on each rank of a gloo group; report what each one did.

    The ranks are processes of this machine, with one thread each and torchrun's environment. A
    report has what the rank returned (``answer``), what it raised, where it hung, and which
    collectives it issued.

    Args:
        function: may be defined in a notebook; it travels by value. It returns what JSON can
            hold: numbers, strings, lists and dicts with string keys.
        world_size: at most 8.
        arguments: equal on all ranks.
        in_group: False for a function that joins the group itself, as a trainer's ``run`` does.
        fault: a signal for a rank, such as ``Fault.after_step(18, rank=1)``.
        deadline_s: the ranks are stopped after that many seconds.
        echo: called with each line that a rank prints, while it runs; prefixed with the rank.

    Raises:
        ValueError: if the world size is out of bounds.
    """
    return run_ranks(
        f"{__name__}:{call_in_rank.__name__}",
        function,
        arguments,
        in_group,
        fault is not None,
        world_size=world_size,
        deadline_s=deadline_s,
        fault=fault,
        lines=source_of(function),
        echo=echo,
    )


def on_ranks(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    deadline_s: float = 60.0,
    echo: Callable[[str], None] | None = None,
) -> list[Any]:
    """What ``function(*arguments)`` returns on each rank, in rank order; see ``watch_ranks``.

    Raises:
        RankFailed: if a rank raised, died, or didn't return before the deadline.
        ValueError: if the world size is out of bounds.
    """
    reports = watch_ranks(function, world_size, *arguments, deadline_s=deadline_s, echo=echo)
    return answers_of(reports, function.__name__, deadline_s)


def answers_of(reports: Sequence[RankReport], what: str, deadline_s: float) -> list[Any]:
    """What each rank returned, in rank order.

    Args:
        what: they ran, for the message: a function's name, or "the trainer".
        deadline_s: after how many seconds they were stopped, for the message.

    Raises:
        RankFailed: if a rank raised, died, or didn't return before the deadline.
    """
    for report in reports:
        name = f"[rank {report.rank}/{len(reports)}] {what}"
        if failure := report.failure:
            raise RankFailed(
                f"{name} raised {failure.kind}: {failure.message}\n{failure.traceback}"
            )
        if report.exitcode is None:
            raise RankFailed(
                f"{name} was still running after {deadline_s:g} s and was stopped. It was at:\n"
                f"{report.stacks}"
            )
        if report.exitcode:
            raise RankFailed(f"{name} ended with exit code {report.exitcode}.\n{report.output}")
    return [report.answer for report in reports]


def how_it_ended(report: RankReport) -> str:
    """A rank's end in a line: its exit code, and the first words of what it raised."""
    text = f"rank {report.rank}: exit code {report.exitcode}"
    if report.exitcode is None:
        text = f"rank {report.rank}: still running at the deadline"
    if report.failure:
        said = report.failure.message.strip().splitlines() or [""]
        words = said[0].rpartition("] ")[2].partition(". ")[0]  # no path of gloo's source
        text += f", {report.failure.kind}: {words}"
    return text
