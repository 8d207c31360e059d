"""Each item of the handbook names where it lives, and that place exists."""

from __future__ import annotations

import json
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from rehearsal.handbook.diagrams import diagram_names

ROOT = Path(__file__).resolve().parents[1]
COVERAGE = tomllib.loads((ROOT / "docs/handbook_coverage.toml").read_text("utf-8"))
HANDBOOKS_DIAGRAMS = (
    "notebook_architecture stretch_path system_model process_topology correctness_failures "
    "step_phases telemetry lift_to_ddp production_lift six_concerns in_the_notebook story_arc"
).split()
ITEMS = {
    (document["name"], item): places
    for document in COVERAGE["document"]
    for item, places in document["items"].items()
}


@cache
def headings(notebook: str) -> set[str]:
    cells = json.loads((ROOT / notebook).read_text("utf-8"))["cells"]
    text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return set(re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE))


@pytest.mark.parametrize(("document", "item"), ITEMS, ids=" / ".join)
def test_an_item_of_the_handbook_lives_where_it_says(document: str, item: str) -> None:
    """Somebody prepares with the handbook's list and looks for each line of it here."""
    places = ITEMS[document, item]
    assert places
    for place in places:
        file, mark, heading = place.partition("#")
        if file.endswith(".dot"):
            assert file.removesuffix(".dot") in diagram_names(), place
        else:
            assert (ROOT / file).exists(), place
        if mark:
            assert heading in headings(file), place


def test_all_57_items_are_listed() -> None:
    """An item that nobody lists is an item that nobody misses."""
    missing = COVERAGE["missing"]["items"]
    assert len(ITEMS) - 1 + len(missing) == 57  # drill 2 and its diagram are one item


def test_all_twelve_diagrams_are_drawn() -> None:
    """The handbook draws twelve; a reader who remembers one wants to find it."""
    places = {place for places in ITEMS.values() for place in places}
    assert {f"{name}.dot" for name in HANDBOOKS_DIAGRAMS} <= places
    assert len(HANDBOOKS_DIAGRAMS) == 12
