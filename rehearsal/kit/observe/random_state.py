"""Which random numbers will be drawn next?"""

from __future__ import annotations

import hashlib

import torch


def random_state_digest() -> str:
    """A short digest of torch's random state on the CPU."""
    state: bytes = torch.get_rng_state().numpy().tobytes()
    return hashlib.sha256(state).hexdigest()[:16]
