"""Prove the kinds on many seeds, and keep a record of it.

    python -m rehearsal incidents prove [KIND ...] --seeds 20

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
from rehearsal.incidents.draw import draw
from rehearsal.incidents.kinds.registry import KINDS, PAIRS
from rehearsal.incidents.proof import Proof, prove_one

RECORD = Path(__file__).resolve().parents[2] / "docs" / "incidents.json"
NAMES = [*sorted(KINDS), *("+".join(pair) for pair in PAIRS)]
Known = dict[str, dict[str, dict[str, Any]]]  # by name and seed


def prove(names: list[str], seeds: range, say: Callable[[str], None]) -> bool:
    """Prove what isn't current, a line each. True if all proofs hold."""
    is_good = True
    due = [(name, seed) for seed in seeds for name in names]  # so that all grow together
    left = [pair for pair in due if not is_current(*pair)]
    say(f"{len(due) - len(left)} of {len(due)} proofs are current")
    for name, seed in left:
        with alone(name, seed) as is_mine:
            if not is_mine or is_current(name, seed):  # another process has it
                continue
            folder = Path(tempfile.mkdtemp(prefix=f"incident-{name}-{seed}-"))
            try:
                proof = prove_one(name, seed, folder)
            finally:
                shutil.rmtree(folder)
            record(proof)
        result = "; ".join(proof.problems) or "holds"
        say(f"{name} {seed}: case {proof.case_s:.1f} s, fix {proof.fix_s:.1f} s: {result}")
        is_good &= not proof.problems
    for line in figures(names, seeds):
        say(line)
    return is_good


def figures(names: list[str], seeds: range) -> list[str]:
    """How long the recorded cases and reruns took."""
    known = read_record()
    found = [known.get(name, {}).get(str(seed)) for name in names for seed in seeds]
    lines = []
    for key, what in (("case_s", "a case"), ("fix_s", "a rerun after the reference fix")):
        # no_fault has nothing to fix, so it has no rerun.
        taken = [facts[key] for facts in found if facts is not None and facts[key]]
        if taken:
            lines.append(f"{what}: median {median(taken):.1f} s, longest {max(taken):.1f} s")
    return lines


def is_current(name: str, seed: int) -> bool:
    """Whether the record has this proof, it held, and nothing that it depends on changed."""
    known = read_record().get(name, {}).get(str(seed))
    return (
        known is not None
        and not known["problems"]
        and known["digest"] == digest(draw(seed, name))
    )


@contextmanager
def alone(name: str, seed: int) -> Iterator[bool]:
    """Whether no other process is at this proof; inside, none begins it."""
    path = lock_file(f"{name}-{seed}")
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
        path.unlink()


def lock_file(what: str) -> Path:
    """Where the processes that prove into the same record agree."""
    of = hashlib.sha256(str(RECORD).encode()).hexdigest()[:8]
    return Path(tempfile.gettempdir()) / f"incidents-{of}-{what}.lock"


def read_record() -> Known:
    """All proofs on record."""
    known: Known = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    return known


def record(proof: Proof) -> None:
    """Add a proof to docs/incidents.json."""
    with lock_file("record").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes may prove at a time
        known = read_record()
        known.setdefault(proof.name, {})[str(proof.seed)] = {
            "digest": digest(draw(proof.seed, proof.name)),
            "case_s": round(proof.case_s, 1),
            "fix_s": round(proof.fix_s, 1),
            "problems": proof.problems,
        }
        temporary = RECORD.with_suffix(".tmp")
        temporary.write_text(as_text(known), "utf-8")
        temporary.replace(RECORD)


def as_text(known: Known) -> str:
    """The record with one proof per line."""
    kinds = []
    for name in NAMES:
        seeds = sorted(known.get(name, {}).items(), key=lambda item: int(item[0]))
        lines = [f'  "{seed}": {json.dumps(facts)}' for seed, facts in seeds]
        kinds += [f' "{name}": {{\n' + ",\n".join(lines) + "\n }"] if lines else []
    return "{\n" + ",\n".join(kinds) + "\n}\n"
