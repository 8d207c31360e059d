"""Which of the cells that somebody runs in a notebook count as typed, and what of each.

A cell counts if it defines a function or a class, or what one of them uses. What only runs what
was defined stays in it as a comment: the graders load the text in every rank, and must not
train there as well. What calls this package is no part of a trainer.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from rehearsal.grading.typed import UNPARSABLE, names_bound
from rehearsal.interviews.names import used_in

# Magics whose cell is Python that the notebook runs or writes to a file.
PYTHON_BELOW = re.compile(r"%%(time|timeit|capture|prun|writefile(?=.*\.py\s*$))\b.*")
LINE_MAGIC = re.compile(r"(\s*)((?:[\w, ]+=\s*)?[%!].*|.*\?\s*)$")
BROKEN = re.compile(r"^\s*(async\s+def|def|class)\b", re.M)
SCRATCH = re.compile(r"\s*#\s*scratch\b", re.I)  # how somebody keeps a cell out
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
NOT_MADE = (ast.ClassDef, ast.Import, ast.ImportFrom)
DEFINES = (*FUNCTIONS, ast.Import, ast.ImportFrom)
ASSIGNS = (ast.Assign, ast.AnnAssign, ast.AugAssign)
NESTS = (ast.If, ast.Try)


def counted(
    source: str, made: frozenset[str] = frozenset(), coachs: frozenset[str] = frozenset()
) -> str | None:
    """What of a cell may count as typed; None if it defines nothing.

    A cell that doesn't parse counts as it stands, if it was meant to define a function or a
    class: the interviewer sees it, too.

    Args:
        made: the functions and variables so far; to call one is to run it.
        coachs: the names of this package's functions and objects; to use one is no trainer.
    """
    text = None if SCRATCH.match(source) else without_magics(source)
    if text is None:
        return None
    try:
        body = ast.parse(text).body
    except UNPARSABLE:
        return text if BROKEN.search(text) else None
    made |= made_in(text)
    runs = [each for each in body if not _defines(each, made) or coachs & used_in([each])]
    if len(runs) == len(body):
        return None
    return _commented_out(text, body, runs)


def made_in(text: str) -> frozenset[str]:
    """The functions and variables that a text defines at its top level; not its classes."""
    try:
        body = ast.parse(text).body
    except UNPARSABLE:
        return frozenset()
    making = [each for each in body if not isinstance(each, NOT_MADE)]
    return frozenset(name for each in making for name in names_bound(each))


def is_wanted(text: str, used: frozenset[str], has: frozenset[str] = frozenset()) -> bool:
    """Whether what a cell defines is part of a trainer, rather than of an experiment.

    Args:
        used: the names that the trainer uses, and those that the graders call.
        has: the names that it defines itself. To import one once more adds nothing.
    """
    try:
        body = ast.parse(text).body
    except UNPARSABLE:
        return True
    if any(isinstance(node, FUNCTIONS) for each in body for node in ast.walk(each)):
        return True
    imports = [each for each in body if isinstance(each, ast.Import | ast.ImportFrom)]
    if any(name == "*" for each in imports for name in bound_in([each])):
        return True  # whatever it brings
    others = [each for each in body if each not in imports]
    return bool(bound_in(others) & used or bound_in(imports) & (used - has))


def bound_in(body: Sequence[ast.stmt]) -> frozenset[str]:
    """The names that statements bind in their own scope."""
    return frozenset(name for each in body for name in names_bound(each))


def without_magics(source: str) -> str | None:
    """A cell without its magics, its lines where they were; None if it isn't Python."""
    first, newline, rest = source.lstrip("\n").partition("\n")
    if first.startswith("%%"):
        if not PYTHON_BELOW.match(first):
            return None
        source = f"# {first}{newline}{rest}"
    try:
        ast.parse(source)
        return source
    except UNPARSABLE:
        lines = [_without_magic(line) for line in source.split("\n")]
        return "\n".join(lines)


def _without_magic(line: str) -> str:
    found = LINE_MAGIC.fullmatch(line)
    if found is None:
        return line
    # In a block, a line has to stay.
    return f"{found[1]}pass  # {found[2]}" if found[1] else f"# {found[2]}"


def _defines(node: ast.stmt, made: frozenset[str]) -> bool:
    if isinstance(node, DEFINES):
        return not imports_the_coach(node)
    if isinstance(node, NESTS):
        return all(_defines(each, made) for each in _within(node))
    if not isinstance(node, ASSIGNS):
        return False
    calls = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
    return not any(_root(call) in made for call in calls)


def imports_the_coach(node: ast.stmt) -> bool:
    """Whether a statement imports from this package, which no candidate has."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return any(name.split(".")[0] == "rehearsal" and ".kit" not in name for name in names)


def _root(node: ast.expr) -> str:
    """The name that an expression starts with: trainer, of trainer.loop[0].run."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _within(node: ast.If | ast.Try) -> Iterator[ast.stmt]:
    yield from node.body
    yield from node.orelse
    if isinstance(node, ast.Try):
        yield from node.finalbody
        for handler in node.handlers:
            yield from handler.body


def _commented_out(text: str, body: list[ast.stmt], runs: list[ast.stmt]) -> str:
    """The text, the lines of some statements turned into comments."""
    needed = {
        line for each in body if each not in runs for line in (each.lineno, each.end_lineno)
    }
    lines = text.split("\n")
    for node in runs:
        last = node.end_lineno or node.lineno
        if not needed & {node.lineno, last}:  # "import x; x.f()" stays
            for number in range(node.lineno - 1, last):
                lines[number] = f"# {lines[number]}"
    return "\n".join(lines)
