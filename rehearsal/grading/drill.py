"""What a drill consists of: the files in its folder.

    drills/<id>/
        drill.toml        title, minutes, brief and what judges each of its sentences, needed
                          names, hints, narration, what to explain, near misses
        blank.py          what the learner starts from (a broken program, if they look for bugs)
        solution.py       the one that opens after a pass
        other_*.py        correct solutions of another design: the grader must pass them too
        grader.py         scenarios(seed) and CODES

The blank and the solution of a drill on a trainer_core cell are derived: see ``derive``.

A scenario's ``body`` runs in each rank, with the learner's names. Its ``judge`` runs in the
caller's process, on plain data only: what the ranks recorded. Both are made by
``scenarios(seed)``, which draws every constant of the check from the seed.
"""

from __future__ import annotations

import difflib
import importlib.util
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rehearsal.engine.plain_message import PlainMessage
from rehearsal.engine.reports import Fault
from rehearsal.grading.derive import without_mark
from rehearsal.grading.minutes import typed_text, typing_minutes
from rehearsal.grading.verdict import Judge

if TYPE_CHECKING:
    from rehearsal.engine.rank import RankContext  # with torch, which only a check needs

DRILLS = Path(__file__).parents[1] / "drills"
Kind = Literal["handbook", "cell", "bug", "debug", "whiteboard", "biotech"]
# The blank is a broken program: a bug drill's has one bug, a debug drill's has several.
BROKEN: Sequence[Kind] = ("bug", "debug")

Body = Callable[["RankContext", SimpleNamespace], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One job of a check.

        def body(context, learner):
            context.init_group()
            return learner.mean_over_ranks(context.rank + 1.0)

        def judge(reports, earlier):
            for report in reports:
                mean = (len(reports) + 1) / 2
                if report.answer != mean:
                    found = f"rank {report.rank} returned {report.answer}, not {mean}"
                    yield Finding("not-the-mean", found, "a mean divides by N", "at the sum")

        def scenarios(seed):
            ranks = random.Random(seed).choice((2, 3))
            return [Scenario(name="ranks meet", body=body, judge=judge, world_size=ranks)]

    Args:
        body: called in each rank with its ``RankContext`` and the learner's names. What it
            returns is the rank's answer, as plain data. None: there is no job, and the judge
            reads those before it.
        judge: called with the job's reports, by rank, and those of earlier scenarios, by name.
            Yields what is wrong; nothing if the scenario passes.
        fault: a signal during the job. A rank killed by it did not crash.
        judges_failures: the judge also sees jobs that crashed or hung. If it finds nothing, the
            check still ends with that outcome.
        stage: in a drill judged by stages, the one that this job belongs to. If one of the
            stage's names is still blank, the job is skipped.
    """

    name: str
    body: Body | None
    judge: Judge
    world_size: int = 2
    deadline_s: float = 10.0
    fault: Fault | None = None
    judges_failures: bool = False
    stage: str = ""


class Stage(NamedTuple):
    """One part of a drill that is judged as soon as it has been typed."""

    name: str
    calls: Sequence[str]  # the needed names that its scenarios call, directly or not
    must: str  # what must hold, as the brief shows it


class Requirement(NamedTuple):
    """A passage of the brief, and what judges it."""

    says: str  # as in the brief, with single spaces
    codes: Sequence[str] = ()  # of the findings that report its violation
    defines: bool = False  # it demands nothing: it says what a word or an argument means
    broken_by: Sequence[str] = ()  # names of near misses, if it shares a code with another one

    def near_misses(self, drill: Drill) -> list[NearMiss]:
        """The wrong answers that break it."""
        with_code = [miss for miss in drill.near_misses() if miss.code in self.codes]
        return [m for m in with_code if not self.broken_by or m.name in self.broken_by]


class NearMiss(NamedTuple):
    """A plausible wrong answer: an edit of a correct text, and the code that must refuse it."""

    name: str
    code: str
    why: str
    text: str  # the complete attempt, edited


class Narration(NamedTuple):
    """What to say while typing."""

    say: str
    weak: str
    strong: str
    follow_up: str


class Explanation(NamedTuple):
    """A question to answer aloud once the check passes; the brief asks it."""

    asks: str
    weak: str
    strong: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Drill:
    """Everything about one drill except its grader's code."""

    id: str
    title: str
    minutes: float
    kind: Kind
    order: int
    brief: str
    needs: Mapping[str, str]  # name: signature, as "(samples, rank, world_size)"
    hints: Sequence[str]  # a question, a pointer, the idea
    deeper: str  # a follow-up question, asked after a pass
    narration: Narration
    folder: Path
    requirements: Sequence[Requirement] = ()
    stages: Sequence[Stage] = ()
    explanations: Sequence[Explanation] = ()
    warm_ups: Sequence[str] = ()  # ids of smaller drills on the same subjects

    @property
    def is_broken(self) -> bool:
        """Whether the learner starts from a program with bugs, not from a blank to fill in."""
        return self.kind in BROKEN

    @property
    def blank(self) -> str:
        """The starter code."""
        return self._text("blank.py")

    @property
    def solution(self) -> str:
        """The solution that is shown after a pass."""
        return self._text("solution.py")

    def solutions(self) -> dict[str, str]:
        """Every correct text, by name."""
        paths = [self.folder / "solution.py", *sorted(self.folder.glob("other_*.py"))]
        return {path.stem: self._text(path.name) for path in paths}

    @property
    def grader(self) -> Any:
        """The grader's module, with ``scenarios`` and CODES."""
        return module_at(self.folder / "grader.py")

    def scenarios(self, seed: int) -> Sequence[Scenario]:
        """The jobs of a check, in order; their constants are drawn from ``seed``.

        The same in the caller's process and in each rank.
        """
        drawn: Sequence[Scenario] = self.grader.scenarios(seed)
        return drawn

    @property
    def codes(self) -> Mapping[str, str]:
        """The codes of the grader's findings, and what each means."""
        codes: Mapping[str, str] = self.grader.CODES
        return codes

    def needs_of(self, scenario: Scenario) -> Mapping[str, str]:
        """The names that a scenario is called with: its stage's, or all."""
        for stage in self.stages:
            if stage.name == scenario.stage:
                return {name: self.needs[name] for name in stage.calls}
        return self.needs

    def near_misses(self) -> list[NearMiss]:
        """All near misses. Raises ValueError if an edit no longer fits its text."""
        table = tomllib.loads((self.folder / "drill.toml").read_text())
        return [self._near_miss(entry) for entry in table.get("near_miss", ())]

    def _text(self, file: str) -> str:
        return without_mark((self.folder / file).read_text())

    def _near_miss(self, entry: Mapping[str, Any]) -> NearMiss:
        text = self._text(entry.get("of", "solution.py"))
        edits = entry.get("edits", [entry] if "find" in entry else [])
        for edit in edits:
            count = text.count(edit["find"])
            if count != 1:
                raise ValueError(
                    f"{self.id}: near miss {entry['name']}: the text in `find` occurs {count} "
                    f"times in {entry.get('of', 'solution.py')}. It must occur exactly once."
                )
            text = text.replace(edit["find"], edit["replace"])
        return NearMiss(entry["name"], entry["code"], entry["why"], text)


@cache
def load(drill_id: str) -> Drill:
    """The drill with this id; a renamed drill keeps its former id as an alias.

    Raises:
        UnknownDrill: if there is none; the message offers the nearest id.
    """
    drill_id = current_id(drill_id)
    path = DRILLS / drill_id / "drill.toml"
    if not drill_id.isidentifier() or not path.is_file():
        # A call, as in a cell: the command line spells it as a command.
        raise UnknownDrill(
            f"{drill_id!r}: no such drill. The nearest is {nearest_id(drill_id)!r}. To see all "
            "of them: rehearsal.status()"
        )
    table = tomllib.loads(path.read_text())
    if "derived" in table:  # a cell: its minutes are what its bodies take to type
        solution, blank = ((path.parent / f"{n}.py").read_text() for n in ("solution", "blank"))
        table["minutes"] = typing_minutes(typed_text(solution, blank))
    return Drill(
        id=drill_id,
        title=table["title"],
        minutes=table["minutes"],
        kind=table["kind"],
        order=table["order"],
        brief=table["brief"].strip(),
        needs=table["needs"],
        hints=table["hints"],
        deeper=table["deeper"],
        narration=Narration(**table["narration"]),
        folder=path.parent,
        requirements=[Requirement(**entry) for entry in table.get("requirement", ())],
        stages=[Stage(**entry) for entry in table.get("stage", ())],
        explanations=[Explanation(**entry) for entry in table.get("explain", ())],
        warm_ups=table.get("warm_ups", ()),
    )


@cache
def module_at(path: Path) -> ModuleType:
    """Import a grader by its path; in it, ``from .x import y`` finds the module beside it.

    Not as ``rehearsal.drills.<id>.grader``: importing that would hide the function
    ``rehearsal.drills``.
    """
    name = f"rehearsal_grader_of_{path.parent.name}"
    spec = importlib.util.spec_from_file_location(
        name, path, submodule_search_locations=[str(path.parent)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class UnknownDrill(PlainMessage, KeyError):
    """No drill has this id."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show it in quotes


@cache
def drill_ids() -> list[str]:
    """All ids, in the order in which to take them."""
    found = {}
    for path in DRILLS.glob("*/drill.toml"):
        found[path.parent.name] = tomllib.loads(path.read_text())["order"]
    return sorted(found, key=lambda name: (found[name], name))


def nearest_id(text: str) -> str:
    """The id that a mistyped one was most likely meant to be, or to be the beginning of."""

    def likeness(known: str) -> float:
        ends = (len(known), len(text))
        return max(difflib.SequenceMatcher(None, text, known[:end]).ratio() for end in ends)

    return max(drill_ids(), key=likeness)


@cache
def former_ids() -> dict[str, str]:
    """Former ids of renamed drills, each with today's id."""
    found: dict[str, str] = {}
    for path in DRILLS.glob("*/drill.toml"):
        for former in tomllib.loads(path.read_text()).get("former_ids", ()):
            found[former] = path.parent.name
    return found


@cache
def leads_to(drill_id: str) -> str | None:
    """The drill that this one is a warm-up for, if any."""
    for path in DRILLS.glob("*/drill.toml"):
        if drill_id in tomllib.loads(path.read_text()).get("warm_ups", ()):
            return path.parent.name
    return None


def current_id(drill_id: str) -> str:
    """Today's id for a former id; any other id is returned unchanged."""
    return former_ids().get(drill_id, drill_id)
