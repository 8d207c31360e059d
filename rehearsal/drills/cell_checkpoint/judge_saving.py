"""Did one rank write the right things, and did a failure reach every rank?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, counted, named_ranks, shortened
from .codes import TABLE
from .plan import Plan


def save_judge(
    plan: Plan, reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """One writer, the right content, one outcome."""
    answers = [report.answer for report in reports]
    if not all(report.has_answer for report in reports):
        alone = [report.rank for report in reports if report.of("failed")]
        if alone and len(alone) < len(reports):
            yield raised_alone(plan, f"only {named_ranks(alone)} came out of save_checkpoint")
        return
    for rank, answer in enumerate(answers):
        if answer["saves"] != (rank == 0) or answer["fails"] > (rank == 0):
            yield TABLE(
                "wrong-writer",
                f"rank {rank} of {len(answers)} called writer.save {times(answer['saves'])} in "
                f"a save that works, and {times(answer['fails'])} in one that fails",
            )
            return
    # Having every rank's state proves that all have arrived: the save can't be too early.
    count, wrong = answers[0]["rng"]
    if wrong or count != len(reports):
        which = f", and not those of {named_ranks(wrong)} at their places" if wrong else ""
        yield TABLE(
            "random-states",
            f"writer.save got {counted(count, 'random state')} on rank 0 of {len(reports)}"
            f"{which}",
        )
    if answers[0]["wrong"]:
        names = " and ".join(answers[0]["wrong"])
        found = f"writer.save got a different {names} than save_checkpoint did"
        yield TABLE("wrong-content", found)
    texts = [answer["result"].get("raised", "") for answer in answers]
    bad = [r for r, t in enumerate(texts) if not t or "gloo" in t or "onnection" in t]
    if bad:
        ends = "; ".join(
            f"rank {rank} {f'raised {shortened(text, 60)}' if text else 'returned'}"
            for rank, text in enumerate(texts)
        )
        look = "at what you do with the exception" if 0 in bad else ""
        yield raised_alone(plan, ends, look)


def times(count: int) -> str:
    """How often, in words."""
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def raised_alone(plan: Plan, what: str, look: str = "") -> Finding:
    """About the save in which the writer raises."""
    error = plan.failure
    found = f"in a second save, writer.save raises {error} on rank 0, and: {what}"
    return TABLE("raised-alone", found, look)
