"""Prepare an AnnData file for --data cells:FOLDER, once and offline.

    python scripts/prepare_cells.py atlas.h5ad runs/atlas --labels cell_type
    python scripts/prepare_cells.py atlas.h5ad runs/atlas --labels cell_type --layer counts

The matrix must be CSR, a row for each cell. Exit codes: 0 done, 2 a mistake you can fix.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer_core.bio.cell_task import prepare_cells
from trainer_core.settings import UserError


def main(arguments: Sequence[str]) -> int:
    """Prepare, and say how to go on."""
    summary, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help=".h5ad")
    parser.add_argument("folder", type=Path, help="a new folder, for --data cells:FOLDER")
    parser.add_argument("--labels", required=True, help="the column of obs with cell types")
    parser.add_argument("--layer", help="a layer, or raw; default: X")
    options = parser.parse_args(arguments)
    try:
        prepare_cells(
            options.file, options.folder, layer=options.layer, label_column=options.labels
        )
    except (UserError, OSError) as error:
        print(f"prepare_cells.py: {error}", file=sys.stderr)
        return 2
    print(f"Train on it: python scripts/launch.py --data cells:{options.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
