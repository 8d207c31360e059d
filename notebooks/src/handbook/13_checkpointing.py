# %% [markdown]
# # 13. Checkpointing and recovery
#
# {{badge}}
#
# > "A checkpoint makes two promises. Operations wants to know how much work we can lose, and the
# > next attempt wants to know exactly where it was. So before I talk about storage, I name the
# > state that must survive, I say how a save becomes visible, and I say who restarts when
# > something fails. Then I kill a run in the middle of a save and compare."
#
# *Twenty-five minutes to read. Every kill, every torn file and every bad resume below happens in
# this notebook.*

# %% collapsed=true
# {{setup torch numpy matplotlib cloudpickle platformdirs fsrs rehearsal}}

# %% collapsed=true
#@title Imports
from rehearsal.engine.ranks import warm_up

ours = ("kill_points", "restarts", "save_formats")
libraries = ("trainer_core.launch", "torch.distributed.checkpoint", "torch.distributed.tensor")
warm_up(*libraries, *(f"rehearsal.handbook.{name}" for name in ours))  # for the ranks

import hashlib
import json
import os
import pickle
import re
import signal
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from rehearsal.evidence.audit import audit_run
from rehearsal.evidence.cadence import Costs, best_interval, expected_goodput, young_interval
from rehearsal.faults import breaks, storage
from rehearsal.handbook import kill_points, restarts, resume_panels, save_formats
from rehearsal.handbook.diagrams import diagram
from rehearsal.handbook.on_ranks import RankFailed, on_ranks, watch_ranks
from trainer_core.checkpoint_writer import HostSnapshot

FAST = os.environ.get("FAST") == "1"
folder = Path(tempfile.mkdtemp(prefix="handbook-"))

# %% [markdown]
# ## What must survive
#
# A checkpoint is *complete* if a resume from it continues the same run:
#
# | state | without it |
# |---|---|
# | model | there is nothing to resume |
# | optimizer | Adam's moments restart at zero, and the next updates are too large |
# | scheduler | the learning rate jumps back to warmup |
# | loss scaler (fp16) | the scale restarts at its default, and steps are skipped |
# | sampler position | samples repeat or are skipped |
# | random states, one per rank | dropout draws other masks, or the same ones on all ranks |
# | step, and the identity of the run | a resume can continue another run without an error |
#
# You don't have to believe the table. We'll take the pieces away one at a time, and measure.
#
# ## A trainer with everything to lose
#
# Two ranks, DDP, dropout on the inputs, AdamW with warmup and decay, fp16 with a loss scaler, and a
# sampler with a position. An epoch has 12 steps. We'll kill the run after step 18, in the middle of
# the second epoch.

# %%
NUM_SAMPLES, GLOBAL_BATCH, STEPS, SEED, KILLED_AFTER = 96, 8, 36, 17, 18


class Sampler:
    """The order is a function of seed and epoch; the position in it is state."""

    def __init__(self, seed):
        self.seed, self.epoch, self.offset = seed, 0, 0

    def next_batch(self):
        generator = torch.Generator().manual_seed(1000 * self.seed + self.epoch)
        order = torch.randperm(NUM_SAMPLES, generator=generator).tolist()
        batch = order[self.offset : self.offset + GLOBAL_BATCH]
        carry, self.offset = divmod(self.offset + GLOBAL_BATCH, NUM_SAMPLES)
        self.epoch += carry
        return batch

    def state_dict(self):
        return {"epoch": self.epoch, "offset": self.offset}

    def load_state_dict(self, state):
        self.epoch, self.offset = state["epoch"], state["offset"]


def build(seed):
    """Everything that has a state, new."""
    torch.manual_seed(seed)  # the same weights on every rank
    model = nn.Sequential(nn.Dropout(0.2), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 8) * (1 - 0.9 * step / STEPS)
    )
    parts = {"model": model, "optimizer": optimizer, "scheduler": schedule}
    return parts | {"scaler": torch.amp.GradScaler("cpu"), "sampler": Sampler(seed)}


# %% [markdown]
# Saving gathers every rank's random state, because each rank draws its own dropout. Restoring checks
# the identity before it loads anything, and `forget` is what we'll use to break it.

# %%
def identity_of(seed):
    return {"seed": seed, "num_samples": NUM_SAMPLES, "global_batch": GLOBAL_BATCH}


def save(path, parts, step, seed):
    """Every rank calls this: each has a random stream of its own."""
    streams = [None] * dist.get_world_size()
    dist.all_gather_object(streams, torch.get_rng_state())
    if dist.get_rank() == 0:
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**state, "rng": streams, "step": step, "identity": identity_of(seed)}, path)


def restore(path, parts, seed, forget=(), stream=None):
    """Load what isn't in ``forget``; returns the number of completed steps."""
    saved = torch.load(path)
    theirs, ours = saved["identity"], identity_of(seed)
    if "identity" not in forget and theirs != ours:
        raise ValueError(f"the checkpoint is of another run: {theirs} there, {ours} here")
    for name, part in parts.items():
        if name not in forget:
            part.load_state_dict(saved[name])
    for group, lr in zip(parts["optimizer"].param_groups, parts["scheduler"].get_last_lr()):
        group["lr"] = lr  # the schedule decides, not whatever the optimizer had
    if "rng" not in forget:
        torch.set_rng_state(saved["rng"][dist.get_rank() if stream is None else stream])
    return saved["step"]


# %%
def train(last_step=STEPS, seed=SEED, save_to=None, resume_from=None, **how):
    """What each rank runs; returns a record per step."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    inputs, targets = make_data()
    parts, masks, records = build(seed), [], []
    model, optimizer, schedule, scaler, sampler = parts.values()
    model[0].register_forward_hook(lambda *call: masks.append((call[2] == 0).int().tolist()))
    wrapped = DistributedDataParallel(model)
    torch.manual_seed(seed + 1 + rank)  # last, so that nothing draws from it before training
    done = restore(resume_from, parts, seed, **how) if resume_from else 0
    for step in range(done + 1, last_step + 1):
        record = {"rank": rank, "step": step, "scale": scaler.get_scale()}
        record |= {"lr": schedule.get_last_lr()[0], "moments": len(optimizer.state)}
        record |= {"position": sampler.epoch + sampler.offset / NUM_SAMPLES}
        ids = sampler.next_batch()[rank::world_size]
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(wrapped(inputs[ids]).float(), targets[ids])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        before = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        after = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        record |= {"samples": ids, "mask": masks[-1], "loss": loss.item()}
        records.append(record | {"update": (after - before).norm().item()})
    if save_to:
        save(save_to, parts, last_step, seed)
    return records

# %% collapsed=true
#@title The data, and two ranks to train on it
def make_data():
    """96 inputs with 16 features, in 4 classes."""
    generator = torch.Generator().manual_seed(0)
    inputs = 8 * torch.randn(NUM_SAMPLES, 16, generator=generator)
    return inputs, (inputs @ torch.randn(16, 4, generator=generator)).argmax(1)


def run(**options):
    """Train on two ranks; returns the records of both."""

    def one_rank():
        return train(**options)

    return [record for records in on_ranks(one_rank, 2) for record in records]


of_rank = resume_panels.of_rank

# %% [markdown]
# First the control. A run that restores everything must match the uninterrupted run bit for bit, on
# the same number of ranks. Otherwise nothing that follows means anything.

# %%
saved = folder / "step-18.pt"
uninterrupted = run()
before = run(last_step=KILLED_AFTER, save_to=saved)
complete = before + run(resume_from=saved)
for key in ("loss", "samples", "mask", "update"):
    same = all(of_rank(complete, key, r) == of_rank(uninterrupted, key, r) for r in (0, 1))
    print(f"{key:8} of all {STEPS} steps on both ranks, bit-identical: {same}")

# %% [markdown]
# ## Take one piece away at a time
#
# Six resumes from the same file, each without one piece. The last one resumes with another seed.

# %%
pieces = ("optimizer", "scheduler", "scaler", "sampler", "rng")
resumed = {piece: run(resume_from=saved, forget=[piece]) for piece in pieces}
resumed["identity"] = run(resume_from=saved, forget=["identity"], seed=SEED + 1)
broken = {piece: before + records for piece, records in resumed.items()}
resume_panels.six_panels(uninterrupted, broken, KILLED_AFTER)

# %%
#@title The same in numbers
visits = [sample for record in broken["sampler"] for sample in record["samples"]]
times = sorted({visits.count(sample) for sample in range(NUM_SAMPLES)})
skipped = [step for step, moved in of_rank(resumed["scaler"], "update").items() if not moved]
right, stale = of_rank(uninterrupted, "update"), of_rank(broken["optimizer"], "update")
rates, masks = of_rank(broken["scheduler"], "lr"), of_rank(broken["rng"], "mask")
print(f"optimizer: step 19 moves the weights by {stale[19]:.3f} instead of {right[19]:.3f}")
print(f"scheduler: the learning rate goes from {rates[18]:.4f} to {rates[19]:.4f}")
print(f"scaler:    steps {skipped} change no weight; their samples count as trained on")
print(f"sampler:   after 36 steps, samples were trained on {times} times instead of 3")
print(f"rng:       step 19 draws the dropout mask of step 1: {masks[19] == masks[1]}")

# %% [markdown]
# Read the panels as an operator would:
#
# - Adam without its moments takes a step more than three times as large.
# - The scheduler warms up again, and by step 26 the rate is more than twice what it should be.
# - The scaler is back at 2^16 and skips steps until the gradients fit into fp16.
# - The sampler starts over, so half of the samples are trained on four times and the rest twice.
# - Dropout draws the masks of step 1 again. (Two unrelated masks agree in 68% of their places, so
#   the line doesn't fall to 0.) That's no disaster, but from here on no comparison with another run
#   can prove anything.
# - With another seed, nearly every sample is the wrong one, and no other panel would show it.
#
# So the identity is checked first. With the check in place, the same resume is refused on every
# rank, before anything is loaded:

# %%
try:
    run(resume_from=saved, seed=SEED + 1)
except RankFailed as error:
    print(str(error).partition("\n")[0])

# %% [markdown]
# The trainer of this project sorts its settings by what a resume may do with them: changing an
# *identity* field (data, seed, global batch, model) is refused; changing the learning rate takes
# effect, and is logged.
#
# ### One stream for all ranks
#
# Many trainers save the random state of rank 0, because rank 0 does the saving, and restore it
# everywhere.

# %%
shared = run(resume_from=saved, stream=0)
for name, records in (("own stream per rank", uninterrupted), ("rank 0's stream", shared)):
    common = resume_panels.masks_in_common(records, records, rank=1, of=0)
    least = min(percent for step, percent in common.items() if step > KILLED_AFTER)
    print(f"{name}: in every step, {least:.0f}% of the mask or more is the same on both ranks")

# %% [markdown]
# All ranks now draw the same dropout, and if they augment data, the same augmentations. Nothing
# fails. The noise that was meant to average out over the ranks no longer does.
#
# ### A checkpoint that saves and doesn't load
#
# By default, `torch.load` refuses what could run code. numpy's random state contains an array, which
# is enough. The save succeeds, and every restart fails.

# %%
path = folder / "numpy.pt"
torch.save({"numpy": np.random.get_state()}, path)
try:
    torch.load(path)
except pickle.UnpicklingError as error:
    print("array:", str(error).partition(".")[0])
name, keys, *rest = np.random.get_state()
torch.save({"numpy": (name, keys.tolist(), *rest)}, path)
np.random.set_state(torch.load(path)["numpy"])
print("list:  loads, and set_state takes it")

# %% [markdown]
# > "I don't turn `weights_only` off: then a checkpoint is a program. I save plain types, and a test
# > loads what the trainer saves."
#
# ## Six checks after every resume
#
# You can't compare every resume with an uninterrupted run. You can check six things in the first
# steps, and log the result as one event.

# %%
def validate(saved, before, after):
    """The six checks, from the checkpoint and from what the ranks recorded around it."""
    first = min(record["step"] for record in after)
    start = [record for record in after if record["step"] == first]
    order = Sampler(saved["identity"]["seed"])
    order.load_state_dict(saved["sampler"])
    old = [record["loss"] for record in before if record["step"] > saved["step"] - 8]
    new = [record["loss"] for record in after if record["step"] < first + 5]
    jump = abs(statistics.mean(new) - statistics.mean(old))
    return {
        "step": first == saved["step"] + 1,
        "lr": start[0]["lr"] == saved["scheduler"]["_last_lr"][0],
        "optimizer": start[0]["moments"] > 0,
        "scaler": start[0]["scale"] == saved["scaler"]["scale"],
        "sampler": start[0]["samples"] == order.next_batch()[::2],  # rank 0's share
        "loss": jump < 4 * statistics.stdev(old),
    }


checked = {"nothing": complete[len(before) :], **resumed, "own streams": shared}
state = torch.load(saved)
verdicts = {piece: validate(state, before, after) for piece, after in checked.items()}
print(f"{'missing':13}", *(f"{check:10}" for check in verdicts["nothing"]))
for piece, checks in verdicts.items():
    print(f"{piece:13}", *(f"{'ok' if passed else 'FAILS':10}" for passed in checks.values()))

# %% [markdown]
# Four of the checks each find a bug that no other one finds, and nothing here breaks the step. Take
# two things from the table. The loss is continuous in every row, so "the loss looks fine" isn't
# evidence. And no check sees the random states: that takes the bit-for-bit comparison with an
# uninterrupted run, in CI.
#
# ## Four decisions, not one
#
# "How do you checkpoint?" is four questions. Answer them one at a time:
#
# | decision | the question | default | what changes it |
# |---|---|---|---|
# | format | who writes what? | full, by one rank | the save takes longer than you can block |
# | atomicity | when does it exist? | manifest last, then one rename | storage without rename |
# | frequency | how much may we lose? | from save cost and failure rate | a measured cost |
# | policy | who restarts, from what? | all ranks, newest intact checkpoint | restarts cost goodput |
#
# ## Format: what a save costs
#
# Four ways to write the same state, on two ranks. The last two keep something in `memory` from one
# save to the next: a copy of the state, and a hash of each tensor.

# %%
def write(tensors, path):
    torch.save(tensors, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def full(state, folder, memory):
    if dist.get_rank() == 0:
        write(state, folder / "state.pt")


def sharded(state, folder, memory):
    mine = sorted(state)[dist.get_rank() :: dist.get_world_size()]
    write({name: state[name] for name in mine}, folder / f"shard-{dist.get_rank()}.pt")


def asynchronous(state, folder, memory):
    if dist.get_rank() == 0:
        copy = memory.setdefault("snapshot", HostSnapshot()).copy(state)
        pool = memory.setdefault("pool", ThreadPoolExecutor(1))
        return pool.submit(write, copy, folder / "state.pt")  # training continues here


def incremental(state, folder, memory):
    if dist.get_rank() == 0:
        digests = {name: hashlib.sha256(state[name].numpy()).digest() for name in state}
        changed = [name for name in state if digests[name] != memory.get(name)]
        memory.update(digests)
        write({name: state[name] for name in changed}, folder / "changed.pt")


# %%
width, repeats = (256, 3) if FAST else (512, 5)
everything, one_layer = range(8), [7]
costs = {}
for save_format, trains, name in (
    (full, everything, "full"),
    (sharded, everything, "sharded"),
    (asynchronous, everything, "asynchronous"),
    (incremental, everything, "incremental, all train"),
    (full, one_layer, "full, 1 of 8 trains"),
    (incremental, one_layer, "incremental, 1 of 8"),
):
    measure = partial(save_formats.cost_of, width=width, trains=trains, repeats=repeats)
    costs[name] = measure(name, save_format, folder)
save_formats.print_costs(costs.values())
per_parameter = costs["full"].total_mb * 1e6 / (8 * width**2)
print(f"\nfull: {per_parameter:.1f} bytes per parameter")

# %% [markdown]
# - **Full** is 12 bytes per parameter: fp32 weights and two moments, and 14 if you save bf16 weights
#   too. It's simple to restore and to debug, and one rank writes while all the others wait.
# - **Sharded** writes the same bytes, and the busiest writer has a fraction of them. Both ranks
#   share one disk here, so judge it by the MB, not by the ms. A restore needs every shard.
# - **Asynchronous** blocks for one copy in memory. It needs room for that copy, its errors surface
#   later, and if the node dies before the write ends, you fall back one checkpoint further.
# - **Incremental** saves nothing if everything trains, because Adam changes every tensor in every
#   step. With a frozen backbone it pays. A restore needs the whole chain, so deleting an old
#   checkpoint can break a newer one.
#
# Never leave out the copy: a state dict refers to the live tensors, so the file would mix two steps.
# Section 6 of the walkthrough shows it.
#
# ## Atomicity: kill the save at every system call
#
# A save takes several system calls, and a kill doesn't wait for the last one. Here are the two saves
# of most first drafts, and one that survives.

# %%
weights = torch.randn(512, 512)


def in_place(folder, step):
    torch.save({"weights": weights, "step": step}, folder / "latest.pt")


def under_final_name(folder, step):
    torch.save({"weights": weights, "step": step}, folder / f"step-{step}.pt")


def load_in_place(folder):
    return torch.load(folder / "latest.pt")["step"]


def load_newest_name(folder):
    return torch.load(max(folder.glob("step-*.pt")))["step"]


# %%
diagram("save_protocol")

# %%
def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def publish(folder, step, sync=sync):
    temporary = folder / f"tmp-{step}"
    temporary.mkdir()
    torch.save({"weights": weights, "step": step}, temporary / "state.pt")
    sync(temporary / "state.pt")
    digest = hashlib.sha256((temporary / "state.pt").read_bytes()).hexdigest()
    (temporary / "manifest.json").write_text(json.dumps({"step": step, "sha256": digest}))
    sync(temporary / "manifest.json")
    sync(temporary)
    temporary.rename(folder / f"step-{step}")  # until here, a restart can't see it
    sync(folder)


def load_newest_intact(folder):
    for path in sorted(folder.glob("step-*"), key=lambda p: int(p.name[5:]), reverse=True):
        manifest = json.loads((path / "manifest.json").read_text())
        if hashlib.sha256((path / "state.pt").read_bytes()).hexdigest() == manifest["sha256"]:
            return torch.load(path / "state.pt")["step"]
        print(f"{path.name} doesn't match its manifest; trying the one before it")


# %% [markdown]
# Checkpoint 1 exists. A process saves checkpoint 2 and gets a SIGKILL just before its first system
# call on these files; another one just before its second; and so on. The calls come from a trace of
# the save, so there's no list to forget one in. Two more rows are torch's own distributed checkpoint
# (DCP): into the folder that it saved into before, and into a folder per step.

# %%
#@title The same with DCP: into one folder, and into a folder per step
def dcp_save(folder, step, name="latest"):
    from torch.distributed import checkpoint

    state = {"weights": weights, "step": torch.tensor(step)}
    checkpoint.save(state, checkpoint_id=folder / name, no_dist=True)


def dcp_load(folder, name="latest"):
    from torch.distributed import checkpoint

    state = {"weights": torch.empty(512, 512), "step": torch.tensor(0)}
    checkpoint.load(state, checkpoint_id=folder / name, no_dist=True)
    return state["step"].item()


def dcp_save_apart(folder, step):
    dcp_save(folder, step, f"step-{step}")


def dcp_load_newest(folder):
    return dcp_load(folder, max(path.parent.name for path in folder.glob("step-*/.metadata")))


# %%
kills = {
    "torch.save over latest.pt": (in_place, load_in_place),
    "torch.save to step-2.pt": (under_final_name, load_newest_name),
    "DCP over the same folder": (dcp_save, dcp_load),
    "DCP to a folder per step": (dcp_save_apart, dcp_load_newest),
    "temporary name, manifest, rename": (publish, load_newest_intact),
}
found = {name: kill_points.found_after_each_kill(*pair) for name, pair in kills.items()}
kill_points.kill_picture(found)

# %%
for name, kills_of in found.items():
    torn = sum(kill.newest is None for kill in kills_of)
    print(f"{name:34}{torn:3} of {len(kills_of)} kills leave nothing that the restart loads")

# %% [markdown]
# The second row hurts most. Checkpoint 1 is still there, intact. But the newest name is torn,
# the restart loads the newest name, and it crashes on every attempt until somebody deletes a file.
# DCP writes its metadata last. So give it a folder per step, and take the newest one with metadata.
#
# ### What a kill can't show
#
# A SIGKILL loses the process, not the page cache. So `publish` without any fsync would pass the test
# above. It fails when the power does. We can't pull the plug in a notebook, but the trace shows
# what could be lost: every file whose last write had no fsync after it when it was published.

# %%
def publish_without_fsync(folder, step):
    publish(folder, step, sync=lambda path: None)


unsynced = {}
kills["the same, no fsync"] = (publish_without_fsync, load_newest_intact)
for name, (save_it, _) in kills.items():
    unsynced[name] = kill_points.unsynced_when_published(kill_points.calls_of(save_it))
    print(f"{name:34}not on disk when published: {', '.join(unsynced[name]) or 'nothing'}")

# %% [markdown]
# If DCP's metadata is in that list, your torch calls fsync before Python has handed the bytes to the
# operating system. An fsync in the code proves nothing; the order of the calls does.
#
# ### What neither shows
#
# Disks and memory flip bits. Each tensor in a `torch.save` file has a checksum, and `torch.load`
# doesn't verify it. That's why the manifest has a hash, and why a restart reads it before it trusts
# the file.

# %%
flipped = folder / "flipped"
flipped.mkdir()
for step in (1, 2):
    publish(flipped, step)
content = bytearray((flipped / "step-2/state.pt").read_bytes())
content[len(content) // 2] ^= 64  # one bit, in the middle of the weights
(flipped / "step-2/state.pt").write_bytes(content)
loaded = torch.load(flipped / "step-2/state.pt")["weights"]
print("torch.load raises nothing;", (loaded != weights).sum().item(), "weight is wrong")
print("the restart continues from step", load_newest_intact(flipped))

# %% [markdown]
# So keep more than one checkpoint, and delete an old one only after the new one has been read back.
# Falling back has a limit, too. If there are checkpoints and none is intact, stop and call a person. A
# trainer that silently starts from scratch then has replaced a week of work with random weights.
#
# ### Object stores
#
# A general-purpose bucket has no rename, but each put is all or nothing. So the last put publishes: a
# tiny pointer. Here is a kill after each put of a save.

# %%
def puts_of_a_save(step):
    """What a save puts into the bucket, in this order."""
    shards = [f"step-{step}/shard-{number}" for number in range(3)]
    yield from ((shard, f"a third of step {step}") for shard in shards)
    yield f"step-{step}/manifest", shards
    yield "latest", f"step-{step}/manifest"


restarts_from = []
for killed_after in range(6):
    bucket = dict(puts_of_a_save(1))
    bucket.update(list(puts_of_a_save(2))[:killed_after])
    shards = bucket[bucket["latest"]]
    pointed_at, newest = shards[0][:6], max(key[:6] for key in bucket)
    by_pointer = sum(shard in bucket for shard in shards)
    by_name = sum(key.startswith(f"{newest}/shard") for key in bucket)
    restarts_from.append((pointed_at, by_pointer, newest, by_name))
    print(f"{killed_after} puts: the pointer leads to {pointed_at}, {by_pointer} of 3 shards;",
          f"the newest name is {newest}, {by_name} of 3")

# %% [markdown]
# Whoever looks for the newest name may find a third of a checkpoint. Whoever follows the pointer
# never does. Make that put a
# [conditional write](https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html),
# which fails if the object has changed. Then a rank of the last attempt that isn't quite dead can't
# publish over the new one.
#
# ## Frequency: what may a failure cost?
#
# Two terms first. The *RPO*, recovery point objective, is how much work you accept to lose. A failure
# loses half an interval on average, and at worst a whole one plus the time until a save is usable.
# The *RTO*, recovery time objective, is how long until training makes new steps: detection,
# scheduling, loading, warm-up.
#
# Saving often costs time too, so there's a best interval.
# [Young's rule](https://doi.org/10.1145/361147.361115) says the square root of 2 x save time x
# MTBF, the mean time between failures. [Daly's model](https://doi.org/10.1016/j.future.2004.11.016)
# is exact for failures at a constant rate. Take 70 billion parameters on 1,024 GPUs. The failure
# rate is the published one of Llama 3:
# [419 unexpected interruptions in 54 days on 16,384 GPUs](https://arxiv.org/abs/2407.21783). This
# machine just showed its rates of writing and copying. The ten-minute restart is an assumption.

# %%
mtbf_s = 54 * 86_400 / 419 * 16_384 / 1_024
model_mb = 70e9 * per_parameter / 1e6
write_mb_s = 1e3 * costs["full"].total_mb / costs["full"].blocked_ms
copy_mb_s = 1e3 * costs["asynchronous"].total_mb / costs["asynchronous"].blocked_ms
every = {"restart_s": 600, "mtbf_s": mtbf_s}
shard_s = model_mb / 128 / write_mb_s
ways = {
    "one rank writes": Costs(save_s=model_mb / write_mb_s, **every),
    "128 nodes write shards": Costs(save_s=shard_s, **every),
    "128 nodes, asynchronously": Costs(
        save_s=model_mb / 1_024 / copy_mb_s, publish_s=shard_s, **every
    ),
}
print(f"measured here: write {write_mb_s:,.0f} MB/s, copy {copy_mb_s:,.0f} MB/s")
print(f"{model_mb / 1e6:.2f} TB to save; a failure every {mtbf_s / 3600:.0f} h\n")
print(f"{'':27}a save blocks   Young      best interval   lost at worst   goodput")
for name, costs_of in ways.items():
    best, young = best_interval(costs_of), young_interval(costs_of.save_s, mtbf_s)
    worst = (best + costs_of.save_s + costs_of.publish_s) / 60
    row = f"{costs_of.save_s:11.1f} s {young / 60:7.0f} min {best / 60:11.0f} min"
    goodput = 100 * expected_goodput(best, costs_of)
    print(f"{name:27}{row} {worst:11.0f} min {goodput:10.2f}%")

# %%
#@title The cost of each interval
from rehearsal.evidence.pictures import BLUE, FAINT, GREEN, VERMILLION, new_figure, on_any_theme

subtitle = "70 billion parameters on 1,024 GPUs. Dots: the best interval of each way to save."
figure, axes = new_figure(4.2, "What saving and failing cost together", subtitle)
minutes = np.geomspace(0.2, 1500, 300)
styles = dict(zip(ways, ((VERMILLION, "-"), (BLUE, "--"), (GREEN, "-."))))
for name, costs_of in ways.items():
    color, line = styles[name]
    cost = [100 * (1 - expected_goodput(60 * m, costs_of)) for m in minutes]
    axes.plot(minutes, cost, line, color=color, linewidth=2, label=name)
    best = best_interval(costs_of)
    axes.plot(best / 60, 100 * (1 - expected_goodput(best, costs_of)), "o", color=color)
dearest = max(1 - expected_goodput(best_interval(each), each) for each in ways.values())
axes.set(xscale="log", xlabel="checkpoint interval (minutes of work)", ylim=(0, 150 * dearest))
axes.set_ylabel("wall time lost (%)")
axes.set_xticks([0.3, 1, 3, 10, 30, 100, 300, 1000], ["0.3", 1, 3, 10, 30, 100, 300, 1000])
axes.grid(**FAINT)
axes.legend(frameon=False)
on_any_theme(figure)

# %% [markdown]
# Three things to say at the whiteboard. The bottom is flat: half or twice the best interval raises
# the bill by a quarter at most, so don't argue about it. Format sets the price: it moves the bottom,
# and the interval follows. And a longer restart lifts every curve without moving its bottom, so once
# saves are cheap, work on detection and start-up. (Left of the kink, an asynchronous save has to wait
# for the one before it.)
#
# > "I'd measure the blocking time of a save and the failure rate, take Young's interval, and round it
# > to whole steps. Then I'd alert on the age of the newest checkpoint, because that's the RPO that
# > we really have."
#
# ## Policy: who restarts?
#
# A *restart scope* is the set of processes that must go down and come back. "We retry the job" is the
# weak answer: the scope follows from the fault.

# %%
diagram("restart_scopes")

# %% [markdown]
# Here are the faults, on the trainer of this project: 25 steps, a checkpoint every 4. `start` is
# what a scheduler does: the same command in the same folder.
#
# **An exception on one rank.** A bug strikes rank 1 in step 11.

# %%
faults = ("exception", "node lost", "disk full", "bad sample")
stories = {name: folder / name for name in faults}
show = partial(print, sep="\n")
bug = partial(breaks.fail_in, "forward", breaks.fail, rank=1, call=12)
show(*restarts.start(stories["exception"], 2, bug))
show("restarted:", *restarts.start(stories["exception"], 2))

# %% [markdown]
# Only rank 1 knows why. Rank 0's log blames the network, and on a big job the first log that you open
# is one like rank 0's. Nobody can restart rank 1 alone: its peers are in the middle of the same step,
# with weights that are two steps newer than any checkpoint. So all processes restart, on the same
# machines.
#
# **A node is lost.** Four ranks on two "nodes" of two. Ranks 2 and 3 die at once, and there's no
# spare. The global batch is pinned, so the job continues on two ranks.

# %%
def lose_a_node():
    for rank in (2, 3):
        breaks.kill(rank, step=14, when="after the ledger")


show(*restarts.start(stories["node lost"], 4, lose_a_node))
show("restarted on what is left:", *restarts.start(stories["node lost"], 2))
print(audit_run(stories["node lost"]).verdict)

# %% [markdown]
# Again all processes restart, but without the lost node. That takes two things: the checkpoint isn't
# on that node's own disk, and nothing in it depends on the number of ranks. What isn't kept is the
# last bits: two ranks add up in another order than four, and two of the random streams have no owner.
#
# **The disk is full** when step 12 is saved; the save raises what a full disk raises.

# %%
full_disk = partial(breaks.fail_save, 12)
for moment in ("saved to a full disk:", "restarted, still full:"):
    show(moment, *restarts.start(stories["disk full"], 2, full_disk))
show("restarted with space:", *restarts.start(stories["disk full"], 2))

# %% [markdown]
# Every rank says why, because the error was shared before anyone raised. A restart doesn't help until
# somebody makes space. Step 8 is intact all along, because the new checkpoint never got its name.
#
# **The disk is slow.** Each fsync now takes a while, and this is the case for restarting nothing.

# %%
def slow_disk():
    breaks.slow_steps(0.02)  # a step that takes a while, as a real one does
    storage.slow_down_fsync(0.02, folder / "slowed")


stalls = {}
for name, is_async in (("synchronous", False), ("asynchronous", True)):
    how = {"async_checkpoint": is_async, "checkpoint_every_steps": 13}
    ended = restarts.start(folder / name, 2, slow_disk, **how)
    stalls[name] = restarts.longest_stall_ms(folder / name)
    waited = f"training waited up to {stalls[name].waited:.0f} ms"
    print(f"{name}, {ended[0]}: a save took up to {stalls[name].saved:.0f} ms, {waited}")

# %% [markdown]
# With synchronous saves, every save stalls all ranks. With asynchronous ones, training continues until
# the next save is due, and only the age of the newest checkpoint shows that anything is wrong.
# Restarting such a job loses work and fixes nothing.
#
# **The same step again.** One sample is NaN, and the trainer stops rather than train on it. The
# scheduler restarts the job.

# %%
for attempt in range(3):
    ended = restarts.start(stories["bad sample"], 2, partial(breaks.poison_sample, 7))
    print(ended[0])

# %% [markdown]
# A restart fixes bad luck, and this wasn't. The rule: if a restart gets no further than the one before
# it, stop, and call a person. Otherwise a job burns a weekend in a crash loop that every dashboard
# shows as "running".

# %%
restarts.restart_picture(stories)

# %% [markdown]
# **A poisoned communicator.** Here nobody dies. Rank 1 is late by more than a collective's timeout,
# once.

# %%
def one_late_collective():
    group, said = dist.new_group(timeout=timedelta(seconds=0.3)), []

    def sum_of_ones(name, group):
        try:
            total = torch.ones(1)
            dist.all_reduce(total, group=group)
            said.append(f"{name}: {total.item():.0f}")
        except RuntimeError as error:
            said.append(f"{name}: {restarts.without_paths(str(error))}")

    sum_of_ones("on time", group)
    if dist.get_rank() == 1:
        time.sleep(0.6)
    sum_of_ones("rank 1 is late", group)
    sum_of_ones("everybody is back", group)
    sum_of_ones("a new group", dist.new_group())
    return said


for rank, said in enumerate(on_ranks(one_late_collective, 2)):
    show(f"rank {rank}", *(f"  {line}" for line in said))

# %% [markdown]
# Both ranks are alive and back on time, and the group never works again. A collective that timed out
# has no defined result, so no rank knows whether the others applied that step. Everyone who shares
# the communicator has to leave it together. They could build a new group, as the last line shows, but
# first they'd have to agree on a step. The boring answer is to end all processes and restart from the
# checkpoint.
#
# ## What NCCL does where gloo fails at once
#
# With a dead peer, this notebook is kinder than your cluster. Here is gloo's side:

# %%
def peer_dies():
    dist.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.perf_counter()
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError:
        return time.perf_counter() - began


survivor, dead = watch_ranks(peer_dies, 2)
print(f"rank 1 ended with {dead.exitcode}; rank 0 knew after {1e3 * survivor.answer:.0f} ms")
(timeout,) = re.findall(r"Default value is .*?backends", dist.init_process_group.__doc__)
print("torch's documentation of the timeout:", timeout)

# %% [markdown]
# gloo is TCP: the operating system closes a dead process's sockets, and the peers get an error.
# NCCL runs inside a CUDA kernel. When a peer dies, that kernel usually keeps waiting, and nobody
# raises anything. What ends it is the agent on the dead rank's node, or the watchdog after the
# timeout: [10 minutes by default](https://docs.pytorch.org/docs/stable/distributed.html). The same
# page says why the process must crash then: later CUDA work might run on corrupted data.
#
# So on GPUs, detection is part of your RTO:

# %%
#@title What detection costs
way = ways["128 nodes, asynchronously"]
best = best_interval(way)
for name, detection_s in (("the agent notices", 10), ("the watchdog notices", 600)):
    waits = Costs(save_s=way.save_s, publish_s=way.publish_s, mtbf_s=mtbf_s,
                  restart_s=way.restart_s + detection_s)
    lost_h = 1_024 * (waits.restart_s + best / 2 + way.publish_s) / 3600
    goodput = 100 * expected_goodput(best, waits)
    print(f"{name:22} a failure costs {lost_h:.0f} GPU-hours, goodput {goodput:.2f}%")

# %% [markdown]
# Smaller scopes exist. [torchft](https://github.com/meta-pytorch/torchft) lets the other replica
# groups continue while one restarts, and the lost one rejoins. NCCL can shrink a communicator. I'd
# take on that complexity when restarts show up in goodput. Chapter 18 has the failure rates.
#
# ## Another number of ranks, and when to bring up DCP
#
# The job above resumed on half its ranks because the checkpoint had the full state. Once the state is
# sharded, two ranks' files don't fit three ranks. That's what `torch.distributed.checkpoint` is for:
# it saves in parallel, and its metadata says which piece of which tensor is where.

# %%
def shard_of(full):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return distribute_tensor(full, mesh, [Shard(0)])


def save_sharded(folder):
    from torch.distributed import checkpoint

    checkpoint.save({"w": shard_of(torch.arange(12.0))}, checkpoint_id=folder)


def load_sharded(folder):
    from torch.distributed import checkpoint

    state = {"w": shard_of(torch.zeros(12))}
    checkpoint.load(state, checkpoint_id=folder)
    return state["w"].to_local().tolist()


on_ranks(save_sharded, 2, str(folder / "dcp"))
print("files:", sorted(path.name for path in (folder / "dcp").iterdir()))
on_three = on_ranks(load_sharded, 3, str(folder / "dcp"))
for rank, piece in enumerate(on_three):
    print(f"saved by 2, loaded by 3: rank {rank} has {piece}")

# %% [markdown]
# > "I bring up DCP when the state is sharded, when one writer has become the bottleneck, or when the
# > job must resume on another number of ranks. Before that, one file and a manifest are easier to
# > debug at three in the morning."
#
# DCP maps tensors. The sampler's position, the random states and the identity stay yours. Chapter 17
# does this with FSDP2.

# %% [markdown]
# ## Say it in 60 seconds
#
# > "A checkpoint is a promise about lost work and a promise about state. The state is model,
# > optimizer, scheduler, scaler, sampler position, one random stream per rank, and the identity of
# > the run. Miss one, and the loss still looks fine.
# >
# > I decide four things separately. Format: full until one writer is too slow, then sharded and
# > asynchronous. Atomicity: write under a temporary name, fsync, put a manifest with hashes last,
# > then publish with one rename, or one small pointer on an object store. Frequency: Young's interval
# > from the measured save time and failure rate. Policy: restart all ranks from the newest intact
# > checkpoint, and stop if the same step fails twice.
# >
# > After each resume I check six values, and in CI I kill a save at every system call. On NCCL, a
# > dead peer is a hang, so detection time is part of my budget."

# %% [markdown]
# ## Three questions
#
# **"Training resumed, and the loss is where it was. Are you satisfied?"**
#
# - *Weak:* "Yes. If the weights were wrong, the loss would jump."
# - *Strong:* "No. I've seen a resume without optimizer state, without a scaler and with the wrong
#   samples, and the loss passed each time. I check that the step, the learning rate, the moments,
#   the scale and the next batch match the checkpoint: no tolerances. And in CI, a killed run
#   on the same number of ranks must match an uninterrupted one bit for bit, because nothing else
#   sees the random states."
# - *What would prove me wrong:* the update norm of the first step after the resume, next to the last
#   one before it, and the ids of the first batch.
#
# **"Saves take 15% of our time. What do you do?"**
#
# - *Weak:* "Save less often."
# - *Strong:* "First I split those 15%: how long does a save block, and how often does it run? If the
#   interval is far below Young's, I raise it, and I say what that does to our RPO. If it's right, the
#   format is the problem. I'd snapshot to host memory and write in the background, and shard the
#   write so that no rank has all the bytes. Blocking drops to one copy. The price is memory for it,
#   and a newest checkpoint that's older by the write time."
# - *What would prove me wrong:* the p50 of the `checkpoint` phase over the steps that saved, and the
#   age of the newest published checkpoint. If the first drops and the second passes the RPO, I've
#   moved the cost and not removed it.
#
# **"A rank died. Why restart everything?"**
#
# - *Weak:* "Because that's how torchrun works."
# - *Strong:* "Because the communicator is one failure domain. The survivors are inside a step that
#   can't finish, and the dead rank's replacement has older weights. With plain process groups, all
#   ranks go back to one checkpoint. The nodes can stay, and so can the data cache. If restarts show
#   up in goodput, I'd first cut detection and start-up, then look at torchft, where only the failed
#   replica group goes down."
# - *What would prove me wrong:* goodput by cause. If restart time is below a percent of wall time, a
#   smaller scope buys nothing.

# %% [markdown]
# ## Practice it
#
# - Drills: [resume_after_failure](../drills/030_resume_after_failure.ipynb),
#   [cell_checkpoint](../drills/160_cell_checkpoint.ipynb),
#   [every_restart_crashes](../drills/225_every_restart_crashes.ipynb),
#   [resumed_run_differs](../drills/230_resumed_run_differs.ipynb),
#   [nothing_to_resume_from](../drills/280_nothing_to_resume_from.ipynb),
#   [restored_state_matches_no_step](../drills/340_restored_state_matches_no_step.ipynb).
# - The code: sections 6 and 8 of the [walkthrough](../01_walkthrough.ipynb).
# - The cards: `ask(topic="checkpoints")` and `ask(topic="recovery")` in [03_deck](../03_deck.ipynb).
