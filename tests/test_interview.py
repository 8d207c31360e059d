"""The mock interview: its clock, its questions, what it keeps, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rehearsal
from rehearsal.deck.cards import card_named, cards
from rehearsal.deck.judge import Coverage
from rehearsal.incidents.kinds.registry import KINDS
from rehearsal.incidents.sources import scope_of
from rehearsal.incidents.store import BadCase
from rehearsal.incidents.tracks import TRACKS
from rehearsal.interviews import opening
from rehearsal.interviews.boxes import SHARES, box_at, boxes
from rehearsal.interviews.built import SIGNS, facts_of, notebook_text
from rehearsal.interviews.heard import cause_in, prompts, questions_in, sources_in
from rehearsal.interviews.interviewer import (
    CLOSING,
    TURNS,
    Line,
    Setting,
    _asked,
    _fitting,
    bank,
    of_setting,
    turns,
)
from rehearsal.interviews.on_call import BY_FACT, MOST_LINES, OnCall, kind_for, module_in
from rehearsal.interviews.rubric import ROWS, RUBRIC
from rehearsal.interviews.opening import interview
from rehearsal.interviews.session import Interview
from rehearsal.interviews.state import Asked, Said
from rehearsal.interviews.store import BadInterview

TYPED = (
    "from dataclasses import dataclass\n\n\n@dataclass\nclass TrainConfig:\n    seed: int = 1\n"
)

BIOTECH_KINDS = TRACKS["biotech"].deck.kinds


# How somebody on call would name each cause.
SAID = {
    "loader_starved": [
        "We're input bound, the data loader can't keep up.",
        "num_workers is zero, so every step waits for its batch.",
    ],
    "slow_rank": [
        "Host trn-05 is throttling, it's thermal, and everybody waits for it.",
        "There's a straggler: rank 1 is three times slower than the others.",
    ],
    "slow_network": [
        "The fabric is congested. All-reduce takes five times as long on every rank.",
        "It's the network, the rail is slow.",
    ],
    "slow_loader_worker": [
        "One loader worker on that machine is slow, so every other batch comes late.",
        "One of the loader processes is slow.",
    ],
    "skewed_clock": [
        "The clock on that host is off by minutes, so its timestamps look old.",
        "It's clock skew on one machine.",
    ],
    "checkpoint_every_20_minutes": [
        "The save blocks everybody, and it goes to slow storage.",
        "Every stall is a synchronous checkpoint.",
    ],
    "full_disk": [
        "The checkpoint volume is full.",
        "We ran out of disk space for checkpoints.",
    ],
    "rare_checkpoints": [
        "We checkpoint too seldom, so each preemption costs hours.",
        "The checkpoint interval is too long.",
    ],
    "retry_storm": [
        "Retries without backoff hammer the object store.",
        "It's a retry storm: each 503 makes more requests.",
    ],
    "duplicate_shards": [
        "Every rank trains on the same samples, the sampler ignores the rank.",
        "The ranks got the same shard twice.",
    ],
    "wrong_epoch_seed": [
        "Every epoch has the same order, somebody dropped set_epoch.",
        "The shuffle no longer depends on the epoch, it's the same permutation each time.",
    ],
    "skipped_samples_after_resume": [
        "After a resume we skip what was prefetched.",
        "The restart skips batches that the loader had fetched and nobody trained on.",
    ],
    "learning_rate_jump": [
        "The learning rate schedule starts over after each restart.",
        "The LR resets, so warmup runs again after the restart.",
    ],
    "torn_newest_checkpoint": [
        "The newest checkpoint is truncated, and every restart picks it.",
        "The latest checkpoint is corrupt and nobody verifies it.",
    ],
    "one_rank_on_an_old_checkpoint": [
        "One rank restored an older checkpoint than the others.",
        "Rank 1 has stale state from a local cache.",
    ],
    "resized_restart": [
        "The global batch isn't pinned, so a restart on fewer hosts is refused.",
        "The restart is refused, because the batch depends on the number of hosts.",
    ],
    "batch_changed_with_world_size": [
        "The batch size changed with the number of hosts.",
        "The resume silently trains with another global batch.",
    ],
    "mean_of_means": [
        "The loss is a mean of means: the ranks have different counts.",
        "Each rank averages over its own samples, and the shares are uneven.",
    ],
    "stuck_host": [
        "One host is stuck and never enters the collective.",
        "That node's adapter stopped answering.",
    ],
    "collective_on_one_rank": [
        "Only rank 0 calls the barrier.",
        "There's a collective under a condition on the rank, so they don't match.",
    ],
    "replicas_not_synced": [
        "The gradients are never averaged, each rank trains its own model.",
        "Everything runs under no_sync, so there's no gradient sync at all.",
    ],
    "corrupted_weights": [
        "The weights on one host are corrupt, probably bad memory.",
        "A bit flipped in one replica's parameters.",
    ],
    "corrupted_gradient": [
        "One host produces garbage gradients, and the average poisons all.",
        "It's silent corruption of one rank's gradient.",
    ],
    "nan_in_the_data": [
        "There's a NaN in one input sample.",
        "One record of the data isn't finite, it's NaN.",
    ],
    "learning_rate_too_high": [
        "The learning rate is way too high.",
        "LR is a hundred times too large.",
    ],
    "evaluation_changes_training": [
        "The evaluation leaves the model in eval mode.",
        "Dropout stays off after the first evaluation.",
    ],
    "memory_leak": [
        "Memory grows with every step on rank 1, it's a leak.",
        "Somebody keeps every batch in a list, so RAM climbs.",
    ],
    "out_of_memory": [
        "The micro-batch doesn't fit into memory anymore.",
        "We run out of memory because the micro batch was doubled.",
    ],
    "no_fault": [
        "Nothing is wrong, the alert is too sensitive. I'd leave it.",
        "It's a false alarm, the job is healthy.",
    ],
}
SAID_IN_BIOTECH = {
    "leaky_split": [
        "The split leaks: scaffolds are shared between training and validation.",
        "It's a leaky split, near duplicates of the test set are in the training part.",
    ],
    "missing_labels_as_negatives": [
        "Missing labels got filled with zeros, so they count as inactive.",
        "The new delivery writes 0 where nothing was measured: unmeasured became negative.",
    ],
    "metric_averaged_over_ranks": [
        "AUROC is computed on each rank and then averaged. It has to be one list.",
        "The enrichment is a mean over the ranks instead of over all scores.",
    ],
    "scaler_fitted_on_all_data": [
        "The scaler was fitted on everything, the held-out part included.",
        "Energies are normalized with statistics of all the data, the test part too.",
    ],
    "bins_by_count": [
        "Batches have a fixed number of sequences, so one rank gets all the long ones.",
        "The bins are filled by count and not by tokens.",
    ],
    "uncropped_protein": [
        "There's one very long protein, and nothing crops it.",
        "The crop is off, so a single long sequence takes all the memory of that rank.",
    ],
    "positions_in_bf16": [
        "The positions are cast to bf16, and that breaks the symmetry.",
        "Equivariance is gone since the coordinates are in half precision.",
    ],
    "plate_with_another_cutoff": [
        "One plate was called with a different threshold than the rest.",
        "It's a batch effect: that plate's cutoff has shifted.",
    ],
    "no_fault": ["Nothing is wrong here, the alert is noise."],
}


BIOTECH = {"molecules", "sequences", "structures", "billion_molecules", "wet_lab"}  # topics


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def at(self, minute: float) -> None:
        self.seconds = 60 * minute


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody's history is touched, and no ranks start: what is typed gets a fixed verdict."""
    monkeypatch.setenv("REHEARSAL_HOME", str(tmp_path))
    monkeypatch.setattr("rehearsal.interviews.checks.grade_source", passes_so_far)
    monkeypatch.setattr("rehearsal.interviews.on_call.incident_in", no_job)
    yield
    for held in [*opening._open.values()]:
        held.close()


def no_job(*_: object) -> None:
    raise OSError("no job in this test")


def passes_so_far(drill: str, text: str, **_: object) -> rehearsal.Verdict:
    return rehearsal.Verdict(
        drill=drill, status="not_attempted", findings=[], stages=["config"], next_stage="data"
    )


def heard_from(held: Interview) -> list[str]:
    """What the interviewer says until there is nothing more."""
    found = []
    while (line := held.next()) is not None:
        found.append(line)
    return found


def hear_until(held: Interview, clock: Clock, card: str) -> None:
    """Let time pass until a card is asked."""
    while card not in asked_in(held):
        assert not held.is_over, f"{card} was never asked"
        clock.seconds += 30
        held.next()


def kinds_of(held: Interview) -> list[str]:
    return [event["kind"] for event in held.events if event["did"] == "line"]


def asked_in(held: Interview) -> list[str]:
    return [event["card"] for event in held.events if event.get("kind") == "question"]


class TestBoxes:
    @given(st.floats(15, 240), st.floats(0, 1))
    def test_each_minute_is_in_one_box(self, minutes: float, share: float) -> None:
        """A minute without a box has no purpose to show."""
        plan = boxes(minutes)
        assert [box.name for box in plan] == list(SHARES)
        assert plan[0].begins == 0
        assert plan[-1].ends == minutes
        assert all(a.ends == b.begins for a, b in pairwise(plan))
        box = box_at(share * minutes, minutes)
        assert box.begins <= share * minutes <= box.ends

    @pytest.mark.parametrize("minutes", [15, 20, 30, 45, 60, 240])
    def test_every_row_has_a_turn_in_any_length(self, minutes: int) -> None:
        """A row that nobody asks about would be marked for the interviewer's silence."""
        rows = {row for row, _ in turns(minutes)}
        assert rows == {row for row, _ in TURNS}
        times = [at for _, at in turns(minutes)]
        assert times == sorted(times)
        assert times[-1] < minutes

    def test_a_long_interview_asks_about_failures_and_tradeoffs_twice(self) -> None:
        """A short one has no time for it."""
        rows = {minutes: [row for row, _ in turns(minutes)] for minutes in (15, 45)}
        assert [rows[15].count(row) for row in ("failures", "tradeoffs")] == [1, 1]
        assert [rows[45].count(row) for row in ("failures", "tradeoffs")] == [2, 2]


class TestDataFiles:
    def test_every_question_is_a_card_and_a_row(self) -> None:
        known = {card.id for card in cards()}
        for question in bank():
            assert question.card in known
            assert question.row in ROWS

    def test_every_row_that_is_asked_about_has_a_question_for_anybody(self) -> None:
        """A turn without a question that fits would pass in silence."""
        asked = {row for row, _ in TURNS} - {"debugs", "communicates"}
        for row in asked:
            mine = [question for question in bank() if question.row == row]
            # For somebody who has done nothing, and for somebody who has done everything.
            assert any(not question.when for question in mine), row
            assert any(not question.unless for question in mine), row

    def test_every_fact_that_a_question_waits_for_can_happen(self) -> None:
        """A misspelled fact makes a question that is never asked."""
        from rehearsal.grading.drill import load

        possible = {f"built:{name}" for name in [*SIGNS, "rank zero"]} | {"typed", "spoke"}
        possible |= {f"said:{name}" for name in prompts()["says"]}
        possible |= {f"heard:{name}" for name in prompts()["asks"]}
        possible |= {f"in:{one['id']}" for one in prompts()["situation"]}
        possible |= {f"in:{setting}" for setting in get_args(Setting)}
        possible |= {f"box:{name}" for name in SHARES}
        possible |= {f"passed:{stage.name}" for stage in load("live_trainer").stages}
        for question in bank():
            assert {*question.when, *question.unless} <= possible, question.card

    def test_every_fact_about_the_code_is_asked_about(self) -> None:
        """A fact that nobody uses is a rule that nobody can see."""
        used = {fact for question in bank() for fact in (*question.when, *question.unless)}
        used |= {*BY_FACT}
        assert {f"built:{name}" for name in SIGNS} <= used

    def test_every_question_about_the_situation_has_an_answer(self) -> None:
        for situation in prompts()["situation"]:
            assert set(prompts()["asks"]) == set(situation) - {"id", "setting"}

    def test_each_biotech_situation_is_asked_about_by_its_own_questions(self) -> None:
        """A setting in which everything is asked as anywhere is a setting in name only."""
        general = {one["id"] for one in of_setting("situation", "general")}
        asked = {row for row, _ in TURNS} - {"debugs", "communicates"}
        for situation in of_setting("situation", "biotech"):
            facts = {f"in:{situation['id']}", "in:biotech"}
            rows = {one.row for one in bank() if {*one.when} & facts}
            assert rows == asked, situation["id"]
        for one in bank():
            assert not ("in:biotech" in one.when and {*one.when} & {f"in:{n}" for n in general})

    def test_every_cause_and_source_can_be_named_in_words(self) -> None:
        """Somebody who talks can't be expected to know the ids."""
        for track in TRACKS.values():
            kinds = track.deck.kinds
            for kind in kinds.values():
                assert cause_in(f"{kind.title}.", sorted(kinds)) == kind.id
            for source in track.sources:
                said = f"Show me the {source.replace('_', ' ')}."
                assert source in sources_in(said), source

    def test_the_rubric_leads_to_what_exists(self) -> None:
        known = {drill.id for drill in rehearsal.drills()}
        topics = {card.topic for card in cards()}
        chapters = Path(__file__).parents[1] / "notebooks/handbook"
        for row in RUBRIC:
            assert set(row.practice.drills) <= known
            assert set(row.practice.topics) <= topics
            for chapter in row.practice.chapters:
                assert (chapters / f"{chapter}.ipynb").exists()

    def test_the_rubric_is_chapter_tens(self) -> None:
        """Two rubrics would be two interviews."""
        chapter = Path(__file__).parents[1] / "notebooks/src/handbook/10_interview_map.py"
        text = chapter.read_text("utf-8")
        for row in RUBRIC:
            assert f"# | {row.name} | " in text, row.name


class TestNotebookText:
    def test_a_later_definition_replaces_an_earlier_one(self) -> None:
        """Otherwise the graders judge a function that the notebook no longer has."""
        text = notebook_text(
            ("def run():\n    return 1\n\n\nx = 1\n", "def run():\n    return 2\n")
        )
        assert text.count("def run") == 1
        assert "return 2" in text
        assert "x = 1" in text

    def test_a_cell_that_does_not_parse_leaves_the_others_standing(self) -> None:
        assert notebook_text(("x = 1", "def run(:")) == "x = 1"

    def test_future_imports_come_first(self) -> None:
        """Python refuses them anywhere else."""
        future = "from __future__ import annotations"
        text = notebook_text(("x: int = 1", f"{future}\n\ny: int = 2"))
        compile(text, "text", "exec")
        assert text.startswith(future)

    def test_an_edited_cell_comes_before_those_that_need_it(self) -> None:
        """Else each later check ends with a NameError; in the notebook, it was there."""
        text = notebook_text(
            (
                "",  # where the class was before it was edited
                "def seed_for(cfg: TrainConfig) -> int:\n    return cfg.seed",
                "class Small(TrainConfig):\n    lines = [LIMIT for _ in range(2)]",
                "LIMIT = 3",
                "class TrainConfig:\n    seed = 1",
                "def run(): return not_needed_yet",
            )
        )
        exec(compile(text, "text", "exec"), {})
        assert text.index("class TrainConfig") < text.index("def seed_for")
        assert text.index("def seed_for") < text.index("class Small") < text.index("def run")

    def test_cells_that_need_each_other_stay_in_their_order(self) -> None:
        cells = ("class A:\n    b = B", "class B:\n    a = A")
        assert notebook_text(cells) == "\n\n\n".join(cells)

    def test_comments_survive(self) -> None:
        assert "# why" in notebook_text(("x = 1  # why\n",))

    @given(st.lists(st.text(max_size=60), max_size=4))
    def test_anything_can_be_typed(self, cells: list[str]) -> None:
        facts_of(notebook_text(tuple(cells)))


class TestWhatIsHeard:
    @pytest.mark.parametrize(
        ("text", "topics"),
        [
            ("How many GPUs do we have, and on how many nodes?", {"scale"}),
            ("Does the optimizer state fit on one GPU?", {"memory"}),
            ("how often do nodes fail", {"failures"}),
            ("Can you preempt us, like spot?", {"preemption"}),
            ("What do you want to see by the end?", {"goal"}),
            ("I'd like to know how many GPUs we have.", {"scale"}),
            ("It depends on how many GPUs there are.", set()),
            ("I'll use all the GPUs on the nodes.", set()),
            ("Machines fail, so I save often.", set()),
        ],
    )
    def test_a_question_is_told_from_a_statement(self, text: str, topics: set[str]) -> None:
        assert {heard.what for heard in questions_in(text)} == topics

    @pytest.mark.parametrize(("cause", "said"), [(c, t) for c in SAID for t in SAID[c]])
    def test_a_cause_is_recognized_in_words(self, cause: str, said: str) -> None:
        """Somebody who talks can't be expected to know the ids."""
        assert cause_in(said, sorted(KINDS)) == cause

    @pytest.mark.parametrize(
        ("cause", "said"), [(c, t) for c in SAID_IN_BIOTECH for t in SAID_IN_BIOTECH[c]]
    )
    def test_a_cause_of_the_biotech_track_is_recognized(self, cause: str, said: str) -> None:
        """The same, for somebody who interviews at a biotech company."""
        assert cause_in(said, sorted(BIOTECH_KINDS)) == cause

    def test_a_cause_that_is_ruled_out_is_not_named(self) -> None:
        text = "It isn't the network. The loader starves the ranks, it has no workers."
        assert cause_in(text, sorted(KINDS)) == "loader_starved"


class TestTheBiotechIncident:
    def test_every_fault_of_the_track_comes_up(self) -> None:
        """Ten sessions about the same leak would teach that biotech has one problem."""
        drawn = {kind_for(frozenset(), seed, "biotech") for seed in range(200)}
        assert drawn == {kind.id for kind in BIOTECH_KINDS.values() if kind.layer != "none"}

    def test_it_needs_no_package_that_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without RDKit, a session with a molecules job would have no incident at all."""
        track = "rehearsal.incidents.biotech.track.find_spec"
        monkeypatch.setattr(track, lambda name: None)
        drawn = {kind_for(frozenset(), seed, "biotech") for seed in range(100)}
        assert drawn
        assert "leaky_split" not in drawn

    @pytest.mark.parametrize(
        ("said", "found"),
        [
            ("Show me the code of splits.py", "bio/splits.py"),
            ("Let me see bio/splits.py", "bio/splits.py"),
            ("Show me data.py", "data.py"),
            ("Show me launch.py", "launch.py"),
            ("Can I see bio/launch.py?", "bio/launch.py"),
            ("Show me nosuch.py", None),
            ("Show me the code", None),
        ],
    )
    def test_a_module_is_named_with_or_without_its_folder(
        self, said: str, found: str | None
    ) -> None:
        assert module_in(said, TRACKS["biotech"].module_names()) == found

    def test_the_setting_chooses_the_track(
        self, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A biotech interview with a torn checkpoint is the general one in disguise."""
        asked = []

        def record(folder: Path, seed: int, kind: str | None, track: str) -> None:
            asked.append((kind in BIOTECH_KINDS, track))
            raise BadCase("no job in this test")

        monkeypatch.setattr("rehearsal.interviews.on_call.incident_in", record)
        for seed, setting in enumerate(get_args(Setting)):
            session = interview(45, seed, setting=setting, clock=clock)
            session._on_call.prepare(frozenset())
        assert asked == [(False, "general"), (True, "biotech")]


class TestTheConversation:
    def test_it_begins_with_the_prompt(self, clock: Clock) -> None:
        held = interview(45, 3, clock=clock)
        assert heard_from(held) == [held.prompt]

    @pytest.mark.parametrize("seed", range(6))
    def test_the_biotech_setting_asks_biotech_questions(self, seed: int, clock: Clock) -> None:
        """The data and the questions are its own; the trainer is the same."""
        held = interview(45, seed, setting="biotech", clock=clock)
        assert heard_from(held) == [held.prompt]
        assert held.prompt in [one["text"] for one in of_setting("prompt", "biotech")]
        while not held.is_over:
            heard_from(held)
            clock.seconds += 30
        topics = [card_named(card).topic for card in asked_in(held)]
        assert sum(topic in BIOTECH for topic in topics) >= 4, topics

    def test_the_general_setting_has_no_biotech(self, clock: Clock) -> None:
        held = interview(45, 3, clock=clock)
        while not held.is_over:
            heard_from(held)
            clock.seconds += 30
        assert not {card_named(card).topic for card in asked_in(held)} & BIOTECH

    def test_a_question_gets_the_situations_answer(self, clock: Clock) -> None:
        held = interview(45, 3, clock=clock)
        heard_from(held)
        held.say("How many GPUs are there?")
        assert heard_from(held) == [held._script.situation["scale"]]

    def test_any_other_question_is_answered_too(self, clock: Clock) -> None:
        """An interviewer who says nothing seems to be broken."""
        held = interview(45, 3, clock=clock)
        heard_from(held)
        held.say("May I use numpy?")
        assert heard_from(held) == ["That's up to you. Tell me what you assume."]

    def test_naming_ddp_brings_a_question_about_it(self, clock: Clock) -> None:
        held = interview(45, 3, clock=clock)
        heard_from(held)
        held.say("I'll use DDP for this.")
        clock.at(5.5)
        heard_from(held)
        assert asked_in(held)[0] in ("fsdp_from_the_start", "ddp_like_everyone")
        assert any("Why not FSDP?" in line["text"] for line in held.events if "kind" in line)

    def test_without_a_checkpoint_it_asks_about_one(self, clock: Clock) -> None:
        held = interview(45, 3, clock=clock)
        heard_from(held)
        held.type(TYPED)
        hear_until(held, clock, "weights_and_step")
        assert "torn_newest_file" not in asked_in(held)

    def test_with_a_checkpoint_it_asks_about_that_one(self, clock: Clock) -> None:
        held = interview(45, 3, clock=clock)
        heard_from(held)
        held.type("import torch\n\n\ndef save_checkpoint(path, s):\n    torch.save(s, path)\n")
        hear_until(held, clock, "torn_newest_file")
        assert "weights_and_step" not in asked_in(held)

    def test_what_contradicts_the_facts_is_not_asked(self, clock: Clock) -> None:
        """An interviewer who asks for what is on the screen hasn't looked."""
        held = interview(45, 3, clock=clock)
        held.say("We save checkpoints, and then I'd restart the job.")
        held.type("import torch\n\n\ndef save_checkpoint(path, s):\n    torch.save(s, path)\n")
        fitting = [one.card for one in _fitting(held._script, held._state, 20)]
        assert "torn_newest_file" in fitting
        assert "weights_and_step" not in fitting
        assert "is_fsync_needed" not in fitting

    def test_pushback_waits_for_its_turn(self, clock: Clock) -> None:
        """Only what follows from a word that was said comes at once."""
        held = interview(45, 3, clock=clock)
        heard_from(held)
        held.say("How many GPUs are there? Let me sketch it.")
        heard_from(held)
        held.type(TYPED)
        clock.at(5.2)
        heard_from(held)
        assert asked_in(held) == []

    def test_a_wrong_claim_is_questioned(self, clock: Clock) -> None:
        held = interview(45, 3, clock=clock)
        heard_from(held)
        held.type(TYPED)
        hear_until(held, clock, "weights_and_step")
        held.say("Weights and step are enough to continue.")
        assert any("Are you sure?" in line for line in heard_from(held))

    def test_where_only_the_weights_speak_against_it_the_question_is_open(
        self, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are more often wrong, and who is right takes it back at "Are you sure?"."""
        held = interview(45, 3, clock=clock)
        heard_from(held)
        held.type(TYPED)
        hear_until(held, clock, "weights_and_step")
        first, second = (point.id for point in held._state.asked[-1].card.points[:2])
        found = Coverage((), (), (first,), {first: "the first words"})
        monkeypatch.setattr("rehearsal.interviews.state.judge", lambda *_: found)
        held.say("The first words.")
        (line,) = heard_from(held)
        assert line == 'You said: "the first words". What makes you say that?'
        both = Coverage((), (), (first, second), {first: "1", second: "2"}, (second,))
        monkeypatch.setattr("rehearsal.interviews.state.judged", lambda *_: both)
        assert held._state.asked[-1].contradictions == [("2", True), ("1", False)]

    @pytest.mark.parametrize("minutes", [15, 20, 45, 90])
    def test_no_question_names_another_length_than_this_interviews(
        self, minutes: int, clock: Clock
    ) -> None:
        """In twenty minutes, "you have 45" plans an interview that isn't held."""
        for question in bank():
            text = _asked(question, minutes).text.lower()
            assert not re.search(r"you have (?!" + str(minutes) + r"\b)\d+ minutes", text)
        held = interview(minutes, 3, clock=clock)
        while not held.is_over:
            heard_from(held)
            clock.seconds += 15
        asked = {e["card"]: e["text"] for e in held.events if e.get("kind") == "question"}
        assert "one minute left" not in asked[CLOSING]
        (question,) = [one for one in bank() if one.card == "left_out_on_purpose"]
        assert f"You have {minutes} minutes for all of this." in _asked(question, minutes).text

    def test_silence_is_noticed(self, clock: Clock) -> None:
        held = interview(45, 3, clock=clock)
        heard_from(held)
        held.say("How many GPUs? Let me type.")
        heard_from(held)
        held.type(TYPED)
        clock.at(5.9)
        heard_from(held)
        asked = len(kinds_of(held))
        clock.at(12)
        heard_from(held)
        assert len(kinds_of(held)) > asked

    @pytest.mark.parametrize("minutes", [15, 45])
    def test_every_row_is_asked_about(self, minutes: int, clock: Clock) -> None:
        """Whatever the candidate does, in any length."""
        held = interview(minutes, 3, clock=clock)
        while not held.is_over:
            heard_from(held)
            clock.seconds += 15
        rows = {event["row"] for event in held.events if event.get("kind") == "question"}
        assert rows == {row for row, _ in TURNS} - {"debugs"}
        assert len(asked_in(held)) == len(set(asked_in(held)))  # nothing is asked twice

    def test_it_ends_when_the_time_is_up_and_drafts_count(self, clock: Clock) -> None:
        held = interview(15, 3, clock=clock)
        heard_from(held)
        held.type(TYPED)
        clock.at(15)
        assert heard_from(held) == ["That's time. Whatever you've typed by now counts."]
        builds = next(mark for mark in held.scorecard().rows if mark.row == "builds")
        assert any("config pass" in one.what for one in builds.evidence)

    def test_two_interviews_of_a_seed_are_the_same(self, clock: Clock) -> None:
        first = interview(45, 5, clock=clock)
        lines = heard_from(first)
        first.end()
        second = interview(45, 5, clock=Clock())
        assert heard_from(second) == lines
        assert second.name != first.name


class TestTheClock:
    def test_a_pause_does_not_count(self, clock: Clock) -> None:
        held = interview(45, 3, clock=clock)
        clock.at(5)
        held.pause()
        clock.at(30)
        assert held.minute == pytest.approx(5)
        assert held.next() is None
        held.resume()
        clock.at(31)
        assert held.minute == pytest.approx(6)

    def test_nothing_is_kept_while_it_is_paused(self, clock: Clock) -> None:
        held = interview(45, 3, clock=clock)
        held.pause()
        with pytest.raises(BadInterview, match=r"paused.*resume"):
            held.say("Hello")

    def test_a_clock_that_goes_back_does_not_take_minutes_back(self, clock: Clock) -> None:
        held = interview(45, 3, clock=clock)
        clock.at(-5)
        assert held.minute == 0

    def test_it_never_exceeds_the_length(self, clock: Clock) -> None:
        held = interview(15, 3, clock=clock)
        clock.at(500)
        heard_from(held)
        assert held.scorecard().minutes == 15


class TestItSurvives:
    @pytest.mark.ranks
    def test_a_dead_process(self, tmp_path: Path, clock: Clock) -> None:
        """What was said and typed must be there, and the time in between must not count."""
        code = (
            "import os, rehearsal\n"
            "now = [0.0]\n"
            "held = rehearsal.interview(45, 7, clock=lambda: now[0])\n"
            "held.next(); held.say('How many GPUs?')\n"
            "now[0] = 300.0; held.say('So far so good.')\n"
            "os._exit(9)\n"
        )
        subprocess.run([sys.executable, "-c", code], check=False, timeout=120)
        held = interview(45, 7, clock=clock)
        assert held.minute == pytest.approx(5)
        assert [e["text"] for e in held.events if e["did"] == "say"][-1] == "So far so good."

    def test_a_line_cut_short(self, clock: Clock) -> None:
        held = interview(45, 7, clock=clock)
        held.say("first")
        held.close()
        path = held._store.folder / "events.jsonl"
        path.write_text(path.read_text() + '{"did": "sa')
        again = interview(45, 7, clock=clock)
        again.say("second")
        again.close()
        last = interview(45, 7, clock=clock)
        said = [event["text"] for event in last.events if event["did"] == "say"]
        assert said == ["first", "second"]

    def test_a_cell_whose_verdict_never_came_is_judged_again(self, clock: Clock) -> None:
        held = interview(45, 7, clock=clock)
        held.type(TYPED)
        held.close()
        path = held._store.folder / "events.jsonl"
        lines = path.read_text().splitlines()
        path.write_text("\n".join(one for one in lines if '"checked"' not in one) + "\n")
        again = interview(45, 7, clock=clock)
        assert any(event["did"] == "checked" for event in again.events)

    def test_a_cell_that_was_taken_back(self, clock: Clock) -> None:
        """And nothing was judged since: the marks would rest on code that isn't there."""
        held = interview(45, 7, clock=clock)
        held.type("def kept(): ...", cell="a")
        held.type("def gone(: ...", cell="b")
        held.type("def gone(): ...", cell="b")
        held.take_back("b")
        assert held.text == "def kept(): ..."
        assert not held.has_typed("b")
        held.close()
        path = held._store.folder / "events.jsonl"
        lines = path.read_text().splitlines()
        assert '"checked"' in lines[-1]
        path.write_text("\n".join(lines[:-1]) + "\n")
        again = interview(45, 7, clock=clock)
        assert again.text == "def kept(): ..."
        assert again.events[-1]["did"] == "checked"

    def test_a_broken_cell_that_is_taken_back_is_no_problem_anymore(self, clock: Clock) -> None:
        held = interview(45, 7, clock=clock)
        held.type("def broken(:", cell="a")
        assert held._state.problem
        held.take_back("a")
        assert not held._state.problem

    def test_its_home_is_the_learner_s_alone(
        self, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What somebody says and types is nobody else's business on a shared machine."""
        monkeypatch.setenv("REHEARSAL_HOME", str(tmp_path / "a" / "home"))
        interview(45, 7, clock=clock)
        assert (tmp_path / "a" / "home").stat().st_mode & 0o077 == 0

    def test_a_grader_that_fails(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        """Our own defect must not end somebody's interview."""

        def fails(*_: object, **__: object) -> None:
            raise RuntimeError("no ranks today")

        monkeypatch.setattr("rehearsal.interviews.checks.grade_source", fails)
        held = interview(45, 7, clock=clock)
        held.type(TYPED)
        held.end()
        builds = next(mark for mark in held.scorecard().rows if mark.row == "builds")
        assert builds.evidence[0].what == "nothing typed could be judged"

    def test_an_incident_whose_job_fails(self, clock: Clock) -> None:
        held = interview(15, 7, clock=clock)
        while not held.is_over:
            heard_from(held)
            clock.seconds += 30
        assert kinds_of(held).count("incident over") == 1


class TestBadInput:
    @pytest.mark.parametrize("minutes", [14, 0, -1, 241, float("nan"), "45", True, None])
    def test_minutes(self, minutes: object) -> None:
        with pytest.raises(BadInterview, match=r"minutes=.*15 to 240"):
            interview(minutes)  # type: ignore[arg-type]

    @pytest.mark.parametrize("seed", [-1, 1.5, "1", None, True])
    def test_seed(self, seed: object) -> None:
        with pytest.raises(BadInterview, match="seed="):
            interview(45, seed)  # type: ignore[arg-type]

    def test_mode(self) -> None:
        with pytest.raises(BadInterview, match="real or study"):
            interview(45, 0, mode="exam")  # type: ignore[arg-type]

    def test_setting(self) -> None:
        with pytest.raises(BadInterview, match="general or biotech"):
            interview(45, 0, setting="chemistry")  # type: ignore[arg-type]

    def test_another_setting_than_the_unfinished_one_has(self, clock: Clock) -> None:
        """Continued in silence, it would ask about something else than was asked for."""
        interview(45, 0, setting="biotech", clock=clock).close()
        with pytest.raises(BadInterview, match="its setting is biotech"):
            interview(45, 0, setting="general", clock=clock)
        assert interview(45, 0, clock=clock).prompt in {
            one["text"] for one in of_setting("prompt", "biotech")
        }

    def test_clock(self) -> None:
        with pytest.raises(BadInterview, match="returns seconds"):
            interview(45, 0, clock=12.0)  # type: ignore[arg-type]

    @pytest.mark.parametrize("source", ["", " \n\t", "# a thought\n", '"""Later."""', "..."])
    def test_a_text_without_code(self, source: str, clock: Clock) -> None:
        """It would count as typed: the interviewer asks for no code, and waits for none."""
        held = interview(45, 0, clock=clock)
        with pytest.raises(BadInterview, match="no code in what was typed"):
            held.type(source)
        assert not held.events
        held.type("x = 1")

    def test_taking_back_what_nobody_typed(self, clock: Clock) -> None:
        held = interview(45, 0, clock=clock)
        with pytest.raises(BadInterview, match="Nothing of the cell 'a' counts"):
            held.take_back("a")

    @pytest.mark.parametrize("text", ["", "  \n", None, 3])
    def test_words(self, text: object, clock: Clock) -> None:
        held = interview(45, 0, clock=clock)
        with pytest.raises(BadInterview, match="no words"):
            held.say(text)  # type: ignore[arg-type]

    def test_source(self, clock: Clock) -> None:
        held = interview(45, 0, clock=clock)
        with pytest.raises(BadInterview, match="not the text of a cell"):
            held.type(b"x = 1")  # type: ignore[arg-type]

    def test_after_the_end(self, clock: Clock) -> None:
        held = interview(45, 0, clock=clock)
        held.end()
        held.end()
        with pytest.raises(BadInterview, match="is over"):
            held.say("One more thing")

    def test_a_scorecard_before_the_end(self, clock: Clock) -> None:
        """Looking at the marks would give the rest away."""
        with pytest.raises(BadInterview, match="opens at its end"):
            interview(45, 0, clock=clock).scorecard()

    def test_hints_in_real_mode(self, clock: Clock) -> None:
        with pytest.raises(BadInterview, match="no hints in real mode"):
            interview(45, 0, clock=clock).hint()

    def test_a_newer_version(self, clock: Clock) -> None:
        held = interview(45, 0, clock=clock)
        held.say("Hello")
        held.close()
        path = held._store.folder / "interview.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
        before = sorted(each.read_bytes() for each in path.parent.glob("*.json*"))
        with pytest.raises(BadInterview, match=r"newer version.*nothing was changed"):
            interview(45, 0, clock=clock)
        assert sorted(each.read_bytes() for each in path.parent.glob("*.json*")) == before

    @pytest.mark.ranks
    def test_two_sessions_at_once(self, clock: Clock, tmp_path: Path) -> None:
        """Two would mix their answers."""
        held = interview(45, 0, clock=clock)
        held.say("Hello")
        code = "import rehearsal; rehearsal.interview(45, 0)"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
        )
        assert done.returncode != 0
        assert "open in another notebook or terminal" in done.stderr.splitlines()[-1]
        held.say("Still here")


class TestStudyMode:
    def test_a_hint_names_what_is_missing_and_is_counted(self, clock: Clock) -> None:
        held = interview(45, 3, mode="study", clock=clock)
        heard_from(held)
        assert "Ask what changes the design" in held.hint()
        held.say("I'll use DDP.")
        clock.at(6.5)
        heard_from(held)
        assert held.hint().startswith("Still missing:")
        held.end()
        assert held.scorecard().hints == 2


class TestTheScorecard:
    def test_it_has_every_row_each_with_evidence(self, clock: Clock) -> None:
        held = interview(15, 0, clock=clock)
        held.end()
        card = held.scorecard()
        assert [mark.row for mark in card.rows] == list(ROWS)
        assert all(1 <= mark.mark <= 4 and mark.evidence for mark in card.rows)
        assert len(card.weakest) == 3
        assert card.next

    def test_what_is_kept_is_what_was_shown(self, clock: Clock) -> None:
        held = interview(15, 0, clock=clock)
        heard_from(held)
        held.say(
            "How many GPUs? I'll assume one node. If that's wrong, only the launch changes."
        )
        held.end()
        kept = json.loads((held._store.folder / "scorecard.json").read_text())
        assert {row["row"]: row["mark"] for row in kept["rows"]} == held.scorecard().marks
        assert kept["percent"] == held.scorecard().percent

    def test_evidence_has_the_minute_at_which_it_was_said(self, clock: Clock) -> None:
        held = interview(45, 0, clock=clock)
        heard_from(held)
        clock.at(2)
        held.say("How many nodes are there?")
        held.end()
        understands = held.scorecard().rows[0]
        asked = [one for one in understands.evidence if one.what == "asked about scale"]
        assert [one.minute for one in asked] == [pytest.approx(2)]

    def test_the_newest_verdict_counts(
        self, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A candidate who breaks a working trainer has a broken trainer."""
        held = interview(15, 3, clock=clock)
        held.type(TYPED)

        def wrong(drill: str, text: str, **_: object) -> rehearsal.Verdict:
            finding = rehearsal.Finding("off-plan", "3 samples twice", "each once", "there")
            return rehearsal.Verdict(drill=drill, status="wrong", findings=[finding])

        monkeypatch.setattr("rehearsal.interviews.checks.grade_source", wrong)
        held.type("x = 1\n")
        held.end()
        builds = next(mark for mark in held.scorecard().rows if mark.row == "builds")
        assert builds.mark == 1
        assert any("3 samples twice" in one.what for one in builds.evidence)

    def test_a_point_may_take_two_sentences_said_apart(self, clock: Clock) -> None:
        """People answer, get interrupted, and go on."""
        card = next(card for card in cards() if card.id == "torn_newest_file")
        words = card.strong.split()
        asked = Asked(card, "failures", 1.0)
        asked.answers = [Said(1.0, " ".join(words[n : n + 6])) for n in range(0, len(words), 6)]
        assert asked.share == 1.0  # as for the whole answer at once

    def test_a_correction_counts(self, clock: Clock) -> None:
        """Being wrong and saying so is what the follow-up is for."""
        held = interview(45, 3, clock=clock)
        heard_from(held)
        held.type(TYPED)
        hear_until(held, clock, "weights_and_step")
        held.say("Weights and step are enough to continue.")
        optimizer = "optimizer_and_scheduler"
        assert held._state.asked[-1].points[optimizer][0] == "contradicted"
        held.say(
            "You're right, I was wrong. Without the optimizer's moments and the scheduler, the "
            "first updates are too large and the learning rate jumps."
        )
        assert held._state.asked[-1].points[optimizer][0] == "covered"


class FakeCase:
    """An incident without a job."""

    sources: ClassVar = ["phases", "logs", "code"]
    choices: ClassVar = sorted(KINDS)
    modules: ClassVar = TRACKS["general"].module_names()

    def scopes_of(self, source: str) -> list[str]:
        return scope_of(source)

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []

    def look(self, source: str, **scope: str) -> SimpleNamespace:
        self.done.append(("look", source, scope))
        return SimpleNamespace(text="\n".join(f"line {n}" for n in range(30)))

    def diagnose(self, cause: str, *, because: list[str], first_move: str) -> None:
        self.done.append(("diagnose", cause, because))


class TestOnCall:
    """What is said about an incident, and what comes of it."""

    @pytest.fixture
    def case(self) -> FakeCase:
        return FakeCase()

    def heard(self, case: FakeCase, tmp_path: Path, text: str) -> Line:
        on_call = OnCall(tmp_path, 1, waits=True)
        on_call.case = case  # type: ignore[assignment]
        filled = on_call.fill(Line("", "evidence"), [text])
        assert filled is not None
        return filled

    def test_a_request_shows_it(self, case: FakeCase, tmp_path: Path) -> None:
        line = self.heard(case, tmp_path, "Show me the phases and the logs.")
        assert [did[:2] for did in case.done] == [("look", "phases"), ("look", "logs")]
        assert line.text.count("line 29") == 2

    @pytest.mark.parametrize(
        ("said", "looks"),
        [
            ("Show me the logs of rank 1.", [("logs", 1)]),
            ("For rank 2, show me the logs and phases.", [("phases", 2), ("logs", 2)]),
            ("Show me the phases and the logs of rank 1.", [("phases", None), ("logs", 1)]),
            ("Show me logs and phases of rank #1", [("phases", 1), ("logs", 1)]),
            ("Show me the logs of rank 0 and rank 1.", [("logs", None)]),
            ("Rank 1 is late. Show me the logs of rank 0.", [("logs", 0)]),
            # "Labels" are a source on the other track only.
            ("Rank 1 has odd labels. Show me the logs.", [("logs", 1)]),
            ("Show me the logs.", [("logs", None)]),
            ("Can I see the code of data.py for rank 1?", [("code", None)]),
        ],
    )
    def test_a_rank_that_is_named_narrows_what_is_shown(
        self, said: str, looks: list[Any], case: FakeCase, tmp_path: Path
    ) -> None:
        """Of all ranks' last lines, few are about the one that was asked for."""
        text = self.heard(case, tmp_path, said).text
        assert [(source, scope.get("rank")) for _, source, scope in case.done] == looks
        for source, rank in looks:
            assert f"{source}{'' if rank is None else f' of rank {rank}'}:" in text

    def test_a_rank_that_isn_t_there_is_said_to_be(
        self, case: FakeCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Raised, it would end up as "Something failed here"."""

        def look(source: str, **scope: int) -> SimpleNamespace:
            if scope:
                raise BadCase("There is no rank 9: ranks are 0 to 2.")
            return SimpleNamespace(text="all")

        monkeypatch.setattr(case, "look", look)
        line = self.heard(case, tmp_path, "Show me the phases, and the logs of rank 9.")
        assert line.text == "phases:\nall\n\nlogs:\nThere is no rank 9: ranks are 0 to 2."

    def test_a_long_source_shows_its_ends_and_how_much_is_missing(
        self, case: FakeCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A log's last lines are what the run died of; a table's first are its columns."""
        at = SimpleNamespace(text="\n".join(f"line {n}" for n in range(100)))
        monkeypatch.setattr(case, "look", lambda source, **_: at)
        shown = self.heard(case, tmp_path, "Show me the logs.").text.splitlines()
        assert shown[0] == "logs:"
        assert shown[1] == "line 0"
        assert shown[-1] == "line 99"
        kept = [line for line in shown if line.startswith("line ")]
        assert f"... {100 - len(kept)} of 100 lines left out ..." in shown
        assert len(set(kept)) == len(kept) == MOST_LINES

    def test_code_is_shown_whole(
        self, case: FakeCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The line with the fault may be any of them."""
        at = SimpleNamespace(text="\n".join(f"line {n}" for n in range(300)))
        monkeypatch.setattr(case, "look", lambda source, **_: at)
        shown = self.heard(case, tmp_path, "Show me the code of data.py.").text
        assert shown == f"code:\n{at.text}"

    def test_a_suspicion_is_not_a_diagnosis(self, case: FakeCase, tmp_path: Path) -> None:
        """Thinking aloud must not cost the first answer."""
        self.heard(case, tmp_path, "The network is slow, I think. Show me the phases.")
        assert [did[0] for did in case.done] == ["look"]

    def test_a_question_is_not_a_diagnosis(self, case: FakeCase, tmp_path: Path) -> None:
        line = self.heard(case, tmp_path, "Is the network slow?")
        assert case.done == []
        assert "asking me, or telling me" in line.text

    def test_a_statement_is(self, case: FakeCase, tmp_path: Path) -> None:
        said = "The network is slow, the phases say so. I'd move to the other rail."
        line = self.heard(case, tmp_path, said)
        assert case.done == [("diagnose", "slow_network", ["phases"])]
        assert line.kind == "incident over"

    def test_what_is_shown_has_no_path_of_this_machine(
        self, case: FakeCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A session gets exported, and passed on to others."""
        at = SimpleNamespace(text=f"saved to {tmp_path}/runs/0")
        monkeypatch.setattr(case, "look", lambda source: at)
        assert "saved to RUN/runs/0" in self.heard(case, tmp_path, "Show me the logs.").text

    def test_what_the_logs_show_is_evidence(self, case: FakeCase, tmp_path: Path) -> None:
        """Not every "show" is a request."""
        self.heard(case, tmp_path, "The network is slow. The phases show it, and the logs do.")
        assert [did[0] for did in case.done] == ["diagnose"]

    def test_code_needs_a_module(self, case: FakeCase, tmp_path: Path) -> None:
        asks = self.heard(case, tmp_path, "Show me the code.").text
        assert asks.startswith("Which module? There are")
        self.heard(case, tmp_path, "Show me the code of data.py.")
        assert case.done == [("look", "code", {"module": "data.py"})]

    def test_anything_else_is_answered(self, case: FakeCase, tmp_path: Path) -> None:
        assert "I can show you: phases" in self.heard(case, tmp_path, "Hm.").text


@pytest.mark.ranks
class TestOnRealRanks:
    """With the graders and an incident's job."""

    @pytest.fixture(autouse=True)
    def real(self, monkeypatch: pytest.MonkeyPatch, own_home: None) -> None:
        from rehearsal.grading.check import grade_source
        from rehearsal.incidents.opening import incident_in

        monkeypatch.setattr("rehearsal.interviews.checks.grade_source", grade_source)
        monkeypatch.setattr("rehearsal.interviews.on_call.incident_in", incident_in)

    def test_four_candidates_are_told_apart(self) -> None:
        """If the marks can't rank these, they rank nobody."""
        from rehearsal.interviews.candidates import NAMES, play

        got = [play(name, 4, 30).percent for name in NAMES]
        silent, fluent, hands, strong = got
        assert silent < fluent < hands < strong
        assert hands - fluent >= 10
        assert strong - hands >= 40

    def test_code_is_judged_while_the_candidate_talks(self) -> None:
        """In real time, a check must not block the conversation."""
        from rehearsal.interviews.candidates import cells_of_the_trainer

        held = interview(15, 1)
        held.next()
        held.type(cells_of_the_trainer()[0])
        held.say("That's the config and the data.")
        held.end()
        verdict = next(event for event in held.events if event["did"] == "checked")
        assert verdict["stages"] == ["config", "data"]


def test_a_callable_and_a_package_do_not_collide() -> None:
    """``rehearsal.interview`` is a function, also after its package was imported."""
    import rehearsal.interviews.boxes

    called: Callable[..., Interview] = rehearsal.interview
    assert callable(called)
