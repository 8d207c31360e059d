"""Disks that are full, slow, read-only or failing, while the run saves and logs.

A run that cannot save reports it on every rank, as a message for its user, and keeps its last
good checkpoint. Once the fault is gone, the same command resumes and ends with the same
weights. A limit on file size stands in for a full disk, because it can hit exactly one write;
where mounting is permitted, so does a small tmpfs.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rehearsal.engine.programs import Prepare
from rehearsal.engine.reports import RankReport
from rehearsal.faults.breaks import at_call, before, is_rank, wrap
from rehearsal.faults.jobs import SIX_STEPS, Hang, problem_of, small, start, user_errors
from rehearsal.faults.matrix import Bench, Try, first_new_step_at, same_weights
from rehearsal.faults.permissions import (
    DENIED,
    become_nobody,
    why_modes_mean_nothing,
    with_mode,
)
from trainer_core.checkpoint_format import DamagedCheckpoint, published_steps, verify
from trainer_core.settings import UserError

KEEP = {"keep_last": 9}  # steps 3, 4 and 6 are saved
NO_TRACE = {"trace_steps": 0}  # else the trace, in the same step, is the first to fail


class Failure(NamedTuple):
    """One way in which the storage fails a run."""

    fault: str
    what: str
    prepare: Prepare | None = None
    settings: dict[str, Any] = KEEP
    world_size: int = 1
    kept: tuple[int, ...] = (3,)  # the checkpoints that are intact afterward
    stops: bool = True  # otherwise the run is not affected
    around: Callable[[Bench, Path], AbstractContextManager[Prepare | None]] | None = None
    says: str = ""  # what the message for the user must name
    struck: Path | None = None  # a file that grows each time the failure strikes


# ---------------------------------------------------------------- in the rank's process


def limit_file_size(limit: int) -> None:
    """Have each write beyond ``limit`` bytes fail with EFBIG, as one to a full disk does."""
    # Python ignores SIGXFSZ, which would end the process first.
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    )


def fill_at_save(number: int, limit: int) -> None:
    """Fill the disk before the ``number``-th save."""
    from trainer_core.checkpoint_writer import CheckpointWriter

    before(CheckpointWriter, "_write", at_call(number, lambda *_: limit_file_size(limit)))


def fill_at_line(kind: str, rank: int, step: int, passes: bool) -> None:
    """Fill the disk while one rank writes a line of ``step`` to its log or ledger.

    Args:
        passes: there is space again for the next line, which must not continue the torn one.
    """
    from trainer_core.json_lines import JsonlSink

    def limit(sink: JsonlSink, record: Any) -> None:
        path = os.readlink(f"/proc/self/fd/{sink.file.fileno()}")
        if is_rank(rank) and record["step"] == step and f"/{kind}/" in path:
            # Part of the line still fits.
            limit_file_size(os.fstat(sink.file.fileno()).st_size + 20)
        elif passes:
            limit_file_size(resource.getrlimit(resource.RLIMIT_FSIZE)[1])

    before(JsonlSink, "emit", limit)


def fill_at_trace() -> None:
    """Fill the disk before the trace is appended to."""

    def limited(append_trace: Any, path: Path, *rest: Any, **named: Any) -> None:
        if path.exists() and path.stat().st_size > 2000:
            limit_file_size(path.stat().st_size)
        append_trace(path, *rest, **named)

    wrap("append_trace", limited)


def fill_the_terminal(stream: int) -> None:
    """Put one of this process's standard streams on a full disk."""
    os.dup2(os.open("/dev/full", os.O_WRONLY), stream)


def slow_down_fsync(seconds: float, struck: Path) -> None:
    """Make the disk slow, and leave a byte in ``struck`` for each call that was slowed."""

    def slow_down(*_: Any) -> None:
        time.sleep(seconds)
        with struck.open("ab") as file:
            file.write(b".")

    before(os, "fsync", slow_down)


def fail_fsync(number: int) -> None:
    """Make the ``number``-th fsync fail with an I/O error."""

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    before(os, "fsync", at_call(number, fail))


def deny_at_save(number: int, mode: int) -> None:
    """Make the checkpoint folder read-only before the ``number``-th save."""
    from trainer_core.checkpoint_writer import CheckpointWriter

    become_nobody()
    deny = at_call(number, lambda writer, *_: writer.checkpoints.chmod(mode))
    before(CheckpointWriter, "_write", deny)


# ---------------------------------------------------------------- around the run


@contextmanager
def on_tmpfs(kib: int, bench: Bench, run_dir: Path) -> Iterator[None]:
    """Put the checkpoints on a tmpfs of ``kib`` KiB, which grows when the block ends."""
    checkpoints = run_dir / "checkpoints"
    checkpoints.mkdir(parents=True)
    mount(checkpoints, f"size={kib}k")
    yield
    mount(checkpoints, "remount,size=16m")


def mount(folder: Path, options: str) -> None:
    """Mount or resize a tmpfs. Raises PermissionError if that is not permitted."""
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise PermissionError(done.stderr.strip())


def why_no_tmpfs(folder: Path) -> str:
    """Why no file system can be mounted here; "" if one can."""
    if shutil.which("mount") is None:
        return "there is no mount command"
    folder.mkdir(parents=True)
    try:
        mount(folder, "size=64k")
    except OSError as error:
        return f"mounting is not permitted: {error}"
    subprocess.run(["umount", str(folder)], check=True)
    return ""


def mode_of(
    name: str, mode: int, bench: Bench, run_dir: Path
) -> AbstractContextManager[Prepare]:
    """Run as a user who may not write to part of the run folder."""
    path = run_dir / name
    path.mkdir(parents=True, exist_ok=True)
    return with_mode(bench.root, run_dir, name, mode)


# ---------------------------------------------------------------- the failures


def failures(bench: Bench) -> Iterator[Failure]:
    """All failures of a disk; a few of each kind in quick mode."""
    rng = bench.rng("storage")
    is_async = {**KEEP, "async_checkpoint": True}
    kinds: list[tuple[dict[str, Any], int]]
    kinds = [(KEEP, 1), (is_async, 1), (KEEP, 2), (is_async, 2)]
    fault = "no space while saving"
    # The largest file of a checkpoint here, a random state, is 14 KB.
    for limit in [500, *sorted(rng.sample(range(13_000), 0 if bench.quick else 12))]:
        for settings, world_size in kinds[1:3] if bench.quick else kinds:
            what = f"files of at most {limit} bytes from the second save on"
            yield Failure(fault, what, partial(fill_at_save, 2, limit), settings, world_size)
    fault = "no space for checkpoints (tmpfs)"
    for kib in (8, 64) if bench.quick else (4, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80):
        around = partial(on_tmpfs, kib)
        yield Failure(fault, f"{kib} KiB", settings=KEEP, kept=(), around=around)
    for kind, failing, world_size in (
        ("ledger", 0, 1),
        ("ledger", 0, 2),
        ("ledger", 1, 2),
        ("logs", 0, 1),
        ("logs", 0, 2),
        ("logs", 1, 2),
    ):
        for step in (5,) if bench.quick else (1, 2, 4, 5, 6):
            for passes in (failing == 1,) if bench.quick else (False, True):
                prepare = partial(fill_at_line, kind, failing, step, passes)
                what = f"rank {failing} of {world_size}, step {step}"
                what += ", for one line" if passes else ""
                kept = tuple(saved for saved in (3, 4) if saved < step)
                settings = {**KEEP, **NO_TRACE}
                fault = f"no space for the {kind}"
                yield Failure(fault, what, prepare, settings, world_size, kept)
    for world_size in (1, 2):
        what = f"{world_size} rank(s)"
        yield Failure("no space for the trace", what, fill_at_trace, KEEP, world_size, kept=())
    fault = "a disk that fails"
    for at in (8,) if bench.quick else (1, 2, *range(7, 13)):
        # The first two are config.json's, then five a save with one rank.
        kept = (3,) if at >= 8 else ()
        yield Failure(fault, f"fsync {at} gives EIO", partial(fail_fsync, at), KEEP, 1, kept)
    yield Failure(fault, "fsync 12 gives EIO", partial(fail_fsync, 12), is_async, 2, ())
    for stream, name in ((1, "stdout"), (2, "stderr")):
        for world_size in (1, 2):
            fill = partial(fill_the_terminal, stream)
            kept = (3, 4, 6)
            yield Failure(
                "no space for the terminal", name, fill, KEEP, world_size, kept, stops=False
            )
    struck = bench.root / "storage" / "slowed"
    for settings, world_size in kinds[1:3] if bench.quick else kinds:
        slow = partial(slow_down_fsync, 0.02 if bench.quick else 0.1, struck)
        what = f"each fsync takes a while, {'async' if settings is is_async else 'sync'}"
        yield Failure(
            "a slow disk",
            what,
            slow,
            settings,
            world_size,
            kept=(3, 4, 6),
            stops=False,
            struck=struck,
        )


def read_only(bench: Bench) -> Iterator[Failure]:
    """Folders that may not be written to, from the start or from one save on."""
    fault = "a read-only folder"
    for number, name in enumerate((".", "checkpoints", "logs", "ledger", "traces")):
        around = partial(mode_of, name, 0o555)
        yield Failure(
            fault, name, None, KEEP, 1 + number % 2, kept=(), around=around, says=DENIED
        )
    for world_size in (1, 2):
        around = partial(mode_of, "checkpoints", 0o755)
        prepare = partial(deny_at_save, 2, 0o555)
        what = "checkpoints, from the second save on"
        yield Failure(fault, what, prepare, KEEP, world_size, around=around, says=DENIED)


# ---------------------------------------------------------------- the judgment


def wrong_end(failure: Failure, reports: list[RankReport], run_dir: Path) -> str:
    """What the run should have done about the failure and did not; "" if it was right."""
    problem = user_errors(reports, says=failure.says) if failure.stops else problem_of(reports)
    if problem:
        return problem
    if failure.struck is not None and not failure.struck.exists():
        return "the failure never struck, so nothing was tried"
    found = published_steps(run_dir / "checkpoints")
    if missing := [step for step in failure.kept if step not in found]:
        return f"the checkpoint of step {missing[0]} is gone"
    for folder in found.values():
        try:
            verify(folder)
        except (DamagedCheckpoint, UserError) as error:
            return f"{folder.name} was published but fails verification: {error}"
    return ""


def fail(bench: Bench, failure: Failure, run_dir: Path) -> Try:
    """Run into the failure, remove it, resume to the end, and judge both."""
    run_dir.mkdir(parents=True)
    if failure.struck is not None:
        failure.struck.unlink(missing_ok=True)
    cfg, began = small(run_dir, **{**SIX_STEPS, **failure.settings}), time.time()
    around = failure.around(bench, run_dir) if failure.around else nullcontext()
    failed = began
    try:
        with around as prepare:
            reports = start(cfg, failure.world_size, failure.prepare or prepare)
            failed = time.time()
        problem = wrong_end(failure, reports, run_dir)
        resumed = problem_of(start(cfg, failure.world_size))
        problem = problem or resumed
    except Hang as hang:
        problem = str(hang)
    reference = bench.reference(small(run_dir, **SIX_STEPS), failure.world_size)
    first = [first_new_step_at(run_dir, attempt) for attempt in (0, 1)]
    later = [at for at in first if at and at > (failed if failure.stops else began)]
    return bench.judge(
        failure.fault,
        f"{failure.what}, {failure.world_size} rank(s)",
        run_dir,
        equal=same_weights(run_dir, reference),
        restart_s=min(later) - failed if later and failure.stops else None,
        problem=problem,
    )


def fail_the_storage(bench: Bench) -> Iterator[Try]:
    """The group: each failure strikes a run of its own."""
    root = bench.root / "storage"
    no_tmpfs = why_no_tmpfs(root / "trial")
    no_modes = why_modes_mean_nothing(bench.root)
    for failure in (*failures(bench), *read_only(bench)):
        run_dir = root / "run"
        is_mounted = "tmpfs" in failure.fault
        if reason := no_tmpfs if is_mounted else no_modes if failure.around else "":
            yield Try(failure.fault, failure.what, skipped=reason)
            continue
        try:
            result = fail(bench, failure, run_dir)
        finally:
            if is_mounted:
                # The folder of a failed try is kept, so copy it off the tmpfs first.
                shutil.copytree(run_dir, root / "copy")
                subprocess.run(["umount", str(run_dir / "checkpoints")], check=False)
                shutil.rmtree(run_dir)
                (root / "copy").rename(run_dir)
        yield bench.put_away(run_dir, result)
