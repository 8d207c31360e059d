"""Jobs of one run, and a single process in which every moment of every save is a kill.

Runs in the ranks.
"""

from __future__ import annotations

import contextlib
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import shortened
from rehearsal.kit.observe.moments import drawn_moments, watch_moments
from rehearsal.kit.observe.restart import run_folder
from rehearsal.kit.observe.samples import OddNet, watch_samples, weights_of
from rehearsal.kit.observe.stream import SampleStream
from .plan import Plan

KILLS = 8  # moments of the single process, of different kinds


def stream_of(plan: Plan) -> SampleStream:
    """The samples of each step."""
    return SampleStream(steps=plan.steps, share=plan.share, lr=plan.lr)


def job(
    plan: Plan, name: str, keep: int, context: RankContext, learner: SimpleNamespace
) -> dict[str, Any]:
    """Train in the folder of that name, or resume there."""
    context.init_group()
    folder, stream = run_folder(context, name), stream_of(plan)
    if context.rank == 0:
        context.record("held", steps=complete_steps(folder))
    model = OddNet()
    watch_samples(context, model)
    shares = stream.shares(context.rank, context.world_size)
    learner.train(model, shares, folder, lr=plan.lr, keep=keep)
    return {
        "weights": weights_of(model),
        "expected": stream.expected(context.world_size),
        "files": names_in(folder),
    }


def names_in(folder: Path) -> list[str]:
    """The checkpoints' names."""
    return sorted(path.name for path in folder.glob("step-*.pt"))


def complete_steps(folder: Path) -> list[int]:
    """The N of each ``step-N.pt`` that torch can load."""
    steps = []
    for path in folder.glob("step-*.pt"):
        if match := re.fullmatch(r"step-(\d+)\.pt", path.name):
            with contextlib.suppress(Exception):
                torch.load(path)
                steps.append(int(match[1]))
    return sorted(steps)


def one_process(plan: Plan, context: RankContext, learner: SimpleNamespace) -> dict[str, Any]:
    """One run whose every file operation is watched, then starts after drawn kills."""
    context.init_group()
    folder, stream = run_folder(context, "one"), stream_of(plan)
    answer: dict[str, Any] = {"expected": stream.expected(1), "kills": []}
    taken: list[int] = []  # the steps that the job trains, in order

    def train(folder: Path) -> dict[str, str]:
        taken.clear()
        model = OddNet()
        from_step = stream.shares(0, 1)

        def shares(step: int) -> Any:
            for number, share in enumerate(from_step(step), step):
                taken.append(number)
                yield share

        learner.train(model, shares, folder, lr=plan.lr, keep=1)
        return weights_of(model)

    with watch_moments(folder, note=lambda: len(taken)) as moments:
        answer["weights"] = train(folder)
    context.is_armed = False  # what follows is not part of a job that is killed
    for number, moment in drawn_moments(moments, KILLS, random.Random(plan.seed)):
        left = moment.restore(context.folder / f"kill-{number}" / "one")
        kill: dict[str, Any] = {"where": moment.where, "begun": moment.note, "raised": ""}
        kill["held"] = complete_steps(left)
        answer["kills"].append(kill)
        try:
            kill["weights"] = train(left)
        except Exception as error:
            kill["raised"] = f"{type(error).__name__}: {shortened(str(error), 120)}"
            kill["steps"] = list(taken)
            break
        kill["steps"], kill["files"] = list(taken), names_in(left)
    return answer
