"""A made-up library in which the activity of every molecule is planted, measured or not.

Chapter 33. A molecule is a choice of five blocks, and its number says which. What a generator
makes by exchanging blocks has a number as well, so its true activity is known. Only
``fingerprints`` needs RDKit.

    n  molecules      F  bits of a fingerprint
    activity          percent of the positive control, as an assay reports it
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer_core.bio.assays import LEFT_RINGS, LINKERS, RIGHT_RINGS, SUBSTITUENTS, plant_assay
from trainer_core.bio.featurize import MorganSettings
from trainer_core.bio.packages import load

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]
Bits = NDArray[np.float32]
PARTS = (LEFT_RINGS, LINKERS, RIGHT_RINGS, SUBSTITUENTS, SUBSTITUENTS)
CHOICES = tuple(len(part) for part in PARTS)
NUM_MOLECULES = int(np.prod(CHOICES))
MEMBERS = CHOICES[3] * CHOICES[4]  # of one scaffold; their numbers follow each other
NUM_BITS = 256  # few building blocks: more bits cost time and add nothing
MEAN, SPREAD = 20.0, 15.0  # percent: of all molecules that the blocks make


class Blocks(NamedTuple):
    """Which blocks the molecules are made of; arrays of one length."""

    left: Ids
    linker: Ids
    right: Ids
    first: Ids
    second: Ids


def blocks_of(molecules: Ids) -> Blocks:
    """The blocks of molecules, by their numbers."""
    return Blocks(*np.unravel_index(molecules, CHOICES))


def molecules_of(blocks: Blocks) -> Ids:
    """The numbers of the molecules with these blocks."""
    return np.asarray(np.ravel_multi_index(blocks, CHOICES))


def scaffolds_of(molecules: Ids) -> Ids:
    """The scaffold of each molecule, as a number: its rings and what links them."""
    return np.asarray(molecules) // MEMBERS


def smiles_of(molecule: int) -> str:
    """How a molecule is written."""
    left, linker, right, first, second = (int(part) for part in blocks_of(np.array(molecule)))
    tail = LINKERS[linker] + RIGHT_RINGS[right]
    return LEFT_RINGS[left].format(SUBSTITUENTS[first], SUBSTITUENTS[second], tail)


@functools.cache
def planted_activity(seed: int = 0) -> Floats:
    """The true activity of every molecule, in percent: (NUM_MOLECULES,).

    Half of the variance belongs to the scaffold and can't be known for a new one, 40 % to the
    substituents and carries over, and 10 % to the molecule alone.
    """
    every = np.arange(NUM_MOLECULES)
    assay = plant_assay(
        scaffolds_of(every).astype(str).tolist(),
        scaffold_share=0.5,
        substituents=(every % MEMBERS).astype(str).tolist(),
        substituent_share=0.4,
        seed=seed,
    )
    activity = MEAN + SPREAD * assay.labels.astype(np.float64)
    activity.flags.writeable = False  # the cached copy is everybody's
    return activity


def draw_pool(num_scaffolds: int, per_scaffold: int, *, seed: int) -> Ids:
    """Numbers of a pool: some members of some scaffolds, ascending."""
    random = np.random.default_rng(seed)
    scaffolds = random.permutation(NUM_MOLECULES // MEMBERS)[:num_scaffolds]
    members = [random.permutation(MEMBERS)[:per_scaffold] for _ in scaffolds]
    return np.sort((scaffolds[:, None] * MEMBERS + np.array(members)).ravel())


def fingerprints(molecules: Ids, num_bits: int = NUM_BITS) -> Bits:
    """Morgan fingerprints, radius 2: (n, F) float32, 0 or 1.

    Raises:
        UserError: if RDKit isn't installed.
    """
    rows = [_fingerprint(int(molecule), num_bits) for molecule in molecules]
    return np.array(rows, np.float32).reshape(len(rows), num_bits)


@functools.cache  # a generator makes many a molecule twice
def _fingerprint(molecule: int, num_bits: int) -> NDArray[np.uint8]:
    parsed = load("rdkit.Chem", "computing fingerprints").MolFromSmiles(smiles_of(molecule))
    return np.asarray(_generator(num_bits).GetFingerprintAsNumPy(parsed), np.uint8)


@functools.cache
def _generator(num_bits: int) -> Any:
    return MorganSettings(fp_size=num_bits).generator()


def tanimoto(bits: Bits, others: Bits) -> Bits:
    """The similarity of each row of ``bits`` to each row of ``others``: 1 for equal ones."""
    both = bits @ others.T
    return np.asarray(both / (bits.sum(axis=1)[:, None] + others.sum(axis=1) - both))
