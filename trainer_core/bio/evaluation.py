"""How good is the model on what it wasn't trained on? Once, over all ranks.

The question it answers: "each rank has scored a part of the validation set; what may be
averaged, and what must be gathered?"
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

# %% active="py"
from trainer_core.bio.tasks import Task
from trainer_core.distributed import unwrap
from trainer_core.job import Job
from trainer_core.run_log import print_status


# %%
@runtime_checkable
class Evaluated(Protocol):
    """A task with a validation part."""

    def evaluate(
        self, model: nn.Module, device: torch.device, rank: int, world_size: int
    ) -> Mapping[str, Any]:
        """The figures, and ``summary``: one line for the terminal. Equal on all ranks.

        ``model`` is in eval mode. Collective: every rank.
        """


def evaluate(job: Job, task: Task) -> None:
    """Log a task's figures as an ``evaluated`` event, and print them on rank 0.

    The model is left as it was found: evaluation must not change training.

    Collective: every rank.
    """
    if not isinstance(task, Evaluated):
        return
    trainer, step = job.trainer, job.parts["sampler"].position
    model, rank = unwrap(trainer.model), job.log.log.common["rank"]
    was_training = model.training
    model.eval()
    with torch.no_grad():
        figures = task.evaluate(model, trainer.device, rank, trainer.cfg.world_size)
    model.train(was_training)
    job.log.event("evaluated", step=step, **figures)
    if rank == 0:
        print_status(f"validation: {figures['summary']}")
