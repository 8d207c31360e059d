"""What a job left behind, read once; every figure that an alarm, a claim or a look needs.

Times are compared with each other only (a phase with the step, a rank with its peers), so a
busy machine changes them all together.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rehearsal.evidence.audit import AuditReport, audit_run
from rehearsal.evidence.run_records import rank_files, read_jsonl
from rehearsal.incidents.world import Plan

Record = dict[str, Any]
WARM_UP = 2  # first steps of a start: compilation, loader processes, buckets
GUESSING = 2.0794  # nats: the toy data has eight classes
COMPUTE = ("h2d", "forward", "backward", "optimizer")


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


class Evidence:
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
        found = [r for path in rank_files(self.run_dir, "logs") for r in read_jsonl(path)]
        return sorted(found, key=lambda record: float(record["time"]))

    @cached_property
    def ledger(self) -> list[Record]:
        """All ranks' ledger lines, by time."""
        found = [r for path in rank_files(self.run_dir, "ledger") for r in read_jsonl(path)]
        return sorted(found, key=lambda record: float(record["time"]))

    @cached_property
    def agents(self) -> list[Record]:
        """What the hosts' agents wrote: one line per rank and step."""
        files = rank_files(self.run_dir, "telemetry")
        return [record for path in files for record in read_jsonl(path)]

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

    # ------------------------------------------------------------ figures

    def input_share(self) -> float:
        """The largest share of a step that a rank waits for data."""
        return max((self.share(rank, "data_wait") for rank in self.ranks), default=0.0)

    def input_spikes(self) -> float:
        """The wait for data that a quarter of the steps exceed, in usual steps."""
        return max(
            high((s["data_wait"] for s in self.steady.get(rank, [])), 0.75)
            / max(self.step_ms(rank), 1e-9)
            for rank in self.ranks
        )

    def straggling(self) -> float:
        """The slowest rank's compute over the fastest's, in the attempt with most steps."""
        attempts: dict[int, dict[int, list[dict[str, float]]]] = {}
        for (attempt, rank), steps in self.steady_in.items():
            attempts.setdefault(attempt, {})[rank] = steps
        by_length = sorted(attempts.values(), key=lambda of: -min(map(len, of.values())))
        for of in by_length[:1]:
            own = [quiet(sum(s[n] for n in COMPUTE) for s in steps) for steps in of.values()]
            return max(own) / max(min(own), 1e-9)
        return 1.0

    def slowest_rank(self) -> int:
        """The rank whose compute takes longest."""
        return max(self.ranks, key=lambda rank: self.phase_ms(rank, *COMPUTE))

    def sync_share(self) -> float:
        """The share of a step that even the last rank to arrive waits in the sync."""
        return min((self.share(rank, "grad_sync") for rank in self.ranks), default=0.0)

    def save_stall(self) -> float:
        """How long training waits for a usual save, in usual steps."""
        saves = [s["checkpoint"] for s in self.steady.get(0, []) if s["checkpoint"] > 0]
        return quiet(saves) / max(self.step_ms(0), 1e-9)

    def is_done(self) -> bool:
        """Whether the job reached the end of its plan."""
        return bool(self.attempts) and all(
            rank["exitcode"] == 0 and rank["answer"]["status"] == "done"
            for rank in self.attempts[-1]["ranks"]
        )

    def failed_attempts(self) -> list[Record]:
        """Attempts that ended badly."""
        return [a for a in self.attempts if any(rank["exitcode"] != 0 for rank in a["ranks"])]

    def planned_kills(self) -> int:
        """Failed attempts that the scheduler caused: it took a host away."""
        kills = {kill.attempt for kill in self.plan.world.kills}
        return sum(attempt["attempt"] in kills for attempt in self.failed_attempts())

    def crashes(self) -> int:
        """Failed attempts that the scheduler didn't cause."""
        return len(self.failed_attempts()) - self.planned_kills()

    def barren_attempts(self) -> int:
        """Failed attempts that completed no step."""
        trained = {line["attempt"] for line in self.ledger}
        return sum(attempt["attempt"] not in trained for attempt in self.failed_attempts())

    def audit_findings(self) -> float:
        """What the audit counts against the run; infinite without evidence."""
        report = self.audit
        if report.status == "no_evidence":
            return float("inf")
        return float(
            report.duplicates
            + report.misses
            + report.wrong_lines
            + report.incomplete_steps
            + report.holes
        )

    def rate_jump(self) -> float:
        """The largest ratio of one step's learning rate to the one before, after the warmup."""
        warmup = self.plan.settings["warmup_steps"]
        rates = [(r["step"], r["lr"]) for r in self.lineage if r["step"] > warmup]
        pairs = pairwise(rate for _, rate in rates)
        return max((new / max(old, 1e-12) for old, new in pairs), default=1.0)

    def losses(self) -> list[float]:
        """The loss per step of the lineage; NaN where it wasn't finite."""
        return [r["loss"] if r["loss"] is not None else float("nan") for r in self.lineage]

    def learned(self) -> float:
        """The last steps' loss over that of guessing; 0.0 if the job gave up before the end."""
        return fmean(self.losses()[-8:]) / GUESSING if self.is_done() else 0.0

    def skipped_steps(self) -> int:
        """Steps whose update was withheld, and attempts that stopped over one."""
        skipped = sum(r["skipped_steps"] for r in self.progress.get(0, []))
        stopped = [a for a in self.attempts if "must be finite" in self.errors_of(a)]
        return int(skipped) + len(stopped)

    def errors_of(self, attempt: Record) -> str:
        """What the ranks of an attempt raised."""
        return "\n".join(rank["error"] for rank in attempt["ranks"])

    def different_weights(self) -> int:
        """Steps after which the ranks' weights weren't equal."""
        seen: dict[tuple[int, int], set[float]] = {}
        for record in self.agents:
            seen.setdefault((record["attempt"], record["step"]), set()).add(record["weights"])
        return sum(len(weights) > 1 for weights in seen.values())

    def steps_in_eval_mode(self) -> int:
        """Steps that a rank trained without dropout, although the config asks for it."""
        found = {r["step"] for r in self.agents if r["mode"] == "eval"}
        return len(found) if self.plan.fixed.get("dropout") else 0

    def gradient_outlier(self) -> float:
        """A step's largest local gradient norm over its smallest; the upper quartile."""
        seen: dict[tuple[int, int], list[float]] = {}
        for record in self.agents:
            key = record["attempt"], record["step"]
            seen.setdefault(key, []).append(record["local_grad_norm"])
        ratios = [
            max(n) / max(min(n), 1e-9) for n in seen.values() if len(n) > 1 and min(n) > 0
        ]
        return high(ratios, 0.75)

    def hangs(self) -> int:
        """Attempts that the watchdog ended, and those that nothing ended."""
        stuck = [a for a in self.attempts if any(r["exitcode"] is None for r in a["ranks"])]
        return len({record["attempt"] for record in self.events("hang")}) + len(stuck)

    def memory_growth(self, rank: int) -> float:
        """MiB by which a rank's own memory grew in an attempt, after the first steps."""
        attempts: dict[int, list[float]] = {}
        for record in self.agents:
            if record["rank"] == rank:
                attempts.setdefault(record["attempt"], []).append(record["memory_mib"])
        return max((m[-1] - m[4] for m in attempts.values() if len(m) > 5), default=0.0)

    def largest_growth(self) -> float:
        """The largest growth of a rank."""
        return max(self.memory_growth(rank) for rank in self.ranks)

    def checkpoint_gap(self) -> int:
        """The most steps that were ever trained since the newest checkpoint."""
        saved = sorted({0, *(record["step"] for record in self.events("checkpoint_saved"))})
        last = max((line["step"] for line in self.ledger), default=0)
        ends = [*saved[1:], last]
        return max(int(end) - int(begin) for begin, end in zip(saved, ends, strict=True))

    def replayed_share(self) -> float:
        """Steps trained more than once, over the steps of the plan."""
        return self.audit.replayed_steps / max(self.audit.total_steps, 1)

    def clock_gap_s(self) -> float:
        """The median difference between the ranks' clocks at the end of the same step."""
        seen: dict[tuple[int, int], list[float]] = {}
        for line in self.ledger:
            seen.setdefault((line["attempt"], line["step"]), []).append(line["time"])
        return middle(max(times) - min(times) for times in seen.values())

    def batch_sizes(self) -> dict[int, int]:
        """Samples trained in each step, over all ranks; of a step trained twice, the last."""
        found: dict[tuple[int, int], int] = {}
        for line in self.ledger:
            key = line["step"], line["attempt"]
            found[key] = found.get(key, 0) + len(line["samples"])
        return {step: count for (step, _), count in sorted(found.items())}

    def missing_hosts(self) -> int:
        """How many hosts fewer than planned the job was started on."""
        return self.plan.world.num_hosts - self.plan.world_size

    def batch_error(self) -> int:
        """How far the global batch is from the planned one, in samples."""
        sizes = self.batch_sizes().values()
        if len(sizes) < 5:  # steps that a kill cut short say nothing
            return 0
        return abs(max(sizes) - self.plan.world.global_batch_size)
