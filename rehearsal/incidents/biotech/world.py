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
        num_plates: on which the molecules were measured, all assays of a molecule on one.
        shifted_plate: its hits were called at another cutoff; None if all had the same.
        shifted_fraction: what counts as a hit there, of what would be measured.
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
    num_plates: int = 8
    shifted_plate: int | None = None
    shifted_fraction: float = 0.3


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
class Proteins:
    """Made-up proteins; ``sequences.py`` makes them.

    Args:
        num_proteins: of the data set.
        shrink: lengths are those of a database, divided by this.
        longest: residues of the longest, but for the long one.
        long_one: residues of one protein that is much longer; None if there is none.
    """

    num_proteins: int = 340
    shrink: int = 4
    longest: int = 510
    long_one: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BioWorld(World):
    """The world of a biotech job.

    Args:
        deliveries: of the lab's table, oldest first; ``settings["delivery"]`` is in use.
        mib_per_million_pairs: what a row of proteins holds for its pairs of tokens.
    """

    library: Library = Library()
    geometries: Geometries = Geometries()
    proteins: Proteins = Proteins()
    mib_per_million_pairs: float = 0.0
    deliveries: tuple[str, ...] = ()

    @property
    def plates(self) -> range:
        """The numbers of the plates that the table's molecules were measured on."""
        return range(1, self.library.num_plates + 1)


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


def with_proteins(plan: Plan, **changes: Any) -> Plan:
    """The plan with other proteins."""
    return plan.with_world(proteins=replace(world_of(plan).proteins, **changes))


def data_of(plan: Plan) -> str:
    """What the job trains on: molecules, proteins or graphs."""
    return str(plan.fixed["data"])
