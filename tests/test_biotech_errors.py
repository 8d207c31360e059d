"""Each claim that sounds right and isn't names where you meet it, and that place exists.

UPDATE_BIOTECH=1 writes the table of claims into docs/biotech.md instead.
"""

from __future__ import annotations

import os
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rehearsal.grading.drill import load

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs/biotech.md"
ERRORS: list[dict[str, Any]] = tomllib.loads(
    (ROOT / "docs/biotech_errors.toml").read_text("utf-8")
)["error"]
START = "<!-- claims: written by tests/test_biotech_errors.py -->\n"
END = "<!-- end of claims -->"


@cache
def near_misses(drill: str) -> dict[str, str]:
    """A drill's near misses, by name, with their codes."""
    return {miss.name: miss.code for miss in load(drill).near_misses()}


@cache
def cards() -> set[str]:
    """Every card's id."""
    files = sorted((ROOT / "rehearsal/cards").glob("*.toml"))
    decks = [tomllib.loads(file.read_text("utf-8")) for file in files]
    return {card["id"] for deck in decks for card in deck["card"]}


def table() -> str:
    """The claims, as docs/biotech.md shows them."""
    rows = ["| It sounds right | What is true | Drills |", "|---|---|---|"]
    for error in ERRORS:
        names = [place.removeprefix("drill/").partition("#")[0] for place in error["places"]]
        drills = [name for name in dict.fromkeys(names) if not name.startswith("card/")]
        links = ", ".join(f"[{name}](drills.md#{name})" for name in drills)
        rows.append(f"| {error['claim']} | {error['fact']} | {links} |")
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error["claim"][:40])
class TestClaims:
    def test_its_places_exist(self, error: dict[str, Any]) -> None:
        """A renamed near miss leaves the claim without a drill, and nobody sees it."""
        for place in error["places"]:
            kind, _, rest = place.partition("/")
            if kind == "card":
                assert rest in cards(), place
            else:
                assert kind == "drill", place
                name, _, miss = rest.partition("#")
                assert miss in near_misses(name), place

    def test_a_drill_refuses_it(self, error: dict[str, Any]) -> None:
        """A claim that is only read is one that a learner still believes under a clock."""
        assert any(place.startswith("drill/") for place in error["places"])


def test_no_claim_is_listed_twice() -> None:
    """Two rows with one claim have two versions of the fact."""
    claims = [error["claim"] for error in ERRORS]
    assert len(set(claims)) == len(claims)


def test_the_document_shows_the_table() -> None:
    """A reader of the track looks for it there, and not in a TOML file."""
    before, start, rest = DOCUMENT.read_text("utf-8").partition(START)
    shown, end, after = rest.partition(END)
    assert start
    assert end
    if os.environ.get("UPDATE_BIOTECH") == "1":
        DOCUMENT.write_text(f"{before}{start}{table()}{end}{after}", "utf-8")
        return
    assert shown == table(), "run with UPDATE_BIOTECH=1"
