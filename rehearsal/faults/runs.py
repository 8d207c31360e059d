"""Small runs of the real trainer on forked ranks, with something broken in them or not."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.faults.matrix import Bench
from rehearsal.engine.rank import RankContext
from rehearsal.engine.ranks import run_ranks, warm_up
from trainer_core.config import TrainConfig

Prepare = Callable[[int], None]  # given the rank; breaks something in its process

# 11 samples divide by nothing, so each epoch of 3 steps ends with a smaller one. Saved are the
# steps 3, 4 and 6; each save but the first has an older checkpoint to delete.
SMALL: dict[str, Any] = {
    "dataset_size": 11,
    "input_dim": 2,
    "hidden_dim": 4,
    "num_layers": 1,
    "micro_batch_size": 2,
    "pinned_global_batch_size": 4,
    "max_epochs": 2,
    "dropout": 0.1,  # draws from the random streams, which are then seen to continue
    "checkpoint_every_steps": 4,
    "keep_last": 1,
    "log_every": 1,
    "device": "cpu",
    "dist_timeout_s": 60.0,
}
DEADLINE_S = 60.0


def small(run_dir: Path, **changes: Any) -> TrainConfig:
    """A run of a tenth of a second."""
    return TrainConfig(**{**SMALL, "run_dir": run_dir, **changes})


def train(context: RankContext, cfg: TrainConfig, prepare: Prepare | None) -> dict[str, Any]:
    """What each rank does."""
    import trainer_core.launch

    if prepare is not None:
        prepare(context.rank)
    try:
        return trainer_core.launch.run(cfg)
    finally:
        # Whatever was broken in this process, the rank must be able to write its answer.
        os.seteuid(os.getuid())
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def start(
    cfg: TrainConfig, world_size: int, prepare: Prepare | None = None
) -> list[RankReport]:
    """Start the run as its user would, and say how each rank ended."""
    warm_up("trainer_core.launch", __name__)
    return run_ranks(train, cfg, prepare, world_size=world_size, deadline_s=DEADLINE_S)


def problem_of(reports: list[RankReport]) -> str:
    """Why a start did not come to its end; "" if it did."""
    for report in reports:
        if report.failure is not None:
            return f"rank {report.rank}: {report.failure.kind}: {report.failure.message}"
        if report.exitcode != 0:
            what = "did not end" if report.exitcode is None else f"code {report.exitcode}"
            return f"rank {report.rank}: {what}: {report.stacks or report.output[-500:]}"
    return ""


def user_errors(reports: list[RankReport], *, says: str = "") -> str:
    """Which rank did not end with a message for its user; "" if all did.

    Args:
        says: what the message must name, so that a refusal for another reason is none.
    """
    for report in reports:
        if report.failure is None:
            return f"rank {report.rank} went on, or died: code {report.exitcode}"
        if report.failure.kind != "UserError":
            said = f"{report.failure.kind}: {report.failure.message}"
            return f"rank {report.rank} ended with a traceback, not a UserError: {said}"
        if says not in report.failure.message:
            return f"rank {report.rank} does not say {says!r}, but: {report.failure.message}"
    return ""


def weights_of(reports: list[RankReport]) -> set[str]:
    """The hashes of the last weights, over all ranks: one, if they agree."""
    return {report.answer["weights_sha256"] for report in reports if report.has_answer}


def undisturbed(bench: Bench, world_size: int, **changes: Any) -> set[str]:
    """The last weights of a run that nothing happens to."""
    key = world_size, *sorted(changes.items())
    if key not in bench.references:
        run_dir = bench.root / f"undisturbed-{len(bench.references)}"
        reports = start(small(run_dir, **changes), world_size)
        assert not problem_of(reports), problem_of(reports)
        bench.references[key] = weights_of(reports)
    weights: set[str] = bench.references[key]
    return weights


def before(owner: Any, name: str, do: Callable[..., None]) -> None:
    """Have ``do`` called with the arguments of a function before each call of it."""
    original = getattr(owner, name)

    def intercepted(*arguments: Any, **named: Any) -> Any:
        do(*arguments, **named)
        return original(*arguments, **named)

    setattr(owner, name, intercepted)


def die_after(step: int) -> Prepare:
    """Kill rank 0 when the optimizer has taken ``step``, before it is written down."""

    def prepare(rank: int) -> None:
        from trainer_core.data import ResumeAwareDistributedSampler as Sampler

        commit = Sampler.commit

        def commit_and_die(self: Sampler) -> None:
            commit(self)
            if rank == 0 and self.position == step:
                os.kill(os.getpid(), signal.SIGKILL)

        Sampler.commit = commit_and_die  # type: ignore[method-assign]

    return prepare


# ---------------------------------------------------------------- the folder and its owner

NOBODY = 65534
DENIED = os.strerror(errno.EACCES)  # what a refusal for want of a mode says


def snapshot(folder: Path) -> dict[str, bytes | str | None]:
    """Every file's content, every link's target, every folder, by path."""
    found: dict[str, bytes | str | None] = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = path.read_bytes() if path.is_file() else None
    return found


def why_modes_mean_nothing(root: Path) -> str:
    """Why file modes bind no process of this user; "" if they do, or it can become another.

    Args:
        root: of all runs; made passable for others. Where a folder above it is closed, the
            other user is refused whatever the mode that is tried.
    """
    if os.geteuid() != 0:
        return ""
    root.chmod(0o711)
    try:
        os.seteuid(NOBODY)
    except OSError as error:
        return f"root ignores file modes, and may not become another user here: {error}"
    try:
        os.stat(root / ".")
    except OSError as error:
        return f"root ignores file modes, and another user does not reach the runs: {error}"
    finally:
        os.seteuid(0)
    return ""


def become_nobody(rank: int) -> None:
    """Be a user whom file modes bind."""
    if os.geteuid() == 0:
        os.seteuid(NOBODY)


@contextmanager
def with_mode(root: Path, run_dir: Path, name: str, mode: int) -> Iterator[Prepare]:
    """Give a file or folder of a run another mode for a while.

    Args:
        root: of all runs; made passable for others.

    Yields:
        What makes a rank a user whom the mode binds.
    """
    if os.geteuid() == 0:
        root.chmod(0o711)
        for path in (run_dir, *run_dir.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    path = run_dir / name
    before = path.stat().st_mode
    path.chmod(mode)
    try:
        yield become_nobody
    finally:
        path.chmod(before)
