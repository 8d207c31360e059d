"""What a start finds: different folders, another job, changed settings, another format.

A start that must not train is refused on every rank with exit code 2, and leaves everything
that was published as it is.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rehearsal.engine.processes import processes_in
from rehearsal.evidence.run_records import read_jsonl
from rehearsal.faults import breaks
from rehearsal.faults.jobs import (
    ONE_EPOCH,
    SMALL,
    Hang,
    Job,
    codes_of,
    problem_of,
    small,
    start,
    wait_for_step,
    wait_until,
)
from rehearsal.faults.matrix import Bench, Try, leave, same_weights, snapshot
from rehearsal.faults.processes import ends_refused
from trainer_core.checkpoint_format import FORMAT, manifest_sha256, published_steps
from trainer_core.config import TrainConfig
from trainer_core.settings import flag_name

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"


def views(bench: Bench) -> Iterable[Try]:
    """The group: all views; in quick mode two of each kind."""
    for group in (other_folders, two_jobs, formats, settings):
        for number, each in enumerate(group(bench)):
            yield each
            if bench.quick and number == 1:
                break


def contents(folder: Path) -> dict[str, bytes | str | None]:
    """A snapshot without the lock, which says who trains in the folder."""
    return snapshot(folder, ignore="lock")


def killed(cfg: TrainConfig, world_size: int, step: int) -> None:
    """Leave a run that was killed after ``step`` in its folder."""
    reports = start(cfg, world_size, partial(breaks.kill, world_size - 1, step))
    if codes_of(reports)[-1] != -signal.SIGKILL:
        raise RuntimeError(f"the run to be killed ended with {codes_of(reports)}")


def refused(job: Job, says: str) -> str:
    """The problem with a start that must be refused on every rank; "" if it is."""
    try:
        return ends_refused(job, codes_of(job.wait()), says=says)
    except Hang as hang:
        return str(hang)


def done(job: Job) -> str:
    """The problem with a start that must reach the end; "" if it does."""
    try:
        return problem_of(job.wait())
    except Hang as hang:
        return str(hang)


def finish(
    bench: Bench,
    fault: str,
    what: str,
    folder: Path,
    problem: str,
    *,
    cfg: TrainConfig,
    world_size: int = 2,
) -> Try:
    """Start once more, correctly, train to the end, and judge."""
    with Job(cfg, world_size, output=folder) as job:
        ended = done(job)
    equal = same_weights(cfg.run_dir, bench.reference(cfg, world_size))
    problem = problem or ended
    result = bench.judge(fault, what, cfg.run_dir, equal=equal, problem=problem)
    return leave(folder, result)


# %% other folders


def go_to(*folders: Path) -> None:
    """Give each rank its own working directory, and so its own ``--run-dir run``."""
    sys.path[:] = [os.path.abspath(path) for path in sys.path]
    os.chdir(folders[breaks.this_rank()])


def other_folders(bench: Bench) -> Iterator[Try]:
    """Rank 1 sees another disk under the same name."""
    for what in (
        "nothing",
        "a copy of all of it",
        "another run at the same step",
        "a copy without the newest checkpoint",
        "a copy with a newer checkpoint",
    ):
        folder = bench.folder("views")
        here, there = folder / "here" / "run", folder / "there" / "run"
        cfg = small(here, **ONE_EPOCH)
        killed(cfg, 2, 8)
        there.parent.mkdir()
        if what.startswith("another"):
            killed(replace(cfg, run_dir=there), 2, 8)
        elif what.startswith("a copy"):
            shutil.copytree(here, there)
            newest = next(iter(published_steps(there / "checkpoints").values()))
            if "without" in what:
                shutil.rmtree(newest)
            elif "newer" in what:
                shutil.copytree(newest, newest.with_name("step-00000009"))
        before = contents(here / "checkpoints"), contents(there)
        prepare = partial(go_to, here.parent, there.parent)
        with Job(replace(cfg, run_dir=Path("run")), 2, prepare, output=folder) as job:
            problem = refused(job, "disk that all nodes share")
        if (contents(here / "checkpoints"), contents(there)) != before and not problem:
            problem = "the refused start changed files"
        fault = "ranks that see different folders"
        yield finish(bench, fault, f"rank 1 sees {what}", folder, problem, cfg=cfg)


# %% two jobs


def two_jobs(bench: Bench) -> Iterator[Try]:
    """A second job in the folder of one that is training, or that left a worker behind."""
    yield second_job(bench, 2)
    yield late_decision(bench)
    yield orphaned_worker(bench)
    yield second_job(bench, 1)


def second_job(bench: Bench, world_size: int) -> Try:
    """The second job is refused and writes nothing; the first one finishes."""
    folder = bench.folder("views")
    go, cfg = folder / "go", small(folder / "run", **ONE_EPOCH)
    with Job(cfg, world_size, partial(breaks.pause, 0, 5, go), output=folder) as first:
        for rank in range(world_size):
            wait_for_step(cfg.run_dir, 5, rank=rank)
        before = contents(cfg.run_dir)
        with Job(cfg, world_size, output=folder) as second:
            problem = refused(second, "another job is training here")
        if contents(cfg.run_dir) != before:
            problem = problem or "the refused job changed files"
        go.touch()
        problem = problem or done(first)
    fault, what = "second job in the run folder", f"{world_size} ranks"
    return finish(bench, fault, what, folder, problem, cfg=cfg, world_size=world_size)


def outlive_the_rank() -> None:
    """Let a loader worker outlive its rank, as it does where nothing kills it."""
    breaks.wrap("exit_with_parent", lambda *_: None)


def orphaned_worker(bench: Bench) -> Try:
    """A loader worker that outlives its rank keeps its files open, but not its lock."""
    folder = bench.folder("views")
    cfg = small(folder / "run", **ONE_EPOCH, num_workers=1)
    forever = partial(breaks.pause, 0, 5, folder / "never")
    prepare = partial(breaks.both, outlive_the_rank, forever)
    with Job(cfg, 1, prepare, output=folder) as job:
        wait_for_step(cfg.run_dir, 5)
        workers = [pid for pid in processes_in(set(job.pids)) if pid not in job.pids]
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)  # otherwise it would notice within seconds, and exit
        job.ranks[0].kill()
        job.ranks[0].wait()
        with Job(cfg, 1, output=folder) as again:
            problem = done(again)
        if not workers or not set(workers) <= set(processes_in(set(job.pids))):
            problem = problem or "no worker outlived its rank, so this shows nothing"
    fault = "rank 0 dead, its loader worker alive"
    return finish(bench, fault, "1 rank", folder, problem, cfg=cfg, world_size=1)


def wait_before_the_lock(here: Path, go: Path) -> None:
    """Pause a start between its decision and its lock until a file appears."""

    def late(prepare_run_dir: Any, *arguments: Any) -> Any:
        here.touch()
        breaks.wait_for(go)
        return prepare_run_dir(*arguments)

    breaks.wrap("prepare_run_dir", late)


def late_decision(bench: Bench) -> Try:
    """Another job trains and dies between a start's decision and its lock."""
    folder = bench.folder("views")
    here, go, cfg = folder / "here", folder / "go", small(folder / "run", **ONE_EPOCH)
    killed(cfg, 1, 5)
    with Job(cfg, 1, partial(wait_before_the_lock, here, go), output=folder) as late:
        wait_until(here.exists, "a start to reach its lock")
        killed(cfg, 1, 14)
        go.touch()
        problem = refused(late, "or was a moment ago")
    fault = "another job between decision and lock"
    return finish(bench, fault, "1 rank", folder, problem, cfg=cfg, world_size=1)


# %% formats


def write_golden(folder: Path) -> None:  # call it with tests/golden/format-N
    """Write a run of today's format, killed in its second epoch, to be kept forever.

    Nothing in it names this machine: the run folder is a relative path, and the lock and
    whatever differs from run to run are left out.
    """
    prepare = partial(breaks.both, partial(go_to, folder), partial(breaks.kill, 0, 14))
    start(small(Path("run"), **GOLDEN_PLAN), 1, prepare)
    (folder / "run" / "lock").unlink()
    for path in (folder / "run" / "checkpoints").glob("step-*"):
        if path.name != "step-00000012":
            shutil.rmtree(path)


GOLDEN_PLAN = {
    **ONE_EPOCH,
    "dataset_size": 67,
    "input_dim": 4,
    "hidden_dim": 4,
    "max_epochs": 2,
    "dropout": 0.0,
    "checkpoint_every_steps": 4,
    "log_every": 100,
}


def formats(bench: Bench) -> Iterator[Try]:
    """Runs of every earlier format, of today's, and one of a format that does not exist yet."""
    yield newer_format(bench)
    for golden in sorted(GOLDEN.glob("format-*")):
        folder = bench.folder("views")
        cfg = small(folder / "run", **GOLDEN_PLAN)
        shutil.copytree(golden / "run", folder / "run")
        with Job(cfg, 1, output=folder) as job:
            problem = done(job)
        events = list(read_jsonl(folder / "run" / "logs" / "rank-0.jsonl"))
        restored = [e["folder"] for e in events if e["event"] == "checkpoint_restored"]
        if restored != ["step-00000012"]:
            problem = problem or f"restored {restored}, not step-00000012"
        # Within tolerance: the golden part of the run was trained on another machine.
        equal = same_weights(folder / "run", bench.reference(cfg, 1), exactly=False)
        fault = "checkpoint of an earlier format"
        result = bench.judge(fault, golden.name, folder / "run", equal=equal, problem=problem)
        yield leave(folder, result)


def newer_format(bench: Bench) -> Try:
    """A checkpoint of a newer version may be intact, so it is refused, not set aside."""
    folder = bench.folder("views")
    cfg = small(folder / "run", **ONE_EPOCH)
    killed(cfg, 2, 8)
    newest = next(iter(published_steps(folder / "run" / "checkpoints").values()))
    path = newest / "manifest.json"
    text = path.read_text()
    manifest = {**json.loads(text), "format": FORMAT + 1}
    path.write_text(json.dumps({**manifest, "sha256": manifest_sha256(manifest)}))
    before = contents(folder / "run")
    with Job(cfg, 2, output=folder) as job:
        problem = refused(job, f"format {FORMAT + 1}")
    if contents(folder / "run") != before:
        problem = problem or "the refused start changed files"
    path.write_text(text)  # as if the code had been updated
    fault = "checkpoint of a newer format"
    return finish(bench, fault, path.parent.name, folder, problem, cfg=cfg)


# %% settings

TOKENS = {"seq_len": 8, "vocab_size": 64, "num_heads": 4, "data": "tokens:"}
# Where half, double or the next choice would be refused or would change nothing.
OTHER_VALUES: dict[str, Any] = {
    "data": "digits",
    "max_grad_norm": 0.01,
    "warmup_steps": 12,
    "decay_steps": 60,
    "input_noise": 0.5,
    "weight_decay": 3.0,
    "device": "auto",
}
SPECIAL = {"world_size", "run_dir", "start_over", "pinned_global_batch_size"}
# Settings that have no effect in these runs.
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
    """Each setting in turn is changed between two starts, and judged by its kind."""
    names = {"seed", "learning_rate"} if bench.quick else None
    for spec in fields(TrainConfig):
        if spec.name not in SPECIAL and (names is None or spec.name in names):
            rules, annotation = spec.metadata, str(spec.type)
            folder = bench.folder("views")
            plan = {**SMALL, **ONE_EPOCH}
            if rules.get("only") == "tokens":
                np.tile(np.arange(60, dtype="<u2"), 60).tofile(folder / "tokens.bin")
                plan |= {**TOKENS, "data": f"tokens:{folder / 'tokens.bin'}"}
            if rules["kind"] == "operation":
                plan["num_workers"] = 1
            before = plan.get(spec.name, spec.default)
            now = other_value(spec.name, annotation, before, rules.get("choices", ()))
            cfg = TrainConfig(run_dir=folder / "run", **plan)
            killed(cfg, 2, 8)
            judge = refused_setting if rules["kind"] == "identity" else changed_setting
            if spec.name in ("micro_batch_size", "grad_accum_steps"):
                judge = refused_setting  # they change the global batch, which is not pinned
            yield judge(bench, folder, cfg, spec.name, before, now)


def refused_setting(
    bench: Bench, folder: Path, cfg: TrainConfig, name: str, before: Any, now: Any
) -> Try:
    """All ranks refuse, and the message names the field, both values and what to do."""
    there = contents(folder / "run")
    changes: dict[str, Any] = {name: now}
    with Job(replace(cfg, **changes), 2, output=folder) as job:
        problem = refused(job, "belongs to a different run")
    flag, values = flag_name(name), (before, now)
    if name in ("micro_batch_size", "grad_accum_steps"):
        size = cfg.micro_batch_size * cfg.grad_accum_steps * 2
        flag, values = "--pinned-global-batch-size", (size, size // before * now)
    elif name == "data":
        values = (before.partition(":")[0], now)
    for wanted in (f"{values[0]} there", f"{values[1]} here", f"{flag} {values[0]}"):
        if wanted not in job.said():
            problem = problem or f"nobody says {wanted!r}: {job.said()[-1000:]}"
    if contents(folder / "run") != there:
        problem = problem or "the refused start changed files"
    what = f"{name} {before} -> {now}"
    return finish(bench, "identity field changed", what, folder, problem, cfg=cfg)


def changed_setting(
    bench: Bench, folder: Path, cfg: TrainConfig, name: str, before: Any, now: Any
) -> Try:
    """The start reports the new value and uses it; only training fields change weights."""
    kind = next(spec.metadata["kind"] for spec in fields(TrainConfig) if spec.name == name)
    changes: dict[str, Any] = {name: now}
    with Job(replace(cfg, **changes), 2, output=folder) as job:
        problem = done(job)
    events = list(read_jsonl(job.run_dir / "logs" / "rank-0.jsonl"))
    said = [
        event["changes"].get(name) for event in events if event["event"] == "config_changed"
    ]
    if [now] != [pair[1] for pair in said if pair]:
        problem = problem or f"config_changed does not name {name}, but says {said}"
    is_same = same_weights(job.run_dir, bench.reference(cfg, 2))
    must_differ = kind == "training" and name not in WITHOUT_EFFECT
    what = f"{name} {before} -> {now}"
    equal = is_same != must_differ
    if not equal:
        problem = problem or ("it has no effect" if must_differ else "it changes the weights")
    result = bench.judge(
        f"{kind} field changed", what, job.run_dir, equal=equal, problem=problem
    )
    return leave(folder, result)
