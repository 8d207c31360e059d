"""What each finding means, the rule that it states, and where it tells you to look."""

from __future__ import annotations

from rehearsal.grading.verdict import FindingTable

TABLE = FindingTable(
    {
        "wrong-unit": (
            "the planned memory isn't in MiB",
            "a MiB is 2**20 bytes; a name that ends in mib is a promise",
            "at what the bytes are divided by",
        ),
        "wrong-plan": (
            "the planned memory isn't what its parts add up to",
            "a protein's step keeps the input of every block, and what the brief names with it",
            "at each term, by hand, for a protein of 10 residues",
        ),
        "fused-logits": (
            "the plan counts attention logits that a fused kernel never stores",
            "logits take memory only if a kernel writes them to it",
            "at which terms depend on the kernel",
        ),
        "pair-width": (
            "the plan gives pairs the width of something else",
            "a pair tensor has a width of its own; d_model is that of a single residue",
            "at every factor of the term for pairs",
        ),
        "pairs-of-an-encoder": (
            "the plan counts a pair tensor for a model that has none",
            "a structure trunk has one pair tensor for each of its blocks; an encoder has none",
            "at the term for pairs, in a model without a trunk",
        ),
        "parameters-changed": (
            "the model has parameters of other names or shapes than the program's",
            "parameters keep their names and shapes, so that checkpoints load",
            "at the constructors",
        ),
        "wrong-logits": (
            "the model computes other logits than the program's",
            "the logits of real residues stay what they are in the program",
            "at what changed in the forward passes",
        ),
        "warns": (
            "the forward pass raises a warning",
            "the forward pass warns of nothing",
            "at the call that the warning names",
        ),
        "no-gradient": (
            "with frozen embeddings, parameters get no gradient, or another one",
            "a parameter that requires a gradient gets it, whatever is frozen before it",
            "at what lies between the embeddings and the first parameter without a gradient",
        ),
        "keeps-activations": (
            "the forward pass keeps what happens inside the blocks",
            "of each block, only its input is kept for the backward pass",
            "at how the blocks are called",
        ),
        "wrong-crop": (
            "a crop isn't a random window of max_length residues",
            "what fits stays whole; of a longer protein, every window is equally likely",
            "at the first and the last place where a window can begin",
        ),
        "never-trained": (
            "proteins are never trained",
            "every protein is trained once; a long one is cropped",
            "at everything that takes proteins off the list before the first step",
        ),
        "wrong-steps": (
            "the steps, or the ranks' shares of them, aren't those of the brief",
            "a step takes the next batch_size proteins; a rank takes every world_size-th",
            "at how proteins are cut into steps, and steps into shares",
        ),
        "wrong-hidden": (
            "another share of the residues is hidden",
            "a crop hides 15% of its residues, rounded, and at least one",
            "at what is hidden in a row, and of what it is a share",
        ),
        "not-from-the-seed": (
            "what is drawn doesn't follow the seed",
            "a seed gives the same windows and hidden residues again; another seed, others",
            "at every source of chance, and at what it's made from",
        ),
        "mean-of-means": (
            "a hidden residue counts more on a rank that has few of them",
            "a step's loss is a mean over the hidden residues of all ranks, with equal weight",
            "at what each rank divides by, and at what DDP does then",
        ),
        "wrong-gradient": (
            "a step doesn't follow the gradient of its loss",
            "each step follows the gradient of its own loss, on every rank",
            "at everything between the loss and the optimizer's step",
        ),
        "wrong-losses": (
            "train doesn't return the loss of every step",
            "every rank returns the same list: each step's loss over all ranks, as a float",
            "at what goes into the list",
        ),
        "out-of-range": (
            "in 16 bits, numbers overflow",
            "whatever the length, a number that float32 can hold doesn't overflow",
            "at the largest number that each dtype has",
        ),
        "not-mixed": (
            "with mixed=True, matrix products take float32 inputs",
            "if mixed, matrix products take 16-bit inputs; that's what makes them fast",
            "at what is inside the autocast block",
        ),
        "reduces-in-16-bits": (
            "a norm, a softmax or a loss takes 16-bit inputs",
            "norms, softmax and loss take float32: they add up many numbers, and bf16 has 8 "
            "significant bits",
            "at the dtype of whatever the reduction is given",
        ),
        "over-budget-accepted": (
            "a protein over the budget isn't refused by a ValueError with its index",
            "a protein whose crop is planned above budget_mib is refused by its index",
            "at what is compared with the budget, and at the message",
        ),
        "one-rank-raises": (
            "one rank refuses a protein, and the others wait for it",
            "what ends one rank ends all of them: the others would wait in a collective",
            "at which ranks know about the protein at the time",
        ),
        "refuses-late": (
            "a protein over the budget is refused after steps have been taken",
            "a budget is checked before the first step: it takes only the lengths",
            "at when the check is made",
        ),
    }
)
