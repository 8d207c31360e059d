"""How a judge puts findings together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, Judge


def first_of(*parts: Iterable[Finding]) -> Iterator[Finding]:
    """The findings of the first part that has any: they explain the rest."""
    for part in parts:
        findings = list(part)
        if findings:
            yield from findings
            return


def only_first(judge: Judge) -> Judge:
    """The same judge, stopped at its first finding: the next ones often follow from it."""

    def judge_once(
        reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
    ) -> Iterator[Finding]:
        yield from islice(judge(reports, earlier), 1)

    return judge_once


def some(values: Sequence[object], most: int = 6) -> str:
    """The first few values, for a sentence: "1, 2, 3, ..."."""
    text = ", ".join(map(str, values[:most]))
    return text + (", ..." if len(values) > most else "")


def is_step_log(lines: object) -> bool:
    """Whether a rank returned a list of pairs of a whole number, the step, and a number."""
    return isinstance(lines, list) and all(
        isinstance(line, list)
        and len(line) == 2
        and all(isinstance(value, int | float) for value in line)
        and float(line[0]).is_integer()
        for line in lines
    )
