"""One HTML page: the scorecard, and the whole session that it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rehearsal.interviews.scorecard import Scorecard
from rehearsal.interviews.store import BadInterview, Event


def write_page(
    card: Scorecard,
    events: Sequence[Event],
    cells: Mapping[str, str],
    minutes: float,
    path: Path,
) -> Path:
    """Write the page.

    Raises:
        BadInterview: if there is a file already, or it can't be written.
    """
    raise BadInterview("The page can't be written yet.")
