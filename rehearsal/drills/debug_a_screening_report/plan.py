"""Tables, scores and splits of one check, drawn from its seed, and what is right for them."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Labels = Sequence[Sequence[float | None]]  # (N, T); None is a missing one


class Part(NamedTuple):
    """The test part of a split: molecules' ids, a model's scores, and labels."""

    ids: Sequence[int]
    scores: Sequence[float]
    labels: Sequence[float]


class Plan(NamedTuple):
    """The constants of one check."""

    labels: Labels
    train: Sequence[int]
    logits: Sequence[Sequence[float]]
    weights: Sequence[float]
    rankings: Sequence[tuple[Sequence[float], Sequence[float | None]]]
    splits: Sequence[tuple[Part, Part]]


def plan_of(seed: int) -> Plan:
    """The same in the caller's process and in the rank."""
    draw = random.Random(f"debug_a_screening_report {seed}")
    num_rows = draw.randint(50, 70)
    # A literature set with more actives than inactives, and a balanced one. The training parts
    # of the others have a single active or inactive, or none.
    kinds = [(draw.uniform(0.7, 0.8), 1), (0.5, 1), (0.0, 1), (1.0, 1), (0.0, 0), (1.0, 0)]
    draw.shuffle(kinds)
    columns = [column_of(draw, num_rows, rate) for rate, _ in kinds]
    train = sorted(draw.sample(range(num_rows), num_rows * 2 // 3))
    held_out = sorted({*range(num_rows)} - {*train})
    for column, (rate, num_others) in zip(columns, kinds, strict=True):
        column[train[0]] = column[train[1]] = float(rate > 0.4)
        if num_others:
            column[train[1]] = float(rate <= 0.4)
        # Another rate where nobody may look.
        for row in held_out:
            column[row] = float(draw.random() < (0.1 if rate > 0.4 else 0.8))
    return Plan(
        labels=[list(row) for row in zip(*columns, strict=True)],
        train=train,
        logits=[[draw.gauss(0, 2) for _ in range(3)] for _ in range(4)],
        weights=draw.sample([0.3, draw.uniform(2, 4), draw.uniform(90, 300)], 3),
        rankings=[
            ranked_of(draw, *sizes)
            for sizes in ((130, 9), (201, 2), (200, 2), (200, 120), (90, 30))
        ],
        splits=[splits_of(draw) for _ in range(2)],
    )


def column_of(draw: random.Random, num_rows: int, rate: float) -> list[float | None]:
    """A task's labels; many are missing."""
    return [
        float(draw.random() < rate) if draw.random() < 0.6 else None for _ in range(num_rows)
    ]


def ranked_of(
    draw: random.Random, count: int, actives: int
) -> tuple[list[float], list[float | None]]:
    """Distinct scores and labels, of which some are missing; actives score a bit higher."""
    labels = [1.0] * actives + [0.0] * (count - actives)
    scores = [draw.gauss(1.2 * label, 1.0) for label in labels]
    # Those that weren't measured score highest: whoever counts them sees them first.
    missing = [draw.gauss(2.5, 1.0) for _ in range(draw.randint(8, 15))]
    rows = [*zip(scores, labels, strict=True), *((score, None) for score in missing)]
    # The best known molecule is an active: an enrichment of 0 would say little.
    best = max(range(count), key=lambda row: scores[row])
    rows[0], rows[best] = (scores[0], labels[best]), (scores[best], labels[0])
    draw.shuffle(rows)
    return [score for score, _ in rows], [label for _, label in rows]


def splits_of(draw: random.Random) -> tuple[Part, Part]:
    """Two test parts that share some molecules; the others are easier in the random split."""
    ids = draw.sample(range(10_000), 70)
    labels = {one: float(draw.random() < 0.4) for one in ids}
    both, first, second = ids[:30], ids[30:50], ids[50:]
    labels |= {
        one: float(at % 2) for part in (both, first, second) for at, one in enumerate(part[:4])
    }

    def part(own: Sequence[int], skill: float, extra: float) -> Part:
        mine = [*both, *own]
        draw.shuffle(mine)
        scores = [
            # Rounded: some are tied.
            round(labels[one] * (skill if one in both else extra) + draw.gauss(0, 1), 1)
            for one in mine
        ]
        return Part(mine, scores, [labels[one] for one in mine])

    return part(first, 1.2, 3.0), part(second, 0.7, 0.0)


# ---------------------------------------------------------------- what is right


def right_weights(
    plan: Plan, rows: Sequence[int] | None = None, *, missing: float | None = None
) -> list[float]:
    """The weight of each task.

    Args:
        rows: None for the training part.
        missing: what a missing label counts as; None for nothing.
    """
    chosen = [plan.labels[row] for row in (plan.train if rows is None else rows)]
    found = []
    for column in zip(*chosen, strict=True):
        seen = [missing if label is None else label for label in column]
        actives, inactives = seen.count(1.0), seen.count(0.0)
        found.append(inactives / actives if actives and inactives else 1.0)
    return found


def probability(logit: float, weight: float) -> float:
    """Of an active."""
    return 1 / (1 + math.exp(math.log(weight) - logit))


def ranking_of(scores: Sequence[float], labels: Sequence[float | None]) -> Mapping[str, float]:
    """Enrichment and average precision, with what they can be at most, and by chance."""
    pairs = sorted(zip(scores, labels, strict=True), reverse=True)
    ranked = [label for _, label in pairs if label is not None]
    num_top, actives = math.ceil(len(ranked) / 100), sum(ranked)
    rate = actives / len(ranked)
    precisions = [
        sum(ranked[:place]) / place for place in range(1, len(ranked) + 1) if ranked[place - 1]
    ]
    return {
        "ef": sum(ranked[:num_top]) / num_top / rate,
        "best_ef": min(num_top, actives) / num_top / rate,
        "auprc": sum(precisions) / actives,
        "chance_auprc": rate,
    }


def auroc_of(part: Part, kept: set[int]) -> float:
    """Over the molecules that are kept."""
    rows = [(score, label) for one, score, label in zip(*part, strict=True) if one in kept]
    actives = [score for score, label in rows if label]
    others = [score for score, label in rows if not label]
    points = sum((a > o) + (a == o) / 2 for a in actives for o in others)
    return points / len(actives) / len(others)


def effect_of(random_part: Part, scaffold_part: Part) -> float:
    """In points of AUROC, on the molecules that both have."""
    both = {*random_part.ids} & {*scaffold_part.ids}
    return 100 * (auroc_of(random_part, both) - auroc_of(scaffold_part, both))


def gap_of(random_part: Part, scaffold_part: Part) -> float:
    """The same, each on its own test part."""
    first, second = (auroc_of(part, {*part.ids}) for part in (random_part, scaffold_part))
    return 100 * (first - second)
