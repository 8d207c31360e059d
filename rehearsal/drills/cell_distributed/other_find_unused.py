import gc
import os
from collections import namedtuple
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trainer_core.rendezvous import attempt_store

Identity = namedtuple("Identity", "rank local_rank world_size device")


def maybe_init_dist(cfg):
    def number(name, default):
        return int(os.environ.get(name, default))

    me = Identity(number("RANK", 0), number("LOCAL_RANK", 0), number("WORLD_SIZE", 1), None)
    wants_gpu = cfg.device == "cuda" or (cfg.device == "auto" and torch.cuda.is_available())
    if cfg.world_size > 1 and cfg.world_size != me.world_size:
        raise ValueError(f"world_size is {cfg.world_size}, torchrun started {me.world_size}")
    if wants_gpu and torch.cuda.device_count() < number("LOCAL_WORLD_SIZE", 1):
        raise ValueError(f"{torch.cuda.device_count()} GPUs; each rank needs its own")
    device = torch.device(f"cuda:{me.local_rank}" if wants_gpu else "cpu")
    if me.world_size > 1:
        limit = timedelta(seconds=cfg.dist_timeout_s)
        dist.init_process_group(
            "nccl" if wants_gpu else "gloo",
            store=attempt_store(me.rank, me.world_size, limit),
            rank=me.rank,
            world_size=me.world_size,
            timeout=limit,
            # Binds the group to this device: no collective can run on another one.
            device_id=device if wants_gpu else None,
        )
    return me._replace(device=device)


def cleanup_dist():
    if not dist.is_initialized():
        return
    gc.collect()
    dist.destroy_process_group()


def wrap_model(model, info, no_inputs):
    if info.world_size > 1:
        # Walks the graph in every step, and never rebuilds its buckets.
        model = DistributedDataParallel(model, find_unused_parameters=True)
    return model


def unwrap(model):
    return getattr(model, "module", model)
