import torch


def pos_weights(labels, train):
    """How much a positive counts in each task's loss (T,); a missing label (N, T) is NaN."""
    rate = labels[train].nanmean(0)
    weights = (1 - rate) / rate
    is_usable = weights.isfinite() & (weights > 0)
    return weights.where(is_usable, torch.ones_like(weights))


def probabilities(logits, weights):
    """What a model that was trained with these weights says about molecules (N, T)."""
    said = logits.sigmoid()
    return said / (said + weights * (1 - said))


def auroc(scores, labels):
    """The share of pairs in which the active scores higher; a tie counts half."""
    difference = scores[labels == 1][:, None] - scores[labels == 0]
    return ((difference.sign() + 1) / 2).mean().item()


def ranking(scores, labels):
    """How far up a task's actives are, next to what chance and a perfect model would do."""
    known = ~torch.isnan(labels)
    scores, labels = scores[known], labels[known]
    num_top = (len(labels) + 99) // 100
    prevalence = labels.mean()
    order = scores.argsort(descending=True)
    places = torch.nonzero(labels[order] == 1)[:, 0] + 1  # of the actives, from 1
    found = torch.arange(1, len(places) + 1)
    best = labels.topk(num_top).values.mean() / prevalence
    return {
        "ef": (labels[order[:num_top]].mean() / prevalence).item(),
        "best_ef": best.item(),
        "auprc": (found / places).mean().item(),
        "chance_auprc": prevalence.item(),
    }


def split_effect(random, scaffold):
    """How many points of AUROC the random split flatters the model on the same molecules.

    Each is the test part of one split: molecules' ids, scores and labels, each (n,).
    """
    values = []
    for one, other in ((random, scaffold), (scaffold, random)):
        is_shared = torch.isin(one[0], other[0])
        values.append(auroc(one[1][is_shared], one[2][is_shared]))
    return 100 * (values[0] - values[1])
