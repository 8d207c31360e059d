"""A mock interview in a notebook: a panel with the clock, what was said, and where you speak.

A thread keeps the clock and lets the interviewer speak, so both go on while a cell runs. The
cells that you run count as typed. Nothing here raises into the notebook.
"""

from __future__ import annotations

import html
import threading
import time
import uuid
from collections.abc import Callable

from rehearsal.interviews import ending
from rehearsal.interviews.cell_hook import CellHook
from rehearsal.interviews.desk import CellDesk
from rehearsal.interviews.faces import (
    clock_html,
    counting_html,
    html_of,
    names_html,
    noted_html,
    spoken_html,
)
from rehearsal.interviews.pin import pin_html
from rehearsal.interviews.session import Interview
from rehearsal.interviews.spoken import entries
from rehearsal.interviews.store import BadInterview
from rehearsal.session.display import shell
from rehearsal.session.executions import notebooks_folder

TURN_S = 1.0  # how often the clock moves, and the interviewer may speak
DONT_END = "Don't end"
SURE_S = 6.0  # for how long the button that ends it asks whether you are sure
GRADING = f"Grading your draft. This may take a minute. {DONT_END} takes you back, paused."
WIDE = {"width": "calc(100% - 4px)", "max_width": "60em"}  # without its margins
_panels: dict[str, Panel] = {}  # by the interview's name


def show_panel(interview: Interview) -> None:
    """Show an interview's panel below the running cell. The other interviews here pause."""
    panel = _panels.get(interview.name)
    if panel is None or panel.interview is not interview:
        if panel is not None:
            panel.close()
        panel = _panels[interview.name] = Panel(interview)
    panel.show()


class Panel:
    """An interview in a notebook, from the prompt to the scorecard."""

    def __init__(self, interview: Interview) -> None:
        import ipywidgets as widgets

        self.interview = interview
        self._lock = threading.RLock()  # of the widgets
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._ending_since: float | None = None  # when somebody first pressed End
        self._is_ending = False
        self._is_time_up = False
        self._shown = -1
        self._scorecard_id = ""
        self._key = f"rehearsal-interview-{uuid.uuid4().hex}"
        self._clock, self._spoken = widgets.HTML(layout=WIDE), widgets.HTML(layout=WIDE)
        self._told, self._noted = widgets.HTML(layout=WIDE), widgets.HTML(layout=WIDE)
        self._text = widgets.Textarea(
            placeholder="What you'd say. Run cells below to type code.", rows=4, layout=WIDE
        )
        self._buttons = {
            "Say": widgets.Button(description="Say", button_style="primary"),
            "Pause": widgets.Button(description="Pause"),
            "Hint": widgets.Button(description="Hint"),
            "End": widgets.Button(description="End"),
        }
        for name, act in self._acts().items():
            self._buttons[name].on_click(self._guarded(act))
        used = [name for name in self._buttons if name != "Hint" or interview.mode == "study"]
        row = widgets.HBox([self._buttons[name] for name in used])
        names = widgets.HTML(counting_html() + names_html(interview.names), layout=WIDE)
        below = [self._text, row, self._told, self._noted, names]
        self.box = widgets.VBox([self._clock, self._spoken, *below])
        self.box.add_class(self._key)
        desk = CellDesk(interview, lambda: self._is_ending, self._note)
        self._hook = CellHook(shell(), desk)
        interview.tell = self._told_by_interview
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def show(self) -> None:
        """Put it below the running cell, again if need be."""
        from IPython.display import display

        self._rest_the_others()
        self._refresh()
        display(self.box)
        self._scorecard_id = uuid.uuid4().hex
        pin = {"text/plain": "", "text/html": pin_html(self._key)}
        display(pin, raw=True, display_id=self._scorecard_id)
        if self.interview.is_over:
            self._show_scorecard()

    def rest(self) -> None:
        """Pause, because another one goes on in this notebook."""
        if not (self.interview.is_over or self.interview.is_paused):
            self.interview.pause()
            self._tell("Paused, because another interview goes on in this notebook.")
            self._wake.set()

    def close(self) -> None:
        """Stop following the interview. Harmless a second time."""
        self._stopped.set()
        self._wake.set()
        self._hook.close()

    # ------------------------------------------------------------ the other side

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._guarded(self._turn)()
            self._wake.wait(TURN_S)
            self._wake.clear()

    def _turn(self) -> None:
        interview = self.interview
        if self._is_ending and not interview.is_over:
            self._end()
        if not (interview.is_over or interview.is_paused):
            if interview.minute >= interview.minutes:
                self._is_ending = self._is_time_up = True
                self._say_draft()
                self._refresh()
            while interview.next() is not None and not interview.is_over:
                pass
        self._refresh()
        if interview.is_over:
            self.close()
            self._show_scorecard()

    def _end(self) -> None:
        """End it here, where it can wait for the graders without blocking the notebook."""
        self._say_draft()
        self._refresh()
        self.interview.end()
        if not self.interview.is_over:  # called back
            self._is_ending = False

    def _guarded(self, act: Callable[[], None]) -> Callable[..., None]:
        """The act, its failure told in the panel instead of raised."""

        def guarded(*_: object) -> None:
            try:
                act()
            except BadInterview as error:
                self._tell(str(error))
            except Exception as error:  # the notebook goes on, and so does the interview
                self._tell(f"Something failed here ({type(error).__name__}: {error}).")

        return guarded

    # ------------------------------------------------------------ this side

    def _acts(self) -> dict[str, Callable[[], None]]:
        return {
            "Say": self._say,
            "Pause": self._pause,
            "Hint": self._hint,
            "End": self._confirm_end,
        }

    def _say(self) -> None:
        if not self._text.value.strip():
            self._tell("Type what you'd say, and press Say.")
            return
        self._say_draft()
        self._tell("")
        self._wake.set()

    def _say_draft(self) -> None:
        """Say what stands in the field: at the end, a draft counts."""
        text = self._text.value.strip()
        if text and not self.interview.is_paused:
            self.interview.say(text)
            self._text.value = ""

    def _pause(self) -> None:
        if self.interview.is_paused:
            self._rest_the_others()
            self.interview.resume()
            self._tell("")
        else:
            self.interview.pause()
            self._tell("Paused. Cells that you run now aren't handed in.")
        self._refresh()

    def _hint(self) -> None:
        self._tell(self.interview.hint())
        self._refresh()

    def _confirm_end(self) -> None:
        if self.interview.is_over:  # pressed while a cell was ending it
            return
        if self._state == "ending":
            self._call_back()
            return
        now = time.monotonic()
        if self._ending_since is None or now - self._ending_since > SURE_S:
            self._ending_since = now
            self._refresh()
            return
        self._is_ending, self._ending_since = True, None
        self._tell(GRADING)
        self._refresh()
        self._wake.set()

    def _rest_the_others(self) -> None:
        for other in _panels.values():
            if other is not self:
                other.rest()

    def _call_back(self) -> None:
        """Somebody doesn't want to end it after all."""
        if self.interview.is_ending:
            self.interview.call_back()
        else:  # it hasn't begun
            self._is_ending = False
            self._tell("")
        self._refresh()

    # ------------------------------------------------------------ what is shown

    @property
    def _state(self) -> str:
        if self.interview.is_over:
            return "over"
        if self._is_ending or self.interview.is_ending:
            return "ending"
        return "paused" if self.interview.is_paused else "running"

    def _refresh(self) -> None:
        interview = self.interview
        with self._lock:
            state = self._state
            self._clock.value = clock_html(interview, state)
            events = interview.events
            if len(events) != self._shown:
                self._shown = len(events)
                seen = list(entries(events, interview.cells, interview.mode))
                self._spoken.value = spoken_html(seen)
            self._refresh_buttons(state)

    def _refresh_buttons(self, state: str) -> None:
        if state == "over":
            self._ending_since = None
        is_sure = self._ending_since is None or time.monotonic() - self._ending_since > SURE_S
        end = self._buttons["End"]
        end.description = "End" if is_sure else "Sure? End"
        end.button_style = "" if is_sure else "danger"
        if state == "ending":
            end.description = DONT_END
        self._buttons["Pause"].description = "Resume" if state == "paused" else "Pause"
        self._buttons["Say"].disabled = state != "running"
        for name in ("Pause", "Hint"):
            self._buttons[name].disabled = state in ("ending", "over")
        end.disabled = state == "over" or (state == "ending" and self._is_time_up)
        if state == "over":
            self._text.disabled = True

    def _tell(self, text: str) -> None:
        with self._lock:
            self._told.value = f'<div style="white-space:pre-wrap">{html.escape(text)}</div>'

    def _note(self, text: str) -> None:
        """What became of the cell that was run last."""
        with self._lock:
            self._noted.value = noted_html(text)
        self._wake.set()

    def _told_by_interview(self, text: str) -> None:
        """What its end says: here, and below the cell that ended it."""
        if threading.current_thread() is self._thread:
            text = GRADING if text == ending.GRADING else text  # no cell to interrupt
        else:
            print(text)
        self._tell(text)

    def _show_scorecard(self) -> None:
        from IPython.display import update_display

        card = self.interview.scorecard()
        self._tell(
            'scorecard() shows the scorecard again, and export("interview.html") writes it.'
        )
        shown = {"text/plain": str(card), "text/html": html_of(card, notebooks_folder())}
        update_display(shown, display_id=self._scorecard_id, raw=True)
