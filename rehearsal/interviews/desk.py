"""Where a notebook's cells are handed in to an interview, and what is told about them."""

from __future__ import annotations

from collections.abc import Callable

from rehearsal.interviews.names import defined_by, missing_in
from rehearsal.interviews.session import Interview
from rehearsal.interviews.spoken import listed
from rehearsal.interviews.store import BadInterview

PAUSED = "Paused, so that cell isn't handed in. Resume, and run it again."
ENDING = "Being graded, so that cell isn't handed in."


class CellDesk:
    """Takes cells for an interview.

    Args:
        is_ending: whether somebody is about to end it.
        tell: shows a line about the newest cell; an empty one shows none.
    """

    def __init__(
        self, interview: Interview, is_ending: Callable[[], bool], tell: Callable[[str], None]
    ) -> None:
        self._interview, self._is_ending, self._tell = interview, is_ending, tell

    @property
    def text(self) -> str:
        """All that counts, as one text."""
        return self._interview.text

    @property
    def needs(self) -> frozenset[str]:
        """The names that the graders call."""
        return frozenset(self._interview.names)

    def accepts(self) -> bool:
        """Whether it takes anything right now. If not, it tells why."""
        if self._is_ending() or self._interview.is_ending:
            self._tell(ENDING)
            return False
        if self._interview.is_paused:
            self._tell(PAUSED)
            return False
        return True

    def hand_in(self, text: str, cell: str | None) -> None:
        """Type a cell."""
        self._interview.type(text, cell=cell)
        self._tell_what_is_missing()

    def has(self, cell: str) -> bool:
        """Whether something of this cell counts."""
        return self._interview.has_typed(cell)

    def take_back(self, cell: str) -> None:
        """What was typed in a cell isn't there anymore."""
        self._interview.take_back(cell)
        self._tell_what_is_missing()

    def set_aside(self, text: str) -> None:
        """A cell waits until a function or a class uses what it defines."""
        names = listed(sorted(defined_by(text)))
        self._tell(
            f"No function or class of yours uses {names} yet. That cell counts as soon as one "
            "does."
        )

    def failed(self, error: Exception) -> None:
        """Something of it failed. The notebook goes on, and so does the interview."""
        what = f"Something failed here ({type(error).__name__}: {error})."
        self._tell(str(error) if isinstance(error, BadInterview) else what)

    def _tell_what_is_missing(self) -> None:
        missing = missing_in(self.text)
        self._tell(missing_words(missing) if missing else "")


def missing_words(names: list[str]) -> str:
    """What to do about names that no cell that counts defines."""
    verb, they = ("isn't", "it") if len(names) == 1 else ("aren't", "them")
    return (
        f"{listed(names)} {verb} defined in any cell that counts, so the graders can't load "
        f"your code. Run the cell that defines {they} again: only what runs during the "
        "interview counts."
    )
