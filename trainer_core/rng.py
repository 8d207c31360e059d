"""A rank's random states: seeded, saved and restored.

Supports cell 4 (distributed), cell 5 (train) and cell 6 (checkpoint).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

# %% active="py"
from trainer_core.order import hash_words


# %%
def setup_seed(*parts: int | str) -> None:
    """Seed python, numpy and torch from a hash of ``parts``.

    With a rank among the parts, each rank draws its own dropout; without one, every rank draws
    the same weights.
    """
    word = int(hash_words("rng", *parts, count=1)[0])
    random.seed(word)
    np.random.seed(word % 2**32)
    torch.manual_seed(word % 2**63)


def rng_state() -> dict[str, Any]:
    """This rank's random states, in types that ``torch.load(weights_only=True)`` accepts."""
    name, key, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (name, np.asarray(key).tolist(), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Continue from random states that ``rng_state`` returned."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(state["cuda"])


@contextmanager
def rng_unchanged() -> Iterator[None]:
    """After the block, the random states are what they were before it."""
    state = rng_state()
    try:
        yield
    finally:
        set_rng_state(state)


def restore_rng(folder: Path | None, rank: int) -> None:
    """Continue from a checkpoint's random states; a rank that isn't in it keeps its seed."""
    path = folder / f"rng-rank-{rank}.pt" if folder else None
    if path and path.is_file():
        set_rng_state(torch.load(path, weights_only=True))
