"""Sessions that were recorded: the learner's own, and the three that come with the suite.

A session is read as a whole before anything is shown of it, and never written to.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rehearsal.interviews.scorecard import Scorecard, scorecard_of
from rehearsal.interviews.state import state_of
from rehearsal.interviews.store import BadInterview, Event, Store, stores

TRANSCRIPTS = Path(__file__).with_name("transcripts")
SHIPPED = ("weak", "middling", "strong")
NUMBER = (int, float)
# What the readers of an event rely on.
NEEDED: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "say": {"text": str},
    "type": {"file": str},
    "take back": {"file": str, "cell": str},
    "line": {"text": str, "kind": str},
    "checked": {"drill": str, "status": str, "stages": list, "findings": list},
    "incident scored": {"rows": (dict, type(None))},
    "end": {"why": str},
}
NEEDED_OF_A_LINE: Mapping[str, Mapping[str, type]] = {
    "question": {"card": str, "row": str},
    "nudge": {"rule": str},
}


class Recorded(NamedTuple):
    """A session as it was recorded."""

    name: str
    minutes: float
    seed: int
    mode: str
    began: float  # unix seconds
    events: Sequence[Event]
    cells: Mapping[str, str]
    folder: Path

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return any(event["did"] == "end" for event in self.events)

    @property
    def is_shipped(self) -> bool:
        """Whether it is one of the three that come with the suite."""
        return self.folder.parent == TRANSCRIPTS

    @property
    def spent(self) -> float:
        """Minutes on its clock so far."""
        return max([event["at"] for event in self.events], default=0.0) / 60

    def scorecard(self) -> Scorecard:
        """The marks, as they follow from its events today.

        Raises:
            BadInterview: if it hasn't ended.
        """
        if not self.is_over:
            raise BadInterview(
                f"The interview {self.name} hasn't ended: it is at minute {self.spent:.0f} of "
                f"{self.minutes:g}, and has no marks yet. "
                f"rehearsal.interview({self.minutes:g}, seed={self.seed}) continues it; "
                "its end() marks what there is."
            )
        state = state_of(self.events, dict(self.cells))
        return scorecard_of(self.name, state, self.minutes)


def recorded(name: str) -> Recorded:
    """The session with this name, or with any prefix that only one name has.

    Raises:
        BadInterview: if there is none, several, or it can't be read.
    """
    return read(_store_named(name))


def newest() -> Recorded:
    """The learner's newest session.

    Raises:
        BadInterview: if there is none, or it can't be read.
    """
    own = list(stores())
    if not own:
        raise BadInterview(
            "You have no recorded interview yet. rehearsal.interview() holds one; three others "
            f"can be replayed: {', '.join(SHIPPED)}."
        )
    return read(own[-1])


def _store_named(name: str) -> Store:
    known = {each: Store(TRANSCRIPTS / each) for each in SHIPPED}
    known |= {store.name: store for store in stores()}
    if name in known:
        return known[name]
    found = [each for each in known if isinstance(name, str) and name and each.startswith(name)]
    if len(found) == 1:
        return known[found[0]]
    if found:
        raise BadInterview(
            f"{len(found)} interviews begin with {name!r}: {', '.join(found)}. Type more of "
            "the one you mean."
        )
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.3)
    hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(known)}."
    raise BadInterview(f"There is no interview {name!r}. {hint}")


def read(store: Store) -> Recorded:
    """A session from its folder.

    Raises:
        BadInterview: if it can't be read, is damaged, or is from a newer version.
    """
    header = store.header()
    for name in ("minutes", "began"):
        if isinstance(header[name], bool) or not isinstance(header[name], NUMBER):
            raise _damaged(store, f"interview.json: {name} is {header[name]!r}, not a number")
    try:
        events = store.events()
        for number, event in enumerate(events, start=1):
            if problem := _problem_of(event):
                raise _damaged(store, f"event {number} in events.jsonl {problem}")
        typed = [event["file"] for event in events if event["did"] == "type"]
        cells = {file: store.cell(file) for file in typed}
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(store, f"{type(error).__name__}: {error}") from None
    of = (header["minutes"], header["seed"], header["mode"], header["began"])
    return Recorded(store.name, *of, events, cells, store.folder)


def _problem_of(event: Event) -> str:
    """What is wrong with an event; empty if nothing is."""
    did, at = event.get("did"), event.get("at")
    if not isinstance(did, str) or isinstance(at, bool) or not isinstance(at, NUMBER):
        return "doesn't say what was done, and when"
    needed = {**NEEDED.get(did, {})}
    if did == "line":
        needed |= NEEDED_OF_A_LINE.get(str(event.get("kind")), {})
    for name, kind in needed.items():
        if not isinstance(event.get(name), kind):
            return f"({did}) has no usable {name!r}"
    if did == "checked" and not all(map(_is_finding, event["findings"])):
        return "(checked) has no usable 'findings'"
    if did == "checked" and not all(map(_is_text, event["stages"])):
        return "(checked) has no usable 'stages'"
    return ""


def _is_text(found: Any) -> bool:
    return isinstance(found, str)


def _is_finding(found: Any) -> bool:
    return isinstance(found, list) and len(found) == 4 and all(map(_is_text, found))


def _damaged(store: Store, what: str) -> BadInterview:
    return BadInterview(
        f"The interview {store.name} is damaged ({what}), so it can't be shown. Restore "
        f"{store.folder} from a copy, or move it away; nothing was changed."
    )
