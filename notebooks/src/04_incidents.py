# %% [markdown]
# # The incident room
#
# {{badge}}
#
# **You're on call, and a job of two or three ranks isn't right.** It has really run: the trainer of
# this project on real processes, with a hidden fault, now and then two, or none. You get one sentence
# from the pager, and whatever you ask for. Nothing else.
#
# 1. Read the alert. Say aloud what it could be, before you look.
# 2. Look. Each look costs minutes on the case's clock, and shows what an on-call engineer would see.
# 3. Name the cause, with your evidence and your first move.
# 4. Fix it: change a setting or the code. The job runs again, and the symptom must be gone without a
#    new one.
# 5. Read the debrief, and write the five-line postmortem.
#
# Every case has a misleading symptom. It's real, and it's harmless.

# %% collapsed=true tags=["setup"]
# {{setup torch numpy matplotlib cloudpickle platformdirs fsrs rehearsal}}

# %% tags=["setup"]
from rehearsal import incident, incident_kinds

# %% [markdown]
# ## The page
#
# The number draws the case: the fault, the ranks, the hosts, the misleading symptom. The same number
# is always the same case. It's saved on your disk, so it survives a restart of the kernel;
# `incident(7, restart=True)` starts over.

# %%
case = incident(7)
case

# %% [markdown]
# ## Look around
#
# `case.sources` lists what you can look at, and how many minutes each look costs. Narrow a look, and
# there's less to read: `case.look("phases", rank=1)`, `case.look("logs", rank=0, contains="save")`.

# %%
case.look("throughput")

# %% [markdown]
# Your turn. Add cells for your looks.

# %%
print(f"minute {case.minutes}")

# %% [markdown]
# ## Name it
#
# These are the causes you can name. `no_fault` is for a healthy job. If you find two faults, name each.

# %%
print("\n".join(incident_kinds()))

# %%
# case.diagnose("slow_rank", because=["phases", "heartbeats"], first_move="drain the host")

# %% [markdown]
# ## Fix it
#
# `case.settings` says what you can change, and `case.look("settings")` shows the values. To fix the
# code instead, take a module's text from `case.look("code", module="data.py").data`, edit it, and pass
# `source={"data.py": text}`. Each fix starts from the job that paged you.

# %%
# case.fix(settings={"num_workers": 2})  # uncomment and edit: reruns the job

# %% [markdown]
# ## Debrief
#
# The debrief shows your score, what an expert would have looked at in which order, and the chain from
# the cause to the page. It's the answer, so it comes last.

# %%
# case.debrief()

# %%
# case.postmortem(impact="", cause="", detection="", fix="", prevention="")  # a line each

# %% [markdown]
# The next case is another number. `incident(8, tier="guided")` asks you one question at a time, and
# `incident(8, tier="choice")` gives you four causes to choose from. At a terminal:
# `python -m rehearsal incident 8`. `incident(8, track="biotech")` is a job on molecules, proteins or
# graphs; [docs/incidents.md](../docs/incidents.md) says what there is to look at.
