"""Build the book: the executed chapters, the walkthrough and the drills' briefs, as HTML.

    python scripts/book.py              write build/book/index.html, and what it links to
    python scripts/book.py --clean      forget what was executed and built before

Called by ``make book``, which installs the tools. Two notebooks run at a time. What a notebook
printed is kept as long as neither its code nor the project's own modules change, so that a
build after an edit of the text takes seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
SOURCE, BOOK, EXECUTED = BUILD / "book-source", BUILD / "book", BUILD / "book-executed"
DOCS = ROOT / "docs/book"
NOTEBOOKS = ROOT / "notebooks"
TOOLS = {
    "sphinx": "sphinx",
    "myst_nb": "myst-nb",
    "sphinx_book_theme": "sphinx-book-theme",
    "jupyter_cache": "jupyter-cache",
    "latex2mathml": "latex2mathml",
}
# Pages with another name than their notebook.
RENAMED = {"01_walkthrough": "walkthrough", "23_last_hour": "last_hour"}
FIRST_OF_BIOTECH = "30"  # the chapters from this number on are a part of their own
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\]\([^)]*\))*\])\(([^)\s]+)\)")
BADGE = "[![Open in Colab]("


class BookError(Exception):
    """The book can't be built; the message says what to do."""


def refuse_missing_tools() -> None:
    """Name the tools that this environment lacks.

    Raises:
        BookError: if there are any.
    """
    missing = [
        package for module, package in TOOLS.items() if not importlib.util.find_spec(module)
    ]
    if missing:
        raise BookError(
            f"{', '.join(missing)} can't be imported, and the book is made with it. Run make "
            "book, which installs the extra called book, or: "
            "pip install -c constraints.txt -e '.[notebooks,book]'"
        )


# Sources ------------------------------------------------------------------------------------


def executed_notebooks() -> dict[str, Path]:
    """The notebooks that the book shows with their outputs: page name -> file."""
    chapters = sorted((NOTEBOOKS / "handbook").glob("*.ipynb"))
    paths = [*chapters, NOTEBOOKS / "01_walkthrough.ipynb"]
    return {RENAMED.get(path.stem, path.stem): path for path in paths}


def repository() -> str:
    """https://github.com/OWNER/NAME, for links to what is not in the book."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project["urls"]["Repository"])


def page_of(target: Path) -> str | None:
    """The book's source for a file of the project, relative to SOURCE; None without one."""
    if target.suffix == ".ipynb" and target.parent == NOTEBOOKS / "drills":
        return f"drills/{re.sub(r'^[0-9]+_', '', target.stem)}.md"
    for name, path in executed_notebooks().items():
        if path == target:
            return f"{name}.ipynb"
    return None


def rewrite_links(text: str, folder: Path) -> str:
    """Point the links of a notebook in ``folder`` to the book's pages, or to the repository."""

    def rewritten(match: re.Match[str]) -> str:
        words, address = match.groups()
        if address.startswith(("http", "#", "data:", "mailto:")):
            return match[0]
        place, mark, anchor = address.partition("#")
        target = Path(os.path.normpath(folder / place))
        if target.name == "colab-badge.svg":
            return f"{words}(_static/colab-badge.svg)"
        if page := page_of(target):
            return f"{words}({page}{mark}{anchor})"
        path = target.relative_to(ROOT).as_posix()
        return f"{words}({repository()}/blob/main/{path}{mark}{anchor})"

    # A badge is a picture in a link; its inner link has to be rewritten as well.
    inner = re.sub(
        r"\]\(((?:\.\./)+docs/colab-badge\.svg)\)", "](_static/colab-badge.svg)", text
    )
    return LINK.sub(rewritten, inner)


def as_page(path: Path) -> str:
    """A notebook as the book has it: the same cells, with links that work there."""
    notebook: dict[str, Any] = json.loads(path.read_text("utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            text = rewrite_links("".join(cell["source"]), path.parent)
            cell["source"] = text.splitlines(keepends=True)
    return json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def drill_pages() -> Iterator[tuple[str, str]]:
    """The briefs: the file of each page, and its text."""
    from rehearsal import drills
    from rehearsal.session.brief import brief_of

    rows = []
    for drill in drills():
        text = re.sub(r"^### ", "# ", brief_of(drill), count=1)
        notebook = (
            f"{repository()}/blob/main/notebooks/drills/{drill.order:03}_{drill.id}.ipynb"
        )
        yield f"drills/{drill.id}.md", f"{text}\n\n[The drill's notebook]({notebook})\n"
        rows.append(f"| [{drill.title}]({drill.id}.md) | {drill.kind} | {drill.minutes:g} |")
    names = "\n".join(drill.id for drill in drills())
    yield (
        "drills/index.md",
        "# The drills\n\nEach is a notebook: a brief, a blank, and a check on real ranks.\n\n"
        "| drill | kind | minutes |\n|---|---|---|\n" + "\n".join(rows) + "\n\n"
        f"```{{toctree}}\n:hidden:\n\n{names}\n```\n",
    )


def parts() -> dict[str, list[str]]:
    """The pages of the handbook's chapters, by the part of the book that they are in."""
    found: dict[str, list[str]] = {"The handbook": [], "Biotech": []}
    for name, path in executed_notebooks().items():
        if path.parent.name == "handbook":
            part = "Biotech" if path.stem >= FIRST_OF_BIOTECH else "The handbook"
            found[part].append(name)
    return {part: names for part, names in found.items() if names}


def front_page() -> str:
    """docs/book/index.md, with the map and the list of chapters."""
    contents = [
        f"```{{toctree}}\n:caption: {part}\n:hidden:\n\n{chr(10).join(names)}\n```"
        for part, names in parts().items()
    ]
    plan = rewrite_links((NOTEBOOKS / "src/shared/map.md").read_text("utf-8"), NOTEBOOKS)
    text = (DOCS / "index.md").read_text("utf-8")
    for placeholder, value in (
        ("{{map}}", plan.strip()),
        ("{{chapters}}", "\n\n".join(contents)),
        ("{{repository}}", repository()),
    ):
        text = text.replace(placeholder, value)
    return text


def write_sources() -> None:
    """Write what Sphinx reads. An unchanged file keeps its time, so it isn't read again."""
    files: dict[str, bytes] = {"index.md": front_page().encode()}
    files |= {
        f"{name}.ipynb": as_page(path).encode() for name, path in executed_notebooks().items()
    }
    files |= {name: text.encode() for name, text in drill_pages()}
    files |= {
        path.relative_to(DOCS).as_posix(): path.read_bytes()
        for path in DOCS.rglob("*")
        if path.is_file() and path.name != "index.md" and "__pycache__" not in path.parts
    }
    files["_static/colab-badge.svg"] = (ROOT / "docs/colab-badge.svg").read_bytes()
    for path in [path for path in SOURCE.rglob("*") if path.is_file()]:
        if path.relative_to(SOURCE).as_posix() not in files:
            path.unlink()
    for name, content in files.items():
        path = SOURCE / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


# Running and building -----------------------------------------------------------------------


def digest_of_modules() -> str:
    """A hash of what the notebooks import: their outputs are those of this version."""
    digest = hashlib.sha256()
    for package in ("trainer_core", "rehearsal"):
        for path in sorted((ROOT / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def execute(names: Mapping[str, Path], cache_folder: Path) -> None:
    """Run the notebooks whose outputs are not in the cache, two at a time.

    Raises:
        BookError: if a cell of one fails.
    """
    from jupyter_cache import get_cache
    from jupyter_cache.executors import load_executor

    cache = get_cache(cache_folder)
    for record in cache.list_project_records():
        cache.remove_nb_from_project(record.pk)
    for name in names:
        cache.add_nb_to_project(SOURCE / f"{name}.ipynb")
    executor = load_executor("local-parallel", cache)
    result = executor.run_and_cache(timeout=300)
    failed = [Path(path).stem for path in (*result.errored, *result.excepted)]
    if failed:
        reasons = [
            f"{Path(record.uri).stem}:\n{record.traceback}"
            for record in cache.list_project_records()
            if record.traceback
        ]
        raise BookError(
            f"A cell failed in {', '.join(failed)}, so the book would show half of it. Run the "
            "notebook in JupyterLab and fix the cell.\n" + "\n".join(reasons)
        )


def build() -> None:
    """Execute and render everything.

    Raises:
        BookError: if a notebook fails, or Sphinx warns.
    """
    write_sources()
    cache_folder = EXECUTED / digest_of_modules()
    for old in EXECUTED.glob("*") if EXECUTED.exists() else ():
        if old != cache_folder:
            shutil.rmtree(old)
    os.environ.update(FAST="1", OMP_NUM_THREADS="1")
    execute(executed_notebooks(), cache_folder)
    # Warnings are errors: a link that leads nowhere, a picture that isn't there.
    sphinx = [
        sys.executable,
        "-m",
        "sphinx",
        "-b",
        "html",
        "-W",
        "--keep-going",
        "-q",
        "-j",
        "2",
    ]
    options = [
        "-D",
        f"nb_execution_cache_path={cache_folder}",
        "-d",
        str(BUILD / "book-doctrees"),
    ]
    if subprocess.run([*sphinx, *options, str(SOURCE), str(BOOK)], cwd=ROOT).returncode:
        raise BookError("Sphinx warned; the lines above say where. Fix them and run it again.")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0, or 2 for what the author can fix."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--clean", action="store_true", help="start from scratch")
    options = parser.parse_args(argv)
    began = time.monotonic()
    try:
        refuse_missing_tools()
        if options.clean:
            for folder in (SOURCE, BOOK, EXECUTED, BUILD / "book-doctrees"):
                shutil.rmtree(folder, ignore_errors=True)
        build()
    except BookError as error:
        print(f"book: {error}", file=sys.stderr)
        return 2
    print(f"{BOOK.relative_to(ROOT)}/index.html, after {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
