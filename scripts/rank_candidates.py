"""Do the marks of a mock interview tell four scripted candidates apart?

    python scripts/rank_candidates.py --seeds 10

Each row is a seed: what each candidate got, out of 100, and how long the four took. Interviews
are kept in a temporary folder, not in your history.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from itertools import pairwise

from rehearsal.interviews.candidates import NAMES, play


def main(arguments: list[str]) -> int:
    """Print the table; 1 if a candidate got as much as a better one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10, help="how many, from 0")
    parser.add_argument("--minutes", type=float, default=45.0)
    parser.add_argument("--setting", choices=["general", "biotech"], default="general")
    options = parser.parse_args(arguments)
    print("seed  " + "".join(f"{name:>8}" for name in NAMES) + "   longest, s")
    margins, is_ranked = [], True
    with tempfile.TemporaryDirectory(prefix="candidates-") as home:
        os.environ["REHEARSAL_HOME"] = home
        for seed in range(options.seeds):
            got, seconds = [], []
            for name in NAMES:
                began = time.perf_counter()
                got.append(play(name, seed, options.minutes, options.setting).percent)
                seconds.append(time.perf_counter() - began)
            print(f"{seed:4}  " + "".join(f"{p:8}" for p in got) + f"{max(seconds):13.1f}")
            steps = [better - worse for worse, better in pairwise(got)]
            is_ranked = is_ranked and min(steps) > 0
            margins.append(steps)
    least = [min(steps[n] for steps in margins) for n in range(len(NAMES) - 1)]
    pairs = [f"{a} to {b} {m}" for a, b, m in zip(NAMES, NAMES[1:], least, strict=False)]
    print("smallest margins: " + ", ".join(pairs))
    return 0 if is_ranked else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
