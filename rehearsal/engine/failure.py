"""What a rank reports when the code it ran raised an exception."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rehearsal.engine.reports import Blank, Mismatch


def failure_of(error: BaseException, files: Mapping[str, str]) -> dict[str, Any]:
    """Why a rank has no answer, as an object that JSON can hold.

    Args:
        files: the learner's texts by file name; other frames are our own.
    """
    if isinstance(error, Blank):
        return {"blank": list(error.args)}
    if isinstance(error, Mismatch):
        return {"mismatch": [list(pair) for pair in error.args]}
    frames = traceback.extract_tb(error.__traceback__)
    frame = learners_frame(error, files)
    if frame and isinstance(error, NotImplementedError) and frames[-1].filename in files:
        return {"blank": [frame[1]]}
    # The learner's lines only; how the check got there is of no use to them.
    own = [frame for frame in frames if frame.filename in files]
    where = frame[0] if frame else ""
    shown = own or frames
    if isinstance(error, SyntaxError) and error.filename in files and not own:
        shown, where = [], f"line {error.lineno}"  # none of the learner's code has run
    text = "".join(traceback.format_list(shown))
    text += "".join(traceback.format_exception_only(error))
    return {
        "failure": {
            "kind": type(error).__name__,
            "message": str(error) or repr(error),
            "traceback": text,
            "where": where,
        }
    }


def learners_frame(error: BaseException, files: Mapping[str, str]) -> tuple[str, str] | None:
    """The innermost frame in the learner's text: "line 12 in shard", and the function."""
    found: tuple[str, str] | None = None
    frame: TracebackType | None = error.__traceback__
    while frame is not None:
        code = frame.tb_frame.f_code
        if code.co_filename in files:
            found = f"line {frame.tb_lineno} in {code.co_name}", code.co_name
        frame = frame.tb_next
    return found
