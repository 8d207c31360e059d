"""What the findings are called, which rules they state, and where they tell you to look."""

from __future__ import annotations

from rehearsal.grading.verdict import FindingTable

DRAW = "a draw depends only on the weights, the seed, the epoch and the slot"
RESUME = (
    "after a resume, on any number of ranks, the run continues with the step after the last "
)
RESUME += "committed one"

TABLE = FindingTable(
    {
        "wrong-frequencies": (
            "samples are not drawn as often as their weights say",
            "in each slot, a sample's chance is its weight over the sum of all weights",
            "at what turns weights into draws, and at what happens to a draw after that",
        ),
        "draw-not-reproducible": (
            "samplers with equal arguments draw differently",
            DRAW + ", in any process",
            "at the generator that draws, and at what it's seeded with",
        ),
        "moves-global-random-state": (
            "the sampler draws from, or seeds, a global generator",
            "a generator that others use too isn't the sampler's to move",
            "at the generator that draws",
        ),
        "same-draw-each-epoch": (
            "two epochs have the same draw",
            DRAW + ": each epoch has its own draw",
            "at what the epoch changes",
        ),
        "draws-alias": (
            "two pairs of seed and epoch share a draw",
            DRAW + ", and no two pairs of seed and epoch share one",
            "at how the seed and the epoch become one number",
        ),
        "wrong-steps": (
            "an epoch is cut into the wrong steps",
            "each step takes the next global_batch_size slots of its epoch; the last takes the "
            "rest",
            "at where an epoch and its steps begin and end",
        ),
        "ranks-repeat-each-other": (
            "several ranks train the same draws",
            "each slot of a step goes to one rank",
            "at what makes one rank's list differ from another's",
        ),
        "wrong-share": (
            "a rank gets too many or too few of a step's slots",
            "rank r gets slots r, r + world_size, r + 2 * world_size, ... of a step",
            "at which part of a step a rank takes",
        ),
        "draw-depends-on-ranks": (
            "on several ranks, a step has other draws than on one, or deals them differently",
            DRAW + ", not on the ranks; rank r gets slots r, r + world_size, ... of a step",
            "at what is drawn before the ranks come into it",
        ),
        "position-moves-on-fetch": (
            "fetching a list counts as training it",
            "only commit moves the position: a loader fetches ahead of the training",
            "at what an iteration changes in the sampler",
        ),
        "commit-disturbs-iteration": (
            "a commit changes what an iteration under way yields",
            "an iteration yields each remaining step once, whatever is committed meanwhile",
            "at what an iteration reads from the sampler after its first list",
        ),
        "wrong-position": (
            "after commits, an iteration doesn't begin at the next step",
            "commit counts one step, and an iteration begins after the committed ones",
            "at what commit counts, and at where an iteration begins",
        ),
        "resume-repeats": (
            "after a resume, steps are trained again",
            RESUME,
            "at what the state holds, and at what is done with it",
        ),
        "resume-skips": (
            "after a resume, steps are left out",
            RESUME,
            "at what the state holds, and at what is done with it",
        ),
        "resume-differs": (
            "after a resume, the steps have other draws",
            RESUME,
            "at what the draw depends on that a resume changes",
        ),
    }
)
