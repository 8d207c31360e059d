import gc
import os
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from trainer_core.config import TrainConfig
from trainer_core.rendezvous import attempt_store
from trainer_core.settings import UserError


class RankInfo(NamedTuple):
    """One process of the job: its global index, its index on the node, the group's size."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device


def maybe_init_dist(cfg: TrainConfig) -> RankInfo:
    """Read torchrun's environment, take the device, then join the process group.

    Collective: every rank of the job, first thing. A single process makes no group.

    Raises:
        UserError: if the device is not there, or ``cfg.world_size`` is not torchrun's.
    """
    env = os.environ
    rank, local_rank = int(env.get("RANK", 0)), int(env.get("LOCAL_RANK", 0))
    world_size = int(env.get("WORLD_SIZE", 1))
    if cfg.world_size not in (1, world_size):
        raise UserError(
            f"world_size={cfg.world_size}, but {world_size} rank(s) run: the launcher "
            f"starts them. Use torchrun --nproc-per-node {cfg.world_size}, "
            "or LocalRanks in a notebook."
        )
    num_gpus = torch.cuda.device_count() if cfg.device != "cpu" else 0
    if cfg.device == "cuda" or num_gpus:
        # The same numbers on every rank of a node, so all raise or none.
        if num_gpus < (ranks_here := int(env.get("LOCAL_WORLD_SIZE", 1))):
            raise UserError(
                f"--device {cfg.device}: {ranks_here} rank(s) on this node, {num_gpus} GPU(s). "
                "Each rank needs its own. Start fewer ranks, or use --device cpu."
            )
        # Device first: a communicator made before sits on cuda:0 for every rank.
        torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank) if num_gpus else torch.device("cpu")
    if world_size > 1:
        timeout = timedelta(seconds=cfg.dist_timeout_s)
        store = attempt_store(rank, world_size, timeout)
        # Flags and small objects travel on the CPU under nccl too: no host-device sync.
        backend = "cpu:gloo,cuda:nccl" if num_gpus else "gloo"
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=world_size, timeout=timeout
        )
    return RankInfo(rank, local_rank, world_size, device)


def cleanup_dist() -> None:
    """Leave the process group. The caller must have dropped the DDP wrapper before.

    A wrapper that outlives the group keeps gloo's threads to the interpreter's end, where they
    abort the process after a good run (defect D27). It may sit in reference cycles, hence gc.
    """
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


def wrap_model(model: nn.Module, info: RankInfo, no_inputs: Tensor) -> nn.Module:
    """DDP around ``model`` if there are peers, with its buckets in their final layout.

    DDP orders its gradient buckets anew after the first backward pass, and with three ranks or
    more another layout sums in another order: a resumed run would differ in the last bits from
    one that was never stopped (defect D28). One backward pass over a batch without samples,
    on every start, brings the final layout before the first step.

    Collective: every rank.

    Args:
        no_inputs: an empty batch, (0, D) or (0, T).
    """
    if info.world_size == 1:
        return model
    device_ids = [info.device.index] if info.device.type == "cuda" else None
    wrapped = DDP(model, device_ids, gradient_as_bucket_view=True)
    wrapped(no_inputs.to(info.device)).sum().backward()
    wrapped.zero_grad(set_to_none=True)
    return wrapped


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DDP; checkpoints hold its names, without the ``module.`` prefix."""
    inner: nn.Module = model.module if isinstance(model, DDP) else model
    return inner
