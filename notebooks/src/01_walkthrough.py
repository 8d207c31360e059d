# %% [markdown]
# # The walkthrough: a trainer that survives a kill
#
# {{badge}}
#
# Eight cells make up a data-parallel trainer. At the end you run it on two processes, kill
# one of them and start the job again. The final weights match those of an uninterrupted
# run, bit for bit, and the run's own records prove that those weights saw every sample
# exactly once per epoch.
#
# **The one idea.** The order of the data is a pure function of (number of samples, seed,
# epoch). The position in that order is one integer: the number of optimizer steps
# completed. Resuming, changing the number of ranks and auditing the run all follow from this.
#
# **What it's for.** This is the sequel to [the live trainer](01_live.ipynb), which you type in
# 45 minutes; start there. Here the same eight cells are hardened: this is the trainer that you
# study, run, break and defend. Nobody types all of it in an interview. If you explain while you
# type, you manage about 120 characters a minute. At that pace, the function bodies in the
# second column add up to {{typing}}, so practice one cell at a time.
#
# | cell | you type | time | you only explain |
# |---|---|---|---|
# | 1 config | `global_batch_size`, `digest`, the checks across fields | {{typing config}} | the fields, each field's own bounds |
# | 2 data | `StepSchedule` and the sampler | {{typing data}} | how the order is computed, the datasets |
# | 3 model | `TinyNet`, the two parameter groups, `learning_rate_at` | {{typing model}} | the decoder, hashing the weights |
# | 4 distributed | `maybe_init_dist`, `wrap_model`, `cleanup_dist`, `unwrap` | {{typing distributed}} | raising on all ranks, the store where ranks meet |
# | 5 train | `train_step`, `summed_loss`, `update_weights` | {{typing train}} | reading the records |
# | 6 checkpoint | building, saving, choosing and restoring a checkpoint | {{typing checkpoint}} | publishing it, deleting old ones |
# | 7 metrics | `StepTimers`, `phase`, `summarize_timers`, `log_rank_event` | {{typing metrics}} | the trace file |
# | 8 launch | `run`, `train_run`, `train_loop`, `next_step`, `save` | {{typing launch}} | SIGTERM, the run folder |
#
# The character counts leave out comments, docstrings and whitespace.
#
# **How to use it.** Read it and run it from top to bottom; that takes an evening. To type a
# cell, take its drill from the advanced set in [02_rehearse](02_rehearse.ipynb), which checks
# your code on real ranks. Each drill shows its own time. Some have you type more than the table
# says, so they take longer.
#
# The text above each cell gives you lines to say: why you chose this, what it costs, and
# which metric would tell you it was wrong. Practice that last one most.
#
# **Terms.** A *rank* is one process of the job, and the *world size* is how many there are.
# A *collective* is an operation that every rank must join; if one doesn't, the others wait.
# The *run folder* has a run's checkpoints and logs. An *attempt* is one start of the job in
# that folder; a restart is the next attempt. The *ledger* is the record of which samples each
# rank trained on in each step. The *digest* is a hash of every setting that defines the
# training.
#
# The source is at [{{repository}}]({{repository}}). This notebook doesn't import it: every
# definition is in a cell. Collapsed cells contain supporting code that nobody types in an
# interview.

# %% [markdown]
# ## Setup
#
# The notebook needs torch, numpy, matplotlib and cloudpickle. The collapsed cell installs what
# is missing on Colab, and nothing elsewhere.

# %% collapsed=true
# {{setup torch numpy matplotlib cloudpickle}}

# %%
# %matplotlib inline
import errno
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

# %%
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

FAST = os.environ.get("FAST") == "1"  # shorter runs, to check the notebook quickly
torch.set_num_threads(1)  # the runs below use up to three processes, often on two cores
print(f"python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores")

# %% [markdown]
# ## From live to hardened
#
# You typed the live trainer in `01_live`: about 200 lines that survive a kill. This notebook is the
# sequel. Each of the eight sections below opens with a fault that the live trainer doesn't
# survive, or survives without telling anyone. We run it, watch what breaks, and then build the
# part that handles it. Near the end, the same faults hit the hardened trainer.
#
# The faults are small patches that run inside a rank: a full disk, a slow one, a rank that gets
# stuck. On purpose, most of them break torch or the operating system rather than our code, so
# the same patch works on both trainers.
#
# *Collapsed: how a setting is declared and checked; `LocalRanks`, a stand-in for torchrun that
# starts gloo ranks as processes on this machine; and the text of the live trainer.*

# %% include="settings" collapsed=true

# %% include="local_launcher" collapsed=true

# %% include="live" string="LIVE"

# %%
faulty = Path(tempfile.mkdtemp(prefix="faulty-"))


def live_trainer():
    """What live.py defines, kept separate from this notebook's definitions."""
    live = {"__name__": "live"}
    exec(compile(LIVE, "live.py", "exec", dont_inherit=True), live)
    return live


def run_live(settings, fault, world):
    """In a rank: run the live trainer with a fault."""
    os.chdir(world)
    live = live_trainer()
    fault(live)
    return live["run"](live["TrainConfig"](**settings))


def no_fault(trainer):
    pass


def live_ranks(world_size, run_dir, fault=no_fault, **settings):
    """Start the live trainer on a small plan."""
    plan = {"dataset_size": 200, "max_epochs": 1, "device": "cpu", **settings}
    return LocalRanks(partial(run_live, {"run_dir": run_dir, **plan}, fault, faulty), world_size)


def last_line(result):
    """How a rank ended, in a line."""
    if result.exitcode == 0:
        return f"exit code 0, weights {result.value['weights_sha256'][:8]}"
    error = (result.traceback.splitlines() or ["no traceback"])[-1]
    error = re.sub(r"\[/\S+\] ", "", error)  # no path of gloo's source
    return f"exit code {result.exitcode}, {error.partition('. ')[0]}"


def live_lines(run_dir, rank=0):
    """A rank's ledger, one dict per step."""
    path = faulty / run_dir / "ledger" / f"rank-{rank}.jsonl"
    return [line for line in map(json.loads, path.open()) if "samples" in line]

# %% [markdown]
# ## 1. Config
#
# **The fault that forces it: somebody restarts the job with a different seed.** The live
# trainer trains an epoch, and then starts again with seed 18 and one more epoch. The first call
# of `live_ranks` takes longer than later ones, because it also starts the server process that
# forks the ranks.

# %%
live_ranks(1, "new_seed", seed=17).wait(60)
restarted = live_ranks(1, "new_seed", seed=18, max_epochs=2).wait(60)
print(last_line(restarted[0]))
print("seeds in the ledger:", [
    json.loads(line)["seed"] for line in (faulty / "new_seed/ledger/rank-0.jsonl").open()
    if "run_start" in line
])
assert restarted[0].exitcode == 0  # nobody noticed

# %% [markdown]
# The second start exits with 0. But the two halves of the run saw different data in a different
# order, and only an audit would find out. So the hardened config says for every field whether a
# restart may change it, and each checkpoint records the values to compare with.

# %% [markdown]
# **What it's for.** One place for everything that affects training, validated before
# anything starts. Each field says what a resume may do with it. Changing an *identity* field
# makes the resume fail. Changing a *training* field takes effect and is logged. An
# *operation* field doesn't affect training at all. The *batch_cut* fields say how the global
# batch is split. They may change, as long as the global batch keeps its size.
#
# **What to say**
# - Why: "The config is frozen and validated on construction. A bad value fails right here,
#   with a message that says what to set instead, not forty minutes later on one rank."
# - Why: "The global batch is derived, so there's one source of truth. If the world size may
#   change but the batch mustn't, I pin the batch, and the ranks split it differently."
# - Cost: "Every new field needs a decision: is it identity, training or operation?"
# - How I'd notice it's wrong: "Two runs have the same digest and world size, but their loss
#   curves differ. Then the digest is missing a setting that affects training. Or I see a
#   `config_changed` event nobody expected."
#
# **To type**, {{typing config}}: `__post_init__`, `data_kind`, `global_batch_size`,
# `digest`. **Explain only:** the fields and their bounds, and that the command-line flags
# are generated from the fields.
#
# **A weak answer** computes the digest with `hash()` and includes the rank. Every process then
# gets a different digest, and you can't compare it with anything. It puts `grad_accum_steps`
# into the batch formula, but the loop ignores it. And on resume, it silently overwrites the
# configured learning rate with the saved one.
#
# How a single setting is declared and checked is in the collapsed cells above.

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
# **The fault that forces it: storage that's slower than the model.** Each batch takes 5 ms to
# read. The live trainer reads in the same thread that trains, so every step waits.

# %%
def slow_storage(trainer):
    read = trainer["ToyClassificationDataset"].__getitem__

    def slow_read(self, samples):
        time.sleep(0.005)
        return read(self, samples)

    trainer["ToyClassificationDataset"].__getitem__ = slow_read


live_ranks(1, "slow_storage", slow_storage, max_epochs=3).wait(60)
steps = [line["phases"] for line in live_lines("slow_storage")[5:]]
waiting = np.median([step["data_wait"] / sum(step.values()) for step in steps])
print(f"a median step spends {waiting:.0%} of its time waiting for data")
assert all(step["data_wait"] >= 0.005 for step in steps)

# %% [markdown]
# Loader workers read ahead, and reading ahead is exactly what breaks a position that counts
# fetched samples. The live trainer also shuffles each epoch in memory, which takes 8 bytes per
# sample on every rank. The hardened version computes the order instead.

# %% [markdown]
# **What it's for.** Which samples does a rank train on in a given step? One integer answers
# that, at any world size. Bugs here go unnoticed: a loss curve over the wrong samples looks
# perfectly healthy.
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
# - How I'd notice it's wrong: "Sample ids travel with the batch into a ledger. An audit counts
#   duplicates and misses per epoch, and both must be zero. If random reads make us
#   input-bound, `data_wait` p95 climbs first."
#
# **To type**, {{typing data}}: `StepSchedule` and `ResumeAwareDistributedSampler`.
# **Explain only:** how the order is computed, the dataset classes, and that loader workers
# die with their rank and ignore SIGTERM.
#
# **A weak answer** counts what the loader has fetched, so a resume skips whatever was still
# in the queue. It never resets that count, so every epoch after the first is empty, or it
# resets it in the wrong place, so a resume trains the last epoch twice. It pads the last batch
# with repeated samples, or drops it. And it keeps one counter per rank, which means nothing
# once the world size changes.
#
# *Collapsed: the epoch's order, computed as a one-to-one map from place in the order to sample;
# the datasets; and signal handling in loader workers.*

# %% include="order" collapsed=true

# %% include="memory" collapsed=true

# %% include="datasets" collapsed=true

# %% include="signals" collapsed=true

# %% include="data" typed="StepSchedule ResumeAwareDistributedSampler"

# %% [markdown]
# Here is the same step on one, two and three ranks: different shares, same samples. Over the
# epoch, each sample appears once, even though 42 isn't divisible by the batch size of 8.

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
    print(f"step 2, samples of each of {world_size} rank(s):", shares(world_size, position=1))
    epoch = [share for step in range(6) for share in shares(world_size, step)]
    assert sorted(sum(epoch, [])) == list(range(42))
assert shares(1, 0) != shares(1, 6)  # the next epoch starts with different samples

# %% [markdown]
# The order is a function, not a list. With a trillion samples, five from the middle of the
# epoch are as cheap to compute as the first five.

# %%
order = EpochOrder(10**12, seed=17, epoch=3)
print("first five: ", order.samples(0, 5).tolist())
print("middle five:", order.samples(5 * 10**11, 5 * 10**11 + 5).tolist())

# %% [markdown]
# A loader prefetches: it asks its sampler for batches long before they're trained on. Any
# sampler that counts what it hands out is ahead of the training. The committed position
# hasn't moved.

# %%
class CountsWhatWasFetched(ResumeAwareDistributedSampler):
    """The weak answer: it counts a batch as soon as the loader asks for it."""

    fetched = 0

    def __iter__(self):
        for batch in super().__iter__():
            self.fetched += len(batch)
            yield batch


# This loader's workers need fork, so it has none except on Linux.
peek = replace(tiny, micro_batch_size=2, num_workers=2 if sys.platform == "linux" else 0)
sampler = CountsWhatWasFetched(schedule, peek, rank=0, world_size=1)
view = TrainingView(build_dataset(peek), seed=peek.seed, input_noise=0.0)
first = next(iter(build_dataloader(view, sampler, peek, torch.device("cpu"))))
print(f"samples received: {len(first.samples)} | counted as fetched: {sampler.fetched} | "
      f"committed position: {sampler.position}")
assert sampler.fetched > 0 == sampler.position

# %% [markdown]
# Cell 2 avoids two torch defaults. `DistributedSampler` repeats samples so that every rank
# gets the same number. And a `DataLoader` draws from the global random stream each time you
# iterate over it, unless you give it a generator.

# %%
parts = [list(DistributedSampler(range(10), num_replicas=4, rank=rank)) for rank in range(4)]
print("10 samples dealt to 4 ranks:", sum(parts, []))
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
# **The fault that forces it: a GPU without bf16.** The live trainer's autocast is always bf16.
# Older GPUs have only fp16, whose smallest positive number is 6e-8. Here is the live network's
# gradient in both dtypes, compared with float32, at three global batch sizes S. Each sample's
# loss is divided by S, so a large S makes small gradients.

# %%
def gradient_error(dtype, S, scale=1):
    """Relative error of the gradient of 32 out of S samples, compared with float32."""
    live = live_trainer()
    torch.manual_seed(17)
    net = live["TinyNet"](live["TrainConfig"](dropout=0, device="cpu"))
    inputs, labels = torch.randn(32, 8), torch.arange(32) % 4
    gradients = []
    for enabled in (False, True):
        net.zero_grad()
        with torch.autocast("cpu", dtype, enabled=enabled):
            logits = net(inputs)
        loss = nn.functional.cross_entropy(logits.float(), labels, reduction="sum") / S
        (scale * loss).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in net.parameters()]) / scale)
    exact, rounded = gradients
    return ((rounded - exact).norm() / exact.norm()).item()


for S in (32, 10**6, 10**8):
    errors = [gradient_error(dtype, S) for dtype in (torch.bfloat16, torch.float16)]
    print(f"S = {S:>11,}: relative error in bf16 {errors[0]:.0e}, in fp16 {errors[1]:.0e}")
assert errors[0] < 0.05 < errors[1]

# %% [markdown]
# At a large S, fp16 loses the gradient and bf16 doesn't. So the hardened version has a scaler,
# for fp16 only, and the scaler is one more piece of state to save.

# %% [markdown]
# **What it's for.** It builds what must exist before the first step: the network, the
# optimizer with its two parameter groups, a loss scaler for fp16 only, and the learning rate
# as a function of the step.
#
# **What to say**
# - Why: "The learning rate is a pure function of the step. A function has no state, so
#   there's no scheduler to save and none to forget."
# - Why: "I decay matrices only. By convention, biases and norm gains aren't decayed, because
#   that regularizes nothing useful. The scaler exists only for fp16, since bf16 has the range
#   of fp32."
# - Cost: "A schedule that reacts to the loss doesn't fit. It'd be one more piece of state in
#   the checkpoint, and one more decision that all ranks must agree on."
# - How I'd notice it's wrong: "The learning rate is in every progress event, so a jump after
#   a resume means we lost the schedule. If steps keep getting skipped, I suspect fp16's
#   range."
#
# **To type**, {{typing model}}: `TinyNet`, `build_optimizer`, `learning_rate_at`. **Explain
# only:** the decoder, hashing the weights.
#
# **A weak answer** decays everything. It builds a disabled scaler and turns on autocast
# `if scaler:`, which is always true. And it uses a scheduler object but leaves it out of the
# checkpoint, so every resume repeats the warmup.
#
# *Collapsed: the decoder that trains on `data="tokens:PATH"`.*

# %% include="decoder" collapsed=true

# %% include="model" typed="TinyNet build_optimizer learning_rate_at"

# %% [markdown]
# The schedule needs nothing but the step. The optimizer has two groups: two matrices with
# decay, and two biases without.

# %%
plan = TrainConfig(warmup_steps=10, decay_steps=100, learning_rate=1.0, min_lr_fraction=0.1)
rates = {step: round(learning_rate_at(plan, step), 3) for step in (1, 5, 10, 55, 100, 200)}
print("learning rate by step:", rates)

net = TinyNet(8, 16, 4, 1, 0.0)
optimizer = build_optimizer(plan, net)
for group in optimizer.param_groups:
    print(len(group["params"]), "parameters with weight decay", group["weight_decay"])
assert build_scaler(plan, torch.device("cpu")) is None

# %% [markdown]
# A disabled scaler is still an object, so `if scaler:` is true. Autocast changes the dtype
# that the forward pass computes in, not the dtype of the weights or their gradients. Small
# gradients underflow to zero in fp16, but not in bf16. The scaler prevents that.

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
# ## 4. Ranks and devices
#
# **The fault that forces it: a rank that sees a different folder.** Two nodes use the same path,
# but the disk isn't shared. On rank 1's node, that path holds a checkpoint of a different run.
# Rank 0 picks a checkpoint and broadcasts its path, and that path exists on both nodes.

# %%
def other_disk(trainer):
    if os.environ["RANK"] == "1":
        os.chdir("node_1")


(faulty / "node_1").mkdir()
live_ranks(1, "shared", seed=1).wait(60)
live_ranks(1, "node_1/shared", seed=2).wait(60)
for rank, result in enumerate(live_ranks(2, "shared", other_disk, seed=1, max_epochs=2).wait(60)):
    print(f"rank {rank}:", last_line(result))
    assert result.exitcode == 0

# %% [markdown]
# Both ranks exit with 0, but their weights differ. DDP gave rank 1 the right weights when it
# wrapped the model, but rank 1's optimizer moments came from the other run. So the hardened
# ranks compare what they see before any of them loads anything.

# %% [markdown]
# **What it's for.** A rank learns who it is from its environment, selects its device and
# joins the group, in that order. Wherever something can fail on just one rank, all ranks
# agree on the outcome before any of them acts.
#
# **What to say**
# - Why: "Identity comes from the environment, where the launcher puts it; that's the control
#   plane's job. The device depends on which GPUs this process sees: under torchrun that's all
#   of the node's, so I pick one by local rank."
# - Why: "I select the device before the first allocation or collective, so nothing lands on
#   the wrong GPU."
# - Why: "DDP is my baseline: every rank has the whole model, gradients are averaged once a
#   step, and its failures are easy to read. I'd shard only when the replicated state doesn't
#   fit."
# - Why: "An error on one rank becomes an error on all. If one rank bails out alone, the
#   others hang in their next collective."
# - Cost: "A small gather wherever a single rank can fail: at startup and at saves. And two
#   bytes per step, sent while the step computes. Both go over gloo, so control traffic stays
#   off the data plane."
# - How I'd notice it's wrong: "Ranks are alive but no steps complete. Or recovery is slow. I'd
#   measure from the kill to the first new step; if that's long, restarted ranks may be trying
#   to reach dead peers."
#
# **To type**, {{typing distributed}}: `maybe_init_dist`, `wrap_model`, `cleanup_dist`,
# `unwrap`. **Explain only:** the store, which keeps one attempt's ranks from meeting another's;
# the checks on the number of GPUs; and `raise_on_all_ranks`, which comes first because
# everything after it uses it.
#
# **A weak answer** asks for NCCL on a machine without a GPU. It runs its first collective
# before it selects a device, so every rank ends up on `cuda:0`. It uses one seed for
# everything on every rank, so all ranks draw the same dropout masks. And it lets each rank
# look for the latest checkpoint, and raises only on the rank whose file is missing.
#
# *Collapsed: the store where the ranks of one attempt meet, and a rank's random streams.*

# %% include="launcher_environment" collapsed=true

# %% include="rendezvous" collapsed=true

# %% include="rng" collapsed=true

# %% include="collectives"

# %% include="distributed" typed="maybe_init_dist wrap_model cleanup_dist unwrap"

# %% [markdown]
# DDP averages gradients over ranks.

# %%
def on_ranks(job, world_size):
    """Run ``job`` on every rank; returns what each rank's call returned."""
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
# First, only rank 1 fails, yet both ranks stop and both report why. In the second job, rank 1
# skips a collective. Rank 0 waits for it until the timeout: half a second here, 10 minutes by
# default under NCCL.

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
for rank, outcome in enumerate(on_ranks(one_rank_skips_the_collective, 2)):
    print(f"rank {rank}: {outcome}")

# %% [markdown]
# All ranks initialize the weights from the same seed. After that, each rank has its own random
# streams.

# %%
def draws(*parts):
    setup_seed(17, *parts)
    return torch.rand(3).tolist()


assert draws("weights") == draws("weights")
assert draws("rank", 0, 0) != draws("rank", 1, 0)

# %% [markdown]
# ## 5. The training step
#
# **The fault that forces it: one sample is NaN.** `clip_grad_norm_` raises on all ranks before
# the optimizer steps, so the weights are safe. Then torchrun restarts the job, and the job hits
# the same sample again.

# %%
def one_nan(trainer):
    original = trainer["ToyClassificationDataset"].__init__

    def poisoned(self, cfg):
        original(self, cfg)
        self.inputs[7] = float("nan")

    trainer["ToyClassificationDataset"].__init__ = poisoned


for attempt in range(3):
    result = live_ranks(1, "nan", one_nan, checkpoint_every_steps=1).wait(60)[0]
    print(f"attempt {attempt}: stopped after step {len(live_lines('nan'))},", last_line(result))
    assert result.exitcode == 1

# %% [markdown]
# It fails forever, and doesn't say in which step or on which samples: the failing step never
# got its line in the ledger. The hardened step decides on the device whether to update, the
# error names the step, and the run can also skip that update and continue.

# %% [markdown]
# **What it's for.** One optimizer step: accumulate over micro-batches, synchronize once,
# clip, step. The key question: which samples is the gradient averaged over?
#
# **What to say**
# - Why: "I sum the loss over samples and scale it by W over S, world size over samples in the
#   step. DDP averages over ranks, so I get the mean over the step's samples."
# - Why not a mean of means: "It's wrong as soon as the ranks' shares differ."
# - Why: "Every micro-batch but the last runs under `no_sync`, so gradients sync once a step. I
#   clip after the sync, on the true gradient, which is identical on all ranks."
# - Why: "I also decide after the sync, on the device, whether to skip the update. All ranks
#   decide the same way, with no extra collective, and the host doesn't wait."
# - Cost: "On a GPU I read the loss only when I log or save, so a bad step is reported late. But
#   the bad update is never applied."
# - How I'd notice it's wrong: "The gradient norm changes with the number of ranks, at the same
#   global batch. Or `grad_sync` grows with `grad_accum_steps`: we're synchronization-bound
#   because `no_sync` is missing."
#
# **To type**, {{typing train}}: `train_step`, `summed_loss`, `update_weights`. **Explain
# only:** the records that the host reads when it logs.
#
# **A weak answer** averages within each micro-batch and then over ranks. It steps after
# every micro-batch and calls that accumulation. It clips each rank's local gradient. It calls
# `.item()` on the loss in every step. And it saves NaN weights as its newest checkpoint.
#
# The step times its parts with `phase`, which comes in cell 7. Until then a stub stands in for
# it, as it would in an interview.

# %%
@contextmanager
def phase(timers, name):  # a stub; cell 7 replaces it
    yield


# %% include="train" typed="train_step summed_loss update_weights"

# %% [markdown]
# Take eight samples as one batch, then as uneven micro-batches, then split five and three over
# two ranks: up to rounding, the gradient is the same. Averaging each rank's own mean gives a
# different one.

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
compared = {
    "uneven micro-batches": uneven, "two ranks": two_ranks[0], "mean of means": mean_of_means
}
for name, other in compared.items():
    print(f"{name}: largest difference from the single batch: {abs(single - other).max():.1e}")
assert np.allclose(single, uneven, atol=1e-6) and np.allclose(single, two_ranks[0], atol=1e-6)
assert np.array_equal(*two_ranks) and not np.allclose(single, mean_of_means, atol=1e-3)

# %% [markdown]
# What does `no_sync` save? Count the all-reduces in a step of four micro-batches. The model is
# so small that all its gradients fit in one of DDP's buckets, so each sync is one all-reduce.

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
# Now the clipping. In an interview, write `clip_grad_norm_` and then `optimizer.step()`:
# everybody can read that. It makes two passes over the gradients, one for the norm and one to
# scale them. `update_weights` saves the second pass: the fused optimizer divides by
# `grad_scale` as it reads the gradients, and skips the update if `found_inf` is set. Those are
# the attributes that `GradScaler` sets on a fused optimizer. They aren't a public interface,
# so call this an optimization and say what it depends on. The result is the same:

# %%
def one_update(clips_first):
    """The gradient norm, and the gradients that the optimizer used."""
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
    # AdamW's first moment starts at 0 and beta1 is 0.9, so now it's a tenth of the gradient.
    moments = [optimizer.state[p]["exp_avg"].flatten() for p in net.parameters()]
    return norm.item(), 10 * torch.cat(moments)


for clips_first, how in ((True, "clip_grad_norm_"), (False, "update_weights")):
    norm, used = one_update(clips_first)
    print(f"{how}: norm before clipping {norm:.0f}, as the optimizer used it {used.norm():.4f}")
assert torch.allclose(one_update(True)[1], one_update(False)[1], atol=1e-6)
assert abs(used.norm() - tiny.max_grad_norm) < 1e-3 < norm

# %% [markdown]
# One sample is NaN: the update is skipped and the weights are unchanged. When the host reads
# the record, the run stops with an error.

# %%
net = TinyNet(8, 16, 8, 1, 0.0)
trainer = Trainer(tiny, torch.device("cpu"), net, build_optimizer(tiny, net), None, None)
poisoned = view.__getitems__([SampleKey(0, sample) for sample in range(8)])
poisoned.inputs[3, 0] = float("nan")
before = weights_sha256(net)
skipped = train_step(trainer, [poisoned], 8, lr=1e-3)
assert skipped == 1 and weights_sha256(net) == before
try:
    read_records(trainer, 1)
except UserError as error:
    print(error)

# %% [markdown]
# ## 6. Checkpoint
#
# **Two faults that force it: a slow disk and a full one.** First, saving takes 0.2 seconds.

# %%
def slow_disk(trainer):
    save = torch.save

    def slow(state, file, **options):
        if isinstance(file, Path):  # pickle uses torch.save too, in memory
            time.sleep(0.2)
        save(state, file, **options)

    torch.save = slow


def full_disk(trainer):
    save = torch.save

    def no_space(state, file, **options):
        if isinstance(file, Path):
            raise OSError(errno.ENOSPC, "No space left on device")
        save(state, file, **options)

    torch.save = no_space


live_ranks(1, "slow_disk", slow_disk, checkpoint_every_steps=3).wait(60)
took = [1e3 * sum(line["phases"].values()) for line in live_lines("slow_disk")]
print("ms from one ledger line to the next:", [round(ms) for ms in took])
for rank, result in enumerate(live_ranks(2, "full_disk", full_disk, checkpoint_every_steps=3).wait(60)):
    print(f"rank {rank}:", last_line(result))
    assert result.exitcode == 1
assert max(took) > 200

# %% [markdown]
# The step after each save pays for the save. And on the full disk, only rank 0 knows why the
# job died; rank 1's log blames the network. On a big job, the first log you open is probably
# one like rank 1's.

# %% [markdown]
# **What it's for.** A restart finds one intact checkpoint, and all ranks load the same one.
# How often you save decides how much work you lose. Whether the checkpoint is intact decides
# whether the run is correct.
#
# **What to say**
# - Why: "A checkpoint needs the model, optimizer, scaler, the sampler's integer, each rank's
#   random streams, step and epoch, and the run's identity. Weights alone aren't a checkpoint."
# - Why: "Files first, then a manifest with their hashes, then one rename. The rename publishes
#   the checkpoint; until then a restart can't see it."
# - Why: "Every rank flushes its ledger before the save. So whatever a checkpoint claims, the
#   ledger can back it up."
# - Cost: "We hash and fsync every file. If we save asynchronously, the step waits only for a
#   copy in memory. The tradeoff is a second copy of the state, and errors that surface a few
#   steps later."
# - How I'd notice it's wrong: "I alert on the age of the newest checkpoint, which has to stay
#   within our RPO, the most work we accept losing. I watch the `checkpoint` phase's max and any
#   `checkpoint_rejected` event."
# - How I'd notice a bad resume: "Loss, learning rate and position must carry on without a jump.
#   One `resume_validated` event reports all three."
#
# **To type**, {{typing checkpoint}}: `build_checkpoint`, `save_checkpoint`,
# `latest_checkpoint_path`, `restore_if_present`. **Explain only:** publishing, deleting old
# checkpoints and the asynchronous writer, which are in the collapsed cells. (The drill on this
# cell has you type the publishing too, so it takes longer.)
#
# **A weak answer** writes straight to the final name and loads the newest file, so one kill
# during a save breaks every restart. It compares names instead of numbers. It stores numpy's
# random state as it is, which `torch.load` refuses by default. It restores rank 0's random
# state on all ranks. And it deletes the old checkpoint before it has verified the new one.
#
# *Collapsed: how a checkpoint folder is published, verified and, if it's damaged, set aside;
# and the writer that saves in the background.*

# %% include="checkpoint_format" collapsed=true

# %% include="checkpoint_writer" collapsed=true

# %% include="checkpoint" typed="build_checkpoint save_checkpoint latest_checkpoint_path restore_if_present"

# %% [markdown]
# Why hash the files at all? `torch.save` writes a zip archive, and each record in it has a
# checksum. `zipfile` verifies the checksums and names the damaged record. `torch.load` doesn't
# check them. Below, one flipped bit in an optimizer moment turns 0.0 into 2.0, and `torch.load`
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
# `torch.load` does refuse numpy's random state: by default it loads only types that can't run
# code. The format used here for a rank's random streams has only such types.

# %%
torch.save(np.random.get_state(), path)
try:
    torch.load(path)
except pickle.UnpicklingError as error:
    print("numpy's state:", str(error).partition(".")[0])
torch.save(rng_state(), path)
set_rng_state(torch.load(path))

# %% [markdown]
# Here are two published checkpoints. Sorted by name, the last one isn't the latest step, which
# is why the code compares numbers. Then the newer one gets truncated, and the search falls back
# to the older one and reports why.

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
print("truncated, so back to:", fallback.name)
print("reason:", damaged[newest])
assert fallback.name == "step-99999999" and manifest["step"] == 99_999_999

# %% [markdown]
# There are two more torch behaviors to know. An optimizer's `load_state_dict` overwrites the
# configured learning rate with the saved one, so `restore_if_present` keeps the configured
# groups. And a state dict refers to the live tensors, which the next step changes, so an
# asynchronous save copies them first.

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
# **The fault that forces it: one slow rank.** Rank 1 needs 5 ms longer for its forward pass.

# %%
def slow_rank(trainer):
    if os.environ["RANK"] == "1":
        forward = nn.GELU.forward

        def slow(self, inputs):
            time.sleep(0.005)
            return forward(self, inputs)

        nn.GELU.forward = slow


live_ranks(2, "slow_rank", slow_rank, micro_batch_size=16).wait(60)
for rank in (0, 1):
    lines = live_lines("slow_rank", rank)[2:]
    medians = {
        phase: round(1e3 * float(np.median([line["phases"][phase] for line in lines])), 1)
        for phase in ("data_wait", "forward", "backward", "optimizer")
    }
    print(f"rank {rank}, median ms:", medians)

# %% [markdown]
# Rank 0 reports a slow backward pass, but rank 0 isn't slow: it's waiting for rank 1. The live
# trainer can't tell the two apart. So the hardened one records when the last local gradient is
# ready; whatever follows in the backward pass is exposed sync.

# %% [markdown]
# **What it's for.** It tells you which phase of the step is slow, and what each rank did last.
#
# **What to say**
# - Why: "The phases add up to the step's wall time, and whatever's left is called `other`. A
#   breakdown that hides the loader is worse than none."
# - Why: "I report percentiles per rank, plus the max. A mean hides spikes, p95 misses anything
#   rarer than one step in twenty, and a synchronous step is as slow as its straggler."
# - Why: "Every rank hands each JSON line to the operating system right away. The last line
#   before a kill is the one I need."
# - Cost: "Two clock reads per phase and one write per event. On CUDA the timestamps are stream
#   events, and I read them once they complete."
# - How I'd notice it's wrong: "`other` grows, which is time that no phase accounts for. Then a
#   phase is missing from my list."
#
# **To type**, {{typing metrics}}: `StepTimers`, `phase`, `summarize_timers`,
# `log_rank_event`. **Explain only:** CUDA events, the gradient hooks that separate
# `grad_sync` from `backward`, the trace file.
#
# **A weak answer** times forward and backward, but not the wait for data or the save. It
# reports the mean of an epoch. It logs on rank 0 only, with rank 0's own loss. And it prints
# to a buffered stream, so the log ends long before the kill.
#
# *Collapsed: a JSON-lines log and a trace file, both of which survive a kill.*

# %% include="json_lines" collapsed=true

# %% include="chrome_trace" collapsed=true

# %% include="metrics" typed="StepTimers.__init__ StepTimers.end_step StepTimers.read phase summarize_timers log_rank_event"

# %% [markdown]
# Here are twenty steps, one of them with a slow save of 50 ms. The phases add up to the wall
# time. The max shows the save. The p50 and the p95 miss it, and the mean smears it out.

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
print(f"checkpoint, ms: mean {np.mean([s['checkpoint'] for s in steps]):.1f},", summary)
wall_ms = timers.between_ms(timers.origin, timers.step_start)
assert abs(sum(sum(spent.values()) for spent in steps) - wall_ms) < 0.01 * wall_ms

# %% [markdown]
# More steps don't help. Saves are rare, so percentiles over *all* steps don't see them: with
# one save of 2000 ms in 200 steps, p50 and p95 are both 0. Use the max, or the p50 of the steps
# that saved.

# %%
steps = [{**dict.fromkeys(PHASES, 0.0), "checkpoint": 2000.0 * (s == 77)} for s in range(200)]
saved = [spent for spent in steps if spent["checkpoint"]]
print("checkpoint, ms, all 200 steps:   ", summarize_timers(steps)["checkpoint"])
print("checkpoint, ms, steps that saved:", summarize_timers(saved)["checkpoint"])
assert summarize_timers(steps)["checkpoint"] == {"p50": 0.0, "p95": 0.0, "max": 2000.0}
assert summarize_timers(saved)["checkpoint"]["p50"] == 2000.0

# %% [markdown]
# A rank writes five lines to its log and five to an ordinary buffered file, then gets killed.

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
# **Two faults that force it: a preempted node, and a rank that's stuck.** First, the scheduler
# sends SIGTERM and gives us a few seconds of grace.

# %%
def stuck_rank(trainer):
    if os.environ["RANK"] == "1":
        step, calls = torch.optim.AdamW.step, []

        def stuck(self, *arguments):
            calls.append(1)
            if len(calls) == 3:
                time.sleep(3600)
            return step(self, *arguments)

        torch.optim.AdamW.step = stuck


def lines_of(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


job = live_ranks(1, "preempted", dataset_size=20_000)
while lines_of(faulty / "preempted/ledger/rank-0.jsonl") < 40:
    time.sleep(0.005)
job.processes[0].terminate()
result = job.wait(60)[0]
saved = sorted(path.name for path in (faulty / "preempted/checkpoints").iterdir())
print("exit code", result.exitcode, "| trained:", len(live_lines("preempted")), "| saved:", saved)
assert result.exitcode == -signal.SIGTERM

try:
    live_ranks(2, "stuck", stuck_rank).wait(3)
except TimeoutError as error:
    print("after 3 s:", error)

# %% [markdown]
# The steps since the last save are lost, although there was time to save. And when rank 1 is
# stuck, rank 0 waits for it in silence, for gloo's default of 30 minutes. Nothing says who is
# stuck, or where.

# %% [markdown]
# **What it's for.** After a crash, the same command runs again. This cell decides what every
# rank does then, and in which order.
#
# **What to say**
# - Why: "There's no resume flag. On start, the trainer resumes from the newest checkpoint in
#   the run folder that passes verification. If the folder has none at all, it starts fresh. It
#   makes no difference whether a scheduler, torchrun or a person restarts it."
# - Why: "Rank 0 reads and decides. The others check that they see the same folder, and follow."
# - Why: "Build order is a choice with constraints. The optimizer must own the parameters it
#   updates; under FSDP2 those exist only after `fully_shard`. I restore random streams last,
#   because building the rest draws from them."
# - Why: "With plain process groups, the whole job is one failure domain: if one rank dies, we
#   restart them all."
# - Cost: "We retrain the steps since the last checkpoint. The save interval trades that against
#   the time spent saving."
# - How I'd notice it's wrong: "Goodput drops: that's useful step time over wall time, across
#   all attempts. Or the audit finds a sample that wasn't trained on exactly once."
#
# **To type**, {{typing launch}}: `run`, `train_run`, `train_loop`, `next_step`, `save`. In an
# interview, reduce it to build, restore, step, commit, save. **Explain only:** SIGTERM, the
# run folder, and that a finished run changes no file.
#
# **A weak answer** lets every rank decide for itself where to resume. It relies on DDP to
# repair a bad restore. It saves at the end of an epoch under that epoch's number, so a restart
# trains the epoch again. And it exits immediately on SIGTERM, without a save.
#
# **If they ask whether you'd keep going without the dead rank:** "A plain process group can't,
# and neither can DDP. torchft can: it keeps the other replica groups training and lets the
# restarted one rejoin. NCCL can shrink a communicator, with `shrink_group`. I'd take on that
# complexity once restarts cost real goodput."
#
# *Collapsed: the run folder and its identity, the hang watchdog, and what a rank writes down
# while it trains.*

# %% include="run_folder" collapsed=true

# %% include="resume" collapsed=true

# %% include="resume_check" collapsed=true

# %% include="run_log" collapsed=true

# %% include="ledger" collapsed=true

# %% include="progress" collapsed=true

# %% include="hang_report" collapsed=true

# %% include="watchdog" collapsed=true

# %% include="job" collapsed=true

# %% include="launch" typed="run train_run train_loop next_step save"

# %% [markdown]
# **Build order, part one: a choice.** You can restore and then wrap in DDP, or wrap and then
# restore. One step later, both ranks have the same weights either way. This trainer restores
# first, so DDP doesn't broadcast weights that the restore then overwrites.

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
# **Part two: what DDP hides.** On construction, DDP broadcasts rank 0's weights. If rank 1
# restored a different checkpoint, DDP silently overwrites its weights with the right ones. Its
# optimizer moments stay wrong, and one step later the replicas differ again. DDP doesn't repair
# a bad restore, so all ranks must agree on the checkpoint before they load it.

# %%
def rank_1_restores_something_else():
    info = maybe_init_dist(tiny)
    setup_seed(17, "weights", info.rank)  # each rank "restores" different weights
    net = TinyNet(8, 16, 8, 1, 0.0)
    optimizer = build_optimizer(tiny, net)
    net(torch.ones(4, 8)).square().sum().backward()
    optimizer.step()  # ... and different optimizer moments
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
# **Part three: FSDP2 takes the choice away.** `fully_shard` replaces the parameters. An
# optimizer created before it still owns the old ones, which never get a gradient, so it
# silently updates nothing. With DDP, you can create the optimizer before you wrap. With FSDP2,
# that's a bug.

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
    when = "before" if first else "after"
    print(f"optimizer created {when} fully_shard: {updated} of {total} parameters updated")
    assert updated == (0 if first else total)

# %% [markdown]
# ## Run it
#
# The first run is on a single rank, in this process, from start to finish. The toy data has
# learnable labels. Dropout and input noise are on, so a resume has to get the randomness right
# too.

# %%
base = TrainConfig(
    run_dir=root / "one_rank",
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
# Run it again: it sees that it has finished, and it changes nothing.

# %%
def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


before = files(base.run_dir)
assert run(base) == alone and files(base.run_dir) == before

# %% [markdown]
# The second run is on two ranks, each a separate process, and nothing interrupts it. Both ranks
# end with the same weights. They differ from the single-rank run's weights, because each rank
# draws its own dropout masks. Each step's samples are the same, as the audit below confirms.

# %%
uninterrupted = replace(base, run_dir=root / "uninterrupted")
reference = on_ranks(partial(run, uninterrupted), 2)
hashes = [result["weights_sha256"] for result in reference]
assert hashes[0] == hashes[1] != alone["weights_sha256"]
print(reference[0])

# %% [markdown]
# ## Kill a rank
#
# The third run has the same settings, except that it saves asynchronously, which must not
# change the weights. Rank 1's ledger gets one line per step. Once it has 55 lines, we send rank
# 1 a SIGKILL: no handler runs, nothing is flushed. Step 55 is between two checkpoints, so some
# work is lost. Gloo notices the closed connection, and rank 0 fails right away.

# %%
killed = replace(base, run_dir=root / "killed", async_checkpoint=True)
ledger = killed.run_dir / "ledger" / "rank-1.jsonl"
workers = LocalRanks(partial(run, killed), 2)
while workers.processes[1].is_alive():
    if ledger.exists() and ledger.read_bytes().count(b"\n") >= 55:
        workers.kill(1)
        break
    time.sleep(0.005)
ends = workers.wait(60)
print("exit codes", [end.exitcode for end in ends])
error = re.sub(r"\[/\S+\] ", "", ends[0].traceback.splitlines()[-1])  # no path of gloo's source
print("rank 0:", error.partition(". ")[0])
print("checkpoints, by step:", list(published_steps(killed.run_dir / "checkpoints")))
assert ends[1].exitcode == -9
copy = shutil.copytree(killed.run_dir, root / "three_ranks")  # resumed further below

# %% [markdown]
# Now run the same thing again. It resumes, and the final weights match those of the
# uninterrupted run.

# %%
resumed = on_ranks(partial(run, killed), 2)
print("uninterrupted", reference[0]["weights_sha256"])
print("resumed      ", resumed[0]["weights_sha256"])
assert resumed[0]["weights_sha256"] == reference[0]["weights_sha256"]

# %% [markdown]
# **With NCCL, a dead peer looks different.** An NCCL collective is a CUDA kernel. When a peer
# dies, that kernel usually keeps waiting, and the host hangs at its next sync. NCCL sometimes
# reports a network error sooner, but don't count on it. Three things can end the wait:
#
# - **torchrun's agent.** The agent on the dead rank's node sees the exit, stops that node's
#   other ranks and starts a new rendezvous, in which the agents agree on who takes part. The
#   other nodes' agents notice and restart their ranks. A rank that hangs without dying triggers
#   none of this.
#   A rank that is blocked on the GPU can't react to SIGTERM, and the agent waits 30 s before it
#   sends SIGKILL.
# - **The process group's watchdog.** This is a thread in every rank. It ends the process when a
#   collective exceeds the group's timeout: 10 minutes by default, `dist_timeout_s` here.
# - **This trainer's own watchdog.** It fires when no step completes within `hang_timeout_s`,
#   and names the rank that the others seem to be waiting for.
#
# The settings to know:
#
# | variable | what it controls |
# |---|---|
# | `TORCH_NCCL_ASYNC_ERROR_HANDLING` | what the watchdog does on a timeout or an error. 3 (default): end the process. 1 (set by torchrun): abort the communicators, then end the process. 2: only abort them. 0: nothing |
# | `TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC` | how long the watchdog itself may be stuck before a monitor thread ends the process |
# | `TORCH_FR_BUFFER_SIZE` | how many events the flight recorder keeps. It records each rank's latest collectives; 0 turns it off. Older name: `TORCH_NCCL_TRACE_BUFFER_SIZE` |
# | `TORCH_NCCL_DUMP_ON_TIMEOUT` | whether each rank writes its flight recorder to a file on a timeout. Compare the files: the rank that never entered the collective is your suspect |
#
# What to say: "On gloo, a dead peer is an error. On NCCL, it's a hang until something times
# out. So detection time goes into my recovery budget, and I keep the flight recorder on."
#
# One more trap. A rank whose collective failed writes `exception_dump` into the launcher's
# store, so that all ranks dump their flight recorders. torchrun keeps the store across restarts,
# and torch's NCCL backend looks for that key outside any prefix. On an H100 with torch 2.11, the
# restarted ranks found it, trained to the end, and hung when they exited. That's why
# `attempt_store` deletes it.
#
# Without a GPU we can't show the hang, but the names and timeouts below come from your torch
# installation:

# %%
headers = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d"
text = "".join(path.read_text() for path in headers.glob("*.hpp"))
for name in (
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "exception_dump",
):
    print(f"{name:34}", "found" if f'"{name}"' in text else "not found in this torch")
shrinks = hasattr(dist, "shrink_group")
print(f"{'shrink_group':34}", "found" if shrinks else "not found in this torch")
found = re.search(r"NCCLDefaultTimeout =\s*std::chrono::milliseconds\(([\d *]+)\)", text)
print("default timeout, gloo:", dist.constants.default_pg_timeout)
assert dist.constants.default_pg_timeout == timedelta(minutes=30)
if found:  # some builds come without these headers
    nccl_timeout = timedelta(milliseconds=math.prod(map(int, found[1].split("*"))))
    print("default timeout, nccl:", nccl_timeout)
    assert nccl_timeout == timedelta(minutes=10)

# %% [markdown]
# ## The same faults again
#
# Here are the faults that opened the sections, one after the other, on the hardened trainer.

# %%
def run_hardened(cfg, fault, world):
    """In a rank: run the hardened trainer with a fault."""
    os.chdir(world)
    fault(globals())
    return run(cfg)


def hardened_ranks(world_size, run_dir, fault=no_fault, **settings):
    """Start the hardened trainer on the same small plan."""
    same = {"dataset_size": 200, "pinned_global_batch_size": 32, "max_epochs": 1, "log_every": 1}
    cfg = TrainConfig(run_dir=hardened / run_dir, device="cpu", **{**same, **settings})
    return LocalRanks(partial(run_hardened, cfg, fault, faulty), world_size)


def events(run_dir, name, rank=0):
    """A rank's events of that name."""
    path = faulty / hardened / run_dir / "logs" / f"rank-{rank}.jsonl"
    return [event for event in map(json.loads, path.open()) if event["event"] == name]


def median_phases(run_dir, rank, phases):
    """Milliseconds, over the steps after the first two."""
    logged = [event["phases"] for event in events(run_dir, "train_progress", rank)[2:]]
    return {
        phase: round(float(np.median([summary[phase]["p50"] for summary in logged])), 1)
        for phase in phases
    }


def how_it_ended(result):
    error = (result.traceback.splitlines() or ["no error"])[-1].partition(": ")[2]
    return f"exit code {result.exitcode}: {error or result.value['status']}"


hardened = Path("hardened")

# %% [markdown]
# **A different seed** is refused, and the message says what to do.

# %%
hardened_ranks(1, "new_seed", seed=17).wait(60)
result = hardened_ranks(1, "new_seed", seed=18, max_epochs=2).wait(60)[0]
print(how_it_ended(result))
assert result.exitcode == 2 and "seed is 17 there, 18 here" in result.traceback

# %% [markdown]
# **Slow storage**: loader workers read ahead, so the step waits less. Two workers on two busy
# cores won't hide all of the delay.

# %%
def slow_batches(trainer):
    read = InMemoryDataset.batch

    def slow_read(self, samples):
        time.sleep(0.005)
        return read(self, samples)

    InMemoryDataset.batch = slow_read


for workers in (0, 2 if sys.platform == "linux" else 0):  # loader workers need fork
    name = f"slow_storage_{workers}"
    reading = {"num_workers": workers, "micro_batch_size": 32, "max_epochs": 3}
    hardened_ranks(1, name, slow_batches, **reading).wait(60)
    print(workers, "workers, median ms:", median_phases(name, 0, ["data_wait", "forward"]))

# %% [markdown]
# **fp16** keeps its gradients once the loss is multiplied by a scale. Here a fixed one stands in
# for the scaler's, in the case that lost the gradient above:

# %%
error = gradient_error(torch.float16, 10**8, scale=2**16)
print(f"S = 100,000,000, fp16 with a scale of 65,536: relative error {error:.0e}")
assert error < 0.01

# %% [markdown]
# **A different folder on rank 1**: both ranks refuse before they load anything. (On rank 1's
# node, the run folder doesn't exist this time.)

# %%
hardened_ranks(1, "shared", seed=1).wait(60)
(faulty / "node_1" / hardened).mkdir()
for rank, result in enumerate(hardened_ranks(2, "shared", other_disk, seed=1).wait(60)):
    print(f"rank {rank},", how_it_ended(result))
    assert result.exitcode == 2

# %% [markdown]
# **A NaN sample**: with `on_nonfinite="stop"`, the run stops and names the step. With `"skip"`,
# it skips that update and continues.

# %%
def one_nan_row(trainer):
    read = InMemoryDataset.batch

    def poisoned(self, samples):
        inputs, targets = read(self, samples)
        inputs[torch.as_tensor(samples) == 7] = float("nan")
        return inputs, targets

    InMemoryDataset.batch = poisoned


for choice, code in (("stop", 2), ("skip", 0)):
    result = hardened_ranks(1, f"nan_{choice}", one_nan_row, on_nonfinite=choice).wait(60)[0]
    print(f"{choice}, {how_it_ended(result)}")
    assert result.exitcode == code

# %% [markdown]
# **A slow disk** costs the training a copy in memory per save. Training waits for the disk only
# if the previous save is still being written, and once at the end, for the last save. **A full
# disk** stops all ranks, and each of them says why.

# %%
writing = {"dataset_size": 20_000, "checkpoint_every_steps": 300, "log_every": 100}
hardened_ranks(1, "slow_disk", slow_disk, async_checkpoint=True, **writing).wait(60)
took = [round(1e3 * event["seconds"]) for event in events("slow_disk", "checkpoint_saved")]
stalls = [
    round(event["phases"]["checkpoint"]["max"], 1)
    for event in events("slow_disk", "train_progress")
    if event["phases"]["checkpoint"]["max"]
]
print("ms to write each checkpoint:", took, "| ms that training waited:", stalls)
writing = {"checkpoint_every_steps": 3}
for rank, result in enumerate(hardened_ranks(2, "full_disk", full_disk, **writing).wait(60)):
    print(f"rank {rank},", how_it_ended(result))
    assert result.exitcode == 2 and "No space left" in result.traceback

# %% [markdown]
# **A slow rank**: the other one now reports its wait as `grad_sync`, apart from its own short
# backward pass.

# %%
hardened_ranks(2, "slow_rank", slow_rank, max_epochs=2).wait(60)
for rank in (0, 1):
    shown = median_phases("slow_rank", rank, ["data_wait", "forward", "backward", "grad_sync"])
    print(f"rank {rank}, median ms:", shown)

# %% [markdown]
# **A preempted node** saves and exits with 0. **A stuck rank** is named, in a report with every
# rank's stack. The job ends, so whoever started it can start it again.

# %%
job = hardened_ranks(1, "preempted", dataset_size=20_000)
while lines_of(faulty / hardened / "preempted/ledger/rank-0.jsonl") < 40:
    time.sleep(0.005)
job.processes[0].terminate()
result = job.wait(60)[0]
print(how_it_ended(result), "at step", result.value["step"])
assert result.value["status"] == "preempted"

results = hardened_ranks(2, "stuck", stuck_rank, hang_timeout_s=1.0).wait(60)
(hang,) = events("stuck", "hang", 0) + events("stuck", "hang", 1)
print("exit codes", [result.exitcode for result in results])
print(f"rank {hang['ranks'][0]} {hang['reason']}")
# SIGKILL for the rank that was named, if it didn't end by itself first
assert {result.exitcode for result in results} <= {1, -signal.SIGKILL}

# %% [markdown]
# ## The proof
#
# Matching weights are strong evidence, but if they differ, they don't tell you why. So the
# audit reads the ledger. For each step it takes the attempt whose work survived, according to
# the checkpoints that were restored, and checks that attempt's samples against the order from
# cell 2. *Replayed* steps are the ones a later
# attempt had to train again. *Goodput* is useful step time over wall time, across all attempts.
#
# *Collapsed: the audit, which only reads files, and the code for the pictures. The audit comes in
# four parts: what the run recorded, what was due, which work survived, and the verdict.*

# %% include="rehearsal.evidence.run_records" collapsed=true

# %% include="rehearsal.evidence.run_plan" collapsed=true

# %% include="rehearsal.evidence.lineage" collapsed=true

# %% include="rehearsal.evidence.audit" collapsed=true

# %% include="rehearsal.evidence.live_records" collapsed=true

# %% include="rehearsal.evidence.pictures" collapsed=true

# %%
for folder in (base.run_dir, uninterrupted.run_dir, killed.run_dir):
    report = audit_run(folder)
    assert report.status == "proved", report.findings
    print(f"{folder.name:13} {report.status}: {report.verdict}; attempts: {report.attempts}, "
          f"steps replayed: {report.replayed_steps}, goodput: {report.goodput:.2f}")
for line in (killed.run_dir / "logs/rank-0.jsonl").read_text().splitlines():
    if (event := json.loads(line))["event"] == "resume_validated":
        print("resume validated:", event["checks"])

# %% [markdown]
# A checkpoint doesn't depend on the number of ranks: the copy we made after the kill resumes on
# three. The global batch is pinned, so only the shares change, and again every sample is
# trained exactly once.

# %%
on_three = on_ranks(partial(run, replace(killed, run_dir=copy)), 3)
report = audit_run(copy)
assert report.status == "proved" and on_three[0]["step"] == resumed[0]["step"]
print(f"{report.status}: {report.verdict}")

# %% [markdown]
# ## Four pictures
#
# **Loss.** The uninterrupted run is the wide line; both attempts of the killed run lie on top
# of it. The dotted line marks the checkpoint that attempt 1 resumed from. Attempt 1's first
# logged loss comes up to ten steps later, because only every tenth step is logged.

# %%
loss_curves({"uninterrupted": uninterrupted.run_dir, "killed and resumed": killed.run_dir})

# %% [markdown]
# **The sample map.** Each column is a step, and each cell is a sample in the color of its rank.
# The last batch of each epoch is smaller, so each rank's part of that column is shorter. The
# dashed frame shows the work lost to the kill and redone by attempt 1.

# %%
sample_map(killed.run_dir)

# %% [markdown]
# **Phases per rank.** The ranks move in lockstep. If one is a straggler, you see it on the
# others: their `grad_sync` grows while they wait. Don't add up the p95s: the phases rarely have
# their slow step at the same time. The numbers come from each rank's last log line, which covers
# only the steps since the line before it. One of those few steps saved, so here even the p95
# shows the save. None of this says anything about the speed of a GPU or a network.

# %%
phase_bars(uninterrupted.run_dir)

# %% [markdown]
# **A timeline.** This shows a few steps of both ranks on one clock; the first step ends with a
# save. You can see who waits for whom, and when. The gaps are `other`. The data comes from the
# Chrome traces in the run folder, under `traces/`.

# %%
rank_timeline(uninterrupted.run_dir, first_step=40, num_steps=4)

# %% [markdown]
# ## What can stay an interface
#
# You don't build these four in an interview: multi-node bootstrap, an object store, a scheduler
# and a metrics exporter. Name each one, state its contract in a sentence, and show where it
# plugs in. The first three interfaces are below, each with a local stand-in. The fourth is
# `Sink`, from cell 7.

# %% include="integrations.interfaces"

# %% [markdown]
# **Multi-node bootstrap.** If they ask how you'd run this on eight nodes: "Nothing in the
# trainer knows how it was started. The control plane gives each process a rank, the world size
# and an address, whether that's torchrun or a cluster's launcher. I'd check that every rank
# showed up, and that all nodes see the same run folder." (`agree_on_start` does the second.)

# %%
worlds = [
    HostListBootstrap(["node-a", "node-b"], 2, host, local_rank).world()
    for host in range(2)
    for local_rank in range(2)
]
assert [world.rank for world in worlds] == [0, 1, 2, 3]
print(worlds[3].environment())

# %% [markdown]
# **Object store.** If they ask about a bucket instead of a disk: "A general-purpose S3 bucket
# has no rename. So I publish with one small object that I write last: a pointer, written only
# if it doesn't exist yet. A killed upload leaves objects that no pointer names; a periodic
# sweep deletes the old ones." (S3 directory buckets do have a rename, `RenameObject`. The
# pointer works on both.)

# %%
store = FolderStore(root / "bucket")
newest = latest_checkpoint_path(uninterrupted.run_dir / "checkpoints")[0]
store.put_if_absent(f"uploads/{newest.name}-cut/state.pt", b"half of it")  # a killed upload
assert download_newest(store, root / "fetched") is None
assert upload_checkpoint(store, newest) and not upload_checkpoint(store, newest)
fetched = download_newest(store, root / "fetched")
print("fetched", fetched.name, "and verified its", len(verify(fetched)["files"]), "files")

# %% [markdown]
# **Scheduler.** If they ask who restarts the job: "Whoever owns the machines, under our policy.
# A killed job restarts. Exit code 2 goes to whoever is on call, because a restart would only
# fail again. And I cap the restarts: if no step completes between two of them, one more won't
# help."

# %%
scheduler = LocalScheduler()
outcomes = iter([-9, 1, 0])
jobs = [scheduler.submit(lambda: next(outcomes)), scheduler.submit(lambda: 2)]
for reason, job in zip(("killed, then failed", "exit code 2"), jobs):
    restarts = restart_while_useful(scheduler, job, max_restarts=5)
    print(f"{reason}: {restarts} restarts, last exit code {scheduler.exit_code(job)}")
assert [scheduler.exit_code(job) for job in jobs] == [0, 2]

# %% [markdown]
# **Metrics exporter.** If they ask about a metrics vendor: "An exporter gets the same events as
# the log file, through two methods, `emit` and `close`. I pass it to `run`, and the trainer
# knows nothing about the vendor."

# %%
class MemorySink:
    """A stand-in for a vendor's exporter: it keeps all events in a list."""

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
# Five points to close with:
#
# 1. "The order of the data is a pure function of size, seed and epoch. The position is one
#    integer, and it moves only after the optimizer has stepped."
# 2. "Every gradient is the mean over the step's samples. Neither the number of ranks nor the
#    split into micro-batches changes that."
# 3. "One rename publishes a checkpoint. We verify it before we load it, and either all ranks
#    load it or none does."
# 4. "If something can fail on one rank, all ranks agree before any of them acts. And if
#    something's slow, a named phase shows it."
# 5. "You don't have to take my word for it. The ledger says which sample was trained in which
#    step, and the audit checks that each was trained exactly once per epoch."
#
# ## Where to find each answer
#
# What to say to each, and where this notebook shows it. Chapter
# [22](handbook/22_hard_questions.ipynb) has the pushback to most of them.
#
# | question | say | where |
# |---|---|---|
# | How do you know a resume is correct? | "I define it first: the same samples and the same weights as a run that nobody killed. Then I kill one, resume it and compare, and the audit checks the ledger." | Kill a rank; The proof; `validate_resume`, collapsed, in 8 |
# | What's the most dangerous silent failure? | "Samples lost or trained twice. Nothing crashes and the loss looks healthy, so only a record of what was trained shows it." | 2 |
# | The world size changes on resume: what breaks? | "Unless I pin it, the global batch, and everything tuned for it: learning rate, warmup, steps per epoch. With the batch pinned, only the shares change, and dropout draws new masks." | 2; The proof: the run on three ranks |
# | Why DDP and not sharding? | "It's the smallest baseline that's correct, and each rank has the whole state, so failures are easy to read. I'd move to FSDP when memory says so, not before." | 4: "DDP is my baseline" |
# | Does the build order matter? | "Restoring before or after the DDP wrap gives the same weights. The optimizer has to come after anything that replaces parameters, such as `fully_shard`. Otherwise it updates nothing." | 8: build order, parts one to three |
# | What must survive a restart? | "Model, optimizer, scaler, the position, each rank's random state, and the identity of the run. The schedule is a function of the step, so it needs nothing." | 6: "A checkpoint needs ..." |
# | A checkpoint is half written: what now? | "It has no name yet, because the rename comes last. If bits rot later, the hashes don't match. I set it aside, say so, and take the one before it, on all ranks." | 6: the truncated one |
# | It's slow every twenty minutes: where do you look? | "At the save cadence first. A p95 can hide one slow save in forty steps, so I look at the phase's max, or at the steps that saved." | 7: the `checkpoint` phase's max |
# | One rank hangs: how do you find it? | "It's the one that isn't waiting in a collective. The watchdog dumps every rank's stack and its last collective, and the odd one out is the suspect." | The same faults again: the stuck rank; Kill a rank: the flight recorder |
# | One rank fails alone: what do the others do? | "Whatever can fail on one rank is agreed on first, so all of them raise together. Otherwise the others wait in their next collective until the timeout." | 4: the shard that's missing on rank 1 |
# | A peer dies under NCCL: what do the others see? | "Usually nothing at first. They block in the collective until the watchdog's timeout or the agent ends them. gloo sees the closed connection at once, so a test with gloo looks better than production." | Kill a rank: the watchdog and its timeouts |
# | Loss falls but throughput is poor? | "I split the step by phase, per rank, and start with the phase that dominates: data wait, compute, exposed sync, or checkpoint." | Four pictures: phases per rank |
# | Is the gradient right with uneven batches? | "Only if each sample weighs the same. I sum the loss, divide by the step's samples over all ranks, and undo DDP's average." | 5: the mean of means |
# | A NaN appears: what do all ranks do? | "The same thing. They agree on whether the gradient is finite, and then all of them stop or all skip the step. It still counts, so the data order doesn't shift." | 5: the NaN sample |
# | The replicas drift apart: how would you notice? | "Not from the loss. I hash the weights on every rank now and then, and compare." | Run it: the hash of the weights on both ranks |
# | What wouldn't you build? | "Cloud auth, the scheduler, a vendor's exporter, hybrid parallelism. I keep the interfaces, and I can say what plugs in." | What can stay an interface |
#
# ## What to practice next
#
# - Type one cell at a time, against the clock, from the advanced set in
#   [02_rehearse](02_rehearse.ipynb). The check runs your code on real ranks and tells you what's
#   wrong.
# - Then break one thing in this notebook, and before you run it, predict which cell fails
#   first. Divide the loss by the micro-batch's own size. Let `__iter__` move the position.
#   Leave out `no_sync`. Sort checkpoints by name. Don't check the files in `verify`. Give the
#   loader no generator. Don't restore the random streams. Don't restore the optimizer state.
# - Say each "How I'd notice it's wrong" from memory: which metric would tell you?
