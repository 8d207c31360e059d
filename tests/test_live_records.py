"""Are the pictures of a live run what its ledger says?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trainer_core import live
from rehearsal.evidence.audit import audit_run
from rehearsal.evidence.live_records import live_events, live_trace, summarize_phases
from rehearsal.evidence.pictures import loss_curves, phase_bars, rank_timeline, sample_map
from rehearsal.evidence.run_records import read_logs

FIRST = {"data_wait": 0.001, "forward": 0.002, "backward": 0.004, "optimizer": 0.001}


def write_line(folder: Path, rank: int, **fields: Any) -> None:
    path = folder / "ledger" / f"rank-{rank}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps({"rank": rank, "world_size": 2, **fields}) + "\n")


def write_step(
    folder: Path, rank: int, attempt: int, step: int, phases: dict[str, float], **fields: Any
) -> None:
    at = {"attempt": attempt, "step": step, "epoch": 0, "samples": []}
    line = {"loss": 0.25 + rank, "phases": phases, "time": 100.0 + step}
    write_line(folder, rank, **at | line | fields)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Attempt 0 ends at step 2, which rank 1 never recorded; attempt 1 restores step 1."""
    for rank in range(2):
        write_line(tmp_path, rank, event="run_start", attempt=0, step=0)
        write_step(tmp_path, rank, 0, 1, FIRST)
    write_step(tmp_path, 0, 0, 2, {"log": 0.001, "checkpoint": 0.5, **FIRST})
    for rank in range(2):
        write_line(tmp_path, rank, event="run_start", attempt=1, step=1)
        write_step(tmp_path, rank, 1, 2, FIRST)
        write_step(tmp_path, rank, 1, 3, {"log": 0.001, "checkpoint": 0.2, **FIRST})
    return tmp_path


def events(folder: Path, event: str) -> list[dict[str, Any]]:
    return [record for record in live_events(folder) if record["event"] == event]


def test_a_start_with_numbers_that_count_nothing_is_no_start(folder: Path) -> None:
    """True is an int to Python; an attempt -1 would come before the first."""
    for broken in ({"attempt": True}, {"attempt": -1}, {"attempt": 2, "step": 1.5}):
        write_line(folder, 0, event="run_start", **{"step": 1, **broken})
    assert read_logs(folder).begun == {0, 1}


def test_the_loss_of_a_step_is_the_sum_of_the_ranks_parts(folder: Path) -> None:
    """Each rank's line has its part of the mean; one part alone isn't the loss of anything."""
    progress = events(folder, "train_progress")
    assert {(x["attempt"], x["step"]) for x in progress} == {(0, 1), (1, 2), (1, 3)}
    assert {record["loss"] for record in progress} == {1.5}


def test_a_step_that_a_kill_cut_off_has_no_loss(folder: Path) -> None:
    """Rank 0's part of it would be drawn as a drop."""
    assert (0, 2) not in {(x["attempt"], x["step"]) for x in events(folder, "train_progress")}


def test_a_restart_is_known_with_the_step_it_restored(folder: Path) -> None:
    """The picture marks where the second attempt picked up."""
    restored = events(folder, "checkpoint_restored")
    assert [(x["rank"], x["attempt"], x["step"]) for x in restored] == [(0, 1, 1), (1, 1, 1)]


def test_the_phases_are_summarized_over_an_attempt(folder: Path) -> None:
    """A phase that a step did not have took no time in it."""
    last = [record for record in events(folder, "train_progress") if record["phases"]]
    assert {(x["attempt"], x["step"], x["num_steps"]) for x in last} == {(0, 1, 1), (1, 3, 2)}
    saves = last[-1]["phases"]["checkpoint"]
    assert saves == pytest.approx({"p50": 100, "p95": 190, "max": 200})
    assert summarize_phases([]) == {}


def test_a_save_belongs_to_the_step_before_the_line_that_reports_it(folder: Path) -> None:
    """live.py times the save after it has written the step's line."""
    trace = [x for x in live_trace(folder) if (x["pid"], x["args"]["attempt"]) == (1, 1)]
    steps = [(x["name"], x["args"]["step"]) for x in trace]
    assert steps[:4] == [(name, 2) for name in FIRST]
    assert steps[4:7] == [("log", 2), ("checkpoint", 2), ("data_wait", 3)]
    ends = [x["ts"] + x["dur"] for x in trace]
    assert ends[-1] == pytest.approx(103e6)
    assert [x["ts"] for x in trace[5:]] == pytest.approx(ends[4:-1])


def test_the_timeline_and_the_bars_draw_the_live_ledger(folder: Path) -> None:
    """The trainer you type has no traces and no log."""
    texts = [
        text.get_text()
        for text in rank_timeline(folder, 2, 2).findobj()
        if hasattr(text, "get_text")
    ]
    assert {"checkpoint", "log", "rank 1", "What each rank did in steps 2 to 3"} <= {*texts}
    subtitle = phase_bars(folder).axes[0].get_title(loc="left")
    assert subtitle.startswith("Attempt 1, 2 steps. Marker: p50")


# live.py leaves its ledger open to the end of the process, which closes it.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_run_of_live_py_can_be_drawn(tmp_path: Path) -> None:
    """The ledger is read by its own words, which live.py could change."""
    cfg = live.TrainConfig(
        run_dir=str(tmp_path), dataset_size=100, max_epochs=1, device="cpu", warmup_steps=2
    )
    result = live.run(cfg)  # type: ignore[no-untyped-call]
    assert result["step"] == 4
    assert audit_run(tmp_path).status == "proved"
    curve = loss_curves({"alone": tmp_path}).axes[0].get_lines()[0]
    assert len(curve.get_xdata()) == 4  # type: ignore[arg-type]
    assert "0 of 100" not in sample_map(tmp_path).axes[0].get_title(loc="left")
    names = [label.get_text() for label in phase_bars(tmp_path).axes[0].get_yticklabels()]
    assert names == ["data_wait", "forward", "backward", "optimizer", "log"]
    assert rank_timeline(tmp_path).axes[0].get_xlabel() == "milliseconds since step 2 began"
