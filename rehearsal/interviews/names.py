"""Which names a text uses, and which of them nothing in it defines.

The graders load what was typed in fresh processes. A name that only the notebook has, from a
cell that doesn't count, stops them there.
"""

from __future__ import annotations

import ast
import builtins
import dis
from collections.abc import Iterator, Sequence
from types import CodeType

from rehearsal.grading.typed import UNPARSABLE, globals_used

COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
MODULE_HAS = {*vars(builtins), "__name__", "__file__", "__annotations__"}


def uses(text: str) -> frozenset[str]:
    """The global names that a text uses; none if it doesn't parse."""
    try:
        return used_in(ast.parse(text).body)
    except UNPARSABLE:
        return frozenset()


def used_in(body: Sequence[ast.stmt]) -> frozenset[str]:
    """The global names that statements use, now or once their functions are called."""
    code = _compiled(body)
    return frozenset(globals_used(code)) if code is not None else frozenset()


def missing_in(text: str) -> list[str]:
    """The names that a text needs while it is loaded, and that nothing in it defines."""
    try:
        body = ast.parse(text).body
    except UNPARSABLE:
        return []
    code = _compiled(body)
    has_all = any(isinstance(node, ast.ImportFrom) and _takes_all(node) for node in body)
    if code is None or has_all:
        return []
    known = MODULE_HAS | _stored(code)
    return [name for name in dict.fromkeys(_loaded(code)) if name not in known]


def in_order(texts: Sequence[str]) -> list[str]:
    """Texts, each after those that define what it needs while it is loaded.

    An edited cell comes after those that were run before, and may define what they need.
    """
    left = [(text, set(missing_in(text)), defined_by(text)) for text in texts]
    found, known = list[str](), set[str]()
    while left:
        ready = [
            one
            for one in left
            if not any((one[1] - known) & each[2] for each in left if each is not one)
        ]
        first = (ready or left)[0]
        left.remove(first)
        found.append(first[0])
        known |= first[2]
    return found


def defined_by(text: str) -> frozenset[str]:
    """The names that a text stores while it is loaded."""
    try:
        code = _compiled(ast.parse(text).body)
    except UNPARSABLE:
        return frozenset()
    return _stored(code) if code is not None else frozenset()


def _takes_all(node: ast.ImportFrom) -> bool:
    return node.names[0].name == "*"


def _compiled(body: Sequence[ast.stmt]) -> CodeType | None:
    try:
        return compile(ast.Module([*body], []), "", "exec", dont_inherit=True)
    except UNPARSABLE:  # such as a return outside a function
        return None


def _loaded(code: CodeType, own: frozenset[str] = frozenset()) -> Iterator[str]:
    """The names that code looks up when it runs, without the functions that it makes.

    Args:
        own: the names of the class whose body it is.
    """
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval not in own:
            yield str(step.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and _runs_at_once(inner):
            yield from _loaded(inner, _stored(inner) | {"__name__"})


def _stored(code: CodeType) -> frozenset[str]:
    steps = dis.get_instructions(code)
    return frozenset(str(step.argval) for step in steps if step.opname == "STORE_NAME")


def _runs_at_once(code: CodeType) -> bool:
    is_class = not code.co_flags & 1  # CO_OPTIMIZED: a class's body keeps its names in a dict
    return is_class or code.co_name in COMPREHENSIONS
