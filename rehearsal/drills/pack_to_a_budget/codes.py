"""What the findings are called, which rules they state, and where they tell you to look."""

from __future__ import annotations

from rehearsal.grading.verdict import FindingTable

ROWS = "the rows of an epoch, and their order, depend only on lengths, budget, seed and epoch"
RESUME = (
    "after a restart, on any number of ranks, the run continues after the last committed step"
)

TABLE = FindingTable(
    {
        "wrong-steps": (
            "the run has too many or too few steps, or a step has the wrong number of rows",
            "an epoch's rows are cut into steps of rows_per_step, the last one takes the rest, "
            "and every rank has every step",
            "at how the steps are counted, and at the end of an epoch",
        ),
        "never-trained": (
            "a sequence is left out",
            "each epoch trains every sequence once",
            "at what happens to sequences and rows that are left over",
        ),
        "trained-twice": (
            "a sequence, or a part of it, is in two rows of an epoch",
            "each epoch trains every sequence once, in one row",
            "at what happens to a sequence that the row has no room for",
        ),
        "over-budget": (
            "a row has more tokens than the budget",
            "a row has at most budget tokens",
            "at the comparison that decides whether a sequence fits",
        ),
        "rows-not-full": (
            "two rows would fit into one",
            "no two rows of an epoch fit into one",
            "at which rows are considered for a sequence, and at what exactly fills a row",
        ),
        "rows-not-reproducible": (
            "equal arguments give different rows",
            ROWS + ", in any process",
            "at the generator that shuffles, and at what it's seeded with",
        ),
        "moves-global-random-state": (
            "making or iterating the rows draws from, or seeds, a global generator",
            "a generator that others use too isn't yours to move",
            "at the generator that shuffles",
        ),
        "same-order": (
            "two epochs have the same order",
            "each epoch has its own order of rows",
            "at what the epoch changes",
        ),
        "rows-not-shuffled": (
            "a place in the epoch always has a row of the same length",
            "the rows are shuffled in each epoch",
            "at what decides which row comes first",
        ),
        "orders-alias": (
            "two pairs of seed and epoch share an order",
            "no two pairs of seed and epoch share an order",
            "at how the seed and the epoch become one number",
        ),
        "plan-depends-on-ranks": (
            "another number of ranks trains other rows in a step",
            ROWS + ", whatever the number of ranks",
            "at what the rank and the world size go into",
        ),
        "ranks-repeat-each-other": (
            "a row is trained by several ranks",
            "each row of a step is on one rank",
            "at where the rank comes in",
        ),
        "uneven-share": (
            "some ranks get more of a step than others",
            "the ranks' numbers of rows in a step differ by at most one",
            "at how a step is dealt when the ranks don't divide it",
        ),
        "position-moves-on-fetch": (
            "iterating moves the position",
            "only trained steps count; what a loader has fetched may never be trained",
            "at what changes the position",
        ),
        "commit-disturbs-iteration": (
            "a commit changes what a running iteration yields",
            "a loader is ahead of the training, and a commit doesn't move it",
            "at when an iteration reads the position",
        ),
        "wrong-position": (
            "the position isn't the number of committed steps",
            "position is an int: steps committed since the run began",
            "at what a commit adds, and at where an iteration begins",
        ),
        "resume-repeats": (
            "trained steps come again after a restart",
            RESUME,
            "at what the position means to the code that starts from it",
        ),
        "resume-skips": (
            "steps are left out after a restart",
            RESUME,
            "at what the position means to the code that starts from it",
        ),
        "resume-differs": (
            "after a restart, the steps are others",
            RESUME,
            "at what a new instance computes from its position",
        ),
        "too-long-accepted": (
            "a sequence above the budget is accepted, or refused without its index",
            "a sequence above the budget is refused by a ValueError with its index",
            "at what happens to a sequence that no row has room for",
        ),
        "wrong-width": (
            "a packed row isn't three int64 arrays of budget elements",
            "tokens, segment ids and positions are int64 arrays of (budget,)",
            "at how wide the arrays are made, and of which dtype",
        ),
        "wrong-tokens": (
            "the tokens aren't those of the sequences, followed by padding",
            "a row has its sequences one after the other, then pad_id",
            "at where a sequence begins and ends",
        ),
        "wrong-segments": (
            "the segment ids don't tell the sequences apart",
            "a row's sequences are segments 1, 2, ..., and the padding is 0",
            "at where a segment begins, and at what the padding gets",
        ),
        "wrong-positions": (
            "the positions don't restart with each sequence",
            "positions count from 0 in each sequence, and are 0 in the padding",
            "at what the positions count from",
        ),
    }
)
