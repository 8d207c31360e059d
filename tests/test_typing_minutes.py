"""The walkthrough prints the minutes that its blank really leaves to type."""

from __future__ import annotations

import difflib
import json
import math
import re
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
CELLS = ("config", "data", "model", "distributed", "train", "checkpoint", "metrics", "launch")
NUMBERS = re.compile(r"(\d+) min \(([\d,]+) characters\)")


def texts(name: str) -> dict[str, str]:
    """Origin of each cell (without its role) -> text."""
    cells = json.loads((NOTEBOOKS / name).read_text("utf-8"))["cells"]
    return {c["metadata"]["origin"].split(":")[0]: "".join(c["source"]) for c in cells}


def characters_missing_in_the_blank(module: str) -> int:
    full, blank = texts("01_walkthrough.ipynb"), texts("01_walkthrough_blank.ipynb")
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
        assert total in texts("01_walkthrough.ipynb")["notebooks/src/01_walkthrough.py#1"]
        start = " ".join(" ".join(texts("00_start_here.ipynb").values()).split())
        assert total in start

    def test_each_section_repeats_its_row(self) -> None:
        """The number next to the cell is the one that somebody types against."""
        sections = [t for t in texts("01_walkthrough.ipynb").values() if "**To type**" in t]
        found = [NUMBERS.search(section) for section in sections]
        numbers = [(int(m[1]), int(m[2].replace(",", ""))) for m in found if m]
        assert numbers == printed()
