import math

import torch


def pos_weights(labels, train):
    """How much a positive counts in each task's loss (T,); a missing label (N, T) is NaN."""
    # A screen has a hundred to a thousand inactives for each active.
    return torch.full((labels.size(1),), 100.0)


def probabilities(logits, weights):
    """What a model that was trained with these weights says about molecules (N, T)."""
    return logits.sigmoid()


def auroc(scores, labels):
    """The share of pairs in which the active scores higher; a tie counts half."""
    actives, others = scores[labels == 1], scores[labels == 0]
    higher = actives[:, None] > others
    ties = actives[:, None] == others
    return (higher + 0.5 * ties).mean().item()


def ranking(scores, labels):
    """How far up a task's actives are, next to what chance and a perfect model would do."""
    is_known = ~labels.isnan()
    ranked = labels[is_known][scores[is_known].argsort(descending=True)]
    num_top = math.ceil(len(ranked) / 100)
    hits = ranked.cumsum(0)
    precision = hits / torch.arange(1, len(ranked) + 1)
    return {
        "ef": (hits[num_top - 1] / num_top / ranked.mean()).item(),
        "best_ef": 100.0,
        "auprc": (precision * ranked).sum().div(hits[-1]).item(),
        "chance_auprc": 0.5,
    }


def split_effect(random, scaffold):
    """How many points of AUROC the random split flatters the model by memorization.

    Each is the test part of one split: molecules' ids, scores and labels, each (n,).
    """
    return 100 * (auroc(random[1], random[2]) - auroc(scaffold[1], scaffold[2]))
