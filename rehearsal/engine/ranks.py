"""Run a function on real ranks under a deadline, and report what each of them did.

Runs in the caller's process. Two servers (``server.py``) with torch loaded fork the ranks, so
a job of two takes a tenth of a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rehearsal.engine import server
from rehearsal.engine.output import Tail
from rehearsal.engine.processes import threads_of_the_machine
from rehearsal.engine.reports import Failure, Fault, RankReport
from rehearsal.engine.server import MAX_THREADS, SERVER_ENDED, shut_down, warm_up

__all__ = [
    "RUNNING_AGAIN",
    "SERVER_ENDED",
    "STUCK_MEETING",
    "run_ranks",
    "shut_down",
    "stuck_while_meeting",
    "warm_up",
]

MAX_WORLD_SIZE = 8
STUCK_MEETING = "The ranks were stuck connecting to each other, before the work began."
RUNNING_AGAIN = "Running it again."  # said after one of these


def run_ranks(
    function: Callable[..., Any] | str,
    *arguments: Any,
    world_size: int,
    deadline_s: float = 10.0,
    folder: Path | None = None,
    fault: Fault | None = None,
    lines: Mapping[str, str] | None = None,
    echo: Callable[[str], None] | None = None,
    seed: int = 0,
    shift: int = 0,
) -> list[RankReport]:
    """Run ``function(context, *arguments)`` on ``world_size`` ranks; report what each did.

        def add_up(context):
            context.init_group()
            total = torch.tensor(context.rank)
            torch.distributed.all_reduce(total)
            return total

        [report.answer for report in run_ranks(add_up, world_size=3)]  # [3, 3, 3]

    Whatever the function does, this leaves no process behind. It returns at most half a second
    after the deadline, unless killing the ranks takes longer: a fork bomb's processes take ten
    seconds. The deadline counts from the start, or from the moment all ranks
    have met in ``context.init_group``. If they got stuck while they met, or the server died,
    the job runs once more, unless the caller passed a folder: files from the first try would
    be evidence in the second.

    Args:
        function: travels by cloudpickle, so it may be typed in a notebook; or the name of one,
            as "package.module:function", which only the ranks import.
        folder: what the ranks share as ``context.folder``; a temporary one if None.
        lines: source text by file name, for tracebacks.
        echo: called with each line that a rank prints, prefixed with its rank, and with the
            reason if the job runs once more.
        seed: becomes ``context.seed``.
        shift: if odd, a rank gets the other one of two hash seeds, as after a restart.

    Raises:
        ValueError: if the world size is out of bounds.
        CannotStartRanks: if the server cannot be started.
        ConnectionError: if the server died and there is no second try.
    """
    if not 1 <= world_size <= MAX_WORLD_SIZE:
        raise ValueError(
            f"world_size={world_size}: 1 to {MAX_WORLD_SIZE} ranks are allowed. They share "
            "this machine's cores, so more would only wait for each other. Choose a number in "
            "that range."
        )
    try:
        from cloudpickle import dumps
    except ImportError:  # enough for what a module defines; grading says what is missing
        from pickle import dumps
    payload = dumps((function, arguments, dict(lines or {})))
    with server.turn:
        for is_last_try in (False, True) if folder is None else (True,):
            connection = server.ready()
            with tempfile.TemporaryDirectory(prefix="rehearsal-") as name:
                job = Path(name)
                (job / "payload.pkl").write_bytes(payload)
                work = folder or job / "work"
                work.mkdir(exist_ok=True)
                try:
                    reports = _run(
                        connection, job, work, world_size, deadline_s, fault, echo, seed, shift
                    )
                    if is_last_try or not stuck_while_meeting(reports):
                        return reports
                    why = STUCK_MEETING
                except ConnectionError:
                    # Something killed the server, maybe the out-of-memory killer.
                    shut_down()
                    if is_last_try:
                        raise
                    why = SERVER_ENDED
                if echo:
                    echo(f"{why} {RUNNING_AGAIN}")
    raise AssertionError("unreachable")


def stuck_while_meeting(reports: Sequence[RankReport]) -> bool:
    """Whether every rank entered ``init_group``, none has ended, and not all came out of it.

    Torch looks up the name of 127.0.0.1 in the DNS while it connects, and the answer may never
    come. A rank stuck there has not reached the code that is checked, so its deadline says
    nothing about that code.
    """
    return all(r.exitcode is None and r.of("joining") for r in reports) and not all(
        r.of("joined") for r in reports
    )


def _run(
    connection: server.ForkServers,
    job: Path,
    work: Path,
    world_size: int,
    deadline_s: float,
    fault: Fault | None,
    echo: Callable[[str], None] | None,
    seed: int,
    shift: int,
) -> list[RankReport]:
    from torch.distributed import TCPStore  # not at the top: a hint needs no torch

    # This process plays torchrun's agent: it hosts the store in which the ranks meet.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    spec = {
        "world_size": world_size,
        "deadline_s": deadline_s,
        "folder": str(work.resolve()),
        "fault": asdict(fault) if fault else None,
        "seed": seed,
        "env": {**os.environ, **_torchrun_environment(world_size, store.port)},
        "path": [entry or os.getcwd() for entry in sys.path],
        "cwd": str(job),
    }
    (job / "spec.json").write_text(json.dumps(spec))
    tails = [Tail(job / f"output-{rank}", rank, echo) for rank in range(world_size)]
    exitcodes: dict[int, int] = {}
    threads_before = threads_of_the_machine()
    have_met = False
    pids: dict[int, int] = {}
    try:
        connection.start(job, world_size, shift)
        deadline = time.monotonic() + deadline_s + 0.2
        while len(exitcodes) < world_size:
            if not have_met and all((job / f"joined-{r}").exists() for r in range(world_size)):
                have_met, deadline = True, time.monotonic() + deadline_s + 0.2
            if time.monotonic() >= deadline:
                break
            for message in connection.messages(min(0.05, deadline - time.monotonic())):
                pids |= {int(rank): pid for rank, pid in message.get("pids", {}).items()}
                if "pid" in message:
                    exitcodes[message["pid"]] = message["status"]
            for tail in tails:
                tail.show()
            # The machine's total costs nothing to read; only if it jumps, count whose they are.
            if (
                threads_of_the_machine() > threads_before + MAX_THREADS
                and connection.has_too_many_threads()
            ):
                break
        # A rank that is still running sees its peers' connections close while they get killed,
        # and may report that before its own turn comes. Only what it said by now is its answer.
        answered = {r for r in range(world_size) if (job / f"answer-{r}.json").exists()}
    finally:
        # Also after a KeyboardInterrupt, even between two servers: nothing is left running, and
        # the next job doesn't get this one's messages.
        try:
            connection.sweep()
        except BaseException:  # interrupted again, or the server is dead
            shut_down()
            raise
    for tail in tails:
        tail.show(is_last=True)
    return [
        _report(
            job, rank, exitcodes.get(pids.get(rank, 0)), tails[rank].text, rank in answered
        )
        for rank in range(world_size)
    ]


def _torchrun_environment(world_size: int, port: int) -> dict[str, str]:
    """What torchrun sets for each of its ranks."""
    variables = {
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size,
        "GROUP_RANK": 0,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "TORCH_FR_BUFFER_SIZE": 4096,
        "OMP_NUM_THREADS": 1,
        "CUDA_VISIBLE_DEVICES": "",  # as the servers have it
    }
    return {name: str(value) for name, value in variables.items()}


def _report(
    job: Path, rank: int, exitcode: int | None, output: str, has_answered: bool
) -> RankReport:
    answer: dict[str, Any] = {}
    if has_answered:
        answer = json.loads((job / f"answer-{rank}.json").read_text())
    events, stacks = job / f"events-{rank}.jsonl", job / f"stacks-{rank}"
    recorded = []
    for line in events.read_text().splitlines() if events.exists() else ():
        with contextlib.suppress(ValueError):  # cut short by a kill
            recorded.append(json.loads(line))
    failure = answer.get("failure")
    return RankReport(
        rank=rank,
        exitcode=exitcode,
        answer=answer.get("answer"),
        has_answer="answer" in answer,
        failure=Failure(**failure) if failure else None,
        blank=answer.get("blank", ()),
        mismatch=[(name, what) for name, what in answer.get("mismatch", ())],
        stacks=_own_frames(stacks.read_text()) if exitcode is None and stacks.exists() else "",
        output=output,
        events=recorded,
    )


def _own_frames(dump: str) -> str:
    """From faulthandler's dump: the main thread, without the frames of rehearsal itself."""
    *_, thread = dump.split("most recent call first):\n")
    frames = [line.strip() for line in thread.splitlines() if line.startswith("  File")]
    below = next((i for i, f in enumerate(frames) if "/rehearsal/" in f), len(frames))
    return "\n".join(frames[:below])
