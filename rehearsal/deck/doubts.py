"""How the clause that's closest to a point speaks against it, without any claim: in numbers.

negated    the point has no "not" and the clause has one, or the other way around
dismissed  "it's fine", "overkill", "torch does it automatically"
opposed    "after" where the point says "before", "separately" where it says "together"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

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
# Each side says the opposite of the other.
OPPOSITES = """
before earlier first prior begin | after afterwards later last end
same equal identical alike share common | different differ other own vary separate
all every each everyone both everybody | one only single alone some
always | never rarely sometimes
more larger bigger increase grow higher raise rise longer | less fewer smaller decrease shrink lower
fast faster quick | slow slower
together jointly | separate separately apart independently
rare rarely seldom | often frequent frequently every constantly
inside within | outside
once exactly | twice again repeat
cheap free nothing | expensive cost price
local | shared global remote external
fresh current new newest | stale old older
wait block | immediately continue
automatic automatically | manual hand person
exact bitwise identical | approximate statistical
most nearly mostly | minor few tenth rarely
stop restart | continue carry
independent | correlated depend
must need require | may can optional
row | column
smaller small | larger large
sum | mean average
fail crash raise error | silently quiet silent
fix fixed constant | change vary
""".strip().splitlines()


@cache
def _opposites() -> Mapping[str, frozenset[str]]:
    """What each stem is the opposite of."""
    found = dict[str, frozenset[str]]()
    for line in OPPOSITES:
        sides = [frozenset(map(stem, side.split())) for side in line.split("|")]
        for side, other in (sides, sides[::-1]):
            for word in side:
                found[word] = found.get(word, frozenset()) | other
    return found


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
    own = frozenset(stems_of(point.text))
    opposed = {word for word in {*stems} - own if own & _opposites().get(word, frozenset())}
    is_turned = (sum(word in NEGATIONS for word in stems) % 2 == 1) != expected.is_negative
    dismissed = len(({*stems} & DISMISSIVE) - own)
    return {
        "clause": close,
        "clause_turned": close if is_turned else 0,
        "clause_dismissed": close * min(MOST, dismissed),
        "clause_opposed": close * min(MOST, len(opposed)),
        "opposed": min(MOST, len(opposed)),
    }
