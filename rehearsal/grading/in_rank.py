"""The part of a check that runs in each rank: load what was typed, then run one scenario.

The caller's process never imports this module; it names ``run_scenario`` to the engine.
"""

from __future__ import annotations

import inspect
import linecache
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rehearsal.engine.reports import Blank, Mismatch
from rehearsal.grading import former_modules
from rehearsal.grading.attempt import Attempt, codes_of, functions_of
from rehearsal.grading.drill import module_at
from rehearsal.grading.verdict import MISSING

if TYPE_CHECKING:
    from rehearsal.engine.rank import RankContext

ATTEMPT = "attempt"  # the module in which a text is executed


def _empty() -> None: ...


def _described() -> None:
    """Says what it would do."""


EMPTY = {_empty.__code__.co_code, _described.__code__.co_code}


def run_scenario(
    context: RankContext,
    grader: Path,
    needs: Mapping[str, str],
    name: str,
    attempt: Attempt,
    by_stages: bool = False,
) -> Any:
    """Load the learner's names and call the scenario's body with them.

    Args:
        grader: the file that defines ``scenarios``.
        needs: name to signature.
        name: which of the scenarios to run.
        by_stages: a missing name isn't wrong; it just hasn't been typed yet.

    Raises:
        Mismatch: if a needed name is missing or takes different arguments.
        Blank: if a needed name is still the blank's.
    """
    former_modules.install()
    module = module_at(grader)
    scenario = next(s for s in module.scenarios(context.seed) if s.name == name)
    # Formatting a stack (torch.manual_seed does it) would read the lines of the grader and of
    # the modules beside it, and count as a peek. What is cached without a time is not read.
    for loaded, beside in list(sys.modules.items()):
        if loaded.partition(".")[0] == module.__name__:
            file = str(beside.__file__)
            linecache.cache[file] = (0, None, [], file)
    context.arm()
    context.record("begin")
    names = names_of(attempt)
    missing = [n for n in needs if n not in names]
    if by_stages and missing:
        raise Blank(*missing)
    wrong = [(n, MISSING) for n in missing]
    wrong += [
        (n, what)
        for n, signature in needs.items()
        if n in names and (what := mismatch_of(names[n], signature))
    ]
    if wrong:
        raise Mismatch(*wrong)
    if blank := [n for n in needs if is_blank(names[n], counts_empty=by_stages)]:
        raise Blank(*blank)
    assert scenario.body is not None
    return scenario.body(context, SimpleNamespace(**{n: names[n] for n in needs}))


def names_of(attempt: Attempt) -> Mapping[str, Any]:
    """The names that an attempt defines, executing its text if it has one."""
    if attempt.source is None:
        import cloudpickle

        names: dict[str, Any] = cloudpickle.loads(attempt.objects)
        stand_in_for_main(names)
        return names
    typed = types.ModuleType(ATTEMPT)
    sys.modules[ATTEMPT] = typed  # classes in it pickle under this name
    # As a cell runs: without the __future__ imports of this file.
    code = compile(attempt.source, attempt.file, "exec", dont_inherit=True)
    exec(code, vars(typed))
    return vars(typed)


def stand_in_for_main(names: Mapping[str, object]) -> None:
    """Give this process a ``__main__`` that holds what came from the notebook's.

    A class typed in a notebook pickles as ``__main__.Batch``; loader workers send such objects.
    """
    main = types.ModuleType("__main__")
    for value in names.values():
        for function in functions_of(value):
            vars(main).update(function.__globals__)
    vars(main).update(names)
    sys.modules["__main__"] = main


def is_blank(value: object, *, counts_empty: bool = False) -> bool:
    """Whether a function, or every method of a class, only raises NotImplementedError.

    What a decorator generated doesn't count: a dataclass always has an ``__init__``.

    Args:
        counts_empty: a body of ``...`` or ``pass`` is blank as well.
    """
    codes = [code for code in codes_of(value) if code.co_filename != "<string>"]
    return bool(codes) and all(
        code.co_names == ("NotImplementedError",)
        or (counts_empty and code.co_code in EMPTY and code.co_consts[-1] is None)
        for code in codes
    )


def mismatch_of(value: object, signature: str) -> str:
    """Why ``value`` cannot be called with the arguments in ``signature``; "" if it can."""
    if not callable(value):
        return f"is of type {type(value).__name__}, not a function; expected {signature}"
    scope: dict[str, Any] = {}
    exec(f"def wanted{signature}: ...", scope)
    wanted = inspect.signature(scope["wanted"])
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""  # a builtin that does not say
    kinds = inspect.Parameter
    positional = [
        p.name
        for p in wanted.parameters.values()
        if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    ]
    keywords = [p.name for p in wanted.parameters.values() if p.kind is kinds.KEYWORD_ONLY]
    try:
        found.bind(*positional, **dict.fromkeys(keywords))
    except TypeError as error:
        names = [p.replace(annotation=kinds.empty) for p in found.parameters.values()]
        taken = found.replace(parameters=names, return_annotation=kinds.empty)
        return f"takes {taken}; the check calls it with {signature}: {error}"
    return ""
