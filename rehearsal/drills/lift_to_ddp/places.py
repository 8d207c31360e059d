"""On which device would each tensor be? Simulated, so that a CPU shows what GPUs would.

torch accepts ``torch.device("cpu", 1)`` and then forgets the index: all of it is one memory.
This mode remembers the index, and passes it on from the operands of an operation to its result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

HOST = "cpu"
# Operands on two devices make these raise. Others may cross: they copy, or index on the host.
ARITHMETIC = set("add sub rsub mul div truediv pow linear mse_loss cat stack".split())
SET_DATA: Any = Tensor.data.__set__  # type: ignore[attr-defined]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors among the arguments, or in the result, of a function of torch."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, Mapping):
        yield from tensors_in(list(value.values()))


class Places(TorchFunctionMode):
    """While it is active, remembers where each tensor is.

    Args:
        on_host: tensors that have not been moved.
        mixes: called with two places and the name of an operation that has operands on both.
    """

    def __init__(
        self, on_host: Iterable[Tensor], mixes: Callable[[list[str], str], None]
    ) -> None:
        super().__init__()
        self._place: Any = WeakIdKeyDictionary()
        self._mixes = mixes
        for tensor in on_host:
            self._place[tensor] = HOST

    def of(self, tensor: Tensor) -> str | None:
        """A tensor's place; None if it was made in a way that doesn't say."""
        place: str | None = self._place.get(tensor)
        return place

    def of_model(self, model: nn.Module) -> list[str]:
        """The places of a model's parameters."""
        places = {self.of(parameter) for parameter in model.parameters()}
        return sorted(place for place in places if place is not None)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        changes_first = name.startswith("__i") or re.fullmatch(r"\w*[a-z]_", name) is not None
        operation = name.removeprefix("__i").strip("_")
        if func == SET_DATA:
            self._move(args[0], self.of(args[1]))
            return result
        known = [(t, self.of(t)) for t in tensors_in([*args, kwargs])]
        places = [place for _, place in known if place is not None]
        place = places[0] if places else None
        if func is Tensor.to:
            place = self._goal(args, kwargs) or place
            if result is args[0] and place != self.of(args[0]):
                result = result.clone()  # a GPU would have a copy
        elif func is Tensor.cpu:
            place = HOST
        elif kwargs.get("device") is not None:
            place = str(torch.device(kwargs["device"]))
        elif not known:  # made from numbers
            place = str(torch.get_default_device())
        elif operation in ARITHMETIC:
            # GPUs take a single number from the host, unless it is what they must change.
            apart = {
                where
                for number, (tensor, where) in enumerate(known)
                if where and (tensor.dim() or where != HOST or (changes_first and number == 0))
            }
            if len(apart) > 1:
                self._mixes(sorted(apart), operation)
        for tensor in tensors_in(result):
            self._move(tensor, place)
        return result

    def _move(self, tensor: Tensor, place: str | None) -> None:
        if place is not None:
            self._place[tensor] = place

    def _goal(self, args: Any, kwargs: Any) -> str | None:
        """Where ``Tensor.to`` is asked to put its result; None if it only changes the type."""
        other = next(tensors_in([*args[1:], kwargs]), None)
        if other is not None:
            return self.of(other)
        device = torch._C._nn._parse_to(*args[1:], **kwargs)[0]
        return None if device is None else str(device)
