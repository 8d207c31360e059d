"""What ``scripts/fit_matcher.py`` gives to the matcher, in ``matcher.toml``.

[rare]            how rare each stem is on the cards, from 0 to 1
[covered]         what each number of evidence.py counts for "covered" ...
[contradicted]    ... and for "contradicted"; "always" counts in any case
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

MATCHER = Path(__file__).with_name("matcher.toml")
ALWAYS = "always"


@cache
def _read() -> Mapping[str, Mapping[str, float]]:
    return tomllib.loads(MATCHER.read_text("utf-8"))


@cache
def typed_right() -> frozenset[str]:
    """Stems that are never taken for a typing error."""
    return frozenset(_read()["rare"])


def rarity(word: str) -> float:
    """How rare a stem is on the cards."""
    return _read()["rare"].get(word, 1.0)


def sums(numbers: Mapping[str, float]) -> tuple[float, float]:
    """What speaks for "covered" and for "contradicted"; "missed" has 0."""

    def total(weights: Mapping[str, float]) -> float:
        return weights[ALWAYS] + sum(weights[name] * at for name, at in numbers.items())

    return total(_read()["covered"]), total(_read()["contradicted"])
