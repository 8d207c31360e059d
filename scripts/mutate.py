"""Do the tests notice? Breaks ``trainer_core`` as tests/mutants.toml says, one way at a time.

    python scripts/mutate.py                            all; half an hour on two cores
    python scripts/mutate.py --only no_fsync            some
    python scripts/mutate.py --write docs/mutants.md    and the table for the docs

A mutant is killed when a test fails on it that passes on the trainer as it is. Exit code 0 only
if all were killed; a mutant that survives is a promise that no test keeps.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
MUTANTS = ROOT / "tests" / "mutants.toml"
LIMIT_S = 600.0  # a mutant that hangs a test is noticed, too


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """One edit of one module, the promise that it breaks, and who should notice."""

    name: str
    breaks: str
    file: str
    find: str
    replace: str
    tests: list[str]

    def edited(self, root: Path) -> str:
        """The module with the edit. ValueError if the text is not there exactly once."""
        text = (root / "trainer_core" / self.file).read_text()
        if (count := text.count(self.find)) != 1:
            raise ValueError(
                f"{self.name}: its text occurs {count} times in {self.file}. It must occur "
                "once, or another trainer than the described one is tested. Take it anew."
            )
        return text.replace(self.find, self.replace)


class Outcome(NamedTuple):
    """What happened to a mutant: the test that noticed (None: survived) and the seconds."""

    mutant: Mutant
    noticed_by: str | None
    seconds: float


def read_mutants(path: Path) -> list[Mutant]:
    """The mutants of a file, in its order."""
    with path.open("rb") as file:
        return [Mutant(name=name, **facts) for name, facts in tomllib.load(file).items()]


def run_tests(copy: Path, tests: Sequence[str]) -> tuple[int, str | None]:
    """Run tests in a copy, up to the first that fails: exit code, and that test."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    # PYTHONPATH for the processes that the tests start: the copy, not what is installed.
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=copy, env=environment, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return 1, f"no end within {LIMIT_S:.0f} s"
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    if process.returncode not in (0, 1) or (process.returncode == 1) != bool(failed):
        raise RuntimeError(f"pytest {' '.join(tests)} gave no verdict:\n{output[-2000:]}")
    return process.returncode, failed and failed[1]


def try_mutant(copies: SimpleQueue[Path], mutant: Mutant) -> Outcome:
    """Apply the edit in a copy of the project that is free, run the tests, take it back."""
    began, copy = time.monotonic(), copies.get()
    module = copy / "trainer_core" / mutant.file
    text = module.read_text()
    try:
        module.write_text(mutant.edited(copy))
        _, noticed_by = run_tests(copy, mutant.tests)
    finally:
        module.write_text(text)
        copies.put(copy)
    return Outcome(mutant, noticed_by, time.monotonic() - began)


def judge(mutants: Sequence[Mutant], jobs: int) -> Iterator[Outcome]:
    """Try each mutant; last, the tests that noticed must pass on the trainer as it is.

    Raises:
        RuntimeError: if one does not: it fails for another reason, and proves nothing.
    """
    ignored = shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__", ".*_cache")
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copies.put(shutil.copytree(ROOT, Path(folder, f"{number}"), ignore=ignored))
        noticed = set()
        with ThreadPoolExecutor(jobs) as pool:
            for outcome in pool.map(partial(try_mutant, copies), mutants):
                if outcome.noticed_by and "::" in outcome.noticed_by:
                    noticed.add(outcome.noticed_by)
                yield outcome
        if noticed and run_tests(copies.get(), sorted(noticed))[0]:
            raise RuntimeError("a test that noticed a mutant fails without it as well")


def as_table(outcomes: Sequence[Outcome]) -> str:
    """The document: the score and a line for each mutant."""
    killed = [outcome for outcome in outcomes if outcome.noticed_by]
    lines = [
        "# Do the tests notice?",
        "",
        "`make mutants` breaks `trainer_core` in each of these ways and runs the tests. A "
        "mutant is killed when a test fails on it that passes on the trainer as it is. The "
        "edits are in [tests/mutants.toml](../tests/mutants.toml). This page is written by "
        "`python scripts/mutate.py --write docs/mutants.md`.",
        "",
        f"**{len(killed)} of {len(outcomes)} killed.**",
        "",
        "| mutant | module | the promise that it breaks | noticed first by |",
        "|---|---|---|---|",
    ]
    for mutant, noticed_by, _ in outcomes:
        # Without parameters: they may hold a bar, which would end the cell.
        by = (
            noticed_by.partition("[")[0].replace("tests/", "") if noticed_by else "**survived**"
        )
        lines.append(f"| {mutant.name} | {mutant.file} | {mutant.breaks} | {by} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Parse, judge, print a line for each mutant."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="MUTANT", help="some of them, by name")
    parser.add_argument("--mutants", type=Path, default=MUTANTS, help="another file of mutants")
    parser.add_argument("--jobs", type=int, default=2, help="at a time (default: 2)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the table, as Markdown")
    options = parser.parse_args(arguments)
    mutants = read_mutants(options.mutants)
    if unknown := set(options.only or ()) - {mutant.name for mutant in mutants}:
        parser.error(f"no mutant {', '.join(sorted(unknown))} in {options.mutants}")
    if options.only:
        mutants = [mutant for mutant in mutants if mutant.name in options.only]
    outcomes = []
    for outcome in judge(mutants, options.jobs):
        outcomes.append(outcome)
        fate = f"killed by {outcome.noticed_by}" if outcome.noticed_by else "SURVIVED"
        print(f"{outcome.mutant.name}: {fate} ({outcome.seconds:.0f} s)", flush=True)
    survivors = sum(outcome.noticed_by is None for outcome in outcomes)
    print(f"{len(outcomes) - survivors} of {len(outcomes)} mutants killed")
    if options.write:
        options.write.write_text(as_table(outcomes))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
