"""Run out of memory on purpose: a limit for this process, and what autograd keeps."""

from __future__ import annotations

import contextlib
import ctypes
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

MIB = 2**20
STATUS = Path("/proc/self/status")
M_MMAP_THRESHOLD = -3  # of glibc's mallopt


@contextlib.contextmanager
def memory_limit(mib: int) -> Iterator[None]:
    """Let this process allocate at most ``mib`` MiB more than it has now. Linux only.

    Elsewhere it says so and sets no limit: then nothing fails below.
    """
    if not STATUS.exists():
        print("This system has no /proc, so no limit is set and nothing will fail. Use Linux.")
        yield
        return
    # Give back each tensor's memory as soon as it's free: holes in the heap would count too.
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**16)
    used_kib = int(STATUS.read_text().partition("VmData:")[2].split()[0])
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used_kib * 1024 + mib * MIB, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


class KeptForBackward(saved_tensors_hooks):
    """As a context around a forward pass: how many MiB it keeps, without the weights."""

    def __init__(self, model: nn.Module) -> None:
        weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
        self.sizes: dict[int, int] = {}  # by storage: two operations may keep the same tensor

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                self.sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        super().__init__(pack, lambda tensor: tensor)

    @property
    def mib(self) -> float:
        """Kept so far."""
        return sum(self.sizes.values()) / MIB


def in_short(message: str) -> str:
    """The first sentence of torch's or gloo's error, without the place in their source."""
    return re.sub(r"^\s*\[[^\]]*\] (err == 0\. )?", "", message).partition(". ")[0]
