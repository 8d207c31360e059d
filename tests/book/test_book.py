"""The built book: its links, what it needs from the network, and how it looks to a browser.

Run by ``make book-check``, after ``make book``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "build/book"
if not (BOOK / "index.html").exists():
    pytest.skip("not checked: the book, because make book hasn't run", allow_module_level=True)

from axe_playwright_python.sync_playwright import Axe  # noqa: E402
from playwright.sync_api import Browser, Page, sync_playwright  # noqa: E402

from scripts.book import executed_notebooks, parts  # noqa: E402

# What Sphinx makes itself has no text of ours.
PAGES = sorted(
    path.relative_to(BOOK).as_posix()
    for path in BOOK.rglob("*.html")
    if "_static" not in path.parts  # the theme's templates
)
WRITTEN = [page for page in PAGES if page not in ("genindex.html", "search.html")]
# One of each kind; the whole handbook has every chapter.
SEEN = [
    "index.html",
    "handbook.html",
    "last_hour.html",
    "drills/index.html",
    "walkthrough.html",
]

# Axe needs a minute for their colors, which other pages have, too.
LONG = ["handbook.html", "walkthrough.html"]
# Milliseconds. The whole handbook renders for half a minute on a machine that is busy.
PATIENCE = 180_000


@cache
def parsed(page: str) -> BeautifulSoup:
    return BeautifulSoup((BOOK / page).read_text("utf-8"), "html.parser")


@cache
def anchors(page: str) -> frozenset[str]:
    return frozenset(element["id"] for element in parsed(page).select("[id]"))


def addresses(page: str) -> Iterator[str]:
    """Everything that the page links to or loads."""
    for element in parsed(page).select("[href], [src]"):
        yield element.get("href") or element["src"]


class TestLinks:
    @pytest.mark.parametrize("page", PAGES)
    def test_every_link_and_anchor_inside_the_book_leads_somewhere(self, page: str) -> None:
        broken = []
        for address in addresses(page):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (BOOK / page).parent / unquote(parts.path) if parts.path else BOOK / page
            target = target.resolve()
            if not target.exists():
                broken.append(address)
            elif parts.fragment and target.suffix == ".html":
                found = anchors(target.relative_to(BOOK).as_posix())
                broken += [address] * (unquote(parts.fragment) not in found)
        assert broken == []

    @pytest.mark.parametrize("page", WRITTEN)
    def test_an_anchor_exists_once(self, page: str) -> None:
        """Nearly every chapter on that page has a section called Three questions."""
        ids = [element["id"] for element in parsed(page).select("article [id]")]
        assert sorted(ids) == sorted({*ids})

    def test_the_whole_handbook_has_every_chapter(self) -> None:
        sections = {element["id"] for element in parsed("handbook.html").select("section[id]")}
        assert {*executed_notebooks()} - {"walkthrough"} <= sections

    def test_each_part_of_the_handbook_lists_its_chapters(self) -> None:
        """Somebody who talks to a bank shouldn't have to read about proteins to find out."""
        for part, names in parts().items():
            caption = parsed("index.html").find("p", string=part)
            assert caption is not None, part
            links = caption.find_next("ul").select("a[href]")
            assert [link["href"] for link in links] == [f"{name}.html" for name in names]

    def test_no_cell_shows_an_error(self) -> None:
        """The walkthrough shows some on purpose, as text; a traceback is a failed cell."""
        for page in WRITTEN:
            assert not parsed(page).select(".cell_output .output.traceback"), page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    names = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")
    found = [name for name in names if Path(name).exists()]
    if not found:
        pytest.skip("not checked: the book in a browser, because none is installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found[0], args=["--no-sandbox"])
        yield browser
        browser.close()


def a_page(browser: Browser, **options: Any) -> Page:
    page = browser.new_page(**options)
    page.set_default_timeout(PATIENCE)
    return page


@pytest.fixture(params=["light", "dark"])
def themed(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Page]:
    page = a_page(browser, color_scheme=request.param)
    yield page
    page.close()


class TestInABrowser:
    @pytest.mark.parametrize("name", SEEN)
    def test_it_needs_no_network(self, browser: Browser, name: str) -> None:
        page = a_page(browser)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((BOOK / name).as_uri())
        page.evaluate("document.fonts.ready")  # the last thing a page asks for
        local = ("file:", "data:")
        assert [address for address in asked if not address.startswith(local)] == []
        page.close()

    @pytest.mark.parametrize("name", WRITTEN)
    def test_it_passes_the_accessibility_checker(self, themed: Page, name: str) -> None:
        """Text alternatives, contrast, names of controls, the order of headings."""
        themed.goto((BOOK / name).as_uri())
        # Open what is folded, so that its colors count; at once, or axe sees half-faded ones.
        themed.add_style_tag(
            content="* { transition: none !important; animation: none !important }"
        )
        themed.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        rules = {"color-contrast": {"enabled": name not in LONG}}
        report = Axe().run(themed, context="article", options={"rules": rules})
        wrong = {
            violation["id"]: [node["html"][:200] for node in violation["nodes"]][:3]
            for violation in report.response["violations"]
        }
        assert wrong == {}

    @pytest.mark.parametrize("name", SEEN)
    def test_a_phone_need_not_scroll_sideways(self, browser: Browser, name: str) -> None:
        page = a_page(browser, viewport={"width": 390, "height": 844})
        page.goto((BOOK / name).as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.close()

    def test_search_finds_a_chapter(self, browser: Browser) -> None:
        page = a_page(browser)
        page.goto((BOOK / "search.html").as_uri() + "?q=set_epoch")
        page.wait_for_selector("#search-results a")
        assert "12_data_correctness" in page.inner_html("#search-results")
        page.close()

    def test_the_last_hour_prints_on_one_sheet(self, browser: Browser) -> None:
        page = a_page(browser)
        page.goto((BOOK / "last_hour.html").as_uri())
        for size in ("A4", "Letter"):
            pdf = page.pdf(format=size)
            assert len(re.findall(rb"/Type\s*/Page\b", pdf)) == 1, size
        page.close()
