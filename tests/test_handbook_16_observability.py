"""Chapter 16: the metrics are the run's own, and the right alerts fire in each broken run."""

from __future__ import annotations

import json

import pytest
from handbook_chapters import Chapter, run_chapter

from rehearsal.handbook.telemetry import alert_table

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def ran() -> Chapter:
    return run_chapter("16_observability")


class TestMetrics:
    def test_they_are_those_of_a_run_that_was_killed_and_resumed(self, ran: Chapter) -> None:
        """The text reads a restart and a goodput off this run."""
        assert ran.codes_of(ran.killed)[1] == -9
        assert ran.codes_of(ran.resumed) == [0, 0]
        assert ran.reliability["restarts"] == 1
        assert ran.reliability["checkpoint age, steps"] == 0
        assert ran.semantic["step"] == "20 of 20"

    def test_every_phase_and_every_rank_is_in_them(self, ran: Chapter) -> None:
        """A rank that is left out is the one that has the fault."""
        phases = ran.system["step time by phase, ms"]
        assert {"data_wait", "forward", "backward", "grad_sync", "optimizer"} <= {*phases}
        for name in ("loader wait, ms by rank", "exposed all-reduce, ms by rank"):
            assert len(ran.system[name]) == 2
        assert len(ran.reliability["heartbeat age by rank, s"]) == 2


class TestLogs:
    def test_the_cause_comes_first_and_rank_0_blames_its_peer(self, ran: Chapter) -> None:
        """The text says that rank 0's log alone shows a victim."""
        first, *others = sorted(ran.errors, key=lambda error: error["time"])
        assert (first["rank"], first["error"]) == (
            1,
            "FileNotFoundError: shard-0007 is not on this node",
        )
        for error in others:
            assert "Connection" in error["error"]

    def test_a_storm_costs_a_few_lines_and_is_counted(self, ran: Chapter) -> None:
        assert ran.logged == [2**power for power in range(14)]
        assert ran.throttle.seen["corrupt record"] == 10_000

    def test_a_label_multiplies_the_time_series(self, ran: Chapter) -> None:
        alone = ran.time_series(ran.windows, [])
        steps = {(window["rank"], window["step"]) for window in ran.windows}
        assert ran.time_series(ran.windows, ["rank"]) == 2 * alone
        assert ran.time_series(ran.windows, ["rank", "step"]) == len(steps) * alone


class TestHangs:
    def test_stuck_ranks_are_alive_and_make_no_progress(self, ran: Chapter) -> None:
        """The picture shows heartbeats of both ranks after the last step."""
        records = ran.telemetry["stuck read"]
        after = [b for b in records.beats if b["time"] > records.steps[-1]["time"] + 0.3]
        assert {beat["rank"] for beat in after} == {0, 1}
        assert len({beat["step"] for beat in after}) == 1

    def test_each_job_ends_at_its_own_leaf_of_the_tree(self, ran: Chapter) -> None:
        assert ran.verdicts == {
            "stuck read, after 0.1 s": "steps complete: slow, not hung",
            "stuck read": "rank 1 doesn't wait in a collective: blocked read",
            "stuck save": "rank 0 doesn't wait in a collective: blocked write",
            "lone barrier": "deadlock: some wait in all_reduce and some in barrier",
            "killed at step 7": "rank 1 is gone: crash, kill or lost node",
        }

    def test_a_silent_rank_and_a_common_wait_are_told_apart(self, ran: Chapter) -> None:
        """The leaves that no job of the chapter reaches."""
        beat = {"time": 10.0, "stack": ["backward"], "waits": True, "name": "all_reduce"}
        beats = {0: beat, 1: {**beat, "time": 9.0}}
        assert "rank 1 is gone" in ran.classify([None, None], beats, 10.0)
        assert "network" in ran.classify([None, None], {0: beat, 1: beat}, 10.0)

    def test_a_mismatch_is_silent_by_default_and_named_with_detail(self, ran: Chapter) -> None:
        """The text says that rank 1 gets a wrong sum and no error."""
        assert ran.mismatch["default"][1] == [1.0, 2.0, 2.0]
        for answer in ran.mismatch["DETAIL"]:
            assert {tuple(pair) for pair in answer} == {
                ("Rank 0", "TensorShape=[4]"),
                ("Rank 1", "TensorShape=[3]"),
            }


class TestStragglers:
    def test_the_slow_rank_waits_less_than_the_one_it_slows(self, ran: Chapter) -> None:
        """The text says to look for the rank that waits least."""
        ms = ran.telemetry["slow rank"].phase_ms(min)
        own = {rank: sum(of.values()) - of["grad_sync"] for rank, of in ms.items()}
        assert own[1] > own[0] + 10
        assert ms[0]["grad_sync"] > ms[1]["grad_sync"]


class TestReplicas:
    def test_healthy_replicas_never_differ(self, ran: Chapter) -> None:
        assert ran.replicas["healthy"][0] == {}

    @pytest.mark.parametrize("fault", ["flipped bit", "two weights swapped"])
    def test_the_fingerprint_finds_it_in_the_same_step(self, ran: Chapter, fault: str) -> None:
        entry = ran.replicas[fault][0]["fingerprint"]
        assert entry == {"first": 5, "ranks": [1], "last": 20}

    def test_each_of_the_simpler_checks_misses_one(self, ran: Chapter) -> None:
        """Otherwise the fingerprint would be more work for nothing."""
        assert "norm" not in ran.replicas["flipped bit"][0]
        assert ran.replicas["two weights swapped"][0]["sum of bits"]["first"] > 5

    def test_with_the_optimizer_it_is_found_before_the_weights_differ(
        self, ran: Chapter
    ) -> None:
        found = ran.replicas["momentum lost"][0]
        assert found["with optimizer"]["first"] == 5
        assert found["fingerprint"]["first"] == 6

    def test_the_loss_does_not_show_a_flipped_bit(self, ran: Chapter) -> None:
        losses, healthy = ran.replicas["flipped bit"][1], ran.replicas["healthy"][1]
        assert max(abs(a - b) / b for a, b in zip(losses, healthy, strict=True)) < 1e-5


class TestAlerts:
    def test_exactly_the_expected_ones_fire(self, ran: Chapter) -> None:
        """A rule that fires in a healthy run is switched off within a week."""
        assert {name: {*fired} for name, fired in ran.alerts.items()} == {
            "healthy": set(),
            "healthy, fp16": set(),
            "stuck read": {"no_step_completes"},
            "stuck save": {"no_step_completes"},
            "lone barrier": {"no_step_completes"},
            "frozen node": {"no_step_completes", "a_heartbeat_stopped"},
            "slow rank": {"a_rank_lags"},
            "slow storage": {"the_loader_is_late"},
            "slow saves": {"saves_are_slow"},
            "rare saves": {"checkpoint_is_too_old"},
            "corrupt data": {"updates_are_skipped"},
            "killed at step 7": {"restarts_lead_nowhere"},
        }
        assert len(ran.rules) == 8

    def test_the_healthy_fp16_run_did_skip_updates(self, ran: Chapter) -> None:
        """Otherwise its silence would show nothing."""
        steps = ran.telemetry["healthy, fp16"].steps
        skipped = {line["step"] for line in steps if line.get("skipped")}
        assert skipped
        assert max(skipped) <= 10

    def test_the_table_marks_what_fired(self, ran: Chapter) -> None:
        table = alert_table({"a run": ["second"]}, [first, second])
        assert table.splitlines()[-1].split() == ["a", "run", ".", "X"]

    def test_every_run_wrote_its_logs(self, ran: Chapter) -> None:
        """A rule is quiet about an empty folder, too."""
        for name in ran.runs:
            log = ran.folder / name / "logs" / "rank-0.jsonl"
            events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
            assert events[0] == "run_start", name
            assert "train_progress" in events, name


def first(run: object) -> str | None:
    return None


def second(run: object) -> str | None:
    return "it fires"
