"""Mechanical mistakes: every small edit of a correct text that may break it.

Each mutant is one edit of the source, found in its syntax tree but made in its text, so a person
can read the difference. A grader that passes one has a hole, unless the edit changes nothing
that can be observed, or nothing that the brief asks for: see ``mutation_score``.

The edits are deterministic, and a mutant's id does not contain a line number: an edit elsewhere
in the text leaves it as it is.
"""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rehearsal.grading.minutes import same_pieces

Function = ast.FunctionDef | ast.AsyncFunctionDef
MAX_SHOWN = 90  # characters of an edited line in an id


class Mutant(NamedTuple):
    """A correct text with one mistake in it."""

    id: str  # text.function: operator: the line before => the line after
    operator: str
    line: int  # from 1, in the correct text
    source: str  # the complete attempt


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


Operator = Callable[[Text, ast.AST], Iterator[Edit]]

COLLECTIVES = set(
    "all_reduce broadcast barrier monitored_barrier reduce gather scatter all_gather "
    "all_gather_object broadcast_object_list all_to_all reduce_scatter gather_object "
    "scatter_object_list all_gather_into_tensor reduce_scatter_tensor".split()
)


def called_name(node: ast.AST) -> str:
    """The last part of what a call calls, such as ``all_reduce``; "" for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


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
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        if not isinstance(node.operand, ast.Constant):
            yield text.replaced("arithmetic", node, f"({text.of(node.operand)})")


def constant(text: Text, node: ast.AST) -> Iterator[Edit]:
    """A number one higher and one lower, the other truth value, the first for the last."""
    if not isinstance(node, ast.Constant):
        return
    value, parent = node.value, text.parent_of[node]
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
    """One more or one less where a range or a slice begins or ends, or a saved value is read."""
    ends: list[ast.expr | None] = []
    if called_name(node) == "range":
        assert isinstance(node, ast.Call)
        ends = list(node.args[:2])
    elif isinstance(node, ast.Slice):
        ends = [node.lower, node.upper]
        kept = [node.lower, node.upper, node.step]
        for position, part in enumerate(kept):
            if part is not None and not isinstance(part, ast.Constant):
                left = [p for p in kept]
                left[position] = None
                words = ["" if p is None else text.of(p) for p in left]
                new = ":".join(words if left[2] is not None else words[:2])
                # A slice has the place of its parts, from its first character on.
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
# Calling these twice in a row does what calling them once does.
IDEMPOTENT = set(
    "zero_grad copy_ zero_ fill_ eval train clear manual_seed seed flush fsync close "
    "load_state_dict set_rng_state setstate set_epoch requires_grad_ clamp_ sort mkdir "
    "makedirs setattr".split()
)
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
    elif isinstance(node, ast.Constant) and isinstance(text.parent_of[node], ast.keyword):
        if isinstance(node.value, str) and node.value in OTHER_WORDS:
            new = OTHER_WORDS[node.value]
            yield text.replaced(f"{new} for {node.value}", node, repr(new).replace("'", '"'))


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


# ---------------------------------------------------------------- statements


def is_needed_to_run(text: Text, node: ast.Assign | ast.AnnAssign) -> bool:
    """Whether without this assignment its name would not exist, so that any run shows it."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names = {
        inner.id
        for target in targets
        for inner in ast.walk(target)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
    }
    if not names:
        return False
    scope = next((a for a in text.above(node) if isinstance(a, Function)), text.tree)
    elsewhere = set[str]()
    for inner in ast.walk(scope):
        if isinstance(inner, ast.Global | ast.Nonlocal):
            elsewhere |= set(inner.names)
        elif isinstance(inner, ast.arg):
            elsewhere.add(inner.arg)
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            if node not in text.above(inner):
                elsewhere.add(inner.id)
    return not names & elsewhere


def statement(text: Text, node: ast.AST) -> Iterator[Edit]:
    """A statement dropped or doubled; break for continue; nothing returned."""
    if isinstance(node, ast.Expr):
        if isinstance(node.value, ast.Constant):
            return
        name = called_name(node.value)
        which = "collective" if name in COLLECTIVES else "statement"
        yield text.replaced(f"{which} dropped", node, "pass")
        if isinstance(node.value, ast.Call) and name not in IDEMPOTENT:
            yield text.replaced(f"{which} doubled", node, f"{text.of(node)}; {text.of(node)}")
    elif isinstance(node, ast.AugAssign):
        yield text.replaced("statement dropped", node, "pass")
        yield text.replaced("statement doubled", node, f"{text.of(node)}; {text.of(node)}")
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        if isinstance(text.parent_of[node], ast.ClassDef | ast.Module):
            return
        if not is_needed_to_run(text, node):
            yield text.replaced("statement dropped", node, "pass")
        if node.value is not None and called_name(node.value) in COLLECTIVES:
            twice = f"{text.of(node)}; {text.of(node)}"
            yield text.replaced("collective doubled", node, twice)
    elif isinstance(node, ast.Raise | ast.Delete | ast.Assert):
        yield text.replaced("statement dropped", node, "pass")
    elif isinstance(node, ast.Return):
        if node.value is None:
            yield text.replaced("return dropped", node, "pass")
        elif not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield text.replaced("nothing returned", node, "return None")
            if not is_last(text, node):
                yield text.replaced("return dropped", node, text.of(node.value))
    elif isinstance(node, ast.Break):
        yield text.replaced("continue for break", node, "continue")
        yield text.replaced("statement dropped", node, "pass")
    elif isinstance(node, ast.Continue):
        yield text.replaced("break for continue", node, "break")
        yield text.replaced("statement dropped", node, "pass")


def is_last(text: Text, node: ast.stmt) -> bool:
    """Whether a statement is the last of its function."""
    parent = text.parent_of[node]
    return isinstance(parent, Function) and parent.body[-1] is node


def block(text: Text, node: ast.AST) -> Iterator[Edit]:
    """A ``with`` or decorator left out; an ``except`` wider, narrower or without effect."""
    if isinstance(node, ast.With):
        for item in node.items:
            if item.optional_vars is None:
                start, end = text.start(item.context_expr), text.end(item.context_expr)
                null = '__import__("contextlib").nullcontext()'
                yield Edit("context dropped", start, end, null)
    elif isinstance(node, ast.ExceptHandler):
        kind = node.type
        if kind is None:
            return
        wide = text.of(kind)
        if wide not in ("Exception", "BaseException"):
            yield text.replaced("except widened", kind, "Exception")
        elif wide == "Exception":
            yield text.replaced("except widened", kind, "BaseException")
        if wide in ("Exception", "BaseException"):
            yield text.replaced("except narrowed", kind, "OSError")
        yield text.replaced("except dropped", kind, "()")
        if isinstance(kind, ast.Tuple) and len(kind.elts) > 1:
            for position in range(len(kind.elts)):
                kept = [text.of(e) for at, e in enumerate(kind.elts) if at != position]
                yield text.replaced("except narrowed", kind, f"({', '.join(kept)},)")
    elif isinstance(node, Function | ast.ClassDef):
        for decorator in node.decorator_list:
            start = text.line_starts[decorator.lineno - 1]
            end = text.line_starts[(decorator.end_lineno or decorator.lineno)]
            yield Edit("decorator dropped", start, end, "")


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


# ---------------------------------------------------------------- what is edited


def edited_nodes(text: Text, given: str, *, keeps_given: bool) -> Iterator[ast.AST]:
    """The nodes to edit, in order; not what says nothing about behavior.

    Left out: annotations, docstrings, the parameters of functions that the blank already has,
    messages of exceptions, what is inside an f-string (its numbers are for people, and Python
    3.11 does not know their places), and, if ``keeps_given``, what the learner is given.
    """
    same = same_pieces(text.source, given) if keeps_given else set()
    signatures = {name for name in functions_of(ast.parse(given))}

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
