# %% [markdown]
# # 31. Sequences and structures
#
# {{badge}}
#
# > "Proteins run from ten residues to thirty-five thousand, so the unit that I deal to the ranks
# > isn't a sequence. It's a bin of comparable work. Then I ask which tensor grows with the square
# > of the length, and which with the cube. And if the model has a symmetry, I test it, because a
# > faster matmul can break it and the loss won't say so."
#
# *Twenty-five minutes to read. The lengths are drawn from a model of a sequence database, the
# proteins are real ones, and what happens on ranks happens on real ranks.*

# %% collapsed=true
# {{setup torch numpy matplotlib cloudpickle platformdirs fsrs rehearsal}}

# %% collapsed=true
#@title Imports
import math
import time
import warnings

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from rehearsal import warm_up
from rehearsal.handbook.diagrams import diagram
from rehearsal.handbook.memory_limit import in_short, memory_limit
from rehearsal.handbook.on_ranks import how_it_ended, on_ranks, watch_ranks
from rehearsal.handbook.protein_pictures import lengths_picture, symmetry_picture
from rehearsal.handbook.sample_maps import count_epochs
from trainer_core.bio.bins import plan_batches, plan_packing
from trainer_core.bio.context_parallel import (
    gathered_attention,
    ring_attention,
    shard_bounds,
    shard_tokens,
)
from trainer_core.bio.equivariant import EquivariantNetwork, mean_by
from trainer_core.bio.fasta import SHIPPED_PROTEINS, FastaFile
from trainer_core.bio.generated_proteins import generated_lengths
from trainer_core.bio.geometry_precision import precision_rows, precision_table, two_molecules
from trainer_core.bio.graphs import Graph, collate_graphs
from trainer_core.bio.homology import HomologyOptions, cluster_proteins
from trainer_core.bio.homology_split import homology_split, nearest_identity
from trainer_core.bio.labels import binary_cross_entropy, label_counts, local_loss, loss_terms
from trainer_core.bio.labels import touch
from trainer_core.bio.loss_terms import mean_over_ranks, summed_token_loss
from trainer_core.bio.pair_memory import (
    GIB,
    MIB,
    PairTrunk,
    SavedTensors,
    TriangleMultiplication,
    attention_logits_bytes,
    crop_table,
)
from trainer_core.bio.protein_model import ProteinEncoder, positions_within
from trainer_core.bio.proteins import (
    EncodedProteins,
    MaskedProteins,
    collate_rows,
    decode_protein,
    mask_residues,
)
from trainer_core.bio.size_classes import round_up
from trainer_core.bio.symmetry import PointGraph, signed_volume, symmetry_report
from trainer_core.config import TrainConfig
from trainer_core.data import ResumeAwareDistributedSampler, SampleKey, StepSchedule
from trainer_core.settings import UserError

warm_up()  # starts the server that forks the ranks, while you read

# %% [markdown]
# ## Lengths
#
# A protein language model is a masked-token encoder, as BERT was. Two things differ from text.
# The first is the vocabulary:
# [ESM-2](https://huggingface.co/facebook/esm2_t33_650M_UR50D/blob/main/config.json) has 33
# tokens, 20 amino acids and some special ones.

# %%
WIDTH, LAYERS, HEADS = 1280, 33, 20  # ESM-2 with 650 M parameters
in_blocks = LAYERS * 12 * WIDTH**2  # per layer, 4 in attention and 8 fed forward
for name, vocabulary in (("text", 128_000), ("proteins", 33)):
    table, logits = vocabulary * WIDTH, 4 * 1024 * vocabulary
    print(f"{name:9} embeddings {table / 1e6:6.2f} M next to {in_blocks / 1e6:.0f} M in blocks,"
          f" logits of 1,024 tokens {logits / MIB:6.1f} MiB")

# %% [markdown]
# So nothing that people do about large vocabularies matters here. Memory is activations.
#
# The second is the spread of lengths. [UniRef90 and
# UniRef50](https://www.uniprot.org/help/uniref) start at 11 residues, and
# [titin](https://www.uniprot.org/uniprotkb/Q8WZ42/entry) has 34,350. Here's a model of that
# distribution, not a copy of a release.

# %%
lengths = generated_lengths(50_000, seed=0)
longest = np.sort(lengths)[::-1][: len(lengths) // 100].astype(float)
print(f"median {np.median(lengths):.0f}, mean {lengths.mean():.0f},"
      f" 99th percentile {np.percentile(lengths, 99):,.0f}, longest {lengths.max():,}")
everyone = lengths.astype(float)
of_longest = [(longest**power).sum() / (everyone**power).sum() for power in (1, 2)]
print("the longest 1% have {:.0%} of the residues and {:.0%} of the pairs".format(*of_longest))
lengths_picture(lengths, crop=1022)

# %% [markdown]
# One peak, skewed to the right, with a tail so heavy that a few giants have most of the pairs.
# You'll hear that it's *bimodal*, with a proposal of two buckets, short and long. It isn't, and
# the long bucket would still span a factor of 30.
#
# Everybody crops, because the tail costs more than it teaches. How you crop matters. The first
# 1,022 residues, always, means that the rest of a long protein is never trained on. A window
# that's drawn from (seed, epoch, sample) covers all of it over time, and a resume draws the same
# one. Contacts longer than the crop can't be learned either way, so evaluate at full length, by
# length.
#
# A length curriculum, short proteins first, doesn't help against running out of memory. It only
# moves the failure to a later day.

# %%
tokens = np.minimum(lengths, 1022) + 2  # cropped, with <cls> and <eos>
cut = np.maximum(lengths - 1022, 0)
print(f"cropping touches {(cut > 0).mean():.1%} of the sequences and"
      f" {cut.sum() / lengths.sum():.1%} of the residues;")
print(f"dropping them would lose {lengths[cut > 0].sum() / lengths.sum():.0%} of the residues")

# %% [markdown]
# ## Token budgets
#
# Now batches for 8 ranks. The table below has three numbers for each way to fill them: the
# padding, and how much more than the mean the slowest of the 8 ranks has to do, in tokens and in
# attention's pairs.

# %%
RANKS, BUDGET = 8, 16_384  # tokens with padding
rng = np.random.default_rng(0)


def batches_of_32(rows):
    """Rows in their order, 32 a batch, padded to its longest: the tokens and pairs of each."""
    longest = np.maximum.reduceat(rows, range(0, len(rows), 32))
    return 32 * longest, 32 * longest**2


ways = {"32 at random": batches_of_32(rng.permutation(tokens))}
for bounds in ((256, 1024), (128, 256, 512, 1024)):
    ways[f"{len(bounds)} buckets"] = batches_of_32(np.sort(round_up(tokens, bounds)))
plan, packing = plan_batches(tokens, BUDGET), plan_packing(tokens, BUDGET)
sequences = plan.per_bin(np.ones(len(plan.sizes)))
ways["token budget"] = plan.padded(), plan.padded() ** 2 // sequences
ways["packed rows"] = np.full(len(packing), BUDGET), packing.per_bin(packing.sizes[:, 0] ** 2)

# %%
def slowest_to_mean(work):
    """Over steps in which each of the ranks gets one batch, in a random order."""
    steps = rng.permutation(work)[: len(work) // RANKS * RANKS].reshape(-1, RANKS)
    return (steps.max(axis=1) / steps.mean(axis=1)).mean()


padding, skew = {}, {}
print(f"{'':14} padding   slowest rank / mean: tokens   pairs")
for name, (padded, pairs) in ways.items():
    padding[name] = 1 - tokens.sum() / padded.sum()
    skew[name] = slowest_to_mean(padded), slowest_to_mean(pairs)
    print(f"{name:14} {padding[name]:6.1%} {skew[name][0]:29.2f} {skew[name][1]:7.2f}")

# %% [markdown]
# Two thirds of a plain batch is padding. At least all ranks waste the same: nearly every batch
# has a long protein in it. Buckets reduce the padding and undo that. A batch from the bucket of
# 1,024 is eight times a batch from the bucket of 128, and the step waits for it. A budget of
# padded tokens fixes both: sort by length, and fill each batch until `rows * longest` reaches the
# budget.
#
# Then look at the last column. **Equal tokens aren't equal work.** 16 rows of 1,024 and 128 rows
# of 128 are both 16,384 tokens, and the first has eight times the pairs. Packing whole sequences
# into rows, each row with its share of long ones, evens that out too. It needs attention to stay
# inside each sequence and positions that start over; chapter 20 shows what happens if they don't.
#
# How much do the pairs matter? Per token, a layer takes 24 width^2 FLOPs in its matrices and
# 4 L width in attention, which is L / (6 width) on top.

# %%
for width in (320, WIDTH):
    print(f"width {width:4}: attention adds {1024 / (6 * width):4.0%} at 1,024 tokens,"
          f" {8192 / (6 * width):4.0%} at 8,192")

# %% [markdown]
# > "I log the sum of lengths and the sum of squared lengths per rank, next to the step time. If
# > the step follows the squares, I balance a cost with both terms."
#
# ### A bin is the sample

# %%
diagram("bins_are_samples")

# %% [markdown]
# Who builds the batches? If each rank fills its own from its own share, the counts differ, and
# the rank with more batches waits in a collective that the others never enter. So build bins for
# all ranks together, once, from lengths and a budget alone. The trainer orders, deals and counts
# *bins*, as it would count samples. All ranks have the same number of steps by construction, and
# the position stays one integer.

# %%
own = [len(plan_batches(tokens[rank::64], BUDGET)) for rank in range(64)]
print(f"64 ranks on their own: {min(own)} to {max(own)} batches in an epoch")

shipped = list(FastaFile(SHIPPED_PROTEINS))
proteins = EncodedProteins([p.id for p in shipped], [p.sequence for p in shipped])
source = MaskedProteins(proteins, budget=1100, seed=17)
schedule = StepSchedule(len(source), global_batch_size=4, max_epochs=2)
print(f"{len(proteins)} real proteins in {len(source)} bins: {schedule.steps_per_epoch} steps")


def dealt(ranks, positions):
    """The proteins that each rank trains on in the steps at these positions."""
    for rank in range(ranks):
        cfg = TrainConfig(seed=17, micro_batch_size=1)
        sampler = ResumeAwareDistributedSampler(schedule, cfg, rank, ranks)
        for position in positions:
            keys = [key for batch in sampler.micro_batches(position) for key in batch]
            items = [source.plan.items(k.sample, seed=17, epoch=k.epoch).tolist() for k in keys]
            record = {"rank": rank, "epoch": position // schedule.steps_per_epoch}
            yield record | {"step": position + 1, "samples": sum(items, [])}


# %%
resumed = [*dealt(2, range(3)), *dealt(3, range(3, schedule.total_steps))]
for count in count_epochs(resumed, len(proteins)):
    print(count)


held = [plan.items(500, seed=17, epoch=epoch) for epoch in (0, 1)]
again, same = len(np.intersect1d(*held)), (tokens[held[0]] == tokens[held[1]]).all()
print(f"bin 500 of the large plan: {len(held[0])} sequences, {again} of them again in the next"
      f" epoch; the same lengths: {same}")

# %% [markdown]
# The run was killed after step 3 on two ranks and resumed on three: each protein once per epoch.
# Which proteins *of a length* share a bin may change with the epoch. What a bin costs doesn't.
#
# A sequence longer than the budget fits in no bin. The wrong thing to do is to drop it without a
# word, because what you'd drop is a biased part of biology.

# %%
titin_sized = EncodedProteins(["as_long_as_titin"], ["M" * 34_350])
try:
    MaskedProteins(titin_sized, BUDGET, seed=17)
except UserError as error:
    refused = str(error)
    print(refused)
cropped = MaskedProteins(titin_sized, BUDGET, seed=17, crop=1022)
print("with crop=1022:", cropped.plan.padded().tolist(), "tokens")

# %% [markdown]
# ## Masked residues
#
# 15% of the residues are hidden, and which ones should change with each visit. The usual place to
# draw them is the collate function, with `torch.rand`. That runs in a loader worker, so the masks
# depend on how many workers there are.

# %%
def masks_in_collate(workers):
    torch.manual_seed(17)
    loader = DataLoader(
        range(8), batch_size=2, num_workers=workers, multiprocessing_context="fork",
        collate_fn=lambda items: torch.rand(len(items), 30) < 0.15,
    )
    return torch.cat(list(loader))


same_masks = torch.equal(masks_in_collate(1), masks_in_collate(2))
print("collate draws the same masks with 1 worker and with 2:", same_masks)
item = proteins.lengths.tolist().index(30)
for epoch in (0, 1, 1):
    seen = mask_residues(proteins[item], seed=17, epoch=epoch, item=item)
    print(f"{shipped[item].id}, epoch {epoch}: {decode_protein(seen.tokens)}")

# %% [markdown]
# A mask from (seed, epoch, item) is the same on any rank, in any worker, after any resume. A bad
# step can be replayed. Without the epoch in it, each protein would keep one mask forever.
#
# And over what is the loss averaged? Over the masked positions of the *step*. Ranks have
# different numbers of them, and DDP averages gradients, not sums. Here a full bin is on one rank
# and the epoch's remainder on the other. The reference is one process that has both.

# %%
by_terms = np.argsort(source.loss_terms)
full, remainder = by_terms[-1].item(), by_terms[0].item()


def encoder_gradients(shares):
    """One step, weighed in two ways; the gradient after DDP's sync for each."""
    mine, found = shares[dist.get_rank()], {}
    for way in ("global count", "mean of means"):
        torch.manual_seed(0)
        model = DistributedDataParallel(ProteinEncoder(16, 1, 2))
        batch = source.batch([SampleKey(0, bin_id) for bin_id in mine])
        logits = model(batch.tokens, batch.segments, batch.positions)
        if way == "global count":
            local_sum = summed_token_loss(logits, batch.targets)
            loss = mean_over_ranks(local_sum, source.num_terms(mine))
        else:
            loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        loss.backward()
        gradient = nn.utils.parameters_to_vector(p.grad for p in model.parameters())
        found[way] = {"gradient": gradient.tolist(), "loss": loss.item()}
    return found


def off_by(found, wanted):
    found, wanted = torch.tensor(found), torch.tensor(wanted)
    return ((found - wanted).norm() / wanted.norm()).item()


# %%
print("masked residues:", *(source.num_terms([b]) for b in (full, remainder)))
alone = on_ranks(encoder_gradients, 1, [[full, remainder]])[0]["global count"]["gradient"]
off, empty_loss = {}, None
for shares in ([[full], [remainder]], [[full], [remainder], []]):
    ranks = on_ranks(encoder_gradients, len(shares), shares)
    for way, found in ranks[0].items():
        off[len(shares), way] = off_by(found["gradient"], alone)
        print(f"{len(shares)} ranks, {way:13}: off by {off[len(shares), way]:.0e}")
empty_loss = ranks[2]["mean of means"]["loss"]
print("the loss on the rank without a bin, by its own mean:", empty_loss)

# %% [markdown]
# The mean of means gives a residue on the rank with few of them a larger weight. A rank with none
# logs the mean of nothing, and its zero gradient is still a third of the average. With token
# budgets the full bins have nearly equal counts, so the error hides in the last step of each
# epoch, where nobody looks.
#
# The global count doesn't need a collective here: 15% of the residues, rounded, is a function of
# the lengths, and every rank can compute it. `mean_over_ranks` does an all-reduce for everyone
# who can't.

# %% [markdown]
# ## One long protein stops the job
#
# Now somebody removes the crop, and one protein too many lands on rank 1. "It affects one rank
# only, the others have memory." That's true of the memory. But the others will wait for rank 1 in
# the next collective. Chapter 14 shows the simple case: rank 1 dies, and so does the job. Here's
# what a colleague tries next: catch the error, skip the batch, go on.

# %%
LENGTHS = {0: [120, 130, 140], 1: [125, 5000, 135]}


def skips_what_does_not_fit():
    model = DistributedDataParallel(ProteinEncoder(32, 1, 2))
    with memory_limit(mib=60):
        for step, length in enumerate(LENGTHS[dist.get_rank()], start=1):
            try:
                loss = model(torch.full((1, length), 5)).mean()
            except RuntimeError as error:  # on a GPU, torch.OutOfMemoryError is one
                print(f"step {step}: skipped.", in_short(str(error)))
                continue
            began = time.monotonic()
            try:
                loss.backward()
            except RuntimeError as error:  # gloo notices that a process has ended
                waited = time.monotonic() - began
                return print(f"step {step}: waited {waited:.0f} s.", in_short(str(error)))
            steps = torch.tensor([step, step])
            steps[1 - dist.get_rank()] = 0
            dist.all_reduce(steps)  # as a log does with its loss
            pair = f"rank 0's step {steps[0]}, rank 1's step {steps[1]}"
            print(f"step {step}: averaged over {pair}")
    time.sleep(3)  # alive, and busy with something else: a checkpoint, an evaluation


skipping = watch_ranks(skips_what_does_not_fit, 2)
for report in skipping:
    print(f"rank {report.rank}:", *report.output.splitlines(), sep="\n  ")

# %% [markdown]
# Two things happened, and the second is worse than a crash. Collectives pair up by order, not by
# step. Rank 0's step 2 was averaged with rank 1's step 3, without a word, and so on from there.
# At the end, rank 0 waits for a partner that has moved on. Here gloo told it when rank 1's
# process ended. NCCL doesn't: its watchdog fires after 10 minutes by default, on the rank that
# did nothing wrong.
#
# > "The rank that runs out has to take the others with it, or nobody may notice. So either all
# > skip the step, decided by an all-reduce before backward, or the job stops. And a resume
# > replays the same order, so it fails at the same step again. I run the worst batch before the
# > run."
#
# With bins you know the worst batch: it's the one with the most padded tokens. Each rank runs it
# once, and they all agree on how it went.

# %%
def rehearse(longest_row):
    """Run the largest batch before step 1; all ranks continue, or all raise."""
    model, said = DistributedDataParallel(ProteinEncoder(32, 1, 2)), ""
    with memory_limit(mib=60 if dist.get_rank() else 900):  # rank 1 has a smaller GPU
        try:
            model.module(torch.full((1, longest_row), 5)).mean().backward()  # no sync
        except RuntimeError as error:
            said = in_short(str(error))
        failed = torch.tensor(int(bool(said)))
        dist.all_reduce(failed)
        if failed:
            raise RuntimeError(f"{longest_row} tokens don't fit on {failed} of 2 ranks. {said}")


for longest_row in (1024, 5000):
    rehearsal = watch_ranks(rehearse, 2, longest_row)
    print(f"{longest_row} tokens:", *map(how_it_ended, rehearsal), sep="\n  ")

# %% [markdown]
# ## What is quadratic, and what is cubic
#
# A slide says: "pair representation at length 1,024, d_model 1280, fp32: 6.7 GB per protein."
# Check it aloud, in two steps.

# %%
slide = 1024**2 * 1280 * 4
print(f"its own formula: {slide:,} bytes = {slide / GIB:.1f} GiB = {slide / 1e9:.1f} GB")
trunk = PairTrunk()  # AlphaFold 2's widths
logits = attention_logits_bytes(1024, HEADS)
print(f"a pair tensor:   {trunk.copy_bytes(1024) / MIB:.0f} MiB: pairs have a width of 128")
print(f"ESM-2's logits:  {logits / MIB:.0f} MiB per layer, one per head")
print("\nAlphaFold 2's trunk of 48 blocks, in MiB:")
print(crop_table(trunk))

# %% [markdown]
# The arithmetic was wrong, and so was the width. `d_model` is the width of one residue's state. A
# pair of residues has a width of its own, 128 in [AlphaFold
# 2](https://www.nature.com/articles/s41586-021-03819-2) and in ESMFold's trunk. ESM-2 has no pair
# tensor at all. What's quadratic in it is attention's logits.
#
# What makes the trunk expensive isn't one copy. It's how many of them autograd keeps: twelve per
# triangle update, in each of 48 blocks. And triangle attention is cubic: each of the L^2 pairs
# attends to L others. Half the crop is an eighth of that column, which is why structure models
# train on crops of 256 or 384. Is the formula right? Count what a real update keeps:

# %%
torch.manual_seed(0)
update, pairs = TriangleMultiplication(128, 128), torch.randn(48, 48, 128, requires_grad=True)
with SavedTensors(update) as kept:
    update(pairs)
predicted = trunk.triangle_saved_bytes(48)
print(f"48 residues: predicted {predicted:,} bytes, kept {kept.num_bytes:,},"
      f" {kept.num_bytes / trunk.copy_bytes(48):.2f} pair tensors")


def explicit(q, k, v):
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1) @ v


heads = [torch.randn(1, HEADS, 512, 64, requires_grad=True) for _ in range(3)]
beyond_inputs = {}
for attention in (explicit, F.scaled_dot_product_attention):
    with SavedTensors() as kept:
        attention(*heads)
    name = attention.__name__
    beyond_inputs[name] = kept.num_bytes - sum(part.nbytes for part in heads)
    print(f"{name:29} keeps {beyond_inputs[name] / MIB:4.1f} MiB beyond its inputs,"
          f" with logits of {attention_logits_bytes(512, HEADS) / MIB:.0f} MiB")

# %% [markdown]
# A fused kernel never stores the logits, so ESM-2's memory is linear in length. Its FLOPs aren't.
#
# ### Activation checkpointing
#
# Next lever: keep each block's input, run the block again in backward. Pass `use_reentrant=False`
# explicitly; torch warns otherwise, and means to make that an error. Then check three things:
# what's kept, that gradients with dropout are identical, and how often blocks run.

# %%
def with_checkpointing(is_on):
    """What forward keeps, the gradient, and how often a block ran."""
    torch.manual_seed(0)
    model = ProteinEncoder(64, 6, 4, dropout=0.1, checkpoint_activations=is_on)
    runs = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda *_: runs.append(1))
    rows = torch.randint(4, 24, (4, 256))
    with SavedTensors(model) as kept:
        logits = model(rows)
    logits.square().mean().backward()
    grad = nn.utils.parameters_to_vector(p.grad for p in model.parameters())
    return kept.num_bytes / MIB, grad, len(runs)


(plain_mib, plain_grad, plain_runs), (mib, grad, runs) = map(with_checkpointing, (False, True))
print(f"kept: {plain_mib:.1f} MiB without, {mib:.1f} MiB with; a block's input is 0.25 MiB")
print(f"blocks run {plain_runs} times and {runs} times; gradients identical:",
      torch.equal(plain_grad, grad))

# %% [markdown]
# Twice the forward passes is about a third more compute, since backward costs two forwards. The
# old variant, `use_reentrant=True`, has a trap that fine-tuning walks into: if no *input*
# requires a gradient, because the embedding is frozen, the block gets none at all.

# %%
block, frozen = nn.Linear(4, 4), torch.randn(2, 4)  # what a frozen embedding returns
trained = {}
for reentrant in (False, True):
    block.zero_grad()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        out = checkpoint(block, frozen, use_reentrant=reentrant)
    if out.requires_grad:
        out.sum().backward()
    trained[reentrant] = block.weight.grad is not None
    print(f"use_reentrant={reentrant}: the block gets gradients: {trained[reentrant]}",
          *(in_short(str(warning.message)) for warning in said))

# %% [markdown]
# ## One protein on two ranks
#
# One protein of 8,000 residues doesn't fit, with a batch of one and checkpointing. FSDP doesn't
# help: it shards parameters and optimizer state, and one sequence's activations stay where they
# are. Ask first whether a crop would do, because a crop needs no communication. Then split the
# positions.
#
# | scheme | splits | what travels | limit |
# |---|---|---|---|
# | Megatron's sequence parallel | norms and dropout, next to tensor parallel | activations, at each layer's borders | attention still sees whole rows |
# | Ulysses | tokens, and heads inside attention | all-to-all, twice per attention | no more ranks than heads |
# | context parallel, ring | tokens, everywhere | keys and values, round the ring | hide each hop behind a block's compute |
# | axial, for pairs | rows of the pair tensor | all-to-all, to transpose it | each triangle update needs it |
#
# Here's the third, with a real protein on two real ranks, and one process as the judge.

# %%
longest = int(proteins.lengths.argmax())
visit = mask_residues(proteins[longest], seed=17, epoch=0, item=longest)
row = collate_rows([[visit]])  # one row: the whole protein
num_terms = int((row.targets >= 0).sum())


def encoder():
    torch.manual_seed(0)
    return ProteinEncoder(32, 2, 2)


def global_positions(row):
    return shard_tokens(row.positions)  # cut what was counted on the whole row


def local_positions(row):
    return positions_within(shard_tokens(row.segments))  # counted again, from 0, on each rank


VERSIONS = {
    "ring": (ring_attention, global_positions),
    "gathered": (gathered_attention, global_positions),
    "ring, local positions": (ring_attention, local_positions),
}


def shard_steps():
    """For each version: what this rank's forward keeps, and the gradient after DDP's sync."""
    found = {}
    for name, (attention, positions) in VERSIONS.items():
        model = DistributedDataParallel(encoder())
        with SavedTensors(model) as kept:
            logits = model(shard_tokens(row.tokens), row.segments, positions(row), attention)
        local_sum = summed_token_loss(logits, shard_tokens(row.targets))
        (local_sum * dist.get_world_size() / num_terms).backward()
        grad = nn.utils.parameters_to_vector(p.grad for p in model.parameters())
        found[name] = {"grad": grad.tolist(), "mib": kept.num_bytes / MIB}
    return found


# %%
judge = encoder()
with SavedTensors(judge) as kept:
    logits = judge(row.tokens, row.segments, row.positions)
(summed_token_loss(logits, row.targets) / num_terms).backward()
wanted = nn.utils.parameters_to_vector(p.grad for p in judge.parameters()).tolist()
one_rank_mib = kept.num_bytes / MIB
sizes = [last - first for first, last in shard_bounds(row.tokens.shape[1], 2)]
print(f"{shipped[longest].id}: {row.tokens.shape[1]} tokens, {sizes} on two ranks")
print(f"{'one rank':22} keeps {one_rank_mib:4.1f} MiB")
shards = on_ranks(shard_steps, 2)[0]
for name, found in shards.items():
    found["off by"] = off_by(found.pop("grad"), wanted)
    print(f"{name:22} keeps {found['mib']:4.1f} MiB a rank, off by {found['off by']:.0e}")

# %% [markdown]
# Three details break it without an error. Positions must be global, or rotary angles start over
# in the middle of the protein. The loss is divided by the masked count over *all* slices. And
# each rank's gradient is a part of the sum, so the factor of W comes back, because DDP averages.

# %% [markdown]
# ## Homology
#
# What scaffolds are to molecules, families are to proteins: a random split puts relatives on both
# sides. Cluster first, then deal whole clusters. 30% identity is usual, and needs an alignment
# (MMseqs2). Shared words of five residues see down to about half:

# %%
sequences_of = [protein.sequence for protein in shipped]
options = HomologyOptions(identity=0.5)
singles = np.arange(len(shipped))  # everybody a cluster of one: a random split
clusters = cluster_proteins(sequences_of, options)
close = {}
for name, groups in (("random", singles), ("by cluster", clusters)):
    split = homology_split(sequences_of, groups, (0.7, 0.1, 0.2), seed=4)
    close[name] = nearest_identity(sequences_of, split.parts, options)
    report = close[name]
    print(f"{name}: {report.above} of {len(report.rows)} test proteins have a relative in"
          f" training, the closest at {report.identity.max():.0%} identity")

# %% [markdown]
# A pretrained encoder adds a leak that no split of yours closes: it saw the test proteins, or
# their relatives, in pretraining. For new proteins, the clean test is what was published after
# its cutoff.

# %% [markdown]
# ## Many tasks, one encoder
#
# A shared encoder with 40 heads, one per assay, and most labels missing. Two traps. The first is
# in a line that you'll find in most write-ups:

# %%
x, y = torch.zeros(2, requires_grad=True), torch.tensor([1.0, torch.nan])
losses = F.binary_cross_entropy_with_logits(x, y, reduction="none")
loss = torch.where(y.isnan(), 0, losses).sum()
loss.backward()
print(f"where(mask, loss, 0): loss {loss.item():.2f}, gradient {x.grad.tolist()}")
x.grad = None
loss_terms(x[:, None], y[:, None], binary_cross_entropy).sums.sum().backward()
print(f"labels filled before the loss: gradient {x.grad.tolist()}")

# %% [markdown]
# The loss is fine and the gradient isn't: backward multiplies the zero that `where` sends back by
# the loss's derivative, which is NaN there. So the missing labels have to leave *before* the
# loss.
#
# The second: in some step, rank 1 has no label for head 2. If it then skips the head, DDP waits
# for a gradient that never comes.

# %%
class Heads(nn.Module):  # three tasks, one output each
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 16)
        self.heads = nn.ModuleList(nn.Linear(16, 1) for _ in range(3))

    def forward(self, inputs, skipped=(), touches=False):
        hidden = self.encoder(inputs).relu()
        nothing = [torch.full((len(inputs), 1), 0.0)] * 3
        columns = [nothing[t] if t in skipped else h(hidden) for t, h in enumerate(self.heads)]
        outputs = torch.cat(columns, dim=1)
        return outputs + sum(touch(self.heads[t]) for t in skipped) if touches else outputs


# %%
def head_gradients(ways, rows_of_ranks):
    """One step on 12 rows for each way; the last four have no label for head 2."""
    found = {}
    for way in ways:
        torch.manual_seed(0)
        model, inputs = DistributedDataParallel(Heads()), torch.randn(12, 8)
        labels = (torch.rand(12, 3) < 0.5).float()
        labels[8:, 2] = torch.nan
        mine = slice(*rows_of_ranks[dist.get_rank()])
        skips = [2] if way != "all heads" and dist.get_rank() == 1 else []
        outputs = model(inputs[mine], skips, way == "touched")
        terms = loss_terms(outputs, labels[mine], binary_cross_entropy)
        size = dist.get_world_size()
        local_loss(terms, label_counts(labels), "labels", world_size=size).backward()
        grads = (p.grad for p in model.parameters() if p.grad is not None)
        found[way] = nn.utils.parameters_to_vector(grads).tolist()
    return found


# %%
on_two = (0, 8), (8, 12)
[one_rank] = on_ranks(head_gradients, 1, ["all heads"], [(0, 12)])
heads_off = {
    way: off_by(found, one_rank["all heads"])
    for way, found in on_ranks(head_gradients, 2, ["all heads", "touched"], on_two)[0].items()
}
print(*(f"{way}: off by {off:.0e}" for way, off in heads_off.items()), sep="\n")
skipped = watch_ranks(head_gradients, 2, ["skipped"], on_two)
print("skipped:", *map(how_it_ended, skipped), sep="\n  ")

# %% [markdown]
# Rank 1's backward returned without any sync: it would have stepped on gradients of its own. Rank
# 0 waited in backward until rank 1's process was gone. So run every head on every row and mask
# the loss: a head without labels gets a gradient of zero, and everybody takes part. `touch` does
# the same for a head that's too expensive to run. `find_unused_parameters=True` works too, for a
# walk over the graph in every step. A zero gradient isn't nothing, by the way: AdamW still decays
# that head and applies its momentum.
#
# If one assay has 90% of the labels, it owns the gradient. Train each small task alone for a
# baseline, then take a mean per task, or sample tasks. Gradient surgery comes last.

# %% [markdown]
# ## Batches of graphs
#
# Molecules as graphs are batched as one large graph that falls into parts: nodes in a row, and
# each graph's edges shifted by the nodes before it. A wrong shift raises nothing, because the
# indices stay valid. So the test is that a batch gives what its graphs give alone.

# %% collapsed=true
#@title Rings of atoms, and a layer that passes messages along their edges
def ring(nodes):
    here = torch.arange(nodes)
    edges = torch.stack([here, (here + 1) % nodes])
    return Graph(torch.randn(nodes, 3), torch.cat([edges, edges.flip(0)], dim=1))


def pooled(x, edges, batch, num_graphs):
    """One round of messages and a readout."""
    received = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
    return mean_by((x + received).tanh(), batch, num_graphs)


# %%
rings = [ring(4), ring(6), ring(3)]
single = torch.cat([pooled(*g[:2], torch.zeros(len(g.x)).long(), 1) for g in rings])
joined = collate_graphs(rings, like=rings[0])
unshifted = torch.cat([graph.edge_index for graph in rings], dim=1)
apart = {}
for name, edges in (("shifted", joined.edge_index), ("not shifted", unshifted)):
    together = pooled(joined.x, edges, joined.batch, len(joined))
    apart[name] = (together - single).abs().max().item()
    print(f"edges {name}: differs from the single graphs by {apart[name]:.0e}")

# %% [markdown]
# A graph costs its nodes plus its edges. So a bin has a budget for each, and the rest is as
# above: bins for all ranks together, terms counted over all ranks. `Join` isn't the way out of
# uneven step counts: it shadows DDP's collectives, and not yours.

# %% [markdown]
# ## A symmetry is tested, not assumed
#
# A 3D model should give a rotated molecule the same energy, and forces that are rotated with it:
# `f(Rx) = R f(x)`. It holds by design, so it has to hold for random weights, to rounding. Test
# each motion alone, because the one that fails names the bug. The network below is an
# [EGNN](https://arxiv.org/abs/2102.09844), and the test includes the preprocessing.

# %%
torch.manual_seed(0)
molecules = two_molecules(torch.device("cpu"))
molecules = PointGraph(*(t.double() if t.is_floating_point() else t for t in molecules))
network = EquivariantNetwork(4, 32, 3, num_outputs=1).double()


def displacements(graph):
    return network(*graph, num_graphs=2).displacements


def with_positions(change):
    return lambda graph: displacements(graph._replace(positions=change(graph.positions)))


variants = {
    "as designed": displacements,
    "each axis standardized": with_positions(lambda x: (x - x.mean(0)) / x.std(0)),
    "centered, one scale": with_positions(lambda x: (x - x.mean(0)) / 3.7),
    "a layer norm on vectors": lambda graph: F.layer_norm(displacements(graph), (3,)),
    "a bias on vectors": lambda graph: displacements(graph) + 0.1,
}
reports = {name: symmetry_report(f, molecules, "node vectors") for name, f in variants.items()}
print(f"{'':24}" + "".join(f"{motion:>13}" for motion in reports["as designed"]))
for name, report in reports.items():
    print(f"{name:24}" + "".join(f"{error:13.0e}" for error in report.values()))

# %% [markdown]
# Per-axis scaling is the classic: it deforms a molecule by how it happens to lie. Center each
# molecule and divide by one number for the whole dataset. On norms, the rule that you'll read,
# "layer norm is fine, batch norm breaks equivariance", is too coarse. On *invariant scalars*,
# either is safe. On vectors, anything per component breaks the symmetry, layer norm included. The
# argument against batch norm under DDP is a different one: statistics of few graphs of varying
# size.
#
# Should you augment with random rotations, to be safe? No. For an equivariant network it changes
# neither the loss nor the gradients. What it does do is hide a broken one.

# %% [markdown]
# ### Mirror images
#
# E(n) includes reflections. Take CHFClBr, four different neighbors around a carbon, and its
# mirror image. Biology can tell such a pair apart.

# %% collapsed=true
#@title CHFClBr, with typical bond lengths, and its mirror image
corners = torch.tensor([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) / math.sqrt(3)
corners = corners.double()
bonds = torch.tensor([1.09, 1.39, 1.76, 1.94]).double()  # C-H, C-F, C-Cl, C-Br, in angstroms
atoms = torch.cat([torch.zeros(1, 3).double(), corners * bonds[:, None]])
edges = torch.tensor([[i, j] for i in range(5) for j in range(5) if i != j]).T
halomethane = PointGraph(torch.eye(5).double(), atoms, edges, torch.zeros(5).long())
mirrored = halomethane._replace(positions=atoms * torch.tensor([-1.0, 1.0, 1.0]).double())

# %%
torch.manual_seed(0)
plain, chiral = (EquivariantNetwork(width, 32, 2, num_outputs=1).double() for width in (5, 6))


def without_handedness(graph):
    return plain(*graph, num_graphs=1).graphs


def with_handedness(graph):
    """The sign of the volume that the four neighbors span, as a feature of each atom."""
    order = graph.features.argmax(dim=1).argsort()  # carbon first, then by element
    sign = signed_volume(graph.positions[order][1:]).sign().expand(len(graph.features), 1)
    features = torch.cat([graph.features, sign], dim=1)
    return chiral(*graph._replace(features=features), num_graphs=1).graphs


# %%
predictions = {}
for f in (without_handedness, with_handedness):
    predictions[f.__name__] = [f(graph).item() for graph in (halomethane, mirrored)]
    errors = symmetry_report(f, halomethane, "graph scalars")
    print(f"{f.__name__:19} original {predictions[f.__name__][0]:+.4f}, mirror image"
          f" {predictions[f.__name__][1]:+.4f}; off by {errors['rotation']:.0e} when rotated")

# %% [markdown]
# The first can't tell a drug from its enantiomer, however long you train it. The second has a
# feature that flips sign under reflection, and is left with SE(3): rotations and translations. A
# test for that one must show that the output *does* change in a mirror.

# %% [markdown]
# ## What precision does to a symmetry
#
# Somebody turns on TF32 and autocast everywhere. Training gets faster, and the loss looks the
# same. Below, the same weights at eight settings. "matmul" gets its distances from `|x|^2 + |y|^2
# - 2 xy`, as fast code for all pairs does. On a CPU, TF32 is emulated by rounding the factors of
# each matmul; the tensor cores' order of summation isn't.

# %%
rows = precision_rows()
print(precision_table(rows))
by_setting = {f"{row.precision}, {row.distances}": row.errors["rotation"] for row in rows}
symmetry_picture(by_setting, tolerance=1e-4)

# %%
for x in (1.0, 10.0, 100.0):
    here = torch.tensor(x, dtype=torch.bfloat16)
    gap = torch.nextafter(here, torch.tensor(1e9, dtype=torch.bfloat16)) - here
    print(f"near {x:5g} angstroms, bf16 numbers are {gap.item():g} apart")

# %% [markdown]
# What may be rounded are features, messages and weights: a rotated molecule has the same
# distances, so it gets the same rounded messages. Coordinates, differences, distances and norms
# stay in fp32, with autocast off around them. The error of this test is cheap to log during
# training. It's the only alarm, since the loss doesn't show it.
#
# "We use bf16 because our sequences are long" isn't a reason, by the way. bf16 buys fp32's
# exponent range, so no overflow and no loss scaling. fp16 has the same two bytes. With 8
# significant bits, softmax, norms and the loss's sums stay in fp32 too.

# %% [markdown]
# ## The encoder decides the parallelism
#
# | encoder | what grows | what you reach for, in this order |
# |---|---|---|
# | sequence (ESM-2) | tokens; attention's FLOPs, quadratic | token budget or packing, fused attention, checkpointing, then context parallel |
# | molecular graph (MPNN, SchNet) | nodes and edges, small and irregular | DDP; the work is in batching and input |
# | 3D, equivariant | edges within a cutoff; precision | DDP, fp32 geometry, neighbor lists offline if atoms don't move |
# | pairs (AlphaFold 2) | L^2 memory, L^3 in triangle attention | crops, checkpointing every block, chunked or fused triangles, axial parallel |
#
# Order, position, checkpoint and audit stay the same behind all four. A neighbor list computed
# once belongs in the manifest with its cutoff and code version. With noise on the coordinates it
# goes stale, and needs a margin.

# %% [markdown]
# ## Say it in 60 seconds
#
# > "Protein lengths are heavy-tailed, so a plain batch is mostly padding and one rank gets the
# > long one. I build bins of comparable work from the lengths alone, and let the trainer order
# > bins. So all ranks have equal steps, and a resume is still one integer. The loss is the sum
# > over masked residues, divided by their number on all ranks.
# >
# > Then memory. A fused kernel makes the encoder linear in length. A pair tensor is quadratic,
# > 512 MiB per copy at a thousand residues, and triangle attention is cubic. So I crop,
# > checkpoint, and split positions over ranks last. I run the largest batch before the run.
# >
# > And geometry. I test rotations, translations and permutations on random weights, through the
# > preprocessing. Coordinates stay in fp32, and the equivariance error has an alert."

# %% [markdown]
# ## Three questions
#
# **"Every rank gets 16,384 tokens per step, and one still takes twice as long. The hardware is
# fine."**
#
# - *Weak:* "Then it's the data loader, or noise. I'd profile that rank."
# - *Strong:* "Attention costs the square of each length. A rank with 16 proteins of 1,024 has
#   eight times the pairs of one with 128 of 128. How much that matters depends on the width, so
#   I'd compute L over 6 times the width first. Then I pack rows so that each has its share of
#   long ones, or balance a cost with a linear and a quadratic term."
# - *What would prove me wrong:* step time per rank against the sum of squared lengths. If the
#   slow rank is the same one every time, it's the hardware after all.
#
# **"One protein of 8,000 residues doesn't fit. You have 64 GPUs. Which parallelism?"**
#
# - *Weak:* "FSDP. It shards the memory."
# - *Strong:* "FSDP shards parameters and optimizer state, and one protein's activations stay on
#   one GPU. First I'd ask if a random crop would do. Then a fused kernel and checkpointing. If it
#   still doesn't fit, context parallelism: each rank has a slice of the positions, keys and
#   values go round. I'd show that two ranks give the gradients of one, and I'd check the
#   positions first."
# - *What would prove me wrong:* a memory snapshot. If parameters and optimizer state dominate,
#   it's FSDP.
#
# **"Your model is equivariant by design. Why spend time on testing that?"**
#
# - *Weak:* "I wouldn't. It's in the math, and we augment with rotations anyway."
# - *Strong:* "The design covers the layers. It doesn't cover a scaler per axis in preprocessing,
#   a bias on a vector channel, or a matmul in TF32 under the distances. None of them shows in the
#   loss, and augmentation hides them. The test is ten lines on random weights, and it runs again
#   when somebody changes the precision."
# - *What would prove me wrong:* the relative error under a random rotation. It should be around
#   1e-15 in fp64 and 1e-7 in fp32, and I'd measure it in the precision that production uses.

# %% [markdown]
# ## Practice it
#
# - Drills: [bucket_for_equal_steps](../drills/620_bucket_for_equal_steps.ipynb),
#   [pack_to_a_budget](../drills/680_pack_to_a_budget.ipynb),
#   [batch_graphs](../drills/630_batch_graphs.ipynb). Underneath them:
#   [lift_to_distributed](../drills/020_lift_to_distributed.ipynb),
#   [epoch_ends_in_a_timeout](../drills/310_epoch_ends_in_a_timeout.ipynb),
#   [debug_a_transformer](../drills/520_debug_a_transformer.ipynb),
#   [debug_a_protein_trainer](../drills/690_debug_a_protein_trainer.ipynb). Type the test itself
#   in [check_the_symmetry](../drills/670_check_the_symmetry.ipynb).
# - The code: `trainer_core/bio`, from `bins.py` and `proteins.py` to `symmetry.py`.
# - Before this: chapters [12](12_data_correctness.ipynb), [14](14_performance.ipynb) and
#   [17](17_parallelism.ipynb).
# - The cards: `ask(topic="sequences")` and `ask(topic="structures")` in
#   [03_deck](../03_deck.ipynb).
