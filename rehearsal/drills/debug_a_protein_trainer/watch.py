"""What a training gives its model, which gradient it follows, and in which precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from .plan import MASK, PAD, Shape
from .reference import gradient, parameters_of, sketch

HALF = (torch.bfloat16, torch.float16)
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "mkldnn_linear", "linear"}
# Attention's own softmax is not in the list: a fused kernel has it in float32.
ATTENTION = "_scaled_dot_product"
REDUCTIONS = {
    *("_softmax", "_log_softmax", "logsumexp", "exp", "log", "sum", "mean", "cumsum"),
    *("native_layer_norm", "var_mean", "rsqrt", "linalg_vector_norm"),
    *("nll_loss_forward", "nll_loss2d_forward", "_fused_rms_norm"),
}


class Precision(TorchDispatchMode):
    """The dtypes of matrix products and of reductions, where they run: below autocast.

    Only of forward passes: a backward pass has the dtypes of what it differentiates.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation
        self.is_on = True
        self.products: set[str] = set()
        self.reductions: dict[str, str] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if self.is_on and torch._C._current_graph_task_id() == -1:  # not in a backward pass
            dtypes = [arg.dtype for arg in args if isinstance(arg, Tensor) and arg.ndim > 0]
            found = {str(dtype).removeprefix("torch.") for dtype in dtypes}
            if name in PRODUCTS or name.startswith(ATTENTION):
                self.products |= {one for one in found if "float" in one}
            if name in REDUCTIONS and any(dtype in HALF for dtype in dtypes):
                self.reductions[name.removesuffix("_forward")] = sorted(found)[0]
        return func(*args, **(kwargs or {}))


class Watch:
    """Keeps what the model was given for each optimizer step, and the gradient it follows.

    Used as a pre-hook of an optimizer's step, when the weights are still those of its batch.
    """

    def __init__(
        self,
        model: nn.Module,
        shape: Shape,
        proteins: Sequence[Sequence[int]],
        precision: Precision,
    ) -> None:
        self.model, self.shape, self.proteins = model, shape, proteins
        self.precision = precision
        self.waiting, self.steps = list[Tensor](), list[dict[str, Any]]()
        model.register_forward_pre_hook(self._called, with_kwargs=True)

    def _called(self, model: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        tokens: Tensor = [*args, *kwargs.values()][0]
        self.waiting.extend(row.clone() for row in tokens)

    def __call__(self, *_: Any) -> None:
        self.precision.is_on = False  # what follows is the check's own arithmetic
        self.steps.append(self.facts())
        self.waiting.clear()
        self.precision.is_on = True

    def facts(self) -> dict[str, Any]:
        """The step that is about to be taken."""
        places = [place_of(row.tolist(), self.proteins) for row in self.waiting]
        rows = [
            (row[: place[2]], truth_of(self.proteins, place))
            for row, place in zip(self.waiting, places, strict=True)
            if place
        ]
        loss, grads = gradient(parameters_of(self.model), rows, self.shape)
        followed = [
            torch.zeros_like(p) if p.grad is None else p.grad for p in self.model.parameters()
        ]
        return {
            "places": places,
            "hidden": [int((row == MASK).sum()) for row in self.waiting],
            "where": [(row == MASK).nonzero()[:, 0].tolist() for row in self.waiting],
            "lengths": [int((row != PAD).sum()) for row in self.waiting],
            "loss": loss,
            "sketch": sketch(grads),
            "followed": sketch(followed),
            "is_finite": all(bool(grad.isfinite().all()) for grad in followed),
        }


def truth_of(proteins: Sequence[Sequence[int]], place: Sequence[int]) -> Tensor:
    """The residues of a window, as ``place_of`` describes it."""
    protein, first, length = place
    return torch.tensor(proteins[protein][first : first + length])


def place_of(row: Sequence[int], proteins: Sequence[Sequence[int]]) -> list[int] | None:
    """Which protein a row is a window of, where it begins, and its length; None if of none."""
    residues = list(row)
    while residues and residues[-1] == PAD:
        residues.pop()
    shown = [(at, residue) for at, residue in enumerate(residues) if residue != MASK]
    if not shown:  # which can be right for a protein of a single residue
        lengths = [len(protein) for protein in proteins]
        is_one = lengths.count(len(residues)) == 1
        return [lengths.index(len(residues)), 0, len(residues)] if is_one else None
    # One that fits is trained whole, so a protein of just that length comes first.
    ways = sorted(enumerate(proteins), key=lambda pair: len(pair[1]) != len(residues))
    for index, protein in ways:
        for first in range(len(protein) - len(residues) + 1):
            if all(protein[first + at] == residue for at, residue in shown):
                return [index, first, len(residues)]
    return None
