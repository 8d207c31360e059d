"""How a notebook shows an interview, a scorecard or a form that a cell ends with.

By the types' names, so that ``import rehearsal`` imports neither them nor their widgets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rehearsal.session.display import has_front_end, shell

if TYPE_CHECKING:
    from rehearsal.interviews.form import Interviewer
    from rehearsal.interviews.scorecard import Scorecard
    from rehearsal.interviews.session import Interview


def register() -> None:
    """Tell the running shell, if there is one."""
    running = shell()
    if running is None:
        return
    formatter = running.display_formatter
    home = "rehearsal.interviews"
    formatter.ipython_display_formatter.for_type_by_name(
        f"{home}.session", "Interview", show_interview
    )
    formatter.ipython_display_formatter.for_type_by_name(
        f"{home}.form", "Interviewer", show_form
    )
    formatter.formatters["text/html"].for_type_by_name(
        f"{home}.scorecard", "Scorecard", html_of_scorecard
    )


def show_interview(interview: Interview) -> None:
    """The panel in which it's held; a line of text where nothing draws one."""
    if not has_front_end():
        print(repr(interview))
        return
    from rehearsal.interviews.widgets import show_panel

    show_panel(interview)


def show_form(reading: Interviewer) -> None:
    """The transcript and the form; a line of text where nothing draws them."""
    if not has_front_end():
        print(repr(reading))
        return
    from IPython.display import display

    from rehearsal.interviews.form_widgets import FormPanel

    display(FormPanel(reading).box)


def html_of_scorecard(card: Scorecard) -> str:
    """The scorecard, with links that work from the notebook."""
    from rehearsal.interviews.faces import html_of
    from rehearsal.session.executions import notebooks_folder

    return html_of(card, notebooks_folder())
