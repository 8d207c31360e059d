"""The solutions of the drills of cells 5 to 8 are the walkthrough's cells, and stay so."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CELLS = {
    "cell_train": ["train"],
    "cell_checkpoint": ["checkpoint", "checkpoint_format"],
    "cell_metrics": ["metrics", "json_lines"],
    "cell_launch": ["launch"],
}


def definitions(path: Path) -> dict[str, ast.stmt]:
    """Top-level functions, classes and constants of a file, by name, without docstrings."""
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(path.read_text()).body:
        for inner in ast.walk(node):
            if isinstance(inner, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(inner):
                inner.body = inner.body[1:] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node
    return found


@pytest.mark.parametrize("drill", CELLS)
def test_a_cells_solution_is_the_walkthroughs_cell(drill: str) -> None:
    """Who compares the solution with the walkthrough must find one text, not two."""
    cell = {}
    for module in CELLS[drill]:
        cell |= definitions(ROOT / "trainer_core" / f"{module}.py")
    typed = definitions(ROOT / "rehearsal" / "drills" / drill / "solution.py")
    assert typed
    for name, node in typed.items():
        assert name in cell, f"{drill}: trainer_core has no {name} any more"
        theirs = cell[name]
        if isinstance(node, ast.ClassDef) and isinstance(theirs, ast.ClassDef):
            # A method that the drill does not ask for may be left out.
            kept = [ast.dump(inner) for inner in node.body]
            theirs.body = [inner for inner in theirs.body if ast.dump(inner) in kept]
        assert ast.dump(node) == ast.dump(theirs), (
            f"{drill}/solution.py: {name} is no longer trainer_core's. Copy it from there."
        )
