"""Mechanical mistakes: every small edit of a correct text that may break it.

Each mutant is one edit of the source, found in its syntax tree but made in its text, so that a
person can read the difference. A grader that passes one has a hole, unless the edit changes
nothing that can be observed, or nothing that the brief asks for: see ``mutation_score``.

The edits are deterministic, and a mutant's id does not contain a line number: an edit elsewhere
in the text leaves it as it is.
"""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rehearsal.grading.edited_text import Edit, Function, Text
from rehearsal.grading.minutes import same_pieces
from rehearsal.grading.mistaken_statements import block, statement
from rehearsal.grading.mistakes import (
    arithmetic,
    boundary,
    call,
    compare,
    condition,
    constant,
    leading_zeros,
    other_name,
    rank,
)

Operator = Callable[[Text, ast.AST], Iterator[Edit]]
OPERATORS: list[Operator] = [
    compare,
    arithmetic,
    rank,
    constant,
    boundary,
    condition,
    call,
    other_name,
    leading_zeros,
    statement,
    block,
]
MAX_SHOWN = 90  # characters of an edited line in an id


class Mutant(NamedTuple):
    """A correct text with one mistake in it."""

    id: str  # text.function: operator: the line before => the line after
    operator: str
    line: int  # from 1, in the correct text
    source: str  # the complete attempt


# ---------------------------------------------------------------- what is edited


def edited_nodes(text: Text, given: str, *, keeps_given: bool) -> Iterator[ast.AST]:
    """The nodes to edit, in order; not what says nothing about behavior.

    Left out: annotations, docstrings, the parameters of functions that the blank already has,
    messages of exceptions, what is inside an f-string (its numbers are for people, and Python
    3.11 does not know their places), and, if ``keeps_given``, what the learner is given.
    """
    same = same_pieces(text.source, given) if keeps_given else set()
    signatures = set(functions_of(ast.parse(given)))

    def walk(node: ast.AST, inside: str) -> Iterator[ast.AST]:
        if isinstance(node, Function | ast.ClassDef):
            inside = f"{inside}.{node.name}" if inside else node.name
            if f"{inside} body" in same:
                return
        elif isinstance(text.parent_of.get(node), ast.Module | ast.ClassDef):
            statement = ast.unparse(node)
            if (f"{inside}.{statement}" if inside else statement) in same:
                return
        yield node
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "bases", "op", "ops"):
                continue
            if field == "args" and isinstance(node, Function) and inside in signatures:
                continue
            if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
                continue
            if field == "msg" and isinstance(node, ast.Assert):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from walk(child, inside)

    yield from walk(text.tree, "")


def functions_of(tree: ast.AST, inside: str = "") -> Iterator[str]:
    """The qualified names of all functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function | ast.ClassDef):
            name = f"{inside}.{node.name}" if inside else node.name
            if isinstance(node, Function):
                yield name
            yield from functions_of(node, name)
        else:
            yield from functions_of(node, inside)


def edits_of(text: Text, given: str = "", *, keeps_given: bool = False) -> Iterator[Edit]:
    """Every edit that is made to a text, in the order of its nodes."""
    for node in edited_nodes(text, given, keeps_given=keeps_given):
        for operator in OPERATORS:
            yield from operator(text, node)


def mutants(
    name: str, source: str, given: str = "", *, keeps_given: bool = False
) -> Iterator[Mutant]:
    """All mutants of a text, each different from it and from each other when compiled.

    Args:
        name: of the text, such as ``solution``; the ids begin with it.
        source: a correct text.
        given: the blank, whose signatures are not edited.
        keeps_given: nor is any other part of it that is the same in the source.
    """
    text = Text(source)
    seen = {shape(compile(source, name, "exec", dont_inherit=True))}
    count: dict[str, int] = {}
    functions = places(text)
    for edit in edits_of(text, given, keeps_given=keeps_given):
        broken = text.edited(edit)
        try:
            found = shape(compile(broken, name, "exec", dont_inherit=True))
        except (SyntaxError, ValueError):
            continue
        if found in seen:
            continue
        seen.add(found)
        line = text.raw.count(b"\n", 0, edit.start) + 1
        where = ".".join(filter(None, [name, functions.get(line, "")]))
        mutant_id = f"{where}: {edit.operator}: {shown(text, edit)}"
        count[mutant_id] = count.get(mutant_id, 0) + 1
        if count[mutant_id] > 1:
            mutant_id += f" #{count[mutant_id]}"
        yield Mutant(mutant_id, edit.operator, line, broken)


def places(text: Text) -> dict[int, str]:
    """For each line, the innermost function or class it belongs to."""
    found: dict[int, str] = {}
    for node in ast.walk(text.tree):  # the outer ones first
        if isinstance(node, Function | ast.ClassDef):
            name = text.function_name(node)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                found[line] = name
    return found


def shown(text: Text, edit: Edit) -> str:
    """The edited lines before and after, on one line."""
    start = text.raw.rfind(b"\n", 0, edit.start) + 1
    end = text.raw.find(b"\n", edit.end)
    end = len(text.raw) if end < 0 else end
    head, tail = text.raw[start : edit.start].decode(), text.raw[edit.end : end].decode()
    tail = re.sub(r"\s+#[^\"']*$", "", tail)  # a comment may change without a new mistake
    old = text.raw[edit.start : edit.end].decode()
    return f"{cropped(head, old, tail)} => {cropped(head, edit.replacement, tail)}"


def cropped(head: str, middle: str, tail: str) -> str:
    """A line on one line and short enough to read; the edited part is always in it."""
    head, middle, tail = (re.sub(r"\s+", " ", part) for part in (head, middle, tail))
    whole = f"{head}{middle}{tail}".strip()
    if len(whole) <= MAX_SHOWN:
        return whole
    if len(middle) > MAX_SHOWN // 2:
        middle = f"{middle[: MAX_SHOWN // 4]}...{middle[-MAX_SHOWN // 4 :]}"
    room = (MAX_SHOWN - len(middle)) // 2
    head = head.lstrip()
    head = head if len(head) <= room else f"...{head[-room:]}"
    tail = tail if len(tail) <= room else f"{tail[:room]}..."
    return f"{head}{middle}{tail}".strip()


def shape(code: types.CodeType) -> tuple[object, ...]:
    """What a code object does, without where its lines are."""
    constants = tuple(
        shape(each) if isinstance(each, types.CodeType) else (type(each).__name__, repr(each))
        for each in code.co_consts
    )
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_kwonlyargcount, code.co_flags)
    return (code.co_code, code.co_exceptiontable, *names, *counts, constants)
