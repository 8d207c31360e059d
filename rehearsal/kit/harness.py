"""What graders share: unfriendly data, a model that tells who trained what, exact comparison.

Used by the graders' bodies (in the ranks, with torch) and their judges (plain data only).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from rehearsal.engine.reports import RankReport
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding

ID_SCALE = 1024.0  # ids up to 2**13 stay exact in float32 and small enough to train on

Weights = Mapping[str, str]  # parameter: the bytes of its float32 values, as hex


# ---------------------------------------------------------------- in the ranks


def marked_samples(count: int, features: int = 5, seed: int = 3) -> tuple[Tensor, Tensor]:
    """Inputs (n, D) and targets (n, 2) of a regression; feature 0 of a sample tells its id."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, features, generator=generator)
    inputs[:, 0] = torch.arange(count) / ID_SCALE
    targets = torch.randn(count, 2, generator=generator) + inputs[:, 1:3] * 3
    return inputs, targets


def ids_of(inputs: Tensor) -> list[int]:
    """The ids that feature 0 of ``inputs`` (B, D) tells."""
    return (inputs[..., 0].detach().double() * ID_SCALE).round().long().flatten().tolist()


class OddNet(nn.Module):
    """Two layers, and a parameter that takes no part in the loss: its gradient stays None."""

    def __init__(self, features: int = 5, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.inner = nn.Linear(features, 4)
        self.unused = nn.Parameter(torch.ones(3))
        self.outer = nn.Linear(4, 2)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.outer(torch.tanh(self.inner(inputs)))
        return outputs  # (B, 2)


def watch_samples(context: RankContext, model: nn.Module) -> None:
    """Write down which samples go through ``model`` to be trained, from the batch itself."""

    def seen(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if torch.is_grad_enabled():
            context.record("forward", samples=ids_of(inputs[0]))

    model.register_forward_pre_hook(seen)


def weights_of(model: nn.Module) -> dict[str, str]:
    """Every parameter and buffer, bit for bit."""
    return {
        name.removeprefix("module."): tensor.detach().cpu().contiguous().numpy().tobytes().hex()
        for name, tensor in model.state_dict().items()
    }


# ---------------------------------------------------------------- in the judges


def numbers(text: str) -> list[float]:
    """The float32 values of a parameter as ``weights_of`` gives it."""
    values = array("f")
    values.frombytes(bytes.fromhex(text))
    return list(values)


def largest_difference(ours: Weights, theirs: Weights) -> tuple[float, str]:
    """The largest difference of two sets of weights, and the parameter in which it lies."""
    if ours.keys() != theirs.keys():
        return float("inf"), ", ".join(sorted(ours.keys() ^ theirs.keys()))
    worst = (0.0, "")
    for name in ours:
        for a, b in zip(numbers(ours[name]), numbers(theirs[name]), strict=True):
            difference = abs(a - b)
            if not difference <= worst[0]:  # so that NaN counts
                worst = (difference, name)
    return worst


def trained_by_step(report: RankReport) -> list[list[int]]:
    """Samples of each optimizer step of one rank: the forward passes before it."""
    steps: list[list[int]] = [[]]
    for event in report.events:
        if event["kind"] == "forward":
            steps[-1] += event["samples"]
        elif event["kind"] == "optimizer_step":
            steps.append([])
    return steps if steps[-1] else steps[:-1]


def cover_findings(
    reports: Sequence[RankReport], num_samples: int, epochs: int, look: str
) -> Iterable[Finding]:
    """Findings if the ranks together did not train each sample once per epoch."""
    rule = "one epoch trains each sample exactly once, over all ranks"
    by_rank = [
        Counter(sample for event in report.of("forward") for sample in event["samples"])
        for report in reports
    ]
    total = sum(by_rank, Counter[int]())
    extra = [sample for sample in range(num_samples) if total[sample] > epochs]
    missing = [sample for sample in range(num_samples) if total[sample] < epochs]
    if extra:
        ranks = [rank for rank, counts in enumerate(by_rank) if counts[extra[0]]]
        yield Finding(
            "trained-twice",
            f"{len(extra)} of {num_samples} samples more than {epochs} times in {epochs} "
            f"epoch(s) on {len(reports)} rank(s): {some(extra)}; sample {extra[0]} on rank "
            f"{some(ranks)}",
            rule,
            look,
        )
    elif missing:
        yield Finding(
            "never-trained",
            f"{len(missing)} of {num_samples} samples less than {epochs} times in {epochs} "
            f"epoch(s) on {len(reports)} rank(s): {some(missing)}",
            rule,
            look,
        )


def some(values: Sequence[object], most: int = 6) -> str:
    """The first values, as a sentence has them."""
    text = ", ".join(map(str, values[:most]))
    return text + (", ..." if len(values) > most else "")
