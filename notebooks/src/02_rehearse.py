# %% [markdown]
# # Rehearse
#
# **The live cells first.** What you type in an interview is [the live trainer](01_live.ipynb).
# Rehearse it in [01_live_hidden](01_live_hidden.ipynb) until you no longer need the answers,
# then in [01_live_blank](01_live_blank.ipynb) against a 45-minute clock. Both check your code
# after every cell.
#
# **Then the advanced set.** Below, you type the eight hardened cells of the
# [walkthrough](01_walkthrough.ipynb), one at a time. `start` shows the brief and starts the
# clock. Type your code in the blank cell below it. `check` runs that code on real ranks and
# tells you what's wrong: which rank, which sample, where to look. Work in a copy of this
# notebook, or open a notebook with a single drill, from the folder `drills`.
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
# `debrief` compares your time with the budget and lists what went wrong. `status` shows which
# drills you've passed and which are due for review. Your attempts are saved in a local file.
# Nothing leaves this machine, and `rehearsal.forget()` deletes the file.

# %%
debrief()

# %%
status()
