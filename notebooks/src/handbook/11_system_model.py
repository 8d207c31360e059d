# %% [markdown]
# # 11. The system model
#
# {{badge}}
#
# > "Before any code, I'd split the system into five planes: control, training, data, artifacts
# > and observability. Each has an owner and some state, and each fails in its own way. In the
# > notebook I build training and data for real, and the other three are thin interfaces. So for
# > every process and every file I can say which plane it's in, and what stops when it's gone."
#
# *Twenty-five minutes to read. You start a real job with torchrun, look at its processes and its
# files while it runs, and then walk through the code that started it.*

# %% collapsed=true
# {{setup torch numpy matplotlib cloudpickle platformdirs fsrs rehearsal}}

# %% collapsed=true
#@title Imports
import contextlib
import json
import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from rehearsal.evidence.audit import audit_run
from rehearsal.evidence.goodput import account_run
from rehearsal.evidence.pictures import read_events
from rehearsal.evidence.run_records import read_jsonl
from rehearsal.faults.breaks import at_save, slow_steps, wrap
from rehearsal.handbook.account_bars import account_bars
from rehearsal.handbook.diagrams import diagram
from rehearsal.handbook.excerpts import excerpt
from rehearsal.handbook.planes import files_of, open_files, process_tree, still_running
from rehearsal.handbook.start_stages import record_stages, stage_picture, stages_of
from rehearsal.handbook.torchrun import Torchrun, on_nodes, warm_up, without_paths
from trainer_core.checkpoint import build_checkpoint, latest_checkpoint_path
from trainer_core.checkpoint_format import publish
from trainer_core.config import TrainConfig
from trainer_core.data import ResumeAwareDistributedSampler, StepSchedule
from trainer_core.distributed import choose_device, maybe_init_dist, wrap_model
from trainer_core.integrations.interfaces import ObjectStore, Scheduler
from trainer_core.launch import run
from trainer_core.metrics import Sink
from trainer_core.train import summed_loss, update_weights

warm_up()  # imports torch in the background, so that ranks start in milliseconds

# %% [markdown]
# ## Draw this first
#
# Whatever the prompt is, this drawing is the first minute. It has nine boxes and no product names.

# %%
diagram("system_model")

# %% [markdown]
# Say it along the arrows: "A job spec goes to the launcher. The launcher starts processes and runs
# the rendezvous, so that each one knows its rank. The data plane deals each rank its samples. The
# ranks train, and all of them report to two places: a checkpoint store and telemetry."
#
# | plane | the question it answers | without it |
# |---|---|---|
# | control | Who runs where, as which rank, with which config? Who restarts it? | nothing starts, or it starts as the wrong thing |
# | training | What's the next update to the weights? | no step completes |
# | data | Which samples, in which order, and how far are we? | ranks wait, or they train on the wrong samples |
# | artifact | What survives a dead process, and is it intact? | every restart begins at step 0 |
# | observability | What happened, on which rank, and where did the time go? | a fault on one rank stays there |
#
# You'll also hear it as six concerns. Then control is split in two: *orchestration* decides when and
# where the job runs, and *rendezvous* decides which processes are in it and as which ranks. The
# other four are the trainer's runtime and the data, artifact and observability planes.

# %%
diagram("six_concerns")

# %% [markdown]
# > "I separate them because they fail separately. A lost node is control's problem. A slow shard
# > is data's. If the checkpoint store stalls, training stops, and that's a failure domain I chose."

# %% [markdown]
# ## A live job, plane by plane
#
# Here's the trainer of this project on a small plan. One addition: a metrics *sink*, the
# trainer's interface for exporters. A vendor's exporter would send each event away. This one
# writes down which threads its rank has.

# %%
class Threads:
    """A metrics sink: with each progress event, it notes this rank's threads."""

    def __init__(self, folder):
        self.folder = folder

    def emit(self, record):
        if record["event"] == "train_progress":
            names = [thread.name for thread in threading.enumerate()]
            (self.folder / f"threads-{record['rank']}").write_text(json.dumps(names))

    def close(self):
        pass


def train(run_dir, stages, pause_s, max_epochs=2):
    """What each rank runs."""
    record_stages(stages)  # for a picture further below
    slow_steps(pause_s)
    cfg = TrainConfig(
        run_dir=run_dir, dataset_size=320, max_epochs=max_epochs, pinned_global_batch_size=16,
        num_workers=1, checkpoint_every_steps=20, log_every=5, device="cpu",
    )
    return run(cfg, sinks=[Threads(run_dir.parent)])


# %% [markdown]
# `Torchrun` below is torchrun itself. To save seconds, it and its ranks are forked from a process
# that has already imported torch; everything else is torch's own code. While the job trains, we
# read its processes and open files from the operating system. Then we send the SIGTERM that a
# scheduler would send.

# %%
folder = Path(tempfile.mkdtemp(prefix="handbook-"))
run_dir = folder / "run"

with Torchrun(train, run_dir, folder / "stages-0", 0.2) as job:
    job.until(lambda: (folder / "threads-0").exists() and (folder / "threads-1").exists())
    tree = process_tree(job.agent.pid)
    opened = {process.pid: open_files(process.pid, run_dir) for process in tree}
    job.agent.terminate()
    code = job.wait()

print(job.command, "\n")
for process in tree:
    plane = ["control", "training", "data"][process.depth]
    indent = "    " * process.depth
    print(f"{indent}{process.name:14} {plane} ({len(process.threads)} more threads)")
print("\ntorchrun's exit code:", code, "| the ranks:", [end["status"] for end in job.answers()])

# %% [markdown]
# torchrun's *agent* (torch names it `pt_elastic`) is the parent. Its children are the ranks, and
# each rank has a loader worker. The tree is also a map of the blast radius. Kill one process of
# each kind, in three jobs, and see who is left a moment later, and why.

# %%
VICTIMS = {"agent": 0, "rank 1": 3, "a loader worker": 4}  # places in the tree above
jobs_of_victims = {}
with contextlib.ExitStack() as closing:
    for victim in VICTIMS:
        place = folder / victim / "run"
        job = Torchrun(train, place, folder / victim / "stages", 0.03, 200)
        jobs_of_victims[victim] = closing.enter_context(job)
    for victim, job in jobs_of_victims.items():
        job.until(lambda: len(list((folder / victim).glob("threads-*"))) == 2)
        members = process_tree(job.agent.pid)
        os.kill(members[VICTIMS[victim]].pid, signal.SIGKILL)
        job.wait()
        left = still_running(members, within_s=20)
        print(f"SIGKILL to {victim}: of {len(members)} processes, {len(left)} are left")
        for (_, rank), error in job.errors().items():
            print(f"    rank {rank}: {without_paths(error)[:110]}")

# %% [markdown]
# All three end the *attempt*, which is one start of the job:
#
# - **A dead worker** is an error on its rank. If the rank was waiting for data, our trainer makes it an
#   error on all ranks. But torch may also raise it from a signal handler, wherever the rank happens
#   to be. Then rank 0 reads only that a connection closed, and the reason is in rank 1's log.
# - **A dead rank** breaks its peers' connections. With gloo they notice at once. With NCCL they'd hang
#   until the agent or a watchdog ends them.
# - **A dead agent** can't restart anybody. So our ranks ask the operating system to end them together
#   with their agent: without one they'd train on, unsupervised. Restarting the agent is up to the
#   scheduler.
#
# Artifacts and observability have no process of their own here. They're threads of a rank, which
# is fine in a notebook, and it tells you what to move out first in production:

# %%
THREADS = {
    "pt_tcpstore": "control",  # the store where ranks meet, hosted by the agent
    "pt_elastic": "control",
    "MainThread": "training",
    "gloo": "training",
    "pt_gloo": "training",
    "QueueFeeder": "data",
    "ThreadPoolExecutor": "artifact",  # writes checkpoints
    "(watch)": "observability",  # both threads of the hang watchdog
    "(listen)": "observability",
}


def plane_of(name, planes):
    return next((plane for part, plane in planes.items() if part in name), "?")


agent, rank0 = tree[0], tree[1]
named_by_torch = {name for name in rank0.threads if not name.startswith("RANK")}
in_python = json.loads((folder / "threads-0").read_text())
agents_threads = sorted({*agent.threads})
ranks_threads = sorted({*in_python, *named_by_torch})
for owner, names in (("agent", agents_threads), ("rank 0", ranks_threads)):
    for name in names:
        print(f"{owner:7} {name:24} {plane_of(name, THREADS)}")

# %% [markdown]
# Now the run folder. For each file: which plane it's in, and which processes had it open while
# the job was running.

# %%
FILES = {
    "config.json": "control",
    "lock": "control",
    "ledger/": "data",
    "checkpoints/": "artifact",
    "logs/": "observability",
    "traces/": "observability",
}
names = {process.pid: process.name for process in tree}
files = files_of(run_dir)
for path, size in sorted(files.items(), key=lambda file: (plane_of(file[0], FILES), file[0])):
    owners = sorted({names[pid] for pid, paths in opened.items() if path in paths})
    print(f"{plane_of(path, FILES):13} {path:45} {size:6} bytes  {', '.join(owners)}")

# %% [markdown]
# Three things to point at:
#
# - **The lock and the checkpoints have one writer, rank 0.** Logs and ledgers have one writer per
#   rank, so nobody needs a lock for those. (A loader worker is forked from its rank and inherits
#   its open files. It writes to none of them.)
# - **The ledger is the data plane's record**: which samples each rank trained on in each step. It's
#   what makes "no sample lost or repeated" a claim that you can check.
# - **The checkpoint has one `rng-rank-R.pt` per rank**: a rank's random state isn't replicated, so
#   it's saved per rank.

# %% [markdown]
# ## Who am I? The rank table
#
# Each rank logs who it is when it starts. This is read from the logs of the job above.

# %%
started = read_events(run_dir, "run_start")
columns = ["rank", "local_rank", "world_size", "device"]
print(*(f"{column:>11}" for column in columns))
for record in started:
    print(*(f"{record[column]!s:>11}" for column in columns))

# %% [markdown]
# On one node, `rank` and `local_rank` look like the same number. On two nodes they don't. Below are
# two torchrun agents, as on two nodes, with two ranks each. The fourth name to know is the *process
# group*: a communicator over some of the ranks. Here there's one per node. Every rank creates both,
# because creating a group is a collective, and then sums up the ranks in its own.

# %%
def who_am_i():
    info = maybe_init_dist(TrainConfig(device="cpu"))
    node = int(os.environ["GROUP_RANK"])
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    total = torch.tensor(info.rank)
    dist.all_reduce(total, group=groups[node])
    return [info.rank, info.local_rank, info.world_size, node, total.item()]


table = on_nodes(who_am_i, nodes=2, ranks=2)
print("rank  local_rank  world_size  node  sum of the ranks in its node's group")
for row in table:
    print("{:4} {:11} {:11} {:5} {:6}".format(*row))

# %%
diagram("process_topology")

# %% [markdown]
# | name | what it is | what you use it for |
# |---|---|---|
# | `rank` | this process's number in the whole job | roles: who writes, who prints; which samples |
# | `local_rank` | its number on its node | the device, and once-per-node work |
# | `world_size` | how many processes there are | collectives, the global batch |
# | process group | a communicator over a subset of the ranks | sharding inside a node and replicating across nodes |
#
# **`local_rank` as the device's index is a convention, not a law.** It holds while every process
# sees all of the node's GPUs. A launcher can also give each process one GPU, numbered 0 in every
# process: one GPU per container does that, and torchrun itself with a flag. Our `choose_device`
# decides by what the process sees. There may be no GPU here, so we tell it how many there are.

# %%
for sees, how in ((8, "all 8 GPUs of the node"), (1, "only its own GPU")):
    with mock.patch("torch.cuda.device_count", return_value=sees):
        ours = choose_device("auto", local_rank=3, ranks_here=8)
    naive = torch.device("cuda", 3)
    exists = "exists" if naive.index < sees else "doesn't exist"
    print(f"local rank 3 sees {how}: we use {ours}; {naive} {exists}")


def local_names():
    names = ("RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES")
    return [os.environ.get(name) for name in names]


with Torchrun(local_names, flags=["--standalone", "--virtual-local-rank"]) as job:
    masked = job.answers() if job.wait() == 0 else []
print("\n" + job.command)
for row in masked or ["this torch's torchrun has no such flag"]:
    print(" rank {}: LOCAL_RANK={} CUDA_VISIBLE_DEVICES={}".format(*row) if masked else row)

# %% [markdown]
# With that flag, every process is local rank 0. So `if local_rank == 0: download()` no longer runs
# once per node, but once per rank. That's the kind of bug a convention hides.
#
# > "Identity comes from the environment, so the launcher owns it. The device comes from what the
# > process sees. I select it before the first collective, because anything on plain `cuda` goes to
# > device 0 until then."

# %% [markdown]
# ## The order of a start, from a run
#
# The job above was preempted. Started again, it resumes. Each rank writes down when it enters and
# leaves each stage, so this picture shows what happened, not what should have:

# %%
began = time.time()
with Torchrun(train, run_dir, folder / "stages-1", 0.0) as job:
    code, ends = job.wait(), job.answers()
print("torchrun's exit code:", code, "| the ranks:", [end["status"] for end in ends])
lines = read_jsonl(run_dir / "ledger/rank-0.jsonl")
first, *later = [1e3 * line["step_s"] for line in lines if line["attempt"] == 1]
median = sorted(later)[len(later) // 2]
print(f"first step {first:.0f} ms, median of the later ones {median:.0f} ms")
stages = stages_of(folder / "stages-1")
stage_picture(stages, began)

# %% [markdown]
# The order has reasons, and interviewers ask for them:
#
# - **The group comes first**, because everything after it needs agreement.
# - **Agreement comes before restoring.** Rank 0 picks the checkpoint and the others confirm that
#   they see the same one. If each rank picked its own, two could differ.
# - **The optimizer comes after whatever may replace the parameters**, because it points at them. A
#   move to the device comes earlier, and so does FSDP's sharding (chapter 17).
# - **Random states come last before training**, because everything before them may draw numbers.
# - **The first step is slower than the others**, so leave it out of every timing. On GPUs there's
#   more in it: by default, NCCL builds its communicators at the first collective.

# %% [markdown]
# ## Five invariants to open with
#
# Name these five, and most follow-up questions have a place to go. For each: what it says, and
# what we can check right now in the run folder of the job that was preempted and resumed.

# %%
audit = audit_run(run_dir)
state = torch.load(latest_checkpoint_path(run_dir / "checkpoints")[0] / "state.pt")
updates = {int(entry["step"]) for entry in state["optimizer"]["state"].values()}
[validated] = read_events(run_dir, "resume_validated", rank=0)
starts = read_events(run_dir, "run_start")
identities = sorted((r["attempt"], r["rank"], r["world_size"], r["device"]) for r in starts)
wanted = {"data_wait", "forward", "backward", "grad_sync", "checkpoint"}
phases = [record["phases"].keys() for record in read_events(run_dir, "train_progress")]
hashes = {end["weights_sha256"] for end in ends}

invariants = {
    "1 every process knows its rank and its device": identities
    == [(attempt, rank, 2, "cpu") for attempt in (0, 1) for rank in (0, 1)],
    "2 the partition of the data is deterministic": audit.status == "proved",
    "3 the optimizer moves in lockstep with the model": updates == {state["step"]}
    and len(hashes) == 1,
    "4 what a resume means is explicit": validated["ok"],
    "5 telemetry tells input, compute and communication apart": all(
        wanted <= names for names in phases
    ),
}
for name, holds in invariants.items():
    print(f"{name:58} {'holds' if holds else 'BROKEN'}")
print("\naudit:", audit.verdict)
passed = [check.replace("_", " ") for check, ok in validated["checks"].items() if ok]
print("resume:", *passed, sep="\n  ")

# %% [markdown]
# ## The control loop
#
# You get there from a single-process trainer in five moves. After each one, the program still runs,
# and that's how you'd type it.

# %%
diagram("lift_to_ddp")

# %% [markdown]
# The middle of every answer is this loop. It's boring on purpose: each line is where a reader
# expects it. The comments name the plane.

# %%
def restore(path, model, optimizer, device):  # artifact
    """The epoch to train next."""
    if not path.exists():
        return 0
    saved = torch.load(path, map_location=device)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["epoch"] + 1


def save(path, model, optimizer, epoch):  # artifact
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


# %%
def control_loop(path, stop_after):
    device = choose_device("auto", int(os.environ["LOCAL_RANK"]), 2)  # control
    if device.type == "cuda":
        torch.cuda.set_device(device)  # before the first collective, not after
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()

    generator = torch.Generator().manual_seed(1)  # data
    dataset = TensorDataset(torch.randn(64, 8, generator=generator))
    sampler = DistributedSampler(dataset, seed=17)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)

    torch.manual_seed(17)  # training
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    first = restore(path, model, optimizer, device)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    log = []
    for epoch in range(first, stop_after):
        sampler.set_epoch(epoch)  # data: a new order
        for (inputs,) in loader:
            optimizer.zero_grad()
            loss = (wrapped(inputs.to(device)) - 1).square().mean()
            loss.backward()  # the gradients are averaged in here
            optimizer.step()
        log.append(f"rank {rank}, epoch {epoch}: loss {loss.item():.3f}")  # observability
        if rank == 0:
            save(path, model, optimizer, epoch)
        dist.barrier()
    return log


# %%
for stop_after in (1, 3):
    with Torchrun(control_loop, folder / "loop.pt", stop_after) as job:
        job.wait()
        loop_log = sum(job.answers(), [])
    print(f"asked for {stop_after} epochs:", *loop_log, sep="\n    ")

# %% [markdown]
# The second start continued with epoch 1. Say what this loop doesn't do, before they ask: it saves
# once per epoch, so a kill costs up to an epoch. It restores the epoch and no position in it.
# Rank 0 saves without asking whether the others have arrived. And each rank logs its own loss, not
# the mean. Those are the four things that the real trainer adds.

# %% [markdown]
# ## The code in six layers
#
# "Walk me through your code." Don't go line by line. Go layer by layer: what the layer promises,
# what it costs, and a few lines to look at, read from the installed trainer. The drawing has the
# notebook's eight cells; the layers follow their order.

# %%
diagram("notebook_architecture")

# %% [markdown]
# **1. Configuration.** "One frozen object has it all: the identity of the run, the batch semantics,
# the optimizer, the I/O policy and the checkpoint settings. The global batch is derived in one
# place. Each field says whether a resume may change it. The cost is a decision per field."

# %%
excerpt(TrainConfig, "def global_batch_size", "return")

# %% [markdown]
# **2. Dataset and sampler.** "Correctness lives here. The epoch is cut into global batches first,
# and each batch is dealt to the ranks second. So the ranks' shares are disjoint at any world size,
# and the position is one integer. The cost: reads are scattered over the dataset."

# %%
excerpt(StepSchedule.slots, "# The epoch is cut", "first =")

# %%
excerpt(ResumeAwareDistributedSampler.micro_batches, "mine =", "mine =")

# %% [markdown]
# **3. Distributed initialization.** "The launcher changes the context, the loop stays the same. With
# one process there's no group at all, so I can run and debug the same code in the notebook."

# %%
excerpt(maybe_init_dist, "if world_size > 1:", "world_size=world_size")

# %%
alone = maybe_init_dist(TrainConfig(device="cpu"))
print(alone, "| group:", dist.is_initialized())

# %% [markdown]
# **4. Model wrapping.** "After the model is on its device, I wrap it in DDP, with that one device's
# id. DDP gives me replication and communication. It never partitions the data. With the bucket
# view there's one copy of the gradients less. Checkpoints use the unwrapped model, so the names in
# them don't depend on DDP."

# %%
excerpt(wrap_model, "if info.world_size == 1", "wrapped = DDP")

# %% [markdown]
# **5. AMP.** "Autocast covers the forward pass, and the loss is computed in float32. Backward runs
# outside. fp16 needs a loss scaler, bf16 doesn't. The scaler is state, so it's in the checkpoint. A
# scaler that's switched off is still an object, and true. So without fp16 there's None instead."

# %%
excerpt(summed_loss, "dtype = AUTOCAST", "total =")

# %%
excerpt(update_weights, "if scaler:", "scaler.unscale_")

# %% [markdown]
# **6. Checkpointing.** "Recovery is more than weights: optimizer, scaler, sampler position, each
# rank's random state and the identity of the run. Files first, then a manifest with their hashes,
# then one rename. Until the rename, a restart can't see it."

# %%
excerpt(build_checkpoint, "states: dict", "return")

# %%
excerpt(publish, "# The order matters")

# %% [markdown]
# Which cell needs which? This drawing is made from the imports. Launch needs all of them. The
# checkpoint imports none of the others: it sees state dicts, not models, so you can test it without
# a job.

# %%
diagram("cell_imports")

# %% [markdown]
# ## Storage is part of the algorithm
#
# People treat the disk as a detail. But what you train, and when you're done, depends on three of
# its properties: throughput, atomicity and restore latency. Same trainer, same data, 24 steps, a
# save every six steps, and one SIGKILL in the middle of the save of step 12. Only the storage
# differs. `wrap` puts a function of our own around one of the trainer's.

# %%
def slow(seconds, name):
    """Make each call of one of the trainer's functions take longer."""

    def waiting(call, *arguments):
        time.sleep(seconds)
        return call(*arguments)

    wrap(name, waiting)


def not_atomic():
    """Save in place, die halfway through step 12, and trust whatever folder is the newest."""

    def in_place(publish, temporary, target, facts):
        if facts["step"] == 12:
            target.mkdir()
            content = (temporary / "state.pt").read_bytes()
            (target / "state.pt").write_bytes(content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        publish(temporary, target, facts)

    def newest(latest_checkpoint_path, checkpoints):
        return max(checkpoints.glob("step-*"), default=None), {}, {}

    wrap("publish", in_place)
    wrap("latest_checkpoint_path", newest)


# %%
def on_storage(run_dir, write_s, read_s, is_atomic):
    """What the rank runs: 24 steps of 20 ms."""
    slow(0.02, "train_step")
    slow(write_s, "publish")
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt > 0:
        slow(read_s, "restore_if_present")
    if not is_atomic:
        not_atomic()
    elif attempt == 0:
        at_save(12, lambda: os.kill(os.getpid(), signal.SIGKILL))
    plan = {"dataset_size": 96, "pinned_global_batch_size": 4, "max_epochs": 1, "device": "cpu"}
    return run(TrainConfig(run_dir=run_dir, checkpoint_every_steps=6, log_every=1, **plan))


# %%
STORAGE = {
    "good": (0.0, 0.0, True),
    "slow to write": (0.2, 0.0, True),
    "slow to read": (0.0, 0.8, True),
    "not atomic": (0.0, 0.0, False),
}
flags = ["--standalone", "--max-restarts=2"]
with contextlib.ExitStack() as closing:
    jobs = {
        name: closing.enter_context(
            Torchrun(on_storage, folder / name, *disk, ranks=1, flags=flags)
        )
        for name, disk in STORAGE.items()
    }
    codes = {name: job.wait() for name, job in jobs.items()}

print("storage         exit code   steps trained   newest intact checkpoint: step")
for name in STORAGE:
    steps = (folder / name / "ledger/rank-0.jsonl").read_text().count('"samples"')
    saved = latest_checkpoint_path(folder / name / "checkpoints")[0]
    print(f"{name:15} {codes[name]:9} {steps:15}   {int(saved.name[5:]):5}")
finished = {name: account_run(folder / name) for name in STORAGE if codes[name] == 0}
account_bars(finished, "Same training, three kinds of storage")

# %% [markdown]
# - **Throughput** sets how often you can afford to save, and so how much each failure costs.
# - **Restore latency** is paid at every restart, by every rank, while all GPUs wait.
# - **Atomicity** decides whether there's a result at all. The last job isn't in the picture because
#   it never finished. It wrote in place and trusted the newest folder. Half a file looked like a
#   checkpoint, so each restart crashed on it, although the save of step 6 was intact all along.
#
# > "So storage isn't behind the trainer, it's in it. I'd ask for three numbers before I pick a save
# > interval: seconds to save, seconds to restore, and whether publishing is atomic."

# %% [markdown]
# ## Logging is a distributed problem
#
# "Only rank 0 logs, to keep the output readable." Here's what that hides. From step 11 on, rank 1
# can't read its disk. Somebody made the loader robust: on an error, it uses the last batch again.

# %%
def read_batch(rank, step, generator):
    if rank == 1 and step > 10:
        raise OSError(5, "Input/output error")
    return torch.randn(256, 8, generator=generator)


def train_with_a_bad_disk():
    info = maybe_init_dist(TrainConfig(device="cpu"))
    torch.manual_seed(17)
    model = DistributedDataParallel(nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    generator = torch.Generator().manual_seed(info.rank)
    teacher = torch.randn(8, 4, generator=torch.Generator().manual_seed(5))
    console, errors = [], 0
    for step in range(1, 41):
        try:
            batch = read_batch(info.rank, step, generator)
        except OSError:
            errors += 1  # and use the last batch again
        loss = F.cross_entropy(model(batch), (batch @ teacher).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if info.rank == 0 and step % 10 == 0:
            console.append(f"step {step:2}  loss {loss.item():.3f}")
    total = torch.tensor(errors)
    dist.all_reduce(total)
    return {"console": console, "read_errors": errors, "read_errors_all_ranks": total.item()}


# %%
with Torchrun(train_with_a_bad_disk) as job:
    job.wait()
    bad_disk = job.answers()
print("What rank 0 prints:", *bad_disk[0]["console"], sep="\n  ")
print("rank 0's own counter:", bad_disk[0]["read_errors"])
print("the counter, summed over ranks:", bad_disk[0]["read_errors_all_ranks"])

# %% [markdown]
# Rank 0's console is perfect. A quarter of the way in, half of the job stopped seeing new data, and
# no line says so. A slow rank is as invisible: rank 0 sees a slow gradient sync, and you blame the
# network ([chapter 14](14_performance.ipynb) shows it).
#
# So: **structured logs on every rank, a dense console on rank 0 only, and counters that are summed
# over ranks.** In the trainer of this project, every rank has a log file of its own, and an error
# on one rank becomes an error on all.

# %% [markdown]
# ## What stays an interface
#
# In 45 minutes you can't build all five planes, and you shouldn't try. But you can give each one
# the boundary that it has in production.

# %%
diagram("in_the_notebook")

# %% [markdown]
# An interface is a contract in a few lines. These three are all that the trainer needs to know
# about telemetry, durable storage and the scheduler:

# %%
for interface in (Sink, ObjectStore, Scheduler):
    methods = ", ".join(name for name in vars(interface) if not name.startswith("_"))
    print(f"{interface.__name__:12} {methods:30} {interface.__doc__.splitlines()[0]}")

# %% [markdown]
# The sink at the top of this chapter is one implementation, in nine lines. Say what you leave out,
# and say it first: "I won't build cloud credentials, scheduler glue, vendor exporters or a second
# axis of parallelism. Each has a place where it plugs in, and I'll show you the place."
#
# ## Four tradeoffs, and when they turn
#
# | choice | why now | what it costs later | the metric that says it's time |
# |---|---|---|---|
# | DDP over FSDP | replicated state is the easiest to debug and to recover | each device holds all weights, gradients and moments | peak memory per rank at the smallest useful micro-batch |
# | full checkpoints | one file, any world size can load it | I/O and slow saves, with all of it through rank 0 | blocking save time over save interval |
# | map-style dataset | random access makes the position one integer | scattered reads; streaming needs shards and a cursor | `data_wait` p95, and bytes read per sample used |
# | rank 0 decides | one truth, and nothing to merge | rank 0 becomes the coordination bottleneck | time from start to first step, against world size |
#
# How large is a full checkpoint? With AdamW in float32 it's three copies of the weights: the
# weights and two moments, so 12 bytes per parameter. Check it on the run above, and then scale it
# in your head.

# %%
numbers = sum(tensor.numel() for tensor in state["model"].values())
moments = [entry[name] for entry in state["optimizer"]["state"].values()
           for name in ("exp_avg", "exp_avg_sq")]
tensors = [*state["model"].values(), *moments]
bytes_each = sum(tensor.numel() * tensor.element_size() for tensor in tensors) / numbers
print(f"{numbers} parameters, {bytes_each:.0f} bytes each in the checkpoint's tensors")
print(f"7 billion parameters: {7e9 * bytes_each / 1e9:.0f} GB per save")

# %% [markdown]
# ## Say it in 60 seconds
#
# > "I think in five planes. Control decides who runs and as which rank. Training computes the next
# > update. Data decides which samples. Artifacts are what survives a dead process. Observability
# > says what happened, on every rank.
# >
# > On one node that's a launcher, one process per device, and loader workers below each. Each rank
# > holds a full replica, and gradients are averaged in backward. Identity comes from the launcher's
# > environment, and the device from what the process sees.
# >
# > A start is always the same: join the group, agree on one checkpoint, build, restore, wrap, seed,
# > train. Five invariants hold through it: known rank, deterministic partition, optimizer in
# > lockstep, explicit resume, telemetry that tells input from compute from communication.
# >
# > In the notebook I build training and data for real. The rest are interfaces with a stand-in."

# %% [markdown]
# ## Three questions
#
# **"Isn't this too much structure for a notebook?"**
#
# - *Weak:* "It's how production systems look."
# - *Strong:* "The structure costs me three small interfaces, maybe twenty lines. What it buys is that
#   the training loop never learns who started it, where files go or who reads the metrics. So the
#   same loop runs alone, under torchrun, and on a cluster. If I can't say which failure a boundary
#   isolates, I leave the boundary out."
# - *What would prove me wrong:* the number of lines in the training loop that change when I swap the
#   launcher, the store or the exporter. It should be zero.
#
# **"Rank 0 does everything special. Isn't it a bottleneck and a single point of failure?"**
#
# - *Weak:* "We could elect another leader."
# - *Strong:* "It isn't a new point of failure: with plain process groups, losing any rank ends the
#   attempt. It can become a bottleneck, in two places: gathering at startup, and writing full
#   checkpoints. I'd measure both against world size. The first fix is a sharded checkpoint, where
#   each rank writes its part, and not a smarter leader."
# - *What would prove me wrong:* time from start to first step, and blocking save time, at two world
#   sizes. If neither grows, I leave rank 0 alone.
#
# **"Which plane do you worry about most?"**
#
# - *Weak:* "Training. GPUs are the expensive part."
# - *Strong:* "Data, because its failures are silent: the loss falls on the wrong samples too. Then
#   artifacts, because I only find out that they're broken when I need them. Control and training
#   fail loudly. So I spend on proofs for data, on restore tests for artifacts, and on retries for
#   the other two."
# - *What would prove me wrong:* past incidents by plane, with the time from fault to detection. If
#   control has the long ones, I'm watching the wrong plane.

# %% [markdown]
# ## Practice it
#
# - Drills: [happy_path](../drills/010_happy_path.ipynb),
#   [lift_to_ddp](../drills/015_lift_to_ddp.ipynb),
#   [cell_distributed](../drills/140_cell_distributed.ipynb),
#   [second_node_brings_nothing](../drills/350_second_node_brings_nothing.ipynb),
#   [run_hangs_at_its_first_log](../drills/260_run_hangs_at_its_first_log.ipynb).
# - The code: all eight sections of the [walkthrough](../01_walkthrough.ipynb), and its section on
#   what can stay an interface.
# - The cards: `ask(topic="architecture")` and `ask(topic="trainer_code")` in [03_deck](../03_deck.ipynb).
