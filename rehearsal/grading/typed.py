"""What an attempt's text says before any rank runs it: empty, broken, untouched, half typed.

Nothing that a learner typed is executed here; the text is only parsed and compiled.
"""

from __future__ import annotations

import ast
import dis
import linecache
import types
import warnings
from collections.abc import Iterator, Mapping

from rehearsal.engine.failure import failure_of
from rehearsal.grading.attempt import functions_of
from rehearsal.grading.blanks import is_constant
from rehearsal.grading.drill import Drill
from rehearsal.grading.verdict import ENGINE_FINDINGS, Finding, Status, listed, shortened


# What ast.parse raises: ValueError for a null byte, the last two if it is nested too deeply.
UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


def outcome_of_text(source: str, file: str) -> tuple[Status, list[Finding], str] | None:
    """Status, findings and detail of a text that no rank can run; None if one can.

    Args:
        file: its name, for the traceback.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own warnings are for the ranks to show
            compile(source, file, "exec", dont_inherit=True)
            body = ast.parse(source).body
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte
        failure = failure_of(error, {file: source})["failure"]
        found = f"{failure['kind']}: {shortened(failure['message'])}"
        look = f"at {failure['where']}" if failure["where"] else f"at {file}"
        return "crashed", [ENGINE_FINDINGS("crashed", found, look)], failure["traceback"]
    except (RecursionError, MemoryError):  # nested too deeply for this process; a rank says so
        return None
    if all(is_constant(statement) for statement in body):
        found = f"{file} has no code in it"
        return "not_attempted", [ENGINE_FINDINGS("not-attempted", found, f"at {file}")], ""
    return None


def is_untouched(drill: Drill, text: str) -> bool:
    """Whether a text is the drill's blank: the same statements, whatever the layout."""
    try:
        return statements_of(text) == statements_of(drill.blank)
    except UNPARSABLE:
        return False


def statements_of(text: str) -> list[str]:
    """The top-level statements, without layout, sorted: cells come in any order."""
    return sorted(ast.dump(statement) for statement in ast.parse(text).body)


def incident_again(drill: Drill) -> tuple[Status, list[Finding], str]:
    """The outcome of an untouched broken program: the incident, not its cause."""
    situation = drill.brief.partition("\n**Task.**")[0].replace("**", "").strip()
    found = "this is the program as the incident left it: nothing in it has changed"
    look = "at the incident: what would the program have to do to cause it?"
    return "not_attempted", [ENGINE_FINDINGS("not-attempted", found, look)], situation


def halves(drill: Drill, text: str) -> tuple[list[str], list[str]]:
    """The needed names that a text has typed, and those that it has not.

    A name that only raises NotImplementedError has not been typed.
    """
    try:
        body = ast.parse(text).body
    except UNPARSABLE:
        return [], list(drill.needs)
    typed = {
        name for statement in body if not is_blank(statement) for name in names_bound(statement)
    }
    return (
        [name for name in drill.needs if name in typed],
        [name for name in drill.needs if name not in typed],
    )


def half_typed(drill: Drill, text: str) -> str:
    """What a half-typed text has and what it lacks; "" if it has all or nothing."""
    typed, left = halves(drill, text)
    if not typed or not left:
        return ""
    have, takes = ("have", "take") if len(typed) > 1 else ("has", "takes")
    return (
        f"{listed(typed)} {have} been typed, can be loaded, and {takes} the right arguments; "
        f"{listed(left)} {'are' if len(left) > 1 else 'is'} still to be typed"
    )


def is_blank(node: ast.stmt) -> bool:
    """Whether a function, or every method of a class, only raises NotImplementedError."""
    if isinstance(node, ast.ClassDef):
        methods = [
            m for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        return bool(methods) and all(map(is_blank, methods))
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    rest = [statement for statement in node.body if not is_constant(statement)]
    return (
        len(rest) == 1
        and isinstance(rest[0], ast.Raise)
        and rest[0].exc is not None
        and ast.unparse(rest[0].exc).partition("(")[0] == "NotImplementedError"
    )


def names_bound(node: ast.AST) -> set[str]:
    """The names that a statement, or a module's body, binds in its own scope."""
    found: set[str] = set()
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.AnnAssign) and node.value is None:
            continue  # only says its type
        elif not isinstance(node, ast.Lambda | ast.comprehension):
            waiting += ast.iter_child_nodes(node)
    return found


def functions_run(
    drill: Drill, namespace: Mapping[str, object]
) -> dict[str, list[types.FunctionType]]:
    """By name: the functions of each needed name, and of what they use from beside it."""
    found: dict[str, list[types.FunctionType]] = {}
    waiting: list[tuple[str, object, object]] = [
        (name, namespace[name], None) for name in reversed([*drill.needs]) if name in namespace
    ]
    while waiting:
        name, value, scope = waiting.pop()
        own = [f for f in functions_of(value) if scope is None or f.__globals__ is scope]
        if name in found or (scope is not None and not own):  # a module, data, a library's
            continue
        found[name] = own
        for function in own:
            beside = function.__globals__
            used = globals_used(function.__code__)
            waiting += [(name, beside[name], beside) for name in used if name in beside]
    return found


def globals_used(code: types.CodeType) -> Iterator[str]:
    """The global names that a code object reads, and those within it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from globals_used(constant)


def text_of(drill: Drill, namespace: Mapping[str, object]) -> str:
    """The text of the cells, or files, whose code the needed names run; "" if not known."""
    functions = [f for own in functions_run(drill, namespace).values() for f in own]
    files = dict.fromkeys(function.__code__.co_filename for function in functions)
    texts = ["".join(linecache.getlines(file)).rstrip("\n") for file in files]
    return "\n\n".join(dict.fromkeys(filter(None, texts)))
