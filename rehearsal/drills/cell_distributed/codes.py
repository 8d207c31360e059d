"""The findings on this cell: for each code its meaning, its rule, and where to look."""

from rehearsal.grading.verdict import FindingTable
from rehearsal.kit.judge.weights import STAY_EQUAL

WHO = (
    "identity comes from the launcher's environment, the device from what this process sees; a "
    "process alone is rank 0 of 1"
)
# code: meaning; rule; where to look
TABLE = FindingTable(
    {
        "wrong-identity": (
            "rank, local rank, world size or device does not match the environment",
            WHO,
            "at which variable you read each number from, and at what this process sees",
        ),
        "group-of-one": (
            "a single process joins a group",
            "a process without peers needs no group, and a notebook has no launcher",
            "at what happens if the launcher's variables are missing",
        ),
        "wrong-backend": (
            "the group's backend does not fit the device",
            "tensors on a GPU need nccl, tensors on the CPU need gloo",
            "at what decides the backend",
        ),
        "group-before-device": (
            "a collective can run before the rank has selected its GPU",
            "until a rank selects its GPU, whatever it puts on plain cuda, and a barrier under "
            "NCCL, goes to GPU 0",
            "at when the GPU is selected, and at what can run before that",
        ),
        "timeout-ignored": (
            "the group does not use cfg.dist_timeout_s",
            "how long ranks wait for a dead peer is a setting, not the backend's default",
            "at the arguments of init_process_group",
        ),
        "accepts-the-impossible": (
            "an impossible world size or GPU count is accepted",
            "what can't work is refused at the start, with a ValueError",
            "at what you compare before you join the group",
        ),
        "refuses-a-valid-start": (
            "a start that the brief allows is refused",
            "what can work starts: cfg.world_size is 1 or torchrun's, and auto needs no GPU",
            "at the conditions under which maybe_init_dist raises",
        ),
        "raises-alone": (
            "one rank raises and another does not",
            "if one rank raises alone, the others wait for it",
            "at whether all ranks check the same numbers",
        ),
        "ranks-differ": (
            "after wrapping, the ranks hold different weights",
            STAY_EQUAL,
            "at what gives the ranks equal weights at the start",
        ),
        "not-the-mean": (
            "a gradient is not the mean over the ranks",
            "all ranks step on the same gradient: the mean over ranks",
            "at what happens to the gradients between backward and step",
        ),
        "random-state-moved": (
            "wrapping changes a random state, the model's mode or a global setting",
            "a restart must not draw extra random numbers, or its dropout differs",
            "at what you feed the model while wrapping it",
        ),
        "gradient-left-over": (
            "after wrapping, gradients are not zero",
            "the first step trains on its own samples only",
            "at the end of wrap_model",
        ),
        "not-unwrapped": (
            "unwrap does not return the model that was wrapped",
            "checkpoints hold the model's own names, on one rank or on many",
            "at what unwrap does with a wrapped and with a bare model",
        ),
        "cleanup-waits": (
            "cleanup_dist waits for other ranks",
            "a rank must be able to leave while a peer is dead, without waiting for it",
            "at the collectives on shutdown",
        ),
        "wrapper-outlives-group": (
            "the DDP wrapper is still alive when the group is destroyed",
            "a wrapper that outlives its group keeps gloo's threads, which abort the process",
            "at what still refers to a wrapper that nobody uses anymore",
        ),
        "group-left-behind": (
            "the group still exists after cleanup_dist",
            "whoever joins must leave, so the next attempt can join",
            "at cleanup_dist",
        ),
        "joins-the-last-attempt": (
            "a second group sees the first group's keys in the store",
            "torchrun's store outlives an attempt, so each attempt needs its own keys",
            "at the store you pass to init_process_group",
        ),
        "resumed-run-differs": (
            "a resumed run does not match the uninterrupted one bit for bit",
            "three floats summed in a different order give a different result, so the order "
            "must be the same after every start",
            "at how DDP lays out gradients in the first backward pass, and in later ones",
        ),
    }
)
