"""Chapter 22: every question has an answer, a pushback and a reply that somebody can say."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from handbook_chapters import HANDBOOK, Chapter, cells_of, run_chapter, sections_of, text_of

from rehearsal.handbook import hard_questions
from rehearsal.handbook.hard_questions import (
    Question,
    as_markdown,
    draw,
    find,
    questions,
    rewritten,
    topics,
)

NAME = "22_hard_questions"
SOURCE = Path(__file__).resolve().parents[1] / f"notebooks/src/handbook/{NAME}.py"
ALL = questions()
WORDS = {"question": (4, 20), "answer": (70, 115), "pushback": (4, 18), "reply": (50, 95)}
# What the handbook asks, what its drills and mock prompts ask, and what's easy to forget.
MUST_COVER = {
    "handbook: resume correct",
    "handbook: how do you know it's correct",
    "handbook: why DDP",
    "handbook: world size",
    "handbook: slow every 20 minutes",
    "handbook: silent failure",
    "handbook: survive a resume",
    "handbook: what not to build",
    "handbook: failure model",
    "handbook: four timer questions",
    "drill 3: topology changed",
    "drill 3: verify completeness",
    "drill 3: why sampler state",
    "drill 4: scales badly first",
    "drill 4: long-tail spikes",
    "drill 4: easiest to observe",
    "mock: loss falls, throughput poor",
    "mock: resumes strange",
    "mock: one GPU lower",
    "mock: checkpoint stalls",
    "taxonomy: deadlocks",
    "checklist: replay or skip",
    "checklist: duplicated shards",
    "checklist: one rank hangs in all-reduce",
    "checklist: all-reduce dominates",
    "checklist: loader-bound at 64 nodes",
    "checklist: OOM on rank 5",
    "checklist: restart scope per fault class",
    "checklist: half-written checkpoint",
    "checklist: checkpoint costs 15%",
    "checklist: silent divergence",
    "checklist: full restart wrong",
    "checklist: cut the bill",
    "checklist: simplify a three-axis setup",
    "checklist: roll out a trainer version",
    "checklist: roll back a bad run",
    "checklist: spot policy",
    "checklist: when to stop a run",
    "deep dive",
}
STIFF = (
    r"\b(do not|does not|did not|cannot|it is|that is|I would|I am|is not|there is|we are)"
    r"(?= (?!one\b)\w)"  # "if there is one" and "as it is." are how people talk
)


def sentences(text: str) -> list[str]:
    return [found for found in re.split(r"(?<=[.?!:]) ", text) if found]


class TestQuestions:
    def test_everything_that_must_be_covered_is_asked_once(self) -> None:
        """The list is the handbook's: what isn't here is what they ask."""
        counts = Counter(entry for question in ALL for entry in question.covers)
        assert {*counts} == MUST_COVER
        assert [entry for entry, count in counts.items() if count > 1] == []

    def test_ids_and_questions_are_unique(self) -> None:
        assert len({question.id for question in ALL}) == len(ALL)
        assert len({question.question for question in ALL}) == len(ALL)

    @pytest.mark.parametrize("question", ALL, ids=lambda question: question.id)
    def test_each_part_can_be_said(self, question: Question) -> None:
        """115 words are 46 seconds at 150 a minute; a sentence of 40 is lost on the way."""
        for part, (least, most) in WORDS.items():
            text = getattr(question, part)
            assert least <= len(text.split()) <= most, (part, len(text.split()))
            for sentence in sentences(text):
                assert len(sentence.split()) <= 34, sentence
        for part in ("answer", "reply"):
            lengths = [len(s.split()) for s in sentences(getattr(question, part))]
            assert sum(lengths) / len(lengths) <= 17, part

    @pytest.mark.parametrize("question", ALL, ids=lambda question: question.id)
    def test_it_sounds_spoken(self, question: Question) -> None:
        said = f"{question.answer} {question.pushback} {question.reply}"
        assert not re.findall(STIFF, said, re.I)
        assert "'" in said
        assert not re.search(r"[`*_]{1,2}\w+[`*]|!|\(|;", said), "not speech"

    @pytest.mark.parametrize("question", ALL, ids=lambda question: question.id)
    def test_it_says_where_it_is_shown(self, question: Question) -> None:
        assert question.shown
        assert any("](" in shown or "the cell below" in shown for shown in question.shown)


class TestChapter:
    def test_it_shows_exactly_what_the_file_says(self) -> None:
        """What is drawn and what is read must be the same answer."""
        asked = [text for kind, text in cells_of(NAME) if text.startswith("### ")]
        assert asked == [as_markdown(question) for question in ALL]

    def test_the_source_is_up_to_date(self) -> None:
        text = SOURCE.read_text("utf-8")
        assert rewritten(text) == text, "run python -m rehearsal.handbook.hard_questions"

    def test_no_line_ends_in_a_hyphen(self) -> None:
        """Markdown joins lines with a space, so a word broken there reads "micro- batch"."""
        assert not re.findall(r"\w-$", SOURCE.read_text("utf-8"), re.MULTILINE)

    def test_answers_and_replies_are_folded_and_the_pushback_is_not(self) -> None:
        """Whoever can see the answer reads it, and rehearses nothing."""
        for question in ALL:
            shown = re.sub(r"<details>.*?</details>", "", as_markdown(question), flags=re.S)
            assert question.question in shown
            assert question.pushback in shown
            assert question.answer[:20] not in shown
            assert question.reply[:20] not in shown

    def test_each_topic_has_its_questions(self) -> None:
        sections = sections_of(NAME)
        for topic in topics():
            found = re.findall(r"^### (.+)$", sections[topic.capitalize()], re.M)
            assert found == [q.question for q in ALL if q.topic == topic]

    def test_it_opens_and_closes_with_something_to_say(self) -> None:
        kind, text = cells_of(NAME)[0]
        assert kind == "markdown"
        assert text.startswith("# 22. Hard questions\n")
        assert '\n> "' in text
        closing = sections_of(NAME)["The closing paragraph"]
        said = re.sub(r"^> ?", "", "\n".join(re.findall(r"^>.*", closing, re.M)), flags=re.M)
        assert 90 <= len(said.split()) <= 165
        for word in ("smallest", "DDP", "evidence", "memory", "saving", "network"):
            assert word in said
        assert "(../drills/" in sections_of(NAME)["Practice it"]

    def test_its_links_lead_somewhere(self) -> None:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text_of(NAME)):
            if not target.startswith("http"):
                assert (HANDBOOK / target).exists(), target

    def test_code_that_is_shown_fits_on_the_page(self) -> None:
        for kind, text in cells_of(NAME):
            if kind == "code" and "#@title Setup" not in text:
                assert max(map(len, text.splitlines())) <= 96, text


class TestDraw:
    def test_no_question_comes_twice_before_all_have_come(self) -> None:
        hard_questions.drawn.clear()
        first = [draw().id for _ in ALL]
        assert sorted(first) == sorted(question.id for question in ALL)
        assert draw().id in first

    def test_a_topic_and_a_seed_are_kept(self) -> None:
        assert {draw("reliability").topic for _ in range(20)} == {"reliability"}
        assert draw(seed=3) == draw(seed=3)

    def test_the_answer_is_hidden_until_it_is_unfolded(self) -> None:
        question = find("every_twenty_minutes")
        html = question._repr_html_()
        visible = re.sub(r"<details>.*?</details>", "", html)
        assert "20 minutes" in visible
        assert "checkpoint" not in visible + repr(question)
        assert html.count("<details>") == 3

    def test_an_unknown_name_is_told_the_known_ones(self) -> None:
        with pytest.raises(ValueError, match="Use one of correctness, performance"):
            draw("speed")
        with pytest.raises(ValueError, match="Use resume_is_correct, silent_failure"):
            find("resume")

    def test_a_topic_without_a_heading_is_reported(self) -> None:
        """Otherwise its questions would vanish from the chapter."""
        text = SOURCE.read_text("utf-8").replace("# ## Judgment\n", "# ## Opinions\n")
        with pytest.raises(ValueError, match="0 cells have the heading '# ## Judgment'"):
            rewritten(text)


@pytest.fixture(scope="module")
def ran() -> Chapter:
    return run_chapter(NAME)


@pytest.mark.ranks
class TestShown:
    def test_the_fingerprint_catches_what_count_and_sum_miss(self, ran: Chapter) -> None:
        assert ran.caught == {
            "right": [False, False, False],
            "0 instead of 1": [False, True, True],
            "0 and 3 for 1 and 2": [False, False, True],
        }

    def test_the_rank_that_is_behind_is_the_stuck_one(self, ran: Chapter) -> None:
        assert ran.issued == {0: 3, 1: 2, 2: 3}
        assert ran.stuck_in == {0: "train", 1: "read_batch", 2: "train"}
        assert ran.suspect == 1

    def test_p99_misses_a_stall_that_max_shows(self, ran: Chapter) -> None:
        assert (ran.p50, ran.p95, ran.p99, ran.steps_s.max()) == (1, 1, 1, 9)

    def test_one_rank_pads_to_a_multiple_and_a_budget_holds(self, ran: Chapter) -> None:
        worst = sorted(ran.by_samples[ran.worst])
        assert worst[-1] > 3 * worst[-2]
        assert ran.by_tokens.max() <= ran.BUDGET
        assert ran.by_tokens.min() > 0

    def test_the_costs_of_saving_are_those_that_are_said(self, ran: Chapter) -> None:
        """About 15%, 6 or 7%, and about 1.4%."""
        assert ran.cost(90, 600)[0] == pytest.approx(0.15)
        assert 0.06 < sum(ran.cost(90, 46 * 60)) < 0.07
        assert sum(ran.cost(4, 600)) == pytest.approx(0.014, abs=0.0005)
        assert ran.exact_s == pytest.approx(46 * 60, rel=0.05)

    def test_the_prices_of_spot_are_those_that_are_said(self, ran: Chapter) -> None:
        reply = find("spot_policy").reply
        for number in (ran.useful["spot"], ran.useful["on demand"]):
            assert f"{number:.2f}" in reply
        assert f"{ran.saved:.0%} cheaper" in reply
        assert ran.longer == pytest.approx(1 / 3, abs=0.05)
        assert 10 / 60 / ran.per_failure_h > 0.05  # "more than 5% of the cluster"

    def test_no_lever_alone_saves_30_percent_and_three_do(self, ran: Chapter) -> None:
        assert min(ran.bills.values()) > 0.7 > ran.together


class TestArithmetic:
    """Numbers in answers that no cell works out."""

    def test_what_a_node_less_costs(self) -> None:
        assert "about 2% longer" in find("world_size_changes").reply
        assert pytest.approx(0.02, abs=0.005) == 64 / 63 - 1

    def test_the_state_and_the_checkpoints_of_a_model(self) -> None:
        assert "24 of 80 gigabytes" in find("why_ddp").answer
        assert 16 * 1.5 == 24
        assert "112 gigabytes" in find("why_ddp").reply
        assert 16 * 7 == 112
        reply = find("roll_back").reply
        assert "21 gigabytes" in reply
        assert "is 630" in reply
        assert (14 * 1.5, 14 * 1.5 * 30) == (21, 630)

    def test_what_8_percent_of_512_gpus_is(self) -> None:
        assert "29,500 GPU-hours" in find("simplify_three_axes").reply
        assert pytest.approx(29_500, rel=0.01) == 0.08 * 512 * 30 * 24

    def test_how_long_a_hash_of_all_parameters_takes(self) -> None:
        assert "5 milliseconds" in find("replicas_diverge").reply
        assert pytest.approx(5e-3, rel=0.1) == 2 * 7e9 / 3e12
