"""What a check draws, the rate of each step, and the run as it should be."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor, nn


class RunPlan(NamedTuple):
    """One check's numbers."""

    world_size: int
    num_samples: int
    global_batch_size: int
    epochs: int
    micro_batch_size: int
    later_micro_batch_size: int  # after the restart
    warmup_steps: int
    checkpoint_every: int
    killed_rank: int
    killed_after: int  # completed optimizer steps
    lr: float

    @property
    def steps(self) -> int:
        """Steps of the whole run; an epoch's last one is smaller."""
        return self.epochs * -(-self.num_samples // self.global_batch_size)

    @property
    def start(self) -> int:
        """The step of the newest checkpoint at the kill."""
        return self.killed_after // self.checkpoint_every * self.checkpoint_every

    def rate(self, step: int) -> float:
        """The rate of a step, counted from 1."""
        if step <= self.warmup_steps:
            return self.lr * step / self.warmup_steps
        return self.lr * (self.steps - step + 1) / (self.steps - self.warmup_steps)

    def micro_batches(self, rank: int, size: int) -> int:
        """How many micro-batches of ``size`` a rank has in a full step."""
        share = len(range(rank, self.global_batch_size, self.world_size))
        return -(-share // size)

    def settings(self, micro_batch_size: int) -> dict[str, Any]:
        """Keyword arguments of ``train``, without the folder."""
        names = ("epochs", "global_batch_size", "warmup_steps", "checkpoint_every", "lr")
        own = {name: getattr(self, name) for name in names}
        return {**own, "micro_batch_size": micro_batch_size}


def plan_of(seed: int) -> RunPlan:
    """The ranks of a step have different numbers of micro-batches, but none has none.

    The newest checkpoint's step has one digit more than the one before.
    """
    rng = random.Random(f"schedule {seed}")
    while True:
        world_size = rng.choice([2, 2, 2, 3])
        plan = RunPlan(
            world_size=world_size,
            num_samples=rng.randint(25, 50),
            global_batch_size=rng.randint(5, 11),
            epochs=rng.randint(2, 4),
            micro_batch_size=rng.randint(1, 3),
            later_micro_batch_size=rng.randint(1, 3),
            warmup_steps=rng.randint(2, 4),
            checkpoint_every=rng.randint(2, 5),
            killed_rank=rng.randrange(world_size),
            killed_after=rng.randint(11, 14),
            lr=round(rng.uniform(0.01, 0.02), 4),
        )
        if (
            plan.global_batch_size % world_size
            and plan.num_samples % plan.global_batch_size >= world_size
            and plan.micro_batches(0, plan.micro_batch_size)
            > plan.micro_batches(world_size - 1, plan.micro_batch_size)
            > 1
            and plan.micro_batches(world_size - 1, plan.later_micro_batch_size) > 1
            and plan.later_micro_batch_size != plan.micro_batch_size
            and plan.warmup_steps * plan.micro_batches(0, plan.micro_batch_size)
            <= plan.steps * 2 // 3
            and plan.killed_after % plan.checkpoint_every
            and plan.killed_after + 3 < plan.steps <= 22
            and plan.start - plan.checkpoint_every < 10 <= plan.start
        ):
            return plan


def plans_alone(seed: int) -> tuple[RunPlan, RunPlan]:
    """Two short runs on one rank, whose epochs end with one sample, or with a full batch.

    The first has steps left after its last checkpoint.
    """
    rng = random.Random(f"alone {seed}")
    found = list[RunPlan]()
    for rest in (1, 0):
        batch, epochs = rng.randint(3, 5), rng.choice([1, 3])
        plan = RunPlan(
            world_size=1,
            num_samples=(5 - rest) * batch + rest,  # five steps
            global_batch_size=batch,
            epochs=epochs,
            micro_batch_size=2,
            later_micro_batch_size=1,
            warmup_steps=2,
            checkpoint_every=2,
            killed_rank=0,
            killed_after=epochs * 5,
            lr=round(rng.uniform(0.01, 0.02), 4),
        )
        found.append(plan)
    return found[0], found[1]


def scaled_net(seed: int) -> nn.Module:
    """OddNet with a scale in its middle: a vector, and no bias."""
    import torch
    from torch import nn

    from rehearsal.kit.observe.samples import OddNet

    class ScaledNet(OddNet):
        """B samples, D features."""

        def __init__(self) -> None:
            super().__init__(seed=seed)
            generator = torch.Generator().manual_seed(seed)
            self.scale = nn.Parameter(torch.rand(4, generator=generator) + 0.5)

        def forward(self, inputs: Tensor) -> Tensor:  # (B, D)
            outputs: Tensor = self.outer(torch.tanh(self.inner(inputs)) * self.scale)
            return outputs  # (B, 2)

    return ScaledNet()


def expected(plan: RunPlan) -> dict[str, str]:
    """The last weights of one process, with SGD's momentum written out."""
    import torch

    from rehearsal.kit.observe.samples import marked_samples, weights_of

    model, (inputs, targets) = scaled_net(seed=0), marked_samples(plan.num_samples)
    used = {name: p for name, p in model.named_parameters() if name != "unused"}
    speeds = {name: torch.zeros_like(parameter) for name, parameter in used.items()}
    firsts = [*range(0, plan.num_samples, plan.global_batch_size)] * plan.epochs
    for step, first in enumerate(firsts, 1):
        batch = slice(first, first + plan.global_batch_size)
        loss = (model(inputs[batch]) - targets[batch]).pow(2).sum(1).mean()
        grads = torch.autograd.grad(loss, list(used.values()))
        for (name, parameter), grad in zip(used.items(), grads, strict=True):
            speeds[name].mul_(0.9).add_(grad)
            rate = plan.rate(step) * (2 if name.endswith("bias") else 1)
            parameter.data.sub_(rate * speeds[name])
    return weights_of(model)
