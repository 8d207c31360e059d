# %% [markdown]
# # 18. Hardware and failures
#
# {{badge}}
#
# > "On a thousand GPUs something fails every day, on ten thousand every few hours. So I plan for it
# > the way I plan the batch size. Failures are loud, hung, slow or silent, and each kind needs its
# > own detector and its own first action. The failure rate gives me the checkpoint interval and
# > the number of spares. Then goodput is arithmetic, and I know what to fix first."
#
# *Twenty-two minutes to read. There's no GPU here. Published figures carry their links, gloo
# stands in for NCCL where the text says so, and everything else runs in the cells.*

# %% collapsed=true
# {{setup torch numpy matplotlib cloudpickle platformdirs fsrs rehearsal}}

# %% collapsed=true
#@title Imports
import collections
import hashlib
import inspect
import itertools
import math
import os
import random
import re
import statistics
import tempfile
import threading
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.agent.server import local_elastic_agent
from torch.nn import functional as F

from rehearsal.evidence.audit import audit_run
from rehearsal.evidence.cadence import best_interval, expected_goodput
from rehearsal.evidence.cadence_simulation import enough_failures, simulate_job
from rehearsal.evidence.pictures import loss_curves
from rehearsal.faults import breaks
from rehearsal.handbook import failures
from rehearsal.handbook.diagrams import diagram
from rehearsal.handbook.flight_recorder import (
    analyze,
    dump_recorder,
    read_dump,
    torch_headers,
)
from rehearsal.handbook.on_ranks import on_ranks, watch_ranks
from rehearsal.handbook.trainer_runs import run_trainer

FAST = os.environ.get("FAST") == "1"  # fewer repetitions

# %% [markdown]
# ## What fails, and how often
#
# The best public record is [Llama 3 405B](https://arxiv.org/abs/2407.21783), table 5. The job ran
# for 54 days on 16,384 H100s and stopped unexpectedly 419 times. Add the bars up by failure
# domain: that's the part that a restart has to replace.

# %%
totals = collections.Counter()
for domain, count in failures.LLAMA_3.values():
    totals[domain] += count
for domain, count in totals.most_common():
    print(f"{domain:9} {count:4} interruptions, {count / 419:.0%}")
failures.interruptions_picture()

# %% [markdown]
# Nearly two thirds are the GPU and its memory. CPUs, disks and power supplies together stopped the
# job 8 times. Quote the counts: the paper prints 30.1% next to the 148, and 148 of 419 is 35%.
#
# ### One law: node MTBF over nodes
#
# A synchronous job stops when any of its nodes stops. Independent failures add their rates, so the
# mean time between failures (MTBF) of the job is that of one node, divided by the number of nodes.

# %%
GPUS_PER_NODE = 8


def job_mtbf_h(gpus, failures_per_1000_node_days):
    return 24 * 1000 / failures_per_1000_node_days / (gpus / GPUS_PER_NODE)


llama_rate = 419 / (54 * 16_384 / GPUS_PER_NODE) * 1000
print("                            hours   failures per 1000 node-days")
for name, gpus, hours, how in failures.PUBLISHED:
    rate = 24 * 1000 / hours / (gpus / GPUS_PER_NODE)
    print(f"{name:26} {hours:6.1f}   {rate:4.1f}  {how}")
failures.mtbf_picture(job_mtbf_h, {**failures.RSC_RATES, "Llama 3 405B": llama_rate})

# %% [markdown]
# The points come from three papers: Llama 3,
# [Revisiting Reliability](https://arxiv.org/abs/2410.21680) about Meta's research clusters, and
# [OPT-175B](https://arxiv.org/abs/2205.01068), where we count both its manual restarts and its own
# estimate of the automatic ones. Its [logbook](https://github.com/facebookresearch/metaseq/tree/main/projects/OPT/chronicles)
# is worth an evening: it's what being on call for a run feels like.
#
# The slope is the same everywhere. The constant isn't. The second paper projects 1.8 hours for
# 16,384 GPUs from its own 6.5 failures per 1000 node-days, and it measured 7.9 hours at 1,024
# GPUs, where that rate predicts 28.8. So two numbers from one paper differ by a factor of 3.6.
# Check what each one counts as a failure before you quote it.
#
# > "MTBF falls as one over the number of nodes. That part I can do in my head. The constant I'd
# > measure on our own cluster, because published rates differ by a factor of ten."

# %% [markdown]
# ## Four kinds of failure

# %%
diagram("failure_kinds")

# %% [markdown]
# ## Loud: Xid and ECC
#
# When a GPU has a problem, NVIDIA's driver writes an *Xid* to the kernel log. The code decides
# whether you debug your program, restart it, or lose the node. These nine are worth knowing, with
# the immediate action from NVIDIA's
# [catalog](https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html).

# %%
LOG = """\
NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping
NVRM: Xid (PCI:0000:06:00): 79, GPU has fallen off the bus."""


def triage(line):
    """The GPU that a line of the kernel log is about, the code, and what to do."""
    gpu, code = re.search(r"Xid \(PCI:([\w:]+)\): (\d+)", line).groups()
    return gpu, int(code), failures.XIDS[int(code)].action


for code, (meaning, action) in failures.XIDS.items():
    print(f"{code:2}  {meaning:52} {action}")
print()
for line in LOG.splitlines():
    print(*triage(line), sep="  ")

# %% [markdown]
# 13 and 31 look like hardware and usually aren't: NVIDIA's catalog calls them typical application
# faults. If they always come from one GPU, and the same code runs well on others, suspect the GPU
# after all. 74 may come from the GPU at the *other* end of the link. 94 kills one process and
# leaves the node usable; 95 doesn't.
#
# Most memory errors never get that far. Error-correcting codes (ECC) store extra bits with each
# word. GPU memory uses wider codes than the one below, which protects 4 bits with 4 more, but the
# three outcomes are the same.

# %%
def encode(a, b, c, d):
    """A Hamming code with an extra parity bit: it corrects one flip and detects two."""
    word = [a ^ b ^ d, a ^ c ^ d, a, b ^ c ^ d, b, c, d]
    return [*word, sum(word) % 2]


def read(word):
    """What the memory controller returns: the outcome, and the word."""
    place = 0
    for position, bit in enumerate(word[:7], 1):
        place ^= position * bit
    if sum(word) % 2:  # an odd number of flips: assume one, and flip it back
        word[place - 1 if place else 7] ^= 1
        return "corrected", word
    return ("detected" if place else "clean"), word


outcomes = collections.Counter()
for flips in range(4):
    for bits in itertools.product((0, 1), repeat=4):
        for places in itertools.combinations(range(8), flips):
            outcome, got = read([bit ^ (at in places) for at, bit in enumerate(encode(*bits))])
            right = "right" if got == encode(*bits) else "WRONG"
            outcomes[flips, outcome, right] += 1
for (flips, outcome, right), count in outcomes.items():
    print(f"{flips} bits flipped: {count:3} words {outcome}, the data is {right}")

# %% [markdown]
# One flip is a counter that nobody looks at. Two are an Xid. Three are returned as *corrected*, and
# the data is wrong. ECC makes memory errors rare; it doesn't make them impossible. And it protects
# stored bits only. It knows nothing about a multiplier that multiplies wrong.

# %% [markdown]
# ## Hung: the watchdog and the flight recorder
#
# A hang leaves no traceback. The ranks that wait are innocent, and the one that they wait for says
# nothing. With NCCL, three mechanisms matter:
#
# - The **watchdog** is a thread in each rank. If a collective takes longer than the group's
#   timeout, it ends the process. Until then the GPU looks busy, because a waiting NCCL kernel
#   spins.
# - The **monitor** is a second thread, for the case that the watchdog itself is stuck in a CUDA
#   call.
# - The **flight recorder** is a ring buffer of the last collectives: name, sizes, state, stack.
#   Each rank dumps it on a timeout.
#
# Many blog posts have old names for these variables. The cell looks them up in the torch that's
# installed.

# %%
VARIABLES = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "what the watchdog does after an error; 0 ignores it",
    "TORCH_NCCL_ENABLE_MONITORING": "start the monitor thread",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "how long the watchdog may be silent",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "dump the flight recorder on a timeout",
    "TORCH_FR_BUFFER_SIZE": "entries in the ring; once TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_CPP_STACK": "record C++ stacks too; once TORCH_NCCL_TRACE_CPP_STACK",
    "TORCH_NCCL_NAN_CHECK": "stop at a NaN before it's sent",
}
headers, launcher = torch_headers(), inspect.getsource(local_elastic_agent)
known = {name for name in VARIABLES if f'"{name}"' in headers}
for name, what in VARIABLES.items():
    print(f"{'ok' if name in known else 'not in this torch':4} {name:33} {what}")

minutes = r"k(\w+)DefaultTimeout =\s+std::chrono::milliseconds\((\d+) \* 60 \* 1000\)"
print("\ndefault timeouts, in minutes:", dict(re.findall(minutes, headers)))
print("torchrun's default:", *re.findall(r'"(\w+ERROR_HANDLING)", str\((\d)\)', launcher))

# %% [markdown]
# One trap: torch's [own default](https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html)
# for the first one is 3, and `torchrun` sets it to 1 unless you set it. With 1 the watchdog aborts
# the communicator, and [torchtitan](https://github.com/pytorch/torchtitan) sets 3 because it found
# the dump incompatible with that. Set it explicitly.
#
# Gloo has no watchdog. A waiting rank raises at its timeout, or at once if a peer's connection
# closes. It does have the flight recorder, so here is a real hang. Rank 1 has one batch less than
# the others, leaves the loop, and goes to the barrier at the end of the epoch.

# %%
def epoch(batches_of_rank):
    """An epoch of gradient syncs; then the ranks meet. Returns the flight recorder's dump."""
    replicas = dist.new_group(timeout=timedelta(seconds=2.5), group_desc="replicas")
    gradient, dumps = torch.ones(1000), []
    threading.Timer(1.5, lambda: dumps.append(dump_recorder())).start()  # plays the watchdog
    try:
        for _ in range(batches_of_rank[dist.get_rank()]):
            dist.all_reduce(gradient, group=replicas)
        dist.barrier()
    except RuntimeError:
        return dumps[0]  # the group's timeout, or a peer that has already gone


dumps = on_ranks(epoch, 3, [4, 3, 4])
print("rank  group       its no.  collective  done   called from")
for rank, dump in enumerate(map(read_dump, dumps)):
    for entry in dump["entries"][-2:]:
        frame = next(f for f in entry["frames"] if f["name"] == "epoch")
        group, name = entry["process_group"][1], entry["profiling_name"].partition(":")[2]
        print(f"{rank:4}  {group:10} {entry['collective_seq_id']:8}  {name:10}"
              f"  {entry['retired']!s:5}  line {frame['line']} of {frame['name']}")

# %% [markdown]
# Read it like this: find the last collective of each rank, then the rank that isn't in it. Ranks 0
# and 2 are in number 4 of `replicas`. Rank 1 finished number 3 and waits at a barrier on another
# group. The line number says where, and "uneven batches" takes a minute to find.
#
# At 2,000 ranks you don't read it. `torchfrtrace FOLDER` merges the dumps; torch ships it.

# %%
print(analyze(dumps))

# %% [markdown]
# It reports both sides: rank 1 is missing from the gradient sync, and ranks 0 and 2 are missing from
# the barrier. Each block has the stack of those who wait.
#
# What if the ranks meet in the same collective with different sizes? For NCCL the result is
# [undefined](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/collectives.html):
# a hang, a crash or wrong data. Gloo checks, and aborts the process. Torch's debug level DETAIL
# compares the ranks' calls before each collective. It's slow, and it names the difference.

# %%
def mismatched_sizes(level):
    dist.set_debug_level(getattr(dist.DebugLevel, level))
    group = dist.new_group()
    dist.all_reduce(torch.ones(1000 if dist.get_rank() else 1), group=group)


for level in ("OFF", "DETAIL"):
    for report in watch_ranks(mismatched_sizes, 2, level, deadline_s=20):
        said = report.failure.message if report.failure else report.output
        found = re.search(r"Received data size.+?size|Detected mismatch|Connection \w+", said)
        shapes = re.findall(r"TensorShape=(\[\d+\])", said)
        print(f"{level:6} rank {report.rank}: exit code {report.exitcode:2}", found[0], *shapes)

# %% [markdown]
# > "First the step counter: if it moves, it's slow, not hung. If it doesn't, I want every rank's
# > last collective. The rank that's missing from it is the one to look at, and the ones that are
# > waiting in it are witnesses."

# %% [markdown]
# ## Slow: heat and links
#
# A GPU that's too hot lowers its clock, and nothing fails. A link that loses packets sends them
# again, and nothing fails either. On Llama 3, the daily temperature alone moved the throughput by 1
# to 2%. A synchronous step runs at the pace of its slowest part, so one slow part out of 16,384
# costs as much as if all of them were slow.
#
# The ranks below compute, then pass their gradients around a ring. First rank 2 gets hot: each of
# its steps computes 60 ms longer. Then it's the cable from rank 1 to rank 2: each message on it
# takes 60 ms longer.

# %%
SLOW_S, STEPS = 0.06, 3 if FAST else 8


def send_to_next(buffer, bad_link):
    """One exchange in the ring: each rank sends to the next one."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if (rank, (rank + 1) % world_size) == bad_link:
        time.sleep(SLOW_S)
    sending = dist.isend(buffer, (rank + 1) % world_size)
    dist.recv(torch.empty_like(buffer), (rank - 1) % world_size)
    sending.wait()


def ring_steps(hot_rank=None, bad_link=None):
    """Milliseconds of computing and of waiting in each step, on this rank."""
    compute_ms, wait_ms = [], []
    for _ in range(STEPS):
        began = time.perf_counter()
        time.sleep(0.02 + (SLOW_S if dist.get_rank() == hot_rank else 0))
        computed = time.perf_counter()
        for _ in range(dist.get_world_size() - 1):
            send_to_next(torch.ones(1000), bad_link)
        compute_ms.append(1000 * (computed - began))
        wait_ms.append(1000 * (time.perf_counter() - computed))
    return {"compute_ms": compute_ms, "wait_ms": wait_ms}


cases = {
    "healthy": on_ranks(ring_steps, 4),
    "rank 2 is hot": on_ranks(ring_steps, 4, 2),
    "link 1 to 2 is bad": on_ranks(ring_steps, 4, None, (1, 2)),
}
failures.waiting_picture(cases)

# %% [markdown]
# The hot rank is the one that *doesn't* wait. Everybody else's time in the collective grows, and a
# dashboard of all-reduce times blames the network. Plot computing per rank and it's obvious.
#
# The bad link looks different: all ranks compute at the usual pace and all of them wait. No rank
# stands out, so take the ring apart and time the links one by one.

# %%
def link_times_ms(bad_link):
    """The milliseconds of each directed link while the others are idle, the best of three."""
    rank, found = dist.get_rank(), {}
    for source, target in 3 * [*itertools.permutations(range(dist.get_world_size()), 2)]:
        dist.barrier()
        began = time.perf_counter()
        if rank == source:
            time.sleep(SLOW_S if (source, target) == bad_link else 0)
            dist.send(torch.ones(1000), target)
        elif rank == target:
            dist.recv(torch.empty(1000), source)
        took = torch.tensor(1000 * (time.perf_counter() - began))
        dist.all_reduce(took, dist.ReduceOp.MAX)
        name = f"{source} to {target}"
        found[name] = min(took.item(), found.get(name, math.inf))
    return found


links = on_ranks(link_times_ms, 4, (1, 2))[0]
slowest, next_slowest = sorted(links, key=links.get, reverse=True)[:2]
print(f"slowest link: {slowest}, {links[slowest]:.0f} ms; the next takes "
      f"{links[next_slowest]:.0f} ms")

# %% [markdown]
# On a cluster, read the links' own error counters, then run
# [nccl-tests](https://github.com/NVIDIA/nccl-tests) on pairs of nodes, disjoint pairs at the same
# time. Do it before a long job starts, not only after it got slow.

# %% [markdown]
# ## Silent: one wrong bit
#
# Meta and Google both found processors that compute wrong results and report nothing:
# [hundreds of CPUs](https://arxiv.org/abs/2102.11245) in hundreds of thousands of machines, and
# ["a few mercurial cores per several thousand machines"](https://sigops.org/s/conferences/hotos/2021/papers/hotos21-s01-hochschild.pdf).
# Google's [Gemini](https://arxiv.org/abs/2312.11805) report expects such events to affect training
# every week or two. In the bars above it's 6 of 419, and those are the ones that somebody caught.
#
# Would you see it in the loss? Flip each bit of a few weights, and look.

# %%
def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))


def batch(step, share):
    generator = torch.Generator().manual_seed(1000 * step + share)
    inputs = torch.randn(32, 16, generator=generator)
    return inputs, inputs[:, :4].argmax(1)


def flip(tensor, index, bit):
    """Flip one bit of one float32, in place."""
    mask = torch.tensor(1 << bit).to(torch.int32)
    tensor.detach().view(torch.int32).view(-1)[index] ^= mask


def loss_of(model, step):
    inputs, targets = batch(step, 0)
    return F.cross_entropy(model(inputs), targets).item()


model = small_model()
noise = statistics.stdev(loss_of(model, step) for step in range(100))
changes = {}
for bit in range(32):
    for index in range(0, 1024, 128):
        flip(model[0].weight, index, bit)
        changes.setdefault(bit, []).append(abs(loss_of(model, 0) - loss_of(small_model(), 0)))
        flip(model[0].weight, index, bit)  # and back
failures.bit_flip_picture(changes, noise)

# %%
visible = {bit for bit, moved in changes.items() if not max(moved) < noise}
print(f"{len(visible)} of 32 bits ever move the loss by more than its noise: {sorted(visible)}")

# %% [markdown]
# Bit 30 is the top bit of the exponent. It's 0 in every number below 2, so flipping it multiplies a
# weight by 2 to the power of 128. In these weights the next bits of the exponent are 1, so a flip
# leaves almost nothing of the weight, and a network doesn't miss one weight.
#
# So the loss is no detector. Two things are: replicas that must be equal can be *compared*, and a
# step that must be reproducible can be *replayed*. Which of them works depends on where the fault
# sits. Three ranks train below, with three different faults in rank 1.

# %%
def local_gradient(model, step, share, fault):
    """The gradient of one rank's share of a step, computed on this rank."""
    inputs, targets = batch(step, share)
    loss = F.cross_entropy(model(inputs), targets)
    gradient = nn.utils.parameters_to_vector(torch.autograd.grad(loss, model.parameters()))
    if fault == "stuck unit" and dist.get_rank() == 1:
        flip(gradient, 40, 20)  # this chip gets this element wrong every time
    return gradient, loss.item()


def digest(tensor):
    return hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()


def everyone(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


# %%
def train_with(fault, steps=20):
    """Train; per step, the loss, and which checks notice something."""
    rank, ranks, model, records = dist.get_rank(), dist.get_world_size(), small_model(), []
    for step in range(1, steps + 1):
        struck = rank == 1 and step == 10
        mine, loss = local_gradient(model, step, rank, fault)
        if struck and fault == "one gradient":
            flip(mine, 40, 20)
        again, _ = local_gradient(model, step, rank, fault)
        neighbor, _ = local_gradient(model, step, (rank + 1) % ranks, fault)
        used, replayed = everyone(digest(mine)), everyone(digest(again))
        elsewhere = everyone(digest(neighbor))  # of rank r + 1, computed by rank r
        dist.all_reduce(mine)
        weights = nn.utils.parameters_to_vector(model.parameters()) - 0.5 * mine / ranks
        if struck and fault == "one weight":
            flip(weights, 40, 20)
        nn.utils.vector_to_parameters(weights, model.parameters())
        noticed = {
            "replicas differ": len(set(everyone(digest(weights)))) > 1,
            "replay, same rank": used != replayed,
            "replay, other rank": used != elsewhere[-1:] + elsewhere[:-1],
        }
        losses = everyone(loss)
        records.append({"loss": sum(losses) / ranks} | noticed)
    return records


runs = {
    fault: on_ranks(train_with, 3, fault)[0]
    for fault in ("none", "one weight", "one gradient", "stuck unit")
}
print("steps 1 to 20              last loss   ", *list(runs["none"][0])[1:], sep="   ")
for fault, records in runs.items():
    fired = [sum(record[check] for record in records) for check in list(records[0])[1:]]
    print(f"{fault:14} {records[-1]['loss']:21.4f}      {fired[0]:6} steps {fired[1]:14} steps"
          f" {fired[2]:14} steps")

# %% [markdown]
# Every run ends with a healthy loss. The checks tell them apart:
#
# - **A wrong weight on one rank** makes that replica different from then on. A hash of the weights
#   finds it at the next check, and with three replicas the odd one out is the culprit.
# - **A wrong gradient** goes through the all-reduce, so every replica applies the *same* wrong
#   update. Comparing replicas sees nothing. Replaying that very step does.
# - **A stuck unit** is wrong in the same way every time. Replaying on the same rank agrees with
#   itself. Only the same share on *another* rank disagrees.
#
# A hash reads each weight once, which is cheap every hundred steps. Replaying one step in a thousand
# costs 0.1%. It catches a stuck unit within a thousand steps or so, and a one-time flip with a
# chance of one in a thousand. Both checks need steps that are deterministic bit for bit. With FSDP
# there is no second copy of a shard to compare, unless you replicate too, so replay is what's left.
#
# > "I can't prevent silent corruption, so I bound it. Hash the replicas, replay a sample of steps
# > on another rank, and keep checkpoints long enough to go back to one from before."

# %% [markdown]
# ## Drain and spares
#
# *Draining* a node means: nothing new is scheduled on it, what runs there moves or ends at a
# checkpoint, then it's tested and repaired. A drain without a spare just makes the job smaller. So
# how many spares?
#
# Suppose the job needs 256 nodes and a drained one is back after 24 hours: an assumption, so put in
# your own repair time. Each node is away for a fraction p of the time, and the number of nodes that
# are away is binomial. The cell compares that with a simulation of 256 + s nodes that fail and come
# back one by one.

# %%
NEEDED, REPAIR_H, TARGET = 256, 24, 0.001
NODE_MTBF_H = job_mtbf_h(GPUS_PER_NODE, failures.RSC_RATES["RSC-1"])


def short_of_nodes(needed, spares, repair_h=REPAIR_H):
    """The share of time with more than ``spares`` of ``needed + spares`` nodes away."""
    nodes, away = needed + spares, repair_h / (NODE_MTBF_H + repair_h)
    enough = sum(
        math.comb(nodes, k) * away**k * (1 - away) ** (nodes - k) for k in range(spares + 1)
    )
    return 1 - enough


def simulate_spares(needed, spares, num_failures, rng):
    """The same share, failure by failure; a repair always takes 24 hours."""
    now = short_h = 0.0
    back = collections.deque()  # when each node that is away returns
    for _ in range(num_failures):
        up = needed + spares - len(back)
        fails = now + rng.expovariate(up / NODE_MTBF_H)
        while back and back[0] < fails:  # a return changes the rate, so draw again after it
            short_h += (back[0] - now) * (len(back) > spares)
            now = back.popleft()
            fails = now + rng.expovariate((needed + spares - len(back)) / NODE_MTBF_H)
        short_h += (fails - now) * (len(back) > spares)
        now = fails
        back.append(now + REPAIR_H)
    return short_h / now


# %%
formula = {spares: short_of_nodes(NEEDED, spares) for spares in range(13)}
simulated = {
    spares: simulate_spares(NEEDED, spares, 20_000 if FAST else 100_000, random.Random(spares))
    for spares in range(0, 9, 2)
}
week = {spares: short_of_nodes(NEEDED, spares, 168) for spares in range(25)}
for name, curve in (("24 hours", formula), ("a week", week)):
    spares = min(s for s, share in curve.items() if share <= TARGET)
    print(f"repair in {name}: {spares} spares, {spares / NEEDED:.1%} of the nodes")
failures.spares_picture(
    {"repair in 24 hours": formula, "repair in a week": week}, simulated, TARGET
)

# %% [markdown]
# The number of spares follows the repair time. As a share of the cluster it falls with size, because
# the spread of a binomial grows with a square root. One warning: the formula assumes independent
# failures, and a switch or a power feed takes its whole rack along.
#
# Nodes aren't all equal, either. On Meta's research clusters about 40 *lemon* nodes failed again and
# again. Taking them out moved the failure rate of jobs with 512 GPUs or more from 14% to 4%
# ([published](https://arxiv.org/abs/2410.21680)). So count failures per node across jobs, and don't
# give a node back just because it passed one test.

# %% [markdown]
# ## Elastic training
#
# Without a spare, the job can continue on fewer nodes. `torchrun --nnodes=6:8` restarts all ranks
# on whatever is left, from the last checkpoint. It doesn't adjust the batch for you. The trainer of
# this project refuses to resume with a different global batch, and says how to pin it.

# %%
runs_folder = Path(tempfile.mkdtemp(prefix="handbook-"))
plan = {"checkpoint_every_steps": 3}
kill_rank_1 = partial(breaks.kill, rank=1, step=7)
run_trainer(runs_folder / "derived", 3, kill_rank_1, **plan)
refused = run_trainer(runs_folder / "derived", 2, **plan)
print(refused[0].failure.message)

# %%
plan["pinned_global_batch_size"] = 24
run_trainer(runs_folder / "uninterrupted", 3, **plan)
died = run_trainer(runs_folder / "elastic", 3, kill_rank_1, **plan)
run_trainer(runs_folder / "elastic", 2, **plan)
proof = audit_run(runs_folder / "elastic")
print("exit codes of the first attempt:", [report.exitcode for report in died])
print(f"{proof.status}: {proof.verdict}; {proof.replayed_steps} step replayed")
curves = {"3 ranks": runs_folder / "uninterrupted", "3, then 2 ranks": runs_folder / "elastic"}
loss_curves(curves)

# %% [markdown]
# Rank 1 died of SIGKILL, gloo closed its connections, and the other two raised at once. With NCCL
# they'd have waited for the watchdog, or for torchrun to end them. The second attempt on two ranks
# trains the same samples in the same steps.
#
# A full restart is the simple answer and often the right one. The other is not to stop at all.
# [torchft](https://github.com/meta-pytorch/torchft) keeps several replica groups. At every step a
# lighthouse forms a quorum of the groups that are alive, the gradients are averaged over those, and
# a group that comes back copies the weights from a healthy one. Losing a group costs its share of
# one step instead of everybody's restart. The price: you need replicas to lose, the batch of that
# step is smaller, and the run isn't bit-reproducible anymore. The same project has DiLoCo, where
# the groups train alone and exchange weights every few hundred steps.

# %% [markdown]
# ## Goodput
#
# *Goodput* is the share of wall time spent on work that survives. Four numbers give it: how long a
# save stalls the job, how long until it's usable, how long a restart takes, and the MTBF. This
# project has a closed formula and an event-by-event simulation that share no code. The costs
# below are assumptions to argue about; the failure rate is Llama 3's.

# %%
Policy, HOUR = failures.Policy, 3600
policies = {
    "60 s blocking save every hour, 15 min restart": Policy(60, 0, 900, HOUR),
    "the same, at the best interval": Policy(60, 0, 900, None),
    "async save: 4 s stall, usable after 60 s": Policy(4, 60, 900, None),
    "and a 3 min restart": Policy(4, 60, 180, None),
}


def job_mtbf_s(gpus):
    return HOUR * job_mtbf_h(gpus, llama_rate)


def interval_of(policy, mtbf_s):
    return policy.interval_s or best_interval(policy.at(mtbf_s))


def simulate(policy, gpus):
    costs = policy.at(job_mtbf_s(gpus))
    interval_s = interval_of(policy, costs.mtbf_s)
    count = enough_failures(interval_s, costs, num_saves=3e4 if FAST else 1e5)
    return simulate_job(interval_s, costs, np.random.default_rng(0), num_failures=count)


simulated_jobs = {
    name: {gpus: simulate(policy, gpus) for gpus in (1024, 16_384, 131_072)}
    for name, policy in policies.items()
}
failures.goodput_by_size_picture(policies, interval_of, job_mtbf_s, simulated_jobs)

# %%
print("16,384 GPUs, MTBF 3.1 h     save every   goodput   saving  restarting   lost work")
for name, policy in policies.items():
    job = simulated_jobs[name][16_384]
    minutes = interval_of(policy, job_mtbf_s(16_384)) / 60
    print(f"{name:46} {minutes:4.0f} min {job.goodput:7.1%} {job.saving:7.1%}"
          f" {job.restarting:7.1%} {job.lost:7.1%}")

# %% [markdown]
# Read the columns, not only the goodput. Saving once an hour loses a seventh of the time in redone
# work, and changing the interval costs nothing. After that, the restart is the largest part, and
# no checkpoint setting touches it: detection, scheduling, spares, loading, the first step. Meta reports
# more than 90% effective training time at this size. At 131,072 GPUs something fails every 23
# minutes, and only fast restarts, or not restarting everybody, keep the job alive.

# %% [markdown]
# ## Say it in 60 seconds
#
# > "The failure rate of a synchronous job is the sum over its nodes, so the MTBF falls as one over
# > N. On 16,000 H100s Meta saw one every three hours, and most of them were GPU or GPU memory.
# >
# > I sort failures into four kinds. Loud ones have an exit code or an Xid: drain the node, restart
# > on a spare. For hangs I compare flight recorders: the rank that's missing from the last
# > collective is the suspect. For slow runs I compare computing with waiting per rank, because the
# > slow rank is the one that doesn't wait. For silent corruption I hash replicas and replay steps
# > on another rank.
# >
# > Then the arithmetic: spares from repair time, the interval from save cost and MTBF, and goodput
# > from both. Usually the restart dominates, so that's what I'd shorten first."

# %% [markdown]
# ## Three questions
#
# **"Your job on 4,096 GPUs has 80% goodput. What do you do?"**
#
# - *Weak:* "Save more often, so that we lose less."
# - *Strong:* "I'd split the 20% first: stalls of saves, redone work, restarts, waiting for a
#   machine. If it's redone work, the interval is off and Young's formula fixes it for free. If it's
#   restarts, I look at detection time, spares and loading. If it's save stalls, asynchronous saves.
#   Each one has a different owner."
# - *What would prove me wrong:* the account of wall time by category. If the categories don't add up
#   to the wall time, I'm fixing a guess.
#
# **"All-reduce time doubled overnight, and the network team sees nothing. Where do you look?"**
#
# - *Weak:* "At NCCL's settings. Maybe a bigger bucket or another algorithm."
# - *Strong:* "All-reduce time includes waiting for the last rank. So I compare computing per rank
#   first: if one rank computes longer and waits less, it's a hot or throttled GPU and not the
#   network. If all compute the same and all wait, I test links in pairs and read error counters."
# - *What would prove me wrong:* the spread of compute time over ranks. If it didn't change overnight,
#   no rank is slow, and it is the fabric.
#
# **"How would you know that a GPU computes wrong numbers?"**
#
# - *Weak:* "The loss would spike, or turn NaN."
# - *Strong:* "Only the top exponent bit does that. Other flips are invisible in the loss. A weight that
#   differs between replicas shows in a hash. A bad gradient doesn't, because the all-reduce gives it
#   to everybody. So I also replay some steps, on another GPU, because a defect can repeat itself."
# - *What would prove me wrong:* replays that never disagree while one node's runs keep failing their
#   evaluations. Then my sampling misses it, or it isn't the hardware.

# %% [markdown]
# ## Practice it
#
# - Drills: [replicas_drift_apart](../drills/220_replicas_drift_apart.ipynb),
#   [epoch_ends_in_a_timeout](../drills/310_epoch_ends_in_a_timeout.ipynb),
#   [run_hangs_at_its_first_log](../drills/260_run_hangs_at_its_first_log.ipynb),
#   [cell_distributed](../drills/140_cell_distributed.ipynb).
# - The code: section 8 of the [walkthrough](../01_walkthrough.ipynb) kills a rank, and its watchdog
#   names the one that hangs.
# - The cards: `ask(topic="hardware")` in [03_deck](../03_deck.ipynb).
