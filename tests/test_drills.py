"""Every drill: complete, within its sizes, and its grader graded."""

from __future__ import annotations

import ast
import re

import pytest

from rehearsal import drills, grade_source
from rehearsal.grading import selftest
from rehearsal.grading.drill import Drill, load
from rehearsal.grading.typed import names_bound
from rehearsal.grading.verdict import ENGINE_FINDINGS, FORMER_CODES
from rehearsal.session.brief import brief_of

DRILLS = drills()
each_drill = pytest.mark.parametrize("drill", DRILLS, ids=lambda drill: drill.id)


def test_the_handbooks_drills_ask_for_its_explanations() -> None:
    """Code that passes, from somebody who can't say what it means, is not an answer."""
    asking = {drill.id for drill in DRILLS if drill.explanations}
    assert asking >= {"resume_after_failure", "instrument_performance", "production_lift"}


@each_drill
class TestForm:
    def test_the_brief_is_brief(self, drill: Drill) -> None:
        """A person reads it while the clock runs."""
        assert 20 <= len(re.findall(r"\S*\w\S*", drill.brief)) <= 250

    def test_the_brief_has_its_parts_in_order(self, drill: Drill) -> None:
        """With a clock running, you look for the task where it was last time."""
        parts = ["**Situation.**", "**Task.**", "**What must hold**", "\n- "]
        places = [drill.brief.find(part) for part in parts]
        assert places == sorted(places)
        assert places[0] == 0
        assert max(map(len, drill.brief.splitlines())) <= 95, "a cell doesn't scroll sideways"

    def test_there_are_three_hints_and_the_first_asks(self, drill: Drill) -> None:
        """A question, a pointer, the idea."""
        assert len(drill.hints) == 3
        assert drill.hints[0].rstrip().endswith("?")

    def test_there_are_enough_near_misses_and_designs(self, drill: Drill) -> None:
        """A grader that knows only one solution refuses the next good one."""
        assert len(drill.near_misses()) >= 8
        assert len(drill.solutions()) >= 3
        texts = [miss.text for miss in drill.near_misses()] + list(drill.solutions().values())
        assert len(set(texts)) == len(texts)

    def test_codes_are_listed_and_each_has_a_near_miss(self, drill: Drill) -> None:
        """An unlisted code is not stable, and a code that nothing provokes may not work."""
        provoked = {miss.code for miss in drill.near_misses()}
        assert provoked - {*ENGINE_FINDINGS.codes} == set(drill.codes)
        assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code) for code in drill.codes)

    def test_every_sentence_of_what_must_hold_is_judged(self, drill: Drill) -> None:
        """A demand that nothing judges is a promise that the check does not keep."""
        stages = " ".join(stage.must for stage in drill.stages)
        said = " ".join(f"{drill.brief} {stages}".split())
        for one in drill.requirements:
            assert one.says in said, one.says
            assert set(one.codes) <= {*drill.codes, *ENGINE_FINDINGS.codes}, one.codes
            assert one.defines != bool(one.codes), one.says
            assert one.defines or len(one.near_misses(drill)) >= 2, one.says
            broken_by = [miss.name for miss in one.near_misses(drill)]
            assert set(one.broken_by) <= {*broken_by}, one.says
            others = {
                code for other in drill.requirements for code in other.codes if other != one
            }
            assert one.broken_by or not others & {*one.codes}, one.says
        must = drill.brief.partition("**What must hold**")[2].partition("\n\nExample")[0]
        left = " ".join(f"{must} {stages}".split())
        for one in sorted(drill.requirements, key=lambda one: -len(one.says)):
            left = left.replace(one.says, " ")
        assert not re.findall(r"\w+", left), left

    def test_every_near_miss_breaks_a_sentence_of_the_brief(self, drill: Drill) -> None:
        """A wrong answer that breaks no sentence is one that the brief allows."""
        judged = {code for one in drill.requirements for code in one.codes}
        listed = {miss.name for one in drill.requirements for miss in one.near_misses(drill)}
        assert [
            miss.name
            for miss in drill.near_misses()
            if miss.code in judged and miss.name not in listed
        ] == []

    def test_the_needed_names_are_in_every_text(self, drill: Drill) -> None:
        """A blank without a needed name cannot be filled in."""
        for text in (drill.blank, *drill.solutions().values()):
            assert set(drill.needs) <= names_bound(ast.parse(text))

    def test_a_narration_says_all_four(self, drill: Drill) -> None:
        """You rehearse what you say as well as what you type."""
        assert all(len(text.split()) >= 5 for text in drill.narration)
        assert drill.narration.follow_up.rstrip().endswith("?")
        assert drill.deeper.rstrip().endswith("?")

    def test_what_it_asks_to_explain_is_in_the_brief_and_can_be_said(
        self, drill: Drill
    ) -> None:
        """The handbook wants more explained than code can show."""
        for asks, weak, strong in drill.explanations:
            assert asks.endswith("?")
            assert f"- {asks}\n" in brief_of(drill)
            assert 4 <= len(weak.split()) < len(strong.split()) <= 60

    def test_what_is_spoken_is_short(self, drill: Drill) -> None:
        """You say it while you type."""
        assert all(len(text.split()) <= 45 for text in (*drill.narration, drill.deeper))


def test_a_renamed_code_leads_to_a_code_of_today() -> None:
    """An alias to nowhere, or one that hides a current code, garbles people's histories."""
    today = set(ENGINE_FINDINGS.codes).union(*(drill.codes for drill in DRILLS))
    assert set(FORMER_CODES.values()) <= today
    assert not set(FORMER_CODES) & today


@pytest.mark.ranks
@each_drill
def test_the_grader_judges_its_texts_correctly(
    drill: Drill, pytestconfig: pytest.Config
) -> None:
    """A grader that nobody has graded accepts half of the wrong answers.

    All texts take minutes: here the blank and one near miss, in test_notebooks_drills.py the
    solution; with --all-texts, or by make selftest, every one.
    """
    wrong = [
        f"{row.kind} {row.name}: expected {row.expected}, got {row.got}\n{row.verdict}"
        for row in selftest.run(drill, quick=not pytestconfig.getoption("all_texts"))
        if not row.ok
    ]
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.ranks
def test_many_empty_lists_are_called_too_many() -> None:
    """Where the grader stops following a long iteration, samples would seem to be missing."""
    text = load("cell_data").solution
    share = "-(-schedule.size(0) // world_size)"
    assert text.count(share) == 1
    wasteful = text.replace(share, "schedule.global_batch_size * world_size")
    verdict = grade_source("cell_data", wasteful)
    assert [finding.code for finding in verdict.findings] == ["too-many-micro-steps"], verdict
