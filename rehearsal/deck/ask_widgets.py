"""A card in a notebook: a field to type in, the points to correct, and four buttons."""

from __future__ import annotations

import html
import threading
from collections.abc import Callable, Mapping
from typing import Any

from rehearsal.deck.asked import FOUND, GRADES, Asked
from rehearsal.deck.places import address_from, links
from rehearsal.session.executions import notebooks_folder
from rehearsal.session.history import Found, Grade

# Shape and word, not only color: a learner who can't tell red from green reads them too.
MARKS: dict[Found, str] = {"covered": "✓", "missed": "○", "contradicted": "✗"}
WIDE = {"width": "100%", "max_width": "52em"}
OPINION = "The second opinion can be wrong. It changes no mark."
BACKGROUND = "rehearsal-examiner"  # the name of the threads that wait for a language model


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
    buttons, below = [judging, only_spoken], widgets.VBox()
    if asked.examiner is not None:
        buttons.append(_in_other_words(asked, question, widgets))

    def answered(text: str | None) -> None:
        asked.answer(text)
        for field in (typed, *buttons):
            field.disabled = True
        grading = _Grading(asked, widgets)
        points, texts = _points(asked, grading, widgets)
        below.children = [points, _rest(asked, widgets), grading.box]
        if asked.examiner is not None and asked.text:
            _ask_examiner(asked, texts, below, widgets)

    judging.on_click(lambda _: answered(typed.value.strip() or None))
    only_spoken.on_click(lambda _: answered(None))
    return widgets.VBox([question, typed, widgets.HBox(buttons), below])


def _in_background(work: Callable[[], None]) -> None:
    """A language model takes seconds, in which the card must work."""
    threading.Thread(target=work, daemon=True, name=BACKGROUND).start()


def _in_other_words(asked: Asked, question: Any, widgets: Any) -> Any:
    """A button that has the language model rephrase the question."""
    button = widgets.Button(description="Ask it in other words", layout={"width": "auto"})

    def rephrase() -> None:
        said = asked.rephrased()
        text = f"In other words, by a language model: {said}" if said else asked.problem
        question.value += f"<p>{html.escape(text)}</p>"

    def clicked(_: Any) -> None:
        button.disabled = True
        _in_background(rephrase)

    button.on_click(clicked)
    return button


def _ask_examiner(asked: Asked, texts: Mapping[str, Any], below: Any, widgets: Any) -> None:
    """Add what a language model says: a second opinion at each point, and a question."""
    said = widgets.HTML("Asking a language model for a second opinion.", layout=WIDE)
    points, *rest = below.children
    below.children = [points, said, *rest]

    def ask() -> None:
        opinion = asked.second_opinion() or {}
        for point_id, found in opinion.items():
            mark = f"Second opinion, by a language model: {MARKS[found]} {found}"
            texts[point_id].value += f"<br><i>{mark}</i>"
        said.value = html.escape(OPINION if opinion else asked.new_problem())
        if question := asked.follow_up():
            said.value += f"<br>The language model asks: {html.escape(question)}"
        else:
            said.value += f"<br>{html.escape(asked.new_problem())}"

    _in_background(ask)


def _points(asked: Asked, grading: _Grading, widgets: Any) -> tuple[Any, dict[str, Any]]:
    """One line for each point: what was found, to be corrected, and the words that decided.

    Returns:
        All of it, and the text of each point by its id.
    """
    rows, texts = [], {}
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
        texts[point.id] = widgets.HTML(text, layout=WIDE)
        rows.append(widgets.HBox([mark, texts[point.id]]))
    title = "The points of a strong answer. The mark is yours: correct it where it's wrong."
    return widgets.VBox([widgets.HTML(f"<p><b>{title}</b></p>"), *rows]), texts


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
