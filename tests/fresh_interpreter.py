"""Which modules a fresh interpreter loads; a forked program has already loaded many."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def modules_loaded_by(code: str, *, after: str = "") -> set[str]:
    """The modules that ``code`` loads, minus those that ``after`` (run first) has loaded."""
    program = f"import json, sys\n{after}\nbefore = set(sys.modules)\n{code}\n"
    program += "print(json.dumps(sorted(set(sys.modules) - before)))"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(run.stdout))
