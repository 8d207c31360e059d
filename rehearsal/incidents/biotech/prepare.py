"""Prepare a job's molecules once, before its ranks start, with the code that is deployed.

DATA/prepared/     what ``--data molecules:FOLDER`` reads
DATA/rows.npy      (n,) int64: the row of the lab's table that each molecule was first in
DATA/fresh.npy     fingerprints of the batch that was measured later
DATA/leakage.json  the leakage report of the validation part, as lines and figures
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rehearsal.incidents.biotech.library import table_of, truth_of
from rehearsal.incidents.in_rank import use_code_in
from rehearsal.incidents.world import Plan

if TYPE_CHECKING:
    from rehearsal.engine.rank import RankContext

FP_SIZE = 1024


def prepare(context: RankContext, plan: Plan, data: str, code: str | None) -> dict[str, Any]:
    """Called in a process of its own; returns the manifest of the prepared folder."""
    if code is not None:
        use_code_in(code)
    from trainer_core.bio.featurize import MorganSettings, featurize_smiles
    from trainer_core.bio.leakage import leakage_report
    from trainer_core.bio.molecules import MoleculeRows, build_molecule_table
    from trainer_core.bio.prepared_molecules import SPLITTERS, prepare_molecules
    from trainer_core.bio.splits import VALIDATION

    folder, split = Path(data), plan.settings["split"]
    folder.mkdir(parents=True, exist_ok=True)
    table = build_molecule_table(MoleculeRows(**table_of(plan)))
    settings = MorganSettings(fp_size=FP_SIZE)
    manifest = prepare_molecules(table, folder / "prepared", (split,), settings)
    np.save(folder / "rows.npy", np.array(table.rows) - 1)
    fresh = truth_of(plan).fresh_smiles
    featurize_smiles(fresh, len(fresh), folder / "fresh.npy", settings)
    # The report of the assays takes a second, and nobody looks at sixteen of them.
    narrow = replace(table, labels=table.labels[:, :1], tasks=table.tasks[:1])
    made = replace(SPLITTERS[split](table), table=narrow)
    report = leakage_report(narrow, made, part=VALIDATION)
    lines = [manifest["merging"], *report.lines()[: -len(report.tasks)]]
    found = {"lines": lines, "figures": figures_of(report)}
    (folder / "leakage.json").write_text(json.dumps(found), "utf-8")
    return manifest


def figures_of(report: Any) -> dict[str, Any]:
    """A report's figures by name, as JSON has them; those of single assays are left out."""
    found = {spec.name: getattr(report, spec.name) for spec in fields(report)}
    del found["tasks"]
    return {n: of._asdict() if hasattr(of, "_asdict") else of for n, of in found.items()}
