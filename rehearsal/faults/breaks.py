"""Ways to break a rank from inside, at an exact step.

Each is the ``prepare`` of a ``Job``: called in every rank before the command runs, it replaces
a function of the trainer with one that fails at its step.

    start(small(run_dir), 2, partial(kill, rank=1, step=7))
    start(small(run_dir), 2, partial(both, partial(fail_save, 3), slow_steps))

To write another one, wrap a function of the trainer by name:

    def lose_the_ledger(rank: int) -> None:
        def lose(emit: Any, sink: Any, record: Any) -> None:
            if not (is_rank(rank) and "samples" in record):
                emit(sink, record)

        wrap("JsonlSink.emit", lose)
"""

from __future__ import annotations

import argparse
import errno
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

Around = Callable[..., Any]  # given the original, then its arguments
Act = Callable[[], object]
Place = Literal["forward", "loader", "logging"]
When = Literal["before the ledger", "after the ledger"]


def this_rank() -> int:
    """The rank of the process that asks; a loader worker's is that of its parent."""
    return int(os.environ.get("RANK", "0"))


def is_rank(rank: int | None) -> bool:
    """Whether this process is ``rank``; None means every rank."""
    return rank is None or this_rank() == rank


def both(*acts: Act) -> None:
    """Break several things."""
    for act in acts:
        act()


# ---------------------------------------------------------------- how


def intercept(owner: Any, name: str, around: Around) -> None:
    """Have ``around(original, *arguments)`` called in place of a function."""
    original = getattr(owner, name)

    @wraps(original)
    def replaced(*arguments: Any, **named: Any) -> Any:
        return around(original, *arguments, **named)

    setattr(owner, name, replaced)


def before(owner: Any, name: str, act: Callable[..., object]) -> None:
    """Have ``act`` called with a function's arguments before each of its calls."""

    def around(original: Any, *arguments: Any, **named: Any) -> Any:
        act(*arguments, **named)
        return original(*arguments, **named)

    intercept(owner, name, around)


def wrap(name: str, around: Around) -> None:
    """``intercept`` for a function of trainer_core, in every module that has imported it.

    Args:
        name: "next_step"; of a method "JsonlSink.emit". In a rank of live.py, one of its own.
    """
    import trainer_core.launch  # noqa: F401 - and with it every module that a run uses

    modules = [sys.modules["__main__"]]
    if not is_live():
        names = [name for name in sys.modules if name.startswith("trainer_core")]
        modules = [sys.modules[name] for name in names if name != "trainer_core.live"]
    kind, _, function = name.rpartition(".")
    owners: list[Any] = [module for module in modules if function in vars(module)]
    if kind:
        owners = [vars(module)[kind] for module in modules if kind in vars(module)][:1]
    if len({id(getattr(owner, function)) for owner in owners}) != 1:
        raise AttributeError(f"trainer_core has {len(owners)} functions named {name}, not one")
    intercept(owners[0], function, around)
    for owner in owners[1:]:
        setattr(owner, function, getattr(owners[0], function))


def is_live() -> bool:
    """Whether this process runs live.py."""
    return Path(getattr(sys.modules["__main__"], "__file__", None) or "").name == "live.py"


def once_live_is_defined(act: Act) -> None:
    """Call ``act`` when live.py has defined its functions and is about to read its flags."""

    def acting(*_: Any, **__: Any) -> None:
        if is_live():
            act()

    before(argparse.ArgumentParser, "__init__", acting)


def at_call(number: int, act: Callable[..., object]) -> Callable[..., None]:
    """A function that calls ``act`` the ``number``-th time it is called itself."""
    calls = count(1)

    def acting(*arguments: Any) -> None:
        if next(calls) == number:
            act(*arguments)

    return acting


def at_step(step: int, act: Act, when: When = "before the ledger") -> None:
    """Call ``act`` when the optimizer has taken ``step``, before or after its ledger line."""

    def after_commit(commit: Any, sampler: Any) -> None:
        commit(sampler)
        if sampler.position == step:
            act()

    def after_line(emit: Any, sink: Any, record: Any) -> None:
        emit(sink, record)
        if "samples" in record and record["step"] == step:
            act()

    def around_line(log: Any, file: Any, **fields: Any) -> None:
        is_due = "samples" in fields and fields["step"] == step
        if is_due and when == "before the ledger":
            act()
        log(file, **fields)
        if is_due and when == "after the ledger":
            act()

    if is_live():
        wrap("log_rank_event", around_line)
    elif when == "before the ledger":
        wrap("ResumeAwareDistributedSampler.commit", after_commit)
    else:
        wrap("JsonlSink.emit", after_line)


def at_save(step: int | None, act: Act) -> None:
    """Call ``act`` once a checkpoint's files are written, before its rename; None: at each."""

    def acting(publish: Any, temporary: Path, target: Path, facts: Any) -> None:
        if step in (None, facts["step"]):
            act()
        publish(temporary, target, facts)

    wrap("publish", acting)


def at_batches(change: Callable[[int, list[Any]], object]) -> None:
    """Call ``change`` with each step's number, from 1 in each start, and its micro-batches."""
    steps = count(1)

    def changing(next_step: Any, *arguments: Any) -> Any:
        batches, error = next_step(*arguments)
        change(next(steps), batches)
        return batches, error

    wrap("next_step", changing)


# ---------------------------------------------------------------- signals and stops


def signal_itself(
    number: signal.Signals, rank: int | None, step: int, when: When = "before the ledger"
) -> None:
    """Have a rank send itself a signal after ``step``."""
    if is_rank(rank):
        at_step(step, lambda: os.kill(os.getpid(), number), when)


def kill(rank: int, step: int, when: When = "before the ledger") -> None:
    """SIGKILL a rank after ``step``: no handler runs, nothing is flushed."""
    signal_itself(signal.SIGKILL, rank, step, when)


def kill_after_save(rank: int, step: int) -> None:
    """SIGKILL a rank when the save of ``step`` has returned; an async one may be in flight."""

    def dying(save: Any, job: Any) -> None:
        save(job)
        if is_rank(rank) and job.parts["sampler"].position == step:
            os.kill(os.getpid(), signal.SIGKILL)

    wrap("save", dying)


def signal_in_the_save(number: signal.Signals, step: int) -> None:
    """Have rank 0 send itself a signal in the middle of a save."""

    def act() -> None:
        os.kill(os.getpid(), number)
        time.sleep(0.2)  # an async save lets the training continue meanwhile

    at_save(step, act)


def signal_at_the_vote(
    number: signal.Signals, rank: int, step: int, when: Literal["before", "after"]
) -> None:
    """Have a rank send itself a signal before the ranks vote in ``step``, or right after.

    Before: the peers wait for its vote. After: they wait for it in the next collective, which
    is where the host reads the step's records.
    """
    calls = count(1)

    def voting(any_rank: Any, *claims: bool) -> Callable[[], list[bool]]:
        is_now = next(calls) == step and is_rank(rank)
        if is_now and when == "before":
            os.kill(os.getpid(), number)
        answers = any_rank(*claims)

        def fetch() -> list[bool]:
            found: list[bool] = answers()
            if is_now and when == "after":
                os.kill(os.getpid(), number)
            return found

        return fetch

    wrap("any_rank", voting)


def pause(rank: int, step: int, until: Path) -> None:
    """Have a rank wait after the ledger line of ``step`` until a file appears."""
    if is_rank(rank):
        at_step(step, lambda: wait_for(until), "after the ledger")


def wait_for(path: Path, timeout_s: float = 60.0) -> None:
    """Wait until a file appears, or time runs out."""
    deadline = time.monotonic() + timeout_s
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def at_read(step: int, rank: int, act: Act) -> None:
    """Call ``act`` on one rank in ``data_wait``, before its ``step``-th step."""
    acting = at_call(step, act)

    def reading(next_step: Any, *arguments: Any) -> Any:
        if is_rank(rank):
            acting()
        return next_step(*arguments)

    wrap("next_step", reading)


def slow_steps(seconds: float = 0.2) -> None:
    """Make each step take a while, so that something can happen during training."""
    at_batches(lambda *_: time.sleep(seconds))


def slow_saves(seconds: float) -> None:
    """Make each save take a while, so that something can happen meanwhile."""
    at_save(None, lambda: time.sleep(seconds))


# ---------------------------------------------------------------- exceptions


def fail() -> None:
    """Raise what a bug in the user's code may raise."""
    raise ArithmeticError("a bug in the code of this rank")


def fill_the_disk() -> None:
    """Raise what a write to a full disk raises."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fail_save(step: int) -> None:
    """Make the save of ``step`` fail, as a full disk does."""
    at_save(step, fill_the_disk)


def fail_in(place: Place, act: Act, rank: int, call: int) -> None:
    """Call ``act``, which raises, on one rank in its ``call``-th forward, read or event."""
    name = {
        "forward": "TinyNet.forward",
        "loader": "ToyClassificationDataset.batch",
        "logging": "JsonlSink.emit",
    }[place]
    calls = count(1)

    def failing(original: Any, owner: Any, argument: Any) -> Any:
        is_counted = place != "logging" or "event" in argument  # the ledger isn't a log
        if is_counted and next(calls) == call and is_rank(rank):
            act()
        return original(owner, argument)

    wrap(name, failing)


def exhaust_memory(limit: Literal["address space", "data"], with_torch: bool) -> None:
    """Allocate more memory than a new limit allows; 32 MiB are left for what comes after."""
    if limit == "address space":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        soft, kind = pages * resource.getpagesize() + 2**25, resource.RLIMIT_AS
    else:
        data = Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]
        soft, kind = int(data) * 1024 + 2**25, resource.RLIMIT_DATA
    resource.setrlimit(kind, (soft, resource.RLIM_INFINITY))
    if with_torch:
        torch.empty(2**30, dtype=torch.uint8)
    else:
        bytearray(2**30)


# ---------------------------------------------------------------- data and views


def poison_step(rank: int, step: int) -> None:
    """Put a NaN into one rank's inputs of the ``step``-th step of this start."""

    def poisoning(number: int, batches: list[Any]) -> None:
        if is_rank(rank) and number == step:
            batches[0].inputs[0, 0] = float("nan")

    at_batches(poisoning)


def poison_sample(sample: int) -> None:
    """Make one sample of the toy data NaN, for whichever rank trains it, in every epoch."""

    def poisoning(batch: Any, source: Any, samples: Any) -> Any:
        inputs, targets = batch(source, samples)
        inputs[torch.as_tensor(samples) == sample] = float("nan")
        return inputs, targets

    wrap("ToyClassificationDataset.batch", poisoning)


def change_samples(rank: int, from_step: int) -> None:
    """From a step on, change one sample in each of a rank's steps by a little."""

    def changing(number: int, batches: list[Any]) -> None:
        if is_rank(rank) and number >= from_step:
            batches[0].inputs[0] += 0.5

    at_batches(changing)


def give_other_data(rank: int) -> None:
    """Let one rank read different content under the same name."""

    def other(build_dataset: Any, cfg: Any) -> Any:
        source = build_dataset(cfg)
        source.fingerprint += "other" if is_rank(rank) else ""
        return source

    wrap("build_dataset", other)


def hide_checkpoints(rank: int) -> None:
    """Show one rank an empty folder."""
    if is_rank(rank):
        wrap("published_steps", lambda *_: {})


# ---------------------------------------------------------------- precision and backends


def start_the_scaler_at(scale: float) -> None:
    """Begin fp16 training with a loss scale so large that gradients overflow."""

    def scaled(build_scaler: Any, cfg: Any, device: torch.device) -> Any:
        return build_scaler(cfg, device) and torch.amp.GradScaler(device.type, init_scale=scale)

    wrap("build_scaler", scaled)


def print_the_backends() -> None:
    """Print which backend carries the tensors of each device, once the group exists."""

    def joining(maybe_init_dist: Any, cfg: Any) -> Any:
        info = maybe_init_dist(cfg)
        devices = ["cpu"] + (["cuda"] if info.device.type == "cuda" else [])
        group = dist.group.WORLD
        assert group is not None
        names = [f"{d}={group._get_backend(torch.device(d)).name()}" for d in devices]
        # One write: the ranks share a terminal, and a line must not be torn.
        os.write(1, f"backends: {' '.join(names)}\n".encode())
        return info

    wrap("maybe_init_dist", joining)
