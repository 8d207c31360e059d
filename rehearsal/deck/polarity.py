"""Whether a word of an answer is negated: "need not be saved", "skip the scheduler"."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rehearsal.deck.words import Word, stem

REACH = 9  # words that a negation before a word reaches over
LEFT_OUT_REACH = 5  # and a verb such as "skip"
BEHIND = 6  # words after it within which "... is not needed" is looked for


def _stems(text: str) -> frozenset[str]:
    return frozenset(stem(word) for word in text.split())


NEGATIONS = _stems("not no never without nor neither none nobody nothing hardly rarely seldom")
# A negation if somebody does it; two of them, as in "never skip", are none.
LEFT_OUT = _stems("skip forget drop ignore omit avoid refuse")
# "It's a myth that ...", "I doubt that ...", "I don't think that ..." deny the whole sentence.
DENIALS = _stems("doubt disagree myth")
UNTRUE = _stems("false wrong untrue")  # if "that" follows
OPINIONS = _stems("think believe agree buy accept")  # if "not" comes before
BOUNDARIES = _stems(
    ", but because so then otherwise instead since although though while hence therefore thus"
)
NOT_ONLY = _stems("only just merely simply alone necessarily")
# "If you don't save it, ..." and "without it, ..." say that it's needed.
SUPPOSED = _stems("if when where whenever wherever unless whoever otherwise")
ALLOWED = _stems("can could fine ok okay work possible safe able still may fully happily")
DISMISSED = _stems(
    "unnecessary pointless optional useless irrelevant overkill redundant needless moot "
    "superfluous unneeded unimportant"
)
# "People say that X, but ...": then it isn't what the answer says.
OTHERS = _stems("people somebody someone colleague folks many some others they teammate")
SAYING = _stems("say claim argue think believe assume suggest insist")
CONTRAST = _stems("but however yet though although")
# "Why would I save it?" asks nothing.
WHY, ASKED = stem("why"), _stems("would bother")
# "Not saving it is the classic bug": so it has to be saved.
HARM = _stems("mistake bug error wrong dangerous fatal break mean cost cause lead risk")
THIS = _stems("it that this i we")
LEADS_TO = _stems(", and mean then so")
STATED = _stems("is are be was need get has have reason point use")
RELATIVE = _stems("what which who whose that where")
# "... plays no role", "... is something nobody asks for", "... can be deleted".
NO_USE = _stems("need role use point value benefit")
NO_ONE = _stems("nobody none")
ASKS = _stems("ask care need look notice read want miss")
TAKEN_AWAY = LEFT_OUT | _stems("delete discard")
NEEDED = _stems(
    "need necessary require matter worth important have must help work pay useful relevant "
    "interesting"
)


def negations_before(words: Sequence[Word], hit: Sequence[int]) -> set[int]:
    """Where the negations are that may reach the words at these positions."""
    reached = range(max(0, hit[0] - REACH), hit[0])
    sentence = words[hit[0]].sentence
    return {n for n in reached if words[n].stem in NEGATIONS and words[n].sentence == sentence}


def is_negated(words: Sequence[Word], hit: Sequence[int], own: Collection[int]) -> bool:
    """Whether the words at these positions are negated.

    Args:
        hit: where they are.
        own: positions of the claim's own words. A negation among them is part of the claim.
    """
    first, last = hit[0], hit[-1]
    is_turned = _before(words, first, own) ^ _after(words, last, own)
    return is_turned ^ _is_denied(words, first)


def _is_denied(words: Sequence[Word], at: int) -> bool:
    """Whether its sentence begins by denying what it then says."""
    for n in range(at - 1, -1, -1):
        word = words[n]
        if word.sentence != words[at].sentence:
            return False
        if word.stem in DENIALS:
            return True
        if word.stem in UNTRUE and "that" in [each.stem for each in words[n + 1 : n + 4]]:
            return True
        if word.stem in OPINIONS and n and words[n - 1].stem == "not":
            return True
        if (
            word.stem == WHY
            and words[n + 1].stem in ASKED
            and "not" not in _between(words, n, at)
        ):
            return True
        if word.stem in SAYING and _is_anothers(words, n, at):
            return True
    return _is_answered_no(words, at)


def _between(words: Sequence[Word], first: int, last: int) -> list[str]:
    return [word.stem for word in words[first:last]]


def _is_anothers(words: Sequence[Word], at: int, last: int) -> bool:
    """Whether others say so, and the answer goes on with "but"."""
    if OTHERS.isdisjoint(_between(words, max(0, at - 3), at)):
        return False
    if not CONTRAST.isdisjoint(_between(words, at, last)):
        return False  # the contrast has come already
    after = [word for word in words[last:] if word.sentence == words[last].sentence]
    following = words[last + len(after) : last + len(after) + 4]
    stems = {word.stem for word in [*after, *following[:1]]}
    return not CONTRAST.isdisjoint(stems) or _denies(following)


def _denies(opening: Sequence[Word]) -> bool:
    """Whether a sentence begins with "no", "that's wrong", "it isn't"."""
    stems = [word.stem for word in opening]
    if stems[:1] == ["no"] or stems[1:3] == ["is", "not"]:
        return True
    return not UNTRUE.isdisjoint(stems)


def _is_answered_no(words: Sequence[Word], at: int) -> bool:
    """Whether the next sentence is "No": the one before was a question."""
    sentence = words[at].sentence
    opening = [word for word in words[at : at + 40] if word.sentence > sentence][:2]
    if not opening or opening[0].stem not in ("no", "nope"):
        return False
    return (
        len(opening) == 1 or opening[1].stem == "," or opening[1].sentence > opening[0].sentence
    )


def _before(words: Sequence[Word], at: int, own: Collection[int]) -> bool:
    """Whether an odd number of negations reaches it from before."""
    count = 0
    for n in range(at - 1, max(-1, at - 1 - REACH), -1):
        word = words[n]
        if word.sentence != words[at].sentence:
            break
        if _is_replaced(words, n) and n not in own:
            return count % 2 == 0  # "weights instead of", "weights rather than"
        if word.stem in BOUNDARIES and n not in own:
            break
        if n in own:
            if word.stem in NEGATIONS:
                break
            continue
        if word.stem in NEGATIONS:
            is_only = words[n + 1].stem in NOT_ONLY and n + 1 not in own and n + 1 != at
            is_opinion = words[n + 1].stem in OPINIONS  # which denies the whole sentence
            count += not (is_only or is_opinion or _is_supposed(words, n))
        elif word.stem in DISMISSED and words[n + 1].stem == "to":
            count += 1  # "pointless to save it"; "not optional to" is two negations
        elif at - n <= LEFT_OUT_REACH and _is_left_out(word.stem, words[n + 1].stem):
            count += not _is_supposed(words, n)
        if word.stem == "without" and _is_negated_itself(words, n):
            break  # "you can't go out without it": both are counted as none
    return count % 2 == 1


def _is_replaced(words: Sequence[Word], at: int) -> bool:
    following = words[at + 1].stem
    return (words[at].stem, following) in (("instead", "of"), ("rather", "than"))


def _is_left_out(word: str, following: str) -> bool:
    """Whether what follows isn't done. Not so in "drop to 32"; and a failure is no negation."""
    if word == "fail":
        return following == "to"
    return word in LEFT_OUT and not (word == "drop" and following == "to")


def _is_negated_itself(words: Sequence[Word], at: int) -> bool:
    return any(
        word.stem in NEGATIONS and word.sentence == words[at].sentence
        for word in words[max(0, at - REACH) : at]
    )


def _is_supposed(words: Sequence[Word], at: int) -> bool:
    """Whether a negation says what would happen, rather than what to do."""
    before = [
        word.stem
        for word in words[max(0, at - REACH) : at]
        if word.sentence == words[at].sentence
    ]
    if any(word in SUPPOSED for word in before) or before[-2:] == [WHY, "would"]:
        return True
    if words[at].stem == "without":
        return not any(word in ALLOWED for word in before) or _is_negated_itself(words, at)
    opens = not before or before[-1] in BOUNDARIES
    after = [word.stem for word in words[at + 1 :] if word.sentence == words[at].sentence]
    if opens and words[at].stem != "no" and not HARM.isdisjoint(after):
        return "not" not in after
    if words[at].stem == "no" and (not before or before[-1] in BOUNDARIES):
        # "No epoch in the seed, same order every time" but not "No seed is needed".
        after = [
            word.stem
            for word in words[at + 1 : at + 1 + REACH]
            if word.sentence == words[at].sentence
        ]
        leads_to = [n for n, word in enumerate(after) if word in LEADS_TO]
        return bool(leads_to) and not any(word in STATED for word in after[: leads_to[0]])
    return False


def _after(words: Sequence[Word], at: int, own: Collection[int]) -> bool:
    """Whether it's dismissed afterward: "... is not needed", "... is overkill"."""
    if words[at].stem in NEEDED and at + 1 < len(words) and words[at + 1].stem == "not":
        return True
    for n in range(at + 1, min(len(words), at + 1 + BEHIND)):
        word = words[n]
        if word.sentence != words[at].sentence or word.stem in RELATIVE:
            return False
        if word.stem in BOUNDARIES:
            return _is_taken_back(words, n)
        if n in own:
            continue
        if word.stem in DISMISSED:
            return words[n - 1].stem != "not"
        ahead = [later.stem for later in words[n + 1 : n + 4]]
        if word.stem in ALLOWED and ahead[:1] == ["be"] and _leaves_out(ahead[1:]):
            return True
        if word.stem == "not" and any(later in NEEDED for later in ahead):
            return True
        if word.stem == "no" and ahead and ahead[0] in NO_USE:
            return True
        if word.stem in NO_ONE and ahead and ahead[0] in ASKS:
            return True
        if word.stem == "need" and ahead[:1] == ["not"]:
            return True
    return False


def _leaves_out(ahead: Sequence[str]) -> bool:
    return any(word in TAKEN_AWAY for word in ahead) or list(ahead[:2]) == ["left", "out"]


def _is_taken_back(words: Sequence[Word], at: int) -> bool:
    """Whether it goes on with "but that's overkill", "but it isn't worth it"."""
    if words[at].stem == "," and words[at + 1 : at + 2]:
        at += 1
    rest = [word.stem for word in words[at : at + 8] if word.sentence == words[at].sentence]
    if rest[:1] != ["but"] or THIS.isdisjoint(rest[1:2]):
        return False
    for n, word in enumerate(rest):
        if word in DISMISSED:
            return rest[n - 1] != "not"
        if word == "not" and not NEEDED.isdisjoint(rest[n + 1 : n + 4]):
            return True
    return False
