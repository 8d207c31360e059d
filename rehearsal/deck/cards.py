"""What a card is, and where the cards come from.

The deck's files are ``rehearsal/cards/TOPIC.toml``. Your own go into ``cards/`` in the folder
of your history: a file there with a new topic adds one, and a file with the topic of another
one adds cards to it.

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

import difflib
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from rehearsal.deck.claims import EITHER_WAY, phrases_of
from rehearsal.deck.complaints import complaints
from rehearsal.engine.plain_message import PlainMessage
from rehearsal.session.progress import home

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


Claim = Annotated[tuple[Text, ...], Field(min_length=1)]  # groups; see rehearsal/deck/judge.py


class Point(_Part):
    """One thing that a strong answer says."""

    id: Id
    text: Text
    says: tuple[Claim, ...] = ()  # the claims that cover it
    denies: tuple[Claim, ...] = ()  # the claims that contradict it

    @field_validator("says", "denies")
    @classmethod
    def _can_be_read(cls, claims: tuple[Claim, ...]) -> tuple[Claim, ...]:
        for group in (group for claim in claims for group in claim):
            for _ in phrases_of(group.removeprefix(EITHER_WAY)):
                pass  # raises for a phrase that nothing could match
        return claims


class _WrittenCard(_Part):
    """A card as it is in a file."""

    id: Id
    level: Level
    question: Text
    points: Annotated[tuple[Point, ...], Field(alias="point", min_length=2)]
    weak: Text
    why_weak: Text
    strong: Text  # as you would say it
    follow_up: Text
    falsifier: Text  # the metric that would prove the position wrong
    shown_in: Annotated[tuple[str, ...], Field(min_length=1)]  # path in the project#heading

    @field_validator("points")
    @classmethod
    def _unique(cls, points: tuple[Point, ...]) -> tuple[Point, ...]:
        ids = [point.id for point in points]
        if twice := sorted({name for name in ids if ids.count(name) > 1}):
            raise ValueError(
                f"two points are called {' and '.join(twice)}. A point's id must be its own: "
                "rename one"
            )
        return points


class Card(_WrittenCard):
    """One question, what a strong answer to it says, and how a weak one sounds."""

    topic: str = ""
    topic_title: str = ""


class _File(_Part):
    """One deck file."""

    topic: Id
    title: Text
    cards: Annotated[tuple[_WrittenCard, ...], Field(alias="card", min_length=1)]


def read_topic(path: Path) -> list[Card]:
    """The cards of one deck file.

    Raises:
        BadDeck: if it isn't TOML, or if a field is missing, unknown or empty.
    """
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise BadDeck(
            f"{path}: byte {error.start + 1} isn't UTF-8. A deck file is TOML in UTF-8: save "
            "it with that encoding."
        ) from None
    except tomllib.TOMLDecodeError as error:
        what = str(error)
        raise BadDeck(
            f"{path}: {what[0].lower()}{what[1:]}. A deck file is TOML: fix it there, or a "
            "little before."
        ) from None
    except OSError as error:
        raise BadDeck(f"{path} can't be read: {error.strerror}.") from None
    try:
        file = _File.model_validate(found)
    except ValidationError as error:
        parts: dict[str, type[BaseModel]] = {
            "file": _File,
            "card": _WrittenCard,
            "point": Point,
        }
        raise BadDeck(f"{path}: {complaints(error, found, parts)}") from None
    return [
        Card.model_construct(topic=file.topic, topic_title=file.title, **dict(card))
        for card in file.cards
    ]


def read_deck(folders: Sequence[Path]) -> list[Card]:
    """The cards of all topics in these folders, in the order of the files' names.

    Raises:
        BadDeck: if a file can't be used, or if two cards have one id.
    """
    cards: dict[str, Card] = {}
    home: dict[str, Path] = {}
    for path in (path for folder in folders for path in _files(folder)):
        for card in read_topic(path):
            if card.id in cards:
                raise BadDeck(
                    f"{path}: the card {card.id!r} exists already, in {home[card.id]}. An id "
                    "stands for one card in your history, so rename this one."
                )
            cards[card.id], home[card.id] = card, path
    return list(cards.values())


def _files(folder: Path) -> list[Path]:
    """The deck files in a folder, without an editor's lock files and backups."""
    return sorted(
        path for path in folder.glob("*.toml") if path.is_file() and path.name[0] != "."
    )


@cache
def _deck(own: Path, _changed: tuple[tuple[str, int], ...]) -> Sequence[Card]:
    return read_deck([CARDS, own])


def cards() -> Sequence[Card]:
    """All cards: those that come with the suite, then your own.

    Raises:
        BadDeck: if one of your own files can't be used.
    """
    own = home() / "cards"
    changed = [(path.name, path.stat().st_mtime_ns) for path in _files(own)]
    return _deck(own, tuple(changed))


def card_named(text: str) -> Card:
    """The card with this id, or with any prefix that only one id has.

    Raises:
        UnknownCard: if there is none, naming the nearest; if there are several, naming them.
        BadDeck: if one of your own files can't be used.
    """
    known, text = {card.id: card for card in cards()}, str(text)
    if text in known:
        return known[text]
    found = [name for name in known if text and name.startswith(text)]
    if len(found) == 1:
        return known[found[0]]
    if found:
        raise UnknownCard(
            f"{len(found)} ids begin with {text!r}: {', '.join(found)}. Type more of the one "
            "you mean."
        )
    raise UnknownCard(f"There is no card {text!r}. {_nearest(text, list(known))}")


def topic_named(text: str) -> str:
    """The topic with this name, or with any prefix that only one name has.

    Raises:
        UnknownCard: if there is none, or several.
    """
    known, text = list(dict.fromkeys(card.topic for card in cards())), str(text)
    found = [name for name in known if name == text] or [
        name for name in known if text and name.startswith(text)
    ]
    if len(found) == 1:
        return found[0]
    raise UnknownCard(f"There is no topic {text!r}. The topics: {', '.join(known)}.")


def _nearest(text: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(text, names, n=3, cutoff=0.7)
    return f"Did you mean {' or '.join(near)}?" if near else "ask() shows the one that is due."
