"""What a start sees: other folders, another job, other settings, another format.

A start that must not go on is refused on every rank with exit code 2, and what is published
stays as it was.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rehearsal.evidence.audit import read_jsonl
from rehearsal.engine.processes import processes_in
from rehearsal.faults import breaks
from rehearsal.faults.forked import (
    DEADLINE_S,
    SMALL,
    Hang,
    Job,
    new_folder,
    reference,
    same_weights,
)
from rehearsal.faults.matrix import Bench, Try, leave
from rehearsal.faults.processes import ends_refused
from trainer_core.checkpoint_format import FORMAT, manifest_sha256, published_steps
from trainer_core.config import TrainConfig
from trainer_core.settings import flag_name

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"


def views(bench: Bench) -> Iterable[Try]:
    """All of them; with ``quick`` one of a kind."""
    for group in (other_folders, two_jobs, formats, settings):
        for number, each in enumerate(group(bench)):
            yield each
            if bench.quick and number == 1:
                break


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, but for the lock, which says who trains in it."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def killed(run_dir: Path, world_size: int, plan: Mapping[str, Any], step: int) -> None:
    """Leave a run that was killed after ``step`` in ``run_dir``."""
    prepare = partial(breaks.signal_itself, signal.SIGKILL, world_size - 1, step)
    with Job(run_dir.parent / "before", world_size, plan, prepare, run_dir) as job:
        codes = job.wait()
    if codes[-1] != -signal.SIGKILL:
        raise RuntimeError(f"the run to be killed ended with {codes}: {job.said()}")


def refused(job: Job, says: str) -> str:
    """The problem with a start that must be refused on every rank; "" if it is."""
    try:
        return ends_refused(job, job.wait(), says=says)
    except Hang as hang:
        return str(hang)


def done(job: Job) -> str:
    """The problem with a start that must reach the end; "" if it does."""
    try:
        codes = job.wait()
    except Hang as hang:
        return str(hang)
    return f"ended with {codes}: {job.said()[-2000:]}" if any(codes) else ""


def finish(
    bench: Bench, fault: str, what: str, folder: Path, problem: str, **options: Any
) -> Try:
    """Start once more as it should be, to the end, and judge.

    Args:
        options: plan, world_size (2), run_dir (of ``folder``), equal_to (the run to compare
            with; by default an undisturbed one of the same plan).
    """
    plan, world_size = options.get("plan", SMALL), options.get("world_size", 2)
    run_dir = options.get("run_dir", folder / "run")
    with Job(folder, world_size, plan, run_dir=run_dir) as job:
        ended = done(job)
    problem = problem or ended
    straight = options.get("equal_to") or reference(bench, world_size, plan)
    equal = same_weights(run_dir, straight, exactly=True)
    result = bench.judge(fault, what, run_dir, equal=equal, problem=problem)
    return leave(folder, result)


# %% other folders


def go_to(*folders: Path) -> None:
    """Have each rank work in a folder of its own, where ``--run-dir run`` is another one."""
    sys.path[:] = [os.path.abspath(path) for path in sys.path]
    os.chdir(folders[int(os.environ["RANK"])])


def other_folders(bench: Bench) -> Iterator[Try]:
    """Rank 1 sees another disk under the same name."""
    for what in (
        "nothing",
        "a copy of all of it",
        "another run, as far as this one",
        "a copy without the newest checkpoint",
        "a copy with a newer checkpoint",
    ):
        folder = new_folder(bench, "views")
        here, there = folder / "here" / "run", folder / "there" / "run"
        killed(here, 2, SMALL, 8)
        there.parent.mkdir()
        if what.startswith("another"):
            killed(there, 2, SMALL, 8)
        elif what.startswith("a copy"):
            shutil.copytree(here, there)
            newest = next(iter(published_steps(there / "checkpoints").values()))
            if "without" in what:
                shutil.rmtree(newest)
            elif "newer" in what:
                shutil.copytree(newest, newest.with_name("step-00000009"))
        before = contents(here / "checkpoints"), contents(there)
        prepare = partial(go_to, here.parent, there.parent)
        with Job(folder, 2, SMALL, prepare, Path("run")) as job:
            problem = refused(job, "disk that all nodes share")
        if (contents(here / "checkpoints"), contents(there)) != before and not problem:
            problem = "the refused start has changed files"
        fault = "ranks that see different folders"
        yield finish(bench, fault, f"rank 1 sees {what}", folder, problem, run_dir=here)


# %% two jobs


def two_jobs(bench: Bench) -> Iterator[Try]:
    """A second job in the folder of one that trains, or that is dead but for a worker."""
    yield second_job(bench, 2)
    yield late_decision(bench)
    yield orphaned_worker(bench)
    yield second_job(bench, 1)


def second_job(bench: Bench, world_size: int) -> Try:
    """The second job is refused and writes nothing; the first goes on."""
    folder = new_folder(bench, "views")
    go, run_dir = folder / "go", folder / "run"
    problem = ""
    with Job(folder, world_size, SMALL, partial(breaks.pause, 0, 5, go)) as first:
        wait_for_step(run_dir, 5)
        time.sleep(0.2)  # rank 1 may still write its line
        before = contents(run_dir)
        with Job(folder, world_size, SMALL, run_dir=run_dir) as second:
            problem = refused(second, "another job is training here")
        if contents(run_dir) != before:
            problem = problem or "the refused job has changed files"
        go.touch()
        problem = problem or done(first)
    fault = "second job in the run folder"
    return finish(bench, fault, f"{world_size} ranks", folder, problem, world_size=world_size)


def wait_for_step(run_dir: Path, step: int) -> None:
    """Wait until rank 0 has written the line of ``step``. Raises Hang if it does not."""
    ledger, deadline = run_dir / "ledger" / "rank-0.jsonl", time.monotonic() + DEADLINE_S
    while not (ledger.exists() and any(r["step"] == step for r in read_jsonl(ledger))):
        if time.monotonic() > deadline:
            raise Hang(f"{run_dir}: step {step} did not come")
        time.sleep(0.02)


def outlive_the_rank() -> None:
    """Have a loader worker stay when its rank dies, as where the kernel does not end it."""
    import trainer_core.data as data

    vars(data)["exit_with_parent"] = lambda _: None


def orphaned_worker(bench: Bench) -> Try:
    """A loader worker that outlives its rank has its files, but must not have its lock."""
    folder, plan = new_folder(bench, "views"), {**SMALL, "num_workers": 1}
    run_dir = folder / "run"
    prepare = partial(
        breaks.both, outlive_the_rank, partial(breaks.pause, 0, 5, folder / "never")
    )
    with Job(folder, 1, plan, prepare) as job:
        wait_for_step(run_dir, 5)
        workers = [pid for pid in processes_in(set(job.pids)) if pid not in job.pids]
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)  # else it would notice within seconds, and end
        job.workers.kill(0)
        job.workers.processes[0].join()
        with Job(folder, 1, plan, run_dir=run_dir) as again:
            problem = done(again)
        if not workers or not set(workers) <= set(processes_in(set(job.pids))):
            problem = problem or "no worker has outlived its rank, so this shows nothing"
    fault = "rank 0 dead, its loader worker alive"
    return finish(bench, fault, "1 rank", folder, problem, world_size=1, plan=plan)


def wait_before_the_lock(here: Path, go: Path) -> None:
    """Stop a start between its decision and its lock until a file appears."""
    import trainer_core.job as job

    prepare_run_dir = vars(job)["prepare_run_dir"]

    def late(*arguments: Any) -> Any:
        here.touch()
        deadline = time.monotonic() + 60
        while not go.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return prepare_run_dir(*arguments)

    vars(job)["prepare_run_dir"] = late


def late_decision(bench: Bench) -> Try:
    """Another job trains and dies between a start's decision and its lock."""
    folder = new_folder(bench, "views")
    here, go, run_dir = folder / "here", folder / "go", folder / "run"
    killed(run_dir, 1, SMALL, 5)
    with Job(folder, 1, SMALL, partial(wait_before_the_lock, here, go), run_dir) as late:
        deadline = time.monotonic() + DEADLINE_S
        while not here.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        killed(run_dir, 1, SMALL, 14)
        go.touch()
        problem = refused(late, "or did just now")
    fault = "another job between decision and lock"
    return finish(bench, fault, "1 rank", folder, problem, world_size=1)


# %% formats


def write_golden(folder: Path) -> None:  # call it with tests/golden/format-N
    """Write a run of today's format, killed in its second epoch, to be kept for ever.

    Without the machine's paths and names: the run folder is a relative path, and the lock and
    what differs from run to run are left out.
    """
    plan = {**SMALL, **GOLDEN_PLAN}
    go_there = partial(go_to, folder)
    kill = partial(breaks.signal_itself, signal.SIGKILL, 0, 14)
    with Job(folder, 1, plan, partial(breaks.both, go_there, kill), Path("run")) as job:
        job.wait()
    shutil.rmtree(folder / "start-0")
    (folder / "run" / "lock").unlink()
    for path in (folder / "run" / "checkpoints").glob("step-*"):
        if path.name != "step-00000012":
            shutil.rmtree(path)


GOLDEN_PLAN = {
    "dataset_size": 67,
    "input_dim": 4,
    "hidden_dim": 4,
    "max_epochs": 2,
    "dropout": 0.0,
    "checkpoint_every_steps": 4,
    "log_every": 100,
}


def formats(bench: Bench) -> Iterator[Try]:
    """Runs of every earlier format and of today's, and one of a format that is yet to come."""
    plan = {**SMALL, **GOLDEN_PLAN}
    yield newer_format(bench)
    for golden in sorted(GOLDEN.glob("format-*")):
        folder = new_folder(bench, "views")
        shutil.copytree(golden / "run", folder / "run")
        with Job(folder, 1, plan) as job:
            problem = done(job)
        events = list(read_jsonl(folder / "run" / "logs" / "rank-0.jsonl"))
        restored = [e["folder"] for e in events if e["event"] == "checkpoint_restored"]
        if restored != ["step-00000012"]:
            problem = problem or f"restored {restored}, not step-00000012"
        # Within tolerance: the golden part of the run was trained on another machine.
        straight = reference(bench, 1, plan)
        equal = same_weights(folder / "run", straight, exactly=False)
        fault = "checkpoint of an earlier format"
        result = bench.judge(fault, golden.name, folder / "run", equal=equal, problem=problem)
        yield leave(folder, result)


def newer_format(bench: Bench) -> Try:
    """A checkpoint of a newer version is good, so it is neither read nor set aside."""
    folder = new_folder(bench, "views")
    killed(folder / "run", 2, SMALL, 8)
    newest = next(iter(published_steps(folder / "run" / "checkpoints").values()))
    path = newest / "manifest.json"
    text = path.read_text()
    manifest = {**json.loads(text), "format": FORMAT + 1}
    path.write_text(json.dumps({**manifest, "sha256": manifest_sha256(manifest)}))
    before = contents(folder / "run")
    with Job(folder, 2, SMALL) as job:
        problem = refused(job, f"format {FORMAT + 1}")
    if contents(folder / "run") != before:
        problem = problem or "the refused start has changed files"
    path.write_text(text)  # as if the code had been updated
    return finish(bench, "checkpoint of a newer format", path.parent.name, folder, problem)


# %% settings

TOKENS = {"seq_len": 8, "vocab_size": 64, "num_heads": 4, "data": "tokens:"}
# Where half, double or the next choice would be refused, or would not show.
OTHER_VALUES: dict[str, Any] = {
    "data": "digits",
    "max_grad_norm": 0.01,
    "warmup_steps": 12,
    "decay_steps": 60,
    "input_noise": 0.5,
    "weight_decay": 3.0,
    "device": "cpu",
}
SPECIAL = {"world_size", "run_dir", "start_over", "pinned_global_batch_size"}
# Settings that act only in what does not happen here.
WITHOUT_EFFECT = {"on_nonfinite", "input_dim"}


def other_value(name: str, annotation: str, value: Any, choices: tuple[str, ...]) -> Any:
    """A valid value of a setting that is not ``value``."""
    if name in OTHER_VALUES:
        return OTHER_VALUES[name]
    if choices:
        return next(choice for choice in choices if choice != value)
    if annotation.startswith("bool"):
        return not value
    if annotation.startswith("float"):
        return value / 2
    return (value or 0) * 2 or 1


def settings(bench: Bench) -> Iterator[Try]:
    """Each setting changed in turn between two starts, judged by its kind."""
    names = {"seed", "learning_rate"} if bench.quick else None
    for spec in fields(TrainConfig):
        if spec.name not in SPECIAL and (names is None or spec.name in names):
            rules, annotation = spec.metadata, str(spec.type)
            folder = new_folder(bench, "views")
            plan = dict(SMALL)
            if rules.get("only") == "tokens":
                np.tile(np.arange(60, dtype="<u2"), 60).tofile(folder / "tokens.bin")
                plan |= {**TOKENS, "data": f"tokens:{folder / 'tokens.bin'}"}
            if rules["kind"] == "operation":
                plan["num_workers"] = 1
            before = plan.get(spec.name, spec.default)
            now = other_value(spec.name, annotation, before, rules.get("choices", ()))
            killed(folder / "run", 2, plan, 8)
            judge = refused_setting if rules["kind"] == "identity" else changed_setting
            if spec.name in ("micro_batch_size", "grad_accum_steps"):
                judge = refused_setting  # they change the global batch, which is not pinned
            yield judge(bench, folder, plan, spec.name, before, now)


def refused_setting(
    bench: Bench, folder: Path, plan: dict[str, Any], name: str, before: Any, now: Any
) -> Try:
    """The start is refused on all ranks, naming the field, both values and the way out."""
    there = contents(folder / "run")
    with Job(folder, 2, {**plan, name: now}) as job:
        problem = refused(job, "belongs to another run")
    flag, values = flag_name(name), (before, now)
    if name in ("micro_batch_size", "grad_accum_steps"):
        size = plan["micro_batch_size"] * plan["grad_accum_steps"] * 2
        flag, values = "--pinned-global-batch-size", (size, size // before * now)
    elif name == "data":
        values = (before.partition(":")[0], now)
    for wanted in (f"{values[0]} there", f"{values[1]} here", f"{flag} {values[0]}"):
        if wanted not in job.said():
            problem = problem or f"{wanted!r} is not said: {job.said()[-1000:]}"
    if contents(folder / "run") != there:
        problem = problem or "the refused start has changed files"
    what = f"{name} {before} -> {now}"
    return finish(bench, "identity field changed", what, folder, problem, plan=plan)


def changed_setting(
    bench: Bench, folder: Path, plan: dict[str, Any], name: str, before: Any, now: Any
) -> Try:
    """The start goes on with the new value, and says so; only what trains changes weights."""
    kind = next(spec.metadata["kind"] for spec in fields(TrainConfig) if spec.name == name)
    with Job(folder, 2, {**plan, name: now}) as job:
        problem = done(job)
    events = list(read_jsonl(job.run_dir / "logs" / "rank-0.jsonl"))
    said = [
        event["changes"].get(name) for event in events if event["event"] == "config_changed"
    ]
    if [now] != [pair[1] for pair in said if pair]:
        problem = problem or f"config_changed does not name {name}, but says {said}"
    straight = reference(bench, 2, plan)
    is_same = same_weights(job.run_dir, straight, exactly=True)
    must_differ = kind == "training" and name not in WITHOUT_EFFECT
    what = f"{name} {before} -> {now}"
    equal = is_same != must_differ
    if not equal:
        problem = problem or ("it has no effect" if must_differ else "it changes the weights")
    result = bench.judge(
        f"{kind} field changed", what, job.run_dir, equal=equal, problem=problem
    )
    return leave(folder, result)
