"""What a check of this drill can find: for each code its meaning, the rule, where to look."""

from __future__ import annotations

from rehearsal.grading.verdict import FindingTable

ONCE = "in each epoch, each sample goes to exactly one rank, once"
POSITION = "the position counts completed optimizer steps, and only commit moves it"
TABLE = FindingTable(
    {
        "never-ends": (
            "iterating without a commit yields more than the plan",
            "an iteration ends where the plan ends; a loader fetches ahead of training, so it "
            "can't wait for commits",
            "at what the loop checks before each step",
        ),
        "order-not-reproducible": (
            "two samplers with equal arguments deal different samples",
            "every rank computes the same order from dataset size, seed and epoch",
            "at which random generator the shuffle uses",
        ),
        "moves-global-random-state": (
            "a sampler changes torch's, numpy's or Python's global random state",
            "dropout draws from the global state, and a resume must find it unchanged",
            "at which random generator the shuffle uses",
        ),
        "ranks-out-of-step": (
            "the ranks yield different numbers of micro-batches",
            "if one rank runs fewer backward passes, the others wait in theirs",
            "at steps in which a rank has few samples or none",
        ),
        "too-many-micro-steps": (
            "micro_steps is larger than a full step needs",
            "each list beyond those a full step needs is one more forward and backward pass "
            "for nothing, in every step",
            "at how you round: first a rank's share of G, then the lists that hold it",
        ),
        "micro-batch-too-large": (
            "a micro-batch has more than micro_batch_size samples",
            "micro_batch_size is what fits in a device's memory",
            "at how you split a step into shares, and a share into micro-batches",
        ),
        "wrong-epoch": (
            "a pair has the wrong epoch",
            "augmentation depends on seed, epoch and sample",
            "at the pair you yield",
        ),
        "trained-twice": (
            "a sample is dealt more than once in an epoch",
            ONCE,
            "at whether all ranks use one order, where a step begins, and what fills a share",
        ),
        "never-trained": (
            "a sample of an epoch is dealt to no rank",
            ONCE,
            "at where a share, a step, an epoch and the plan begin and end",
        ),
        "step-depends-on-ranks": (
            "the samples of a step change with the number of ranks",
            "a step is defined before it is split, so world size may change between two steps",
            "at what the order is made from, and at what you split first: the epoch into "
            "steps, or the epoch among ranks",
        ),
        "not-the-slots": (
            "a step does not train its slots of the epoch's order",
            "the order is a function of dataset size, seed and epoch only, and step s trains "
            "slots s*G to s*G + G - 1 of it",
            "at what the order is made from, and at which slots a step begins and ends",
        ),
        "uneven-shares": (
            "a rank has more than its share of a step",
            "all ranks wait for the one with the most samples",
            "at how you split a step among the ranks",
        ),
        "same-order-each-epoch": (
            "two epochs use the same order",
            "each epoch has its own order, or the model learns the order",
            "at what the order is made from",
        ),
        "orders-alias": (
            "two seeds share an order, in the same epoch or in different ones",
            "an order belongs to one pair of seed and epoch",
            "at how you combine the two numbers into one",
        ),
        "wrong-length": (
            "len() is not the number of micro-batches left",
            "len() is the number of lists that an iteration started now would yield",
            "at what len() counts, and from where",
        ),
        "position-moves-on-fetch": (
            "the position moves when something iterates",
            POSITION,
            "at what changes when you yield",
        ),
        "wrong-position": (
            "after k commits the state's position is not k",
            POSITION,
            "at what commit counts",
        ),
        "commit-disturbs-iteration": (
            "a commit changes what a running iteration yields",
            "a running iteration doesn't depend on commits: a loader has already fetched ahead",
            "at what an iteration reads after it has started",
        ),
        "iterates-from-elsewhere": (
            "a new iteration does not begin at the position",
            "an iteration runs from the position to the end of the plan",
            "at where the loop starts the second time",
        ),
        "resume-repeats": (
            "after a resume, samples of completed steps are dealt again",
            "completed steps stay completed, at any world size",
            "at what load_state_dict does with the position",
        ),
        "resume-skips": (
            "after a resume, samples that were never trained are left out",
            "whatever wasn't trained before a resume is trained after it, at any world size",
            "at what load_state_dict does with the position",
        ),
        "keeps-its-past": (
            "loading a state into a used sampler doesn't replace its position",
            "load_state_dict replaces the position, whatever the sampler did before",
            "at what load_state_dict does with what is there already",
        ),
        "state-is-live": (
            "a commit changes a state that was returned or loaded earlier",
            "a saved position stays what it was: a checkpoint may be written later",
            "at which object state_dict returns, and which one load_state_dict keeps",
        ),
        "replays-the-past": (
            "resuming at a late position costs as much as the steps before it",
            "a restart computes its position; it doesn't walk there",
            "at what runs before a resume's first micro-batch",
        ),
    }
)
