"""What a model knows about the molecules that judge it."""

from __future__ import annotations

from statistics import median
from typing import cast

from rehearsal.incidents.biotech.alarms import of_bio
from rehearsal.incidents.biotech.evidence import BioEvidence
from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.kinds.kind import Claim, Fix, See
from rehearsal.incidents.kinds.layers import code_fault, deploy, in_module
from rehearsal.incidents.world import Edit

leaky_split = code_fault(
    id="leaky_split",
    title="Molecules that judge the model have their scaffold mates in the training part",
    alarm="optimism",
    alert=lambda e: (
        "Tonight's model passed the release gate with the best median AUROC so far, "
        f"{medians(e)[0]:.2f} on the validation part. On the plates that came in this morning "
        f"it is {medians(e)[1]:.2f}."
    ),
    inject=deploy(
        Edit(
            module="bio/splits.py",
            old="    groups = scaffold_group_keys(table, generic=generic, acyclic=acyclic)\n"
            '    name = "generic scaffold"',
            new="    # Mirror images stay together, or a drug's enantiomer tells its label.\n"
            "    groups = [key.flat for key in table.keys]\n"
            '    name = "generic scaffold"',
        ),
        message="splits: stereoisomers stay on one side",
    ),
    claims=(
        Claim(
            "mean AUROC of the validation part above that of the fresh batch",
            of_bio(BioEvidence.optimism),
            0.13,
            0.13,
        ),
        Claim(
            "share of validation molecules whose scaffold is in the training part",
            of_bio(BioEvidence.shared_scaffolds),
            0.01,
            0.9,
        ),
        Claim(
            "median similarity to the nearest training molecule, above the fresh batch's",
            of_bio(BioEvidence.closeness),
            0.1,
            0.12,
        ),
    ),
    wrong=lambda plan: (
        Fix({"max_grad_norm": 0.3}, "the run must overfit, so hold the weights back"),
        Fix({"balance": True}, "the validation part must have other rates of actives"),
    ),
    path=(
        See(
            "fresh_batch",
            "How far apart are the validation part and the fresh batch?",
            "The validation AUROC is far above that of the fresh batch, in most assays.",
            "symptom",
            ("validation",),
        ),
        See(
            "neighbors",
            "How near are the validation molecules to the training part?",
            "Nearly every one has a close analog there, and the fresh molecules don't. The "
            "leakage report says why: their scaffolds are on both sides, although the split is "
            "called scaffold.",
            "mechanism",
            ("leakage",),
        ),
        in_module(
            "bio/splits.py",
            "By what does the scaffold split group the molecules?",
            "By the flat SMILES: that keeps stereoisomers together, and nothing else. The last "
            "deployment replaced the scaffold.",
        ),
    ),
    chain=(
        "the last deployment groups the scaffold split by flat SMILES",
        "every molecule is a group of its own, so its scaffold mates are on both sides, and "
        "the model recognizes the series",
        "the validation metric jumps up, and new chemistry is predicted no better",
    ),
    prevention="Make the leakage report a gate: a scaffold split with a shared scaffold isn't "
    "one. Keep a batch of new chemistry that no split has seen.",
    like=("scaler_fitted_on_all_data", "missing_labels_as_negatives"),
)


def medians(evidence: Evidence) -> tuple[float, float]:
    """The median AUROC over the assays: of the validation part, of the fresh batch."""
    found = cast("BioEvidence", evidence)
    both = (found.validation_aurocs(), found.fresh_aurocs())
    validation, fresh = (median([x for x in of if x == x] or [float("nan")]) for of in both)
    return validation, fresh


KINDS = (leaky_split,)
