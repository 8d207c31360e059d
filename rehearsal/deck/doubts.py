"""How the clause that's closest to a point speaks against it, without any claim: in numbers.

negated    the point has no "not" and the clause has one, or the other way around
dismissed  "it's fine", "overkill", "torch does it automatically"
"""

from __future__ import annotations

from collections.abc import Sequence

from rehearsal.deck.cards import Point
from rehearsal.deck.passages import Expected, roots_of, shared, stems_of
from rehearsal.deck.polarity import NEGATIONS
from rehearsal.deck.words import Word, stem

MOST = 3  # doubts of a kind that count
DISMISSIVE = frozenset(
    stem(word)
    for word in """
    fine ok okay harmless enough suffice automatic automatically overkill unnecessary useless
    irrelevant pointless optional redundant matter care bother skip ignore anyway free safe
    negligible sufficient plenty luxury paranoid paranoia waste problem itself superfluous
    academic bureaucracy leftover wasteful rarely hardly seldom instead whatever regardless
    whenever myth nobody normal simply just worth""".split()
)


def doubts(
    point: Point, expected: Expected, clauses: Sequence[range], words: Sequence[Word]
) -> dict[str, float]:
    """How the clause that's closest to the point speaks against it."""

    def share(clause: range) -> float:
        return (
            shared(expected.text, roots_of(words[at].stem for at in clause)) - len(clause) / 250
        )

    clause = max(clauses, key=share)
    stems = [words[at].stem for at in clause]
    close = max(0.0, shared(expected.text, roots_of(stems))) / (
        sum(expected.text.values()) + 0.3
    )
    is_turned = (sum(word in NEGATIONS for word in stems) % 2 == 1) != expected.is_negative
    dismissed = len(({*stems} & DISMISSIVE).difference(stems_of(point.text)))
    return {
        "clause": close,
        "clause_turned": close if is_turned else 0,
        "clause_dismissed": close * min(MOST, dismissed),
    }
