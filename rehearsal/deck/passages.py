"""How close a passage of an answer is to a point, by the words that they share.

Rare words count more. Words are compared by their first letters, so that "determines" and
"deterministic" are the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from typing import NamedTuple

from rehearsal.deck.cards import Card, Claim, Point
from rehearsal.deck.matching import GAP, group_of
from rehearsal.deck.polarity import NEGATIONS
from rehearsal.deck.weights import rarity
from rehearsal.deck.words import Word, stem, words_of

ROOT = 6  # letters of a stem that are compared
COMMA_ENDS, CLAUSE = 4, 24  # a comma after four words ends a clause, as do 24 words
CLAUSES, PASSAGE = 4, 30  # the most that a passage has, and words of several clauses
ELSEWHERE = 0.7  # what an expected word counts that isn't the point's own
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
# Words that say nothing about a topic.
COMMON = frozenset(
    stem(word)
    for word in """
    , a an the of to in on at for by with from as is are was were be been being it its this that
    these those and or if so then than there their they them he she we i you your our my me do
    does did have has had will would can could should may might must what which who when where
    how why because but also too just very more most some any each every all one two not no only
    own other same about into over up out per s t get got let""".split()
)


class Passage(NamedTuple):
    """A few clauses that follow each other."""

    positions: range  # of its words in the answer
    stems: frozenset[str]
    roots: frozenset[str]


class Expected(NamedTuple):
    """The words that a point makes likely."""

    text: Mapping[str, float]  # its own: how rare each root is
    around: Mapping[str, float]  # others of its claims, and of the strong answer's sentence
    says: AbstractSet[str]  # stems that only the claims that cover it have
    denies: AbstractSet[str]  # or only those that contradict it
    is_negative: bool


class Close(NamedTuple):
    """How close a passage is to a point."""

    text: float  # the share of the point's own words that are in it
    around: float  # what else is expected, relative to the point's own words
    focus: float  # the share of the passage that the point explains


def passages_of(words: Sequence[Word]) -> list[Passage]:
    """Every run of up to four clauses that isn't too long."""
    clauses, found = clauses_of(words), list[Passage]()
    for n, clause in enumerate(clauses):
        for last in clauses[n : n + CLAUSES]:
            run = range(clause.start, last.stop)
            if last is not clause and len(run) > PASSAGE:
                break
            stems = frozenset(words[at].stem for at in run)
            found.append(Passage(run, stems, roots_of(stems)))
    return found


def clauses_of(words: Sequence[Word]) -> list[range]:
    """The positions of each clause's words."""
    found, first = list[range](), 0
    for at in range(1, len(words) + 1):
        ends = at == len(words) or words[at].sentence != words[at - 1].sentence
        length = at - first
        if ends or (words[at].stem == "," and length >= COMMA_ENDS) or length >= CLAUSE:
            found.append(range(first, at))
            first = at
    return found


@cache
def stems_of(text: str) -> Sequence[str]:
    """The stems of a card's text."""
    return [word.stem for word in words_of(text)]


def roots_of(stems: Iterable[str]) -> frozenset[str]:
    """Their first letters."""
    return frozenset(word[:ROOT] for word in stems)


def rarities(stems: Iterable[str]) -> dict[str, float]:
    """How rare each word is that says something about a topic, by its root."""
    found = dict[str, float]()
    for word in _telling(stems):
        found[word[:ROOT]] = max(found.get(word[:ROOT], 0), rarity(word))
    return found


def length_of(stems: AbstractSet[str]) -> float:
    """How much these words say about a topic."""
    return sum(rarity(word) for word in sorted(_telling(stems)))


def shared(expected: Mapping[str, float], roots: AbstractSet[str]) -> float:
    """The sum of the rarities of the expected words that are there."""
    return sum(rare for root, rare in expected.items() if root in roots)


def _telling(stems: Iterable[str]) -> Iterator[str]:
    return (word for word in stems if word not in COMMON)


@cache
def expected_of(card: Card) -> Sequence[Expected]:
    """For each point."""
    return [_expected(card, point) for point in card.points]


def _expected(card: Card, point: Point) -> Expected:
    text = rarities(stems_of(point.text))

    def likeness(sentence: str) -> float:
        roots = roots_of(stems_of(sentence))
        return shared(text, roots) / math.sqrt(6 + len(roots))

    sentence = max(SENTENCE_END.split(card.strong), key=likeness)
    says, denies = _stems_in(point.says), _stems_in(point.denies)
    around = rarities([*sorted(says), *stems_of(sentence)])
    num_negations = sum(word in NEGATIONS for word in stems_of(point.text))
    return Expected(
        text,
        {root: rare for root, rare in around.items() if root not in text},
        says - denies - COMMON,
        denies - says - COMMON,
        num_negations % 2 == 1,
    )


def _stems_in(claims: Sequence[Claim]) -> frozenset[str]:
    groups = [group_of(text) for claim in claims for text in claim]
    return frozenset(word for group in groups for one in group for word in one) - {GAP}


def closeness(expected: Expected, passage: Passage) -> Close:
    """How close a passage is to a point."""
    whole = sum(expected.text.values()) + 0.3
    text = shared(expected.text, passage.roots)
    around = ELSEWHERE * shared(expected.around, passage.roots)
    focus = (text + around) / (length_of(passage.stems) + 0.5)
    return Close(text / whole, min(2, around / whole), focus)


def closest(expected: Expected, passages: Sequence[Passage]) -> Passage:
    """The passage that is closest to a point."""

    def score(passage: Passage) -> float:
        close = closeness(expected, passage)
        length = len(passage.positions) / 250
        return close.text + close.around / 3 + close.focus / 2 - length

    return max(passages, key=score)
