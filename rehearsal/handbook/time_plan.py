"""How the minutes of an interview are spent: what there is to type, and a picture of the plan.

The minutes at the keyboard are counted in code, at the speed of somebody who explains while
typing (rehearsal/grading/minutes.py). The other minutes are the plan's author's choice.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rehearsal.evidence.pictures import BLUE, GREEN, INK, ORANGE, PURPLE, on_any_theme
from rehearsal.grading.blanks import bodies

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = Literal["talk", "type", "run", "defend"]
STYLES: dict[Kind, tuple[str, str, str]] = {
    "talk": (ORANGE, "///", "you talk"),
    "type": (BLUE, "", "you type and explain"),
    "run": (GREEN, "---", "you run it"),
    "defend": (PURPLE, "xxx", "you defend it"),
}


class Stage(NamedTuple):
    """One part of the interview."""

    name: str
    minutes: float
    kind: Kind
    narration: int = 0  # which of the four narration points comes right before it; 0: none


def body_sizes(module: ModuleType) -> dict[str, int]:
    """The characters to type in each function of a module, by qualified name."""
    return {body.name: body.characters for body in bodies(inspect.getsource(module))}


def typed_size(*functions: Callable[..., Any]) -> dict[str, int]:
    """The characters to type in functions that a notebook defines, by name."""
    sizes = {}
    for function in functions:
        text = "".join(linecache.getlines(function.__code__.co_filename))
        found = {body.name: body.characters for body in bodies(text)}
        sizes[function.__name__] = found[function.__qualname__]
    return sizes


def starts(plan: Sequence[Stage]) -> list[float]:
    """The minute at which each stage starts, and the one at which the plan ends."""
    times = [0.0]
    for stage in plan:
        times.append(times[-1] + stage.minutes)
    return times


def draw_plans(plans: Mapping[str, Sequence[Stage]]) -> Figure:
    """A bar for each plan, in minutes; a numbered triangle is a narration point."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    figure, rows = plt.subplots(
        len(plans), 1, figsize=(10, 2.6 * len(plans) + 0.5), dpi=100, layout="constrained"
    )
    plt.close(figure)  # a notebook shows it as its cell's value, and must not show it twice
    for axes, (name, plan) in zip(rows, plans.items(), strict=True):
        times = starts(plan)
        for number, (stage, start) in enumerate(zip(plan, times, strict=False)):
            color, hatch, _ = STYLES[stage.kind]
            look: dict[str, Any] = {"facecolor": color, "hatch": hatch, "edgecolor": "white"}
            axes.barh(0, stage.minutes, 0.5, start, linewidth=1, **look)
            middle, side = start + stage.minutes / 2, 1 if number % 2 == 0 else -1
            place, edge = side * (0.5, 1.05)[number // 2 % 2], "bottom" if side == 1 else "top"
            axes.plot([middle] * 2, [side * 0.25, place * 0.95], color=INK, lw=0.6)
            text = f"{stage.name}\n{stage.minutes:.0f} min"
            axes.text(middle, place, text, ha="center", va=edge, fontsize=9, color=INK)
            if stage.narration:
                white: dict[str, Any] = {"color": "white", "fontweight": "bold", "fontsize": 9}
                axes.text(start + 0.3, 0, f"{stage.narration}", va="center", **white)
        end = times[-1]
        axes.set(xlim=(0, 61), ylim=(-1.75, 1.75), yticks=[])
        axes.set_xticks(range(0, round(end) + 1, 5))
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_bounds(0, end)
        axes.set_title(name, loc="left", fontsize=11, fontweight="bold")
    rows[-1].set_xlabel("minute of the interview; a number in a bar is a narration point")
    patches = [
        Patch(facecolor=color, hatch=hatch, edgecolor="white", label=label)
        for color, hatch, label in STYLES.values()
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=4, frameon=False)
    return on_any_theme(figure)
