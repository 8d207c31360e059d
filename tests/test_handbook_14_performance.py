"""Chapter 14: each fault grows the phase that the text says, on the rank that it says."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from handbook_chapters import Chapter, run_chapter

from rehearsal.evidence.pictures import read_events
from rehearsal.handbook.blind_fault import BlindCase
from rehearsal.handbook.diagrams import diagram
from rehearsal.handbook.step_phases import PhaseTable, Run, report_steps
from trainer_core.metrics import PHASES

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def ran() -> Iterator[Chapter]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAST", "1")
        yield run_chapter("14_performance")


def spent(ran: Chapter, name: str, rank: int, *phases: str) -> float:
    """A rank's median time in these phases of one of the chapter's runs."""
    return float(ran.p50(getattr(ran, name), rank, *phases))


class TestTheStep:
    def test_the_diagram_has_every_phase_of_the_timers(self) -> None:
        """A phase that nobody drew is one that nobody thinks of."""
        drawn = re.sub("<[^>]+>", " ", diagram("step_phases").svg)
        words = "data wait,copy,forward,backward,gradient sync,optimizer,checkpoint".split(",")
        assert len(words) == len([name for name in PHASES if name != "other"])
        for word in words:
            assert word in drawn

    def test_the_trainers_saves_show_in_the_maximum_only(self, ran: Chapter) -> None:
        records = read_events(ran.folder / "healthy", "train_progress")
        assert {record["rank"] for record in records} == {0, 1}
        for record in records:
            assert record["phases"]["checkpoint"]["p50"] == 0
            assert record["phases"]["checkpoint"]["max"] > 0

    def test_a_slow_rank_of_the_trainer_shows_in_its_peers_sync(self, ran: Chapter) -> None:
        """The picture of the real trainer says the same as the small job."""
        by_rank = {
            record["rank"]: record["phases"]
            for record in read_events(ran.folder / "slow", "train_progress")
        }
        assert by_rank[1]["forward"]["p50"] >= 30 > by_rank[0]["forward"]["p50"]
        assert by_rank[0]["grad_sync"]["p50"] > by_rank[1]["grad_sync"]["p50"]


class TestFaults:
    def test_a_starved_loader_grows_the_wait_on_both_ranks(self, ran: Chapter) -> None:
        for rank in (0, 1):
            assert spent(ran, "starved", rank, "data_wait") >= 20
            assert spent(ran, "healthy", rank, "data_wait") < 10

    def test_two_workers_hide_the_same_storage(self, ran: Chapter) -> None:
        """The first move has to be one."""
        starved, ahead = (
            sum(spent(ran, name, rank, "data_wait") for rank in (0, 1))
            for name in ("starved", "ahead")
        )
        assert ahead < starved / 2

    def test_the_rank_that_waits_is_not_the_slow_one(self, ran: Chapter) -> None:
        """Who reads one rank's grad_sync debugs the network of a healthy machine."""
        assert spent(ran, "slow", 1, "forward", "backward") >= 3 * 12
        assert ran.waits[0] > ran.waits[1] + 10
        assert "the rank that doesn't wait: 1" in ran.printed

    def test_a_slow_rank_slows_the_step_of_both(self, ran: Chapter) -> None:
        steps = [spent(ran, "slow", rank, *PHASES) for rank in (0, 1)]
        assert max(steps) < 1.3 * min(steps)

    def test_a_slow_network_grows_the_sync_of_every_rank(self, ran: Chapter) -> None:
        for rank in (0, 1):
            assert spent(ran, "network", rank, "grad_sync") >= 25
            assert ran.where_time_goes(ran.network)["transfer"] > 0.3

    def test_accumulation_syncs_one_micro_batch_in_four(self, ran: Chapter) -> None:
        synced = [step["optimizer"] > 0 for step in ran.fewer[0]]
        assert sum(synced) == len(synced) / 4
        assert ran.mean_ms(ran.fewer, "grad_sync") < ran.mean_ms(ran.network, "grad_sync") / 2

    def test_neither_the_mean_nor_p95_shows_two_slow_saves_in_40_steps(
        self, ran: Chapter
    ) -> None:
        """An alert on the p95 of checkpoint never fires."""
        saved = [n for n, step in enumerate(ran.stalled[0], 1) if step["checkpoint"]]
        assert saved == [15, 30]
        assert len(ran.stalled[0]) == 40
        assert ran.summary["p50"] == ran.summary["p95"] == 0
        assert ran.summary["max"] >= 250

    def test_the_peer_pays_for_the_save_one_step_later(self, ran: Chapter) -> None:
        sync = [step["grad_sync"] for step in ran.stalled[1]]
        longest = sorted(range(40), key=sync.__getitem__)[-2:]
        assert sorted(number + 1 for number in longest) == [16, 31]

    def test_a_save_in_the_background_does_not_hold_the_step(self, ran: Chapter) -> None:
        assert max(step["checkpoint"] for step in ran.background[0]) < 250


class TestMemory:
    def test_what_backward_needs_doubles_with_the_batch_until_it_fails(
        self, ran: Chapter
    ) -> None:
        *rows, error = ran.plain
        assert [row["kept_mib"] for row in rows] == [3, 6, 12, 24, 0]
        assert [row["fails in"] for row in rows] == [None] * 4 + ["forward"]
        assert "allocate" in error["error"]

    def test_micro_batches_and_recomputation_fit_twice_the_batch(self, ran: Chapter) -> None:
        for rows in (ran.small, ran.recomputed):
            assert rows[-1]["batch"] == 4096
            assert rows[-1]["fails in"] is None

    def test_the_peer_of_a_rank_without_memory_blames_the_network(self, ran: Chapter) -> None:
        """The first error in the log is the wrong one."""
        healthy, failing = ran.reports
        assert "allocate" in failing.failure.message
        assert healthy.failure is not None
        assert "allocate" not in healthy.failure.message


class TestDiagnosis:
    def test_each_fault_grows_the_share_that_is_named_for_it(self, ran: Chapter) -> None:
        healthy = ran.where_time_goes(ran.healthy)
        assert healthy["compute"] > max(healthy["input"], healthy["saving"])
        named = {"starved loader": "input", "slow rank": "waiting", "slow network": "transfer"}
        for fault, share in (named | {"stalled storage": "saving"}).items():
            assert ran.where_time_goes(ran.every_run[fault])[share] > 1.2 * healthy[share], (
                fault
            )

    def test_the_first_questions_name_phase_and_ranks(self, ran: Chapter) -> None:
        found = {
            name: ran.first_questions(of)
            for name, of in ran.every_run.items()
            if name != "healthy"
        }
        seen = {name: (answer["phase"], answer["ranks"]) for name, answer in found.items()}
        assert seen["starved loader"] == seen["cache goes cold"] == ("data_wait", [0, 1])
        assert seen["slow rank"] in (("backward", [1]), ("forward", [1]))
        assert seen["slow network"] == ("grad_sync", [0, 1])
        assert seen["stalled storage"] == ("checkpoint", [0])
        assert found["stalled storage"]["how"] == "bursty"

    def test_since_when_is_the_step_in_which_the_cache_went_cold(self, ran: Chapter) -> None:
        assert ran.first_questions(ran.every_run["cache goes cold"])["since step"] == 5
        assert ran.first_questions(ran.every_run["starved loader"])["since step"] == 1

    def test_every_blind_case_can_be_told_by_its_phases(self, ran: Chapter) -> None:
        """A riddle without an answer teaches nothing."""
        expected: dict[str, tuple[set[str], int]] = {
            "starved loader": ({"data_wait"}, 2),
            "one rank's loader": ({"data_wait"}, 1),
            "slow rank": ({"forward", "backward"}, 1),
            "slow network": ({"grad_sync"}, 2),
            "stalled storage": ({"checkpoint"}, 1),
        }
        assert ran.candidates.keys() == expected.keys()
        for name, (phases, num_ranks) in expected.items():
            found = ran.first_questions(ran.candidates[name](random.Random(1)))
            assert found["phase"] in phases, (name, found)
            assert len(found["ranks"]) == num_ranks, (name, found)

    def test_running_all_cells_does_not_give_the_case_away(self, ran: Chapter) -> None:
        assert "Nothing named yet" in ran.printed
        assert f"It was: {ran.case._fault}" not in ran.printed


class TestTimers:
    def test_four_timers_miss_the_loader_and_blame_backward(self, ran: Chapter) -> None:
        starved = ran.four_timers(ran.starved)
        assert starved["the step"] - starved["sum"] >= 16
        assert ran.four_timers(ran.network)["backward"] >= 25 + 4 * 2

    def test_the_launch_returns_before_the_peer_is_there(self, ran: Chapter) -> None:
        assert ran.wait_ms > ran.launch_ms

    def test_the_difference_measures_transfer_and_waiting(self, ran: Chapter) -> None:
        """With a slow rank it isn't a measure of the network."""
        assert ran.measured["slow network"][0] > 15
        assert ran.measured["slow rank"][0] > 1.3 * (ran.waits[0] - ran.waits[1])

    def test_the_profiler_names_the_operation(self, ran: Chapter) -> None:
        calls = {name: count for name, count, _ in ran.profile_of_rank_0["top"]}
        assert calls["aten::_linalg_svd"] == ran.profile_of_rank_0["steps"]
        assert ran.profile_of_rank_0["events"] > 100 * ran.profile_of_rank_0["steps"]


class TestScaling:
    def test_one_disk_makes_the_wait_grow_with_the_ranks(self, ran: Chapter) -> None:
        waits = {
            size: ran.slowest_rank(of, "data_wait")
            for size, of in ran.scaled["weak, one disk"].items()
        }
        assert waits[1] >= 8
        assert 1.5 * waits[1] < waits[4]

    def test_strong_scaling_splits_the_work(self, ran: Chapter) -> None:
        """Efficiency divides by the number of ranks only there."""
        assert set(ran.scaled["strong"]) == {1, 4}
        assert ran.p50(ran.scaled["strong"][1], 0, "forward") >= 4
        for name in ran.kinds:
            assert ran.efficiency(name)[1] == 1
        step = {size: ran.p50(of, 0, *PHASES) for size, of in ran.scaled["strong"].items()}
        assert ran.efficiency("strong")[4] == pytest.approx(step[1] / (4 * step[4]))

    def test_the_rings_bytes_are_bounded_and_its_hops_are_not(self, ran: Chapter) -> None:
        times = {size: ran.ring_ms(2e9, size) for size in (2, 8, 64, 1024)}
        assert times[2][0] == pytest.approx(40)
        assert times[8][0] == pytest.approx(70)
        assert all(of_bytes < 80 for of_bytes, _ in times.values())
        assert times[1024][1] == pytest.approx(20.46)

    def test_a_slow_baseline_scales_well(self, ran: Chapter) -> None:
        assert ran.share > 0.3


STEP = dict.fromkeys(PHASES, 1.0)


class TestBlindCase:
    @pytest.fixture
    def case(self) -> BlindCase:
        healthy: Run = [[STEP] * 3] * 2
        broken: Run = [[STEP | {"data_wait": 9.0}] * 3, [STEP] * 3]
        chosen: dict[str, Any] = {"loader": lambda _: broken, "network": lambda _: healthy}
        seed = next(s for s in range(99) if random.Random(s).choice(list(chosen)) == "loader")
        return BlindCase(chosen, healthy, seed=seed)

    def test_a_wrong_name_is_answered_with_what_grew(
        self, case: BlindCase, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert not case.name("network")
        said = capsys.readouterr().out
        assert "data_wait on rank 0 grew most" in said
        assert "loader" not in said

    def test_an_unknown_name_gets_the_nearest(
        self, case: BlindCase, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert not case.name("netwrk")
        assert "'network'?" in capsys.readouterr().out

    def test_the_right_name_and_giving_up_end_the_case(
        self, case: BlindCase, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert case.name("loader")
        assert case.name("reveal")
        assert capsys.readouterr().out == "Right: loader.\nIt was: loader.\n"


class TestTable:
    def test_the_warm_up_is_not_in_the_records(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The first step allocates, and would be everybody's maximum."""
        steps = [(number, STEP | {"forward": float(number)}, None) for number in (-1, 0, 1, 2)]
        assert [step["forward"] for step in report_steps(steps)] == [1, 2]
        assert len(capsys.readouterr().out.splitlines()) == 2

    def test_a_line_of_the_notebooks_own_is_printed(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        table = PhaseTable(2)
        table.take("[1] hello")
        table.take('[1] {"data_wait": 2.0}')
        assert capsys.readouterr().out == "[1] hello\n"
        assert table.run == [[], [{"data_wait": 2.0}]]
