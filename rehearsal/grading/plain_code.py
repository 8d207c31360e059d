"""Python text without what Python ignores: docstrings and comments."""

from __future__ import annotations

import ast
import io
import tokenize

from rehearsal.grading.edited_text import Function


def plain_lines(text: str) -> list[str]:
    """The lines of ``text``, with nothing where a docstring or a comment was.

    Raises:
        SyntaxError: if it isn't Python.
    """
    lines = text.split("\n")  # as ast counts them: str.splitlines also splits at a form feed
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, Function | ast.ClassDef | ast.Module):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            cut_out(lines, node.body[0])
    return lines


def cut_out(lines: list[str], node: ast.stmt) -> None:
    """Empty the part of ``lines`` that a statement takes; its columns are in bytes."""
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    before = lines[first].encode()[: node.col_offset]
    after = lines[last].encode()[node.end_col_offset :]
    lines[first : last + 1] = [""] * (last - first + 1)
    lines[first] = (before + after).decode()
