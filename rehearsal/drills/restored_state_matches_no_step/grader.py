"""The writer is late: each checkpoint is still the state of its step, and training goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from torch import nn

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, FindingTable, counted
from rehearsal.kit.judge.coverage import most_steps
from rehearsal.kit.judge.findings import first_of, some
from rehearsal.kit.judge.weights import largest_difference, ranks_differ, weights_of_ranks
from rehearsal.kit.observe.moments import watch_moments
from rehearsal.kit.observe.restart import odd_net, run_folder, trains

from .failing import broken
from .on_disk import checkpoints_in, damaged_in, leave_killed
from .plan import Run, drawn
from .slow_writer import LateThreads, LiveStates, expected

FINDINGS = FindingTable(
    {
        "not-the-state-of-its-step": (
            "a checkpoint contains something other than the state after its step",
            "step-N.pt is the state after step N, bit for bit, however late it's written",
            "at who else can reach the memory that the writer reads, until it has read it",
        ),
        "save-missing": (
            "a checkpoint that is due is not on disk when train returns",
            "each checkpoint that is due is on disk when train returns, and stays",
            "at every way in which a save may not be written, or not yet",
        ),
        "saves-too-often": (
            "a checkpoint is saved although none is due",
            "a checkpoint is saved only when one is due",
            "at when a checkpoint is saved, and at what is counted until then",
        ),
        "not-only-rank-0": (
            "a rank other than rank 0 writes to the folder",
            "rank 0 saves, and no other rank",
            "at which ranks have a writer",
        ),
        "incomplete-checkpoint": (
            "a step-N.pt can't be loaded",
            "a step-N.pt is complete, even after a SIGKILL, and has what the brief says",
            "at what is on disk at each moment of a write, and under which name",
        ),
        "training-waits": (
            "training waits for the write that it has just started",
            "after a save, training continues while the checkpoint is written",
            "at everything between a save and the next step that may wait for the writer",
        ),
        "error-lost": (
            "train returns although a checkpoint could not be written",
            "if a write fails, train raises an exception",
            "at what happens to an exception in the writer, also in the last write",
        ),
        "different-run": (
            "the run trains something other than what the brief describes",
            "a step follows the mean over the next samples in index order",
            "at what a step trains, and at what a rank begins with",
        ),
        "not-the-newest": (
            "a restart doesn't resume from the newest checkpoint",
            "a restart resumes from the newest checkpoint, on all ranks",
            "at how the newest checkpoint is found, and which ranks load it",
        ),
        "not-the-same-run": (
            "a restarted run ends with different weights than an uninterrupted one",
            "a restarted run ends with the weights of an uninterrupted one, bit for bit",
            "at everything that is saved, and at which ranks restore it",
        ),
    }
)
CODES = {**FINDINGS.codes, "ranks-differ": "the ranks end with different weights"}


def train_late(run: Run, context: RankContext, learner: SimpleNamespace) -> dict[str, Any]:
    """Train with a writer that is late; keep what a kill would have left at each moment."""
    folder = run_folder(context, "late")
    live: list[LiveStates] = []
    late: list[LateThreads] = []

    def model(context: RankContext) -> nn.Module:
        net = odd_net(context)
        live.append(LiveStates(net))
        if context.rank == 0:
            late.append(LateThreads(run, folder, net))
        return net

    reference = expected(run)
    train = trains("late", run.num_samples, model=model, **settings_of(run))
    if context.rank > 0:
        return {**train(context, learner), "expected": reference}
    with watch_moments(folder) as moments:
        answer = train(context, learner)
        files = checkpoints_in(folder)
    late[0].end()
    context.is_armed = False  # from here on, it's not the learner who writes
    damaged = damaged_in(moments)
    leave_killed(run, moments, context.folder / "killed")
    return {
        **answer,
        "expected": reference,
        "files": files,
        "damaged": damaged,
        "live": live[0].after,
        "waited_for": late[0].waited_for,
        "waited_in": late[0].waited_in,
    }


def resume(run: Run, context: RankContext, learner: SimpleNamespace) -> dict[str, Any]:
    """Resume in the folder that the kill has left; the writer has all the time it needs."""
    folder = run_folder(context, "killed")
    before, live = checkpoints_in(folder), list[LiveStates]()

    def model(context: RankContext) -> nn.Module:
        net = odd_net(context)
        live.append(LiveStates(net))
        return net

    train = trains("killed", run.num_samples, model=model, **settings_of(run))
    answer = train(context, learner)
    files = checkpoints_in(folder) if context.rank == 0 else {}
    return {**answer, "before": before, "files": files, "live": live[0].after}


def settings_of(run: Run) -> dict[str, Any]:
    """Keyword arguments of ``train``."""
    return {
        "epochs": run.epochs,
        "global_batch_size": run.global_batch_size,
        "checkpoint_every": run.checkpoint_every,
        "lr": run.lr,
    }


def save_findings(run: Run, start: int, report: RankReport) -> Iterator[Finding]:
    """Findings about the checkpoints on disk when ``train`` returns on rank 0.

    Args:
        start: the step after which this job began: later files are its own.
    """
    files = report.answer["files"]
    for name, file in files.items():
        if "problem" in file:
            found = f"when train returned, {name} could not be loaded, or lacked a part: "
            yield FINDINGS("incomplete-checkpoint", found + file["problem"])
            return
    missing = [step for step in run.saves if f"step-{step}.pt" not in files]
    if missing:
        found = f"when train returned, there was no checkpoint of step {some(missing)}; a "
        found += f"run of {run.steps} steps saves every {run.checkpoint_every}"
        yield FINDINGS("save-missing", found)
        return
    live = report.answer["live"]
    for step in run.saves:
        file = files[f"step-{step}.pt"]
        if file["step"] != step:
            found = f"step-{step}.pt says it is from step {file['step']}"
            yield FINDINGS("not-the-state-of-its-step", found)
            return
        if step <= start or len(live) != run.steps - start:
            continue
        for part in ("model", "optimizer"):
            if file[part] != live[step - start - 1][part]:
                same = [
                    n for n, state in enumerate(live, start + 1) if state[part] == file[part]
                ]
                found = f"the {part} in step-{step}.pt is not what it was after step {step}; "
                found += f"it matches step {same[0]}" if same else "it matches no step"
                yield FINDINGS("not-the-state-of-its-step", found)
                return


def needless_findings(run: Run, report: RankReport) -> Iterator[Finding]:
    """A finding if checkpoints were saved when due and when none was.

    Many save after the last step in any case, to keep the result.
    """
    saved = [
        step for step in range(1, run.steps + 1) if f"step-{step}.pt" in report.answer["files"]
    ]
    needless = [step for step in saved if step not in (*run.saves, run.steps)]
    if needless and {*run.saves} <= {*saved}:
        found = f"when train returned, there was a checkpoint of step {some(needless)}; a run "
        found += f"saves every {run.checkpoint_every} steps"
        yield FINDINGS("saves-too-often", found)


def judge_late(run: Run, reports: Sequence[RankReport], earlier: object) -> Iterator[Finding]:
    """The findings of an uninterrupted run with a slow writer."""
    yield from first_of(
        step_findings(run, 0, reports),
        ranks_differ(weights_of_ranks(reports), most=0.0),
        reference_findings(reports),
        rank_findings(reports),
        kill_findings(reports[0]),
        needless_findings(run, reports[0]),
        waiting_findings(run, reports[0]),
        save_findings(run, 0, reports[0]),
    )


def step_findings(run: Run, start: int, reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if the run took another number of steps than were left."""
    taken = most_steps(reports)
    if taken != run.steps - start:
        found = f"on {counted(len(reports), 'rank')}, the run took {counted(taken, 'step')}; "
        found += f"{run.steps - start} were left"
        yield FINDINGS("not-the-newest" if start else "different-run", found)


def reference_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if the run differs from one process."""
    answer = reports[0].answer
    difference, name = largest_difference(answer["weights"], answer["expected"])
    if not difference <= 1e-5:
        found = f"on {counted(len(reports), 'rank')}, the weights differ by up to "
        found += (
            f"{difference:.2g}, in {name}, from those of one process that starts with rank "
        )
        found += "0's weights"
        yield FINDINGS("different-run", found)


def waiting_findings(run: Run, report: RankReport) -> Iterator[Finding]:
    """A finding if training waited, or if most saves were on disk a step later all the same."""
    for step, save in report.answer["waited_in"][:1]:
        found = f"in step {step}, training waited until step-{save}.pt was written, and "
        found += "it was the save of this step" if step == save else "no save was due"
        yield FINDINGS("training-waits", found)
        return
    saves = [step for step in run.saves if step + 2 <= run.steps]
    if 2 * len(report.answer["waited_for"]) > len(saves):
        found = "the writer was slow, and yet the checkpoints of steps "
        found += f"{some(report.answer['waited_for'])} were on disk one step later"
        yield FINDINGS("training-waits", found)


def rank_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """A finding if a rank other than rank 0 writes."""
    for report in reports[1:]:
        for event in report.of("file"):
            if event["op"] != "mkdir":
                found = f"rank {report.rank} wrote to the folder: {event['op']} {event['path']}"
                yield FINDINGS("not-only-rank-0", found)
                return


def kill_findings(report: RankReport) -> Iterator[Finding]:
    """A finding if a kill would have left a checkpoint that can't be loaded."""
    for name, where, problem in report.answer["damaged"]:
        found = f"a kill {where} would have left a {name} that can't be loaded, or lacks a "
        found += f"part: {problem}"
        yield FINDINGS("incomplete-checkpoint", found)
        return


def judge_resumed(
    run: Run, reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """The findings of the job after the kill."""
    before = reports[0].answer["before"]
    start = max((file["step"] for file in before.values()), default=0)
    whole = earlier["the writer is late"][0].answer["weights"]
    for report in reports:
        difference, name = largest_difference(report.answer["weights"], whole)
        findings = list(step_findings(run, start, reports))
        if difference and not findings:
            found = f"after the restart from step {start}, rank {report.rank}'s weights differ "
            found += f"by up to {difference:.2g}, in {name}, from the uninterrupted run's"
            findings = [FINDINGS("not-the-same-run", found)]
        yield from findings
        if findings:
            return
    yield from save_findings(run, start, reports[0])


def judge_broken(reports: Sequence[RankReport], earlier: object) -> Iterator[Finding]:
    """A finding if ``train`` returned as if nothing had happened."""
    for problem, raised in reports[0].answer.items():
        if not raised:
            found = f"{problem} when the last checkpoint was due, and train returned"
            yield FINDINGS("error-lost", found)
            return


def scenarios(seed: int) -> list[Scenario]:
    """A slow writer, a restart after a kill at one of its moments, and a write that fails."""
    run = drawn(seed)
    return [
        Scenario(
            name="the writer is late",
            body=partial(train_late, run),
            judge=partial(judge_late, run),
            world_size=run.world_size,
            deadline_s=8,
        ),
        Scenario(
            name="resumed after a kill",
            body=partial(resume, run),
            judge=partial(judge_resumed, run),
            world_size=run.world_size,
            deadline_s=6,
        ),
        Scenario(
            name="the checkpoint can't be written",
            body=broken,
            judge=judge_broken,
            world_size=1,
            deadline_s=3,
        ),
    ]
