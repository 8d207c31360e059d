"""What identifies a molecule, and what groups it with others: canonical texts from RDKit.

Part of the biotech track; molecules.py applies it to tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

# %% active="py"
from trainer_core.bio.packages import load
from trainer_core.settings import UserError


# %%
class MoleculeKeys(NamedTuple):
    """What identifies a standardized molecule, and what groups it with others."""

    smiles: str  # canonical
    flat: str  # canonical without stereo and isotope labels: stereoisomers share it
    scaffold: str  # Bemis-Murcko as in RDKit: keeps atom types; "" if the molecule has no ring
    generic: str  # the scaffold with every atom a carbon and every bond single; "" likewise


# %%
def _syntax_or_chemistry(text: str) -> str:
    """Why RDKit refuses ``text``."""
    chem = load("rdkit.Chem", "reading SMILES")
    if not text.strip():
        return "it is empty"
    molecule = chem.MolFromSmiles(text, sanitize=False)
    if molecule is None:
        return "it isn't SMILES syntax"
    problems = [problem.Message() for problem in chem.DetectChemistryProblems(molecule)]
    return problems[0] if problems else "it has no atoms"


def molecule_standardizer(
    *, tautomer: bool = False, stereo: Literal["keep", "drop"] = "keep"
) -> Callable[[str], MoleculeKeys]:
    """A function from SMILES to the keys of the standardized molecule.

    It disconnects metals, normalizes groups, keeps the largest organic fragment and removes the
    charges that a proton can balance. These are the steps of RDKit's ChargeParent, which builds
    its tools anew for each molecule and takes three times as long. Scaffolds carry no stereo
    and no isotope labels: mirror images belong to one group.

    Raises:
        UserError: from the returned function, if RDKit can't read the SMILES.
    """
    chem = load("rdkit.Chem", "standardizing molecules")
    standard = load("rdkit.Chem.MolStandardize.rdMolStandardize", "standardizing molecules")
    steps = [
        standard.MetalDisconnector().Disconnect,
        standard.Normalizer().normalize,
        standard.Reionizer().reionize,
        standard.LargestFragmentChooser().choose,
        standard.Uncharger().uncharge,
        *([standard.TautomerEnumerator().Canonicalize] if tautomer else []),
    ]

    def standardize(text: str) -> MoleculeKeys:
        with load("rdkit.rdBase", "standardizing molecules").BlockLogs():
            molecule = chem.MolFromSmiles(text)
            if molecule is None or molecule.GetNumAtoms() == 0:
                raise UserError(f"{text!r} can't be read: {_syntax_or_chemistry(text)}")
            for step in steps:
                molecule = step(molecule)
            flat = chem.Mol(molecule)
            chem.RemoveStereochemistry(flat)
            for atom in flat.GetAtoms():
                atom.SetIsotope(0)
            # Without its isotope label, [2H] is a hydrogen like any other.
            flat = chem.RemoveHs(flat)
            flat_smiles = chem.MolToSmiles(flat)
            smiles = flat_smiles if stereo == "drop" else chem.MolToSmiles(molecule)
            return MoleculeKeys(smiles, flat_smiles, *murcko_scaffolds(flat))

    return standardize


def murcko_scaffolds(molecule: Any) -> tuple[str, str]:
    """The Bemis-Murcko scaffold of an RDKit molecule and its generic form; "" without rings."""
    chem = load("rdkit.Chem", "computing scaffolds")
    murcko = load("rdkit.Chem.Scaffolds.MurckoScaffold", "computing scaffolds")
    if molecule.GetRingInfo().NumRings() == 0:
        return "", ""
    scaffold = murcko.GetScaffoldForMol(molecule)
    text = chem.MolToSmiles(scaffold)
    try:
        # RDKit's scaffold keeps atoms that are double-bonded to a ring. Made generic they are
        # methyl groups, so cyclohexanone and cyclohexane would differ: take the scaffold again.
        generic = murcko.GetScaffoldForMol(murcko.MakeScaffoldGeneric(scaffold))
    except chem.AtomValenceException:
        return text, text  # phosphorus or sulfur with five ring bonds: no carbon can replace it
    return text, chem.MolToSmiles(generic)
