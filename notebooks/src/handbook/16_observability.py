# %% [markdown]
# # 16. Observability
#
# {{badge}}
#
# > "I start with the questions, not with the dashboard. Is the training right, is it fast, and
# > will it survive the night? Every rank writes structured lines, and one rank prints. I keep
# > liveness and progress apart, because a stuck rank is alive. And I break the run on purpose, to
# > see that the right alert fires and the others stay quiet."
#
# *Twenty-two minutes to read. The runs below are this project's trainer on real ranks, and most
# of them are broken on purpose.*

# %% collapsed=true
# {{setup torch numpy matplotlib cloudpickle platformdirs fsrs rehearsal}}

# %% collapsed=true
#@title Imports
from rehearsal.engine.ranks import warm_up

warm_up("trainer_core.launch")  # starts the server that forks the ranks, while you read

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rehearsal.evidence.goodput import account_run
from rehearsal.evidence.pictures import rank_timeline
from rehearsal.faults import breaks
from rehearsal.faults.jobs import codes_of
from rehearsal.handbook.diagrams import diagram
from rehearsal.handbook.on_ranks import on_ranks, watch_ranks
from rehearsal.handbook.telemetry import alert_table, last_by_rank, liveness_picture
from rehearsal.handbook.telemetry import read_telemetry
from rehearsal.handbook.trainer_runs import run_trainer
from trainer_core.hang_report import last_collective, recorded_collectives
from trainer_core.json_lines import JsonlSink

folder = Path(tempfile.mkdtemp(prefix="handbook-"))

# %% [markdown]
# ## Three signals, three questions
#
# Logs, metrics and traces aren't three formats for the same thing. Each answers a question that
# the other two can't.

# %%
diagram("telemetry")

# %% [markdown]
# - A **log** line is an event with its context. It says what happened on which rank, and why.
# - A **metric** is a number that you can add up, compare with last week, and alert on.
# - A **trace** is a set of spans on one clock. It says who waited for whom. It pays when you have
#   to line up launcher events, storage stalls, long steps and saves.
#
# Raw telemetry isn't the aggregation system. In an interview, the ranks write JSON lines, and you
# say which backend collects them. Here's a run to read: 20 steps on two ranks. Rank 1 is killed
# after step 14, and the second start resumes.

# %%
PLAN = {"dataset_size": 320, "max_epochs": 1}  # 20 steps of 16 samples, saved after 10 and 20

kill_rank_1 = partial(breaks.kill, rank=1, step=14)
killed = run_trainer(folder / "run", fault=kill_rank_1, log_every=5, **PLAN)
resumed = run_trainer(folder / "run", log_every=5, **PLAN)
print("exit codes:", codes_of(killed), codes_of(resumed))
for path in sorted((folder / "run").glob("[lt]*/*.json*")):
    print(f"{path.relative_to(folder)}: {path.stat().st_size:,} bytes")

# %% [markdown]
# ## Three layers of metrics
#
# Sort metrics by the question they answer. The first layer is **semantic**: is the training
# right? These five belong on every training dashboard. The handbook's seven metrics to name in a
# hurry have none of them.

# %%
run = read_telemetry(folder / "run")
windows = run.named("train_progress")
last = run.newest("train_progress")[0]  # rank 0's

semantic = {
    "step": f"{last['step']} of {last['total_steps']}",
    "loss, mean over the global batch": f"{last['loss']:.3f} nats",
    "learning rate": f"{last['lr']:.1e}",
    "gradient norm before clipping": f"{last['grad_norm']:.3f}",
    "skipped steps": sum(window["skipped_steps"] for window in windows),
}
semantic

# %% [markdown]
# The second layer is the **system**: is it fast, and if not, which part? Report percentiles by
# rank. A mean hides spikes, and a synchronous step is as slow as its slowest rank.

# %%
def peak_flops():
    """What one core reaches in a large matrix product, in floating-point operations per s."""
    torch.set_num_threads(1)
    matrix, times = torch.randn(512, 512), []
    for _ in range(20):
        began = time.perf_counter()
        matrix @ matrix
        times.append(time.perf_counter() - began)
    return 2 * 512**3 / min(times)


state = torch.load(folder / "run/checkpoints/step-00000020/state.pt")
weights = sum(tensor.numel() for tensor in state["model"].values())
rate = median(window["samples_per_s"] for window in windows)
phases = run.phase_ms()
memory = "no GPU here"
if torch.cuda.is_available():
    memory = f"{torch.cuda.memory_allocated()}, {torch.cuda.memory_reserved()} bytes"
system = {
    "step time by phase, ms": {name: round(ms, 2) for name, ms in phases[0].items()},
    "loader wait, ms by rank": [round(ms["data_wait"], 2) for ms in phases.values()],
    "exposed all-reduce, ms by rank": [round(ms["grad_sync"], 2) for ms in phases.values()],
    "samples/s": rate,
    "MFU": f"{6 * weights * rate / (2 * peak_flops()):.4%}",
    "checkpoint latency, ms": [1e3 * r["seconds"] for r in run.named("checkpoint_saved")],
    "GPU memory, allocated and reserved": memory,
}
system

# %% [markdown]
# Three of these are easy to confuse with a neighbor:
#
# - **Exposed all-reduce.** DDP overlaps its sync with the backward pass. What costs you time is
#   the part after the last local gradient, and that's what `grad_sync` is here.
# - **MFU and goodput.** MFU, model FLOPs utilization, is the rate of useful FLOPs while the model
#   trains, as a share of the hardware's peak. Goodput is the share of wall time that ends up in
#   the weights. The toy model's MFU is next to nothing: its steps are all overhead.
# - **Allocated and reserved.** Tensors occupy the *allocated* memory. PyTorch's caching allocator
#   holds the *reserved* memory and doesn't give freed blocks back ([memory
#   management](https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management)). Plot
#   both. A gap that keeps growing points to fragmentation: a job can run out of memory while much
#   of it is unused.
#
# The third layer is **reliability**: will it survive the night, and how much would a failure cost
# right now?

# %%
now = max(record["time"] for record in run.events)
saved = max(record["step"] for record in run.named("checkpoint_saved"))
reliability = {
    "restarts": len({record["attempt"] for record in run.named("run_start")}) - 1,
    "checkpoint age, steps": last["step"] - saved,
    "heartbeat age by rank, s": [
        round(now - step["time"], 3) for step in last_by_rank(run.steps).values()
    ],
    "goodput": f"{account_run(folder / 'run').goodput:.0%}",
}
reliability

# %% [markdown]
# The handbook's seven are step time by phase, samples/s, loader wait, all-reduce time, checkpoint
# latency, GPU memory and restart count. Add what they lack: the semantic five, checkpoint *age*
# (latency says nothing about a save that never starts), heartbeat freshness by rank, reserved
# memory, MFU and goodput. Failed collectives aren't counted by this trainer: a collective that
# fails ends the attempt, so they're in the restart count.
#
# > "For each metric I name the decision it drives. If nobody would do anything about a number, I
# > don't put it on the dashboard."

# %% [markdown]
# ## One voice, but every rank is a witness
#
# One rank prints progress, or nobody can read the console. Errors are another matter. Here, a
# shard is missing on rank 1.

# %%
def without_addresses(error):
    """The first sentence of an error, without gloo's source file and sockets."""
    return re.sub(r"^\[/\S+\] | \[[\d.]+\]:\d+", "", str(error)).partition(". ")[0]


def one_shard_is_missing():
    try:
        if dist.get_rank() == 1:
            raise FileNotFoundError("shard-0007 is not on this node")
        dist.all_reduce(torch.ones(1))
    except Exception as error:
        said = f"{type(error).__name__}: {without_addresses(error)}"
        return {"time": time.time(), "rank": dist.get_rank(), "error": said}


errors = on_ranks(one_shard_is_missing, 3)
print("rank 0's log:", errors[0]["error"])
print("all logs, in order of time:")
for error in sorted(errors, key=lambda error: error["time"]):
    print(f"    rank {error['rank']}, {error['error']}")

# %% [markdown]
# Rank 0 blames the network. It's innocent, and so is the network. With structured errors from
# every rank, the first line by time is the cause, and the rest are its consequences. That holds
# on one machine; across nodes, clocks differ by more than that, so also look for the one error
# that doesn't mention a peer. This trainer goes one step further. Its ranks vote before anyone
# raises, and then all of them raise the same cause (section 4 of the
# [walkthrough](../01_walkthrough.ipynb) shows it).
#
# > "Rank 0 prints progress and the summary of the environment. Errors come from every rank, as
# > JSON, with rank, attempt and step. Otherwise my log shows the victim."
#
# **Throttle what repeats.** A corrupt record in each batch means a warning per step and rank.
# Count them all, and log the first, the second, the fourth, the eighth.

# %%
class Throttle:
    """Lets a repeated message through the 1st, 2nd, 4th, 8th ... time."""

    def __init__(self):
        self.seen = Counter()

    def lets_through(self, message):
        self.seen[message] += 1
        return self.seen[message].bit_count() == 1


throttle = Throttle()
logged = [n for n in range(1, 10_001) if throttle.lets_through("corrupt record")]
print(f"10,000 equal warnings: {len(logged)} lines; the last says {logged[-1]:,} so far")

# %% [markdown]
# **Bound the cardinality.** Logs may carry any field. In a metrics backend, each combination of
# label values is a time series of its own, in memory ([Prometheus on
# labels](https://prometheus.io/docs/practices/naming/#labels)). Count the series that the two
# ranks' `train_progress` events make, for three sets of labels:

# %%
def time_series(records, labels):
    """How many time series these records make."""
    found = set()
    for record in records:
        context = [record[label] for label in labels]
        for phase, summary in record["phases"].items():
            found |= {(phase, quantile, *context) for quantile in summary}
    return len(found)


for labels in ([], ["rank"], ["rank", "step"]):
    print(f"{time_series(windows, labels):4} time series with labels {labels}")
line_bytes = median(len(json.dumps(window)) for window in windows)
a_day = line_bytes * 1024 * 24 * 3600
print(f"1,024 ranks, {line_bytes:.0f} bytes a second each: {a_day / 1e9:.0f} GB of logs a day")

# %% [markdown]
# `rank` multiplies the series by a number that you know. `step`, a sample id or a file name
# multiplies them without bound: those belong in logs. And a line per second from each of 1,024
# ranks is real money, so aggregate on the node, and keep the details for errors.

# %% [markdown]
# ## Alive isn't the same as making progress
#
# The most common watchdog is a thread that reports "I'm alive". It keeps reporting while the
# training loop is stuck. So a heartbeat has to carry the step. This one also says where the loop
# is once it has stopped moving: the stack, and the last collective that torch's flight recorder
# has seen. The trainer calls `emit` for each event of its rank.

# %%
GAVE_UP = 3  # exit code


class Heartbeat:
    """One more destination for a rank's events. Its thread writes a line every 50 ms."""

    def __init__(self, run_dir, rank, gives_up_after_s=None):
        self.rank, self.gives_up_after_s = rank, gives_up_after_s
        self.step, self.moved, self.loop = 0, time.time(), threading.get_ident()
        self.file = JsonlSink(run_dir / "heartbeat" / f"rank-{rank}.jsonl")
        self.ended = threading.Event()
        threading.Thread(target=self.beat, daemon=True).start()

    def emit(self, record):
        if record["event"] == "train_progress":
            self.step, self.moved = record["step"], time.time()

    def beat(self):
        while not self.ended.wait(0.05):
            stuck_s = time.time() - self.moved if self.step else 0.0
            line = {"time": time.time(), "rank": self.rank, "step": self.step}
            if stuck_s > 0.3:
                frames = traceback.extract_stack(sys._current_frames()[self.loop])
                line |= {"stack": [frame.name for frame in frames]}
                line |= last_collective(recorded_collectives())
            self.file.emit(line)
            if self.gives_up_after_s and stuck_s > self.gives_up_after_s:
                os._exit(GAVE_UP)

    def close(self):
        self.ended.set()


# %% [markdown]
# Now break the run in ten ways. Each fault replaces one function inside a rank, at an exact step.
# The rest of the chapter reads these folders.

# %%
def stuck_read():
    breaks.fail_in("loader", partial(time.sleep, 3600), rank=1, call=17)  # in step 8


def lone_barrier():
    """A barrier under ``if rank == 0``."""
    if breaks.is_rank(0):
        breaks.at_step(8, dist.barrier)


def frozen_node():
    """Rank 1 stops at once, heartbeat and all. Somebody kills it 1.2 s later."""

    def freeze():
        subprocess.Popen(["sh", "-c", f"sleep 1.2; kill -9 {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)

    if breaks.is_rank(1):
        breaks.at_step(8, freeze)


def slow_rank():
    """Each forward pass of rank 1 takes 15 ms longer, and a step has two."""

    def slow(forward, model, inputs):
        time.sleep(0.015 if breaks.is_rank(1) else 0)
        return forward(model, inputs)

    breaks.wrap("TinyNet.forward", slow)


# %%
def corrupt_data():
    def poison(step, batches):
        if breaks.is_rank(1) and step % 3 == 0:
            batches[0].inputs[0, 0] = float("nan")

    breaks.at_batches(poison)


def stuck_save():
    breaks.at_save(10, partial(time.sleep, 3600))


# %%
watched = {"sink": partial(Heartbeat, gives_up_after_s=0.7)}  # ends a rank that is stuck
runs = {
    "healthy": {},
    "healthy, fp16": {"fault": partial(breaks.start_the_scaler_at, 2.0**20), "amp": "fp16"},
    "stuck read": {"fault": stuck_read, **watched},
    "stuck save": {"fault": stuck_save, **watched},
    "lone barrier": {"fault": lone_barrier, **watched},
    "frozen node": {"fault": frozen_node},
    "slow rank": {"fault": slow_rank},
    "slow storage": {"fault": partial(breaks.slow_steps, 0.02)},
    "slow saves": {"fault": partial(breaks.slow_saves, 0.7)},
    "rare saves": {"checkpoint_every_steps": 1000},
    "corrupt data": {"fault": corrupt_data, "on_nonfinite": "skip"},
    "killed at step 7": {"fault": partial(breaks.kill, rank=1, step=7)},
}
exitcodes = {}
for name, how in runs.items():
    for _ in range(3 if name == "killed at step 7" else 1):  # somebody restarts that one
        reports = run_trainer(folder / name, **{"sink": Heartbeat, **PLAN, **how})
    exitcodes[name] = codes_of(reports)
telemetry = {name: read_telemetry(folder / name) for name in runs}

# %% [markdown]
# In this one, rank 1's loader never returns. For as long as you watch, both ranks are alive.

# %%
liveness_picture(telemetry["stuck read"])

# %% [markdown]
# Note what the picture doesn't tell you: which rank is to blame. Both stop after the same step,
# because each step ends with a collective. Freshness says *that* the job is stuck. For *who*, you
# need the last collective and the stack.

# %% [markdown]
# ## Which kind of hang?
#
# Ask four questions, in this order. Each one is cheap, and each answer rules out a branch.

# %%
diagram("hang_tree")

# %%
WHERE = {"next_step": "blocked read", "save_checkpoint": "blocked write"}


def classify(exitcodes, beats, now):
    """Walk the tree with each rank's last heartbeat and, if it has ended, its exit code."""
    killed = [rank for rank, code in enumerate(exitcodes) if code is not None and code < 0]
    silent = [rank for rank, beat in beats.items() if now - beat["time"] > 0.5]
    if killed or silent:
        return f"rank {(killed or silent)[0]} is gone: crash, kill or lost node"
    if not all("stack" in beat for beat in beats.values()):
        return "steps complete: slow, not hung"
    busy = [rank for rank, beat in beats.items() if not beat["waits"]]
    if busy:
        stack = beats[busy[0]]["stack"]
        where = [WHERE[name] for name in stack if name in WHERE] or [f"in {stack[-1]}"]
        return f"rank {busy[0]} doesn't wait in a collective: {where[0]}"
    names = {beat["name"] for beat in beats.values()}
    if len(names) > 1:
        return f"deadlock: some wait in {' and some in '.join(sorted(names))}"
    return f"all wait in the same {names.pop()}: network, driver or device"


# %% [markdown]
# We try it on real jobs, with what each rank wrote last. For the stuck read we ask twice: 0.1 s
# after the last step, and when the ranks gave up.

# %%
def judge(name, at=None):
    """What the tree says at a time; by default, once a rank has given up or died."""
    beats = telemetry[name].beats
    now = at or min(beat["time"] for beat in last_by_rank(beats).values())
    codes = [None if at or code == GAVE_UP else code for code in exitcodes[name]]
    return classify(codes, last_by_rank([beat for beat in beats if beat["time"] <= now]), now)


early = telemetry["stuck read"].steps[-1]["time"] + 0.1
verdicts = {"stuck read, after 0.1 s": judge("stuck read", early)}
for name in ("stuck read", "stuck save", "lone barrier", "killed at step 7"):
    verdicts[name] = judge(name)
for name, verdict in verdicts.items():
    print(f"{name:24} {verdict}")

# %% [markdown]
# The innocent ranks are the ones that wait. The one that *doesn't* wait is the one to look at. If
# all wait in different collectives, nobody is slow: two ranks disagree about the program. On a
# GPU, believe the recorder rather than the stack. The host only queues work ([asynchronous
# execution](https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution)), and it
# waits wherever it next reads a value.
#
# The tools for a job without such a heartbeat:
#
# - **[py-spy](https://github.com/benfred/py-spy)**: `py-spy dump --pid PID` prints the Python
#   stack of a process that's already stuck, without changing it. In a container it needs the
#   right to ptrace.
# - **The flight recorder** keeps each rank's latest collectives in a ring buffer, and dumps it on
#   a timeout
#   ([tutorial](https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html)).
#   Compare ranks: who has issued fewer? The heartbeat above reads the one for gloo.
# - **`TORCH_DISTRIBUTED_DEBUG=DETAIL`** makes torch compare each collective across ranks before
#   it runs. You switch it on to reproduce a bug, not in production. Here's why you'd want it. Two
#   ranks sum gradients of different sizes:

# %%
def mismatched(checks):
    if checks:  # what TORCH_DISTRIBUTED_DEBUG=DETAIL sets
        dist.set_debug_level(dist.DebugLevel.DETAIL)
    group, gradient = dist.new_group(), torch.ones(4 - dist.get_rank())
    try:
        dist.all_reduce(gradient, group=group)
    except RuntimeError as error:
        shapes = re.findall(r"(Rank \d) is running.*?(TensorShape=\[\d\])", str(error))
        return shapes or without_addresses(error)
    return gradient.tolist()


mismatch = {}
for level, checks in (("default", False), ("DETAIL", True)):
    reports = watch_ranks(mismatched, 2, checks)
    mismatch[level] = [report.answer for report in reports]
    for report in reports:
        sent = len(report.collectives)
        print(f"{level:8} rank {report.rank}, {sent} collective(s): {report.answer}")

# %% [markdown]
# By default, rank 1 gets a wrong sum and no error. (This is gloo. NCCL calls it [undefined
# behavior](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/collectives.html): a
# hang, a crash, or corrupted data.) With DETAIL, both ranks name both shapes, and the price is
# extra collectives for each of yours.

# %% [markdown]
# ## Stragglers
#
# A trace shows a straggler best. It's the same file that opens in Perfetto.

# %%
rank_timeline(folder / "slow rank", first_step=12, num_steps=3)

# %% [markdown]
# Rank 0 spends most of its step in `grad_sync`, and rank 0 is fine. So don't look for the rank
# that waits longest. **The straggler is the rank that waits least.** Split each step into the
# rank's own work and its wait. The difference in own work is the arrival skew, and it needs no
# common clock.

# %%
for rank, ms in telemetry["slow rank"].phase_ms().items():
    own = sum(ms.values()) - ms["grad_sync"]
    print(f"rank {rank}: {own:5.1f} ms of its own, then {ms['grad_sync']:5.1f} ms in grad_sync")

# %% [markdown]
# ## Replicas that differ in silence
#
# DDP makes the replicas equal once, when you wrap the model. After that it syncs gradients, and
# trusts that equal weights with equal gradients stay equal. It never checks the weights. A
# flipped bit, a bug in one rank's optimizer or a different restored state stays in that replica
# for good. It's rare and real: for 54 days of training Llama 3 405B, Meta's published table lists
# six interruptions because of [silent data corruption](https://arxiv.org/abs/2407.21783).
#
# So hash the replica and compare. The hash has to see every bit and its place, and it must not
# depend on the order of a floating-point sum. Integers that wrap around have both properties.

# %%
def fingerprint(*tensors):
    """64 bits that depend on all bits of all tensors, and on their places."""
    total = torch.zeros((), dtype=torch.int64)
    for tensor in tensors:
        bits = tensor.detach().flatten().view(torch.int32).long()
        places = torch.arange(1, 2 * len(bits), 2)  # odd: multiplying loses nothing
        total = total * 1_000_003 + (bits * places).sum()  # wraps around at 2**64
    return total


def odd_ones_out(values):
    """For each of these numbers, the ranks without the majority's. Collective: every rank."""
    gathered = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, values)
    table = torch.stack(gathered)  # (ranks, numbers)
    differs = table != table.mode(dim=0).values
    return [column.nonzero().flatten().tolist() for column in differs.T]


# %% [markdown]
# We train three replicas and break rank 1's after step 5, in three ways. Four checks run after
# each step. Two of them look reasonable and aren't enough: the norm of the weights, and the sum
# of their bits.

# %%
def flip_a_bit(weight, state):
    weight.view(torch.int32)[3, 5] ^= 1  # the least significant one


def swap_two_weights(weight, state):
    weight[3, [5, 6]] = weight[3, [6, 5]]


def lose_the_momentum(weight, state):
    state["exp_avg"].zero_()


# %%
CHECKS = ["norm", "sum of bits", "fingerprint", "with optimizer"]


def checks_of(weights, momentum):
    norm = nn.utils.get_total_norm(weights).double().view(torch.int64)
    added = sum(weight.view(torch.int32).long().sum() for weight in weights)
    numbers = [norm, added, fingerprint(*weights), fingerprint(*weights, *momentum)]
    return torch.stack(numbers).detach()


# %%
def train_replicas(fault):
    """Twenty steps. Returns where each check found a difference, and the losses."""
    torch.manual_seed(17)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
    wrapped, found, losses = DistributedDataParallel(model), {}, []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    weights = list(model.parameters())
    for step in range(1, 21):
        optimizer.zero_grad()
        loss = wrapped(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        if fault and step == 5 and dist.get_rank() == 1:
            with torch.no_grad():
                fault(weights[0], optimizer.state[weights[0]])
        momentum = [optimizer.state[weight]["exp_avg"] for weight in weights]
        for name, odd in zip(CHECKS, odd_ones_out(checks_of(weights, momentum))):
            if odd:
                entry = found.setdefault(name, {"first": step, "ranks": odd})
                entry["last"] = step
        losses.append(loss.detach())
    dist.all_reduce(total := torch.stack(losses))
    return found, (total / dist.get_world_size()).tolist()


# %%
def all_replicas():
    faults = {"healthy": None, "flipped bit": flip_a_bit}
    faults |= {"two weights swapped": swap_two_weights, "momentum lost": lose_the_momentum}
    return {name: train_replicas(fault) for name, fault in faults.items()}


replicas = on_ranks(all_replicas, 3)[0]
healthy = replicas["healthy"][1]
print("found at step ".ljust(20), *CHECKS, " change in loss", sep="  ")
for name, (found, losses) in replicas.items():
    change = max(abs(a - b) / b for a, b in zip(losses, healthy))
    firsts = [found.get(check, {"first": "-"})["first"] for check in CHECKS]
    cells = [str(first).rjust(len(check)) for first, check in zip(firsts, CHECKS)]
    print(f"{name:20}", *cells, f"{change:14.1e}", sep="  ")
print("flipped bit, the fingerprint says:", replicas["flipped bit"][0]["fingerprint"])

# %% [markdown]
# The fingerprint finds each fault in the step in which it reaches the weights. With the
# optimizer's state in it, it even finds the lost momentum a step before the weights differ.
# Remember the flipped bit: it changes the loss in the seventh digit, and it's still there at the
# end.
#
# With three replicas, the majority names the culprit. With two you know that they differ, and not
# which one is right. What does it cost?

# %%
def cost_of_a_check(width):
    """How many weights; medians in ms of a training step, the fingerprint, the comparison."""
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    times = []
    for _ in range(8):
        stamps = [time.perf_counter()]
        wrapped(torch.randn(64, width)).square().mean().backward()
        optimizer.step()
        stamps.append(time.perf_counter())
        number = fingerprint(*model.parameters())
        stamps.append(time.perf_counter())
        odd_ones_out(number[None])
        times.append([1e3 * (b - a) for a, b in pairwise([*stamps, time.perf_counter()])])
    num_weights = sum(parameter.numel() for parameter in model.parameters())
    return num_weights, [median(column) for column in zip(*times)]


num_weights, (step_ms, hash_ms, compare_ms) = on_ranks(cost_of_a_check, 2, 768)[0]
print(f"{num_weights:,} weights. In ms: a step takes {step_ms:.1f}, ", end="")
print(f"the fingerprint {hash_ms:.1f}, comparing it {compare_ms:.1f}")
for every in (1, 100):
    share = (hash_ms + compare_ms) / step_ms / every
    print(f"checked every {every} step(s), it adds {share:.1%}")

# %% [markdown]
# It reads each weight once. On an H100 with a published 3.35 TB/s
# ([NVIDIA](https://www.nvidia.com/en-us/data-center/h100/)), 14 GB of weights (7B in bf16) take
# about 4 ms, plus 8 bytes per rank on the network. Every hundred steps, nobody notices. And do it
# right after each restore: that's when replicas most often part.

# %% [markdown]
# ## Alerts that you've seen fire
#
# An alert is a function from telemetry to a sentence or nothing. These eight read a run folder.
# The limits fit our toy run; yours come from a healthy week.

# %%
RPO_STEPS = 15  # the most work that we accept losing


def checkpoint_is_too_old(run):
    saves = [(record["time"], record["step"]) for record in run.named("checkpoint_saved")]
    for line in run.steps:
        saved = max((step for time, step in saves if time <= line["time"]), default=0)
        if line["step"] - saved > RPO_STEPS:
            return f"at step {line['step']}, the newest checkpoint is of step {saved}"


def saves_are_slow(run):
    took = [record["seconds"] for record in run.named("checkpoint_saved")][-2:]
    if len(took) == 2 and min(took) > 0.6:
        return f"the last two saves took {took[0]:.1f} and {took[1]:.1f} s"


def updates_are_skipped(run):
    """An fp16 scaler skips some at the start, while it looks for its scale. That's healthy."""
    settled = [line for line in run.steps if line["rank"] == 0 and line["step"] > 10]
    skipped = sum("skipped" in line for line in settled)
    if skipped > 0.1 * len(settled):
        return f"{skipped} of {len(settled)} updates were skipped"


# %%
def a_rank_lags(run):
    """Judged by each rank's best step of 10 or more: other programs don't slow all of them."""
    best, is_known = run.phase_ms(min), run.steps[-1]["step"] >= 10
    own = {rank: sum(ms.values()) - ms["grad_sync"] for rank, ms in best.items()}
    slow, fast = max(own, key=own.get), min(own, key=own.get)
    if is_known and own[slow] > 2 * own[fast] and own[slow] > own[fast] + 10:
        return f"rank {slow} needs {own[slow]:.0f} ms per step, rank {fast} {own[fast]:.0f} ms"


def the_loader_is_late(run):
    for rank, ms in run.phase_ms(min).items():
        if ms["data_wait"] > max(5, 0.5 * sum(ms.values())):
            return f"rank {rank} waits {ms['data_wait']:.0f} ms per step for data"


# %%
def restarts_lead_nowhere(run):
    starts = [record["step"] for record in run.named("run_start") if record["rank"] == 0]
    if len(starts) > 2 and len(set(starts[-3:])) == 1:
        return f"the last 3 starts all began at step {starts[-1]}"


def no_step_completes(run):
    idle = run.beats[-1]["time"] - run.steps[-1]["time"]
    if not run.named("run_end") and idle > 0.5:
        return f"somebody is alive, but no step has completed for {idle:.1f} s"


def a_heartbeat_stopped(run):
    for rank, beat in last_by_rank(run.beats).items():
        silent = run.beats[-1]["time"] - beat["time"]
        if silent > 0.8:
            return f"rank {rank} has been silent for {silent:.1f} s, and others haven't"


# %%
rules = [
    checkpoint_is_too_old, saves_are_slow, updates_are_skipped, a_rank_lags,
    the_loader_is_late, restarts_lead_nowhere, no_step_completes, a_heartbeat_stopped,
]
alerts = {}
for name, records in telemetry.items():
    said = {rule.__name__: rule(records) for rule in rules}
    alerts[name] = {rule: text for rule, text in said.items() if text}
print(alert_table(alerts, rules))

# %%
for name, fired in alerts.items():
    for text in fired.values():
        print(f"{name}: {text}")
print("killed once, and resumed:", restarts_lead_nowhere(run) or "quiet")

# %% [markdown]
# Two healthy runs are quiet, including the fp16 one that skips updates at its start. Each broken
# run fires what it should and nothing else. Only the frozen node fires two: a silent rank stalls
# the job. Some details decide whether people trust a page at night:
#
# - **Age beats latency.** `rare saves` never makes a slow save. Somebody set the interval to
#   1,000 steps. Only the age of the newest checkpoint sees that, and it's the number your RPO is
#   about.
# - **Wait for a second sign.** On a busy machine, one slow save or one slow step means nothing.
#   So these rules ask for two saves in a row, for a share of the updates, or for a rank's best
#   step.
# - **Alert on lack of progress, wherever it comes from.** Three starts from the same step mean
#   that one more won't help. A restart *count* would also page for the run at the top of this
#   chapter, which was killed once and recovered.
# - **Alert from outside.** A stuck rank can't report itself, and neither can a dead node.
#   Somebody else compares the clock with the last line.
# - **A symptom pages, a cause goes into the ticket.** No step, an old checkpoint and a falling
#   goodput page. A slow rank or a late loader can wait until morning.
#
# > "I don't trust an alert that I haven't seen fire. So I keep a broken run for each rule, and a
# > healthy one that must stay quiet, and I run all of them in CI."

# %% [markdown]
# ## Say it in 60 seconds
#
# > "I want three layers. Semantic: step, loss, learning rate, gradient norm, skipped steps.
# > System: step time by phase and rank, samples per second, exposed sync, memory allocated and
# > reserved, MFU. Reliability: restarts, checkpoint age, progress per rank, goodput.
# >
# > Rank 0 prints, every rank logs. Otherwise the log I open first shows a victim that blames the
# > network. A heartbeat carries the step, because a stuck rank is alive. If nothing moves, I look
# > for the rank that doesn't wait in a collective, and read its stack.
# >
# > Stragglers are the ranks that wait least. For silent divergence I compare a 64-bit fingerprint
# > of the weights across ranks, after every restore and every hundred steps. And each alert has a
# > broken run in CI that makes it fire, next to a healthy run that keeps it quiet."

# %% [markdown]
# ## Three questions
#
# **"The job has been silent for ten minutes. What do you do?"**
#
# - *Weak:* "I'd restart it and see whether it happens again."
# - *Strong:* "Two minutes of evidence first, because a restart destroys it. Are all ranks alive?
#   Does the step move? If not, I compare the last collective of each rank. The rank that isn't in
#   one is the suspect, and its stack says loader, checkpoint or code. If all wait in different
#   collectives, it's our bug. If all wait in the same one, I suspect the network or a device.
#   Then I dump, restart, and drain the node if it's the hardware."
# - *What would prove me wrong:* the suspect's stack. If it sits in the same collective as
#   everybody else, I blamed the wrong rank.
#
# **"How would you know that one replica has gone wrong?"**
#
# - *Weak:* "The loss would go up."
# - *Strong:* "Not visibly. One replica of a thousand moves the mean loss by a thousandth of its
#   own error, and gradients still look plausible. I hash the weights and the optimizer state on
#   each rank and compare, every hundred steps and after each restore. With three or more replicas
#   the majority names the rank. Under FSDP with full sharding there is no second copy, so I'd
#   compare across replica groups, or rerun a step."
# - *What would prove me wrong:* the fingerprints at the end of a run. If they agree and the
#   quality is still off, the fault is common to all ranks.
#
# **"Which three alerts would you set up first?"**
#
# - *Weak:* "GPU utilization below 80 percent, loss is NaN, and disk full."
# - *Strong:* "No step completed for some multiple of the usual step time. Newest checkpoint older
#   than our RPO. Restarts without a new checkpoint between them. These three cover most of what
#   loses money overnight, whatever the cause is. Utilization isn't one of them: a GPU that waits
#   in a collective can look busy."
# - *What would prove me wrong:* incidents that a person noticed before an alert did. Each of
#   those is a missing rule.

# %% [markdown]
# ## Practice it
#
# - Drills: [instrument_performance](../drills/040_instrument_performance.ipynb),
#   [cell_metrics](../drills/170_cell_metrics.ipynb),
#   [replicas_drift_apart](../drills/220_replicas_drift_apart.ipynb),
#   [run_hangs_at_its_first_log](../drills/260_run_hangs_at_its_first_log.ipynb).
# - The code: section 7 of the [walkthrough](../01_walkthrough.ipynb), and the watchdog in its
#   section 8.
# - The cards: `ask(topic="observability")` in [03_deck](../03_deck.ipynb).
