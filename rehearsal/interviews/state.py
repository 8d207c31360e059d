"""What an interview has come to: a pure function of its events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rehearsal.deck.cards import Card, UnknownCard, card_named
from rehearsal.deck.judge import Coverage, judge
from rehearsal.interviews.built import facts_of, notebook_text
from rehearsal.interviews.heard import Heard, questions_in, says_in
from rehearsal.interviews.store import Event
from rehearsal.session.history import Found


@dataclass
class Said:
    """Something the candidate said."""

    minute: float
    text: str


@dataclass
class Asked:
    """A question, and all that was said until the next one."""

    card: Card
    row: str
    minute: float
    text: str = ""  # as it was asked
    answers: list[Said] = field(default_factory=list)
    has_followed_up: bool = False
    opinion: dict[str, Found] = field(default_factory=dict)  # a language model's, by point
    model_asks: str = ""  # its question to what was said
    waits_for_model: bool = False

    @property
    def points(self) -> dict[str, tuple[Found, str, float]]:
        """What was found about each point, the words that decided, and the minute.

        A later answer corrects an earlier one.
        """
        found: dict[str, tuple[Found, str, float]] = {
            point.id: ("missed", "", self.minute) for point in self.card.points
        }
        texts = [(answer.minute, answer.text) for answer in self.answers]
        if len(texts) > 1:  # a point may take two of them
            texts.insert(0, (texts[-1][0], self.answer))
        for minute, text in texts:
            coverage = judged(self.card, text)
            for point in (*coverage.covered, *coverage.contradicted):
                what: Found = "covered" if point in coverage.covered else "contradicted"
                found[point] = (what, coverage.because.get(point, ""), minute)
        return found

    @property
    def answer(self) -> str:
        """All that was said to it."""
        return " ".join(answer.text for answer in self.answers)

    @property
    def contradictions(self) -> list[tuple[str, bool]]:
        """The words that contradict a point, and whether a claim of the point says so.

        Those come first: where only the weights speak against a point, the matcher is more
        often wrong.
        """
        texts = [self.answer, *(each.text for each in self.answers)]
        denied = {point for text in texts for point in judged(self.card, text).denied}
        found = [
            (words, point in denied)
            for point, (what, words, _) in self.points.items()
            if what == "contradicted"
        ]
        return sorted(found, key=lambda one: not one[1])

    @property
    def share(self) -> float:
        """The fraction of its points that were covered."""
        points = self.points.values()
        return sum(what == "covered" for what, _, _ in points) / len(points)


@cache
def judged(card: Card, text: str) -> Coverage:
    """``judge``, once for each text: the state is worked out anew at each event."""
    return judge(card, text)


@dataclass
class State:
    """What is known at some moment of an interview."""

    said: list[Said] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    typed_at: list[float] = field(default_factory=list)  # minutes
    cells: list[str] = field(default_factory=list)
    place_of: dict[str, int] = field(default_factory=dict)  # of a cell that can be edited
    file_of: dict[str, str] = field(default_factory=dict)  # of such a cell, the newest
    last_cell: str | None = None
    problem: str = ""  # why the last cell doesn't parse
    checked: list[Event] = field(default_factory=list)  # verdicts
    topics: dict[str, float] = field(default_factory=dict)  # asked about, and when
    waiting: list[str] = field(default_factory=list)  # topics that have no reply yet
    is_asked: bool = False  # something else, which isn't about the situation
    says: list[tuple[float, Heard]] = field(default_factory=list)
    nudged: dict[str, float] = field(default_factory=dict)
    lines: list[Event] = field(default_factory=list)  # what the interviewer said
    incident_at: float | None = None
    incident_over: float | None = None
    incident_rows: Mapping[str, Any] | None = None  # its score: row -> [grade, why]
    unseen: list[str] = field(default_factory=list)  # sources of the incident asked for
    hints: int = 0
    problems: list[str] = field(default_factory=list)  # the language model's
    ended: float | None = None

    @property
    def text(self) -> str:
        """Everything typed, as one text."""
        return notebook_text(tuple(self.cells))

    @property
    def facts(self) -> frozenset[str]:
        """What was built, said, heard and passed, as questions.toml names it."""
        found = set(facts_of(self.text))
        found |= {f"said:{heard.what}" for _, heard in self.says}
        found |= {f"heard:{topic}" for topic in self.topics}
        found |= {"spoke"} if self.said else set()
        for verdict in self.checked[-1:]:
            found |= {f"passed:{stage}" for stage in verdict["stages"]}
        return frozenset(found)

    @property
    def open(self) -> Asked | None:
        """The question that has no answer yet."""
        return self.asked[-1] if self.asked and not self.asked[-1].answers else None

    @property
    def in_incident(self) -> bool:
        """Whether the candidate is on call right now."""
        return self.incident_at is not None and self.incident_over is None

    def words_before(self, minute: float) -> str:
        """All that was said before a minute."""
        return " ".join(said.text for said in self.said if said.minute < minute)


def state_of(events: Sequence[Event], cells: dict[str, str]) -> State:
    """The state after these events.

    Args:
        cells: the text of each cell, by its file's name.
    """
    state = State()
    for event in events:
        minute = event["at"] / 60
        if event["did"] == "say":
            _say(state, minute, event["text"])
        elif event["did"] == "type":
            _type(state, minute, event, cells.get(event["file"], ""))
        elif event["did"] == "take back":
            _take_back(state, event["cell"])
        elif event["did"] == "checked":
            state.checked.append(event)
        elif event["did"] == "line":
            _line(state, minute, event)
        elif event["did"] in ("opinion asked", "opinion"):
            _opinion(state, event)
        elif event["did"] == "incident scored":
            state.incident_rows = event["rows"]
        elif event["did"] == "hint":
            state.hints += 1
        elif event["did"] == "end":
            state.ended = minute
    return state


def _type(state: State, minute: float, event: Event, text: str) -> None:
    state.typed_at.append(minute)
    state.problem = event.get("problem", "")
    cell = event.get("cell")
    if cell is not None and not state.problem:
        if cell in state.place_of:
            state.cells[state.place_of[cell]] = ""  # edited and run again
        state.place_of[cell] = len(state.cells)
    if cell is not None:
        state.file_of[cell] = event["file"]
    state.last_cell = cell
    state.cells.append(text)


def _take_back(state: State, cell: str) -> None:
    state.file_of.pop(cell, None)
    place = state.place_of.pop(cell, None)
    if place is not None:
        state.cells[place] = ""
    if cell == state.last_cell:
        state.problem = ""


def _say(state: State, minute: float, text: str) -> None:
    said = Said(minute, text)
    state.said.append(said)
    state.says += [(minute, heard) for heard in says_in(text)]
    if state.in_incident:
        state.unseen.append(text)
        return
    topics = [heard.what for heard in questions_in(text)]
    for topic in topics:
        state.topics.setdefault(topic, minute)
    state.waiting += [topic for topic in topics if topic not in state.waiting]
    state.is_asked = not topics and text.rstrip().endswith("?")
    if state.asked:
        state.asked[-1].answers.append(said)


def _opinion(state: State, event: Event) -> None:
    for asked in state.asked:
        if asked.card.id == event["card"]:
            asked.waits_for_model = event["did"] == "opinion asked"
            asked.opinion = event.get("points", asked.opinion)
            asked.model_asks = event.get("question", asked.model_asks)
    if event.get("problem"):
        state.problems.append(event["problem"])


def _line(state: State, minute: float, event: Event) -> None:
    state.lines.append(event)
    kind = event["kind"]
    if kind == "question":
        try:
            card = card_named(event["card"])
        except UnknownCard:
            return  # a card of the learner's own that is gone
        state.asked.append(Asked(card, event["row"], minute, event["text"]))
    elif kind == "follow up" and state.asked:
        state.asked[-1].has_followed_up = True
    elif kind == "reply":
        state.waiting, state.is_asked = [], False
    elif kind == "nudge":
        state.nudged[event["rule"]] = minute
    elif kind == "alert":
        state.incident_at = minute
    elif kind == "evidence":
        state.unseen = []
    elif kind == "incident over":
        state.incident_over, state.unseen = minute, []
