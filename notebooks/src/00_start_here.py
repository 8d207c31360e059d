# %% [markdown]
# # Start here
#
# {{badge}}
#
# **What this is.** Practice for the interview where you build a distributed training
# pipeline on a shared screen. You build a small data-parallel trainer in eight cells. It
# survives losing a process, and its own logs prove that every sample was trained exactly
# once.
#
# **Who it's for.** You've written training loops and your interview is coming up. You want
# to type the parts that matter and defend every line: why you chose it, what it costs, and
# which metric would tell you it was wrong.
#
# **Where the material comes from.** It follows a study guide for distributed-training
# interviews, which the notebooks call *the handbook*. The handbook splits a training system
# into five planes (control, training, data, artifacts and observability) and has coding
# drills on them. Where it's wrong, we teach what we measured.
#
# **Limits.** The job's processes are real. They run on one machine's CPU and talk through
# gloo, torch's backend for CPUs. That shows correctness and ordering: who trained what, who
# waits for whom, what a kill leaves behind. It says nothing about speed, of a GPU or of a
# network. Also, gloo nearly always reports a dead peer right away, while NCCL, the backend
# for GPUs, usually waits for a timeout. Multi-node setup, object storage and the scheduler
# are interfaces with local stand-ins.

# %% [markdown]
# **On this page** you check your environment, meet five words, get your first verdict, and choose
# a plan. The first three take five minutes: run the cells from top to bottom.
#
# ## 1. Check your environment
#
# The cell below prints one line for each thing you need.

# %% collapsed=true
#@title Check Python, its packages, and the machine
import importlib.metadata
import importlib.util
import multiprocessing
import os
import platform
import re
import sys


def version(package):
    """The installed version as text, or None."""
    found = importlib.util.find_spec(package) is not None
    return importlib.metadata.version(package) if found else None


def is_at_least(text, *least):
    """Whether a version such as 2.13.0+cpu is at least ``least``."""
    return text is not None and tuple(map(int, re.findall(r"\d+", text)[:2])) >= least


fix = "run `make setup` in the repository, then pick the kernel from its .venv"
if "google.colab" in sys.modules:
    fix = "the setup cell in section 2 installs it"
needed = {"torch": (2, 11), "numpy": (2, 0), "matplotlib": (3, 8), "cloudpickle": (3, 0)}
starts, cores = multiprocessing.get_all_start_methods(), os.cpu_count() or 1
checks = [("python", platform.python_version(), sys.version_info >= (3, 11), fix)]
checks += [
    (name, version(name), is_at_least(version(name), *least), fix)
    for name, least in needed.items()
]
checks += [("processes", ", ".join(starts), "forkserver" in starts, "needs Linux, macOS or WSL")]
for name, found, ok, remedy in checks:
    print(f"{'ok' if ok else 'MISSING':8} {name:12} {found!s:26} {'' if ok else remedy}")
slow = "" if cores >= 2 else "nothing is missing, but the ranks share one core: checks are slow"
print(f"{'note' if slow else 'ok':8} {'cores':12} {cores!s:26} {slow}")

# %% [markdown]
# ## 2. Five words
#
# A training job runs as several processes. Each process is a *rank*, numbered from 0. The *world
# size* is how many ranks there are. On GPUs, each rank usually has one GPU.
#
# A *collective* is an operation that every rank must join. In an *all-reduce*, every rank brings a
# tensor, and every rank gets the sum. The cell below starts two ranks, and both call `add_up`.
# The first run takes a few seconds longer, because it also starts the server that creates ranks.

# %% collapsed=true
# {{setup torch numpy matplotlib cloudpickle platformdirs fsrs pydantic rehearsal}}

# %%
import torch
import torch.distributed as dist

from rehearsal import status, today, warm_up
from rehearsal.session.primer import check_mean, show_ranks

warm_up()


def add_up():
    total = torch.tensor(dist.get_rank() + 1.0)  # rank 0 has 1, rank 1 has 2
    dist.all_reduce(total)
    return total.item()


show_ranks(add_up, world_size=2)

# %% [markdown]
# Now only rank 0 joins the all-reduce. Rank 1 carries on without it. Rank 0 waits, and nothing
# fails: that's a *hang*. Here we stop it after three seconds. In a real job, it lasts until the
# group's timeout: 10 minutes by default with NCCL, 30 with gloo.

# %%
def only_rank_0_joins():
    total = torch.tensor(1.0)
    if dist.get_rank() == 0:
        dist.all_reduce(total)
    return total.item()


show_ranks(only_rank_0_joins, world_size=2, deadline_s=3)

# %% [markdown]
# Two more words, for what comes later:
#
# - The *ledger* is each rank's record of the samples it trained on in each step. An audit reads
#   it to prove that no sample was lost or repeated.
# - *Goodput* is useful step time divided by wall time. A job that crashes and trains the same
#   steps again has a lower goodput, however fast each step is.

# %% [markdown]
# ## 3. Your first verdict
#
# **Task.** Every rank calls `mean_over_ranks` with a `value` of its own, a float. It must return
# the mean of all ranks' values, on every rank and at any world size. For example, with the
# values 1.0, 2.0 and 6.0 on three ranks, each rank returns 3.0.
#
# Replace the last line, run the cell, and run the check below it. If you run the check first, it
# tells you that there is nothing to grade yet.

# %% tags=["raises-exception"]
def mean_over_ranks(value):
    """The mean of every rank's value."""
    raise NotImplementedError


# %%
check_mean(mean_over_ranks)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def mean_over_ranks(value):
#     total = torch.tensor(value)
#     dist.all_reduce(total)
#     return total.item() / dist.get_world_size()
# ```
#
# </details>
#
# Every drill works like this: a brief, a blank, a check on real ranks, and a verdict with what was
# found, which rule that breaks, and where to look.

# %% [markdown]
# ## 4. Your plan
#
# `status` lists all drills: how long each takes, and how you stand. Click a title to open its
# notebook. The last line names the drill to do next.

# %%
status()

# %% [markdown]
# `today` makes one plan from everything: what's due, what's weak, what's new on the way, an incident
# or a mock interview, and the days left. Tell it the date once, as in
# `today(date="2026-12-04", minutes=90)`, and tell it when you've read a chapter: `today(read="10")`.

# %%
today()

# %% [markdown]
# **If you have 15 minutes.** Open a terminal in the repository and run `make train`. Two
# ranks train on scans of handwritten digits, one gets killed, the job resumes, and the audit
# reports whether every sample was trained exactly once. Then read section 2 of
# [01_live](01_live.ipynb): everything else follows from it.
#
# {{map}}
#
# The live trainer's function bodies take {{typing live}} to type if you explain as you go, and the
# walkthrough's cells add up to {{typing}}, so type those one at a time.
#
# **If you have a GPU node.** The same trainer runs under torchrun, and uses NCCL on CUDA.
# Install a torch build that matches the node's CUDA, then run `make gpu`, which checks what
# can only be checked there. After that, start a run of your own, kill a rank mid-run, and
# audit the run when it's done:
#
# ```
# torchrun --nproc-per-node 8 --max-restarts 3 scripts/launch.py --run-dir runs/gpu --amp bf16 \
#     --max-epochs 200
# python scripts/audit_run.py runs/gpu
# ```

# %% [markdown]
# ## The map
#
# There are two trainers, with the same eight cells.
#
# - **The live trainer** is what you type in an interview: one file with about 200 lines of
#   code, [live.py](../trainer_core/live.py). It survives a kill, and its notebook says what
#   it leaves out. Start with [01_live](01_live.ipynb).
# - **The hardened trainer** is its sequel: what you study, run, break and defend. Its cells are
#   eight modules, each with supporting modules. The walkthrough presents them one by one.
#
# Both notebooks tell you what to say about each cell. The hardened modules, in reading order:
#
# | no. | module | the question it answers |
# |---|---|---|
# | 1 | [config](../trainer_core/config.py) | What defines the training, and what may change on a restart? |
# | 2 | [data](../trainer_core/data.py) | Which sample comes next, after a restart on a different number of ranks? |
# | 3 | [model](../trainer_core/model.py) | What must exist before the first step, and which parts have state? |
# | 4 | [distributed](../trainer_core/distributed.py) | Who am I, and how do all ranks stay in agreement? |
# | 5 | [train](../trainer_core/train.py) | Which samples is this gradient averaged over? |
# | 6 | [checkpoint](../trainer_core/checkpoint.py) | After a kill, which checkpoint do you trust, and is it intact? |
# | 7 | [metrics](../trainer_core/metrics.py) | Is it the loader, the compute, the network or the storage? |
# | 8 | [launch](../trainer_core/launch.py) | The same command runs again: what happens? |
#
# Links to files don't work in Colab; the modules are also at
# [{{repository}}]({{repository}}/tree/main/trainer_core).
#
# | notebook | what it's for |
# |---|---|
# | [01_live](01_live.ipynb) | the live trainer: typed in 45 minutes, run, killed, resumed and audited |
# | [01_live_hidden](01_live_hidden.ipynb) | you type the function bodies; a check after each cell, each answer folded below it |
# | [01_live_blank](01_live_blank.ipynb) | you type the function bodies against the clock; a check after each cell, no answers |
# | [01_walkthrough](01_walkthrough.ipynb) | the hardened trainer: all eight cells explained, run, killed, resumed and audited |
# | [the handbook](handbook/10_interview_map.ipynb) | what you say, draw, measure and refuse to build; the chapters from 30 on are for biotech |
# | [02_rehearse](02_rehearse.ipynb) | the eight live cells and then the eight hardened ones, timed and graded on real ranks |
# | [03_deck](03_deck.ipynb) | the questions that interviewers ask: say the answer, type the gist, and see which points it covers |
# | [04_incidents](04_incidents.ipynb) | you're on call: find the fault in a job that really ran, fix it, and write the postmortem |
# | [05_interview](05_interview.ipynb) | a whole mock interview against a clock, with a scorecard that shows its evidence |
# | the drills, linked in section 4 | one notebook each |
