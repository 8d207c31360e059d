"""Delays in each phase, on one rank or the other: each where it was, and nothing unseen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.findings import only_first
from rehearsal.kit.judge.weights import ranks_differ
from rehearsal.kit.observe.samples import weights_of
from .slow import SlowLoop
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding

CODES = {
    "other-steps": "the loop takes another number of optimizer steps, or saves at other steps",
    "ranks-differ": "the ranks end with different weights",
    "adds-collectives": "measuring makes the ranks wait for each other",
    "no-lines": "a rank's file does not have one line per step",
    "lines-late": "lines are not in the file while the run goes on",
    "misses-data-wait": "time spent waiting for a batch is not in its phase",
    "misses-forward": "time spent in the forward pass is not in its phase",
    "misses-backward": "time spent in the backward pass is not in its phase",
    "misses-optimizer": "time spent in the optimizer is not in its phase",
    "misses-checkpoint": "time spent saving is not in its phase",
    "misses-grad-sync": "time spent waiting for a slower rank is not in its phase",
    "phases-off-wall": "a line's phases do not add up to its wall time",
    "wall-unseen": "the lines' wall times do not add up to the run's",
    "unexplained": "too much of the time has no phase",
    "no-summary": "train does not return p50 and p95 of each phase and of the wall time",
    "not-the-p50": "the median is not that of the call's lines",
    "not-the-p95": "the 95th percentile is not that of the call's lines",
    "no-max": "train does not return the max of each phase and of the wall time",
    "not-the-max": "the max is not that of the call's slowest step",
}
PHASES = ["data_wait", "forward", "backward", "grad_sync", "optimizer", "checkpoint", "other"]
# Of each call: steps, save_every, and seconds by (phase, rank, step).
LATE = 0.02
CALLS: list[tuple[int, int, dict[tuple[str, int, int], float]]] = [
    (
        41,
        10,
        {
            ("data_wait", 0, 5): 0.008,
            ("data_wait", 1, 6): 0.008,
            ("backward", 0, 13): 0.008,
            ("optimizer", 1, 21): 0.008,
            ("checkpoint", 0, 20): 0.008,
            ("checkpoint", 1, 30): 0.008,
            ("forward", 0, 33): 0.008,
            **{("forward", 1, step): LATE for step in (9, 17, 25)},
        },
    ),
    (7, 3, {("data_wait", rank, step): 0.003 for rank in (0, 1) for step in range(1, 8)}),
]


def body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Two calls; of each, what took how long as seen from inside, and what the learner told."""
    context.init_group()
    calls = []
    for number, (num_steps, save_every, delays) in enumerate(CALLS):
        folder = context.folder / f"call-{number}"
        folder.mkdir(exist_ok=True)
        loop = SlowLoop(context.rank, num_steps, delays, folder / f"rank-{context.rank}.jsonl")
        summary = loop.run(learner.train, save_every=save_every, folder=folder)
        calls.append({"summary": summary, "weights": weights_of(loop.model), **loop.facts()})
    return calls


# ---------------------------------------------------------------- in the kernel


def findings(reports: Sequence[RankReport], _: object) -> Iterator[Finding]:
    """The findings of one job."""
    for number, (num_steps, save_every, _) in enumerate(CALLS):
        saves = list(range(save_every, num_steps + 1, save_every))
        calls = [report.answer[number] for report in reports]
        for rank, call in enumerate(calls):
            if len(call["steps"]) != num_steps or call["saves"] != saves:
                found = f"rank {rank} took {len(call['steps'])} of {num_steps} steps and saved "
                found += f"after steps {call['saves']}; due after {saves}"
                rule = "a loop that is measured does what it did before"
                yield Finding("other-steps", found, rule, "at the loop")
                return
        yield from ranks_differ(
            [call["weights"] for call in calls],
            "at the gradients before the step",
            rule="a loop that is measured does what it did before",
        )
    barriers = [c["name"] for r in reports for c in r.collectives if "barrier" in c["name"]]
    if barriers:
        found = f"{len(barriers)} barriers; the loop had none"
        rule = "what measures a step must not make the ranks wait for each other"
        yield Finding("adds-collectives", found, rule, "at what is called around the phases")
    for number in range(len(CALLS)):
        calls = [report.answer[number] for report in reports]
        for rank, call in enumerate(calls):
            yield from written(call, rank, number)
        yield from placed(calls, number)
        yield from waited(calls)
        for rank, call in enumerate(calls):
            yield from late_lines(call, rank, number)
            yield from added_up(call, rank)
            yield from summarized(call, rank, number)


def written(call: Mapping[str, Any], rank: int, number: int) -> Iterator[Finding]:
    """One line per step in the rank's own file."""
    lines, steps = call["lines"], len(call["steps"])
    rule = "each rank tells each step, with all its phases in seconds"
    try:
        told = [(line["rank"], line["step"]) for line in lines]
        for line in lines:
            float(line["wall_s"]) + sum(float(line["phases_s"][name]) for name in PHASES)
    except (TypeError, KeyError, ValueError) as error:
        found = f"a line of rank-{rank}.jsonl: {type(error).__name__} {error}: {lines[0]}"
        yield Finding("no-lines", found, rule, "at what is written per step")
        return
    if told != [(rank, step) for step in range(1, steps + 1)]:
        found = (
            f"rank-{rank}.jsonl has {len(lines)} lines in call {number + 1} for {steps} steps"
        )
        found += f"; the first tells rank and step {told[0]}" if told else ""
        yield Finding("no-lines", found, rule, "at which ranks write, where, and when")


def late_lines(call: Mapping[str, Any], rank: int, number: int) -> Iterator[Finding]:
    """While the run goes on, its lines can be read."""
    before = len(call["steps"]) - 1
    if call["seen_lines"] < before - 2:
        found = f"rank {rank}, call {number + 1}: before its last step the file had "
        found += f"{call['seen_lines']} of {before} lines"
        rule = "a line is in the file before the next step: whoever is killed has told"
        yield Finding("lines-late", found, rule, "at what stands between write and the file")


def placed(calls: Sequence[Mapping[str, Any]], number: int) -> Iterator[Finding]:
    """Each delay is in the line of its rank and step, in its phase."""
    # Clocks that are read outside a part cannot tell less than those inside, on any machine.
    for name, rank, step in sorted(CALLS[number][2], key=lambda d: (PHASES.index(d[0]), d)):
        inside = calls[rank]["steps"][step - 1]
        told = calls[rank]["lines"][step - 1]["phases_s"]
        if told[name] < inside.get(name, 0.0) - 0.001:
            surplus = {n: told[n] - inside.get(n, 0.0) for n in PHASES if n != name}
            most = max(surplus, key=lambda n: surplus[n])
            yield Finding(
                "misses-" + name.replace("_", "-"),
                f"step {step} on rank {rank} spent {inside[name] * 1000:.1f} ms in {name}; its "
                f"line tells {told[name] * 1000:.1f} ms, and {told[most] * 1000:.1f} in {most}",
                "a phase is all the time that passes in it, on the rank where it passes",
                "at what begins and ends the phase, and by which clock",
            )
            return


def waited(calls: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """While rank 1 is late, rank 0 waits, in the collective."""
    late = []
    for step in range(len(calls[0]["steps"])):
        ours, theirs = calls[0]["steps"][step], calls[1]["steps"][step]
        if theirs.get("forward", 0.0) > LATE:
            told = calls[0]["lines"][step]["phases_s"]["grad_sync"]
            late.append((theirs["forward_end"] - ours["backward_end"], told, step + 1))
    late = sorted((wait, told, step) for wait, told, step in late if wait > LATE / 2)
    if late and all(told < wait / 2 for wait, told, _ in late):
        wait, told, step = late[-1]
        yield Finding(
            "misses-grad-sync",
            f"in step {step} rank 1 was late, and rank 0 waited {wait * 1000:.0f} ms for "
            f"it; rank 0's line tells {told * 1000:.1f} ms in grad_sync",
            "a step is as slow as its slowest rank; the others wait, in the collective",
            "at where a rank stands while it waits for the others",
        )


def added_up(call: Mapping[str, Any], rank: int) -> Iterator[Finding]:
    """Phases to walls, walls to the run."""
    look = "at the moments between the end of one phase, or step, and the beginning of the next"
    for line in call["lines"]:
        total, wall = sum(line["phases_s"][name] for name in PHASES), line["wall_s"]
        if abs(total - wall) > 0.01 * wall + 0.0002 or min(line["phases_s"].values()) < -0.0002:
            found = f"step {line['step']} on rank {rank}: the phases add up to "
            found += f"{total * 1000:.2f} ms, the wall time told is {wall * 1000:.2f} ms"
            rule = "phases share out the wall time of a step: no second twice, none unseen"
            yield Finding("phases-off-wall", found, rule, look)
            return
    walls, run = sum(line["wall_s"] for line in call["lines"]), call["run_s"]
    if not 0.8 * run < walls < 1.02 * run:
        found = f"rank {rank}: the steps' wall times add up to {walls * 1000:.0f} ms; the call "
        found += f"took {run * 1000:.0f} ms"
        yield Finding(
            "wall-unseen", found, "a step's wall time ends where the next begins", look
        )
        return
    other = sum(line["phases_s"]["other"] for line in call["lines"])
    if other > 0.3 * walls:
        found = f"rank {rank}: {other / walls:.0%} of the time is in other"
        yield Finding("unexplained", found, "time without a name cannot be improved", look)


def summarized(call: Mapping[str, Any], rank: int, number: int) -> Iterator[Finding]:
    """The percentiles and the max, against the lines of the same call."""
    rows = {name: sorted(line["phases_s"][name] for line in call["lines"]) for name in PHASES}
    rows["wall"] = sorted(line["wall_s"] for line in call["lines"])
    look = "at which steps go into it, and at how it is taken"
    for name, row in rows.items():
        for key, share in (("p50", 0.5), ("p95", 0.95)):
            try:
                told = float(call["summary"][name][f"{key}_s"])
            except (TypeError, KeyError, ValueError):
                found = (
                    f"rank {rank}, call {number + 1}: no {key}_s of {name} in what is returned"
                )
                rule = "p50 is a usual step, p95 a bad one; both, of each phase and of the wall"
                yield Finding("no-summary", found, rule, "at what train returns")
                return
            place = int(share * (len(row) - 1))
            low, high = row[place], row[min(place + 1, len(row) - 1)]
            # With few steps, definitions of a percentile differ by more than their neighbours.
            high += 0.0 if len(row) > 20 else 2 * (high - low)
            if not low - 1e-4 <= told <= high + 1e-4:
                found = f"rank {rank}, call {number + 1}: {key} of {name} is told as "
                found += f"{told * 1000:.2f} ms; its {len(row)} lines have it at "
                found += f"{low * 1000:.2f} to {high * 1000:.2f} ms"
                rule = f"{share:.0%} of a call's steps take no longer than its {key}"
                yield Finding(f"not-the-{key}", found, rule, look)
                return
        where = f"rank {rank}, call {number + 1}: "
        told_max = call["summary"][name].get("max_s")
        if not isinstance(told_max, int | float):
            found = f"{where}{name} has no max_s in what train returned"
            rule = "p50 and p95 miss a rare stall: only the max shows one slow save in 41 steps"
            yield Finding("no-max", found, rule, "at what train returns")
            return
        if not abs(told_max - row[-1]) <= 1e-4:
            found = f"{where}max_s of {name} is {told_max * 1000:.2f} ms; the slowest of this "
            found += f"call's {len(row)} steps took {row[-1] * 1000:.2f} ms"
            rule = "max_s is the time of the slowest step of this call"
            yield Finding("not-the-max", found, rule, look)
            return


SCENARIOS = [
    Scenario(name="delays", body=body, judge=only_first(findings), world_size=2, deadline_s=6)
]
