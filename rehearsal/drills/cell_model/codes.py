"""What a check of this drill can find: for each code its meaning, the rule, where to look."""

from __future__ import annotations

from rehearsal.grading.verdict import FindingTable

LAYERS = "num_layers hidden layers of width hidden_dim and one to the logits, all registered"
DROPOUT = "dropout acts after each hidden layer, only in training, and preserves the mean"
DECAY = (
    "a step decays a matrix by lr * weight_decay of its value, and a bias, gain or scale by 0"
)
SCHEDULE = "the learning rate is a function of the step and the config's horizon alone"
# code: meaning; rule; where to look
TABLE = FindingTable(
    {
        "wrong-layers": (
            "parameters() does not contain the layers' matrices",
            LAYERS,
            "at the number of layers, and at how the model stores them",
        ),
        "weights-not-from-the-seed": (
            "the weights do not follow torch's global seed, or the constructor sets it",
            "the run seeds torch before it builds the model, and keeps drawing afterwards",
            "at which random generator the constructor uses",
        ),
        "depends-on-the-batch": (
            "an empty batch fails, or a sample's logits depend on the others in its batch",
            "logits don't depend on how a step is split, and a rank may have no samples",
            "at layers that mix samples, and at shapes inferred from the batch",
        ),
        "is-linear": (
            "there is no activation between the layers",
            "linear layers with nothing in between collapse into one linear layer",
            "at what follows a hidden layer",
        ),
        "not-logits": (
            "the outputs are not those of the last linear layer",
            "the loss takes logits: a second softmax trains slowly, and nothing warns you",
            "at what follows the last layer",
        ),
        "not-the-network": (
            "for given weights, the logits are not those of the network in the brief",
            "a hidden layer is a linear layer, then GELU, then dropout; one more linear layer "
            "follows, and nothing else",
            "at what happens between two layers, and which activation it is",
        ),
        "dropout-in-eval": (
            "in evaluation mode, the logits differ from call to call",
            DROPOUT,
            "at what model.eval() changes",
        ),
        "no-dropout": (
            "the dropout setting has no effect",
            DROPOUT,
            "at where the probability is used",
        ),
        "wrong-dropout": (
            "dropout has the wrong probability, is in the wrong places, or changes the mean",
            DROPOUT,
            "at what the probability means, and at which layers it follows",
        ),
        "decays-vectors": (
            "a parameter with fewer than two dimensions decays",
            DECAY,
            "at what you split by: the name or the shape",
        ),
        "does-not-decay": (
            "a parameter with two or more dimensions does not decay",
            DECAY,
            "at which number of dimensions you split",
        ),
        "wrong-decay": (
            "a matrix with a gradient of zeros is not multiplied by 1 - lr * weight_decay",
            DECAY,
            "at the optimizer's class, and at which number reaches it",
        ),
        "parameter-left-out": (
            "a parameter with a gradient is not updated",
            "every parameter belongs to one of the optimizer's groups",
            "at which parameters are in no group",
        ),
        "wrong-update": (
            "a step with a gradient is not AdamW's step at the groups' learning rate",
            "AdamW has its usual betas and eps, and every group the rate that the config or "
            "the training loop gives it",
            "at the optimizer's class, and at the rate of each group",
        ),
        "depends-on-calls": (
            "the rate of a step depends on earlier calls",
            SCHEDULE,
            "at what is stored between two calls",
        ),
        "depends-on-the-plan": (
            "planning more epochs, or other ranks, changes the rates of steps already trained",
            SCHEDULE,
            "at which setting ends the decay",
        ),
        "fails-without-warm-up": (
            "warmup_steps=0, or a decay of a single step, raises an error",
            "warmup_steps=0 must work, and so must a decay of a single step",
            "at what you divide by, and at when that is 0",
        ),
        "one-step-late": (
            "each step has the rate of the step before it",
            "steps are counted from 1",
            "at the rate of step 1",
        ),
        "wrong-warm-up": (
            "the warmup does not rise linearly to the peak",
            "the rate rises linearly and reaches the peak at step warmup_steps",
            "at the first and the last step of the warmup",
        ),
        "leaves-the-floor": (
            "from decay_steps on, the rate is not min_lr_fraction of the peak",
            "the rate reaches its floor at the horizon and stays there",
            "at step decay_steps, and at the steps after it",
        ),
        "wrong-curve": (
            "between peak and floor the rate is not half a cosine",
            "half a cosine leads from the peak, after the warmup, to the floor at the horizon",
            "at where the cosine starts and ends, and at what you multiply it by",
        ),
    }
)
