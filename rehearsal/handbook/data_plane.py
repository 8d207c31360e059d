"""Chapter 20's published prices and limits, and its pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rehearsal.evidence.pictures import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PALE,
    SKY,
    VERMILLION,
    Style,
    new_figure,
    on_any_theme,
)
from rehearsal.handbook.sample_maps import count_epochs, draw_map

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# ---------------------------------------------------------------- published


class Tier(NamedTuple):
    """A step of a price list: so many TB of a month at so many dollars per GB."""

    tb: float
    usd_per_gb: float


# https://aws.amazon.com/s3/pricing/ for us-east-1, as listed in 2026; the standard class.
STORAGE = (Tier(50, 0.023), Tier(450, 0.022), Tier(float("inf"), 0.021))  # a month
EGRESS = (Tier(10, 0.09), Tier(40, 0.085), Tier(100, 0.07), Tier(float("inf"), 0.05))
USD_PER_GET = 0.0004 / 1000
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html
GETS_PER_S_AND_PREFIX = 5500
FIRST_BYTE_S = (0.1, 0.2)


def list_price(tb: float, tiers: Sequence[Tier]) -> float:
    """Dollars for that many TB: each tier's share at its own price."""
    dollars = 0.0
    for tier in tiers:
        part = min(tb, tier.tb)
        dollars += 1000 * part * tier.usd_per_gb
        tb -= part
    return dollars


# ---------------------------------------------------------------- pictures

Line = Mapping[str, Any]


def cursor_maps(runs: Mapping[str, list[Line]], num_samples: int) -> Figure:
    """Which rank trained on which sample in which step: a map per run, with what it missed."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    size: Style = {"figsize": (10, 3.6), "dpi": 100, "layout": "constrained"}
    figure, grid = plt.subplots(1, len(runs), sharey=True, **size)
    plt.close(figure)  # a notebook shows it as its cell's value, and must not show it twice
    handles: dict[Any, Any] = {}
    for axes, (name, lines) in zip(grid, runs.items(), strict=True):
        draw_map(axes, lines, num_samples)
        [count] = count_epochs(lines, num_samples)
        subtitle = f"{len(count.missed)} missed, {len(count.repeated)} repeated"
        axes.set_title(f"{name}: {subtitle}", loc="left", fontsize=10, fontweight="bold")
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    grid[0].set_ylabel("sample")
    figure.legend(
        handles.values(), handles, loc="outside lower left", ncols=6, frameon=False, fontsize=9
    )
    return on_any_theme(figure)


def shuffle_picture(
    measured: Mapping[int, Mapping[int, float]], batch: int, num_samples: int
) -> Figure:
    """The design effect of a batch against the read size, one line per shuffle buffer.

    Args:
        measured: buffer -> read size -> variance of the batch mean, relative to a full shuffle.
        batch: samples of one batch.
        num_samples: of the epoch, for the upper axis.
    """
    subtitle = "Points: measured. Lines: 1 + read x batch / (2 x buffer), at most the batch."
    title = f"Design effect of a batch of {batch}"
    figure, axes = new_figure(4.6, title, subtitle)
    looks: tuple[tuple[str, str, str], ...] = (
        (VERMILLION, "o", ":"), (ORANGE, "s", "--"), (GREEN, "D", "-."), (BLUE, "^", "-"),
    )  # fmt: skip
    for (buffer, by_read), (color, marker, dashes) in zip(
        measured.items(), looks, strict=False
    ):
        reads = sorted(by_read)
        label = f"buffer of {buffer:,}" if buffer > 1 else "no buffer"
        axes.plot(reads, [by_read[r] for r in reads], marker, color=color, label=label)
        rule = [min(batch, 1 + r * batch / (2 * buffer) if buffer > 1 else r) for r in reads]
        axes.plot(reads, rule, dashes, color=color, linewidth=1.4)
    axes.axhline(1, color=INK, linewidth=0.8)
    axes.set(xscale="log", yscale="log", ylim=(0.3, 2 * batch))
    reads = sorted(next(iter(measured.values())))
    axes.set_xticks(reads, [f"{read:,}" for read in reads])
    axes.set_yticks([1, 4, 16, 64, batch], ["1", "4", "16", "64", f"{batch}"])
    axes.minorticks_off()
    axes.set_xlabel("samples per contiguous read")
    axes.set_ylabel("variance of the batch mean\n(1: a random batch)")
    axes.grid(**FAINT)
    axes.legend(frameon=False, loc="lower right", ncols=3)
    above = axes.secondary_xaxis("top")
    above.set_xticks(reads, [f"{num_samples // read:,} reads" for read in reads], fontsize=9)
    above.minorticks_off()
    above.spines[:].set_visible(False)
    above.tick_params(length=0)
    return on_any_theme(figure)


def batch_picture(batches: Mapping[str, Sequence[Sequence[int]]]) -> Figure:
    """What one batch of each strategy looks like: tokens in color, padding in gray.

    Args:
        batches: name -> rows; a row has the lengths of the sequences in it.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    size: Style = {"figsize": (10, 2.9), "dpi": 100, "layout": "constrained"}
    figure, grid = plt.subplots(1, len(batches), sharex=True, **size)
    plt.close(figure)  # a notebook shows it as its cell's value, and must not show it twice
    for axes, (name, rows) in zip(grid, batches.items(), strict=True):
        width = max(map(sum, rows))
        for at, row in enumerate(rows):
            look: Style = {"height": 1, "edgecolor": "white", "linewidth": 0.4}
            axes.barh(at, width, color=PALE, **look)
            left = 0
            for number, length in enumerate(row):
                axes.barh(at, length, left=left, color=(BLUE, SKY)[number % 2], **look)
                left += length
        tokens, room = sum(map(sum, rows)), width * len(rows)
        title = f"{name}\n{1 - tokens / room:.0%} padding"
        axes.set_title(title, loc="left", fontsize=10)
        axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel="tokens")
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    grid[0].set_ylabel("rows of one batch")
    patches = [Patch(color=BLUE, label="a sequence"), Patch(color=PALE, label="padding")]
    figure.legend(
        handles=patches, loc="outside lower center", ncols=2, frameon=False, fontsize=9
    )
    return on_any_theme(figure)


def cache_picture(rates: Mapping[str, Mapping[float, float]]) -> Figure:
    """The hit rate of a node's cache against its size, one line per policy.

    Args:
        rates: policy -> size of the cache as a share of the data -> hit rate.
    """
    figure, axes = new_figure(
        3.8, "Hits in a node's cache", "Simulated, after the first epoch."
    )
    looks: tuple[Style, ...] = (
        {"color": VERMILLION, "marker": "o", "linestyle": ":"},
        {"color": ORANGE, "marker": "s", "linestyle": "--"},
        {"color": BLUE, "marker": "D", "linestyle": "-"},
    )
    for (name, by_size), look in zip(rates.items(), looks, strict=True):
        sizes = [100 * size for size in by_size]
        axes.plot(sizes, [100 * rate for rate in by_size.values()], label=name, **look)
    axes.set(xlabel="size of the cache, % of the data", ylim=(-4, 104), xlim=(0, 104))
    axes.set_ylabel("reads served from it, %")
    axes.grid(**FAINT)
    axes.legend(frameon=False, loc="upper left")
    return on_any_theme(figure)
