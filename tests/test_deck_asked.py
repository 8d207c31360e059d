"""A card in a notebook, without a browser: where its links lead, and what it stores."""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import pytest

from rehearsal.deck import ask_widgets, places
from rehearsal.deck.asked import Asked
from rehearsal.deck.cards import CARDS, card_named, read_deck
from rehearsal.session.progress import progress
from scripts import sync_notebooks as sync

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
SHIPPED = read_deck([CARDS])
PLACES = sorted({place for card in SHIPPED for place in card.shown_in})
CARD = card_named("resume_is_correct")


def inside(widget: Any) -> Iterator[Any]:
    """A widget and all that it contains."""
    yield widget
    for child in getattr(widget, "children", ()):
        yield from inside(child)


class Shown:
    """A card as a notebook shows it, with what a person can do."""

    def __init__(self, asked: Asked) -> None:
        self.asked, self.widget = asked, ask_widgets.widget(asked)

    def of(self, kind: str) -> list[Any]:
        """All widgets of a kind."""
        return [each for each in inside(self.widget) if type(each).__name__ == kind]

    def click(self, text: str) -> None:
        """Press the button with this text."""
        (button,) = [each for each in self.of("Button") if each.description == text]
        button.click()

    @property
    def html(self) -> str:
        """All HTML that it has put into the page."""
        return "\n".join(each.value for each in self.of("HTML"))


def hrefs(text: str) -> list[str]:
    return [html.unescape(href) for href in re.findall(r'<a href="([^"]+)"', text)]


def anchors(notebook: Path) -> set[str]:
    """JupyterLab's names for the headings: their text as drawn, with dashes for spaces."""
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {heading.replace("`", "").replace(" ", "-") for heading in headings}


class TestShownIn:
    @pytest.mark.parametrize("folder", ["", "drills", "handbook"])
    def test_each_link_leads_to_its_heading(self, folder: str) -> None:
        """A learner who missed a point follows it. From a copy of a notebook, too."""
        for place in PLACES:
            address = places.address_from(NOTEBOOKS / folder, place)
            assert address is not None, place
            path, _, anchor = address.partition("#")
            target = NOTEBOOKS / folder / unquote(path)
            assert target.resolve() == ROOT / place.partition("#")[0]
            assert ("#" in place) == bool(anchor)
            assert not anchor or anchor.replace("%25", "%") in anchors(target)

    def test_a_card_s_links_are_those(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ask_widgets, "notebooks_folder", lambda: NOTEBOOKS / "drills")
        shown = Shown(Asked(CARD))
        shown.click("I said it: show the points")
        wanted = [places.address_from(NOTEBOOKS / "drills", place) for place in CARD.shown_in]
        assert hrefs(shown.html) == wanted
        quoted = places.links([("a#b", 'a#"b"')])
        assert hrefs(quoted) == ['a#"b"']
        assert wanted[0] == "../handbook/13_checkpointing.ipynb"

    def test_on_colab_they_lead_to_the_repository(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """No notebook is a file there."""
        monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
        for place in PLACES:
            notebook = place.partition("#")[0].removeprefix("notebooks/")
            address = places.address_from(tmp_path, place)
            assert address == sync.addresses(ROOT, notebook)["{{colab}}"]
        repository = sync.addresses(ROOT, "")["{{repository}}"]
        page = places.address_from(tmp_path, "docs/deck.md#What the matcher knows")
        assert page == f"{repository.removesuffix('.git')}/blob/main/docs/deck.md"

    def test_a_place_that_is_not_there_is_named_without_a_link(self, tmp_path: Path) -> None:
        """A dead link looks like a mistake of the reader's."""
        place = "notebooks/handbook/13_checkpointing.ipynb#Resume <validation>"
        shown = places.links([(place, places.address_from(tmp_path, place))])
        assert shown == "13_checkpointing, Resume &lt;validation&gt;"

    def test_a_card_of_one_s_own_may_name_a_web_page(self, tmp_path: Path) -> None:
        page = 'https://example.org/a?b="c"&d'
        shown = places.links([(page, places.address_from(tmp_path, page))])
        assert 'href="https://example.org/a?b=&quot;c&quot;&amp;d"' in shown
        script = "javascript:alert(1)"
        assert "href" not in places.links([(script, places.address_from(tmp_path, script))])


class TestSpoken:
    def test_what_is_not_marked_was_not_missed(self) -> None:
        """The history said that every point of every spoken answer had been missed."""
        shown = Shown(Asked(CARD))
        shown.click("I said it: show the points")
        assert [field.value for field in shown.of("Dropdown")] == [None] * len(CARD.points)
        assert "Mark the points." in shown.html
        shown.click("good")
        assert progress().answers()[-1].points == {}

    def test_what_is_marked_is_stored(self) -> None:
        shown = Shown(Asked(CARD))
        shown.click("Judge it")  # with nothing typed, which is the same
        first, second, *_ = shown.of("Dropdown")
        first.value, second.value = "covered", "missed"
        assert "The points come to: again." in shown.html
        shown.click("hard")
        ids = [point.id for point in CARD.points]
        stored = progress().answers()[-1]
        assert (stored.grade, stored.text) == ("hard", "")
        assert stored.points == {ids[0]: "covered", ids[1]: "missed"}

    def test_an_answer_that_was_typed_is_judged_on_every_point(self) -> None:
        shown = Shown(Asked(CARD))
        (field,) = shown.of("Textarea")
        field.value = "I kill it"
        shown.click("Judge it")
        shown.click("again")
        assert set(progress().answers()[-1].points) == {point.id for point in CARD.points}
