"""What the findings are called, which rules they state, and where they tell you to look."""

from __future__ import annotations

from rehearsal.grading.verdict import FindingTable

PAIRS = (
    "a task's AUROC is the share of its pairs of a positive and a negative, over all ranks, "
)
PAIRS += "in which the positive scores higher"

TABLE = FindingTable(
    {
        "collective-on-some-ranks": (
            "the run hangs or fails: the ranks' collectives differ",
            "every rank issues the same collectives, however many rows it has",
            "at what a rank without rows leaves out, and at the sizes of what is gathered",
        ),
        "wrong-return-value": (
            "a rank returns something of another form than the brief says",
            "every rank returns a dict: aurocs by task, undefined tasks, and the median",
            "at the types of what is returned, and on which ranks",
        ),
        "ranks-differ": (
            "the ranks return different results",
            "every rank returns the same",
            "at what each rank knows when it computes the result",
        ),
        "duplicates-counted": (
            "a sample that several rows have counts more than once",
            "a sample counts once, however many rows and ranks it's on",
            "at what happens to rows with one id, also to those on different ranks",
        ),
        "samples-lost": (
            "a sample that was scored doesn't count",
            "a sample counts once, however many rows and ranks it's on",
            "at how rows with one id are told from rows with different ids",
        ),
        "missing-as-negative": (
            "a missing label counts as a negative",
            "a sample without a task's label isn't in that task's pairs",
            "at what a comparison says about NaN",
        ),
        "ties-not-half": (
            "a pair with equal scores counts as won or lost, or by the order of its rows",
            "a pair with equal scores counts one half",
            "at what decides between equal scores",
        ),
        "mean-over-ranks": (
            "each rank computes its own AUROC, and these are averaged",
            PAIRS + "; pairs across ranks are in no rank's own",
            "at what is gathered: scores or metrics",
        ),
        "wrong-auroc": (
            "an AUROC is wrong in a way that none of these explains",
            PAIRS,
            "at what happens to the scores before they are compared",
        ),
        "undefined-task": (
            "a task without a pair is reported with a value, or one with a pair isn't",
            "a task without a positive or without a negative is in undefined, and no other is",
            "at how you recognize a task without positives, and one without negatives",
        ),
        "wrong-median": (
            "the median is not that of the defined tasks' AUROCs",
            "the median is over the tasks that are defined; it's None if none is",
            "at which values go into it, and at an even number of them",
        ),
    }
)
