"""The notebooks on Colab: a kernel with torch, without this project, and with google.colab.

pip is the real one, and so is git. Only the address is played: git takes the repository's for a
copy of this checkout, and pip finds fsrs in a folder.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from email.message import Message
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from rehearsal.grading.drill import drill_ids, load
from rehearsal.session import addresses, next_step
from scripts import sync_notebooks as sync

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
OURS = ("rehearsal", "trainer_core", "distributed_trainer_rehearsal", "__editable__")
DRILL = load("lift_to_distributed")
DRILLS = [f"drills/{path.name}" for path in sorted((NOTEBOOKS / "drills").glob("*.ipynb"))]
LIVE = ["01_live_blank.ipynb", "01_live_hidden.ipynb"]
COACHED = ["00_start_here.ipynb", "02_rehearse.ipynb", *LIVE, *DRILLS]
ALONE = ["01_live.ipynb", "01_walkthrough.ipynb"]  # they never need the project
TITLE = "#@title Setup: "


def cells(name: str) -> list[dict[str, Any]]:
    """A notebook's cells, each with its text in one string."""
    found: list[dict[str, Any]] = json.loads((NOTEBOOKS / name).read_text("utf-8"))["cells"]
    return [{**cell, "source": "".join(cell["source"])} for cell in found]


def setups(name: str) -> list[str]:
    """The texts of a notebook's setup cells."""
    return [c["source"] for c in cells(name) if c["source"].startswith(TITLE)]


def needed(text: str) -> dict[str, str]:
    """What a setup cell looks for, and what pip would install."""
    return dict(re.findall(r'^    "(\w+)": "(.+)",$', text, re.MULTILINE))


class TestWhatEachNotebookHas:
    @pytest.mark.parametrize("name", [*COACHED, *ALONE])
    def test_a_badge_opens_this_notebook(self, name: str) -> None:
        """A badge that opens another one is worse than none."""
        text = cells(name)[0]["source"]
        assert sync.addresses(ROOT, name)["{{badge}}"] in text
        found = re.search(r"\[!\[Open in Colab\]\((\S+)\)\]\((\S+)\)", text)
        assert found is not None
        picture, address = found.groups()
        assert address.endswith(f"/notebooks/{name}")
        # Its own: from another server, the picture would tell it who opens which notebook.
        assert ((NOTEBOOKS / name).parent / picture).is_file()

    @pytest.mark.parametrize("name", [*COACHED, *ALONE])
    def test_a_collapsed_setup_cell_comes_before_the_first_import(self, name: str) -> None:
        """Open, it would be the first thing that everybody reads, and few of them on Colab."""
        code = [cell for cell in cells(name) if cell["cell_type"] == "code"]
        (place,) = [i for i, c in enumerate(code) if "rehearsal" in needed(c["source"])] or [0]
        for i, cell in enumerate(code):
            assert i > place or not re.search(
                r"^\s*(import|from) (rehearsal|trainer_core)", cell["source"], re.MULTILINE
            )
            if cell["source"].startswith(TITLE):
                assert cell["metadata"]["jupyter"] == {"source_hidden": True}
                assert cell["metadata"]["cellView"] == "form"
        assert len(setups(name)) == (2 if name in LIVE else 1)

    def test_they_all_have_the_same_one(self) -> None:
        """Fixed in one notebook and not in the others, it fails where nobody looks."""
        texts = {name: setups(name) for name in [*COACHED, *ALONE]}
        bodies = {text.partition("\n}\n")[2] for found in texts.values() for text in found}
        assert len(bodies) == 1
        for name, found in texts.items():
            looks_for = {need for text in found for need in needed(text)}
            assert {"torch", "numpy", "matplotlib", "cloudpickle"} <= looks_for
            assert ("rehearsal" in looks_for) == (name in COACHED)

    @pytest.mark.parametrize(
        "line",
        [
            "Repository, https://github.com/me/x.git",
            "Repository, https://github.com/me/x/",
            "repository, https://github.com/me/x",
        ],
    )
    def test_a_fork_may_spell_its_address_as_its_badges_may(
        self, monkeypatch: pytest.MonkeyPatch, line: str
    ) -> None:
        """The badges worked, and the coach linked to a repository called x.git."""
        installed = Message()
        installed["Version"], installed["Project-URL"] = "1.2.0", line
        monkeypatch.setattr(addresses, "metadata", lambda name: installed)
        link = addresses.online(f"notebooks/{DRILLS[0]}")
        assert link is not None
        assert link.startswith(f"{addresses.COLAB}/me/x/blob/v1.2.0/notebooks/drills/")

    def test_a_coach_that_was_never_installed_links_to_nothing(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """It runs from a clone. An exception would hide the verdict on a stored attempt."""
        monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
        monkeypatch.setattr(addresses, "PROJECT", "a-project-that-nobody-has-installed")
        assert next_step.link_to(DRILL, tmp_path) is None

    def test_the_project_is_installed_as_the_badge_opens_it(self) -> None:
        """A coach of another version asks for names that the notebook's blank lacks."""
        known = sync.addresses(ROOT, "02_rehearse.ipynb")
        (text,) = setups("02_rehearse.ipynb")
        source = needed(text)["rehearsal"]
        assert source == f"git+{known['{{repository}}']}@{known['{{ref}}']}"
        assert f"/blob/{known['{{ref}}']}/notebooks/" in known["{{colab}}"]

    @pytest.mark.parametrize(
        ("version", "ref"),
        [("1.2.0", "v1.2.0"), ("1.3.0.dev0", "main"), ("2.0.0rc1", "v2.0.0rc1")],
    )
    def test_a_release_is_its_tag_and_what_comes_after_it_is_main(
        self, version: str, ref: str
    ) -> None:
        """A notebook of a release, kept in somebody's Drive, must not get next year's coach."""
        assert addresses.ref_of(version) == ref
        address = addresses.colab_address("https://github.com/a/b", version, "x.ipynb")
        assert (
            address
            == f"https://colab.research.google.com/github/a/b/blob/{ref}/notebooks/x.ipynb"
        )


class TestTheSetupCell:
    """Run in this process, with pip replaced."""

    @pytest.fixture
    def commands(self, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
        """The commands that it runs; all of them succeed."""
        found: list[Sequence[str]] = []

        def run(command: Sequence[str]) -> SimpleNamespace:
            found.append(command)
            return SimpleNamespace(returncode=0)

        monkeypatch.setattr(subprocess, "run", run)
        return found

    def run(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *missing: str,
        is_colab: bool,
        name: str = DRILLS[0],
    ) -> None:
        """Run a notebook's setup cell where these modules are missing."""
        find = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if name in missing else find(name)
        )
        if is_colab:
            monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
        for text in setups(name):
            exec(text, {})

    @pytest.mark.parametrize("is_colab", [True, False])
    def test_with_everything_there_it_does_and_says_nothing(
        self,
        monkeypatch: pytest.MonkeyPatch,
        commands: list[Sequence[str]],
        capsys: pytest.CaptureFixture[str],
        is_colab: bool,
    ) -> None:
        """In a checkout, and when the cell is run again."""
        self.run(monkeypatch, is_colab=is_colab)
        assert commands == []
        assert capsys.readouterr() == ("", "")

    def test_on_colab_it_installs_what_is_missing_and_nothing_else(
        self,
        monkeypatch: pytest.MonkeyPatch,
        commands: list[Sequence[str]],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """With dependencies, pip may replace Colab's torch, which takes minutes."""
        self.run(monkeypatch, "rehearsal", "fsrs", is_colab=True)
        ((*pip, fsrs, project),) = commands
        assert pip == [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        assert fsrs == "fsrs>=6"
        assert project.startswith("git+https://github.com/")
        assert sync.addresses(ROOT, "")["{{all_on_colab}}"] in capsys.readouterr().out

    @pytest.mark.parametrize("name", ALONE)
    def test_the_walkthrough_stays_without_the_project(
        self, monkeypatch: pytest.MonkeyPatch, commands: list[Sequence[str]], name: str
    ) -> None:
        """It needs the network only where something is missing."""
        self.run(monkeypatch, "rehearsal", "fsrs", is_colab=True, name=name)
        assert commands == []
        self.run(monkeypatch, "cloudpickle", is_colab=True, name=name)
        assert commands[0][-2:] == ["--no-deps", "cloudpickle>=3.0"]

    def test_elsewhere_a_kernel_without_the_project_says_where_to_go(
        self, monkeypatch: pytest.MonkeyPatch, commands: list[Sequence[str]]
    ) -> None:
        """Installing into somebody's own environment is not ours to do."""
        with pytest.raises(ModuleNotFoundError, match=r"missing rehearsal.*`make lab`"):
            self.run(monkeypatch, "rehearsal", is_colab=False)
        assert commands == []

    def test_a_failed_installation_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The import below it would fail instead, and name the wrong cause."""
        failed = SimpleNamespace(returncode=1)
        monkeypatch.setattr(subprocess, "run", lambda command: failed)
        with pytest.raises(RuntimeError, match=r"could not install fsrs, rehearsal; .*again"):
            self.run(monkeypatch, "rehearsal", "fsrs", is_colab=True)


@pytest.fixture(scope="module")
def colab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment like Colab's: everything but this project and fsrs."""
    folder = tmp_path_factory.mktemp("colab")
    venv.create(folder / "venv", symlinks=True)
    python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site = folder / "venv" / "lib" / python / "site-packages"
    found = {
        Path(str(distribution(name).locate_file(""))) for name in ("torch", "ipykernel", "pip")
    }
    for path in (entry for place in found for entry in place.iterdir()):
        left_out = path.name.startswith((*OURS, "fsrs", "torch-")) or path.suffix == ".pth"
        if not left_out:
            (site / path.name).symlink_to(path)
    # An older torch than the project wants: whoever lets pip resolve would replace it.
    (site / "torch-1.0.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n"
    (site / "torch-1.0.dist-info" / "METADATA").write_text(metadata)
    (site / "torch-1.0.dist-info" / "RECORD").write_text("")
    stand_in = folder / "stand_in" / "google" / "colab"
    stand_in.mkdir(parents=True)
    (stand_in / "__init__.py").write_text("")
    # In a .pth file: the folder google in site-packages may belong to another package.
    (site / "stand_in.pth").write_text(f"{folder / 'stand_in'}\n")

    wheels = folder / "wheels"
    wheels.mkdir()
    fsrs = distribution("fsrs")
    with zipfile.ZipFile(wheels / f"fsrs-{fsrs.version}-py3-none-any.whl", "w") as wheel:
        for file in fsrs.files or ():
            if "__pycache__" not in file.parts and file.name != "INSTALLER":
                wheel.write(str(file.locate()), str(file))

    kernel = folder / "jupyter" / "kernels" / "colab"
    kernel.mkdir(parents=True)
    command = [str(folder / "venv/bin/python"), "-m", "ipykernel_launcher", "-f"]
    spec = {
        "argv": [*command, "{connection_file}"],
        "display_name": "Colab",
        "language": "python",
    }
    (kernel / "kernel.json").write_text(json.dumps(spec))
    return folder


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What GitHub would have: this working tree, at the ref that the setup cells name."""
    folder = tmp_path_factory.mktemp("repository")
    git = [
        "git",
        "-C",
        str(ROOT),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    listed = subprocess.run(git, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    ref = sync.addresses(ROOT, "")["{{ref}}"]
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    for words in (
        ["init", "--quiet", "-b", "main"],
        ["add", "--all"],
        [*author, "commit", "--quiet", "-m", "all"],
        *([["tag", ref]] if ref != "main" else []),
    ):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    return folder


@pytest.fixture
def on_colab(
    colab: Path, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Kernels that are started now run there; returns its site-packages."""
    address = sync.addresses(ROOT, "")["{{repository}}"]
    for name, value in {
        "JUPYTER_PATH": colab / "jupyter",
        "IPYTHONDIR": tmp_path / "ipython",
        "GIT_CONFIG_COUNT": 1,
        "GIT_CONFIG_KEY_0": f"url.file://{repository}.insteadOf",
        "GIT_CONFIG_VALUE_0": address,
        # What it takes to build a wheel is there already, and this machine may be offline.
        "PIP_NO_BUILD_ISOLATION": 0,
        "PIP_NO_INDEX": 1,
        "PIP_FIND_LINKS": colab / "wheels",
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_DISABLE_PIP_VERSION_CHECK": 1,
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (site,) = (colab / "venv" / "lib").glob("python*/site-packages")
    return site


def run(name: str, folder: Path, typed: dict[str, str]) -> list[Any]:
    """Run a notebook there from top to bottom; returns its code cells.

    Args:
        folder: where Colab's kernel runs; no notebook is in it.
        typed: what is typed into the cells whose text begins so.
    """
    notebook = nbformat.read(NOTEBOOKS / name, 4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for begins, text in typed.items():
        (cell,) = [cell for cell in code if begins in cell.source]
        cell.source = text
    notebook.cells = [nbformat.v4.new_code_cell("import google.colab"), *code]
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=120, kernel_name="colab", resources=resources).execute()
    return code


def shown(cell: Any) -> str:
    """What a cell shows, as a front end gets it."""
    return json.dumps(cell.outputs)


@pytest.mark.ranks
class TestOnColab:
    def test_a_drill_opens_alone_and_gives_its_verdict(
        self, on_colab: Path, tmp_path: Path
    ) -> None:
        """Colab has neither the project nor the notebook's folder."""
        before = {path.name for path in on_colab.iterdir()}
        assert not any(name.startswith(OURS) for name in before)
        folder = tmp_path / "content"
        folder.mkdir()
        (name,) = [name for name in DRILLS if name.endswith(f"_{DRILL.id}.ipynb")]
        code = run(name, folder, {"NotImplementedError": DRILL.solution})
        setup, check = code[0], next(c for c in code if c.source.startswith("check("))
        assert "The coach is installed." in shown(setup)
        assert "PASSED" in shown(check)
        # Where the next drill opens: no file is beside this notebook.
        after = load(drill_ids()[drill_ids().index(DRILL.id) + 1])
        name = f"drills/{addresses.notebook_of(after.id, after.order)}"
        address = sync.addresses(ROOT, name)["{{colab}}"]
        assert f'<a href="{address}">' in str(check.outputs)

        new = {path.name for path in on_colab.iterdir()} - before
        assert {re.split(r"-\d", name)[0] for name in new} == {
            *("fsrs", "rehearsal", "trainer_core", "distributed_trainer_rehearsal")
        }
        assert (on_colab / "torch-1.0.dist-info").is_dir()
        installed = on_colab / "rehearsal" / "drills"
        assert {path.parent.name for path in installed.glob("*/grader.py")} == {*drill_ids()}

    def test_start_here_leads_to_its_verdict(self, on_colab: Path, tmp_path: Path) -> None:
        """The badge that most people press first."""
        typed = """\
def mean_over_ranks(value):
    total = torch.tensor(value)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()"""
        code = run("00_start_here.ipynb", tmp_path, {"raise NotImplementedError": typed})
        texts = {cell.source.partition("(")[0]: shown(cell) for cell in code}
        assert "PASSED" in texts["check_mean"]
        links = set(re.findall(r"\]\((https://colab[^)]+\.ipynb)\)", texts["status"]))
        assert links == {sync.addresses(ROOT, name)["{{colab}}"] for name in DRILLS}


class TestLinks:
    def test_on_colab_a_drill_is_where_its_badge_leads(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """No notebook is a file there, so a verdict had no link."""
        assert next_step.link_to(DRILL, tmp_path) is None
        monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
        installed = Message()
        installed["Version"] = "1.2.0"
        installed["Project-URL"] = "Changes, https://github.com/a/b/changes"
        installed["Project-URL"] = "Repository, https://github.com/a/b"
        monkeypatch.setattr(addresses, "metadata", lambda name: installed)
        link = next_step.link_to(DRILL, tmp_path)
        assert link is not None
        name = f"drills/{addresses.notebook_of(DRILL.id, DRILL.order)}"
        assert link[1] == f"{addresses.COLAB}/a/b/blob/v1.2.0/notebooks/{name}"
        assert (NOTEBOOKS / name).is_file()
