"""Modules of trainer_core under their former names, so that earlier attempts still run.

Blanks used to import from ``trainer_core.publish`` and others that have since been split or
renamed. An attempt that keeps those lines is judged for what it does, not for where it imports
from. Nothing here is loaded unless somebody imports an old name.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

# Former module: the modules that its names live in today.
MOVED = {
    "publish": ("checkpoint_format", "checkpoint_writer"),
    "together": ("collectives", "signals"),
    "journal": ("run_log", "resume_check"),
    "sources": ("datasets", "signals"),
    "jsonfiles": ("json_lines", "chrome_trace"),
    "runfolder": ("run_folder", "resume"),
    "workers": ("local_launcher",),
}
# Former name: today's.
RENAMED = {
    "raise_together": "raise_on_all_ranks",
    "all_ranks_together": "errors_on_all_ranks",
    "say": "print_status",
    "Exporter": "GuardedSink",
    "as_it_is": "already_batched",
    "die_with_the_rank": "exit_with_parent",
    "what_is_seen": "observed_state",
    "WorkerResult": "RankResult",
    "worker_main": "rank_main",
    "Workers": "LocalRanks",
}


class Journal:
    """What ``journal.Journal`` was: one object in front of log, ledger and progress."""

    def __init__(
        self,
        start: Any,
        info: Any,
        sampler: Any,
        timers: Any,
        sinks: Sequence[Any],
        state: Mapping[str, Any] | None,
    ) -> None:
        core = importlib.import_module
        errors = core("trainer_core.collectives").DeferredErrors()
        run_log = core("trainer_core.run_log")
        self.start = start
        self.schedule = sampler.schedule
        self.position = sampler.position
        self.errors = errors
        self.log = run_log.RunLog(start, info, self.schedule, sinks, errors)
        run_log.log_start(self.log, start, info, self.schedule, self.position)
        self.ledger = core("trainer_core.ledger").Ledger(
            start, info, self.schedule, timers, errors
        )
        losses = state["losses"] if state else []
        self.parts = core("trainer_core.progress").Progress(
            start, self.log, self.schedule, timers, self.position, losses
        )
        self.check = core("trainer_core.resume_check").ResumeCheck(
            start, state, self.schedule, self.position, self.log.event
        )
        self.event = self.log.event
        self.watchdog = core("trainer_core.watchdog").Watchdog(
            start, info, timers, self.position, self.log.event
        )

    @property
    def error(self) -> BaseException | None:
        """The first line that could not be written."""
        first: BaseException | None = self.errors.first
        return first

    @property
    def losses(self) -> list[float]:
        """Of the last 20 steps."""
        return list(self.parts.losses)

    @property
    def lr(self) -> float:
        """Of the last step that was read."""
        return float(self.parts.lr)

    def trained(self, step: int, batches: Any, skipped: Any, seconds: float) -> None:
        """Write the ledger's line of a step."""
        self.watchdog.beat(step)
        self.ledger.add(step, batches, skipped, seconds)

    def read(self, step: int, lr: float, records: Sequence[Any]) -> None:
        """Take the records of the last steps."""
        self.ledger.flush()
        self.parts.add(records, lr)
        self.check.add(step, [record.loss for record in records])

    def progress(self, step: int, timers: object) -> None:
        """Log one train_progress event."""
        self.parts.report(step)

    def close(self) -> None:
        """Stop watching and close all files."""
        self.watchdog.close()
        self.log.close()
        self.ledger.close()


class FormerModule(ModuleType):
    """A module whose names are looked up where they live today."""

    def __getattr__(self, name: str) -> Any:
        former = self.__name__.rpartition(".")[2]
        if (former, name) == ("journal", "Journal"):
            return Journal
        for module in MOVED[former]:
            found = importlib.import_module(f"trainer_core.{module}")
            if hasattr(found, today := RENAMED.get(name, name)):
                return getattr(found, today)
        raise AttributeError(
            f"{self.__name__} is now {' and '.join(MOVED[former])}, and has no {name!r}"
        )


class FormerModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the former modules, after all that exist have been tried."""

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, module = name.rpartition(".")
        is_former = package == "trainer_core" and module in MOVED
        return importlib.machinery.ModuleSpec(name, self) if is_former else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return FormerModule(spec.name, "A former name: rehearsal/grading/former_modules.py")

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run: names are looked up when they are asked for."""


def install() -> None:
    """Let attempts import trainer_core's former modules, in this process."""
    if not any(isinstance(finder, FormerModules) for finder in sys.meta_path):
        sys.meta_path.append(FormerModules())
