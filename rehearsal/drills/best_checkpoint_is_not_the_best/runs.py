"""What a check draws, a model whose mode matters, and the run as it should be.

Only the ranks call what needs torch; the caller's process draws the plan.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor, nn

VOCABULARY = 48  # token 0 is padding


class RunPlan(NamedTuple):
    """The numbers of one job."""

    world_size: int
    sequences: list[list[int]]
    held_out: list[list[int]]  # the first token of each is its number, from 1
    epochs: int
    global_batch_size: int
    eval_batch_size: int
    evaluate_every: int
    lr: float
    comes_in_training_mode: bool  # the model, when train is called

    @property
    def batches(self) -> list[list[list[int]]]:
        """The global batch of each step; an epoch's last one is smaller."""
        firsts = range(0, len(self.sequences), self.global_batch_size)
        size = self.global_batch_size
        return [self.sequences[first : first + size] for first in firsts] * self.epochs

    @property
    def length(self) -> int:
        """Tokens in a row of an evaluation's inputs."""
        return max(map(len, self.held_out)) - 1

    @property
    def share(self) -> int:
        """Held-out sequences of a rank, at most."""
        return -(-len(self.held_out) // self.world_size)

    def settings(self) -> dict[str, Any]:
        """Keyword arguments of ``train``, without the folder."""
        names = ("epochs", "global_batch_size", "eval_batch_size", "evaluate_every", "lr")
        return {name: getattr(self, name) for name in names}


def plans_of(seed: int) -> tuple[RunPlan, RunPlan, RunPlan]:
    """Three jobs: held-out sequences that don't divide among the ranks; fewer than ranks; slow.

    One of the first two, or both, doesn't evaluate every step. One of them gets its model in
    eval mode.
    """
    rng = random.Random(f"padding {seed}")
    every = rng.sample([2, rng.randint(1, 2)], 2)
    modes = rng.sample([True, False], 2)
    first, second = rng.sample([2, 3], 2)
    count = rng.choice([n for n in range(9, 20) if n % first])
    size = rng.choice([n for n in range(2, 5) if -(-count // first) % n])
    few = rng.randint(1, second - 1)
    return (
        plan_of(rng, first, count, size, every[0], modes[0]),
        plan_of(rng, second, few, rng.randint(2, 3), every[1], modes[1]),
        slow_plan_of(rng),
    )


def slow_plan_of(rng: random.Random) -> RunPlan:
    """A job that trains the held-out sequences themselves, at a rate close to zero.

    Each of its evaluations is lower than the one before, by 1e-4 to 4e-4.
    """
    plan = plan_of(rng, 2, rng.randint(5, 8), 2, 1, True)
    count = len(plan.held_out)
    return plan._replace(sequences=plan.held_out, global_batch_size=count, epochs=3, lr=4e-4)


def plan_of(
    rng: random.Random, world_size: int, count: int, size: int, every: int, mode: bool
) -> RunPlan:
    """A job with ``count`` held-out sequences in batches of ``size``, of many lengths.

    The first two thirds of an epoch teach what the held-out sequences have, the rest
    contradicts it: an epoch's last model is seldom its best one.
    """
    # A short one and a long one far apart, so that a mean of means is a different number. Only
    # one rank has the longest, and all ranks fill up to it.
    lengths = [rng.choice([2, 3, 4, 7]) for _ in range(count)]
    lengths[0], lengths[-1] = (2, 9) if count > 1 else (5, 5)
    held_out = [
        [n, *(rng.randrange(1, VOCABULARY) for _ in range(length - 1))]
        for n, length in enumerate(lengths, 1)
    ]
    while True:
        num_sequences, batch = rng.randint(15, 27), rng.choice([3, 4, 5, 6, 7])
        epochs = rng.randint(2, 3)
        steps = -(-num_sequences // batch)
        is_awkward = num_sequences % batch and batch % world_size
        # Steps counted within an epoch are due elsewhere than those of the whole run.
        is_awkward = is_awkward and (every == 1 or steps % every)
        # The last step is evaluated, so that what an evaluation leaves behind is seen.
        if is_awkward and steps // every >= 3 and steps * epochs % every == 0:
            break
    sequences = []
    for number in range(num_sequences):
        copy = list(rng.choice(held_out))[: rng.randint(2, 9)]
        if 3 * number >= 2 * num_sequences:
            copy[1:] = [rng.randrange(1, VOCABULARY) for _ in copy[1:]]
        sequences.append(copy)
    return RunPlan(
        world_size=world_size,
        sequences=sequences,
        held_out=held_out,
        epochs=epochs,
        global_batch_size=batch,
        eval_batch_size=size,
        evaluate_every=every,
        lr=round(rng.uniform(1.1, 1.5), 2),  # more magnifies what rounding changes
        comes_in_training_mode=mode,
    )


def mode_net(seed: int) -> nn.Module:
    """Predicts the next token. In training mode, half of its features are off."""
    import torch
    from torch import nn

    class ModeNet(nn.Module):
        """B sequences, T tokens, V vocabulary."""

        def __init__(self) -> None:
            super().__init__()
            generator = torch.Generator().manual_seed(seed)
            self.embed = nn.Embedding(VOCABULARY, 8)
            self.unused = nn.Parameter(torch.ones(3))
            self.head = nn.Linear(8, VOCABULARY)
            with torch.no_grad():
                for parameter in self.parameters():
                    parameter.copy_(torch.randn(parameter.shape, generator=generator))

        def forward(self, tokens: Tensor) -> Tensor:  # (B, T)
            hidden = torch.tanh(self.embed(tokens))
            keep = torch.arange(8) % 2 * 2.0 if self.training else torch.ones(8)
            logits: Tensor = self.head(hidden * keep)
            return logits  # (B, T, V)

    return ModeNet()


def expected(plan: RunPlan) -> dict[str, Any]:
    """One process, a sequence at a time.

    Returns:
        The last weights, and for each evaluation: its step, its weights, and the summed loss of
        each held-out sequence.
    """
    import torch
    import torch.nn.functional as F

    from rehearsal.kit.observe.samples import weights_of

    def loss_of(sequence: Sequence[int]) -> Tensor:
        tokens = torch.tensor([sequence])
        return F.cross_entropy(model(tokens[:, :-1])[0], tokens[0, 1:], reduction="sum")

    model, evaluations = mode_net(0), []
    used = [p for name, p in model.named_parameters() if name != "unused"]
    for step, batch in enumerate(plan.batches, 1):
        model.train()
        num_tokens = sum(len(sequence) - 1 for sequence in batch)
        loss = torch.stack([loss_of(sequence) for sequence in batch]).sum() / num_tokens
        for parameter, grad in zip(used, torch.autograd.grad(loss, used), strict=True):
            parameter.data.sub_(plan.lr * grad)
        if step % plan.evaluate_every == 0:
            model.eval()
            with torch.no_grad():
                losses = [float(loss_of(sequence)) for sequence in plan.held_out]
            evaluations.append({"step": step, "losses": losses, "weights": weights_of(model)})
    return {"weights": weights_of(model), "evaluations": evaluations}
