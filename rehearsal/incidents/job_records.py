"""What a job left behind, read once: attempts, logs, ledger, telemetry, steps and phases."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from rehearsal.evidence.audit import AuditReport, audit_run
from rehearsal.evidence.run_records import rank_files, read_jsonl
from rehearsal.incidents.world import Plan

Record = dict[str, Any]
WARM_UP = 2  # first steps of a start: compilation, loader processes, buckets


def middle(values: Iterable[float]) -> float:
    """The median; 0.0 of nothing."""
    found = list(values)
    return float(median(found)) if found else 0.0


def high(values: Iterable[float], fraction: float) -> float:
    """The value that ``fraction`` of all values don't exceed; 0.0 of nothing."""
    found = sorted(values)
    return found[min(len(found) - 1, int(fraction * len(found)))] if found else 0.0


def quiet(values: Iterable[float]) -> float:
    """The 20th percentile: what something takes while nobody else wants the cores.

    Other programs only ever add to a time, and on a busy machine to more than half of them.
    """
    return high(values, 0.2)


class JobRecords:
    """A job's folder, as ``job.run_job`` leaves it."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        self.run_dir = folder / "run"

    @cached_property
    def attempts(self) -> list[Record]:
        """The supervisor's lines: attempt, began, ended, ranks."""
        return list(read_jsonl(self.folder / "supervisor.jsonl"))

    @cached_property
    def logs(self) -> list[Record]:
        """All ranks' events, by time."""
        return self._by_time("logs")

    @cached_property
    def ledger(self) -> list[Record]:
        """All ranks' ledger lines, by time."""
        return self._by_time("ledger")

    def _by_time(self, name: str) -> list[Record]:
        found = [r for path in rank_files(self.run_dir, name) for r in read_jsonl(path)]
        return sorted(found, key=lambda record: float(record["time"]))

    @cached_property
    def agents(self) -> list[Record]:
        """What the hosts' agents wrote: one line per rank and step."""
        files = rank_files(self.run_dir, "telemetry")
        return [record for path in files for record in read_jsonl(path)]

    @cached_property
    def agents_at(self) -> dict[tuple[int, int], list[Record]]:
        """The agents' lines of each attempt and step."""
        found: dict[tuple[int, int], list[Record]] = {}
        for record in self.agents:
            found.setdefault((record["attempt"], record["step"]), []).append(record)
        return found

    @cached_property
    def audit(self) -> AuditReport:
        """The verdict on the run folder."""
        return audit_run(self.run_dir)

    def events(self, name: str, rank: int | None = None) -> list[Record]:
        """The events of one kind."""
        ranks = (None, rank) if rank is None else (rank,)
        return [
            r for r in self.logs if r["event"] == name and (None in ranks or r["rank"] in ranks)
        ]

    # ------------------------------------------------------------ steps and phases

    @cached_property
    def progress(self) -> dict[int, list[Record]]:
        """Each rank's train_progress events, in order."""
        found: dict[int, list[Record]] = {rank: [] for rank in range(self.plan.world_size)}
        for record in self.events("train_progress"):
            found.setdefault(record["rank"], []).append(record)
        return found

    @cached_property
    def lineage(self) -> list[Record]:
        """Rank 0's progress at each step; of a step trained twice, the last time."""
        by_step = {record["step"]: record for record in self.progress.get(0, [])}
        return [by_step[step] for step in sorted(by_step)]

    @cached_property
    def steady_in(self) -> dict[tuple[int, int], list[dict[str, float]]]:
        """Milliseconds by phase, per attempt, rank and step, without a start's first steps."""
        found: dict[tuple[int, int], list[dict[str, float]]] = {}
        for rank, records in self.progress.items():
            for record in records:
                spent = {name: float(p["max"]) for name, p in record["phases"].items()}
                found.setdefault((record["attempt"], rank), []).append(spent)
        return {key: steps[WARM_UP:] for key, steps in found.items()}

    @cached_property
    def steady(self) -> dict[int, list[dict[str, float]]]:
        """The same per rank, over all attempts."""
        found: dict[int, list[dict[str, float]]] = {}
        for (_, rank), steps in sorted(self.steady_in.items()):
            found.setdefault(rank, []).extend(steps)
        return found

    def phase_ms(self, rank: int, *phases: str) -> float:
        """A phase on a rank, without what other programs add; of several, their sum."""
        return quiet(sum(s[name] for name in phases) for s in self.steady.get(rank, []))

    def step_ms(self, rank: int) -> float:
        """A rank's step, without saves and without what other programs add."""
        steps = self.steady.get(rank, [])
        return quiet(sum(s.values()) - s["checkpoint"] for s in steps)

    def share(self, rank: int, phase: str) -> float:
        """How much of its step a rank spends in a phase."""
        return self.phase_ms(rank, phase) / max(self.step_ms(rank), 1e-9)

    @property
    def ranks(self) -> range:
        """The job's ranks."""
        return range(self.plan.world_size)
