"""Faults of a single process: a signal, an exception, a NaN, no memory, a stop.

Each case says how the start that meets it must end. Then the same command is started again and
must finish with weights bit-identical to an uninterrupted run's.
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

from rehearsal.engine.processes import stat_of
from rehearsal.engine.programs import Prepare
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
    wait_until,
)
from rehearsal.faults.matrix import Bench, Try, leave, same_weights
from trainer_core.order import EpochOrder

TERM, KILL, STOP = signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP


def ends_preempted(job: Job, codes: list[int | None]) -> str:
    """Every rank exits with 0, and the step at which they stopped is saved."""
    events = list(read_jsonl(job.run_dir / "logs" / "rank-0.jsonl"))
    if any(codes) or events[-1]["event"] != "preempted":
        return f"not preempted, but {codes}, {events[-1]['event']}"
    folder = job.run_dir / "checkpoints" / f"step-{events[-1]['step']:08d}"
    return "" if folder.is_dir() else f"preempted without {folder.name}"


def ends_in_failure(job: Job, codes: list[int | None], *, says: str) -> str:
    """No rank exits with 0, and one of them reports the cause; the others have lost a peer."""
    if 0 in codes:
        return f"a rank claims success: {codes}"
    return "" if says in job.said() else f"nobody says {says!r}"


def ends_together(job: Job, codes: list[int | None], *, says: str) -> str:
    """No rank exits with 0, and every one reports the cause: none has raised alone."""
    silent = [rank for rank in range(len(codes)) if says not in job.said(rank)]
    if silent and 0 not in codes:
        return f"ranks {silent} do not say {says!r}, but ended with {codes}"
    return ends_in_failure(job, codes, says=says)


def ends_refused(job: Job, codes: list[int | None], *, says: str) -> str:
    """Every rank exits with 2: a mistake the user can fix, reported without a traceback.

    All ranks raise it, and rank 0 reports it for them, even if another rank found it.
    """
    if codes != [2] * len(codes) or "Traceback" in job.said():
        return f"not a refusal on every rank: {codes}, or with a traceback"
    return "" if says in job.said(0) else f"rank 0 does not say {says!r}"


def ends_after_skipping(job: Job, codes: list[int | None], *, rank: int, step: int) -> str:
    """One rank was killed after a step whose update every rank had skipped."""
    for path in sorted((job.run_dir / "ledger").glob("rank-*.jsonl")):
        skipped = [line["step"] for line in read_jsonl(path) if line.get("skipped") is True]
        if skipped != [step]:
            return f"{path.name} marks steps {skipped} as skipped, not {step}"
    if codes[rank] != -KILL:
        return f"rank {rank} was not killed: {codes}"
    return ends_in_failure(job, codes, says="")


def ends_unharmed(job: Job, codes: list[int | None]) -> str:
    """The run finished as if nothing had happened."""
    return f"ended with {codes}" if any(codes) else ""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One fault of a process, and how the start that meets it must end."""

    fault: str
    what: str
    prepare: Prepare
    ends: Callable[[Job, list[int | None]], str]  # the problem, or ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    lasting: Prepare | None = None  # stays broken in the next start and in the reference
    meanwhile: Callable[[Job], None] | None = None  # what happens from outside the ranks
    is_quick: bool = False


def sigterms(rng: random.Random, rank: int, step: int) -> Iterator[Case]:
    """SIGTERM to one rank, to all, twice, during a save; Ctrl-C to all."""
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
    num_workers = rank  # one of the rows has a worker, which gets the Ctrl-C as well
    yield base(
        fault="Ctrl-C to all",
        what=f"step {step}, {num_workers} loader worker(s)",
        prepare=partial(breaks.signal_itself, signal.SIGINT, None, step),
        settings={"num_workers": num_workers},
        is_quick=rank == 1,
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
    """An exception on one rank: in the forward pass, the loader, its workers or the log.

    Errors of the loader and of files become errors on all ranks. The user's own code raises on
    its rank alone, between two collectives; the others exit because they lose the connection.
    """
    says = "a bug in the code of this rank"
    places: list[tuple[breaks.Place, int]]
    places = [("forward", 0), ("loader", 0), ("loader", 2), ("logging", 0)]
    for place, workers in places:
        # The trainer itself makes the first call, before there are workers.
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
    """A NaN in a sample of one rank, under both policies."""
    order = EpochOrder(SMALL["dataset_size"], seed=17, epoch=0)
    sample = int(order.samples(16 * (step - 1), 16 * step)[rank])
    poison = partial(breaks.poison_sample, sample)
    yield Case(
        fault="NaN on one rank, stop",
        what=f"rank {rank}, step {step}",
        prepare=poison,
        ends=partial(ends_refused, says="--on-nonfinite skip"),
        is_quick=rank == 1,
    )
    kill = partial(breaks.kill, rank, step + 2)
    yield Case(
        fault="NaN on one rank, skip",
        what=f"rank {rank}, step {step}; killed at {step + 2}",
        prepare=kill,
        lasting=poison,
        ends=partial(ends_after_skipping, rank=rank, step=step),
        settings={"on_nonfinite": "skip"},
    )


def no_memory(rank: int, step: int) -> Iterator[Case]:
    """A rank or its loader cannot allocate memory."""
    places: list[tuple[breaks.Place, bool, str]] = [
        ("forward", True, "allocate memory"),
        ("forward", False, "MemoryError"),
        ("loader", False, "MemoryError"),
    ]
    for limit in ("address space", "data"):
        for place, with_torch, says in places:
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
    """Wait until a rank has stopped itself. Raises Hang if it never does."""
    wait_until(lambda: stat_of(job.pids[rank]).state == "T", f"rank {rank} to stop", 30)


def wake_up(job: Job, rank: int) -> None:
    """Continue a stopped rank after a second."""
    wait_until_stopped(job, rank)
    time.sleep(1)
    os.kill(job.pids[rank], signal.SIGCONT)


def wait_for_the_others(job: Job, rank: int, patience_s: float) -> None:
    """Wait until all ranks but the stopped one have exited; then kill it, as torchrun does."""
    wait_until_stopped(job, rank)
    others = [other for number, other in enumerate(job.ranks) if number != rank]
    what = f"the others to exit although rank {rank} is stopped"
    wait_until(lambda: None not in [other.poll() for other in others], what, patience_s)
    job.ranks[rank].kill()


def stops(rank: int, step: int) -> Iterator[Case]:
    """SIGSTOP, for less than the timeout and for more."""
    stop = partial(breaks.signal_itself, STOP, rank, step)
    yield Case(
        fault="SIGSTOP within the timeout",
        what=f"rank {rank}, step {step}, 1 s",
        prepare=stop,
        meanwhile=partial(wake_up, rank=rank),
        ends=ends_unharmed,
        is_quick=rank == 0,
    )
    late = max(3, step)  # the first step may take as long as a collective's timeout
    yield Case(
        fault="SIGSTOP beyond the timeout",
        what=f"rank {rank}, step {late}, timeout 2 s",
        prepare=partial(breaks.signal_itself, STOP, rank, late),
        meanwhile=partial(wait_for_the_others, rank=rank, patience_s=20),
        ends=partial(names_the_rank, rank=rank),
        settings={"hang_timeout_s": 2.0},
        is_quick=rank == 1,
    )


def names_the_rank(job: Job, codes: list[int | None], *, rank: int) -> str:
    """The watchdog has named the stopped rank and shown where each rank was."""
    said = job.said()
    for text in (f"rank {rank} answered only after SIGCONT", "[rank 0/2]", "[rank 1/2]"):
        if text not in said:
            return f"a rank was stopped, but nobody said {text!r}"
    return "" if all(codes) else f"ended with {codes}"


def cases(rng: random.Random) -> Iterator[Case]:
    """All cases on each of two ranks, each at a random step."""
    for rank in (0, 1):
        yield from sigterms(rng, rank, rng.randrange(1, 12))
        yield from exceptions(rank, rng.randrange(1, 12))
        yield from not_finite(rank, rng.randrange(1, 10))
        yield from no_memory(rank, rng.randrange(1, 12))
        yield from stops(rank, rng.randrange(1, 12))


def processes(bench: Bench) -> Iterable[Try]:
    """The group: every case once; in quick mode one of each kind."""
    for case in cases(bench.rng("processes")):
        if case.is_quick or not bench.quick:
            yield meet(bench, case)


def meet(bench: Bench, case: Case) -> Try:
    """Run into the fault, judge how the start ends, start again and judge the whole run."""
    folder, problem = bench.folder("processes"), ""
    cfg = small(folder / "run", **{**ONE_EPOCH, **case.settings})
    first = partial(breaks.both, case.prepare, case.lasting or breaks.both)
    try:
        with Job(cfg, 2, first, output=folder) as job:
            if case.meanwhile is not None:
                case.meanwhile(job)
            codes = codes_of(job.wait())
        if found := case.ends(job, codes):
            problem = f"{found}; it printed: {job.said()[-2000:]}"
        again = problem_of(start(cfg, 2, case.lasting, output=folder))
        problem = problem or (f"started again: {again}" if again else "")
    except Hang as hang:
        problem = str(hang)
    settings = {k: v for k, v in case.settings.items() if k == "on_nonfinite"}
    straight = bench.reference(small(folder, **ONE_EPOCH, **settings), 2, case.lasting)
    equal = same_weights(cfg.run_dir, straight)
    result = bench.judge(case.fault, case.what, cfg.run_dir, equal=equal, problem=problem)
    if case.ends is ends_preempted and result.replayed_steps and not result.problem:
        result = result._replace(
            problem="the run saved its step when preempted, but replays it"
        )
    return leave(folder, result)
