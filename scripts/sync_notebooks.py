"""Which file does each notebook cell come from, and are the two still in sync?

The modules in ``trainer_core`` are the source of every definition; ``notebooks/src/*.py`` is
the source of prose and demos. ``notebooks/*.ipynb`` is derived from both and committed without
outputs, and so is ``notebooks/handbook/``, whose sources are in notebooks/src/handbook.
``notebooks/drills/NNN_<id>.ipynb`` is derived from the drills' folders and the setup
cells of 02_rehearse. The drills on trainer_core's cells have two more derived files: blank.py
and solution.py, from the definitions that their drill.toml names (rehearsal/grading/derive.py).

    build           write every derived file
    check           exit with 1 and print a diff if a derived file is out of date
    push NOTEBOOK   carry edits made in a notebook's cells back to their source files

What a file in ``notebooks/src`` can contain besides jupytext's percent format:

    # variants: blank, hidden               in a first cell of comments: derive these as well
    # %% include="order"                    all cells of trainer_core/order.py
    # %% include="a.b"                      all cells of trainer_core/a/b.py
    # %% include="rehearsal.a"              all cells of rehearsal/a.py
    # %% include="live" cell="TinyNet"      the one cell of live.py that defines that name
    # %% include="order" collapsed=true     the same code, in one collapsed cell
    # %% include="order" shown="text"       the same cells as folded text that nothing runs
    # %% include="live" shown="blank"       the same cells as the blank variant has them
    # %% include="live" string="LIVE"       the same cells as a string, for exec in a rank
    # %% include="model" typed="TinyNet"    variants empty these functions or classes
    # %% only="blank hidden"                a cell of these variants; "full" is the notebook
    # %% drills="cell"                      the cells of every drill of that kind, in order
    # %% active="py"                        a cell that stays out of the notebook
    # %matplotlib inline                    a magic, commented out in the source only
    {{repository}} {{colab}} {{notebook}}   filled in from pyproject.toml and the file's name
    {{map}}                                 notebooks/src/shared/map.md: what to do with how
                                            much time; its links are relative to notebooks/
    {{badge}}                               the badge that opens the notebook on Colab
    # {{setup torch numpy}}                 the code of notebooks/src/shared/setup.py, which
                                            makes sure that these modules can be imported;
                                            each must have the name of its package
    {{typing model}} {{typing}}             how long it takes to type one module, or all of them
    {{typing live}} {{typing live.TinyNet}} the same for a module included by the cell: the time
                                            in total, and the minutes for that cell
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import hashlib
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jupytext  # type: ignore[import-untyped, unused-ignore]  # ships no types

from rehearsal.grading.blanks import bodies, empty_bodies, is_among, is_constant
from rehearsal.grading.derive import Derived, derive, nearest, without_mark
from rehearsal.grading.minutes import minutes_for, typed_text, typing_minutes
from rehearsal.session.addresses import colab_address, notebook_of, ref_of, repository_in

ROOT = Path(__file__).resolve().parents[1]
VARIANTS = ("blank", "hidden")
PACKAGES = ("trainer_core/", "rehearsal/")
VARIANTS_LINE = re.compile(r"^# variants:(.*)$", re.MULTILINE)
DIRECTIVES = (
    *("include", "cell", "collapsed", "shown", "string", "typed"),
    *("active", "drills", "only"),
)
# Its cells tagged "setup" also open each drill's notebook.
REHEARSE = "notebooks/src/02_rehearse.py"
# Folders of sources, under notebooks/src; their notebooks go to the same folder of notebooks/.
SOURCE_FOLDERS = ("", "handbook/")
# What a setup cell does, in every notebook that has one.
SETUP = "notebooks/src/shared/setup.py"
# What to do with two weeks, two days, two hours; the README and the book show it, too.
MAP = "notebooks/src/shared/map.md"
VERSION = "trainer_core/__init__.py"
KINDS = ("handbook", "whiteboard", "cell", "bug", "debug", "biotech")
KEPT_METADATA = ("tags", "jupyter", "cellView")
# comment_magics is off because jupytext would take "# copy the state" for a command.
FORMAT = {"extension": ".py", "format_name": "percent", "comment_magics": False}
FUTURE = "from __future__ import annotations"
EMPTIED = 'raise NotImplementedError("type this")'
KERNEL = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class SyncError(ValueError):
    """A mistake that the author of a source, module or notebook can fix."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A derived cell, and the file and cell it comes from."""

    kind: str  # code, markdown or raw
    text: str
    source: str  # as in the file: with docstring and placeholders, without a title
    file: str
    index: int
    role: str = ""  # how it was derived: collapsed, blank, text, drill; "" if copied
    metadata: dict[str, Any] = field(default_factory=dict)
    joined: tuple[int, ...] = ()  # the cells of the file that it also contains

    @property
    def origin(self) -> str:
        """Where the cell comes from: "notebooks/src/a.py#3", or "#3:blank" if derived."""
        return f"{self.file}#{self.index}" + (f":{self.role}" if self.role else "")

    def as_json(self) -> dict[str, Any]:
        """The cell as a notebook has it."""
        origin = {"origin": self.origin, "origin_hash": digest(self.kind, self.text)}
        cell: dict[str, Any] = {
            "cell_type": self.kind,
            # A hash of the origin alone, so editing a cell leaves every id as it is, and adding
            # one changes ids of the same file only.
            "id": hashlib.sha1(self.origin.encode()).hexdigest()[:12],
            "metadata": {**self.metadata, **origin},
            "source": self.text.splitlines(keepends=True),
        }
        return cell | ({"execution_count": None, "outputs": []} if self.kind == "code" else {})


def digest(kind: str, text: str) -> str:
    """What tells an edited cell from the one that was built."""
    return hashlib.sha1(f"{kind}\n{text}".encode()).hexdigest()[:12]


# Reading files ------------------------------------------------------------------------------


def read_text(root: Path, file: str) -> str:
    """A file of the project. Raises SyncError if it can't be read."""
    try:
        return (root / file).read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SyncError(f"{file} can't be read as UTF-8 text: {error}") from error


@functools.cache  # like split: every variant parses the same cells, and nothing modifies it
def parse(text: str, where: str) -> ast.Module:
    """The syntax tree of ``text``. Raises SyncError, which names ``where``."""
    try:
        return ast.parse(text)
    except SyntaxError as error:
        found = f"{error.msg}, on line {error.lineno}: {(error.text or '').strip()}"
        raise SyncError(f"{where} is not valid Python ({found}). Fix it there.") from error


@functools.cache  # every variant reads the same files, and nothing modifies the cells
def split(text: str) -> list[Any]:
    """Jupytext's cells of a percent file's text."""
    cells: list[Any] = jupytext.reads(text, fmt=FORMAT).cells
    for cell in cells:
        cell.source = cell.source.rstrip("\n")
    return cells


def read_cells(root: Path, file: str) -> list[Any]:
    """Jupytext's cells of a percent file; rejects a directive that would be ignored."""
    cells = split(read_text(root, file))
    ours = {*DIRECTIVES, *KEPT_METADATA}
    theirs = {"lines_to_next_cell", "cell_marker", "region_name", "title"}
    for index, cell in enumerate(cells):
        for key, value in cell.metadata.items():
            if key not in ours | theirs:
                found = value if key == "incorrectly_encoded_metadata" else key
                raise SyncError(
                    f"{file}#{index} is marked {found!r}, which means nothing here. Use one of "
                    f'{", ".join(sorted(ours))}, written as key="value".{nearest(found, ours)}'
                )
    return cells


def from_file(node: Any, file: str, index: int, text: str | None = None) -> Cell:
    """The derived cell of a cell of a source file; ``text`` replaces its own."""
    return Cell(
        kind=node.cell_type,
        text=node.source if text is None else text,
        source=node.source,
        file=file,
        index=index,
        metadata={key: node.metadata[key] for key in KEPT_METADATA if key in node.metadata},
    )


def docstring(cell: Cell) -> str:
    """A module's docstring, with the blank lines after it; empty for any other cell."""
    if cell.index or cell.kind != "code" or not cell.file.startswith(PACKAGES):
        return ""
    body = parse(cell.source, cell.origin).body
    lines = cell.source.splitlines(keepends=True)
    end = (body[0].end_lineno or 0) if body and is_constant(body[0]) else 0
    while end and end < len(lines) and not lines[end].strip():
        end += 1
    return "".join(lines[:end])


def trainer_imports(text: str, where: str, module: str = "") -> set[str]:
    """The project's own modules that ``text`` imports from at its top level."""
    found: set[str] = set()
    for node in parse(text, where).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = ["trainer_core", *module.split(".")][: -node.level] if node.level else []
            base = ".".join([*package, *([node.module] if node.module else [])])
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    own = {name for name in found if name.startswith(("trainer_core.", "rehearsal."))}
    return {name.removeprefix("trainer_core.") for name in own}


def bindings(cell: Cell) -> Iterator[tuple[str, str]]:
    """Each name bound at a cell's top level, and the definition it then refers to."""
    for node in parse(cell.source, cell.origin).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, cell.file
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                names = (part for part in ast.walk(target) if isinstance(part, ast.Name))
                yield from ((n.id, cell.file) for n in names if isinstance(n.ctx, ast.Store))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            base = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                whole = base or alias.asname
                top = alias.name if whole else alias.name.partition(".")[0]
                yield alias.asname or top, base + top


# Deriving cells -----------------------------------------------------------------------------


def collapse(cell: Cell, title: str, role: str) -> Cell:
    """Collapse a cell, in JupyterLab (source_hidden) and in Colab (cellView and a title)."""
    tags = [*cell.metadata.get("tags", []), "hide-input"]
    folded = {"jupyter": {"source_hidden": True}, "cellView": "form", "tags": tags}
    text = f"#@title {title}\n{cell.text}" if title else cell.text
    return replace(cell, text=text, role=role, metadata={**cell.metadata, **folded})


def may_fail(cell: Cell) -> Cell:
    """A code cell whose exception doesn't stop Run All: an unfinished one, or what calls it."""
    tags = [*cell.metadata.get("tags", []), "raises-exception"]
    return replace(cell, metadata={**cell.metadata, "tags": tags})


def as_one(cells: Sequence[Cell]) -> Cell:
    """A module's code in one collapsed cell: nobody types it, and nobody steps through it."""
    first, *others = cells
    whole = replace(
        first,
        text="\n\n\n".join(cell.text for cell in cells),
        source="\n\n\n".join(cell.source for cell in cells),
        joined=tuple(cell.index for cell in others),
    )
    return collapse(whole, first.file, "collapsed")


def as_text(cell: Cell, summary: str) -> Cell:
    """A code cell as folded text: it can't run, so it defines nothing behind your back."""
    text = f"<details><summary>{summary}</summary>\n\n```python\n{cell.text}\n```\n\n</details>"
    return replace(cell, kind="markdown", text=text, role="text", metadata={})


def as_string(cells: Sequence[Cell], variable: str) -> Cell:
    """Cells as a string in a variable, for exec to define them in a namespace of their own."""
    text = "\n\n\n".join(cell.text for cell in cells if cell.kind == "code")
    if "'''" in text:
        raise SyncError(
            f"{cells[0].file} contains ''', which would end the string {variable} too early. "
            'Use """ there.'
        )
    whole = replace(cells[0], text=f"{variable} = r'''\n{text}\n'''")
    return collapse(whole, f"{cells[0].file}, as a string", "string")


def vary(cell: Cell, variant: str, typed: Sequence[str]) -> list[Cell]:
    """The cells that replace ``cell`` in a variant, which empties the ``typed`` functions."""
    if not variant or cell.kind != "code":
        return [cell]
    emptied = empty_bodies(cell.text, EMPTIED, typed)
    if emptied == cell.text:
        return [cell]
    blank = may_fail(replace(cell, text=emptied, role="blank"))
    return [blank] if variant == "blank" else [blank, as_text(cell, "Solution")]


def addresses(root: Path, name: str) -> dict[str, str]:
    """What each placeholder stands for in the notebook ``name``; the longest value first."""
    try:
        project = tomllib.loads(read_text(root, "pyproject.toml")).get("project", {})
    except tomllib.TOMLDecodeError as error:
        raise SyncError(f"pyproject.toml is not valid TOML: {error}") from error
    urls = project.get("urls", {})
    repository = repository_in(urls)
    if repository is None:
        url = urls.get("Repository", urls.get("repository", ""))
        raise SyncError(
            f"[project.urls] Repository in pyproject.toml is {url!r}; badges and Colab links "
            f"are built from it. Set it to https://github.com/OWNER/NAME."
        )
    version = re.search(r'^__version__ = "(.+)"$', read_text(root, VERSION), re.MULTILINE)
    if not version:
        raise SyncError(
            f'{VERSION} has no line such as __version__ = "1.0.0", and badges open a notebook '
            f"at its version. Add it."
        )
    colab = colab_address(repository, version[1], name)
    # A picture of our own: the one at Google tells it who opens which notebook.
    picture = f"{'../' * (1 + name.count('/'))}docs/colab-badge.svg"
    return {
        "{{badge}}": f"[![Open in Colab]({picture})]({colab})",
        "{{colab}}": colab,
        "{{all_on_colab}}": colab_address(repository, version[1]),
        "{{repository}}": repository,
        "{{notebook}}": name,
        "{{ref}}": ref_of(version[1]),
    }


def requirements(root: Path) -> dict[str, str]:
    """What pip installs for each package that a notebook may need, by its name."""
    project = tomllib.loads(read_text(root, "pyproject.toml"))["project"]
    extras = project.get("optional-dependencies", {})
    lines = [*project.get("dependencies", []), *extras.get("notebooks", [])]
    return {re.split(r"[^\w-]", line)[0]: line for line in lines}


def setup_text(root: Path, name: str, needs: str) -> str:
    """The code of a setup cell in the notebook ``name``, which imports the modules ``needs``.

    The project itself comes from the repository, at the version that the notebook has.
    """
    known = addresses(root, name)
    can = {
        **requirements(root),
        "rehearsal": f"git+{known['{{repository}}']}@{known['{{ref}}']}",
    }
    for need in needs.split():
        if not need.isidentifier():
            raise SyncError(
                f"The source of {name} has a setup cell for {need!r}, and no module can have "
                "that name, so every kernel would seem to lack it. A setup cell can only ask "
                "for packages that are imported under their own names."
            )
        if need not in can:
            raise SyncError(
                f"The source of {name} has a setup cell for {need!r}, but pyproject.toml lists "
                f"no such package, as a dependency or in the extra notebooks. Add it there."
                f"{nearest(need, can)}"
            )
    lines = [f'    "{need}": "{can[need]}",' for need in needs.split()]
    known["{{needs}}"] = "\n".join(["{", *lines, "}"])
    text = read_text(root, SETUP).rstrip("\n")
    for placeholder, value in known.items():
        text = text.replace(placeholder, value)
    return text


def typed_names(node: Any) -> list[str]:
    """The functions and classes that a cell's variants empty."""
    return str(node.metadata.get("typed", "")).split()


@functools.cache  # every cell that shows a time counts the same modules again
def body_sizes(text: str) -> tuple[tuple[str, int], ...]:
    """Each function in a cell, with the characters of its body."""
    return tuple((body.name, body.characters) for body in bodies(text))


def typed_size(cells: Iterable[Cell], typed: Sequence[str]) -> int:
    """How many characters the ``typed`` functions of some cells leave to type."""
    code = (cell for cell in cells if cell.kind == "code")
    found = (body for cell in code for body in body_sizes(cell.text))
    return sum(size for name, size in found if is_among(name, typed))


def typing_times(root: Path) -> dict[str, str]:
    """How long it takes to type what is marked as typed, by placeholder.

    Counted in the modules, so the minutes can't drift from what there is to type. A module
    included in full has its own minutes. One included by the cell is typed in one sitting, so
    each of its cells says from which minute to which. There only the running total is rounded:
    rounding up every cell would add minutes that nobody types.
    """
    times, total, sittings = {}, 0, dict[str, int]()
    for path in sorted((root / "notebooks/src").glob("*.py")):
        for node in read_cells(root, path.relative_to(root).as_posix()):
            typed, module = typed_names(node), node.metadata.get("include", "")
            if not typed or "shown" in node.metadata:  # typed again: it counts once
                continue
            name = node.metadata.get("cell", "")
            characters = typed_size(module_cells(root, module, name), typed)
            minutes, size = minutes_for(characters), f"{characters:,} characters"
            if name:
                before = sittings.get(module, 0)
                sittings[module] = before + characters
                start, end = minutes_for(before), minutes_for(before + characters)
                times[f"{{{{typing {module}.{name}}}}}"] = f"minute {start} to {end} ({size})"
            else:
                total += minutes
                times[f"{{{{typing {module}}}}}"] = f"{minutes} min ({size})"
    for module, characters in sittings.items():
        size = f"{characters:,} characters"
        times[f"{{{{typing {module}}}}}"] = f"{minutes_for(characters)} minutes ({size})"
    return times | {"{{typing}}": f"{total} minutes"}


def placeholders(text: str) -> list[str]:
    """The placeholders in a text, in order."""
    names = r"badge|repository|colab|notebook|map|typing(?: [\w.]+)?"
    return re.findall(rf"# \{{\{{setup [^}}]*\}}\}}|\{{\{{(?:{names})\}}\}}", text)


def values(root: Path, name: str, wanted: Iterable[str]) -> dict[str, str]:
    """What each of the ``wanted`` placeholders stands for in the notebook ``name``."""
    wanted = list(wanted)
    known = addresses(root, name) if wanted else {}
    known |= typing_times(root) if any(p.startswith("{{typing") for p in wanted) else {}
    if "{{map}}" in wanted:
        known["{{map}}"] = read_text(root, MAP).rstrip("\n")
    # First: what they stand for has addresses in it, which are placeholders elsewhere.
    setups = {
        p: setup_text(root, name, p[len("# {{setup ") : -2]) for p in wanted if p[0] == "#"
    }
    known = setups | known
    for placeholder in wanted:
        if placeholder not in known:
            raise SyncError(
                f"{placeholder} in the source of {name} names a module in which nothing is "
                f'marked as typed. Add typed="..." to its include.{nearest(placeholder, known)}'
            )
    return {placeholder: value for placeholder, value in known.items() if placeholder in wanted}


def fill(root: Path, name: str, node: Any) -> str:
    """A source's cell as the notebook shows it: placeholders filled in, magics active."""
    text = str(node.source)
    for placeholder, value in values(root, name, placeholders(text)).items():
        text = text.replace(placeholder, value)
    if node.cell_type == "code":
        text = re.sub(r"^([ \t]*)# (%{1,2}\w|!\w)", r"\1\2", text, flags=re.MULTILINE)
    return text


def own_cell(root: Path, name: str, file: str, index: int, node: Any) -> Cell:
    """A cell that a source has itself, as the notebook ``name`` shows it."""
    cell = from_file(node, file, index, fill(root, name, node))
    is_folded = node.metadata.get("collapsed") and cell.kind == "code"
    return collapse(cell, "", "") if is_folded else cell


def restore(root: Path, name: str, cell: Cell, text: str) -> str:
    """Undo in an edited ``text`` what deriving did to ``cell``."""
    text = docstring(cell) + text.rstrip("\n")
    if cell.file.startswith("notebooks/src/"):
        for placeholder, value in values(root, name, placeholders(cell.source)).items():
            text = text.replace(value, placeholder)
        if cell.kind == "code":
            text = re.sub(r"^([ \t]*)(%{1,2}\w|!\w)", r"\1# \2", text, flags=re.MULTILINE)
    return text


# Drills -------------------------------------------------------------------------------------


def drills_of(root: Path, kind: str = "") -> list[dict[str, Any]]:
    """The table and id of every drill, or of those of one kind, in order."""
    found = []
    for path in (root / "rehearsal/drills").glob("*/drill.toml"):
        file = path.relative_to(root).as_posix()
        try:
            table = tomllib.loads(read_text(root, file))
            wanted = {key: table[key] for key in ("order", "title", "kind")}
            table = {"needs": {}, "derived": {}, "id": path.parent.name} | table | wanted
            if files := derived_files(root, table):
                table["minutes"] = typing_minutes(typed_text(files.solution, files.blank))
            table["minutes"] = float(table["minutes"])  # or the error below
        except (tomllib.TOMLDecodeError, KeyError) as error:
            raise SyncError(f"{file} can't be used ({error!r}). Fix it there.") from error
        found.append(table)
    chosen = [table for table in found if kind in ("", table["kind"])]
    return sorted(chosen, key=lambda table: (table["order"], table["id"]))


def derived_files(root: Path, drill: dict[str, Any]) -> Derived | None:
    """What blank.py and solution.py of a drill have to contain; None if people write them."""
    if not drill["derived"]:
        return None
    try:
        return derive(root / "trainer_core", drill["id"], drill["needs"], drill["derived"])
    except (ValueError, KeyError) as error:
        file = f"rehearsal/drills/{drill['id']}/drill.toml"
        raise SyncError(f"{file}, [derived]: {error}") from error


def compose_files(root: Path) -> dict[str, str]:
    """Every derived file that is not a notebook: path -> text."""
    composed = {}
    for drill in drills_of(root):
        if files := derived_files(root, drill):
            folder = f"rehearsal/drills/{drill['id']}"
            composed[f"{folder}/blank.py"] = files.blank
            composed[f"{folder}/solution.py"] = files.solution
    return composed


def drill_cells(
    root: Path, drill: dict[str, Any], heading: str, *, is_timed: bool, badge: str = ""
) -> list[Cell]:
    """Heading, task, blank, check, and a cell of commented-out helpers.

    Args:
        is_timed: start the clock with the task. Not among other drills, where "Run all" would
            start one clock after the other.
        badge: a line below the heading.
    """
    name, folder = drill["id"], f"rehearsal/drills/{drill['id']}"
    kind = ""
    if heading == "#":  # a notebook of its own says which kind it is
        kind = " You type into the blank below the task. No cell has the answer."
        if drill["kind"] == "bug":
            kind = " The program below the task has a bug. No cell has the answer."
        if drill["kind"] == "debug":
            kind = " The program below the task has several bugs. No cell has the answer."
    # Commented out, so that "Run all" doesn't reveal a hint.
    help_text = f'''\
# hint("{name}")  # uncomment to run: next of three hints
# diff("{name}")  # what changed since your previous attempt
# narration("{name}")  # what to say while you type
# solution("{name}")  # available after you pass; give_up=True shows it now'''
    task = (
        f'start("{name}")' if is_timed else f'brief("{name}")  # on the clock: start("{name}")'
    )
    above = f"{badge}\n\n" if badge else ""
    texts = [
        (
            "markdown",
            f"{heading} {drill['title']}\n\n{above}{drill['minutes']:g} minutes.{kind}",
        ),
        ("code", task),
        ("code", f'check("{name}")'),
        ("code", help_text),
    ]
    cells = [
        Cell(kind=kind, text=t, source=t, file=f"{folder}/drill.toml", index=i, role="drill")
        for i, (kind, t) in enumerate(texts)
    ]
    files = derived_files(root, drill)
    blank = files.blank if files else read_text(root, f"{folder}/blank.py")
    blank = without_mark(blank).rstrip("\n")
    parse(blank, f"{folder}/blank.py")
    typed = Cell(
        kind="code", text=blank, source=blank, file=f"{folder}/blank.py", index=0, role="drill"
    )
    return [*cells[:2], may_fail(typed), *cells[2:]]


def compose_drills(root: Path) -> dict[str, list[Cell]]:
    """One notebook per drill; each opens with the setup cells of 02_rehearse."""
    if not (root / REHEARSE).is_file():
        return {}
    nodes = [
        (index, node)
        for index, node in enumerate(read_cells(root, REHEARSE))
        if "setup" in node.metadata.get("tags", [])
    ]
    derived = {}
    for drill in drills_of(root):
        name = f"drills/{notebook_of(drill['id'], drill['order'])}"
        setup = [own_cell(root, name, REHEARSE, index, node) for index, node in nodes]
        badge = addresses(root, name)["{{badge}}"]
        title, *rest = drill_cells(root, drill, "#", is_timed=True, badge=badge)
        derived[name] = [title, *setup, *rest]
    return derived


# Composing notebooks ------------------------------------------------------------------------


def module_file(module: str) -> str:
    """The path of a module that an include names."""
    folder = "" if module.startswith("rehearsal.") else "trainer_core/"
    return f"{folder}{module.replace('.', '/')}.py"


def module_names(root: Path) -> list[str]:
    """Every module that a notebook can include, spelled as in an include."""
    found = []
    for package, base in (
        (root / "trainer_core", root / "trainer_core"),
        (root / "rehearsal", root),
    ):
        paths = (path for path in package.rglob("*.py") if path.stem != "__init__")
        found += [".".join(path.relative_to(base).with_suffix("").parts) for path in paths]
    return sorted(found)


def module_cells(root: Path, module: str, name: str = "") -> Iterator[Cell]:
    """A module's cells, or the one that defines ``name``.

    Left out are its docstring and the cells that stay out of notebooks.
    """
    file = module_file(module)
    for index, node in enumerate(read_cells(root, file)):
        if node.metadata.get("active") == "py":
            continue
        cell = from_file(node, file, index)
        if opening := docstring(cell):
            cell = replace(cell, text=cell.source.removeprefix(opening))
            if not cell.text:
                continue
        if name and name not in definitions(cell):
            continue
        if cell.kind == "code" and (found := trainer_imports(cell.source, cell.origin, module)):
            raise SyncError(
                f"{cell.origin} imports from this project ({', '.join(sorted(found))}), but a "
                f"notebook can't: in Colab the project isn't installed. Move the import into a "
                f'cell marked # %% active="py".'
            )
        yield cell


def definitions(cell: Cell) -> set[str]:
    """The names that a code cell defines, without those that it imports."""
    bound = bindings(cell) if cell.kind == "code" else ()
    return {name for name, meaning in bound if meaning == cell.file}


def refuse_no_cell(root: Path, module: str, where: str, name: str) -> None:
    """Reject an include of one cell if no cell defines its name, or more than one does."""
    cells = list(module_cells(root, module))
    known = sorted(set[str]().union(*map(definitions, cells)))
    count = sum(name in definitions(cell) for cell in cells)
    if count != 1:
        found = f"{count} cells define that name" if count else "no cell defines that name"
        raise SyncError(
            f"{where} includes the cell of {module_file(module)} that defines {name!r}, but "
            f"{found}. Name a function, class or constant that only that cell defines."
            f"{nearest(name, known) if not count else ''}"
        )


def names_from(text: str, where: str, module: str) -> set[str]:
    """The names that ``text`` imports from one of the project's modules."""
    imports = (node for node in parse(text, where).body if isinstance(node, ast.ImportFrom))
    ours = (n for n in imports if (n.module or "").removeprefix("trainer_core.") == module)
    return {alias.name for node in ours for alias in node.names}


def refuse_missing(
    root: Path, module: str, where: str, present: set[str], defined: set[str]
) -> None:
    """Reject an include of a module that imports what the notebook lacks.

    The notebook has what it imports if it includes the other module (``present``), or if its
    cells define the same names (``defined``): live.py has a UserError of its own.
    """
    file, known = module_file(module), set(module_names(root))
    for node in read_cells(root, file):
        if node.metadata.get("active") == "py":
            for missing in sorted(trainer_imports(node.source, file, module) & known):
                names = names_from(node.source, file, missing)
                if missing not in present and not (names and names <= defined):
                    raise SyncError(
                        f"{where} includes {module!r}, which imports from {missing!r}, but the "
                        f"notebook doesn't include that module. Add "
                        f'# %% include="{missing}" to the source.'
                    )


def refuse_clashes(cells: Iterable[Cell], where: str) -> None:
    """All modules share one namespace in a notebook: a second definition hides the first."""
    seen: dict[str, tuple[str, str]] = {}
    for cell in cells:
        defines = cell.kind == "code" and cell.role not in ("drill", "string")
        if defines and cell.file.startswith(PACKAGES):
            for name, meaning in bindings(cell):
                earlier, file = seen.setdefault(name, (meaning, cell.file))
                if earlier != meaning and file != cell.file and not name.startswith("__"):
                    raise SyncError(
                        f"{file} and {cell.file} both define {name!r}, and {where} includes "
                        f"both, so the second would hide the first. Rename one of them."
                    )


def refuse_untypeable(
    root: Path, module: str, where: str, name: str, typed: Sequence[str]
) -> None:
    """Reject a name marked as typed that has no body to type."""
    cells = module_cells(root, module, name) if typed else []
    code = [cell for cell in cells if cell.kind == "code"]
    known = {body.name for cell in code for body in bodies(cell.text)}
    for entry in typed:
        if not any(is_among(body, [entry]) for body in known):
            raise SyncError(
                f"{where} marks {entry!r} as typed, but {f'the cell {name!r} of ' * bool(name)}"
                f"{module_file(module)} has no such function or class with something to type."
                f"{nearest(entry, known)}"
            )


def is_header(node: Any) -> bool:
    """Whether a cell is a file header: nothing but comments, one of which names variants."""
    lines = node.source.splitlines()
    comments = node.cell_type == "code" and all(line.startswith("#") for line in lines)
    return comments and VARIANTS_LINE.search(node.source) is not None


def variants_of(cells: list[Any], file: str) -> list[str]:
    """The variants a source asks for; "" stands for the plain notebook."""
    asked = [""]
    for index, node in enumerate(cells):
        if found := VARIANTS_LINE.search(node.source):
            if index or not is_header(node):
                raise SyncError(
                    f"{file}#{index} contains {found[0]!r}, which only works in a first cell "
                    f"with nothing but comments. Move it there."
                )
            asked += [variant.strip() for variant in found[1].split(",")]
    for variant in asked:
        if variant not in ("", *VARIANTS):
            raise SyncError(
                f"{file} asks for the variant {variant!r}; the variants are "
                f"{' and '.join(VARIANTS)}.{nearest(variant, VARIANTS)}"
            )
    return asked


def refuse_meaningless(node: Any, where: str) -> None:
    """Reject the values of directives that would be ignored."""
    only, shown = str(node.metadata.get("only", "")).split(), node.metadata.get("shown", "text")
    for variant in only:
        if variant not in ("full", *VARIANTS):
            raise SyncError(
                f'{where} is marked only="{variant}". Use full for the notebook itself, or '
                f"{' or '.join(VARIANTS)}.{nearest(variant, ('full', *VARIANTS))}"
            )
    if shown not in ("text", "blank"):
        raise SyncError(
            f'{where} is marked shown="{shown}". Use shown="text" or shown="blank".'
        )
    for key in ("cell", "shown", "string", "typed"):
        if key in node.metadata and "include" not in node.metadata:
            raise SyncError(
                f'{where} is marked {key}=..., which only works next to include="...". Add '
                f"the module that it is about."
            )


def is_only_text(node: Any) -> bool:
    """Whether an include brings a module's text and doesn't define what is in it."""
    return node.metadata.get("shown") == "text" or "string" in node.metadata


def included(root: Path, nodes: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """What a source includes: modules, and the name that picks one of a module's cells."""
    for node in nodes:
        if not is_only_text(node) and (module := node.metadata.get("include")):
            yield module, node.metadata.get("cell", "")


def compose_one(root: Path, file: str, variant: str, name: str) -> list[Cell]:
    """The cells of the notebook ``name``, a variant of the source ``file``."""
    derived: list[Cell] = []
    nodes, known = read_cells(root, file), module_names(root)
    # Includes further down count too: a function may call what a later cell defines, as
    # train_step does (cell 7 has its timers). Running the notebook catches what is left.
    present: set[str] = {module for module, one in included(root, nodes) if not one}
    defined: set[str] = set()
    for module, one in included(root, nodes):
        if module in known:
            defined = defined.union(*map(definitions, module_cells(root, module, one)))
    for index, node in enumerate(nodes):
        where, module = f"{file}#{index}", node.metadata.get("include")
        only = node.metadata.get("only")
        refuse_meaningless(node, where)
        if node.metadata.get("active") == "py" or (index == 0 and is_header(node)):
            continue
        if only is not None and (variant or "full") not in only.split():
            continue
        if kind := node.metadata.get("drills"):
            if kind not in KINDS:
                raise SyncError(
                    f"{where} asks for drills of kind {kind!r}, but the kinds are "
                    f"{', '.join(KINDS)}.{nearest(kind, KINDS)}"
                )
            for drill in drills_of(root, kind):
                derived += drill_cells(root, drill, "##", is_timed=False)
            continue
        if module is None:
            cell = own_cell(root, name, file, index, node)
            # A variant's demos fail until what they call is typed. Its own cells (the checks)
            # don't: what stops one of them, such as Ctrl-C, stops the run.
            is_demo = cell.kind == "code" and only is None
            if is_demo and any(earlier.role == "blank" for earlier in derived) and variant:
                cell = may_fail(cell)
            derived.append(cell)
            if cell.kind == "code":
                present |= trainer_imports(node.source, where)
            continue
        if module not in known:
            raise SyncError(
                f"{where} includes {module!r}, but no such module exists."
                f"{nearest(module, known)}"
            )
        if node.source.strip():
            raise SyncError(
                f"{where} includes {module!r}, and the cell also has text. Remove one of them."
            )
        if one := node.metadata.get("cell", ""):
            refuse_no_cell(root, module, where, one)
        derived += include(root, node, where, variant, derived)
        if not is_only_text(node):
            refuse_missing(root, module, where, present, defined)
    refuse_clashes(derived, file)
    return derived


def include(
    root: Path, node: Any, where: str, variant: str, derived: Sequence[Cell]
) -> list[Cell]:
    """The cells that an include stands for; they come after those of ``derived``."""
    module, one, typed = node.metadata["include"], node.metadata.get("cell"), typed_names(node)
    one, shown = one or "", node.metadata.get("shown")
    refuse_untypeable(root, module, where, one, typed)
    cells = list(module_cells(root, module, one))
    if variable := node.metadata.get("string"):
        return [as_string(cells, variable)]
    if shown == "text":
        code = [cell for cell in cells if cell.kind == "code"]
        return [as_text(cell, f"{cell.file}, {one or f'cell {cell.index}'}") for cell in code]
    texts = ("text", "string")
    twice = {
        (cell.file, index)
        for cell in derived
        if cell.role not in texts
        for index in (cell.index, *cell.joined)
    }
    added: list[Cell] = []
    for cell in cells:
        if (cell.file, cell.index) in twice:
            raise SyncError(
                f"{where} includes {module!r}, and so does another cell. Remove one of them."
            )
        code = [earlier for earlier in (*derived, *added) if earlier.kind == "code"]
        if cell.text == FUTURE and any(FUTURE in earlier.text for earlier in code):
            continue  # the notebook's process remembers it for later cells
        if node.metadata.get("collapsed"):
            added.append(cell)
        else:
            added += vary(cell, "blank" if shown == "blank" else variant, typed)
    if node.metadata.get("collapsed"):
        code = [cell for cell in added if cell.kind == "code"]
        return [cell for cell in added if cell.kind != "code"] + [as_one(code)] * bool(code)
    return added


def compose(root: Path) -> dict[str, list[Cell]]:
    """Every notebook the sources ask for: file name -> cells.

    Raises:
        SyncError: for a directive, include or name that can't be what its author meant.
    """
    derived: dict[str, list[Cell]] = {}
    sources = [
        (folder, path)
        for folder in SOURCE_FOLDERS
        for path in sorted((root / "notebooks/src" / folder).glob("*.py"))
    ]
    if not sources:
        raise SyncError(f"{root}/notebooks/src has no .py file to derive a notebook from.")
    for folder, path in sources:
        file = path.relative_to(root).as_posix()
        for variant in variants_of(read_cells(root, file), file):
            name = folder + path.stem + f"_{variant}" * bool(variant) + ".ipynb"
            if name in derived:
                raise SyncError(f"{file} and another source both produce {name}. Rename one.")
            derived[name] = compose_one(root, file, variant, name)
    return derived | compose_drills(root)


# Notebooks on disk --------------------------------------------------------------------------


def load(path: Path) -> dict[str, Any]:
    """A notebook as JSON, with each cell's source as one string."""
    try:
        notebook: dict[str, Any] = json.loads(path.read_bytes())
        for cell in notebook["cells"]:
            cell["source"] = "".join(cell["source"])
            cell.setdefault("metadata", {})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SyncError(
            f"{path} can't be read as a notebook ({error!r}). If a merge left conflict markers "
            f"in it, delete it and run: scripts/sync_notebooks.py build"
        ) from error
    return notebook


def dump(notebook: dict[str, Any]) -> str:
    """The same bytes that Jupyter writes, so that saving there makes no diff."""
    return json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def as_notebook(name: str, cells: list[Cell]) -> dict[str, Any]:
    # The demos in a variant fail until the learner has typed what they call.
    is_variant = name.endswith(tuple(f"_{variant}.ipynb" for variant in VARIANTS))
    allowed = {"execution": {"allow_errors": True}} if is_variant else {}
    content = {"cells": [c.as_json() for c in cells], "metadata": {**KERNEL, **allowed}}
    return content | {"nbformat": 4, "nbformat_minor": 5}


def has_outputs(path: Path) -> bool:
    """Whether a notebook's cells carry outputs or execution counts."""
    cells = load(path)["cells"]
    return any(bool(c.get("outputs") or c.get("execution_count")) for c in cells)


def written(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """A notebook's cells, without the empty one Jupyter appends after running the last."""
    return [c for c in notebook["cells"] if c["source"].strip() or "origin" in c["metadata"]]


def is_edited(cell: dict[str, Any]) -> bool:
    """Whether a cell of a notebook on disk differs from what was built."""
    built: str | None = cell["metadata"].get("origin_hash")
    return digest(cell["cell_type"], cell["source"]) != built


def build(root: Path, *, overwrite: bool = False) -> list[Path]:
    """Write every derived file; returns the paths of those that changed.

    Raises:
        SyncError: if that would lose an edit made in a notebook, unless ``overwrite``.
    """
    changed = []
    for file, text in compose_files(root).items():
        path = root / file
        if not path.exists() or path.read_bytes() != text.encode():
            changed.append((path, text))
    for name, cells in compose(root).items():
        path, text = root / "notebooks" / name, dump(as_notebook(name, cells))
        if path.exists() and path.read_bytes() == text.encode():
            continue
        changed.append((path, text))
        if path.exists() and not overwrite:
            kept = {digest(cell.kind, cell.text) for cell in cells}
            for number, cell in enumerate(written(load(path)), 1):
                if is_edited(cell) and digest(cell["cell_type"], cell["source"]) not in kept:
                    raise SyncError(
                        f"Cell {number} of notebooks/{name} was edited in the notebook, and a "
                        f"build would lose the edit. Nothing was written. Run push {name} to "
                        f"keep it, or build --overwrite to drop it."
                    )
    for path, text in changed:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8", newline="\n")
    return [path for path, _ in changed]


def check(root: Path) -> list[str]:
    """Differences between the derived files and their sources; outputs don't count."""

    def lines(notebook: dict[str, Any]) -> Iterator[str]:
        yield f"metadata {notebook.get('metadata', {}).get('execution')}"
        for cell in written(notebook):
            origin, tags = (cell["metadata"].get(key) for key in ("origin", "tags"))
            edited = " edited in the notebook" if is_edited(cell) else ""
            yield f"# %% {cell['cell_type']} {origin} tags={tags}{edited}"
            yield from cell["source"].split("\n")

    problems, composed = [], compose(root)
    for file, text in compose_files(root).items():
        found = read_text(root, file) if (root / file).exists() else ""
        sides = found.split("\n"), text.split("\n")
        diff = difflib.unified_diff(*sides, file, "trainer_core", lineterm="")
        problems += ["\n".join(diff)] if found != text else []
    for name, cells in composed.items():
        path, wanted = root / "notebooks" / name, as_notebook(name, cells)
        if not path.exists():
            problems.append(f"notebooks/{name} is missing.")
            continue
        for cell in wanted["cells"]:
            cell["source"] = "".join(cell["source"])
        sides = list(lines(load(path))), list(lines(wanted))
        diff = difflib.unified_diff(*sides, f"notebooks/{name}", "its sources", lineterm="")
        problems += ["\n".join(diff)] if sides[0] != sides[1] else []
    for folder in SOURCE_FOLDERS:
        for path in sorted((root / "notebooks" / folder).glob("*.ipynb")):
            name = folder + path.name
            if name not in composed:
                source = f"notebooks/src/{folder}".rstrip("/")
                problems.append(f"notebooks/{name} has no source in {source}.")
    for path in sorted((root / "notebooks/drills").glob("*.ipynb")):
        if f"drills/{path.name}" not in composed:
            problems.append(f"notebooks/drills/{path.name} has no drill in rehearsal/drills.")
    return problems


def refuse_moved(found: list[str | None], wanted: list[str], path: Path) -> None:
    """Reject cells that were added, removed or moved: they have no place in a source file."""
    if found == wanted:
        return
    new = [f"cell {n} is new" for n, origin in enumerate(found, 1) if origin not in wanted]
    twice = [f"{o} appears twice" for o in wanted if found.count(o) > 1]
    gone = [f"{o} is missing" for o in wanted if o not in found]
    what = "; ".join([*new, *twice, *gone] or ["the order changed"])
    raise SyncError(
        f"The cells of {path.name} don't match its sources ({what}), so its edits can't be "
        f"carried over. Nothing was written. Add, move and remove cells in the source files, "
        f"then build."
    )


def put(root: Path, file: str, edits: dict[int, str]) -> tuple[str, str]:
    """A file's text before and after applying ``edits`` to its cells; writes nothing."""

    def text_of(notebook: Any) -> str:
        text = str(jupytext.writes(notebook, fmt=FORMAT))
        return text if old.startswith("# %%") else text.removeprefix("# %%\n")

    old = read_text(root, file)
    notebook = jupytext.reads(old, fmt=FORMAT)
    if text_of(notebook) != old:
        raise SyncError(f"{file} would also change elsewhere. Run ruff format on it first.")
    for index, text in edits.items():
        notebook.cells[index].source = text
    new = text_of(notebook)
    again = [cell.source for cell in jupytext.reads(new, fmt=FORMAT).cells]
    if again != [cell.source for cell in notebook.cells]:
        raise SyncError(f"The edit would split a cell of {file}. Make it in that file.")
    parse(new, f"Nothing was written: with the edit, {file}")
    return old, new


def edited_text(root: Path, name: str, number: int, node: dict[str, Any], cell: Cell) -> str:
    """An edited cell's text as its source file has it; rejects an edit that can't go there.

    Args:
        name: of the notebook, as ``compose`` has it.
    """
    text = restore(root, name, cell, node["source"])
    built = node["metadata"].get("origin_hash")
    placeholder_lost = len(placeholders(text)) < len(placeholders(cell.source))
    reasons = [
        (cell.role == "blank", "is a blank, and a blank never overwrites its module"),
        (cell.role == "drill", "belongs to a drill, and push never overwrites a drill"),
        (cell.role == "collapsed", "has all code of a module, and push carries single cells"),
        (cell.role in ("text", "string"), "has code as text, and push carries code only"),
        (node["cell_type"] != cell.kind, "changed its type"),
        (built != digest(cell.kind, cell.text), "was edited, but its source changed as well"),
        (placeholder_lost, "lost a text that its source writes as {{...}}"),
        (
            restore(root, name, cell, cell.text) != cell.source,
            "has text that its source could write in two ways",
        ),
    ]
    for applies, reason in reasons:
        if applies:
            raise SyncError(
                f"Cell {number} of {name} {reason}. Nothing was written. Make the edit in "
                f"{cell.file}, cell {cell.index} (counting from 0), then run build --overwrite."
            )
    return text


def push(root: Path, notebook_path: Path) -> str:
    """Carry the edits made in a notebook back to their source files; returns the diff.

    Either all edits are written or none. Outputs stay in the notebook. Tags and other metadata
    aren't carried over: they live in the source files only.

    Raises:
        SyncError: if an edit has no place in a source file, or the file changed as well.
    """
    composed, name = compose(root), notebook_path.stem + ".ipynb"
    for folder in (*SOURCE_FOLDERS, "drills/"):
        name = folder + name if folder + name in composed else name
    if name not in composed:
        raise SyncError(f"No source produces {name}.{nearest(name, composed)}")
    # A path relative to the root wins over one relative to the current directory.
    candidates = (root / notebook_path, notebook_path, root / "notebooks" / name)
    path = next((path for path in candidates if path.is_file()), candidates[-1])
    notebook, cells = load(path), composed[name]
    nodes = written(notebook)
    refuse_moved([n["metadata"].get("origin") for n in nodes], [c.origin for c in cells], path)
    edits: dict[str, dict[int, str]] = {}
    for number, (node, cell) in enumerate(zip(nodes, cells, strict=True), 1):
        if is_edited(node) and (node["cell_type"], node["source"]) != (cell.kind, cell.text):
            text = edited_text(root, name, number, node, cell)
            edits.setdefault(cell.file, {})[cell.index] = text
            # The file now has this text, so a second push starts from here.
            node["metadata"]["origin_hash"] = digest(node["cell_type"], node["source"])
    changes = {file: put(root, file, texts) for file, texts in edits.items()}
    diff: list[str] = []
    for file, (old, new) in changes.items():
        (root / file).write_text(new, "utf-8", newline="\n")
        sides = old.splitlines(keepends=True), new.splitlines(keepends=True)
        diff += difflib.unified_diff(*sides, file, file)
    if changes:
        for node in notebook["cells"]:
            node["source"] = node["source"].splitlines(keepends=True)
        path.write_text(dump(notebook), "utf-8", newline="\n")
    return "".join(diff)


def main(argv: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    """Returns 0; 1 if check found a difference; 2 for a mistake the user can fix."""
    parser = argparse.ArgumentParser(
        description="Derive notebooks/*.ipynb from their sources, and check that they match."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="write every derived file")
    building.add_argument(
        "--overwrite", action="store_true", help="drop edits made in the notebooks"
    )
    commands.add_parser("check", help="exit with 1 and a diff if a derived file is out of date")
    pushing = commands.add_parser(
        "push", help="carry a notebook's edits back to their source files"
    )
    pushing.add_argument("notebook", type=Path, help="a name such as 01_walkthrough, or a path")
    options = parser.parse_args(argv)
    try:
        if options.command == "build":
            changed = build(root, overwrite=options.overwrite)
            names = [path.relative_to(root).as_posix() for path in changed]
            print("\n".join(f"wrote {name}" for name in names) or "Nothing changed.")
        elif options.command == "push":
            diff = push(root, options.notebook)
            print(f"{diff}Now run build." if diff else "No cell was edited.")
        else:
            problems = check(root)
            print("\n".join(problems) or "All derived files match their sources.")
            if problems:
                print("To keep a notebook's edits, run push NOTEBOOK; otherwise run build.")
                return 1
    except SyncError as error:
        print(f"sync_notebooks: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
