"""Where samples come from: tensors in memory, scikit-learn's digits, a file of tokens.

Leaned on by cell 2 (dataset and sampler).

    n  samples    B  samples in a batch    D  features    T  tokens in a sample
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

# %% active="py"
from trainer_core.settings import UserError


# %%
class SampleSource(Protocol):
    """What a dataset offers: samples by index, in batches, and a fingerprint of its content."""

    num_classes: int
    fingerprint: str

    def __len__(self) -> int: ...

    def batch(self, samples: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of ``samples``, (B,) int64; of none, empty ones."""


def fingerprint(array: NDArray[Any]) -> str:
    """A short hash of an array's shape and of 16 evenly spaced pieces, the ends included.

    Quick at any size; of an array under 1 MiB the pieces are the whole.
    """
    flat = array.reshape(-1)
    digest = hashlib.sha256(f"{array.shape}{array.dtype}".encode())
    size = max(65536 // array.itemsize, 1)
    for start in np.linspace(0, max(flat.size - size, 0), 16).astype(np.int64):
        digest.update(flat[start : start + size].tobytes())
    return digest.hexdigest()[:16]


class InMemoryDataset(Dataset[tuple[Tensor, Tensor]]):
    """Samples held as two tensors: inputs (n, D) float32 and targets (n,) int64."""

    def __init__(self, inputs: Tensor, targets: Tensor, num_classes: int) -> None:
        self.inputs, self.targets, self.num_classes = inputs, targets, num_classes
        self.fingerprint = fingerprint(inputs.numpy()) + fingerprint(targets.numpy())

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]

    def batch(self, samples: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.as_tensor(samples, dtype=torch.int64)
        return self.inputs.index_select(0, rows), self.targets.index_select(0, rows)


# %%
def load_digits_dataset() -> InMemoryDataset:
    """1797 scans of handwritten digits, 8x8 pixels in 0..1, that come with scikit-learn.

    Raises:
        UserError: if scikit-learn is not installed.
    """
    package = importlib.util.find_spec("sklearn")
    # The file itself, not load_digits(): importing scikit-learn costs every rank two seconds.
    folder = Path(package.origin or "").parent if package else Path("sklearn")
    path = folder / "datasets/data/digits.csv.gz"
    if not path.is_file():
        raise UserError(
            f"--data digits: no {path}. The scans are a file of scikit-learn; without it "
            "there is nothing to train on. Run: pip install scikit-learn, or use --data toy."
        )
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)  # (1797, 64 pixels + 1 label)
    inputs = torch.from_numpy(table[:, :-1] / np.float32(16))
    return InMemoryDataset(inputs, torch.from_numpy(table[:, -1].astype(np.int64)), 10)


# %%
class TokenDataset(Dataset[tuple[Tensor, Tensor]]):
    """Windows of T tokens, and the same shifted by one, from a memory-mapped file of uint16.

    Raises:
        UserError: if the file is missing, has an odd number of bytes or less than T + 1 tokens.
    """

    def __init__(self, path: Path, seq_len: int, vocab_size: int) -> None:
        size = path.stat().st_size if path.is_file() else None
        if size is None or size % 2 or size < 2 * (seq_len + 1):
            raise UserError(
                f"--data tokens:{path}: {'no such file' if size is None else f'{size} bytes'}. "
                f"Tokens are uint16, two bytes each, and a sample needs {seq_len} + 1 of them. "
                "Check the path, or write the file anew with numpy's astype('uint16').tofile."
            )
        self.path, self.seq_len, self.num_classes = path, seq_len, vocab_size
        self.tokens = np.memmap(path, dtype="<u2", mode="r")
        self.fingerprint = fingerprint(self.tokens)

    def __reduce__(self) -> tuple[Any, ...]:
        # By path: a spawned loader worker would get the content of the whole file.
        return TokenDataset, (self.path, self.seq_len, self.num_classes)

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.seq_len

    def batch(self, samples: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        starts = np.asarray(samples, dtype=np.int64)[:, None] * self.seq_len
        windows = self.tokens[starts + np.arange(self.seq_len + 1)].astype(np.int64)
        if windows.size and windows.max() >= self.num_classes:
            raise UserError(
                f"--data tokens:{self.path}: token {windows.max()}, but ids lie below "
                f"--vocab-size {self.num_classes}: the model has no row for it. Raise it."
            )
        rows = torch.from_numpy(windows)  # (B, T + 1)
        return rows[:, :-1], rows[:, 1:]


# %%
def already_batched(batch: Any) -> Any:
    """The view has made the batch; a lambda would not travel to a spawned worker."""
    return batch
