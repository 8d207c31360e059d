import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from trainer_core.checkpoint import build_checkpoint, restore_if_present, save_checkpoint
from trainer_core.config import TrainConfig
from trainer_core.data import MicroBatch, ResumeAwareDistributedSampler, TrainingView
from trainer_core.data import build_dataloader, build_dataset, plan_steps
from trainer_core.distributed import RankInfo, cleanup_dist, maybe_init_dist, wrap_model
from trainer_core.journal import Journal, say
from trainer_core.metrics import Sink, StepTimers, phase
from trainer_core.model import build_model, build_optimizer, build_scaler, learning_rate_at
from trainer_core.model import weights_sha256
from trainer_core.publish import CheckpointWriter
from trainer_core.rng import restore_rng, setup_seed
from trainer_core.runfolder import agree_on_start, confirm_run_dir, prepare_run_dir
from trainer_core.settings import UserError
from trainer_core.together import all_ranks_together, any_rank, raise_together, stop_on_sigterm
from trainer_core.train import Trainer, read_records, train_step


def run(cfg: TrainConfig, *, sinks: Sequence[Sink] = ()) -> dict[str, Any]:
    """Train to the end of the plan, from wherever the run folder says.

    Collective: every rank of the job, with the same ``cfg``.

    Returns:
        status ("done" or "preempted"), step, epoch (completed), loss, weights_sha256, run_dir.

    Raises:
        UserError: on every rank, if the user can mend it.
    """
    # Before SIGTERM is answered between two steps: a rank whose peer has died waits here.
    info = maybe_init_dist(cfg)
    with stop_on_sigterm() as stop:
        try:
            # A frame of its own: when it is gone, so are the DDP wrapper and its hooks.
            result = train_run(replace(cfg, world_size=info.world_size), info, stop, sinks)
        except UserError as error:  # all ranks have raised it
            # Its frames hold the DDP wrapper, which must be gone before the group is.
            traceback.clear_frames(error.__traceback__)
            cleanup_dist()
            raise
        # After any other error a peer may be dead. Closing the group would wait for what it
        # still owes, so the group is left to the end of the process.
        cleanup_dist()
        return result


def train_run(
    cfg: TrainConfig, info: RankInfo, stop: threading.Event, sinks: Sequence[Sink]
) -> dict[str, Any]:
    """Build the parts in the one order that works, restore, and train.

    Weights before the optimizer that points at them; both restored before DDP, which copies
    rank 0's; random streams last, because everything before draws from them.

    Collective: every rank.
    """
    with all_ranks_together():
        source = build_dataset(cfg)
        schedule = plan_steps(cfg, source)
    start = agree_on_start(cfg, source, schedule)
    cfg, device = start.cfg, info.device
    view = TrainingView(source, seed=cfg.seed, input_noise=cfg.input_noise)
    nothing = view.__getitems__([])
    setup_seed(cfg.seed, "weights")
    model = build_model(cfg, nothing.inputs.shape[-1], source.num_classes).to(device)
    optimizer, scaler = build_optimizer(cfg, model), build_scaler(cfg, device)
    sampler = ResumeAwareDistributedSampler(schedule, cfg, info.rank, info.world_size)
    parts = {"model": model, "optimizer": optimizer, "scaler": scaler, "sampler": sampler}
    with all_ranks_together(start.checkpoint):
        state = restore_if_present(start.checkpoint, parts, device)
    status, loss = "done", state["losses"][-1] if state else None
    if sampler.position < schedule.total_steps:
        timers = StepTimers(device)
        wrapped = wrap_model(model, info, nothing.inputs)
        if info.world_size > 1:
            timers.watch_gradients(model)
        setup_seed(cfg.seed, "rank", info.rank, sampler.position)
        with all_ranks_together(start.checkpoint):
            restore_rng(start.checkpoint, info.rank)
        with all_ranks_together():
            prepare_run_dir(start, info.rank)
        with all_ranks_together():
            confirm_run_dir(start)
            journal = Journal(start, info, sampler, timers, sinks, state)
        trainer = Trainer(cfg, device, wrapped, optimizer, scaler, timers)
        batches = iter(build_dataloader(view, sampler, cfg, device))
        where, event = cfg.run_dir / "checkpoints", journal.event
        writer = CheckpointWriter(where, cfg.keep_last, cfg.async_checkpoint, event)
        try:
            status = train_loop(trainer, parts, batches, nothing, journal, writer, stop)
        finally:
            journal.watchdog.close()  # no step is due any more
            writer.pool.shutdown()  # a save in flight is finished, whatever else has failed
            journal.close()
        loss = journal.losses[-1]
    elif info.rank == 0:
        say(f"{cfg.run_dir}: finished at step {sampler.position} already; nothing is changed")
    return {
        "status": status,
        "step": sampler.position,
        "epoch": sampler.position // schedule.steps_per_epoch,
        "loss": loss,
        "weights_sha256": weights_sha256(model),
        "run_dir": str(cfg.run_dir),
    }


def train_loop(
    trainer: Trainer,
    parts: dict[str, Any],
    batches: Iterator[MicroBatch],
    nothing: MicroBatch,
    journal: Journal,
    writer: CheckpointWriter,
    stop: threading.Event,
) -> str:
    """Train to the end of the plan ("done") or to a SIGTERM on any rank ("preempted").

    Whatever is collective here happens on every rank after the same step, so that no rank waits
    for one that does not come.

    Collective: every rank.
    """
    cfg, timers, sampler = trainer.cfg, trainer.timers, parts["sampler"]
    schedule = sampler.schedule
    stopping, timers.step_start = False, timers.stamp()
    while sampler.position < schedule.total_steps and not stopping:
        step, began = sampler.position + 1, time.perf_counter()
        _, first, last = schedule.slots(sampler.position)
        lr = learning_rate_at(cfg, step)
        with phase(timers, "data_wait"):
            micro_batches, error = next_step(batches, sampler.micro_steps, nothing)
        error = error or writer.error() or journal.error
        answers = any_rank(stop.is_set(), error is not None)
        withheld = train_step(trainer, micro_batches, last - first, lr)
        stopping, failing = answers()
        if failing:
            raise_together(error)
        sampler.commit()
        journal.trained(step, micro_batches, withheld, time.perf_counter() - began)
        ends = stopping or step == schedule.total_steps
        saves = ends or last == schedule.num_samples or step % cfg.checkpoint_every_steps == 0
        logs = ends or step % cfg.log_every == 0
        # On a CPU the flag is at hand: a run that must stop does so in the very step.
        if saves or logs or (not withheld.is_cuda and withheld.item()):
            journal.read(step, lr, read_records(trainer, step))
        if saves:
            with phase(timers, "checkpoint"):
                save(parts, journal, writer)
        timers.end_step(step)
        if logs:
            journal.progress(step, timers)
    with all_ranks_together():
        writer.wait()
    status = "done" if sampler.position == schedule.total_steps else "preempted"
    journal.event("run_end" if status == "done" else "preempted", step=step, status=status)
    raise_together(journal.error)
    return status


def next_step(
    batches: Iterator[MicroBatch], micro_steps: int, nothing: MicroBatch
) -> tuple[list[MicroBatch], BaseException | None]:
    """A step's micro-batches, or an empty one and the error that the loader has met.

    The rank then still joins the gradients' sync, and all ranks raise after it.
    """
    try:
        return [next(batches) for _ in range(micro_steps)], None
    except Exception as error:  # raised on all ranks by the caller
        if isinstance(error, UserError):  # a loader worker has wrapped it in a traceback's text
            error = UserError(str(error).rpartition("UserError: ")[2].strip())
        return [nothing], error


def save(parts: dict[str, Any], journal: Journal, writer: CheckpointWriter) -> None:
    """Save the state after the last committed step. Collective: every rank."""
    raise_together(journal.error)  # every line of the ledger is on disk, on every rank
    step, record = parts["sampler"].position, journal.start.record
    when = {"step": step, "epoch": step // journal.schedule.steps_per_epoch}
    state = build_checkpoint(parts, **when, learning_rate=journal.lr, losses=journal.losses)
    now = {"time": time.time(), "world_size": journal.start.cfg.world_size}
    save_checkpoint(writer, state, {**record, **when, **now})
    journal.watchdog.beat(step)  # the time of the save is not the next step's
