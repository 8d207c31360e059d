"""Which parameters have optimizer state on a rank, and the run in one process. In the ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from rehearsal.kit.observe.samples import OddNet, marked_samples, weights_of

from .plan import Run


class Owned:
    """Names of the parameters that have optimizer state on this rank."""

    def __init__(self, model: nn.Module) -> None:
        self.names: set[str] = set()
        self.name_of: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
        register_optimizer_step_post_hook(self.stepped)

    def stepped(self, optimizer: Optimizer, *_: object) -> None:
        """Some optimizer has stepped."""
        for parameter, state in optimizer.state.items():
            if state:
                self.names.add(self.name_of.get(parameter, "a tensor that is no parameter"))


class Objects:
    """The numbers in each object that this rank sends to a group of all ranks."""

    def __init__(self) -> None:
        self.of_all_ranks: list[tuple[str, int]] = []
        pack: Any = c10d._object_to_tensor

        def packed(value: object, device: Any, group: Any) -> Any:
            if dist.get_world_size(group) == dist.get_world_size():
                self.of_all_ranks.append(("a collective of objects", numbers_in(value)))
            return pack(value, device, group)

        c10d._object_to_tensor = packed


def numbers_in(value: object) -> int:
    """How many numbers nested containers of tensors, arrays and numbers have."""
    if isinstance(value, Mapping):
        return sum(map(numbers_in, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(numbers_in, value))
    if isinstance(value, Tensor):
        return value.numel()
    if isinstance(value, np.ndarray):
        return value.size
    return int(isinstance(value, int | float))


def sums_of_all_ranks() -> list[tuple[str, int]]:
    """Name and elements of each collective on tensors of numbers in a group of all ranks.

    Whatever the group is called: the flight recorder has its name, and torch its ranks. The
    bytes of objects don't count here.
    """
    groups = {
        name: c10d._world.pg_group_ranks[group] for group, name in c10d._world.pg_names.items()
    }
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    trace = json.loads(dump(True, False)) if dump is not None else {}
    found = []
    for entry in trace.get("entries", []):
        name = entry["profiling_name"].partition(":")[2]
        has_all = len(groups.get(entry["process_group"][0], ())) == dist.get_world_size()
        if has_all and name != "broadcast" and entry["input_dtypes"][:1] != ["Byte"]:
            found.append((name, sum(math.prod(size) for size in entry["input_sizes"])))
    return found


def expected(run: Run) -> dict[str, Any]:
    """One process: weights and losses; SGD with momentum, written out."""
    model, (inputs, targets) = OddNet(seed=0), marked_samples(run.num_samples)
    used = [p for name, p in model.named_parameters() if name != "unused"]
    speeds = [torch.zeros_like(parameter) for parameter in used]
    history = []
    for _ in range(run.epochs):
        total = 0.0
        for first in range(0, run.num_samples, run.global_batch_size):
            step = slice(first, first + run.global_batch_size)
            losses = (model(inputs[step]) - targets[step]).pow(2).sum(1)
            total += float(losses.detach().sum())
            grads = torch.autograd.grad(losses.mean(), used)
            for parameter, speed, grad in zip(used, speeds, grads, strict=True):
                speed.mul_(0.9).add_(grad)
                parameter.data.sub_(run.lr * speed)
        history.append(total / run.num_samples)
    return {"weights": weights_of(model), "history": history}
