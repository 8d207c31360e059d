"""What was said: questions about the situation, assumptions, check-ins, causes of an incident.

All of it is claims, as in the deck: groups of phrases near one another, none of them negated.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rehearsal.deck.judge import claimed_in

FOLDER = Path(__file__).parent
# How a question begins, for somebody who doesn't type its mark.
STARTS = re.compile(
    r"(?i)\W*(how|what|which|where|when|who|do|does|is|are|can|could|will|should|may|tell me|"
    r"i'd like to know|i need to know|i want to know|i'd ask|let me ask)\b"
)
Claims = Sequence[Sequence[str]]


class Heard(NamedTuple):
    """One thing that a text says, and the words that say it."""

    what: str
    words: str


@cache
def prompts() -> Mapping[str, Any]:
    """prompts.toml: what an interview begins with, and how questions about it sound."""
    return tomllib.loads((FOLDER / "prompts.toml").read_text("utf-8"))


@cache
def _incident_claims() -> Mapping[str, Mapping[str, Claims]]:
    return tomllib.loads((FOLDER / "incidents.toml").read_text("utf-8"))


@cache  # the state of an interview is worked out anew at each event
def questions_in(text: str) -> list[Heard]:
    """The facts of the situation that somebody asks about, in sentences with a question."""
    asked = [one for one in re.split(r"(?<=[?.!])\s+", text) if _asks(one)]
    return _heard(prompts()["asks"], " ".join(asked)) if asked else []


@cache
def says_in(text: str) -> list[Heard]:
    """Assumptions, check-ins, a restated goal, and what the talk is about."""
    return _heard(prompts()["says"], text)


def sources_in(text: str) -> list[str]:
    """The sources of an incident that somebody wants to see or has named."""
    return [heard.what for heard in _heard(_incident_claims()["sources"], text)]


def cause_in(text: str, allowed: Sequence[str]) -> str | None:
    """The cause that somebody names, by its id or in words; None if there is none.

    Several may fit. The one whose words are nearest to each other is what was meant.
    """
    lowered = text.lower()
    for name in allowed:
        if name in lowered or name.replace("_", " ") in lowered:
            return name
    causes = _incident_claims()["causes"]
    heard = _heard({name: causes[name] for name in allowed if name in causes}, text)
    return min(heard, key=lambda one: len(one.words)).what if heard else None


def _heard(named: Mapping[str, Claims], text: str) -> list[Heard]:
    found = [(what, claimed_in(text, claims)) for what, claims in named.items()]
    return [Heard(what, words) for what, words in found if words]


def _asks(sentence: str) -> bool:
    return sentence.rstrip().endswith("?") or STARTS.match(sentence) is not None
