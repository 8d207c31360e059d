"""Molecules that the chemistry tests share: SMILES and formulas as PubChem gives them."""

from __future__ import annotations

from trainer_core.bio.molecules import MoleculeOptions, MoleculeRows, MoleculeTable
from trainer_core.bio.molecules import build_molecule_table

# name: SMILES, formula
DRUGS = {
    "aspirin": ("CC(=O)Oc1ccccc1C(=O)O", "C9H8O4"),
    "caffeine": ("CN1C=NC2=C1C(=O)N(C(=O)N2C)C", "C8H10N4O2"),
    "dexibuprofen": ("CC(C)Cc1ccc(cc1)[C@H](C)C(=O)O", "C13H18O2"),
    "naproxen": ("C[C@@H](c1ccc2cc(ccc2c1)OC)C(=O)O", "C14H14O3"),
    "nicotine": ("CN1CCC[C@H]1c1cccnc1", "C10H14N2"),
    "paracetamol": ("CC(=O)NC1=CC=C(C=C1)O", "C8H9NO2"),
    "diazepam": ("CN1C(=O)CN=C(c2ccccc2)c2cc(Cl)ccc21", "C16H13ClN2O"),
    "isoniazid": ("C1=CN=CC=C1C(=O)NN", "C6H7N3O"),
    "metformin": ("CN(C)C(=N)NC(=N)N", "C4H11N5"),
    "alanine": ("C[C@@H](C(=O)O)N", "C3H7NO2"),
    "stearic acid": ("CCCCCCCCCCCCCCCCCC(=O)O", "C18H36O2"),
    "palmitic acid": ("CCCCCCCCCCCCCCCC(=O)O", "C16H32O2"),
    "valproic acid": ("CCCC(CCC)C(=O)O", "C8H16O2"),
    "cyclohexane": ("C1CCCCC1", "C6H12"),
    "cyclohexanone": ("O=C1CCCCC1", "C6H10O"),
}


def smiles_of(*names: str) -> list[str]:
    return [DRUGS[name][0] for name in names or DRUGS]


def table_of(*smiles: str, merge: bool = True, **columns: object) -> MoleculeTable:
    """A table of these SMILES, with any columns of MoleculeRows."""
    rows = MoleculeRows(smiles=list(smiles), **columns)  # type: ignore[arg-type]
    return build_molecule_table(rows, MoleculeOptions(merge=merge))
