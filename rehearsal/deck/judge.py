"""What a typed answer says: which points of a card it covers, misses or contradicts.

A point lists the claims that cover it and those that contradict it. A claim is a list of
groups, and a group a list of phrases for one concept:

    says = [["optimizer | adam | moments", "@save | @restore"]]
    denies = [["weights", "enough | suffice | all you need"]]

An answer makes a claim if it has a phrase of each group near one another, and none of them is
negated. A negated one contradicts the point: "the optimizer need not be saved". ``@save``
stands for the phrases of that name in ``synonyms.toml``, and ``a .. b`` for up to four words
between. A group that begins with ``any:`` may be negated: "no sample twice" and "each sample
once" say the same.

Sentence embeddings were tried instead. They measure the topic and not the claim: a claim and
its negation are 0.99 similar. So this is rules, which also say which words decided. The learner
has the last word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import product
from typing import NamedTuple

from rehearsal.deck.cards import CARDS, Card, Claim, card_named, read_deck
from rehearsal.deck.claims import EITHER_WAY, phrases_of
from rehearsal.deck.polarity import NEGATIONS, is_negated, negations_before
from rehearsal.deck.words import Word, phrase, stem, words_of
from rehearsal.session.history import Found

MAX_GAP = 4  # words that .. stands for
# A claim can be spread over this many words: two sentences, or an answer in keywords.
NEAR, SHORT_ANSWER = 40, 30
QUOTED = 160  # characters of an answer that are shown as what decided
TRIED = 3  # of each group, the hits nearest to the first group's
AROUND = 3  # words on both sides of what decided


class Coverage(NamedTuple):
    """What an answer says about each point of a card, by point id."""

    covered: tuple[str, ...]
    missed: tuple[str, ...]
    contradicted: tuple[str, ...]
    because: dict[str, str]  # the words that decided it, as they were typed


class Hit(NamedTuple):
    """A phrase in an answer: the positions of its words."""

    words: tuple[int, ...]


Group = Sequence[Sequence[str]]  # each phrase is stems


@cache
def _group(text: str) -> Group:
    return [phrase(one) for one in phrases_of(text.removeprefix(EITHER_WAY))]


@cache
def _stems_of(card: Card) -> frozenset[str]:
    """What a typing error in an answer to this card can be meant as."""
    claims = [claim for point in card.points for claim in [*point.says, *point.denies]]
    groups = [_group(text) for claim in claims for text in claim]
    return frozenset(word for group in groups for one in group for word in one)


@cache
def _spelled_right(card: Card) -> frozenset[str]:
    """Words that are never treated as typos: those of the card, and of all that are shipped."""
    return _shipped_words() | _words_in([card])


@cache
def _shipped_words() -> frozenset[str]:
    return _words_in(read_deck([CARDS]))


def _words_in(cards: Sequence[Card]) -> frozenset[str]:
    texts = (
        text
        for card in cards
        for text in [card.question, card.strong, card.weak, card.why_weak, card.follow_up]
    )
    return frozenset(word for text in texts for word in re.findall(r"[a-z]+", text.lower()))


def judge(card: Card, text: str) -> Coverage:
    """Judge a typed answer; the same answer always gets the same result."""
    words = words_of(text, _stems_of(card), _spelled_right(card))
    found: dict[str, Found] = {}
    because = {}
    for point in card.points:
        found[point.id], hits = _judge_point(point.says, point.denies, words)
        if hits:
            because[point.id] = _quoted(text, words, hits)

    def those(wanted: Found) -> tuple[str, ...]:
        return tuple(name for name, what in found.items() if what == wanted)

    return Coverage(those("covered"), those("missed"), those("contradicted"), because)


def judge_answer(card_id: str, text: str) -> Coverage:
    """What a typed answer to this card covers, misses and contradicts.

    Raises:
        UnknownCard: if there is no such card, naming the nearest.
    """
    return judge(card_named(card_id), text)


def claimed_in(text: str, claims: Sequence[Sequence[str]]) -> str:
    """The words with which a text makes one of the claims; empty if it makes none of them."""
    words = words_of(text, frozenset(), _shipped_words())
    for claim in claims:
        hits, negated = _claimed(tuple(claim), words)
        if hits and not negated:
            return _quoted(text, words, hits)
    return ""


def _judge_point(
    says: Sequence[Claim], denies: Sequence[Claim], words: Sequence[Word]
) -> tuple[Found, Sequence[Hit]]:
    for claim in denies:
        hits, negated = _claimed(claim, words, sentences=1)
        if hits and not negated:
            return "contradicted", hits
    denied: Sequence[Hit] = []
    for claim in says:
        hits, negated = _claimed(claim, words)
        if hits and not negated:
            return "covered", hits
        denied = denied or hits
    return ("contradicted", denied) if denied else ("missed", [])


def _claimed(
    claim: Claim, words: Sequence[Word], sentences: int = 2
) -> tuple[Sequence[Hit], bool]:
    """Where the answer makes a claim, and whether it negates it; no hits if it doesn't.

    Args:
        sentences: that it may be spread over.
    """
    groups = [list(_hits(_group(text), words)) for text in claim]
    guarded = [not text.startswith(EITHER_WAY) for text in claim]
    negated: Sequence[Hit] = []
    for hits in _near_one_another(groups, words, sentences):
        own = {position for hit in hits for position in hit.words}
        counted = []
        for hit, is_guarded in zip(hits, guarded, strict=True):
            if is_guarded:
                counted.append(hit)
            else:  # its negation is part of the claim: "no sample is trained twice"
                own |= negations_before(words, hit.words)
        if not any(is_negated(words, hit.words, own) for hit in counted):
            return hits, False
        negated = negated or hits
    return negated, True


def _hits(group: Group, words: Sequence[Word]) -> Iterator[Hit]:
    """Where the phrases of a group are."""
    singles, pairs = _places(tuple(words))
    for one in group:
        for joined in _joined(tuple(one)):  # "all reduce" is also "allreduce"
            yield from (Hit((at,)) for at in singles.get(joined, []))
        if len(one) == 1:
            yield from (Hit((at, at + 1)) for at in pairs.get(one[0], []))
        else:
            found = (_hit(one, words, at) for at in singles.get(one[0], []))
            yield from (hit for hit in found if hit is not None)


@lru_cache(maxsize=1)
def _places(words: tuple[Word, ...]) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Where each word is, and where each two that follow each other are, written as one."""
    singles, pairs = dict[str, list[int]](), dict[str, list[int]]()
    for at, word in enumerate(words):
        singles.setdefault(word.stem, []).append(at)
        for joined in _joined(tuple(each.stem for each in words[at : at + 2])):
            pairs.setdefault(joined, []).append(at)
    return singles, {joined: at for joined, at in pairs.items() if joined not in singles}


def _hit(one: Sequence[str], words: Sequence[Word], at: int) -> Hit | None:
    """The phrase, if it begins at this word."""
    positions, here, gap = list[int](), at, 0
    for word in one:
        if word == "..":
            gap = MAX_GAP
            continue
        next_at = _next(word, words, here, gap)
        if next_at is None or words[next_at].sentence != words[at].sentence:
            return None
        positions.append(next_at)
        here, gap = next_at + 1, 0
    return Hit(tuple(positions))


@cache
def _joined(stems: tuple[str, ...]) -> frozenset[str]:
    """Several words written as one, and the stem of that."""
    return frozenset({"".join(stems), stem("".join(stems))})


def _next(word: str, words: Sequence[Word], here: int, gap: int) -> int | None:
    """Where the word comes next, after at most ``gap`` others; no negation is passed over."""
    for n in range(here, min(here + gap + 1, len(words))):
        if words[n].stem == word:
            return n
        if words[n].stem in NEGATIONS:
            return None
    return None


def _near_one_another(
    groups: Sequence[Sequence[Hit]], words: Sequence[Word], sentences: int
) -> Iterator[Sequence[Hit]]:
    """One hit of each group, in that many sentences that follow each other.

    The nearest ones first. An answer of a few words is one sentence, whatever its dots.
    """
    is_short = len(words) <= SHORT_ANSWER

    def is_near(first: Hit, hit: Hit) -> bool:
        here, there = first.words[0], hit.words[0]
        apart = abs(words[here].sentence - words[there].sentence)
        return abs(here - there) <= NEAR and (is_short or apart < sentences)

    for first in groups[0]:
        around = [
            sorted(
                (hit for hit in group if is_near(first, hit)),
                key=lambda hit: abs(hit.words[0] - first.words[0]),
            )
            for group in groups[1:]
        ]
        for others in product(*(hits[:TRIED] for hits in around)):
            yield [first, *others]


def _quoted(text: str, words: Sequence[Word], hits: Sequence[Hit]) -> str:
    """The passage of the answer with these words, in one line.

    With a few words around it in their sentence: a negation is one of them.
    """
    positions = sorted(position for hit in hits for position in hit.words)
    first, last = positions[0], positions[-1]
    while first and positions[0] - first < AROUND:
        if words[first - 1].sentence != words[first].sentence:
            break
        first -= 1
    while last + 1 < len(words) and last - positions[-1] < AROUND:
        if words[last + 1].sentence != words[last].sentence:
            break
        last += 1
    line = " ".join(text[words[first].start : words[last].end].split())
    if len(line) <= QUOTED:
        return line
    return " ... ".join(text[words[at].start : words[at].end] for at in positions)
