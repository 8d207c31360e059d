# Derived by scripts/sync_notebooks.py; edit trainer_core/launch.py.
from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from trainer_core.checkpoint import build_checkpoint, restore_if_present, save_checkpoint
from trainer_core.collectives import any_rank, errors_on_all_ranks, raise_on_all_ranks
from trainer_core.config import TrainConfig
from trainer_core.data import (
    MicroBatch,
    ResumeAwareDistributedSampler,
    StepSchedule,
    TrainingView,
    build_dataset,
    plan_steps,
)
from trainer_core.distributed import (
    RankInfo,
    cleanup_dist,
    maybe_init_dist,
    refuse_shared_device,
    wrap_model,
)
from trainer_core.job import Job, open_job
from trainer_core.metrics import Sink, StepTimers, phase
from trainer_core.model import (
    build_model,
    build_optimizer,
    build_scaler,
    learning_rate_at,
    weights_sha256,
)
from trainer_core.resume import agree_on_start
from trainer_core.rng import restore_rng, setup_seed
from trainer_core.run_folder import Start
from trainer_core.run_log import print_status
from trainer_core.settings import UserError
from trainer_core.signals import stop_on_sigterm
from trainer_core.train import Trainer, read_records, train_step


def run(cfg: TrainConfig, *, sinks: Sequence[Sink] = ()) -> dict[str, Any]:
    """Train to the end of the plan, from wherever the run folder says.

    Collective: every rank of the job, with the same ``cfg``.

    Returns:
        status ("done" or "preempted"), step, epoch (completed), loss, weights_sha256, run_dir.

    Raises:
        UserError: on every rank, if the user can fix it.
    """
    # Outside stop_on_sigterm: SIGTERM must still end a rank that waits in here for a dead peer.
    info = maybe_init_dist(cfg)
    with stop_on_sigterm() as stop:
        try:
            refuse_shared_device(info)
            # In a function of its own: when it returns, the DDP wrapper and its hooks are gone.
            result = train_run(replace(cfg, world_size=info.world_size), info, stop, sinks)
        except UserError as error:  # raised by all ranks
            # Its frames hold the DDP wrapper, which has to go before the group does.
            traceback.clear_frames(error.__traceback__)
            cleanup_dist()
            raise
        # After any other error a peer may be dead, and closing the group would wait for it. So
        # the group stays open until the process exits.
        cleanup_dist()
        return result


def train_run(
    cfg: TrainConfig, info: RankInfo, stop: threading.Event, sinks: Sequence[Sink]
) -> dict[str, Any]:
    """Build the parts, restore them, and train if any steps are left.

    Collective: every rank.
    """
    with errors_on_all_ranks():
        source = build_dataset(cfg)
        schedule = plan_steps(cfg, source)
    start = agree_on_start(cfg, source, schedule)
    cfg = start.cfg
    view = TrainingView(source, seed=cfg.seed, input_noise=cfg.input_noise)
    parts = build_parts(cfg, info, view, schedule)
    with errors_on_all_ranks(start.checkpoint):
        state = restore_if_present(start.checkpoint, parts, info.device)
    sampler = parts["sampler"]
    status = "done"
    loss = state["losses"][-1] if state else None
    if sampler.position < schedule.total_steps:
        timers = StepTimers(info.device)
        wrapped = wrap_and_seed(start, info, parts, view, timers)
        trainer = Trainer(
            cfg, info.device, wrapped, parts["optimizer"], parts["scaler"], timers
        )
        with open_job(start, info, trainer, parts, view, state, sinks) as job:
            status = train_loop(job, stop)
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


def build_parts(
    cfg: TrainConfig, info: RankInfo, view: TrainingView, schedule: StepSchedule
) -> dict[str, Any]:
    """What a checkpoint saves and restores, in the order in which it must be built.

    The optimizer points at the model's parameters, so it comes after whatever replaces them: a
    move to the device, or ``fully_shard``. An optimizer made earlier would update nothing.
    """
    input_dim = view.empty_batch.inputs.shape[-1]
    setup_seed(cfg.seed, "weights")
    model = build_model(cfg, input_dim, view.source.num_classes).to(info.device)
    return {
        "model": model,
        "optimizer": build_optimizer(cfg, model),
        "scaler": build_scaler(cfg, info.device),
        "sampler": ResumeAwareDistributedSampler(schedule, cfg, info.rank, info.world_size),
    }


def wrap_and_seed(
    start: Start,
    info: RankInfo,
    parts: Mapping[str, Any],
    view: TrainingView,
    timers: StepTimers,
) -> nn.Module:
    """Wrap the model for data parallelism, then set this rank's random states.

    The random states come last, because everything before may draw from them.

    Collective: every rank.
    """
    wrapped = wrap_model(parts["model"], info, view.empty_batch.inputs)
    if info.world_size > 1:
        timers.watch_gradients(parts["model"])
    setup_seed(start.cfg.seed, "rank", info.rank, parts["sampler"].position)
    with errors_on_all_ranks(start.checkpoint):
        restore_rng(start.checkpoint, info.rank)
    return wrapped


def train_loop(job: Job, stop: threading.Event) -> str:
    """Train to the end of the plan ("done") or to a SIGTERM on any rank ("preempted").

    Every collective in here happens on every rank after the same step, so no rank waits for one
    that never arrives.

    Collective: every rank.
    """
    trainer, sampler, timers = job.trainer, job.parts["sampler"], job.trainer.timers
    cfg, schedule = trainer.cfg, sampler.schedule
    stopping = False
    timers.step_start = timers.stamp()
    while sampler.position < schedule.total_steps and not stopping:
        began = time.perf_counter()
        step = sampler.position + 1
        _, first, last = schedule.slots(sampler.position)
        lr = learning_rate_at(cfg, step)
        with phase(timers, "data_wait"):
            micro_batches, error = next_step(job.batches, sampler.micro_steps, job.empty_batch)
        error = error or job.writer.error() or job.errors.first
        # The vote travels while the step computes. Acting on it only afterwards keeps a rank
        # with an error in the step's collectives.
        answers = any_rank(stop.is_set(), error is not None)
        skipped = train_step(trainer, micro_batches, last - first, lr)
        stopping, failing = answers()
        if failing:
            raise_on_all_ranks(error)
        sampler.commit()
        job.watchdog.beat(step)
        job.ledger.add(step, micro_batches, skipped, time.perf_counter() - began)
        ends = stopping or step == schedule.total_steps
        saves = ends or last == schedule.num_samples or step % cfg.checkpoint_every_steps == 0
        logs = ends or step % cfg.log_every == 0
        # On a CPU the flag costs nothing to read: a run that must stop does so in this step.
        if saves or logs or (not skipped.is_cuda and skipped.item()):
            read_back(job, step, lr)
        if saves:
            with phase(timers, "checkpoint"):
                save(job)
            job.watchdog.beat(step)  # so the next step isn't charged for the save
        timers.end_step(step)
        if logs:
            job.progress.report(step)
    return finish(job)


def next_step(
    batches: Iterator[MicroBatch], micro_steps: int, empty_batch: MicroBatch
) -> tuple[list[MicroBatch], BaseException | None]:
    """A step's micro-batches; or an empty one, and the error that the loader raised.

    With the empty batch this rank can still join the gradient sync. All ranks raise after it.
    """
    try:
        return [next(batches) for _ in range(micro_steps)], None
    except Exception as error:  # the caller raises it on all ranks
        if isinstance(error, UserError):  # a loader worker wraps it in the text of a traceback
            error = UserError(str(error).rpartition("UserError: ")[2].strip())
        return [empty_batch], error


def read_back(job: Job, step: int, lr: float) -> None:
    """Read the results of the last steps from the device, and record them.

    Collective: every rank, after the same steps.
    """
    try:
        records = read_records(job.trainer, step)
    except UserError:  # a step wasn't finite; its ledger line says which samples it had
        job.ledger.flush()
        raise
    job.ledger.flush()
    job.progress.add(records, lr)
    job.resume_check.add(step, [record.loss for record in records])


def save(job: Job) -> None:
    """Save the state after the last committed step. Collective: every rank."""
    raise_on_all_ranks(job.errors.first)  # now all ledger lines are written, on every rank
    sampler = job.parts["sampler"]
    step = sampler.position
    epoch = step // sampler.schedule.steps_per_epoch
    state = build_checkpoint(
        job.parts,
        step=step,
        epoch=epoch,
        learning_rate=job.progress.lr,
        losses=job.progress.losses,
    )
    manifest = {
        **job.start.record,
        "attempt": job.start.attempt,
        "step": step,
        "epoch": epoch,
        "time": time.time(),
        "world_size": job.start.cfg.world_size,
    }
    save_checkpoint(job.writer, state, manifest)


def finish(job: Job) -> str:
    """Wait for the last save, then log and return how the run ended. Collective: every rank."""
    with errors_on_all_ranks():
        job.writer.wait()
    sampler = job.parts["sampler"]
    is_done = sampler.position == sampler.schedule.total_steps
    status = "done" if is_done else "preempted"
    job.log.event("run_end" if is_done else "preempted", step=sampler.position, status=status)
    raise_on_all_ranks(job.errors.first)
    return status
