"""Do the notebooks stay what their sources say, and can no edit get lost on the way?

Every test has a small project of its own; trainer_core is not needed.
"""

from __future__ import annotations

import ast
import codeop
import difflib
import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest

from rehearsal.engine.programs import run as run_program

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "sync_notebooks.py"


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sync_notebooks", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


sync = load_script()

FILES = {
    "pyproject.toml": """\
[project]
name = "sample"
dependencies = ["torch>=2.11"]
optional-dependencies.notebooks = ["fsrs>=6", "nbclient"]

[project.urls]
Repository = "https://github.com/owner/name"
""",
    "trainer_core/__init__.py": '__version__ = "1.1.dev0"\n',
    "trainer_core/order.py": '''\
"""In which order samples come."""

from __future__ import annotations

# %%
def order_of(count: int) -> list[int]:
    """Slots, backwards."""
    # copy the range: "# copy" must not be taken for a shell command
    return list(range(count))[::-1]


# %%
FIRST = order_of(3)[0]
''',
    "trainer_core/integrations/__init__.py": "",
    "trainer_core/integrations/interfaces.py": '''\
"""What may stay an interface."""

from __future__ import annotations

# %%
from typing import Protocol


class Store(Protocol):
    """Somewhere to put bytes."""

    def put(self, data: bytes) -> None:
        """Write all of it."""
''',
    "trainer_core/config.py": '''\
"""What is trained.

Cell 1.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

# %% active="py"
from trainer_core.order import order_of

# %%
LIMIT = 8


# Frozen, because ranks share it.
@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of a run."""

    batch: int = 4  # samples

    def __post_init__(self) -> None:
        # A comment that belongs to the body.
        if self.batch < 1:
            raise ValueError(f"batch={self.batch}: at least 1")

    @property
    def order(self) -> list[int]:
        """The order of the batch."""

        # Why the order is asked for here.
        return order_of(self.batch)

    def doubled(self) -> Config:
        return Config(batch=2 * self.batch)


# %% [markdown]
# Prose *inside* a module.

# %%
@functools.lru_cache(
    maxsize=None,
)
def area(
    width: int,
    # the other side
    height: int = 2,
) -> int:  # in cells
    """Width times height.

    Returns: the area.
    """

    @functools.wraps(max)
    def multiply(*sides: int) -> int:
        return sides[0] * sides[1]

    # Between two statements.
    return multiply(width, height)


AREA = area(3)
''',
    "notebooks/src/00_start_here.py": """\
# %% [markdown]
# # Start here
""",
    "notebooks/src/shared/setup.py": """\
#@title Setup
needed = {{needs}}
print("{{all_on_colab}}")
""",
    "notebooks/src/01_walkthrough.py": """\
# variants: blank, hidden

# %% [markdown]
# # Walkthrough
#
# [Open {{notebook}} in Colab]({{colab}}), from {{repository}}.
#
# Second paragraph.

# %% tags=["setup"]
# %matplotlib inline
# copy nothing, list nothing
print("{{repository}}")

# %% active="py"
from trainer_core.config import *  # for the linter only

# %% include="order" collapsed=true

# %% include="config" typed="Config area"

# %% include="integrations.interfaces"

# %%
demo = Config(batch=3)
assert demo.order == [2, 1, 0]
""",
}
MAIN = "notebooks/01_walkthrough.ipynb"
BLANK = "notebooks/01_walkthrough_blank.ipynb"
HIDDEN = "notebooks/01_walkthrough_hidden.ipynb"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return tmp_path


@pytest.fixture
def built(project: Path) -> Path:
    sync.build(project)
    return project


def replace(root: Path, file: str, old: str, new: str) -> None:
    """Change a text file; the text to change must occur exactly once."""
    text = (root / file).read_text("utf-8")
    assert text.count(old) == 1, (file, old)
    (root / file).write_text(text.replace(old, new), "utf-8")


def read(root: Path, file: str) -> Any:
    return nbformat.read(root / file, 4)


def cell_of(notebook: Any, origin: str) -> Any:
    (found,) = [cell for cell in notebook.cells if cell.metadata.get("origin") == origin]
    return found


def edit(root: Path, file: str, origin: str, old: str, new: str) -> None:
    """Do in a notebook's cell what a person would do in Jupyter, and save."""
    notebook = read(root, file)
    cell = cell_of(notebook, origin)
    assert cell.source.count(old) == 1, (origin, old)
    cell.source = cell.source.replace(old, new)
    nbformat.write(notebook, root / file)


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def line_changes(old: str, new: str) -> list[str]:
    diff = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0)
    return [line for line in diff if line[0] in "+-" and line[:3] not in ("+++", "---")]


def execute(notebook: Any) -> dict[str, Any]:
    """Run the cells as a kernel does: one by one, with future imports remembered."""
    compiler, names = codeop.Compile(), dict[str, Any](__name__="__main__")
    for cell in notebook.cells:
        if cell.cell_type == "code":
            lines = [line for line in cell.source.split("\n") if not line.startswith("%")]
            exec(compiler("\n".join(lines) + "\n", cell.metadata.origin, "exec"), names)
    return names


class TestBuild:
    def test_a_second_build_elsewhere_gives_the_same_bytes(
        self, built: Path, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """Bytes that vary make every commit touch every notebook."""
        other = tmp_path_factory.mktemp("other") / "folder"
        shutil.copytree(built, other)
        for path in other.glob("notebooks/*.ipynb"):
            path.unlink()
        sync.build(other)
        assert contents(other) == contents(built)
        assert sync.build(built) == []

    def test_jupyter_would_write_the_same_bytes(self, built: Path) -> None:
        """Opening and saving a notebook in Jupyter must not show up as a change."""
        for path in built.glob("notebooks/*.ipynb"):
            notebook = nbformat.read(path, 4)
            nbformat.validate(notebook)
            assert nbformat.writes(notebook) + "\n" == path.read_text("utf-8")
            assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
            assert notebook.metadata.kernelspec.name == "python3"
            assert not sync.has_outputs(path)

    def test_the_cells_are_those_of_the_sources_in_order(self, built: Path) -> None:
        """If a cell is lost or doubled, the notebook is different code than the package."""
        origins = [cell.metadata.origin for cell in read(built, MAIN).cells]
        assert origins == [
            "notebooks/src/01_walkthrough.py#1",
            "notebooks/src/01_walkthrough.py#2",
            "trainer_core/order.py#0:collapsed",  # all of it
            "trainer_core/config.py#0",
            "trainer_core/config.py#2",
            "trainer_core/config.py#3",
            "trainer_core/config.py#4",
            "trainer_core/integrations/interfaces.py#1",  # its future import was there already
            "notebooks/src/01_walkthrough.py#7",
        ]
        assert [cell.cell_type for cell in read(built, MAIN).cells].count("markdown") == 2

    def test_a_module_loses_its_docstring_and_nothing_else(self, built: Path) -> None:
        """Cells below need the imports that stand next to a docstring."""
        assert cell_of(read(built, MAIN), "trainer_core/config.py#0").source == (
            "from __future__ import annotations\n\nimport functools\n"
            "from dataclasses import dataclass"
        )

    def test_the_notebook_runs_from_top_to_bottom(self, built: Path) -> None:
        """``doubled`` names its own class in an annotation, which needs the future import."""
        names = execute(read(built, MAIN))
        assert names["AREA"] == 6
        assert names["demo"].doubled().batch == 6

    def test_a_collapsed_module_is_folded_in_both_jupyterlab_and_colab(
        self, built: Path
    ) -> None:
        """What nobody types must not fill the screen."""
        cell = cell_of(read(built, MAIN), "trainer_core/order.py#0:collapsed")
        assert cell.source.startswith("#@title trainer_core/order.py\nfrom __future__ import")
        assert "\n\n\ndef order_of(" in cell.source
        assert cell.source.endswith("\n\n\nFIRST = order_of(3)[0]")
        assert cell.metadata.jupyter == {"source_hidden": True}
        assert cell.metadata.cellView == "form"
        assert "hide-input" in cell.metadata.tags

    def test_a_demo_can_be_folded_and_keeps_its_own_tags(self, project: Path) -> None:
        """Tags such as raises-exception decide whether a notebook's run passes."""
        file = "notebooks/src/01_walkthrough.py"
        replace(project, file, 'tags=["setup"]', 'tags=["setup"] collapsed=true')
        sync.build(project)
        cell = cell_of(read(project, MAIN), f"{file}#2")
        assert cell.metadata.tags == ["setup", "hide-input"]
        assert cell.metadata.jupyter.source_hidden
        assert "#@title" not in cell.source

    def test_a_magic_is_switched_on_and_a_comment_stays_a_comment(self, built: Path) -> None:
        """Jupytext itself would make a command of a comment that begins with "copy"."""
        demo = cell_of(read(built, MAIN), "notebooks/src/01_walkthrough.py#2").source
        assert demo.startswith("%matplotlib inline\n# copy nothing, list nothing\n")
        module = cell_of(read(built, MAIN), "trainer_core/order.py#0:collapsed").source
        assert "    # copy the range" in module

    def test_an_edit_made_in_a_notebook_is_not_built_over(
        self, built: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A learner who typed an hour into the blank must not lose it to a build."""
        blank = "trainer_core/config.py#2:blank"
        edit(built, BLANK, blank, "LIMIT = 8", "LIMIT = 9")
        replace(built, "trainer_core/config.py", "AREA = area(3)", "AREA = area(4)")
        before = contents(built)
        assert sync.main(["build"], root=built) == 2
        assert "Cell 5 of notebooks/01_walkthrough_blank.ipynb" in capsys.readouterr().err
        assert contents(built) == before
        assert sync.main(["build", "--overwrite"], root=built) == 0
        assert "LIMIT = 8" in cell_of(read(built, BLANK), blank).source
        assert "area(4)" in cell_of(read(built, MAIN), "trainer_core/config.py#4").source

    def test_a_cell_added_in_a_notebook_is_not_built_over(self, built: Path) -> None:
        """It has no origin to compare with, and would be lost all the same."""
        notebook = read(built, MAIN)
        notebook.cells.append(nbformat.v4.new_code_cell("mine = 1"))
        nbformat.write(notebook, built / MAIN)
        with pytest.raises(sync.SyncError, match=r"Cell 10 of .* was edited in the notebook"):
            sync.build(built)


class TestCheck:
    def test_it_passes_right_after_a_build(
        self, built: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A check that always fails gets turned off."""
        assert sync.main(["check"], root=built) == 0
        assert "All derived files match their sources" in capsys.readouterr().out

    def test_drift_of_a_module_fails_with_a_diff_for_each_notebook(
        self, built: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A notebook that shows yesterday's code teaches yesterday's bug."""
        replace(built, "trainer_core/config.py", "LIMIT = 8", "LIMIT = 9")
        assert sync.main(["check"], root=built) == 1
        out = capsys.readouterr().out
        assert out.count("-LIMIT = 8\n+LIMIT = 9\n") == 4  # hidden has it in blank and solution
        for name in (MAIN, BLANK, HIDDEN):
            assert f"--- {name}" in out
        assert "--- notebooks/00_start_here.ipynb" not in out

    @pytest.mark.parametrize(
        ("origin", "change"),
        [
            ("trainer_core/config.py#4", {"source": "pass"}),
            ("trainer_core/config.py#4", {"cell_type": "raw"}),
            ("trainer_core/config.py#3", {"metadata": {"origin": "elsewhere.py#1"}}),
            ("trainer_core/config.py#4", {"metadata": {"tags": ["skip-execution"]}}),
        ],
    )
    def test_a_changed_cell_is_found(
        self, built: Path, origin: str, change: dict[str, Any]
    ) -> None:
        """Text, type, origin and tags each decide what runs, or where an edit goes."""
        notebook = json.loads((built / MAIN).read_text("utf-8"))
        (cell,) = [c for c in notebook["cells"] if c["metadata"]["origin"] == origin]
        cell["metadata"] |= change.pop("metadata", {})
        cell |= change
        (built / MAIN).write_text(json.dumps(notebook), "utf-8")
        assert len(sync.check(built)) == 1

    def test_a_run_in_jupyter_is_not_drift(self, built: Path) -> None:
        """After running a notebook, you must not have to clear it to make the tests pass."""
        notebook = read(built, MAIN)
        cell = cell_of(notebook, "trainer_core/config.py#4")
        cell.outputs = [nbformat.v4.new_output("stream", text="6\n")]
        cell.execution_count = 5
        cell.metadata["execution"] = {"iopub.status.busy": "2026-01-01"}
        cell_of(notebook, "trainer_core/order.py#0:collapsed").metadata.pop("jupyter")
        notebook.cells.append(nbformat.v4.new_code_cell(""))
        notebook.metadata.language_info.version = "3.13"
        nbformat.write(notebook, built / MAIN)
        assert sync.check(built) == []
        assert sync.has_outputs(built / MAIN)

    def test_a_blank_that_no_longer_allows_errors_is_found(self, built: Path) -> None:
        """Its demos raise, so running all notebooks would fail."""
        notebook = read(built, BLANK)
        del notebook.metadata["execution"]
        nbformat.write(notebook, built / BLANK)
        assert len(sync.check(built)) == 1

    def test_a_missing_and_a_sourceless_notebook_are_named(self, built: Path) -> None:
        """A renamed source leaves a notebook behind that nothing keeps true."""
        shutil.move(built / HIDDEN, built / "notebooks/02_old.ipynb")
        assert sync.check(built) == [
            f"{HIDDEN} is missing.",
            "notebooks/02_old.ipynb has no source in notebooks/src.",
        ]


class TestPush:
    def test_an_edit_changes_one_line_of_the_module(self, built: Path) -> None:
        """A push that also reformats buries the edit in noise."""
        before = contents(built)
        edit(built, MAIN, "trainer_core/config.py#4", "# Between two", "# Right between two")
        diff = sync.push(built, Path(MAIN))
        old, new = before["trainer_core/config.py"].decode(), (built / "trainer_core/config.py")
        assert line_changes(old, new.read_text("utf-8")) == [
            "-    # Between two statements.",
            "+    # Right between two statements.",
        ]
        assert "+    # Right between two statements." in diff
        assert sorted(
            name for name, content in contents(built).items() if content != before[name]
        ) == [MAIN, "trainer_core/config.py"]

    def test_after_a_push_a_build_brings_all_notebooks_up_to_date(self, built: Path) -> None:
        """The variants come from the same cell."""
        edit(built, MAIN, "trainer_core/config.py#2", "LIMIT = 8", "LIMIT = 9")
        sync.push(built, Path(MAIN))
        assert sync.check(built) != []
        assert {path.name for path in sync.build(built)} == {
            Path(BLANK).name,
            Path(HIDDEN).name,
        }
        assert sync.check(built) == []

    def test_outputs_stay_in_the_notebook(self, built: Path) -> None:
        """A run may have taken minutes."""
        notebook = read(built, MAIN)
        cell = cell_of(notebook, "trainer_core/config.py#2")
        cell.source += "\nWIDTH = 3\n"  # with the newline that an editor leaves
        cell.outputs = [nbformat.v4.new_output("stream", text="kept\n")]
        nbformat.write(notebook, built / MAIN)
        sync.push(built, Path(MAIN))
        assert cell_of(read(built, MAIN), "trainer_core/config.py#2").outputs == cell.outputs
        text = (built / "trainer_core/config.py").read_text("utf-8")
        assert line_changes(FILES["trainer_core/config.py"], text) == ["+WIDTH = 3"]

    def test_two_pushes_in_a_row_both_arrive(self, built: Path) -> None:
        """The first push changes the module; the second must not see that as a conflict."""
        for old, new in (("LIMIT = 8", "LIMIT = 9"), ("LIMIT = 9", "LIMIT = 10")):
            edit(built, MAIN, "trainer_core/config.py#2", old, new)
            assert sync.push(built, Path("01_walkthrough"))
        assert "LIMIT = 10\n" in (built / "trainer_core/config.py").read_text("utf-8")

    def test_without_an_edit_nothing_is_written(self, built: Path) -> None:
        """Running a push by mistake is harmless."""
        before = contents(built)
        assert sync.main(["push", "01_walkthrough.ipynb"], root=built) == 0
        assert contents(built) == before

    @pytest.mark.parametrize(
        ("notebook", "origin", "old", "new", "file", "line"),
        [
            (
                MAIN,
                "trainer_core/config.py#0",
                "import functools",
                "import functools  # cache",
                "trainer_core/config.py",
                "+import functools  # cache",
            ),
            (
                MAIN,
                "trainer_core/config.py#3",
                "Prose",
                "Text",
                "trainer_core/config.py",
                "+# Text *inside* a module.",
            ),
            (
                BLANK,
                "notebooks/src/01_walkthrough.py#1",
                "Second",
                "Last",
                "notebooks/src/01_walkthrough.py",
                "+# Last paragraph.",
            ),
            (
                MAIN,
                "notebooks/src/01_walkthrough.py#2",
                "copy nothing",
                "copy all",
                "notebooks/src/01_walkthrough.py",
                "+# copy all, list nothing",
            ),
            (
                MAIN,
                "notebooks/src/01_walkthrough.py#2",
                "%matplotlib inline",
                "%matplotlib agg",
                "notebooks/src/01_walkthrough.py",
                "+# %matplotlib agg",
            ),
            # The cell has {{repository}} only, so a notebook's name in it is just a name.
            (
                MAIN,
                "notebooks/src/01_walkthrough.py#2",
                "copy nothing",
                "01_walkthrough.ipynb",
                "notebooks/src/01_walkthrough.py",
                "+# 01_walkthrough.ipynb, list nothing",
            ),
        ],
        ids=["docstring", "module-prose", "address", "comment", "magic", "name"],
    )
    def test_what_deriving_added_or_took_away_is_undone(
        self, built: Path, notebook: str, origin: str, old: str, new: str, file: str, line: str
    ) -> None:
        """A title or an address in the source, or a missing docstring, is damage."""
        edit(built, notebook, origin, old, new)
        sync.push(built, Path(notebook))
        changes = line_changes(FILES[file], (built / file).read_text("utf-8"))
        assert len(changes) == 2
        assert changes[1] == line

    def assert_refused(self, root: Path, notebook: str, message: str) -> None:
        before = contents(root)
        with pytest.raises(sync.SyncError, match=message):
            sync.push(root, Path(notebook))
        assert contents(root) == before

    def test_a_cell_that_changed_in_both_places_is_refused(self, built: Path) -> None:
        """The newer of two edits would silently win."""
        edit(built, MAIN, "trainer_core/config.py#4", "AREA = area(3)", "AREA = area(4)")
        replace(built, "trainer_core/config.py", "# Between two", "# In between two")
        self.assert_refused(built, MAIN, "Cell 7 .* was edited, but its source changed as well")

    def test_a_change_of_another_cell_of_the_module_is_not_a_conflict(
        self, built: Path
    ) -> None:
        """Working on a module and its notebook at the same time is normal."""
        edit(built, MAIN, "trainer_core/config.py#4", "AREA = area(3)", "AREA = area(4)")
        replace(built, "trainer_core/config.py", "LIMIT = 8", "LIMIT = 9")
        sync.push(built, Path(MAIN))
        text = (built / "trainer_core/config.py").read_text("utf-8")
        assert "LIMIT = 9" in text
        assert "AREA = area(4)" in text

    @pytest.mark.parametrize("notebook", [BLANK, HIDDEN])
    def test_a_blank_never_overwrites_its_module(self, built: Path, notebook: str) -> None:
        """The module would lose its bodies."""
        origin = "trainer_core/config.py#4:blank"
        edit(built, notebook, origin, "raise NotImplementedError", "return 6  # ")
        self.assert_refused(built, notebook, "is a blank, and a blank never overwrites")

    def test_a_module_in_one_cell_is_not_pushed(self, built: Path) -> None:
        """Nothing says any more where one of its cells ends."""
        edit(built, MAIN, "trainer_core/order.py#0:collapsed", "Slots, backw", "Slots, upw")
        self.assert_refused(built, MAIN, "has all code of a module")

    def test_one_refused_edit_refuses_all(self, built: Path) -> None:
        """Half a push leaves module and notebook in a state that nobody chose."""
        edit(built, BLANK, "notebooks/src/01_walkthrough.py#1", "Second", "Last")
        edit(built, BLANK, "trainer_core/config.py#4:blank", "AREA = area(3)", "AREA = area(4)")
        self.assert_refused(built, BLANK, "blank never overwrites")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                lambda cells: cells.insert(2, nbformat.v4.new_code_cell("x = 1")),
                "cell 3 is new",
            ),
            (lambda cells: cells.pop(4), "trainer_core/config.py#2 is missing"),
            (lambda cells: cells.append(cells[4].copy()), "config.py#2 appears twice"),
            (lambda cells: cells.insert(4, cells.pop(6)), "the order changed"),
        ],
    )
    def test_cells_that_moved_are_refused(self, built: Path, change: Any, message: str) -> None:
        """Text would land in the wrong cell."""
        edit(built, MAIN, "trainer_core/config.py#4", "AREA = area(3)", "AREA = area(4)")
        notebook = read(built, MAIN)
        change(notebook.cells)
        for number, cell in enumerate(notebook.cells):
            cell.id = f"cell-{number}"
        nbformat.write(notebook, built / MAIN)
        self.assert_refused(built, MAIN, message)

    @pytest.mark.parametrize(
        ("new", "message"),
        [
            ("LIMIT = 8\n# %%\nSPLIT = 1", "would split a cell of trainer_core/config.py"),
            ("LIMIT = = 8", r"trainer_core/config.py is not valid Python .*LIMIT = = 8"),
        ],
    )
    def test_an_edit_that_breaks_the_file_is_refused(
        self, built: Path, new: str, message: str
    ) -> None:
        """Every notebook and every test would fail on import."""
        edit(built, MAIN, "trainer_core/config.py#2", "LIMIT = 8", new)
        self.assert_refused(built, MAIN, message)

    def test_a_cell_of_another_type_is_refused(self, built: Path) -> None:
        """Code that became prose would still be written as code."""
        notebook = json.loads((built / MAIN).read_text("utf-8"))
        notebook["cells"][4]["cell_type"] = "raw"
        (built / MAIN).write_text(json.dumps(notebook), "utf-8")
        self.assert_refused(built, MAIN, "Cell 5 .* changed its type")

    def test_an_edit_of_an_address_is_refused(self, built: Path) -> None:
        """The source would get a fixed address, and a fork would have to change two places."""
        origin = "notebooks/src/01_walkthrough.py#1"
        edit(built, MAIN, origin, "https://github.com/owner/name.", "https://example.org.")
        self.assert_refused(built, MAIN, "Cell 1 .* lost a text")

    def test_a_cell_that_cannot_be_turned_back_is_refused(self, project: Path) -> None:
        """The literal address would become a placeholder on the way back."""
        file = "notebooks/src/01_walkthrough.py"
        replace(project, file, "# Second", "# https://github.com/owner/name Second")
        sync.build(project)
        edit(project, MAIN, f"{file}#1", "Second", "Last")
        self.assert_refused(project, MAIN, "could write in two ways")

    def test_a_file_that_jupytext_would_rewrite_is_refused(self, project: Path) -> None:
        """Another system's line endings would all change with the one edit."""
        text = FILES["trainer_core/config.py"].replace("\n", "\r\n")
        (project / "trainer_core/config.py").write_bytes(text.encode())
        sync.build(project)
        edit(project, MAIN, "trainer_core/config.py#2", "LIMIT = 8", "LIMIT = 9")
        self.assert_refused(project, MAIN, "trainer_core/config.py would also change elsewhere")


class TestVariants:
    def test_a_blank_keeps_everything_but_the_bodies(self, built: Path) -> None:
        """A learner works from what is left: signatures, docstrings, fields."""
        notebook = read(built, BLANK)
        assert (
            cell_of(notebook, "trainer_core/config.py#2:blank").source
            == '''\
LIMIT = 8


# Frozen, because ranks share it.
@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of a run."""

    batch: int = 4  # samples

    def __post_init__(self) -> None:
        raise NotImplementedError("type this")

    @property
    def order(self) -> list[int]:
        """The order of the batch."""
        raise NotImplementedError("type this")

    def doubled(self) -> Config:
        raise NotImplementedError("type this")'''
        )
        assert (
            cell_of(notebook, "trainer_core/config.py#4:blank").source
            == '''\
@functools.lru_cache(
    maxsize=None,
)
def area(
    width: int,
    # the other side
    height: int = 2,
) -> int:  # in cells
    """Width times height.

    Returns: the area.
    """
    raise NotImplementedError("type this")


AREA = area(3)'''
        )

    @pytest.mark.parametrize("directive", ['include="order" collapsed=true', 'include="order"'])
    def test_support_modules_stay_complete_in_a_blank(
        self, project: Path, directive: str
    ) -> None:
        """Nobody types them, and the typed cells need them."""
        file = "notebooks/src/01_walkthrough.py"
        replace(project, file, 'include="order" collapsed=true', directive)
        sync.build(project)
        code = "\n".join(cell.source for cell in read(project, BLANK).cells)
        assert "return list(range(count))[::-1]" in code

    @pytest.mark.parametrize(
        ("body", "emptied"),
        [
            ("def f(): return 1", 'def f(): raise NotImplementedError("type this")'),
            ("def f():\n    '''Doc.'''", None),
            ("def f():\n    ...", None),
            ("def f(): pass", None),
            ("class P(Protocol[T]):\n    def f(self):\n        return 1", None),
            ("class P(typing.Protocol):\n    def f(self):\n        return 1", None),
            (
                "class E(ProtocolError):\n    def f(self): return 1",
                f"class E(ProtocolError):\n    def f(self): {sync.EMPTIED}",
            ),
            (
                "class A:\n  class B:\n    def f(self):\n      return 1\n  C = 3",
                f"class A:\n  class B:\n    def f(self):\n      {sync.EMPTIED}\n  C = 3",
            ),
            ("async def f(x='\u00e4'): await x", f"async def f(x='\u00e4'): {sync.EMPTIED}"),
            (
                "def f():\n    # why\n    x = '''\nend'''  # said\n\ng = 1",
                'def f():\n    raise NotImplementedError("type this")\n\ng = 1',
            ),
            (
                "if True:\n    def f():\n        @wraps\n        def g(): pass\n"
                "        return g",
                'if True:\n    def f():\n        raise NotImplementedError("type this")',
            ),
            ("size = 3\nkey = lambda x: x + 1", None),
        ],
    )
    def test_each_form_of_a_body(self, body: str, emptied: str | None) -> None:
        """A body left in gives the answer away, and nobody can start from a broken blank."""
        result = sync.empty_bodies(body, sync.EMPTIED)
        assert result == (body if emptied is None else emptied)
        ast.parse(result)

    def test_only_what_is_marked_is_emptied(self, project: Path) -> None:
        """A body that nobody has time to type would stop the learner at the next demo."""
        file = "notebooks/src/01_walkthrough.py"
        replace(project, file, 'typed="Config area"', 'typed="Config.order"')
        sync.build(project)
        notebook = read(project, BLANK)
        blank = cell_of(notebook, "trainer_core/config.py#2:blank").source
        assert blank.count(sync.EMPTIED) == 1
        assert "return order_of" not in blank
        assert "return Config(batch=2 * self.batch)" in blank
        assert "return multiply" in cell_of(notebook, "trainer_core/config.py#4").source

    def test_every_cell_of_a_blank_compiles(self, built: Path) -> None:
        """You type into a blank; you don't repair it."""
        for cell in read(built, BLANK).cells:
            if cell.cell_type == "code" and "%" not in cell.source:
                compile(cell.source, cell.metadata.origin, "exec")

    def test_variants_may_fail_and_the_notebook_must_pass(self, built: Path) -> None:
        """A test run of all notebooks must tolerate blanks, and judge the complete one."""
        for file in (BLANK, HIDDEN):
            assert read(built, file).metadata.execution == {"allow_errors": True}
        assert "execution" not in read(built, MAIN).metadata

    def test_in_a_variant_an_unfinished_cell_stops_no_later_one(self, project: Path) -> None:
        """Jupyter's Run All stops at the first exception of a cell without this tag."""
        path = project / "notebooks/src/01_walkthrough.py"
        check = '\n# %% only="blank hidden"\nprint("check")\n'
        path.write_text(path.read_text("utf-8") + check, "utf-8")
        sync.build(project)
        for file in (MAIN, BLANK, HIDDEN):
            tolerant = [
                cell.metadata.origin
                for cell in read(project, file).cells
                if "raises-exception" in cell.metadata.get("tags", [])
            ]
            # What is typed and the demo; not the setup, and not the check, which Ctrl-C stops.
            expected = [
                "trainer_core/config.py#2:blank",
                "trainer_core/config.py#4:blank",
                "notebooks/src/01_walkthrough.py#7",
            ]
            assert tolerant == ([] if file == MAIN else expected)

    def test_hidden_has_each_answer_as_folded_text_below_its_blank(self, built: Path) -> None:
        """An answer in a code cell runs with Run All, and then a check grades the answer."""
        notebook, full = read(built, HIDDEN), read(built, MAIN)
        pairs = [
            pair
            for pair in zip(notebook.cells, notebook.cells[1:], strict=False)
            if pair[0].metadata.origin.endswith(":blank")
        ]
        assert len(pairs) == 2
        for blank, answer in pairs:
            origin = blank.metadata.origin.removesuffix(":blank")
            assert answer.metadata.origin == f"{origin}:text"
            assert answer.cell_type == "markdown"
            assert answer.source == (
                "<details><summary>Solution</summary>\n\n```python\n"
                f"{cell_of(full, origin).source}\n```\n\n</details>"
            )
        with pytest.raises(NotImplementedError):
            execute(notebook)

    def test_an_edited_answer_goes_nowhere(self, built: Path) -> None:
        """The fence and the folding around it would end up in the module."""
        edit(built, HIDDEN, "trainer_core/config.py#2:text", "batch: int = 4", "batch: int = 5")
        before = contents(built)
        with pytest.raises(sync.SyncError, match="has code as text, and push carries code"):
            sync.push(built, Path(HIDDEN))
        assert contents(built) == before

    def test_a_cell_can_be_for_some_variants_only(self, project: Path) -> None:
        """A check after each cell belongs where something was typed."""
        file = "notebooks/src/01_walkthrough.py"
        path = project / file
        added = '\n# %% only="blank hidden"\ncheck("x")\n\n# %% only="full"\nrun()\n'
        path.write_text(path.read_text("utf-8") + added, "utf-8")
        sync.build(project)
        last = {name: read(project, name).cells[-1] for name in (MAIN, BLANK, HIDDEN)}
        assert [cell.source for cell in last.values()] == ["run()", 'check("x")', 'check("x")']
        assert last[BLANK].metadata.origin == f"{file}#8"
        edit(project, BLANK, f"{file}#8", 'check("x")', 'check("y")')
        sync.push(project, Path(BLANK))
        assert '# %% only="blank hidden"\ncheck("y")\n' in path.read_text("utf-8")

    def test_an_unknown_variant_is_refused(self, project: Path) -> None:
        """Silently, nothing would be derived."""
        replace(project, "notebooks/src/01_walkthrough.py", "blank, hidden", "blnk")
        with pytest.raises(sync.SyncError, match=r"'blnk'.* Did you mean 'blank'\?"):
            sync.compose(project)

    def test_variants_named_too_late_are_refused(self, project: Path) -> None:
        """Silently, nothing would be derived."""
        path = project / "notebooks/src/00_start_here.py"
        path.write_text(path.read_text("utf-8") + "\n# %%\n# variants: blank\n", "utf-8")
        with pytest.raises(
            sync.SyncError, match=r"00_start_here\.py#1 contains '# variants: blank'"
        ):
            sync.compose(project)

    def test_two_sources_of_one_notebook_are_refused(self, project: Path) -> None:
        """The second would overwrite the first."""
        (project / "notebooks/src/01_walkthrough_blank.py").write_text("# %%\nx = 1\n", "utf-8")
        with pytest.raises(sync.SyncError, match=r"both produce 01_walkthrough_blank\.ipynb"):
            sync.compose(project)


class TestDirectives:
    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            (
                'include="config"',
                'include="confg"',
                r"py#5 includes 'confg', .* Did you mean 'config'\?",
            ),
            (
                'include="integrations.interfaces"',
                'include="interfaces"',
                "Did you mean 'integrations.interfaces'",
            ),
            ('include="config"', 'inclde="config"', "'inclde', .* Did you mean 'include'"),
            ('include="config"', "include=config", "marked 'include=config', which means"),
            (
                'include="integrations.interfaces"',
                'include="config"',
                "includes 'config', and so does another cell",
            ),
            (' typed="Config area"', "\nx = 1", "the cell also has text"),
            ("Config area", "Config aera", "'aera' as typed, .* Did you mean 'area'"),
            ("Config area", "LIMIT", "'LIMIT' as typed, but trainer_core/config.py has no"),
            (
                '# %% include="order" collapsed=true\n',
                "",
                r"'config', which imports from 'order'.*Add # %% include=\"order\" to",
            ),
            ('# %% tags=["setup"]', '# %% only="blnk"', "only=\"blnk\".* Did you mean 'blank'"),
            ('# %% tags=["setup"]', '# %% shown="text"', "shown=.* only works next to include"),
            (
                "collapsed=true",
                'shown="code"',
                'shown="code". Use shown="text" or shown="blank"',
            ),
            ("collapsed=true", 'cell="FRIST"', "no cell defines that name.* mean 'FIRST'"),
            ("collapsed=true", 'cell="list"', "'list', but no cell defines that name"),
            (
                'include="config" typed="Config area"',
                'include="config" cell="area" typed="Config"',
                "'Config' as typed, but the cell 'area' of trainer_core/config.py has no",
            ),
        ],
    )
    def test_a_directive_that_makes_no_sense_is_refused(
        self, project: Path, old: str, new: str, message: str
    ) -> None:
        """The cells would silently be missing from the notebook."""
        replace(project, "notebooks/src/01_walkthrough.py", old, new)
        with pytest.raises(sync.SyncError, match=message):
            sync.compose(project)

    def test_one_cell_of_a_module_can_be_included_by_what_it_defines(
        self, project: Path
    ) -> None:
        """A section of a notebook is about one cell, with text before and after it."""
        one, rest = (
            '# %% include="config" cell="area" typed="area"\n',
            "\n# %% [markdown]\n# And\n",
        )
        two = '\n# %% include="config" cell="Config" typed="Config"\n'
        replace(
            project,
            "notebooks/src/01_walkthrough.py",
            '# %% include="config" typed="Config area"\n',
            f"{one}{rest}{two}",
        )
        replace(project, "notebooks/src/01_walkthrough.py", "# Second", "# {{typing config}}:")
        sync.build(project)
        notebook = read(project, MAIN)
        origins = [cell.metadata.origin for cell in notebook.cells[3:6]]
        assert origins == [
            "trainer_core/config.py#4",
            "notebooks/src/01_walkthrough.py#6",
            "trainer_core/config.py#2",
        ]
        assert cell_of(notebook, "trainer_core/config.py#4").source.startswith("@functools")
        blank = read(project, BLANK)
        assert sync.EMPTIED in cell_of(blank, "trainer_core/config.py#2:blank").source
        edit(project, MAIN, "trainer_core/config.py#4", "AREA = area(3)", "AREA = area(4)")
        sync.push(project, Path(MAIN))
        assert "AREA = area(4)" in (project / "trainer_core/config.py").read_text("utf-8")

    @pytest.mark.parametrize(
        ("first", "second"),
        [("", ' cell="area"'), (' cell="area"', ""), (' cell="area"', ' cell="AREA"')],
    )
    def test_a_cell_that_is_included_twice_is_refused(
        self, project: Path, first: str, second: str
    ) -> None:
        """Two cells of one origin could not be told apart by a push."""
        both = f'include="config"{first}\n\n# %% include="config"{second}\n'
        replace(
            project,
            "notebooks/src/01_walkthrough.py",
            'include="config" typed="Config area"\n',
            both,
        )
        with pytest.raises(sync.SyncError, match="includes 'config', and so does another cell"):
            sync.compose(project)

    def test_a_name_that_two_cells_define_picks_neither(self, project: Path) -> None:
        """The author meant one of them, and the tool can't know which."""
        replace(project, "trainer_core/order.py", "FIRST = ", "order_of = FIRST = ")
        replace(project, "notebooks/src/01_walkthrough.py", "collapsed=true", 'cell="order_of"')
        with pytest.raises(sync.SyncError, match="'order_of', but 2 cells define that name"):
            sync.compose(project)

    def test_code_shown_as_text_defines_nothing(self, project: Path) -> None:
        """A notebook on two trainers shows one of them next to the other's same names."""
        (project / "trainer_core/small.py").write_text(
            "# %%\ndef area(w):\n    return w\n\n\n# %%\nWIDE = 2\n", "utf-8"
        )
        path = project / "notebooks/src/01_walkthrough.py"
        shown = '\n# %% include="small" cell="area" shown="text"\n'
        path.write_text(path.read_text("utf-8") + shown, "utf-8")
        sync.build(project)
        cell = read(project, MAIN).cells[-1]
        assert cell.cell_type == "markdown"
        assert cell.source == (
            "<details><summary>trainer_core/small.py, area</summary>\n\n"
            "```python\ndef area(w):\n    return w\n```\n\n</details>"
        )
        path.write_text(path.read_text("utf-8").replace(' shown="text"', ""), "utf-8")
        with pytest.raises(sync.SyncError, match="both define 'area'"):
            sync.compose(project)

    def test_a_module_that_is_only_shown_is_not_included(self, project: Path) -> None:
        """Nothing runs in text, so a name from there would be missing."""
        replace(project, "notebooks/src/01_walkthrough.py", "collapsed=true", 'shown="text"')
        with pytest.raises(sync.SyncError, match="'config', which imports from 'order'"):
            sync.compose(project)

    def test_a_name_that_another_cell_defines_need_not_be_included(self, project: Path) -> None:
        """live.py has an error class of its own, which the launcher uses as well."""
        own = "# %%\ndef order_of(count):\n    return [0] * count\n"
        (project / "trainer_core/small.py").write_text(own, "utf-8")
        file = "notebooks/src/01_walkthrough.py"
        replace(project, file, 'include="order" collapsed=true', 'include="small"')
        assert "01_walkthrough.ipynb" in sync.compose(project)
        replace(project, "trainer_core/small.py", "order_of", "orders_of")
        with pytest.raises(sync.SyncError, match="'config', which imports from 'order'"):
            sync.compose(project)

    def test_a_demo_may_import_what_an_included_module_needs(self, project: Path) -> None:
        """A notebook about one module doesn't have to include everything the module needs."""
        file = "notebooks/src/01_walkthrough.py"
        imported = "# %%\nfrom trainer_core.order import order_of\n"
        replace(project, file, '# %% include="order" collapsed=true\n', imported)
        assert "01_walkthrough.ipynb" in sync.compose(project)

    @pytest.mark.parametrize(
        "line",
        [
            "from trainer_core.order import FIRST",
            "from .order import FIRST",
            "from trainer_core import order",
            "import trainer_core.order",
        ],
    )
    def test_an_import_of_the_package_needs_its_own_cell(
        self, project: Path, line: str
    ) -> None:
        """Colab has no package to import, and elsewhere there would be two of each class."""
        replace(project, "trainer_core/config.py", "LIMIT = 8", f"LIMIT = 8\n{line}")
        with pytest.raises(
            sync.SyncError, match=r"config.py#2 imports from this project \(order"
        ):
            sync.compose(project)

    @pytest.mark.parametrize(
        ("text", "name"),
        [
            ("def area() -> int: ...", "area"),
            ("class Config: ...", "Config"),
            ("LIMIT: int = 1", "LIMIT"),
            ("_a, (area, _b) = 1, (2, 3)", "area"),
            ("from math import pi as area", "area"),
            ("from builtins import dataclass", "dataclass"),
        ],
    )
    def test_one_name_in_two_included_modules_is_refused(
        self, project: Path, text: str, name: str
    ) -> None:
        """In one notebook, the second hides the first, and the first one's callers break."""
        path = project / "trainer_core/integrations/interfaces.py"
        path.write_text(path.read_text("utf-8") + f"\n\n{text}\n", "utf-8")
        both = "trainer_core/config.py and trainer_core/integrations/interfaces.py both define"
        with pytest.raises(sync.SyncError, match=f"{both} '{name}'"):
            sync.compose(project)

    @pytest.mark.parametrize(
        "text",
        [
            "from dataclasses import dataclass",
            "import functools",
            "__all__ = ['Store']",
            "OTHER = [area for area in ()]",
            "dataclass.note = 1",
        ],
    )
    def test_names_that_mean_the_same_may_be_repeated(self, project: Path, text: str) -> None:
        """Modules import the same things; refusing that would forbid modules."""
        replace(project, "trainer_core/config.py", "LIMIT = 8", "LIMIT = 8\n__all__ = ['A']")
        path = project / "trainer_core/integrations/interfaces.py"
        path.write_text(path.read_text("utf-8") + f"\n\n{text}\n", "utf-8")
        assert "01_walkthrough.ipynb" in sync.compose(project)


class TestAddresses:
    def test_each_notebook_gets_its_own_address(self, built: Path) -> None:
        """A badge that opens another notebook is worse than none."""
        name = "01_walkthrough_hidden.ipynb"
        source = read(built, HIDDEN).cells[0].source
        colab = "https://colab.research.google.com/github/owner/name/blob/main/notebooks"
        assert (
            f"[Open {name} in Colab]({colab}/{name}), from https://github.com/owner" in source
        )
        assert "{{" not in source
        assert 'print("https://github.com/owner/name")' in read(built, HIDDEN).cells[1].source

    @pytest.mark.parametrize(
        "line",
        [
            'repository = "https://github.com/owner/name"',
            'Repository = "https://github.com/owner/name.git"',
            'Repository = "https://github.com/owner/name/"',
        ],
    )
    def test_other_spellings_of_the_address_give_the_same_notebook(
        self, built: Path, line: str
    ) -> None:
        """A fork changes one line, and copies the address the way its host shows it."""
        old = 'Repository = "https://github.com/owner/name"'
        replace(built, "pyproject.toml", old, line)
        assert sync.check(built) == []

    def test_a_fork_changes_one_line(self, built: Path) -> None:
        """Badges of a fork that open the original's notebooks mislead."""
        replace(built, "pyproject.toml", "owner/name", "fork/other")
        sync.build(built)
        for file in (MAIN, BLANK, HIDDEN):
            text = (built / file).read_text("utf-8")
            assert "owner/name" not in text
            assert "github/fork/other/blob" in text

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("Repository", "Homepage", r"\[project.urls\] Repository in pyproject.toml is ''"),
            (
                "https://github.com/owner/name",
                "https://example.org",
                "is 'https://example.org'",
            ),
            ("[project.urls]", "[project.urls", "pyproject.toml is not valid TOML"),
        ],
    )
    def test_an_address_that_cannot_be_used_is_refused(
        self, project: Path, old: str, new: str, message: str
    ) -> None:
        """The badge would point nowhere."""
        replace(project, "pyproject.toml", old, new)
        with pytest.raises(sync.SyncError, match=message):
            sync.compose(project)


class TestSetupCell:
    def test_it_lists_what_the_notebook_needs_at_the_versions_of_the_project(
        self, drilled: Path
    ) -> None:
        """A bound that is written twice is changed once."""
        (cell,) = [c for c in read(drilled, DRILL).cells if "@title Setup" in c.source]
        names: dict[str, Any] = {}
        exec(cell.source, names)
        assert names["needed"] == {
            "torch": "torch>=2.11",
            "rehearsal": "git+https://github.com/owner/name@main",
        }
        assert 'print("https://colab.research.google.com/github/owner/name/blob/main")' in (
            cell.source
        )
        assert cell.metadata["jupyter"] == {"source_hidden": True}

    def test_each_notebook_of_a_release_opens_and_installs_that_release(
        self, drilled: Path
    ) -> None:
        """A newer coach asks for names that the notebook's blank lacks."""
        replace(drilled, "trainer_core/__init__.py", "1.1.dev0", "1.1.0")
        sync.build(drilled)
        for name in ("notebooks/02_rehearse.ipynb", DRILL):
            text = (drilled / name).read_text("utf-8")
            assert "git+https://github.com/owner/name@v1.1.0" in text
            assert "/main" not in text
        assert "/owner/name/blob/v1.1.0/notebooks/drills/003_early.ipynb" in text

    def test_a_package_that_nobody_declared_is_refused(self, drilled: Path) -> None:
        """pip would install whatever has that name."""
        replace(drilled, "notebooks/src/02_rehearse.py", "setup torch", "setup fsr")
        with pytest.raises(sync.SyncError, match=r"setup cell for 'fsr'.*Did you mean 'fsrs'"):
            sync.build(drilled)

    def test_a_package_that_is_imported_under_another_name_is_refused(
        self, drilled: Path
    ) -> None:
        """The placeholder stayed in the notebook, as a comment that does nothing."""
        replace(drilled, "pyproject.toml", '"torch>=2.11"', '"torch>=2.11", "scikit-learn"')
        replace(drilled, "notebooks/src/02_rehearse.py", "setup torch", "setup scikit-learn")
        with pytest.raises(sync.SyncError, match=r"'scikit-learn', and no module can have"):
            sync.build(drilled)

    def test_without_a_version_there_is_nothing_to_install(self, drilled: Path) -> None:
        """The message names the file, which is not the one that has the setup cell."""
        (drilled / "trainer_core/__init__.py").write_text("")
        with pytest.raises(sync.SyncError, match=r"trainer_core/__init__.py has no line such"):
            sync.build(drilled)

    def test_an_edit_in_a_notebook_goes_nowhere(self, drilled: Path) -> None:
        """It is in forty notebooks, and one of them must not differ."""
        edit(drilled, DRILL, "notebooks/src/02_rehearse.py#1", "print", "repr")
        with pytest.raises(sync.SyncError, match=r"lost a text that its source writes as"):
            sync.push(drilled, Path("003_early"))

    def test_a_change_of_the_shared_text_is_drift_in_all_of_them(self, drilled: Path) -> None:
        """Otherwise an old one stays where nobody looks."""
        replace(drilled, "notebooks/src/shared/setup.py", "Setup", "Installs")
        heads = [problem.splitlines()[0] for problem in sync.check(drilled)]
        assert heads[0] == "--- notebooks/02_rehearse.ipynb"
        assert len(heads) == 4


class TestTypingTimes:
    def test_minutes_follow_from_the_bodies_that_are_emptied(self, project: Path) -> None:
        """A number written by hand goes stale with the next line of code."""
        file = "notebooks/src/01_walkthrough.py"
        replace(project, file, "# Second paragraph.", "# {{typing config}}, {{typing}}.")
        sync.build(project)
        typed = """
            if self.batch < 1:
                raise ValueError(f"batch={self.batch}: at least 1")
            return order_of(self.batch)
            return Config(batch=2 * self.batch)
            @functools.wraps(max)
            def multiply(*sides: int) -> int:
                return sides[0] * sides[1]
            return multiply(width, height)
        """
        count = len("".join(typed.split()))
        assert 120 < count <= 240
        text = read(project, MAIN).cells[0].source
        assert text.endswith(f"2 min ({count} characters), 2 minutes.")
        assert sync.check(project) == []

    def test_cells_included_one_by_one_follow_each_other_on_one_clock(
        self, project: Path
    ) -> None:
        """Minutes rounded up cell by cell would add up to more than anybody needs."""
        file = "notebooks/src/01_walkthrough.py"
        both = (
            'include="config" cell="Config" typed="Config"\n\n# %% include="config" cell="area"'
        )
        replace(project, file, 'include="config" typed="Config area"', f'{both} typed="area"')
        times = sync.typing_times(project)
        first, second = times["{{typing config.Config}}"], times["{{typing config.area}}"]
        sizes = [int(text.partition("(")[2].split()[0]) for text in (first, second)]
        assert first == f"minute 0 to {-(-sizes[0] // 120)} ({sizes[0]} characters)"
        end = -(-sum(sizes) // 120)
        assert second == f"minute {-(-sizes[0] // 120)} to {end} ({sizes[1]} characters)"
        assert times["{{typing config}}"] == f"{end} minutes ({sum(sizes)} characters)"
        assert times["{{typing}}"] == "0 minutes"  # that one is of modules included in full

    def test_more_to_type_takes_longer(self, project: Path) -> None:
        """Otherwise the number means nothing."""
        before = sync.typing_times(project)["{{typing config}}"]
        replace(
            project,
            "trainer_core/config.py",
            "return Config(",
            "return " + "-" * 200 + "Config(",
        )
        assert sync.typing_times(project)["{{typing config}}"].startswith("4 min")
        assert before.startswith("2 min")

    def test_an_edit_beside_a_typing_time_is_pushed(self, project: Path) -> None:
        """The number must not end up in the source, where nothing would update it."""
        file = "notebooks/src/01_walkthrough.py"
        replace(
            project, file, "# Second paragraph.", "# Second, {{typing config}}, {{typing}}."
        )
        sync.build(project)
        edit(project, MAIN, f"{file}#1", "Second", "Last")
        sync.push(project, Path(MAIN))
        assert "# Last, {{typing config}}, {{typing}}." in (project / file).read_text("utf-8")

    def test_a_module_without_typed_functions_is_refused(self, project: Path) -> None:
        """The reader would see the braces."""
        file = "notebooks/src/01_walkthrough.py"
        replace(project, file, "# Second paragraph.", "# {{typing confg}}")
        with pytest.raises(sync.SyncError, match=r"typing confg.*Did you mean .*typing config"):
            sync.compose(project)


class TestCommandLine:
    @pytest.mark.ranks
    def test_the_script_finds_the_project_it_is_in(self, project: Path) -> None:
        """People and hooks start it from any folder."""
        (project / "scripts").mkdir()
        script = shutil.copy(SCRIPT, project / "scripts")
        run = run_program(str(script), "build", folder=project / "notebooks")
        assert (run.returncode, run.stderr) == (0, "")
        assert f"wrote {HIDDEN}" in run.stdout
        assert (project / HIDDEN).is_file()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["push", "01_walkthru"], "No source produces 01_walkthru.ipynb. Did you mean"),
            (["push", "notebooks/02_none.ipynb"], "No source produces 02_none.ipynb."),
            (["push", "00_start_here"], "00_start_here.ipynb can't be read as a notebook"),
        ],
    )
    def test_a_wrong_notebook_is_one_message_and_exit_code_2(
        self,
        built: Path,
        capsys: pytest.CaptureFixture[str],
        arguments: list[str],
        message: str,
    ) -> None:
        """A traceback says nothing about what to do."""
        (built / "notebooks/00_start_here.ipynb").write_text("<<<<<<< ours\n", "utf-8")
        assert sync.main(arguments, root=built) == 2
        err = capsys.readouterr().err
        assert message in err
        assert "Traceback" not in err

    @pytest.mark.parametrize(
        ("file", "text", "message"),
        [
            (
                "trainer_core/config.py",
                b"# %%\ndef f(:\n",
                "trainer_core/config.py#0 is not valid",
            ),
            ("trainer_core/config.py", b"\xff\xfe", "config.py can't be read as UTF-8"),
            (
                "notebooks/src/01_walkthrough.py",
                b"# %%\n!ls\n",
                "01_walkthrough.py#0 is not valid",
            ),
            ("pyproject.toml", None, "pyproject.toml can't be read"),
        ],
    )
    def test_a_broken_file_is_named(
        self,
        project: Path,
        capsys: pytest.CaptureFixture[str],
        file: str,
        text: bytes | None,
        message: str,
    ) -> None:
        """Its author needs to know which file to fix."""
        (project / file).unlink()
        if text is not None:
            (project / file).write_bytes(text)
        assert sync.main(["check"], root=project) == 2
        assert message in capsys.readouterr().err

    def test_a_project_without_sources_is_an_error(self, tmp_path: Path) -> None:
        """A check that finds nothing to check would always pass."""
        with pytest.raises(sync.SyncError, match=r"has no \.py file"):
            sync.check(tmp_path)


DRILL_FILES = {
    "notebooks/src/02_rehearse.py": """\
# %% [markdown]
# # Rehearse

# %% collapsed=true tags=["setup"]
# {{setup torch rehearsal}}

# %% tags=["setup"]
from rehearsal import start

# %% drills="cell"

# %%
print("end")
""",
    **{
        f"rehearsal/drills/{name}/{file}": text
        for name, order, kind in (
            ("late", 30, "cell"),
            ("early", 3, "cell"),
            ("hunt", 9, "bug"),
        )
        for file, text in (
            (
                "drill.toml",
                f'title = "The {name} one"\norder = {order}\nminutes = 7.5\nkind = "{kind}"\n',
            ),
            ("blank.py", 'import math\n\nSAME = 1\n\n\ndef typed():\n    """Says."""\n'),
        )
    },
}
DRILL = "notebooks/drills/003_early.ipynb"


@pytest.fixture
def drilled(project: Path) -> Path:
    for name, text in DRILL_FILES.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    sync.build(project)
    return project


CHAPTER = "notebooks/handbook/12_data.ipynb"


@pytest.fixture
def with_a_chapter(project: Path) -> Path:
    for name, text in (
        (
            "notebooks/src/handbook/12_data.py",
            "# %% [markdown]\n# # 12\n# {{badge}}\n#\n# {{map}}\n",
        ),
        ("notebooks/src/shared/map.md", "**Two days.** [Go](01_live.ipynb).\n"),
    ):
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    sync.build(project)
    return project


class TestChapters:
    def test_a_chapter_goes_to_a_folder_of_its_own(self, with_a_chapter: Path) -> None:
        """Its links and its badge count from there."""
        text = read(with_a_chapter, CHAPTER).cells[0].source
        assert "](../../docs/colab-badge.svg)" in text
        assert text.endswith("**Two days.** [Go](01_live.ipynb).")
        assert sync.check(with_a_chapter) == []

    def test_an_edit_in_a_chapter_goes_to_its_source(self, with_a_chapter: Path) -> None:
        """push takes the name alone, and the map stays a placeholder there."""
        edit(
            with_a_chapter, CHAPTER, "notebooks/src/handbook/12_data.py#0", "# 12", "# 12. Data"
        )
        sync.push(with_a_chapter, Path("12_data"))
        source = (with_a_chapter / "notebooks/src/handbook/12_data.py").read_text("utf-8")
        assert "# # 12. Data\n" in source
        assert "{{map}}" in source

    def test_a_chapter_without_a_source_is_named(self, with_a_chapter: Path) -> None:
        (with_a_chapter / "notebooks/src/handbook/12_data.py").unlink()
        problem = "notebooks/handbook/12_data.ipynb has no source in notebooks/src/handbook."
        assert problem in sync.check(with_a_chapter)


class TestDrills:
    def test_each_drill_has_a_notebook_that_starts_with_the_setup(self, drilled: Path) -> None:
        """People open a due drill on its own, so its cells must be all it needs."""
        names = [path.name for path in sorted((drilled / "notebooks/drills").iterdir())]
        assert names == ["003_early.ipynb", "009_hunt.ipynb", "030_late.ipynb"]
        sources = [cell.source for cell in read(drilled, DRILL).cells]
        badge = sync.addresses(drilled, "drills/003_early.ipynb")["{{badge}}"]
        assert sources[1].startswith("#@title Setup\n")
        assert [sources[0], *sources[2:5]] == [
            f"# The early one\n\n{badge}\n\n7.5 minutes. You type into the blank below the "
            "task. No cell has the answer.",
            "from rehearsal import start",
            'start("early")',
            DRILL_FILES["rehearsal/drills/early/blank.py"].rstrip("\n"),
        ]
        assert sources[5] == 'check("early")'

    def test_a_half_typed_drill_still_gets_its_verdict(self, drilled: Path) -> None:
        """The check names the cell that failed; it can't if Run All stops before it."""
        tags = [cell.metadata.get("tags", []) for cell in read(drilled, DRILL).cells]
        assert [place for place, of in enumerate(tags) if "raises-exception" in of] == [4]

    def test_a_bug_drill_says_what_kind_it_is(self, drilled: Path) -> None:
        """Its cell isn't blank, and a reader of it would wait for something to type."""
        first = read(drilled, "notebooks/drills/009_hunt.ipynb").cells[0].source
        assert "The program below the task has a bug" in first

    def test_a_debug_drill_says_that_there_are_several_bugs(self, drilled: Path) -> None:
        """Whoever looks for one bug stops after the first fix."""
        toml = drilled / "rehearsal/drills/hunt/drill.toml"
        toml.write_text(toml.read_text("utf-8").replace('"bug"', '"debug"'), "utf-8")
        sync.build(drilled)
        first = read(drilled, "notebooks/drills/009_hunt.ipynb").cells[0].source
        assert "The program below the task has several bugs" in first

    def test_run_all_opens_neither_hint_nor_solution(self, drilled: Path) -> None:
        """A hint that nobody asked for spoils the drill, and it counts."""
        last = read(drilled, DRILL).cells[-1].source
        assert [line.split("(")[0] for line in last.splitlines()] == [
            "# hint",
            "# diff",
            "# narration",
            "# solution",
        ]

    def test_the_rehearsal_has_the_drills_of_its_kind_in_order(self, drilled: Path) -> None:
        """Blanks of two drills may define the same name, because you type them in turn."""
        cells = read(drilled, "notebooks/02_rehearse.ipynb").cells
        tasks = [cell.source for cell in cells if "on the clock" in cell.source]
        assert tasks == [
            f'brief("{name}")  # on the clock: start("{name}")' for name in ("early", "late")
        ]
        assert len({cell.id for cell in cells}) == len(cells)
        assert cells[-1].source == 'print("end")'

    def test_a_second_build_changes_nothing_and_jupyter_would_write_the_same(
        self, drilled: Path
    ) -> None:
        """Bytes that vary make every commit touch every notebook."""
        assert sync.build(drilled) == []
        assert sync.check(drilled) == []
        notebook = nbformat.read(drilled / DRILL, 4)
        nbformat.validate(notebook)
        assert nbformat.writes(notebook) + "\n" == (drilled / DRILL).read_text("utf-8")

    def test_a_changed_blank_is_drift(self, drilled: Path) -> None:
        """An old blank asks for names that the check no longer calls."""
        replace(drilled, "rehearsal/drills/early/blank.py", "SAME = 1", "SAME = 2")
        problems = sync.check(drilled)
        assert [problem.splitlines()[0] for problem in problems] == [
            "--- notebooks/02_rehearse.ipynb",
            f"--- {DRILL}",
        ]

    def test_a_notebook_of_a_drill_that_is_gone_is_named(self, drilled: Path) -> None:
        """It would call a check that no longer exists."""
        shutil.rmtree(drilled / "rehearsal/drills/hunt")
        (problem,) = sync.check(drilled)
        assert "drills/009_hunt.ipynb has no drill" in problem

    def test_what_was_typed_into_a_blank_goes_nowhere(self, drilled: Path) -> None:
        """Otherwise it becomes the next person's blank."""
        origin = "rehearsal/drills/early/blank.py#0:drill"
        edit(drilled, DRILL, origin, "SAME = 1", "SAME = 3")
        before = contents(drilled)
        with pytest.raises(sync.SyncError, match="push never overwrites a drill"):
            sync.push(drilled, Path("003_early"))
        replace(drilled, "rehearsal/drills/early/blank.py", "import math", "import cmath")
        with pytest.raises(
            sync.SyncError, match="was edited in the notebook, and a build would lose"
        ):
            sync.build(drilled)
        assert contents(drilled)[DRILL] == before[DRILL]

    def test_an_edit_of_the_setup_goes_to_its_one_source(self, drilled: Path) -> None:
        """It is written once and shown in every drill."""
        edit(drilled, DRILL, "notebooks/src/02_rehearse.py#2", "start", "start, stop")
        assert "+from rehearsal import start, stop" in sync.push(
            drilled, Path("003_early.ipynb")
        )

    def test_an_unknown_kind_is_refused_with_the_nearest(self, drilled: Path) -> None:
        """A misspelled kind would give a notebook without drills."""
        replace(drilled, "notebooks/src/02_rehearse.py", 'drills="cell"', 'drills="cells"')
        with pytest.raises(
            sync.SyncError, match=r"drills of kind 'cells'.*Did you mean 'cell'"
        ):
            sync.build(drilled)

    def test_a_drill_without_a_title_is_named(self, drilled: Path) -> None:
        """A KeyError doesn't name the file that lacks it."""
        replace(drilled, "rehearsal/drills/early/drill.toml", "title", "titel")
        with pytest.raises(sync.SyncError, match=r"drills/early/drill.toml.*title"):
            sync.build(drilled)
