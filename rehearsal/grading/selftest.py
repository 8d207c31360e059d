"""Tests of the graders: every near miss refused with its own code, every solution passed.

Run by ``python -m rehearsal selftest`` and by the tests.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rehearsal.grading.check import attempt_of_source, grade_attempt
from rehearsal.grading.drill import Drill
from rehearsal.grading.verdict import Verdict

# Ways to cheat that work on any drill.
PEEK = """
import pathlib, rehearsal
exec((pathlib.Path(rehearsal.__file__).parent / "drills" / "{id}" / "solution.py").read_text())
"""
PATCHES = """
import torch
torch.allclose = torch.equal = torch.Tensor.equal = torch.Tensor.allclose = lambda *a, **k: True
torch.testing.assert_close = lambda *a, **k: None
"""
SEEDS = range(20)  # the checks' constants
LEAVES = "import os\n\n\ndef {name}(*args, **kwargs):\n    os._exit(0)\n\n\n"
SLEEPS = "import time\n\n\ndef {name}(*args, **kwargs):\n    time.sleep(3600)\n\n\n"


class Row(NamedTuple):
    """One text and how it was judged."""

    drill: str
    kind: str  # blank, solution, near miss, cheat
    name: str
    expected: str
    got: str
    verdict: Verdict

    @property
    def ok(self) -> bool:
        """Whether the grader judged it correctly."""
        return self.got == self.expected


def outcome(verdict: Verdict) -> str:
    """The first finding's code; the status if there is no finding."""
    return verdict.findings[0].code if verdict.findings else verdict.status


def patched(text: str) -> str:
    """The text after code that patches torch's comparisons; __future__ imports stay first."""
    head, future, rest = text.rpartition("from __future__ import annotations\n")
    return head + future + PATCHES + rest


def texts(drill: Drill) -> Iterator[tuple[str, str, str, str]]:
    """Kind, name, expected outcome and text of everything a drill's grader is tested on."""
    near_misses = drill.near_misses()
    if not drill.is_broken:  # or the blank is a near miss
        yield "blank", "blank", "not-attempted", drill.blank
    for name, text in drill.solutions().items():
        yield "solution", name, "passed", text
    for miss in near_misses:
        yield "near miss", miss.name, miss.code, miss.text
    yield "cheat", "reads_the_solution", "read-the-solution", PEEK.format(id=drill.id)
    if drill.kind == "whiteboard":  # there is no work to skip
        return
    miss = near_misses[0]
    yield "cheat", f"patches_torch_and_{miss.name}", miss.code, patched(miss.text)
    leaves = "".join(LEAVES.format(name=name) for name in drill.needs)
    sleeps = "".join(SLEEPS.format(name=name) for name in drill.needs)
    yield "cheat", "leaves_with_exit_code_0", "left", leaves
    yield "cheat", "sleeps_out_the_clock", "hung", sleeps


def run(drill: Drill, *, quick: bool = False, seeds: Sequence[int] = SEEDS) -> Iterator[Row]:
    """Judge each text; if ``quick``, only the blank and the first near miss.

    Args:
        seeds: what the scenarios draw their numbers from. The solutions share them out, so that
            one of them is judged with each. Of the other texts, the n-th gets the n-th seed,
            from the first again after the last.
    """
    wanted = {"blank", drill.near_misses()[0].name}
    turns, solutions = itertools.cycle(seeds), [*drill.solutions()]
    for kind, name, expected, text in texts(drill):
        if quick and name not in wanted:
            continue
        short = 1.0 if name == "sleeps_out_the_clock" else float("inf")
        shares = seeds[solutions.index(name) :: len(solutions)] if kind == "solution" else ()
        for seed in shares or [next(turns)]:
            verdict = grade_attempt(drill, attempt_of_source(text), at_most_s=short, seed=seed)
            yield Row(drill.id, kind, name, expected, outcome(verdict), verdict)
