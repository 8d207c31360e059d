"""The biotech track's figures: grouping scaffolds, featurizing, and what padding wastes.

    python scripts/bench_bio.py
    python scripts/bench_bio.py --only padding
    python scripts/bench_bio.py --rows 1000000 2000000

Times are CPU time of one process; what is compared takes turns in it. Each number of rows is
grouped in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from trainer_core.bio.assays import scaffold_library
from trainer_core.bio.bins import plan_batches, plan_packing
from trainer_core.bio.featurize import MorganSettings, featurize_smiles
from trainer_core.bio.generated_proteins import generated_lengths
from trainer_core.bio.group_rule import GroupingPlan
from trainer_core.bio.packages import load
from trainer_core.bio.scaffold_groups import KeyChunk, group_scaffolds

CHUNK = 100_000
# A tenth of the rows have one scaffold, as a tenth of a library may be benzene's; the others
# share as many scaffolds as there are rows, and so have one to a few rows each.
COMMON_FRACTION = 0.1


def synthetic_keys(num_rows: int) -> Iterator[KeyChunk]:
    """Scaffold keys of made-up rows, a chunk at a time."""
    draw = np.random.default_rng(0)
    for first in range(0, num_rows, CHUNK):
        count = min(CHUNK, num_rows - first)
        groups = draw.integers(num_rows, size=count)
        groups[draw.random(count) < COMMON_FRACTION] = 0
        yield first, [f"c1ccc(C{group}CC1)cc1" for group in groups.tolist()]


def group_once(num_rows: int) -> None:
    """Group so many keys, and print the seconds of CPU without making keys, and peak MiB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began = time.process_time()
    for _ in synthetic_keys(num_rows):
        pass
    making_s = time.process_time() - began
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        plan = GroupingPlan(num_rows=num_rows)
        chunks = synthetic_keys(num_rows)
        result = group_scaffolds(chunks, Path(folder, "split"), plan, rank=0, world_size=1)
        grouping_s = time.process_time() - began - making_s
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"| {num_rows:,} | {result.num_groups:,} | {grouping_s:.1f} s | {peak:.0f} MiB, "
        f"{before:.0f} before |"
    )


def grouping(sizes: Sequence[int]) -> None:
    """A row of a table for each size."""
    print("| rows | scaffolds | CPU time | peak memory |\n|---|---|---|---|", flush=True)
    for size in sizes:
        subprocess.run([sys.executable, __file__, "--group-once", str(size)], check=True)


def featurizing() -> None:
    """The track's CPU time over RDKit's own, molecule by molecule in turns of 256."""
    smiles = list(scaffold_library(400, 10, seed=4).smiles)[:2048]
    read = load("rdkit.Chem", "the benchmark").MolFromSmiles
    print(
        "\n| fingerprint | RDKit alone, per molecule | with ours, times RDKit |\n|---|---|---|"
    )
    kinds = (("bits", "GetFingerprint"), ("counts", "GetCountFingerprint"))
    for kind, method in kinds:
        settings = MorganSettings(kind="bits" if kind == "bits" else "counts")
        make = getattr(settings.generator(), method)
        alone, ratios = [], []
        for _ in range(9):
            spent = [0.0]

            def in_turns(spent: list[float] = spent, make: Any = make) -> Iterator[str]:
                for first in range(0, len(smiles), 256):
                    began = time.process_time()
                    for text in smiles[first : first + 256]:
                        make(read(text))
                    spent[0] += time.process_time() - began
                    yield from smiles[first : first + 256]

            with tempfile.TemporaryDirectory() as folder:
                began = time.process_time()
                path = Path(folder, "features.npy")
                featurize_smiles(in_turns(), len(smiles), path, settings, chunk_rows=256)
                total = time.process_time() - began
            alone.append(spent[0] / len(smiles))
            ratios.append((total - spent[0]) / spent[0])
        print(f"| {kind} | {1e6 * median(alone):.0f} us | {median(ratios):.2f} |", flush=True)


def padding() -> None:
    """What batches of sequences waste, with lengths as in UniRef, cropped at 1,024."""
    crop = 1026  # with <cls> and <eos>
    lengths = np.minimum(generated_lengths(20_000, seed=0) + 2, crop)
    draw = np.random.default_rng(0)
    batches = np.split(draw.permutation(len(lengths)), range(32, len(lengths), 32))
    plain = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
    rows = [("plain batches of 32, in random order", plain)]
    for times in (1, 4, 16):
        rows.append(
            (
                f"token budget, {times}x the longest",
                plan_batches(lengths, times * crop).padded().sum(),
            )
        )
    for times in (1, 2, 8):
        plan = plan_packing(lengths, times * crop)
        rows.append((f"packed rows, {times}x the longest", len(plan) * times * crop))
    print("\n| batches | padding |\n|---|---|")
    for name, computed in rows:
        print(f"| {name} | {1 - lengths.sum() / computed:.1%} |")


def main(arguments: Sequence[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=("grouping", "featurizing", "padding"))
    sizes = [1_000_000, 2_000_000, 5_000_000, 10_000_000]
    parser.add_argument("--rows", type=int, nargs="+", default=sizes)
    parser.add_argument("--group-once", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.group_once:
        group_once(options.group_once)
        return
    if options.only in (None, "grouping"):
        grouping(options.rows)
    if options.only in (None, "featurizing"):
        featurizing()
    if options.only in (None, "padding"):
        padding()


if __name__ == "__main__":
    main(sys.argv[1:])
