"""Which random numbers come next? Did code change what it must leave as it was?"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn


def random_state_digest() -> str:
    """A short digest of torch's random state on the CPU."""
    state: bytes = torch.get_rng_state().numpy().tobytes()
    return hashlib.sha256(state).hexdigest()[:16]


def global_state(**modules: nn.Module) -> dict[str, str]:
    """What code shares with the rest of its process: random states, modes, settings.

    Args:
        modules: whose training flags count as well, by name.
    """
    states = {
        "torch's random state": random_state_digest(),
        "numpy's random state": _digest(np.random.get_state()),
        "Python's random state": _digest(random.getstate()),
        "the default dtype": str(torch.get_default_dtype()),
        "the grad mode": str(torch.is_grad_enabled()),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
    }
    for name, module in modules.items():
        modes = {path or name: part.training for path, part in module.named_modules()}
        states[f"the training flags of {name}"] = str(modes)
    return states


def _digest(state: object) -> str:
    return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


@contextmanager
def global_changes(**modules: nn.Module) -> Iterator[list[str]]:
    """Which parts of the global state the block changes: the list is filled at its end.

    with global_changes(model=model) as changed:
        learner.evaluate(model)
    context.record("changed", what=changed)
    """
    before: Mapping[str, str] = global_state(**modules)
    changed: list[str] = []
    try:
        yield changed
    finally:
        after = global_state(**modules)
        changed += [name for name in before if before[name] != after[name]]
