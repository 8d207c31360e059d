"""Everything that one start of the job needs on one rank, opened and closed in order.

Supports cell 8 (launch).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

# %% active="py"
from trainer_core.checkpoint_writer import CheckpointWriter
from trainer_core.collectives import DeferredErrors, errors_on_all_ranks
from trainer_core.data import MicroBatch, TrainingView, build_dataloader
from trainer_core.distributed import RankInfo
from trainer_core.ledger import Ledger
from trainer_core.metrics import Sink
from trainer_core.progress import Progress
from trainer_core.resume_check import ResumeCheck
from trainer_core.run_folder import Start, confirm_run_dir, prepare_run_dir
from trainer_core.run_log import RunLog, log_start
from trainer_core.train import Trainer
from trainer_core.watchdog import Watchdog


# %%
@dataclass(frozen=True, slots=True)
class Job:
    """One start on one rank: what it trains, what it writes, and who watches it."""

    start: Start
    trainer: Trainer
    parts: Mapping[str, Any]  # what a checkpoint saves: model, optimizer, scaler, sampler
    batches: Iterator[MicroBatch]
    empty_batch: MicroBatch
    errors: DeferredErrors
    log: RunLog
    ledger: Ledger
    progress: Progress
    resume_check: ResumeCheck
    writer: CheckpointWriter
    watchdog: Watchdog


@contextmanager
def open_job(
    start: Start,
    info: RankInfo,
    trainer: Trainer,
    parts: Mapping[str, Any],
    view: TrainingView,
    state: Mapping[str, Any] | None,
    sinks: Sequence[Sink],
) -> Iterator[Job]:
    """Claim the run folder and open this rank's files in it.

    Collective: every rank.

    Args:
        state: the restored checkpoint, if any.
        sinks: more destinations for events.
    """
    cfg, timers, sampler = start.cfg, trainer.timers, parts["sampler"]
    schedule, position = sampler.schedule, sampler.position
    errors = DeferredErrors()
    with ExitStack() as closing:  # whatever fails, all that is open closes in reverse order
        with errors_on_all_ranks():
            if lock := prepare_run_dir(start, info.rank):
                closing.callback(lock.close)
        with errors_on_all_ranks():
            confirm_run_dir(start)
            ledger = Ledger(start, info, schedule, timers, errors)
            closing.callback(ledger.close)
            log = RunLog(start, info, schedule, sinks, errors)
            closing.callback(log.close)
            log_start(log, start, info, schedule, position)
            watchdog = Watchdog(start, info, timers, position, log.event)
        checkpoints = cfg.run_dir / "checkpoints"
        writer = CheckpointWriter(checkpoints, cfg.keep_last, cfg.async_checkpoint, log.event)
        closing.callback(writer.close)  # a save in flight finishes, whatever has failed
        closing.callback(watchdog.close)  # closes first: from then on, no step is due
        losses = state["losses"] if state else []
        yield Job(
            start=start,
            trainer=trainer,
            parts=parts,
            batches=iter(build_dataloader(view, sampler, cfg, info.device)),
            empty_batch=view.empty_batch,
            errors=errors,
            log=log,
            ledger=ledger,
            progress=Progress(start, log, schedule, timers, position, losses),
            resume_check=ResumeCheck(start, state, schedule, position, log.event),
            writer=writer,
            watchdog=watchdog,
        )
