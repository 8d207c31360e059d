"""How do you group 4.2 billion rows by scaffold, when no machine can hold the table?

Part of the biotech track. It is a distributed group-by: every rank reads its own rows, in
chunks, and sends each key's hash to the partition that the hash belongs to, through files that
all ranks see. A partition holds all rows of its keys, so its owner can count them; the counts
decide each group's part, and the parts travel back to the rows the same way.

    n  rows in total      c  rows in a chunk      P  partitions      b  rows in an output block
    W  world size         d  different keys in the largest partition, about (all keys) / P

Memory of a rank: c keys and 60 bytes for each, 48 d bytes, and 9 b bytes; none of it grows with
n if P grows with it. Work: each row is hashed once, and moved twice. A key with a billion rows
makes its partition's file longer, and needs no memory: partitions are read in pieces, too.
Reads: one for each chunk and partition, n P / c in total, of c / P records. With P growing like
n and c fixed that is quadratic, so let c grow as well: both like the square root of n.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# %% active="py"
from trainer_core.bio.exchange import ExchangeWriter, FileExchange
from trainer_core.bio.group_rule import GroupingPlan, PartRule
from trainer_core.collectives import errors_on_all_ranks, gather_objects
from trainer_core.settings import UserError

# %%
# Part of the digest: raise it with any change in who lands where.
GROUPING_VERSION = "scaffold-groups-1"
KeyChunk = tuple[int, Sequence[str]]  # the number of the first row, and the keys from there on


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupingResult:
    """What every rank knows in the end; the parts are in part-00000.npy and so on."""

    num_groups: int
    largest: int  # rows of the largest group
    counts: tuple[int, int, int]  # rows in train, validation and test
    digest: str  # of the version, the plan and every row's part


def hash_keys(keys: Sequence[str]) -> NDArray[np.uint64]:
    """64-bit hashes of keys; equal in every process, unlike Python's own.

    Two of g different keys share one with a probability of g**2 / 2**65: 3% for a billion
    scaffolds. Then two scaffolds are one group, and stay on one side: no leak.
    """
    blake = hashlib.blake2b
    text = b"".join([blake(key.encode(), digest_size=8).digest() for key in keys])
    return np.frombuffer(text, dtype="<u8").astype(np.uint64)


# %%
def group_scaffolds(
    chunks: Iterable[KeyChunk], folder: Path, plan: GroupingPlan, *, rank: int, world_size: int
) -> GroupingResult:
    """Give every row the part of its scaffold's group, in bounded memory.

    The result doesn't depend on the world size, on which rank has which rows, or on the chunks.

    Collective: every rank, with its own ``chunks`` and the same ``folder``, which all see.

    Raises:
        UserError: on all ranks, if ``folder`` exists, or the rows aren't 0..n-1, each once.
    """
    keys = FileExchange(folder / "keys", plan.num_partitions, columns=2)
    parts = FileExchange(folder / "parts", plan.num_blocks, columns=1)
    with errors_on_all_ranks():
        if rank == 0:
            _make_folders(folder, plan)
    with errors_on_all_ranks():
        _send_keys(chunks, keys, plan, rank)
    sizes: dict[int, int] = {}
    with errors_on_all_ranks():
        for partition in range(rank, plan.num_partitions, world_size):
            _, counts = _count_groups(keys, partition)
            for size, groups in zip(*np.unique(counts, return_counts=True), strict=True):
                sizes[int(size)] = sizes.get(int(size), 0) + int(groups)
    histogram: dict[int, int] = {}
    for other in gather_objects(sizes):
        for size, groups in other.items():
            histogram[size] = histogram.get(size, 0) + groups
    rule = PartRule(histogram, plan)
    with errors_on_all_ranks():
        writer = ExchangeWriter(parts, rank)
        for partition in range(rank, plan.num_partitions, world_size):
            _send_parts(keys, partition, rule, writer, plan.rows_per_block)
        writer.close()
    found: list[tuple[int, str, tuple[int, ...]]] = []
    with errors_on_all_ranks():
        for block in range(rank, plan.num_blocks, world_size):
            found.append(_write_block(folder, parts, block, plan))
    blocks = sorted(block for blocks in gather_objects(found) for block in blocks)
    result = _summarize(histogram, blocks, plan)
    with errors_on_all_ranks():
        if rank == 0:
            _publish_parts(folder, plan, result)
    return result


def _make_folders(folder: Path, plan: GroupingPlan) -> None:
    has_shares = abs(sum(plan.fractions) - 1) < 1e-6 and min(plan.fractions) >= 0
    if plan.num_rows < 1 or not has_shares or plan.by not in ("size", "hash"):
        raise UserError(
            f"num_rows={plan.num_rows}, fractions={plan.fractions}, by={plan.by!r}: there must "
            "be rows, shares that add up to 1, and by='size' or 'hash'. Nothing has started."
        )
    if folder.exists():
        raise UserError(
            f"{folder} exists, and a split is never written over: results of two splits would "
            "look alike. Choose another folder, or delete this one."
        )
    (folder / "keys").mkdir(parents=True)
    (folder / "parts").mkdir()


def _send_keys(
    chunks: Iterable[KeyChunk], exchange: FileExchange, plan: GroupingPlan, rank: int
) -> None:
    """Hash this rank's keys, and send (hash, row) to the hash's partition."""
    writer = ExchangeWriter(exchange, rank)
    parts = np.uint64(plan.num_partitions)
    for first, keys in chunks:
        if first < 0 or first + len(keys) > plan.num_rows:
            raise UserError(
                f"rows {first}..{first + len(keys) - 1}: the plan has "
                f"num_rows={plan.num_rows}, numbered from 0. Count the rows of all ranks, and "
                "pass that number."
            )
        hashes = hash_keys(keys)
        rows = np.arange(first, first + len(keys), dtype=np.uint64)
        # The upper half of the hash times P: no division, and equal shares.
        partition = ((hashes >> np.uint64(32)) * parts) >> np.uint64(32)
        writer.send(np.stack([hashes, rows], axis=1), partition.astype(np.int64))
    writer.close()


def _count_groups(
    exchange: FileExchange, partition: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The different hashes of a partition, sorted, and how many rows each has."""
    hashes, counts = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    for records in exchange.read(partition):
        piece, numbers = np.unique(records[:, 0], return_counts=True)
        hashes, places = np.unique(np.concatenate([hashes, piece]), return_inverse=True)
        weights = np.concatenate([counts, numbers])
        counts = np.bincount(places, weights, minlength=len(hashes)).astype(np.int64)
    return hashes, counts


# %%
def _send_parts(
    exchange: FileExchange,
    partition: int,
    rule: PartRule,
    writer: ExchangeWriter,
    block_rows: int,
) -> None:
    """Send each row's part to the block that the row belongs to: row * 4 + part, 8 bytes."""
    hashes, counts = _count_groups(exchange, partition)
    parts = rule.parts(hashes, counts)
    for records in exchange.read(partition):
        rows = records[:, 1]
        own = parts[np.searchsorted(hashes, records[:, 0])]
        block = (rows // np.uint64(block_rows)).astype(np.int64)
        writer.send((rows * np.uint64(4) + own)[:, None], block)


def _write_block(
    folder: Path, exchange: FileExchange, block: int, plan: GroupingPlan
) -> tuple[int, str, tuple[int, ...]]:
    """Write the parts of a block's rows; its number, SHA-256 (hex) and rows in each part."""
    first = block * plan.rows_per_block
    parts = np.full(min(plan.rows_per_block, plan.num_rows - first), 3, np.uint8)
    received = 0
    for records in exchange.read(block):
        rows = (records[:, 0] >> np.uint64(2)).astype(np.int64) - first
        parts[rows] = (records[:, 0] & np.uint64(3)).astype(np.uint8)
        received += len(rows)
    missing = np.flatnonzero(parts == 3)
    if missing.size or received != len(parts):
        what = f"row {first + missing[0]} is on no rank" if missing.size else "rows came twice"
        raise UserError(
            f"{what}: of rows {first}..{first + len(parts) - 1}, {received} were read and "
            f"{missing.size} are missing. Each row must be on exactly one rank. Check how the "
            "files are dealt out."
        )
    np.save(folder / f"part-{block:05d}.npy", parts)
    counts = np.bincount(parts, minlength=3).tolist()
    return block, hashlib.sha256(parts.tobytes()).hexdigest(), tuple(counts)


def _summarize(
    histogram: dict[int, int],
    blocks: list[tuple[int, str, tuple[int, ...]]],
    plan: GroupingPlan,
) -> GroupingResult:
    train, validation, test = (sum(counts[p] for _, _, counts in blocks) for p in range(3))
    facts = [GROUPING_VERSION, plan.num_rows, list(plan.fractions), plan.by, plan.seed]
    facts += [plan.rows_per_block, *(digest for _, digest, _ in blocks)]
    return GroupingResult(
        num_groups=sum(histogram.values()),
        largest=max(histogram),
        counts=(train, validation, test),
        digest=hashlib.sha256(json.dumps(facts).encode()).hexdigest(),
    )


def _publish_parts(folder: Path, plan: GroupingPlan, result: GroupingResult) -> None:
    """Remove what only travelled, then write the manifest: a folder without one isn't done."""
    for name in ("keys", "parts"):
        for path in (folder / name).iterdir():
            path.unlink()
        (folder / name).rmdir()
    facts = {"version": GROUPING_VERSION, "plan": asdict(plan), "result": asdict(result)}
    (folder / "manifest.json").write_text(json.dumps(facts, indent=1) + "\n")


def read_group_parts(folder: Path) -> Iterator[NDArray[np.uint8]]:
    """The parts of all rows, a block at a time."""
    for path in sorted(folder.glob("part-*.npy")):
        yield np.load(path, mmap_mode="r")
