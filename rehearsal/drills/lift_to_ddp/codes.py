"""What the findings are called, which rules they state, and where they tell you to look."""

from __future__ import annotations

from rehearsal.grading.verdict import FindingTable

TABLE = FindingTable(
    {
        "wrong-identity": (
            "identity does not return the rank, the local rank and the world size",
            "the launcher says who a process is; without one, it is rank 0 of 1",
            "at the variables that identity reads, and at their types",
        ),
        "wrong-device": (
            "the model or a batch is not on this rank's device",
            "a rank trains on its own device: the model, the inputs and the targets",
            "at what selects the device, and at what is moved to it",
        ),
        "not-wrapped": (
            "on several ranks, the model is not in DistributedDataParallel",
            "DDP keeps the ranks' weights equal, and averages their gradients",
            "at the object whose forward pass you call",
        ),
        "wrapped-too-early": (
            "DDP gets the model before it is on this rank's device",
            "DDP takes a model's devices from its parameters when it wraps them",
            "at the order of the lines before the loop",
        ),
        "wrong-share": (
            "a rank trains more or fewer samples of an epoch than its share",
            "in an epoch, each rank trains the samples over the ranks, rounded up",
            "at which samples of an epoch a rank takes, and at how many epochs there are",
        ),
        "wrong-batches": (
            "a rank's steps do not have batch_size samples each, and the rest in the last",
            "each batch of batch_size samples gets one optimizer step; the last may be smaller",
            "at how a rank's samples are cut into batches, and at where the optimizer steps",
        ),
        "never-trained": (
            "a sample is left out of an epoch",
            "in every epoch, the ranks together train all samples",
            "at whether all ranks share out the same order, and what each takes of it",
        ),
        "same-order": (
            "two epochs use the same order",
            "each epoch has an order of its own",
            "at what the order is drawn from, and what changes it between epochs",
        ),
        "seed-ignored": (
            "two seeds give the same order",
            "another seed gives another order",
            "at what the order is drawn from",
        ),
        "order-not-reproducible": (
            "the same seed gives a different order in another run",
            "the order depends on the seed and the epoch, and on nothing else",
            "at the random generator that draws the order",
        ),
        "ranks-differ": (
            "the ranks end with different weights",
            "ranks that start with equal weights and apply the same updates stay equal",
            "at the object whose forward pass you call, and at what changes weights after that",
        ),
        "not-the-global-mean": (
            "the ranks agree, but not on the weights that the mean gradients lead to",
            "from rank 0's weights, each step follows the mean gradient over its samples on "
            "all ranks, with plain SGD",
            "at the loss, at the optimizer's settings, and at each gradient before a step",
        ),
        "progress-on-another-rank": (
            "a rank other than 0 prints progress",
            "only rank 0 prints: with 1,000 ranks, each line would come 1,000 times",
            "at which ranks reach the line that prints",
        ),
        "wrong-progress": (
            "rank 0's lines lack an epoch, or don't show the mean loss over all ranks",
            "after each epoch, rank 0 prints one line, with the mean loss over the samples "
            "that all ranks trained",
            "at what is summed over the ranks, at what divides it, and at when a line is due",
        ),
        "saved-by-another-rank": (
            "a rank other than 0 writes a file other than its own log",
            "one rank saves: when several write one file, what they publish may be torn",
            "at which ranks reach the save, and under which names they write",
        ),
        "wrong-checkpoint": (
            "model.pt is missing after an epoch, or has the wrong weights",
            "after each epoch, model.pt has the model's weights",
            "at when rank 0 saves, and what",
        ),
        "names-of-the-wrapper": (
            "model.pt can't be loaded into the plain model: it has other names",
            "a checkpoint is of the model itself, so that a single process can load it",
            "at the object whose state dict is saved",
        ),
        "error-not-logged": (
            "an error is not in the log of the rank that it left",
            "every rank writes its own errors, to rank-R.log, where R is its global rank",
            "at which errors are caught, and at the name and the text of what is written",
        ),
        "error-swallowed": (
            "train returns although it failed, or raises something else",
            "the launcher restarts a job only if its processes fail: an error goes on",
            "at what happens once the error is written",
        ),
        "group-left-behind": (
            "the process group still exists when train has returned or raised",
            "who joins the group leaves it, also after an error",
            "at every way out of train",
        ),
    }
)
