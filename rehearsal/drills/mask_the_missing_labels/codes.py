"""What the findings are called, which rules they state, and where they tell you to look."""

from __future__ import annotations

from rehearsal.grading.verdict import FindingTable

MEAN = (
    "a task's loss is the mean over its labels on all ranks, and the step's loss is the mean "
)
MEAN += "over the tasks that have a label"

TABLE = FindingTable(
    {
        "collective-on-some-ranks": (
            "the run hangs or fails: the ranks' collectives differ",
            "every rank issues every collective of a step, whatever labels it has",
            "at what a rank without labels, or without samples, leaves out",
        ),
        "changes-its-arguments": (
            "train_step writes into the tensors that it's given",
            "the inputs, targets and pos_weight belong to the caller, who passes them again",
            "at what is assigned into a tensor, and at functions whose name ends in _",
        ),
        "wrong-steps": (
            "a call is not one optimizer step on every rank",
            "every call takes one optimizer step, on every rank",
            "at which ranks step, and when",
        ),
        "nan-gradient": (
            "the gradient of a step is NaN",
            "a missing label adds nothing to a gradient, and neither does a missing task",
            "at every operation that has a NaN, or a zero to divide by, among its operands",
        ),
        "ranks-differ": (
            "the ranks follow different gradients in one step",
            "every rank follows the gradient of one loss, that of the step",
            "at whether the gradients have been synced when the optimizer steps",
        ),
        "missing-as-negative": (
            "a missing label is trained as a negative",
            "what wasn't measured is neither active nor inactive",
            "at what a NaN becomes, and at whether it still counts after that",
        ),
        "wrong-label-loss": (
            "a label's loss is not the cross-entropy with pos_weight",
            "pos_weight multiplies the cross-entropy of a task's positives, and of no others",
            "at where pos_weight goes into the loss",
        ),
        "mean-of-means": (
            "each rank, or each task on a rank, takes its own mean",
            MEAN,
            "at which ranks' labels the denominators count",
        ),
        "wrong-mean": (
            "the labels of all ranks are averaged, but with other weights",
            MEAN,
            "at what each sum is divided by",
        ),
        "wrong-scale": (
            "the gradient has the right direction and the wrong length",
            MEAN,
            "at what DDP does to the gradients of the ranks, and at every factor of the loss",
        ),
        "wrong-gradient": (
            "a step follows a gradient that none of these explains",
            MEAN,
            "at every factor of the loss, and at what the gradients hold before backward",
        ),
        "wrong-loss": (
            "a rank returns something other than the step's loss",
            "every rank returns the loss of the whole step, as a float",
            "at which ranks' labels the returned number is about, and at its factors",
        ),
    }
)
