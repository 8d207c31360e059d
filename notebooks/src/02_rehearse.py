# %% [markdown]
# # Rehearse
#
# {{badge}}
#
# **This notebook has blanks and no answers.** `brief` shows the task. `start` shows it too, and
# starts the clock: where a cell says `brief`, type `start` if you want to be timed. Running all
# cells starts no clock. Type your code in the blank cell below the task. `check` runs that code
# on real ranks and tells you what's wrong: which rank, which sample, where to look. Each drill
# also has a notebook of its own; [00_start_here](00_start_here.ipynb) lists them.
#
# **The live cells come first**: what you type in an interview, 45 minutes for all eight. If you
# want to see each cell's effect as you go, or the answers, use [01_live_hidden](01_live_hidden.ipynb).
# **Then the advanced set**: the eight hardened cells of the [walkthrough](01_walkthrough.ipynb),
# one at a time.
#
# Talk while you type: in an interview, that's half the score.

# %% collapsed=true tags=["setup"]
# {{setup torch numpy matplotlib cloudpickle platformdirs fsrs rehearsal}}

# %% tags=["setup"]
import rehearsal
from rehearsal import brief, check, debrief, diff, hint, narration, solution, start, status

rehearsal.warm_up()  # starts the worker processes in the background (a few seconds)

# %% [markdown]
# ## The live cells

# %%
brief("live_trainer")  # on the clock: start("live_trainer")

# %% [markdown]
# ### 1. Config and assumptions
#
# On the clock: {{typing live.TrainConfig}}.

# %% include="live" shown="blank" cell="TrainConfig" typed="TrainConfig"

# %%
check("live_trainer")

# %% [markdown]
# ### 2. Dataset and sampler
#
# On the clock: {{typing live.ToyClassificationDataset}}.

# %% include="live" shown="blank" cell="ToyClassificationDataset" typed="seed_for ToyClassificationDataset epoch_order ResumeAwareDistributedSampler"

# %%
check("live_trainer")

# %% [markdown]
# ### 3. Model and optimizer
#
# On the clock: {{typing live.TinyNet}}.

# %% include="live" shown="blank" cell="TinyNet" typed="TinyNet learning_rate_at"

# %%
check("live_trainer")

# %% [markdown]
# ### 4. Ranks and devices
#
# On the clock: {{typing live.maybe_init_dist}}.

# %% include="live" shown="blank" cell="maybe_init_dist" typed="maybe_init_dist wrap_model"

# %%
check("live_trainer")

# %% [markdown]
# ### 5. The training step
#
# On the clock: {{typing live.train_step}}.

# %% include="live" shown="blank" cell="train_step" typed="train_step"

# %%
check("live_trainer")

# %% [markdown]
# ### 6. Checkpoint
#
# On the clock: {{typing live.save_checkpoint}}.

# %% include="live" shown="blank" cell="save_checkpoint" typed="save_checkpoint latest_checkpoint_path restore_checkpoint"

# %%
check("live_trainer")

# %% [markdown]
# ### 7. Metrics
#
# On the clock: {{typing live.StepTimers}}.

# %% include="live" shown="blank" cell="StepTimers" typed="StepTimers log_rank_event"

# %%
check("live_trainer")

# %% [markdown]
# ### 8. Launch and resume
#
# On the clock: {{typing live.run}}.

# %% include="live" shown="blank" cell="run" typed="run"

# %%
check("live_trainer")

# %%
# hint("live_trainer")  # uncomment to run: next of three hints
# narration("live_trainer")  # what to say while you type
# solution("live_trainer")  # available after you pass; give_up=True shows it now

# %% [markdown]
# ## The advanced set: the hardened cells
#
# Running a cell below replaces some of the names that the live cells define, such as
# `TrainConfig`. To go back to the live trainer, run all eight live cells again.

# %% drills="cell"

# %% [markdown]
# ## Debrief
#
# `debrief` compares your time with the budget and lists what went wrong. `status` shows which
# drills you've passed and which are due for review. Your attempts are saved in a local file.
# Nothing leaves this machine, and `rehearsal.forget()` deletes it all.

# %%
debrief()

# %%
status()
