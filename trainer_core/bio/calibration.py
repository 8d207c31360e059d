"""Weights for rare positives, and the shift of the logits that they cause.

The question it answers: "the model says 50 %: how many of a hundred such molecules are active?"

    T  tasks    B  samples in a batch    p  fraction of positives    w  pos_weight
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

# %% active="py"
from trainer_core.settings import UserError


# %%
@dataclass(frozen=True, slots=True)
class PosWeights:
    """``pos_weight`` of each task, and the tasks that got 1 because theirs is undefined."""

    values: Tensor  # (T,) float32
    undefined: tuple[str, ...]


def pos_weights(
    positives: Tensor,
    negatives: Tensor,
    tasks: Sequence[str],
    *,
    on_undefined: Literal["refuse", "one"] = "refuse",
) -> PosWeights:
    """N_neg / N_pos of each task: its positives weigh as much as its negatives.

    Args:
        positives: labels that are 1, (T,); of the training set, or the validation set leaks.
        negatives: labels that are 0, (T,).
        on_undefined: what a task without positives (N_neg / 0) or without negatives (0, which
            would erase it) gets: an error, or a weight of 1 and a place in ``undefined``.

    Raises:
        UserError: for the first undefined task, by name.
    """
    is_undefined = (positives == 0) | (negatives == 0)
    undefined = tuple(tasks[index] for index in is_undefined.nonzero().flatten().tolist())
    if undefined and on_undefined == "refuse":
        at = list(tasks).index(undefined[0])
        raise UserError(
            f"task {undefined[0]!r}: {int(positives[at])} positives and {int(negatives[at])} "
            "negatives in the training set. pos_weight = negatives / positives needs one of "
            f"each, or the task teaches one answer ({len(undefined)} such tasks). Drop the "
            "task, or pass on_undefined='one'."
        )
    values = negatives.double() / positives.double().clamp(min=1)
    return PosWeights(torch.where(is_undefined, 1.0, values).float(), undefined)


def recalibrate(logits: Tensor, pos_weight: Tensor) -> Tensor:
    """Undo what ``pos_weight`` did to the logits: subtract ln(pos_weight).

    Where a fraction p of the samples is positive, the expected loss at logit z is

        L(z) = -w p ln s(z) - (1 - p) ln(1 - s(z))        s = sigmoid, s' = s (1 - s)
        L'(z) = -w p (1 - s) + (1 - p) s = 0
        s / (1 - s) = w p / (1 - p)
        z = ln(p / (1 - p)) + ln w

    so the optimum is the log-odds plus ln w. At w = 99, a molecule with a 1 % chance scores
    50 %. A task's ranking, and so its AUROC, doesn't change; thresholds, expected hits and
    comparisons between tasks do. Drawing positives w times as often shifts the same way.

    Args:
        logits: (B, T), from a model that was trained with ``pos_weight``.
        pos_weight: (T,), as in training.
    """
    return logits - pos_weight.log().to(logits)
