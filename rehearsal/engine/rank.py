"""The life of one rank: torchrun's environment, limits, a recorder, the job, one answer.

Runs in a process that ``forkserver.py`` has forked. The limits are a boundary against
accidents, not a sandbox against malice.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import linecache
import math
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import threading
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from rehearsal.engine.reports import Blank, Mismatch

GIB = 2**30
LIMITS = {resource.RLIMIT_DATA: 4 * GIB, resource.RLIMIT_FSIZE: GIB, resource.RLIMIT_CORE: 0}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link"}
DRILLS = str(Path(__file__).parents[1] / "drills")


def plain(value: Any) -> Any:
    """Tensors, paths and sets as JSON has them. Bytes become hex."""
    if isinstance(value, torch.Tensor):
        return value.detach().tolist()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, set | frozenset):
        return sorted(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


class RankContext:
    """What the body of a scenario is given: who it is, where it may write, and a recorder.

    Attributes:
        rank, world_size: as torchrun would say.
        is_armed: whether files are written down.
        folder: shared by all ranks of the job, and by later jobs of the same check.
        deadline_s: after which a job has hung, in seconds.
        timeout: of the group's collectives, longer than that.

    Learners copy and save what holds a context, so it holds no file object and no thread.
    """

    def __init__(self, spec: Mapping[str, Any], rank: int, job: Path) -> None:
        self.rank, self.world_size = rank, int(spec["world_size"])
        self.folder = Path(spec["folder"])
        self.deadline_s = float(spec["deadline_s"])
        self.timeout = timedelta(seconds=self.deadline_s + 5)
        fault = spec.get("fault")
        self._fault = fault if fault and fault["rank"] in (rank, None) else None
        self._counts: Counter[str] = Counter()
        self._pid = os.getpid()
        events = job / f"events-{rank}.jsonl"
        self._file = os.open(events, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._joined = job / f"joined-{rank}"
        self._newest_collective = -1
        self.is_armed = False

    def record(self, kind: str, **facts: Any) -> None:
        """Write one event down: it survives SIGKILL. A fault set for it strikes now."""
        if os.getpid() != self._pid:  # a loader worker's copy
            return
        line = json.dumps({"kind": kind, **facts}, default=plain).encode() + b"\n"
        os.write(self._file, line)
        self._counts[kind] += 1
        fault = self._fault
        if fault and fault["at"] == kind and fault["count"] == self._counts[kind]:
            os.kill(self._pid, getattr(signal, "SIG" + fault["signal"]))

    def init_group(self) -> None:
        """Join the gloo group, for drills that are not about joining it.

        Collective: all ranks call it, once. The deadline counts from here on all of them.
        """
        self.record("joining")
        dist.init_process_group("gloo", timeout=self.timeout)
        self.record("joined")
        if _clock is not None:
            _clock.start()
        self._joined.touch()  # last: the kernel's clock starts with it, never before this one

    def arm(self) -> None:
        """From here on, write down what files are touched and which optimizer steps are taken.

        Called when the grader is loaded and before the learner's code is.
        """
        self.is_armed = True
        register_optimizer_step_post_hook(lambda *_: self.record("optimizer_step"))
        sys.addaudithook(self._audit)
        save = torch.save

        def recorded_save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
            if (path := self._inside(f)) is not None:
                self.record("file", op="torch.save", path=path)
            save(obj, f, *args, **kwargs)
            if self._fault and self._fault["at"] == "torn":
                self._tear(f)

        torch.save = recorded_save
        for name in ("fsync", "fdatasync"):
            if hasattr(os, name):
                setattr(os, name, self._recorded_sync(getattr(os, name)))
        for name in ("send", "isend", "recv", "irecv"):
            setattr(dist, name, self._recorded_transfer(name, getattr(dist, name)))

    def _tear(self, file: Any) -> None:
        """End the process with half of the file written, if it is the fault's turn."""
        if hasattr(file, "flush"):
            file.flush()
        try:
            target = file if isinstance(file, str | os.PathLike) else file.fileno()
        except (AttributeError, OSError):
            return  # in memory: what is written of it later is another's write
        self._counts["torn"] += 1
        if self._fault and self._counts["torn"] == self._fault["count"]:
            os.truncate(target, os.stat(target).st_size // 2)
            os.kill(self._pid, signal.SIGKILL)

    def _recorded_sync(self, sync: Callable[[Any], None]) -> Callable[[Any], None]:
        def recorded(fd: Any) -> None:
            number = fd if isinstance(fd, int) else fd.fileno()
            with contextlib.suppress(OSError):
                path = self._inside(os.readlink(f"/proc/self/fd/{number}"))
                if path is not None:
                    self.record("file", op="fsync", path=path)
            sync(fd)

        return recorded

    def _recorded_transfer(self, name: str, transfer: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            peer = args[0] if args else kwargs.get("dst", kwargs.get("src"))
            size = tensor.numel() * tensor.element_size()
            self.record("transfer", name=name, peer=peer, bytes=size)
            return transfer(tensor, *args, **kwargs)

        return recorded

    def _inside(self, path: Any) -> str | None:
        """The path below the scenario's folder, or None if it is elsewhere."""
        if not isinstance(path, str | bytes | os.PathLike):
            return None
        full, root = os.path.abspath(os.fsdecode(path)), f"{self.folder}/"
        return full.removeprefix(root) if full.startswith(root) else None

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_armed:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, str) and path.startswith(DRILLS) and not path.endswith(".pyc"):
                self.record("peek", path=path.removeprefix(DRILLS + "/"))
            elif flags & WRITES and (inside := self._inside(path)) is not None:
                self.record("file", op="open", path=inside)
        elif event in CHANGES and (inside := self._inside(arguments[0])) is not None:
            target = self._inside(arguments[1]) if event in ("os.rename", "os.link") else None
            self.record("file", op=event.removeprefix("os."), path=inside, to=target)

    def record_collectives(self) -> None:
        """Write down what torch's flight recorder holds: each collective, once."""
        dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
        if dump is None or not dist.is_initialized():
            return
        for entry in json.loads(dump(True, False)).get("entries", []):
            if entry["record_id"] <= self._newest_collective:
                continue  # written down at the deadline
            self._newest_collective = entry["record_id"]
            sizes = [math.prod(size) for size in entry["input_sizes"]]
            wide = {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2}
            widths = [wide.get(dtype, 1) for dtype in entry["input_dtypes"]]
            self.record(
                "collective",
                name=entry["profiling_name"].partition(":")[2],
                elements=sum(sizes),
                bytes=sum(a * b for a, b in zip(sizes, widths, strict=False)),
                group=entry["process_group"][1],
            )


class Clock:
    """Has a rank's stack and its collectives written down at the deadline."""

    def __init__(self, context: RankContext, stacks: Path) -> None:
        self._context, self._stacks = context, stacks.open("w")
        self._late: threading.Timer | None = None

    def start(self) -> None:
        """Count from now, whatever was counted before."""
        deadline_s = self._context.deadline_s
        # A watchdog in C: it speaks also when the learner's loop never lets go of the GIL.
        faulthandler.dump_traceback_later(deadline_s, file=self._stacks)
        self.stop()
        # Where the collectives stood, should the deadline come while the GIL is free.
        late = threading.Timer(max(0.0, deadline_s - 0.05), self._context.record_collectives)
        late.daemon = True
        late.start()
        self._late = late

    def stop(self) -> None:
        """The job has ended: write nothing down any more."""
        if self._late is not None:
            self._late.cancel()
            self._late.join()


_clock: Clock | None = None  # of this process


# ---------------------------------------------------------------- the learner's code


def learners_frame(error: BaseException, files: Mapping[str, str]) -> tuple[str, str] | None:
    """The innermost frame in the learner's text: "line 12 in shard", and the function."""
    found: tuple[str, str] | None = None
    frame: TracebackType | None = error.__traceback__
    while frame is not None:
        code = frame.tb_frame.f_code
        if code.co_filename in files:
            found = f"line {frame.tb_lineno} in {code.co_name}", code.co_name
        frame = frame.tb_next
    return found


def failure_of(error: BaseException, files: Mapping[str, str]) -> dict[str, Any]:
    """What leaves a rank when an exception did."""
    if isinstance(error, Blank):
        return {"blank": list(error.args)}
    if isinstance(error, Mismatch):
        return {"mismatch": [list(pair) for pair in error.args]}
    frame = learners_frame(error, files)
    innermost = traceback.extract_tb(error.__traceback__)[-1:]
    if frame and isinstance(error, NotImplementedError) and innermost[0].filename in files:
        return {"blank": [frame[1]]}
    frames = traceback.extract_tb(error.__traceback__)
    # The learner's lines only: how the check came there is not their concern.
    own = [frame for frame in frames if frame.filename in files]
    text = "".join(traceback.format_list(own or frames))
    text += "".join(traceback.format_exception_only(error))
    return {
        "failure": {
            "kind": type(error).__name__,
            "message": str(error) or repr(error),
            "traceback": text,
            "where": frame[0] if frame else "",
        }
    }


def keep_wrappers(context: RankContext) -> None:
    """Have DDP wrappers that outlive their group live on to the end of the process.

    Their destructor hangs or aborts then, one time in four (torch 2.13 with gloo). That is
    worth a finding, which the event "destroyed" makes possible, but no verdict by chance.
    """
    wrappers: list[weakref.ref[DistributedDataParallel]] = []
    kept: list[DistributedDataParallel] = []
    construct, destroy = DistributedDataParallel.__init__, dist.destroy_process_group

    def recorded_construct(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        wrappers.append(weakref.ref(self))

    def recorded_destroy(*args: Any, **kwargs: Any) -> None:
        kept.extend(wrapper for ref in wrappers if (wrapper := ref()) is not None)
        context.record("destroyed", live_wrappers=len(kept))
        destroy(*args, **kwargs)

    DistributedDataParallel.__init__ = recorded_construct  # type: ignore[method-assign]
    dist.destroy_process_group = recorded_destroy


def set_limits() -> None:
    """Bound memory, file size and, for other users than root, the number of processes."""
    for which, limit in LIMITS.items():
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(which, (limit, resource.getrlimit(which)[1]))


def main(folder: Path, rank: int) -> NoReturn:
    """Run the job that ``folder`` describes, as ``rank``; leave the process."""
    global _clock
    spec = json.loads((folder / "spec.json").read_text())
    output = os.open(folder / f"output-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    context = RankContext(spec, rank, folder)
    _clock = Clock(context, folder / f"stacks-{rank}")
    _clock.start()
    set_limits()
    os.environ.clear()
    os.environ.update(spec["env"], RANK=str(rank), LOCAL_RANK=str(rank))
    sys.path[:] = spec["path"]
    os.chdir(spec["cwd"])
    # Loader workers of the learner are forked: a dataset typed in a notebook does not pickle.
    multiprocessing.set_start_method("fork", force=True)
    keep_wrappers(context)
    files: dict[str, str] = {}
    code = 0
    try:
        function, arguments, lines = pickle.loads((folder / "payload.pkl").read_bytes())
        files.update(lines)
        for name, text in lines.items():
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        answer: dict[str, Any] = {"answer": function(context, *arguments)}
    except BaseException as error:
        context.is_armed = False  # a traceback's lines are read from their files
        answer, code = failure_of(error, files), 1
    _clock.stop()
    context.record_collectives()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    temporary = folder / f"answer-{rank}.tmp"
    temporary.write_text(json.dumps(answer, default=plain))
    temporary.rename(folder / f"answer-{rank}.json")
    # Not the interpreter's own end: it waits for threads that the learner may have left.
    os._exit(code)


if __name__ == "__main__":  # where ranks cannot be forked
    main(Path(sys.argv[1]), int(sys.argv[2]))
