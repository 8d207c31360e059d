# %% [markdown]
# # 14. Performance
#
# {{badge}}
#
# > "'The GPUs are underutilized' isn't a diagnosis. I split the step into phases and time
# > each of them on every rank: data wait, copy, forward, backward, gradient sync, optimizer,
# > checkpoint. Then I can say which phase stalls, on which rank, and since when. I tune that
# > one first."
#
# *Twenty-five minutes to read. Every measured number comes from a run in this notebook.
# Published ones have a link.*

# %% collapsed=true
# {{setup torch numpy matplotlib cloudpickle platformdirs fsrs rehearsal}}

# %% collapsed=true
#@title Imports
from rehearsal.engine.ranks import warm_up

warm_up("trainer_core.launch")  # starts the server that forks the ranks, while you read

import fcntl
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint_sequential
from torch.utils.data import DataLoader, Dataset

from rehearsal.evidence.pictures import phase_bars, rank_timeline
from rehearsal.faults.breaks import is_rank, wrap
from rehearsal.handbook.blind_fault import BlindCase
from rehearsal.handbook.diagrams import diagram
from rehearsal.handbook.memory_limit import KeptForBackward, in_short, memory_limit
from rehearsal.handbook.on_ranks import on_ranks, watch_ranks
from rehearsal.handbook.step_phases import Block, efficiency_lines, report_steps
from rehearsal.handbook.step_phases import step_stacks, watch
from rehearsal.handbook.trainer_runs import TWENTY_STEPS, train_to_end
from trainer_core.metrics import StepTimers, phase, summarize_timers

FAST = os.environ.get("FAST") == "1"
NUM_STEPS = 8 if FAST else 16
print(f"This machine has {os.cpu_count()} cores.")

# %% [markdown]
# ## A step has seven phases
#
# A training step waits for a batch, copies it to the device, runs forward and backward, syncs
# the gradients, updates the weights, and now and then saves. Each phase waits for something
# else. That's why the name of the slow phase is most of the diagnosis.

# %%
diagram("step_phases")

# %% [markdown]
# Here is this project's trainer on two ranks, with real compute and real files. The marker is
# the median of 20 steps, the line ends at the p95, and the tick is the slowest step.

# %%
folder = Path(tempfile.mkdtemp(prefix="handbook-"))
train_to_end(folder / "healthy", **TWENTY_STEPS)
phase_bars(folder / "healthy")

# %% [markdown]
# Read three things off it:
#
# - `checkpoint` has a median of zero and a slow maximum, because two of the 20 steps saved.
# - `other` is what no phase accounts for: here the ledger, the log and a vote. With it, the
#   phases add up to the wall time, so nothing can hide. If `other` grows, my list lacks a
#   phase.
# - `grad_sync` is the *exposed* sync: what's left of the backward pass after the last local
#   gradient. What DDP overlaps with the backward pass doesn't make the step longer, so it
#   isn't in there.
#
# ## A job to break
#
# For experiments, I want a smaller job with a steady step. Two ranks that compute on two
# cores get in each other's way, and that noise would hide the faults. So each `Block` is a
# layer plus a timed wait: 1 ms in forward, 2 ms in backward. It stands in for a GPU, which
# leaves the core free while it computes. Everything else is real: processes, DDP, gloo, the
# loader, the files.

# %%
class Batches(Dataset):
    """One item is one batch. A fault puts storage's time into ``wait``."""

    def __init__(self, size):
        self.size, self.wait = size, lambda number: None

    def __len__(self):
        return 10_000

    def __getitem__(self, number):
        self.wait(number)
        return torch.ones(self.size, 64), torch.zeros(self.size, dtype=torch.long)


class Job:
    """What one rank trains with. A fault breaks one of these parts."""

    def __init__(self, num_steps=NUM_STEPS, save_every=15):
        self.rank, self.num_steps, self.save_every = dist.get_rank(), num_steps, save_every
        torch.manual_seed(17)
        self.model = nn.Sequential(Block(), Block(), Block(), Block(), nn.Linear(64, 8))
        self.wrapped = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.batches = Batches(32)
        self.loader = DataLoader(self.batches, batch_size=None)
        self.syncs = lambda step: True

    def save(self, step, state):
        torch.save(state, f"step-{step}.pt")


# %% [markdown]
# The loop is the one that you'd type in an interview. `StepTimers` and `phase` are those of
# the [walkthrough](../01_walkthrough.ipynb), section 7. A hook on each parameter stamps the
# last local gradient, so the timers can tell backward from sync.

# %%
def train(job):
    """The loop of one rank. Yields each step's phases, in milliseconds."""
    timers = StepTimers(torch.device("cpu"))
    timers.watch_gradients(job.model)
    batches = iter(job.loader)
    for step in range(-1, job.num_steps + 1):  # steps -1 and 0 warm up
        with phase(timers, "data_wait"):
            inputs, targets = next(batches)
        with phase(timers, "h2d"):
            inputs, targets = inputs.to("cpu"), targets.to("cpu")  # on a GPU, to("cuda")
        with nullcontext() if job.syncs(step) else job.wrapped.no_sync():
            with phase(timers, "forward"):
                loss = F.cross_entropy(job.wrapped(inputs), targets)
            with phase(timers, "backward"):
                loss.backward()
        if job.syncs(step):
            with phase(timers, "optimizer"):
                job.optimizer.step()
                job.optimizer.zero_grad()
        if job.rank == 0 and step > 0 and step % job.save_every == 0:
            with phase(timers, "checkpoint"):
                job.save(step, job.model.state_dict())
        timers.end_step(step)
        yield from timers.read()


# %%
def train_with(*faults, **settings):
    """In a rank: break some parts of the job, and train."""
    job = Job(**settings)
    for fault in faults:
        fault(job)
    return report_steps(train(job))


def run(*faults, world_size=2, **settings):
    """Start the ranks, and watch them; returns each rank's phases."""
    return watch(lambda: train_with(*faults, **settings), world_size)


def run_each(kinds, world_size=2, **settings):
    """Without a table: several jobs, one after the other, in the same ranks."""

    def one_rank():
        return {name: train_with(*kinds[name], **settings) for name in kinds}

    ranks = on_ranks(one_rank, world_size, deadline_s=120)
    return {name: [of[name] for of in ranks] for name in kinds}


def p50(run, rank, *phases):
    """A rank's median time in these phases, in ms."""
    return statistics.median(sum(step[name] for name in phases) for step in run[rank])


healthy = run(num_steps=40)

# %% [markdown]
# This is what you want to see: nearly all of the step is forward and backward. The job is
# compute-bound, and the only way to make it faster is to compute less or faster. (If other
# programs keep your cores busy, the table shows that instead. Run the cell again later.)
#
# ## Five faults
#
# Each experiment below breaks one part, and takes about a second. Run a cell and watch its
# table. Then change a number and run it again.
#
# ### 1. Starve the loader
#
# From now on, storage needs 20 ms to deliver a batch.

# %%
def starve(job, seconds=0.02):
    job.batches.wait = lambda number: time.sleep(seconds)


starved = run(starve)
step_stacks({"healthy": healthy, "starved loader": starved})

# %% [markdown]
# `data_wait` grew on both ranks, and it comes before forward. A GPU would sit idle in every
# step. The first move is to read ahead: loader workers fetch the next batches while this one
# trains.

# %%
def read_ahead(job):
    job.loader = DataLoader(job.batches, batch_size=None, num_workers=2)


ahead = run(starve, read_ahead)

# %% [markdown]
# The storage is as slow as before, and the wait is almost gone. Two workers deliver a batch
# every 20 / 2 = 10 ms, and that's less than a step. The rule: workers >= time to read a batch
# / time of a step. On a GPU, add `pin_memory=True` and `non_blocking=True`, so that the copy
# overlaps too. Once storage itself is the limit, more workers won't help: see scaling below.
#
# ### 2. Slow one rank
#
# Rank 1's device runs at a third of its speed, as a throttled one might.

# %%
def slow_rank(job, rank=1, factor=3):
    if job.rank == rank:
        for block in job.model[:4]:
            block.seconds *= factor


slow = run(slow_rank)
step_stacks({"healthy": healthy, "rank 1 is slow": slow})

# %%
lag = p50(slow, 1, "forward", "backward") - p50(slow, 0, "forward", "backward")
waits = [p50(slow, rank, "grad_sync") for rank in (0, 1)]
print(f"rank 1 computes {lag:.0f} ms longer; rank 0 waits {waits[0] - waits[1]:.0f} ms longer")
print("the rank that doesn't wait:", waits.index(min(waits)))

# %% [markdown]
# Both ranks' steps take equally long: a synchronous step is as slow as the slowest rank. And
# the lost time shows up on the rank that's fine. On rank 0's dashboard, this is a network
# problem.
#
# > "A long grad_sync on one rank doesn't mean a slow network. It may be waiting for a peer.
# > So I compare the ranks and look for the one that doesn't wait: that's my straggler."
#
# The first move is to look at that machine: clocks, memory errors, a neighbor, or simply more
# work per batch than the others have. If it's the hardware, drain it. No bucket size will fix
# it. Don't trust GPU utilization here. [It's the time in which any kernel
# ran](https://docs.nvidia.com/deploy/nvml-api/structnvmlUtilization__t.html), and a rank that
# waits inside NCCL runs one: [100% at low power](https://github.com/NVIDIA/nccl/issues/968).
#
# Here's the same fault in the real trainer: rank 0 waits in `grad_sync` (red crosses) while
# rank 1 is still in its forward pass.

# %%
def slow_forward():
    def slow(forward, model, inputs):
        time.sleep(0.03 if is_rank(1) else 0)
        return forward(model, inputs)

    wrap("TinyNet.forward", slow)


train_to_end(folder / "slow", fault=slow_forward, **TWENTY_STEPS, max_epochs=1)
rank_timeline(folder / "slow", first_step=7)

# %% [markdown]
# Stragglers get worse with scale, because a step is slow as soon as *any* rank is. Say that a
# rank has a hiccup in one step of 1,000:

# %%
hiccup = 1 / 1000
for world_size in (1, 8, 64, 1024):
    share = 1 - (1 - hiccup) ** world_size
    print(f"{world_size:5} ranks: {share:6.1%} of the steps have one")

# %% [markdown]
# ### 3. Add latency to the all-reduce
#
# Each all-reduce now ends 25 ms late. The hook returns a future, as DDP's own does, so
# whatever can overlap with the backward pass still does.

# %%
def slow_network(job, seconds=0.025):
    def late(future):
        time.sleep(seconds)
        return future.value()

    def hook(state, bucket):
        return allreduce_hook(None, bucket).then(late)

    job.wrapped.register_comm_hook(None, hook)


network = run(slow_network)
step_stacks({"healthy": healthy, "slow network": network})

# %% [markdown]
# `grad_sync` grew on *all* ranks, even on the last one to arrive, and nobody's own phases
# did. That's a slow network. When latency is the problem, the first move is to sync less
# often: accumulate gradients locally over four micro-batches and sync the fourth.

# %%
def accumulate(job):
    job.syncs = lambda step: step % 4 == 0


def mean_ms(run, name=None):
    """Rank 0's mean per micro-batch: of a phase, or of all of them."""
    times = [step[name] if name else sum(step.values()) for step in run[0]]
    return statistics.mean(times)


fewer = run(slow_network, accumulate)
for name, of in {"healthy": healthy, "slow network": network, "1 sync in 4": fewer}.items():
    step, sync = mean_ms(of), mean_ms(of, "grad_sync")
    print(f"{name:13} {step:5.1f} ms per micro-batch, {sync:4.1f} of it sync")

# %% [markdown]
# The sync's cost per micro-batch falls to about a quarter. (The table's median says 0: three
# in four micro-batches don't sync, so the median doesn't see it.) You pay with a global batch
# that's four times as large, or with micro-batches a quarter of the size. If the problem is
# bytes rather than latency, I'd look at overlap, at gradients in 16 bits, and at where the
# ranks are placed: chapter 17.
#
# ### 4. Stall storage
#
# Rank 0 saves every 15 steps, and each save takes 0.25 s longer.

# %%
def stall(job, seconds=0.25):
    save = job.save

    def slow_save(step, state):
        time.sleep(seconds)
        save(step, state)

    job.save = slow_save


stalled = run(stall, num_steps=40)
step_stacks({"healthy": healthy, "storage stalls": stalled})

# %% [markdown]
# The table looks healthy, except for its last column. The picture doesn't: there are two
# spikes on rank 0, in `checkpoint`. One step later, the same spikes are on rank 1, in
# `grad_sync`, because it ran ahead to the next sync and had to wait there.
#
# So which number would have caught it?

# %%
saves = [step["checkpoint"] for step in stalled[0]]
summary = summarize_timers(stalled[0])["checkpoint"]
print(f"rank 0, checkpoint, ms: mean {statistics.mean(saves):.0f}, {summary}")
print(f"of the steps that saved: p50 {statistics.median(filter(None, saves)):.0f}")

# %% [markdown]
# Two steps in 40 are 5%, so even the p95 just misses them, and the mean turns them into a
# slightly slower step. Use the max, or the median *of the steps that saved*.
#
# The first move is to line the spikes up with the save times. Then save in the background:
# the step waits only for a copy in memory, because the next step overwrites the weights.

# %%
def save_in_background(job):
    pool, save = ThreadPoolExecutor(1), job.save

    def start(step, state):
        copied = {name: tensor.clone() for name, tensor in state.items()}
        pool.submit(save, step, copied)

    job.save = start


background = run(stall, save_in_background, num_steps=20)
for name, of in {"stalled": stalled, "in the background": background}.items():
    print(f"{name:17} slowest checkpoint phase: {max(s['checkpoint'] for s in of[0]):5.1f} ms")

# %% [markdown]
# The price is a second copy of the state, and errors that surface later. And before the job
# ends, it has to wait for the last save: chapter 13.
#
# ### 5. Grow the batch until memory fails
#
# No timed waits in this one: a network of 24 layers, and a process that may allocate 40 MiB.

# %%
def network_of_24():
    layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(24)]
    return nn.Sequential(*layers)


# %%
def double_until_it_fails(micro_batch_size=None, segments=None):
    """Double the batch, up to 4,096. What each size kept for backward, and where it failed."""
    model, rows = network_of_24(), []
    model(torch.ones(1, 64)).sum().backward()  # warm up
    with memory_limit(mib=40):
        for size in (256, 512, 1024, 2048, 4096):
            rows.append({"batch": size, "fails in": "forward", "kept_mib": 0.0})
            began = time.perf_counter()
            try:
                for inputs in torch.ones(size, 64).split(micro_batch_size or size):
                    kept = KeptForBackward(model)
                    with kept:
                        if segments:  # activation checkpointing
                            inputs.requires_grad_()
                            outputs = checkpoint_sequential(
                                model, segments, inputs, use_reentrant=False
                            )
                        else:
                            outputs = model(inputs)
                    rows[-1] |= {"fails in": "backward", "kept_mib": kept.mib}
                    outputs.sum().backward()
            except RuntimeError as error:  # on a GPU, torch.OutOfMemoryError is one
                rows[-1]["error"] = in_short(str(error))
                break
            rows[-1] |= {"fails in": None, "ms": 1e3 * (time.perf_counter() - began)}
    return rows


# %%
def on_one_rank(**settings):
    """A process of its own, so that its limit isn't ours."""
    return on_ranks(lambda: double_until_it_fails(**settings), 1)[0]


plain = on_one_rank()
for row in plain:
    outcome = f"fails in {row['fails in']}" if row["fails in"] else f"{row['ms']:.0f} ms"
    print(f"batch {row['batch']:5}: keeps {row['kept_mib']:3.0f} MiB, {outcome}")
print(plain[-1].get("error", "Nothing failed."))

# %% [markdown]
# Forward and backward grow with the batch, and so does what forward keeps for backward. Then
# forward fails. Weights, gradients and optimizer state don't depend on the batch at all, so
# the first move is a smaller micro-batch, accumulated to the same global batch. If one sample
# is too large already, trade compute for memory: activation checkpointing drops what's inside
# a segment and computes it again in backward.

# %%
small = on_one_rank(micro_batch_size=256)
recomputed = on_one_rank(segments=6)
moves = {"plain": plain, "micro-batches of 256": small, "6 segments": recomputed}
for name, rows in moves.items():
    fits = max(row["batch"] for row in rows if not row["fails in"])
    print(f"{name:20} the largest batch that fits is {fits}")

# %% [markdown]
# Ranks don't run out together. Here rank 1 gets samples that are twice as long.

# %%
def longer_samples_on_rank_1():
    model = DistributedDataParallel(network_of_24())
    with memory_limit(mib=40):
        for size in (512, 1024, 2048):
            model(torch.ones(size * (1 + dist.get_rank()), 64)).sum().backward()


reports = watch_ranks(longer_samples_on_rank_1, 2)
for report in reports:
    print(f"rank {report.rank}:", in_short(report.failure.message) if report.failure else "ok")

# %% [markdown]
# Rank 1 ran out of memory, and rank 0 complains about the network. With gloo it does so at
# once. Under NCCL, expect rank 0 to block until the watchdog or the launcher ends it (chapter
# 13). Either way, the error that matters is in the other rank's log.
#
# ## Four questions that a phase timer answers
#
# Are we input-bound, communication-bound, compute-bound, or stalled on checkpoints and other
# artifacts? It pays to split the second one. What the *last* rank to arrive spends in
# `grad_sync` is transfer. What the others spend on top of that is waiting for it: some people
# call such a job synchronization-bound.

# %%
def where_time_goes(run):
    """Shares of all ranks' time, from 0 to 1."""
    steps = [step for rank in run for step in rank]
    total = sum(sum(step.values()) for step in steps)

    def share(*phases):
        return sum(step[name] for step in steps for name in phases) / total

    last_to_arrive = [min(step["grad_sync"] for step in of_ranks) for of_ranks in zip(*run)]
    transfer = sum(last_to_arrive) * len(run) / total
    return {
        "input": share("data_wait", "h2d"),
        "compute": share("forward", "backward", "optimizer"),
        "transfer": transfer,
        "waiting": share("grad_sync") - transfer,
        "saving": share("checkpoint"),
    }


every_run = {
    "healthy": healthy,
    "starved loader": starved,
    "slow rank": slow,
    "slow network": network,
    "stalled storage": stalled,
}
print(" " * 17, *(f"{name:>9}" for name in where_time_goes(healthy)))
for name, of in every_run.items():
    print(f"{name:17}", *(f"{share:9.0%}" for share in where_time_goes(of).values()))

# %% [markdown]
# The largest number in a row isn't always the answer. Compare with the healthy row: what
# grew? And shares hide bursts: two saves of 250 ms in 40 steps cost as much as 12 ms in every
# step.
#
# ## The first questions
#
# So before any tool, ask four things:
#
# - **Stable or bursty?** Bursts mean I/O, or somebody else's load on the same machine.
# - **Rank-local or global?** Local means hardware, data or placement. Global means shared
#   storage, the network, or the code.
# - **Before backward, or in the sync?** That separates compute and input from communication.
# - **Since when?** A deployment, a restart on other machines, or a memory saver that trades
#   time: recomputation, sharding, offloading.

# %%
diagram("slow_step")

# %%
def first_questions(run, healthy=healthy):
    """Bursty or stable, which ranks, which phase, since which step."""
    walls = [sum(step.values()) for step in run[0]]  # synchronous, so one rank's will do
    bursty = max(walls) > 4 * statistics.median(walls)
    typical = max if bursty else statistics.median
    grew = {
        (name, rank): typical(s[name] for s in steps) - typical(s[name] for s in healthy[rank])
        for rank, steps in enumerate(run)
        for name in steps[0]
    }
    own = {key: ms for key, ms in grew.items() if key[0] != "grad_sync"}
    name, _ = max(own, key=own.get)
    if min(grew["grad_sync", rank] for rank in range(len(run))) > max(own.values()):
        name = "grad_sync"  # on all ranks, and more than anything of their own
    most = max(grew[name, rank] for rank in range(len(run)))
    usual = typical(step[name] for step in healthy[0])
    ranks = [rank for rank in range(len(run)) if grew[name, rank] > most / 2]
    since = min(
        number
        for rank in ranks
        for number, step in enumerate(run[rank], 1)
        if step[name] > usual + most / 2
    )
    burst = "bursty" if bursty else "stable"
    return {"how": burst, "phase": name, "ranks": ranks, "since step": since, "ms": round(most)}


# %%
def cold_cache(job):
    job.batches.wait = lambda number: time.sleep(0.02 if number > 5 else 0)


every_run |= run_each({"cache goes cold": [cold_cache]}, num_steps=12)
for name, of in every_run.items():
    if name != "healthy":
        print(f"{name:16}", first_questions(of))

# %% [markdown]
# The same as a table of symptoms, for when you're on call:
#
# | symptom | phase | suspects | first move | experiment |
# |---|---|---|---|---|
# | idle before forward | `data_wait`, `h2d` | storage, decoding, copies | workers, prefetching, cache, pinned memory | 1 |
# | long tail in backward, on some ranks | `grad_sync` of those that are fine | the rank that doesn't wait: hardware, longer samples | look at it, then drain or rebalance | 2 |
# | long tail in backward, on all ranks | `grad_sync` of all | latency, topology, bucket layout | fewer syncs, overlap, placement | 3 |
# | periodic spikes | `checkpoint`, and the peers' next `grad_sync` | saves, storage jitter, evaluation | line them up with the save times, then save in the background | 4 |
# | out of memory after scaling | dies in `forward` or `backward`, one rank first | activations; optimizer state if the model grew | smaller micro-batch, activation checkpointing, then sharding | 5 |
#
# ## Name the fault
#
# Your turn. The next cell draws a fault, and a rank if it strikes only one. It shows nothing
# but the phases.

# %%
def blind(*faults):
    return run_each({"blind": faults}, num_steps=12, save_every=5)["blind"]


def on_one(fault, rank):
    return lambda job: fault(job) if job.rank == rank else None


candidates = {
    "starved loader": lambda chance: blind(starve),
    "one rank's loader": lambda chance: blind(on_one(starve, chance.randrange(2))),
    "slow rank": lambda chance: blind(partial(slow_rank, rank=chance.randrange(2))),
    "slow network": lambda chance: blind(slow_network),
    "stalled storage": lambda chance: blind(stall),
}
case = BlindCase(candidates, healthy)
case.picture()

# %%
answer = ""  # your guess, such as "slow network"
if case.name(answer):
    print(first_questions(case.run))

# %% [markdown]
# ## How timers mislead
#
# ### Four timers see four phases
#
# The usual four are h2d, forward, backward and optimizer. They miss the two stages that
# matter most: the wait for the loader comes before the first of them, and the sync hides in
# the third, because DDP starts it from hooks inside `backward()`.

# %%
def four_timers(run):
    """Rank 0's median step as four timers show it, and the whole step; in ms."""
    names = {"h2d": ["h2d"], "forward": ["forward"], "optimizer": ["optimizer"]}
    names["backward"] = ["backward", "grad_sync"]
    seen = {name: p50(run, 0, *phases) for name, phases in names.items()}
    return seen | {"sum": sum(seen.values()), "the step": p50(run, 0, *run[0][0])}


for name in ("healthy", "starved loader", "slow network"):
    row = four_timers(every_run[name])
    print(f"{name:14}", "  ".join(f"{column} {ms:4.0f}" for column, ms in row.items()))

# %% [markdown]
# In the starved job, the four add up to less than half of the step. In the job on the slow
# network they blame the backward pass, which sends somebody off to optimize a kernel.
#
# ### Launch time isn't GPU time
#
# CUDA calls are asynchronous: they queue work and return. So a clock around `forward()` times
# the launch, and the device's time is billed to whichever line waits next. PyTorch's notes
# [say it
# plainly](https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution):
# synchronize first, or use CUDA events. `.item()` on a CUDA tensor is such a wait, and so are
# `print(tensor)` and `if tensor:` ([tuning
# guide](https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html)). One `.item()`
# per step, outside all timers, swallows the whole step, and it stops the host from queuing
# ahead. A CPU can't show that. The collapsed cell does, on a GPU.

# %% collapsed=true
#@title Launch time, GPU time, and who pays: needs a GPU
if torch.cuda.is_available():
    matrix = torch.ones(4096, 4096, device="cuda")
    (matrix @ matrix).sum().item()  # warm up, and wait
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began = time.perf_counter()
    first.record()
    for _ in range(20):
        product = matrix @ matrix
    last.record()
    launched = time.perf_counter()
    product.sum().item()
    waited = time.perf_counter()
    print(f"launch {1e3 * (launched - began):.1f} ms, item {1e3 * (waited - launched):.1f} ms")
    print(f"on the device, by events: {first.elapsed_time(last):.1f} ms")
else:
    print("No GPU here. On Colab, choose a GPU runtime and run the notebook again.")

# %% [markdown]
# What a CPU can show is the same trap with a collective. `async_op=True` returns at once, and
# the bill comes where somebody waits. Rank 1 arrives 0.2 s late:

# %%
def who_pays():
    time.sleep(0.2 * dist.get_rank())
    began = time.perf_counter()
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    launched = time.perf_counter()
    work.wait()
    return 1e3 * (launched - began), 1e3 * (time.perf_counter() - launched)


launch_ms, wait_ms = on_ranks(who_pays, 2)[0]
print(f"rank 0: the call took {launch_ms:.1f} ms, the wait {wait_ms:.1f} ms")

# %% [markdown]
# That's why `StepTimers` records CUDA events on a GPU, and reads them only where the host
# waits anyway.
#
# ### Measure the sync by difference
#
# Without hooks, you can still measure the sync: time the backward pass with it and without
# it, under `no_sync()`. Here every other step syncs.

# %%
def every_other(job):
    job.syncs = lambda step: step % 2 == 0


def by_difference(run):
    """Rank 0's backward with the sync minus without, and what the hooks measured; in ms."""
    local, synced = run[0][::2], run[0][1::2]  # steps 1, 3, ... and 2, 4, ...
    whole = [p50([steps], 0, "backward", "grad_sync") for steps in (local, synced)]
    return whole[1] - whole[0], p50([synced], 0, "grad_sync")


pairs = {"slow network": [slow_network, every_other], "slow rank": [slow_rank, every_other]}
measured = {name: by_difference(of) for name, of in run_each(pairs).items()}
for name, (difference, hooks) in measured.items():
    print(f"{name:12}: {difference:3.0f} ms by difference, {hooks:3.0f} ms by the hooks")

# %% [markdown]
# The two agree. But on the job with the slow rank, they're about twice what rank 0 waited per
# step in experiment 2. Without a sync, nobody waits, so rank 1 falls behind by two steps
# until the next sync. The difference measures the transfer *and* the waiting. To separate
# them, compare the ranks, as `where_time_goes` does.
#
# ## Scaling efficiency
#
# *Weak scaling*: the work per rank stays the same. Efficiency is T(1) / T(W), for step times
# T. *Strong scaling*: the global batch stays the same, so each rank gets a W-th of the work.
# Efficiency is T(1) / (W x T(W)). Say which one you mean.

# %%
def split_the_work(job):
    for block in job.model[:4]:
        block.seconds /= dist.get_world_size()


def compute_on_cores(job):
    for block in job.model[:4]:
        block.on_core = True


def one_disk(job, seconds=0.008):
    def wait(number):
        with open("disk", "w") as disk:  # in a folder that the ranks share
            fcntl.flock(disk, fcntl.LOCK_EX)
            time.sleep(seconds)

    job.batches.wait = wait


kinds = {
    "weak, starved": [starve],
    "weak": [],
    "strong": [split_the_work],
    "weak, on cores": [compute_on_cores],
    "weak, one disk": [one_disk],
}
sizes = (1, 4) if FAST else (1, 2, 3, 4)
by_size = {W: run_each(kinds, world_size=W) for W in sizes}
scaled = {name: {W: by_size[W][name] for W in sizes} for name in kinds}

# %%
def efficiency(name):
    """By world size."""
    step_ms = {W: p50(of, 0, *of[0][0]) for W, of in scaled[name].items()}
    work = {W: W if name == "strong" else 1 for W in sizes}
    return {W: step_ms[1] / (work[W] * ms) for W, ms in step_ms.items()}


shown = [name for name in kinds if name != "weak, starved"]
efficiency_lines({name: efficiency(name) for name in shown}, os.cpu_count())

# %% [markdown]
# What the picture can say:
#
# - *Weak* loses the sync, plus the wait for whichever rank is last.
# - *Strong* drops, because the compute shrinks and the sync and the optimizer don't. That's
#   Amdahl's law. At some W, adding ranks stops paying.
# - *One disk* drops like 1/W, once the ranks' reads take longer in total than a step.
#
# What it can't say:
#
# - *On cores* measures the cores. With more ranks than cores, ranks share them, and so does
#   gloo's own work in the other three. If DDP doesn't scale on your laptop, look here first.
# - There's no network here. Loopback tells you nothing about NVLink or InfiniBand, and gloo
#   nothing about NCCL.
# - Efficiency compares a job with itself. Waiting for data scales perfectly, so a starved job
#   scales better than the same job with a fast loader:

# %%
W = max(sizes)
for name in ("weak", "weak, starved"):
    share = where_time_goes(scaled[name][W])["input"]
    print(f"{name:13} {W} ranks: efficiency {efficiency(name)[W]:.0%}, data wait {share:.0%}")

# %% [markdown]
# ### Why the sync gets worse with scale
#
# In a ring all-reduce, a rank sends less than twice the gradient's bytes, at any number of
# ranks: chapter 15 derives it. So if the bytes don't grow, why does the sync get worse with
# scale? Because the hops do, a link between nodes is slower than one inside a node, any rank
# can be the late one, and under strong scaling there's less backward pass to hide behind.
#
# ## Drill 4's three questions
#
# **Which phase scales badly first?** Whichever depends on something that all ranks share. On
# one disk, that's `data_wait`, and the ranks that are served first wait in `grad_sync` for
# the last. With storage of their own, it's `grad_sync`, because no other phase involves
# another rank. Milliseconds on the slowest rank of each step:

# %%
def slowest_rank(run, name):
    """The median, over the steps, of the longest time that any rank spent there; in ms."""
    return statistics.median(max(step[name] for step in of_ranks) for of_ranks in zip(*run))


columns = ("data_wait", "forward", "backward", "grad_sync", "optimizer")
for kind in ("weak", "weak, one disk", "strong"):
    for W, of in scaled[kind].items():
        slowest = {name: slowest_rank(of, name) for name in columns}
        row = "  ".join(f"{name} {ms:4.1f}" for name, ms in slowest.items())
        print(f"{kind:14} W={W}", row)

# %% [markdown]
# **Which phase has long-tail spikes?** `checkpoint`, because it's rare and it's I/O. Then
# `data_wait`, when storage is shared or a cache goes cold. And `grad_sync` inherits
# everybody's tail, as rank 1 showed in experiment 4.
#
# **Which is easiest to observe in a notebook?** `data_wait`, and on a CPU also `forward`,
# `optimizer` and `checkpoint`: two clock readings around host code, in one process.
# `grad_sync` is the hardest. It takes a second rank, and hooks or `no_sync()` to tell it from
# `backward`.
#
# ## Where torch.profiler comes in
#
# Phase timers run all the time, on every rank, for a few clock readings per step. They say
# *which phase*. The profiler says *which operation*, and it records every one of them, so
# give it ten steps of one or two ranks. Somebody has added a regularizer to the model:

# %%
def regularize(job):
    def hook(layer, inputs, outputs):
        torch.linalg.svdvals(torch.rand(256, 256))

    job.model[2].register_forward_hook(hook)


def profile_steps(*faults):
    """The operations with the most time of their own, and how many events there were."""
    job = Job(num_steps=3)
    for fault in faults:
        fault(job)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        steps = list(train(job))
    rows = sorted(profiler.key_averages(), key=lambda row: -row.self_cpu_time_total)
    top = [(row.key, row.count, row.self_cpu_time_total / 1e3) for row in rows[:5]]
    return {"steps": len(steps), "events": len(profiler.events()), "top": top}


profile_of_rank_0 = on_ranks(lambda: profile_steps(regularize), 2)[0]
print("{events} events in {steps} steps".format(**profile_of_rank_0))
for name, count, ms in profile_of_rank_0["top"]:
    print(f"{name:45} {count:4} calls {ms:6.1f} ms")

# %% [markdown]
# `TakesTime` is our stand-in for the GPU, so ignore it. `aten::_linalg_svd` is the answer:
# once per step, and nobody had asked for it. The timer alone would have said "forward". On a
# GPU, add `ProfilerActivity.CUDA`, and look for gaps in the device's timeline too: each one
# is a wait for the host.
#
# > "Timers first, profiler second. A trace of ten thousand events answers a question that I
# > should have before I open it."

# %% [markdown]
# ## Say it in 60 seconds
#
# > "I start with the step, by phase, on every rank: data wait, copy, forward, backward,
# > exposed sync, optimizer, checkpoint. They have to add up to the wall time, and I look at
# > p50, p95 and max, because means hide spikes.
# >
# > Then four questions. Stable or bursty? One rank or all of them? Before backward or in the
# > sync? Since when? That gives me the bottleneck. If we wait for data, I read ahead. If one
# > rank is late, the others show it as sync time, so I find the rank that doesn't wait. If
# > all ranks wait, it's the network, so I sync less or overlap more. Spikes at the save
# > cadence mean storage, so I save in the background.
# >
# > On GPUs I use events, because a host clock times the launch. I change one thing, and I
# > measure the same phases again."

# %% [markdown]
# ## Three questions
#
# **"The loss falls, but throughput is poor. Where do you start?"**
#
# - *Weak:* "I'd try a larger batch, more workers and `torch.compile`, and see what helps."
# - *Strong:* "With the step by phase, per rank. If `data_wait` is a large share, we're
#   input-bound, and nothing that I do to the model will help. If `grad_sync` is, I compare
#   the ranks: all of them means the network, all but one means a straggler. If forward and
#   backward are nearly everything, we're compute-bound, and now a profiler pays."
# - *What would prove me wrong:* after the fix, samples per second. If the phase shrinks and
#   throughput doesn't move, the time has gone to another phase, often to `grad_sync` on a
#   peer.
#
# **"One GPU is less utilized than the others. Is it broken?"**
#
# - *Weak:* "Probably. I'd replace the node."
# - *Strong:* "Utilization counts any running kernel, and a rank that waits inside NCCL has
#   one. So the busy ones may be waiting, and the idle one may be what they wait for: its
#   kernels come late because its host does, for the loader or a sync. I'd compare phases. The
#   rank with the least `grad_sync` is the straggler, and its longest own phase says why:
#   `data_wait` means its loader, forward its clocks or longer samples."
# - *What would prove me wrong:* swap the rank's data or its machine. If the slow phase stays
#   with the data, it's skew. If it stays with the machine, it's hardware.
#
# **"Every 20 minutes, a step takes ten times as long. What is it?"**
#
# - *Weak:* "Checkpoints. I'd save less often."
# - *Strong:* "I'd line the spikes up with the save times before I believe it. If they match,
#   I look at the max of `checkpoint`, not at its p95, which can't see one step in a thousand.
#   The fix is a copy in memory and a write in the background. How often we save is set by the
#   work we can afford to lose, so I'd keep that. If they don't match, evaluation, logging,
#   shared storage and a neighbor's job come next."
# - *What would prove me wrong:* turn saving off for an hour. If the spikes stay, it wasn't
#   the saves.

# %% [markdown]
# ## Practice it
#
# - Drills: [instrument_performance](../drills/040_instrument_performance.ipynb),
#   [cell_metrics](../drills/170_cell_metrics.ipynb),
#   [cell_train](../drills/150_cell_train.ipynb).
# - The code: sections 5 and 7 of the [walkthrough](../01_walkthrough.ipynb).
# - The cards: `ask(topic="performance")` in [03_deck](../03_deck.ipynb).
