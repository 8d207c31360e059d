"""Mistakes in a statement: dropped, doubled, guarded by the wrong thing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rehearsal.grading.edited_text import Edit, Function, Text, called_name

COLLECTIVES = set(
    "all_reduce broadcast barrier monitored_barrier reduce gather scatter all_gather "
    "all_gather_object broadcast_object_list all_to_all reduce_scatter gather_object "
    "scatter_object_list all_gather_into_tensor reduce_scatter_tensor".split()
)
# Calling these twice in a row does what calling them once does.
IDEMPOTENT = set(
    "zero_grad copy_ zero_ fill_ eval train clear manual_seed seed flush fsync close "
    "load_state_dict set_rng_state setstate set_epoch requires_grad_ clamp_ sort mkdir "
    "makedirs setattr".split()
)


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
            elsewhere |= set() if node in text.above(inner) else {inner.id}
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
