"""The cells' drills are the walkthrough's cells: no solution or blank drifts from them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from rehearsal.grading.drill import Drill, load

ROOT = Path(__file__).resolve().parents[1]
# Drill: the module of trainer_core whose definitions its solution repeats.
CELLS = {
    "cell_config": "config",
    "cell_data": "data",
    "cell_model": "model",
    "cell_distributed": "distributed",
}
each_cell = pytest.mark.parametrize(("drill_id", "module"), CELLS.items())
Definition = ast.FunctionDef | ast.ClassDef


def definitions(text: str) -> dict[str, Definition]:
    """Functions and classes of the top level."""
    return {n.name: n for n in ast.parse(text).body if isinstance(n, Definition)}


def of_module(module: str) -> dict[str, Definition]:
    return definitions((ROOT / "trainer_core" / f"{module}.py").read_text())


def outline(node: Definition) -> dict[str, str]:
    """By qualified name: signature, decorators and docstring; of a class also its fields."""
    found = {}
    for part in ast.walk(node):
        if not isinstance(part, Definition):
            continue
        name = part.name if part is node else f"{node.name}.{part.name}"
        said = [ast.get_docstring(part) or "", *map(ast.dump, part.decorator_list)]
        if isinstance(part, ast.FunctionDef):
            said += [ast.dump(part.args), ast.dump(part.returns) if part.returns else ""]
        else:
            said += [ast.dump(line) for line in part.body if isinstance(line, ast.AnnAssign)]
        found[name] = "\n".join(said)
    return found


@each_cell
class TestCells:
    def test_a_solution_repeats_the_module(self, drill_id: str, module: str) -> None:
        """A solution that has drifted teaches a cell that the walkthrough does not have."""
        drill, cells = load(drill_id), of_module(module)
        repeated = definitions(drill.solution)
        assert set(drill.needs) <= set(repeated) <= set(cells)
        for name, node in repeated.items():
            assert ast.dump(node) == ast.dump(cells[name]), f"{drill_id}: {name} has drifted"

    def test_a_blank_keeps_signatures_and_docstrings(self, drill_id: str, module: str) -> None:
        """Only the bodies are to be typed; private helpers may be missing."""
        drill, cells = load(drill_id), of_module(module)
        blanks = definitions(drill.blank)
        assert set(drill.needs) <= set(blanks)
        for name, node in blanks.items():
            ours, theirs = outline(node), outline(cells[name])
            private = {part for part in theirs if part.rpartition(".")[2].startswith("_")}
            assert set(theirs) - set(ours) <= private
            assert ours == {part: theirs[part] for part in ours}, f"{drill_id}: {name}"

    def test_a_blank_gives_no_body_away(self, drill_id: str, module: str) -> None:
        """What is given away is not rehearsed."""
        drill: Drill = load(drill_id)
        for name in drill.needs:
            node = definitions(drill.blank)[name]
            bodies = [part for part in ast.walk(node) if isinstance(part, ast.FunctionDef)]
            assert bodies
            assert all(
                ast.unparse(body.body[-1]) == "raise NotImplementedError" for body in bodies
            )

    def test_other_designs_are_other_designs(self, drill_id: str, module: str) -> None:
        """A copy of the cell under another name would not show what a grader lets pass."""
        drill, cells = load(drill_id), of_module(module)
        for file, text in drill.solutions().items():
            for name, node in definitions(text).items():
                if file != "solution" and name in drill.needs and len(ast.unparse(node)) > 300:
                    assert ast.dump(node) != ast.dump(cells[name]), f"{file}: {name}"
