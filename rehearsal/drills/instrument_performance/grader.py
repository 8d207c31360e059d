"""Delays in each phase, on one rank or the other: is each one in its phase, none missed?"""

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

from .plan import LATE, Call, Delays, Plan, plan_of
from .slow import BrokenShard, SlowLoop, batch_size

CODES = {
    "wrong-steps": "the loop takes the wrong number of steps, or saves at the wrong ones",
    "ranks-differ": "the ranks end with different weights",
    "different-training": "the ranks agree, but not on the weights after train_blind",
    "hides-an-error": "train returns although its batches raised an exception",
    "adds-collectives": "the instrumentation makes the ranks wait for each other",
    "no-lines": "a rank's file does not have one line per step",
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
UNITS = "at the unit of each clock reading, and at how you convert it to seconds"


def body(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Two calls; for each, how long every part took, and what the learner reported."""
    context.init_group()
    calls = []
    for number, call in enumerate(plan.calls):
        folder = context.folder / f"call-{number}"
        folder.mkdir(exist_ok=True)
        loop = SlowLoop(context.rank, plan, call, folder / f"rank-{context.rank}.jsonl")
        summary = loop.run(learner.train, save_every=call.save_every, folder=folder)
        weights = {"weights": weights_of(loop.model), "expected": expected(plan, call)}
        calls.append({"summary": summary, **weights, **loop.facts()})
    return calls, num_used_elements(), broken(plan, context, learner)


def broken(plan: Plan, context: RankContext, learner: SimpleNamespace) -> dict[str, Any]:
    """Whether a call raises what its batches raise, and how many lines there are then."""
    folder = context.folder / "broken"
    folder.mkdir(exist_ok=True)
    loop = SlowLoop(context.rank, plan, plan.broken, folder / f"rank-{context.rank}.jsonl")
    try:
        loop.run(learner.train, save_every=plan.broken.save_every, folder=folder)
    except BrokenShard:
        return {"raised": True, "lines": len(loop.facts()["lines"])}
    return {"raised": False, "lines": len(loop.facts()["lines"])}


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
    """The findings of one job."""
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
        if not report.answer[2]["raised"]:
            found = f"after {counted(plan.broken.num_steps, 'step')}, the batches raised an "
            found += f"exception on rank {report.rank}, and train returned"
            rule = "what stops train_blind stops train"
            yield Finding("hides-an-error", found, rule, "at what you catch around the fetch")
    yield from collectives(plan, reports)
    for number, planned in enumerate(plan.calls):
        calls = [report.answer[0][number] for report in reports]
        for rank, call in enumerate(calls):
            yield from written(call, rank, number)
        yield from placed(calls, planned.delays)
        yield from waited(calls, plan.late_rank)
        for rank, call in enumerate(calls):
            yield from late_lines(call, rank, number)
            yield from added_up(call, rank)
            yield from summarized(call, rank, number)


def written(call: Mapping[str, Any], rank: int, number: int) -> Iterator[Finding]:
    """One line per step in the rank's own file."""
    lines, steps = call["lines"], len(call["steps"])
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
        found = f"after {counted(steps, 'step')} of call {number + 1}, rank-{rank}.jsonl has "
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
        found = (
            f"rank {rank}, call {number + 1}: when {counted(done, 'step')} were done and the "
        )
        found += f"next batch was fetched, the file had {counted(lines, 'line')}"
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


def placed(calls: Sequence[Mapping[str, Any]], delays: Delays) -> Iterator[Finding]:
    """Each delay is in its phase, in the line of its rank and step."""
    # On any machine, a clock read outside a part shows at least as much as one inside.
    for name, rank, step in sorted(delays, key=lambda d: (PHASES.index(d[0]), d)):
        inside = calls[rank]["steps"][step - 1]
        line = calls[rank]["lines"][step - 1]["phases_s"]
        if line[name] < inside.get(name, 0.0) - 0.001:
            took = {**inside, "grad_sync": sync_s(inside)}
            surplus = {n: line[n] - took.get(n, 0.0) for n in PHASES if n != name}
            most = max(surplus, key=lambda n: surplus[n])
            found = f"step {step} on rank {rank} spent {inside[name] * 1000:.1f} ms in {name}. "
            found += f"Its line has {line[name] * 1000:.1f} ms there"
            if surplus[most] > (inside[name] - line[name]) / 2:
                found += f", and {surplus[most] * 1000:.1f} ms too much in {most}"
            yield Finding(
                "misses-" + name.replace("_", "-"),
                found,
                "a phase is all the wall-clock time spent in it, on the rank that spends it",
                "at where the phase starts and ends, and at which clock you read",
            )
            return


def sync_s(step: Mapping[str, float]) -> float:
    """The time from the last gradient of a step to its update."""
    if not {"optimizer", "optimizer_end", "backward_end"} <= step.keys():
        return 0.0
    return step["optimizer_end"] - step["optimizer"] - step["backward_end"]


def waited(calls: Sequence[Mapping[str, Any]], late_rank: int) -> Iterator[Finding]:
    """While a rank is late, the other one waits in the collective."""
    waiting = 1 - late_rank
    late = []
    for step in range(len(calls[0]["steps"])):
        ours, theirs = calls[waiting]["steps"][step], calls[late_rank]["steps"][step]
        if theirs.get("forward", 0.0) > LATE:
            sync = calls[waiting]["lines"][step]["phases_s"]["grad_sync"]
            late.append((theirs["forward_end"] - ours["backward_end"], sync, step + 1))
    late = sorted((wait, sync, step) for wait, sync, step in late if wait > LATE / 2)
    if late and all(sync < wait / 2 for wait, sync, _ in late):
        wait, sync, step = late[-1]
        yield Finding(
            "misses-grad-sync",
            f"in step {step} rank {late_rank} was late and rank {waiting} waited "
            f"{wait * 1000:.0f} ms for it; rank {waiting}'s line has {sync * 1000:.1f} ms in "
            "grad_sync",
            "a step is as slow as its slowest rank; the other ranks wait in the collective",
            "at which call a rank is in while it waits for the others",
        )


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
        if abs(total - wall) > 0.01 * wall + 0.0002:
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
    # Without a tenth of the steps: a busy machine may interrupt a rank anywhere.
    others = sorted(line["phases_s"]["other"] for line in call["lines"])
    other = sum(others[: len(others) - len(others) // 10])
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
    look = "at which steps it covers, and at how you compute it"
    for name, row in rows.items():
        for key, share in (("p50", 0.5), ("p95", 0.95)):
            reported = reported_s(call["summary"], name, f"{key}_s")
            if reported is None:
                found = f"rank {rank}, call {number + 1}: what train returned has no number "
                found += f"{key}_s for {name}"
                rule = "train returns the p50 and p95 of each phase and of the wall time"
                yield Finding("no-summary", found, rule, "at what train returns")
                return
            # From the first to the last of what the usual definitions of a percentile take.
            low = row[int(share * (len(row) - 1))]
            high = row[min(math.ceil(share * (len(row) + 1)) - 1, len(row) - 1)]
            if len(row) < 20:  # one of them extrapolates beyond the largest value
                high += 2 * (high - low)
            if not low - 1e-4 <= reported <= high + 1e-4:
                found = f"rank {rank}, call {number + 1}: the {key} of {name} is reported as "
                found += f"{reported * 1000:.2f} ms; over the call's {len(row)} lines it is "
                first, last = f"{low * 1000:.2f}", f"{high * 1000:.2f}"
                found += (f"{first} to {last}" if first != last else first) + " ms"
                rule = f"{share:.0%} of a call's steps take no longer than its {key}"
                yield Finding(f"not-the-{key}", found, rule, look)
                return
        where = f"rank {rank}, call {number + 1}: "
        most = reported_s(call["summary"], name, "max_s")
        if most is None:
            found = f"{where}what train returned has no number max_s for {name}"
            rule = "p50 and p95 miss a rare stall: only the max shows one slow save in 41 steps"
            yield Finding("no-max", found, rule, "at what train returns")
            return
        if not abs(most - row[-1]) <= 1e-4:
            found = f"{where}the max of {name} is reported as {most * 1000:.2f} ms; over the "
            found += f"call's {len(row)} lines it is {row[-1] * 1000:.2f} ms"
            rule = "max_s is the time of the slowest step of this call"
            yield Finding("not-the-max", found, rule, look)
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
