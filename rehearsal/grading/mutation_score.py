"""How many mechanical mistakes does a grader refuse, and does it pass every harmless change?

    python -m rehearsal mutants DRILL --show     judge a drill's mutants; show those that pass
    python -m rehearsal mutants                  all drills; writes docs/mutation_scores.json
    python -m rehearsal mutants --sample 100     some of them, drawn over all drills

A mutant that passes is a hole in the grader, unless the drill's ``survivors.toml`` says why it
may pass:

    [[survivor]]
    mutant = "solution.train: constant: order[: 0] => order[: 1]"   # as --show prints it
    is = "equivalent"    # nothing observable differs; or "outside": the brief leaves it free
    because = "one line that a reader can check"

Every verdict is kept under ``runs/mutants``, so an interrupted run continues where it was.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import json
import multiprocessing
import os
import random
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from rehearsal.grading.check import attempt_of_source, grade_attempt
from rehearsal.grading.drill import Drill, load
from rehearsal.grading.drills_page import digest_of
from rehearsal.grading.mutants import Mutant, mutants
from rehearsal.grading.selftest import outcome
from rehearsal.grading.verdict import counted

ROOT = Path(__file__).resolve().parents[2]
SCORES = ROOT / "docs" / "mutation_scores.json"
VERDICTS = ROOT / "runs" / "mutants"
ENOUGH = 0.97  # of the mutants that change something the brief asks for
SEEDS = 3
LEAST_CAP_S = (
    3.0  # a mutant's deadline is three times what the correct text takes; at least this
)
PASSED = "passed"

Say = Callable[[str], None]


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
        BadSurvivors: if an entry is incomplete, unknown or there twice.
    """
    path = drill.folder / "survivors.toml"
    if not path.exists():
        return {}
    try:
        entries = tomllib.loads(path.read_text("utf-8")).get("survivor", [])
    except tomllib.TOMLDecodeError as error:
        raise BadSurvivors(f"{path}: {error}. Fix the file and run this again.") from None
    found: dict[str, Survivor] = {}
    for entry in entries:
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


# ---------------------------------------------------------------- what is judged


class Task(NamedTuple):
    """One text to judge."""

    drill: str
    id: str
    source: str
    of: str  # the correct text that it was made from
    harmless: bool = False


def tasks_of(drill: Drill) -> list[Task]:
    """All mutants and harmless changes of a drill's correct texts."""
    found = []
    for name, source in drill.solutions().items():
        for mutant in mutants_of(drill, name, source):
            found.append(Task(drill.id, mutant.id, mutant.source, name))
    return found


def mutants_of(drill: Drill, name: str, source: str) -> Iterator[Mutant]:
    """A text's mutants. A bug drill's blank is all for the learner to edit; others' is not."""
    return mutants(name, source, drill.blank, keeps_given=drill.kind != "bug")


class Judged(NamedTuple):
    """What came of one text."""

    id: str
    code: str  # of the first finding; "passed" if every seed passes
    harmless: bool = False


def judge(drill_id: str, source: str, seeds: int, at_most_s: float) -> tuple[str, float]:
    """The first code that refuses a text with one of the seeds, or "passed"; and seconds.

    Runs in a process of its own, which keeps its own server for the ranks.
    """
    seconds = 0.0
    for seed in range(1, seeds + 1):
        verdict = grade_attempt(
            load(drill_id), attempt_of_source(source), seed=seed, at_most_s=at_most_s
        )
        seconds = max(seconds, verdict.seconds)
        if verdict.status != "passed":
            return outcome(verdict), seconds
    return PASSED, seconds


# ---------------------------------------------------------------- verdicts that are kept


def judges_digest(drill: Drill) -> str:
    """A digest of all that a verdict on a text depends on, except the text.

    The grader, the modules beside it, what they use of the kit, and the needed names; not the
    brief, the near misses or the answers.
    """
    found = hashlib.sha256(repr((drill.needs, drill.stages)).encode())
    waiting = [p for p in sorted(drill.folder.glob("*.py")) if not is_answer(p)]
    for path in waiting:  # grows
        found.update(path.read_bytes())
        for module in imported_modules(path):
            if module.startswith("rehearsal.kit."):
                file = ROOT.joinpath(*module.split(".")).with_suffix(".py")
                if file.exists() and file not in waiting:
                    waiting.append(file)
    return found.hexdigest()[:12]


def imported_modules(path: Path) -> list[str]:
    """The modules that a file imports by their whole names."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    found = [n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module]
    found += [alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names]
    return sorted(set(found))


def is_answer(path: Path) -> bool:
    """Whether a file in a drill's folder is a text that gets judged."""
    return path.stem in ("blank", "solution") or path.stem.startswith("other_")


class Kept:
    """The verdicts of earlier runs on a drill, one JSON object a line."""

    def __init__(self, drill: Drill, seeds: int, folder: Path) -> None:
        self.path = folder / f"{drill.id}.jsonl"
        self.prefix = f"{judges_digest(drill)} {seeds} "
        self.codes: dict[str, str] = {}
        if self.path.exists():
            for line in self.path.read_text("utf-8").splitlines():
                try:
                    entry = json.loads(line)
                except json.JSONDecodeError:
                    continue  # cut off by a kill; it is judged again
                self.codes[entry["key"]] = entry["code"]

    def key(self, task: Task) -> str:
        """What the verdict on a task depends on."""
        return hashlib.sha256((self.prefix + task.source).encode()).hexdigest()[:20]

    def get(self, task: Task) -> str | None:
        """The code that is kept for a task, if any."""
        return self.codes.get(self.key(task))

    def put(self, task: Task, code: str) -> None:
        """Keep a verdict."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        entry = {"key": self.key(task), "id": task.id, "code": code}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


# ---------------------------------------------------------------- a run


class Refused(Exception):
    """A correct text is refused, so its mutants cannot be judged."""


@dataclass
class Run:
    """Judges tasks on several processes."""

    say: Say
    seeds: int = SEEDS
    jobs: int = 2
    again: bool = False
    folder: Path = VERDICTS
    pool: ProcessPoolExecutor | None = field(default=None, init=False)

    def __enter__(self) -> Run:
        # Each process forks its ranks from a server of its own; more threads only disturb.
        os.environ["OMP_NUM_THREADS"] = "1"
        context = multiprocessing.get_context("spawn")
        self.pool = ProcessPoolExecutor(self.jobs, mp_context=context)
        return self

    def __exit__(self, *_: object) -> None:
        assert self.pool is not None
        self.pool.shutdown(cancel_futures=True)

    def judge(self, drill: Drill, tasks: Sequence[Task]) -> Iterator[Judged]:
        """Judge tasks of one drill, those with a kept verdict first.

        Raises:
            Refused: if a text that the tasks were made from does not pass itself.
        """
        assert self.pool is not None
        kept = Kept(drill, self.seeds, self.folder)
        waiting = []
        for task in tasks:
            code = None if self.again else kept.get(task)
            if code is None:
                waiting.append(task)
            else:
                yield Judged(task.id, code, task.harmless)
        caps = self.caps(drill, {task.of for task in waiting})
        futures: dict[Future[tuple[str, float]], Task] = {}
        for task in waiting:
            cap_s = float("inf") if task.harmless else caps[task.of]
            futures[self.pool.submit(judge, drill.id, task.source, self.seeds, cap_s)] = task
        for future in as_completed(futures):
            task, (code, _) = futures[future], future.result()
            kept.put(task, code)
            yield Judged(task.id, code, task.harmless)

    def caps(self, drill: Drill, names: set[str]) -> dict[str, float]:
        """For each text, the longest that a scenario may take on a mutant of it, in seconds."""
        assert self.pool is not None
        texts = drill.solutions()
        futures = {
            name: self.pool.submit(judge, drill.id, texts[name], self.seeds, float("inf"))
            for name in sorted(names)
        }
        found = {}
        for name, future in futures.items():
            code, seconds = future.result()
            if code != PASSED:
                raise Refused(
                    f"{drill.id}: the correct text {name} is refused ({code}), so nothing can "
                    f"be said about its mutants. Run: python -m rehearsal selftest {drill.id}"
                )
            found[name] = max(LEAST_CAP_S, 3 * seconds)
        return found


# ---------------------------------------------------------------- the record


class Score(NamedTuple):
    """How a drill's grader did."""

    mutants: int
    refused: int
    equivalent: int
    outside: int
    holes: list[str]  # ids
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
        """Whether that is enough, every entry is used, and every harmless change passes."""
        return self.fraction >= ENOUGH and not self.stale and not self.rejected


def short(mutant_id: str) -> str:
    """A mutant in the record: its id's digest."""
    return hashlib.sha256(mutant_id.encode()).hexdigest()[:8]


def record_of(drill: Drill, judged: Sequence[Judged], seeds: int) -> dict[str, object]:
    """What is written down about a drill: survivors by id, refused mutants by code."""
    refused: dict[str, list[str]] = {}
    for each in judged:
        if not each.harmless and each.code != PASSED:
            refused.setdefault(each.code, []).append(short(each.id))
    changes = [each for each in judged if each.harmless]
    return {
        "digest": digest_of(drill),
        "seeds": seeds,
        "survived": sorted(e.id for e in judged if not e.harmless and e.code == PASSED),
        "refused": {code: " ".join(sorted(refused[code])) for code in sorted(refused)},
        "harmless": len(changes),
        "rejected": {e.id: e.code for e in sorted(changes) if e.code != PASSED},
    }


def score_of(drill: Drill, record: Mapping[str, object], *, partial: bool = False) -> Score:
    """The score that a record and the drill's ``survivors.toml`` give.

    Args:
        partial: not all mutants were judged, so an entry without a survivor may be right.
    """
    entries = survivors_of(drill)
    survived, refused, rejected = record["survived"], record["refused"], record["rejected"]
    assert isinstance(survived, list)
    assert isinstance(refused, dict)
    assert isinstance(rejected, dict)
    harmless = record["harmless"]
    assert isinstance(harmless, int)
    kinds = [entries[each].kind for each in survived if each in entries]
    num_refused = sum(len(ids.split()) for ids in refused.values())
    return Score(
        mutants=num_refused + len(survived),
        refused=num_refused,
        equivalent=kinds.count("equivalent"),
        outside=kinds.count("outside"),
        holes=[each for each in survived if each not in entries],
        stale=[] if partial else [each for each in entries if each not in survived],
        harmless=harmless,
        rejected=list(rejected),
    )


def records(path: Path = SCORES) -> dict[str, dict[str, object]]:
    """What is written down, by drill."""
    if not path.exists():
        return {}
    found: dict[str, dict[str, object]] = json.loads(path.read_text("utf-8"))
    return found


def keep_record(drill: Drill, record: Mapping[str, object], path: Path = SCORES) -> None:
    """Write a drill's record into the file."""
    found = {**records(path), drill.id: record}
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8", newline="\n")


# ---------------------------------------------------------------- what is printed


def line_of(drill: Drill, score: Score) -> str:
    """A drill's score in one line."""
    parts = [
        f"{drill.id}: {score.refused} of {score.counted} mutants refused "
        f"({100 * score.fraction:.1f} %)",
        f"{score.equivalent} equivalent, {score.outside} outside the brief",
        counted(len(score.holes), "hole"),
    ]
    if score.harmless:
        passed = score.harmless - len(score.rejected)
        parts.append(f"{passed} of {score.harmless} harmless changes passed")
    return "; ".join(parts)


def show(drill: Drill, tasks: Sequence[Task], score: Score, say: Say) -> None:
    """Holes and rejected changes as diffs; holes with an entry that is ready to paste."""
    by_id = {task.id: task for task in tasks}
    texts = drill.solutions()
    for mutant_id in [*score.holes, *score.rejected]:
        task = by_id[mutant_id]
        lines = difflib.unified_diff(
            texts[task.of].splitlines(),
            task.source.splitlines(),
            task.of,
            task.id,
            "",
            "",
            2,
            "",
        )
        say("\n".join(list(lines)[2:]))
        if task.harmless:
            say(f"# a harmless change that is refused: {task.id}\n")
        else:
            say(f'\n[[survivor]]\nmutant = {json.dumps(task.id)}\nis = ""\nbecause = ""\n')
    for mutant_id in score.stale:
        say(f"stale: no mutant with this id passes, so delete its entry: {mutant_id}")


def run(
    drills: Sequence[Drill],
    say: Say = print,
    *,
    sample: int | None = None,
    only: str = "",
    shows: bool = False,
    again: bool = False,
    seeds: int = SEEDS,
    jobs: int = 2,
    folder: Path = VERDICTS,
    path: Path = SCORES,
) -> bool:
    """Judge the mutants and harmless changes of drills; returns whether every score is enough.

    Args:
        sample: judge this many, drawn over all drills, and write no record.
        only: judge those with this in their id, and write no record.
        shows: print what passes and should not, as diffs.
        again: judge what was judged in an earlier run too.

    Raises:
        Refused: if a drill's correct text is refused.
        BadSurvivors: if a drill's survivors.toml cannot be read.
    """
    is_partial = sample is not None or bool(only)
    all_tasks = [task for drill in drills for task in tasks_of(drill) if only in task.id]
    if sample is not None:
        # Always the same ones: a change of a grader must not look like luck.
        all_tasks = random.Random(sample).sample(all_tasks, min(sample, len(all_tasks)))
    scores = []
    with Run(say, seeds, jobs, again, folder) as judging:
        for drill in drills:
            tasks = [task for task in all_tasks if task.drill == drill.id]
            if not tasks:
                continue
            survivors_of(drill)  # a mistake in it is reported before an hour has passed
            judged = list(judging.judge(drill, tasks))
            record = record_of(drill, judged, seeds)
            score = score_of(drill, record, partial=is_partial)
            say(line_of(drill, score))
            if shows or is_partial:
                show(drill, tasks, score, say)
            elif score.holes or score.stale or score.rejected:
                say(f"  to see them: python -m rehearsal mutants {drill.id} --show")
            if not is_partial:
                keep_record(drill, record, path)
            scores.append(score)
    refused, total = sum(s.refused for s in scores), sum(s.counted for s in scores)
    if len(scores) > 1:
        say(f"{counted(len(scores), 'drill')}: {refused} of {total} mutants refused")
    if is_partial:
        return refused >= ENOUGH * total and not any(score.rejected for score in scores)
    return all(score.ok for score in scores)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``python -m rehearsal mutants``."""
    parser.add_argument("drill", nargs="*", help="default: all drills, an hour or two")
    parser.add_argument("--show", action="store_true", help="show what passes, as diffs")
    parser.add_argument(
        "--sample", type=int, metavar="N", help="judge N, drawn over all drills"
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="those with this in their id"
    )
    parser.add_argument("--again", action="store_true", help="judge kept ones again, too")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"for each; default {SEEDS}")
    parser.add_argument("--jobs", type=int, default=2, help="judges at a time; default 2")


def main(drills: Sequence[Drill], options: argparse.Namespace) -> int:
    """Run ``python -m rehearsal mutants``; returns the exit code."""
    ok = run(
        drills,
        sample=options.sample,
        only=options.only,
        shows=options.show,
        again=options.again,
        seeds=options.seeds,
        jobs=options.jobs,
    )
    return 0 if ok else 1
