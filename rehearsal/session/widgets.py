"""What ticks in a notebook: the clock, drawn with ipywidgets if they are installed."""

from __future__ import annotations

import contextlib
import html
import threading
from typing import Any

from rehearsal.grading.drill import Drill
from rehearsal.session.clock import Clock, minutes_of
from rehearsal.session.display import has_front_end, show


class TickingClock(Clock):
    """A clock that a notebook shows and updates each second, even while a cell runs."""

    def __init__(self, drill: Drill) -> None:
        super().__init__(drill)
        self._stopping = threading.Event()
        self._widget: Any = None

    def show(self) -> None:
        """Put it below the running cell; one line of text where nothing can draw it."""
        text = f"The clock is running: {minutes_of(60 * self.drill.minutes)}."
        try:
            if not has_front_end():
                raise ImportError
            import ipywidgets
            from IPython.display import display
        except ImportError:
            show(text)
            return
        self._widget = ipywidgets.HTML(value=self._html())
        # Not the widget itself: a front end without its extension would show the widget's repr.
        view = {"version_major": 2, "version_minor": 0, "model_id": self._widget.model_id}
        display(
            {"application/vnd.jupyter.widget-view+json": view, "text/plain": text}, raw=True
        )
        # A thread, because the notebook's own event loop waits while a cell runs.
        threading.Thread(target=self._tick, daemon=True, name="rehearsal-clock").start()

    def stop(self) -> None:
        """Freeze it, and show that it has stopped."""
        if self.is_running:
            super().stop()
            self._stopping.set()
            self._draw()

    def _tick(self) -> None:
        while not self._stopping.wait(1.0):
            self._draw()

    def _draw(self) -> None:
        if self._widget is not None:
            # The thread may outlive the notebook's sockets by a moment.
            with contextlib.suppress(Exception):
                self._widget.value = self._html()

    def _html(self) -> str:
        state = "running" if self.is_running else "stopped"
        return (
            f'<div role="timer" class="rehearsal-clock" style="font:1.2em monospace">'
            f"<b>{html.escape(self.text)}</b> {html.escape(self.drill.id)}, {state}</div>"
        )
