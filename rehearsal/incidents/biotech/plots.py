"""Pictures of the biotech dashboards, in the style of ``rehearsal.evidence.pictures``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rehearsal.evidence.pictures import (
    BLUE,
    FAINT,
    ORANGE,
    PURPLE,
    RANK_MARKERS,
    VERMILLION,
    new_figure,
    on_any_theme,
    rank_color,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]


def by_assay(rows: Rows, title: str, subtitle: str) -> tuple[Figure, Axes]:
    """A figure with a line for each assay."""
    figure, axes = new_figure(1.6 + 0.24 * len(rows), title, subtitle)
    axes.set_yticks(range(len(rows)), [row["assay"] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    for place in range(len(rows)):
        axes.axhline(place, **FAINT)
    return figure, axes


def dots(axes: Axes, values: Sequence[float | None], **style: Any) -> None:
    """One marker per assay; none where there is no figure."""
    points = [(value, place) for place, value in enumerate(values) if value is not None]
    axes.plot([x for x, _ in points], [y for _, y in points], linestyle="none", **style)


def finished(figure: Figure, axes: Axes, xlabel: str) -> Figure:
    """With its label and legend."""
    axes.set_xlabel(xlabel)
    figure.legend(loc="outside lower left", ncols=4, frameon=False, fontsize=9)
    return on_any_theme(figure)


def metrics(rows: Rows) -> Figure:
    """AUROC and AUPRC of each assay, as reported."""
    figure, axes = by_assay(rows, "Validation", "As the job reports it, per assay.")
    for name, color, marker in (("auroc", BLUE, "o"), ("auprc", ORANGE, "D")):
        dots(axes, [r[name] for r in rows], color=color, marker=marker, label=name.upper())
    axes.set_xlim(0, 1.02)
    return finished(figure, axes, "metric on the validation part")


def fresh(rows: Rows) -> Figure:
    """AUROC on the validation part and on the fresh batch; rates of actives below."""
    figure, axes = by_assay(
        rows, "The fresh batch", "Measured after the data was prepared, on new scaffolds."
    )
    names = (
        ("validation_auroc", "AUROC, validation", BLUE, "o"),
        ("fresh_auroc", "AUROC, fresh", VERMILLION, "o"),
        ("actives", "share of actives, fresh", PURPLE, "|"),
        ("expected", "expected by the model", ORANGE, "x"),
    )
    for name, label, color, marker in names:
        dots(
            axes, [r[name] for r in rows], color=color, marker=marker, label=label,
            markersize=8, markeredgewidth=2,
        )  # fmt: skip
    axes.set_xlim(0, 1.02)
    return finished(figure, axes, "AUROC, or share of the batch")


def label_counts(rows: Rows) -> Figure:
    """Labels measured and trained on, per assay."""
    figure, axes = by_assay(rows, "Labels", "Of the training part; per assay.")
    places = range(len(rows))
    trained = [row["trained"] for row in rows]
    axes.barh(places, trained, 0.7, color=ORANGE, label="trained on")
    measured = [row["measured"] for row in rows]
    axes.barh(places, measured, 0.4, color=BLUE, label="measured by the lab")
    return finished(figure, axes, "labels")


def scores(rows: Rows) -> Figure:
    """Each rank's own AUROC, the one over all scores, and the reported one."""
    figure, axes = by_assay(
        rows, "AUROC, counted again", "From the scores that each rank kept."
    )
    for rank in rows[0]["ranks"]:
        values = [row["ranks"][rank] for row in rows]
        dots(
            axes, values, color=rank_color(rank), marker=RANK_MARKERS[rank % 7],
            label=f"rank {rank}", markersize=5,
        )  # fmt: skip
    for name, label, color, marker in (
        ("all", "all scores", BLUE, "|"),
        ("reported", "reported", VERMILLION, "x"),
    ):
        values = [row[name] for row in rows]
        dots(
            axes, values, color=color, marker=marker, label=label, markersize=10,
            markeredgewidth=2,
        )  # fmt: skip
    axes.set_xlim(-0.02, 1.02)
    return finished(figure, axes, "AUROC on the validation part")


def neighbors(found: Mapping[str, Sequence[float]]) -> Figure:
    """How similar molecules are to their nearest one in training, as shares."""
    figure, axes = new_figure(
        3.4, "Nearest neighbors in training", "Tanimoto similarity, Morgan fingerprints."
    )
    bins = [0.05 * n for n in range(21)]
    styles = {"validation": (BLUE, "-"), "fresh batch": (VERMILLION, "--")}
    for name, values in found.items():
        color, line = styles[name]
        axes.hist(
            values, bins, weights=[1 / len(values)] * len(values), histtype="step",
            linewidth=2, color=color, linestyle=line, label=name,
        )  # fmt: skip
    axes.set_xlim(0, 1.02)
    axes.set_ylabel("share of the molecules")
    return finished(figure, axes, "similarity to the nearest training molecule")


def predictions(kept: Mapping[str, Any]) -> Figure:
    """Predicted against measured energies, held back and fresh."""
    figure, axes = new_figure(4.0, "Energies, predicted and measured", "A dot per geometry.")
    scale, mean = kept["deviation"], kept["mean"]
    held_back = [(p * scale + mean, y * scale + mean) for p, y in kept["held_back"]]
    for points, label, color, marker in (
        (held_back, "held back", BLUE, "o"),
        (kept["fresh"], "fresh batch", VERMILLION, "x"),
    ):
        xs, ys = [y for _, y in points], [p for p, _ in points]
        axes.plot(xs, ys, marker, color=color, label=label, markersize=5)
    top = max(y for _, y in [*held_back, *kept["fresh"]])
    axes.plot([0, top], [0, top], **FAINT)
    axes.set_ylabel("predicted (kcal/mol)")
    return finished(figure, axes, "measured (kcal/mol)")


def scales(energies: Mapping[str, Sequence[float]], mean: float, deviation: float) -> Figure:
    """The energies of each part, and the mean and deviation in use."""
    figure, axes = new_figure(
        3.4,
        "Energies",
        "Shares of each part; shaded: the mean in use, plus and minus one deviation.",
    )
    top = max(energies["all"])
    bins = [top * n / 30 for n in range(31)]
    for name, color, line in (("train", BLUE, "-"), ("held back", VERMILLION, "--")):
        values = energies[name]
        axes.hist(
            values, bins, weights=[1 / len(values)] * len(values), histtype="step",
            linewidth=2, color=color, linestyle=line, label=name,
        )  # fmt: skip
    axes.axvspan(mean - deviation, mean + deviation, color=ORANGE, alpha=0.2, label="in use")
    axes.set_ylabel("share of the part")
    return finished(figure, axes, "energy (kcal/mol)")
