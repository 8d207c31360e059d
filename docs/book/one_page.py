"""handbook.html: all chapters on one page, for searching and for printing."""

import re
from pathlib import Path

from bs4 import BeautifulSoup

# What refers to the id of another element.
REFERENCES = ("for", "aria-labelledby", "aria-describedby", "aria-controls")
CHAPTER = re.compile(r"^\d\d_|^last_hour$")


def chapters(app):
    """The chapters' pages in the order of the table of contents."""
    order = [name for name in app.env.toctree_includes["index"] if CHAPTER.match(name)]
    return [name for name in order if (Path(app.outdir) / f"{name}.html").exists()]


def on_one_page(page, name, names):
    """A chapter's text; its anchors get its name, because others have the same ones."""
    article = BeautifulSoup(page, "html.parser").select_one("article.bd-article")
    for element in article.select("[id]"):
        element["id"] = f"{name}-{element['id']}"
    for attribute in REFERENCES:
        for element in article.select(f"[{attribute}]"):
            words = element[attribute].split()
            element[attribute] = " ".join(f"{name}-{word}" for word in words)
    for element in article.select("a[href]"):
        target, mark, anchor = element["href"].partition("#")
        other = target.removesuffix(".html")
        if mark and not target:
            element["href"] = f"#{name}-{anchor}"
        elif other in names:
            element["href"] = f"#{other}-{anchor}" if anchor else f"#{other}"
    return f'<section id="{name}">{article.decode_contents()}</section>'


def collect(app):
    names = chapters(app)
    parts = [
        on_one_page((Path(app.outdir) / f"{name}.html").read_text("utf-8"), name, set(names))
        for name in names
    ]
    title = "The whole handbook"
    yield (
        "handbook",
        {"title": title, "body": f"<h1>{title}</h1>" + "".join(parts)},
        "page.html",
    )


def setup(app):
    app.connect("html-collect-pages", collect)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
