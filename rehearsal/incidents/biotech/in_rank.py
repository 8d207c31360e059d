"""One rank of a biotech job: ``in_rank.py``'s world around ``trainer_core.bio.launch``.

The functions that the world is put around have other names here; the rest is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from rehearsal.faults.breaks import wrap
from rehearsal.incidents import agent, in_rank, passing_time
from rehearsal.incidents.agent import position
from rehearsal.incidents.biotech.after_training import keep_what_is_scored
from rehearsal.incidents.biotech.batches import keep_what_batches_hold, work_of
from rehearsal.incidents.biotech.geometries import dataset_of
from rehearsal.incidents.biotech.sequences import FASTA
from rehearsal.incidents.biotech.symmetry_check import keep_the_symmetry_check
from rehearsal.incidents.biotech.world import data_of
from rehearsal.incidents.in_rank import use_code_in
from rehearsal.incidents.parts import with_parts
from rehearsal.incidents.passing_time import TakesTime
from rehearsal.incidents.world import Host, Plan

if TYPE_CHECKING:
    from rehearsal.engine.rank import RankContext

DATA = "data"  # beside the run folder: what prepare.py wrote
NO_TARGET = -100  # of a token that isn't masked
NAMES = {"train_step": "task_step", "ToyClassificationDataset.batch": "VisitView.__getitems__"}


def train(
    context: RankContext, plan: Plan, attempt: int, run_dir: str, code: str | None
) -> Any:
    """Called in each rank of each attempt; returns what ``bio.launch.run_task`` returns."""
    if code is not None:
        use_code_in(code)
    from trainer_core.bio.config import BioConfig
    from trainer_core.bio.launch import run_task

    if data_of(plan) == "molecules":
        import trainer_core.bio.molecule_task
    elif data_of(plan) == "graphs":
        import trainer_core.bio.graph_task

        wrap("planted_geometries", lambda planted: dataset_of(plan))
    else:
        import trainer_core.bio.protein_task  # noqa: F401
    data = Path(run_dir).parent / DATA
    enter(plan, context.rank, attempt, Path(run_dir))
    keep_what_batches_hold(plan, context.rank, attempt, Path(run_dir))
    keep_what_is_scored(plan, context.rank, attempt, Path(run_dir), data)
    keep_the_symmetry_check(plan, context.rank, attempt, Path(run_dir))
    names = [spec for spec in BioConfig.__dataclass_fields__ if spec in plan.settings]
    chosen = {name: plan.settings[name] for name in names}
    if data_of(plan) == "molecules":
        chosen["data"] = f"molecules:{data / 'prepared'}"
    elif data_of(plan) == "proteins":
        chosen["data"] = f"proteins:{data / FASTA}"
    return run_task(BioConfig(**{**plan.fixed, **chosen, "run_dir": Path(run_dir)}))


def wrap_named(name: str, around: Callable[..., Any]) -> None:
    """``wrap`` the function that a biotech job has in place of another one."""
    wrap(NAMES.get(name, name), around)


def follow_the_loop() -> None:
    """Remember the loop's sampler, which knows the step."""

    def looping(task_loop: Any, job: Any, *rest: Any) -> Any:
        position.sampler = job.parts["sampler"]
        return task_loop(job, *rest)

    wrap("task_loop", looping)


def pass_time_in_compute(seconds: float, host: Host, mib_per_sample: float) -> None:
    """Make each forward and backward pass take the host's time, and count the loss's terms."""
    waits = iter([host.first_step_ms / 1e3])

    def computing(summed_task_loss: Any, trainer: Any, task: Any, *batch: Any) -> Tensor:
        time.sleep(next(waits, 0.0))
        apply: Any = TakesTime.apply
        inputs, targets = batch
        takes = seconds * host.compute_factor * work_of(inputs)
        loss: Tensor = apply(summed_task_loss(trainer, task, *batch), takes)
        position.add_loss(loss, num_terms_of(targets) if len(inputs) else 0)
        return loss

    wrap("summed_task_loss", computing)


def num_terms_of(targets: Tensor) -> int:
    """Labels that are there, or residues that are masked."""
    known = ~targets.isnan() if targets.is_floating_point() else targets != NO_TARGET
    return int(known.sum())


enter = with_parts(
    in_rank.enter,
    follow_the_loop=follow_the_loop,
    pass_time_in_compute=pass_time_in_compute,
    pass_time_in_reads=with_parts(passing_time.pass_time_in_reads, wrap=wrap_named),
    watch=with_parts(agent.watch, wrap=wrap_named),
    change_samples=lambda plan: None,  # of the toy data
)
