# %% [markdown]
# # 22. Hard questions
#
# {{badge}}
#
# > "Let me say what I'd do, what it costs, and which number would tell me that I'm wrong. Then
# > push back, because that's where we'll find out whether I believe it."
#
# *Thirty-five minutes to read, two evenings to say. Each question has an answer that takes about 40
# seconds aloud, the pushback that usually follows, and a reply.*
#
# **How to use it.** Read the question and answer aloud before you unfold anything. Then compare:
# did you define the terms, name a cost, and say which metric would prove you wrong? Say the
# pushback in your interviewer's voice, and reply before you look. The wording is yours. What you
# should steal is the order: a definition, a decision, its price, its evidence.
#
# The questions come in four groups: correctness, performance, reliability, and judgment. Below
# each group, cells run what the answers claim, if no other chapter does.

# %% collapsed=true
# {{setup torch numpy matplotlib cloudpickle platformdirs fsrs rehearsal}}

# %% collapsed=true
#@title Imports
import hashlib
import re
import time

import numpy as np
import torch
import torch.distributed as dist

from rehearsal import warm_up
from rehearsal.evidence.cadence import Costs, best_interval, first_order_goodput
from rehearsal.evidence.pictures import BLUE, INK, ORANGE, new_figure, on_any_theme
from rehearsal.handbook.hard_questions import draw
from rehearsal.handbook.on_ranks import on_ranks, watch_ranks

warm_up()  # starts the server that forks the ranks, while you read

# %% [markdown]
# ## Draw one
#
# Run the cell, and answer what comes. It shows each question once before any comes again.
# `draw("reliability")` stays within a group.

# %%
draw()

# %% [markdown]
# ## Correctness
#
# They want to hear that a loss curve proves nothing, and what does.

# %% [markdown]
# ### How do you know that a resume is correct?
#
# <details><summary>The answer</summary>
#
# > "First I'd define correct: the resumed run continues the same run. Same samples in the same
# > order, same learning rate, same optimizer state. Then I name what must survive: model,
# > optimizer, scaler, each rank's RNG, the step, and the run's identity. On restore I validate: the
# > step moves forward, the learning rate doesn't jump, the optimizer has its moments, and the loss
# > carries on for some steps. But continuity only shows that nothing obvious broke. For proof, I
# > kill a run and compare it with one that nobody killed. On the same topology I expect the same
# > bits. On another, I expect the same samples and the same loss up to rounding."
#
# </details>
#
# **"In production there's no uninterrupted run to compare with, and the pipeline is stochastic."**
#
# <details><summary>The reply</summary>
#
# > "Right, so production gets evidence instead of a twin. Each rank logs the sample IDs of every
# > step, or a hash of them, and an audit proves that each epoch is a permutation. Exact replay
# > needs the RNG streams, the sample order, the same kernels and the same topology. So I'd promise
# > it only in a test environment, where a job gets killed every night. In production I promise the
# > same samples, and the rest statistically."
#
# </details>
#
# *Shown in:* [the four-step answer](12_data_correctness.ipynb); [a resume without each piece of state](13_checkpointing.ipynb).

# %% [markdown]
# ### What's the most dangerous silent failure?
#
# <details><summary>The answer</summary>
#
# > "Duplicated or omitted samples. Nothing crashes, the gradients are finite, and the loss falls.
# > When ranks share samples, it even falls faster per epoch. A dead node gets noticed in minutes.
# > This gets noticed at evaluation, or never. So I make the partition a pure function of seed and
# > epoch, count progress globally, and write down which samples each step trained on. Then a check
# > compares that with the dataset, epoch by epoch. A close second is stale optimizer or scaler
# > state after a resume, which is just as quiet."
#
# </details>
#
# **"I'd see that on the loss curve."**
#
# <details><summary>The reply</summary>
#
# > "I doubt it. I've broken a small trainer in nine ways, and every one of those runs learned. The
# > curve has no reference, because nobody knows what this run should look like. A count has one:
# > the epoch has n samples, and each must appear exactly once. That's a test with a right answer.
# > I'd alert on samples missed plus samples repeated, per epoch. It has to be zero."
#
# </details>
#
# *Shown in:* [ten runs side by side, nine of them broken](12_data_correctness.ipynb).

# %% [markdown]
# ### What state must survive a restart?
#
# <details><summary>The answer</summary>
#
# > "Everything that the next step reads. Model weights, optimizer moments, the fp16 scaler if there
# > is one, the scheduler, and the RNG state of every rank, not only rank 0's. The data position, as
# > global steps or global samples. And the run's identity: config digest, dataset version, seed,
# > global batch and code version, so that a restart can refuse what doesn't match. Then I try to
# > shrink that list. If the learning rate and the order are functions of the step, they can't be
# > forgotten. Dropout seeds can work the same way."
#
# </details>
#
# **"Weights and the step are enough. Adam's moments warm up again in a few hundred steps."**
#
# <details><summary>The reply</summary>
#
# > "They do. It's the first of those steps that hurts. With empty moments, Adam's bias correction
# > moves every weight by about the learning rate, whatever its gradient was. In a small run I
# > measured, that first update was more than half again as large as it should be, and the loss
# > didn't show it. Moments cost eight bytes per parameter and save, which is cheap insurance. To
# > see whether I'm right, watch the update norm across restarts."
#
# </details>
#
# *Shown in:* [the update after a resume without moments](12_data_correctness.ipynb); [each piece of state taken away in turn](13_checkpointing.ipynb).

# %% [markdown]
# ### Why does sampler state matter? It's only an index.
#
# <details><summary>The answer</summary>
#
# > "Because nothing else notices when it's wrong. Without a position, a restart begins the epoch
# > again and repeats samples, or begins the next one and skips some. If the position counts what
# > the loader fetched, a restart skips whatever the workers had prefetched. So I don't save the
# > sampler at all. I save one integer, the completed optimizer steps, and derive the epoch, the
# > order and each rank's share from it. It moves after the optimizer has stepped, so no prefetching
# > worker can move it."
#
# </details>
#
# **"My dataset is a stream. There's nothing to index."**
#
# <details><summary>The reply</summary>
#
# > "Then the position is a cursor: which shard, and how far into it, for each reader. I need two
# > things from the data: an order of shards that's fixed by seed and epoch, and a reader that can
# > seek, or re-read a shard and discard. The shuffle buffer is the catch, because its content is
# > state. I'd save the IDs in it, or drain it at each checkpoint. And I'd measure the time from
# > restart to first batch, because discarding can take longer than the restart."
#
# </details>
#
# *Shown in:* [fetched is more than trained on](12_data_correctness.ipynb); [cursors for streams](20_data_at_scale.ipynb).

# %% [markdown]
# ### Replayed or skipped samples: which is worse, and how do you prove that you have neither?
#
# <details><summary>The answer</summary>
#
# > "I'd say skips are worse. A replay gives a few samples some extra weight. A skip can take a part
# > of the data out of the training for good, and which part depends on when the machines fail. To
# > prove that I have neither, every rank records the samples of each step, after the optimizer has
# > stepped. An audit takes the attempts whose work survived, and checks that each epoch is a
# > permutation: nothing missing, nothing twice. It derives the expected order from the plan, and
# > never calls the trainer's own sampler."
#
# </details>
#
# **"That's a lot of logging for a trillion tokens."**
#
# <details><summary>The reply</summary>
#
# > "It needn't be IDs. The order is a function, so a line needs the step, a count, and a hash of
# > the IDs that really went through the model. That's tens of bytes per step and rank. A nightly
# > job recomputes the order and compares. If that's still too much, I'd audit one rank in a
# > hundred. What I wouldn't trust is the sampler's own counter, because that's the thing under
# > test."
#
# </details>
#
# *Shown in:* [maps of both](12_data_correctness.ipynb); [the audit of a killed run](../01_walkthrough.ipynb).

# %% [markdown]
# ### The world size changes on resume. What breaks?
#
# <details><summary>The answer</summary>
#
# > "By default, five things. The global batch, if the batch is fixed per rank. With it the
# > optimizer's dynamics, because learning rate, warmup and schedule all count in steps. The
# > partition, if the sampler counts per rank. Sharded optimizer state, which has to be mapped onto
# > the new ranks. And the baselines on my dashboards. So my default is to restart on the same
# > topology. If we need elasticity, I design for it: pin the global batch, let accumulation absorb
# > the change, keep the position global, and save in a format that can reshard."
#
# </details>
#
# **"We lost one node of 64, and there's no spare. Do you really wait?"**
#
# <details><summary>The reply</summary>
#
# > "No. Waiting idles 63 nodes to protect an invariant that I can keep without the last one. With
# > the batch pinned, 63 nodes train on the same samples in the same order. Each step takes about 2%
# > longer, and sums round differently. What I won't accept is a batch that drifts silently. The log
# > says that the world size changed, and I compare the loss by samples seen, not by steps."
#
# </details>
#
# *Shown in:* [a resume on three ranks, and one that doubles the batch](12_data_correctness.ipynb); [a checkpoint saved by two ranks, resumed by three](17_parallelism.ipynb).

# %% [markdown]
# ### In production, how would you notice that two ranks read the same shard?
#
# <details><summary>The answer</summary>
#
# > "In three layers. Before training: the assignment is a pure function, so a unit test checks that
# > it's a partition at several world sizes. During training: each rank keeps a running fingerprint
# > of the samples it trained on, a sum of hashes, which doesn't depend on the order. Once an epoch,
# > the ranks all-reduce a count and that sum, and compare both with the manifest's. Duplicates and
# > gaps both show, for sixteen bytes per rank. And when it fires, each rank's log of opened shards
# > says which two readers overlap."
#
# </details>
#
# **"Why not simply compare the counts?"**
#
# <details><summary>The reply</summary>
#
# > "Because in the worst case the count is right. If one reader opens another's shard, one shard is
# > read twice and one never, and with equal shards the totals match. A plain sum of IDs can fool
# > you as well: one plus four is two plus three. A sum of hashes doesn't collide in practice. I've
# > run that case: the count passes, and the fingerprint fails."
#
# </details>
#
# *Shown in:* the fingerprint catches what the count misses, in the cell below these questions.

# %% [markdown]
# ### Two replicas silently diverge. How would you find out?
#
# <details><summary>The answer</summary>
#
# > "DDP keeps replicas equal by induction: equal start, equal gradients, equal updates. Break one
# > link, and nothing complains. So every few hundred steps each rank hashes its parameters, and we
# > all-gather the hashes: eight bytes per rank. I'd hash the optimizer's state too, because that's
# > where a bad restore hides. DDP broadcasts rank 0's weights when it's constructed, and never its
# > moments. On a mismatch I stop before the next save, name the first bad step and the odd rank
# > out, and go back to the last checkpoint at which all hashes agreed."
#
# </details>
#
# **"Hashing billions of parameters isn't free."**
#
# <details><summary>The reply</summary>
#
# > "A cryptographic hash isn't. Summing the raw bits as integers is one pass over memory. Seven
# > billion bf16 parameters are 14 gigabytes, and at about 3 terabytes a second that's 5
# > milliseconds, every few hundred steps. With three or more replicas, a majority names the odd
# > one. With two, I only know that they differ, so I'd replay the step on a third machine. If the
# > check never fires in a year, I'd keep it: it's the only thing watching."
#
# </details>
#
# *Shown in:* [DDP hides a bad restore](../01_walkthrough.ipynb); [divergence found by hashing](16_observability.ipynb).

# %% [markdown]
# ### The job resumes, but the metrics look odd. What do you check?
#
# <details><summary>The answer</summary>
#
# > "Three things before I touch the model. Did batch semantics change: world size, accumulation,
# > micro-batch? Is the learning rate continuous, as a function of samples seen? Did the sampler
# > replay or skip? Those are a config diff and two log lines. Then the state: does the optimizer
# > have moments, did the scaler come back, does each rank have its own RNG? I'd overlay the steps
# > before the save with the ones after it, and look at learning rate, gradient norm and update
# > norm. Whatever jumps first names the missing piece."
#
# </details>
#
# **"All of that matches, and the loss is still 2% higher."**
#
# <details><summary>The reply</summary>
#
# > "Then I experiment instead of arguing. I resume from the same checkpoint twice. If both runs
# > agree, the difference is in the checkpoint, or in what it lacks. If they differ, it's
# > randomness, and I want to know how much is normal. Then I resume from the checkpoint before, and
# > compare at the step where I have both. I'd also check the evaluation. If it's sharded by world
# > size with padding, 2% can be the metric and not the model."
#
# </details>
#
# *Shown in:* [a drill that looks like this](../drills/230_resumed_run_differs.ipynb); [the evaluation that jumps](../drills/320_evaluation_jumps_after_a_restart.ipynb).

# %% [markdown]
# **What a fingerprint catches.** Four ranks train on eight shards of 100 samples. In the second
# epoch, a reader opens shard 0 where it should open shard 1. In the third, shards 0 and 3 are read
# twice, and 1 and 2 never. The count is right each time. A plain sum of the IDs catches one of the
# two mistakes. A sum of hashes catches both.

# %%
EPOCHS = {  # which shards each of the four ranks reads
    "right": [[0, 4], [1, 5], [2, 6], [3, 7]],
    "0 instead of 1": [[0, 4], [0, 5], [2, 6], [3, 7]],
    "0 and 3 for 1 and 2": [[0, 4], [0, 5], [3, 6], [3, 7]],
}


def fingerprint(samples):
    """A sum of hashes, modulo 2**56: the order doesn't matter, nor who adds what."""
    hashes = (hashlib.sha256(str(sample).encode()).digest()[:7] for sample in samples)
    return sum(map(int.from_bytes, hashes)) % 2**56


def audit_epochs():
    """What the ranks add up over each epoch: count, sum of IDs, fingerprint."""
    totals = []
    for shards in EPOCHS.values():
        mine = [100 * shard + at for shard in shards[dist.get_rank()] for at in range(100)]
        total = torch.tensor([len(mine), sum(mine), fingerprint(mine)])
        dist.all_reduce(total)
        totals.append([total[0].item(), total[1].item(), total[2].item() % 2**56])
    return totals


wanted = [800, sum(range(800)), fingerprint(range(800))]
totals = on_ranks(audit_epochs, 4)[0]
caught = {name: [a != b for a, b in zip(t, wanted)] for name, t in zip(EPOCHS, totals)}
for name, found in caught.items():
    words = ["WRONG" if is_off else "right" for is_off in found]
    print(f"{name:20} count {words[0]}, sum of IDs {words[1]}, fingerprint {words[2]}")

# %% [markdown]
# ## Performance
#
# They want to hear the name of the phase before the name of the fix.

# %% [markdown]
# ### The loss falls, but throughput is poor. Where do you start?
#
# <details><summary>The answer</summary>
#
# > "I decompose the step before I change anything: data wait, host-to-device copy, forward,
# > backward, exposed gradient sync, optimizer, checkpoint, and the rest. Per rank, with median, p95
# > and max. Then one question: are we input-bound, compute-bound, communication-bound, or stalled
# > on checkpoints and artifacts? Waiting before the forward pass points to the loader. A long tail
# > after the last gradient points to the network, or to a straggler. If all ranks look the same and
# > compute dominates, I profile kernels. I tune the phase that dominates, and then I measure
# > again."
#
# </details>
#
# **"GPU utilization is 98%, so it can't be the loader or the network."**
#
# <details><summary>The reply</summary>
#
# > "Utilization says that some kernel was running, not that it did useful work. A NCCL kernel that
# > spins while it waits for a peer counts as busy. I'd look at MFU: the model's FLOPs per second
# > over the hardware's peak. If utilization is high and MFU is low, the time goes into
# > communication, recomputation or small kernels. The phase breakdown tells me which."
#
# </details>
#
# *Shown in:* [each bottleneck, started and watched](14_performance.ipynb); [MFU](15_numbers.ipynb).

# %% [markdown]
# ### Which phase scales badly first, which has the long tail, and which is easiest to show in a notebook?
#
# <details><summary>The answer</summary>
#
# > "Gradient sync usually scales badly first. At a fixed global batch, each rank's compute shrinks
# > as I add ranks, and the bytes of its all-reduce don't. On shared storage it can be the loader
# > instead, because every rank adds readers to the same disks. The long tail is in checkpoints
# > first, and then in the loader. Those events are rare, so I look at the max, or at the steps that
# > saved. Easiest to show in a notebook are the loader, forward and backward: a sleep in the right
# > place makes each of them grow."
#
# </details>
#
# **"And gradient sync? Can't you show that on a CPU?"**
#
# <details><summary>The reply</summary>
#
# > "Its semantics, yes. Two gloo processes do a real all-reduce, so I can slow one rank down and
# > watch the wait appear on the other. Its speed, no: bandwidth, overlap and topology need the real
# > network. So I'd say which half the notebook supports, and estimate the rest. Ring all-reduce
# > moves two times W minus one over W times the gradient's bytes, over the link's bandwidth."
#
# </details>
#
# *Shown in:* [efficiency on 1 to 4 ranks, and what it can't say](14_performance.ipynb); [the wait shows up on the fast rank](../01_walkthrough.ipynb).

# %% [markdown]
# ### All-reduce dominates the step. What are your five moves, in order?
#
# <details><summary>The answer</summary>
#
# > "First I make sure that it's the network. If one rank is late, everybody else's wait looks like
# > all-reduce, and that's a straggler. Then, cheapest first. One: sync once per step, with no_sync
# > under accumulation. Two: overlap, by checking bucket sizes and what backward really hides.
# > Three: fewer bytes, with bf16 gradients instead of fp32. Four: placement, so that NVLink carries
# > what it can, and rails and topology are right. Five: change the split, with fewer GPUs, a larger
# > batch, or sharding inside the node. Each has the same metric: exposed sync over step time."
#
# </details>
#
# **"Just accumulate more, and the sync gets cheap."**
#
# <details><summary>The reply</summary>
#
# > "If we sync after every micro-batch today, no_sync is free, and I'd take it. Beyond that, less
# > sync per sample means a larger global batch. Then it's an optimization question, because past
# > some batch size, more samples per step stop paying. I'd run both for the same number of samples
# > and compare the loss. If the larger batch needs more tokens than it saves in time, I'd refuse
# > it."
#
# </details>
#
# *Shown in:* [one all-reduce with no_sync, four without](../01_walkthrough.ipynb); [what 1,024 GPUs do to the sync](10_interview_map.ipynb).

# %% [markdown]
# ### It's input-bound at 64 nodes, and it wasn't at 8. What now?
#
# <details><summary>The answer</summary>
#
# > "Something shared has saturated: storage bandwidth, metadata operations, or CPU cores for
# > decoding. I'd look at data wait per rank. If all ranks wait, it's shared. If a few do, it's
# > placement or skew. Then arithmetic: samples per second times bytes per sample, against what the
# > storage delivers. The fixes in order: large sequential reads from packed shards, a local cache
# > on NVMe, more prefetch, decoding offline. Only then do I ask for more storage. And I'd check for
# > double sharding, where every loader worker reads the whole stream."
#
# </details>
#
# **"Just add loader workers."**
#
# <details><summary>The reply</summary>
#
# > "Workers help if the limit is CPU or latency. If shared storage is the limit, they make it
# > worse: more random reads, more open files, more memory. The test takes five minutes. I replace
# > the dataset with one that returns a cached batch. If the wait disappears, it's reading or
# > decoding. Then I read without decoding, and I know which of the two. After that, adding workers
# > is a decision and not a hope."
#
# </details>
#
# *Shown in:* [starve the loader](14_performance.ipynb); [read size against shuffle quality](20_data_at_scale.ipynb).

# %% [markdown]
# ### Only rank 5 runs out of memory. Why?
#
# <details><summary>The answer</summary>
#
# > "Under DDP, all ranks have the same parameters and optimizer state, so I look for what isn't
# > equal. First the data: with variable lengths, memory follows the padded batch, which is samples
# > times the longest one. One long sample lands on one rank. Second, that GPU isn't alone: another
# > process, or tensors that other ranks put there before they selected their device. Third, uneven
# > shards, under FSDP or in a pipeline stage. I'd log peak allocated and reserved memory per rank,
# > next to the shape of the batch."
#
# </details>
#
# **"It's rank 5 after every restart."**
#
# <details><summary>The reply</summary>
#
# > "That fits the data, too: same seed, same step, same sample, same rank. So I check whether it
# > dies in the same step each time. If it does, it's that batch, and I cap tokens per batch instead
# > of samples. If it dies in different steps, it's the machine or the placement, and I swap the
# > node to see what the failure follows. And the other ranks aren't fine: they wait in the next
# > collective until something times out."
#
# </details>
#
# *Shown in:* padded tokens per rank, in the cell below these questions.

# %% [markdown]
# ### It's fast, except every 20 minutes. Where do you look?
#
# <details><summary>The answer</summary>
#
# > "At what else happens every 20 minutes. First the checkpoint: its cadence, the write, and
# > background uploads that compete for the network. Then evaluation, a noisy neighbor on the node,
# > storage maintenance. I break the slow steps down by phase and by rank. If all ranks are slow in
# > the checkpoint phase, it's the save. If one rank is slow and the rest wait in gradient sync,
# > it's that node. And I look at the max, or at the steps that saved. A spike that rare is
# > invisible in the p95."
#
# </details>
#
# **"We save once an hour, so it isn't the checkpoint."**
#
# <details><summary>The reply</summary>
#
# > "Then the period is my clue. Is it constant in minutes or in steps? I change the step time, with
# > a smaller batch for instance. If it stays at 20 minutes, it's a wall clock: cron, an upload, a
# > token that's refreshed. If it stays at the same number of steps, it's in our loop: evaluation, a
# > shard boundary, a cache that refills, garbage collection. Then I trace one slow step on the slow
# > rank."
#
# </details>
#
# *Shown in:* what p95 and max see, in the cell below these questions; [storage that stalls](14_performance.ipynb).

# %% [markdown]
# ### Checkpointing costs 15% of the time. What do you do?
#
# <details><summary>The answer</summary>
#
# > "First I ask which time: the stall of the loop, or the duration of the write? Only the stall
# > costs. Then there are three levers. Cadence: the interval should follow from the save's cost and
# > the failure rate, roughly the square root of twice the save time times the MTBF. Maybe we save
# > too often. Stall: snapshot into host memory, and write in the background, so the loop waits for
# > a copy and not for storage. Bytes: all ranks write their shards in parallel. I'd start with the
# > cadence, because that's a config change."
#
# </details>
#
# **"If you save less often, you lose more when we crash."**
#
# <details><summary>The reply</summary>
#
# > "Yes, and that tradeoff has an optimum. Say a save stalls us for 90 seconds and we fail every 12
# > hours. Saving every ten minutes costs about 15%. The best interval is about 46 minutes, and
# > saving plus lost work then cost 6 or 7%. If a background save stalls us for only 4 seconds, I'm
# > back at every ten minutes, for about 1.4%. If goodput doesn't move that way after the change, my
# > failure rate was wrong."
#
# </details>
#
# *Shown in:* these numbers, worked out, in the cell below these questions; [cadence from measured saves](13_checkpointing.ipynb).

# %% [markdown]
# ### One GPU is less utilized than the others. What does that tell you?
#
# <details><summary>The answer</summary>
#
# > "That it waits, so I ask for what. Does its rank get less work: uneven shards, shorter
# > sequences, a partial last batch? Does it wait for input: its node's disk, CPU affinity, a slower
# > PCIe path? I compare its phases with another rank's. Then the hardware: clocks, temperature,
# > power cap, ECC and link errors. The test that decides is a swap. If the problem follows the
# > rank, it's data or code. If it stays with the GPU, it's the machine, and I drain it."
#
# </details>
#
# **"The other seven are at 100%, so at least those are fine."**
#
# <details><summary>The reply</summary>
#
# > "They may be the ones that wait. In a synchronous job, the slow rank looks normal and the others
# > pay. While they wait inside a NCCL kernel, they show as fully utilized, so utilization can point
# > at the wrong GPU. I rank by exposed sync time instead. The rank with the shortest wait arrives
# > last, and that's the straggler."
#
# </details>
#
# *Shown in:* [a slow rank, seen from both sides](../01_walkthrough.ipynb); [stragglers](16_observability.ipynb).

# %% [markdown]
# **What p95 and max see.** A step takes one second, and every 20 minutes one step takes nine. Over
# a day, that's a stall of eight seconds in one step out of 1,200.

# %%
steps_s = np.ones(24 * 3600)
steps_s[1199::1200] = 9.0
p50, p95, p99 = np.percentile(steps_s, [50, 95, 99])
print(f"all steps: p50 {p50:.0f}, p95 {p95:.0f}, p99 {p99:.0f}, max {steps_s.max():.0f} s")
print(f"steps that saved: p50 {np.median(steps_s[1199::1200]):.0f} s")
print(f"the stalls cost {1 - 1 / steps_s.mean():.2%} of the time")

# %% [markdown]
# **Padded tokens per rank.** Eight ranks take 16 sequences each. The lengths are made up, with a
# long tail, as in most text and protein data. A rank's memory follows what it pads to: 16 times its
# longest sequence. The bars are the worst of 500 steps: one rank needs a multiple of what the others
# need. With a budget of tokens instead of samples, no rank can go over it. The price: ranks now have
# different numbers of samples, so the loss must be weighted by the global count
# ([chapter 12](12_data_correctness.ipynb)).

# %%
#@title Draws the lengths, and packs them by samples and by tokens
STEPS, RANKS, SAMPLES, BUDGET = 500, 8, 16, 16 * 1024
lengths = np.random.default_rng(0).lognormal(5.5, 0.8, (STEPS, RANKS, SAMPLES)).astype(int) + 1
lengths = lengths.clip(max=16_384)


def padded(batch):
    """What a batch takes: each sample is padded to the longest one."""
    return len(batch) * max(batch, default=0)


def within_budget(samples):
    """As many of the samples as fit; the rest go to the next step."""
    taken = []
    for length in samples:
        if padded([*taken, length]) > BUDGET:
            break
        taken.append(length)
    return taken


by_samples = np.array([[padded(batch) for batch in step] for step in lengths])
by_tokens = np.array([[padded(within_budget(batch)) for batch in step] for step in lengths])
worst = by_samples.max(1).argmax()
figure, axes = new_figure(3.2, "Padded tokens per rank", f"step {worst + 1} of {STEPS}")
for shift, packed, color, hatch, name in (
    (-0.2, by_samples, ORANGE, "///", "16 sequences per rank"),
    (0.2, by_tokens, BLUE, "", f"at most {BUDGET:,} tokens per rank"),
):
    style = {"color": color, "hatch": hatch, "edgecolor": "white", "label": name}
    axes.bar(np.arange(RANKS) + shift, packed[worst] / 1000, 0.38, **style)
axes.axhline(BUDGET / 1000, color=INK, linewidth=0.8, linestyle="--")
axes.set(xlabel="rank", ylabel="thousands of tokens", xticks=range(RANKS))
axes.legend(frameon=False)
on_any_theme(figure)

# %%
print(f"16 sequences: a median batch is {np.median(by_samples):,.0f} tokens, "
      f"the largest {by_samples.max():,}, on rank {by_samples.max(0).argmax()}")
print(f"token budget: the largest is {by_tokens.max():,}")

# %% [markdown]
# **The checkpoint that costs 15%.** A stall of 90 seconds, one failure in 12 hours, and the
# whiteboard formula: what saving costs, plus what a failure loses on average.

# %%
def cost(save_s, interval_s, mtbf_s=12 * 3600):
    """The shares of time that saving and lost work take."""
    return save_s / interval_s, interval_s / 2 / mtbf_s


for name, save_s, interval_s in (
    ("90 s stall, every 10 min", 90, 600),
    ("90 s stall, best interval", 90, (2 * 90 * 12 * 3600) ** 0.5),
    ("4 s stall, every 10 min", 4, 600),
):
    saving, lost = cost(save_s, interval_s)
    print(f"{name:26} interval {interval_s / 60:2.0f} min: "
          f"saving {saving:5.1%} + lost work {lost:.1%} = {saving + lost:.1%}")
exact_s = best_interval(Costs(save_s=90, restart_s=600, mtbf_s=12 * 3600))
print(f"the exact model puts the best interval at {exact_s / 60:.0f} min")

# %% [markdown]
# ## Reliability
#
# They want to hear what restarts, and what doesn't.

# %% [markdown]
# ### A job hangs in an all-reduce. How do you find the rank?
#
# <details><summary>The answer</summary>
#
# > "First, is it a hang? Ranks are alive, and no step has completed for several step times. Then I
# > compare what each rank did last. Collectives are numbered, so the rank that's behind is the
# > suspect, and the ones inside the all-reduce are its victims. With NCCL, that's the flight
# > recorder: I dump it on all ranks, and look for the collective that one rank never entered. Then
# > a stack dump of that rank. Is it in the loader, in a save, or in a branch that the others didn't
# > take? Then hardware: Xid errors, link state. Only then do I restart."
#
# </details>
#
# **"All ranks are in the same all-reduce, with the same number."**
#
# <details><summary>The reply</summary>
#
# > "Then nobody's missing. Either shapes or dtypes don't match, which the recorder shows as well,
# > or the transport is stuck: a NIC, a cable, a switch. I'd run a plain all-reduce benchmark on
# > those nodes, and bisect. To prevent the first kind, no rank enters a branch with a collective on
# > its own. If something can fail on one rank, all ranks agree on the outcome before anyone acts."
#
# </details>
#
# *Shown in:* three ranks, one of them stuck, in the cell below these questions; [watchdog and flight recorder](18_hardware_and_failures.ipynb).

# %% [markdown]
# ### Walk me through the restart scope of each kind of failure.
#
# <details><summary>The answer</summary>
#
# > "I classify by what the failure took with it. A bad sample on one rank: the process is fine, so
# > all ranks agree to skip it, and nothing restarts. A dead process: the communicator is broken, so
# > all ranks restart on the same nodes. A lost node: the same, plus a replacement from the
# > scheduler. A storage stall: nothing's broken, so wait with a deadline, and alert. A poisoned
# > communicator, after an asynchronous NCCL error: tear it down and restart the job. And a failure
# > that comes back at the same step is a bug. Cap the restarts and page somebody."
#
# </details>
#
# **"Why not restart everything, always? It's simple."**
#
# <details><summary>The reply</summary>
#
# > "It's my default, because anyone can reason about it. It stops being right when restarts eat the
# > goodput. Meta published an interruption about every three hours for Llama 3 on 16,384 GPUs. If
# > each cost ten minutes, that's more than 5% of the cluster. Then I'd reduce the scope: hot
# > spares, in-place restarts, replica groups that keep going. And a storage stall never deserves a
# > restart, because the restart reads from the same storage."
#
# </details>
#
# *Shown in:* [restart scope as experiments](13_checkpointing.ipynb); [published rates](https://arxiv.org/abs/2407.21783).

# %% [markdown]
# ### The job died in the middle of a save. What happens next?
#
# <details><summary>The answer</summary>
#
# > "Nothing special, if the publish is atomic. The save wrote to a temporary folder: files, then a
# > manifest with sizes and hashes, then fsync, then one rename. It died before the rename, so the
# > restart doesn't see it, and takes the one before. The leftover gets cleaned up by age. That's
# > also how I verify that a checkpoint is complete: every rank's files are there, with the right
# > sizes and hashes, and the manifest itself is intact. The newest one that passes wins. Rank 0
# > chooses, and all ranks load that one."
#
# </details>
#
# **"We save to an object store. There's no rename."**
#
# <details><summary>The reply</summary>
#
# > "Then the last object is the publish. Everything goes under a unique prefix. When all ranks have
# > confirmed their uploads, one writer puts a small pointer, on the condition that it doesn't exist
# > yet. A restart reads pointers and never lists files. A killed upload leaves objects that no
# > pointer names, and a sweep deletes those, unfinished multipart uploads included. I'd test it by
# > killing uploads at random."
#
# </details>
#
# *Shown in:* [a kill at each system call of a save](13_checkpointing.ipynb); [the pointer on an object store](../01_walkthrough.ipynb).

# %% [markdown]
# ### When is a full-job restart the wrong answer?
#
# <details><summary>The answer</summary>
#
# > "In three cases. When nothing's broken: for a storage stall or a slow rank, a restart throws
# > away work and adds load to the same storage. When the failure is deterministic: a bad sample, a
# > full disk, a NaN at step 8,000. It fails again in the same place, and the loop burns money until
# > somebody looks. And at scale, when a restart costs more than what failed: then I want spares,
# > in-place recovery or replica groups. The metric is goodput, which is useful step time over wall
# > time across all attempts."
#
# </details>
#
# **"How would the launcher know that a failure is deterministic?"**
#
# <details><summary>The reply</summary>
#
# > "By progress. If two attempts die at the same step, or no step completes between two restarts,
# > it stops and pages. And by exit code: our trainer has one code for what a person must fix, such
# > as a config that doesn't match the checkpoint, and another for try again. torchrun alone can't
# > do that. It counts restarts, and turns a rank's exit code into its own. So that policy belongs
# > one level up, with whoever owns the machines."
#
# </details>
#
# *Shown in:* [restart while it's useful](../01_walkthrough.ipynb); [a policy for retries](21_production_lift.ipynb).

# %% [markdown]
# ### A checkpoint stalls the whole job. How do you fix that?
#
# <details><summary>The answer</summary>
#
# > "I ask what we promised: how much work may a failure cost? That's the RPO, and it limits how
# > rarely I may save. Within it, I shorten the stall. Snapshot the state into host memory, release
# > the loop, and write, hash and publish in the background. One save in flight at a time. If the
# > next is due too early, the loop waits, and that wait is a metric. Then shards in parallel. The
# > manifest still comes last, after every rank has confirmed, so a save that fails in the
# > background never becomes the latest."
#
# </details>
#
# **"And if the process dies while the background save is running?"**
#
# <details><summary>The reply</summary>
#
# > "Then we fall back to the one before. So the real exposure is the interval plus the time until a
# > save is published. That's why I alert on the age of the newest published checkpoint, and not on
# > the start of a save. And the snapshot has to be a copy. A state dict refers to live tensors, so
# > without a copy the file would mix two steps, and load without complaint."
#
# </details>
#
# *Shown in:* [a state dict that follows the live tensors](../01_walkthrough.ipynb); [background saves](13_checkpointing.ipynb).

# %% [markdown]
# ### Would you train on spot machines?
#
# <details><summary>The answer</summary>
#
# > "Yes, if a useful step gets cheaper. I need three things: a save on the preemption notice, a
# > restart that needs nobody, and a pinned global batch, so that the run may come back on fewer
# > machines. The notice is short, two minutes on AWS, and the save has to fit into it, including
# > detection. I'd ask for capacity in whole groups, because one lost node stops a synchronous job
# > anyway. For the last stretch before a deadline, I'd move to machines that stay."
#
# </details>
#
# **"Spot is 60% cheaper. What's there to think about?"**
#
# <details><summary>The reply</summary>
#
# > "I pay for hours, and I get steps. An hour costs 0.4. If preemptions leave a goodput of 0.7,
# > against 0.95 on demand, a useful hour costs 0.57 against 1.05. That's still 46% cheaper, and it
# > takes a third longer. It stops paying at a goodput of 0.38. So I'd measure goodput across
# > attempts for a day, and let that number decide."
#
# </details>
#
# *Shown in:* the arithmetic, in the cell below these questions; [the two-minute notice](https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html); [preemption and quota](21_production_lift.ipynb).

# %% [markdown]
# **Three ranks, one of them stuck.** Rank 1 never comes back from reading its third batch. The
# others wait in an all-reduce that it never enters. After the deadline, each rank reports how many
# collectives it has issued, and the line it's on. That's what a flight recorder and a stack dump
# give you on a cluster.

# %%
def read_batch(step):
    if dist.get_rank() == 1 and step == 3:
        time.sleep(3600)
    return torch.ones(4)


def train():
    for step in range(1, 6):
        gradient = read_batch(step).sum()
        dist.all_reduce(gradient)


start_s = time.monotonic()
on_ranks(dist.get_rank, 3)  # how long does a start take here?
reports = watch_ranks(train, 3, deadline_s=1.5 + 4 * (time.monotonic() - start_s))
issued, stuck_in = {}, {}
for rank, report in enumerate(reports):
    issued[rank] = len(report.collectives)
    stuck_in[rank] = re.search(r"in (train|read_batch)\b", report.stacks)[1]
    print(f"rank {rank}: {issued[rank]} collectives, now in {stuck_in[rank]}")
suspect = min(issued, key=issued.get)
print(f"so look at rank {suspect}: it's behind")

# %% [markdown]
# **What spot has to deliver.** A useful hour costs the price over the goodput. The prices here are
# the interviewer's 60% off and round goodputs: put in your own.

# %%
price, goodput = {"on demand": 1.0, "spot": 0.4}, {"on demand": 0.95, "spot": 0.7}
useful = {kind: price[kind] / goodput[kind] for kind in price}
for kind, hour in useful.items():
    print(f"{kind:9}: {price[kind]:.2f} / {goodput[kind]:.2f} = {hour:.2f} per useful hour")
saved = 1 - useful["spot"] / useful["on demand"]
longer = goodput["on demand"] / goodput["spot"] - 1
print(f"spot is {saved:.0%} cheaper and takes {longer:.0%} longer; "
      f"it stops paying at a goodput of {price['spot'] * goodput['on demand']:.2f}")
per_failure_h = 54 * 24 / 419
print(f"ten minutes every {per_failure_h:.1f} hours: {1 / 6 / per_failure_h:.1%} of the time")

# %% [markdown]
# The last line is for the restart scope. It takes the
# [published](https://arxiv.org/abs/2407.21783) 419 unexpected interruptions in 54 days, and ten
# minutes as a round number for a restart.

# %% [markdown]
# ## Judgment
#
# They want to hear a price on both sides, and what evidence would change your mind.

# %% [markdown]
# ### Why DDP and not FSDP?
#
# <details><summary>The answer</summary>
#
# > "Because it's the smallest thing that's correct here, and the easiest to debug: a full replica
# > per rank, one kind of collective, failures that I can read. And it fits. Mixed-precision Adam
# > takes 16 bytes per parameter, so 1.5 billion parameters are 24 of 80 gigabytes. FSDP would save
# > memory that I don't need, for about one and a half times the communication, and sharded
# > checkpoints to manage. I'd move when replicated state is the limit, or when it forces the
# > micro-batch so low that the GPUs idle. Peak memory per rank would change my mind."
#
# </details>
#
# **"Everyone uses FSDP, so you'll have to migrate anyway."**
#
# <details><summary>The reply</summary>
#
# > "If the roadmap says 7 billion next quarter, that's 112 gigabytes of state, and I'd start with
# > FSDP2 today. Then it's a requirement. If not, the migration stays small as long as I keep three
# > boundaries: one function wraps the model, the optimizer is created after it, and checkpoints go
# > through functions that can reshard. I'd rather pay for complexity when it buys something."
#
# </details>
#
# *Shown in:* [FSDP2 equal to DDP, and five mistakes with it](17_parallelism.ipynb); [16 bytes per parameter](15_numbers.ipynb).

# %% [markdown]
# ### What would you not build here?
#
# <details><summary>The answer</summary>
#
# > "Cloud authentication, scheduler glue, vendor exporters, hybrid parallelism. None of them shows
# > whether I can keep training correct, and each could take the whole hour. I keep their
# > interfaces, so you can see where they go. The launcher sets rank, world size and address. The
# > checkpoint adapter has save and latest. The sink takes JSON events. One function wraps the
# > model. What I do build is what correctness depends on: the partition, the step, the publish, and
# > the position."
#
# </details>
#
# **"But production needs all of those."**
#
# <details><summary>The reply</summary>
#
# > "It does, and each has an owner and a contract. If you tell me that one of them is the risk
# > here, I'll build that one and stub something else. If the storage is new, for instance, I'd
# > write its adapter and kill uploads until I believe it. What I'd avoid is half of everything:
# > five mocks that pass, and a resume that nobody has tried."
#
# </details>
#
# *Shown in:* [what stays out, and the line that stands for it](10_interview_map.ipynb); [interfaces with stand-ins](../01_walkthrough.ipynb).

# %% [markdown]
# ### Cut the training bill by 30% without hurting quality.
#
# <details><summary>The answer</summary>
#
# > "I start with what can't touch quality. Where does the money go: useful steps, lost work,
# > waiting, idle reservations? First goodput: faster restarts, and a better save interval. Then
# > step time: from 30% MFU to 40%, the same run takes a quarter fewer hours. Then price: spot for
# > runs that tolerate it. Then fewer runs, with early stopping in sweeps. All of that leaves the
# > loss per sample as it is. Only then would I look at precision, batch size or data, because those
# > need an evaluation to defend."
#
# </details>
#
# **"I need it by Friday."**
#
# <details><summary>The reply</summary>
#
# > "Then only what I can undo on Saturday. Stop the runs that nobody would miss, with their owners'
# > agreement. Cap restarts, fix the save interval, move sweeps to spot. I'd show cost per thousand
# > useful steps before and after. I wouldn't change precision or batch size under a deadline. If
# > quality drops, we'd learn it in three weeks, and nobody could say which change did it."
#
# </details>
#
# *Shown in:* the levers multiply, in the cell below these questions; [where a run's time went](18_hardware_and_failures.ipynb).

# %% [markdown]
# ### We run tensor, pipeline and data parallelism together. How would you simplify that?
#
# <details><summary>The answer</summary>
#
# > "I ask what each axis buys today. Tensor parallelism, because a layer didn't fit or was too
# > slow. Pipeline, because the model didn't fit into a node. Data, for throughput. Then I try to
# > remove one, and I'd start with the pipeline: it has the bubble, the uneven stages and the
# > failures that nobody can read. With FSDP and activation checkpointing, many models fit without
# > it. If single layers fit as well, tensor parallelism goes next. Then I measure memory per rank
# > and MFU for each layout, on the same short run. The simplest within 5% wins."
#
# </details>
#
# **"Your simpler layout costs us 8% of MFU."**
#
# <details><summary>The reply</summary>
#
# > "Then that's its price, and I compare. On 512 GPUs, 8% of a 30-day month is about 29,500
# > GPU-hours. On the other side are the weeks of two engineers who understand the schedule, slower
# > restarts, and checkpoints that only load on the same layout. For one long run, I'd keep the
# > third axis and say why. For a team that changes models every month, I'd take the simpler
# > layout."
#
# </details>
#
# *Shown in:* [each axis, with its communication counted](17_parallelism.ipynb).

# %% [markdown]
# ### How do you roll out a new version of the trainer?
#
# <details><summary>The answer</summary>
#
# > "Like any production change, except that a trainer's bug may only show after days. So first
# > equivalence: old and new start from the same checkpoint, on the same data, and the losses agree
# > bit for bit, or within a tolerance that I can justify. Then a kill-and-resume test. Then a
# > canary: one short run to the end, with its evaluation. Then new runs only. Running jobs stay on
# > the version that they started with. The checkpoint format has a version too: new code reads old
# > ones, and old code refuses new ones. The old image stays deployable."
#
# </details>
#
# **"We need the fix in the run that's training right now."**
#
# <details><summary>The reply</summary>
#
# > "Then I treat it as a change to an experiment. I take a checkpoint, and resume a copy on the new
# > version for a few hundred steps. I compare it with the original, which continues on the old one:
# > loss, gradient norm, step time. If that's clean, we switch at a checkpoint, and the run's log
# > gets the version, the step and who decided. And that checkpoint is exempt from retention, so we
# > can go back."
#
# </details>
#
# *Shown in:* [rollout and the promotion gate](19_configuration.ipynb).

# %% [markdown]
# ### A run has gone bad. How do you roll it back?
#
# <details><summary>The answer</summary>
#
# > "First I stop the damage: no more saves over old ones, and no promotion. Then I look for the
# > last good point, which isn't the last checkpoint. I want the first step where something left its
# > range: loss against a reference run, gradient norm, update norm, skipped steps, data version. I
# > take a checkpoint from well before that, and verify it with its hashes and a quick evaluation. I
# > remove the cause. Then I resume under a new run ID that names its parent and step, so nobody
# > mixes the two curves. The bad branch stays until the postmortem."
#
# </details>
#
# **"Retention kept only the last three checkpoints, and it's been bad for a day."**
#
# <details><summary>The reply</summary>
#
# > "Then retention had the wrong job. The last few are for crashes. For regrets you need sparse
# > ones: one a day, and every one that was evaluated. At 14 bytes per parameter, a
# > 1.5-billion-parameter model takes 21 gigabytes, so a month of dailies is 630. That's cheap next
# > to a lost week. For this run: evaluate the oldest of the three. If it's bad already, go back to
# > the last one that somebody exported, and say what that costs."
#
# </details>
#
# *Shown in:* [roll back](19_configuration.ipynb); [an older copy that's put back, and its audit](../01_walkthrough.ipynb).

# %% [markdown]
# ### When would you stop a run?
#
# <details><summary>The answer</summary>
#
# > "I'd agree on that before it starts, because nobody's objective in week three. I stop when it
# > can't reach its goal: at equal samples, the loss is above the reference by more than the noise.
# > When it isn't sound: a leak between the splits, replicas that diverge, a bug in what it learned
# > from. When it isn't worth it: the remaining cost is more than the answer is worth. And when it
# > isn't healthy: goodput below a threshold, or restarts without progress. What's been spent
# > already isn't on the list."
#
# </details>
#
# **"The loss just spiked. Do you stop?"**
#
# <details><summary>The reply</summary>
#
# > "Not for one spike. I look at the gradient norm, the learning rate, and the batches that came
# > right before. If it recovers as earlier spikes did, I note it and go on. If it doesn't, I go
# > back to a checkpoint before it, skip those batches or lower the rate, and log that as an
# > intervention. Each run has a budget for those, set in advance. When it's used up, I stop and
# > look for the cause."
#
# </details>
#
# *Shown in:* [alerts that fire, and ones that stay quiet](16_observability.ipynb).

# %% [markdown]
# ### Tell me about a training system that you built. What would you do differently?
#
# <details><summary>The answer</summary>
#
# > "I'd take two minutes, in four parts: the goal with its number, the decision that was mine, what
# > it cost, and what I'd change. For example: I built a trainer whose goal was that no sample is
# > lost or repeated, whatever gets killed. My decision was to make the order of the data a
# > function, and the position one integer. It costs scattered reads, and a ledger line per step.
# > I'd change the order of the work: I'd write the audit first. I had called the resume correct
# > because the weights matched, and when they didn't, I couldn't say why."
#
# </details>
#
# **"What did you get wrong?"**
#
# <details><summary>The reply</summary>
#
# > "I believed that DDP repairs a bad restore, because it broadcasts weights when it's constructed.
# > It hid the problem instead. The weights were right, one rank's moments came from another run,
# > and the replicas differed from the next step on, without any error. Now all ranks compare what
# > they're about to load, and one rank decides. What I took from it: when a framework makes a
# > symptom go away, I look at the state next to it."
#
# </details>
#
# *Shown in:* [both mistakes, live](../01_walkthrough.ipynb).

# %% [markdown]
# **The levers multiply.** A bill is the work, over the share of the hardware's peak that you use,
# over the share of the time that's useful, times the price. No single lever below gives 30%, and
# the three together do. All inputs are assumptions: replace them with your own account.

# %%
def bill(mfu, goodput, spot_share):
    """For the same number of samples; a useful spot hour costs what the cell above says."""
    return (1 - saved * spot_share) / mfu / goodput


now = {"mfu": 0.35, "goodput": 0.85, "spot_share": 0.0}
bills = {}
for change in ({}, {"goodput": 0.93}, {"mfu": 0.42}, {"spot_share": 0.3}):
    bills[str(change)] = bill(**{**now, **change}) / bill(**now)
    print(f"{change or 'today'!s:22} {bills[str(change)]:.2f}")
together = bill(mfu=0.42, goodput=0.93, spot_share=0.3) / bill(**now)
print(f"{'all three':22} {together:.2f}")

# %% [markdown]
# ## The closing paragraph
#
# They'll ask you to sum up. This is the handbook's ending, in words that you can say.
#
# > "To sum up: I'd build the smallest trainer that's correct, and keep the boundaries that
# > production needs: launch, data, artifacts, telemetry. I start with DDP, because everybody can
# > debug it. The order of the data is a function, the position is one integer, and a checkpoint is
# > published in one move. From there, it grows on evidence. When memory is the limit, I shard. When
# > saving is the limit, I write distributed checkpoints. When the network is the limit, I change
# > the topology. Each of those steps has a metric that asked for it, and one that would tell me I
# > was wrong."

# %% [markdown]
# ## Practice it
#
# - Draw five, record yourself, and listen. Count the answers that named a cost and a metric.
# - The questions behind the code: [resume_after_failure](../drills/030_resume_after_failure.ipynb),
#   [instrument_performance](../drills/040_instrument_performance.ipynb),
#   [production_lift](../drills/050_production_lift.ipynb).
# - Bugs that start with one of these questions:
#   [replicas_drift_apart](../drills/220_replicas_drift_apart.ipynb),
#   [run_hangs_at_its_first_log](../drills/260_run_hangs_at_its_first_log.ipynb),
#   [second_node_brings_nothing](../drills/350_second_node_brings_nothing.ipynb).
# - The table of questions at the end of the [walkthrough](../01_walkthrough.ipynb) says where each
#   answer is demonstrated.
# - The cards: `ask(topic="staff")` and `ask(topic="post_training")` in [03_deck](../03_deck.ipynb).
