"""A calculator for training at scale: FLOPs, bytes, seconds, days, dollars.

Each function is one formula, with its source. A name ends in its unit; a byte is 8 bits, a GB
is 10^9 bytes, and a FLOP is one multiplication or one addition of floating-point numbers.

    N  parameters    D  tokens    L  layers    d  width    a  heads    s  sequence length
    b  sequences in a micro-batch    n  GPUs or ranks

Sources, by the names that the functions use:

    Kaplan        arxiv.org/abs/2001.08361, section 2.1
    PaLM          arxiv.org/abs/2204.02311, appendix B
    Korthikanti   arxiv.org/abs/2205.05198, section 4
    ZeRO          arxiv.org/abs/1910.02054, sections 3 and 7
    nccl-tests    github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    NCCL 2.4      developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4
    Roofline      doi.org/10.1145/1498765.1498785
    Chinchilla    arxiv.org/abs/2203.15556, table 3
"""

from __future__ import annotations

import difflib
import math
from typing import Literal, NamedTuple

Sharding = Literal["ddp", "zero1", "zero2", "zero3"]

HOURS_PER_DAY = 24
SECONDS_PER_HOUR = 3600
TOKENS_PER_PARAMETER = 20  # Chinchilla: 20.2 for 1e9 parameters, 20.5 for 1e10


class StateBytes(NamedTuple):
    """What training keeps for each parameter from step to step, in bytes."""

    weights: int  # what forward and backward read
    gradients: int
    optimizer: int  # with fp32 master weights, where there are any

    @property
    def total(self) -> int:
        """Bytes per parameter on a GPU that shares nothing."""
        return sum(self)


STATES = {
    "fp32, SGD": StateBytes(4, 4, 0),
    "fp32, SGD with momentum": StateBytes(4, 4, 4),
    "fp32, Adam": StateBytes(4, 4, 8),
    # ZeRO, section 3.1: the optimizer's 12 are fp32 weights and two fp32 moments.
    "bf16, Adam": StateBytes(2, 2, 12),
    "bf16, Adam, fp32 gradients": StateBytes(2, 4, 12),
}
MIXED = STATES["bf16, Adam"]


class CalculatorError(ValueError):
    """An argument that no training run can have; the message says what to give instead."""


def _check_fraction(**fractions: float) -> None:
    for name, value in fractions.items():
        if not 0 < value <= 1:
            raise CalculatorError(
                f"{name}={value:g}: it's a fraction, above 0 and at most 1. For 40%, give 0.4."
            )


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise CalculatorError(f"{name}={value:g}: give a number above 0.")


# Compute ------------------------------------------------------------------------------------


def transformer_parameters(num_layers: int, width: int) -> int:
    """12 L d^2: attention has 4 matrices of d x d, the MLP two of d x 4d (Kaplan, table 1).

    Without embeddings, biases and norms.
    """
    return 12 * num_layers * width**2


def attention_flops_per_token(num_layers: int, width: int, seq_len: int) -> int:
    """12 L d s, forward and backward: scores and their product with the values (PaLM).

    It counts the whole square of scores. A kernel that skips the masked half does half of it.
    """
    return 12 * num_layers * width * seq_len


def flops_per_token(
    num_parameters: float, attention_flops: float = 0.0, *, recomputes: bool = False
) -> float:
    """6 N + attention (Kaplan, PaLM); 8 N + 4/3 attention if all of forward runs twice.

    A parameter of a matrix costs a multiplication and an addition per token in the forward
    pass, and as much for each of two gradients in the backward pass: its own, and the input's.

    Args:
        num_parameters: those that a token is multiplied by. In a mixture of experts, the active
            ones; an embedding that's only looked up has none.
        attention_flops: per token, from ``attention_flops_per_token``.
        recomputes: with activation checkpointing around all layers.
    """
    passes = 4 if recomputes else 3  # in units of one forward pass
    return passes * (2 * num_parameters + attention_flops / 3)


def train_flops(num_parameters: float, num_tokens: float) -> float:
    """6 N D (Kaplan)."""
    return flops_per_token(num_parameters) * num_tokens


def mfu(
    tokens_per_s: float, flops_of_a_token: float, num_gpus: int, peak_flop_per_s: float
) -> float:
    """Model FLOPs utilization: FLOPs that the model needs, over what the chips could do (PaLM).

    With the FLOPs of a run that recomputes, it's the hardware FLOPs utilization, HFU.

    Args:
        flops_of_a_token: from ``flops_per_token``.
        peak_flop_per_s: of one GPU, dense, in the type that the matrices are multiplied in.
    """
    _check_positive(num_gpus=num_gpus, peak_flop_per_s=peak_flop_per_s)
    return tokens_per_s * flops_of_a_token / (num_gpus * peak_flop_per_s)


def matmul_intensity(rows: int, inner: int, columns: int, value_bytes: int = 2) -> float:
    """FLOPs per byte of (rows, inner) @ (inner, columns), each matrix moved once (Roofline)."""
    moved = value_bytes * (rows * inner + inner * columns + rows * columns)
    return 2 * rows * inner * columns / moved


def attainable_flop_per_s(
    intensity: float, peak_flop_per_s: float, bandwidth_bytes_per_s: float
) -> float:
    """The lower of two roofs: peak, and intensity x bandwidth (Roofline).

    They meet at the ridge, an intensity of peak / bandwidth.
    """
    return min(peak_flop_per_s, intensity * bandwidth_bytes_per_s)


# Memory -------------------------------------------------------------------------------------


def memory_per_gpu_bytes(
    num_parameters: float, num_gpus: int, sharding: Sharding, states: StateBytes = MIXED
) -> float:
    """What one of n data-parallel GPUs keeps of weights, gradients, optimizer (ZeRO, figure 1).

    ZeRO-1 divides the optimizer's state by n, ZeRO-2 the gradients too, and ZeRO-3 (FSDP) all
    of it. Activations, buffers and fragmentation come on top.
    """
    _check_positive(num_gpus=num_gpus)
    stages = ("ddp", "zero1", "zero2", "zero3")
    if sharding not in stages:
        near = difflib.get_close_matches(str(sharding).lower(), stages, n=1) or stages
        raise CalculatorError(f"There is no sharding {sharding!r}. Use {near[0]!r}.")
    stage = stages.index(sharding)
    kept = states.optimizer / (num_gpus if stage >= 1 else 1)
    kept += states.gradients / (num_gpus if stage >= 2 else 1)
    kept += states.weights / (num_gpus if stage >= 3 else 1)
    return num_parameters * kept


def activation_bytes_per_layer(
    seq_len: int,
    micro_batch_size: int,
    width: int,
    num_heads: int,
    *,
    has_dropout: bool = True,
    mask_bytes: int = 1,
    is_fused: bool = False,
    recomputes: bool = False,
) -> float:
    """s b d (34 + 5 a s / d), for 2-byte activations and GELU (Korthikanti, equation 1).

    Args:
        has_dropout: without it the masks go, and the scores are kept once: 32 + 2 a s / d.
        mask_bytes: of one element of a dropout mask.
        is_fused: the attention kernel recomputes the scores, so the a s / d term goes.
        recomputes: with activation checkpointing, only the layer's input stays: 2 s b d.
    """
    hidden = seq_len * micro_batch_size * width
    if recomputes:
        return 2 * hidden
    linear, scores = 32, 2
    if has_dropout:
        linear += 2 * mask_bytes
        scores += mask_bytes + 2
    return hidden * (linear + (0 if is_fused else scores * num_heads * seq_len / width))


# Communication ------------------------------------------------------------------------------


def allreduce_seconds(
    num_bytes: float, num_ranks: int, bandwidth_bytes_per_s: float, latency_s: float = 0.0
) -> float:
    """Ring: 2 (n - 1) / n x bytes / bandwidth, plus 2 (n - 1) messages' latency (nccl-tests).

    A reduce-scatter or an all-gather alone takes half of it.

    Args:
        num_bytes: the tensor's size on each rank.
        bandwidth_bytes_per_s: what one rank sends at, in one direction.
        latency_s: of one message to the neighbor.
    """
    _check_positive(num_ranks=num_ranks, bandwidth_bytes_per_s=bandwidth_bytes_per_s)
    hops = 2 * (num_ranks - 1)
    return hops / num_ranks * num_bytes / bandwidth_bytes_per_s + hops * latency_s


def tree_allreduce_seconds(
    num_bytes: float, num_ranks: int, bandwidth_bytes_per_s: float, latency_s: float
) -> float:
    """Double binary tree: the same bytes, at 2 log2(n) messages' latency (NCCL 2.4)."""
    _check_positive(num_ranks=num_ranks, bandwidth_bytes_per_s=bandwidth_bytes_per_s)
    depth = math.ceil(math.log2(num_ranks))
    moved = 2 * (num_ranks - 1) / num_ranks * num_bytes
    return moved / bandwidth_bytes_per_s + 2 * depth * latency_s


def sharding_traffic_bytes(weight_bytes: float, num_ranks: int, sharding: Sharding) -> float:
    """What a rank sends in a step: 2 (n - 1) / n x bytes, and 3 for ZeRO-3 (ZeRO, section 7).

    ZeRO-1 and 2 replace the all-reduce by its two halves. ZeRO-3 gathers the weights twice, for
    forward and for backward, and scatters the gradients.
    """
    halves = 3 if sharding == "zero3" else 2
    return halves * (num_ranks - 1) / num_ranks * weight_bytes


def hidden_allreduce_tokens(
    flop_per_s: float, bandwidth_bytes_per_s: float, gradient_bytes: int = 2
) -> float:
    """Tokens per GPU and step from which backward takes as long as the gradients' all-reduce.

    4 N T / flop_per_s = 2 N gradient_bytes / bandwidth, in which N cancels.

    Args:
        flop_per_s: what a GPU achieves, peak x MFU.
        gradient_bytes: per parameter.
    """
    return 2 * gradient_bytes / bandwidth_bytes_per_s * flop_per_s / 4


# Time and money -----------------------------------------------------------------------------


def step_seconds(
    compute_s: float, communication_s: float, overlapped_fraction: float = 0.0
) -> float:
    """Compute, plus what's left exposed of the communication; never less than either.

    Args:
        overlapped_fraction: of the communication that runs while the GPU computes, 0 to 1.
    """
    if not 0 <= overlapped_fraction <= 1:
        raise CalculatorError(
            f"overlapped_fraction={overlapped_fraction:g}: it's a fraction, from 0 to 1."
        )
    exposed_s = communication_s * (1 - overlapped_fraction)
    return max(compute_s + exposed_s, communication_s)


def gpu_hours(
    flops: float, peak_flop_per_s: float, mfu: float, goodput_fraction: float = 1.0
) -> float:
    """FLOPs / (peak x MFU x goodput), in hours of one GPU.

    Args:
        mfu: while it trains, 0 to 1.
        goodput_fraction: of the time that you pay for, 0 to 1. The rest goes to restarts, lost
            steps, saves and waiting.
    """
    _check_fraction(mfu=mfu, goodput_fraction=goodput_fraction)
    return flops / (peak_flop_per_s * mfu * goodput_fraction) / SECONDS_PER_HOUR


def train_days(hours_of_one_gpu: float, num_gpus: int) -> float:
    """GPU hours / GPUs / 24."""
    _check_positive(num_gpus=num_gpus)
    return hours_of_one_gpu / num_gpus / HOURS_PER_DAY


def cost_usd(hours_of_one_gpu: float, usd_per_gpu_hour: float) -> float:
    """GPU hours x price. Storage, network, people and failed experiments aren't in it."""
    return hours_of_one_gpu * usd_per_gpu_hour


def implied_mfu(flops: float, hours_of_one_gpu: float, peak_flop_per_s: float) -> float:
    """MFU x goodput, from a bill: FLOPs / (GPU hours x peak)."""
    _check_positive(hours_of_one_gpu=hours_of_one_gpu, peak_flop_per_s=peak_flop_per_s)
    return flops / (hours_of_one_gpu * SECONDS_PER_HOUR * peak_flop_per_s)


class Plan(NamedTuple):
    """A model and its data."""

    num_parameters: float
    num_tokens: float


def compute_optimal(flops: float, tokens_per_parameter: float = TOKENS_PER_PARAMETER) -> Plan:
    """With D = 20 N, 6 N D = 120 N^2; so N is the root of FLOPs / 120 (Chinchilla)."""
    _check_positive(flops=flops, tokens_per_parameter=tokens_per_parameter)
    num_parameters = math.sqrt(flops / (6 * tokens_per_parameter))
    return Plan(num_parameters, tokens_per_parameter * num_parameters)
