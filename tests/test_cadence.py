"""The checkpoint interval: published figures, the exact formula, and a simulated job."""

from __future__ import annotations

import json
import math
import re
import runpy
import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rehearsal.evidence.cadence import (
    Costs,
    best_interval,
    best_steps,
    daly_interval,
    expected_goodput,
    first_order_goodput,
    job_mtbf_s,
    young_interval,
)
from rehearsal.evidence.cadence_pictures import format_seconds, interval_picture, limits_picture
from rehearsal.evidence.cadence_simulation import Stragglers, enough_failures, simulate_job
from rehearsal.evidence.pictures import BLUE, VERMILLION

ROOT = Path(__file__).parents[1]
main: Callable[[list[str]], int] = runpy.run_path(str(ROOT / "scripts" / "cadence.py"))["main"]
PLAIN = Costs(save_s=4, restart_s=60, mtbf_s=8 * 3600)
# Llama 3 405B: 419 unexpected interruptions of 16,384 GPUs in 54 days (arXiv 2407.21783).
LLAMA_H = 54 * 24 / 419
durations = st.floats(1e-3, 1e7)
all_costs = st.builds(
    Costs,
    save_s=durations,
    restart_s=durations,
    mtbf_s=durations,
    publish_s=st.one_of(st.just(0.0), durations),
)


class TestFormulas:
    @pytest.mark.parametrize(("mtbf_min", "published_min"), [(1440, 117), (360, 57), (15, 9.1)])
    def test_daly_interval_gives_the_figures_of_his_paper(
        self, mtbf_min: float, published_min: float
    ) -> None:
        """Figures 3 to 5 of the paper, with a dump of 5 minutes; it is easy to drop a sign."""
        digits = 0 if published_min > 10 else 1
        assert round(daly_interval(300, 60 * mtbf_min) / 60, digits) == published_min

    def test_daly_interval_is_the_mtbf_once_a_save_takes_twice_as_long(self) -> None:
        """His series ends there; beyond it, the interval would grow without bound."""
        assert daly_interval(1999, 1000) == pytest.approx(1000, rel=0.15)
        assert daly_interval(2000, 1000) == 1000
        assert daly_interval(1e9, 1000) == 1000

    def test_young_interval_is_the_root_of_twice_the_product(self) -> None:
        """Without the 2 it is 30% too short."""
        assert young_interval(4, 8 * 3600) == pytest.approx(480)

    @given(durations, st.floats(1e-9, 1e3))
    def test_the_best_interval_is_where_the_exact_goodput_is_flat(
        self, mtbf_s: float, save_over_mtbf: float
    ) -> None:
        """exp((tau + delta)/M) (1 - tau/M) = 1, derived by hand instead of by the search."""
        costs = Costs(save_s=max(1e-9, save_over_mtbf * mtbf_s), restart_s=1.0, mtbf_s=mtbf_s)
        best_s = best_interval(costs)

        def slope(x: float) -> float:  # the sign of -dG/dtau
            return -(x + costs.save_s / mtbf_s + math.log1p(-x)) if x < 1 else 1.0

        slack = (
            1e-3  # if M is far above delta, the peak is so flat that float precision runs out
        )
        assert slope(best_s * (1 - slack) / mtbf_s) < 0 < slope(best_s * (1 + slack) / mtbf_s)

    def test_daly_is_within_one_percent_of_the_best_where_failures_are_rare(self) -> None:
        """Two independent ways to get the same number."""
        for ratio in (5, 50, 5000):
            costs = Costs(save_s=60, restart_s=60, mtbf_s=60 * ratio)
            assert daly_interval(60, costs.mtbf_s) == pytest.approx(
                best_interval(costs), rel=0.01
            )

    def test_goodput_equals_that_of_dalys_complete_model(self) -> None:
        """tau / (M exp(R/M) (exp((tau + delta)/M) - 1)), in his letters."""
        tau, delta, r, m = 300.0, 20.0, 90.0, 1000.0
        costs = Costs(save_s=delta, restart_s=r, mtbf_s=m)
        complete = tau / (m * math.exp(r / m) * (math.exp((tau + delta) / m) - 1))
        assert expected_goodput(tau, costs) == pytest.approx(complete, rel=1e-12)

    @given(all_costs, st.floats(1, 2))
    def test_no_interval_beats_the_best(self, costs: Costs, slowdown: float) -> None:
        """The search could stop on a slope; checking near and far intervals would show that."""
        best_s = best_interval(costs, slowdown)
        best = expected_goodput(best_s, costs, slowdown)
        for factor in (0.01, 0.5, 0.9, 1.1, 2, 100):
            other_s = min(max(best_s * factor, 1e-9), 1e12)
            assert expected_goodput(other_s, costs, slowdown) <= best * (1 + 1e-9)

    @given(all_costs, durations)
    def test_goodput_is_a_fraction_and_falls_with_every_cost(
        self, costs: Costs, interval_s: float
    ) -> None:
        """If a longer restart helped, a sign would be wrong."""
        goodput = expected_goodput(interval_s, costs)
        assert 0 <= goodput < 1
        for name in ("save_s", "restart_s", "publish_s"):
            worse = replace(costs, **{name: 2 * getattr(costs, name)})
            assert expected_goodput(interval_s, worse) <= goodput

    def test_the_restart_does_not_move_the_best_interval(self) -> None:
        """You pay it once per failure, no matter how often you save."""
        slow = replace(PLAIN, restart_s=3600)
        assert best_interval(slow) == pytest.approx(best_interval(PLAIN), rel=1e-4)
        assert expected_goodput(480, slow) < expected_goodput(480, PLAIN)

    def test_a_publish_delay_costs_the_same_as_a_longer_restart(self) -> None:
        """An unpublished save's work is lost at each failure, just like the restart time."""
        delayed = replace(PLAIN, publish_s=100)
        slow = replace(PLAIN, restart_s=160)
        assert expected_goodput(480, delayed) == pytest.approx(expected_goodput(480, slow))

    def test_saving_faster_than_a_checkpoint_is_written_is_never_best(self) -> None:
        """The next save waits for the one in flight, so saving more often only adds stalls."""
        costs = Costs(save_s=0.01, restart_s=60, mtbf_s=8 * 3600, publish_s=200)
        assert young_interval(0.01, costs.mtbf_s) < 200
        assert best_interval(costs) == pytest.approx(200, rel=1e-6)

    def test_best_steps_is_the_better_of_the_two_nearest_whole_numbers(self) -> None:
        """With long steps, plain rounding does not always pick the better one."""
        for step_s in (2.0, 300.0, 10_000.0):
            steps = best_steps(PLAIN, step_s)
            goodputs = {n: expected_goodput(n * step_s, PLAIN) for n in range(1, steps + 3)}
            assert steps == max(goodputs, key=lambda n: goodputs[n])


# Each formula forgets one term that a hasty derivation would forget.
WRONG = {
    "no restart": lambda tau, c: math.exp(c.restart_s / c.mtbf_s) * expected_goodput(tau, c),
    "a restart cannot fail": lambda tau, c: (
        tau
        / ((c.mtbf_s + c.restart_s) * math.expm1((tau + c.save_s) / c.mtbf_s))
        * math.exp(-c.publish_s / c.mtbf_s)
    ),
    "no publish delay": lambda tau, c: expected_goodput(tau, replace(c, publish_s=0.0)),
    "no stall": lambda tau, c: expected_goodput(tau, replace(c, save_s=1e-9)),
    "first order": first_order_goodput,
}
HARD = Costs(save_s=60, restart_s=300, mtbf_s=1000, publish_s=50)


class TestSimulation:
    @pytest.mark.parametrize(
        ("costs", "interval_s"),
        [
            (PLAIN, 480),
            (PLAIN, 7000),
            (HARD, 300),
            (HARD, 20),  # each save waits for the one in flight
            (
                Costs(save_s=60, restart_s=60, mtbf_s=40),
                30,
            ),  # most attempts end before their first save
            (Costs(save_s=1, restart_s=500, mtbf_s=400, publish_s=300), 10),
        ],
    )
    def test_the_formula_is_within_the_error_of_the_simulation(
        self, costs: Costs, interval_s: float
    ) -> None:
        """Two derivations with no code in common must agree."""
        errors = []
        for seed in range(8):
            job = simulate_job(
                interval_s, costs, np.random.default_rng(seed), num_failures=1500
            )
            assert 0 < job.standard_error < 0.02
            errors.append(
                (job.goodput - expected_goodput(interval_s, costs)) / job.standard_error
            )
        assert max(map(abs, errors)) < 4
        # Averaged over the seeds, even a bias below one standard error shows.
        assert abs(sum(errors)) / math.sqrt(len(errors)) < 3

    def test_the_standard_error_is_neither_too_large_nor_too_small(self) -> None:
        """With a large one, any formula would pass."""
        goodputs, claimed = [], []
        for seed in range(200):
            job = simulate_job(300, HARD, np.random.default_rng(seed), num_failures=200)
            goodputs.append(job.goodput)
            claimed.append(job.standard_error)
        assert np.std(goodputs) == pytest.approx(np.mean(claimed), rel=0.15)

    @pytest.mark.parametrize("name", WRONG)
    def test_a_formula_with_a_forgotten_term_is_caught(self, name: str) -> None:
        """Otherwise the agreement above would prove nothing."""
        job = simulate_job(300, HARD, np.random.default_rng(0), num_failures=20_000)
        assert abs(job.goodput - expected_goodput(300, HARD)) < 4 * job.standard_error
        assert abs(job.goodput - WRONG[name](300, HARD)) > 6 * job.standard_error

    def test_the_parts_of_the_wall_time_add_up(self) -> None:
        """Lost work is the remainder, so counting a part twice would make it negative."""
        for stragglers in (None, Stragglers(ranks=512)):
            rng = np.random.default_rng(0)
            job = simulate_job(300, HARD, rng, stragglers=stragglers)
            parts = (job.goodput, job.straggling, job.saving, job.restarting, job.lost)
            assert sum(parts) == pytest.approx(1)
            assert (min(parts) > 0) == (stragglers is not None)
            # A restart of R takes M (1 - exp(-R/M)) out of each life, whose mean is M.
            assert job.restarting == pytest.approx(1 - math.exp(-0.3), rel=0.1)


class TestStragglers:
    def test_the_slowest_of_16384_is_as_slow_as_if_all_were_drawn(self) -> None:
        """Checks the order statistics by brute force."""
        stragglers = Stragglers(ranks=16_384)
        rng = np.random.default_rng(0)
        drawn = np.exp(0.02 * rng.standard_normal((400, 16_384)).max(axis=1))
        error = float(drawn.std()) / math.sqrt(len(drawn))
        assert abs(float(drawn.mean()) - stragglers.mean_slowdown()) < 4 * error
        quantiles = np.array([0.1, 0.5, 0.9])
        assert stragglers.slowdowns(quantiles) == pytest.approx(
            np.quantile(drawn, quantiles), abs=8 * error
        )

    def test_a_single_rank_waits_for_nobody(self) -> None:
        """Goodput is measured against the median rank's step time, which here is its own."""
        assert Stragglers(ranks=1).slowdowns(np.array([0.5]))[0] == pytest.approx(1)
        assert Stragglers(ranks=1024, spread=0.0).mean_slowdown() == 1

    def test_failures_of_16384_ranks_are_one_process(self) -> None:
        """The job fails when its first rank does; here each rank's life is drawn by itself."""
        lives_h = np.random.default_rng(0).exponential(50_000, (400, 16_384)).min(axis=1)
        error_h = float(lives_h.std()) / math.sqrt(len(lives_h))
        assert abs(float(lives_h.mean()) - job_mtbf_s(50_000, 16_384) / 3600) < 4 * error_h

    def test_16384_ranks_with_stragglers_agree_with_the_formula_within_seconds(self) -> None:
        """Drawing every rank at every restart would take minutes to get the same number."""
        began = time.process_time()
        stragglers = Stragglers(ranks=16_384)
        slowdown = stragglers.mean_slowdown()
        costs = Costs(save_s=4, restart_s=600, mtbf_s=job_mtbf_s(LLAMA_H * 16_384, 16_384))
        interval_s = best_interval(costs, slowdown)
        rng = np.random.default_rng(0)
        job = simulate_job(interval_s, costs, rng, num_failures=5000, stragglers=stragglers)
        exact = expected_goodput(interval_s, costs, slowdown)
        assert abs(job.goodput - exact) < 4 * job.standard_error
        # A formula without stragglers is clearly off.
        assert abs(job.goodput - expected_goodput(interval_s, costs)) > 50 * job.standard_error
        assert job.straggling == pytest.approx((slowdown - 1) * job.goodput, rel=0.01)
        assert time.process_time() - began < 10


class TestLimits:
    def test_where_failures_are_rare_all_formulas_agree(self) -> None:
        """There, the whiteboard estimate is right."""
        costs = Costs(save_s=4, restart_s=60, mtbf_s=100 * 3600)
        young_s, best_s = young_interval(4, costs.mtbf_s), best_interval(costs)
        assert young_s == pytest.approx(best_s, rel=0.005)
        exact = expected_goodput(best_s, costs)
        assert first_order_goodput(young_s, costs) == pytest.approx(exact, abs=1e-4)

    def test_where_failures_are_as_frequent_as_restarts_the_estimate_is_absurd(self) -> None:
        """The interval is 43% too long but costs little; its estimated goodput is negative."""
        costs = Costs(save_s=60, restart_s=60, mtbf_s=120)
        young_s, best_s = young_interval(60, 120), best_interval(costs)
        assert young_s / best_s == pytest.approx(1.43, abs=0.01)
        assert first_order_goodput(young_s, costs) == pytest.approx(-0.5)
        rng = np.random.default_rng(0)
        at_young = simulate_job(young_s, costs, rng, num_failures=20_000)
        at_best = simulate_job(best_s, costs, rng, num_failures=20_000)
        assert at_young.goodput == pytest.approx(0.174, abs=4 * at_young.standard_error)
        assert at_best.goodput == pytest.approx(0.183, abs=4 * at_best.standard_error)
        assert at_young.standard_error < 0.003

    def test_the_published_failure_rate_allows_restarts_of_15_minutes(self) -> None:
        """Over 90% effective time with a failure every 3.1 h puts a limit on the restart."""
        assert pytest.approx(3.09, abs=0.01) == LLAMA_H
        costs = Costs(save_s=4, restart_s=1, mtbf_s=3600 * LLAMA_H)
        without = expected_goodput(best_interval(costs), costs)
        bound_s = 1 + costs.mtbf_s * math.log(without / 0.9)
        assert 14.5 <= bound_s / 60 < 14.6  # at 14.6 it is no longer above 90%


BAD = [math.nan, math.inf, -math.inf, -1.0, 0.0]


class TestErrors:
    @pytest.mark.parametrize("name", ["save_s", "restart_s", "mtbf_s"])
    @pytest.mark.parametrize("value", BAD)
    def test_a_cost_that_is_not_a_duration_is_refused(self, name: str, value: float) -> None:
        """NaN gets past any comparison that is not written with NaN in mind."""
        match = rf"{name}={value}: .* from 1e-09 to 1e\+12 seconds; .* Set {name} to"
        with pytest.raises(ValueError, match=match):
            replace(PLAIN, **{name: value})

    @pytest.mark.parametrize("value", BAD[:-1])
    def test_a_publish_delay_may_be_zero_but_nothing_else(self, value: float) -> None:
        """Synchronous saves have none."""
        with pytest.raises(ValueError, match=f"publish_s={value}"):
            replace(PLAIN, publish_s=value)

    @pytest.mark.parametrize("value", BAD)
    def test_no_function_accepts_an_interval_or_a_step_that_is_not_a_duration(
        self, value: float
    ) -> None:
        """Every public function has to check its own arguments."""
        calls = {
            "interval_s": [
                lambda: expected_goodput(value, PLAIN),
                lambda: first_order_goodput(value, PLAIN),
                lambda: simulate_job(value, PLAIN, np.random.default_rng(0)),
            ],
            "save_s": [lambda: young_interval(value, 1), lambda: daly_interval(value, 1)],
            "mtbf_s": [lambda: young_interval(1, value), lambda: daly_interval(1, value)],
            "mtbf_per_rank_h": [lambda: job_mtbf_s(value, 8)],
            "step_s": [lambda: best_steps(PLAIN, value)],
        }
        for name, functions in calls.items():
            for function in functions:
                with pytest.raises(ValueError, match=f"{name}={value}"):
                    function()

    def test_other_impossible_values_are_refused(self) -> None:
        """Without a check, none of them would fail."""
        for ranks in (0, -8):
            with pytest.raises(ValueError, match=f"ranks={ranks}: a job has at least one rank"):
                job_mtbf_s(50_000, ranks)
            with pytest.raises(ValueError, match=f"ranks={ranks}: a job has at least one rank"):
                Stragglers(ranks=ranks)
        for spread in (-0.1, math.nan, math.inf):
            with pytest.raises(ValueError, match=rf"spread={spread}: .* must be in 0\.\.1"):
                Stragglers(ranks=8, spread=spread)
        for slowdown in (0.0, math.nan, math.inf):
            with pytest.raises(ValueError, match=f"slowdown={slowdown}"):
                expected_goodput(480, PLAIN, slowdown)
        with pytest.raises(ValueError, match="num_failures=1: the standard error"):
            simulate_job(480, PLAIN, np.random.default_rng(0), num_failures=1)


def write_run(folder: Path, *, is_async: bool = False, ending: str = "") -> Path:
    """A run of two ranks with steps of 0.5 s and a save every 10 steps.

    Rank 1 is killed. The job resumes 20 s later, and its first step then takes 3 s.
    """
    for kind in ("logs", "ledger"):
        (folder / kind).mkdir(parents=True)
    config = {"config": {"async_checkpoint": is_async}, "steps_per_epoch": 40}
    (folder / "config.json").write_text(json.dumps(config))
    now = 1_800_000_000.0
    for attempt, steps, first_s in ((0, range(1, 26), 0.5), (1, range(21, 41), 3.0)):
        for step in steps:
            now += first_s if step == steps[0] else 0.5
            for rank in (0, 1):
                if (attempt, rank, step) == (0, 1, 25):
                    continue  # killed after step 24
                key = {"rank": rank, "attempt": attempt, "step": step}
                key["time"] = now + 0.25 * (rank == 1 and attempt == 1)  # its clock runs ahead
                line = key | {"epoch": 0, "world_size": 2, "samples": [], "step_s": 0.5}
                write(folder / "ledger", line)
                saves = step % 10 == 0
                if step % 5 == 0:
                    stall_ms = {"max": (200.0 + 100 * rank) * saves}
                    record = {"event": "train_progress", "phases": {"checkpoint": stall_ms}}
                    write(folder / "logs", key | record)
                if saves and rank == 0:
                    seconds = {"event": "checkpoint_saved", "seconds": 1.5}
                    write(folder / "logs", key | seconds)
            now += 0.3 * (step % 10 == 0)
        if ending and attempt == 0:
            key = {"rank": 0, "attempt": 0, "step": 25, "time": now}
            write(folder / "logs", key | {"event": ending})
        now += 19.5  # plus half a second since step 24
    return folder


def write(folder: Path, record: dict[str, Any]) -> None:
    """Append a line to a rank's file."""
    with (folder / f"rank-{record['rank']}.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")


class TestScript:
    def report(self, capsys: pytest.CaptureFixture[str], command: str) -> dict[str, Any]:
        """The JSON that a successful call prints."""
        assert main([*shlex.split(command), "--json"]) == 0
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        return report

    def test_it_prints_the_flag_to_copy(self, capsys: pytest.CaptureFixture[str]) -> None:
        """launch.py wants a number of steps."""
        assert main(shlex.split("--save-s 4 --restart-s 60 --mtbf-h 8 --step-s 2")) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[-1] == "--checkpoint-every-steps 239"
        rows = {line.split()[0]: line.split()[1:4] for line in lines if line.endswith("%")}
        assert rows["best"] == ["478", "239.0", "98.14%"]
        assert rows["half"] == ["239", "119.5", "97.74%"]
        assert rows["double"] == ["956", "478.0", "97.73%"]

    def test_costs_are_measured_from_the_runs_own_logs(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The slower rank's stall; from the kill to the first new step, minus one step."""
        run = write_run(tmp_path / "run")
        report = self.report(capsys, f"--run-dir {run} --mtbf-h 8")
        assert report["costs"] == {
            "save_s": pytest.approx(0.3),
            "restart_s": pytest.approx(20 + 3.25 - 0.5),
            "mtbf_s": 8 * 3600,
            "publish_s": 0,
        }
        assert report["step_s"] == 0.5
        assert main(["--run-dir", str(run), "--mtbf-h", "8"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert (
            lines[-2] == "the trainer also saves at the end of each epoch, here every 40 steps"
        )
        slow = self.report(capsys, f"--run-dir {run} --mtbf-h 8 --save-s 30 --step-s 1")
        assert slow["costs"]["save_s"] == 30
        assert slow["costs"]["restart_s"] == report["costs"]["restart_s"]
        assert slow["step_s"] == 1

    @pytest.mark.parametrize("config", ["", "{}", '{"config": 3, "steps_per_epoch": "x"}'])
    def test_a_damaged_config_gives_a_message_instead_of_a_traceback(
        self, config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A run that was killed early may have left anything behind."""
        (tmp_path / "config.json").write_text(config)
        assert main(["--run-dir", str(tmp_path), "--mtbf-h", "8"]) == 2
        assert "shows no save" in capsys.readouterr().err

    def test_an_asynchronous_save_counts_once_it_is_published(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Going by the stall alone, saving would look free."""
        run = write_run(tmp_path / "run", is_async=True)
        report = self.report(capsys, f"--run-dir {run} --mtbf-h 8")
        assert report["costs"]["publish_s"] == 1.5

    def test_a_preempted_attempt_is_not_a_failure(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The night until somebody restarts it is not restart time."""
        run = write_run(tmp_path / "run", ending="preempted")
        assert main(["--run-dir", str(run), "--mtbf-h", "8"]) == 2
        assert "shows no restart after a failure" in capsys.readouterr().err
        assert main(["--run-dir", str(run), "--mtbf-h", "8", "--restart-s", "20"]) == 0

    def test_more_ranks_fail_more_often_and_slow_the_step(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """--ranks alone does not assume stragglers."""
        flags = "--save-s 4 --restart-s 600 --ranks 16384 --mtbf-per-rank-h 50675"
        report = self.report(capsys, flags)
        assert report["costs"]["mtbf_s"] == pytest.approx(3600 * LLAMA_H, rel=1e-3)
        assert report["slowdown"] == 1
        slow = self.report(capsys, f"{flags} --spread 0.02")
        assert slow["slowdown"] == pytest.approx(1.083, abs=0.001)
        best, slow_best = (x["intervals"]["best"]["goodput"] for x in (report, slow))
        assert slow_best * 1.083 == pytest.approx(best, rel=0.002)

    @pytest.mark.parametrize(
        ("command", "message"),
        [
            ("", "--save-s is not given: .* Give --save-s SECONDS"),
            ("--save-s 4 --mtbf-h 8", "--restart-s is not given"),
            ("--save-s 4 --restart-s 60", "neither of --mtbf-h and --mtbf-per-rank-h"),
            ("--save-s 4 --restart-s 60 --mtbf-h 8 --mtbf-per-rank-h 8", "both of --mtbf-h"),
            ("--save-s 4 --restart-s 60 --mtbf-per-rank-h 8", "Add --ranks N"),
            ("--save-s 4 --restart-s 60 --mtbf-h 8 --spread 0.1", "Add --ranks N"),
            ("--save-s 4 --restart-s 60 --mtbf-h 8 --ranks 0", "ranks=0"),
            ("--save-s 4 --restart-s 60 --mtbf-h 0", r"mtbf_h=0\.0: .* hours; .* in hours"),
            ("--save-s nan --restart-s 60 --mtbf-h 8", "save_s=nan"),
            ("--save-s 4 --restart-s -1 --mtbf-h 8", r"restart_s=-1\.0"),
            ("--save-s 4 --restart-s 60 --mtbf-h 8 --step-s inf", "step_s=inf"),
            ("--save-s 4 --restart-s 60 --mtbf-h 8 --plot no/x.png", "an existing folder"),
            (
                "--save-s 4 --restart-s 60 --mtbf-h 8 --plot x.pgn",
                "the picture could not be drawn",
            ),
            ("--run-dir no/such --mtbf-h 8", "no such folder"),
        ],
    )
    def test_a_usage_error_exits_with_2_and_one_line(
        self,
        command: str,
        message: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """A traceback shows where the code is, not what to type."""
        monkeypatch.chdir(tmp_path)
        assert main(shlex.split(command)) == 2
        error = capsys.readouterr().err
        assert re.search(message, error)
        assert len(error.splitlines()) == 1
        assert len(error) < 350

    def test_both_pictures_are_written(self, tmp_path: Path) -> None:
        """One call writes both, each in the requested format."""
        plot, limits = tmp_path / "plot.png", tmp_path / "limits.svg"
        command = f"--save-s 4 --restart-s 60 --mtbf-h 8 --plot {plot} --limits {limits}"
        assert main(shlex.split(command)) == 0
        assert plot.read_bytes().startswith(b"\x89PNG")
        assert "<svg" in limits.read_text()


class TestPictures:
    def test_the_interval_picture_marks_the_best_on_the_line(self) -> None:
        """A mark off the line would contradict the formula."""
        figure = interval_picture(PLAIN, step_s=2.0)
        axes = figure.axes[0]
        lines = {line.get_color(): line for line in axes.get_lines()}
        (x,), (y,) = (np.asarray(data) for data in lines[VERMILLION].get_data())
        assert x == pytest.approx(best_interval(PLAIN))
        curve = lines[BLUE]
        assert y == pytest.approx(np.max(np.asarray(curve.get_ydata())), abs=1e-2)
        texts = [text.get_text() for text in axes.texts]
        assert texts == ["best: 7.96 min, 98.1%\n239 steps"]
        assert axes.get_ylabel() == "goodput, % of wall time"
        labels = [label.get_text() for label in axes.get_xticklabels()]
        assert labels == ["30 s", "1 min", "3 min", "10 min", "30 min", "1 h"]

    def test_the_limits_picture_has_a_line_for_each_rule(self) -> None:
        """The legend is how a color-blind reader tells the lines apart."""
        (axes,) = limits_picture(60, 60).axes
        legend = axes.get_legend()
        assert legend is not None
        assert [text.get_text() for text in legend.get_texts()] == [
            "best interval",
            "Daly's interval",
            "Young's interval",
            "first-order estimate at Young's interval",
            "simulated, +- 2 standard errors",
        ]
        assert "43% too long" in axes.texts[0].get_text()

    def test_durations_use_the_unit_that_keeps_them_short(self) -> None:
        """A reader grasps 3 h, not 10800 s."""
        cases = {0.041: "41 ms", 4: "4 s", 60: "1 min", 870: "14.5 min", 11_135: "3.09 h"}
        assert {s: format_seconds(s) for s in cases} == cases

    def test_a_point_costs_about_the_same_at_any_interval(self) -> None:
        """With a short interval there are many saves per failure, so fewer failures suffice."""
        assert enough_failures(3600, PLAIN) == 2000
        assert enough_failures(0.1, replace(PLAIN, save_s=0.1)) == 50


class TestDocs:
    def test_the_commands_in_the_docs_print_what_the_docs_show(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Numbers in prose go stale; only simulated ones may differ, with a newer numpy."""

        def blurred(text: str) -> str:
            text = re.sub(r"\d+\.\d+ \+- \d+\.\d+", "~", text.strip())
            return re.sub(r"(?<=^simulated at best: ).*", "~", text, flags=re.M)

        text = (ROOT / "docs" / "cadence.md").read_text()
        blocks = re.findall(r"```\n\$ python scripts/cadence.py (.*?)\n(.*?)```", text, re.S)
        assert len(blocks) >= 2
        for command, output in blocks:
            assert main(shlex.split(command)) == 0
            assert blurred(capsys.readouterr().out) == blurred(output)
