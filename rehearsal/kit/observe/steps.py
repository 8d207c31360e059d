"""Each step of a run as it happened. In the ranks.

``judge.steps`` reads what is recorded here.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.restart import Body, odd_net, trains
from rehearsal.kit.observe.samples import before_forward, marked_samples, weights_of


class WatchedSteps:
    """Records the weights with which each forward pass of training begins, as "step_begins".

    An update that is written out, without an optimizer of torch's, is recorded as
    "optimizer_step" when the next forward pass begins.

    Attributes:
        newest: the watch of the model that trains; a process trains one at a time.
    """

    newest: ClassVar[WatchedSteps | None] = None

    def __init__(self, context: RankContext, model: nn.Module) -> None:
        self.context, self.model = context, model
        self.first = context.count("optimizer_step")  # of other models, before
        self.before: tuple[int, dict[str, str]] | None = None
        before_forward(model, self._see)
        WatchedSteps.newest = self

    def _see(self, _: Tensor) -> None:
        if torch.is_grad_enabled():
            self.end_step()
            weights = weights_of(self.model)
            self.before = self.context.count("optimizer_step"), weights
            self.context.record("step_begins", weights=weights)

    def done(self) -> int:
        """The steps that are done, with an update that is written out and not recorded yet."""
        return self.context.count("optimizer_step") - self.first + self._has_moved()

    def end_step(self) -> None:
        """Record an update that is written out. Called at the end of the run, for the last."""
        if self._has_moved():
            self.context.record("optimizer_step")
        self.before = None

    def _has_moved(self) -> bool:
        """Whether the weights have changed since the last pass without torch's optimizer."""
        if self.before is None:
            return False
        steps, weights = self.before
        return self.context.count("optimizer_step") == steps and (
            weights_of(self.model) != weights
        )


def trains_in_steps(
    run: str,
    num_samples: int,
    *,
    model: Callable[[RankContext], nn.Module] = odd_net,
    **rest: Any,
) -> Body:
    """``restart.trains`` with its steps watched; answers "given" and "samples", too."""

    def body(context: RankContext, learner: SimpleNamespace) -> dict[str, Any]:
        given: list[dict[str, str]] = []
        watches: list[WatchedSteps] = []

        def watched(context: RankContext) -> nn.Module:
            net = model(context)
            given.append(weights_of(net))
            watches.append(WatchedSteps(context, net))
            return net

        answer = trains(run, num_samples, model=watched, **rest)(context, learner)
        watches[0].end_step()
        samples = [values.tolist() for values in marked_samples(num_samples)]
        return {**answer, "given": given[0], "samples": samples}

    return body
