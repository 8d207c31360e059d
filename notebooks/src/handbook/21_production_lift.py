# %% [markdown]
# # 21. The production lift
#
# {{badge}}
#
# > "The training loop doesn't change. What changes is who starts it, what outlives it, who watches
# > it, and who decides to stop paying for it. I'd go box by box. For each one I say what breaks
# > without it and which number would show that first. If I can't name both, I don't build it yet."
#
# *Twenty-two minutes to read. Each box is taken away once, with real ranks under torchrun. The
# scheduler and the economics of spot capacity are simulated, and the formulas are tested.*

# %% collapsed=true
# {{setup torch numpy matplotlib cloudpickle platformdirs fsrs rehearsal}}

# %% collapsed=true
#@title Imports
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib import metadata
from pathlib import Path

import torch
from torch import nn
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
from torch.distributed.run import get_args_parser
from torch.nn.parallel import DistributedDataParallel

from rehearsal.evidence.audit import audit_run
from rehearsal.evidence.pictures import read_events
from rehearsal.evidence.run_records import read_jsonl
from rehearsal.faults.breaks import at_step, fail, is_rank, kill, wrap
from rehearsal.handbook.diagrams import diagram
from rehearsal.handbook.excerpts import excerpt
from rehearsal.handbook.gang import Job, gpu_picture, simulate
from rehearsal.handbook.spot import (
    break_even_nodes,
    cost_of_useful_hour,
    cost_picture,
    goodput_unwarned,
    goodput_warned,
    job_mtbi_s,
    simulate_goodput,
)
from rehearsal.handbook.torchrun import Torchrun, free_endpoint, warm_up
from trainer_core.checkpoint_format import published_steps
from trainer_core.collectives import gather_objects
from trainer_core.config import TrainConfig
from trainer_core.distributed import maybe_init_dist
from trainer_core.launch import run
from trainer_core.local_launcher import LocalRanks
from trainer_core.model import weights_sha256

warm_up()  # imports torch in the background, so that ranks start in milliseconds
folder = Path(tempfile.mkdtemp(prefix="handbook-"))

# %% [markdown]
# ## Six boxes
#
# It's a whiteboard question: "Your notebook works. Take it to production." Draw this, from left to
# right, and say one sentence per box.

# %%
diagram("production_lift")

# %% [markdown]
# | box | what it adds | what breaks without it | the number that shows it first |
# |---|---|---|---|
# | 1 notebook to module | code that a command can start, many times at once | every run starts with a person executing cells | manual steps between a commit and step 1 |
# | 2 container | one environment on every node | the same commit behaves differently on one node | distinct image digests in a run |
# | 3 launcher | processes with a rank, and their restart | a dead rank stays dead | ranks joined, out of those requested |
# | 4 artifact and config service | what outlives a node: checkpoints, and what made them | ranks resume from different states; nobody knows which settings a checkpoint is from | age of the newest intact checkpoint; resumes refused |
# | 5 metrics and logs | evidence from every rank, off the node | one rank's fault is invisible | seconds since each rank's last step |
# | 6 policy | when to retry, stop, move or shrink | a hopeless job restarts all night | goodput, with restarts by cause |
#
# The order is the order in which you'd build them, and each box leans on those before it: a retry
# policy without durable artifacts only repeats step 1.
#
# This is the job that we take apart. It has 24 steps and saves every six.

# %%
PLAN = {
    "dataset_size": 96, "pinned_global_batch_size": 4, "max_epochs": 1,
    "checkpoint_every_steps": 6, "log_every": 1, "device": "cpu",
}


def train(run_dir, fault=None, **changes):
    """What each rank runs. ``fault`` breaks something first."""
    if fault:
        fault()
    return run(TrainConfig(run_dir=run_dir, **{**PLAN, **changes}))


def saved_steps(run_dir):
    return sorted(published_steps(run_dir / "checkpoints"))


# %% [markdown]
# ## 1. From a notebook to many processes
#
# A notebook is one process with one memory. Whatever that process draws or happens to order is
# consistent with itself. The moment there are several, it isn't. Here's a label map, built the way
# people build one in a cell, in three fresh processes:

# %%
LABELS = "print(list({'cat', 'dog', 'bird', 'fish', 'frog'}))"
as_by_default = {name: value for name, value in os.environ.items() if "PYTHON" not in name}
python = [sys.executable, "-c"]
orders = [
    subprocess.check_output([*python, LABELS], env=as_by_default, text=True) for _ in range(3)
]
for number, order in enumerate(orders):
    print(f"process {number}:", order.strip())

# %% [markdown]
# Each process salts its string hashes (chapter 19), so a set has a different order in each. As
# ranks, these three would train on different label numbers, with a healthy loss. So the first box
# isn't a file format. It's the rule that everything a rank needs comes from the code, the config or
# the launcher, and nothing from whatever the process happened to be.

# %% [markdown]
# ## 2. The container
#
# This package asks for two dependencies. The environment has all the others, and only an image pins
# those. Each rank can compute a digest of what it really runs on. Here we pretend that rank 1's node
# has an older numpy.

# %%
def environment_digest(changes):
    versions = {found.name: found.version for found in metadata.distributions()}
    text = json.dumps(sorted({**versions, **changes}.items()))
    return [len(versions), hashlib.sha256(text.encode()).hexdigest()[:12]]


def compare_environments():
    info = maybe_init_dist(TrainConfig(device="cpu"))
    ours = environment_digest({"numpy": "1.26.4"} if info.rank == 1 else {})
    return gather_objects(ours)


with Torchrun(compare_environments) as job:
    job.wait()
    environments = job.answers()[0]
for rank, (packages, digest) in enumerate(environments):
    print(f"rank {rank}: {packages} packages, digest {digest}")
print("distinct environments:", len({digest for _, digest in environments}), "(it must be 1)")

# %% [markdown]
# The other trap of a container is its entrypoint. A scheduler sends SIGTERM to the container's
# first process. If that's a shell script with a line after the trainer, the shell gets the signal
# and the trainer never does. Docker's documentation
# [says so](https://docs.docker.com/reference/build-checks/json-args-recommended/); here it is with
# a stand-in for the trainer, which saves when it gets SIGTERM.

# %%
TRAINER = """
import pathlib, signal, sys, time
def save(*_):
    pathlib.Path(sys.argv[1], "saved").touch()
    sys.exit()
signal.signal(signal.SIGTERM, save)
pathlib.Path(sys.argv[1], "ready").touch()
time.sleep(60)
"""
(folder / "trainer.py").write_text(TRAINER)
ENTRYPOINTS = {"a shell script": '"$0" "$1" "$2"; echo done', "exec": 'exec "$0" "$1" "$2"'}
was_saved = {}
for name, line in ENTRYPOINTS.items():
    place = folder / name
    place.mkdir()
    command = ["sh", "-c", line, sys.executable, str(folder / "trainer.py"), str(place)]
    container = subprocess.Popen(command, start_new_session=True)
    while not (place / "ready").exists():
        time.sleep(0.01)
    container.terminate()  # SIGTERM to the first process, and to no other
    container.wait()
    time.sleep(0.5)  # the grace period
    with contextlib.suppress(ProcessLookupError):
        os.killpg(container.pid, signal.SIGKILL)
    was_saved[name] = (place / "saved").exists()
    print(f"entrypoint is {name}: saved on SIGTERM: {was_saved[name]}")

# %% [markdown]
# > "I'd use the exec form, so that the launcher is the first process and gets the signal. And the
# > digest of the image goes into the run's record, next to the commit."
#
# ## 3. The launcher
#
# Who restarts a dead rank? First nobody does: two processes, started by hand with the right
# environment variables. Then torchrun. In both, rank 1 gets a SIGKILL after step 9.

# %%
def once(fault):
    """The fault strikes in the first attempt only."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        fault()


killed = partial(once, partial(kill, 1, 9))
by_hand = LocalRanks(partial(train, folder / "by hand", killed), 2)
flags = ["--standalone", "--max-restarts=2"]
with Torchrun(partial(train, folder / "launched", killed), flags=flags) as job:
    hand_codes = [end.exitcode for end in by_hand.wait(60)]
    launched_code = job.wait()
starts = read_events(folder / "launched", "run_start", rank=0)
attempts = [record["attempt"] for record in starts]
print("by hand:  exit codes", hand_codes, "| saved steps", saved_steps(folder / "by hand"))
print("torchrun: exit code", launched_code, "| saved steps", saved_steps(folder / "launched"),
      "| attempts", attempts)

# %% [markdown]
# By hand, the job is over: rank 0 lost its peer, and what's left is the checkpoint of step 6. Under
# torchrun, the second attempt trained to the end. What torchrun does is a short list of settings.
# This is your torch's own help:

# %%
SETTINGS = ("nnodes", "nproc_per_node", "max_restarts", "monitor_interval", "rdzv_backend",
            "rdzv_endpoint", "rdzv_conf", "shutdown_timeout")
for action in get_args_parser()._actions:
    if action.dest in SETTINGS:
        text = " ".join(str(action.help).split())
        print(f"{action.option_strings[0]} (default {action.default!r}): {text}")

# %% [markdown]
# Three things to read out of that:
#
# - **By default torchrun restarts nothing.** `--max-restarts` is 0 until you set it.
# - **A restart is of the whole worker group.** The attempts printed above are rank 0's, and rank 0
#   wasn't killed.
# - **A node that joins or leaves doesn't count.** Here's the agent's loop, from your torch:

# %%
excerpt(SimpleElasticAgent._invoke_run, "elif state == WorkerState.HEALTHY", "_restart_workers")

# %% [markdown]
# And what torchrun can't do is restart itself. It restarts ranks, a scheduler restarts torchrun, and
# a person restarts the scheduler. Say which level owns which failure: a crash in a rank belongs to
# the agent, a lost node to the scheduler.
#
# ## 4. The artifact and config service
#
# ### Without a shared artifact store
#
# Checkpoints go to a folder, and each node has a folder of that name. Only rank 0 saves. This loop
# is how many people write it: each rank looks for the newest checkpoint on its own disk.

# %%
def resume_from_own_disk(root):
    info = maybe_init_dist(TrainConfig(device="cpu"))
    here = root / f"node-{info.rank}"
    here.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(17)
    net = nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    first, newest = 0, max(here.glob("step-*.pt"), default=None)
    if newest:
        saved = torch.load(newest)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    model = DistributedDataParallel(net)
    for step in range(first + 1, first + 13):
        torch.manual_seed(100 * step + info.rank)
        loss = model(torch.randn(16, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if info.rank == 0:
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, here / f"step-{step:04}.pt")
    return {"from": first, "to": step, "weights": weights_sha256(net)[:8]}


for _ in range(2):
    with Torchrun(resume_from_own_disk, folder / "nodes") as job:
        code, disks = job.wait(), job.answers()
print("torchrun's exit code of the second start:", code)
for rank, end in enumerate(disks):
    print(f"rank {rank}:", end)

# %% [markdown]
# Exit code 0, two ranks, two different steps and two different models. DDP broadcast rank 0's
# weights when it was built, so they began equal. Rank 1's optimizer began at zero, so they parted.
# From here on, whichever rank you evaluate is an accident.
#
# Our trainer asks before it trains. Same disks:

# %%
def own_disk(root):
    place = root / f"disk-{os.environ['RANK']}"
    place.mkdir(parents=True, exist_ok=True)
    os.chdir(place)


with Torchrun(partial(train, Path("run"), partial(own_disk, folder))) as job:
    refused_code, refusals = job.wait(), job.errors()
for (_, rank), error in refusals.items():
    print(f"rank {rank}: {error}")

# %% [markdown]
# ### Without a config identity
#
# Somebody restarts the finished job with a different seed. Somebody else changes the learning rate
# and adds an epoch. The first would train on the data in a different order under the same name, so it's
# refused. The second is a decision that people are allowed to make, so it's recorded.

# %%
shutil.copytree(folder / "launched", folder / "relaunched")
with (
    Torchrun(partial(train, folder / "launched", seed=18), ranks=1, flags=flags) as other_seed,
    Torchrun(
        partial(train, folder / "relaunched", learning_rate=3e-4, max_epochs=2)
    ) as other_rate,
):
    seed_code, rate_code = other_seed.wait(), other_rate.wait()
seed_errors = other_seed.errors()
[changed] = read_events(folder / "relaunched", "config_changed", rank=0)
print("seed:", seed_errors[0, 0].replace(str(folder), ""), "\n")
print("rate: exit code", rate_code, "|", changed["changes"])

# %% [markdown]
# A config service is that record with an address: settings, code version, data fingerprint and image
# digest, under the run's id. In this project it's `config.json`, and each checkpoint's manifest
# repeats it, so a checkpoint that somebody copied away still knows where it's from.
#
# ## 5. Metrics and logs
#
# Chapter 11 showed a fault that rank 0's console hides. Here are two more ways to be blind. First,
# rank 1 is slow: its loader needs 50 ms longer per step. If only rank 0's metrics leave the node:

# %%
def slow_loader():
    def reading(next_step, *arguments):
        if is_rank(1):
            time.sleep(0.05)
        return next_step(*arguments)

    wrap("next_step", reading)


with Torchrun(partial(train, folder / "slow", slow_loader)) as job:
    job.wait()
medians = {}
for rank in (0, 1):
    records = read_events(folder / "slow", "train_progress", rank)
    for phase in ("data_wait", "grad_sync"):
        times = sorted(record["phases"][phase]["p50"] for record in records)
        medians[rank, phase] = times[len(times) // 2]
print(f"rank 0 alone: grad_sync {medians[0, 'grad_sync']:.0f} ms. It's the network!")
print(f"with rank 1:  data_wait {medians[1, 'data_wait']:.0f} ms there. It's rank 1's storage.")

# %% [markdown]
# Second, a process that is killed. Python buffers what it prints into a file, so the lines that you
# need most, the last ones, die with it. Ours writes and flushes line by line.

# %%
PRINTS = """
import os
for step in range(60):
    print("step", step{})
os.kill(os.getpid(), 9)
"""
surviving = {}
for name, option in (("as Python prints", ""), ("flushed", ", flush=True")):
    with (folder / "log").open("w") as log:
        subprocess.run([*python, PRINTS.format(option)], stdout=log, env=as_by_default)
    surviving[name] = len((folder / "log").read_text().splitlines())
    print(f"{name}: {surviving[name]} of 60 lines survive the SIGKILL")

# %% [markdown]
# Flushing saves a log from its process. Only shipping it off the node saves it from the node.
#
# ## 6. The policy
#
# A deterministic bug: the job crashes after step 9, every time. `--max-restarts=3` is all the policy
# there is. One rank is enough to show it.

# %%
def bug():
    at_step(9, fail, "after the ledger")


flags = ["--standalone", "--max-restarts=3"]
with Torchrun(partial(train, folder / "buggy", bug), ranks=1, flags=flags) as job:
    buggy_code = job.wait()
    causes = job.errors()


def history(run_dir):
    """Per attempt: the steps that it trained, and the newest saved step when it ended."""
    steps, saved = {}, {}
    for line in read_jsonl(run_dir / "ledger/rank-0.jsonl"):
        steps.setdefault(line["attempt"], []).append(line["step"])
    for record in read_events(run_dir, "checkpoint_saved", rank=0):
        saved[record["attempt"]] = record["step"]
    newest = 0
    for attempt, trained in steps.items():
        newest = max(newest, saved.get(attempt, 0))
        yield {"attempt": attempt, "trained": (trained[0], trained[-1]), "saved": newest}


buggy = list(history(folder / "buggy"))
for attempt in buggy:
    print(attempt)
print("exit code", buggy_code, "| cause, each time:", causes[0, 0])

# %% [markdown]
# Four attempts, and the newest saved step never moved. The refused seed above was the same story:
# torchrun restarted it too, although no restart can change a seed. The ranks had exited with 2,
# "a person has to fix this", and torchrun made that a 1 like any other failure.

# %%
refusing = len({attempt for attempt, _ in seed_errors})
print("starts that refused the seed:", refusing, "| torchrun's exit code:", seed_code)

# %% [markdown]
# torchrun counts failures. A policy asks a better question: *did anything change since the last
# attempt?* It can't go by torchrun's exit code, so it reads why from the run's events. A dozen lines
# are enough for a start.

# %%
def decide(ends):
    """What to do after the last of these attempts. Each: why it ended, newest saved step."""
    reason, saved = ends[-1]
    if reason == "refused":
        return "stop: only a person can fix this"
    if reason == "preempted":
        return "requeue at once; it doesn't count as a failure"
    if len(ends) > 1 and ends[-2][1] == saved:
        return "stop: no progress between two failures"
    failures = sum(reason == "failed" for reason, _ in ends)
    return f"retry in {min(60 * 2 ** (failures - 1), 1800)} s"


CASES = {
    "the bug above, attempt 0": [("failed", 6)],
    "the bug above, attempt 1": [("failed", buggy[0]["saved"]), ("failed", buggy[1]["saved"])],
    "a lost node, then another": [("failed", 6), ("failed", 12)],
    "spot capacity taken": [("failed", 6), ("preempted", 9)],
    "a changed seed": [("refused", 24)],
}
for name, ends in CASES.items():
    print(f"{name:26} {decide(ends)}")

# %% [markdown]
# What does that save? Put your own price in. Each useless restart costs the startup plus the way to
# the crash, on every GPU.

# %%
gpus, price_per_gpu_hour = 512, 2.50  # assumptions
startup_min, minutes_to_crash, restarts = 10, 20, 10
each = gpus * price_per_gpu_hour * (startup_min + minutes_to_crash) / 60
print(f"one useless restart: {gpus} GPUs x {startup_min + minutes_to_crash} min = ${each:,.0f}")
print(f"{restarts} of them: ${restarts * each:,.0f}; with the policy above: ${each:,.0f}")

# %% [markdown]
# > "My policy has two inputs: why the attempt ended, and whether there's a newer checkpoint than last
# > time. Preemptions are free, failures need progress, and a refusal pages somebody."
#
# ## Gang scheduling
#
# All ranks have to be there before the first step, so a job is all or nothing. A scheduler that
# places one worker at a time doesn't know that. Two jobs of six workers on eight GPUs; the only
# difference is the function that picks who gets a free GPU.

# %%
def one_by_one(waiting, free):
    """Workers in the order in which they were created."""
    return waiting[:free]


def gang(waiting, free):
    """Only whole jobs."""
    chosen = []
    for job in dict.fromkeys(worker.job for worker in waiting):
        workers = [worker for worker in waiting if worker.job == job]
        if len(workers) == job.workers and len(workers) <= free - len(chosen):
            chosen += workers
    return chosen


pair = [Job("A", workers=6, minutes=10), Job("B", workers=6, minutes=10)]
timelines = {place.__name__: simulate(pair, 8, place) for place in (one_by_one, gang)}
gpu_picture(timelines, minutes=22)

# %% [markdown]
# Without gangs, each job gets four GPUs and waits for two more. Nobody trains, nobody gives
# anything back, and the dashboard says that all eight GPUs are allocated. Real clusters had
# [this bug](https://github.com/kubeflow/training-operator/issues/165). It needs a scheduler that
# places whole jobs, or a timeout that gives back what's held. torchrun's half of it: an agent whose
# peers don't come waits in the rendezvous until its timeout. Here's one of two nodes, with the
# timeout at two seconds.

# %%
flags = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={free_endpoint()}"]
flags += ["--rdzv-conf=join_timeout=2"]
with Torchrun(partial(train, folder / "half"), flags=flags) as job:
    half_code = job.wait()
    lonely = job.stderr
print("exit code", half_code, "|", lonely.strip().splitlines()[-1])

# %% [markdown]
# All or nothing has a price of its own: a big job can starve. A stream of small jobs keeps arriving,
# and there are never eight free GPUs at once. The fix is that nobody overtakes: GPUs idle while the
# first in line waits for enough of them. Over the whole stream that costs next to nothing here,
# because the big job has to run alone at some time in any case.

# %%
def first_in_line(waiting, free):
    """Only whole jobs, and nobody overtakes."""
    for job in dict.fromkeys(worker.job for worker in waiting):
        workers = [worker for worker in waiting if worker.job == job]
        return workers if len(workers) <= free else []
    return []


small = [Job(f"small {n}", 4, 30, arrives=15 * n) for n in range(12)]
stream = [*small, Job("big", 8, 30, arrives=16)]
for place in (gang, first_in_line):
    timeline = simulate(stream, 8, place)
    print(f"{place.__name__:14} the big job ends at minute {timeline.ended['big']:3}, "
          f"all of them at {len(timeline.minutes):3}, utilization {timeline.utilization:.0%}")

# %% [markdown]
# **Quota** decides whose job is next. Each team has a guaranteed share, and idle shares can be
# borrowed. When the owner comes back, the borrower is preempted
# ([Kueue](https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/) calls it reclaiming). So borrowed
# capacity and spot capacity are the same thing to a trainer: it gets SIGTERM, and some seconds.
#
# ## Preemption
#
# SIGTERM, a grace period, SIGKILL. The published defaults differ a lot:
# [30 s in Kubernetes](https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/),
# [two minutes of warning on AWS spot](https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html),
# [30 s on Google's](https://docs.cloud.google.com/compute/docs/instances/spot),
# and whatever your [Slurm](https://slurm.schedmd.com/preempt.html) has as `GraceTime`. Two jobs get
# SIGTERM after step 8. The second one's storage is busy, because everybody who is preempted saves
# at the same time: its save takes longer than the grace period.

# %%
def steps_of(run_dir):
    ledger = run_dir / "ledger/rank-0.jsonl"
    return len(list(read_jsonl(ledger))) if ledger.exists() else 0


def preempted_save_takes(seconds):
    def work(train_step, *arguments):
        time.sleep(0.2)
        return train_step(*arguments)

    def publishing(publish, temporary, target, facts):
        time.sleep(seconds if facts["step"] % 6 else 0)
        publish(temporary, target, facts)

    wrap("train_step", work)
    wrap("publish", publishing)


def preempt(job, grace_s):
    """What a scheduler does."""
    job.agent.terminate()
    try:
        return job.wait(grace_s)
    except subprocess.TimeoutExpired:
        job.agent.kill()
        return job.wait()


# %%
GRACE_S = {"quick": 30, "late": 1}
SAVE_S = {"quick": 0, "late": 20}
preempt_codes = {}
for name in GRACE_S:
    fault = partial(preempted_save_takes, SAVE_S[name])
    with Torchrun(partial(train, folder / name, fault)) as job:
        job.until(lambda: steps_of(folder / name) >= 8)
        preempt_codes[name] = preempt(job, GRACE_S[name])
for name in GRACE_S:
    events = [record["event"] for record in read_events(folder / name, "preempted", rank=0)]
    steps, saves = steps_of(folder / name), saved_steps(folder / name)
    print(f"{name:6} trained {steps} steps, saved {saves}, event: {events}, "
          f"torchrun's exit code {preempt_codes[name]}")

# %% [markdown]
# In the first job, all ranks saved and exited with 0. torchrun still exits with 1, because it got a
# signal. So whoever goes by exit codes counts this preemption as a failure, and the `preempted` event
# is what tells. Start both again, with the same command:

# %%
with contextlib.ExitStack() as closing:
    jobs = [closing.enter_context(Torchrun(partial(train, folder / name))) for name in GRACE_S]
    resumed_codes = [job.wait() for job in jobs]
audits = {name: audit_run(folder / name) for name in GRACE_S}
for name, audit in audits.items():
    [restored] = read_events(folder / name, "checkpoint_restored", rank=0)
    replayed = f"replayed {audit.replayed_steps} steps"
    print(f"{name:6} resumed from step {restored['step']}, {replayed}; audit: {audit.status}")

# %% [markdown]
# Both are correct. The first lost nothing, and the second lost what it had trained since its last
# save. The rule: *step time plus save time has to fit into the grace period, with room for a slow
# day.* If it doesn't, save to memory or to a local disk first, and ask for a longer grace period.
# There are two clocks. torchrun also waits for its ranks only so long, 30 s by default, and the
# shorter clock wins.

# %% [markdown]
# ## Spot economics
#
# Spot capacity is cheap per hour. What you pay for is hours of work that count. Two formulas, with M
# the job's mean time between interruptions, $\delta$ the seconds to save and R the seconds to start
# again, including the wait for new capacity:
#
# $$M = \frac{m}{N} \qquad G_{\text{warned}} = \frac{M}{M + \delta + R} \qquad
# \text{cost of a useful hour} = \frac{p}{G}$$
#
# m is the mean time between interruptions of *one* node. With N nodes the job is interrupted N times
# as often, because losing one node stops them all. Without a warning, the work since the last save is
# lost too, and G is the goodput of chapter 13 at its best save interval. Check both against a
# simulation that knows nothing of the formulas:

# %%
checks = []
for nodes in (8, 64):
    mtbi_s = job_mtbi_s(24, nodes)
    for is_warned, formula in ((True, goodput_warned), (False, goodput_unwarned)):
        expected = formula(mtbi_s, 60, 600)
        simulated = simulate_goodput(mtbi_s, 60, 600, is_warned=is_warned, stops=20_000)
        checks.append((expected, simulated))
        print(f"{nodes:3} nodes, {'warned' if is_warned else 'not warned':10} "
              f"formula {expected:.3f}, simulation {simulated:.3f}")

# %% [markdown]
# The inputs below are assumptions, so change them: a spot node costs 0.35 of an on-demand node and
# is taken once a day. (Published discounts go
# [up to 90%](https://aws.amazon.com/ec2/spot/), and prices and interruption rates change daily.)
# On-demand nodes fail too. The published rate of [Llama 3](https://arxiv.org/abs/2407.21783) is 419
# unexpected interruptions in 54 days on 16,384 GPUs, or 2,048 nodes of eight: 54 x 24 h x 2,048 / 419
# = 6,334 h per node.

# %%
PRICE, SAVE, RESTART = 0.35, 60, 600  # of on-demand; seconds; seconds
nodes = [1, 4, 16, 64, 128, 256, 512]
on_demand_mtbf_h = 54 * 24 * 2048 / 419


def useful_hour(price, node_mtbi_h, goodput):
    return [
        cost_of_useful_hour(price, goodput(job_mtbi_s(node_mtbi_h, size), SAVE, RESTART))
        for size in nodes
    ]


on_demand = useful_hour(1, on_demand_mtbf_h, goodput_unwarned)
spot_costs = {
    "spot, with a warning": useful_hour(PRICE, 24, goodput_warned),
    "spot, no warning": useful_hour(PRICE, 24, goodput_unwarned),
}
for name, costs in spot_costs.items():
    size = break_even_nodes(nodes, costs, on_demand)
    print(f"{name:21} costs more than on demand from {size} nodes (of the sizes drawn)")
on_spot = f"Spot: {PRICE} of the price, and a node lasts a day."
subtitle = f"{on_spot} Save {SAVE} s, restart {RESTART} s."
cost_picture(nodes, spot_costs, on_demand, subtitle)

# %% [markdown]
# Small jobs should be on spot. A big synchronous job shouldn't: every node is a reason to stop all
# the others, and the job also takes 1/G times as long. For the whiteboard, set p/G to 1 and solve
# for N: with a warning, spot pays up to
#
# $$N = \left(\frac{1}{p} - 1\right) \frac{m}{\delta + R}$$
#
# nodes, or 1.86 x 86,400 s / 660 s = 243 here. Three levers move the crossing to the right. Two of
# them you can try above: a shorter restart, and a warning that's long enough for a save. The third
# is a job that continues without the node that left, as torchft's do.
#
# > "Spot pays as long as the price ratio is below the ratio of the goodputs. I measure two numbers
# > for it: interruptions per node-day, and seconds from SIGTERM to the next useful step."

# %% [markdown]
# ## Say it in 60 seconds
#
# > "The loop stays as it is. Around it I add six boxes, in the order in which they depend on each
# > other. A module, so that a command can start it. An image, so that every node runs the same thing
# > and SIGTERM arrives. A launcher that gives ranks their identity and restarts all of them together.
# >
# > Then what outlives a node: a shared store with atomic publishing, and a record of settings, code
# > and data under the run's id. Evidence comes from every rank and leaves the node. Last comes the
# > policy, because it reads all of that: preemptions requeue for free, failures need progress, and a
# > refusal goes to a person.
# >
# > On the cluster I need gang scheduling, or half-placed jobs deadlock. I need a grace period that's
# > longer than a save. And for spot, I compare cost per useful hour, not per hour."

# %% [markdown]
# ## Three questions
#
# **"Your job failed at 3 a.m. Walk me through what happens, without a person."**
#
# - *Weak:* "Kubernetes restarts it."
# - *Strong:* "It depends on who can see it. If a rank died, torchrun restarts the group, and it
#   resumes from the newest intact checkpoint. If the node died, the agent died with it, and the
#   scheduler has to place the whole gang again. The policy looks at why, and at whether a newer
#   checkpoint exists than last time. Two failures without progress stop the job and page somebody."
# - *What would prove me wrong:* time from failure to the next useful step, by cause. If lost nodes
#   take much longer than crashes, placement is the bottleneck, and I want spares.
#
# **"Can't we just set max restarts to a hundred?"**
#
# - *Weak:* "Yes, the cluster isn't reliable anyway."
# - *Strong:* "That treats three things alike. A preemption shouldn't use up a budget. A flaky node
#   should be replaced, so I'd retry elsewhere. And a bug fails the same way a hundred times, at the
#   price of a hundred startups on every GPU. I cap restarts without progress at two, and I don't cap
#   preemptions."
# - *What would prove me wrong:* restarts by cause, and the share of them after which a newer
#   checkpoint appeared. If nearly all make progress, my cap is too strict.
#
# **"Finance wants everything on spot. What do you say?"**
#
# - *Weak:* "Spot isn't reliable enough for training."
# - *Strong:* "Everything that's small or can lose a node: sweeps, evaluation, data preparation, runs
#   on a few nodes. For the big synchronous run I'd compute it. Interruptions scale with the number of
#   nodes, and each one costs a save and a restart on all of them. At our restart time it stops paying
#   at some size, and I'd show them the curve. Halve the cost of an interruption, and that size
#   doubles."
# - *What would prove me wrong:* dollars per thousand useful steps, spot against on-demand, from our
#   own runs.

# %% [markdown]
# ## Practice it
#
# - Drills: [production_lift](../drills/050_production_lift.ipynb), the whiteboard version of this
#   chapter, [preempted_job_is_killed_anyway](../drills/275_preempted_job_is_killed_anyway.ipynb),
#   [second_node_brings_nothing](../drills/350_second_node_brings_nothing.ipynb),
#   [every_restart_crashes](../drills/225_every_restart_crashes.ipynb),
#   [cell_launch](../drills/180_cell_launch.ipynb).
# - The code: section 8 of the [walkthrough](../01_walkthrough.ipynb), and its last sections on what
#   can stay an interface.
# - The cards: `ask(topic="production")` in [03_deck](../03_deck.ipynb).
