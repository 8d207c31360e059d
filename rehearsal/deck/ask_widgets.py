"""A card in a notebook: a field to type in, the points to correct, and four buttons."""

from __future__ import annotations

import html
from typing import Any

from rehearsal.deck.asked import FOUND, GRADES, Asked
from rehearsal.deck.places import address_from, links
from rehearsal.session.executions import notebooks_folder
from rehearsal.session.history import Found, Grade

# Shape and word, not only color: a learner who can't tell red from green reads them too.
MARKS: dict[Found, str] = {"covered": "✓", "missed": "○", "contradicted": "✗"}
WIDE = {"width": "100%", "max_width": "52em"}


def widget(asked: Asked) -> Any:
    """The card, as something that IPython displays."""
    import ipywidgets as widgets

    card = asked.card
    title = html.escape(card.topic_title)
    head = f"{title}, {card.level}: <code>{html.escape(card.id)}</code>"
    question = widgets.HTML(
        f"<p>{head}</p><p style='font-size:1.2em'><b>{html.escape(card.question)}</b></p>",
        layout=WIDE,
    )
    typed = widgets.Textarea(
        placeholder="Say it aloud. Then type the gist here.",
        rows=6,
        layout=WIDE,
        tooltip="Your answer",
    )
    judging = widgets.Button(description="Judge it", button_style="primary")
    only_spoken = widgets.Button(
        description="I said it: show the points", layout={"width": "auto"}
    )
    below = widgets.VBox()

    def answered(text: str | None) -> None:
        asked.answer(text)
        typed.disabled = judging.disabled = only_spoken.disabled = True
        grading = _Grading(asked, widgets)
        below.children = [_points(asked, grading, widgets), _rest(asked, widgets), grading.box]

    judging.on_click(lambda _: answered(typed.value.strip() or None))
    only_spoken.on_click(lambda _: answered(None))
    return widgets.VBox([question, typed, widgets.HBox([judging, only_spoken]), below])


def _points(asked: Asked, grading: _Grading, widgets: Any) -> Any:
    """One line for each point: what was found, to be corrected, and the words that decided."""
    rows = []
    for point in asked.card.points:
        found = asked.points.get(point.id)
        mark = widgets.Dropdown(
            options=[(f"{MARKS[found]} {found}", found) for found in FOUND],
            value=found,  # None shows an empty field: not marked
            layout={"width": "9.5em"},
        )

        def corrected(change: Any, point_id: str = point.id) -> None:
            asked.correct(point_id, change["new"])
            grading.suggest()

        mark.observe(corrected, "value")
        text = html.escape(point.text)
        if point.id in asked.because:
            text += f"<br><mark>{html.escape(asked.because[point.id])}</mark>"
        rows.append(widgets.HBox([mark, widgets.HTML(text, layout=WIDE)]))
    title = "The points of a strong answer. The mark is yours: correct it where it's wrong."
    return widgets.VBox([widgets.HTML(f"<p><b>{title}</b></p>"), *rows])


class _Grading:
    """Four buttons; the one that the points come to is the blue one."""

    def __init__(self, asked: Asked, widgets: Any) -> None:
        self.asked = asked
        self.buttons = {grade: widgets.Button(description=grade) for grade in GRADES}
        self.said = widgets.HTML()
        for grade, button in self.buttons.items():
            button.on_click(lambda _, grade=grade: self.graded(grade))
        self.box = widgets.VBox([self.said, widgets.HBox([*self.buttons.values()])])
        self.suggest()

    def suggest(self) -> None:
        """Mark the grade that the points come to now; not any more once there is a grade."""
        if self.asked.graded is not None:
            return
        suggested = self.asked.suggested
        hint = f"The points come to: {suggested}." if suggested else "Mark the points."
        self.said.value = f"<b>How did it go?</b> {hint}"
        for grade, button in self.buttons.items():
            button.button_style = "primary" if grade == suggested else ""

    def graded(self, grade: Grade) -> None:
        """The learner's last word."""
        due = self.asked.grade(grade)
        for name, button in self.buttons.items():
            button.disabled = True
            button.button_style = "primary" if name == grade else ""
        self.said.value = f"Graded {grade}: {due}. <code>ask()</code> shows the next card."


def _rest(asked: Asked, widgets: Any) -> Any:
    card = asked.card
    parts = {
        "Strong": card.strong,
        "Weak": card.weak,
        "Why it's weak": card.why_weak,
        "They ask next": card.follow_up,
        "What would prove you wrong": card.falsifier,
    }
    texts = [f"<p><b>{name}.</b> {html.escape(text)}</p>" for name, text in parts.items()]
    here = notebooks_folder()
    places = links((place, address_from(here, place)) for place in card.shown_in)
    return widgets.HTML("".join([*texts, f"<p><b>Shown in.</b> {places}</p>"]), layout=WIDE)
