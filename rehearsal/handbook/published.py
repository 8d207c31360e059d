"""Published figures: accelerators, training runs and their utilization, each with its source.

Nothing here is measured by us. ``test_handbook_15_numbers.py`` recomputes what can be.
"""

from __future__ import annotations

from typing import NamedTuple

from rehearsal.handbook.numbers import gpu_hours, implied_mfu, train_flops


class Accelerator(NamedTuple):
    """One accelerator, as its maker describes it."""

    name: str
    peak_flop_per_s: float  # bf16, dense: half of what a data sheet gives with sparsity
    memory_gb: int
    memory_gb_per_s: float
    link_gb_per_s: float  # to its neighbors in the server, one direction: half of both together
    network_gb_per_s: float  # of one network card per GPU, one direction
    source: str

    @property
    def ridge(self) -> float:
        """FLOPs per byte from which it's limited by arithmetic, no longer by memory."""
        return self.peak_flop_per_s / (self.memory_gb_per_s * 1e9)


# The network is what Llama 3 (H100) and Llama 2 (A100) had for each GPU: 400 and 200 Gb/s.
H100 = Accelerator(
    "H100 SXM", 989e12, 80, 3350, 450, 50, "https://www.nvidia.com/en-us/data-center/h100/"
)
A100 = Accelerator(
    "A100 SXM 80GB", 312e12, 80, 2039, 300, 25, "https://www.nvidia.com/en-us/data-center/a100/"
)
TPU_V4_PEAK_FLOP_PER_S = 275e12  # https://cloud.google.com/tpu/docs/v4


class Run(NamedTuple):
    """One training run."""

    name: str
    num_parameters: float  # that a token is multiplied by
    num_tokens: float
    flops: float | None  # as published
    gpu_hours: float | None  # as published
    accelerator: Accelerator | None  # that the hours are of
    sources: tuple[str, ...]


LLAMA_3_PAPER = "https://arxiv.org/abs/2407.21783"
LLAMA_3_CARD = (
    "https://github.com/meta-llama/llama-models/blob/main/models/llama3_1/MODEL_CARD.md"
)
LLAMA_2_CARD = "https://github.com/meta-llama/llama/blob/main/MODEL_CARD.md"
PALM_PAPER = "https://arxiv.org/abs/2204.02311"
DEEPSEEK_PAPER = "https://arxiv.org/abs/2412.19437"

RUNS = (
    # Table D.1 has 174,600 million parameters.
    Run("GPT-3", 174.6e9, 300e9, 3.14e23, None, None, ("https://arxiv.org/abs/2005.14165",)),
    Run("Chinchilla", 70e9, 1.4e12, 5.76e23, None, None, ("https://arxiv.org/abs/2203.15556",)),
    Run("PaLM", 540.35e9, 780e9, 2.5272e24, None, None, (PALM_PAPER,)),
    Run("Llama 2 70B", 70e9, 2.0e12, None, 1_720_320, A100, (LLAMA_2_CARD,)),
    Run("Llama 3.1 8B", 8e9, 15e12, None, 1.46e6, H100, (LLAMA_3_CARD,)),
    Run("Llama 3.1 70B", 70e9, 15e12, None, 7.0e6, H100, (LLAMA_3_CARD,)),
    Run("Llama 3.1 405B", 405e9, 15.6e12, 3.8e25, 30.84e6, H100, (LLAMA_3_PAPER, LLAMA_3_CARD)),
)
RUN = {run.name: run for run in RUNS}


class Utilization(NamedTuple):
    """A published MFU."""

    name: str
    chips: str
    mfu: float
    source: str


KORTHIKANTI = "https://arxiv.org/abs/2205.05198"
UTILIZATIONS = (
    Utilization("GPT-3", "V100", 0.213, PALM_PAPER),
    Utilization("Gopher 280B", "4,096 TPU v3", 0.325, PALM_PAPER),
    Utilization("Megatron-Turing 530B", "2,240 A100", 0.302, PALM_PAPER),
    Utilization("PaLM 540B", "6,144 TPU v4", 0.462, PALM_PAPER),
    Utilization("530B, all layers recomputed", "2,240 A100", 0.421, KORTHIKANTI),
    Utilization("530B, little recomputed", "2,240 A100", 0.542, KORTHIKANTI),
    Utilization("Llama 3 405B, sequences of 8K", "8,192 H100", 0.43, LLAMA_3_PAPER),
    Utilization("Llama 3 405B, sequences of 8K", "16,384 H100", 0.41, LLAMA_3_PAPER),
    Utilization("Llama 3 405B, sequences of 128K", "16,384 H100", 0.38, LLAMA_3_PAPER),
)

# What PaLM's MFU is made from: appendix B and section 4.1.
PALM_TOKENS_PER_S, PALM_CHIPS, PALM_LAYERS, PALM_WIDTH, PALM_SEQ_LEN = (
    238.3e3, 6144, 118, 48 * 256, 2048,
)  # fmt: skip
PALM_MFU_WITHOUT_ATTENTION, PALM_MFU, PALM_HFU = 0.457, 0.462, 0.578

# DeepSeek-V3: 37e9 of 671e9 parameters are active for a token. Hours of H800.
DEEPSEEK_ACTIVE, DEEPSEEK_TOKENS = 37e9, 14.8e12
DEEPSEEK_PRETRAIN_HOURS, DEEPSEEK_HOURS = 2.664e6, 2.788e6
DEEPSEEK_USD_PER_HOUR, DEEPSEEK_USD = 2.0, 5.576e6

LLAMA_3_EFFECTIVE_TIME = 0.90  # "higher than 90%" of the elapsed time: LLAMA_3_PAPER, 3.3.4


def hardware_table() -> str:
    """A line per accelerator."""
    lines = [
        f"{'':14}bf16, dense    memory   its bandwidth  NVLink, one way  network, one way"
        "  ridge, FLOP/byte"
    ]
    for gpu in (H100, A100):
        lines.append(
            f"{gpu.name:14}{gpu.peak_flop_per_s / 1e12:4.0f} TFLOP/s  {gpu.memory_gb:5} GB "
            f"{gpu.memory_gb_per_s:10,.0f} GB/s {gpu.link_gb_per_s:11.0f} GB/s "
            f"{gpu.network_gb_per_s:12.0f} GB/s {gpu.ridge:17.0f}"
        )
    return "\n".join(lines)


def utilization_table() -> str:
    """A line per published MFU."""
    lines = [
        f"{entry.mfu:6.1%}  {entry.name:32} {entry.chips:13} {entry.source}"
        for entry in UTILIZATIONS
    ]
    return "\n".join(lines)


def runs_table(mfu: float) -> str:
    """A line per run: FLOPs and GPU hours, computed next to published, with their ratio."""
    lines = [
        f"{'':15}{'FLOPs: 6ND':>11}{'published':>11}{'ratio':>7}"
        f"{f'hours at {mfu:.0%}':>15}{'published':>11}{'ratio':>7}{'implied MFU':>13}"
    ]
    for run in RUNS:
        flops = train_flops(run.num_parameters, run.num_tokens)
        line = f"{run.name:15}{flops:11.2e}"
        line += f"{run.flops:11.2e}{flops / run.flops:7.2f}" if run.flops else " " * 18
        if run.gpu_hours and run.accelerator:
            peak = run.accelerator.peak_flop_per_s
            hours = gpu_hours(flops, peak, mfu)
            line += (
                f"{hours / 1e6:14.2f}M{run.gpu_hours / 1e6:10.2f}M{hours / run.gpu_hours:7.2f}"
            )
            line += f"{implied_mfu(flops, run.gpu_hours, peak):13.1%}"
        lines.append(line.rstrip())
    return "\n".join(lines)
