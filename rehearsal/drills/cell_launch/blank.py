import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from trainer_core.checkpoint import build_checkpoint, latest_checkpoint_path
from trainer_core.checkpoint import restore_if_present, save_checkpoint
from trainer_core.checkpoint_writer import CheckpointWriter
from trainer_core.config import TrainConfig
from trainer_core.data import MicroBatch, ResumeAwareDistributedSampler, TrainingView
from trainer_core.data import build_dataloader, build_dataset, plan_steps
from trainer_core.distributed import RankInfo, cleanup_dist, maybe_init_dist, wrap_model
from trainer_core.job import Job, open_job
from trainer_core.metrics import Sink, StepTimers, phase
from trainer_core.model import build_model, build_optimizer, build_scaler, learning_rate_at
from trainer_core.model import weights_sha256
from trainer_core.rng import restore_rng, setup_seed
from trainer_core.resume import agree_on_start
from trainer_core.run_folder import Start
from trainer_core.run_log import print_status
from trainer_core.settings import UserError
from trainer_core.collectives import any_rank, errors_on_all_ranks, raise_on_all_ranks
from trainer_core.signals import stop_on_sigterm
from trainer_core.train import Trainer, read_records, train_step


def run(cfg: TrainConfig, *, sinks: Sequence[Sink] = ()) -> dict[str, Any]:
    """Train to the end of the plan, from wherever the run folder says.

    Collective: every rank of the job, with the same ``cfg``.

    Returns:
        status ("done" or "preempted"), step, epoch (completed), loss, weights_sha256, run_dir.

    Raises:
        Exception: on every rank, if any rank meets one.
    """
    raise NotImplementedError
