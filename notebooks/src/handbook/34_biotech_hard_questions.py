# %% [markdown]
# # 34. Biotech hard questions
#
# {{badge}}
#
# > "Before I choose a model, let me say what the number will be used for, what could make it look
# > better than it is, and what the lab would have to measure to prove me wrong."
#
# *Twenty-five minutes to read, two evenings to say. Each question has an answer that takes about 40
# seconds aloud, the pushback that usually follows, a reply, and what would prove you wrong.*
#
# **How to use it.** Read the question and the weak answer, and say what's wrong with it. Then give
# your own answer aloud before you unfold anything. Say the pushback in your interviewer's voice, and
# reply before you look. What you should steal is the order: what the number is for, a decision, its
# price, its evidence.
#
# Biotech rounds ask the questions of [chapter 22](22_hard_questions.ipynb) too. These are the ones
# that come on top, in four groups: data integrity, sequence and structure, operations, and staff
# judgment. Cells below the groups run what the answers claim. They need no chemistry package: the
# molecules in them are names of scaffolds, so that what leaks has a known size.

# %% collapsed=true
# {{setup torch numpy matplotlib cloudpickle platformdirs fsrs rehearsal}}

# %% collapsed=true
#@title Imports
import math

import numpy as np
import torch
import torch.distributed as dist

from rehearsal import warm_up
from rehearsal.evidence.pictures import BLUE, INK, ORANGE, new_figure, on_any_theme
from rehearsal.handbook.hard_questions import BIOTECH, draw
from rehearsal.handbook.on_ranks import on_ranks
from trainer_core.bio.assays import plant_assay
from trainer_core.bio.calibration import recalibrate
from trainer_core.bio.gathered_scores import gather_scores
from trainer_core.bio.geometry_precision import precision_rows, precision_table
from trainer_core.bio.pair_memory import PairTrunk, attention_logits_bytes, crop_table
from trainer_core.bio.scaffold_effects import scaffold_leak

warm_up()  # starts the server that forks the ranks, while you read

# %% [markdown]
# ## Draw one
#
# Run the cell, and answer what comes. It shows each question once before any comes again.
# `draw("operations", file=BIOTECH)` stays within a group.

# %%
draw(file=BIOTECH)

# %% [markdown]
# ## Data integrity
#
# They want to hear what a number is for, and that you distrust it until you know how it could lie.

# %% [markdown]
# ### How do you prevent leakage in a molecular dataset?
#
# *Weak:* "I'd use a scaffold split instead of a random one, so that nothing from training is in the test set."
#
# <details><summary>The answer</summary>
#
# > "First I name the mechanism: close analogs on both sides let the model recognize a series
# > instead of learning what makes it active. Then I order the steps. Standardize, deduplicate,
# > split, and only then fit anything, scalers included. The split follows the claim. For new
# > chemical series, I hold out scaffolds, or better, clusters by similarity. For prospective use, I
# > split by time. For proteins, I cluster by sequence identity. It's computed once, offline, and
# > stored with a version and a digest. And I run a leakage report on the result, because each split
# > still leaks in some way."
#
# </details>
#
# **"We split by scaffold. What could still leak?"**
#
# <details><summary>The reply</summary>
#
# > "Plenty. Two near-identical molecules can have different scaffolds, so I look at each test
# > compound's nearest neighbor in training. Molecules without rings all share one empty scaffold,
# > so they need a rule of their own. The same molecule measured twice can come back with opposite
# > labels. Assays run on the same plates share their errors. And a pretrained encoder may have seen
# > the test set. The report counts each of these, and I'd read the counts before I read the AUROC."
#
# </details>
#
# *What would prove me wrong:* The score hardly changes with similarity to the nearest training compound, on random and cluster splits alike. Then leakage isn't what drives it.
#
# *Shown in:* what a memorizer gains from a random split, in the first cell below these questions; [a scaffold split, and where it still leaks](30_molecular_data.ipynb); [a split computed once and offline](20_data_at_scale.ipynb).

# %% [markdown]
# ### AUROC falls 11 points from the random split to the scaffold split. Is that memorization?
#
# *Weak:* "Yes. The random split leaks scaffolds, so those 11 points are what the model has memorized."
#
# <details><summary>The answer</summary>
#
# > "Some of it may be, but the gap doesn't measure it. Two things change at once. Analogs leave the
# > training set, and the test set moves to other chemistry: other hit rates, other assays, other
# > noise. A model that memorized nothing can lose points to the second. And the size depends on the
# > task, the number of molecules, and which scaffold split it was. So I wouldn't quote a typical
# > gap. I'd bin the random test set by similarity to the nearest training compound, and compare
# > with a baseline that only knows each scaffold's mean."
#
# </details>
#
# **"Then which of the two numbers do you report?"**
#
# <details><summary>The reply</summary>
#
# > "The one that matches how we'll use the model, with both shown and named. If chemists rank
# > analogs of a series that we've already measured, the random split is close to the truth. If they
# > screen new series, it's the scaffold or cluster split. If they act on next quarter's compounds,
# > it's the time split. What I'd never do is tune on one and report the other, or compare papers
# > that don't share the same stored test set."
#
# </details>
#
# *What would prove me wrong:* A memorizer that knows only scaffold means scores no better on the random split than on the scaffold split. Then those 11 points are distribution shift.
#
# *Shown in:* a planted effect, and the gap it must produce, in the first cell below these questions; [a leak that was planted, on real molecules](30_molecular_data.ipynb).

# %% [markdown]
# ### One compound in 500 is active. How do you handle that?
#
# *Weak:* "I'd oversample the actives with a WeightedRandomSampler until the classes are balanced."
#
# <details><summary>The answer</summary>
#
# > "I start with where the ratio comes from. One in 500 is a screen. Literature data is often rich
# > in actives, and then there's nothing to fix. The unweighted loss is my baseline, because it's
# > calibrated. If it learns too slowly, I set pos weight per task, negatives over positives from
# > the training part. It's one number with no state. It moves the best logit up by its logarithm,
# > 6.2 for 499, so I subtract that before anybody reads a probability. And I change the metric:
# > enrichment at the top of the list, and average precision next to its baseline."
#
# </details>
#
# **"We tried a weighted sampler, and it worked fine on one GPU."**
#
# <details><summary>The reply</summary>
#
# > "On eight it needs work. Torch's sampler doesn't know about ranks. With one seed, all eight draw
# > the same samples. With eight seeds, each draws its own full epoch, and nobody can say what an
# > epoch was. I'd make one draw from seed and epoch, which all ranks share, and give each rank its
# > stride. Then the position is still one integer and a resume continues the same draw. It shifts
# > the logits just like pos weight does, so it needs the same correction."
#
# </details>
#
# *What would prove me wrong:* With the shift undone, predicted and observed hit rates still differ in the calibration bins. Or the unweighted baseline finds as many actives in the top 1%.
#
# *Shown in:* the shift and how to undo it, in the second cell below these questions; [weights, samplers and what they shift](30_molecular_data.ipynb).

# %% [markdown]
# ### 96% of the compound-by-assay matrix is empty. How do you train on that with DDP?
#
# *Weak:* "Untested compounds are almost always inactive, so I'd fill the gaps with zeros and train normally."
#
# <details><summary>The answer</summary>
#
# > "A missing label means that nobody measured it. Zeros would teach the model what chemists chose
# > to test. So I mask. I replace the missing targets before the loss, compute the terms, and keep
# > the measured ones. The order matters, because NaN times zero is NaN, and a where after the loss
# > still gives NaN gradients. Under DDP I sum on each rank and divide by the number of labels on
# > all ranks, times the world size, since DDP averages. Per-rank means would give a rank with ten
# > labels the same say as one with ninety."
#
# </details>
#
# **"What if one rank has no label at all for some head?"**
#
# <details><summary>The reply</summary>
#
# > "Then its sum for that head is zero, and the division still works, because the count is global.
# > But the head has to take part in backward. If it's left out of the graph, DDP waits for a
# > gradient that never comes, and either complains at the next forward or hangs. So every head runs
# > on every rank, with a weight of zero if need be. I'd rather do that than set find unused
# > parameters, which walks the graph every step and hides real mistakes."
#
# </details>
#
# *What would prove me wrong:* Gradients on one, two and three ranks differ for the same global batch, beyond rounding. I'd test it with one rank that has no labels at all.
#
# *Shown in:* [a masked loss that is right on every rank](30_molecular_data.ipynb); [the mean of means](12_data_correctness.ipynb).

# %% [markdown]
# ### The same molecule is active in one row and inactive in another. What do you do?
#
# *Weak:* "I'd drop duplicates and keep the first row, since there are only a few hundred of them."
#
# <details><summary>The answer</summary>
#
# > "First I'd ask whether they're the same measurement. Another assay, another concentration or
# > another threshold makes it another task. If it really is the same, the disagreement is
# > information: it's an estimate of label noise, and that limits what any model can score. Then I
# > need a rule that doesn't depend on file order. For values, that's the median. For classes, a
# > majority, and otherwise I drop the label and count it. All copies go to the same side of the
# > split. And the raw rows stay, so that the rule can change later."
#
# </details>
#
# **"They don't look like duplicates: their SMILES are different."**
#
# <details><summary>The reply</summary>
#
# > "That's how they get through. A salt and its free base have different canonical SMILES. So do
# > two tautomers, or a charged and a neutral form. I standardize first, with a fixed toolkit
# > version, and compare after that. Stereo is a decision, and I'd write it down: merging mirror
# > images is wrong if the target can tell them apart. Then I'd report how many rows were merged,
# > and how many of those contradicted each other."
#
# </details>
#
# *What would prove me wrong:* Repeats from a single assay scatter as much as these pairs do. Then there's no conflict to resolve, only noise, and the threshold is the problem.
#
# *Shown in:* [standardize, deduplicate, then split](30_molecular_data.ipynb); [versions of config, code and data](19_configuration.ipynb).

# %% [markdown]
# ### Which number do you report for a screening model, and how do you compute it on 64 ranks?
#
# *Weak:* "Mean AUROC over the assays. Each rank computes it on its share and we all-reduce the average."
#
# <details><summary>The answer</summary>
#
# > "The number follows from the decision. If the lab can test 500 compounds, I report the hits in
# > the top 500, and what random picking would give. Enrichment at 1% says the same as a ratio, next
# > to its ceiling. AUROC goes along for comparison: it ignores how rare actives are. All of it per
# > task, then the median and the count, and tasks without both classes are dropped by name. Across
# > ranks nothing is averaged. Every metric here is about one ranked list, so I gather the scores,
# > drop the sampler's padding, and compute once."
#
# </details>
#
# **"Gathering billions of scores won't fit on rank 0."**
#
# <details><summary>The reply</summary>
#
# > "For a validation set it does: ten million scores in float32 are 40 megabytes per task. If it's
# > really billions, I'd keep exact what the decision needs, which is the top. Each rank sends its
# > best few thousand, and rank 0 merges them. For AUROC I'd histogram the scores with a fixed set
# > of bins, and add the histograms. Counts do add up, so that's exact up to the bin width, and I'd
# > test it against the gathered value on a sample."
#
# </details>
#
# *What would prove me wrong:* The same checkpoint, evaluated on one rank and on 64, gives different numbers. Then it's the world size that I'm measuring.
#
# *Shown in:* AUROC gathered and averaged, in the third cell below these questions; [metrics that a chemist can act on](30_molecular_data.ipynb); [an evaluation that depends on the world size](../drills/320_evaluation_jumps_after_a_restart.ipynb).

# %% [markdown]
# ### Your protein split has no homologs across it. Does the pretrained encoder ruin that?
#
# *Weak:* "No. It was pretrained without labels, so there's nothing it could leak into the test set."
#
# <details><summary>The answer</summary>
#
# > "It can. A masked language model that read the test proteins knows their families, even though
# > it never saw a label. So the claim gets weaker: it's no longer about proteins unlike any the
# > model has read. It depends on deployment. If tomorrow's proteins are in public databases too,
# > seeing them unlabeled is fair, and I'd say so. If we design new ones, it's not. I'd check the
# > pretraining set's date and identity clusters against my test set, and report the score
# > separately for families that it never read."
#
# </details>
#
# **"We can't retrain a 650-million-parameter encoder to find out."**
#
# <details><summary>The reply</summary>
#
# > "You don't need to. Take proteins that were deposited after the pretraining cutoff, cluster them
# > against everything older, and evaluate on what's left. It's a small set, so I'd give an
# > interval. A second check is cheap: a frozen encoder with a linear head against a
# > nearest-neighbor lookup by identity. If the lookup is as good, we're paying for a database
# > search. Small public encoders also let you retrain without the test families and see the
# > direction."
#
# </details>
#
# *What would prove me wrong:* The score on families after the cutoff equals the score on the rest, at equal identity to the labeled training set.
#
# *Shown in:* [splits by homology](31_sequences_and_structures.ipynb); [clean holdouts and what contaminates them](19_configuration.ipynb).

# %% [markdown]
# **What a memorizer gains from a random split.** Here the leak is planted: each scaffold has an
# effect of its own, and it makes up a known share of the label's variance. The model knows nothing
# but each scaffold's mean label. On a random split it scores what the recipe predicts. With whole
# scaffolds held out, it scores nothing.

# %%
random = np.random.default_rng(34)
sizes = random.geometric(0.05, size=300)  # a few large series, many small ones
scaffolds = [f"scaffold {number}" for number, size in enumerate(sizes) for _ in range(size)]

leaks = {}
print(f"{len(scaffolds):,} molecules   random R2   scaffold R2    gap   planted")
for share in (0.0, 0.2, 0.4):
    assay = plant_assay(scaffolds, scaffold_share=share, seed=1)
    leak = scaffold_leak(assay.labels, scaffolds)
    leaks[share] = (leak.gap, assay.known_gap())
    print(f"share {share:.1f} {leak.random_r2:17.3f} {leak.grouped_r2:13.3f}", end="")
    print(f"{leak.gap:7.3f} {assay.known_gap():9.3f}")

# %% [markdown]
# Now a gap without any leak. This model was trained on nothing: it's a fixed formula, and it can't
# have memorized anything. The usual scaffold split sends large scaffolds to training and small ones
# to the test set, and here the small, new series are measured with more noise. The formula's AUROC
# falls all the same. So a gap alone doesn't say how much was memorized.


# %%
def auroc(is_active, scores):
    """How often an active scores above an inactive; a tie counts half."""
    active, inactive = scores[is_active == 1][:, None], scores[is_active == 0][None, :]
    return float((active > inactive).mean() + (active == inactive).mean() / 2)


is_small = np.repeat(sizes, sizes) < 20
prediction = random.standard_normal(len(scaffolds))
noise = np.where(is_small, 1.5, 0.5) * random.standard_normal(len(scaffolds))
is_active = prediction + noise > 1
in_random_test = random.random(len(scaffolds)) < is_small.mean()
fixed = {
    "random": auroc(is_active[in_random_test], prediction[in_random_test]),
    "scaffold": auroc(is_active[is_small], prediction[is_small]),
}
print("AUROC of a fixed formula:", {name: round(value, 3) for name, value in fixed.items()})

# %% [markdown]
# **The shift of the weighted loss, and how to undo it.** About one molecule in a hundred is active,
# so `pos_weight` is about 100. The ranking stays the same, and the best logits go up by ln 100 = 4.6:
# a molecule with a 1% chance gets 50%. Summed over the table, the model promises dozens of times the
# hits that are there. Subtract the logarithm, and the number is right again.

# %%
torch.manual_seed(34)
features = torch.randn(60_000, 4, dtype=torch.double)
logits = features @ torch.tensor([1.0, -0.7, 0.5, 0.0], dtype=torch.double) - 5.45
labels = (torch.rand(len(logits)) < logits.sigmoid()).double()


def fitted(weight):
    """Logits of a logistic regression, trained with that pos_weight."""
    layer = torch.nn.Linear(4, 1, dtype=torch.double)
    optimizer = torch.optim.LBFGS(layer.parameters(), 1, 60, line_search_fn="strong_wolfe")
    loss_of = torch.nn.BCEWithLogitsLoss(pos_weight=weight)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(layer(features).squeeze(1), labels)
        loss.backward()
        return loss

    optimizer.step(closure)
    return layer(features).squeeze(1).detach()


weight = (1 - labels).sum() / labels.sum()
weighted = fitted(weight)
models = {
    "unweighted": fitted(torch.ones(())),
    "weighted": weighted,
    "weighted, undone": recalibrate(weighted, weight),
}
hits = {name: float(found.sigmoid().sum()) for name, found in models.items()}
print(f"pos_weight {weight:.0f}, ln {weight.log():.2f}; actives {labels.sum():.0f}")
for name, count in hits.items():
    print(f"{name:17} predicts {count:8,.0f}  AUROC", end=" ")
    print(f"{auroc(labels[:20_000].numpy(), models[name][:20_000].numpy()):.3f}")

# %% collapsed=true
#@title Predicted and observed hit rates
figure, axes = new_figure(
    3.8,
    "The weighted loss promises hits that don't come, until ln(pos_weight) is subtracted",
    "Each point: a twelfth of the molecules, by predicted chance",
)
for name, color in (("weighted", ORANGE), ("weighted, undone", BLUE)):
    chance = models[name].sigmoid()
    bins = chance.argsort().chunk(12)
    axes.plot(
        [float(chance[one].mean()) for one in bins],
        [float(labels[one].mean()) for one in bins],
        "o-", color=color, label=name,
    )
axes.plot([1e-4, 1], [1e-4, 1], "--", color=INK, linewidth=1, label="calibrated")
axes.set(xscale="log", yscale="log", xlim=(3e-4, 1), ylim=(1e-4, 1))
axes.set(xlabel="predicted chance of a hit", ylabel="observed hit rate")
axes.legend(frameon=False)
on_any_theme(figure)

# %% [markdown]
# **AUROC averaged and gathered.** Real ranks score one table of 600 molecules, measured in three
# months with fewer and fewer hits. The scores are always the same; only the number of ranks changes.
# If each rank computes AUROC on its share and the ranks average, the result depends on the world size
# and on who got which molecules. In blocks, each rank sees only part of the months, so it misses
# what tells the months apart, and the rank with the last month has no active at all. Its AUROC is
# undefined, and so is the average. Gathered, it's one number, to the last bit.

# %%
random = np.random.default_rng(4)
MONTH = np.repeat([0, 1, 2], 200)
ACTIVE = (random.random(600) < np.array([0.12, 0.02, 0.0])[MONTH]).astype(np.float64)
SCORE = 0.8 * ACTIVE - 1.2 * MONTH + random.standard_normal(600)


def score_table(deal):
    """Each rank's share of the table, by stride or in blocks; averaged and gathered AUROC."""
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = np.arange(600)
    mine = rows[rank::world] if deal == "strided" else np.split(rows, world)[rank]
    has_both = 0 < ACTIVE[mine].sum() < len(mine)
    mean = torch.tensor(auroc(ACTIVE[mine], SCORE[mine]) if has_both else math.nan)
    dist.all_reduce(mean)
    columns = [torch.from_numpy(values[mine])[:, None] for values in (SCORE, ACTIVE)]
    table = gather_scores(torch.from_numpy(mine), *columns)
    whole = auroc(table.labels[:, 0], table.scores[:, 0]) if table else None
    return [float(mean) / world, whole]


aurocs = {
    (deal, world): on_ranks(score_table, world, deal)[0]
    for deal in ("strided", "in blocks")
    for world in (1, 2, 3)
}
print("ranks                averaged   gathered")
for (deal, world), (averaged, gathered) in aurocs.items():
    print(f"{world} {deal:16} {averaged:11.4f} {gathered:10.4f}")

# %% [markdown]
# ## Sequence and structure
#
# They want to hear what fills the memory, and which step waits for whom.

# %% [markdown]
# ### Your proteins have 10 to 35,000 residues. How do you batch them over 8 ranks?
#
# *Weak:* "I'd pad every batch to its longest sequence and use a small batch size so that it fits."
#
# <details><summary>The answer</summary>
#
# > "By work, not by count. Lengths have one peak and a long right tail, so a fixed count pads most
# > of the batch away, and one rank gets the giant while seven wait. I crop at a length that the
# > task can bear, with a random window per epoch. Then I pack sequences into bins up to a token
# > budget, as a pure function of lengths, seed and epoch, before any rank exists. A step takes one
# > bin per rank, so all ranks do the same number of steps. The position is an integer. And the loss
# > is divided by the global token count."
#
# </details>
#
# **"Equal tokens still don't take equal time."**
#
# <details><summary>The reply</summary>
#
# > "Right, because attention is quadratic. Thirty-two sequences of 128 and one of 4,096 have the
# > same tokens, and the second has 32 times as many attention pairs. Whether that hurts depends on
# > width: in a wide model the linear layers dominate for quite a while. So I'd time a step for
# > several lengths, fit linear plus quadratic, and use that as the cost. And within a step I'd give
# > all ranks bins of the same length class, so they wait for nobody."
#
# </details>
#
# *What would prove me wrong:* Step time, by rank and step, doesn't follow the budgeted cost. If the slowest rank is random, it's hardware. If it follows length, my cost model is off.
#
# *Shown in:* [token budgets](31_sequences_and_structures.ipynb); [samples or tokens: what one rank pads](22_hard_questions.ipynb).

# %% [markdown]
# ### One rank of 64 ran out of memory at step 8,311. The other 63 are fine. What happens?
#
# *Weak:* "That rank's process restarts and rejoins, and the other ranks aren't affected in the meantime."
#
# <details><summary>The answer</summary>
#
# > "Their memory is fine, but they aren't. They enter the next all-reduce and wait for a rank
# > that's gone. If the launcher sees the exit, it stops the job in seconds. If the rank hangs in
# > cleanup, we burn 63 GPUs until the timeout. So the whole job restarts from the last checkpoint.
# > And since the order is deterministic, it meets the same protein at the same step and dies again.
# > I'd look at the bins of that step for the longest sequence. Then I'd fix the plan: crop, or a
# > budget that counts quadratic memory."
#
# </details>
#
# **"Can't we catch the error and skip that batch?"**
#
# <details><summary>The reply</summary>
#
# > "Not on one rank. Skipping is a decision about a step, and all ranks have to make it together,
# > or their collectives stop matching. By the time the error comes, the others may be halfway
# > through the all-reduce. It also skips exactly the longest proteins, in silence. I'd rather
# > prevent it: at startup each rank runs the most expensive bin of the epoch once, forward and
# > backward, before step one. That costs a minute and fails right away, with the bin's name."
#
# </details>
#
# *What would prove me wrong:* The step's largest bin on that rank runs alone without trouble. Then it's a leak or fragmentation, and peak memory would have climbed over the steps before.
#
# *Shown in:* [one long protein that stops the job](31_sequences_and_structures.ipynb); [only one rank runs out of memory](22_hard_questions.ipynb); [a batch that grows until memory fails](14_performance.ipynb).

# %% [markdown]
# ### How much memory does a pair representation take at 1,024 residues? And at 4,096?
#
# *Weak:* "Length squared times the model width times four bytes, so 1,280 channels at 1,024 make about 5 GB."
#
# <details><summary>The answer</summary>
#
# > "The width is the trap. Pairs don't have the width of the residue track. In AlphaFold 2's trunk
# > it's 128 channels. So a copy is 1,024 squared, times 128, times 4 bytes: 512 mebibytes. One
# > input per block for 48 blocks is 24 gibibytes, and that's with activation checkpointing.
# > Triangle attention is worse, because its logits are cubic: 4 heads times 1,024 cubed is 16
# > gibibytes per call, unless it's chunked or fused. At 4,096 a copy is 8 gibibytes, and those
# > logits are a tebibyte. So I train on crops."
#
# </details>
#
# **"A customer has a complex of 4,096 residues, and won't crop it."**
#
# <details><summary>The reply</summary>
#
# > "For inference there's no backward pass, so I need a few copies and not 48. In bf16 a copy is 4
# > gibibytes. I'd chunk the triangle updates, so the cubic part is never whole. If that's too slow,
# > I shard the pair tensor over GPUs by rows. The updates alternate between rows and columns, so
# > each switch is a transpose, which is an all-to-all of the whole tensor. I'd price that against
# > chunking on one GPU first."
#
# </details>
#
# *What would prove me wrong:* Measured peak memory doesn't grow by four when the length doubles. Growth by eight means that something cubic is stored whole.
#
# *Shown in:* the arithmetic, in the cell below these questions; [what is quadratic, and what is cubic](31_sequences_and_structures.ipynb).

# %% [markdown]
# ### The network is equivariant. What does that demand of the data pipeline?
#
# *Weak:* "Nothing much. The network handles rotations, so we can feed coordinates as they come."
#
# <details><summary>The answer</summary>
#
# > "That everything before the network respects the same symmetry. Centering each molecule is fine.
# > Scaling every axis by its own deviation isn't, because a rotated molecule would get another
# > shape. One scale for all axes is. Neighbor lists depend on distances only, so I can compute them
# > offline. Frames built from atoms have to turn with the atoms. Padding must not change any
# > output. Random rotations as augmentation buy nothing here. And I'd test the whole path, from
# > file to output: turn the input, and compare with the output turned."
#
# </details>
#
# **"So we standardize coordinates with batch norm, and it trains better."**
#
# <details><summary>The reply</summary>
#
# > "On scalar channels that's a matter of taste. Normalizing invariants breaks nothing. On vectors,
# > any bias, mean or scale per component breaks it, and that goes for layer norm across components
# > as well. There you divide by the vector's norm. Batch norm also has a second problem under DDP:
# > statistics from a few graphs per rank, of different sizes. If it trains better, I'd suspect that
# > it learned the orientation in which the files were stored. Rotate the test set and see."
#
# </details>
#
# *What would prove me wrong:* The error of the whole path under random rotations is at rounding level. Then the preprocessing is innocent, and I look elsewhere.
#
# *Shown in:* the error by precision, in the cell below these questions; [a symmetry is tested](31_sequences_and_structures.ipynb).

# %% [markdown]
# ### After a speedup, energies depend on how the molecule is turned. What happened?
#
# *Weak:* "Lower precision adds some noise, that's normal. I'd train longer or add random rotations."
#
# <details><summary>The answer</summary>
#
# > "Something geometric now runs in low precision. My first suspects are TF32 and bf16 autocast. In
# > bf16, numbers near 100 are half a unit apart, so a coordinate loses its bond lengths. TF32 only
# > touches matmuls, so it bites where distances come from a matrix product, where large squares
# > cancel. I'd measure it: the equivariance error per module, in the old and the new setting. Then
# > I keep coordinates, differences and distances in fp32, and let the features go to bf16. That's
# > where the time goes anyway."
#
# </details>
#
# **"Reflections fail too, but our targets are chiral. Isn't that right?"**
#
# <details><summary>The reply</summary>
#
# > "It depends on what was promised. An E(n) network can't tell a molecule from its mirror image,
# > so it treats both the same. If the target depends on handedness, that's a limit and not a
# > feature, and I'd want a network for rotations only, or a chirality input. So a reflection that
# > fails in an E(n) network is a bug. In an SE(3) network it's allowed. I test rotation,
# > translation, reflection and permutation separately, because the one that fails names the cause."
#
# </details>
#
# *What would prove me wrong:* The error is as large with everything in fp32. Then it's no rounding but a broken layer, and a translation or a permutation will fail as well.
#
# *Shown in:* TF32 and bf16, with distances from differences and from a product, in the cell below these questions; [what precision does to a symmetry](31_sequences_and_structures.ipynb).

# %% [markdown]
# ### Does the choice of encoder decide how you parallelize?
#
# *Weak:* "Not really. We'd use FSDP for any of them, and add tensor parallelism if it's still too big."
#
# <details><summary>The answer</summary>
#
# > "Mostly, because each runs out of something else. A protein language model has 33 tokens, so
# > embeddings cost nothing, and memory is layers and activations. That's DDP, then FSDP, and
# > context parallelism only for long sequences. A graph network is small: plain DDP, and the risk
# > is in the data, with batches by node and edge budget. A structure model has few parameters and
# > huge pair tensors, so sharding parameters saves little. There I'd shard activations, along the
# > pair axes. So I ask what fills the memory before I name an axis."
#
# </details>
#
# **"FSDP shards everything. Doesn't it help the structure model as well?"**
#
# <details><summary>The reply</summary>
#
# > "It shards parameters, gradients and optimizer state. At 100 million parameters, that's 1.6
# > gigabytes in total, and I can't save more than that. One pair tensor at 1,024 residues has half
# > a gibibyte, and training keeps dozens. So FSDP adds communication and leaves the problem.
# > Activation checkpointing comes first, then smaller crops, then splitting the pair tensor. I'd
# > show a memory breakdown, one line each for state and activations, before and after."
#
# </details>
#
# *What would prove me wrong:* A memory snapshot at the peak: if parameters and optimizer state are more than half of it, I picked the wrong axis.
#
# *Shown in:* [what each encoder runs out of](31_sequences_and_structures.ipynb); [each axis with its communication counted](17_parallelism.ipynb); [16 bytes per parameter](15_numbers.ipynb).

# %% [markdown]
# **The arithmetic of pairs.** In MiB, for AlphaFold 2's published widths and fp32. One copy of the
# pairs is quadratic. The logits of one triangle attention are cubic. A protein language model such
# as ESM-2 has no pair tensor: its quadratic term is 20 heads of attention logits per layer, which a
# fused kernel never stores.

# %%
trunk = PairTrunk()
print(crop_table(trunk, (256, 1024, 4096)))
print(f"ESM-2 at 1,024: {attention_logits_bytes(1024, 20) / 2**20:.0f} MiB of logits per layer")

# %% [markdown]
# **What precision does to a symmetry.** The error of a small equivariant network's displacements
# when its input is turned, shifted, mirrored or renumbered. TF32 is emulated on a CPU. Read the
# column *distances*: the same network, with the same weights, loses far more when its distances come
# from a matrix product in low precision.

# %%
precision = precision_rows()
print(precision_table(precision))

# %% [markdown]
# ## Operations
#
# They want to hear that the data answers back: what you choose today is what you can train on
# tomorrow.

# %% [markdown]
# ### The lab needs three weeks per batch. What does that change in your training system?
#
# *Weak:* "We'd retrain when the labels arrive. In the meantime the model stays as it is."
#
# <details><summary>The answer</summary>
#
# > "It turns time into part of the data. Each label gets an arrival date, and a training set is
# > everything that had arrived by a date. So I can replay any decision with what was known then. If
# > batches go out weekly, three are always pending, and the model must know it. Otherwise it asks
# > for the same region three times. I count pending compounds as if measured, or penalize
# > similarity to them. And compute isn't the bottleneck. Against three weeks, a day of retraining
# > is nothing, so I'd spend it on checks."
#
# </details>
#
# **"Then let's fine-tune on each new plate the night it arrives."**
#
# <details><summary>The reply</summary>
#
# > "I'd retrain from scratch on everything. With 384 new labels, fine-tuning on them alone forgets
# > what older data taught, and the result depends on the order in which plates came in. After ten
# > rounds nobody can reproduce it. If training takes too long for that, I'd fine-tune from one
# > fixed base, with old labels replayed in the mix. Either way the new model goes through the same
# > gate: it has to beat the current one on the frozen holdout."
#
# </details>
#
# *What would prove me wrong:* In a replay of old campaigns, fine-tuning finds as many actives per round as retraining, and repeated runs agree. Then I'd take the cheaper one.
#
# *Shown in:* [what a forgotten plate costs, and a resume from one table](33_wet_lab_in_the_loop.ipynb); [the promotion gate](19_configuration.ipynb).

# %% [markdown]
# ### Design the active-learning loop. The lab can measure 384 compounds per round.
#
# *Weak:* "Predict the whole library, send the 384 with the highest scores, retrain on the results, repeat."
#
# <details><summary>The answer</summary>
#
# > "The rule mixes three things: predicted value, model uncertainty and diversity. Top-scoring
# > compounds one by one would be 300 members of a single series. So I choose by cluster, or
# > penalize similarity within the batch. About 10% are random, because that's the only part that
# > tells me how good the model is. Some wells are controls and repeats, so I can tell a better
# > model from a better week. Each round records the model, the data version, the scores and the
# > choices. And before the first plate, I simulate the loop on old data, with delay and noise."
#
# </details>
#
# **"Which uncertainty? Our model's softmax is always sure."**
#
# <details><summary>The reply</summary>
#
# > "Not the softmax. There are two kinds. Assay noise stays, however much we measure, and I read it
# > off the repeats. What the model doesn't know shrinks with data, and I estimate that by the
# > disagreement of a small ensemble. I'd check that it ranks errors on held-out scaffolds before I
# > trust it. And it has to earn its place: in the simulation it must beat random and greedy
# > picking. If it doesn't, I'd use diversity and drop the ensemble."
#
# </details>
#
# *What would prove me wrong:* Over three rounds, the model's picks don't contain more actives than the random share does, beyond what chance explains.
#
# *Shown in:* [five ways to choose, batches, and what each finds](33_wet_lab_in_the_loop.ipynb); how far chance reaches with two expected hits, in the cell at the end of the judgment questions.

# %% [markdown]
# ### Over six rounds of active learning, validation keeps rising. Is the model getting better?
#
# *Weak:* "Yes, validation is held out of training, and it's gone up six times in a row."
#
# <details><summary>The answer</summary>
#
# > "I can't tell from that. The model chose what was measured, so the collected data isn't a sample
# > of anything. If it prefers easy regions, its validation gets easier. And each round has another
# > validation set, so those six numbers aren't comparable. I want a random sample of the library,
# > measured before round one, frozen, never trained on and never used to choose. Every round's
# > model is scored on it. I'd also rescore old models on today's set. If round one's model rises
# > too, it's the set that got easier."
#
# </details>
#
# **"That costs a whole plate that finds no hits."**
#
# <details><summary>The reply</summary>
#
# > "It does, and it's the plate that tells us whether the other sixteen this year were worth it.
# > I'd be honest about its size, though. At a 1% hit rate, 384 random compounds hold about four
# > actives, so I can't compare hit rates with it. I'd use the continuous readout, where every well
# > counts. And I'd stretch it over several plates and days, so that it also shows the assay's
# > drift."
#
# </details>
#
# *What would prove me wrong:* The frozen holdout rises along with the collected validation, round by round. Then the model really is improving, and I was too careful.
#
# *Shown in:* [the same models, judged in three ways](33_wet_lab_in_the_loop.ipynb); six rounds, on collected and on frozen data, in the cell below these questions.

# %% [markdown]
# ### This month's assay data looks different. Did the chemistry change or the assay?
#
# *Weak:* "I'd retrain with more weight on recent data, so the model adapts to the new distribution."
#
# <details><summary>The answer</summary>
#
# > "The controls decide. Each plate has reference compounds whose values I know. If they moved,
# > it's the assay: a reagent, a reader, a protocol. If they didn't, we measured other chemistry.
# > Without controls, I'd have some old compounds measured again now. If the assay moved, I correct
# > per plate by its own controls, before training. If the chemistry moved, nothing's wrong, and I
# > look at the model's domain. Weighting recent data more would mix the two up, and teach the model
# > the new reagent. From then on, a batch with controls out of limits doesn't enter."
#
# </details>
#
# **"The model predicts well within each month, so why care?"**
#
# <details><summary>The reply</summary>
#
# > "Because it may be predicting the plate. If actives were tested on some plates and inactives on
# > others, the plate gives the label away. I'd fit a model on plate and well position alone, no
# > chemistry. If that scores above chance, the label is confounded. Then I split by plate or by
# > month, and I ask the lab to randomize compounds over wells. A model that's good within a month
# > and bad across months isn't one that we can ship."
#
# </details>
#
# *What would prove me wrong:* Reference compounds repeat within their usual spread, this month and last. Then the assay is fine, and the shift is in what we chose to make.
#
# *Shown in:* [what controls correct, and what a plate's own mean erases](33_wet_lab_in_the_loop.ipynb); [what a fitted transform must not see](20_data_at_scale.ipynb).

# %% [markdown]
# ### Generated molecules are predicted 0.99 active, and none works in the lab. Explain.
#
# *Weak:* "The predictor isn't good enough yet. We need a bigger model and more training data."
#
# <details><summary>The answer</summary>
#
# > "The generator optimized my predictor and found where it's wrong. Every model has regions where
# > it's high by mistake, and a search goes straight there. The score was honest on compounds from
# > the training distribution. These no longer come from it. So I'd keep the search inside the
# > domain, near compounds that we've measured. I'd judge with a second model that the generator
# > never saw, trained on other data. And each round, some generated molecules get made, mistakes
# > first, and go into training. Valid, unique and novel aren't evidence: adding a carbon gets you
# > all three."
#
# </details>
#
# **"If we stay near known compounds, what's the generator for?"**
#
# <details><summary>The reply</summary>
#
# > "For the edge, not the center. I'd let the distance grow as the evidence does. Say we've made 20
# > compounds at some distance, and a third worked as predicted. Then that's what a score means
# > there, and the next step can go further. What I'd show you is predicted against observed hit
# > rate, by distance to the nearest measured compound. Where the curve has no points, a score of
# > 0.99 is only a number."
#
# </details>
#
# *What would prove me wrong:* The second model, and the lab, agree with the first on generated molecules as often as on held-out real ones.
#
# *Shown in:* [a search that exploits its oracle, and four remedies](33_wet_lab_in_the_loop.ipynb); [a gate that a metric alone can't pass](19_configuration.ipynb).

# %% [markdown]
# ### 4.2 billion molecules, 30 TB of tables. Where does the work go?
#
# *Weak:* "Into scaling the training: FSDP over many nodes, with tokenization in the data loader."
#
# <details><summary>The answer</summary>
#
# > "Into the data, because the model fits on a GPU and training is plain DDP. I featurize once,
# > offline. At 50 tokens of two bytes, 4.2 billion molecules are 420 gigabytes, 70 times less than
# > the raw tables. That job has shards, versions and retries of its own. Deduplication and the
# > scaffold split are distributed group-bys: partition rows by a hash of the key, so each bucket
# > holds whole groups, and memory is bounded by the largest. The trainer reads shuffled shards
# > through a manifest. Its position is one global integer, so it survives another world size."
#
# </details>
#
# **"Tokenizing takes microseconds. Why not do it in the loader?"**
#
# <details><summary>The reply</summary>
#
# > "Tokenizing does, standardizing doesn't. If that takes a millisecond, 4.2 billion are about
# > 1,200 core-hours. That's cheap once, and silly once per epoch, on the nodes with the GPUs. But
# > correctness is the better reason. Offline, a bad row gets counted, and the vocabulary has a
# > hash. In the loader, a toolkit upgrade changes the data in the middle of a run, and nobody sees
# > it. And a row that fails on one rank breaks the plan for all."
#
# </details>
#
# *What would prove me wrong:* Profile one node: if the loader keeps up with standardizing included, and versions are pinned, offline featurization buys less than I say.
#
# *Shown in:* [the run worked through](32_billion_molecules.ipynb); [shards, manifests and cursors](20_data_at_scale.ipynb).

# %% [markdown]
# **Validation that rises by itself.** A pool of 20,000 molecules, a linear model, and six rounds. In
# each, the model picks the molecules with the highest predictions. The collected data gets split into
# training and validation each round, as usual. The last column scores the model on a random sample
# that was frozen before round one. From round two on, the error on the collected data falls and
# falls. On the frozen sample it stays far above where it was before the loop began: the model gets
# good at the molecules that it likes, and worse at the pool.

# %%
random = np.random.default_rng(3)
pool = random.standard_normal((20_000, 30))
bent = np.maximum(pool @ random.standard_normal(30) / 3, 0) ** 2  # what no linear model can fit
values = pool @ random.standard_normal(30) / 5 + bent + 0.5 * random.standard_normal(20_000)
order = random.permutation(20_000)
frozen, collected, left = order[:400], order[400:784], order[784:]
rounds = []
for number in range(1, 7):
    shuffled = random.permutation(collected)
    train, validation = shuffled[len(shuffled) // 5 :], shuffled[: len(shuffled) // 5]
    known = np.c_[pool[train], np.ones(len(train))]
    weights = np.linalg.lstsq(known, values[train], rcond=None)[0]
    predicted = pool @ weights[:-1] + weights[-1]
    errors = [float(np.abs(predicted - values)[rows].mean()) for rows in (validation, frozen)]
    rounds.append(errors)
    print(f"round {number}: mean error {errors[0]:.2f} on collected, {errors[1]:.2f} on frozen")
    left = left[predicted[left].argsort()]
    collected, left = np.r_[collected, left[-384:]], left[:-384]

# %% [markdown]
# ## Staff judgment
#
# They want to hear a decision, what it costs in the lab, and when you'd take it back.

# %% [markdown]
# ### Budget for 10,000 measurements, and four assays. How do you divide it?
#
# *Weak:* "Most of it goes to the assay with the most data, because that's where the model is best."
#
# <details><summary>The answer</summary>
#
# > "By which decision each result would change. I'd write down the decision first: which 50
# > compounds go forward. Then a measurement is worth something if it could move a compound across
# > that line. The cheap noisy assay goes wide. The precise one goes to what's near the line.
# > Toxicity and solubility get a small panel early, because they stop a series before it gets
# > expensive. Some compounds run in both the cheap and the precise assay, to learn what the cheap
# > one is worth. And I'd spend it in rounds, maybe a quarter at a time."
#
# </details>
#
# **"The model team wants all 10,000 for training data."**
#
# <details><summary>The reply</summary>
#
# > "Better training data counts if it changes a decision too, so I'd ask them for the curve. Train
# > on half of what we have, on all of it, and extrapolate: what would 5,000 more labels buy on the
# > scaffold split? If it's below the spread between seeds, that's not where the money goes. If it's
# > steep, they get a round. What I'd reserve in any case is the random share and the repeats.
# > Without those, we can't say what any of it bought."
#
# </details>
#
# *What would prove me wrong:* After the first quarter: if the precise assay overturned almost none of the cheap one's calls, I've overpaid for precision.
#
# *Shown in:* [one budget, spent in five ways](33_wet_lab_in_the_loop.ipynb); [a budget by what it changes](15_numbers.ipynb).

# %% [markdown]
# ### Leadership asks what a prediction costs. What do you tell them?
#
# *Weak:* "The GPU bill over the number of predictions. It's a hundredth of a cent, so it's practically free."
#
# <details><summary>The answer</summary>
#
# > "That the bill per prediction is the wrong number. A prediction is worth something only if it
# > changes what we make and turns out right. So I count cost per hit: compute, synthesis and assays
# > together, over confirmed actives. In that sum, compute is usually the small part, because making
# > and testing a compound costs far more than scoring a million. The comparison is the same lab
# > without the model, which is what the random share tells us. I'd put both on one slide, with
# > intervals, since a few hits per round leave wide ones."
#
# </details>
#
# **"Then a bigger model is always worth it."**
#
# <details><summary>The reply</summary>
#
# > "Only if it changes which compounds we make. Going from the top 384 of one model to the top 384
# > of another may swap a few. I'd score last year's rounds with both, and count the confirmed hits
# > that the larger one would have added. Then it's simple: added hits times the cost per hit,
# > against its training and upkeep. The other costs are slower iterations and fewer ensembles. And
# > if the labels are noisy, repeats may buy more than parameters."
#
# </details>
#
# *What would prove me wrong:* Hit rate of the model's picks isn't above that of the random share. Then the cost per hit went up, by exactly what we spent on the model.
#
# *Shown in:* cost per hit, and how far chance reaches, in the cell below these questions.

# %% [markdown]
# ### The model gives a new chemotype 0.98, and the team wants 50 analogs. What do you say?
#
# *Weak:* "0.98 is well above our threshold, and validation is good. I'd go ahead with the 50."
#
# <details><summary>The answer</summary>
#
# > "I'd make five first. The score is a probability only where we checked it, and nothing in
# > training looks like this. So I ask two things. How far is it from the nearest measured compound?
# > And when we predicted that high at such a distance before, how many worked? If the answer is a
# > third, that's my number, and not 0.98. If we've never been there, there's no number. Five
# > diverse members of the chemotype, plus two controls, tell us whether to make the other 45. It
# > costs a few weeks."
#
# </details>
#
# **"A competitor is faster. Your five cost us a month."**
#
# <details><summary>The reply</summary>
#
# > "Then it's a bet, and we can price it. Fifty compounds now save a month if it works. If it
# > doesn't, they're 45 compounds we could've made elsewhere. At a third, I might take it, for a
# > series that matters. At one in twenty, I wouldn't. What I'd ask for is that the bet has a name
# > on it and gets recorded, along with what we expected. And the tool should flag the score as
# > outside its domain, so that nobody mistakes it for a measurement."
#
# </details>
#
# *What would prove me wrong:* Past predictions at this distance were calibrated: of those above 0.95, about 95% were active. Then I'd sign for all 50.
#
# *Shown in:* [predictions and truth by distance](33_wet_lab_in_the_loop.ipynb); calibration where it was checked, in the second cell below the data questions.

# %% [markdown]
# ### A regulator asks why compound X was selected in March. What can you show?
#
# *Weak:* "We have the code in Git and the model's weights, so we could rerun it and look."
#
# <details><summary>The answer</summary>
#
# > "The decision, as it was recorded that day: the score, the rule, the model's version, who
# > approved it, and what else was on the list. From the model's version I get to one manifest:
# > config, code, weights and the digest of the training data. From there to each label, and from a
# > label to its raw value, plate, protocol and normalization. With stored weights I can reproduce
# > the score itself. Retraining reproduces it only statistically, and I'd say so. It only works if
# > it's written when it happens. Corrections are new versions, and nothing gets overwritten."
#
# </details>
#
# **"Nobody will maintain that. It's all paperwork."**
#
# <details><summary>The reply</summary>
#
# > "If people had to fill it in, they wouldn't. So the pipeline writes it. The trainer refuses data
# > without a manifest, and the selection job refuses a model without a version. A plate whose
# > controls are missing doesn't load. It's a few kilobytes per decision. And it pays off long
# > before any regulator: when a score moves by two points, I can diff two manifests and find the
# > toolkit upgrade, instead of guessing for a week."
#
# </details>
#
# *What would prove me wrong:* Pick a random compound from last year and a clock: if two people can't trace it to its raw values within an hour, I don't have provenance.
#
# *Shown in:* [one version for config, code and data](19_configuration.ipynb); [an audit from a run's own records](../01_walkthrough.ipynb).

# %% [markdown]
# ### Round nine found two hits, like round eight. Do you continue?
#
# *Weak:* "Two hits per round means it has plateaued. I'd get more compute and try a larger model."
#
# <details><summary>The answer</summary>
#
# > "I'd look at the rule that we wrote before round one, and if there's none, write it now, before
# > I see round ten. Two hits say little. With two expected, anything from zero to five is within
# > chance, so rounds eight and nine can't show a plateau. What can is the comparison with the
# > random share, over all rounds. If the model still triples the hit rate, the space is getting
# > poor and the model is fine. If it doesn't, the model adds nothing. Then the question is cost per
# > hit, against what another target would give."
#
# </details>
#
# **"The team is convinced that a larger model will find more."**
#
# <details><summary>The reply</summary>
#
# > "That can be tested without the lab. Take rounds one to six, train both models on them, and let
# > each rank what was measured in rounds seven to nine. If the larger one puts more of those hits
# > at the top, it gets the next plate, or half of it. I'd warn about one bias: those compounds were
# > chosen by the small model, so the test favors models that agree with it. The random wells are
# > the part I'd trust most."
#
# </details>
#
# *What would prove me wrong:* Round ten, with half of it random: if the model's half doesn't beat the random half, summed over rounds, I should've stopped earlier.
#
# *Shown in:* how far chance reaches, in the cell below these questions.

# %% [markdown]
# **Cost per hit, and how far chance reaches.** All inputs are assumptions: replace them with your
# lab's. Scoring a million molecules costs \$100, training \$5,000 a round, and making and testing a
# compound \$1,500. The model's share of the bill is small, and whether it pays depends on the hit
# rate alone. But one round hardly shows a hit rate: the second table is a Poisson distribution.

# %%
PLATE, SCORING, TRAINING_COST, COMPOUND = 384, 100, 5_000, 1_500


def cost_per_hit(hit_rate, with_model=True):
    """Dollars per confirmed active, over a plate."""
    compute = SCORING + TRAINING_COST if with_model else 0
    return (PLATE * COMPOUND + compute) / (PLATE * hit_rate)


compute_share = (SCORING + TRAINING_COST) / (PLATE * COMPOUND + SCORING + TRAINING_COST)
print(f"compute is {compute_share:.1%} of a round")
for name, rate in (("random", 0.005), ("model", 0.005), ("model", 0.015)):
    print(f"{name:7} at {rate:.1%} hits: ${cost_per_hit(rate, name == 'model'):9,.0f} per hit")

chances = {
    expected: [math.exp(-expected) * expected**k / math.factorial(k) for k in range(21)]
    for expected in (2, 6)
}
ranges = {}
for expected, chance in chances.items():
    total = np.cumsum(chance)
    ranges[expected] = (int((total >= 0.025).argmax()), int((total >= 0.975).argmax()))
    low, high = ranges[expected]
    print(f"{expected} hits expected: 95% of rounds have {low} to {high}")

# %% [markdown]
# ## The closing paragraph
#
# They'll ask you to sum up. Say it in your own words, in this order.
#
# > "To sum up: I start from the decision that the number is for, and choose the split to match.
# > Molecules are standardized, deduplicated and split once, offline, with a version. Missing labels
# > are masked, sums are divided by global counts, and every metric is computed once over gathered
# > scores. Work is packed by cost before there are ranks, so they stay in step and a resume is one
# > integer. Geometry stays in fp32, and a test turns the input. The lab is part of the system: a
# > frozen random holdout, controls on every plate, and each choice on record. And what would prove
# > me wrong is written down before the plate goes out."

# %% [markdown]
# ## Practice it
#
# - Draw five, record yourself, and listen. Count the answers that said what the number is for, and
#   what would prove them wrong.
# - Some of these as code: [split by scaffold](../drills/610_split_by_scaffold.ipynb), [mask the
#   missing labels](../drills/640_mask_the_missing_labels.ipynb), [weight the
#   sampler](../drills/650_weight_the_sampler.ipynb), [score tasks over
#   ranks](../drills/660_score_tasks_over_ranks.ipynb), [check the
#   symmetry](../drills/670_check_the_symmetry.ipynb). As a bug: [the evaluation that jumps after
#   a restart](../drills/320_evaluation_jumps_after_a_restart.ipynb). As several: [a report about
#   a screen](../drills/695_debug_a_screening_report.ipynb).
# - The questions on training as such: [chapter 22](22_hard_questions.ipynb).
# - The cards: `ask(topic="molecules")`, `ask(topic="sequences")`, `ask(topic="structures")`,
#   `ask(topic="billion_molecules")` and `ask(topic="wet_lab")` in [03_deck](../03_deck.ipynb).
