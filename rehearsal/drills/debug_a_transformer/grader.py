"""What the model computes, what its loss is a mean of, and what a step of training does.

Every number is compared with a reference on the learner's own parameters, at sizes and on
sequences that ``plan`` draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, islice, pairwise
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, FindingTable, counted
from rehearsal.kit.judge.findings import some

from .in_rank import DROPOUT, evaluation_body, model_body, training_body
from .plan import LEVEL, Plan, plan_of

MOST = 3  # findings of a check

TABLE = FindingTable(
    {
        "parameters-changed": (
            "the model has parameters of other names or shapes than the program's",
            "parameters keep their names and shapes, so that old checkpoints load",
            "at the constructors",
        ),
        "sees-the-future": (
            "a later token changes the logits of an earlier position",
            "the logits of a position depend on its token and those before it, on no later one",
            "at everything in attention that adds up over positions",
        ),
        "wrong-attention": (
            "attention isn't softmax(q k / sqrt(d)) v, head by head",
            "each head computes softmax(q k / sqrt(d)) v, with d its own size",
            "at each factor and each dimension in attention",
        ),
        "wrong-block": (
            "the stream doesn't pass from the embeddings to the logits as it should",
            "each branch adds to the stream what it makes of the normalized stream; the last "
            "norm and the head make the logits",
            "at what goes into each addition",
        ),
        "dropout-in-evaluation": (
            "dropout acts while the model is evaluated",
            "dropout is off in every evaluation",
            "at the mode that the model is in",
        ),
        "wrong-targets": (
            "the loss doesn't compare each position's logits with the token that follows",
            "a token is predicted from the tokens before it, beginning with the second one",
            "at which token each logit is compared with",
        ),
        "pads-count": (
            "padding changes the loss",
            "zeros at the end of a sequence are padding, and no targets",
            "at the sum of the loss, and at what it is divided by",
        ),
        "tokens-weigh-differently": (
            "a target's weight in the loss depends on which micro-batch it is in",
            "a loss is a mean over all targets, each with the same weight",
            "at what each micro-batch's loss is divided by",
        ),
        "evaluation-builds-a-graph": (
            "the logits of an evaluation require a gradient",
            "an evaluation builds no graph, which would only cost memory",
            "at what happens around the model's calls in an evaluation",
        ),
        "micro-batch-too-large": (
            "more sequences go through the model at once than fit",
            "at most micro_batch_size sequences go through the model at once",
            "at how a batch is cut",
        ),
        "wrong-return-value": (
            "evaluate or train returns something else than floats",
            "evaluate returns a float; train returns two lists of floats",
            "at what each function returns",
        ),
        "loss-does-not-fall": (
            "a trained model's loss on the held-out sequences is too high",
            f"training gets the held-out loss below {LEVEL}",
            "at what a step does with its gradient",
        ),
        "not-once-per-epoch": (
            "an epoch doesn't train each sequence once, in batches of batch_size",
            "an epoch trains each sequence once, in batches of batch_size; the last is smaller",
            "at which sequences each batch takes",
        ),
        "same-order": (
            "two epochs, or two seeds, have the same order",
            "each epoch has an order of its own, and so has each seed",
            "at what the order is drawn from, and when that is made",
        ),
        "order-not-from-the-seed": (
            "two runs with the same seed have different orders",
            "the order depends on seed, and on no other random state",
            "at what the order is drawn from",
        ),
        "wrong-gradient": (
            "a step doesn't follow the gradient of its own batch",
            "a step follows the mean gradient of all of its batch, and of no other, with "
            "momentum 0.9",
            "at what each backward adds to, what clears it, and when the optimizer steps",
        ),
        "wrong-rate": (
            "a step has the right direction and the wrong size",
            "step s, from 1, has the rate lr * min(s / W, sqrt(W / s)), with W = warmup_steps",
            "at how the steps are counted, and at everything that scales a gradient",
        ),
        "wrong-clipping": (
            "a step is right without clipping, and wrong with it",
            "the gradient of the whole step is clipped to the norm max_norm",
            "at which gradients exist at the time they're clipped",
        ),
        "trains-without-dropout": (
            "dropout has no effect in a step",
            "dropout acts in every training step",
            "at the mode that the model is in, in each epoch",
        ),
        "wrong-log": (
            "a returned loss isn't the one that it should be",
            "train returns each step's mean loss, before its update, and the held-out loss "
            "after each epoch",
            "at which numbers are collected, and when",
        ),
    }
)
CODES = TABLE.codes
Reading = Callable[[Plan, dict[str, Any]], Iterable[Finding]]


def equal(ours: float | None, theirs: float) -> bool:
    """Whether two losses are equal up to rounding."""
    return ours is not None and math.isclose(ours, theirs, rel_tol=3e-5)


def shape_findings(answer: dict[str, Any]) -> Iterator[Finding]:
    """Parameters that aren't the program's."""
    for name, (found, wanted) in list(answer.get("shapes", {}).items())[:1]:
        text = f"the model has no parameter {name}, of shape {wanted}"
        if found:
            text = f"the model's parameter {name} has the shape {found}"
            text += f", not {wanted}" if wanted else "; the program's model has none"
        yield TABLE("parameters-changed", text)


def model_findings(plan: Plan, answer: dict[str, Any]) -> Iterator[Finding]:
    """The model, from the outside in: whatever a part gets wrong, the later checks see, too."""
    yield from shape_findings(answer)
    if "output" in answer:
        found = f"a batch of 3 sequences gives {answer['output']}, not logits of shape "
        yield TABLE("wrong-block", found + answer["wanted"], "at what forward returns")
    if "noise" in answer:
        found = f"with dropout={DROPOUT}, in eval mode, two calls of the model with the same "
        found += f"tokens give logits that differ by up to {answer['noise']:.2g}"
        yield TABLE("dropout-in-evaluation", found, "at what each dropout depends on")
    if "finite" not in answer:
        return
    if not answer["finite"]:
        found = "for finite parameters, the logits are NaN or infinite"
        yield TABLE("wrong-attention", found, "at what the softmax gets in each row")
        return
    if not answer["stream"]:
        found = "with all attention and MLP outputs at zero, the logits aren't those of the "
        yield TABLE("wrong-block", found + "normalized sum of token and position embeddings")
        return
    if not answer["mlp"]:
        found = "with all attention outputs at zero, the logits aren't those of a residual "
        yield TABLE("wrong-block", found + "stream of MLPs, each on the normalized stream")
    if answer["leak"]:
        changed, position, off = answer["leak"]
        found = f"changing the token at position {changed} changes the logits at position "
        yield TABLE("sees-the-future", f"{found}{position} by up to {off:.2g}")
    elif not answer["attention"]:
        found = f"with {plan.shape.num_heads} heads in a width of {plan.shape.width}, and MLP "
        found += "outputs at zero, the logits aren't those of the formula"
        yield TABLE("wrong-attention", found)
    elif answer["mlp"] and not (answer["all"] and answer["short"]):
        found = "attention and MLP are right alone, and the logits are wrong with both"
        if answer["all"]:
            found = f"the logits are right for {plan.shape.context_length} positions, and "
            found += "wrong for 5"
        yield TABLE("wrong-block", found)


def evaluation_findings(plan: Plan, answer: dict[str, Any]) -> Iterator[Finding]:
    """What evaluate returns: each evaluation adds one difficulty."""
    yield from shape_findings(answer)
    if "shapes" in answer:
        return
    whole, again, padded, cut = answer["evaluations"]
    if bad := [one["returned"] for one in answer["evaluations"] if one["loss"] is None]:
        yield TABLE("wrong-return-value", f"evaluate returned {bad[0]}, not a float")
        return
    if cut["largest"] > cut["size"]:
        found = f"with micro_batch_size={cut['size']}, evaluate put "
        found += f"{counted(cut['largest'], 'sequence')} through the model at once"
        yield TABLE("micro-batch-too-large", found)
    if whole["graphs"]:
        yield TABLE("evaluation-builds-a-graph", "in evaluate, the logits require a gradient")
    losses = "evaluate returned {:.4g}; the mean is {:.4g}"
    if not equal(whole["loss"], again["loss"]):
        found = "for the same weights and sequences, evaluate returned "
        found += f"{whole['loss']:.4g} and {again['loss']:.4g}"
        yield TABLE("dropout-in-evaluation", found)
    elif not equal(whole["loss"], whole["right"]):
        found = "for sequences without padding, in one micro-batch, "
        found += losses.format(whole["loss"], whole["right"])
        yield TABLE("wrong-targets", found)
    elif not equal(padded["loss"], padded["right"]):
        found = "for sequences with padding, in one micro-batch, "
        found += losses.format(padded["loss"], padded["right"]) + " over the real targets"
        yield TABLE("pads-count", found)
    elif not equal(cut["loss"], cut["right"]):
        found = f"with micro_batch_size={cut['size']}, "
        found += losses.format(cut["loss"], cut["right"])
        found += f". In one micro-batch, it returned {padded['loss']:.4g}"
        yield TABLE("tokens-weigh-differently", found)


def training_findings(plan: Plan, answer: dict[str, Any]) -> Iterator[Finding]:
    """Four runs: the second differs in its dropout, the third in its seed, the fourth clips."""
    facts, settings = [answer[run.name] for run in plan.runs], plan.runs[-1].settings
    last = facts[-1]
    if not last["end loss"] < LEVEL:
        found = f"after {settings.epochs} epochs, the mean loss on the held-out sequences, "
        found += f"computed by the check, is {last['end loss']:.3g}"
        yield TABLE("loss-does-not-fall", found)
    yield from order_findings(plan, facts)
    if not all(one["fits"] for one in facts):
        return
    yield from update_findings(plan, facts)
    yield from mode_findings(plan, facts[1])
    for one in (facts[0], last):
        yield from log_findings(one)


def order_findings(plan: Plan, facts: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    """Which sequences each run trained, in which order."""
    for run, one in zip(plan.runs, facts, strict=True):
        settings, order, count = run.settings, one["order"], run.num_sequences
        epochs = [order[first : first + count] for first in range(0, len(order), count)]
        if one["largest"] > settings.micro_batch_size:
            found = f"with micro_batch_size={settings.micro_batch_size}, train put "
            found += f"{counted(one['largest'], 'sequence')} through the model at once"
            yield TABLE("micro-batch-too-large", found)
            return
        if one["unknown"]:
            found = f"{one['unknown']} rows went through the model that are no sequence's "
            yield TABLE("not-once-per-epoch", found + "beginning")
            return
        uneven = [n for n, epoch in enumerate(epochs) if sorted(epoch) != [*range(count)]]
        if uneven or len(epochs) != settings.epochs:
            found = f"with epochs={settings.epochs}, {counted(count, 'sequence')} went through "
            found += f"the model {counted(len(order), 'time')} to be trained"
            if uneven and len(order) == count * settings.epochs:
                epoch = epochs[uneven[0]]
                missing = sorted({*range(count)} - {*epoch})
                found = f"epoch {uneven[0]} didn't train the sequences {some(missing)}"
            yield TABLE("not-once-per-epoch", found)
            return
        if not one["fits"]:
            found = f"with batch_size={settings.batch_size} and micro_batch_size="
            found += f"{settings.micro_batch_size}, the model's calls don't add up to batches "
            yield TABLE("not-once-per-epoch", found + "of that size", "at how a batch is cut")
            return
        if epochs[0] == [*range(count)]:
            yield TABLE("same-order", "epoch 0 trains the sequences in the order they came in")
            return
        if found := habit(epochs):
            yield TABLE("same-order", found)
            return
        if repeated := [n for n, epoch in enumerate(epochs) if epoch in epochs[:n]]:
            first = epochs.index(epochs[repeated[0]])
            found = f"epochs {first} and {repeated[0]} have the same order"
            yield TABLE("same-order", found)
            return
    first, again, other = (one["order"] for one in facts[:3])
    seeds = [run.settings.seed for run in plan.runs]
    if first[: len(again)] != again:
        found = f"two runs with seed={seeds[0]}, begun with different random states of torch, "
        yield TABLE("order-not-from-the-seed", found + "have different orders")
    if first[: len(other)] == other:
        found = f"seed={seeds[0]} and seed={seeds[2]} have the same order"
        yield TABLE("same-order", found)


def habit(epochs: Sequence[Sequence[int]]) -> str:
    """What the orders of all epochs have in common, if it's too much for chance; "" if not."""
    if len(epochs) < 2:
        return ""
    places = [{row: place for place, row in enumerate(epoch)} for epoch in epochs]
    pairs = list(combinations(places[0], 2))
    fixed = sum(len({place[a] < place[b] for place in places}) == 1 for a, b in pairs)
    # By chance, two sequences come in the same order in all of 8 epochs in 1 of 128 cases.
    if len(epochs) > 4 and len({*map(tuple, epochs)}) > 1 and fixed > 0.2 * len(pairs):
        found = f"in all {len(epochs)} epochs, {fixed} of {len(pairs)} pairs of sequences come "
        return found + "in the same order"
    first, second = ({*pairwise(epoch)} for epoch in epochs[:2])
    both = len(first & second)
    if len(first) // 2 < both < len(first):
        return f"epochs 0 and 1 have {both} of {len(first)} pairs of neighbors in common"
    return ""


def update_findings(plan: Plan, facts: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    """The first step that moved the weights to somewhere else than it should have."""
    plain, clipped = facts[0]["update"], facts[-1]["update"]
    update = plain or clipped
    if not update:
        return
    found = f"step {update['step']}, with {counted(update['of'], 'micro-batch')}"
    found = found.replace("micro-batchs", "micro-batches")
    what = update["what"]
    if what == "moved within":
        text = f"{found}, changed the weights between two of its micro-batches"
        yield TABLE("wrong-gradient", text)
    elif what == "stood still" and facts[0]["moved"]:
        yield TABLE("wrong-rate", f"{found}, didn't change the weights, and other steps did")
    elif what == "stood still":
        yield TABLE("wrong-gradient", f"{found}, didn't change the weights")
    elif plain is None:
        run = plan.runs[-1].settings
        text = f"{found} and max_norm={run.max_norm:.3g}, didn't follow its clipped gradient; "
        yield TABLE("wrong-clipping", text + "with a max_norm that clips nothing, it's right")
    elif what == "weights" and len(update["used"]) == update["of"]:
        text = f"{found}, followed a sum of their gradients in which not every target has the "
        yield TABLE("tokens-weigh-differently", text + "same weight")
    elif what == "weights":
        text = f"{found}, followed only the gradient of micro-batch "
        yield TABLE("wrong-gradient", text + " and ".join(map(str, update["used"])))
    elif what == "size":
        text = f"{found}, moved the weights in the right direction, but "
        yield TABLE("wrong-rate", f"{text}{update['ratio']:.3g} times as far as it should")
    else:
        text = f"{found}, is away from where it should lead, by {update['away']:.2g} of the "
        yield TABLE("wrong-gradient", text + "length of the step")


def mode_findings(plan: Plan, facts: dict[str, Any]) -> Iterator[Finding]:
    """Dropout acts in the steps, and nowhere else."""
    drops, dropout = facts["drops"], plan.runs[1].dropout
    if not all(drops):
        per_epoch = len(drops) // plan.runs[1].settings.epochs
        epoch = drops.index(False) // per_epoch
        found = f"with dropout={dropout}, the logits of a training step in epoch {epoch} are "
        yield TABLE("trains-without-dropout", found + "those without dropout")
    if any(facts["drops held out"]):
        found = f"with dropout={dropout}, dropout changes the held-out logits in train"
        yield TABLE("dropout-in-evaluation", found)
    if facts["graphs"]:
        found = "in train, the logits of the held-out sequences require a gradient"
        yield TABLE("evaluation-builds-a-graph", found)


def log_findings(facts: dict[str, Any]) -> Iterator[Finding]:
    """What train returned."""
    if facts["returned"] is None or any(None in values for values in facts["returned"]):
        found = f"train returned {facts['said']}, not two lists of floats"
        yield TABLE("wrong-return-value", found)
        return
    names = (("losses", "step", 1), ("held out", "epoch", 0))
    for ours, (name, noun, base) in zip(facts["returned"], names, strict=True):
        theirs = facts[name]
        if len(ours) != len(theirs):
            found = f"train returned {counted(len(ours), 'loss')} for {len(theirs)} {noun}s"
            yield TABLE("wrong-log", found.replace("losss", "losses"))
            return
        for at, (one, right) in enumerate(zip(ours, theirs, strict=True), base):
            if not equal(one, right):
                found = f"for {noun} {at}, train returned {one:.4g}; the mean loss "
                found += "on the held-out sequences was " if base == 0 else "of its batch was "
                yield TABLE("wrong-log", f"{found}{right:.4g}")
                return


def judge(
    plan: Plan,
    reading: Reading,
    reports: Sequence[RankReport],
    earlier: Mapping[str, Sequence[RankReport]],
) -> Iterator[Finding]:
    """The first few findings of one job."""
    yield from islice(reading(plan, reports[0].answer), MOST)


def scenarios(seed: int) -> list[Scenario]:
    """The model, its loss, its training: each one needs those before it."""
    plan = plan_of(seed)
    return [
        Scenario(
            name=name,
            body=partial(body, plan),
            judge=partial(judge, plan, reading),
            world_size=1,
            deadline_s=deadline_s,
        )
        for name, body, reading, deadline_s in (
            ("the model", model_body, model_findings, 6),
            ("the loss", evaluation_body, evaluation_findings, 6),
            ("the training", training_body, training_findings, 15),
        )
    ]
