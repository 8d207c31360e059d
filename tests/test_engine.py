"""Real ranks: whatever they do, the caller survives and nothing is left running."""

from __future__ import annotations

import _thread
import copy
import ctypes
import errno
import io
import os
import pickle
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from fresh_interpreter import modules_loaded_by
from rehearsal.engine import output, ranks, server
from rehearsal.engine.reports import RankReport
from rehearsal.engine.rank import RankContext
from rehearsal.engine.ranks import run_ranks
from rehearsal.engine.reports import Fault
from rehearsal.kit.judge.one_writer import one_rank_changes, one_writer

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.ranks
# Ranks cannot import a test module; its functions travel by value, as a notebook's do.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(autouse=True, scope="module")
def warm() -> Iterator[None]:
    run_ranks(lambda context: None, world_size=1)
    yield
    ranks.shut_down()


def children_of_the_server() -> list[int]:
    pids = [one.process.pid for one in servers()]
    texts = [Path(f"/proc/{pid}/task/{pid}/children").read_text() for pid in pids]
    return [int(word) for word in " ".join(texts).split()]


def servers() -> list[server.ForkServer]:
    running = server.current()
    assert isinstance(running, server.ForkServers)
    return running.servers


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def add_up(context: RankContext) -> float:
    context.init_group()
    total = torch.tensor(float(context.rank + 1))
    dist.all_reduce(total)
    return total.item()


class TestJobs:
    @pytest.mark.parametrize("world_size", [1, 2, 3, 8])
    def test_every_rank_answers(self, world_size: int) -> None:
        """A runner that starts one rank too few proves nothing about the last one."""
        reports = run_ranks(add_up, world_size=world_size, deadline_s=30)
        expected = world_size * (world_size + 1) / 2
        assert [r.answer for r in reports] == [expected] * world_size
        assert [(r.rank, r.exitcode) for r in reports] == [(i, 0) for i in range(world_size)]

    @pytest.mark.parametrize("world_size", [0, 9])
    def test_a_world_size_that_does_not_fit_is_refused(self, world_size: int) -> None:
        """Nine ranks on two cores measure the scheduler."""
        with pytest.raises(ValueError, match=f"world_size={world_size}: 1 to 8 ranks"):
            run_ranks(add_up, world_size=world_size)

    def test_output_comes_while_the_rank_still_runs(self) -> None:
        """A learner who prints and waits must see the print, not the deadline."""
        shown: list[tuple[float, str]] = []

        def body(context: RankContext) -> None:
            print("first", flush=True)
            os.write(2, b"from C, as it were\n")
            time.sleep(0.6)
            print("second")

        def echo(line: str) -> None:
            shown.append((time.monotonic(), line))

        run_ranks(body, world_size=1, echo=echo)
        assert [line for _, line in shown] == [
            "[0] first",
            "[0] from C, as it were",
            "[0] second",
        ]
        assert shown[2][0] - shown[0][0] > 0.3

    def test_a_line_without_end_is_cut(self) -> None:
        """A notebook that gets a megabyte in one line stops responding."""
        shown: list[str] = []

        def body(_: RankContext) -> None:
            print("x" * (output.CHUNK + 5))
            print("the next line")

        run_ranks(body, world_size=1, echo=shown.append)
        assert all(len(line) < output.LINE_SHOWN + 50 for line in shown)
        assert shown[-1] == "[0] the next line"

    def test_a_flood_of_output_is_cut(self) -> None:
        """A print in an endless loop must not fill the notebook."""

        def body(context: RankContext) -> None:
            for line in range(10_000):
                print(line)

        shown: list[str] = []
        (report,) = run_ranks(body, world_size=1, echo=shown.append)
        assert len(shown) == output.OUTPUT_SHOWN + 1
        assert "the rest is not shown" in shown[-1]
        assert report.output.splitlines()[-1] == str(output.OUTPUT_SHOWN - 1)

    def test_collectives_are_recorded_including_ddps(self) -> None:
        """To a grader that sees only Python's calls, DDP issues no collectives at all."""

        def body(context: RankContext) -> None:
            context.init_group()
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
            model(torch.ones(1, 3)).sum().backward()
            dist.all_reduce(torch.zeros(5, dtype=torch.float64))

        for report in run_ranks(body, world_size=2):
            reduced = [c["bytes"] for c in report.collectives if c["name"] == "all_reduce"]
            assert reduced == [8 * 4, 5 * 8]

    @pytest.mark.parametrize("stalls", [1, 2])
    def test_a_job_whose_ranks_are_stuck_meeting_runs_once_more(
        self, tmp_path: Path, stalls: int
    ) -> None:
        """Gloo may stall while it connects; that says nothing about the learner's code."""
        tries, shown = tmp_path / "tries", list[str]()

        def body(context: RankContext) -> list[str]:
            left_over = sorted(path.name for path in context.folder.iterdir())
            (context.folder / f"rank-{context.rank}").touch()
            if context.rank == 0:
                with tries.open("a") as file:
                    file.write("x")
                if len(tries.read_text()) <= stalls:
                    dist.init_process_group = lambda *_, **__: time.sleep(60)
            context.init_group()
            return left_over

        reports = run_ranks(body, world_size=2, deadline_s=3, echo=shown.append)
        assert (tries.read_text(), shown) == (
            "xx",
            [f"{ranks.STUCK_MEETING} {ranks.RUNNING_AGAIN}"],
        )
        if stalls == 1:
            assert [report.exitcode for report in reports] == [0, 0]
            assert "rank-0" not in reports[0].answer, "the second try saw the first one's files"
        else:
            assert [report.exitcode for report in reports] == [None, None]

    @pytest.mark.parametrize("hangs", [False, True])
    def test_the_deadline_counts_from_the_meeting(self, hangs: bool) -> None:
        """Ranks that met late would be reported as hung while they work."""
        shown: list[str] = []

        def hang() -> None:
            dist.all_reduce(torch.ones(1))
            time.sleep(60)

        def body(context: RankContext) -> int:
            join = dist.init_process_group

            def join_late(*args: Any, **kwargs: Any) -> None:
                join(*args, **kwargs)
                time.sleep(1.0)  # the other one's clock runs already

            if context.rank == 1:
                dist.init_process_group = join_late
            context.init_group()
            time.sleep(2.5)
            if hangs:
                hang()
            return context.rank

        reports = run_ranks(body, world_size=2, deadline_s=3.0, echo=shown.append)
        assert shown == []  # no second try
        if not hangs:
            assert [report.answer for report in reports] == [0, 1]
            return
        for report in reports:
            assert report.exitcode is None
            assert "in hang" in report.stacks
            assert [c["name"] for c in report.collectives] == ["all_reduce"]

    def test_what_a_rank_says_while_its_peers_get_killed_is_no_answer(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """A hang would be reported as a crash now and then: the other rank was killed first."""

        def body(context: RankContext) -> None:
            (context.folder / f"pid-{context.rank}").write_text(str(os.getpid()))
            context.init_group()
            if context.rank == 0:
                dist.barrier()
            time.sleep(60)

        def sweep(self: server.ForkServers) -> None:
            waiting, killed = (int((tmp_path / f"pid-{r}").read_text()) for r in range(2))
            os.kill(killed, signal.SIGKILL)
            deadline = time.monotonic() + 10
            while Path(f"/proc/{waiting}").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not Path(f"/proc/{waiting}").exists()  # it raised, reported that and ended
            kill_the_rest(self)

        kill_the_rest = server.ForkServers.sweep
        monkeypatch.setattr(server.ForkServers, "sweep", sweep)
        zero, one = run_ranks(body, world_size=2, deadline_s=0.5, folder=tmp_path)
        assert (zero.failure, zero.exitcode, one.exitcode) == (None, None, None)
        assert "barrier" in zero.stacks

    def test_each_collective_is_recorded_once(self) -> None:
        """Recorded at the deadline and again at the end, bytes would count twice."""

        def body(context: RankContext) -> None:
            context.init_group()
            dist.all_reduce(torch.ones(1))
            context.record_collectives()  # as at the deadline
            dist.all_reduce(torch.ones(2))

        for report in run_ranks(body, world_size=2):
            assert [c["bytes"] for c in report.collectives] == [4, 8]

    def test_an_object_with_a_context_can_be_copied_and_pickled(self) -> None:
        """Averaging weights starts with a copy of the model, whose hooks have the context."""

        def body(context: RankContext) -> int:
            context.init_group()
            copied = pickle.loads(pickle.dumps(copy.deepcopy(context)))
            rank: int = copied.rank
            return rank

        assert [report.answer for report in run_ranks(body, world_size=2)] == [0, 1]

    @pytest.mark.parametrize(
        ("events", "exitcodes", "stands"),
        [
            ([[], []], [None, None], False),  # before it
            ([["joining"], []], [None, None], False),  # the other one never came
            ([["joining"], ["joining"]], [None, None], True),
            ([["joining", "joined"], ["joining"]], [None, None], True),
            ([["joining", "joined"]] * 2, [None, None], False),  # after it
            ([["joining"], ["joining"]], [None, 1], False),  # one has left the other
        ],
    )
    def test_being_stuck_while_meeting_differs_from_other_hangs(
        self, events: list[list[str]], exitcodes: list[int | None], stands: bool
    ) -> None:
        """Rerunning the learner's own hang would double the wait for the verdict."""
        reports = [
            RankReport(rank=rank, exitcode=code, events=[{"kind": kind} for kind in kinds])
            for rank, (kinds, code) in enumerate(zip(events, exitcodes, strict=True))
        ]
        assert ranks.stuck_while_meeting(reports) is stands

    def test_ranks_get_the_environment_that_torchrun_sets(self) -> None:
        """Code that reads RANK must run here as it does under torchrun."""

        def body(context: RankContext) -> list[str]:
            names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "RES_OPTIONS")
            dist.init_process_group("gloo")
            dist.barrier()  # who leaves at once may break a connection that a peer still makes
            return [os.environ[name] for name in names]

        reports = run_ranks(body, world_size=2)
        answers = [report.answer for report in reports]
        resolver = os.environ["RES_OPTIONS"]  # a lost answer of the DNS costs one second
        wanted = [["0", "0", "2", "2", resolver], ["1", "1", "2", "2", resolver]]
        assert answers == wanted, [report.failure for report in reports]

    def test_a_wrapper_that_outlives_its_group_hangs_no_rank(self) -> None:
        """torch hangs there one time in four; a verdict must not depend on chance."""

        def body(context: RankContext) -> None:
            dist.init_process_group("gloo")
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
            model(torch.ones(1, 3)).sum().backward()
            dist.destroy_process_group()

        for _ in range(10):
            for report in run_ranks(body, world_size=2, deadline_s=4):
                assert report.has_answer
                assert report.of("destroyed") == [{"kind": "destroyed", "live_wrappers": 1}]

    def test_one_job_leaves_nothing_for_the_next(self) -> None:
        """A patched torch or a global of the last attempt would judge this one."""

        def spoil(context: RankContext) -> None:
            torch.allclose = lambda *_: True  # type: ignore[assignment]
            os.environ["SPOILT"] = "1"
            torch.manual_seed(4)

        def look(context: RankContext) -> list[Any]:
            same = torch.allclose(torch.zeros(1), torch.ones(1))
            return [same, "SPOILT" in os.environ, torch.initial_seed()]

        before = run_ranks(look, world_size=1)[0].answer
        run_ranks(spoil, world_size=1)
        assert run_ranks(look, world_size=1)[0].answer == before
        assert before[:2] == [False, False]


def moves_in(folder: Path, outside: Path) -> None:
    os.replace(outside / "new", folder / "best.pt")


def links_in(folder: Path, outside: Path) -> None:
    os.link(outside / "new", folder / "best.pt")


def moves_out(folder: Path, outside: Path) -> None:
    os.rename(folder / "kept", outside / "kept")


def links_out(folder: Path, outside: Path) -> None:
    os.link(folder / "kept", outside / "kept")


def symlinks_out(folder: Path, outside: Path) -> None:
    os.symlink(folder / "kept", outside / "latest")


def symlinks_within(folder: Path, outside: Path) -> None:
    os.symlink("kept", folder / "latest")


def removes_a_tree(folder: Path, outside: Path) -> None:
    shutil.rmtree(folder / "tree")


def operates_below_an_open_folder(folder: Path, outside: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    os.mkdir("c", dir_fd=opened)
    os.rename(b"kept", b"c/d", src_dir_fd=opened, dst_dir_fd=opened)
    os.symlink(outside, "e", dir_fd=opened)


class TestFaults:
    def steps(self, fault: Fault, **settings: Any) -> list[Any]:
        def body(context: RankContext) -> str:
            context.init_group()
            context.arm()
            signal.signal(signal.SIGTERM, lambda *_: context.record("asked"))
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
            for _ in range(5):
                optimizer.step()
                dist.barrier()
            return "done"

        return run_ranks(body, world_size=2, fault=fault, **settings)

    def test_sigkill_strikes_after_the_chosen_step(self) -> None:
        """A kill at a random moment proves something else each time."""
        spared, victim = self.steps(Fault(rank=1, at="optimizer_step", count=3))
        assert victim.exitcode == -signal.SIGKILL
        assert len(victim.of("optimizer_step")) == 3
        assert spared.failure is not None
        assert len(spared.of("optimizer_step")) == 3

    def test_sigterm_can_be_handled(self) -> None:
        """A preemption is a request."""
        spared, asked = self.steps(Fault(rank=1, at="optimizer_step", count=2, signal="TERM"))
        assert (spared.answer, asked.answer) == ("done", "done")
        assert (len(spared.of("asked")), len(asked.of("asked"))) == (0, 1)

    def test_a_stopped_rank_is_reported_at_the_deadline(self) -> None:
        """A stopped rank can't report itself."""
        fault = Fault(rank=0, at="optimizer_step", count=1, signal="STOP")
        began = time.monotonic()
        stopped, waiting = self.steps(fault, deadline_s=1.0)
        assert time.monotonic() - began < 5
        assert (stopped.exitcode, waiting.exitcode) == (None, None)
        assert "barrier" in waiting.stacks

    def test_a_save_is_recorded_under_any_alias(self, tmp_path: Path) -> None:
        """Torch opens the file itself, so a save that isn't recorded leaves no trace at all."""

        def body(context: RankContext) -> None:
            from torch import save

            context.arm()
            save({}, context.folder / "a.pt")
            torch.save(obj={}, f=str(context.folder / "b.pt"))
            torch.save({}, io.BytesIO())

        (report,) = run_ranks(body, world_size=1, folder=tmp_path)
        saves = [(e["op"], e["path"]) for e in report.of("file")]
        assert saves == [("torch.save", "a.pt"), ("torch.save", "b.pt")]

    def test_both_ways_to_sync_a_file_are_recorded(self, tmp_path: Path) -> None:
        """fdatasync makes a file durable, as fsync does; a grader must accept both."""

        def body(context: RankContext) -> None:
            context.arm()
            with (context.folder / "a").open("wb") as file:
                os.fsync(file.fileno())
                os.fdatasync(file)

        (report,) = run_ranks(body, world_size=1, folder=tmp_path)
        assert [e["op"] for e in report.of("file")] == ["open", "fsync", "fsync"]

    @pytest.mark.parametrize(
        ("operate", "recorded"),
        [
            (moves_in, [("rename", "best.pt", "best.pt")]),
            (links_in, [("link", "best.pt", "best.pt")]),
            (moves_out, [("rename", "kept", None)]),
            (links_out, []),
            (symlinks_out, []),
            (symlinks_within, [("symlink", "latest", None)]),
            (
                removes_a_tree,
                [
                    ("remove", "tree/a", None),
                    ("rmdir", "tree/b", None),
                    ("rmdir", "tree", None),
                ],
            ),
            (
                operates_below_an_open_folder,
                [("mkdir", "c", None), ("rename", "kept", "c/d"), ("symlink", "e", None)],
            ),
        ],
        ids=lambda value: getattr(value, "__name__", ""),
    )
    def test_what_changes_the_folder_is_recorded(
        self, tmp_path: Path, operate: Callable[[Path, Path], None], recorded: list[Any]
    ) -> None:
        """A write that isn't recorded passes two writers; a read that is accuses good code."""
        folder, outside = tmp_path / "folder", tmp_path / "outside"
        outside.mkdir()
        (outside / "new").touch()
        (folder / "tree" / "b").mkdir(parents=True)
        (folder / "tree" / "a").touch()
        (folder / "kept").touch()

        def body(context: RankContext) -> None:
            context.arm()
            operate(context.folder, outside)

        (report,) = run_ranks(body, world_size=1, folder=folder)
        assert not report.failure, report.failure
        events = [(e["op"], e["path"], e["to"]) for e in report.of("file")]
        assert sorted(events, key=str) == sorted(recorded, key=str)

    def test_two_ranks_that_move_a_file_onto_one_name_are_found(self, tmp_path: Path) -> None:
        """Each writes a file of its own elsewhere, and only the last move is left."""

        def body(context: RankContext) -> None:
            context.arm()
            own = context.folder.parent / f"own-{context.rank}"
            torch.save({}, own)
            os.replace(own, context.folder / "best.pt")

        (tmp_path / "folder").mkdir()
        reports = run_ranks(body, world_size=2, folder=tmp_path / "folder")
        for finds in (one_writer, one_rank_changes):
            (finding,) = finds(reports)
            assert "ranks 0 and 1 both wrote" in finding.found
            assert "best.pt" in finding.found

    def test_a_kill_can_strike_between_two_file_operations(self, tmp_path: Path) -> None:
        """Atomic means: also between the write and the rename."""

        def body(context: RankContext) -> None:
            context.arm()
            (context.folder / "new").write_text("whole")
            (context.folder / "new").rename(context.folder / "published")

        fault = Fault(rank=0, at="file", count=2)
        (report,) = run_ranks(body, world_size=1, fault=fault, folder=tmp_path)
        assert report.exitcode == -signal.SIGKILL
        assert [path.name for path in tmp_path.iterdir()] == ["new"]
        assert [e["op"] for e in report.of("file")] == ["open", "rename"]


def stay(context: RankContext) -> list[str]:
    """Leave a file and run for a second; returns what was in the folder."""
    context.record("begun")
    found = sorted(path.name for path in context.folder.iterdir())
    (context.folder / "of the first try").touch()
    time.sleep(1)
    return found


def hog(context: RankContext) -> None:
    while True:
        pass


def hog_in_c(context: RankContext) -> None:
    ctypes.PyDLL(None).sleep(60)  # PyDLL keeps the GIL


def deadlock(context: RankContext) -> None:
    context.init_group()
    if context.rank == 0:
        dist.barrier()
    time.sleep(60)


def leave(context: RankContext) -> None:
    os._exit(0)


def abort(context: RankContext) -> None:
    os.abort()


def segfault(context: RankContext) -> None:
    ctypes.string_at(0)


def allocate(context: RankContext) -> int:
    return int(torch.ones(10 * 2**30, dtype=torch.uint8).sum())


def close_stdout(context: RankContext) -> str:
    os.close(1)
    os.close(2)
    sys.stdout.close()
    return "still here"


def leave_children(context: RankContext) -> int:
    daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
    subprocess.Popen(["sleep", "600"])
    return daemon.pid


def fork_bomb(context: RankContext) -> None:
    while True:
        os.fork()


HOSTILE: list[tuple[Callable[[RankContext], Any], str]] = [
    (hog, "late"),
    (hog_in_c, "late"),
    (deadlock, "late"),
    (leave, "silent"),
    (abort, "silent"),
    (segfault, "silent"),
    (allocate, "failed"),
    (close_stdout, "answered"),
    (leave_children, "answered"),
    (fork_bomb, "late"),
]


class TestHostile:
    @pytest.mark.parametrize(
        ("body", "outcome"), HOSTILE, ids=lambda p: getattr(p, "__name__", p)
    )
    def test_the_caller_survives_and_nothing_is_left(
        self, body: Callable[[RankContext], Any], outcome: str
    ) -> None:
        """One attempt that hangs must not cost the rehearsal."""
        reports = run_ranks(body, world_size=2, deadline_s=1.0)
        first = reports[0]
        found = (
            "late"
            if first.exitcode is None
            else "failed"
            if first.failure
            else "answered"
            if first.has_answer
            else "silent"
        )
        assert found == outcome
        assert children_of_the_server() == []
        assert [report.answer for report in run_ranks(add_up, world_size=2)] == [3.0, 3.0]

    @pytest.mark.parametrize("body", [hog, hog_in_c, deadlock])
    def test_the_stack_names_the_line(self, body: Callable[[RankContext], Any]) -> None:
        """A hang without a place is useless; a loop that keeps the GIL has a stack, too."""
        for report in run_ranks(body, world_size=2, deadline_s=0.7):
            assert f"in {body.__name__}" in report.stacks
            assert "/rehearsal/" not in report.stacks

    def test_a_process_that_left_its_group_is_killed_too(self) -> None:
        """A daemon that survives its rank holds ports and cores."""
        for report in run_ranks(leave_children, world_size=2):
            assert not is_alive(report.answer)

    def test_running_out_of_memory_is_an_exception(self) -> None:
        """Without a limit the operating system kills the notebook's process instead."""
        (report,) = run_ranks(allocate, world_size=1)
        assert report.failure is not None
        assert "can't allocate memory" in report.failure.message


class TestServer:
    def test_neighboring_ranks_have_different_hash_seeds(self) -> None:
        """An order that depends on Python's hash is right in one interpreter, not in a job."""
        reports = run_ranks(lambda context: hash("a sample"), world_size=4)
        first, second, third, fourth = (report.answer for report in reports)
        assert first == third != second == fourth

    def test_no_rank_sees_a_gpu(self) -> None:
        """With one in sight, code that asks for it would join a group that CPUs can't use."""
        (report,) = run_ranks(lambda context: os.environ["CUDA_VISIBLE_DEVICES"], world_size=1)
        assert report.answer == ""

    def test_a_shift_gives_a_rank_the_other_hash_seed(self) -> None:
        """As a restart does. The same shift gives the same seed, and so the same verdict."""
        answers = [
            run_ranks(lambda context: hash("a sample"), world_size=1, shift=shift)[0].answer
            for shift in (0, 1, 2)
        ]
        assert answers[0] == answers[2] != answers[1]

    def test_a_killed_server_is_started_again(self) -> None:
        """The operating system kills the largest process first; that may be the server."""
        running = server.current()
        servers()[1].process.kill()
        assert run_ranks(add_up, world_size=1)[0].answer == 1.0
        assert server.current() is not running

    def test_a_server_that_cannot_start_is_an_error_not_a_verdict(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A killed server is the learner's fault; one that can't start is the machine's."""
        ranks.shut_down()
        monkeypatch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(RuntimeError, match="cannot be started"):
            run_ranks(add_up, world_size=1)
        monkeypatch.undo()
        assert run_ranks(add_up, world_size=1)[0].answer == 1.0

    def test_a_machine_without_a_process_left_is_named_once_it_matters(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A notebook's first cell only warms up; the check can't go on, and says why."""
        ranks.shut_down()
        real, started = subprocess.Popen, list[subprocess.Popen[bytes]]()

        def popen(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
            if started:  # the second server
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
            started.append(real(*arguments, **options))
            return started[0]

        monkeypatch.setattr(subprocess, "Popen", popen)
        ranks.warm_up()
        assert started[0].returncode is not None, "the first server was left behind"
        with pytest.raises(server.CannotStartRanks, match="temporarily unavailable"):
            run_ranks(add_up, world_size=1)
        monkeypatch.undo()
        assert run_ranks(add_up, world_size=1)[0].answer == 1.0

    @pytest.mark.parametrize(
        ("module", "function", "error"),
        [
            (socket, "socketpair", OSError(errno.EMFILE, "Too many open files")),
            (tempfile, "TemporaryFile", FileNotFoundError("No usable temporary directory")),
        ],
        ids=["socket", "log"],
    )
    def test_a_machine_without_a_descriptor_or_a_disk_is_named_too(
        self, monkeypatch: pytest.MonkeyPatch, module: ModuleType, function: str, error: OSError
    ) -> None:
        """A first cell that only warms up must not fail, nor leave descriptors open."""
        ranks.shut_down()

        def refuse(*_: Any, **__: Any) -> None:
            raise error

        monkeypatch.setattr(module, function, refuse)
        before = {*os.listdir("/proc/self/fd")}
        with pytest.raises(ConnectionError, match=str(error.args[-1])):
            server.ForkServer()
        assert {*os.listdir("/proc/self/fd")} <= before
        ranks.warm_up()
        with pytest.raises(server.CannotStartRanks, match=str(error.args[-1])):
            run_ranks(add_up, world_size=1)

    def test_an_interrupt_while_torch_is_imported_comes_after_it(self) -> None:
        """Cut off, torch can't be imported again: no later cell would find the ranks."""
        code = """
import signal
from rehearsal.engine import server

server._start = lambda modules: None

class Interrupting:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch.nn":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting)
try:
    server.warm_up()
except KeyboardInterrupt:
    sys.meta_path.remove(Interrupting)
else:
    raise SystemExit("the interrupt was lost")
import torch.distributed
"""
        assert "torch.distributed" in modules_loaded_by(code)

    def test_an_interrupt_between_two_servers_leaves_none(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The caller never got the first one, so it can't end it."""
        real, started = subprocess.Popen, list[subprocess.Popen[bytes]]()

        def popen(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
            if started:
                raise KeyboardInterrupt
            started.append(real(*arguments, **options))
            return started[0]

        monkeypatch.setattr(subprocess, "Popen", popen)
        with pytest.raises(KeyboardInterrupt):
            server.ForkServers()
        assert started[0].returncode is not None, "the first server was left behind"

    def test_a_caller_with_a_thousand_open_files_can_run_a_job(self) -> None:
        """select() refuses a descriptor above 1023; one with many shards open has one."""
        ranks.shut_down()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        try:
            assert [r.answer for r in run_ranks(add_up, world_size=2)] == [3.0, 3.0]
        finally:
            ranks.shut_down()
            for descriptor in opened:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def test_a_server_killed_during_a_job_costs_one_more_try(self) -> None:
        """The caller did nothing wrong, and learns why it takes longer."""
        shown: list[str] = []
        timer = self.kill_the_server_in(0.5)
        (report,) = run_ranks(stay, world_size=1, echo=shown.append)
        timer.join()
        assert (report.answer, shown) == ([], [f"{ranks.SERVER_ENDED} {ranks.RUNNING_AGAIN}"])
        assert [event["kind"] for event in report.events] == ["begun"]  # of one try

    def test_a_job_with_a_folder_has_no_second_try(self, tmp_path: Path) -> None:
        """Only the caller can remove what the first try left there."""
        timer = self.kill_the_server_in(0.5)
        with pytest.raises(ConnectionError, match="has ended"):
            run_ranks(stay, world_size=1, folder=tmp_path)
        timer.join()
        assert [path.name for path in tmp_path.iterdir()] == ["of the first try"]

    def kill_the_server_in(self, seconds: float) -> threading.Timer:
        run_ranks(add_up, world_size=1)  # it has done its imports
        timer = threading.Timer(seconds, servers()[0].process.kill)
        timer.start()
        return timer

    def test_an_interrupt_leaves_nothing_running(self) -> None:
        """The stop button must stop the ranks, not only the wait for them."""
        timer = threading.Timer(0.5, _thread.interrupt_main)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            run_ranks(hog, world_size=2, deadline_s=20)
        timer.join()
        assert children_of_the_server() == []
        assert run_ranks(add_up, world_size=1)[0].answer == 1.0

    def test_an_interrupt_between_two_ranks_leaves_nothing_running(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first server's rank would run on, and its end would count in the next job."""
        run_ranks(add_up, world_size=2)
        second = servers()[1]
        send = second.send

        def interrupted(**request: object) -> None:
            if "start" in request:
                while not children_of_the_server():
                    time.sleep(0.01)
                raise KeyboardInterrupt
            send(**request)

        monkeypatch.setattr(second, "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_ranks(hog, world_size=2, deadline_s=20)
        assert children_of_the_server() == []
        monkeypatch.undo()
        assert [report.answer for report in run_ranks(add_up, world_size=2)] == [3.0, 3.0]

    def test_ranks_die_with_a_killed_caller(self, tmp_path: Path) -> None:
        """An endless loop must not keep both cores busy after everybody has gone."""
        script = tmp_path / "kernel.py"
        script.write_text(
            textwrap.dedent(
                """
                from rehearsal.engine.ranks import run_ranks

                def show(line):
                    print(line, flush=True)

                def hog(context):
                    import os
                    print(os.getpid(), flush=True)
                    while True:
                        pass

                run_ranks(hog, world_size=2, deadline_s=60, echo=show)
                """
            )
        )
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        kernel = subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment
        )
        assert kernel.stdout is not None
        pids = [int(kernel.stdout.readline().split()[1]) for _ in range(2)]
        kernel.kill()
        kernel.wait()
        kernel.stdout.close()
        deadline = time.monotonic() + 10
        while any(map(is_alive, pids)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(is_alive, pids))

    def test_jobs_of_two_threads_take_turns(self) -> None:
        """Two at a time would share the clock and receive each other's messages."""
        answers: list[Any] = []

        def check() -> None:
            answers.append([report.answer for report in run_ranks(add_up, world_size=2)])

        threads = [threading.Thread(target=check) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [[3.0, 3.0]] * 3
