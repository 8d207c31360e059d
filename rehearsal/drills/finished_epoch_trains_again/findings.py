"""What a check may find."""

from __future__ import annotations

from rehearsal.grading.verdict import FindingTable

POSITION = "at which position the newest checkpoint gives, when it is written, and who reads it"
EPOCHS = "at where an epoch begins and ends, and at which of its samples a rank takes"
SAVES = "at what is saved after a step and after an epoch's last one, and at what it counts"
FINDINGS = FindingTable(
    {
        "not-all-steps": (
            "an uninterrupted run does not take the planned steps",
            "each epoch is trained once, with a step per global batch, from first to last",
            EPOCHS,
        ),
        "wrong-start": (
            "training doesn't start from rank 0's weights",
            "training starts from the weights that rank 0 was given",
            "at whose weights the ranks start from, and at what happens to them before step 1",
        ),
        "same-order": (
            "two epochs have the same order, or one isn't shuffled",
            "each epoch has its own shuffled order",
            "at what an epoch's order is made from",
        ),
        "wrong-step": (
            "a step doesn't follow the mean loss of its samples with AdamW",
            "a step follows the mean loss of its samples with AdamW",
            "at what a step adds up, divides by and clears, and at how often it is taken",
        ),
        "starts-over": (
            "a restart trains from the initial weights although there is a checkpoint",
            "a restart resumes from the newest intact checkpoint",
            "at what the restart finds in the folder, and what it does with it",
        ),
        "cannot-resume": (
            "a start after a kill raises an exception",
            "wherever the run is killed, the next start finds a complete checkpoint, or none",
            "at what the folder holds at each moment of a save, and at what a start reads",
        ),
        "not-the-newest": (
            "a restart resumes from an older checkpoint than the newest complete one",
            "a restart resumes from the newest intact checkpoint",
            "at what the folder holds at each moment of a save, and at which file is read",
        ),
        "ranks-resume-apart": (
            "the ranks of a job resume from different steps",
            "all ranks resume from the same position, with the same weights",
            "at which ranks restore what, and at what happens to it before the first step",
        ),
        "never-trained": (
            "a sample is left out",
            "each epoch trains each sample exactly once, across all ranks and restarts",
            POSITION,
        ),
        "trained-twice": (
            "a sample is trained more than once per epoch",
            "each epoch trains each sample exactly once, across all ranks and restarts",
            POSITION,
        ),
        "epoch-skipped": (
            "a restart skips an epoch: every sample is trained too few times",
            "each epoch trains each sample exactly once, across all ranks and restarts",
            POSITION,
        ),
        "epoch-trained-again": (
            "a restart repeats an epoch: every sample is trained too often",
            "each epoch trains each sample exactly once, across all ranks and restarts",
            POSITION,
        ),
        "not-the-same-run": (
            "a restarted run has other weights than an uninterrupted one",
            "a restart restores everything that later steps depend on, on every rank",
            "at everything that is saved, and at which ranks restore it",
        ),
        "no-save-at-epoch-end": (
            "no checkpoint is saved at an epoch's end",
            "checkpoints are due every checkpoint_every steps and at each epoch's end",
            SAVES,
        ),
        "no-save-when-due": (
            "no checkpoint is saved after checkpoint_every steps",
            "checkpoints are due every checkpoint_every steps and at each epoch's end",
            SAVES,
        ),
        "finished-run-trains": (
            "a finished run trains, or loses its weights, when started again",
            "starting a finished run again takes no step and leaves its weights in the model",
            POSITION,
        ),
    }
)
