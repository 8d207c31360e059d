"""What a card is, and where the cards come from.

The deck's files are ``rehearsal/cards/TOPIC.toml``. Your own go into ``cards/`` in the folder of
your history: a file there with a new topic adds one, and a file with the name of a topic adds
cards to it.

    topic = "recovery"
    title = "Checkpoints and recovery"

    [[card]]
    id = "resume_is_correct"
    level = "staff"
    question = "How do you know that a resume is correct?"
    weak = "..."
    why_weak = "..."
    strong = "..."
    follow_up = "..."
    falsifier = "..."
    shown_in = ["notebooks/handbook/13_checkpointing.ipynb#Resume validation"]

    [[card.point]]
    id = "optimizer"
    text = "The optimizer's moments are restored, not only the weights."
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from rehearsal.engine.plain_message import PlainMessage

CARDS = Path(__file__).parents[1] / "cards"
Level = Literal["senior", "staff"]
Id = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Text = Annotated[str, Field(min_length=1)]


class UnknownCard(PlainMessage, ValueError):
    """There is no such card or topic; the message names the nearest."""


class BadDeck(PlainMessage, ValueError):
    """A deck file can't be used; the message says which, where, and what it needs."""


class _Part(BaseModel):
    """Part of a deck file: a field that it doesn't know is a typing error."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


class Point(_Part):
    """One thing that a strong answer says."""

    id: Id
    text: Text


class Card(_Part):
    """One question, what a strong answer to it says, and how a weak one sounds."""

    id: Id
    topic: Id = ""
    level: Level
    question: Text
    points: Annotated[Sequence[Point], Field(alias="point", min_length=2)]
    weak: Text
    why_weak: Text
    strong: Text  # as you would say it
    follow_up: Text
    falsifier: Text  # the metric that would prove the position wrong
    shown_in: Annotated[Sequence[str], Field(min_length=1)]  # path in the project#heading

    @field_validator("points")
    @classmethod
    def _unique(cls, points: Sequence[Point]) -> Sequence[Point]:
        ids = [point.id for point in points]
        if twice := sorted({name for name in ids if ids.count(name) > 1}):
            raise ValueError(f"two points are called {' and '.join(twice)}")
        return points


class Topic(_Part):
    """One deck file."""

    topic: Id
    title: Text
    cards: Annotated[Sequence[Card], Field(alias="card", min_length=1)]


def read_topic(path: Path) -> Topic:
    """One deck file.

    Raises:
        BadDeck: if it isn't TOML, or if a field is missing, unknown or empty.
    """
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadDeck(f"{path}: {error}. A deck file is TOML.") from None
    try:
        topic = Topic.model_validate(found)
    except ValidationError as error:
        raise BadDeck(f"{path}: {'; '.join(_complaints(error, found))}.") from None
    named = [card.model_copy(update={"topic": topic.topic}) for card in topic.cards]
    return topic.model_copy(update={"cards": named})


def _complaints(error: ValidationError, found: dict[str, object]) -> Iterator[str]:
    """What is wrong, and where: the card by its id, as far as it has one."""
    for one in error.errors():
        where, at = [], found
        for step in one["loc"]:
            at = at[step] if _has(at, step) else None  # type: ignore[index]
            if isinstance(step, int):
                name = at.get("id") if isinstance(at, dict) else None
                where[-1] += f" {name!r}" if name else f" {step + 1}"
            else:
                where.append(str(step))
        message = one["msg"].removeprefix("Value error, ")
        yield f"{', '.join(where)}: {message[0].lower()}{message[1:]}"


def _has(at: object, step: object) -> bool:
    if isinstance(at, list):
        return isinstance(step, int) and step < len(at)
    return isinstance(at, dict) and step in at


@cache
def shipped() -> Sequence[Topic]:
    """The topics that come with the suite, in the order of their files' names."""
    return [read_topic(path) for path in sorted(CARDS.glob("*.toml"))]
