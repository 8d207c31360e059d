"""Does only one rank write each file? Read from the events "file" and "optimizer_step"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, counted

CODES = {"ranks-write-one-file": "two ranks write the same file in the same step"}


def one_writer(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if two ranks wrote the same file after the same number of steps."""
    writers: dict[tuple[str, int], int] = {}
    for report in reports:
        steps = 0
        for event in report.events:
            steps += event["kind"] == "optimizer_step"
            if event["kind"] == "file" and event["op"] in ("open", "torch.save"):
                path = event["path"]
                first = writers.setdefault((path, steps), report.rank)
                if first != report.rank:
                    yield Finding(
                        "ranks-write-one-file",
                        f"ranks {first} and {report.rank} both wrote {path} after "
                        f"{counted(steps, 'step')}",
                        "one rank writes a file: the bytes of two writers mix in it",
                        "at which ranks reach the save, and under which names they write",
                    )
                    return
