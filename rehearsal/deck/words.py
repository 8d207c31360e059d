"""An answer as words: what was meant, whatever form, abbreviation or typing error it has.

    words_of("can't skip Adam's momnets.")

gives the words can, not, skip, adam, moment: lower case, contractions and abbreviations spelled
out, stems as Snowball cuts them, typing errors corrected to a word that the deck knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import snowballstemmer
from rapidfuzz.distance import OSA

CURLY = "\u2019"  # the apostrophe of a phone
# What people type under a clock.
SHORT = {
    "ckpt": "checkpoint",
    "ckpts": "checkpoint",
    "chkpt": "checkpoint",
    "opt": "optimizer",
    "optim": "optimizer",
    "sched": "scheduler",
    "lr": "learning rate",
    "ws": "world size",
    "dl": "loader",
    "ds": "dataset",
    "grad": "gradient",
    "grads": "gradient",
    "param": "parameter",
    "params": "parameter",
    "perf": "performance",
    "comm": "communication",
    "comms": "communication",
    "mem": "memory",
    "util": "utilization",
    "config": "configuration",
    "configs": "configuration",
    "cfg": "configuration",
    "env": "environment",
    "prod": "production",
    "repro": "reproduce",
    "sync": "synchronize",
    "syncs": "synchronize",
    "synced": "synchronize",
    "syncing": "synchronize",
    "async": "asynchronous",
    "eval": "evaluation",
    "evals": "evaluation",
    "val": "validation",
    "acc": "accuracy",
    "num": "number",
    "nums": "number",
    "bw": "bandwidth",
    "btw": "between",
    "wo": "without",
    "bc": "because",
    "cuz": "because",
    "cos": "because",
    "u": "you",
    "dont": "do not",
    "doesnt": "does not",
    "didnt": "did not",
    "isnt": "is not",
    "arent": "are not",
    "wasnt": "was not",
    "wont": "will not",
    "cant": "can not",
    "cannot": "can not",
    "couldnt": "could not",
    "shouldnt": "should not",
    "wouldnt": "would not",
    "neednt": "need not",
    "hasnt": "has not",
    "havent": "have not",
    "aint": "is not",
    "gonna": "going to",
    "ids": "id",
    "gpus": "gpu",
    "cpus": "cpu",
    "nans": "nan",
}
CONTRACTED = [
    (re.compile(r"\bwon't\b"), "will not"),
    (re.compile(r"\bcan't\b"), "can not"),
    (re.compile(r"n't\b"), " not"),
    (re.compile(r"'(?:s|re|ve|ll|d|m)\b"), ""),
    (re.compile(r"\bw/o\b"), "without"),
    (re.compile(r"\bw/"), "with "),
    (re.compile(r"\bb/c\b"), "because"),
    (re.compile(r"(?<=\d),(?=\d{3}\b)"), ""),
]
# The end of a sentence. A dot inside a number or a name isn't one, and a line's end is one only
# before an empty line or the next entry of a list: people's lines wrap anywhere.
END = re.compile(
    r"[!?;]+|\.(?=\s|$)|:(?=\s)|\s[-\u2013\u2014]+\s|[-=]+>|\u2192"
    r"|\n(?=\s*\n|\s*(?:[-*\u2022]|\d+[.)])\s)"
)
TOKEN = re.compile(
    r"\bw/o\b|\bw/|\bb/c\b|\d+(?:,\d{3})*(?:\.\d+)?|[^\W\d_]+(?:'[^\W\d_]+)?|[^\w\s]"
)
WORD = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+|,|[%$/]")
# British spellings; but "noise" and "bitwise" stay.
BRITISH = [
    (re.compile(r"(?<=[a-z]{4})(?<![aeouw])is(?=(?:e|es|ed|er|ers|ing|ation|ations)$)"), "iz"),
    (re.compile(r"(?<=anal|aral)ys(?=(?:e|es|ed|er|ers|ing)$)"), "yz"),
    (re.compile(r"(behavi|neighb|fav|col|hon|lab)our"), r"\1or"),
    (re.compile(r"(label|model|cancel|travel|signal)l(?=ed|er|ing)"), r"\1"),
    (re.compile(r"(cent|fib)re(?=s?$)"), r"\1er"),
]
# Snowball cuts a collective down to collect, and a positive to posit, as it does a position.
KEPT = {
    form: word
    for word in "collective positive important contention objective experience".split()
    for form in (word, f"{word}s")
} | {"importance": "important", "experienced": "experience"}
_stemmer = snowballstemmer.stemmer("english")


class Word(NamedTuple):
    """One word of a text."""

    stem: str
    sentence: int  # counted from 0
    start: int  # where it is in the text
    end: int


@cache
def stem(word: str) -> str:
    """The part of a word that its forms share."""
    return KEPT.get(word) or str(_stemmer.stemWord(word))


def _spelled_out(text: str) -> Iterator[tuple[str, int, int]]:
    """The plain words of a text, each with the place in the text that it stands for."""
    for found in TOKEN.finditer(text.lower().replace(CURLY, "'")):
        plain = found[0]
        for pattern, long in CONTRACTED:
            plain = pattern.sub(long, plain)
        for part in WORD.findall(plain):
            for word in SHORT.get(part, part).split():
                yield _american(word), found.start(), found.end()


@cache
def _american(word: str) -> str:
    for pattern, short in BRITISH:
        word = pattern.sub(short, word)
    return word


def words_of(
    text: str, meant: frozenset[str] = frozenset(), spelled_right: frozenset[str] = frozenset()
) -> list[Word]:
    """The words of a text.

    Args:
        meant: the stems that a typing error is corrected to.
        spelled_right: stems that are none.
    """
    ends = [found.start() for found in END.finditer(text)]
    words, sentence = list[Word](), 0
    for plain, start, end in _spelled_out(text):
        while sentence < len(ends) and ends[sentence] < start:
            sentence += 1
        cut = stem(plain)
        if cut not in spelled_right:
            cut = _corrected(cut, meant)
        words.append(Word(cut, sentence, start, end))
    return words


@cache
def _corrected(word: str, meant: frozenset[str]) -> str:
    """The word, or the only one in ``meant`` that it is a typing error of."""
    if word in meant or len(word) < 6 or not word.isalpha():
        return word
    most = 1 if len(word) < 9 else 2
    near = [
        other
        for other in meant
        if len(other) >= 5
        and other[0] == word[0]
        and OSA.distance(word, other, score_cutoff=most) <= most
    ]
    return near[0] if len(near) == 1 else word


@cache  # the same few hundred ways to wave something off are in many claims
def phrase(text: str) -> Sequence[str]:
    """The stems of a phrase; ``..`` stands for up to four words in between."""
    parts = text.split("..")
    stems = [[stem(word) for word, _, _ in _spelled_out(part)] for part in parts]
    return [word for part in stems for word in ["..", *part]][1:]
