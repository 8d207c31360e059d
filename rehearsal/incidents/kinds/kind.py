"""What a kind of incident is. To add one, write a ``Kind`` in a module of this package.

setup       what the job needs so that the fault can strike; part of the healthy run too
inject      the fault itself, in one layer
claims      what differs from the healthy run of the same seed, as figures
reference   the fix; wrong: two that look right and aren't
path        an expert's looks, in order, each with what it shows and which link it proves
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.world import Layer, Plan

Change = Callable[[Plan, random.Random], Plan]
Link = Literal["symptom", "mechanism", "cause"]


class Claim(NamedTuple):
    """A figure that is above ``low`` with the fault and below ``high`` without."""

    text: str
    measure: Callable[[Evidence], float]
    high: float  # a healthy run stays below
    low: float  # a faulty run exceeds


class See(NamedTuple):
    """One look of an expert's.

    Args:
        source: what to look at; ``scope`` narrows it.
        asks: the question that this look answers; the guided tier puts it.
        shows: what there is to see.
        link: which link of the chain it proves.
        also: other sources that prove the same.
    """

    source: str
    asks: str
    shows: str
    link: Link
    also: tuple[str, ...] = ()
    scope: Mapping[str, Any] = {}


class Fix(NamedTuple):
    """Settings to change, and why somebody would."""

    settings: Mapping[str, Any]
    why: str


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of incident; the module's docstring explains the fields.

    Args:
        id: what the person on call names.
        alert: what the pager says; of the faulty run.
        layer: where the fault is.
        accepts: layers in which a fix counts as right; by default the fault's own.
        alarm: the symptom, an id of ``alarms.py``.
        related: alarms that may come and go with the symptom.
        like: causes that are close, for the choice tier and the score.
        clashes: distractors that can't be combined with this kind.
        first_moves: words, one of which a sensible first move has.
    """

    id: str
    title: str
    layer: Layer
    alarm: str
    alert: Callable[[Evidence], str]
    inject: Change
    claims: tuple[Claim, ...]
    reference: Callable[[Plan], Fix]
    wrong: Callable[[Plan], tuple[Fix, Fix]]
    path: tuple[See, ...]
    chain: tuple[str, str, str]  # cause, mechanism, symptom
    prevention: str
    first_moves: tuple[str, ...]
    setup: Change = lambda plan, rng: plan
    accepts: tuple[Layer, ...] = ()
    related: tuple[str, ...] = ()
    like: tuple[str, ...] = ()
    clashes: tuple[str, ...] = ()

    @property
    def right_layers(self) -> tuple[Layer, ...]:
        """Layers in which a fix counts as right."""
        return self.accepts or (self.layer,)


def spare_of(plan: Plan, rank: int) -> dict[str, Any]:
    """Settings that put a rank on a spare host."""
    hosts = plan.placement
    hosts[rank] = next(name for name in plan.world.hosts if name not in plan.placement)
    return {"hosts": hosts}


def other_rank(plan: Plan, rank: int) -> int:
    """A rank that isn't ``rank``."""
    return (rank + 1) % plan.world_size


def before_live(plan: Plan) -> dict[str, Any]:
    """Settings that roll the code back by one deployment."""
    return {"code_version": plan.versions[-2].id}
