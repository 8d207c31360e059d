"""Made-up proteins, from the plan's seed: most of them short, one in some jobs very long."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rehearsal.incidents.biotech.world import world_of
from rehearsal.incidents.world import Plan
from trainer_core.bio.generated_proteins import generated_lengths, generated_protein

SHORTEST = 11
FASTA = "proteins.fasta"  # below the job's data


def lengths_of(plan: Plan) -> NDArray[np.int64]:
    """Residues of each protein. The long one, if there is one, is somewhere in the middle."""
    world = world_of(plan).proteins
    # The shape of a database's lengths, on a smaller scale: a case has to be ready in seconds.
    lengths = generated_lengths(world.num_proteins, seed=plan.seed) // world.shrink
    lengths = np.clip(lengths, SHORTEST, world.longest)
    if world.long_one is not None:
        lengths[name_of_long(plan)] = world.long_one
    return lengths


def name_of_long(plan: Plan) -> int:
    """The number of the long protein."""
    count = world_of(plan).proteins.num_proteins
    return int(np.random.default_rng((plan.seed, count)).integers(count))


def write_fasta(plan: Plan, folder: Path) -> None:
    """What ``--data proteins:PATH`` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FASTA).open("w", encoding="utf-8") as file:
        for number, length in enumerate(lengths_of(plan).tolist()):
            residues = generated_protein(number, length, seed=plan.seed)
            file.write(f">made_up_{number} length={length}\n{residues}\n")
