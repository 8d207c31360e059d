"""When does a rank update its weights, by torch's optimizer or by its own? Runs in the ranks.

An update is two events: "before_step", with the settings of torch's optimizer if there is one,
and "stepped". Nobody announces an update that is written out: it's recorded when the next batch
to be trained goes in, or at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.samples import before_forward, weights_of


class UpdateWatch:
    """Records each update of a model's weights. Call ``end`` after the training.

    An optimizer of other tensors doesn't count: its results are copied into the model, and that
    is the update. Watch updates before samples: an update comes before the next batch.

    Args:
        keeps_weights: "stepped" has the ``weights`` after the update.
        when_written_out: called once, before the first update without torch's optimizer.
    """

    def __init__(
        self,
        context: RankContext,
        model: nn.Module,
        *,
        keeps_weights: bool = False,
        when_written_out: Callable[[], object] | None = None,
    ) -> None:
        self.when_written_out = when_written_out
        self.context, self.model, self.keeps_weights = context, model, keeps_weights
        self.names = {id(p): name for name, p in model.named_parameters()}
        self.last: Tensor | None = None  # before the newest forward pass
        self.is_optimized = False
        before_forward(model, self._forward)
        register_optimizer_step_pre_hook(self._begins)
        register_optimizer_step_post_hook(self._ends)

    def end(self) -> None:
        """Record the last update, if it was written out."""
        if self.last is not None and not self.is_optimized:
            now = self._flat()
            if not torch.equal(now, self.last):
                if self.when_written_out is not None:
                    self.when_written_out()
                    self.when_written_out = None  # only once
                self.context.record("before_step", settings={})
                self._stepped()
            self.last = now

    def _flat(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])

    def _forward(self, _: Tensor) -> None:
        if not torch.is_grad_enabled() or self.is_optimized:
            return
        if self.last is None:  # whatever came before: a broadcast, a checkpoint
            self.last = self._flat()
        self.end()

    def _is_ours(self, optimizer: Optimizer) -> bool:
        return any(id(p) in self.names for g in optimizer.param_groups for p in g["params"])

    def _begins(self, optimizer: Optimizer, *_: Any) -> None:
        if not self._is_ours(optimizer):
            return
        self.is_optimized = True
        settings = {
            self.names[id(p)]: [float(group["lr"]), float(group["weight_decay"])]
            for group in optimizer.param_groups
            for p in group["params"]
            if id(p) in self.names and {"lr", "weight_decay"} <= group.keys()
        }
        self.context.record("before_step", settings=settings)

    def _ends(self, optimizer: Optimizer, *_: Any) -> None:
        if self._is_ours(optimizer):
            self._stepped()

    def _stepped(self) -> None:
        weights = weights_of(self.model) if self.keeps_weights else None
        self.context.record("stepped", weights=weights)
