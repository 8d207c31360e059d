"""Whether a resume carried on without a jump: step, learning rate, optimizer state, loss.

Supports cell 8 (launch).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# %% active="py"
from trainer_core.data import StepSchedule
from trainer_core.model import learning_rate_at
from trainer_core.run_folder import Start


# %%
def validate_resume(
    state: Mapping[str, Any],
    start: Start,
    schedule: StepSchedule,
    position: int,
    next_losses: Sequence[float],
) -> dict[str, bool | None]:
    """Whether each value continues across the resume; None where too little is known to judge.

    Args:
        state: the restored checkpoint.
        position: the sampler's own, when training resumed.
        next_losses: of the first steps after the resume, over the global batch.
    """

    def of_full_steps(losses: Sequence[float], first: int) -> list[float]:
        # The last step of an epoch may have a single sample, whose loss says little.
        steps = enumerate(losses, first)
        return [loss for at, loss in steps if schedule.size(at) == schedule.size(0)]

    earlier = of_full_steps(state["losses"], state["step"] - len(state["losses"]))
    before = [loss for loss in earlier if math.isfinite(loss)]
    after = of_full_steps(next_losses, position)
    continuous = None
    if len(before) > 2 and after:
        # A NaN among the next losses makes the comparison false.
        jump = abs(statistics.fmean(after) - statistics.fmean(before))
        continuous = jump <= max(4 * statistics.stdev(before), 0.1 * max(before))
    # The schedule must still give this step the saved rate, unless its settings changed.
    rate_settings = {"learning_rate", "warmup_steps", "decay_steps", "min_lr_fraction"}
    is_same_lr = math.isclose(learning_rate_at(start.cfg, position), state["learning_rate"])
    return {
        "step_monotone": state["step"] == position,
        "sampler_position_continuous": state["sampler"]["position"] == position,
        "learning_rate_continuous": None if rate_settings & set(start.changes) else is_same_lr,
        "optimizer_state_present": len(state["optimizer"]["state"]) > 0,
        "scaler_state_present": bool(state["scaler"]) if start.cfg.amp == "fp16" else None,
        "loss_continuous": continuous,
    }


class ResumeCheck:
    """Judges a resume once, after its first five steps, and logs ``resume_validated``.

    Args:
        state: the restored checkpoint; None at a first start, which has nothing to judge.
        position: completed steps when training resumed.
        event: writes to this rank's log.
    """

    NUM_STEPS = 5

    def __init__(
        self,
        start: Start,
        state: Mapping[str, Any] | None,
        schedule: StepSchedule,
        position: int,
        event: Callable[..., None],
    ) -> None:
        self.start = start
        self.state = state
        self.schedule = schedule
        self.position = position
        self.event = event
        self.losses: list[float] = []

    def add(self, step: int, losses: Sequence[float]) -> None:
        """Take the losses of the last steps, up to ``step``."""
        if self.state is None:
            return
        self.losses = (self.losses + list(losses))[: self.NUM_STEPS]
        if len(self.losses) == self.NUM_STEPS or step == self.schedule.total_steps:
            checks = validate_resume(
                self.state, self.start, self.schedule, self.position, self.losses
            )
            is_ok = False not in checks.values()
            self.event("resume_validated", step=step, ok=is_ok, checks=checks)
            self.state = None
