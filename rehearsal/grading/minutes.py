"""How long it takes to type an answer while explaining it.

One rule wherever we promise minutes, in the walkthrough's table and in the drills: what you
type, at the speed of somebody who talks while typing.
"""

from __future__ import annotations

import ast
import textwrap

from rehearsal.grading.edited_text import Function
from rehearsal.grading.plain_code import plain_lines

# Non-blank characters a minute. Nobody who types and explains is faster.
TYPING_SPEED = 120


def typed_characters(text: str) -> int:
    """Characters to type; comments, docstrings and whitespace don't count."""
    return len("".join("".join(plain_lines(text)).split()))


def minutes_for(characters: int) -> int:
    """Minutes for that many characters, rounded up."""
    return -(-characters // TYPING_SPEED)


def typing_minutes(text: str) -> int:
    """Minutes for typing Python code aloud, rounded up."""
    return minutes_for(typed_characters(text))


def typed_text(solution: str, blank: str) -> str:
    """The code of ``solution`` that ``blank`` doesn't already contain.

    Where the blank gives a function's signature, only the body counts.
    """
    given = _pieces(ast.parse(blank), blank.split("\n"))
    wanted = _pieces(ast.parse(solution), solution.split("\n"))
    return "\n".join(text for key, text in wanted.items() if given.get(key) != text)


def same_pieces(solution: str, blank: str) -> set[str]:
    """What both texts have in common, by the names that ``_pieces`` gives."""
    given = _pieces(ast.parse(blank), blank.split("\n"))
    wanted = _pieces(ast.parse(solution), solution.split("\n"))
    return {key for key, text in wanted.items() if given.get(key) == text}


def _pieces(tree: ast.AST, lines: list[str], prefix: str = "") -> dict[str, str]:
    """By qualified name: headers of functions and classes, their bodies, other statements."""

    def source(node: ast.stmt) -> str:
        # ast.get_source_segment would split the whole text again for each statement.
        found = [line.encode() for line in lines[node.lineno - 1 : node.end_lineno]]
        found[-1] = found[-1][: node.end_col_offset]
        found[0] = b" " * node.col_offset + found[0][node.col_offset :]
        return textwrap.dedent(b"\n".join(found).decode())

    found: dict[str, str] = {}
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function | ast.ClassDef):
            name = f"{prefix}{node.name}"
            body = node.body[ast.get_docstring(node) is not None :]
            node.body = [ast.Pass()]
            found[f"{name} header"] = ast.unparse(node)
            node.body = body
            if isinstance(node, ast.ClassDef):
                found |= _pieces(node, lines, f"{name}.")
            else:
                found[f"{name} body"] = "\n".join(map(source, body))
        elif isinstance(node, ast.stmt):
            found[f"{prefix}{ast.unparse(node)}"] = source(node)
    return found
