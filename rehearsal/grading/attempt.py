"""What a person typed, in the form in which it travels to the ranks.

Plain data. The caller's process (``check.py``) and each rank (``in_rank.py``) both import it;
they import nothing from each other.
"""

from __future__ import annotations

import inspect
import types
from typing import NamedTuple


class Attempt(NamedTuple):
    """A text to execute in each rank, or objects that a notebook has defined."""

    source: str | None
    file: str  # the name that tracebacks give to the text
    objects: bytes  # cloudpickle of the needed names; empty if there is a source
    lines: dict[str, str]  # file name: its text, so that tracebacks can show lines


def functions_of(value: object) -> list[types.FunctionType]:
    """The function itself, or the methods of a class."""
    members = vars(value).values() if inspect.isclass(value) else [value]
    found = [inspect.unwrap(m) for m in members if inspect.isroutine(m) or callable(m)]
    return [f for f in found if isinstance(f, types.FunctionType)]


def codes_of(value: object) -> list[types.CodeType]:
    """The code objects of a function, or of a class's methods."""
    return [function.__code__ for function in functions_of(value)]
