"""Which incidents have been played, and how well, from their folders in HOME/incidents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from rehearsal.incidents.store import EARLIER, Store
from rehearsal.plan.scorecards import UNREADABLE
from rehearsal.session.schedule import day_of

LONGEST_PAUSE_S = 15 * 60.0  # between two things that are done in a case; the rest is a break


class Case(NamedTuple):
    """One incident."""

    seed: int
    ended: float | None  # unix seconds; None before its debrief
    minutes: float  # of practice
    grades: Mapping[str, int]  # 0 to 2, by the name of the score's row; empty before it ended
    track: str = "general"

    @property
    def mark(self) -> float:
        """Its score as a mark from 1 to 4."""
        return sum(map(as_mark, self.grades.values())) / len(self.grades)


def as_mark(grade: int) -> float:
    """A grade of the score, 0 to 2, as a mark of the rubric, 1 to 4."""
    return 1 + 1.5 * grade


def read_cases(home: Path) -> tuple[list[Case], list[str]]:
    """All cases, by the time of their end, unfinished ones last; a line for each bad one."""
    found: list[Case] = []
    problems: list[str] = []
    for folder, own in sorted(folders_in(home / "incidents")):
        is_earlier = folder != own
        track, _, seed = own.name.rpartition("-")  # "7", or "biotech-7"
        if track not in ("", "biotech") or not seed.isdecimal():
            continue
        try:
            case = read_case(Store(int(seed), folder, track or "general"))
            if case.ended is not None or not is_earlier:  # that one nobody can finish
                found.append(case)
        except UNREADABLE as error:
            if is_earlier:  # it was named until somebody started over, as they were told
                continue
            why = " ".join(str(error).split()) or type(error).__name__
            problems.append(f"Skipped {folder}: it can't be read as an incident ({why}).")
    return sorted(found, key=lambda case: (case.ended is None, case.ended, case.seed)), problems


def folders_in(incidents: Path) -> Iterator[tuple[Path, Path]]:
    """The folder of each case, and that of its seed: another one if it was started over."""
    for path in incidents.glob("*/case.json"):
        yield path.parent, path.parent
    for path in incidents.glob(f"*/{EARLIER}/*/case.json"):
        yield path.parent, path.parents[2]


def read_case(store: Store) -> Case:
    """One case.

    Raises:
        UNREADABLE: if it can't be read.
    """
    seed, header, events = store.seed, store.header(), store.events()
    if header is None:
        raise LookupError("case.json is gone")
    ends = [number for number, event in enumerate(events) if event["did"] == "debrief"]
    done = events[: ends[0] + 1] if ends else events
    times = [float(event["at"]) for event in done if "at" in event]
    minutes = sum(min(b - a, LONGEST_PAUSE_S) for a, b in pairwise(times) if b > a) / 60
    if not ends:
        return Case(seed, None, minutes, {}, store.track)
    # Before events had a time of their own, the file's is the best there is.
    ended = float(done[-1].get("at", 0)) or (store.folder / "events.jsonl").stat().st_mtime
    day_of(ended)  # raises if there is no such day
    return Case(seed, ended, minutes, grades_of(store, header, events), store.track)


def grades_of(
    store: Store, header: Mapping[str, Any], events: Sequence[dict[str, Any]]
) -> dict[str, int]:
    """The score's rows."""
    from rehearsal.incidents.draw import draw  # numpy, which a plan without incidents can spare
    from rehearsal.incidents.score import score_of
    from rehearsal.incidents.tracks import TRACKS

    deck = TRACKS[store.track].deck
    score = score_of(draw(store.seed, str(header["kind"]), deck), events)
    return {row.name: row.grade for row in score.rows}
