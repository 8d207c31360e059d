"""Which cells ran, in which order, and how each one ended: recorded from IPython's events.

A name in the kernel does not say whether the cell that defined it is still on the screen. This
record does: a cell that was edited and run again has the same id but different text.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rehearsal.grading.typed import UNPARSABLE, names_bound
from rehearsal.grading.verdict import shortened

# The lines that define a name, in a text that Python cannot parse.
DEFINES = re.compile(r"^\s*(?:(?:async\s+)?def|class)\s+(\w+)|^(\w+)\s*(?::|=(?!=))", re.M)
SURE = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AnnAssign,
    ast.AugAssign,
    ast.Import,
    ast.ImportFrom,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """One execution of one cell."""

    number: int  # as in In[9]
    cell: str | None  # the front end's id of the cell, where it gives one
    source: str  # as Python ran it: magics are calls
    binds: frozenset[str]  # the names that it bound; if it failed, those that it would have
    error: str = ""  # if it failed: "raised KeyError: 'x'"


class Recorder:
    """Records the executions of one IPython shell, from now on.

    Of the cells that ran before, only the text is known, not how they ended.
    """

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.folder = Path.cwd()  # the notebook's, until a cell changes it
        inputs = list(shell.user_ns.get("In", []))
        is_running = bool(inputs) and runs_a_cell(shell)
        self.done = from_history(inputs[:-1] if is_running else inputs)
        # What runs now, innermost last: its text, its cell, and the names before it.
        self.running: list[tuple[str, str | None, dict[str, int] | None]] = []
        if is_running:
            self.running.append((inputs[-1], cell_of(shell, None), None))
        shell.events.register("pre_run_cell", self.begin)
        shell.events.register("post_run_cell", self.end)

    def begin(self, info: Any) -> None:
        """A cell begins to run."""
        self.running.append((info.raw_cell, cell_of(self.shell, info), self._names()))

    def end(self, result: Any) -> None:
        """A cell has ended."""
        raw, cell, before = self.running.pop() if self.running else ("", None, None)
        if result.execution_count is None:  # run by another cell, which counts instead
            return
        source, error = self._transformed(raw), result.error_before_exec or result.error_in_exec
        if error is not None or before is None:
            binds = would_bind(source)
        else:
            binds = surely_binds(source) | self._changed(before)
        self.done.append(
            Execution(
                number=result.execution_count,
                cell=cell,
                source=source,
                binds=frozenset(binds),
                error="" if error is None else how_it_failed(error),
            )
        )

    def executions(self) -> list[Execution]:
        """All so far, oldest first; the last one may still run."""
        if not self.running:
            return list(self.done)
        raw, cell, before = self.running[0]
        source = self._transformed(raw)
        binds = would_bind(source) if before is None else self._changed(before)
        # Not the shell's count: some versions of IPython raise it before the cell runs.
        number = len(self.shell.user_ns["In"]) - 1
        now = Execution(number=number, cell=cell, source=source, binds=frozenset(binds))
        return [*self.done, now]

    def _names(self) -> dict[str, int]:
        # Ids, not the objects: a large tensor must be freed when its cell deletes it.
        return {name: id(value) for name, value in self.shell.user_ns.items()}

    def _changed(self, before: Mapping[str, int]) -> set[str]:
        now = self._names()
        return {name for name, identity in now.items() if before.get(name) != identity}

    def _transformed(self, raw: str) -> str:
        try:
            return str(self.shell.transform_cell(raw))
        except Exception:  # a magic that cannot be read; IPython has reported it
            return raw


def cell_of(shell: Any, info: Any) -> str | None:
    """The front end's id of the cell that runs, or has just run; None where it gives none.

    Args:
        info: what IPython says about the execution, if it's known.
    """
    if found := getattr(info, "cell_id", None):  # IPython 8.3 and newer
        return str(found)
    try:
        metadata = shell.get_parent().get("metadata") or {}
    except AttributeError:  # IPython at a terminal
        return None
    # JupyterLab and VS Code say cellId; Colab keeps what it says under its own name.
    for place in (metadata, metadata.get("colab") or {}):
        if found := place.get("cellId") or place.get("cell_id"):
            return str(found)
    return None


def runs_a_cell(shell: Any) -> bool:
    """Whether a cell's code is among our callers."""
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        if caller.f_globals is shell.user_ns:
            return True
        frame = caller
    return False


_recorder: Recorder | None = None


def record() -> None:
    """Record the running shell's cells, if there is a shell and nothing records it yet."""
    global _recorder
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and (_recorder is None or _recorder.shell is not shell):
        _recorder = Recorder(shell)


def executions_of(namespace: Mapping[str, object]) -> Sequence[Execution]:
    """The cells that made a namespace, oldest first; none outside a notebook."""
    if _recorder is not None and namespace is _recorder.shell.user_ns:
        return _recorder.executions()
    inputs = namespace.get("In", [])
    return from_history(inputs) if isinstance(inputs, list) else []


def notebooks_folder() -> Path:
    """The folder of the notebook that runs."""
    return _recorder.folder if _recorder is not None else Path.cwd()


def from_history(inputs: Sequence[object]) -> list[Execution]:
    """Executions of which only the text is known, as in IPython's ``In``."""
    found = []
    for number, source in enumerate(inputs):
        if not isinstance(source, str) or not source:
            continue
        try:
            ast.parse(source)
            error = ""
        except UNPARSABLE as broken:
            error = how_it_failed(broken)
        binds = frozenset(would_bind(source))
        found.append(
            Execution(number=number, cell=None, source=source, binds=binds, error=error)
        )
    return found


def surely_binds(source: str) -> set[str]:
    """The names that a cell binds if it runs to its end."""
    try:
        body = ast.parse(source).body
    except UNPARSABLE:
        return set()
    return {name for node in body if isinstance(node, SURE) for name in names_bound(node)}


def would_bind(source: str) -> set[str]:
    """The names that a cell is meant to bind, even if it has a syntax error."""
    try:
        tree = ast.parse(source)
    except UNPARSABLE:
        return {name for match in DEFINES.finditer(source) for name in match.groups() if name}
    found = names_bound(tree)
    for node in tree.body:  # %%time and the like: the cell is the magic's last argument
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            if ast.unparse(call.func).endswith(".run_cell_magic") and call.args:
                body = call.args[-1]
                if isinstance(body, ast.Constant) and isinstance(body.value, str):
                    found |= would_bind(body.value)
    return found


def how_it_failed(error: BaseException) -> str:
    """ "raised KeyError: 'x'", "has a syntax error: invalid syntax (line 2)"."""
    if isinstance(error, SyntaxError):
        return f"has a syntax error: {error.msg} (line {error.lineno})"
    message = shortened(str(error), 150)
    return f"raised {type(error).__name__}" + (f": {message}" if message else "")
