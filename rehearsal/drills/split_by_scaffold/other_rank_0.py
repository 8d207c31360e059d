import math
from collections import Counter

import torch.distributed as dist


def decide(rows, test_fraction):
    """For all molecules: which are for the test, their labels, which conflict, the scaler."""
    molecules = {row["molecule"]: row for row in rows}
    votes = {(row["molecule"], row["label"]) for row in rows if row["label"] is not None}
    times = Counter(molecule for molecule, _ in votes)
    label_of = {m: label for m, label in votes if times[m] == 1}
    conflicting = {molecule for molecule in molecules if times[molecule] == 2}
    group_of = {m: (row["scaffold"], m * (not row["scaffold"])) for m, row in molecules.items()}
    sizes = Counter(group_of.values())
    left, chosen = test_fraction * len(molecules), set()
    for size, group in sorted((size, group) for group, size in sizes.items()):
        if size > left:
            break
        left -= size
        chosen.add(group)
    test = {molecule for molecule, group in group_of.items() if group in chosen}
    fitted = sorted(row["logp"] for m, row in molecules.items() if m not in test)
    mean = math.fsum(fitted) / len(fitted)
    variance = math.fsum((x - mean) ** 2 for x in fitted) / len(fitted)
    return test, label_of, conflicting, (mean, math.sqrt(variance))


def split_rows(rows, test_fraction):
    is_main = dist.get_rank() == 0
    shards = [None] * dist.get_world_size() if is_main else None
    dist.gather_object(rows, shards, dst=0)
    result = [None]
    if is_main:
        result = [decide(sum(shards, []), test_fraction)]
    dist.broadcast_object_list(result, src=0)
    test, label_of, conflicting, scaler = result[0]
    own = sorted({row["molecule"] for row in rows})
    return {
        "parts": {molecule: "test" if molecule in test else "train" for molecule in own},
        "labels": {molecule: label_of.get(molecule) for molecule in own},
        "conflicts": [molecule for molecule in own if molecule in conflicting],
        "scaler": scaler,
    }
