"""A run's calls, which may differ in learning rate and weight decay: what should each step use?

The run's position carries over from one call to the next; its settings do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rehearsal.grading.verdict import Finding

Settings = Callable[[str, int], tuple[float, float]]  # a parameter's rate and decay in a step
RULE = "a call's own settings apply from its first step; the run's position carries over"


class Data(NamedTuple):
    """The samples of a run, in index order, over and over."""

    num_samples: int
    global_batch_size: int

    def samples_of(self, step: int) -> list[int]:
        """The samples of a step, over all ranks."""
        first = step * self.global_batch_size
        return [i % self.num_samples for i in range(first, first + self.global_batch_size)]


class Call(NamedTuple):
    """The settings of one call, and the step with which it begins."""

    start: int
    lr: float
    weight_decay: float

    def settings(self, name: str, step: int) -> tuple[float, float]:
        """Rate and decay of a parameter of OddNet in a step."""
        if name.endswith("weight"):
            return self.lr * factor(step), self.weight_decay
        return 2 * self.lr * factor(step), 0.0


def factor(step: int) -> float:
    """A warmup, then a decay."""
    return min(1.0, (step + 1) / 3) * float(0.9**step)


def mistakes(calls: Sequence[Call]) -> list[tuple[str, Settings]]:
    """What the last call may use instead of its own settings, and the code for it."""
    now, found = calls[-1], list[tuple[str, Settings]]()

    def old_rate(earlier: Call) -> Settings:
        return lambda name, step: (earlier.settings(name, step)[0], now.settings(name, step)[1])

    def old_decay(earlier: Call) -> Settings:
        return lambda name, step: (now.settings(name, step)[0], earlier.settings(name, step)[1])

    for call in calls[:-1]:
        found.append(("old-rate", call.settings))
        found.append(("old-rate", old_rate(call)))
        found.append(("old-decay", old_decay(call)))
    found.append(("schedule-restarts", lambda name, step: now.settings(name, step - now.start)))
    found.append(("settings-of-another-group", lambda _, step: now.settings("weight", step)))
    return found


def setting_findings(
    calls: Sequence[Call], step: int, name: str, settings: Sequence[float], about: str
) -> Iterator[Finding]:
    """Rate and decay of one parameter in one step."""
    now, other = calls[-1], "bias" if name.endswith("weight") else "weight"
    ways = [("", now.settings(name, step))]
    ways += [("old", call.settings(name, step)) for call in calls[:-1]]
    ways += [("another", now.settings(other, step))]
    ways += [("again", now.settings(name, step - now.start))]
    right = ways[0][1]
    for at, what in enumerate(("learning rate", "weight decay")):
        close = [
            way for way, pair in ways if math.isclose(pair[at], settings[at], rel_tol=1e-5)
        ]
        if "" in close:
            continue
        codes = {
            "old": ("old-rate", "old-decay")[at],
            "another": "settings-of-another-group",
            "again": "schedule-restarts",
        }
        code = codes[close[0]] if close else "wrong-rate"
        found = f"{about}a {what} of {settings[at]:.4g}; this call asks for {right[at]:.4g}"
        if at == 0:
            base = right[at] / factor(step)
            found += f", which is factor(s)={factor(step):.4g} times {base:.4g}"
        look = "at everything that a state dict brings back, and at what sets it again later"
        if not now.start:  # nothing to bring back
            look = "at what sets each group's rate and decay before a step"
        yield Finding(code, found, RULE, look)
        return
