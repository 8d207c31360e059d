"""What the biotech track's cases are drawn from: a base job, its kinds, misleading symptoms."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from rehearsal.incidents import distractors as general
from rehearsal.incidents import draw
from rehearsal.incidents.biotech.alarms import ALARMS
from rehearsal.incidents.biotech.kinds.registry import KINDS, PAIRS
from rehearsal.incidents.biotech.world import BioWorld, Library, with_library
from rehearsal.incidents.distractors import Distractor
from rehearsal.incidents.world import Edit, Plan

OF_TOY_DATA = ("restored_samples",)  # settings
NUM_ASSAYS = Library().num_assays
PER_RANK = 16  # molecules per step


def base_plan(seed: int, rng: random.Random) -> Plan:
    """A healthy job on molecules: five epochs, 40 or 55 steps, on two or three hosts."""
    plan = draw.base_plan(seed, rng)
    settings = {n: value for n, value in plan.settings.items() if n not in OF_TOY_DATA}
    month = rng.randrange(1, 12)
    deliveries = (f"2026-{month:02}", f"2026-{month + 1:02}")
    settings |= {
        "micro_batch_size": PER_RANK,
        "learning_rate": rng.choice((0.014, 0.015, 0.016)),
        "split": "scaffold",
        "balance": False,
        "delivery": deliveries[-1],
        "excluded_plates": [],
    }
    fixed = {name: plan.fixed[name] for name in plan.fixed if name not in OF_CLASSES}
    fixed |= {"data": "molecules", "hidden_dim": 64, "max_epochs": 5}
    world = BioWorld(
        **{spec: getattr(plan.world, spec) for spec in WORLD}, deliveries=deliveries
    )
    batch = PER_RANK * plan.world_size
    world = replace(world, compute_ms=6.0, global_batch_size=batch)
    return replace(plan, settings=settings, fixed=fixed, world=world)


OF_CLASSES = ("dataset_size", "input_dim")
WORLD = (
    *("hosts", "tiers", "compute_ms", "read_ms", "mib_per_sample", "networks", "kills"),
    *("max_attempts", "num_hosts", "global_batch_size"),
)

HARMLESS = (
    (
        "molecule_task: count the labels in one line",
        Edit(
            module="bio/molecule_task.py",
            old="self.num_labels = np.count_nonzero(~np.isnan(labels), axis=1)",
            new="self.num_labels = (~np.isnan(labels)).sum(axis=1)",
        ),
    ),
    (
        "gathered_scores: name the padded rows",
        Edit(
            module="bio/gathered_scores.py",
            old="parts = [torch.empty_like(padded) for _ in sizes]",
            new="parts = [padded.new_empty(padded.shape) for _ in sizes]",
        ),
    ),
    (
        "labels: two names instead of one tuple",
        Edit(
            module="bio/labels.py",
            old="return LossTerms(sums, is_label.sum(dim=0))",
            new="counts = is_label.sum(dim=0)\n    return LossTerms(sums, counts)",
        ),
    ),
)


def recent_deploy(plan: Plan, rng: random.Random) -> Plan:
    """The live version was deployed an hour ago; it changes nothing that matters."""
    message, edit = rng.choice(HARMLESS)
    plan = plan.with_edits(-1, edit, message=message)
    newest = replace(plan.versions[-1], minutes_ago=rng.randrange(35, 80))
    return replace(plan, versions=(*plan.versions[:-1], newest))


def sparse_assay(plan: Plan, rng: random.Random) -> Plan:
    """One assay has hardly been run yet, so some of its figures are missing or extreme."""
    return with_library(plan, sparse_assay=rng.randrange(NUM_ASSAYS))


def many_salts(plan: Plan, rng: random.Random) -> Plan:
    """Many molecules are in the lab's table twice, as a base and as a salt."""
    return with_library(plan, num_salts=rng.randrange(70, 110))


def known(name: str, **changes: Any) -> Distractor:
    """A misleading symptom of the general track, suggesting causes of this one."""
    return replace(general.DISTRACTORS[name], **changes)


DISTRACTORS = {
    distractor.id: distractor
    for distractor in (
        known(
            "noisy_restart",
            suggests=("uncropped_protein", "scaler_fitted_on_all_data", "leaky_split"),
        ),
        known("slow_first_step", suggests=("bins_by_count", "metric_averaged_over_ranks")),
        known(
            "driver_warning",
            suggests=("uncropped_protein", "bins_by_count", "metric_averaged_over_ranks"),
        ),
        replace(
            known(
                "recent_deploy",
                suggests=("positions_in_bf16", "bins_by_count", "leaky_split"),
                sources=("deploys", "code"),
            ),
            apply=recent_deploy,
        ),
        Distractor(
            id="sparse_assay",
            apply=sparse_assay,
            explains="One assay has hardly been measured, so it has no figure, or an extreme "
            "one. The report names it and leaves it out of the medians; that is what should "
            "happen to an assay without enough labels.",
            suggests=(
                *("missing_labels_as_negatives", "plate_with_another_cutoff"),
                "leaky_split",
            ),
            tempts=("balance", "delivery"),
            sources=("validation", "labels"),
        ),
        Distractor(
            id="many_salts",
            apply=many_salts,
            explains="Many molecules are in the lab's table twice, as a base and as a salt. "
            "They are standardized and merged before the split is made, so no molecule is on "
            "both sides of it, and their measurements are merged.",
            suggests=("leaky_split", "plate_with_another_cutoff"),
            tempts=("split", "delivery"),
            sources=("leakage",),
        ),
    )
}
DECK = draw.Deck("biotech", KINDS, PAIRS, ALARMS, DISTRACTORS, base_plan)
