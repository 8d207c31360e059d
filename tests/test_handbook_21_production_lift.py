"""Chapter 21: each missing box breaks the job in the way that the text says."""

from __future__ import annotations

import pytest
from handbook_chapters import Chapter, run_chapter

from rehearsal.handbook.gang import Job, Worker, simulate
from rehearsal.handbook.spot import (
    break_even_nodes,
    goodput_unwarned,
    goodput_warned,
    job_mtbi_s,
    simulate_goodput,
)

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def ran() -> Chapter:
    return run_chapter("21_production_lift")


class TestModuleAndContainer:
    def test_fresh_processes_order_a_set_differently(self, ran: Chapter) -> None:
        """Equal by chance in all three once in 14,400 runs: five labels have 120 orders."""
        assert len(set(ran.orders)) > 1
        assert len({tuple(sorted(order)) for order in ran.orders}) == 1

    def test_another_library_on_one_node_is_another_digest(self, ran: Chapter) -> None:
        (here, ours), (there, theirs) = ran.environments
        assert here == there > 20
        assert ours != theirs

    def test_a_shell_in_front_keeps_sigterm_to_itself(self, ran: Chapter) -> None:
        assert ran.was_saved == {"a shell script": False, "exec": True}


class TestLauncher:
    def test_by_hand_a_dead_rank_ends_the_job(self, ran: Chapter) -> None:
        assert ran.hand_codes == [1, -9]
        assert ran.saved_steps(ran.folder / "by hand") == [6]

    def test_torchrun_restarts_it_and_it_finishes(self, ran: Chapter) -> None:
        assert ran.launched_code == 0
        assert ran.attempts == [0, 1]
        assert ran.audit_run(ran.folder / "launched").status == "proved"

    def test_the_default_is_no_restart(self, ran: Chapter) -> None:
        """The text says so, next to torchrun's own help."""
        assert "--max-restarts (default 0)" in ran.printed


class TestArtifactsAndConfig:
    def test_ranks_with_their_own_disks_part_without_an_error(self, ran: Chapter) -> None:
        rank0, rank1 = ran.disks
        assert (rank0["from"], rank0["to"]) == (12, 24)
        assert (rank1["from"], rank1["to"]) == (0, 12)
        assert rank0["weights"] != rank1["weights"]
        assert ran.code == 0

    def test_our_trainer_refuses_them_on_both_ranks(self, ran: Chapter) -> None:
        assert ran.refused_code == 1
        assert sorted(ran.refusals) == [(0, 0), (0, 1)]
        assert all("a disk that all nodes share" in error for error in ran.refusals.values())
        ledgers = list(ran.folder.glob("disk-*/run/ledger/*"))
        assert not any(ledger.read_text() for ledger in ledgers)  # no step was trained

    def test_another_seed_is_refused_and_another_rate_is_recorded(self, ran: Chapter) -> None:
        assert ran.seed_code == 1
        assert all("seed is 17 there, 18 here" in error for error in ran.seed_errors.values())
        assert ran.rate_code == 0
        assert ran.changed["changes"]["learning_rate"] == [0.001, 0.0003]


class TestTelemetry:
    def test_rank_0_sees_a_slow_sync_and_rank_1_its_loader(self, ran: Chapter) -> None:
        """50 ms are slept in rank 1's loader, and rank 0 waits for them."""
        assert ran.medians[1, "data_wait"] >= 50 > ran.medians[0, "data_wait"]
        assert ran.medians[0, "grad_sync"] > ran.medians[1, "grad_sync"]

    def test_buffered_lines_die_with_the_process(self, ran: Chapter) -> None:
        assert ran.surviving == {"as Python prints": 0, "flushed": 60}


class TestPolicy:
    def test_a_deterministic_bug_uses_up_all_restarts_without_progress(
        self, ran: Chapter
    ) -> None:
        assert ran.buggy_code == 1
        assert [attempt["trained"] for attempt in ran.buggy] == [(1, 9)] + [(7, 9)] * 3
        assert {attempt["saved"] for attempt in ran.buggy} == {6}

    def test_torchrun_restarts_a_refusal_too(self, ran: Chapter) -> None:
        assert "starts that refused the seed: 3" in ran.printed

    def test_the_policy_tells_them_apart(self, ran: Chapter) -> None:
        decisions = {name: ran.decide(ends) for name, ends in ran.CASES.items()}
        assert [decision.split()[0].strip(":") for decision in decisions.values()] == [
            "retry",
            "stop",
            "retry",
            "requeue",
            "stop",
        ]

    def test_the_cost_is_the_arithmetic_of_the_text(self, ran: Chapter) -> None:
        assert ran.each == 512 * 2.5 * 0.5
        assert "$6,400" in ran.printed


class TestGangs:
    def test_one_worker_at_a_time_deadlocks_and_gangs_finish(self, ran: Chapter) -> None:
        alone, gang = ran.timelines["one_by_one"], ran.timelines["gang"]
        assert alone.is_deadlocked
        assert alone.count(trains=True) == 0
        assert set(alone.minutes[-1]) == {("A", False), ("B", False)}  # all are allocated
        assert gang.ended == {"A": 10, "B": 20}
        assert gang.count(trains=False) == 0

    def test_a_deadlock_needs_more_workers_than_gpus(self, ran: Chapter) -> None:
        """One that never is would be blamed on the scheduler all the same."""
        pair = [Job("A", 4, 10), Job("B", 4, 10)]
        assert simulate(pair, 8, ran.one_by_one).ended == {"A": 10, "B": 10}

    def test_a_job_trains_only_with_all_of_its_workers(self) -> None:
        job = Job("A", 3, 5)
        timeline = simulate([job], 2, lambda waiting, free: list(waiting)[:free])
        assert timeline.is_deadlocked
        assert timeline.count(trains=True) == 0

    def test_whoever_is_placed_was_waiting(self, ran: Chapter) -> None:
        waiting = [Worker(job, number) for job in ran.pair for number in range(6)]
        assert ran.gang(waiting, 8) == waiting[:6]
        assert ran.gang(waiting, 5) == []

    def test_overtaking_starves_the_big_job(self, ran: Chapter) -> None:
        with_gaps = simulate(ran.stream, 8, ran.gang)
        in_line = simulate(ran.stream, 8, ran.first_in_line)
        assert with_gaps.ended["big"] == max(with_gaps.ended.values())
        assert in_line.ended["big"] < 0.5 * with_gaps.ended["big"]
        assert in_line.utilization < with_gaps.utilization

    def test_half_a_job_waits_for_the_rest_and_gives_up(self, ran: Chapter) -> None:
        assert ran.half_code == 1
        assert "RendezvousTimeoutError" in ran.lonely
        assert not (ran.folder / "half").exists()


class TestPreemption:
    def test_in_time_nothing_is_lost(self, ran: Chapter) -> None:
        assert "event: ['preempted']" in ran.printed
        assert ran.audits["quick"].replayed_steps == 0
        assert ran.audits["quick"].status == "proved"

    def test_too_late_the_steps_since_the_last_save_are(self, ran: Chapter) -> None:
        assert "event: []" in ran.printed
        assert ran.audits["late"].replayed_steps >= 2
        assert ran.audits["late"].status == "proved"
        assert ran.resumed_codes == [0, 0]


class TestSpot:
    @pytest.mark.parametrize("mtbi_s", [1800, 36_000])
    @pytest.mark.parametrize("restart_s", [60, 900])
    @pytest.mark.parametrize("is_warned", [True, False])
    def test_the_formula_is_what_a_simulation_finds(
        self, mtbi_s: float, restart_s: float, is_warned: bool
    ) -> None:
        formula = goodput_warned if is_warned else goodput_unwarned
        expected = formula(mtbi_s, 120, restart_s)
        found = simulate_goodput(mtbi_s, 120, restart_s, is_warned=is_warned, stops=40_000)
        assert found == pytest.approx(expected, rel=0.02)

    def test_a_job_stops_as_often_as_all_of_its_nodes(self) -> None:
        assert job_mtbi_s(24, 1) == 86_400
        assert job_mtbi_s(24, 48) == 1800

    def test_the_break_even_is_that_of_the_whiteboard_formula(self, ran: Chapter) -> None:
        """(1/p - 1) m / (delta + R), for on-demand nodes that never fail."""
        by_formula = (1 / 0.35 - 1) * 86_400 / 660
        assert by_formula == pytest.approx(243, abs=1)
        sizes = list(range(200, 300))
        spot = [
            ran.PRICE / goodput_warned(job_mtbi_s(24, size), ran.SAVE, ran.RESTART)
            for size in sizes
        ]
        assert break_even_nodes(sizes, spot, [1.0] * len(sizes)) == 244

    def test_small_jobs_pay_off_and_big_ones_do_not(self, ran: Chapter) -> None:
        for costs in ran.spot_costs.values():
            cheaper = [spot < other for spot, other in zip(costs, ran.on_demand, strict=True)]
            assert cheaper[0]
            assert not cheaper[-1]
            assert cheaper == sorted(cheaper, reverse=True)

    def test_the_published_rate_is_the_arithmetic_of_the_text(self, ran: Chapter) -> None:
        assert ran.on_demand_mtbf_h == pytest.approx(6334, abs=1)
