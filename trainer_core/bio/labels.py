"""Losses for many tasks at once, when most labels are missing.

The question it answers: "over which labels is this gradient the mean, when every rank has a
different number of them?"

    B    samples in a batch             T    tasks
    S_t  summed loss of task t          N_t  labels of task t in the step, over all ranks
    W    world size

A step takes three lines. The counts come from the table of labels, without a collective, or
from ``all_reduce_counts``; the sum over micro-batches is ``+``:

    terms = loss_terms(model(inputs), targets, binary_cross_entropy)
    counts = label_counts(labels[samples_in_step])
    local_loss(terms, counts, "labels", world_size=W).backward()

``trainer_core.bio.step`` multiplies by W / N itself. A task for it returns ``terms.sums.sum()``
as its summed loss and ``label_counts(...).sum()`` as its number of terms: the mean over labels.

Two traps of DDP, both shown in tests/test_bio_labels.py with torch 2.13 on gloo:

A head that isn't run on one rank, because none of its rows has the label. On that rank,
backward returns *without syncing*, and its optimizer steps on local gradients. The other ranks
hang in backward, until that rank's next forward raises "Expected to have finished reduction".
If it issues another collective first, such as the all_reduce of a loss for the log, the two are
paired: gloo aborts if their sizes differ, and adds them up if they don't. So either run every
head on every row and mask the loss, or add ``touch(head)`` for a head you skip. The
alternative, ``find_unused_parameters=True``, gives the same gradients for a walk over the graph
and one more all_reduce per step. The two differ only if no rank has a label: a touched head has
a gradient of zero, so AdamW still decays it and applies its momentum; an unused one keeps None
and is left alone.

A mean per rank, averaged by DDP, weighs a label on a rank with few labels more than one on a
rank with many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

# %% active="py"
from trainer_core.settings import UserError

# %%
# Predictions and targets to a loss for each of them; all (B, T).
ElementwiseLoss = Callable[[Tensor, Tensor], Tensor]
# "labels": the mean over labels, so a task with more labels counts more.
# "tasks": the mean over tasks of each task's mean over its labels, so every task counts the
# same, and a label of a rare task counts more. Tasks without a label in the step don't count.
Weighting = Literal["labels", "tasks"]


@dataclass(frozen=True, slots=True)
class LossTerms:
    """A sum of losses and a number of labels for each task; ``+`` adds those of two batches."""

    sums: Tensor  # S_t: (T,) float32
    counts: Tensor  # (T,) int64

    def __add__(self, other: LossTerms) -> LossTerms:
        return LossTerms(self.sums + other.sums, self.counts + other.counts)

    def detach(self) -> LossTerms:
        """The same numbers, without the graph."""
        return LossTerms(self.sums.detach(), self.counts)

    def mean(self, weighting: Weighting) -> Tensor:
        """The mean loss, shape (); 0 without labels."""
        return (task_weights(self.counts, weighting) * self.sums).sum()

    def task_means(self, tasks: Sequence[str]) -> dict[str, float]:
        """The mean loss of each task that has a label. The host waits for the device here."""
        rows = zip(tasks, self.sums.tolist(), self.counts.tolist(), strict=True)
        return {task: total / count for task, total, count in rows if count}


def label_counts(targets: Tensor) -> Tensor:
    """Labels of each task: those that aren't NaN. (B, T) to (T,) int64."""
    return (~targets.isnan()).sum(dim=0)


def loss_terms(predictions: Tensor, targets: Tensor, loss: ElementwiseLoss) -> LossTerms:
    """Sum ``loss`` over the labels that are there, for each task.

    The missing ones leave *before* the loss. Neither of the shorter ways works:

        (loss(x, y) * mask).sum()           NaN * 0 is NaN: so is the sum
        where(mask, loss(x, y), 0).sum()    the sum is right, the gradient is NaN: backward
                                            multiplies the zero that where sends back by the
                                            loss's derivative, and that is NaN where y is

    Without labels or samples the sums are 0 and so are all gradients, and every parameter has
    one: a rank without labels still joins the sync.

    Args:
        predictions: (B, T), of any floating dtype; the loss is computed in float32.
        targets: (B, T), NaN where the label is missing.

    Raises:
        ValueError: if the shapes differ. (B, 1) and (B,) would broadcast to (B, B).
    """
    if predictions.shape != targets.shape or predictions.dim() != 2:
        raise ValueError(
            f"predictions {tuple(predictions.shape)}, targets {tuple(targets.shape)}: both "
            "must be (samples, tasks), or broadcasting compares every sample with every other. "
            "For one task, use unsqueeze(1)."
        )
    is_label = ~targets.isnan()
    zero = torch.zeros((), dtype=torch.float32, device=targets.device)
    x = torch.where(is_label, predictions.float(), zero)
    y = torch.where(is_label, targets.float(), zero)
    # Again after the loss: at x = y = 0, cross-entropy is ln 2.
    sums = torch.where(is_label, loss(x, y), zero).sum(dim=0)
    return LossTerms(sums, is_label.sum(dim=0))


# %%
def binary_cross_entropy(
    logits: Tensor, targets: Tensor, pos_weight: Tensor | None = None
) -> Tensor:
    """-(w y ln s + (1 - y) ln(1 - s)) with s = sigmoid(logits); w is ``pos_weight``, (T,)."""
    return F.binary_cross_entropy_with_logits(
        logits, targets, pos_weight=pos_weight, reduction="none"
    )


def focal(
    logits: Tensor, targets: Tensor, *, gamma: float = 2.0, alpha: float | None = None
) -> Tensor:
    """Focal loss: -alpha_y (1 - p_y)**gamma ln p_y, with p_y the probability of the label.

    From Lin, Goyal, Girshick, He and Dollar, "Focal Loss for Dense Object Detection" (2017).
    With gamma 0 and no alpha it is cross-entropy. It doesn't need the numbers of positives and
    negatives, but its optimum isn't a probability: ``recalibrate`` doesn't undo it.

    Args:
        gamma: at least 0. The paper's best is 2, with alpha = 0.25.
        alpha: weight of positives; negatives get 1 - alpha. None weighs neither.
    """
    # With z = +logit for positives, -logit for negatives: p_y = sigmoid(z) and 1 - p_y =
    # sigmoid(-z). In logarithms, no power of 0 whose derivative is infinite for gamma < 1.
    z = torch.where(targets > 0.5, logits, -logits)
    losses = -(gamma * F.logsigmoid(-z)).exp() * F.logsigmoid(z)
    if alpha is None:
        return losses
    return losses * torch.where(targets > 0.5, alpha, 1 - alpha)


def squared_error(predictions: Tensor, targets: Tensor) -> Tensor:
    """(prediction - target)**2, for regression."""
    return F.mse_loss(predictions, targets, reduction="none")


def huber(predictions: Tensor, targets: Tensor, *, delta: float = 1.0) -> Tensor:
    """Half the squared error up to ``delta``, linear beyond: one bad assay value pulls less."""
    return F.huber_loss(predictions, targets, reduction="none", delta=delta)


# %%
def task_weights(counts: Tensor, weighting: Weighting) -> Tensor:
    """The w_t for which w_1 S_1 + ... + w_T S_T is the mean loss; (T,) float32.

        "labels"    w_t = 1 / (N_1 + ... + N_T)
        "tasks"     w_t = 1 / (N_t * number of tasks with N_t > 0), and 0 for the others

    On the device, without a sync.

    Args:
        counts: N_t, (T,) int64. For a gradient, those of the step over all ranks; a rank's own
            would give a mean of means.

    Raises:
        ValueError: if ``weighting`` is neither.
    """
    if weighting == "labels":
        return 1 / counts.sum().clamp(min=1).float().expand(len(counts))
    if weighting == "tasks":
        has_labels = counts > 0
        return has_labels / (counts.clamp(min=1) * has_labels.sum().clamp(min=1)).float()
    raise ValueError(
        f"weighting={weighting!r}: a mean over what? Use 'labels' (every label counts the "
        "same) or 'tasks' (every task with a label counts the same)."
    )


def local_loss(
    terms: LossTerms, counts: Tensor, weighting: Weighting, *, world_size: int
) -> Tensor:
    """What this rank calls backward on, so that DDP's average is the step's mean loss.

    DDP averages the ranks' gradients, so each rank's loss is multiplied by W:

        1/W * sum over ranks of grad(W * sum over t of w_t S_t(rank)) = grad(mean loss)

    It holds for each micro-batch too, if all of a step's use that step's ``counts``.

    Args:
        terms: of this rank, or of one of its micro-batches.
        counts: N_t of the step over all ranks and micro-batches.
    """
    return world_size * (task_weights(counts, weighting) * terms.sums).sum()


def all_reduce_counts(counts: Tensor) -> Tensor:
    """Labels of each task over all ranks, for those who have no table to count them in.

    Collective: every rank, including one without any label or sample, once per step and before
    the first backward.
    """
    total = counts.clone()
    if dist.is_initialized():
        dist.all_reduce(total)
    return total


def all_reduce_terms(terms: LossTerms) -> LossTerms:
    """Sums and counts over all ranks, for logs: ``.mean(weighting)`` is the step's loss.

    Collective: every rank.
    """
    # One collective. Float64 has room for a count of any dataset.
    table = torch.stack([terms.sums.detach().double(), terms.counts.double()])
    if dist.is_initialized():
        dist.all_reduce(table)
    return LossTerms(table[0].float(), table[1].long())


def touch(module: nn.Module) -> Tensor:
    """A zero to add to the loss, so that DDP gets a gradient, of zero, from each parameter.

    For a head that this rank skips because none of its rows has the label.
    """
    # Multiplied before the sum: a sum that overflows would make 0 * inf = NaN.
    zeros = [(0 * parameter).sum() for parameter in module.parameters()]
    return torch.stack(zeros).sum()


# %%
def check_labels(
    labels: Tensor,
    tasks: Sequence[str],
    *,
    kind: Literal["binary", "regression"] = "binary",
    source: str = "labels",
) -> None:
    """Refuse a table that holds what isn't a label. Once, on the host, when it is loaded.

    Args:
        labels: (n, T).
        source: the file's name, for the message.

    Raises:
        UserError: for the first such entry, by row and task.
    """
    if kind == "binary":
        is_bad = ~(labels.isnan() | (labels == 0) | (labels == 1))
        rule = "A binary label is 0, 1 or NaN. Any other number would train as a label, also a "
        rule += "-1 that means missing"
    else:
        is_bad = labels.isinf()
        rule = "A label must be finite, or NaN. One infinity makes every weight NaN"
    if is_bad.any():
        row, task = is_bad.nonzero()[0].tolist()
        raise UserError(
            f"{source}, row {row}, task {tasks[task]!r}: {labels[row, task].item():g}. {rule}. "
            "Write NaN where the label is missing."
        )
