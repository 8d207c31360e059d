"""The learner's ``run``: started in a folder, with an error on one rank, killed and resumed."""

from __future__ import annotations

import gc
import os
import random
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import shortened
from rehearsal.kit.observe.anti_cheat import close_the_answer
from rehearsal.kit.observe.moments import PARTS, Moment, drawn_moments, watch_moments
from rehearsal.kit.observe.waiting import all_arrive
from .plan import Plan
from .watch import Watch, gathered_passes, redone

ANSWERS = ["run", "train_run", "train_loop"]
KILLS = 12  # moments of the single process's run, of different kinds
EARLY = 3  # moments of a start after one of them, before its first step


def run_body(plan: Plan, name: str, context: RankContext, learner: SimpleNamespace) -> Any:
    """Call the learner's ``run`` in the folder ``name``."""
    close_the_answer(context, "trainer_core.launch", ANSWERS)
    gc.freeze()  # a collection before the group closes inspects only what the run made
    cfg = plan.config(context.folder / name)
    watch = Watch(context, cfg)
    # What nobody seeds is another number in each run and on each rank.
    torch.default_generator.manual_seed(zlib.crc32(f"{name} {context.rank}".encode()))
    summary = learner.run(cfg)
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


def finished_body(plan: Plan, name: str, context: RankContext, learner: SimpleNamespace) -> Any:
    """The same, with what is in the folder before it and after it."""
    folder = context.folder / name
    before = [time.monotonic(), contents(folder)]
    answer = run_body(plan, name, context, learner)
    return answer | {"before": before, "after": [time.monotonic(), contents(folder)]}


def contents(folder: Path) -> dict[str, list[int]]:
    """What changes if a file below the folder is written, even with what it contains."""
    found = {}
    for path in sorted(folder.rglob("*")):
        try:
            stat = path.lstat()
        except FileNotFoundError:  # another rank has removed it
            continue
        name = str(path.relative_to(folder))
        is_file = not path.is_dir() or path.is_symlink()
        found[name] = [stat.st_ino, stat.st_size, stat.st_mtime_ns] if is_file else []
    return found


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
    """One process: a run whose every file operation is watched, then starts after kills.

    One of these starts is watched, too, and killed.
    """
    close_the_answer(context, "trainer_core.launch", ANSWERS)
    gc.freeze()
    os.fsync = lambda fd: None  # a kill loses nothing from the page cache
    cfg = plan.config(context.folder / "one")
    watch = Watch(context, cfg)
    with watch_moments(cfg.run_dir, note=lambda: watch.taken) as moments:
        summary = plain_summary(learner.run(cfg), cfg.run_dir)
    answer: dict[str, Any] = {"summary": summary, "true": true_hash(watch), "kills": []}
    answer["last"] = watch.last_step()
    if watch.initial:
        watch.is_on = False
        answer["update"] = redone(cfg, watch, watch.passes, plan.total)
        watch.is_on = True
    order, draw = watch.steps(), random.Random(context.seed)
    drawn = drawn_moments(moments, KILLS, draw)
    last = drawn[len(drawn) // 2 :]  # so that little is left to train
    twice = draw.choice([n for n, moment in last if moment.part in PARTS] or [last[-1][0]])
    for number, moment in drawn:
        after = config_after(plan, context, f"kill-{number}", moment)
        watched: Any = nullcontext([])
        if number == twice:
            watched = watch_moments(after.run_dir, note=lambda: watch.taken)
        with watched as seconds:
            kill = next_start(after, learner, watch, order, moment.note)
        kill |= {"where": f"killed {moment.where}", "done": moment.note}
        answer["kills"].append(kill | {"least": plan.last_due(moment.note)})
        if kill["raised"] or kill["began"] is None:
            break
        early = drawn_moments([one for one in seconds if not one.note], EARLY, draw)
        late = drawn_moments([one for one in seconds if one.note], 1, draw)
        for at, (_, second) in enumerate([*early, *late]):
            done = kill["began"] + second.note
            after = config_after(plan, context, f"kill-{number}-{at}", second)
            again = next_start(after, learner, watch, order, done)
            again |= {"where": f"{kill['where']}, and again {second.where}", "done": done}
            # It resumed from a save, which the second kill may not cost.
            least = max(kill["began"], plan.last_due(done))
            answer["kills"].append(again | {"least": least})
    # The scenario before this one has left it after a stop.
    stopped = plan.stopping().config(context.folder / "stopped")
    answer["continued"] = next_start(stopped, learner, watch, order, plan.stop_at)
    return answer


def config_after(plan: Plan, context: RankContext, name: str, moment: Moment) -> Any:
    """The config of a start on what a kill at that moment leaves."""
    # The folder keeps its name, which may be part of what is saved in it.
    folder = context.folder / name / "one"
    folder.parent.mkdir()
    return plan.config(moment.restore(folder))


def next_start(
    cfg: Any, learner: SimpleNamespace, watch: Watch, order: Sequence[Sequence[int]], near: int
) -> dict[str, Any]:
    """A start in a folder that a kill or a stop has left: where it began, how it ended."""
    watch.begin()
    start: dict[str, Any] = {"raised": ""}
    try:
        start["summary"] = plain_summary(learner.run(cfg), cfg.run_dir)
    except Exception as error:
        start["raised"] = f"{type(error).__name__}: {shortened(str(error), 160)}"
    steps = watch.steps()
    start |= {"began": began(steps, order, near), "steps": steps, "true": true_hash(watch)}
    return start


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
