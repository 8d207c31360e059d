"""What a step asks of its process group: which collectives, in which order, how many bytes.

A backend may carry out a request by other means: gloo runs a reduce-scatter as an all-reduce.
torch's flight recorder lists what the backend did (``watch_ranks(...)[rank].collectives``), and
this module lists what DDP, FSDP2 or a function of ours asked for.

    with group_calls() as calls:
        loss.backward()
    calls  # [{"name": "all_reduce", "bytes": 4096}, ...]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Call = dict[str, Any]  # name, and the bytes that this rank hands in


class Request(NamedTuple):
    """How the dispatcher calls a collective."""

    name: str
    payload: int  # which argument holds what this rank contributes


REQUESTS = {
    "c10d::allreduce_": Request("all_reduce", 0),
    "c10d::broadcast_": Request("broadcast", 0),
    "c10d::send": Request("send", 0),
    "c10d::allgather_": Request("all_gather", 1),
    "c10d::_allgather_base_": Request("all_gather", 1),
    "c10d::_reduce_scatter_base_": Request("reduce_scatter", 1),
    "c10d::alltoall_base_": Request("all_to_all", 1),
}


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of an argument: one, or nested lists of them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)


class GroupCalls(TorchDispatchMode):
    """Appends each request to ``calls`` as it passes through torch's dispatcher."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Note the request, then carry it out."""
        request = REQUESTS.get(func._schema.name)
        if request is not None:
            payload = list(tensors_in(args[request.payload]))
            size = sum(tensor.numel() * tensor.element_size() for tensor in payload)
            self.calls.append({"name": request.name, "bytes": size})
        return func(*args, **(kwargs or {}))


@contextmanager
def group_calls() -> Iterator[list[Call]]:
    """The requests that this rank makes inside the block, in order; receives aren't listed."""
    mode = GroupCalls()
    with mode:
        yield mode.calls


def count_calls(calls: Sequence[Call]) -> str:
    """How many of each kind, and their bytes: "5 all_gather (266 kB), 4 send (8.2 kB)"."""
    sizes: dict[str, list[int]] = {}
    for call in calls:
        sizes.setdefault(call["name"], []).append(call["bytes"])
    counted = [f"{len(each)} {name} ({in_kb(sum(each))})" for name, each in sizes.items()]
    return ", ".join(counted) or "none"


def in_kb(size: float) -> str:
    """Bytes as kB: three digits below a hundred, none after the point above."""
    return f"{size / 1e3:.3g} kB" if size < 1e5 else f"{size / 1e3:,.0f} kB"


def split_at_barriers(record: Sequence[Call]) -> list[list[Call]]:
    """What the flight recorder saw, cut where the function called ``dist.barrier()``.

    What comes after the last barrier is dropped.
    """
    parts: list[list[Call]] = [[]]
    for call in record:
        if call["name"] == "barrier":
            parts.append([])
        else:
            parts[-1].append(call)
    return parts[:-1]
