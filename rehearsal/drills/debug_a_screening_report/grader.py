"""What a screening report says about weights, probabilities, rankings and splits.

Every number is compared with one that ``plan`` computes in plain Python.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, FindingTable

from .plan import (
    Plan,
    auroc_of,
    effect_of,
    gap_of,
    plan_of,
    probability,
    ranking_of,
    right_weights,
)

TABLE = FindingTable(
    {
        "not-measured": (
            "the weights of positives aren't those of the tasks' own labels",
            "a task's weight is its inactives per active; without both, it's 1",
            "at where each task's number comes from",
        ),
        "counts-held-out": (
            "the weights depend on labels outside the training part",
            "what is set before training is measured on the training part",
            "at which rows are counted",
        ),
        "missing-as-inactive": (
            "missing labels count as inactives",
            "a label that nobody has measured is neither active nor inactive",
            "at what is counted as an inactive",
        ),
        "shifted-probabilities": (
            "the probabilities are those of other odds",
            "a weight on positives multiplies the odds that a model reports; a probability has "
            "the odds of the data",
            "at what a weight does to the logit that minimizes the loss",
        ),
        "wrong-ranking": (
            "an enrichment or an average precision is wrong",
            "both are over a task's known labels, in the order of the scores",
            "at what is sorted, and at what is counted",
        ),
        "wrong-best": (
            "the best enrichment isn't that of a perfect ranking",
            "a perfect ranking has as many actives at the top as there are, or as fit",
            "at what a perfect ranking would get for this task",
        ),
        "wrong-chance": (
            "the average precision by chance is wrong",
            "a random ranking has the same precision everywhere",
            "at what share of a random top part is active",
        ),
        "wrong-auroc": (
            "auroc isn't the share of pairs that are in order",
            "AUROC is the share of pairs in which the active scores higher; a tie counts half",
            "at pairs with equal scores",
        ),
        "other-molecules": (
            "two splits are compared on different molecules",
            "on different test parts, models differ in what they have seen and in what they're "
            "asked",
            "at which molecules each AUROC is over",
        ),
        "wrong-effect": (
            "the effect of a split is wrong",
            "it's the random split's AUROC minus the scaffold split's, times 100",
            "at the sign, the unit, and which score belongs to which molecule",
        ),
        "wrong-return-value": (
            "a function returns something else than it does in the program",
            "tensors stay tensors of their shape, and floats stay floats",
            "at what is returned",
        ),
    }
)
CODES = TABLE.codes
NAMES = ("ef", "best_ef", "auprc", "chance_auprc")
NAN = math.nan


def body(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Call every function on fresh tensors."""
    import torch

    def tensor(values: Any) -> torch.Tensor:
        return torch.tensor([NAN if one is None else one for one in values])

    labels = torch.stack([tensor(row) for row in plan.labels])
    weights = learner.pos_weights(labels, torch.tensor(plan.train))
    logits, given = torch.tensor(plan.logits), torch.tensor(plan.weights)
    parts = [
        [
            (torch.tensor(one.ids), torch.tensor(one.scores), torch.tensor(one.labels))
            for one in s
        ]
        for s in plan.splits
    ]
    return {
        "weights": listed(weights, (len(plan.labels[0]),)),
        "probabilities": listed(learner.probabilities(logits, given), tuple(logits.shape)),
        "rankings": [
            floats(learner.ranking(tensor(scores), tensor(own)))
            for scores, own in plan.rankings
        ],
        "AUROCs": [number(learner.auroc(*pair[0][1:])) for pair in parts],
        "effects": [number(learner.split_effect(*pair)) for pair in parts],
    }


def listed(value: Any, shape: tuple[int, ...]) -> Any:
    """A tensor's elements in one list; text if it has another shape or is none."""
    import torch

    if not isinstance(value, torch.Tensor) or tuple(value.shape) != shape:
        form = f"a tensor of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        return form or repr(value)[:60]
    return value.double().flatten().tolist()


def number(value: Any) -> Any:
    """A float, or text if it is none."""
    return value if isinstance(value, float) else repr(value)[:60]


def floats(value: Any) -> Any:
    """A dict of floats, or text if it is none."""
    if not isinstance(value, Mapping) or {*value} != {*NAMES}:
        return repr(value)[:60]
    wrong = [name for name in NAMES if not isinstance(value[name], float)]
    return f"{wrong[0]}={value[wrong[0]]!r}"[:60] if wrong else dict(value)


# ---------------------------------------------------------------- outside the rank


def judge(plan: Plan, reports: Sequence[RankReport], earlier: object) -> Iterable[Finding]:
    """Every function on its own: none needs another one."""
    answer = reports[0].answer
    for name, judge_one in (
        ("weights", weight_findings),
        ("probabilities", probability_findings),
        ("rankings", ranking_findings),
        ("AUROCs", auroc_findings),
        ("effects", effect_findings),
    ):
        values = answer[name]
        wrong = [
            v for v in ([values] if isinstance(values, str) else values) if isinstance(v, str)
        ]
        if wrong:
            yield TABLE(
                "wrong-return-value", f"for its {name}, the program returned {wrong[0]}"
            )
        else:
            yield from judge_one(plan, values)


def close(ours: float, theirs: float) -> bool:
    """Whether two numbers differ by rounding only."""
    return math.isclose(ours, theirs, rel_tol=1e-4, abs_tol=1e-5)


def agree(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Whether all numbers do."""
    return all(map(close, ours, theirs))


def said(values: Sequence[float]) -> str:
    """ "1.00, 15.67"."""
    return ", ".join(f"{value:.4g}" for value in values)


def weight_findings(plan: Plan, ours: Sequence[float]) -> Iterator[Finding]:
    """The weights, and what else they may have been counted from."""
    if agree(ours, right_weights(plan)):
        return
    everything = range(len(plan.labels))
    counted = [
        (["counts-held-out"], right_weights(plan, everything)),
        (["missing-as-inactive"], right_weights(plan, missing=0.0)),
        (
            ["counts-held-out", "missing-as-inactive"],
            right_weights(plan, everything, missing=0.0),
        ),
    ]
    found = f"the weights of {len(ours)} tasks are {said(ours)}"
    for codes, values in counted:
        if agree(ours, values):
            for code in codes:
                yield TABLE(code, found)
            return
    yield TABLE("not-measured", f"{found}; in the training part, {said(right_weights(plan))}")


def probability_findings(plan: Plan, ours: Sequence[float]) -> Iterator[Finding]:
    """The probabilities, task by task."""
    pairs = [(x, w) for row in plan.logits for x, w in zip(row, plan.weights, strict=True)]
    for (logit, weight), value in zip(pairs, ours, strict=True):
        right = probability(logit, weight)
        if not close(value, right):
            found = f"with a weight of {weight:.3g} on positives, a logit of {logit:.3f} was "
            found += f"reported as {value:.3f}; the data have {right:.3f}"
            yield TABLE("shifted-probabilities", found)
            return


def ranking_findings(plan: Plan, ours: Sequence[Mapping[str, float]]) -> Iterator[Finding]:
    """One finding for each number that is wrong somewhere."""
    codes = {
        "ef": "wrong-ranking",
        "auprc": "wrong-ranking",
        "best_ef": "wrong-best",
        "chance_auprc": "wrong-chance",
    }
    for name, code in codes.items():
        for (scores, labels), values in zip(plan.rankings, ours, strict=True):
            right = ranking_of(scores, labels)
            if not close(values[name], right[name]):
                known = [label for label in labels if label is not None]
                found = f"with {sum(known):.0f} actives among {len(known)} known labels, "
                yield TABLE(code, f"{found}{name} is {values[name]:.4g}, not {right[name]:.4g}")
                break


def auroc_findings(plan: Plan, ours: Sequence[float]) -> Iterator[Finding]:
    """Two AUROCs with ties."""
    for (part, _), value in zip(plan.splits, ours, strict=True):
        right = auroc_of(part, {*part.ids})
        if not close(value, right):
            found = f"of {len(part.ids)} molecules, some with equal scores, the AUROC was "
            yield TABLE("wrong-auroc", f"{found}{value:.4f}, not {right:.4f}")
            return


def effect_findings(plan: Plan, ours: Sequence[float]) -> Iterator[Finding]:
    """The effect of two pairs of splits."""
    right = [effect_of(*pair) for pair in plan.splits]
    if agree(ours, right):
        return
    first, second = plan.splits[0]
    both = len({*first.ids} & {*second.ids})
    if agree(ours, [gap_of(*pair) for pair in plan.splits]):
        found = (
            f"the difference is {ours[0]:.1f} points over test parts of {len(first.ids)} and "
        )
        found += f"{len(second.ids)} molecules, of which {both} are the same"
        yield TABLE("other-molecules", found)
        return
    found = f"the effect is {ours[0]:.4g} points; on the {both} molecules that both test parts "
    yield TABLE("wrong-effect", f"{found}have, it's {right[0]:.4g}")


def scenarios(seed: int) -> list[Scenario]:
    """One process: nothing here is distributed."""
    plan = plan_of(seed)
    return [
        Scenario(
            name="the report",
            body=partial(body, plan),
            judge=partial(judge, plan),
            world_size=1,
            deadline_s=6,
        )
    ]
