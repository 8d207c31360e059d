"""The biotech track: where the domain breaks a trainer that looks right.

Molecules that leak across splits, proteins of 10 to 35,000 residues, labels that are mostly
missing, geometry with symmetries. Importing this package needs torch and numpy only; the tools
of the field (RDKit, h5py, scikit-learn) are imported by the functions that use them.
"""
