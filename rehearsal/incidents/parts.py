"""The same functions with other parts, for a track of its own.

What runs, reads and judges a general case is frozen: hundreds of proofs are recorded against
its text (``digest.py``), so it can't be given a parameter. Its steps are right for every track.
What differs is what a few names stand for: the job, the alarms, the evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def with_parts(function: F, **parts: Any) -> F:
    """The same function, for which some global names stand for something else.

        judge_plan = with_parts(judge.judge_plan, run_job=run_job, Evidence=BioEvidence)

    Only its own look-ups change. A function that it calls needs parts of its own.

    Raises:
        AssertionError: if the function doesn't use one of the names; the part would be ignored.
    """
    assert isinstance(function, FunctionType)
    unused = sorted(set(parts) - names_in(function.__code__))
    assert not unused, f"{function.__qualname__} doesn't use {unused}"
    made = FunctionType(
        function.__code__,
        {**function.__globals__, **parts},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__doc__ = function.__doc__
    return cast("F", made)


def names_in(code: CodeType) -> set[str]:
    """The global names and attributes that a function uses, also in what it defines inside."""
    inside = [const for const in code.co_consts if isinstance(const, CodeType)]
    return {*code.co_names, *(name for each in inside for name in names_in(each))}
