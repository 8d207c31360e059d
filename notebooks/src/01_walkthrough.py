# variants: blank, hidden

# %% [markdown]
# # The walkthrough: a trainer that survives a kill
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({{colab}})
#
# Eight cells make up a data-parallel trainer. At the end you run it on two processes, kill
# one of them and start the job again. The final weights match those of an uninterrupted
# run, bit for bit, and the run's own records prove that no sample was lost and none was
# trained twice.
#
# **The one idea.** The order of the data is a pure function of (number of samples, seed,
# epoch). The position in that order is one integer: the number of optimizer steps
# completed. Resuming, changing the number of ranks and auditing both all follow from this.
#
# **What it's for.** This is the hardened trainer: the one you study, run, break and defend.
# Nobody types all of it in a 45-minute interview. If you explain while you type, you manage
# about 120 characters a minute, so the function bodies below add up to {{typing}}. Type one
# cell at a time; the minutes next to each say how long.
#
# | cell | you type | time | you only explain |
# |---|---|---|---|
# | 1 config | `global_batch_size`, `digest`, the checks across fields | {{typing config}} | the fields, each field's own bounds |
# | 2 data | `StepSchedule` and the sampler | {{typing data}} | the bijection, the datasets |
# | 3 model | `TinyNet`, the two groups, `learning_rate_at` | {{typing model}} | the decoder, the weights' hash |
# | 4 distributed | `maybe_init_dist`, `wrap_model`, `cleanup_dist` | {{typing distributed}} | raising together, the store |
# | 5 train | `train_step`, `summed_loss`, `update_weights` | {{typing train}} | reading the records |
# | 6 checkpoint | building, saving, choosing and restoring | {{typing checkpoint}} | publishing, retention |
# | 7 metrics | `StepTimers`, `phase`, `summarize_timers`, `log_rank_event` | {{typing metrics}} | the trace file |
# | 8 launch | `train_run`, `train_loop` and what they call | {{typing launch}} | SIGTERM, the run folder |
#
# The times count the characters of the function bodies you type, without comments,
# docstrings and whitespace.
#
# **How to use it.** First read it and run it from top to bottom; that takes an evening.
# Then open `01_walkthrough_hidden.ipynb`: the bodies you type are empty, and each answer is
# folded below its cell. Finish with `01_walkthrough_blank.ipynb`, which has no answers.
# Whatever you'd only explain is filled in everywhere.
#
# The text above each cell gives you lines to say: why you chose this, what it costs, and
# which metric would tell you it was wrong. Practice that last one most.
#
# **Words.** A *rank* is one process of the job, and the *world size* is how many there
# are. A *collective* is an operation that every rank must join, or the others wait. An
# *attempt* is one start of the job in a run folder; a restart begins the next one. The
# *ledger* is the run's record of which samples each rank trained in which step.
#
# The source is at [{{repository}}]({{repository}}). This notebook doesn't import it: every
# definition is in a cell. Collapsed cells hold the supporting code that nobody types in an
# interview.

# %% [markdown]
# ## Setup
#
# The notebook needs torch, numpy, matplotlib and cloudpickle. The next cell installs nothing
# that you already have, and needs the network only on Colab.

# %%
# %matplotlib inline
import importlib.util
import json
import math
import os
import pickle
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

NEEDED = ("torch", "numpy", "matplotlib", "cloudpickle")
missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if missing and "google.colab" in sys.modules:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *missing], check=True)
elif missing:
    raise ModuleNotFoundError(
        f"This kernel is missing {', '.join(missing)}, which the notebook needs. Run "
        "`make lab` in the repository, or pick the kernel from its .venv."
    )

# %%
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

FAST = os.environ.get("FAST") == "1"  # smaller runs, for a quick pass over the notebook
torch.set_num_threads(1)  # the runs below use two processes, perhaps on two cores
print(f"python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores")

# %% [markdown]
# ## 1. Config
#
# **What it's for.** One place for everything that affects training, validated before
# anything starts. Each field says what a resume may do with it. Changing an *identity* field
# makes the resume fail. Changing a *training* field takes effect and is logged. An
# *operation* field doesn't affect training at all. How the global batch is split may change,
# as long as its size stays the same.
#
# **What to say**
# - Why: "The config is frozen and validated on construction. A bad value fails right here,
#   with a message that says what to set instead, not forty minutes later on one rank."
# - Why: "The global batch is derived, so there's one source of truth. If the world size may
#   change and the batch mustn't, I pin it, and the ranks split it differently."
# - Cost: "Every new field needs a decision: is it identity, training or operation?"
# - How I'd notice it's wrong: "Two runs share a digest, but their loss curves differ. Then
#   a setting that affects training is missing from the digest. Or I see a `config_changed`
#   event nobody expected."
#
# **To type**, {{typing config}}: `__post_init__`, `data_kind`, `global_batch_size`,
# `digest`. **Explain only:** the fields and their bounds, and that the command-line flags
# are generated from the fields.
#
# **A weak answer** computes the digest, the config's fingerprint, with `hash()` and includes
# the rank. It then differs in every process, and you can't compare it with anything. It puts
# `grad_accum_steps` into the batch formula while the loop ignores it. And it silently
# overwrites the configured learning rate with the saved one.
#
# *Collapsed: how a single setting is declared and validated.*

# %% include="settings" collapsed=true

# %% include="config" typed="TrainConfig"

# %% [markdown]
# The digest depends on what is trained, not on how the batch is split or where the files
# are. Python's `hash()` of a string differs from one process to the next.

# %%
one = TrainConfig(micro_batch_size=32)
two = TrainConfig(micro_batch_size=16, world_size=2, run_dir=Path("elsewhere"), num_workers=4)
assert one.global_batch_size == two.global_batch_size == 32
assert one.digest() == two.digest() != TrainConfig(micro_batch_size=32, seed=18).digest()

unsalted = {key: value for key, value in os.environ.items() if key != "PYTHONHASHSEED"}
command = [sys.executable, "-c", "print(hash('seed=17'))"]
hashes = {subprocess.check_output(command, env=unsalted) for _ in range(3)}
print("digest", one.digest()[:16], "| different hash() values in 3 processes:", len(hashes))
assert len(hashes) > 1
try:
    TrainConfig(warmup_steps=100, decay_steps=100)
except UserError as error:
    print(error)

# %% [markdown]
# ## 2. Dataset and sampler
#
# **What it's for.** Which samples does a rank train on in a given step? One integer answers
# that, at any world size. This is where distributed training goes wrong without anybody
# noticing: a loss curve over the wrong samples looks perfectly healthy.
#
# **What to say**
# - Why: "I cut the epoch into global batches first, then deal each batch out to the ranks.
#   The batch is defined before the ranks are, so the world size can change between any two
#   steps."
# - Why: "The invariant: the position moves only in `commit`, and the loop calls that after
#   the optimizer has stepped. A loader that prefetches can't move it."
# - Cost: "The order is computed, not stored, and reads are scattered across the whole
#   dataset. On storage that needs sequential reads, I'd shuffle shards and keep the same
#   integer."
# - How I'd notice it's wrong: "Sample ids travel with the batch into a ledger. Duplicates
#   and misses per epoch must both be zero. If random reads make us input-bound, `data_wait`
#   p95 climbs first."
#
# **To type**, {{typing data}}: `StepSchedule` and `ResumeAwareDistributedSampler`.
# **Explain only:** the bijection behind the order, the dataset classes, and that loader
# workers die with their rank and ignore SIGTERM.
#
# **A weak answer** counts what the loader has fetched, so a resume skips whatever was still
# in the queue. It never resets that count, so every epoch after the first is empty, or it
# resets it in the wrong place, so the last epoch is trained twice. It pads the last batch
# with repeated samples, or drops it. And it keeps one counter per rank, which means nothing
# once the world size changes.
#
# *Collapsed: the order, which is a keyed bijection; and where samples come from.*

# %% include="order" collapsed=true

# %% include="datasets" collapsed=true

# %% include="signals" collapsed=true

# %% include="data" typed="StepSchedule ResumeAwareDistributedSampler"

# %% [markdown]
# The same step on one, two and three ranks: different shares, same samples. Over the epoch,
# each sample appears once, even though 42 is not divisible by 8.

# %%
tiny = TrainConfig(
    dataset_size=42, input_dim=8, hidden_dim=16, pinned_global_batch_size=8, device="cpu"
)
schedule = StepSchedule(num_samples=42, global_batch_size=8, max_epochs=2)


def shares(world_size, position):
    """The samples of each rank in the step at ``position``."""
    samplers = [
        ResumeAwareDistributedSampler(schedule, tiny, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    steps = [sampler.micro_batches(position) for sampler in samplers]
    return [[key.sample for batch in step for key in batch] for step in steps]


for world_size in (1, 2, 3):
    print(f"{world_size} rank(s), second step:", shares(world_size, position=1))
    epoch = [share for step in range(6) for share in shares(world_size, step)]
    assert sorted(sum(epoch, [])) == list(range(42))
assert shares(1, 0) != shares(1, 6)  # the first step of the next epoch has other samples

# %% [markdown]
# The order is a function, not a list. Out of a trillion samples, the five in the middle are
# as cheap to compute as the first five.

# %%
order = EpochOrder(10**12, seed=17, epoch=3)
print(order.samples(0, 5).tolist())
print(order.samples(5 * 10**11, 5 * 10**11 + 5).tolist())

# %% [markdown]
# A loader asks its sampler for more than has been trained. A sampler that counts what it
# hands out has already counted samples that nobody has trained. The committed position
# hasn't moved.

# %%
class CountsWhatWasFetched(ResumeAwareDistributedSampler):
    """The weak answer: it counts progress when the loader asks."""

    fetched = 0

    def __iter__(self):
        for batch in super().__iter__():
            self.fetched += len(batch)
            yield batch


# Loader workers need fork here, so on anything but Linux the loader runs in this process.
peek = replace(tiny, micro_batch_size=2, num_workers=2 if sys.platform == "linux" else 0)
sampler = CountsWhatWasFetched(schedule, peek, rank=0, world_size=1)
view = TrainingView(build_dataset(peek), seed=peek.seed, input_noise=0.0)
first = next(iter(build_dataloader(view, sampler, peek, torch.device("cpu"))))
print("got", len(first.samples), "| fetched", sampler.fetched, "| position", sampler.position)
assert sampler.fetched > 0 == sampler.position

# %% [markdown]
# Two torch defaults that this cell avoids. `DistributedSampler` repeats samples so that every
# rank gets the same number. And a `DataLoader` draws from the global random stream each time
# you iterate over it, unless you give it a generator.

# %%
parts = [list(DistributedSampler(range(10), num_replicas=4, rank=rank)) for rank in range(4)]
print("10 samples on 4 ranks:", sum(parts, []))
assert len(sum(parts, [])) == 12

torch.manual_seed(0)
before = torch.get_rng_state()
iter(DataLoader(range(4), generator=torch.Generator()))
assert torch.equal(before, torch.get_rng_state())
iter(DataLoader(range(4)))
assert not torch.equal(before, torch.get_rng_state())

# %% [markdown]
# ## 3. Model and optimizer
#
# **What it's for.** Whatever must exist before the first step, and nothing else: the
# network, the optimizer with its two parameter groups, a loss scaler for fp16 only, and the
# learning rate as a function of the step.
#
# **What to say**
# - Why: "The learning rate is a pure function of the step. A function has no state, so
#   there's no scheduler to save and none to forget."
# - Why: "I decay matrices only; by convention biases and norm gains are left alone, because
#   decaying them regularizes nothing useful. The scaler exists only for fp16, since bf16 has
#   the range of fp32."
# - Cost: "A schedule that reacts to the loss doesn't fit. It'd be one more piece of state in
#   the checkpoint, and one more decision on which all ranks must agree."
# - How I'd notice it's wrong: "The learning rate is in every progress event, so a jump after
#   a resume means the schedule got lost. Recurring skipped steps point to fp16 range."
#
# **To type**, {{typing model}}: `TinyNet`, `build_optimizer`, `learning_rate_at`. **Explain
# only:** the decoder, the weights' hash.
#
# **A weak answer** decays everything. It builds a disabled scaler and then tests whether a
# scaler exists, which is always true, so autocast is always on. And it keeps a scheduler
# object out of the checkpoint, so every resume repeats the warm-up.
#
# *Collapsed: the decoder that `tokens:PATH` trains.*

# %% include="decoder" collapsed=true

# %% include="model" typed="TinyNet build_optimizer learning_rate_at"

# %% [markdown]
# The schedule needs nothing but the step. The groups: two matrices with decay, two biases
# without.

# %%
plan = TrainConfig(warmup_steps=10, decay_steps=100, learning_rate=1.0, min_lr_fraction=0.1)
print({step: round(learning_rate_at(plan, step), 3) for step in (1, 5, 10, 55, 100, 200)})

net = TinyNet(8, 16, 4, 1, 0.0)
optimizer = build_optimizer(plan, net)
print([(len(group["params"]), group["weight_decay"]) for group in optimizer.param_groups])
assert build_scaler(plan, torch.device("cpu")) is None

# %% [markdown]
# A disabled scaler is still an object, so `if scaler:` is true. Autocast changes the type
# that the forward pass computes in, not the type of the weights or of their gradients. fp16
# loses small gradients that bf16 keeps; that's what the scaler is for.

# %%
assert torch.amp.GradScaler("cpu", enabled=False)

with torch.autocast("cpu", torch.bfloat16):
    logits = net(torch.randn(2, 8))
logits.float().sum().backward()
weight = next(net.parameters())
print("logits", logits.dtype, "| weights", weight.dtype, "| gradients", weight.grad.dtype)

small = torch.tensor(1e-8)
print("1e-8 in fp16:", small.half().item(), "| in bf16:", small.bfloat16().item())
assert small.half() == 0 != small.bfloat16()

# %% [markdown]
# ## 4. Rank wiring
#
# **What it's for.** A rank learns who it is from its environment, selects its device and
# joins the group, in that order. If a step can fail on just one rank, all ranks agree on the
# outcome before anyone acts.
#
# **What to say**
# - Why: "Identity comes from the environment, where the launcher puts it; that's the control
#   plane's job. The device depends on what this process can see. I select it before the first
#   allocation or collective, so nothing lands on the wrong GPU."
# - Why: "DDP is my baseline: every rank holds the whole model, gradients are averaged once a
#   step, and I can read its failures. I'd shard only when the replicated state doesn't fit."
# - Why: "An error on one rank becomes an error on all. If one rank bails out alone, the
#   others hang in their next collective, and the blast radius is the whole job."
# - Cost: "A small gather wherever a single rank can fail: at startup and at saves. And two
#   bytes per step, overlapped with the backward pass. Both go over gloo, so the control plane
#   stays off the data plane."
# - How I'd notice it's wrong: "Ranks are alive but no steps complete. Or recovery is slow: I'd
#   measure from the kill to the first new step, because restarted ranks may be trying to
#   reach dead peers."
#
# **To type**, {{typing distributed}}: `maybe_init_dist`, `wrap_model`, `cleanup_dist`,
# `unwrap`. **Explain only:** the store that keeps attempts apart, the checks on the number
# of GPUs, and `raise_on_all_ranks`, which is shown above the cell because everything after it
# uses it.
#
# **A weak answer** asks for NCCL on a machine without a GPU. It runs its first collective
# before it selects a device, so every rank ends up on `cuda:0`. It uses one seed for
# everything on every rank, so they all draw the same dropout. It lets each rank find its own
# latest checkpoint, and raises only on the rank whose file was missing.
#
# *Collapsed: where the ranks of one attempt meet; a rank's random streams; and `LocalRanks`, a
# stand-in for torchrun that starts gloo ranks as processes on this machine.*

# %% include="rendezvous" collapsed=true

# %% include="rng" collapsed=true

# %% include="local_launcher" collapsed=true

# %% include="collectives"

# %% include="distributed" typed="maybe_init_dist wrap_model cleanup_dist unwrap"

# %% [markdown]
# DDP averages over ranks. The first call also starts the server that ranks are forked from,
# so it takes longer than the later ones.

# %%
def on_ranks(job, world_size):
    """What ``job`` returns on each rank."""
    results = LocalRanks(job, world_size).wait(120)
    for rank, result in enumerate(results):
        assert result.exitcode == 0, f"[rank {rank}/{world_size}] {result.traceback}"
    return [result.value for result in results]


def averaged_gradient():
    info = maybe_init_dist(tiny)
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    model(torch.full((1, 1), info.rank + 1.0)).sum().backward()
    return unwrap(model).weight.grad.item()


gradients = on_ranks(averaged_gradient, 2)
print("local gradients 1 and 2; after DDP on each rank:", gradients)
assert gradients == [1.5, 1.5]

# %% [markdown]
# Rank 1 fails alone, yet both ranks stop, and both know why. Without that, rank 0 waits for a
# peer that has carried on without it, until its timeout expires: half a second here, 10 minutes
# by default under NCCL.

# %%
def one_rank_fails():
    info = maybe_init_dist(tiny)
    with errors_on_all_ranks():
        if info.rank == 1:
            raise UserError("shard-0007 is not on this node. Copy it there.")


def one_rank_skips_the_collective():
    info = maybe_init_dist(tiny)
    if info.rank == 1:
        time.sleep(1)
        return "carried on alone"
    try:
        dist.all_reduce(torch.zeros(1), async_op=True).wait(timedelta(seconds=0.5))
    except RuntimeError as error:
        return f"gave up: {str(error).splitlines()[0]}"


for rank, result in enumerate(LocalRanks(one_rank_fails, 2).wait(60)):
    print(f"rank {rank}, exit code {result.exitcode}:", result.traceback.splitlines()[-1])
    assert result.exitcode == 2
print(on_ranks(one_rank_skips_the_collective, 2))

# %% [markdown]
# Weights use the same seed on every rank; all later randomness differs per rank.

# %%
def draws(*parts):
    setup_seed(17, *parts)
    return torch.rand(3).tolist()


assert draws("weights") == draws("weights")
assert draws("rank", 0, 0) != draws("rank", 1, 0)

# %% [markdown]
# ## 5. The training step
#
# **What it's for.** One optimizer step: accumulate over micro-batches, synchronize once,
# clip, step. The key question: which samples is the gradient averaged over?
#
# **What to say**
# - Why: "I sum the loss over samples and scale it by W over S, world size over samples in the
#   step. DDP averages over ranks, so I get the mean over the step's samples, however they're
#   dealt. A mean of means is wrong once shares differ."
# - Why: "Every micro-batch but the last runs under `no_sync`, so we pay for one all-reduce. I
#   clip after the sync, on the true gradient, which is identical on all ranks."
# - Why: "The decision to skip an update is also made after the sync, on the device. All ranks
#   decide the same way, with no extra collective and no wait on the host."
# - Cost: "On a GPU I only read the loss when I log it, so a bad step is reported late. But the
#   bad update is never applied."
# - How I'd notice it's wrong: "The gradient norm changes with the number of ranks at the same
#   global batch. Or `grad_sync` grows with `grad_accum_steps`: we're synchronization-bound
#   because `no_sync` is missing."
#
# **To type**, {{typing train}}: `train_step`, `summed_loss`, `update_weights`. **Explain
# only:** the records that the host reads when it logs.
#
# **A weak answer** averages within each micro-batch and again over ranks. It steps after
# every micro-batch and calls that accumulation. It clips each rank's local gradient. It calls
# `.item()` on the loss in every step. And it saves NaN weights as its newest checkpoint.
#
# The step calls `phase`, which comes in cell 7. Until then two lines stand in for it, just as
# they would in an interview.

# %%
@contextmanager
def phase(timers, name):  # a stub; cell 7 replaces it
    yield


# %% include="train" typed="train_step summed_loss update_weights"

# %% [markdown]
# Eight samples as one batch, in uneven micro-batches, and split five and three over two
# ranks: the gradient is the same. Averaging the two ranks' own means gives a different one.

# %%
def gradient(cuts_of_ranks):
    """The gradient of one step; ``cuts_of_ranks[r]`` are the micro-batches of rank r."""
    cfg = replace(tiny, world_size=len(cuts_of_ranks), max_grad_norm=None)
    info = maybe_init_dist(cfg)
    setup_seed(17, "weights")
    net = TinyNet(8, 16, 8, 1, 0.0)
    model = wrap_model(net, info, torch.zeros(0, 8))
    cuts = [[SampleKey(0, sample) for sample in cut] for cut in cuts_of_ranks[info.rank]]
    batches = [view.__getitems__(cut) for cut in cuts]
    num_samples = sum(len(cut) for cuts in cuts_of_ranks for cut in cuts)
    trainer = Trainer(cfg, info.device, model, build_optimizer(cfg, net), None, None)
    train_step(trainer, batches, num_samples, lr=1e-3)
    return torch.cat([p.grad.flatten() for p in net.parameters()]).numpy()


single = gradient([[range(8)]])
uneven = gradient([[range(2), range(2, 7), range(7, 8)]])
two_ranks = on_ranks(partial(gradient, [[range(2), range(2, 5)], [range(5, 8)]]), 2)
mean_of_means = (gradient([[range(5)]]) + gradient([[range(5, 8)]])) / 2
compared = {"uneven": uneven, "two ranks": two_ranks[0], "mean of means": mean_of_means}
for name, other in compared.items():
    print(f"{name}: largest difference from the single batch {abs(single - other).max():.1e}")
assert np.allclose(single, uneven, atol=1e-6) and np.allclose(single, two_ranks[0], atol=1e-6)
assert np.array_equal(*two_ranks) and not np.allclose(single, mean_of_means, atol=1e-3)

# %% [markdown]
# What `no_sync` saves: the number of all-reduces in a step of four micro-batches.

# %%
def count_all_reduces(uses_no_sync):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    def counting(_, bucket):
        counts.append(1)
        return default_hooks.allreduce_hook(None, bucket)

    maybe_init_dist(tiny)
    counts, model = [], DistributedDataParallel(nn.Linear(4, 1))
    model.register_comm_hook(None, counting)
    for micro_step in range(4):
        skips = uses_no_sync and micro_step < 3
        with model.no_sync() if skips else nullcontext():
            model(torch.ones(2, 4)).sum().backward()
    return len(counts)


counts = [on_ranks(partial(count_all_reduces, uses), 2)[0] for uses in (True, False)]
print(f"{counts[0]} all-reduce with no_sync, {counts[1]} without")
assert counts == [1, 4]

# %% [markdown]
# How the update clips. In an interview, write `clip_grad_norm_` and then `optimizer.step()`:
# everybody can read it. Clipping that way makes two passes over the gradients, one for the
# norm and one to scale them. `update_weights` saves the second pass, not the first: the fused
# optimizer divides while it reads the gradients. It does that through `grad_scale` and
# `found_inf`, the attributes that `GradScaler` sets on a fused optimizer. They aren't a
# public interface, so call this an optimization and say what it depends on. The result is the
# same:

# %%
def one_update(clips_first):
    """The gradient norm, and the gradients that the optimizer has averaged."""
    setup_seed(17, "weights")
    net = TinyNet(8, 16, 8, 1, 0.0)
    optimizer = build_optimizer(tiny, net)
    (100 * net(torch.ones(4, 8))).square().sum().backward()
    if clips_first:
        norm = nn.utils.clip_grad_norm_(net.parameters(), tiny.max_grad_norm)
        optimizer.step()
    else:
        trainer = Trainer(tiny, torch.device("cpu"), net, optimizer, None, None)
        norm, _ = update_weights(trainer)
    # After one step AdamW's first moment is a tenth of what it took for the gradient.
    moments = [optimizer.state[p]["exp_avg"].flatten() for p in net.parameters()]
    return norm.item(), 10 * torch.cat(moments)


for clips_first, how in ((True, "clip_grad_norm_"), (False, "update_weights")):
    norm, used = one_update(clips_first)
    print(f"{how}: gradient norm {norm:.0f}, the optimizer used {used.norm():.4f}")
assert torch.allclose(one_update(True)[1], one_update(False)[1], atol=1e-6)
assert abs(used.norm() - tiny.max_grad_norm) < 1e-3 < norm

# %% [markdown]
# One NaN sample: the update is skipped and the weights are unchanged.

# %%
net = TinyNet(8, 16, 8, 1, 0.0)
trainer = Trainer(tiny, torch.device("cpu"), net, build_optimizer(tiny, net), None, None)
poisoned = view.__getitems__([SampleKey(0, sample) for sample in range(8)])
poisoned.inputs[3, 0] = float("nan")
before = weights_sha256(net)
withheld = train_step(trainer, [poisoned], 8, lr=1e-3)
assert withheld == 1 and weights_sha256(net) == before
try:
    read_records(trainer, 1)
except UserError as error:
    print(error)

# %% [markdown]
# ## 6. Checkpoint
#
# **What it's for.** A restart finds one intact checkpoint, and all ranks load the same one.
# How often you save decides how much work you lose. Whether the checkpoint is intact decides
# whether the run is correct.
#
# **What to say**
# - Why: "What must survive: model, optimizer, scaler, the sampler's integer, each rank's random
#   streams, step and epoch, and the run's identity. Weights alone aren't a checkpoint."
# - Why: "Files first, then a manifest with their hashes, then one rename. The rename publishes
#   the checkpoint; until then a restart can't see it."
# - Why: "Every rank flushes its ledger before the save, so there's evidence for whatever a
#   checkpoint claims."
# - Cost: "We hash and fsync every file. If we save asynchronously, the step pays for just one
#   copy in memory. The tradeoff is a second copy of the state and errors that surface a step
#   later."
# - How I'd notice it's wrong: "The age of the newest checkpoint, which is our RPO; the
#   `checkpoint` phase's max; and any `checkpoint_rejected` event. After a resume, loss, learning
#   rate and position must carry on without a jump, logged as one event."
#
# **To type**, {{typing checkpoint}}: `build_checkpoint`, `save_checkpoint`,
# `latest_checkpoint_path`, `restore_if_present`. **Explain only:** publishing, retention and
# the asynchronous writer, which are in the collapsed cells. (The drill on this cell has you
# type the publishing too, so it takes longer.)
#
# **A weak answer** writes straight to the final name and loads the newest file, so one kill
# during a save breaks every restart. It compares names instead of numbers. It stores numpy's
# random state, which `torch.load` refuses by default. It restores rank 0's random state on
# all ranks. And it deletes the old checkpoint before it has read the new one back.
#
# *Collapsed: how a folder of files is published, verified and set aside.*

# %% include="checkpoint_format" collapsed=true

# %% include="checkpoint_writer" collapsed=true

# %% include="checkpoint" typed="build_checkpoint save_checkpoint latest_checkpoint_path restore_if_present"

# %% [markdown]
# Why hash the files at all? A checkpoint is a zip archive, and each record in it has a
# checksum. `zipfile` verifies it and names the damaged record. `torch.load` doesn't look at
# it. Below, one flipped bit in an optimizer moment turns 0.0 into 2.0, and `torch.load`
# returns it without complaint.

# %%
root = Path(tempfile.mkdtemp(prefix="walkthrough-"))
path = root / "moments.pt"
torch.save({"exp_avg": torch.zeros(1000)}, path)
with zipfile.ZipFile(path) as archive:
    (record,) = [record for record in archive.infolist() if record.file_size == 4000]

content = bytearray(path.read_bytes())
header = content[record.header_offset :][:30]
name_size, extra_size = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
data = record.header_offset + 30 + name_size + extra_size  # where the floats begin
content[data + 3] ^= 0x40  # one bit in the exponent of the first float
path.write_bytes(content)

loaded = torch.load(path)["exp_avg"]
with zipfile.ZipFile(path) as archive:
    print("saved 0.0, loaded", loaded[0].item(), "| testzip() names", archive.testzip())
    assert loaded[0] == 2.0 and loaded[1:].sum() == 0 and archive.testzip() == record.filename

# %% [markdown]
# `torch.load` does refuse numpy's random state: by default it loads nothing that could run
# code. It accepts the format used here for a rank's random streams.

# %%
torch.save(np.random.get_state(), path)
try:
    torch.load(path)
except pickle.UnpicklingError as error:
    print("numpy's state:", str(error).partition(".")[0])
torch.save(rng_state(), path)
set_rng_state(torch.load(path))

# %% [markdown]
# Two published checkpoints, and the newer one is torn afterwards. The restore falls back to
# the older one and says why. The alphabetically last name is not the latest step.

# %%
checkpoints = root / "checkpoints"
for step in (99_999_999, 100_000_000):
    temporary = checkpoints / f"tmp-{step}"
    temporary.mkdir(parents=True)
    torch.save({"step": step}, temporary / "state.pt")
    publish(temporary, checkpoints / f"step-{step:08d}", {"step": step})
print("last name:  ", max(path.name for path in checkpoints.iterdir()))
newest = latest_checkpoint_path(checkpoints)[0]
print("latest step:", newest.name)
assert newest.name == "step-100000000"

with (newest / "state.pt").open("ab") as file:
    file.truncate(100)
fallback, manifest, damaged = latest_checkpoint_path(checkpoints)
print("after the tear:", fallback.name, "because", damaged[newest][:60], "...")
assert fallback.name == "step-99999999" and manifest["step"] == 99_999_999

# %% [markdown]
# Two more torch behaviors to know. An optimizer's `load_state_dict` overwrites the configured
# learning rate with the saved one, so `restore_if_present` keeps the configured groups. And a
# state dict holds the live tensors, which the next step changes, so an asynchronous save
# copies them first.

# %%
net = TinyNet(8, 16, 8, 1, 0.0)
configured = torch.optim.AdamW(net.parameters(), lr=1e-4)
configured.load_state_dict(torch.optim.AdamW(net.parameters(), lr=1e-3).state_dict())
print("configured 1e-4, after load_state_dict:", configured.param_groups[0]["lr"])

live, copied = net.state_dict(), HostSnapshot().copy(net.state_dict())
with torch.no_grad():
    net.layers[0].weight += 1
assert torch.equal(live["layers.0.weight"], net.layers[0].weight)
assert not torch.equal(copied["layers.0.weight"], net.layers[0].weight)

# %% [markdown]
# ## 7. Metrics
#
# **What it's for.** It tells you which phase of the step is slow, and what each rank did last.
#
# **What to say**
# - Why: "The phases add up to the step's wall time, and whatever's left has its own name. A
#   breakdown that hides the loader is worse than none."
# - Why: "Percentiles, per rank, plus the max. A mean hides spikes, p95 misses anything rarer
#   than one step in twenty, and a synchronous step is as slow as its straggler."
# - Why: "Every rank writes JSON lines straight through to the operating system. The last line
#   before a kill is the one I need."
# - Cost: "Two clock reads per phase and one write per event. On CUDA the timestamps are stream
#   events, read once they complete."
# - How I'd notice it's wrong: "`other` grows, which is time that no phase claims. Then a phase
#   is missing from the list."
#
# **To type**, {{typing metrics}}: `StepTimers`, `phase`, `summarize_timers`,
# `log_rank_event`. **Explain only:** CUDA events, the gradient hooks that separate
# `grad_sync` from `backward`, the trace file.
#
# **A weak answer** times forward and backward, but neither the wait for data nor the save. It
# reports the mean of an epoch. It logs on rank 0 only, with rank 0's own loss. And it prints
# to a buffered stream, so the log ends long before the kill.
#
# *Collapsed: JSON lines and a trace that survive a kill.*

# %% include="json_lines" collapsed=true

# %% include="chrome_trace" collapsed=true

# %% include="metrics" typed="StepTimers phase summarize_timers log_rank_event"

# %% [markdown]
# Twenty steps, one of them with a slow save. The phases add up to the wall time. The max shows
# the save; the mean, the p50 and the p95 hide it.

# %%
timers = StepTimers(torch.device("cpu"))
for step in range(1, 21):
    with phase(timers, "forward"):
        time.sleep(0.001)
    with phase(timers, "checkpoint"):
        time.sleep(0.05 if step == 7 else 0)
    timers.end_step(step)
steps = [spent for _, spent, _ in timers.read()]
summary = summarize_timers(steps)["checkpoint"]
print(f"checkpoint: mean {np.mean([s['checkpoint'] for s in steps]):.1f} ms,", summary)
wall_ms = timers.between_ms(timers.origin, timers.step_start)
assert abs(sum(sum(spent.values()) for spent in steps) - wall_ms) < 0.01 * wall_ms

# %% [markdown]
# The number of steps doesn't matter. Saves are rare, so percentiles over *all* steps never see
# them: with one save of 2000 ms in 200 steps, p50 and p95 are both 0. Use the max, or the p50
# of the steps that saved.

# %%
steps = [{**dict.fromkeys(PHASES, 0.0), "checkpoint": 2000.0 * (s == 77)} for s in range(200)]
saved = [spent for spent in steps if spent["checkpoint"]]
print("all 200 steps:  ", summarize_timers(steps)["checkpoint"])
print("steps that saved:", summarize_timers(saved)["checkpoint"])
assert summarize_timers(steps)["checkpoint"] == {"p50": 0.0, "p95": 0.0, "max": 2000.0}
assert summarize_timers(saved)["checkpoint"]["p50"] == 2000.0

# %% [markdown]
# A rank writes five lines to its log and five to an ordinary file, then gets killed.

# %%
def write_and_die(folder):
    log, ordinary = JsonlSink(folder / "log.jsonl"), (folder / "ordinary.txt").open("w")
    for step in range(5):
        log.emit({"step": step})
        print(step, file=ordinary)
    os.kill(os.getpid(), signal.SIGKILL)


code = LocalRanks(partial(write_and_die, root), 1).wait(60)[0].exitcode
lines = {name: (root / name).read_text().count("\n") for name in ("log.jsonl", "ordinary.txt")}
print("exit code", code, "| lines that survived:", lines)
assert lines == {"log.jsonl": 5, "ordinary.txt": 0}

# %% [markdown]
# ## 8. Launch and resume
#
# **What it's for.** The same command runs again after a crash. This cell decides what happens
# then, on every rank, and in which order.
#
# **What to say**
# - Why: "There's no resume flag. On start, the trainer resumes from the newest checkpoint in the
#   run folder that passes verification, or starts fresh. It makes no difference whether a
#   scheduler, torchrun or a person restarts it."
# - Why: "Rank 0 reads and decides. The others check that they see the same folder, and follow."
# - Why: "Build order is a choice with constraints. The optimizer must own the parameters it
#   updates; under FSDP2 those exist only after `fully_shard`. Random streams come last, because
#   everything before draws from them."
# - Why: "With plain process groups, the whole job is one failure domain: if one rank dies, we
#   restart them all. We lose at most the steps since the last checkpoint."
# - Cost: "We retrain the steps since the last checkpoint. The save interval trades that against
#   the time spent saving."
# - How I'd notice it's wrong: "Goodput: useful step time over wall time, across all attempts. And
#   the audit, which must say that every sample was trained exactly once."
#
# **To type**, {{typing launch}}: `run`, `train_run`, `train_loop`, `next_step`, `save`. In an
# interview, reduce it to build, restore, step, commit, save. **Explain only:** SIGTERM, the
# run folder, and that a finished run changes no file.
#
# **A weak answer** lets every rank decide for itself. It relies on DDP to repair a bad restore.
# It saves at the end of an epoch under that epoch's number, so a restart trains the epoch
# again. And it exits immediately on SIGTERM.
#
# **"Would you keep going without the dead rank?"** A plain process group can't, and neither can
# DDP. Others can: torchft keeps replica groups training and lets a restarted one rejoin, and
# NCCL can shrink a communicator (`shrink_group` in recent versions of torch). I'd take on that
# complexity once restarts cost real goodput: many ranks, slow startup, large state.
#
# *Collapsed: the run folder and its identity, the hang watchdog, and what a rank writes down
# while it trains.*

# %% include="run_folder" collapsed=true

# %% include="watchdog" collapsed=true

# %% include="journal" collapsed=true

# %% include="launch" typed="run train_run train_loop next_step save"

# %% [markdown]
# **Build order, part one: a choice.** Restore and then wrap in DDP, or wrap and then restore:
# one step later, both ranks have the same weights either way. This trainer restores first,
# so nothing is broadcast that the restore would overwrite.

# %%
def train_one_step(restores_first):
    info = maybe_init_dist(tiny)
    setup_seed(17, "weights")
    saved = TinyNet(8, 16, 8, 1, 0.0).state_dict()
    setup_seed(17, "elsewhere", info.rank)
    net = TinyNet(8, 16, 8, 1, 0.0)
    if restores_first:
        net.load_state_dict(saved)
    model = DistributedDataParallel(net)
    if not restores_first:
        net.load_state_dict(saved)
    optimizer = build_optimizer(tiny, net)
    model(torch.full((4, 8), 1.0 + info.rank)).square().mean().backward()
    optimizer.step()
    return weights_sha256(net)[:16]


orders = {first: on_ranks(partial(train_one_step, first), 2) for first in (True, False)}
print("restore, then wrap:", orders[True])
print("wrap, then restore:", orders[False])
assert len({*orders[True], *orders[False]}) == 1

# %% [markdown]
# **Part two: what DDP hides.** When DDP is constructed, it broadcasts rank 0's weights. If rank
# 1 restored a different checkpoint, its weights are now silently right. Its optimizer moments
# aren't, and one step later the replicas differ again. So all ranks must agree on the checkpoint
# before they load it; DDP isn't a substitute.

# %%
def rank_1_restores_something_else():
    info = maybe_init_dist(tiny)
    setup_seed(17, "weights", info.rank)  # each rank's "checkpoint" has weights of its own
    net = TinyNet(8, 16, 8, 1, 0.0)
    optimizer = build_optimizer(tiny, net)
    net(torch.ones(4, 8)).square().sum().backward()
    optimizer.step()  # ... and optimizer moments of its own
    optimizer.zero_grad()
    hashes = [weights_sha256(net)[:8]]
    model = DistributedDataParallel(net)
    hashes.append(weights_sha256(net)[:8])
    model(torch.ones(4, 8)).square().sum().backward()
    optimizer.step()
    return [*hashes, weights_sha256(net)[:8]]


same = []
for when, *hashes in zip(
    ("restored", "wrapped", "one step later"), *on_ranks(rank_1_restores_something_else, 2)
):
    same.append(hashes[0] == hashes[1])
    print(f"{when:15} rank 0 {hashes[0]}, rank 1 {hashes[1]}")
assert same == [False, True, False]

# %% [markdown]
# **Part three: FSDP2 turns the order around.** `fully_shard` replaces the parameters. An
# optimizer created before it still owns the old ones, which never get a gradient, so it updates
# nothing and says nothing. With DDP the order model, optimizer, wrap works. With FSDP2 it's the
# bug.

# %%
def parameters_updated(optimizer_first):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    maybe_init_dist(tiny)
    net = TinyNet(8, 16, 8, 1, 0.0)
    if optimizer_first:
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    if not optimizer_first:
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    before = [p.to_local().clone() for p in net.parameters()]
    net(torch.ones(4, 8)).square().sum().backward()
    optimizer.step()
    after = [p.to_local() for p in net.parameters()]
    return sum(not torch.equal(a, b) for a, b in zip(before, after)), len(after)


for first in (True, False):
    (updated, total), _ = on_ranks(partial(parameters_updated, first), 2)
    print(f"optimizer {'before' if first else 'after'} fully_shard: {updated} of {total} updated")
    assert updated == (0 if first else total)

# %% [markdown]
# ## Run it
#
# First in this process, to the end. The toy data has labels that can be learned; dropout and
# input noise are on, so that every random stream matters.

# %%
base = TrainConfig(
    run_dir=root / "one",
    data="toy",
    dataset_size=1000,
    max_epochs=3 if FAST else 5,
    pinned_global_batch_size=32,
    learning_rate=3e-3,
    warmup_steps=10,
    dropout=0.1,
    input_noise=0.1,
    checkpoint_every_steps=20,
    log_every=10,
    device="cpu",
)
alone = run(base)
alone

# %% [markdown]
# Run again, it sees that it has finished and changes nothing.

# %%
def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


before = files(base.run_dir)
assert run(base) == alone and files(base.run_dir) == before

# %% [markdown]
# Now on two ranks, each a separate process, uninterrupted. Both end with the same weights. They
# differ from the single-process run, because each rank draws its own dropout. The samples of
# each step are the same, as the audit below confirms.

# %%
straight = replace(base, run_dir=root / "straight")
reference = on_ranks(partial(run, straight), 2)
hashes = [result["weights_sha256"] for result in reference]
assert hashes[0] == hashes[1] != alone["weights_sha256"]
print(reference[0])

# %% [markdown]
# ## Kill a rank
#
# The same run again. As soon as rank 1's ledger shows a step between two checkpoints, rank 1
# gets a SIGKILL: no handler runs, nothing is flushed. Gloo notices the closed connection, so
# rank 0 fails at once. This time saves are asynchronous, which must not change the weights
# either.

# %%
killed = replace(base, run_dir=root / "killed", async_checkpoint=True)
ledger = killed.run_dir / "ledger" / "rank-1.jsonl"
workers = LocalRanks(partial(run, killed), 2)
while workers.processes[1].is_alive():
    if ledger.exists() and ledger.read_bytes().count(b"\n") >= 50:
        workers.kill(1)
        break
    time.sleep(0.005)
ends = workers.wait(60)
print("exit codes", [end.exitcode for end in ends])
print("rank 0:", ends[0].traceback.splitlines()[-1][:110])
print("published:", list(published_steps(killed.run_dir / "checkpoints")))
assert ends[1].exitcode == -9
copy = shutil.copytree(killed.run_dir, root / "three")  # for three ranks, below

# %% [markdown]
# Start the same command again. The final weights match those of the uninterrupted run.

# %%
resumed = on_ranks(partial(run, killed), 2)
print("straight", reference[0]["weights_sha256"])
print("resumed ", resumed[0]["weights_sha256"])
assert resumed[0]["weights_sha256"] == reference[0]["weights_sha256"]

# %% [markdown]
# **With NCCL, a dead peer looks different.** A collective is a kernel on the GPU. When a peer
# dies, that kernel usually keeps waiting, and the host hangs at its next sync. NCCL sometimes
# reports a network error sooner, but don't count on it. What ends the wait:
#
# - **torchrun's agent** on the dead rank's node sees the exit, ends that node's other ranks and
#   starts a new rendezvous, the round in which agents agree on who takes part. The other nodes'
#   agents see it and restart their ranks. A rank that hangs without dying triggers none of this.
# - **The process group's watchdog**, a thread in every rank. It ends the process when a
#   collective exceeds the group's timeout: 10 minutes by default, `dist_timeout_s` here.
# - **This trainer's own watchdog**, `hang_timeout_s`, which fires when no step completes and
#   names the rank that the others seem to be waiting for.
#
# The settings to know:
#
# | variable | what it controls |
# |---|---|
# | `TORCH_NCCL_ASYNC_ERROR_HANDLING` | what the watchdog does at a timeout or an error. 3, the default: end the process. 1: abort the communicators first. 0: nothing |
# | `TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC` | how long the watchdog itself may be stuck before a monitor thread ends the process |
# | `TORCH_FR_BUFFER_SIZE` | events kept by the flight recorder, each rank's record of its last collectives. Older name: `TORCH_NCCL_TRACE_BUFFER_SIZE` |
# | `TORCH_NCCL_DUMP_ON_TIMEOUT` | whether the flight recorder is written out at a timeout (it needs a buffer above 0). Compare the ranks' dumps: the one that never entered the collective is your suspect |
#
# Say: "On gloo a death is an error; on NCCL it's a hang until something times out. So detection
# time goes into my recovery budget, and I keep the flight recorder on." Without a GPU we can't
# show the hang, but the names and timeouts below come from the torch you have installed:

# %%
headers = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d"
text = "".join(path.read_text() for path in headers.glob("*.hpp"))
for name in (
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
):
    print(f"{name:34}", "in torch" if f'"{name}"' in text else "not in this version")
print(f"{'shrink_group':34}", "in torch" if hasattr(dist, "shrink_group") else "not here")
found = re.search(r"NCCLDefaultTimeout =\s*std::chrono::milliseconds\(([\d *]+)\)", text)
print("default timeout, gloo:", dist.constants.default_pg_timeout)
assert dist.constants.default_pg_timeout == timedelta(minutes=30)
if found:  # some builds come without these headers
    nccl_timeout = timedelta(milliseconds=math.prod(map(int, found[1].split("*"))))
    print("default timeout, nccl:", nccl_timeout)
    assert nccl_timeout == timedelta(minutes=10)

# %% [markdown]
# ## The proof
#
# Matching weights are strong evidence; differing weights don't tell you why. The audit reads
# the ledger. For each step it takes the attempt whose work survived and compares it with the
# order from cell 2. *Replayed* steps are the ones a later attempt had to train again. *Goodput*
# is useful step time over wall time, across all attempts.
#
# *Collapsed: the audit, which only reads files, and the pictures.*

# %% include="rehearsal.evidence.audit" collapsed=true

# %% include="rehearsal.evidence.pictures" collapsed=true

# %%
for folder in (base.run_dir, straight.run_dir, killed.run_dir):
    report = audit_run(folder)
    assert report.status == "proved", report.findings
    print(f"{folder.name:9} {report.status}: {report.verdict}; attempts: {report.attempts}, "
          f"steps replayed: {report.replayed_steps}, goodput: {report.goodput:.2f}")
for line in (killed.run_dir / "logs/rank-0.jsonl").read_text().splitlines():
    if (event := json.loads(line))["event"] == "resume_validated":
        print("resume validated:", event["checks"])

# %% [markdown]
# The checkpoint doesn't care about the number of ranks. The copy we made after the kill resumes
# on three. The global batch is pinned, so only the shares change, and again every sample is
# trained exactly once.

# %%
on_three = on_ranks(partial(run, replace(killed, run_dir=copy)), 3)
report = audit_run(copy)
assert report.status == "proved" and on_three[0]["step"] == resumed[0]["step"]
print(f"{report.status}: {report.verdict}")

# %% [markdown]
# ## Four pictures
#
# **Loss, straight against resumed.** The steps that were trained twice lie on the same curve.

# %%
loss_curves({"straight": straight.run_dir, "killed and resumed": killed.run_dir})

# %% [markdown]
# **The sample map.** Each column is a step, and each cell is a sample in the color of its rank.
# The dashed frame shows the work lost to the kill and redone by attempt 1.

# %%
sample_map(killed.run_dir)

# %% [markdown]
# **Phases per rank.** The ranks move in lockstep, so a delay shows up on the rank that was
# early: its `grad_sync` is long because the other one was the straggler. The numbers say
# nothing about the speed of a GPU or a network.

# %%
phase_bars(straight.run_dir)

# %% [markdown]
# **A timeline.** A few steps of both ranks on one clock; the first one ends with a save. You can
# see who waits for whom, and when. The files are Chrome traces, in `traces/` in the run folder.

# %%
rank_timeline(straight.run_dir, first_step=40, num_steps=4)

# %% [markdown]
# ## What can stay an interface
#
# Four things you don't build in an interview. You name each one, state its contract in one
# sentence, and a local stand-in keeps the boundary honest. You already have the fourth: an
# exporter is one more `Sink`.

# %% include="integrations.interfaces"

# %% [markdown]
# **Multi-node bootstrap.** If they ask how this gets to eight nodes: "Nothing in the trainer
# knows how it was started. The control plane gives each process a rank, the world size and an
# address: torchrun here, a cluster's launcher there. I'd check that every rank showed up;
# `agree_on_start` already checks that all nodes see one run folder."

# %%
worlds = [
    HostListBootstrap(["node-a", "node-b"], 2, host, local_rank).world()
    for host in range(2)
    for local_rank in range(2)
]
assert [world.rank for world in worlds] == [0, 1, 2, 3]
print(worlds[3].environment())

# %% [markdown]
# **Object store.** If they ask about a bucket instead of a disk: "A general-purpose S3 bucket has
# no rename, so I publish with the last small object I write: a pointer, written only if it
# doesn't exist yet. A killed upload leaves unreachable objects, which are cleaned up by age."
# (S3 directory buckets do have a rename, `RenameObject`. The pointer works on both.)

# %%
store = FolderStore(root / "bucket")
newest = latest_checkpoint_path(straight.run_dir / "checkpoints")[0]
store.put_if_absent(f"uploads/{newest.name}-cut/state.pt", b"half of it")  # a killed upload
assert download_newest(store, root / "fetched") is None
assert upload_checkpoint(store, newest) and not upload_checkpoint(store, newest)
fetched = download_newest(store, root / "fetched")
print("fetched", fetched.name, "and verified its", len(verify(fetched)["files"]), "files")

# %% [markdown]
# **Scheduler.** If they ask who restarts the job: "Whoever owns the machines, under our policy. A
# killed job restarts. Exit code 2 goes to a person, because a restart would only fail again. The
# number of restarts is capped: if no step completes between two restarts, restarting won't help."

# %%
scheduler = LocalScheduler()
outcomes = iter([-9, 1, 0])
jobs = [scheduler.submit(lambda: next(outcomes)), scheduler.submit(lambda: 2)]
print("restarts:", [restart_while_useful(scheduler, job, max_restarts=5) for job in jobs])
assert [scheduler.exit_code(job) for job in jobs] == [0, 2]

# %% [markdown]
# **Vendor exporters.** If they ask about a metrics vendor: "An exporter gets the same events as
# the file, through two methods. I pass it to `run`, and the trainer never learns its name."

# %%
class MemorySink:
    """A vendor that keeps everything in a list."""

    def __init__(self):
        self.records = []

    def emit(self, record):
        self.records.append(record)

    def close(self):
        pass


sink = MemorySink()
run(replace(base, run_dir=root / "exported", max_epochs=1), sinks=[sink])
print([record["event"] for record in sink.records])
assert sink.records[-1]["event"] == "run_end"

# %% [markdown]
# ## The last minute
#
# Five sentences to close with:
#
# 1. "The order of the data is a pure function of size, seed and epoch. The position is one
#    integer, and it moves only after the optimizer has stepped."
# 2. "A gradient is a sum weighted by samples, so neither the number of ranks nor the split into
#    micro-batches changes what we train."
# 3. "A checkpoint is published by one rename, verified when it's read, and loaded by all ranks or
#    by none."
# 4. "If something can fail on one rank, all ranks agree before anyone acts. And whatever is slow
#    has a phase with a name."
# 5. "You don't have to take my word for it: the ledger says which sample was trained in which
#    step, and the audit checks that each was trained exactly once."
#
# ## Where to find each answer
#
# | question | where |
# |---|---|
# | How do you know a resume is correct? | Kill a rank; The proof; `validate_resume`, collapsed, in 8 |
# | What's the most dangerous silent failure? | 2: samples lost or repeated while the loss looks healthy |
# | The world size changes on resume: what breaks? | 2: only the shares, if the batch is pinned; the run on three ranks |
# | Why DDP and not sharding? | 4, second line to say |
# | Does the order of building matter? | 8: build order, parts one to three |
# | What must survive a restart? | 6, first line to say |
# | A checkpoint is half written: what now? | 6: the torn one |
# | It's slow every twenty minutes: where do you look? | 7: the `checkpoint` phase's max, or the p50 of the steps that saved, against the save interval |
# | One rank hangs: how do you find it? | 4: raise together; 8, collapsed: the watchdog's report; Kill a rank: the flight recorder |
# | A peer dies under NCCL: what do the others see? | Kill a rank: the watchdog and its timeouts |
# | Loss falls but throughput is poor? | 7: phase bars, then the phase that dominates |
# | Is the gradient right with uneven batches? | 5: the mean of means |
# | A NaN appears: what do all ranks do? | 5: the NaN sample |
# | The replicas drift apart: how would you see it? | Run it: the weights' hash on both ranks |
# | What wouldn't you build? | What can stay an interface |
#
# ## What to practice next
#
# - `01_walkthrough_hidden.ipynb`, then `01_walkthrough_blank.ipynb`, one cell at a time, against
#   the minutes printed next to it. The small cells after each one tell you whether it does what
#   it claims.
# - Then break one thing in this notebook, and predict which cell fails first before you run it.
#   Divide the loss by the micro-batch's own size. Let `__iter__` move the position. Leave out
#   `no_sync`. Sort checkpoints by name. Leave the hashes out of `verify`. Give the loader no
#   generator. Don't restore the random streams. Don't restore the optimizer state.
# - Say the last line of each "What to say" from memory: which metric would tell you it was wrong?
