"""The loop around the step: start or resume, train, save, stop when asked, start again.

Cell 8. The question it answers: "the same command is run again after a crash; what happens, on
every rank, in which order?"
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

# %% active="py"
from trainer_core.checkpoint import build_checkpoint, restore_if_present, restore_rng
from trainer_core.checkpoint import save_checkpoint, validate_resume
from trainer_core.config import TrainConfig
from trainer_core.data import (
    MicroBatch,
    ResumeAwareDistributedSampler,
    StepSchedule,
    TrainingView,
)
from trainer_core.data import build_dataloader, build_dataset, plan_steps
from trainer_core.distributed import RankInfo, all_ranks_together, any_rank, cleanup_dist
from trainer_core.distributed import gather_objects, maybe_init_dist, raise_together
from trainer_core.distributed import unwrap, wrap_model
from trainer_core.journal import Journal
from trainer_core.metrics import Sink, StepTimers, phase
from trainer_core.model import build_model, build_optimizer, build_scaler, learning_rate_at
from trainer_core.model import weights_sha256
from trainer_core.publish import CheckpointWriter, remove_leftovers, set_aside
from trainer_core.rng import setup_seed
from trainer_core.runfolder import Start, decide_start, run_view, write_run_record
from trainer_core.settings import UserError
from trainer_core.sources import SampleSource
from trainer_core.train import StepRecord, Trainer, read_records, train_step


# %%
def run(cfg: TrainConfig, *, sinks: Sequence[Sink] = ()) -> dict[str, Any]:
    """Train to the end of the plan, from wherever the run folder says.

    Collective: every rank of the job, with the same ``cfg``.

    Returns:
        status ("done" or "preempted"), step, epoch (completed), loss, weights_sha256, run_dir.

    Raises:
        UserError: on every rank, if the user can mend it.
    """
    with stop_on_sigterm() as stop:
        info = maybe_init_dist(cfg)
        try:
            # A frame of its own: when it is gone, so are the DDP wrapper and its hooks.
            return train_run(replace(cfg, world_size=info.world_size), info, stop, sinks)
        finally:
            cleanup_dist()


@contextmanager
def stop_on_sigterm() -> Iterator[threading.Event]:
    """An event that SIGTERM sets; the loop looks at it between two steps."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may take signals
        return
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)


def agree_on_start(
    cfg: TrainConfig, info: RankInfo, source: SampleSource, schedule: StepSchedule
) -> Start:
    """Rank 0 reads and decides; the others follow if they see the same folder.

    Collective: every rank.
    """
    start: Start | None = None
    with all_ranks_together():
        if info.rank == 0:
            start = decide_start(cfg, source, schedule)
    agreed: Start = gather_objects(start)[0]
    views = gather_objects(run_view(agreed.cfg.run_dir))
    for rank, view in enumerate(views):
        if view != views[0]:
            raise UserError(
                f"{agreed.cfg.run_dir}: rank 0 sees {views[0]}, rank {rank} sees {view}. With "
                "different checkpoints the ranks would train from different weights. Put "
                "--run-dir on a disk that all nodes share."
            )
    return agreed


# %%
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
    start = agree_on_start(cfg, info, source, schedule)
    cfg, folder = start.cfg, start.checkpoint
    view = TrainingView(source, seed=cfg.seed, input_noise=cfg.input_noise)
    nothing = view.__getitems__([])
    setup_seed(cfg.seed, "weights")
    model = build_model(cfg, nothing.inputs.shape[-1], source.num_classes).to(info.device)
    optimizer, scaler = build_optimizer(cfg, model), build_scaler(cfg, info.device)
    sampler = ResumeAwareDistributedSampler(
        schedule, cfg, rank=info.rank, world_size=info.world_size
    )
    with all_ranks_together():
        state = restore_if_present(folder, model, optimizer, scaler, info.device)
    losses: deque[float] = deque(maxlen=20)
    if state is not None:
        sampler.load_state_dict(state["sampler"])
        losses.extend(state["losses"])
    status = "done"
    if sampler.position < schedule.total_steps:
        timers = StepTimers(info.device)
        wrapped = wrap_model(model, info, nothing.inputs)
        if info.world_size > 1:
            timers.watch_gradients(model)
        setup_seed(cfg.seed, "rank", info.rank, sampler.position)
        if folder is not None:
            restore_rng(folder, info.rank)
        trainer = Trainer(cfg, info.device, wrapped, optimizer, scaler, timers)
        loop = TrainingLoop(trainer, sampler, start, info, sinks, state, losses)
        status = loop.train(
            iter(build_dataloader(view, sampler, cfg, info.device)), nothing, stop
        )
    elif info.rank == 0:
        say(f"{cfg.run_dir}: finished at step {sampler.position} already; nothing is changed")
    return {
        "status": status,
        "step": sampler.position,
        "epoch": sampler.position // schedule.steps_per_epoch,
        "loss": losses[-1] if losses else None,
        "weights_sha256": weights_sha256(model),
        "run_dir": str(cfg.run_dir),
    }


def say(text: str) -> None:
    """A line for the person at rank 0's terminal."""
    print(text, file=sys.stderr, flush=True)


# %%
class TrainingLoop:
    """From the restored position to the end of the plan, or to a SIGTERM.

    Whatever is collective happens on every rank after the same step, so that no rank waits for
    one that does not come.

    Args:
        state: the restored checkpoint, until the resume is validated.
        losses: of the last steps, over the global batch; goes into each checkpoint.
    """

    def __init__(
        self,
        trainer: Trainer,
        sampler: ResumeAwareDistributedSampler,
        start: Start,
        info: RankInfo,
        sinks: Sequence[Sink],
        state: dict[str, Any] | None,
        losses: deque[float],
    ) -> None:
        self.trainer, self.sampler, self.cfg, self.start = trainer, sampler, start.cfg, start
        self.schedule, self.state, self.losses = sampler.schedule, state, losses
        self.resumed_at, self.next_losses = sampler.position, list[float]()
        self.unread_sizes: list[int] = []  # samples in each step whose record is unread
        run_dir = self.cfg.run_dir
        if info.rank == 0:
            write_run_record(run_dir, start.record)
            remove_leftovers(run_dir / "checkpoints", "tmp-*")
        self.journal = Journal(
            self.cfg,
            info,
            self.schedule,
            sinks,
            attempt=start.attempt,
            run_id=start.record["run_id"],
            position=sampler.position,
        )
        self.writer = CheckpointWriter(
            run_dir / "checkpoints",
            self.cfg.keep_last,
            self.cfg.async_checkpoint,
            lambda step, seconds: self.journal.event(
                "checkpoint_saved", step=step, seconds=seconds
            ),
        )
        self.announce(info)

    def announce(self, info: RankInfo) -> None:
        """Log how this attempt begins, and set damaged checkpoints aside."""
        position, start, sizes = self.sampler.position, self.start, self.start.record
        sizes = {name: sizes[name] for name in ("digest", "steps_per_epoch", "total_steps")}
        sizes |= {"global_batch_size": self.schedule.global_batch_size}
        sizes |= {"world_size": info.world_size, "micro_steps": self.sampler.micro_steps}
        self.journal.event("run_start", step=position, device=str(info.device), **sizes)
        for folder, reason in start.damaged.items():
            aside = set_aside(folder).name if info.rank == 0 else None
            names = {"folder": folder.name, "renamed_to": aside}
            self.journal.event("checkpoint_rejected", step=position, reason=reason, **names)
        if start.changes:
            self.journal.event("config_changed", step=position, changes=start.changes)
        if start.checkpoint is not None:
            name = start.checkpoint.name
            self.journal.event("checkpoint_restored", step=position, folder=name)
        if info.rank == 0:
            shown = ", ".join(
                f"{name} {value}" for name, value in sizes.items() if name != "digest"
            )
            say(f"{self.cfg.run_dir}: attempt {start.attempt} after step {position}; {shown}")
            for name, (old, new) in start.changes.items():
                say(f"changed: {name} was {old}, is {new}")

    def train(
        self, batches: Iterator[MicroBatch], nothing: MicroBatch, stop: threading.Event
    ) -> str:
        """Run to the end ("done") or to a SIGTERM on any rank ("preempted").

        Collective: every rank.
        """
        cfg, sampler, schedule, timers = (
            self.cfg,
            self.sampler,
            self.schedule,
            self.trainer.timers,
        )
        stopping = False
        while sampler.position < schedule.total_steps and not stopping:
            step, began = sampler.position + 1, time.perf_counter()
            _, first, last = schedule.slots(sampler.position)
            lr = learning_rate_at(cfg, step)
            with phase(timers, "data_wait"):
                micro_batches, error = next_step(batches, sampler.micro_steps, nothing)
            error = error or self.writer.error()
            answers = any_rank(stop.is_set(), error is not None)
            withheld = train_step(self.trainer, micro_batches, last - first, lr)
            stopping, failing = answers()
            if failing:
                raise_together(error)
            sampler.commit()
            self.unread_sizes.append(last - first)
            samples = [sample for batch in micro_batches for sample in batch.samples.tolist()]
            self.journal.trained(step, samples, withheld, time.perf_counter() - began)
            ends = stopping or step == schedule.total_steps
            saves = (
                ends or last == schedule.num_samples or step % cfg.checkpoint_every_steps == 0
            )
            logs = ends or step % cfg.log_every == 0
            # On a CPU the flag is at hand: a run that must stop does so in the very step.
            if saves or logs or (not withheld.is_cuda and withheld.item()):
                records = self.judge(step)
            if saves:
                with phase(timers, "checkpoint"):
                    self.save(step, lr)
            timers.end_step(step)
            if logs:
                skipped = sum(record.skipped for record in records)
                last_record = {"loss": records[-1].loss, "grad_norm": records[-1].grad_norm}
                self.journal.progress(step, timers, lr=lr, skipped_steps=skipped, **last_record)
        with all_ranks_together():
            self.writer.wait()
        status = "preempted" if stopping else "done"
        self.journal.event("preempted" if stopping else "run_end", step=step, status=status)
        self.journal.close()
        return status

    def judge(self, step: int) -> list[StepRecord]:
        """Fetch the records since the last call; stop the run if one is not finite.

        Collective: every rank.
        """
        records = read_records(self.trainer, self.unread_sizes)
        self.unread_sizes.clear()
        for past, record in enumerate(records, start=step - len(records) + 1):
            refuse_nonfinite(self.cfg, past, record)
        self.losses.extend(record.loss for record in records)
        self.next_losses.extend(record.loss for record in records)
        if self.state and (len(self.next_losses) > 4 or step == self.schedule.total_steps):
            lr, scales = learning_rate_at(self.cfg, self.resumed_at + 1), self.cfg.amp == "fp16"
            after = self.next_losses[:5]
            checks = validate_resume(self.state, self.resumed_at, lr, scales, after)
            ok = False not in checks.values()
            self.journal.event("resume_validated", step=step, ok=ok, checks=checks)
            self.state = None
        return records

    def save(self, step: int, learning_rate: float) -> None:
        """Save the state after ``step``. Collective: every rank."""
        self.journal.flush_ledger()
        epoch, trainer = step // self.schedule.steps_per_epoch, self.trainer
        state = build_checkpoint(
            unwrap(trainer.model),
            trainer.optimizer,
            trainer.scaler,
            self.sampler.state_dict(),
            step=step,
            epoch=epoch,
            learning_rate=learning_rate,
            losses=list(self.losses),
        )
        now = {"step": step, "epoch": epoch, "time": time.time()}
        manifest = self.start.record | now | {"world_size": self.cfg.world_size}
        with all_ranks_together():
            save_checkpoint(self.writer, state, manifest)


def next_step(
    batches: Iterator[MicroBatch], micro_steps: int, nothing: MicroBatch
) -> tuple[list[MicroBatch], BaseException | None]:
    """A step's micro-batches, or an empty one and the error that the loader has met.

    The rank then still joins the gradients' sync, and all ranks raise after it.
    """
    try:
        return [next(batches) for _ in range(micro_steps)], None
    except Exception as error:  # raised on all ranks by the caller
        return [nothing], error


def refuse_nonfinite(cfg: TrainConfig, step: int, record: StepRecord) -> None:
    """Raise UserError for a step with a non-finite loss or gradient, if the run shall stop."""
    # An infinite gradient is how the fp16 scaler learns its scale; only the loss tells there.
    is_bad = not math.isfinite(record.loss) or (record.skipped and cfg.amp != "fp16")
    if is_bad and cfg.on_nonfinite == "stop":
        raise UserError(
            f"step {step}: loss {record.loss}, gradient norm {record.grad_norm}, and both must be "
            "finite. The update was withheld, and no checkpoint holds it. Look at the samples in "
            "the ledger, lower --learning-rate, or use --on-nonfinite skip."
        )
