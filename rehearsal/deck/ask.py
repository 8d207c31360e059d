"""What a person calls: ask a card, list the deck, judge a file, export the deck."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from rehearsal.deck import anki, ask_terminal
from rehearsal.deck.asked import Asked
from rehearsal.deck.cards import Card, UnknownCard, card_named, cards, topic_named
from rehearsal.deck.examiner import examiner
from rehearsal.deck.judge import judge
from rehearsal.deck.standings import CardStanding, card_standings, next_card
from rehearsal.plan.route import route_of
from rehearsal.session.display import has_front_end, show, show_markdown
from rehearsal.session.progress import progress
from rehearsal.session.schedule import end_of_day


def ask(card_id: str | None = None, *, topic: str | None = None) -> None:
    """Ask a card: by default the one due for the longest, else the route's next new one.

    Say the answer aloud and type the gist of it, or only say it and mark the points yourself.

    Args:
        card_id: its id, or any prefix that only one card has.
        topic: choose among the cards of this topic only.

    Raises:
        UnknownCard: if there is no such card or topic, naming the nearest.
        BadDeck: if one of your own deck files can't be used.
    """
    if card_id is not None and topic is not None:
        raise UnknownCard(f"A card or a topic, not both: {card_id!r} and {topic!r}.")
    card = card_named(card_id) if card_id is not None else _next(topic)
    if card is None:
        show("Nothing is due now, and no card is new. ask(CARD) asks one all the same.")
        return
    if not has_front_end():
        ask_terminal.run(Asked(card, examiner=examiner()))
        return
    from IPython.display import display

    from rehearsal.deck.ask_widgets import widget

    display(widget(Asked(card, examiner=examiner())))


def _of(topic: str | None) -> list[CardStanding]:
    name = None if topic is None else topic_named(topic)
    chosen = [card for card in _in_order_of_the_route() if name in (None, card.topic)]
    return card_standings(chosen, progress().answers())


def _in_order_of_the_route() -> list[Card]:
    """All cards: those of a topic that only some interviews ask about come last."""
    steps = route_of([], dict.fromkeys(card.topic for card in cards()))
    places = {step.name: n for n, step in enumerate(steps) if step.kind == "cards"}
    return sorted(cards(), key=lambda card: places[card.topic])


def _next(topic: str | None) -> Card | None:
    found = next_card(_of(topic), end_of_day(time.time()))
    return None if found is None else found.card


def topics(topic: str | None = None) -> None:
    """Show the topics and how many of their cards are due; with a topic, its cards.

    Raises:
        UnknownCard: if there is no such topic, naming all.
        BadDeck: if one of your own deck files can't be used.
    """
    standings, now = _of(topic), end_of_day(time.time())
    if topic is None:
        rows: list[tuple[str, ...]] = [("topic", "title", "cards", "answered", "due today")]
        for name in dict.fromkeys(each.card.topic for each in standings):
            of = [each for each in standings if each.card.topic == name]
            answered = sum(bool(each.answers) for each in of)
            due = sum(each.due is not None and each.due <= now for each in of)
            title = of[0].card.topic_title
            rows.append((name, title, str(len(of)), str(answered), str(due)))
    else:
        rows = [("card", "level", "status", "question")]
        for each in standings:
            rows.append((each.card.id, each.card.level, each.words(now), each.card.question))
    head, *rest = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    table = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rest]]
    heading = [] if topic is None else [f"### {standings[0].card.topic_title}", ""]
    show_markdown("\n".join([*heading, *table]))


def judge_file(card_id: str, text: str, *, as_json: bool = False) -> None:
    """Print what an answer covers, misses and contradicts.

    Raises:
        UnknownCard: if there is no such card, naming the nearest.
        BadDeck: if one of your own deck files can't be used.
    """
    card = card_named(card_id)
    if as_json:
        print(json.dumps({"card": card.id, **judge(card, text)._asdict()}))
        return
    asked = Asked(card)
    asked.answer(text)
    print("\n".join(ask_terminal.points(asked)))


def export_to_anki(path: str | Path, *, topic: str | None = None) -> None:
    """Write the deck, or one topic of it, for Anki.

    Raises:
        CannotExport: if there is a file already, or if it can't be written.
        UnknownCard: if there is no such topic, naming all.
        BadDeck: if one of your own deck files can't be used.
    """
    chosen: Sequence[Card] = [each.card for each in _of(topic)]
    anki.export(chosen, Path(path).expanduser())
    show(f"Wrote {path}: {len(chosen)} cards. In Anki: File > Import.")
