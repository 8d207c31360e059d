"""What a training step did: collectives, host reads, gradients by micro-batch. In the ranks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


def num_collectives() -> int:
    """Collectives that this rank has issued so far."""
    dump: Any = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json")  # noqa: B009
    return len(json.loads(dump(True, False)).get("entries", []))


class HostReads(TorchDispatchMode):
    """Lists the places where a tensor's value becomes a Python number: there the host waits."""

    def __init__(self, places: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places = places

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            ours = os.path.dirname(__file__), os.path.dirname(torch.__file__)
            frame = sys._getframe(1)  # the traceback module would open source files
            while frame.f_back and frame.f_code.co_filename.startswith(ours):
                frame = frame.f_back
            self.places.append(f"line {frame.f_lineno} in {frame.f_code.co_name}")
        return func(*args, **(kwargs or {}))


def sums_per_micro_batch(
    model: nn.Module, inputs: Tensor, targets: Tensor, cuts: Iterable[Sequence[int]]
) -> list[list[float]]:
    """Per micro-batch: its summed loss, and that loss's gradient over the trained weights."""
    used = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for ids in cuts:
        logits = model(inputs[list(ids)])
        loss = nn.functional.cross_entropy(logits, targets[list(ids)], reduction="sum")
        found = torch.autograd.grad(loss, used)
        rows.append([loss.item(), *torch.cat([g.flatten() for g in found]).tolist()])
    return rows
