"""The drills on cells ask for what trainer_core has, and give none of it away."""

from __future__ import annotations

import ast
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rehearsal import drills
from rehearsal.grading.derive import MARK, Derived, NotDerivable, derive
from rehearsal.grading.drill import Drill
from scripts import sync_notebooks as sync

ROOT = Path(__file__).resolve().parents[1]
CELLS = [drill for drill in drills() if drill.kind == "cell"]
each_cell = pytest.mark.parametrize("drill", CELLS, ids=lambda drill: drill.id)
Definition = ast.FunctionDef | ast.ClassDef


def table_of(drill: Drill) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((drill.folder / "drill.toml").read_text())["derived"]
    return table


def definitions(text: str) -> dict[str, Definition]:
    """Functions and classes of the top level."""
    return {n.name: n for n in ast.parse(text).body if isinstance(n, Definition)}


def trainers_own(drill: Drill) -> dict[str, ast.stmt]:
    """What trainer_core has under the names of the drill's definitions, private helpers too."""
    found: dict[str, ast.stmt] = {}
    for entry in table_of(drill)["definitions"]:
        module, _, name = entry.rpartition(".")
        text = (ROOT / "trainer_core" / f"{module}.py").read_text()
        (found[name],) = [node for node in ast.parse(text).body if name in names_in(node)]
    return found


def names_in(node: ast.stmt) -> set[str]:
    if isinstance(node, Definition):
        return {node.name}
    return {t.id for t in getattr(node, "targets", []) if isinstance(t, ast.Name)}


def functions(text: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Qualified name and node of every function and method, but not of a protocol's."""
    for name, node in definitions(text).items():
        if isinstance(node, ast.FunctionDef):
            yield name, node
        elif "Protocol" not in map(ast.unparse, node.bases):
            for part in node.body:
                if isinstance(part, ast.FunctionDef):
                    yield f"{name}.{part.name}", part


def outline(node: Definition) -> dict[str, str]:
    """By qualified name: signature, decorators and docstring; of a class also its fields."""
    found = {}
    members = node.body if isinstance(node, ast.ClassDef) else []
    for part in [node, *(member for member in members if isinstance(member, Definition))]:
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
    def test_a_solution_is_the_walkthroughs_text(self, drill: Drill) -> None:
        """If the two drift apart, the drill teaches a cell that no longer exists."""
        own, left_out = trainers_own(drill), table_of(drill).get("left_out", [])
        repeated = {
            name: node
            for n in ast.parse(drill.solution).body
            for name in names_in(n)
            for node in [n]
        }
        assert set(drill.needs) <= set(repeated) == set(own)
        for name, node in own.items():
            if isinstance(node, ast.ClassDef):
                kept = [
                    n for n in node.body if f"{name}.{getattr(n, 'name', '')}" not in left_out
                ]
                node.body = kept
            assert ast.dump(repeated[name]) == ast.dump(node), f"{drill.id}: {name} has drifted"

    def test_a_blank_keeps_signatures_docstrings_and_fields(self, drill: Drill) -> None:
        """Only bodies are to be typed; without a signature, the check can't call them."""
        blanks, own = definitions(drill.blank), definitions(drill.solution)
        helpers = table_of(drill).get("helpers", [])
        assert set(drill.needs) <= set(blanks)
        for name, node in blanks.items():
            ours, theirs = outline(node), outline(own[name])
            missing = set(theirs) - set(ours)
            private = {part for part in missing if part.rpartition(".")[2].startswith("_")}
            assert missing <= private | set(helpers)
            assert ours == {part: theirs[part] for part in ours}, f"{drill.id}: {name}"
        for helper in helpers:
            owner, _, member = helper.partition(".")
            assert member not in {
                name for part in blanks[owner].body for name in names_in(part)
            }

    def test_a_blank_gives_no_body_away(self, drill: Drill) -> None:
        """Nobody rehearses what the blank already contains."""
        found = dict(functions(drill.blank))
        assert found
        for name, node in found.items():
            body = node.body[ast.get_docstring(node) is not None :]
            assert list(map(ast.unparse, body)) == ["raise NotImplementedError"], name

    def test_a_blank_runs_as_it_stands(
        self, drill: Drill, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A blank that imports a module that is gone fails before anything is typed."""
        module = ModuleType("blank")
        monkeypatch.setitem(sys.modules, "blank", module)  # where a dataclass looks for it
        exec(compile(drill.blank, "blank.py", "exec", dont_inherit=True), vars(module))
        assert set(drill.needs) <= set(vars(module))

    def test_nothing_is_imported_from_the_cell_itself(self, drill: Drill) -> None:
        """That import would be the answer."""
        cell = f"trainer_core.{drill.id.removeprefix('cell_')}"
        for text in (drill.blank, drill.solution):
            nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom)]
            assert nodes
            assert cell not in {node.module for node in nodes}

    def test_a_derived_text_says_so_to_its_editor_only(self, drill: Drill) -> None:
        """An edit of the file would be lost; in a learner's cell, the line would be noise."""
        for file, shown in (("blank.py", drill.blank), ("solution.py", drill.solution)):
            mark, _, rest = (drill.folder / file).read_text().partition("\n")
            assert mark.startswith(MARK)
            assert rest == shown

    def test_other_designs_are_other_designs(self, drill: Drill) -> None:
        """A copy of the cell under another name would not show what a grader lets pass."""
        own = trainers_own(drill)
        for file, text in drill.solutions().items():
            for name, node in definitions(text).items():
                if file != "solution" and name in drill.needs and len(ast.unparse(node)) > 300:
                    assert ast.dump(node) != ast.dump(own[name]), f"{file}: {name}"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the cells and their drills, with notebooks."""
    drills = (f"rehearsal/drills/{drill.id}" for drill in CELLS)
    # The rehearsal's live cells have their minutes from 01_live, which shows the evidence.
    for folder in ("trainer_core", "rehearsal/evidence", *drills):
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=unwanted)
    (tmp_path / "notebooks/src/shared").mkdir(parents=True)
    sources = ("notebooks/src/01_live.py", "notebooks/src/02_rehearse.py")
    for file in ("pyproject.toml", sync.SETUP, *sources):
        shutil.copy(ROOT / file, tmp_path / file)
    sync.build(tmp_path)
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


class TestDrift:
    def test_a_changed_cell_fails_the_check_with_a_diff(
        self, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Otherwise the drill keeps teaching the cell as it was."""
        old = "return self.steps_per_epoch * self.max_epochs"
        edit(project / "trainer_core/data.py", old, f"{old} + 0")
        assert sync.main(["check"], root=project) == 1
        lines = capsys.readouterr().out.splitlines()
        assert "--- rehearsal/drills/cell_data/solution.py" in lines
        assert f"-        {old}" in lines
        assert f"+        {old} + 0" in lines
        assert "--- rehearsal/drills/cell_data/blank.py" not in lines

    def test_a_changed_docstring_reaches_the_blank_and_its_notebooks(
        self, project: Path
    ) -> None:
        """One build updates everything that a learner can open."""
        old = "Optimizer steps of the whole run."
        edit(project / "trainer_core/data.py", old, "All optimizer steps.")
        changed = {path.relative_to(project).as_posix() for path in sync.build(project)}
        assert changed >= {
            "rehearsal/drills/cell_data/blank.py",
            "rehearsal/drills/cell_data/solution.py",
            "notebooks/drills/120_cell_data.ipynb",
            "notebooks/02_rehearse.ipynb",
        }
        assert sync.check(project) == []
        for path in (project / "notebooks").rglob("*.ipynb"):
            assert MARK not in path.read_text()  # a note to editors, not to learners

    def test_an_edited_solution_fails_the_check(self, project: Path) -> None:
        """It is the wrong place for an edit: the next build would drop it."""
        solution = project / "rehearsal/drills/cell_model/solution.py"
        edit(solution, "nn.GELU()", "nn.ReLU()")
        (problem,) = sync.check(project)
        assert "-            layers += [nn.Linear(inside, outside), nn.ReLU()" in problem
        solution.unlink()
        (problem,) = sync.check(project)
        assert problem.startswith("--- rehearsal/drills/cell_model/solution.py")

    def test_a_table_that_does_not_fit_is_named(self, project: Path) -> None:
        """A renamed function must lead to the line that still has its old name."""
        drill = project / "rehearsal/drills/cell_model/drill.toml"
        edit(drill, '"model.TinyNet"', '"model.TinyNets"')
        with pytest.raises(
            sync.SyncError, match=r"cell_model/drill.toml, \[derived\].*mean 'TinyNet'"
        ):
            sync.check(project)


MODULE = '''
"""What a module says."""

from __future__ import annotations

import json
import os.path as path
import unused
from dataclasses import dataclass
from typing import Any

import numpy as np

# %% active="py"
from trainer_core.other import helped, quiet

# %%
# Two constants.
FIRST = 1
SECOND: int = FIRST  # and one


# %%
@dataclass
class Thing:
    """A thing."""

    size: int = 1
    LIMIT = 3

    def asked(self) -> Any:
        """Says."""
        # why
        return self._own(json)

    # about the private one
    def _own(self, value: Any) -> Any:
        return value

    def __len__(self) -> int:
        return self.stamp()

    def stamp(self) -> int:
        return np.size(0)

    def trace(self) -> Any:
        return path


def asked_for(thing: Thing) -> int: return helper(thing)


def helper(thing: Thing) -> int:
    return helped(SECOND)
'''


class TestDerive:
    @pytest.fixture
    def package(self, tmp_path: Path) -> Path:
        (tmp_path / "cell.py").write_text(MODULE)
        (tmp_path / "side.py").write_text("# %%\ndef aside():\n    return 1\n")
        return tmp_path

    def derived(self, package: Path, names: str, **table: Any) -> Derived:
        table = {"definitions": [f"cell.{name}" for name in names.split()], **table}
        return derive(package, "cell_cell", {"Thing", "asked_for"}, table)

    def test_the_texts(self, package: Path) -> None:
        """The definitions verbatim with their imports, and the same without the bodies."""
        found = self.derived(
            package,
            "FIRST SECOND Thing asked_for helper",
            helpers=["Thing.stamp", "Thing.LIMIT"],
            left_out=["Thing.trace"],
        )
        mark, _, text = found.solution.partition("\n")
        assert mark == "# Derived by scripts/sync_notebooks.py; edit trainer_core/cell.py."
        head, _, rest = text.partition("\n# Two")
        assert head == (
            "from __future__ import annotations\n\nimport json\n"
            "from dataclasses import dataclass\nfrom typing import Any\n\n"
            "import numpy as np\n\nfrom trainer_core.other import helped\n"
        )
        trace = "\n    def trace(self) -> Any:\n        return path\n"
        whole = MODULE.partition("# Two")[2].replace("# %%\n", "").replace(trace, "")
        assert rest == whole
        assert found.blank == (
            f"{mark}\n{head}\n"
            "# Two constants.\nFIRST = 1\nSECOND: int = FIRST  # and one\n\n\n"
            '@dataclass\nclass Thing:\n    """A thing."""\n\n    size: int = 1\n\n'
            '    def asked(self) -> Any:\n        """Says."""\n'
            "        raise NotImplementedError\n\n"
            "    def __len__(self) -> int:\n        raise NotImplementedError\n\n\n"
            "def asked_for(thing: Thing) -> int: raise NotImplementedError\n"
        )

    def test_imports_of_a_definition_that_is_there_are_left_out(self, package: Path) -> None:
        """An import from the module would replace what the learner typed."""
        text = "from trainer_core.cell import Thing\n\n\ndef user():\n    return Thing\n"
        (package / "user.py").write_text(text)
        names = {"definitions": ["cell.Thing", "user.user"]}
        assert (
            "trainer_core.cell" not in derive(package, "cell_cell", {"Thing"}, names).solution
        )
        with pytest.raises(
            NotDerivable, match=r"imports Thing from trainer_core.cell.*Add cell.Thing"
        ):
            derive(package, "cell_cell", {"user"}, {"definitions": ["user.user"]})
        assert (
            "from trainer_core.cell import Thing"
            in derive(package, "cell_user", {"user"}, {"definitions": ["user.user"]}).solution
        )

    def test_a_long_import_is_wrapped(self, package: Path) -> None:
        """The texts are read in a notebook, which does not scroll sideways."""
        names = [f"a_rather_long_name_{n}" for n in range(5)]
        text = f"from other import {', '.join(names)}\n\n\ndef user():\n    return {names}\n"
        (package / "user.py").write_text(text.replace("'", ""))
        found = derive(package, "cell_user", {"user"}, {"definitions": ["user.user"]})
        assert f"from other import (\n    {names[0]},\n" in found.blank

    @pytest.mark.parametrize(
        ("names", "table", "message"),
        [
            (
                "Thing",
                {"definitions": ["sides.aside"]},
                "no module 'sides'. Did you mean 'side'",
            ),
            ("Things", {}, r"cell.py doesn't define 'Things'. Did you mean 'Thing'"),
            ("Thing", {"helpers": ["Thing.stam"]}, "'Thing.stam'. Did you mean 'Thing.stamp'"),
            ("Thing", {"left_out": ["Thing.x"]}, "no member 'Thing.x'|a member 'Thing.x'"),
            ("asked_for", {}, "imports (Thing|helper) from trainer_core.cell"),
        ],
    )
    def test_a_name_that_does_not_exist_is_refused(
        self, package: Path, names: str, table: dict[str, Any], message: str
    ) -> None:
        """A misspelled member would stay in the blank, and nobody would notice."""
        with pytest.raises(NotDerivable, match=message):
            self.derived(package, names, **table)
