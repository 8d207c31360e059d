"""In a folder with steps 9 and 10 of an earlier job, do two jobs resume and keep the newest?"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.coverage import steps_in_stream
from rehearsal.kit.judge.findings import some
from rehearsal.kit.judge.weights import differs_from_one_run
from rehearsal.kit.observe.samples import OddNet, watch_samples, weights_of
from rehearsal.kit.observe.stream import SampleStream
from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import Fault
from rehearsal.grading.verdict import Finding

CODES = {
    "not-the-newest": "a job resumes from an older checkpoint than the newest",
    "starts-over": "a job begins at step 0 although there are checkpoints",
    "ranks-resume-apart": "the ranks of a job resume from different steps",
    "wrong-position": "a job begins later than the step of the newest checkpoint",
    "keeps-the-wrong-files": "the newest checkpoints are not the ones kept",
    "not-the-same-run": "killed and resumed, the run ends with different weights",
}
STREAM, KEEP, FOUND = SampleStream(steps=12), 2, (9, 10)


def leave_checkpoints(context: RankContext) -> None:
    """What the earlier job left, copied, so that the older file has the later timestamp."""
    model = OddNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=STREAM.lr, momentum=0.9)
    ranks = [STREAM.shares(rank, context.world_size)(0) for rank in range(context.world_size)]
    for step, parts in enumerate(zip(*ranks, strict=True), start=1):
        inputs, targets = (torch.cat(part) for part in zip(*parts, strict=True))
        optimizer.zero_grad()
        (model(inputs) - targets).pow(2).sum(1).mean().backward()
        optimizer.step()
        if step in FOUND:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            path = context.folder / f"step-{step}.pt"
            torch.save({"step": step, **state}, path)
            os.utime(path, (1e9 - step, 1e9 - step))
    (context.folder / "step-11.tmp").write_bytes(b"PK")  # a kill in the middle of a save


def body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Resume in the shared folder; the first job finds what an earlier one left."""
    context.init_group()
    if context.rank == 0 and not list(context.folder.glob("step-*")):
        leave_checkpoints(context)
    torch.distributed.barrier()
    context.record("job")
    model = OddNet()
    watch_samples(context, model)
    shares = STREAM.shares(context.rank, context.world_size)
    learner.train(model, shares, context.folder, lr=STREAM.lr, keep=KEEP)
    return {
        "weights": weights_of(model),
        "expected": STREAM.expected(context.world_size),
        "files": [path.name for path in context.folder.glob("step-*.pt")],
    }


def judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterable[Finding]:
    """Where the job began, and, if it reached its end, which checkpoints remain."""
    # A step's forward pass shows that the save of the previous step was complete.
    first_job = next(iter(earlier.values()), None)
    newest = max(FOUND)
    if first_job:
        newest = max(steps_in_stream(first_job[0], len(reports), STREAM.share), default=newest)
    steps = [steps_in_stream(report, len(reports), STREAM.share) for report in reports]
    if not any(steps) and not reports[0].has_answer:
        return
    starts = [own[0] if own else STREAM.steps for own in steps]
    held = "should have held" if earlier else "held"  # what the first job left, or the check
    text = f"the folder {held} the checkpoints of steps {newest - 1} and {newest}"
    for rank, own in enumerate(steps):
        text += f"; rank {rank} then " if not rank else f", and rank {rank} "
        text += f"began with shares({own[0]})" if own else "trained no samples"
    rule = "all ranks resume from the newest checkpoint"
    look = "at how the newest is found: what would it be among steps 2, 9, 10 and 100?"
    if earlier:
        look = f"at what a save leaves in the folder, and {look}"
    if len(set(starts)) > 1:
        yield Finding("ranks-resume-apart", text, rule, "at what each rank finds by itself")
    elif starts[0] == 0:
        yield Finding(
            "starts-over",
            text,
            rule,
            "at what a start looks for, also in a folder from before the fix, and at how each "
            "rank learns of it",
        )
    elif starts[0] != newest:
        code = "not-the-newest" if starts[0] < newest else "wrong-position"
        if code == "wrong-position":
            rule = "step-N.pt is saved after N steps, so training continues with shares(N)"
            look = "at what the saved step counts, and at which step comes next"
            if not any(steps):
                look += ", and at what the loop does with a batch"
        yield Finding(code, text, rule, look)
    elif all(report.has_answer for report in reports):
        files = reports[0].answer["files"]
        left = sorted(int(number[0]) for name in files if (number := re.findall(r"\d+", name)))
        if left != [STREAM.steps - 1, STREAM.steps]:
            text = f"with keep={KEEP}, these checkpoints remain after step {STREAM.steps}: "
            text += some(sorted(files)) or "none"
            rule = "delete the oldest, keep the newest"
            look = "at what is deleted, and at every place that sorts"
            yield Finding("keeps-the-wrong-files", text, rule, look)
        yield from differs_from_one_run(reports)


SCENARIOS = [
    Scenario(
        name="resumes",
        body=body,
        judge=judge,
        deadline_s=5,
        fault=Fault(rank=0, at="forward", count=2),
        judges_failures=True,
    ),
    Scenario(name="resumes again", body=body, judge=judge, deadline_s=5, judges_failures=True),
]
