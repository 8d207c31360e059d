"""The audit proves every correct run, and refutes every way of breaking one."""

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rehearsal.engine.programs import run as run_program
from rehearsal.evidence import audit as audit_module
from rehearsal.evidence import run_records
from rehearsal.evidence.audit import AuditReport, audit_run
from rehearsal.evidence.run_records import read_jsonl
from trainer_core import live
from trainer_core.checkpoint_format import manifest_sha256
from trainer_core.order import EpochOrder

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "audit_run.py"
Line = dict[str, Any]


class Attempt(NamedTuple):
    """One attempt of a scripted run: trains from the newest checkpoint through ``last``."""

    world_size: int
    last: int
    saved: int | None = None  # step of the checkpoint that it saves, if any
    end: str | None = None  # "run_end", "preempted", or None for a kill
    in_flight: int = 0  # ranks that recorded one more step before the kill
    restores: int | None = None  # the step it restores, if not the newest save
    saved_by: int | None = None  # the attempt that saved that, if the log says so


class Run(NamedTuple):
    """A run folder before it is written to disk: plan, ledger lines and log records."""

    num_samples: int
    global_batch: int
    seed: int
    total_steps: int
    ledger: list[Line]
    logs: list[Line]
    is_live: bool = False  # live.py's: its own order, no logs, no config.json


def share_of(run: Run, step: int, rank: int, world_size: int) -> tuple[int, list[int]]:
    """Epoch and samples of a rank in a step: an independent version of the contract."""
    n, batch = run.num_samples, run.global_batch
    epoch, at = divmod(step - 1, -(-n // batch))
    order = EpochOrder(n, seed=run.seed, epoch=epoch).samples(0, n).tolist()
    if run.is_live:
        order = live.epoch_order(n, run.seed, epoch).tolist()
    slots = range(at * batch + rank, min((at + 1) * batch, n), world_size)
    return epoch, [order[slot] for slot in slots]


def script_run(
    n: int,
    batch: int,
    epochs: int,
    attempts: list[Attempt],
    seed: int = 7,
    is_live: bool = False,
) -> Run:
    """What a correct trainer records over ``attempts``, at half a second per step."""
    run = Run(n, batch, seed, epochs * -(-n // batch), [], [], is_live)
    saved, now = 0, 1000.0
    for number, attempt in enumerate(attempts):
        saved = saved if attempt.restores is None else attempt.restores
        base = {"attempt": number, "rank": 0, "local_rank": 0, "run_id": "r"}
        run.logs.append({**base, "event": "run_start", "step": saved, "time": now})
        if number and saved:
            event = {"event": "checkpoint_restored", "step": saved, "time": now + 0.5}
            named = {} if attempt.saved_by is None else {"saved_by_attempt": attempt.saved_by}
            run.logs.append(base | event | named)
        now += 1.0
        start, newest = saved + 1, saved
        for step in range(start, attempt.last + 1 + (attempt.in_flight > 0)):
            now += 0.5
            ranks = attempt.in_flight if step > attempt.last else attempt.world_size
            for rank in range(ranks):
                epoch, samples = share_of(run, step, rank, attempt.world_size)
                run.ledger.append(
                    {
                        "attempt": number,
                        "epoch": epoch,
                        "step": step,
                        "rank": rank,
                        "world_size": attempt.world_size,
                        "samples": samples,
                        "time": now,
                        "step_s": 0.5,
                    }
                )
            if step == attempt.saved:
                run.logs.append(base | {"event": "checkpoint_saved", "step": step, "time": now})
                newest = step
        if attempt.end:
            run.logs.append(base | {"event": attempt.end, "step": attempt.last, "time": now})
        saved, now = newest, now + 10.0
    return run


def write_run(run: Run, folder: Path, *, cut: Line | None = None) -> Path:
    """Write the run folder; the line ``cut`` is truncated halfway, as by a kill."""
    if run.is_live:
        return write_live_run(run, folder, cut)
    for part in ("ledger", "logs"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    identity = {
        "data": "toy",
        "num_samples": run.num_samples,
        "dataset_fingerprint": "f",
        "seed": run.seed,
        "global_batch_size": run.global_batch,
        "model": {},
    }
    config = {"format": 1, "identity": identity, "total_steps": run.total_steps}
    (folder / "config.json").write_text(json.dumps(config))
    for part, records in (("ledger", run.ledger), ("logs", run.logs)):
        for record in records:
            text = json.dumps(record)
            text = text[: len(text) // 2] if record is cut else text
            with open(folder / part / f"rank-{record['rank']}.jsonl", "a") as file:
                file.write(text + "\n")
    return folder


def write_live_run(run: Run, folder: Path, cut: Line | None) -> Path:
    """The same as live.py leaves it: starts and steps in the ledger, and its checkpoints."""
    (folder / "ledger").mkdir(parents=True, exist_ok=True)
    settings = {
        "dataset_size": run.num_samples,
        "global_batch_size": run.global_batch,
        "seed": run.seed,
        "max_epochs": run.total_steps // -(-run.num_samples // run.global_batch),
    }
    starts = [event for event in run.logs if event["event"] == "run_start"]
    for start in starts:
        lines = [line for line in run.ledger if line["attempt"] == start["attempt"]]
        ranks = {line["rank"] for line in lines} or {0}
        for rank in sorted(ranks):
            records = [{**settings, **start, "rank": rank}]
            for line in lines:
                if line["rank"] == rank:
                    step_s = line.get("step_s", 0.0)
                    phases = {"forward": 0.75 * step_s, "optimizer": 0.25 * step_s}
                    records.append({**line, "phases": phases})
            with open(folder / "ledger" / f"rank-{rank}.jsonl", "a") as file:
                for record in records:
                    text = json.dumps(record)
                    is_cut = cut is not None and cut.items() <= record.items()
                    file.write((text[: len(text) // 2] if is_cut else text) + "\n")
    for event in run.logs:
        if event["event"] == "checkpoint_saved":
            write_live_checkpoint(folder, event["step"])
    return folder


def write_live_checkpoint(folder: Path, step: int) -> Path:
    path = folder / "checkpoints" / f"step-{step:012}"
    path.mkdir(parents=True, exist_ok=True)
    (path / "state.pt").write_bytes(b"%d" % step)
    manifest = {"step": step, "sha256": hashlib.sha256(b"%d" % step).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def write_checkpoint(folder: Path, step: int, attempt: int) -> Path:
    """The part of a published checkpoint that the audit reads."""
    path = folder / "checkpoints" / f"step-{step:08}" / "manifest.json"
    path.parent.mkdir(parents=True)
    manifest = {"format": 1, "step": step, "attempt": attempt}
    path.write_text(json.dumps(manifest | {"sha256": manifest_sha256(manifest)}))
    return path


def audit(run: Run, *, cut: Line | None = None) -> AuditReport:
    with tempfile.TemporaryDirectory() as folder:
        return audit_run(write_run(run, Path(folder), cut=cut))


def killed_run(is_live: bool = False) -> Run:
    """50 samples in batches of 8, 3 epochs; killed at step 12, resumed from 10 with 3 ranks."""
    attempts = [Attempt(2, 12, saved=10), Attempt(3, 21, saved=21, end="run_end")]
    return script_run(50, 8, 3, attempts, is_live=is_live)


def find(run: Run, *, step: int, rank: int, attempt: int) -> Line:
    wanted = (step, rank, attempt)
    return next(x for x in run.ledger if (x["step"], x["rank"], x["attempt"]) == wanted)


@st.composite
def correct_runs(draw: st.DrawFn) -> Run:
    """Any dataset, batch and world size; kills anywhere, with and without a checkpoint."""
    n, batch = draw(st.integers(1, 40)), draw(st.integers(1, 45))
    epochs = draw(st.integers(1, 3))
    total, saved, attempts = epochs * -(-n // batch), 0, list[Attempt]()
    for _ in range(draw(st.integers(0, 3))):
        last = draw(st.integers(min(saved + 1, total), total))
        newest = draw(st.none() | st.integers(saved + 1, last)) if saved < last else None
        world_size = draw(st.integers(1, 4))
        in_flight = draw(st.integers(0, world_size - 1)) if last < total else 0
        attempts.append(Attempt(world_size, last, newest, None, in_flight))
        saved = newest or saved
        if saved == total:
            break
    if saved < total and (draw(st.booleans()) or not attempts):
        attempts.append(Attempt(draw(st.integers(1, 4)), total, total, "run_end"))
    seed, is_live = draw(st.integers(0, 5)), draw(st.booleans())
    return script_run(n, batch, epochs, attempts, seed, is_live)


def surviving(run: Run) -> list[Line]:
    """The lineage's lines of a finished run, found in a different way than the audit's."""
    newest = {(x["step"]): x["attempt"] for x in sorted(run.ledger, key=lambda x: x["attempt"])}
    return [x for x in run.ledger if newest[x["step"]] == x["attempt"]]


@given(correct_runs())
def test_a_correct_run_is_proved_for_any_size_world_size_and_kill(run: Run) -> None:
    """An audit that cries wolf gets turned off."""
    report = audit(run)
    assert (report.status, report.findings) == ("proved", [])
    attempts_of = [{x["attempt"] for x in run.ledger if x["step"] == s} for s in range(1, 200)]
    assert report.replayed_steps == sum(len(attempts) > 1 for attempts in attempts_of)
    assert report.attempts == max(x["attempt"] for x in run.ledger) + 1
    assert report.total_steps == run.total_steps


def drop_line(run: Run, line: Line) -> None:
    run.ledger.remove(line)


def drop_step(run: Run, line: Line) -> None:
    run.ledger[:] = [x for x in run.ledger if x["step"] != line["step"]]


def drop_rank(run: Run, line: Line) -> None:
    run.ledger[:] = [x for x in run.ledger if x["rank"] != line["rank"]]


def repeat_sample(run: Run, line: Line) -> None:
    line["samples"].append(line["samples"][0])


def train_sample_of_another_step(run: Run, line: Line) -> None:
    others = [x for x in surviving(run) if x["epoch"] == line["epoch"] and x["samples"]]
    line["samples"][0] = next(x for x in others if x is not line)["samples"][0]


def lose_sample(run: Run, line: Line) -> None:
    line["samples"].pop()


def reverse_samples(run: Run, line: Line) -> None:
    line["samples"].reverse()


def swap_with_another_rank(run: Run, line: Line) -> None:
    others = [x for x in surviving(run) if x["step"] == line["step"] and x is not line]
    other = next(x for x in others if x["samples"])
    line["samples"][0], other["samples"][0] = other["samples"][0], line["samples"][0]


def repeat_line(run: Run, line: Line) -> None:
    run.ledger.append(dict(line))


def claim_another_epoch(run: Run, line: Line) -> None:
    line["epoch"] += 1


def claim_another_world_size(run: Run, line: Line) -> None:
    line["world_size"] += 1


def name_a_foreign_sample(run: Run, line: Line) -> None:
    line["samples"][0] = run.num_samples + 5


MUTATIONS: list[tuple[Callable[[Run, Line], None], str, dict[str, int]]] = [
    (drop_line, r"epoch {epoch} step {step}: lines from ranks", {"incomplete_steps": 1}),
    (drop_step, r"epoch {epoch} step {step}: no line from any rank", {"incomplete_steps": 1}),
    (drop_rank, r"lines from ranks .* each of ranks 0\.\.", {}),
    (
        repeat_sample,
        r"sample {sample} was trained in .* and again in ",
        {"duplicates": 1, "misses": 0},
    ),
    (
        train_sample_of_another_step,
        r"epoch {epoch}: sample \d+ was trained in step",
        {"misses": 1},
    ),
    (lose_sample, r"sample {last}, due on rank {rank}, is in no line", {"misses": 1}),
    (reverse_samples, r"step {step} rank {rank} attempt", {"wrong_lines": 1, "misses": 0}),
    (
        swap_with_another_rank,
        r"step {step} rank {rank} attempt",
        {"wrong_lines": 2, "misses": 0},
    ),
    (repeat_line, r"lines from ranks .*{rank}, {rank}", {"incomplete_steps": 1}),
    (
        claim_another_epoch,
        r"claims epoch {next_epoch} and world size \d instead of {epoch} and",
        {"wrong_lines": 1, "misses": 0},
    ),
    (claim_another_world_size, r"lines from ranks", {"misses": 0, "incomplete_steps": 1}),
    (
        name_a_foreign_sample,
        r"attempt \d: trained {foreign}, .* instead of {sample}, ",
        {"wrong_lines": 1, "misses": 1},
    ),
]


@pytest.mark.parametrize(("mutate", "finding", "counts"), MUTATIONS)
@settings(max_examples=25)
@given(data=st.data(), is_live=st.booleans())
def test_one_change_to_the_ledger_is_refuted_with_its_own_finding(
    mutate: Callable[[Run, Line], None],
    finding: str,
    counts: dict[str, int],
    data: st.DataObject,
    is_live: bool,
) -> None:
    """A proof that misses one lost or repeated sample is worth nothing."""
    cuts = st.lists(st.tuples(st.integers(1, 15), st.integers(2, 4)), max_size=2)
    attempts, saved = list[Attempt](), 0
    for length, world_size in data.draw(cuts):
        saved += max(1, length // 2)
        attempts.append(Attempt(world_size, min(saved + length, 35), min(saved, 30)))
    attempts.append(Attempt(data.draw(st.integers(2, 4)), 36, 36, "run_end"))
    # 90 samples in batches of 8: 12 steps per epoch, the last with 2 samples.
    run = script_run(90, 8, 3, attempts, is_live=is_live)
    lines = [x for x in surviving(run) if len(x["samples"]) > 1]
    line = data.draw(st.sampled_from(lines))
    words = {
        "epoch": line["epoch"],
        "next_epoch": line["epoch"] + 1,
        "step": line["step"],
        "rank": line["rank"],
        "sample": line["samples"][0],
        "last": line["samples"][-1],
        "foreign": run.num_samples + 5,
    }
    mutate(run, line)
    report = audit(run)
    assert report.status == "refuted"
    pattern = finding.format(**words)
    assert any(re.search(pattern, text) for text in report.findings), report.findings
    assert {kind: getattr(report, kind) for kind in counts} == counts


def test_a_rank_without_samples_in_a_step_must_still_write_its_line() -> None:
    """A missing line is the only sign that a rank had left, or was counted twice."""
    run = script_run(50, 8, 1, [Attempt(4, 7, 7, "run_end")])  # the last step has 2 samples
    assert audit(run).status == "proved"
    line = find(run, step=7, rank=3, attempt=0)
    assert line["samples"] == []
    line["rank"] = 2
    report = audit(run)
    assert (report.status, report.incomplete_steps, report.misses) == ("refuted", 1, 0)


# --- kills ---------------------------------------------------------------------------------


def test_steps_in_flight_at_a_kill_are_reported_but_not_judged() -> None:
    """A kill between two ranks' writes loses no sample: the step is trained again."""
    report = audit(script_run(50, 8, 3, [Attempt(3, 12, saved=10, in_flight=2)]))
    assert (report.status, report.steps, report.in_flight_steps) == ("proved", 12, [13])
    assert any("in flight, not judged: steps 13" in note for note in report.notes)


def test_an_attempt_killed_in_its_first_step_leaves_the_earlier_lineage_intact() -> None:
    """Its half-recorded step must not hide that the steps before it are complete."""
    attempts = [Attempt(2, 12, saved=10), Attempt(2, 10, in_flight=1)]
    report = audit(script_run(50, 8, 3, attempts))
    assert (report.status, report.steps, report.in_flight_steps) == ("proved", 10, [11])
    assert report.replayed_steps == 1


@pytest.mark.parametrize("event", ["checkpoint_saved", "run_end", "preempted"])
def test_a_missing_line_in_a_step_that_the_run_called_done_refutes(event: str) -> None:
    """A checkpoint is published only after every rank has recorded all of its steps."""
    run = script_run(50, 8, 3, [Attempt(2, 12, saved=10, in_flight=1)])
    run.logs.append({"attempt": 0, "rank": 0, "event": event, "step": 13, "time": 1008.0})
    report = audit(run)
    assert (report.status, report.in_flight_steps) == ("refuted", [])
    found = "epoch 1 step 13: lines from ranks 0, expected one from each of ranks 0..1"
    assert found in report.findings[0]


def test_a_run_that_ended_after_its_last_ledger_line_is_refuted() -> None:
    """If all ranks lost the trailing lines, only the logs still show those steps."""
    run = killed_run()
    run.ledger[:] = [line for line in run.ledger if line["step"] != run.total_steps]
    report = audit(run)
    assert (report.status, report.steps, report.misses) == ("refuted", 21, 2)


def test_a_miss_names_its_rank_only_if_the_step_has_lines() -> None:
    """With no lines, the world size is unknown, and rank 0 would get the blame for all."""
    run = script_run(50, 8, 3, [Attempt(2, 21, saved=21, end="run_end")])
    run.ledger[:] = [line for line in run.ledger if line["step"] != 13]
    report = audit(run)
    missed = [text for text in report.findings if text.startswith("epoch 1 step 13: sample ")]
    assert len(missed) == 5
    assert all(re.search(r": sample \d+ is in no line of this epoch$", x) for x in missed)
    # The sample map draws them over the full height of the step.
    assert report.places["misses"] == [(13, 0, at) for at in range(8)]


def test_a_truncated_line_of_a_retrained_step_is_not_a_finding() -> None:
    """The usual trace of kill -9 must not refute the resumed run."""
    run = killed_run()
    report = audit(run, cut=find(run, step=12, rank=1, attempt=0))
    assert (report.status, report.replayed_steps, report.attempts) == ("proved", 2, 2)


def test_a_truncated_line_in_the_last_step_of_a_finished_run_refutes() -> None:
    """No kill explains it, and the evidence is gone."""
    run = killed_run()
    report = audit(run, cut=find(run, step=21, rank=2, attempt=1))
    assert (report.status, report.incomplete_steps) == ("refuted", 1)


def test_lost_work_cannot_fill_a_gap_in_the_next_attempt() -> None:
    """Lines of lost work belong to weights that were thrown away."""
    run = killed_run()
    run.ledger[:] = [x for x in run.ledger if (x["step"], x["attempt"]) != (12, 1)]
    report = audit(run)
    assert (report.status, report.holes) == ("refuted", 1)
    found = "this line is lost work, yet the step before is from attempt 1"
    assert f"step 12 rank 0 attempt 0: {found}" in report.findings[0]


def test_an_attempt_that_starts_past_its_checkpoint_leaves_a_gap() -> None:
    """A sampler restored past the weights skips samples, and lost work would hide it."""
    run = killed_run()
    run.ledger[:] = [x for x in run.ledger if (x["step"], x["attempt"]) != (11, 1)]
    report = audit(run)
    assert (report.status, report.holes) == ("refuted", 1)
    assert "attempt 1 restored step 10, but its first step was 12" in report.findings[0]


def test_an_attempt_that_logs_no_restore_began_with_fresh_weights() -> None:
    """Restoring only the position trains each sample once, into weights that start over."""
    run = killed_run()
    run.logs[:] = [x for x in run.logs if x["event"] != "checkpoint_restored"]
    report = audit(run)
    assert (report.status, report.holes) == ("refuted", 1)
    assert "attempt 1 restored nothing, but its first step was 11" in report.findings[0]


def test_what_an_attempt_without_a_log_restored_is_trusted_and_the_report_says_so() -> None:
    """Logs get rotated away; "proved" must not suggest that they were read."""
    run = killed_run()
    run.logs[:] = [x for x in run.logs if x["attempt"] != 1]
    report = audit(run)
    assert (report.status, report.holes) == ("proved", 0)
    note = "no log of attempts 1: which checkpoint they restored is taken on trust"
    assert report.notes == [note]


def test_work_after_the_last_attempts_end_does_not_count() -> None:
    """Steps that only a dead attempt trained are no longer in any weights."""
    attempts = [Attempt(2, 20, saved=5), Attempt(2, 9, saved=9)]
    report = audit(script_run(50, 8, 3, attempts))
    assert (report.status, report.steps, report.replayed_steps) == ("proved", 9, 4)


# --- the lineage ---------------------------------------------------------------------------


def with_an_older_copy(saved_by: int | None = None) -> Run:
    """Attempt 1 falls back to step 5 and dies at 8; then attempt 0's copy of 10 is put back."""
    attempts = [
        Attempt(2, 12, saved=10),
        Attempt(2, 8, restores=5, saved_by=0),
        Attempt(2, 21, saved=21, end="run_end", restores=10, saved_by=saved_by),
    ]
    return script_run(50, 8, 3, attempts)


@pytest.mark.parametrize("known_from", ["log", "manifest", "save", "ledger"])
def test_an_older_copy_that_is_put_back_brings_its_own_lineage(
    known_from: str, tmp_path: Path
) -> None:
    """It is what the trainer's own error message advises, so it must not refute the run."""
    run = with_an_older_copy(0 if known_from == "log" else None)
    if known_from != "save":
        run.logs[:] = [x for x in run.logs if x["event"] != "checkpoint_saved"]
    find(run, step=7, rank=1, attempt=1)["samples"].pop()  # in no weights anymore
    write_run(run, tmp_path)
    if known_from == "manifest":
        write_checkpoint(tmp_path, 10, 0)
    report = audit_run(tmp_path)
    assert (report.status, report.steps, report.findings) == ("proved", 21, [])


def test_the_attempt_that_saved_the_copy_is_judged_not_a_later_one() -> None:
    """The newest weights have seen its samples, whatever was trained in between."""
    run = with_an_older_copy(0)
    find(run, step=7, rank=1, attempt=0)["samples"].pop()
    report = audit(run)
    assert (report.status, report.wrong_lines, report.misses) == ("refuted", 1, 1)
    assert "step 7 rank 1 attempt 0" in report.findings[0]


def test_a_copy_of_a_step_that_two_attempts_saved_is_followed_to_the_right_one() -> None:
    """Only the restored checkpoint itself says whose it was."""
    attempts = [
        Attempt(2, 12, saved=10),
        Attempt(2, 12, saved=10, restores=5, saved_by=0),
        Attempt(2, 21, saved=21, end="run_end", restores=10, saved_by=0),
    ]
    run = script_run(50, 8, 3, attempts)
    find(run, step=7, rank=1, attempt=1)["samples"].pop()
    assert audit(run).status == "proved"
    run.logs[-3]["saved_by_attempt"] = 1
    assert audit(run).status == "refuted"


@pytest.mark.parametrize(
    ("saved_by", "found"), [(1, "but its first step was 11"), (2, "a later one")]
)
def test_a_saver_that_cannot_have_saved_it_refutes(saved_by: int, found: str) -> None:
    """An attempt can't save a step that it began after, nor one of the future."""
    attempts = [
        Attempt(2, 12, saved=10),
        Attempt(2, 14, restores=10, saved_by=0),
        Attempt(2, 21, saved=21, end="run_end", restores=10, saved_by=saved_by),
    ]
    report = audit(script_run(50, 8, 3, attempts))
    assert (report.status, report.holes) == ("refuted", 1)
    assert found in report.findings[0]


def test_ranks_that_restored_different_checkpoints_refute() -> None:
    """Their weights differ from the first step on."""
    run = killed_run()
    restored = next(x for x in run.logs if x["event"] == "checkpoint_restored")
    run.logs.append(restored | {"rank": 1, "step": 9})
    report = audit(run)
    assert (report.status, report.holes) == ("refuted", 1)


@pytest.mark.parametrize("known_from", ["checkpoint_saved", "train_progress", "manifest"])
@pytest.mark.parametrize("attempt", [0, 1])
def test_an_attempt_without_any_ledger_line_is_refuted_if_anything_knows_its_steps(
    known_from: str, attempt: int, tmp_path: Path
) -> None:
    """Otherwise, the attempt before it would be proved, and the newest weights weren't its."""
    attempts = [Attempt(2, 12, saved=10), Attempt(2, 15)][: attempt + 1]
    run = script_run(50, 8, 3, attempts)
    run.ledger[:] = [line for line in run.ledger if line["attempt"] != attempt]
    run.logs[:] = [line for line in run.logs if line["attempt"] != attempt]
    if known_from != "manifest":
        run.logs.append({"attempt": attempt, "rank": 1, "event": known_from, "step": 15})
    write_run(run, tmp_path)
    if known_from == "manifest":
        write_checkpoint(tmp_path, 15, attempt)
    report = audit_run(tmp_path)
    assert (report.status, report.steps) == ("refuted", 15)
    assert report.incomplete_steps >= 3


def test_a_step_that_a_rank_reports_without_its_line_is_not_in_flight() -> None:
    """A rank reports progress after it has written its line, so the line was lost."""
    run = script_run(50, 8, 3, [Attempt(3, 12, saved=10, in_flight=2)])
    progress = {"attempt": 0, "event": "train_progress", "step": 13}
    run.logs.append(progress | {"rank": 0})
    assert audit(run).status == "proved"
    run.logs.append(progress | {"rank": 2})
    report = audit(run)
    assert (report.status, report.incomplete_steps) == ("refuted", 1)


def test_a_published_checkpoint_that_nothing_else_knows_of_is_no_evidence_if_damaged(
    tmp_path: Path,
) -> None:
    """Nobody can tell whether the run got there; "proved" would say that it didn't."""
    write_run(script_run(50, 8, 3, [Attempt(2, 12, saved=10)]), tmp_path)
    manifest = write_checkpoint(tmp_path, 10, 0)
    manifest.write_text("damaged")
    assert audit_run(tmp_path).status == "proved"
    manifest.parent.rename(manifest.parent.with_name("step-00000015"))
    report = audit_run(tmp_path)
    assert report.status == "no_evidence"
    assert "step-00000015" in report.verdict


# --- runs of live.py ------------------------------------------------------------------------


def live_folder(run: Run, folder: Path, change: Callable[[Line], None]) -> AuditReport:
    """Audit a run after a change to each of its starts."""
    write_run(run, folder)
    for path in (folder / "ledger").iterdir():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if line.get("event") == "run_start":
                change(line)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return audit_run(folder)


def test_a_live_run_is_proved_over_kills_and_world_sizes(tmp_path: Path) -> None:
    """It has no config.json and no logs; its ledger says what they would."""
    report = live_folder(killed_run(is_live=True), tmp_path, lambda start: None)
    assert (report.status, report.notes, report.attempts) == ("proved", [], 2)
    assert (report.epochs, report.total_steps, report.replayed_steps) == (3, 21, 2)
    # From the start of attempt 0 to its last line, and the same for attempt 1.
    assert (report.useful_s, report.wall_s) == (10.5, 13.5)


def test_a_seed_that_changed_between_two_starts_refutes_a_live_run(tmp_path: Path) -> None:
    """live.py doesn't notice: after the restart, some samples come twice and others never."""

    def change(start: Line) -> None:
        start["seed"] = start["seed"] + start["attempt"]

    report = live_folder(killed_run(is_live=True), tmp_path, change)
    assert report.status == "refuted"
    assert report.wrong_lines


def test_a_live_run_that_restored_less_than_it_claims_is_refuted(tmp_path: Path) -> None:
    """Its first steps would be missing from the weights."""

    def change(start: Line) -> None:
        start["step"] = min(start["step"], 7)

    report = live_folder(killed_run(is_live=True), tmp_path, change)
    assert (report.status, report.holes) == ("refuted", 1)
    assert "attempt 1 restored step 7, but its first step was 11" in report.findings[0]


def test_a_live_checkpoint_vouches_for_its_steps(tmp_path: Path) -> None:
    """If every rank lost its last lines, only the checkpoint still shows those steps."""
    run = killed_run(is_live=True)
    run.ledger[:] = [line for line in run.ledger if line["step"] != run.total_steps]
    report = audit(run)
    assert (report.status, report.steps, report.misses) == ("refuted", 21, 2)


@pytest.mark.parametrize("name", ["state.pt", "manifest.json"])
def test_a_damaged_live_checkpoint_vouches_for_nothing(tmp_path: Path, name: str) -> None:
    """An attempt that fell back to an older one is still on its way to that step."""
    run = script_run(50, 8, 3, [Attempt(2, 12, saved=10)], is_live=True)
    write_run(run, tmp_path)
    write_live_checkpoint(tmp_path, 14).joinpath(name).write_text("damaged")
    report = audit_run(tmp_path)
    assert (report.status, report.steps) == ("proved", 12)


@pytest.mark.parametrize("name", ["dataset_size", "seed", "global_batch_size", "max_epochs"])
def test_a_live_run_without_its_plan_is_no_evidence(tmp_path: Path, name: str) -> None:
    """Guessed from the lines, the plan would fit whatever was trained."""
    report = live_folder(killed_run(is_live=True), tmp_path, lambda start: start.pop(name))
    assert (report.status, name in report.verdict) == ("no_evidence", True)


def test_a_run_that_restarts_while_it_is_audited_is_not_refuted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log read before the ledger has its start, but not yet what it restored."""
    attempts = [Attempt(2, 12, saved=10), Attempt(2, 14)]
    early, late = (script_run(50, 8, 3, attempts[:n]) for n in (1, 2))
    early.logs.append(next(x for x in late.logs if x["attempt"] == 1))
    write_run(early, tmp_path / "run")
    read = run_records.read_ledger

    def read_later(run_dir: Path) -> Any:
        shutil.rmtree(run_dir)
        write_run(late, run_dir)  # the run went on
        return read(run_dir)

    monkeypatch.setattr(run_records, "read_ledger", read_later)
    report = audit_run(tmp_path / "run")
    assert (report.status, report.steps, report.findings) == ("proved", 14, [])


def test_a_line_that_is_written_while_the_file_is_read_is_not_cut_in_two(
    tmp_path: Path,
) -> None:
    """The first half would be skipped as a kill's, and the lines after it would be judged."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    records = read_jsonl(path)
    assert next(records) == {"a": 1}
    with path.open("a") as file:
        file.write(': 3}\n{"a": 4}\n')
    assert list(records) == [{"a": 2}]


@pytest.mark.parametrize("is_live", [False, True])
def test_a_run_that_saves_while_it_is_audited_is_not_refuted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_live: bool
) -> None:
    """Its log would know of a step that the ledger, read before, doesn't have yet."""
    early = script_run(50, 8, 3, [Attempt(2, 10, saved=10)], is_live=is_live)
    late = script_run(50, 8, 3, [Attempt(2, 12, saved=12)], is_live=is_live)
    write_run(early, tmp_path / "run")

    def reading(original: Callable[[Path], Any], run_dir: Path) -> Any:
        found = original(run_dir)
        shutil.rmtree(run_dir)
        write_run(late, run_dir)  # the run went on
        return found

    for name in ("read_ledger", "read_logs"):
        original = getattr(run_records, name)
        monkeypatch.setattr(run_records, name, partial(reading, original))
    assert audit_run(tmp_path / "run").status == "proved"


# --- what the report says -------------------------------------------------------------------


def test_an_unfinished_run_is_proved_as_far_as_it_went_and_the_note_says_how_far() -> None:
    """A reader must not take "proved" for "finished"."""
    report = audit(script_run(500, 40, 3, [Attempt(2, 29, saved=29)]))
    assert (report.status, report.epochs, report.steps) == ("proved", 2, 29)
    assert report.notes == ["unfinished: step 29 of 39; epoch 2: 120 of 500 samples so far"]


def test_goodput_counts_surviving_steps_against_the_life_of_all_attempts() -> None:
    """Replayed steps and startup are the cost of a failure; waiting for a node is separate."""
    run = killed_run()
    for line in run.ledger:
        line["time"] += 3600.0 * line["rank"]  # other machines' clocks are not compared
    report = audit(run)
    # Attempt 0: 1 s startup, 12 steps of 0.5 s. Attempt 1: 1 s startup, 11 steps. 21 survive.
    assert (report.useful_s, report.wall_s, report.between_attempts_s) == (10.5, 13.5, 10.0)
    assert report.goodput == pytest.approx(10.5 / 13.5)


def test_a_ledger_without_times_has_no_goodput() -> None:
    """Zero would look like a run that did nothing useful."""
    run = killed_run()
    run.logs.clear()
    for line in run.ledger:
        del line["time"], line["step_s"]
    report = audit(run)
    assert (report.status, report.goodput) == ("proved", None)


def test_a_skipped_update_counts_as_trained_and_is_noted() -> None:
    """The scaler may skip an update; the samples are used up, and the reader should know."""
    run = killed_run()
    find(run, step=4, rank=0, attempt=0)["skipped"] = True
    find(run, step=12, rank=0, attempt=0)["skipped"] = True  # lost work
    report = audit(run)
    assert report.status == "proved"
    assert report.notes == ["trained, but the optimizer update was skipped: steps 4"]


def test_every_finding_is_counted_but_only_a_few_are_listed() -> None:
    """A thousand lines of output bury the first one."""
    run = killed_run()
    run.ledger[:] = [line for line in run.ledger if line["rank"] != 0 or line["attempt"] != 1]
    report = audit(run)
    assert report.incomplete_steps == 11
    assert sum("lines from ranks" in text for text in report.findings) == 5
    assert report.misses == len(report.places["misses"]) > 5


def test_a_duplicate_names_both_places() -> None:
    """To fix the sampler you need the pair of places, not the count."""
    run = killed_run()
    first, second = find(run, step=2, rank=1, attempt=0), find(run, step=5, rank=0, attempt=0)
    second["samples"][0] = first["samples"][1]
    text = next(text for text in audit(run).findings if "trained in" in text)
    assert text == (
        f"epoch 0: sample {first['samples'][1]} was trained in step 2 rank 1 attempt 0 and "
        "again in step 5 rank 0 attempt 0"
    )


def test_steps_beyond_the_plan_refute() -> None:
    """A plan that the run did not follow proves nothing."""
    run = killed_run()._replace(total_steps=14)
    report = audit(run)
    assert report.status == "refuted"
    assert report.findings == [
        "the run trained up to step 21, but its plan ends at step 14; look at total_steps in "
        "config.json"
    ]


# --- odd evidence ---------------------------------------------------------------------------


def test_a_ledger_from_another_run_is_refuted() -> None:
    """Samples that the dataset does not contain cannot have been trained."""
    run = killed_run()._replace(num_samples=20, total_steps=9)
    assert audit(run).status == "refuted"


@pytest.mark.parametrize(
    "foreign",
    [
        "[1, 2]",
        "7",
        "null",
        '"text"',
        "{}",
        '{"attempt": "x"}',
        "\x00\xff",
        "{" * 50,
        '{"attempt":0,"epoch":0,"step":3,"rank":0,"world_size":2,"samples":[1.5]}',
        '{"attempt":0,"epoch":0,"step":3,"rank":0,"world_size":2,"samples":null}',
        '{"attempt":0,"epoch":0,"step":3,"rank":0,"world_size":0,"samples":[1]}',
        '{"attempt":-1,"epoch":0,"step":3,"rank":0,"world_size":2,"samples":[1]}',
        '{"attempt":0,"epoch":0,"step":0,"rank":0,"world_size":2,"samples":[1]}',
        '{"attempt":0,"epoch":0,"step":3,"rank":0,"world_size":2,"samples":[99999999999999999999]}',
        '{"attempt":0,"event":"checkpoint_saved","step":"x","time":"now"}',
        '{"attempt":true,"epoch":0,"step":3,"rank":0,"world_size":2,"samples":[1]}',
        '{"attempt":1,"epoch":1,"step":12,"rank":1,"world_size":3,"samples":[true]}',
        '{"attempt":0,"event":"checkpoint_saved","step":99,"rank":true}',
        "[" * 100_000,
        '{"attempt":' * 100_000,
        '{"attempt": 9' + "9" * 5000 + "}",
    ],
)
def test_foreign_lines_in_the_run_folder_do_not_change_the_verdict(
    foreign: str, tmp_path: Path
) -> None:
    """Half-written lines and stray records are what a crash leaves behind."""
    write_run(killed_run(), tmp_path)
    for part in ("ledger", "logs"):
        with open(tmp_path / part / "rank-0.jsonl", "a", encoding="latin-1") as file:
            file.write(foreign + "\n")
    assert audit_run(tmp_path).status == "proved"


def test_an_absurd_rank_or_world_size_refutes_without_exhausting_memory() -> None:
    """One wild number must not take the audit down."""
    run = killed_run()
    find(run, step=4, rank=1, attempt=0)["world_size"] = 2**62
    find(run, step=5, rank=1, attempt=0)["rank"] = 2**62
    assert audit(run).status == "refuted"


def test_an_absurd_step_refutes_without_looking_at_every_step_up_to_it() -> None:
    """One wild number must not make the audit run forever."""
    run = killed_run()._replace(total_steps=10**15)
    saved = {"attempt": 1, "rank": 0, "event": "checkpoint_saved", "step": 10**14}
    run.logs.append(saved)
    report = audit(run)
    assert (report.status, report.steps) == ("refuted", 10**14)
    assert report.incomplete_steps == 10**14 - 21
    # 7 steps train 50 samples; 2 steps are left over; 3 epochs were trained.
    assert report.misses == 10**14 // 7 * 50 + 2 * 8 - 3 * 50


def put_a_folder(path: Path) -> None:
    path.mkdir()


def put_a_file(path: Path) -> None:
    path.write_text("x")


def put_a_dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


def put_a_loop(path: Path) -> None:
    path.symlink_to(path.name)


def put_a_pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("name", "put"),
    [
        ("ledger/rank-0.jsonl", put_a_folder),
        ("ledger/rank-1.jsonl", put_a_loop),
        ("ledger/rank-0.jsonl", put_a_pipe),
        ("ledger/rank-0.jsonl", put_a_dangling_link),
        ("ledger", put_a_file),
        ("logs/rank-0.jsonl", put_a_folder),
        ("logs", put_a_file),
        ("logs", put_a_dangling_link),
        ("logs", put_a_loop),
        ("checkpoints", put_a_file),
        ("checkpoints/step-00000010/manifest.json", put_a_loop),
        ("config.json", put_a_folder),
        ("config.json", put_a_pipe),
        ("config.json", put_a_loop),
    ],
)
def test_evidence_that_cannot_be_read_is_not_taken_for_absent(
    name: str, put: Callable[[Path], None], tmp_path: Path
) -> None:
    """What it would have said may refute the run."""
    write_run(killed_run(), tmp_path)
    write_checkpoint(tmp_path, 10, 0)
    assert audit_run(tmp_path).status == "proved"
    path = tmp_path / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    put(path)
    report = audit_run(tmp_path)
    assert report.status == "no_evidence"
    assert name in report.verdict


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_samples", 10**30),
        ("num_samples", True),
        ("num_samples", 1e308),
        ("num_samples", float("nan")),
        ("num_samples", -50),
        ("num_samples", "50"),
        ("global_batch_size", 0),
        ("global_batch_size", 8.0),
        ("seed", -1),
        ("seed", None),
        ("seed", 0.5),
    ],
)
def test_an_absurd_number_in_the_plan_is_no_evidence(
    name: str, value: object, tmp_path: Path
) -> None:
    """A crash would exit with 1, which says that the run is refuted."""
    write_run(killed_run(), tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["identity"][name] = value
    path.write_text(json.dumps(config))
    report = audit_run(tmp_path)
    assert (report.status, str(path) in report.verdict) == ("no_evidence", True)


def test_a_step_that_no_ledger_line_could_list_is_no_evidence(tmp_path: Path) -> None:
    """Computing its order would take all memory."""
    run = killed_run()
    big = run._replace(num_samples=10**18, global_batch=10**18)
    assert audit(big).status == "no_evidence"
    assert audit(run._replace(total_steps=10**30)).status == "no_evidence"


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (None, "FileNotFoundError"),
        ("", "JSONDecodeError"),
        ("[]", "TypeError"),
        ("[" * 100_000, "RecursionError"),
        ('{"identity": {"num_samples": 5}}', "KeyError"),
        (
            '{"identity":{"num_samples":0,"seed":1,"global_batch_size":4},"total_steps":3}',
            "below 1",
        ),
    ],
)
def test_without_a_usable_config_there_is_no_evidence(
    config: str | None, found: str, tmp_path: Path
) -> None:
    """The message names the file, what is wrong with it, and what to do."""
    write_run(killed_run(), tmp_path)
    (tmp_path / "config.json").unlink()
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    report = audit_run(tmp_path)
    assert report.status == "no_evidence"
    assert str(tmp_path / "config.json") in report.verdict
    assert found in report.verdict
    assert "--run-dir" in report.verdict


def test_a_run_without_a_complete_step_is_no_evidence(tmp_path: Path) -> None:
    """Training nothing is not the same as training everything once."""
    run = killed_run()
    write_run(run._replace(ledger=[], logs=[]), tmp_path / "empty")
    assert audit_run(tmp_path / "empty").status == "no_evidence"
    half = script_run(50, 8, 3, [Attempt(2, 12)])
    half.ledger[:] = [line for line in half.ledger if line["rank"] == 0]
    report = audit_run(write_run(half, tmp_path / "half"))
    assert report.status == "no_evidence"
    assert "in flight: 12" in report.verdict


def test_read_jsonl_skips_a_line_that_a_kill_truncated(tmp_path: Path) -> None:
    """The next attempt starts on a new line, so only the truncated one is lost."""
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{"a": 2\n[4]\n{"a": 3}\n{"a"')
    assert list(read_jsonl(tmp_path / "x.jsonl")) == [{"a": 1}, {"a": 3}]


# --- the script -----------------------------------------------------------------------------


def run_main(*arguments: object) -> int:
    main: Callable[[list[str]], int] = runpy.run_path(str(SCRIPT))["main"]
    return main([str(argument) for argument in arguments])


@pytest.mark.ranks
def test_the_script_works_from_any_folder(tmp_path: Path) -> None:
    """The README's command, run the way a person runs it."""
    write_run(killed_run(), tmp_path / "run")
    done = run_program(str(SCRIPT), "run", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    *table, verdict = done.stdout.splitlines()
    assert verdict == "proved: each sample due by step 21 of 21 was trained exactly once"
    assert {"duplicates        0", "replayed steps    2", "attempts          2"} <= set(table)


def test_the_script_refutes_with_exit_code_1_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipeline stops on the code, a person reads the finding."""
    run = killed_run()
    find(run, step=4, rank=1, attempt=0)["samples"].pop()
    assert run_main(write_run(run, tmp_path)) == 1
    output = capsys.readouterr().out.splitlines()
    assert output[-1] == "refuted: wrong lines: 1, misses: 1"
    assert any(line.startswith("finding") and "step 4 rank 1" in line for line in output)


def test_the_script_prints_one_json_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tools and people must read the same numbers."""
    assert run_main(write_run(killed_run(), tmp_path), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["status"], report["steps"], report["replayed_steps"]) == ("proved", 21, 2)


def test_the_script_exits_with_2_if_the_folder_does_not_exist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typo must not look like a refutation."""
    assert run_main(tmp_path / "nowhere") == 2
    output = capsys.readouterr().out
    assert output.startswith("no evidence: ")
    assert "nowhere" in output
    assert "--run-dir" in output


def test_the_script_draws_the_sample_map(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also for a refuted run: that is where the picture is needed most."""
    run = killed_run()
    find(run, step=4, rank=1, attempt=0)["samples"].pop()
    write_run(run, tmp_path / "run")
    assert run_main(tmp_path / "run", "--plot", tmp_path / "map.png") == 1
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    assert run_main(tmp_path / "run", "--plot", tmp_path / "map.nonsense") == 2
    assert "Name a file such as map.png" in capsys.readouterr().err


@pytest.mark.parametrize("error", [RecursionError("too deep"), MemoryError(), OSError("disk")])
def test_whatever_keeps_the_audit_from_being_made_is_a_2_in_one_line(
    error: Exception,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Python exits with 1 after a crash, and that would mean that the run is refuted."""

    def crash(*_: object) -> None:
        raise error

    write_run(killed_run(), tmp_path)
    monkeypatch.setattr(audit_module, "judge_steps", crash)
    assert run_main(tmp_path) == 2
    output = capsys.readouterr()
    assert output.out + output.err == output.err
    assert len(output.err.splitlines()) == 1
    assert f"{tmp_path}: the audit could not be completed" in output.err


def audit_into(stdout: Any, run_dir: Path, *python: str) -> tuple[int, str]:
    """The script in an interpreter of its own, with this stdout: exit code and stderr."""
    # Without PYTHONUNBUFFERED, the result is still in Python's buffer when it exits.
    environment = {name: x for name, x in os.environ.items() if name != "PYTHONUNBUFFERED"}
    words = [sys.executable, *python, str(SCRIPT), str(run_dir)]
    pipes: dict[str, Any] = {"stdout": stdout, "stderr": subprocess.PIPE}
    done = subprocess.run(words, **pipes, env=environment, text=True)
    return done.returncode, done.stderr


@pytest.mark.ranks
class TestStdout:
    def test_a_full_one_is_a_2(self, tmp_path: Path) -> None:
        """Nobody has seen the verdict."""
        with open("/dev/full", "w") as full:
            code, said = audit_into(full, write_run(killed_run(), tmp_path))
        assert (code, len(said.splitlines())) == (2, 1)
        assert "No space left" in said

    def test_a_closed_pipe_is_a_2(self, tmp_path: Path) -> None:
        """As with `| head`."""
        reading, writing = os.pipe()
        os.close(reading)
        with open(writing, "w") as pipe:
            code, said = audit_into(pipe, write_run(killed_run(), tmp_path))
        assert (code, len(said.splitlines())) == (2, 1)
        assert "Broken pipe" in said

    def test_a_closed_one_is_a_2(self, tmp_path: Path) -> None:
        """Python has no sys.stdout then, and prints nothing without an error."""
        write_run(killed_run(), tmp_path)
        command = f"'{sys.executable}' '{SCRIPT}' '{tmp_path}' >&-"
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert "stdout is closed" in done.stderr

    def test_without_docstrings_and_asserts_the_verdict_is_the_same(
        self, tmp_path: Path
    ) -> None:
        """PYTHONOPTIMIZE=2 is set for a whole cluster, not for this script."""
        run = killed_run()
        write_run(run, tmp_path / "good")
        find(run, step=4, rank=1, attempt=0)["samples"].pop()
        write_run(run, tmp_path / "bad")
        for name, expected in (("good", 0), ("bad", 1), ("nowhere", 2)):
            code, said = audit_into(subprocess.DEVNULL, tmp_path / name, "-OO")
            assert (code, said) == (expected, "")
