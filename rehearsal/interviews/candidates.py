"""Four scripted candidates, who show that the marks can tell people apart.

    silent   says nothing and types nothing
    fluent   talks all the time, is confident and wrong, and types code that doesn't work
    hands    types a trainer that passes everything, without a word
    strong   asks first, says most of what a strong answer says, and types the same trainer

The strong one leaves out a third of the sentences, drawn from the seed: nobody says everything.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

from rehearsal.deck.cards import Card, card_named
from rehearsal.grading.drill import load
from rehearsal.interviews.interviewer import Setting
from rehearsal.interviews.opening import interview
from rehearsal.interviews.scorecard import Scorecard
from rehearsal.interviews.session import Interview

Name = Literal["silent", "fluent", "hands", "strong"]
NAMES: tuple[Name, ...] = get_args(Name)
TICK_S = 30.0
CELLS = ("class TinyNet", "def fsync", "class StepTimers")  # where the trainer is cut
QUESTIONS = (
    "How many GPUs, on how many nodes? Does the model fit on one GPU? How much data is there, "
    "and where? How often do machines fail, and can we be preempted? What do you want to have "
    "seen at the end?"
)


class Candidate(NamedTuple):
    """What somebody says and types.

    Args:
        replies: to a line of the interviewer, of this kind, about this card.
        cells: what is typed, in order.
        narration: what is said with each cell, and every few minutes.
    """

    replies: Callable[[Interview, str, Card | None, random.Random], Iterator[str]]
    cells: tuple[str, ...] = ()
    narration: str = ""


def cells_of_the_trainer() -> tuple[str, ...]:
    """The live trainer in four cells."""
    text = load("live_trainer").solution
    cuts = [0, *(text.index(mark) for mark in CELLS), len(text)]
    return tuple(text[a:b] for a, b in pairwise(cuts))


def _silent(*_: object) -> Iterator[str]:
    yield from ()


def _fluent(
    session: Interview, kind: str, card: Card | None, rng: random.Random
) -> Iterator[str]:
    if kind == "prompt":
        yield card_named("opening_minute").weak
    elif kind == "question" and card is not None:
        yield card.weak
    elif kind == "follow up":
        yield "Yes, absolutely. I've seen that many times."
    elif kind in ("alert", "evidence"):
        yield "It's the network, the network is slow. It always is. I'd restart the job."


def _strong(
    session: Interview, kind: str, card: Card | None, rng: random.Random
) -> Iterator[str]:
    if kind == "prompt":
        yield f"Let's agree on what working means. {QUESTIONS}"
        yield most_of(card_named("opening_minute").strong, rng)
    elif kind == "question" and card is not None:
        yield most_of(card.strong, rng)
    elif kind == "follow up":
        yield "I'd measure that before I change anything, and here's what I expect to see."
    elif kind == "alert":
        yield "Show me the phases, the restarts and the logs."
        yield "And the loss, the ledger and the recent deploys."
    elif kind == "evidence":
        yield from _diagnosis(session)


def _diagnosis(session: Interview) -> Iterator[str]:
    """The right one, for the sources that were looked at."""
    case = session.incident
    kind = case.kind
    looked = {event["source"] for event in case.history if event["did"] == "look"}
    wanted = [see.source for see in kind.path if see.source not in looked | {"code"}]
    if wanted and len(looked) < 8:
        spoken = [name.replace("_", " ") for name in wanted]
        yield f"Show me the {' and the '.join(spoken)}."
        return
    sources = ", ".join(sorted(looked))
    yield (
        f"{kind.id}: {kind.chain[0]}, so {kind.chain[1]}. The {sources} say so. "
        f"My first move: {kind.first_moves[0]}."
    )


def most_of(text: str, rng: random.Random) -> str:
    """Two thirds of the sentences of a text, in order; at least one."""
    sentences = re.split(r"(?<=[.?!])\s+", " ".join(text.split()))
    number = max(1, round(len(sentences) * 2 / 3))
    chosen = sorted(rng.sample(range(len(sentences)), number))
    return " ".join(sentences[n] for n in chosen)


def broken_cells() -> tuple[str, ...]:
    """A trainer that looks like one: every rank trains everything, and saves are torn."""
    text = "".join(cells_of_the_trainer())
    for right, wrong in (
        ("batch[self.rank :: self.world_size]", "batch"),
        ("if not isinstance(value, str) and not least <= value < most:", "if False:"),
        ("tmp.rename(target)", "import shutil; shutil.copytree(tmp, target)"),
    ):
        assert right in text, right
        text = text.replace(right, wrong)
    return (text,)


def candidate(name: Name) -> Candidate:
    """One of the four."""
    if name == "silent":
        return Candidate(_silent)
    if name == "hands":
        return Candidate(_silent, cells_of_the_trainer())
    if name == "fluent":
        says = "Next I'll just scale it out. DDP handles all of that, so we're fine."
        return Candidate(_fluent, broken_cells(), says)
    says = (
        "Next I'll type the next part. I'll assume one shared disk; if that's wrong, only the "
        "checkpoint adapter changes."
    )
    return Candidate(_strong, cells_of_the_trainer(), says)


def play(name: Name, seed: int, minutes: float = 45, setting: Setting = "general") -> Scorecard:
    """Hold an interview with one of them, in simulated time."""
    who, rng, now = candidate(name), random.Random(f"{name} {seed}"), [0.0]
    session = interview(minutes, seed, setting=setting, clock=lambda: now[0])
    waiting = list(who.cells)
    spoke = 0.0
    while not session.is_over:
        spoke = max(spoke, _converse(session, who, rng))
        if session.is_over:
            break
        typed = len(who.cells) - len(waiting)
        if waiting and session.minute >= minutes * (0.2 + 0.1 * typed):
            session.type(waiting.pop(0))
            spoke -= 4.0  # and says something about it
        if who.narration and session.minute - spoke >= 3.0:
            session.say(who.narration)
            spoke = session.minute
        now[0] += TICK_S
    return session.scorecard()


def _converse(session: Interview, who: Candidate, rng: random.Random) -> float:
    """Hear the interviewer out, and answer; the minute of the last answer, or 0."""
    spoke = 0.0
    while session.next() is not None and not session.is_over:
        line = session.events[-1]
        card = card_named(line["card"]) if line.get("card") else None
        for text in who.replies(session, line["kind"], card, rng):
            session.say(text)
            spoke = session.minute
    return spoke
