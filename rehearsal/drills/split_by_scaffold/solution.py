import statistics

import torch.distributed as dist


def split_rows(rows, test_fraction):
    """Parts and labels of this rank's molecules, their conflicts, and a scaler of logp."""
    shards = [None] * dist.get_world_size()
    dist.all_gather_object(shards, rows)  # on every rank, with or without rows
    group_of, logp_of, measured = {}, {}, {}
    for row in (row for shard in shards for row in shard):  # rows become molecules first
        molecule = row["molecule"]
        group_of[molecule] = row["scaffold"] or molecule  # without a ring: its own group
        logp_of[molecule] = row["logp"]
        measured.setdefault(molecule, set()).add(row["label"])
    groups = {}
    for molecule, group in group_of.items():
        groups.setdefault(group, []).append(molecule)
    train, room = set(), round((1 - test_fraction) * len(group_of))
    # Largest first, so that what is left over is small; the name decides between equals.
    for group in sorted(groups, key=lambda group: (-len(groups[group]), group)):
        if len(train) + len(groups[group]) <= room:
            train.update(groups[group])
    label_of, conflicts = {}, []
    for molecule in sorted({row["molecule"] for row in rows}):
        found = measured[molecule] - {None}
        label_of[molecule] = min(found) if len(found) == 1 else None
        if len(found) > 1:
            conflicts.append(molecule)
    fitted = [logp_of[molecule] for molecule in train]
    return {
        "parts": {m: "train" if m in train else "test" for m in label_of},
        "labels": label_of,
        "conflicts": conflicts,
        "scaler": (statistics.fmean(fitted), statistics.pstdev(fitted)),
    }
