"""How many mechanical mistakes does a grader refuse, and does it pass every harmless change?

    python -m rehearsal mutants DRILL --show     judge a drill's mutants; show those that pass
    python -m rehearsal mutants                  all drills; writes docs/mutation_scores.json
    python -m rehearsal mutants --sample 100     some of them, drawn over all drills

A mutant that passes is a hole in the grader, unless the drill's ``survivors.toml`` says why it
may pass (``mutation_record``).

Every verdict is kept under ``runs/mutants``, so an interrupted run continues where it was.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rehearsal.grading.check import attempt_of_source, grade_attempt
from rehearsal.grading.drill import Drill, load
from rehearsal.grading.digests import judges_digest, mutants_digest
from rehearsal.grading.harmless import harmless
from rehearsal.grading.mutants import mutants
from rehearsal.grading.mutation_record import (
    NO_VERDICT,
    PASSED,
    SCORES,
    Judged,
    Score,
    keep_record,
    line_of,
    record_of,
    records,
    score_of,
    survivors_of,
    without_known_holes,
)
from rehearsal.grading.pool import processes
from rehearsal.grading.selftest import outcome
from rehearsal.grading.verdict import counted

ROOT = Path(__file__).resolve().parents[2]
VERDICTS = ROOT / "runs" / "mutants"
NUM_SEEDS = 3  # how many checks a mutant has to survive
LEAST_CAP_S = 3.0  # a scenario; more if all scenarios of the correct text take more

Say = Callable[[str], None]


# ---------------------------------------------------------------- what is judged


class Task(NamedTuple):
    """One text to judge."""

    drill: str
    id: str
    source: str
    of: str  # the correct text that it was made from
    seeds: Sequence[int]  # what the scenarios draw their numbers from, one check for each
    harmless: bool = False


def tasks_of(drill: Drill, seeds: int = NUM_SEEDS) -> list[Task]:
    """All mutants and harmless changes of a drill's correct texts.

    Whoever starts from a broken program may edit all of it. In the other drills, what the blank
    already has is not a mistake that anybody can make, so it is not edited.
    """
    found, keeps_given = list[Task](), not drill.is_broken
    for name, source in drill.solutions().items():
        for mutant in mutants(name, source, drill.blank, keeps_given=keeps_given):
            every = tuple(range(1, seeds + 1))
            found.append(Task(drill.id, mutant.id, mutant.source, name, every))
        for change in harmless(name, source):
            # One seed, but another one for each: what they have in common is judged by many.
            one = (1 + zlib.crc32(change.id.encode()) % 1000,)
            found.append(Task(drill.id, change.id, change.source, name, one, harmless=True))
    return found


def judge(
    drill_id: str, source: str, seeds: Sequence[int], at_most_s: float
) -> tuple[str, float]:
    """The first code that refuses a text with one of the seeds, or "passed".

    And the seconds of the longest check. A text that exceeds ``at_most_s`` is judged again
    without it: the machine may have been slow. Runs in a process of its own, which keeps its
    own server for the ranks.
    """
    seconds = 0.0
    for seed in seeds:
        verdict = grade_attempt(
            load(drill_id), attempt_of_source(source), seed=seed, at_most_s=at_most_s
        )
        if verdict.status == "hung" and at_most_s < float("inf"):
            verdict = grade_attempt(load(drill_id), attempt_of_source(source), seed=seed)
        seconds = max(seconds, verdict.seconds)
        if verdict.status != "passed":
            return outcome(verdict), seconds
    return PASSED, seconds


# ---------------------------------------------------------------- verdicts that are kept


class Kept:
    """The verdicts of earlier runs on a drill, one JSON object a line."""

    def __init__(self, drill: Drill, folder: Path) -> None:
        self.path = folder / f"{drill.id}.jsonl"
        self.digest = judges_digest(drill)
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
        about = f"{self.digest} {list(task.seeds)} {task.source}"
        return hashlib.sha256(about.encode()).hexdigest()[:20]

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


class CannotScore(Exception):
    """There is nothing to measure, or no place to write it down; the user can fix that."""


@dataclass(frozen=True, slots=True)
class Judging:
    """Judges tasks, and keeps each verdict."""

    pool: Executor
    folder: Path = VERDICTS
    again: bool = False  # judge what is kept, too

    def judge(self, drill: Drill, tasks: Sequence[Task]) -> Iterator[Judged]:
        """Judge tasks of one drill, those with a kept verdict first.

        Raises:
            CannotScore: if a text that the tasks were made from does not pass itself.
        """
        kept = Kept(drill, self.folder)
        waiting = []
        for task in tasks:
            code = None if self.again else kept.get(task)
            if code is None:
                waiting.append(task)
            else:
                yield Judged(task.id, code, task.harmless)
        caps = self.caps(drill, {t.of: t.seeds for t in waiting if not t.harmless})
        futures: dict[Future[tuple[str, float]], Task] = {}
        for task in waiting:
            cap_s = float("inf") if task.harmless else caps[task.of]
            futures[self.pool.submit(judge, drill.id, task.source, task.seeds, cap_s)] = task
        for future in as_completed(futures):
            task, (code, _) = futures[future], future.result()
            if code not in NO_VERDICT:  # says nothing about the text: judged again next time
                kept.put(task, code)
            yield Judged(task.id, code, task.harmless)

    def caps(self, drill: Drill, seeds_of: Mapping[str, Sequence[int]]) -> dict[str, float]:
        """For each text, the longest that a scenario may take on a mutant of it, in seconds."""
        texts = drill.solutions()
        futures = {
            name: self.pool.submit(judge, drill.id, texts[name], seeds, float("inf"))
            for name, seeds in sorted(seeds_of.items())
        }
        found = {}
        for name, future in futures.items():
            code, seconds = future.result()
            if code in NO_VERDICT:
                raise CannotScore(
                    f"{drill.id}: the correct text {name} could not be judged ({code}), so "
                    "nothing can be said about its mutants. Run the command again."
                )
            if code != PASSED:
                raise CannotScore(
                    f"{drill.id}: the correct text {name} is refused ({code}), so nothing can "
                    f"be said about its mutants. Run: python -m rehearsal selftest {drill.id}"
                )
            found[name] = max(LEAST_CAP_S, seconds)
        return found


# ---------------------------------------------------------------- what is printed


def show(drill: Drill, tasks: Sequence[Task], score: Score, say: Say) -> None:
    """Holes and rejected changes as diffs; holes with an entry that is ready to paste."""
    by_id = {task.id: task for task in tasks}
    texts = drill.solutions()
    for mutant_id in [*score.holes, *score.unjudged, *score.rejected]:
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
        if mutant_id in score.unjudged:
            say(f"# the grader itself failed on it: {task.id}\n")
        elif task.harmless:
            say(f"# a harmless change that is refused: {task.id}\n")
        else:
            say(f'\n[[survivor]]\nmutant = {json.dumps(task.id)}\nis = ""\nbecause = ""\n')
    for mutant_id in score.stale:
        say(f"stale: no mutant with this id passes, so delete its entry: {mutant_id}")


def run(
    drills: Sequence[Drill],
    judging: Judging,
    say: Say = print,
    *,
    sample: int | None = None,
    only: str = "",
    shows: bool = False,
    seeds: int = NUM_SEEDS,
    path: Path = SCORES,
) -> bool:
    """Judge the mutants and harmless changes of drills; returns whether all is well.

    That is: every score is high enough, every entry of a ``survivors.toml`` is used, and every
    harmless change passes. Of a part of them: no mutant passes that the record does not know,
    every harmless change passes, and the grader itself failed on none.

    Args:
        sample: judge this many, drawn over all drills, and write no record.
        only: judge those with this in their id, and write no record.
        shows: print what passes and should not, as diffs.
        seeds: how many checks a mutant has to survive.
        path: of the record.

    Raises:
        CannotScore: if there is nothing to judge, or a drill's correct text is refused.
        BadSurvivors: if a drill's survivors.toml cannot be read.
    """
    for drill in drills:
        survivors_of(drill)  # a mistake in one is reported before an hour has passed
    is_partial = sample is not None or bool(only)
    every = [task for drill in drills for task in tasks_of(drill, seeds)]
    all_tasks = [task for task in every if only in task.id]
    if not all_tasks:
        raise CannotScore(
            f"No mutant or harmless change has {only!r} in its id, so nothing was judged. An "
            f"id looks like this one: {every[0].id if every else 'there are none'}"
        )
    if sample is not None:
        # Always the same ones, so that a failure can be repeated.
        all_tasks = random.Random(sample).sample(all_tasks, min(sample, len(all_tasks)))
    scores, known = [], records(path)
    for drill in drills:
        tasks = [task for task in all_tasks if task.drill == drill.id]
        if not tasks:
            continue
        digest = mutants_digest(drill)  # before: an edit during the run makes the score old
        record = record_of(list(judging.judge(drill, tasks)), digest=digest, seeds=seeds)
        score = score_of(drill, record, partial=is_partial)
        say(line_of(drill, score))
        if is_partial:
            score = without_known_holes(score, known.get(drill.id, {}))
        if shows or is_partial:
            show(drill, tasks, score, say)
        elif not score.ok or score.holes:
            say(f"  to see why: python -m rehearsal mutants {drill.id} --show")
        if not is_partial:
            keep_record(drill, record, path)
        scores.append(score)
    if len(scores) > 1:
        refused, total = sum(s.refused for s in scores), sum(s.counted for s in scores)
        say(f"{counted(len(scores), 'drill')}: {refused} of {total} mutants refused")
    if is_partial:
        return not any(score.holes or score.rejected or score.unjudged for score in scores)
    return all(score.ok for score in scores)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``python -m rehearsal mutants``."""
    parser.add_argument("drill", nargs="*", help="default: all drills, two hours or more")
    parser.add_argument(
        "--show", action="store_true", help="show the mutants that pass, as diffs"
    )
    parser.add_argument(
        "--sample", type=positive, metavar="N", help="judge N texts, drawn from all drills"
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only those with TEXT in their id"
    )
    parser.add_argument("--again", action="store_true", help="judge cached ones again, too")
    parser.add_argument(
        "--seeds",
        type=positive,
        default=NUM_SEEDS,
        help=f"how many seeds for each; default {NUM_SEEDS}",
    )
    parser.add_argument(
        "--jobs", type=positive, default=2, help="how many to judge at a time; default 2"
    )


def positive(word: str) -> int:
    """A number of at least 1: without a seed, every mutant would pass."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word} is not a number of at least 1")
    return int(word)


def main(drills: Sequence[Drill], options: argparse.Namespace) -> int:
    """Run ``python -m rehearsal mutants``; returns the exit code.

    Raises:
        CannotScore: outside a clone of the project, or if a correct text is refused.
    """
    if not SCORES.parent.is_dir():
        raise CannotScore(
            f"{SCORES.parent} does not exist, so there is no place for the scores. Run this in "
            "a clone of the project, installed with make setup."
        )
    with processes(options.jobs) as pool:
        ok = run(
            drills,
            Judging(pool, again=options.again),
            sample=options.sample,
            only=options.only,
            shows=options.show,
            seeds=options.seeds,
        )
    return 0 if ok else 1
