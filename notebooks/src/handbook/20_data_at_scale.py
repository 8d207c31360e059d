# %% [markdown]
# # 20. Data at scale
#
# {{badge}}
#
# > "The model stays plain data parallel. What changes at a petabyte is the data plane. I never
# > train from billions of files: I write immutable shards with a manifest, read them in long
# > pieces, and shuffle shards plus a buffer. The position is a cursor that survives a change of
# > ranks. And I do bytes per second before I draw anything, because that decides the rest."
#
# *Twenty-three minutes to read. Two examples run through it: 9.5 billion images, and 4.2 billion
# molecules. The large numbers are arithmetic or published, with links. The rest is measured here,
# on small data.*

# %% collapsed=true
# {{setup torch numpy matplotlib cloudpickle platformdirs fsrs rehearsal}}

# %% collapsed=true
#@title Imports
import collections
import hashlib
import io
import itertools
import json
import os
import random
import re
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from rehearsal.handbook import data_plane
from rehearsal.handbook.diagrams import diagram
from rehearsal.handbook.on_ranks import on_ranks

FAST = os.environ.get("FAST") == "1"  # fewer repetitions
folder = Path(tempfile.mkdtemp(prefix="handbook-"))

# %% [markdown]
# ## Bytes per second, before anything else
#
# The images are 1.4 PB of JPEG and WebP with captions, for a vision transformer that fits one GPU.
# The molecules are 30 TB of compressed tables: SMILES strings, vendor metadata, sparse assay labels.

# %%
KB, GB, TB, PB = 1e3, 1e9, 1e12, 1e15
IMAGES, COMPOUNDS, GPUS, IMAGES_PER_S = 9.5e9, 4.2e9, 512, 500  # images per second and GPU

image_bytes = 1.4 * PB / IMAGES
images_per_s = GPUS * IMAGES_PER_S
bytes_per_s = images_per_s * image_bytes
token_bytes = COMPOUNDS * 50 * 2  # 50 tokens of 16 bits
print(f"an image has {image_bytes / KB:.0f} kB; {GPUS} GPUs need {images_per_s:,} per second")
print(f"that is {bytes_per_s / GB:.0f} GB/s, {bytes_per_s / 64 / GB:.2f} GB/s per node of 8")
print(f"one pass takes {IMAGES / images_per_s / 3600:.1f} h: 1.4 million shards of 1 GB")
print(f"a compound has {30 * TB / COMPOUNDS / KB:.1f} kB raw and 100 bytes as tokens:")
times = 30 * TB / token_bytes
print(f"{token_bytes / GB:.0f} GB in total, {times:.0f} times less than the tables")

# %% [markdown]
# These lines already decide a lot. 38 GB/s is a storage system, not a disk, so the images need
# caches and long reads. The molecules shrink to 420 GB: every node can keep all of them on a local
# disk, and featurizing online would be the mistake.

# %%
diagram("data_plane")

# %% [markdown]
# ## Shards, not files
#
# Here are 2,000 samples twice: as files, and as one shard, their bytes one after another. Both
# readers return the same bytes. The calls are what differs.

# %%
rng = random.Random(0)
samples = [rng.randbytes(rng.randint(4_000, 12_000)) for _ in range(2000)]
paths = [folder / f"{number}.bin" for number in range(len(samples))]
for path, content in zip(paths, samples):
    path.write_bytes(content)
shard = folder / "all.shard"
shard.write_bytes(b"".join(samples))


def read_files(calls):
    for path in random.Random(1).sample(paths, len(paths)):  # shuffled, as training reads them
        file = os.open(path, os.O_RDONLY)
        calls["opens"] += 1
        yield os.read(file, 1 << 20)
        calls["reads"] += 1
        os.close(file)


def read_shard(calls):
    file, pieces = os.open(shard, os.O_RDONLY), []
    calls["opens"] += 1
    while piece := os.read(file, 1 << 20):
        pieces.append(piece)
        calls["reads"] += 1
    os.close(file)
    content, ends = b"".join(pieces), itertools.accumulate(map(len, samples), initial=0)
    for first, end in itertools.pairwise(ends):
        yield content[first:end]


# %%
counted = {}
for reader in (read_files, read_shard):
    calls, began = collections.Counter(), time.process_time()
    got = sorted(hashlib.sha256(content).digest() for content in reader(calls))
    counted[reader.__name__] = dict(calls), got
    seconds = time.process_time() - began
    print(f"{reader.__name__:10} {dict(calls)}, {seconds:.2f} s of CPU time")

# %% [markdown]
# The times say little, because both come from this machine's memory. The counts say it all, because
# on an object store each call is a request with a latency. S3 publishes [5,500 GETs per
# second and prefix, and roughly 100 to 200 ms](https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html)
# until the first byte.

# %%
for name, requests_per_s in (
    ("one GET per image", images_per_s),
    ("ranges of 16 MB", bytes_per_s / 16e6),
):
    prefixes = requests_per_s / data_plane.GETS_PER_S_AND_PREFIX
    in_flight = [round(requests_per_s * seconds) for seconds in data_plane.FIRST_BYTE_S]
    usd = requests_per_s * IMAGES / images_per_s * data_plane.USD_PER_GET
    print(f"{name:18} {requests_per_s:9,.0f} requests/s, {prefixes:5.1f} prefixes,"
          f" {in_flight[0]:6,} to {in_flight[1]:6,} in flight, ${usd:,.0f} a pass")

# %% [markdown]
# A shard also gives you a unit: for the cache, for scheduling, for a hash, for a retry. Between 100
# MB and a few GB is usual. Too small and you're back at requests; too large and a worker's share
# gets lumpy. Shards are immutable. To change data, write new shards and a new manifest.
#
# > "Shards turn a metadata problem into a bandwidth problem. Bandwidth I can buy."

# %% [markdown]
# ## The manifest is the dataset
#
# Inside a shard, each sample carries what later steps would otherwise have to compute:
#
# | kind of sample | identity and provenance | content | for routing, without decoding |
# |---|---|---|---|
# | images | `sample_id`, `shard_id` | bytes, `caption`, `label` | `width`, `height`, `mime_type`, `quality_flags` |
# | molecules | `compound_id`, `source_partition` | `token_ids`, `labels` | `token_length`, `murcko_scaffold`, `quality_flags` |
#
# The id is the key for deduplication and for the ledger. A manifest has one line per shard: name,
# samples, bytes, hash, and enough statistics to route work without opening anything. Its own hash
# is the version of the dataset. Flags are counted per shard, so the filter policy can be evaluated
# before a byte is read.

# %%
CORRUPT, NSFW, DUPLICATE = 1, 2, 4  # bits of quality_flags


def write_shard(name, content, flags):
    path = folder / name
    path.write_bytes(b"".join(content))
    entry = {"name": name, "samples": len(content), "bytes": path.stat().st_size}
    entry["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    entry["flags"] = dict(collections.Counter(map(str, flags)))
    return entry


def problems(manifest):
    """Which shards aren't what the manifest says, by size first and then by hash."""
    for entry in manifest:
        path = folder / entry["name"]
        if path.stat().st_size != entry["bytes"]:
            yield f"{path.name} has {path.stat().st_size:,} bytes instead of {entry['bytes']:,}"
        elif hashlib.sha256(path.read_bytes()).hexdigest() != entry["sha256"]:
            yield f"{path.name} doesn't match its hash"


def usable(manifest, drop):
    """How many samples a filter policy leaves, without opening a shard."""
    flags = ((int(flag), n) for entry in manifest for flag, n in entry["flags"].items())
    return sum(n for flag, n in flags if not flag & drop)


# %%
flags = [rng.choice([0] * 17 + [CORRUPT, NSFW, DUPLICATE]) for _ in samples]
parts = [slice(250 * number, 250 * number + 250) for number in range(8)]
manifest = [
    write_shard(f"{number:05}.shard", samples[part], flags[part])
    for number, part in enumerate(parts)
]
print(f"{usable(manifest, 0)} samples, {usable(manifest, CORRUPT | DUPLICATE)} after filtering")
os.truncate(folder / "00003.shard", manifest[3]["bytes"] - 1)
with open(folder / "00005.shard", "r+b") as file:
    file.write(b"\0")
found = list(problems(manifest))
print(*found, sep="\n")

# %% [markdown]
# The size check costs one listing, so do it for all shards at the start. Check the hash when a
# shard enters the cache.
#
# The config names all of that, and so it's a *data contract*: whoever has it knows what the run
# trained on. Its digest goes into every checkpoint, and a resume with a different one is refused.

# %%
class DataContract(NamedTuple):
    manifest_uri: str
    manifest_version: str  # a hash, not a date
    drop_flags: int  # the filter policy
    transform_version: str
    seed: int
    global_batch_size: int

    def digest(self):
        text = json.dumps(self._asdict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


version = hashlib.sha256(json.dumps(manifest).encode()).hexdigest()[:12]
contract = DataContract(
    manifest_uri="s3://bucket/images/manifest.json",
    manifest_version=version,
    drop_flags=CORRUPT | DUPLICATE,
    transform_version="resize-256-v3",
    seed=17,
    global_batch_size=8192,
)
changed = contract._replace(drop_flags=CORRUPT | DUPLICATE | NSFW)
print(contract.digest(), "before,", changed.digest(), "with a stricter filter")

# %% [markdown]
# ## Who reads which shard
#
# A streaming dataset is iterated in every loader worker of every rank, and each of them has its own
# copy of your dataset object. If nobody tells them apart, everybody reads everything. Below are two
# real ranks with two workers each, and four ways to choose a worker's shards.

# %%
SHARDS = [list(range(8 * number, 8 * number + 8)) for number in range(8)]


class Stream(IterableDataset):
    def __init__(self, first_and_step):
        self.first_and_step = first_and_step

    def __iter__(self):
        worker = get_worker_info()
        first, step = self.first_and_step(
            dist.get_rank(), dist.get_world_size(), worker.id, worker.num_workers
        )
        for content in SHARDS[first::step]:
            yield from content


def epoch_of(first_and_step):
    stream = Stream(first_and_step)
    loader = DataLoader(stream, batch_size=4, num_workers=2, multiprocessing_context="fork")
    return [sample for batch in loader for sample in batch.tolist()]


# %%
RULES = {
    "all of them": lambda rank, ranks, worker, workers: (0, 1),
    "by rank": lambda rank, ranks, worker, workers: (rank, ranks),
    "by worker": lambda rank, ranks, worker, workers: (worker, workers),
    "by both": lambda rank, ranks, worker, workers: (rank * workers + worker, ranks * workers),
}
visits = {}
for name, rule in RULES.items():
    shares = on_ranks(epoch_of, 2, rule)
    visits[name] = seen = collections.Counter(sum(shares, []))
    print(f"{name:12} {len(seen)} of 64 samples, {set(seen.values())} visits each")

# %% [markdown]
# "By rank" is the popular half of the fix: it's right until somebody raises `num_workers`. The rule
# is `rank * num_workers + worker_id`, out of `world_size * num_workers`.
#
# Count the shards, too. With 8 shards for 4 ranks of 4 workers, half of the workers have nothing to
# do. And if shards aren't equally large, one rank runs out first, and the others hang in a
# collective that it never joins. That hang is in chapter 18.

# %% [markdown]
# ## A cursor that survives a resize
#
# Now the resume. The obvious cursor is per rank: its list of shards, and how far it is. It works
# until the number of ranks changes, because then every list changes.
#
# The fix is to cut the data for a fixed number of *streams*, which has nothing to do with the ranks.
# Each stream has its shards in an order that depends on seed and epoch. Each step takes the same
# number of samples from every stream, and the ranks share the streams. Then the cursor is one
# integer, the step. It gives every stream its place in the order of its shards, and its offset.
# MosaicML's [Streaming](https://docs.mosaicml.com/projects/streaming/en/stable/dataset_configuration/shuffling.html)
# calls them canonical nodes.

# %%
STREAMS, GLOBAL_BATCH = 12, 24
all_shards = [range(first, first + 8) for first in range(0, 192, 8)]


def shuffled_samples(shards, key):
    """The samples of these shards, shuffled in two steps: the shards, then within each."""
    rng = random.Random(f"seed 17, epoch 0, {key}")
    order = rng.sample(shards, len(shards))
    return [sample for shard in order for sample in rng.sample(shard, len(shard))]


def by_rank(rank, ranks, step):
    """The obvious way: a rank's own shards, and a position in them."""
    each = GLOBAL_BATCH // ranks
    return shuffled_samples(all_shards[rank::ranks], rank)[step * each : (step + 1) * each]


def by_stream(rank, ranks, step):
    """Streams don't depend on the ranks, and the cursor is the step."""
    each = GLOBAL_BATCH // STREAMS
    for stream in range(rank, STREAMS, ranks):
        order = shuffled_samples(all_shards[stream::STREAMS], stream)
        yield from order[step * each : (step + 1) * each]


# %%
def records(deal, attempts):
    """What the ranks train on; ``attempts`` are numbers of ranks and the steps they take."""
    return [
        {"rank": rank, "epoch": 0, "step": step + 1, "samples": list(deal(rank, ranks, step))}
        for ranks, steps in attempts
        for step in steps
        for rank in range(ranks)
    ]


attempts = [(2, range(3)), (3, range(3, 8))]  # killed after step 3, resumed on three ranks
maps = {"per rank": records(by_rank, attempts), "12 streams": records(by_stream, attempts)}
data_plane.cursor_maps(maps, 192)

# %% [markdown]
# On the left, three ranks don't have the lists that two had, so a position in an old list means
# nothing in a new one. On the right, each step has the same 24 samples on any number of ranks that
# divides 12. Choose a number of streams with many divisors, and a multiple of the largest job that
# you plan.
#
# A cursor must also be a *seek*: from the step to a shard and an offset, without reading anything.
# Iterating until you're back where you were reads the whole prefix again.

# %%
def seek(step, samples_per_shard=8):
    """Where each stream continues: the place in its order of shards, and the offset there."""
    return divmod(step * GLOBAL_BATCH // STREAMS, samples_per_shard)


print("after step 5, each stream is in shard {} of its order, at sample {}".format(*seek(5)))
steps_done, batch_size = 100_000, 8192
skipped_bytes = steps_done * batch_size * image_bytes
print(f"{skipped_bytes / TB:.0f} TB read only to throw them away:"
      f" {skipped_bytes / bytes_per_s / 60:.0f} min of 38 GB/s, for a resume in mid-epoch")

# %% [markdown]
# One more trap: the shuffle buffer. Its content has been read and not trained on. Save it, refill it
# from further back, or shuffle without one, from the seed, as above.

# %% [markdown]
# ## Shuffle quality and read size
#
# Long reads and good shuffling pull against each other. The usual compromise: shuffle the order of
# the reads, stream them through a buffer, and draw from the buffer at random. How good is that?
#
# People measure how far samples moved, or the correlation of old and new position. Those measures
# are satisfied early. What SGD sees is a *batch*. So take data that's sorted, as a crawl is, and
# compare the variance of a batch's mean with that of a random batch. Statisticians call this ratio
# the design effect. 1 is perfect. If a batch comes from one read, it's as large as the batch: 128
# samples tell you as much as one.

# %%
N, BATCH = 2**15, 128


def shuffled(read, buffer, seed=0, num=N):
    """Positions in the order of training: reads in random order, then a buffer."""
    rng = np.random.default_rng(seed)
    order = np.arange(num).reshape(-1, read)
    order = order[rng.permutation(len(order))].ravel()
    held, out = order[:buffer].copy(), np.empty(num, dtype=np.int64)
    for at, slot in enumerate(rng.integers(0, buffer, num - buffer)):
        out[at], held[slot] = held[slot], order[buffer + at]
    out[num - buffer :] = rng.permutation(held)
    return out


def design_effect(order):
    means = order.reshape(-1, BATCH).mean(axis=1)
    return means.var() / (order.var() / BATCH)


READS, BUFFERS = (1, 16, 64, 256, 1024, 4096), (1, 512, 4096)
orders = {buffer: {read: shuffled(read, buffer) for read in READS} for buffer in BUFFERS}
effects = {
    buffer: {read: design_effect(order) for read, order in by_read.items()}
    for buffer, by_read in orders.items()
}
moved = np.corrcoef(np.arange(N), orders[1][256])[0, 1]
print(f"reads of 256, no buffer: correlation {moved:.2f}, design effect {effects[1][256]:.0f}")
data_plane.shuffle_picture(effects, BATCH, N)

# %% [markdown]
# A correlation of 0.06 calls the worst case nearly perfect. The design effect comes with a rule to
# say aloud, good to a factor of two: **one plus read times batch, over twice the buffer**. A read is
# spread over as many batches as the buffer holds. So for reads of 256 and batches of 128, a buffer
# of 16,000 makes it 2.
#
# `batch` is the part of the global batch that comes through one buffer. So eight ranks with a small
# buffer each are at least as good as one with a buffer of eight times the size:

# %%
reads_of_256 = np.arange(N).reshape(-1, 256)
ranks = [reads_of_256[rank::8].ravel()[shuffled(256, 512, rank, N // 8)] for rank in range(8)]
together = design_effect(np.stack(ranks, axis=1).ravel())
print(f"8 ranks, buffers of 512: {together:.1f}; one buffer of 4096: {effects[4096][256]:.1f}")

# %% [markdown]
# More loader workers in a rank don't help in the same way, because torch's loader takes each batch
# from one worker.
#
# Does it matter for the model? Eight classes, sorted by class, one pass.

# %%
generator = torch.Generator().manual_seed(0)
centers = 0.6 * torch.randn(8, 16, generator=generator)


def draw(labels):
    return centers[labels] + torch.randn(len(labels), 16, generator=generator), labels


inputs, labels = draw(torch.arange(N) * 8 // N)
test_inputs, test_labels = draw(torch.randint(0, 8, (4000,), generator=generator))


def train_on(order):
    """Final training loss, and accuracy on random test data."""
    torch.manual_seed(0)
    model, losses = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8)), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for ids in torch.as_tensor(order).split(BATCH):
        loss = F.cross_entropy(model(inputs[ids]), labels[ids])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    accuracy = (model(test_inputs).argmax(1) == test_labels).float().mean().item()
    return np.mean(losses[-20:]), accuracy


trained = {"sorted": (128.0, *train_on(np.arange(N)))}
for read, buffer in ((4096, 1), (4096, 4096), (256, 4096), (1, 1)):
    effect = effects[buffer][read]
    trained[f"reads of {read}, buffer {buffer}"] = effect, *train_on(orders[buffer][read])
print(f"{'':28} design effect   training loss   test accuracy")
for name, (effect, loss, accuracy) in trained.items():
    print(f"{name:28} {effect:13.1f} {loss:15.2f} {accuracy:15.2f}")

# %% [markdown]
# The sorted run has by far the lowest training loss, and it guesses: one in eight. A design effect of
# a few costs nothing that you could measure here. So spend effort until it's small, and not until
# every position is uniform. Better still, shuffle once, offline, when you write the shards.

# %% [markdown]
# ## Padding and packing
#
# Sequence lengths are skewed: most molecules are short and a few are long, and proteins are worse. A
# rectangular batch is as long as its longest row. Four ways to fill one, on lengths drawn from a
# log-normal distribution with a median of 50 tokens:

# %%
lengths = np.clip(np.random.default_rng(0).lognormal(np.log(50), 0.8, 20_000), 4, 512)
lengths = lengths.astype(int).tolist()
ROWS, CONTEXT = 32, 512
BUDGET = ROWS * 72  # tokens with padding, about as much as the other batches have


def in_batches(order):
    return [[[n] for n in order[at : at + ROWS]] for at in range(0, len(order), ROWS)]


def by_budget(order):
    batches, rows = [], []
    for n in order:
        if rows and (len(rows) + 1) * max(n, max(map(max, rows))) > BUDGET:
            batches.append(rows)
            rows = []
        rows.append([n])
    return [*batches, rows]


def packed(order):
    """First fit, with a few rows open: each row holds whole sequences, up to the context."""
    full, rows = [], [[] for _ in range(16)]
    for n in order:
        row = next((row for row in rows if sum(row) + n <= CONTEXT), None)
        if row is None:
            full.append(rows.pop(0))
            rows.append(row := [])
        row.append(n)
    rows = [*full, *filter(None, rows)]
    return [rows[at : at + 5] for at in range(0, len(rows), 5)]


def size(rows):
    return len(rows) * max(map(sum, rows))


# %%
window = [sorted(lengths[at : at + 2048]) for at in range(0, len(lengths), 2048)]
buckets = sum(window, [])  # sorted within windows, so that there's some shuffling left
fills = {
    "random": in_batches(lengths),
    "length buckets": in_batches(buckets),
    "token budget": by_budget(buckets),
    "packed": packed(lengths),
}
print(f"{'':16} padding   slowest of 64 ranks / mean, in tokens")
waste, skew = {}, {}
for name, batches in fills.items():
    sizes = [size(rows) for rows in batches]
    waste[name] = 1 - sum(lengths) / sum(sizes)
    step = random.Random(0).choices(sizes, k=64 * 50)  # 50 steps of 64 ranks
    steps = [step[at : at + 64] for at in range(0, len(step), 64)]
    skew[name] = np.mean([max(ranks) * 64 / sum(ranks) for ranks in steps])
    print(f"{name:16} {waste[name]:6.0%} {skew[name]:16.2f}")
data_plane.batch_picture({name: batches[len(batches) // 2] for name, batches in fills.items()})

# %% [markdown]
# Buckets remove most of the padding and create a new problem: the ranks' batches have different
# sizes, and the step waits for the largest. Draw from the same bucket on all ranks, or give every
# batch the same token budget. Packing does both: no padding to speak of, and equal work. The
# optimizer's batch is then counted in tokens, and the loss must be weighted by the *global* number of
# tokens.
#
# Packing has a price: the rows now hold several sequences, and attention doesn't know. Two things
# have to be said to the model: who may look at whom, and where each sequence starts.

# %%
torch.manual_seed(0)
WIDTH = 16
embedding, position = nn.Embedding(100, WIDTH), nn.Embedding(64, WIDTH)
project = nn.Linear(WIDTH, 3 * WIDTH)


def attend(tokens, positions, segments):
    x = embedding(tokens) + position(positions)
    q, k, v = project(x).split(WIDTH, dim=-1)
    mask = segments[:, None] == segments[None, :]  # who may look at whom
    return F.scaled_dot_product_attention(q, k, v, mask & mask.new_ones(mask.shape).tril())


first, second = torch.randint(0, 100, (7,)), torch.randint(0, 100, (9,))
alone = attend(second, torch.arange(9), torch.zeros(9))
row, counted_on, one = torch.cat([first, second]), torch.arange(16), torch.zeros(16)
restarted = torch.cat([torch.arange(7), torch.arange(9)])
two = torch.tensor([0] * 7 + [1] * 9)
errors = {
    "neither": attend(row, counted_on, one),
    "mask": attend(row, counted_on, two),
    "positions": attend(row, restarted, one),
    "mask and positions": attend(row, restarted, two),
}
errors = {name: (out[7:] - alone).abs().max().item() for name, out in errors.items()}
for name, error in errors.items():
    print(f"{name:18} second sequence differs from itself alone by up to {error:.1e}")

# %% [markdown]
# Only with both is packing what it claims to be: the same computation without the padding. Nothing
# crashes without them. The model sees the end of one molecule while it predicts the next.

# %% [markdown]
# ## Featurize once
#
# The molecules' tables are 30 TB, and the model wants 420 GB of token ids. Tokenize online, and every
# epoch reads 71 times as much and pays for the tokenizer again. In CPU time of this machine:

# %%
TOKEN = re.compile(r"\[[^\]]+\]|Br|Cl|%\d\d|.")
ATOMS = "C c N n O o S s F Cl Br ( ) 1 2 3 = #".split()
VOCABULARY = {token: number for number, token in enumerate(ATOMS)}
smiles = ["".join(random.Random(at).choices(ATOMS, k=50)) for at in range(4000)]
began = time.process_time()
ids = [[VOCABULARY[token] for token in TOKEN.findall(text)] for text in smiles]
tokenize_s = (time.process_time() - began) / len(smiles)
np.array(ids, dtype=np.uint16).tofile(folder / "tokens.bin")
began = time.process_time()
stored = np.fromfile(folder / "tokens.bin", dtype=np.uint16).reshape(-1, 50)
load_s = (time.process_time() - began) / len(smiles)
print(f"tokenize {1e6 * tokenize_s:.1f} us, load {1e6 * load_s:.2f} us per compound")
print(f"4.2 billion compounds: {COMPOUNDS * tokenize_s / 3600:.0f} core-hours")
try:
    nn.Embedding(len(VOCABULARY), 8)(torch.from_numpy(stored))
except Exception as error:
    print(f"and uint16 must be cast before the lookup: {type(error).__name__}")

# %% [markdown]
# This regular expression is the cheap part. The bytes are the expensive one, and canonicalizing the
# molecule and finding its scaffold come on top. Store what's deterministic, with a transform version.
# Keep what's random, the augmentation, online.
#
# ## Caches and decoding
#
# 64 nodes with 38 GB/s between them is 0.59 GB/s per node: fine for one network card, and a lot for
# a store that others use too. Each node's share of 1.4 PB is 22 TB, which fits on local NVMe
# drives. Then only the first epoch comes from the store, but only if a shard comes back to the node
# that has it. And if the cache is smaller than the share, what you evict decides everything.

# %%
def hit_rate(size, policy, shards=400, epochs=6):
    """Reads served from a cache of ``size`` of the data, after the first epoch."""
    cache, hits, rng = collections.OrderedDict(), 0, random.Random(0)
    for epoch in range(epochs):
        order = list(range(shards))
        if "reshuffled" in policy:
            rng.shuffle(order)
        for name in order:
            hit = name in cache
            hits += hit and epoch > 0
            if hit and "LRU" in policy:
                cache.move_to_end(name)
            elif not hit and (len(cache) < size * shards or "LRU" in policy):
                cache[name] = True
                if len(cache) > size * shards:
                    cache.popitem(last=False)  # the least recently used
    return hits / shards / (epochs - 1)


SIZES = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
POLICIES = ("LRU, the same order", "LRU, reshuffled", "keep what came first")
rates = {policy: {size: hit_rate(size, policy) for size in SIZES} for policy in POLICIES}
data_plane.cache_picture(rates)

# %% [markdown]
# An epoch is a loop, and a loop is the worst case for "least recently used": each shard is evicted
# just before it's needed again. Keeping whatever came first gives exactly its share. An operating
# system's page cache is closer to the first two lines.
#
# Then somebody has to decode. How many images does a core of this machine manage in a second of CPU
# time?

# %%
def jpeg(side, noise):
    """A photo-like picture: smooth, plus noise to make the file as large as a real one."""
    rng, ramp = np.random.default_rng(0), np.linspace(0, 200, side)
    pixels = (ramp[:, None, None] + ramp[:, None]) / 2 + rng.normal(0, noise, (side, side, 3))
    out = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(out, "jpeg", quality=85)
    return out.getvalue()


decoded = {}
for name, content in (("as crawled", jpeg(640, 18)), ("resized offline", jpeg(256, 18))):
    began, count = time.process_time(), 10 if FAST else 40
    for _ in range(count):
        Image.open(io.BytesIO(content)).convert("RGB").resize((224, 224))
    per_s = count / (time.process_time() - began)
    decoded[name] = len(content), per_s
    print(f"{name:16} {len(content) / KB:5.0f} kB, {per_s:5.0f} images/s per core,"
          f" {IMAGES_PER_S / per_s:4.1f} cores per GPU")

# %% [markdown]
# Multiply by 8 GPUs and compare with the cores of the node. If it doesn't fit, there are three moves,
# in this order: resize offline, which saves bandwidth and storage as well; decode on the GPU, where it
# may compete with training; or decode on other machines, which adds a service to run.

# %% [markdown]
# ## What it costs
#
# These are the [list prices](https://aws.amazon.com/s3/pricing/) of one cloud, as of 2026, and three
# dollars for a GPU-hour is an assumption. Put in yours.

# %%
USD_PER_GPU_HOUR = 3.0
pass_usd = GPUS * IMAGES / images_per_s / 3600 * USD_PER_GPU_HOUR
for name, usd in {
    "storing 1.4 PB, a month": data_plane.list_price(1400, data_plane.STORAGE),
    "GPUs for one pass": pass_usd,
    "one pass out of the cloud": data_plane.list_price(1400, data_plane.EGRESS),
    "420 GB of tokens out of the cloud": data_plane.list_price(0.42, data_plane.EGRESS),
}.items():
    print(f"{name:34} ${usd:10,.2f}")

# %% [markdown]
# A single pass over the internet costs more than the GPUs that train on it. So the data goes where
# the GPUs are, once. Resizing offline, as above, shrinks the first and the third line by the same
# factor as the files.

# %% [markdown]
# ## The split, once and offline
#
# Validation data must be chosen before training, by group, and stored in the manifest. For
# molecules the group is the scaffold; for images it's the near-duplicate cluster or the source. Two
# ways to get it wrong:

# %%
NUM_ROWS, NUM_SCAFFOLDS = 20_000, 2_000
scaffolds = [f"scaffold-{rng.randrange(NUM_SCAFFOLDS)}" for _ in range(NUM_ROWS)]


def random_split(seed):
    """Validation rows, drawn when the job starts."""
    return set(random.Random(seed).sample(range(NUM_ROWS), NUM_ROWS // 10))


def in_validation(scaffold, salt="split-v1"):
    """A function of the group alone: no seed of a rank, no table of 4.2 billion rows."""
    return int(hashlib.sha256(f"{salt} {scaffold}".encode()).hexdigest(), 16) % 10 == 0


def shared_with_training(chosen):
    """How many validation rows have a scaffold that training has as well."""
    train = {scaffolds[row] for row in range(NUM_ROWS) if row not in chosen}
    return sum(scaffolds[row] in train for row in chosen)


# %%
drawn = [random_split(seed) for seed in range(4)]  # each of 4 ranks draws its own
elsewhere = sum(any(row not in other for other in drawn) for row in drawn[0])
by_group = {row for row in range(NUM_ROWS) if in_validation(scaffolds[row])}
print(f"drawn by each rank: {elsewhere / 2000:.0%} of rank 0's rows are trained on elsewhere")
print(f"one draw by row:    {shared_with_training(drawn[0]):4} of 2000 share a scaffold")
print(f"hash of scaffold:   {shared_with_training(by_group):4} of {len(by_group)} do")

# %% [markdown]
# A hash of the group key needs no coordination: each of a thousand workers gets the same answer for
# the same scaffold. The share is 10% of the *groups*, and groups are uneven, so check the share of
# rows. A scaffold split isn't the end of honesty either: molecules without rings share one empty
# scaffold, and near-identical ones may have two. For a prospective claim, split by time.
#
# ## What breaks
#
# | symptom | cause | how you see it | first move |
# |---|---|---|---|
# | GPUs idle on all nodes | the store throttles | 503s; p99 of a read | larger reads, more prefixes |
# | an epoch is twice as long | workers repeat the stream | visits per sample | rank × workers + worker |
# | loss falls in waves | shards in crawl order | labels per batch | shuffle shards, larger buffer |
# | resume takes an hour | it iterates to its place | bytes read before step 1 | seek by cursor |
# | one rank is always last | uneven shards or lengths | tokens per rank and step | equal shards, token budget |
# | out of memory once a day | one very long sequence | longest row per step | cap, token budget |
# | validation too good | split by row, or per rank | groups on both sides | group hash, in the manifest |

# %% [markdown]
# ## Say it in 60 seconds
#
# > "I start with bytes per second. 512 GPUs at 500 images each is a quarter million images, 38
# > gigabytes a second, so files are out. I write immutable shards with a manifest: counts, hashes,
# > flags, the split. The manifest's hash is the dataset version, and it's part of the run's identity.
# >
# > Shards are dealt to a fixed number of streams, and ranks times workers share the streams. The
# > cursor is the global step. A resume seeks, on any number of ranks that divides the streams.
# >
# > I shuffle shards and use a buffer, and I check one number: read size times batch over twice the
# > buffer should be small. Text gets packed, with a mask and restarted positions. Whatever is
# > deterministic is computed once, offline. And the data sits next to the GPUs, because egress for one
# > pass costs more than its GPU-hours."

# %% [markdown]
# ## Three questions
#
# **"Why not simply read the JPEGs from the bucket?"**
#
# - *Weak:* "Small files are slow. Everybody uses shards."
# - *Strong:* "A quarter million GETs a second is 47 prefixes at their limit, with 25,000 to 50,000
#   requests in flight, and a latency tail that every step waits for. Ranges of 16 megabytes need two
#   or three thousand a second. A shard also gives me a unit to hash, cache and retry. I give up
#   random access, so I pay with a shuffle buffer."
# - *What would prove me wrong:* data wait per step and p99 of a read. If both are flat with single
#   files at full scale, the shards were unnecessary.
#
# **"How do you know that your shuffling is good enough?"**
#
# - *Weak:* "We shuffle the shards every epoch, so it's random."
# - *Strong:* "Shard order alone can give batches from a single shard. I look at the batch: the
#   variance of a label's mean per batch, relative to random draws. It's about one plus read times
#   batch over twice the buffer. If that's near one, I stop. And I'd rather shuffle offline once."
# - *What would prove me wrong:* the same run on fully shuffled data. If its validation loss is better by
#   more than the noise between seeds, my shuffling wasn't good enough.
#
# **"You resume a streaming job on fewer nodes. What can go wrong?"**
#
# - *Weak:* "Each rank stored its position, so each rank continues from there."
# - *Strong:* "Per-rank positions belong to per-rank shard lists, and those change with the number of
#   ranks. I cut the data into a fixed number of streams with many divisors, take the same from each
#   per step, and store the global step. What sat in shuffle buffers is the second leak: I refill them
#   from the seed."
# - *What would prove me wrong:* visits per sample over an epoch with a resize in it, from the ledger.
#   It must be one everywhere.

# %% [markdown]
# ## Practice it
#
# - Drills: [cell_data](../drills/120_cell_data.ipynb),
#   [resized_restart_repeats_samples](../drills/235_resized_restart_repeats_samples.ipynb),
#   [instrument_performance](../drills/040_instrument_performance.ipynb),
#   [evaluation_jumps_after_a_restart](../drills/320_evaluation_jumps_after_a_restart.ipynb).
# - The code: section 2 of the [walkthrough](../01_walkthrough.ipynb) computes the order that one
#   integer seeks in.
# - The cards: `ask(topic="data_at_scale")` in [03_deck](../03_deck.ipynb).
