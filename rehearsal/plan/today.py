"""What a person calls: the plan for today, from everything that is due and the days left.

    rehearsal.today(date="2026-12-04")    # when the interview is; kept, and used from now on
    rehearsal.today()                     # what to do today
    rehearsal.today(read="12")            # chapter 12 is done

At a terminal: python -m rehearsal today [--date 2026-12-04] [--minutes 90] [--read 12].
"""

from __future__ import annotations

import base64
import datetime
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rehearsal.deck.cards import cards
from rehearsal.grading.drill import drill_ids, load
from rehearsal.plan.agenda import plan_of
from rehearsal.plan.by_day import by_day
from rehearsal.plan.record import Record, read_record, work_of
from rehearsal.plan.strengths import Strength
from rehearsal.plan.wishes import date_wish, minutes_wish, read_wish, unread_wish
from rehearsal.plan.words import alternative_text, as_markdown, as_text, strengths_text
from rehearsal.plan.work import Work
from rehearsal.session.display import has_front_end, show, show_markdown
from rehearsal.session.executions import notebooks_folder
from rehearsal.session.next_step import link_to_notebook
from rehearsal.session.progress import progress

HERE = Path(__file__).parents[2]  # of a clone, where a terminal finds the notebooks


def today(
    *,
    date: str | datetime.date | None = None,
    minutes: int | None = None,
    read: str | None = None,
    unread: str | None = None,
) -> None:
    """Show today's plan: what to do, why, and for how long; then how far you've come.

    What you pass is kept in your history, so later plans know it too.

    Args:
        date: the interview's, such as "2026-12-04"; "none" if it was called off.
        minutes: how many a day has.
        read: a chapter that you've read, such as "12".
        unread: one that you marked as read by mistake.

    Raises:
        BadPlan: if the date is no date, past or too far away, or if no day can be planned with
            these minutes.
        UnknownPage: if there is no such chapter, naming the nearest.
        BadDeck: if one of your own deck files can't be used.
    """
    now = _today()
    record = _read()
    wishes = [  # all of them are checked before the first is kept
        *(date_wish(record, date, now) if date is not None else ()),
        *(minutes_wish(record, minutes) if minutes is not None else ()),
        *(read_wish(record, read) if read is not None else ()),
        *(unread_wish(record, unread) if unread is not None else ()),
    ]
    for wish in wishes:
        progress().add_note(wish.what, wish.value)
        show(wish.words)
    if wishes:
        record = _read()
    work = work_of(record, now)
    plan = plan_of(work)
    text = as_text(work, plan, record, _link)
    show_markdown(as_markdown(work, plan, record, _link), text=text)
    if work.first_day is not None:
        _show_progress(record, work, record.strengths)
    for problem in record.problems:
        show(problem)


def _today() -> datetime.date:
    return datetime.date.today()


def _read() -> Record:
    drills = [load(drill_id) for drill_id in drill_ids()]
    return read_record(progress(), drills, cards())


def _link(notebook: str) -> str | None:
    """Where a notebook is: seen from the one that runs, or from a terminal's folder."""
    found = link_to_notebook(notebook, notebooks_folder())
    path = HERE / "notebooks" / notebook
    return found or (str(path) if path.is_file() and not has_front_end() else None)


def _show_progress(record: Record, work: Work, strengths: Sequence[Strength]) -> None:
    """The rubric's rows as a table; in a notebook, in the picture too."""
    text = strengths_text(strengths)
    if not has_front_end():
        if any(each.total for each in strengths):
            show(f"\n{text}")
        return
    table = f"<pre>{escape(text)}</pre>"
    try:
        drawn = _drawn(record, work, strengths)
    except ImportError as error:
        drawn = f"<p>No picture: {escape(str(error))}.</p>"
    folded = f"<details><summary>the rows as text</summary>{table}</details>"
    show(text, {"text/html": drawn + folded})


def _drawn(record: Record, work: Work, strengths: Sequence[Strength]) -> str:
    """The picture as HTML, with words for somebody who can't see it."""
    from rehearsal.plan.picture import picture

    days = by_day(record, work.today)
    figure = picture(
        days,
        strengths,
        num_drills=len(record.drills),
        num_cards=len(record.cards),
        minutes=work.minutes,
        interview=work.interview,
    )
    file = io.BytesIO()
    figure.savefig(file, format="png", transparent=True)
    image = base64.b64encode(file.getvalue()).decode()
    words = escape(alternative_text(strengths, days.passed[-1], days.known[-1]))
    return f'<img alt="{words}" style="max-width:100%" src="data:image/png;base64,{image}">'
