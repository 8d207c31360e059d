"""How the ranks stay in agreement: they share facts, vote, and raise errors together.

Supports cell 4 (distributed) and every cell after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# %% active="py"
from trainer_core.settings import UserError


# %%
def gather_objects(value: Any) -> list[Any]:
    """Every rank's value, in rank order. Collective: every rank."""
    if not dist.is_initialized():
        return [value]
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def raise_on_all_ranks(error: BaseException | None) -> None:
    """Raise on every rank if any rank has an error; if one raised alone, the rest would hang.

    Collective: every rank, including those without an error.

    Raises:
        On the failing rank, its own error (an OSError becomes a UserError). On the others, a
        UserError with the first failing rank's text, or a RuntimeError if no user can fix it.
    """
    if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
        error = UserError(
            f"{error}. The run can't continue without its files. Check the path, permissions "
            "and free space, then run the same command: it resumes from the last checkpoint."
        )
    report = error and (isinstance(error, UserError), str(error) or repr(error))
    reports = gather_objects(report)
    if error is not None:
        raise error
    for rank, other in enumerate(reports):
        if other is not None:
            is_fixable, text = other
            error_type = UserError if is_fixable else RuntimeError
            raise error_type(f"[rank {rank}/{len(reports)}] {text}")


@contextmanager
def errors_on_all_ranks(checkpoint: Path | None = None) -> Iterator[None]:
    """If the block fails on some ranks, raise on all of them.

    Collective: every rank. The block itself must not contain a collective: if one failed
    because a peer died, the vote after it would wait for that peer.

    Args:
        checkpoint: a verified checkpoint that the block loads, so a failure is blamed on it.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as caught:  # raised below, here and on the other ranks
        error = caught
        machine_failures = (OSError, MemoryError, torch.OutOfMemoryError)
        if checkpoint and not isinstance(caught, machine_failures):
            error = UserError(
                f"{checkpoint} matches its manifest but can't be loaded ({caught!r:.60}): a "
                "different program wrote it. Move it away to resume from the one before."
            )
            error.__cause__ = caught
    raise_on_all_ranks(error)


def any_rank(*claims: bool) -> Callable[[], list[bool]]:
    """Start a vote on whether each claim is true on any rank; call the result for the answers.

    Collective: every rank starts the vote, then every rank fetches the answers, in the same
    order. The votes overlap with whatever runs in between. They are CPU tensors, so nothing
    waits for the device.
    """
    if not dist.is_initialized():
        return lambda: list(claims)
    votes = torch.tensor(claims, dtype=torch.uint8)
    work = dist.all_reduce(votes, op=dist.ReduceOp.MAX, async_op=True)

    def answers() -> list[bool]:
        work.wait()
        return [bool(vote) for vote in votes.tolist()]

    return answers


# %%
def placeholder(no_samples: Tensor) -> Tensor:
    """One sample of zeros for an empty batch, whose backward pass only has to join the sync.

    Not every kernel accepts an empty batch: in torch 2.11, the backward pass of
    memory-efficient attention divides by the batch size before it checks for emptiness. The
    caller multiplies the output by zero, so the sample adds nothing to the gradient. That works
    only if the output is finite: 0 * inf is NaN.

    Args:
        no_samples: an empty batch, (0, ...).

    Returns:
        A batch of one, (1, ...), on the same device and of the same dtype.
    """
    return no_samples.new_zeros(1, *no_samples.shape[1:])


# %%
class DeferredErrors:
    """File errors of this rank, kept until the next vote so that all ranks raise together.

    A rank that raised on its own would leave its peers with a broken connection instead of the
    reason.
    """

    def __init__(self) -> None:
        self.first: OSError | None = None

    def attempt(self, write: Callable[..., None], *args: Any, **fields: Any) -> None:
        """Call ``write``; keep its OSError instead of raising it."""
        try:
            write(*args, **fields)
        except OSError as error:
            self.first = self.first or error
