"""What make lab copies for the learner, and that it never touches what is already there."""

from __future__ import annotations

import errno
import io
import json
import re
import stat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts import work_folder

ROOT = Path(__file__).parents[1]
OWN = "01_live_blank.ipynb"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with two notebooks."""
    (tmp_path / "notebooks/drills").mkdir(parents=True)
    (tmp_path / "notebooks" / OWN).write_text("first version")
    (tmp_path / "notebooks/drills/020_a.ipynb").write_text("a drill")
    (tmp_path / "notebooks/src").mkdir()
    (tmp_path / "notebooks/src/01_live.py").write_text("not a notebook")
    (tmp_path / "notebooks/.ipynb_checkpoints").mkdir()
    (tmp_path / "notebooks/.ipynb_checkpoints" / OWN).write_text("Jupyter's")
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    """Every file under a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def shown(folder: Path) -> dict[str, bytes]:
    """What a learner sees: no hidden files."""
    return {name: text for name, text in files(folder).items() if not name.startswith(".")}


class TestCopies:
    def test_the_first_time_every_notebook_is_copied(
        self, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """What was not copied gets edited in notebooks/, and the checkout is dirty."""
        assert work_folder.main([], root=project) == 0
        assert shown(project / "work") == {
            OWN: b"first version",
            "drills/020_a.ipynb": b"a drill",
        }
        assert "Copied 2 notebooks to work/" in capsys.readouterr().out

    def test_the_copies_can_be_written_even_if_the_originals_cannot(
        self, project: Path
    ) -> None:
        """JupyterLab opens a read-only notebook, and loses what was typed."""
        (project / "notebooks" / OWN).chmod(0o444)
        work_folder.main([], root=project)
        assert (project / "work" / OWN).stat().st_mode & stat.S_IWUSR

    def test_what_was_typed_stays(
        self, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """An evening's work must survive the next make lab."""
        work_folder.main([], root=project)
        (project / "work" / OWN).write_text("typed")
        before = files(project)
        capsys.readouterr()
        assert work_folder.main([], root=project) == 0
        assert files(project) == before
        assert capsys.readouterr().out == ""

    def test_a_newer_version_goes_beside_it_once(
        self, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """After a pull, the learner gets the fix and keeps the work."""
        work_folder.main([], root=project)
        (project / "work" / OWN).write_text("typed")
        (project / "notebooks" / OWN).write_text("second version")
        capsys.readouterr()
        work_folder.main([], root=project)
        (beside,) = (project / "work").glob("*.newer-*")
        assert re.fullmatch(r"01_live_blank\.newer-[0-9a-f]{8}\.ipynb", beside.name)
        assert beside.read_text() == "second version"
        assert (project / "work" / OWN).read_text() == "typed"
        said = capsys.readouterr().out
        assert f"work/{OWN} is yours" in said
        assert f"work/{beside.name}" in said
        beside.unlink()  # the learner doesn't want it
        work_folder.main([], root=project)
        assert not beside.exists(), "it isn't offered again"

    def test_a_deleted_copy_comes_back_as_the_newest_version(self, project: Path) -> None:
        """Deleting a copy is how you start over."""
        work_folder.main([], root=project)
        (project / "notebooks" / OWN).write_text("second version")
        (project / "work" / OWN).unlink()
        work_folder.main([], root=project)
        assert shown(project / "work")[OWN] == b"second version"
        assert not list((project / "work").glob("*.newer-*"))

    def test_a_notebook_that_was_there_first_is_not_replaced(self, project: Path) -> None:
        """Nothing records that file; it is the learner's all the same."""
        (project / "work").mkdir()
        (project / "work" / OWN).write_text("mine")
        work_folder.main([], root=project)
        assert (project / "work" / OWN).read_text() == "mine"
        assert len(list((project / "work").glob("*.newer-*"))) == 1

    def test_a_link_is_not_followed(self, project: Path) -> None:
        """For exists(), a dangling link isn't there; writing goes through it."""
        (project / "work").mkdir()
        (project / "work" / OWN).symlink_to(project / "elsewhere.ipynb")
        assert work_folder.main([], root=project) == 2
        assert not (project / "elsewhere.ipynb").exists()

    def test_an_interrupted_copy_leaves_no_half_of_a_notebook(
        self, project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Half a notebook would count as the learner's own from then on."""

        class FullDisk(io.FileIO):
            def write(self, content: Any) -> int:
                super().write(bytes(content)[:5])
                raise OSError(errno.ENOSPC, "No space left on device")

        opened = Path.open
        with monkeypatch.context() as patch:
            patch.setattr(
                Path,
                "open",
                lambda path, mode: FullDisk(path, mode) if mode == "xb" else opened(path, mode),
            )
            assert work_folder.main([], root=project) == 2
        assert shown(project / "work") == {}
        assert work_folder.main([], root=project) == 0
        assert shown(project / "work")[OWN] == b"first version"

    def test_a_file_in_the_way_is_named(
        self, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A traceback says neither what is in the way nor what to do."""
        (project / "work").write_text("mine")
        assert work_folder.main([], root=project) == 2
        assert (project / "work").read_text() == "mine"
        assert "rename what is in the way" in capsys.readouterr().err

    @settings(max_examples=60)
    @given(
        actions=st.lists(
            st.tuples(
                st.sampled_from(["make lab", "type", "new version"]),
                st.sampled_from([OWN, "drills/020_a.ipynb"]),
                st.sampled_from([b"1", b"2", b"3"]),
            ),
            max_size=12,
        )
    )
    def test_whatever_happens_no_file_of_the_learner_changes(
        self, actions: list[tuple[str, str, bytes]]
    ) -> None:
        """And the newest version is in work/, unless the learner edited it."""
        with TemporaryDirectory() as folder:
            source, work = Path(folder, "notebooks"), Path(folder, "work")
            for name in (OWN, "drills/020_a.ipynb"):
                work_folder.write_new(source / name, b"0")
            for what, name, text in actions:
                if what == "new version":
                    (source / name).write_bytes(b"version " + text)
                elif what == "type" and (work / name).exists():
                    (work / name).write_bytes(b"typed " + text)
                elif what == "make lab":
                    before, versions = files(work), files(source)
                    work_folder.copy_notebooks(source, work)
                    after = files(work)
                    assert {name: after[name] for name in before} == before
                    assert files(source) == versions
                    for name, version in versions.items():
                        was_copied = any(r.startswith(f".copied/{name}") for r in after)
                        assert was_copied
                        if not any(name == n and b"typed" in t for n, t in after.items()):
                            assert version in after.values()


class TestTheRealNotebooks:
    def test_every_link_in_the_copies_works_and_leads_to_no_original(
        self, tmp_path: Path
    ) -> None:
        """A link back into notebooks/ has people type into the repository after all."""
        for name in ("docs", "trainer_core", "rehearsal", "scripts", "README.md"):
            (tmp_path / name).symlink_to(ROOT / name)
        work = tmp_path / "work"
        copied, _ = work_folder.copy_notebooks(ROOT / "notebooks", work)
        assert len(copied) == len(list(work_folder.notebooks_in(ROOT / "notebooks")))
        links = 0
        for path in (work / name for name in copied):
            for cell in json.loads(path.read_text())["cells"]:
                if cell["cell_type"] != "markdown":
                    continue
                for target in re.findall(r"\]\(([^)\s]+)\)", "".join(cell["source"])):
                    if re.match(r"https?:|#|attachment:", target):
                        continue
                    place = path.parent / unquote(target.partition("#")[0])
                    assert place.is_file(), f"{path.name}: {target}"  # JupyterLab: not a folder
                    assert "notebooks" not in Path(target).parts, f"{path.name}: {target}"
                    links += 1
        assert links > 50

    def test_git_ignores_the_folder(self) -> None:
        """Otherwise working there makes the checkout dirty."""
        assert "/work/" in (ROOT / ".gitignore").read_text().splitlines()
