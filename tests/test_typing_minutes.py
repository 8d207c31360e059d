"""The walkthrough prints the minutes that its marked functions really take to type."""

from __future__ import annotations

import difflib
import json
import math
import re
from pathlib import Path

import pytest

from scripts import sync_notebooks as sync

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
SOURCE = "notebooks/src/01_walkthrough.py"
CELLS = ("config", "data", "model", "distributed", "train", "checkpoint", "metrics", "launch")
NUMBERS = re.compile(r"(\d+) min \(([\d,]+) characters\)")


def texts(name: str) -> dict[str, str]:
    """Origin of each cell (without its role) -> text."""
    cells = json.loads((NOTEBOOKS / name).read_text("utf-8"))["cells"]
    return {c["metadata"]["origin"].split(":")[0]: "".join(c["source"]) for c in cells}


def characters_missing_in_the_blank(module: str) -> int:
    full = texts("01_walkthrough.ipynb")
    # The walkthrough has no blank of its own, so this one exists only here.
    cells = sync.compose_one(sync.ROOT, SOURCE, "blank", "blank.ipynb")
    blank = {f"{cell.file}#{cell.index}": cell.text for cell in cells}
    count = 0
    for origin in full:
        if origin.startswith(f"trainer_core/{module}.py#"):
            lines = difflib.ndiff(blank[origin].splitlines(), full[origin].splitlines())
            missing = [line[2:] for line in lines if line.startswith("+ ")]
            # No "#" stands in a string of the eight modules.
            count += sum(len("".join(line.partition("#")[0].split())) for line in missing)
    return count


def printed() -> list[tuple[int, int]]:
    """Minutes and characters of each row of the table."""
    (table,) = [t for t in texts("01_walkthrough.ipynb").values() if "| cell | you type" in t]
    found = [NUMBERS.search(line) for line in table.splitlines() if re.match(r"\| \d ", line)]
    return [(int(m[1]), int(m[2].replace(",", ""))) for m in found if m]


class TestTheTable:
    @pytest.mark.parametrize("module", CELLS)
    def test_a_row_counts_what_is_left_to_type(self, module: str) -> None:
        """A learner plans the evening by it."""
        minutes, characters = printed()[CELLS.index(module)]
        assert characters == characters_missing_in_the_blank(module) > 0
        assert minutes == math.ceil(characters / 120)

    def test_the_total_is_the_sum_of_the_rows(self) -> None:
        """Two totals that disagree are both disbelieved."""
        total = f"up to {sum(minutes for minutes, _ in printed())} minutes"
        assert total in texts("01_walkthrough.ipynb")[f"{SOURCE}#0"]
        start = " ".join(" ".join(texts("00_start_here.ipynb").values()).split())
        assert total in start

    def test_each_section_repeats_its_row(self) -> None:
        """The number next to the cell is the one that somebody types against."""
        sections = [t for t in texts("01_walkthrough.ipynb").values() if "**To type**" in t]
        found = [NUMBERS.search(section) for section in sections]
        numbers = [(int(m[1]), int(m[2].replace(",", ""))) for m in found if m]
        assert numbers == printed()
