"""Saving: one writer, every rank's random state, and one outcome, also of a failure."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, counted, named_ranks, shortened
from rehearsal.kit.observe.waiting import all_arrive
from .codes import TABLE
from .plan import Plan
from .restoring import is_same
from .words import close_answers, outcome

PATIENCE_S = 3.0  # of a rank that is done, for the others


class DiskGone(Exception):
    """An error that no library knows."""


FAILURES: dict[str, type[Exception]] = {
    "OSError": OSError,
    "RuntimeError": RuntimeError,
    "ValueError": ValueError,
    "KeyError": KeyError,
    "DiskGone": DiskGone,
}


def save_body(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """One rank is late for a save that works, then for one that fails."""
    import numpy as np
    import torch

    close_answers(context)
    context.init_group()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(plan.seed + context.rank)
    calls: list[Any] = []
    state = {"step": plan.step, "model": {"weight": torch.arange(5.0) + plan.seed}}
    manifest = {"step": plan.step, **plan.facts}
    fails = False

    class Writer:
        def save(self, state: Any, rng_states: Any, manifest: Any) -> None:
            calls.append((state, list(rng_states), manifest))
            if fails:
                raise FAILURES[plan.failure]("the disk is gone")

        def wait(self) -> None: ...

    time.sleep(0.03 * (context.rank == plan.late_rank))
    mine = context.folder / f"rng-{context.rank}.pt"
    torch.save(random_states(), mine)
    learner.save_checkpoint(Writer(), state, manifest)
    saved, calls, fails = calls, [], True
    result = outcome(lambda: learner.save_checkpoint(Writer(), state, manifest))
    context.record("failed")
    answer: dict[str, Any] = {"saves": len(saved), "fails": len(calls), "result": result}
    for got, rng_states, facts in saved[:1]:
        wanted = [
            torch.load(context.folder / f"rng-{rank}.pt", weights_only=False)
            for rank in range(context.world_size)
        ]
        answer["rng"] = (
            len(rng_states),
            [
                rank
                for rank, one in enumerate(wanted)
                if not has(rng_states[rank : rank + 1], one)
            ],
        )
        answer["wrong"] = [
            name
            for name, one, other in (("state", got, state), ("manifest", facts, manifest))
            if not is_same(one, other)
        ]
    # A rank that raises alone must not exit while its peers wait for it: they would fail, too.
    all_arrive(context, "failed", PATIENCE_S)
    return answer


def random_states() -> dict[str, Any]:
    """What rng_state() of cell 5 returns here, without CUDA."""
    from trainer_core.rng import rng_state

    return rng_state()


def has(states: Sequence[Any], wanted: Any) -> bool:
    """Whether the state is the one wanted."""
    return len(states) == 1 and is_same(states[0], wanted)


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
        yield TABLE("wrong-content", f"writer.save got another {names} than save_checkpoint")
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
