"""What is handed in from files: a text that somebody names, or a file at each save."""

from __future__ import annotations

from pathlib import Path

from rehearsal.interviews.store import BadInterview
from rehearsal.session.watch import signature_of


class File:
    """A file that is handed in each time somebody saves it, from now on."""

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            raise BadInterview(
                f"{path} is a folder. Pass the file that you type into; nothing was begun."
            )
        self.name, self._path = path.name, path
        self._seen = self._changed = signature_of(path)

    def saved(self, *, at_once: bool) -> str | None:
        """Its text, if it was saved since the last time; None if not.

        A file that has only just changed may still be being written, so it's taken at the next
        look, unless ``at_once``.

        Raises:
            BadInterview: if it can't be read.
        """
        now = signature_of(self._path)
        if now is None or now == self._seen:
            return None
        if now != self._changed and not at_once:
            self._changed = now
            return None
        self._seen = now
        return text_of(str(self._path))


def text_of(name: str) -> str:
    """The text of a file. Raises BadInterview if it isn't a text file."""
    if not name:
        raise BadInterview("/type needs the name of a file, such as attempt.py.")
    try:
        return Path(name).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInterview(
            f"{name} can't be read ({error}), so nothing was handed in. /type takes a file of "
            "Python source."
        ) from None
