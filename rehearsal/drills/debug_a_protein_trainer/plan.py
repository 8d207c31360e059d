"""What a check plans, builds and trains, drawn from its seed.

Lengths are those of a protein database in small: most are short, and a few are several times as
long. Proteins are random, so a window of one says which protein it is and where it begins.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

PAD, MASK, VOCABULARY_SIZE = 1, 32, 33
RESIDUES = range(4, 24)  # the 20 amino acids' ids, as in ESM's vocabulary
SHORTEST = 6
STEPS = 3
MIB = 2**20


class Shape(NamedTuple):
    """A model, and the structure trunk that may come behind it. What the learner gets, too."""

    d_model: int
    num_heads: int
    num_layers: int
    max_length: int
    pair_width: int
    num_pair_blocks: int
    is_fused: bool  # whether attention runs in a kernel that never stores its logits


class Probe(NamedTuple):
    """One call of ``planned_mib``."""

    length: int
    shape: Shape


class Training(NamedTuple):
    """One call of ``train`` on all ranks."""

    name: str
    seed: int
    mixed: bool


class Plan(NamedTuple):
    """The constants of one check."""

    seed: int
    world_size: int
    probes: Sequence[Probe]
    shape: Shape
    proteins: Sequence[Sequence[int]]
    trainings: Sequence[Training]
    short_proteins: Sequence[Sequence[int]]  # all within the budget
    long_protein: Sequence[int]  # over it
    too_large: Sequence[int]  # which of them it replaces, in one call of train after another

    @property
    def batch_size(self) -> int:
        """Two proteins for each rank."""
        return 2 * self.world_size

    def dealt(self, rank: int) -> list[list[int]]:
        """For each step, the proteins that a rank trains."""
        firsts = range(0, len(self.proteins), self.batch_size)
        return [
            [*range(first + rank, first + self.batch_size, self.world_size)] for first in firsts
        ]


def num_hidden(length: int) -> int:
    """How many residues of a crop are hidden."""
    return max(1, round(0.15 * length))


def plan_of(seed: int) -> Plan:
    """The same in the caller's process and in each rank."""
    draw = random.Random(f"debug_a_protein_trainer {seed}")
    world_size = draw.choice((2, 3))
    shape = Shape(8, 2, 2, draw.randint(23, 25), 4, 0, True)
    first = draw.randrange(1, 1000)
    lengths = next(
        found
        for found in lengths_of(draw, world_size, shape.max_length)
        if is_telling(found, world_size, shape.max_length)
    )
    short = [draw.randint(SHORTEST, shape.max_length - 1) for _ in lengths]
    # In the second step, and not on rank 0, where everybody looks first.
    second_step = 2 * world_size + draw.randrange(1, world_size)
    return Plan(
        seed=seed,
        world_size=world_size,
        probes=[*probes(draw)],
        shape=shape,
        proteins=[protein(draw, length) for length in lengths],
        trainings=(
            Training("float32", first, False),
            Training("with another seed", first + draw.randint(1, 9), False),
            Training("mixed", first, True),
        ),
        short_proteins=[protein(draw, length) for length in short],
        long_protein=protein(draw, shape.max_length + draw.randint(5, 40)),
        too_large=(second_step, 0, len(lengths) - 1),
    )


def protein(draw: random.Random, length: int) -> list[int]:
    """Random residues."""
    return [draw.choice(RESIDUES) for _ in range(length)]


def lengths_of(draw: random.Random, world_size: int, longest: int) -> Iterator[list[int]]:
    """Right-skewed: most fit into a crop, some are a bit longer, a few are far out.

    As many are too long, and as many come after the widest gap, as whole steps need: whoever
    leaves them out has a training that runs, on fewer proteins.
    """
    count = 2 * world_size * STEPS
    # Not 10: 15% of it is 1.5, which can be rounded either way.
    usual = [length for length in range(SHORTEST, longest + 1) if length != 10]
    while True:
        # 15% of a single residue is none, but for the rule that at least one is hidden.
        body = [1, longest, *(draw.choice(usual) for _ in range(count - 2 * world_size - 2))]
        over = [longest + draw.randint(1, 9) for _ in range(world_size)]
        tail = [draw.randint(3 * longest, 4 * longest) for _ in range(world_size)]
        found = body + over + tail
        draw.shuffle(found)
        yield found


def is_telling(lengths: Sequence[int], world_size: int, longest: int) -> bool:
    """Whether each step's ranks hide different numbers of residues."""
    for first in range(0, len(lengths), 2 * world_size):
        step = [num_hidden(min(length, longest)) for length in lengths[first:]][
            : 2 * world_size
        ]
        by_rank = [sum(step[rank::world_size]) for rank in range(world_size)]
        if max(by_rank) - min(by_rank) < 2:
            return False
    return True


def probes(draw: random.Random) -> Iterator[Probe]:
    """An encoder alone, fused and not, then with one block of a trunk, and with several."""
    for num_pair_blocks in (0, 0, 1, draw.randint(3, 9)):
        for is_fused in (True, False):
            num_heads = draw.choice((4, 6, 10, 20))
            shape = Shape(
                d_model=num_heads * draw.choice((24, 40, 64)),
                num_heads=num_heads,
                num_layers=draw.randint(5, 33),
                max_length=1024,
                pair_width=draw.choice((80, 112, 128)),
                num_pair_blocks=num_pair_blocks,
                is_fused=is_fused,
            )
            yield Probe(draw.randint(100, 1024), shape)


def right_mib(probe: Probe) -> float:
    """What ``planned_mib`` should return."""
    length, shape = probe
    stream = shape.num_layers * length * shape.d_model
    logits = 0 if shape.is_fused else shape.num_heads * length**2
    pairs = shape.num_pair_blocks * length**2 * shape.pair_width
    return 4 * (stream + logits + pairs) / MIB
