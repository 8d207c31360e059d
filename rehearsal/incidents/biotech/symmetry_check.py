"""Does the trained network still respect the symmetries of space? Checked after training.

RUN/symmetry/rank-0.jsonl: one line per evaluation, with the largest relative error of each
symmetry, for the energies and for the vectors (where the network moves the atoms). In the
precision that the job trained in.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rehearsal.faults.breaks import wrap
from rehearsal.incidents.biotech.world import data_of
from rehearsal.incidents.world import Plan

SYMMETRY = "symmetry"  # below the run folder
NUM_GRAPHS, NUM_DRAWS = 6, 2


def keep_the_symmetry_check(plan: Plan, rank: int, attempt: int, run_dir: Path) -> None:
    """On rank 0, write a line after each evaluation of a job on graphs."""
    if data_of(plan) != "graphs" or rank:
        return

    def evaluating(evaluate: Any, job: Any, task: Any) -> None:
        evaluate(job, task)
        path = run_dir / SYMMETRY / "rank-0.jsonl"
        path.parent.mkdir(exist_ok=True)
        step = job.parts["sampler"].position
        found = {"attempt": attempt, "step": step, **errors_of(job, task)}
        with path.open("a") as file:
            file.write(json.dumps(found) + "\n")

    wrap("evaluate", evaluating)


def errors_of(job: Any, task: Any) -> dict[str, dict[str, float]]:
    """The largest error of each symmetry over some graphs that were held back."""
    from trainer_core.bio.graphs import collate_graphs
    from trainer_core.bio.symmetry import PointGraph, symmetry_report
    from trainer_core.distributed import unwrap

    model, dtype = unwrap(job.trainer.model), {"bf16": torch.bfloat16}.get(job.trainer.cfg.amp)
    was_training = model.training
    model.eval()
    graphs = task.held_back[:NUM_GRAPHS]
    batch = collate_graphs(graphs, graphs[0])
    assert batch.pos is not None
    asked = PointGraph(batch.x, batch.pos, batch.edge_index, batch.batch)
    network: Any = model.network

    def outputs(moved: PointGraph) -> Any:
        with torch.autocast("cpu", dtype) if dtype else nullcontext():
            return network(*moved, num_graphs=len(graphs))

    def energies(moved: PointGraph) -> Tensor:
        found: Tensor = outputs(moved).graphs
        return found.float()

    def vectors(moved: PointGraph) -> Tensor:
        found: Tensor = outputs(moved).displacements
        return found.float()

    found = {
        "energies": symmetry_report(energies, asked, "graph scalars", num_draws=NUM_DRAWS),
        "vectors": symmetry_report(vectors, asked, "node vectors", num_draws=NUM_DRAWS),
    }
    model.train(was_training)
    return found
