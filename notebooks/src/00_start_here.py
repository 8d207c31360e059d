# %% [markdown]
# # Start here
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({{colab}})
#
# **What this is.** A rehearsal of the interview in which a distributed training
# pipeline is built on a shared screen: a small data-parallel trainer in eight cells,
# which survives the kill of one of its processes, and the proof, from its own records,
# that every sample was trained exactly once.
#
# **For whom.** You have written training loops, the interview is near, and you want to
# be able to type the parts that matter and to defend each line: why it is so, what it
# costs, and which number would show that it was wrong.
#
# **Its limits.** The ranks are real processes that talk through gloo, on the CPU of one
# machine. That shows correctness and order: who trained what, who waits for whom, what
# a kill leaves behind. It does not show speed, neither of a GPU nor of a network. More
# than one node, an object store and a scheduler are interfaces with stand-ins.

# %% [markdown]
# ## Is this kernel fit?

# %%
import importlib.metadata
import importlib.util
import multiprocessing
import os
import platform
import re
import sys


def version(package):
    """The installed version, as text, or None."""
    found = importlib.util.find_spec(package) is not None
    return importlib.metadata.version(package) if found else None


def is_at_least(text, *least):
    """Whether a version such as 2.13.0+cpu is ``least`` or newer."""
    return text is not None and tuple(map(int, re.findall(r"\d+", text)[:2])) >= least


set_up = "run `make setup` in the repository, then choose the kernel of its .venv"
needed = {"torch": (2, 11), "numpy": (2, 0), "matplotlib": (3, 8), "cloudpickle": (3, 0)}
starts, cores = multiprocessing.get_all_start_methods(), os.cpu_count() or 1
checks = [("python", platform.python_version(), sys.version_info >= (3, 11), set_up)]
checks += [
    (name, version(name), is_at_least(version(name), *least), set_up)
    for name, least in needed.items()
]
checks += [
    ("processes", ", ".join(starts), "forkserver" in starts, "needs Linux, macOS, or WSL"),
    ("cores", cores, cores >= 2, "works with one, but slowly"),
]
for name, found, fits, remedy in checks:
    print(f"{'fit' if fits else 'NOT FIT':8} {name:12} {found!s:26} {'' if fits else remedy}")
if "google.colab" in sys.modules:
    print("This is Colab: the walkthrough needs no set-up here; open it with its badge.")

# %% [markdown]
# ## The map
#
# The trainer is eight modules; the walkthrough is the same code, cell by cell, with
# what to say while typing it. Read them in this order.
#
# | | module | the question it answers |
# |---|---|---|
# | 1 | [config](../trainer_core/config.py) | What defines the training, and what may a restart change? |
# | 2 | [data](../trainer_core/data.py) | Which sample comes next, after a restart on another number of ranks? |
# | 3 | [model](../trainer_core/model.py) | What must exist before the first step, and which part of it has state? |
# | 4 | [distributed](../trainer_core/distributed.py) | Who am I, and how do all ranks stay of one mind? |
# | 5 | [train](../trainer_core/train.py) | Over which samples is this gradient the mean? |
# | 6 | [checkpoint](../trainer_core/checkpoint.py) | Which state is the truth after a kill, and is it whole? |
# | 7 | [metrics](../trainer_core/metrics.py) | Is it the loader, the compute, the network or the storage? |
# | 8 | [launch](../trainer_core/launch.py) | The same command is run again: what happens? |
#
# In Colab, where links to files do not work, the modules are at
# [{{repository}}]({{repository}}/tree/main/trainer_core).
#
# | notebook | what for |
# |---|---|
# | [01_walkthrough](01_walkthrough.ipynb) | all eight cells, explained, run, killed, resumed, proved |
# | [01_walkthrough_hidden](01_walkthrough_hidden.ipynb) | bodies to be typed, the answer folded below each |
# | [01_walkthrough_blank](01_walkthrough_blank.ipynb) | bodies to be typed, nothing below |
# | [02_rehearse](02_rehearse.ipynb) | the same, against a clock, judged on real ranks |
# | [drills](drills) | one drill each, to repeat when it is due |

# %% [markdown]
# ## Where to go
#
# **With 15 minutes.** In a terminal, in the repository: `make train`. Two ranks train
# on scans of digits, one is killed, the job goes on, and the audit says what became of
# every sample. Then read section 2 of the [walkthrough](01_walkthrough.ipynb): the rest
# follows from it.
#
# **With an evening.** The [walkthrough](01_walkthrough.ipynb) from top to bottom, every
# cell run. The next evening the [hidden](01_walkthrough_hidden.ipynb) one, and then the
# [blank](01_walkthrough_blank.ipynb) one with a clock: 50 minutes.
#
# **With a GPU node.** The same trainer under torchrun; nccl is chosen by the device.
# Kill a rank on the way, and run the audit afterwards:
#
# ```
# torchrun --nproc-per-node 8 --max-restarts 3 scripts/launch.py --run-dir runs/gpu --amp bf16
# python scripts/audit_run.py runs/gpu
# ```
