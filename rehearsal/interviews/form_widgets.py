"""The interviewer's side in a notebook: the transcript, four buttons a row, the comparison."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

from rehearsal.interviews.form import Interviewer
from rehearsal.interviews.rubric import MARKS, RUBRIC, RubricRow
from rehearsal.interviews.store import BadInterview

WIDE = {"width": "calc(100% - 4px)", "max_width": "60em"}  # without its margins
AUTO = {"width": "auto"}
LOG = (
    '<div role="log" tabindex="0" aria-label="The transcript" style="display:flex;'
    "flex-direction:column-reverse;max-height:24em;overflow:auto;padding:.3em .8em;"
    "box-sizing:border-box;line-height:1.4;font-family:monospace;white-space:pre-wrap;"
    'border:1px solid rgba(128,128,128,.6)"><div>{}</div></div>'
)
TABLE = (
    '<div style="overflow-x:auto;line-height:1.4;'
    'white-space:pre;font-family:monospace">{}</div>'
)


class FormPanel:
    """A form to fill in beside what was said. Each mark reaches the reading at once."""

    def __init__(self, reading: Interviewer) -> None:
        import ipywidgets as widgets

        self.reading = reading
        self._head, self._read = widgets.HTML(layout=WIDE), widgets.HTML(layout=WIDE)
        self._told, self._compared = widgets.HTML(layout=WIDE), widgets.HTML(layout=WIDE)
        self.buttons = {
            "Next exchange": widgets.Button(
                description="Next exchange", button_style="primary", layout=AUTO
            ),
            "All of it": widgets.Button(description="All of it", layout=AUTO),
            "Compare": widgets.Button(description="Compare with the evidence", layout=AUTO),
        }
        acts = {"Next exchange": self._step, "All of it": self._rest, "Compare": self._compare}
        for name, act in acts.items():
            self.buttons[name].on_click(self._guarded(act))
        self.marks, self.reasons = dict[str, Any](), dict[str, Any]()
        rows = [self._row(row, widgets) for row in RUBRIC]
        following, everything, comparing = self.buttons.values()
        self.box = widgets.VBox(
            [
                *(self._head, self._read, widgets.HBox([following, everything])),
                *(*rows, comparing, self._told, self._compared),
            ]
        )
        self._refresh()

    def _row(self, row: RubricRow, widgets: Any) -> Any:
        mark, because = self.reading.marks.get(row.id, (None, ""))
        title = f"<b>{html.escape(row.name)}</b>. {html.escape(row.earns)}"
        self.marks[row.id] = widgets.ToggleButtons(
            options=[(f"{number} {word}", number) for number, word in MARKS.items()],
            value=mark,
            tooltips=[f"{row.name}: {word}" for word in MARKS.values()],
            style={"button_width": "auto"},
        )
        self.reasons[row.id] = widgets.Text(
            value=because, placeholder="Because: what you read; a minute helps.", layout=WIDE
        )
        fields = [self.marks[row.id], self.reasons[row.id]]
        for field in fields:
            field.observe(self._guarded(lambda: self._mark(row.id)), names="value")
        return widgets.VBox([widgets.HTML(title, layout=WIDE), *fields])

    def _guarded(self, act: Callable[[], None]) -> Callable[..., None]:
        def guarded(*_: object) -> None:
            self._tell("")
            try:
                act()
            except BadInterview as error:
                self._tell(str(error))
            self._refresh()

        return guarded

    # ------------------------------------------------------------ what a reader does

    def _step(self) -> None:
        self.reading.step()

    def _rest(self) -> None:
        while self.reading.step() is not None:
            pass

    def _mark(self, row: str) -> None:
        number = self.marks[row].value
        if number is not None:
            self.reading.mark(row, number, because=self.reasons[row].value)

    def _compare(self) -> None:
        self.reading.compare()

    # ------------------------------------------------------------ what is shown

    def _refresh(self) -> None:
        reading = self.reading
        self._head.value = html.escape(repr(reading).splitlines()[0])
        self._read.value = LOG.format(html.escape(reading.so_far))
        for name in ("Next exchange", "All of it"):
            self.buttons[name].disabled = reading.is_read
        if reading.compared is not None:
            self._compared.value = TABLE.format(html.escape(str(reading.compared)))
            for field in (*self.marks.values(), *self.reasons.values()):
                field.disabled = True
            self.buttons["Compare"].disabled = True

    def _tell(self, text: str) -> None:
        self._told.value = html.escape(text)
