"""Screening metrics against scikit-learn, RDKit and arithmetic by hand, over any ranks."""

from __future__ import annotations

import itertools
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from rehearsal.handbook.on_ranks import on_ranks
from trainer_core.bio.gathered_scores import ScoreTable, gather_scores
from trainer_core.bio.screening_metrics import (
    SCREENING_METRICS,
    auroc,
    average_precision,
    bedroc,
)
from trainer_core.bio.screening_metrics import enrichment_factor, max_enrichment
from trainer_core.bio.screening_metrics import screening_report, screening_report_over_ranks
from trainer_core.bio.screening_metrics import top_count
from trainer_core.settings import UserError

Scoring = pytest.importorskip("rdkit.ML.Scoring.Scoring", reason="RDKit is the oracle")
sklearn_metrics = pytest.importorskip("sklearn.metrics", reason="AUROC and AUPRC are its own")
cloudpickle.register_pickle_by_value(sys.modules[__name__])

NAN = float("nan")
TASKS = ["JAK2", "EGFR", "hERG", "CYP3A4"]
Case = tuple[np.ndarray, np.ndarray]


@st.composite
def rankings(draw: st.DrawFn, *, max_size: int = 30, ties: bool = True) -> Case:
    """Labels with both classes, and scores: few values, so many ties, or all different."""
    size = draw(st.integers(2, max_size))
    num_active = draw(st.integers(1, size - 1))
    is_active = np.array(
        draw(st.permutations([True] * num_active + [False] * (size - num_active)))
    )
    if ties:
        values = draw(st.lists(st.integers(-2, 2), min_size=size, max_size=size))
        return is_active, np.array(values) / 4
    return is_active, np.array(draw(st.permutations(range(size)))) / 8


def rdkit_list(is_active: np.ndarray, order: Sequence[int]) -> list[tuple[bool]]:
    return [(bool(is_active[row]),) for row in order]


def rdkit_enrichment(column: list[tuple[bool]], fraction: float) -> float:
    return float(Scoring.CalcEnrichment(column, 0, [fraction])[0])


def mean_over_tie_orders(case: Case, metric: Callable[[list[tuple[bool]]], float]) -> float:
    """RDKit's metric, which takes rows as they come, over all orders that the scores allow."""
    is_active, scores = case
    orders = [
        order
        for order in itertools.permutations(range(len(scores)))
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order))
    ]
    return statistics.fmean(metric(rdkit_list(is_active, order)) for order in orders)


class TestAgainstReferences:
    @settings(max_examples=40)
    @given(rankings(ties=False), st.sampled_from([0.5, 5.0, 20.0, 100.0]))
    def test_without_ties_all_agree_with_rdkit(self, case: Case, alpha: float) -> None:
        is_active, scores = case
        column = rdkit_list(is_active, np.argsort(-scores).tolist())
        assert bedroc(is_active, scores, alpha) == pytest.approx(
            Scoring.CalcBEDROC(column, 0, alpha), abs=1e-9
        )
        assert auroc(is_active, scores) == pytest.approx(Scoring.CalcAUC(column, 0))
        for fraction in (0.01, 0.25):
            if top_count(len(scores), fraction) < len(scores):  # RDKit has none for all
                assert enrichment_factor(is_active, scores, fraction) == pytest.approx(
                    rdkit_enrichment(column, fraction)
                )

    @settings(max_examples=15)
    @given(rankings(max_size=5))
    def test_with_ties_they_are_the_mean_over_the_orders_that_rdkit_could_be_given(
        self, case: Case
    ) -> None:
        """A sort that keeps the file's order rewards a file with its actives on top."""
        assert bedroc(*case) == pytest.approx(
            mean_over_tie_orders(case, lambda column: Scoring.CalcBEDROC(column, 0, 20.0))
        )
        assert auroc(*case) == pytest.approx(
            mean_over_tie_orders(case, lambda column: Scoring.CalcAUC(column, 0))
        )
        if top_count(len(case[0]), 0.4) < len(case[0]):
            assert enrichment_factor(*case, 0.4) == pytest.approx(
                mean_over_tie_orders(case, lambda column: rdkit_enrichment(column, 0.4))
            )

    @settings(max_examples=40)
    @given(rankings())
    def test_auroc_and_auprc_are_scikit_learns_and_count_what_they_say(
        self, case: Case
    ) -> None:
        """Half a point per tied pair; and precision at each distinct score."""
        is_active, scores = case
        assert auroc(*case) == sklearn_metrics.roc_auc_score(is_active, scores)
        assert average_precision(*case) == sklearn_metrics.average_precision_score(*case)
        gaps = scores[is_active][:, None] - scores[~is_active]
        assert auroc(*case) == pytest.approx(((gaps > 0) + 0.5 * (gaps == 0)).mean())
        by_hand, recalled = 0.0, 0.0
        for score in sorted(set(scores.tolist()), reverse=True):
            hits = is_active[scores >= score]
            by_hand += (hits.sum() / is_active.sum() - recalled) * hits.mean()
            recalled = hits.sum() / is_active.sum()
        assert average_precision(*case) == pytest.approx(by_hand)

    @settings(max_examples=25)
    @given(rankings(), st.sampled_from([0.01, 0.1, 0.5, 1.0]), st.randoms())
    def test_bounds_and_independence_of_the_order_of_rows(
        self, case: Case, fraction: float, random: Any
    ) -> None:
        is_active, scores = case
        limit = max_enrichment(len(scores), int(is_active.sum()), fraction)
        assert limit <= min(1 / fraction, len(scores) / is_active.sum()) + 1e-9
        assert 0 <= enrichment_factor(is_active, scores, fraction) <= limit + 1e-9
        assert enrichment_factor(is_active, is_active * 1.0, fraction) == pytest.approx(limit)
        assert bedroc(is_active, is_active * 1.0) == pytest.approx(1)
        assert bedroc(is_active, is_active * -1.0) == pytest.approx(0, abs=1e-12)
        rows = list(range(len(scores)))
        random.shuffle(rows)
        for metric in SCREENING_METRICS.values():
            shuffled = metric(is_active[rows], scores[rows])
            assert shuffled == pytest.approx(metric(is_active, scores), abs=1e-12)

    def test_bedroc_of_20_puts_80_percent_of_the_weight_on_the_top_8_percent(self) -> None:
        """What alpha 20 means; the number is quoted more often than it is checked."""
        weights = np.exp(-20 * np.arange(1, 10_001) / 10_000)
        assert weights[:800].sum() / weights.sum() == pytest.approx(0.798, abs=1e-3)

    def test_bedroc_at_a_large_alpha_does_not_overflow(self) -> None:
        """RDKit's exp(alpha) raises OverflowError from 710 on."""
        is_active, scores = np.array([True, False, False]), np.array([3.0, 2.0, 1.0])
        assert bedroc(is_active, scores, 900.0) == bedroc(is_active, scores, 1e6) == 1
        assert bedroc(np.array([False, True, True]), scores, 1e6) == 0
        with pytest.raises(OverflowError):
            Scoring.CalcBEDROC(rdkit_list(is_active, [0, 1, 2]), 0, 900.0)

    @pytest.mark.parametrize(
        ("size", "fraction", "top"), [(100, 0.07, 7), (101, 0.07, 8), (50, 0.01, 1), (7, 1, 7)]
    )
    def test_the_top_is_rounded_up_in_decimal(
        self, size: int, fraction: float, top: int
    ) -> None:
        """In binary, 0.07 * 100 is above 7, and an eighth molecule is bought."""
        assert top_count(size, fraction) == top

    def test_auroc_hides_what_enrichment_shows(self) -> None:
        """9 of 10 pairs are in order, and the first hundred molecules hold no active."""
        is_active = np.arange(10_000) % 1000 == 999
        scores = -np.arange(10_000.0)
        scores[is_active] = -1000.5 - np.arange(10)  # all in places 1001 and below
        assert auroc(is_active, scores) > 0.89
        assert enrichment_factor(is_active, scores) == 0
        assert bedroc(is_active, scores) < 0.15


class TestRefusals:
    @pytest.mark.parametrize("metric", SCREENING_METRICS.values(), ids=SCREENING_METRICS)
    @pytest.mark.parametrize(
        ("labels", "scores", "found"),
        [
            ([1, 1], [0.1, 0.2], "no negative among 2 labels"),
            ([0, 0, 0], [1, 2, 3], "no positive among 3 labels"),
            ([], [], "no label"),
            ([1, 0, 1], [0.5, NAN, 1], "row 1: label 0, score nan"),
            ([1, 0], [0.5, math.inf], "row 1: label 0, score inf"),
            ([1, 0, NAN], [0.5, 0.1, 1], "row 2: label nan, score 1"),
            ([1, -1], [0.5, 0.1], "row 1: label -1"),
            ([1, 0], [0.5], "2 labels and 1 scores"),
        ],
    )
    def test_what_has_no_metric_is_refused(
        self, metric: Any, labels: list[float], scores: list[float], found: str
    ) -> None:
        """RDKit answers 0 or 1 without an active; scikit-learn warns and answers NaN."""
        with pytest.raises(UserError, match=f"^{found}"):
            metric(np.array(labels), np.array(scores))

    def test_whole_numbers_are_scores_too(self) -> None:
        """-1 of an unsigned byte is 255: the worst molecule would come first."""
        is_active = np.array([True, False, False, True])
        scores = np.array([200, 0, 3, 7], dtype=np.uint8)
        for metric in SCREENING_METRICS.values():
            assert metric(is_active, scores) == metric(is_active, scores.astype(float))
        assert bedroc(is_active, scores) == 1

    def test_parameters_out_of_bounds_are_refused(self) -> None:
        case = np.array([1, 0]), np.array([1.0, 0.0])
        for fraction in (0.0, 1.5, NAN):
            with pytest.raises(UserError, match=f"fraction={fraction}"):
                enrichment_factor(*case, fraction)
        for alpha in (0.0, 1e-4, NAN, math.inf):
            with pytest.raises(UserError, match=f"alpha={alpha}"):
                bedroc(*case, alpha)


def assay_table() -> ScoreTable:
    """40 samples; CYP3A4 has no positive, hERG is mostly missing; scores with ties."""
    draw = np.random.default_rng(3)
    labels = (draw.random((40, 4)) < 0.3).astype(np.float32)
    labels[draw.random((40, 4)) < 0.4] = NAN
    labels[4:, 2] = NAN
    labels[:4, 2] = [0, 1, NAN, 0]
    labels[labels[:, 3] == 1, 3] = NAN
    scores = draw.standard_normal((40, 4)).astype(np.float32) + np.nan_to_num(labels)
    return ScoreTable(np.arange(100, 140), np.round(scores, 1), labels)


class TestReport:
    def test_each_task_is_measured_on_its_own_labels(self) -> None:
        """A missing label counted as inactive makes every task look rare."""
        table = assay_table()
        report = screening_report(table, TASKS)
        assert list(report.tasks) == TASKS[:3]
        for number, task in enumerate(TASKS[:3]):
            rows = ~np.isnan(table.labels[:, number])
            is_active, scores = table.labels[rows, number] == 1, table.scores[rows, number]
            found = report.tasks[task]
            assert (found.num_labels, found.num_active) == (rows.sum(), is_active.sum())
            assert found.prevalence == pytest.approx(is_active.mean())
            for name, metric in SCREENING_METRICS.items():
                assert found.values[name] == metric(is_active, scores)

    def test_undefined_tasks_are_named_and_left_out_of_median_and_mean(self) -> None:
        """One NaN makes the mean NaN; a 0.5 in its place would be an invented result."""
        table = assay_table()
        report = screening_report(table, TASKS)
        assert report.undefined == {
            "CYP3A4": f"no positive among {(table.labels[:, 3] == 0).sum()} labels"
        }
        for name in SCREENING_METRICS:
            values = [report.tasks[task].values[name] for task in TASKS[:3]]
            median, mean, num_tasks = report.aggregate(name)
            assert (median, mean, num_tasks) == (
                sorted(values)[1],
                pytest.approx(sum(values) / 3),
                3,
            )
        none = screening_report(ScoreTable(*(part[:0] for part in table[:3])), TASKS)
        assert none.aggregate("auroc") == (None, None, 0)
        assert none.undefined == dict.fromkeys(TASKS, "no label")

    def test_a_bad_entry_is_named_by_sample_and_task(self) -> None:
        table = assay_table()
        row = int(np.flatnonzero(~np.isnan(table.labels[:, 1]))[2])
        table.scores[row, 1] = NAN
        with pytest.raises(UserError, match=f"sample {100 + row}, task 'EGFR': .*score nan"):
            screening_report(table, TASKS)
        table.scores[row, 1], table.labels[row, 1] = 0, -1
        with pytest.raises(UserError, match=f"sample {100 + row}, task 'EGFR': label -1, sc"):
            screening_report(table, TASKS)
        table.labels[row, 1] = NAN  # without a label, no score is needed
        table.scores[row, 1] = NAN
        assert "EGFR" in screening_report(table, TASKS).tasks


# ---------------------------------------------------------------- on ranks

# Rows of each rank: uneven, with repeats as DistributedSampler's padding makes them, and none.
SHARES: dict[int, list[list[int]]] = {
    1: [[*range(39, -1, -1), 5]],
    2: [[*range(1, 40, 2), 1], [*range(0, 40, 2), 0, 2]],
    3: [[*range(30, 40)], [], [*range(31), 3, 35]],
}


def report_on_ranks(share_of: Sequence[Sequence[int]]) -> Any:
    """In a rank: score a share, gather, and compute once."""
    table = assay_table()
    rows = torch.tensor(share_of[dist.get_rank()], dtype=torch.int64)
    samples, scores, labels = (torch.from_numpy(part)[rows] for part in table[:3])
    report = screening_report_over_ranks(samples, scores, labels, TASKS, num_samples=40)
    values = {task: found.values for task, found in report.tasks.items()}
    return [values, report.undefined, report.num_samples, report.num_duplicates]


def refusals_on_ranks() -> list[str]:
    """In a rank: mistakes of one rank, and what this rank was told."""
    rank, told = dist.get_rank(), []
    samples, scores, labels = torch.arange(2) + 2 * rank, torch.zeros(2, 1), torch.ones(2, 1)
    one_each = torch.zeros(1) if rank else torch.ones(1)
    mistakes: list[Callable[[], object]] = [
        lambda: gather_scores(samples, scores[:, : 1 - rank], labels[:, : 1 - rank]),
        lambda: gather_scores(samples, scores.double() if rank else scores, labels),
        lambda: gather_scores(samples[: 2 - rank], scores, labels),
        lambda: gather_scores(samples.sum() if rank else samples, scores, labels),
        lambda: gather_scores(samples, scores[0, 0] if rank else scores, labels),
        lambda: gather_scores(torch.tensor([7]), scores[:1], one_each[:, None]),
        lambda: screening_report_over_ranks(samples, scores, labels, ["JAK2"], num_samples=5),
        lambda: screening_report_over_ranks(samples, scores, labels - 2 * rank, ["JAK2"]),
    ]
    for mistake in mistakes:
        with pytest.raises(UserError) as caught:
            mistake()
        told.append(str(caught.value).removeprefix("[rank 0/2] "))
    # All of them left the group usable, even without a row on any rank.
    empty = gather_scores(samples[:0], scores[:0], labels[:0])
    told.append(str(empty and len(empty.samples)))
    table = gather_scores(samples, scores.bfloat16(), labels)
    told.append(str(table and (table.samples.tolist(), table.labels.tolist())))
    return told


@pytest.mark.ranks
class TestRanks:
    @pytest.mark.parametrize("world_size", [1, 2, 3])
    def test_the_report_equals_one_process_bit_for_bit(self, world_size: int) -> None:
        """Repeated samples count twice in a metric, and padding counts as a sample."""
        whole = screening_report(assay_table(), TASKS)
        expected = {task: found.values for task, found in whole.tasks.items()}
        shares = SHARES[world_size]
        num_duplicates = sum(len(rows) for rows in shares) - 40
        for answer in on_ranks(report_on_ranks, world_size, shares):
            assert answer == [expected, whole.undefined, 40, num_duplicates]

    def test_a_mistake_of_one_rank_is_raised_on_all_and_hangs_none(self) -> None:
        """A rank that raises alone leaves its peers in the gather."""
        zero, one = on_ranks(refusals_on_ranks, 2)
        assert zero[:-2] == one[:-2]
        begins = [
            "[rank 1/2] samples, scores and labels of shapes [[2], [2, 0], [2, 0]]",
            "[rank 1/2] samples, scores and labels of shapes [[2], [2, 1], [2, 1]], torch.f",
            "[rank 1/2] samples, scores and labels of shapes [[1], [2, 1], [2, 1]], torch.f",
            "[rank 1/2] samples, scores and labels of shapes [[], [2, 1], [2, 1]], torch.f",
            "[rank 1/2] samples, scores and labels of shapes [[2], [], [2, 1]], torch.f",
            "sample 7, task 0: labels 1 and 0.",
            "4 different samples were scored, of 5.",
            "sample 2, task 'JAK2': label -1, score 0.",
        ]
        for found, begin in zip(zero[:-2], begins, strict=True):
            assert found.startswith(begin.removeprefix("[rank 0/2] "))
        assert zero[-2:] == ["0", "([0, 1, 2, 3], [[1.0], [1.0], [1.0], [1.0]])"]
        assert one[-2:] == ["None", "None"]


class TestNearMisses:
    def test_averaging_the_ranks_auroc_is_wrong_by_a_lot(self) -> None:
        """Each rank has one chemical series and ranks it perfectly; the whole list is upside
        down, because the model likes the series with few actives."""
        liked = np.array([1, 0, 0, 0, 0, 0]), np.array([9.5, 9.4, 9.3, 9.2, 9.1, 9.0])
        disliked = np.array([1, 1, 1, 1, 1, 0]), np.array([1.5, 1.4, 1.3, 1.2, 1.1, 1.0])
        whole = [np.concatenate(parts) for parts in zip(liked, disliked, strict=True)]
        assert statistics.fmean([auroc(*liked), auroc(*disliked)]) == 1.0
        assert auroc(*whole) == pytest.approx(11 / 36)
        assert statistics.fmean([bedroc(*liked), bedroc(*disliked)]) == 1.0
        assert bedroc(*whole) < 0.9

    def test_dropping_repeats_by_score_would_drop_tied_molecules(self) -> None:
        """np.unique over rows takes two molecules with one score for one."""
        table = gather_scores(
            torch.tensor([4, 9, 4]), torch.tensor([[1.0], [1.0], [1.0]]), torch.ones(3, 1)
        )
        assert table is not None
        assert table.samples.tolist() == [4, 9]
        assert table.num_duplicates == 1
