"""Which molecules are for training, and which ones may only judge the result?

Part of the biotech track. A split is a pure function of the table's content, the fractions, the
seed and a version: the order of the rows plays no part in it, and whole groups stay on one
side. Compute it once, store the manifest, and have every rank read that.

    n  molecules
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# %% active="py"
from trainer_core.bio.clusters import Acyclic, cluster_keys, scaffold_group_keys
from trainer_core.bio.molecules import MoleculeTable
from trainer_core.bio.packages import load
from trainer_core.settings import UserError

# %%
# Part of every split's digest: raise it with any change in who lands where.
SPLITS_VERSION = "1"
PART_NAMES = ("train", "validation", "test")
TRAIN, VALIDATION, TEST = range(3)
Fractions = tuple[float, float, float]
EIGHT_ONE_ONE: Fractions = (0.8, 0.1, 0.1)
Parts = NDArray[np.int8]


@dataclass(frozen=True, kw_only=True)
class Split:
    """Each molecule's part, in the table's order, and how it came about."""

    parts: Parts  # (n,): 0 train, 1 validation, 2 test
    name: str
    options: Mapping[str, Any]  # what decides it besides the table: fractions, seed, ...
    table: MoleculeTable

    @property
    def counts(self) -> dict[str, int]:
        """Molecules in each part; whole groups can miss the fractions asked for."""
        sizes = np.bincount(self.parts, minlength=3).tolist()
        return dict(zip(PART_NAMES, sizes, strict=True))

    @property
    def in_content_order(self) -> str:
        """The parts as digits, molecules sorted by content: equal for any order of the rows."""
        return "".join(map(str, self.parts[self.table.order].tolist()))

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the name, options, version, the table's content and all parts."""
        facts = [self.name, dict(self.options), SPLITS_VERSION, self.table.digest]
        text = json.dumps([*facts, self.in_content_order], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def rows_of(self, part: int) -> NDArray[np.int64]:
        """The molecules of a part, as places in the table."""
        return np.flatnonzero(self.parts == part)


def _require_fractions(fractions: Fractions) -> None:
    is_valid = len(fractions) == 3 and all(0 <= share <= 1 for share in fractions)
    if not is_valid or abs(sum(fractions) - 1) > 1e-6 or not fractions[0]:
        raise UserError(
            f"fractions={fractions}: must be three shares for train, validation and test that "
            "add up to 1, with some for training. Pass for example (0.8, 0.1, 0.1)."
        )


def fill_parts(sizes: Sequence[int], fractions: Fractions) -> list[int]:
    """The part of each group, taken in the order given: the first part that has room for it.

    A group that fits nowhere goes to the part with the most room, so one that is larger than
    the training set ends up there, and not in the test set.
    """
    total = sum(sizes)
    ends = [round(total * sum(fractions[: part + 1])) for part in range(3)]
    room = [ends[0], ends[1] - ends[0], ends[2] - ends[1]]
    chosen = []
    for size in sizes:
        part = next((part for part in range(3) if room[part] >= size), None)
        if part is None:
            part = max(range(3), key=lambda each: (room[each], -each))
        room[part] -= size
        chosen.append(part)
    return chosen


def _split_by_group(
    table: MoleculeTable, groups: Sequence[str], name: str, options: dict[str, Any]
) -> Split:
    """Assign whole groups: in the seed's order, or the largest first if there is no seed."""
    fractions, seed = options["fractions"], options["seed"]
    _require_fractions(fractions)
    sizes = Counter(groups)
    if seed is None:
        order = sorted(sizes, key=lambda group: (-sizes[group], group))
    else:
        # A hash of each group's own text: it doesn't depend on which other groups there are.
        order = sorted(sizes, key=lambda group: _seeded_hash(seed, group))
    chosen = fill_parts([sizes[group] for group in order], fractions)
    part_of = dict(zip(order, chosen, strict=True))
    return _checked_split(table, [part_of[group] for group in groups], name, options)


def _seeded_hash(seed: int, group: str) -> bytes:
    return hashlib.sha256(f"{seed}/{group}".encode()).digest()


def _checked_split(
    table: MoleculeTable, parts: Sequence[int] | Parts, name: str, options: dict[str, Any]
) -> Split:
    made = Split(parts=np.array(parts, np.int8), name=name, options=options, table=table)
    for part, share in zip(PART_NAMES, options["fractions"], strict=True):
        if share and not made.counts[part]:
            raise UserError(
                f"{name} split of {len(table)} molecules: nothing is left for {part}, because "
                f"groups stay whole ({made.counts}). A metric over no molecules is undefined. "
                "Use more molecules, another split, or a fraction of 0 for that part."
            )
    return made


# %%
def random_split(
    table: MoleculeTable, fractions: Fractions = EIGHT_ONE_ONE, *, seed: int
) -> Split:
    """Molecules at random; identical ones stay together. It flatters: scaffolds are shared."""
    options = {"fractions": fractions, "seed": seed}
    return _split_by_group(table, table.smiles, "random", options)


def scaffold_split(
    table: MoleculeTable,
    fractions: Fractions = EIGHT_ONE_ONE,
    *,
    seed: int | None = None,
    generic: bool = False,
    acyclic: Acyclic = "cluster",
) -> Split:
    """Whole scaffolds on one side: what screening new chemistry asks of a model.

    Args:
        seed: None takes the largest scaffolds for training and the rarest for the test. With a
            seed, scaffolds come in random order: several splits for error bars, and a more
            optimistic figure, because common scaffolds are tested too.
        generic: group by the scaffold without atom and bond types; it is stricter.
        acyclic: see ``scaffold_group_keys``.
    """
    options = {"fractions": fractions, "seed": seed, "acyclic": acyclic}
    if acyclic == "cluster":
        options["rdkit"] = load("rdkit", "clustering molecules").__version__
    groups = scaffold_group_keys(table, generic=generic, acyclic=acyclic)
    name = "generic scaffold" if generic else "scaffold"
    return _split_by_group(table, groups, name, options)


def cluster_split(
    table: MoleculeTable,
    fractions: Fractions = EIGHT_ONE_ONE,
    *,
    seed: int | None = None,
    cutoff: float = 0.4,
) -> Split:
    """Whole Butina clusters of similar molecules on one side.

    Args:
        seed: as in ``scaffold_split``.
        cutoff: largest Tanimoto distance to a cluster's center. Members of two clusters may
            still be closer to each other than that; the leakage report says how many are.
    """
    version = load("rdkit", "clustering molecules").__version__
    options = {"fractions": fractions, "seed": seed, "cutoff": cutoff, "rdkit": version}
    return _split_by_group(table, cluster_keys(table, cutoff), "cluster", options)


def time_split(table: MoleculeTable, fractions: Fractions = EIGHT_ONE_ONE) -> Split:
    """The oldest years for training, the newest for the test; a year is never divided.

    Raises:
        UserError: if a molecule has no year, or there are fewer years than parts.
    """
    _require_fractions(fractions)
    undated = np.flatnonzero(np.isnan(table.years))
    if undated.size:
        raise UserError(
            f"{undated.size} of {len(table)} molecules have no year, the first of them "
            f"{table.ids[undated[0]]}. They belong on neither side of a date. Leave them "
            "out, or use a scaffold split."
        )
    years, sizes = np.unique(table.years, return_counts=True)
    active = [part for part in range(3) if fractions[part]]
    if len(years) < len(active):
        raise UserError(
            f"time split: {len(years)} different years for {len(active)} parts, and a year is "
            "never divided. Use fewer parts (a fraction of 0), or a scaffold split."
        )
    older = np.cumsum(sizes) - sizes  # molecules from before each year
    part_of_year = np.zeros(len(years), np.int8)
    first = 0
    for number, part in enumerate(active[1:], start=1):
        # The year closest to the share wanted, leaving at least one year for each other part.
        closest = int(np.abs(older - len(table) * sum(fractions[:part])).argmin())
        first = min(max(closest, first + 1), len(years) - len(active) + number)
        part_of_year[first:] = part
    parts = part_of_year[np.searchsorted(years, table.years)]
    return _checked_split(table, parts, "time", {"fractions": fractions})


# %%
def save_split(made: Split, path: Path) -> None:
    """Write the manifest (JSON). An existing file is never overwritten.

    Raises:
        UserError: if ``path`` exists.
    """
    facts = {"name": made.name, "options": dict(made.options), "version": SPLITS_VERSION}
    facts |= {"table_digest": made.table.digest, "digest": made.digest, "counts": made.counts}
    facts |= {"parts": made.in_content_order}
    try:
        with path.open("x") as file:
            file.write(json.dumps(facts, indent=1) + "\n")
    except FileExistsError:
        raise UserError(
            f"{path} exists. Overwriting a split makes old results incomparable without a "
            "trace. Choose another path."
        ) from None


def load_split(path: Path, table: MoleculeTable) -> Split:
    """The split that ``save_split`` wrote, for the same table in any order of rows.

    Raises:
        UserError: if the table's content, the version or the manifest itself has changed.
    """
    facts = json.loads(path.read_text())
    for name, found in (("version", SPLITS_VERSION), ("table_digest", table.digest)):
        if facts[name] != found:
            raise UserError(
                f"{path}: made with {name} {facts[name]:.12}, but this is {found:.12}. Test "
                "molecules may have been trained on. Use the table that the split was made of, "
                "or make a new split and train from scratch."
            )
    parts = np.empty(len(table), np.int8)
    parts[table.order] = np.array(list(facts["parts"]), np.int8)
    options = {**facts["options"], "fractions": tuple(facts["options"]["fractions"])}
    made = Split(parts=parts, name=facts["name"], options=options, table=table)
    if made.digest != facts["digest"]:
        raise UserError(
            f"{path}: its digest doesn't match its content; it was edited or cut short. "
            "Restore the file, or make the split again."
        )
    return made
