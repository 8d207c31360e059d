# %% [markdown]
# # 33. The wet lab in the loop
#
# {{badge}}
#
# > "Once a model decides what gets measured, its own data stops being a sample of anything. So
# > before round one I measure a random holdout and freeze it. Labels are late, so what's at the lab
# > counts as taken. And every choice is a function of a table that only grows, so that I can say in
# > March why we made compound X."
#
# *Twenty-five minutes to read. The lab, its plates and the activities are simulated, so the truth
# is known. The structures are valid molecules, and the ranks are real gloo processes.*

# %% collapsed=true
# {{setup torch numpy matplotlib cloudpickle platformdirs fsrs rehearsal}}

# %% collapsed=true
#@title Imports, and what to install for the chemistry
import functools
import hashlib
import json
import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from rehearsal import warm_up
from rehearsal.handbook import wet_lab_pictures
from rehearsal.handbook.assay_plates import Reader, read_plate, values_of, z_prime
from rehearsal.handbook.learning_loop import (
    LABEL, NEVER, Campaign, choose, fit_draws, held_out, inputs_of, known, model_of, predict,
    run_campaign,
)
from rehearsal.handbook.on_ranks import on_ranks
from rehearsal.handbook.optional import use_if_installed
from rehearsal.handbook.screening_pool import (
    CHOICES, Blocks, blocks_of, draw_pool, fingerprints, molecules_of, planted_activity,
    scaffolds_of, smiles_of, tanimoto,
)

FAST = os.environ.get("FAST") == "1"  # fewer worlds
use_if_installed("rdkit", "sklearn")
warm_up()  # starts the server that forks the ranks, while you read

# %% [markdown]
# ## What a plate does to a number
#
# A label is a well on a plate: 8 rows, 12 columns, here 80 compounds and 16 controls. The reader
# counts photons. How many photons mean "inactive" depends on the day's reagents, and wells on the
# edge evaporate. In this lab all of that is simulated, so each error can be drawn.

# %%
random = np.random.default_rng(1)
activity = 20 + 15 * random.standard_normal(80)  # percent of the positive control
plate = read_plate(activity, Reader(), random)
ways = {"one scale for all": "none", "own controls": "controls"}
ways |= {"own controls, edge": "controls and edge"}
print(f"Z' of this plate: {z_prime(plate):.2f}")
wet_lab_pictures.plate_maps(plate, activity, ways)

# %% [markdown]
# The circles are controls. Half of them are untreated (0%) and half are fully inhibited (100%). A
# line through the two turns this plate's counts into percent. Then a term for the edge takes out
# the frame, and that needs controls on the edge *and* inside. Z' compares the controls' spread
# with their distance, and the usual limit is 0.5. This plate is below it, since Z' is of raw counts,
# edge effect included. A plate below your limit doesn't enter the table.
#
# Now 200 plates: random ones, and ones that a model filled with better compounds.

# %%
def error_of(layout, how, better, num_plates=200):
    """RMSE and mean error of a correction, in percent; ``better`` raises every activity."""
    errors = []
    for seed in range(num_plates):
        random = np.random.default_rng(seed)
        activity = 20 + better + 15 * random.standard_normal(80)
        plate = read_plate(activity, Reader(layout=layout), random)
        errors.append(values_of(plate, how) - activity)
    return np.sqrt(np.mean(np.square(errors))), np.mean(errors)


wrong = {}
print("controls         correction          RMSE, random plates   chosen plates   mean error")
for layout, how in (
    ("scattered", "none"), ("scattered", "own mean"), ("outer columns", "controls"),
    ("scattered", "controls"), ("scattered", "controls and edge"),
):
    random_plate, chosen = error_of(layout, how, 0), error_of(layout, how, 20)
    wrong[layout, how] = random_plate, chosen
    print(f"{layout:16} {how:18} {random_plate[0]:20.1f} {chosen[0]:15.1f} {chosen[1]:12.1f}")

# %% [markdown]
# Look at *own mean*, which gives each plate's compounds the same average. On random plates it
# looks harmless. On plates that the model chose, it takes away 20 points: the better the model
# gets, the more of its progress the correction erases. **Normalize by controls, never by
# compounds.**
#
# Controls in the outer columns are the convenient layout, and all of them are edge wells. So every
# compound inside is measured against controls that evaporated. The compounds are in random wells:
# in the order of their scores, the best would share a corner, and its error.
#
# What's left in the last row is mostly the well's own noise, and repeats tell you how large that
# is.

# %%
same = 20 + 15 * np.random.default_rng(0).standard_normal(80)
days = [read_plate(same, Reader(), np.random.default_rng(day)) for day in range(10)]
repeats = np.array([values_of(day, "controls and edge") for day in days])
repeat_spread = np.sqrt(np.var(repeats, axis=0, ddof=1).mean())
print(f"80 compounds on ten days: one measurement is off by {repeat_spread:.1f} points")

# %% [markdown]
# > "That's the floor. No model can be shown to be better than the repeats, so I ask for repeats
# > over plates and days before I ask for a larger model."

# %% [markdown]
# ## One round after another
#
# The pool has 80 series of 60 molecules. Activities are planted: half of the variance belongs to
# the scaffold, 40% to the substituents, the rest to the molecule alone. A hit is one of the best
# 1%. The budget is one plate a round, for eight rounds. The first model has 80 random labels.
# Another 160 random molecules are measured and frozen, and we'll need them soon.

# %%
pool = draw_pool(80, 60, seed=1)
bits = fingerprints(pool)
inputs, series = inputs_of(bits), scaffolds_of(pool)
HITS = len(pool) // 100
SEEDS = range(6 if FAST else 20)


def campaign_of(seed, **options):
    """Each seed is another world: other effects, another start, another lab."""
    return Campaign(inputs=inputs, truth=planted_activity(seed)[pool], **options)


def is_hit(campaign):
    return campaign.truth >= np.sort(campaign.truth)[-HITS]

# %% [markdown]
# The model is eight draws of a Bayesian linear regression: a small ensemble. Their mean is the
# prediction, and their spread is what the model doesn't know. That isn't the noise of the assay,
# which no model can shrink. Five ways to choose from them:

# %%
def best(scores, candidates):
    """Rows with the highest scores; of equal scores, the lowest row."""
    scores = np.where(candidates.allowed, scores, -np.inf)
    return np.argsort(-scores, kind="stable")[: candidates.wells]


def by_chance(candidates):
    return best(candidates.random.random(len(candidates.allowed)), candidates)


def by_mean(candidates):  # greedy
    return best(candidates.draws.mean(axis=1), candidates)


def by_spread(candidates):  # uncertainty alone
    return best(candidates.draws.std(axis=1), candidates)


def by_optimism(candidates):  # UCB: upper confidence bound
    return best(candidates.draws.mean(axis=1) + candidates.draws.std(axis=1), candidates)


def by_draw(candidates):  # Thompson: each well believes another draw
    allowed, chosen = candidates.allowed.copy(), []
    for well in range(candidates.wells):
        draw = candidates.draws[:, well % candidates.draws.shape[1]]
        chosen.append(int(np.where(allowed, draw, -np.inf).argmax()))
        allowed[chosen[-1]] = False
    return np.array(chosen)

# %%
def best_guesses(campaign, labels, mean):
    """Measured rows, best first, by value and prediction, weighed by their errors."""
    trust = 10**2 / (10**2 + (100 * campaign.reader.noise) ** 2)  # in the measured value
    guess = trust * labels["value"] + (1 - trust) * mean[labels["row"]]
    return np.array(list(dict.fromkeys(labels["row"][np.argsort(-guess)])))


@functools.cache  # several sections compare with the same campaigns
def outcome(acquire, seed, **options):
    """A campaign of eight rounds, and what only the simulation can know about it."""
    campaign = campaign_of(seed, **options)
    table = run_campaign(campaign, acquire, seed)
    hit, picks = is_hit(campaign), table[table["chosen"] > 0]
    rows, labels = np.unique(picks["row"]), known(table, NEVER - 1)
    last = model_of(campaign, table, campaign.rounds + 1 + campaign.delay, seed)
    mean = predict(last, inputs).mean(axis=1)
    others = np.setdiff1d(np.arange(len(pool)), labels["row"])
    ranked = best_guesses(campaign, labels, mean)
    by_round = [hit[np.unique(picks["row"][picks["chosen"] <= at])].sum() for at in range(1, 9)]
    return {"table": table, "by round": by_round, "hits": hit[rows].sum(), "ranked": ranked,
            "series": len(set(series[rows[hit[rows]]])), "called": hit[ranked[:HITS]].sum(),
            "r": np.corrcoef(mean[others], campaign.truth[others])[0, 1],
            "twice": len(picks) - len(rows)}

# %%
def compare(ways):
    """Each way in each world: medians over worlds, and hits against the first way, paired."""
    runs = {name: [outcome(acquire, seed, **options) for seed in SEEDS]
            for name, (acquire, options) in ways.items()}
    first = [run["hits"] for run in next(iter(runs.values()))]
    print(f"{'':20} hits (range)   vs. first   in series   called   r elsewhere   twice")
    for name, of_way in runs.items():
        hits = np.array([run["hits"] for run in of_way])
        gain = hits - first
        error = gain.std(ddof=1) / np.sqrt(len(gain))
        of = {key: np.median([run[key] for run in of_way])
              for key in ("series", "called", "r", "twice")}
        print(f"{name:20} {np.median(hits):3.0f} ({hits.min():2}-{hits.max():2})"
              f" {gain.mean():8.1f} ±{error:3.1f} {of['series']:9.0f} {of['called']:9.0f}"
              f" {of['r']:11.2f} {of['twice']:9.0f}")
    return runs

# %%
policies = compare({
    "random": (by_chance, {}), "greedy": (by_mean, {}), "uncertainty": (by_spread, {}),
    "UCB": (by_optimism, {}), "Thompson": (by_draw, {}),
})
wet_lab_pictures.round_curves(
    {name: [run["by round"] for run in runs] for name, runs in policies.items()},
    "Hits found, round by round",
    f"hits measured, of {HITS}",
)

# %% [markdown]
# *Called* is what counts in the end: hits among the 48 compounds that the team would take further.
# *r elsewhere* is the correlation of predictions with the truth, where nothing was measured. Three
# things to read here:
#
# - The rules that look at the prediction find about four times as many hits as chance. Between the
#   three, the difference is smaller than between two worlds. It takes many seeds, compared world
#   by world, to say more.
# - Uncertainty alone finds hardly more than chance. It answers a different question.
# - **Random has the better model, and greedy has the hits.** Data collected to find hits isn't the
#   data that teaches you the pool. Decide which of the two a round is for.
#
# > "I start with UCB, because it costs nothing over greedy. But I wouldn't defend it with six
# > seeds. What I'd defend is the comparison with random."

# %% [markdown]
# ## A batch is chosen together
#
# Here's greedy's first plate, and two ways to spread it out. Both go best first. One skips what's
# too similar to a pick on the same plate, and the other stops at four of a series.

# %%
def one_by_one(candidates, may_join):
    """The best by mean that ``may_join`` the ones already chosen."""
    order = by_mean(candidates._replace(wells=int(candidates.allowed.sum())))
    chosen = []
    for row in order:
        if may_join(row, chosen):
            chosen.append(row)
        if len(chosen) == candidates.wells:
            return np.array(chosen)


def apart(candidates):
    def is_new(row, chosen):
        return not chosen or tanimoto(bits[[row]], bits[chosen]).max() < 0.6

    return one_by_one(candidates, is_new)


def four_each(candidates):
    return one_by_one(candidates, lambda row, old: (series[old] == series[row]).sum() < 4)


def with_random(candidates):
    """72 wells by the mean and 8 at random."""
    chosen = by_mean(candidates._replace(wells=candidates.wells - 8))
    allowed = candidates.allowed.copy()
    allowed[chosen] = False
    drawn = by_chance(candidates._replace(allowed=allowed, wells=8))
    return np.concatenate([chosen, drawn])

# %%
campaign = campaign_of(0)
start = campaign.first_labels(seed=0)
batches = {}
for name, acquire in {"greedy": by_mean, "apart": apart, "four each": four_each}.items():
    rows = batches[name] = choose(campaign, start, 1, acquire, seed=0)
    similar = tanimoto(bits[rows], bits[rows]) - 2 * np.eye(len(rows))
    largest = np.unique(series[rows], return_counts=True)[1].max()
    print(f"{name:10} {len(set(series[rows])):2} series, {largest:2} of the largest;"
          f" nearest neighbor on the plate: {np.median(similar.max(axis=1)):.2f}")
print()
spread = compare({
    "greedy": (by_mean, {}), "greedy, 8 random": (with_random, {}),
    "apart, below 0.6": (apart, {}), "four of each series": (four_each, {}),
})

# %% [markdown]
# Near twins are wrong together, so a plate of one series is one bet. If the model is right about
# it, the first ten would have told you. But spreading out isn't free. In this pool the hits sit in
# a few series, so both rules cost hits, once you run enough worlds to see it: six aren't enough.
# What they buy is a better model elsewhere, and insurance. State the price, with its error, and let
# the project decide.
#
# Eight random wells cost about as much as either rule. They improve the model about as well, and
# they're the only part of the data that stays a sample.

# %% [markdown]
# ## Labels arrive late
#
# Labels take three weeks, and a plate leaves every week. So each choice is made without the last
# two plates' results. What happens if the job forgets what's at the lab?

# %%
late = compare({
    "no delay": (by_optimism, {}),
    "two rounds late": (by_optimism, {"delay": 2}),
    "late, forgotten": (by_optimism, {"delay": 2, "pending": "ignore"}),
})
for name in ("two rounds late", "late, forgotten"):
    picks = late[name][0]["table"]
    plates = [set(picks["row"][picks["chosen"] == at]) for at in (1, 2)]
    print(f"{name}: of the second plate's 80, {len(plates[0] & plates[1])} are on the first")

# %% [markdown]
# The stale model has learned nothing new, so it orders the same compounds again. (Fresh draws of
# the ensemble are all that makes the second plate different.) About 40% of the budget measures what
# was already at the lab. **Pending counts as taken.** Even then, delay costs hits, because a wrong
# idea costs three plates before anyone knows. So a simulation without the delay flatters.
#
# Give each label two dates, when it was chosen and when it arrived. A training set is defined by
# the second one.

# %%
table = late["two rounds late"][0]["table"]
print("round   labels in training   at the lab")
for at in (1, 2, 3, 4, 9):
    at_lab = (table["chosen"] < at) & (table["arrives"] > at) & (table["arrives"] != NEVER)
    print(f"{at:5} {len(known(table, at)):20} {at_lab.sum():12}")

# %% [markdown]
# ## What the collected labels say about the model
#
# Now the trap. Every round, the team splits what it has collected, 80% for training and 20% for
# validation. The frozen holdout is the random sample from before round one, which nobody trains on
# or chooses from. And the simulation knows the third curve: everything that was never measured.

# %%
def r2(predicted, values):
    return 1 - np.mean((values - predicted) ** 2) / np.var(values)


def judged(table, truth, at, seed):
    """R2 of one round's model: on its validation split, the holdout, and all the others."""
    labels, random = known(table, at), np.random.default_rng((seed, at, 5))
    order = random.permutation(len(labels))
    validation, training = np.split(labels[order], [len(labels) // 5])
    weights = fit_draws(inputs[training["row"]], training["value"], random)
    mean, frozen = predict(weights, inputs).mean(axis=1), held_out(table)
    others = np.setdiff1d(np.arange(len(pool)), table["row"])
    found = [r2(mean[part["row"]], part["value"]) for part in (validation, frozen)]
    return [*found, r2(mean[others], truth[others])]


scores = {name: np.array([
    [judged(run["table"], planted_activity(seed)[pool], at + 1, seed) for at in range(1, 9)]
    for seed, run in zip(SEEDS, policies[name])
]) for name in ("greedy", "random")}
for name, values in scores.items():
    split, frozen, _ = np.median(values[:, -1], axis=0)
    print(f"collected by {name:7} split {split:.2f}, holdout {frozen:.2f}")
names = "a split of the collected labels", "the frozen random holdout", "all others in the pool"
wet_lab_pictures.round_curves(
    {name: scores["greedy"][:, :, at] for at, name in enumerate(names)},
    "The same models, judged in three ways",
    "variance explained (R2)",
)

# %% [markdown]
# By the split, greedy's model explains about a third of the variance by round two, and gets worse
# from there. On the pool, it explains next to nothing and gets a little better. Nothing leaks here
# in the usual sense. The split asks about molecules that the model likes, and those have relatives
# in training. With random plates, split and holdout agree, so it's the selection and not the model.
#
# The holdout has its price: two plates. With 160 wells it's also noisy, as its bars show, and it
# can't measure hit rates at all. At 1%, it has one or two hits, so use the continuous readout.
#
# Another number says the opposite. How well did the model rank the plate that just came back?

# %%
within = []
for seed, run in zip(SEEDS, policies["greedy"]):
    campaign, table = campaign_of(seed), run["table"]
    for at in range(2, 9):
        plate = table[table["chosen"] == at]
        mean = predict(model_of(campaign, table, at, seed), inputs).mean(axis=1)[plate["row"]]
        within.append(np.corrcoef(mean, plate["value"])[0, 1])
elsewhere = np.median([run["r"] for run in policies["greedy"]])
print(f"correlation with the truth, where nothing was measured: {elsewhere:.2f}")
print(f"correlation with the plate that came back: {np.median(within):.2f}")

# %% [markdown]
# That plate has only high predictions on it, and in such a narrow range the order is mostly noise.
# So the loop's own labels say that the model is far better than it is, or nearly worthless. It
# depends on which ones you ask.
#
# ### Prevalence and calibration
#
# The same with a classifier for "active above 40%", trained on what greedy has collected.

# %%
from sklearn.linear_model import LogisticRegression

shares = []
for seed, run in zip(SEEDS, policies["greedy"]):
    labels, truth = known(run["table"], 9), planted_activity(seed)[pool]
    order = np.random.default_rng(seed).permutation(len(labels))
    validation, training = np.split(labels[order], [len(labels) // 5])
    model = LogisticRegression(C=0.1, max_iter=500)
    model.fit(bits[training["row"]], training["value"] > 40)
    said = model.predict_proba(bits)[:, 1]
    shares.append([said[validation["row"]].mean(), (validation["value"] > 40).mean(),
                   said.mean(), (truth > 40).mean()])
said_split, true_split, said_pool, true_pool = np.median(shares, axis=0)
print(f"{'':18} mean probability   actives")
print(f"collected, split {said_split:16.0%} {true_split:12.0%}")
print(f"the pool         {said_pool:16.0%} {true_pool:12.0%}")

# %% [markdown]
# On the split, the classifier is calibrated. On the pool it promises half as many actives again as
# there are, because it learned from data with three times the pool's share. A temperature
# can't fix that: it has no intercept. Fit a slope and an intercept (Platt scaling) on the random
# part.
#
# > "The frozen holdout judges the model. Hits against the random wells judge the loop. The split of
# > the collected data is for debugging."

# %% [markdown]
# ## Retrain, or fine-tune?
#
# 80 labels arrive. Do you tune yesterday's network on them, tune it with old labels mixed in, half
# and half, or start again on everything? Here's a small network on the labels of four rounds of
# greedy. The error is on the pool, whose spread is 15.

# %% collapsed=true
#@title A small network and its training
def small_network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(bits.shape[1], 32), nn.ReLU(), nn.Linear(32, 1))


def train(network, steps, *parts):
    """Full batches, in which each part has the same weight."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01, weight_decay=0.1)
    for _ in range(steps):
        loss = torch.zeros(())
        for part in parts:
            predicted = network(torch.from_numpy(bits[part["row"]]))[:, 0]
            values = torch.from_numpy((part["value"] - 20) / 15).float()
            loss = loss + (predicted - values).square().mean() / len(parts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def error_on_pool(network, truth):
    with torch.no_grad():
        predicted = 20 + 15 * network(torch.from_numpy(bits))[:, 0].numpy()
    return np.sqrt(np.mean((predicted - truth) ** 2))

# %%
tuned = {"from scratch, on all": [], "fine-tuned on the new": [], "fine-tuned with replay": []}
for seed, run in list(zip(SEEDS, policies["greedy"]))[:3]:
    table, truth = run["table"], planted_activity(seed)[pool]
    networks = {name: small_network(seed) for name in tuned}
    errors = {name: [] for name in tuned}
    for network in networks.values():
        train(network, 30, known(table, 1))
    for at in range(2, 6):
        every = known(table, at)
        new, old = every[every["arrives"] == at], every[every["arrives"] < at]
        scratch = networks["from scratch, on all"] = small_network(seed)
        train(scratch, 30, every)
        train(networks["fine-tuned on the new"], 15, new)
        train(networks["fine-tuned with replay"], 15, new, old)
        for name, network in networks.items():
            errors[name].append(error_on_pool(network, truth))
    for name in tuned:
        tuned[name].append(errors[name])
for name, rows in tuned.items():
    print(f"{name:23} RMSE by round: {np.round(np.median(rows, axis=0), 1)}")

# %% [markdown]
# The new plate is 80 molecules that the last model liked. Tuning on it alone pulls everything else
# toward them, and the result is no better than predicting the mean. Replaying old labels repairs
# that, at half the steps. So why retrain at all? Because after ten rounds of tuning, a model
# depends on the order of ten plates, and if one of them was mislabeled, nothing takes it out again.
# With labels every three weeks, a day of retraining isn't the bottleneck.

# %% [markdown]
# ## A generator finds the holes
#
# Why choose from a pool at all? A generator can exchange the blocks of good molecules and ask the
# model, its *oracle*, which children are better. Here every child has a planted truth, because the
# blocks define it. The oracle has half of greedy's labels. A *judge* has the other half, and the
# generator never sees it.

# %%
def children_of(parents, random):
    """Two children each; one block is another parent's, or any that exists."""
    blocks = np.array(blocks_of(np.repeat(parents, 2)))
    for child in range(blocks.shape[1]):
        place = random.integers(len(CHOICES))
        new = blocks[place, random.integers(blocks.shape[1])]
        blocks[place, child] = new if random.random() < 0.5 else random.integers(CHOICES[place])
    return molecules_of(Blocks(*blocks))


def search(oracle, measured, parents, goal, seed, generations=10):
    """Keep the 60 best by ``goal`` in each generation, with what the oracle said of them."""
    random, history = np.random.default_rng((seed, 6)), []
    for _ in range(generations):
        everyone = np.unique(np.concatenate([parents, children_of(parents, random)]))
        made = fingerprints(everyone)
        draws = predict(oracle, inputs_of(made))
        nearest = tanimoto(made, measured).max(axis=1)
        mean, unsure = draws.mean(axis=1), draws.std(axis=1)
        kept = np.argsort(-goal(mean, unsure, nearest), kind="stable")[:60]
        parents = everyone[kept]
        history.append((parents, mean[kept], unsure[kept], nearest[kept]))
    return history

# %%
goals = {
    "any score": lambda mean, unsure, nearest: mean,
    "minus two spreads": lambda mean, unsure, nearest: mean - 2 * unsure,
    "close to measured": lambda mean, unsure, nearest: np.where(nearest >= 0.7, mean, -1e9),
}
worlds = list(zip(SEEDS, policies["greedy"]))[:4]
searches = {name: [] for name in [*goals, "80 made, retrained"]}
judges = {}
for seed, run in worlds:
    labels, truth = known(run["table"], 9), planted_activity(seed)
    half, other = labels[::2], labels[1::2]
    random = np.random.default_rng(seed)
    oracle = fit_draws(inputs[half["row"]], half["value"], random)
    judges[seed] = fit_draws(inputs[other["row"]], other["value"], random)
    start = pool[half["row"][np.argsort(-half["value"])[:60]]]
    for name, goal in goals.items():
        searches[name].append(search(oracle, bits[half["row"]], start, goal, seed))
    made = np.unique(np.concatenate([step[0] for step in searches["any score"][-1]]))
    made = random.permutation(made)[:80]  # one plate of what the first search came up with
    value = values_of(read_plate(truth[made], Reader(), random), "controls and edge")
    seen = np.concatenate([bits[half["row"]], fingerprints(made)])
    retrained = fit_draws(inputs_of(seen), np.concatenate([half["value"], value]), random)
    again = search(retrained, seen, start, goals["any score"], seed)
    searches["80 made, retrained"].append(again)

# %%
def summary(history, seed):
    molecules, mean, unsure, nearest = history
    judged = predict(judges[seed], inputs_of(fingerprints(molecules))).mean()
    truth = planted_activity(seed)
    hit = truth[molecules] >= np.sort(truth[pool])[-HITS]
    return (mean.mean(), judged, truth[molecules].mean(), unsure.mean(), np.median(nearest),
            hit.mean(), np.isin(molecules, pool).mean())


found = {
    name: np.array([[summary(step, seed) for step in run] for seed, run in enumerate(runs)])
    for name, runs in searches.items()
}
print("after 10 generations   oracle   judge   truth   spread   nearest   hits   in the pool")
for name, values in found.items():
    mean, judge, truth, unsure, nearest, hit, old = np.median(values[:, -1], axis=0)
    print(f"{name:22} {mean:6.0f} {judge:7.0f} {truth:7.0f} {unsure:8.1f} {nearest:9.2f}"
          f" {hit:6.0%} {old:10.0%}")
wet_lab_pictures.oracle_picture(
    {name: [tuple(step) for step in np.median(values[:, :, [0, 2]], axis=0)]
     for name, values in found.items()},
    np.median([np.sort(planted_activity(seed)[pool])[-HITS] for seed in judges]),
)

# %% [markdown]
# For ten generations the score rises, and the molecules get worse. A search goes where the model is
# high, and far from its data there are more places where it's wrong than where it's right. Compare
# the remedies:
#
# - *Minus two spreads* hardly helps. The draws agree on the mistake: in the free search they say four
#   points, and the error is more than twenty.
# - *The judge* sees about half of the gap. It was never optimized, but its labels come from the
#   same loop, so it shares blind spots.
# - *Close to measured* keeps the score honest longest, and gives up reach.
# - *Measuring* one plate of the generator's own molecules tells the oracle where it's wrong, and no
#   other label can do that. Do it each round.
#
# And the numbers that papers report? Here's a generator that only adds a carbon atom.

# %%
from rdkit import Chem, RDLogger

RDLogger.DisableLog("rdApp.*")


def add_carbon(molecule, random):
    made = Chem.RWMol(Chem.MolFromSmiles(smiles_of(molecule)))
    places = [atom.GetIdx() for atom in made.GetAtoms() if atom.GetTotalNumHs()]
    place = int(random.choice(places))
    made.AddBond(place, made.AddAtom(Chem.Atom("C")), Chem.BondType.SINGLE)
    return Chem.MolToSmiles(made)


random = np.random.default_rng(0)
longer = [add_carbon(molecule, random) for molecule in random.permutation(pool)[:300]]
valid = [text for text in longer if Chem.MolFromSmiles(text)]
unique = set(valid)
measured = pool[policies["greedy"][0]["table"]["row"]]
novel = unique - {Chem.CanonSmiles(smiles_of(molecule)) for molecule in measured}
for name, share in (("valid", len(valid) / len(longer)), ("unique", len(unique) / len(valid)),
                    ("novel", len(novel) / len(unique))):
    print(f"{name:7} {share:.0%}")

# %% [markdown]
# Nearly perfect, and nobody has asked yet what the molecules are for.
#
# ### Confident, and far away
#
# Someone will show you a score of 55 for a chemotype that nobody has measured. The answer is this
# table: everything above 45 that the free search came up with, by its similarity to the nearest
# measured compound.

# %%
edges, by_distance = (0, 0.55, 0.65, 0.8, 1.01), []
steps = [(seed, step) for seed, run in enumerate(searches["any score"]) for step in run]
truths = np.concatenate([planted_activity(seed)[step[0]] for seed, step in steps])
mean, unsure, nearest = (np.concatenate([step[at] for _, step in steps]) for at in (1, 2, 3))
print("nearest measured   molecules   predicted   truth   truth in the 90% interval")
for low, high in zip(edges, edges[1:]):
    rows = (mean > 45) & (nearest >= low) & (nearest < high)
    inside = np.abs(truths - mean)[rows] < 1.64 * np.hypot(unsure[rows], 5)
    row = rows.sum(), mean[rows].mean(), truths[rows].mean(), inside.mean()
    by_distance.append(row)
    print(f"{low:.2f} up {row[0]:18} {row[1]:11.0f} {row[2]:7.0f} {row[3]:15.0%}")

# %% [markdown]
# The prediction doesn't change with the distance. The truth does, and the 90% interval is worth
# least where you need it most. Even nearby it misses too often, because these molecules were
# selected for being predicted high: the winner's curse.
#
# > "Make three, not fifty. Print the nearest measured compound next to each score, and how often we
# > were right at that distance. Past the last distance that we've checked, the tool says *outside*
# > instead of a number."

# %% [markdown]
# ## A billion rows on ranks
#
# Scoring a pool is embarrassingly parallel. The choice at the end isn't, because it mustn't depend
# on how many ranks there were. Each rank scores its share and keeps its best 384. The global best
# 384 are among those, so each rank sends 384 pairs, whatever the size of the pool. What goes wrong
# is ties, and scores in bf16 are full of them.

# %%
ROWS, PICKS = 200_000, 384


def scores_of(rows):
    """A stand-in for the model: a score in bf16, which depends on the row alone."""
    return ((rows * 2_654_435_761 % 2**32) / 2**32).sqrt().bfloat16()


def shortlist(breaks_ties):
    """On each rank: the global best, from every rank's own best."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(rank, ROWS, world_size)
    scores = scores_of(mine).float()
    if breaks_ties:  # equal scores keep their order: the lowest row first
        own = scores.sort(descending=True, stable=True).indices[:PICKS]
    else:
        own = scores.topk(PICKS).indices
    parts = [None] * world_size
    dist.all_gather_object(parts, list(zip((-scores[own]).tolist(), mine[own].tolist())))
    merged = sum(parts, [])
    merged.sort(key=None if breaks_ties else lambda pair: pair[0])
    return [row for _, row in merged[:PICKS]]

# %%
alone = scores_of(torch.arange(ROWS)).float()
expected = alone.sort(descending=True, stable=True).indices[:PICKS].tolist()
print(f"rows with the score of place {PICKS}: {(alone == alone[expected[-1]]).sum()}")
lists = {}
for breaks_ties in (False, True):
    for world_size in (1, 2, 3):
        answers = on_ranks(shortlist, world_size, breaks_ties)
        lists[breaks_ties, world_size] = answers[0]
        same = len(set(answers[0]) & set(expected))
        name = "score, then row" if breaks_ties else "score alone"
        print(f"{name:15} {world_size} rank(s): {same} of {PICKS} picks are the expected ones")

# %% [markdown]
# Hundreds of rows share the score of the last place, and which of them gets the well depends on
# how the rows were dealt. With ties broken by id, the plate is the same on any number of ranks.
# Randomness follows the same rule: Thompson's draws come from (seed, round) and are broadcast, and
# the random wells are those with the lowest hash of (seed, round, id). With a generator of its own
# on each rank, the plate would depend on the machine.

# %% [markdown]
# ## What a round writes down
#
# A job that waits three weeks for its input gets killed in between. What has to survive? Here it's
# one table that only grows: molecule, plate, when chosen, when it arrived, value. The model is a
# function of that table, the round and the seed, and the picks are a function of the model, the
# pool, the seed and the round.

# %%
campaign = campaign_of(0, delay=2)
whole = late["two rounds late"][0]["table"]
on_disk = json.dumps(whole[whole["chosen"] < 5].tolist())  # the job dies before round 5
restored = np.array([tuple(row) for row in json.loads(on_disk)], LABEL)
resumed = run_campaign(campaign, by_optimism, 0, restored)
print("killed and resumed, the same table:", bool((resumed == whole).all()))


def digest(values):
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:12]


picks = whole[whole["chosen"] == 5]
record = {"round": 5, "seed": 0, "rule": by_optimism.__name__, "pool": digest(pool),
          "labels": digest(known(whole[whole["chosen"] < 5], 5)),
          "model": digest(model_of(campaign, whole, 5, 0)), "picks": digest(picks["row"])}
print(record)

# %% [markdown]
# That record, with the commit of the code and the name of whoever approved it, is written before
# the plate leaves. A month later you learn that round 2's plate was swapped. Which choices did it
# touch? A correction is a new version of the table, and the old one stays.

# %%
swapped = whole.copy()
swapped["arrives"][whole["plate"] == 200] = NEVER  # round 2's plate, withdrawn
touched = {}
for at in range(3, 9):
    version = swapped[swapped["chosen"] < at]
    others = set(choose(campaign, version, at, by_optimism, seed=0))
    touched[at] = len(set(whole["row"][whole["chosen"] == at]) - others)
print("picks that would have been different, by round:", touched)

# %% [markdown]
# Rounds 3 and 4 are fine: that plate hadn't arrived. From round 5 on, the model would have picked
# differently. Be careful with what you promise. Stored weights reproduce a score. Retraining does so
# on the same software and hardware, and otherwise only statistically.
#
# > "A round is a commit: data manifest, config, code, weights and picks under one id. If I can't
# > replay round five, I can't say what round eight learned from."

# %% [markdown]
# ## What a hit costs
#
# Two assays: a precise one at \$60 a well, and one that's three times as noisy, at \$20. Here is one
# budget, spent in five ways. The last one runs the cheap assay for six rounds, and spends the rest
# on confirming the 160 best with the precise one.

# %%
cheap, averaged = Reader(noise=0.15), Reader(noise=0.05 / np.sqrt(2))
budgets = compare({
    "precise": (by_optimism, {}),
    "half, each twice": (by_optimism, {"wells": 40, "reader": averaged}),
    "cheap": (by_optimism, {"wells": 240, "reader": cheap}),
    "random": (by_chance, {}),
})
confirmed = []
for seed in SEEDS:
    run = outcome(by_optimism, seed, wells=240, reader=cheap, rounds=6)
    rows = run["ranked"][:160]
    again = campaign_of(seed).measure(rows, chosen=9, arrives=9, seed=seed)
    confirmed.append(is_hit(campaign_of(seed))[rows[np.argsort(-again["value"])[:HITS]]].sum())
called = {name: np.median([run["called"] for run in runs]) for name, runs in budgets.items()}
called["cheap, confirmed"] = np.median(confirmed)
DOLLARS = 8 * 80 * 60  # without the start and the holdout, which all of them share
print()
for name, count in called.items():
    print(f"{name:17} {count:3.0f} hits in the {HITS} called, ${DOLLARS / count:6,.0f} each")

# %% [markdown]
# Measuring twice loses: another compound tells the model more than another well. The cheap assay
# puts the most hits through the lab, and then can't say which ones they were. Confirming its
# best gets back to about where the precise assay is: at these prices, it's a tie. The prices are
# assumptions, and the method stays. Ask which measurement would change a decision, let some
# compounds run in both assays, simulate before you choose, and buy in rounds.
#
# The *random* row is the one for leadership. The cost of a prediction isn't the GPU bill over the
# number of predictions. It's what a hit costs with the model, next to what it costs without. And
# before round one, write down when to stop: when the model's wells, over all rounds, no longer beat
# the random ones by enough to pay for it. A single round with two hits proves nothing.

# %% [markdown]
# ## Say it in 60 seconds
#
# > "The model decides what's measured, so its own data is biased. Before round one I measure a
# > random holdout and freeze it. It's the only honest curve. Each plate has controls, and I
# > normalize by them, never by the compounds.
# >
# > I choose by mean plus uncertainty, limit near twins, and keep ten percent random. Labels are
# > late, so pending counts as taken, and I simulate with the delay.
# >
# > I retrain on everything, because then a model is a function of one table. Picks are a function
# > of model, pool, seed and round, with ties broken by id, so they're the same on any number of ranks.
# >
# > A generator will exploit the model. I keep it near measured compounds and measure what it makes.
# > And I report cost per hit, against random."

# %% [markdown]
# ## Three questions
#
# **"After six rounds, validation accuracy on our data keeps rising. Is the model getting better?"**
#
# - *Weak:* "Yes. It's held out from training, and more data helps."
# - *Strong:* "I can't tell from that. The model chose those compounds, so each round has another
#   test set, made of what the model likes. I'd look at the frozen random holdout. If there's none,
#   I'd measure one now, and rescore the old models on it. With a 1% hit rate I'd use the
#   continuous readout, because 160 random wells have one or two hits."
# - *What would prove me wrong:* the frozen holdout rises along with it, round by round.
#
# **"Labels take three weeks, and a plate goes out every week. What changes?"**
#
# - *Weak:* "Nothing, we retrain when they arrive."
# - *Strong:* "Then the stale model orders the same plate again. Pending compounds count as taken,
#   and I spread each batch out, since a wrong idea costs three plates. A label has two dates, and
#   a training set is defined by arrival, so that any round can be replayed. I'd simulate with the
#   delay before the first plate."
# - *What would prove me wrong:* with no rule for pending ones, consecutive plates hardly overlap.
#
# **"The generator's molecules score 0.99, and none works. Would a better predictor help?"**
#
# - *Weak:* "Yes, more data and a larger model."
# - *Strong:* "It would be optimized against just the same. The search finds wherever it's wrong and
#   high. I'd hold the search near measured compounds, let a judge look that it never saw, and put
#   a plate of its own molecules into each round. The ensemble alone won't warn me, because its
#   members share the mistake."
# - *What would prove me wrong:* measured hit rate by predicted score, at each distance. If high
#   scores far away do as well as near ones, it isn't exploitation.

# %% [markdown]
# ## Practice it
#
# - Drills: [score_tasks_over_ranks](../drills/660_score_tasks_over_ranks.ipynb),
#   [weight_the_sampler](../drills/650_weight_the_sampler.ipynb),
#   [resume_after_failure](../drills/030_resume_after_failure.ipynb),
#   [best_checkpoint_is_not_the_best](../drills/510_best_checkpoint_is_not_the_best.ipynb).
# - Before it: [30. Molecular data](30_molecular_data.ipynb). What one version is: section "One
#   version: config, code and data" of [19. Configuration and evaluation](19_configuration.ipynb).
# - The same topic under pressure: "Operations" in
#   [34. Biotech hard questions](34_biotech_hard_questions.ipynb).
# - The cards: `ask(topic="wet_lab")` in [03_deck](../03_deck.ipynb).
