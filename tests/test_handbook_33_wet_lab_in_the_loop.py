"""Chapter 33: what plates, delay, selection and a generator do, where all of it is planted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from handbook_chapters import Chapter, cells_of, run_chapter

from rehearsal.handbook.assay_plates import (
    COMPOUNDS,
    ON_EDGE,
    Reader,
    read_plate,
    values_of,
    z_prime,
)
from rehearsal.handbook.learning_loop import (
    NEVER,
    WEIGHT_SPREAD,
    Campaign,
    Candidates,
    Rows,
    fit_draws,
    held_out,
    inputs_of,
    known,
    model_of,
    predict,
    run_campaign,
)
from rehearsal.handbook.screening_pool import (
    CHOICES,
    MEMBERS,
    NUM_MOLECULES,
    blocks_of,
    draw_pool,
    molecules_of,
    planted_activity,
    scaffolds_of,
    smiles_of,
    tanimoto,
)
from trainer_core.bio.scaffold_effects import scaffold_variance

CHAPTER = "33_wet_lab_in_the_loop"
EXACT = Reader(noise=0, edge=0)


class TestPlates:
    def values(self, reader: Reader, how: str, better: float = 0) -> tuple[float, float]:
        """Largest and mean error of a correction on one plate."""
        random = np.random.default_rng(3)
        activity = 20 + better + 15 * random.standard_normal(COMPOUNDS)
        errors = values_of(read_plate(activity, reader, random), how) - activity  # type: ignore[arg-type]
        return float(np.abs(errors).max()), float(errors.mean())

    def test_a_plates_own_controls_take_out_its_background_and_window(self) -> None:
        """Otherwise the model learns the plate, and calls a good day chemistry."""
        assert self.values(EXACT, "controls")[0] == pytest.approx(0, abs=1e-9)
        assert self.values(EXACT, "none")[0] > 1

    def test_the_edge_is_taken_out_if_controls_are_on_both_sides_of_it(self) -> None:
        edge = Reader(noise=0)
        assert self.values(edge, "controls and edge")[0] == pytest.approx(0, abs=1e-9)
        assert self.values(edge, "controls")[0] > 3
        outer = Reader(noise=0, layout="outer columns")
        assert self.values(outer, "controls")[1] < -5  # most compounds are inside

    def test_the_own_mean_erases_how_much_better_a_plate_is(self) -> None:
        """The progress of a loop would vanish from its own labels."""
        assert self.values(EXACT, "own mean", better=20)[1] == pytest.approx(-20, abs=4)
        assert abs(self.values(EXACT, "controls", better=20)[1]) < 1e-9

    @pytest.mark.parametrize("layout", ["scattered", "outer columns"])
    def test_a_plate_has_16_controls_half_of_each_kind(self, layout: str) -> None:
        reader = Reader(layout=layout)  # type: ignore[arg-type]
        plate = read_plate(np.zeros(COMPOUNDS), reader, np.random.default_rng(0))
        assert (plate.control == 0).sum() == (plate.control == 100).sum() == 8
        assert sorted(plate.compound[plate.compound >= 0]) == [*range(COMPOUNDS)]
        for value in (0, 100):
            on_edge = ON_EDGE[plate.control == value].sum()
            assert on_edge == (4 if layout == "scattered" else 8)

    def test_z_prime_falls_with_the_noise(self) -> None:
        found = [
            z_prime(read_plate(np.zeros(8), Reader(noise=n, edge=0), np.random.default_rng(0)))
            for n in (0.0, 0.05, 0.3)
        ]
        assert found[0] == pytest.approx(1)
        assert 1 > found[1] > 0.5 > 0 > found[2]

    def test_too_many_compounds_are_refused(self) -> None:
        with pytest.raises(ValueError, match="81 compounds: a plate has 80 wells"):
            read_plate(np.zeros(81), Reader(), np.random.default_rng(0))

    def test_what_a_plate_cannot_tell_is_refused(self) -> None:
        """Least squares would split what it can't tell apart; 0 / 0 is a NaN in the table."""
        outer = read_plate(
            np.zeros(80), Reader(layout="outer columns"), np.random.default_rng(0)
        )
        with pytest.raises(ValueError, match="every control is an edge well"):
            values_of(outer, "controls and edge")
        alone = read_plate(np.zeros(1), Reader(), np.random.default_rng(0))
        with pytest.raises(ValueError, match="no spread to be scaled"):
            values_of(alone, "own mean")

    @pytest.mark.parametrize("sizes", [{"holdout": 4001}, {"start": 4001}, {"wells": 8001}])
    def test_two_plates_never_share_a_number(self, sizes: dict[str, int]) -> None:
        """They would have the same noise, and be withdrawn together."""
        with pytest.raises(ValueError, match="have numbers of their own"):
            Campaign(inputs=np.zeros((1, 1), np.float32), truth=np.zeros(1), **sizes)


class TestPool:
    def test_a_molecules_number_says_which_blocks_it_has(self) -> None:
        some = np.random.default_rng(0).integers(NUM_MOLECULES, size=50)
        assert (molecules_of(blocks_of(some)) == some).all()
        assert len({smiles_of(int(molecule)) for molecule in some}) == len(set(some.tolist()))
        assert np.prod(CHOICES) == NUM_MOLECULES

    def test_half_of_the_variance_is_the_scaffolds(self) -> None:
        """The text says so, and the size of each effect follows from it."""
        activity, every = planted_activity(0), np.arange(NUM_MOLECULES)
        assert scaffold_variance(activity, scaffolds_of(every)).share == pytest.approx(
            0.5, abs=0.02
        )
        assert scaffold_variance(activity, every % MEMBERS).share == pytest.approx(
            0.4, abs=0.05
        )
        assert not np.array_equal(activity, planted_activity(1))

    def test_a_pool_has_whole_numbers_of_series_in_ascending_order(self) -> None:
        pool = draw_pool(5, 7, seed=0)
        assert np.unique(scaffolds_of(pool), return_counts=True)[1].tolist() == [7] * 5
        assert (np.diff(pool) > 0).all()

    def test_tanimoto_is_shared_bits_over_all_bits(self) -> None:
        bits = np.array([[1, 1, 0, 0], [1, 0, 1, 0]], np.float32)
        assert tanimoto(bits, bits).tolist() == [[1, pytest.approx(1 / 3)]] * 1 + [
            [pytest.approx(1 / 3), 1]
        ]


def made_up(**options: object) -> Campaign:
    """A small campaign whose activity is linear in random features."""
    random = np.random.default_rng(0)
    bits = (random.random((1500, 24)) < 0.3).astype(np.float32)
    truth = 20 + (bits - 0.3) @ random.normal(0, 8, 24)
    return replace(Campaign(inputs=inputs_of(bits), truth=truth, rounds=4), **options)


def greedy(candidates: Candidates) -> Rows:
    scores = np.where(candidates.allowed, candidates.draws.mean(axis=1), -np.inf)
    return np.argsort(-scores, kind="stable")[: candidates.wells]


class TestLoop:
    def test_no_molecule_is_measured_twice_or_taken_from_the_holdout(self) -> None:
        """A holdout that is chosen from is a validation set like any other."""
        for delay in (0, 2):
            table = run_campaign(made_up(delay=delay), greedy, 0)
            assert len(set(table["row"].tolist())) == len(table) == 160 + 80 + 4 * 80
            assert len(held_out(table)) == 160

    def test_a_stale_model_orders_again_what_is_at_the_lab(self) -> None:
        table = run_campaign(made_up(delay=2, pending="ignore"), greedy, 0)
        plates = [set(table["row"][table["chosen"] == at].tolist()) for at in (1, 2, 3)]
        assert len(plates[0] & plates[1]) > 40
        assert not set(held_out(table)["row"].tolist()) & set.union(*plates)

    def test_a_label_is_known_from_the_round_in_which_it_arrives(self) -> None:
        """A model that sees it earlier is better than the real one can be."""
        table = run_campaign(made_up(delay=2), greedy, 0)
        for at in (1, 2, 3):
            assert set(known(table, at)["chosen"]) == {0}
        assert set(known(table, 4)["chosen"]) == {0, 1}
        assert (table["arrives"][table["chosen"] == 2] == 5).all()
        assert NEVER not in known(table, 1000)["arrives"]

    def test_a_resumed_campaign_is_the_uninterrupted_one(self) -> None:
        whole = run_campaign(made_up(delay=1), greedy, 7)
        for at in (1, 3):
            resumed = run_campaign(made_up(delay=1), greedy, 7, whole[whole["chosen"] <= at])
            assert (resumed == whole).all()
        assert not (run_campaign(made_up(delay=1), greedy, 8) == whole).all()

    def test_each_plate_has_a_number_of_its_own(self) -> None:
        """A plate that was swapped is withdrawn by its number."""
        table = run_campaign(made_up(wells=100), greedy, 0)
        sizes = np.unique(table["plate"], return_counts=True)
        assert sizes[0].tolist() == [0, 1, 50, 100, 101, 200, 201, 300, 301, 400, 401]
        assert sizes[1].max() <= COMPOUNDS

    def test_the_model_learns_and_its_draws_disagree_where_no_label_was(self) -> None:
        """Ridge regressions that are all pulled to zero agree about what none of them knows."""
        campaign = made_up()
        table = run_campaign(campaign, greedy, 0)
        draws = predict(model_of(campaign, table, 5, 0), campaign.inputs)
        assert np.corrcoef(draws.mean(axis=1), campaign.truth)[0, 1] > 0.9
        bits = np.zeros((200, 3), np.float32)
        bits[:, 0] = 1
        bits[:100, 1] = 1  # the third feature is never seen
        labels = np.random.default_rng(0).normal(20, 5, 200)
        weights = np.concatenate(
            [fit_draws(inputs_of(bits), labels, np.random.default_rng(s)) for s in range(20)], 1
        )
        spread = weights.std(axis=1)
        assert spread[2] == pytest.approx(WEIGHT_SPREAD, rel=0.2)
        assert spread[1] < 0.7 * spread[2]


@pytest.fixture(scope="module")
def ran() -> Chapter:
    pytest.importorskip("rdkit")
    pytest.importorskip("sklearn")
    before = os.environ.get("FAST")
    os.environ["FAST"] = "1"
    try:
        return run_chapter(CHAPTER)
    finally:
        os.environ.pop("FAST")
        if before is not None:
            os.environ["FAST"] = before


def medians(runs: list[dict[str, float]], key: str) -> float:
    return float(np.median([run[key] for run in runs]))


@pytest.mark.ranks
class TestChapter:
    def test_each_correction_leaves_what_the_text_says(self, ran: Chapter) -> None:
        wrong = ran.wrong
        assert wrong["scattered", "controls and edge"][0][0] < 6
        assert wrong["scattered", "controls"][0][0] > 7
        (harmless, _), (_, erased) = wrong["scattered", "own mean"]
        assert harmless < wrong["scattered", "none"][0][0]
        assert erased < -15
        assert wrong["outer columns", "controls"][0][1] < -5
        assert ran.repeat_spread == pytest.approx(5.3, abs=0.5)

    def test_looking_at_the_prediction_finds_four_times_the_hits(self, ran: Chapter) -> None:
        hits = {name: medians(runs, "hits") for name, runs in ran.policies.items()}
        for name in ("greedy", "UCB", "Thompson"):
            assert hits[name] > 3 * hits["random"], name
        assert hits["uncertainty"] < 2 * hits["random"]

    def test_random_has_the_better_model_and_greedy_has_the_hits(self, ran: Chapter) -> None:
        r = {name: medians(runs, "r") for name, runs in ran.policies.items()}
        assert r["random"] > r["greedy"] + 0.15
        assert r["uncertainty"] > r["greedy"] + 0.1

    def test_the_rules_differ_less_than_the_worlds(self, ran: Chapter) -> None:
        """Somebody who reads a ranking off six seeds would publish the luck of six seeds."""
        hits = [[run["hits"] for run in ran.policies[n]] for n in ("greedy", "UCB", "Thompson")]
        between_rules = np.ptp([np.median(row) for row in hits])
        assert between_rules < np.mean([np.ptp(row) for row in hits])

    def test_a_plate_of_the_top_is_a_few_series(self, ran: Chapter) -> None:
        distinct = {name: len(set(ran.series[rows])) for name, rows in ran.batches.items()}
        assert distinct["apart"] > 2 * distinct["greedy"] < 40
        for name, rows in ran.batches.items():
            assert len(set(rows.tolist())) == 80, name
        apart = ran.bits[ran.batches["apart"]]
        assert (ran.tanimoto(apart, apart) - 2 * np.eye(80)).max() < 0.6
        sizes = np.unique(ran.series[ran.batches["four each"]], return_counts=True)[1]
        assert sizes.max() == 4

    def test_eight_wells_of_eighty_are_random(self, ran: Chapter) -> None:
        """A random share that follows the model measures nothing."""
        campaign = ran.campaign_of(1)
        start = campaign.first_labels(seed=1)
        rows = ran.choose(campaign, start, 1, ran.with_random, seed=1)
        top = ran.choose(campaign, start, 1, ran.by_mean, seed=1)
        assert len(set(rows.tolist())) == 80
        assert set(rows[:72]) == set(top[:72])
        assert len(set(rows[72:]) & set(top)) < 4

    def test_forgotten_plates_are_measured_twice(self, ran: Chapter) -> None:
        late = ran.late
        assert medians(late["late, forgotten"], "twice") > 150
        assert medians(late["two rounds late"], "twice") == 0
        lost = [
            a["hits"] - b["hits"]
            for a, b in zip(late["two rounds late"], late["late, forgotten"], strict=True)
        ]
        assert np.mean(lost) > 3
        assert medians(late["no delay"], "hits") > medians(late["two rounds late"], "hits")
        assert "two rounds late: of the second plate's 80, 0 are on the first" in ran.printed

    def test_the_collected_labels_flatter_and_the_holdout_doesnt(self, ran: Chapter) -> None:
        """The curve that a team would show is not about the pool."""
        split, frozen, others = np.median(ran.scores["greedy"][:, 1:], axis=(0, 1))
        assert split > 0.25 > 0.12 > frozen
        assert abs(frozen - others) < 0.15
        split, frozen, others = np.median(ran.scores["random"][:, 4:], axis=(0, 1))
        assert abs(split - frozen) < 0.12

    def test_the_plate_that_came_back_says_the_model_is_worthless(self, ran: Chapter) -> None:
        assert np.median(ran.within) < 0.7 * ran.elsewhere

    def test_probabilities_fit_the_split_and_not_the_pool(self, ran: Chapter) -> None:
        assert ran.said_split == pytest.approx(ran.true_split, abs=0.04)
        assert ran.true_split > 2 * ran.true_pool
        assert ran.said_pool > 1.25 * ran.true_pool

    def test_tuning_on_the_new_plate_alone_forgets(self, ran: Chapter) -> None:
        errors = {name: np.median(rows, axis=0)[1:].mean() for name, rows in ran.tuned.items()}
        scratch, new, replay = errors.values()
        assert new > replay + 0.7
        assert new > scratch + 0.7
        assert abs(replay - scratch) < 0.7

    def test_the_oracle_rises_and_the_molecules_get_worse(self, ran: Chapter) -> None:
        free = np.median(ran.found["any score"], axis=0)
        assert free[-1, 0] > free[0, 0] + 6
        assert free[-1, 2] < free[0, 2] - 6
        said, judge, true = free[-1, :3]
        assert said > judge + 5 > true + 5
        assert said - true > 4 * free[-1, 3]  # the ensemble's spread doesn't warn

    def test_staying_close_and_measuring_help_and_the_spread_hardly(self, ran: Chapter) -> None:
        true = {name: np.median(v[:, -1, 2]) for name, v in ran.found.items()}
        assert true["close to measured"] > true["any score"] + 3
        assert true["80 made, retrained"] > true["any score"] + 2
        assert true["minus two spreads"] < true["close to measured"] - 1
        nearest = {name: np.median(v[:, -1, 4]) for name, v in ran.found.items()}
        assert nearest["close to measured"] >= 0.7 > nearest["any score"]

    def test_a_carbon_is_valid_unique_and_novel(self, ran: Chapter) -> None:
        assert len(ran.valid) > 0.9 * len(ran.longer)
        assert len(ran.novel) > 0.9 * len(ran.unique)
        assert len(ran.unique) > 0.9 * len(ran.valid)

    def test_confidence_doesnt_fall_with_the_distance_and_truth_does(
        self, ran: Chapter
    ) -> None:
        counts, said, true, inside = zip(*ran.by_distance, strict=True)
        assert min(counts) > 50
        assert np.ptp(said) < 4
        assert true[-1] > true[0] + 12
        assert inside[-1] > inside[0] + 0.2
        assert inside[0] < 0.5

    def test_any_number_of_ranks_chooses_the_same_if_ties_are_broken(
        self, ran: Chapter
    ) -> None:
        expected = ran.expected
        for world_size in (1, 2, 3):
            assert ran.lists[True, world_size] == expected
        assert set(ran.lists[False, 2]) != set(expected) != set(ran.lists[False, 3])
        assert (ran.alone == ran.alone[expected[-1]]).sum() > ran.PICKS

    def test_the_job_resumes_from_its_table(self, ran: Chapter) -> None:
        assert "killed and resumed, the same table: True" in ran.printed
        assert len(ran.restored) < len(ran.whole)
        assert {"labels", "model", "picks", "pool", "seed", "rule"} <= ran.record.keys()

    def test_a_swapped_plate_touches_only_what_was_chosen_after_it_arrived(
        self, ran: Chapter
    ) -> None:
        assert [*ran.touched] == [3, 4, 5, 6, 7, 8]
        assert ran.touched[3] == ran.touched[4] == 0
        assert min(ran.touched[at] for at in (5, 6, 7, 8)) > 5

    def test_cheap_wells_find_hits_that_only_a_precise_assay_can_name(
        self, ran: Chapter
    ) -> None:
        """Hits that were measured and not recognized are nobody's."""
        hits = {name: medians(runs, "hits") for name, runs in ran.budgets.items()}
        assert hits["cheap"] > hits["precise"] + 5 > hits["half, each twice"] + 7
        called = ran.called
        assert called["cheap"] < called["precise"] - 4
        assert called["cheap, confirmed"] > called["cheap"] + 4
        assert abs(called["cheap, confirmed"] - called["precise"]) < 6
        assert called["random"] < 0.5 * called["precise"]


WITHOUT_RDKIT = """
import os, sys
sys.modules["rdkit"] = None
os.environ["FAST"], os.environ["MPLBACKEND"] = "1", "Agg"
sys.path.insert(0, {tests!r})
from IPython.core.interactiveshell import InteractiveShell
from handbook_chapters import cells_of
from rehearsal.engine.ranks import shut_down
shell = InteractiveShell.instance()
shell.history_manager.enabled = False
cells = [text for kind, text in cells_of({chapter!r}) if kind == "code"]
failed = [text for text in cells if not shell.run_cell(text).success]
print("FAILED", len(failed), *failed)
shut_down()
"""


@pytest.mark.ranks
def test_without_rdkit_the_plates_and_the_ranks_still_run() -> None:
    """Somebody without it reads on, and every cell that can't run says why."""
    code = WITHOUT_RDKIT.format(tests=str(Path(__file__).parent), chapter=CHAPTER)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "FAILED 0" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    assert "This kernel has no rdkit. Run `pip install rdkit`" in done.stdout
    assert "Skipped: this cell needs rdkit" in done.stdout
    assert re.search(r"score, then row 3 rank\(s\): 384 of 384", done.stdout)
    assert "scattered        controls and edge" in done.stdout


def test_every_package_of_the_chemistry_is_asked_for() -> None:
    assert any('use_if_installed("rdkit", "sklearn")' in text for _, text in cells_of(CHAPTER))
