"""What the ranks have read, drawn from the check's seed: molecules, and rows that repeat them.

All texts are valid SMILES. Without RDKit nobody could derive the scaffolds, so rows have them.

W  world size    n  different molecules
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Row = Mapping[str, Any]
Shards = Sequence[Sequence[Row]]  # by rank
Labels = Sequence[tuple[int | None, int]]
# The calls of a job, in order. The first four have the same molecules.
TABLE, AGAIN, OTHER_ORDER = "the table", "the table again", "its rows in another order"
OTHER_ROWS = "other measurements of its molecules"
ACYCLIC = "two large scaffolds and molecules without a ring"
TOLERANCE = 0.03  # of the molecules: at least one, in the smallest table

# The canonical SMILES of what you get by putting a substituent in front of a scaffold.
SCAFFOLDS = (
    "c1ccccc1 c1ccncc1 c1ccsc1 c1ccoc1 c1cc[nH]c1 C1CCNCC1 C1COCCN1 C1CNCCN1 C1CCCCC1 C1CC1 "
    "c1ccc2ccccc2c1 c1ccc2[nH]ccc2c1 c1ccc2ncccc2c1 c1ccc(-c2ccccc2)cc1 c1ccc(Oc2ccccc2)cc1 "
    "c1cncnc1 c1cnoc1 c1ccc2c(c1)OCO2 c1ccc2sccc2c1 C1CCOC1"
).split()
SUBSTITUENTS = (
    " C CC CCC CO CCO CN CCN F Cl Br CC(C) N#C O=C(O) NC(=O) CS CC(=O) O N FC(F)(F) CNC COC "
    "CCCCC CC(=O)N CCOC"
).split(" ")
TAILS = "O N S F Cl Br C#N C(=O)O C(N)=O C=O".split()
# The same molecule as vendors send it: plain, and with what standardization removes.
FORMS = ("{}", "{}.Cl", "O.{}", "{}.[Na+].[Cl-]")

# How a molecule's rows are labeled, and on which rank after its first one each is.
ONCE: Sequence[Labels] = [((1, 0),), ((0, 0),), ((0, 0),), ((None, 0),)]
AGREE: Sequence[Labels] = [
    ((1, 0), (1, 1)),
    ((0, 0), (0, 1)),
    ((0, 0), (None, 1)),
    ((None, 0), (1, 1)),
]
THRICE: Sequence[Labels] = [
    ((1, 0), (1, 1), (1, 2)),
    ((0, 0), (None, 1), (0, 0)),
    ((0, 0), (0, 1), (None, 2)),
]
AWKWARD: Sequence[Labels] = (
    ((1, 0), (0, 1)),  # two labs disagree, each on a rank of its own,
    ((0, 0), (1, 0)),  # or both on one
    ((1, 0), (1, 1), (0, 2)),  # a majority is no measurement
    ((0, 0), (1, 1), (0, 0)),
    ((0, 0), (None, 1), (1, 2)),
    ((None, 0), (1, 1)),  # nobody disagrees
    ((0, 0), (None, 0)),
    ((None, 0), (None, 1)),
)


class Molecule(NamedTuple):
    """What all rows of a molecule have in common."""

    molecule: str
    scaffold: str  # "" without a ring
    logp: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of ``split_rows`` on all ranks."""

    kind: str
    shards: Shards
    test_fraction: float

    @property
    def rows(self) -> list[Row]:
        """Those of all ranks."""
        return [row for shard in self.shards for row in shard]

    @property
    def molecules(self) -> dict[str, Row]:
        """A row of each molecule: they have its scaffold and logp in common."""
        return {row["molecule"]: row for row in self.rows}


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A group of ranks, and the calls that it makes."""

    world_size: int
    seed: int  # of the global generators, on rank 0
    calls: Sequence[Call]


def jobs(seed: int) -> dict[str, Job]:
    """Three ranks, and two. The same seed gives the same jobs, in any process."""
    draw = random.Random(f"split_by_scaffold {seed}")
    # A scaffold that is larger than any test part, some of each size below, and many singles.
    sizes = [draw.randint(21, 24), 8, 7, 5, 4, 3, 3, 2, 2, 2, *[1] * draw.randint(5, 7)]
    table = library(draw, sizes, num_acyclic=draw.randint(16, 18))
    # Neither scaffold fits into the test part, and the molecules without a ring don't as one.
    few = library(draw, [draw.randint(13, 15), 13], num_acyclic=draw.randint(10, 11))
    fractions = draw.choice(((0.15, 0.2), (0.2, 0.15), (0.25, 0.2)))
    return {
        name: job_of(draw, size, table, few, fractions)
        for name, size in (("three ranks", 3), ("two ranks", 2))
    }


def library(draw: random.Random, sizes: Sequence[int], num_acyclic: int) -> list[Molecule]:
    """Molecules: as many of each scaffold as ``sizes`` says, and some without a ring."""
    found = []
    for scaffold, size in zip(draw.sample(SCAFFOLDS, len(sizes)), sizes, strict=True):
        center = draw.uniform(-1, 5)
        for substituent in draw.sample(SUBSTITUENTS, size):
            logp = round(draw.gauss(center, 0.7), 2)
            found.append(Molecule(substituent + scaffold, scaffold, logp))
    chains = [f"{'C' * length}{tail}" for length in range(1, 7) for tail in TAILS]
    for chain in draw.sample(chains, num_acyclic):
        found.append(Molecule(chain, "", round(draw.gauss(0, 1), 2)))
    return found


def job_of(
    draw: random.Random,
    world_size: int,
    table: Sequence[Molecule],
    few: Sequence[Molecule],
    fractions: tuple[float, float],
) -> Job:
    """All calls on one number of ranks; the last one has a fraction of its own."""
    shards = deal(draw, table, world_size)
    dealt = {
        TABLE: shards,
        AGAIN: shards,
        OTHER_ORDER: dealt_again(draw, shards),
        OTHER_ROWS: deal(draw, table, world_size),
        ACYCLIC: deal(draw, few, world_size, AGREE),
    }
    return Job(
        world_size=world_size,
        seed=draw.randrange(1, 1000),
        calls=[
            Call(kind=kind, shards=own, test_fraction=fractions[kind == ACYCLIC])
            for kind, own in dealt.items()
        ],
    )


def deal(
    draw: random.Random,
    molecules: Sequence[Molecule],
    world_size: int,
    acyclic: Sequence[Labels] = ONCE,
) -> Shards:
    """Rows of the molecules, on ranks. The first scaffold has been measured most often.

    Args:
        acyclic: how molecules without a ring are labeled.
    """
    shards: list[list[Row]] = [[] for _ in range(world_size)]
    often = molecules[0].scaffold
    awkward = dict(zip(draw.sample(molecules, len(AWKWARD)), AWKWARD, strict=True))
    drawn_once = {one for one, labels in awkward.items() if labels in AWKWARD[:2]}
    for one in molecules:
        usual = THRICE if one.scaffold == often else ONCE if one.scaffold else acyclic
        first = draw.randrange(world_size)
        labels = awkward.get(one) or draw.choice(usual)
        forms = draw.sample(FORMS, len(labels))
        if one in drawn_once:  # the same text, and another label
            forms = forms[:1] * len(labels)
        for (label, shift), form in zip(labels, forms, strict=True):
            row = {"smiles": form.format(one.molecule), **one._asdict(), "label": label}
            shards[(first + shift) % world_size].append(row)
    for shard in shards:
        draw.shuffle(shard)
    return shards


def dealt_again(draw: random.Random, shards: Shards) -> Shards:
    """The same rows in another order, on other ranks; one of these has none."""
    rows = [row for shard in shards for row in shard]
    draw.shuffle(rows)
    empty = draw.randrange(len(shards))
    busy = [rank for rank in range(len(shards)) if rank != empty]
    own = {rank: rows[at :: len(busy)] for at, rank in enumerate(busy)}
    return [own.get(rank, []) for rank in range(len(shards))]
