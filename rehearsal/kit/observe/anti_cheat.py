"""Did the learner type it, or call trainer_core's own?

trainer_core has the answers to the drills on its cells, and anybody can import it. A grader
closes the answer before it calls the learner's code; the check then refuses an attempt that
calls it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

from rehearsal.engine.rank import RankContext

NOTE = "_rehearsal_note"


def close_the_answer(context: RankContext, module: str, names: Sequence[str]) -> None:
    """From here on, calling one of trainer_core's own ``names`` is recorded and raises.

    It changes the functions' code, not the module's names: code that has already imported a
    name has the function itself.

    Raises:
        AttributeError: if the module no longer has one of the names.
    """
    answer = importlib.import_module(module)
    for name in names:

        def note(*_: object, name: str = name) -> None:
            context.record("answer", module=module, name=name)
            raise RuntimeError(f"{module}.{name} is the answer to this drill; type your own")

        for function in functions_in(getattr(answer, name)):
            function.__globals__[f"{NOTE}_{name}"] = note
            scope: dict[str, Any] = {}
            exec(f"def stub(*arguments, **keywords):\n    {NOTE}_{name}()", scope)
            # A method that calls super() has a free variable, and its code must have it, too.
            free = function.__code__.co_freevars
            function.__code__ = scope["stub"].__code__.replace(co_freevars=free)


def functions_in(value: object) -> Iterator[FunctionType]:
    """A function itself, or a class's methods and the getters of its properties."""
    for member in vars(value).values() if inspect.isclass(value) else [value]:
        found: Any = member.fget if isinstance(member, property) else member
        found = inspect.unwrap(getattr(found, "__func__", found))
        if isinstance(found, FunctionType):
            yield found
