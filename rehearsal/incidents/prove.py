"""Prove the kinds on many seeds, and keep a record of it.

    python -m rehearsal incidents prove [KIND ...] --seeds 20 [--track biotech]

A proof takes a quarter of a minute, all of them hours. So each is recorded as soon as it is
done, with a digest of what it depends on, and only what isn't current is proved. The command
can be stopped at any time, and run twice at once to use two cores.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from rehearsal.incidents.digest import digest
from rehearsal.incidents.draw import Drawn, draw
from rehearsal.incidents.proof import Proof, prove_one
from rehearsal.incidents.tracks import TRACKS

RECORD = TRACKS["general"].record
NAMES = TRACKS["general"].names
Known = dict[str, dict[str, dict[str, Any]]]  # by name and seed


def prove(
    names: list[str], seeds: range, say: Callable[[str], None], track: str = "general"
) -> bool:
    """Prove what isn't current, a line each. True if all proofs hold."""
    is_good = True
    due = [(name, seed) for seed in seeds for name in names]  # so that all grow together
    left = [pair for pair in due if not is_current(*pair, track)]
    say(f"{len(due) - len(left)} of {len(due)} proofs are current")
    for name, seed in left:
        with alone(name, seed, track) as is_mine:
            if not is_mine or is_current(name, seed, track):  # another process has it
                continue
            folder = Path(tempfile.mkdtemp(prefix=f"incident-{name}-{seed}-"))
            try:
                proof = prover_of(track)(name, seed, folder)
            finally:
                shutil.rmtree(folder)
            record(proof, track)
        result = "; ".join(proof.problems) or "holds"
        say(f"{name} {seed}: case {proof.case_s:.1f} s, fix {proof.fix_s:.1f} s: {result}")
        is_good &= not proof.problems
    for line in figures(names, seeds, track):
        say(line)
    return is_good


def prover_of(track: str) -> Callable[[str, int, Path], Proof]:
    """What proves one case of a track."""
    return prove_one if track == "general" else TRACKS[track].prove_one


def record_of(track: str) -> Path:
    """Where the proofs of a track are recorded."""
    return RECORD if track == "general" else TRACKS[track].record


def drawn_on(track: str, name: str, seed: int) -> Drawn:
    """The case that a proof is about."""
    return draw(seed, name, TRACKS[track].deck)


def figures(names: list[str], seeds: range, track: str = "general") -> list[str]:
    """How long the recorded cases and reruns took."""
    known = read_record(track)
    found = [known.get(name, {}).get(str(seed)) for name in names for seed in seeds]
    lines = []
    for key, what in (("case_s", "a case"), ("fix_s", "a rerun after the reference fix")):
        # no_fault has nothing to fix, so it has no rerun.
        taken = [facts[key] for facts in found if facts is not None and facts[key]]
        if taken:
            lines.append(f"{what}: median {median(taken):.1f} s, longest {max(taken):.1f} s")
    return lines


def is_current(name: str, seed: int, track: str = "general") -> bool:
    """Whether the record has this proof, it held, and nothing that it depends on changed."""
    known = read_record(track).get(name, {}).get(str(seed))
    return (
        known is not None
        and not known["problems"]
        and known["digest"] == digest(drawn_on(track, name, seed))
    )


@contextmanager
def alone(name: str, seed: int, track: str = "general") -> Iterator[bool]:
    """Whether no other process is at this proof; inside, none begins it."""
    path = lock_file(f"{name}-{seed}", track)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
        path.unlink()


def lock_file(what: str, track: str = "general") -> Path:
    """Where the processes that prove into the same record agree."""
    of = hashlib.sha256(str(record_of(track)).encode()).hexdigest()[:8]
    return Path(tempfile.gettempdir()) / f"incidents-{of}-{what}.lock"


def read_record(track: str = "general") -> Known:
    """All proofs on record."""
    path = record_of(track)
    known: Known = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return known


def record(proof: Proof, track: str = "general") -> None:
    """Add a proof to docs/incidents.json, or to the track's own file."""
    path = record_of(track)
    with lock_file("record", track).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes may prove at a time
        known = read_record(track)
        known.setdefault(proof.name, {})[str(proof.seed)] = {
            "digest": digest(drawn_on(track, proof.name, proof.seed)),
            "case_s": round(proof.case_s, 1),
            "fix_s": round(proof.fix_s, 1),
            "problems": proof.problems,
        }
        temporary = path.with_suffix(".tmp")
        temporary.write_text(as_text(known, TRACKS[track].names), "utf-8")
        temporary.replace(path)


def as_text(known: Known, names: list[str]) -> str:
    """The record with one proof per line."""
    kinds = []
    for name in names:
        seeds = sorted(known.get(name, {}).items(), key=lambda item: int(item[0]))
        lines = [f'  "{seed}": {json.dumps(facts)}' for seed, facts in seeds]
        kinds += [f' "{name}": {{\n' + ",\n".join(lines) + "\n }"] if lines else []
    return "{\n" + ",\n".join(kinds) + "\n}\n"
