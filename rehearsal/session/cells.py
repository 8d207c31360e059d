"""What the learner typed: the names of the notebook, and the cells that define them."""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections.abc import Mapping

from rehearsal.grading.attempt import codes_of
from rehearsal.grading.drill import Drill
from rehearsal.grading.verdict import ENGINE_FINDINGS, Finding
from rehearsal.session.display import shell


def learners_namespace(depth: int = 2) -> Mapping[str, object]:
    """The notebook's names; outside of one, those of the module that called the coach.

    Args:
        depth: how many calls lie between that module and here.
    """
    running = shell()
    if running is not None:
        names: Mapping[str, object] = running.user_ns
        return names
    return sys._getframe(depth).f_globals


def texts_of(drill: Drill, namespace: Mapping[str, object]) -> str:
    """The source of the cells that define the needed names; data without a cell: its repr."""
    cells: list[str] = [cell for cell in namespace.get("In", []) if isinstance(cell, str)]  # type: ignore[attr-defined]
    found: list[tuple[int, str]] = []
    for name in drill.needs:
        if name not in namespace:
            continue
        value = namespace[name]
        files = {code.co_filename: None for code in codes_of(value)}
        sources = ["".join(linecache.getlines(file)) for file in files]
        if not any(sources):
            defining = [cell for cell in cells if name in names_bound(cell)]
            sources = defining[-1:] or [f"{name} = {value!r}\n"]
        # In the order in which the cells were run, whatever the order of the names.
        found += [(place(source, cells), source.rstrip("\n")) for source in sources if source]
    return "\n\n".join(dict.fromkeys(source for _, source in sorted(found))) + "\n"


def place(source: str, cells: list[str]) -> int:
    """The index of the last run of a cell with this source; -1 if there is none."""
    runs = [i for i, cell in enumerate(cells) if cell.rstrip("\n") == source.rstrip("\n")]
    return runs[-1] if runs else -1


def with_cell_numbers(text: str) -> str:
    """A stack or traceback as IPython writes it: ``Cell In[9], line 3`` instead of a file."""
    name_of = getattr(getattr(shell(), "compile", None), "format_code_name", None)

    def named(file: re.Match[str]) -> str:
        found = name_of(file[1]) if name_of else None
        return " ".join(found) if found else file[0]

    return re.sub(r'File "([^"]+)"', named, text)


def broken_cell(drill: Drill, namespace: Mapping[str, object]) -> Finding | None:
    """A finding if the newest cell that defines a needed name has a syntax error.

    IPython then keeps the name's older value. A verdict on that would be about code that is no
    longer on the screen.
    """
    cells: list[str] = [cell for cell in namespace.get("In", []) if isinstance(cell, str)]  # type: ignore[attr-defined]
    for name in drill.needs:
        defines = re.compile(rf"^\s*(?:(?:async )?def|class)\s+{name}\b|^{name}\s*[:=]", re.M)
        for number, cell in reversed(list(enumerate(cells))):
            try:
                ast.parse(cell)
            except SyntaxError as error:
                if not defines.search(cell):
                    continue
                found = f"cell [{number}] has a syntax error, so {name} was not defined: "
                found += f"{error.msg} (line {error.lineno})"
                look = f"at line {error.lineno} of cell [{number}]"
                return ENGINE_FINDINGS("not-attempted", found, look)
            if name in names_bound(cell) or f"def {name}" in cell:  # the latter inside a magic
                break
    return None


def names_bound(cell: str) -> set[str]:
    """The names that a cell assigns or defines at its top level."""
    try:
        body = ast.parse(cell).body
    except SyntaxError:  # a magic
        return set()
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts = (part for target in targets for part in ast.walk(target))
            found |= {part.id for part in parts if isinstance(part, ast.Name)}
    return found
