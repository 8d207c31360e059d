# %% [markdown]
# # The mock interview
#
# {{badge}}
#
# **A whole interview, from a vague prompt to a scorecard.** An interviewer gives you the problem,
# listens, asks about what you said and built, breaks something, and pushes back. You talk in the
# panel and type your trainer in cells below it.
#
# 1. Run the cell under *Begin*. The clock starts at once.
# 2. Ask what changes the design before you type. Say it aloud, type the gist, press **Say**.
# 3. Type code in new cells below the panel and run them: a function or a class counts as typed, with
#    the imports and constants that it uses. The graders run it in the background, on real ranks.
#    What only runs your trainer stays in your notebook, and so does a cell that begins with
#    `# scratch`.
# 4. When the pager goes off, you're on call: ask for what you want to see, then name the cause, your
#    evidence and your first move.
# 5. At the end, the scorecard opens below the panel: a mark for each row of the rubric with its
#    evidence, your three weakest points, and what to do about them.
#
# While you type, the clock and the interviewer's last line stay in the corner of the window. Or give
# the panel a place of its own: right-click it, *Create New View for Cell Output*, and drag that beside
# the notebook.

# %% collapsed=true tags=["setup"]
# {{setup torch numpy matplotlib cloudpickle platformdirs fsrs ipywidgets pydantic rapidfuzz snowballstemmer jinja2 rehearsal}}

# %% tags=["setup"]
from rehearsal import interview, warm_up

warm_up()  # starts the graders' processes in the background, while you read

# %% [markdown]
# ## Begin
#
# Any length from 15 minutes works; 45 is what most companies take. The seed draws the prompt, the
# situation, the questions and the incident, so choose another one each time.
#
# If the kernel dies, or you close the notebook, run the cell again: the interview continues where it
# was, and the time in between doesn't count. **Pause** stops the clock.

# %%
held = interview(45, seed=1)
held

# %% [markdown]
# Your trainer. The panel has the names that the graders call; the rest of the design is yours. Add
# cells as you go.

# %%
# your first cell

# %% [markdown]
# ## The end
#
# It ends when the time is up, and what you've typed by then counts; **End** ends it sooner. The
# scorecard opens below the panel. A cell can do the same:

# %%
# held.end()  # uncomment to run: there is no way back
# held.scorecard()

# %%
# held.export("interview.html")  # the scorecard and the whole session, as one page

# %% [markdown]
# ## Study mode
#
# The same interview with a net: **Hint** says what's missing in your answer, and the panel shows which
# stages of your trainer pass. The scorecard counts the hints.

# %%
# interview(15, seed=2, mode="study")  # uncomment to run; the interview above pauses

# %% [markdown]
# ## Biotech
#
# The same trainer, for molecules, proteins or a lab in the loop; the questions are about splits,
# missing labels, long sequences and plates.

# %%
# interview(45, seed=3, setting="biotech")  # uncomment to run; the interview above pauses

# %% [markdown]
# ## The other side of the table
#
# Mark somebody else's interview, and you'll hear what you sound like. Three recorded ones come with
# the suite: "weak", "middling" and "strong"; your own have names as well. Read one, mark each row
# with your reason, and only then compare it with the evidence.

# %%
from rehearsal import interviewer

reading = interviewer("middling")
reading

# %% [markdown]
# `replay()` plays your own newest interview again, and `compare()` puts the marks of your newest two
# side by side; both are in `rehearsal`.

# %% [markdown]
# At a terminal, `python -m rehearsal interview --file attempt.py` holds the same interview and takes
# the file each time you save it. `python -m rehearsal interviews` lists the ones you've had.
