# %% [markdown]
# # 17. Parallelism
#
# {{badge}}
#
# > "I start with DDP, and I stay there until a number makes me leave: memory per rank, exposed
# > communication, or activation size. Every other scheme splits something else and pays with other
# > collectives. So for each one I can tell you what it splits, what it sends, how many bytes that
# > is, and which metric would make me go back."
#
# *Twenty-five minutes to read. Every scheme runs here on two to four gloo ranks. It is compared
# with one process, and its collectives are counted.*

# %% collapsed=true
# {{setup torch numpy matplotlib cloudpickle platformdirs fsrs rehearsal}}

# %% collapsed=true
#@title Imports
import copy
import inspect
import math
import os
import tempfile
import time
import warnings
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from rehearsal.handbook.diagrams import diagram
from rehearsal.handbook.exchanges import (
    all_gather,
    all_reduce,
    all_to_all,
    farthest_apart,
    receive,
    reduce_scatter,
    same,
    to_next,
    to_previous,
)
from rehearsal.handbook.group_calls import count_calls, group_calls, in_kb, split_at_barriers
from rehearsal.handbook.on_ranks import on_ranks, watch_ranks
from rehearsal.handbook.parallel_examples import (
    SEQUENCE,
    WIDTH,
    batch_of,
    held_here,
    kept_for_backward,
    loss_of,
    make_model,
    mine,
    mlp,
    whole,
)
from rehearsal.handbook.pipelines import (
    gpipe,
    idle_fraction,
    one_forward_one_backward,
    schedule_picture,
)
from rehearsal.handbook.step_pictures import Step, step_pictures
from trainer_core.metrics import StepTimers, phase, summarize_timers

FAST = os.environ.get("FAST") == "1"  # fewer steps, to check the notebook quickly

# %% [markdown]
# ## DDP: three semantics
#
# Keep three things apart: **replication** (who has which weights), **communication** (who adds up
# what) and **partition** (who trains on which data). DDP does the first once, the second in every
# backward pass, and the third never.
#
# **Replication.** Two ranks start with different weights. After the copy, a bug changes rank 1's.

# %%
def replicate():
    torch.manual_seed(dist.get_rank())  # different weights on each rank
    model = nn.Linear(2, 1, bias=False)
    made = model.weight.tolist()
    wrapped = DistributedDataParallel(model)
    copied = model.weight.tolist()
    if dist.get_rank() == 1:
        model.weight.data += 1  # a flipped bit, another checkpoint, a bug
    wrapped(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return {"made": made, "copied": copied, "after a step": model.weight.tolist()}


replicas = on_ranks(replicate, 2)
for rank, seen in enumerate(replicas):
    print(f"rank {rank}", {name: [round(w, 2) for w in rows[0]] for name, rows in seen.items()})

# %% [markdown]
# Construction broadcasts rank 0's weights. That hides a rank that restored another checkpoint:
# its optimizer state still differs. From then on, DDP keeps the replicas equal by giving them
# equal gradients, and it never checks. Rank 1's weights stay off by one.
#
# **Communication.** Four ranks have the local gradients 1, 2, 3 and 4. The collective returns 10.
# DDP doesn't.

# %%
def communicate():
    number = torch.tensor(dist.get_rank() + 1.0)
    wrapped = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    (wrapped(torch.ones(1, 1)) * number).sum().backward()
    dist.all_reduce(number)
    return {"all_reduce": number.item(), "DDP": wrapped.module.weight.grad.item()}


reduced = on_ranks(communicate, 4)
print(reduced[0], "on every rank:", all(answer == reduced[0] for answer in reduced))

# %% [markdown]
# > "All-reduce sums, and DDP averages: 10 over 4 is 2.5. If each rank's loss is a mean over an
# > equal share, that's the gradient of the joint batch. If the loss is a sum, it's too small by a
# > factor of the world size."
#
# The backend, gloo here and NCCL on GPUs, only carries out collectives. DDP and FSDP are training
# semantics on top: they decide when, and on what.
#
# **Partition.** Eight samples, two ranks, three ways to deal them. Which one does DDP refuse?

# %%
def partition(deals):
    torch.manual_seed(0)
    inputs, model = torch.randn(8, 4), nn.Linear(4, 1)
    model(inputs).square().mean().backward()  # one process, all eight samples
    joint, wrapped = model.weight.grad.clone(), DistributedDataParallel(model)
    found = {}
    for name, deal in deals.items():
        share = list(range(8))[deal(dist.get_rank(), dist.get_world_size())]
        model.zero_grad()
        wrapped(inputs[share]).square().mean().backward()
        found[name] = {"samples": share, "off": farthest_apart((model.weight.grad, joint))}
    return found


dealt = on_ranks(partition, 2, {
    "own half": lambda rank, world_size: slice(rank, None, world_size),
    "first half, twice": lambda rank, world_size: slice(0, 4),
    "everything, twice": lambda rank, world_size: slice(None),
})
for name, found in dealt[0].items():
    shares = [answer[name]["samples"] for answer in dealt]
    print(f"{name:18} {shares}, gradient off by {found['off']:.1g}")

# %% [markdown]
# None of them. The second one trains on half the data. The third has the right gradient and pays
# for it twice. [Chapter 12](12_data_correctness.ipynb) is about this third part of the contract.
#
# ### Buckets
#
# DDP doesn't send one tensor at a time. It fills buckets, roughly in the order in which gradients
# become ready, and starts an all-reduce when one is full, while the backward pass continues. The
# model for the rest of the chapter has four blocks and a head, 132,872 parameters in fp32.

# %%
def three_steps(bucket_cap_mb, micro_steps=1, waits=True):
    model = DistributedDataParallel(make_model(), bucket_cap_mb=bucket_cap_mb)
    for step in range(3):
        for micro_step in range(micro_steps):
            is_last = micro_step == micro_steps - 1
            with nullcontext() if is_last or not waits else model.no_sync():
                loss_of(model, step).backward()
        dist.barrier()  # ends the step in the record

# %% collapsed=true
#@title What two ranks all-reduce, from torch's flight recorder
settings = {
    "25 MB buckets, the default": (25,),
    "0.1 MB buckets": (0.1,),
    "default, 4 micro-steps, no_sync on all but the last": (25, 4),
    "default, 4 micro-steps, no_sync forgotten": (25, 4, False),
}


def one_after_another():
    for arguments in settings.values():
        three_steps(*arguments)


record = split_at_barriers(watch_ranks(one_after_another, 2)[0].collectives)
buckets = {
    name: [
        [call["bytes"] for call in step if call["name"] == "all_reduce"]
        for step in record[3 * at : 3 * at + 3]
    ]
    for at, name in enumerate(settings)
}
for name, of_steps in buckets.items():
    in_kilobytes = [[round(size / 1e3) for size in step] for step in of_steps]
    print(f"{name}: kB per all-reduce in steps 1, 2, 3: {in_kilobytes}")

# %% [markdown]
# A single bucket can't go out before the last gradient is there, so nothing overlaps. Very many
# buckets pay latency for each. With 0.1 MB, the first step still sends one: DDP rebuilds its
# buckets once it has seen the order of the gradients. (On three ranks or more, that changes the
# order of the sums, so a resumed run can differ in the last bits. The walkthrough's `wrap_model`
# deals with it.) And without `no_sync`, accumulation sends four times as much.

# %% [markdown]
# ## When DDP is no longer enough
#
# | sign | what it means | first move |
# |---|---|---|
# | the model doesn't fit | weights, gradients, optimizer state dominate | FSDP |
# | all-reduce dominates the step | communication-bound | bucket size, overlap, topology; larger batch per rank |
# | memory spikes in the forward pass | activations dominate | activation checkpointing; sequence or context parallelism; a pipeline |
# | one layer is too large or too slow | a single layer limits you | tensor parallelism inside a node |
# | a stage idles | uneven split | rebalance the stages, or simplify |
#
# The first row is arithmetic. Mixed-precision Adam needs 16 bytes per parameter: 2 for the weight,
# 2 for the gradient, 4 each for the master weight and the two moments
# ([published: ZeRO](https://arxiv.org/abs/1910.02054)). Seven billion parameters take 112 GB before
# the first activation, and an H100 has 80. Sharded over 8 ranks, they take 14 GB each.

# %%
diagram("what_each_splits")

# %% [markdown]
# ## FSDP2
#
# FSDP is still data parallelism. But a rank *stores* only a shard of each parameter, gradient and
# moment. It gathers a block's parameters just before the block runs, and drops them afterwards.
# This works because an all-reduce has two halves, which needn't happen at the same time.

# %%
def two_halves():
    numbers = torch.arange(4.0) + 10 * dist.get_rank()
    shard_of_sum = reduce_scatter(numbers)
    return [numbers, shard_of_sum, all_gather(shard_of_sum), all_reduce(numbers)]


halves = on_ranks(two_halves, 4)
for numbers, shard_of_sum, gathered, at_once in halves:
    print(numbers, "-> reduce_scatter", shard_of_sum, "-> all_gather", gathered)
    assert gathered == at_once

# %% [markdown]
# With ring algorithms, each half makes a rank send (N-1)/N of the bytes. So DDP's all-reduce sends
# 2(N-1)/N. FSDP gathers parameters in the forward pass, gathers them again in the backward pass
# and reduce-scatters gradients: 3(N-1)/N, which is 1.5 times as much.

# %%
def bytes_sent(call, world_size):
    """What a rank sends, with ring algorithms, for the bytes that it hands in."""
    others = world_size - 1
    return call["bytes"] * {
        "all_reduce": 2 * others / world_size,
        "reduce_scatter": others / world_size,
        "all_gather": others,  # it hands in a shard, and the shards of the others pass by
        "all_to_all": others / world_size,  # if the shares are equal
        "send": 1,
    }[call["name"]]


def replicated(model):
    # Without the view, DDP's buckets are a second copy of the gradients.
    return DistributedDataParallel(model, bucket_cap_mb=0.1, gradient_as_bucket_view=True)


def sharded(model, **options):
    for block in model[:-1]:
        fully_shard(block, **options)  # each block is gathered on its own
    return fully_shard(model, **options)  # the root comes last: it takes what's left, the head

# %% [markdown]
# `fully_shard` turns the parameters into DTensors in place: tensors of which each rank holds a
# shard. So the optimizer is made after it. The rest of the loop doesn't know which wrapper it has.

# %%
def train(wrap, steps, precision=nullcontext):
    model = wrap(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    timers, losses = StepTimers(torch.device("cpu")), []
    for step in range(steps):
        with group_calls() as calls:
            with phase(timers, "forward"), precision():
                loss = loss_of(model, step)
            in_forward = len(calls)
            with phase(timers, "backward"):
                loss.backward()
        with phase(timers, "optimizer"):
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        held = held_here(model, optimizer)  # bytes of this rank's own tensors or shards
        optimizer.zero_grad()
        timers.end_step(step)
        losses.append(all_reduce(loss.detach()).item() / dist.get_world_size())
    times = summarize_timers([spent for _, spent, _ in timers.read()])
    return {"losses": losses, "calls": calls, "in_forward": in_forward, "held": held,
            "times": times}


steps = 4 if FAST else 20
runs = {
    (name, world_size): on_ranks(train, world_size, wrap, steps)[0]
    for name, wrap, world_size in (
        ("DDP", replicated, 2), ("FSDP2", sharded, 2), ("FSDP2", sharded, 4))
}

# %% collapsed=true
#@title One step, collective by collective
step_pictures({
    f"{name} on 2 ranks": Step(
        run["calls"], [bytes_sent(call, 2) for call in run["calls"]], run["in_forward"]
    )
    for (name, world_size), run in runs.items()
    if world_size == 2
})

# %% [markdown]
# Read the lower row from the left. The forward pass gathers the root (the small head), then block
# after block. The backward pass gathers each block again, one block ahead of its use, and
# reduce-scatters a block's gradients as soon as they're complete. The root isn't gathered
# again: by default FSDP2 keeps it after the forward pass, because the backward pass starts there.

# %% collapsed=true
#@title Bytes, memory and losses, counted
parameter_bytes = sum(p.nbytes for p in make_model().parameters())
sent = {}
for (name, world_size), run in runs.items():
    on_wire = sum(bytes_sent(call, world_size) for call in run["calls"])
    formula = 2 * (world_size - 1) / world_size * parameter_bytes  # of an all-reduce
    held = ", ".join(f"{in_kb(size)} of {part}" for part, size in run["held"].items())
    print(f"{name} on {world_size} ranks: rank 0 holds {held},")
    print(f"    sends {in_kb(on_wire)} a step; all-reducing the gradients: {in_kb(formula)}; "
          f"ratio {on_wire / formula:.2f}")
    sent[name, world_size] = on_wire
gaps = [
    abs(a - b)
    for world_size in (2, 4)
    for a, b in zip(runs["DDP", 2]["losses"], runs["FSDP2", world_size]["losses"])
]
print(f"AdamW with clipping: FSDP2's losses differ from DDP's by at most {max(gaps):.0e}")

# %% [markdown]
# Half the memory on two ranks, a quarter on four, the same losses, and half as much traffic again.
# Not counted: the full parameters of the block that is running (and of the prefetched one), and
# the activations, which FSDP doesn't shard.
#
# > "FSDP is DDP with the all-reduce cut in two. I pay 1.5 times the traffic for 1/N of the state.
# > What would make me go back is exposed all-gather time."
#
# On GPUs, one thing is different. gloo runs a reduce-scatter as a whole all-reduce and keeps a part of
# it, [twice the traffic](https://github.com/pytorch/pytorch/pull/118911). What we counted is what
# FSDP2 asks for. The flight recorder has what gloo did instead (two of its all-reduces are
# tiny: the gradient norm and the logged loss).

# %%
done = watch_ranks(train, 2, sharded, 1)[0].collectives
print(count_calls(done))

# %% [markdown]
# You may be shown FSDP1, the class with `auto_wrap_policy=size_based_auto_wrap_policy`. By default,
# that policy wraps nothing smaller than the number below. So a small model is one unit and gets
# gathered as a whole. A transformer wants one unit per block, and `fully_shard` makes you say so.

# %%
wraps_from = inspect.signature(size_based_auto_wrap_policy).parameters["min_num_params"].default
print(f"{wraps_from:,} parameters")

# %% [markdown]
# ## Five mistakes with FSDP2
#
# Each of them is right under DDP. Four raise no error, and the fifth hangs.
#
# **1. The optimizer comes first.** It keeps the old parameters. Training changes nothing.

# %%
def optimizer_first():
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sharded(model)
    before = [p.to_local().clone() for p in model.parameters()]
    for step in range(3):
        loss_of(model, step).backward()
        optimizer.step()
    moved = [not torch.equal(p.to_local(), old) for p, old in zip(model.parameters(), before)]
    return f"{sum(moved)} of {len(moved)} parameters moved"


print(on_ranks(optimizer_first, 2)[0])

# %% [markdown]
# **2. `no_sync`, guarded by the type.** `isinstance(model, DDP)` is false here, so every micro-step
# syncs. FSDP2's switch is `set_requires_gradient_sync`.

# %%
def accumulate(way):
    model = sharded(make_model())
    with group_calls() as calls:
        for micro_step in range(4):
            is_last, quiet = micro_step == 3, nullcontext()
            if way == "isinstance" and isinstance(model, DistributedDataParallel):
                quiet = nullcontext() if is_last else model.no_sync()
            if way == "set_requires_gradient_sync":
                model.set_requires_gradient_sync(is_last)
            with quiet:
                (loss_of(model, micro_step) / 4).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), math.inf).full_tensor().item()
    return {"calls": calls, "norm": norm}


def both_ways():
    return {way: accumulate(way) for way in ("isinstance", "set_requires_gradient_sync")}


ways = on_ranks(both_ways, 2)[0]
for way, answer in ways.items():
    print(f"{way}: {count_calls(answer['calls'])}; gradient norm {answer['norm']:.4f}")

# %% [markdown]
# The gradient is the same, with four times the reduce-scatters. The all-gathers stay either way,
# because each micro-step needs the parameters. And the switch isn't free: an unreduced gradient
# can't be sharded, so until the last micro-step each rank holds all of it. `local_gradients` in
# this project's trainer asks what the wrapper can do, not what type it has.
#
# **3. A norm over local shards.** As a metric, it's wrong. As the basis for clipping, it makes each
# rank scale its shards by a different factor.

# %%
def norms():
    model = sharded(make_model())
    loss_of(model, 0).backward()
    local = [p.grad.to_local().norm() for p in model.parameters()]
    right = nn.utils.clip_grad_norm_(model.parameters(), math.inf)  # a DTensor
    return {"local shards": torch.stack(local).norm().item(),
            "full_tensor": right.full_tensor().item()}


alone, (inputs, targets) = make_model(), batch_of(0)
F.cross_entropy(alone(inputs), targets).backward()
norm_alone = nn.utils.clip_grad_norm_(alone.parameters(), math.inf).item()
norms_seen = on_ranks(norms, 2)
print(f"one process: {norm_alone:.4f}")
for rank, seen in enumerate(norms_seen):
    print(f"rank {rank}:", {name: round(norm, 4) for name, norm in seen.items()})

# %% [markdown]
# **4. The optimizer's state, loaded without DCP's functions.** DCP (Distributed Checkpoint) loads
# *into* the state dict that you hand it. A new optimizer's has no moments, so none are loaded.
# `get_state_dict` creates them first, under names that don't depend on the number of ranks.

# %%
def state_of(model, optimizer, way):
    if way == "plain":
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))


def resume(first, last, load=None, way=None, saves=None):
    model = sharded(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    if load:
        state = state_of(model, optimizer, way)
        dcp.load(state, checkpoint_id=load)
        if way == "plain":
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        else:
            set_state_dict(model, optimizer, model_state_dict=state["model"],
                           optim_state_dict=state["optimizer"])
    restored, losses = len(optimizer.state), []
    for step in range(first, last):
        for way, folder in (saves or {}).get(step, {}).items():
            dcp.save(state_of(model, optimizer, way), checkpoint_id=folder)
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(all_reduce(loss.detach()).item() / dist.get_world_size())
    return {"losses": losses, "restored": restored}

# %%
half, end = (3, 6) if FAST else (8, 16)
folders = {way: tempfile.mkdtemp(prefix=f"handbook-{way}-") for way in ("plain", "DCP's")}
straight = on_ranks(resume, 2, 0, end, None, None, {half: folders})[0]["losses"]


def resume_both():
    return {way: resume(half, end, folder, way) for way, folder in folders.items()}


resumed = on_ranks(resume_both, 3)[0]
for way in folders:
    gap = max(abs(a - b) for a, b in zip(resumed[way]["losses"], straight[half:]))
    print(f"{way:5} state dicts, saved by 2 ranks, loaded by 3: moments of "
          f"{resumed[way]['restored']} of 18 parameters, losses differ by {gap:.0e}")

# %% [markdown]
# The second line is what DCP is for: two ranks write their shards, three ranks read what they need,
# and the losses equal an uninterrupted run's up to rounding. The first line is the same job without
# its moments, and nothing said so.
#
# **5. One rank alone in a gather.** With DDP, `if rank == 0: save()` is right. A *full* state dict of
# a sharded model is an all-gather, and rank 0 waits in it for ranks that never come.

# %%
def full_state(ranks_that_gather):
    model, state = sharded(make_model()), {}
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    if dist.get_rank() in ranks_that_gather:
        state = get_model_state_dict(model, options=options)
    dist.barrier()
    return len(state)


start_s = time.monotonic()
print("gathered by both ranks, entries on each:", on_ranks(full_state, 2, [0, 1]))
patience_s = 1.5 + 4 * (time.monotonic() - start_s)
hung = watch_ranks(full_state, 2, [0], deadline_s=patience_s)
for report in hung:
    stuck_in = [call["name"] for call in report.collectives][-1:]
    print(f"gathered by rank 0: rank {report.rank} is stuck in {stuck_in}")

# %% [markdown]
# Both ranks hang, each in a different collective. That's the picture to look for in NCCL's flight
# recorder, too. Gather on every rank and write on one, or better, save shards.

# %% [markdown]
# ## Splitting the model itself
#
# So far we split the batch. The other schemes split the computation of one sample. Their
# collectives carry activations, in the middle of the forward pass, where there's little to hide
# them behind. One idea covers them: **each collective has a conjugate, which runs in the backward
# pass.**

# %%
class Across(torch.autograd.Function):
    """One collective in the forward pass, its conjugate in the backward pass."""

    @staticmethod
    def forward(ctx, tensor, there, back):
        ctx.back = back
        return there(tensor)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.back(gradient), None, None


across = Across.apply

# %% collapsed=true
#@title Run a scheme, compare it with one process, count what rank 0 sends
splits = {}


def split(name, function, world_size, *arguments):
    answers = on_ranks(function, world_size, *arguments)
    apart = max(answer["apart"] for answer in answers)
    sent = sum(bytes_sent(call, world_size) for call in answers[0]["calls"])
    print(f"{name}, on {world_size} ranks: at most {apart:.0e} from one process")
    print(f"    rank 0, both passes: {count_calls(answers[0]['calls'])}; sends {in_kb(sent)}")
    splits[name] = answers

# %% [markdown]
# ### Tensor and sequence parallelism
#
# Split the first matrix by columns and the second by rows. Then the nonlinearity between them needs
# no communication, and one all-reduce per pass is enough
# ([Megatron-LM](https://arxiv.org/abs/1909.08053)). The norm before it is computed on every rank.
# **Sequence parallelism** splits that part, too, along the sequence: the all-reduce becomes its two
# halves, with the norm between them ([published](https://arxiv.org/abs/2205.05198)).

# %%
def tensor_parallel(along_sequence):
    x, scale, up, down = mlp()
    out = x + F.gelu(F.layer_norm(x, (WIDTH,), scale) @ up.T) @ down.T  # one process
    out.square().sum().backward()

    part = mine if along_sequence else whole
    enter, leave = (all_gather, reduce_scatter) if along_sequence else (same, all_reduce)
    x_, scale_ = part(x), whole(scale)
    up_, down_ = mine(up), mine(down, dim=1)  # by columns, by rows: torch stores (out, in)
    with group_calls() as calls:
        normed = across(F.layer_norm(x_, (WIDTH,), scale_), enter, leave)
        partial_sum = F.gelu(normed @ up_.T) @ down_.T
        out_ = x_ + across(partial_sum, leave, enter)
        out_.square().sum().backward()
    # Each rank has normalized a part of the sequence, so this gradient needs a sum of its own.
    scale_grad = all_reduce(scale_.grad) if along_sequence else scale_.grad
    pairs = [(out_, part(out)), (x_.grad, part(x.grad)), (scale_grad, scale.grad),
             (up_.grad, mine(up.grad)), (down_.grad, mine(down.grad, dim=1))]
    return {"apart": farthest_apart(*pairs), "calls": calls, "rows": len(x_)}


split("tensor parallel", tensor_parallel, 2, False)
split("with sequence parallel", tensor_parallel, 2, True)
print("rows that a rank normalizes:", [answers[0]["rows"] for answers in splits.values()])

# %% [markdown]
# An all-reduce is those two halves, so the same bytes are sent: sequence x width x 4 bytes, reduced
# once per pass. Sequence parallelism saves memory, half of the rows for the norm (and for a dropout).
# What people forget: the norm's weight now has a partial gradient on each rank.
#
# *Least bad when* a single layer is too large or too slow, inside a node, because every layer waits
# for this all-reduce. Llama 3 405B split its layers over 8 ranks, one server
# ([published](https://arxiv.org/abs/2407.21783)). With tensor parallelism on, take sequence
# parallelism too: less memory for the same bytes.
#
# ### Context parallelism
#
# For long sequences, attention itself is split along the sequence. Each rank keeps its queries, and
# blocks of keys and values travel around a ring
# ([ring attention](https://arxiv.org/abs/2310.01889)). An online softmax keeps a running maximum and
# a running sum, so no rank ever holds a whole row of scores.

# %%
def ring_attention(q, k, v):
    rank, world_size, rows = dist.get_rank(), dist.get_world_size(), torch.arange(len(q))
    top, total, out = torch.full((len(q), 1), -math.inf), 0, 0
    travels, needed = torch.stack([k, v]), 0
    for turn in range(world_size):
        owner = (rank - turn) % world_size  # whose keys and values are here now
        allowed = (rank * len(q) + rows)[:, None] >= owner * len(q) + rows  # causal
        scores = (q @ travels[0].T / math.sqrt(WIDTH)).masked_fill(~allowed, -math.inf)
        new_top = torch.maximum(top, scores.detach().amax(1, keepdim=True))
        shrink, weights = (top - new_top).exp(), (scores - new_top).exp()
        total = total * shrink + weights.sum(1, keepdim=True)
        out = out * shrink + weights @ travels[1]
        top, needed = new_top, needed + allowed.sum().item()
        if turn < world_size - 1:
            travels = across(travels, to_next, to_previous)
    return out / total, needed

# %%
def context_parallel():
    torch.manual_seed(3)
    joint = [torch.randn(SEQUENCE, WIDTH).requires_grad_() for _ in range(3)]
    out = F.scaled_dot_product_attention(*(t[None] for t in joint), is_causal=True)[0]
    out.square().sum().backward()
    q, k, v = map(mine, joint)
    with group_calls() as calls:
        out_, needed = ring_attention(q, k, v)
        out_.square().sum().backward()
    pairs = [(out_, mine(out)), *((a.grad, mine(b.grad)) for a, b in zip((q, k, v), joint))]
    return {"apart": farthest_apart(*pairs), "calls": calls, "needed": needed}


split("context parallel", context_parallel, 4)
print("scores needed, by rank:", [answer["needed"] for answer in splits["context parallel"]])

# %% [markdown]
# The last line is the catch. Under a causal mask, the rank with the start of the sequence needs few
# scores, and then it waits. So real systems give each rank one chunk from the front and one from the
# back. *Least bad when* one sequence's activations no longer fit. Llama 3 turned it on for 131,072
# tokens, over 16 ranks ([published](https://arxiv.org/abs/2407.21783)).
#
# ### Expert parallelism
#
# In a mixture of experts, a router sends each token to one or a few of many MLPs. Each rank holds
# some of them, so tokens travel: one all-to-all dispatches them, and one combines the results.

# %%
def expert_parallel():
    torch.manual_seed(5)
    world_size, rank = dist.get_world_size(), dist.get_rank()
    tokens, router = torch.randn(64, WIDTH), whole(torch.randn(WIDTH, world_size))
    experts = whole(torch.randn(world_size, WIDTH, WIDTH) / 8)
    gate, chosen = (tokens @ router).softmax(1).max(1)  # one process; top-1 routing
    out = gate[:, None] * torch.einsum("ti,tij->tj", tokens, experts[chosen])
    out.square().sum().backward()

    tokens_, router_, expert = mine(tokens), whole(router), whole(experts[rank])
    with group_calls() as calls:
        gate, chosen = (tokens_ @ router_).softmax(1).max(1)
        order = chosen.argsort(stable=True)
        give = chosen.bincount(minlength=world_size)
        take = all_to_all(give).tolist()  # first, how many tokens will arrive
        dispatch = partial(all_to_all, give=give.tolist(), take=take)
        combine = partial(all_to_all, give=take, take=give.tolist())
        arrived = across(tokens_[order], dispatch, combine)
        back = across(arrived @ expert, combine, dispatch)
        out_ = gate[:, None] * back[order.argsort()]
        out_.square().sum().backward()
    pairs = [(out_, mine(out)), (expert.grad, experts.grad[rank]),
             (all_reduce(router_.grad), router.grad)]
    return {"apart": farthest_apart(*pairs), "calls": calls, "tokens": sum(take)}


split("expert parallel", expert_parallel, 4)
print("tokens, by expert:", [answer["tokens"] for answer in splits["expert parallel"]])

# %% [markdown]
# Each expert should get 16. The step takes as long as the busiest one, so balance is the metric to
# watch, and dropping tokens above a capacity is the blunt fix. *Least bad when* you want more
# parameters without more compute per token. DeepSeek-V3 has 671 billion parameters, uses 37 billion
# per token, and spreads its experts over 64 ranks on 8 nodes
# ([published](https://arxiv.org/abs/2412.19437)).
#
# ### Pipeline parallelism
#
# Each rank holds some layers, and micro-batches flow through. Only activations cross a border, from
# one rank to the next, so a pipeline tolerates slow links. The price is the bubble: stages idle
# while it fills and drains. We run two schedules. **GPipe** does all forward passes, then all
# backward passes. **1F1B** (one forward, one backward) starts on each backward pass as soon as it can.

# %%
def pipeline(schedule, num_micro):
    stage, num_stages = dist.get_rank(), dist.get_world_size()
    (inputs, targets), model, reference = batch_of(0), make_model(), make_model()
    F.cross_entropy(reference(inputs), targets).backward()  # one process
    part = slice(stage * len(model) // num_stages, (stage + 1) * len(model) // num_stages)
    layers, held, sending, most_held = model[part], {}, [], 0
    inputs, targets = inputs.chunk(num_micro), targets.chunk(num_micro)
    with group_calls() as calls:
        for kind, i in schedule(stage, num_stages, num_micro):
            if kind == "F":
                x = inputs[i] if stage == 0 else receive(inputs[i], stage - 1).requires_grad_()
                out = layers(x)
                if stage == num_stages - 1:
                    out = F.cross_entropy(out, targets[i]) / num_micro
                else:
                    sending.append(dist.isend(out.detach(), stage + 1))
                held[i] = x, out
                most_held = max(most_held, len(held))
            else:
                x, out = held.pop(i)
                out.backward(None if stage == num_stages - 1 else receive(out, stage + 1))
                if stage > 0:
                    sending.append(dist.isend(x.grad, stage - 1))
    for transfer in sending:
        transfer.wait()
    pairs = zip(layers.parameters(), reference[part].parameters())
    return {"apart": farthest_apart(*((a.grad, b.grad) for a, b in pairs)), "calls": calls,
            "order": schedule(stage, num_stages, num_micro), "held": most_held}

# %% collapsed=true
#@title Two stages, then four with two schedules
orders = {}
for name, schedule, num_stages, num_micro in (
    ("GPipe, 4 micro-batches", gpipe, 2, 4),
    ("GPipe, 8 micro-batches", gpipe, 4, 8),
    ("1F1B, 8 micro-batches", one_forward_one_backward, 4, 8),
):
    split(name, pipeline, num_stages, schedule, num_micro)
    orders[name] = [answer["order"] for answer in splits[name]]
    formula = (num_stages - 1) / (num_micro + num_stages - 1)
    print(f"    idle {idle_fraction(orders[name]):.3f}, (p-1)/(m+p-1) = {formula:.3f}; "
          f"most micro-batches held, by stage: {[answer['held'] for answer in splits[name]]}")

# %% collapsed=true
#@title The orders that ran, on one clock with equal ticks
schedule_picture({f"{name}, 4 stages": orders[name] for name in list(orders)[1:]})

# %% [markdown]
# The bubble is the same for both: (p-1)/(m+p-1), so 27 percent with 4 stages and 8 micro-batches, and
# 9 percent with 32. What 1F1B saves is memory: the first stage holds 4 micro-batches instead of 8.
# *Least bad when* the model spans nodes and the batch can be cut into many more micro-batches than
# there are stages.
#
# Two more schedules, in words. **Interleaved** 1F1B gives each rank v thin stages. Filling takes 1/v
# of the time, so idle time over useful time falls from (p-1)/m to (p-1)/(v m), for v times the
# transfers ([published](https://arxiv.org/abs/2104.04473)). With p = 4, m = 8 and v = 2, that's 0.19
# instead of 0.38. **Zero-bubble** splits the backward pass. The stage before needs the gradient of
# the activations right away; the gradient of the weights can wait and fill the gaps. With 1F1B's
# memory, about a third of the bubble is left ([published](https://arxiv.org/abs/2401.10241)).

# %% [markdown]
# ## Activation checkpointing
#
# If activations are what doesn't fit, drop them in the forward pass and compute them again in the
# backward pass. It needs no ranks: here are six blocks with dropout in one process, and the bytes
# that autograd keeps between the passes.

# %%
def backward_with(**options):
    torch.manual_seed(0)
    layers = [nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64)]
    model = nn.Sequential(*(nn.Sequential(*map(copy.deepcopy, layers)) for _ in range(6)))
    x, forward_calls = torch.randn(32, 64), []
    with kept_for_backward(model) as kept:
        for block in model:
            block.register_forward_pre_hook(lambda *_: forward_calls.append(1))
            x = checkpoint(block, x, **options) if options else block(x)
    x.square().mean().backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    return {"kept": sum(kept.values()), "calls": len(forward_calls), "gradient": gradient}


activations = {
    "plain": backward_with(),
    "checkpoint": backward_with(use_reentrant=False),
    "without the RNG state": backward_with(use_reentrant=False, preserve_rng_state=False),
}
right = activations["plain"]["gradient"]
for name, run in activations.items():
    off = ((run["gradient"] - right).norm() / right.norm()).item()
    print(f"{name}: {in_kb(run['kept'])} kept, {run['calls']} forward calls, off by {off:.0%}")

# %% [markdown]
# **Memory**: only each block's input stays. **Time**: every block runs forward twice. If the
# backward pass costs two forward passes, a step takes 4/3 as long. **Randomness**: the second forward
# pass must draw the same dropout mask. `preserve_rng_state` sees to that, and it's the default.
# Without it, the gradient belongs to a network that never ran.
#
# And pass `use_reentrant` explicitly. Without it, torch warns and takes the old variant, which needs an
# input that requires a gradient. The first block's doesn't, so that block silently stops learning.

# %%
def first_block_learns(**explicit):
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        second(checkpoint(first, torch.randn(2, 4), **explicit)).sum().backward()
    return first.weight.grad is not None, len(caught)


for explicit in ({"use_reentrant": False}, {"use_reentrant": True}, {}):
    learns, warned = first_block_learns(**explicit)
    print(f"{explicit}: the first block has a gradient: {learns}; {warned} warnings")

# %% [markdown]
# ## The stretch path
#
# Interviews often end with "now scale it". Take one step at a time, and measure each.

# %%
diagram("stretch_path")

# %%
bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
autocast = partial(torch.autocast, "cpu", torch.bfloat16)
path = {
    "one process, fp32": on_ranks(train, 1, lambda model: model, steps)[0],
    "DDP, fp32": runs["DDP", 2],
    "DDP, bf16 autocast": on_ranks(train, 2, replicated, steps, autocast)[0],
    "FSDP2, fp32": runs["FSDP2", 2],
    "FSDP2, bf16 parameters": on_ranks(train, 2, partial(sharded, mp_policy=bf16), steps)[0],
}

# %% collapsed=true
#@title The path in numbers; on 2 ranks, except the first row
print(f"{steps} steps {'last loss':>26} {'state held':>12} {'sent a step':>12}   "
      "p50 in ms: forward, backward, optimizer")
for name, run in path.items():
    on_wire = sum(bytes_sent(call, 2) for call in run["calls"])
    ms = [run["times"][part]["p50"] for part in ("forward", "backward", "optimizer")]
    print(f"{name:22} {run['losses'][-1]:12.5f} {in_kb(sum(run['held'].values())):>12} "
          f"{in_kb(on_wire):>12} {ms[0]:20.1f} {ms[1]:9.1f} {ms[2]:10.1f}")

# %% [markdown]
# The milliseconds are a CPU's and say nothing about a GPU. The bytes are the same on any machine:
#
# - Autocast changes neither the state nor the traffic. Weights and gradients stay fp32.
# - FSDP2 halves the state on two ranks and sends half as much again.
# - With bf16 parameters, the all-gathers shrink to half. The reduce-scatter stays fp32 on purpose,
#   because long sums are where bf16's 8 bits of precision hurt. Now FSDP2 sends what DDP did.
# - The loss is the gate: each row agrees with the one before, up to the precision it gave up.
#
# > "I change one thing at a time, with the row before as my baseline. If mixed precision and
# > sharding go in together and the loss moves, I've got two suspects."

# %% [markdown]
# ## Staff tradeoffs: what does it cost later?
#
# | choice now | what you get | what it costs later | what would make me change it |
# |---|---|---|---|
# | DDP over FSDP | equal replicas, failures you can read | memory: all state on every rank | peak memory, or a micro-batch of 1 |
# | full checkpoints | one file, simple restore | I/O, slow saves, rank 0 gathers everything | the time that saves take |
# | map-style dataset | random access, exact resume | streaming is harder | `data_wait`, or an index that doesn't fit |
# | rank-0 decisions | one place to look | a bottleneck, one point of failure | ranks waiting at its broadcast |
# | FSDP over tensor parallel | model code stays as it is | all-gathers of whole blocks | exposed all-gather time |
# | activation checkpointing | fits today | a third more compute | memory is free again after sharding |
# | pipeline over more sharding | little traffic between nodes | bubble, stage balance, debugging | idle time above its formula |
# | a 4-D mesh | fits what nothing else fits | a hang can be in any of four groups | a smaller mesh fits again |
#
# ## Numbers for the rest of the conversation
#
# **Mixture of experts** saves compute, not memory. All 671 billion parameters need state, and 37
# billion of them, 5.5 percent, work on a token. The all-to-all sends tokens x width x experts per
# token, there and back, and the router decides to whom. DeepSeek-V3 lets a token visit at most 4
# nodes ([published](https://arxiv.org/abs/2412.19437)).
#
# **FP8** comes in two formats: E4M3 for precision, E5M2 for range.

# %%
for name in ("float8_e4m3fn", "float8_e5m2", "bfloat16"):
    kind = torch.finfo(getattr(torch, name))
    print(f"{name}: largest {kind.max:.3g}, step at 1.0: {kind.eps}")
print("1.0, 1.1, 400.0 and 0.0009 in E4M3:",
      torch.tensor([1.0, 1.1, 400.0, 0.0009]).to(torch.float8_e4m3fn).float().tolist())

# %% [markdown]
# So each small block of a tensor needs a scale of its own, and sums stay in higher precision.
# DeepSeek-V3 takes 1x128 tiles of activations and 128x128 blocks of weights, and reports a loss
# within 0.25 percent of BF16 ([published](https://arxiv.org/abs/2412.19437)). An H100's peak doubles
# ([published](https://www.nvidia.com/en-us/data-center/h100/)), but only for matrix products, so a
# step gains less.
#
# **What goes where.** An H100's NVLink moves 900 GB/s, both directions together
# ([published](https://www.nvidia.com/en-us/data-center/h100/)): 450 each way. A 400 Gb/s network
# card moves 50. That factor of 9 keeps tensor parallelism inside the node, and lets pipeline and
# data parallelism cross it. Llama 3 ordered its mesh that way: tensor, context, pipeline, data, from
# the inside out, on up to 16,384 GPUs at 38 to 43 percent of their peak FLOPs
# ([published](https://arxiv.org/abs/2407.21783)). It didn't reshard parameters after the forward
# pass, which saves the second all-gather. In FSDP2 that's `reshard_after_forward=False`. Given a 2-D
# mesh, `fully_shard` shards along one dimension and replicates along the other
# ([docs](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html)). That's hybrid
# sharding, or HSDP, and its all-gathers can stay inside the node.
#
# **What gloo can't show.** Overlap: whether the next block's all-gather hides behind this block's
# compute decides how fast FSDP is. NVLink, topology, and NCCL's choice of ring or tree. A real
# reduce-scatter. A GPU's allocator, which turns the memory you counted into the memory you get. What
# carries over: which collectives run, in which order, with how many bytes, and that the result is
# one process's.

# %% [markdown]
# ## Say it in 60 seconds
#
# > "I start with DDP. It copies the weights once, averages the gradients in buckets, and leaves the
# > data to me. It's the smallest correct baseline.
# >
# > I leave it for a number. If state doesn't fit, that's 16 bytes a parameter, I go to FSDP2: 1.5
# > times the traffic for 1/N of the state. If activations don't fit, I recompute them for about a
# > third more compute. If a single layer is the limit, tensor parallelism, inside the node. If one
# > sequence is, context parallelism. Across slow links, a pipeline with many micro-batches, because
# > the bubble is p minus 1 over m plus p minus 1.
# >
# > After each move I check two things: the losses match the run before, and the collectives are the
# > ones I predicted. If exposed communication eats what I gained, I go back."

# %% [markdown]
# ## Three questions
#
# **"Why not FSDP from the start? It's one line."**
#
# - *Weak:* "FSDP has overhead, DDP is faster."
# - *Strong:* "If the state fits with room for the batch I want, sharding buys nothing and costs half
#   as much traffic again. It also changes what clipping, accumulation and checkpoints have to call.
#   I'd keep the step free of type checks, so that the switch stays one line, and make it when memory
#   says so."
# - *What would prove me wrong:* the largest micro-batch that fits. If DDP forces one so small that
#   the GPU starves, FSDP is faster in spite of its traffic.
#
# **"You moved to FSDP2, and the loss is flat. Where do you look?"**
#
# - *Weak:* "The learning rate, probably."
# - *Strong:* "First, does anything move? An optimizer made before `fully_shard` updates parameters that
#   nobody uses, without an error. I'd hash the weights before and after a step. Then the gradient norm
#   against DDP's: a norm over local shards is too small. If it began with a resume, I'd count the
#   moments that came back."
# - *What would prove me wrong:* ten steps of DDP and FSDP2 from one seed. Losses that agree to 1e-6
#   clear all three.
#
# **"64 GPUs in 8 nodes, 70 billion parameters. Lay it out."**
#
# - *Weak:* "Tensor parallel 8, pipeline 8."
# - *Strong:* "State is 70 billion times 16 bytes, 1.12 TB. Over 64 GPUs that's 17.5 GB each, so FSDP
#   over all 64 fits, with activation checkpointing. It's the least new code, so I'd measure it first.
#   If all-gathers across nodes are exposed, I'd put tensor parallelism of 8 inside each node and FSDP
#   across the 8. A pipeline comes last: 8 stages need 63 micro-batches for a bubble of 10 percent."
# - *What would prove me wrong:* exposed communication per step, from a trace. If it's small, tensor
#   parallelism would only add collectives.

# %% [markdown]
# ## Practice it
#
# - Drills: [lift_to_ddp](../drills/015_lift_to_ddp.ipynb),
#   [lift_to_distributed](../drills/020_lift_to_distributed.ipynb),
#   [cell_train](../drills/150_cell_train.ipynb),
#   [gradient_norm_depends_on_world_size](../drills/295_gradient_norm_depends_on_world_size.ipynb),
#   [replicas_drift_apart](../drills/220_replicas_drift_apart.ipynb).
# - The code: sections 4 and 5 of the [walkthrough](../01_walkthrough.ipynb).
# - The cards: `ask(topic="parallelism")` in [03_deck](../03_deck.ipynb).
