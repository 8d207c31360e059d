"""Do the tests notice? Breaks ``trainer_core`` as tests/mutants.toml says, one way at a time.

    python scripts/mutate.py                            all; about an hour on two cores
    python scripts/mutate.py --only no_fsync            some
    python scripts/mutate.py --write docs/mutants.md    and the table for the docs

A mutant is killed when a test fails on it that passes on the trainer as it is. One that
survives is a promise that no test keeps: exit code 0 only if there is none, or if its text
argues why it may.
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
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
MUTANTS = ROOT / "tests" / "mutants.toml"
TEST_LIMIT_S = 120  # a test that a mutant hangs has failed
LIMIT_S = 1800.0  # for all tests of a mutant


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """One edit of one module, the promise that it breaks, and who should notice."""

    name: str
    breaks: str
    file: str
    find: str
    replace: str
    tests: list[str]
    argued: str = ""  # why it may survive

    def edited(self, root: Path) -> str:
        """The module with the edit. ValueError if the text is not there exactly once."""
        text = (root / self.file).read_text()
        if (count := text.count(self.find)) != 1:
            raise ValueError(
                f"{self.name}: its text occurs {count} times in {self.file}. It must occur "
                "once, or another trainer than the described one is tested. Take it anew."
            )
        return text.replace(self.find, self.replace)


class NoVerdict(Exception):
    """The tests neither passed nor failed."""


class Outcome(NamedTuple):
    """What happened to a mutant."""

    mutant: Mutant
    fate: str  # killed, survived, no verdict
    by: str  # the test that noticed, or why there is no verdict
    seconds: float


def read_mutants(path: Path) -> list[Mutant]:
    """The mutants of a file, in its order."""
    with path.open("rb") as file:
        return [Mutant(name=name, **facts) for name, facts in tomllib.load(file).items()]


def run_tests(copy: Path, tests: Sequence[str], limit_s: float) -> str | None:
    """Run tests in a copy, up to the first that fails, which is returned.

    Raises:
        NoVerdict: if pytest comes to no end, or ends without saying what failed.
    """
    options = ["-x", "-q", "-p", "no:cacheprovider", "--timeout", f"{TEST_LIMIT_S}"]
    options += ["--hypothesis-profile", "mutants", "--basetemp", str(copy / "of-the-tests")]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    # PYTHONPATH for the processes that the tests start: the copy, not what is installed.
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command,
        cwd=copy,
        env=environment,
        text=True,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise NoVerdict(f"no end within {limit_s:.0f} s") from error
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    if process.returncode not in (0, 1) or (process.returncode == 1) != bool(failed):
        raise NoVerdict(f"pytest has ended with {process.returncode}: {output[-500:]}")
    return failed[1] if failed else None


def try_mutant(copies: SimpleQueue[Path], mutant: Mutant) -> Outcome:
    """Apply the edit in a copy of the project that is free, run the tests, take it back."""
    began, copy = time.monotonic(), copies.get()
    module = copy / mutant.file
    text = module.read_text()
    try:
        module.write_text(mutant.edited(copy))
        noticed_by = run_tests(copy, mutant.tests, LIMIT_S)
        fate, by = ("killed", noticed_by) if noticed_by else ("survived", "")
    except NoVerdict as reason:
        fate, by = "no verdict", str(reason)
    finally:
        module.write_text(text)
        copies.put(copy)
    return Outcome(mutant, fate, by, time.monotonic() - began)


def judge(mutants: Sequence[Mutant], jobs: int) -> Iterator[Outcome]:
    """Try each mutant; last, the tests that noticed must pass on the trainer as it is.

    Raises:
        NoVerdict: if one does not: it fails for another reason, and proves nothing.
    """
    ignored = shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__", ".*_cache")
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copies.put(shutil.copytree(ROOT, Path(folder, f"{number}"), ignore=ignored))
        noticed = set()
        with ThreadPoolExecutor(jobs) as pool:
            tries = [pool.submit(try_mutant, copies, mutant) for mutant in mutants]
            for finished in as_completed(tries):
                outcome = finished.result()
                if outcome.fate == "killed":
                    noticed.add(outcome.by)
                yield outcome
        limit_s = LIMIT_S + 60 * len(noticed)
        if noticed and (failed := run_tests(copies.get(), sorted(noticed), limit_s)):
            raise NoVerdict(f"{failed} noticed a mutant, but fails without it as well")


def as_table(outcomes: Sequence[Outcome]) -> str:
    """The document: the score and a line for each mutant."""
    killed = sum(outcome.fate == "killed" for outcome in outcomes)
    lines = [
        "# Do the tests notice?",
        "",
        "`make mutants` breaks `trainer_core` in each of these ways and runs the tests. A "
        "mutant is killed when a test fails on it that passes on the trainer as it is. The "
        "edits are in [tests/mutants.toml](../tests/mutants.toml). This page is written by "
        "`python scripts/mutate.py --write docs/mutants.md`.",
        "",
        f"**{killed} of {len(outcomes)} killed.**",
        "",
        "| mutant | module | the promise that it breaks | noticed first by |",
        "|---|---|---|---|",
    ]
    for mutant, fate, by, _ in outcomes:
        # Without parameters: they may hold a bar, which would end the cell.
        test = by.partition("[")[0].replace("tests/", "")
        shown = test if fate == "killed" else f"**{fate}**"
        shown += f": {mutant.argued}" if fate == "survived" and mutant.argued else ""
        lines.append(f"| {mutant.name} | {mutant.file} | {mutant.breaks} | {shown} |")
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
        loud = outcome.fate if outcome.fate == "killed" else outcome.fate.upper()
        print(
            f"{outcome.mutant.name}: {loud} {outcome.by} ({outcome.seconds:.0f} s)", flush=True
        )
    outcomes.sort(key=lambda outcome: mutants.index(outcome.mutant))
    killed = sum(outcome.fate == "killed" for outcome in outcomes)
    print(f"{killed} of {len(outcomes)} mutants killed")
    if options.write:
        options.write.write_text(as_table(outcomes))
    argued = sum(
        outcome.fate == "survived" and outcome.mutant.argued != "" for outcome in outcomes
    )
    return 0 if killed + argued == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
