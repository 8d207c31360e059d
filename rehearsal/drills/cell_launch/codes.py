"""The findings on this cell: for each code its meaning, its rule, and where to look."""

from __future__ import annotations

from rehearsal.grading.verdict import FindingTable
from rehearsal.kit.judge.weights import STAY_EQUAL

ONCE = "an epoch trains each sample exactly once, across all ranks"
SUMMARY = "the launcher relies on the return value of every rank"
STOP = "a SIGTERM on any rank ends the loop of all ranks after the same step, with a save"
RAISE = "if one rank raises, every rank raises, before any of them waits for it"
SAVES = "at when the loop saves, and at the position that is saved and restored"
TABLE = FindingTable(
    {  # code: what it means, the rule, where to look
        "trained-twice": ("a sample is trained more than once per epoch", ONCE, ""),
        "never-trained": ("a sample is left out", ONCE, ""),
        "wrong-order": (
            "in the first start, a step trains different samples than cell 2 deals",
            "the order of the data is cell 2's, in every start",
            "at the sampler: its seed, its position, and what moves it",
        ),
        "different-update": (
            "the weights are not those that the steps of cell 5 lead to",
            "each step is cell 5's: the mean gradient over the step's samples, clipped, at "
            "cell 3's rate for that step",
            "at what you pass to each step: the step's size, its rate, its micro-batches",
        ),
        "ranks-differ": (
            "the ranks end with different weights, or after different steps",
            STAY_EQUAL,
            "at what a rank decides on its own",
        ),
        "wrong-summary": (
            "what run returns does not match what it did",
            SUMMARY,
            "at what you return",
        ),
        "killed-by-sigterm": (
            "SIGTERM kills the process instead of ending the loop",
            STOP,
            "at what SIGTERM does by default",
        ),
        "sigterm-ignored": (
            "the run continues for more than two steps after SIGTERM",
            STOP,
            "at who checks for the signal, and how often",
        ),
        "stopped-alone": (
            "the ranks do not all stop after the same step",
            STOP,
            "at which ranks know about the signal, and when",
        ),
        "stopped-without-saving": (
            "the next start does not resume from the step of the stop",
            "a kill costs at most the steps since the last save; a stop costs none",
            SAVES,
        ),
        "started-over": (
            "a start begins at step 1 although there is a checkpoint",
            "a start resumes from the newest intact checkpoint",
            "at what is saved under which name, and at what a start looks for and passes on",
        ),
        "lost-work": (
            "a kill costs more steps than checkpoint_every_steps explains",
            "a kill costs at most the steps since the last save; a stop costs none",
            SAVES,
        ),
        "saves-too-often": (
            "a checkpoint is saved although none is due",
            "saves come every checkpoint_every_steps steps, at epoch ends, and at a stop",
            SAVES,
        ),
        "cannot-resume": (
            "after a kill, the next start raises instead of resuming",
            "whatever a kill leaves behind, the next start resumes from the last save",
            "at what a kill in the middle of that operation leaves, and at what a start does "
            "with it",
        ),
        "different-order": (
            "after a restart, steps have different samples",
            "a resume continues after the last saved step, in the same order",
            "at the position you restore, and at what advances it",
        ),
        "different-outcome": (
            "stopped, killed and resumed does not equal uninterrupted",
            "killed and resumed equals uninterrupted, bit for bit",
            "at what a step depends on: moments, learning rate, each rank's random state",
        ),
        "touched-finished-run": (
            "starting a finished run trains or writes",
            "a finished run stays unchanged, however often it is started",
            "at what you do before you know whether anything is left to train",
        ),
        "raised-alone": (
            "an error on one rank does not raise on all of them",
            RAISE,
            "at the moment when one rank knows and the other doesn't",
        ),
        "error-swallowed": (
            "an error on one rank does not raise at all",
            RAISE,
            "at what you do with the exception",
        ),
    }
)
