"""What does a blank leave to type? The bodies of its functions."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from rehearsal.grading.minutes import typed_characters


@dataclass(frozen=True, slots=True)
class Body:
    """A function's body without its docstring: the part that somebody types."""

    name: str  # qualified, such as TinyNet.forward
    start: int  # its first line (from 1), counting a comment above the first statement
    end: int
    before: str  # text before the body on its first line: indentation, or a signature
    text: str

    @property
    def characters(self) -> int:
        """Characters to type."""
        return typed_characters(self.text)


def bodies(text: str) -> list[Body]:
    """The body of each function and method, in order.

    Protocols don't count, and neither do bodies that hold only a docstring, ``...`` or
    ``pass``: there is nothing to type.
    """
    lines = text.split("\n")
    found: list[Body] = []

    def collect(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                body = child.body[ast.get_docstring(child) is not None :]
                if not all(isinstance(node, ast.Pass) or is_constant(node) for node in body):
                    found.append(body_of(f"{prefix}{child.name}", child, body[0]))
            elif isinstance(child, ast.ClassDef):
                if not any(re.search(r"\bProtocol\b", ast.unparse(b)) for b in child.bases):
                    collect(child, f"{prefix}{child.name}.")
            else:
                collect(child, prefix)

    def body_of(name: str, function: ast.stmt, first: ast.stmt) -> Body:
        start = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))])
        before = lines[first.lineno - 1].encode()[: first.col_offset].decode()
        on_one_line = bool(before.strip())
        while not on_one_line and re.match(r"\s*(#|$)", lines[start - 2]):
            start -= 1  # a comment above the first statement belongs to the body
        typed = lines[start - 1 : function.end_lineno]
        typed[0] = typed[0].removeprefix(before) if on_one_line else typed[0]
        dedented = textwrap.dedent("\n".join(typed)) + "\n"
        return Body(name, start, function.end_lineno or start, before, dedented)

    collect(ast.parse(text), "")
    return found


def is_constant(node: ast.stmt) -> bool:
    """Whether a statement is a docstring, ``...`` or another constant that does nothing."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_among(name: str, entries: Iterable[str] | None) -> bool:
    """Whether ``entries`` lists a function, or the class it belongs to; None lists all."""
    return entries is None or any(f"{name}.".startswith(f"{entry}.") for entry in entries)


def empty_bodies(text: str, instead: str, typed: Iterable[str] | None = None) -> str:
    """Put ``instead`` in place of the bodies of the ``typed`` functions.

    Signatures and docstrings stay.
    """
    lines = text.split("\n")
    for body in reversed(bodies(text)):  # bottom-up, so line numbers stay valid
        if is_among(body.name, typed):
            lines[body.start - 1 : body.end] = [body.before + instead]
    return "\n".join(lines)
