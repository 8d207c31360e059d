"""How many tokens each micro-batch has, and which ids they get."""

from __future__ import annotations

from dataclasses import dataclass

WIDTH = 8  # tokens of a micro-batch, padding included


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """Micro-batches of ``least`` to WIDTH tokens, which differ between steps and ranks."""

    world_size: int
    grad_accum_steps: int
    least: int
    steps: int = 2

    def num_tokens(self, step: int, micro_step: int, rank: int) -> int:
        """How many tokens are not padding."""
        return max(self.least, (5 * step + 3 * micro_step + 7 * rank) % (WIDTH + 1))

    def first_id(self, step: int, micro_step: int = 0, rank: int = 0) -> int:
        """No id is used twice, so each weight moves in one step, for one token."""
        micro_batch = step * self.grad_accum_steps + micro_step
        return (micro_batch * self.world_size + rank) * WIDTH
