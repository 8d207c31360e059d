"""The last stages' judges: what was trained, what the ledger says, what a kill cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rehearsal.engine.reports import RankReport, killed
from rehearsal.grading.verdict import Finding, counted, is_echo
from rehearsal.kit.judge.findings import some

from .draws import SmallRun, plan_of_answer
from .findings import TABLE, Earlier

FIELDS = ("time", "attempt", "epoch", "step", "rank", "world_size", "samples", "phases")
ANY_NUMBER = "the next start may have a different number of ranks"
UNCOUNTED = " (not counting JSON lines without samples)"


# ---------------------------------------------------------------- what a start did


def events_of(report: RankReport) -> list[Mapping[str, Any]]:
    """A rank's events while run was running."""
    kinds = [event["kind"] for event in report.events]
    first = kinds.index("begins") if "begins" in kinds else len(kinds)
    last = kinds.index("ends") if "ends" in kinds else len(kinds)
    return list(report.events[first:last])


def trained(report: RankReport) -> list[list[int]]:
    """The samples of each optimizer step that a rank completed."""
    steps: list[list[int]] = []
    samples: list[int] = []
    for event in events_of(report):
        if event["kind"] == "forward":
            samples += [sample for sample in event["samples"] if sample >= 0]
        elif event["kind"] == "optimizer_step":
            steps.append(samples)
            samples = []
    return steps


def together(reports: Sequence[RankReport]) -> list[list[int]]:
    """The samples of each step over all ranks, sorted."""
    by_rank = [trained(report) for report in reports]
    steps: list[list[int]] = [[] for _ in range(max(map(len, by_rank)))]
    for of_rank in by_rank:
        for step, samples in zip(steps, of_rank, strict=False):
            step += samples
    return [sorted(step) for step in steps]


def planned(earlier: Earlier) -> list[list[int]]:
    """The samples of each step, as the learner's own sampler deals them to one rank."""
    return [sorted(samples) for _, samples, _ in earlier["data"][0].answer["alone"]]


def updates(report: RankReport) -> list[Mapping[str, Any]]:
    """What each optimizer step applied."""
    return [event for event in events_of(report) if event["kind"] == "update"]


# ---------------------------------------------------------------- one start


def trained_findings(
    reports: Sequence[RankReport], plan: Sequence[Sequence[int]], at: int, said: str
) -> Iterator[Finding]:
    """Whether a start trained the plan from step ``at`` on, and nothing else."""
    steps = together(reports)
    for number, (ours, wanted) in enumerate(zip(steps, plan[at:], strict=False), at + 1):
        if ours != list(wanted):
            what = f"samples {some(ours, 9)}" if ours else "no sample that the check recognizes"
            found = f"{said}, step {number} trained {what}; the sampler deals it samples "
            yield TABLE("off-plan", f"{found}{some(wanted, 9)}")
            return
    counts = [len(trained(report)) for report in reports]
    if set(counts) != {len(plan) - at}:
        who = "the ranks" if len(counts) > 1 else "run"
        found = f"{said}, {who} took {some(counts)} optimizer steps, not {len(plan) - at}"
        yield TABLE("off-plan", found)


def result_findings(reports: Sequence[RankReport], step: int, said: str) -> Iterator[Finding]:
    """What run returned, against what was observed; whether the ranks agree."""
    for report in reports:
        result, true = report.answer["result"], report.answer["true"]
        if "nothing" in result:
            found = f"{said}, run returned {result['nothing'][:60]} on rank {report.rank}; it "
            yield TABLE("wrong-result", f"{found}should return a dict")
            return
        wanted = {"status": "done", "step": step, "weights_sha256": true}
        wrong = [name for name in wanted if result.get(name) != wanted[name]]
        if wrong:
            name = wrong[0]
            found = f"{said}, rank {report.rank} returned {name}={shown(result.get(name))}; "
            yield TABLE("wrong-result", f"{found}it should be {shown(wanted[name])}")
            return
    if len({report.answer["true"] for report in reports}) > 1:
        yield TABLE("ranks-differ", f"{said}, the ranks ended with different weights")


def shown(value: object) -> str:
    """A value as Python writes it; the beginning, if it is long."""
    is_long = isinstance(value, str) and len(value) > 20
    return f"'{value[:20]}...'" if is_long else repr(value)[:60]  # type: ignore[index]


def lines_by_rank(lines: Sequence[Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The ledger's lines by file."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for file, fields in lines:
        found.setdefault(file, []).append(fields)
    return found


def wrong_type(line: Mapping[str, Any]) -> str:
    """The first field of a complete line that can't be read, with what it should be; or ""."""
    for name in ("attempt", "epoch", "step", "rank", "world_size"):
        if not isinstance(line[name], int):
            return f"{name}={line[name]!r}"[:60] + ", which isn't an integer"
    if not isinstance(line["time"], int | float):
        return f"time={line['time']!r}"[:60] + ", which isn't a number"
    samples, phases = line["samples"], line["phases"]
    if not isinstance(samples, list) or not all(isinstance(s, int) for s in samples):
        return f"samples={samples!r}"[:60] + ", which isn't a list of integers"
    if not isinstance(phases, Mapping) or not all(
        isinstance(seconds, int | float) for seconds in phases.values()
    ):
        return f"phases={phases!r}"[:60] + ", which isn't seconds by phase"
    return ""


def ledger_findings(
    reports: Sequence[RankReport], plan: SmallRun, said: str, per_epoch: int
) -> Iterator[Finding]:
    """Whether the ledger has what was trained, line by line."""
    lines = lines_by_rank(reports[0].answer["lines"])
    for report in reports:
        file = f"rank-{report.rank}.jsonl"
        own, steps = lines.get(file, []), trained(report)
        if len(own) != len(steps):
            found = (
                f"{said}, rank {report.rank} took {counted(len(steps), 'step')}, and {file} "
            )
            yield TABLE("ledger-wrong", f"{found}has {counted(len(own), 'line')}{UNCOUNTED}")
            return
        for number, (line, samples) in enumerate(zip(own, steps, strict=True), 1):
            missing = [n for n in FIELDS if not isinstance(line, Mapping) or n not in line]
            if missing:
                found = f"{said}, line {number} of {file}{UNCOUNTED} has no {some(missing)}"
                yield TABLE("ledger-wrong", found)
                return
            if has := wrong_type(line):
                found = f"{said}, line {number} of {file}{UNCOUNTED} has {has}"
                yield TABLE("ledger-wrong", found)
                return
            wanted = {
                "attempt": 0,
                "epoch": (number - 1) // per_epoch,
                "step": number,
                "rank": report.rank,
                "world_size": len(reports),
                "samples": sorted(samples),
            }
            line = {**line, "samples": sorted(line["samples"])}
            wrong = [name for name in wanted if line[name] != wanted[name]]
            if wrong:
                name = wrong[0]
                found = f"{said}, line {number} of {file}{UNCOUNTED} has "
                found += f"{name}={str(line[name])[:60]}; it should be {str(wanted[name])[:60]}"
                yield TABLE("ledger-wrong", found)
                return


def alone_judge(reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """One process, from start to end."""
    (report,), plan = reports, plan_of_answer(reports[0].answer)
    answer, said = report.answer, "on one rank"
    yield from trained_findings(reports, planned(earlier), 0, said)
    yield from result_findings(reports, plan.total, said)
    yield from ledger_findings(reports, plan, said, plan.steps_per_epoch)
    for number, (update, rate) in enumerate(
        zip(updates(report), answer["rates"], strict=False), 1
    ):
        if any(abs(used - rate) > 1e-6 * rate for used in update["rates"]):
            used = some([f"{value:.6g}" for value in update["rates"]])
            found = f"step {number} used the learning rate {used}; "
            found += f"learning_rate_at(cfg, {number}) gives {rate:.6g}"
            yield TABLE("rate-not-followed", found)
            return
    yield from save_findings(report, plan)
    yield from time_findings(answer["lines"])
    saved, digest = answer["saved"]
    if saved != plan.total or digest != answer["true"]:
        found = (
            f"the run ended with step {plan.total}; its newest checkpoint has step {saved} and "
        )
        found += ("the same" if digest == answer["true"] else "different") + " weights"
        if saved is None:
            found = f"the run ended with step {plan.total}; latest_checkpoint_path found no "
            found += "checkpoint in run_dir/checkpoints"
        yield TABLE("save-missing", found)
    kinds = [event["kind"] for event in report.events]
    extra = kinds[kinds.index("ends") :].count("update")
    if answer["changed"] or extra:
        found = f"started again, the finished run took {counted(extra, 'step')} and changed "
        yield TABLE("touches-finished-run", found + (some(answer["changed"]) or "no file"))
    differs = [
        n
        for n in ("status", "step", "weights_sha256")
        if answer["again"].get(n) != answer["result"].get(n)
    ]
    if differs:
        found = f"started again, the finished run returned a different {some(differs)}"
        yield TABLE("touches-finished-run", found)


def save_findings(report: RankReport, plan: SmallRun) -> Iterator[Finding]:
    """Whether a file in checkpoints/ changes after each step with a save due."""
    step, changed = 0, set()
    for event in events_of(report):
        step += event["kind"] == "optimizer_step"
        if event["kind"] == "file" and "/checkpoints/" in event["path"] and step:
            changed.add(step)
    missing = sorted({*plan.saves} - changed)
    if missing:
        found = (
            f"with checkpoint_every_steps={plan.every} and {plan.steps_per_epoch} steps per "
        )
        found += f"epoch, saves are due after steps {some(plan.saves, 9)}; missing: "
        yield TABLE("save-missing", found + some(missing, 9))


def time_findings(lines: Sequence[Any]) -> Iterator[Finding]:
    """Whether the phases of all lines but the first add up to the time between the lines."""
    fields = [line for _, line in lines]
    wall = fields[-1]["time"] - fields[0]["time"]
    phases = sum(sum(line["phases"].values()) for line in fields[1:])
    if not 0.85 * wall < phases < 1.15 * wall:
        found = (
            f"from the first ledger line to the last it took {wall:.3f} s, and the phases in "
        )
        look = "at when the phases go back to 0" if phases > wall else ""
        yield TABLE("time-unaccounted", f"{found}between add up to {phases:.3f} s", look)


# ---------------------------------------------------------------- several ranks


def together_judge(reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """The same steps as alone, with the same gradients."""
    plan, said = plan_of_answer(reports[0].answer), f"on {len(reports)} ranks"
    yield from trained_findings(reports, planned(earlier)[: plan.steps_per_epoch], 0, said)
    yield from result_findings(reports, plan.steps_per_epoch, said)
    yield from ledger_findings(reports, plan, said, plan.steps_per_epoch)
    alone = updates(earlier["launch"][0])
    for number, (ours, theirs) in enumerate(zip(updates(reports[0]), alone, strict=False), 1):
        apart = abs(ours["gradient"] - theirs["gradient"])
        if not apart <= 1e-3 * (1 + abs(theirs["gradient"])):  # so that NaN counts
            found = (
                f"without dropout, step {number} has a different gradient {said} than on one: "
            )
            yield TABLE(
                "different-training", f"{found}along one direction, they are {apart:.2g} apart"
            )
            return


def uninterrupted_judge(reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """All of the plan, with noise of its own on each rank and in each step."""
    plan, said = plan_of_answer(reports[0].answer), f"on {len(reports)} ranks"
    yield from trained_findings(reports, planned(earlier), 0, said)
    yield from result_findings(reports, plan.total, said)
    yield from ledger_findings(reports, plan, said, plan.steps_per_epoch)
    seen: dict[str, tuple[int, int]] = {}
    for report in reports:
        step = 0
        for event in events_of(report):
            step += event["kind"] == "optimizer_step"
            if event["kind"] != "forward":
                continue
            rank, other = seen.setdefault(event["rng"], (report.rank, step))
            if rank != report.rank:
                found = f"rank {rank} in step {other + 1} and rank {report.rank} in step "
                found += f"{step + 1} draw the same dropout"
                yield TABLE("noise-repeats", found)
                return
            if other != step:
                found = (
                    f"rank {rank} draws the same dropout in steps {other + 1} and {step + 1}"
                )
                yield TABLE("noise-repeats", found)
                return


# ---------------------------------------------------------------- killed


def killed_judge(reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """A rank died in a save, having trained what the uninterrupted run trains."""
    whole = earlier["two ranks, with dropout"]
    for report, other in zip(reports, whole, strict=True):
        for number, (ours, theirs) in enumerate(
            zip(updates(report), updates(other), strict=False), 1
        ):
            if ours["gradient"] != theirs["gradient"]:
                found = f"two fresh starts apply different gradients on rank {report.rank} in "
                yield TABLE("not-repeatable", f"{found}step {number}")
                return
    if all(report.has_answer for report in reports):
        found = "the check waited to kill a rank at a file operation in a save, and none came"
        yield TABLE("save-missing", found)


def kill_of(earlier: Earlier) -> tuple[int, int, str]:
    """The last save that was complete, the last step that was done, and a clause about it."""
    reports = earlier["kill during a save"]
    done = max(len(trained(report)) for report in reports)
    plan = plan_of_answer(earlier["data"][0].answer)
    saved = max(step for step in plan.saves if step < done)
    (rank,) = [report.rank for report in reports if killed(report)][:1]
    where = [event for event in reports[rank].events if event["kind"] == "file"][-1]
    return (
        saved,
        done,
        (
            f"rank {rank} was killed before the {where['op']} of "
            f"{where['path'].rpartition('/')[2]} after step {done}"
        ),
    )


def resumed_findings(reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """Whether a start resumed where the kill left off, and trained the rest."""
    plan, (saved, done, kill) = planned(earlier), kill_of(earlier)
    steps, size = together(reports), counted_ranks(reports)
    failed = [report for report in reports if report.failure and not is_echo(report)]
    if failed and failed[0].failure:
        failure = failed[0].failure
        found = f"{kill}; the next start, on {size}, raised {failure.kind}: "
        look = f"at {failure.where}, and at what the kill left" if failure.where else ""
        finding = TABLE("cannot-resume", found + failure.message.strip()[:160], look)
        if len(reports) != len(earlier["kill during a save"]):  # where as many ranks could
            look = f"at {failure.where or 'the restore'}, and at what depends on the number of "
            finding = finding._replace(rule=ANY_NUMBER, look=f"{look}ranks")
        yield finding
        return
    if not all(report.has_answer for report in reports):
        return
    at = next((n for n, step in enumerate(plan) if steps and steps[0] == list(step)), None)
    if at is None:
        found = f"{kill}; the next start, on {size}, "
        found += (
            f"began with samples {some(steps[0], 9)}, a set that no step has"
            if steps
            else "took no step"
        )
        yield TABLE("resumes-elsewhere", found)
    elif at == 0:
        found = f"{kill}; step {saved} should have been saved by then. The next start, on "
        yield TABLE("began-from-zero", f"{found}{size}, began with step 1")
    elif not saved <= at <= done:
        found = f"{kill}; step {saved} should have been saved by then. The next start, on "
        yield TABLE(
            "resumes-elsewhere", f"{found}{size}, began with the samples of step {at + 1}"
        )
    else:
        said = f"resumed after step {at} on {size}"
        yield from trained_findings(reports, plan, at, said)
        yield from result_findings(reports, len(plan), said)


def counted_ranks(reports: Sequence[RankReport]) -> str:
    """How many ranks, in words."""
    return f"{len(reports)} ranks"


def resumed_judge(reports: Sequence[RankReport], earlier: Earlier) -> Iterator[Finding]:
    """It ends with the uninterrupted run's weights."""
    yield from resumed_findings(reports, earlier)
    if not all(report.has_answer for report in reports):
        return
    whole = earlier["two ranks, with dropout"]
    if reports[0].answer["true"] != whole[0].answer["true"]:
        found = (
            f"{kill_of(earlier)[2]}; resumed on {counted_ranks(reports)}, the run ended with "
        )
        yield TABLE("different-outcome", f"{found}different weights than without the kill")
