"""Is a dataset what it should be: pairs, with classes that depend on the inputs?

And has the model an output for each class?

Runs in the ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NEIGHBORS = 7
CLEARLY = 4.0  # standard errors above what guessing the class frequencies gets right


def problem_of(dataset: Any, num_samples: int) -> str:
    """What keeps a dataset from being ``num_samples`` pairs; "" if nothing does."""
    if len(dataset) != num_samples:
        return f"has {len(dataset)} samples, with num_samples={num_samples}"
    for index in range(num_samples):
        item = dataset[index]
        try:
            inputs, label = item
        except (TypeError, ValueError):
            return f"has no pair at index {index}: {str(item)[:100]}"
        if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
            return f"has no float tensor as the input of sample {index}: {str(inputs)[:100]}"
        try:
            is_class = int(label) == label
        except (TypeError, ValueError, RuntimeError):
            is_class = False
        if not is_class:
            return f"has no class as the label of sample {index}: {str(label)[:100]}"
    return ""


def pairs_of(dataset: Any) -> list[tuple[list[Any], int]]:
    """The pairs as plain data."""
    return [
        (inputs.tolist(), int(label))
        for inputs, label in map(dataset.__getitem__, range(len(dataset)))
    ]


def row_of(inputs: Tensor) -> bytes:
    """A sample's input, to recognize it by."""
    return inputs.detach().float().flatten().numpy().tobytes()


def first_equals(dataset: Any) -> list[int]:
    """For each sample the first one with the same input: two samples may look the same."""
    first: dict[bytes, int] = {}
    return [first.setdefault(row_of(dataset[i][0]), i) for i in range(len(dataset))]


def contradiction(dataset: Any) -> str:
    """Two samples with the same input and different classes; "" if there are none."""
    for index, first in enumerate(first_equals(dataset)):
        one, two = int(dataset[first][1]), int(dataset[index][1])
        if one != two:
            return f"samples {first} and {index} have equal inputs, and classes {one} and {two}"
    return ""


def beats_guessing(dataset: Any) -> bool:
    """Whether the other samples predict a sample's class: its neighbors, or a linear model."""
    inputs, labels = zip(*(dataset[index] for index in range(len(dataset))), strict=True)
    x = torch.stack([each.double().flatten() for each in inputs])
    x = (x - x.mean(0)) / x.std(0).clamp(min=1e-9)
    y = torch.tensor([int(label) for label in labels])
    classes = torch.nn.functional.one_hot(y - y.min()).double()
    distance = torch.cdist(x, x).fill_diagonal_(float("inf"))
    near = classes[distance.topk(NEIGHBORS, largest=False).indices].sum(1)
    # Ridge regression; each sample is predicted without itself.
    kernel = x @ x.T + 1
    ridge = kernel + 0.1 * kernel.diagonal().mean() * torch.eye(len(x)).double()
    hat = torch.linalg.solve(ridge, kernel)
    own = hat.diagonal().unsqueeze(1)
    linear = (hat @ classes - own * classes) / (1 - own)
    return max(_above_chance(guess.argmax(1), classes) for guess in (near, linear)) > CLEARLY


def _above_chance(guess: Tensor, classes: Tensor) -> float:
    right = classes.gather(1, guess.unsqueeze(1)).mean()
    guessed = torch.nn.functional.one_hot(guess, classes.size(1)).double().mean(0)
    chance = classes.mean(0) @ guessed
    error = (chance * (1 - chance) / len(guess)).sqrt()
    return float((right - chance) / error) if error > 0 else 0.0


def outputs_for(model: torch.nn.Module, dataset: Any) -> str:
    """What is wrong with the shape of a model's outputs for a dataset; "" if nothing is."""
    inputs, labels = zip(*(dataset[index] for index in range(len(dataset))), strict=True)
    dtype = next((p.dtype for p in model.parameters()), inputs[0].dtype)
    with torch.no_grad():
        shape = tuple(model(torch.stack(inputs).to(dtype)).shape)
    highest = max(int(label) for label in labels)
    if len(shape) == 2 and shape[0] == len(labels) and shape[1] > highest:
        return ""
    return f"the classes go up to {highest}, and the model's output has the shape {shape}"
