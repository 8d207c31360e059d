"""Draw the handbook's diagrams from their sources, in one style.

    build    write every drawing; needs pygraphviz, which make setup installs
    check    exit with 1 if a drawing is older than its source, or a source older than the code

A source is a file rehearsal/handbook/diagrams/NAME.dot, in Graphviz's language:

    // title: Process topology
    // alt: One sentence or more, for whoever can't see the drawing.
    digraph {
        rank0 [label="rank 0" plane="training"]
        rank0 -> rank1 [label="all-reduce"]
    }

``plane`` picks a node's color; a node's words must say the same, because a color alone doesn't
reach everyone. GENERATED lists the diagrams whose source is made from our code.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

from rehearsal.handbook.diagrams import FOLDER, diagram_names, header_of

ROOT = Path(__file__).resolve().parents[1]
INK, LINE = "#1A202C", "#4A5568"
# Tints of Okabe and Ito's colors; INK has a contrast of 11 or more on each.
PLANES = {
    "control": "#FFF3D6",
    "training": "#DCEBFA",
    "data": "#D9F2E6",
    "artifact": "#F6E3EE",
    "observability": "#E8E8EC",
    "fault": "#FBE0D3",
    "": "#FFFFFF",
}
FONT = "Helvetica,Arial,sans-serif"
STYLE = {
    "graph": {"bgcolor": "white", "pad": "0.25", "nodesep": "0.35", "ranksep": "0.5"},
    "node": {"shape": "box", "style": "rounded,filled", "margin": "0.18,0.1", "height": "0.45"},
    "edge": {"arrowsize": "0.8", "penwidth": "1.2"},
}
CELLS = "config data model distributed train checkpoint metrics launch".split()


class DiagramError(ValueError):
    """A mistake in a source that its author can fix."""


# Made from the code -------------------------------------------------------------------------


def imports_of_the_cells() -> str:
    """Which of the eight cells imports which, read from trainer_core."""
    found = {}
    for cell in CELLS:
        tree = ast.parse((ROOT / f"trainer_core/{cell}.py").read_text("utf-8"))
        modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        found[cell] = [other for other in CELLS if f"trainer_core.{other}" in modules]
    sentences = [f"{cell} imports {', '.join(of) or 'none'}" for cell, of in found.items()]
    nodes = [f'{cell} [label="{n} {cell}" plane="training"]' for n, cell in enumerate(CELLS, 1)]
    edges = [f"{cell} -> {other}" for cell, of in found.items() for other in of]
    head = [
        "// Made from trainer_core by scripts/diagrams.py.",
        "// title: Which cell imports which",
        f"// alt: Of the eight modules in reading order, {'; '.join(sentences)}.",
    ]
    body = [f"    {line}" for line in ("rankdir=BT", *nodes, *edges)]
    return "\n".join([*head, "digraph {", *body, "}", ""])


GENERATED: dict[str, Callable[[], str]] = {"cell_imports": imports_of_the_cells}

# Drawing ------------------------------------------------------------------------------------


def source_of(name: str) -> str:
    """The text of a diagram's source file."""
    return (FOLDER / f"{name}.dot").read_text("utf-8")


def digest(source: str) -> str:
    """What ties a drawing to its source and to this style."""
    style = repr((INK, LINE, PLANES, FONT, STYLE))
    return hashlib.sha256(f"{style}\n{source}".encode()).hexdigest()[:16]


def draw(name: str) -> str:
    """The drawing of a source, as SVG.

    Raises:
        DiagramError: if the source isn't valid, or lacks its title or text alternative.
    """
    import pygraphviz

    source, header = source_of(name), header_of(name)
    for entry in ("title", "alt"):
        if not header.get(entry):
            raise DiagramError(
                f"{name}.dot has no line '// {entry}: ...' at its top, and whoever can't see "
                "the drawing would have nothing. Add it."
            )
    try:
        graph = pygraphviz.AGraph(string=source)
    except pygraphviz.DotError as error:
        raise DiagramError(f"{name}.dot is not valid: {error}") from error
    words = {"fontname": FONT, "fontcolor": INK, "color": LINE}
    graph.graph_attr.update(
        {**STYLE["graph"], **words, "fontsize": "13", **own(graph.graph_attr)}
    )
    for kind, size in (("node", "13"), ("edge", "11")):
        attributes = getattr(graph, f"{kind}_attr")
        attributes.update({**STYLE[kind], **words, "fontsize": size, **own(attributes)})
    for node in graph.nodes():
        plane = node.attr["plane"] or ""
        if plane not in PLANES:
            known = ", ".join(filter(None, PLANES))
            raise DiagramError(f"{name}.dot: plane={plane!r} has no color. Use one of {known}.")
        node.attr["fillcolor"] = PLANES[plane]
    svg: str = graph.draw(format="svg", prog="dot").decode()
    return as_figure(svg, name, header["title"], header["alt"], digest(source))


def own(attributes: Mapping[str, str]) -> dict[str, str]:
    """What the source sets for all; "" is there for what it sets on one of them only."""
    return {key: value for key, value in attributes.items() if value}


def as_figure(svg: str, name: str, title: str, alt: str, made_from: str) -> str:
    """The drawing for a page that may have others: no ids, its text alternative in it."""
    found = re.search(r'<svg width="([\d.]+)pt".*?viewBox="([^"]+)"[^>]*>(.*)</svg>', svg, re.S)
    assert found, svg[:300]
    width, box, body = found.groups()
    body = re.sub(r"<!--.*?-->\n?|<title>.*?</title>\n?| id=\"[^\"]*\"", "", body, flags=re.S)
    # Points to pixels; no wider than the page, and never enlarged.
    size = f"width:100%;max-width:{float(width) * 4 / 3:.0f}px;height:auto"
    attributes = {
        "xmlns": "http://www.w3.org/2000/svg",
        "role": "img",
        "viewBox": box,
        "style": size,
        "aria-label": escape(f"{title}. {alt}"),
        "data-diagram": name,
        "data-source": made_from,
    }
    opening = " ".join(f'{key}="{value}"' for key, value in attributes.items())
    return f"<svg {opening}>{body}</svg>\n"


def build() -> list[Path]:
    """Write the generated sources and all drawings; returns the paths of those that changed."""
    changed = []
    for name, make in GENERATED.items():
        path = FOLDER / f"{name}.dot"
        if not path.exists() or path.read_text("utf-8") != make():
            path.write_text(make(), "utf-8")
            changed.append(path)
    for name in diagram_names():
        path = FOLDER / f"{name}.svg"
        # Only what is out of date: another machine's fonts would move every drawing a little.
        if (
            not path.exists()
            or f'data-source="{digest(source_of(name))}"' not in path.read_text()
        ):
            path.write_text(draw(name), "utf-8")
            changed.append(path)
    return changed


def check() -> list[str]:
    """What is out of date, as sentences."""
    problems = [
        f"{name}.dot is out of date: the code that it shows has changed."
        for name, make in GENERATED.items()
        if not (FOLDER / f"{name}.dot").exists() or source_of(name) != make()
    ]
    for name in diagram_names():
        path = FOLDER / f"{name}.svg"
        if not path.exists():
            problems.append(f"{name}.svg is missing.")
        elif f'data-source="{digest(source_of(name))}"' not in path.read_text("utf-8"):
            problems.append(f"{name}.svg was drawn from another version of {name}.dot.")
    drawn = {path.stem for path in FOLDER.glob("*.svg")}
    problems += [f"{name}.svg has no source." for name in sorted(drawn - {*diagram_names()})]
    return problems


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0; 1 if check found something; 2 for a mistake the author can fix."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("command", choices=("build", "check"))
    command = parser.parse_args(argv).command
    try:
        if command == "build":
            names = [path.relative_to(ROOT).as_posix() for path in build()]
            print("\n".join(f"wrote {name}" for name in names) or "Nothing changed.")
        elif problems := check():
            print("\n".join([*problems, "Run: python scripts/diagrams.py build"]))
            return 1
    except ModuleNotFoundError as error:
        print(
            f"diagrams: {error.name} is missing, which draws. Run make setup.", file=sys.stderr
        )
        return 2
    except DiagramError as error:
        print(f"diagrams: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
