"""The layers, what decays, and the learning rate as a function of the step."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from trainer_core.config import TrainConfig

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.findings import only_first, some
from rehearsal.kit.observe.anti_cheat import close_the_answer
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding, FindingTable

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
            "on a constant gradient, a step does not move a weight by the learning rate",
            "on a constant gradient, AdamW's first steps move a weight by the learning rate",
            "at the optimizer's class, and at the rate of each group",
        ),
        "depends-on-calls": (
            "the rate of a step depends on earlier calls",
            SCHEDULE,
            "at what is stored between two calls",
        ),
        "depends-on-the-plan": (
            "planning more epochs changes the rates of steps already trained",
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
CODES = TABLE.codes
INPUTS, HIDDEN, CLASSES = 5, 7, 3
WIDE, BATCH, DROP, GAIN = 512, 1024, 0.25, 9.0  # for the statistics of dropout
LR, NEXT_LR, WEIGHT_DECAY = 0.5, 0.125, 0.25
PEAK, LAST_STEP = 2.0, 40
# Warm-up, horizon, floor, epochs: the last two are one schedule under two plans.
PLANS = [(0, 30, 0.0, 1), (0, 1, 0.25, 1), (5, 6, 0.5, 1), (8, 20, 0.25, 1), (8, 20, 0.25, 9)]


# ---------------------------------------------------------------- in the ranks


class OddShapes(nn.Module):
    """One parameter of each number of dimensions, a tied one, and one without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.tokens = nn.Embedding(4, 3)
        self.kernel = nn.Conv1d(3, 2, 3)
        self.norm = nn.LayerNorm(3)
        self.temperature = nn.Parameter(torch.ones(()))
        self.unused = nn.Linear(2, 2, bias=False)
        self.head = nn.Linear(3, 4)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            parameter.data.copy_(torch.rand(parameter.shape, generator=generator) + 1)


def values_of(model: nn.Module) -> dict[str, list[float]]:
    """Every parameter's numbers."""
    return {name: p.detach().flatten().tolist() for name, p in model.named_parameters()}


def body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Build models, inspect them, take steps, and ask for learning rates."""
    answers = ["TinyNet", "build_optimizer", "learning_rate_at"]
    close_the_answer(context, "trainer_core.model", answers)
    random.seed(context.rank)
    np.random.seed(context.rank)
    shapes = [
        list(p.shape) for p in learner.TinyNet(INPUTS, HIDDEN, CLASSES, 3, 0.1).parameters()
    ]
    answer: dict[str, Any] = {"shapes": shapes}
    if matrices_of(shapes) != matrices_of(EXPECTED_SHAPES):
        return answer
    weights = []
    for seed in (11, 11, 12):
        torch.manual_seed(seed)
        weights.append(values_of(learner.TinyNet(INPUTS, HIDDEN, CLASSES, 2, 0.1)))
        answer["seed_kept"] = torch.initial_seed() == seed
    answer |= {"weights": weights, "noise": noise_without_dropout(learner)}
    answer |= {"batch": batch_fault(learner), **outputs(learner)}
    if answer["batch"] is None:
        answer["dropout"] = dropout_statistics(learner)
    return {
        **answer,
        "decayed": updates(learner, gradient=0.0),
        "updated": updates(learner, gradient=0.25),
        "curves": [curves(learner, plan) for plan in PLANS],
    }


EXPECTED_SHAPES = [[HIDDEN, INPUTS], [HIDDEN, HIDDEN], [HIDDEN, HIDDEN], [CLASSES, HIDDEN]]


def matrices_of(shapes: list[list[int]]) -> list[list[int]]:
    """The two-dimensional shapes, as (in, out) or (out, in)."""
    return sorted(sorted(shape) for shape in shapes if len(shape) == 2)


@torch.no_grad()
def noise_without_dropout(learner: SimpleNamespace) -> float:
    """By how much two calls in train mode differ at dropout=0.0; NaN if the logits are NaN."""
    torch.manual_seed(3)
    model = learner.TinyNet(INPUTS, HIDDEN, CLASSES, 1, 0.0).train()
    inputs = torch.randn(4, INPUTS)
    difference: float = (model(inputs) - model(inputs)).abs().max().item()
    return difference


def batch_fault(learner: SimpleNamespace) -> str | None:
    """What is wrong with an empty batch, or with one sample alone."""
    model = learner.TinyNet(INPUTS, HIDDEN, CLASSES, 1, 0.0).train()
    inputs = torch.randn(4, INPUTS)
    given = "an empty batch"
    try:
        logits = model(inputs[:0])
        logits.sum().backward()
        given = "a batch of 4 samples"
        together = model(inputs)[2]
        given = "a batch of 1 sample"
        difference = (together - model(inputs[2:3])[0]).abs().max().item()
    except (RuntimeError, ValueError, IndexError) as error:
        return f"{given} raised {type(error).__name__}: {error}"
    if logits.shape != (0, CLASSES):
        return f"an empty batch gives outputs of shape {tuple(logits.shape)}"
    if not difference < 1e-4:
        return f"a sample's logits change by {difference:.2g} if its batch holds other samples"
    wrong = [n for n, p in model.named_parameters() if p.grad is None or p.grad.any()]
    found = "after backward on an empty batch, these have no gradient or a nonzero one: "
    return found + some(wrong) if wrong else None


@torch.no_grad()
def outputs(learner: SimpleNamespace) -> dict[str, Any]:
    """Whether the model is nonlinear, and its outputs for zero matrices and a known bias."""
    torch.manual_seed(5)
    model = learner.TinyNet(INPUTS, HIDDEN, CLASSES, 1, 0.0).eval()
    x, y = torch.randn(2, 4, INPUTS) * 3
    bend = model(x) + model(y) - model(x + y) - model(torch.zeros_like(x))
    for parameter in model.parameters():
        values = torch.tensor([10.0, -20.0, 30.0])
        parameter.copy_(values if parameter.shape == (CLASSES,) else torch.zeros(()))
    return {"bend": bend.abs().max().item(), "logits": model(x).flatten().tolist()}


@torch.no_grad()
def dropout_statistics(learner: SimpleNamespace) -> dict[str, Any]:
    """Mean and relative variance of a logit, with weights that make it a plain average."""
    torch.manual_seed(7)
    model = learner.TinyNet(INPUTS, WIDE, CLASSES, 2, DROP)
    for parameter in model.parameters():
        size = sorted(parameter.shape)
        values = {(WIDE,): 3.0, (WIDE, WIDE): GAIN / WIDE, (CLASSES, WIDE): 1 / WIDE}
        parameter.fill_(values.get(tuple(size), 0.0))
    inputs = torch.zeros(BATCH, INPUTS)
    model.eval()
    quiet = torch.cat([model(inputs)[:, 0], model(inputs)[:, 0]])
    model.train()
    noisy = model(inputs)[:, 0] / quiet.mean()
    return {
        "eval": (quiet.max() - quiet.min()).item(),
        "mean": noisy.mean().item(),
        "variance": noisy.var().item(),
    }


def updates(learner: SimpleNamespace, gradient: float) -> dict[str, list[list[float]]]:
    """Each parameter but the unused one before and after two steps, at two rates."""
    model = OddShapes()
    cfg = TrainConfig(learning_rate=LR, weight_decay=WEIGHT_DECAY)
    optimizer = learner.build_optimizer(cfg, model)
    seen = [values_of(model)]
    for rate in (LR, NEXT_LR):
        if rate != LR:
            for group in optimizer.param_groups:
                group["lr"] = rate
        for name, parameter in model.named_parameters():
            if name != "unused.weight":
                parameter.grad = torch.full_like(parameter, gradient)
        optimizer.step()
        seen.append(values_of(model))
    return {name: [values[name] for values in seen] for name in seen[0]}


def curves(learner: SimpleNamespace, plan: tuple[int, int, float, int]) -> list[Any]:
    """The rates of all steps, in falling and in rising order; or the error."""
    warmup, horizon, floor, epochs = plan
    cfg = TrainConfig(
        learning_rate=PEAK,
        warmup_steps=warmup,
        decay_steps=horizon,
        min_lr_fraction=floor,
        max_epochs=epochs,
        dataset_size=64,
        micro_batch_size=16,
    )
    steps, step, rates = range(1, LAST_STEP + 1), 0, []
    try:
        for step in [*reversed(steps), *steps]:
            rates.append(float(learner.learning_rate_at(cfg, step)))
    except ArithmeticError as error:
        return [f"learning_rate_at(cfg, {step}) raised {type(error).__name__}: {error}"]
    return [rates[:LAST_STEP][::-1], rates[LAST_STEP:]]


# ---------------------------------------------------------------- in the kernel


def net_findings(answer: dict[str, Any], other: dict[str, Any]) -> Iterable[Finding]:
    """TinyNet."""
    if "weights" not in answer:
        shapes = [tuple(shape) for shape in answer["shapes"] if len(shape) == 2]
        found = f"TinyNet({INPUTS}, {HIDDEN}, {CLASSES}, num_layers=3, ...) has "
        found += f"matrices of shapes {some(shapes)}" if shapes else "no matrices"
        yield TABLE("wrong-layers", found)
        return
    first, again, others = answer["weights"]
    if first != again or first != other["weights"][0]:
        where = "in a second call" if first != again else "on the other rank"
        found = f"after torch.manual_seed(11), the weights differ {where}"
        yield TABLE("weights-not-from-the-seed", found)
    if first == others or not answer["seed_kept"]:
        found = "the model has the same weights after torch.manual_seed(11) as after "
        found += "torch.manual_seed(12)"
        if first != others:
            found = "building the model after torch.manual_seed(12) changed torch's seed"
        yield TABLE("weights-not-from-the-seed", found)
    if not answer["noise"] < 1e-4:
        found = "with dropout=0.0, in train mode, "
        if math.isfinite(answer["noise"]):
            found += f"two calls give logits that differ by {answer['noise']:.2g}"
            yield TABLE("no-dropout", found)
        else:
            found += "the logits of finite inputs are NaN or infinite"
            yield TABLE("wrong-dropout", found, "at what forward computes for a dropout of 0")
    if answer["batch"]:
        yield TABLE("depends-on-the-batch", answer["batch"])
    if answer["bend"] < 1e-4:
        found = "for random x and y, f(x) + f(y) = f(x + y) + f(0), as for a linear layer"
        yield TABLE("is-linear", found)
    logits = answer["logits"]
    if logits != [10, -20, 30] * 4:
        found = "with weights of 0 and a last bias of 10, -20, 30, the outputs are "
        found += ", ".join(f"{logit:.3g}" for logit in logits[:CLASSES])
        yield TABLE("not-logits", found)
    noise = answer["dropout"]
    if noise["eval"] > 1e-3:
        found = f"in eval mode, equal inputs give logits that differ by {noise['eval']:.2g}"
        yield TABLE("dropout-in-eval", found)
    if noise["variance"] < 1e-12:
        found = f"with dropout={DROP}, equal inputs give equal logits in train mode"
        yield TABLE("no-dropout", found)
    # Two places: the effect of the first is scaled by the gain, GAIN of GAIN + 1.
    expected = (1 + (GAIN / (GAIN + 1)) ** 2) * DROP / (1 - DROP) / WIDE
    ratio, mean = noise["variance"] / expected, noise["mean"]
    if not 0.75 < ratio < 1.33 or abs(mean - 1) > 0.02:
        found = f"with dropout={DROP} and 2 hidden layers, the mean logit in training is "
        found += (
            f"{mean:.2f} times the one in evaluation, and its variance is {ratio:.2f} times "
        )
        found += "the right one"
        yield TABLE("wrong-dropout", found)


def optimizer_findings(answer: dict[str, Any]) -> Iterable[Finding]:
    """What decays, and how far a step moves."""
    for name, (before, after, _) in answer["decayed"].items():
        factor = after[0] / before[0]
        found = f"with a zero gradient, lr {LR} and weight_decay {WEIGHT_DECAY}, a step "
        found += f"multiplied {name} by {factor:.4f}"
        if name == "unused.weight":
            continue
        is_matrix = name in ("tokens.weight", "kernel.weight", "head.weight")
        if not is_matrix and abs(factor - 1) > 1e-5:
            yield TABLE("decays-vectors", found)
        elif is_matrix and abs(factor - 1) < 1e-5:
            yield TABLE("does-not-decay", found)
        elif is_matrix and abs(factor - 1 + LR * WEIGHT_DECAY) > 1e-5:
            yield TABLE("wrong-decay", found)
    for name, (before, after, last) in answer["updated"].items():
        moved = [before[0] - after[0], after[0] - last[0]]
        if name == "unused.weight":
            continue
        if moved[0] == 0:
            found = f"{name} has a gradient, and a step did not change it"
            yield TABLE("parameter-left-out", found)
        if name.startswith(("norm", "temperature")) and any(
            abs(way / rate - 1) > 1e-3 for way, rate in zip(moved, (LR, NEXT_LR), strict=True)
        ):
            found = (
                f"on a constant gradient, at rates {LR} and then {NEXT_LR}, {name} moved by "
            )
            yield TABLE("wrong-update", f"{found}{moved[0]:.3f} and {moved[1]:.3f}")


def rate_at(step: int, plan: tuple[int, int, float, int]) -> float:
    """What the brief says."""
    warmup, horizon, floor, _ = plan
    if step <= warmup:
        return PEAK * step / warmup
    way = min(1.0, (step - warmup) / (horizon - warmup))
    return PEAK * (floor + (1 - floor) * (1 + math.cos(math.pi * way)) / 2)


def plan_said(plan: tuple[int, int, float, int]) -> str:
    """Its settings."""
    warmup, horizon, floor, _ = plan
    return (
        f"with warmup_steps={warmup}, decay_steps={horizon}, a peak of {PEAK} and a floor of "
        f"{floor} of it"
    )


def schedule_findings(answer: dict[str, Any]) -> Iterable[Finding]:
    """The learning rate."""
    for plan, curve in zip(PLANS, answer["curves"], strict=True):
        said = plan_said(plan)
        if len(curve) == 1:
            yield TABLE("fails-without-warm-up", f"{said}, {curve[0]}")
            return
        backwards, rates = curve
        pairs = zip(map(repr, backwards), map(repr, rates), strict=True)  # NaN is NaN
        if differ := [step for step, (a, b) in enumerate(pairs, 1) if a != b]:
            step = differ[0]
            found = f"{said}, step {step} has the rate {backwards[step - 1]:.4g} if steps are "
            found += f"asked for in descending order, and {rates[step - 1]:.4g} in ascending "
            found += "order"
            yield TABLE("depends-on-calls", found)
    short, long = answer["curves"][-2][1], answer["curves"][-1][1]
    if short != long:
        step = next(i for i in range(LAST_STEP) if short[i] != long[i]) + 1
        found = f"with decay_steps=20, step {step} has the rate {short[step - 1]:.4g} if "
        found += f"max_epochs is 1, and {long[step - 1]:.4g} if it is 9"
        yield TABLE("depends-on-the-plan", found)
    for plan, (_, rates) in zip(PLANS[::-1], answer["curves"][::-1], strict=True):
        warmup, horizon, _, _ = plan
        said = plan_said(plan)
        expected = [rate_at(step, plan) for step in range(1, LAST_STEP + 1)]
        wrong = [i for i in range(LAST_STEP) if not abs(rates[i] - expected[i]) < 1e-9 * PEAK]
        late = max(abs(a - b) for a, b in zip(rates[1:], expected, strict=False)) < 1e-9 * PEAK
        if not wrong:
            continue
        found = f"{said}, step {wrong[0] + 1} has the rate {rates[wrong[0]]:.6g}"
        if late:
            found = f"{said}, step 1 has the rate {rates[0]:.4g}, and every later step has the "
            yield TABLE("one-step-late", f"{found}rate that the step before it should have")
        elif wrong[0] < warmup:
            # Only its last step: the lines for the decay may compute that one, too.
            is_decay = wrong[:2] == [warmup - 1, warmup]
            look = f"at what computes step {warmup} and the next one: both are wrong"
            yield TABLE("wrong-warm-up", found, look if is_decay else "")
        elif wrong[0] + 1 < horizon:
            yield TABLE("wrong-curve", found)
        else:
            yield TABLE("leaves-the-floor", found)


def findings(reports: Sequence[RankReport], _: object) -> Iterable[Finding]:
    """In the order of the cell."""
    answer = reports[0].answer
    yield from net_findings(answer, reports[1].answer)
    yield from optimizer_findings(answer)
    yield from schedule_findings(answer)


SCENARIOS = [Scenario(name="two ranks", body=body, judge=only_first(findings), deadline_s=5)]
