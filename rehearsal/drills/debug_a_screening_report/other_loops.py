import math
from bisect import bisect_left, bisect_right

import torch


def pos_weights(labels, train):
    """How much a positive counts in each task's loss (T,); a missing label (N, T) is NaN."""
    weights = torch.ones(labels.size(1))
    for task, column in enumerate(labels[train].T):
        inactives, actives = ((column == value).sum() for value in (0, 1))
        if inactives and actives:
            weights[task] = inactives / actives
    return weights


def probabilities(logits, weights):
    """What a model that was trained with these weights says about molecules (N, T)."""
    odds = logits.exp() / weights
    return odds / (1 + odds)


def auroc(scores, labels):
    """The share of pairs in which the active scores higher; a tie counts half."""
    others = sorted(scores[labels == 0].tolist())
    actives = scores[labels == 1].tolist()
    points = sum(bisect_left(others, one) + bisect_right(others, one) for one in actives)
    return points / 2 / len(others) / len(actives)


def ranking(scores, labels):
    """How far up a task's actives are, next to what chance and a perfect model would do."""
    pairs = sorted(zip(scores.tolist(), labels.tolist(), strict=True), reverse=True)
    ranked = [label for _, label in pairs if not math.isnan(label)]
    num_actives, num_top = sum(ranked), -(-len(ranked) // 100)
    hits, precisions = 0, []
    for place, label in enumerate(ranked, 1):
        hits += label
        if label:
            precisions.append(hits / place)
    prevalence = num_actives / len(ranked)
    perfect = sorted(ranked, reverse=True)
    return {
        "ef": sum(ranked[:num_top]) / num_top / prevalence,
        "best_ef": sum(perfect[:num_top]) / num_top / prevalence,
        "auprc": sum(precisions) / num_actives,
        "chance_auprc": prevalence,
    }


def split_effect(random, scaffold):
    """How many points of AUROC the random split flatters the model on the same molecules.

    Each is the test part of one split: molecules' ids, scores and labels, each (n,).
    """
    parts = (random, scaffold)
    scores = [dict(zip(ids.tolist(), own.tolist(), strict=True)) for ids, own, _ in parts]
    labels = dict(zip(random[0].tolist(), random[2].tolist(), strict=True))
    same = [molecule for molecule in scores[0] if molecule in scores[1]]
    truth = torch.tensor([labels[molecule] for molecule in same])
    flattered, honest = (
        auroc(torch.tensor([one[molecule] for molecule in same]), truth) for one in scores
    )
    return 100 * (flattered - honest)
