"""What the interviewer says next: decided from what was built and said, and from the clock.

Each row of the rubric has a turn, so that every interview asks about all of them. What is asked
in a turn depends on the candidate: of the questions whose facts hold, the one that has most to
do with this trainer. Some come at once, as soon as the word that asks for them is said.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rehearsal.deck.cards import card_named
from rehearsal.interviews.boxes import box_at, boxes
from rehearsal.interviews.heard import prompts
from rehearsal.interviews.second_opinion import PATIENCE
from rehearsal.interviews.state import State

QUESTIONS = Path(__file__).with_name("questions.toml")
# When each row has its turn, as a fraction of the interview. The last of a row are left out in
# an interview of less than LONG minutes.
TURNS = (
    ("commits", 0.13),
    ("tradeoffs", 0.28),
    ("failures", 0.42),
    ("failures", 0.50),
    ("tradeoffs", 0.58),
    ("debugs", 0.64),
    ("risks", 0.81),
    ("costs", 0.88),
    ("communicates", 0.95),
)
LONG = 25
CLOSING = "closing_minute"
SILENCE = 5.0  # minutes
INCIDENT = 0.14  # of the interview: how long the candidate is on call


class Line(NamedTuple):
    """Something the interviewer says.

    Args:
        kind: prompt, reply, nudge, question, follow up, alert, evidence, incident over, end;
            or a note, which isn't part of the conversation.
        facts: what the events keep about it.
    """

    text: str
    kind: str
    facts: Mapping[str, Any] = {}


Setting = Literal["general", "biotech"]


class Question(NamedTuple):
    """One entry of questions.toml."""

    card: str
    row: str
    when: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    lead: str = ""
    asks: str = ""
    at_once: bool = False


@cache
def bank() -> tuple[Question, ...]:
    """What may be asked."""
    found = tomllib.loads(QUESTIONS.read_text("utf-8"))["question"]
    return tuple(
        Question(
            card=one["card"],
            row=one["row"],
            when=tuple(one.get("when", ())),
            unless=tuple(one.get("unless", ())),
            lead=one.get("lead", ""),
            asks=one.get("asks", ""),
            at_once=one.get("at_once", False),
        )
        for one in found
    )


class Script(NamedTuple):
    """What a seed draws before anybody has said a word."""

    prompt: str
    situation: Mapping[str, str]
    minutes: float
    seed: int
    setting: str


def script_of(seed: int, minutes: float, setting: str = "general") -> Script:
    """The prompt and the situation of a seed, in a setting."""
    rng = random.Random(f"interview {seed}")
    prompt = rng.choice(of_setting("prompt", setting))["text"]
    situation = rng.choice(of_setting("situation", setting))
    return Script(prompt, situation, minutes, seed, setting)


def of_setting(kind: str, setting: str) -> list[Mapping[str, str]]:
    """The prompts or situations of a setting."""
    return [one for one in prompts()[kind] if one.get("setting", "general") == setting]


def next_line(
    script: Script, state: State, minute: float, *, is_diagnosed: bool = False
) -> Line | None:
    """What the interviewer says at this minute; None to keep listening.

    Args:
        is_diagnosed: the cause of the incident was named, in words or with ``diagnose``.
    """
    if not state.lines:
        return Line(script.prompt, "prompt")
    if state.ended is not None:
        return None
    if minute >= script.minutes:
        text = "That's time. Whatever you've typed by now counts."
        return Line(text, "end")
    if state.in_incident:
        return _on_call(script, state, minute, is_diagnosed)
    for lines in (_reply, _note, _follow_up, _due_question, _nudge):
        for line in lines(script, state, minute):
            return line
    return None


def _reply(script: Script, state: State, minute: float) -> Iterator[Line]:
    if state.waiting:
        said = [script.situation[topic] for topic in state.waiting]
        yield Line(" ".join(said), "reply")
    elif state.is_asked:
        yield Line("That's up to you. Tell me what you assume.", "reply")


def _note(script: Script, state: State, minute: float) -> Iterator[Line]:
    for problem in state.problems:
        if problem not in [line["text"] for line in state.lines]:
            yield Line(problem, "note")


def _follow_up(script: Script, state: State, minute: float) -> Iterator[Line]:
    if not state.asked or state.asked[-1].has_followed_up or not state.asked[-1].answers:
        return
    last = state.asked[-1]
    upcoming = [at for _, at in _turns_left(script, state)]
    if upcoming and upcoming[0] <= minute:
        return  # no time for it
    if last.waits_for_model and minute - last.answers[-1].minute < PATIENCE:
        return
    facts = {"card": last.card.id}
    for words, is_denied in last.contradictions[:1]:
        # To doubt somebody who is right is the worse mistake.
        asks = "Are you sure?" if is_denied else "What makes you say that?"
        yield Line(f'You said: "{words}". {asks}', "follow up", facts)
        return
    if last.share < 0.34:
        yield Line("Go on. What else?", "follow up", facts)
    elif last.share >= 0.6 and last.model_asks:
        yield Line(last.model_asks, "follow up", {**facts, "by": "language model"})
    elif last.share >= 0.6:
        yield Line(last.card.follow_up, "follow up", facts)


def turns(minutes: float) -> list[tuple[str, float]]:
    """When each row has its turn, in minutes."""
    found, rows = list[tuple[str, float]](), list[str]()
    for row, share in TURNS:
        if minutes >= LONG or row not in rows:
            found.append((row, share * minutes))
        rows.append(row)
    return found


def _turns_left(script: Script, state: State) -> list[tuple[str, float]]:
    """The turns that nothing has been asked in. A question that came early uses one up."""
    used = [asked.row for asked in state.asked]
    if state.incident_at is not None or state.incident_over is not None:
        used.append("debugs")
    left = list[tuple[str, float]]()
    for row, at in turns(script.minutes):
        if row in used:
            used.remove(row)
        else:
            left.append((row, at))
    return left


def _due_question(script: Script, state: State, minute: float) -> Iterator[Line]:
    left = _turns_left(script, state)
    last = max([asked.minute for asked in state.asked] or [0.0])
    if state.incident_over is not None:
        last = max(last, state.incident_over)
    gap = script.minutes / 30
    if minute - last < gap:
        return
    if state.open and minute - last < 2 * gap:
        return  # the candidate is thinking
    rows_left = [row for row, _ in left]
    begins = boxes(script.minutes)[0].ends
    for question in _fitting(script, state, minute):
        if question.at_once and question.row in rows_left and minute >= begins:
            yield _asked(question, script.minutes)
            return
    for row, at in left:
        if at > minute:
            return
        if row == "debugs":
            yield Line("", "alert")  # the session has the job, and fills it in
            return
        if row == "communicates":
            # The card has one minute left, and here it depends on the length.
            text = "We're almost out of time. Sum up, in a minute."
            yield Line(text, "question", {"card": CLOSING, "row": row})
            return
        for question in _fitting(script, state, minute):
            if question.row == row:
                yield _asked(question, script.minutes)
                return


def _fitting(script: Script, state: State, minute: float) -> Sequence[Question]:
    """The questions whose facts hold and that were not asked, the closest ones first."""
    facts = state.facts | {
        f"box:{box_at(minute, script.minutes).name}",
        f"in:{script.situation['id']}",
        f"in:{script.setting}",
    }
    asked = {each.card.id for each in state.asked}
    rng = random.Random(f"questions {script.seed}")
    # What the setting is about comes before what is asked anywhere.
    found = [
        (f"in:{script.setting}" not in one.when, -len(one.when), rng.random(), one)
        for one in bank()
        if facts.issuperset(one.when) and not facts & {*one.unless}
    ]
    return [one for *_, one in sorted(found) if one.card not in asked]


def _asked(question: Question, minutes: float) -> Line:
    card = card_named(question.card)
    asks = question.asks.format(minutes=f"{minutes:g}") or card.question
    text = f"{question.lead} {asks}".strip()
    return Line(text, "question", {"card": card.id, "row": question.row})


def _nudge(script: Script, state: State, minute: float) -> Iterator[Line]:
    plan = {box.name: box for box in boxes(script.minutes)}
    typed = bool(state.typed_at)
    nudges = [
        (
            "ask",
            minute >= 0.6 * plan["clarify"].ends and not state.topics,
            "Is there anything you'd like to know before you start?",
        ),
        (
            "sketch",
            minute >= plan["clarify"].ends + 0.5 and not typed and len(state.said) < 2,
            "Sketch it for me first: which processes, which state, and what must hold?",
        ),
        (
            "type",
            minute >= plan["sketch"].ends + 1 and not typed,
            "Let's see some code. Start with the smallest thing that runs.",
        ),
        (
            "second rank",
            minute >= plan["distribution and faults"].begins + 1
            and typed
            and "built:ranks" not in state.facts,
            "I'd like to see a second rank. What changes?",
        ),
        ("parse", bool(state.problem), f"Your last cell doesn't parse: {state.problem}."),
    ]
    for rule, holds, text in nudges:
        if holds and rule not in state.nudged:
            yield Line(text, "nudge", {"rule": rule})
            return
    heard = [said.minute for said in state.said] + [line["at"] / 60 for line in state.lines]
    if minute - max(heard) >= SILENCE:
        yield Line("Talk to me. What are you doing?", "nudge", {"rule": "silence"})


def _on_call(script: Script, state: State, minute: float, is_diagnosed: bool) -> Line | None:
    assert state.incident_at is not None
    if state.unseen:
        return Line("", "evidence")  # the session has the job, and fills it in
    if is_diagnosed:
        return Line("Noted. Back to your trainer.", "incident over")
    if minute - state.incident_at >= max(3.0, INCIDENT * script.minutes):
        return Line("Let's leave it there. Back to your trainer.", "incident over")
    return None
