"""What a network may do to coordinates, and in which precision."""

from __future__ import annotations

import random
from dataclasses import replace

from rehearsal.incidents.biotech.alarms import of_bio
from rehearsal.incidents.biotech.evidence import BioEvidence
from rehearsal.incidents.biotech.kinds.setups import on_graphs
from rehearsal.incidents.kinds.kind import Claim, Fix, See
from rehearsal.incidents.kinds.layers import code_fault, deploy, in_module
from rehearsal.incidents.world import Edit, Plan


def in_mixed_precision(plan: Plan, rng: random.Random) -> Plan:
    """A job on geometries under bf16 autocast, which leaves positions alone."""
    plan = on_graphs(plan, rng)
    # A small network and few epochs: a CPU is slow in bf16, and the symmetry isn't learned.
    plan = replace(plan, fixed={**plan.fixed, "hidden_dim": 16, "max_epochs": 4})
    return plan.with_settings(amp="bf16").with_world(compute_ms=12.0)


positions_in_bf16 = code_fault(
    id="positions_in_bf16",
    title="Positions are rounded to bf16, so the network isn't equivariant anymore",
    alarm="asymmetry",
    alert=lambda e: (
        "A chemist ran a molecule through this week's model, turned it by 30 degrees, ran it "
        "again, and got another answer. The training loss looks normal."
    ),
    setup=in_mixed_precision,
    inject=deploy(
        Edit(
            module="bio/equivariant.py",
            old="        start = positions - center\n",
            new="        # Half the memory traffic in every layer.\n"
            "        start = (positions - center).to(torch.bfloat16)\n",
        ),
        message="equivariant: positions travel in bf16",
    ),
    claims=(
        Claim(
            "relative error of the vectors under a rotation or reflection",
            of_bio(BioEvidence.turning_error),
            1e-5,
            1e-3,
        ),
        Claim(
            "the same, over that under a shift or a new order",
            of_bio(lambda e: e.turning_error() / max(e.moving_error(), 1e-7)),
            100,
            1000,
        ),
    ),
    wrong=lambda plan: (
        Fix({"amp": "no"}, "mixed precision must be to blame, so train in float32"),
        Fix(
            {"learning_rate": plan.settings["learning_rate"] / 2},
            "it can't have learned the symmetry yet",
        ),
    ),
    path=(
        See(
            "symmetry",
            "Which motions change the answer, and by how much?",
            "Rotations and reflections, by about 1%, where float32 would give about 1e-6. "
            "Shifts and a new order of the atoms change nothing.",
            "symptom",
        ),
        See(
            "deploys",
            "What changed, and what rounds which tensor?",
            "The live version rounds positions to bf16, which has 8 significant bits. "
            "Autocast was on before and doesn't matter: it rounds matrix products, and this "
            "network takes distances from differences.",
            "mechanism",
            ("settings",),
        ),
        in_module(
            "bio/equivariant.py",
            "In which precision are differences and distances computed?",
            "bio/equivariant.py casts the centered positions to bf16 before the first layer, "
            "so every difference and distance is in bf16, whatever amp says.",
        ),
    ),
    chain=(
        "the last deployment casts the positions to bf16",
        "a turned molecule has other coordinates, and those round differently, so its "
        "distances come out up to a percent off; a shift is taken out before the cast",
        "a turned copy gets a different answer, and the loss can't show it, because it sees "
        "each molecule in one pose only",
    ),
    prevention="Run an equivariance check on every checkpoint, with a limit near float32 "
    "rounding. Features may be in bf16; positions, differences and distances stay in float32.",
    like=("scaler_fitted_on_all_data",),
    clashes=("sparse_assay", "many_salts"),
)

KINDS = (positions_in_bf16,)
