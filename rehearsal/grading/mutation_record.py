"""What is written down about a drill's mutants, and the score that follows from it.

``docs/mutation_scores.json`` has the verdicts, with a digest of what was judged, and by what;
``survivors.toml`` in a drill's folder says which mutants may pass, and why:

    [[survivor]]
    mutant = "solution.train: constant: order[: 0] => order[: 1]"   # as --show prints it
    is = "equivalent"    # nothing observable differs; or "outside": the brief leaves it free
    because = "one line that a reader can check"

So an argument about a survivor changes the score without judging anything again.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rehearsal.grading.drill import Drill
from rehearsal.grading.verdict import counted

SCORES = Path(__file__).resolve().parents[2] / "docs" / "mutation_scores.json"
ENOUGH = 0.97  # of the mutants that change something the brief asks for
PASSED = "passed"
# Not a verdict on the text: the grader raised, or the server died twice.
NO_VERDICT = ("grader-failed", "server-killed")


class BadSurvivors(Exception):
    """A survivors.toml cannot be read; its author can fix that."""


class Survivor(NamedTuple):
    """A mutant that may pass, and why."""

    mutant: str
    kind: Literal["equivalent", "outside"]
    because: str


def survivors_of(drill: Drill) -> dict[str, Survivor]:
    """The entries of a drill's ``survivors.toml``, by mutant.

    Raises:
        BadSurvivors: if it is not such a file, or an entry is incomplete or there twice.
    """
    path = drill.folder / "survivors.toml"
    if not path.exists():
        return {}
    try:
        entries = tomllib.loads(path.read_text("utf-8")).get("survivor", [])
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSurvivors(f"{path}: {error}. Fix the file and run this again.") from None
    found: dict[str, Survivor] = {}
    if not isinstance(entries, list):
        raise BadSurvivors(f"{path}: survivor is a single table. Begin it with [[survivor]].")
    for entry in entries:
        if not isinstance(entry, dict) or not all(isinstance(v, str) for v in entry.values()):
            raise BadSurvivors(
                f"{path}: {entry!r} is not an entry of texts. Write one as `python -m "
                "rehearsal mutants DRILL --show` prints it."
            )
        about = f"{path}: the entry {entry.get('mutant', entry)!r}"
        if set(entry) != {"mutant", "is", "because"}:
            raise BadSurvivors(
                f"{about} has {', '.join(sorted(entry))}. It needs exactly mutant, is and "
                "because, as `python -m rehearsal mutants DRILL --show` prints them."
            )
        if entry["is"] not in ("equivalent", "outside"):
            raise BadSurvivors(
                f'{about} is {entry["is"]!r}. Write "equivalent" (nothing observable differs) '
                'or "outside" (the brief leaves it free). A hole gets no entry: fix the grader.'
            )
        if not entry["because"].strip() or "\n" in entry["because"].strip():
            raise BadSurvivors(f"{about} needs its reason in `because`, in one line.")
        if entry["mutant"] in found:
            raise BadSurvivors(f"{about} is there twice. Delete one of them.")
        found[entry["mutant"]] = Survivor(entry["mutant"], entry["is"], entry["because"])
    return found


class Judged(NamedTuple):
    """What came of one text."""

    id: str
    code: str  # of the first finding; "passed" if every seed passes
    harmless: bool = False


class Score(NamedTuple):
    """How a drill's grader did."""

    mutants: int
    refused: int
    equivalent: int
    outside: int
    holes: list[str]  # ids
    unjudged: list[str]  # ids of texts on which the grader itself failed
    stale: list[str]  # entries of survivors.toml that no survivor has
    harmless: int
    rejected: list[str]  # ids of harmless changes that are refused

    @property
    def counted(self) -> int:
        """The mutants that a grader should refuse."""
        return self.mutants - self.equivalent - self.outside

    @property
    def fraction(self) -> float:
        """The part of them that it refuses."""
        return self.refused / self.counted if self.counted else 1.0

    @property
    def ok(self) -> bool:
        """Whether that is enough, no entry is unused, and every harmless change passes."""
        is_clean = not (self.stale or self.rejected or self.unjudged)
        return is_clean and self.fraction >= ENOUGH


def short(mutant_id: str) -> str:
    """A mutant in the record: its id's digest."""
    return hashlib.sha256(mutant_id.encode()).hexdigest()[:8]


def record_of(judged: Sequence[Judged], *, digest: str, seeds: int) -> dict[str, Any]:
    """What is written down about a drill: survivors by id, refused mutants by code.

    Args:
        digest: ``digests.mutants_digest``, when it was judged.
        seeds: with how many each mutant was judged.
    """
    refused: dict[str, list[str]] = {}
    for each in judged:
        if not each.harmless and each.code not in (PASSED, *NO_VERDICT):
            refused.setdefault(each.code, []).append(short(each.id))
    changes = sorted(each for each in judged if each.harmless)
    return {
        "digest": digest,
        "seeds": seeds,
        "survived": sorted(e.id for e in judged if not e.harmless and e.code == PASSED),
        "refused": {code: " ".join(sorted(refused[code])) for code in sorted(refused)},
        "unjudged": sorted(each.id for each in judged if each.code in NO_VERDICT),
        "harmless": len(changes),
        "rejected": {e.id: e.code for e in changes if e.code not in (PASSED, *NO_VERDICT)},
    }


def score_of(drill: Drill, record: Mapping[str, Any], *, partial: bool = False) -> Score:
    """The score that a record and the drill's ``survivors.toml`` give.

    Args:
        partial: not all mutants were judged, so an entry without a survivor may be right.
    """
    entries = survivors_of(drill)
    survived, unjudged, refused = record["survived"], record["unjudged"], record["refused"]
    kinds = [entries[each].kind for each in survived if each in entries]
    num_refused = sum(len(ids.split()) for ids in refused.values())
    return Score(
        mutants=num_refused + len(survived) + len(unjudged),
        refused=num_refused,
        equivalent=kinds.count("equivalent"),
        outside=kinds.count("outside"),
        holes=[each for each in survived if each not in entries],
        unjudged=unjudged,
        stale=[] if partial else [each for each in entries if each not in survived],
        harmless=record["harmless"],
        rejected=list(record["rejected"]),
    )


def without_known_holes(score: Score, record: Mapping[str, object]) -> Score:
    """A part's score with only those holes that the record does not have."""
    known = record.get("survived", [])
    assert isinstance(known, list)
    return score._replace(holes=[each for each in score.holes if each not in known])


def records(path: Path = SCORES) -> dict[str, dict[str, Any]]:
    """What is written down, by drill."""
    if not path.exists():
        return {}
    found: dict[str, dict[str, Any]] = json.loads(path.read_text("utf-8"))
    return found


def keep_record(drill: Drill, record: Mapping[str, object], path: Path = SCORES) -> None:
    """Write a drill's record into the file."""
    found = {**records(path), drill.id: record}
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8", newline="\n")


def line_of(drill: Drill, score: Score) -> str:
    """A drill's score in one line."""
    parts = [
        f"{drill.id}: {score.refused} of {score.counted} mutants refused "
        f"({100 * score.fraction:.1f}%)",
        f"{score.equivalent} equivalent, {score.outside} outside the brief",
        counted(len(score.holes), "hole"),
    ]
    if score.unjudged:
        parts.append(f"the grader failed on {len(score.unjudged)}")
    if score.stale:
        parts.append(f"unused entries of survivors.toml: {len(score.stale)}")
    if score.harmless:
        passed = score.harmless - len(score.rejected)
        parts.append(f"{passed} of {score.harmless} harmless changes passed")
    return "; ".join(parts)
