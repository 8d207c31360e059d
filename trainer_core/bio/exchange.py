"""How rows travel between ranks: through files that all ranks see.

Part of the biotech track; scaffold_groups.py sorts billions of rows with it. Each rank writes
one file, whatever the number of destinations: a chunk's records, sorted by destination. An
index says where each destination's records begin, so its owner reads only those.

    D  destinations (partitions, blocks)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# %%
Records = NDArray[np.uint64]  # (records, columns)
# A reader takes this many records at a time.
PIECE_RECORDS = 65536


class FileExchange:
    """Records on their way, in ``folder``: records-RANK.bin and index-RANK.bin.

    Args:
        num_destinations: D, equal on all ranks.
        columns: 64-bit words of a record.
    """

    def __init__(self, folder: Path, num_destinations: int, columns: int) -> None:
        self.folder = folder
        self.num_destinations = num_destinations
        self.columns = columns

    def read(self, destination: int) -> Iterator[Records]:
        """All records for one destination, from all ranks, in pieces.

        Call it when every rank has closed its writer, which takes a barrier.
        """
        waiting, count = list[Records](), 0
        for path in sorted(self.folder.glob("index-*.bin")):
            for records in self._from_one_rank(path, destination):
                # Together, so that many small chunks cost their reader no more than large ones.
                waiting.append(records)
                count += len(records)
                if count >= PIECE_RECORDS:
                    yield np.concatenate(waiting)
                    waiting, count = [], 0
        if waiting:
            yield np.concatenate(waiting)

    def _from_one_rank(self, index_path: Path, destination: int) -> Iterator[Records]:
        if not index_path.stat().st_size:  # a rank without rows
            return
        index = np.memmap(index_path, "<i8", "r").reshape(-1, self.num_destinations + 1)
        spans = index[:, destination : destination + 2].tolist()
        del index
        name = index_path.name.replace("index", "records")
        with (self.folder / name).open("rb", buffering=0) as file:
            for first, last in spans:
                for start in range(first, last, PIECE_RECORDS):
                    words = min(PIECE_RECORDS, last - start) * self.columns
                    file.seek(8 * self.columns * start)
                    found = np.frombuffer(file.read(8 * words), "<u8")
                    yield found.reshape(-1, self.columns)


class ExchangeWriter:
    """What one rank sends."""

    def __init__(self, exchange: FileExchange, rank: int) -> None:
        self.num_destinations = exchange.num_destinations
        self.sent = 0
        self.records = (exchange.folder / f"records-{rank}.bin").open("xb")
        # For each chunk, D + 1 places, counted in records from the start of the file.
        self.index = (exchange.folder / f"index-{rank}.bin").open("xb")

    def send(self, records: Records, destinations: NDArray[np.int64]) -> None:
        """Write a chunk of records; ``destinations`` says where each one goes, 0..D-1."""
        order = np.argsort(destinations, kind="stable")
        counts = np.bincount(destinations, minlength=self.num_destinations)
        places = self.sent + np.concatenate([[0], np.cumsum(counts)])
        self.index.write(places.astype("<i8").tobytes())
        self.records.write(records[order].astype("<u8").tobytes())
        self.sent += len(records)

    def close(self) -> None:
        """Finish both files."""
        self.records.close()
        self.index.close()
