"""The marks of a mock interview: what raises each one, and what lowers it."""

from __future__ import annotations

from typing import Any

import pytest

from rehearsal.deck.cards import card_named
from rehearsal.interviews.advice import advice
from rehearsal.interviews.heard import Heard
from rehearsal.interviews.interviewer import CLOSING
from rehearsal.interviews.rubric import ROWS, RUBRIC
from rehearsal.interviews.scorecard import (
    answers_row,
    builds,
    communicates,
    debugs,
    percent_of,
    scorecard_of,
    understands,
    volunteered,
)
from rehearsal.interviews.state import Asked, Said, State
from rehearsal.session.history import Found


CARD = card_named("torn_newest_file")
WRONG = "Weights and step are enough to continue."  # against a point of weights_and_step


def answered(card_id: str, text: str, row: str = "failures", minute: float = 20.0) -> Asked:
    """A question with an answer; without one if there is no text."""
    answers = [Said(minute + 1, text)] if text else []
    return Asked(card_named(card_id), row, minute, answers=answers)


def half_of(card_id: str) -> str:
    """The first half of a strong answer's sentences."""
    sentences = " ".join(card_named(card_id).strong.split()).split(". ")
    return ". ".join(sentences[: len(sentences) // 2])


def verdict(stages: list[str], status: str = "not_attempted", **more: Any) -> dict[str, Any]:
    """What an event keeps of a check."""
    found = {"did": "checked", "at": 1200.0, "file": "001.py", "drill": "live_trainer"}
    return {**found, "status": status, "stages": stages, "findings": [], **more}


class Judged(Asked):
    """A question whose answer has been judged."""

    def __init__(self, found: dict[str, Found]) -> None:
        super().__init__(
            card_named("weights_and_step"), "failures", 20.0, answers=[Said(21.0, "...")]
        )
        names = [point.id for point in self.card.points]
        self.found = dict(zip(names, found.values(), strict=True))

    @property
    def points(self) -> dict[str, tuple[Found, str, float]]:
        return {name: (what, "words", 21.0) for name, what in self.found.items()}


ALL = ["config", "data", "model", "who am I?", "training step", "checkpoint", "metrics"]
ALL += ["launch", "two ranks", "kill during a save", "a different number of ranks", "audit"]


class TestAnswers:
    def test_more_points_are_a_better_mark(self) -> None:
        marks = [
            answers_row("failures", State(asked=[answered(CARD.id, text)])).mark
            for text in ("", half_of(CARD.id), CARD.strong)
        ]
        assert marks == sorted(marks)
        assert marks[0] == 1
        assert marks[-1] == 4

    def test_no_answer_is_evidence(self) -> None:
        """Otherwise somebody who dodges a question loses nothing for it."""
        mark = answers_row("failures", State(asked=[answered(CARD.id, "")]))
        assert [one.what for one in mark.evidence] == [f'no answer to "{CARD.question}"']

    def test_a_dodged_question_is_quoted_as_it_was_asked(self) -> None:
        """It may name this interview's length, and the card another one."""
        asked = Asked(CARD, "failures", 20.0, "You have 20 minutes. What happens?")
        (evidence,) = answers_row("failures", State(asked=[asked])).evidence
        assert evidence.what == 'no answer to "You have 20 minutes. What happens?"'

    def test_a_second_question_without_an_answer_lowers_the_mark(self) -> None:
        both = [answered(CARD.id, CARD.strong), answered("weights_and_step", "")]
        assert answers_row("failures", State(asked=both)).mark < 4

    def test_being_wrong_is_worse_than_saying_less(self) -> None:
        three: dict[str, Found] = {"a": "covered", "b": "covered", "c": "covered"}
        less = Judged({**three, "d": "missed", "e": "missed"})
        wrong = Judged({**three, "d": "contradicted", "e": "missed"})
        assert answers_row("failures", State(asked=[less])).mark == 3
        mark = answers_row("failures", State(asked=[wrong]))
        assert mark.mark == 2
        assert any(one.what.startswith("against: ") for one in mark.evidence)

    def test_each_point_shows_the_words_that_decided(self) -> None:
        mark = answers_row("failures", State(asked=[answered(CARD.id, CARD.strong)]))
        assert all('("' in one.what for one in mark.evidence if one.helps)

    def test_what_is_said_unasked_counts(self) -> None:
        """It's the difference between a 3 and a 4."""
        text = half_of(CARD.id)
        after = State(asked=[answered(CARD.id, text)])
        before = State(asked=[answered(CARD.id, text)])
        before.says = [
            (minute, Heard("failures", "if rank 1 dies here")) for minute in (5.0, 9.0)
        ]
        assert answers_row("failures", before).mark >= answers_row("failures", after).mark
        assert len(list(volunteered("failures", before))) == 2
        only_said = State(says=[(5.0, Heard("risks", "the hole")), (6.0, Heard("risks", "it"))])
        assert answers_row("risks", only_said).mark == 2

    def test_what_is_said_after_the_question_is_not_unasked(self) -> None:
        state = State(asked=[answered(CARD.id, "")])
        state.says = [(25.0, Heard("failures", "if rank 1 dies here"))]
        assert list(volunteered("failures", state)) == []


class TestUnderstands:
    def state(self, *, topics: int, opening: bool, minute: float = 1.0) -> State:
        names = ["scale", "memory", "data", "failures"][:topics]
        said = [Said(minute, card_named("opening_minute").strong)] if opening else []
        return State(topics=dict.fromkeys(names, minute), said=said)

    def test_questions_and_an_opening_together_are_a_strong_yes(self) -> None:
        assert understands(self.state(topics=4, opening=True), 45).mark == 4

    @pytest.mark.parametrize(("topics", "opening"), [(4, False), (0, True)])
    def test_one_without_the_other_is_not_yet(self, topics: int, opening: bool) -> None:
        """Questions alone are an interrogation, and an opening alone a monologue."""
        assert understands(self.state(topics=topics, opening=opening), 45).mark == 2

    def test_questions_after_the_code_are_too_late(self) -> None:
        assert understands(self.state(topics=4, opening=True, minute=30.0), 45).mark == 1


class TestBuilds:
    def test_it_grows_with_the_stages(self) -> None:
        marks = [
            builds(State(checked=[verdict(ALL[:number])], typed_at=[1.0]), 45).mark
            for number in (0, 2, 5, 9, 12)
        ]
        assert marks == sorted(marks)
        assert (marks[0], marks[-1]) == (1, 4)

    def test_a_short_interview_expects_less(self) -> None:
        """Nobody types the whole trainer in fifteen minutes."""
        state = State(checked=[verdict(ALL[:3])], typed_at=[1.0])
        assert builds(state, 15).mark > builds(state, 60).mark

    def test_a_wrong_text_is_worse_than_an_unfinished_one(self) -> None:
        wrong = verdict(
            ALL[:7], "wrong", findings=[["off-plan", "2 samples twice", "once", "at"]]
        )
        unfinished = State(checked=[verdict(ALL[:7])], typed_at=[1.0])
        broken = State(checked=[wrong], typed_at=[1.0])
        assert builds(broken, 60).mark < builds(unfinished, 60).mark
        assert any("2 samples twice" in one.what for one in builds(broken, 60).evidence)

    def test_another_drill_counts_for_something(self) -> None:
        passed = verdict([], "passed", drill="resume_after_failure")
        assert builds(State(checked=[passed], typed_at=[1.0]), 30).mark >= 2

    def test_nothing_typed(self) -> None:
        mark = builds(State(), 45)
        assert (mark.mark, mark.evidence[0].what) == (1, "nothing was typed")


class TestDebugs:
    @staticmethod
    def rows(symptom: int, cause: int, chain: int) -> dict[str, tuple[int, str]]:
        return {
            "ignored the misleading symptom": (symptom, "why"),
            "found the root cause": (cause, "why"),
            "fixed the right layer": (0, "nothing was changed"),
            "told the whole chain": (chain, "why"),
        }

    def test_all_three_are_a_strong_yes_without_a_fix(self) -> None:
        """Nobody reruns a job in an interview."""
        assert debugs(State(incident_at=29.0), self.rows(2, 2, 2)).mark == 4

    def test_a_guess_without_a_look_is_at_most_not_yet(self) -> None:
        """A lucky guess isn't debugging."""
        assert debugs(State(incident_at=29.0), self.rows(2, 2, 0)).mark == 2

    def test_no_incident(self) -> None:
        assert debugs(State(ended=12.0), None).mark == 1


class TestCommunicates:
    @staticmethod
    def talker(every: float, until: float = 45.0) -> State:
        state, minute = State(ended=45.0), 0.0
        while minute < until:
            state.said.append(Said(minute, "Next I type the save."))
            state.says.append((minute, Heard("checks_in", "Next I")))
            minute += every
        return state

    def test_silence_lowers_it(self) -> None:
        steady, quiet = self.talker(3.0), self.talker(3.0, until=6.0)
        quiet.says = steady.says
        assert communicates(quiet, 45).mark < communicates(steady, 45).mark

    def test_the_longest_silence_is_shown(self) -> None:
        evidence = communicates(self.talker(3.0, until=10.0), 45).evidence
        assert "longest silence: 36 minutes" in [one.what for one in evidence]

    def test_a_question_without_an_answer_lowers_it(self) -> None:
        both, none = self.talker(3.0), self.talker(3.0)
        closing = card_named(CLOSING).strong
        both.asked = [answered(CLOSING, closing, "communicates", 43.0)]
        none.asked = [answered(CLOSING, "", "communicates", 43.0)]
        assert communicates(none, 45).mark < communicates(both, 45).mark

    def test_fluent_and_wrong_is_at_most_not_yet(self) -> None:
        """Confidence that misleads is not communication."""
        state = self.talker(3.0)
        state.asked = [answered("weights_and_step", WRONG)]
        assert communicates(state, 45).mark <= 2


class TestTheWhole:
    def test_the_weakest_are_the_lowest_marks(self) -> None:
        state = State(checked=[verdict(ALL)], typed_at=[1.0], ended=45.0)
        card = scorecard_of("test", state, 45)
        lowest = sorted(card.marks.values())[:3]
        assert sorted(card.marks[row] for row in card.weakest) == lowest
        assert "builds" not in card.weakest

    def test_the_code_weighs_most(self) -> None:
        """Nobody is hired for talking about a trainer that doesn't work."""
        ones = dict.fromkeys(ROWS, 1)
        assert percent_of(ones) == 0
        assert percent_of(dict.fromkeys(ROWS, 4)) == 100
        gains = {row.id: percent_of({**ones, row.id: 4}) for row in RUBRIC}
        assert max(gains, key=lambda name: gains[name]) == "builds"

    def test_missed_cards_come_back(self) -> None:
        """The question that went wrong is the one to practice."""
        state = State(asked=[answered(CARD.id, "")], ended=45.0)
        todo = [item["do"] for item in advice(state, ["failures"])]
        assert todo[0] == f'ask("{CARD.id}")'
        assert 'start("resume_after_failure")' in todo
