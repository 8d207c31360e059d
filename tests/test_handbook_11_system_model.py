"""Chapter 11: the live job has the processes, files and order that the text says it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from handbook_chapters import Chapter, run_chapter

from rehearsal.evidence.run_records import read_jsonl
from rehearsal.handbook.excerpts import excerpt
from rehearsal.handbook.planes import PLANES
from rehearsal.handbook.start_stages import STAGES
from trainer_core.launch import train_run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def ran() -> Chapter:
    return run_chapter("11_system_model")


class TestProcesses:
    def test_the_tree_is_an_agent_two_ranks_and_a_worker_each(self, ran: Chapter) -> None:
        """The text assigns a plane to each level of the tree."""
        names = [(process.depth, process.name) for process in ran.tree]
        assert [depth for depth, _ in names] == [0, 1, 2, 1, 2]
        assert [name for depth, name in names if depth == 1] == ["RANK=0", "RANK=1"]
        assert "pt_elastic" in names[0][1]
        assert {name for depth, name in names if depth == 2} == {"pt_data_worker"}

    def test_every_thread_is_in_a_plane(self, ran: Chapter) -> None:
        planes = {
            ran.plane_of(name, ran.THREADS) for name in ran.agents_threads + ran.ranks_threads
        }
        assert planes == {"control", "training", "data", "artifact", "observability"}

    def test_artifacts_and_observability_are_threads_of_a_rank(self, ran: Chapter) -> None:
        """The text says that these two have no process of their own."""
        in_rank = [ran.plane_of(name, ran.THREADS) for name in ran.ranks_threads]
        assert {"artifact", "observability"} <= set(in_rank)
        assert {ran.plane_of(name, ran.THREADS) for name in ran.agents_threads} == {"control"}

    def test_any_one_death_ends_the_attempt(self, ran: Chapter) -> None:
        assert "SIGKILL to agent: of 5 processes, 0 are left" in ran.printed
        assert "SIGKILL to rank 1: of 5 processes, 0 are left" in ran.printed
        assert "SIGKILL to a loader worker: of 5 processes, 0 are left" in ran.printed

    def test_a_dead_worker_is_named_by_its_rank_and_a_dead_rank_by_nobody(
        self, ran: Chapter
    ) -> None:
        """What rank 0 reads depends on where rank 1 was when torch raised the error."""
        worker = ran.jobs_of_victims["a loader worker"].errors()
        assert set(worker) == {(0, 0), (0, 1)}
        assert "DataLoader worker" in worker[0, 1]
        assert "DataLoader worker" in worker[0, 0] or "127.0.0.1" in worker[0, 0]
        assert set(ran.jobs_of_victims["rank 1"].errors()) == {(0, 0)}
        assert ran.jobs_of_victims["agent"].errors() == {}


class TestFiles:
    def test_every_file_is_in_a_plane(self, ran: Chapter) -> None:
        planes = {ran.plane_of(path, ran.FILES) for path in ran.files}
        assert planes == {"control", "data", "artifact", "observability"}

    def test_each_rank_has_its_own_log_and_only_rank_0_the_lock(self, ran: Chapter) -> None:
        rank0, rank1 = (process.pid for process in ran.tree if process.depth == 1)
        assert "lock" in ran.opened[rank0] - ran.opened[rank1]
        for rank, pid in ((0, rank0), (1, rank1)):
            logs = {path for path in ran.opened[pid] if path.endswith(".jsonl")}
            assert logs == {f"logs/rank-{rank}.jsonl", f"ledger/rank-{rank}.jsonl"}

    def test_random_states_are_saved_per_rank(self, ran: Chapter) -> None:
        states = [path for path in ran.files if "rng-rank" in path]
        assert len(states) == 2


class TestRanks:
    def test_the_table_is_of_two_ranks(self, ran: Chapter) -> None:
        rows = [(r["rank"], r["local_rank"], r["world_size"]) for r in ran.started]
        assert rows == [(0, 0, 2), (1, 1, 2)]

    def test_on_two_nodes_a_local_rank_comes_twice(self, ran: Chapter) -> None:
        assert [row[0] for row in ran.table] == [0, 1, 2, 3]
        assert [row[1] for row in ran.table] == [0, 1, 0, 1]
        assert [row[4] for row in ran.table] == [1, 1, 5, 5]  # a group's own sum

    def test_the_device_is_what_the_process_sees(self, ran: Chapter) -> None:
        """The convention would name a device that isn't there."""
        assert "sees all 8 GPUs of the node: we use cuda:3; cuda:3 exists" in ran.printed
        assert "sees only its own GPU: we use cuda:0; cuda:3 doesn't exist" in ran.printed

    def test_torchrun_itself_breaks_the_convention_with_a_flag(self, ran: Chapter) -> None:
        assert ran.masked == [["0", "0", "0"], ["1", "0", "1"]]


class TestStart:
    def test_the_order_is_that_of_the_text(self, ran: Chapter) -> None:
        order = [stage.name for stage in ran.stages if stage.rank == 0]
        assert order == list(STAGES)
        assert {plane for _, plane in STAGES.values()} == set(PLANES)

    def test_both_ranks_took_every_stage(self, ran: Chapter) -> None:
        """The picture has a bar per rank."""
        for rank in (0, 1):
            assert {stage.name for stage in ran.stages if stage.rank == rank} == set(STAGES)

    def test_the_job_was_preempted_and_resumed_to_the_end(self, ran: Chapter) -> None:
        assert "torchrun's exit code: 1 | the ranks: ['preempted', 'preempted']" in ran.printed
        assert [end["status"] for end in ran.ends] == ["done", "done"]

    def test_all_five_invariants_hold(self, ran: Chapter) -> None:
        assert len(ran.invariants) == 5
        assert all(ran.invariants.values()), ran.invariants

    def test_the_small_loop_continues_with_the_next_epoch(self, ran: Chapter) -> None:
        assert sorted(re.sub(": loss.*", "", line) for line in ran.loop_log) == [
            "rank 0, epoch 1",
            "rank 0, epoch 2",
            "rank 1, epoch 1",
            "rank 1, epoch 2",
        ]


class TestStorage:
    def test_only_storage_that_is_not_atomic_prevents_the_result(self, ran: Chapter) -> None:
        assert ran.codes == {"good": 0, "slow to write": 0, "slow to read": 0, "not atomic": 1}

    def test_its_older_checkpoint_is_intact_and_unused(self, ran: Chapter) -> None:
        """The text says that step 6 was there all along."""
        folder = ran.folder / "not atomic"
        newest = ran.latest_checkpoint_path(folder / "checkpoints")[0]
        assert newest.name == "step-00000006"
        lines = read_jsonl(folder / "ledger/rank-0.jsonl")
        assert {line["attempt"] for line in lines if "samples" in line} == {0}
        assert len(ran.jobs["not atomic"].errors()) == 2  # both restarts

    def test_a_slow_disk_shows_where_the_text_says(self, ran: Chapter) -> None:
        """Four saves of 0.2 s, and a restore of 0.8 s, are in it by construction."""
        assert ran.finished["slow to write"].seconds["checkpoint"] > 0.8
        assert ran.finished["slow to read"].seconds["start_up"] > 0.8

    def test_a_checkpoint_has_twelve_bytes_per_parameter(self, ran: Chapter) -> None:
        assert ran.bytes_each == pytest.approx(12)
        assert "84 GB per save" in ran.printed


class TestLogs:
    def test_the_console_of_rank_0_hides_the_bad_disk(self, ran: Chapter) -> None:
        rank0, rank1 = ran.bad_disk
        losses = [float(line.split()[-1]) for line in rank0["console"]]
        assert losses == sorted(losses, reverse=True)
        assert rank0["read_errors"] == 0
        assert rank1["console"] == []

    def test_the_sum_over_ranks_shows_it(self, ran: Chapter) -> None:
        assert {end["read_errors_all_ranks"] for end in ran.bad_disk} == {30}


class TestExcerpts:
    def test_lines_that_are_gone_are_an_error(self) -> None:
        """A chapter that shows nothing where it says 'look at this line' would pass."""
        with pytest.raises(LookupError, match="no line with 'barrier'"):
            excerpt(train_run, "barrier")
        with pytest.raises(LookupError, match="after 'build_parts'"):
            excerpt(train_run, "build_parts", "plan_steps")

    def test_they_are_of_the_code(self, ran: Chapter) -> None:
        code = Path(train_run.__code__.co_filename).read_text()
        shown = excerpt(train_run, "parts = build_parts", "state = restore")
        for line in shown.text.splitlines():
            assert line.strip() in code
