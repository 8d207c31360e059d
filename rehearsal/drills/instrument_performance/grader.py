"""Each part of each step takes a drawn time, on one rank or the other: is it in its phase?

The clock belongs to the check (``clock``), so a verdict doesn't depend on the machine's load.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.findings import only_first, some
from rehearsal.kit.judge.weights import ranks_differ, weights_differ
from rehearsal.kit.observe.samples import OddNet, marked_samples, weights_of

from .clock import Clock
from .plan import AGES, Call, Plan, plan_of
from .slow import BrokenShard, SlowLoop, batch_size

CODES = {
    "wrong-steps": "the loop takes the wrong number of steps, or saves at the wrong ones",
    "ranks-differ": "the ranks end with different weights",
    "different-training": "the ranks agree, but not on the weights after train_blind",
    "hides-an-error": "train returns although its batches raised an exception",
    "adds-collectives": "the instrumentation makes the ranks wait for each other",
    "no-lines": "a rank's file does not have one line per step",
    "lines-lost": "a call removes the lines of an earlier one",
    "lines-late": "lines are not in the file while the run is still training",
    "misses-data-wait": "time spent waiting for a batch is not in its phase",
    "misses-forward": "time spent in the forward pass is not in its phase",
    "misses-backward": "time spent in the backward pass is not in its phase",
    "misses-optimizer": "time spent in the optimizer is not in its phase",
    "misses-checkpoint": "time spent saving is not in its phase",
    "misses-grad-sync": "time spent waiting for a slower rank is not in its phase",
    "phases-off-wall": "a line's phases do not add up to its wall time",
    "wall-unseen": "the lines' wall times do not add up to the call's",
    "unexplained": "more than 30% of the time is in other",
    "no-summary": "train does not return p50 and p95 of each phase and of the wall time",
    "not-the-p50": "a p50 is not the median over the call's lines",
    "not-the-p95": "a p95 is not the 95th percentile over the call's lines",
    "no-max": "train does not return the max of each phase and of the wall time",
    "not-the-max": "a max is not that of the call's slowest step",
}
PHASES = ["data_wait", "forward", "backward", "grad_sync", "optimizer", "checkpoint", "other"]
ROUNDING = 0.0005  # seconds
EXACT = 0.0001  # seconds: rounded numbers are welcome
UNITS = "at the unit of each clock reading, and at how you convert it to seconds"


def body(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Two calls with one folder; how long every part took, and what the learner reported."""
    context.init_group()
    clock = Clock(context, start_s=1000 + plan.seed)
    raised = broken(plan, clock, context, learner)
    calls = []
    folder = context.folder / "logs"
    folder.mkdir(exist_ok=True)
    log = folder / f"rank-{context.rank}.jsonl"
    for call in plan.calls:
        loop = SlowLoop(clock, context.rank, plan, call, log)
        summary = loop.run(learner.train, save_every=call.save_every, folder=folder)
        weights = {"weights": weights_of(loop.model), "expected": expected(plan, call)}
        facts = {**loop.facts(), "is_drawn": clock.is_drawn}
        calls.append({"summary": summary, **weights, **facts})
    return calls, num_used_elements(), raised


def broken(plan: Plan, clock: Clock, context: RankContext, learner: SimpleNamespace) -> bool:
    """Whether a call raises what its batches raise. It also shows which clock is read.

    On the drawn clock, a step of this call takes ages. Who reports less reads the machine's.
    """
    folder = context.folder / "broken"
    folder.mkdir(exist_ok=True)
    log = folder / f"rank-{context.rank}.jsonl"
    loop = SlowLoop(clock, context.rank, plan, plan.broken, log)
    try:
        loop.run(learner.train, save_every=plan.broken.save_every, folder=folder)
        raised = False
    except BrokenShard:
        raised = True
    walls = [line["wall_s"] for line in loop.facts()["lines"] if not lacks(line)]
    clock.is_drawn = clock.syncs > 0 and (not walls or sum(walls) > AGES / 2)
    return raised


def num_used_elements() -> int:
    """Elements of the gradients of one step: one parameter has none."""
    return sum(p.numel() for name, p in OddNet().named_parameters() if name != "unused")


def expected(plan: Plan, call: Call) -> list[dict[str, str]]:
    """The weights at each save of train_blind, and at its end, in one process."""
    import torch

    model = OddNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=plan.lr)
    weights = []
    data = [marked_samples(12, seed=plan.seed + rank) for rank in (0, 1)]
    for step in range(1, call.num_steps + 1):
        optimizer.zero_grad()
        for rank, (inputs, targets) in enumerate(data):
            size = batch_size(rank, step)
            loss = (model(inputs[:size]) - targets[:size]).pow(2).mean()
            (loss / len(data)).backward()
        optimizer.step()
        if step in call.saves:
            weights.append(weights_of(model))
    return [*weights, weights_of(model)]


# ---------------------------------------------------------------- in the kernel


def findings(plan: Plan, reports: Sequence[RankReport], _: object) -> Iterator[Finding]:
    """The findings of one job. Its first call is the one that has to raise."""
    for number, planned in enumerate(plan.calls):
        num_steps, saves = planned.num_steps, planned.saves
        calls = [report.answer[0][number] for report in reports]
        for rank, call in enumerate(calls):
            if len(call["steps"]) != num_steps or call["saves"] != saves:
                found = f"rank {rank} took {counted(len(call['steps']), 'step')} and "
                found += f"called save(step) for {some(call['saves']) or 'no step'}; "
                found += f"train_blind takes {num_steps} steps and calls it for {some(saves)}"
                rule = "measuring a loop doesn't change what it does"
                yield Finding("wrong-steps", found, rule, "at the loop")
                return
        rule = "measuring a loop doesn't change what it does"
        yield from ranks_differ(
            [call["weights"] for call in calls], "at the gradients before the step", rule=rule
        )
        yield from different_training(calls, planned)
    for report in reports:
        if not report.answer[2]:
            found = f"after {counted(plan.broken.num_steps, 'step')} of call 1, the batches "
            found += f"raised an exception on rank {report.rank}, and train returned"
            rule = "what stops train_blind stops train"
            yield Finding("hides-an-error", found, rule, "at what you catch around the fetch")
    yield from collectives(plan, reports)
    for number in range(len(plan.calls)):
        calls = [report.answer[0][number] for report in reports]
        for rank, call in enumerate(calls):
            yield from written(call, rank, number + 2)
        yield from placed(calls)
        for rank, call in enumerate(calls):
            yield from late_lines(call, rank, number + 2)
            yield from added_up(call, rank)
            yield from summarized(call, rank, number + 2)


def written(call: Mapping[str, Any], rank: int, number: int) -> Iterator[Finding]:
    """One line per step in the rank's own file, after those of earlier calls."""
    lines, steps = call["lines"], len(call["steps"])
    if not call["keeps_earlier"]:
        found = f"before call {number}, rank-{rank}.jsonl had "
        found += f"{counted(call['earlier_lines'], 'line')} from call {number - 1}; after it, "
        found += "they were gone or changed"
        rule = "a rank appends its lines: after a restart, the log still shows what led to it"
        yield Finding("lines-lost", found, rule, "at how the file is opened, and by whom")
        return
    rule = "each rank writes one line per step, with all its phases in seconds"
    look = "at which ranks write, where, and when"
    for place, line in enumerate(lines, 1):
        if lacking := lacks(line):
            found = f"line {place} of rank-{rank}.jsonl has {lacking}: {str(line)[:120]}"
            yield Finding("no-lines", found, rule, "at what you write per step")
            return
    reported = [(line["rank"], line["step"]) for line in lines]
    wanted = [(rank, step) for step in range(1, steps + 1)]
    if reported != wanted:
        found = f"in {counted(steps, 'step')} of call {number}, rank-{rank}.jsonl got "
        found += f"{counted(len(lines), 'line')} of JSON"
        wrong = [n for n, (a, b) in enumerate(zip(reported, wanted, strict=False)) if a != b]
        if wrong:
            found += f"; line {wrong[0] + 1} is for rank {reported[wrong[0]][0]}, step "
            found += f"{reported[wrong[0]][1]}"
            if reported[wrong[0]][0] == rank:
                rule = "each rank writes one line per step; steps count from 1"
                look = "at how you count the steps, and at when you write a line"
        yield Finding("no-lines", found, rule, look)


def lacks(line: Any) -> str:
    """What a line of the file doesn't have; "" if it has everything."""
    if not isinstance(line, Mapping):
        return "no fields"
    if missing := [name for name in ("rank", "step", "wall_s", "phases_s") if name not in line]:
        return f"no {missing[0]}"
    phases = line["phases_s"]
    if not isinstance(phases, Mapping):
        return "a phases_s without names"
    if missing := [name for name in PHASES if name not in phases]:
        return f"no {missing[0]} in phases_s"
    if not isinstance(line["wall_s"], int | float):
        return "a wall_s that isn't a number"
    wrong = [name for name in PHASES if not isinstance(phases[name], int | float)]
    return f"a {wrong[0]} that isn't a number" if wrong else ""


def late_lines(call: Mapping[str, Any], rank: int, number: int) -> Iterator[Finding]:
    """Each line can be read before the next step starts."""
    for done, lines in call["late_lines"]:
        found = f"rank {rank}, call {number}: when {counted(done, 'step')} were done and the "
        found += f"next batch was fetched, the file had {counted(lines, 'line')} of the call"
        rule = (
            "a line is in the file before the next step, so a killed rank has already reported"
        )
        yield Finding(
            "lines-late", found, rule, "at what buffers a line on its way to the file"
        )


def different_training(calls: Sequence[Mapping[str, Any]], planned: Call) -> Iterator[Finding]:
    """A finding if a rank has other weights than train_blind, at a save or at the end."""
    rule = "measuring a loop doesn't change what it does"
    for rank, call in enumerate(calls):
        places = [f"when rank {rank} called save({step}), its" for step in planned.saves]
        places.append(f"after {planned.num_steps} steps, rank {rank}'s")
        weights = [*call["saved"], call["weights"]]
        looks = ["at when the step is saved, and at the gradients"] * len(planned.saves)
        looks.append("at the loss, and at the gradients before the step")
        for place, ours, theirs, look in zip(
            places, weights, call["expected"], looks, strict=True
        ):
            who = f"{place} weights differ from train_blind's"
            yield from weights_differ("different-training", who, ours, theirs, 1e-5, rule, look)


def collectives(plan: Plan, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if a rank issued more than the all-reduces of the gradients."""
    for report in reports:
        rule = "measuring a step must not make the ranks wait for each other"
        look = "at what you call around the phases"
        issued = Counter(entry["name"] for entry in report.collectives)
        others = [name for name in issued if "reduce" not in name or "scatter" in name]
        elements = sum(entry["elements"] for entry in report.collectives)
        calls = (*plan.calls, plan.broken)
        wanted = sum(call.num_steps for call in calls) * report.answer[1]
        if others:
            found = f"rank {report.rank} issued {counted(issued[others[0]], others[0])}; "
            found += "train_blind only has all-reduces"
            yield Finding("adds-collectives", found, rule, look)
        elif elements > wanted:
            found = f"rank {report.rank} reduced {elements} elements; the gradients of "
            found += f"train_blind's steps have {wanted}"
            yield Finding("adds-collectives", found, rule, look)


def placed(calls: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """All the time that a part of a step took is in its phase, in the line of that step."""
    for name in PHASES[:-1]:
        short = []
        for rank, call in enumerate(calls):
            # A clock read outside a part shows at least as much as one inside.
            slack = EXACT if call["is_drawn"] else 0.001
            for inside, line in zip(call["steps"], call["lines"], strict=True):
                if line["phases_s"][name] < inside.get(name, 0.0) - slack:
                    missing = inside[name] - line["phases_s"][name]
                    short.append((missing, -rank, -line["step"]))
        if short:
            missing, rank, step = max(short)
            yield misplaced(name, calls, -rank, -step)
            return


def misplaced(name: str, calls: Sequence[Mapping[str, Any]], rank: int, step: int) -> Finding:
    """A finding about the time of a phase that its line doesn't have."""
    inside = calls[rank]["steps"][step - 1]
    line = calls[rank]["lines"][step - 1]["phases_s"]
    surplus = {n: line[n] - inside.get(n, 0.0) for n in PHASES if n != name}
    most = max(surplus, key=lambda n: surplus[n])
    rule = "a phase is all the wall-clock time spent in it, on the rank that spends it"
    look = "at where the phase starts and ends, and at which clock you read"
    found = f"step {step} on rank {rank} spent {inside[name] * 1000:.1f} ms in {name}"
    if name == "grad_sync":
        found = f"in step {step} rank {rank} waited {inside[name] * 1000:.1f} ms in the "
        found += "gradients' collectives for the other rank"
        rule = "a step is as slow as its slowest rank; the other ranks wait in the collective"
        look = "at which call a rank is in while it waits for the others"
    found += f". Its line has {line[name] * 1000:.1f} ms in {name}"
    if surplus[most] > (inside[name] - line[name]) / 2:
        found += f", and {surplus[most] * 1000:.1f} ms too much in {most}"
    return Finding("misses-" + name.replace("_", "-"), found, rule, look)


def added_up(call: Mapping[str, Any], rank: int) -> Iterator[Finding]:
    """Phases add up to the wall time, wall times to the call."""
    look = "at the time between the end of one phase or step and the start of the next"
    for line in call["lines"]:
        total, wall = sum(line["phases_s"][name] for name in PHASES), line["wall_s"]
        least = min(PHASES, key=lambda name: line["phases_s"][name])
        least_s = line["phases_s"][least]
        where = f"step {line['step']} on rank {rank}: "
        rule = "the phases split a step's wall time: each millisecond is counted exactly once"
        if least_s < -0.0002:
            found = f"{where}its line has {least_s * 1000:.2f} ms in {least}"
            look = "at timers that overlap, and at which clock reading you subtract from which"
            yield Finding("phases-off-wall", found, rule, look)
            return
        if abs(total - wall) > 0.001 * wall + 0.0003:
            found = f"{where}the phases add up to {total * 1000:.2f} ms, and wall_s is "
            found += f"{wall * 1000:.2f} ms"
            look = UNITS if is_far(wall, total) else look
            yield Finding("phases-off-wall", found, rule, look)
            return
    # From the first batch that was asked for to the end of the last part: both lie within the
    # steps, however loaded the machine is.
    first, last = call["steps"][0]["begin"], call["steps"][-1]
    span = max(at for name, at in last.items() if name.endswith("_end")) - first
    walls, run = sum(line["wall_s"] for line in call["lines"]), call["run_s"]
    if not span - ROUNDING - 0.001 * span <= walls <= run + ROUNDING + 0.001 * run:
        found = f"rank {rank}: the steps' wall times add up to {walls * 1000:.1f} ms. From the "
        found += "first batch that was asked for to the end of the last step it took "
        found += f"{span * 1000:.1f} ms, and the whole call {run * 1000:.1f} ms"
        rule = "a step's wall time ends where the next step's begins"
        look = UNITS if is_far(walls, run) else look
        yield Finding("wall-unseen", found, rule, look)
        return
    others = sorted(line["phases_s"]["other"] for line in call["lines"])
    if not call["is_drawn"]:  # a busy machine may interrupt a rank anywhere
        others = others[: len(others) - len(others) // 10]
    other = sum(others)
    if other > 0.3 * walls:
        found = f"rank {rank}: {other / walls:.0%} of the call's time is in other"
        rule = "at most 30% of the time is in other: you can't improve time without a name"
        yield Finding("unexplained", found, rule, look)


def is_far(ours: float, theirs: float) -> bool:
    """Whether two durations are so far apart that a unit is wrong."""
    return not 0.01 * theirs < ours < 100 * theirs


def reported_s(summary: Any, name: str, key: str) -> float | None:
    """A number of the summary; None if it is not there."""
    try:
        value = summary[name][key]
        return None if isinstance(value, str) else float(value)
    except (TypeError, KeyError, IndexError, ValueError):
        return None


def summarized(call: Mapping[str, Any], rank: int, number: int) -> Iterator[Finding]:
    """The percentiles and the max, against the lines of the same call."""
    rows = {name: sorted(line["phases_s"][name] for line in call["lines"]) for name in PHASES}
    rows["wall"] = sorted(line["wall_s"] for line in call["lines"])
    where = f"rank {rank}, call {number}: "
    for key in ("p50", "p95", "max"):
        for name in rows:
            if reported_s(call["summary"], name, f"{key}_s") is None:
                found = f"{where}what train returned has no number {key}_s for {name}"
                rule = "train returns the p50 and p95 of each phase and of the wall time"
                if key == "max":
                    rule = "p50 and p95 miss a rare stall: only the max shows one slow save in "
                    rule += f"{len(call['lines'])} steps"
                code = "no-max" if key == "max" else "no-summary"
                yield Finding(code, found, rule, "at what train returns")
                return
    # The max first: it shows steps of other calls, and the percentiles then follow.
    for key, share in (("max", 1.0), ("p50", 0.5), ("p95", 0.95)):
        for name, row in rows.items():
            reported = reported_s(call["summary"], name, f"{key}_s") or 0.0
            # From the first to the last of what the usual definitions of a percentile take.
            low = row[int(share * (len(row) - 1))]
            high = row[min(math.ceil(share * (len(row) + 1)) - 1, len(row) - 1)]
            if len(row) < 20:  # one of them extrapolates beyond the largest value
                high += 2 * (high - low)
            if not low - EXACT <= reported <= high + EXACT:
                found = f"{where}the {key} of {name} is reported as {reported * 1000:.2f} ms; "
                found += f"over the call's {len(row)} lines it is "
                first, last = f"{low * 1000:.2f}", f"{high * 1000:.2f}"
                found += (f"{first} to {last}" if first != last else first) + " ms"
                rule = f"{share:.0%} of a call's steps take no longer than its {key}"
                if key == "max":
                    rule = "max_s is the time of the slowest step of this call"
                look = "at which steps it covers, and at how you compute it"
                yield Finding(f"not-the-{key}", found, rule, look)
                return


def scenarios(seed: int) -> list[Scenario]:
    """One job with two calls."""
    plan = plan_of(seed)
    judge = only_first(partial(findings, plan))
    return [
        Scenario(
            name="delays", body=partial(body, plan), judge=judge, world_size=2, deadline_s=6
        )
    ]
