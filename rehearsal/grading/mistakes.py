"""Mistakes in an expression: each function yields the edits that make one kind at a node."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rehearsal.grading.edited_text import Edit, Text, called_name

# ---------------------------------------------------------------- operators and constants

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
ORDERINGS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
}


def compare(text: Text, node: ast.AST) -> Iterator[Edit]:
    """``<`` for ``<=``, ``!=`` for ``==``, and so on."""
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        for left, kind, right in zip(operands, node.ops, node.comparators, strict=False):
            old, new = COMPARISONS[type(kind)]
            yield from text.between("comparison", left, right, old, new)


def is_text(node: ast.expr) -> bool:
    """Whether an operand is visibly a string or a sequence."""
    return isinstance(node, ast.JoinedStr | ast.List | ast.ListComp | ast.Tuple) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def arithmetic(text: Text, node: ast.AST) -> Iterator[Edit]:
    """``-`` for ``+``, ``*`` for ``/``, and an operand left out."""
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        if is_text(node.left) or is_text(node.right):
            return  # joins strings or paths; the other operator would only crash
        old, new = ARITHMETIC[type(node.op)]
        yield from text.between("arithmetic", node.left, node.right, old, new)
        if not isinstance(node.op, ast.Mod):
            start, end = text.start(node), text.end(node)
            # With the parentheses around the operand that stays.
            left_end = text.start(node.right)
            gap = text.raw[text.end(node.left) : left_end].decode()
            kept = text.raw[start : text.end(node.left)].decode() + gap[: gap.find(old)]
            yield Edit("operand dropped", start, end, kept.rstrip())
    elif isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
        old, new = ARITHMETIC[type(node.op)]
        if not is_text(node.value):
            yield from text.between("arithmetic", node.target, node.value, f"{old}=", f"{new}=")
        yield from text.between("arithmetic", node.target, node.value, f"{old}=", "=")
    elif (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and not isinstance(node.operand, ast.Constant)
    ):
        yield text.replaced("arithmetic", node, f"({text.of(node.operand)})")


def constant(text: Text, node: ast.AST) -> Iterator[Edit]:
    """A number one higher and one lower, the other truth value, the first for the last."""
    if not isinstance(node, ast.Constant):
        return
    value, parent = node.value, text.parent_of[node]
    if isinstance(parent, ast.keyword) and parent.arg in FREE_KEYWORDS:
        return
    if isinstance(value, bool):
        yield text.replaced("constant", node, str(not value))
    elif isinstance(value, int):
        if isinstance(parent, ast.UnaryOp):  # a negative number
            if value == 1 and isinstance(text.parent_of[parent], ast.Subscript):
                yield text.replaced("first for last", parent, "0")
                return
            yield text.replaced("constant", node, str(value + 1))
        elif isinstance(parent, ast.Subscript):
            new = "-1" if value == 0 else str(value - 1)
            yield text.replaced("last for first" if value == 0 else "constant", node, new)
        else:
            yield text.replaced("constant", node, str(value + 1))
            if value > 0:
                yield text.replaced("constant", node, str(value - 1))
    elif isinstance(value, float):
        yield text.replaced("constant", node, "1.0" if value == 0 else repr(value * 2))
        if value == 1.0:
            yield text.replaced("constant", node, "0.0")


def boundary(text: Text, node: ast.AST) -> Iterator[Edit]:
    """One more or less where a range or a slice begins or ends, or a saved value is read."""
    ends: list[ast.expr | None] = []
    if called_name(node) == "range":
        assert isinstance(node, ast.Call)
        ends = list(node.args[:2])
    elif isinstance(node, ast.Slice):
        ends = [node.lower, node.upper]
        kept = [node.lower, node.upper, node.step]
        for position, part in enumerate(kept):
            if part is not None and not isinstance(part, ast.Constant):
                left = list(kept)
                left[position] = None
                words = ["" if p is None else text.of(p) for p in left]
                new = ":".join(words if left[2] is not None else words[:2])
                yield Edit("bound dropped", text.start(node), text.end(node), new)
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
        if isinstance(node.value.slice, ast.Constant | ast.Name):
            yield text.replaced("boundary", node.value, f"{text.of(node.value)} + 1")
        return
    for end in ends:
        if end is not None and not isinstance(end, ast.Constant):
            for change in ("+ 1", "- 1"):
                yield text.replaced("boundary", end, f"({text.of(end)}) {change}")


# ---------------------------------------------------------------- conditions


def conditions_of(node: ast.AST) -> list[ast.expr]:
    """What a statement or expression decides by."""
    if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
        return [node.test]
    return list(node.ifs) if isinstance(node, ast.comprehension) else []


def condition(text: Text, node: ast.AST) -> Iterator[Edit]:
    """A condition negated, left out, or without one of its parts; ``or`` for ``and``."""
    for test in conditions_of(node):
        flipped = isinstance(test, ast.Compare) and not isinstance(test.ops[0], ORDERINGS)
        negation = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        if not flipped and not negation:
            yield text.replaced("condition negated", test, f"not ({text.of(test)})")
        is_fixed = isinstance(test, ast.Constant)
        if isinstance(node, ast.If | ast.IfExp | ast.comprehension) and not is_fixed:
            yield text.replaced("condition always true", test, "True")
            if not isinstance(node, ast.comprehension):
                yield text.replaced("condition never true", test, "False")
    if isinstance(node, ast.BoolOp):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        first, last = text.start(node), text.end(node)
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from text.between(f"{new} for {old}", left, right, old, new)
        for position in range(len(node.values)):
            kept = [v for at, v in enumerate(node.values) if at != position]
            words = [f"({text.of(value)})" for value in kept]
            yield Edit("condition dropped", first, last, f" {old} ".join(words))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield text.replaced("not dropped", node, f"({text.of(node.operand)})")


# ---------------------------------------------------------------- calls

SYMMETRIC = set(
    "min max zip print isinstance maximum minimum equal allclose gcd add mul".split()
)
OTHER_NAMES = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "any": "all",
    "all": "any",
    "sum": "mean",
    "mean": "sum",
    "floor": "ceil",
    "ceil": "floor",
    "isnan": "isinf",
    "isfinite": "isnan",
    "SUM": "MAX",
    "MAX": "MIN",
    "MIN": "MAX",
    "AVG": "SUM",
    "zeros_like": "ones_like",
    "zeros": "ones",
    "ones": "zeros",
}
OTHER_WORDS = {"sum": "mean", "mean": "sum"}  # as in reduction="sum"
# Without these calls the value is the same, but shared, still in the graph, or of another type.
TRANSPARENT = set("clone detach copy deepcopy float double abs int sorted item bool".split())
# Keywords that no observer on a CPU can miss, or that only help to find a mistake.
FREE_KEYWORDS = {"strict", "encoding", "non_blocking", "weights_only"}


def call(text: Text, node: ast.AST) -> Iterator[Edit]:
    """Arguments swapped or dropped; min for max; a copy that is not made."""
    if not isinstance(node, ast.Call):
        return
    name, first, last = called_name(node), text.start(node), text.end(node)
    starred = any(isinstance(argument, ast.Starred) for argument in node.args)
    if len(node.args) > 1 and not starred and name not in SYMMETRIC:
        for left, right in zip(node.args, node.args[1:], strict=False):
            if isinstance(left, ast.GeneratorExp) or text.of(left) == text.of(right):
                continue
            between = text.raw[text.end(left) : text.start(right)].decode()
            swapped = f"{text.of(right)}{between}{text.of(left)}"
            yield Edit("arguments swapped", text.start(left), text.end(right), swapped)
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in FREE_KEYWORDS:
            continue
        start, end = text.start(keyword), text.end(keyword)
        after = re.match(rb"\s*,\s*", text.raw[end:last])
        before = re.search(rb"\s*,\s*$", text.raw[first:start])
        if after:
            end += after.end()
        elif before:
            start = first + before.start()
        yield Edit("keyword dropped", start, end, "")
    if name in TRANSPARENT and not node.keywords:
        inner = node.args[:1] or (
            [node.func.value] if isinstance(node.func, ast.Attribute) else []
        )
        if len(node.args) < 2 and inner:
            new = f"list({text.of(inner[0])})" if name == "sorted" else f"({text.of(inner[0])})"
            yield text.replaced("call dropped", node, new)
    if name == "get_rank" or name == "get_world_size":
        new = "0" if name == "get_rank" else "1"
        yield text.replaced(f"{new} for {name.removeprefix('get_')}", node, new)


def other_name(text: Text, node: ast.AST) -> Iterator[Edit]:
    """min for max, sum for mean, any for all."""
    if isinstance(node, ast.Attribute) and node.attr in OTHER_NAMES:
        parent = text.parent_of[node]
        is_reduction = isinstance(node.value, ast.Attribute) and node.value.attr == "ReduceOp"
        if is_reduction or (isinstance(parent, ast.Call) and parent.func is node):
            new, end = OTHER_NAMES[node.attr], text.end(node)
            yield Edit(f"{new} for {node.attr}", end - len(node.attr), end, new)
    elif isinstance(node, ast.Name) and node.id in OTHER_NAMES:
        parent = text.parent_of[node]
        # There is no builtin mean.
        if isinstance(parent, ast.Call) and parent.func is node and node.id != "sum":
            new = OTHER_NAMES[node.id]
            yield text.replaced(f"{new} for {node.id}", node, new)
    elif (
        isinstance(node, ast.Constant)
        and isinstance(text.parent_of[node], ast.keyword)
        and node.value in OTHER_WORDS
    ):
        new = OTHER_WORDS[str(node.value)]
        yield text.replaced(f"{new} for {node.value}", node, f'"{new}"')


def rank(text: Text, node: ast.AST) -> Iterator[Edit]:
    """0 for rank and rank for 0, 1 for the world size."""
    parent = text.parent_of.get(node)
    name = ""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        name = node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        name = node.attr
    if name in ("rank", "local_rank", "world_size"):
        new = "1" if name == "world_size" else "0"
        assert isinstance(node, ast.Name | ast.Attribute)
        if not (isinstance(parent, ast.Call) and parent.func is node):
            yield text.replaced(f"{new} for {name}", node, new)
    if isinstance(node, ast.Constant) and node.value == 0 and type(node.value) is int:
        is_argument = isinstance(parent, ast.Call | ast.keyword | ast.Compare)
        if is_argument and "rank" in text.visible_names(node):
            yield text.replaced("rank for 0", node, "rank")


def leading_zeros(text: Text, node: ast.AST) -> Iterator[Edit]:
    """A number in a name without its leading zeros."""
    if isinstance(node, ast.JoinedStr):
        start = text.start(node)
        for found in re.finditer(rb":0\d+d?\}", text.raw[start : text.end(node)]):
            yield Edit("leading zeros dropped", start + found.start(), start + found.end(), "}")
