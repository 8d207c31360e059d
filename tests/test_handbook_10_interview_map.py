"""Chapter 10: the minutes add up, the short trainer survives what it claims, answers matter."""

from __future__ import annotations

import json
import re

import pytest
from handbook_chapters import HANDBOOK, Chapter, run_chapter, sections_of, text_of

from rehearsal.interviews.rubric import RUBRIC
from rehearsal.grading.minutes import TYPING_SPEED
from rehearsal.handbook.time_plan import starts
from rehearsal.handbook.worksheet import print_change, shown, work_out

NAME = "10_interview_map"


@pytest.fixture(scope="module")
def ran() -> Chapter:
    return run_chapter(NAME)


def rows(section: str) -> list[list[str]]:
    """The cells of each row of a section's first table, without its head."""
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.ranks
class TestClock:
    def test_the_live_trainer_fills_45_minutes_as_its_own_notebook_says(
        self, ran: Chapter
    ) -> None:
        """Two clocks that disagree are both disbelieved."""
        cells = json.loads((HANDBOOK.parent / "01_live.ipynb").read_text("utf-8"))["cells"]
        text = " ".join("".join(cell["source"]) for cell in cells)
        assert f"({sum(ran.sizes.values()):,} characters)" in text
        assert 40 < ran.in_full <= 45

    def test_the_rule_in_the_text_is_the_one_in_the_code(self) -> None:
        assert f"about {TYPING_SPEED} characters a minute" in " ".join(text_of(NAME).split())

    def test_the_five_drills_take_more_than_an_hour(self, ran: Chapter) -> None:
        assert len(ran.five_drills) == 5
        assert sum(ran.five_drills.values()) > 60

    def test_the_short_trainer_takes_about_half(self, ran: Chapter) -> None:
        """The text says so, and the plans rest on it."""
        assert 0.4 < ran.minutes(*ran.CELLS) / ran.in_full < 0.55

    def test_the_plans_fill_their_time_and_keep_ten_minutes_for_pushback(
        self, ran: Chapter
    ) -> None:
        """What isn't protected is what's cut, and it's where the staff rows are earned."""
        for total, plan in zip((45, 60), ran.plans.values(), strict=True):
            assert starts(plan)[-1] == pytest.approx(total)
            [pushback] = [stage for stage in plan if stage.kind == "defend"]
            assert pushback.minutes >= 10
            assert [stage.narration for stage in plan if stage.narration] == [1, 2, 3, 4]

    def test_the_first_kill_is_over_by_minute_35(self, ran: Chapter) -> None:
        """One of the three questions calls anything later overbuilt."""
        for plan in ran.plans.values():
            [first, *_] = [n for n, stage in enumerate(plan) if stage.kind == "run"]
            assert starts(plan)[first + 1] <= 35


@pytest.mark.ranks
class TestShortTrainer:
    def test_a_killed_run_resumes_bit_identically(self, ran: Chapter) -> None:
        assert "rank 1: exit code -9" in ran.printed
        assert ran.same_bits
        counts = ran.count_epochs(ran.newest_lines("killed"), 203)
        assert [count.steps for count in counts] == [13, 13]
        assert not any(count.missed or count.repeated for count in counts)

    def test_the_kill_cost_the_steps_since_the_save(self, ran: Chapter) -> None:
        """A kill that came after the end would prove nothing."""
        path = ran.folder / "killed" / "ledger" / "rank-1.jsonl"
        steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
        assert steps == [*range(1, 18), *range(16, 27)]  # saved at 15, dead in 18

    def test_a_file_that_is_cut_short_crashes_every_rank(self, ran: Chapter) -> None:
        assert [report.exitcode for report in ran.crashed] == [1, 1]
        assert all("zip archive" in report.failure.message for report in ran.crashed)

    def test_the_hardened_one_names_the_damage_and_finishes(self, ran: Chapter) -> None:
        assert [report.exitcode for report in ran.reports] == [0, 0]
        assert "hardened/checkpoints/step-000000000026 is damaged" in ran.printed
        path = ran.folder / "hardened" / "ledger" / "rank-0.jsonl"
        steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
        assert steps == [*range(1, 27), 26]

    def test_the_live_trainer_imports_nothing_that_stays_out(self, ran: Chapter) -> None:
        assert "outside the standard library: numpy torch\n" in ran.printed


@pytest.mark.ranks
class TestAnswers:
    def test_every_question_changes_a_decision(self, ran: Chapter) -> None:
        """One that doesn't is small talk, says the text."""
        assert all(ran.changed.values())
        most = max(map(len, ran.changed.values()))
        found = {name for name, choices in ran.changed.items() if len(choices) == most}
        assert found == {"70 billion parameters", "preempted every 3 hours"}

    def test_every_decision_is_changed_by_a_question(self, ran: Chapter) -> None:
        assert {topic for choices in ran.changed.values() for topic in choices} == {
            *ran.base_plan
        }

    def test_on_1024_gpus_the_sync_takes_longer_than_the_compute(self, ran: Chapter) -> None:
        """The text calls it the trap."""
        few = work_out(ran.FORMULAS, ran.ANSWERS)
        many = work_out(ran.FORMULAS, {**ran.ANSWERS, "gpus": 1024})
        assert few.step_s / many.step_s == pytest.approx(16)
        assert many.sync_s == pytest.approx(few.sync_s, rel=0.02)
        assert few.sync_s < 0.2 * few.step_s
        assert many.sync_s > many.step_s
        # One of the strong answers says both.
        assert many.failures == pytest.approx(few.failures)
        assert few.save_every_s / many.save_every_s == pytest.approx(4)

    def test_the_failure_rate_is_the_published_one(self, ran: Chapter) -> None:
        """419 interruptions in 54 days on 16,384 GPUs."""
        assert round(ran.PUBLISHED["gpu_hours_per_failure"]) == 50_677
        assert "419 unexpected interruptions in 54 days on 16,384 GPUs" in " ".join(
            text_of(NAME).split()
        )
        assert "50,677 hours" in text_of(NAME)

    def test_what_is_shown_is_what_is_worked_out(self, ran: Chapter) -> None:
        values = work_out(ran.FORMULAS, ran.ANSWERS)
        assert shown("state_gb", ran.FORMULAS, values) == "16 * 1.5e9 / 1e9 = 24"
        assert "mtbf_hours       1 / (64 / 50,677 + 1 / inf) = 792" in ran.printed

    def test_a_mistyped_answer_is_refused_with_the_known_ones(self, ran: Chapter) -> None:
        """Otherwise the plan stays the same, and the reader learns that it doesn't matter."""
        with pytest.raises(ValueError, match=r"gpu: no such answer.*The answers are gpus"):
            print_change(ran.FORMULAS, ran.decide, ran.ANSWERS, gpu=8)
        with pytest.raises(ValueError, match="'tokns' is neither an answer nor a formula"):
            work_out({"hours": "6 * tokns"}, ran.ANSWERS)


class TestText:
    def test_weak_versus_strong_has_the_handbooks_four_rows_and_more(self) -> None:
        found = [row[0] for row in rows(sections_of(NAME)["Weak versus strong"])]
        assert found[:4] == ["failure model", "performance", "data", "staff signal"]
        assert len(found) >= 8

    def test_every_round_of_the_reports_is_there(self) -> None:
        assert {row[0] for row in rows(sections_of(NAME)["The rounds"])} == {
            "build", "debugging", "design", "calculation", "platform", "post-training",
            "deep dive",
        }  # fmt: skip

    def test_the_rubric_says_when_each_row_is_earned(self) -> None:
        found = rows(sections_of(NAME)["The rubric"])
        assert len(found) == len(RUBRIC)
        assert all(len(row) == 3 and all(row) for row in found)

    def test_each_clarifying_question_says_why_and_what_changes(self) -> None:
        found = rows(sections_of(NAME)["The questions, and what each answer changes"])
        assert len(found) >= 8
        assert all(len(row) == 3 and row[0].endswith('?"') for row in found)

    def test_the_narration_and_the_opening_are_there_to_be_said(self) -> None:
        """A line of more than 60 words isn't said by somebody who types."""
        found = rows(sections_of(NAME)["Narration at four points"])
        assert [row[0] for row in found] == ["1", "2", "3", "4"]
        assert all(len(row[2].split()) <= 60 for row in found)
        opening = sections_of(NAME)["The opening minute"]
        said = re.sub(r"^> ?", "", "\n".join(re.findall(r"^>.*", opening, re.M)), flags=re.M)
        assert 120 <= len(said.split()) <= 165

    def test_there_are_five_study_cards(self) -> None:
        found = [
            row[0].strip("*")
            for row in rows(sections_of(NAME)["Five study cards, and a route"])
        ]
        assert found == [
            "Interview map",
            "Foundations",
            "Reliability and performance",
            "Notebook",
            "Hard questions",
        ]
