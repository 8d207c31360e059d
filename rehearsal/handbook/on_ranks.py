"""Call a notebook's function on real ranks, and get back what each of them returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rehearsal.engine.ranks import run_ranks
from rehearsal.engine.reports import RankReport
from rehearsal.session.primer import source_of

if TYPE_CHECKING:
    from rehearsal.engine.rank import RankContext  # which imports torch


class RankFailed(RuntimeError):
    """A rank raised, died, or didn't return in time; the message says which and where."""


def call_in_group(
    context: RankContext, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    """In a rank: join the gloo group, then call the function."""
    context.init_group()
    return function(*arguments)


def watch_ranks(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    deadline_s: float = 60.0,
    echo: Callable[[str], None] | None = None,
) -> list[RankReport]:
    """Call ``function(*arguments)`` on each rank of a gloo group; report what each one did.

    The ranks are processes of this machine, with one thread each. A report has what the rank
    returned (``answer``), what it raised, where it hung, and which collectives it issued.

    Args:
        function: may be defined in a notebook; it travels by value. It returns what JSON can
            hold: numbers, strings, lists and dicts with string keys.
        arguments: equal on all ranks.
        deadline_s: the ranks are stopped after that many seconds.
        echo: called with each line that a rank prints, while it runs; prefixed with the rank.

    Raises:
        ValueError: if the world size is out of bounds.
    """
    return run_ranks(
        f"{__name__}:{call_in_group.__name__}",
        function,
        arguments,
        world_size=world_size,
        deadline_s=deadline_s,
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
    for report in reports:
        name = f"[rank {report.rank}/{world_size}] {function.__name__}"
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
