"""The moments of a save are what real kills leave behind, whatever calls the save makes."""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from rehearsal.engine.file_operations import CHANGES, WRITES
from rehearsal.engine.rank import RankContext
from rehearsal.engine.ranks import run_ranks
from rehearsal.kit.observe.moments import Moment, drawn_moments, files_in, watch_moments

pytestmark = pytest.mark.ranks
# Ranks cannot import a test module; its functions travel by value, as a notebook's do.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
OLD, NEW = b"old " * 300, b"new one " * 400


def renames(folder: Path) -> None:
    import torch

    torch.save({"weights": torch.arange(500)}, folder / "a.tmp")
    with open(folder / "a.tmp", "rb") as file:
        os.fsync(file.fileno())
    os.replace(folder / "a.tmp", folder / "a")


def overwrites_in_place(folder: Path) -> None:
    (folder / "a").write_bytes(NEW)


def copies(folder: Path) -> None:
    shutil.copyfile(folder / "a", folder / "b")
    (folder / "a").unlink()


def appends(folder: Path) -> None:
    with open(folder / "a", "ab") as file:
        file.write(NEW)


def overwrites_without_truncating(folder: Path) -> None:
    with open(folder / "a", "r+b") as file:
        file.write(NEW)


def writes_by_descriptor(folder: Path) -> None:
    number = os.open(folder / "c", os.O_WRONLY | os.O_CREAT)
    left = NEW
    while left:
        left = left[os.write(number, left) :]
    os.close(number)
    os.truncate(folder / "c", 7)


def publishes_a_folder(folder: Path) -> None:
    staged = folder / "staged"
    staged.mkdir()
    for name in ("x", "y"):
        (staged / name).write_bytes(NEW)
    staged.rename(folder / "published")
    shutil.rmtree(folder / "published")


def renames_before_it_writes(folder: Path) -> None:
    with open(folder / "a.tmp", "wb") as file:
        os.replace(folder / "a.tmp", folder / "a")
        file.write(NEW)


def saves_under_an_alias(folder: Path) -> None:
    from torch import arange, save

    save({"weights": arange(500)}, f=folder / "b")
    (folder / "a").unlink()


def points_a_link(folder: Path) -> None:
    (folder / "step-1").mkdir()
    (folder / "step-1" / "x").write_bytes(NEW)
    (folder / "a.tmp").symlink_to("step-1")
    os.replace(folder / "a.tmp", folder / "a")
    (folder / "a" / "x").write_bytes(NEW[::-1])  # through the link


def moves_from_elsewhere(folder: Path) -> None:
    outside = folder.with_name(f"{folder.name}-outside")
    outside.write_bytes(NEW)
    (folder / "a").unlink()
    shutil.move(outside, folder / "a")
    with open(folder / "a", "ab") as file:
        file.write(OLD)


def moves_elsewhere(folder: Path) -> None:
    os.rename(folder / "a", folder.with_name(f"{folder.name}-outside"))
    (folder / "a").write_bytes(NEW)


SAVES = [
    saves_under_an_alias,
    points_a_link,
    moves_from_elsewhere,
    moves_elsewhere,
    renames_before_it_writes,
    renames,
    overwrites_in_place,
    copies,
    appends,
    overwrites_without_truncating,
    writes_by_descriptor,
    publishes_a_folder,
]
Save = Callable[[Path], None]


def start(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(OLD)
    return folder


def killed(folder: Path, save: Save, prepare: Callable[[], None]) -> bool:
    """Run ``save`` in a copy of this process; whether a signal ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            prepare()
            save(folder)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) < 0


def dies_before(number: int) -> Callable[[], None]:
    """Have this process die before its n-th file operation."""
    count = 0

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
        if writes or event in CHANGES:
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    return lambda: sys.addaudithook(audit)


def dies_at(size: int) -> Callable[[], None]:
    """Have the operating system end this process when a file grows beyond ``size`` bytes."""

    def prepare() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    return prepare


def compare(context: RankContext, save: Save) -> dict[str, Any]:
    folder = context.folder.resolve()
    watched = start(folder / "watched")
    with watch_moments(watched) as moments:
        save(watched)
    seen = [sorted(m.files.items(), key=str) for m in moments]
    missed, number = [], 1
    while killed(one := start(folder / f"before-{number}"), save, dies_before(number)):
        if sorted(files_in(one).items(), key=str) not in seen:
            missed.append(f"before operation {number}")
        number += 1
    cut = 0
    torn = [(m, found[1]) for m in moments if (found := re.search(r"bytes of (\S+)", m.where))]
    sizes = {len(m.files[name] or b"") for m, name in torn if m.part != "none"}
    for size in sorted(sizes):
        if killed(one := start(folder / f"cut-{size}"), save, dies_at(size)):
            cut += 1
            if sorted(files_in(one).items(), key=str) not in seen:
                missed.append(f"at {size} bytes")
    return {
        "missed": missed,
        "kills": number - 1,
        "cut": cut,
        "wheres": [moment.where for moment in moments],
        "restored": [
            files_in(moment.restore(folder / "again" / str(number))) == moment.files
            for number, moment in enumerate(moments)
        ],
    }


class TestMoments:
    def test_a_save_is_watched_under_any_alias(self) -> None:
        """Torch opens the file itself: a save that isn't watched tears nothing."""
        (report,) = run_ranks(compare, saves_under_an_alias, world_size=1)
        assert "before the torch.save of b" in report.answer["wheres"]
        assert any(where.startswith("with half") for where in report.answer["wheres"])

    @pytest.mark.parametrize("save", SAVES, ids=lambda save: save.__name__)
    def test_they_contain_what_real_kills_leave(self, save: Save) -> None:
        """A moment that no kill reaches refuses right code; a missing one passes wrong code."""
        (report,) = run_ranks(compare, save, world_size=1)
        assert report.failure is None, report.failure
        assert report.answer["missed"] == [], report.answer["wheres"]
        assert report.answer["kills"] >= 1
        assert all(report.answer["restored"])
        if save not in (renames, saves_under_an_alias):  # torch writes in several calls
            assert report.answer["cut"] >= 1

    def test_a_rename_is_not_torn(self) -> None:
        """It is atomic: half of a rename is nothing that a restart must survive."""
        (report,) = run_ranks(compare, renames, world_size=1)
        assert not any("new bytes of a written" in where for where in report.answer["wheres"])
        assert any("new bytes of a.tmp written" in where for where in report.answer["wheres"])


def ends_while_a_thread_saves(context: RankContext) -> list[str]:
    folder, is_saving = start(context.folder / "watched"), threading.Event()
    saver = threading.Thread(target=overwrites_in_place, args=[folder])

    def note() -> None:
        if threading.current_thread() is saver:
            is_saving.set()
            time.sleep(0.2)

    with watch_moments(folder, note) as moments:
        saver.start()
        is_saving.wait()
    ended = len(moments)
    saver.join()
    return [moment.part for moment in moments[:ended]] + ["after"] * (len(moments) - ended)


def saves_without_proc(context: RankContext) -> list[str]:
    def readlink(path: object, **_: object) -> str:
        raise FileNotFoundError(2, "no such file", path)

    os.readlink = readlink
    folder = start(context.folder / "watched")
    with watch_moments(folder) as moments:
        renames(folder)
        publishes_a_folder(folder)
    return [moment.where for moment in moments]


def restores_what_was_newest(context: RankContext) -> list[bool]:
    folder = start(context.folder / "watched")
    with watch_moments(folder) as moments:
        for name in ("z", "b"):
            (folder / name).write_bytes(NEW)
            # The clock of a file system may tick only every few milliseconds.
            at = 10**9 * (1_000 + ord("z") - ord(name))
            os.utime(folder / name, ns=(at, at))
        os.symlink(folder / "z", folder / "link")
    again = moments[-1].restore(context.folder / "again")
    newest = max((again / name for name in "zb"), key=lambda path: path.stat().st_mtime_ns)
    return [newest.name == "b", (again / "link").resolve() == (again / "z").resolve()]


class TestWatching:
    def test_a_moment_keeps_links_and_when_files_were_written(self) -> None:
        """An answer may resume from the newest file, or from where a link points."""
        (report,) = run_ranks(restores_what_was_newest, world_size=1)
        assert report.failure is None, report.failure
        assert report.answer == [True, True]

    def test_a_thread_that_still_saves_adds_nothing_after_the_end(self) -> None:
        """The caller restarts from each moment while the list grows, or from a torn one."""
        (report,) = run_ranks(ends_while_a_thread_saves, world_size=1)
        assert report.failure is None, report.failure
        assert report.answer[0] == "before"
        assert report.answer[-1] == "end"

    def test_a_system_without_proc_has_fewer_moments_and_no_crash(self) -> None:
        """On macOS, every checkpoint drill would refuse an answer that calls os.fsync."""
        (report,) = run_ranks(saves_without_proc, world_size=1)
        assert report.failure is None, report.failure
        assert "before the rename of a.tmp" in report.answer
        assert "before the rmdir of published" in report.answer


class TestDraw:
    def test_every_kind_is_among_them(self) -> None:
        """A mistake may show at one operation of a save only, and at any of its saves."""
        moments = [
            Moment(
                f"before the {name} of step-{step}.pt", "before", step, {"a": bytes([n, step])}
            )
            for step in (2, 4, 10)
            for n, name in enumerate(("opening", "fsync", "rename"))
        ]
        steps = set()
        for seed in range(20):
            drawn = drawn_moments(moments, 5, random.Random(seed))
            assert {moment.where.split()[2] for _, moment in drawn} == {
                "opening",
                "fsync",
                "rename",
            }
            assert [moments[number] for number, _ in drawn] == [moment for _, moment in drawn]
            assert drawn == drawn_moments(moments, 5, random.Random(seed))
            steps |= {moment.note for _, moment in drawn}
        assert steps == {2, 4, 10}

    def test_equal_files_count_once(self) -> None:
        """Two restarts from the same files tell no more than one."""
        moments = [Moment("before", "before", step, {"a": b"x"}) for step in (1, 2)]
        assert drawn_moments(moments, 5, random.Random(0)) == [(1, moments[1])]

    def test_no_more_than_asked_for(self) -> None:
        """A restart takes time."""
        moments = [Moment(f"at {word}", "before", 0, {word: b"x"}) for word in "abcdef"]
        assert len(drawn_moments(moments, 2, random.Random(0))) == 2
