"""Where the coach's words go: to a notebook's front end, or to a terminal.

Nothing here imports IPython or ipywidgets unless a shell of IPython is already running.
"""

from __future__ import annotations

import ast
import contextlib
import html
import linecache
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rehearsal.grading.drill import Drill
from rehearsal.grading.attempt import codes_of
from rehearsal.grading.verdict import Verdict


CALL = re.compile(
    r"`?(?<![\w.])(start|check|hint|solution|narration|diff|status|debrief)"
    r"\((?:\"(\w+)\"(, give_up=True)?)?\)`?"
)
_spell: Callable[[str], str] = str


def shell() -> Any:
    """IPython's running shell, or None."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def has_front_end() -> bool:
    """Whether this is a kernel: something that draws HTML listens."""
    return hasattr(shell(), "kernel")


def is_command() -> bool:
    """Whether a command of a terminal is at work, after which this process ends."""
    return _spell is not str


@contextlib.contextmanager
def spelled_for_a_shell() -> Iterator[None]:
    """Within it, advice such as ``hint("x")`` is printed as the command of a terminal."""
    global _spell
    _spell = _as_command
    try:
        yield
    finally:
        _spell = str


def _as_command(text: str) -> str:
    def command(call: re.Match[str]) -> str:
        name, drill, more = call.groups(default="")
        words = [name, drill, "FILE" if name == "check" else "", more and "--give-up"]
        return " ".join(["python -m rehearsal", *filter(None, words)])

    return CALL.sub(command, text)


def show(
    plain: str,
    markdown: str = "",
    rich: Mapping[str, str] | None = None,
    *,
    is_code: bool = False,
) -> None:
    """Show text; where a notebook listens, as Markdown or as other formats.

    Args:
        is_code: it is shown as it is, also in a shell.
    """
    if not has_front_end():
        print(plain if is_code else _spell(plain))
        return
    from IPython.display import display

    formats = dict(rich or {})
    if markdown:
        formats["text/markdown"] = markdown
    display({"text/plain": plain, **formats}, raw=True)


def show_verdict(verdict: Verdict) -> None:
    """Show it now, and not once more as the value of the cell that asked for it."""
    rich = {"text/html": verdict._repr_html_()}
    show(str(verdict), rich=rich)
    running = shell()
    if running is None:
        return
    here = running.execution_count

    def show_later(value: Verdict) -> None:
        if value is not verdict or running.execution_count != here:
            show(str(value), rich={"text/html": value._repr_html_()})

    running.display_formatter.ipython_display_formatter.for_type(Verdict, show_later)


# ---------------------------------------------------------------- what was typed


def learners_namespace(depth: int = 2) -> Mapping[str, object]:
    """The names of the notebook, or else those of the module that called the coach."""
    running = shell()
    if running is not None:
        names: Mapping[str, object] = running.user_ns
        return names
    return sys._getframe(depth).f_globals


def texts_of(drill: Drill, namespace: Mapping[str, object]) -> str:
    """The text of the cells that define the needed names; of data without a cell, its repr."""
    cells: list[str] = [cell for cell in namespace.get("In", []) if isinstance(cell, str)]  # type: ignore[attr-defined]
    found: list[tuple[int, str]] = []
    for name in drill.needs:
        if name not in namespace:
            continue
        value = namespace[name]
        files = {code.co_filename: None for code in codes_of(value)}
        sources = ["".join(linecache.getlines(file)) for file in files]
        if not any(sources):
            defining = [cell for cell in cells if name in names_bound(cell)]
            sources = defining[-1:] or [f"{name} = {value!r}\n"]
        # Cells in the order in which they were run, whatever the order of the names.
        found += [(place(source, cells), source.rstrip("\n")) for source in sources if source]
    return "\n\n".join(dict.fromkeys(source for _, source in sorted(found))) + "\n"


def place(source: str, cells: list[str]) -> int:
    """Which of the cells a source is, counted from the start; the last run of it."""
    runs = [i for i, cell in enumerate(cells) if cell.rstrip("\n") == source.rstrip("\n")]
    return runs[-1] if runs else -1


def names_bound(cell: str) -> set[str]:
    """The names that a cell's top level assigns or defines."""
    try:
        body = ast.parse(cell).body
    except SyntaxError:  # a magic
        return set()
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts = (part for target in targets for part in ast.walk(target))
            found |= {part.id for part in parts if isinstance(part, ast.Name)}
    return found


# ---------------------------------------------------------------- the clock


def minutes_of(seconds: float) -> str:
    """A span of time as a clock shows it: 7:05, or 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def pace(seconds: float, minutes: float) -> str:
    """Time used, and the budget: "3:12 of 12:00", "12:40 of 12:00, 0:40 over"."""
    over = seconds - 60 * minutes
    text = f"{minutes_of(seconds)} of {minutes_of(60 * minutes)}"
    return f"{text}, {minutes_of(over)} over" if over >= 1 else text


class Clock:
    """The time since a start; in a notebook it ticks, also while the kernel is busy."""

    def __init__(self, drill: Drill) -> None:
        self.drill, self.began = drill, time.monotonic()
        self._stopped = threading.Event()
        self._widget: Any = None

    @property
    def text(self) -> str:
        """What it shows."""
        return pace(time.monotonic() - self.began, self.drill.minutes)

    def show(self) -> None:
        """Put it below the running cell; one line where there is nothing to draw it with."""
        try:
            if not has_front_end():
                raise ImportError
            import ipywidgets
            from IPython.display import display
        except ImportError:
            show(f"The clock runs: {minutes_of(60 * self.drill.minutes)}.")
            return
        self._widget = ipywidgets.HTML(value=self._html())
        display(self._widget)
        # A thread, because the kernel's own loop stands still while a cell runs.
        threading.Thread(target=self._tick, daemon=True, name="rehearsal-clock").start()

    def stop(self) -> None:
        """Leave it at what it shows."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._draw()

    def _tick(self) -> None:
        while not self._stopped.wait(1.0):
            self._draw()

    def _draw(self) -> None:
        if self._widget is not None:
            # The thread may outlive the kernel's sockets by a moment.
            with contextlib.suppress(Exception):
                self._widget.value = self._html()

    def _html(self) -> str:
        state = "stopped" if self._stopped.is_set() else "running"
        return (
            f'<div role="timer" class="rehearsal-clock" style="font:1.2em monospace">'
            f"<b>{html.escape(self.text)}</b> {html.escape(self.drill.id)}, {state}</div>"
        )
