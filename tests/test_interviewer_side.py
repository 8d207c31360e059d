"""The interviewer's side: read a recorded interview, mark it, compare with the evidence."""

from __future__ import annotations

import html
import io
import json
from pathlib import Path
from typing import Any

import pytest
from recorded_interviews import ended, keep, line, say

import rehearsal
from rehearsal import __main__ as command_line
from rehearsal.interviews.form import Interviewer
from rehearsal.interviews.form_compared import decision_of, mentions
from rehearsal.interviews.form_widgets import FormPanel
from rehearsal.interviews.recorded import SHIPPED, recorded
from rehearsal.interviews.replay import WIDE
from rehearsal.interviews.rubric import ROWS, RUBRIC
from rehearsal.interviews.scorecard import Evidence, percent_of
from rehearsal.interviews.shown import show_form
from rehearsal.interviews.store import BadInterview


def marked(name: str = "middling", mark: int = 3, **others: int) -> Interviewer:
    """A form with a mark in each row."""
    reading = rehearsal.interviewer(name)
    for row in RUBRIC:
        reading.mark(row.id, others.get(row.id, mark), because="it went like that")
    return reading


def forms(home: Path) -> dict[str, Any]:
    """The kept forms, by name."""
    found = sorted((home / "interview_forms").glob("*"))
    return {path.name: json.loads(path.read_text("utf-8")) for path in found}


class TestReading:
    @pytest.mark.parametrize("name", SHIPPED)
    def test_nothing_gives_the_marks_away(self, name: str) -> None:
        """Who has seen them marks what they have seen."""
        reading, card = rehearsal.interviewer(name), recorded(name).scorecard()
        shown = " ".join([reading.transcript, reading.form, repr(reading)])
        assert "of 100" not in shown
        assert "left alone" not in shown
        for row in card.rows:
            for one in row.evidence:
                if "(" not in one.what and "pass" not in one.what:  # no quote of theirs
                    assert one.what not in shown

    def test_steps_add_up_to_the_transcript(self) -> None:
        """A line that no step shows is evidence that nobody sees."""
        reading = rehearsal.interviewer("middling")
        steps = list(iter(reading.step, None))
        assert len(steps) > 20
        whole = reading.transcript.split("\n", 1)[1]
        assert "\n".join(map(str, steps)) == whole
        assert reading.step() is None

    def test_a_step_is_what_the_interviewer_says_and_what_follows(self) -> None:
        """Half an exchange can't be judged."""
        keep(
            "own",
            line(0, "prompt", "Build it."),
            say(10, "Sure."),
            line(20, "nudge", "Well?", rule="type"),
            say(30, "Yes."),
            ended(),
        )
        reading = rehearsal.interviewer("own")
        steps = [str(step) for step in iter(reading.step, None)]
        (second,) = [step for step in steps if "Well?" in step]
        assert "Yes." in second
        assert "Sure." not in second
        (sketch,) = [step for step in steps if "-- sketch --" in step]
        assert sketch.lstrip().startswith("2:13")

    def test_the_form_says_what_earns_each_row(self) -> None:
        """Otherwise one marks sympathy."""
        text = " ".join(rehearsal.interviewer("weak").form.split())
        for row in RUBRIC:
            assert f"{row.id} - {row.name}: {row.earns}" in text
        assert "1 no, 2 not yet, 3 yes, 4 strong yes" in text

    def test_the_form_breaks_between_words_and_is_no_wider_than_a_cell(self) -> None:
        """A notebook breaks a long line in the middle of a word."""
        reading = rehearsal.interviewer("weak")
        reading.mark("commits", 2, because="they said " + "we'll see " * 20)
        assert max(map(len, reading.form.splitlines())) <= WIDE
        rows = reading.form.split("\n\n", 1)[1].splitlines()
        begins = [line[:14].strip() for line in rows]
        assert [name for name in begins if name] == [row.id for row in RUBRIC]
        assert all(line.startswith(" " * 17) for line in rows if not line[:14].strip())

    def test_the_first_step_has_the_prompt(self) -> None:
        """The name of a part alone looks as if nothing had been said."""
        steps = list(iter(rehearsal.interviewer("weak").step, None))
        assert "-- clarify --" in steps[0]
        assert "interviewer" in steps[0]
        for step in steps:
            lines = [line for line in step.splitlines() if line]
            assert not all("  -- " in line for line in lines)

    def test_one_that_hasn_t_ended_is_refused_before_it_is_read(self) -> None:
        """After half an hour of reading it would be too late."""
        keep("open", say(60, "hi"))
        with pytest.raises(BadInterview, match="open hasn't ended"):
            rehearsal.interviewer("open")

    def test_an_own_session_works_by_any_prefix(self) -> None:
        """Reading oneself is the most useful of all."""
        keep("2026-01-02-seed5-1", say(60, "hi"), ended())
        assert rehearsal.interviewer("2026").name == "2026-01-02-seed5-1"


class TestMarking:
    @pytest.mark.parametrize(
        ("row", "mark", "says"),
        [
            ("comits", 3, "Did you mean commits"),
            ("names the tradeof", 3, "Did you mean tradeoffs"),
            ("c", 3, "no row 'c'"),
            ("", 3, "There are: understands"),
            (None, 3, "There are: understands"),
            ("commits", 5, "mark=5 for commits: must be 1, 2, 3, 4"),
            ("commits", 0, "mark=0"),
            ("commits", True, "mark=True"),
            ("commits", "3", "mark='3'"),
        ],
    )
    def test_another_row_or_mark_is_one_line_and_changes_nothing(
        self, row: Any, mark: Any, says: str
    ) -> None:
        """A typing error must not cost the rest of the form."""
        reading = rehearsal.interviewer("weak")
        reading.mark("commits", 2, because="it was late")
        before = str(reading.form)
        with pytest.raises(BadInterview, match=says) as refused:
            reading.mark(row, mark)
        assert "\n" not in str(refused.value)
        assert reading.form == before

    def test_a_prefix_will_do_and_a_second_mark_replaces_the_first(self) -> None:
        """People change their minds at the pushback."""
        reading = rehearsal.interviewer("weak")
        reading.mark("commi", 2)
        reading.mark("commits", 3, because="minute 9")
        assert "commits       3  " in reading.form
        assert "minute 9" in reading.form
        assert "commits" not in reading.unmarked

    def test_nothing_is_compared_before_every_row_has_a_mark(
        self, rehearsal_home: Path
    ) -> None:
        """Who has seen eight rows marks the ninth like them."""
        reading = rehearsal.interviewer("weak")
        for row in RUBRIC[1:]:
            reading.mark(row.id, 2)
        with pytest.raises(BadInterview, match="1 rows have no mark yet: understands"):
            reading.compare()
        assert forms(rehearsal_home) == {}

    def test_after_the_comparison_the_form_is_closed(self) -> None:
        """A mark made with the answer in view is no practice."""
        reading = marked()
        reading.compare()
        with pytest.raises(BadInterview, match="this form is closed"):
            reading.mark("commits", 4)


class TestComparison:
    def test_rows_have_both_marks_and_their_difference(self) -> None:
        """The row that one misjudges is the one to read about."""
        compared, card = marked(builds=4, risks=1).compare(), recorded("middling").scorecard()
        mine = {row.id: {"builds": 4, "risks": 1}.get(row.id, 3) for row in RUBRIC}
        assert compared.differences == {row: mine[row] - card.marks[row] for row in mine}
        text = str(compared)
        for row, difference in compared.differences.items():
            (shown,) = [
                each for each in text.splitlines() if each.startswith(ROWS[row].name + "  ")
            ]
            words = shown.removeprefix(ROWS[row].name).split()
            how = ["kinder"] if difference > 0 else ["harsher"] if difference < 0 else []
            difference_shown = f"{difference:+}" if difference else "0"
            assert words == [str(mine[row]), str(card.marks[row]), difference_shown, *how]

    def test_the_hire_is_decided_both_ways(self) -> None:
        """Marks that differ by one in three rows may still be the same decision."""
        kind, fair = str(marked("weak", 4).compare()), str(marked("strong", 4).compare())
        assert "Hire, by your marks: strong yes. By the evidence: no. That's another" in kind
        assert "By the evidence: strong yes. That's the same." in fair

    def test_a_wrong_core_is_no_hire(self) -> None:
        """Nobody is hired for talking about a trainer that doesn't work."""
        best = {row.id: 4 for row in RUBRIC}
        assert decision_of(best) == 4
        assert decision_of({**best, "builds": 1}) == 2
        assert decision_of({row.id: 1 for row in RUBRIC}) == 1
        assert decision_of({row.id: 3 for row in RUBRIC}) == 3

    def test_evidence_that_a_reason_mentions_has_a_star(self) -> None:
        """What one overlooked is what one learns."""
        reading = marked()
        reading.mark("understands", 3, because="asked about scale, and what fits")
        compared = reading.compare()
        (scale,) = [e for e in compared.card.rows[0].evidence if e.what == "asked about scale"]
        assert scale not in compared.missed("understands")
        assert f"* +  {scale.minute:.0f}:" not in str(compared)  # stamps, not minutes
        assert "  * +  0:40  asked about scale" in str(compared)
        assert len(compared.missed("builds")) == len(compared.card.rows[2].evidence)

    @pytest.mark.parametrize(
        ("because", "is_mentioned"),
        [
            ("at minute 12 they said so", True),
            ("12:30, the rename", True),
            ("publishing under temporary names", True),
            ("at minute 120", False),
            ("names", False),
            ("", False),
        ],
    )
    def test_a_minute_or_two_words_mention_a_piece_of_evidence(
        self, because: str, is_mentioned: bool
    ) -> None:
        """With one word, "rank" would mention everything."""
        one = Evidence(12.5, "A save is written under a temporary name and published", True)
        assert mentions(because, one) is is_mentioned

    def test_each_go_is_a_new_file(self, rehearsal_home: Path) -> None:
        """The first form is what one got better than."""
        first, second = marked(mark=2), marked(mark=4)
        first.compare()
        kept = forms(rehearsal_home)
        assert set(kept) == {"middling-1.json"}
        second.compare()
        second.compare()  # shows it again
        after = forms(rehearsal_home)
        assert set(after) == {"middling-1.json", "middling-2.json"}
        assert after["middling-1.json"] == kept["middling-1.json"]
        rows = after["middling-2.json"]["rows"]
        assert rows["builds"] == {"mark": 4, "because": "it went like that"}
        assert percent_of({row: found["mark"] for row, found in rows.items()}) == 100

    def test_a_home_that_can_t_be_written_loses_no_comparison(
        self, rehearsal_home: Path
    ) -> None:
        """Forty minutes of reading are worth more than a file."""
        (rehearsal_home / "interview_forms").write_text("not a folder")
        assert "The form couldn't be kept" in str(marked().compare())


class TestTheNotebook:
    def click(self, panel: FormPanel, name: str) -> None:
        panel.buttons[name].click()

    def told(self, panel: FormPanel) -> str:
        return html.unescape(panel._told.value)

    def test_exchanges_appear_as_they_are_asked_for(self) -> None:
        """Who sees the end first marks the end."""
        reading = rehearsal.interviewer("weak")
        panel, steps = FormPanel(reading), rehearsal.interviewer("weak")
        first, second = str(steps.step()), str(steps.step())
        assert html.escape(first) not in panel._read.value
        self.click(panel, "Next exchange")
        assert html.escape(first) in panel._read.value
        assert html.escape(second) not in panel._read.value
        self.click(panel, "All of it")
        assert html.escape(reading.transcript.split("\n", 1)[1]) in panel._read.value
        assert panel.buttons["Next exchange"].disabled

    def test_marks_and_reasons_reach_the_form_in_either_order(self) -> None:
        panel = FormPanel(reading := rehearsal.interviewer("weak"))
        panel.reasons["commits"].value = "no number, minute 9"
        assert reading.marks == {}
        assert self.told(panel) == "", "a reason without a mark isn't a mistake"
        panel.marks["commits"].value = 2
        panel.marks["costs"].value = 1
        panel.reasons["costs"].value = "nobody else came up"
        panel.marks["costs"].value = 3
        assert reading.marks == {
            "commits": (2, "no number, minute 9"),
            "costs": (3, "nobody else came up"),
        }

    def test_the_cell_run_again_shows_what_was_read_and_marked(self) -> None:
        """Half an hour of reading is in it."""
        panel = FormPanel(reading := rehearsal.interviewer("weak"))
        self.click(panel, "Next exchange")
        panel.marks["commits"].value = 2
        panel.reasons["commits"].value = "late"
        again = FormPanel(reading)
        assert again._read.value == panel._read.value
        assert (again.marks["commits"].value, again.reasons["commits"].value) == (2, "late")
        assert again.marks["costs"].value is None

    def test_an_incomplete_form_says_what_is_missing_and_shows_no_evidence(
        self, rehearsal_home: Path
    ) -> None:
        panel = FormPanel(rehearsal.interviewer("weak"))
        for row in RUBRIC[1:]:
            panel.marks[row.id].value = 2
        self.click(panel, "Compare")
        assert "1 rows have no mark yet: understands" in self.told(panel)
        assert panel._compared.value == ""
        assert forms(rehearsal_home) == {}
        panel.marks["understands"].value = 2
        assert self.told(panel) == ""

    def test_the_comparison_closes_the_form(self, rehearsal_home: Path) -> None:
        """A mark made with the answer in view is no practice."""
        panel = FormPanel(reading := marked("weak", 2))
        self.click(panel, "Compare")
        assert html.escape(str(reading.compare())) in panel._compared.value
        assert set(forms(rehearsal_home)) == {"weak-1.json"}
        fields = [*panel.marks.values(), *panel.reasons.values(), panel.buttons["Compare"]]
        assert all(field.disabled for field in fields)
        again = FormPanel(reading)
        assert again._compared.value == panel._compared.value

    def test_nothing_that_was_said_or_typed_is_markup(self) -> None:
        """A page that somebody shares must not run what was typed."""
        markup = "<img src=x onerror=alert(1)>"
        keep("own", line(0, "prompt", "Build it."), say(10, markup), ended())
        panel = FormPanel(reading := rehearsal.interviewer("own"))
        self.click(panel, "All of it")
        assert html.escape(markup) in panel._read.value
        for row in RUBRIC:
            reading.mark(row.id, 1, because=markup)
        panel = FormPanel(reading)
        self.click(panel, "Compare")
        shown = [panel._read, panel._told, panel._compared, panel._head]
        assert not any("<img" in field.value for field in shown)

    def test_without_a_front_end_it_is_text(self, capsys: pytest.CaptureFixture[str]) -> None:
        """In IPython at a terminal, nothing draws a button."""
        reading = rehearsal.interviewer("weak")
        show_form(reading)
        assert capsys.readouterr().out == f"{reading!r}\n"

    def test_a_cell_that_ends_with_it_shows_the_form(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shown: list[Any] = []
        monkeypatch.setattr("rehearsal.interviews.shown.has_front_end", lambda: True)
        monkeypatch.setattr("IPython.display.display", shown.append)
        show_form(rehearsal.interviewer("weak"))
        assert len(shown[0].children) > len(RUBRIC)


class TestTerminal:
    def play(self, typed: str, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        return command_line.main(["interviewer", *words])

    def test_it_shows_the_transcript_asks_row_by_row_and_compares(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        rehearsal_home: Path,
    ) -> None:
        """Everything is there without a notebook, too."""
        rows = "".join(f"{1 + n % 4}\nreason {n}\n" for n in range(len(RUBRIC)))
        assert self.play("\n\nall\n" + rows, monkeypatch, "strong") == 0
        shown = capsys.readouterr().out
        places = [
            shown.index("Build me a trainer that I can kill."),
            shown.index("Save time, I think"),
            *(shown.index(f"\n{row.name}. {row.earns}") for row in RUBRIC),
            shown.index("Hire, by your marks"),
        ]
        assert places == sorted(places)
        kept = forms(rehearsal_home)["strong-1.json"]["rows"]
        assert kept["commits"] == {"mark": 2, "because": "reason 1"}

    def test_something_else_than_a_mark_is_asked_for_again(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A slip of the finger isn't a verdict."""
        assert self.play("all\n9\nyes\n2\nbecause\n", monkeypatch, "weak") == 0
        assert capsys.readouterr().out.count("Type a number: 1 no") == 2

    def test_an_incomplete_form_is_not_kept(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        rehearsal_home: Path,
    ) -> None:
        """And it says so, with the rows that are missing."""
        assert self.play("all\n3\nfine\n", monkeypatch, "weak") == 0
        shown = capsys.readouterr().out
        assert "nothing was kept. Not marked: commits, builds" in shown
        assert "Hire" not in shown
        assert forms(rehearsal_home) == {}

    def test_an_unknown_name_is_one_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        """With the nearest."""
        assert command_line.main(["interviewer", "weka"]) == 2
        (shown,) = capsys.readouterr().err.splitlines()
        assert "Did you mean weak?" in shown
