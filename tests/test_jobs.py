"""Jobs of faults and tests run the real command, and a hang never goes unnoticed."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import cloudpickle
import pytest

from rehearsal.engine.reports import Failure, RankReport
from rehearsal.faults import breaks, jobs
from rehearsal.faults.jobs import Hang, Job, arguments, codes_of, finish, problem_of, small
from rehearsal.faults.jobs import start, wait_for_step
from scripts.launch import build_parser

# Ranks cannot import a test module; its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_the_command_line_has_every_setting() -> None:
    """A missing flag would test the default instead, and prove nothing."""
    wanted = small(Path("run"), async_checkpoint=True, max_grad_norm=None, dropout=0.2)
    cfg, _ = build_parser().parse(arguments(wanted))
    assert cfg == wanted


def stay(number: int) -> None:
    """Leave a process behind in this rank's session, if it is ``number``."""
    if breaks.is_rank(number):
        subprocess.Popen(["sleep", "60"])


@pytest.mark.ranks
def test_a_rank_that_hangs_is_reported_with_its_stack_and_killed(tmp_path: Path) -> None:
    """A job that never ends blocks the machine and says nothing."""
    hang = partial(breaks.at_read, 3, 1, partial(time.sleep, 60))
    with Job(small(tmp_path), 2, hang) as job:
        wait_for_step(tmp_path, 2)
        with pytest.raises(Hang, match=r"ranks \[0, 1\] were still running") as caught:
            job.wait(1.0)
        assert "reading" in str(caught.value)  # the frame of at_read
        assert [rank.poll() for rank in job.ranks] == [-9, -9]


@pytest.mark.ranks
def test_a_process_that_outlives_its_rank_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loader workers that stay behind fill the machine, one restart after the other."""
    monkeypatch.setattr(jobs, "PATIENCE_S", 0.2)
    with pytest.raises(Hang, match="left processes running"):
        start(small(tmp_path), 1, partial(stay, 0))


def test_a_break_of_a_missing_function_fails() -> None:
    """A renamed function would leave every fault untested, and every test green."""
    for name in ("no_such_function", "NoSuchClass.method", "JsonlSink.no_such_method"):
        with pytest.raises(AttributeError):
            breaks.wrap(name, lambda original: None)


@pytest.mark.ranks
def test_each_rank_reports_what_run_returned_or_raised(tmp_path: Path) -> None:
    """launch.py prints the summary and the error on one rank only."""
    reports = start(small(tmp_path), 2)
    assert codes_of(reports) == [0, 0]
    assert [report.answer["step"] for report in reports] == [26, 26]
    assert problem_of(reports) == ""
    refused = start(small(tmp_path, seed=18), 2)
    assert codes_of(refused) == [2, 2]
    assert ["--seed 17" in report.failure.message for report in refused] == [True, True]
    assert [report.failure.kind for report in refused] == ["UserError"] * 2
    with pytest.raises(AssertionError, match="UserError"):
        finish(small(tmp_path, seed=18), 2)


def test_what_counts_as_the_end_of_a_run() -> None:
    """A rank without an answer, or with different weights, may still exit with 0."""
    one = RankReport(rank=0, exitcode=0, has_answer=True, answer={"weights_sha256": "a"})
    two = RankReport(rank=1, exitcode=0, has_answer=True, answer={"weights_sha256": "b"})
    lost = RankReport(rank=1, exitcode=0)
    failed = RankReport(
        rank=1, exitcode=1, failure=Failure(kind="KeyError", message="'x'", traceback="")
    )
    assert problem_of([one, one]) == ""
    assert problem_of([one, two]) == "the ranks ended with different weights"
    assert problem_of([one, lost]).startswith("rank 1: exit code 0")
    assert problem_of([one, failed]) == "rank 1: KeyError: 'x'"
