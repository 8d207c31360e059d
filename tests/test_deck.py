"""The deck: what its files must have, which card comes next, and what Anki gets."""

from __future__ import annotations

import errno
import io
import json
import re
import sqlite3
import time
import zipfile
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rehearsal.__main__ import main
from rehearsal.deck.anki import CannotExport, export
from rehearsal.deck.cards import (
    CARDS,
    BadDeck,
    Card,
    UnknownCard,
    card_named,
    cards,
    read_deck,
    read_topic,
    topic_named,
)
from rehearsal.deck.standings import card_standings, next_card, suggested_grade
from rehearsal.session.history import Answer
from rehearsal.session.progress import progress
from rehearsal.session.terminal import program
from scripts import sync_notebooks as sync

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = read_deck([CARDS])
DAY = 86400.0
CARD = "mine.toml: card 'why_did_you_leave'"
OWN = """
topic = "mine"
title = "My own questions"

[[card]]
id = "why_did_you_leave"
level = "senior"
question = "Why did you leave?"
weak = "The pay."
why_weak = "True, but it says nothing about you."
strong = "I wanted to own a trainer."
follow_up = "What did you own there?"
falsifier = "I'd have stayed for the same job."
shown_in = ["notebooks/handbook/10_interview_map.ipynb"]
point = [
  { id = "owns", text = "I wanted to own something.", says = [["own"]] },
  { id = "honest", text = "I don't blame anybody.", says = [["not .. blame"]] },
]
"""

FIELDS = "topic title card point id level question weak shown_in says denies text x".split()
CONTENTS = st.dictionaries(
    st.sampled_from(FIELDS),
    st.recursive(
        st.text(max_size=5) | st.integers() | st.floats() | st.booleans() | st.dates(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), inner, max_size=5)
        ),
        max_leaves=20,
    ),
)


@cache
def headings(notebook: str) -> frozenset[str]:
    cells = json.loads((ROOT / notebook).read_text("utf-8"))["cells"]
    text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return frozenset(re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE))


@pytest.fixture
def own(rehearsal_home: Path) -> Path:
    """A deck file of the learner's own."""
    path = rehearsal_home / "cards" / "mine.toml"
    path.parent.mkdir()
    path.write_text(OWN)
    return path


class TestShippedCards:
    def test_there_are_enough(self) -> None:
        assert len(SHIPPED) >= 160

    @pytest.mark.parametrize("card", SHIPPED, ids=lambda card: card.id)
    def test_what_demonstrates_it_exists(self, card: Card) -> None:
        """A learner who missed a point follows the link."""
        for place in card.shown_in:
            file, mark, heading = place.partition("#")
            assert (ROOT / file).is_file(), place
            if mark:
                assert heading in headings(file), place

    @pytest.mark.parametrize("card", SHIPPED, ids=lambda card: card.id)
    def test_it_can_be_said_in_a_minute(self, card: Card) -> None:
        """150 words a minute; a longer answer is a lecture."""
        assert 50 <= len(card.strong.split()) <= 140
        assert len(card.weak.split()) <= 50
        assert 3 <= len(card.points) <= 6
        assert all(len(point.text.split()) <= 22 for point in card.points)

    @pytest.mark.parametrize("card", SHIPPED, ids=lambda card: card.id)
    def test_each_point_can_be_covered(self, card: Card) -> None:
        """A point without claims counts as missed, whatever is said."""
        assert all(point.says for point in card.points)

    def test_no_two_cards_ask_the_same(self) -> None:
        questions = [card.question.lower() for card in SHIPPED]
        assert len({*questions}) == len(questions)


class TestOwnCards:
    def test_a_file_in_the_own_folder_adds_cards(self, own: Path) -> None:
        assert card_named("why_did_you_leave").topic == "mine"
        assert topic_named("mine") == "mine"
        assert len(cards()) == len(SHIPPED) + 1

    def test_an_edited_file_is_read_again(self, own: Path) -> None:
        """Somebody writes a card, looks at it, and changes a word."""
        assert card_named("why_did").question == "Why did you leave?"
        own.write_text(OWN.replace("Why did you leave?", "Why did you leave them?"))
        assert card_named("why_did").question == "Why did you leave them?"

    @pytest.mark.parametrize(
        ("old", "new", "says"),
        [
            ('weak = "The pay."\n', "", f"{CARD}: weak is missing. Every card needs one: add"),
            ('weak = "The', 'weak = 3 # "', f"{CARD}: weak is 3. It must be text in quotes"),
            ('"The pay."', '" "', f"{CARD}: weak is empty. It must have a text: write weak"),
            ("follow_up", "folow_up", f"{CARD}: a card has no field folow_up. Did you mean f"),
            ('text = "I don', 'txt = "I', "point 'honest': a point has no field txt. Did you"),
            ("level =", 'topic = "x"\nlevel =', "a card has no field topic. It has id, level"),
            ('id = "why_did_you_leave"\n', "", "card number 1: id is missing. Every card"),
            ('"why_did_you_leave"', '"Why?"', "underscores, beginning with a letter: for "),
            ('"Why did you', '["Why", "Why did', "unclosed array"),
            ('level = "senior"', 'level = "boss"', "must be 'senior' or 'staff': choose one."),
            ("[[card]]", "[card]", "It must be a list in brackets: write [[card]]."),
            ('title = "My own questions"', "", "mine.toml: title is missing. Every file n"),
            ('id = "owns", ', "", f"{CARD}, point number 1: id is missing. Every point needs"),
            ('"I wanted to own something."', '""', f"{CARD}, point 'owns': text is empty"),
            ('[["own"]]', '["own"]', f"{CARD}, point 'owns': says is \"own\". It must be a l"),
            (
                "= [[",
                "= [[], [",
                f"{CARD}, point 'owns': says is empty. A point needs at least 1",
            ),
            ('id = "honest"', 'id = "owns"', f"{CARD}: point: two points are called owns."),
            ('[["own"]]', '[["own | "]]', "says: the phrase '' has no word"),
            ('[["own"]]', '[["own .. "]]', "says: the phrase 'own ..' has no word, or begins"),
            ('[["own"]]', '[["@nosuch"]]', "@nosuch is not in synonyms.toml. Write the phr"),
            ('[["own"]]', '[["@mesure"]]', "@mesure is not in synonyms.toml. Use @measure,"),
            ("topic =", "topic", "expected '=' after a key in a key/value pair (at line 2, c"),
            ('"why_did_you_leave"', '"resume_is_correct"', "exists already, in"),
        ],
    )
    def test_a_file_that_cannot_be_used_says_which_where_and_what_to_do(
        self, own: Path, old: str, new: str, says: str
    ) -> None:
        """In the words of who writes a card, not of the library that checks it."""
        assert old in OWN
        own.write_text(OWN.replace(old, new, 1))
        with pytest.raises(BadDeck) as caught:
            cards()
        said = str(caught.value)
        assert says in said
        assert said.startswith(f"{own}: ")
        assert "\n" not in said
        assert said.count("card 'why") <= 1, "one mistake is one complaint"
        for theirs in ("input", "valid", "extra", "pattern", "tuple", "dictionary", "at least"):
            assert theirs not in said.replace("needs at least", ""), said

    @pytest.mark.parametrize(
        ("points", "says"),
        [
            ("", f"{CARD}: point is missing. Every card needs one: add [[card.point]]."),
            ("point = []", f"{CARD}: point is empty. A card needs at least 2: add"),
            ('point = [{id = "a", text = "b"}]', f"{CARD}: it has 1 point. A card needs at"),
            ("point = [3, 4]", f"{CARD}, point number 1: point is 3. It must be a table"),
        ],
    )
    def test_a_card_needs_two_points(self, own: Path, points: str, says: str) -> None:
        own.write_text(OWN.partition("point =")[0] + points)
        with pytest.raises(BadDeck) as caught:
            cards()
        assert says in str(caught.value)

    def test_a_card_that_was_only_begun_is_not_a_page_of_complaints(self, own: Path) -> None:
        own.write_text('topic = "mine"\ntitle = "Mine"\n[[card]]\nid = "a"\n')
        with pytest.raises(BadDeck, match=r"card 'a': level is missing.* And 6 more like") as e:
            cards()
        assert len(str(e.value)) < 400

    @given(CONTENTS)
    def test_whatever_is_in_a_file_is_one_line(self, content: dict[str, object]) -> None:
        """Never a traceback of ours."""
        read = patch("rehearsal.deck.cards.tomllib.loads", return_value=content)
        with read, pytest.raises(BadDeck) as caught:
            read_topic(Path(__file__))
        assert str(caught.value).startswith(f"{__file__}: ")
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 2000

    def test_an_editor_s_lock_file_is_none_of_them(self, own: Path) -> None:
        """Emacs leaves a dangling link while you edit."""
        (own.parent / ".#mine.toml").symlink_to("user@host.123:456")
        (own.parent / ".mine.toml").write_text("not TOML")
        assert card_named("why_did").topic == "mine"

    def test_a_file_that_is_not_text_says_so(self, own: Path) -> None:
        own.write_bytes(b"\xff\xfe")
        with pytest.raises(BadDeck, match=r"mine.toml: byte 1 isn't UTF-8. .* save it with"):
            cards()

    def test_a_file_that_may_not_be_read_says_so(
        self, own: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Tests run as root, whom no mode keeps out."""

        def refuses(path: Path, *arguments: object) -> str:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

        monkeypatch.setattr(Path, "read_text", refuses)
        with pytest.raises(BadDeck, match=r"mine.toml can't be read: Permission denied\.$"):
            read_deck([own.parent])


class TestNames:
    def test_a_prefix_will_do(self) -> None:
        assert card_named("resume_is_corr").id == "resume_is_correct"

    def test_an_unknown_card_names_the_nearest(self) -> None:
        with pytest.raises(UnknownCard, match="Did you mean resume_is_correct"):
            card_named("resume_was_correct")
        with pytest.raises(UnknownCard, match="There is no card ''"):
            card_named("")

    def test_a_number_is_no_card_and_no_topic(self) -> None:
        """Somebody asks for ten cards; a traceback would say nothing about that."""
        with pytest.raises(UnknownCard, match="There is no card '10'"):
            card_named(10)  # type: ignore[arg-type]
        with pytest.raises(UnknownCard, match="There is no topic '10'"):
            topic_named(10)  # type: ignore[arg-type]

    def test_an_unknown_topic_names_all(self) -> None:
        with pytest.raises(UnknownCard, match="The topics: architecture, "):
            topic_named("cooking")


def answer(card: Card, grade: str, at: float) -> Answer:
    return Answer(at, card.id, grade, {})  # type: ignore[arg-type]


class TestNextCard:
    def test_new_cards_come_in_the_order_of_the_deck(self) -> None:
        first = next_card(card_standings(SHIPPED, []), now=0.0)
        assert first is not None
        assert first.card is SHIPPED[0]

    def test_a_missed_card_is_due_tomorrow_and_before_any_new_one(self) -> None:
        history = [answer(SHIPPED[3], "again", at=0.0)]
        standings = card_standings(SHIPPED, history)
        now = next_card(standings, now=0.0)
        later = next_card(standings, now=2 * DAY)
        assert now is not None
        assert later is not None
        assert now.card is SHIPPED[0]
        assert later.card is SHIPPED[3]

    def test_the_longest_overdue_card_comes_first(self) -> None:
        history = [answer(SHIPPED[5], "again", at=0.0), answer(SHIPPED[2], "again", at=DAY)]
        found = next_card(card_standings(SHIPPED, history), now=5 * DAY)
        assert found is not None
        assert found.card is SHIPPED[5]

    def test_nothing_is_next_if_every_card_was_answered_well_today(self) -> None:
        history = [answer(card, "easy", at=0.0) for card in SHIPPED]
        assert next_card(card_standings(SHIPPED, history), now=1.0) is None

    @given(st.lists(st.sampled_from(["covered", "missed", "contradicted"]), min_size=1))
    def test_a_better_answer_never_gets_a_worse_grade(self, points: list[str]) -> None:
        order = ["again", "hard", "good", "easy"]
        before = order.index(suggested_grade(points))
        for n in range(len(points)):
            better = [*points[:n], "covered", *points[n + 1 :]]
            assert order.index(suggested_grade(better)) >= before


class TestAtATerminal:
    def typed(self, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        assert main(["ask", "resume_is_correct"]) == 0

    def test_an_answer_is_judged_corrected_and_graded(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """With an empty line in it, as pasted answers have."""
        self.typed(monkeypatch, "I kill it.\n\nWe save the optimizer.\n.\n1 covered\n\nhard\n")
        said = capsys.readouterr().out
        assert "[x] 2. The optimizer's moments" in said
        assert "[x] 1. Says first" in said
        assert "resume_is_correct: due in 1 day." in said
        (kept,) = progress().answers()
        assert kept.text == "I kill it.\n\nWe save the optimizer."
        assert kept.grade == "hard"
        assert kept.points["defines_correct"] == "covered"

    def test_the_end_of_the_input_accepts_what_is_suggested(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.typed(monkeypatch, "we save the optimizer")
        (kept,) = progress().answers()
        assert kept.grade == "again"

    def test_leaving_without_an_answer_records_nothing(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Ctrl-D means: not now."""
        self.typed(monkeypatch, "\n")
        assert "nothing was recorded" in capsys.readouterr().out
        assert progress().answers() == []

    def test_a_spoken_answer_is_stored_as_it_was_marked(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Points that nobody has marked were not missed."""
        self.typed(monkeypatch, ".\n\n\ngood\n")  # Enter alone is no grade here
        self.typed(monkeypatch, ".\n1 covered\n3 contradicted\n\ngood\n")
        said = capsys.readouterr().out
        assert "[?] 1. Says first" in said
        assert "[?] not marked" in said
        unmarked, marked = progress().answers()
        assert unmarked.points == {}
        ids = [point.id for point in card_named("resume_is_correct").points]
        assert marked.points == {ids[0]: "covered", ids[2]: "contradicted"}

    def test_the_end_of_the_input_suggests_nothing_about_a_spoken_answer(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It used to count as forgotten, and was due the next day."""
        self.typed(monkeypatch, ".\n\n\n")
        assert "nothing was recorded" in capsys.readouterr().out
        assert progress().answers() == []

    def test_advice_is_spelled_as_a_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        """ask(CARD) typed into a shell is a syntax error."""
        for card in SHIPPED:
            progress().add_answer(answer(card, "easy", at=time.time()))
        assert main(["ask"]) == 0
        assert f"{program()} ask CARD asks one" in capsys.readouterr().out
        assert main(["ask", "zzz"]) == 2
        assert f"{program()} ask shows" in capsys.readouterr().err

    def test_topics_have_titles(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """data_at_scale is a file's name."""
        main(["cards"])
        said = " ".join(capsys.readouterr().out.split())
        assert "architecture The shape of the system 17 " in said

    def test_what_only_some_interviews_ask_about_comes_last(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """By name, billion_molecules is the second topic."""
        main(["cards"])
        topics = [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]]
        last = ["molecules", "sequences", "structures", "billion_molecules", "wet_lab"]
        assert topics[0] == "interview"
        assert topics[-5:] == last
        monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
        main(["ask"])
        first = next(card for card in SHIPPED if card.topic == "interview")
        assert first.question[:40] in capsys.readouterr().out
        main(["cards", "recovery"])
        assert capsys.readouterr().out.startswith("Failures and recovery\n")
        self.typed(monkeypatch, "")
        head = "Failures and recovery, staff: resume_is_correct\n"
        assert capsys.readouterr().out.startswith(head)

    def test_an_unknown_card_is_one_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["ask", "resume_was_correct"]) == 2
        assert "Did you mean resume_is_correct" in capsys.readouterr().err


class TestAnki:
    def test_each_card_is_a_note_in_its_topics_deck(self, tmp_path: Path) -> None:
        path = tmp_path / "deck.apkg"
        export(SHIPPED, path)
        with zipfile.ZipFile(path) as packed:
            packed.extract("collection.anki2", tmp_path)
        connection = sqlite3.connect(tmp_path / "collection.anki2")
        notes = connection.execute("SELECT guid, flds, tags FROM notes").fetchall()
        decks = json.loads(connection.execute("SELECT decks FROM col").fetchone()[0])
        connection.close()
        assert {guid for guid, _, _ in notes} == {card.id for card in SHIPPED}
        names = {deck["name"] for deck in decks.values()}
        assert {f"Distributed training::{card.topic}" for card in SHIPPED} <= names
        card = SHIPPED[0]
        fields = next(fields for guid, fields, _ in notes if guid == card.id)
        assert fields.count("<li>") == len(card.points)
        for place in card.shown_in:
            notebook = place.partition("#")[0].removeprefix("notebooks/")
            address = sync.addresses(ROOT, notebook)["{{colab}}"]
            assert f'<a href="{address}"' in fields, "a phone has no notebooks"

    def test_an_existing_file_is_not_overwritten(self, tmp_path: Path) -> None:
        """It may be a collection."""
        path = tmp_path / "mine.apkg"
        path.write_text("mine")
        with pytest.raises(CannotExport, match="Choose another name"):
            export(SHIPPED, path)
        assert path.read_text() == "mine"

    def test_a_folder_that_is_missing_is_one_line(self, tmp_path: Path) -> None:
        with pytest.raises(CannotExport, match=r"can't be written: .*Choose another folder"):
            export(SHIPPED, tmp_path / "nowhere" / "deck.apkg")
