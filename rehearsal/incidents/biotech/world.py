"""What a biotech job works on, as plain data: a lab's table of molecules, or geometries.

Everything else is ``rehearsal.incidents.world``'s: hosts, storage, deployments, settings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rehearsal.incidents.world import Plan, World


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """A lab's molecules and what it measured, all of it made up; ``library.py`` makes them.

    Args:
        num_scaffolds, per_scaffold: of the table that the job is prepared from.
        fresh_scaffolds: of the batch that is measured later, on other scaffolds, completely.
        num_assays: tasks, each a column of hits and misses.
        active_fraction: hits, of what would be measured if everything was.
        missing_fraction: of the table's cells, empty.
        num_salts: molecules that are in the table a second time, as a salt, with other
            measurements.
        sparse_assay: a column with a handful of measurements.
        zeros_in: deliveries of the table that have a 0 where nothing was measured.
    """

    num_scaffolds: int = 36
    per_scaffold: int = 12
    fresh_scaffolds: int = 18
    num_assays: int = 20
    active_fraction: float = 0.3
    missing_fraction: float = 0.5
    num_salts: int = 12
    sparse_assay: int | None = None
    zeros_in: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometries:
    """Made-up molecules in space, in the order in which they were measured.

    Args:
        num_geometries: of the data set.
        num_fresh: measured after it.
        newest_scale: how much larger than usual the newest tenth and the fresh ones are.
    """

    num_geometries: int = 240
    num_fresh: int = 40
    newest_scale: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class BioWorld(World):
    """The world of a biotech job.

    Args:
        deliveries: of the lab's table, oldest first; ``settings["delivery"]`` is in use.
    """

    library: Library = Library()
    geometries: Geometries = Geometries()
    deliveries: tuple[str, ...] = ()


def world_of(plan: Plan) -> BioWorld:
    """The plan's world, as what it is."""
    assert isinstance(plan.world, BioWorld)
    return plan.world


def with_library(plan: Plan, **changes: Any) -> Plan:
    """The plan with another table of molecules."""
    return plan.with_world(library=replace(world_of(plan).library, **changes))


def with_geometries(plan: Plan, **changes: Any) -> Plan:
    """The plan with other geometries."""
    return plan.with_world(geometries=replace(world_of(plan).geometries, **changes))


def data_of(plan: Plan) -> str:
    """What the job trains on: molecules, proteins or graphs."""
    return str(plan.fixed["data"])
