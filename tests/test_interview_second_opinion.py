"""A language model that listens to an interview: it is shown, it counts for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_stub import Stub, examines, says, serving
from rehearsal.deck import endpoint, examiner as module
from rehearsal.deck.cards import card_named
from rehearsal.interviews import opening
from rehearsal.interviews.opening import interview
from rehearsal.interviews.session import Interview

CARD = "weights_and_step"


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    monkeypatch.setenv("REHEARSAL_HOME", str(tmp_path))
    monkeypatch.setattr(endpoint, "DEADLINE_S", 200.0)
    module._examiner.cache_clear()
    with serving() as found:
        monkeypatch.setenv("REHEARSAL_LLM_URL", found.url)
        yield found
    for held in [*opening._open.values()]:
        held.close()


def answer_one(text: str) -> Interview:
    """An interview in which one question got this answer, and the interviewer reacted."""
    now = [0.0]
    held = interview(45, 3, clock=lambda: now[0])
    held._add("line", text="A question", kind="prompt")
    held._add("line", text="A question", kind="question", card=CARD, row="failures")
    held.say(text)
    while held.next() is not None:
        pass
    return held


def lines(held: Interview, kind: str) -> list[dict[str, object]]:
    return [event for event in held.events if event.get("kind") == kind]


class TestItAsksOn:
    def test_its_question_is_asked_and_marked(self, stub: Stub) -> None:
        stub.behaves = examines("And what if the scaler is lost?")
        held = answer_one(card_named(CARD).strong)
        line = lines(held, "follow up")[0]
        assert line["text"] == "And what if the scaler is lost?"
        assert line["by"] == "language model"

    def test_a_wrong_claim_is_still_questioned_by_the_interviewer(self, stub: Stub) -> None:
        """The matcher's finding decides what happens next."""
        stub.behaves = examines("And what if the scaler is lost?")
        held = answer_one("Weights and step are enough to continue.")
        assert "Are you sure?" in str(lines(held, "follow up")[0]["text"])


class TestItsOpinion:
    def marks(self, stub: Stub, text: str) -> tuple[dict[str, int], list[str]]:
        held = answer_one(text)
        held.end()
        card = held.scorecard()
        failures = next(mark for mark in card.rows if mark.row == "failures")
        return card.marks, [one.what for one in failures.evidence]

    def test_it_is_shown_and_not_counted(
        self, stub: Stub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A model that can be talked into anything must not give marks."""
        stub.behaves = examines()  # finds everything covered
        with_model, evidence = self.marks(stub, "Save more often, and keep three.")
        assert any(what.startswith("second opinion of a language model") for what in evidence)
        monkeypatch.delenv("REHEARSAL_LLM_URL")
        without, evidence = self.marks(stub, "Save more often, and keep three.")
        assert not any("second opinion" in what for what in evidence)
        assert with_model == without

    def test_only_the_card_and_the_answer_are_sent(self, stub: Stub) -> None:
        stub.behaves = examines()
        answer_one("Save more often, and keep three.")
        sent = str(stub.calls)
        assert "Save more often, and keep three." in sent
        assert "interviews" not in sent
        assert "eight nodes" not in sent.lower()


class TestItFails:
    def test_in_one_line_and_the_interview_continues(self, stub: Stub) -> None:
        stub.behaves = says("I'd rather talk about the weather.")
        held = answer_one(card_named(CARD).strong)
        notes = lines(held, "note")
        assert len(notes) == 1
        assert "continues without it" in str(notes[0]["text"])
        assert lines(held, "follow up")  # the card's own
        held.say("One more thing: the RNG of each rank.")
        while held.next() is not None:
            pass
        assert len(lines(held, "note")) == 1

    def test_a_server_that_stalls_does_not_stop_the_conversation(
        self, stub: Stub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In real time, nobody waits for it longer than an interviewer thinks."""
        stub.behaves = lambda handler: handler.trickle()
        held = interview(45, 3)
        held._add("line", text="A question", kind="prompt")
        held._add("line", text="A question", kind="question", card=CARD, row="failures")
        held.say(card_named(CARD).strong)
        assert held.next() is None  # it waits a little
        held._watch._spent += 60
        assert held.next() == card_named(CARD).follow_up
        stub.released.set()
