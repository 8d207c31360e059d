"""Start a notebook's own ``run`` on ranks, as torchrun would, and kill one at an exact step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rehearsal.engine.ranks import run_ranks
from rehearsal.engine.reports import Fault, RankReport
from rehearsal.session.primer import source_of

if TYPE_CHECKING:
    from rehearsal.engine.rank import RankContext  # which imports torch


def call_armed(
    context: RankContext, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    """In a rank: count its optimizer steps, then call the function, which joins the group."""
    context.arm()
    return function(*arguments)


def start_job(
    function: Callable[..., Any],
    *arguments: Any,
    ranks: int = 2,
    kill: tuple[int, int] | None = None,
    deadline_s: float = 60.0,
) -> list[RankReport]:
    """Call ``function(*arguments)`` on each rank, with torchrun's environment around it.

    Args:
        function: may be defined in a notebook; it travels by value, and joins the group itself.
        ranks: their number, at most 8.
        kill: a rank and a step: that rank gets SIGKILL right after that optimizer step.
        deadline_s: the ranks are stopped after that many seconds.

    Raises:
        ValueError: if the number of ranks is out of bounds.
    """
    return run_ranks(
        f"{__name__}:{call_armed.__name__}",
        function,
        arguments,
        world_size=ranks,
        deadline_s=deadline_s,
        fault=Fault.after_step(kill[1], rank=kill[0]) if kill else None,
        lines=source_of(function),
    )


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
