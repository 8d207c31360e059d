"""Graphs from an SDF file, and geometries that are made here.

N  atoms    E  edges, each direction counted
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

# %% active="py"
from trainer_core.bio.config import OnBad
from trainer_core.bio.graphs import Graph
from trainer_core.bio.packages import load
from trainer_core.settings import UserError

# %%
# One-hot, and one more column for all the others.
ELEMENTS = ("H", "C", "N", "O", "F", "P", "S", "Cl", "Br", "I")
CUTOFF = 5.0  # angstrom: atoms nearer than this are neighbors


def neighbors_within(positions: Tensor, cutoff: float) -> Tensor:
    """Pairs of different nodes nearer than ``cutoff``, both directions, (2, E)."""
    near = torch.cdist(positions, positions) < cutoff
    near.fill_diagonal_(False)
    return near.nonzero().T.contiguous()


def read_sdf(path: Path, label_column: str, *, on_bad: OnBad = "raise") -> list[Graph]:
    """The molecules of an SDF file with coordinates, labeled by one of its properties.

    An empty property is a missing label. Coordinates are taken as they are; the network needs
    them neither centered nor turned.

    Raises:
        UserError: naming the record, if it can't be read, has no coordinates, or no such
            property.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file. Use graphs:PATH with an SDF file.")
    chem = load("rdkit.Chem", "reading SDF files")
    graphs, num_skipped = [], 0
    with load("rdkit.rdBase", "reading SDF files").BlockLogs():
        for row, molecule in enumerate(chem.SDMolSupplier(str(path), removeHs=False), start=1):
            fault = fault_of(molecule, label_column)
            if not fault:
                graphs.append(graph_of(molecule, label_column))
            elif on_bad == "skip":
                num_skipped += 1
            else:
                raise UserError(
                    f"{path}, record {row}: {fault}. A graph without atoms, positions or a "
                    "label can't be trained. Fix the record, or pass on_bad='skip' to leave it "
                    "out and count it."
                )
    if num_skipped:
        print(f"{path}: {num_skipped} records skipped, {len(graphs)} kept", flush=True)
    if len(graphs) < 20:
        raise UserError(
            f"{path}: {len(graphs)} molecules, and a tenth is held back. That is too few to "
            "learn or measure anything on. Use 20 or more."
        )
    return graphs


def fault_of(molecule: Any, label_column: str) -> str:
    """Why a record can't be used; empty if it can."""
    if molecule is None:
        return "RDKit can't read it"
    if not molecule.GetNumConformers() or not molecule.GetConformer().Is3D():
        return "it has no 3D coordinates"
    if not molecule.HasProp(label_column):
        known = ", ".join(molecule.GetPropNames()) or "none"
        return f"it has no property {label_column!r} (its properties: {known})"
    label = molecule.GetProp(label_column).strip()
    try:
        is_number = not label or math.isfinite(float(label))
    except ValueError:
        is_number = False
    return "" if is_number else f"its property {label_column} is {label!r}, which is no number"


def graph_of(molecule: Any, label_column: str) -> Graph:
    """A molecule with coordinates as a graph of near atoms."""
    symbols = [atom.GetSymbol() for atom in molecule.GetAtoms()]
    places = [ELEMENTS.index(s) if s in ELEMENTS else len(ELEMENTS) for s in symbols]
    x = torch.nn.functional.one_hot(torch.tensor(places), len(ELEMENTS) + 1).float()
    pos = torch.from_numpy(np.array(molecule.GetConformer().GetPositions())).float()
    label = molecule.GetProp(label_column).strip()
    y = torch.tensor([float(label) if label else torch.nan])
    return Graph(x, neighbors_within(pos, CUTOFF), None, pos, y)


# %%
NUM_GEOMETRIES, NUM_KINDS = 400, 3
LEAST_ATOMS, MOST_ATOMS = 4, 20


def planted_geometries() -> Sequence[Graph]:
    """Made-up clouds of 4 to 20 atoms of 3 kinds, with an energy that only distances decide.

    Pairs of kinds a and b add (a + 1)(b + 1) exp(-d^2 / 4). The energy is invariant under
    rotation, translation and reflection; nothing else is claimed of it.
    """
    random = np.random.default_rng(0)
    graphs = []
    for _ in range(NUM_GEOMETRIES):
        num_atoms = int(random.integers(LEAST_ATOMS, MOST_ATOMS + 1))
        kinds = random.integers(NUM_KINDS, size=num_atoms)
        pos = torch.from_numpy(random.normal(scale=2.0, size=(num_atoms, 3))).float()
        weight = torch.from_numpy(np.outer(kinds + 1, kinds + 1)).float()
        energy = weight * torch.exp(-torch.cdist(pos, pos).square() / 4)
        y = energy.triu(diagonal=1).sum().view(1)
        x = torch.nn.functional.one_hot(torch.from_numpy(kinds), NUM_KINDS).float()
        graphs.append(Graph(x, neighbors_within(pos, CUTOFF), None, pos, y))
    return graphs
