"""What a typed answer says: which points of a card it covers, misses or contradicts.

    words        the answer's words: stems, abbreviations and typing errors undone   words.py
    claims       those of a point that it makes, and whether it negates them     matching.py
    closeness    passages that share a point's words                             passages.py
    evidence     both, in 29 numbers for each point                              evidence.py
    weights      what each number counts for "covered" and for "contradicted"     weights.py

"Missed" has 0, and the largest sum decides. Sentence embeddings were tried instead: they
measure the topic and not the claim, and a claim and its negation are 0.99 similar. The learner
has the last word.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from rehearsal.deck.cards import Card, Point, card_named
from rehearsal.deck.evidence import Evidence, evidence
from rehearsal.deck.matching import claimed, group_of
from rehearsal.deck.passages import stems_of
from rehearsal.deck.weights import sums, typed_right
from rehearsal.deck.words import Word, words_of
from rehearsal.session.history import Found

QUOTED = 160  # characters of an answer that are shown as what decided
AROUND = 3  # words on both sides of what decided


class Coverage(NamedTuple):
    """What an answer says about each point of a card, by point id."""

    covered: tuple[str, ...]
    missed: tuple[str, ...]
    contradicted: tuple[str, ...]
    because: dict[str, str]  # the words that decided it, as they were typed
    denied: tuple[str, ...] = ()  # of the contradicted, those where a claim says so


def judge(card: Card, text: str) -> Coverage:
    """Judge a typed answer; the same answer always gets the same result."""
    words = read(card, text)
    if not words:
        return Coverage((), tuple(point.id for point in card.points), (), {})
    found: dict[str, Found] = {}
    because, denied = {}, list[str]()
    for point, each in zip(card.points, evidence(card, words), strict=True):
        found[point.id] = _decided(point, each)
        if found[point.id] == "covered":
            because[point.id] = _quoted(text, words, each.words_for)
        if found[point.id] == "contradicted":
            because[point.id] = _quoted(text, words, each.words_against)
            if each.is_negated or each.numbers["denies"]:
                denied.append(point.id)

    def those(wanted: Found) -> tuple[str, ...]:
        return tuple(name for name, what in found.items() if what == wanted)

    return Coverage(
        those("covered"), those("missed"), those("contradicted"), because, tuple(denied)
    )


def judge_answer(card_id: str, text: str) -> Coverage:
    """What a typed answer to this card covers, misses and contradicts.

    Raises:
        UnknownCard: if there is no such card, naming the nearest.
    """
    return judge(card_named(card_id), text)


def claimed_in(text: str, claims: Sequence[Sequence[str]]) -> str:
    """The words with which a text makes one of the claims; empty if it makes none of them."""
    words = words_of(text, frozenset(), typed_right())
    for claim in claims:
        hits, is_negated = claimed(tuple(claim), words)
        if hits and not is_negated:
            return _quoted(text, words, sorted({at for hit in hits for at in hit}))
    return ""


def read(card: Card, text: str) -> list[Word]:
    """The words of an answer to this card."""
    return words_of(text, _meant(card), typed_right() | _stems_on(card))


@cache
def _meant(card: Card) -> frozenset[str]:
    """What a typing error in an answer to this card can be meant as."""
    claims = [claim for point in card.points for claim in [*point.says, *point.denies]]
    groups = [group_of(text) for claim in claims for text in claim]
    return frozenset(word for group in groups for one in group for word in one)


@cache
def _stems_on(card: Card) -> frozenset[str]:
    texts = [card.question, card.strong, card.weak, card.why_weak, card.follow_up]
    return frozenset(word for text in texts for word in stems_of(text))


def _decided(point: Point, found: Evidence) -> Found:
    if not point.says:
        return "missed"  # nobody has said yet what covers it
    if found.is_negated:
        return "contradicted"
    covered, contradicted = sums(found.numbers)
    if max(covered, contradicted) <= 0:
        return "missed"
    if contradicted > covered:
        return "contradicted"
    return "missed" if found.is_mention else "covered"


def _quoted(text: str, words: Sequence[Word], positions: Sequence[int]) -> str:
    """The passage of the answer with these words, in one line.

    With a few words around it in their sentence: a negation is one of them.
    """
    first, last = positions[0], positions[-1]
    while first and positions[0] - first < AROUND:
        if words[first - 1].sentence != words[first].sentence:
            break
        first -= 1
    while last + 1 < len(words) and last - positions[-1] < AROUND:
        if words[last + 1].sentence != words[last].sentence:
            break
        last += 1
    line = " ".join(text[words[first].start : words[last].end].split()).strip(" ,.;:")
    if len(line) <= QUOTED:
        return line
    runs = [[positions[0], positions[0]]]
    for position in positions[1:]:
        if position == runs[-1][1] + 1:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    pieces = (text[words[begin].start : words[end].end] for begin, end in runs)
    return " ... ".join(" ".join(piece.split()) for piece in pieces)
