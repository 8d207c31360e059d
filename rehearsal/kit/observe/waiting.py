"""How does a rank wait for another rank without a collective?"""

from __future__ import annotations

import time
from collections.abc import Callable

from rehearsal.engine.rank import RankContext


def wait_until(is_so: Callable[[], bool], seconds: float) -> bool:
    """Wait until ``is_so()``, for ``seconds`` at most; returns whether it is."""
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.002)
    return is_so()


def all_arrive(context: RankContext, place: str, seconds: float) -> bool:
    """Whether all ranks arrive at ``place`` within ``seconds``. Every rank has to call it.

    It keeps a rank that is done alive: if its process exited, gloo would fail the collectives
    in which its peers wait for it, and nobody would see them wait.
    """
    arrivals = [context.folder / f"{place}-{rank}" for rank in range(context.world_size)]
    arrivals[context.rank].touch()
    return wait_until(lambda: all(arrival.exists() for arrival in arrivals), seconds)
