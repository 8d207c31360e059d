"""Every figure that an alarm or a claim needs, from what a job left behind.

Times are compared with each other only (a phase with the step, a rank with its peers), so a
busy machine changes them all together.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

from rehearsal.incidents.job_records import JobRecords, Record, high, middle, quiet

GUESSING = 2.0794  # nats: the toy data has eight classes
COMPUTE = ("h2d", "forward", "backward", "optimizer")


class Evidence(JobRecords):
    """A job's records, and what they add up to."""

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
        return sum(len({r["weights"] for r in of}) > 1 for of in self.agents_at.values())

    def steps_in_eval_mode(self) -> int:
        """Steps that a rank trained without dropout, although the config asks for it."""
        found = {r["step"] for r in self.agents if r["mode"] == "eval"}
        return len(found) if self.plan.fixed.get("dropout") else 0

    def gradient_outlier(self) -> float:
        """A step's largest local gradient norm over its smallest; the upper quartile."""
        norms = [[r["local_grad_norm"] for r in of] for of in self.agents_at.values()]
        ratios = [max(n) / max(min(n), 1e-9) for n in norms if len(n) > 1 and min(n) > 0]
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

    def batch_sizes(self) -> dict[int, list[int]]:
        """Samples trained in each step, over all ranks, per attempt."""
        found: dict[int, dict[int, int]] = {}
        for line in self.ledger:
            sizes = found.setdefault(line["attempt"], {})
            sizes[line["step"]] = sizes.get(line["step"], 0) + len(line["samples"])
        return {attempt: list(sizes.values()) for attempt, sizes in found.items()}

    def missing_hosts(self) -> int:
        """How many hosts fewer than planned the job was started on."""
        return self.plan.world.num_hosts - self.plan.world_size

    def batch_error(self) -> int:
        """How far an attempt's global batch is from the planned one, at most, in samples."""
        planned = self.plan.world.global_batch_size
        sizes = self.batch_sizes().values()
        # An epoch's last step is smaller, and so is one that a kill cut short.
        return max((abs(max(of) - planned) for of in sizes if len(of) >= 5), default=0)

    def loss_mismatch(self) -> float:
        """How far the reported loss is from the mean over the samples, in nats; the median."""
        apart = []
        for row in self.progress.get(0, []):
            ranks = self.agents_at.get((row["attempt"], row["step"]), [])
            count = sum(record["samples"] for record in ranks)
            if row["loss"] is not None and count:
                total = sum(record["local_loss"] * record["samples"] for record in ranks)
                apart.append(abs(row["loss"] - total / count))
        return middle(apart)
