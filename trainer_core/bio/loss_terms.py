"""Losses over terms that ranks have unequal numbers of: masked residues, labels that are there.

The question it answers: "over which terms is this loss the mean, once ranks differ in how many
they have?"

    B  rows    T  tokens in a row    V  tokens in the vocabulary    W  world size
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F


# %%
def summed_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy summed over the masked residues; (B, T, V) and (B, T) to ().

    In float32, whatever the autocast: long sums are the first thing that bf16 gets wrong.
    """
    return F.cross_entropy(logits.float().flatten(0, -2), targets.flatten(), reduction="sum")


def mean_over_ranks(local_sum: Tensor, num_terms: int | Tensor) -> Tensor:
    """A loss whose gradient, averaged over ranks by DDP, is that of the mean over all terms.

        1/W * sum of grad(local_sum * W / terms) = grad(sum over all ranks) / terms

    A mean per rank would be averaged into a mean of means, in which a term on a rank with few
    of them weighs more. Without any terms, the loss is zero.

    Collective: every rank, also one without terms. With gradient accumulation, call it for
    each micro-batch's sum with the same ``num_terms``: this rank's in the whole step.

    Args:
        local_sum: the loss summed over terms of this rank, ().
        num_terms: how many terms this rank has.
    """
    total = torch.as_tensor(num_terms, device=local_sum.device).clone()
    world_size = 1
    if dist.is_initialized():
        world_size = dist.get_world_size()
        dist.all_reduce(total)
    return local_sum * (world_size / total.clamp(min=1)).to(local_sum.dtype)
