"""Which proteins are relatives, so that none of them judges what was trained on another?

Part of the biotech track. Proteins are clustered greedily, the longest first, as CD-HIT does:
each joins the closest representative if it is close enough, or becomes one itself. Closeness is
an estimate from shared words of k residues (k-mers), which takes no alignment.

What k-mers can't see: a word survives only if all of its residues do. Of the 296 words in a
protein of 300 residues, a relative at 70 % identity still has about 50, at 50 % nine, at 40 %
three, and at 30 % less than one. Strangers share some too, and the more the more there are of
them. Found among 10,000 strangers, of 100 relatives each, with the default options:

    identity          70 %   60 %   50 %   40 %
    300 residues       100     99     40      0
    100 residues        98     57      7      0

So at 50 %, and for short proteins sooner, relatives begin to look like strangers. Alignment
sees them down to about 30 %, and profiles further. For a split that has to see them, cluster
with MMseqs2 and pass its table to ``read_clusters``.

    n  sequences    p  identity    k  residues in a word    w  distinct words of a sequence
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# %% active="py"
from trainer_core.bio.text_lines import numbered_lines
from trainer_core.settings import UserError

# %%
# Part of every split's digest: raise it with any change in who lands where.
HOMOLOGY_VERSION = "1"
BLIND_BELOW_IDENTITY = 0.4
# A match counts if a search of strangers would find fewer than this many like it (an E-value).
CHANCE_MATCHES = 1e-3
# How often two residues drawn from Swiss-Prot are equal: the sum of their squared frequencies.
SAME_BY_CHANCE = 0.0596
UNKNOWN_RESIDUE = ord("X") - ord("A")
Words = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HomologyOptions:
    """When two proteins are relatives.

    Args:
        identity: relatives share this fraction of residues or more. It is estimated, so about
            half of the pairs at exactly this identity are found.
        k: shorter words see further, until chance drowns them: at k = 3, a protein of 35,000
            residues has nearly all words there are.
    """

    identity: float = 0.5
    k: int = 5

    def __post_init__(self) -> None:
        if not 3 <= self.k <= 12:
            raise UserError(
                f"k={self.k}: must be 3 to 12. Shorter words are shared by chance, and longer "
                "ones don't fit an integer. Use 5."
            )
        if not BLIND_BELOW_IDENTITY <= self.identity <= 1:
            raise UserError(
                f"identity={self.identity}: must be {BLIND_BELOW_IDENTITY} to 1. Below that, "
                "relatives share no more k-mers than strangers do, and the split would leak "
                "unseen. Cluster with MMseqs2, and pass its table to read_clusters."
            )


def words_of(sequence: str, k: int) -> Words:
    """The distinct words of k residues, as integers, without those that have an X.

    A sequence too short for any counts as a single word, which only its equals have.
    """
    letters = np.frombuffer(sequence.encode(), np.uint8).astype(np.int64) - ord("A")
    if len(letters) >= k:
        windows = np.lib.stride_tricks.sliding_window_view(letters, k)
        known = windows[~(windows == UNKNOWN_RESIDUE).any(axis=1)]
        if len(known):
            return np.unique(known @ (26 ** np.arange(k)))
    digest = hashlib.blake2b(sequence.encode(), digest_size=7).digest()
    return np.array([-1 - int.from_bytes(digest, "little")])  # negative: no word has it


class ProteinWords(NamedTuple):
    """What of a sequence takes part in a search."""

    size: int  # its distinct words
    shared: Words  # those that another sequence has too


def words_of_all(sequences: Sequence[str], k: int) -> list[ProteinWords]:
    """Each sequence's words. Most words are nobody else's, and looking them up is in vain.

    Takes some 40 bytes of memory a residue.
    """
    words = [words_of(sequence, k) for sequence in sequences]
    _, kinds, counts = np.unique(np.concatenate(words), return_inverse=True, return_counts=True)
    is_shared = np.split(counts[kinds] > 1, np.cumsum([len(each) for each in words])[:-1])
    return [
        ProteinWords(len(each), each[kept]) for each, kept in zip(words, is_shared, strict=True)
    ]


def log_chance(shared: NDArray[np.int64], expected: Floats) -> Floats:
    """The logarithm of a bound of P(strangers share as many words), where ``expected`` is less.

    Shared words come in stretches: where one is shared, the next needs a single residue more.
    So they are a Poisson number of stretches of geometric length, with generating function

        exp(m (G(z) - 1)),   G(z) = (1 - a) z / (1 - a z),   m = expected * (1 - a)

    and Chernoff's bound is its smallest value over z, divided by z**shared. Its derivative is
    zero where m (1 - a) z = shared * (1 - a z)**2.
    """
    a = SAME_BY_CHANCE
    m = expected * (1 - a)
    half = shared * a + m * (1 - a) / 2
    z = (half - np.sqrt(half**2 - (shared * a) ** 2)) / (shared * a**2)
    bound: Floats = m * ((1 - a) * z / (1 - a * z) - 1) - shared * np.log(z)
    return bound


class Match(NamedTuple):
    """The closest sequence in a table, by its number; -1 if none is close."""

    number: int
    identity: float  # estimated


class WordTable:
    """Sequences by the words they have: which of them is closest to another?

    If substitutions fall evenly, a word survives with probability p**k. A stranger's word is
    found in a protein of w words with probability c = 1 - exp(-w * chance). So of the shorter
    one's words, p**k + (1 - p**k) * c are shared, and that is solved for p. (Mash and its
    successors estimate identity like this.)
    """

    def __init__(self, k: int) -> None:
        self.k = k
        self._chance = SAME_BY_CHANCE**k
        self._holders: defaultdict[int, list[int]] = defaultdict(list)
        self._sizes = array("q")

    def add(self, protein: ProteinWords) -> int:
        """Register one more sequence, and return its number."""
        number = len(self._sizes)
        for word in protein.shared.tolist():
            self._holders[word].append(number)
        self._sizes.append(protein.size)
        return number

    def closest(self, protein: ProteinWords) -> Match:
        """The sequence with the highest estimated identity, the earliest of equals."""
        words = protein.shared.tolist()
        lists = [held for word in words if (held := self._holders.get(word))]
        found = np.fromiter(chain.from_iterable(lists), np.int64)
        numbers, shared = np.unique(found, return_counts=True)
        sizes = np.frombuffer(self._sizes, np.int64)[numbers] if len(numbers) else numbers
        smaller, larger = np.minimum(sizes, protein.size), np.maximum(sizes, protein.size)
        by_chance = -np.expm1(-larger * self._chance)
        survived = (shared / smaller - by_chance) / (1 - by_chance)
        expected = smaller * by_chance
        # In a table of that many strangers, as many tries.
        log_matches = log_chance(shared, expected) + math.log(max(len(self._sizes), 1))
        is_chance = log_matches > math.log(CHANCE_MATCHES)
        is_same = (shared == smaller) & (smaller == larger)
        survived[(is_chance | (shared <= expected)) & ~is_same] = 0
        if not survived.any():
            return Match(-1, 0.0)
        best = int(survived.argmax())
        return Match(int(numbers[best]), float(survived[best]) ** (1 / self.k))


# %%
def cluster_proteins(
    sequences: Sequence[str], options: HomologyOptions | None = None
) -> NDArray[np.int64]:
    """The cluster of each sequence, (n,): the place of its representative.

    A pure function of the sequences' content: their order plays no part. All words of the
    representatives are in memory, so this is for up to some 100,000 sequences.
    """
    options = options or HomologyOptions()
    # The longest first: a fragment joins the protein that it is a part of, not the reverse.
    order = sorted(range(len(sequences)), key=lambda place: content_key(sequences[place]))
    table = WordTable(options.k)
    representatives: list[int] = []
    clusters = np.empty(len(sequences), np.int64)
    proteins = words_of_all(sequences, options.k)
    for place in order:
        number, identity = table.closest(proteins[place])
        if identity < options.identity:
            number = table.add(proteins[place])
            representatives.append(place)
        clusters[place] = representatives[number]
    return clusters


def content_key(sequence: str) -> tuple[int, str]:
    """Sorts the longest first, and equally long ones by their residues."""
    return -len(sequence), sequence


def read_clusters(path: Path, ids: Sequence[str]) -> NDArray[np.int64]:
    """The clusters in a table of MMseqs2 (``_cluster.tsv``): representative, tab, member.

    Raises:
        UserError: for a row without two fields, a member in two clusters, or an id without one.
    """
    cluster_of: dict[str, str] = {}
    for number, line in numbered_lines(path):
        names = line.decode("utf-8", "replace").rstrip("\r\n").split("\t")
        if len(names) != 2 or cluster_of.setdefault(names[1], names[0]) != names[0]:
            raise UserError(
                f"{path}, row {number}: {names}. Each row has a representative, a tab and a "
                "member, and a member has one cluster: its relatives must stay together. Pass "
                "the _cluster.tsv of mmseqs easy-cluster."
            )
    absent = [name for name in ids if name not in cluster_of]
    if absent:
        raise UserError(
            f"{path}: no cluster for {len(absent)} of {len(ids)} ids, {absent[0]} for one. "
            "Their relatives are unknown, so they belong on neither side. Cluster the same "
            "FASTA file."
        )
    first: dict[str, int] = {}
    for place, name in enumerate(ids):
        first.setdefault(cluster_of[name], place)
    return np.array([first[cluster_of[name]] for name in ids], np.int64)
