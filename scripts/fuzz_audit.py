"""Damage real run folders at random and compare the audit with a second, independent one.

    python scripts/fuzz_audit.py                       10,000 edited folders
    python scripts/fuzz_audit.py --edits 300 --seed 7  fewer, and different ones
    python scripts/fuzz_audit.py --case resumed:12,907 one of them again, with its edits

Each folder is a copy of a real run's with one to three edits (rehearsal/faults/damage.py). The
audit must exit with the verdict of tests/reference_audit.py: 0 proved, 1 refuted, 2 no
evidence. It runs in this process, and sometimes through its real command line. Exit codes: 0
they always agree, 1 they don't; each disagreement is then printed with as few edits as show it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rehearsal.engine import programs
from rehearsal.faults.breaks import kill
from rehearsal.faults.damage import damage
from rehearsal.faults.jobs import finish, small, start

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "audit_run.py"
NOBODY = 65534
# Two epochs of six steps, the last of each with three samples instead of four; saved every
# third step and at each epoch's end.
TINY: dict[str, Any] = {
    "dataset_size": 23,
    "input_dim": 2,
    "hidden_dim": 4,
    "num_layers": 1,
    "micro_batch_size": 2,
    "grad_accum_steps": 1,
    "pinned_global_batch_size": 4,
    "log_every": 2,
    "trace_steps": 0,
}


def build_runs(root: Path) -> dict[str, Path]:
    """Real runs of the hardened trainer, all different. Their audits have a verdict."""
    runs = {name: root / name for name in ("one", "two", "resumed", "resized", "older")}
    one, two, resumed, resized, older = (small(path, **TINY) for path in runs.values())
    finish(one, 1)
    finish(two, 2)
    start(resumed, 2, partial(kill, 1, 8))
    runs["killed"] = root / "killed"  # as it is found, or as it looks while it runs
    shutil.copytree(resumed.run_dir, runs["killed"])
    finish(resumed, 2)
    start(resized, 2, partial(kill, 0, 5, "after the ledger"))
    start(resized, 1, partial(kill, 0, 8))
    finish(resized, 2)
    # An older copy is brought back: attempt 1 falls back to step 3 and dies before it gets to
    # 6; then attempt 2 restores attempt 0's copy of 6.
    start(older, 1, partial(kill, 0, 8))
    newest, copy = older.run_dir / "checkpoints" / "step-00000006", root / "copy"
    shutil.copytree(newest, copy)
    (newest / "state.pt").write_bytes(b"damaged")
    start(older, 1, partial(kill, 0, 5))
    shutil.copytree(copy, newest)
    shutil.rmtree(copy)
    finish(older, 2)
    # It starts over from a single epoch and then goes on for another.
    extended = small(root / "extended", **TINY)
    finish(replace(extended, max_epochs=1), 2)
    finish(extended, 2)
    runs["extended"] = root / "extended"
    for path in root.rglob("*.pt"):  # the audit doesn't read them, and each edit copies a run
        path.unlink()
    root.chmod(0o755)
    return runs


# ---------------------------------------------------------------- one case


@dataclass(frozen=True, slots=True)
class Case:
    """A run and the seeds of its edits."""

    run: str
    seeds: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.run}:{','.join(map(str, self.seeds))}"

    @classmethod
    def from_text(cls, text: str) -> Case:
        """The case that ``--case`` names. Raises ArgumentTypeError if a seed is no number."""
        run, _, seeds = text.partition(":")
        try:
            return cls(run, tuple(map(int, filter(None, seeds.split(",")))))
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{text}: the seeds must be whole numbers, as in resumed:12,907."
            ) from None


@dataclass(slots=True)
class Outcome:
    """What both audits said about a case."""

    edits: list[str]
    expected: int
    code: int
    output: str

    @property
    def is_right(self) -> bool:
        """Whether the audit said what the reference says, and explained a 2 in one line."""
        is_explained = self.code != 2 or len(self.output.strip().splitlines()) == 1
        return self.code == self.expected and is_explained and "Traceback" not in self.output


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """Root may read anything, so become nobody for a while."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


class Fuzzer:
    """Both audits, and the runs that they judge."""

    def __init__(self, runs: dict[str, Path], work: Path) -> None:
        self.runs, self.work = runs, work
        reference = runpy.run_path(str(ROOT / "tests" / "reference_audit.py"))
        self.reference = reference["verdict"]
        self.main = runpy.run_path(str(SCRIPT))["main"]

    def audit(self, folder: Path) -> tuple[int, str]:
        """Exit code and output of the script, called in this process."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = self.main([str(folder)])
            except BaseException:
                code = -1
                traceback.print_exc()
        return code, out.getvalue() + err.getvalue()

    def audit_command(self, folder: Path) -> tuple[int, str]:
        """The same in a process of its own."""
        words = [sys.executable, "-B", str(SCRIPT), str(folder)]
        done = subprocess.run(words, capture_output=True, errors="replace")
        return done.returncode, done.stdout + done.stderr

    def judge(self, case: Case, *, by_command: bool = False) -> Outcome:
        """Edit a copy of the run, and have both audits judge it."""
        folder = self.work / "run"
        shutil.copytree(self.runs[case.run], folder)
        try:
            edits = [damage(seed, folder) for seed in case.seeds]
            # Nobody may be unable to run this interpreter, so a command keeps its rights.
            with contextlib.nullcontext() if by_command else without_privileges():
                expected = self.reference(folder)
                code, output = (self.audit_command if by_command else self.audit)(folder)
        finally:
            for path in (folder, *folder.rglob("*")):
                if path.is_dir() and not path.is_symlink():
                    path.chmod(0o755)
            shutil.rmtree(folder)
        return Outcome(edits, expected, code, output)

    def shrink(self, case: Case) -> Case:
        """The same case with as few edits as still show the disagreement."""
        for seed in case.seeds:
            fewer = replace(case, seeds=tuple(x for x in case.seeds if x != seed))
            if fewer.seeds and not self.judge(fewer).is_right:
                return self.shrink(fewer)
        return case


# ---------------------------------------------------------------- many cases


@dataclass(slots=True)
class Score:
    """How often the audits agreed."""

    verdicts: Counter[int] = field(default_factory=Counter)
    wrong: list[tuple[Case, Outcome]] = field(default_factory=list)
    num_commands: int = 0


def draw_cases(names: Sequence[str], num_edits: int, seed: int) -> Iterator[Case]:
    """The cases of a seed: every run in turn, mostly with a single edit."""
    rng = random.Random(seed)
    for number in range(num_edits):
        num = rng.choice([1, 1, 1, 2, 2, 3])
        yield Case(names[number % len(names)], tuple(rng.randrange(10**9) for _ in range(num)))


def fuzz(fuzzer: Fuzzer, num_edits: int, seed: int, num_commands: int = 0) -> Score:
    """Judge ``num_edits`` edited folders, ``num_commands`` of them through the command line."""
    score = Score()
    every = max(1, num_edits // num_commands) if num_commands else num_edits + 1
    for number, case in enumerate(draw_cases(sorted(fuzzer.runs), num_edits, seed), start=1):
        by_command = number % every == 0
        outcome = fuzzer.judge(case, by_command=by_command)
        score.num_commands += by_command
        score.verdicts[outcome.expected] += 1
        if not outcome.is_right:
            smallest = case if by_command else fuzzer.shrink(case)
            score.wrong.append((smallest, fuzzer.judge(smallest, by_command=by_command)))
    return score


def describe(case: Case, outcome: Outcome) -> str:
    """A case for a reader."""
    edits = "\n".join(f"    {edit}" for edit in outcome.edits)
    verdict = f"the audit exits with {outcome.code}, the reference says {outcome.expected}"
    output = "\n".join(f"    | {line}" for line in outcome.output.splitlines()[-12:])
    return f"--case {case}\n{edits}\n  {verdict}\n{output}"


def main() -> int:
    """Build the runs, fuzz, and print what disagrees."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--edits", type=int, default=10_000, metavar="N", help="edited folders (default: 10000)"
    )
    add("--seed", type=int, default=0, help="for the random edits (default: 0)")
    text = "how many of them to judge through the real command line (default: 300)"
    add("--commands", type=int, default=300, metavar="N", help=text)
    add("--case", type=Case.from_text, metavar="RUN:SEED,SEED", help="judge just this one")
    add("--runs", type=Path, metavar="DIR", help="keep the runs there, and reuse them")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = args.runs or Path(temporary, "runs")
        Path(temporary).chmod(0o755)
        if root.is_dir():
            runs = {path.name: path for path in sorted(root.iterdir())}
        else:
            root.mkdir(parents=True)
            runs = build_runs(root)
            programs.shut_down()
        if not runs:
            parser.error(
                f"--runs {root}: this folder has no runs. Delete it to have them built."
            )
        fuzzer = Fuzzer(runs, Path(temporary))
        if args.case:
            if args.case.run not in runs:
                parser.error(
                    f"--case {args.case}: no such run. The runs are {', '.join(runs)}."
                )
            outcome = fuzzer.judge(args.case)
            print(describe(args.case, outcome))
            return 0 if outcome.is_right else 1
        for name in runs:
            outcome = fuzzer.judge(Case(name, ()))
            print(f"{name}: {outcome.output.splitlines()[-1]}")
            if (outcome.code, outcome.expected) != (0, 0):
                print(f"an unedited run is not proved; the reference says {outcome.expected}")
                return 1
        began = time.monotonic()
        score = fuzz(fuzzer, args.edits, args.seed, args.commands)
        took_s = time.monotonic() - began
    for case, outcome in score.wrong[:20]:
        print(describe(case, outcome))
    verdicts = ", ".join(f"{n} x {code}" for code, n in sorted(score.verdicts.items()))
    print(f"{args.edits} edited folders of {len(runs)} runs ({verdicts}), seed {args.seed},")
    print(f"{score.num_commands} through the command line, in {took_s:.0f} s:")
    print(f"{len(score.wrong)} disagreements")
    return 1 if score.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
