"""Changes that leave a program's behavior as it is: a grader must pass all of them.

Somebody else's correct answer has other names, another order, a helper where ours has none.
Each kind of change is made wherever it fits in a text. All are conservative: where a change
could alter what the text does, it is not made. Needed names and their signatures stay.
"""

from __future__ import annotations

import ast
import builtins
import copy
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rehearsal.grading.edited_text import Function, Text

# With one of these in an expression, when or where it is evaluated matters.
BOUND_TO_ITS_PLACE = (
    ast.Yield,
    ast.YieldFrom,
    ast.Await,
    ast.NamedExpr,
    ast.Lambda,
    ast.IfExp,
    ast.BoolOp,
    ast.Starred,
)
WITHOUT_EFFECT = (
    ast.Name,
    ast.Constant,
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.Tuple,
    ast.Attribute,
    ast.Dict,
    ast.operator,
    ast.unaryop,
    ast.cmpop,
    ast.expr_context,
)


class Change(NamedTuple):
    """A correct text, changed without effect."""

    id: str  # text: kind of change
    source: str


def names(node: ast.AST, *contexts: type[ast.expr_context]) -> set[str]:
    """The names in a tree, in any context or in the given ones."""
    kinds = contexts or (ast.expr_context,)
    found = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
    return {n.id for n in found if isinstance(n.ctx, kinds)}


def has(node: ast.AST, kinds: tuple[type[ast.AST], ...]) -> bool:
    """Whether a tree contains a node of one of these kinds."""
    return any(isinstance(inner, kinds) for inner in ast.walk(node))


def outer_functions(tree: ast.AST) -> Iterator[Function]:
    """Functions and methods that are in no other function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield node
        else:
            yield from outer_functions(node)


def bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """All lists of statements in a tree."""
    for inner in ast.walk(node):
        for _, value in ast.iter_fields(inner):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield value


def parameters(function: ast.AST) -> set[str]:
    """The parameters of a function and of those in it."""
    return {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}


def declared(tree: ast.AST) -> set[str]:
    """The names that a tree binds by other means than assigning to them."""
    found = parameters(tree)
    for node in ast.walk(tree):
        if isinstance(node, Function | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            found |= set(node.names)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            found.add(node.rest)
    return found


def taken(tree: ast.AST) -> set[str]:
    """Every name that occurs in a text, in whatever role."""
    return names(tree) | declared(tree) | set(dir(builtins))


def fresh(wanted: str, used: set[str]) -> str:
    """A name that nothing has yet; marks it as used."""
    while wanted in used:
        wanted += "_"
    used.add(wanted)
    return wanted


# ---------------------------------------------------------------- names and order


def fixed_names(tree: ast.Module, function: Function) -> set[str]:
    """Names in a function that cannot be renamed as locals: somebody else knows them."""
    found = declared(function) | set(dir(builtins))
    for node in ast.walk(function):
        if isinstance(node, ast.ClassDef):
            found |= names(node, ast.Store)  # attributes
    for statement in tree.body:
        found |= set() if isinstance(statement, Function) else names(statement, ast.Store)
    return found


def renamed(tree: ast.Module) -> None:
    """Give every local variable another name."""
    used = taken(tree)
    for function in outer_functions(tree):
        if names(function) & {"locals", "vars", "eval", "exec"}:
            continue
        ours = names(function, ast.Store) - fixed_names(tree, function)
        new = {name: fresh(f"the_{name}", used) for name in sorted(ours)}
        for node in ast.walk(function):
            if isinstance(node, ast.Name):
                node.id = new.get(node.id, node.id)


def is_plain(statement: ast.stmt) -> bool:
    """Whether it assigns to a local name what can be computed without a call."""
    return (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
        and all(isinstance(node, WITHOUT_EFFECT) for node in ast.walk(statement.value))
    )


def is_independent(statement: ast.stmt) -> bool:
    """Whether it assigns to a name, or to an attribute of ``self``, without a call."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) > 1:
        return False
    target = statement.targets[0]
    targets = target.elts if isinstance(target, ast.Tuple) else [target]
    are_ours = all(
        isinstance(t, ast.Name) or re.fullmatch(r"self\.\w+", ast.unparse(t)) for t in targets
    )
    return are_ours and all(isinstance(n, WITHOUT_EFFECT) for n in ast.walk(statement.value))


def touched(node: ast.AST, *contexts: type[ast.expr_context]) -> set[str]:
    """Names, and attributes of ``self``, that a statement reads or assigns."""
    attributes = {
        ast.unparse(n)
        for n in ast.walk(node)
        if isinstance(n, ast.Attribute)
        and isinstance(n.ctx, contexts or (ast.expr_context,))
        and ast.unparse(n.value) == "self"
    }
    return attributes | names(node, *contexts)


def reordered(tree: ast.Module) -> None:
    """Swap neighboring assignments that don't need each other."""
    for function in outer_functions(tree):
        for body in bodies(function):
            at = 0
            while at + 1 < len(body):
                first, second = body[at], body[at + 1]
                if is_independent(first) and is_independent(second):
                    needs_it = touched(first, ast.Store) & touched(second)
                    if not needs_it and not touched(second, ast.Store) & touched(first):
                        body[at], body[at + 1] = second, first
                        at += 1
                at += 1


# ---------------------------------------------------------------- loops and comprehensions


def looped(tree: ast.Module) -> None:
    """``x = [f(y) for y in z]`` as a loop that appends."""
    used = taken(tree)
    for function in outer_functions(tree):
        for body in bodies(function):
            for at in reversed(range(len(body))):
                loop = as_loop(body[at], used)
                if loop:
                    body[at : at + 1] = loop


def as_loop(statement: ast.stmt, used: set[str]) -> list[ast.stmt]:
    """The loop for a statement that assigns a list comprehension; [] if it is none."""
    if not (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
        and isinstance(statement.value, ast.ListComp)
        and len(statement.value.generators) == 1
        and not has(statement.value, BOUND_TO_ITS_PLACE)
    ):
        return []
    target, comprehension = statement.targets[0].id, statement.value
    generator = comprehension.generators[0]
    inner = {n for g in ast.walk(comprehension) if isinstance(g, ast.comprehension)
             for n in names(g.target)}  # fmt: skip
    if target in names(comprehension) or generator.is_async or inner & names(generator.iter):
        return []
    # In a loop, unlike in a comprehension, the variable stays: under a name of its own.
    new = {name: fresh(f"each_{name}", used) for name in sorted(names(generator.target))}
    for part in (generator.target, comprehension.elt, *generator.ifs):
        for node in ast.walk(part):
            if isinstance(node, ast.Name):
                node.id = new.get(node.id, node.id)
    append = ast.parse(f"{target}.append(0)").body[0]
    assert isinstance(append, ast.Expr)
    assert isinstance(append.value, ast.Call)
    append.value.args = [comprehension.elt]
    inside: list[ast.stmt] = [append]
    for test in reversed(generator.ifs):
        inside = [ast.If(test, inside, [])]
    loop = ast.For(generator.target, generator.iter, inside, [])
    return [*ast.parse(f"{target} = []").body, loop]


def comprehended(tree: ast.Module) -> None:
    """An empty list and a loop that appends, as a comprehension."""
    for function in outer_functions(tree):
        for body in bodies(function):
            for at in reversed(range(len(body) - 1)):
                found = as_comprehension(function, body[at], body[at + 1])
                if found:
                    body[at : at + 2] = [found]


def as_comprehension(function: Function, empty: ast.stmt, loop: ast.stmt) -> ast.stmt | None:
    """The comprehension for an empty list and the loop after it, if they are one."""
    if not (
        isinstance(empty, ast.Assign)
        and isinstance(empty.targets[0], ast.Name)
        and ast.unparse(empty.value) == "[]"
        and isinstance(loop, ast.For)
        and not loop.orelse
        and len(loop.body) == 1
    ):
        return None
    target, call = empty.targets[0].id, loop.body[0]
    if not (
        isinstance(call, ast.Expr)
        and isinstance(call.value, ast.Call)
        and ast.unparse(call.value.func) == f"{target}.append"
        and not has(loop, BOUND_TO_ITS_PLACE)
    ):
        return None
    rest = [n.id for n in ast.walk(function) if isinstance(n, ast.Name)]
    inside = [n.id for n in ast.walk(loop) if isinstance(n, ast.Name)]
    outlives = any(rest.count(n) != inside.count(n) for n in names(loop.target))
    if outlives or inside.count(target) != 1:
        return None
    element = call.value.args[0]
    generator = ast.comprehension(loop.target, loop.iter, [], 0)
    return ast.Assign(empty.targets, ast.ListComp(element, [generator]))


# ---------------------------------------------------------------- helpers


def extracted(tree: ast.Module) -> None:
    """In each function, move the first computed value into a function of its own."""
    used, helpers = taken(tree), list[ast.stmt]()
    for function in outer_functions(tree):
        for statement in (s for body in bodies(function) for s in body):
            if not isinstance(statement, ast.Assign) or not can_move(statement.value):
                continue
            # What the function binds, its helper cannot see.
            bound = parameters(function) | names(function, ast.Store)
            inner = names(statement.value, ast.Store)
            known = names(statement.value, ast.Load)
            needed = sorted(known & bound - inner)
            # What is defined or imported in the function, too.
            local = declared(function) - parameters(function)
            if known & (local - {function.name}) or inner & bound - inner:
                continue
            name = fresh("compute_it", used)
            helper = ast.parse(f"def {name}({', '.join(needed)}): return 0").body[0]
            assert isinstance(helper, ast.FunctionDef)
            helper.body = [ast.Return(statement.value)]
            helpers.append(helper)
            call = ast.parse(f"{name}({', '.join(needed)})", mode="eval").body
            statement.value = call
            break
    at = 0
    while at < len(tree.body) and isinstance(
        tree.body[at], ast.Import | ast.ImportFrom | ast.Expr
    ):
        at += 1
    tree.body[at:at] = helpers


def can_move(value: ast.expr) -> bool:
    """Whether an expression does the same in a helper that is given its names."""
    private = [
        n.attr
        for n in ast.walk(value)
        if isinstance(n, ast.Attribute) and n.attr.startswith("__")
    ]
    computes = has(value, (ast.Call, ast.BinOp))
    return computes and not has(value, BOUND_TO_ITS_PLACE) and not private and not (
        names(value) & {"super", "locals", "vars", "__class__"}
    )  # fmt: skip


def inlined(tree: ast.Module) -> None:
    """Put a value where it is used, if that is once and in the next statement."""
    for function in outer_functions(tree):
        for body in bodies(function):
            for at in reversed(range(len(body) - 1)):
                first, second = body[at], body[at + 1]
                if not is_plain(first) or has(first, (ast.Attribute,)):
                    continue
                assert isinstance(first, ast.Assign)
                assert isinstance(first.targets[0], ast.Name)
                name = first.targets[0].id
                all_uses = [n for n in ast.walk(function) if isinstance(n, ast.Name)]
                uses = [n for n in all_uses if n.id == name]
                inside = [n for n in ast.walk(second) if isinstance(n, ast.Name)]
                if (
                    len(uses) == 2  # its assignment, and one use
                    and sum(n.id == name for n in inside) == 1
                    and isinstance(second, ast.Assign | ast.Return | ast.Expr)
                    and not has(second, (*BOUND_TO_ITS_PLACE, ast.comprehension))
                    and name not in names(second, ast.Store)
                ):
                    Inline({name: first.value}).visit(second)
                    del body[at]


def inlined_helpers(tree: ast.Module) -> None:
    """Put what a helper of one line returns in the place of its call."""
    helpers = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and is_one_line(node)
    }
    for function in outer_functions(tree):
        bound = parameters(function) | names(function, ast.Store)
        for call in [n for n in ast.walk(function) if isinstance(n, ast.Call)]:
            helper = helpers.get(call.func.id) if isinstance(call.func, ast.Name) else None
            if helper is None or helper is function or call.keywords:
                continue
            given = helper.args.args
            result = helper.body[-1]
            assert isinstance(result, ast.Return)
            assert result.value is not None
            free = names(result.value) - parameters(helper)
            same_number = len(call.args) == len(given)
            simple = all(isinstance(a, ast.Name | ast.Constant) for a in call.args)
            if same_number and simple and not free & bound:
                value = copy.deepcopy(result.value)
                new = {p.arg: a for p, a in zip(given, call.args, strict=True)}
                value = Inline(new).visit(value)
                Replace(call, value).visit(function)


def is_one_line(function: ast.FunctionDef) -> bool:
    """Whether a helper only returns an expression that fits into its caller."""
    body = function.body[ast.get_docstring(function) is not None :]
    arguments = function.args
    is_bare = not (
        function.decorator_list
        or arguments.vararg
        or arguments.kwarg
        or arguments.kwonlyargs
        or arguments.defaults
        or arguments.posonlyargs
    )
    if not is_bare or len(body) != 1 or not isinstance(body[0], ast.Return):
        return False
    value = body[0].value
    inner = (*BOUND_TO_ITS_PLACE, ast.comprehension)
    return value is not None and not has(value, inner) and function.name not in names(value)


class Replace(ast.NodeTransformer):
    """Puts one node in another's place."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        """The new node, if this is the old one."""
        return self.new if node is self.old else super().generic_visit(node)


class Inline(ast.NodeTransformer):
    """Puts expressions in the places of names."""

    def __init__(self, values: dict[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """The expression for this name, if there is one."""
        return copy.deepcopy(self.values.get(node.id, node))


# ---------------------------------------------------------------- spelling


def spelled_out(tree: ast.Module) -> None:
    """``x += 1`` as ``x = x + 1`` for a number; for a tensor that would not be the same."""
    for function in outer_functions(tree):
        numbers = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and is_number(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for body in bodies(function):
            for at, statement in enumerate(body):
                if (
                    isinstance(statement, ast.AugAssign)
                    and isinstance(statement.target, ast.Name)
                    and statement.target.id in numbers
                    and is_number(statement.value)
                ):
                    name = statement.target.id
                    value = ast.BinOp(ast.Name(name, ast.Load()), statement.op, statement.value)
                    body[at] = ast.Assign([ast.Name(name, ast.Store())], value)


def is_number(node: ast.expr) -> bool:
    """Whether an expression is a written number."""
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def turned(tree: ast.Module) -> None:
    """``if not``, with the branches swapped."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp) and node.orelse:
            node.test = ast.UnaryOp(ast.Not(), node.test)
            branches = node.body, node.orelse
            node.orelse, node.body = branches


def documented(tree: ast.Module) -> None:
    """A docstring and type hints on every function that has none."""
    for node in ast.walk(tree):
        if isinstance(node, Function):
            if not ast.get_docstring(node):
                node.body.insert(0, ast.Expr(ast.Constant("Does what its name says.")))
            if not node.decorator_list:  # which might read the hints
                for argument in [*node.args.args, *node.args.kwonlyargs]:
                    argument.annotation = argument.annotation or ast.Name("object", ast.Load())


def plain(tree: ast.Module) -> None:
    """Without comments, in another layout."""


def parenthesized(source: str) -> str:
    """Parentheses around what is assigned and returned, and a comment above each statement."""
    text = Text(source)
    edits: list[tuple[int, bytes]] = []
    for node in ast.walk(text.tree):
        if isinstance(node, ast.Assign | ast.Return) and node.value is not None:
            edits += [(text.start(node.value), b"("), (text.end(node.value), b")")]
            line = text.line_starts[node.lineno - 1]
            if text.raw[line : text.start(node)].strip() == b"":
                edits.append((line, b" " * node.col_offset + b"# The next line.\n"))
    raw = text.raw
    for at, new in sorted(edits, reverse=True):
        raw = raw[:at] + new + raw[at:]
    return raw.decode()


KINDS: list[Callable[[ast.Module], None]] = [
    plain,
    renamed,
    reordered,
    looped,
    comprehended,
    extracted,
    inlined,
    inlined_helpers,
    spelled_out,
    turned,
    documented,
]


def harmless(name: str, source: str) -> Iterator[Change]:
    """Every harmless change that fits a text.

    Args:
        name: of the text, such as ``solution``; the ids begin with it.
    """
    before = ast.dump(ast.parse(source))
    for kind in KINDS:
        tree = ast.parse(source)
        kind(tree)
        if kind is plain or ast.dump(tree) != before:
            changed = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
            yield Change(f"{name}: {kind.__name__}", changed)
    yield Change(f"{name}: parenthesized", parenthesized(source))
