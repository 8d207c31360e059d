"""Can what a rank has to hold fit into this machine's memory at all?

Supports cell 2 (data) and cell 8 (launch). A single allocation that is too large raises. Many
that are too large only together succeed, and later the operating system kills the job without
a message.
"""

from __future__ import annotations

import os
from pathlib import Path

# %% active="py"
from trainer_core.config import TrainConfig
from trainer_core.settings import UserError


# %%
def memory_per_rank() -> int:
    """In bytes: the machine's memory, or its container's limit if that is smaller, divided by
    the ranks on this machine.
    """
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")  # control groups, version 2
    text = limit.read_text().strip() if limit.exists() else "max"
    if text.isdecimal():
        total = min(total, int(text))
    return total // int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def least_memory(cfg: TrainConfig, num_samples: int) -> int:
    """A lower bound, not an estimate, of the bytes that training takes.

    Weights, gradients and AdamW's two moments are four float32 numbers per parameter; what the
    backward pass needs is at least one number per unit, layer, and sample of a micro-batch.
    """
    is_tokens = cfg.data_kind == "tokens"
    places = cfg.seq_len if is_tokens else 1
    share = -(-min(cfg.global_batch_size, num_samples) // cfg.world_size)
    batch = min(cfg.micro_batch_size, share)
    parameters = (cfg.num_layers - (0 if is_tokens else 1)) * cfg.hidden_dim**2
    activations = batch * places * cfg.hidden_dim * cfg.num_layers
    mask = cfg.seq_len**2 if is_tokens else 0
    python_objects = 1000 * cfg.num_layers
    return 16 * parameters + 4 * activations + 4 * mask + python_objects


def refuse_what_cannot_fit(cfg: TrainConfig, num_samples: int) -> None:
    """Raise UserError if this machine can't hold the model and one micro-batch."""
    needed, available = least_memory(cfg, num_samples), memory_per_rank()
    if needed <= available:
        return
    sizes = f"hidden_dim={cfg.hidden_dim}, num_layers={cfg.num_layers}"
    if cfg.data_kind == "tokens":
        sizes += f", seq_len={cfg.seq_len}"
    needs, has = (
        f"{size / 2**30:.1f} GiB" if size < 2**60 else "over 10**9 GiB"
        for size in (needed, available)
    )
    raise UserError(
        f"{sizes}, micro_batch_size={cfg.micro_batch_size}: a rank needs at least {needs} to "
        f"train this, and this machine has {has} per rank. The operating system would kill "
        "the job without a message. Lower one of these sizes."
    )
