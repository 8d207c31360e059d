"""One HTML page: the scorecard, and the whole session that it comes from."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rehearsal.interviews.rubric import MARKS, ROWS
from rehearsal.interviews.scorecard import Scorecard
from rehearsal.interviews.store import BadInterview, Event
from rehearsal.interviews.timeline import timeline_of
from rehearsal.interviews.transcript import moments_of, stamp_of

TEMPLATE = Path(__file__).with_name("page.html.j2")


def write_page(
    card: Scorecard,
    events: Sequence[Event],
    cells: Mapping[str, str],
    minutes: float,
    path: Path,
    *,
    began: float | None = None,
) -> Path:
    """Write the page; an existing file stays as it is.

    Args:
        minutes: how long the interview was meant to be.
        began: when, in unix seconds.

    Raises:
        BadInterview: if there is a file already, or it can't be written.
    """
    path = path.expanduser()
    # Something that can't be encoded, such as half of a surrogate pair, becomes a ?.
    page = page_of(card, events, cells, minutes, began).encode("utf-8", "replace")
    if path.is_dir():
        raise BadInterview(
            f"{path} is a folder, and the page is one file, so nothing was written. Name a "
            f'file in it: export("{path / (card.name + ".html")}").'
        )
    try:
        file = path.open("xb")
    except FileExistsError:
        raise BadInterview(
            f"{path} exists already, and no file is ever overwritten, so nothing was written. "
            "Export under another name, or move that file away."
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise BadInterview(_unwritable(path, error)) from None
    try:
        with file:
            file.write(page)
    except OSError as error:
        path.unlink(missing_ok=True)  # half a page, which we made
        raise BadInterview(_unwritable(path, error)) from None
    return path


def _unwritable(path: Path, error: Exception) -> str:
    why = getattr(error, "strerror", None) or error
    return (
        f"{path} can't be written ({why}), so there is no page. Export to a folder that exists "
        "and that you can write to."
    )


def page_of(
    card: Scorecard,
    events: Sequence[Event],
    cells: Mapping[str, str],
    minutes: float,
    began: float | None = None,
) -> str:
    """The page's HTML. Everything that somebody typed is escaped."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    moments = moments_of(events, cells, minutes)

    def anchor(minute: float) -> str:
        """Where in the transcript a minute is: at the first thing that happened in it."""
        later = (n for n, one in enumerate(moments) if one.seconds >= 60 * minute - 1)
        return f"t{next(later, len(moments) - 1)}"

    return environment.from_string(TEMPLATE.read_text("utf-8")).render(
        card=card,
        minutes=minutes,
        date=time.strftime("%Y-%m-%d", time.localtime(began)) if began is not None else "",
        picture=timeline_of(events, cells, minutes, card.minutes),
        rubric=ROWS,
        words=MARKS,
        moments=moments,
        anchor=anchor,
        stamp=stamp_of,
    )
