"""What a drill consists of, as it lies in its folder.

    drills/<id>/
        drill.toml        title, minutes, brief, needed names, hints, narration, near misses
        blank.py          what the learner starts from (of a bug drill: the broken trainer)
        solution.py       the one that opens after a pass
        other_*.py        correct solutions of another design: the grader must pass them too
        grader.py         SCENARIOS and CODES

A grader says what to run and judges what was written down. A scenario's ``body`` runs in each
rank, with the learner's names; its ``judge`` runs here, on plain data only.
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

from rehearsal.engine.reports import Fault
from rehearsal.grading.verdict import Judge

if TYPE_CHECKING:
    from rehearsal.engine.rank import RankContext  # with torch, which only a check needs

DRILLS = Path(__file__).parents[1] / "drills"
Kind = Literal["handbook", "cell", "bug", "whiteboard"]

Body = Callable[["RankContext", SimpleNamespace], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One job of a check.

    Args:
        body: runs in each rank; what it returns is the rank's answer, as plain data.
        judge: given the job's reports, by rank, and those of the scenarios before, by name.
        fault: a signal on the way. A rank that it ends is no crash.
        judges_failures: the judge wants to see a crash or a hang itself; if it finds nothing in
            it, the check still ends with that outcome.
    """

    name: str
    body: Body
    judge: Judge
    world_size: int = 2
    deadline_s: float = 10.0
    fault: Fault | None = None
    judges_failures: bool = False


class NearMiss(NamedTuple):
    """Wrong and plausible: a small edit of a correct text, and the code that must refuse it."""

    name: str
    code: str
    why: str
    text: str  # the whole attempt, edited


class Narration(NamedTuple):
    """What to say while typing."""

    say: str
    weak: str
    strong: str
    follow_up: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Drill:
    """Everything about one drill but its grader's code."""

    id: str
    title: str
    minutes: float
    kind: Kind
    order: int
    brief: str
    needs: Mapping[str, str]  # name: signature, as "(samples, rank, world_size)"
    hints: Sequence[str]  # a question, a pointer, the idea
    deeper: str  # asked after a pass
    narration: Narration
    folder: Path

    @property
    def blank(self) -> str:
        """The text that the learner starts from."""
        return (self.folder / "blank.py").read_text()

    @property
    def solution(self) -> str:
        """The text that opens after a pass."""
        return (self.folder / "solution.py").read_text()

    def solutions(self) -> dict[str, str]:
        """All correct texts, by name."""
        paths = [self.folder / "solution.py", *sorted(self.folder.glob("other_*.py"))]
        return {path.stem: path.read_text() for path in paths}

    @property
    def grader(self) -> Any:
        """Its module: SCENARIOS and CODES."""
        return module_at(self.folder / "grader.py")

    @property
    def scenarios(self) -> Sequence[Scenario]:
        """The jobs of a check, in order."""
        scenarios: Sequence[Scenario] = self.grader.SCENARIOS
        return scenarios

    @property
    def codes(self) -> Mapping[str, str]:
        """The codes of its own findings, and what each means."""
        codes: Mapping[str, str] = self.grader.CODES
        return codes

    def near_misses(self) -> list[NearMiss]:
        """All of them; an edit that no longer fits its text is an error."""
        table = tomllib.loads((self.folder / "drill.toml").read_text())
        return [self._near_miss(entry) for entry in table.get("near_miss", ())]

    def _near_miss(self, entry: Mapping[str, Any]) -> NearMiss:
        text = (self.folder / entry.get("of", "solution.py")).read_text()
        edits = entry.get("edits", [entry] if "find" in entry else [])
        for edit in edits:
            count = text.count(edit["find"])
            if count != 1:
                raise ValueError(
                    f"{self.id}: near miss {entry['name']}: its text to find occurs {count} "
                    f"times in {entry.get('of', 'solution.py')}. An edit fits exactly once."
                )
            text = text.replace(edit["find"], edit["replace"])
        return NearMiss(entry["name"], entry["code"], entry["why"], text)


@cache
def load(drill_id: str) -> Drill:
    """The drill with this id, or whose id it was before it was renamed.

    Raises:
        KeyError: if there is none; the message offers the nearest.
    """
    drill_id = current_id(drill_id)
    path = DRILLS / drill_id / "drill.toml"
    if not drill_id.isidentifier() or not path.is_file():
        near = difflib.get_close_matches(drill_id, drill_ids(), 1, 0.0)
        raise UnknownDrill(
            f"{drill_id!r}: no such drill. The nearest is {near[0]!r}; "
            "rehearsal.drills() lists all."
        )
    table = tomllib.loads(path.read_text())
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
    )


@cache
def module_at(path: Path) -> ModuleType:
    """A grader, by its file; ``from .x import y`` finds what lies beside it.

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


class UnknownDrill(KeyError):
    """No drill has this id."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show it in quotes

    def _render_traceback_(self) -> list[str]:
        return [str(self)]  # what IPython shows: a typing error needs no traceback


@cache
def drill_ids() -> list[str]:
    """All ids, in the order in which to take them."""
    found = {}
    for path in DRILLS.glob("*/drill.toml"):
        found[path.parent.name] = tomllib.loads(path.read_text())["order"]
    return sorted(found, key=lambda name: (found[name], name))


@cache
def former_ids() -> dict[str, str]:
    """Ids that drills had before they were renamed, each with today's id."""
    found: dict[str, str] = {}
    for path in DRILLS.glob("*/drill.toml"):
        for former in tomllib.loads(path.read_text()).get("former_ids", ()):
            found[former] = path.parent.name
    return found


def current_id(drill_id: str) -> str:
    """Today's id of a drill; an id that nobody has had is returned as it is."""
    return former_ids().get(drill_id, drill_id)
