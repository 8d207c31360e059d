"""In which order an epoch visits its samples, without storing that order.

Supports cell 2 (data).

    n     samples in the dataset         slot   place in the epoch's order, 0..n-1
"""

from __future__ import annotations

import hashlib
from math import isqrt

import numpy as np
from numpy.typing import NDArray

# %%
UintArray = NDArray[np.uint64]

# Pieces of this size fit in a core's L2 cache.
PIECE = 16384
# Below this a real shuffle (sorting by a keyed hash) costs nothing, and a Feistel network on so
# few values is visibly non-uniform. From here on four rounds are enough (Luby and Rackoff).
SHUFFLE_BELOW = 2048
ROUNDS = 4


def hash_words(*parts: object, count: int) -> UintArray:
    """``count`` 64-bit words from a real hash of ``parts``.

    Joining the parts with a separator keeps (seed 1, epoch 21) apart from (seed 12, epoch 1).
    """
    text = "/".join(map(str, parts)).encode()
    digest = hashlib.shake_256(text).digest(8 * count)
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def _mix(values: UintArray, key: np.uint64) -> UintArray:
    """Scramble 64-bit values: xor and multiply, twice, as in MurmurHash3's finalizer."""
    mixed = values ^ key
    mixed *= np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0xC4CEB9FE1A85EC53)
    return mixed


def _add_below(half: UintArray, noise: UintArray, side: np.uint64) -> UintArray:
    """``half`` plus a number in 0..side-1 derived from ``noise``, modulo ``side``; no division.

    It scales the noise's upper 32 bits to 0..side-1, adds, and subtracts ``side`` once. The
    minimum picks the right result: where the sum was already below ``side``, the subtraction
    wraps around to a huge number. Needs ``half < side <= 2**32``; overwrites ``noise``.
    """
    noise >>= np.uint64(32)
    noise *= side
    noise >>= np.uint64(32)
    noise += half
    np.minimum(noise, noise - side, out=noise)
    return noise


# %%
def grid_bijection(slots: UintArray, rows: int, columns: int, keys: UintArray) -> UintArray:
    """Map 0..rows*columns-1 onto itself, keyed: a generalized Feistel network.

    Each round adds a hash of one grid coordinate to the other. Every round can be undone, so
    the map is a bijection (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
    """
    row = slots // np.uint64(columns)
    column = slots - row * np.uint64(columns)
    for even_key, odd_key in keys.reshape(-1, 2):
        row = _add_below(row, _mix(column, even_key), np.uint64(rows))
        column = _add_below(column, _mix(row, odd_key), np.uint64(columns))
    row *= np.uint64(columns)
    row += column
    return row


def feistel(slots: UintArray, num_samples: int, keys: UintArray) -> UintArray:
    """Map slots to sample ids by a keyed bijection on 0..num_samples-1.

    The grid has at least ``num_samples`` cells. A value that lands outside the range is mapped
    again until it is back inside (cycle walking), which keeps the map a bijection. The grid has
    fewer than ceil(sqrt(n)) extra cells, so few values need it.

    Args:
        slots: values in 0..num_samples-1.
        keys: an even number of 64-bit words, one per round.
    """
    rows = isqrt(num_samples - 1) + 1 if num_samples > 1 else 1
    columns = -(-num_samples // rows)
    ids = np.empty_like(slots)
    for start in range(0, slots.size, PIECE):
        piece = slice(start, start + PIECE)
        ids[piece] = grid_bijection(slots[piece], rows, columns, keys)
    while (outside := np.flatnonzero(ids >= np.uint64(num_samples))).size:
        ids[outside] = grid_bijection(ids[outside], rows, columns, keys)
    return ids


# %%
class EpochOrder:
    """The order of one epoch: a pure function of (num_samples, seed, epoch).

    Any part of it can be computed on its own, so seeking is free and memory doesn't grow with
    the dataset.

    Raises:
        ValueError: if ``num_samples`` is not in 1..2**63.
    """

    def __init__(self, num_samples: int, *, seed: int, epoch: int) -> None:
        if not 1 <= num_samples <= 2**63:
            raise ValueError(
                f"num_samples={num_samples}: sample ids are int64, and an empty dataset "
                "has no order. Use a dataset of 1 to 2**63 samples."
            )
        self.num_samples = num_samples
        self._keys = hash_words("order", seed, epoch, count=ROUNDS)

    def samples(self, first: int, last: int) -> NDArray[np.int64]:
        """Sample ids at slots ``first`` to ``last - 1``; int64, shape (last - first,)."""
        if not 0 <= first <= last <= self.num_samples:
            raise ValueError(
                f"slots {first}..{last}: this epoch's slots run from 0 to {self.num_samples}, "
                "and a slice past them would lose samples. Take both from StepSchedule.slots."
            )
        if self.num_samples < SHUFFLE_BELOW:
            hashes = _mix(np.arange(self.num_samples, dtype=np.uint64), self._keys[0])
            return np.argsort(_mix(hashes, self._keys[1]), kind="stable")[first:last]
        slots = np.arange(first, last, dtype=np.uint64)
        return feistel(slots, self.num_samples, self._keys).astype(np.int64)
