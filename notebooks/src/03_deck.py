# %% [markdown]
# # The deck
#
# {{badge}}
#
# **The questions that an interviewer asks, one card at a time.** The chapters teach the answers.
# Here you say them before you see them, which is what the interview asks of you.
#
# 1. `ask()` shows the card that's due. Say your answer aloud, in about a minute.
# 2. Type the gist of it: half sentences are enough. Or type nothing and mark yourself.
# 3. The points of a strong answer appear. Each is covered, missed or contradicted, with the words
#    that decided it. The matcher knows phrases and negations, not meaning, so it's sometimes wrong.
#    Correct it: the mark is yours.
# 4. Read the strong answer aloud, then the follow-up, and choose a grade. A card that you missed
#    is due tomorrow; one that you know well, in about a week.
#
# A card a day per topic keeps an answer alive. Ten in a row is a mock interview without the
# interviewer.

# %% collapsed=true tags=["setup"]
# {{setup torch numpy matplotlib cloudpickle platformdirs fsrs ipywidgets pydantic rapidfuzz snowballstemmer rehearsal}}

# %% tags=["setup"]
from rehearsal import ask, export_to_anki, judge_answer, topics

# %% [markdown]
# ## The card that's due
#
# Run this cell again for the next card.

# %%
ask()

# %% [markdown]
# ## By topic
#
# `topics()` shows the topics, and `topics("recovery")` the cards of one. `ask(topic="recovery")` asks
# only those, and `ask("resume_is_correct")` asks that card, due or not. The beginning
# of an id is enough if no other card has it.

# %%
topics()

# %%
ask(topic="recovery")

# %% [markdown]
# ## What the matcher does
#
# You cover a point when its concepts occur near one another and none of them is negated. So the same
# words with one "not" contradict the point, and two negations cancel out:

# %%
for text in (
    "without Adam's moments the restarted averages begin at zero",
    "the optimizer state need not be saved",
    "don't forget to save the optimizer state",
):
    found = judge_answer("resume_is_correct", text)
    print(f"{text!r}\n  covered {found.covered}, contradicted {found.contradicted}")

# %% [markdown]
# It runs offline and sends nothing anywhere. At a terminal, `python -m rehearsal ask` asks the same
# cards, and `python -m rehearsal judge CARD FILE` judges a text file.
#
# If you have a language model at hand, local or not, it can add a second opinion and a follow-up
# question: [docs/deck.md](../docs/deck.md) says how, and what is sent.
#
# ## Take it along
#
# The whole deck, or one topic of it, as a file for Anki. Importing a newer one updates the notes and
# keeps Anki's schedule.

# %%
# export_to_anki("deck.apkg")  # uncomment to run: writes the file beside this notebook

# %% [markdown]
# ## Your own cards
#
# Put a file such as `mine.toml` into the folder `cards` in the folder of your history, which the
# next cell prints. [docs/extending.md](../docs/extending.md) has one to copy. If a field
# is missing, the next `ask()` says which one, and where.

# %%
from rehearsal.session.progress import home

print(home() / "cards")
