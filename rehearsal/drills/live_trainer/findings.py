"""What can be wrong, by code: what it means, which rule it breaks, where to look."""

from __future__ import annotations

from rehearsal.grading.verdict import FindingTable

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
            "a 0 is fine for seed and dropout, and so is any positive number elsewhere",
            "at the bound of that field",
        ),
        "refusal-says-nothing": (
            "a refusal isn't a ValueError that names the field and its value",
            "an error says what was found, in the user's terms",
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
            "at what decides how many samples a step has, and what you yield as S",
        ),
        "order-follows-the-ranks": (
            "which samples a step has depends on the number of ranks",
            "the global batch exists before the ranks do",
            "at which of the two you cut first",
        ),
        "unfair-shares": (
            "a rank gets more samples of a step than its share",
            "the shares of a step differ by one sample at most",
            "at how a step is dealt to the ranks",
        ),
        "order-not-a-function": (
            "the same seed and epoch give another order",
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
            "from position p on come exactly the steps that follow the first p",
            "at how the position becomes an epoch and a place in it",
        ),
        "samples-change": (
            "dataset[i] is not the same sample each time",
            "sample i is a function of the config and i",
            "at what the data is drawn from",
        ),
    }
)
