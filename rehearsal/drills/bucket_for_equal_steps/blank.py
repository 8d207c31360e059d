import torch


def batches(lengths, *, bounds, global_batch_size, seed, epoch, rank, world_size):
    """This rank's sequences in each step of an epoch."""
    raise NotImplementedError


def collate(sequences, pad_id):
    """Tokens and mask, padded to the longest."""
    raise NotImplementedError
