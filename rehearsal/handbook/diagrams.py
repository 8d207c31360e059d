"""The handbook's diagrams: drawn from a text source, shown in a notebook and in the book.

``diagrams/NAME.dot`` is the source, in Graphviz's language, and ``diagrams/NAME.svg`` is the
drawing. scripts/diagrams.py draws it, so that nobody who reads a notebook needs Graphviz.
"""

from __future__ import annotations

import difflib
from pathlib import Path

FOLDER = Path(__file__).parent / "diagrams"


def diagram_names() -> list[str]:
    """Every diagram's name, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.dot"))


def header_of(name: str) -> dict[str, str]:
    """What the comments at the top of a source say: its ``title`` and its ``alt`` text.

    A line ``// alt: ...`` starts an entry, and ``//   ...`` continues it.
    """
    entries: dict[str, str] = {}
    key = ""
    for line in (FOLDER / f"{name}.dot").read_text("utf-8").splitlines():
        if not line.startswith("//"):
            break
        text = line.removeprefix("//").strip()
        word, colon, rest = text.partition(": ")
        if colon and word in ("title", "alt"):
            key, text = word, rest
        if key:
            entries[key] = f"{entries.get(key, '')} {text}".strip()
    return entries


class Diagram:
    """A drawing with its text alternative. As the value of a cell, it is shown."""

    def __init__(self, name: str) -> None:
        header = header_of(name)
        self.name, self.title, self.alt = name, header["title"], header["alt"]
        self.svg = (FOLDER / f"{name}.svg").read_text("utf-8")

    def __repr__(self) -> str:
        return f"{self.title}. {self.alt}"

    def _repr_html_(self) -> str:
        return self.svg


def diagram(name: str) -> Diagram:
    """The diagram of that name, to be shown by a notebook's cell.

    Raises:
        ValueError: if there is none; the message has the nearest name.
    """
    if name not in diagram_names():
        near = difflib.get_close_matches(name, diagram_names(), n=1)
        hint = (
            f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(diagram_names())}."
        )
        raise ValueError(f"There is no diagram called {name!r}, so nothing is shown. {hint}")
    return Diagram(name)
