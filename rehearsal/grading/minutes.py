"""How long it takes to type an answer while explaining it.

One rule for every place that promises minutes: what you type, at the speed of somebody who
talks while typing.
"""

from __future__ import annotations

import ast

# Non-blank characters a minute. Nobody who types and explains is faster.
TYPING_SPEED = 120

Function = ast.FunctionDef | ast.AsyncFunctionDef


def typing_minutes(text: str) -> int:
    """Minutes for typing Python code aloud, rounded up.

    Comments, docstrings and whitespace don't count.
    """
    return -(-len("".join(_bare(text).split())) // TYPING_SPEED)


def typed_text(solution: str, blank: str) -> str:
    """The code of ``solution`` that ``blank`` doesn't already contain, without comments.

    Where the blank gives a function's signature, only the body counts.
    """
    given = _pieces(ast.parse(_bare(blank)))
    wanted = _pieces(ast.parse(_bare(solution)))
    return "\n".join(text for key, text in wanted.items() if given.get(key) != text)


def _bare(text: str) -> str:
    """The code without docstrings, in one canonical layout (which has no comments)."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, Function | ast.ClassDef | ast.Module) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _pieces(tree: ast.AST, prefix: str = "") -> dict[str, str]:
    """By qualified name: headers of functions and classes, their bodies, other statements."""
    found: dict[str, str] = {}
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function | ast.ClassDef):
            name, body = f"{prefix}{node.name}", node.body
            node.body = [ast.Pass()]
            found[f"{name} header"] = ast.unparse(node)
            node.body = body
            if isinstance(node, ast.ClassDef):
                found |= _pieces(node, f"{name}.")
            else:
                found[f"{name} body"] = "\n".join(map(ast.unparse, body))
        elif isinstance(node, ast.stmt):
            found[f"{prefix}{ast.unparse(node)}"] = ast.unparse(node)
    return found
