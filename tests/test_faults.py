"""The fault matrix: it finds every point, judges each try and reports what failed."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from rehearsal.engine.reports import Failure, RankReport
from rehearsal.faults import corruption, points, registry, storage
from rehearsal.faults.breaks import both, wrap
from rehearsal.faults.jobs import SIX_STEPS, Hang, finish, problem_of, small, start, user_errors
from rehearsal.faults.matrix import Bench, Try, leave, rows_of
from rehearsal.faults.permissions import DENIED, why_modes_mean_nothing
from rehearsal.faults.tracer import Kill, Point, read_trace, trace_this_rank, why_not
from scripts import faults

pytestmark = pytest.mark.ranks
# Ranks cannot import a test module; its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    root = tmp_path_factory.mktemp("bench")
    for group in ("points", "corruption", "storage"):
        (root / group).mkdir()
    return Bench(root, seed=0, quick=True)


@pytest.fixture(scope="module")
def can_trace(tmp_path_factory: pytest.TempPathFactory) -> None:
    if reason := why_not(tmp_path_factory.mktemp("trial")):
        pytest.skip(f"no point was looked for: {reason}")


def points_with(prepare: Callable[[], None], run_dir: Path, kill: Kill | None = None) -> Any:
    """The points of a run of one rank after ``prepare`` in it, and when it was killed."""
    run_dir.mkdir()
    log = run_dir.with_suffix(".trace")
    traced = partial(both, prepare, partial(trace_this_rank, run_dir, log, kill))
    reports = start(small(run_dir, **SIX_STEPS), 1, traced)
    assert kill or not problem_of(reports)
    return read_trace(log)


def nothing() -> None:
    """Leave the trainer as it is."""


def make_a_folder_in_each_save() -> None:
    """Add two system calls to the trainer."""

    def publishing(publish: Any, temporary: Path, *rest: Any) -> None:
        os.mkdir(temporary.parent / "new")
        publish(temporary, *rest)

    def retaining(retain: Any, checkpoints: Path, *rest: Any) -> None:
        os.rmdir(checkpoints / "new")
        retain(checkpoints, *rest)

    wrap("publish", publishing)
    wrap("retain", retaining)


def sync_a_closed_file() -> None:
    """Have the trainer call fsync with a descriptor that is not open."""

    def publishing(publish: Any, *arguments: Any) -> None:
        with contextlib.suppress(OSError):
            os.fsync(10_000)
        publish(*arguments)

    wrap("publish", publishing)


@pytest.mark.usefixtures("can_trace")
class TestTracer:
    def test_two_runs_have_the_same_points(self, tmp_path: Path) -> None:
        """A point that only some runs have cannot be killed at."""
        first, _ = points_with(nothing, tmp_path / "1")
        second, _ = points_with(nothing, tmp_path / "2")
        assert sorted(first) == sorted(second)
        calls = {point.call for point in first}
        assert calls >= {"open", "write", "fsync", "rename", "unlink", "mkdir", "rmdir"}

    def test_writes_of_torchs_cpp_are_seen(self, tmp_path: Path) -> None:
        """The kill that matters most falls between two writes of state.pt."""
        found, _ = points_with(nothing, tmp_path / "1")
        assert Point("write", "checkpoints/tmp-*/state.pt", 2) in found

    def test_a_new_call_in_the_trainer_is_a_new_point(self, tmp_path: Path) -> None:
        """A list kept by hand would miss it."""
        usual, _ = points_with(nothing, tmp_path / "1")
        more, _ = points_with(make_a_folder_in_each_save, tmp_path / "2")
        found = {(point.call, point.path) for point in more if point not in usual}
        assert found == {("mkdir", "checkpoints/new"), ("rmdir", "checkpoints/new")}

    def test_a_call_on_a_closed_descriptor_is_no_point_and_no_hang(
        self, tmp_path: Path
    ) -> None:
        """A rank that closes a file twice would be stopped forever."""
        usual, _ = points_with(nothing, tmp_path / "1")
        more, _ = points_with(sync_a_closed_file, tmp_path / "2")
        assert sorted(more) == sorted(usual)

    @pytest.mark.parametrize(("moment", "there"), [("before", False), ("after", True)])
    def test_a_kill_before_a_call_prevents_it_and_one_after_does_not(
        self, tmp_path: Path, moment: Any, there: bool
    ) -> None:
        """Otherwise both would be the same kill."""
        kill = Kill(moment, Point("rename", "checkpoints/tmp-*", 1))
        found, killed = points_with(nothing, tmp_path / "run", kill)
        assert found[-1] == kill.point
        assert killed
        assert (tmp_path / "run/checkpoints/step-00000003").exists() is there


def survives(result: Try, fault: str) -> None:
    """Assert that the run survived this fault."""
    assert (result.fault, result.problem) == (fault, ""), result.what
    assert (result.lost, result.repeated) == (0, 0)


class TestPoints:
    @pytest.mark.usefixtures("can_trace")
    @pytest.mark.parametrize(
        ("plan", "moment", "point"),
        [
            (0, "after", Point("write", "checkpoints/tmp-*/state.pt", 4)),
            (0, "before", Point("unlink", "checkpoints/old-step-00000003-*/state.pt", 1)),
            (1, "after", Point("rename", "checkpoints/tmp-*", 2)),
            (2, "before", Point("fsync", "checkpoints/tmp-*", 1)),
        ],
    )
    def test_a_killed_run_resumes(
        self, bench: Bench, plan: int, moment: Any, point: Point
    ) -> None:
        """The project's claim, at a few of its points."""
        chosen = points.PLANS[plan]
        result = points.kill_and_resume(bench, chosen, None, Kill(moment, point))
        survives(result, chosen.fault)

    @pytest.mark.usefixtures("can_trace")
    def test_a_killed_restart_resumes(self, bench: Bench) -> None:
        """The cleanup after a kill may be killed as well."""
        plan, template = points.PLANS[4], bench.root / "points" / "left"
        points.leave_behind(plan, template)
        for point in (
            Point("rename", "checkpoints/step-00000004", 1),
            Point("rename", "config.json.tmp", 1),
        ):
            result = points.kill_and_resume(bench, plan, template, Kill("after", point))
            survives(result, plan.fault)
            assert result.replayed_steps

    @pytest.mark.usefixtures("can_trace")
    def test_a_point_that_never_comes_is_not_survived(self, bench: Bench) -> None:
        """A try that tries nothing must not count as one."""
        kill = Kill("before", Point("open", "checkpoints/nowhere", 1))
        result = points.kill_and_resume(bench, points.PLANS[0], None, kill)
        assert "never came to this point" in result.problem

    def test_a_hang_is_not_survived(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A rank that waits for a dead one keeps the machine and the lock."""

        def hang(*_: Any) -> Any:
            finish(points.PLANS[0].config(bench.root / "points" / "run"), 1)
            raise Hang("rank 1 was still running")

        monkeypatch.setattr(points, "start_traced", hang)
        kill = Kill("before", Point("fsync", "checkpoints/tmp-*", 1))
        result = points.kill_and_resume(bench, points.PLANS[0], None, kill)
        assert result.problem.startswith("rank 1 was still running")

    @pytest.mark.parametrize(
        ("code", "has_answer", "found"), [(0, True, "claims success"), (1, False, "")]
    )
    def test_the_rank_that_was_not_killed_must_not_claim_success(
        self, code: int | None, has_answer: bool, found: str
    ) -> None:
        """A scheduler would take the job for done."""
        other = RankReport(rank=1, exitcode=code, has_answer=has_answer)
        problem = points.wrong_survivor([RankReport(rank=0, exitcode=-9), other])
        assert found in problem
        assert bool(found) is bool(problem)

    @pytest.mark.usefixtures("can_trace")
    def test_the_end_of_the_other_rank_is_judged(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only the reports of the killed start show it."""
        monkeypatch.setattr(points, "wrong_survivor", lambda reports: f"{len(reports)} ranks")
        kill = Kill("before", Point("fsync", "checkpoints/tmp-*", 1))
        result = points.kill_and_resume(bench, points.PLANS[2], None, kill)
        assert result.problem.startswith("2 ranks")

    def test_without_ptrace_every_plan_is_skipped_with_the_reason(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A table without these rows would look complete."""
        monkeypatch.setattr(points, "why_not", lambda folder: "not permitted here")
        tries = list(points.kill_at_each_point(Bench(tmp_path, 0, True)))
        assert [each.skipped for each in tries] == ["not permitted here"] * len(points.PLANS)


@pytest.fixture(scope="module")
def template(bench: Bench) -> Path:
    return corruption.template_of(bench, 1)


def corruptions() -> dict[str, corruption.Corruption]:
    """All corruptions of a full run, by fault and try."""
    groups = (
        corruption.files_damaged,
        corruption.manifests_that_lie,
        corruption.folders_damaged,
        corruption.foreign_content,
    )
    rng = Bench(Path(), 0, False).rng("x")
    return {f"{c.fault}: {c.what}": c for group in groups for c in group(rng, False)}


class TestCorruption:
    @pytest.mark.parametrize(
        "name",
        [
            "a flipped bit: flip_a_bit 0 of state.pt",
            "a manifest that lies, sealed: no state.pt among its files",
            "a pickle that would run code: state.pt, a bare pickle",
            "all bad: 0",
            "leftovers and other names: step 3 named step-00000005",
        ],
    )
    def test_the_restart_gives_the_right_answer(
        self, bench: Bench, template: Path, name: str
    ) -> None:
        """Training on a damaged checkpoint would go unnoticed."""
        each = corruptions()[name]
        survives(corruption.meets(bench, each, template), each.fault)

    def test_a_wrong_answer_is_reported(self, bench: Bench, template: Path) -> None:
        """A group that never finds anything wrong proves nothing."""
        harmless = corruption.Corruption("x", "nothing is damaged", lambda *_: None)
        result = corruption.meets(bench, harmless, template)
        assert "it should restore step-00000003" in result.problem
        refused = harmless._replace(answer="is refused", bad_steps=())
        assert "did not refuse" in corruption.meets(bench, refused, template).problem

    def test_a_full_run_has_at_least_400_with_distinct_names(self) -> None:
        """Two tries with one name could not be told apart in the report."""
        assert len(corruptions()) >= 400


class TestStorage:
    @pytest.mark.parametrize(
        "name",
        [
            "no space while saving: files of at most 500 bytes from the second save on",
            "no space for the ledger: rank 0 of 1, step 5",
            "no space for the logs: rank 1 of 2, step 5, for one line",
            "a disk that fails: fsync 8 gives EIO",
        ],
    )
    def test_every_rank_reports_it_and_the_run_resumes(self, bench: Bench, name: str) -> None:
        """A save that fails silently is discovered at the next crash."""
        known = {f"{f.fault}: {f.what}": f for f in storage.failures(bench)}
        each = known[name]
        run_dir = bench.root / "storage" / "run"
        result = bench.put_away(run_dir, storage.fail(bench, each, run_dir))
        survives(result, each.fault)

    def test_a_fault_that_strikes_nowhere_is_reported(self, bench: Bench) -> None:
        """Its row would count runs that met no fault."""
        run_dir = bench.root / "storage" / "run"
        result = storage.fail(bench, storage.Failure("x", "nothing fails"), run_dir)
        assert "did not refuse" in bench.put_away(run_dir, result).problem

    def test_a_disk_that_was_never_slow_is_reported(self, bench: Bench) -> None:
        """A trainer that calls fsync in some other way would pass untested."""
        slow = next(f for f in storage.failures(bench) if f.fault == "a slow disk")
        run_dir = bench.root / "storage" / "run"
        survives(bench.put_away(run_dir, storage.fail(bench, slow, run_dir)), slow.fault)
        never = storage.fail(bench, slow._replace(prepare=None), run_dir)
        assert "never struck" in bench.put_away(run_dir, never).problem
        more = storage.fail(bench, slow._replace(kept=(5,)), run_dir)
        assert "the checkpoint of step 5 is gone" in bench.put_away(run_dir, more).problem

    def test_a_refusal_for_another_reason_is_reported(self) -> None:
        """Otherwise any refusal would pass, even one that has nothing to do with the mode."""
        denied = Failure(kind="UserError", message="[Errno 13] Permission denied", traceback="")
        other = replace(denied, message="an unknown setting")
        reports = [RankReport(rank=0, exitcode=1, failure=denied)]
        assert user_errors(reports, says=DENIED) == ""
        reports.append(RankReport(rank=1, exitcode=1, failure=other))
        assert "rank 1 does not say" in user_errors(reports, says=DENIED)

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs a user who can become another")
    def test_a_closed_folder_above_the_runs_is_a_reason_to_skip(self) -> None:
        """There the other user is refused before the mode under test matters."""
        with tempfile.TemporaryDirectory() as name:  # closed, as each of them is
            runs = Path(name, "runs")
            runs.mkdir()
            assert "another user cannot reach the runs" in why_modes_mean_nothing(runs)
            Path(name).chmod(0o711)
            assert why_modes_mean_nothing(runs) == ""


class TestTable:
    def test_a_failed_try_keeps_its_folder_and_names_it(self, tmp_path: Path) -> None:
        """The cause can only be found in the run folder."""
        folders = [tmp_path / "bad", tmp_path / "good"]
        for folder in folders:
            folder.mkdir()
        kept = leave(folders[0], Try("kill", "at noon", "lost a sample"))
        assert kept.problem == f"lost a sample; the run folder is in {folders[0]}"
        assert leave(folders[1], Try("kill", "at noon")).problem == ""
        assert [folder.exists() for folder in folders] == [True, False]

    def test_groups_that_need_proc_are_skipped_without_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A traceback would look like a failure of the trainer."""
        monkeypatch.setattr(sys, "platform", "darwin")
        for name in ("chains", "kills", "processes", "views"):
            (each,) = registry.GROUPS[name](Bench(tmp_path, 0, True))
            assert (each.fault, each.problem) == (name, "")
            assert "only Linux has" in each.skipped

    def test_a_row_sums_up_the_tries_of_its_fault(self) -> None:
        """People read the table, not the tries."""
        tries = [
            Try("b", "1", "", 0, 0, 2, 1.0),
            Try("a", "1", "died", 3, 1, 0, None),
            Try("b", "2", "", 0, 0, 1, 3.0),
            Try("b", "3", skipped="no ptrace"),
        ]
        assert rows_of(tries) == [("b", 2, 2, 0, 0, 3, 2.0, 1), ("a", 1, 0, 3, 1, 0, None, 0)]

    def test_the_command_reports_each_failed_try_and_how_to_repeat_it(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """A failed run in CI is all its reader has."""

        def group(bench: Bench) -> Iterator[Try]:
            yield Try("kill", "at noon", "lost a sample", lost=1)
            yield Try("kill", "at night", skipped="no night here")
            raise RuntimeError("broken group")

        monkeypatch.setitem(registry.GROUPS, "mine", group)
        file = tmp_path / "tries.json"
        assert faults.main(["--only", "mine", "--seed", "7", "--json", str(file)]) == 1
        said = capsys.readouterr().out
        assert "NOT SURVIVED kill: at noon: lost a sample" in said
        assert "faults.py --only mine --seed 7" in said
        assert "SKIPPED kill: no night here" in said
        assert "broken group" in said
        content = json.loads(file.read_text())
        assert [row["fault"] for row in content["rows"]] == ["kill", "mine"]

    def test_it_exits_with_0_only_if_every_run_survived(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """CI looks at nothing else."""
        monkeypatch.setitem(registry.GROUPS, "mine", lambda bench: [Try("kill", "at noon")])
        assert faults.main(["--only", "mine"]) == 0
        skipped = Try("kill", "at noon", skipped="no clock")
        monkeypatch.setitem(registry.GROUPS, "mine", lambda bench: [skipped])
        assert faults.main(["--only", "mine"]) == 0
        monkeypatch.setitem(registry.GROUPS, "mine", lambda bench: [])
        assert faults.main(["--only", "mine", "--quick"]) == 1
        said = capsys.readouterr().out
        assert "SKIPPED kill: no clock" in said
        assert "NOT SURVIVED mine: the group itself: nothing tried, nothing skipped" in said
        assert "--only mine --seed 0 --quick" in said
        with pytest.raises(SystemExit):
            faults.main(["--only", "yours"])
        assert "no such group. Choose from points" in capsys.readouterr().err
