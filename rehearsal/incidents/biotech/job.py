"""Run a biotech plan: prepare its data once, then attempt after attempt.

RUN/data/   what ``prepare.py`` made; the rest as ``rehearsal.incidents.job`` says
"""

from __future__ import annotations

import json
import time
from importlib.util import find_spec
from pathlib import Path

from rehearsal.engine.ranks import run_ranks
from rehearsal.engine.server import warm_up
from rehearsal.incidents import job
from rehearsal.incidents.biotech.deployed import deploy
from rehearsal.incidents.biotech.in_rank import DATA
from rehearsal.incidents.biotech.sequences import write_fasta
from rehearsal.incidents.biotech.world import data_of
from rehearsal.incidents.job import DEADLINE_S, how_it_ended
from rehearsal.incidents.parts import with_parts
from rehearsal.incidents.world import Plan

PRELOAD = (
    *("trainer_core.bio.launch", "trainer_core.bio.molecule_task"),
    *("trainer_core.bio.graph_task", "trainer_core.bio.protein_task", "torch._dynamo"),
    *("trainer_core.bio.leakage", "rehearsal.incidents.biotech.in_rank"),
    "rehearsal.incidents.biotech.prepare",
)
OPTIONAL = ("rdkit.Chem.rdFingerprintGenerator", "rdkit.Chem.MolStandardize", "sklearn.metrics")


def prepare() -> None:
    """Start the servers that fork the ranks; they take some seconds, in the background."""
    there = [name for name in OPTIONAL if find_spec(name.partition(".")[0])]
    warm_up(*PRELOAD, *there)


train = with_parts(
    job.run_job,
    prepare=prepare,
    deploy=deploy,
    IN_RANK="rehearsal.incidents.biotech.in_rank:train",
)


def run_job(plan: Plan, folder: Path) -> None:
    """Prepare the data and train on it. Never raises for a rank."""
    folder.mkdir(parents=True, exist_ok=True)
    if data_of(plan) == "proteins":
        write_fasta(plan, folder / DATA)
    if data_of(plan) != "molecules" or has_prepared(plan, folder):
        train(plan, folder)


def has_prepared(plan: Plan, folder: Path) -> bool:
    """Prepare the molecules; if that fails, the supervisor's record says why."""
    prepare()
    code, began = deploy(plan, folder / "code"), time.time()
    reports = run_ranks(
        "rehearsal.incidents.biotech.prepare:prepare",
        plan,
        str(folder / DATA),
        code and str(code),
        world_size=1,
        deadline_s=DEADLINE_S,
        folder=folder / "shared",
    )
    if reports[0].exitcode == 0:
        return True
    (folder / "plan.json").write_text(plan.as_json())
    ends = [{**how_it_ended(reports[0]), "rank": rank} for rank in range(plan.world_size)]
    record = {"attempt": 0, "began": began, "ended": time.time(), "ranks": ends}
    (folder / "supervisor.jsonl").write_text(json.dumps(record) + "\n")
    return False
