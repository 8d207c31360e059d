# %% [markdown]
# # Rehearse
#
# The eight cells of the [walkthrough](01_walkthrough.ipynb), for you to type. `start` shows
# the brief and starts the clock. Type into the blank below it. `check` runs your code on real
# ranks and tells you what's wrong: which rank, which sample, where to look. Work in a copy of
# this notebook, or open one of the [single drills](drills).
#
# Talk while you type: in an interview, that's half the score.

# %% tags=["setup"]
import rehearsal
from rehearsal import check, debrief, diff, hint, narration, solution, start, status

rehearsal.warm_up()  # starts the worker processes in the background (a few seconds)

# %% drills="cell"

# %% [markdown]
# ## Debrief
#
# Your time against the budget, and what went wrong. Your attempts are saved in a local file,
# which `diff` and `status` read. Nothing leaves this machine, and `rehearsal.forget()`
# deletes the file.

# %%
debrief()

# %%
status()
