"""What a check draws, the model with a tied weight, and the run as it should be.

Only ``expected`` and what it calls runs in the ranks; the caller's process draws the plan.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor, nn

# Ranks of the uninterrupted run. Without rank 0 there are two, which may write one file.
WHOLE_WORLD_SIZE = 3
TIED = ("again.weight", "mix.weight")  # two names of one parameter


class RunPlan(NamedTuple):
    """One check's numbers."""

    world_size: int  # of the run that is killed, and of its restart
    num_samples: int
    global_batch_size: int
    epochs: int
    checkpoint_every: int
    evaluate_every: int
    killed_rank: int
    killed_after: int  # completed optimizer steps
    lr: float
    decay: float

    @property
    def steps(self) -> int:
        """Steps of the whole run; an epoch's last one is smaller."""
        return self.epochs * -(-self.num_samples // self.global_batch_size)

    @property
    def start(self) -> int:
        """The step of the newest checkpoint at the kill."""
        return self.killed_after // self.checkpoint_every * self.checkpoint_every

    def settings(self) -> dict[str, Any]:
        """Keyword arguments of ``train``, without the folder."""
        names = ("epochs", "global_batch_size", "checkpoint_every", "evaluate_every", "lr")
        return {name: getattr(self, name) for name in (*names, "decay")}


def plan_of(seed: int) -> RunPlan:
    """The batch doesn't divide among the ranks; the kill falls between two saves.

    The newest checkpoint's step has one digit more than the one before.
    """
    rng = random.Random(f"restart {seed}")
    while True:
        world_size, size = rng.choice([2, 2, 2, 3]), rng.randint(4, 8)
        plan = RunPlan(
            world_size=world_size,
            num_samples=rng.randint(17, 33),
            global_batch_size=size,
            epochs=rng.randint(2, 3),
            checkpoint_every=rng.randint(2, 5),
            evaluate_every=rng.randint(1, 3),
            killed_rank=rng.randrange(world_size),
            killed_after=rng.randint(11, 14),
            lr=round(rng.uniform(0.015, 0.03), 3),
            decay=round(rng.uniform(0.6, 0.9), 2),
        )
        if (
            size % world_size
            and size % WHOLE_WORLD_SIZE
            and plan.num_samples % size
            and plan.killed_after + 2 < plan.steps <= 17
            and plan.start - plan.checkpoint_every < 10 <= plan.start
            and plan.killed_after % plan.checkpoint_every
        ):
            return plan


def tied_net(seed: int) -> nn.Module:
    """OddNet with two layers between its own that share one weight."""
    import torch
    from torch import nn

    from rehearsal.kit.observe.samples import OddNet

    class TiedNet(OddNet):
        """B samples, D features."""

        def __init__(self) -> None:
            super().__init__(seed=seed)
            generator = torch.Generator().manual_seed(seed)
            self.mix, self.again = nn.Linear(4, 4), nn.Linear(4, 4)
            with torch.no_grad():
                for layer in (self.mix, self.again):
                    layer.weight.copy_(torch.randn(4, 4, generator=generator) * 0.5)
                    layer.bias.copy_(torch.randn(4, generator=generator) * 0.5)
            self.again.weight = self.mix.weight

        def forward(self, inputs: Tensor) -> Tensor:  # (B, D)
            hidden = torch.tanh(self.inner(inputs))
            hidden = torch.tanh(self.again(torch.tanh(self.mix(hidden))))
            outputs: Tensor = self.outer(hidden)
            return outputs  # (B, 2)

    return TiedNet()


def held_out_samples() -> tuple[Tensor, Tensor]:
    """What the run evaluates on."""
    from rehearsal.kit.observe.samples import marked_samples

    return marked_samples(12, seed=11)


def expected(plan: RunPlan) -> dict[str, Any]:
    """One process, with SGD's momentum and the average written out.

    Returns:
        The last weights, the last average, and the loss of each evaluation by step.
    """
    import torch
    from torch.func import functional_call

    from rehearsal.kit.observe.samples import marked_samples, weights_of

    model, (inputs, targets) = tied_net(0), marked_samples(plan.num_samples)
    used = [p for name, p in model.named_parameters() if name != "unused"]
    speeds = [torch.zeros_like(parameter) for parameter in used]
    average = {name: value.clone() for name, value in model.state_dict().items()}
    held_out, losses = held_out_samples(), {}
    firsts = [*range(0, plan.num_samples, plan.global_batch_size)] * plan.epochs
    for done, first in enumerate(firsts, 1):
        step = slice(first, first + plan.global_batch_size)
        loss = (model(inputs[step]) - targets[step]).pow(2).sum(1).mean()
        for parameter, speed, grad in zip(
            used, speeds, torch.autograd.grad(loss, used), strict=True
        ):
            speed.mul_(0.9).add_(grad)
            parameter.data.sub_(plan.lr * speed)
        keep = min(plan.decay, (1 + done) / (10 + done))
        average = {
            name: keep * average[name] + (1 - keep) * value
            for name, value in model.state_dict().items()
        }
        if done % plan.evaluate_every == 0:
            outputs = functional_call(model, average, (held_out[0],), tie_weights=False)
            losses[done] = float((outputs - held_out[1]).pow(2).mean())
    return {
        "weights": weights_of(model),
        "average": plain_weights(average),
        "losses": sorted(losses.items()),
    }


def plain_weights(average: dict[str, Tensor]) -> dict[str, str]:
    """An average as ``judge.weights`` reads it."""
    return {
        name: value.detach().float().cpu().contiguous().numpy().tobytes().hex()
        for name, value in average.items()
    }
