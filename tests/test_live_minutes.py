"""Can somebody really type the live trainer in 45 minutes, and does its notebook say so?"""

from __future__ import annotations

import ast
import difflib
import json
import math
import re
from itertools import accumulate
from pathlib import Path

import pytest
from code_size import lines_of_code

from rehearsal.grading.minutes import TYPING_SPEED, typed_characters
from scripts import sync_notebooks as sync

ROOT = Path(__file__).resolve().parents[1]
LIVE = ROOT / "trainer_core" / "live.py"
NOTEBOOKS = ROOT / "notebooks"
FULL, BLANK, HIDDEN = "01_live.ipynb", "01_live_blank.ipynb", "01_live_hidden.ipynb"
REHEARSE = "02_rehearse.ipynb"
CLOCK = re.compile(r"minute (\d+) to (\d+) \(([\d,]+) characters\)")
CHECK = 'check("live_trainer")'


def cells(name: str) -> list[tuple[str, str]]:
    """Origin and text of each cell."""
    found = json.loads((NOTEBOOKS / name).read_text("utf-8"))["cells"]
    return [(cell["metadata"]["origin"], "".join(cell["source"])) for cell in found]


def live_cells(name: str) -> list[tuple[str, str]]:
    """The cells that come from live.py and run."""
    found = [(o, text) for o, text in cells(name) if o.startswith("trainer_core/live.py#")]
    return [(origin, text) for origin, text in found if not origin.endswith(":text")]


def typed_in_each_cell() -> list[int]:
    """Characters that the blank lacks, by cell."""
    counts = []
    for (_, full), (_, blank) in zip(live_cells(FULL), live_cells(BLANK), strict=True):
        lines = difflib.ndiff(blank.splitlines(), full.splitlines())
        missing = [line[2:] for line in lines if line.startswith("+ ")]
        # No "#" stands in a string of live.py.
        counts.append(sum(len("".join(line.partition("#")[0].split())) for line in missing))
    return counts


class TestSize:
    def test_it_is_as_short_as_it_claims(self) -> None:
        """Past this, nobody types it in an interview, and the README's "about 200" is a lie."""
        assert lines_of_code(LIVE) <= 205
        assert typed_characters(LIVE.read_text()) <= 7_000

    def test_what_is_marked_as_typed_takes_45_minutes(self) -> None:
        """Nobody types and explains faster."""
        total = sum(typed_in_each_cell())
        assert 0 < total <= 5_400 == 45 * TYPING_SPEED

    def test_nearly_all_bodies_are_typed(self) -> None:
        """Marking less would also make it shorter, but then somebody else wrote the trainer."""
        given = {"fsync", "sha256"}
        left = set()
        for _, text in live_cells(BLANK):
            for node in ast.walk(ast.parse(text)):
                if isinstance(
                    node, ast.FunctionDef
                ) and "NotImplementedError" not in ast.unparse(node):
                    left.add(node.name)
        assert left == given

    def test_the_notebook_has_each_cell_of_the_module_in_its_order(self) -> None:
        """A cell that is left out is missed at run time, by somebody who is being watched."""
        modules = [cell.origin for cell in sync.module_cells(ROOT, "live")]
        assert len(modules) == 8
        assert [origin for origin, _ in live_cells(FULL)] == modules


class TestTheClock:
    @pytest.fixture
    def rows(self) -> list[tuple[int, int, int]]:
        """From, to and characters of each row of the table."""
        (table,) = [text for _, text in cells(FULL) if "| cell | you type" in text]
        found = [CLOCK.search(line) for line in table.splitlines() if re.match(r"\| \d ", line)]
        return [(int(m[1]), int(m[2]), int(m[3].replace(",", ""))) for m in found if m]

    def test_a_row_counts_what_the_blank_leaves_to_type(
        self, rows: list[tuple[int, int, int]]
    ) -> None:
        """Somebody types against it."""
        assert [characters for *_, characters in rows] == typed_in_each_cell()

    def test_the_clock_runs_at_the_pace_of_who_explains(
        self, rows: list[tuple[int, int, int]]
    ) -> None:
        """Each cell starts when the one before it ends, and the last one ends in time."""
        ends = [math.ceil(n / TYPING_SPEED) for n in accumulate(n for *_, n in rows)]
        assert [end for _, end, _ in rows] == ends
        assert [start for start, *_ in rows] == [0, *ends[:-1]]
        assert ends[-1] <= 45

    def test_the_total_is_where_the_clock_ends(self, rows: list[tuple[int, int, int]]) -> None:
        """Two totals that disagree are both disbelieved."""
        total = f"{rows[-1][1]} minutes ({sum(n for *_, n in rows):,} characters)"
        for name in (FULL, BLANK, HIDDEN, "00_start_here.ipynb"):
            assert total in " ".join(" ".join(text for _, text in cells(name)).split()), name

    def test_each_section_repeats_its_row(self, rows: list[tuple[int, int, int]]) -> None:
        """The number next to the cell is the one that somebody types against."""
        sections = [CLOCK.search(text) for _, text in cells(FULL) if "**To type**" in text]
        assert [(int(m[1]), int(m[2])) for m in sections if m] == [row[:2] for row in rows]


class TestTheVariants:
    def test_the_rehearsal_has_the_same_blank_cells(self) -> None:
        """What is rehearsed there is what is typed in the interview."""
        assert live_cells(REHEARSE) == live_cells(BLANK)

    @pytest.mark.parametrize("name", [FULL, BLANK, HIDDEN])
    def test_the_first_cell_says_which_version_it_is(self, name: str) -> None:
        """Three tabs with one title: the wrong one gets typed into."""
        (_, first), *_ = cells(name)
        words = {FULL: "complete", BLANK: "blank", HIDDEN: "hidden"}
        said = [word for word in words.values() if f"**This is the {word} version.**" in first]
        assert said == [words[name]]

    @pytest.mark.parametrize("name", [BLANK, HIDDEN])
    def test_nothing_but_the_setup_can_stop_run_all(self, name: str) -> None:
        """One unfinished cell must not hide what the later ones would show."""
        found = json.loads((NOTEBOOKS / name).read_text("utf-8"))["cells"]
        code = [cell for cell in found if cell["cell_type"] == "code"]
        typed = [place for place, cell in enumerate(code) if "raise Not" in str(cell["source"])]
        for cell in code[typed[0] :]:
            tags, text = cell["metadata"].get("tags", []), "".join(cell["source"])
            is_support = cell["metadata"]["origin"].endswith(":collapsed")
            assert ("raises-exception" in tags) != (text == CHECK or is_support), text

    @pytest.mark.parametrize("name", [BLANK, HIDDEN, REHEARSE])
    def test_a_check_follows_each_cell_that_is_typed(self, name: str) -> None:
        """Without it, a mistake in cell 2 shows in cell 8."""
        texts = [text for origin, text in cells(name) if not origin.endswith(":text")]
        for _, typed in live_cells(name):
            assert texts[texts.index(typed) + 1] == CHECK
        assert texts.count(CHECK) == 8

    @pytest.mark.parametrize("name", [BLANK, HIDDEN])
    def test_what_a_verdict_suggests_can_be_called(self, name: str) -> None:
        """``next hint("live_trainer")`` was a NameError."""
        (setup,) = [text for _, text in cells(name) if "from rehearsal import" in text]
        (imported,) = re.findall(r"from rehearsal import (.+)", setup)
        suggested = {"check", "start", "hint", "narration", "solution", "status", "debrief"}
        assert suggested <= set(imported.split(", "))

    def test_the_complete_notebook_needs_nothing_of_this_project(self) -> None:
        """In Colab it isn't installed."""
        for origin, text in cells(FULL):
            assert CHECK not in text
            if not text.startswith(("#", "%", "<")) and "/src/" in origin:
                assert not re.search(r"^\s*(from|import) (rehearsal|trainer_core)", text, re.M)

    def test_only_the_hidden_variant_has_answers(self) -> None:
        """A blank with an answer isn't blank; an answer that runs gets graded as yours."""
        answers = {n: [t for o, t in cells(n) if o.endswith(":text")] for n in (BLANK, HIDDEN)}
        assert answers[BLANK] == []
        bodies = [text for _, text in live_cells(FULL)]
        assert [text.split("```")[1] for text in answers[HIDDEN]] == [
            f"python\n{body}\n" for body in bodies
        ]

    @pytest.mark.parametrize("name", [BLANK, HIDDEN])
    def test_without_the_coach_the_checks_say_what_to_do(
        self, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In Colab, an ImportError in the second cell ends the evening."""
        monkeypatch.setitem(__import__("sys").modules, "rehearsal", None)
        (setup,) = [text for _, text in cells(name) if "from rehearsal import" in text]
        names: dict[str, object] = {}
        exec(setup, names)
        for call in ("start", "check", "hint"):
            exec(f'{call}("live_trainer")', names)
        said = capsys.readouterr().out
        assert "`make lab`" in said
        assert "Run the next cell" in said


class TestWhatItLeavesOut:
    def test_each_module_that_the_table_names_exists(self) -> None:
        """The reader looks there for the answer."""
        (text,) = [text for _, text in cells(FULL) if "## What it leaves out" in text]
        rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
        assert len(rows) >= 15
        for row in rows:
            links = re.findall(r"\]\((\.\./(?:trainer_core|scripts)/[\w/]+\.py)\)", row)
            assert links, row
            assert all((NOTEBOOKS / link).is_file() for link in links), row

    def test_nobody_runs_out_of_breath(self) -> None:
        """A line is said while typing: at most 45 words."""
        lines = re.findall(r'"([^"]+)"', " ".join(t for _, t in cells(FULL) if "to say**" in t))
        assert len(lines) > 40
        assert [line for line in lines if len(line.split()) > 45] == []
