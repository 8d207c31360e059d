"""What befalls a single process: a signal, an exception, a NaN, no memory, a stop.

Each case says how the start that meets it must end; then the same command is started again,
and must reach the end with the weights of a run that nothing disturbed, bit for bit.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rehearsal.evidence.audit import read_jsonl
from rehearsal.engine.processes import stat_of
from rehearsal.faults import breaks
from rehearsal.faults.forked import SMALL, Hang, Job, Prepare, new_folder, reference
from rehearsal.faults.forked import same_weights
from rehearsal.faults.matrix import Bench, Try, leave
from trainer_core.order import EpochOrder

TERM, KILL, STOP = signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP


def ends_preempted(job: Job, codes: list[int]) -> str:
    """Every rank ends with 0, and the step at which they ended is saved."""
    events = list(read_jsonl(job.run_dir / "logs" / "rank-0.jsonl"))
    if any(codes) or events[-1]["event"] != "preempted":
        return f"not preempted, but {codes}, {events[-1]['event']}"
    folder = job.run_dir / "checkpoints" / f"step-{events[-1]['step']:08d}"
    return "" if folder.is_dir() else f"preempted without {folder.name}"


def ends_in_failure(job: Job, codes: list[int], *, says: str) -> str:
    """No rank ends with 0, and one of them says the cause; the others have lost a peer."""
    if 0 in codes:
        return f"a rank claims success: {codes}"
    return "" if says in job.said() else f"nobody says {says!r}"


def ends_together(job: Job, codes: list[int], *, says: str) -> str:
    """No rank ends with 0, and every one says the cause: none of them has raised alone."""
    silent = [rank for rank in range(len(codes)) if says not in job.said(rank)]
    if silent and 0 not in codes:
        return f"ranks {silent} do not say {says!r}, but ended with {codes}"
    return ends_in_failure(job, codes, says=says)


def ends_refused(job: Job, codes: list[int], *, says: str) -> str:
    """Every rank ends with 2: the user can mend it, and reads how, without a traceback.

    What all ranks have raised, rank 0 says for them, also what another has met.
    """
    if codes != [2] * len(codes) or "Traceback" in job.said():
        return f"not a refusal on every rank: {codes}, or with a traceback"
    return "" if says in job.said(0) else f"rank 0 does not say {says!r}"


def ends_after_skipping(job: Job, codes: list[int], *, rank: int, step: int) -> str:
    """One rank was killed after a step whose update every rank had withheld."""
    for path in sorted((job.run_dir / "ledger").glob("rank-*.jsonl")):
        skipped = [line["step"] for line in read_jsonl(path) if line.get("skipped") is True]
        if skipped != [step]:
            return f"{path.name} has the updates of steps {skipped} skipped, not that of {step}"
    if codes[rank] != -KILL:
        return f"rank {rank} was not killed: {codes}"
    return ends_in_failure(job, codes, says="")


def ends_unharmed(job: Job, codes: list[int]) -> str:
    """The run has gone on as if nothing had been."""
    return f"ended with {codes}" if any(codes) else ""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One fault of a process, and how the start that meets it must end."""

    fault: str
    what: str
    prepare: Prepare
    ends: Callable[[Job, list[int]], str]  # the problem, or ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    lasting: Prepare | None = None  # what is also broken in later starts, and in the reference
    meanwhile: Callable[[Job], None] | None = None  # what happens from outside
    is_quick: bool = False


def sigterms(rng: random.Random, rank: int, step: int) -> Iterator[Case]:
    """SIGTERM to one rank, to all, twice, during a save."""
    base = partial(Case, ends=ends_preempted)
    once = partial(breaks.signal_itself, TERM)
    yield base(
        fault="SIGTERM to one rank",
        what=f"rank {rank}, step {step}",
        prepare=partial(once, rank, step),
        is_quick=rank == 0,
    )
    yield base(fault="SIGTERM to all", what=f"step {step}", prepare=partial(once, None, step))
    yield base(
        fault="SIGTERM twice",
        what=f"all ranks, steps {step} and {step + 1}",
        prepare=partial(
            breaks.both,
            partial(once, None, step),
            partial(once, None, step + 1, "after the ledger"),
        ),
    )
    for is_async in (False, True):
        save = rng.choice((3, 6, 9))
        yield base(
            fault="SIGTERM during a save",
            what=f"step {save}, {is_async=}",
            prepare=partial(breaks.signal_in_the_save, TERM, save),
            settings={"async_checkpoint": is_async},
            is_quick=is_async and rank == 1,
        )


def exceptions(rank: int, step: int) -> Iterator[Case]:
    """An exception on one rank: in the forward, in the loader and its workers, in the log.

    Ranks raise together what the loader and the files meet. The user's own code raises on its
    rank alone, between two collectives: the others end by the lost connection.
    """
    says = "a defect in the code of this rank"
    for place, workers in (("forward", 0), ("loader", 0), ("loader", 2), ("logging", 0)):
        # The first call is the trainer's, before the workers are there.
        call = step + 2 if workers == 0 else 2 + step // 2
        ends = ends_together if place == "loader" else ends_in_failure
        yield Case(
            fault=f"exception on one rank, {place}",
            what=f"rank {rank}, call {call}, {workers} loader workers",
            prepare=partial(breaks.fail_in, place, breaks.fail, rank, call),
            ends=partial(ends, says=says),
            settings={"num_workers": workers},
            is_quick=place == "loader" and rank == workers - 1,
        )
    yield Case(
        fault="exception on one rank, logging",
        what=f"rank {rank}, the disk is full",
        prepare=partial(breaks.fail_in, "logging", breaks.fill_the_disk, rank, step + 2),
        ends=partial(ends_refused, says="No space left on device"),
    )


def not_finite(rank: int, step: int) -> Iterator[Case]:
    """A NaN in a sample of one rank, with both policies."""
    order = EpochOrder(SMALL["dataset_size"], seed=17, epoch=0)
    sample = int(order.samples(16 * (step - 1), 16 * step)[rank])
    poison = partial(breaks.poison, sample)
    yield Case(
        fault="NaN on one rank, stop",
        what=f"rank {rank}, step {step}",
        prepare=poison,
        ends=partial(ends_refused, says="--on-nonfinite skip"),
        is_quick=rank == 1,
    )
    kill = partial(breaks.signal_itself, KILL, rank, step + 2)
    yield Case(
        fault="NaN on one rank, skip",
        what=f"rank {rank}, step {step}; killed at {step + 2}",
        prepare=kill,
        lasting=poison,
        ends=partial(ends_after_skipping, rank=rank, step=step),
        settings={"on_nonfinite": "skip"},
    )


def no_memory(rank: int, step: int) -> Iterator[Case]:
    """A rank, or its loader, asks for memory that it does not get."""
    for limit in ("address space", "data"):
        for place, with_torch, says in (
            ("forward", True, "allocate memory"),
            ("forward", False, "MemoryError"),
            ("loader", False, "MemoryError"),
        ):
            act = partial(breaks.exhaust_memory, limit, with_torch)
            ends = ends_together if place == "loader" else ends_in_failure
            yield Case(
                fault="no memory on one rank",
                what=f"rank {rank}, {place}, call {step + 2}, limit of {limit}, {says}",
                prepare=partial(breaks.fail_in, place, act, rank, step + 2),
                ends=partial(ends, says=says),
                is_quick=rank == 1 and limit == "data" and with_torch,
            )


def wait_until_stopped(job: Job, rank: int) -> None:
    """Wait until the rank is stopped. Raises Hang if that does not come."""
    deadline = time.monotonic() + 30
    while stat_of(job.pids[rank]).state != "T":
        if time.monotonic() > deadline:
            raise Hang(f"rank {rank} has not come to its stop: {job.said()[-1000:]}")
        time.sleep(0.01)


def wake_up(job: Job, rank: int) -> None:
    """Let a stopped rank go on after a second."""
    wait_until_stopped(job, rank)
    time.sleep(1)
    os.kill(job.pids[rank], signal.SIGCONT)


def wait_for_the_others(job: Job, rank: int, patience_s: float) -> None:
    """Wait until all but a stopped rank have ended; then end it, as torchrun does."""
    wait_until_stopped(job, rank)
    deadline = time.monotonic() + patience_s
    for other, process in enumerate(job.workers.processes):
        if other != rank:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                raise Hang(f"rank {other} waits for rank {rank}, stopped {patience_s} s ago")
    job.workers.kill(rank)


def stops(rank: int, step: int) -> Iterator[Case]:
    """SIGSTOP: shorter than the timeout, and longer."""
    stop = partial(breaks.signal_itself, STOP, rank, step)
    yield Case(
        fault="SIGSTOP within the timeout",
        what=f"rank {rank}, step {step}, 1 s",
        prepare=stop,
        meanwhile=partial(wake_up, rank=rank),
        ends=ends_unharmed,
        is_quick=rank == 0,
    )
    late = max(3, step)  # the first step may take as long as a collective
    yield Case(
        fault="SIGSTOP beyond the timeout",
        what=f"rank {rank}, step {late}, timeout 2 s",
        prepare=partial(breaks.signal_itself, STOP, rank, late),
        meanwhile=partial(wait_for_the_others, rank=rank, patience_s=20),
        ends=partial(names_the_rank, rank=rank),
        settings={"hang_timeout_s": 2.0},
        is_quick=rank == 1,
    )


def names_the_rank(job: Job, codes: list[int], *, rank: int) -> str:
    """The watchdog has named the stopped rank and said where all of them stood."""
    said = job.said()
    for text in (f"rank {rank} answered only after SIGCONT", "[rank 0/2]", "[rank 1/2]"):
        if text not in said:
            return f"nobody said {text!r} of a stopped rank"
    return "" if all(codes) else f"ended with {codes}"


def cases(rng: random.Random) -> Iterator[Case]:
    """All cases, for each of two ranks, each at a step of its own."""
    for rank in (0, 1):
        yield from sigterms(rng, rank, rng.randrange(1, 12))
        yield from exceptions(rank, rng.randrange(1, 12))
        yield from not_finite(rank, rng.randrange(1, 10))
        yield from no_memory(rank, rng.randrange(1, 12))
        yield from stops(rank, rng.randrange(1, 12))


def processes(bench: Bench) -> Iterable[Try]:
    """Every case once; with ``quick`` one of a kind."""
    for case in cases(bench.rng("processes")):
        if case.is_quick or not bench.quick:
            yield meet(bench, case)


def meet(bench: Bench, case: Case) -> Try:
    """Run into the fault, see how the start ends, start again and judge."""
    folder, plan = new_folder(bench, "processes"), {**SMALL, **case.settings}
    run_dir, problem = folder / "run", ""
    first = partial(breaks.both, case.prepare, case.lasting or breaks.both)
    try:
        with Job(folder, 2, plan, first) as job:
            if case.meanwhile is not None:
                case.meanwhile(job)
            codes = job.wait()
        if found := case.ends(job, codes):
            problem = f"{found}; it printed: {job.said()[-2000:]}"
        with Job(folder, 2, plan, case.lasting) as job:
            codes = job.wait()
        if any(codes) and not problem:
            problem = f"started again, it ended with {codes}: {job.said()[-2000:]}"
    except Hang as hang:
        problem = str(hang)
    settings = {k: v for k, v in case.settings.items() if k == "on_nonfinite"}
    straight = reference(bench, 2, {**SMALL, **settings}, case.lasting)
    equal = same_weights(run_dir, straight, exactly=True)
    result = bench.judge(case.fault, case.what, run_dir, equal=equal, problem=problem)
    if case.ends is ends_preempted and result.replayed_steps and not result.problem:
        result = result._replace(
            problem="a preempted run has saved its step, but it is replayed"
        )
    return leave(folder, result)
