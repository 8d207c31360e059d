"""Are two runs the same run? If not, at which step do they diverge, and in what?

The question it answers: "it was killed and resumed, and its loss isn't last week's; where did
it diverge?" It compares, step by step, the samples of the surviving lineages, what both runs
logged, and the checkpoints that both still have.

    exact    bit for bit: as long as both runs split each step the same way
    close    within CLOSE_RELATIVE or CLOSE_ABSOLUTE: from the first step that was split
             differently, because the same numbers are added in a different order there; from
             step 1 if the runs' versions or devices differ
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rehearsal.evidence.audit import name_few
from rehearsal.evidence.lineage import surviving_lineage
from rehearsal.evidence.run_plan import read_plan
from rehearsal.evidence.run_records import (
    LedgerLine,
    Steps,
    read_evidence,
    read_jsonl,
    world_size_of,
)

CLOSE_RELATIVE, CLOSE_ABSOLUTE = 1e-3, 1e-5
# lr first: a changed rate shows in the loss only one step later.
LOGGED = ("lr", "loss", "grad_norm")
# Settings that, like the world size, decide the order in which a step's numbers are added.
CUTS = ("micro_batch_size", "grad_accum_steps", "amp")
Status = Literal["equal", "different", "no_evidence"]
OF_THE_FOLDER = ("run_dir", "start_over")
NO_NUMBERS = (
    "there was no logged loss and no checkpoint to compare, so their weights may differ. "
    "Name folders that still have logs/rank-0.jsonl or a checkpoint of the same step."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """The first step at which two runs differ in one respect."""

    step: int
    what: str
    first: str  # the value of the first run
    second: str

    def __str__(self) -> str:
        return f"{self.what}: {self.first} | {self.second}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Whether two runs are equal as far as both go, and where they diverge."""

    status: Status
    verdict: str  # one sentence
    runs: list[str]  # the two folders; every pair of values is in this order
    steps: int = 0  # that both runs have
    exact_steps: int = 0  # compared bit for bit up to here, within the tolerance after it
    logged_steps: int = 0  # that both runs logged
    checkpoints: list[int] = field(default_factory=list)  # the steps that were compared
    differences: list[Difference] = field(default_factory=list)  # the first of each kind
    plan: list[str] = field(default_factory=list)  # what differs in config.json
    notes: list[str] = field(default_factory=list)


# %%
class Change(NamedTuple):
    """A config_changed event, logged at the start of an attempt."""

    attempt: int
    step: int
    names: dict[str, Any]  # setting: [old value, new value]


class RunEvidence(NamedTuple):
    """What one run folder shows."""

    config: dict[str, Any]  # config.json
    lineage: Steps
    end: int
    logged: dict[int, dict[str, Any]]  # step: rank 0's train_progress, of the lineage
    changes: list[Change]
    device: str
    checkpoints: dict[int, Path]


def read_run(run_dir: Path | str) -> RunEvidence:
    """Read everything that is compared.

    Raises:
        ValueError: if the folder lacks a plan, or a step that every rank recorded.
    """
    read_plan(run_dir)  # raises if there is none
    config = json.loads(Path(run_dir, "config.json").read_text(encoding="utf-8"))
    try:
        lineage = surviving_lineage(*read_evidence(run_dir))
    except ValueError as error:
        raise ValueError(f"{run_dir}: {error}") from None
    logged, changes, device = dict[int, dict[str, Any]](), list[Change](), "unknown"
    log = Path(run_dir, "logs", "rank-0.jsonl")
    for record in read_jsonl(log) if log.exists() else ():
        match record:
            case {"event": "train_progress", "step": int(step), "attempt": int(attempt)}:
                if step in lineage.steps and lineage.steps[step][0].attempt == attempt:
                    logged[step] = record
            case {
                "event": "config_changed",
                "step": int(step),
                "attempt": int(attempt),
                "changes": dict(names),
            }:
                changes.append(Change(attempt, step, names))
            case {"event": "run_start", "device": str(name)}:
                device = name
    folders = {f.name[5:]: f for f in Path(run_dir, "checkpoints").glob("step-*")}
    checkpoints = {int(step): f for step, f in folders.items() if step.isdecimal()}
    return RunEvidence(config, lineage.steps, lineage.end, logged, changes, device, checkpoints)


def compare_plans(first: RunEvidence, second: RunEvidence) -> tuple[list[str], bool]:
    """What differs between the plans, and whether the runs' identities differ."""
    found, is_other_run = [], False
    for part in ("identity", "config", "versions"):
        ours, theirs = (x.config.get(part, {}) for x in (first, second))
        names = [name for name in ours | theirs if ours.get(name) != theirs.get(name)]
        for name in names:
            if name not in OF_THE_FOLDER:
                found.append(f"{part} {name}: {ours.get(name)} | {theirs.get(name)}")
                is_other_run |= part == "identity"
    for which, run in (("first", first), ("second", second)):
        for change in run.changes:
            texts = [f"{k} {old} -> {new}" for k, (old, new) in sorted(change.names.items())]
            found.append(f"{which} run, changed after step {change.step}: {', '.join(texts)}")
    return found, is_other_run


def cuts_by_attempt(run: RunEvidence) -> dict[int, dict[str, Any]]:
    """The CUTS settings of each attempt.

    config.json has those of the last attempt; each config_changed event has the ones before it.
    """
    settings = run.config.get("config", {})
    now = {name: settings.get(name) for name in CUTS}
    attempts = {lines[0].attempt for lines in run.lineage.values()}
    cuts = {}
    for attempt in sorted(attempts | {change.attempt for change in run.changes}, reverse=True):
        cuts[attempt] = dict(now)
        for change in run.changes:
            if change.attempt == attempt:
                now |= {name: old for name, (old, _) in change.names.items() if name in CUTS}
    return cuts


def cut_of_each_step(run: RunEvidence) -> dict[int, tuple[int, dict[str, Any]]]:
    """How each step of the lineage was split: its world size, and its attempt's CUTS."""
    cuts = cuts_by_attempt(run)
    return {
        step: (world_size_of(lines), cuts[lines[0].attempt])
        for step, lines in run.lineage.items()
    }


def find_exact_steps(first: RunEvidence, second: RunEvidence) -> int:
    """The last step through which the numbers must agree bit for bit."""
    if (first.config.get("versions"), first.device) != (
        second.config.get("versions"),
        second.device,
    ):
        return 0
    ours, theirs = cut_of_each_step(first), cut_of_each_step(second)
    step = 0
    while step + 1 in ours and ours[step + 1] == theirs.get(step + 1):
        step += 1
    return step


# %%
class Differences:
    """The first difference of each kind."""

    def __init__(self) -> None:
        self.found: dict[str, Difference] = {}

    def add(self, kind: str, step: int, what: str, first: object, second: object) -> None:
        """Record a difference if it is the first of its kind."""
        difference = Difference(step=step, what=what, first=f"{first}", second=f"{second}")
        self.found.setdefault(kind, difference)


def compare_step(found: Differences, step: int, first: Steps, second: Steps) -> None:
    """Compare which samples a step trained, and how they were split across ranks."""

    def ids(lines: list[LedgerLine]) -> Any:
        return np.sort(np.concatenate([np.empty(0, np.int64), *(x.samples for x in lines)]))

    ours, theirs = first.get(step, []), second.get(step, [])
    a, b = ids(ours), ids(theirs)
    if not np.array_equal(a, b):
        only = [name_few(np.setdiff1d(x, y).tolist()) for x, y in ((a, b), (b, a))]
        sizes = f"{len(a)} and {len(b)} samples; in one run only"
        found.add("samples", step, sizes, *only)
    elif world_size_of(ours) == world_size_of(theirs):
        for x, y in zip(ours, theirs, strict=False):
            if x.samples != y.samples:
                what = f"same samples, different split or order: rank {x.rank} has"
                few = (name_few(line.samples.tolist()) for line in (x, y))
                found.add("dealing", step, what, *few)
    if [x.is_skipped for x in ours[:1]] != [x.is_skipped for x in theirs[:1]]:
        fates = (
            "skipped" if any(x.is_skipped for x in lines) else "applied"
            for lines in (ours, theirs)
        )
        found.add("update", step, "optimizer update", *fates)


def is_same(first: Any, second: Any, *, exact: bool) -> bool:
    """Whether two values are equal, exactly or within the tolerance; NaN equals NaN."""
    if isinstance(first, float) and isinstance(second, float) and first != second:
        if math.isnan(first) or math.isnan(second):
            return math.isnan(first) and math.isnan(second)
        near = partial(math.isclose, rel_tol=CLOSE_RELATIVE, abs_tol=CLOSE_ABSOLUTE)
        return not exact and near(first, second)
    return type(first) is type(second) and bool(first == second)


# %%
def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The tensors and plain values in nested dicts and sequences, each with its path."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, f"{path} {name}")
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield from leaves(item, f"{path} {at}")
    else:
        yield path, value


def differing_value(first: Any, second: Any, *, exact: bool) -> tuple[str, Any, Any] | None:
    """Index and values of the first difference between two leaves; None if they are equal."""
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        return None if is_same(first, second, exact=exact) else ("", first, second)
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return "", (first.dtype, [*first.shape]), (second.dtype, [*second.shape])
    # NaN != NaN, but two NaNs in the same place are no difference between the runs.
    differs = (first != second) & ~((first != first) & (second != second))
    if not exact and first.is_floating_point():
        near = partial(torch.isclose, rtol=CLOSE_RELATIVE, atol=CLOSE_ABSOLUTE)
        differs = ~near(first, second, equal_nan=True)
    if not differs.any():
        return None
    place = tuple(differs.nonzero()[0].tolist())
    return f"{[*place] or ''}", first[place].item(), second[place].item()


def read_checkpoint(folder: Path, *, with_rng: bool) -> dict[str, Any]:
    """The tensors of a checkpoint: its state and, if asked for, each rank's RNG state."""
    files = {"state": folder / "state.pt"}
    if with_rng:
        files |= {path.stem: path for path in sorted(folder.glob("rng-rank-*.pt"))}
    read = {
        name: torch.load(path, map_location="cpu", weights_only=True)
        for name, path in files.items()
    }
    return dict(leaves(read.pop("state"), "")) | dict(leaves(read, ""))


def compare_checkpoint(
    found: Differences, step: int, first: Path, second: Path, *, exact: bool
) -> None:
    """Compare everything in two checkpoints of a step; RNG state only if ``exact``.

    Raises:
        Exception: whatever torch.load raises on a damaged file.
    """
    ours, theirs = (read_checkpoint(folder, with_rng=exact) for folder in (first, second))
    for path in ours | theirs:
        pair = ours.get(path, "absent"), theirs.get(path, "absent")
        if differs := differing_value(*pair, exact=exact):
            place, a, b = differs
            kind = path.split()[0].partition("-")[0]  # model, optimizer, rng, ...
            found.add(f"checkpoint {kind}", step, f"checkpoint,{path}{place}", a, b)


# %%
def compare_runs(first_dir: Path | str, second_dir: Path | str) -> Comparison:
    """Compare two runs as far as both go. Only reads files, and reports what it can't read."""
    runs = [f"{first_dir}", f"{second_dir}"]
    try:
        first, second = read_run(first_dir), read_run(second_dir)
    except ValueError as error:
        return Comparison(status="no_evidence", verdict=str(error), runs=runs)
    plan, is_other_run = compare_plans(first, second)
    steps, exact_steps = min(first.end, second.end), find_exact_steps(first, second)
    found, notes = Differences(), []
    for step in range(1, steps + 1):
        compare_step(found, step, first.lineage, second.lineage)
    logged = sorted(first.logged.keys() & second.logged.keys())
    for step in logged:
        for name in LOGGED:
            pair = first.logged[step].get(name), second.logged[step].get(name)
            if not is_same(*pair, exact=step <= exact_steps):
                found.add(name, step, name, *pair)
    checkpoints = []
    for step in sorted(first.checkpoints.keys() & second.checkpoints.keys()):
        folders = first.checkpoints[step], second.checkpoints[step]
        try:
            compare_checkpoint(found, step, *folders, exact=step <= exact_steps)
        except Exception as error:  # of any type: the file may contain anything
            text = f"{type(error).__name__}: {error}".partition("\n")[0]
            notes.append(f"checkpoint {step} could not be read, so it was not compared: {text}")
            continue
        checkpoints.append(step)
    if exact_steps < steps:
        text = f"from step {exact_steps + 1} on, the split, the device or the versions differ,"
        text += f" so numbers only need to agree within {CLOSE_RELATIVE:g} relative"
        notes.append(f"{text} or {CLOSE_ABSOLUTE:g} absolute")
    for name, compared in (("logged step", logged), ("checkpoint", checkpoints)):
        if not compared:
            notes.append(f"no {name} in common")
    if first.end != second.end:
        notes.append(f"the first run ends at step {first.end}, the second at {second.end}")
    differences = sorted(found.found.values(), key=lambda difference: difference.step)
    has_numbers, ends = bool(logged or checkpoints), [first.end, second.end]
    status, verdict = judge(
        differences, ends, is_other_run=is_other_run, has_numbers=has_numbers
    )
    return Comparison(
        status=status,
        verdict=verdict,
        runs=runs,
        steps=steps,
        exact_steps=min(exact_steps, steps),
        logged_steps=len(logged),
        checkpoints=checkpoints,
        differences=differences,
        plan=plan,
        notes=notes,
    )


def judge(
    differences: list[Difference], ends: list[int], *, is_other_run: bool, has_numbers: bool
) -> tuple[Status, str]:
    """The status, and the verdict in one sentence.

    Args:
        has_numbers: whether anything besides the samples could be compared.
    """
    if differences:
        at, text = differences[0].step, f"{differences[0]}"
        verdict = f"equal through step {at - 1}; " if at > 1 else ""
        return "different", f"{verdict}first difference at step {at}: {text}"
    verdict = f"equal through step {min(ends)}"
    if is_other_run:
        return "different", f"{verdict}, but these are different runs: their identities differ"
    if not has_numbers:
        text = f"the runs trained the same samples through step {min(ends)}"
        return "no_evidence", f"{text}, but {NO_NUMBERS}"
    if len({*ends}) > 1:
        verdict += f", where the {'first' if ends[0] < ends[1] else 'second'} run ends"
    return "equal", verdict


def format_comparison(comparison: Comparison) -> str:
    """The comparison as text; pairs of values are shown as ``first | second``."""
    lines = []
    if comparison.steps:
        compared = ", ".join(map(str, comparison.checkpoints)) or "none"
        exact = f"bit for bit through step {comparison.exact_steps}"
        if not comparison.exact_steps:
            exact = "within the tolerance"
        table = {
            "first | second": " | ".join(comparison.runs),
            "steps in both": f"{comparison.steps}, compared {exact}",
            "logged by both": f"{comparison.logged_steps} steps",
            "checkpoints": f"compared: {compared}",
        }
        lines += [f"{name:18}{value}" for name, value in table.items()]
        lines += [f"plan              {text}" for text in comparison.plan]
        lines += [f"note              {text}" for text in comparison.notes]
        lines += [f"step {x.step:<13}{x}" for x in comparison.differences]
    return "\n".join([*lines, f"{comparison.status.replace('_', ' ')}: {comparison.verdict}"])
