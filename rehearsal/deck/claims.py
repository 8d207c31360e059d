"""How a claim is written in a deck file: groups of phrases, and names for the usual ones."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SYNONYMS = Path(__file__).with_name("synonyms.toml")
EITHER_WAY = "any:"  # before a group that may be negated
NAME = re.compile(r"@(\w+)")
WORD = re.compile(r"[\w%$/]")


@cache
def synonyms() -> dict[str, str]:
    """Phrases for one concept, separated by bars, by the concept's name."""
    return tomllib.loads(SYNONYMS.read_text("utf-8"))


def phrases_of(group: str) -> Iterator[str]:
    """The phrases of a group, each name replaced by every phrase that it stands for.

    Raises:
        ValueError: if a name is unknown, or a phrase has no word.
    """
    for one in group.split("|"):
        yield from _spelled_out(one)


def _spelled_out(one: str) -> Iterator[str]:
    if (named := NAME.search(one)) is None:
        parts = one.split("..")
        if not all(WORD.search(part) for part in parts):
            raise ValueError(
                f"the phrase {one.strip()!r} has no word, or begins or ends with two dots, so "
                "nothing could match it. Rewrite or delete it"
            )
        yield one
        return
    if named[1] not in synonyms():
        near = difflib.get_close_matches(named[1], synonyms(), n=1, cutoff=0.75)
        instead = f"Use @{near[0]}, or write" if near else "Write"
        raise ValueError(
            f"@{named[1]} is not in {SYNONYMS.name}. {instead} the phrases out, with | between"
        )
    for meant in synonyms()[named[1]].split("|"):
        yield from _spelled_out(f"{one[: named.start()]} {meant} {one[named.end() :]}")
