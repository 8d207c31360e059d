"""An interview as one page: what it says, what it leaves alone, what it can't be made to do."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
from recorded_interviews import checked, ended, keep, line, say

import rehearsal
from rehearsal.interviews.export import TEMPLATE, page_of, write_page
from rehearsal.interviews.recorded import SHIPPED, Recorded, recorded
from rehearsal.interviews.rubric import ROWS
from rehearsal.interviews.scorecard import LONGEST_SILENCE
from rehearsal.interviews.store import BadInterview, folder_of_all
from rehearsal.interviews.timeline import LEFT, WIDTH, Timeline, timeline_of
from rehearsal.interviews.transcript import moments_of

NASTY = "</p><script>alert(1)</script>\"'><img src=x onerror=y>&amp; <b>"
VOID = {"meta", "link", "br", "img", "hr", "input", "line", "rect", "path", "circle"}


class Page(HTMLParser):
    """The elements of a page, with their attributes and their text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements = list[tuple[str, dict[str, str]]]()
        self.texts = list[str]()
        self.open = list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page(session: Recorded) -> Page:
    card = session.scorecard()
    text = page_of(card, session.events, session.cells, session.minutes, session.began)
    made = Page(text)
    assert made.open == []  # every element that opens closes
    return made


def timeline(session: Recorded) -> Timeline:
    return timeline_of(session.events, session.cells, session.minutes, session.spent)


def write(session: Recorded, path: Path) -> Path:
    return write_page(session.scorecard(), session.events, session.cells, 20, path)


@pytest.fixture
def short() -> Recorded:
    """A short session with everything that a person can type, as nasty as can be."""
    return keep(
        "evil-<i>",
        line(0, "prompt", "Build it."),
        say(30, f"I'd assume {NASTY}"),
        {"did": "type", "at": 200, "file": "001.py", "problem": ""},
        checked(200, "wrong", findings=[["code", f"found {NASTY}", "rule", "look"]]),
        line(300, "question", f"Why? {NASTY}", card="ddp_like_everyone", row="tradeoffs"),
        say(330, "Because the state fits on one device."),
        ended(),
        cells=(f"x = 1 < 2  # {NASTY}\n",),
    )


class TestContent:
    @pytest.mark.parametrize("name", SHIPPED)
    def test_it_has_every_row_its_evidence_and_the_whole_transcript(self, name: str) -> None:
        """A page without the evidence is a number that nobody can learn from."""
        session = recorded(name)
        text = " ".join(" ".join(page(session).texts).split())
        card = session.scorecard()
        for row in card.rows:
            assert ROWS[row.row].name in text
            for one in row.evidence:
                assert " ".join(one.what.split()) in text
        for item in card.next:
            assert item["do"] in text
        moments = moments_of(session.events, session.cells, session.minutes)
        assert all(" ".join(one.text.split()) in text for one in moments)
        assert f"{card.percent} of 100" in text
        assert "2026-01-01" in text
        assert "45 of 45 minutes" in text

    def test_evidence_leads_to_its_place_in_the_transcript(self) -> None:
        """Nobody scrolls through forty minutes to find minute 23."""
        session = recorded("middling")
        links = [attributes["href"].removeprefix("#t") for attributes in page(session).all("a")]
        moments = moments_of(session.events, session.cells, session.minutes)
        minutes = [one.minute for row in session.scorecard().rows for one in row.evidence]
        assert len(links) == len(minutes) > 20
        for link, minute in zip(links, minutes, strict=True):
            assert abs(moments[int(link)].seconds - 60 * minute) < 60

    def test_it_says_study_mode_and_hints(self) -> None:
        """A mark that a hint earned isn't the mark of an interview."""
        hints = [{"did": "hint", "at": 10.0 * n} for n in range(2)]
        session = keep("s", line(0, "prompt", "Build it."), *hints, ended(), mode="study")
        assert "study mode, 2 hints" in " ".join(page(session).texts)

    @pytest.mark.ranks
    def test_a_session_that_was_held_reads_back_and_exports(self, tmp_path: Path) -> None:
        """Its marks follow from its events; the job of its incident may be long gone."""
        now = [0.0]
        session = rehearsal.interview(15, seed=9, clock=lambda: now[0])
        while not session.is_over:
            while session.next() is not None and not session.is_over:
                if session.events[-1]["kind"] == "alert":
                    session.say("The network is slow.")
            now[0] += 60
        shutil.rmtree(folder_of_all() / session.name / "incident")
        again = recorded(session.name)
        assert again.scorecard() == session.scorecard()
        (debugs,) = [row for row in again.scorecard().rows if row.row == "debugs"]
        assert any("found the root cause" in one.what for one in debugs.evidence)
        written = session.export(tmp_path / "page.html")
        assert "found the root cause" in written.read_text("utf-8")


class TestSafety:
    def test_what_people_typed_stays_text(self, short: Recorded) -> None:
        """A page that somebody else opens must not run what a candidate typed."""
        made = page(short)
        tags = {tag for tag, _ in made.elements}
        assert not tags & {"script", "img", "b-", "iframe", "object", "i "}
        assert not [
            1 for _, attributes in made.elements for name in attributes if name[:2] == "on"
        ]
        text = " ".join(made.texts)
        assert text.count("<script>alert(1)</script>") >= 4  # said, typed, found, asked
        assert "evil-<i>" in text

    def test_it_needs_nothing_from_anywhere(self) -> None:
        """It gets mailed, and read on a train."""
        made = page(recorded("strong"))
        for _, attributes in made.elements:
            for name in ("src", "srcset", "data", "action"):
                assert name not in attributes
            assert attributes.get("href", "#").startswith("#")
        css = TEMPLATE.read_text("utf-8")
        assert "url(" not in re.sub(r"url\(#\w+\)", "", css)
        assert "@import" not in css
        (policy,) = [m["content"] for m in made.all("meta") if "http-equiv" in m]
        assert "default-src 'none'" in policy

    def test_half_a_character_doesn_t_lose_the_page(self, tmp_path: Path) -> None:
        """A paste from a broken terminal brings one, an hour before the export."""
        session = keep("s", say(1, "odd \ud800 one"), ended())
        written = write(session, tmp_path / "page.html")
        assert "odd ? one" in written.read_text("utf-8")

    @pytest.mark.parametrize(
        "kind", ["file", "link", "folder", "no parent", "a file as parent"]
    )
    def test_what_can_t_be_written_is_one_clear_line(self, kind: str, tmp_path: Path) -> None:
        """The page may be the second one of that name, and the first the one to keep."""
        session = keep("s", say(1, "hello"), ended())
        path, says = tmp_path / "page.html", "exists already"
        if kind == "file":
            path.write_text("mine")
        elif kind == "link":
            path.symlink_to(tmp_path / "gone.html")
        elif kind == "folder":
            path.mkdir()
            says = "is a folder"
        elif kind == "no parent":
            path, says = tmp_path / "no" / "page.html", "can't be written"
        else:
            (tmp_path / "plain").write_text("mine")
            path, says = tmp_path / "plain" / "page.html", "can't be written"
        before = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
        with pytest.raises(BadInterview, match=says) as refused:
            write(session, path)
        assert "\n" not in str(refused.value)
        assert {e: e.read_bytes() for e in tmp_path.rglob("*") if e.is_file()} == before

    def test_a_full_disk_leaves_no_half_page(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Half a page would then be in the way of the whole one."""
        session = keep("s", say(1, "hello"), ended())
        path = tmp_path / "page.html"
        opens = Path.open

        class Full:
            def __enter__(self) -> Full:
                return self

            def __exit__(self, *_: object) -> None: ...

            def write(self, _: bytes) -> None:
                raise OSError(28, "No space left on device")

        def full(self: Path, *arguments: str, **more: object) -> object:
            if self != path:
                return opens(self, *arguments, **more)  # type: ignore[arg-type, call-overload]
            path.touch(exist_ok=False)
            return Full()

        monkeypatch.setattr(Path, "open", full)
        with pytest.raises(BadInterview, match="No space left"):
            write(session, path)
        assert not path.exists()


def contrast(one: str, other: str) -> float:
    """Of two colors such as #ffffff, as WCAG computes it."""

    def light(color: str) -> float:
        parts = [int(color[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


class TestAccess:
    def test_it_has_landmarks_headings_and_table_headers(self) -> None:
        """Somebody who can't see it moves by them."""
        made = page(recorded("middling"))
        assert made.all("html") == [{"lang": "en"}]
        assert [len(made.all(tag)) for tag in ("header", "main", "footer", "h1")] == [1] * 4
        ids = {attributes["id"] for _, attributes in made.elements if "id" in attributes}
        assert all(section["aria-labelledby"] in ids for section in made.all("section"))
        assert {head["scope"] for head in made.all("th")} == {"col", "row"}
        assert len(made.all("caption")) == 1

    def test_the_picture_says_in_words_what_it_shows(self) -> None:
        """A picture without them is a hole in the page."""
        made = page(recorded("middling"))
        (svg,) = made.all("svg")
        ids = {
            attributes.get("id")
            for tag, attributes in made.elements
            if tag in ("title", "desc")
        }
        assert svg["role"] == "img"
        assert set(svg["aria-labelledby"].split()) <= ids
        alt = timeline(recorded("middling")).alt
        assert alt in made.texts
        assert "8 questions" in alt
        assert "an incident" in alt
        assert "the last with 5 stages passed" in alt

    def test_colors_have_contrast_in_light_and_dark(self) -> None:
        """Gray on gray is decoration, not text."""
        css = TEMPLATE.read_text("utf-8")
        light, dark = re.findall(r":root \{([^}]*--paper: #\w{6}[^}]*)\}", css)[:2]
        for block in (light, dark):
            colors = dict(re.findall(r"--(\w+): (#\w{6})", block))
            for name in ("ink", "soft", "green", "red", "link", "blue"):
                for ground in ("paper", "band"):
                    assert contrast(colors[name], colors[ground]) >= 4.5, (name, ground)


class TestTimeline:
    def test_bars_are_where_and_as_high_as_the_words(self) -> None:
        """A picture that is off by a minute is worse than none."""
        session = keep(
            "s", say(61, "one two three"), say(119, "four"), say(600, "one two"), ended()
        )
        first, second = timeline(session).words
        assert first.x == LEFT + WIDTH / 20
        assert second.x == LEFT + WIDTH / 2
        assert (first.label, second.label) == ("minute 1: 4 words", "minute 10: 2 words")
        assert second.height == first.height / 2

    def test_only_silences_that_cost_marks_are_shown(self) -> None:
        """Otherwise every typed cell looks like a fault."""
        short = 60 * LONGEST_SILENCE - 1
        said = [say(0, "a"), say(short, "b"), say(1190, "c")]
        (silence,) = timeline(keep("s", *said, ended())).silences
        assert silence.x == pytest.approx(LEFT + WIDTH * short / 1200, abs=0.1)
        assert silence.label == "14 min silent"

    def test_the_incident_lasts_from_the_alert_to_its_end(self) -> None:
        """It explains why nothing was typed then."""
        lines = [line(300, "alert", "Loss is NaN."), line(600, "incident over", "Noted.")]
        (one,) = timeline(keep("s", *lines, ended())).incident
        assert (one.x, one.width) == (LEFT + WIDTH / 4, WIDTH / 4)
        (rest,) = timeline(keep("t", lines[0], ended())).incident
        assert rest.width == WIDTH * 3 / 4

    def test_a_check_shows_its_stages_and_whether_something_is_wrong(self) -> None:
        """Red and green alone tell some people nothing."""
        checks = [
            checked(300),
            checked(600, "wrong", stages=["config", "data"]),
            checked(700, "not checked", stages=[]),
        ]
        shown = timeline(keep("s", *checks, ended())).checks
        assert [(one.kind, one.height) for one in shown] == [("right", 1), ("wrong", 2)]

    @pytest.mark.parametrize("events", [[], [say(0, "hello")], [ended(0)]])
    def test_an_empty_interview_has_a_picture(
        self, events: Sequence[dict[str, object]]
    ) -> None:
        """Somebody ends one by mistake and exports it."""
        of_nothing = [] if ended(0) in events else [ended()]
        assert page(keep("s", *events, *of_nothing)).all("svg")
