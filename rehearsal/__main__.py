"""The coach at a terminal: python -m rehearsal selftest [DRILL ...]."""

from __future__ import annotations

import sys

from rehearsal import drills, selftest
from rehearsal.drill import load


def main(arguments: list[str]) -> int:
    """Judge all texts of the named drills, or of all; print what is not as it must be."""
    chosen = [load(name) for name in arguments[1:]] or drills()
    bad = 0
    for drill in chosen:
        rows = list(selftest.run(drill))
        wrong = [row for row in rows if not row.ok]
        bad += len(wrong)
        seconds = sorted(row.verdict.seconds for row in rows if row.kind == "solution")
        score = f"{len(rows) - len(wrong)} of {len(rows)} as they must be"
        print(f"{drill.id}: {score}; a solution takes {seconds[len(seconds) // 2]:.2f} s")
        for row in wrong:
            print(f"  {row.kind} {row.name}: expected {row.expected}, got {row.got}")
            print("    " + str(row.verdict).replace("\n", "\n    "))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
