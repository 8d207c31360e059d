# %% [markdown]
# # Rehearse
#
# The eight cells of the [walkthrough](01_walkthrough.ipynb), to be typed by you. `start`
# shows a brief and starts a clock; type into the blank; `check` runs what you typed on real
# ranks and says what is wrong with it: which rank, which sample, where to look. Rehearse in
# a copy of this notebook, or in one of the [single drills](drills).
#
# Speak while you type: in the interview it is half of what is judged.

# %% tags=["setup"]
import rehearsal
from rehearsal import check, debrief, diff, hint, narration, solution, start, status

rehearsal.warm_up()  # the ranks' server needs some seconds; they pass while you read

# %% drills="cell"

# %% [markdown]
# ## Debriefing
#
# Pace against the budget, and what was found. Your attempts are kept in a file of yours, for
# `diff` and `status`; nothing leaves this machine, and `rehearsal.forget()` deletes it.

# %%
debrief()

# %%
status()
