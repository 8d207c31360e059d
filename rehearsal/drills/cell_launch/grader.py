"""An uninterrupted run; the same stopped, killed, resumed, finished; an error on one rank."""

from __future__ import annotations

import gc
import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.coverage import coverage_findings, most_steps, samples_by_step
from rehearsal.kit.judge.findings import only_first, some
from rehearsal.kit.judge.weights import STAY_EQUAL
from rehearsal.kit.observe.anti_cheat import close_the_answer
from rehearsal.kit.observe.waiting import all_arrive
from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault
from rehearsal.grading.verdict import Finding, counted, is_echo, named_ranks

CODES = {
    "trained-twice": "a sample is trained more than once per epoch",
    "never-trained": "a sample is left out",
    "ranks-differ": "the ranks end with different weights, or after different steps",
    "wrong-summary": "what run returns does not match what it did",
    "killed-by-sigterm": "SIGTERM kills the process instead of ending the loop",
    "sigterm-ignored": "the run continues for more than two steps after SIGTERM",
    "stopped-alone": "the ranks do not all stop after the same step",
    "stopped-without-saving": "the next start does not resume from the step of the stop",
    "started-over": "a start begins at step 1 although there is a checkpoint",
    "lost-work": "a kill costs more steps than checkpoint_every_steps explains",
    "different-order": "after a restart, steps have different samples",
    "different-outcome": "stopped, killed and resumed does not equal uninterrupted",
    "touched-finished-run": "starting a finished run trains or writes",
    "raised-alone": "an error on one rank does not raise on all of them",
    "error-swallowed": "an error on one rank does not raise at all",
}
# Six steps an epoch, the last of 3 samples; saves are due after 5, 6, 10 and 12.
NUM_SAMPLES, EPOCHS, EVERY, TOTAL = 43, 2, 5, 12
STOP_AT, KILL_AFTER = 8, 3  # SIGTERM in step 8; SIGKILL in the third step after that
SHAPES: dict[str, Any] = {"toy": {"input_dim": 6}, "tokens": {"seq_len": 4, "vocab_size": 16}}


def config(context: RankContext, name: str, data: str = "toy") -> Any:
    """A small run with dropout, in the check's folder."""
    from trainer_core.config import TrainConfig

    return TrainConfig(
        run_dir=context.folder / name,
        data=data,
        dataset_size=NUM_SAMPLES,
        max_epochs=EPOCHS,
        hidden_dim=8,
        num_heads=2,
        num_layers=1,
        micro_batch_size=2,
        grad_accum_steps=2,
        dropout=0.2,
        learning_rate=0.01,
        warmup_steps=2,
        checkpoint_every_steps=EVERY,
        log_every=3,
        keep_last=2,
        device="cpu",
        dist_timeout_s=30.0,
        **SHAPES[data.partition(":")[0]],
    )


class Watch:
    """Recognizes by content which samples go through whatever model the learner trains."""

    def __init__(self, context: RankContext, cfg: Any) -> None:
        import torch
        from torch.nn.modules import module as hooks

        from trainer_core.data import build_dataset

        rows = build_dataset(cfg).batch(range(NUM_SAMPLES))[0]
        self.ids = {row.numpy().tobytes(): at for at, row in enumerate(rows)}
        self.context, self.depth, self.model = context, 0, None
        self.is_trained: Callable[[], bool] = torch.is_grad_enabled
        hooks.register_module_forward_pre_hook(self.enters)
        hooks.register_module_forward_hook(self.leaves, always_call=True)

    def enters(self, module: Any, inputs: Any) -> None:
        """Only the outermost module counts: DDP, or the model itself."""
        self.depth += 1
        if self.depth == 1 and self.is_trained() and inputs:
            rows = inputs[0].detach().contiguous().numpy()
            ids = [self.ids[row.tobytes()] for row in rows if row.tobytes() in self.ids]
            self.model = getattr(module, "module", module)
            self.context.record("forward", samples=ids)

    def leaves(self, *_: Any) -> None:
        """Also called if the forward pass raised."""
        self.depth -= 1


def body_of(name: str) -> Callable[[RankContext, SimpleNamespace], Any]:
    """A body that runs the learner's ``run`` in the folder ``name``."""

    def body(context: RankContext, learner: SimpleNamespace) -> Any:
        close_the_answer(context, "trainer_core.launch", ["run", "train_run", "train_loop"])
        gc.freeze()  # a collection before the group closes inspects only what the run made
        cfg = config(context, name)
        watch = Watch(context, cfg)
        context.record("begins")
        summary = learner.run(cfg)
        context.record("ends")
        if not isinstance(summary, Mapping):
            raise TypeError(f"run returned {str(summary)[:80]}, not a dict")
        from trainer_core.model import weights_sha256

        true = weights_sha256(watch.model) if watch.model is not None else None
        return {"summary": dict(summary), "true": true}

    return body


# ---------------------------------------------------------------- judging a run


def together(reports: Sequence[RankReport]) -> list[list[int]]:
    """The samples of each step that any rank completed, over all ranks."""
    return samples_by_step(reports)[: most_steps(reports)]


def summary_findings(
    reports: Sequence[RankReport], step: int, status: str
) -> Iterator[Finding]:
    """What run returned, against what was observed."""
    for report in reports:
        summary, true = report.answer["summary"], report.answer["true"]
        wanted = {"status": status, "step": step, "epoch": step // (TOTAL // EPOCHS)}
        if true is not None:
            wanted["weights_sha256"] = true
        wrong = {n: summary.get(n) for n, value in wanted.items() if summary.get(n) != value}
        loss = summary.get("loss")
        if not isinstance(loss, float) or not math.isfinite(loss):
            wrong["loss"] = loss
        if summary.get("run_dir") is None:
            wrong["run_dir"] = None
        if wrong:
            yield Finding(
                "wrong-summary",
                f"rank {report.rank} should end {status!r} at step {step}, and run returned "
                + ", ".join(
                    f"{name}={value!r} instead of {wanted[name]!r}"
                    if name in wanted
                    else f"{name}={value!r} instead of "
                    + ("a finite float" if name == "loss" else "the run's folder")
                    for name, value in wrong.items()
                ),
                "the launcher relies on the return value of every rank",
                "at what you return",
            )
            return


def uninterrupted_judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """Each sample once per epoch, in twelve steps, on ranks that agree."""
    if not all(report.has_answer for report in reports):
        return
    yield from coverage_findings(
        reports, NUM_SAMPLES, EPOCHS, "at where the loop begins and ends"
    )
    yield from agreement_findings(reports)
    yield from summary_findings(reports, TOTAL, "done")


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
        report.answer["true"] or report.answer["summary"]["weights_sha256"]
        for report in reports
    }
    if len(set(counts)) > 1 or len(hashes) > 1:
        yield Finding(
            "ranks-differ",
            f"{steps_said(counts)} and ended with "
            f"{'different' if len(hashes) > 1 else 'equal'} weights",
            STAY_EQUAL,
            "at what a rank decides on its own",
        )


def how_run_ended(report: RankReport) -> str:
    """How a rank's call of run ended."""
    if report.has_answer:
        return "returned"
    if report.failure:
        return "lost its connection" if is_echo(report) else f"raised {report.failure.kind}"
    if report.exitcode is None:
        return "was still running at the deadline"
    if report.exitcode < 0:
        return f"was killed by {signal.Signals(-report.exitcode).name}"
    return f"exited with code {report.exitcode}"


def sigterm_judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """All ranks stop soon, after the same step, and report it."""
    rule = "a SIGTERM on any rank ends the loop of all ranks after the same step, with a save"
    counts = [len(report.of("optimizer_step")) for report in reports]
    if any(report.exitcode == -signal.SIGTERM for report in reports):
        yield Finding(
            "killed-by-sigterm",
            f"SIGTERM in step {STOP_AT} killed the process of rank 1",
            rule,
            "at what SIGTERM does by default",
        )
        return
    if len(set(counts)) == 1 and all(r.failure and not is_echo(r) for r in reports):
        return  # the same exception on every rank: its traceback says more
    if not all(report.has_answer for report in reports) or len(set(counts)) > 1:
        ends = [
            f"rank {report.rank} took {count} steps and {how_run_ended(report)}"
            for report, count in zip(reports, counts, strict=True)
        ]
        yield Finding(
            "stopped-alone",
            f"rank 1 received SIGTERM in step {STOP_AT}: {', '.join(ends)}",
            rule,
            "at which ranks know about the signal, and when",
        )
        return
    if counts[0] > STOP_AT + 2:
        yield Finding(
            "sigterm-ignored",
            f"rank 1 received SIGTERM in step {STOP_AT}, and the ranks took {counts[0]} steps",
            rule,
            "at who checks for the signal, and how often",
        )
        return
    yield from agreement_findings(reports)
    yield from summary_findings(reports, counts[0], "preempted")


def start_of(steps: Sequence[Sequence[int]], plan: Sequence[Sequence[int]]) -> int | None:
    """How many steps were complete when this start began, judging by its samples."""
    first = next((at for at, ids in enumerate(plan) if steps and list(steps[0]) == ids), None)
    if first is None:
        return None
    return first if list(map(list, steps)) == list(plan[first : first + len(steps)]) else None


def start_findings(
    reports: Sequence[RankReport],
    plan: Sequence[Sequence[int]],
    least: int,
    saved: int,
    code: str,
) -> Iterator[Finding]:
    """Where a start resumed, given that ``saved`` steps were complete."""
    steps = together(reports)
    if not steps and saved == len(plan):
        return  # nothing was left: after a late stop, the kill's step never comes
    at = start_of(steps, plan)
    if at is None and (steps or all(report.has_answer for report in reports)):
        how = "took no step"
        if steps:
            how = (
                f"first trained samples {some(steps[0], 8)}, then took "
                f"{counted(len(steps) - 1, 'more step')}"
            )
        yield Finding(
            "different-order",
            f"{saved} steps were done; the next start {how}. The uninterrupted run does not "
            "continue that way",
            "a resume continues after the last saved step, in the same order",
            "at the position you restore, and at what advances it",
        )
    elif at == 0:
        yield Finding(
            "started-over",
            f"{saved} steps were done, and the next start began with step 1",
            "a start resumes from the newest intact checkpoint",
            "at what is saved under which name, and at what a start looks for and passes on",
        )
    elif at is not None and not least <= at <= saved:
        wanted = f"step {saved + 1}"
        if least < saved:
            last = min(saved + 1, len(plan))
            wanted = f"one of steps {least + 1} to {last}"
            wanted = f"step {least + 1} or {last}" if last == least + 2 else wanted
            wanted = f"step {last}" if last == least + 1 else wanted
        yield Finding(
            code,
            f"{saved} steps were done; the next start began with step {at + 1} instead of "
            f"{wanted}",
            "a kill costs at most the steps since the last save; a stop costs none",
            "at when the loop saves, and at the position that is saved and restored",
        )


def killed_judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """It resumed after the stop and was killed on the way."""
    plan, stopped = together(earlier["uninterrupted"]), len(together(earlier["sigterm"]))
    yield from start_findings(reports, plan, stopped, stopped, "stopped-without-saving")


def resumed_judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """It resumed after the kill and ended with the weights of the uninterrupted run."""
    plan = together(earlier["uninterrupted"])
    stopped = len(together(earlier["sigterm"]))
    done = stopped + len(together(earlier["killed"]))
    least = max(at for at in (stopped, 10) if at < done)  # the kill came before the last save
    yield from start_findings(reports, plan, least, done, "lost-work")
    if not all(report.has_answer for report in reports):
        return
    yield from agreement_findings(reports)
    yield from summary_findings(reports, TOTAL, "done")
    truth, got = (rs[0].answer["true"] for rs in (earlier["uninterrupted"], reports))
    if truth != got:
        at = start_of(together(reports), plan) if together(reports) else done
        yield Finding(
            "different-outcome",
            f"resumed after step {at}, the run ended after step {TOTAL} with weights that "
            "differ from the uninterrupted run's",
            "killed and resumed equals uninterrupted, bit for bit",
            "at what the next step depends on: moments, random state, learning rate",
        )


def finished_judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """Nothing is trained and no file is changed."""
    for report in reports:
        kinds = [event["kind"] for event in report.events]
        events = report.events[kinds.index("begins") : kinds.index("ends")]
        files = [f"{e['op']} of {e['path']}" for e in events if e["kind"] == "file"]
        steps = len(report.of("optimizer_step"))
        if files or steps:
            yield Finding(
                "touched-finished-run",
                f"starting the finished run, rank {report.rank} took "
                f"{counted(steps, 'step')} and did {counted(len(files), 'file operation')}"
                + (f": {some(files, 3)}" if files else ""),
                "a finished run stays unchanged, however often it is started",
                "at what you do before you know whether anything is left to train",
            )
            return
    yield from summary_findings(reports, TOTAL, "done")
    summaries = (rs[0].answer["summary"] for rs in (earlier["resumed"], reports))
    names = [str(summary.get("weights_sha256")) for summary in summaries]
    if names[0] != names[1]:
        yield Finding(
            "wrong-summary",
            f"run returned weights_sha256 {names[0][:12]} when it finished, and "
            f"{names[1][:12]} when it was started again",
            "starting a finished run returns the hash of its final weights",
            "at what you hash",
        )


# ---------------------------------------------------------------- an error on one rank


def error_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """A token out of range, in a sample that rank 1 trains in step 3."""
    import numpy as np

    from trainer_core.data import ResumeAwareDistributedSampler, StepSchedule

    close_the_answer(context, "trainer_core.launch", ["run", "train_run", "train_loop"])
    gc.freeze()
    path = context.folder / "tokens.bin"
    cfg = config(context, "error", f"tokens:{path}")
    schedule = StepSchedule(NUM_SAMPLES, 8, EPOCHS)
    sampler = ResumeAwareDistributedSampler(schedule, cfg, rank=1, world_size=2)
    bad = sampler.micro_batches(2)[-1][0].sample
    tokens = np.random.default_rng(1).integers(0, 16, 4 * NUM_SAMPLES + 1)
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
    return {"raised": raised, "is_alone": not all_arrive(context, "out", 1.0)}


def end_of(report: RankReport, out: Mapping[int, str]) -> str:
    """How a rank's call of run ended, from what it raised by then."""
    if report.rank not in out:
        if report.failure:  # no Exception: SystemExit, for one
            return f"ended with {report.failure.kind}"
        return "did not come out of run" if report.exitcode is None else "ended its process"
    if not out[report.rank]:
        return "returned without an error"
    return "lost its connection" if "gloo" in out[report.rank] else "raised"


def error_judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """Both ranks raise."""
    out = {r.rank: r.of("came_out")[0]["raised"] for r in reports if r.of("came_out")}
    about = "rank 1 could not read a sample in step 3"
    rule = "if one rank raises, every rank raises, before any of them waits for it"
    if out and not any(out.values()):
        yield Finding(
            "error-swallowed",
            f"{about}, and run returned without an error on {named_ranks(list(out))}",
            rule,
            "at what you do with the exception",
        )
        return
    raised = [rank for rank, text in out.items() if text and "gloo" not in text]
    alone = any(r.answer["is_alone"] for r in reports if r.has_answer) or any(
        map(is_echo, reports)
    )
    if len(raised) < len(reports) or alone:
        ends = [f"rank {report.rank} {end_of(report, out)}" for report in reports]
        if len(raised) == len(reports):
            ends.append("one of them more than 1 s after the other")
        yield Finding(
            "raised-alone",
            f"{about}: {', '.join(ends)}",
            rule,
            "at the moment when one rank knows and the other doesn't",
        )


TERM = Fault(rank=1, at="optimizer_step", count=STOP_AT, signal="TERM")
KILL = Fault(rank=1, at="optimizer_step", count=KILL_AFTER)
SCENARIOS = [
    Scenario(
        name=name,
        body=body,
        judge=only_first(judge),
        deadline_s=6,
        fault=fault,
        judges_failures=name != "finished",
    )
    for name, body, judge, fault in (
        ("uninterrupted", body_of("alone"), uninterrupted_judge, None),
        ("sigterm", body_of("again"), sigterm_judge, TERM),
        ("killed", body_of("again"), killed_judge, KILL),
        ("resumed", body_of("again"), resumed_judge, None),
        ("finished", body_of("again"), finished_judge, None),
        ("error", error_body, error_judge, None),
    )
]
