"""Do the tests notice? Breaks the trainer in the ways listed in tests/mutants*.toml.

    python scripts/mutate.py                            all; 40 minutes on two cores
    python scripts/mutate.py --only no_fsync            just this one
    python scripts/mutate.py --write docs/mutants.md    all, and write the table for the docs

A mutant is killed when a test that passes on the real trainer fails on the mutant. A mutant
that survives is a promise that no test checks. The exit code is 0 only if every survivor comes
with a reason why it may survive.
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
MUTANTS = [ROOT / "tests" / "mutants.toml", ROOT / "tests" / "mutants_live.toml"]
TEST_LIMIT_S = 120  # a test that hangs on a mutant counts as failed
LIMIT_S = 1800.0  # for all of a mutant's tests together


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """One edit to one module, the promise it breaks, and the tests that should notice."""

    name: str
    breaks: str
    file: str
    find: str
    replace: str
    tests: list[str]
    argued: str = ""  # why it may survive

    def edited(self, root: Path) -> str:
        """The text of the module with the edit applied.

        Raises:
            ValueError: if ``find`` does not occur exactly once.
        """
        text = (root / self.file).read_text()
        if (count := text.count(self.find)) != 1:
            raise ValueError(
                f"{self.name}: `find` occurs {count} times in {self.file}. It must occur "
                "exactly once, or the wrong edit is tested. Copy it again from the module."
            )
        return text.replace(self.find, self.replace)


class NoVerdict(Exception):
    """pytest neither passed nor failed a mutant."""


class Outcome(NamedTuple):
    """What happened to a mutant."""

    mutant: Mutant
    fate: str  # killed, survived, no verdict
    by: str  # the test that noticed, or why there is no verdict
    seconds: float


def read_mutants(paths: Sequence[Path]) -> list[Mutant]:
    """The mutants in the files, in order."""
    tables = [tomllib.loads(path.read_text()).items() for path in paths]
    return [Mutant(name=name, **facts) for table in tables for name, facts in table]


def run_tests(copy: Path, tests: Sequence[str], limit_s: float) -> str | None:
    """Run tests in a copy of the project; returns the first test that fails, if any.

    Raises:
        NoVerdict: if pytest does not finish, or exits without naming what failed.
    """
    options = ["-x", "-q", "-p", "no:cacheprovider", "--timeout", f"{TEST_LIMIT_S}"]
    options += ["--hypothesis-profile", "mutants", "--basetemp", str(copy / "of-the-tests")]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    # PYTHONPATH makes processes that tests start import the copy, not the installed package.
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
        raise NoVerdict(f"not finished within {limit_s:.0f} s") from error
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    if process.returncode not in (0, 1) or (process.returncode == 1) != bool(failed):
        raise NoVerdict(f"pytest exited with {process.returncode}: {output[-500:]}")
    return failed[1] if failed else None


def try_mutant(copies: SimpleQueue[Path], mutant: Mutant) -> Outcome:
    """Apply the edit in a free copy of the project, run the tests, and undo the edit."""
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
    """Try each mutant; at the end, run each test that noticed one on the real trainer.

    Raises:
        NoVerdict: if one fails there too: then it fails for another reason and proves nothing.
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
            raise NoVerdict(f"{failed} killed a mutant, but also fails on the real trainer")


def as_table(outcomes: Sequence[Outcome]) -> str:
    """The page for the docs: the score, and one row per mutant."""
    killed = sum(outcome.fate == "killed" for outcome in outcomes)
    lines = [
        "# Do the tests notice?",
        "",
        "`make mutants` breaks the trainer in each of these ways, one at a time, and runs the "
        "tests. A mutant is killed when a test that passes on the real trainer fails on the "
        "mutant. The edits are in [tests/mutants.toml](../tests/mutants.toml) and, for the "
        "live trainer, in [tests/mutants_live.toml](../tests/mutants_live.toml); `python "
        "scripts/mutate.py --write docs/mutants.md` writes this page.",
        "",
        f"**{killed} of {len(outcomes)} killed.**",
        "",
        "| mutant | module | promise it breaks | first test to notice |",
        "|---|---|---|---|",
    ]
    for mutant, fate, by, _ in outcomes:
        # Without parameters: they may contain a |, which would end the cell.
        test = by.partition("[")[0].replace("tests/", "")
        shown = test if fate == "killed" else f"**{fate}**"
        shown += f": {mutant.argued}" if fate == "survived" and mutant.argued else ""
        lines.append(f"| {mutant.name} | {mutant.file} | {mutant.breaks} | {shown} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Try the mutants and print one line for each; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="MUTANT", help="only these, by name")
    text = "files of mutants (default: tests/mutants.toml and mutants_live.toml)"
    parser.add_argument(
        "--mutants", type=Path, nargs="+", default=MUTANTS, metavar="FILE", help=text
    )
    text = "how many to try at a time (default: 2)"
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help=text)
    text = "write the table to FILE, as Markdown"
    parser.add_argument("--write", type=Path, metavar="FILE", help=text)
    options = parser.parse_args(arguments)
    mutants = read_mutants(options.mutants)
    if unknown := set(options.only or ()) - {mutant.name for mutant in mutants}:
        files = " or ".join(path.name for path in options.mutants)
        parser.error(f"no mutant named {', '.join(sorted(unknown))} in {files}")
    if options.only:
        mutants = [mutant for mutant in mutants if mutant.name in options.only]
    outcomes = []
    for outcome in judge(mutants, options.jobs):
        outcomes.append(outcome)
        fate = "killed by" if outcome.fate == "killed" else outcome.fate.upper()
        print(
            f"{outcome.mutant.name}: {fate} {outcome.by} ({outcome.seconds:.0f} s)", flush=True
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
