"""How a chapter starts ranks: for a function of its own, or for this project's trainer."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rehearsal.engine.reports import Fault
from rehearsal.evidence.run_records import read_jsonl
from rehearsal.faults import breaks
from rehearsal.handbook.on_ranks import RankFailed, how_it_ended, on_ranks, watch_ranks
from rehearsal.handbook.trainer_runs import run_trainer, train_to_end
from trainer_core.checkpoint_format import published_steps

pytestmark = pytest.mark.ranks


class TestOnRanks:
    def test_it_returns_what_each_rank_returned_in_rank_order(self) -> None:
        assert on_ranks(lambda factor: factor * dist.get_rank(), 3, 10) == [0, 10, 20]

    def test_it_names_the_rank_that_raised(self) -> None:
        """Otherwise a reader debugs the survivor, which only saw its connection close."""

        def fails_on_rank_1() -> None:
            if dist.get_rank() == 1:
                raise ArithmeticError("a bug")

        with pytest.raises(RankFailed, match=r"^\[rank 1/2\] fails_on_rank_1 raised Arith"):
            on_ranks(fails_on_rank_1, 2)

    def test_it_names_the_rank_that_died_with_its_exit_code(self) -> None:
        def dies() -> None:
            os._exit(7)

        with pytest.raises(RankFailed, match=r"^\[rank 0/1\] dies ended with exit code 7"):
            on_ranks(dies, 1)

    def test_it_says_where_a_rank_hung_and_for_how_long(self) -> None:
        def sleeps() -> None:
            time.sleep(60)

        with pytest.raises(RankFailed, match=r"(?s)still running after 0.5 s .* in sleeps"):
            on_ranks(sleeps, 1, deadline_s=0.5)


def train_alone(num_steps: int) -> bool:
    """Take optimizer steps; returns whether somebody had started a process group."""
    was_in_group = dist.is_initialized()
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters())
    for _ in range(num_steps):
        optimizer.step()
    return was_in_group


class TestWatchRanks:
    def test_a_function_that_joins_itself_meets_no_group(self) -> None:
        """A second init_process_group in the same process raises."""
        reports = watch_ranks(train_alone, 2, 1, in_group=False)
        assert [report.answer for report in reports] == [False, False]

    @pytest.mark.parametrize("in_group", [True, False])
    def test_a_fault_strikes_its_rank_after_its_step(self, in_group: bool) -> None:
        fault = Fault.after_step(2, rank=1)
        reports = watch_ranks(train_alone, 2, 3, in_group=in_group, fault=fault)
        assert how_it_ended(reports[0]) == "rank 0: exit code 0"
        assert how_it_ended(reports[1]) == "rank 1: exit code -9"
        assert len(reports[1].of("optimizer_step")) == 2


class TestRunTrainer:
    def test_a_killed_run_resumes_in_its_folder(self, tmp_path: Path) -> None:
        killed = run_trainer(tmp_path, fault=partial(breaks.kill, rank=1, step=12))
        assert killed[1].exitcode == -9
        assert sorted(published_steps(tmp_path / "checkpoints")) == [10]
        resumed = run_trainer(tmp_path)
        assert [report.exitcode for report in resumed] == [0, 0]
        assert sorted(published_steps(tmp_path / "checkpoints")) == [13, 20, 26]
        steps = [line["step"] for line in read_jsonl(tmp_path / "ledger" / "rank-1.jsonl")]
        assert steps == [*range(1, 12), *range(11, 27)]

    def test_a_setting_out_of_bounds_is_refused_before_any_rank_starts(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(ValueError, match="max_epochs"):
            run_trainer(tmp_path / "run", max_epochs=0)
        assert not (tmp_path / "run").exists()

    def test_train_to_end_returns_the_summary_of_rank_0(self, tmp_path: Path) -> None:
        summary = train_to_end(tmp_path, max_epochs=1)
        assert (summary["status"], summary["step"]) == ("done", 13)

    def test_train_to_end_raises_if_a_rank_does_not_get_there(self, tmp_path: Path) -> None:
        """A picture of half a run would look like a finding."""
        bug = partial(breaks.fail_in, "forward", breaks.fail, rank=1, call=5)
        with pytest.raises(RankFailed, match=r"\[rank [01]/2\] the trainer raised"):
            train_to_end(tmp_path, fault=bug)
