"""The model, its loss and its gradients, written out on a dictionary of parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .plan import PAD, Shape

Parameters = Mapping[str, Tensor]


def shapes_of(shape: Shape) -> dict[str, list[int]]:
    """The names and shapes of the parameters of the program's model."""
    vocab_size, context_length, width, _, num_layers = shape
    found = {"tokens.weight": [vocab_size, width], "positions.weight": [context_length, width]}
    for layer in range(num_layers):
        own = {
            **{f"norm_{n}.{name}": [width] for n in (1, 2) for name in ("weight", "bias")},
            "attention.qkv.weight": [3 * width, width],
            "attention.out.weight": [width, width],
            "mlp.0.weight": [4 * width, width],
            "mlp.0.bias": [4 * width],
            "mlp.2.weight": [width, 4 * width],
            "mlp.2.bias": [width],
        }
        found |= {f"blocks.{layer}.{name}": size for name, size in own.items()}
    last = {"norm.weight": [width], "norm.bias": [width], "head.weight": [vocab_size, width]}
    return found | last


@torch.no_grad()
def fill(model: nn.Module, seed: int, sharp: float = 1.0) -> None:
    """Draw all parameters.

    Args:
        sharp: above 1, attention isn't nearly uniform, and gains and biases are drawn, too.
    """
    rng = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=rng)
        if parameter.ndim > 1:
            scale = {"tokens.weight": 1.0, "positions.weight": 0.3}.get(name)
            scale = scale or parameter.size(1) ** -0.5
            parameter.copy_(noise * scale * (sharp if "qkv" in name else 1.0))
        else:
            gain = 1.0 if name.endswith("weight") else 0.0
            parameter.copy_(noise * (sharp - 1) * 0.3 + gain)


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of a model's parameters."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def logits_of(parameters: Parameters, tokens: Tensor, shape: Shape) -> Tensor:
    """(B, T) to (B, T, V), without dropout."""

    def norm(x: Tensor, name: str) -> Tensor:
        weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
        return F.layer_norm(x, (shape.width,), weight, bias)

    batch, time = tokens.shape
    x = parameters["tokens.weight"][tokens] + parameters["positions.weight"][:time]
    is_earlier = torch.ones(time, time).tril().bool()
    for layer in range(shape.num_layers):
        own = f"blocks.{layer}."
        qkv = norm(x, own + "norm_1") @ parameters[own + "attention.qkv.weight"].T
        q, k, v = (
            part.view(batch, time, shape.num_heads, -1).transpose(1, 2)
            for part in qkv.split(shape.width, -1)
        )
        scores = q @ k.mT / math.sqrt(shape.width // shape.num_heads)
        mixed = scores.where(is_earlier, torch.tensor(-torch.inf)).softmax(-1) @ v
        mixed = mixed.transpose(1, 2).flatten(2)
        x = x + mixed @ parameters[own + "attention.out.weight"].T
        hidden = norm(x, own + "norm_2") @ parameters[own + "mlp.0.weight"].T
        hidden = F.gelu(hidden + parameters[own + "mlp.0.bias"])
        x = x + hidden @ parameters[own + "mlp.2.weight"].T + parameters[own + "mlp.2.bias"]
    return norm(x, "norm") @ parameters["head.weight"].T


def loss_sum(parameters: Parameters, tokens: Tensor, shape: Shape) -> Tensor:
    """The loss of every real target in ``tokens`` (B, T), added up."""
    logs = logits_of(parameters, tokens[:, :-1], shape).log_softmax(-1)
    targets = tokens[:, 1:]
    return -(logs.gather(-1, targets[..., None])[..., 0] * (targets != PAD)).sum()


def num_targets(tokens: Tensor) -> int:
    """Targets in ``tokens`` that aren't padding."""
    return int((tokens[:, 1:] != PAD).sum())


def mean_loss(parameters: Parameters, tokens: Tensor, shape: Shape) -> float:
    """Of all real targets."""
    with torch.no_grad():
        return float(loss_sum(parameters, tokens, shape)) / num_targets(tokens)


def gradient(parameters: Parameters, tokens: Tensor, shape: Shape) -> tuple[float, Tensor]:
    """The mean loss, and its gradient as one vector."""
    leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    loss = loss_sum(leaves, tokens, shape) / num_targets(tokens)
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return float(loss.detach()), torch.cat([grad.flatten() for grad in grads])


def vector(parameters: Parameters) -> Tensor:
    """All parameters, as one vector."""
    return torch.cat([value.flatten() for value in parameters.values()])


def bounded(grad: Tensor, most: float) -> Tensor:
    """Scaled down to the norm ``most``, if its own is larger."""
    return grad * min(1.0, most / (float(grad.norm()) + 1e-6))


def close(ours: Tensor, theirs: Tensor, most: float = 2e-3) -> bool:
    """Whether two vectors are equal up to rounding."""
    return bool((ours - theirs).abs().max() <= most * theirs.abs().max() + 1e-6)
