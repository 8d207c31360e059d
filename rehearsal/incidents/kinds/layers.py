"""Constructors for kinds whose fault is in the newest deployment, or on one host."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from rehearsal.incidents.kinds.kind import Fix, Kind, See, before_live, other_rank, spare_of
from rehearsal.incidents.world import Edit, Host, Plan


def code_fault(**facts: Any) -> Kind:
    """A kind whose fault is in the newest deployment, so that rolling it back is the fix."""
    usual = {
        "layer": "code",
        "reference": lambda plan: Fix(before_live(plan), "roll back to the deployment before"),
        "first_moves": ("roll", "revert", "stop", "version"),
    }
    return Kind(**{**usual, **facts})


def deploy(*edits: Edit, message: str) -> partial[Plan]:
    """An injection: these edits are part of the live deployment."""
    return partial(with_edits, edits=edits, message=message)


def with_edits(plan: Plan, rng: random.Random, edits: tuple[Edit, ...], message: str) -> Plan:
    """The plan with edits in its live deployment."""
    return plan.with_edits(-1, *edits, message=message)


def in_module(module: str, asks: str, shows: str) -> See:
    """The look at the code that has the fault; the deployment's diff shows it too."""
    return See("code", asks, shows, "cause", ("deploys",), {"module": module})


def host_fault(part: str, why: str, **facts: Any) -> Kind:
    """A kind whose fault is on one host, so that a spare is the fix.

    Args:
        part: the field of ``Host`` that is unusual there.
        why: somebody would take it out.
    """
    usual = {
        "layer": "world",
        "reference": lambda plan: Fix(spare_of(plan, rank_with(plan, part)), why),
        "first_moves": ("host", "drain", "replace", "cordon", "spare"),
    }
    return Kind(**{**usual, **facts})


def rank_with(plan: Plan, part: str) -> int:
    """The rank whose host is unusual in a field."""
    usual = getattr(Host(), part)
    return next(r for r in range(plan.world_size) if getattr(plan.host_of(r), part) != usual)


def another_host_out(plan: Plan, part: str, why: str) -> Fix:
    """A wrong fix: a spare for a host other than the one that is unusual in a field."""
    return Fix(spare_of(plan, other_rank(plan, rank_with(plan, part))), why)
