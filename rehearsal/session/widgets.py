"""What ticks in a notebook: the clock, drawn by the page itself.

A widget would be dead once the kernel is gone or the notebook is reopened. This is HTML with a
script that knows when the clock started, so it ticks in both cases, and while a cell runs. A
page that runs no scripts, such as an untrusted notebook, shows the start time and the budget.
"""

from __future__ import annotations

import contextlib
import html
import json
import time
import uuid

from rehearsal.grading.drill import Drill
from rehearsal.session.clock import Clock, minutes_of
from rehearsal.session.display import has_front_end, show

# The clock's face is in the output of the cell that started it. Scrolled out of view, it moves
# to the corner of the notebook's panel, because the code to type is below. Of two clocks in one
# notebook only the newer runs: a person does one drill at a time.
TICK = """
(({key, drill, began, budget}) => {
  const two = number => String(number).padStart(2, "0");
  const minutes = seconds => {
    const [hours, all] = [Math.floor(seconds / 3600), Math.floor(seconds / 60)];
    const rest = two(seconds % 60);
    return hours ? `${hours}:${two(all % 60)}:${rest}` : `${all}:${rest}`;
  };
  const pace = spent => {
    const over = spent > budget ? `, ${minutes(spent - budget)} over` : "";
    return `${minutes(spent)} of ${minutes(budget)}${over}`;
  };
  const pinned = "position:absolute;bottom:1em;right:2em;z-index:10;padding:.3em .8em;" +
    "border:1px solid;border-radius:.4em;color:var(--jp-ui-font-color0,inherit);" +
    "background:var(--jp-layout-color1,Canvas);";
  const run = home => {
    home.dataset.ticks = 1;
    const face = home.querySelector(".rehearsal-clock"), own = face.style.cssText;
    let isInView = true;
    const tick = () => {
      const panel = home.panel ||= home.closest(".jp-NotebookPanel");
      if (panel && !(panel.rehearsalClock > began)) panel.rehearsalClock = began;
      const replaced = panel && panel.rehearsalClock > began ? panel.rehearsalClock : 0;
      const ended = (window.rehearsalStopped || {})[drill] || 0;
      const stopped = Number(face.dataset.stopped) || (ended > began ? ended : 0) || replaced;
      const spent = Math.max(0, Math.floor((stopped || Date.now() / 1000) - began));
      face.querySelector("b").textContent = pace(spent);
      face.querySelector("span").textContent = `${drill}, ${stopped ? "stopped" : "running"}`;
      const isPinned = panel && !isInView && !stopped, place = isPinned ? panel : home;
      if (face.parentNode !== place) place.append(face);
      face.style.cssText = isPinned ? own + pinned : own;
      if (stopped || !(home.isConnected || face.isConnected)) clearInterval(timer);
    };
    const timer = setInterval(tick, 500);
    face.addEventListener("stopped", tick);
    new IntersectionObserver(seen => { isInView = seen.at(-1).isIntersecting; tick(); })
      .observe(home);
  };
  const find = tries => {  // a front end may run this before the output is in the page
    const homes = document.querySelectorAll(`[data-rehearsal="${key}"]:not([data-ticks])`);
    homes.forEach(run);
    if (!homes.length && tries) setTimeout(find, 100, tries - 1);
  };
  find(100);
})
"""
STOP = """
(({drill, at}) => {
  // For a face that is not in the page now: its output may just have been replaced.
  (window.rehearsalStopped ||= {})[drill] = at;
  document.querySelectorAll(`.rehearsal-clock[data-drill="${drill}"]`).forEach(face => {
    face.dataset.stopped ||= at;
    face.dispatchEvent(new Event("stopped"));
  });
})
"""


class TickingClock(Clock):
    """A clock that the page keeps ticking; only its stop comes from this process."""

    def __init__(self, drill: Drill) -> None:
        super().__init__(drill)
        self.key = uuid.uuid4().hex
        self._is_shown = False

    def show(self) -> None:
        """Put it below the running cell; one line of text where nothing can draw it."""
        show(self._plain(), {"text/html": self.running_html()}, display_id=self.key)
        self._is_shown = True

    def stop(self) -> None:
        """Freeze it, and show that it has stopped."""
        if self.is_running:
            super().stop()
            if self._is_shown and has_front_end():
                from IPython.display import update_display

                face = self._face(f"<b>{html.escape(self.text)}</b>", "stopped")
                stopped = {"text/plain": f"The clock has stopped: {self.text}."}
                stopped["text/html"] = face + stopping(self.drill.id, self.stopped_at)
                # A kernel that is shutting down may have closed its sockets.
                with contextlib.suppress(OSError):
                    update_display(stopped, display_id=self.key, raw=True)

    def running_html(self) -> str:
        """The clock as a page draws it; without scripts, when it started."""
        facts = {
            "key": self.key,
            "drill": self.drill.id,
            "began": self.began,
            "budget": 60 * self.drill.minutes,
        }
        face = self._face("<b></b>", f"started {self._started()}, budget {self._budget()}")
        home = f'<div data-rehearsal="{self.key}" style="min-height:1.6em">{face}</div>'
        return f"{home}<script>{TICK.strip()}({json.dumps(facts)})</script>"

    def _face(self, time_html: str, state: str) -> str:
        name = html.escape(self.drill.id)
        return (
            f'<div role="timer" class="rehearsal-clock" data-drill="{name}" '
            f'style="font:1.2em monospace">{time_html} <span>{name}, {state}</span></div>'
        )

    def _plain(self) -> str:
        return f"The clock is running: budget {self._budget()}, started {self._started()}."

    def _budget(self) -> str:
        return minutes_of(60 * self.drill.minutes)

    def _started(self) -> str:
        return time.strftime("%d %b %H:%M", time.localtime(self.began))


def stopping(drill_id: str, at: float | None = None) -> str:
    """A script that stops the clocks of this drill in the page.

    Args:
        at: seconds since the epoch; now, by default.
    """
    facts = {"drill": drill_id, "at": time.time() if at is None else at}
    return f"<script>{STOP.strip()}({json.dumps(facts)})</script>"
