"""Chapter 30: what a split shares, what a missing label means, and what ranks get wrong."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from handbook_chapters import Chapter, cells_of, run_chapter

from rehearsal.handbook import optional

pytestmark = pytest.mark.ranks
CHAPTER = "30_molecular_data"


@pytest.fixture(scope="module")
def ran() -> Chapter:
    pytest.importorskip("rdkit")
    before = os.environ.get("FAST")
    os.environ["FAST"] = "1"
    try:
        return run_chapter(CHAPTER)
    finally:
        os.environ.pop("FAST")
        if before is not None:
            os.environ["FAST"] = before


class TestBeforeTheSplit:
    def test_each_stage_merges_what_the_text_says(self, ran: Chapter) -> None:
        """Nine rows are three drugs, and canonical SMILES alone find almost none of it."""
        assert [len(found) for found in ran.stages.values()] == [9, 8, 6, 4, 3]

    def test_conflicting_labels_never_leave_one_of_the_two(self, ran: Chapter) -> None:
        """A label that the order of the rows decides changes with the order of a file."""
        assert "missing  aspirin: [nan  0.], 1 conflict" in ran.printed
        assert "mean     aspirin: [0.6666667 0.       ], 1 conflict" in ran.printed
        assert "raise    vendors, rows 1, 2, 3: one molecule" in ran.printed

    def test_all_planted_twins_are_found_and_no_text_is_equal(self, ran: Chapter) -> None:
        assert len(ran.texts) == 0
        assert ran.twins.rows == round(0.2 * 78)
        assert "16 merged into a molecule already named" in ran.printed

    def test_the_stored_split_is_of_the_molecules_and_not_of_their_order(
        self, ran: Chapter
    ) -> None:
        assert "same digest: True" in ran.printed
        assert "made with table_digest" in ran.printed


class TestSplits:
    def test_only_the_scaffold_splits_keep_scaffolds_apart(self, ran: Chapter) -> None:
        shared = {name: self.shared(made) for name, made in ran.splits.items()}
        assert shared["random"] > shared["time"] > 0 < shared["cluster"]
        assert shared["scaffold"] == shared["generic scaffold"] == 0

    @staticmethod
    def shared(made: object) -> int:
        keys, parts = made.table.keys, made.parts  # type: ignore[attr-defined]
        sides = [{keys[row].scaffold for row in np.flatnonzero(parts == p)} for p in (0, 2)]
        return len(sides[0] & sides[1] - {""})

    def test_the_random_split_is_the_closest_to_training(self, ran: Chapter) -> None:
        medians = {name: np.median(values) for name, values in ran.nearest.items()}
        assert max(medians, key=medians.__getitem__) == "random"
        assert medians["time"] > medians["scaffold"]

    def test_the_memorizers_gap_is_the_planted_one(self, ran: Chapter) -> None:
        """A measure that misses a known leak says nothing about an unknown one."""
        for row in ran.gaps:
            assert row["memorizer"] == pytest.approx(row["planted"], rel=0.1, abs=0.01)
        assert ran.gaps[-1]["planted"] > 0.5

    def test_equal_gaps_of_the_memorizer_and_only_one_model_that_memorized(
        self, ran: Chapter
    ) -> None:
        """The gap alone would convict the model that learned chemistry."""
        names, chemistry = ran.assays
        scores = {
            name: [ran.r2(ran.assays[name], each) for each in ran.predicted[name]]
            for name in ran.assays
        }
        gaps = [ran.scaffold_leak(ran.assays[n], ran.scaffolds).gap for n in ran.assays]
        assert gaps[0] == pytest.approx(gaps[1], abs=0.1)
        assert scores[names][0] - scores[names][1] > 0.3
        assert abs(scores[chemistry][0] - scores[chemistry][1]) < 0.1
        far = [ran.by_similarity[name][0] for name in ran.assays]
        near = [ran.by_similarity[name][-1] for name in ran.assays]
        assert near[0] - far[0] > 0.2 > abs(near[1] - far[1])

    def test_a_scaffold_split_still_scores_on_what_relatives_share(self, ran: Chapter) -> None:
        """It is called the honest one."""
        by_scaffold, by_framework = ran.ceilings.values()
        for row in (by_scaffold, by_framework):
            assert row["random"] > row["cluster"] > 0.5
        others = [by_scaffold["scaffold"], by_framework["generic"]]
        assert max(map(abs, others)) < 0.06
        assert by_framework["scaffold"] > 0.1

    def test_closest_pairs_across_it_are_relatives(self, ran: Chapter) -> None:
        assert "midazolam in the test, triazolam in training" in ran.printed

    def test_splits_of_one_name_share_few_test_molecules(self, ran: Chapter) -> None:
        for made in list(ran.two.values())[1:]:
            assert len(ran.reference & set(made.rows_of(2))) < 40

    def test_molecules_without_a_ring_go_where_the_rule_says(self, ran: Chapter) -> None:
        assert re.search(r"together +17 in training, +0 in the test", ran.printed)
        assert re.search(r"cluster +2 in training, 15 in the test", ran.printed)
        assert re.search(r"refuse +17 of 392 molecules have no ring", ran.printed)

    def test_features_chosen_with_the_test_labels_predict_coin_flips(
        self, ran: Chapter
    ) -> None:
        leaked, honest = (np.mean(values) for values in ran.leaked.values())
        assert leaked > 0.58 > honest > 0.42


class TestMissingLabels:
    def test_zeros_shrink_probabilities_by_the_share_that_was_measured(
        self, ran: Chapter
    ) -> None:
        masked, zeros = ran.filled["at random", "masked"], ran.filled["at random", "zeros"]
        assert zeros[0] < 0.4 * masked[0]
        assert masked[0] == pytest.approx(0.1, abs=0.04)

    def test_a_metric_over_filled_cells_flatters_who_learned_what_gets_tested(
        self, ran: Chapter
    ) -> None:
        _, truth, filled = ran.filled["hits followed up", "zeros"]
        assert filled > truth + 0.03

    def test_where_after_the_loss_leaves_nan_in_the_gradient(self, ran: Chapter) -> None:
        loss, gradient = ran.poisoned("where after the loss")
        assert math.isfinite(loss)
        assert [math.isnan(value) for value in gradient] == [False, True, False]
        assert math.isnan(ran.poisoned("loss * mask")[0])
        assert np.isfinite(ran.poisoned("where before the loss")[1]).all()

    def test_the_global_count_gives_the_gradient_of_one_process(self, ran: Chapter) -> None:
        assert ran.apart[2][0] > 0.1
        assert math.isnan(ran.apart[3][0])  # a rank without labels
        assert max(way[1] for way in ran.apart.values()) < 1e-6


class TestImbalance:
    def test_pos_weight_shifts_logits_by_its_logarithm_and_it_is_undone(
        self, ran: Chapter
    ) -> None:
        shift = (ran.weighted - ran.plain).mean().item()
        assert shift == pytest.approx(ran.weight.log().item(), abs=0.3)
        prevalence = ran.y.mean().item()
        assert ran.plain.sigmoid().mean().item() == pytest.approx(prevalence, rel=0.05)
        assert ran.weighted.sigmoid().mean().item() > 10 * prevalence
        assert ran.undone.sigmoid().mean().item() == pytest.approx(prevalence, rel=0.2)

    def test_torchs_sampler_gives_two_ranks_the_same_draws(self, ran: Chapter) -> None:
        (stock_0, steps_0), (stock_1, steps_1) = ran.on_two
        assert stock_0 == stock_1
        assert steps_0 != steps_1
        assert len(steps_0[0]) == len(steps_1[0]) == 6
        assert ran.resumed == ran.dealt[1] != ran.dealt[0]


class TestMetrics:
    def test_equal_aurocs_and_different_hits(self, ran: Chapter) -> None:
        """The chemist tests the top of the list, and AUROC is about all of it."""
        first, second = ran.measured_metrics.values()
        assert first["auroc"] == pytest.approx(second["auroc"], abs=0.015)
        few, many = ran.in_the_top.values()
        assert many > 1.5 * few
        assert second["ef_1pct"] > first["ef_1pct"]
        assert "with 25.0% hits, EF@1% is at most 4" in ran.printed

    def test_the_mean_over_ranks_is_another_number(self, ran: Chapter) -> None:
        assert ran.per_rank[1][0] == ran.per_rank[1][1] == ran.per_rank[3][1]
        assert ran.per_rank[3][1] - ran.per_rank[3][0] > 0.1
        assert ran.answers[0][2] == {"tox": "no positive among 1200 labels"}
        assert any(own is None for own, _, _ in ran.answers)


class TestShapes:
    def test_no_edge_crosses_from_one_graph_to_another(self, ran: Chapter) -> None:
        owner = ran.batch.batch[ran.batch.edge_index]
        assert (owner[0] == owner[1]).all()
        assert owner.unique().tolist() == [0, 1, 2, 3]

    def test_a_cell_is_a_small_part_and_a_worker_gets_a_path(self, ran: Chapter) -> None:
        assert ran.row_bytes < ran.stored / 2000
        found = re.search(r"what a worker process is sent: (\d+) bytes", ran.printed)
        assert found
        assert int(found[1]) < 1000
        assert "240 GB dense" in ran.printed
        assert "8 bytes: 24 GB" in ran.printed

    def test_the_trainer_scores_less_on_new_scaffolds(self, ran: Chapter) -> None:
        medians = {
            split: np.median([t["values"]["auroc"] for t in event["tasks"].values()])
            for split, event in ran.evaluated.items()
        }
        assert medians["random"] > medians["scaffold"] + 0.08


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


def test_without_rdkit_every_cell_runs_or_says_what_it_needs() -> None:
    """Somebody without it reads the sections on labels and ranks, which need no chemistry."""
    code = WITHOUT_RDKIT.format(tests=str(Path(__file__).parent), chapter=CHAPTER)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "FAILED 0" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    assert "This kernel has no rdkit. Run `pip install rdkit`" in done.stdout
    assert "Skipped: this cell needs rdkit" in done.stdout
    assert "with the global count" in done.stdout or "the global count by" in done.stdout


class TestOptionalPackages:
    def test_an_error_of_the_cells_own_is_not_excused(self) -> None:
        """A wrong cell that reports a missing package would never be fixed."""
        missing = frozenset({"rdkit"})
        assert not optional.is_consequence(ValueError("no rows"), missing)
        assert not optional.is_consequence(ModuleNotFoundError(name="torch"), missing)
        assert optional.is_consequence(ModuleNotFoundError(name="rdkit.Chem"), missing)

    def test_what_is_installed_changes_nothing(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        optional.use_if_installed("json", "torch")
        assert capsys.readouterr().out == ""


def test_every_package_of_the_chemistry_is_asked_for() -> None:
    assert any(
        'use_if_installed("rdkit", "sklearn", "h5py")' in t for _, t in cells_of(CHAPTER)
    )
