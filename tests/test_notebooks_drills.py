"""Each drill's notebook survives "Run all" untouched, and passes with the solution pasted in.

A kernel and a server for each would cost minutes: all notebooks run in one process here, and
one of them in a real kernel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import rehearsal
from rehearsal.grading.drill import Drill

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
DRILLS = rehearsal.drills()
FIRST = next(drill for drill in DRILLS if not drill.is_broken)

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(1200)]


def notebook_of(drill: Drill) -> Path:
    (path,) = (NOTEBOOKS / "drills").glob(f"*_{drill.id}.ipynb")
    return path


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """How every notebook ran untouched, and every drill's with its solution."""
    wanted: dict[str, tuple[str, str | None]] = {
        "rehearse": (str(NOTEBOOKS / "02_rehearse.ipynb"), None),
        **{f"{drill.id} untouched": (str(notebook_of(drill)), None) for drill in DRILLS},
        **{f"{drill.id} solved": (str(notebook_of(drill)), drill.solution) for drill in DRILLS},
    }
    home = tmp_path_factory.mktemp("home_of_all")
    spec = home / "wanted.json"
    spec.write_text(json.dumps([*wanted.values()]))
    run = subprocess.run(
        [sys.executable, str(ROOT / "tests/run_notebooks.py"), str(spec)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "REHEARSAL_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=1100,  # two minutes on idle cores
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    lines = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
    found = [json.loads(line.removeprefix("RESULT ")) for line in lines]
    return dict(zip(wanted, found, strict=True))


class TestInOneProcess:
    @pytest.mark.parametrize("drill", DRILLS, ids=lambda drill: drill.id)
    def test_untouched_it_says_that_nothing_was_typed(
        self, results: dict[str, dict[str, Any]], drill: Drill
    ) -> None:
        """Half of its readers close a notebook that raises at its first check."""
        result = results[f"{drill.id} untouched"]
        assert result["raised"] == ""
        ((name, status, codes),) = result["verdicts"]
        assert name == drill.id
        # Of a bug drill, too: its untouched program gets the incident again.
        assert (status, codes) == ("not_attempted", ["not-attempted"])

    @pytest.mark.parametrize("drill", DRILLS, ids=lambda drill: drill.id)
    def test_with_the_solution_pasted_in_it_passes(
        self, results: dict[str, dict[str, Any]], drill: Drill
    ) -> None:
        """A solution that passes only outside notebooks is useless inside one."""
        result = results[f"{drill.id} solved"]
        assert (result["raised"], result["verdicts"]) == ("", [[drill.id, "passed", []]])

    def test_the_rehearsal_checks_the_live_cells_and_then_the_cell_drills_in_order(
        self, results: dict[str, dict[str, Any]]
    ) -> None:
        """Nobody rehearses a drill that is missing."""
        result = results["rehearse"]
        assert result["raised"] == ""
        checked = [name for name, *_ in result["verdicts"]]
        advanced = [drill.id for drill in DRILLS if drill.kind == "cell"]
        assert checked == ["live_trainer"] * 8 + advanced
        assert {status for _, status, _ in result["verdicts"]} <= {"not_attempted"}

    def test_running_all_cells_of_the_rehearsal_starts_no_clock(
        self, results: dict[str, dict[str, Any]]
    ) -> None:
        """Nine rounds that nobody meant to begin would be in the history as given up."""
        assert results["rehearse"]["started"] == []
        assert results[f"{FIRST.id} untouched"]["started"] == [FIRST.id]


class TestInAKernel:
    def test_the_verdict_is_drawn_once_and_the_clock_stops(self) -> None:
        """check shows its verdict and returns it; a notebook would show it twice."""
        notebook = nbformat.read(notebook_of(FIRST), 4)
        for cell in notebook.cells:
            if cell.metadata.get("origin", "").endswith("blank.py#0:drill"):
                cell.source = FIRST.solution
        notebook.cells.append(nbformat.v4.new_code_cell("again = 1\nstatus()"))
        client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": ROOT}})
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(ROOT))
            client.execute()
        outputs = {
            cell.source.partition("(")[0]: cell.outputs
            for cell in notebook.cells
            if cell.cell_type == "code"
        }
        html = [
            o.data["text/html"] for o in outputs["check"] if "text/html" in o.get("data", {})
        ]
        # What the ranks printed is drawn below it.
        assert ["PASSED" in one for one in html].count(True) == 1, "the verdict is drawn once"
        (clock,) = [o.data for o in outputs["start"] if "clock" in o.data["text/plain"]]
        assert "The clock has stopped: 0:" in clock["text/plain"], "stored with the notebook"
        assert "stopped" in clock["text/html"]
        table = outputs["again = 1\nstatus"][0].data["text/markdown"]
        assert f"{FIRST.id} | {FIRST.minutes:g} | 1 |" in table

    def test_run_all_reaches_the_check_below_a_cell_that_fails(self) -> None:
        """One unfinished cell must not stop the later ones, and it must not pass either."""
        notebook = nbformat.read(notebook_of(FIRST), 4)
        for cell in notebook.cells:
            if cell.metadata.get("origin", "").endswith("blank.py#0:drill"):
                cell.source = "def run(cfg"
        client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": ROOT}})
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(ROOT))
            client.execute()  # raises at the first cell that stops Run All
        (check,) = [cell for cell in notebook.cells if cell.source.startswith("check(")]
        shown = str(check.outputs)
        assert "NOT ATTEMPTED" in shown
        assert "PASSED" not in shown
