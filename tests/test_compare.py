"""Comparing two runs: equal if they are the same run, else the step where they diverge."""

from __future__ import annotations

import json
import runpy
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rehearsal.faults.breaks import change_samples, kill
from rehearsal.faults.jobs import codes_of, finish, small, start
from rehearsal.evidence.compare import Comparison, compare_runs, differing_value, is_same

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.ranks
BASE = {"dropout": 0.2, "keep_last": 20}
PINNED = {**BASE, "dropout": 0.0, "pinned_global_batch_size": 16}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two uninterrupted runs on 2 ranks: one plain, one with a pinned global batch."""
    folder = tmp_path_factory.mktemp("runs")
    finish(small(folder / "straight", **BASE), 2)
    finish(small(folder / "pinned", **PINNED), 2)
    return folder


@pytest.fixture
def copy(runs: Path, tmp_path: Path) -> Path:
    """A copy of the uninterrupted run, for a test to edit."""
    return Path(shutil.copytree(runs / "straight", tmp_path / "copy"))


def firsts(comparison: Comparison) -> list[tuple[int, str]]:
    """Step and subject of each difference."""
    return [(x.step, x.what.partition("[")[0]) for x in comparison.differences]


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the records of a file of JSON lines."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        change(record)
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))


# --- real runs ------------------------------------------------------------------------------


def test_a_killed_and_resumed_run_equals_the_uninterrupted_one(
    runs: Path, tmp_path: Path
) -> None:
    """In every logged digit and every tensor, because that is what a resume promises."""
    cfg = small(tmp_path / "killed", **BASE)
    start(cfg, 2, partial(kill, 1, 17))
    finish(cfg, 2)
    comparison = compare_runs(runs / "straight", tmp_path / "killed")
    assert (comparison.status, comparison.differences) == ("equal", [])
    assert comparison.verdict == "equal through step 26"
    assert (comparison.steps, comparison.exact_steps, comparison.logged_steps) == (26, 26, 26)
    assert comparison.checkpoints == [3, 6, 9, 12, 13, 15, 18, 21, 24, 26]
    assert (comparison.plan, comparison.notes) == ([], [])


def test_a_different_seed_shows_in_the_samples_of_the_first_step(
    runs: Path, tmp_path: Path
) -> None:
    """The identity says so, and the first step shows it."""
    finish(small(tmp_path / "seed", **BASE, seed=18), 2)
    comparison = compare_runs(runs / "straight", tmp_path / "seed")
    assert comparison.status == "different"
    assert "identity seed: 17 | 18" in comparison.plan
    text = "first difference at step 1: 16 and 16 samples; in one run only: "
    assert comparison.verdict.startswith(text)


def test_a_learning_rate_changed_at_a_resume_shows_there_and_then_in_the_loss(
    runs: Path, tmp_path: Path
) -> None:
    """The rate is the cause; the loss, one step later, is the effect."""
    cfg = small(tmp_path / "rate", **BASE)
    start(cfg, 2, partial(kill, 1, 17))
    finish(small(tmp_path / "rate", **BASE, learning_rate=0.01), 2)
    comparison = compare_runs(runs / "straight", tmp_path / "rate")
    assert firsts(comparison)[:3] == [(16, "lr"), (17, "loss"), (17, "grad_norm")]
    assert (18, "checkpoint, model layers.0.weight") in firsts(comparison)
    assert comparison.plan == [
        "config learning_rate: 0.001 | 0.01",
        "second run, changed after step 15: learning_rate 0.001 -> 0.01",
    ]
    text = "equal through step 15; first difference at step 16: lr"
    assert comparison.verdict.startswith(text)


def test_a_sample_whose_content_changes_mid_run_shows_from_that_step_on(
    runs: Path, tmp_path: Path
) -> None:
    """The ids are the same, so only the loss and the gradient can give it away."""
    cfg = small(tmp_path / "changed", **BASE)
    results = start(cfg, 2, partial(change_samples, 1, 11))
    assert codes_of(results) == [0, 0]
    comparison = compare_runs(runs / "straight", tmp_path / "changed")
    assert firsts(comparison)[:2] == [(11, "loss"), (11, "grad_norm")]
    assert comparison.plan == []


def test_two_and_three_ranks_are_equal_within_the_stated_tolerance(
    runs: Path, tmp_path: Path
) -> None:
    """A different world size only adds the same numbers in a different order."""
    finish(small(tmp_path / "three", **PINNED), 3)
    comparison = compare_runs(runs / "pinned", tmp_path / "three")
    assert (comparison.status, comparison.exact_steps) == ("equal", 0)
    assert len(comparison.checkpoints) == 10
    note = "from step 1 on, the split, the device or the versions differ, so numbers only need "
    assert comparison.notes == [note + "to agree within 0.001 relative or 1e-05 absolute"]


def test_exact_agreement_is_required_until_the_world_size_changes(
    runs: Path, tmp_path: Path
) -> None:
    """Before the change, a single bit is a difference; after it, rounding is not."""
    start(small(tmp_path / "chain", **PINNED), 2, partial(kill, 1, 17))
    finish(small(tmp_path / "chain", **PINNED), 3)
    comparison = compare_runs(runs / "pinned", tmp_path / "chain")
    assert (comparison.status, comparison.exact_steps) == ("equal", 15)

    def nudge(record: dict[str, Any]) -> None:
        if record.get("step") in at and "loss" in record:
            record["loss"] *= 1 + 1e-6

    at = {20}
    rewrite(tmp_path / "chain/logs/rank-0.jsonl", nudge)
    assert compare_runs(runs / "pinned", tmp_path / "chain").status == "equal"
    at = {15}
    rewrite(tmp_path / "chain/logs/rank-0.jsonl", nudge)
    assert firsts(compare_runs(runs / "pinned", tmp_path / "chain")) == [(15, "loss")]


def test_exact_agreement_is_required_until_the_batch_split_changes(
    runs: Path, tmp_path: Path
) -> None:
    """Otherwise a bit that differs before the change would pass for rounding."""
    start(small(tmp_path / "cut", **PINNED), 2, partial(kill, 1, 17))
    finish(small(tmp_path / "cut", **PINNED, micro_batch_size=2), 2)
    comparison = compare_runs(runs / "pinned", tmp_path / "cut")
    assert (comparison.status, comparison.exact_steps) == ("equal", 15)
    assert compare_runs(tmp_path / "cut", tmp_path / "cut").exact_steps == 26


def test_changing_any_other_setting_still_requires_exact_agreement(
    runs: Path, copy: Path
) -> None:
    """The number of loader workers does not change how a step is split."""
    changed = {"event": "config_changed", "step": 5, "attempt": 0, "changes": {}}
    changed["changes"] = {"num_workers": [0, 1]}
    with open(copy / "logs/rank-0.jsonl", "a") as file:
        file.write(json.dumps(changed) + "\n")
    assert compare_runs(runs / "straight", copy).exact_steps == 26


def test_a_shorter_run_is_equal_as_far_as_it_goes(runs: Path, tmp_path: Path) -> None:
    """The verdict says how far that is."""
    start(small(tmp_path / "short", **BASE), 2, partial(kill, 0, 8))
    comparison = compare_runs(runs / "straight", tmp_path / "short")
    assert comparison.status == "equal"
    verdict = f"equal through step {comparison.steps}, where the second run ends"
    assert comparison.verdict == verdict
    assert 6 <= comparison.steps <= 8
    assert comparison.checkpoints == [3, 6]


# --- edited by hand ------------------------------------------------------------------------


def test_a_sample_in_the_ledger_that_differs_is_named(runs: Path, copy: Path) -> None:
    """To find the cause you need the ids from both runs."""

    def swap(record: dict[str, Any]) -> None:
        if record["step"] == 9:
            record["samples"][2] = 5000

    rewrite(copy / "ledger/rank-1.jsonl", swap)
    comparison = compare_runs(runs / "straight", copy)
    assert firsts(comparison) == [(9, "16 and 16 samples; in one run only")]
    assert comparison.differences[0].second == "5000"


def test_the_same_samples_in_a_different_order_are_a_difference(runs: Path, copy: Path) -> None:
    """The sum over the step is the same, but each rank's dropout hits different samples."""
    rewrite(copy / "ledger/rank-1.jsonl", lambda x: x["step"] == 9 and x["samples"].reverse())
    found = firsts(compare_runs(runs / "straight", copy))
    assert found == [(9, "same samples, different split or order: rank 1 has")]


def test_a_skipped_update_is_a_difference(runs: Path, copy: Path) -> None:
    """The same samples without their update lead to different weights."""
    for rank in (0, 1):
        path = copy / f"ledger/rank-{rank}.jsonl"
        rewrite(path, lambda x: x["step"] == 4 and x.update(skipped=True))
    (difference,) = compare_runs(runs / "straight", copy).differences
    text = f"step {difference.step}, {difference}"
    assert text == "step 4, optimizer update: applied | skipped"


@pytest.mark.parametrize("part", ["model", "optimizer", "rng"])
def test_one_changed_bit_of_a_checkpoint_is_found(part: str, runs: Path, copy: Path) -> None:
    """Weights, moments and RNG state: each one alone changes the next step."""
    folder = copy / "checkpoints/step-00000012"
    path = folder / ("rng-rank-1.pt" if part == "rng" else "state.pt")
    state = torch.load(path, weights_only=True)
    if part == "rng":
        state["torch"][40] ^= 1
    else:
        values = state["model"] if part == "model" else state["optimizer"]["state"][1]
        tensor = next(x for x in values.values() if x.dim())
        tensor.view(-1)[3] = torch.nextafter(tensor.view(-1)[3], torch.tensor(9.0))
    torch.save(state, path)
    ((step, what),) = firsts(compare_runs(runs / "straight", copy))
    assert step == 12
    assert what.startswith(f"checkpoint, {part}")


def test_a_different_identity_is_a_different_run_even_if_no_step_shows_it(
    runs: Path, copy: Path
) -> None:
    """Different data under the same ids may give the same losses at first."""
    config = json.loads((copy / "config.json").read_text())
    config["identity"]["dataset_fingerprint"] = "other"
    (copy / "config.json").write_text(json.dumps(config))
    comparison = compare_runs(runs / "straight", copy)
    assert (comparison.status, comparison.differences) == ("different", [])
    assert comparison.verdict.endswith("but these are different runs: their identities differ")


def test_an_unreadable_checkpoint_is_reported_and_not_counted(runs: Path, copy: Path) -> None:
    """Silence would pass for equality."""
    (copy / "checkpoints/step-00000012/state.pt").write_bytes(b"torn")
    comparison = compare_runs(runs / "straight", copy)
    assert 12 not in comparison.checkpoints
    assert any("checkpoint 12 could not be read" in note for note in comparison.notes)


def test_the_log_of_a_lost_attempt_is_not_compared(runs: Path, copy: Path) -> None:
    """Its weights are gone, so its losses say nothing about the surviving run."""
    lost = {"event": "train_progress", "step": 20, "attempt": 5, "loss": 9.0, "lr": 1.0}
    with open(copy / "logs/rank-0.jsonl", "a") as file:
        file.write(json.dumps(lost) + "\n")
    assert compare_runs(runs / "straight", copy).status == "equal"


def test_equal_samples_without_logs_or_checkpoints_are_no_evidence(
    runs: Path, copy: Path
) -> None:
    """Equal samples alone are weaker evidence than equal weights."""
    (copy / "logs/rank-0.jsonl").write_text("")
    shutil.rmtree(copy / "checkpoints")
    comparison = compare_runs(runs / "straight", copy)
    wanted = {"no logged step in common", "no checkpoint in common"}
    assert wanted <= {*comparison.notes}
    assert comparison.status == "no_evidence"
    assert "so their weights may differ" in comparison.verdict


@pytest.mark.parametrize("exact", [True, False])
def test_nan_is_equal_to_nan_and_to_nothing_else(exact: bool) -> None:
    """Two runs that both end in NaN can still be the same run."""
    nan = torch.tensor([1.0, float("nan")])
    assert differing_value(nan, nan.clone(), exact=exact) is None
    place, first, second = differing_value(nan, torch.ones(2), exact=exact) or ("", 0, 0)
    assert (place, second) == ("[1]", 1.0)
    assert first != first
    assert is_same(float("nan"), float("nan"), exact=exact)
    assert not is_same(float("nan"), 1.0, exact=exact)
    assert not is_same(None, 1.0, exact=exact)
    assert differing_value(torch.ones(2), torch.ones(3), exact=exact) is not None
    assert is_same(1.0, 1.0 + 1e-6, exact=exact) is not exact


# --- the script -----------------------------------------------------------------------------


def run_main(*arguments: object) -> int:
    main: Callable[[list[str]], int] = runpy.run_path(str(ROOT / "scripts/audit_run.py"))[
        "main"
    ]
    return main([str(argument) for argument in arguments])


def test_the_script_exits_with_0_1_or_2(
    runs: Path, copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipeline must be able to tell equal, different and no evidence apart."""
    straight = runs / "straight"
    assert run_main(straight, "--against", copy) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "equal: equal through step 26"
    shutil.rmtree(copy / "logs")
    assert run_main(straight, "--against", copy) == 0
    assert "no logged step in common" in capsys.readouterr().out
    shutil.rmtree(copy / "checkpoints")
    assert run_main(straight, "--against", copy) == 2
    assert "no evidence: the runs trained the same samples" in capsys.readouterr().out
    shutil.rmtree(copy / "ledger")
    assert run_main(straight, "--against", copy) == 2
    assert "no surviving step" in capsys.readouterr().out
    assert run_main(tmp_path / "nowhere", "--against", straight) == 2
    output = capsys.readouterr().out
    assert output.startswith("no evidence: ")
    assert "--run-dir" in output
    assert len(output) < 400
    assert run_main(straight, "--against", runs / "pinned", "--json") == 1
    comparison = json.loads(capsys.readouterr().out)
    assert comparison["status"] == "different"
    assert comparison["differences"][0]["step"] == 1
    with pytest.raises(SystemExit) as left:
        run_main(straight, "--against", copy, "--plot", tmp_path / "x.png")
    assert left.value.code == 2
