"""Minutes come from what there is to type, by one rule."""

from __future__ import annotations

import tomllib

import pytest

from rehearsal import drills
from rehearsal.grading.drill import Drill
from rehearsal.grading.minutes import TYPING_SPEED, typed_text, typing_minutes

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
    """A budget that nobody can type in teaches people to distrust the clock."""
    assert drill.minutes == typing_minutes(typed_text(drill.solution, drill.blank)) > 1
    assert "minutes" not in tomllib.loads((drill.folder / "drill.toml").read_text())


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
