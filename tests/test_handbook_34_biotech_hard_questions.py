"""Chapter 34: every biotech question has a weak, a strong and a second answer to say."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

import pytest
from handbook_chapters import HANDBOOK, Chapter, cells_of, run_chapter, sections_of, text_of
from test_handbook_22_hard_questions import STIFF, WORDS, sentences

from rehearsal.handbook import hard_questions
from rehearsal.handbook.hard_questions import (
    BIOTECH,
    TRAINING,
    Question,
    as_markdown,
    draw,
    find,
    questions,
    rewritten,
    topics,
)

NAME = "34_biotech_hard_questions"
SOURCE = Path(__file__).resolve().parents[1] / f"notebooks/src/handbook/{NAME}.py"
ALL = questions(BIOTECH)
# Its own parts; the others have chapter 22's limits.
OWN_WORDS = {"weak": (12, 30), "wrong": (12, 40)}
# The track's taxonomy with all its questions, and what the handbook's index announces.
MUST_COVER = {
    "section 17: prevent leakage",
    "section 17: the gap is no constant",
    "section 17: class imbalance",
    "section 17: protein homology",
    "section 17: length distribution",
    "section 17: out of memory on one rank",
    "section 17: pair representation",
    "section 17: equivariance",
    "section 17: wet-lab latency",
    "section 17: retrain vs fine-tune",
    "section 17: acquisition and batch diversity",
    "section 17: selection bias and a frozen random holdout",
    "section 17: noise and plate effects",
    "section 17: oracle exploitation",
    "section 17: assay prioritization",
    "section 17: cost per prediction",
    "section 17: confident wrong on novel chemotypes",
    "section 17: model failure modes",
    "section 17: provenance and audit",
    "section 17: when to stop",
    "index: scaffold split",
    "index: leakage",
    "index: variable-length collation",
    "index: graph batching",
    "index: bioassay imbalance",
    "index: label sparsity",
    "index: provenance of labels",
    "index: metrics that fit the biology",
    "index: protein LM at scale",
    "index: sequence parallelism",
    "index: quadratic pair memory",
    "index: SE(3) equivariance",
    "index: multi-task over sparse assay labels",
    "index: active learning",
    "index: wet-lab feedback",
    "index: assay shift",
    "index: shift in de novo generation",
    "index: geometric constraints change the data pipeline",
    "index: billion-scale data plane",
}


class TestQuestions:
    def test_everything_that_must_be_covered_is_asked_once(self) -> None:
        """What isn't here is what they ask."""
        counts = Counter(entry for question in ALL for entry in question.covers)
        assert {*counts} == MUST_COVER
        assert [entry for entry, count in counts.items() if count > 1] == []

    def test_ids_and_questions_are_unique_in_both_chapters(self) -> None:
        """find() looks in both, and would return the other chapter's."""
        both = [*ALL, *questions(TRAINING)]
        assert len({question.id for question in both}) == len(both)
        assert len({question.question for question in both}) == len(both)

    @pytest.mark.parametrize("question", ALL, ids=lambda question: question.id)
    def test_each_part_can_be_said(self, question: Question) -> None:
        """115 words are 46 seconds at 150 a minute; a sentence of 40 is lost on the way."""
        for part, (least, most) in {**WORDS, **OWN_WORDS}.items():
            text = getattr(question, part)
            assert least <= len(text.split()) <= most, (part, len(text.split()))
            for sentence in sentences(text):
                assert len(sentence.split()) <= 34, sentence
        for part in ("answer", "reply"):
            lengths = [len(s.split()) for s in sentences(getattr(question, part))]
            assert sum(lengths) / len(lengths) <= 17, part

    @pytest.mark.parametrize("question", ALL, ids=lambda question: question.id)
    def test_it_sounds_spoken(self, question: Question) -> None:
        said = f"{question.weak} {question.answer} {question.pushback} {question.reply}"
        assert not re.findall(STIFF, said, re.I)
        assert "'" in said
        said = re.sub(r"\b(E\(n\)|SE\(3\))", "", said)  # names, said as they are
        assert not re.search(r"[`*_]{1,2}\w+[`*]|!|\(|;", said), "not speech"

    @pytest.mark.parametrize("question", ALL, ids=lambda question: question.id)
    def test_it_says_where_it_is_shown(self, question: Question) -> None:
        assert question.shown
        places = ("](", "cell below", "cell at the end")
        assert any(place in shown for shown in question.shown for place in places)


class TestChapter:
    def test_it_shows_exactly_what_the_file_says(self) -> None:
        """What is drawn and what is read must be the same answer."""
        asked = [text for kind, text in cells_of(NAME) if text.startswith("### ")]
        assert asked == [as_markdown(question) for question in ALL]

    def test_the_source_is_up_to_date(self) -> None:
        text = SOURCE.read_text("utf-8")
        assert rewritten(text, BIOTECH) == text, (
            "run python -m rehearsal.handbook.hard_questions"
        )

    def test_another_file_is_refused_and_left_alone(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Rewritten with the wrong questions, a chapter would lose its own."""
        other = tmp_path / "12_data_correctness.py"
        other.write_text("# %%\n", "utf-8")
        with pytest.raises(SystemExit):
            hard_questions.main([str(other)])
        assert "Use one of 22_hard_questions, 34_biotech" in capsys.readouterr().err
        assert other.read_text("utf-8") == "# %%\n"

    def test_no_line_ends_in_a_hyphen(self) -> None:
        """Markdown joins lines with a space, so a word broken there reads "micro- batch"."""
        assert not re.findall(r"\w-$", SOURCE.read_text("utf-8"), re.MULTILINE)

    def test_the_answer_is_folded_and_the_weak_one_is_not(self) -> None:
        """Whoever can see the answer reads it, and rehearses nothing."""
        for question in ALL:
            shown = re.sub(r"<details>.*?</details>", "", as_markdown(question), flags=re.S)
            for part in (question.question, question.weak, question.pushback, question.wrong):
                assert part in shown
            assert question.answer[:20] not in shown
            assert question.reply[:20] not in shown

    def test_each_topic_has_its_questions(self) -> None:
        assert [*topics(BIOTECH)] == [
            "data integrity",
            "sequence and structure",
            "operations",
            "staff judgment",
        ]
        sections = sections_of(NAME)
        for topic in topics(BIOTECH):
            found = re.findall(r"^### (.+)$", sections[topic.capitalize()], re.M)
            assert found == [q.question for q in ALL if q.topic == topic]

    def test_it_opens_and_closes_with_something_to_say(self) -> None:
        kind, text = cells_of(NAME)[0]
        assert kind == "markdown"
        assert text.startswith("# 34. Biotech hard questions\n")
        assert '\n> "' in text
        closing = sections_of(NAME)["The closing paragraph"]
        said = re.sub(r"^> ?", "", "\n".join(re.findall(r"^>.*", closing, re.M)), flags=re.M)
        assert 90 <= len(said.split()) <= 165
        for word in ("decision", "split", "masked", "gathered", "holdout", "controls", "wrong"):
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
        first = [draw(file=BIOTECH).id for _ in ALL]
        assert sorted(first) == sorted(question.id for question in ALL)

    def test_a_topic_stays_within_its_file(self) -> None:
        assert {draw("operations", file=BIOTECH).topic for _ in range(9)} == {"operations"}
        with pytest.raises(ValueError, match="Use one of data integrity, sequence"):
            draw("reliability", file=BIOTECH)

    def test_a_drawn_question_hides_all_but_itself(self) -> None:
        html = find("pair_memory")._repr_html_()
        visible = re.sub(r"<details>.*?</details>", "", html)
        assert "4,096" in visible
        assert "channels" not in visible
        assert html.count("<details>") == 5


@pytest.fixture(scope="module")
def ran() -> Chapter:
    return run_chapter(NAME)


@pytest.mark.ranks
class TestShown:
    def test_the_planted_leak_is_recovered(self, ran: Chapter) -> None:
        assert ran.leaks[0.0][0] == pytest.approx(0, abs=0.02)
        for share in (0.2, 0.4):
            gap, planted = ran.leaks[share]
            assert gap == pytest.approx(planted, rel=0.1)

    def test_a_model_that_memorized_nothing_has_a_gap_too(self, ran: Chapter) -> None:
        assert ran.fixed["random"] > ran.fixed["scaffold"] + 0.03

    def test_the_weight_multiplies_the_promised_hits_and_its_logarithm_undoes_it(
        self, ran: Chapter
    ) -> None:
        actives = float(ran.labels.sum())
        assert 80 < ran.weight < 120
        assert ran.hits["unweighted"] == pytest.approx(actives, rel=0.001)
        assert ran.hits["weighted"] > 24 * actives  # "dozens of times"
        assert ran.hits["weighted, undone"] == pytest.approx(actives, rel=0.1)

    def test_the_average_depends_on_the_ranks_and_the_gathered_value_does_not(
        self, ran: Chapter
    ) -> None:
        gathered = {whole for _, whole in ran.aurocs.values()}
        [whole] = gathered
        assert ran.aurocs["strided", 1][0] == pytest.approx(whole, abs=1e-6)
        for world in (2, 3):
            assert abs(ran.aurocs["strided", world][0] - whole) > 1e-3
        assert ran.aurocs["in blocks", 2][0] < whole - 0.03
        assert math.isnan(ran.aurocs["in blocks", 3][0])

    def test_low_precision_breaks_distances_from_a_product_first(self, ran: Chapter) -> None:
        found = {(row.precision, row.distances): row.errors for row in ran.precision}
        assert max(found["fp32", "differences"].values()) < 1e-4
        for precision in ("TF32 (emulated)", "bf16 autocast"):
            if (precision, "matmul") in found:  # on a GPU, TF32 isn't emulated
                product = found[precision, "matmul"]["rotation"]
                assert product > 10 * found[precision, "differences"]["rotation"]

    def test_the_collected_validation_says_something_else_than_the_frozen_sample(
        self, ran: Chapter
    ) -> None:
        collected, frozen = zip(*ran.rounds, strict=True)
        assert not {*ran.frozen.tolist()} & {*ran.collected.tolist()}
        assert [*collected[1:]] == sorted(collected[1:], reverse=True)
        assert min(frozen[1:]) > 1.5 * frozen[0]
        assert collected[-1] < 0.75 * frozen[-1]

    def test_compute_is_a_small_part_and_the_hit_rate_decides(self, ran: Chapter) -> None:
        assert ran.compute_share < 0.01
        assert ran.cost_per_hit(0.005) > ran.cost_per_hit(0.005, with_model=False)
        assert ran.cost_per_hit(0.015) < 0.34 * ran.cost_per_hit(0.005, with_model=False)

    def test_two_expected_hits_are_anything_from_zero_to_five(self, ran: Chapter) -> None:
        assert "from zero to five" in find("when_to_stop_the_loop").answer
        assert ran.ranges[2] == (0, 5)


class TestArithmetic:
    """Numbers in answers that no cell works out."""

    def test_the_sizes_of_pairs(self) -> None:
        answer, reply = find("pair_memory").answer, find("pair_memory").reply
        assert "512 mebibytes" in answer
        assert 1024**2 * 128 * 4 == 512 * 2**20
        assert "24 gibibytes" in answer
        assert 48 * 512 * 2**20 == 24 * 2**30
        assert "16 gibibytes per call" in answer
        assert 4 * 1024**3 * 4 == 16 * 2**30
        assert "a copy is 8 gibibytes, and those logits are a tebibyte" in answer
        assert (4096**2 * 128 * 4, 4 * 4096**3 * 4) == (8 * 2**30, 2**40)
        assert "a copy is 4 gibibytes" in reply

    def test_tokens_and_core_hours_of_the_billions(self) -> None:
        answer, reply = (
            find("billions_of_molecules").answer,
            find("billions_of_molecules").reply,
        )
        assert "420 gigabytes, 70 times less" in answer
        assert (50 * 2 * 4.2e9, round(30e12 / 420e9 / 10) * 10) == (420e9, 70)
        assert "about 1,200 core-hours" in reply
        assert pytest.approx(1200, rel=0.05) == 4.2e9 * 1e-3 / 3600

    def test_the_shift_of_one_in_500(self) -> None:
        assert "6.2 for 499" in find("class_imbalance").answer
        assert math.log(499) == pytest.approx(6.2, abs=0.05)

    def test_equal_tokens_and_unequal_pairs(self) -> None:
        assert "32 times as many attention pairs" in find("length_spread").reply
        assert (32 * 128, 4096**2 / (32 * 128**2)) == (4096, 32)

    def test_state_of_a_small_structure_model(self) -> None:
        assert "1.6 gigabytes" in find("encoder_and_parallelism").reply
        assert 100e6 * 16 == 1.6e9

    def test_plates_in_a_year_and_actives_on_a_random_one(self) -> None:
        reply = find("validation_keeps_rising").reply
        assert "the other sixteen this year" in reply
        assert 52 // 3 == 17
        assert "about four actives" in reply
        assert round(384 * 0.01) == 4

    def test_scores_of_ten_million_molecules(self) -> None:
        assert "40 megabytes per task" in find("which_metric").reply
        assert 10e6 * 4 == 40e6
