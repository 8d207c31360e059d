"""docs/extending.md is followed literally, and the examples in docstrings are executed.

UPDATE_EXTENDING=1 writes the table of events into the document instead.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import os
import random
import re
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rehearsal.engine.rank import RankContext
from rehearsal.engine.ranks import run_ranks
from rehearsal.engine.reports import Fault, RankReport
from rehearsal.faults import breaks, jobs, matrix
from rehearsal.grading import events, new_drill
from rehearsal.grading.drill import Scenario, former_ids
from rehearsal.grading.verdict import Finding

from trainer_core.metrics import Sink

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "extending.md"
# What a clone has, without what git ignores.
COPIED = (
    "docs notebooks rehearsal scripts tests trainer_core pyproject.toml constraints.txt "
    "README.md"
)


def recipes() -> dict[str, list[tuple[str, str]]]:
    """Heading of each recipe: its code blocks, as language and text."""
    _, *parts = re.split(r"^## (.*)\n", DOCUMENT.read_text("utf-8"), flags=re.MULTILINE)
    block = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return {
        head: block.findall(text) for head, text in zip(parts[::2], parts[1::2], strict=True)
    }


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the project that nothing else uses, with this project's .venv."""
    for name in COPIED.split():
        source = ROOT / name
        if source.is_dir():
            skip = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
            shutil.copytree(source, tmp_path / name, ignore=skip)
        else:
            shutil.copy2(source, tmp_path / name)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    return tmp_path


def edit(project: Path, diff: str) -> None:
    """Apply an edit of the document: its context must occur exactly once in the file."""
    head, *lines = diff.splitlines(keepends=True)
    path = project / head.removeprefix("--- ").strip()
    old = "".join(line[1:] for line in lines if not line.startswith("+"))
    new = "".join(line[1:] for line in lines if not line.startswith("-"))
    text = path.read_text("utf-8")
    assert text.count(old) == 1, f"{path.name} has these lines {text.count(old)} times:\n{old}"
    path.write_text(text.replace(old, new), "utf-8")


def follow(project: Path, language: str, text: str) -> str:
    """Do what one block says; returns what its commands printed."""
    if language == "diff":
        edit(project, text)
    elif language == "python":
        path = text.partition("\n")[0].removeprefix("# ")
        assert not (project / path).exists(), path
        (project / path).write_text(text, "utf-8")
    else:
        assert language == "bash", language
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=project,
            env={**os.environ, "PYTHONPATH": str(project), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout
    return ""


@pytest.mark.ranks
@pytest.mark.skipif(
    not (ROOT / ".venv").exists(),
    reason="make setup has not run here, so no recipe was followed",
)
class TestRecipes:
    @pytest.mark.parametrize(
        ("heading", "printed"),
        [
            ("A config field", ['"label_smoothing": 0.1', "passed"]),
            ("A metric", ['"largest_grad_norm":']),
            (
                "A drill",
                [
                    "average_over_ranks: 29 of 29 judgments correct",
                    "15 of 15 mutants refused (100.0%); 0 equivalent, 2 outside the brief",
                    "What must hold",
                ],
            ),
            ("A fault", ["moved run folder", "1 tries, 0 not survived"]),
            ("A card", ["why_a_queue", "[x] 1. The queue has a bound", "[!] 2. The age of"]),
        ],
    )
    def test_a_recipe_works_as_it_is_printed(
        self, copy: Path, heading: str, printed: list[str]
    ) -> None:
        """A recipe that has rotted costs a contributor the first evening."""
        blocks = recipes()[heading]
        assert blocks
        said = "".join(follow(copy, language, text) for language, text in blocks)
        for text in printed:
            assert text in said, said
        lint = [copy / ".venv/bin/ruff", "check", "--quiet", "rehearsal", "trainer_core"]
        assert subprocess.run(lint, cwd=copy).returncode == 0

    def test_every_recipe_is_followed(self) -> None:
        """A recipe that no test follows would rot unnoticed."""
        marks = self.test_a_recipe_works_as_it_is_printed.pytestmark  # type: ignore[attr-defined]
        (values,) = [mark.args[1] for mark in marks if mark.name == "parametrize"]
        assert list(recipes()) == [heading for heading, _ in values]


# ---------------------------------------------------------------- the table of events


def recorded_in(path: Path) -> Iterator[tuple[str, set[str]]]:
    """Kind and fields of each event that a module records."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "record":
            kind = node.args[0]
            assert isinstance(kind, ast.Constant), f"{path.name}:{node.lineno}: name the kind"
            yield str(kind.value), {keyword.arg or "" for keyword in node.keywords}


class TestEvents:
    def test_the_table_has_what_engine_grading_and_kit_record(self) -> None:
        """Undocumented kinds get recorded twice, and graders wait for kinds that are gone."""
        found: dict[str, set[str]] = {}
        for room in ("engine", "grading", "kit"):
            for path in sorted((ROOT / "rehearsal" / room).rglob("*.py")):
                for kind, fields in recorded_in(path):
                    found.setdefault(kind, set()).update(fields)
        assert found == {kind: set(event.fields) for kind, event in events.EVENTS.items()}

    def test_the_document_shows_the_table(self) -> None:
        """The author of a grader reads it there."""
        text = DOCUMENT.read_text("utf-8")
        start, end = (
            "<!-- events: written by tests/test_extending.py -->\n",
            "<!-- end of events",
        )
        before, _, rest = text.partition(start)
        shown, _, after = rest.partition(end)
        if os.environ.get("UPDATE_EXTENDING") == "1":
            DOCUMENT.write_text(f"{before}{start}{events.table()}\n{end}{after}", "utf-8")
            return
        assert shown == events.table() + "\n", "run with UPDATE_EXTENDING=1"


# ---------------------------------------------------------------- diffs


def test_a_diff_shows_the_sources_of_notebooks_not_the_notebooks() -> None:
    """One changed sentence is 300 changed lines of JSON, and nobody reviews the sentence."""
    paths = sorted((ROOT / "notebooks").rglob("*.*"))
    derived = [path for path in paths if path.suffix == ".ipynb"]
    sources = [path for path in paths if path.suffix == ".py"]
    assert derived
    assert sources
    rules = [
        line.split()
        for line in (ROOT / ".gitattributes").read_text("utf-8").splitlines()
        if not line.startswith("#")
    ]
    ((pattern, *attributes),) = rules
    assert attributes == ["linguist-generated=true", "-diff"]
    matched = {*ROOT.glob(pattern)}
    assert set(derived) <= matched
    assert not set(sources) & matched


# ---------------------------------------------------------------- python -m rehearsal new


class TestNew:
    def test_it_writes_a_folder_and_fills_in_the_name(self, tmp_path: Path) -> None:
        """A placeholder that is left in would show up in the brief."""
        folder = new_drill.create("shard_the_sampler", tmp_path)
        assert folder == tmp_path / "shard_the_sampler"
        files = {path.name: path.read_text() for path in folder.iterdir()}
        assert set(files) == {path.name for path in new_drill.TEMPLATE.glob("*.*")}
        assert 'title = "Shard the sampler"' in files["drill.toml"]
        assert "    collective name elements bytes group\n" in files["grader.py"]
        assert not [name for name, text in files.items() if re.search(r"@[A-Z]+@", text)]

    def test_it_never_touches_an_existing_folder(self, tmp_path: Path) -> None:
        """An evening's work would be gone."""
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "grader.py").write_text("my own")
        with pytest.raises(new_drill.BadName, match=r"'mine' is taken: .* was not changed"):
            new_drill.create("mine", tmp_path)
        assert (tmp_path / "mine" / "grader.py").read_text() == "my own"
        assert [path.name for path in (tmp_path / "mine").iterdir()] == ["grader.py"]

    def test_a_former_id_is_taken_as_well(self, tmp_path: Path) -> None:
        """The alias would no longer lead to today's drill."""
        former, today = next(iter(former_ids().items()))
        (tmp_path / today).mkdir()
        with pytest.raises(new_drill.BadName, match=f"{former!r} is taken: .*{today} exists"):
            new_drill.create(former, tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [today]

    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("Shard", "lowercase letters"),
            ("shard-it", "lowercase letters"),
            ("../shard", "lowercase letters"),
            ("sh\u00e4rd", "lowercase letters"),
            ("", "lowercase letters"),
            ("class", "Python keyword"),
            ("_shard", "underscore"),
        ],
    )
    def test_a_bad_name_is_refused_and_nothing_is_written(
        self, tmp_path: Path, name: str, why: str
    ) -> None:
        """A drill's name becomes a folder, an import and something that people type."""
        with pytest.raises(new_drill.BadName, match=f"{why}.*such as shard_the_sampler"):
            new_drill.create(name, tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_outside_a_clone_it_says_so(self, tmp_path: Path) -> None:
        """An installed package is the wrong place for somebody's work."""
        with pytest.raises(new_drill.BadName, match="in a clone"):
            new_drill.create("shard_it", tmp_path / "missing")


# ---------------------------------------------------------------- examples in docstrings


def example_in(what: object) -> str:
    """The longest piece of indented code in a docstring, before its sections."""
    text = re.split(r"\n(?:Args|Attributes):\n", inspect.getdoc(what) or "")[0]
    blocks = re.split(r"\n(?=\S)", text)
    code = ["\n".join(b.splitlines()[1:]) for b in blocks]
    return textwrap.dedent(max(code, key=len)).strip() + "\n"


def unknown_names(code: str, known: dict[str, Any]) -> set[str]:
    """Names that a piece of code reads, and that nothing defines."""
    tree = ast.parse(code)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.ExceptHandler):
            bound.add(node.name or "")
    read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    return read - bound - set(known) - set(vars(builtins))


class TestExamples:
    def test_the_scenario_judges(self) -> None:
        """The author of a grader copies it first."""
        names: dict[str, Any] = {"Scenario": Scenario, "Finding": Finding, "random": random}
        exec(example_in(Scenario), names)
        (scenario,) = names["scenarios"](0)
        assert {names["scenarios"](seed)[0].world_size for seed in range(20)} == {2, 3}
        right, wrong = (RankReport(rank=0, exitcode=0, answer=n) for n in (1.0, 3.0))
        assert list(scenario.judge([right], {})) == []
        (finding,) = scenario.judge([wrong], {})
        assert finding.found == "rank 0 returned 3.0, not 1.0"

    def test_the_examples_are_faults(self) -> None:
        """Somebody copies them into a scenario."""
        for line in example_in(Fault).splitlines():
            assert isinstance(eval(line, {"Fault": Fault}), Fault)

    def test_the_sink_takes_events(self) -> None:
        """The author of an exporter copies it first."""
        posted: list[str] = []
        given: dict[str, Any] = {}
        names = {"post": posted.append, "cfg": None, "run": lambda _, **kw: given.update(kw)}
        exec(example_in(Sink), names)
        (sink,) = given["sinks"]
        sink.emit({"event": "train_progress", "step": 6})
        sink.emit({"event": "hang", "step": 7, "reason": "rank 1 is stuck"})
        sink.close()
        assert posted == ["step 7: rank 1 is stuck"]

    def test_the_fault_group_uses_names_that_exist(self) -> None:
        """Running it takes seconds, and it would rot by a rename."""
        code = "from __future__ import annotations\n" + example_in(matrix)
        known = {**vars(breaks), **vars(jobs), **vars(matrix), "Iterator": Iterator}
        assert "yield leave" in code
        assert unknown_names(code, known) == set()

    @pytest.mark.ranks
    def test_run_ranks_adds_up(self) -> None:
        """The engine's own example, on real ranks."""
        import sys

        import cloudpickle
        import torch

        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        names: dict[str, Any] = {"run_ranks": run_ranks, "torch": torch}
        *code, last = example_in(run_ranks).strip().splitlines()
        exec("\n".join(code), names)
        call, _, expected = last.partition("#")
        assert eval(call, names) == eval(expected)

    def test_a_body_gets_what_its_example_uses(self) -> None:
        """If a context loses an attribute, every body that copied the example breaks."""
        code = example_in(RankContext)
        used = set(re.findall(r"context\.(\w+)", code))
        has = set(vars(RankContext)) | {"rank", "world_size", "folder"}
        assert used
        assert used <= has
