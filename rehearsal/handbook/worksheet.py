"""Arithmetic that shows its work: formulas as text, worked out line by line.

    formulas = {"state_gb": "16 * parameters / 1e9"}
    work_out(formulas, {"parameters": 1.5e9})        {"parameters": 1.5e9, "state_gb": 24.0}
    shown("state_gb", formulas, values)              "16 * 1.5e9 / 1e9 = 24"

A notebook shows the formulas, and what it prints is worked out from the same text.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rehearsal.evidence.pictures import INK, ORANGE, on_any_theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Values = Mapping[str, float]
Decide = Callable[[Any], Mapping[str, str]]  # given the values as attributes
FUNCTIONS = {"sqrt": math.sqrt, "max": max, "min": min}


class Answers(dict[str, float]):
    """Values by name, also as attributes, so that a decision reads like a sentence."""

    def __getattr__(self, name: str) -> float:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no answer and no formula is called {name!r}") from None


def work_out(formulas: Mapping[str, str], answers: Values) -> Answers:
    """The answers, and the value of each formula; a formula may use those above it.

    Raises:
        ValueError: if a formula uses a name that nothing defines.
    """
    values = Answers(answers)
    for name, formula in formulas.items():
        try:
            values[name] = float(eval(formula, {"__builtins__": {}}, {**FUNCTIONS, **values}))
        except NameError as error:
            raise ValueError(
                f"{name} = {formula}: {error.name!r} is neither an answer nor a formula above "
                "it, so it has no value. Add it, or move its formula up."
            ) from error
    return values


def short(value: float) -> str:
    """A number as somebody would write it on a whiteboard: three digits."""
    if math.isinf(value) or value == 0:
        return f"{value:g}"
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}".replace("e+", "e").replace("e-0", "e-").replace("e0", "e")
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:,.0f}"


def shown(name: str, formulas: Mapping[str, str], values: Values) -> str:
    """A formula with its numbers in place, and its result."""

    def number(found: re.Match[str]) -> str:
        word = found[0]
        return short(values[word]) if word in values else word

    numbers = re.sub(r"(?<![\w.])[A-Za-z_]\w*", number, formulas[name])
    return f"{numbers} = {short(values[name])}"


def print_sheet(formulas: Mapping[str, str], decide: Decide, answers: Values) -> None:
    """Print each formula with its numbers, and what follows from them."""
    values = work_out(formulas, answers)
    for name in formulas:
        print(f"{name:16} {shown(name, formulas, values)}")
    print()
    for topic, choice in decide(values).items():
        print(f"{topic:16} {choice}")


def print_change(
    formulas: Mapping[str, str], decide: Decide, answers: Values, **changes: float
) -> list[str]:
    """Print what another answer changes: the arithmetic that moves, then the decisions.

    Returns:
        The topics whose decision changes.

    Raises:
        ValueError: if a change has the name of no answer.
    """
    unknown = [name for name in changes if name not in answers]
    if unknown:
        raise ValueError(
            f"{', '.join(unknown)}: no such answer, so nothing would change. The answers are "
            f"{', '.join(answers)}."
        )
    before, after = work_out(formulas, answers), work_out(formulas, {**answers, **changes})
    for name, value in changes.items():
        print(f"{name}: {short(answers[name])} -> {short(value)}")
    for name in formulas:
        if before[name] != after[name]:
            print(f"  {name:16} {short(before[name]):>9} -> {shown(name, formulas, after)}")
    old, new = decide(before), decide(after)
    changed = [topic for topic in new if new[topic] != old[topic]]
    for topic in changed:
        print(f"so {topic:15} {old[topic]}  ->  {new[topic]}")
    if not changed:
        print("so nothing changes in the plan")
    return changed


def changed_decisions(
    formulas: Mapping[str, str],
    decide: Decide,
    answers: Values,
    questions: Mapping[str, Values],
) -> dict[str, dict[str, str]]:
    """For each question, the decisions that its other answer changes, by topic."""
    base = decide(work_out(formulas, answers))
    found = {}
    for question, changes in questions.items():
        after = decide(work_out(formulas, {**answers, **changes}))
        found[question] = {
            topic: choice for topic, choice in after.items() if choice != base[topic]
        }
    return found


def draw_changes(
    base: Mapping[str, str], changed: Mapping[str, Mapping[str, str]], title: str
) -> Figure:
    """A row for each answer, a column for each decision.

    A box holds the new decision, and a dot stands for the base case's.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    figure, axes = plt.subplots(
        figsize=(10, 1.3 + 0.66 * (len(changed) + 1)), dpi=100, layout="constrained"
    )
    plt.close(figure)  # a notebook shows it as its cell's value, and must not show it twice
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    rows: dict[str, Mapping[str, str]] = {"the base case": base, **changed}
    for y, (_, choices) in enumerate(rows.items()):
        for x, topic in enumerate(base):
            if topic not in choices:
                axes.plot(x, y, ".", color=INK, markersize=4)
                continue
            text = textwrap.fill(choices[topic], 16)
            axes.text(x, y, text, ha="center", va="center", fontsize=8.5, color=INK)
            if y:
                box: dict[str, Any] = {"fill": False, "edgecolor": ORANGE, "linewidth": 1.8}
                axes.add_patch(Rectangle((x - 0.48, y - 0.45), 0.96, 0.9, **box))
    axes.set_xticks(range(len(base)), [textwrap.fill(topic, 14) for topic in base])
    axes.set_yticks(range(len(rows)), [textwrap.fill(name, 20) for name in rows])
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=9)
    axes.set(xlim=(-0.55, len(base) - 0.45), ylim=(len(rows) - 0.45, -0.55))
    axes.spines[:].set_visible(False)
    axes.axhline(0.5, color=INK, linewidth=0.8)
    return on_any_theme(figure)
