"""A few lines of the installed trainer, shown next to the text about them.

They are read from the code itself, so the text can't show what the code no longer says.
"""

from __future__ import annotations

import inspect
import textwrap
from typing import Any


class Excerpt:
    """Lines of code. As the value of a cell, they are shown."""

    def __init__(self, place: str, text: str) -> None:
        self.place, self.text = place, text

    def __repr__(self) -> str:
        return f"# {self.place}\n{self.text}"

    def _repr_markdown_(self) -> str:
        return f"```python\n{self!r}\n```"


def excerpt(code: Any, first: str = "", last: str = "") -> Excerpt:
    """The lines of a function or class from one that has ``first`` to one that has ``last``.

    Args:
        first: by default, the first line.
        last: looked for from there on; by default, the last line.

    Raises:
        LookupError: if the code has no such lines.
    """
    lines = inspect.getsource(code).splitlines()
    begin = next((at for at, line in enumerate(lines) if first in line), None)
    place = f"{code.__module__}: {code.__qualname__}"
    if begin is None:
        raise LookupError(f"{place} has no line with {first!r}. Ask for one that it has.")
    end = len(lines) - 1
    if last:
        found = (at for at, line in enumerate(lines) if at >= begin and last in line)
        if (end := next(found, -1)) < 0:
            raise LookupError(f"{place} has no line with {last!r} after {first!r}.")
    return Excerpt(place, textwrap.dedent("\n".join(lines[begin : end + 1])))
