"""Minutes come from what there is to type, by one rule."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from rehearsal import drills
from rehearsal.grading.drill import Drill, load
from rehearsal.grading.minutes import TYPING_SPEED, typed_characters, typed_text, typing_minutes
from scripts.sync_notebooks import typing_times

ROOT = Path(__file__).resolve().parents[1]

BLANK = '''
import os


def f(a):
    """Explain."""
    raise NotImplementedError


class C:
    x: int = 1

    def g(self):
        raise NotImplementedError
'''
SOLUTION = '''
import os
import sys


def f(a):
    """Explain."""
    return a + 1  # a comment


class C:
    x: int = 1

    def g(self):
        return self.h()

    def h(self):
        return 2
'''
CELLS = [drill for drill in drills() if drill.kind == "cell"]


@pytest.mark.parametrize("drill", CELLS, ids=lambda drill: drill.id)
def test_a_cells_minutes_are_its_typing_time(drill: Drill) -> None:
    """A budget that nobody can meet teaches people to distrust the clock."""
    assert drill.minutes == typing_minutes(typed_text(drill.solution, drill.blank)) > 1
    assert "minutes" not in tomllib.loads((drill.folder / "drill.toml").read_text())


@pytest.mark.parametrize("cell", ["config", "model"])
def test_the_walkthrough_counts_like_the_drill(cell: str) -> None:
    """Two budgets for the same text are both disbelieved.

    In these two cells, the walkthrough's blank and the drill's leave the same bodies to type.
    """
    drill = load(f"cell_{cell}")
    characters = typed_characters(typed_text(drill.solution, drill.blank))
    told = f"{drill.minutes} min ({characters:,} characters)"
    assert typing_times(ROOT)[f"{{{{typing {cell}}}}}"] == told


def test_only_what_the_blank_lacks_is_typed() -> None:
    """Counting what is given would make every budget too generous."""
    typed = typed_text(SOLUTION, BLANK)
    assert typed.splitlines() == [
        "import sys",
        "return a + 1",
        "return self.h()",
        "def h(self):",
        "    pass",
        "return 2",
    ]


def test_comments_docstrings_and_blanks_are_not_typed() -> None:
    """A comment in a solution explains it; in the interview you say it."""
    line = "x = 1  # because\n"
    assert typing_minutes('"""A docstring."""\n' + line * (TYPING_SPEED // 3)) == 1
    assert typing_minutes("x = 1\n" * (TYPING_SPEED // 3) + "y = 2\n") == 2
