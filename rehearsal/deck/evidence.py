"""What speaks for and against a point in an answer, in numbers; most of them are from 0 to 1.

A claim of the point that the answer makes says the most. But nobody can list all the words for
a thing, so the others say how near an answer comes without making one: how much of a claim is
in a passage, how many of the point's words, and what the rest of the answer is like.
``matcher.toml`` has what each of them counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from typing import NamedTuple

from rehearsal.deck.cards import Card, Claim, Point
from rehearsal.deck.doubts import DISMISSIVE, doubts
from rehearsal.deck.matching import GAP, claimed, group_of
from rehearsal.deck.passages import (
    COMMON,
    ROOT,
    Expected,
    Passage,
    clauses_of,
    closeness,
    closest,
    expected_of,
    length_of,
    passages_of,
    rarities,
    roots_of,
    shared,
    stems_of,
)
from rehearsal.deck.polarity import NEGATIONS
from rehearsal.deck.weights import rarity
from rehearsal.deck.words import Word, stem

AROUND = 3  # words before and after the point's own words in which a negation counts
LEAST_WORDS = 3  # that say something about a topic
LEAST_SHARE = 0.6  # of a claim in a passage, for the passage to be about the point
REQUIRED = frozenset(map(stem, "must need should require have essential".split()))


class Claimed(NamedTuple):
    """Where the answer makes claims of a point: the positions of their words."""

    denied: Sequence[int]  # one that contradicts it
    said: Sequence[int]  # one that covers it
    negated: Sequence[int]  # one that covers it, but negated
    refused: Sequence[int]  # one that contradicts it, but negated

    @property
    def is_for(self) -> bool:
        """Whether they only cover it."""
        return bool(self.said and not self.denied)

    @property
    def is_against(self) -> bool:
        """Whether one contradicts it, or the only ones that cover it are negated."""
        return bool(self.denied or (self.negated and not self.said))


class Nearly(NamedTuple):
    """How much of a claim is in the passage that comes nearest to making it."""

    mean: float  # over the claim's groups
    least: float
    passage: Passage

    @property
    def is_about_it(self) -> bool:
        return self.mean > LEAST_SHARE


class Evidence(NamedTuple):
    """What speaks for and against a point, and which words of the answer do."""

    numbers: Mapping[str, float]
    is_negated: bool  # the answer makes a claim that covers it, but only negated
    is_mention: bool  # no claim, and too few words for saying more than what it's about
    words_for: Sequence[int]
    words_against: Sequence[int]


class Looked(NamedTuple):
    """What was found about a point."""

    point: Point
    expected: Expected
    claimed: Claimed
    passage: Passage  # the one that is closest to it
    says: Nearly
    denies: Nearly


def evidence(card: Card, words: Sequence[Word]) -> list[Evidence]:
    """What speaks for and against each point, in an answer of a word or more."""
    passages, clauses = passages_of(words), clauses_of(words)
    looked = [
        Looked(
            point,
            expected,
            _claimed(point, words),
            closest(expected, passages),
            _nearly(point.says, passages),
            _nearly(point.denies, passages),
        )
        for point, expected in zip(card.points, expected_of(card), strict=True)
    ]
    whole = _whole_answer(card, words)
    found = []
    for at in looked:
        others = [other for other in looked if other is not at]
        numbers = {
            **_from_claims(at),
            **_from_passage(at, others, words),
            **_from_others(at, others),
            **doubts(at.point, at.expected, clauses, words),
            **whole,
        }
        nearest = (at.says.passage if at.says.is_about_it else at.passage).positions
        against = (at.denies.passage if at.denies.is_about_it else at.passage).positions
        num_telling = sum(words[n].stem not in COMMON for n in nearest)
        found.append(
            Evidence(
                numbers,
                bool(at.claimed.negated and not at.claimed.said),
                not at.claimed.said and num_telling < LEAST_WORDS,
                at.claimed.said or nearest,
                at.claimed.denied or at.claimed.negated or against,
            )
        )
    return found


def _claimed(point: Point, words: Sequence[Word]) -> Claimed:
    denied, said, negated, refused = list[int](), list[int](), list[int](), list[int]()
    for claim in point.denies:
        hits, is_negated = claimed(claim, words, sentences=1)
        if is_negated:
            refused = refused or _positions(hits)
        else:
            denied = denied or _positions(hits)
    for claim in point.says:
        hits, is_negated = claimed(claim, words)
        if is_negated:
            negated = negated or _positions(hits)
        else:
            said = said or _positions(hits)
    return Claimed(denied, said, negated, refused)


def _positions(hits: Sequence[Sequence[int]]) -> list[int]:
    return sorted({position for hit in hits for position in hit})


def _nearly(claims: tuple[Claim, ...], passages: Sequence[Passage]) -> Nearly:
    best = Nearly(0, 0, passages[0])
    for groups in _weighed(claims):
        for passage in passages:
            shares = [_share(group, passage.stems) for group in groups]
            found = Nearly(sum(shares) / len(shares), min(shares), passage)
            best = max(
                best, found, key=lambda it: (it.mean + it.least, -len(it.passage.positions))
            )
    return best


class Phrase(NamedTuple):
    """A phrase of a claim, with what each of its words counts."""

    counts: Mapping[str, float]
    total: float
    is_negative: bool


@cache
def _weighed(claims: tuple[Claim, ...]) -> Sequence[Sequence[Sequence[Phrase]]]:
    """The groups of each claim."""

    def weighed(one: Sequence[str]) -> Phrase:
        counts = {word: 0.2 + rarity(word) for word in one if word != GAP}
        return Phrase(counts, sum(counts.values()), not NEGATIONS.isdisjoint(counts))

    return [[[weighed(one) for one in group_of(text)] for text in claim] for claim in claims]


def _share(group: Sequence[Phrase], stems: AbstractSet[str]) -> float:
    """The share of a phrase that a passage has, for the phrase of which it has most.

    Of "not enough", "enough" is nothing.
    """
    is_negative, best = not NEGATIONS.isdisjoint(stems), 0.0
    for counts, total, needs_negation in group:
        if not stems.isdisjoint(counts) and (is_negative or not needs_negation):
            found = sum(count for word, count in counts.items() if word in stems)
            best = max(best, found / total)
    return best


def _from_claims(at: Looked) -> dict[str, float]:
    denied, said, negated, refused = at.claimed
    is_negated, is_refused = bool(negated and not said), bool(refused and not denied)
    return {
        "says": at.claimed.is_for,
        "denies": bool(denied),
        "says_and_denies": bool(said and denied),
        "says_in_words": len(said) / 6,
        "says_over_words": (said[-1] - said[0]) / 40 if said else 0,
        "nearly_says": 0 if is_negated else at.says.mean,
        "nearly_denies": 0 if is_refused else at.denies.mean,
        "nearly_denies_least": 0 if is_refused else at.denies.least,
        "says_and_refuses": is_refused and bool(said),
    }


def _from_passage(
    at: Looked, others: Sequence[Looked], words: Sequence[Word]
) -> dict[str, float]:
    close = closeness(at.expected, at.passage)
    rivals = [closeness(other.expected, at.passage) for other in others]
    where = {*at.passage.positions}
    if at.says.is_about_it:
        where |= {*at.says.passage.positions}
    stems = {words[position].stem for position in where}
    is_turned = _is_negative(at, words) != at.expected.is_negative
    return {
        "text": close.text,
        "text_turned": close.text if is_turned else 0,
        "around_lead": close.around - max(rival.around for rival in rivals),
        "focus_lead": close.focus - max(rival.focus for rival in rivals),
        "words_of_says": min(3, length_of(stems & at.expected.says)),
        "words_of_denies": min(3, length_of(stems & at.expected.denies)),
        "dismissive": min(2, len((stems & DISMISSIVE).difference(stems_of(at.point.text)))),
        "required": bool(stems & REQUIRED),
    }


def _is_negative(at: Looked, words: Sequence[Word]) -> bool:
    """Whether the passage has an odd number of negations around the point's own words."""
    own = [n for n in at.passage.positions if words[n].stem[:ROOT] in at.expected.text]
    if not own:
        return at.expected.is_negative
    near = range(own[0] - AROUND, own[-1] + AROUND + 1)
    inside = [words[n].stem for n in near if n in at.passage.positions]
    return sum(word in NEGATIONS for word in inside) % 2 == 1


def _from_others(at: Looked, others: Sequence[Looked]) -> dict[str, float]:
    """What the answer says about the card's other points."""
    denied = [other.denies.mean for other in others]
    against = at.denies.passage
    focus = [closeness(each.expected, against).focus for each in (at, *others)]
    return {
        "denies_focus_lead": (focus[0] - max(focus[1:])) if at.denies.is_about_it else 0,
        "others_say": sum(other.claimed.is_for for other in others) / len(others),
        "others_deny": sum(other.claimed.is_against for other in others) / len(others),
        "others_nearly_deny": sum(denied) / len(others),
        "nearly_denies_lead": at.denies.mean - max(denied),
    }


def _whole_answer(card: Card, words: Sequence[Word]) -> dict[str, float]:
    """How long it is, and whether it's more like the strong answer or the weak one."""
    strong = rarities(
        [*stems_of(card.strong), *(s for p in card.points for s in stems_of(p.text))]
    )
    weak = rarities(stems_of(card.weak))
    only_weak = {root: rare for root, rare in weak.items() if root not in strong}
    stems = {word.stem for word in words}
    roots, length = roots_of(stems), 1 + length_of(stems)
    return {
        "length": math.log(1 + len(words)),
        "of_strong": shared(strong, roots) / (1 + sum(strong.values())),
        "from_strong": shared(strong, roots) / length,
        "from_weak": shared(only_weak, roots) / length,
    }
