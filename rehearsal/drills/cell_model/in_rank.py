"""Build networks, take optimizer steps, ask for learning rates. Runs in each rank."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from itertools import permutations, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from trainer_core.config import TrainConfig

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.anti_cheat import close_the_answer
from .plan import Drawn, Schedule, Updates, Widths

WIDE, BATCH, GAIN = 512, 1024, 9.0  # for the statistics of dropout
UNUSED = "unused.weight"


def model_parts(plan: Drawn, context: RankContext, learner: SimpleNamespace) -> Any:
    """Build models, inspect them, take steps, and ask for learning rates."""
    answers = ["TinyNet", "build_optimizer", "learning_rate_at"]
    close_the_answer(context, "trainer_core.model", answers)
    random.seed(context.rank)
    np.random.seed(context.rank)
    shapes = [list(p.shape) for p in net(plan, learner, 3, 0.1).parameters()]
    answer: dict[str, Any] = {"shapes": shapes}
    if matrices_of(shapes) != matrices_of(expected_shapes(plan.widths, 3)):
        return answer
    answer |= weights_by_seed(plan, learner)
    answer |= {"noise": noise_without_dropout(plan, learner)}
    answer |= {"batch": batch_fault(plan, learner), **outputs(plan, learner)}
    if answer["batch"] is None:
        answer["dropout"] = dropout_statistics(plan, learner)
        answer["away"] = [distance(plan, learner, layers) for layers in (1, plan.layers)]
        answer["kept"] = kept_units(plan, learner)
    return {
        **answer,
        "decayed": decayed(plan, learner, plan.updates[0]),
        "steps": [steps_apart(plan, learner, updates) for updates in plan.updates],
        "curves": [curves(learner, schedule) for schedule in plan.schedules],
    }


def net(plan: Drawn, learner: SimpleNamespace, layers: int, dropout: float) -> nn.Module:
    """The learner's network, with the plan's widths."""
    model: nn.Module = learner.TinyNet(*plan.widths, layers, dropout)
    return model


def expected_shapes(widths: Widths, layers: int) -> list[list[int]]:
    """The matrices of a network."""
    inputs, hidden, classes = widths
    return [[hidden, inputs], *[[hidden, hidden]] * (layers - 1), [classes, hidden]]


def matrices_of(shapes: list[list[int]]) -> list[list[int]]:
    """The two-dimensional shapes, as (in, out) or (out, in)."""
    return sorted(sorted(shape) for shape in shapes if len(shape) == 2)


def values_of(model: nn.Module) -> dict[str, list[float]]:
    """Every parameter's numbers."""
    return {name: p.detach().flatten().tolist() for name, p in model.named_parameters()}


# ---------------------------------------------------------------- TinyNet


def weights_by_seed(plan: Drawn, learner: SimpleNamespace) -> dict[str, Any]:
    """The weights after one seed, twice; the next model's; and those after another seed."""
    weights, is_kept = [], True
    for seed in (plan.seed, plan.seed, plan.seed + 1):
        torch.manual_seed(seed)
        weights.append(values_of(net(plan, learner, 2, 0.1)))
        is_kept &= torch.initial_seed() == seed
    following = values_of(net(plan, learner, 2, 0.1))
    return {"weights": weights, "following": following, "seed_kept": is_kept}


@torch.no_grad()
def noise_without_dropout(plan: Drawn, learner: SimpleNamespace) -> float:
    """By how much two calls in train mode differ at dropout=0.0; NaN if the logits are NaN."""
    torch.manual_seed(3)
    model = net(plan, learner, 1, 0.0).train()
    inputs = torch.randn(4, plan.widths.inputs)
    difference: float = (model(inputs) - model(inputs)).abs().max().item()
    return difference


def batch_fault(plan: Drawn, learner: SimpleNamespace) -> str | None:
    """What is wrong with an empty batch, or with one sample alone."""
    model = net(plan, learner, plan.layers, 0.0).train()
    inputs = torch.randn(4, plan.widths.inputs)
    given = "an empty batch"
    try:
        logits = model(inputs[:0])
        logits.sum().backward()
        given = "a batch of 4 samples"
        together = model(inputs)[2]
        given = "a batch of 1 sample"
        difference = (together - model(inputs[2:3])[0]).abs().max().item()
    except (RuntimeError, ValueError, IndexError) as error:
        return f"{given} raised {type(error).__name__}: {error}"
    if logits.shape != (0, plan.widths.classes):
        return f"an empty batch gives outputs of shape {tuple(logits.shape)}"
    if not difference < 1e-4:
        return f"a sample's logits change by {difference:.2g} if its batch holds other samples"
    wrong = [n for n, p in model.named_parameters() if p.grad is None or p.grad.any()]
    found = "after backward on an empty batch, these have no gradient or a nonzero one: "
    return found + ", ".join(wrong) if wrong else None


@torch.no_grad()
def outputs(plan: Drawn, learner: SimpleNamespace) -> dict[str, Any]:
    """Whether the model is nonlinear, and its outputs for zero matrices and a known bias."""
    torch.manual_seed(5)
    model = net(plan, learner, 1, 0.0).eval()
    x, y = torch.randn(2, 4, plan.widths.inputs) * 3
    bend = model(x) + model(y) - model(x + y) - model(torch.zeros_like(x))
    classes = plan.widths.classes
    for parameter in model.parameters():
        values = torch.arange(classes) * 10.0 - 10
        parameter.copy_(values if parameter.shape == (classes,) else torch.zeros(()))
    return {"bend": bend.abs().max().item(), "logits": model(x).flatten().tolist()}


@torch.no_grad()
def distance(plan: Drawn, learner: SimpleNamespace, layers: int) -> float | None:
    """By how much the logits differ from those of the brief's network with these weights.

    Which parameter belongs to which layer is not asked: of all assignments that fit the shapes,
    the nearest counts. None if none fits.
    """
    torch.manual_seed(plan.seed)
    model = net(plan, learner, layers, plan.dropout).eval()
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape))
    inputs = torch.randn(16, plan.widths.inputs)
    logits = model(inputs)
    distances = [
        (logits - reference(weights, biases, inputs, approximate)).abs().max().item()
        for weights, biases in assignments(plan.widths, list(model.parameters()))
        for approximate in ("none", "tanh")
    ]
    return min(distances, default=None)


def reference(
    weights: list[Tensor], biases: list[Tensor], values: Tensor, approximate: str
) -> Tensor:
    """The logits of the brief's network; ``weights`` are (in, out)."""
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        values = nn.functional.gelu(values @ weight + bias, approximate=approximate)
    return values @ weights[-1] + biases[-1]


def assignments(
    widths: Widths, parameters: list[Tensor]
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Every way in which parameters can be the weights (in, out) and biases of the layers."""
    inputs, hidden, classes = widths

    def oriented(rows: int, columns: int) -> list[Tensor]:
        found = [p for p in parameters if p.shape == (rows, columns)]
        return found or [p.T for p in parameters if p.shape == (columns, rows)]

    first, last = oriented(inputs, hidden), oriented(hidden, classes)
    middle = [p for p in parameters if p.shape == (hidden, hidden)]
    vectors = [p for p in parameters if p.shape == (hidden,)]
    last_bias = [p for p in parameters if p.shape == (classes,)]
    if (len(first), len(last), len(last_bias)) != (1, 1, 1) or len(vectors) != len(middle) + 1:
        return
    if len(parameters) != 2 * len(vectors) + 2:
        return
    for squares, biases in product(permutations(middle), permutations(vectors)):
        for turned in ([square.T for square in squares], list(squares)):
            yield [*first, *turned, *last], [*biases, *last_bias]


@torch.no_grad()
def kept_units(plan: Drawn, learner: SimpleNamespace) -> dict[str, float]:
    """How many units one dropout keeps, read off a logit that is their scaled mean."""
    torch.manual_seed(7)
    classes = plan.widths.classes
    model = learner.TinyNet(plan.widths.inputs, WIDE, classes, 1, plan.dropout)
    for parameter in model.parameters():
        values = {(WIDE,): 3.0, (classes, WIDE): 1 / WIDE}
        parameter.fill_(values.get(tuple(sorted(parameter.shape)), 0.0))
    inputs = torch.zeros(BATCH, plan.widths.inputs)
    quiet = model.eval()(inputs)[0, 0].double()
    kept = model.train()(inputs)[:, 0].double() / quiet * (1 - plan.dropout) * WIDE
    return {
        "share": kept.mean().item() / WIDE,
        "broken": (kept - kept.round()).abs().max().item(),
        "spread": kept.var().item() / (WIDE * plan.dropout * (1 - plan.dropout)),
    }


@torch.no_grad()
def dropout_statistics(plan: Drawn, learner: SimpleNamespace) -> dict[str, Any]:
    """Mean and relative variance of a logit, with weights that make it a plain average."""
    torch.manual_seed(7)
    classes = plan.widths.classes
    model = learner.TinyNet(plan.widths.inputs, WIDE, classes, 2, plan.dropout)
    for parameter in model.parameters():
        size = sorted(parameter.shape)
        values = {(WIDE,): 3.0, (WIDE, WIDE): GAIN / WIDE, (classes, WIDE): 1 / WIDE}
        parameter.fill_(values.get(tuple(size), 0.0))
    inputs = torch.zeros(BATCH, plan.widths.inputs)
    model.eval()
    quiet = torch.cat([model(inputs)[:, 0], model(inputs)[:, 0]])
    model.train()
    noisy = model(inputs)[:, 0] / quiet.mean()
    return {
        "eval": (quiet.max() - quiet.min()).item(),
        "mean": noisy.mean().item(),
        "variance": noisy.var().item(),
    }


# ---------------------------------------------------------------- build_optimizer


class OddShapes(nn.Module):
    """Names that say nothing about shapes, a tied matrix, and one without a gradient."""

    def __init__(self, plan: Drawn) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(plan.seed)
        self.tokens = nn.Embedding(4, 3)
        self.norm = nn.LayerNorm(3)
        self.unused = nn.Linear(2, 2, bias=False)
        self.head = nn.Linear(3, 4)
        self.head.weight = self.tokens.weight
        shapes = ((3, 2), (2, 3, 3), (2, 1, 2, 2)), ((3,), (), (1,))
        for names, of_names in zip((plan.matrices, plan.vectors), shapes, strict=True):
            for name, shape in zip(names, of_names, strict=True):
                self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        for parameter in self.parameters():
            parameter.data.copy_(torch.rand(parameter.shape, generator=generator) + 1)


def built(learner: SimpleNamespace, updates: Updates, model: nn.Module) -> Any:
    """The learner's optimizer."""
    cfg = TrainConfig(learning_rate=updates.rate, weight_decay=updates.weight_decay)
    return learner.build_optimizer(cfg, model)


def decayed(plan: Drawn, learner: SimpleNamespace, updates: Updates) -> dict[str, Any]:
    """By what a step with a gradient of zeros multiplies each parameter, and its dimensions."""
    model = OddShapes(plan)
    optimizer, before = built(learner, updates, model), values_of(model)
    for name, parameter in model.named_parameters():
        parameter.grad = None if name == UNUSED else torch.zeros_like(parameter)
    optimizer.step()
    after = values_of(model)
    dimensions = {name: p.ndim for name, p in model.named_parameters()}
    return {n: [dimensions[n], after[n][0] / before[n][0]] for n in before if n != UNUSED}


def steps_apart(
    plan: Drawn, learner: SimpleNamespace, updates: Updates
) -> dict[str, tuple[float, float]]:
    """After steps at several rates: how far each parameter moved, and how far it is off.

    Off from torch's AdamW with the brief's groups, on equal gradients.
    """
    model = OddShapes(plan)
    twin, start = copy.deepcopy(model), values_of(model)
    optimizer = built(learner, updates, model)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in twin.parameters() if p.ndim >= 2]},
        {"params": [p for p in twin.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    wanted = torch.optim.AdamW(groups, lr=updates.rate, weight_decay=updates.weight_decay)
    generator = torch.Generator().manual_seed(plan.seed)
    for number, rate in enumerate([None, *updates.later_rates]):
        for one in (optimizer, wanted):
            for group in one.param_groups if rate else ():
                group["lr"] = rate
        size = (4.0, 1.0, 0.25, 0.0625)[number]  # falling: the second moment has to forget
        for (name, parameter), other in zip(
            model.named_parameters(), twin.parameters(), strict=True
        ):
            if name != UNUSED:
                gradient = torch.randn(parameter.shape, generator=generator) * size
                parameter.grad, other.grad = gradient, gradient.clone()
        optimizer.step()
        wanted.step()
    ours, theirs = values_of(model), values_of(twin)
    return {
        name: (farthest(ours[name], start[name]), farthest(ours[name], theirs[name]))
        for name in start
    }


def farthest(one: list[float], other: list[float]) -> float:
    """The largest difference; infinite if a number is not finite."""
    differences = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return max(d if d < 1e30 else float("inf") for d in differences)


# ---------------------------------------------------------------- learning_rate_at


def curves(learner: SimpleNamespace, schedule: Schedule) -> list[Any]:
    """The rates of all steps, asked for downwards after upwards, and upwards; or the error."""
    cfg = TrainConfig(
        learning_rate=schedule.peak,
        warmup_steps=schedule.warmup,
        decay_steps=schedule.horizon,
        min_lr_fraction=schedule.floor,
        max_epochs=schedule.epochs,
        dataset_size=64,
        micro_batch_size=16,
        world_size=schedule.world_size,
    )
    steps, step, rates = range(1, schedule.last_step + 1), 0, []
    try:
        for step in [*steps, *reversed(steps)]:
            rates.append(float(learner.learning_rate_at(cfg, step)))
    except ArithmeticError as error:
        return [f"learning_rate_at(cfg, {step}) raised {type(error).__name__}: {error}"]
    return [rates[len(steps) :][::-1], rates[: len(steps)]]
