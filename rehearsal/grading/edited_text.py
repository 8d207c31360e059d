"""A source text that can be edited at the nodes of its syntax tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Edit(NamedTuple):
    """One replacement in a text, in bytes, as the syntax tree counts."""

    operator: str
    start: int
    end: int
    replacement: str


class Text:
    """A source, its syntax tree, and where each node is in it."""

    def __init__(self, source: str) -> None:
        self.source, self.raw = source, source.encode()
        self.tree = ast.parse(source)
        self.parent_of: dict[ast.AST, ast.AST] = {}
        self.line_starts = [0]
        for line in self.raw.splitlines(keepends=True):
            self.line_starts.append(self.line_starts[-1] + len(line))
        for node in ast.walk(self.tree):
            for child in ast.iter_child_nodes(node):
                self.parent_of[child] = node

    def start(self, node: ast.expr | ast.stmt | ast.keyword | ast.excepthandler) -> int:
        """Where a node begins, in bytes."""
        return self.line_starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt | ast.keyword | ast.excepthandler) -> int:
        """Where a node ends, in bytes."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.line_starts[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: ast.expr | ast.stmt | ast.keyword) -> str:
        """A node's text."""
        return self.raw[self.start(node) : self.end(node)].decode()

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes that contain this one, the nearest first."""
        while node in self.parent_of:
            node = self.parent_of[node]
            yield node

    def function_name(self, node: ast.AST) -> str:
        """The qualified name of the function or class that contains a node, or ""."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        names = [each.name for each in (node, *self.above(node)) if isinstance(each, kinds)]
        return ".".join(reversed(names))

    def replaced(
        self, operator: str, node: ast.expr | ast.stmt | ast.keyword, new: str
    ) -> Edit:
        """Put ``new`` in the node's place."""
        return Edit(operator, self.start(node), self.end(node), new)

    def between(
        self, operator: str, left: ast.expr, right: ast.expr, old: str, new: str
    ) -> Iterator[Edit]:
        """Replace the operator ``old`` that stands between two operands."""
        first, last = self.end(left), self.start(right)
        gap = self.raw[first:last].decode()
        pattern = r"\s+".join(map(re.escape, old.split()))
        if found := re.search(pattern, gap):
            yield Edit(operator, first + found.start(), first + found.end(), new)

    def edited(self, edit: Edit) -> str:
        """The text with one edit."""
        return (
            self.raw[: edit.start] + edit.replacement.encode() + self.raw[edit.end :]
        ).decode()

    def visible_names(self, node: ast.AST) -> set[str]:
        """The names that the functions around a node bind."""
        found = set[str]()
        for each in self.above(node):
            if isinstance(each, Function | ast.Lambda):
                for inner in ast.walk(each):
                    if isinstance(inner, ast.arg):
                        found.add(inner.arg)
                    elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                        found.add(inner.id)
        return found


def called_name(node: ast.AST) -> str:
    """The last part of what a call calls, such as ``all_reduce``; "" for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
