"""Events to several sinks, a writer that is killed, lines that are cut. In the rank."""

from __future__ import annotations

import copy
import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.moments import watch_moments
from .plan import LOG, LogsPlan


def logs_body(plan: LogsPlan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Events to all sinks; a process that is killed; restarts on a last line cut anywhere."""
    folder = context.folder / "logs"
    folder.mkdir()
    seen: list[list[str]] = []
    sinks: list[Any] = []
    for name in plan.sinks:
        if name == "list":
            rows: list[str] = []
            seen.append(rows)
            sinks.append(SimpleNamespace(emit=keeps(rows), close=bool))
        else:
            sinks.append(learner.JsonlSink(folder / name))
    common = copy.deepcopy(dict(plan.common))
    log = learner.RankLog(sinks, common)
    began = time.time()
    for step in plan.before:
        fields = copy.deepcopy(dict(plan.fields))
        learner.log_rank_event(log, plan.event, step=step, epoch=plan.epoch, **fields)
    ended = time.time()
    files = {name: text_of(folder / name) for name in plan.sinks if name != "list"}
    pid = os.fork()
    if pid == 0:
        try:
            sink = learner.JsonlSink(folder / LOG)
            for step in plan.killed:
                log_one(learner, sink, step)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    whole = (folder / LOG).read_bytes()
    return {
        "seen": seen,
        "began": began,
        "ended": ended,
        "files": files,
        "common": repr(common),  # as text: a NaN doesn't equal itself
        "killed": whole.decode(errors="replace"),
        "restarts": restarts(plan, context.folder, learner, whole),
        "begun": [first_line(plan, context.folder, learner, left) for left in (b"", b"{")],
    }


def first_line(plan: LogsPlan, folder: Path, learner: SimpleNamespace, left: bytes) -> str:
    """A start on a log whose first line was killed before its second byte."""
    path = folder / f"begun-{len(left)}.jsonl"
    path.write_bytes(left)
    sink = learner.JsonlSink(path)
    log_one(learner, sink, plan.after[0])
    sink.close()
    return text_of(path)


def restarts(
    plan: LogsPlan, folder: Path, learner: SimpleNamespace, whole: bytes
) -> list[dict[str, Any]]:
    """Two starts on the log, for each place where a kill may have cut its last line."""
    last = len(whole) - (whole.rstrip(b"\n").rfind(b"\n") + 1)
    found = []
    for number, left in enumerate((last, last - 1, int(last * plan.cut), 1)):
        home = folder / f"cut-{number}"
        home.mkdir()
        path = home / LOG
        path.write_bytes(whole[: len(whole) - last + left])
        with watch_moments(home) as moments:
            for step in plan.after:
                sink = learner.JsonlSink(path)
                log_one(learner, sink, step)
                sink.close()
        killed = [
            [moment.where, (moment.files.get(LOG) or b"").decode(errors="replace")]
            for moment in moments
        ]
        found.append({"left": left, "of": last, "text": text_of(path), "killed": killed})
    return found


def log_one(learner: SimpleNamespace, sink: Any, step: int) -> None:
    """One event to one sink."""
    log = learner.RankLog([sink], {"rank": 1})
    learner.log_rank_event(log, "x", step=step, epoch=1, loss=0.5)


def keeps(rows: list[str]) -> Any:
    """An emit that keeps each record as text."""
    return lambda record: rows.append(dumped(record))


def dumped(record: Any) -> str:
    """What a sink got, as text."""
    return json.dumps(dict(record) if isinstance(record, Mapping) else record, default=str)


def text_of(path: Path) -> str:
    """The text of a log; empty if there is no file."""
    return path.read_bytes().decode(errors="replace") if path.exists() else ""
