import torch


def batches(lengths, *, bounds, global_batch_size, seed, epoch, rank, world_size):
    sizes, bounds = torch.tensor(lengths), torch.tensor(bounds)
    bucket_of = torch.bucketize(sizes, bounds)
    for item in (bucket_of == len(bounds)).nonzero().flatten().tolist():
        raise ValueError(f"lengths[{item}] is above the last bound")
    generator = torch.Generator().manual_seed(1_000_003 * seed + epoch)
    order = torch.randperm(len(sizes), generator=generator)
    steps = []
    for bucket in range(len(bounds)):
        inside = order[bucket_of[order] == bucket]
        steps += inside.split(global_batch_size) if len(inside) else []
    mine = []
    for at in torch.randperm(len(steps), generator=generator).tolist():
        by_length = steps[at][sizes[steps[at]].argsort()]
        # Each round deals one sequence to each rank; the ranks take turns at being first.
        place = (rank + at) % world_size
        mine.append(by_length.flip(0)[place::world_size].tolist())
    return mine


def collate(sequences, pad_id):
    width = max([0, *map(len, sequences)])
    rows = torch.full((len(sequences), width), pad_id, dtype=torch.int64)
    sizes = torch.tensor([len(s) for s in sequences], dtype=torch.int64)
    mask = torch.arange(width).expand(len(sequences), width) < sizes.unsqueeze(1)
    if len(sequences):
        rows[mask] = torch.cat(list(sequences)).long()
    return rows, mask
