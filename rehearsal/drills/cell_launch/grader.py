"""A run undisturbed; the same stopped, killed, resumed, finished; an error on one rank."""

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
from rehearsal.grading.verdict import Finding, is_echo

CODES = {
    "trained-twice": "a sample is trained more than once per epoch",
    "never-trained": "a sample is left out",
    "ranks-differ": "the ranks end with different weights, or after different steps",
    "wrong-summary": "what run returns is not what it did",
    "died-of-sigterm": "SIGTERM ends the process instead of the loop",
    "sigterm-ignored": "the run goes on for long after SIGTERM, or to its end",
    "stopped-alone": "not all ranks stop after the same step",
    "stopped-without-saving": "the next start does not go on from the step of the stop",
    "began-again": "a start begins at the first step, though there is something to go on from",
    "lost-work": "more steps are trained again than checkpoint_every_steps explains",
    "another-order": "after a restart a step has other samples than it would have had",
    "another-outcome": "stopped, killed and resumed is not what undisturbed had been",
    "touched-finished-run": "a start that finds the run finished trains or writes",
    "raised-alone": "an error on one rank is not raised on all",
    "error-swallowed": "an error on one rank is raised on none",
}
# Six steps an epoch, the last of 3 samples; saves are due after 5, 6, 10 and 12.
NUM_SAMPLES, EPOCHS, EVERY, TOTAL = 43, 2, 5, 12
STOP_AT, KILL_AFTER = 8, 3  # SIGTERM in step 8; SIGKILL in the third step after that
SHAPES: dict[str, Any] = {"toy": {"input_dim": 6}, "tokens": {"seq_len": 4, "vocab_size": 16}}


def config(context: RankContext, name: str, data: str = "toy") -> Any:
    """A small run with dropout, in a folder of the check."""
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
    """Tells by their content which samples go through whatever model the learner trains."""

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
        """Also when the forward pass has raised."""
        self.depth -= 1


def body_of(name: str) -> Callable[[RankContext, SimpleNamespace], Any]:
    """A body that runs the learner's ``run`` in the folder ``name``."""

    def body(context: RankContext, learner: SimpleNamespace) -> Any:
        close_the_answer(context, "trainer_core.launch", ["run", "train_run", "train_loop"])
        gc.freeze()  # a collection before the group is closed looks at what the run made, only
        cfg = config(context, name)
        watch = Watch(context, cfg)
        context.record("begins")
        summary = learner.run(cfg)
        context.record("ends")
        from trainer_core.model import weights_sha256

        true = weights_sha256(watch.model) if watch.model is not None else None
        return {"summary": dict(summary), "true": true}

    return body


# ---------------------------------------------------------------- judging a run


def together(reports: Sequence[RankReport]) -> list[list[int]]:
    """The samples of each step that any rank has completed, over all ranks."""
    return samples_by_step(reports)[: most_steps(reports)]


def summary_findings(
    reports: Sequence[RankReport], step: int, status: str
) -> Iterator[Finding]:
    """What run has returned, against what was seen."""
    for report in reports:
        summary, true = report.answer["summary"], report.answer["true"]
        wanted = {"status": status, "step": step, "epoch": step // (TOTAL // EPOCHS)}
        if true is not None:
            wanted["weights_sha256"] = true
        wrong = {n: summary.get(n) for n, value in wanted.items() if summary.get(n) != value}
        loss = summary.get("loss")
        if not isinstance(loss, float) or not math.isfinite(loss):
            wrong["loss"] = loss
        if wrong:
            yield Finding(
                "wrong-summary",
                f"rank {report.rank}, {status} at {step}: returned {wrong}",
                "who starts the job goes by what it returns, on every rank",
                "at what is returned",
            )
            return


def undisturbed_judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """Every sample once per epoch, in twelve steps, on ranks that agree."""
    if not all(report.has_answer for report in reports):
        return
    yield from coverage_findings(
        reports, NUM_SAMPLES, EPOCHS, "at where the loop begins and ends"
    )
    yield from agreement_findings(reports)
    yield from summary_findings(reports, TOTAL, "done")


def agreement_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """Steps and weights of the ranks."""
    counts = [len(report.of("optimizer_step")) for report in reports]
    hashes = {
        report.answer["true"] or report.answer["summary"]["weights_sha256"]
        for report in reports
    }
    if len(set(counts)) > 1 or len(hashes) > 1:
        yield Finding(
            "ranks-differ",
            f"optimizer steps per rank: {some(counts)}; different weights: "
            f"{'yes' if len(hashes) > 1 else 'no'}",
            STAY_EQUAL,
            "at what one rank decides for itself",
        )


def sigterm_judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """All stop after the same step, soon, and say so."""
    rule = "a SIGTERM on one rank ends the loop of all ranks after the same step, with a save"
    counts = [len(report.of("optimizer_step")) for report in reports]
    if any(report.exitcode == -signal.SIGTERM for report in reports):
        yield Finding(
            "died-of-sigterm",
            f"SIGTERM in step {STOP_AT} ended the process of rank 1",
            rule,
            "at what the signal does in this process",
        )
        return
    if not all(report.has_answer for report in reports) or len(set(counts)) > 1:
        yield Finding(
            "stopped-alone",
            f"SIGTERM reached rank 1 in step {STOP_AT}; optimizer steps per "
            f"rank: {some(counts)}; returned: rank(s) "
            f"{some([r.rank for r in reports if r.has_answer]) or 'none'}",
            rule,
            "at which ranks know of the signal, and when",
        )
        return
    if counts[0] > STOP_AT + 2:
        yield Finding(
            "sigterm-ignored",
            f"SIGTERM in step {STOP_AT}, and {counts[0]} steps were taken",
            rule,
            "at who looks at the signal, and how often",
        )
        return
    yield from agreement_findings(reports)
    yield from summary_findings(reports, counts[0], "preempted")


def start_of(steps: Sequence[Sequence[int]], plan: Sequence[Sequence[int]]) -> int | None:
    """Steps that were complete when this start began, from its first step's samples."""
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
    """Where a start went on, given that ``saved`` steps were complete and saved."""
    steps = together(reports)
    at = start_of(steps, plan)
    if at is None and (steps or all(report.has_answer for report in reports)):
        first = steps[0] if steps else []
        yield Finding(
            "another-order",
            f"{saved} steps were done; the next start trained samples "
            f"{some(first, 8)} first, then {len(steps) - 1} step(s) more; undisturbed, no step "
            "sequence is like that",
            "a resume goes on after the last saved step, in the same order",
            "at the position that is restored, and at who counts it on",
        )
    elif at == 0:
        yield Finding(
            "began-again",
            f"{saved} steps were done, and the next start began with step 1",
            "a start goes on from the newest whole checkpoint",
            "at what a start looks for",
        )
    elif at is not None and not least <= at <= saved:
        yield Finding(
            code,
            f"{saved} steps were done, the next start began with step {at + 1}, of which "
            f"step {least + 1} is the first that was to be expected",
            "a kill costs at most the steps since the last save; a stop costs none",
            "at when the loop saves",
        )


def killed_judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """It went on from the stop; it was killed on the way."""
    plan, stopped = together(earlier["undisturbed"]), len(together(earlier["sigterm"]))
    yield from start_findings(reports, plan, stopped, stopped, "stopped-without-saving")


def resumed_judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """It went on from before the kill, to the weights of the run that nobody disturbed."""
    plan = together(earlier["undisturbed"])
    stopped = len(together(earlier["sigterm"]))
    done = stopped + len(together(earlier["killed"]))
    least = max(at for at in (stopped, 10) if at < done)  # the kill came before the last save
    yield from start_findings(reports, plan, least, done, "lost-work")
    if not all(report.has_answer for report in reports):
        return
    yield from agreement_findings(reports)
    yield from summary_findings(reports, TOTAL, "done")
    truth, got = (rs[0].answer["true"] for rs in (earlier["undisturbed"], reports))
    if truth != got:
        at = start_of(together(reports), plan)
        yield Finding(
            "another-outcome",
            f"resumed at step {at}: the weights after step {TOTAL} are not "
            "those of the undisturbed run",
            "killed and resumed equals uninterrupted, bit for bit",
            "at what the next step depends on: moments, random streams, learning rate",
        )


def finished_judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """Nothing is trained and no file is touched."""
    for report in reports:
        kinds = [event["kind"] for event in report.events]
        events = report.events[kinds.index("begins") : kinds.index("ends")]
        files = [f"{e['op']} of {e['path']}" for e in events if e["kind"] == "file"]
        steps = len(report.of("optimizer_step"))
        if files or steps:
            yield Finding(
                "touched-finished-run",
                f"rank {report.rank}: {steps} steps, {some(files, 3)}",
                "a run that is finished stays as it is, however often it is started",
                "at what happens before it is known whether anything is left to train",
            )
            return
    yield from summary_findings(reports, TOTAL, "done")
    names = [rs[0].answer["summary"]["weights_sha256"] for rs in (earlier["resumed"], reports)]
    if names[0] != names[1]:
        yield Finding(
            "wrong-summary",
            f"weights_sha256 was {names[0][:12]}, and is {names[1][:12]} when "
            "a finished run is started",
            "a run's weights are one set",
            "at what is hashed",
        )


# ---------------------------------------------------------------- an error on one rank


def error_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """A token out of range, in a sample that rank 1 trains in its third step."""
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


def error_judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """Raised on both, by both."""
    out = {r.rank: r.of("came_out")[0]["raised"] for r in reports if r.of("came_out")}
    about = "a sample of rank 1 cannot be read in step 3: "
    rule = "an error that one rank meets is raised on all of them, before anyone waits for it"
    if out and not any(out.values()):
        yield Finding(
            "error-swallowed",
            about + "run returned on rank(s) " + some(list(out)),
            rule,
            "at what is done with the exception",
        )
        return
    raised = [rank for rank, text in out.items() if text and "gloo" not in text]
    alone = any(r.answer["is_alone"] for r in reports if r.has_answer) or any(
        map(is_echo, reports)
    )
    if len(raised) < len(reports) or alone:
        yield Finding(
            "raised-alone",
            f"{about}rank(s) {some(raised)} raised it, the other still waited 1 s later",
            rule,
            "at the moment when one rank knows and the other does not",
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
        ("undisturbed", body_of("alone"), undisturbed_judge, None),
        ("sigterm", body_of("again"), sigterm_judge, TERM),
        ("killed", body_of("again"), killed_judge, KILL),
        ("resumed", body_of("again"), resumed_judge, None),
        ("finished", body_of("again"), finished_judge, None),
        ("error", error_body, error_judge, None),
    )
]
