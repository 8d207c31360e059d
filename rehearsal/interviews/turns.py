"""One call at a time: in a notebook, the interviewer speaks from another thread."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class TakesTurns(Protocol):
    """An object with a lock of its own."""

    _turn: threading.RLock


_Self = TypeVar("_Self", bound=TakesTurns)
_Given = ParamSpec("_Given")
_Returned = TypeVar("_Returned")


def in_turn(
    call: Callable[Concatenate[_Self, _Given], _Returned],
) -> Callable[Concatenate[_Self, _Given], _Returned]:
    """A method that waits until no other one of its object runs."""

    @functools.wraps(call)
    def waits(self: _Self, /, *args: _Given.args, **named: _Given.kwargs) -> _Returned:
        with self._turn:
            return call(self, *args, **named)

    return waits
