import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from trainer_core.rendezvous import attempt_store


@dataclass
class Me:
    rank: int
    local_rank: int
    world_size: int
    device: torch.device


def maybe_init_dist(cfg):
    env = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    env = {name: int(os.environ.get(name, default)) for name, default in env.items()}
    rank, local_rank, world_size, here = env.values()
    if cfg.world_size not in (1, world_size):
        raise ValueError(f"{cfg.world_size} ranks configured, {world_size} started")
    gpus = 0 if cfg.device == "cpu" else torch.cuda.device_count()
    if (gpus or cfg.device == "cuda") and gpus < here and gpus != 1:
        raise ValueError(f"{here} ranks on this node for {gpus} GPUs")
    # One visible GPU is this process's own, as srun --gpus-per-task=1 gives it: number 0.
    index = 0 if gpus == 1 else local_rank
    if gpus:
        torch.cuda.set_device(index)
    if world_size > 1:
        timeout = timedelta(seconds=cfg.dist_timeout_s)
        store = attempt_store(rank, world_size, timeout)
        backend = "nccl" if gpus else "gloo"
        dist.init_process_group(
            backend, rank=rank, world_size=world_size, store=store, timeout=timeout
        )
    device = torch.device("cuda", index) if gpus else torch.device("cpu")
    return Me(rank, local_rank, world_size, device)


def cleanup_dist():
    if dist.is_initialized():
        dist.destroy_process_group()


class Averaged(nn.Module):
    """One all-reduce per parameter, once its gradient is ready: no buckets, no layout."""

    def __init__(self, model, world_size):
        super().__init__()
        self.inner = model
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.data, 0)
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(average)

    def forward(self, *inputs):
        return self.inner(*inputs)


def average(parameter):
    dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()


def wrap_model(model, info, no_inputs):
    return model if info.world_size == 1 else Averaged(model, info.world_size)


def unwrap(model):
    return model.inner if isinstance(model, Averaged) else model
