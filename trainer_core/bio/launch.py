"""The loop around the step, for the biotech track.

Cell 8's loop with a task's model, loss and count of terms. Everything that survives a crash is
the trainer's own: order, position, ledger, checkpoints, and the vote before each step.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

# %% active="py"
from trainer_core.bio.config import BioConfig
from trainer_core.bio.evaluation import evaluate
from trainer_core.bio.sources import build_task
from trainer_core.bio.step import task_step
from trainer_core.bio.tasks import Task, VisitView
from trainer_core.checkpoint import restore_if_present
from trainer_core.collectives import any_rank, errors_on_all_ranks, gather_objects
from trainer_core.collectives import raise_on_all_ranks
from trainer_core.data import ResumeAwareDistributedSampler, StepSchedule, plan_steps
from trainer_core.distributed import RankInfo, cleanup_dist, maybe_init_dist
from trainer_core.distributed import refuse_shared_device
from trainer_core.job import Job, open_job
from trainer_core.launch import finish, next_step, read_back, save, wrap_and_seed
from trainer_core.memory import refuse_what_cannot_fit
from trainer_core.metrics import Sink, StepTimers, phase
from trainer_core.model import build_optimizer, build_scaler, learning_rate_at, weights_sha256
from trainer_core.order import EpochOrder
from trainer_core.resume import decide_start, run_identity
from trainer_core.rng import setup_seed
from trainer_core.run_folder import Start, agent_of_this_rank, observed_state
from trainer_core.run_log import print_status
from trainer_core.settings import UserError
from trainer_core.signals import stop_on_sigterm
from trainer_core.train import Trainer


# %%
def run_task(cfg: BioConfig, *, sinks: Sequence[Sink] = ()) -> dict[str, Any]:
    """Train to the end of the plan, from wherever the run folder says.

    Collective: every rank of the job, with the same ``cfg``.

    Returns:
        What ``trainer_core.launch.run`` returns.

    Raises:
        UserError: on every rank, if the user can fix it.
    """
    info = maybe_init_dist(cfg)
    with stop_on_sigterm() as stop:
        try:
            refuse_shared_device(info)
            result = train_task(replace(cfg, world_size=info.world_size), info, stop, sinks)
        except UserError as error:  # raised by all ranks
            # Its frames hold the DDP wrapper, which has to go before the group does.
            traceback.clear_frames(error.__traceback__)
            cleanup_dist()
            raise
        cleanup_dist()
        return result


def train_task(
    cfg: BioConfig, info: RankInfo, stop: threading.Event, sinks: Sequence[Sink]
) -> dict[str, Any]:
    """Build the parts, restore them, and train if any steps are left.

    Collective: every rank.
    """
    with errors_on_all_ranks():
        task = build_task(cfg)
        schedule = plan_steps(cfg, task)
    start = agree_on_task_start(cfg, task, schedule)
    cfg = replace(cfg, **asdict(start.cfg))
    view = VisitView(task, seed=cfg.seed)
    parts = build_task_parts(cfg, info, task, schedule)
    with errors_on_all_ranks(start.checkpoint):
        state = restore_if_present(start.checkpoint, parts, info.device)
    sampler = parts["sampler"]
    status, loss = "done", state["losses"][-1] if state else None
    if sampler.position < schedule.total_steps:
        timers = StepTimers(info.device)
        wrapped = wrap_and_seed(start, info, parts, view, timers)
        trainer = Trainer(
            cfg, info.device, wrapped, parts["optimizer"], parts["scaler"], timers
        )
        with open_job(start, info, trainer, parts, view, state, sinks) as job:
            status = task_loop(job, task, stop)
        loss = job.progress.losses[-1]
    elif info.rank == 0:
        print_status(f"{cfg.run_dir}: already finished at step {sampler.position}; unchanged")
    return {
        "status": status,
        "step": sampler.position,
        "epoch": sampler.position // schedule.steps_per_epoch,
        "loss": loss,
        "weights_sha256": weights_sha256(parts["model"]),
        "run_dir": str(cfg.run_dir),
    }


def build_task_parts(
    cfg: BioConfig, info: RankInfo, task: Task, schedule: StepSchedule
) -> dict[str, Any]:
    """What a checkpoint saves and restores, in the order in which it must be built."""
    setup_seed(cfg.seed, "weights")
    model = task.build_model(cfg).to(info.device)
    return {
        "model": model,
        "optimizer": build_optimizer(cfg, model),
        "scaler": build_scaler(cfg, info.device),
        "sampler": ResumeAwareDistributedSampler(schedule, cfg, info.rank, info.world_size),
    }


def agree_on_task_start(cfg: BioConfig, task: Task, schedule: StepSchedule) -> Start:
    """Rank 0 reads the run folder and decides; the others follow if they see the same.

    Collective: every rank.

    Raises:
        UserError: on every rank: what rank 0 found, or that the ranks see different things.
    """
    with errors_on_all_ranks():
        refuse_what_cannot_fit(cfg, schedule.num_samples)
        identity = run_identity(cfg, schedule, task.fingerprint)
    agents = sorted({agent for agent in gather_objects(agent_of_this_rank()) if agent})
    start = None
    with errors_on_all_ranks():
        if not dist.is_initialized() or dist.get_rank() == 0:
            start = decide_start(cfg, schedule, identity, agents)
    shared = gather_objects(start and asdict(start))[0]
    agreed = Start(**{**shared, "cfg": BioConfig(**shared["cfg"])})
    with errors_on_all_ranks():
        seen = {"folder": observed_state(agreed.cfg.run_dir), **identity}
    for rank, theirs in enumerate(gather_objects(seen)):
        if theirs != seen:
            differs = {n: (seen[n], theirs[n]) for n in seen if seen[n] != theirs[n]}
            raise UserError(
                f"{agreed.cfg.run_dir}: this rank and rank {rank} see different values: "
                f"{differs}. With different checkpoints or data, ranks train different "
                "weights. Put --run-dir and the data on a disk that all nodes share, and give "
                "all the same flags."
            )
    return agreed


# %%
def task_loop(job: Job, task: Task, stop: threading.Event) -> str:
    """Train to the end of the plan ("done") or to a SIGTERM on any rank ("preempted").

    As cell 8's, which explains the order of what happens here; a step is weighted by its terms.

    Collective: every rank.
    """
    trainer, sampler, timers = job.trainer, job.parts["sampler"], job.trainer.timers
    cfg, schedule = trainer.cfg, sampler.schedule
    stopping = False
    timers.step_start = timers.stamp()
    while sampler.position < schedule.total_steps and not stopping:
        began = time.perf_counter()
        step = sampler.position + 1
        lr = learning_rate_at(cfg, step)
        num_terms = task.num_terms(bins_of_step(sampler))
        with phase(timers, "data_wait"):
            micro_batches, error = next_step(job.batches, sampler.micro_steps, job.empty_batch)
        error = error or job.writer.error() or job.errors.first
        answers = any_rank(stop.is_set(), error is not None)
        skipped = task_step(trainer, task, micro_batches, num_terms, lr)
        stopping, failing = answers()
        if failing:
            raise_on_all_ranks(error)
        sampler.commit()
        job.watchdog.beat(step)
        job.ledger.add(step, micro_batches, skipped, time.perf_counter() - began)
        ends = stopping or step == schedule.total_steps
        ends_epoch = step % schedule.steps_per_epoch == 0
        saves = ends or ends_epoch or step % cfg.checkpoint_every_steps == 0
        logs = ends or step % cfg.log_every == 0
        if saves or logs or (not skipped.is_cuda and skipped.item()):
            read_back(job, step, lr)
        if saves:
            with phase(timers, "checkpoint"):
                save(job)
            job.watchdog.beat(step)
        timers.end_step(step)
        if logs:
            job.progress.report(step)
    if sampler.position == schedule.total_steps:
        evaluate(job, task)
    return finish(job)


def bins_of_step(sampler: ResumeAwareDistributedSampler) -> NDArray[np.int64]:
    """The bins of all ranks in the step to come."""
    schedule = sampler.schedule
    epoch, first, last = schedule.slots(sampler.position)
    order = EpochOrder(schedule.num_samples, seed=sampler.seed, epoch=epoch)
    return order.samples(first, last)
