"""Was every sample trained exactly once? The surviving lineage, compared with the plan.

A collapsed cell. The question it answers: "the job was killed twice; prove that no sample was
lost and none was trained twice." run_records.py reads what the run recorded, run_plan.py says
what was due, and lineage.py (the terms are there) which work survived; here they are judged.

    share       the samples of a step that one rank trains
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby, pairwise, zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

# %% active="py"
from rehearsal.evidence.lineage import lives_of_attempts, surviving_lineage
from rehearsal.evidence.run_plan import PlannedSteps, RunPlan, read_plan
from rehearsal.evidence.run_records import (
    LedgerLine,
    RunLogs,
    Steps,
    read_evidence,
    world_size_of,
)

# %%
# Step, rank, position in the rank's share. In a step without lines, all is rank 0's share.
Place = tuple[int, int, int]


@dataclass(kw_only=True, slots=True)
class Findings:
    """What refutes the run: every finding counted, the first few of each kind kept.

    They are kept as text for the report and as places for the sample map.
    """

    counts: Counter[str] = field(default_factory=Counter)
    texts: list[str] = field(default_factory=list)
    places: dict[str, list[Place]] = field(default_factory=dict)

    def add(self, kind: str, text: str, place: Place = (0, 0, 0)) -> None:
        """Record one finding."""
        self.counts[kind] += 1
        if self.counts[kind] <= 5:
            self.texts.append(text)
        if self.counts[kind] <= 1000:
            self.places.setdefault(kind, []).append(place)


def name_few(samples: Any) -> str:
    """The first five of ``samples``, for a message."""
    return ", ".join(map(str, samples[:5])) + (", ..." if len(samples) > 5 else "") or "none"


# %%
def judge_step(
    found: Findings, epoch: int, step: int, planned: NDArray[np.int64], lines: list[LedgerLine]
) -> bool:
    """Compare the lines of one step with the planned samples; True if they match."""
    world_size = world_size_of(lines)
    ranks = [line.rank for line in lines]
    is_same = len(ranks) == world_size and ranks == list(range(world_size))
    if not is_same:
        if lines:
            each = f"each of ranks 0..{world_size - 1}" if world_size > 1 else "rank 0 alone"
            text = f"lines from ranks {name_few(ranks)}, expected one from {each}"
        else:  # so nothing says how many ranks there were
            text = "no line from any rank"
        found.add("incomplete_steps", f"epoch {epoch} step {step}: {text}; look in ledger/")
    for line in lines:
        has, due = line.samples.tolist(), planned[line.rank :: world_size].tolist()
        if (has, line.epoch, line.world_size) == (due, epoch, world_size):
            continue
        is_same = False
        at = next((at for at, two in enumerate(zip_longest(has, due)) if two[0] != two[1]), 0)
        text = f"trained {name_few(has[at:])} instead of {name_few(due[at:])}"
        if has == due:
            text = f"claims epoch {line.epoch} and world size {line.world_size}"
            text += f" instead of {epoch} and {world_size}"
        look = f"look in ledger/rank-{line.rank}.jsonl"
        found.add("wrong_lines", f"epoch {epoch} {line}: {text}; {look}", (step, line.rank, at))
    return is_same


# %%
def judge_epoch(
    found: Findings, planned: PlannedSteps, epoch: int, steps: list[int], lineage: Steps
) -> None:
    """Judge the ``steps`` of an epoch that are due: repeats, each step by itself, misses."""
    lines = [line for step in steps for line in lineage.get(step, [])]
    ids = np.concatenate([array("q"), *(line.samples for line in lines)])
    trained, times = np.unique(ids, return_counts=True)
    again, earlier = set(trained[times > 1].tolist()), dict[int, LedgerLine]()
    for line in lines if again else []:
        for at, sample in enumerate(line.samples):
            if sample in earlier:
                text = f"sample {sample} was trained in {earlier[sample]} and again in {line}"
                found.add("duplicates", f"epoch {epoch}: {text}", (line.step, line.rank, at))
            elif sample in again:
                earlier[sample] = line
    trained = np.append(trained, -1)  # a sentinel for ids that sort after the last
    for step in steps:
        due, lines = planned.samples(step), lineage.get(step, [])
        if judge_step(found, epoch, step, due, lines):
            continue
        is_missed = trained[np.searchsorted(trained[:-1], due)] != due
        for slot in np.flatnonzero(is_missed).tolist():
            at, rank = divmod(slot, world_size_of(lines))
            on_rank = f", due on rank {rank}," if lines else ""
            text = f"sample {due[slot]}{on_rank} is in no line of this epoch"
            found.add("misses", f"epoch {epoch} step {step}: {text}", (step, rank, at))


MOST_TO_LIST = 1_000_000  # samples of missing steps


def judge_gap(found: Findings, plan: RunPlan, first: int, last: int) -> list[int]:
    """The steps ``first`` to ``last`` have no lines: count most of them, and return the rest.

    A damaged number can make a gap endless, so only its first steps are looked at one by one.
    """
    listed = max(1, MOST_TO_LIST // min(plan.global_batch_size, plan.num_samples))
    rest = range(min(first + listed, last + 1), last + 1)
    if rest:
        text = f"steps {rest[0]} to {last}: no lines from any rank; look in ledger/"
        found.add("incomplete_steps", text, (rest[0], 0, 0))
        found.counts["incomplete_steps"] += len(rest) - 1
        found.counts["misses"] += plan.samples_until(last) - plan.samples_until(rest[0] - 1)
    return list(range(first, rest[0] if rest else last + 1))


def judge_steps(found: Findings, plan: RunPlan, end: int, lineage: Steps) -> None:
    """Judge every step of the plan up to ``end``, epoch by epoch."""
    present = [step for step in lineage if step <= end]
    due = list(present)
    for before, after in pairwise([0, *present, end + 1]):
        if after > before + 1:
            due += judge_gap(found, plan, before + 1, after - 1)
    planned = PlannedSteps(plan)
    for epoch, steps in groupby(sorted(due), lambda step: (step - 1) // plan.steps_per_epoch):
        judge_epoch(found, planned, epoch, list(steps), lineage)


# %%
REFUTING = ("duplicates", "misses", "wrong_lines", "incomplete_steps", "holes")


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditReport:
    """The verdict on a run folder, and the numbers behind it."""

    status: Literal["proved", "refuted", "no_evidence"]
    verdict: str  # one sentence
    epochs: int = 0  # completed
    steps: int = 0  # length of the lineage
    total_steps: int = 0  # planned
    duplicates: int = 0  # trainings of a sample beyond its first in an epoch
    misses: int = 0  # samples due in the lineage that no line of their epoch has
    wrong_lines: int = 0  # lines that differ from the rank's share of the step
    incomplete_steps: int = 0  # steps without exactly one line from every rank
    holes: int = 0  # places where an attempt does not continue where its checkpoint ended
    replayed_steps: int = 0  # steps that more than one attempt trained
    attempts: int = 0
    goodput: float | None = None  # useful_s / wall_s; None without timestamps
    useful_s: float = 0.0  # step time of the lineage, on rank 0
    wall_s: float = 0.0  # over all attempts: process start to last sign of life
    between_attempts_s: float = 0.0
    in_flight_steps: list[int] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)  # the first of each kind
    notes: list[str] = field(default_factory=list)  # caveats for the reader
    places: dict[str, list[Place]] = field(default_factory=dict)  # of the findings, by kind


# %%
def measure_times(ledger: dict[int, Steps], lineage: Steps, logs: RunLogs) -> dict[str, Any]:
    """Goodput and its parts, in seconds, from rank 0's ledger and log."""
    lives = lives_of_attempts(ledger, logs).values()
    useful_s = sum(
        line.step_s for lines in lineage.values() for line in lines if line.rank == 0
    )
    wall_s = sum(end - begin for begin, end in lives)
    between_s = sum(after.begin - before.end for before, after in pairwise(lives))
    goodput = useful_s / wall_s if useful_s > 0 and wall_s > 0 else None
    times = {"useful_s": useful_s, "wall_s": wall_s, "between_attempts_s": between_s}
    return {"goodput": goodput, **times}


# %%
def audit_run(run_dir: Path | str) -> AuditReport:
    """Prove or refute that the lineage trained each sample exactly once per epoch, in order.

    Only reads files, and never raises because of what is in them.
    """
    try:
        ledger, logs = read_evidence(run_dir)
        # Last: a start with more epochs writes its plan before it trains.
        plan, lineage = read_plan(run_dir), surviving_lineage(ledger, logs)
    except (OSError, ValueError) as error:
        return AuditReport(status="no_evidence", verdict=str(error))
    found, end = Findings(), lineage.end
    total, per_epoch = plan.total_steps, plan.steps_per_epoch
    for hole in lineage.holes:
        found.add("holes", hole)
    if end > total:
        text = f"the run trained up to step {end}, but its plan ends at step {total}"
        found.add("unplanned_steps", f"{text}; look at total_steps in config.json")
    judge_steps(found, plan, min(end, total), lineage.steps)
    later = [step for step in logs.damaged if step > end]
    if later and not found.counts:
        text = f"checkpoints/step-{later[-1]:08d}: its manifest is damaged or missing, and no "
        text += f"ledger line shows step {later[-1]}, so the audit can't tell whether the run "
        text += "got there. If it isn't a checkpoint of this run, move it away."
        return AuditReport(status="no_evidence", verdict=text)

    verdict = ", ".join(f"{kind.replace('_', ' ')}: {n}" for kind, n in found.counts.items())
    epochs, rest = divmod(end, per_epoch)
    notes, so_far = [], f"{plan.samples_until(rest)} of {plan.num_samples} samples so far"
    if end < total:
        notes.append(f"unfinished: step {end} of {total}; epoch {epochs}: {so_far}")
    if lineage.in_flight:
        notes.append(f"in flight, not judged: steps {name_few(lineage.in_flight)}")
    if trusted := lineage.trusted[::-1]:
        text = "which checkpoint they restored is taken on trust"
        notes.append(f"no log of attempts {name_few(trusted)}: {text}")
    if skipped := [step for step, lines in lineage.steps.items() if lines[0].is_skipped]:
        notes.append(
            f"trained, but the optimizer update was skipped: steps {name_few(skipped)}"
        )
    tries = Counter(step for steps in ledger.values() for step in steps)
    return AuditReport(
        status="refuted" if found.counts else "proved",
        verdict=verdict or f"each sample due by step {end} of {total} was trained exactly once",
        epochs=epochs,
        steps=end,
        total_steps=total,
        attempts=len({*ledger, *dict(logs.alive)}),
        replayed_steps=sum(count > 1 for count in tries.values()),
        in_flight_steps=lineage.in_flight,
        findings=found.texts,
        notes=notes,
        places=found.places,
        **{kind: found.counts[kind] for kind in REFUTING},
        **measure_times(ledger, lineage.steps, logs),
    )
