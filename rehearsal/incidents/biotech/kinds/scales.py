"""In which units a model learns, and is judged."""

from __future__ import annotations

import random
from typing import cast

from rehearsal.incidents.biotech.alarms import of_bio
from rehearsal.incidents.biotech.evidence import BioEvidence
from rehearsal.incidents.biotech.kinds.setups import on_graphs
from rehearsal.incidents.biotech.world import with_geometries
from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.kinds.kind import Claim, Fix, See
from rehearsal.incidents.kinds.layers import code_fault, deploy, in_module
from rehearsal.incidents.world import Edit, Plan

BY_TIME = Edit(
    module="bio/graph_task.py",
    old="shuffled = EpochOrder(len(graphs), seed=0, epoch=0).samples(0, len(graphs)).tolist()",
    new="shuffled = [*reversed(range(len(graphs)))]  # the newest measurements judge",
)


def judged_by_the_newest(plan: Plan, rng: random.Random) -> Plan:
    """A job on geometries that holds back the newest tenth, whose molecules are larger."""
    plan = with_geometries(on_graphs(plan, rng), newest_scale=rng.choice((1.7, 1.8, 1.9)))
    return plan.with_edits(0, BY_TIME, message="graph_task: a split by time")


scaler_fitted_on_all_data = code_fault(
    id="scaler_fitted_on_all_data",
    title="Energies are scaled by a deviation that includes the part held back",
    alarm="flattery",
    alert=lambda e: (
        f"Tonight's run reports an error of {reported(e):.2f} standard deviations, a jump "
        f"ahead. On the geometries measured since, it is {fresh_error(e):.2f}."
    ),
    setup=judged_by_the_newest,
    inject=deploy(
        Edit(
            module="bio/graph_task.py",
            old="known = torch.stack([self.labels_of(graphs[row]) for row in train])",
            new="known = torch.stack([self.labels_of(graph) for graph in graphs])",
        ),
        message="graph_task: more graphs make a steadier scale",
    ),
    claims=(
        Claim(
            "the held-back error over the reported one, in deviations of the training part",
            of_bio(BioEvidence.flattery),
            1.05,
            1.3,
        ),
        Claim(
            "the deviation in use over that of the training part",
            of_bio(BioEvidence.used_scale),
            1.01,
            1.3,
        ),
    ),
    wrong=lambda plan: (
        Fix({"learning_rate": plan.settings["learning_rate"] / 2}, "the run must overfit"),
        Fix({"budget": 96}, "larger bins must make a steadier gradient"),
    ),
    path=(
        See(
            "fresh_batch",
            "Is the fresh batch harder, or does the report use a different unit?",
            "In the data's own unit, the part held back is predicted no better than the fresh "
            "batch. Only the report, in standard deviations, is far lower.",
            "symptom",
            ("validation",),
        ),
        See(
            "scaler",
            "Whose mean and deviation does the run use?",
            "Those of all graphs. The part held back is larger molecules, so the deviation of "
            "everything is far above that of the training part.",
            "mechanism",
            ("data",),
        ),
        in_module(
            "bio/graph_task.py",
            "Which graphs is the scale computed from?",
            "From all of them, since the last deployment; it has to be the training rows only.",
        ),
    ),
    chain=(
        "the last deployment computes mean and deviation over all graphs, those held back "
        "included",
        "the newest tenth has far larger energies, so it sets the unit that its own error is "
        "measured in",
        "the reported error about halves, and new molecules are predicted no better",
    ),
    prevention="Fit everything that is fitted on the training rows only, and report errors in "
    "the data's own unit beside the scaled ones.",
    like=("leaky_split", "metric_averaged_over_ranks"),
    clashes=("sparse_assay", "many_salts"),
)


def reported(evidence: Evidence) -> float:
    """The error that the run reports, in deviations."""
    found = cast("BioEvidence", evidence).evaluated
    return float(found["mean_absolute_error"]) if found else float("nan")


def fresh_error(evidence: Evidence) -> float:
    """The error on the fresh batch, in deviations of the training part."""
    return cast("BioEvidence", evidence).fresh_error()


KINDS = (scaler_fitted_on_all_data,)
