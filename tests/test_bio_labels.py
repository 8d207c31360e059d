"""Masked losses of many tasks: right sums, right gradients, on any number of ranks."""

from __future__ import annotations

import contextlib
import copy
import math
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from rehearsal.engine.reports import RankReport
from rehearsal.handbook.on_ranks import answers_of, on_ranks, watch_ranks
from trainer_core.bio.calibration import pos_weights, recalibrate
from trainer_core.bio.labels import ElementwiseLoss, LossTerms, Weighting
from trainer_core.bio.labels import all_reduce_counts, all_reduce_terms, binary_cross_entropy
from trainer_core.bio.labels import check_labels, focal, huber, label_counts, local_loss
from trainer_core.bio.labels import loss_terms, squared_error, task_weights, touch
from trainer_core.settings import UserError

# Ranks cannot import a test module; its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

NAN = float("nan")
TASKS = ["NR-AR", "NR-AhR", "SR-p53", "SR-MMP"]
POS_WEIGHT = torch.tensor([3.0, 1.0, 0.5, 9.0])
WEIGHTINGS: list[Weighting] = ["labels", "tasks"]


def sparse_batch() -> tuple[Tensor, Tensor]:
    """13 samples: rows 8 to 12 without any label, and task 3 without one in the whole step."""
    draw = torch.Generator().manual_seed(5)
    inputs = torch.randn(13, 6, generator=draw)
    targets = torch.randint(2, (13, 4), generator=draw).float()
    targets[torch.rand(13, 4, generator=draw) < 0.4] = NAN
    targets[8:], targets[:, 3] = NAN, NAN
    targets[1:6, 1] = NAN  # so tasks have very different numbers of labels
    return inputs, targets


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def mean_by_indexing(elementwise: Tensor, targets: Tensor, weighting: Weighting) -> Tensor:
    """The mean in words: pick the labels that are there, and average."""
    is_label = ~targets.isnan()
    if weighting == "labels":
        return elementwise[is_label].mean()
    columns = [c for c in range(targets.shape[1]) if is_label[:, c].any()]
    return torch.stack([elementwise[is_label[:, c], c].mean() for c in columns]).mean()


class TestMissingLabels:
    def near_miss(self, reduce: Callable[[Tensor, Tensor, Tensor], Tensor]) -> tuple[Any, Any]:
        """A short way to mask, and the gradient that it gives."""
        logits = torch.zeros(2, 2, requires_grad=True)
        targets = torch.tensor([[1.0, NAN], [0.0, 1.0]])
        loss = reduce(logits, targets, ~targets.isnan())
        loss.backward()
        return loss.item(), logits.grad

    def test_neither_value_nor_gradient_is_nan(self) -> None:
        """One NaN in a gradient makes every weight NaN in one step."""
        value, grad = self.near_miss(
            lambda x, y, mask: loss_terms(x, y, binary_cross_entropy).sums.sum()
        )
        assert value == pytest.approx(3 * math.log(2))
        assert grad.tolist() == [[-0.5, 0.0], [0.5, -0.5]]

    def test_multiplying_by_the_mask_keeps_the_nan(self) -> None:
        """NaN * 0 is NaN; the first thing that people write."""
        value, grad = self.near_miss(lambda x, y, m: (binary_cross_entropy(x, y) * m).sum())
        assert math.isnan(value)
        assert grad.isnan().any()

    def test_where_after_the_loss_has_the_right_value_and_a_nan_gradient(self) -> None:
        """The loss in the log looks fine, and the weights are NaN after the first step."""
        value, grad = self.near_miss(
            lambda x, y, m: torch.where(m, binary_cross_entropy(x, y), 0.0).sum()
        )
        assert value == pytest.approx(3 * math.log(2))
        assert grad.isnan().tolist() == [[False, True], [False, False]]

    def test_filling_in_zeros_trains_missing_labels_as_negatives(self) -> None:
        """Everything is finite, and most of what the model learns is that assays are rare."""
        value, grad = self.near_miss(
            lambda x, y, m: binary_cross_entropy(x, y.nan_to_num(0)).sum()
        )
        assert value == pytest.approx(4 * math.log(2))
        assert grad[0, 1] == 0.5

    def test_a_broken_prediction_without_a_label_is_left_out(self) -> None:
        """An overflow on a row that nobody measured would stop the run."""
        logits = torch.tensor([[math.inf, 0.0], [NAN, 0.0]], requires_grad=True)
        targets = torch.tensor([[NAN, 1.0], [NAN, 0.0]])
        terms = loss_terms(logits, targets, binary_cross_entropy)
        terms.sums.sum().backward()
        assert terms.sums.isfinite().all()
        assert logits.grad is not None
        assert logits.grad.isfinite().all()

    @settings(max_examples=25)
    @given(st.data(), st.sampled_from(WEIGHTINGS), st.booleans())
    def test_any_mask_gives_the_mean_over_the_labels_that_are_there(
        self, data: st.DataObject, weighting: Weighting, is_binary: bool
    ) -> None:
        label = st.sampled_from([0.0, 1.0, NAN] if is_binary else [-3.5, 0.25, 8.0, NAN])
        rows = data.draw(st.lists(st.tuples(label, label, label), min_size=1, max_size=6))
        targets = torch.tensor(rows)
        draw = torch.Generator().manual_seed(len(rows))
        predictions = torch.randn(targets.shape, generator=draw, requires_grad=True)
        loss: ElementwiseLoss = binary_cross_entropy if is_binary else squared_error
        terms = loss_terms(predictions, targets, loss)
        assert terms.counts.tolist() == label_counts(targets).tolist()
        (grad,) = torch.autograd.grad(terms.mean(weighting), predictions)
        if targets.isnan().all():
            assert terms.mean(weighting) == 0
            assert grad.count_nonzero() == 0
            return
        mean = mean_by_indexing(loss(predictions, targets), targets, weighting)
        torch.testing.assert_close(terms.mean(weighting), mean)
        # Its own gradient would be NaN: the reference picks before it computes.
        picked = mean_by_indexing(
            loss(predictions, targets.nan_to_num(0.5)), targets, weighting
        )
        torch.testing.assert_close(grad, torch.autograd.grad(picked, predictions)[0])

    def test_micro_batches_add_up(self) -> None:
        """Accumulating means would weigh a label by how full its micro-batch is."""
        inputs, targets = sparse_batch()
        predictions = small_model()(inputs)
        whole = loss_terms(predictions, targets, squared_error)
        parts = [
            loss_terms(predictions[rows], targets[rows], squared_error)
            for rows in (slice(0, 2), slice(2, 2), slice(2, 13))
        ]
        total = parts[0] + parts[1] + parts[2]
        torch.testing.assert_close(total.detach().sums, whole.detach().sums)
        assert total.counts.tolist() == whole.counts.tolist()
        assert list(total.task_means(TASKS)) == TASKS[:3]
        assert not total.detach().sums.requires_grad

    @pytest.mark.parametrize("weighting", WEIGHTINGS)
    def test_a_step_without_any_label_has_a_zero_gradient_everywhere(
        self, weighting: Weighting
    ) -> None:
        """0 / 0 is NaN; no gradient at all, and DDP's other ranks wait."""
        model, targets = small_model(), torch.full((3, 4), NAN)
        terms = loss_terms(model(torch.ones(3, 6)), targets, binary_cross_entropy)
        loss = local_loss(terms, label_counts(targets), weighting, world_size=2)
        loss.backward()
        assert loss.item() == 0
        assert [grad.count_nonzero().item() for grad in gradients(model)] == [0] * 4

    def test_no_nan_arises_even_inside_the_backward_pass(self) -> None:
        """torch's anomaly detection would stop at the first one, and hide the one you hunt."""
        logits = torch.zeros(2, 2, requires_grad=True)
        targets = torch.tensor([[1.0, NAN], [0.0, 1.0]])
        with torch.autograd.set_detect_anomaly(True):
            loss_terms(logits, targets, binary_cross_entropy).sums.sum().backward()
            after = torch.where(targets.isnan(), 0.0, binary_cross_entropy(logits, targets))
            with pytest.raises(RuntimeError, match="returned nan values"):
                after.sum().backward()

    def test_bf16_predictions_are_compared_and_summed_in_float32(self) -> None:
        """Above 256, bf16 can't add 1."""

        def loss(x: Tensor, y: Tensor) -> Tensor:
            assert x.dtype == y.dtype == torch.float32
            return squared_error(x, y)

        predictions = torch.zeros(600, 1, dtype=torch.bfloat16)
        assert loss_terms(predictions, torch.ones(600, 1), loss).sums.item() == 600

    def test_shapes_that_would_broadcast_are_refused(self) -> None:
        """(B, 1) and (B,) give a (B, B) loss that even decreases."""
        with pytest.raises(ValueError, match=r"predictions \(3, 1\), targets \(3,\)"):
            loss_terms(torch.zeros(3, 1), torch.zeros(3), squared_error)
        with pytest.raises(ValueError, match=r"For one task, use unsqueeze\(1\)"):
            loss_terms(torch.zeros(3), torch.zeros(3), squared_error)

    def test_an_unknown_weighting_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"weighting='mean': .* 'labels' .* 'tasks'"):
            task_weights(torch.ones(2).long(), "mean")  # type: ignore[arg-type]


class TestCheckLabels:
    @pytest.mark.parametrize("bad", [-1.0, 2.0, 0.5, math.inf])
    def test_what_is_no_label_is_named_by_row_and_task(self, bad: float) -> None:
        """Some tables write -1 for missing; cross-entropy of -1 is unbounded below."""
        labels = torch.tensor([[0.0, NAN], [1.0, 0.0], [0.0, bad]])
        with pytest.raises(UserError, match=rf"assays.csv, row 2, task 'NR-AhR': {bad:g}\. A"):
            check_labels(labels, TASKS[:2], source="assays.csv")

    def test_regression_takes_any_finite_number(self) -> None:
        labels = torch.tensor([[-1.0, NAN], [7.4, 0.0]])
        check_labels(labels, TASKS[:2], kind="regression")
        check_labels((labels > 0).float(), TASKS[:2])
        labels[1, 0] = -math.inf
        with pytest.raises(UserError, match=r"row 1, task 'NR-AR': -inf\. A label must be fin"):
            check_labels(labels, TASKS[:2], kind="regression")


class TestFocal:
    @settings(max_examples=25)
    @given(st.floats(-8, 8), st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 0.5, 2.0, 5.0]))
    def test_it_is_the_papers_formula(self, logit: float, y: float, gamma: float) -> None:
        p = 1 / (1 + math.exp(-logit))
        p_y, alpha_y = (p, 0.25) if y else (1 - p, 0.75)
        expected = -alpha_y * (1 - p_y) ** gamma * math.log(p_y)
        x, target = torch.tensor(logit, dtype=torch.float64), torch.tensor(y)
        loss = focal(x, target, gamma=gamma, alpha=0.25)
        assert loss.item() == pytest.approx(expected, rel=1e-9)
        if gamma == 0:
            plain = F.binary_cross_entropy_with_logits(x, target.double())
            assert focal(x, target, gamma=0).item() == pytest.approx(plain.item(), rel=1e-9)

    def test_extreme_logits_have_finite_gradients(self) -> None:
        """(1 - p)**0.5 has an infinite slope at p = 1, and inf * 0 is NaN."""
        x = torch.tensor([-200.0, 200.0], requires_grad=True)
        for y in (0.0, 1.0):
            loss = focal(x, torch.full((2,), y), gamma=0.5)
            assert loss.isfinite().all()
            assert torch.autograd.grad(loss.sum(), x)[0].isfinite().all()


def best_constant(labels: Tensor, loss: ElementwiseLoss) -> float:
    """The logit that a model without inputs learns: where the mean loss has slope 0."""
    low, high = -10.0, 10.0
    for _ in range(50):
        logit = torch.full(labels.shape, (low + high) / 2, dtype=torch.float64)
        logit.requires_grad_()
        (slope,) = torch.autograd.grad(loss(logit, labels.double()).mean(), logit)
        low, high = (low, logit[0].item()) if slope.sum() > 0 else (logit[0].item(), high)
    return low


class TestCalibration:
    LABELS = torch.tensor([1.0] * 3 + [0.0] * 57)  # 5 % positive: pos_weight 19
    LOG_ODDS = math.log(3 / 57)

    def test_pos_weight_shifts_the_optimum_by_its_logarithm_and_recalibrate_undoes_it(
        self,
    ) -> None:
        """A model that says 50 % for a 5 % chance sends twenty times too many to the lab."""
        weight = pos_weights(torch.tensor([3]), torch.tensor([57]), ["SR-p53"]).values
        assert weight.tolist() == [19]
        logit = best_constant(self.LABELS, partial(binary_cross_entropy, pos_weight=weight))
        assert logit == pytest.approx(0, abs=1e-6)
        assert recalibrate(torch.tensor([logit]), weight).item() == pytest.approx(self.LOG_ODDS)
        assert best_constant(self.LABELS, binary_cross_entropy) == pytest.approx(self.LOG_ODDS)

    def test_focal_loss_is_not_calibrated_and_no_constant_shift_undoes_it(self) -> None:
        """Its optimum pulls toward 50 %, by an amount that depends on the chance itself."""
        shifts = []
        for positives in (3, 15):
            labels = (torch.arange(60) < positives).float()
            log_odds = math.log(positives / (60 - positives))
            shifts.append(best_constant(labels, focal) - log_odds)
        assert shifts[0] > shifts[1] + 0.3 > 0.6

    def test_a_task_without_positives_or_negatives_is_named(self) -> None:
        """N_neg / 0 is infinite; 0 / N_pos silently removes the task from the loss."""
        positives, negatives = torch.tensor([2, 0, 5, 4]), torch.tensor([6, 31, 0, 4])
        with pytest.raises(UserError, match=r"task 'NR-AhR': 0 positives and 31 neg.*2 such"):
            pos_weights(positives, negatives, TASKS)
        weights = pos_weights(positives, negatives, TASKS, on_undefined="one")
        assert weights.values.tolist() == [3, 1, 1, 1]
        assert weights.undefined == ("NR-AhR", "SR-p53")
        with pytest.raises(UserError, match="task 'SR-p53': 5 positives and 0 negatives"):
            pos_weights(positives[2:], negatives[2:], TASKS[2:])


# ---------------------------------------------------------------- on ranks

# How 13 rows are dealt: a rank without labels, ranks with uneven ones, a rank without rows.
CUTS: dict[int, list[Sequence[int]]] = {
    1: [(13,)],
    2: [(8, 5), (2, 11), (13, 0)],
    3: [(1, 6, 6), (3, 10, 0), (0, 0, 13)],
}
LOSSES: dict[str, ElementwiseLoss] = {
    "bce": partial(binary_cross_entropy, pos_weight=POS_WEIGHT),
    "focal": focal,
    "huber": partial(huber, delta=0.7),
}


def losses_and_gradients(cuts: Sequence[Sequence[int]]) -> list[Any]:
    """In a rank: loss and gradient of each case, in two micro-batches; and the near miss."""
    world_size, results = dist.get_world_size(), []
    inputs, targets = sparse_batch()
    model = DistributedDataParallel(small_model())
    for cut in cuts:
        x, y = (tensor.split(list(cut))[dist.get_rank()] for tensor in (inputs, targets))
        counts = all_reduce_counts(label_counts(y))
        assert counts.tolist() == label_counts(targets).tolist()
        for weighting in WEIGHTINGS:
            for loss in LOSSES.values():
                model.zero_grad()
                with model.no_sync():
                    first = loss_terms(model(x[:2]), y[:2], loss)
                    local_loss(first, counts, weighting, world_size=world_size).backward()
                second = loss_terms(model(x[2:]), y[2:], loss)
                local_loss(second, counts, weighting, world_size=world_size).backward()
                mean = all_reduce_terms(first + second).mean(weighting)
                results.append([mean, [grad.tolist() for grad in gradients(model)]])
    # The near miss: each rank's own mean, which DDP then averages.
    model.zero_grad()
    loss_terms(model(x), y, LOSSES["bce"]).mean("labels").backward()
    return [results, [grad.tolist() for grad in gradients(model)]]


def reference(loss: ElementwiseLoss, weighting: Weighting) -> tuple[float, list[Tensor]]:
    inputs, targets = sparse_batch()
    model = small_model()
    # The picked labels are the same with any number in the others' place.
    mean = mean_by_indexing(loss(model(inputs), targets.nan_to_num(1)), targets, weighting)
    mean.backward()  # type: ignore[no-untyped-call]
    return mean.item(), gradients(model)


@pytest.mark.ranks
class TestRanks:
    @pytest.mark.parametrize("world_size", [1, 2, 3])
    def test_losses_and_gradients_equal_one_process(self, world_size: int) -> None:
        """Ranks have different numbers of labels; a mean of means moves each weight wrongly."""
        cases = [(loss, w) for w in WEIGHTINGS for loss in LOSSES.values()]
        answers = on_ranks(losses_and_gradients, world_size, CUTS[world_size])
        for results, naive in answers:
            for number, (mean, grads) in enumerate(results):
                expected, expected_grads = reference(*cases[number % len(cases)])
                assert mean == pytest.approx(expected, abs=1e-6)
                for ours, theirs in zip(grads, expected_grads, strict=True):
                    torch.testing.assert_close(torch.tensor(ours), theirs, rtol=0, atol=1e-6)
            # The near miss is far away, unless there is only one rank to average over.
            _, expected_grads = reference(LOSSES["bce"], "labels")
            distance = (torch.tensor(naive[0]) - expected_grads[0]).abs().max().item()
            assert (distance < 1e-6) == (world_size == 1)
            assert len(results) == len(cases) * len(CUTS[world_size])


class TaskHeads(nn.Module):
    """One head per task on a shared body, run only for the tasks that are asked for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(6, 8)
        self.heads = nn.ModuleList(nn.Linear(8, 1) for _ in range(3))

    def forward(self, inputs: Tensor, tasks: Sequence[int], *, touches: bool) -> Tensor:
        features = self.body(inputs).tanh()
        total = sum((self.heads[t](features).square().sum() for t in tasks), torch.zeros(()))
        if touches:
            for skipped in set(range(3)) - set(tasks):
                total = total + touch(self.heads[skipped])
        return total


def my_inputs() -> Tensor:
    return torch.full((4, 6), 0.1 + dist.get_rank())


def with_a_skipped_head(logs: str) -> dict[str, Any]:
    """In a rank: rank 1 has no label of task 2 and skips its head. What does DDP do?"""
    is_skipping = dist.get_rank() == 1
    tasks = [0, 1] if is_skipping else [0, 1, 2]
    plain, facts = TaskHeads(), {}
    model = DistributedDataParallel(copy.deepcopy(plain))
    plain(my_inputs(), tasks, touches=False).backward()
    try:
        model(my_inputs(), tasks, touches=False).backward()
        facts["unsynced"] = all(
            torch.equal(ours, own)
            for ours, own in zip(gradients(model), gradients(plain), strict=True)
        )
        if logs == "same size" and is_skipping:
            # A log of as many numbers as there are gradients, all 1000.
            dist.all_reduce(torch.full((sum(p.numel() for p in plain.parameters()),), 1000.0))
        if logs == "same size":
            facts["largest"] = max(grad.abs().max().item() for grad in gradients(model))
            return facts
        if logs == "one number":
            dist.all_reduce(torch.zeros(1))
        model(my_inputs(), tasks, touches=False)
    except RuntimeError as error:
        facts["raised"] = str(error)
    return facts


def with_all_heads(finds_unused: bool, num_steps: int) -> dict[str, Any]:
    """In a rank: the same, with each of the two ways out; then a step without task 2 at all."""
    model = TaskHeads()
    wrapped = DistributedDataParallel(model, find_unused_parameters=finds_unused)
    touches = not finds_unused
    tasks = [0, 1] if dist.get_rank() == 1 else [0, 1, 2]
    for _ in range(num_steps):
        wrapped.zero_grad()
        wrapped(my_inputs(), tasks, touches=touches).backward()
    facts: dict[str, Any] = {"gradients": [grad.tolist() for grad in gradients(model)]}
    wrapped.zero_grad()
    wrapped(my_inputs(), [0, 1], touches=touches).backward()
    head = model.heads[2].weight
    facts["of a task without labels"] = None if head.grad is None else head.grad.abs().sum()
    before = head.detach().clone()
    torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1).step()
    facts["decays"] = not torch.equal(before, head)
    return facts


def all_reduces(report: RankReport) -> int:
    return sum(one["name"] == "all_reduce" for one in report.collectives)


@pytest.mark.ranks
class TestHeadWithoutLabelsOnOneRank:
    def test_ddp_returns_unsynced_there_and_hangs_elsewhere_until_the_next_forward(
        self,
    ) -> None:
        """The rank without labels takes a step on its own gradient, and nothing says so."""
        labeled, skipping = on_ranks(with_a_skipped_head, 2, "")
        assert skipping["unsynced"]
        assert skipping["raised"].startswith("Expected to have finished reduction in the prior")
        assert "unsynced" not in labeled  # it was still in backward when its peer had left
        assert "by peer" in labeled["raised"]

    def test_in_the_last_step_the_others_wait_forever(self) -> None:
        """No next forward comes, so nothing raises: the job ends by its timeout."""

        def stops_after_backward() -> None:
            with contextlib.suppress(RuntimeError):
                tasks = [0, 1] if dist.get_rank() == 1 else [0, 1, 2]
                model = DistributedDataParallel(TaskHeads())
                model(my_inputs(), tasks, touches=False).backward()
                if dist.get_rank() == 1:  # say, evaluating
                    time.sleep(60)

        labeled, _ = watch_ranks(stops_after_backward, 2, deadline_s=0.7)
        assert labeled.exitcode is None
        assert "backward" in labeled.stacks

    def test_the_next_collective_is_taken_for_the_gradients_sync(self) -> None:
        """Of another size, gloo aborts the process; of the same, the two are added up."""
        _, skipping = watch_ranks(with_a_skipped_head, 2, "one number", deadline_s=20)
        assert skipping.exitcode == -6
        assert "Received data size doesn't match expected size" in skipping.output
        labeled, _ = on_ranks(with_a_skipped_head, 2, "same size")
        assert labeled["largest"] > 400  # about half of the log's 1000, as a gradient

    def test_a_touched_head_gives_every_rank_the_mean_gradient(self) -> None:
        """And find_unused_parameters gives the same, for one more all_reduce in each step."""
        num_steps, found = 3, {}
        for finds_unused in (False, True):
            reports = watch_ranks(with_all_heads, 2, finds_unused, num_steps)
            answers = answers_of(reports, "with_all_heads", 60)
            assert answers[0] == answers[1]
            found[finds_unused] = answers[0], all_reduces(reports[0])
        (touched, plain_calls), (searched, more_calls) = found[False], found[True]
        assert touched["gradients"] == searched["gradients"]
        assert more_calls - plain_calls == num_steps + 1
        total = TaskHeads()
        loss = sum(
            total(torch.full((4, 6), 0.1 + rank), tasks, touches=False)
            for rank, tasks in enumerate([[0, 1, 2], [0, 1]])
        )
        (loss / 2).backward()
        for ours, theirs in zip(touched["gradients"], gradients(total), strict=True):
            torch.testing.assert_close(torch.tensor(ours), theirs)
        # Without a label anywhere: zero and decayed, or None and left alone.
        assert (touched["of a task without labels"], touched["decays"]) == (0, True)
        assert (searched["of a task without labels"], searched["decays"]) == (None, False)


def test_touching_is_zero_even_where_a_sum_would_overflow() -> None:
    """0 * (3e38 + 3e38) is 0 * inf: NaN, in every rank's loss."""
    module = nn.Linear(2, 1)
    nn.init.constant_(module.weight, 3e38)
    touch(module).backward()
    assert touch(module).item() == 0
    assert all(grad.count_nonzero() == 0 for grad in gradients(module))


def test_without_a_group_the_counts_are_this_process_own() -> None:
    terms = LossTerms(torch.tensor([2.0, 0.0]), torch.tensor([4, 0]))
    assert all_reduce_counts(terms.counts).tolist() == [4, 0]
    assert all_reduce_terms(terms).mean("tasks").item() == 0.5
