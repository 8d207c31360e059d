"""How all ranks stay of one mind: they share facts, raise together, vote, and stop when asked.

Leaned on by cell 4 (distributed) and all that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

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
    """Raise on every rank if any rank brings an error; a rank that raises alone is a hang.

    Collective: every rank, also those without an error.

    Raises:
        The rank's own error (an OSError as UserError), or UserError (RuntimeError if no user
        can mend it) with the text of the first rank that has one.
    """
    if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
        error = UserError(
            f"{error}. The run cannot go on without its files. Check path, permissions and "
            "free space, and start again: it goes on from the last checkpoint."
        )
    found = error and (isinstance(error, UserError), str(error) or repr(error))
    reports = gather_objects(found)
    if error is not None:
        raise error
    for rank, report in enumerate(reports):
        if report is not None:
            kind = UserError if report[0] else RuntimeError
            raise kind(f"[rank {rank}/{len(reports)}] {report[1]}")


@contextmanager
def errors_on_all_ranks(verified: Path | None = None) -> Iterator[None]:
    """Run a block that may fail on some ranks only, and raise on all ranks if it has.

    Collective: every rank. The block itself must hold no collective: after one that has failed
    because a peer died, another would wait for it.

    Args:
        verified: a checkpoint that the block loads; what fails is then its content.
    """
    error = None
    try:
        yield
    except Exception as caught:  # re-raised below, here and on the other ranks
        error = caught
        of_the_machine = OSError, MemoryError, torch.OutOfMemoryError
        if verified and not isinstance(caught, of_the_machine):
            error = UserError(
                f"{verified} is as its manifest says, but cannot be loaded ({caught!r:.60}): "
                "written by another program. Move it away: the run goes on from the one before."
            )
            error.__cause__ = caught
    raise_on_all_ranks(error)


def any_rank(*claims: bool) -> Callable[[], list[bool]]:
    """Ask whether each claim holds on any rank; the answer is fetched by calling the result.

    Collective: every rank asks, then every rank fetches, in the same order. In between, the
    votes travel beside the computation. They lie on the CPU, so no device is waited for.
    """
    if not dist.is_initialized():
        return lambda: list(claims)
    votes = torch.tensor(claims, dtype=torch.uint8)
    work = dist.all_reduce(votes, op=dist.ReduceOp.MAX, async_op=True)

    def answer() -> list[bool]:
        work.wait()
        return [bool(vote) for vote in votes.tolist()]

    return answer
