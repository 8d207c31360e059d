"""The deck for Anki: one note per card, with the points and the answers on its back."""

from __future__ import annotations

import hashlib
import html
from collections.abc import Sequence
from pathlib import Path

from rehearsal.deck.cards import Card
from rehearsal.deck.places import address_online, links
from rehearsal.engine.plain_message import PlainMessage


class CannotExport(PlainMessage, OSError):
    """The file can't be written; the message says why."""


FRONT = "<p>{{Question}}</p>"
BACK = """{{FrontSide}}<hr id="answer">
<p><b>A strong answer says</b></p>{{Points}}
<p><b>Strong.</b> {{Strong}}</p>
<p><b>Weak.</b> {{Weak}} <i>{{Why}}</i></p>
<p><b>They ask next.</b> {{FollowUp}}</p>
<p><b>What would prove you wrong.</b> {{Falsifier}}</p>
<p><b>Shown in.</b> {{ShownIn}}</p>"""
FIELDS = ("Question", "Points", "Strong", "Weak", "Why", "FollowUp", "Falsifier", "ShownIn")


def export(cards: Sequence[Card], path: Path) -> None:
    """Write an .apkg file, with a subdeck for each topic.

    Importing it again updates the notes and keeps Anki's own schedule.

    Raises:
        CannotExport: if there is a file already, which may be somebody's, or if it can't be
            written.
    """
    import genanki

    if path.exists():
        raise CannotExport(f"{path} exists already. Choose another name, or delete it first.")
    model = genanki.Model(
        _number("model"),
        "Distributed training interview",
        fields=[{"name": name} for name in FIELDS],
        templates=[{"name": "Say it", "qfmt": FRONT, "afmt": BACK}],
    )
    decks = {}
    for card in cards:
        if card.topic not in decks:
            name = f"Distributed training::{card.topic}"
            decks[card.topic] = genanki.Deck(_number(card.topic), name)
        tags = [card.topic, card.level]
        decks[card.topic].add_note(genanki.Note(model, _fields(card), guid=card.id, tags=tags))
    part = path.with_name(f"{path.name}.part")
    try:
        genanki.Package(list(decks.values())).write_to_file(str(part))
        part.rename(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise CannotExport(
            f"{path} can't be written: {error.strerror}. Choose another folder."
        ) from None


def _fields(card: Card) -> list[str]:
    """A card as HTML, in the order of FIELDS."""
    points = "".join(f"<li>{html.escape(point.text)}</li>" for point in card.points)
    texts = [card.strong, card.weak, card.why_weak, card.follow_up, card.falsifier]
    places = links((place, address_online(place)) for place in card.shown_in)
    return [html.escape(card.question), f"<ul>{points}</ul>", *map(html.escape, texts), places]


def _number(name: str) -> int:
    """An id that is the same in each export, which is how Anki knows a deck again."""
    digest = hashlib.sha256(f"distributed-trainer-rehearsal {name}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
