"""Whether a word of an answer is negated: "need not be saved", "skip the scheduler"."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rehearsal.deck.words import Word, stem

REACH = 7  # words that a negation before a word reaches over
BEHIND = 6  # words after it within which "... is not needed" is looked for


def _stems(text: str) -> frozenset[str]:
    return frozenset(stem(word) for word in text.split())


NEGATIONS = _stems("not no never without nor neither none nobody nothing hardly")
# A negation if somebody does it; two of them, as in "never skip", are none.
LEFT_OUT = _stems("skip forget drop ignore omit avoid")
BOUNDARIES = _stems(", but because so then otherwise instead since although though while")
NOT_ONLY = _stems("only just merely simply alone necessarily")
# "If you don't save it, ..." and "without it, ..." say that it's needed.
SUPPOSED = _stems("if when unless whoever otherwise")
ALLOWED = _stems("can could fine ok okay work possible safe able still may fully happily")
DISMISSED = _stems(
    "unnecessary pointless optional useless irrelevant overkill redundant needless moot"
)
NO_USE = _stems("need reason point use")  # no need to, there's no point in
NEEDED = _stems("need needed necessary required require matter worth important have must")


def is_negated(words: Sequence[Word], hit: Sequence[int], own: Collection[int]) -> bool:
    """Whether the words at these positions are negated.

    Args:
        hit: where they are.
        own: positions of the claim's own words. A negation among them is part of the claim.
    """
    first, last = hit[0], hit[-1]
    return _before(words, first, own) ^ _after(words, last, own)


def _before(words: Sequence[Word], at: int, own: Collection[int]) -> bool:
    """Whether an odd number of negations reaches it from before."""
    count = 0
    for n in range(at - 1, max(-1, at - 1 - REACH), -1):
        word = words[n]
        if word.sentence != words[at].sentence or (word.stem in BOUNDARIES and n not in own):
            break
        if n in own:
            if word.stem in NEGATIONS:
                break
            continue
        if word.stem in NEGATIONS:
            if words[n + 1].stem in NOT_ONLY or _is_supposed(words, n):
                continue
            count += 1
        elif word.stem in LEFT_OUT and not _is_supposed(words, n):
            count += 1
    return count % 2 == 1


def _is_supposed(words: Sequence[Word], at: int) -> bool:
    """Whether a negation says what would happen, rather than what to do."""
    before = [
        word.stem
        for word in words[max(0, at - REACH) : at]
        if word.sentence == words[at].sentence
    ]
    if any(word in SUPPOSED for word in before):
        return True
    if at + 1 < len(words) and words[at + 1].stem in NO_USE:
        return False
    if words[at].stem in _stems("without no"):
        return (
            not before
            or before[-1] in BOUNDARIES
            or (words[at].stem == "without" and not any(word in ALLOWED for word in before))
        )
    return False


def _after(words: Sequence[Word], at: int, own: Collection[int]) -> bool:
    """Whether it's dismissed afterward: "... is not needed", "... is overkill"."""
    if words[at].stem in NEEDED and at + 1 < len(words) and words[at + 1].stem == "not":
        return True
    for n in range(at + 1, min(len(words), at + 1 + BEHIND)):
        word = words[n]
        if word.sentence != words[at].sentence or word.stem in BOUNDARIES:
            return False
        if n in own:
            continue
        if word.stem in DISMISSED:
            return words[n - 1].stem != "not"
        if word.stem in ("not", "no") and any(
            later.stem in NEEDED for later in words[n + 1 : n + 4]
        ):
            return True
        if word.stem == "need" and n + 1 < len(words) and words[n + 1].stem == "not":
            return True
    return False
