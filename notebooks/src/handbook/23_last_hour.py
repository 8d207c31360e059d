# %% [markdown]
# # 23. The last hour
#
# {{badge}}
#
# One sheet for the hour before. Read it aloud once, put it away, and say your opening minute
# from memory. In the book, this page prints on a single sheet of paper.

# %% [markdown]
# ## The sheet
#
# ### Your opening minute
#
# > "I'll start with the smallest correct trainer: one process per GPU, data parallel. I'll make the
# > data partition and the resume explicit, because those fail silently. Orchestration, storage and
# > metrics stay interfaces in the notebook, and I'll say what they'd be in production. Once it
# > survives a kill, I'll measure, and only then add FSDP or anything else."
#
# ### Ask first
#
# Does the model fit on one GPU? How many GPUs, how many nodes? How large is the data, and does it
# stream? How often do machines fail or get preempted? Must a resume be exact? Who reads the metrics?
#
# ### 45 minutes
#
# | minute | you |
# |---|---|
# | 0 to 5 | ask, sketch, say what stays out |
# | 5 to 20 | config, data, model, step on one process |
# | 20 to 30 | process group, sampler, DDP, rank-aware logs |
# | 30 to 38 | checkpoint, resume, kill it |
# | 38 to 45 | phases, tradeoffs, what you'd do next |
#
# ### Five invariants
#
# 1. Rank, local rank and device are fixed before the first collective.
# 2. Each epoch's samples are dealt exactly once: cut the global batch first, then the ranks.
# 3. The optimizer steps in lock-step with the model, on every rank.
# 4. A resume continues after the last sample that the optimizer stepped on.
# 5. Telemetry tells input-bound, compute-bound and synchronization-bound apart.
#
# ### The batch
#
# Global batch = micro-batch × accumulation × world size. DDP averages over ranks, so a rank's loss
# is its sum × world size / samples in the step. Accumulate under `no_sync`, unscale, clip, step.
#
# ### A checkpoint
#
# Model, optimizer, schedule, scaler, position, RNG of each rank, identity. All ranks reach the same
# step; write under a temporary name, hash, fsync, then the manifest, then one rename. Restore the
# newest that verifies. Then check: step, learning rate, moments, scale, next sample, loss for a few
# steps.
#
# ### Restart scope
#
# | fault | restart | you lose |
# |---|---|---|
# | one rank raises | all ranks, same nodes | steps since the save |
# | node lost | all ranks, a spare node | the same, plus scheduling |
# | storage stalls | nothing: retry, then fail | time |
# | communicator poisoned | all ranks, new group | steps since the save |
#
# ### Slow
#
# | you see | it's | first move |
# |---|---|---|
# | idle before forward | input | workers, prefetch, cache |
# | long gradient sync on all ranks but one | a straggler | look at that one |
# | long sync on all ranks | network | buckets, overlap, topology |
# | spikes at a fixed interval | checkpoint | asynchronous save |
# | out of memory after scaling | activations or states | smaller micro-batch, checkpointing, FSDP |
#
# ### When DDP isn't enough
#
# States don't fit: FSDP2. One layer doesn't fit or is too slow: tensor parallel, inside a node. Too
# many layers: pipeline, bubble (p-1)/(m+p-1). Long sequences: context parallel. Add an axis only
# for a bottleneck that you measured.
#
# ### Numbers
#
# Training FLOPs ≈ 6 × parameters × tokens. Adam in mixed precision: 16 bytes per parameter. Ring
# all-reduce: 2(N-1)/N × bytes per rank. H100: 989 TFLOP/s dense bf16, 80 GB, 3.35 TB/s; NVLink
# 900 GB/s; NDR 400 Gb/s. Good MFU: 35 to 45%. Job MTBF = node MTBF / nodes. Save every
# √(2 × save time × MTBF). A day is about 10⁵ s.
#
# ### Close with
#
# > "This is the smallest trainer that I'd trust. It proves what it trained on, it survives a kill,
# > and its boundaries are where production will need them. From here I'd grow on evidence: FSDP when
# > memory says so, asynchronous or sharded checkpoints when I/O does, topology when the network does."

# %% [markdown]
# ## The arithmetic on the sheet, checked
#
# Don't trust a cheat sheet, yours included. This cell computes what the sheet states, from
# definitions. Change a number and see what moves.

# %% collapsed=true
# {{setup torch numpy matplotlib cloudpickle platformdirs fsrs rehearsal}}

# %%
import math

parameters, tokens, gpus = 7e9, 2e12, 512
flops_per_s, mfu = 989e12, 0.40

train_flops = 6 * parameters * tokens
days = train_flops / (gpus * flops_per_s * mfu) / 86400
# bf16 weights and gradients, fp32 master weights and Adam's two moments
bytes_per_parameter = 2 + 2 + 4 + 4 + 4
state_gb = parameters * bytes_per_parameter / 1e9

gradient_bytes, bus_bytes_per_s = 2 * parameters, 50e9  # 400 Gb/s is 50 GB/s
ring_s = 2 * (gpus - 1) / gpus * gradient_bytes / bus_bytes_per_s

# Published for a research cluster: 7.9 h with 128 nodes. Chapter 18 has the source.
node_mtbf_h, nodes, save_s = 7.9 * 128, gpus / 8, 60
job_mtbf_s = node_mtbf_h / nodes * 3600
save_every_min = math.sqrt(2 * save_s * job_mtbf_s) / 60

print(f"{train_flops:.1e} FLOPs take {days:.1f} days on {gpus} GPUs at {mfu:.0%} MFU")
print(f"{state_gb:.0f} GB of states: more than one 80 GB GPU has, so shard them")
print(f"an all-reduce of the gradients over 400 Gb/s links: {ring_s:.2f} s if nothing overlaps")
mtbf_h = job_mtbf_s / 3600
print(f"a failure every {mtbf_h:.0f} h, {save_s} s per save: save every {save_every_min:.0f} min")

# %% [markdown]
# ## The official pages, and the one thing to take from each
#
# | page | take this |
# |---|---|
# | [DistributedDataParallel](https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html) | it averages gradients and never shards inputs; `no_sync` skips the sync for accumulation |
# | [DDP notes](https://pytorch.org/docs/stable/notes/ddp.html) | buckets are reduced while the backward pass still runs, in the reverse of the order of the parameters |
# | [torchrun](https://pytorch.org/docs/stable/elastic/run.html) | it sets `RANK`, `LOCAL_RANK` and `WORLD_SIZE` in the environment, and restarts *all* workers when one fails |
# | [torch.distributed](https://pytorch.org/docs/stable/distributed.html) | every rank calls the same collectives in the same order, or the job hangs until the timeout |
# | [torch.utils.data](https://pytorch.org/docs/stable/data.html) | `DistributedSampler` pads, needs `set_epoch`, and has no position; iterable datasets shard themselves |
# | [fully_shard](https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html) | shard each block, then the root, and make the optimizer afterward |
# | [Distributed Checkpoint](https://pytorch.org/docs/stable/distributed.checkpoint.html) | it saves and loads in parallel, and reshards to a different number of ranks |
# | [AMP](https://pytorch.org/docs/stable/amp.html) | autocast covers forward and loss; unscale before you clip; bf16 needs no scaler |
# | [Activation checkpointing](https://pytorch.org/docs/stable/checkpoint.html) | it trades compute for memory; pass `use_reentrant=False` |
# | [Reproducibility](https://pytorch.org/docs/stable/notes/randomness.html) | identical results aren't promised across releases, platforms or devices, even with the same seed |
