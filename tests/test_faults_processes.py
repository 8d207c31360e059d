"""The fault groups that break processes: a few tries of each; scripts/faults.py runs all."""

from __future__ import annotations

import random
import subprocess
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from rehearsal.faults.chains import chain, draw_plan
from rehearsal.faults.kills import PLAN, Killer, killed_run, leave_all, tries_of
from rehearsal.faults.matrix import Bench, Try
from rehearsal.faults.processes import (
    cases,
    ends_after_skipping,
    ends_in_failure,
    ends_refused,
    ends_together,
    meet,
)
from rehearsal.faults.views import (
    GOLDEN,
    formats,
    late_decision,
    orphaned_worker,
    other_folders,
    settings,
)
from trainer_core.checkpoint_format import FORMAT

pytestmark = pytest.mark.ranks


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, seed=5, quick=True)


def survived(each: Try) -> None:
    assert each.problem == "", f"{each.fault}: {each.what}"
    assert (each.lost, each.repeated) == (0, 0)


def test_a_chain_of_world_sizes_trains_each_sample_once(bench: Bench) -> None:
    """Machines come and go within an epoch; the order of the rest must not change."""
    rng = random.Random(3)
    survived(chain(bench, rng, draw_plan(rng), {"num_workers": 1}, [2, 3, 1, 4]))


KINDS = {case.fault: case for case in cases(random.Random(5))}


@pytest.mark.parametrize(
    "fault",
    [
        "SIGTERM during a save",
        "exception on one rank, loader",
        "exception on one rank, logging",
        "NaN on one rank, stop",
        "NaN on one rank, skip",
        "no memory on one rank",
        "SIGSTOP within the timeout",
    ],
)
def test_a_fault_of_one_rank_costs_no_sample(bench: Bench, fault: str) -> None:
    """A rank that fails alone leaves the others hanging, or half a checkpoint."""
    survived(meet(bench, KINDS[fault]))


class Ended:
    """A job of two ranks that has ended."""

    def __init__(self, run_dir: Path, *said: str) -> None:
        self.run_dir, self.texts = run_dir, said

    def said(self, rank: int | None = None) -> str:
        return "".join(self.texts) if rank is None else self.texts[rank]


def test_one_rank_raising_alone_differs_from_all_ranks_raising(tmp_path: Path) -> None:
    """Alone, it ends the others by a lost connection or not at all."""
    alone: Any = Ended(tmp_path, "lost connection", "a bug")
    both: Any = Ended(tmp_path, "[rank 1/2] a bug", "a bug")
    assert "ranks [0] do not say" in ends_together(alone, [1, 1], says="a bug")
    assert "claims success" in ends_together(both, [1, 0], says="a bug")
    assert ends_together(both, [1, 1], says="a bug") == ""
    assert ends_in_failure(alone, [1, 1], says="a bug") == ""


def test_rank_0_reports_a_refusal_for_all(tmp_path: Path) -> None:
    """A rank that exits with 2 by itself leaves the others without a reason."""
    alone: Any = Ended(tmp_path, "", "No space left")
    both: Any = Ended(tmp_path, "No space left", "")
    assert "rank 0 does not say" in ends_refused(alone, [2, 2], says="No space left")
    assert "not a refusal on every rank" in ends_refused(both, [1, 2], says="No space left")
    assert ends_refused(both, [2, 2], says="No space left") == ""


def test_a_nan_that_skips_no_step_is_reported(tmp_path: Path) -> None:
    """If no sample is poisoned, nothing was tested."""
    (tmp_path / "ledger").mkdir()
    ledger = tmp_path / "ledger" / "rank-0.jsonl"
    job: Any = Ended(tmp_path, "", "")
    ledger.write_text('{"step": 3}\n{"step": 4}\n')
    assert "not 3" in ends_after_skipping(job, [-9, 1], rank=0, step=3)
    ledger.write_text('{"step": 3, "skipped": true}\n{"step": 4}\n')
    assert ends_after_skipping(job, [-9, 1], rank=0, step=3) == ""
    assert "was not killed" in ends_after_skipping(job, [1, 1], rank=0, step=3)


def test_an_exception_in_a_loader_worker_is_not_in_the_first_read() -> None:
    """The trainer itself makes that one, before there are workers."""
    workers = [
        case
        for seed in range(30)
        for case in cases(random.Random(seed))
        if case.settings.get("num_workers") == 2
    ]
    calls = {int(case.what.partition("call ")[2].partition(",")[0]) for case in workers}
    assert min(calls) == 2


def test_a_different_disk_under_one_rank_is_refused(bench: Bench) -> None:
    """Even a full copy: the audit would miss whatever is written there from now on."""
    for each in islice(other_folders(bench), 2):
        survived(each)


def test_a_start_that_another_job_has_overtaken_is_refused(bench: Bench) -> None:
    """If two jobs start at once and one dies soon, the other would retrain its steps."""
    survived(late_decision(bench))


def test_a_loader_worker_does_not_keep_the_lock(bench: Bench) -> None:
    """The run would stay locked until somebody finds the worker and kills it."""
    survived(orphaned_worker(bench))


def test_each_format_is_read_or_refused(bench: Bench) -> None:
    """An update must not cost the weeks that an older checkpoint holds."""
    for each in formats(bench):
        survived(each)
    names = [path.name for path in sorted(GOLDEN.iterdir())]
    assert names == [f"format-{number}" for number in range(1, FORMAT + 1)]


def test_changed_settings_are_refused_or_reported(bench: Bench) -> None:
    """Accepted silently, one would replay samples, and another would do nothing."""
    kinds = set()
    for each in settings(bench):
        survived(each)
        kinds.add(each.fault)
    assert kinds == {"identity field changed", "training field changed"}


class Late:
    """A torchrun that exited before its last step, and a process that is still alive."""

    def __init__(self, victim: int, is_waiting: bool) -> None:
        self.agent, self.victim, self.is_waiting = self, victim, is_waiting

    def poll(self) -> int:
        return 1

    def ranks(self) -> list[int]:
        return [self.victim]

    def until(self, *_: object) -> bool:
        return self.is_waiting

    def place(self) -> tuple[int, int]:
        return 0, 9


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_job_that_has_exited_is_not_killed(is_waiting: bool) -> None:
    """It would count as a kill during shutdown, or hit whoever has the process ID now."""
    with subprocess.Popen(["sleep", "60"]) as other:
        job: Any = Late(other.pid, is_waiting)
        killer = Killer(job, random.Random(0), total_steps=9)
        assert not killer.during_shutdown("a rank")
        assert (killer.kills, other.poll()) == ([], None)
        other.kill()


def test_a_refuted_run_without_a_kill_is_a_try(tmp_path: Path) -> None:
    """Otherwise it would vanish from the table, and the exit code would be 0."""
    refuted = Try("", "", "audit: refuted")
    (each,) = leave_all(tmp_path, tries_of(tmp_path, [], refuted))
    assert each.fault == "start under torchrun"
    assert each.problem == f"audit: refuted; the run folder is in {tmp_path}"
    assert tries_of(tmp_path, [], Try("", "")) == []


def test_a_kill_under_torchrun_costs_no_sample(bench: Bench) -> None:
    """What is true of single starts must be true under the launcher that restarts them."""
    plan, kill = {**PLAN, "max_epochs": 1}, ("while_training", "a loader worker")
    rng = random.Random(5)  # draws 19 steps, and a checkpoint every 10 precedes the kill
    (each,) = killed_run(bench, rng, plan, [kill], forks=True)
    survived(each)
    assert each.restart_s is not None
    killed_after = int(each.what.rpartition("step ")[2])
    assert killed_after > 10, each.what
    assert each.replayed_steps < killed_after - 5, "it began at step 0, so it restored nothing"
