"""Where a run's time went: every second counted once, under the right name."""

from __future__ import annotations

import json
import math
import os
import runpy
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text

from rehearsal.faults.breaks import kill
from rehearsal.faults.jobs import finish, small, start, wait_for_step
from rehearsal.faults.torchrun import Torchrun
from rehearsal.evidence.audit import audit_run
from rehearsal.evidence.run_records import read_jsonl
from rehearsal.evidence.goodput import KINDS, Account, account_run
from rehearsal.evidence.goodput_picture import goodput_picture

ROOT = Path(__file__).parents[1]
Record = dict[str, Any]


class Script:
    """A run folder with hand-written times: rank 0's, in seconds after 1000."""

    def __init__(self, *, old: bool = False) -> None:
        self.old = old  # from before the trainer logged process_started and data_wait_s
        self.ledger: list[Record] = []
        self.logs: list[Record] = []

    def event(self, attempt: int, name: str, at: float, step: int = 0, **rest: Any) -> None:
        who = {"attempt": attempt, "rank": 0, "event": name, "step": step}
        self.logs.append({**who, "time": 1000.0 + at, **rest})

    def start(self, attempt: int, process: float, logged: float, step: int = 0) -> None:
        facts = {} if self.old else {"process_started": 1000.0 + process}
        self.event(attempt, "run_start", logged, step, **facts)
        if step:
            self.event(attempt, "checkpoint_restored", logged, step)

    def step(self, attempt: int, step: int, begin: float, end: float) -> None:
        line = {"attempt": attempt, "epoch": 0, "step": step, "rank": 0, "world_size": 1}
        when = {"time": 1000.0 + end, "step_s": end - begin}
        self.ledger.append({**line, "samples": [step], **when})

    def progress(self, attempt: int, step: int, at: float, wait: float) -> None:
        facts = {} if self.old else {"data_wait_s": wait}
        self.event(attempt, "train_progress", at, step, loss=1.0, **facts)

    def write(self, folder: Path) -> Path:
        for part, records in (("ledger", self.ledger), ("logs", self.logs)):
            (folder / part).mkdir(parents=True)
            for record in records:
                with open(folder / part / f"rank-{record['rank']}.jsonl", "a") as file:
                    file.write(json.dumps(record) + "\n")
        identity = {"num_samples": 100, "seed": 1, "global_batch_size": 1}
        config = {"identity": identity, "total_steps": 100}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def account(self) -> Account:
        with tempfile.TemporaryDirectory() as folder:
            return account_run(self.write(Path(folder, "run")))


def killed_script(*, old: bool = False) -> Script:
    """Killed at 20 s in step 7; step 4 was saved; 5 and 6 are retrained; ends at 42 s."""
    run = Script(old=old)
    run.start(0, 0.0, 6.0)
    for step in range(1, 5):
        run.step(0, step, 8.0 + 2 * (step - 1), 8.0 + 2 * step)  # 8..16
    run.event(0, "checkpoint_saved", 16.75, 4)
    run.progress(0, 4, 16.875, 1.0)
    run.step(0, 5, 17.0, 18.0)
    run.step(0, 6, 18.25, 20.0)
    run.start(1, 25.0, 30.0, step=4)
    for step in range(5, 9):
        run.step(1, step, 32.0 + 2 * (step - 5), 34.0 + 2 * (step - 5))  # 32..40
    run.progress(1, 8, 41.0, 0.5)
    run.event(1, "checkpoint_saved", 40.75, 8)
    run.event(1, "run_end", 42.0, 8)
    return run


def spent(account: Account) -> dict[str, float]:
    """The kinds with any time in them."""
    return {kind: seconds for kind, seconds in account.seconds.items() if seconds}


def check_sums(account: Account) -> None:
    """Each microsecond is in exactly one kind and in exactly one span."""
    wall_us = round(account.wall_s * 1e6)
    assert sum(round(seconds * 1e6) for seconds in account.seconds.values()) == wall_us
    assert set(account.seconds) == set(account.fractions) == set(KINDS)
    assert min(account.seconds.values()) >= 0.0
    assert all(math.isfinite(fraction) for fraction in account.fractions.values())
    if wall_us:
        assert sum(account.fractions.values()) == pytest.approx(1.0)
        assert (account.spans[0].begin_us, account.spans[-1].end_us) == (0, wall_us)
    for before, after in pairwise(account.spans):
        assert before.end_us == after.begin_us
    assert all(span.end_us > span.begin_us for span in account.spans)


def test_each_second_of_a_killed_run_is_in_the_right_kind() -> None:
    """The figures are only as good as the boundaries between the kinds."""
    account = killed_script().account()
    check_sums(account)
    assert spent(account) == {
        "useful": 8 - 1.0 + 8 - 0.5,
        "replayed": 2.75,
        "data_wait": 1.5,
        "start_up": 8.0 + 7.0,
        "checkpoint": 0.75 + 2.0,
        "down": 5.0,
        "logging": 0.25 + 0.25,
    }
    assert account.wall_s == 42.0
    # Killed before its next train_progress, so how long steps 5 and 6 waited is unknown.
    note = "attempt 0: no data-wait figure for 2 of 6 steps; any wait counts as step time"
    assert account.notes == [note]


def test_goodput_agrees_with_the_audit(tmp_path: Path) -> None:
    """Two different figures with the same name would make both useless."""
    report = audit_run(killed_script().write(tmp_path / "run"))
    account = account_run(tmp_path / "run")
    assert report.goodput == account.goodput == pytest.approx(16 / 37)
    assert (report.useful_s, report.wall_s, report.between_attempts_s) == (16.0, 37.0, 5.0)


def test_a_folder_without_the_newer_fields_is_still_accounted_for() -> None:
    """What was not recorded is unknown; it must not be counted as startup or downtime."""
    account = killed_script(old=True).account()
    check_sums(account)
    assert spent(account) == {
        "useful": 16.0,
        "replayed": 2.75,
        "start_up": 2.0 + 2.0,
        "checkpoint": 2.75,
        "logging": 0.5,
        "unknown": 10.0,
    }
    assert account.wall_s == 36.0  # the start of the first process is unknown
    assert account.notes == [
        "attempt 0: process start time not known",
        "attempt 0: no data-wait figure for 6 of 6 steps; any wait counts as step time",
        "attempt 1: process start time not known",
        "attempt 1: no data-wait figure for 4 of 4 steps; any wait counts as step time",
    ]


def test_other_ranks_and_their_clocks_do_not_count() -> None:
    """Another machine's clock may be an hour off, and each rank has its own waits."""
    wanted, run = killed_script().account(), killed_script()
    for records in (run.ledger, run.logs):
        for record in [*records]:
            record["world_size"] = 2
            later = {"time": record["time"] + 3600.0, "data_wait_s": 0.25}
            records.append({**record, "rank": 1, **later})
            if "process_started" in record:
                records[-1]["process_started"] += 3600.0
    account = run.account()
    assert (account.seconds, account.wall_s) == (wanted.seconds, wanted.wall_s)


def test_a_second_attempt_in_the_same_process_has_no_startup() -> None:
    """In a test or a notebook both attempts share a process that started before the first."""
    run = killed_script()
    for record in run.logs:
        if "process_started" in record:
            record["process_started"] = 1000.0
    account = run.account()
    check_sums(account)
    assert (account.seconds["start_up"], account.seconds["down"]) == (8.0 + 2.0, 0.0)
    assert account.seconds["unknown"] == 10.0


@pytest.mark.parametrize("rank", [0, 1])
def test_a_hang_lasts_from_the_last_step_to_the_end_of_the_job(rank: int) -> None:
    """Whichever rank reports it: any rank may be the first to notice."""
    run = killed_script()
    run.event(0, "hang", 24.5, 6)
    run.logs[-1]["rank"] = rank
    account = run.account()
    check_sums(account)
    assert (account.seconds["hang"], account.seconds["down"]) == (4.5, 0.5)
    assert account.wall_s == 42.0


def test_a_missing_ledger_line_leaves_unknown_time() -> None:
    """Time that nobody recorded must not pass for something harmless."""
    run = killed_script()
    run.ledger[:] = [x for x in run.ledger if (x["attempt"], x["step"]) != (1, 6)]
    account = run.account()
    check_sums(account)
    assert (account.seconds["unknown"], account.seconds["logging"]) == (2.0, 0.5)


def test_steps_of_a_rank_woken_to_report_are_part_of_the_hang() -> None:
    """SIGCONT lets a stopped rank take another step or two before the job is ended."""
    run = killed_script()
    run.event(0, "hang", 20.0, 4)
    account = run.account()
    check_sums(account)
    assert (account.seconds["hang"], account.seconds["replayed"]) == (20.0 - 16.75, 0.0)
    assert account.seconds["checkpoint"] == 2.75


def test_a_hang_right_after_a_save_or_at_startup_is_counted_separately() -> None:
    """A published save is not part of the hang, and neither is a startup that finished."""
    run = Script()
    run.start(0, 0.0, 6.0)
    run.event(0, "hang", 20.0, 0)
    run.start(1, 21.0, 22.0)
    run.step(1, 1, 23.0, 24.0)
    run.event(1, "checkpoint_saved", 25.0, 1)
    run.event(1, "hang", 35.0, 1)
    account = run.account()
    check_sums(account)
    assert spent(account) == {
        "start_up": 6.0 + 2.0,
        "hang": 14.0 + 10.0,
        "down": 1.0,
        "useful": 1.0,
        "checkpoint": 1.0,
    }


def test_an_async_save_stalls_no_longer_than_until_the_next_step() -> None:
    """How long an asynchronous save takes is not what it costs."""
    run = Script()
    run.start(0, 0.0, 1.0)
    run.step(0, 1, 2.0, 3.0)
    run.step(0, 2, 3.5, 4.5)
    run.event(0, "checkpoint_saved", 6.0, 1)
    run.step(0, 3, 4.5, 7.0)
    run.event(0, "checkpoint_saved", 8.0, 3)
    run.event(0, "run_end", 9.0, 3)
    account = run.account()
    assert spent(account) == {"start_up": 2.0, "checkpoint": 0.5 + 2.0, "useful": 4.5}


def test_a_wait_is_never_longer_than_its_step() -> None:
    """On CUDA the device's wait and the host's step are measured on two clocks."""
    run = killed_script()
    for record in run.logs:
        if record["event"] == "train_progress":
            record["data_wait_s"] = 100.0
    account = run.account()
    check_sums(account)
    assert (account.seconds["data_wait"], account.seconds["useful"]) == (16.0, 0.0)
    assert account.goodput == pytest.approx(16 / 37)


@pytest.mark.parametrize("shift", [-12.0, -40.0])
def test_attempts_that_overlap_are_counted_once_and_noted(shift: float) -> None:
    """A clock that was set back must not make time negative or count it twice."""
    run = killed_script()
    for record in run.logs + run.ledger:
        for name in ("time", "process_started"):
            if record["attempt"] == 1 and name in record:
                record[name] += shift
    account = run.account()
    check_sums(account)
    assert any("went back by up to" in note for note in account.notes)
    assert account.wall_s <= 42.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -5.0, 10**400, "x", None, {}])
@pytest.mark.parametrize("name", ["time", "step_s", "process_started", "data_wait_s"])
def test_one_nonsensical_number_does_not_spoil_the_rest(name: str, value: Any) -> None:
    """One NaN in a sum would make every figure NaN."""
    run = killed_script()
    for records in (run.logs, run.ledger):
        spoiled = [record for record in records if name in record]
        for record in spoiled[:1]:
            record[name] = value
    account = run.account()
    check_sums(account)
    assert 20 <= account.wall_s <= 42.0 or value == -5.0
    if name == "data_wait_s":
        assert not any("went back" in note for note in account.notes)


def test_an_empty_ledger_is_all_startup() -> None:
    """A job that keeps dying before its first step must still be accounted for in full."""
    run = Script()
    run.start(0, 0.0, 6.0)
    run.start(1, 10.0, 12.0)
    account = run.account()
    check_sums(account)
    assert spent(account) == {"start_up": 8.0, "down": 4.0}
    assert account.goodput is None


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    """A table of zeros would look like a real run."""
    with pytest.raises(ValueError, match=r"nowhere: no timestamps in ledger/.* --run-dir"):
        account_run(tmp_path / "nowhere")


times = st.floats(-10.0, 200.0) | st.sampled_from([math.nan, math.inf, 0.0, 50.0])


@st.composite
def any_scripts(draw: st.DrawFn) -> Script:
    """Anything that a broken clock, a truncated log or another program can leave behind."""
    run = Script(old=draw(st.booleans()))
    for attempt in draw(st.lists(st.integers(0, 3), max_size=4)):
        run.start(attempt, draw(times), draw(times), draw(st.integers(0, 5)))
        for step in draw(st.lists(st.integers(1, 9), max_size=6)):
            run.step(attempt, step, draw(times), draw(times))
        names = ["checkpoint_saved", "train_progress", "run_end", "hang", "preempted"]
        for name in draw(st.lists(st.sampled_from(names), max_size=5)):
            wait = {"data_wait_s": draw(times)} if draw(st.booleans()) else {}
            run.event(attempt, name, draw(times), draw(st.integers(0, 9)), **wait)
    return run


@given(any_scripts())
def test_the_kinds_always_add_up_to_the_wall_time(run: Script) -> None:
    """A second that is missing or counted twice makes every percentage wrong."""
    try:
        account = run.account()
    except ValueError as error:
        assert "no timestamps in ledger" in str(error)  # noqa: PT017
    else:
        check_sums(account)


# --- real runs ------------------------------------------------------------------------------

LONGER = {
    "dataset_size": 12_000,
    "hidden_dim": 512,
    "micro_batch_size": 64,
    "max_epochs": 3,
    "checkpoint_every_steps": 20,
    "log_every": 5,
    "num_workers": 1,
}


def check_real(run_dir: Path) -> Account:
    """Check what is true of every run that was killed and restarted."""
    account, report = account_run(run_dir), audit_run(run_dir)
    check_sums(account)
    assert report.status == "proved", report.findings
    assert account.fractions["unknown"] < 0.05, account.seconds
    kinds = ("useful", "data_wait", "start_up", "checkpoint", "logging", "down")
    assert all(account.seconds[kind] > 0 for kind in kinds), account.seconds
    assert account.goodput == pytest.approx(report.goodput, rel=1e-3)
    inside = account.wall_s - account.seconds["down"]
    assert inside == pytest.approx(report.wall_s, abs=1e-3)
    assert not any("not known" in note or "went back" in note for note in account.notes)
    return account


@pytest.mark.ranks
def test_less_than_5_percent_of_a_killed_run_is_unknown(tmp_path: Path) -> None:
    """The cost of the next outage could hide in a large unknown share."""
    began = time.time()
    cfg = small(tmp_path / "run", **LONGER)
    start(cfg, 2, partial(kill, 1, 75))
    time.sleep(0.3)  # makes the downtime more than a rounding error
    finish(cfg, 2)
    account = check_real(tmp_path / "run")
    assert 0.3 < account.seconds["down"] < time.time() - began
    assert account.seconds["replayed"] > 0  # step 75 is not one that was saved
    # The processes started after the test did, and before they logged it.
    starts = [x for x in read_jsonl(tmp_path / "run/logs/rank-0.jsonl") if "pid" in x]
    assert [x["attempt"] for x in starts] == [0, 1]
    assert began - 0.05 < starts[0]["process_started"] < starts[0]["time"]
    assert starts[0]["time"] < starts[1]["process_started"] < starts[1]["time"]


@pytest.mark.ranks
def test_a_run_under_torchrun_is_accounted_for_from_the_first_process(tmp_path: Path) -> None:
    """There, importing torch is most of the startup, and nothing is logged during it."""
    run = tmp_path / "run"
    with Torchrun(small(run, **LONGER), 2, restarts=1) as job:
        wait_for_step(run, 70, rank=1)
        os.kill(job.ranks()[1], signal.SIGKILL)
        assert job.wait(200) == 0, job.stderr[-2000:]
    account = check_real(run)
    first = next(x for x in read_jsonl(run / "logs/rank-0.jsonl") if "pid" in x)
    assert account.begin == first["process_started"]
    assert account.seconds["start_up"] > first["time"] - first["process_started"] > 0.3


# --- the picture and the script -------------------------------------------------------------


def texts_of(account: Account) -> str:
    figure = goodput_picture(account)
    figure.canvas.draw()
    return "\n".join(x.get_text() for x in figure.findobj(Text) if isinstance(x, Text))


def test_the_picture_shows_the_totals_and_the_attempts() -> None:
    """A color without its number is a guess."""
    text = texts_of(killed_script().account())
    for wanted in (
        "useful steps: 14.5 s, 34.5%",
        "lost steps: 2.8 s, 6.5%",
        "down: 5.0 s, 11.9%",
        "waiting for data: 1.5 s, 3.6%",
        "goodput 43.2%",
        "attempt 0",
        "attempt 1",
        "seconds since the first start",
    ):
        assert wanted in text
    with pytest.raises(ValueError, match="nothing to draw"):
        goodput_picture(Account(begin=0, wall_s=0, seconds={}, fractions={}, goodput=None))


def test_the_areas_in_the_picture_are_proportional_to_the_seconds() -> None:
    """A bar drawn too long contradicts the numbers below it."""
    account = killed_script().account()
    areas: dict[str, float] = {}
    figure = goodput_picture(account)
    for patch in figure.axes[0].patches:
        values, edges, baseline = patch.get_data()
        color = patch.get_facecolor()
        area = float(((edges[1:] - edges[:-1]) * (baseline - values)).sum()) / 0.8
        key = "#{:02X}{:02X}{:02X}".format(*(round(255 * part) for part in color[:3]))
        areas[key] = areas.get(key, 0.0) + area
    wanted = {"#0072B2": 14.5, "#D55E00": 2.75, "#56B4E9": 15.0, "#CC79A7": 2.75}
    wanted |= {"#E69F00": 1.5, "#000000": 5.0, "#009E73": 0.5}
    assert areas == {key: pytest.approx(area, abs=1e-6) for key, area in wanted.items()}


def test_many_attempts_and_long_times_are_still_legible() -> None:
    """A week of restarts is exactly what the picture is for."""
    run = Script()
    for attempt in range(60):
        run.start(attempt, 9000.0 * attempt, 9000.0 * attempt + 50)
        run.step(attempt, attempt + 1, 9000.0 * attempt + 60, 9000.0 * attempt + 8000)
    text = texts_of(run.account())
    assert "days since the first start" in text
    assert "Showing the first 40 of 60 attempts" in text


def run_main(*arguments: object) -> int:
    main: Callable[[list[str]], int] = runpy.run_path(str(ROOT / "scripts/audit_run.py"))[
        "main"
    ]
    return main([str(argument) for argument in arguments])


def test_the_script_prints_the_account(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """People and tools must read the same numbers."""
    run = killed_script().write(tmp_path / "run")
    run_main(run)
    output = capsys.readouterr().out.splitlines()
    assert "  lost steps             2.8 s    6.5%" in output
    assert "wall time               42.0 s, made up of" in output
    assert any(line.startswith("note ") and "2 of 6 steps" in line for line in output)
    run_main(run, "--json")
    account = json.loads(capsys.readouterr().out)["account"]
    assert account["seconds"]["replayed"] == 2.75
    assert account["fractions"]["down"] == pytest.approx(5 / 42)
    assert "spans" not in account


def test_the_script_draws_the_account_or_says_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad file name for the picture must not cost you the audit's verdict."""
    run = killed_script().write(tmp_path / "run")
    run_main(run, "--goodput", tmp_path / "g.png")
    assert (tmp_path / "g.png").read_bytes().startswith(b"\x89PNG")
    assert run_main(run, "--goodput", tmp_path / "g.nonsense") == 2
    assert "--goodput" in capsys.readouterr().err
    assert run_main(tmp_path, "--goodput", tmp_path / "h.png") == 2
    assert not (tmp_path / "h.png").exists()
    capsys.readouterr()
    for path in (*run.glob("logs/*"), *run.glob("ledger/*")):
        records = [{k: v for k, v in x.items() if k != "time"} for x in read_jsonl(path)]
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert run_main(run, "--goodput", tmp_path / "h.png") == 2
    assert "has no timestamps in its logs or ledger" in capsys.readouterr().err
