# %% [markdown]
# # 19. Configuration, reproducibility, evaluation
#
# {{badge}}
#
# > "A result means something if I can say what produced it and how much it would vary. So config,
# > code and data have one version together. I promise statistical reproducibility, and exact
# > replay only on the same ranks and the same stack. Evaluation counts every sample once, at any
# > number of ranks. And a candidate is promoted by a gate, not by a good-looking curve."
#
# *Twenty minutes to read. Every refusal, every wrong metric and every rejected candidate below
# comes from a run in this notebook.*

# %% collapsed=true
# {{setup torch numpy matplotlib cloudpickle platformdirs fsrs rehearsal}}

# %% collapsed=true
#@title Imports
from rehearsal.engine.ranks import warm_up

warm_up("trainer_core.launch")  # starts the server that forks the ranks, while you read

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import fields
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DistributedSampler

import trainer_core
from rehearsal.evidence.audit import audit_run
from rehearsal.evidence.compare import compare_runs
from rehearsal.faults import breaks
from rehearsal.handbook.diagrams import diagram
from rehearsal.handbook.on_ranks import on_ranks, watch_ranks
from rehearsal.handbook.seed_spread import half_interval, seeds_needed, spread_picture
from rehearsal.handbook.telemetry import read_telemetry
from rehearsal.handbook.trainer_runs import run_trainer
from trainer_core import checkpoint_format
from trainer_core.config import TrainConfig

FAST = os.environ.get("FAST") == "1"
torch.set_num_threads(1)
folder = Path(tempfile.mkdtemp(prefix="handbook-"))

# %% [markdown]
# ## One version: config, code and data
#
# If they ask for the whole story of a trainer, tell it in this order: execution model, checkpoint
# contract and partition, reproducibility, layers of metrics, evaluation policy, promotion. This
# chapter is about the second half.
#
# It starts with a version. Versioned alone, neither config nor code nor data says what a run was.
# The same config on different data is a different experiment, and so is the same data with a
# different tokenizer.

# %%
diagram("one_version")

# %% [markdown]
# Start with the config. It needs a digest that any process can compute and compare. The tempting
# one is Python's own `hash()`. We ask three processes for the hash of the same string:

# %%
environment = {key: value for key, value in os.environ.items() if key != "PYTHONHASHSEED"}
command = [sys.executable, "-c", "print(hash('seed=17 learning_rate=0.001'))"]
hashes = [subprocess.check_output(command, env=environment, text=True) for _ in range(3)]
print(*hashes, sep="")

# %% [markdown]
# Strings are hashed with a salt that's new in each process. Stored in a checkpoint, such a digest
# never matches at a restore, so either every resume is refused or nobody compares. What you want
# is a real hash over one canonical spelling.

# %%
def digest(value):
    """SHA-256 of canonical JSON: sorted keys, one spelling, nothing that JSON lacks."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


print("another order of keys:", digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}))
print("1 or 1.0:             ", digest({"lr": 1}) == digest({"lr": 1.0}))

# %% [markdown]
# The second line is a trap: an int and a float spell the same learning rate differently, so
# convert by type first. The other decision is what goes in. Rank, hostname and paths don't:
# they'd give each process its own digest. Nor does the number of ranks. Here's this trainer's
# digest after a change of one setting:

# %%
base = TrainConfig(micro_batch_size=16)
changes = {
    "learning_rate": {"learning_rate": 2e-3},
    "seed": {"seed": 18},
    "run_dir": {"run_dir": Path("elsewhere")},
    "num_workers": {"num_workers": 4},
    "2 ranks, half each": {"micro_batch_size": 8, "world_size": 2},
    "2 ranks, twice the batch": {"world_size": 2},
}
for name, change in changes.items():
    same = TrainConfig(**{"micro_batch_size": 16, **change}).digest() == base.digest()
    print(f"{name:25} {'same digest' if same else 'different digest'}")

# %% [markdown]
# Code and data get digests too. A git commit says nothing about files that aren't committed, so
# hash the files that you import, or refuse to start from a dirty tree. A training manifest lists
# each shard with its size and hash.

# %%
def code_version(package):
    """The digest of a package's source files."""
    root = Path(package.__file__).parent
    files = sorted(root.rglob("*.py"))
    return digest({str(f.relative_to(root)): f.read_text("utf-8") for f in files})


def manifest_of(shards):
    """What a run trains on, as data: it fits into a file and into a review."""
    return [
        {"name": shard.name, "bytes": shard.stat().st_size,
         "sha256": hashlib.sha256(shard.read_bytes()).hexdigest()}
        for shard in sorted(shards)
    ]


def version_of(config, package, shards):
    parts = {"config": config.digest(), "code": code_version(package)}
    return digest({**parts, "data": digest(manifest_of(shards))})


# %%
shards = [folder / f"shard-{number}.bin" for number in range(4)]
for number, shard in enumerate(shards):
    shard.write_bytes(bytes([number]) * 1000)
versions = {"as it is": version_of(base, trainer_core, shards)}
changed = TrainConfig(learning_rate=2e-3)
versions["another learning rate"] = version_of(changed, trainer_core, shards)
shards[2].write_bytes(shards[2].read_bytes()[:-1] + b"!")
versions["one byte of one shard"] = version_of(base, trainer_core, shards)
for name, version in versions.items():
    print(f"{name:22} {version[:16]}")

# %% [markdown]
# > "I version config, code and data together, and I write that version into the run folder and
# > into every checkpoint. If preprocessing runs offline, its version is part of the data's."
#
# In a run folder of this trainer it looks like this. It has no digest of the code yet: your
# container image's is the next field to add.

# %%
run_trainer(folder / "first", 1, max_epochs=1)
record = json.loads((folder / "first/config.json").read_text())
shown = ("run_id", "digest", "identity", "versions")
print(json.dumps({key: record[key] for key in shown}, indent=1)[:760])

# %% [markdown]
# ## What may change on a resume
#
# A digest that differs isn't an answer. On resume you need to know *what* differs, and whether
# that's allowed. So each field of the config says what kind it is:

# %%
for kind in ("identity", "batch_cut", "training", "operation"):
    names = [field.name for field in fields(TrainConfig) if field.metadata["kind"] == kind]
    print(f"{kind}: {', '.join(names)}\n")

# %% [markdown]
# An *identity* field can't change: it would replay or skip samples, or need different weights. A
# *training* field takes effect and is reported. *Operation* doesn't touch the training. *Batch
# cut* says how the global batch is split, and only the product counts. We resume the run above
# with one change at a time:

# %%
def resume_with(change):
    """What the trainer says about a second start with that change."""
    copy = shutil.copytree(folder / "first", Path(tempfile.mkdtemp(dir=folder)) / "run")
    [report] = run_trainer(copy, 1, **{"max_epochs": 2, **change})
    if report.failure:
        return "refused: " + report.failure.message.partition(": ")[2].partition(". ")[0]
    reported = read_telemetry(copy).named("config_changed")[-1]["changes"]
    return f"accepted, and reported as {reported}"


resumes = {
    "more epochs": {},
    "another learning rate": {"learning_rate": 5e-4},
    "cut differently": {"micro_batch_size": 2, "grad_accum_steps": 4},
    "another global batch": {"micro_batch_size": 8},
    "another seed": {"seed": 18},
}
answers = {name: resume_with(change) for name, change in resumes.items()}
for name, answer in answers.items():
    print(f"{name}: {answer}")

# %% [markdown]
# > "I don't want a resume that silently does something else. It refuses with both values and the
# > way out, or it continues and logs an event that names what changed."

# %% [markdown]
# ## Exact or statistical?
#
# Ask which promise is meant before you make one.
#
# - **Exact**: the same bits. It needs the same ranks, versions, kernels, threads and hardware,
#   and the random state of each rank.
# - **Statistical**: the same distribution. Other seeds or other ranks give other numbers, from
#   the same spread.
#
# The first ends where sums change their order, because floating-point addition isn't associative.
# PyTorch promises no more than that, either: results aren't guaranteed to be reproducible across
# releases or platforms
# ([reproducibility](https://docs.pytorch.org/docs/stable/notes/randomness.html)).

# %%
print("(0.1 + 0.2) + 0.3 == 0.1 + (0.2 + 0.3):", (0.1 + 0.2) + 0.3 == 0.1 + (0.2 + 0.3))

PLAN = {"dataset_size": 203, "max_epochs": 1, "pinned_global_batch_size": 16}
ends = {
    "2 ranks": run_trainer(folder / "2 ranks", **PLAN),
    "2 ranks again": run_trainer(folder / "2 ranks again", **PLAN),
    "3 ranks": run_trainer(folder / "3 ranks", 3, **PLAN),
    "2 ranks, dropout": run_trainer(folder / "2 ranks, dropout", dropout=0.2, **PLAN),
    "3 ranks, dropout": run_trainer(folder / "3 ranks, dropout", 3, dropout=0.2, **PLAN),
}
weights = {name: reports[0].answer["weights_sha256"][:12] for name, reports in ends.items()}
weights

# %% [markdown]
# Two runs with the same settings end with the same bits. Three ranks don't, so comparing hashes
# tells you nothing there. `compare_runs` reads two run folders step by step: samples, learning
# rate, loss, gradient norm, checkpoints. It compares bit for bit as long as both runs split each
# step the same way, and within 1e-3 (relative) afterwards.

# %%
pairs = {
    "2 ranks, again": ("2 ranks", "2 ranks again"),
    "2 and 3 ranks": ("2 ranks", "3 ranks"),
    "2 and 3 ranks, with dropout": ("2 ranks, dropout", "3 ranks, dropout"),
}
compared = {name: compare_runs(folder / a, folder / b) for name, (a, b) in pairs.items()}
for name, found in compared.items():
    print(f"{name}: {found.verdict}; bit for bit through step {found.exact_steps}")

# %% [markdown]
# So there are three levels. Same ranks: same bits. Other ranks without randomness: same samples,
# same numbers up to rounding. Other ranks with dropout: each rank draws its own masks, so from
# the first step the losses differ. That run is reproducible only as a distribution, and then one
# run says little. How little? We train a small classifier in two variants, with several seeds
# each.

# %%
def make_task(num_samples, seed):
    """Eight features; the label is the sign of a product of two plus a third, with noise."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(num_samples, 8, generator=generator)
    labels = (inputs[:, 0] * inputs[:, 1] + inputs[:, 2] > 0).long()
    flipped = torch.rand(num_samples, generator=generator) < 0.05
    return inputs, torch.where(flipped, 1 - labels, labels)


def fit(data, seed, width=16, steps=100):
    inputs, labels = data
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[batch]), labels[batch]).backward()
        optimizer.step()
    return model


def is_right(model, data):
    """1.0 for each sample that the model gets right."""
    with torch.no_grad():
        return (model(data[0]).argmax(1) == data[1]).float()


training, holdout = make_task(1200, seed=1), make_task(2000, seed=2)

# %%
seeds = range(6 if FAST else 12)


def accuracies():
    """In percent, by width, for this rank's share of the seeds."""
    mine = seeds[dist.get_rank() :: dist.get_world_size()]
    fits = {width: [fit(training, seed, width) for seed in mine] for width in (16, 20)}
    return {
        f"width {width}": [100 * is_right(model, holdout).mean().item() for model in models]
        for width, models in fits.items()
    }


of_ranks = on_ranks(accuracies, 2)
accuracy = {name: sum((of[name] for of in of_ranks), []) for name in of_ranks[0]}
for name, values in accuracy.items():
    mean, half = fmean(values), half_interval(values)
    print(f"{name}: {mean:.2f} +- {half:.2f} %, spread over seeds {stdev(values):.2f} points")
narrow, wide = accuracy.values()
wins = fmean(b > a for a in narrow for b in wide)
gap, spread = abs(fmean(wide) - fmean(narrow)), max(map(stdev, accuracy.values()))
print(f"one seed each: width 20 wins {wins:.0%} of the comparisons")
print(f"to show a gap of {spread:.1f} points: {seeds_needed(spread, spread)} seeds of each")
spread_picture(accuracy, "accuracy on the holdout (%)")

# %% [markdown]
# The honest unit of a result is its spread over seeds. To show a difference as large as the
# spread in 8 tries out of 10, you need 2 * (1.96 + 0.84)**2, or 16 seeds of each variant; for
# half of it, four times as many. You can't train a large model 16 times. So you measure the
# spread on a small one, and for the large one you claim only what's far outside.
#
# > "By default I promise statistical reproducibility: same config, code and data, and the metric
# > within its spread over seeds. Exact replay is a debugging tool, and I keep it for the same
# > ranks and stack."

# %% [markdown]
# ## Evaluation under DDP, done right
#
# A metric that depends on the number of ranks is wrong. Take 103 validation samples, of which a
# few are positive, and a score for each.

# %%
def validation_set():
    generator = torch.Generator().manual_seed(3)
    labels = (torch.rand(103, generator=generator) < 0.08).long()
    return labels, 1.5 * labels + torch.randn(103, generator=generator)


def auroc(labels, scores):
    """How often a positive scores above a negative; undefined without one of either."""
    positive, negative = scores[labels == 1], scores[labels == 0]
    return (positive[:, None] > negative).float().mean().item()


def all_mean(value):
    """The mean over the ranks of one number each: what people do first."""
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


# %%
def evaluate():
    """The same metrics, wrong and right. Collective: every rank."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    labels, scores = validation_set()
    correct = ((scores > 0.75) == (labels == 1)).double()
    padded = list(DistributedSampler(labels, world_size, rank, shuffle=False))
    mine = list(range(rank, len(labels), world_size))  # no padding: shares may differ by one
    counts = torch.stack([correct[mine].sum(), torch.tensor(float(len(mine))).double()])
    dist.all_reduce(counts)
    gathered = [None] * world_size
    dist.all_gather_object(gathered, (labels[mine].tolist(), scores[mine].tolist()))
    whole = [torch.tensor(sum(column, [])) for column in zip(*gathered)]
    return {
        "accuracy, padded": all_mean(correct[padded].mean()),
        "accuracy, mean of ranks": all_mean(correct[mine].mean()),
        "accuracy, exact": (counts[0] / counts[1]).item(),
        "AUROC, mean of ranks": all_mean(auroc(labels[mine], scores[mine])),
        "AUROC, gathered": auroc(*whole),
    }


metrics = {world_size: on_ranks(evaluate, world_size)[0] for world_size in (1, 2, 3)}
print("".ljust(23), *(f"{world_size} rank(s)" for world_size in metrics), sep="  ")
for name in metrics[1]:
    print(name.ljust(23), *(f"{of[name]:9.4f}" for of in metrics.values()), sep="  ")
print("AUROC on a rank without positives:", auroc(torch.zeros(3), torch.randn(3)))

# %% [markdown]
# Only two rows are the same in every column, and only those are metrics of the model:
#
# - **Padding double-counts.** `DistributedSampler` repeats samples until all shares are equal.
#   Which ones depends on the number of ranks.
# - **A mean of means** weighs a sample by the size of its rank's share. Sum the counts, divide
#   once.
# - **AUROC can't be averaged at all**, and a rank without positives has none. Neither can BLEU,
#   F1, or perplexity from per-rank perplexities. Gather what the metric needs, and compute it
#   once.
#
# The third or fourth digit looks harmless. It's where people decide which model ships, and a
# resumed job with a different number of ranks moves it. Shares needn't be equal here: the ranks meet
# only once, after their last sample.
#
# **Rank 0 alone.** The classic shortcut is to let rank 0 evaluate. Two things can happen. First,
# the others wait for it in the next step's all-reduce, until the timeout:

# %%
def rank_0_takes_its_time():
    group = dist.new_group(timeout=timedelta(seconds=0.5))
    if dist.get_rank() == 0:
        time.sleep(1.2)  # the evaluation
    dist.all_reduce(torch.ones(1), group=group)  # the next step's gradient


slow_evaluation = watch_ranks(rank_0_takes_its_time, 2)
for report in slow_evaluation:
    said = report.failure.message.rpartition("cc:")[2].partition("] ")[2]
    print(f"rank {report.rank}: {said.partition(' [')[0]}")

# %% [markdown]
# Half a second stands for the defaults, 30 minutes with gloo and 10 with NCCL. Second, and worse,
# the evaluation contains a collective of its own. Collectives have no names: they match by order.

# %%
def rank_0_sums_alone():
    for step in range(1, 5):
        gradient = torch.tensor([1.0 + dist.get_rank()])
        dist.all_reduce(gradient)
        print(f"step {step}: sum of gradients {gradient.item():g}", flush=True)
        if step == 2 and dist.get_rank() == 0:
            correct = torch.tensor([87.0])
            dist.all_reduce(correct)
            print(f"evaluation: {correct.item():g} of 103 are right", flush=True)
    dist.barrier()


start_s = time.monotonic()
on_ranks(dist.get_rank, 2)  # how long does a start take here?
patience_s = 1.5 + 4 * (time.monotonic() - start_s)
alone = watch_ranks(rank_0_sums_alone, 2, deadline_s=patience_s)
for report in alone:
    said = report.output.strip().replace("\n", "; ")
    print(f"rank {report.rank}, {'hung' if report.exitcode is None else 'ended'}: {said}")

# %% [markdown]
# Rank 0's metric was added to rank 1's gradient in step 3. No error: rank 1 trains on a gradient
# of 89 instead of 3, and rank 0 reports 89 right answers of 103 when it counted 87. The hang
# comes later, at the end, a long way from its cause. So every rank evaluates its share, and every
# rank makes the same calls in the same order.
#
# > "Each rank evaluates its own share without padding. I all-reduce sums and counts, gather
# > scores where the metric needs them, and broadcast the decision if anybody acts on it."

# %% [markdown]
# ## Two manifests, two versions
#
# A training set grows. The validation set has to stay, or you can't compare this month's model
# with last month's. The common mistake is to shuffle everything with a fixed seed and cut off 10
# percent. We add 100 samples to 1,000:

# %%
def by_shuffling(ids):
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0)).tolist()
    return {ids[place] for place in order[: len(ids) // 10]}


def by_hash(ids):
    return {name for name in ids if int(digest(name), 16) % 10 == 0}


before = [f"sample-{number:05}" for number in range(1000)]
after = [f"sample-{number:05}" for number in range(1100)]
leaks = {}
for split in (by_shuffling, by_hash):
    old, new = split(before), split(after)
    leaks[split.__name__] = len(old - new)
    print(f"{split.__name__}: of {len(old)} validation samples, {len(old - new)} are now "
          f"trained on; {len(new - old)} others are new")
    print(f"    version {digest(sorted(old))[:12]} becomes {digest(sorted(new))[:12]}")

# %% [markdown]
# After the shuffle, most of the old validation set is training data. A fixed seed doesn't help:
# the permutation of 1,100 isn't that of 1,000. A hash of the sample's id never moves a sample.
# But it makes the validation set grow, and that's a new version with a new baseline, too. So
# write validation down as a manifest of its own, and cut a new version of it on purpose. And
# split by what generalizes: by scaffold for molecules, by patient, by site, and never by row if
# rows have near-duplicates.

# %% [markdown]
# ## The promotion gate
#
# "The loss looks good" isn't a decision. A gate is a short function with five checks, the
# cheapest first, and it keeps two kinds of metrics apart. Health says whether the run can be
# trusted. Quality says whether the model is better.

# %%
diagram("promotion")

# %%
def interval(differences, draws=1000):
    """The 95 % bootstrap interval of the mean of paired differences."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(differences), (draws, len(differences)), generator=generator)
    means = differences[chosen].mean(1)
    return means.quantile(0.025).item(), means.quantile(0.975).item()


def gate(candidate, production):
    """The reason to reject the candidate; None if it may be promoted."""
    if candidate["manifest"] != production["manifest"]:
        return "evaluated on another validation manifest"
    if candidate["audit"] != "proved" or candidate["skipped"] > 0.05:
        return f"run: audit {candidate['audit']}, {candidate['skipped']:.0%} of updates skipped"
    if candidate["smoke"] < production["smoke"] - 0.1:
        return f"smoke evaluation: {candidate['smoke']:.0%} right; holdout not spent"
    better = candidate["right"] - production["right"]
    low, high = interval(better)
    if low <= 0:
        return f"holdout: {better.mean():+.1%}, interval {low:+.1%} to {high:+.1%}"
    for name, members in SLICES.items():
        if interval(better[members])[1] < 0:
            return f"slice {name}: {better[members].mean():+.1%}, overall {better.mean():+.1%}"


# %% [markdown]
# Now real candidates. Their health comes from the audit and the ledger of a run on two ranks, and
# one of those runs is fed NaNs in every third step. Their quality comes from the same 2,000
# holdout samples as production's, so the differences are paired. The bootstrap draws samples with
# replacement and asks how much the mean difference varies.

# %%
def poison(step, batches):
    if breaks.is_rank(1) and step % 3 == 0:
        batches[0].inputs[0, 0] = float("nan")


sick = {"fault": partial(breaks.at_batches, poison), "on_nonfinite": "skip"}
run_trainer(folder / "sick", **sick, **PLAN)
wrong_labels = training[0], torch.where(training[0][:, 0] > 1.3, 1 - training[1], training[1])
SLICES = {"first feature > 1.3": holdout[0][:, 0] > 1.3, "the rest": holdout[0][:, 0] <= 1.3}
HOLDOUT = digest([tensor.tolist() for tensor in holdout])


def health(run_dir):
    lines = [line for line in read_telemetry(run_dir).steps if line["rank"] == 0]
    skipped = fmean("skipped" in line for line in lines)
    return {"audit": audit_run(run_dir).status, "skipped": skipped}


def fit_all(recipes):
    """Which of the holdout samples each newly trained model gets right. On one rank."""
    right = {}
    for name, recipe in recipes.items():
        inputs = recipe.pop("inputs", holdout[0])
        right[name] = is_right(fit(**recipe), (inputs, holdout[1])).tolist()
    return right


# %%
good, old = {"seed": 1, "steps": 150}, {"seed": 0, "steps": 50}
recipes = {
    "in production": old,
    "better": good,
    "better, from a sick run": good,
    "better, other holdout": good,
    "features in another order": {**good, "inputs": holdout[0].flip(1)},
    "retrained, nothing new": {**old, "seed": 4},
    "wrong labels in a slice": {**good, "data": wrong_labels, "steps": 300},
}
recipes = {name: {"data": training, **recipe} for name, recipe in recipes.items()}
candidates = {}
for name, right in on_ranks(fit_all, 1, recipes)[0].items():
    facts = health(folder / ("sick" if "sick" in name else "2 ranks"))
    facts["manifest"] = "validation-v2" if "other holdout" in name else HOLDOUT
    candidates[name] = facts | {"right": torch.tensor(right), "smoke": fmean(right[:100])}

production = candidates.pop("in production")
verdicts = {name: gate(candidate, production) for name, candidate in candidates.items()}
for name, reason in verdicts.items():
    print(f"{name:26} {'rejected: ' + reason if reason else 'promoted'}")

# %% [markdown]
# Look at the last one: it's better overall, and the interval says so. It's also much worse for
# one group of inputs. An average hides that by design, so the gate names the slices that matter,
# and a human decides about each exception.
#
# > "A smoke evaluation runs every few hundred steps, costs seconds, and catches broken
# > preprocessing. The holdout runs rarely, with an interval, because each look at it wears it
# > out."

# %% [markdown]
# ## Roll out a trainer, and roll it back
#
# A new version of the trainer is a candidate, too. Its canary is a short run with the same seed,
# data and ranks as a run of the old version, and `compare_runs` is the judge. Here are three new
# versions. One changes how the batch is cut, one is off by one in the schedule, and one forgot
# weight decay.

# %%
def off_by_one():
    breaks.wrap("learning_rate_at", lambda rate, cfg, step: rate(cfg, step + 1))


def no_weight_decay():
    def build(original, cfg, model):
        optimizer = original(cfg, model)
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.0
        return optimizer

    breaks.wrap("build_optimizer", build)


canaries = {
    "cut differently": {"micro_batch_size": 8},
    "off by one": {"fault": off_by_one},
    "no weight decay": {"fault": no_weight_decay},
}
for name, how in canaries.items():
    run_trainer(folder / name, **how, **PLAN)
    found = compare_runs(folder / "2 ranks", folder / name)
    canaries[name] = found
    print(f"{name}: {found.verdict}")

# %% [markdown]
# Look at the numbers in the last line. The losses differ in the seventh digit, after one step. On
# a dashboard, you'd find that in the final quality, weeks later. Bit for bit, you find it in step
# 2. That's what exact reproducibility is for: a refactoring must change no bit, and a change
# that's meant to move bits says so, and is compared within a tolerance.
#
# **Roll back.** The old version meets the new one's checkpoints. So a format has a version. A
# newer format is refused, and it isn't set aside like a damaged one: it's intact, and the new
# version will want it.

# %%
def writes_format_2():
    checkpoint_format.FORMAT = 2


def reads_2_writes_1():
    def publish_1(publish, temporary, target, facts):
        publish(temporary, target, {**facts, "format": 1})

    checkpoint_format.FORMAT = 2
    breaks.wrap("publish", publish_1)


def saved(run):
    return sorted(path.name for path in (folder / run / "checkpoints").iterdir())


# %%
outcomes = {}
for run, new_version in (("hasty", writes_format_2), ("patient", reads_2_writes_1)):
    for fault, epochs in ((None, 1), (new_version, 2), (None, 3)):  # old, new, rolled back
        [report] = run_trainer(folder / run, 1, fault=fault, max_epochs=epochs, keep_last=9)
    outcomes[run] = report
    said = report.failure.message.partition(": ")[2] if report.failure else "resumed and done"
    print(f"{run}, rolled back: {said}")
print("still published:", *saved("hasty"))

# %% [markdown]
# To roll the hasty one back, somebody has to move the new checkpoints away. Then the old version
# resumes from before the rollout:

# %%
for name in saved("hasty")[-4:]:  # those of the new version
    (folder / "hasty/checkpoints" / name).rename(folder / f"of the new version, {name}")
run_trainer(folder / "hasty", 1, max_epochs=3)
restored = read_telemetry(folder / "hasty").named("checkpoint_restored")[-1]["step"]
print(f"resumed from step {restored}; the new version had reached step 52")

# %% [markdown]
# The patient one has two releases. The first reads both formats and still writes the old one.
# Only when nobody would roll back to a version that can't read the new format does the second
# release write it.
#
# > "I can roll back as long as the old version can read what the new one writes. So readers ship
# > first, writers a release later. And before I roll out, a canary repeats a known run: same
# > seed, same data, bit for bit if nothing was meant to change."

# %% [markdown]
# ## Say it in 60 seconds
#
# > "Config, code and training data are one version, as real digests, and it's in every
# > checkpoint. Python's `hash()` isn't one: it's salted. On resume, identity fields are refused
# > with both values, training fields are reported, and how the batch is cut doesn't matter.
# >
# > I promise statistical reproducibility. Same bits need the same ranks and the same stack, and I
# > use that for debugging and for canaries. A result is a mean and a spread over seeds.
# >
# > In evaluation each rank takes its share without padding. I reduce sums and counts, and gather
# > scores for AUROC. Validation has its own frozen manifest.
# >
# > A gate promotes: same manifest, healthy run, smoke test, holdout with an interval, no slice
# > worse. Rollback works because readers ship before writers."

# %% [markdown]
# ## Three questions
#
# **"Your new model is 0.4 points better. Do you ship it?"**
#
# - *Weak:* "Yes, it's better on the validation set."
# - *Strong:* "Two questions first. Is 0.4 outside the sampling error of the holdout? I'd
#   bootstrap the paired differences. And is it outside the spread over seeds? If one recipe moves
#   by a point between seeds, 0.4 from one run is a draw. Then the slices, and the health of the
#   run that made it. If the answer is still unclear, I say that they're equal and take the
#   cheaper one."
# - *What would prove me wrong:* the gap on fresh data, a month after the rollout. If my gates
#   promise gains that don't arrive, the holdout is worn out or leaks.
#
# **"The same job gave a different accuracy today. Who broke it?"**
#
# - *Weak:* "It's a different seed or GPU nondeterminism."
# - *Strong:* "I compare the versions first: config digest, code, manifests, number of ranks. If
#   the ranks changed and evaluation pads, the metric moved and the model didn't. If all is equal,
#   I replay both on the same ranks and look for the first step that differs, and in what:
#   samples, rate, loss. The kind of the first difference names the component."
# - *What would prove me wrong:* two replays of the same version that differ. Then something isn't
#   seeded, and no comparison above counts.
#
# **"You rolled out a new trainer last night, and you want it back. What happens?"**
#
# - *Weak:* "We deploy the old image and restart."
# - *Strong:* "That works only if the old version reads the new checkpoints. I'd have shipped the
#   reader a release before the writer, so it does. Otherwise the old one refuses the format, and
#   we resume from the last checkpoint before the rollout and lose the steps since. Either way I
#   compare the first steps after the restart with the run from before."
# - *What would prove me wrong:* a rehearsal. I roll a canary forward and back before I touch
#   production, and count the steps that it loses.

# %% [markdown]
# ## Practice it
#
# - Drills: [cell_config](../drills/110_cell_config.ipynb),
#   [best_checkpoint_is_not_the_best](../drills/510_best_checkpoint_is_not_the_best.ipynb),
#   [evaluation_jumps_after_a_restart](../drills/320_evaluation_jumps_after_a_restart.ipynb),
#   [epoch_ends_in_a_timeout](../drills/310_epoch_ends_in_a_timeout.ipynb),
#   [lower_learning_rate_has_no_effect](../drills/300_lower_learning_rate_has_no_effect.ipynb).
# - The code: sections 1 and 8 of the [walkthrough](../01_walkthrough.ipynb).
#   `scripts/audit_run.py RUN --against OTHER` compares two runs from the command line.
# - The cards: `ask(topic="evaluation")` in [03_deck](../03_deck.ipynb).
