"""The solution and the blank of a drill on a trainer_core cell, from trainer_core's own text.

The drill's ``drill.toml`` names what its solution consists of:

    [derived]
    definitions = ["checkpoint_format.publish", "checkpoint.build_checkpoint"]  # in this order
    helpers = ["StepTimers.stamp"]        # members that the solution has and the blank lacks
    left_out = ["StepTimers.trace_events"]  # members that neither has
    given = ["fsync"]                       # functions that the blank has as they are

The blank also lacks private methods, and functions that ``[needs]`` doesn't name: they are the
solution's way of doing it, and you may find another.
"""

from __future__ import annotations

import ast
import difflib
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rehearsal.grading.blanks import empty_bodies

EMPTIED = "raise NotImplementedError"
MARK = "# Derived by scripts/sync_notebooks.py"
LINE_LENGTH = 96

Definition = ast.FunctionDef | ast.ClassDef
Origin = tuple[str, str]  # a module, and a name in it ("" for the module itself)


class Derived(NamedTuple):
    """The two files of a drill that nobody edits."""

    solution: str
    blank: str


class NotDerivable(ValueError):
    """The ``[derived]`` table doesn't fit trainer_core."""


def derive(
    package: Path, drill_id: str, needs: Collection[str], table: Mapping[str, Any]
) -> Derived:
    """The drill's files, as its ``[derived]`` table asks.

    Args:
        package: trainer_core's folder.
        needs: the names that a solution must define.

    Raises:
        NotDerivable: if the table names something that isn't there, or the solution would
            import from the cell that it is an answer to.
    """
    helpers, left_out = table.get("helpers", []), table.get("left_out", [])
    modules: dict[str, Module] = {}
    solution: list[str] = []
    blank: list[str] = []
    origins: dict[str, Origin] = {}
    own: set[Origin] = set()
    known: set[str] = set()
    for entry in table["definitions"]:
        file, _, name = entry.rpartition(".")
        if file not in modules:
            modules[file] = Module(package, file)
        module = modules[file]
        node = module.definition(name)
        text = without_members(module.text_of(node), name, left_out)
        solution.append(text)
        if name in table.get("given", ()):
            blank.append(text)
        elif not isinstance(node, ast.FunctionDef) or name in needs:
            text = without_members(text, name, helpers, keeps_private=False)
            blank.append(empty_bodies(text, EMPTIED))
        origins |= module.origins_in(solution[-1])
        own.add((f"trainer_core.{file}", name))
        known |= {f"{name}.{member}" for member in members(node)}
    for entry in [*helpers, *left_out]:
        if entry not in known:
            raise NotDerivable(f"no definition has a member {entry!r}.{nearest(entry, known)}")
    imported = {name: origin for name, origin in origins.items() if origin not in own}
    refuse_the_answer(imported, drill_id.removeprefix("cell_"))
    files = ", ".join(f"{file}.py" for file in modules)
    head = f"{MARK}; edit trainer_core/{files}.\n" + import_block(imported)
    return Derived(head + join(solution), head + join(blank))


def refuse_the_answer(imported: Mapping[str, Origin], cell: str) -> None:
    """Raise NotDerivable if a solution imports from the cell that it is an answer to."""
    for name, (module, _) in imported.items():
        if module == f"trainer_core.{cell}":
            raise NotDerivable(
                f"the solution imports {name} from trainer_core.{cell}, the cell that the "
                f"drill asks for. Add {cell}.{name} to definitions."
            )


def without_mark(text: str) -> str:
    """A derived file as a person sees it: without its first line, which is for its editors."""
    return text.partition("\n")[2] if text.startswith(MARK) else text


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint at the most similar known name, if there is one."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    return f" Did you mean {matches[0]!r}?" if matches else ""


class Module:
    """A module of trainer_core: its text, its definitions, and where its names come from."""

    def __init__(self, package: Path, name: str) -> None:
        path = package / f"{name.replace('.', '/')}.py"
        if not path.is_file():
            known = [other.stem for other in package.glob("*.py")]
            raise NotDerivable(f"trainer_core has no module {name!r}.{nearest(name, known)}")
        self.name = name
        self.lines = path.read_text("utf-8").split("\n")
        self.definitions: dict[str, ast.stmt] = {}
        self.origins: dict[str, Origin] = {}
        for node in ast.parse("\n".join(self.lines)).body:
            for bound in bound_names(node):
                self.definitions[bound] = node
                self.origins[bound] = (f"trainer_core.{name}", bound)
            if isinstance(node, ast.Import):
                self.origins |= {a.asname or a.name: (a.name, "") for a in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
                for alias in node.names:
                    self.origins[alias.asname or alias.name] = (str(node.module), alias.name)

    def definition(self, name: str) -> ast.stmt:
        """The statement that defines a name."""
        if name not in self.definitions:
            hint = nearest(name, self.definitions)
            raise NotDerivable(f"trainer_core/{self.name}.py doesn't define {name!r}.{hint}")
        return self.definitions[name]

    def text_of(self, node: ast.stmt) -> str:
        """A definition as it stands there, with decorators and the comments right above it."""
        start = first_line(node)
        while re.match(r"#(?! %%)", self.lines[start - 2]):
            start -= 1
        return "\n".join(self.lines[start - 1 : node.end_lineno])

    def origins_in(self, text: str) -> dict[str, Origin]:
        """The module's names that a text uses, each with its origin."""
        used = {part.id for part in ast.walk(ast.parse(text)) if isinstance(part, ast.Name)}
        return {name: self.origins[name] for name in used & set(self.origins)}


def bound_names(node: ast.stmt) -> list[str]:
    """The names that a top-level definition or assignment binds."""
    if isinstance(node, Definition):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def first_line(node: ast.stmt) -> int:
    """The first line of a definition, decorators included."""
    decorators = node.decorator_list if isinstance(node, Definition) else []
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def members(node: ast.stmt) -> dict[str, ast.stmt]:
    """A class's own methods, fields and constants, by name."""
    body = node.body if isinstance(node, ast.ClassDef) else []
    return {name: part for part in body for name in bound_names(part)}


def without_members(
    text: str, name: str, unwanted: Sequence[str], *, keeps_private: bool = True
) -> str:
    """A class's text without some of its members; any other text as it is."""
    lines = text.split("\n")
    (node,) = ast.parse(text).body
    for member, part in reversed(members(node).items()):  # bottom-up: line numbers stay valid
        is_private = bool(re.match(r"_(?!_)", member)) and isinstance(part, Definition)
        if f"{name}.{member}" in unwanted or (is_private and not keeps_private):
            start = first_line(part) - 1
            while re.match(r"\s*(#|$)", lines[start - 1]):
                start -= 1  # the blank line and the comments above it
            del lines[start : part.end_lineno]
    return "\n".join(lines)


def join(parts: Iterable[str]) -> str:
    """Definitions one below the other, spaced as usual: constants stand together."""
    text = ""
    for part in parts:
        is_simple = not re.search(r"^(@|def |class )", part, re.MULTILINE)
        text += f"{part}\n" if is_simple else f"\n\n{part}\n"
    return text if text.startswith("\n\n") else "\n" + text


def import_block(names: Mapping[str, Origin]) -> str:
    """Import statements for ``names``, ordered and wrapped as ruff does."""
    plain: dict[str, str] = {}
    parts: dict[str, list[str]] = {}
    for name, (module, original) in names.items():
        if not original:
            plain[module] = "" if name == module else f" as {name}"
        else:
            renamed = original if name == original else f"{original} as {name}"
            parts.setdefault(module, []).append(renamed)
    statements = [(rank(m), 0, m, f"import {m}{alias}") for m, alias in plain.items()]
    for module, wanted in parts.items():
        ordered = sorted(wanted, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
        statement = f"from {module} import {', '.join(ordered)}"
        if len(statement) > LINE_LENGTH:
            inner = "".join(f"    {name},\n" for name in ordered)
            statement = f"from {module} import (\n{inner})"
        statements.append((rank(module), 1, module, statement))
    text, section = "from __future__ import annotations\n", -1
    for number, _, _, statement in sorted(statements):
        text += ("\n" if number != section else "") + statement + "\n"
        section = number
    return text


def rank(module: str) -> int:
    """Section of an import: the standard library, other packages, this project."""
    top = module.partition(".")[0]
    return 0 if top in sys.stdlib_module_names else 2 if top == "trainer_core" else 1
