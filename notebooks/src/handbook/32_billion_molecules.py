# %% [markdown]
# # 32. A billion molecules
#
# {{badge}}
#
# > "The model fits on a GPU, so the model isn't the problem. The risk is in the data: what
# > counts as one molecule, which are for evaluation only, and whether I can say after a crash
# > exactly what was trained on. I'll do the arithmetic first, because it says how small the
# > training data is next to the tables. Then I'll follow a molecule from a vendor's file to a
# > rank."
#
# *Twenty-five minutes to read. It's one interview question, worked through in order. What runs
# here is the pipeline at less than a millionth of its size. The large numbers are arithmetic,
# and an extrapolation is called one.*

# %% collapsed=true
# {{setup torch numpy matplotlib cloudpickle platformdirs fsrs rehearsal}}

# %% collapsed=true
#@title Imports, and what to install for the chemistry
from rehearsal.engine.ranks import warm_up

warm_up("trainer_core.bio.launch")  # the ranks' server, in the background

import collections
import hashlib
import json
import math
import os
import shutil
import tempfile
import time
import tracemalloc
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DistributedSampler

from rehearsal.engine.reports import Fault
from rehearsal.evidence.audit import audit_run
from rehearsal.evidence.cadence import job_mtbf_s, young_interval
from rehearsal.handbook import data_plane, failures, numbers, restarts
from rehearsal.handbook.diagrams import diagram
from rehearsal.handbook.on_ranks import answers_of, on_ranks, watch_ranks
from rehearsal.handbook.optional import use_if_installed
from rehearsal.handbook.published import H100
from rehearsal.handbook.vendor_tables import vendor_tables
from trainer_core.bio import exchange
from trainer_core.bio.batches import TensorBatch
from trainer_core.bio.bins import plan_batches
from trainer_core.bio.group_rule import GroupingPlan
from trainer_core.bio.loss_terms import summed_token_loss
from trainer_core.bio.molecule_keys import molecule_standardizer
from trainer_core.bio.protein_model import ProteinEncoder
from trainer_core.bio.scaffold_groups import group_scaffolds, read_group_parts
from trainer_core.bio.smiles_tokens import (
    BOS_ID, MASK_ID, PAD_ID, SPECIAL_TOKENS, SmilesVocabulary,
)
from trainer_core.data import SampleKey, StepSchedule
from trainer_core.order import EpochOrder, hash_words
from trainer_core.settings import UserError

folder = Path(tempfile.mkdtemp(prefix="handbook-"))
use_if_installed("rdkit")

# %% [markdown]
# ## The prompt
#
# > *"We have 4.2 billion unique compounds: SMILES, vendor metadata, assay IDs and sparse
# > labels. It's about 30 terabytes of compressed tables, before featurization. Pretrain a
# > transformer encoder on them. It fits on one GPU. Walk me through it."*
#
# Ask five questions before you draw anything. If nobody answers, say what you assume.
#
# | ask | assume | what it decides |
# |---|---|---|
# | What's the model for? | its embeddings feed models of assays | the split, and what "better" means |
# | Unique by which key? | by the vendors' own numbers | whether you have to deduplicate |
# | How often does the data change? | a vendor file a month | versions, and what gets rebuilt |
# | How many GPUs, by when? | up to 64 H100s, two weeks | what may be computed twice |
# | Where are tables and GPUs? | in one region | whether 30 TB has to travel |
#
# Most people miss the second. "Unique" is a claim about somebody's key.

# %%
diagram("billion_molecules")

# %% [markdown]
# ## Numbers first
#
# The encoder is as large as BERT's base model. Tokens per molecule, GPU utilization (MFU) and
# dollars are assumptions. A sample of a million rows would replace the first.

# %%
N, TABLES, LENGTH = 4.2e9, 30e12, 50  # molecules, bytes, tokens in a molecule
LAYERS, WIDTH, MFU, USD_PER_GPU_HOUR = 12, 768, 0.35, 3
BUDGET, BINS = 8192, 192  # tokens in a batch of one rank, and such batches in a step

token_bytes = 2 * LENGTH * N
parameters = numbers.transformer_parameters(LAYERS, WIDTH)
flops = numbers.train_flops(parameters, LENGTH * N)
hours = numbers.gpu_hours(flops, H100.peak_flop_per_s, MFU)
print(f"tables: {TABLES / N / 1e3:.1f} kB a molecule. Tokens: {2 * LENGTH} bytes a molecule,"
      f" {token_bytes / 1e9:.0f} GB, {TABLES / token_bytes:.0f} times less")
print(f"weights, gradients, Adam's state: {16 * parameters / 1e9:.1f} of {H100.memory_gb} GB")
print(f"a pass over {LENGTH * N / 1e9:.0f} billion tokens: {hours:.0f} GPU-hours,"
      f" ${USD_PER_GPU_HOUR * hours:.0f}, {LENGTH * N / BINS / BUDGET:,.0f} steps")
egress = data_plane.list_price(TABLES / 1e12, data_plane.EGRESS)
print(f"the tables out of another cloud, once: ${egress:,.0f}")

# %%
def at(gpus):
    """Of a step: milliseconds of compute and of a ring all-reduce; then hours of a pass."""
    flops = numbers.flops_per_token(parameters) * BINS * BUDGET / gpus
    link = H100.link_gb_per_s if gpus <= 8 else H100.network_gb_per_s
    sync_s = numbers.allreduce_seconds(4 * parameters, gpus, link * 1e9)
    return 1e3 * flops / (MFU * H100.peak_flop_per_s), 1e3 * sync_s, hours / gpus


scales = {gpus: at(gpus) for gpus in (8, 64, 192)}
print("GPUs   compute   all-reduce   a pass   ten passes   molecules/s and kB/s per GPU")
for gpus, (compute_ms, sync_ms, pass_h) in scales.items():
    rate = N / (3600 * pass_h) / gpus
    print(f"{gpus:4} {compute_ms:6.0f} ms {sync_ms:9.1f} ms {pass_h:6.1f} h"
          f" {pass_h / 2.4:9.1f} d {rate:12,.0f} and {2 * LENGTH * rate / 1e3:,.0f}")

# %% [markdown]
# Now you know what kind of problem it is. A pass costs a few hundred dollars and about an hour
# and a half on 64 GPUs, a tenth of what it costs to get the tables out of another cloud. A GPU
# reads little more than a megabyte a second, and all tokens fit on each node's local disk, so
# bandwidth isn't a problem anymore. What's expensive is to do it wrong and not notice.
#
# The arithmetic also limits the number of GPUs. At 192 of them, the all-reduce takes longer than the compute, for
# this batch. 64 is a choice I can defend, and 8 would do in a week.
#
# > "420 gigabytes of tokens against 30 terabytes of tables. So I featurize once, and the
# > training job never sees a table."
#
# ### What featurizing costs
#
# Measured here, on one core, with this project's own code. `vendor_tables` writes 392 real
# drugs and a made-up library as three vendors would.

# %%
tables = vendor_tables(30, 12)
rows = tables.rows
standardize = molecule_standardizer()
few = tables.originals[::8]
began = time.process_time()
keys = [standardize(text) for text in few]  # canonical SMILES and scaffolds
between = time.process_time()
vocabulary = SmilesVocabulary.from_smiles(key.smiles for key in keys)
tokens = [vocabulary.encode(key.smiles) for key in keys]
cost_s = {
    "standardize, find the scaffold": (between - began) / len(few),
    "build a vocabulary, tokenize": (time.process_time() - between) / len(few),
}
for name, seconds in cost_s.items():
    print(f"{name:31} {1e3 * seconds:5.2f} ms each: {N * seconds / 3600:6,.0f} core-hours")
# %% [markdown]
# The core-hours are an extrapolation over seven orders of magnitude, from drugs and a toy
# library, on a machine that may have other work. Say "one to three milliseconds each, so 1,200 to
# 3,500 core-hours". Once, that's a thousand cores for an hour, or for three. In the data loader,
# it's that in every pass, on machines that were bought for their GPUs.
#
# Run it as thousands of tasks that each read one file, write under a temporary name and rename.
# Then a crash at 80% repeats only what was in flight.
#
# ## The schema
#
# | column | what it's for |
# |---|---|
# | `compound_id` | joins labels, audit and runs. Assigned at first sight, never recomputed |
# | `raw_smiles` | what arrived: when the standardizer changes, you start from here |
# | `canonical_smiles` | identity, and the source of the tokens |
# | `murcko_scaffold` | the group that the split keeps together |
# | `assay_ids`, `labels` | lists, because most rows have none; for the assays' models (chapter 30) |
# | `token_ids` | uint16, computed offline |
# | `token_length` | routes a row to its length class without opening the tokens |
# | `quality_flags` | bits: invalid, salt or solvent removed, no ring, no label |
# | `source_partition` | provenance: replay a file, or take a vendor out |
#
# You'd miss the last one most: when a vendor withdraws its data, a table without it has to be
# rebuilt.

# %% collapsed=true
#@title A vendor's row as a row of that table
INVALID, HAD_SALT, NO_RING, NO_LABEL = 1, 2, 4, 8


def record_of(row):
    """A row of the training table. An invalid one keeps its text, and is counted."""
    flags = HAD_SALT * ("." in row.raw_smiles) | NO_LABEL * (not row.labels)
    record = {"source_partition": row.source, "raw_smiles": row.raw_smiles}
    record |= {"assay_ids": row.assay_ids, "labels": row.labels, "quality_flags": flags}
    try:
        keys = standardize(row.raw_smiles)
    except UserError:
        return record | {"quality_flags": flags | INVALID}
    # Computed when a molecule is first seen, then looked up: a new toolkit writes other SMILES.
    name = hashlib.blake2b(keys.smiles.encode(), digest_size=16).hexdigest()
    record |= {"compound_id": name, "canonical_smiles": keys.smiles}
    record |= {"murcko_scaffold": keys.scaffold}
    return record | {"quality_flags": flags | NO_RING * (not keys.scaffold)}


# %%
records = [record_of(row) for row in rows]
valid = [record for record in records if not record["quality_flags"] & INVALID]
invalid = collections.Counter(
    record["source_partition"] for record in records if record["quality_flags"] & INVALID
)
by_source = collections.Counter(row.source for row in rows)
for name, value in valid[-1].items():
    print(f"{name:17} {value}")
print(f"{sum(invalid.values()) / len(rows):.1%} of the rows can't be read:")
for source, count in by_source.items():
    print(f"  {source:10} {invalid[source] / count:.1%} of its {count} rows")

# %% [markdown]
# "1.7% bad rows, skip them" sounds harmless. It's an eighth of one vendor. So count what you
# skip by source and reason, and give each task an error budget that stops it. And skip here,
# offline: if a rank's loader skips, its batch is no longer what was planned.
#
# ## Identity, before anything is split

# %%
texts = {record["raw_smiles"] for record in valid}
merged = {}
for record in valid:
    merged.setdefault(record["compound_id"], []).append(record)
sources = [{each["source_partition"] for each in group} for group in merged.values()]
several = sum(len(names) > 1 for names in sources)
print(f"{len(valid)} rows, {len(texts)} different texts, {len(merged)} molecules,"
      f" {several} of them from more than one vendor")

for bits in (64, 128):
    print(f"{bits}-bit keys: {N * (N - 1) / 2 ** (bits + 1):.2g} pairs that collide by chance")

# %% [markdown]
# By text, everything is unique. Merge, don't drop: a molecule keeps all its sources and labels,
# with a rule for conflicts (chapter 30). And merge before the split, or the test set has the
# answer key in it, written as a salt.
#
# At full size this is a shuffle: partition the rows by a hash of the key, and merge within each
# partition. How wide is the hash? With 64 bits, expect half a pair of different molecules that
# become one, and nothing reports it. So identity gets 128. For scaffolds, 64 will do, because a
# collision only puts two groups on the same side.

# %% [markdown]
# ## Grouping by scaffold
#
# The split keeps a scaffold together, so somebody has to know which rows share one. "Put it in
# a dict" is the answer to avoid. The project's `group_scaffolds` is a distributed group-by.
# Each rank reads its rows in chunks and writes (hash, row) to a file, sorted by partition of
# the hash. After a barrier, the owner of a partition reads its part of every rank's file. Now
# it has all rows of its scaffolds and can count them, and each row's side travels back the same
# way.
#
# Here are both. A tenth of the rows have one scaffold, as benzene might be in a real library.

# %% collapsed=true
#@title Keys, a dict of them, and the most memory that a function takes
CHUNK = 2000


def scaffold_keys(num_rows, first_chunk=0, step=1, chunk=CHUNK):
    """Every step-th chunk: the number of its first row, and its keys."""
    for first in range(first_chunk * chunk, num_rows, step * chunk):
        draw = np.random.default_rng((num_rows, first))
        groups = draw.integers(num_rows, size=min(chunk, num_rows - first))
        groups[draw.random(len(groups)) < 0.1] = 0
        yield first, [f"c1ccc(C{group}CC1)cc1" for group in groups.tolist()]


def in_a_dict(num_rows):
    rows_of = {}
    for first, keys in scaffold_keys(num_rows):
        for row, key in enumerate(keys, first):
            rows_of.setdefault(key, []).append(row)
    return len(rows_of)


def peak_of(function):
    """What it returns, and the most memory that Python and NumPy held meanwhile, in bytes."""
    tracemalloc.start()
    try:
        return function(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# %%
def grouped(num_rows, chunk=CHUNK, partition=5000):
    """On any number of ranks: the result, and the most memory that this rank took."""
    exchange.PIECE_RECORDS = 2000  # read this many records at a time: scaled down like the rest
    rank, ranks = 0, 1
    if dist.is_initialized():
        rank, ranks = dist.get_rank(), dist.get_world_size()
    sizes = {"rows_per_partition": partition, "rows_per_block": 20_000}
    plan = GroupingPlan(num_rows=num_rows, by="hash", **sizes)
    chunks = scaffold_keys(num_rows, rank, ranks, chunk)
    place = folder / f"grouped-{num_rows}-{ranks}-{chunk}"
    result, peak = peak_of(
        lambda: group_scaffolds(chunks, place, plan, rank=rank, world_size=ranks)
    )
    return asdict(result), peak


# %%
peaks = {}
print("rows       a dict   group-by")
for num_rows in (10_000, 20_000, 40_000):
    _, in_dict = peak_of(lambda: in_a_dict(num_rows))
    alone, by_files = grouped(num_rows)
    peaks[num_rows] = in_dict, by_files
    print(f"{num_rows:6,} {in_dict / 2**20:8.1f} MiB {by_files / 2**20:5.1f} MiB")
on_two = on_ranks(grouped, 2, 40_000)
print("on two ranks:", *(f"{peak / 2**20:.1f} MiB" for _, peak in on_two))
print(f"largest group: {alone['largest']:,} rows; the same split on two ranks:"
      f" {all(result['digest'] == alone['digest'] for result, _ in on_two)}")
print(f"the dict at {N:.1e} rows, extrapolated: {N * peaks[40_000][0] / 40_000 / 1e12:.1f} TB")

# %% [markdown]
# The dict grows with the rows. The group-by holds one chunk, one partition's different keys, or
# one block of the output. The rest is on disk, 16 bytes a row on the way there and 8 on the way
# back. The heavy scaffold makes one partition longer and needs no memory, because partitions
# are read in pieces.
#
# How long at full size? [The track's figures](../../docs/biotech.md) say 6.5 s of CPU for 10
# million rows, from `scripts/bench_bio.py --only grouping`. Now multiply by 420?

# %%
def exchange_files(num_rows, chunk, partition):
    """Stretches to read, bytes in one, bytes of the indexes, and a rank's memory."""
    chunks, partitions = num_rows / chunk, num_rows / partition
    stretches = chunks * partitions
    memory = 150 * chunk + 48 * partition  # a key and its record take about 150 bytes
    return stretches, 16 * num_rows / stretches, 8 * chunks * (partitions + 1), memory


print(f"{N:.1e} rows, straight line: {6.5 * N / 1e7 / 3600:.2f} core-hours")
layouts = {}
for chunk, partition in ((100_000, 250_000), (4_000_000, 4_000_000)):
    layouts[chunk] = exchange_files(N, chunk, partition)
    stretches, size, index, memory = layouts[chunk]
    print(f"chunks of {chunk:9,}, partitions of {partition:9,}: {stretches:.1e} stretches of"
          f" {size:6,.0f} bytes, {index / 1e9:.2f} GB of index, {memory / 1e9:.2f} GB a rank")

for size in (200, 2000):
    began = time.process_time()
    grouped(16_000, chunk=size, partition=size)
    spent = time.process_time() - began
    stretches = exchange_files(16_000, size, size)[0]
    print(f"16,000 rows, both {size:5,}: {stretches:5,.0f} stretches, {spent:.2f} s of CPU")

# %% [markdown]
# The straight line says less than an hour on one core, and it's wrong. Each chunk leaves a
# stretch for each partition, so there are chunks times partitions of them. With the benchmark's
# settings that's 700 million stretches of a hundred bytes, and each is read three times. The CPU
# work is linear in the rows, and the reads are quadratic, until you make chunks and partitions
# larger. At four million rows each, it's a million stretches of 60 kB, for under a gigabyte a
# rank. So memory does grow, with the square root of the rows.
#
# > "It's linear up to where I measured. Beyond that I look for what multiplies: here it's
# > chunks times partitions. I let both grow with the square root of the rows, and I run a tenth
# > before I run all of it."
#
# ### Which side?
#
# By size, the largest scaffolds go to training and the rare ones are held out, which needs the
# counts. By hash, a group's side follows from its key alone: one pass is enough, and next
# month's file can't move an old row. For data that grows, I'd take the hash. Molecules without
# a ring share one empty scaffold, so give each a key of its own, or all land on one side.

# %%
molecules = [group[0] for _, group in sorted(merged.items())]
group_keys = [each["murcko_scaffold"] or each["canonical_smiles"] for each in molecules]
plan = GroupingPlan(num_rows=len(molecules), by="hash", fractions=(0.8, 0.0, 0.2))
split = group_scaffolds([(0, group_keys)], folder / "split", plan, rank=0, world_size=1)
parts = np.concatenate(list(read_group_parts(folder / "split")))
sides = [{key for key, part in zip(group_keys, parts) if part == side} for side in (0, 2)]
ringless = sum(not each["murcko_scaffold"] for each in molecules)
print(f"{split.num_groups} groups of up to {split.largest}; {ringless} molecules have no ring")
print(f"{split.counts[0]} train, {split.counts[2]} are held out,"
      f" {len(sides[0] & sides[1])} groups are on both sides")

# %% [markdown]
# ## Shards and the manifest
#
# A file per molecule would be 4.2 billion requests for 100 bytes. Shards of 256 MB are some
# 1,640 files: long reads, and a unit to hash, copy and retry. They're immutable. Held-out
# molecules get shards of their own, so a training job can't read one by mistake.
#
# One more decision makes everything below simple. **A shard holds one length class.** Lengths
# are rounded up to a multiple of 8, and each row has exactly that many tokens. So row *i* is at
# *i* times the width, and there's no index of offsets.

# %%
import rdkit


def write_shards(place, molecules, parts, vocabulary):
    """One shard for each side and width, and the manifest, written last."""
    place.mkdir()
    classes, shards = collections.defaultdict(list), []
    for molecule, part in zip(molecules, parts):
        ids = vocabulary.encode(molecule["canonical_smiles"])
        side, width = ("train", "", "held-out")[part], -(-len(ids) // 8) * 8
        classes[side, width].append(np.pad(ids, (0, width - len(ids)), constant_values=PAD_ID))
    for (side, width), ids in sorted(classes.items()):
        path = place / f"{side}-{width:03}-00000.u16"
        np.stack(ids).astype("<u2").tofile(path)
        facts = {"name": path.name, "side": side, "width": width, "rows": len(ids)}
        shards.append(facts | {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()})
    words = hashlib.sha256("\n".join(vocabulary.tokens).encode()).hexdigest()
    manifest = {"transform": "smiles-v1", "toolkit": rdkit.__version__, "shards": shards}
    manifest |= {"vocabulary": words, "vocabulary_size": len(vocabulary)}
    manifest |= {"split": split.digest, "skipped": dict(invalid)}
    (place / "manifest.json").write_text(json.dumps(manifest, indent=1))
    return manifest


def problems(place):
    """What isn't as the manifest says: sizes first, which cost nothing, then hashes."""
    for shard in json.loads((place / "manifest.json").read_text())["shards"]:
        path, size = place / shard["name"], 2 * shard["width"] * shard["rows"]
        if path.stat().st_size != size:
            yield f"{path.name}: {path.stat().st_size} bytes, and the manifest says {size}"
        elif hashlib.sha256(path.read_bytes()).hexdigest() != shard["sha256"]:
            yield f"{path.name}: another hash"


# %%
vocabulary = SmilesVocabulary.from_smiles(each["canonical_smiles"] for each in molecules)
shards = folder / "shards"
manifest = write_shards(shards, molecules, parts, vocabulary)
trained = [shard for shard in manifest["shards"] if shard["side"] == "train"]
print(f"{len(manifest['shards'])} shards, {len(vocabulary)} tokens in the vocabulary")
print(f"at full size: {token_bytes / 256e6:,.0f} shards of 256 MB,"
      f" and {8 * N / 1e9:.0f} GB of offsets that nobody needs")

longest = shards / trained[-1]["name"]
shutil.copy(longest, folder / "kept")
longest.write_bytes(longest.read_bytes()[:-2])
print("cut by a token:", *problems(shards))
shutil.move(folder / "kept", longest)
print("restored:", list(problems(shards)))

# %% [markdown]
# The manifest has each shard's rows and hash, the versions of transform, toolkit and
# vocabulary, the split's digest, and what was skipped. Its own digest is part of the run's
# identity. The trainer reads the manifest and never lists a bucket.
#
# ### Two bytes a token
#
# Ids up to 65,535 are ample: this corpus needs 42. But uint16 is a storage format.

# %%
ids = torch.from_numpy(np.fromfile(longest, "<u2")[:4])
attempts = {
    "embedding(ids)": lambda: nn.Embedding(len(vocabulary), 4)(ids),
    "ids > 4": lambda: ids > 4,
    "embedding(ids.long())": lambda: nn.Embedding(len(vocabulary), 4)(ids.long()),
}
lookups = {}
for name, attempt in attempts.items():
    try:
        lookups[name] = f"works, {tuple(attempt().shape)}"
    except Exception as error:
        lookups[name] = f"{type(error).__name__}: {str(error).partition(';')[0]}"
    print(f"{name:22} {lookups[name]}")
wrapped = np.array([65_535, 65_536, 70_000]).astype(np.uint16).tolist()
print("65535, 65536 and 70000 as uint16:", wrapped)

# %% [markdown]
# torch stores uint16 and computes little with it. So cast to int64 in the loader, per batch. A
# vocabulary that's too large wraps around and raises nothing, so check the maximum when you
# write, as `SmilesVocabulary` does.

# %% [markdown]
# ## Order and position
#
# An epoch visits 4.2 billion molecules in a random order, on any number of ranks, and resumes
# in the middle. How much state is that? First torch's sampler, which draws a permutation on
# each rank.

# %%
stock = DistributedSampler(range(100_000), num_replicas=64, rank=0)
per_sample = peak_of(lambda: next(iter(stock)))[1] / 100_000
print(f"DistributedSampler: {per_sample:.0f} bytes a sample,"
      f" {per_sample * N / 1e9:.0f} GB on each rank, extrapolated")

order = EpochOrder(int(N), seed=17, epoch=0)
began = time.perf_counter()
late, seek_bytes = peak_of(lambda: order.samples(int(N) - 4, int(N)))
seek_ms = 1e3 * (time.perf_counter() - began)
print(f"EpochOrder: the last four of {N:.1e} are {late.tolist()};"
      f" {seek_ms:.1f} ms, {seek_bytes / 1024:.0f} KiB")

DRAWS = 300_000
slots = order.samples(10**9, 10**9 + DRAWS)
repeated = DRAWS - len(np.unique(slots))
drawn = DRAWS - len(np.unique(np.random.default_rng(0).integers(int(N), size=DRAWS)))
print(f"{DRAWS:,} in a row: {repeated} repeats; random draws: {drawn},"
      f" {DRAWS**2 / 2 / N:.0f} expected")

# %% [markdown]
# `EpochOrder` is a keyed bijection on 0..n-1, a function of (n, seed, epoch) that finds any
# place without the ones before it. So the position is one integer, the number of completed
# steps, and a seek costs the same anywhere. Random draws would repeat about eleven times in
# that window, and a bijection never does. That's a spot check; the tests compare whole epochs
# of small n.
#
# ### Bins of one length class
#
# The trainer orders *bins*, rectangular batches of up to 8,192 tokens, as in chapter 31. But
# the plan there keeps a number for each item. With shards of one length, a bin's content is
# arithmetic.

# %%
class LengthClasses:
    """Bins of one length class each, in any epoch, from the counts of the classes alone."""

    def __init__(self, widths, counts, budget):
        self.widths, self.counts = np.array(widths), np.array(counts)
        self.rows = budget // self.widths  # molecules in a bin
        bins = -(-self.counts // self.rows)
        self.first_bin = np.concatenate([[0], np.cumsum(bins)])

    def __len__(self):
        return int(self.first_bin[-1])

    def class_of(self, bins):
        return np.searchsorted(self.first_bin, bins, side="right") - 1

    def sizes(self, bins):
        """How many molecules each bin has; only a class's last bin has fewer."""
        at = self.class_of(bins)
        first = (bins - self.first_bin[at]) * self.rows[at]
        return np.minimum(self.rows[at], self.counts[at] - first)

    def molecules(self, bin_id, seed, epoch):
        """The class of a bin, and its rows there."""
        at = int(self.class_of(bin_id))
        first = int(bin_id - self.first_bin[at]) * int(self.rows[at])
        own_seed = int(hash_words("length class", seed, at, count=1)[0])
        order = EpochOrder(int(self.counts[at]), seed=own_seed, epoch=epoch)
        return at, order.samples(first, first + int(self.sizes(bin_id)))


# %%
lengths = np.array([len(vocabulary.encode(each["canonical_smiles"])) for each in molecules])
widths, shares = np.unique(-(-lengths // 8) * 8, return_counts=True)
counts = np.round(N * shares / shares.sum()).astype(np.int64)  # as if all 4.2 billion were such
full = LengthClasses(widths, counts, BUDGET)
work = (full.rows * full.widths).tolist()
padding = 1 - lengths.sum() / (shares * widths).sum()
schedule = StepSchedule(len(full), BINS, max_epochs=10)
print(f"{len(full):,} bins of {min(work):,} to {max(work):,} tokens, {padding:.0%} padding")
stored = plan_batches(lengths, BUDGET).by_size.nbytes / len(lengths)
print(f"{schedule.steps_per_epoch:,} steps an epoch at these lengths; the plan is"
      f" {8 * 4 * len(widths):,} bytes, and chapter 31's would be {stored * N / 1e9:.0f} GB")
attention = max(widths) / (6 * WIDTH)
print(f"attention adds {attention:.0%} to the longest class, so equal tokens are equal work")


def dealt(position, ranks):
    """Each rank's bins in a step."""
    epoch, first, last = schedule.slots(position)
    bins = EpochOrder(len(full), seed=17, epoch=epoch).samples(first, last)
    return [bins[rank::ranks].tolist() for rank in range(ranks)]


before, after = dealt(123_456, 64), dealt(123_456, 48)
print(f"step 123,457: {len(before[0])} bins a rank on 64, {len(after[0])} on 48, the same"
      f" {BINS}: {sorted(sum(before, [])) == sorted(sum(after, []))}")
epoch, _, _ = schedule.slots(123_456)
at, found = full.molecules(before[5][0], seed=17, epoch=epoch)
print(f"rank 5 starts with bin {before[5][0]:,}: {len(found)} rows of width {widths[at]},"
      f" the first is {found[0]:,}")

# %% [markdown]
# Read that from the end. A rank that joins at step 123,457 knows which rows to read, from one
# integer and a plan of half a kilobyte.
#
# - **Ranks.** The step's 192 bins exist before the ranks do. 192 is three each on 64 ranks and
#   four on 48. With a number that has few divisors, some ranks would idle in every step.
# - **Workers.** The sampler runs in the rank's main process and hands whole bins to the
#   workers, so they don't appear in the arithmetic. In a streaming dataset they would (chapter
#   20). What they've prefetched isn't in the position, which counts completed steps.
# - **Reads.** They're random: a bin has a row from here and one from there. That's fine on a
#   local disk. From an object store I'd order shards instead, and shuffle within a buffer.
# - **Global batch.** 1.6 million tokens, on any number of ranks. So the learning rate stays,
#   too.

# %% [markdown]
# ## The run, killed and resumed
#
# Here's the plan as a task for this project's trainer, which orders bins, deals them, counts
# steps and saves. The task says what's in a bin. How many tokens are masked follows from the
# class and not from the molecule, so each rank knows the step's loss terms without a
# collective.

# %% collapsed=true
#@title What the trainer is handed: a batch of rows, and an encoder for them
@dataclass(frozen=True, slots=True)
class Rows(TensorBatch):
    """Molecules of one length class."""

    tokens: torch.Tensor  # (B, T) int64

    def __len__(self):
        return len(self.tokens)

    def placeholder(self):
        return Rows(torch.full((1, 8), BOS_ID, device=self.tokens.device))


class SmilesEncoder(nn.Module):
    """The track's encoder with a vocabulary of SMILES."""

    def __init__(self, cfg, vocabulary_size):
        super().__init__()
        self.encoder = ProteinEncoder(cfg.hidden_dim, cfg.num_layers, 2, padding_id=PAD_ID)
        self.encoder.tokens = nn.Embedding(vocabulary_size, cfg.hidden_dim)
        self.encoder.head[1] = nn.Linear(cfg.hidden_dim, vocabulary_size)

    def forward(self, batch):
        return self.encoder(batch.tokens)

# %%
class MaskedSmiles:
    """Bins of the training shards, with masks drawn anew in each epoch."""

    def __init__(self, place, budget):
        if found := next(problems(place), None):
            raise UserError(f"{found}. Copy the shard again.")
        text = (place / "manifest.json").read_bytes()
        manifest = json.loads(text)
        shards = [shard for shard in manifest["shards"] if shard["side"] == "train"]
        widths, counts = ([shard[name] for shard in shards] for name in ("width", "rows"))
        self.plan = LengthClasses(widths, counts, budget)
        self.masked = np.maximum(1, self.plan.widths * 15 // 100)  # in each molecule of a class
        self.shards = [
            np.memmap(place / shard["name"], "<u2", "r").reshape(-1, shard["width"])
            for shard in shards
        ]
        self.num_classes = manifest["vocabulary_size"]
        self.fingerprint = hashlib.sha256(text + str(budget).encode()).hexdigest()

    def __len__(self):
        return len(self.plan)

    def visit(self, keys, seed):
        """The bins of ``keys``, at most one; a pure function of (seed, epoch, bin)."""
        if not keys:
            return Rows(torch.zeros(0, 8).long()), torch.zeros(0, 8).long()
        [(epoch, bin_id)] = keys
        at, rows = self.plan.molecules(bin_id, seed, epoch)
        tokens = self.shards[at][rows].astype(np.int64)  # the cast
        random = np.random.default_rng(hash_words("masks", seed, epoch, bin_id, count=4))
        # Special tokens come last, and are never asked for.
        places = np.where(tokens < len(SPECIAL_TOKENS), 2, random.random(tokens.shape))
        hidden = places.argsort(axis=1)[:, : self.masked[at]]
        targets = np.full_like(tokens, -100)
        np.put_along_axis(targets, hidden, np.take_along_axis(tokens, hidden, 1), 1)
        np.put_along_axis(tokens, hidden, MASK_ID, 1)
        return Rows(torch.from_numpy(tokens)), torch.from_numpy(targets)

    def batch(self, samples):
        return self.visit([SampleKey(0, int(sample)) for sample in samples], 0)

    def num_terms(self, bins):
        return int((self.plan.sizes(bins) * self.masked[self.plan.class_of(bins)]).sum())

    def build_model(self, cfg):
        return SmilesEncoder(cfg, self.num_classes)

    def summed_loss(self, outputs, targets):
        return summed_token_loss(outputs, targets)

# %%
task = MaskedSmiles(shards, budget=400)
visits = collections.Counter()
for bin_id in range(len(task)):
    at, rows_of_bin = task.plan.molecules(bin_id, seed=17, epoch=0)
    visits.update((at, row) for row in rows_of_bin.tolist())
print(f"{len(task)} bins have {len(visits)} of {split.counts[0]} molecules,"
      f" visited {set(visits.values())} times")
terms = [int((task.visit([SampleKey(0, b)], 17)[1] >= 0).sum()) for b in range(len(task))]
planned = [task.num_terms(np.array([b])) for b in range(len(task))]
print("loss terms, counted without data, are right:", terms == planned)

# %% collapsed=true
#@title The flags of the run, and how it's started
def pretrain(place, run_dir):
    """On a rank: the trainer's own loop, with our task in place of one that --data names."""
    from trainer_core.bio import launch
    from trainer_core.bio.config import BioConfig

    launch.build_task = lambda cfg: MaskedSmiles(Path(place), budget=400)
    flags = {"data": f"molecules:{place}", "device": "cpu", "seed": 17, "trace_steps": 0}
    flags |= {"pinned_global_batch_size": 6, "micro_batch_size": 1, "max_epochs": 2}
    flags |= {"hidden_dim": 32, "num_layers": 1, "checkpoint_every_steps": 4}
    return launch.run_task(BioConfig(run_dir=Path(run_dir), **flags))


def start(name, ranks, fault=None, place=shards):
    """Start or resume a run, and say how each rank ended."""
    options = {"in_group": False, "fault": fault, "deadline_s": 120}
    reports = watch_ranks(pretrain, ranks, str(place), str(folder / name), **options)
    for report in reports:
        ended = restarts.how_it_ended(report).replace(f"{folder}/", "")
        print(f"  rank {report.rank}: {ended[:96]}")
    return reports


# %%
print("two ranks, one killed after step 15:")
start("killed", 2, Fault.after_step(15, rank=1))
print("the same command on three ranks:")
resumed = answers_of(start("killed", 3), "the trainer", 120)[0]
print("an uninterrupted run, on two ranks:")
whole = answers_of(start("whole", 2), "the trainer", 120)[0]
report = audit_run(folder / "killed")
print(f"audit: {report.status}, {report.replayed_steps} steps replayed; {report.verdict}")
last = f"checkpoints/step-{whole['step']:08}/state.pt"
states = [torch.load(folder / name / last, weights_only=True) for name in ("killed", "whole")]
pairs = zip(*(state["model"].values() for state in states))
apart = max((one - other).abs().max().item() for one, other in pairs)
print(f"loss {resumed['loss']:.4f}, and {whole['loss']:.4f} uninterrupted;"
      f" weights at most {apart:.0e} apart")
print("where the data is, in the checkpoint:", states[0]["sampler"])
restarts.restart_picture({"SIGKILL after step 15": folder / "killed"})

# %% [markdown]
# Rank 1 died, rank 0's next collective failed, and the same command on three ranks continued
# from step 12. The audit reads the ledger, which has each rank's bins for each completed step,
# and proves that every bin was trained exactly once in what survived. The weights agree to
# rounding and not to the bit, because three ranks add up gradients in a different order.
#
# Now somebody changes the data, and resumes.

# %%
newer = manifest | {"transform": "smiles-v2"}
shutil.copytree(shards, folder / "new-shards")
(folder / "new-shards" / "manifest.json").write_text(json.dumps(newer, indent=1))
refused = start("killed", 2, place=folder / "new-shards")

# %% [markdown]
# ### What's in a checkpoint, and how often
#
# | in it | not in it |
# |---|---|
# | weights, optimizer state, step, each rank's random state | tokens, or a shuffle buffer |
# | the position: one integer | positions per rank or per worker |
# | digests of manifest and config, code version, world size | a demand for that world size |

# %%
state_gb = 12 * parameters / 1e9  # fp32 weights and Adam's two moments
interruptions = sum(count for _, count in failures.LLAMA_3.values())
per_gpu_h = 24 * failures.LLAMA_3_DAYS * failures.LLAMA_3_GPUS / interruptions
mtbf_s = job_mtbf_s(per_gpu_h, 64)
SAVE_S = 5  # how long a save of a gigabyte holds up the job, assumed
print(f"a checkpoint has {state_gb:.1f} GB; a job on 64 GPUs fails every"
      f" {mtbf_s / 86400:.0f} days,"
      f" so save every {young_interval(SAVE_S, mtbf_s) / 60:.0f} min by Young's formula")
print(f"every 15 min costs {SAVE_S / 900:.1%} and loses at most 15 min of 64 GPUs")

# %% [markdown]
# That's the failure rate that [Llama 3](https://arxiv.org/abs/2407.21783) published, scaled
# down to 64 GPUs. It's so low that preemption decides. So the interval is an RPO: every 15
# minutes, and on SIGTERM.

# %% [markdown]
# ## Is the model any good?
#
# Pretraining needs two kinds of evaluation: a cheap one every few hours, and one that decides.
# The cheap one is the token loss on held-out scaffolds. Why not on random rows? A 6-gram model
# is enough to show it.

# %% collapsed=true
#@title A model of the next token that backs off to shorter contexts
def ngram_loss(known, asked, order=6):
    """Mean loss of a token given those before it, backing off to shorter contexts."""
    seen = collections.defaultdict(collections.Counter)
    for ids in known:
        for place, token in enumerate(ids):
            for length in range(min(order, place + 1)):
                seen[ids[place - length : place]][token] += 1
    total = tokens = 0
    for ids in asked:
        for place, token in enumerate(ids):
            chance = 1 / len(vocabulary)
            for length in range(min(order, place + 1)):
                after = seen.get(ids[place - length : place], {})
                weight = sum(after.values()) if after else 0
                chance = (chance * 2 + after.get(token, 0)) / (weight + 2) if after else chance
            total, tokens = total - math.log(chance), tokens + 1
    return total / tokens


texts_of = [tuple(vocabulary.encode(each["canonical_smiles"]).tolist()) for each in molecules]
groups = np.unique(group_keys, return_inverse=True)[1]
random = np.random.default_rng(0)
folds = {
    "random rows": random.integers(3, size=len(molecules)),
    "scaffolds": random.integers(3, size=groups.max() + 1)[groups],
}

# %%
token_losses = {}
for name, fold_of in folds.items():
    losses = []
    for fold in range(3):  # so each molecule is scored once, and the two are comparable
        known, asked = (
            [t for t, at in zip(texts_of, fold_of) if (at == fold) == held] for held in (0, 1)
        )
        losses.append(ngram_loss(known, asked))
    token_losses[name] = np.mean(losses)
    print(f"held out by {name:11} loss {token_losses[name]:.2f} per token")

# %% [markdown]
# On random rows, the model has seen the scaffold, spelled the same way.
#
# Also say what a scaffold split can't do. Change one atom in a ring, and it's a new scaffold.
# And a lower token loss says nothing about activity. What decides is downstream: assays, split
# by time or by scaffold, per task, against fingerprints with a simple model and against the
# same encoder without pretraining. If it doesn't beat both, the run wasn't worth its bill.
# Molecules of those test sets stay out of pretraining, by `compound_id`.
#
# **Watch** step time by phase, tokens per second and rank, token loss by length class and
# source, held-out loss, skip rate by source, checkpoint age, and the audit while the run goes
# on.

# %% [markdown]
# ## What breaks
#
# | fault | symptom | first look | restart scope |
# |---|---|---|---|
# | a rank dies | others raise or hang in a collective | the first exit code | the job, from the latest good checkpoint |
# | a node is lost | the same, on all its ranks | the scheduler's events | the job, on fewer ranks, same batch |
# | a shard is cut, or a bit flips | size or hash differs | the manifest check | copy the shard, resume |
# | new tokenizer, old shards | ids valid, loss higher | the vocabulary's hash | none: refuse to start |
# | a vendor changes units | one source's labels drift | histogram by source | that file, new manifest |
# | merged after the split | held-out loss too good | `compound_id` on both sides | new split, start over |
# | one scaffold is huge | one task never ends | rows of its largest key | that task |
# | a resize repeats data | nothing | the audit | the last checkpoint before it |
#
# Half of them raise nothing. Plant each once, and see its detector fire. Here are two.

# %%
by_text = SmilesVocabulary(sorted(vocabulary.tokens[len(SPECIAL_TOKENS) :]))  # another order
stored = vocabulary.encode(molecules[0]["canonical_smiles"])
print("written:", vocabulary.decode(stored))
print("read   :", by_text.decode(stored))
print(f"ids in range: {stored.max() < len(by_text)}; vocabularies equal:"
      f" {vocabulary.tokens == by_text.tokens}")

held = np.random.default_rng(0).random(len(valid)) < 0.2
both = [{r["compound_id"] for r, h in zip(valid, held) if h == side} for side in (False, True)]
leaked = len(both[0] & both[1])
print(f"split by row before merging: {leaked} of {len(both[1])} held-out molecules are also"
      " trained on")

# %% [markdown]
# ## Why DDP first, and when not
#
# The number of molecules says nothing about how to split a model. The state is 1.4 of 80 GB, so
# sharding it would add communication and buy nothing. Replicas also make recovery simple: any
# rank can write the checkpoint, and any number of ranks can load it. I'd leave DDP on a
# measurement:
#
# - **Peak memory** forces a micro-batch that starves the GPU: activation checkpointing, then
#   FSDP. At 3 billion parameters, the state alone is 48 GB.
# - **The all-reduce** isn't hidden anymore: bf16 gradients, and fewer, fuller steps. FSDP would
#   add traffic.
# - **One sample** doesn't fit: a problem of proteins, not of SMILES (chapter 31).
#
# ## What I leave out on purpose
#
# A service that streams tokens, since they fit on a disk. A feature store. More axes of
# parallelism. Elastic membership, since failures are weeks apart and a restart is cheap.
# Bit-identical replay on another world size: I promise the same samples. Scheduler, credentials
# and dashboards stay interfaces. What I wouldn't leave out is the audit.

# %% [markdown]
# ## The answer in two minutes
#
# > "The arithmetic first. 30 terabytes over 4.2 billion is 7 kilobytes a row, and the model
# > needs 50 tokens of two bytes. That's 420 gigabytes, 70 times less. A pass is about 90
# > GPU-hours for a BERT-sized encoder, an hour and a half on 64 GPUs. Standardizing is one to
# > three thousand core-hours. So it's a data problem, and I'd do everything deterministic once, offline.
# >
# > Preparation is a batch job of idempotent tasks: standardize, canonicalize, find the
# > scaffold, tokenize, count what fails by source. Then two shuffles. The first is by a 128-bit
# > hash of the molecule, and merges duplicates with their sources and labels. The second is by
# > scaffold, and gives each row its side. Memory is bounded by chunk and partition.
# >
# > The output is immutable shards, one length class each, with rows of fixed width in uint16,
# > and a manifest with hashes, versions and the split. Held-out scaffolds have shards of their
# > own.
# >
# > Training is plain DDP, because the state is two percent of a GPU. The order of an epoch is a
# > pure function of seed and epoch, over bins of equal work. The position is one integer. Ranks
# > slice each step, so the world size can change and the global batch doesn't.
# >
# > A checkpoint has the training state, that integer, and the digests of data and config. It's
# > published atomically, every 15 minutes. If a rank dies, the whole job restarts from it, and
# > a resume on other data is refused. An audit of the ledger proves that each bin was trained
# > once, across a kill and a resize.
# >
# > Quality is token loss on held-out scaffolds every few hours. What decides is assays, against
# > fingerprints. I'd leave DDP when memory says so, and what I'd build last is FSDP."
#
# ## They may ask
#
# - **"Isn't random access slow?"** "100 bytes cost a page of 4 kB. On 64 GPUs it's 110,000
#   reads a second per node, 450 MB/s. I'd hold that against the drive's rated random reads, or
#   keep it in memory. If data wait isn't near zero, I shuffle offline and read blocks."
# - **"A vendor withdraws its file."** "`source_partition` says which molecules came *only* from
#   there. New manifest without them. The ledger and the plan of bins say which runs saw them."
# - **"The new toolkit writes 0.3% of the SMILES differently."** "Then it's new data, under a
#   new version. Ids don't move, since they're stored. I rerun the merge and the split, after
#   comparing a thousand sampled rows. The old run stays on the old manifest."
# - **"Your split is by hash. Benzene may be held out."** "It may, with all its rows. So I look
#   at the counts before I publish, pin heavy groups to training, and store the rule."

# %% [markdown]
# ## Say it in 60 seconds
#
# > "4.2 billion molecules are 30 terabytes of tables and 420 gigabytes of tokens. So I
# > featurize once, about 1,200 core-hours, and training is the small part: 90 GPU-hours a pass.
# >
# > Before the split I merge by a 128-bit key, since vendors sell the same compounds. Scaffolds
# > are grouped by a distributed shuffle in bounded memory. Shards are immutable and hold one
# > length class, and the manifest has hashes, versions and the split.
# >
# > Training is DDP, because the model fits. The order is a function of seed and epoch, the
# > position is one integer, and ranks slice each step, so 48 can continue what 64 began. I
# > prove it: kill a rank, resume elsewhere, audit the ledger.
# >
# > I judge on held-out scaffolds and decide on assays, against fingerprints. My extrapolations
# > are named, and I run a tenth before I run all of it."

# %% [markdown]
# ## Three questions
#
# **"How do you group 4.2 billion rows by scaffold?"**
#
# - *Weak:* "With a dict on a machine with a terabyte of memory, or one groupBy in Spark."
# - *Strong:* "Through files, partitioned by a hash of the key. A partition has all rows of its
#   scaffolds, so it's counted alone, and the sides travel back the same way. Keys are 16 bytes
#   a row, 67 gigabytes. Reads are chunks times partitions, so I let the size of both grow with
#   the square root of the rows. A heavy scaffold makes one file longer, and I read that in pieces."
# - *What would prove me wrong:* peak memory and reads per row at a tenth and at half of the
#   data.
#
# **"A rank dies in mid-epoch, and you get only 48 of your 64 GPUs back. What happens?"**
#
# - *Weak:* "Each rank restores its sampler's state from the checkpoint and continues."
# - *Strong:* "There's no state per rank to restore. A step's 192 bins are a function of seed,
#   epoch and step. 48 ranks take four each instead of three, so the global batch and the
#   learning rate stay. We lose at most 15 minutes. The losses agree to rounding, because sums
#   are in a different order."
# - *What would prove me wrong:* the ledger. After the restart, the bins of all ranks together,
#   step by step, against an uninterrupted run's. One difference is enough.
#
# **"You measured 10 million rows and plan for 4.2 billion. Why should I believe you?"**
#
# - *Weak:* "It's linear, so it takes 420 times as long."
# - *Strong:* "Don't, yet. CPU time is linear in the rows. Reads are three passes of chunks times partitions, 700 million
#   with the benchmark's settings, and I can fix that on paper. What I can't know on paper is
#   the disk and the heaviest key. So I'd run 1% and 10% first."
# - *What would prove me wrong:* CPU-seconds per million rows at 1% and at 10%. If they differ
#   by more than a fifth, I've missed a term.

# %% [markdown]
# ## Practice it
#
# - Drills: [split_by_scaffold](../drills/610_split_by_scaffold.ipynb),
#   [bucket_for_equal_steps](../drills/620_bucket_for_equal_steps.ipynb),
#   [pack_to_a_budget](../drills/680_pack_to_a_budget.ipynb),
#   [batch_graphs](../drills/630_batch_graphs.ipynb),
#   [resized_restart_repeats_samples](../drills/235_resized_restart_repeats_samples.ipynb).
# - Before it: chapters [20](20_data_at_scale.ipynb) and [30](30_molecular_data.ipynb).
# - The code: `trainer_core/bio/scaffold_groups.py`, `exchange.py` and `bins.py`.
# - The cards: `ask(topic="billion_molecules")` in [03_deck](../03_deck.ipynb).
