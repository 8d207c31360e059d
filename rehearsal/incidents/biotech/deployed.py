"""Which text of the trainer is deployed on the biotech track: trainer_core and its bio part.

A module of bio is named with its folder: "bio/splits.py".
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from rehearsal.incidents import deployed as general
from rehearsal.incidents.deployed import SHIPPED, changed_modules
from rehearsal.incidents.world import Plan

BIO = SHIPPED / "bio"
# What a job on these data begins with; the other modules follow from the imports.
ROOTS = {
    "molecules": ("launch", "molecule_task", "leakage"),
    "proteins": ("launch", "protein_task"),
    "graphs": ("launch", "graph_task", "symmetry"),
}


@cache
def modules_for(data: str) -> tuple[str, ...]:
    """The modules of bio that a job on ``data`` imports, such as "bio/splits.py"."""
    found: set[str] = set()
    waiting = list(ROOTS[data])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += imported_by(name)
    return tuple(f"bio/{name}.py" for name in sorted(found))


def imported_by(name: str) -> Iterable[str]:
    """The modules of bio that a module of bio imports as soon as it is imported itself."""
    for node in ast.parse((BIO / f"{name}.py").read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "trainer_core.bio."
        ):
            yield str(node.module).rpartition(".")[2]


def module_names() -> list[str]:
    """The modules that can be read and replaced: the trainer's, and what a job needs of bio."""
    bio = {name for data in ROOTS for name in modules_for(data)}
    return sorted({*general.module_names(), *bio})


def deploy(plan: Plan, folder: Path) -> Path | None:
    """Write the deployed package below ``folder``; None if it is exactly the shipped one.

    Returns:
        What goes in front of sys.path.
    """
    changed = changed_modules(plan)
    if not changed:
        return None
    package = folder / "trainer_core"
    (package / "bio").mkdir(parents=True, exist_ok=True)
    for path in (*map(SHIPPED.joinpath, general.module_names()), *BIO.glob("*.py")):
        name = str(path.relative_to(SHIPPED))
        text = changed.get(name, path.read_text("utf-8"))
        (package / name).write_text(text, "utf-8")
    if not (package / "bio" / "data").exists():
        (package / "bio" / "data").symlink_to(BIO / "data")
    return folder
