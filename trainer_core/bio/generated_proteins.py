"""How are protein lengths spread, and what does a dataset with that spread look like?

Part of the biotech track. Lengths in a database such as UniRef50 are right-skewed with a heavy
tail, from 11 residues to 35,000 (titin). This is a model of that shape, with sequences that
have nature's residue frequencies and nothing else of nature's; their ids say "generated".
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# %%
SHORTEST, LONGEST = 11, 35_000
# The body is log-normal, and one sequence in a hundred is from a Pareto tail.
MEDIAN, LOG_SPREAD = 240, 0.8
TAIL_FRACTION, TAIL_START, TAIL_EXPONENT = 0.01, 2000, 1.6

# Of all residues in Swiss-Prot, in percent (UniProt's published statistics, rounded).
RESIDUE_PERCENT = {
    **{"A": 8.25, "R": 5.53, "N": 4.06, "D": 5.46, "C": 1.38, "Q": 3.93, "E": 6.72, "G": 7.07},
    **{"H": 2.27, "I": 5.91, "L": 9.65, "K": 5.80, "M": 2.41, "F": 3.86, "P": 4.74, "S": 6.65},
    **{"T": 5.36, "W": 1.10, "Y": 2.92, "V": 6.86},
}


def generated_lengths(num_sequences: int, *, seed: int) -> NDArray[np.int64]:
    """Lengths in residues, (num_sequences,): median near 240, one in a hundred over 2,000."""
    random = np.random.default_rng((seed, num_sequences))
    body = MEDIAN * np.exp(LOG_SPREAD * random.standard_normal(num_sequences))
    # A Pareto tail cut off at LONGEST, by its inverse distribution: no pile-up at the limit.
    below = 1 - (TAIL_START / LONGEST) ** TAIL_EXPONENT
    tail = TAIL_START * (1 - below * random.random(num_sequences)) ** (-1 / TAIL_EXPONENT)
    is_tail = random.random(num_sequences) < TAIL_FRACTION
    return np.clip(np.where(is_tail, tail, body), SHORTEST, LONGEST).astype(np.int64)


def generated_protein(number: int, length: int, *, seed: int) -> str:
    """A random sequence: a pure function of its number, length and the seed."""
    random = np.random.default_rng((seed, number, length))
    letters = np.frombuffer("".join(RESIDUE_PERCENT).encode(), np.uint8)
    share = np.array(list(RESIDUE_PERCENT.values()))
    return random.choice(letters, length, p=share / share.sum()).tobytes().decode()


def write_generated_fasta(
    path: Path, num_sequences: int, *, seed: int, width: int = 60
) -> None:
    """Write a FASTA file of generated proteins. An existing file is never overwritten.

    Raises:
        FileExistsError: if ``path`` exists.
    """
    with path.open("x") as file:
        for number, length in enumerate(generated_lengths(num_sequences, seed=seed).tolist()):
            sequence = generated_protein(number, length, seed=seed)
            lines = [sequence[start : start + width] for start in range(0, length, width)]
            header = f">generated_{seed}_{number} length={length} form=generated"
            file.write("\n".join([header, *lines]) + "\n")
