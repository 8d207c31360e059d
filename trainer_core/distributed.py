"""Which rank this process is, which device it uses, and how it joins and leaves the group.

Cell 4. The question it answers: "what does a rank need to know before its first collective, and
how does the group shut down without hanging?"
"""

from __future__ import annotations

import gc
import os
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

# %% active="py"
from trainer_core.collectives import gather_objects, placeholder
from trainer_core.config import TrainConfig
from trainer_core.rendezvous import attempt_store
from trainer_core.rng import rng_unchanged
from trainer_core.settings import UserError


# %%
class RankInfo(NamedTuple):
    """One process of the job: its global rank, its rank on the node, the group's size."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device


def choose_device(choice: str, local_rank: int, ranks_here: int) -> torch.device:
    """The device of this process, from the GPUs that it sees.

    Identity and device are different things. Launchers that give each process one GPU
    (``srun --gpus-per-task=1``, one GPU per container) number it 0 in every process. Under
    torchrun alone, every process sees all GPUs of the node and takes its own.

    Args:
        choice: ``cfg.device``: auto, cpu or cuda.
        ranks_here: ranks on this node.

    Raises:
        UserError: if this process sees GPUs, or needs one, but can't tell which is its own.
    """
    num_gpus = 0 if choice == "cpu" else torch.cuda.device_count()
    if choice == "auto" and num_gpus == 0:
        choice = "cpu"
    if choice == "cpu":
        return torch.device("cpu")
    if num_gpus == 1:
        return torch.device("cuda", 0)
    if num_gpus >= ranks_here:
        return torch.device("cuda", local_rank)
    raise UserError(
        f"device={choice}: {ranks_here} rank(s) on this node, but this process sees "
        f"{num_gpus} GPU(s). It has to see exactly one, or at least one for each rank. Start "
        "fewer ranks, or use device=cpu."
    )


def maybe_init_dist(cfg: TrainConfig) -> RankInfo:
    """Read torchrun's environment, select the device, then join the process group.

    Collective: every rank of the job, before anything else. A single process has no group.

    Raises:
        UserError: if there is no device for this rank, or ``cfg.world_size`` isn't torchrun's.
    """
    env = os.environ
    rank = int(env.get("RANK", 0))
    local_rank = int(env.get("LOCAL_RANK", 0))
    world_size = int(env.get("WORLD_SIZE", 1))
    if cfg.world_size not in (1, world_size):
        raise UserError(
            f"world_size={cfg.world_size}, but {world_size} rank(s) are running, and only the "
            f"launcher decides how many. Use torchrun --nproc-per-node {cfg.world_size}, or "
            "LocalRanks in a notebook."
        )
    device = choose_device(cfg.device, local_rank, int(env.get("LOCAL_WORLD_SIZE", 1)))
    if device.type == "cuda":
        # Before anything can run on a GPU: a tensor on plain "cuda" goes to the current device,
        # and so does a barrier under NCCL. Until it is set, that is cuda:0 on every rank.
        torch.cuda.set_device(device)
    if world_size > 1:
        timeout = timedelta(seconds=cfg.dist_timeout_s)
        store = attempt_store(rank, world_size, timeout)
        # Under nccl too, votes and small objects travel on the CPU: no host-device sync.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=world_size, timeout=timeout
        )
    return RankInfo(rank, local_rank, world_size, device)


def refuse_shared_device(info: RankInfo) -> None:
    """Raise UserError if ranks share a GPU, as two ranks on a node with one GPU would.

    Each of them sees one GPU, so ``choose_device`` can't tell. NCCL's own error wouldn't name
    the cause.

    Collective: every rank; all raise, because all see the same list.
    """
    uuid = None
    if info.device.type == "cuda":
        uuid = str(torch.cuda.get_device_properties(info.device).uuid)
    uuids = gather_objects(uuid)
    shared = sorted(
        rank for rank, other in enumerate(uuids) if other and uuids.count(other) > 1
    )
    if shared:
        raise UserError(
            f"ranks {shared} share a GPU, and NCCL needs one for each rank. Start fewer ranks, "
            "give each rank a GPU of its own, or use device=cpu."
        )


def cleanup_dist() -> None:
    """Leave the process group, without waiting for other ranks.

    The caller must have dropped the DDP wrapper. Nothing of it may outlive the group.
    """
    # A wrapper that outlives the group keeps gloo's threads alive until the interpreter exits,
    # and then they abort the process after a successful run. The caller's reference is gone,
    # but reference cycles may still hold the wrapper.
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


# %%
def wrap_model(model: nn.Module, info: RankInfo, no_inputs: Tensor) -> nn.Module:
    """Wrap ``model`` in DDP if there are peers.

    From the first step after any start, the ranks' gradients are added in the same order, so a
    resumed run can match the uninterrupted one bit for bit. The random states are unchanged,
    and no gradient is left over.

    Collective: every rank.

    Args:
        no_inputs: an empty batch, (0, D) or (0, T).
    """
    if info.world_size == 1:
        return model
    device_ids = [info.device.index] if info.device.type == "cuda" else None
    wrapped = DDP(model, device_ids, gradient_as_bucket_view=True)
    # DDP rearranges its gradient buckets after the first backward pass, and with three or more
    # ranks a different layout adds in a different order. A run's own first step and the first
    # step after a resume would then differ in the last bits. So the first pass is this one.
    with rng_unchanged():
        (0 * wrapped(placeholder(no_inputs.to(info.device))).sum()).backward()
    wrapped.zero_grad(set_to_none=True)
    return wrapped


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DDP; checkpoints use its names, without the ``module.`` prefix."""
    inner: nn.Module = model.module if isinstance(model, DDP) else model
    return inner
