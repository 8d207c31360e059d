"""What every chapter of the handbook has, and the diagrams that they show."""

from __future__ import annotations

import html
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from handbook_chapters import HANDBOOK, cells_of, chapter_names, sections_of, text_of

from rehearsal.deck.cards import CARDS
from rehearsal.handbook.diagrams import FOLDER, diagram, diagram_names, header_of
from scripts import diagrams

WORDS_PER_MINUTE = {"read": 230, "said": 150}
END = ["Say it in 60 seconds", "Three questions", "Practice it"]
# One page for the last hour, and two collections of questions aren't built like the others.
OTHER_SHAPE = {"22_hard_questions", "23_last_hour", "34_biotech_hard_questions"}
CHAPTERS = [name for name in chapter_names() if name not in OTHER_SHAPE]


def words(text: str) -> int:
    """The words of a markdown text, without the addresses of its links."""
    return len(re.sub(r"\]\([^)]*\)", "]", text).split())


def spoken(text: str) -> list[str]:
    """The passages to say: each block of lines that begin with >."""
    blocks = re.findall(r"(?:^>.*\n?)+", text, flags=re.MULTILINE)
    return [re.sub(r"^> ?", "", block, flags=re.MULTILINE).strip() for block in blocks]


@pytest.mark.parametrize("chapter", CHAPTERS)
class TestChapter:
    def test_it_opens_with_what_a_strong_candidate_says_first(self, chapter: str) -> None:
        kind, text = cells_of(chapter)[0]
        assert kind == "markdown"
        assert text.startswith(f"# {int(chapter[:2])}. ")
        [opening] = spoken(text)
        assert opening[0] == opening[-1] == '"'

    def test_it_has_one_title(self, chapter: str) -> None:
        """A doubled # turns a sentence into a title, in the largest type on the page."""
        assert len(re.findall(r"^# ", text_of(chapter), flags=re.MULTILINE)) == 1

    def test_it_takes_15_to_25_minutes_to_read(self, chapter: str) -> None:
        """Prose at 230 words a minute; a line of code that is shown takes two seconds."""
        prose = words(text_of(chapter)) / WORDS_PER_MINUTE["read"]
        shown = [
            line
            for kind, text in cells_of(chapter)
            if kind == "code" and not text.startswith("#@title")
            for line in text.splitlines()
            if line.strip()
        ]
        assert 12 <= prose + len(shown) / 30 <= 27, (prose, len(shown))

    def test_it_ends_with_a_summary_to_say_and_three_questions(self, chapter: str) -> None:
        sections = sections_of(chapter)
        assert list(sections)[-3:] == END
        [summary] = spoken(sections[END[0]])
        assert 100 <= words(summary) <= 1.1 * WORDS_PER_MINUTE["said"]
        questions = re.findall(r'^\*\*".+?"\*\*', sections[END[1]], flags=re.M | re.S)
        assert len(questions) == 3
        for start in ("- *Weak:*", "- *Strong:*", "- *What would prove me wrong:*"):
            assert sections[END[1]].count(start) == 3, start
        assert "(../drills/" in sections[END[2]]

    def test_it_names_the_cards_that_go_with_it(self, chapter: str) -> None:
        """Somebody who has just read it wants to be asked."""
        topics = re.findall(r'ask\(topic="(\w+)"\)', sections_of(chapter)["Practice it"])
        assert topics
        assert {*topics} <= {path.stem for path in CARDS.glob("*.toml")}

    def test_its_links_lead_somewhere(self, chapter: str) -> None:
        """A picture or a notebook that isn't there is found by the reader otherwise."""
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text_of(chapter)):
            if not target.startswith("http"):
                assert (HANDBOOK / target).exists(), target

    def test_code_that_is_shown_fits_on_the_page(self, chapter: str) -> None:
        for kind, text in cells_of(chapter):
            if kind == "code" and "#@title Setup" not in text:
                assert max(map(len, text.splitlines()), default=0) <= 96, text


@pytest.mark.parametrize("chapter", chapter_names())
def test_money_is_no_formula(chapter: str) -> None:
    """Two bare dollar signs set what is between them as mathematics, in one unbroken line."""
    assert re.findall(r"(?<!\\)\$\d.*", text_of(chapter)) == []


class TestDiagrams:
    def test_every_drawing_is_of_its_source(self) -> None:
        """A drawing of an older source says what is no longer so."""
        assert diagrams.check() == []

    @pytest.mark.parametrize("name", diagram_names())
    def test_every_word_of_the_source_is_in_the_drawing(self, name: str) -> None:
        source = (FOLDER / f"{name}.dot").read_text("utf-8")
        drawn = html.unescape(re.sub(r"<[^>]+>", " ", diagram(name).svg))
        for label in re.findall(r'label="([^"]*)"', source):
            for word in label.replace("\\n", " ").split():
                assert word in drawn, word

    @pytest.mark.parametrize("name", diagram_names())
    def test_the_text_alternative_says_more_than_the_title(self, name: str) -> None:
        header = header_of(name)
        assert words(header["alt"]) >= 12 > words(header["title"])
        assert header["alt"] in html.unescape(diagram(name).svg)

    def test_every_diagram_is_shown_in_a_chapter(self) -> None:
        code = "".join(
            text
            for chapter in chapter_names()
            for kind, text in cells_of(chapter)
            if kind == "code"
        )
        shown = set(re.findall(r'diagram\("(\w+)"\)', code))
        assert shown == {*diagram_names()}

    def test_an_unknown_name_gets_the_nearest(self) -> None:
        with pytest.raises(ValueError, match="Did you mean 'correctness_failures'"):
            diagram("correctness_failure")


def test_every_chapter_has_a_test_of_what_it_shows() -> None:
    """A picture that nobody checks shows whatever the code does by then."""
    for chapter in chapter_names():
        assert (Path(__file__).parent / f"test_handbook_{chapter}.py").exists(), chapter


@pytest.mark.ranks
def test_a_cell_that_is_run_too_early_says_which_cells_to_run_first() -> None:
    """A NameError alone looks like a mistake of the chapter's."""
    cells = ["from rehearsal.handbook.diagrams import diagram", "draw(two_runs)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    with pytest.raises(CellExecutionError) as caught:
        NotebookClient(notebook, kernel_name="python3").execute()
    said = re.sub(r"\x1b\[[\d;]*m", "", str(caught.value))
    assert "name 'draw' is not defined" in said
    assert "If draw is made in a cell further up" in said
