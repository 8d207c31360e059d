"""Begin a mock interview, or continue the one that was left: rehearsal.interview."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from rehearsal.interviews.boxes import LEAST, MOST
from rehearsal.interviews.interviewer import Setting
from rehearsal.interviews.session import Interview, Mode
from rehearsal.interviews.store import BadInterview, Store, new_store, stores

_open: dict[Path, Interview] = {}  # of this process, by their folders


def interview(
    minutes: float = 45,
    seed: int = 0,
    *,
    mode: Mode = "real",
    setting: Setting | None = None,
    clock: Callable[[], float] | None = None,
) -> Interview:
    """Begin a mock interview, or continue the one that was begun with this seed.

    Args:
        minutes: how long it is, from 15.
        seed: draws the prompt, the situation, the questions and the incident.
        mode: "study" has hints; "real" has none.
        setting: "biotech" is about molecules, proteins and the lab; by default "general", or
            that of the interview that is continued.
        clock: returns seconds; a program that passes one drives the interview, and each check
            runs before ``type`` returns.

    Raises:
        BadInterview: if a value isn't possible, or the session can't be continued.
    """
    if (
        isinstance(minutes, bool)
        or not isinstance(minutes, int | float)
        or not (LEAST <= minutes <= MOST)
    ):
        raise BadInterview(
            f"minutes={minutes!r}: an interview takes {LEAST} to {MOST} minutes; with less, "
            "there is no time for the second half. Nothing was begun."
        )
    if type(seed) is not int or seed < 0:
        raise BadInterview(f"seed={seed!r}: must be a whole number, 0 or more.")
    if mode not in get_args(Mode):
        raise BadInterview(f"mode={mode!r}: must be real or study.")
    if setting is not None and setting not in get_args(Setting):
        raise BadInterview(f"setting={setting!r}: must be general or biotech.")
    if clock is not None and not callable(clock):
        raise BadInterview(f"clock={clock!r}: must be a function that returns seconds.")
    found = unfinished(seed)
    if found is not None and setting not in (None, found.setting):
        raise BadInterview(
            f"seed={seed}: the interview {found.name} isn't finished, and its setting is "
            f"{found.setting}. End that one first, or take another seed."
        )
    held = _open.get(found.folder) if found is not None else None
    if held is not None and held.is_open:
        if clock is None:
            return held  # the cell ran twice
        held.close()
    store = found or new_store(seed)
    if found is None:
        store.create(
            minutes=minutes,
            seed=seed,
            mode=mode,
            setting=setting or "general",
            began=time.time(),
        )
    store.take()
    session = Interview(store, clock or time.monotonic, is_simulated=clock is not None)
    _open[store.folder] = session
    if found is not None:
        print(
            f"Continuing the interview {session.name} at minute {session.minute:.0f} of "
            f"{session.minutes:g} ({session.mode} mode); the time in between doesn't count. "
            "To begin a new one, end() this one first."
        )
    return session


def unfinished(seed: int) -> Store | None:
    """The newest session of a seed that has not ended.

    Raises:
        BadInterview: if it can't be read.
    """
    for store in reversed(list(stores())):
        if not store.name.partition("-seed")[2].startswith(f"{seed}-"):
            continue
        store.header()
        return None if store.has_ended() else store
    return None
