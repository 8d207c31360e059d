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
    raise NotImplementedError
