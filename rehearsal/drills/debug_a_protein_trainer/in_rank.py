"""Plan memory, build models, train them. Runs in the rank; answers in plain data."""

from __future__ import annotations

import math
import random
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from trainer_core.bio.pair_memory import SavedTensors

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.refusal import refusal
from rehearsal.kit.observe.waiting import all_arrive

from .plan import PAD, RESIDUES, SHORTEST, Plan, Probe, Shape, Training, right_mib
from .reference import fill, logits_of, parameters_of, shapes_of
from .watch import Precision, Watch

LR = 0.05
CROPS = 240  # draws of a window that has three places to begin


def number(value: Any) -> float | None:
    """A plain number; None for anything else, also for a tensor."""
    return float(value) if type(value) in (int, float) else None


def memory_body(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """What is planned for each probe."""
    planned = [learner.planned_mib(*probe) for probe in plan.probes]
    return [[number(value), repr(value)[:60]] for value in planned]


def model_of(
    plan: Plan, learner: SimpleNamespace, *, is_wide: bool = False, shape: Shape | None = None
) -> nn.Module:
    """The learner's model with the check's parameters."""
    model: nn.Module = learner.ProteinLM(shape or plan.shape)
    fill(model, plan.seed, is_wide=is_wide)
    return model


def wrong_shapes(plan: Plan, learner: SimpleNamespace) -> dict[str, Any] | None:
    """The parameters that aren't the program's; None if all are."""
    model = learner.ProteinLM(plan.shape)
    found = {name: [*p.shape] for name, p in model.named_parameters()}
    wanted = shapes_of(plan.shape)
    names = [name for name in found | wanted if found.get(name) != wanted.get(name)]
    return {name: [found.get(name), wanted.get(name)] for name in names} or None


def model_body(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Compare a model with the reference; freeze its embeddings; count what it keeps."""
    if wrong := wrong_shapes(plan, learner):
        return {"shapes": wrong}
    model = model_of(plan, learner)
    tokens = padded(plan)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        logits = model(tokens)
    wanted = logits_of(parameters_of(model), tokens, plan.shape)
    if not isinstance(logits, Tensor) or logits.shape != wanted.shape:
        size = [*logits.shape] if isinstance(logits, Tensor) else type(logits).__name__
        return {"output": str(size), "wanted": str([*wanted.shape])}
    is_real = tokens != PAD
    off = float((logits - wanted)[is_real].abs().max().detach())
    return {
        "off": off if math.isfinite(off) else None,
        "range": float(wanted.abs().max()),
        "warnings": [str(one.message) for one in caught],
        "without gradient": without_gradient(plan, learner, tokens),
        "kept": [kept_bytes(plan, learner, tokens, layers) for layers in (1, 3)],
        "input": tokens.numel() * plan.shape.d_model * 4,
        "crops": crops_of(plan, learner),
    }


def padded(plan: Plan) -> Tensor:
    """Three rows of different lengths."""
    draw = random.Random(plan.seed)
    width = plan.shape.max_length
    lengths = (width, width - draw.randint(3, 8), SHORTEST)
    return torch.tensor(
        [
            [draw.choice(RESIDUES) for _ in range(length)] + [PAD] * (width - length)
            for length in lengths
        ]
    )


def without_gradient(plan: Plan, learner: SimpleNamespace, tokens: Tensor) -> list[str]:
    """Parameters that get no gradient, or another one, once the embeddings are frozen."""
    model = model_of(plan, learner)
    direction = torch.randn(
        (*tokens.shape, 33), generator=torch.Generator().manual_seed(plan.seed)
    )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in ("tokens.weight", "places.weight"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first forward pass has shown what warns
        model(tokens).mul(direction).sum().backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    leaves = {name: p.requires_grad_() for name, p in parameters_of(model).items()}
    total = logits_of(leaves, tokens, plan.shape).mul(direction.double()).sum()
    wanted = dict(zip(leaves, torch.autograd.grad(total, [*leaves.values()]), strict=True))
    return [name for name, grad in grads.items() if not is_near(grad, wanted[name])]


def is_near(grad: Tensor | None, wanted: Tensor) -> bool:
    """Whether a gradient is there, and right."""
    if grad is None:
        return False
    return bool((grad - wanted).abs().max() <= 1e-3 * wanted.abs().max() + 1e-4)


def kept_bytes(plan: Plan, learner: SimpleNamespace, tokens: Tensor, layers: int) -> int:
    """What a forward pass keeps for the backward pass."""
    model = model_of(plan, learner, shape=plan.shape._replace(num_layers=layers))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with SavedTensors(model) as saved:
            model(tokens)
    return saved.num_bytes


def crops_of(plan: Plan, learner: SimpleNamespace) -> dict[str, Any]:
    """What crop makes of proteins that fit, and how often each window of a longer one comes."""
    longest, rng = plan.shape.max_length, random.Random(plan.seed)
    whole = {}
    for length in (SHORTEST, longest - 1, longest):
        protein = torch.arange(100, 100 + length)
        whole[length] = torch.as_tensor(learner.crop(protein, longest, rng)).tolist()
    protein = torch.arange(100, 100 + longest + 2)
    windows = [
        torch.as_tensor(learner.crop(protein, longest, rng)).tolist() for _ in range(CROPS)
    ]
    wrong = (
        [w for w in windows if w != [*range(w[0], w[0] + longest)]] if all(windows) else [[]]
    )
    return {
        "cut": [
            length for length, left in whole.items() if left != [*range(100, 100 + length)]
        ],
        "wrong": wrong[:1],
        "starts": [Counter(w[0] for w in windows if w)[100 + at] for at in range(3)],
    }


def tensors_of(proteins: Sequence[Sequence[int]]) -> list[Tensor]:
    """Proteins as they are stored."""
    return [torch.tensor(protein, dtype=torch.uint16) for protein in proteins]


def budget_of(plan: Plan, length: int) -> float:
    """What a crop of some length needs."""
    return right_mib(Probe(length, plan.shape))


def training_body(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Train once for each of the plan's trainings, from the same weights."""
    context.init_group()
    if wrong := wrong_shapes(plan, learner):
        return {"shapes": wrong}
    answers = {one.name: trained(plan, one, learner) for one in plan.trainings}
    # Who is done early stays: an exit could fail the collective in which its peers still are.
    all_arrive(context, "trained", 3.0)
    return answers


def trained(plan: Plan, training: Training, learner: SimpleNamespace) -> dict[str, Any]:
    """The facts of one call of ``train``."""
    model = model_of(plan, learner, is_wide=training.mixed)
    precision = Precision()
    watch = Watch(model, plan.shape, plan.proteins, precision)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    optimizer.register_step_pre_hook(watch)
    with precision if training.mixed else nullcontext():
        losses = learner.train(
            model,
            optimizer,
            tensors_of(plan.proteins),
            batch_size=plan.batch_size,
            budget_mib=budget_of(plan, plan.shape.max_length),
            mixed=training.mixed,
            seed=training.seed,
        )
    is_list = isinstance(losses, list | tuple) and all(type(one) is float for one in losses)
    return {
        "steps": watch.steps,
        "losses": [*losses] if is_list else None,
        "returned": repr(losses)[:60],
        "products": sorted(precision.products),
        "reductions": precision.reductions,
    }


def refusal_body(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Train on proteins of which one needs more than the budget, until that goes wrong."""
    context.init_group()
    refusals = list[Any]()
    for index in plan.too_large:
        proteins = list(plan.short_proteins)
        proteins[index] = plan.long_protein
        model = model_of(plan, learner)
        refusals.append(
            refusal(
                learner.train,
                model=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=LR),
                proteins=tensors_of(proteins),
                batch_size=plan.batch_size,
                budget_mib=budget_of(plan, plan.shape.max_length - 1),
                mixed=False,
                seed=plan.trainings[0].seed,
            )
        )
        # Whoever raises stays: its exit would free the peers that wait for it.
        if not all_arrive(context, f"refused-{index}", 2.0) or refusals[-1] is None:
            break
    return refusals
