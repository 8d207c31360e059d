"""Exceptions whose message is all that a person in a notebook needs to see."""

from __future__ import annotations


class PlainMessage:
    """Makes IPython show an exception as its message alone.

        class BadSeed(PlainMessage, ValueError): ...

    For mistakes that a person can fix: frames of our code would hide what to do.
    """

    def _render_traceback_(self) -> list[str]:
        return [str(self)]
