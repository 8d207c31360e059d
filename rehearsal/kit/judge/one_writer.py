"""Does only one rank write each file? Read from the events "file" and those that end a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, FindingTable, counted

WRITER = FindingTable(
    {
        "ranks-write-one-file": (
            "two ranks write the same file",
            "no two ranks write the same file: one may publish what the other still writes",
            "at which ranks reach the save, and under which names they write",
        )
    }
)
CODES = WRITER.codes
WRITES = ("open", "torch.save", "truncate", "symlink")
MOVES = ("rename", "link")  # what they write is ``to``


def one_writer(
    reports: Sequence[RankReport], *, step_ends: str = "optimizer_step"
) -> Iterator[Finding]:
    """A finding if two ranks wrote the same file after the same number of steps.

    Args:
        step_ends: the event that ends a step.
    """
    writers: dict[tuple[str, int], int] = {}
    for report in reports:
        steps = 0
        for event in report.events:
            steps += event["kind"] == step_ends
            path = written_by(event) if event["kind"] == "file" else None
            if path is not None:
                first = writers.setdefault((path, steps), report.rank)
                if first != report.rank:
                    found = f"ranks {first} and {report.rank} both wrote {path} after "
                    yield WRITER("ranks-write-one-file", found + counted(steps, "step"))
                    return


def written_by(event: Mapping[str, Any]) -> str | None:
    """The file that gets other content by a file operation, if any."""
    if event["op"] in WRITES:
        return str(event["path"])
    return event["to"] if event["op"] in MOVES else None


def one_rank_changes(reports: Iterable[RankReport]) -> Iterator[Finding]:
    """A finding if two ranks wrote, renamed or deleted the same file, however far apart."""
    ranks: dict[str, int] = {}
    for report in reports:
        for event in report.of("file"):
            is_changed = event["op"] in (*WRITES, *MOVES, "remove")
            for path in filter(None, [event["path"], event.get("to")] * is_changed):
                first = ranks.setdefault(path, report.rank)
                if first != report.rank:
                    found = f"ranks {first} and {report.rank} both wrote or deleted {path}"
                    yield WRITER("ranks-write-one-file", found)
                    return
