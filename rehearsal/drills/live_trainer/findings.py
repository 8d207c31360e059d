"""What can be wrong, by code: what it means, which rule it breaks, where to look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import FindingTable

# The reports of the scenarios before this one, by name.
Earlier = Mapping[str, Sequence[RankReport]]

TABLE = FindingTable(
    {
        # config
        "accepts-nonsense": (
            "a config accepts a value that no run can use",
            "a bad value is refused when the config is made, not an hour into the run",
            "at which fields you check, and against what",
        ),
        "refuses-a-good-value": (
            "a config refuses a value that is fine",
            "a 0 is fine for seed and dropout, and so is any finite positive number elsewhere",
            "at the bound of that field",
        ),
        "refusal-says-nothing": (
            "a refusal isn't a ValueError that names the field and its value",
            "a bad value raises ValueError, and the message names the field and its value",
            "at what you raise",
        ),
        "config-changes": (
            "a config loses a value, or can be changed afterward",
            "one config describes one run, from start to end",
            "at how the class is declared",
        ),
        # data
        "not-once-per-epoch": (
            "an epoch doesn't deal each sample exactly once",
            "an epoch trains each sample exactly once, across all ranks",
            "at how the order is cut into steps, and the steps into shares",
        ),
        "wrong-step-size": (
            "a step doesn't have the samples it should have",
            "a step takes global_batch_size samples; the epoch's last step takes the rest",
            "at where an epoch starts and ends, how many samples a step has, and what you "
            "yield as S",
        ),
        "order-follows-the-ranks": (
            "which samples a step has depends on the number of ranks",
            "a step's samples are chosen first, and only then dealt to the ranks",
            "at what you cut an epoch into first: steps, or the ranks' shares",
        ),
        "unfair-shares": (
            "a rank gets more samples of a step than its share",
            "the shares of a step differ by one sample at most",
            "at how a step is dealt to the ranks",
        ),
        "order-not-a-function": (
            "the same seed and epoch give a different order",
            "an epoch's order is a function of (dataset_size, seed, epoch) alone",
            "at what the order is drawn from, and at who else draws from it",
        ),
        "orders-repeat": (
            "two epochs or two seeds have the same order",
            "each epoch and each seed has an order of its own",
            "at what the order's key is made of",
        ),
        "wrong-position": (
            "a sampler doesn't continue at its position",
            "a sampler at position p yields exactly the steps that follow the first p",
            "at how the position becomes an epoch and a place in it",
        ),
        "samples-change": (
            "dataset[i] is not the same sample each time",
            "sample i is a function of the config and i",
            "at what the data is drawn from",
        ),
        # model
        "wrong-shape": (
            "the model doesn't map a batch to one row of logits per sample",
            "logits have one row per sample and one column per class",
            "at the first and the last layer",
        ),
        "wrong-dropout": (
            "dropout doesn't follow the config, or stays on in eval mode",
            "dropout follows cfg.dropout while training, and is off otherwise",
            "at the dropout layer, and at where its probability comes from",
        ),
        "does-not-learn": (
            "a few steps of AdamW don't lower the loss, or a parameter gets no gradient",
            "every parameter takes part in the loss, and training lowers it",
            "at what lies between the inputs and the logits, and at how the labels are made",
        ),
        "wrong-rate": (
            "the learning rate isn't the function of the step that the brief asks for",
            "learning_rate_at rises linearly to learning_rate at step warmup_steps, then falls",
            "at its two halves, and at where they meet",
        ),
        # who am I?
        "not-alone": (
            "without torchrun, a process isn't rank 0 of 1",
            "a process that no launcher started is rank 0 of 1",
            "at what you read from the environment, and what happens when it isn't set",
        ),
        "wrong-rank": (
            "a rank has the wrong rank or world size",
            "rank and world size count the whole job, not the node",
            "at which of torchrun's variables you read",
        ),
        "no-group": (
            "no process group includes the whole job",
            "with more than one rank, the default process group is up after maybe_init_dist",
            "at when you initialize it",
        ),
        "wrapped-apart": (
            "after wrap_model, a rank doesn't have rank 0's weights",
            "ranks that start with equal weights and apply the same updates stay equal",
            "at what makes the weights equal",
        ),
        # training step
        "wrong-gradient": (
            "a step isn't the one that a single rank would take",
            "a step follows the mean gradient of its S samples, clipped to norm 1",
            "at what the loss is divided by, what is summed or averaged, and when you clip",
        ),
        "ranks-step-apart": (
            "after a step, the ranks have different weights",
            "every rank applies the same update",
            "at a rank with fewer samples, or none",
        ),
        "micro-batch-too-large": (
            "more samples than micro_batch_size go through the model at once",
            "a micro-batch is what fits in memory",
            "at how the share is cut",
        ),
        "syncs-too-often": (
            "gradients are synchronized more than once per step",
            "under accumulation, a step synchronizes its gradients once",
            "at what each backward pass sends",
        ),
        "wrong-loss": (
            "what train_step returns doesn't add up to the mean loss",
            "each rank returns its part of the mean loss over the S samples",
            "at what you add up, and what you divide it by",
        ),
        "nonfinite-step": (
            "a gradient that isn't finite changes the weights, or raises on some ranks only",
            "a gradient that isn't finite raises on every rank, before a weight changes",
            "at what you know about the gradient before the optimizer steps",
        ),
        # checkpoint
        "wrong-checkpoint": (
            "the next start doesn't get the newest checkpoint",
            "the newest intact checkpoint is the one with the highest step",
            "at how you find it",
        ),
        "state-not-restored": (
            "a restore loses weights or moments",
            "a checkpoint has everything that the next step depends on",
            "at what you save, and at what you load",
        ),
        "lost-in-a-kill": (
            "a kill during a save leaves the next start without an intact state",
            "a kill at any moment leaves a complete checkpoint, this one or the one before",
            "at what the folder holds between two file operations",
        ),
        "cannot-save-again": (
            "what a kill or damage left in the folder is in the way of the next save",
            "a step that is trained again is saved again",
            "at the names that already exist",
        ),
        "not-durable": (
            "after a power loss, a checkpoint can have its name but not its contents",
            "contents and names are on disk before the save returns, contents first",
            "at what you fsync, and when",
        ),
        "damage-not-survived": (
            "damage to the newest checkpoint stops the next start, or goes unnoticed",
            "a damaged checkpoint is noticed, and the one before it is taken",
            "at what you verify, and against what",
        ),
        "starts-over": (
            "with every checkpoint damaged, a start begins from scratch",
            "a start that finds only damaged checkpoints raises; it doesn't train from zero",
            "at the difference between no checkpoint and no good one",
        ),
        # metrics
        "phases-do-not-add-up": (
            "the phases don't add up to the time of the step",
            "where one phase ends, the next begins",
            "at when each phase starts",
        ),
        "wrong-phase": (
            "time is billed to the wrong phase, or only the last call of a phase counts",
            "each call to end adds the time since the call before it to the phase it names",
            "at what you add to which name",
        ),
        "line-lost": (
            "a line is missing or cut after a kill, or isn't JSON",
            "one event is one line of JSON, and survives a kill that comes right after it",
            "at how the line is written, and where it is when log_rank_event returns",
        ),
        "wrong-line": (
            "a line lacks a field or the time",
            "a line has the fields it was given and the time it was written",
            "at what you put into it",
        ),
        # launch
        "off-plan": (
            "a run trains different samples, or takes different steps, than its sampler deals",
            "a run trains what its sampler deals, from its position to the end",
            "at where the loop begins, what it does with each item, and where it ends",
        ),
        "wrong-result": (
            "what run returns doesn't match what it did",
            'run returns status "done", the completed steps and the hash of the final weights',
            "at what you return, and at what you hash",
        ),
        "ledger-wrong": (
            "the ledger doesn't match what was trained",
            "the ledger is evidence: one line per step and rank, with what the model was given",
            "at when the line is written, and at where its values come from",
        ),
        "rate-not-followed": (
            "a step doesn't use the learning rate of its number",
            "step s uses learning_rate_at(cfg, s), and the first step is 1",
            "at what you pass to it, and at when the optimizer gets it",
        ),
        "save-missing": (
            "a save that is due doesn't happen",
            "a save is due every checkpoint_every_steps steps and at the end of each epoch",
            "at when the loop saves, and where",
        ),
        "time-unaccounted": (
            "time passes that no phase in the ledger accounts for",
            "a line's phases add up to the time since the line before, saves included",
            "at what happens between the last phase of a step and the first of the next",
        ),
        "touches-finished-run": (
            "starting a finished run trains, writes, or returns something else",
            "a finished run stays as it is, however often it is started",
            "at what you do before you know whether anything is left to train",
        ),
        # two ranks
        "ranks-differ": (
            "the ranks end with different weights",
            "ranks that start with equal weights and apply the same updates stay equal",
            "at what a rank decides on its own",
        ),
        "different-training": (
            "a step follows a different gradient than the clipped mean over its samples",
            "the gradient is the mean over the step's samples, on any number of ranks",
            "at the S and W that the loop passes on",
        ),
        "noise-repeats": (
            "two ranks or two steps draw the same dropout",
            "each rank draws its own noise in each step",
            "at what seeds each rank, and when",
        ),
        "saves-collide": (
            "two ranks write the same file of a checkpoint",
            "a file of a checkpoint has one writer; the others wait for it or write their own",
            "at which ranks save, and under which names",
        ),
        # kill during a save, a different number of ranks
        "not-repeatable": (
            "two runs with the same config differ",
            "a run is a function of its config",
            "at what is drawn from a generator that nothing seeds",
        ),
        "cannot-resume": (
            "the start after a kill fails",
            "whenever a kill strikes, the next start finds a complete state",
            "at what the kill left in the folder",
        ),
        "began-from-zero": (
            "the start after a kill begins with step 1 although there is a checkpoint",
            "a start resumes from the newest intact checkpoint",
            "at what a start looks for, and at what it does with it",
        ),
        "resumes-elsewhere": (
            "the start after a kill doesn't continue after the newest intact checkpoint",
            "a kill costs at most the steps since the last complete save",
            "at the position you save, and at what you restore",
        ),
        "different-outcome": (
            "killed and resumed, a run ends with different weights",
            "killed and resumed equals uninterrupted, bit for bit, on the same number of ranks",
            "at what a step depends on: moments, noise, learning rate, order of sums",
        ),
        # audit
        "attempts-unclear": (
            "the ledger doesn't say which start trained what",
            "an attempt is a start of the job, counted from 0, equal on all of its ranks",
            "at where the number comes from, and at who decides it",
        ),
        "audit-refutes": (
            "according to the ledger, a sample was trained twice or never",
            "in the lines that count, each epoch trains each sample exactly once",
            "at when a line is written, and at what the position counts",
        ),
    }
)
