"""The learner's ``run``: started in a folder, with an error on one rank, killed and resumed."""

from __future__ import annotations

import gc
import os
import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import shortened
from rehearsal.kit.observe.anti_cheat import close_the_answer
from rehearsal.kit.observe.moments import drawn_moments, watch_moments
from rehearsal.kit.observe.waiting import all_arrive
from .plan import Plan
from .watch import Watch, gathered_passes, redone

ANSWERS = ["run", "train_run", "train_loop"]
KILLS = 12  # moments of the single process's run, of different kinds


def run_body(plan: Plan, name: str, context: RankContext, learner: SimpleNamespace) -> Any:
    """Call the learner's ``run`` in the folder ``name``."""
    close_the_answer(context, "trainer_core.launch", ANSWERS)
    gc.freeze()  # a collection before the group closes inspects only what the run made
    cfg = plan.config(context.folder / name)
    watch = Watch(context, cfg)
    # What nobody seeds is another number in each run and on each rank.
    torch.default_generator.manual_seed(zlib.crc32(f"{name} {context.rank}".encode()))
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
        answer["noise"] = watch.wrong_noise(plan.steps_per_epoch) if cfg.input_noise else None
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
