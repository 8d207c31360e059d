# %% [markdown]
# # 12. Data correctness
#
# {{badge}}
#
# > "Before I talk about speed, I want to know what the model trained on. If two ranks share a
# > sample or a restart skips one, nothing crashes and the loss still falls. So I make the order
# > of the data a pure function, I keep one integer as the position, and I have the run record
# > which samples each step used. Then an audit can prove it."
#
# *Twenty minutes to read. Every picture comes from a run in this notebook: real ranks, real
# torch, a real bug.*

# %% collapsed=true
# {{setup torch numpy matplotlib cloudpickle platformdirs fsrs rehearsal}}

# %% collapsed=true
#@title Imports
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from rehearsal.handbook.diagrams import diagram
from rehearsal.handbook.on_ranks import on_ranks
from rehearsal.handbook.sample_maps import count_epochs, mean_losses, sample_maps

# %% [markdown]
# ## What "correct" means
#
# Say the definition before you say how you'd check it. For the data, four invariants are enough:
#
# 1. **Partition.** In each epoch, each sample is trained on exactly once, by exactly one rank.
# 2. **Order.** The order is a function of the seed and the epoch, and of nothing else. It doesn't
#    depend on how many ranks there are, or on how many loader workers.
# 3. **Weight.** Each sample of a global batch has the same weight in its gradient.
# 4. **Position.** After a restart, training continues with the sample after the last one that the
#    optimizer has stepped on.
#
# Each of the ten failures below breaks one of these four. The first four are the ones to name
# unprompted.

# %%
diagram("correctness_failures")

# %% [markdown]
# ## One trainer, and a `deal` to break
#
# The trainer below is as small as it can be and still be real: a model under
# `DistributedDataParallel`, AdamW, and a record of what each step trained on. It has 51 samples
# and a global batch of 8, so an epoch has seven steps and the last one has three samples. A
# number that doesn't divide evenly is where the bugs are.
#
# All that we change from here on is `deal`. It yields this rank's samples, step by step: the
# epoch, the ids, and how many samples the step has over all ranks.

# %% collapsed=true
#@title The data
NUM_SAMPLES, GLOBAL_BATCH, EPOCHS, SEED = 51, 8, 4, 17


def make_data():
    """51 inputs with 8 features, in 4 classes."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(NUM_SAMPLES, 8, generator=generator)
    return inputs, (inputs @ torch.randn(8, 4, generator=generator)).argmax(1)


# %%
def train(deal, resume_from=None, save_to=None, restores=("model", "optimizer"), weigh=None):
    """What each rank runs. Returns one record per step: what it trained on, and the loss."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    inputs, targets = make_data()
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 4))
    parts = {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.01)}
    done = 0
    if resume_from:
        saved = torch.load(resume_from)
        done = saved["step"]
        for name in restores:
            parts[name].load_state_dict(saved[name])
    wrapped, records = DistributedDataParallel(model), []
    for step, (epoch, ids, size) in enumerate(deal(rank, world_size, done), done + 1):
        losses = F.cross_entropy(wrapped(inputs[ids]), targets[ids], reduction="none")
        # DDP averages over the ranks. With this factor, each sample has the same weight.
        loss = losses.sum() * world_size / size if weigh is None else weigh(losses)
        parts["optimizer"].zero_grad()
        loss.backward()
        before = nn.utils.parameters_to_vector(model.parameters()).detach()
        parts["optimizer"].step()
        moved = nn.utils.parameters_to_vector(model.parameters()).detach() - before
        record = {"rank": rank, "world_size": world_size, "epoch": epoch, "step": step}
        record |= {"samples": list(ids), "loss_sum": losses.detach().sum().item()}
        records.append(record | {"update": moved.norm().item()})
    if save_to and rank == 0:
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**state, "step": step}, save_to)
    return records


# %% [markdown]
# The right `deal` has two lines that matter. The epoch's order is cut into global batches first,
# and only then is each batch dealt to the ranks. So a batch is the same 8 samples on one rank, on
# two and on three.
#
# > "I cut the batch before I cut the ranks. That's the whole trick: the number of ranks can change
# > between two steps, and nothing about the data does."

# %%
def order_of(epoch):
    """The epoch's order: a function of the seed and the epoch alone."""
    generator = torch.Generator().manual_seed(1000 * SEED + epoch)
    return torch.randperm(NUM_SAMPLES, generator=generator).tolist()


def right(rank, world_size, done):
    steps_per_epoch = -(-NUM_SAMPLES // GLOBAL_BATCH)
    for position in range(done, EPOCHS * steps_per_epoch):
        epoch, step = divmod(position, steps_per_epoch)
        batch = order_of(epoch)[step * GLOBAL_BATCH : (step + 1) * GLOBAL_BATCH]
        yield epoch, batch[rank::world_size], len(batch)


# %% collapsed=true
#@title Kill a run, start one on some ranks, and compare two
def until(last_step, deal):
    """The same deal, killed after ``last_step``."""

    def killed(rank, world_size, done):
        for step, dealt in enumerate(deal(rank, world_size, done), done + 1):
            yield dealt
            if step == last_step:
                return

    return killed


def run(world_size, deal, **options):
    """Train on that many ranks; returns the records of all of them."""

    def one_rank():
        return train(deal, **options)

    return [record for records in on_ranks(one_rank, world_size) for record in records]


def compare(broken, name):
    """The map of a broken run next to that of the right one, and what each epoch got."""
    for count in count_epochs(broken, NUM_SAMPLES):
        print(count)
    return sample_maps({"right": right_run, name: broken}, NUM_SAMPLES)


# %% [markdown]
# Here is the right run. It trains on two ranks, dies after step 10 in the middle of the second
# epoch, and resumes on three. In the map, a column is a step and a row is a sample. The color is
# the rank that trained on it. From step 11 there are three colors, and the map has no hole.

# %%
folder = Path(tempfile.mkdtemp(prefix="handbook-"))
saved = folder / "step-10.pt"

before_the_kill = run(2, until(10, right), save_to=saved)
right_run = before_the_kill + run(3, right, resume_from=saved)
for count in count_epochs(right_run, NUM_SAMPLES):
    print(count)
sample_maps({"right": right_run}, NUM_SAMPLES)

# %% [markdown]
# ## The four to name unprompted
#
# ### 1. Ranks share samples
#
# DDP synchronizes gradients. It never looks at the data. So a plain shuffling loader under DDP
# gives every rank the whole dataset, in an order of its own. Nothing warns you.

# %%
def no_sampler(rank, world_size, done):
    torch.manual_seed(SEED + rank)  # as many do, and for dropout they should
    loader = DataLoader(range(NUM_SAMPLES), batch_size=4, shuffle=True)
    for epoch in range(EPOCHS):
        for ids in loader:
            yield epoch, ids.tolist(), len(ids) * world_size


shared = run(2, no_sampler)
compare(shared, "no sampler")

# %% [markdown]
# An epoch now takes 13 steps and visits every sample twice. The loss falls, and it falls faster per
# epoch than it should. That's the only visible sign, and it looks like good news. You paid for two
# ranks, and each of them did the work of one.
#
# > "DDP's contract has three parts: replication, communication and partition. It gives me the
# > first two. Partition is mine."

# %% [markdown]
# ### 2. A resume skips samples
#
# The checkpoint stores the epoch but not the position in it. After the kill in step 10, this
# trainer starts with the next epoch.

# %%
def next_epoch(rank, world_size, done):
    steps_per_epoch = -(-NUM_SAMPLES // GLOBAL_BATCH)
    first = -(-done // steps_per_epoch) * steps_per_epoch  # rounds up to a whole epoch
    yield from right(rank, world_size, first)


skipped = before_the_kill + run(2, next_epoch, resume_from=saved)
compare(skipped, "resumes at the next epoch")

# %% [markdown]
# The lines across are samples that the second epoch never saw. One restart costs half an epoch
# here, which nobody would notice. But if an epoch takes a week and a machine fails every day, no
# epoch gets past its first day, and the log says that you've trained for seven.
#
# The opposite mistake, starting the epoch again, repeats samples instead. Which is worse? Skipping:
# a repeat overfits a little, and a skip can remove a whole shard from the training for good.

# %% [markdown]
# ### 3. Another number of ranks changes the batch
#
# This trainer fixes the batch per rank at 4. It restarts on four ranks instead of two, and
# nobody decides anything: the global batch goes from 8 to 16.

# %%
def four_each(rank, world_size, done):
    trained, batch = done * 8, 4 * world_size  # the first attempt had 2 ranks with 4 each
    while trained < EPOCHS * NUM_SAMPLES:
        epoch, first = divmod(trained, NUM_SAMPLES)
        ids = order_of(epoch)[first : first + batch]
        yield epoch, ids[rank::world_size], len(ids)
        trained += len(ids)


resized = run(2, until(6, four_each), save_to=folder / "resized.pt")
resized += run(4, four_each, resume_from=folder / "resized.pt")
compare(resized, "4 samples per rank")

# %% [markdown]
# Each sample is still trained on once, so the partition is right. But from the second epoch on, a
# column has 16 samples, an epoch takes four steps instead of seven, and everything that counts in
# steps is off: warmup, the schedule's horizon, the optimizer's averages, checkpoint cadence. The
# learning rate was tuned for a batch of 8.
#
# > "Global batch is micro-batch times accumulation times world size. I put it on the config as a
# > property, store it with the run, and refuse a resume that changes it. If I have to resize, I
# > pin the global batch and change the accumulation."

# %% [markdown]
# ### 4. Weights come back, the optimizer doesn't
#
# This resume restores the model and forgets AdamW's moments. The data is right, so the map is
# clean, and the loss doesn't jump either. What does jump is the size of the update.

# %%
stale = before_the_kill + run(3, right, resume_from=saved, restores=["model"])
compare(stale, "without the optimizer's state")

# %%
#@title How far each step moves the weights
import matplotlib.pyplot as plt

from rehearsal.evidence.pictures import BLUE, VERMILLION, new_figure, on_any_theme


def updates_of(records):
    """The norm of each step's update; DDP makes it the same on all ranks."""
    return {record["step"]: record["update"] for record in records if record["rank"] == 0}


figure, axes = new_figure(3, "Size of the update", "norm of the change of the weights")
for name, records, style in (
    ("right", right_run, {"color": BLUE}),
    ("without the optimizer's state", stale, {"color": VERMILLION, "linestyle": "--"}),
):
    sizes = updates_of(records)
    axes.plot(list(sizes), list(sizes.values()), label=name, **style)
axes.axvline(10.5, color="#797979", linewidth=0.8)
axes.set(xlabel="step", ylabel="update norm", ylim=(0, None))
axes.legend(frameon=False)
on_any_theme(figure)

# %%
sizes = updates_of(right_run)[11], updates_of(stale)[11]
print(f"step 11 moves the weights by {sizes[0]:.3f} in the right run and {sizes[1]:.3f} here")

# %% [markdown]
# Adam divides the average gradient by the root of the average squared gradient. With both at zero,
# the bias correction makes the first step close to the learning rate in every single weight, as if
# training had just begun. Chapter 13 takes every piece of state away in turn.

# %% [markdown]
# ## Six more
#
# ### 5. Nobody calls `set_epoch`
#
# `DistributedSampler` shuffles with `seed + epoch`, and the epoch stays 0 unless you set it.

# %%
def no_set_epoch(rank, world_size, done):
    sampler = DistributedSampler(range(NUM_SAMPLES), world_size, rank, seed=SEED)
    for epoch in range(EPOCHS):
        for ids in DataLoader(range(NUM_SAMPLES), batch_size=4, sampler=sampler):
            yield epoch, ids.tolist(), len(ids) * world_size


same_order = run(2, no_set_epoch)
compare(same_order, "no set_epoch")

# %% [markdown]
# The four epochs are copies of each other: the same samples meet in the same batches forever.
# That weakens the shuffling that SGD relies on. How much it costs depends on the data, so don't
# claim a number. Say how you'd see it: log a hash of each epoch's order, and alert on two that are
# equal.

# %%
def batches_of(records, epoch):
    """The sets of samples that met in a step of the epoch."""
    steps = sorted({record["step"] for record in records if record["epoch"] == epoch})
    found = [[r["samples"] for r in records if r["step"] == step] for step in steps]
    return [frozenset(sum(samples, [])) for samples in found]


for name, records in (("right", right_run), ("no set_epoch", same_order)):
    again = len(set(batches_of(records, 0)) & set(batches_of(records, 1)))
    print(f"{name}: {again} of the first epoch's batches come again in the second")

# %% [markdown]
# ### 6. Padding
#
# The same sampler in the same run did something else. It makes all ranks' shares equal by
# repeating samples from the start of the order: 51 samples on two ranks became 52. That's the dot
# in each epoch of the map above. For training it hardly matters. In an evaluation, it does: some
# samples count twice, which ones depends on the number of ranks, and so does your metric.

# %%
for world_size in (1, 2, 4, 8):
    ranks = range(world_size)
    data = range(NUM_SAMPLES)
    visits = sum(len(DistributedSampler(data, world_size, rank)) for rank in ranks)
    print(f"{visits} visits to {NUM_SAMPLES} samples with world size {world_size}")

# %% [markdown]
# ### 7. The dropped tail
#
# `drop_last=True` avoids the padding by never training on the last few samples. With a new order in
# each epoch, it's a different few each time, and you can live with that. Without `set_epoch` it's
# the same ones, forever.

# %%
def drop_last(rank, world_size, done):
    data = range(NUM_SAMPLES)
    sampler = DistributedSampler(data, world_size, rank, seed=SEED, drop_last=True)
    loader = DataLoader(data, batch_size=4, sampler=sampler, drop_last=True)
    for epoch in range(EPOCHS):
        for ids in loader:
            yield epoch, ids.tolist(), len(ids) * world_size


dropped = run(2, drop_last)
never = set(range(NUM_SAMPLES)) - {sample for record in dropped for sample in record["samples"]}
print("never trained on, in four epochs:", sorted(never))
compare(dropped, "drop_last, no set_epoch")

# %% [markdown]
# ### 8. Counting what was fetched
#
# A sampler that counts what it hands out looks like the obvious way to resume. But loader workers
# run ahead of the training. Two workers that prefetch one batch each are enough: the loader has
# asked for more batches than the model has seen, and the checkpoint says that they're done.

# %%
class CountsWhatItHandsOut(DistributedSampler):
    consumed = 0

    def __iter__(self):
        for sample in list(super().__iter__())[self.consumed :]:
            self.consumed += 1
            yield sample


def counted_after_three_steps(workers):
    sampler = CountsWhatItHandsOut(range(NUM_SAMPLES), num_replicas=2, rank=0, seed=SEED)
    ahead = {"prefetch_factor": 1} if workers else {}  # the default is 2
    loader = DataLoader(range(NUM_SAMPLES), 4, sampler=sampler, num_workers=workers, **ahead)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    return sampler.consumed


for workers in (0, 2):
    counted = counted_after_three_steps(workers)
    print(f"{workers} workers: 12 samples trained on, {counted} counted")

# %% [markdown]
# Now the kill comes after the third step of the second epoch, and the restart continues where that
# count says.

# %%
def skips(per_rank):
    """Resume in epoch 1, after ``per_rank`` samples of each rank's share."""

    def deal(rank, world_size, done):
        sampler = DistributedSampler(range(NUM_SAMPLES), world_size, rank, seed=SEED)
        for epoch in range(1, EPOCHS):
            sampler.set_epoch(epoch)
            share = list(sampler)[per_rank if epoch == 1 else 0 :]
            for first in range(0, len(share), 4):
                ids = share[first : first + 4]
                yield epoch, ids, len(ids) * world_size

    return deal


def stock(rank, world_size, done):
    """torch's own sampler, used well."""
    sampler = DistributedSampler(range(NUM_SAMPLES), world_size, rank, seed=SEED)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for ids in DataLoader(range(NUM_SAMPLES), 4, sampler=sampler):
            yield epoch, ids.tolist(), len(ids) * world_size


stock_saved = folder / "stock.pt"
stock_start = run(2, until(10, stock), save_to=stock_saved)
miscounted = stock_start + run(2, skips(counted), resume_from=stock_saved)
compare(miscounted, "counts what was fetched")

# %% [markdown]
# What was in the queue when the process died is lost, on every restart, on every rank. With more
# workers and deeper prefetching it's more. And without workers the bug isn't there, so a unit test
# that uses none passes.
#
# > "The position moves when the optimizer has stepped, never when the loader has fetched. So it's
# > a counter in the training loop, and the sampler only reads it."

# %% [markdown]
# ### 9. A count per rank meets another number of ranks
#
# This time the count is right: each of two ranks has trained on 12 samples of its share. The job
# restarts on three ranks, and each of them skips 12.

# %%
recut = stock_start + run(3, skips(12), resume_from=stock_saved)
compare(recut, "12 per rank, on 3 ranks")

# %% [markdown]
# Two ranks had trained on 24 samples, and three ranks skipped 36. From three ranks to two it goes
# the other way, and samples repeat. A count per rank means nothing without the number of ranks it
# was counted on. A count of *global* steps or samples does.
#
# ### 10. The mean of means
#
# The data is right, and the weights of the samples aren't. The epoch's last step has three samples:
# two on rank 0 and one on rank 1. If each rank takes the mean over its own samples, DDP averages the
# two means, and the one sample on rank 1 counts twice as much as each of the other two.

# %%
alone = run(1, right)
weighted = run(2, right)
averaged = run(2, right, weigh=torch.mean)

print("update norm        one process   2 ranks, by samples   2 ranks, mean of means")
for step in (6, 7, 28):
    row = [updates_of(records)[step] for records in (alone, weighted, averaged)]
    print(f"step {step:2}        {row[0]:15.7f} {row[1]:21.7f} {row[2]:24.7f}")

# %% [markdown]
# Step 6 is full and all three agree. From step 7, the mean of means is on a path of its own. Here
# it's three samples in an epoch. With variable-length sequences it's every step: a rank with few
# unmasked tokens gives each of them a larger weight. Sum the loss, divide by the *global* count of
# what you average over, and multiply by the number of ranks, because DDP divides by it.

# %% [markdown]
# ## What did the loss show?
#
# All runs, side by side. From the two columns of losses alone, which ones would you have stopped?

# %%
every_run = {
    "right": right_run,
    "1 no sampler": shared,
    "2 resumes at the next epoch": skipped,
    "3 batch follows the ranks": resized,
    "4 optimizer forgotten": stale,
    "5 no set_epoch, 6 padding": same_order,
    "7 drop_last": dropped,
    "8 counts what was fetched": miscounted,
    "9 count per rank": recut,
    "10 mean of means": averaged,
}
print(f"{'mean loss, in nats':30} first epoch   last epoch   samples missed or repeated")
for name, records in every_run.items():
    losses = {}
    for epoch in (0, EPOCHS - 1):
        steps = mean_losses(record for record in records if record["epoch"] == epoch)
        losses[epoch] = sum(steps.values()) / len(steps)
    counts = count_epochs(records, NUM_SAMPLES)
    wrong = sum(len(count.missed) + len(count.repeated) for count in counts)
    print(f"{name:30} {losses[0]:11.2f} {losses[EPOCHS - 1]:12.2f} {wrong:10}")

# %% [markdown]
# Every one of them learns. That's why the handbook calls duplicated and omitted samples the most
# dangerous silent failure.
#
# ## "How do you know it's correct?"
#
# Answer in four steps, in this order.
#
# 1. **Define correct.** "Every sample of an epoch exactly once, equal weight within a batch, and a
#    resume that continues the same run."
# 2. **Name the state that must survive.** "Model, optimizer, scaler, schedule, RNG of each rank,
#    the global step, and the identity of the run: data, seed, global batch."
# 3. **Explain the partition invariant.** "The order is a pure function of seed and epoch. I cut it
#    into global batches first and deal each one to the ranks, so the shares are disjoint and
#    complete at any number of ranks."
# 4. **Explain how you'd validate a resume.** "I kill a run and compare it with one that nobody
#    killed. On the same number of ranks I expect the same bits, on another number the same samples
#    and the same loss up to rounding."

# %%
uninterrupted = run(2, right)
resumed = before_the_kill + run(2, right, resume_from=saved)
on_three = right_run


def losses_of(records):
    return list(mean_losses(records).values())


identical = losses_of(uninterrupted) == losses_of(resumed)
same_samples = batches_of(uninterrupted, 1) == batches_of(on_three, 1)
updates = [updates_of(records) for records in (uninterrupted, on_three)]
apart = max(abs(updates[0][step] - updates[1][step]) / updates[0][step] for step in updates[0])
print("resumed on two ranks, all losses bit-identical:", identical)
print("resumed on three ranks, the same samples in each step:", same_samples)
print(f"resumed on three ranks, updates differ by at most {apart:.0e} (relative)")

# %% [markdown]
# Three ranks add up the same numbers in another order, so the last digits differ. That's the line to
# draw in an interview: *the same samples* is a promise you can keep at any number of ranks; *the same
# bits* needs the same number of ranks, the same kernels and the same order of reduction.
#
# In the trainer of this project, these records are the ledger, and `scripts/audit_run.py` is the
# proof. It's what you'd build in production too: two integers and a hash per step are enough.

# %% [markdown]
# ## Say it in 60 seconds
#
# > "The failure I worry about most is the one that doesn't crash. Two ranks train on the same
# > sample, or a restart skips half an epoch, and the loss still falls.
# >
# > So I make three things explicit. The order of an epoch is a pure function of seed and epoch. I
# > cut it into global batches before I deal each batch to the ranks, so the number of ranks can
# > change without touching the data. And the position is one integer, the number of steps that the
# > optimizer has completed. It isn't what the loader has fetched, because workers run ahead.
# >
# > Each rank writes down the samples it trained on after each step. An audit checks that every
# > epoch is a permutation: no sample missing, none twice. And before I trust any of that, I kill a
# > run in the middle and compare it with one that nobody killed."

# %% [markdown]
# ## Three questions
#
# **"DistributedSampler handles sharding. What's left to get wrong?"**
#
# - *Weak:* "Nothing much, as long as I remember `set_epoch`."
# - *Strong:* "Three things. It pads to equal shares, so an evaluation counts some samples twice, and
#   which ones depends on the number of ranks. It has no position, so a resume starts the epoch
#   over. And if I add a counter to it, prefetching workers move that counter ahead of the training.
#   I'd keep the position in the training loop and derive the shares from it."
# - *What would prove me wrong:* samples trained on per epoch, minus the size of the dataset, from the
#   ranks' own records. It should be zero after a run with restarts.
#
# **"You resume on half the machines. What changes?"**
#
# - *Weak:* "It's slower, but otherwise the same."
# - *Strong:* "By default the global batch halves, and with it the number of steps per epoch, the
#   schedule and the noise of the gradient. I pin the global batch and double the accumulation. Then
#   the samples of each step stay the same, and only the rounding differs."
# - *What would prove me wrong:* the samples per optimizer step, and the learning rate as a function of
#   samples seen, before and after the restart.
#
# **"Is repeating a few samples after a crash a problem?"**
#
# - *Weak:* "No, SGD is noisy anyway."
# - *Strong:* "A few, no. But I want to know how many, and I'd rather repeat than skip, because a skip
#   can remove a part of the data for good and a repeat can't. If the checkpoint, the position and
#   the optimizer are from the same step, it's zero of both, and it costs one integer."
# - *What would prove me wrong:* visits per sample over the whole run. If repeats pile up on samples
#   that come late in the order, restarts are biasing the training.

# %% [markdown]
# ## Practice it
#
# - Drills: [lift_to_ddp](../drills/015_lift_to_ddp.ipynb),
#   [lift_to_distributed](../drills/020_lift_to_distributed.ipynb),
#   [cell_data](../drills/120_cell_data.ipynb),
#   [samples_repeat_from_the_second_epoch](../drills/290_samples_repeat_from_the_second_epoch.ipynb),
#   [resized_restart_repeats_samples](../drills/235_resized_restart_repeats_samples.ipynb).
# - The code: section 2 of the [walkthrough](../01_walkthrough.ipynb).
# - The cards: `ask(topic="data")` in [03_deck](../03_deck.ipynb).
