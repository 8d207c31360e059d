"""Progress over time, and strengths by rubric row, in one figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from math import ceil
from typing import TYPE_CHECKING, Any

from rehearsal.interviews.rubric import MARKS
from rehearsal.plan.by_day import ByDay
from rehearsal.plan.strengths import Strength

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST_DAYS, MOST_TICKS = 6, 5
LEFT = 0.85  # where bars of marks start, so that the lowest one, 1, is a bar too
LABEL: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9, "annotation_clip": False}


def picture(
    progress: ByDay,
    strengths: Sequence[Strength],
    *,
    num_drills: int,
    num_cards: int,
    minutes: int,
    interview: date | None,
) -> Figure:
    """Draw it.

    Args:
        minutes: of a day, as planned.
        interview: drawn as a line if it isn't in the past.
    """
    import matplotlib.pyplot as plt

    from rehearsal.evidence.pictures import on_any_theme

    figure = plt.figure(figsize=(10, 7.4), dpi=100, layout="constrained")
    plt.close(figure)  # a notebook shows it as its cell's value, and must not show it twice
    figure.suptitle("How far you've come", x=0.01, ha="left", fontsize=14, fontweight="bold")
    grid = figure.add_gridspec(3, 2, width_ratios=[1.15, 1])
    known = figure.add_subplot(grid[0, 0])
    practiced = figure.add_subplot(grid[1, 0], sharex=known)
    scores = figure.add_subplot(grid[2, 0], sharex=known)
    draw_known(known, progress, num_drills, num_cards)
    draw_minutes(practiced, progress, minutes)
    draw_scores(scores, progress)
    draw_dates([known, practiced, scores], progress, interview)
    draw_rows(figure.add_subplot(grid[:, 1]), strengths)
    return on_any_theme(figure)


def titled(axes: Axes, title: str, subtitle: str) -> None:
    """A title in bold, and under it how to read the panel."""
    axes.set_title(subtitle, loc="left", fontsize=9)
    axes.annotate(title, (0, 1), (0, 17), xycoords="axes fraction", fontweight="bold", **LABEL)
    axes.spines[["top", "right"]].set_visible(False)


def draw_known(axes: Axes, progress: ByDay, num_drills: int, num_cards: int) -> None:
    """Shares of all drills and cards, day by day; the counts stand at the end of each line."""
    from rehearsal.evidence.pictures import BLUE, ORANGE

    titled(axes, "Drills passed, cards known", "share of all; a known card isn't due")
    series = (
        (progress.passed, num_drills, "drills", BLUE, "-", "o"),
        (progress.known, num_cards, "cards", ORANGE, "--", "s"),
    )
    ends = [100 * counts[-1] / max(1, total) for counts, total, *_ in series]
    upper = 0 if ends[0] >= ends[1] else 1
    is_long = len(progress.days) > FEWEST_DAYS  # room to the left of a line's end
    for place, (counts, total, name, color, dash, shape) in enumerate(series):
        shares = [100 * count / max(1, total) for count in counts]
        axes.plot(numbers(progress.days), shares, dash, color=color, lw=2, marker=shape, ms=4)
        axes.annotate(
            f"{counts[-1]} of {total} {name}", (progress.days[-1].toordinal(), shares[-1]),
            (-4 if is_long else 6, 8 if place == upper else -16), fontweight="bold",
            ha="right" if is_long else "left", **LABEL,
        )  # fmt: skip
    axes.set_ylabel("%")
    top = max(30.0, 1.25 * max(ends))
    axes.set_ylim(-0.35 * top, top)  # room for the words under a line
    axes.set_yticks([tick for tick in axes.get_yticks() if 0 <= tick <= top])


def draw_minutes(axes: Axes, progress: ByDay, minutes: int) -> None:
    """A bar for each day, against the minutes planned for one."""
    from rehearsal.evidence.pictures import GREEN, INK

    titled(axes, "Minutes practiced", f"the line: {minutes} minutes a day, as planned")
    axes.bar(numbers(progress.days), progress.minutes, 0.8, color=GREEN)
    axes.axhline(minutes, color=INK, lw=1.2, ls="--")
    axes.set_ylabel("minutes")


def draw_scores(axes: Axes, progress: ByDay) -> None:
    """Incidents and mock interviews, each as the mean of its rows."""
    from rehearsal.evidence.pictures import BLUE, VERMILLION

    titled(axes, "Scores", "mean mark of each mock interview and incident")
    series = (
        (progress.interviews, "o", BLUE, "mock interview"),
        (progress.incidents, "D", VERMILLION, "incident"),
    )
    for points, shape, color, name in series:
        axes.plot(
            numbers(day for day, _ in points), [mark for _, mark in points], shape, color=color,
            ms=8, mec="white", ls=":" if len(points) > 1 else "", label=name,
        )  # fmt: skip
    axes.set_ylim(0.7, 4.3)
    axes.set_yticks([1, 2, 3, 4])
    axes.set_ylabel("mark, 1 to 4")
    axes.legend(
        frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(0, -0.3), ncols=2
    )
    if not (progress.interviews or progress.incidents):
        axes.text(0.5, 0.5, "none yet", transform=axes.transAxes, ha="center", fontsize=9)


def numbers(days: Iterable[date]) -> list[int]:
    """Days as matplotlib gets them here: plain numbers, labeled by ``draw_dates``."""
    return [day.toordinal() for day in days]


def draw_dates(panels: Sequence[Axes], progress: ByDay, interview: date | None) -> None:
    """One axis of days for all panels, with the interview as a line."""
    from rehearsal.evidence.pictures import PURPLE

    first, last = progress.days[0].toordinal(), progress.days[-1].toordinal()
    there = interview.toordinal() if interview is not None else 0
    end = max(there, last, first + FEWEST_DAYS)
    ticks = range(first, end + 1, ceil((end - first + 1) / MOST_TICKS))
    labels = [f"{date.fromordinal(tick):%b} {date.fromordinal(tick).day}" for tick in ticks]
    for axes in panels:
        axes.set_xlim(first - 1, end + 1)
        axes.set_xticks(ticks, labels)
        if axes is not panels[-1]:
            axes.tick_params(labelbottom=False)
        if there >= last:
            axes.axvline(there, color=PURPLE, lw=2)
    if there >= last:
        panels[0].annotate(
            "interview", (there, 1), (-4, -10), xycoords=("data", "axes fraction"), ha="right",
            fontweight="bold", **LABEL,
        )  # fmt: skip


def draw_rows(axes: Axes, strengths: Sequence[Strength]) -> None:
    """A bar for each row of the rubric, or the words that nothing is known about it."""
    from rehearsal.evidence.pictures import BLUE, INK, ORANGE

    titled(axes, "Rows of the rubric", "mark, and from how many observations")
    for place, each in enumerate(strengths):
        if each.mark is None:
            axes.annotate("no evidence yet", (LEFT, place), (4, -3), style="italic", **LABEL)
            continue
        is_weak = each.mark < 3
        axes.barh(
            place, each.mark - LEFT, 0.6, LEFT, color=ORANGE if is_weak else BLUE,
            hatch="///" if is_weak else "", edgecolor=INK,
        )  # fmt: skip
        axes.annotate(f"{each.mark:.1f}, n = {each.total}", (4, place), (8, -3), **LABEL)
    axes.set_yticks(range(len(strengths)), [each.row.name for each in strengths], fontsize=9)
    axes.set_ylim(len(strengths) - 0.4, -0.6)  # the first on top
    axes.set_xlim(LEFT, 5)  # room for the words on the right
    axes.set_xticks(list(MARKS), [f"{mark}\n{words}" for mark, words in MARKS.items()])
    axes.axvline(3, color=INK, lw=1, ls=":")
    axes.set_xlabel("hatched: below yes")
