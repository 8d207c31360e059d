import hashlib
from collections import defaultdict

import torch
import torch.distributed as dist


def place_in_line(group):
    """A digest is the same in every process, and knows nothing of the other groups."""
    return hashlib.sha256("/".join(group).encode()).digest()


def split_rows(rows, test_fraction):
    own, labels = {}, defaultdict(set)
    for row in rows:
        own[row["molecule"]] = row
        labels[row["molecule"]].add(row["label"])
    # What a group needs to be counted travels; the descriptors stay where they are.
    shards = [None] * dist.get_world_size()
    dist.all_gather_object(shards, {m: (row["scaffold"], labels[m]) for m, row in own.items()})
    members = defaultdict(set)
    for shard in shards:
        for molecule, (scaffold, seen) in shard.items():
            key = ("scaffold", scaffold) if scaffold else ("molecule", molecule)
            members[key].add(molecule)
            labels[molecule] |= seen
    target = test_fraction * sum(map(len, members.values()))
    test = set()
    for group in sorted(members, key=place_in_line):
        if len(test) + len(members[group]) <= target:
            test |= members[group]
    earlier = set().union(*shards[: dist.get_rank()])  # the first rank to have one adds it up
    fitted = [row["logp"] for m, row in own.items() if m not in test and m not in earlier]
    logps = torch.tensor(fitted, dtype=torch.float64)
    sums = torch.stack([torch.ones_like(logps).sum(), logps.sum(), logps.square().sum()])
    dist.all_reduce(sums)
    count, total, squares = sums.tolist()
    mean = total / count
    label_of = {molecule: max(labels[molecule] - {None}, default=None) for molecule in own}
    conflicts = sorted(molecule for molecule in own if {0, 1} <= labels[molecule])
    label_of.update(dict.fromkeys(conflicts))
    return {
        "parts": {molecule: "test" if molecule in test else "train" for molecule in own},
        "labels": label_of,
        "conflicts": conflicts,
        "scaler": (mean, (squares / count - mean**2) ** 0.5),
    }
