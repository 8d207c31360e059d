"""The tracks: what a case draws from, runs, shows and judges by, for each kind of job.

general   the trainer on its toy data; faults of hosts, storage, settings and code
biotech   ``--data molecules | proteins | graphs``; faults that a biologist has to pay for
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from rehearsal.incidents import draw, judge, proof, settings, sources
from rehearsal.incidents.biotech import track as biotech
from rehearsal.incidents.deployed import module_names
from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.job import run_job as run_general_job
from rehearsal.incidents.world import Plan

TrackName = Literal["general", "biotech"]
RECORDS = Path(__file__).resolve().parents[2] / "docs"


class Track(NamedTuple):
    """Everything that differs from one track to the next."""

    deck: draw.Deck
    sources: sources.Sources
    rules: settings.Rules
    module_names: Callable[[], list[str]]
    evidence: Callable[[Path, Plan], Evidence]
    run_job: Callable[[Plan, Path], None]
    judge_plan: Callable[[draw.Drawn, Evidence, Plan, Path], judge.Verdict]
    prove_one: Callable[[str, int, Path], proof.Proof]
    record: Path  # of its proofs
    # What keeps the jobs of a kind from running here, such as a missing package; "" if nothing.
    missing: Callable[[str], str]

    @property
    def names(self) -> list[str]:
        """Its kinds and pairs."""
        return [*sorted(self.deck.kinds), *("+".join(pair) for pair in self.deck.pairs)]


TRACKS: dict[str, Track] = {
    "general": Track(
        draw.GENERAL,
        sources.SOURCES,
        settings.GENERAL,
        module_names,
        Evidence,
        run_general_job,
        judge.judge_plan,
        proof.prove_one,
        RECORDS / "incidents.json",
        lambda kind: "",
    ),
    "biotech": Track(
        biotech.DECK,
        biotech.SOURCES,
        biotech.RULES,
        biotech.module_names,
        biotech.BioEvidence,
        biotech.run_job,
        biotech.judge_plan,
        biotech.prove_one,
        RECORDS / "incidents_bio.json",
        biotech.missing,
    ),
}


def track_of(drawn: draw.Drawn) -> Track:
    """The track that a case is from."""
    return TRACKS[drawn.deck.track]


def run_job(drawn: draw.Drawn, folder: Path) -> None:
    """Run the job of a case, as its track does."""
    track_of(drawn).run_job(drawn.faulty, folder)
