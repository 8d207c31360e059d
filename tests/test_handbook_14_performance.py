"""Chapter 14: each fault grows the phase that the text says, on the rank that it says."""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from handbook_chapters import Chapter, run_chapter

from rehearsal.evidence.pictures import read_events
from rehearsal.handbook.blind_fault import BlindCase
from rehearsal.handbook.diagrams import diagram
from rehearsal.handbook.step_phases import Block, PhaseTable, Run, report_steps
from trainer_core.metrics import PHASES

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def ran() -> Iterator[Chapter]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAST", "1")
        yield run_chapter("14_performance")


HEALTHY = dict.fromkeys(PHASES, 0.0) | {
    "forward": 4.0,
    "backward": 8.0,
    "grad_sync": 1.0,
    "optimizer": 1.0,
}


def made_up(rank_0: dict[str, float], rank_1: dict[str, float], num_steps: int = 12) -> Run:
    """A run in which each step of a rank takes this much longer than a healthy one."""
    return [
        [{name: ms + more.get(name, 0.0) for name, ms in HEALTHY.items()}] * num_steps
        for more in (rank_0, rank_1)
    ]


def only_in(numbers: set[int], broken: Run, healthy: Run) -> Run:
    """The broken run's steps with these numbers, and the healthy one's others."""
    return [
        [pair[n in numbers] for n, pair in enumerate(zip(well, bad, strict=True), 1)]
        for well, bad in zip(healthy, broken, strict=True)
    ]


STARVED = made_up({"data_wait": 20.0}, {"data_wait": 20.0})
SLOW = made_up({"grad_sync": 24.0}, {"forward": 8.0, "backward": 16.0})
NETWORK = made_up({"grad_sync": 25.0}, {"grad_sync": 25.0})
STALLED = only_in({5, 10}, made_up({"checkpoint": 250.0}, {}), made_up({}, {}))
COLD = only_in(set(range(5, 13)), STARVED, made_up({}, {}))


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

    def test_the_trainers_saves_do_not_show_in_the_median(self, ran: Chapter) -> None:
        records = read_events(ran.folder / "healthy", "train_progress")
        assert {record["rank"] for record in records} == {0, 1}
        for record in records:
            assert record["phases"]["checkpoint"]["p50"] == 0
            assert record["phases"]["checkpoint"]["max"] > 0

    def test_a_slow_rank_of_the_trainer_shows_in_its_peers_sync(self, ran: Chapter) -> None:
        """The picture of the real trainer says the same as the small job."""
        peer, slow = (
            record["phases"] for record in read_events(ran.folder / "slow", "train_progress")
        )
        assert slow["forward"]["p50"] >= 30
        assert slow["forward"]["p50"] > peer["forward"]["p50"]
        assert peer["grad_sync"]["p50"] > 15


class TestFaults:
    """What a delay guarantees, and orders. No test says how fast this machine is."""

    def test_a_starved_loader_grows_the_wait_on_both_ranks(self, ran: Chapter) -> None:
        for rank in (0, 1):
            assert spent(ran, "starved", rank, "data_wait") >= 20
            assert spent(ran, "healthy", rank, "data_wait") < 10

    def test_two_workers_hide_the_same_storage(self, ran: Chapter) -> None:
        """The first move has to be one."""
        waits = {
            name: min(step["data_wait"] for steps in getattr(ran, name) for step in steps)
            for name in ("starved", "ahead")
        }
        assert waits["ahead"] < 20 <= waits["starved"]

    def test_the_rank_that_waits_is_not_the_slow_one(self, ran: Chapter) -> None:
        """Who reads one rank's grad_sync debugs the network of a healthy machine."""
        assert spent(ran, "slow", 1, "forward", "backward") >= 3 * 12
        assert ran.waits[0] > ran.waits[1] + 5
        assert "the rank that doesn't wait: 1" in ran.printed

    def test_a_slow_rank_slows_the_step_of_both(self, ran: Chapter) -> None:
        steps = [spent(ran, "slow", rank, *PHASES) for rank in (0, 1)]
        assert max(steps) < 1.5 * min(steps)

    def test_a_slow_network_grows_the_sync_of_every_rank(self, ran: Chapter) -> None:
        for rank in (0, 1):
            assert spent(ran, "network", rank, "grad_sync") >= 25

    def test_accumulation_syncs_one_micro_batch_in_four(self, ran: Chapter) -> None:
        unsynced = [step["grad_sync"] for step in ran.fewer[0] if step["optimizer"] == 0]
        assert len(unsynced) == len(ran.fewer[0]) * 3 / 4
        always = [step["grad_sync"] for step in ran.network[0]]
        assert statistics.median(unsynced) < statistics.median(always) / 2

    def test_neither_the_median_nor_p95_shows_two_slow_saves_in_40_steps(
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
        assert min(sync[16 - 1], sync[31 - 1]) > max(100, 2 * statistics.median(sync))

    def test_a_save_in_the_background_does_not_hold_the_step(self, ran: Chapter) -> None:
        assert [n for n, step in enumerate(ran.background[0], 1) if step["checkpoint"]] == [15]
        assert ran.background[0][14]["checkpoint"] < 250


class TestMemory:
    def test_what_backward_needs_doubles_with_the_batch_until_it_fails(
        self, ran: Chapter
    ) -> None:
        rows = ran.plain
        assert [row["kept_mib"] for row in rows] == [3, 6, 12, 24, 0]
        assert [row["fails in"] for row in rows] == [None] * 4 + ["forward"]
        assert "allocate" in rows[-1]["error"]

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
    @pytest.mark.parametrize(
        ("run", "share", "percent"),
        [
            (made_up({}, {}), "compute", 13 / 14),
            (STARVED, "input", 20 / 34),
            (SLOW, "waiting", 12 / 38),
            (NETWORK, "transfer", 26 / 39),
            (STALLED, "saving", 500 / (24 * 14 + 500)),
        ],
    )
    def test_the_shares_are_those_of_all_ranks_time(
        self, ran: Chapter, run: Run, share: str, percent: float
    ) -> None:
        assert ran.where_time_goes(run)[share] == pytest.approx(percent)

    def test_a_healthy_job_is_compute_bound_and_a_starved_one_waits(self, ran: Chapter) -> None:
        healthy, starved = map(ran.where_time_goes, (ran.healthy, ran.starved))
        assert healthy["compute"] > 5 * max(healthy["input"], healthy["saving"])
        assert starved["input"] > 3 * healthy["input"]

    @pytest.mark.parametrize(
        ("run", "answers"),
        [
            (STARVED, ("stable", "data_wait", [0, 1], 1, 20)),
            (SLOW, ("stable", "backward", [1], 1, 16)),
            (NETWORK, ("stable", "grad_sync", [0, 1], 1, 25)),
            (STALLED, ("bursty", "checkpoint", [0], 5, 250)),
            (COLD, ("stable", "data_wait", [0, 1], 5, 20)),
        ],
    )
    def test_the_first_questions_find_phase_ranks_and_step(
        self, ran: Chapter, run: Run, answers: tuple[Any, ...]
    ) -> None:
        """A function that names the straggler's victim would teach the opposite."""
        assert tuple(ran.first_questions(run, made_up({}, {})).values()) == answers

    def test_the_cache_goes_cold_in_step_5(self, ran: Chapter) -> None:
        for steps in ran.every_run["cache goes cold"]:
            assert all(step["data_wait"] >= 20 for step in steps[4:])
            assert sorted(step["data_wait"] for step in steps[:4])[1] < 20

    def test_every_blind_case_has_what_tells_it_from_the_others(self, ran: Chapter) -> None:
        """A riddle without an answer teaches nothing."""
        runs = {name: make(random.Random(1)) for name, make in ran.candidates.items()}
        waits = {
            name: [ran.p50(run, rank, "data_wait") for rank in (0, 1)]
            for name, run in runs.items()
        }
        saves = {name: max(step["checkpoint"] for step in run[0]) for name, run in runs.items()}
        struck = random.Random(1).randrange(2)
        assert min(waits["starved loader"]) >= 20
        assert waits["one rank's loader"][struck] >= 20 > waits["one rank's loader"][1 - struck]
        assert ran.p50(runs["slow rank"], struck, "forward", "backward") >= 36
        assert min(ran.p50(runs["slow network"], rank, "grad_sync") for rank in (0, 1)) >= 25
        assert saves["stalled storage"] >= 250 > saves["slow network"]

    def test_running_all_cells_does_not_give_the_case_away(self, ran: Chapter) -> None:
        assert "Nothing named yet" in ran.printed
        assert "It was: " not in ran.printed
        assert "Right: " not in ran.printed


class TestTimers:
    def test_four_timers_miss_the_loader_and_blame_backward(self, ran: Chapter) -> None:
        starved, network = map(ran.four_timers, (STARVED, NETWORK))
        assert (starved["sum"], starved["the step"]) == (14, 34)
        assert (network["backward"], network["the step"]) == (34, 39)
        assert ran.four_timers(ran.network)["backward"] >= 25 + 4 * 2

    def test_the_launch_returns_before_the_peer_is_there(self, ran: Chapter) -> None:
        assert ran.wait_ms > max(50, ran.launch_ms)

    def test_the_difference_measures_transfer_and_waiting(self, ran: Chapter) -> None:
        """With a slow rank it isn't a measure of the network."""
        assert ran.by_difference(only_in(set(range(2, 13, 2)), NETWORK, made_up({}, {}))) == (
            25,
            26,
        )
        assert ran.measured["slow network"][1] >= 25
        assert ran.measured["slow rank"][1] > 30  # it lags by 24 ms per step

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

    def test_strong_scaling_splits_the_work(
        self, ran: Chapter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Efficiency divides by the number of ranks only there."""
        assert set(ran.scaled["strong"]) == {1, 4}
        job = SimpleNamespace(model=[Block() for _ in range(4)])
        monkeypatch.setattr(ran.dist, "get_world_size", lambda: 4)
        ran.split_the_work(job)
        assert [block.seconds for block in job.model] == [0.00025] * 4
        for name in ran.kinds:
            assert ran.efficiency(name)[1] == 1
            step = {size: ran.p50(of, 0, *PHASES) for size, of in ran.scaled[name].items()}
            work = 4 if name == "strong" else 1
            assert ran.efficiency(name)[4] == pytest.approx(step[1] / (work * step[4]))

    def test_a_slow_baseline_waits_on_any_number_of_ranks(self, ran: Chapter) -> None:
        """Its efficiency is fine, and half of every rank's time is lost."""
        for run in ran.scaled["weak, starved"].values():
            assert min(step["data_wait"] for steps in run for step in steps) >= 20


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
