"""Did each start train what it should, stop together, resume in the right place, and say so?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import (
    Finding,
    counted,
    how_it_ended,
    is_echo,
    named_ranks,
    shortened,
)
from rehearsal.kit.judge.coverage import coverage_findings, most_steps, samples_by_step
from rehearsal.kit.judge.findings import some
from .codes import TABLE
from .plan import Plan
from .runs import began

NOISE = 0.01  # of the first learning rate: what a sum in a different order may change


def together(reports: Sequence[RankReport]) -> list[list[int]]:
    """The samples of each step that any rank completed, over all ranks."""
    return samples_by_step(reports)[: most_steps(reports)]


def loss_of(reports: Sequence[RankReport]) -> float | None:
    """The mean loss of the last step over the global batch; None if there was none."""
    sums, counts = zip(*(report.answer["last"] for report in reports), strict=True)
    return sum(sums) / sum(counts) if sum(counts) else None


def summary_findings(
    plan: Plan, who: str, answer: Mapping[str, Any], step: int, status: str, loss: float | None
) -> Iterator[Finding]:
    """What run returned, against what was observed.

    Args:
        loss: of the last step.
    """
    summary, true = answer["summary"], answer["true"]
    wanted = {"status": status, "step": step, "epoch": step // plan.steps_per_epoch}
    wanted |= {"run_dir": "the run's folder"}
    if true is not None:
        wanted["weights_sha256"] = true
    wrong = {n: summary.get(n) for n, value in wanted.items() if summary.get(n) != value}
    found = summary.get("loss")
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    if not is_number or (loss is not None and not abs(found - loss) <= 1e-4 * (1 + abs(loss))):
        wrong["loss"] = found
        wanted["loss"] = "a number" if loss is None else float(f"{loss:.6g}")
    if wrong:
        texts = [
            f"{name}={value!r} instead of {wanted[name]!r}" for name, value in wrong.items()
        ]
        yield TABLE(
            "wrong-summary",
            f"{who} should end {status!r} at step {step}, and run returned {', '.join(texts)}",
        )


def every_summary(
    plan: Plan, reports: Sequence[RankReport], step: int, status: str, loss: float | None = None
) -> Iterator[Finding]:
    """The same for each rank of a job."""
    loss = loss_of(reports) if loss is None else loss
    for report in reports:
        who = f"rank {report.rank}"
        yield from summary_findings(plan, who, report.answer, step, status, loss)


def alone_judge(
    plan: Plan, reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """Each sample once per epoch, in the planned steps, on ranks that agree."""
    if not all(report.has_answer for report in reports):
        return
    look = "at where the loop begins and ends"
    yield from coverage_findings(reports, plan.num_samples, plan.epochs, look)
    steps, order = together(reports), reports[0].answer["order"]
    if steps != order:
        order = [*order, []]
        at = next(at for at, ids in enumerate(order) if steps[at : at + 1] != [ids])
        trained = f"samples {some(steps[at], 8)}" if at < len(steps) else "nothing"
        yield TABLE(
            "wrong-order",
            f"step {at + 1} trained {trained}; in cell 2's order it has {some(order[at], 8)}",
        )
    yield from agreement_findings(reports)
    if not all(report.answer["is_training"] for report in reports):
        yield TABLE(
            "different-update",
            "the model was trained in eval mode, so there was no dropout",
            "at the model's mode",
        )
    for report in reports:
        if report.answer["noise"]:
            step, epoch = report.answer["noise"]
            whose = f"epoch {epoch}'s noise" if epoch >= 0 else "no noise"
            yield TABLE(
                "different-update",
                f"with input_noise={plan.settings['input_noise']}, the inputs of step "
                f"{step + 1} had {whose}; cell 2 adds epoch {step // plan.steps_per_epoch}'s",
                "at the view through which samples are read, and at its keys",
            )
            return
    yield from update_findings(plan, "", reports[0].answer)
    yield from every_summary(plan, reports, plan.total, "done")


def update_findings(plan: Plan, who: str, answer: Mapping[str, Any]) -> Iterator[Finding]:
    """The weights at the end, against those of the same passes redone."""
    difference, name = answer.get("update") or (0.0, "")
    settings = plan.settings
    names = ("learning_rate", "max_grad_norm", "warmup_steps", "decay_steps")
    if not difference <= NOISE * settings["learning_rate"]:
        yield TABLE(
            "different-update",
            f"{who}after {plan.total} steps on the right samples, the weights differ by up to "
            f"{difference:.2g} in {name} from those that cells 3 and 5 lead to "
            f"({', '.join(f'{one}={settings[one]}' for one in names)})",
        )


def steps_said(counts: Sequence[int]) -> str:
    """The ranks' numbers of optimizer steps, as the beginning of a sentence."""
    if len(set(counts)) == 1:
        return f"each rank took {counted(counts[0], 'optimizer step')}"
    taken = ", ".join(f"rank {rank} took {count}" for rank, count in enumerate(counts))
    return f"{taken} optimizer steps"


def agreement_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """Whether the ranks agree on steps and weights."""
    counts = [len(report.of("optimizer_step")) for report in reports]
    hashes = {
        report.answer["true"] or report.answer["summary"].get("weights_sha256")
        for report in reports
    }
    if len(set(counts)) > 1 or len(hashes) > 1:
        how = "different" if len(hashes) > 1 else "equal"
        yield TABLE("ranks-differ", f"{steps_said(counts)} and ended with {how} weights")


def how_run_ended(report: RankReport) -> str:
    """ "rank 1 took 8 steps and returned"."""
    took = f"rank {report.rank} took {counted(len(report.of('optimizer_step')), 'step')} and"
    if report.has_answer:
        return f"{took} returned"
    if report.failure:
        how = "lost its connection" if is_echo(report) else f"raised {report.failure.kind}"
        return f"{took} {how}"
    if report.exitcode is None:
        return f"{took} was still running at the deadline"
    return f"{took} {how_it_ended(report).partition(f'rank {report.rank} ')[2]}"


def sigterm_judge(
    plan: Plan, reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """All ranks stop soon, after the same step, and report it."""
    counts = [len(report.of("optimizer_step")) for report in reports]
    told = f"rank {plan.stop_rank} received SIGTERM in step {plan.stop_at}"
    by_signal = reports[plan.stop_rank]
    if by_signal.exitcode is not None and by_signal.exitcode < 0:
        yield TABLE("killed-by-sigterm", f"{told}: {how_it_ended(by_signal)}")
        return
    if len(set(counts)) == 1 and all(r.failure and not is_echo(r) for r in reports):
        return  # the same exception on every rank: its traceback says more
    if not all(report.has_answer for report in reports) or len(set(counts)) > 1:
        yield TABLE("stopped-alone", f"{told}: {', '.join(map(how_run_ended, reports))}")
        return
    if counts[0] > plan.stop_at + 2:
        yield TABLE("sigterm-ignored", f"{told}, and the ranks took {counts[0]} steps")
        return
    yield from agreement_findings(reports)
    returned = {report.answer["summary"].get("status") for report in reports}
    # A stop in the last step ends a run that is done anyway: both words are true.
    status = "done" if counts[0] == plan.total and returned == {"done"} else "preempted"
    yield from every_summary(plan, reports, counts[0], status)


def start_findings(
    plan: Plan, what: str, began_at: int | None, steps: Sequence[Any], least: int, done: int
) -> Iterator[Finding]:
    """Where a start resumed.

    Args:
        what: the beginning of the sentence, as "8 steps were done".
        began_at: how many steps it took as done; None if its samples fit no place.
        steps: those that it took.
        least: how many steps were saved for certain.
        done: how many steps were complete.
    """
    if began_at is None:
        taken = [list(ids) for ids in steps]
        yield TABLE(
            "different-order",
            f"{what}; the next start first trained samples {some(taken[0], 8)}, in "
            f"{counted(len(taken), 'step')}. The uninterrupted run does not continue that way",
        )
    elif not steps and done < plan.total:
        yield TABLE("different-order", f"{what}; the next start took no step")
    elif began_at == 0 and least:
        yield TABLE("started-over", f"{what}, and the next start began with step 1")
    elif not least <= began_at <= done:
        last = min(done + 1, plan.total)
        wanted = f"step {last}"
        if least + 1 < last:
            wanted = f"one of steps {least + 1} to {last}"
            wanted = f"step {least + 1} or {last}" if last == least + 2 else wanted
        at = f"began with step {began_at + 1}"
        code = "stopped-without-saving" if least == done else "lost-work"
        yield TABLE(code, f"{what}; the next start {at} instead of {wanted}")
    elif began_at > least and not plan.is_due(began_at):
        found = f"{what}; the next start resumed after step {began_at}. No save is due then, "
        found += f"with checkpoint_every_steps={plan.every} and "
        yield TABLE("saves-too-often", f"{found}{plan.steps_per_epoch} steps per epoch")


def next_start(
    plan: Plan,
    reports: Sequence[RankReport],
    order: Sequence[Sequence[int]],
    least: int,
    done: int,
) -> Iterator[Finding]:
    """The same for a job; nothing if it failed before its first step."""
    steps = together(reports)
    if steps or all(report.has_answer for report in reports):
        what = f"{counted(done, 'step')} were done"
        yield from start_findings(plan, what, began(steps, order, done), steps, least, done)


def killed_judge(
    plan: Plan, reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """It resumed after the stop and was killed on the way."""
    order, stopped = together(earlier["uninterrupted"]), len(together(earlier["sigterm"]))
    yield from next_start(plan, reports, order, stopped, stopped)


def resumed_judge(
    plan: Plan, reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """It resumed after the kill and ended with the weights of the uninterrupted run."""
    order = together(earlier["uninterrupted"])
    stopped = len(together(earlier["sigterm"]))
    done = stopped + len(together(earlier["killed"]))
    yield from next_start(plan, reports, order, max(stopped, plan.last_due(done)), done)
    if not all(report.has_answer for report in reports):
        return
    yield from agreement_findings(reports)
    truth, got = (rs[0].answer["true"] for rs in (earlier["uninterrupted"], reports))
    if truth != got:
        yield TABLE(
            "different-outcome",
            f"resumed after step {began(together(reports), order, done)}, the run ended after "
            f"step {plan.total} with weights that differ from the uninterrupted run's",
        )
    yield from every_summary(plan, reports, plan.total, "done")


def finished_judge(
    plan: Plan, reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """Nothing is trained and no file is changed."""
    # The first look was before any rank's start, the last one after all of them.
    _, before = min((r.answer["before"] for r in reports), key=itemgetter(0))
    _, after = max((r.answer["after"] for r in reports), key=itemgetter(0))
    changed = sorted(n for n in {*before, *after} if before.get(n) != after.get(n))
    steps = max(len(report.of("optimizer_step")) for report in reports)
    if changed or steps:
        yield TABLE(
            "touched-finished-run",
            f"started again, the finished run took {counted(steps, 'step')} and changed "
            f"{some(changed, 3) or 'no file'}",
        )
        return
    first = earlier["resumed"][0].answer["summary"]
    # Unless the finished run itself was stopped in its last step, it returned the true loss.
    yield from every_summary(plan, reports, plan.total, "done", first["loss"])
    for report in reports:
        name, then = report.answer["summary"].get("weights_sha256"), first["weights_sha256"]
        if name != then:
            yield TABLE(
                "wrong-summary",
                f"run returned weights_sha256 {shortened(str(then), 12)} when it finished, and "
                f"{shortened(str(name), 12)} on rank {report.rank} when it was started again",
                "at what you hash",
            )


def kills_judge(
    plan: Plan, reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """A single process: its summary and updates, and how each start after a kill went on."""
    if not reports[0].has_answer:
        return
    answer = reports[0].answer
    who, loss = "a single process", loss_of(reports)
    yield from summary_findings(plan, who, answer, plan.total, "done", loss)
    yield from update_findings(plan, f"{who}: ", answer)
    stops = earlier["stopped"][0].of("optimizer_step")
    stop = {"where": "stopped by SIGTERM", "done": len(stops), "least": len(stops)}
    for kill in [*answer["kills"], answer["continued"] | stop]:
        done, steps = kill["done"], kill["steps"]
        what = f"a single process was {kill['where']}, after {counted(done, 'step')}"
        if kill["raised"]:
            yield TABLE("cannot-resume", f"{what}; the next start raised {kill['raised']}")
            continue
        yield from start_findings(plan, what, kill["began"], steps, kill["least"], done)
        if kill["true"] not in (answer["true"], None):
            yield TABLE(
                "different-outcome",
                f"{what}; resumed after step {kill['began']}, it ended with different weights "
                "than the uninterrupted run",
            )
        again = f"{what}; the next start"
        yield from summary_findings(
            plan, again, {**kill, "true": answer["true"]}, plan.total, "done", loss
        )


def end_of(report: RankReport, out: Mapping[int, str]) -> str:
    """How a rank's call of run ended, from what it raised by then."""
    if report.rank not in out:
        if report.failure:  # no Exception: SystemExit, for one
            return f"rank {report.rank} ended with {report.failure.kind}"
        if report.exitcode is None:
            return f"rank {report.rank} did not come out of run"
        return how_it_ended(report)
    if not out[report.rank]:
        return f"rank {report.rank} returned without an error"
    how = "lost its connection" if "gloo" in out[report.rank] else "raised"
    return f"rank {report.rank} {how}"


def error_judge(
    plan: Plan, reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """All ranks raise."""
    out = {r.rank: r.of("came_out")[0]["raised"] for r in reports if r.of("came_out")}
    about = f"rank {plan.bad_rank} could not read a sample in step {plan.bad_step}"
    if out and not any(out.values()):
        yield TABLE(
            "error-swallowed",
            f"{about}, and run returned without an error on {named_ranks(list(out))}",
        )
        return
    raised = [rank for rank, text in out.items() if text and "gloo" not in text]
    if len(raised) < len(reports):
        ends = [end_of(report, out) for report in reports]
        yield TABLE("raised-alone", f"{about}: {', '.join(ends)}")
