"""What a rank scored at the end of its training, kept for whoever asks.

RUN/scores/rank-0.jsonl: one line per evaluation. On every rank, the molecules that it scored,
with the scores and the labels that it had. On rank 0 also the test part and the batch that was
measured later, scored by the same model, and what the training labels were.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rehearsal.faults.breaks import wrap
from rehearsal.incidents.biotech.library import truth_of
from rehearsal.incidents.biotech.geometries import fresh_of
from rehearsal.incidents.biotech.world import data_of
from rehearsal.incidents.world import Plan

SCORES = "scores"  # below the run folder
TEST = 2
Scored = list[tuple[Any, Any]]  # rows, and their scores


def keep_what_is_scored(plan: Plan, rank: int, attempt: int, run_dir: Path, data: Path) -> None:
    """Write a line after each evaluation."""
    if data_of(plan) == "proteins":  # nothing is held back
        return
    scored: Scored = []
    if data_of(plan) == "molecules":
        keep_scores(scored)

    def evaluating(evaluate: Any, job: Any, task: Any) -> None:
        evaluate(job, task)
        from trainer_core.distributed import unwrap

        model = unwrap(job.trainer.model)
        was_training = model.training
        model.eval()
        with torch.no_grad():
            if data_of(plan) == "molecules":
                found = molecules_of(plan, rank, task, model, scored, data)
            else:
                found = graphs_of(plan, rank, task, model)
        model.train(was_training)
        path = run_dir / SCORES / f"rank-{rank}.jsonl"
        path.parent.mkdir(exist_ok=True)
        step = job.parts["sampler"].position
        with path.open("a") as file:
            file.write(json.dumps({"attempt": attempt, "step": step, **found}) + "\n")

    wrap("evaluate", evaluating)


def keep_scores(scored: Scored) -> None:
    """Remember the molecules that a rank scores, and their scores."""

    def scoring(scores: Any, task: Any, model: Any, rows: Any, device: Any) -> Any:
        found = scores(task, model, rows, device)
        scored.append((rows, found))
        return found

    wrap("MoleculeTask.scores", scoring)


def molecules_of(
    plan: Plan, rank: int, task: Any, model: Any, scored: Scored, data: Path
) -> dict[str, Any]:
    """What this rank scored; on rank 0 also the later batch, and a table of the terms."""
    rows = np.concatenate([rows for rows, _ in scored])
    found: dict[str, Any] = {
        "samples": rows.tolist(),
        "scores": torch.cat([scores for _, scores in scored]).tolist(),
        "labels": as_lists(task.labels_of(rows)),
    }
    if rank == 0:
        later = copy.copy(task)
        fresh = np.load(data / "fresh.npy")
        labels = truth_of(plan).fresh_labels
        later.prepared = type(task.prepared)(
            fingerprints=fresh,
            labels=labels,
            tasks=task.prepared.tasks,
            parts=np.zeros(len(fresh), np.int8),
            fp_size=task.prepared.fp_size,
            digest="",
        )
        device, everyone = torch.device("cpu"), np.arange(len(fresh))
        found["fresh"] = later.scores(model, everyone, device).tolist()
        test = np.flatnonzero(task.prepared.parts == TEST)
        found["test"] = [test.tolist(), task.scores(model, test, device).tolist()]
        trained = task.labels_of(task.train_rows)
        found["terms"] = (~trained.isnan()).sum(dim=0).tolist()
        found["actives"] = (trained == 1).sum(dim=0).tolist()
    return found


def as_lists(labels: torch.Tensor) -> list[list[float | None]]:
    """Labels as JSON has them: None where nothing was measured."""
    return [[None if x != x else x for x in row] for row in labels.tolist()]


def graphs_of(plan: Plan, rank: int, task: Any, model: Any) -> dict[str, Any]:
    """On rank 0: predictions and labels of the graphs held back and of the later ones.

    And the energies that were trained on: a fix may split in another way.
    """
    if rank:
        return {}
    from trainer_core.bio.graphs import collate_graphs

    def predicted(graph: Any) -> float:
        return float(model(collate_graphs([graph], graph)))

    mean, deviation = float(task.mean), float(task.deviation)
    fresh = fresh_of(plan)
    return {
        "mean": mean,
        "deviation": deviation,
        "train": [float(graph.y) * deviation + mean for graph in task.train],
        "held_back": [[predicted(graph), float(graph.y)] for graph in task.held_back],
        "fresh": [[predicted(g) * deviation + mean, float(g.y)] for g in fresh],
    }
