"""Scores of all ranks in one table, each sample once, for metrics that need the whole list.

The question it answers: "every rank has scored its share, of different sizes and with repeats;
what was scored?"

    B  rows of a rank    n  different samples over all ranks    T  tasks
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

# %% active="py"
from trainer_core.collectives import errors_on_all_ranks, gather_objects
from trainer_core.settings import UserError

# %%
ScoreArray = NDArray[np.floating[Any]]


class ScoreTable(NamedTuple):
    """Scores and labels of each sample once, by ascending sample id."""

    samples: NDArray[np.int64]  # (n,)
    scores: ScoreArray  # (n, T)
    labels: ScoreArray  # (n, T), NaN where missing
    num_duplicates: int = 0


# %%
def gather_scores(samples: Tensor, scores: Tensor, labels: Tensor) -> ScoreTable | None:
    """Every rank's rows as one table, on rank 0; None on the others.

    Sorted by sample id, so it is the same, bit for bit, however the rows were dealt. A sample
    that several ranks scored, as torch's DistributedSampler makes them do to give all ranks the
    same number, is kept once, from the lowest rank.

    Collective: every rank, including one without rows. Rank 0 needs memory for all rows, twice.

    Args:
        samples: ids, (B,) int64; B may differ between ranks.
        scores: (B, T), of one dtype on all ranks.
        labels: (B, T), NaN where missing.

    Raises:
        UserError: on every rank, if one rank's shapes don't fit together or to the others', or
            if a sample came with two labels.
    """
    sizes = agreed_sizes(samples, scores, labels)
    values = torch.cat([scores.detach(), labels.to(scores)], dim=1)  # (B, 2T)
    all_samples = rows_on_rank_0(samples.to(values.device, torch.int64), sizes)
    all_values = rows_on_rank_0(values, sizes)
    table = None
    with errors_on_all_ranks():
        if all_samples is not None and all_values is not None:
            if all_values.dtype == torch.bfloat16:  # which numpy doesn't have
                all_values = all_values.float()
            table = each_sample_once(all_samples.cpu().numpy(), all_values.cpu().numpy())
    return table


def agreed_sizes(samples: Tensor, scores: Tensor, labels: Tensor) -> list[int]:
    """Rows of each rank, after all ranks have compared their shapes. Collective: every rank."""
    # Of shapes only: len() of a scalar raises, on this rank alone.
    fits = samples.shape == scores.shape[:1] and scores.dim() == 2
    fits = fits and scores.shape == labels.shape
    shapes = [list(tensor.shape) for tensor in (samples, scores, labels)]
    facts = gather_objects((fits, shapes, str(scores.dtype)))
    _, (_, first, _), dtype = facts[0]
    width = first[1:]
    for rank, (is_fine, found, found_dtype) in enumerate(facts):
        if not is_fine or found[1][1:] != width or found_dtype != dtype:
            raise UserError(
                f"[rank {rank}/{len(facts)}] samples, scores and labels of shapes {found}, "
                f"{found_dtype}: they must be (B,), (B, T) and (B, T), with the T and dtype of "
                f"rank 0, {width} and {dtype}. Gathering would mix up rows. A rank without "
                "samples passes empty tensors of that width."
            )
    return [found[0][0] for _, found, _ in facts]


def rows_on_rank_0(rows: Tensor, sizes: Sequence[int]) -> Tensor | None:
    """The rows of all ranks, in rank order, on rank 0; None elsewhere. Collective: every rank.

    A gather needs equal shapes, so shorter ranks pad to the longest, and rank 0 cuts it off.
    """
    if not dist.is_initialized():
        return rows
    padded = rows.new_zeros(max(sizes), *rows.shape[1:])
    padded[: len(rows)] = rows
    if dist.get_rank():
        dist.gather(padded)
        return None
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.gather(padded, parts)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def each_sample_once(samples: NDArray[np.int64], values: ScoreArray) -> ScoreTable:
    """Sort by id and drop repeated samples; the first row of each is kept.

    Raises:
        UserError: if a sample comes with two labels for one task.
    """
    scores, labels = np.split(values, 2, axis=1)
    ids, firsts, groups = np.unique(samples, return_index=True, return_inverse=True)
    kept = labels[firsts]
    differs = (labels != kept[groups]) & ~(np.isnan(labels) & np.isnan(kept[groups]))
    if differs.any():
        row, task = (int(index[0]) for index in differs.nonzero())
        raise UserError(
            f"sample {samples[row]}, task {task}: labels {kept[groups[row], task]:g} and "
            f"{labels[row, task]:g}. A sample has one label per task, or the metric depends on "
            "which rank comes first. Number samples by their row in the table, not in the rank."
        )
    return ScoreTable(ids, scores[firsts], kept, len(samples) - len(ids))
