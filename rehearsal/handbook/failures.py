"""Chapter 18's published figures, and its pictures. Every figure has its source next to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rehearsal.evidence.cadence import Costs, expected_goodput
from rehearsal.evidence.cadence_simulation import Simulation
from rehearsal.evidence.pictures import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    Style,
    new_figure,
    on_any_theme,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# ---------------------------------------------------------------- published

# Llama Team, The Llama 3 Herd of Models, arXiv 2407.21783, table 5: unexpected interruptions of
# the 405B model's training, in 54 days on 16,384 H100s with 8 per node.
LLAMA_3: dict[str, tuple[str, int]] = {
    "faulty GPU": ("GPU", 148),
    "GPU memory (HBM3)": ("GPU", 72),
    "software bug": ("software", 54),
    "network switch or cable": ("network", 35),
    "host maintenance": ("host", 32),
    "GPU SRAM": ("GPU", 19),
    "GPU system processor": ("GPU", 17),
    "NIC": ("host", 7),
    "NCCL watchdog timeout": ("unknown", 7),
    "silent data corruption": ("GPU", 6),
    "GPU thermal interface, sensor": ("GPU", 6),
    "SSD": ("host", 3),
    "power supply": ("host", 3),
    "server chassis": ("host", 2),
    "I/O expansion board": ("host", 2),
    "dependency": ("software", 2),
    "CPU": ("host", 2),
    "system memory": ("host", 2),
}
LLAMA_3_DAYS, LLAMA_3_GPUS = 54, 16_384


class Published(NamedTuple):
    """The mean time between failures of a job of that size, in hours."""

    name: str
    gpus: int
    hours: float
    how: str  # measured, projected by its authors, or at most


# Kokolis et al., Revisiting Reliability in Large-Scale Machine Learning Research Clusters, HPCA
# 2025, arXiv 2410.21680. The rates are in failures per 1000 node-days, with 8 GPUs per node.
RSC_RATES = {"RSC-1": 6.50, "RSC-2": 2.34}
PUBLISHED = (
    Published("Kokolis et al., 8 GPUs", 8, 47.7 * 24, "measured"),
    Published("Kokolis et al., 1,024 GPUs", 1024, 7.9, "measured"),
    Published("Kokolis et al., 16,384 GPUs", 16_384, 1.8, "projected"),
    Published("Kokolis et al., 131,072 GPUs", 131_072, 0.23, "projected"),
    Published("Llama 3 405B", LLAMA_3_GPUS, 24 * LLAMA_3_DAYS / 419, "measured"),
    # Zhang et al., OPT, arXiv 2205.01068, section 2.5: at least 35 manual restarts and an
    # estimated 70 or more automatic ones, in two months (60 days here) on 992 A100s.
    Published("OPT-175B", 992, 24 * 60 / (35 + 70), "at most"),
)


class Xid(NamedTuple):
    """What NVIDIA's catalog says about an error code of the driver."""

    meaning: str
    action: str  # the catalog's immediate action, in our words


# https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
XIDS = {
    13: Xid("illegal instruction, or an access out of bounds", "debug the application"),
    31: Xid("page fault: an access to an illegal address", "debug the application"),
    48: Xid("uncorrectable (double-bit) ECC error", "drain; reset the GPU or reboot"),
    63: Xid("a memory row was marked for remapping", "nothing now; reset when idle"),
    64: Xid("remapping a row failed", "drain; reset the GPU, else support"),
    74: Xid("NVLink error, here or at the other end", "drain; reset both ends, check the link"),
    79: Xid("GPU has fallen off the bus", "drain; restart the machine, else support"),
    94: Xid("memory error, contained to one process", "restart the job; reset when idle"),
    95: Xid("memory error, not contained", "drain; reset the GPU before any restart"),
}

# ---------------------------------------------------------------- pictures

DOMAINS = {
    "GPU": (BLUE, ""),
    "software": (ORANGE, "///"),
    "network": (VERMILLION, "xxx"),
    "host": (GREEN, "..."),
    "unknown": (SKY, "---"),
}
# Where a point's name stands: right and up from it, and which side of the name is there.
LABELS: dict[tuple[int, str], tuple[tuple[int, int], str]] = {
    (8, "measured"): ((22, -20), "left"),
    (1024, "measured"): ((28, -22), "left"),
    (16_384, "measured"): ((24, 34), "left"),
    (16_384, "projected"): ((-40, -22), "right"),
    (131_072, "projected"): ((14, 14), "left"),
    (992, "at most"): ((-18, -8), "right"),
}
MARKERS = {"measured": "o", "projected": "D", "at most": "v"}


def interruptions_picture() -> Figure:
    """Llama 3's unexpected interruptions by cause, colored by failure domain."""
    from matplotlib.patches import Patch

    total = sum(count for _, count in LLAMA_3.values())
    title = f"{total} unexpected interruptions in {LLAMA_3_DAYS} days on {LLAMA_3_GPUS:,} GPUs"
    figure, axes = new_figure(4.6, title, "Published: Llama 3 405B, arXiv 2407.21783, table 5.")
    for row, (domain, count) in enumerate(LLAMA_3.values()):
        color, hatch = DOMAINS[domain]
        axes.barh(row, count, 0.7, color=color, hatch=hatch, edgecolor="white", linewidth=0)
        axes.annotate(f"{count}", (count, row), (4, 0), va="center", fontsize=9,
                      textcoords="offset points")  # fmt: skip
    axes.set_yticks(range(len(LLAMA_3)), list(LLAMA_3))
    axes.set(xlabel="interruptions", ylim=(len(LLAMA_3) - 0.5, -0.5))
    patches = [
        Patch(facecolor=color, hatch=hatch, edgecolor="white", linewidth=0, label=domain)
        for domain, (color, hatch) in DOMAINS.items()
    ]
    axes.legend(handles=patches, frameon=False, loc="lower right", title="failure domain")
    return on_any_theme(figure)


def mtbf_picture(
    mtbf_h: Callable[[float, float], float],
    rates: Mapping[str, float],
    points: Sequence[Published] = PUBLISHED,
) -> Figure:
    """Mean time between failures against GPUs: the 1/N law at several rates, published points.

    Args:
        mtbf_h: the law; given GPUs and failures per 1000 node-days, it returns hours.
        rates: name -> failures per 1000 node-days.
    """
    subtitle = "Lines: node MTBF / nodes, at a published rate. Points: published for that size."
    figure, axes = new_figure(4.8, "Mean time between failures of one job", subtitle)
    gpus = np.geomspace(8, 131_072, 50)
    styles: tuple[Style, ...] = (
        {"color": BLUE},
        {"color": ORANGE, "linestyle": "--"},
        {"color": GREEN, "linestyle": "-."},
    )
    for (name, rate), style in zip(rates.items(), styles, strict=True):
        label = f"{name}: {rate:.2f} failures per 1000 node-days"
        axes.plot(gpus, [mtbf_h(n, rate) for n in gpus], linewidth=2, label=label, **style)
    for how, marker in MARKERS.items():
        some = [point for point in points if point.how == how]
        look: Style = {"color": VERMILLION, "markeredgecolor": "white", "zorder": 3}
        axes.plot([p.gpus for p in some], [p.hours for p in some], marker, markersize=9,
                  linestyle="none", label=f"published, {how}", **look)  # fmt: skip
        for point in some:
            (right, up), side = LABELS[point.gpus, how]
            where: Style = {"textcoords": "offset points", "fontsize": 9, "ha": side}
            where["arrowprops"] = {"arrowstyle": "-", "color": INK, "linewidth": 0.7}
            text = point.name.partition(",")[0]
            axes.annotate(text, (point.gpus, point.hours), (right, up), **where)
    axes.set(xscale="log", yscale="log", xlabel="GPUs in the job", xlim=(6, 5e5))
    axes.set_xticks([8, 64, 1024, 16_384, 131_072], ["8", "64", "1,024", "16,384", "131,072"])
    axes.set_yticks([0.25, 1, 8, 24, 168, 720], ["15 min", "1 h", "8 h", "1 d", "1 w", "30 d"])
    axes.minorticks_off()
    axes.set_ylabel("mean time between failures")
    axes.grid(**FAINT)
    axes.legend(frameon=False, loc="lower left", fontsize=9)
    return on_any_theme(figure)


def bit_flip_picture(changes: Mapping[int, Sequence[float]], noise: float) -> Figure:
    """How far a flipped bit moves the loss, by bit, next to the loss's own noise.

    Args:
        changes: bit -> absolute change of the loss, one per weight that was tried; in nats.
        noise: standard deviation of the loss from batch to batch, in nats.
    """
    subtitle = "Each point is one weight with that one bit flipped, on the same batch."
    figure, axes = new_figure(4.0, "What one flipped bit does to the loss", subtitle)
    floor, ceiling = 1e-9, 1e4
    for bit, values in changes.items():
        finite = [min(max(v, floor), ceiling) if np.isfinite(v) else ceiling for v in values]
        jitter = bit + np.linspace(-0.25, 0.25, len(finite))
        color, marker = (BLUE, "o") if bit < 23 else (VERMILLION, "D")
        color, marker = (PURPLE, "s") if bit == 31 else (color, marker)
        axes.plot(jitter, finite, marker, color=color, markersize=4, linestyle="none")
    for label, color, marker in (
        ("mantissa", BLUE, "o"), ("exponent", VERMILLION, "D"), ("sign", PURPLE, "s"),
    ):  # fmt: skip
        axes.plot([], [], marker, color=color, linestyle="none", label=label)
    axes.axhline(noise, color=INK, linewidth=1.5, linestyle="--")
    text = f"noise of the loss from batch to batch: {noise:.2f}"
    axes.annotate(text, (0, noise), (0, 4), textcoords="offset points", fontsize=9)
    axes.set(xlabel="bit that was flipped (0: least significant)", yscale="log")
    axes.set(ylabel="change of the loss (nats)", ylim=(floor / 2, 3 * ceiling))
    axes.set_yticks([1e-9, 1e-6, 1e-3, 1, 1e4], ["0", "1e-6", "0.001", "1", "NaN or huge"])
    axes.minorticks_off()
    axes.legend(frameon=False, loc="upper left", ncols=3, bbox_to_anchor=(0, 0.93))
    return on_any_theme(figure)


def waiting_picture(cases: Mapping[str, Sequence[Mapping[str, Sequence[float]]]]) -> Figure:
    """Per rank, milliseconds of computing and of waiting in the collective, one panel per case.

    Args:
        cases: name -> one mapping per rank: ``compute_ms`` and ``wait_ms``, one for each step.
    """
    import matplotlib.pyplot as plt

    size: Style = {"figsize": (10, 2.8), "dpi": 100, "layout": "constrained"}
    figure, grid = plt.subplots(1, len(cases), sharex=True, sharey=True, **size)
    plt.close(figure)  # a notebook shows it as its cell's value, and must not show it twice
    figure.suptitle("A step on each rank", x=0.01, ha="left", fontsize=14, fontweight="bold")
    for axes, (name, ranks) in zip(grid, cases.items(), strict=True):
        axes.set_title(name, loc="left", fontsize=11)
        left = np.zeros(len(ranks))
        for key, label, color, hatch in (
            ("compute_ms", "compute", BLUE, ""),
            ("wait_ms", "in the collective", ORANGE, "///"),
        ):
            width = np.array([np.median(rank[key]) for rank in ranks])
            look: Style = {"color": color, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
            axes.barh(range(len(ranks)), width, 0.7, left, label=label, **look)
            left += width
        axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in range(len(ranks))])
        axes.set(xlabel="milliseconds (median step)", ylim=(len(ranks) - 0.5, -0.5))
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return on_any_theme(figure)


def spares_picture(
    curves: Mapping[str, Mapping[int, float]], simulated: Mapping[int, float], target: float
) -> Figure:
    """The share of time in which the job is short of nodes, against spares.

    Args:
        curves: name -> spares -> share, from the formula; the first is the simulated one.
        simulated: spares -> share.
        target: the highest share that we accept.
    """
    subtitle = "Lines: binomial formula. Points: simulated, failure by failure."
    figure, axes = new_figure(3.8, "Time without enough healthy nodes", subtitle)
    styles: tuple[Style, ...] = ({"color": BLUE}, {"color": ORANGE, "linestyle": "--"})
    for (name, curve), style in zip(curves.items(), styles, strict=True):
        axes.plot(list(curve), list(curve.values()), label=name, linewidth=2, **style)
    shown = {spares: share for spares, share in simulated.items() if share > 0}
    look: Style = {"color": INK, "markersize": 6, "linestyle": "none", "zorder": 3}
    axes.plot(list(shown), list(shown.values()), "o", label="simulated", **look)
    axes.axhline(target, color=VERMILLION, linewidth=1.2, linestyle=":")
    axes.annotate(f"target: {target:.1%}", (0, target), (2, 4), fontsize=9,
                  textcoords="offset points")  # fmt: skip
    axes.set(yscale="log", ylim=(1e-5, 1.5), xlabel="spare nodes", xlim=(0, None))
    axes.set_yticks([1, 0.1, 0.01, 1e-3, 1e-4], ["100%", "10%", "1%", "0.1%", "0.01%"])
    axes.minorticks_off()
    axes.set_ylabel("share of time short of nodes")
    axes.grid(**FAINT)
    axes.legend(frameon=False, loc="upper right")
    return on_any_theme(figure)


class Policy(NamedTuple):
    """How a job saves and restarts, whatever its size."""

    save_s: float
    publish_s: float
    restart_s: float
    interval_s: float | None  # None: the best one for that size

    def at(self, mtbf_s: float) -> Costs:
        """Its costs at that mean time between failures."""
        return Costs(
            save_s=self.save_s,
            publish_s=self.publish_s,
            restart_s=self.restart_s,
            mtbf_s=mtbf_s,
        )


def goodput_by_size_picture(
    policies: Mapping[str, Policy],
    interval_of: Callable[[Policy, float], float],
    mtbf_s: Callable[[float], float],
    simulated: Mapping[str, Mapping[int, Simulation]],
) -> Figure:
    """Goodput against GPUs: one line per policy from the formula, simulated jobs as points.

    Args:
        interval_of: given a policy and the MTBF in seconds, its checkpoint interval in seconds.
        mtbf_s: given GPUs, the mean time between failures in seconds.
        simulated: policy -> GPUs -> the simulated job.
    """
    subtitle = "Lines: formula. Points: the same job, simulated failure by failure, +- 2 SE."
    figure, axes = new_figure(4.8, "Goodput against the size of the job", subtitle)
    gpus = np.geomspace(512, 131_072, 60)
    styles: tuple[dict[str, Any], ...] = (
        {"color": VERMILLION, "linestyle": ":"},
        {"color": ORANGE, "linestyle": "--"},
        {"color": GREEN, "linestyle": "-."},
        {"color": BLUE, "linestyle": "-"},
    )
    for (name, policy), style in zip(policies.items(), styles, strict=True):
        line = []
        for n in gpus:
            seconds = mtbf_s(n)
            line.append(
                100 * expected_goodput(interval_of(policy, seconds), policy.at(seconds))
            )
        axes.plot(gpus, line, linewidth=2.2, label=name, **style)
        for n, job in simulated.get(name, {}).items():
            axes.errorbar(n, 100 * job.goodput, 200 * job.standard_error, fmt="o", capsize=3,
                          color=INK, markersize=4, zorder=3)  # fmt: skip
    axes.set(xscale="log", ylim=(0, 100), xlabel="GPUs in the job")
    ticks = [512, 1024, 4096, 16_384, 65_536, 131_072]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylabel("goodput, % of wall time")
    axes.grid(**FAINT)
    axes.legend(frameon=False, loc="lower left")
    return on_any_theme(figure)
