"""Break a job in one of several ways, and say in which only after somebody has named it."""

from __future__ import annotations

import difflib
import random
import statistics
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rehearsal.handbook.step_phases import Run, step_stacks

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class BlindCase:
    """A job that has run with one fault, drawn at random.

    Args:
        candidates: name -> a function that runs the job with that fault. It gets a source of
            chance, for a fault that strikes a rank or by an amount of its own.
        healthy: a run without a fault, to compare with.
        seed: the same seed and candidates draw the same case; by default, nobody knows.
    """

    def __init__(
        self,
        candidates: Mapping[str, Callable[[random.Random], Run]],
        healthy: Run,
        *,
        seed: int | None = None,
    ) -> None:
        chance = random.Random(seed)
        self.names = list(candidates)
        self._fault = chance.choice(self.names)
        self.run = candidates[self._fault](chance)
        self.healthy = healthy

    def picture(self) -> Figure:
        """The healthy run's phases next to this one's."""
        return step_stacks({"healthy": self.healthy, "what is it?": self.run})

    def grew_most(self) -> tuple[str, int]:
        """The phase that grew most in a median step, and on which rank."""
        grown = {}
        for rank, steps in enumerate(self.run):
            for name in steps[0]:
                usual = statistics.median(step[name] for step in self.healthy[rank])
                grown[name, rank] = statistics.median(step[name] for step in steps) - usual
        return max(grown, key=grown.__getitem__)

    def name(self, answer: str) -> bool:
        """Name the fault. Returns whether that's it; "reveal" gives up."""
        choice = ", ".join(self.names)
        if not answer:
            print(
                f"Nothing named yet. Set `answer` to one of these and run the cell: {choice}."
            )
            return False
        if answer == "reveal":
            print(f"It was: {self._fault}.")
            return True
        if answer not in self.names:
            near = difflib.get_close_matches(answer, self.names, n=1, cutoff=0.3)
            print(f"{answer!r} isn't one of these: {choice}.", *(f"{n!r}?" for n in near))
            return False
        if answer == self._fault:
            print(f"Right: {answer}.")
            return True
        phase, rank = self.grew_most()
        print(
            f"It isn't {answer!r}. In a median step, {phase} on rank {rank} grew most. Which "
            "fault explains that, and what the other rank shows? Name it, or say 'reveal'."
        )
        return False
