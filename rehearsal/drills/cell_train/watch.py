"""What a training step did: collectives, waits for the device. In the ranks."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

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
# Their result's shape depends on values, so the host has to know these.
aten = torch.ops.aten
READING_KERNELS = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.nonzero.default,
    aten.masked_select.default,
}


def collectives(newest: int) -> list[tuple[str, int, int]]:
    """Id, name and number of elements of the collectives issued after the one with this id."""
    dump: Any = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json")  # noqa: B009
    return [
        (
            entry["record_id"],
            entry["profiling_name"].partition(":")[2],
            sum(torch.Size(size).numel() for size in entry["input_sizes"]),
        )
        for entry in json.loads(dump(True, False)).get("entries", [])
        if entry["record_id"] > newest
    ]


@contextlib.contextmanager
def host_waits() -> Iterator[list[str]]:
    """Lists where the host waits for the device: "line 12 in train_step (item)".

    That is wherever a tensor's value becomes something else than a tensor, whatever call does
    it, and a synchronize. On the CPU nothing really waits, so a call counts.
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
            if func in READS:
                note(func.__name__.strip("_"))
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
        stack.enter_context(Calls())  # type: ignore[no-untyped-call]
        stack.enter_context(Kernels())  # type: ignore[no-untyped-call]
        yield places
