"""An uninterrupted run; the same stopped, killed, resumed, finished; an error on one rank.

Then a single process, killed at drawn moments of all its saves.
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault, RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import (
    Finding,
    FindingTable,
    counted,
    how_it_ended,
    is_echo,
    named_ranks,
    shortened,
)
from rehearsal.kit.judge.coverage import coverage_findings, most_steps, samples_by_step
from rehearsal.kit.judge.findings import only_first, some
from rehearsal.kit.judge.weights import STAY_EQUAL
from rehearsal.kit.observe.anti_cheat import close_the_answer
from rehearsal.kit.observe.waiting import all_arrive
from rehearsal.kit.observe.moments import drawn_moments, watch_moments
from .watch import Watch, gathered_passes, redone
from .plan import Plan, one_rank, plan_of

ONCE = "an epoch trains each sample exactly once, across all ranks"
SUMMARY = "the launcher relies on the return value of every rank"
STOP = "a SIGTERM on any rank ends the loop of all ranks after the same step, with a save"
RAISE = "if one rank raises, every rank raises, before any of them waits for it"
SAVES = "at when the loop saves, and at the position that is saved and restored"
TABLE = FindingTable(
    {  # code: what it means, the rule, where to look
        "trained-twice": ("a sample is trained more than once per epoch", ONCE, ""),
        "never-trained": ("a sample is left out", ONCE, ""),
        "wrong-order": (
            "the first start trains steps of other samples than cell 2 deals",
            "the order of the data is cell 2's, in every start",
            "at the sampler: its seed, its position, and what moves it",
        ),
        "different-update": (
            "the weights are not those that the steps of cell 5 lead to",
            "each step is cell 5's: the mean gradient over the step's samples, clipped, at "
            "cell 3's rate for that step",
            "at what you pass to each step: the step's size, its rate, its micro-batches",
        ),
        "ranks-differ": (
            "the ranks end with different weights, or after different steps",
            STAY_EQUAL,
            "at what a rank decides on its own",
        ),
        "wrong-summary": (
            "what run returns does not match what it did",
            SUMMARY,
            "at what you return",
        ),
        "killed-by-sigterm": (
            "SIGTERM kills the process instead of ending the loop",
            STOP,
            "at what SIGTERM does by default",
        ),
        "sigterm-ignored": (
            "the run continues for more than two steps after SIGTERM",
            STOP,
            "at who checks for the signal, and how often",
        ),
        "stopped-alone": (
            "the ranks do not all stop after the same step",
            STOP,
            "at which ranks know about the signal, and when",
        ),
        "stopped-without-saving": (
            "the next start does not resume from the step of the stop",
            "a kill costs at most the steps since the last save; a stop costs none",
            SAVES,
        ),
        "started-over": (
            "a start begins at step 1 although there is a checkpoint",
            "a start resumes from the newest intact checkpoint",
            "at what is saved under which name, and at what a start looks for and passes on",
        ),
        "lost-work": (
            "a kill costs more steps than checkpoint_every_steps explains",
            "a kill costs at most the steps since the last save; a stop costs none",
            SAVES,
        ),
        "cannot-resume": (
            "after a kill, the next start raises instead of resuming",
            "whatever a kill leaves behind, the next start resumes from the last save",
            "at what a kill in the middle of that operation leaves, and at what a start does "
            "with it",
        ),
        "different-order": (
            "after a restart, steps have different samples",
            "a resume continues after the last saved step, in the same order",
            "at the position you restore, and at what advances it",
        ),
        "different-outcome": (
            "stopped, killed and resumed does not equal uninterrupted",
            "killed and resumed equals uninterrupted, bit for bit",
            "at what the next step depends on: moments, random state, learning rate",
        ),
        "touched-finished-run": (
            "starting a finished run trains or writes",
            "a finished run stays unchanged, however often it is started",
            "at what you do before you know whether anything is left to train",
        ),
        "raised-alone": (
            "an error on one rank does not raise on all of them",
            RAISE,
            "at the moment when one rank knows and the other doesn't",
        ),
        "error-swallowed": (
            "an error on one rank does not raise at all",
            RAISE,
            "at what you do with the exception",
        ),
    }
)
CODES = TABLE.codes
ANSWERS = ["run", "train_run", "train_loop"]
KILLS = 12  # moments of the single process's run, of different kinds
NOISE = 0.01  # of the first learning rate: what a sum in a different order may change


# ---------------------------------------------------------------- in the ranks


def run_body(plan: Plan, name: str, context: RankContext, learner: SimpleNamespace) -> Any:
    """Call the learner's ``run`` in the folder ``name``."""
    close_the_answer(context, "trainer_core.launch", ANSWERS)
    gc.freeze()  # a collection before the group closes inspects only what the run made
    cfg = plan.config(context.folder / name)
    watch = Watch(context, cfg)
    context.record("begins")
    summary = learner.run(cfg)
    context.record("ends")
    answer: dict[str, Any] = {"summary": plain_summary(summary, cfg.run_dir)}
    answer |= {"true": true_hash(watch), "last": watch.last_step()}
    if name == "alone":
        context.is_armed = False
        watch.is_on = False
        passes = gathered_passes(context, watch)
        cfg = replace(cfg, world_size=plan.world_size)
        answer |= {"is_training": watch.is_training, "order": order_of(cfg, watch.num_samples)}
        if context.rank == 0 and watch.initial:
            answer["update"] = redone(cfg, watch, passes, plan.total)
    return answer


def plain_summary(summary: Any, run_dir: Path) -> dict[str, Any]:
    """What run returned, with whether its run_dir is the folder of the run.

    Raises:
        TypeError: if it isn't a mapping.
    """
    if not isinstance(summary, Mapping):
        raise TypeError(f"run returned {shortened(str(summary), 80)}, not a dict")
    found = dict(summary)
    if "run_dir" in found and Path(str(found["run_dir"])).resolve() == run_dir.resolve():
        found["run_dir"] = "the run's folder"
    return found


def true_hash(watch: Any) -> str | None:
    """The hash of the model that was trained; None if none was."""
    from trainer_core.model import weights_sha256

    return weights_sha256(watch.model) if watch.model is not None else None


def order_of(cfg: Any, num_samples: int) -> list[list[int]]:
    """The samples of each step, sorted, as cell 2 deals them."""
    from trainer_core.data import ResumeAwareDistributedSampler, StepSchedule

    sizes = (num_samples, cfg.global_batch_size, cfg.max_epochs)
    sampler = ResumeAwareDistributedSampler(StepSchedule(*sizes), cfg, 0, 1)
    steps = [sampler.micro_batches(step) for step in range(sampler.schedule.total_steps)]
    return [sorted(key.sample for keys in step for key in keys) for step in steps]


def error_body(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """A token out of range, in a sample that one rank trains."""
    import numpy as np

    from trainer_core.data import ResumeAwareDistributedSampler, StepSchedule

    close_the_answer(context, "trainer_core.launch", ANSWERS)
    gc.freeze()
    path = context.folder / "tokens.bin"
    cfg = plan.config(context.folder / "error", f"tokens:{path}")
    batch = replace(cfg, world_size=plan.world_size).global_batch_size
    schedule = StepSchedule(plan.num_samples, batch, plan.epochs)
    sampler = ResumeAwareDistributedSampler(schedule, cfg, plan.bad_rank, plan.world_size)
    bad = sampler.micro_batches(plan.bad_step - 1)[-1][0].sample
    tokens = np.random.default_rng(1).integers(0, 16, 4 * plan.num_samples + 1)
    tokens[4 * bad + 1] = 99
    mine = context.folder / f"tokens-{context.rank}"
    tokens.astype("<u2").tofile(mine)
    mine.replace(path)
    raised = ""
    try:
        learner.run(cfg)
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    context.record("came_out", raised=raised[:300])
    # If this process exited, gloo would fail the collective in which a peer still waits for
    # it. So a peer that waits does so until it is late for certain.
    all_arrive(context, "out", 3.0)
    return {"raised": raised}


def kills_body(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """One process: a run whose every file operation is watched, then starts after kills."""
    close_the_answer(context, "trainer_core.launch", ANSWERS)
    gc.freeze()
    os.fsync = lambda fd: None  # a kill loses nothing from the page cache
    cfg = plan.config(context.folder / "one")
    watch = Watch(context, cfg)
    with watch_moments(cfg.run_dir, note=lambda: watch.taken) as moments:
        summary = plain_summary(learner.run(cfg), cfg.run_dir)
    answer: dict[str, Any] = {"summary": summary, "true": true_hash(watch), "kills": []}
    answer["last"] = watch.last_step()
    order = watch.steps()
    for number, moment in drawn_moments(moments, KILLS, random.Random(context.seed)):
        # Under the same path: a run folder may be part of what is saved in it.
        folder = context.folder / f"kill-{number}" / "one"
        folder.parent.mkdir()
        after = plan.config(moment.restore(folder))
        watch.begin()
        kill: dict[str, Any] = {"where": moment.where, "done": moment.note, "raised": ""}
        answer["kills"].append(kill)
        try:
            kill["summary"] = plain_summary(learner.run(after), folder)
        except Exception as error:
            kill["raised"] = f"{type(error).__name__}: {shortened(str(error), 160)}"
        steps = watch.steps()
        kill["began"] = began(steps, order, moment.note)
        kill["steps"], kill["true"] = steps, true_hash(watch)
        if kill["raised"]:
            break
    return answer


def began(
    steps: Sequence[Sequence[int]], order: Sequence[Sequence[int]], near: int
) -> int | None:
    """How many steps were complete when a start began, judging by its samples.

    Args:
        near: of several places that fit, the one nearest to this is meant.
    """
    order = [list(ids) for ids in order]
    if not steps:
        return len(order)
    found = [at for at, ids in enumerate(order) if list(steps[0]) == ids]
    # The same samples may make a step in two epochs: those that the rest fits.
    fitting = [at for at in found if order[at : at + len(steps)] == [list(s) for s in steps]]
    return min(fitting, key=lambda at: abs(at - near), default=None)


# ---------------------------------------------------------------- judging a run


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
    difference, name = reports[0].answer.get("update") or (0.0, "")
    most = NOISE * plan.settings["learning_rate"]
    if not difference <= most:
        yield TABLE(
            "different-update",
            f"after {plan.total} steps on the right samples, the weights differ by up to "
            f"{difference:.2g} in {name} from those that cells 3 and 5 lead to (learning rate "
            f"{plan.settings['learning_rate']}, max_grad_norm "
            f"{plan.settings['max_grad_norm']}, warmup_steps {plan.settings['warmup_steps']})",
        )
    yield from every_summary(plan, reports, plan.total, "done")


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
    yield from every_summary(plan, reports, counts[0], "preempted")


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
    for report in reports:
        kinds = [event["kind"] for event in report.events]
        events = report.events[kinds.index("begins") : kinds.index("ends")]
        files = [f"{e['op']} of {e['path']}" for e in events if e["kind"] == "file"]
        steps = len(report.of("optimizer_step"))
        if files or steps:
            yield TABLE(
                "touched-finished-run",
                f"starting the finished run, rank {report.rank} took "
                f"{counted(steps, 'step')} and did {counted(len(files), 'file operation')}"
                + (f": {some(files, 3)}" if files else ""),
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
    """A single process: its summary, and where and how each start after a kill went on."""
    if not reports[0].has_answer:
        return
    answer = reports[0].answer
    who, loss = "a single process", loss_of(reports)
    yield from summary_findings(plan, who, answer, plan.total, "done", loss)
    for kill in answer["kills"]:
        done = kill["done"]
        what = f"a single process was killed {kill['where']}, after {counted(done, 'step')}"
        if kill["raised"]:
            yield TABLE("cannot-resume", f"{what}; the next start raised {kill['raised']}")
            continue
        least = plan.last_due(done)
        steps = kill["steps"]
        yield from start_findings(plan, what, kill["began"], steps, least, done)
        if kill["true"] not in (answer["true"], None):
            yield TABLE(
                "different-outcome",
                f"{what}; resumed after step {kill['began']}, it ended with other weights than "
                "the uninterrupted run",
            )
        again = f"{what}; the next start"
        yield from summary_findings(
            plan, again, {**kill, "true": answer["true"]}, plan.total, "done", loss
        )


# ---------------------------------------------------------------- an error on one rank


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


def scenarios(seed: int) -> list[Scenario]:
    """The jobs of a check; all but the last two share one run's plan, two share its folder."""
    plan, single = plan_of(seed), one_rank(seed)
    # Torch's loader takes 5 s to give up workers that an error left behind.
    failing = plan._replace(settings=plan.settings | {"num_workers": 0})
    term = Fault(rank=plan.stop_rank, at="optimizer_step", count=plan.stop_at, signal="TERM")
    kill = Fault(rank=plan.kill_rank, at="optimizer_step", count=plan.kill_after)
    of_a_run: list[tuple[str, str, Callable[..., Iterator[Finding]], Fault | None]] = [
        ("uninterrupted", "alone", alone_judge, None),
        ("sigterm", "again", sigterm_judge, term),
        ("killed", "again", killed_judge, kill),
        ("resumed", "again", resumed_judge, None),
        ("finished", "again", finished_judge, None),
    ]
    jobs = [
        Scenario(
            name=name,
            body=partial(run_body, plan, folder),
            judge=only_first(partial(judge, plan)),
            world_size=plan.world_size,
            deadline_s=8,
            fault=fault,
            judges_failures=name != "finished",
        )
        for name, folder, judge, fault in of_a_run
    ]
    jobs.append(
        Scenario(
            name="error",
            body=partial(error_body, failing),
            judge=only_first(partial(error_judge, failing)),
            world_size=plan.world_size,
            deadline_s=8,
            judges_failures=True,
        )
    )
    jobs.append(
        Scenario(
            name="kills",
            body=partial(kills_body, single),
            judge=only_first(partial(kills_judge, single)),
            world_size=1,
            deadline_s=10,
        )
    )
    return jobs
