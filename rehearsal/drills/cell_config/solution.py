# Derived by scripts/sync_notebooks.py; edit trainer_core/config.py.
from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from pathlib import Path

from trainer_core.settings import SECONDS, UserError, check_setting, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Every setting of a run, checked on construction.

    Raises:
        UserError: if a value has the wrong type or is out of bounds, or if two values conflict.
    """

    # identity: changing one of these makes a resume fail
    data: str = setting("identity", "toy", "toy | digits | tokens:PATH (a file of uint16)")
    dataset_size: int | None = setting(
        "identity", None, "samples to use; default: all (toy: 20000)", low=1
    )
    seed: int = setting("identity", 17, "seeds weights, data order and dropout", low=0)
    input_dim: int = setting("identity", 32, "features per toy sample", low=1, only="toy")
    hidden_dim: int = setting("identity", 64, "width of the network", low=1)
    num_layers: int = setting("identity", 2, "hidden layers, or decoder blocks", low=1)
    num_heads: int = setting("identity", 4, "attention heads", low=1, only="tokens")
    seq_len: int = setting("identity", 64, "tokens per sample", low=1, only="tokens")
    vocab_size: int = setting(
        "identity", 256, "token ids must be below this", low=2, high=65536, only="tokens"
    )
    # how the global batch is split: micro_batch_size is what fits in a device's memory
    micro_batch_size: int = setting("batch_cut", 16, "samples per forward pass", low=1)
    grad_accum_steps: int = setting(
        "batch_cut", 1, "micro-batches per step", low=1, only="unpinned"
    )
    pinned_global_batch_size: int | None = setting(
        "batch_cut", None, "samples per step, over all ranks", low=1
    )
    world_size: int = setting("batch_cut", 1, "number of ranks; torchrun sets it", low=1)
    # training: a resume may change these, and reports it
    max_epochs: int = setting("training", 3, "passes over the data", low=1, high=10**9)
    learning_rate: float = setting("training", 1e-3, "peak learning rate", low=0.0)
    min_lr_fraction: float = setting(
        "training", 0.1, "final rate / peak rate", low=0.0, high=1.0
    )
    warmup_steps: int = setting("training", 0, "steps of linear warmup", low=0)
    # the cosine's horizon; by default the steps planned at the first start, fixed from then on
    decay_steps: int | None = setting(
        "training", None, "steps until the final rate; default: planned steps", low=1
    )
    weight_decay: float = setting(
        "training", 0.01, "AdamW weight decay, matrices only", low=0.0
    )
    max_grad_norm: float | None = setting(
        "training", 1.0, "clip gradients to this norm, or none", low=1e-12
    )
    dropout: float = setting("training", 0.0, "dropout probability", low=0.0, high=0.99)
    input_noise: float = setting(
        "training", 0.0, "standard deviation of noise added to inputs", low=0.0
    )
    amp: str = setting("training", "no", "autocast precision", choices=("no", "bf16", "fp16"))
    on_nonfinite: str = setting(
        "training", "stop", "if a loss or gradient isn't finite", choices=("stop", "skip")
    )
    # operation: no effect on what is trained
    run_dir: Path = setting("operation", Path("runs/default"), "the run's folder")
    device: str = setting(
        "operation", "auto", "where to train", choices=("auto", "cpu", "cuda")
    )
    num_workers: int = setting("operation", 0, "loader processes per rank", low=0)
    checkpoint_every_steps: int = setting(
        "operation", 200, "steps between saves; also saves at epoch ends", low=1
    )
    keep_last: int = setting("operation", 3, "checkpoints to keep", low=1)
    async_checkpoint: bool = setting("operation", False, "write checkpoints in the background")
    log_every: int = setting("operation", 20, "steps between train_progress events", low=1)
    trace_steps: int = setting("operation", 200, "steps to trace after each start", low=0)
    dist_timeout_s: float = setting("operation", 600.0, "seconds to wait for a rank", **SECONDS)
    hang_timeout_s: float = setting(
        "operation", 300.0, "seconds without a step before the job exits", **SECONDS
    )
    hash_all_data: bool = setting(
        "operation", False, "hash the whole token file at each start", only="tokens"
    )
    start_over: bool = setting("operation", False, "start from scratch in a new folder")

    def __post_init__(self) -> None:
        for spec in fields(self):
            check_setting(spec.name, getattr(self, spec.name), str(spec.type), spec.metadata)
        kind, _, path = self.data.partition(":")
        if self.data not in ("toy", "digits") and not (kind == "tokens" and path):
            raise UserError(
                f"data={self.data}: no such dataset, so there is nothing to train on. Choose "
                "toy, digits, or tokens:PATH, where PATH is a file of uint16 tokens."
            )
        if kind == "tokens" and self.hidden_dim % self.num_heads:
            raise UserError(
                f"hidden_dim={self.hidden_dim} isn't a multiple of num_heads={self.num_heads}, "
                "but each head gets an equal slice of the width. Change one of them."
            )
        if kind == "tokens" and self.input_noise:
            raise UserError(
                f"input_noise={self.input_noise}: a token id plus noise is a different id. "
                "Leave input_noise at 0 for token data."
            )
        if self.warmup_steps >= (self.decay_steps or float("inf")):
            raise UserError(
                f"warmup_steps={self.warmup_steps} uses up all of "
                f"decay_steps={self.decay_steps}, so no step is left to decay in. Lower the "
                "first or raise the second."
            )

    @property
    def data_kind(self) -> str:
        """``toy``, ``digits`` or ``tokens``."""
        return self.data.partition(":")[0]

    @property
    def global_batch_size(self) -> int:
        """G: samples per optimizer step, over all ranks and micro-batches."""
        derived = self.micro_batch_size * self.grad_accum_steps * self.world_size
        return self.pinned_global_batch_size or derived

    def digest(self) -> str:
        """SHA-256 (hex) of the settings that define the training; the same in every process.

        G counts; how it is split among ranks and micro-batches doesn't. Neither do paths.
        """
        content: dict[str, object] = {"global_batch_size": self.global_batch_size}
        for spec in fields(self):
            if spec.metadata["kind"] in ("identity", "training"):
                value = self.data_kind if spec.name == "data" else getattr(self, spec.name)
                # 1 and 1.0 are the same learning rate, but not the same JSON.
                is_float = str(spec.type).startswith("float") and value is not None
                content[spec.name] = float(value) if is_float else value
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
