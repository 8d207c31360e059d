import math

import torch


def pos_weights(labels, train):
    """How much a positive counts in each task's loss (T,); a missing label (N, T) is NaN."""
    seen = labels[train]
    actives, inactives = (seen == 1).sum(0), (seen == 0).sum(0)
    # A hit rate belongs to an assay, not to a field: counted, and per task.
    has_both = (actives > 0) & (inactives > 0)
    return torch.where(has_both, inactives / actives, 1.0)


def probabilities(logits, weights):
    """What a model that was trained with these weights says about molecules (N, T)."""
    # The weight multiplies the odds that the loss asks for.
    return (logits - weights.log()).sigmoid()


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
    most_hits = min(num_top, hits[-1].item())
    return {
        "ef": (hits[num_top - 1] / num_top / ranked.mean()).item(),
        "best_ef": most_hits / num_top / ranked.mean().item(),
        "auprc": (precision * ranked).sum().div(hits[-1]).item(),
        "chance_auprc": ranked.mean().item(),
    }


def split_effect(random, scaffold):
    """How many points of AUROC the random split flatters the model on the same molecules.

    Each is the test part of one split: molecules' ids, scores and labels, each (n,).
    """
    # Two test sets differ in more than what the models have seen: compare on the same one.
    in_both = set(random[0].tolist()) & set(scaffold[0].tolist())
    scored = []
    for ids, scores, labels in (random, scaffold):
        is_in_both = torch.tensor([molecule in in_both for molecule in ids.tolist()])
        scored.append(auroc(scores[is_in_both], labels[is_in_both]))
    return 100 * (scored[0] - scored[1])
