# %% [markdown]
# # 15. Numbers
#
# {{badge}}
#
# > "Before I pick a parallelism, let me do the arithmetic out loud. Six N D gives me the FLOPs,
# > sixteen bytes a parameter gives me the memory, and twice the gradient bytes over the bandwidth
# > gives me the all-reduce. I'll round hard, say which inputs are guesses, and name the measurement
# > that would replace each guess."
#
# *Twenty-five minutes to read. Each formula is checked against something counted or measured in
# this notebook, or against a published training run with a link.*

# %% collapsed=true
# {{setup torch numpy matplotlib cloudpickle platformdirs fsrs rehearsal}}

# %% collapsed=true
#@title Imports
import math
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from rehearsal.handbook import numbers, published
from rehearsal.handbook.diagrams import diagram
from rehearsal.handbook.number_pictures import (
    Point,
    Saved,
    activation_figure,
    allreduce_figure,
    flops_figure,
    memory_figure,
    memory_table,
    ring_figure,
    roofline_figure,
)
from rehearsal.handbook.on_ranks import on_ranks
from rehearsal.handbook.published import H100

FAST = os.environ.get("FAST") == "1"

# %% [markdown]
# ## The map
#
# Nobody asks for the third digit. The interviewer wants to see that you know which quantity limits
# the design, and that you notice when an answer is off by a factor of ten.

# %%
diagram("back_of_envelope")

# %% [markdown]
# The calculator is `rehearsal.handbook.numbers`: one function per formula, with its source in the
# docstring. Change any argument in any cell below and run it again.
#
# ### Hardware, as published
#
# From NVIDIA's pages on the [H100](https://www.nvidia.com/en-us/data-center/h100/) and the
# [A100](https://www.nvidia.com/en-us/data-center/a100/). The network is what each GPU had for
# [Llama 3](https://arxiv.org/abs/2407.21783) (400 Gb/s) and
# [Llama 2](https://arxiv.org/abs/2307.09288) (200 Gb/s).

# %%
print(published.hardware_table())

# %% [markdown]
# Four traps in that table. The first three are worth a factor of two or more:
#
# - **Sparsity.** The data sheet says 1,979 TFLOP/s for the H100, with 2:4 sparsity. You train dense
#   matrices, so use half: 989.
# - **Both directions.** NVLink's 900 GB/s adds up sending and receiving. A ring sends at 450.
# - **Bits.** A 400 Gb/s network card moves 50 GB/s.
# - **GB or GiB.** Memory tools report GiB, and 80 GB is 74.5 GiB. That's 7%.
#
# The last column is peak over memory bandwidth. It's the ridge of the roofline, below.

# %% [markdown]
# ## FLOPs: 6ND
#
# Take one parameter of a matrix. In the forward pass, each token multiplies it once and adds the
# product to a sum: 2 FLOPs. In the backward pass, the layer needs two gradients, one for the
# weights and one for its input, and each is a matmul of the same size: 4 FLOPs. So training costs
# 2ND + 4ND = 6ND for N parameters and D tokens ([Kaplan et al.](https://arxiv.org/abs/2001.08361),
# section 2.1). Count it:

# %%
def count_flops(function):
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


linear = nn.Linear(64, 96, bias=False)
inputs = torch.randn(10, 64, requires_grad=True)
per_parameter = linear.weight.numel() * 10  # and per token
forward_flops = count_flops(lambda: linear(inputs)) / per_parameter
both_flops = count_flops(lambda: linear(inputs).sum().backward()) / per_parameter
backward_flops = both_flops - forward_flops
print(f"per parameter and token: {forward_flops:g} forward, {backward_flops:g} backward")

# %% [markdown]
# A transformer has attention too. Here's a small one, with every matmul written out.

# %%
class Block(nn.Module):
    """One layer: 12 d^2 parameters in four matrices, 4 in attention and 8 in the MLP."""

    def __init__(self, width, heads, dropout=0.0, fused=False):
        super().__init__()
        self.heads, self.dropout, self.fused = heads, dropout, fused
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, q, k, v):
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # a mask would cost no FLOPs
        return F.dropout(scores.softmax(-1), self.dropout) @ v

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = self.attend(q, k, v).transpose(1, 2).reshape(b, s, d)
        x = x + F.dropout(self.out(mixed), self.dropout)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.dropout)


# %%
def build(width, layers, **options):
    """An embedding of 512 tokens, the layers, and a head."""
    blocks = [Block(width, width // 32, **options) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(512, width), *blocks, nn.Linear(width, 512))


def matmul_parameters(model):
    """N for 6ND: what a token is multiplied by. An embedding is only looked up."""
    return sum(part.weight.numel() for part in model.modules() if isinstance(part, nn.Linear))


WIDTH, LAYERS = 128, 4
model = build(WIDTH, LAYERS)
num_parameters = matmul_parameters(model)


def counted_ratio(seq_len, model=model):
    """FLOPs per token of forward and backward, over 6 N."""
    tokens = torch.randint(512, (1, seq_len))
    flops = count_flops(lambda: model(tokens).sum().backward())
    return flops / seq_len / numbers.flops_per_token(num_parameters)


ratios = {seq_len: counted_ratio(seq_len) for seq_len in (32, 64, 128, 256, 512, 768)}
formula = numbers.transformer_parameters(LAYERS, WIDTH) + WIDTH * 512
print(f"N: {num_parameters:,} counted, {formula:,} as 12 L d^2 plus the head")
print({seq_len: round(ratio, 2) for seq_len, ratio in ratios.items()})
fused_ratio = counted_ratio(768, build(WIDTH, LAYERS, fused=True))
print(f"at 768 with the CPU's fused attention kernel, the counter says {fused_ratio:.2f}")
flops_figure(ratios, WIDTH)

# %% [markdown]
# Attention adds 12 L d s FLOPs per token for its two matmuls. Divide by 6 x 12 L d², and the share
# is **s / 6d**. At s = 6d it costs as much as all the weights. (The dots are a little low because
# the head also counts in N.) For Llama 3 405B, d is 16,384 and s is 8,192, so it's 8%, or 4% for a
# kernel that skips the masked half. With its sequences of 131,072 it's 133% or 67%.
#
# What else 6ND leaves out:
#
# - **Embeddings.** They count as parameters but don't multiply. That matters for small models only.
# - **Norms, softmax, GELU, the optimizer.** Few FLOPs, many bytes. They cost time, not FLOPs.
# - **Experts that a token doesn't visit.** In a mixture of experts, N is the active parameters.
# - **Whatever isn't training.** Evaluation, restarts and lost steps. That's goodput, below.
# - **Recomputation.** Activation checkpointing runs the forward pass a second time: 8ND.

# %%
def flops_over_forward(dropout, use_reentrant):
    """All FLOPs of four checkpointed layers, in units of their forward pass."""
    layers = nn.Sequential(*[Block(WIDTH, 4, dropout) for _ in range(4)])
    hidden = torch.randn(1, 64, WIDTH, requires_grad=True)

    def run():
        x = hidden
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=use_reentrant)
        return x

    return count_flops(lambda: run().sum().backward()) / count_flops(run)


recomputed = {(p, old): flops_over_forward(p, old) for p in (0.0, 0.1) for old in (True, False)}
for (dropout, use_reentrant), passes in recomputed.items():
    print(f"dropout={dropout} use_reentrant={use_reentrant!s:5}  {2 * passes:.1f} N D")

# %% [markdown]
# It isn't always 8. The non-reentrant version stops once it has rebuilt the last tensor that
# backward needs. Without dropout at the end, that excludes the layer's last matmul, a third of its
# weights.
#
# A trap if you count yourself: `FlopCounterMode` doesn't know the CPU's fused attention kernel, and
# the last line printed above the picture is its count, as if attention were free. That's why the
# other counts use `fused=False`.
#
# > "Six N per token: two forward, four backward. Attention adds s over six d, so at 8K context on a
# > big model I ignore it, and at 128K I don't. Full recomputation makes it eight N of work for six
# > N of progress."

# %% [markdown]
# ## Memory: bytes per parameter
#
# What stays on the GPU from step to step depends on precision and optimizer. Run one step and
# count.

# %%
def bytes_of(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def kept_per_parameter(make_optimizer, mixed=False, fp32_gradients=False):
    """Bytes per parameter of weights, gradients and optimizer after one step."""
    torch.manual_seed(0)
    layer = nn.Linear(256, 256, bias=False)
    master = [nn.Parameter(weight.detach().clone()) for weight in layer.parameters()]
    if mixed:
        layer.bfloat16()  # for forward and backward; the optimizer steps on the master copy
    optimizer = make_optimizer(master if mixed else layer.parameters())
    layer(torch.randn(8, 256, dtype=layer.weight.dtype)).sum().backward()
    gradients = [weight.grad for weight in layer.parameters()]
    if mixed:
        master[0].grad = gradients[0].float()  # for the step only
    optimizer.step()
    if fp32_gradients:
        gradients = [master[0].grad]  # accumulated in fp32, and the bf16 ones are freed
    state = [value for values in optimizer.state.values() for value in values.values()]
    moments = [value for value in state if torch.is_tensor(value) and value.numel() > 1]
    count = layer.weight.numel()
    parts = list(layer.parameters()), gradients, moments + (master if mixed else [])
    return tuple(bytes_of(part) / count for part in parts)


# %%
adam, sgd = torch.optim.AdamW, torch.optim.SGD
kept = {
    "fp32, SGD": kept_per_parameter(lambda p: sgd(p, lr=0.1)),
    "fp32, SGD with momentum": kept_per_parameter(lambda p: sgd(p, lr=0.1, momentum=0.9)),
    "fp32, Adam": kept_per_parameter(adam),
    "bf16, Adam": kept_per_parameter(adam, mixed=True),
    "bf16, Adam, fp32 gradients": kept_per_parameter(adam, mixed=True, fp32_gradients=True),
}
for name, parts in kept.items():
    print(f"{name:28} {' + '.join(f'{part:g}' for part in parts):11} = {sum(parts):g} bytes")
print("in bf16, 1 + 0.003 is", (torch.tensor(1.0).bfloat16() + 0.003).item())

# %% [markdown]
# Mixed precision doesn't shrink the state. Weights and gradients in bf16 save 4 bytes, and the fp32
# master copy takes them back. You need that copy because bf16 has 8 significant bits: an update of
# less than about 1/256 of a weight rounds to nothing. What bf16 buys is speed, and half the
# activation memory. With gradients in fp32 it's 18 bytes.
# [Llama 3](https://arxiv.org/abs/2407.21783) accumulated and reduced in fp32 (section 3.3.2).
#
# ### Does it fit?
#
# Sharding divides the state among n GPUs ([ZeRO](https://arxiv.org/abs/1910.02054), figure 1).
# ZeRO-1 divides the optimizer, ZeRO-2 the gradients too, ZeRO-3 everything. FSDP with full sharding
# is ZeRO-3. First, a count on two real ranks in fp32:

# %%
def kept_by_a_rank(kind):
    """Bytes per parameter that this rank holds after one step."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])
    count = sum(parameter.numel() for parameter in model.parameters())
    wrapped = fully_shard(model) if kind == "zero3" else DistributedDataParallel(model)
    if kind == "zero1":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    else:
        optimizer = torch.optim.AdamW(model.parameters())
    wrapped(torch.randn(8, 256)).sum().backward()
    optimizer.step()
    state = optimizer.optim.state if kind == "zero1" else optimizer.state
    held = [*model.parameters(), *(parameter.grad for parameter in model.parameters())]
    moments = [value for values in state.values() for value in values.values()]
    held += [value for value in moments if value.numel() > 1]  # without the step count
    return bytes_of(t.to_local() if hasattr(t, "to_local") else t for t in held) / count


def kept_by_each():
    return {kind: kept_by_a_rank(kind) for kind in ("ddp", "zero1", "zero3")}


on_two = on_ranks(kept_by_each, 2)
for kind in on_two[0]:
    expected = numbers.memory_per_gpu_bytes(1, 2, kind, numbers.STATES["fp32, Adam"])
    print(f"{kind:6} {[rank[kind] for rank in on_two]} bytes each, formula: {expected:g}")

# %% [markdown]
# Now the question that gets asked: eight GPUs with 80 GB each, 16 bytes per parameter. A star marks
# what doesn't fit.

# %%
print(memory_table([7, 13, 70], num_gpus=8, memory_gb=80))
memory_figure([7, 13, 70], num_gpus=8, memory_gb=80)

# %% [markdown]
# - **7B** needs 112 GB, so plain DDP is out, and ZeRO-1 is enough.
# - **13B** needs 208 GB. ZeRO-1 leaves 8.5 GB for everything else, so take ZeRO-2 or 3.
# - **70B** needs 1,120 GB, and eight GPUs have 640. No sharding helps. You need more GPUs or fewer
#   bytes.
#
# > "Sixteen bytes a parameter with Adam, in fp32 or in mixed precision. Eight 80-gig cards are 640
# > gigabytes, over 16 is 40 billion parameters. That's the ceiling before activations, so I'd plan
# > for half of it."

# %% [markdown]
# ## Memory: activations
#
# State doesn't grow with the batch. Activations do. For one transformer layer in 16 bits, with
# dropout, [Korthikanti et al.](https://arxiv.org/abs/2205.05198) (section 4) count
#
# **s b d (34 + 5 a s / d) bytes**
#
# with s tokens, b sequences, width d and a heads. The 34 is 11 in attention, 19 in the MLP and 4 in
# the norms. The second term is the scores, s x s for each head: after the softmax, a dropout mask,
# and after dropout. `saved_tensors_hooks` sees every tensor that autograd keeps, so count them:

# %%
def saved_bytes(layer, inputs, run=None):
    """The bytes of all storages that autograd keeps for backward, without the weights."""
    weights = {weight.untyped_storage().data_ptr() for weight in layer.parameters()}
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = run(layer, inputs) if run else layer(inputs)  # alive, so no storage is reused
    return sum(storages.values()) if output is not None else 0


# %%
def recompute(layer, inputs):
    return checkpoint(layer, inputs, use_reentrant=False)


KINDS = {  # options of the block, how to run it, options of the formula
    "with dropout": ({"dropout": 0.1}, None, {"mask_bytes": 2}),
    "no dropout": ({}, None, {"has_dropout": False}),
    "fused attention": ({"fused": True}, None, {"has_dropout": False, "is_fused": True}),
    "recomputed": ({}, recompute, {"recomputes": True}),
}
activations = {kind: [] for kind in KINDS}
for kind, (options, run, terms) in KINDS.items():
    layer = Block(WIDTH, 4, **options).bfloat16()
    for seq_len in (64, 128, 256, 384, 512):
        hidden = torch.randn(2, seq_len, WIDTH, dtype=torch.bfloat16, requires_grad=True)
        expected = numbers.activation_bytes_per_layer(seq_len, 2, WIDTH, 4, **terms)
        activations[kind].append(Saved(seq_len, saved_bytes(layer, hidden, run), expected))
activation_figure(activations)

# %%
for kind, rows in activations.items():
    row = rows[-1]
    ratio = row.measured_bytes / row.formula_bytes
    per_value = row.measured_bytes / (2 * row.seq_len * WIDTH)
    print(f"{kind:16} {per_value:6.1f} s b d bytes at s = {row.seq_len}, {ratio:.3f} x formula")

# %% [markdown]
# The formula holds within a percent, which is the norms' statistics. One thing differs here: the
# CPU keeps a dropout mask in bf16, 2 bytes where the paper's GPU kernel takes 1. Three things to
# say:
#
# - Plain attention is quadratic in s. A fused kernel such as FlashAttention doesn't keep the
#   scores, and what's left is linear: 32 s b d without dropout.
# - A recomputed layer keeps only its input: 2 s b d, a sixteenth of that.
# - This is per layer and per micro-batch. Gradient accumulation doesn't add to it, so a smaller
#   micro-batch is the first thing to try.

# %%
LAYERS_7B, WIDTH_7B, HEADS_7B = 32, 4096, 32  # a 7B shape: 12 L d^2 = 6.4e9
print("GB of activations for 7B, one sequence     4K      8K     32K")
for kind, terms in {
    "scores kept": {"has_dropout": False},
    "fused attention": {"has_dropout": False, "is_fused": True},
    "recomputed": {"recomputes": True},
}.items():
    row = [
        LAYERS_7B * numbers.activation_bytes_per_layer(s, 1, WIDTH_7B, HEADS_7B, **terms) / 1e9
        for s in (4096, 8192, 32768)
    ]
    print(f"{kind:38}" + "".join(f"{gb:8.1f}" for gb in row))

# %% [markdown]
# > "State doesn't depend on the batch, activations do. Per layer it's about 34 s b d bytes with
# > fused attention. If that doesn't fit, I shrink the micro-batch and accumulate, then I recompute,
# > and only then do I split the sequence or the layer."

# %% [markdown]
# ## Communication: the all-reduce
#
# DDP sums the gradients over all ranks. A ring does it in two halves. Cut the tensor into n chunks.
# For n - 1 steps, each rank sends a chunk to its right neighbor and adds the one from its left.
# After this **reduce-scatter**, each rank has one finished chunk. For another n - 1 steps, the
# finished chunks go around: an **all-gather**. You can type it in an interview.

# %%
def ring_all_reduce(chunks):
    """Sum over the ranks, in place; one chunk per rank. Returns bytes sent, and the history."""
    rank, n = dist.get_rank(), dist.get_world_size()
    sent, history = 0, [[chunk.mean().item() for chunk in chunks]]
    for step in range(2 * (n - 1)):
        outgoing = (rank - step) % n
        incoming = (outgoing - 1) % n
        received = torch.empty_like(chunks[incoming])
        request = dist.isend(chunks[outgoing], (rank + 1) % n)  # a blocking send could deadlock
        dist.recv(received, (rank - 1) % n)
        request.wait()
        chunks[incoming] = received + chunks[incoming] if step < n - 1 else received
        sent += chunks[outgoing].nbytes
        history.append([chunk.mean().item() for chunk in chunks])
    return sent, history


# %%
def try_the_ring():
    n = dist.get_world_size()
    torch.manual_seed(dist.get_rank())
    mine = torch.randn(1000 * n)
    chunks = list(mine.clone().chunk(n))
    sent, _ = ring_all_reduce(chunks)
    summed = mine.clone()
    dist.all_reduce(summed)
    _, history = ring_all_reduce(list(torch.ones(n).chunk(n)))
    equal = torch.allclose(torch.cat(chunks), summed, atol=1e-5)
    return {"equal": equal, "sent": sent / mine.nbytes, "history": history}


ring = on_ranks(try_the_ring, 4)
print("equal to all_reduce:", all(rank["equal"] for rank in ring))
print("sent by each rank, in units of the tensor:", [rank["sent"] for rank in ring])
ring_figure([rank["history"] for rank in ring])

# %% [markdown]
# A number says how many ranks are summed in that chunk. With four ranks, each sends 2 x 3/4 = 1.5
# times the tensor. In general it's 2 (n - 1) / n, which stays below 2 for any n. So
#
# **time = 2 (n - 1) / n x bytes / bandwidth + 2 (n - 1) x latency**
#
# The first term is a lower bound for every algorithm that sends from point to point, and the
# bandwidth in it is the "bus bandwidth" that NCCL's benchmark prints
# ([nccl-tests](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md)).
#
# A tree improves the second term: 2 log2(n) hops instead of 2 (n - 1). NCCL's
# [double binary trees](https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/)
# keep the full bandwidth as well. In words: a ring is fine for large tensors on few ranks, and a
# tree wins for small tensors or many ranks. Here are both, at an assumed 5 µs a hop:

# %%
print(f"{'400 GB/s, 5 us a hop':24}14 GB ring   1 MB ring   1 MB tree")
for num_ranks in (8, 1024, 16384):
    row = [
        numbers.allreduce_seconds(14e9, num_ranks, 400e9, 5e-6),
        numbers.allreduce_seconds(1e6, num_ranks, 400e9, 5e-6),
        numbers.tree_allreduce_seconds(1e6, num_ranks, 400e9, 5e-6),
    ]
    print(f"{num_ranks:6} ranks          " + "".join(f"{1e3 * s:9.2f} ms" for s in row))

# %% [markdown]
# Now measure one: two processes on this machine, gloo, loopback. The numbers say nothing about your
# cluster. The shape does: flat, then rising. (If other programs are running, the dots scatter.)

# %% collapsed=true
#@title How to time an all-reduce
def time_all_reduce(sizes, repetitions):
    """The shortest time of an all-reduce, in seconds, for each number of bytes."""
    shortest = []
    for size in sizes:
        tensor, seconds = torch.ones(size // 4), []
        for _ in range(repetitions):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(tensor)
            seconds.append(time.perf_counter() - start)
        shortest.append(min(seconds))
    return shortest


# %%
SIZES = [4, 2**12, 2**16, 2**18, 2**20, 2**22]
by_rank = on_ranks(time_all_reduce, 2, SIZES, 40 if FAST else 80)
measured_s = {size: max(times) for size, *times in zip(SIZES, *by_rank)}
latency_s = measured_s[SIZES[0]]
bytes_per_s = SIZES[-1] / (measured_s[SIZES[-1]] - latency_s)
print(f"latency {1e6 * latency_s:.0f} us, bandwidth {bytes_per_s / 1e9:.2f} GB/s, here")
allreduce_figure(measured_s, latency_s, bytes_per_s)

# %% [markdown]
# That's why DDP packs gradients into
# [buckets](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
# of 25 MB by default. A collective per parameter would pay the latency hundreds of times.
#
# **Which bandwidth?** That of the slowest link on the way. Inside a server it's 450 GB/s. Between
# servers, the eight GPUs' network cards share the work, because all eight need the same sum. So
# it's 8 x 50 = 400 GB/s per server. With one card per server, it's 50.
#
# **Sharding.** ZeRO-1 and 2 use the two halves separately and send as much as DDP. ZeRO-3 gathers
# the weights for forward and again for backward, and scatters the gradients. That's three halves,
# 1.5 times as much ([ZeRO](https://arxiv.org/abs/1910.02054), section 7).
#
# **Does it hide?** With T tokens per GPU, backward takes 4 N T / (achieved FLOP/s). The all-reduce
# of bf16 gradients takes 4 N / bandwidth. N cancels: whether it hides depends on the tokens per
# GPU, not on the model.

# %%
MFU = 0.4  # a guess, to be replaced by a measurement
for name, bus_gb_per_s in (("8 cards per server", 400), ("1 card per server", 50)):
    needed = numbers.hidden_allreduce_tokens(MFU * H100.peak_flop_per_s, bus_gb_per_s * 1e9)
    print(f"{name:20} backward is as long as the all-reduce at {needed:,.0f} tokens per GPU")

# %% [markdown]
# > "Twice the bytes over the bandwidth, for any number of ranks. For 7B in bf16 that's 28 gigabytes
# > over 400 a second: 70 milliseconds. It hides behind backward if each GPU has a thousand tokens
# > or more, twice that in fp32. Small messages are all latency, and there a tree beats a ring."

# %% [markdown]
# ## The roofline
#
# An operation takes the longer of two times: FLOPs over peak, or bytes over memory bandwidth. Its
# **arithmetic intensity**, FLOPs per byte, decides which. Both are equal at the ridge
# ([Williams et al.](https://doi.org/10.1145/1498765.1498785)): for an H100 in bf16, 989 / 3.35 =
# 295 FLOPs per byte. Measure this machine's, on one core. `thread_time` counts only time on the
# core, so other programs disturb it little. (On a GPU, use CUDA events.)

# %%
torch.set_num_threads(1)


def busy_seconds(function, repetitions=3 if FAST else 10):
    """The shortest time on the core, after one call to warm up."""
    function()
    seconds = []
    for _ in range(repetitions):
        start = time.thread_time()
        function()
        seconds.append(time.thread_time() - start)
    return min(seconds)


def matmul_point(name, rows, inner, columns):
    left, right = torch.ones(rows, inner), torch.ones(inner, columns)
    out = torch.empty(rows, columns)
    seconds = busy_seconds(lambda: torch.mm(left, right, out=out))
    intensity = numbers.matmul_intensity(rows, inner, columns, value_bytes=4)
    return Point(name, intensity, 2 * rows * inner * columns / seconds)


# %%
one, two, out = (torch.ones(2**24) for _ in range(3))  # 64 MiB each: more than the caches hold
add_s = busy_seconds(lambda: torch.add(one, two, out=out))
points = [Point("elementwise add", 1 / 12, one.numel() / add_s)]
points += [matmul_point("768 x 768 matmul", 768, 768, 768)]
points += [matmul_point(f"tokens: {rows}", rows, 2048, 8192) for rows in (1, 4, 16, 64)]
# The roofs are the best that any of them reached.
peak = max(point.flop_per_s for point in points)
bandwidth = max(point.flop_per_s / point.intensity for point in points)
print(f"peak {peak / 1e9:.0f} GFLOP/s, bandwidth {bandwidth / 1e9:.0f} GB/s")
roofline_figure(points, peak, bandwidth)

# %% [markdown]
# The roof is what the hardware allows. The distance below it is up to the kernel. Four points are
# the same weights of 2,048 x 8,192, multiplied by 1 to 64 tokens. With one token, each weight is
# read for a single multiply-add, as in decoding. With 64, each read is used 64 times. The intensity
# of T tokens is about T/2 in fp32 and T in bf16. So on an H100, a matmul needs **about 300 tokens**
# in the micro-batch before arithmetic limits it. An elementwise operation never gets there at any
# batch size. So fuse it: read once, do several things, write once.

# %%
print("tokens   FLOP/byte   share of an H100's peak that memory allows (4096 x 16384, bf16)")
for tokens in (1, 64, 256, 512, 4096):
    intensity = numbers.matmul_intensity(tokens, 4096, 16384)
    share = numbers.attainable_flop_per_s(intensity, 989e12, 3.35e12) / 989e12
    print(f"{tokens:6} {intensity:10.0f} {share:12.1%}")

# %% [markdown]
# ## MFU: how much of the peak you get
#
# Model FLOPs utilization is tokens per second, times the FLOPs that the *model* needs per token,
# over peak ([PaLM](https://arxiv.org/abs/2204.02311), appendix B). Train the small model on this
# core, and compare with the peak measured above:

# %%
def training_mfu(width, seq_len=128, batch=8):
    """MFU of a training step, against this core's measured peak."""
    model = build(width, LAYERS, fused=True)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(512, (batch, seq_len))

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()

    tokens_per_s = tokens.numel() / busy_seconds(step, 2 if FAST else 4)
    needed = numbers.flops_per_token(matmul_parameters(model))
    return numbers.mfu(tokens_per_s, needed, num_gpus=1, peak_flop_per_s=peak)


mfu_by_width = {width: training_mfu(width) for width in (32, 64, 128, 256)}
print({width: f"{share:.0%}" for width, share in mfu_by_width.items()})

# %% [markdown]
# The wider the model, the higher the MFU. The matmuls' FLOPs grow with d². Norms, GELU and
# residuals grow with d, and the roofline says how slow those are. A cluster loses more: exposed
# communication, pipeline bubbles, waiting for data, kernel launches.
#
# One published figure can be recomputed: PaLM's, from its 238.3K tokens per second on 6,144 chips.

# %%
palm = published.RUN["PaLM"].num_parameters
attention = numbers.attention_flops_per_token(
    published.PALM_LAYERS, published.PALM_WIDTH, published.PALM_SEQ_LEN
)
palm_flops = {
    "6 N": numbers.flops_per_token(palm),
    "with attention": numbers.flops_per_token(palm, attention),
    "all recomputed": numbers.flops_per_token(palm, attention, recomputes=True),
}
speed, chips, chip = (
    published.PALM_TOKENS_PER_S, published.PALM_CHIPS, published.TPU_V4_PEAK_FLOP_PER_S
)
palm_mfu = {name: numbers.mfu(speed, flops, chips, chip) for name, flops in palm_flops.items()}
print({name: f"{share:.1%}" for name, share in palm_mfu.items()})
print("published: 45.7%, 46.2%, and 57.8% for what it did recompute\n")
print(published.utilization_table())

# %% [markdown]
# The third number is **HFU**, hardware FLOPs utilization, which counts recomputed FLOPs as work.
# PaLM recomputed a part of the forward pass, so its published HFU, 57.8%, is between the second and
# the third. Prefer MFU. The two 530B rows are the same model
# ([Korthikanti et al.](https://arxiv.org/abs/2205.05198)): with everything recomputed, 42.1% MFU is
# 42.1 x 8/6 = 56% HFU. With little recomputed it's 54.2% MFU. The chips were about as busy in both,
# and the second finished 29% more tokens per second.

# %% [markdown]
# ## How long, and what does it cost?
#
# **GPU hours = 6ND / (peak x MFU x goodput)**. MFU describes the job while it steps. Goodput is the
# fraction of paid time whose progress survives: no restarts, no lost steps, no waiting for saves.
# People forget it, and the bill doesn't. Here are published runs against 40% MFU and perfect
# goodput:

# %%
print(published.runs_table(mfu=0.4))

# %% [markdown]
# Sources: [GPT-3](https://arxiv.org/abs/2005.14165) (table D.1),
# [Chinchilla](https://arxiv.org/abs/2203.15556), [PaLM](https://arxiv.org/abs/2204.02311),
# [Llama 3](https://arxiv.org/abs/2407.21783), and for hours the model cards of
# [Llama 2](https://github.com/meta-llama/llama/blob/main/MODEL_CARD.md) and
# [Llama 3.1](https://github.com/meta-llama/llama-models/blob/main/models/llama3_1/MODEL_CARD.md),
# which says "15T+" tokens for the smaller two. Read the table like a reviewer:
#
# - **FLOPs agree within 2%.** GPT-3's authors used the same formula, so that row only checks the
#   arithmetic. The independent check is the counter above.
# - **The hours of Llama 2 70B and Llama 3.1 405B agree within 15%.** For 405B the bill implies
#   34.5%, and the paper reports 38 to 43% while stepping. Its "higher than 90%" effective training
#   time explains a part: 0.40 x 0.90 = 36%.
# - **Those of Llama 3.1 8B and 70B don't.** The card doesn't say which stages and reruns it counts.
#   When your estimate is off by three, find out what the other number includes before you blame the
#   formula.
#
# In dollars: [DeepSeek-V3](https://arxiv.org/abs/2412.19437) reports 2.788M H800 hours and assumes
# 2 dollars an hour, so 5.576 million dollars. It's a mixture of experts, so N is its 37B active
# parameters, not all 671B.

# %%
PARAMETERS, TOKENS, GPUS = 70e9, 1.4e12, 1024  # change these
MFU, GOODPUT, USD_PER_HOUR = 0.4, 0.9, 2.0  # a guess, a guess, and DeepSeek's assumption
flops = numbers.train_flops(PARAMETERS, TOKENS)
hours = numbers.gpu_hours(flops, H100.peak_flop_per_s, MFU, GOODPUT)
days, usd = numbers.train_days(hours, GPUS), numbers.cost_usd(hours, USD_PER_HOUR)
print(f"{flops:.1e} FLOPs, {hours / 1e3:.0f}K H100 hours, {days:.0f} days, ${usd / 1e6:.1f}M")

# %% [markdown]
# ### How many tokens, at what batch?
#
# **Tokens.** For a given training budget, [Chinchilla](https://arxiv.org/abs/2203.15556) found an
# optimum of about 20 tokens per parameter (table 3). Then 6ND = 120 N², and N is the root of FLOPs
# / 120. That ignores inference. For a model that serves a lot of traffic, train a smaller one for
# longer: Llama 3.1 405B saw 39 tokens per parameter, and the 8B about 1,900.
#
# **Batch.** Steps are tokens over tokens per batch. A larger batch needs fewer steps, up to the
# [critical batch size](https://arxiv.org/abs/1812.06162). Beyond it you pay for more GPUs and gain
# little.
#
# **Learning rate.** If the batch grows k times, scale SGD's rate by k, with warmup
# ([Goyal et al.](https://arxiv.org/abs/1706.02677)), and Adam's by the square root of k
# ([Malladi et al.](https://arxiv.org/abs/2205.10330)). Neither rule holds for every k, so check it
# with a short run.

# %% [markdown]
# ## In the head
#
# Round first, then multiply.
#
# - **A day is 1e5 seconds** (86,400). A year is 3e7.
# - **An H100 is 4e14**: 1e15 at 40%. An A100 is 1.2e14: 3e14 at 40%.
# - **An H100 day is 4e19** FLOPs. A thousand H100s do 4e22 a day, and GPT-3 in eight days.
# - **6 x 7 is 40.** One digit is enough.
# - **Say the exponents.** "Ten to the 22, over ten to the 16, is ten to the six seconds."
#
# How wrong is that? Compare with the formula at 40%:

# %%
def h100_days_in_the_head(num_parameters, num_tokens, num_gpus):
    return 6 * num_parameters * num_tokens / (4e14 * num_gpus) / 1e5


worst = 0.0
for size, tokens, gpus in ((7e9, 1e12, 64), (70e9, 1.4e12, 1024), (405e9, 15.6e12, 16384)):
    exact = numbers.gpu_hours(numbers.train_flops(size, tokens), H100.peak_flop_per_s, 0.4)
    exact_days = numbers.train_days(exact, gpus)
    rough_days = h100_days_in_the_head(size, tokens, gpus)
    worst = max(worst, abs(rough_days / exact_days - 1))
    print(f"{size / 1e9:4.0f}B: {rough_days:5.1f} days in the head, {exact_days:5.1f} exactly")
print(f"off by at most {worst:.0%}, and MFU is a larger guess than that")

# %% [markdown]
# ## Five problems
#
# Cover the answer, say yours out loud, then compare. Each cell is the calculator's answer.
#
# **1. You have 64 H100s. How long does a 7B model take on 1T tokens?**
#
# > "Six times seven is about 40, so 4e22 FLOPs. Sixty-four cards at 4e14 is 2.5e16 a second. That's
# > 1.6 million seconds: 18 days on paper, and I'd say three weeks with failures. About 28 thousand
# > GPU hours, so 56 thousand dollars at two dollars. The guess is 40% MFU. I'd measure it in the
# > first hour."

# %%
hours_1 = numbers.gpu_hours(numbers.train_flops(7e9, 1e12), H100.peak_flop_per_s, mfu=0.4)
days_1 = numbers.train_days(hours_1, 64)
usd_1 = numbers.cost_usd(hours_1, usd_per_gpu_hour=2)
print(f"{days_1:.1f} days, {hours_1 / 1e3:.0f}K hours, ${usd_1 / 1e3:.0f}K")

# %% [markdown]
# **2. Fine-tune all weights of a 70B model on 80 GB cards. How many?**
#
# > "Sixteen bytes times 70 billion is 1,120 gigabytes, so 14 cards for the state alone. With 16,
# > each has 70 gigabytes of state and 10 left for activations and buffers. That's tight, so I'd
# > take 32 with full sharding. If I only had 8, I'd offload the optimizer or train adapters
# > instead, and say what each costs."

# %%
for gpus in (8, 16, 32, 64):
    gb = numbers.memory_per_gpu_bytes(70e9, gpus, "zero3") / 1e9
    print(f"{gpus:3} GPUs: {gb:5.1f} GB of state each, {80 - gb:5.1f} GB left")

# %% [markdown]
# **3. A 3B model in DDP on 16 servers of 8 H100s, 8K tokens per GPU. Is the all-reduce a problem?**
#
# > "Gradients in bf16 are 6 gigabytes, so each server moves 12 at 400 a second: 30 milliseconds.
# > Backward is four times 3 billion times 8K: 1e14 FLOPs, a quarter of a second. It hides eight
# > times over. At a thousand tokens per GPU it barely would. So I'd watch the exposed part, not the
# > total."

# %%
sync_s = numbers.allreduce_seconds(2 * 3e9, 128, 400e9)
for tokens in (8192, 1024):
    backward_s = 4 * 3e9 * tokens / (0.4 * H100.peak_flop_per_s)
    compute_s = 1.5 * backward_s  # forward is half of it
    steps_s = [numbers.step_seconds(compute_s, sync_s, overlapped) for overlapped in (0, 0.9)]
    print(f"{tokens} tokens: all-reduce {sync_s:.3f} s, backward {backward_s:.3f} s")
    print(f"  step {steps_s[0]:.3f} s, or {steps_s[1]:.3f} s with 90% of the sync overlapped")

# %% [markdown]
# **4. A 7B run does 3,000 tokens per second on each H100. Good?**
#
# > "Six times seven billion times three thousand is 1.3e14, against 1e15. That's 13%, and published
# > runs get 35 to 45. So two thirds of the time goes somewhere else. Before I touch anything, I'd
# > split the step into data wait, compute and exposed communication, and check that a micro-batch
# > has well over 300 tokens."

# %%
mfu_4 = numbers.mfu(3000, numbers.flops_per_token(7e9), 1, H100.peak_flop_per_s)
print(f"MFU {mfu_4:.1%}; at 40% it would be {3000 * 0.4 / mfu_4:,.0f} tokens per second")

# %% [markdown]
# **5. You get a million dollars of H100 time. What do you train?**
#
# > "At two dollars, that's half a million hours. Times 3,600 times 4e14 is 7e23 FLOPs, and with 90%
# > goodput about 6.5e23. Over 120 and the root: 73 billion parameters, so 1.5 trillion tokens.
# > That's compute-optimal. If we'll serve it a lot, I'd rather train 20B on 5 trillion. And I'd
# > hold money back for the runs that fail."

# %%
budget_flops = 1e6 / 2 * 3600 * 0.4 * 0.9 * H100.peak_flop_per_s
plan = numbers.compute_optimal(budget_flops)
tokens_for_20b = budget_flops / (6 * 20e9)
print(f"{plan.num_parameters / 1e9:.0f}B on {plan.num_tokens / 1e12:.1f}T tokens")
print(f"the same FLOPs train 20B on {tokens_for_20b / 1e12:.1f}T tokens")

# %% [markdown]
# ## Say it in 60 seconds
#
# > "I start from N, D and the cluster. Six N D is the FLOPs, and an H100 gives me about 4e14 a
# > second at 40% MFU. With goodput on top, I have days and dollars. Memory is sixteen bytes a
# > parameter with Adam, divided by sharding, plus about 34 s b d bytes of activations per layer
# > with fused attention. If it doesn't fit, I shard, then shrink the micro-batch, then recompute,
# > which turns six N into eight. The all-reduce moves twice the gradient bytes at any number of
# > ranks, and hides behind backward from about a thousand tokens per GPU. Below 300 FLOPs per byte,
# > an H100 waits for memory. The weakest input is MFU, so I measure it in the first hour, and
# > afterwards I compare the estimate with the bill."

# %% [markdown]
# ## Three questions
#
# **"Your estimate said 17 days and the run took 25. Where did you go wrong?"**
#
# - *Weak:* "Estimates are always off. The cluster was slower than expected."
# - *Strong:* "The FLOPs are right within a few percent, so it's MFU or goodput, and I can tell them
#   apart. I take MFU from steady-state tokens per second. If that's 40%, the eight days went to
#   restarts, lost steps and saves. If it's 27%, the step itself is slow, and I'd split it by phase.
#   Those have different fixes."
# - *What would prove me wrong:* steady-state MFU times goodput, against the MFU that the bill
#   implies. If the two don't match, the time went somewhere that neither of them counts.
#
# **"We recompute activations and our GPUs show 56% utilization. Are we better than a team at
# 54%?"**
#
# - *Weak:* "Yes, our hardware is busier."
# - *Strong:* "Only if both numbers count the same FLOPs. With full recomputation, 56% of hardware
#   FLOPs is 42% of model FLOPs, because six of every eight are progress. I compare MFU, or tokens
#   per second per GPU on the same model. I wouldn't use what nvidia-smi calls utilization: that's
#   the
#   [share of time in which any kernel runs](https://docs.pytorch.org/docs/stable/generated/torch.cuda.utilization.html)."
# - *What would prove me wrong:* tokens per second per GPU on the same model and sequence length,
#   with recomputation on and off.
#
# **"We double the GPUs at a fixed global batch. What happens to step time?"**
#
# - *Weak:* "It halves, because each GPU has half of the work."
# - *Strong:* "Compute halves and the all-reduce doesn't: it's twice the gradient bytes over the
#   bandwidth at any number of ranks. So at some point backward no longer hides it. At 400 gigabytes
#   a second that's around a thousand tokens per GPU. Past that, doubling the GPUs mostly doubles
#   the bill."
# - *What would prove me wrong:* exposed communication per step at both sizes. If it's zero at the
#   larger one, I have more room than I think.

# %% [markdown]
# ## Practice it
#
# - Drills: [instrument_performance](../drills/040_instrument_performance.ipynb) measures the phases
#   that MFU hides, [cell_metrics](../drills/170_cell_metrics.ipynb) reports them,
#   [cell_config](../drills/110_cell_config.ipynb) has the batch arithmetic, and
#   [lift_to_distributed](../drills/020_lift_to_distributed.ipynb) sums gradients by hand.
# - The code: section 7 of the [walkthrough](../01_walkthrough.ipynb) shows a real step by phase.
# - The calculator: `from rehearsal.handbook import numbers`, then `help(numbers)`.
# - The cards: `ask(topic="numbers")` in [03_deck](../03_deck.ipynb).
