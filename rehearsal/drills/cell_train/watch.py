"""What a training step did: collectives, waits for the device. In the ranks."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

TORCH = os.path.dirname(torch.__file__)
READS = {
    *(
        getattr(Tensor, name)
        for name in ("item", "tolist", "numpy", "cpu", "equal", "allclose")
    ),
    *(getattr(Tensor, f"__{name}__") for name in ("bool", "float", "int", "index", "complex")),
    *(getattr(Tensor, f"__{name}__") for name in ("array", "format", "repr", "contains")),
    torch.equal,
    torch.allclose,
    torch.is_nonzero,
}
MOVES = {Tensor.to, Tensor.type}
DEVICE_OF = Tensor.device.__get__
# Their result's shape depends on values, so the host has to know these.
aten = torch.ops.aten
READING_KERNELS = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.nonzero.default,
    aten.masked_select.default,
}


class Sent(NamedTuple):
    """A collective that this rank has issued."""

    id: int
    name: str
    elements: int


def collectives(newest: int) -> list[Sent]:
    """The collectives issued after the one with this id."""
    dump: Any = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json")  # noqa: B009
    return [
        Sent(
            entry["record_id"],
            entry["profiling_name"].partition(":")[2],
            sum(torch.Size(size).numel() for size in entry["input_sizes"]),
        )
        for entry in json.loads(dump(True, False)).get("entries", [])
        if entry["record_id"] > newest
    ]


def moves_to_host(func: Any, args: Any, kwargs: Any, device: torch.device) -> bool:
    """Whether a call copies a result to the host: ``loss.to("cpu")``.

    Args:
        device: the trainer's; here it is the CPU, too, so only the object tells them apart.
    """
    if func not in MOVES or not args[0].is_floating_point() or args[0].dim() > 1:
        return False  # what a step is given may be copied to where it is computed
    for target in (*args[1:], *kwargs.values()):
        if isinstance(target, torch.device) and target is not device:
            return target.type == "cpu"
        if isinstance(target, str | type(torch.FloatTensor)):
            name = target if isinstance(target, str) else f"torch.{target.__name__}"
            return name.startswith(("cpu", "torch.")) and "cuda" not in name
    return False


@contextlib.contextmanager
def host_waits(device: torch.device) -> Iterator[list[str]]:
    """Lists where the host waits for the device: "line 12 in train_step (item)".

    That is wherever a tensor's value becomes something else than a tensor, whatever call does
    it, a copy of a result to the CPU by name, and a synchronize. On the CPU nothing really
    waits, so a call counts.

    Args:
        device: the trainer's.
    """
    places: list[str] = []

    def note(what: str) -> None:
        frame = sys._getframe(2)  # the traceback module would open source files
        while frame.f_back and frame.f_code.co_filename.startswith((TORCH, __file__)):
            frame = frame.f_back
        if not frame.f_globals["__name__"].startswith("rehearsal"):
            place = f"line {frame.f_lineno} in {frame.f_code.co_name}"
            if not any(known.startswith(f"{place} (") for known in places):
                places.append(f"{place} ({what})")

    class Calls(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            is_torchs = sys._getframe(1).f_code.co_filename.startswith(TORCH)
            if func in READS or (
                not is_torchs and moves_to_host(func, args, kwargs or {}, device)
            ):
                note(func.__name__.strip("_"))
            if func == DEVICE_OF:  # the same object for all, so that x.to(y.device) is known
                return device
            return func(*args, **(kwargs or {}))

    class Kernels(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func in READING_KERNELS:
                note("a value that the host reads")
            return func(*args, **(kwargs or {}))

    with contextlib.ExitStack() as stack:
        for module in (torch.cuda, torch.cpu, torch.accelerator):
            stack.callback(setattr, module, "synchronize", module.synchronize)
            module.synchronize = lambda *a, **k: note("synchronize")  # type: ignore
        stack.enter_context(Calls())
        stack.enter_context(Kernels())  # type: ignore[no-untyped-call]
        yield places
