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

    # identity: a resume that changes one of these is refused
    data: str = setting("identity", "toy", "toy | digits | tokens:PATH, a file of uint16")
    dataset_size: int | None = setting("identity", None, "samples (20000 of toy)", low=1)
    seed: int = setting("identity", 17, "decides weights, data order and dropout", low=0)
    input_dim: int = setting("identity", 32, "features of a toy sample", low=1, only="toy")
    hidden_dim: int = setting("identity", 64, "width of the network", low=1)
    num_layers: int = setting("identity", 2, "hidden layers, or decoder blocks", low=1)
    num_heads: int = setting("identity", 4, "attention heads", low=1, only="tokens")
    seq_len: int = setting("identity", 64, "tokens in a sample", low=1, only="tokens")
    vocab_size: int = setting(
        "identity", 256, "token ids lie below it", low=2, high=65536, only="tokens"
    )
    # how the global batch is cut: micro_batch_size is what fits in a device's memory
    micro_batch_size: int = setting("batch_cut", 16, "samples in one forward pass", low=1)
    grad_accum_steps: int = setting(
        "batch_cut", 1, "micro-batches per step", low=1, only="unpinned"
    )
    pinned_global_batch_size: int | None = setting("batch_cut", None, "over all ranks", low=1)
    world_size: int = setting("batch_cut", 1, "number of ranks; torchrun sets it", low=1)
    # training: a resume may change these; that is reported
    max_epochs: int = setting("training", 3, "passes over the data", low=1)
    learning_rate: float = setting("training", 1e-3, "peak learning rate", low=0.0)
    min_lr_fraction: float = setting("training", 0.1, "of the peak, finally", low=0.0, high=1.0)
    warmup_steps: int = setting("training", 0, "steps of linear warm-up", low=0)
    # the cosine's horizon; by default the steps planned at the first start, then fixed
    decay_steps: int | None = setting("training", None, "horizon; default: the plan", low=1)
    weight_decay: float = setting("training", 0.01, "AdamW's decay of matrices", low=0.0)
    max_grad_norm: float | None = setting("training", 1.0, "clip to it, or none", low=1e-12)
    dropout: float = setting("training", 0.0, "dropout probability", low=0.0, high=0.99)
    input_noise: float = setting("training", 0.0, "deviation of noise on inputs", low=0.0)
    amp: str = setting("training", "no", "autocast", choices=("no", "bf16", "fp16"))
    on_nonfinite: str = setting("training", "stop", "at a NaN", choices=("stop", "skip"))
    # operation: leaves the training as it is
    run_dir: Path = setting("operation", Path("runs/default"), "the run's folder")
    device: str = setting("operation", "auto", "where", choices=("auto", "cpu", "cuda"))
    num_workers: int = setting("operation", 0, "loader processes per rank", low=0)
    checkpoint_every_steps: int = setting("operation", 200, "and at epoch ends", low=1)
    keep_last: int = setting("operation", 3, "checkpoints to keep", low=1)
    async_checkpoint: bool = setting("operation", False, "write checkpoints beside training")
    log_every: int = setting("operation", 20, "steps between train_progress events", low=1)
    trace_steps: int = setting("operation", 200, "steps of each start to trace", low=0)
    dist_timeout_s: float = setting("operation", 600.0, "wait for ranks", **SECONDS)
    hang_timeout_s: float = setting("operation", 300.0, "end if no step", **SECONDS)
    start_over: bool = setting("operation", False, "begin again, in a fresh folder beside")

    def __post_init__(self) -> None:
        raise NotImplementedError

    @property
    def data_kind(self) -> str:
        """``toy``, ``digits`` or ``tokens``."""
        raise NotImplementedError

    @property
    def global_batch_size(self) -> int:
        """G: samples per optimizer step, over all ranks and micro-batches."""
        raise NotImplementedError

    def digest(self) -> str:
        """SHA-256 (hex) over the settings that define the training; the same in every process.

        Paths, ranks and the way the global batch is split are left out. G itself is included.
        """
        raise NotImplementedError
