"""The layers, what decays, and the learning rate as a function of the step.

The network is compared with the one that the brief describes, the optimizer with torch's AdamW,
and the rates with the brief's formula, on sizes and settings that ``plan`` draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding
from rehearsal.kit.judge.findings import only_first, some
from .codes import TABLE
from .in_rank import GAIN, UNUSED, WIDE, model_parts
from .plan import Drawn, Schedule, Updates, plan_of

CODES = TABLE.codes


def net_findings(
    plan: Drawn, answer: dict[str, Any], other: dict[str, Any]
) -> Iterable[Finding]:
    """TinyNet."""
    inputs, hidden, classes = plan.widths
    if "weights" not in answer:
        shapes = [tuple(shape) for shape in answer["shapes"] if len(shape) == 2]
        found = f"TinyNet({inputs}, {hidden}, {classes}, num_layers=3, ...) has "
        found += f"matrices of shapes {some(shapes)}" if shapes else "no matrices"
        yield TABLE("wrong-layers", found)
        return
    yield from seed_findings(plan, answer, other)
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
    logits, biases = answer["logits"], [index * 10 - 10 for index in range(classes)]
    if logits != biases * 4:
        found = f"with weights of 0 and a last bias of {some(biases)}, the outputs are "
        found += ", ".join(f"{logit:.3g}" for logit in logits[:classes])
        yield TABLE("not-logits", found)
    if answer["dropout"]["eval"] > 1e-3:
        found = "in eval mode, equal inputs give logits that differ by "
        yield TABLE("dropout-in-eval", f"{found}{answer['dropout']['eval']:.2g}")
    for layers, away in zip((1, plan.layers), answer["away"], strict=True):
        if away is None or not away < 1e-3:
            found = f"with num_layers={layers}, "
            if away is None:
                found += f"the parameters are not a weight and a bias for each of {layers + 1} "
                found += "linear layers"
            else:
                found += (
                    f"random weights and dropout={plan.dropout}, the logits in eval mode are "
                )
                found += f"{away:.2g} away from those of the network in the brief"
            yield TABLE("not-the-network", found)
    yield from dropout_findings(plan, answer)


def seed_findings(
    plan: Drawn, answer: dict[str, Any], other: dict[str, Any]
) -> Iterable[Finding]:
    """Where the weights come from."""
    first, again, others = answer["weights"]
    seeds = f"torch.manual_seed({plan.seed + 1})"
    if first != again or first != other["weights"][0]:
        where = "in a second call" if first != again else "on the other rank"
        found = f"after torch.manual_seed({plan.seed}), the weights differ {where}"
        yield TABLE("weights-not-from-the-seed", found)
    if fixed := [n for n, values in first.items() if is_drawn(values) and others[n] == values]:
        found = f"{some(fixed)}: the same after torch.manual_seed({plan.seed}) as after {seeds}"
        yield TABLE("weights-not-from-the-seed", found)
    if first == others or others == answer["following"]:
        found = f"two models built one after the other, after {seeds}, have equal weights"
        yield TABLE("weights-not-from-the-seed", found)
    if not answer["seed_kept"]:
        found = f"building the model after {seeds} changed torch's seed"
        yield TABLE("weights-not-from-the-seed", found)


def is_drawn(values: Sequence[float]) -> bool:
    """Whether a parameter isn't one constant, as a bias or a gain may be."""
    return len({*values}) > 1


def dropout_findings(plan: Drawn, answer: dict[str, Any]) -> Iterable[Finding]:
    """How many units are kept, how they are scaled, and after which layers."""
    noise, kept, drop = answer["dropout"], answer["kept"], plan.dropout
    if noise["variance"] < 1e-12:
        found = f"with dropout={drop}, equal inputs give equal logits in train mode"
        yield TABLE("no-dropout", found)
    # Two places: the effect of the first is scaled by the gain, GAIN of GAIN + 1.
    expected = (1 + (GAIN / (GAIN + 1)) ** 2) * drop / (1 - drop) / WIDE
    ratio, mean = noise["variance"] / expected, noise["mean"]
    if not 0.75 < ratio < 1.33 or abs(mean - 1) > 0.02:
        found = f"with dropout={drop} and 2 hidden layers, the mean logit in training is "
        found += f"{mean:.2f} times the one in evaluation, and its variance is {ratio:.2f} "
        yield TABLE("wrong-dropout", f"{found}times the right one")
    # A share of half a million draws: its standard deviation is below 0.001.
    is_share = abs(kept["share"] - 1 + drop) < 0.004 and 0.75 < kept["spread"] < 1.33
    if not is_share or kept["broken"] > 0.05:
        found = f"with dropout={drop} and 1 hidden layer, {kept['share']:.3f} of the units are "
        found += f"kept, if each is scaled by 1 / (1 - {drop}); across samples, the number of "
        found += f"kept units has {kept['spread']:.2f} times the variance it should have"
        yield TABLE("wrong-dropout", found)


def decay_findings(plan: Drawn, answer: dict[str, Any]) -> Iterable[Finding]:
    """What decays, and by how much."""
    updates = plan.updates[0]
    for name, (dimensions, factor) in sorted(
        answer["decayed"].items(), key=lambda row: row[1][0]
    ):
        found = f"with a zero gradient, lr {updates.rate} and weight_decay "
        found += f"{updates.weight_decay}, a step multiplied {name}, which has {dimensions} "
        found += f"dimension{'' if dimensions == 1 else 's'}, by {factor:.4f}"
        if dimensions < 2 and abs(factor - 1) > 1e-5:
            yield TABLE("decays-vectors", found)
        elif dimensions >= 2 and abs(factor - 1) < 1e-5:
            yield TABLE("does-not-decay", found)
        elif dimensions >= 2 and abs(factor - 1 + updates.rate * updates.weight_decay) > 1e-5:
            yield TABLE("wrong-decay", found)


def step_findings(updates: Updates, steps: dict[str, Sequence[float]]) -> Iterable[Finding]:
    """Steps with gradients, against those of torch's AdamW."""
    for name, (moved, off) in steps.items():
        if moved == 0 and name != UNUSED:
            found = f"{name} has a gradient, and 4 steps did not change it"
            yield TABLE("parameter-left-out", found)
        if off > 1e-3 * min(updates.rate, *updates.later_rates):
            rates = some([updates.rate, *updates.later_rates])
            found = f"after 4 steps with falling gradients, at rates {rates} and weight_decay "
            found += f"{updates.weight_decay}, {name} is {off:.2g} away from where AdamW leads"
            yield TABLE("wrong-update", found)


def rate_at(step: int, schedule: Schedule) -> float:
    """What the brief says."""
    peak, warmup, horizon, floor, *_ = schedule
    if step <= warmup:
        return peak * step / warmup
    way = min(1.0, (step - warmup) / (horizon - warmup))
    return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * way)) / 2)


def schedule_said(schedule: Schedule) -> str:
    """Its settings."""
    peak, warmup, horizon, floor, *_ = schedule
    return (
        f"with warmup_steps={warmup}, decay_steps={horizon}, a peak of {peak} and a floor of "
        f"{floor} of it"
    )


def call_findings(plan: Drawn, answer: dict[str, Any]) -> Iterable[Finding]:
    """What the rate must not depend on."""
    for schedule, curve in zip(plan.schedules, answer["curves"], strict=True):
        said = schedule_said(schedule)
        if len(curve) == 1:
            yield TABLE("fails-without-warm-up", f"{said}, {curve[0]}")
            return
        backwards, rates = curve
        pairs = zip(map(repr, backwards), map(repr, rates), strict=True)  # NaN is NaN
        if differ := [step for step, (a, b) in enumerate(pairs, 1) if a != b]:
            step = differ[0]
            found = f"{said}, step {step} has the rate {backwards[step - 1]:.4g} if steps are "
            found += f"asked for in descending order, and {rates[step - 1]:.4g} in ascending "
            yield TABLE("depends-on-calls", f"{found}order")
    short, long = answer["curves"][-2][1], answer["curves"][-1][1]
    if short != long:
        step = next(i for i, (a, b) in enumerate(zip(short, long, strict=True)) if a != b) + 1
        settings = plan.schedules[-1]
        found = f"with decay_steps={settings.horizon}, step {step} has the rate "
        found += f"{short[step - 1]:.4g} for 1 epoch on 1 rank, and {long[step - 1]:.4g} for "
        found += f"{settings.epochs} epochs on {settings.world_size} ranks"
        yield TABLE("depends-on-the-plan", found)


def curve_findings(plan: Drawn, answer: dict[str, Any]) -> Iterable[Finding]:
    """Each rate against the brief's formula."""
    for schedule, (_, rates) in zip(plan.schedules[::-1], answer["curves"][::-1], strict=True):
        said, least, warmup = schedule_said(schedule), 1e-9 * schedule.peak, schedule.warmup
        expected = [rate_at(step, schedule) for step in range(1, schedule.last_step + 1)]
        pairs = list(zip(rates, expected, strict=True))
        wrong = [i for i, (rate, right) in enumerate(pairs) if not abs(rate - right) < least]
        late = max(abs(a - b) for a, b in zip(rates[1:], expected, strict=False)) < least
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
        elif wrong[0] + 1 < schedule.horizon:
            yield TABLE("wrong-curve", found)
        else:
            yield TABLE("leaves-the-floor", found)


def findings(plan: Drawn, reports: Sequence[RankReport], _: object) -> Iterable[Finding]:
    """In the order of the cell."""
    answer = reports[0].answer
    yield from net_findings(plan, answer, reports[1].answer)
    yield from decay_findings(plan, answer)
    for updates, steps in zip(plan.updates, answer["steps"], strict=True):
        yield from step_findings(updates, steps)
    yield from call_findings(plan, answer)
    yield from curve_findings(plan, answer)


def scenarios(seed: int) -> list[Scenario]:
    """Two ranks, each of which does all of it."""
    plan = plan_of(seed)
    judge = only_first(partial(findings, plan))
    return [Scenario(name="two ranks", body=partial(model_parts, plan), judge=judge)]
