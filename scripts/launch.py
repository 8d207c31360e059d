"""Train as a single process or under torchrun. Each flag sets a field of the configuration.

    python scripts/launch.py --run-dir runs/first --data digits
    python scripts/launch.py --run-dir runs/screen --data molecules
    torchrun --nproc-per-node 2 scripts/launch.py --run-dir runs/second --device cpu

On a machine with one GPU, two ranks need --device cpu. Run the same command again to resume.

Ctrl-C, like SIGTERM, saves the step in progress and exits; a second one exits at once. Under
torchrun, press it once: if torchrun ends before its ranks have saved, they die with it.

Exit codes: 0 finished, already finished, or preempted by SIGTERM or a first Ctrl-C; 2 a mistake
you can fix, including sizes that don't fit in memory; 1 anything else, including a second
Ctrl-C, and a signal to one of several ranks before it trains.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import difflib
import json
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, NoReturn

from trainer_core.bio.config import KINDS, BioConfig
from trainer_core.config import TrainConfig
from trainer_core.launcher_environment import refuse_broken_environment
from trainer_core.settings import UserError, flag_name, with_flags


class FlagParser(argparse.ArgumentParser):
    """Raises UserError where argparse would print and exit, and suggests the nearest flag."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}. See --help for all flags.")

    def parse(self, arguments: Sequence[str]) -> tuple[TrainConfig, list[str]]:
        """The configuration that the flags describe, and the exporters requested."""
        values, unknown = self.parse_known_args(arguments)
        if unknown:
            flag = unknown[0].partition("=")[0]
            # Without the dashes, which would make any two flags look similar.
            known = [name[2:] for action in self._actions for name in action.option_strings]
            near = difflib.get_close_matches(flag.strip("-"), known, n=1, cutoff=0.65)
            nearest = f"The nearest is --{near[0]}; " if near else ""
            raise UserError(
                f"{flag}: no such flag, and unknown flags are never ignored. {nearest}--help "
                "lists them all."
            )
        given = vars(values)
        exports = given.pop("export")
        return configuration(given), exports


def configuration(given: Mapping[str, Any]) -> TrainConfig:
    """The configuration for the data that the flags name."""
    kind = given["data"].partition(":")[0]
    if kind in KINDS:
        return BioConfig(**given)
    if near := difflib.get_close_matches(kind, KINDS, n=1, cutoff=0.65):
        raise UserError(
            f"data={given['data']}: no such dataset, so there is nothing to train on. The "
            f"nearest is {near[0]}; --help lists them all."
        )
    own = {spec.name for spec in fields(TrainConfig)}
    for spec in fields(BioConfig):
        if spec.name not in own and given[spec.name] != spec.default:
            raise UserError(
                f"{spec.name}={given[spec.name]}: only the biotech track reads it, so with "
                f"data={given['data']} it would have no effect. Leave it out, or choose data "
                "of that track, such as molecules."
            )
    return TrainConfig(**{name: value for name, value in given.items() if name in own})


def path(text: str) -> Path:
    """A path that a flag names. An empty one would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError(
            "an empty path, perhaps because a shell variable isn't set"
        )
    return Path(text)


def add_flag(parser: argparse.ArgumentParser, spec: Field[Any]) -> None:
    """One flag from one field: its name, type, choices, help and default."""
    kind, _, optional = str(spec.type).partition(" | ")
    rules = spec.metadata
    options: dict[str, Any] = {"default": spec.default, "dest": spec.name}
    if kind == "bool":
        options["action"] = argparse.BooleanOptionalAction
    else:
        types: dict[str, Callable[[str], Any]]
        types = {"int": int, "float": float, "str": str, "Path": path}
        convert = types[kind]

        def value(text: str) -> Any:
            return None if optional and text == "none" else convert(text)

        value.__name__ = kind  # argparse uses it in "invalid int value"
        options |= {
            "type": value,
            "metavar": "|".join(rules.get("choices", ())) or kind.upper(),
        }
    default = "" if spec.default is None else f" (default: {spec.default})"
    options["help"] = rules["help"].replace("%", "%%") + default
    parser.add_argument(flag_name(spec.name), **options)


def build_parser() -> FlagParser:
    """One flag per field, except world_size, which torchrun sets."""
    parser = FlagParser(description=__doc__, allow_abbrev=False, usage="launch.py [flags]")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    for spec in fields(BioConfig):  # TrainConfig's, and those of the biotech track
        if spec.name != "world_size":
            add_flag(parser, spec)
    parser.add_argument(
        "--export",
        action="append",
        default=[],
        metavar="SINK",
        help="also send metrics to: tensorboard, prometheus (repeatable)",
    )
    return parser


# ---------------------------------------------------------------- the terminal


def say(text: str) -> None:
    """Print a line to stderr, unless that can't be written to. The exit code says the rest."""
    # A RuntimeError is a signal's handler that interrupted this thread while it printed.
    with contextlib.suppress(OSError, RuntimeError):
        print(f"launch.py: {text}", file=sys.stderr, flush=True)


def reserve_closed_streams() -> None:
    """Give the number of a closed standard stream to /dev/null.

    Otherwise the run's next file would get it, and whatever prints to descriptor 2 would write
    into the ledger. It is opened for reading, so a write fails, as it does on a closed stream.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # gets the lowest free number, which is this one
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


def drop_unwritable_streams() -> None:
    """Discard what a full or closed stream still holds; Python would exit with 120 over it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_summary(result: Mapping[str, Any]) -> None:
    """Print the last line of stdout. If that fails, the run itself is still done and saved."""
    loss = result["loss"]
    if loss is not None and not math.isfinite(loss):
        loss = None  # JSON has no NaN
    try:
        print(json.dumps({**result, "loss": loss}), flush=True)
    except OSError as error:
        say(
            f"the run is {result['status']} at step {result['step']} and saved in "
            f"{result['run_dir']}, but stdout didn't take the summary ({error}). "
            "Once stdout can be written, the same command prints it."
        )


# ---------------------------------------------------------------- signals


first_exit = threading.Lock()


def not_training(number: int, _: object) -> None:
    """The handler of SIGTERM and Ctrl-C before and after ``run``: exit, nothing is lost.

    In a multi-rank job the exit code must not be 0: the other ranks would wait for this one,
    and torchrun would wait for them. With a non-zero code, torchrun restarts them all.

    Both threads call this. The listener gets through while the main thread is in C. But if
    ``run`` installs its handler before the listener wakes up, only the main thread knows.
    """
    if signal.getsignal(number) is not not_training:
        return  # ``run`` hands on a second Ctrl-C, which the listener answers
    if first_exit.acquire(blocking=False):
        say(f"exiting on {spoken(number)}, which arrived while it was not training")
        os._exit(0 if os.environ.get("WORLD_SIZE", "1") == "1" else 1)


def spoken(number: int) -> str:
    """What a user calls the signal."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def listen_to_signals() -> None:
    """End this process on a second Ctrl-C, and while it isn't training also on a first signal.

    In a thread, because Python runs a signal handler only once the main thread returns from C.
    A rank that waits for a dead peer in the rendezvous never returns, and torchrun kills it
    only after 30 s.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, not_training)
    # A terminal sends Ctrl-C to loader workers too, and theirs must not count as a second one.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))

    def listen() -> None:
        interrupted_at: float | None = None
        while received := os.read(reading, 1):
            number, now = received[0], time.monotonic()
            if number == signal.SIGINT and interrupted_at is not None:
                # One Ctrl-C may come twice: `timeout` signals the process, then its group.
                if now - interrupted_at > 0.05:
                    say("exiting at once, on the second Ctrl-C")
                    os._exit(1)
            elif number in (signal.SIGTERM, signal.SIGINT):
                interrupted_at = now if number == signal.SIGINT else interrupted_at
                answer(number)

    threading.Thread(target=listen, daemon=True).start()


def answer(number: int) -> None:
    """What a first signal does besides ``run``'s own handler: say so, or end this process."""
    if signal.getsignal(number) is not_training:
        not_training(number, None)
    elif number == signal.SIGINT and os.environ.get("LOCAL_RANK", "0") == "0":
        say(
            "Ctrl-C: saving after this step; the same command resumes from there. Press it "
            "again to exit at once, without a save."
        )


def die_with_torchrun() -> None:
    """Have the operating system kill this rank when torchrun dies. Linux only.

    A rank that outlives its agent keeps training and keeps the run folder's lock, so a
    supervisor that reruns the command would be refused.
    """
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        torchrun, set_parent_death_signal = os.getppid(), 1  # PR_SET_PDEATHSIG in <sys/prctl.h>
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
        if os.getppid() != torchrun:  # torchrun died before the call took effect
            os._exit(1)


# ---------------------------------------------------------------- the command


MOST_WORKERS_PER_CORE = 16  # some waiting for storage is fine: a worker needs far less than one


def refuse_workers_that_starve_the_machine(num_workers: int) -> None:
    """Raise UserError if the ranks here would start far more loader processes than cores."""
    # The cores that this process may use, which in a container may be fewer than the host's.
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    num_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # not every launcher sets it
    if num_workers * num_ranks > MOST_WORKERS_PER_CORE * cores:
        most = MOST_WORKERS_PER_CORE * cores // num_ranks
        raise UserError(
            f"num_workers={num_workers}: {num_ranks} rank(s) on this machine would start "
            f"{num_workers * num_ranks} loader processes on {cores} core(s), and beyond "
            f"{MOST_WORKERS_PER_CORE} per core the machine can hardly run anything else. Use "
            f"at most {most}; one or two per core is usual."
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, in Python, numpy or torch, here or on another rank."""
    return (
        isinstance(error, MemoryError)
        or "allocate memory" in str(error)
        or "out of memory" in str(error)
    )


def train(cfg: TrainConfig, sinks: Sequence[Any]) -> dict[str, Any]:
    """Run the trainer, or the biotech track's loop around it."""
    if isinstance(cfg, BioConfig):
        from trainer_core.bio import launch as bio

        return bio.run_task(cfg, sinks=sinks)
    from trainer_core.launch import run

    return run(cfg, sinks=sinks)


def main(arguments: Sequence[str]) -> int:
    """Parse the flags, train, and print the summary on rank 0; returns the exit code."""
    rank = os.environ.get("RANK", "0")
    try:
        cfg, exports = build_parser().parse(arguments)
        refuse_broken_environment(os.environ)
        refuse_workers_that_starve_the_machine(cfg.num_workers)
        # These import torch, which takes two seconds; --help and a wrong flag don't need it.
        from trainer_core.integrations.exporters import build_exporters

        result = train(cfg, build_exporters(exports))
    except UserError as error:
        # One rank per node reports it: a flag or a device may be wrong on just one node. A
        # LOCAL_RANK that isn't a number may be what is wrong.
        local_rank = os.environ.get("LOCAL_RANK", "0")
        if local_rank == "0" or not local_rank.isdecimal():
            say(with_flags(str(error), (spec.name for spec in fields(BioConfig))))
        return 2
    except Exception as error:
        if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
            # A file; those two come from a peer.
            remedy = "Fix that and run the command again: the last checkpoint is intact."
            code = 2
            say(f"[rank {rank}] {error}. {remedy}")
        elif is_out_of_memory(error):
            code = 2
            # Python's own has no message.
            reason, *_ = (str(error) or type(error).__name__).splitlines()
            say(
                f"[rank {rank}] {reason[:120].rstrip(' .')}. A rank holds its data, the "
                "model and a micro-batch in memory, and they don't fit. Lower "
                "--micro-batch-size, --hidden-dim, --num-layers or --dataset-size. If the same "
                "command has trained before, something else is using the memory: run it again "
                "once that is gone."
            )
        else:
            code = 1
            with contextlib.suppress(OSError):
                traceback.print_exc()
                sys.stderr.flush()
        # A peer may be dead. A normal interpreter exit would close the process group and wait
        # for that peer's collectives, and torchrun restarts nothing until this process is gone.
        os._exit(code)
    if int(rank) == 0:
        print_summary(result)
    return 0


if __name__ == "__main__":
    reserve_closed_streams()
    die_with_torchrun()
    listen_to_signals()
    try:
        code = main(sys.argv[1:])
    finally:
        drop_unwritable_streams()
    sys.exit(code)
