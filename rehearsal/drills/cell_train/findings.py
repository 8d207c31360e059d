"""The codes of cell_train's findings: what each means, its rule, where to look."""

from __future__ import annotations

from rehearsal.grading.verdict import FindingTable

MEAN = "a step follows the mean gradient over its samples, however they are split, clipped by "
MEAN += "its global norm"
FLAG = "a gradient that is NaN or infinite changes no weight on any rank"
ENTRY = "a step appends its samples, loss, norm and flag once; the host reads them later"

FOUND = FindingTable(
    {
        "left-the-step": (
            "a rank skips a collective of the step that its peers issue",
            "every rank issues the same collectives in a step, whatever samples it has",
            "at branches that depend on this rank's samples or loss",
        ),
        "no-sync": (
            "the gradients are not all-reduced in a step",
            "ranks train the same model only if they all-reduce their gradients in each step",
            "at what runs under no_sync, and at which collective carries the gradients",
        ),
        "synced-too-often": (
            "more than the gradients, once, travels in a step",
            "gradients accumulate locally and are reduced once per step",
            "at the backward passes before the last one, and at collectives of your own",
        ),
        "trained-twice": (
            "a sample goes through the model more than once in a step",
            "a step trains each of its samples exactly once",
            "at which micro-batches go through the model",
        ),
        "never-trained": (
            "a sample of the step is left out",
            "a step trains each of its samples exactly once",
            "at which micro-batches go through the model",
        ),
        "many-steps": (
            "the optimizer steps more than once per call",
            "accumulation means one optimizer step over all micro-batches",
            "at where the optimizer steps",
        ),
        "learning-rate": (
            "a group steps with a learning rate other than lr",
            "every group of the optimizer steps with the given learning rate",
            "at what you set before the optimizer steps",
        ),
        "nonfinite-applied": (
            "a rank applies a gradient that is NaN or infinite",
            FLAG,
            "at what you base the decision on, and whether every rank knows it",
        ),
        "moved-without-gradient": (
            "the weights change in a step whose update should be skipped",
            FLAG,
            "at what the optimizer does with a zero gradient, and at who decides",
        ),
        "no-update": (
            "no weight changes, although every gradient is finite",
            "only a gradient that is NaN or infinite skips an update",
            "at what decides whether the optimizer steps",
        ),
        "ranks-differ": (
            "the ranks leave the step with different weights",
            "after the sync all ranks have the same gradient and do the same with it",
            "at what happens to the gradients before and after the last backward pass",
        ),
        "mean-of-means": (
            "ranks or micro-batches weigh the same, instead of samples",
            MEAN,
            "at what you divide a loss by",
        ),
        "scale": (
            "the gradient is the right sum, divided by the wrong number",
            MEAN,
            "at what you divide a loss by, and at what DDP divides by",
        ),
        "only-the-last-micro-batch": (
            "gradients of earlier micro-batches are lost",
            MEAN,
            "at what happens to the gradients between two micro-batches",
        ),
        "clipping": (
            "clipped by the wrong norm, at the wrong moment, or not at all",
            MEAN,
            "at when and by which norm you clip",
        ),
        "stale-gradients": (
            "the step adds to gradients from before the call",
            "gradients from before the call don't count",
            "at what was in the gradients before the first backward pass",
        ),
        "wrong-gradient": (
            "the step follows a gradient that none of the other codes explains",
            "a step follows the gradients of its own samples: all of them, and nothing else",
            "at what each backward pass adds, and at each line that changes a gradient or a "
            "weight",
        ),
        "autocast": (
            "the forward pass does not compute in the configured type",
            "the forward pass computes in the configured type, no other",
            "at what turns autocast on",
        ),
        "not-training": (
            "the model is put in evaluation mode",
            "a training step runs in training mode: dropout and batch norm differ in the other",
            "at calls of eval() and train()",
        ),
        "loss": (
            "the loss in unread is not this rank's sum, or is summed in bf16",
            "each rank records the sum over its own samples, in float32; the host adds them up "
            "and divides once",
            "at what you append",
        ),
        "norm": (
            "the norm in unread is not that of the mean gradient before clipping",
            "the norm is that of the step's gradient, as it was before clipping",
            "at which norm you append",
        ),
        "record": (
            "the entries, flag or count in unread, or the returned flag, are wrong",
            ENTRY,
            "at what you append, and at what you return",
        ),
        "keeps-the-graph": (
            "what is appended keeps the graph of the backward pass alive",
            "a recorded tensor is detached, or memory grows with every step until it is read",
            "at the tensors that you append",
        ),
        "host-waits": (
            "a tensor's value is read on the host within the step",
            "nothing in a step makes the host wait for the device",
            'at item(), float(), tolist(), cpu() or to("cpu"), print, and tensors in an if',
        ),
        "scaler": (
            "a GradScaler is used, but not fully",
            "who uses a GradScaler scales the loss, unscales before the norm, and updates the "
            "scale once per step, also after a skipped update",
            "at each place that has to know the loss scale",
        ),
    }
)
CODES = FOUND.codes
