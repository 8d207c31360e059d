"""Train as a single process or under torchrun. Each flag sets a field of TrainConfig.

    python scripts/launch.py --run-dir runs/first --data digits
    torchrun --nproc-per-node 2 scripts/launch.py --run-dir runs/second --device cpu

On a machine with one GPU, two ranks need --device cpu. Run the same command again to resume.

Exit codes: 0 done, already done, or preempted after SIGTERM; 2 a mistake you can fix; 1
anything else, including SIGTERM to one of several ranks before it trains.
"""

from __future__ import annotations

import argparse
import ctypes
import difflib
import json
import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, NoReturn

from trainer_core.config import TrainConfig
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
            known = [name for action in self._actions for name in action.option_strings]
            nearest = difflib.get_close_matches(flag, known, n=1, cutoff=0.0)[0]
            raise UserError(
                f"{flag}: no such flag, and unknown flags are never ignored. The nearest is "
                f"{nearest}; --help lists them all."
            )
        given = vars(values)
        exports = given.pop("export")
        return TrainConfig(**given), exports


def add_flag(parser: argparse.ArgumentParser, spec: Field[Any]) -> None:
    """One flag from one field: its name, type, choices, help and default."""
    kind, _, optional = str(spec.type).partition(" | ")
    rules = spec.metadata
    options: dict[str, Any] = {"default": spec.default, "dest": spec.name}
    if kind == "bool":
        options["action"] = argparse.BooleanOptionalAction
    else:
        convert = {"int": int, "float": float, "str": str, "Path": Path}[kind]

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
    for spec in fields(TrainConfig):
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


def end_at_once(*_: object) -> None:
    """Exit on SIGTERM before ``run`` handles it and after it stops: there is nothing to lose.

    In a multi-rank job the exit code must not be 0: the other ranks would wait for this one,
    and torchrun would wait for them. With a non-zero code, torchrun restarts them all.
    """
    os.write(2, b"launch.py: exiting on SIGTERM, which arrived while it was not training\n")
    os._exit(1 if int(os.environ.get("WORLD_SIZE", 1)) > 1 else 0)


def listen_to_sigterm() -> None:
    """React to SIGTERM immediately, even while this process is blocked in C waiting for a peer.

    Python runs a signal handler only once the main thread returns from C. A rank that waits for
    a dead peer in the rendezvous never returns, and torchrun kills it only after 30 s. Hence a
    second thread.
    """
    signal.signal(signal.SIGTERM, end_at_once)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def answer() -> None:
        while number := os.read(reading, 1):
            if number[0] == signal.SIGTERM and signal.getsignal(number[0]) is end_at_once:
                end_at_once(signal.SIGTERM, None)

    threading.Thread(target=answer, daemon=True).start()


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


def main(arguments: Sequence[str]) -> int:
    """Parse the flags, train, and print the summary on rank 0; returns the exit code."""
    is_main_rank = int(os.environ.get("RANK", 0)) == 0
    is_first_here = int(os.environ.get("LOCAL_RANK", 0)) == 0
    try:
        cfg, exports = build_parser().parse(arguments)
        # These import torch, which takes two seconds; --help and a wrong flag don't need it.
        from trainer_core.integrations.exporters import build_exporters
        from trainer_core.launch import run

        result = run(cfg, sinks=build_exporters(exports))
    except UserError as error:
        # One rank per node reports it: a flag or a device may be wrong on just one node.
        if is_first_here:
            names = (spec.name for spec in fields(TrainConfig))
            print(f"launch.py: {with_flags(str(error), names)}", file=sys.stderr)
        return 2
    except OSError as error:
        if isinstance(error, ConnectionError | TimeoutError):  # a peer, not a file
            traceback.print_exc()
            os._exit(1)
        rank = os.environ.get("RANK", 0)
        remedy = "Fix that and run the command again: the last checkpoint is intact."
        print(f"launch.py: [rank {rank}] {error}. {remedy}", file=sys.stderr, flush=True)
        os._exit(2)
    except Exception:
        # A peer may be dead. A normal interpreter exit would close the process group and wait
        # for that peer's collectives, and torchrun restarts nothing until this process is gone.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    if is_main_rank:
        if result["loss"] is not None and not math.isfinite(result["loss"]):
            result["loss"] = None  # JSON has no NaN
        print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    die_with_torchrun()
    listen_to_sigterm()
    sys.exit(main(sys.argv[1:]))
