"""The last stages' judges: what was trained, what the ledger says, what a kill cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rehearsal.engine.reports import RankReport, killed
from rehearsal.grading.verdict import Finding, counted, is_echo
from rehearsal.kit.judge.findings import some

from .draws import NOISY_SEED, SmallRun
from .findings import TABLE, Earlier

FIELDS = ("time", "attempt", "epoch", "step", "rank", "world_size", "samples", "phases")
CLOCK_S = 0.001  # two clocks may differ by as much
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


def data_of(earlier: Earlier, seed: int) -> Mapping[str, Any]:
    """The steps ("alone") and the samples ("rows") of a seed, from the stage "data"."""
    answer: Mapping[str, Any] = earlier["data"][0].answer
    if seed == NOISY_SEED:
        answer = answer["seed 0"]
    return answer


def planned(earlier: Earlier, seed: int) -> list[list[int]]:
    """The samples of each step, as the learner's own sampler deals them to one rank."""
    return [sorted(samples) for _, samples, _ in data_of(earlier, seed)["alone"]]


def first_of_equals(earlier: Earlier, seed: int) -> list[int]:
    """For each sample the first one with the same input: whoever watches sees only inputs."""
    inputs = [row.partition(" ")[0] for row in data_of(earlier, seed)["rows"]]
    return [inputs.index(own) for own in inputs]


def visible(earlier: Earlier, seed: int) -> list[list[int]]:
    """What can be seen of each planned step: of equal inputs, the first stands for all."""
    first = first_of_equals(earlier, seed)
    return [sorted(first[sample] for sample in step) for step in planned(earlier, seed)]


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
    reports: Sequence[RankReport], plan: SmallRun, said: str, first: Sequence[int]
) -> Iterator[Finding]:
    """Whether the ledger has what was trained, line by line.

    Args:
        first: ``first_of_equals``.
    """
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
                "epoch": (number - 1) // plan.steps_per_epoch,
                "step": number,
                "rank": report.rank,
                "world_size": len(reports),
                "samples": sorted(samples),
            }
            seen = [first[s] if 0 <= s < len(first) else s for s in line["samples"]]
            line = {**line, "samples": sorted(seen)}
            wrong = [name for name in wanted if line[name] != wanted[name]]
            if wrong:
                name = wrong[0]
                found = f"{said}, line {number} of {file}{UNCOUNTED} has "
                found += f"{name}={str(line[name])[:60]}; it should be {str(wanted[name])[:60]}"
                yield TABLE("ledger-wrong", found)
                return


def rate_findings(
    reports: Sequence[RankReport], rates: Sequence[float], at: int, said: str
) -> Iterator[Finding]:
    """Whether each step from ``at`` on uses the rate of its number."""
    for report in reports:
        for number, update in enumerate(updates(report), at + 1):
            if number > len(rates):
                return
            rate = rates[number - 1]
            if any(abs(used - rate) > 1e-6 * rate for used in update["rates"]):
                used = some([f"{value:.6g}" for value in update["rates"]])
                found = f"{said}, step {number} used the learning rate {used}; "
                found += f"learning_rate_at(cfg, {number}) gives {rate:.6g}"
                yield TABLE("rate-not-followed", found)
                return


def update_findings(reports: Sequence[RankReport], said: str) -> Iterator[Finding]:
    """Whether each step follows the planned gradient, and comes before its ledger line."""
    for report in reports:
        for number, update in enumerate(updates(report), 1):
            apart = update.get("apart", 0.0)
            if not apart <= 1e-3:  # so that NaN counts
                found = (
                    f"{said}, the gradient of step {number} isn't the clipped mean over the "
                )
                found += f"step's samples: the difference is {apart:.2g} times its norm"
                yield TABLE("different-training", found)
                return
            if update.get("lines", 0) >= number:
                found = f"{said}, rank {report.rank} wrote the line of step {number} before "
                found += "the optimizer took that step"
                yield TABLE("ledger-wrong", found, "at when the line is written")
                return


def alone_judge(
    plan: SmallRun, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """One process, from start to end."""
    (report,), said = reports, "on one rank"
    answer = report.answer
    yield from trained_findings(reports, visible(earlier, plan.seed), 0, said)
    yield from result_findings(reports, plan.total, said)
    yield from update_findings(reports, said)
    yield from ledger_findings(reports, plan, said, first_of_equals(earlier, plan.seed))
    yield from rate_findings(reports, answer["rates"], 0, said)
    yield from save_findings(report, plan)
    yield from time_findings(report)
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
    extra = kinds[kinds.index("ends") : kinds.index("ends again")].count("update")
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
    yield from start_findings(plan, answer["starts"])


def start_findings(plan: SmallRun, starts: Sequence[Any]) -> Iterator[Finding]:
    """Whether each start of a run has its number, also before the first save.

    Args:
        starts: of each one an error, and the newest line of the ledger after it.
    """
    stops = ("", " once before its first save", " twice before its first save", " three times")
    for number, (error, line) in enumerate(starts):
        said = f"a run was stopped{stops[number]} and started again; " if number else ""
        if error:
            yield TABLE("cannot-resume", f"{said}the last start raised {error}")
            return
        attempt = line.get("attempt") if isinstance(line, Mapping) else None
        if attempt != number:
            found = f"{said}the lines of the last start say attempt {attempt}, not {number}"
            yield TABLE("attempts-unclear", found)
            return


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


def time_findings(report: RankReport) -> Iterator[Finding]:
    """Whether each line's phases add up to the time since the line before.

    A line's last phase ends between the step's first forward pass and the line. So its phases
    cover at least the time from the line before to that pass, with the pause that the check
    makes in one of them, and at most the time to this line from the pass before: certain
    bounds, however slow the machine is.
    """
    lines = [line for _, line in report.answer["lines"]]
    passes, ends, begins = [], [], True
    for event in events_of(report):
        if event["kind"] == "forward" and begins:
            passes.append(event["at"])
            ends.append(event["at"] + event["pause"])
        if event["kind"] in ("forward", "optimizer_step"):
            begins = event["kind"] == "optimizer_step"
    for number in range(1, len(lines)):
        phases = sum(lines[number]["phases"].values())
        least = ends[number] - lines[number - 1]["time"] - CLOCK_S
        most = lines[number]["time"] - passes[number - 1] + CLOCK_S
        if not least <= phases <= most:
            wall = lines[number]["time"] - lines[number - 1]["time"]
            found = f"step {number + 1}'s line was written {wall:.4f} s after the line before, "
            found += f"and its phases add up to {phases:.4f} s"
            look = "at when the phases go back to 0" if phases > wall else ""
            yield TABLE("time-unaccounted", found, look)
            return


# ---------------------------------------------------------------- several ranks


def together_judge(
    plan: SmallRun, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The same steps as alone, with the same gradients, up to the kill."""
    said = f"on {len(reports)} ranks"
    yield from collision_findings(reports, said)
    crashed = any(report.failure and not is_echo(report) for report in reports)
    if crashed or any(report.exitcode is None for report in reports):
        return  # tracebacks or stacks say more
    steps = visible(earlier, plan.seed)[: plan.silent_at]
    yield from trained_findings(reports, steps, 0, said)
    for number, of_ranks in enumerate(zip(*map(updates, reports), strict=False), 1):
        if len({update.get("weights") for update in of_ranks}) > 1:
            found = f"{said}, without dropout, the ranks have different weights before step "
            yield TABLE("ranks-differ", f"{found}{number} updates them")
            return
    yield from update_findings(reports, f"{said}, without dropout")
    yield from rate_findings(reports, rates_of(earlier), 0, said)


def collision_findings(reports: Sequence[RankReport], said: str) -> Iterator[Finding]:
    """Whether two ranks write one file of a checkpoint, or give two the same name."""
    writers: dict[str, int] = {}
    for report in reports:
        for event in events_of(report):
            if event["kind"] != "file" or event["op"] not in ("open", "torch.save", "rename"):
                continue
            name = event.get("to") or event["path"]
            if "/checkpoints/" in name and writers.setdefault(name, report.rank) != report.rank:
                found = f"{said}, ranks {writers[name]} and {report.rank} both wrote "
                yield TABLE("saves-collide", found + name.partition("/")[2])
                return


def rates_of(earlier: Earlier) -> Sequence[float]:
    """The rate of each step, by the learner's own function."""
    rates: Sequence[float] = earlier["launch"][0].answer["rates"]
    return rates


def uninterrupted_judge(
    plan: SmallRun, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """All of the plan, with noise of its own on each rank and in each step."""
    said = f"on {len(reports)} ranks"
    yield from trained_findings(reports, visible(earlier, NOISY_SEED), 0, said)
    yield from result_findings(reports, plan.total, said)
    yield from ledger_findings(reports, plan, said, first_of_equals(earlier, NOISY_SEED))
    yield from rate_findings(reports, rates_of(earlier), 0, said)
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


def killed_judge(
    plan: SmallRun, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
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


def in_save(reports: Sequence[RankReport]) -> str:
    """A clause about the kill in a save."""
    done = max(len(trained(report)) for report in reports)
    (rank,) = [report.rank for report in reports if killed(report)][:1]
    where = [event for event in reports[rank].events if event["kind"] == "file"][-1]
    return (
        f"rank {rank} was killed before the {where['op']} of "
        f"{where['path'].rpartition('/')[2]} after step {done}"
    )


def before_line(reports: Sequence[RankReport]) -> str:
    """A clause about the kill between a step and its line."""
    done = max(len(trained(report)) for report in reports)
    return f"rank 1 was killed after step {done}, before it wrote a ledger line"


def resumed_findings(
    plan: SmallRun,
    reports: Sequence[RankReport],
    earlier: Earlier,
    before: Sequence[RankReport],
    kill: str,
    seed: int,
) -> Iterator[Finding]:
    """Whether a start resumed where the kill left off, and trained the rest.

    Args:
        before: the killed job.
        kill: what was killed.
        seed: of the run.
    """
    order, steps, size = visible(earlier, seed), together(reports), counted_ranks(reports)
    done = max(len(trained(report)) for report in before)
    saved = plan.saved_before(done)
    failed = [report for report in reports if report.failure and not is_echo(report)]
    if failed and failed[0].failure:
        failure = failed[0].failure
        found = f"{kill}; the next start, on {size}, raised {failure.kind}: "
        look = f"at {failure.where}, and at what the kill left" if failure.where else ""
        finding = TABLE("cannot-resume", found + failure.message.strip()[:160], look)
        if len(reports) != len(before):  # where as many ranks could
            look = f"at {failure.where or 'the restore'}, and at what depends on the number of "
            finding = finding._replace(rule=ANY_NUMBER, look=f"{look}ranks")
        yield finding
        return
    if not all(report.has_answer for report in reports):
        return
    at = began(steps, order)
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
        yield from trained_findings(reports, order, at, said)
        yield from rate_findings(reports, rates_of(earlier), at, said)
        yield from result_findings(reports, len(order), said)


def began(steps: Sequence[Sequence[int]], order: Sequence[Sequence[int]]) -> int | None:
    """How many steps a start took as done, judging by its samples; None if they fit no place.

    Of several places with the same samples, as at the ends of two epochs, the one that fits all
    of its steps is meant.
    """
    places = [n for n, step in enumerate(order) if steps and steps[0] == list(step)]
    fitting = [n for n in places if [list(step) for step in order[n:]] == list(steps)]
    return next(iter((*fitting, *places)), None)


def counted_ranks(reports: Sequence[RankReport]) -> str:
    """How many ranks, in words."""
    return f"{len(reports)} ranks"


def resumed_judge(
    plan: SmallRun, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """It ends with the uninterrupted run's weights."""
    before = earlier["kill during a save"]
    kill = in_save(before)
    yield from resumed_findings(plan, reports, earlier, before, kill, NOISY_SEED)
    if not all(report.has_answer for report in reports):
        return
    whole = earlier["two ranks, with dropout"]
    if reports[0].answer["true"] != whole[0].answer["true"]:
        found = f"{kill}; resumed on {counted_ranks(reports)}, the run ended with "
        yield TABLE("different-outcome", f"{found}different weights than without the kill")


def other_judge(
    plan: SmallRun, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The other kill, and a start on a different number of ranks."""
    before = earlier["two ranks"]
    kill = before_line(before)
    yield from resumed_findings(plan, reports, earlier, before, kill, plan.seed)
