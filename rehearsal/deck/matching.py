"""Where an answer makes a claim: a phrase of each of its groups, near one another.

    says = [["optimizer | adam | moments", "@save | @restore"]]
    denies = [["weights", "enough | suffice | all you need"]]

``@save`` stands for the phrases of that name in ``synonyms.toml``, and ``a .. b`` for up to
four words between. A group that begins with ``any:`` may be negated: "no sample twice" and
"each sample once" say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import product

from rehearsal.deck.cards import Claim
from rehearsal.deck.claims import EITHER_WAY, phrases_of
from rehearsal.deck.polarity import NEGATIONS, is_negated, negations_before
from rehearsal.deck.words import Word, phrase, stem

GAP = ".."
MAX_GAP = 4  # words that .. stands for
# A claim can be spread over this many words: two sentences, or an answer in keywords.
NEAR, SHORT_ANSWER = 40, 30
TRIED = 3  # of each group, the hits nearest to the first group's

Hit = tuple[int, ...]  # a phrase in an answer: the positions of its words
Group = Sequence[Sequence[str]]  # each phrase is stems


@cache
def group_of(text: str) -> Group:
    """The phrases of a group, as stems."""
    return [phrase(one) for one in phrases_of(text.removeprefix(EITHER_WAY))]


def claimed(
    claim: Claim, words: Sequence[Word], sentences: int = 2
) -> tuple[Sequence[Hit], bool]:
    """Where the answer makes a claim, and whether it negates it; no hits if it doesn't.

    Args:
        sentences: that it may be spread over.
    """
    groups = [list(_hits(group_of(text), words)) for text in claim]
    guarded = [not text.startswith(EITHER_WAY) for text in claim]
    negated: Sequence[Hit] = []
    for hits in _near_one_another(groups, words, sentences):
        own = {position for hit in hits for position in hit}
        counted = []
        for hit, is_guarded in zip(hits, guarded, strict=True):
            if is_guarded:
                counted.append(hit)
            else:  # its negation is part of the claim: "no sample is trained twice"
                own |= negations_before(words, hit)
        if not any(is_negated(words, hit, own) for hit in counted):
            return hits, False
        negated = negated or hits
    return negated, True


def _hits(group: Group, words: Sequence[Word]) -> Iterator[Hit]:
    """Where the phrases of a group are."""
    singles, pairs = _places(tuple(words))
    for one in group:
        for joined in _joined(tuple(one)):  # "all reduce" is also "allreduce"
            yield from ((at,) for at in singles.get(joined, []))
        if len(one) == 1:
            yield from ((at, at + 1) for at in pairs.get(one[0], []))
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
        if word == GAP:
            gap = MAX_GAP
            continue
        next_at = _next(word, words, here, gap)
        if next_at is None or words[next_at].sentence != words[at].sentence:
            return None
        positions.append(next_at)
        here, gap = next_at + 1, 0
    return tuple(positions)


@cache
def _joined(stems: tuple[str, ...]) -> frozenset[str]:
    """Several words written as one, and the stem of that.

    The stem must reach into the last word: "loss is" isn't "lossy", nor "no need" "none".
    """
    whole, last = "".join(stems), stems[-1] if stems else ""
    if len(stems) > 1 and (last == "it" or any(word.isdigit() for word in stems)):
        return frozenset()  # "log it" isn't a logit
    cut = stem(whole)
    reaches = len(cut) - (len(whole) - len(last)) >= min(3, len(last))
    return frozenset({whole, cut} if reaches else {whole})


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
    is_short = sentences > 1 and len(words) <= SHORT_ANSWER

    def is_near(first: Hit, hit: Hit) -> bool:
        here, there = first[0], hit[0]
        apart = abs(words[here].sentence - words[there].sentence)
        return abs(here - there) <= NEAR and (is_short or apart < sentences)

    for first in groups[0]:
        around = [
            sorted(
                (hit for hit in group if is_near(first, hit)),
                key=lambda hit: abs(hit[0] - first[0]),
            )
            for group in groups[1:]
        ]
        for others in product(*(hits[:TRIED] for hits in around)):
            yield [first, *others]
