"""Runs a chapter's code cells in this process, for tests of what the chapter shows."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import linecache
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from rehearsal.engine import server

HANDBOOK = Path(__file__).resolve().parents[1] / "notebooks/handbook"


def chapter_names() -> list[str]:
    """Every chapter, such as 12_data_correctness, in reading order."""
    return sorted(path.stem for path in HANDBOOK.glob("*.ipynb"))


@cache
def cells_of(chapter: str) -> tuple[tuple[str, str], ...]:
    """The kind and the text of each cell."""
    cells = json.loads((HANDBOOK / f"{chapter}.ipynb").read_text("utf-8"))["cells"]
    return tuple((cell["cell_type"], "".join(cell["source"])) for cell in cells)


def text_of(chapter: str) -> str:
    """The chapter's prose."""
    return "\n\n".join(text for kind, text in cells_of(chapter) if kind == "markdown")


def sections_of(chapter: str) -> dict[str, str]:
    """The prose below each heading of level 2, by its text."""
    parts = re.split(r"^## (.+)$", text_of(chapter), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@dataclass
class Chapter:
    """A chapter that has run."""

    names: dict[str, Any] = field(default_factory=dict)  # what its cells defined
    printed: str = ""
    shown: list[Any] = field(default_factory=list)  # the values of its cells, such as figures

    def __getattr__(self, name: str) -> Any:
        try:
            return self.names[name]
        except KeyError:
            raise AttributeError(f"no cell of the chapter defines {name!r}") from None


def run_chapter(chapter: str) -> Chapter:
    """Run its code cells from top to bottom, as a kernel would; figures are only drawn."""
    import matplotlib

    matplotlib.use("Agg")
    # Not an importable module: what its cells define travels to the ranks by value.
    ran = Chapter({"__name__": f"chapter_{chapter}"})
    out = io.StringIO()
    for number, (kind, text) in enumerate(cells_of(chapter)):
        if kind != "code":
            continue
        file = f"<{chapter}, cell {number}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        tree = ast.parse(text, file)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(out):
            exec(compile(tree, file, "exec", dont_inherit=True), ran.names)
            if isinstance(last, ast.Expr):
                whole = ast.Expression(last.value)
                value = eval(compile(whole, file, "eval", dont_inherit=True), ran.names)
                if hasattr(value, "savefig"):
                    value.savefig(io.BytesIO(), format="png")
                if value is not None:
                    ran.shown.append(value)
    ran.printed = out.getvalue()
    return ran


def end_servers() -> None:
    """After the last of several chapters: end the servers that forked their ranks.

    They have the trainer in them if a chapter asked for that; other tests expect none. Starting
    them takes seconds, so the next chapter uses those of the one before.
    """
    server._wanted.clear()
    server.shut_down()
