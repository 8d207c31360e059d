"""What the findings are called, which rules they state, and where they tell you to look."""

from __future__ import annotations

from rehearsal.grading.verdict import FindingTable

PURE = "a molecule's part depends only on which molecules there are, and on the fraction"
COUNT = "the test part has test_fraction of the different molecules, give or take 3% of them"
LABEL = "a label is what the molecule's rows have measured, on all ranks"
SCALER = (
    "the scaler is the mean and population standard deviation of logp over the training "
    "molecules of all ranks, each counted once"
)

TABLE = FindingTable(
    {
        "collective-on-some-ranks": (
            "the run hangs or fails: the ranks' collectives differ",
            "every rank issues every collective of a call, whatever rows it has",
            "at what a rank without rows leaves out",
        ),
        "wrong-return-value": (
            "a call returns something in a different form than the brief asks for",
            "a call returns parts, labels, conflicts and scaler, as the brief describes them",
            "at the return statement, and at the types in it",
        ),
        "changes-its-arguments": (
            "split_rows changes the rows that it's given",
            "the rows belong to the caller, who may pass them again",
            "at what is assigned into a row, and at what reorders or shortens a list in place",
        ),
        "moves-global-random-state": (
            "split_rows draws from, or seeds, a global generator",
            "a generator that others use too isn't yours to move",
            "at what is random in the split",
        ),
        "wrong-molecules": (
            "the result isn't about exactly the molecules of the rank's rows",
            "each rank returns a part and a label for every molecule in its rows, and no other",
            "at what leaves a molecule out, and at what the keys are",
        ),
        "scaffold-on-both-sides": (
            "a scaffold has molecules in both parts",
            "all molecules with one scaffold are on one side",
            "at what is given to a part as a unit",
        ),
        "ranks-disagree": (
            "a scaffold is in one part on one rank, and in the other part on another rank",
            "all molecules with one scaffold are on one side, on whichever ranks they are",
            "at everything that differs between ranks: their rows, the order of these, and "
            "what Python salts in each process",
        ),
        "molecule-on-both-sides": (
            "a molecule without a ring is in one part on one rank, and in the other on another",
            "a molecule is in one part, on whichever ranks it has rows",
            "at what makes two rows the same molecule, and at everything else that may differ "
            "between ranks",
        ),
        "acyclics-as-one": (
            "the molecules without a ring are on one side as a block",
            "without a ring there is no scaffold in common: each molecule is its own group",
            "at which group a molecule without a ring gets",
        ),
        "counts-repeats": (
            "a molecule that was measured more than once counts more than once",
            COUNT,
            "at what you count, and at molecules that several ranks have",
        ),
        "wrong-fraction": (
            "the test part is too small or too large",
            COUNT,
            "at when a group no longer fits, and at what happens then",
        ),
        "split-not-reproducible": (
            "the same rows, passed a second time, are split differently",
            PURE + ", never on chance",
            "at what is random in the split",
        ),
        "depends-on-order": (
            "the same rows, in another order and on other ranks, are split differently",
            PURE + ", never on the order of rows or on which ranks have them",
            "at what decides between groups of the same size",
        ),
        "depends-on-measurements": (
            "with other labels and repeats, the same molecules are split differently",
            PURE + ", never on how often they were measured, or what was measured",
            "at everything that a group's place in the order is made of",
        ),
        "jobs-disagree": (
            "another job, on another number of ranks, splits the same molecules differently",
            PURE + ", never on the number of ranks or on Python's salted hash",
            "at what the world size goes into, and at what differs from process to process",
        ),
        "conflict-not-reported": (
            "rows disagree about a molecule, and it isn't in conflicts",
            "a molecule whose rows disagree, on whichever ranks they are, is in conflicts",
            "at what happens when a second row of a molecule arrives",
        ),
        "missing-as-label": (
            "a row without a measurement is treated as a measurement",
            LABEL + "; None is no measurement, and disagrees with nothing",
            "at what None becomes when rows are merged",
        ),
        "wrong-label": (
            "a molecule has a label that its rows don't support",
            LABEL + ": None if there is none, or if they disagree",
            "at how a molecule's label is made from its rows",
        ),
        "scaler-saw-the-test": (
            "the scaler was fitted on test molecules too",
            SCALER,
            "at which molecules are in the mean",
        ),
        "scaler-of-one-rank": (
            "each rank fits a scaler on its own rows, or the ranks' scalers are averaged",
            SCALER,
            "at whose molecules are in the mean, and at how the ranks' parts become one",
        ),
        "wrong-scaler": (
            "the scaler isn't the mean and standard deviation of the training molecules",
            SCALER,
            "at what is added up, how often, and what it's divided by",
        ),
    }
)
