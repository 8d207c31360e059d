"""The groups of faults that break processes: a few tries of each; scripts/faults.py has all."""

from __future__ import annotations

import random
import subprocess
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from rehearsal.faults.chains import chain, draw_plan
from rehearsal.faults.forked import SMALL, arguments
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
from scripts.launch import build_parser
from trainer_core.checkpoint_format import FORMAT
from trainer_core.config import TrainConfig

pytestmark = pytest.mark.ranks


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, seed=5, quick=True)


def survived(each: Try) -> None:
    assert each.problem == "", f"{each.fault}: {each.what}"
    assert (each.lost, each.repeated) == (0, 0)


def test_the_command_line_says_the_settings() -> None:
    """A flag that is left out would be tried with its default, and prove nothing."""
    plan = {**SMALL, "async_checkpoint": True, "max_grad_norm": None}
    cfg, _ = build_parser().parse(arguments(Path("run"), plan))
    assert cfg == TrainConfig(run_dir=Path("run"), **plan)


def test_a_chain_of_world_sizes_trains_each_sample_once(bench: Bench) -> None:
    """Machines come and go within an epoch; the deal of the rest must not notice (D9)."""
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
def test_what_befalls_one_rank_costs_no_sample(bench: Bench, fault: str) -> None:
    """A rank that fails alone leaves the others waiting, or a checkpoint of half a step."""
    survived(meet(bench, KINDS[fault]))


class Ended:
    """A job of two ranks that has ended."""

    def __init__(self, run_dir: Path, *said: str) -> None:
        self.run_dir, self.texts = run_dir, said

    def said(self, rank: int | None = None) -> str:
        return "".join(self.texts) if rank is None else self.texts[rank]


def test_a_rank_that_raises_alone_is_told_from_all_that_raise(tmp_path: Path) -> None:
    """Both end every rank, but alone it ends the others by a lost connection, or not at all."""
    alone: Any = Ended(tmp_path, "lost connection", "a defect")
    both: Any = Ended(tmp_path, "[rank 1/2] a defect", "a defect")
    assert "ranks [0] do not say" in ends_together(alone, [1, 1], says="a defect")
    assert "claims success" in ends_together(both, [1, 0], says="a defect")
    assert ends_together(both, [1, 1], says="a defect") == ""
    assert ends_in_failure(alone, [1, 1], says="a defect") == ""


def test_a_refusal_is_rank_0s_to_say(tmp_path: Path) -> None:
    """A rank that exits with 2 by itself has not told the others."""
    alone: Any = Ended(tmp_path, "", "No space left")
    both: Any = Ended(tmp_path, "No space left", "")
    assert "rank 0 does not say" in ends_refused(alone, [2, 2], says="No space left")
    assert "not a refusal on every rank" in ends_refused(both, [1, 2], says="No space left")
    assert ends_refused(both, [2, 2], says="No space left") == ""


def test_a_nan_that_skips_nothing_is_told(tmp_path: Path) -> None:
    """A sample that is never poisoned leaves a run that nothing befell."""
    (tmp_path / "ledger").mkdir()
    ledger = tmp_path / "ledger" / "rank-0.jsonl"
    job: Any = Ended(tmp_path, "", "")
    ledger.write_text('{"step": 3}\n{"step": 4}\n')
    assert "not that of 3" in ends_after_skipping(job, [-9, 1], rank=0, step=3)
    ledger.write_text('{"step": 3, "skipped": true}\n{"step": 4}\n')
    assert ends_after_skipping(job, [-9, 1], rank=0, step=3) == ""
    assert "was not killed" in ends_after_skipping(job, [1, 1], rank=0, step=3)


def test_an_exception_in_a_loader_worker_is_not_in_the_trainers_first_look() -> None:
    """The first call is made before there are workers, so it is another fault."""
    workers = [c for seed in range(30) for c in cases(random.Random(seed))
               if c.settings.get("num_workers") == 2]  # fmt: skip
    calls = {int(case.what.partition("call ")[2].partition(",")[0]) for case in workers}
    assert min(calls) == 2


def test_another_disk_under_one_rank_is_refused(bench: Bench) -> None:
    """Also a full copy: what is written there from now on would be missing from the proof."""
    for each in islice(other_folders(bench), 2):
        survived(each)


def test_a_decision_that_is_out_of_date_is_refused(bench: Bench) -> None:
    """Two starts at once, of which one dies soon: the other would train its steps again."""
    survived(late_decision(bench))


def test_a_loader_worker_does_not_keep_the_lock(bench: Bench) -> None:
    """The run would stay locked until somebody finds and ends the worker."""
    survived(orphaned_worker(bench))


def test_each_format_is_read_or_refused(bench: Bench) -> None:
    """An update must not cost the weeks that an older checkpoint holds."""
    for each in formats(bench):
        survived(each)
    names = [path.name for path in sorted(GOLDEN.iterdir())]
    assert names == [f"format-{number}" for number in range(1, FORMAT + 1)]


def test_changed_settings_are_refused_or_reported(bench: Bench) -> None:
    """Accepted in silence, one would replay samples, another train what nobody asked for."""
    kinds = set()
    for each in settings(bench):
        survived(each)
        kinds.add(each.fault)
    assert kinds == {"identity field changed", "training field changed"}


class Late:
    """Torchrun that has ended before its last step, beside a process that lives."""

    total_steps = 9

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
def test_a_run_that_has_ended_is_not_killed(is_waiting: bool) -> None:
    """It would count as a kill during shutdown, or strike whoever has the number now."""
    with subprocess.Popen(["sleep", "60"]) as other:
        job: Any = Late(other.pid, is_waiting)
        killer = Killer(job, random.Random(0))
        assert not killer.during_shutdown("a rank")
        assert (killer.kills, other.poll()) == ([], None)
        other.kill()


def test_a_run_without_a_kill_that_the_audit_refutes_is_a_try(tmp_path: Path) -> None:
    """It would vanish from the table, and the exit code with it."""
    refuted = Try("", "", "audit: refuted")
    (each,) = leave_all(tmp_path, tries_of(tmp_path, [], refuted))
    assert each.fault == "start under torchrun"
    assert each.problem == f"audit: refuted; the run folder is in {tmp_path}"
    assert tries_of(tmp_path, [], Try("", "")) == []


def test_a_kill_under_torchrun_costs_no_sample(bench: Bench) -> None:
    """What holds for forked ranks must hold for the launcher that people use."""
    plan = {**PLAN, "max_epochs": 1}
    (each,) = killed_run(bench, random.Random(1), plan, [("while_training", "a loader worker")])
    survived(each)
    assert each.restart_s is not None
