"""Where samples come from: tensors in memory, scikit-learn's digits, or a file of tokens.

Supports cell 2 (data).

    n  samples    B  samples in a batch    D  features    T  tokens in a sample
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

# %% active="py"
from trainer_core.memory import memory_per_rank
from trainer_core.settings import UserError


# %%
class SampleSource(Protocol):
    """What a dataset provides: batches of samples by index, and a hash of its content."""

    num_classes: int
    fingerprint: str

    def __len__(self) -> int: ...

    def batch(self, samples: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of ``samples``, (B,) int64. Without samples, both are empty."""


def fingerprint(array: NDArray[Any]) -> str:
    """A short hash of an array's shape and of the pieces that ``hash_pieces`` reads."""
    flat = array.reshape(-1)
    size, kind = flat.itemsize, f"{array.shape}{array.dtype}"
    return hash_pieces(kind, flat.size, size, lambda at, count: flat[at : at + count].tobytes())


def hash_pieces(
    kind: str, length: int, item_bytes: int, read: Callable[[int, int], bytes]
) -> str:
    """A short hash of 16 evenly spaced pieces of 64 KiB, including both ends.

    It is quick at any size, but can't see a change between two pieces. Up to 1 MiB, the pieces
    cover everything.

    Args:
        length: in items.
        read: called with the first item and how many; returns their bytes.
    """
    digest = hashlib.sha256(kind.encode())
    count = max(65536 // item_bytes, 1)
    for first in np.linspace(0, max(length - count, 0), 16).astype(np.int64):
        digest.update(read(int(first), count))
    return digest.hexdigest()[:16]


class InMemoryDataset(Dataset[tuple[Tensor, Tensor]]):
    """Samples held as two tensors: inputs (n, D) float32 and targets (n,) int64."""

    def __init__(self, inputs: Tensor, targets: Tensor, num_classes: int) -> None:
        self.inputs = inputs
        self.targets = targets
        self.num_classes = num_classes
        self.fingerprint = fingerprint(inputs.numpy()) + fingerprint(targets.numpy())

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]

    def batch(self, samples: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.as_tensor(samples, dtype=torch.int64)
        return self.inputs.index_select(0, rows), self.targets.index_select(0, rows)


# %%
class ToyClassificationDataset(InMemoryDataset):
    """Points from a normal distribution, labeled by a fixed random linear map.

    A network can learn the labels, so the loss curve means something. The content doesn't
    depend on the run's seed: two seeds train on the same data in different orders.
    """

    def __init__(self, num_samples: int, input_dim: int, num_classes: int = 8) -> None:
        limit = min(2**31, memory_per_rank() // 4)
        if num_samples * input_dim > limit:
            raise UserError(
                f"dataset_size={num_samples}, input_dim={input_dim}: toy data is held in "
                f"memory: at most {limit} numbers of 4 bytes for each rank here. Lower one, "
                "or use tokens:PATH."
            )
        generator = torch.Generator().manual_seed(1234)
        teacher = torch.randn(input_dim, num_classes, generator=generator)
        inputs = torch.randn(num_samples, input_dim, generator=generator)
        super().__init__(inputs, (inputs @ teacher).argmax(dim=1), num_classes)


# %%
def load_digits_dataset() -> InMemoryDataset:
    """1797 scans of handwritten digits, 8x8 pixels in 0..1, that ship with scikit-learn.

    Raises:
        UserError: if scikit-learn is not installed.
    """
    package = importlib.util.find_spec("sklearn")
    # Read the file itself: importing scikit-learn for load_digits() costs each rank 2 seconds.
    folder = Path(package.origin or "").parent if package else Path("sklearn")
    path = folder / "datasets/data/digits.csv.gz"
    if not path.is_file():
        raise UserError(
            f"data=digits: no {path}. The scans are a file that ships with scikit-learn, and "
            "without it there is nothing to train on. Run: pip install scikit-learn, or use "
            "data=toy."
        )
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)  # (1797, 64 pixels + 1 label)
    inputs = torch.from_numpy(table[:, :-1] / np.float32(16))
    return InMemoryDataset(inputs, torch.from_numpy(table[:, -1].astype(np.int64)), 10)


# %%
class TokenDataset(Dataset[tuple[Tensor, Tensor]]):
    """Windows of T tokens, and the same shifted by one, from a file of uint16.

    It reads the file with pread and doesn't map it. If the file is truncated during training,
    a read comes back short; a mapped page would be gone, and SIGBUS would kill the process.

    Raises:
        UserError: if the file is missing, has an odd number of bytes, or is too short for one
            window.
    """

    def __init__(self, path: Path, seq_len: int, vocab_size: int) -> None:
        size = path.stat().st_size if path.is_file() else None
        if size is None or size % 2 or size < 2 * (seq_len + 1):
            raise UserError(
                f"data=tokens:{path}: {'no such file' if size is None else f'{size} bytes'}. "
                f"Tokens are uint16, two bytes each, and a sample needs {seq_len} + 1 of them. "
                "Check the path, or rewrite the file with numpy's astype('uint16').tofile."
            )
        self.path = path
        self.seq_len = seq_len
        self.num_classes = vocab_size
        self.num_tokens = size // 2
        self.file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.file)
        kind = f"({self.num_tokens},)uint16"
        self.fingerprint = hash_pieces(kind, self.num_tokens, 2, self.read)

    def read(self, first: int, count: int) -> bytes:
        """The bytes of ``count`` tokens, or fewer at the end of the file."""
        return os.pread(self.file, 2 * count, 2 * first)

    def __reduce__(self) -> tuple[Any, ...]:
        # By path: otherwise a spawned loader worker would receive the whole file's content.
        return TokenDataset, (self.path, self.seq_len, self.num_classes)

    def __len__(self) -> int:
        return (self.num_tokens - 1) // self.seq_len

    def batch(self, samples: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        length = self.seq_len + 1
        starts = np.asarray(samples, dtype=np.int64) * self.seq_len
        pieces = [self.read(start, length) for start in starts.tolist()]
        if any(len(piece) < 2 * length for piece in pieces):
            raise UserError(
                f"data=tokens:{self.path}: the file had {self.num_tokens} tokens when training "
                "began, and has fewer now. A sample past its end can't be trained. Restore the "
                "file, then run the same command: it resumes from the last checkpoint."
            )
        # (B, T + 1) uint16
        windows = np.frombuffer(b"".join(pieces), dtype="<u2").reshape(-1, length)
        if windows.size and windows.max() >= self.num_classes:
            raise UserError(
                f"data=tokens:{self.path}: token {windows.max()} found, but the model has "
                f"rows only for ids below vocab_size={self.num_classes}. Raise vocab_size; a "
                "larger model is a different run, so also use a new run_dir, or start_over."
            )
        # Each contiguous, by the copy that widens it anyway. Two views of one (B, T + 1) tensor
        # would not be: .to(device) first packs a strided tensor into a new one that isn't
        # pinned, and then the host waits for the copy despite non_blocking.
        inputs = windows[:, :-1].astype(np.int64, order="C")
        targets = windows[:, 1:].astype(np.int64, order="C")
        return torch.from_numpy(inputs), torch.from_numpy(targets)


# %%
def already_batched(batch: Any) -> Any:
    """A collate_fn for a dataset that returns batches; unlike a lambda, it can be pickled."""
    return batch
