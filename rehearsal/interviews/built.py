"""What has been typed so far: one text out of all cells, and facts about it.

The facts only steer what the interviewer asks about. Whether it works is for the graders.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from rehearsal.grading.blanks import is_constant
from rehearsal.interviews.names import in_order

# A fact, and the names that show it: of a function, a class, a method or an attribute.
SIGNS = {
    "sampler": ("sampler", "epoch_order", "permutation", "randperm", "shard_for"),
    "step": ("backward", "train_step"),
    "loop": ("run", "train", "main", "fit"),
    "ranks": ("init_process_group", "all_reduce", "get_rank", "distributeddataparallel"),
    "ddp": ("distributeddataparallel",),
    "checkpoint": ("save_checkpoint", "save", "state_dict"),
    "resume": ("load_state_dict", "restore_checkpoint", "restore_if_present"),
    "rename": ("rename", "replace"),
    "fsync": ("fsync",),
    "metrics": ("perf_counter", "steptimers", "log_rank_event", "record_function"),
    "set_epoch": ("set_epoch",),
    "item": ("item",),
}


@lru_cache(maxsize=64)
def notebook_text(cells: tuple[str, ...]) -> str:
    """One text out of the cells as they were run, without what a later one defines again.

    What needs a name while it is loaded comes after what defines it.

    A cell that doesn't parse is left out: the ones before it still stand.
    """
    parsed = [(cell, tree) for cell in cells if (tree := _parsed(cell)) is not None]
    kept, seen, future = list[str](), set[str](), set[str]()
    for cell, tree in reversed(parsed):
        lines, keeps_all = list[str](), True
        for node in tree.body:
            text = _with_decorators(cell, node)
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                future.add(text)
                keeps_all = False
            elif not (names := set(_defines(node))) or not names <= seen:
                lines.append(text)
            else:
                keeps_all = False
        # Not before the whole cell was read: it may well define a name twice.
        seen |= {name for node in tree.body for name in _defines(node)}
        if lines:
            kept.append(cell.strip("\n") if keeps_all else "\n".join(lines))
    return "\n\n\n".join([*sorted(future), *in_order(kept[::-1])])


def has_code(source: str) -> bool:
    """Whether there is more in a text than comments and docstrings, parsable or not."""
    tree = _parsed(source)
    if tree is None:
        return True
    return not all(is_constant(node) for node in tree.body)


def why_unparsable(cell: str) -> str:
    """Why a cell doesn't parse, in a few words; empty if it does."""
    try:
        ast.parse(cell)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        return f"{error.msg if isinstance(error, SyntaxError) else error}, line {line}"
    return ""


@lru_cache(maxsize=64)
def facts_of(text: str) -> frozenset[str]:
    """What a text seems to contain: "typed", "built:sampler", ..."""
    tree = _parsed(text)
    if tree is None or not tree.body:
        return frozenset()
    names = {name.lower() for node in ast.walk(tree) for name in _names_in(node)}

    def shows(sign: str) -> bool:
        return sign in names or (len(sign) > 7 and any(sign in name for name in names))

    found = {f"built:{fact}" for fact, signs in SIGNS.items() if any(map(shows, signs))}
    tests = [ast.unparse(node.test) for node in ast.walk(tree) if isinstance(node, ast.If)]
    if any("rank == 0" in test for test in tests):
        found.add("built:rank zero")
    return frozenset(found | {"typed"})


def defined_in(text: str) -> frozenset[str]:
    """The functions, classes and variables that a text defines at its top level."""
    tree = _parsed(text)
    nodes = tree.body if tree is not None else []
    return frozenset(name for node in nodes for name in _defines(node))


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _with_decorators(text: str, node: ast.stmt) -> str:
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
    return "\n".join(text.split("\n")[first - 1 : node.end_lineno])


def _defines(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))


def _names_in(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.alias):
        yield node.name.rpartition(".")[2]
