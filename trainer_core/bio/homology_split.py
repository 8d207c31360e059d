"""Which proteins may only judge the result, and how close does training come to them?

Part of the biotech track. Whole clusters of relatives go to one side. The split is a pure
function of the sequences, their clusters, the fractions, the seed and a version. Afterwards the
report looks for the nearest training protein of each test protein: greedy clusters leave some.

    n  sequences
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# %% active="py"
from trainer_core.bio.homology import BLIND_BELOW_IDENTITY, HOMOLOGY_VERSION, WordTable
from trainer_core.bio.homology import HomologyOptions, content_key, words_of_all
from trainer_core.settings import UserError

# %%
PROTEIN_PARTS = ("train", "validation", "test")
TRAINING_PART, TEST_PART = 0, 2
Shares = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class HomologySplit:
    """Each protein's part, in the order given, and the digest of how it came about."""

    parts: NDArray[np.int8]  # (n,): 0 train, 1 validation, 2 test
    clusters: NDArray[np.int64]  # (n,)
    digest: str  # SHA-256 (hex)

    @property
    def counts(self) -> dict[str, int]:
        """Proteins in each part; whole clusters can miss the fractions asked for."""
        sizes = np.bincount(self.parts, minlength=3).tolist()
        return dict(zip(PROTEIN_PARTS, sizes, strict=True))


def homology_split(
    sequences: Sequence[str],
    clusters: NDArray[np.int64],
    fractions: Shares = (0.8, 0.1, 0.1),
    *,
    seed: int,
) -> HomologySplit:
    """Deal whole clusters to the parts, the largest first, equally large ones by a seeded hash.

    The largest first, because one that no longer fits would burst the test set; each goes to
    the part that misses most of its share.

    Raises:
        UserError: if the fractions aren't shares of 1, or a part gets nothing.
    """
    if min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6 or not fractions[TRAINING_PART]:
        raise UserError(
            f"fractions={fractions}: must be three shares for train, validation and test that "
            "add up to 1, with some for training. Pass for example (0.8, 0.1, 0.1)."
        )
    members: dict[int, list[int]] = {}
    for place, cluster in enumerate(clusters.tolist()):
        members.setdefault(cluster, []).append(place)

    def rank(places: list[int]) -> tuple[int, bytes]:
        # By content, so that the order of the file decides nothing.
        first = min((sequences[place] for place in places), key=content_key)
        return -len(places), hashlib.sha256(f"{seed}/{first}".encode()).digest()

    parts = np.empty(len(sequences), np.int8)
    missing = np.array(fractions) * len(sequences)
    for places in sorted(members.values(), key=rank):
        part = int(missing.argmax())
        parts[places] = part
        missing[part] -= len(places)
    split = HomologySplit(
        parts=parts, clusters=clusters, digest=_digest(sequences, parts, fractions, seed)
    )
    for name, share in zip(PROTEIN_PARTS, fractions, strict=True):
        if share and not split.counts[name]:
            raise UserError(
                f"{len(members)} clusters: nothing is left for {name}, because clusters stay "
                f"whole ({split.counts}). A metric over nothing is undefined. Use more "
                "proteins, a higher identity, or a fraction of 0."
            )
    return split


def _digest(
    sequences: Sequence[str], parts: NDArray[np.int8], fractions: Shares, seed: int
) -> str:
    content = sorted(zip(sequences, parts.tolist(), strict=True))
    facts = [HOMOLOGY_VERSION, list(fractions), seed, content]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


# %%
@dataclass(frozen=True, slots=True, kw_only=True)
class HomologyReport:
    """How close the training proteins come to those of the test, as far as k-mers can see."""

    rows: NDArray[np.int64]  # the test proteins
    nearest: NDArray[np.int64]  # the closest training protein of each; -1 if none is close
    identity: NDArray[np.float64]  # estimated; see nearest_identity
    above: int  # test proteins with a training protein at the identity asked for, or closer
    asked: float

    def __str__(self) -> str:
        if not len(self.rows):
            return "no test proteins"
        median, largest = np.median(self.identity), self.identity.max()
        blind = int((self.identity < BLIND_BELOW_IDENTITY).sum())
        return (
            f"{self.above} of {len(self.rows)} test proteins have a training protein at "
            f"{self.asked:.0%} identity or more (largest {largest:.0%}, median {median:.0%}). "
            f"For {blind}, the estimate is below {BLIND_BELOW_IDENTITY:.0%}: strangers, or "
            "relatives that only an alignment would find."
        )


def nearest_identity(
    sequences: Sequence[str],
    parts: NDArray[np.int8],
    options: HomologyOptions | None = None,
    *,
    part: int = TEST_PART,
) -> HomologyReport:
    """For each protein of a part, the training protein that is closest by its k-mers.

    The estimate is right for substitutions that fall evenly. A protein conserved in patches
    keeps more of its words, so the estimate is too high; insertions and deletions make it too
    low.
    """
    options = options or HomologyOptions()
    training = np.flatnonzero(parts == TRAINING_PART)
    table = WordTable(options.k)
    proteins = words_of_all(sequences, options.k)
    for row in training.tolist():
        table.add(proteins[row])
    rows = np.flatnonzero(parts == part)
    matches = [table.closest(proteins[row]) for row in rows.tolist()]
    identity = np.array([match.identity for match in matches])
    return HomologyReport(
        rows=rows,
        nearest=np.array([training[number] if number >= 0 else -1 for number, _ in matches]),
        identity=identity,
        above=int((identity >= options.identity).sum()),
        asked=options.identity,
    )
