# variants: blank, hidden

# %% [markdown] only="full"
# # The live trainer: eight cells you can type in an interview
#
# {{badge}}
#
# **This is the complete version.** Every cell has its code: read it and run it.

# %% [markdown] only="hidden"
# # The live trainer, hidden: you type, and each answer is folded below its cell
#
# {{badge}}
#
# **This is the hidden version.** The bodies are empty. Type each one, run the cell, then run
# the check below it. If you're stuck, unfold the solution: it's text, so it never runs in your
# place.

# %% [markdown] only="blank"
# # The live trainer, blank: you type, without answers
#
# {{badge}}
#
# **This is the blank version.** The bodies are empty, and there are no answers. Give yourself
# 45 minutes and talk while you type. Run each cell, then the check below it.

# %% [markdown]
# You type a data-parallel trainer in eight cells, and you explain it while you type. Then you
# run it on two processes, kill one of them with SIGKILL, and start the job again. The final
# weights match those of an uninterrupted run, bit for bit. The run's own records prove that
# every sample was trained exactly once per epoch.
#
# **The one idea.** The order of the data is a pure function of (number of samples, seed,
# epoch). The position in that order is one integer: the number of optimizer steps completed.
# Resuming, changing the number of ranks and auditing the run all follow from this.
#
# **What you type.** If you explain while you type, you manage about 120 characters a minute.
# At that pace, the function bodies in the second column take {{typing live}}, which fits a
# 45-minute interview. The last column is your clock.
#
# | cell | you type | you only explain | on the clock |
# |---|---|---|---|
# | 1 config | `__post_init__`, `steps_per_epoch` | the fields | {{typing live.TrainConfig}} |
# | 2 data | the hash, the dataset, the order, the sampler | | {{typing live.ToyClassificationDataset}} |
# | 3 model | `TinyNet`, `learning_rate_at` | | {{typing live.TinyNet}} |
# | 4 distributed | `maybe_init_dist`, `wrap_model` | | {{typing live.maybe_init_dist}} |
# | 5 train | `train_step` | | {{typing live.train_step}} |
# | 6 checkpoint | saving, choosing and restoring a checkpoint | `fsync`, `sha256` | {{typing live.save_checkpoint}} |
# | 7 metrics | `StepTimers`, `log_rank_event` | | {{typing live.StepTimers}} |
# | 8 launch | `run` | the command line | {{typing live.run}} |
#
# The character counts leave out comments, docstrings and whitespace. Imports, signatures and
# fields are given.

# %% [markdown] only="full"
# **How to use it.** First read it and run it from top to bottom; that takes an hour. The next
# evening, open `01_live_hidden.ipynb`: the bodies are empty, and each answer is folded below
# its cell. Finish with `01_live_blank.ipynb`, which has no answers, against a 45-minute clock.
# Both check your code after every cell. The [walkthrough](01_walkthrough.ipynb) is the sequel:
# the same eight cells, hardened against what this trainer leaves out.

# %% [markdown] only="hidden"
# **How to use this version.** What you haven't typed yet fails with `NotImplementedError`, or
# with a `NameError` further down. That doesn't stop the cells below it, so you can skip a cell
# and come back. `01_live.ipynb` has the complete trainer, and `01_live_blank.ipynb` has no
# solutions.

# %% [markdown] only="blank"
# **How to use this version.** What you haven't typed yet fails with `NotImplementedError`, or
# with a `NameError` further down. That doesn't stop the cells below it. If the clock says you're
# late, stub the body, say what it would do, and move on. `01_live.ipynb` has the complete
# trainer.

# %% [markdown]
# The text above each cell gives you lines to say: why you chose this, what it costs, and which
# metric would tell you it was wrong. Practice that last one most.
#
# **Terms.** A *rank* is one process of the job, and the *world size* is how many there are. A
# *collective* is an operation that every rank must join; if one doesn't, the others wait. The
# *run folder* has a run's checkpoints and its ledger. The *ledger* is the record of which
# samples each rank trained on in each step. An *attempt* is one start of the job in that
# folder; a restart is the next attempt. In the code, `W` is the world size, and `S` is the
# number of samples in a step, over all ranks.
#
# The source is at [{{repository}}]({{repository}}). The trainer doesn't import it: every
# definition is in a cell. Collapsed cells contain supporting code that nobody types in an
# interview. Run them too.

# %% [markdown]
# ## Setup
#
# The notebook needs torch, numpy, matplotlib and cloudpickle. The collapsed cell installs what
# is missing on Colab, and nothing elsewhere.

# %% collapsed=true
# {{setup torch numpy matplotlib cloudpickle}}

# %%
# %matplotlib inline
import os
import re
import shutil
import signal
import sys
import tempfile
from dataclasses import replace
from functools import partial

FAST = os.environ.get("FAST") == "1"  # shorter runs, to check the notebook quickly

# %% [markdown] only="blank hidden"
# `check` runs what you've typed so far on real ranks, tells you what's wrong, and names the
# stage you've reached. What you haven't typed yet doesn't count against you, but a stage that
# needs it isn't judged yet. What your ranks print comes above the verdict, with the rank in
# brackets. From cell 6 on, it may say `is damaged`: the check damages checkpoints on purpose.
#
# `check` also accepts a design of your own. The cells after it don't: they expect the sizes (8
# inputs, 4 classes), the file names, the ledger's fields and the shuffle of `01_live.ipynb`. If
# yours differ, those cells can fail even though the check passes.

# %% only="blank hidden" collapsed=true tags=["raises-exception"]
# {{setup platformdirs fsrs rehearsal}}

# %% only="blank hidden"
try:
    from rehearsal import check, debrief, hint, narration, solution, start, status
except ImportError:

    def start(drill):
        print("No clock and no checks in this kernel. To get them, clone")
        print("{{repository}},")
        print("run `make lab` there, and open this notebook. Without them, the cell below each")
        print("check shows whether your code works.")

    def check(drill):
        print("No checks in this kernel. Run the next cell: it shows whether your code works.")

    hint = start  # there are no hints either


# %% [markdown] only="hidden"
# To see what each stage demands, run `start("live_trainer")`; it also starts the clock. When
# you're stuck, `hint("live_trainer")` gives you a pointer.

# %% [markdown] only="blank"
# `start` shows the task and starts the clock.

# %% only="blank"
start("live_trainer")

# %% [markdown]
# ## 1. Config and assumptions
#
# **What it's for.** Every setting in one place, checked before anything starts. Say your
# assumptions here, because the rest of the design rests on them.
#
# **What to say**
# - Assumption: "I'm assuming one disk that all ranks share, a model that fits on one GPU, and
#   a dataset whose index fits in memory. I'll say what changes when one of them breaks."
# - Why: "The config is frozen and checks itself. A bad value fails right here, in one line,
#   and not forty minutes later on one rank."
# - Why: "I fix the global batch, not the batch per rank. So the job can restart with fewer
#   ranks and still take the same steps."
# - Cost: "The batch doesn't grow with the hardware. With twice the GPUs, each one gets half the
#   work, until I retune the batch and the learning rate."
# - How I'd notice it's wrong: "Two runs have the same config and the same number of ranks, but
#   their loss curves differ. Then a setting that affects training isn't in here."
#
# **To type**, {{typing live.TrainConfig}}: `__post_init__`, `steps_per_epoch`. **Explain
# only:** the fields. The command-line flags are generated from them.
#
# **A weak answer** reads its settings from globals and checks nothing. It multiplies the batch
# per rank by the number of ranks, so a restart on fewer ranks trains on smaller batches at the
# same learning rate, and nobody notices. It rounds the steps per epoch down, so the last few
# samples are never trained.

# %% include="live" cell="TrainConfig" typed="TrainConfig"

# %% only="blank hidden"
check("live_trainer")

# %% [markdown]
# 42 samples in batches of 8 take six steps, and the last one has two samples. NaN isn't below
# any bound, so the check asks whether a value lies inside its bounds, not whether it's outside.

# %%
tiny = TrainConfig(
    dataset_size=42,
    global_batch_size=8,
    micro_batch_size=2,
    max_epochs=2,
    dropout=0.0,
    device="cpu",
)
assert tiny.steps_per_epoch == 6
for wrong in ({"global_batch_size": 0}, {"learning_rate": float("nan")}, {"seed": -1}):
    try:
        replace(tiny, **wrong)
    except UserError as error:
        print(error)
    else:
        raise AssertionError(f"{wrong} was accepted")

# %% [markdown]
# ## 2. Dataset and sampler
#
# **What it's for.** Which samples does a rank train on in a given step? One integer answers
# that, at any world size. Bugs here go unnoticed: a loss curve over the wrong samples looks
# perfectly healthy.
#
# **What to say**
# - Why: "I cut the epoch into global batches first, then deal each batch out to the ranks. The
#   batch is defined before the ranks are, so the world size can change between any two steps."
# - Why: "The invariant: the position counts completed optimizer steps. The sampler reads it and
#   never moves it, so a prefetching loader can't run ahead of the training."
# - Why: "Every seed is a hash of a purpose and numbers. Seed 1 with epoch 21 must not shuffle
#   like seed 12 with epoch 1, and the order must not share randomness with dropout."
# - Cost: "Each rank shuffles the full index once per epoch and keeps it in memory: eight bytes
#   per sample. At a billion samples I'd compute the order instead of storing it."
# - How I'd notice it's wrong: "Sample ids go into the ledger, and an audit counts duplicates
#   and misses per epoch. Both must be zero."
#
# **To type**, {{typing live.ToyClassificationDataset}}: `seed_for`, the dataset,
# `epoch_order`, and the sampler's `__iter__`.
#
# **A weak answer** counts what the loader has fetched, so a resume skips whatever was still in
# the queue. It seeds the shuffle with `seed + epoch`, so two runs with neighboring seeds share
# all but one of their orders. It pads the last batch with repeated samples, or drops it. And it
# cuts the dataset by rank first, so nothing adds up once the world size changes.

# %% include="live" cell="ToyClassificationDataset" typed="seed_for ToyClassificationDataset epoch_order ResumeAwareDistributedSampler"

# %% only="blank hidden"
check("live_trainer")

# %% [markdown]
# Here is the second step on one, two and three ranks: different shares, same samples. Over the
# epoch each sample appears once, even though 42 isn't divisible by 8. A sampler that starts at
# position 4 yields what one that starts at 0 yields from there on.

# %%
def shares(world_size, position=0):
    """Each rank's samples in every step from ``position`` on."""
    samplers = [
        ResumeAwareDistributedSampler(tiny, rank, world_size, position)
        for rank in range(world_size)
    ]
    ranks = [[samples.tolist() for _, samples, _ in sampler] for sampler in samplers]
    return list(zip(*ranks))


for world_size in (1, 2, 3):
    steps = shares(world_size)
    print(f"step 2, samples of each of {world_size} rank(s):", *steps[1])
    assert len(steps) == 12  # two epochs
    assert sorted(sum((sum(ranks, []) for ranks in steps[:6]), [])) == list(range(42))
assert shares(2, position=4) == shares(2)[4:]
assert shares(1)[0] != shares(1)[6]  # the next epoch starts with different samples
assert seed_for("order", 1, 21) != seed_for("order", 12, 1)

# %% [markdown]
# ## 3. Model and optimizer
#
# **What it's for.** A network that's small enough to train on a laptop, and a learning rate
# that needs no state. Don't spend your minutes here.
#
# **What to say**
# - Why: "The learning rate is a pure function of the step. A function has no state, so there's
#   no scheduler to save and none to forget."
# - Why: "There's dropout in the model on purpose. Without randomness in training, a resume that
#   forgets its random streams still looks right."
# - Cost: "A schedule that reacts to the loss doesn't fit. It'd be state in the checkpoint, and
#   one more decision that all ranks must agree on."
# - How I'd notice it's wrong: "I'd log the learning rate. A jump after a resume means that we
#   lost the schedule."
#
# **To type**, {{typing live.TinyNet}}: `TinyNet`, `learning_rate_at`.
#
# **A weak answer** creates a scheduler object and leaves it out of the checkpoint, so every
# resume repeats the warmup. It leaves dropout out, which hides every bug with random streams.

# %% include="live" cell="TinyNet" typed="TinyNet learning_rate_at"

# %% only="blank hidden"
check("live_trainer")

# %% [markdown]
# The rate rises linearly to its peak at step 20, and then falls as 1/sqrt(step).

# %%
for step in (1, 10, 20, 80):
    print(f"step {step}: learning rate {learning_rate_at(tiny, step):.5f}")
assert learning_rate_at(tiny, 20) == tiny.learning_rate == 2 * learning_rate_at(tiny, 80)
assert TinyNet(tiny)(torch.randn(5, 8)).shape == (5, 4)  # (B, C)

# %% [markdown]
# ## 4. Ranks and devices
#
# **What it's for.** A rank learns who it is from its environment, selects its device and joins
# the group, in that order.
#
# **What to say**
# - Why: "Identity comes from the environment, where the launcher puts it. That's the control
#   plane's job. One process without a launcher is rank 0 of 1, and it needs no group."
# - Why: "I select the device before the first allocation or collective, so nothing lands on the
#   wrong GPU."
# - Why: "DDP is my baseline: every rank has the full model, and gradients are averaged once a
#   step. I'd shard only when the replicated state doesn't fit."
# - Why: "After a restart, the launcher's store may still have the dead attempt's addresses. A
#   prefix per restart keeps the attempts apart."
# - Cost: "Every rank has a full copy of the weights and of the optimizer's state. And one empty
#   pass per start, so that all starts sum gradients in the same order."
# - How I'd notice it's wrong: "Recovery is slow. I measure from the kill to the first new step.
#   If that's minutes, restarted ranks may be trying to reach dead peers."
#
# **To type**, {{typing live.maybe_init_dist}}: `maybe_init_dist`, `wrap_model`.
#
# **A weak answer** asks for NCCL on a machine without a GPU. It makes its first allocation
# before it selects a device, so every rank ends up on `cuda:0`. It gives all ranks the same
# seed for everything, so all of them draw the same dropout masks.
#
# *Collapsed: `LocalRanks`, a stand-in for torchrun that starts gloo ranks as processes on this
# machine.*

# %% include="local_launcher" collapsed=true

# %% include="live" cell="maybe_init_dist" typed="maybe_init_dist wrap_model"

# %% only="blank hidden"
check("live_trainer")

# %% [markdown]
# DDP averages gradients over ranks. The first call of `on_ranks` also starts the server process
# that forks the ranks, so it takes longer than later calls.

# %%
def on_ranks(job, world_size):
    """Run ``job`` on every rank; returns what each rank's call returned."""
    results = LocalRanks(job, world_size).wait(120)
    for rank, result in enumerate(results):
        assert result.exitcode == 0, f"[rank {rank}/{world_size}] {result.traceback}"
    return [result.value for result in results]


def averaged_gradient():
    rank, _ = maybe_init_dist(tiny)
    model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1, bias=False))
    model(torch.full((1, 1), rank + 1.0)).sum().backward()
    return model.module.weight.grad.item()


gradients = on_ranks(averaged_gradient, 2)
print("local gradients 1 and 2; after DDP on each rank:", gradients)
assert gradients == [1.5, 1.5]

# %% [markdown]
# Why the empty pass? Below, three ranks compute the same gradient twice. Without the pass, the
# second result differs from the first in its last bits, because DDP has reordered its buckets in
# between. A resumed run would take its first step in the old order, while the uninterrupted run
# takes the same step in the new one, and their weights would differ.

# %%
def two_backward_passes(wraps):
    rank, _ = maybe_init_dist(tiny)
    torch.manual_seed(1)
    net = TinyNet(tiny)
    model = wraps(tiny, net)
    torch.manual_seed(rank)
    inputs, passes = torch.randn(8, 8), []
    for _ in range(2):
        net.zero_grad()
        model(inputs).square().sum().backward()
        passes.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
    return torch.equal(*passes)


def plain_ddp(cfg, net):
    return nn.parallel.DistributedDataParallel(net)


repeats = {wraps.__name__: on_ranks(partial(two_backward_passes, wraps), 3)[0]
           for wraps in (plain_ddp, wrap_model)}
print("two passes give the same bits:", repeats)
assert repeats == {"plain_ddp": False, "wrap_model": True}

# %% [markdown]
# ## 5. The training step
#
# **What it's for.** One optimizer step: accumulate over micro-batches, synchronize once, clip,
# step. The key question: which samples is the gradient averaged over?
#
# **What to say**
# - Why: "I want the mean over the step's samples: the sum divided by S. DDP averages over ranks,
#   which divides by W. So each rank's sum gets the weight W over S."
# - Why not a mean of means: "It's wrong as soon as the ranks' shares differ."
# - Why: "Every micro-batch but the last runs under `no_sync`, so gradients sync once a step. I
#   clip after the sync, on the true gradient, so all ranks clip the same way."
# - Why: "A rank without samples in an epoch's last step can't skip the step. It has to join the
#   collective, so an empty batch runs through the model too."
# - Cost: "The finite check, the loss and the timers make the host wait for the GPU in every
#   step. I accept that here; in production I'd read them only when I log."
# - How I'd notice it's wrong: "The gradient norm changes with the number of ranks, at the same
#   global batch. Or `backward` grows when I cut the same batch into more micro-batches: then
#   `no_sync` is missing."
#
# **To type**, {{typing live.train_step}}: `train_step`.
#
# **A weak answer** averages within each micro-batch and then over ranks. It syncs after every
# micro-batch. It clips each rank's local gradient before the sync, so it clips something that
# nobody applies. It skips the step on a rank that has no samples, and the other ranks hang.
#
# The step reports its phases to timers, which come in cell 7. Until then a stub stands in for
# them, as it would in an interview.

# %%
class NoTimers:  # a stub; cell 7 has the real ones
    def end(self, phase):
        pass


# %% include="live" cell="train_step" typed="train_step"

# %% only="blank hidden"
check("live_trainer")

# %% [markdown]
# Take eight samples on one rank, then split five and three over two ranks, then eight and none.
# Up to rounding, the gradient is the same. Averaging each rank's own mean gives a different one.

# %%
def gradient(samples_of_ranks):
    """The gradient of one step; ``samples_of_ranks[r]`` is the share of rank r."""
    rank, W = maybe_init_dist(tiny)
    torch.manual_seed(17)
    net = TinyNet(tiny)
    model = wrap_model(tiny, net) if W > 1 else net
    optimizer = torch.optim.AdamW(net.parameters())
    share = torch.tensor(samples_of_ranks[rank], dtype=torch.int64)
    S = sum(map(len, samples_of_ranks))
    inputs, labels = ToyClassificationDataset(tiny)[share]
    train_step(tiny, model, optimizer, inputs, labels, S, W, NoTimers())
    return torch.cat([p.grad.flatten() for p in net.parameters()]).numpy()


batch = list(range(8))
single = gradient([batch])
found = {
    "five and three": on_ranks(partial(gradient, [batch[:5], batch[5:]]), 2)[0],
    "eight and none": on_ranks(partial(gradient, [batch, []]), 2)[0],
    "mean of means": (gradient([batch[:5]]) + gradient([batch[5:]])) / 2,
}
for name, other in found.items():
    print(f"{name}: largest difference from one rank: {abs(single - other).max():.1e}")
assert np.allclose(single, found["five and three"], atol=1e-6)
assert np.allclose(single, found["eight and none"], atol=1e-6)
assert not np.allclose(single, found["mean of means"], atol=1e-3)

# %% [markdown]
# One sample on rank 1 is NaN. The norm is that of the averaged gradient, so both ranks raise,
# and neither applies the update.

# %%
def one_nan_sample():
    rank, W = maybe_init_dist(tiny)
    torch.manual_seed(17)
    net = TinyNet(tiny)
    model, optimizer = wrap_model(tiny, net), torch.optim.AdamW(net.parameters())
    inputs, labels = ToyClassificationDataset(tiny)[torch.arange(4)]
    inputs[0, 0] = float("nan") if rank == 1 else 0.0
    before = [p.detach().clone() for p in net.parameters()]
    try:
        train_step(tiny, model, optimizer, inputs, labels, 8, W, NoTimers())
    except RuntimeError as error:
        same = all(torch.equal(p, old) for p, old in zip(net.parameters(), before))
        return f"{str(error).partition(',')[0]} | weights unchanged: {same}"


for rank, outcome in enumerate(on_ranks(one_nan_sample, 2)):
    print(f"rank {rank}: {outcome}")
    assert outcome.endswith("True")

# %% [markdown]
# ## 6. Checkpoint
#
# **What it's for.** After a crash, there's an intact checkpoint to restart from. How often you
# save decides how much work you lose. Whether the checkpoint is intact decides whether the run
# is correct.
#
# **What to say**
# - Why: "A checkpoint is three things: the weights, the optimizer's state and one integer. The
#   learning rate, the order and the dropout masks are functions of that integer, so there's
#   nothing else to save."
# - Why: "Files first, then a manifest with the hash, then fsync, then one rename. The rename
#   publishes the checkpoint; until then a restart can't see it."
# - Why: "I verify before I load. If the newest one is damaged, I say so and take the one before
#   it. If there are some and none is intact, I stop: silently starting over is worse."
# - Cost: "Every rank waits while rank 0 writes, hashes and syncs to disk. When that hurts, I'd
#   copy the state and write in the background."
# - How I'd notice it's wrong: "I alert on the age of the newest intact checkpoint. It has to
#   stay within our RPO, the most work we accept losing. And I watch the max of the `checkpoint`
#   phase."
#
# **To type**, {{typing live.save_checkpoint}}: `save_checkpoint`, `latest_checkpoint_path`,
# `restore_checkpoint`. **Explain only:** `fsync` and `sha256`.
#
# **A weak answer** writes straight to the final name and loads the newest file, so one kill
# during a save breaks every restart. It deletes the old checkpoint before the new one is
# verified. It saves weights without the optimizer's state. And when every checkpoint is
# damaged, it starts from scratch as if nothing had happened.

# %% include="live" cell="save_checkpoint" typed="save_checkpoint latest_checkpoint_path restore_checkpoint"

# %% only="blank hidden"
check("live_trainer")

# %% [markdown]
# A rank is killed inside a save, just before the rename. The checkpoint before it is still the
# newest, and what the kill left behind has a different name.

# %%
root = Path(tempfile.mkdtemp(prefix="live-"))
checkpoints = root / "checkpoints"
checkpoints.mkdir()
net = TinyNet(tiny)
optimizer = torch.optim.AdamW(net.parameters())
for step in (25, 50):
    save_checkpoint(checkpoints, step, net, optimizer)


def die_before_the_rename():
    Path.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    save_checkpoint(checkpoints, 75, net, optimizer)


print("exit code", LocalRanks(die_before_the_rename, 1).wait(60)[0].exitcode)
names = sorted(re.sub(r"\d{15,}", "...", path.name) for path in checkpoints.iterdir())
print("in the folder:", *names)
newest = latest_checkpoint_path(checkpoints)
assert newest.name == "step-000000000050" and names[-1] == "tmp-..."

# %% [markdown]
# Why hash the file? Below, one bit flips in a saved weight, and `torch.load` returns the wrong
# value without complaint. The hash notices, and the restart falls back. Once both checkpoints
# are damaged, it refuses to start over.

# %%
path = newest / "state.pt"
content, weight = bytearray(path.read_bytes()), net[0].weight.detach()
content[content.index(weight.numpy().tobytes()) + 3] ^= 0x40  # in the first weight's exponent
path.write_bytes(content)
loaded = torch.load(path)["model"]["0.weight"]
print(f"saved {weight[0, 0].item():.4f}, loaded {loaded[0, 0].item():.4g}")
assert not torch.equal(loaded, weight)

fallback = latest_checkpoint_path(checkpoints)
assert fallback.name == "step-000000000025"
assert restore_checkpoint(fallback, net, optimizer) == 25
(fallback / "state.pt").write_bytes(b"")
try:
    latest_checkpoint_path(checkpoints)
except UserError as error:
    print(str(error).replace(str(root), "RUN"))

# %% [markdown]
# ## 7. Metrics
#
# **What it's for.** It tells you which phase of the step is slow, and what each rank did last.
#
# **What to say**
# - Why: "Where one phase ends, the next begins. So the phases add up to the step's wall time,
#   and there's no gap for a slow loader to hide in."
# - Why: "Every rank writes one line per step and flushes it. The last line before a kill is the
#   one I need, and the same lines are the ledger that the audit reads."
# - Why: "I look at percentiles per rank, plus the max. A mean hides spikes, and a synchronous
#   step is as slow as its straggler."
# - Cost: "One write per step and rank. And on a GPU, one sync per phase, which costs overlap: on
#   CUDA I'd record events on the stream and read them later."
# - How I'd notice it's wrong: "A phase grows although its own code didn't change. Whatever runs
#   between two phases is billed to the later one, so I look there first."
#
# **To type**, {{typing live.StepTimers}}: `StepTimers`, `log_rank_event`.
#
# **A weak answer** times forward and backward, but neither the wait for data nor the save. On a
# GPU it times the launch of the work instead of the work. It logs on rank 0 only, with rank 0's
# own loss. And it prints to a buffered stream, so the log ends long before the kill.

# %% include="live" cell="StepTimers" typed="StepTimers log_rank_event"

# %% only="blank hidden"
check("live_trainer")

# %% [markdown]
# Here are twenty steps, one of them with a slow save of 50 ms. The phases add up to the wall
# time. The max shows the save; the p50 misses it, and the mean smears it out.

# %%
timers, began, steps = StepTimers(), time.perf_counter(), []
for step in range(1, 21):
    time.sleep(0.001)
    timers.end("forward")
    time.sleep(0.05 if step == 7 else 0)
    timers.end("checkpoint")
    steps.append(timers.phases)
    timers.phases = {}
wall = timers.last - began
saves_ms = [1e3 * phases["checkpoint"] for phases in steps]
print(f"checkpoint, ms: mean {np.mean(saves_ms):.1f}, p50 {np.median(saves_ms):.1f}, "
      f"max {max(saves_ms):.1f}")
assert abs(sum(sum(phases.values()) for phases in steps) - wall) < 0.01 * wall

# %% [markdown]
# A rank logs five lines, prints five to an ordinary buffered file, and then gets killed.

# %%
def write_and_die(folder):
    ledger, ordinary = (folder / "ledger.jsonl").open("a"), (folder / "ordinary.txt").open("w")
    for step in range(5):
        log_rank_event(ledger, step=step)
        print(step, file=ordinary)
    os.kill(os.getpid(), signal.SIGKILL)


LocalRanks(partial(write_and_die, root), 1).wait(60)
lines = {
    name: (root / name).read_text().count("\n") for name in ("ledger.jsonl", "ordinary.txt")
}
print("lines that survived:", lines)
assert lines == {"ledger.jsonl": 5, "ordinary.txt": 0}

# %% [markdown]
# ## 8. Launch and resume
#
# **What it's for.** After a crash, the same command runs again. This cell decides what every
# rank does then, and in which order: who am I, build, restore, wrap, step, log, save.
#
# **What to say**
# - Why: "There's no resume flag. On start, the trainer resumes from the newest intact
#   checkpoint, or starts fresh. It makes no difference whether a scheduler, torchrun or a
#   person restarts it."
# - Why: "Rank 0 decides which checkpoint to load and broadcasts its choice, so the ranks can't
#   load different ones."
# - Why: "The position moves only after the optimizer has stepped. Then the ranks log their
#   samples, and then rank 0 may save. So the ledger can back up whatever a checkpoint claims."
# - Why: "Weights use the same seed on every rank. Dropout uses a seed per step and rank, so
#   there's no random state to restore."
# - Cost: "We retrain the steps since the last checkpoint. The save interval trades that against
#   the time spent saving."
# - How I'd notice it's wrong: "Goodput drops: that's useful step time over wall time, across
#   all attempts. Or the audit finds a sample that wasn't trained exactly once."
#
# **To type**, {{typing live.run}}: `run`. **Explain only:** the command line, which isn't in
# this notebook. It turns each field into a flag, and a `UserError` into one line and exit
# code 2.
#
# **A weak answer** lets every rank choose a checkpoint by itself. It saves at the end of an
# epoch under that epoch's number, so a restart trains the epoch again. It advances the position
# when it fetches a batch. And it prints rank 0's own loss as if it were the mean.

# %% include="live" cell="run" typed="run"

# %% only="blank hidden"
check("live_trainer")

# %% [markdown]
# ## Run it
#
# The first run is on a single rank, in this process. The labels are learnable, and dropout is
# on, so a resume with the wrong random numbers would show.

# %%
torch.set_num_threads(1)  # the runs below use up to three processes, often on two cores
base = TrainConfig(
    run_dir=str(root / "alone"),
    dataset_size=1000,
    max_epochs=2 if FAST else 3,
    device="cpu",
)
alone = run(base)

# %% [markdown]
# Run it again: it sees that it has finished, and it changes nothing.

# %%
def files(folder):
    return {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*") if path.is_file()}


before = files(base.run_dir)
assert run(base) == alone and files(base.run_dir) == before

# %% [markdown]
# The second run is on two ranks, and nothing interrupts it. Both ranks end with the same
# weights. They differ from the single rank's, because each rank draws its own dropout masks.
# Each step's samples are the same, as the audit below confirms.

# %%
uninterrupted = replace(base, run_dir=str(root / "uninterrupted"))
reference = on_ranks(partial(run, uninterrupted), 2)
assert reference[0] == reference[1] != alone
print(reference[0])

# %% [markdown]
# ## Kill a rank
#
# The third run has the same settings. Once rank 1's ledger has 45 lines, one for its start and
# 44 for steps, we send the rank a SIGKILL: no handler runs, nothing is flushed. Step 44 is
# between two checkpoints, so some work is lost. Gloo notices the closed connection, and rank 0
# fails right away.

# %%
killed = replace(base, run_dir=str(root / "killed"))
ledger = Path(killed.run_dir, "ledger", "rank-1.jsonl")
workers = LocalRanks(partial(run, killed), 2)
while workers.processes[1].is_alive():
    if ledger.exists() and ledger.read_bytes().count(b"\n") >= 45:
        workers.kill(1)
        break
    time.sleep(0.002)
ends = workers.wait(60)
print("exit codes", [end.exitcode for end in ends])
error = re.sub(r"\[/\S+\] ", "", ends[0].traceback.splitlines()[-1])  # no path of gloo's source
print("rank 0:", error.partition(". ")[0])
print("checkpoints:", *sorted(path.name for path in Path(killed.run_dir).glob("*/step-*")))
assert ends[1].exitcode == -9
copy = shutil.copytree(killed.run_dir, root / "three_ranks")  # resumed further below

# %% [markdown]
# Now run the same thing again. It resumes, and the final weights match those of the
# uninterrupted run.

# %%
resumed = on_ranks(partial(run, killed), 2)
print("uninterrupted", reference[0]["weights_sha256"])
print("resumed      ", resumed[0]["weights_sha256"])
assert resumed == reference

# %% [markdown]
# ## The proof
#
# Matching weights are strong evidence, but if they differ, they don't tell you why. So the
# audit reads the ledger. It computes the order itself and never calls your code. For each step
# it takes the attempt whose work survived, and compares that attempt's samples with the order.
# *Replayed* steps are the ones a later attempt had to train again.
#
# *Collapsed: the audit, which only reads files, and the code for the pictures. The audit comes in
# four parts: what the run recorded, what was due, which work survived, and the verdict. All of
# this also works for the hardened trainer, so its order is here too.*

# %% include="order" collapsed=true

# %% include="rehearsal.evidence.run_records" collapsed=true

# %% include="rehearsal.evidence.run_plan" collapsed=true

# %% include="rehearsal.evidence.lineage" collapsed=true

# %% include="rehearsal.evidence.audit" collapsed=true

# %% include="rehearsal.evidence.live_records" collapsed=true

# %% include="rehearsal.evidence.pictures" collapsed=true

# %%
for cfg in (base, uninterrupted, killed):
    report = audit_run(cfg.run_dir)
    assert report.status == "proved", report.findings
    print(f"{Path(cfg.run_dir).name:13} {report.status}: {report.verdict}; "
          f"attempts: {report.attempts}, steps replayed: {report.replayed_steps}")
assert report.attempts == 2 and report.replayed_steps > 0

# %% [markdown]
# A checkpoint doesn't depend on the number of ranks: the copy we made after the kill resumes on
# three. Each step has the same samples in different shares, so again every sample is trained
# exactly once. The final weights differ, because the dropout masks do.

# %%
on_three = on_ranks(partial(run, replace(killed, run_dir=str(copy))), 3)
report = audit_run(copy)
assert report.status == "proved" and on_three[0]["step"] == resumed[0]["step"]
print(f"{report.status}: {report.verdict}")

# %% [markdown]
# ## Four pictures
#
# **The sample map.** Each column is a step, and each cell is a sample in the color of its rank.
# The last batch of each epoch is smaller, so each rank's part of that column is shorter. The
# dashed frame shows the work lost to the kill and redone by attempt 1.

# %%
sample_map(killed.run_dir)

# %% [markdown]
# **Loss.** Each line of the ledger has a rank's part of the mean, so the curve is the sum over
# ranks. The uninterrupted run is the wide line, and both attempts of the killed run lie on top
# of it. The dotted line marks the checkpoint that attempt 1 resumed from.

# %%
loss_curves({"uninterrupted": uninterrupted.run_dir, "killed and resumed": killed.run_dir})

# %% [markdown]
# **Phases per rank.** The ranks move in lockstep. If one is a straggler, you see it on the
# others: their `backward` grows, because that's where they wait for its gradients. Don't add up
# the p95s: the phases rarely have their slow step at the same time. None of this says anything
# about the speed of a GPU or a network.

# %%
phase_bars(uninterrupted.run_dir)

# %% [markdown]
# **A timeline.** Four steps of both ranks on one clock; step 25 ends with a save. Rank 1
# doesn't save: its short `checkpoint` bar is the collective before the save. But it can't get
# far: it waits for rank 0 in the backward pass of step 26.

# %%
rank_timeline(uninterrupted.run_dir, first_step=24, num_steps=4)

# %% [markdown]
# ## Under torchrun
#
# In a clone of the repository, the same trainer runs from a terminal, alone or under torchrun. On a
# machine with GPUs it uses CUDA, NCCL and bf16 unless you say `--device cpu`.
#
# ```
# python trainer_core/live.py --run-dir runs/live
# torchrun --nproc-per-node 2 --max-restarts 3 trainer_core/live.py --run-dir runs/two --device cpu
# python scripts/audit_run.py runs/two
# ```
#
# ## What it leaves out
#
# The trainer is small because it promises less. When they ask what's missing, name the fault
# before the fix: "I've left out hang detection. It's the first thing I'd add once a rank can
# get stuck without dying, because then the job burns GPU hours and nobody gets paged."
#
# The [walkthrough](01_walkthrough.ipynb) has the trainer that survives these faults.
#
# | left out | the fault that calls for it | in the hardened trainer |
# |---|---|---|
# | hang detection | a rank gets stuck without dying. The others wait for the group's timeout, and then nobody knows which rank they waited for | [watchdog](../trainer_core/watchdog.py), [hang_report](../trainer_core/hang_report.py) |
# | identity checks | the job restarts with a different seed, dataset or global batch. It resumes at the same position of a different order | [resume](../trainer_core/resume.py) |
# | a lock on the run folder | somebody starts the job twice. Both copies write the same ledger and publish the same steps | [run_folder](../trainer_core/run_folder.py) |
# | ranks that die with their launcher | somebody kills torchrun alone. Its ranks keep training, next to those of the restarted job | [launch.py](../scripts/launch.py) |
# | errors raised on all ranks | the disk is full when rank 0 saves. Rank 0 reports why; the others report a lost connection, or wait for a timeout | [collectives](../trainer_core/collectives.py) |
# | a sample for an empty share | a rank without samples runs an empty batch, and one of the model's GPU kernels rejects it | [collectives](../trainer_core/collectives.py) |
# | uneven disks | one node's disk fills up, and only its ranks can't write their ledgers | [collectives](../trainer_core/collectives.py), [ledger](../trainer_core/ledger.py) |
# | several nodes | the cluster starts the ranks without torchrun, or a node has a different disk under the same path, so its ranks don't find the checkpoint that rank 0 chose | [interfaces](../trainer_core/integrations/interfaces.py), [resume](../trainer_core/resume.py) |
# | preemption | the scheduler sends SIGTERM a minute before it takes the node. The live trainer just dies, and loses the steps since its last save | [signals](../trainer_core/signals.py), [launch](../trainer_core/launch.py) |
# | asynchronous saves | the state is large, and every rank waits for rank 0's disk. The max of the `checkpoint` phase shows it | [checkpoint_writer](../trainer_core/checkpoint_writer.py) |
# | retention, leftovers | every checkpoint is kept, and so is the `tmp-` folder of a killed save, until the disk is full | [checkpoint_format](../trainer_core/checkpoint_format.py) |
# | setting damaged checkpoints aside | the newest one is damaged, and the job crashes in a loop for another reason. Every restart reads and rejects the damaged one again | [checkpoint_format](../trainer_core/checkpoint_format.py) |
# | checking the resume | a checkpoint loads, but with the wrong moments or position. Nothing compares the loss before and after | [resume_check](../trainer_core/resume_check.py) |
# | prefetching loader workers | samples come from a disk or have to be decoded. `data_wait` dominates | [data](../trainer_core/data.py), [datasets](../trainer_core/datasets.py) |
# | an order that needs no memory | the dataset has ten billion samples, and each rank's index takes 80 GB | [order](../trainer_core/order.py) |
# | an order that doesn't depend on numpy | a restart gets a newer numpy. If its shuffle differs, the rest of the epoch repeats some samples and misses others | [order](../trainer_core/order.py) |
# | fp16 and its scaler | the GPU has no bf16, and small gradients underflow to zero in fp16 | [model](../trainer_core/model.py), [train](../trainer_core/train.py) |
# | an answer to NaN | one bad batch ends the job with a traceback, and every restart runs into it again. An operator needs the step and its samples, or the choice to skip | [train](../trainer_core/train.py) |
# | no weight decay on biases | AdamW decays biases, and norms once the network has some, as if they were matrices | [model](../trainer_core/model.py) |
# | exposed sync on GPUs | `backward` grows, and you can't tell compute from communication. The sync per phase also costs overlap | [metrics](../trainer_core/metrics.py) |
# | logs, progress and traces | somebody asks for the learning rate, the gradient norm or a trace of one step | [run_log](../trainer_core/run_log.py), [progress](../trainer_core/progress.py), [chrome_trace](../trainer_core/chrome_trace.py) |
# | exporters | the dashboard and the pager need the metrics, and the files stay on the node | [exporters](../trainer_core/integrations/exporters.py) |
#
# Links to files don't work in Colab; the modules are also at
# [{{repository}}]({{repository}}/tree/main/trainer_core).
#
# Neither trainer shards the model or its optimizer. If they ask about a model that doesn't fit
# on one GPU, say: "That's FSDP. The order, the position and the publishing stay as they are;
# each rank then saves its own shard, and the checkpoint exists once all shards do."
#
# ## What to practice next

# %% [markdown] only="full"
# - Type `01_live_hidden.ipynb`, then `01_live_blank.ipynb` against 45 minutes.
# - Break one thing in this notebook, and before you run it, predict which cell fails first.
#   Divide the loss by the micro-batch's own size. Leave the empty pass out of `wrap_model`.
#   Write the checkpoint straight to its final name. Leave the hash out of
#   `latest_checkpoint_path`. Take the reseeding out of the loop in `run`. Don't restore the
#   optimizer. Start the sampler one position too late.
# - Say each "How I'd notice it's wrong" from memory: which metric would tell you?
# - Then take the [walkthrough](01_walkthrough.ipynb), which hardens the same eight cells.

# %% [markdown] only="blank hidden"
# - Type it again tomorrow, from the start, and talk all the way through.
# - Say each "How I'd notice it's wrong" from memory: which metric would tell you?
# - Then take the [walkthrough](01_walkthrough.ipynb), which hardens the same eight cells.
