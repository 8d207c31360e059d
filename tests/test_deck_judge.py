"""The matcher: negations, typos, and how often it agrees with labels written by hand."""

from __future__ import annotations

import tomllib
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rehearsal.deck.cards import CARDS, Card, Point, UnknownCard, read_deck
from rehearsal.deck.evidence import evidence
from rehearsal.deck.judge import judge, judge_answer, read
from rehearsal.deck.weights import ALWAYS, MATCHER
from rehearsal.deck.words import words_of
from scripts.deck_agreement import PAGE, agreement, labeled, table

KINDS = "right paraphrased terse rambling wrong negated off_topic other_card".split()
# For each set: the least agreement, the most that may be falsely covered, and the least share
# of the negated answers' contradictions. The targets are 0.9, 0.03 and 0.9; docs/deck.md has
# the figures. The claims were fitted to the tuning answers, and alone they agree with more of
# those, but with fewer of the others.
SETS = {
    "tuning": (0.957, 0.013, 0.96),
    "held_out": (0.9, 0.03, 0.78),
    "held_out_biotech": (0.875, 0.03, 0.84),
    "fresh_biotech": (0.92, 0.01, 0.98),
}
DECK = {card.id: card for card in read_deck([CARDS])}


def card_with(text: str, says: Any, denies: Any = ()) -> Card:
    """A card whose first point has this text and these claims."""
    points = [
        {"id": "it", "text": text, "says": says, "denies": denies},
        {
            "id": "other",
            "text": "A cursor says which samples have been trained on.",
            "says": [["cursor | position", "sample | trained"]],
        },
    ]
    texts = dict.fromkeys("why_weak follow_up falsifier".split(), "Some text.")
    texts |= {
        "question": "What does a restart need?",
        "weak": "A restart loads the newest file.",
        "strong": f"{text} A cursor says which samples have been trained on.",
    }
    return Card.model_validate(
        {"id": "a", "level": "staff", "point": points, "shown_in": ["README.md"], **texts}
    )


SAVED = card_with(
    "The optimizer's moments are saved, not only the weights.",
    [["optimizer | adam | moments", "save | checkpoint | restore"]],
    [["weights", "enough | suffice"]],
)


def found(text: str, card: Card = SAVED) -> str:
    """What is found about the first point."""
    coverage = judge(card, text)
    return next(
        name
        for name in ("covered", "missed", "contradicted")
        if "it" in getattr(coverage, name)
    )


class TestPolarity:
    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            ("I save the optimizer", "covered"),
            ("the optimizer's moments get saved", "covered"),
            ("save not only the weights but the optimizer", "covered"),
            ("not just the model, the optimizer is in the checkpoint", "covered"),
            ("don't forget to save the optimizer", "covered"),
            ("you can't skip saving the optimizer", "covered"),
            ("never drop the optimizer from the checkpoint", "covered"),
            ("if you don't save the optimizer, the loss jumps", "covered"),
            ("the sampler isn't in there. I save the optimizer", "covered"),
            ("I don't shard, but I save the optimizer", "covered"),
            ("I don't save the optimizer", "contradicted"),
            ("the optimizer need not be saved", "contradicted"),
            ("no need to save the optimizer", "contradicted"),
            ("the optimizer doesn't need to be in the checkpoint", "contradicted"),
            ("saving the optimizer is unnecessary", "contradicted"),
            ("there's no point in saving the optimizer", "contradicted"),
            ("I'd skip saving the optimizer", "contradicted"),
            ("weights are enough", "contradicted"),
            ("the weights aren't enough", "missed"),
            ("I log the loss", "missed"),
            ("the optimizer is Adam", "missed"),
            ("it's a myth that you must save the optimizer", "contradicted"),
            ("I doubt that the optimizer should be saved", "contradicted"),
            ("I don't think the optimizer belongs in the checkpoint", "contradicted"),
            ("I'd refuse to save the optimizer", "contradicted"),
            ("it fails to restore the optimizer", "contradicted"),
            ("we save the weights, not the optimizer", "contradicted"),
            ("save the weights instead of the optimizer", "contradicted"),
            ("save the optimizer rather than recomputing it", "covered"),
            ("people say the optimizer must be saved, but that's not so", "contradicted"),
            ("some think the weights are enough. Wrong, we save the optimizer", "covered"),
            ("should we save the optimizer? No, it rebuilds itself", "contradicted"),
            ("should we save the optimizer? Yes, always", "covered"),
            ("why would I save the optimizer", "contradicted"),
            ("why wouldn't you save the optimizer", "covered"),
            ("it isn't optional to save the optimizer", "covered"),
            ("not saving the optimizer is a mistake", "covered"),
            ("we could save the optimizer, but it isn't worth it", "contradicted"),
            ("saving the optimizer can be skipped", "contradicted"),
            ("the optimizer can be deleted from what we save", "contradicted"),
            ("saving the optimizer plays no role", "contradicted"),
            ("saving the optimizer is something nobody needs", "contradicted"),
            ("saving the optimizer isn't useful", "contradicted"),
            ("where there's no cursor, the checkpoint has the optimizer", "covered"),
            ("the cursor isn't enough, hence save the optimizer", "covered"),
            ("no cursor -> save the optimizer", "covered"),
            ("I log the weights. A cursor is enough", "missed"),
            ("", "missed"),
        ],
    )
    def test_a_negation_turns_a_claim_around(self, text: str, wanted: str) -> None:
        """Word lists alone score a claim and its opposite the same."""
        assert found(text) == wanted

    def test_it_says_where_a_claim_decided_and_not_only_the_weights(self) -> None:
        """Whoever asks "are you sure?" has to be."""
        assert judge(SAVED, "I don't save the optimizer").denied == ("it",)
        assert judge(SAVED, "weights are enough").denied == ("it",)
        assert judge(SAVED, "I save the optimizer").denied == ()
        # The first half is right, in words with a negation that no claim lists.
        text = (
            "never delete the old one until the new one is verified. older sparse checkpoints "
            "aren't needed though, three is plenty"
        )
        coverage = judge(DECK["retention_last_three"], text)
        assert "verify_then_delete" in coverage.contradicted
        assert coverage.denied == ("crashes_only", "sparse_ones")

    def test_a_group_may_be_negated_where_that_says_the_same(self) -> None:
        card = card_with("Each sample is trained on once.", [["sample", "any: twice | once"]])
        assert found("no sample is trained twice", card) == "covered"
        assert found("each sample once", card) == "covered"

    def test_a_phrase_may_contain_its_own_negation(self) -> None:
        card = card_with("The weights are not enough.", [["weights", "not .. enough"]])
        assert found("the weights aren't nearly enough", card) == "covered"
        assert found("the weights are enough", card) == "missed"


class TestCloseness:
    """Nobody can list all the words for a thing."""

    def test_a_point_is_covered_in_words_that_no_claim_lists(self) -> None:
        card = DECK["faster_per_epoch"]
        without = card.model_copy(update={"points": tuple(map(unreachable, card.points))})
        coverage = judge(without, card.strong)
        assert coverage.covered == tuple(point.id for point in card.points)
        assert "log sample IDs per rank" in coverage.because["check_ids"]

    def test_every_number_has_its_weights(self) -> None:
        """A number without one fails in the learner's hands."""
        (one, *_) = evidence(SAVED, read(SAVED, "I save the optimizer"))
        known = tomllib.loads(MATCHER.read_text("utf-8"))
        assert {*known["covered"]} == {*known["contradicted"]} == {ALWAYS, *one.numbers}


def unreachable(point: Point) -> Point:
    """The point with a further concept in each of its claims, which no answer has."""
    return point.model_copy(update={"says": tuple((*c, "zeppelin") for c in point.says)})


class TestWords:
    @pytest.mark.parametrize(
        "text",
        [
            "SAVE THE OPTIMIZER",
            "saving optimizers",
            "save the optimzer",  # a typing error
            "ckpt the opt",
            "optimizer: saved",
            "we checkpoint (among other things) the optimizer",
            "save — the optimizer",
        ],
    )
    def test_people_type_it_in_many_ways(self, text: str) -> None:
        assert found(text) == "covered"

    def test_a_word_that_is_spelled_right_is_not_corrected(self) -> None:
        """Sharded is one letter away from shared, and means something else."""
        card = card_with("The weights are shared.", [["shared | shares", "weights"]])
        text = card.model_copy(update={"strong": "Sharded weights."})
        assert found("the weights are sharded", text) == "missed"

    def test_all_reduce_is_one_word_or_two(self) -> None:
        card = card_with("Gradients are all-reduced.", [["all reduce", "gradient"]])
        for text in ("allreduce the grads", "all-reduce gradients", "gradients all reduced"):
            assert found(text, card) == "covered"

    def test_only_words_that_belong_together_are_joined(self) -> None:
        """Links that lose packets aren't a loss that is high."""
        card = card_with("Lossy links are found by their counters.", [["lossy", "counter"]])
        assert found("lossy: read the counters", card) == "covered"
        assert found("the loss is in the counters", card) != "covered"

    def test_a_collective_is_not_collected(self) -> None:
        stems = [word.stem for word in words_of("collective collect positive position")]
        assert len({*stems}) == 4

    @pytest.mark.parametrize(
        ("british", "american"),
        [
            ("the optimiser's behaviour, analysed", "the optimizer's behavior, analyzed"),
            ("serialised and labelled at the centre", "serialized and labeled at the center"),
        ],
    )
    def test_british_spellings_are_the_same_words(self, british: str, american: str) -> None:
        stems = [[word.stem for word in words_of(text)] for text in (british, american)]
        assert stems[0] == stems[1]

    @given(st.text(max_size=300))
    def test_any_text_can_be_judged(self, text: str) -> None:
        """An answer is whatever was in the field."""
        coverage = judge(SAVED, text)
        assert sorted([*coverage.covered, *coverage.missed, *coverage.contradicted]) == [
            "it",
            "other",
        ]
        assert {*coverage.because} == {*coverage.covered, *coverage.contradicted}
        for word in words_of(text):
            assert 0 <= word.start < word.end <= len(text)

    @given(st.text(max_size=300))
    def test_the_same_answer_gets_the_same_result(self, text: str) -> None:
        assert judge(SAVED, text) == judge(SAVED, text)

    def test_the_words_that_decided_are_those_that_were_typed(self) -> None:
        text = "First things first.\nWe SAVE the\n optimizer state."
        assert judge(SAVED, text).because == {"it": "We SAVE the optimizer state"}


def test_an_unknown_card_is_named() -> None:
    with pytest.raises(UnknownCard, match="Did you mean resume_is_correct"):
        judge_answer("resume_is_corect", "x")


class TestAgreement:
    """Judged on answers that were written before the matcher and never used to tune it.

    docs/deck.md has the figures.
    """

    def test_the_sets_are_large_and_have_every_kind(self) -> None:
        for which in SETS:
            kinds = Counter(answer["kind"] for _, answer in labeled(which))
            assert {*kinds} == {*KINDS}
            assert kinds.total() >= (100 if which.endswith("biotech") else 200)

    def test_no_answer_is_in_both_sets(self) -> None:
        tuned, *others = [{" ".join(a["text"].split()) for _, a in labeled(s)} for s in SETS]
        assert all(not tuned & unseen for unseen in others)

    @pytest.mark.parametrize("which", SETS)
    def test_it_agrees_with_the_labels(self, which: str) -> None:
        """A learner who is told the wrong thing stops believing the right ones."""
        count = sum(agreement(which).values(), Counter())
        least_agreement, most_false, least_negated = SETS[which]
        elsewhere = count["points"] - count["covered"]
        assert count["agree"] / count["points"] >= least_agreement, count
        assert count["falsely covered"] / elsewhere <= most_false, count
        assert count["negated, found"] / count["negated"] >= least_negated, count

    def test_the_page_has_the_table_that_the_script_prints(self) -> None:
        """Figures of an older matcher; python scripts/deck_agreement.py --write fixes it."""
        assert table("held_out") in PAGE.read_text("utf-8")

    @pytest.mark.parametrize("card", DECK.values(), ids=lambda card: card.id)
    def test_its_own_strong_answer_covers_every_point(self, card: Card) -> None:
        assert judge(card, card.strong).missed == ()
        assert judge(card, card.strong).contradicted == ()
