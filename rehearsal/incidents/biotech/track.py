"""The biotech track as one thing: what ``tracks.py`` needs to know of it."""

from __future__ import annotations

from importlib.util import find_spec

from rehearsal.incidents.biotech.deck import DECK
from rehearsal.incidents.biotech.deployed import module_names
from rehearsal.incidents.biotech.evidence import BioEvidence
from rehearsal.incidents.biotech.job import run_job
from rehearsal.incidents.biotech.judge import judge_plan, prove_one
from rehearsal.incidents.biotech.settings import RULES
from rehearsal.incidents.biotech.sources import SOURCES

__all__ = [
    "DECK",
    "RULES",
    "SOURCES",
    "BioEvidence",
    "judge_plan",
    "missing",
    "module_names",
    "prove_one",
    "run_job",
]
NEEDED = ("rdkit", "sklearn")


def missing(kind: str) -> str:
    """Which package the jobs of a kind need and don't have, in a line; "" if none."""
    from rehearsal.incidents.draw import draw

    absent = [name for name in NEEDED if find_spec(name) is None]
    if not absent or draw(0, kind, DECK).faulty.fixed["data"] != "molecules":
        return ""
    return (
        f"{absent[0]} isn't installed, and this case's job learns from molecules. Nothing ran; "
        "the general track works without it. Run: pip install -e '.[bio]'"
    )
