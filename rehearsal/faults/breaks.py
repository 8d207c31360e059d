"""Faults that a rank brings on itself: called in it before the trainer starts.

    partial(die, rank=1, step=7)        a ``prepare`` of ``forked.Job``
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


def is_rank(rank: int | None) -> bool:
    """Whether this process is ``rank``, or a loader worker of it; None means every rank."""
    return rank is None or os.environ["RANK"] == str(rank)


def at_step(step: int, act: Callable[[], None], when: str = "before the ledger") -> None:
    """Call ``act`` when the optimizer has taken ``step``, before or after its ledger line."""
    from trainer_core.journal import Journal

    trained = Journal.trained

    def acting(self: Journal, at: int, *rest: object) -> None:
        if at == step and when == "before the ledger":
            act()
        trained(self, at, *rest)  # type: ignore[arg-type]
        if at == step and when == "after the ledger":
            act()

    Journal.trained = acting  # type: ignore[method-assign,assignment]


def signal_itself(
    signal_: signal.Signals, rank: int | None, step: int, when: str = "before the ledger"
) -> None:
    """Have a rank send itself a signal after ``step``."""
    if is_rank(rank):
        at_step(step, lambda: os.kill(os.getpid(), signal_), when)
