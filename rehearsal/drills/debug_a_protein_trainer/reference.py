"""The model and its loss, written out on a dictionary of parameters, in float64."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .plan import MASK, PAD, VOCABULARY_SIZE, Shape

Parameters = Mapping[str, Tensor]
NUM_DIRECTIONS = 24


def shapes_of(shape: Shape) -> dict[str, list[int]]:
    """The names and shapes of the parameters of the program's model."""
    width = shape.d_model
    found = {"tokens": [VOCABULARY_SIZE, width], "places": [shape.max_length, width]}
    found = {f"{name}.weight": size for name, size in found.items()}
    for layer in range(shape.num_layers):
        for name, rows, columns in (
            ("norm_1", width, 0),
            ("norm_2", width, 0),
            ("qkv", 3 * width, width),
            ("out", width, width),
            ("mlp.0", 4 * width, width),
            ("mlp.2", width, 4 * width),
        ):
            own = f"blocks.{layer}.{name}"
            found |= {f"{own}.weight": [rows, columns][: 1 + bool(columns)]}
            found |= {f"{own}.bias": [rows]}
    last = {"norm.weight": [width], "norm.bias": [width]}
    head = {"head.weight": [VOCABULARY_SIZE, width], "head.bias": [VOCABULARY_SIZE]}
    return found | last | head


@torch.no_grad()
def fill(model: nn.Module, seed: int, *, is_wide: bool = False) -> None:
    """Draw all parameters; equal ones for equal seeds.

    Args:
        is_wide: MLPs compute the same on activations above 65,504, the most that float16 has.
    """
    rng = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=rng)
        if parameter.ndim > 1:
            is_embedding = name in ("tokens.weight", "places.weight")
            parameter.copy_(noise if is_embedding else noise * parameter.size(1) ** -0.5)
        else:
            is_gain = "norm" in name and name.endswith("weight")
            parameter.copy_(0.2 * noise + float(is_gain))
        if is_wide and "mlp" in name:
            # GELU is almost linear so far out: one factor undoes the other.
            parameter.mul_(2.0**17 if "mlp.0" in name else 1.0)
            parameter.mul_(2.0**-17 if name.endswith("mlp.2.weight") else 1.0)


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of a model's parameters in float64."""
    return {name: p.detach().double() for name, p in model.named_parameters()}


def logits_of(parameters: Parameters, tokens: Tensor, shape: Shape) -> Tensor:
    """(B, L) to (B, L, V)."""

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]

    def norm(x: Tensor, name: str) -> Tensor:
        weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
        return F.layer_norm(x, (shape.d_model,), weight, bias)

    tokens = tokens.long()
    x = parameters["tokens.weight"][tokens] + parameters["places.weight"][: tokens.size(1)]
    is_padding = (tokens == PAD)[:, None, None]
    for layer in range(shape.num_layers):
        own = f"blocks.{layer}."
        q, k, v = (
            part.unflatten(-1, (shape.num_heads, -1)).transpose(1, 2)
            for part in linear(norm(x, own + "norm_1"), own + "qkv").chunk(3, -1)
        )
        scores = q @ k.mT * (shape.d_model // shape.num_heads) ** -0.5
        mixed = scores.masked_fill(is_padding, -torch.inf).softmax(-1) @ v
        x = x + linear(mixed.transpose(1, 2).flatten(2), own + "out")
        x = x + linear(F.gelu(linear(norm(x, own + "norm_2"), own + "mlp.0")), own + "mlp.2")
    return linear(norm(x, "norm"), "head")


def summed_loss(
    parameters: Parameters, rows: Iterable[tuple[Tensor, Tensor]], shape: Shape
) -> Tensor:
    """The cross-entropy of all hidden residues, added up.

    Args:
        rows: what the model was given of one protein, and its true residues; both (L,).
    """
    total = torch.zeros((), dtype=torch.float64)
    for tokens, truth in rows:
        logs = logits_of(parameters, tokens[None], shape)[0].log_softmax(-1)
        hidden = tokens == MASK
        total = total - logs[hidden, truth[hidden]].sum()
    return total


def gradient(
    parameters: Parameters, rows: Iterable[tuple[Tensor, Tensor]], shape: Shape
) -> tuple[float, Sequence[Tensor]]:
    """That sum, and its gradient by parameter."""
    leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    loss = summed_loss(leaves, rows, shape)
    if not loss.requires_grad:
        return 0.0, [torch.zeros_like(value) for value in leaves.values()]
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return float(loss.detach()), grads


def sketch(parts: Iterable[Tensor]) -> list[float]:
    """A long vector by its products with a few random directions.

    Sketches add up as their vectors do, and different vectors have different ones.
    """
    vector = torch.cat([part.detach().double().flatten() for part in parts])
    rng = torch.Generator().manual_seed(1)
    directions = torch.randn(NUM_DIRECTIONS, len(vector), generator=rng, dtype=torch.float64)
    products: list[float] = (directions @ vector).tolist()
    return products
