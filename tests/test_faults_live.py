"""The fault groups of live.py: a few tries of each, and judges that can say no."""

from __future__ import annotations

import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from rehearsal.faults import corruption, live, points, registry
from rehearsal.faults.breaks import wrap
from rehearsal.faults.chains import chain
from rehearsal.faults.corruption import Corruption
from rehearsal.faults.jobs import (
    SIX_STEPS_LIVE,
    codes_of,
    finish,
    last_record,
    problem_of,
    small_live,
    start,
)
from rehearsal.faults.kills import killed_run
from rehearsal.faults.matrix import Bench, Try
from rehearsal.faults.tracer import Kill, Point, why_not
from trainer_core.checkpoint_format import DamagedCheckpoint

pytestmark = pytest.mark.ranks
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    for group in ("points", "corruption"):
        (tmp_path / group).mkdir()
    return Bench(tmp_path, seed=5, quick=True)


@pytest.fixture(scope="module")
def can_trace(tmp_path_factory: pytest.TempPathFactory) -> None:
    if reason := why_not(tmp_path_factory.mktemp("trial")):
        pytest.skip(f"no point was looked for: {reason}")


def survived(each: Try) -> None:
    assert each.problem == "", f"{each.fault}: {each.what}"
    assert (each.lost, each.repeated) == (0, 0)


@pytest.mark.usefixtures("can_trace")
@pytest.mark.parametrize(
    ("plan", "moment", "point"),
    [
        (0, "after", Point("write", "checkpoints/tmp-*/state.pt", 4)),
        (0, "before", Point("rename", "checkpoints/tmp-*", 2)),
        (1, "after", Point("rename", "checkpoints/tmp-*", 2)),
        (1, "before", Point("fsync", "checkpoints/tmp-*/manifest.json", 1)),
    ],
)
def test_a_kill_in_a_save_costs_no_sample(
    bench: Bench, plan: int, moment: Any, point: Point
) -> None:
    """The claim of live.py's first line, at a few of its points."""
    survived(points.kill_and_resume(bench, live.PLANS[plan], None, Kill(moment, point)))


@pytest.mark.usefixtures("can_trace")
def test_every_part_of_a_save_is_a_point(tmp_path: Path) -> None:
    """No kill ever strikes at a call that the tracer misses."""
    found = points.points_of(live.PLANS[0], tmp_path / "run")
    calls = {(point.call, point.path) for point in found}
    for name in ("tmp-*/state.pt", "tmp-*/manifest.json"):
        assert {("write", f"checkpoints/{name}"), ("fsync", f"checkpoints/{name}")} <= calls
    assert {("rename", "checkpoints/tmp-*"), ("write", "ledger/rank-0.jsonl")} <= calls


KINDS = {each.what: each for each in live.damages(random.Random(5), quick=False)}


@pytest.mark.parametrize("what", ["flip_a_bit 1 of state.pt", "lose 0 of manifest.json", "0"])
def test_damage_costs_no_sample(bench: Bench, what: str) -> None:
    """One flipped bit in the newest checkpoint, or every checkpoint."""
    size = KINDS[what].world_size
    template = corruption.template_of(bench, size, live.LIVE)
    survived(corruption.meets(bench, KINDS[what], template, live.LIVE, live.wrong_answer))


def test_damage_that_nobody_notices_is_reported(bench: Bench) -> None:
    """A try that expects a fallback must fail if there was none."""
    template = corruption.template_of(bench, 1, live.LIVE)
    nothing = Corruption("x", "nothing is damaged", lambda *_: None)
    result = corruption.meets(bench, nothing, template, live.LIVE, live.wrong_answer)
    assert "restored step 4; it should restore [3]" in result.problem
    refused = nothing._replace(answer="is refused")
    result = corruption.meets(bench, refused, template, live.LIVE, live.wrong_answer)
    assert "did not refuse" in result.problem


def test_a_chain_of_world_sizes_trains_each_sample_once(bench: Bench) -> None:
    rng = random.Random(3)
    survived(chain(bench, rng, live.draw_plan(rng), {}, [2, 3, 1], live.LIVE, "x"))


def test_a_kill_under_torchrun_costs_no_sample(bench: Bench) -> None:
    """The restart meets a store that still has the dead ranks' addresses."""
    plan, kill = {**live.LONG, "max_epochs": 1}, ("while_training", "a rank")
    rng = random.Random(1)
    (each,) = killed_run(bench, rng, plan, [kill], forks=True, trainer=live.LIVE, world_size=3)
    survived(each)
    assert each.restart_s is not None


def test_a_machine_that_dies_is_started_again_by_hand(bench: Bench) -> None:
    """Torchrun dies with its ranks, and the same command resumes."""
    plan, kill = {**live.LONG, "max_epochs": 1}, ("while_training", "the machine")
    rng = random.Random(5)  # draws 19 steps, and a checkpoint every 10 precedes the kill
    (each,) = killed_run(bench, rng, plan, [kill], forks=True, trainer=live.LIVE)
    survived(each)
    assert each.restart_s is not None
    assert each.replayed_steps <= 10, "it began at step 0, so it restored nothing"


def test_the_judge_of_checkpoints_is_not_the_trainer(tmp_path: Path) -> None:
    """A trainer trusts whatever it publishes itself."""
    finish(small_live(tmp_path, **SIX_STEPS_LIVE), 1)
    paths = sorted((tmp_path / "checkpoints").iterdir())
    for path in paths:
        live.verify(path)
    (paths[0] / "state.pt").write_bytes(b"")
    (paths[1] / "manifest.json").unlink()
    paths[2].rename(paths[2].with_name("step-000000000007"))
    for path in (*paths[:2], paths[2].with_name("step-000000000007")):
        with pytest.raises(DamagedCheckpoint):
            live.verify(path)


def lose_a_line(step: int) -> None:
    """Have the trainer not write its line of a step."""

    def losing(log: Any, file: Any, **fields: Any) -> None:
        if not ("samples" in fields and fields["step"] == step):
            log(file, **fields)

    wrap("log_rank_event", losing)


def test_a_break_reaches_the_functions_of_the_script(bench: Bench, tmp_path: Path) -> None:
    """Applied before live.py has defined them, it would break nothing and prove nothing."""
    cfg = small_live(tmp_path / "run", **SIX_STEPS_LIVE)
    assert problem_of(start(cfg, 1, partial(lose_a_line, 4))) == ""
    result = bench.judge("x", "x", tmp_path / "run", equal=True)
    assert "incomplete steps: 1" in result.problem
    assert result.lost == 4
    reports = start(small_live(tmp_path / "other"), 1, partial(wrap, "no_such_function", None))
    assert codes_of(reports) == [1]
    assert "no_such_function" in reports[0].output


def test_the_last_trained_step_is_not_the_start_of_an_attempt(tmp_path: Path) -> None:
    """A restart's first line names the restored step; it has trained nothing yet."""
    finish(small_live(tmp_path, **SIX_STEPS_LIVE), 1)
    ledger = tmp_path / "ledger" / "rank-0.jsonl"
    with ledger.open("a") as file:
        file.write('{"event": "run_start", "attempt": 1, "step": 6}\n')
    assert last_record(ledger)["attempt"] == 1
    assert last_record(ledger, "samples")["attempt"] == 0


def test_every_group_is_registered_and_there_are_50_corruptions() -> None:
    """A group that is missing leaves no row in the table, so nobody would miss it."""
    assert len(KINDS) >= 50
    assert {name for name in registry.GROUPS if name.startswith("live_")} == {
        "live_points",
        "live_corruption",
        "live_chains",
        "live_kills",
        "live_ends",
    }
