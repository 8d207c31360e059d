"""The molecules that a check moves and the networks that it has tested, drawn from its seed.

An element is a number. Elements 1, 2 and 3 are a molecule's landmarks, one atom of each; the
rest are drawn around them. Element 5 is in a single molecule of a single rank.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

ELEMENTS, PLAIN, MIDDLE, RARE = 6, 0, 4, 5
Vector = tuple[float, float, float]
# Breaks of each motion that only one of the outputs shows.
VECTORS_ONLY = "Bias", "Points", "ByElement"
SCALARS_ONLY = "TiltEnergy", "FarEnergy", "FirstAtom"


@dataclass(frozen=True, kw_only=True, slots=True)
class Molecule:
    """Its atoms; every atom has an edge to every other."""

    elements: Sequence[int]
    positions: Sequence[Vector]  # in angstroms


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A network to test, and the code of a test that judges it wrongly."""

    code: str
    parts: Sequence[str]  # names of classes in networks.py; none for a network without a break
    seed: int
    num_outputs: int = 2  # K
    units: tuple[float, float] = (1.0, 1.0)  # of scalars and of vectors
    change: float = 0.0  # relative, of a part that says how much it changes


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One process group: each rank's molecules, and the networks that it tests."""

    batches: Sequence[Sequence[Molecule]]  # by rank
    cases: Sequence[Case]


def jobs(seed: int) -> dict[str, Job]:
    """On one, two and three ranks. The same seed gives the same jobs, in any process."""
    draw = random.Random(f"check_the_symmetry {seed}")
    return {
        "two ranks": on_two_ranks(draw),
        "one rank": on_one_rank(draw),
        "three ranks": on_three_ranks(draw),
    }


def case_of(draw: random.Random, code: str, *parts: str, **how: Any) -> Case:
    """A case with weights of its own."""
    return Case(code=code, parts=parts, seed=draw.randrange(10**6), **how)


def on_two_ranks(draw: random.Random) -> Job:
    """Networks without a break, and breaks of each kind that every molecule shows."""
    case = partial(case_of, draw)
    batches = [
        batch_of(draw, symmetric(draw), single(draw), general(draw, 6)),
        batch_of(draw, symmetric(draw), single(draw), general(draw, 5), general(draw, 7)),
    ]
    cases = [
        case("calls-it-broken"),
        case("calls-it-broken", "BatchNorm"),
        case("calls-it-broken", "BondsOnly"),
        case("misses-rotation", "Diagonal"),
        case("misses-translation", "DistanceFromOrigin"),
        case("misses-permutation", "Numbered"),
        *(case("misses-in-one-output", part) for part in mixed(draw, "LayerNorm", "AlongX")),
        case("misses-reflection", draw.choice(("TripleProduct", "CrossProduct"))),
    ]
    return Job(batches=batches, cases=cases)


def on_one_rank(draw: random.Random) -> Job:
    """All kinds of molecules, and breaks that one output, some motions or some units hide."""
    case = partial(case_of, draw)
    rare, other = general(draw, 4, rare=True), general(draw, 6)
    batch = batch_of(draw, symmetric(draw), single(draw), rare, other)
    tiny, huge = 10.0 ** draw.randint(-9, -7), 10.0 ** draw.randint(4, 6)
    too_small_to_square = 10.0 ** draw.randint(-24, -23)  # in float32
    off_axis = draw.choice(("PerAxisScale", "Manhattan", "Tanh"))
    breaks = ("TripleProduct", "Numbered"), ("Clip", "Bias"), ("ByElement", "Autocast")
    cases = [
        case("calls-it-broken", "RootMeanSquareNorm"),
        case("calls-it-broken", units=(-huge, tiny)),  # energies are negative
        case("calls-it-broken", units=(too_small_to_square, huge)),
        *(case("misses-in-one-output", part) for part in mixed(draw, *VECTORS_ONLY)),
        *(case("misses-reflection", p) for p in mixed(draw, "TripleProduct", "CrossProduct")),
        *(case("misses-in-one-output", part) for part in mixed(draw, *SCALARS_ONLY)),
        *(case("misses-off-axis", part) for part in mixed(draw, "Height", off_axis)),
        case("misses-far-away", draw.choice(("Clip", "Box"))),
        case("misses-precision", "TF32"),
        case("misses-between-graphs", draw.choice(("SharedCenter", "SharedNeighbors"))),
        case("misses-small-output", draw.choice(("Bias", "CrossProduct")), units=(huge, tiny)),
        case("misses-small-output", "TripleProduct", units=(too_small_to_square, huge)),
        *(case("misses-another-break", *pair) for pair in draw.sample(breaks, 2)),
        case("misses-nan", draw.choice(("FarNaN", "NaN"))),
        case("misses-some-motions", "NearestAxis"),
        case("misses-some-motions", "NodeZero"),
        case("misses-some-motions", draw.choice(("SlabY", "SlabZ"))),
        case("misses-some-motions", "Slope"),
        case("accepts-zeros", "ZeroVectors"),
        case("accepts-zeros", "ZeroScalars"),
    ]
    return Job(batches=[batch], cases=cases)


def on_three_ranks(draw: random.Random) -> Job:
    """Breaks that one rank's molecules show, breaks of a given size, and outputs of zeros."""
    case = partial(case_of, draw, num_outputs=1)
    batches = [
        batch_of(draw, general(draw, 5), single(draw)),
        batch_of(draw, general(draw, 4, rare=True)),  # a single number, changed exactly
        batch_of(draw, symmetric(draw), general(draw, 6)),
    ]
    cases = [
        case("misses-another-rank", draw.choice(("RareTripleProduct", "RareDistance"))),
        case("wrong-tolerance", "SmallChange", change=1.5e-4),
        case("wrong-tolerance", "SmallerChange", change=0.6e-4),
        case("accepts-zeros", "RareVectorsOnly"),
        case("calls-it-broken"),  # all ranks go on together after an error
    ]
    return Job(batches=batches, cases=cases)


def mixed(draw: random.Random, *parts: str) -> list[str]:
    """The parts in a random order."""
    return draw.sample(parts, len(parts))


def batch_of(draw: random.Random, *molecules: Molecule) -> list[Molecule]:
    """The molecules in a random order."""
    return draw.sample(molecules, len(molecules))


# ---------------------------------------------------------------- molecules


def single(draw: random.Random) -> Molecule:
    """An atom alone: no edge, so its vector is 0."""
    return Molecule(elements=[PLAIN], positions=[offset(draw)])


def symmetric(draw: random.Random) -> Molecule:
    """As methane: the four forces on the middle atom cancel, up to rounding."""
    length, center = draw.uniform(1.0, 1.5), offset(draw)
    corners = [(1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1)]
    quaternion = [draw.gauss(0, 1) for _ in range(4)]
    points = [(0.0, 0.0, 0.0), *(rotated(corner, quaternion) for corner in corners)]
    atoms = list(zip([MIDDLE, *[PLAIN] * 4], points, strict=True))
    draw.shuffle(atoms)
    return Molecule(
        elements=[element for element, _ in atoms],
        positions=[shifted(stretched(p, length / math.sqrt(3)), center) for _, p in atoms],
    )


def general(draw: random.Random, size: int, *, rare: bool = False) -> Molecule:
    """Atoms at random places, drawn again until its landmarks point in different directions."""
    elements = [1, 2, 3, *([RARE] if rare else []), *[PLAIN] * size][:size]
    draw.shuffle(elements)
    while True:
        points: list[Vector] = []
        while len(points) < size:
            point = tuple(draw.uniform(-2.2, 2.2) for _ in range(3))
            if all(math.dist(point, other) > 1.1 for other in points):
                points.append(point)  # type: ignore[arg-type]
        molecule = Molecule(elements=elements, positions=points)
        if is_telling(molecule):
            center = offset(draw)
            return Molecule(elements=elements, positions=[shifted(p, center) for p in points])


def is_telling(molecule: Molecule) -> bool:
    """Whether its landmarks span a volume and aren't at right angles."""
    size = len(molecule.elements)
    center = stretched(total(molecule.positions), 1 / size)
    arms = [
        shifted(molecule.positions[molecule.elements.index(element)], stretched(center, -1))
        for element in (1, 2, 3)
    ]
    lengths = [math.hypot(*arm) for arm in arms]
    if min(lengths) < 0.5 or abs(triple(*arms)) < 0.3 * math.prod(lengths):
        return False
    return abs(dot(arms[0], arms[1])) > 0.3 * lengths[0] * lengths[1]


def offset(draw: random.Random) -> Vector:
    """Where a molecule is: near the origin, but not at it."""
    direction = [draw.gauss(0, 1) for _ in range(3)]
    length = draw.uniform(9.0, 12.0) / math.hypot(*direction)
    x, y, z = (value * length for value in direction)
    return x, y, z


def rotated(point: Sequence[float], quaternion: Sequence[float]) -> Vector:
    """The point turned by a quaternion of any length."""
    w, *axis = (value / math.hypot(*quaternion) for value in quaternion)
    inner = shifted(cross(axis, point), stretched(point, w))
    return shifted(point, stretched(cross(axis, inner), 2))


def shifted(point: Sequence[float], by: Sequence[float]) -> Vector:
    """Their sum."""
    return point[0] + by[0], point[1] + by[1], point[2] + by[2]


def stretched(point: Sequence[float], factor: float) -> Vector:
    """Their product."""
    return point[0] * factor, point[1] * factor, point[2] * factor


def total(points: Sequence[Vector]) -> Vector:
    """The sum of all."""
    x, y, z = (sum(values) for values in zip(*points, strict=True))
    return x, y, z


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    """The scalar product."""
    return sum(x * y for x, y in zip(a, b, strict=True))


def cross(a: Sequence[float], b: Sequence[float]) -> Vector:
    """The vector product."""
    return (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])


def triple(a: Sequence[float], b: Sequence[float], c: Sequence[float]) -> float:
    """The signed volume that three vectors span."""
    return dot(a, cross(b, c))
