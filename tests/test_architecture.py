"""Who may import whom, how much there is to read, and what a fresh machine needs."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from code_size import lines_of_code
from fresh_interpreter import modules_loaded_by
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "trainer_core"

# The eight cells in reading order, and which of the others each may import.
CELLS = ["config", "data", "model", "distributed", "train", "checkpoint", "metrics", "launch"]
MAY_IMPORT: dict[str, set[str]] = {
    "config": set(),
    "data": {"config"},
    "model": {"config"},
    "distributed": {"config"},
    "metrics": {"config"},
    "checkpoint": {"config", "distributed"},
    "train": {"config", "data", "model", "distributed", "metrics", "checkpoint"},
    "launch": {"config", "data", "model", "distributed", "metrics", "checkpoint", "train"},
}
# These know no process group, so that they can be tested without a job.
WITHOUT_GROUP = ["config", "data", "model", "metrics"]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def supports() -> list[str]:
    """What supports the cells: every other module that lies directly in the package.

    Except live.py, the trainer you type: it has cells of its own and imports none of these.
    """
    names = {path.stem for path in CORE.glob("*.py")} - {"__init__", "live", *CELLS}
    return sorted(names)


def cells_of(support: str) -> set[str]:
    """The cells that a module says it supports, in the first lines of its docstring."""
    text = ast.get_docstring(tree_of(CORE / f"{support}.py")) or ""
    sentence = text.partition("Supports")[2].partition(".")[0]
    return {CELLS[int(number) - 1] for number in re.findall(r"cell (\d)", sentence)}


def imports_of(path: Path, *, only_on_import: bool = False) -> set[str]:
    """Dotted names that a file imports; ``from a import b`` gives ``a.b`` as well as ``a``."""
    found: set[str] = set()
    nodes: list[ast.AST] = [tree_of(path)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            beside_a_grader = path.parent.parent == ROOT / "rehearsal" / "drills"
            assert node.level == 0 or beside_a_grader, f"{path.name}: write imports in full"
            found |= {f"{node.module}", *(f"{node.module}.{a.name}" for a in node.names)}
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if not (only_on_import and is_function):
            nodes += ast.iter_child_nodes(node)
    return found


def core_imports(module: str) -> set[str]:
    """Modules of the package that a module of the package imports."""
    names = imports_of(CORE / f"{module}.py")
    return {n.split(".")[1] for n in names if n.startswith("trainer_core.")}


def reached_from(module: str) -> set[str]:
    """All modules of the package that come with an import of ``module``, and itself."""
    reached, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += core_imports(name)
    return reached


class TestImportDirection:
    def test_the_eight_cells_are_there(self) -> None:
        """The handbook's eight cells are the reader's map."""
        for number, cell in enumerate(CELLS, start=1):
            docstring = ast.get_docstring(tree_of(CORE / f"{cell}.py")) or ""
            assert f"\nCell {number}. The question it answers: " in docstring, cell

    @pytest.mark.parametrize("support", supports())
    def test_a_support_module_says_which_cell_it_supports(self, support: str) -> None:
        """Nobody reads a module that has no place in the reading order."""
        assert cells_of(support), support
        assert any(support in core_imports(other) for other in [*CELLS, *supports()]) or (
            support == "local_launcher"  # called from notebooks
        )

    @pytest.mark.parametrize("cell", CELLS)
    def test_a_cell_imports_only_what_comes_before_it(self, cell: str) -> None:
        """A cell that needs a later one cannot be typed, read or tested in order."""
        for name in core_imports(cell):
            if name in CELLS:
                assert name in MAY_IMPORT[cell], f"{cell} imports {name}"
            else:
                assert cells_of(name) & {cell, *MAY_IMPORT[cell]}, f"{cell} imports {name}"

    @pytest.mark.parametrize("support", supports())
    def test_a_support_module_imports_only_what_its_cell_may(self, support: str) -> None:
        """Otherwise a cell depends, through it, on something it may not import itself."""
        allowed = cells_of(support).union(*(MAY_IMPORT[cell] for cell in cells_of(support)))
        for name in core_imports(support):
            if name in CELLS:
                # Not its own cell: that would be a cycle.
                assert name in allowed - cells_of(support), f"{support} imports {name}"
            else:
                # One that imports nothing of the package knows nothing of the job.
                is_leaf = not core_imports(name)
                assert is_leaf or cells_of(name) & allowed, f"{support} imports {name}"

    def test_the_live_trainer_stands_alone(self) -> None:
        """You type it into an empty file, so it can't import what isn't there."""
        assert core_imports("live") == set()
        assert not any("live" in core_imports(other) for other in [*CELLS, *supports()])

    def test_there_is_no_cycle(self) -> None:
        """A cycle works until somebody imports the other module first."""
        for module in [*CELLS, *supports()]:
            for name in core_imports(module):
                assert module not in reached_from(name), (module, name)

    @pytest.mark.parametrize("cell", WITHOUT_GROUP)
    def test_data_model_and_metrics_know_no_process_group(self, cell: str) -> None:
        """They take rank and world size as integers, so they can be tested without a job."""
        for module in reached_from(cell):
            found = imports_of(CORE / f"{module}.py")
            group = {
                name for name in found if re.match(r"torch\.(distributed|nn\.parallel)", name)
            }
            assert not group, f"{cell} reaches {module}, which imports {group}"

    def test_config_needs_nothing_but_the_standard_library(self) -> None:
        """--help and the digest must not cost two seconds of importing torch."""
        for module in reached_from("config"):
            tops = {name.partition(".")[0] for name in imports_of(CORE / f"{module}.py")}
            assert tops - {"trainer_core", "__future__"} <= set(sys.stdlib_module_names), module

    @pytest.mark.parametrize(
        "path", sorted(CORE.rglob("*.py")), ids=lambda path: str(path.relative_to(CORE))
    )
    def test_importing_a_module_needs_torch_and_numpy_only(self, path: Path) -> None:
        """An extra that every import needs is no longer an extra."""
        tops = {name.partition(".")[0] for name in imports_of(path, only_on_import=True)}
        allowed = {*sys.stdlib_module_names, "torch", "numpy", "trainer_core"}
        assert tops <= allowed

    def test_the_trainer_imports_nothing_of_the_coach(self) -> None:
        """The trainer is what you take to an interview; the coach stays at home."""
        for path in CORE.rglob("*.py"):
            tops = {name.partition(".")[0] for name in imports_of(path)}
            assert not tops & {"rehearsal", "scripts", "notebooks", "tests"}, path

    @pytest.mark.parametrize("package", ["rehearsal", "scripts"])
    def test_others_use_its_public_names_only(self, package: str) -> None:
        """A private name may change with every commit."""
        for path in (ROOT / package).rglob("*.py"):
            if "transcripts" in path.parts:  # what recorded candidates typed; it may not parse
                continue
            names = {n for n in imports_of(path) if n.startswith("trainer_core.")}
            assert not [n for n in names if n.rpartition(".")[2].startswith("_")], path

    @pytest.mark.ranks
    def test_launch_in_a_fresh_interpreter_loads_torch_and_numpy_only(self) -> None:
        """A machine with torch and numpy and nothing else must be able to train."""
        # What torch itself loads is torch's business.
        torch = "import numpy, torch, torch.distributed, torch.nn.parallel, torch.utils.data"
        loaded = modules_loaded_by("import trainer_core.launch", after=torch)
        assert {f"trainer_core.{cell}" for cell in CELLS} <= loaded
        tops = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
        assert tops <= {"trainer_core", "torch", "numpy"}


def top_level_names(path: Path) -> Iterator[str]:
    """What a module defines at its top: functions, classes and constants."""
    for node in tree_of(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (n for target in targets for n in ast.walk(target))
            yield from (n.id for n in names if isinstance(n, ast.Name))


class TestNames:
    def test_no_two_modules_define_the_same_name(self) -> None:
        """They share one notebook, where the second definition would hide the first."""
        owners: dict[str, Path] = {}
        for path in sorted(set(CORE.rglob("*.py")) - {CORE / "live.py"}):
            for name in set(top_level_names(path)):
                assert name not in owners, f"{name}: in {owners[name]} and in {path}"
                owners[name] = path

    def test_the_names_of_the_handbook_are_there(self) -> None:
        """A reader who comes from the handbook looks for them."""
        wanted = [
            "TrainConfig",
            "ToyClassificationDataset",
            "ResumeAwareDistributedSampler",
            "TinyNet",
            "setup_seed",
            "maybe_init_dist",
            "cleanup_dist",
            "unwrap",
            "build_dataloader",
            "train_step",
            "phase",
            "summarize_timers",
            "log_rank_event",
            "build_checkpoint",
            "save_checkpoint",
            "restore_if_present",
            "latest_checkpoint_path",
            "run",
        ]
        defined = {name for path in CORE.glob("*.py") for name in top_level_names(path)}
        assert sorted(set(wanted) - defined) == []


class TestSize:
    def test_lines_are_counted_as_a_reader_counts(self, tmp_path: Path) -> None:
        """With a wrong count, the limit limits something else."""
        path = tmp_path / "x.py"
        path.write_text(
            '"""Two lines\nof prose."""\n\n# A comment.\n\n\ndef f(\n    x: int,\n) -> str:\n'
            '    """Prose."""\n    text = """code\n\nx"""\n    return text  # said why\n'
            "\n\ndef g() -> str: ...\n"
        )
        assert lines_of_code(path) == 3 + 3 + 1 + 1

    @pytest.mark.parametrize(
        "path", sorted(CORE.rglob("*.py")), ids=lambda path: str(path.relative_to(CORE))
    )
    def test_no_module_is_too_long_to_read_in_one_sitting(self, path: Path) -> None:
        """Nobody can defend in an interview what nobody reads to the end.

        The guide is 60 to 180 lines, text included. This ceiling is far above it on purpose: it
        must not decide whether a setting may get one more line.
        """
        assert len(path.read_text("utf-8").splitlines()) <= 300


def tracked_python() -> list[Path]:
    git = ["git", "-C", str(ROOT), "ls-files", "-z", "*.py"]
    try:
        run = subprocess.run(git, capture_output=True, text=True, check=True)
        names = run.stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):  # an archive without git
        folders = ("trainer_core", "rehearsal", "scripts", "tests", "notebooks")
        names = [str(p) for folder in folders for p in (ROOT / folder).rglob("*.py")]
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


class TestTree:
    def test_nothing_is_left_to_do(self) -> None:
        """Others read a note to yourself as a promise."""
        marks = re.compile(r"\b(TO" r"DO|FIX" r"ME)\b")
        paths = tracked_python()
        assert ROOT / "trainer_core" / "launch.py" in paths
        found = [
            f"{path.relative_to(ROOT)}:{number}"
            for path in paths
            for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
            if marks.search(line)
        ]
        assert found == []


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]  # type: ignore[no-any-return]


def pins() -> dict[str, str]:
    """Name and version of each line of constraints.txt, all of them exact."""
    found = {}
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            requirement = Requirement(line)
            (specifier,) = requirement.specifier
            assert specifier.operator == "==", line
            assert "*" not in specifier.version, line
            found[canonicalize_name(requirement.name)] = specifier.version
    return found


class TestSetUp:
    def test_the_package_depends_on_torch_and_numpy_only(self, project: dict[str, Any]) -> None:
        """Colab has torch 2.11; a closer bound makes it download another 800 MB."""
        needs = {r.name: r.specifier for r in map(Requirement, project["dependencies"])}
        assert set(needs) == {"torch", "numpy"}
        assert needs["torch"] == SpecifierSet(">=2.11")
        assert "3.11" in SpecifierSet(project["requires-python"])
        assert "3.10" not in SpecifierSet(project["requires-python"])

    def test_every_direct_dependency_is_pinned_within_its_bounds(
        self, project: dict[str, Any]
    ) -> None:
        """An unpinned package has a different version tomorrow, on a machine nobody tests."""
        pinned = pins()
        assert pinned["torch"] == "2.13.0"
        extras = project["optional-dependencies"]
        assert {"notebooks", "dev"} <= set(extras)
        for line in [*project["dependencies"], *chain(*extras.values())]:
            requirement = Requirement(line)
            version = pinned.get(canonicalize_name(requirement.name))
            assert version, f"{line} is not pinned"
            assert version in requirement.specifier, f"{line} is pinned to {version}"

    def test_environment_yml_installs_what_make_setup_installs(
        self, project: dict[str, Any]
    ) -> None:
        """Nobody here uses it daily, so it would rot unnoticed."""
        environment = yaml.safe_load((ROOT / "environment.yml").read_text("utf-8"))
        assert set(environment) == {"name", "channels", "dependencies"}
        assert environment["name"] == project["name"]
        assert environment["channels"] == ["conda-forge"]
        python, pip, from_pip = environment["dependencies"]
        assert Requirement(python).name == "python"
        assert "3.10" not in Requirement(python).specifier
        for version in ("3.11", "3.12", "3.13", "3.14"):
            assert version in Requirement(python).specifier
        assert pip == "pip"
        constraints, editable = from_pip["pip"]
        assert constraints == "-c constraints.txt"
        flag, _, target = editable.partition(" ")
        requirement = Requirement(f"x{target.removeprefix('.')}")
        assert (flag, target[0]) == ("-e", ".")
        assert requirement.extras <= set(project["optional-dependencies"])
        make = (ROOT / "Makefile").read_text("utf-8")
        assert f"pip install --quiet -c constraints.txt -e '{target}'" in make

    def test_ci_runs_what_a_contributor_runs(self) -> None:
        """Two lists of checks drift apart."""
        script = ROOT / ".ci" / "run"
        lines = script.read_text("utf-8").splitlines()
        assert lines[0].startswith("#!")
        assert os.access(script, os.X_OK)
        commands = [
            line for line in lines if line and not line.startswith(("#", "set ", "cd "))
        ]
        made = [f"make {target}" for target in ("test", "browser", "book", "book-check")]
        assert commands == ["bash .ci/browser", *made]
        make = (ROOT / "Makefile").read_text("utf-8")
        texts = make.partition("\ntexts: setup\n")[2].partition("\n\n")[0].split("\n\t$(BIN)/")
        assert texts[1:] == ["ruff format --check .", "python scripts/sync_notebooks.py check"]
        assert texts[0] == "\t$(BIN)/ruff check ."
        for target, parts in (("check", "types unmarked"), ("test", "types pytest")):
            recipe = make.partition(f"\n{target}: texts\n")[2].partition("\n\n")[0]
            assert recipe.endswith(f"\t$(MAKE) --no-print-directory -j2 {parts}"), target
        assert '$(BIN)/pytest -m "not ranks" tests' in make
        assert "set -euo pipefail" in lines
        workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
        steps = [step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step]
        sample = 'make answers ARGS="--sample 100"'
        assert steps == ["bash .ci/run", "make faults ARGS=--quick", "make selftest", sample]
        contributing = (ROOT / ".github/CONTRIBUTING.md").read_text("utf-8")
        for command in ("make check", "make test", *steps[1:]):
            assert f"`{command}`" in contributing
