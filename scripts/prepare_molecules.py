"""Prepare a table of molecules for --data molecules:FOLDER, once and offline.

    python scripts/prepare_molecules.py tox21.csv.gz runs/tox21 --layout tox21
    python scripts/prepare_molecules.py mine.csv runs/mine --tasks active --splits scaffold time
    python scripts/prepare_molecules.py chembl.csv runs/potency --layout chembl --active-above 6

Rows are standardized and merged into molecules, then split and featurized; a report says what
still leaks across each split. Exit codes: 0 done, 2 a mistake you can fix.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer_core.bio.chembl import ChemblOptions, ChemblReader
from trainer_core.bio.leakage import leakage_report
from trainer_core.bio.molecules import MoleculeOptions, MoleculeRows, build_molecule_table
from trainer_core.bio.prepared_molecules import SPLITTERS, prepare_molecules
from trainer_core.bio.tables import MOLECULENET, MoleculeTableReader, RowReader, TableLayout
from trainer_core.bio.tables import as_columns
from trainer_core.settings import UserError, with_flags


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    summary, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="CSV, perhaps gzipped")
    parser.add_argument("folder", type=Path, help="a new folder, for --data molecules:FOLDER")
    layouts = ", ".join([*MOLECULENET, "chembl"])
    parser.add_argument("--layout", help=f"of the file: {layouts}; default: --smiles, --tasks")
    parser.add_argument("--smiles", default="smiles", help="the column with SMILES")
    parser.add_argument("--tasks", nargs="+", default=[], help="columns of labels, 0 or 1")
    parser.add_argument("--year", help="the column with a year, for a time split")
    parser.add_argument("--active-above", type=float, help="chembl: 1 for pX at or above this")
    parser.add_argument(
        "--splits", nargs="+", default=["scaffold", "random"], choices=SPLITTERS
    )
    parser.add_argument("--on-bad", choices=("raise", "skip"), default="raise")
    return parser


def reader_of(options: argparse.Namespace) -> RowReader:
    """The file as a stream of rows.

    Raises:
        UserError: if the layout is unknown, or its labels aren't classes.
    """
    if options.layout == "chembl":
        if options.active_above is None:
            raise UserError(
                "--layout chembl: potencies are numbers, and the task learns actives and "
                "inactives. Say where an active begins: --active-above 6 is 1 uM."
            )
        chosen = ChemblOptions(active_above=options.active_above)
        return ChemblReader(options.file, chosen, on_bad=options.on_bad)
    layout = TableLayout(smiles=options.smiles, tasks=tuple(options.tasks), year=options.year)
    if options.layout is not None:
        if options.layout not in MOLECULENET:
            known = ", ".join([*MOLECULENET, "chembl"])
            raise UserError(f"--layout {options.layout}: no such layout. Choose from {known}.")
        layout = MOLECULENET[options.layout]
    if layout.kind == "real":
        raise UserError(
            f"--layout {options.layout}: its labels are measurements, and --data molecules "
            "learns actives and inactives. Add a column of 0 and 1, and name it with --tasks."
        )
    return MoleculeTableReader(options.file, layout, on_bad=options.on_bad)


def main(arguments: Sequence[str]) -> int:
    """Prepare, and report."""
    options = build_parser().parse_args(arguments)
    try:
        reader = reader_of(options)
        rows = MoleculeRows(**as_columns(reader))
        table = build_molecule_table(rows, MoleculeOptions(on_bad=options.on_bad))
        manifest = prepare_molecules(table, options.folder, options.splits)
        print(f"{options.file}: {reader.report}\n{manifest['merging']}")
        for name in options.splits:
            print(f"\n{name} split")
            print("\n".join(leakage_report(table, SPLITTERS[name](table)).lines()))
    except (UserError, OSError) as error:
        message = with_flags(str(error), ("on_bad",))
        print(f"prepare_molecules.py: {message}", file=sys.stderr)
        return 2
    print(f"\nTrain on it: python scripts/launch.py --data molecules:{options.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
