"""How does a rank wait for another one without a collective?"""

from __future__ import annotations

import time
from collections.abc import Callable

from rehearsal.engine.rank import RankContext


def wait_until(is_so: Callable[[], bool], seconds: float) -> bool:
    """Whether it came to be so in time."""
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.002)
    return is_so()


def all_arrive(context: RankContext, place: str, seconds: float) -> bool:
    """Whether all ranks arrive at ``place`` in time; each one says that it has.

    A rank that ended its process would end the collectives in which its peers wait for it; one
    that stays lets them be seen waiting.
    """
    arrivals = [context.folder / f"{place}-{rank}" for rank in range(context.world_size)]
    arrivals[context.rank].touch()
    return wait_until(lambda: all(arrival.exists() for arrival in arrivals), seconds)
