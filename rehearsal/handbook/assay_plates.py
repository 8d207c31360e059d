"""A simulated plate reader: what happens to an activity between the compound and the table.

Chapter 33. 8 rows by 12 columns, 80 compounds and 16 controls a plate. A well's reading is

    background + window * (activity / 100 + edge * (well is on the edge) + noise)

Background, window and edge belong to the plate: a reagent lot, a lamp, a dry incubator.

    activity   percent: a negative control has 0, a positive one 100
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]
Layout = Literal["outer columns", "scattered"]
Correction = Literal["none", "own mean", "controls", "controls and edge"]

SHAPE = (8, 12)
COMPOUNDS, CONTROLS = 80, 16  # wells of a plate
BACKGROUND, WINDOW = 1000.0, 4000.0  # counts, of a plate on which nothing went wrong
MEAN, SPREAD = 20.0, 15.0  # percent: what "own mean" takes every plate to have

row, column = np.indices(SHAPE).reshape(2, -1)
ON_EDGE: Booleans = (row == 0) | (row == 7) | (column == 0) | (column == 11)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """How much goes wrong, as standard deviations; the edge's shift is a mean."""

    noise: float = 0.05  # of a well, in windows: 5 percent of activity
    background: float = 400.0  # of a plate, in counts
    window: float = 0.1  # of a plate, relative
    edge: float = 0.12  # mean shift of the edge wells, in windows
    layout: Layout = "scattered"


class Plate(NamedTuple):
    """One plate as the reader writes it: arrays over its 96 wells, row by row."""

    counts: Floats
    control: Floats  # the activity of a control, 0 or 100; NaN where a compound is
    compound: NDArray[np.int64]  # which of the compounds, or -1


def control_wells(layout: Layout, random: np.random.Generator) -> NDArray[np.int64]:
    """Where the 16 controls go: half of them negative, then the positive ones."""
    if layout == "outer columns":
        return np.flatnonzero((column == 0) | (column == 11)).reshape(8, 2).T.ravel()
    edge, inside = np.flatnonzero(ON_EDGE), np.flatnonzero(~ON_EDGE)
    chosen = [random.permutation(edge)[:8], random.permutation(inside)[:8]]
    # Every other one: each kind has four on the edge and four inside.
    return np.concatenate([np.concatenate(chosen)[0::2], np.concatenate(chosen)[1::2]])


def read_plate(activity: Floats, reader: Reader, random: np.random.Generator) -> Plate:
    """Put up to 80 compounds into wells at random and read the plate.

    Raises:
        ValueError: if the compounds don't fit.
    """
    if len(activity) > COMPOUNDS:
        raise ValueError(
            f"{len(activity)} compounds: a plate has {COMPOUNDS} wells for them next to "
            f"{CONTROLS} controls. Read several plates."
        )
    controls = control_wells(reader.layout, random)
    control = np.full(len(ON_EDGE), np.nan)
    control[controls] = np.repeat([0.0, 100.0], CONTROLS // 2)
    # At random: in the order of their scores, the best would share a corner of the plate.
    wells = random.permutation(np.flatnonzero(np.isnan(control)))[: len(activity)]
    compound = np.full(len(ON_EDGE), -1)
    compound[wells] = np.arange(len(activity))
    true = np.nan_to_num(control)
    true[wells] = activity
    background = BACKGROUND + reader.background * random.standard_normal()
    window = WINDOW * np.exp(reader.window * random.standard_normal())
    edge = reader.edge * (1 + 0.25 * random.standard_normal())
    noise = reader.noise * random.standard_normal(len(ON_EDGE))
    return Plate(background + window * (true / 100 + edge * ON_EDGE + noise), control, compound)


def corrected(plate: Plate, how: Correction) -> Floats:
    """The activity of every well, in percent, as ``how`` makes it from the counts.

    none: the same background and window for all plates. own mean: each plate's compounds are
    shifted and scaled to the same mean and spread. controls: the plate's own controls are 0
    and 100. controls and edge: the shift of the edge wells is estimated from them, too.

    Raises:
        ValueError: if the plate can't tell what ``how`` needs to know.
    """
    counts, is_control = plate.counts, ~np.isnan(plate.control)
    if how == "none":
        return np.asarray(100 * (counts - BACKGROUND) / WINDOW)
    if how == "own mean":
        own = counts[plate.compound >= 0]
        if not own.std() > 0:
            raise ValueError(
                f"own mean: {len(own)} compound(s) with one value have no spread to be scaled "
                "to. Fill the plate, or correct by its controls."
            )
        return np.asarray(MEAN + SPREAD * (counts - own.mean()) / own.std())
    terms = [np.ones(len(counts)), np.nan_to_num(plate.control) / 100]
    if how == "controls and edge":
        if ON_EDGE[is_control].all():
            raise ValueError(
                "controls and edge: every control is an edge well, so the edge's shift can't "
                "be told from the background. Use layout='scattered', or correct by controls."
            )
        terms.append(ON_EDGE.astype(np.float64))
    design = np.stack(terms, axis=1)
    fitted = np.linalg.lstsq(design[is_control], counts[is_control], rcond=None)[0]
    background, window = fitted[:2]
    shift = fitted[2] * ON_EDGE if how == "controls and edge" else 0.0
    return np.asarray(100 * (counts - background - shift) / window)


def values_of(plate: Plate, how: Correction) -> Floats:
    """The corrected activities of the compounds, in the order they were handed in."""
    filled = plate.compound >= 0
    values = np.empty(int(filled.sum()))
    values[plate.compound[filled]] = corrected(plate, how)[filled]
    return values


def z_prime(plate: Plate) -> float:
    """Z': 1 - 3 (sd of both controls) / (distance of their means); above 0.5 is good.

    Zhang, Chung and Oldenburg, J. Biomol. Screen. 4, 67 (1999).
    """
    low, high = plate.counts[plate.control == 0], plate.counts[plate.control == 100]
    return float(1 - 3 * (low.std(ddof=1) + high.std(ddof=1)) / abs(high.mean() - low.mean()))
