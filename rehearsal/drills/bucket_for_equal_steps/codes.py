"""What the findings are called, which rules they state, and where they tell you to look."""

from __future__ import annotations

from rehearsal.grading.verdict import FindingTable

ORDER = "an epoch's steps depend only on the lengths, the bounds, the batch, seed and epoch"

TABLE = FindingTable(
    {
        "ranks-make-different-steps": (
            "the ranks have different numbers of steps",
            "all ranks make the same number of steps; otherwise one waits for a gradient that "
            "never comes",
            "at what is cut first: the steps or the ranks' shares",
        ),
        "wrong-step-size": (
            "a step has too many or too few sequences",
            "a bucket's steps have global_batch_size sequences over all ranks, except for one "
            "with the rest",
            "at where a bucket is cut, and at what the batch size counts",
        ),
        "never-trained": (
            "a sequence is in no step",
            "an epoch trains every sequence once",
            "at what is left over, and at the longest and the shortest",
        ),
        "trained-twice": (
            "a sequence is trained twice in an epoch",
            "an epoch trains every sequence once, over all ranks",
            "at which ranks get a sequence, and at what fills up a step",
        ),
        "buckets-mixed": (
            "a step has sequences of two buckets",
            "all ranks work on the same bucket in a step",
            "at which bucket a length on a bound is in, and at how the ranks find a step",
        ),
        "uneven-share": (
            "some ranks get more of a step than others",
            "the ranks' lists in a step differ in size by at most one",
            "at how a step is dealt when the ranks don't divide it",
        ),
        "long-ones-together": (
            "a rank gets several of a step's longest sequences",
            "the world_size longest sequences of a step are on different ranks",
            "at the order in which a step is dealt",
        ),
        "steps-depend-on-ranks": (
            "another number of ranks trains other steps",
            ORDER + ", whatever the number of ranks",
            "at what the rank and the world size go into",
        ),
        "order-not-reproducible": (
            "equal arguments give different steps",
            ORDER + ", in any process",
            "at the generator that shuffles, and at what it's seeded with",
        ),
        "moves-global-random-state": (
            "batches draws from, or seeds, a global generator",
            "a generator that others use too isn't yours to move",
            "at the generator that shuffles",
        ),
        "same-order": (
            "two epochs have the same steps in the same order",
            "each epoch has its own order",
            "at what the epoch changes",
        ),
        "orders-alias": (
            "two pairs of seed and epoch share an order",
            "no two pairs of seed and epoch share an order",
            "at how the seed and the epoch become one number",
        ),
        "steps-not-shuffled": (
            "the buckets come one after the other, or in a fixed order",
            "the order of the steps is shuffled across buckets",
            "at what happens to the steps once all buckets are cut",
        ),
        "same-company": (
            "the same sequences share a step in every epoch",
            "who shares a step with whom is shuffled within the bucket",
            "at the order in which a bucket is cut into steps",
        ),
        "too-long-accepted": (
            "a sequence above the last bound is accepted, or refused without its name",
            "a sequence above the last bound is refused by a ValueError with its index",
            "at what happens to a length that no bucket has room for",
        ),
        "wrong-width": (
            "a batch isn't as wide as its longest sequence",
            "a batch is padded to the longest sequence in it",
            "at what decides the width, also of an empty list",
        ),
        "wrong-tokens": (
            "the tokens aren't the sequences followed by the padding",
            "a row has a sequence's tokens, then pad_id",
            "at what is copied where",
        ),
        "wrong-mask": (
            "the mask isn't True exactly at real tokens",
            "the mask says where a sequence's own tokens are",
            "at what the mask is computed from, and at its sense",
        ),
        "wrong-dtype": (
            "tokens or mask have another dtype",
            "an embedding looks up int64, and a mask is bool",
            "at where the tensors are made",
        ),
    }
)
